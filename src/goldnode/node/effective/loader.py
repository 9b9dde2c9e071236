"""Detection of the kernel that systemd-boot starts next.

Reads the EFI system partition and the loader's variables, and runs no program. Sources of the rules:

* Type #1 entries, their counters and their order: Boot Loader Specification
  (https://uapi-group.org/specifications/specs/boot_loader_specification/)
* Comparison of versions: Version Format Specification
  (https://uapi-group.org/specifications/specs/version_format_specification/)
* Choice of the entry: systemd-boot(7). The order is LoaderEntryOneShot, LoaderEntryDefault, `default` of
  loader.conf, the first entry.

The order of unified kernel images among the entries is unknown, and so is the next boot if no setting names an
entry. Other systems are ignored.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase

from ..ground.boot import PLACES, VARIABLES, VENDOR
from ..ground.text import phrase
from ..ground.typed import NamedTuple
from . import uki

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, Dict, List, Mapping, Optional, Sequence, Tuple

    from ..ground.host import Host

# An x86 kernel image has its version string at this offset: the word at 0x20e of the setup header,
# plus 0x200 (x86/boot.rst).
HEADER, MAGIC, POINTER = 0x202, b"HdrS", 0x20E
ARM_PLACE, ARM_MAGIC = 0x38, b"ARM\x64"
_BANNER = re.compile(rb"Linux version (\d[!-~]{0,64}) \(")
_BANNER_SIZE = 128  # more than a banner that begins in one piece and ends in the next
_COUNTER = re.compile(r"^(.+)\+(\d{1,9})(?:-(\d{1,9}))?(\.conf)$", re.IGNORECASE)


class LoaderEntry(NamedTuple):
    """One type #1 entry.

    `id` is its file name without the counter. `left` and `done` count tries; without a
    counter, they are unset (None).
    """

    file: str
    id: str
    left: Optional[int]
    done: Optional[int]
    # sort-key, version, linux …; several lines of one key (initrd, options) are joined with a blank
    fields: Mapping[str, str]
    bootable: bool = True  # its kernel exists; systemd-boot skips an entry without one

    @property
    def bad(self) -> bool:
        """Return whether all its tries are used up."""
        return self.left == 0

    @property
    def unified(self) -> bool:
        """Return whether it starts a unified kernel image, which has the initramfs and its own command line inside."""
        return "linux" in self.fields and "initrd" not in self.fields


class LoaderChoice(NamedTuple):
    """The entry that boots next, with `entry` None if it is unknown.

    `via` is LoaderEntryOneShot, LoaderEntryDefault, default or first.
    """

    entry: Optional[LoaderEntry]
    via: str
    reason: str


def counter(name: str) -> Tuple[str, Optional[int], Optional[int]]:
    """Split a file name into (name without the counter, tries left, tries done).

    `a+2-1.conf` is (`a.conf`, 2, 1); `a.conf` is (`a.conf`, None, None).
    """
    match = _COUNTER.match(name)
    if not match:
        return name, None, None
    return match.group(1) + match.group(4), int(match.group(2)), int(match.group(3) or 0)


def with_counter(name: str, left: int, done: int = 0) -> str:
    """Return the file name of an entry with a counter added."""
    return f"{name[: -len('.conf')]}+{left}{phrase('-{}', done)}.conf"


def fields(text: str) -> Mapping[str, str]:
    """Return the keys and values of an entry, or of loader.conf."""
    values: Dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().replace("\t", " ").partition(" ")
        if key and not key.startswith("#") and value.strip():
            key, value = key.lower(), value.strip()
            # These two may be there several times, and all count. Of any other, the last one does.
            if key in ("initrd", "options") and key in values:
                value = f"{values[key]} {value}"
            values[key] = value
    return values


def parse(name: str, text: str, bootable: bool = True) -> LoaderEntry:
    """Return an entry from its file name and content."""
    ident, left, done = counter(name)
    return LoaderEntry(name, id=ident, left=left, done=done, fields=fields(text), bootable=bootable)


# -- order


def compare(one: str, other: str) -> int:
    """Return -1, 0 or 1 for an older, equal or newer version.

    Version Format Specification, section "Version Comparison".
    """
    a, b = one, other
    while True:
        a, b = (re.sub(r"^[^0-9A-Za-z~\-^.]+", "", text) for text in (a, b))
        if a[:1] == "~" or b[:1] == "~":  # `~` sorts before everything, even before the end
            if a[:1] != b[:1]:
                return -1 if a[:1] == "~" else 1
            a, b = a[1:], b[1:]
            continue
        if not a or not b:
            return (len(a) > 0) - (len(b) > 0)
        mark = next((letter for letter in "-^." if letter in (a[0], b[0])), None)
        if mark:
            if a[0] != b[0]:
                return -1 if a[0] == mark else 1
            a, b = a[1:], b[1:]
            continue
        digits = a[0].isdigit() or b[0].isdigit()
        left, right = (re.match(r"[0-9]*" if digits else r"[A-Za-z]*", text)[0] for text in (a, b))  # type: ignore[index]
        if digits:
            x, y = int(left or -1), int(right or -1)
            if x != y:
                return -1 if x < y else 1
        elif left != right:
            return -1 if left < right else 1
        a, b = a[len(left) :], b[len(right) :]


class _Newest:
    """Sort key that puts newer versions first."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __lt__(self, other: _Newest) -> bool:
        return compare(self.text, other.text) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Newest) and compare(self.text, other.text) == 0


def ordered(entries: Sequence[LoaderEntry]) -> List[LoaderEntry]:
    """Return entries in the order of systemd-boot's menu; it tries the first one first.

    Entries without tries left come last. Before them come those with a sort key, ordered by sort key, machine
    id and version, newest first. The rest is ordered by id. This is the order since systemd 254; older
    versions put used-up entries last by the same rule.
    """

    def place(entry: LoaderEntry) -> Tuple[object, ...]:
        # The Specification orders entries with a sort key before those without one.
        key = entry.fields.get("sort-key")
        position = ("", "", _Newest(""))
        if key:
            machine, version = entry.fields.get("machine-id", ""), entry.fields.get("version", "")
            position = (key, machine, _Newest(version))
        return (
            entry.bad,
            key is None,
            *position,
            _Newest(entry.id),
            -(entry.left or 0),
            entry.done or 0,
        )

    return sorted(entries, key=place)


def choose(
    conf: Mapping[str, str],
    entries: Sequence[LoaderEntry],
    default: Optional[str] = None,
    once: Optional[str] = None,
    saved: Optional[str] = None,
) -> LoaderChoice:
    """Return the entry that boots next.

    `conf` holds the fields of loader.conf. `default`, `once` and `saved` are LoaderEntryDefault,
    LoaderEntryOneShot and LoaderEntryLastBooted, or None if unset.
    """
    menu = ordered([entry for entry in entries if entry.bootable])
    # systemd-boot skips entries whose kernel file is missing.
    wishes = [("LoaderEntryOneShot", once), ("LoaderEntryDefault", default)]
    config = conf.get("default")
    for via, wish in (*wishes, ("default", config)):
        if not wish:
            continue
        if wish.lower() == "@saved":
            if saved is None:
                text = f"{via} leaves the choice to the last one made at the screen (@saved)"
                return LoaderChoice(None, via, text)
            wish = saved
        # Match the file name (which contains the counter; used before version 256) or the id.
        for entry in menu:
            if any(fnmatchcase(name.lower(), wish.lower()) for name in (entry.file, entry.id)):
                return LoaderChoice(entry, via, f"{via} is {wish}: entry {entry.file}")
        # systemd-boot gives names in auto-… to entries that it adds itself; they are not type #1 entries.
        if via != "default" and wish.lower().startswith("auto-"):
            return LoaderChoice(None, via, f"{via} is {wish}, which is no entry of a kernel")
    if not menu:
        return LoaderChoice(None, "first", "there is no entry with a kernel")
    reported = phrase("loader.conf's default {} is no entry: ", config)
    return LoaderChoice(menu[0], "first", f"{reported}the first entry {menu[0].file}")


# -- reading


def variable(host: Host, name: str) -> Optional[str]:
    """Return a variable of the boot loader, or None if it is unset or the system has no EFI variables.

    The value is UTF-16 after four bytes of attributes.
    """
    data = host.data(f"{VARIABLES}/{name}-{VENDOR}")
    return None if data is None else data[4:].decode("utf-16-le", "replace").rstrip("\0")


def partition(host: Host) -> Optional[str]:
    """Return the mount point of the ESP that holds systemd-boot's entries, or None."""
    return next((place for place in PLACES if host.is_dir(f"{place}/loader/entries")), None)


def entries(host: Host, place: str) -> List[LoaderEntry]:
    """Return every type #1 entry of an ESP."""
    rows = []
    for name in host.glob(f"{place}/loader/entries", "*"):
        # systemd-boot gives names in auto-… to what it adds itself, and reads no such file.
        if name.lower().endswith(".conf") and "/auto-" not in name.lower():
            entry = parse(name.rpartition("/")[2], host.text(name) or "")
            kernel = entry.fields.get("linux")
            there = bool(kernel) and host.exists(place + "/" + str(kernel).lstrip("/"))
            rows.append(entry if there else entry._replace(bootable=False))
    return rows


def next_boot(host: Host, place: str) -> LoaderChoice:
    """Return the entry that systemd-boot starts next from an ESP."""
    conf = fields(host.text(f"{place}/loader/loader.conf") or "")
    choice = choose(
        conf,
        entries(host, place),
        variable(host, "LoaderEntryDefault"),
        variable(host, "LoaderEntryOneShot"),
        variable(host, "LoaderEntryLastBooted"),
    )
    images = host.glob(f"{place}/EFI/Linux", "*.efi")
    if images and choice.via == "first":
        text = f"{images[0]} is a unified kernel image, and its place among the entries is not read"
        return LoaderChoice(None, "first", text)
    return choice


def release(host: Host, place: str, entry: LoaderEntry) -> Optional[str]:
    """Return the kernel release of an entry, or None.

    Read it from the header of the kernel image (x86), otherwise from the entry's
    version if that is a release.
    """
    here = kernel_file(host, place, entry)
    version = entry.fields.get("version", "")
    known = version if version and host.is_dir(f"/lib/modules/{version}") else None
    inner = uki.section(here, ".uname") if entry.unified else None
    return image_release(here) or (inner or b"").decode("ascii", "replace") or known


def kernel_file(host: Host, place: str, entry: LoaderEntry) -> str:
    """Return the path of the kernel of an entry on this machine."""
    return host.located(place + "/" + entry.fields.get("linux", "").lstrip("/"))


def cmdline(host: Host, place: str, entry: LoaderEntry) -> Optional[str]:
    """Return the command line that an entry starts its kernel with; None without one.

    A unified kernel image has its own. Under Secure Boot, systemd's stub ignores the options of the entry.
    """
    if entry.unified:
        inner = uki.section(kernel_file(host, place, entry), ".cmdline")
        if inner is not None:
            return inner.decode("ascii", "replace")
    return entry.fields.get("options")


def image_release(path: str) -> Optional[str]:
    """Return the release of a kernel image (`uname -r` once it runs), or None for any other file.

    The header of an image for x86 leads to it. That of one for arm64 does not have it
    (Documentation/arch/arm64/booting.rst), so that it is read from the banner that the kernel prints.
    """
    try:
        with open(path, "rb") as opened:
            head = opened.read(POINTER + 2)
            if head[ARM_PLACE : ARM_PLACE + 4] == ARM_MAGIC:
                return _banner(opened)
            if head[HEADER : HEADER + 4] != MAGIC:
                return None
            opened.seek(int.from_bytes(head[POINTER : POINTER + 2], "little") + 0x200, os.SEEK_SET)
            words = opened.read(256).split(b"\0")[0].decode("ascii", "replace").split()
    except OSError:
        return None
    return words[0] if words else None


def _banner(opened: BinaryIO) -> Optional[str]:
    """Return the release of the banner in a kernel image that is not compressed, from here on. It is some 20 MB inside."""
    before = b""
    while True:
        piece = opened.read(1 << 20)
        match = _BANNER.search(before + piece)
        if match or not piece:
            return match.group(1).decode("ascii", "replace") if match else None
        before = piece[-_BANNER_SIZE:]
