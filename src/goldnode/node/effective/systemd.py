"""Units as systemd loads them: search path, drop-ins, masks, and what a later line takes back. Reads only.

The rules are those of systemd.unit(5), systemd.syntax(7) and of systemd 252 itself, which
tests/unit/node/effective/test_systemd.py runs, with those of later releases by `--all`.
"""

from __future__ import annotations

import os
import re

from ..ground.host import Host
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple


# `systemd-analyze unit-paths`. An earlier directory hides the same name in the later ones.
DIRECTORIES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator.late",
)
# Settings that an empty value clears together: any condition, any time of a timer, any address of a socket.
_FAMILIES = {"Unit": ("Condition", "Assert"), "Timer": ("On",), "Socket": ("Listen",)}
_SPANS = (("y", 31557600), ("month", 2629800), ("w", 604800), ("d", 86400), ("h", 3600))


_LINKED = (
    "service",
    "socket",
    "target",
    "device",
    "timer",
    "path",
)  # types that may have other names
_LONGEST = 8  # links from name to name


class UnitSetting(NamedTuple):
    """One line in effect, or one that cleared others (`value` is empty)."""

    file: str
    line: int
    section: str
    key: str
    value: str

    def where(self) -> str:
        """Return file, line and text for a person."""
        return f"{self.file}:{self.line} (`{self.key}={self.value}`)"

    @property
    def family(self) -> str:
        """Return the name of the settings that an empty value of this one clears."""
        for prefix in _FAMILIES.get(self.section, ()):
            if self.key.startswith(prefix):
                return prefix
        return self.key


class UnitTree:
    """The unit files of one root. Each directory is listed once."""

    def __init__(self, host: Host) -> None:
        """List the directories of the search path."""
        self.host = host
        self.names: Dict[str, Set[str]] = {}
        # Of each name the first file as an absolute path, or the other name to which its link leads.
        self.files: Dict[str, str] = {}
        merged = host.is_link("/lib")
        for directory in DIRECTORIES:
            # /lib is a link to /usr/lib, except on old systems.
            if merged and directory[:5] == "/lib/":
                continue
            try:
                with os.scandir(host.real(directory)) as entries:
                    links = {entry.name: entry.is_symlink() for entry in entries}
            except OSError:  # most of them do not exist
                continue
            self.names[directory] = set(links)
            for name in links.keys() - self.files.keys():
                target: Optional[str] = f"{directory}/{name}"
                if links[name]:
                    target = _alias(
                        directory, name, os.readlink(host.located(f"{directory}/{name}"))
                    )
                if target:
                    self.files[name] = target
        # Of each unit its other names.
        self.aliases: Dict[str, List[str]] = {}
        for name, target in self.files.items():
            if target[0] != "/":
                self.aliases.setdefault(self.identity(name), []).append(name)

    def entry(self, name: str) -> Optional[str]:
        """Return the file or link of a name, or None. It may lead to the file of another unit."""
        paths = (f"{folder}/{name}" for folder, names in self.names.items() if name in names)
        return next(paths, None)

    def fragment(self, name: str) -> Optional[str]:
        """Return the file that defines a unit, or None. See :meth:`masked`.

        An instance (`name@tty1.service`) without a file of its own has that of its template.
        """
        return self._file(name) or self._file(_template(name))

    def _file(self, name: str) -> Optional[str]:
        """Return the file to which the links of a name lead."""
        target = self.files.get(name)
        for _ in range(_LONGEST):
            if target is None or target[0] == "/":
                return target
            target = self.files.get(target) or self.files.get(_template(target))
        return None

    def identity(self, name: str) -> str:
        """Return the name that systemd shows for a unit: that of its file, with the instance."""
        path = self.fragment(name)
        if path is None or self.masked(path):
            return name
        unit = path.rpartition("/")[2].replace("@.", f"@{_instance(name)}.")
        # An instance that has a file of its own is another unit.
        return unit if self.fragment(unit) == path else name

    def other_names(self, name: str) -> List[str]:
        """Return the names that lead to the same unit by links, also those of its template."""
        unit = self.identity(name)
        rows = list(self.aliases.get(unit, ()))
        if _instance(unit):
            for alias in self.aliases.get(_template(unit), ()):
                here = alias.replace("@.", f"@{_instance(unit)}.")
                if here not in rows and self.identity(here) == unit:
                    rows.append(here)
        return [row for row in rows if row != unit]

    def masked(self, path: str) -> bool:
        """Return whether a unit file is a mask: empty, or a link to /dev/null."""
        try:
            # The /dev of an image is empty, and a test's root has none.
            if os.readlink(self.host.located(path)) == "/dev/null":
                return True
            return os.stat(self.host.real(path)).st_size == 0
        except OSError:
            here = self.host.lstat(path)
            return here is not None and here.st_size == 0

    def drop_ins(self, name: str) -> List[str]:
        """Return the drop-ins of a unit in the order in which they apply.

        Of equal names, that of the unit's own directory wins over one of its template or of a prefix
        (`goldnode-.service.d`) in the same directory of the search path. Then come those of its other names, and
        that of the whole type (`service.d`) is the last.
        """
        unit, kind = self.identity(name), name.rpartition(".")[2]
        by_name: Dict[str, str] = {}
        for group in (*map(_owners, (unit, *self.other_names(unit))), [kind]):
            for folder, names in self.names.items():
                for owner in group:
                    if f"{owner}.d" in names:
                        for path in self.host.glob(f"{folder}/{owner}.d", "*.conf"):
                            base = path.rpartition("/")[2]
                            if base[0] != "." and not self.host.is_dir(path):
                                by_name.setdefault(base, path)
        return [by_name[base] for base in sorted(by_name)]

    def settings(self, name: str) -> List[UnitSetting]:
        """Return all lines of a unit and its drop-ins, in the order in which systemd reads them."""
        fragment = self.fragment(name)
        paths = ([fragment] if fragment else []) + self.drop_ins(name)
        return [row for path in paths for row in parsed(path, self.host.text(path) or "")]


def _template(name: str) -> str:
    """Return the template of an instance; of any other name, the name itself."""
    prefix, at, rest = name.partition("@")
    return f"{prefix}@.{rest.rpartition('.')[2]}" if at else name


def _instance(name: str) -> str:
    """Return the text between `@` and the type; empty for anything but an instance."""
    return name.partition("@")[2].rpartition(".")[0]


def _alias(directory: str, name: str, target: str) -> Optional[str]:
    """Return the other name to which a link in the search path leads, or None if systemd ignores it.

    A link to a file elsewhere is the file of the unit, or a mask: the path of the link itself.
    """
    folder, _, base = os.path.normpath(os.path.join(directory, target)).rpartition("/")
    if not f"{folder}/".startswith(tuple(f"{place}/" for place in DIRECTORIES)):
        return f"{directory}/{name}"
    kind, own = base.rpartition(".")[2], name.rpartition(".")[2]
    form, instance = "@" in name, _instance(name)
    # An instance may lead to a template, or to the same instance of another one.
    fits = ("@" in base, _instance(base)) in ((form, instance), (form, ""))
    if base == name or kind != own or kind not in _LINKED or not fits:
        return None
    return base


def _owners(name: str) -> List[str]:
    """Return the names whose directories `NAME.d` a unit has: its own, its template's, and those of its prefixes."""
    rows, (stem, _, kind) = [name], name.rpartition(".")
    prefix, _, instance = stem.partition("@")
    if instance:
        rows += _owners(f"{prefix}@.{kind}")
    # A dash at the end belongs to the name.
    end = prefix.removesuffix("-").rfind("-") + 1
    if end > 1:
        shorter = f"{prefix[:end]}@{instance}" if instance else prefix[:end]
        rows += _owners(f"{shorter}.{kind}")
    return rows


def parsed(file: str, text: str) -> List[UnitSetting]:
    """Return the assignments of one file. Lines that systemd ignores with a warning are left out."""
    rows, section = [], ""
    for number, line in logical(text):
        if line.startswith("["):
            section = line[1:-1] if line.endswith("]") else section
            continue
        key, equals, value = line.partition("=")
        if equals and key and section:
            rows.append(UnitSetting(file, number, section, key.strip(), value.strip()))
    return rows


def logical(text: str) -> Iterator[Tuple[int, str]]:
    """Yield the lines with the number of their first one. A comment does not end a continued line."""
    begun, collected = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip()[:1] in ("#", ";") and line.strip():
            continue
        begun = begun or number
        # An even number of backslashes at the end is no continuation.
        if (len(line) - len(line.rstrip("\\"))) % 2:
            collected += line[:-1] + " "
            continue
        if (collected + line).strip():
            yield begun, (collected + line).strip()
        begun, collected = 0, ""
    if collected.strip():
        yield begun, collected.strip()


def effective(settings: Sequence[UnitSetting]) -> Dict[Tuple[str, str], List[UnitSetting]]:
    """Return what is in effect: (section, family) -> settings.

    A list that was cleared begins with the line that cleared it. Of any other setting the last one counts.
    """
    rows: Dict[Tuple[str, str], List[UnitSetting]] = {}
    for row in settings:
        key = (row.section, row.family)
        listed = row.family != row.key or row.family in ("On", "Listen") or row.key[:4] == "Exec"
        if listed and row.value:
            rows.setdefault(key, []).append(row)
        else:
            rows[key] = [row]
    return rows


def seconds(text: str) -> Optional[float]:
    """Return a time span of systemd.time(7) in seconds; None for `infinity` and anything else."""
    total, rest = 0.0, text.strip()
    if not rest:
        return None
    while rest:
        match = re.match(r"([\d.]+)\s*([a-zA-Zµ]*)\s*", rest)
        if not match:
            return None
        try:
            total += float(match[1]) * _unit(match[2])
        except ValueError:
            return None
        rest = rest[match.end() :]
    return total


def _unit(word: str) -> float:
    """Return the seconds of a unit of time. Raises ValueError for any other word."""
    if word in ("us", "usec", "µs"):
        return 1e-6
    if word in ("ms", "msec"):
        return 1e-3
    if word == "M":
        return 2629800
    if word in ("m", "min", "minute", "minutes"):
        return 60
    if word in ("", "s", "sec", "second", "seconds"):
        return 1
    for prefix, value in _SPANS:
        if word.startswith(prefix):
            return value
    raise ValueError(word)
