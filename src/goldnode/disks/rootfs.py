"""The root filesystem of a disk: mmdebstrap makes the base from exactly the lock's packages, then `site.yml` makes it a node of its class.

Nothing of the machine that builds is in it, and nothing is fetched: the packages lie in an archive of this build alone, and whatever runs has
no network. Mounts are made in a namespace that ends with the build, so that a build that is killed leaves none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldnode.disks import offline
from goldnode.disks.locking import DiskLock, Target, checked
from goldnode.disks.model import Pending
from goldnode.disks.sanitise import sanitise
from goldnode.errors import DiskError, ImageError
from goldnode.images import engines
from goldnode.images.imagelock import LockedDeb
from goldnode.images.pool import stanza
from goldnode.images.recipe import ROOT_START
from goldnode.nodefile import payload

# Raised when what is done to a root changes without changing what goes into it.
RECIPE = 1
PENDING = "/var/lib/goldnode/pending.json"  # in the image: what its first boot has to do or to find

Say = Callable[[str], None]

TAR = (
    "--sort=name",
    "--format=posix",
    "--pax-option=delete=atime,delete=ctime",
    "--numeric-owner",
    "--xattrs",
    "--xattrs-include=security.capability",
    "--one-file-system",
)


@dataclass(frozen=True)
class Rootfs:
    """A finished, sanitised root filesystem. `pending` is what it cannot hold before it has booted."""

    root: Path
    pending: tuple[Pending, ...]


def needs_root() -> None:
    """Refuse, before anything is made, what needs other users' files and chroot."""
    if os.geteuid() != 0:
        raise DiskError(
            "a root filesystem is made with chroot and files of other users",
            remedy="run it as root; a container will do",
        )


def tools() -> dict[str, str]:
    """The versions of this machine's programs that shape a root filesystem. Raises DiskError where one is missing."""
    try:
        found = engines.tools(None)
    except ImageError as problem:
        raise DiskError(problem.message, remedy=problem.remedy) from problem
    for program in ("unshare", "setpriv", "tar", "zstd", "dpkg-deb"):
        if shutil.which(program) is None:
            raise DiskError(
                f"{program} is not on this machine", remedy="apt-get install util-linux tar zstd dpkg"
            )
    return {name: found[name] for name in ("mmdebstrap", "apt", "dpkg")}


def make(
    item: Target,
    lock: DiskLock,
    document: Mapping[str, Any],
    into: Path,
    *,
    pool: Path,
    work: Path,
    say: Say = lambda text: None,
) -> Rootfs:
    """Make the root filesystem of `item` as directory `into`, which must not be there yet; `work` is an empty directory for what is passing.

    Raises DiskError where a package is not what the lock says, where the base cannot be made, where `site.yml` fails, and where the plan
    afterwards is not empty.
    """
    needs_root()
    files = checked(pool, lock.debs)
    stack = {row.name for row in item.stack_set(lock.modules)}
    repository = work / "repository"
    archive(repository, lock.debs, files)
    say("making the base")
    base = [deb.name for deb in lock.debs if deb.name not in stack]
    try:
        engines.make_root(
            repository, base, item.stack.item.os.codename, (ROOT_START, "true"), lock.epoch, into, work=work
        )
    except ImageError as problem:
        raise DiskError(problem.message, remedy=problem.remedy) from problem
    prepare(into, lock.debs)
    say("applying site.yml")
    with services_stay(into):
        offline.site_yml(into, document, repository, work, lock.epoch)
    shutil.rmtree(repository)
    pending = offline.prove(into, document, {"program": payload(content=False)})
    rows = [{"id": row.id, "reason": row.reason} for row in pending]
    offline.write(
        into,
        PENDING,
        json.dumps(
            {"schema": "goldnode.pending/1", "class_digest": document["digest"], "pending": rows}, indent=1
        )
        + "\n",
    )
    sanitise(into, lock.epoch)
    return Rootfs(into, tuple(pending))


def archive(place: Path, debs: Sequence[LockedDeb], files: Mapping[str, Path]) -> None:
    """Make a flat archive of packages for apt in directory `place`."""
    place.mkdir()
    for deb in debs:
        here = place / files[deb.name].name
        try:
            here.hardlink_to(files[deb.name])
        except OSError:
            shutil.copyfile(files[deb.name], here)
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        index = list(pool.map(lambda deb: stanza(place / files[deb.name].name, deb.sha256, DiskError), debs))
    (place / "Packages").write_text("\n".join(index), encoding="utf-8")
    for path in (place.parent, place):
        path.chmod(0o755)


def prepare(root: Path, debs: Iterable[LockedDeb]) -> None:
    """What a root gets between its base and its roles: no source of packages, and apt's knowledge of who asked for what."""
    for path in (root / "etc/apt/sources.list", *(root / "etc/apt/sources.list.d").glob("*")):
        path.unlink(missing_ok=True)
    # All came in one request; only what was asked for is to be held for asked for.
    rows = sorted((deb.name, deb.architecture) for deb in debs if deb.why.startswith("needed by"))
    native = next(deb.architecture for deb in debs if deb.name == "dpkg")
    text = "".join(
        f"Package: {name}\nArchitecture: {native if arch == 'all' else arch}\nAuto-Installed: 1\n\n"
        for name, arch in rows
    )
    (root / "var/lib/apt/extended_states").write_text(text, encoding="utf-8")
    for name in ("etc/hostname", "etc/resolv.conf"):
        (root / name).unlink(missing_ok=True)


@contextmanager
def services_stay(root: Path) -> Iterator[None]:
    """Let no maintainer script start a service of the root: they are enabled, and start at the boot (invoke-rc.d's own interface)."""
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def pack(root: Path, to: Path) -> None:
    """Keep a root filesystem as a tar, whole or not at all."""
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        _tar(
            ["tar", *TAR, "-C", str(root), "--use-compress-program=zstd -1 -T0", "-cf", str(temporary), "."],
            "kept",
        )
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)


def unpack(tar: Path, root: Path) -> None:
    """Make the root filesystem that `pack` has kept."""
    root.mkdir()
    _tar(["tar", *TAR[3:-1], "-C", str(root), "--use-compress-program=zstd -d", "-xpf", str(tar)], "unpacked")


def _tar(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        full = "No space left" in done.stderr
        said = "the disk is full" if full else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DiskError(
            f"the root filesystem cannot be {what}: {said}",
            remedy="make room in the store's file system" if full else None,
        )
