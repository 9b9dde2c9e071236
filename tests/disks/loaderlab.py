"""Small ESP with a real systemd-boot and a real kernel, broken in one way, and booted under real firmware without KVM.

The initramfs is a static busybox that prints which entry was started, and then restarts, powers off or hangs. A boot takes seconds,
so that each claim about the loader has a boot of its own. No loop device, no mount.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.disks import slotdisk
from tests.e2e.qemu.disk import OVMF_VARS, Archive, GuestError, run

MIB = 1 << 20
SUITES = {"bookworm": 252, "trixie": 257, "forky": 262}  # Debian's release and its systemd-boot
# Packages by release: the first that the archive has of each group. Since forky, a kernel is in linux-binary.
PACKAGES = (("systemd-boot-efi",), ("busybox-static",))
LOADER = "usr/lib/systemd/boot/efi/systemd-bootx64.efi"
ESCAPES = re.compile(r"\x1b\[[0-9;=?]*[A-Za-z]|\r")
INIT = """#!/busybox sh
/busybox mkdir -p /proc /dev
/busybox mount -t proc proc /proc
for word in $(/busybox cat /proc/cmdline); do
    case $word in
    lab=*) lab=${word#lab=} ;;
    then=*) next=${word#then=} ;;
    esac
done
echo "LAB started $lab" >/dev/console
for module in $(/busybox ls /modules 2>/dev/null); do
    /busybox insmod /modules/$module >/dev/console 2>&1
done
case $next in
off) /busybox poweroff -f ;;
again) /busybox reboot -f ;;
watchdog)
    for i in 1 2 3; do [ -c /dev/watchdog ] && break; /busybox mknod /dev/watchdog c 10 130; /busybox sleep 1; done
    /busybox watchdog -T 20 -t 5 /dev/watchdog
    /busybox sleep 2
    echo "LAB armed" >/dev/console
    /busybox kill -9 $(/busybox pidof watchdog)
    ;;
end) exit 1 ;;
esac
while :; do /busybox sleep 1000; done
"""


@dataclass(frozen=True)
class Parts:
    """Loader, kernel and busybox of one release, and modules of its kernel by name."""

    suite: str
    loader: Path
    kernel: Path
    busybox: Path
    modules: Mapping[str, Path]


def fetch(suite: str, archives: Sequence[Archive], place: Path) -> Parts:
    """Download and unpack what a release's ESP has. `place` is used again by a later call."""
    home = place / suite
    root = home / "root"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        for name in ("lists/partial", "archives/partial", "deb"):
            (home / name).mkdir(parents=True)
        (home / "status").touch()
        (home / "sources.list").write_text("".join(f"{found.line()}\n" for found in archives))
        settings = (
            f'Dir::State "{home}"; Dir::State::status "{home}/status"; Dir::State::lists "{home}/lists"; Dir::Cache "{home}";'
            f'Dir::Etc::sourcelist "{home}/sources.list"; Dir::Etc::sourceparts "/dev/null"; Acquire::Languages "none";'
            'APT::Sandbox::User "root";\n'
        )
        (home / "apt.conf").write_text(settings)
        env = {**os.environ, "APT_CONFIG": str(home / "apt.conf")}

        def apt(*words: str) -> str:
            done = subprocess.run(
                words, cwd=home / "deb", env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise GuestError(f"{' '.join(words)}: {done.stderr[-800:]}")
            return done.stdout

        apt("apt-get", "-q", "update")
        shown = apt("apt-cache", "depends", "--recurse", "linux-image-cloud-amd64")
        (kernel,) = sorted(set(re.findall(r"^linux-image-\d\S+-cloud-amd64$", shown, re.MULTILINE)))
        names = ["systemd-boot-efi", "busybox-static"]
        for name in (
            kernel,
            kernel.replace("-image-", "-binary-"),
            kernel.replace("-image-", "-modules-"),
        ):
            if re.search(rf"^{re.escape(name)}$", shown, re.MULTILINE):
                names.append(name)
        apt("apt-get", "-q", "download", *names)
        for package in (home / "deb").glob("*.deb"):
            run("dpkg-deb", "-x", package, root)
            package.unlink()
        (home / "complete").touch()
    kernels = [*root.glob("boot/vmlinuz-*"), *root.glob("usr/lib/modules/*/vmlinuz")]
    modules = {
        re.sub(r"\.ko.*", "", path.name): path for path in root.glob("**/drivers/watchdog/*.ko*")
    }
    (busybox,) = [
        path for path in (root / "bin/busybox", root / "usr/bin/busybox") if path.exists()
    ]
    return Parts(suite, root / LOADER, kernels[0], busybox, modules)


def cpio(files: Mapping[str, bytes]) -> bytes:
    """An initramfs: a cpio archive of form newc, with a console, packed with gzip."""
    out = bytearray()

    def add(name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0)
        out.extend(b"070701" + "".join(f"{value:08x}" for value in fields).encode())
        out.extend(name.encode() + b"\0")
        out.extend(bytes(-len(out) % 4))
        out.extend(content + bytes(-len(content) % 4))

    for folder in sorted({str(Path(name).parent) for name in files} | {"dev"} - {"."}):
        if folder != ".":
            add(folder, 0o040755)
    add("dev/console", 0o020600, device=(5, 1))
    for name, content in files.items():
        add(name, 0o100755, content)
    add("TRAILER!!!", 0)
    return gzip.compress(bytes(out), 1, mtime=0)


def initramfs(parts: Parts, modules: Sequence[str] = ()) -> bytes:
    files = {"busybox": parts.busybox.read_bytes(), "init": INIT.encode()}
    for number, name in enumerate(modules):
        path = parts.modules[name]
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = subprocess.run(
                ["xz", "-dc"], input=content, capture_output=True, check=True
            ).stdout
        files[f"modules/{number}-{name}.ko"] = content
    return cpio(files)


def application(code: bytes) -> bytes:
    """A UEFI application for x86-64 of a few instructions: one section, no relocations, as the PE format has them."""
    text = code.ljust(512, b"\0")
    head = bytearray(64)
    head[:2], head[60:64] = b"MZ", struct.pack("<I", 64)
    coff = struct.pack("<4sHHIIIHH", b"PE\0\0", 0x8664, 1, 0, 0, 0, 240, 0x22E)
    optional = struct.pack("<HBBIIIII", 0x20B, 0, 0, 512, 0, 0, 0x1000, 0x1000)
    optional += struct.pack(
        "<QIIHHHHHHIIIIHH", 0, 0x1000, 512, 0, 0, 0, 0, 0, 0, 0, 0x2000, 512, 0, 10, 0
    )
    optional += struct.pack("<QQQQII", 0, 0, 0, 0, 0, 16) + bytes(128)
    section = struct.pack("<8sIIIIIIHHI", b".text", 512, 0x1000, 512, 512, 0, 0, 0, 0, 0x60000020)
    return (bytes(head) + coff + optional + section).ljust(512, b"\0") + text


HANGS = application(b"\xfb\xf4\xeb\xfd")  # sti; hlt; jmp
FAILS = application(b"\x48\xb8\x01\0\0\0\0\0\0\x80\xc3")  # mov rax, EFI_LOAD_ERROR; ret
RETURNS = application(b"\x31\xc0\xc3")  # xor eax, eax; ret


def entry(
    lab: str, sequence: int, *, linux: str, initrd: str, then: str = "off", more: str = ""
) -> bytes:
    """An entry as goldnode writes them."""
    return (
        f"title goldnode {lab}\nsort-key goldnode\nversion {sequence}~{lab}\nlinux {linux}\ninitrd {initrd}\n"
        f"options console=ttyS0 loglevel=4 panic=5 lab={lab} then={then} {more}\n"
    ).encode()


def esp(
    files: Mapping[str, bytes | Path], target: Path, scratch: Path, size: int = 96 * MIB
) -> Path:
    """A disk with nothing but an ESP."""
    tree = scratch / "tree"
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            os.link(content, tree / name)
        else:
            (tree / name).write_bytes(content)
    volume = scratch / "volume"
    for path, length in ((volume, size), (target, size + 2 * MIB)):
        path.unlink(missing_ok=True)
        path.touch()
        os.truncate(path, length)
    run("mkfs.vfat", "-F", "32", "-n", "ESP", volume)
    run("mcopy", "-s", "-i", volume, *sorted(tree.iterdir()), "::/")
    rows = f"label: gpt\nstart=2048, size={size // 512}, type=uefi, name=esp\n"
    run("sfdisk", "-q", target, stdin=rows)
    run(
        "dd",
        f"if={volume}",
        f"of={target}",
        "bs=1M",
        "seek=1",
        "conv=notrunc,sparse",
        "status=none",
    )
    shutil.rmtree(tree)
    volume.unlink()
    return target


def listed(disk: Path, folder: str = "loader/entries") -> list[str]:
    """The names in a folder of the ESP."""
    try:
        shown = run("mdir", "-b", "-i", f"{disk}@@1M", f"::{folder}")
    except GuestError:
        return []
    return sorted(line.rpartition("/")[2] for line in shown.splitlines() if line.strip("/ "))


@dataclass
class Seen:
    """Output of a boot: lines with the seconds since power on, the entries that were started, and how it ended.

    `end` is `off` if the machine powered off, `firmware` where no boot option was left, `halted` or `exception` where kernel or firmware stopped the
    processor, otherwise `stop` or `limit`.
    """

    lines: list[tuple[float, str]] = field(default_factory=list)
    end: str = ""
    seconds: float = 0.0
    entries: list[str] = field(default_factory=list)

    @property
    def started(self) -> list[str]:
        return [
            text.partition("LAB started ")[2] for _, text in self.lines if "LAB started " in text
        ]

    def shows(self, text: str) -> bool:
        return any(text in line for _, line in self.lines)


def boot(
    disk: Path,
    scratch: Path,
    *extra: str | Path,
    limit: float = 120,
    variables: Path = OVMF_VARS,
    stop: str = "\0",
    times: int = 1,
    secure: bool = False,
) -> Seen:
    """Boot a disk until it powers off, a text was shown a number of times, or the limit in seconds.

    `scratch/vars.fd` then has the firmware's variables.
    """
    own = scratch / "vars.fd"
    shutil.copy(variables, own)
    command: list[str | Path] = [
        *slotdisk.machine(own, 768, secure), "-nic", "none",
        "-drive", f"file={disk},if=none,id=lab,format=raw,cache=unsafe", "-device", "virtio-blk-pci,drive=lab", *extra,
    ]  # fmt: skip
    seen, begun = Seen(), time.monotonic()
    with slotdisk.started(command, scratch / "console.log") as guest:
        at = 0
        while True:
            with guest.news:
                guest.news.wait(1)
                fresh, at = guest.lines[at:], len(guest.lines)
            now = round(time.monotonic() - begun, 1)
            seen.lines += [(now, ESCAPES.sub("", line)) for line in fresh]
            if fresh and fresh[-1] == "GUEST ENDED":
                seen.end = "off"
            elif seen.shows(
                "UEFI Interactive Shell"
            ):  # the last boot option of OVMF: no loader was left to start
                seen.end = "firmware"
            elif seen.shows(
                "X64 Exception"
            ):  # the firmware stops the processor, and its own watchdog with it
                seen.end = "exception"
            elif seen.shows("System halted"):
                seen.end = "halted"
            elif sum(stop in line for _, line in seen.lines) >= times:
                seen.end = "stop"
            elif now > limit:
                seen.end = "limit"
            if seen.end:
                seen.seconds = now
                break
    seen.entries = listed(disk)
    return seen


# -- breakages

NEW, OLD, RECOVERY = "goldnode-bbb-b{}.conf", "goldnode-aaa-a{}.conf", "goldnode-recovery.conf"


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def fails(_: bytes) -> bytes:
    return FAILS


def flipped(content: bytes) -> bytes:
    """A page of zeros in the middle: in a kernel, that is its packed part."""
    middle = len(content) // 2
    return content[:middle] + bytes(4096) + content[middle + 4096 :]


@dataclass(frozen=True)
class Case:
    """An ESP with a newer image in slot b, an older one in slot a and a recovery, broken in one way.

    `new` and `old` are the counters of the entries; `linux` and `initrd` change these files of slot b. `ends` is how the boot ends with each loader of SUITES:
    the entries that were started, and last `off`, `firmware` (no boot option is left), `exception` or `limit`.
    """

    name: str
    ends: tuple[str, str, str]
    new: str = "+3"
    old: str = ""
    linux: Callable[[bytes], bytes] | None = None
    initrd: Callable[[bytes], bytes] | None = None
    without: tuple[str, ...] = ()  # files that are left out
    then: str = "off"  # of the newer image
    conf: bytes = b"default goldnode-*\ntimeout 0\neditor no\n"
    counter: tuple[str, str, str] = ("", "", "")  # of the newer image afterwards
    limit: float = 600

    def files(self, parts: Parts) -> dict[str, bytes | Path]:
        kernel, image = parts.kernel.read_bytes(), initramfs(parts)
        own = {"linux": "/goldnode/b/linux", "initrd": "/goldnode/b/initrd"}
        other = {"linux": "/goldnode/a/linux", "initrd": "/goldnode/a/initrd"}
        found: dict[str, bytes | Path] = {
            "EFI/BOOT/BOOTX64.EFI": parts.loader.read_bytes(),
            "loader/loader.conf": self.conf,
            "goldnode/a/linux": kernel,
            "goldnode/a/initrd": image,
            "goldnode/b/linux": self.linux(kernel) if self.linux else kernel,
            "goldnode/b/initrd": self.initrd(image) if self.initrd else image,
            f"loader/entries/{NEW.format(self.new)}": entry("new", 2, **own, then=self.then),
            f"loader/entries/{OLD.format(self.old)}": entry("old", 1, **other),
            f"loader/entries/{RECOVERY}": entry("recovery", 0, **other),
        }
        return {name: content for name, content in found.items() if name not in self.without}


ENTRIES = tuple(f"loader/entries/{name}" for name in (NEW.format("+3"), OLD.format(""), RECOVERY))
BAD = ("firmware", "exception", "old off")  # the kernel cannot be loaded or started
COUNTED = ("+2-1", "+2-1", "+0-3")
EACH = ("+0-3",) * 3
CASES = (
    Case("kernel returns an error", BAD, linux=fails, counter=COUNTED),
    Case("kernel, second half missing", BAD, linux=half, counter=COUNTED),
    Case("kernel, packed part damaged", BAD, linux=flipped, counter=COUNTED),
    Case("kernel, file missing", ("old off",) * 3, without=("goldnode/b/linux",), counter=("+3",) * 3),
    Case("kernel returns an error, entry without counter", ("firmware", "exception", "firmware"), new="", linux=fails),
    Case("initramfs, file missing", ("firmware", "firmware", "old off"), without=("goldnode/b/initrd",), counter=COUNTED),
    Case("initramfs, second half missing", ("old off",) * 3, initrd=half, counter=EACH),
    Case("initramfs restarts each time", ("new new new old off",) * 3, then="again", counter=EACH),
    Case("no slot has tries left", ("recovery off",) * 3, new="+0-3", old="+0-3", counter=EACH),
    Case(
        "no slot has tries left, no recovery", ("new off",) * 3, new="+0-3", old="+0-3",
        without=(f"loader/entries/{RECOVERY}",), counter=("+0-4",) * 3,
    ),
    Case("no entry at all", ("limit",) * 3, without=ENTRIES, limit=90),
    Case("loader.conf is junk", ("new off",) * 3, conf=bytes(range(128, 256)) * 8, counter=("+2-1",) * 3),
)  # fmt: skip


def run_case(case: Case, parts: Parts, scratch: Path) -> dict[str, object]:
    """Boot a case. Return what it showed."""
    disk = esp(case.files(parts), scratch / "lab.raw", scratch)
    seen = boot(disk, scratch, limit=case.limit)
    disk.unlink()
    messages = [
        text.strip()
        for _, text in seen.lines
        if re.search(
            "Error|Failed|failed to start|panic -|Rebooting|unpacking failed|Decompression", text
        )
    ]
    counters = [
        name[len("goldnode-bbb-b") : -len(".conf")]
        for name in seen.entries
        if name.startswith("goldnode-bbb-b")
    ]
    return {
        "suite": parts.suite,
        "case": case.name,
        "ends": " ".join([*seen.started, seen.end]),
        "counter": counters[0] if counters else "",
        "seconds": round(seen.seconds),
        "messages": list(dict.fromkeys(messages))[:6],
    }
