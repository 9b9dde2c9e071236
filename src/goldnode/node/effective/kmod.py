"""Configuration of modprobe as modprobe reads it: modprobe.d(5) and the kernel command line. Reads only.

The rules are those of kmod 30, which tests/unit/node/effective/test_kmod.py runs, and of 34.2, where the same cases gave the same results but
one: it does not read files named *.alias any more. Lines in such a file are taken as if it did.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..ground.host import Host, matching

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
# A shell command that loads nothing and therefore keeps a module out.
_NOTHING = re.compile(r"(?:\S*/)?(?:true|false|:|exit|echo|logger|printf)\b|:")


class ModprobeLine(NamedTuple):
    """One line in effect. `name` has underscores where modprobe puts them; `rest` is what follows it."""

    file: str
    line: int
    command: str  # alias, blacklist, install, options; module_blacklist: the kernel's own parameter
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
    return re.sub(r"\[[^]]*\]|-", lambda match: "_" if match[0] == "-" else match[0], name)


def files(host: Host) -> List[str]:
    """Return the configuration files in effect, in the order in which modprobe reads them."""
    by_name: Dict[str, str] = {}
    for directory in DIRECTORIES:
        for path in host.glob(directory, "*"):
            name = path.rpartition("/")[2]
            if name.endswith(SUFFIXES) and not name.startswith(".") and not host.is_dir(path):
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
        elif command in ("install", "options", "alias") and rest:
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
        yield begun, re.sub(r"\\(.)", r"\1", collected + line)
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


def against(
    lines: Iterable[ModprobeLine], names: Iterable[str], by_alias: bool = True
) -> List[ModprobeLine]:
    """Return the lines that keep a module from being loaded.

    :param names: the module's names: that of its file, and the one that it has inside the kernel.
    :param by_alias: udev and systemd-modules-load load it, which `blacklist` keeps from it. Programs that
        run `modprobe NAME` do not obey that line.
    """
    wanted = {underscored(name) for name in names}
    rows, obstacles = list(lines), []
    for line in rows:
        listed = line.command == "module_blacklist" or (line.command == "blacklist" and by_alias)
        if listed and line.name in wanted:
            obstacles.append(line)
    for name in sorted(wanted):
        # The first `install` line of a name counts. All aliases of a name do.
        first = [line for line in rows if line.command == "install" and line.name == name][:1]
        obstacles += [line for line in first if _NOTHING.match(line.rest)]
        aliases = [line for line in rows if line.command == "alias" and matching([name], line.name)]
        if aliases and not any(line.rest in wanted for line in aliases):
            obstacles += aliases
    return [line for line in rows if line in obstacles]


def options(
    lines: Iterable[ModprobeLine], names: Iterable[str], wanted: Mapping[str, Any], own: str
) -> List[ModprobeLine]:
    """Return the lines that set an option of a module to another value than `wanted`, and win.

    The last setting of an option wins. `own` is the file with the wanted values, there or not yet.
    """
    spelled = {underscored(name) for name in names}
    winner = {}
    for line in lines:
        later = line.file == COMMAND_LINE or line.file.rpartition("/")[2] > own.rpartition("/")[2]
        if line.command == "options" and line.name in spelled and later:
            for word in re.findall(r'(?:[^\s"]|"[^"]*")+', line.rest):
                key, _, value = word.replace('"', "").partition("=")
                if key in wanted:
                    winner[key] = (line, value)
    conflicts = [line for key, (line, value) in winner.items() if value != str(wanted[key])]
    return list(dict.fromkeys(conflicts))


def given_away(lines: Iterable[ModprobeLine], pci_ids: Iterable[str]) -> List[ModprobeLine]:
    """Return the lines by which vfio-pci takes one of these devices (vendor:device)."""
    ids = {str(item).lower() for item in pci_ids}
    taken = []
    for line in lines:
        value = re.search(r"(?:^|\s)ids=(\S+)", line.rest.lower().replace('"', ""))
        if line.command != "options" or line.name != "vfio_pci" or not value:
            continue
        # vendor:device[:subvendor[:subdevice[:class[:mask]]]], with commas between them
        if ids & {":".join(i.split(":")[:2]) for i in value[1].split(",")}:
            taken.append(line)
    return taken
