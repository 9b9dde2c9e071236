"""The installer of a network: kernel and initramfs of a built disk, and what `goldnode-node install` needs in it.

The initramfs is that of the disk followed by an archive of its own: Python, openssl, zstd and addpart from the root of
the same disk, goldnode-node, the public keys, and the root document of the channels. All of it comes from packages of
the disk's lock. Equal inputs give equal bytes.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from goldnode.core import program_file
from goldnode.core.data import data
from goldnode.core.errors import DiskError
from goldnode.disks import tools
from goldnode.disks.architecture import refuse_other_than_amd64
from goldnode.disks.contents import root_of
from goldnode.disks.model import BuiltDisk
from goldnode.inspect import elf
from goldnode.inspect.disk import Ext, FilesystemEntry
from goldnode.node.install import machine, orders, published

SCRIPT = data("images/disks/installer/scripts/goldnode-install")
PROGRAM = "usr/lib/goldnode/goldnode-node"
MODULES = ("fat", "vfat", "nls_cp437", "nls_ascii")  # the initramfs of a disk has none of them
PROGRAMS = ("openssl", "zstd", "addpart", "delpart")
STUB = "usr/lib/systemd/boot/efi/linuxx64.efi.stub"
WORDS = "boot=goldnode-install ip=dhcp panic=30"
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64", "lib/x86_64-linux-gnu", "lib64")
# Parts of Python's library that an installation imports nothing of.
_LEFT_OUT = re.compile(
    r"(?:test|tests|idlelib|tkinter|turtledemo|lib2to3|ensurepip|distutils|pydoc_data|unittest|asyncio|curses|dbm|sqlite3|"
    r"xml|xmlrpc|wsgiref|venv|multiprocessing|__pycache__|config-[^/]+|ctypes|json/tests)(?:/|$)|"
    r"lib-dynload/(?:_sqlite3|_curses|_tkinter|_dbm|_gdbm|readline|_ctypes|_test|_xx|_codecs_|ossaudiodev|nis|audioop)"
)


@dataclass(frozen=True)
class InstallerKeys:
    """Keys of the installer, as PEM and JSON: builders of images, orders, root of the channels, CA of the server."""

    images: bytes
    orders: bytes
    root: bytes
    ca: bytes | None = None


class _Root:
    """The root file system of a built disk, by paths; links are followed inside it."""

    def __init__(self, rows: Mapping[str, FilesystemEntry], name: str) -> None:
        self.rows, self.name = rows, name

    def real(self, path: str) -> str:
        """Return a path without links. Raises DiskError if it does not exist."""
        done: list[str] = []
        parts, links = path.strip("/").split("/")[::-1], 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            done.append(part)
            row = self.rows.get("/".join(done))
            if row is None:
                raise DiskError(
                    f"the root of {self.name} has no /{path}",
                    remedy="build the disk with this version",
                )
            if row.kind == "l":
                links += 1
                if links > 40:
                    raise DiskError(f"/{path} of {self.name} leads nowhere")
                parts += row.link.strip("/").split("/")[::-1]
                done = [] if row.link.startswith("/") else done[:-1]
        return "/".join(done)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        row = self.rows[self.real(path)]
        with row.open() as opened:
            return opened.read(row.size)

    def program(self, name: str) -> str:
        """Return the path of a program."""
        for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
            if f"{folder}/{name}" in self.rows:
                return f"{folder}/{name}"
        raise DiskError(
            f"the root of {self.name} has no program {name}",
            remedy="add its package to the definition of the disk",
        )

    def library(self, name: str) -> str | None:
        """Return the path of a shared library."""
        return next(
            (f"{folder}/{name}" for folder in _LIBRARIES if f"{folder}/{name}" in self.rows), None
        )


@contextmanager
def _opened(disk: BuiltDisk) -> Iterator[_Root]:
    raw, partition = disk.path("raw"), root_of(disk)
    with (
        raw.open("rb") as file,
        closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as content,
    ):
        system = Ext(content, partition.start, partition.size, disk.name)
        yield _Root({row.path: row for row in system.files()}, disk.name)


def write(
    disk: BuiltDisk, out: Path, settings: Mapping[str, str], keys: InstallerKeys
) -> dict[str, int]:
    """Write `vmlinuz`, `initrd.img` and `goldnode-install.efi` to a directory. Return their sizes in bytes.

    :param settings: `place`, the address of the published directory, and `orders`, the path of the orders in it.
    """
    refuse_other_than_amd64(disk.name, disk.os.architecture, "the installer of a network is")
    tools.require("zstd")
    kernel, initrd = disk.path("vmlinuz").read_bytes(), disk.path("initrd").read_bytes()
    with _opened(disk) as root:
        files = contents(root, disk, settings, keys)
        stub = root.read(STUB) if STUB in root.rows else None
    packed = subprocess.run(
        ["zstd", "-q", "-12", "-c"],
        input=archive(files, disk.epoch),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    # The kernel takes archives one after the other, each at a multiple of four bytes.
    initrd += bytes(-len(initrd) % 4) + packed
    made = {"vmlinuz": kernel, "initrd.img": initrd}
    if stub is not None:
        words = f"{WORDS} {console(disk)}".encode()
        made["goldnode-install.efi"] = unified(
            stub, {".cmdline": words + b"\0", ".linux": kernel, ".initrd": initrd}
        )
    for name, content in made.items():
        new = out / f".{name}.new"
        new.write_bytes(content)
        new.replace(out / name)
    return {name: len(content) for name, content in made.items()}


def console(disk: BuiltDisk) -> str:
    """Return the words about consoles on the command line of a disk."""
    from goldnode.disks.slot_image import command_line, partition

    options = command_line(disk.path("raw"), partition(disk, "esp").start, disk.build_id)
    return " ".join(word for word in options.split() if word.startswith("console="))


def contents(
    root: _Root, disk: BuiltDisk, settings: Mapping[str, str], keys: InstallerKeys
) -> dict[str, tuple[bytes, int]]:
    """Return path -> content and mode of every file of the archive, sorted."""
    python = root.real("usr/bin/python3")
    library = f"usr/lib/{Path(python).name}"
    files = {"usr/bin/python3": (root.read(python), 0o755)}
    for path, row in root.rows.items():
        if (
            row.kind == "f"
            and path.startswith(f"{library}/")
            and not _LEFT_OUT.match(path[len(library) + 1 :])
        ):
            files[path] = (root.read(path), 0o644)
    for name in PROGRAMS:
        files[f"usr/bin/{name}"] = (root.read(root.program(name)), 0o755)
    modules = f"usr/lib/modules/{disk.kernel}/"
    for path in root.rows:
        name = Path(path).name.split(".ko")[0]
        if path.startswith(modules) and ".ko" in path and name in MODULES:
            files[f"usr/lib/goldnode/modules/{Path(path).name}"] = (root.read(path), 0o644)
    files |= _libraries(root, files)
    own = {
        PROGRAM: program_file.build(writer=True),
        "scripts/goldnode-install": SCRIPT.read_bytes(),
        machine.SETTINGS: (json.dumps(dict(settings), sort_keys=True) + "\n").encode(),
        published.KEYS: keys.images,
        orders.KEYS: keys.orders,
        machine.ROOT: keys.root,
    }
    own |= {machine.CA: keys.ca} if keys.ca else {}
    files |= {
        path.lstrip("/"): (content, 0o755 if path == PROGRAM else 0o644)
        for path, content in own.items()
    }
    return dict(sorted(files.items()))


def _libraries(root: _Root, files: Mapping[str, tuple[bytes, int]]) -> dict[str, tuple[bytes, int]]:
    """Return the shared libraries that ELF files need, theirs included, by the names that are asked for."""
    libraries: dict[str, tuple[bytes, int]] = {}
    todo = [content for content, _ in files.values() if content[:4] == b"\x7fELF"]
    while todo:
        for name in elf.read(todo.pop()).needed:
            path = root.library(name)
            if path is None or path in libraries:
                continue
            # The loader of programs is one of them, and replaces that of the initramfs of the disk.
            libraries[path] = (root.read(path), 0o755)
            todo.append(libraries[path][0])
    return libraries


def archive(files: Mapping[str, tuple[bytes, int]], epoch: int) -> bytes:
    """Return files as a cpio archive (newc), with their directories."""
    folders = sorted({str(parent) for path in files for parent in Path(path).parents} - {"."})
    rows = [(path, b"", 0o40755) for path in folders]
    rows += [(path, content, 0o100000 | mode) for path, (content, mode) in files.items()]
    out = bytearray()
    for number, (path, content, mode) in enumerate([*rows, ("TRAILER!!!", b"", 0)]):
        name = path.encode() + b"\0"
        links = 2 if mode >> 12 == 4 else 1
        fields = (number + 1, mode, 0, 0, links, epoch, len(content), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + "".join(f"{field:08X}" for field in fields).encode() + name
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out)


def unified(stub: bytes, sections: Mapping[str, bytes]) -> bytes:
    """Return the EFI stub with more sections: a unified kernel image. Raises DiskError.

    PE format: Microsoft's specification of the PE format, "COFF file header" and "Section table"; the sections:
    specification of unified kernel images of UAPI.
    """
    out = bytearray(stub)
    head = struct.unpack_from("<I", out, 0x3C)[0]
    number, size_of_optional = (
        struct.unpack_from("<H", out, head + 6)[0],
        struct.unpack_from("<H", out, head + 20)[0],
    )
    optional = head + 24
    alignment, file_alignment = struct.unpack_from("<II", out, optional + 32)
    headers = struct.unpack_from("<I", out, optional + 60)[0]
    table = optional + size_of_optional
    first = min(
        offset
        for index in range(number)
        if (offset := struct.unpack_from("<I", out, table + 40 * index + 20)[0])
    )
    if out[head : head + 4] != b"PE\0\0" or table + 40 * (number + len(sections)) > min(
        headers, first
    ):
        raise DiskError(
            "the EFI stub of the disk has no room for more sections",
            remedy="use the boot script of iPXE instead",
        )
    address = max(
        sum(struct.unpack_from("<II", out, table + 40 * index + 8)) for index in range(number)
    )
    for name, content in sections.items():
        address += -address % alignment
        out += bytes(-len(out) % file_alignment)
        at, padded = len(out), len(content) + -len(content) % file_alignment
        row = struct.pack(
            "<8sIIIIIIHHI", name.encode(), len(content), address, padded, at, 0, 0, 0, 0, 0x40000040
        )
        out[table + 40 * number : table + 40 * (number + 1)] = row
        out += content + bytes(padded - len(content))
        address += len(content)
        number += 1
    struct.pack_into("<H", out, head + 6, number)
    struct.pack_into("<I", out, optional + 56, address + -address % alignment)
    return bytes(out)
