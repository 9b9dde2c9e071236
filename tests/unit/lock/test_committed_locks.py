"""The locks in the catalog: whole, fresh in intent, and without an address."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest

from goldnode.catalog.load import LOCK_SUFFIX, builtin_catalog
from goldnode.classdoc.load import load_catalog
from goldnode.core.site import Site, SiteArchive
from goldnode.lock.model import check_intent, dump_lock, load_lock
from goldnode.lock.resolve import open_archives, upstream_part
from goldnode.node.state.family import kernel_release

CATALOG = load_catalog([builtin_catalog()])
LOCKS = sorted((builtin_catalog() / "stacks").glob(f"*{LOCK_SUFFIX}"))


def test_every_stack_of_debians_archive_is_locked_and_no_other() -> None:
    real = {
        name for name, entry in CATALOG.stacks.items() if entry.item.exercised == "debian-archive"
    }
    assert {path.name.removesuffix(LOCK_SUFFIX) for path in LOCKS} == real
    assert len(real) == 13


def test_nodes_with_debians_docker_have_its_command() -> None:
    """Since Debian 13 it is in docker-cli, which docker.io only recommends."""
    without = {
        name
        for name, entry in CATALOG.stacks.items()
        if "docker.io" in (packages := entry.item.runtime.packages if entry.item.runtime else ())
        and "docker-cli" not in packages
    }
    assert not {name for name in without if re.match(r"debian1[3-9]", name)}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_committed_lock_is_canonical_and_matches_its_stack(path: Path) -> None:
    lock = load_lock(path)
    entry = CATALOG.stacks[lock.stack]
    check_intent(lock, path, entry)
    assert dump_lock(lock) == path.read_text(encoding="utf-8"), "not as goldnode writes it"
    assert "://" not in dump_lock(lock)
    names = [item.name for item in lock.packages]
    assert names == sorted(set(names))
    stack = {item.name: item for item in lock.packages if item.set == "stack"}
    driver = entry.item.driver
    wanted = {f"linux-image-{lock.kernel_release}", *entry.item.packages}
    if entry.item.builds_modules:
        wanted.add(f"linux-headers-{lock.kernel_release}")
    wanted |= set(driver.packages) if driver is not None else set()
    wanted |= set(entry.item.runtime.packages) if entry.item.runtime is not None else set()
    assert wanted == {name for name, item in stack.items() if item.requested}
    for name in driver.lockstep if driver is not None else []:
        assert upstream_part(stack[name].version) == lock.driver_version
    # Base packages stay free to take their updates.
    assert not {"libc6", "gcc-12", "gcc-14", "dkms", "linux-libc-dev", "kmod"} & set(stack)
    assert all(re.match(r"^pool/", item.path) and item.size > 0 for item in lock.packages)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_headers_and_compiler_are_locked_only_where_nodes_build_modules(path: Path) -> None:
    lock = load_lock(path)
    pattern = r"linux-(headers|kbuild|compiler)-.*|gcc(-\d+)?(-x86-64-linux-gnu|-aarch64-linux-gnu)?|make|dkms|binutils"
    found = [item.name for item in lock.packages if re.fullmatch(pattern, item.name)]
    assert bool(found) == CATALOG.stacks[lock.stack].item.builds_modules
    # The modules of Debian 14's kernel are in a package of their own.
    kernel = {item.name for item in lock.packages if kernel_release(item.name)}
    assert kernel == {
        item.name for item in lock.packages if item.part == "kernel" and kernel_release(item.name)
    }
    assert kernel <= {item.name for item in lock.stack_set(nvswitch=False)}


def test_one_kernel_version_throughout() -> None:
    """Signed kernels come later than the rest of their source: on 2026-11-28 Debian 12 had image and headers of 6.1.192-2, kbuild of -3."""
    for path in LOCKS:
        kernel = [item for item in load_lock(path).packages if item.part == "kernel"]
        assert len({item.version.rpartition("-")[0] for item in kernel}) == 1, path
        running = {
            item.version
            for item in kernel
            if item.name.startswith(("linux-image-", "linux-headers-"))
        }
        assert len(running) == 1, path


@pytest.mark.real
@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_resolves_against_the_real_archive(path: Path) -> None:
    """Versions move on; the choice and the shape of the answer must not."""
    entry = CATALOG.stacks[path.name.removesuffix(LOCK_SUFFIX)]
    committed = load_lock(path)
    # The index of testing is valid for a week, and a mirror may be older.
    site = Site(archives={"debian": SiteArchive(accept_expired=entry.item.os.codename == "forky")})
    with open_archives(entry, CATALOG, site) as archives:
        lock = archives.resolve(dt.datetime.now(tz=dt.UTC).date()).lock
    asked = [
        {item.name for item in one.packages if item.requested and item.part != "kernel"}
        for one in (lock, committed)
    ]
    assert asked[0] == asked[1]
    assert lock.kernel_release.startswith(f"{entry.item.kernel.series}.")
    driver = entry.item.driver
    if driver is not None and driver.branch is not None:
        assert str(lock.driver_version).startswith(f"{driver.branch}.")
