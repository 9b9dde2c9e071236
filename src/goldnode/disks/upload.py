"""Upload of a build into a published directory."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from goldnode.channels.requirements import Requirement
from goldnode.core.errors import DiskError
from goldnode.core.files import sha256_of, sync
from goldnode.disks import evidence, formats
from goldnode.disks.contents import digest_of
from goldnode.disks.directory import DETACHED, ENVELOPE, PREDICATE, STAGING, check_published, full
from goldnode.disks.model import FORMATS, MANIFEST, SUMS, BuiltDisk
from goldnode.evidence import signatures

if TYPE_CHECKING:
    from goldnode.evidence.signatures import EnvelopeSigner


class Directory(Protocol):
    """The published directory that a build is uploaded to (:class:`goldnode.disks.places.DirectoryPlace`)."""

    root: Path


@dataclass
class PublishedDisk:
    """Result of a publication.

    `size` is the number of bytes written. `before`: the build was already published. `signatures`:
    it was, and has got those of Secure Boot now.
    """

    directory: Path
    digest: str
    files: int = 0
    size: int = 0
    before: bool = False
    signatures: bool = False
    requirements: list[Requirement] = field(default_factory=list)


def copy_build(
    disk: BuiltDisk,
    place: Directory,
    signer: EnvelopeSigner,
    results: Sequence[Requirement],
    *,
    replace: bool = False,
    now: dt.datetime | None = None,
) -> PublishedDisk:
    """Copy a build to the location.

    The caller holds the location's lock. `replace` replaces a damaged copy. A build that is published
    already gets only the signatures for Secure Boot that were made since.
    """
    from goldnode.disks import secureboot  # start-up time

    secure = secureboot.of_build(disk)
    target = place.root / disk.class_ / disk.build_id
    digest = digest_of(disk)
    published = PublishedDisk(target, digest)
    if target.exists():
        there = "no build"
        if (target / MANIFEST).is_file():
            there = f"sha256:{sha256_of(target / MANIFEST)}"
        if there != digest and not replace:
            raise DiskError(
                f"{target} is {there[:19]}, and {digest[:19]} here: a build id is given to one content only",
                remedy="find out whose build is not reproducible (`goldnode disks compare`); a changed "
                "input has a build id of its own",
            )
        if not replace:
            check_published(target)
            published.before = True
            if secure is not None and not _has(target, secure):
                _add(disk, place, secure, signer, published, results=results, now=now)
            return published
    files = [
        path
        for row in disk.files
        # The raw disk is published compressed only.
        if row.format != "raw" and (path := disk.directory / row.file).is_file()
    ]
    files += [disk.directory / MANIFEST, *evidence.documents(disk)]
    files += [
        path
        for path in (evidence.document(disk, "signature"), secure)
        if path is not None and path.is_file()
    ]
    raw = disk.directory / f"{disk.name}.raw"
    compressed = f"{disk.name}{FORMATS['raw.zst']}"
    packed = any(row.format == "raw.zst" for row in disk.files)
    if not packed and not raw.is_file():
        raise DiskError(
            f"{disk.name} has no raw disk here, compressed or not",
            file=disk.directory,
            remedy="build or pull it again",
        )
    # A third of the allocated size is a low estimate of the compressed size. Fail early if not even that
    # fits.
    need = sum(path.stat().st_size for path in files) + (0 if packed else disk.raw.allocated // 3)
    if (free := shutil.disk_usage(place.root).free) < need:
        raise DiskError(
            f"{place.root} has {free >> 20} MiB free, and {disk.name} needs {need >> 20} MiB or more",
            remedy="free space there (`goldnode disks gc --to`)",
        )
    stage = place.root / STAGING / disk.name
    with full(place.root):
        try:
            shutil.rmtree(stage, ignore_errors=True)
            stage.mkdir(parents=True)
            for path in files:
                shutil.copyfile(path, stage / path.name)
            if not packed:
                _compress(disk, raw, stage / compressed)
            script = netboot(disk)
            if script is not None:
                (stage / f"{disk.name}.ipxe").write_text(script, encoding="ascii")
            sign_sums(disk, stage, signer, results, now or dt.datetime.now(dt.UTC))
            if not packed:
                _check_compressed(stage / compressed, disk)
            for path in sorted(stage.iterdir()):
                path.chmod(0o644)
                sync(path)
                published.files, published.size = (
                    published.files + 1,
                    published.size + path.stat().st_size,
                )
            stage.chmod(0o755)
            target.parent.mkdir(exist_ok=True)
            if replace and target.exists():
                # Renamed, not removed: a client may be in the middle of a download.
                target.rename(stage.with_name(f"{disk.name}.damaged-{time.time_ns()}"))
            stage.rename(target)
            sync(target.parent)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
    return published


def _has(directory: Path, file: Path) -> bool:
    """Return whether a directory has a file of this name and content."""
    there = directory / file.name
    return there.is_file() and there.read_bytes() == file.read_bytes()


def _add(
    disk: BuiltDisk,
    place: Directory,
    secure: Path,
    signer: EnvelopeSigner,
    published: PublishedDisk,
    *,
    results: Sequence[Requirement],
    now: dt.datetime | None,
) -> None:
    """Publish a published build again with the signatures for Secure Boot, which are made after a build.

    Its other files are the same inodes. The sums are signed again, so that a client verifies the signatures too.
    """
    target, stage = published.directory, place.root / STAGING / disk.name
    with full(place.root):
        try:
            shutil.rmtree(stage, ignore_errors=True)
            stage.mkdir(parents=True)
            for path in sorted(target.iterdir()):
                if path.name not in (SUMS, DETACHED, ENVELOPE, secure.name):
                    (stage / path.name).hardlink_to(path)
            shutil.copyfile(secure, stage / secure.name)
            sign_sums(disk, stage, signer, results, now or dt.datetime.now(dt.UTC))
            for name in (SUMS, DETACHED, ENVELOPE, secure.name):
                (stage / name).chmod(0o644)
                sync(stage / name)
                published.files, published.size = (
                    published.files + 1,
                    published.size + (stage / name).stat().st_size,
                )
            stage.chmod(0o755)
            before = stage.with_name(f"{disk.name}.unsigned-{time.time_ns()}")
            target.rename(before)
            stage.rename(target)
            sync(target.parent)
            shutil.rmtree(before)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
    published.signatures = True


def _compress(disk: BuiltDisk, raw: Path, into: Path) -> None:
    with _space():
        formats.write(raw, raw, "raw.zst", into, epoch=disk.epoch, release=disk.kernel)


@contextmanager
def _space() -> Iterator[None]:
    """Turn a tool's out-of-space error into an OSError: the caller knows the remedy for its directory."""
    try:
        yield
    except DiskError as problem:
        if "space left" in problem.message:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from problem
        raise


def _check_compressed(path: Path, disk: BuiltDisk) -> None:
    """Check that the content of a compressed disk matches the manifest."""
    hasher, size = hashlib.sha256(), 0
    with subprocess.Popen(["zstd", "-q", "-d", "-c", str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101
        # By the program that users unpack with, not by a library.
        while block := process.stdout.read(1 << 20):
            hasher.update(block)
            size += len(block)
    if hasher.hexdigest() != disk.raw.sha256:
        raise DiskError(
            f"{path.name} holds {size} bytes with sha256 {hasher.hexdigest()[:16]}…, the manifest says "
            f"{disk.raw.sha256[:16]}…",
            file=disk.directory,
            remedy="the raw disk was altered: build or pull it again",
        )


def netboot(disk: BuiltDisk) -> str | None:
    """Return the iPXE script that boots the disk's kernel and initramfs; None if these formats were not
    built.
    """
    names = {row.format: row.file for row in disk.files}
    if not {"vmlinuz", "initrd"} <= names.keys():
        return None
    root = next((row.name for row in disk.partitions if row.filesystem == "ext4"), "root-a")
    lines = [
        "#!ipxe",
        f"# {disk.name}: kernel {disk.kernel}. The root is that of the node's own disk; `set root ...` "
        "before, for another one.",
        f"isset ${{root}} || set root PARTLABEL={root}",
        f"kernel {names['vmlinuz']} initrd={names['initrd']} root=${{root}} ro ${{arguments}}",
        f"initrd {names['initrd']}",
        "boot",
    ]
    return "\n".join(lines) + "\n"


def sign_sums(
    disk: BuiltDisk,
    stage: Path,
    signer: EnvelopeSigner,
    results: Sequence[Requirement],
    now: dt.datetime,
) -> None:
    """Sign the checksums of the copies in `stage`. Raises DiskError if one is not the disk that was built."""
    # Hash the copies, so that the signature covers what was actually written.
    sums = {path.name: sha256_of(path) for path in sorted(stage.iterdir())}
    wanted = {row.file: row.sha256 for row in disk.files} | {
        MANIFEST: digest_of(disk).removeprefix("sha256:")
    }
    for name, sha256 in sums.items():
        if wanted.get(name, sha256) != sha256:
            raise DiskError(
                f"{name} is altered: its sha256 is {sha256[:16]}…, the manifest says {wanted[name][:16]}…",
                file=disk.directory,
                remedy="build or pull it again; if it is whole there, look at the disk it was copied to",
            )
    text = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())).encode()
    (stage / SUMS).write_bytes(text)
    # For tools without DSSE: a plain signature over SHA256SUMS.
    (stage / DETACHED).write_bytes(signer.sign_bytes(text))
    sums[SUMS] = sha256_of(stage / SUMS)
    predicate = {
        "class": disk.class_,
        "build_id": disk.build_id,
        "published": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gates": [result.document() for result in results],
    }
    (stage / ENVELOPE).write_bytes(
        signer.sign(signatures.statement(disk.name, digest_of(disk), PREDICATE, predicate, sums))
    )
