"""Configuration of modprobe as modprobe reads it: modprobe.d(5) and the kernel command line. Reads only.

The rules are those of kmod 30, which tests/unit/node/effective/test_kmod.py runs, and of 34.2, where the same cases gave the same results but
one: it does not read files named *.alias any more. Lines in such a file are taken as if it did.
"""

from __future__ import annotations

import re

from ..ground.host import Host, matching
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Mapping, Tuple


# A file in an earlier directory hides those of its name in the later ones. /lib is a link to /usr/lib, except
# on old systems.
DIRECTORIES = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
SUFFIXES = (".conf", ".alias")
# Takes the place of a file for words of the kernel command line.
COMMAND_LINE = "the kernel command line"
# A shell command that loads nothing and therefore keeps a module out, unless a later one of it loads something.
_NOTHING = r"(?:\S*/)?(?:true|false|:|exit|echo|logger|printf)\b|:"
_LOADS = r"\b(?:modprobe|insmod)\b"
# Drivers that take a device for a virtual machine.
STUBS = ("vfio_pci", "pci_stub")


class ModprobeLine(NamedTuple):
    """One line in effect. `name` has underscores where modprobe puts them; `rest` is what follows it."""

    file: str
    line: int
    # alias, blacklist, install, options, remove, softdep; module_blacklist: the kernel's own parameter
    command: str
    name: str
    rest: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ModprobeLine:
        """Return the line of a JSON object."""
        return cls(row["file"], row["line"], row["command"], row["name"], row.get("rest", ""))

    def where(self) -> str:
        """Return file and line for a person."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def text(self) -> str:
        """Return the line as it takes effect."""
        if self.file == COMMAND_LINE:
            words = {
                "blacklist": f"modprobe.blacklist={self.name}",
                "module_blacklist": f"module_blacklist={self.name}",
            }
            return words.get(self.command, f"{self.name}.{self.rest}")
        return f"{self.command} {self.name} {self.rest}".rstrip()


def underscored(name: str) -> str:
    """Return the kernel's spelling of a module's name or pattern. modprobe takes both, and leaves sets as they are."""
    if "[" not in name:
        return name.replace("-", "_")
    return re.sub(r"\[[^]]*\]|-", lambda match: "_" if match[0] == "-" else match[0], name)


def files(host: Host) -> List[str]:
    """Return the configuration files in effect, in the order in which modprobe reads them."""
    paths = [path for directory in DIRECTORIES for path in host.glob(directory, "*")]
    return [path for path in chosen(paths) if not host.is_dir(path)]


def chosen(paths: Iterable[str]) -> List[str]:
    """Return those of the paths in :data:`DIRECTORIES` that are in effect, in order."""
    by_name: Dict[str, str] = {}
    for path in sorted(paths, key=lambda path: DIRECTORIES.index(path.rpartition("/")[0])):
        name = path.rpartition("/")[2]
        if name.endswith(SUFFIXES) and not name.startswith("."):
            by_name.setdefault(name, path)
    return [by_name[name] for name in sorted(by_name)]


def read(host: Host, command_line: str = "") -> List[ModprobeLine]:
    """Return all lines in effect. Those of the kernel command line come last, as in modprobe.

    Raises OSError for a file that cannot be read.
    """
    lines = [line for name in files(host) for line in parsed(name, host.text(name) or "")]
    return lines + words(command_line)


def parsed(file: str, text: str) -> List[ModprobeLine]:
    """Return the lines of one file. A line that modprobe ignores with a warning is left out."""
    lines = []
    for number, line in _logical(text):
        parts = re.split(r"[ \t]+", line.strip(" \t"), maxsplit=2)
        if line.startswith("#") or len(parts) < 2:
            continue
        command, name, rest = parts[0], underscored(parts[1]), "".join(parts[2:])
        if command == "blacklist":
            lines.append(ModprobeLine(file, number, command, name))
        elif command in ("install", "remove", "options", "alias", "softdep") and rest:
            target = rest.rstrip()
            if command == "alias":
                target = underscored(re.split(r"[ \t]", rest)[0])
            lines.append(ModprobeLine(file, number, command, name, target))
    return lines


def _logical(text: str) -> Iterator[Tuple[int, str]]:
    """Yield the lines with the number of their first one. A backslash continues a line, also a comment."""
    begun, collected = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        begun = begun or number
        if line.endswith("\\"):
            collected += line[:-1]
            continue
        whole = collected + line
        yield begun, re.sub(r"\\(.)", r"\1", whole) if "\\" in whole else whole
        begun, collected = 0, ""
    if begun:
        yield begun, collected


def words(command_line: str) -> List[ModprobeLine]:
    """Return the words of the kernel command line about modules.

    modprobe does not take a hyphen for an underscore in `modprobe.blacklist`, and the kernel does not in
    `module_blacklist`: such a word has no effect on a module with an underscore in its name.
    """
    lines = []
    for word in re.findall(r'(?:[^\s"]|"[^"]*")+', command_line):
        # A quote may precede the whole word or before its value.
        key, equals, value = (word[1:-1] if word[:1] == '"' else word).partition("=")
        if not equals:
            continue
        module, dot, parameter = key.partition(".")
        if key in ("modprobe.blacklist", "module_blacklist"):
            command = "blacklist" if dot else key
            lines += [
                ModprobeLine(COMMAND_LINE, 0, command, name)
                for name in value.strip('"').split(",")
                if name
            ]
        elif dot and module and parameter:
            name, option = underscored(module), f"{parameter}={value}"
            lines.append(ModprobeLine(COMMAND_LINE, 0, "options", name, option))
    return lines


def settled(
    host: Host, lines: Iterable[ModprobeLine], names: Iterable[str], release: str
) -> List[ModprobeLine]:
    """Return the lines with only those softdeps that cancel an `install` line of these modules.

    modprobe ignores `install` for a module of which a softdep names a module that exists. A module brings
    softdeps of its own, which depmod collects. The first softdep of a name counts.
    """
    rows = list(lines)
    rest = [line for line in rows if line.command != "softdep"]
    asked = [
        name
        for name in sorted({underscored(name) for name in names})
        if any(line.command == "install" and matching([name], line.name) for line in rows)
    ]
    if not asked:
        return rest
    where = f"/lib/modules/{release}/modules"
    rows += parsed(f"{where}.softdep", host.text(f"{where}.softdep") or "")
    listed = "".join(host.text(f"{where}.{kind}") or "" for kind in ("dep", "builtin"))
    there = {underscored(name) for name in re.findall(r"([^/\s:]+)\.ko", listed)}
    for name in asked:
        first = [row for row in rows if row.command == "softdep" and matching([name], row.name)][:1]
        rest += [row for row in first if there & set(_depends(row.rest))]
    return rest


def _depends(softdep: str) -> List[str]:
    """Return the modules that a softdep names. Words before `pre:` or `post:` have no effect."""
    words = softdep.split()
    begin = next((n for n, word in enumerate(words) if word in ("pre:", "post:")), len(words))
    return [underscored(word) for word in words[begin:]]


def against(
    lines: Iterable[ModprobeLine], names: Iterable[str], by_alias: bool = True
) -> List[ModprobeLine]:
    """Return the lines that keep a module from being loaded.

    :param lines: see :func:`settled`: each softdep cancels the `install` line of its module.
    :param names: the module's names: that of its file, and the one that it has inside the kernel.
    :param by_alias: udev and systemd-modules-load load it, which `blacklist` keeps from it. Programs that
        run `modprobe NAME` do not obey that line.
    """
    wanted = {underscored(name) for name in names}
    rows, obstacles = list(lines), []
    for name in sorted(wanted):
        first = installs(rows, name)
        obstacles += [line for line in first if line.command == "install" and not _loads(line)]
        # All aliases of a name count.
        aliases = [line for line in rows if line.command == "alias" and matching([name], line.name)]
        if aliases and not any(line.rest in wanted for line in aliases):
            obstacles += aliases
        # A module that an alias finds obeys `blacklist`, even if the alias is its own name.
        listed = ("module_blacklist", "blacklist" if by_alias or aliases else "")
        obstacles += [line for line in rows if line.command in listed and line.name == name]
    return [line for line in rows if line in obstacles]


def _loads(line: ModprobeLine) -> bool:
    """Return whether a command may load a module."""
    command = line.rest.partition(" #")[0]
    return not re.match(_NOTHING, command) or bool(re.search(_LOADS, command))


def installs(lines: Iterable[ModprobeLine], name: str) -> List[ModprobeLine]:
    """Return the line that decides what loads a module by its name: none, its softdep or its first `install`."""
    rows = [line for line in lines if matching([underscored(name)], line.name)]
    for command in ("softdep", "install"):
        own = [line for line in rows if line.command == command][:1]
        if own:
            return own
    return []


def undoes(lines: Iterable[ModprobeLine], name: str, own: str) -> List[ModprobeLine]:
    """Return the line by which a module is loaded although `install NAME /bin/false` keeps it out.

    `own` is the file with that line, there or not yet: of two `install` lines the first one counts.
    """
    rows = [line for line in lines if line.command == "softdep" or not _later(line, own)]
    return [line for line in installs(rows, name) if line.command == "softdep" or _loads(line)]


def _later(line: ModprobeLine, own: str) -> bool:
    """Return whether modprobe reads a line after the file `own`."""
    return line.file == COMMAND_LINE or line.file.rpartition("/")[2] > own.rpartition("/")[2]


def diverts(
    lines: Iterable[ModprobeLine], names: Iterable[str], pci_ids: Iterable[str]
) -> List[ModprobeLine]:
    """Return the aliases that give devices (vendor:device) to other modules than these.

    An alias of the configuration takes the place of those that the modules bring.
    """
    wanted, ids = {underscored(name) for name in names}, {str(item).lower() for item in pci_ids}
    taken: Dict[str, List[ModprobeLine]] = {}
    for line in lines:
        form = line.command == "alias" and re.match(
            r"pci:v0000(.{4})d(?:0000(.{4})|\*)sv.*bc(03|12|\*)", line.name
        )
        if form:
            for item in ids:
                vendor, _, device = item.partition(":")
                if form[1].lower() == vendor and (form[2] or device).lower() == device:
                    taken.setdefault(item, []).append(line)
    rows = [row for own in taken.values() if not wanted & {x.rest for x in own} for row in own]
    return list(dict.fromkeys(rows))


def options(
    lines: Iterable[ModprobeLine], names: Iterable[str], wanted: Mapping[str, Any], own: str
) -> List[ModprobeLine]:
    """Return the lines that set an option of a module to another value than `wanted`, and win.

    The last setting of an option wins. `own` is the file with the wanted values, there or not yet.
    """
    spelled = {underscored(name) for name in names}
    winner = {}
    for line in lines:
        if line.command == "options" and line.name in spelled and _later(line, own):
            for word in re.findall(r'(?:[^\s"]|"[^"]*")+', line.rest):
                key, _, value = word.replace('"', "").partition("=")
                if key in wanted:
                    winner[key] = (line, value)
    conflicts = [line for key, (line, value) in winner.items() if value != str(wanted[key])]
    return list(dict.fromkeys(conflicts))


def given_away(lines: Iterable[ModprobeLine], pci_ids: Iterable[str]) -> List[ModprobeLine]:
    """Return the lines by which vfio-pci or pci-stub takes one of these devices (vendor:device)."""
    ids = {str(item).lower() for item in pci_ids}
    taken = []
    for line in lines:
        value = re.search(r"(?:^|\s)ids=(\S+)", line.rest.lower().replace('"', ""))
        if line.command != "options" or line.name not in STUBS or not value:
            continue
        # vendor:device[:subvendor[:subdevice[:class[:mask]]]], with commas between them; ffffffff is any
        for parts in (item.split(":") for item in value[1].split(",")):
            kind = parts[4].zfill(8)[2:4] if len(parts) > 4 else "03"
            every = parts[1:2] == ["ffffffff"] and kind in ("03", "12")
            mine = [item for item in ids if item == ":".join(parts[:2])]
            if mine or (every and any(item.startswith(parts[0] + ":") for item in ids)):
                taken.append(line)
                break
    return taken
