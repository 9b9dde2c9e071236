"""Which kernel systemd-boot starts next, read from the EFI system partition and the loader's variables: nothing is run.

Entries (type #1), their counters and their order are those of the Boot Loader Specification
(https://uapi-group.org/specifications/specs/boot_loader_specification/), versions are compared as the Version Format Specification says
(https://uapi-group.org/specifications/specs/version_format_specification/), and the choice is that of systemd-boot(7): LoaderEntryOneShot,
LoaderEntryDefault, `default` of loader.conf, the first entry. What lies beside them (unified kernels, other systems) is not looked at:
where a wish names none of the entries, what boots is not known.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase

from ..boot import PLACES, VARIABLES, VENDOR
from ..plain import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence, Tuple

    from ..host import Host

# Debian's kernels say what they are at this offset of the file: a word at 0x20e of the setup header, counted from 0x200 (x86/boot.rst).
HEADER, MAGIC, POINTER = 0x202, b"HdrS", 0x20E
_COUNTER = re.compile(r"^(.+)\+(\d{1,9})(?:-(\d{1,9}))?(\.conf)$", re.IGNORECASE)


class Entry(NamedTuple):
    """One type #1 entry. `id` is its file name without the counter; `left` and `done` are tries, None where it has no counter."""

    file: str
    id: str
    left: Optional[int]
    done: Optional[int]
    fields: Mapping[
        str, str
    ]  # sort-key, version, linux …; several lines of a key (initrd, options) are joined by a blank
    bootable: bool = True  # its kernel is there: systemd-boot passes over an entry without one

    @property
    def bad(self) -> bool:
        """Whether all its tries are used up."""
        return self.left == 0


class Choice(NamedTuple):
    """The entry that boots next. `via`: LoaderEntryOneShot | LoaderEntryDefault | default | first; None where it cannot be told."""

    entry: Optional[Entry]
    via: str
    reason: str


def counter(name: str) -> Tuple[str, Optional[int], Optional[int]]:
    """File name -> (name without the counter, tries left, tries done): `a+2-1.conf` is (`a.conf`, 2, 1), `a.conf` is (`a.conf`, None, None)."""
    found = _COUNTER.match(name)
    if not found:
        return name, None, None
    return found.group(1) + found.group(4), int(found.group(2)), int(found.group(3) or 0)


def with_counter(name: str, left: int, done: int = 0) -> str:
    """The name of an entry's file with a counter."""
    return f"{name[: -len('.conf')]}+{left}{f'-{done}' if done else ''}.conf"


def fields(text: str) -> Mapping[str, str]:
    """Keys and values of an entry, or of loader.conf."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().replace("\t", " ").partition(" ")
        if key and not key.startswith("#") and value.strip():
            key = key.lower()
            found[key] = (
                f"{found[key]} {value.strip()}"
                if key in ("initrd", "options") and key in found
                else value.strip()
            )
    return found


def parse(name: str, text: str, bootable: bool = True) -> Entry:
    """An entry from its file's name and content."""
    ident, left, done = counter(name)
    return Entry(name, ident, left, done, fields(text), bootable)


# -- order


def compare(one: str, other: str) -> int:
    """-1, 0 or 1: how two versions stand to each other (Version Format Specification, "Version Comparison")."""
    a, b = one, other
    while True:
        a, b = (re.sub(r"^[^0-9A-Za-z~\-^.]+", "", text) for text in (a, b))
        if a[:1] == "~" or b[:1] == "~":  # before everything, also before an end
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
    """A text that sorts before its older versions."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __lt__(self, other: _Newest) -> bool:
        return compare(self.text, other.text) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Newest) and compare(self.text, other.text) == 0


def ordered(entries: Sequence[Entry]) -> List[Entry]:
    """Entries as systemd-boot lists them (since version 254; before, those that are used up last by the same rule): the first is tried first.

    What has no tries left comes last; then what has a sort key, by that, then the machine id, and the newest version first; then by id.
    """

    def place(entry: Entry) -> Tuple[object, ...]:
        key = entry.fields.get("sort-key")
        kept = (
            (key, entry.fields.get("machine-id", ""), _Newest(entry.fields.get("version", "")))
            if key
            else ("", "", _Newest(""))
        )
        return (entry.bad, key is None, *kept, _Newest(entry.id), -(entry.left or 0), entry.done or 0)

    return sorted(entries, key=place)


def choose(
    conf: Mapping[str, str],
    entries: Sequence[Entry],
    default: Optional[str] = None,
    once: Optional[str] = None,
) -> Choice:
    """What boots next. `conf`: of loader.conf; `default` and `once`: LoaderEntryDefault and LoaderEntryOneShot, None where they are not set."""
    menu = ordered([entry for entry in entries if entry.bootable])
    wishes = [("LoaderEntryOneShot", once), ("LoaderEntryDefault", default)]
    config = conf.get("default")
    if config and config.startswith("@saved"):
        return Choice(
            None, "default", "loader.conf leaves the choice to the last one made at the screen (@saved)"
        )
    for via, wish in (*wishes, ("default", config)):
        if not wish:
            continue
        # The name as it is (with its counter: before version 256) or without.
        for entry in menu:
            if any(fnmatchcase(name.lower(), wish.lower()) for name in (entry.file, entry.id)):
                return Choice(entry, via, f"{via} is {wish}: entry {entry.file}")
        if via != "default" and wish.lower().startswith("auto-"):
            return Choice(None, via, f"{via} is {wish}, which is no entry of a kernel")
    if not menu:
        return Choice(None, "first", "there is no entry with a kernel")
    said = f"loader.conf's default {config} is no entry: " if config else ""
    return Choice(menu[0], "first", f"{said}the first entry {menu[0].file}")


# -- reading


def variable(host: Host, name: str) -> Optional[str]:
    """A variable of the boot loader (UTF-16 after four bytes of attributes); None where it is not set, or where there are none."""
    data = host.data(f"{VARIABLES}/{name}-{VENDOR}")
    return None if data is None else data[4:].decode("utf-16-le", "replace").rstrip("\0")


def partition(host: Host) -> Optional[str]:
    """Where the ESP with systemd-boot's entries lies; None where none is seen."""
    return next((place for place in PLACES if host.is_dir(f"{place}/loader/entries")), None)


def entries(host: Host, place: str) -> List[Entry]:
    """Every type #1 entry of an ESP."""
    found = []
    for name in host.glob(f"{place}/loader/entries", "*"):
        if name.lower().endswith(".conf"):
            entry = parse(name.rpartition("/")[2], host.text(name) or "")
            kernel = entry.fields.get("linux")
            there = bool(kernel) and host.exists(place + "/" + str(kernel).lstrip("/"))
            found.append(entry if there else entry._replace(bootable=False))
    return found


def next_boot(host: Host, place: str) -> Choice:
    """What systemd-boot starts next from an ESP."""
    conf = fields(host.text(f"{place}/loader/loader.conf") or "")
    return choose(
        conf, entries(host, place), variable(host, "LoaderEntryDefault"), variable(host, "LoaderEntryOneShot")
    )


def release(host: Host, place: str, entry: Entry) -> Optional[str]:
    """The release of an entry's kernel, as the kernel's own header tells it (x86), else the entry's version where it is a release."""
    here = host.located(place + "/" + entry.fields.get("linux", "").lstrip("/"))
    found = image_release(here)
    version = entry.fields.get("version", "")
    return found or (version if host.is_dir(f"/lib/modules/{version}") and version else None)


def image_release(path: str) -> Optional[str]:
    """The release that an x86 kernel image names (`uname -r` once it runs); None where it is no such image."""
    try:
        with open(path, "rb") as opened:
            head = opened.read(POINTER + 2)
            if head[HEADER : HEADER + 4] != MAGIC:
                return None
            opened.seek(int.from_bytes(head[POINTER : POINTER + 2], "little") + 0x200, os.SEEK_SET)
            words = opened.read(256).split(b"\0")[0].decode("ascii", "replace").split()
    except OSError:
        return None
    return words[0] if words else None
