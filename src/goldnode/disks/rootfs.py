"""Builder of a disk's root filesystem. mmdebstrap makes a base from exactly the packages of the lock;
`site.yml` then applies the class.

Nothing of the build machine gets in, and nothing is downloaded: the packages come from an archive of this
build alone, and all programs run without network. Mounts are made in a namespace that ends with the build, so
a killed build leaves none behind.
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

from goldnode.core.data import data
from goldnode.core.errors import DiskError, ImageError
from goldnode.core.program_file import payload
from goldnode.disks import offline
from goldnode.disks.bytecode import add_bytecode
from goldnode.disks.locking import DiskLock, DiskTarget, checked
from goldnode.disks.model import PendingWork
from goldnode.disks.sanitise import date, sanitise
from goldnode.lock.locked_files import LockedDeb
from goldnode.lock.pool import stanza
from goldnode.oci import emulation, engines
from goldnode.oci.engines import root_start
from goldnode.oci.model import AMD64, MACHINES

# Version of the procedure. Increase it when the steps change but their inputs do not, to invalidate cached
# roots.
RECIPE = 1
# In the image: work that its first boot has to do, or to find missing.
PENDING = "/var/lib/goldnode/pending.json"

# Hook and script for initramfs-tools: they find the disk that the firmware booted (docs/reference/disk-identity.md).
INITRAMFS = data("images/disks/initramfs")

# Names in `tools` of what determines a root.
SHAPING = ("mmdebstrap", "apt", "dpkg", *map(emulation.tool, MACHINES))

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
    """A finished, sanitised root filesystem. `pending` is the work that needs a boot."""

    root: Path
    pending: tuple[PendingWork, ...]


def needs_root() -> None:
    """Raise DiskError, before anything is made, if not running as root: the build needs chroot and files of
    other users.
    """
    if os.geteuid() != 0:
        raise DiskError(
            "a root filesystem is made with chroot and files of other users",
            remedy="run it as root; a container will do",
        )


def tools(architecture: str = AMD64) -> dict[str, str]:
    """Return the versions of the installed programs that shape a root filesystem of `architecture`.

    Raises DiskError if one is missing.
    """
    try:
        versions = engines.tools(None)
    except ImageError as problem:
        raise DiskError(problem.message, remedy=problem.remedy) from problem
    for program in ("unshare", "setpriv", "tar", "zstd", "dpkg-deb"):
        if shutil.which(program) is None:
            raise DiskError(
                f"{program} is not on this machine",
                remedy="install it: apt-get install util-linux tar zstd dpkg",
            )
    if not emulation.runnable(architecture):
        raise DiskError(
            f"this machine cannot run programs of {architecture}: {emulation.program(architecture)} is not on it",
            remedy=f"install it: apt-get install qemu-user-static; or build on a machine of {architecture}",
        )
    emulator = emulation.tool(architecture)
    names = ("mmdebstrap", "apt", "dpkg", *((emulator,) if emulator in versions else ()))
    return {name: versions[name] for name in names}


def make(
    item: DiskTarget,
    lock: DiskLock,
    document: Mapping[str, Any],
    into: Path,
    *,
    pool: Path,
    work: Path,
    say: Say = lambda text: None,
) -> Rootfs:
    """Build the root filesystem of `item` in the directory `into`, which must not exist.

    `work` is an empty scratch directory.

    Raises DiskError if a package differs from the lock, the base cannot be made, `site.yml` fails, or the
    plan is not empty afterwards.
    """
    needs_root()
    files = checked(pool, lock.debs)
    stack = {row.name for row in item.stack_set(lock.modules)}
    repository = work / "repository"
    archive(repository, lock.debs, files)
    say("making the base")
    # The roles install the stack's packages, in the same way as on a live node.
    base = [deb.name for deb in lock.debs if deb.name not in stack]
    try:
        system = item.stack.item.os
        hooks = (root_start(system.architecture), "true")
        plan = engines.RootPlan(system.codename, hooks, lock.epoch, system.architecture)
        engines.make_root(repository, base, plan, into, work=work)
    except ImageError as problem:
        raise DiskError(problem.message, remedy=problem.remedy) from problem
    prepare(into, lock.debs)
    say("applying site.yml")
    with services_stay(into):
        place = offline.ImageRoot(into, system.architecture)
        offline.site_yml(place, document, repository, work, lock.epoch)
    shutil.rmtree(repository)
    pending = offline.prove(place, document, {"program": payload(content=False)})
    rows = [{"id": row.id, "reason": row.reason} for row in pending]
    offline.write(
        into,
        PENDING,
        json.dumps(
            {"schema": "goldnode.pending/1", "class_digest": document["digest"], "pending": rows},
            indent=1,
        )
        + "\n",
    )
    sanitise(into, lock.epoch)
    add_bytecode(into, system.architecture)
    date(into, lock.epoch)
    return Rootfs(into, tuple(pending))


def archive(place: Path, debs: Sequence[LockedDeb], files: Mapping[str, Path]) -> None:
    """Create a flat apt archive of packages in the directory `place`."""
    place.mkdir()
    for deb in debs:
        here = place / files[deb.name].name
        try:
            here.hardlink_to(files[deb.name])
        except OSError:
            shutil.copyfile(files[deb.name], here)
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        index = list(
            pool.map(lambda deb: stanza(place / files[deb.name].name, deb.sha256, DiskError), debs)
        )
    (place / "Packages").write_text("\n".join(index), encoding="utf-8")
    for path in (place.parent, place):
        path.chmod(0o755)


def prepare(root: Path, debs: Iterable[LockedDeb]) -> None:
    """Prepare a base for the roles: remove package sources, record which packages were installed automatically, and
    add the scripts of the initramfs. The roles install the kernel, whose package makes the initramfs.
    """
    add_initramfs_scripts(root)
    for path in (root / "etc/apt/sources.list", *(root / "etc/apt/sources.list.d").glob("*")):
        path.unlink(missing_ok=True)
    # mmdebstrap installed all packages in one request, so apt regards every one of them as manual.
    rows = sorted((deb.name, deb.architecture) for deb in debs if deb.why.startswith("needed by"))
    native = next(deb.architecture for deb in debs if deb.name == "dpkg")
    text = "".join(
        f"Package: {name}\nArchitecture: {native if arch == 'all' else arch}\nAuto-Installed: 1\n\n"
        for name, arch in rows
    )
    (root / "var/lib/apt/extended_states").write_text(text, encoding="utf-8")
    for name in ("etc/hostname", "etc/resolv.conf"):
        (root / name).unlink(missing_ok=True)


def add_initramfs_scripts(root: Path) -> None:
    """Add what the initramfs of a disk image runs to find the disk that the firmware booted."""
    for path in sorted(INITRAMFS.rglob("goldnode-*")):
        target = root / "usr/share/initramfs-tools" / path.relative_to(INITRAMFS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        target.chmod(0o755)


@contextmanager
def services_stay(root: Path) -> Iterator[None]:
    """Keep maintainer scripts from starting services in the root.

    They are enabled, and start at boot (policy-rc.d of invoke-rc.d).
    """
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def pack(root: Path, to: Path) -> None:
    """Store a root filesystem as a tar, atomically."""
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        _tar(
            [
                "tar",
                *TAR,
                "-C",
                str(root),
                "--use-compress-program=zstd -1 -T0",
                "-cf",
                str(temporary),
                ".",
            ],
            "kept",
        )
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)


def unpack(tar: Path, root: Path) -> None:
    """Unpack a root filesystem that `pack` stored."""
    root.mkdir()
    # Without the options that apply only to creating a tar.
    _tar(
        ["tar", *TAR[3:-1], "-C", str(root), "--use-compress-program=zstd -d", "-xpf", str(tar)],
        "unpacked",
    )


def _tar(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        full = "No space left" in done.stderr
        if full:
            reported = "the disk is full"
        else:
            reported = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DiskError(
            f"the root filesystem cannot be {what}: {reported}",
            remedy="make room in the store's file system" if full else None,
        )
