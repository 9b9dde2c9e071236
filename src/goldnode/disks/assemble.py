"""Assembly of a bootable disk from a root filesystem directory.

Reproducible, without loop devices, mounts or a clock.

The file systems are made in place, inside the disk's file. The file gets its final name only when it is
complete. Its bytes depend on the root, `Spec`, this code and the tools of `tools.versions()`.
docs/reference/disk-format.md describes the layout.

Assembly needs root or fakeroot: the files on the disk get the owners of the files in the directory, and some
of them are readable by root only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.errors import DiskError, nearest
from goldnode.disks import esp, ext4, gpt, tools
from goldnode.disks.architecture import architecture_of
from goldnode.disks.esp import Content
from goldnode.disks.model import Layout, Loader, Partition
from goldnode.disks.tools import Progress

MIB = 1 << 20
_GRUB_SHAPES = frozenset(
    "$`;&|<>{}#"
    # Special characters of GRUB's script language. The shell that reads update-grub's settings expands some
    # too.
)
LOADERS: Mapping[Layout, Loader] = {"ab": "systemd-boot", "single": "grub"}
# PARTLABEL of the root partition, and label of its file system.
ROOTS: Mapping[Layout, str] = {
    "ab": "root-a",
    "single": "root",
}
_FREE = 64 * MIB  # free space on the root partition for what the first boot writes
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]*")  # a Debian 13 kernel release contains "+"


@dataclass(frozen=True)
class Sizes:
    """Partition sizes in bytes, multiples of a MiB: the ESP and one root.

    On a larger disk the first boot grows the root.
    """

    esp: int = 512 * MIB
    root: int = 4096 * MIB


@dataclass(frozen=True)
class Spec:
    """Everything that determines a disk besides its root.

    - `name` is CLASS-BUILDID.
    - `seed` is the UUID from which every GUID, file system UUID and hash seed is derived.
    - `epoch` (seconds) is the date of everything that has no date of its own.
    - `command_line` is the kernel's command line except root=. `words` is the part of it that comes from the
      definition. The rest comes from the class's policy, which the root contains anyway.
    - `release` is the kernel release (6.1.0-53-amd64).
    - `sequence` numbers the images of a node. The loader prefers the highest.
    - `architecture` is dpkg's name of the root's.
    """

    name: str
    layout: Layout
    loader: Loader
    sizes: Sizes
    seed: uuid.UUID
    epoch: int
    command_line: str
    release: str
    build_id: str
    sequence: int = 1
    words: str = ""
    architecture: str = "amd64"

    @property
    def class_name(self) -> str:
        """Return the class part of `name`."""
        return self.name.removesuffix(f"-{self.build_id}")

    def check(self) -> None:
        """Raise DiskError if the spec does not describe a valid disk."""
        architecture_of(self.architecture)
        if self.layout not in LOADERS:
            raise DiskError(
                f'there is no layout "{self.layout}"', remedy=nearest(str(self.layout), LOADERS)
            )
        if self.loader != LOADERS[self.layout]:
            raise DiskError(
                f"layout {self.layout} boots with {LOADERS[self.layout]}, not with {self.loader}",
                remedy=f"set `loader` to {LOADERS[self.layout]}, or `layout` to "
                f"{next((k for k, v in LOADERS.items() if v == self.loader), 'ab')}",
            )
        for what, text in (
            ("name", self.name),
            ("build_id", self.build_id),
            ("release", self.release),
        ):
            if not _NAME.fullmatch(text):
                raise DiskError(
                    f'`{what}` of the disk is "{text}", expected letters, digits and ._+~-'
                )
        # The line goes into a loader entry and into grub.cfg as it is.
        if "\n" in self.command_line or not self.command_line.isascii():
            raise DiskError(
                "the kernel's command line is not one line of ASCII",
                remedy="correct `command_line` of the definition",
            )
        shaped = sorted(set(self.command_line) & _GRUB_SHAPES)
        if self.loader == "grub" and shaped:
            raise DiskError(
                f"the kernel's command line has {' '.join(shaped)}, which GRUB's configuration takes for "
                "its own",
                remedy="leave the word out of `command_line` of the definition, or use layout ab, whose "
                "loader reads it as it is",
            )
        # Whole MiB: partitions begin at multiples of that, and so fit the blocks of any disk.
        for key, size, least in (
            ("esp_mib", self.sizes.esp, esp.LEAST),
            ("root_mib", self.sizes.root, 2 * ext4.JOURNAL),
        ):
            if size % MIB or size < least:
                raise DiskError(
                    f"a partition of {size} bytes cannot be made, expected whole MiB, at least "
                    f"{-(-least // MIB)}",
                    remedy=f"correct `{key}` of the definition",
                )


@dataclass(frozen=True)
class Assembled:
    """A finished disk.

    `size` is that of the file, `allocated` the part that is not zeros (in 4 KiB blocks), both in bytes.
    """

    raw: Path
    partitions: tuple[Partition, ...]
    size: int
    sha256: str
    allocated: int


def partitions(spec: Spec) -> tuple[Partition, ...]:
    """Return the partitions of the disk as shipped. Pure."""
    root = ROOTS[spec.layout]
    volume = esp.volume_id(gpt.derive(spec.seed, "esp filesystem"))
    first = Partition(
        number=1,
        name="esp",
        type=gpt.ESP,
        uuid=str(gpt.derive(spec.seed, "esp")),
        start=gpt.START,
        size=spec.sizes.esp,
        filesystem="vfat",
        filesystem_uuid=esp.filesystem_uuid(volume),
    )
    second = Partition(
        number=2,
        # root=PARTLABEL=… names the slot; the initramfs takes that of the disk whose ESP the firmware booted.
        name=root,
        type=architecture_of(spec.architecture).root_type,
        uuid=str(gpt.derive(spec.seed, root)),
        start=gpt.START + spec.sizes.esp,
        size=spec.sizes.root,
        filesystem="ext4",
        filesystem_uuid=str(gpt.derive(spec.seed, f"{root} filesystem")),
    )
    return first, second


def slot_document(spec: Spec) -> bytes:
    """Return `slot.json` of the ESP: the description of the image in a slot."""
    data = {
        "name": spec.name,
        "class": spec.class_name,
        "build_id": spec.build_id,
        "sequence": spec.sequence,
        "kernel": spec.release,
    }
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()


def loader_entry(spec: Spec, slot: str) -> str:
    """Return the systemd-boot entry for slot `a` or `b` (Boot Loader Specification, type 1).

    It is the only place that defines how an image boots. `panic=5` reboots the node after a panic instead of
    hanging, so that boot counting uses up the tries.
    """
    options = " ".join(f"root=PARTLABEL=root-{slot} ro {spec.command_line} panic=5".split())
    return (
        f"title      goldnode {spec.name}\n"
        "sort-key   goldnode\n"
        f"version    {spec.sequence}~{spec.build_id}\n"
        f"linux      /goldnode/{slot}/vmlinuz\n"
        f"initrd     /goldnode/{slot}/initrd.img\n"
        f"options    {options}\n"
    )


def esp_files(root: Path, spec: Spec) -> dict[str, Content]:
    """Return the content of the ESP by path.

    Raises DiskError if the root lacks kernel, initramfs or loader.
    """
    kernel, initrd = (
        _inside(root, f"boot/vmlinuz-{spec.release}"),
        _inside(root, f"boot/initrd.img-{spec.release}"),
    )
    if not kernel.is_file():
        known = [path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*")]
        near = nearest(spec.release, known)
        there = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise DiskError(
            f"the root has no kernel {spec.release} (/boot/vmlinuz-{spec.release}); {there}",
            file=root,
            remedy=near.replace("use", "lock the disk again, or use", 1)
            or "add the stack's kernel to the packages, and lock the disk again",
        )
    if not initrd.is_file():
        raise DiskError(
            f"the root has no initramfs for kernel {spec.release} (/boot/initrd.img-{spec.release})",
            file=root,
            remedy="add initramfs-tools to the packages of the definition, and build again",
        )
    own = architecture_of(spec.architecture)
    if spec.loader == "systemd-boot":
        return {
            # The removable-media path: a new machine has no boot variable for this disk.
            own.boot: _loader(root, own.systemd_boot, "systemd-boot-efi"),
            # The default is a pattern: the newest entry whose boot tries are left. No editor, which would
            # be a root shell.
            "loader/loader.conf": b"default goldnode-*\ntimeout 0\neditor no\n",
            f"loader/entries/goldnode-{spec.build_id}-a.conf": loader_entry(spec, "a").encode(),
            "goldnode/a/vmlinuz": kernel,
            "goldnode/a/initrd.img": initrd,
            "goldnode/a/slot.json": slot_document(spec),
        }
    return {
        own.boot: _loader(root, own.grub, own.grub_package),
        # Debian's prefix is compiled into the image of GRUB.
        "EFI/debian/grub.cfg": grub_config(spec).encode(),
        "goldnode/slot.json": slot_document(spec),
    }


def grub_config(spec: Spec) -> str:
    """Return grub.cfg of the ESP.

    It loads the root's grub.cfg, and boots the image's kernel if that file is missing.
    """
    return (
        "# Written by goldnode when the disk was built. If the root has /boot/grub/grub.cfg, that file is used.\n"
        f"search --no-floppy --fs-uuid --set=root {partitions(spec)[1].filesystem_uuid}\n"
        "set prefix=($root)/boot/grub\n"
        "if [ -e $prefix/grub.cfg ]; then\n"
        "  configfile $prefix/grub.cfg\n"
        "fi\n"
        f"{_grub_boots(spec)}"
        "boot\n"
    )


def grub_entry(spec: Spec) -> str:
    """Return the id of the image's kernel in the root's grub.cfg, prefixed with its submenu, as update-grub
    names them.
    """
    identity = partitions(spec)[1].filesystem_uuid
    return f"gnulinux-advanced-{identity}>gnulinux-{spec.release}-advanced-{identity}"


def root_grub_config(spec: Spec) -> str:
    """Return /boot/grub/grub.cfg as shipped.

    Without this file the package of a new kernel would not run update-grub, and the engine could not
    determine what boots. The configuration honours grubenv, so that a kernel can be booted once on trial. Its
    entry has the id that update-grub would give it.
    """
    identity = partitions(spec)[1].filesystem_uuid
    submenu, entry = grub_entry(spec).split(">")
    return (
        "# Written by goldnode when the disk was built. Every new kernel runs update-grub, which rewrites it.\n"
        "if [ -s $prefix/grubenv ]; then\n"
        "  load_env\n"
        "fi\n"
        'if [ "${next_entry}" ]; then\n'
        '  set default="${next_entry}"\n'
        "  set next_entry=\n"
        "  save_env next_entry\n"
        "else\n"
        f'  set default="{submenu}>{entry}"\n'
        "fi\n"
        "set timeout=0\n"
        f'submenu "goldnode" --id {submenu} {{\n'
        f'  menuentry "Linux {spec.release}" --id {entry} {{\n'
        f"    search --no-floppy --fs-uuid --set=root {identity}\n"
        f"{_grub_boots(spec, '    ')}"
        "  }\n"
        "}\n"
    )


def _grub_boots(spec: Spec, indent: str = "") -> str:
    options = " ".join(
        f"root=UUID={partitions(spec)[1].filesystem_uuid} ro {spec.command_line}".split()
    )
    return (
        f"{indent}linux /boot/vmlinuz-{spec.release} {options}\n"
        f"{indent}initrd /boot/initrd.img-{spec.release}\n"
    )


def assemble(root: Path, spec: Spec, out: Path, progress: Progress) -> Assembled:
    """Assemble the disk of `root` into the file `out`, atomically. `root` is only read.

    `progress` receives a short message for each step. Raises DiskError for a root that cannot boot or does
    not fit its partition, a missing or failed tool, or lack of space.
    """
    spec.check()
    tools.require("sfdisk", "mkfs.vfat", "mmd", "mcopy", "mke2fs", "debugfs", "e2fsck")
    _check_root(root)
    files = esp_files(root, spec)
    needed = _check_sizes(root, spec, files)
    table = partitions(spec)
    size = table[-1].start + table[-1].size + gpt.TAIL
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DiskError(
            f"{out.parent} cannot be made: {problem.strerror}",
            remedy="name another place with --store",
        ) from problem
    # Checked before minutes of work.
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        raise tools.no_space(
            f"the disk takes about {_mib(needed)} of {out.parent}, where {_mib(free)} are free"
        )
    # A fixed name, so that the next run overwrites the leftover of a killed one.
    new = out.with_name(f".{out.name}.new")
    try:
        with _written(out):
            new.unlink(missing_ok=True)
            with new.open("xb") as file:
                # Sparse: what no tool writes stays a hole.
                file.truncate(size)
            progress(f"writing the partition table and the ESP, {_mib(spec.sizes.esp)}")
            gpt.write(new, str(gpt.derive(spec.seed, "disk")), table, spec.epoch)
            esp.make(
                new,
                table[0].start,
                table[0].size,
                files,
                label="ESP",
                volume=esp.volume_id(gpt.derive(spec.seed, "esp filesystem")),
                epoch=spec.epoch,
            )
            ext4.make(
                new,
                start=table[1].start,
                size=table[1].size,
                root=root,
                given=ext4.FilesystemIdentity(
                    table[1].name,
                    uuid.UUID(table[1].filesystem_uuid),
                    gpt.derive(spec.seed, f"{table[1].name} hash"),
                    spec.epoch,
                    replaceable=spec.loader != "grub",
                ),
                progress=progress,
            )
            progress("hashing the disk")
            _dig(new)
            digest, allocated = measure(new)
            # Flush before the rename, so that a crash cannot leave an incomplete file under the final name.
            new.chmod(0o644)
            with new.open("rb") as file:
                os.fsync(file.fileno())
            new.replace(out)
    finally:
        new.unlink(missing_ok=True)
    return Assembled(out, table, size, digest, allocated)


def measure(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file and the number of bytes in its non-zero 4 KiB blocks. Skip holes."""
    digest, allocated = hashlib.sha256(), 0
    zeros, block = bytes(MIB), bytes(4096)
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        at = 0
        while at < size:
            try:
                data = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as problem:
                data = size if problem.errno == errno.ENXIO else at  # ENXIO: only a hole is left
            while at < data:
                piece = min(MIB, data - at)
                digest.update(zeros[:piece])
                at += piece
            os.lseek(file.fileno(), at, os.SEEK_SET)
            # Up to the next boundary: a hole that begins before it reads as zeros.
            content = file.read(MIB - at % MIB) if at < size else b""
            digest.update(content)
            if content.count(0) != len(content):
                allocated += sum(
                    4096
                    for i in range(0, len(content), 4096)
                    if content[i : i + 4096] != block[: len(content) - i]
                )
            at += len(content)
            if not content:
                break
    return digest.hexdigest(), allocated


def _dig(path: Path) -> None:
    """Punch holes where the file is zeros, if the file system supports it."""
    with suppress(DiskError):
        tools.run("fallocate", "--dig-holes", path)


class _written:  # noqa: N801 - used as a function
    """Context manager that turns an OSError while writing `out` into a DiskError."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: object
    ) -> None:
        if isinstance(problem, OSError):
            if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise tools.no_space(f"there is no space left for {self.out}") from problem
            raise DiskError(
                f"{problem.filename or self.out} cannot be used: {problem.strerror}",
                remedy="name another place with --store",
            ) from problem


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise DiskError("this is no root filesystem: it is no directory", file=root)
    row = root.stat()
    if row.st_uid or row.st_gid:
        raise DiskError(
            f"the root belongs to user {row.st_uid}, group {row.st_gid}, and the files of the disk would too",
            file=root,
            remedy="unpack it and assemble it as root, or both within one fakeroot",
        )
    # mkdtemp gives 0700, with which no service of another user could start.
    if row.st_mode & 0o7777 != 0o755:
        raise DiskError(
            f"the root directory has mode {row.st_mode & 0o7777:04o}, expected 0755",
            file=root,
            remedy="run chmod 755 on it",
        )
    # A root is mounted read-only at first: systemd cannot make a mount point that is missing.
    for name in ("dev", "efi", "etc", "proc", "run", "sys", "usr"):
        if not (root / name).is_dir():
            raise DiskError(
                f"the root has no directory /{name}",
                file=root,
                remedy="install the first-boot files, then assemble",
            )


def _check_sizes(root: Path, spec: Spec, files: Mapping[str, Content]) -> int:
    """Check that the root and the ESP's files fit their partitions.

    Return the approximate size of the disk in bytes.
    """
    tree, room = ext4.usage(root), ext4.capacity(spec.sizes.root)
    # Spare inodes, like `_FREE`, for what the first boot writes.
    if tree.bytes + _FREE > room.bytes or tree.inodes + 1024 > room.inodes:
        short = max(
            tree.bytes + _FREE - room.bytes,
            (tree.inodes + 1024 - room.inodes) * ext4.BYTES_PER_INODE,
        )
        raise DiskError(
            f"the root is {_mib(tree.bytes)} in {tree.inodes} files, which is {_mib(short)} more than a "
            f"partition of {_mib(spec.sizes.root)} holds",
            file=root,
            remedy=f"raise `root_mib` of the definition to at least {_rounded(spec.sizes.root + short)}",
        )
    held = esp.content_size(files)
    # Layout ab: an update puts the other slot's kernel next to this one. A new kernel in the running slot is
    # written before the old one is removed.
    want = (3 * held if spec.layout == "ab" else held) + spec.sizes.esp // 64 + 2 * MIB
    if want > spec.sizes.esp:
        times = "which"
        if spec.layout == "ab":
            times = (
                "three times that (one for each slot, and one while a slot's kernel is replaced)"
            )
        raise DiskError(
            f"kernel, initramfs and loader are {_mib(held)}, {times} does not fit an ESP of "
            f"{_mib(spec.sizes.esp)}",
            file=root,
            remedy=f"raise `esp_mib` of the definition to at least {_rounded(want + MIB)}",
        )
    return tree.bytes + held + ext4.JOURNAL + room.inodes * ext4.INODE + 16 * MIB


def _loader(root: Path, name: str, package: str) -> Path:
    loader = _inside(root, name)
    if not loader.is_file():
        raise DiskError(
            f"the root has no boot loader (/{name})",
            file=root,
            remedy=f"add {package} to the packages of the definition, and lock the disk again",
        )
    return loader


def _inside(root: Path, name: str) -> Path:
    """Return the file `name`, which must not be a link out of the root: that would copy this machine's file
    to the disk.
    """
    path = root / name
    if path.is_symlink() or not path.resolve().is_relative_to(root.resolve()):
        raise DiskError(f"/{name} of the root is a link, expected a file", file=root)
    return path


def _mib(size: int) -> str:
    return f"{-(-size // MIB)} MiB"


def _rounded(size: int) -> str:
    return str(-(-size // (64 * MIB)) * 64)
