"""Disks as a power cut leaves them: QEMU logs every write of a guest, and each unflushed write may have reached the disk or not, in any order.

The guest is Debian's kernel with an initramfs that holds Python and goldnode's program: it is up in seconds, and vfat's own driver does the
writing. What a cut can leave is made from the log, with fsck.vfat run on it, and read by a reader of FAT that goldnode does not use.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import random
import re
import struct
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.qemu.disk import GuestError, run

from goldnode.core import program_file as nodefile
from goldnode.disks import esp
from goldnode.node.effective import loader
from goldnode.node.slots import write as slotwrite
from goldnode.node.state import slots

MIB = 1024 * 1024
# requirements: Debian packages that the test machine needs for this file; scripts/test installs them.
REQUIREMENTS = ("dosfstools", "fdisk", "mtools", "qemu-system-x86")

SECTOR = 512
MARKS = 1000  # a sector that no partition has; as in guest_power.py
START = MIB
# no_timer_check: as in slotdisk.OPTIONS
WORDS = "ro console=ttyS0 loglevel=4 no_timer_check panic=5"
ROOT = b"a root file system, as far as this goes" * 900
GUEST = Path(__file__).parent / "guest_power.py"
EPOCH = 1_700_000_000

MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "fat",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nls_utf8",
)
LIBRARIES = ("libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1", "libffi.so.8")
LEFT_OUT = re.compile(
    r"/(test|idlelib|lib2to3|distutils|ensurepip|pydoc_data|asyncio|unittest|multiprocessing|tkinter|xmlrpc|wsgiref|curses|sqlite3|dbm)(/|$)"
)


# -- the guest


def initramfs(files: Mapping[str, tuple[int, bytes, int]]) -> bytes:
    """A cpio archive (newc) of files: path -> (mode with its type, content or target of the link, time)."""
    folders = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
    rows = {
        **dict.fromkeys(
            sorted(folders - set(files), key=lambda name: (name.count("/"), name)),
            (0o040755, b"", EPOCH),
        ),
        **files,
    }
    out = bytearray()
    for number, (name, (mode, content, time)) in enumerate(
        [*rows.items(), ("TRAILER!!!", (0, b"", 0))], 1
    ):
        raw = name.encode() + b"\0"
        numbers = (number, mode, 0, 0, 1, time, len(content), 0, 0, 0, 0, len(raw), 0)
        out += b"070701" + b"".join(b"%08x" % value for value in numbers) + raw
        out += b"\0" * (-len(out) % 4) + content
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def parts(tree: Path) -> tuple[bytes, dict[str, tuple[int, bytes, int]]]:
    """Kernel, and what the initramfs of every guest holds: Python, its libraries and the modules, from the tree's tar."""
    kernel, files, modules = b"", {}, {}
    with tarfile.open(tree) as opened:
        rows = {item.name.removeprefix("./"): item for item in opened}

        def content(item: tarfile.TarInfo) -> bytes:
            found = opened.extractfile(item)
            assert found is not None
            return found.read()

        for name, item in rows.items():
            base = name.rpartition("/")[2]
            if re.fullmatch(r"boot/vmlinuz-[^/]+", name):
                kernel = content(item)
            elif base.removesuffix(".ko") in MODULES and base.endswith(".ko"):
                modules[base.removesuffix(".ko")] = content(item)
            elif (
                name.startswith("usr/lib/python3.11/")
                and item.isfile()
                and not LEFT_OUT.search(name)
            ):
                files[name] = (0o100644, content(item), int(item.mtime))
            elif name in ("usr/bin/python3.11", "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"):
                files[name] = (0o100755, content(item), EPOCH)
        for library in LIBRARIES:
            item = rows[f"usr/lib/x86_64-linux-gnu/{library}"]
            while item.issym():
                item = rows[f"usr/lib/x86_64-linux-gnu/{item.linkname}"]
            files[f"usr/lib/x86_64-linux-gnu/{library}"] = (0o100755, content(item), EPOCH)
    files["lib"] = (0o120777, b"usr/lib", EPOCH)
    files["lib64/ld-linux-x86-64.so.2"] = (
        0o120777,
        b"/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        EPOCH,
    )
    order = [name for name in MODULES if name in modules]
    files.update({f"m/{name}.ko": (0o100644, modules[name], EPOCH) for name in order})
    files["modules"] = (0o100644, "".join(f"/m/{name}.ko\n" for name in order).encode(), EPOCH)
    assert kernel
    return kernel, files


@dataclass(frozen=True)
class Version:
    """A kernel with its initramfs."""

    kernel: bytes
    initrd: bytes


@dataclass
class Recording:
    """A disk before, and the log of what a guest wrote to it."""

    disk: Path
    log: Path
    esp_size: int
    root: tuple[int, int]  # first sector of slot b's partition, and bytes of it that count


def fake(word: str) -> Version:
    """Two files that differ from all others, of some clusters each."""
    return Version(f"kernel {word} ".encode() * 700, f"initramfs {word} ".encode() * 900)


def from_tree(tree: Path, path: str) -> bytes:
    """A file of the tree."""
    with tarfile.open(tree) as opened:
        found = opened.extractfile(f"./{path}")
        assert found is not None
        return found.read()


def real(tree: Path, names: Sequence[str]) -> dict[str, Version]:
    """Debian's kernel with an initramfs that says its name and turns the machine off, once for each name."""
    made = {}
    with tarfile.open(tree) as opened:
        files = {}
        for item in opened:
            name = item.name.removeprefix("./")
            data = opened.extractfile(item) if item.isfile() else None
            if data and re.fullmatch(
                r"usr/lib/klibc/bin/(sh|mount|cat|poweroff)|usr/lib/klibc-[^/]+\.so|boot/vmlinuz-[^/]+",
                name,
            ):
                files[name.replace("usr/lib/klibc-", "lib/klibc-")] = data.read()
    (kernel,) = [name for name in files if name.startswith("boot/")]
    linux = files.pop(kernel)
    for name in names:
        script = f"#!/usr/lib/klibc/bin/sh\nPATH=/usr/lib/klibc/bin\nmount -t proc proc /proc\necho POWER BOOTED {name}: $(cat /proc/cmdline)\npoweroff\n"
        rows = {
            file: (0o100755, content, EPOCH)
            for file, content in {**files, "init": script.encode()}.items()
        }
        made[name] = Version(
            linux + name.encode().ljust(16),
            initramfs({**rows, "proc/.keep": (0o100644, b"", EPOCH)}),
        )
    return made


def entry(
    slot: str, sequence: int, build: str, version: Version, options: str = WORDS
) -> dict[str, bytes]:
    """What the ESP holds of a slot, as goldnode writes it."""
    about = {
        "name": f"cpu-{build}",
        "class": "cpu",
        "build_id": build,
        "sequence": sequence,
        "kernel": "6.1.0-901-amd64",
    }
    linux, initrd = [
        f"/goldnode/{slot}/{name}-{hashlib.sha256(content).hexdigest()[:12]}"
        for name, content in (("vmlinuz", version.kernel), ("initrd.img", version.initrd))
    ]
    return {
        linux[1:]: version.kernel,
        initrd[1:]: version.initrd,
        f"goldnode/{slot}/slot.json": json.dumps(about).encode(),
        f"loader/entries/goldnode-{build}-{slot}.conf": slots.entry_text(
            about, slot, linux, initrd, options
        ).encode(),
    }


def blank(
    target: Path, size: int, extra: Mapping[str, bytes], versions: Mapping[str, Version]
) -> Path:
    """A disk whose slot a runs and whose slot b holds an older image, or nothing; the ESP is made as goldnode makes that of every image."""
    files = {
        "EFI/BOOT/BOOTX64.EFI": b"a boot loader",
        "loader/loader.conf": b"default goldnode-*\ntimeout 0\neditor no\n",
        **entry("a", 2, "aaa", versions["a"]),
        **(entry("b", 1, "bbb", versions["b"]) if "b" in versions else {}),
        "goldnode/history": b'{"event": "good", "image": "cpu-aaa", "reason": "", "slot": "a"}\n',
        **extra,
    }
    with target.open("wb") as out:
        out.truncate(START + size + 4 * MIB)
    rows = [
        (START, size, "uefi", "esp"),
        (START + size, MIB, "linux", "root-a"),
        (START + size + MIB, MIB, "linux", "root-b"),
    ]
    table = "".join(
        f"start={at // SECTOR}, size={length // SECTOR}, type={kind}, name={name}\n"
        for at, length, kind, name in rows
    )
    run("sfdisk", "-q", target, stdin="label: gpt\n" + table)
    esp.make(target, START, size, files, label="ESP", volume="60D00001", epoch=EPOCH)
    return target


def record(
    tree: Path,
    scratch: Path,
    *,
    size: int,
    eager: float,
    versions: Mapping[str, Version],
    extra: Mapping[str, bytes] = {},
) -> Recording:
    """Have a guest go through every write of goldnode's on the ESP, and log what reaches the disk."""
    kernel, files = parts(tree)
    image = {
        "schema": slotwrite.SCHEMA, "name": "cpu-ccc", "class": "cpu", "build_id": "ccc", "kernel": "6.1.0-902-amd64", "tries": 3,
        "options": f"root=PARTLABEL=root-a {WORDS}", "root": {"size": len(ROOT), "sha256": hashlib.sha256(ROOT).hexdigest()},
    }  # fmt: skip
    document = b'{"class": "cpu"}'
    own: dict[str, bytes] = {
        "image.json": json.dumps(image).encode(),
        "image.gz": gzip.compress(ROOT, mtime=0),
        "etc/goldnode/class.json": document,
        "image/etc/goldnode/class.json": document,
        "image/boot/vmlinuz-6.1.0-902-amd64": versions["new b"].kernel,
        "image/boot/initrd.img-6.1.0-902-amd64": versions["new b"].initrd,
        "boot/vmlinuz-6.1.0-902-amd64": versions["new a"].kernel,
        "boot/initrd.img-6.1.0-902-amd64": versions["new a"].initrd,
        "boot/vmlinuz-6.1.0-903-amd64": versions["newer b"].kernel,
        "boot/initrd.img-6.1.0-903-amd64": versions["newer b"].initrd,
        "guest_power.py": GUEST.read_bytes(),
        **{f"goldnode/{name}": content for name, content in nodefile.sources(writer=True).items()},
    }
    files.update({name: (0o100644, content, EPOCH) for name, content in own.items()})
    files["init"] = (0o120777, b"/usr/bin/python3.11", EPOCH)
    (scratch / "vmlinuz").write_bytes(kernel)
    (scratch / "initrd").write_bytes(initramfs(files))
    base = blank(scratch / "disk.raw", size, extra, versions)
    work, log = scratch / "work.raw", scratch / "writes.log"
    run("cp", "--sparse=always", base, work)
    log.touch()

    command = [
        "setpriv", "--pdeathsig", "KILL",
        "nice", "-n", "19", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "qemu64,-svm,+rdrand", "-smp", "1", "-m", "768", "-M", "q35", "-no-reboot",
        "-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-kernel", str(scratch / "vmlinuz"),
        "-initrd", str(scratch / "initrd"),
        "-append", f"console=ttyS0 loglevel=4 no_timer_check rdinit=/init panic=-1 goldnode.eager={eager} -- -I -S /guest_power.py",
        *logged(work, log),
        "-device", "virtio-blk-pci,drive=logged,num-queues=1",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=900,
        check=False,
    )
    console = done.stdout.decode(errors="replace").replace("\r", "")
    (scratch / "console").write_text(console)
    if "POWER finished" not in console:
        raise GuestError(
            f"the guest did not come to its end ({done.returncode})\n{console[-6000:]}"
        )
    work.unlink()
    return recorded(scratch, size)


def logged(disk: Path, log: Path) -> list[str]:
    """The words for QEMU of a disk `logged`, whose writes and flushes go into a log as well."""

    def node(name: str, **options: Any) -> list[str]:
        return ["-blockdev", json.dumps({"node-name": name, **options})]

    # This machine's own disk need not hold any of it: only the guest's flushes count, and the log has them.
    file = {"driver": "file", "filename": str(disk), "cache": {"no-flush": True}}
    return [
        *node("disk", driver="raw", file=file),
        *node("log", driver="file", filename=str(log), cache={"no-flush": True}),
        *node(
            "logged", driver="blklogwrites", file="disk", log="log", **{"log-sector-size": SECTOR}
        ),
    ]


def recorded(scratch: Path, size: int) -> Recording:
    """The files that :func:`record` has written to a directory."""
    root = ((START + size + MIB) // SECTOR, len(ROOT))
    return Recording(scratch / "disk.raw", scratch / "writes.log", size, root)


# -- the log


@dataclass(frozen=True)
class Write:
    """A write: its first sector and what was written."""

    sector: int
    data: bytes


@dataclass(frozen=True)
class Mark:
    """A mark of the guest's."""

    text: str


FLUSH = "flush"


def events(log: Path) -> Iterator[Write | Mark | str]:
    """Writes, marks and flushes, in their order. The format is that of Linux's dm-log-writes (Documentation/admin-guide/device-mapper)."""
    with log.open("rb") as opened:
        magic, version, count, size = struct.unpack("<QQQI", opened.read(28))
        assert (magic, version, size) == (0x6A736677736872, 1, SECTOR), (hex(magic), version, size)
        opened.seek(SECTOR)
        for _ in range(count):
            sector, number, flags, _ = struct.unpack("<QQQQ", opened.read(SECTOR)[:32])
            assert not flags & 4, "a discard: nothing of goldnode's makes one"
            if flags & 3:
                assert not flags & 2 or not number, "a write that is flushed by itself"
                yield FLUSH
            if number:
                data = opened.read(number * SECTOR)
                if sector == MARKS:
                    yield Mark(data[:SECTOR].rstrip(b"\0").decode())
                else:
                    yield Write(sector, data)


@dataclass
class Window:
    """Writes between two flushes, or up to a mark. `before`: each sector as it surely is; `versions`: what else it may be."""

    step: str
    ended: bool  # the step has come to its end: what it did may not be lost
    before: dict[int, bytes]
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    groups: list[list[int]] = field(default_factory=list)


def windows(found: Iterable[Write | Mark | str]) -> Iterator[Window]:
    """The windows of a log. Those outside of any step are left out: there nothing of goldnode's is at work."""
    sure: dict[int, bytes] = {}
    step, ended = "", False
    now = Window(step, ended, dict(sure))
    for event in found:
        if isinstance(event, Mark):
            # What is not flushed yet stays so.
            if now.step:
                yield now
            word, _, name = event.text.partition(" ")
            step, ended = (name, word == "end") if name else ("", False)
            now = Window(
                step,
                ended,
                dict(sure),
                {at: list(rows) for at, rows in now.versions.items()},
                list(now.groups),
            )
            if ended:
                yield now
        elif isinstance(event, Write):
            sectors = []
            for number in range(len(event.data) // SECTOR):
                at, data = (
                    event.sector + number,
                    event.data[number * SECTOR : (number + 1) * SECTOR],
                )
                rows = now.versions.setdefault(at, [])
                if (rows[-1] if rows else now.before.get(at)) != data:
                    rows.append(data)
                    sectors.append(at)
                elif not rows:
                    del now.versions[at]
            # Of a write of data, page by page; of a table or a directory, sector by sector.
            width = 8 if len(event.data) > 8 * SECTOR else 1
            now.groups += [sectors[at : at + width] for at in range(0, len(sectors), width)]
        else:
            if now.step and now.versions and not now.ended:
                yield now
            sure.update({at: rows[-1] for at, rows in now.versions.items()})
            if ended:
                step = ""  # what comes is of no step
            now = Window(step, ended, dict(sure))


def cuts(
    window: Window, chance: random.Random, few: int = 64, many: int = 24
) -> Iterator[dict[int, bytes]]:
    """Disks that a power cut in a window can leave, as what differs from `before`.

    Every one where there are at most `few`. Else none and all of the writes; every one alone, every one missing, and all up to it (of a kernel's
    thousands of pages some); and `many` by chance. A sector that was written twice may hold either content.
    """
    groups = [tuple(group) for group in window.groups if group]
    rows = {at: [None, *versions] for at, versions in window.versions.items()}
    counts: dict[tuple[int, ...], int] = {}
    # Groups of the same sectors are versions of one; what only overlaps is taken sector by sector.
    flat = [sector for group in set(groups) for sector in group]
    if len(flat) != len(set(flat)):
        groups = [(sector,) for group in groups for sector in group]
    order = []
    for group in groups:
        counts[group] = counts.get(group, 0) + 1
        order.append((group, counts[group]))
    units = list(counts)

    def made(state: Mapping[tuple[int, ...], int]) -> dict[int, bytes]:
        found = {}
        for group, version in state.items():
            for sector in group:
                data = rows[sector][min(version, len(rows[sector]) - 1)]
                if data is not None:
                    found[sector] = data
        return found

    whole = dict(counts)
    total = 1
    for count in counts.values():
        total *= count + 1
    if total <= few:
        for state in itertools.product(*(range(counts[unit] + 1) for unit in units)):
            yield made(dict(zip(units, state, strict=True)))
        return
    yield {}
    yield made(whole)
    so_far: dict[tuple[int, ...], int] = {}
    taken = set(chance.sample(range(len(order)), len(order) if len(order) <= 200 else 10))
    for number, (group, version) in enumerate(order):
        so_far[group] = version
        if number in taken:
            yield made(so_far)
            yield made({group: version})
            yield made({**whole, group: version - 1})
    for _ in range(many):
        share = chance.random()
        yield made(
            {
                unit: chance.randint(0, counts[unit])
                if chance.random() < share
                else whole[unit] * (chance.random() < 0.5)
                for unit in units
            }
        )


# -- a disk, read as firmware does


class BrokenError(Exception):
    """A file that cannot be read."""


class Volume:
    """A FAT32 file system, read as firmware reads it: what is damaged in it is no reason not to read the rest."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        boot = self._at(0, 512)
        per, reserved, copies = struct.unpack_from("<BHB", boot, 13)
        size, self.root = struct.unpack_from("<I4xI", boot, 36)
        total = struct.unpack_from("<I", boot, 32)[0]
        self.cluster = per * SECTOR
        self.chains = self._at(reserved * SECTOR, size * SECTOR)
        self.start = (reserved + copies * size) * SECTOR
        self.last = (total * SECTOR - self.start) // self.cluster + 1

    def close(self) -> None:
        self.file.close()

    def _at(self, offset: int, size: int) -> bytes:
        return os.pread(self.file.fileno(), size, offset)

    def _data(self, first: int, size: int | None) -> bytes:
        """The bytes of a chain; BrokenError where it ends too early or leads nowhere."""
        out, at, seen = bytearray(), first, set()
        while size is None or len(out) < size:
            if not 2 <= at <= self.last or at in seen:
                if size is None and out and at >= 0x0FFFFFF8:
                    break
                raise BrokenError(f"a chain leads to {at:#x}")
            seen.add(at)
            out += self._at(self.start + (at - 2) * self.cluster, self.cluster)
            at = struct.unpack_from("<I", self.chains, 4 * at)[0] & 0x0FFFFFFF
        return bytes(out if size is None else out[:size])

    def _list(self, first: int) -> dict[str, tuple[bool, int, int]]:
        """The names of a directory, in lower case: (directory, first cluster, size)."""
        found: dict[str, tuple[bool, int, int]] = {}
        try:
            data = self._data(first, None)
        except BrokenError:
            return found
        long: list[tuple[int, int, bytes]] = []
        for at in range(0, len(data), 32):
            row = data[at : at + 32]
            if row[0] == 0:
                break
            if row[0] == 0xE5:
                long = []
                continue
            if row[11] == 0x0F:
                long = [] if row[0] & 0x40 else long
                long.append((row[0] & 0x3F, row[13], row[1:11] + row[14:26] + row[28:32]))
                continue
            check = 0
            for byte in row[:11]:
                check = ((check >> 1) | (check << 7)) + byte & 0xFF
            whole = [number for number, _, _ in long] == list(range(len(long), 0, -1)) and all(
                sum_ == check for _, sum_, _ in long
            )
            name = (
                b"".join(part for _, _, part in reversed(long))
                .decode("utf-16-le", "replace")
                .split("\0")[0]
                if long and whole
                else ""
            )
            if not name:
                name = row[:8].decode("latin-1").rstrip() + (
                    f".{row[8:11].decode('latin-1').rstrip()}" if row[8:11].strip() else ""
                )
            long = []
            if not row[11] & 0x08 and name not in (".", ".."):
                high, low, size = struct.unpack_from("<H4xHI", row, 20)
                found.setdefault(name.lower(), (bool(row[11] & 0x10), high << 16 | low, size))
        return found

    def list(self, folder: str) -> dict[str, tuple[bool, int, int]]:
        """The names in a directory."""
        first = self.root
        for part in filter(None, folder.lower().split("/")):
            row = self._list(first).get(part)
            if row is None or not row[0]:
                return {}
            first = row[1]
        return self._list(first)

    def read(self, path: str) -> bytes:
        """A file; BrokenError where it is not there or not whole."""
        folder, _, name = path.rpartition("/")
        row = self.list(folder).get(name.lower())
        if row is None or row[0]:
            raise BrokenError(f"{path} is not there")
        return self._data(row[1], row[2]) if row[2] else b""

    def names(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return name.lower() in self.list(folder)


def chosen(volume: Volume) -> tuple[str, Mapping[str, str]]:
    """The entry that systemd-boot starts: its file, and what it holds. BrokenError where there is none."""
    found = []
    for name, (folder, _, _) in volume.list("loader/entries").items():
        if folder or not name.endswith(".conf"):
            continue
        try:
            item = loader.parse(
                name, volume.read(f"loader/entries/{name}").decode("utf-8", "replace")
            )
        except BrokenError:
            continue
        kernel = item.fields.get("linux")
        found.append(item._replace(bootable=bool(kernel) and volume.names(str(kernel))))
    try:
        conf = loader.fields(volume.read("loader/loader.conf").decode())
    except BrokenError:
        conf = {}
    choice = loader.choose(conf, found)
    if choice.entry is None:
        raise BrokenError(choice.reason)
    return choice.entry.file, choice.entry.fields


def boots(
    volume: Volume, root: bytes, known: Mapping[tuple[str, str, str, str, bytes | None], str]
) -> str:
    """Which image a disk boots, by the name that it has in `known`; BrokenError where it boots none, or something that is not whole."""
    file, fields = chosen(volume)
    slot = file.rpartition(".conf")[0].partition("+")[0][-1]
    files = []
    for key in ("linux", "initrd"):
        try:
            files.append(hashlib.sha256(volume.read(fields.get(key, "-"))).hexdigest())
        except BrokenError as problem:
            raise BrokenError(f"{file}: {problem}") from None
    for (one, kernel, initrd, options, want), name in known.items():
        if (one, kernel, initrd, options) == (slot, *files, fields.get("options")) and (
            want is None or root == want
        ):
            return name
    raise BrokenError(f"{file}: not whole: {dict(fields)}, {files}")


def known(versions: Mapping[str, Version]) -> dict[tuple[str, str, str, str, bytes | None], str]:
    """What may boot, in each of its ways of being started."""
    found: dict[tuple[str, str, str, str, bytes | None], str] = {}

    def add(name: str, slot: str, words: Sequence[str], root: bytes | None) -> None:
        files = [
            hashlib.sha256(part).hexdigest()
            for part in (versions[name].kernel, versions[name].initrd)
        ]
        for more in words:
            found[(slot, *files, f"root=PARTLABEL=root-{slot} {WORDS}{more}", root)] = name  # type: ignore[index]

    add("a", "a", ("",), None)
    add("new a", "a", ("", " quiet", f" quiet {slots.WATCHDOG}"), None)
    if "b" in versions:
        add("b", "b", ("",), bytes(len(ROOT)))
    add("new b", "b", ("", f" {slots.WATCHDOG}"), ROOT)
    add("newer b", "b", ("",), ROOT)
    files = [
        hashlib.sha256(part).hexdigest()
        for part in (versions["newer b"].kernel, versions["newer b"].initrd)
    ]
    found[("b", *files, f"control root=PARTLABEL=root-b {WORDS}", ROOT)] = "control"  # type: ignore[index]
    return found


# What may boot wherever a step is cut off, and the last of them once it is over, whatever is lost of what is not flushed. While the slot that
# runs is changed, it is the one that boots.
MAY: Mapping[str, tuple[str, ...]] = {
    "sync": ("a", "new a"),
    "words": ("new a",),
    "write": ("new a", "new b"),
    "good": ("new b",),
    "bless": ("new b",),
    "again": ("new b", "newer b"),
    "control": ("newer b", "control"),
    "back": ("newer b", "control", "new a"),
}
OVER = {step: names[-1:] for step, names in MAY.items()}


@dataclass
class Copy:
    """A disk that a power cut can leave, and what came of it."""

    step: str
    changed: dict[int, bytes]
    before: dict[int, bytes]
    raw: str  # what firmware boots, or why it boots nothing
    repaired: str  # the same after fsck.vfat
    status: int
    reported: str
    may: tuple[str, ...]

    @property
    def bad(self) -> bool:
        """Whether fsck.vfat gave up, or something else boots than may."""
        return self.status not in (0, 1) or not {self.raw, self.repaired} <= set(self.may)


def rebuilt(found: Recording, copy: Copy, target: Path) -> Path:
    """The whole disk of a copy, before fsck.vfat: what firmware meets when the power is back."""
    sparse(found.disk, target)
    with target.open("r+b") as out:
        for sector, data in {**copy.before, **copy.changed}.items():
            os.pwrite(out.fileno(), data, sector * SECTOR)
    return target


def sparse(source: Path, target: Path, start: int = 0, size: int | None = None) -> None:
    """Copy a file, or `size` bytes of it from `start` on; holes stay holes."""
    with source.open("rb") as one, target.open("wb") as other:
        end = os.fstat(one.fileno()).st_size if size is None else start + size
        other.truncate(end - start)
        at = start
        while at < end:
            try:
                at = os.lseek(one.fileno(), at, os.SEEK_DATA)
            except OSError:  # a hole up to the end
                return
            until = min(os.lseek(one.fileno(), at, os.SEEK_HOLE), end)
            while at < until:
                data = os.pread(one.fileno(), min(MIB, until - at), at)
                os.pwrite(other.fileno(), data, at - start)
                at += len(data)


def judge(
    found: Recording,
    versions: Mapping[str, Version],
    scratch: Path,
    *,
    few: int = 64,
    many: int = 24,
    share: float = 1.0,
) -> Iterator[Copy]:
    """Every disk that a power cut can have left, or a share of them, with fsck.vfat's verdict and what boots before and after that."""
    may, chance = known(versions), random.Random(1)  # noqa: S311
    first, last = START // SECTOR, (START + found.esp_size) // SECTOR
    flushed, work = scratch / "flushed.img", scratch / "cut.img"
    sparse(found.disk, flushed, START, found.esp_size)
    written: dict[int, bytes] = {}
    seen: set[tuple[str, int]] = set()
    root_at, root_size = found.root

    def of_root(state: Mapping[int, bytes]) -> bytes:
        count = -(-root_size // SECTOR)
        return b"".join(state.get(root_at + number, bytes(SECTOR)) for number in range(count))[
            :root_size
        ]

    def verdict(root: bytes) -> str:
        volume = Volume(work)
        try:
            return boots(volume, root, may)
        except BrokenError as problem:
            return f"! {problem}"
        finally:
            volume.close()

    for window in windows(events(found.log)):
        with flushed.open("r+b") as out:
            for sector, data in window.before.items():
                if written.get(sector) != data:
                    written[sector] = data
                    if first <= sector < last:
                        os.pwrite(out.fileno(), data, (sector - first) * SECTOR)
        sure = hash(frozenset((sector, data) for sector, data in window.before.items()))
        for changed in cuts(window, chance, few, many):
            differs = {
                sector: data
                for sector, data in changed.items()
                if window.before.get(sector) != data
            }
            if chance.random() >= share:
                continue
            token = (f"{window.step} {window.ended}", hash((sure, frozenset(differs.items()))))
            if token in seen:
                continue
            seen.add(token)
            sparse(flushed, work)
            with work.open("r+b") as out:
                for sector, data in differs.items():
                    if first <= sector < last:
                        os.pwrite(out.fileno(), data, (sector - first) * SECTOR)
            root = (
                of_root(window.before | differs)
                if root_at in window.before or root_at in differs
                else bytes(root_size)
            )
            raw = verdict(root)
            done = subprocess.run(
                ["fsck.vfat", "-a", str(work)], capture_output=True, text=True, check=False
            )
            repaired = verdict(root)
            may_boot = OVER.get(window.step, MAY[window.step]) if window.ended else MAY[window.step]
            yield Copy(
                window.step,
                changed=differs,
                before=window.before,
                raw=raw,
                repaired=repaired,
                status=done.returncode,
                reported=done.stdout + done.stderr,
                may=may_boot,
            )
