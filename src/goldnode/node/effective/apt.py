"""apt's preferences and the list of packages that unattended upgrades leave alone, as apt reads them. Reads only.

The rules are those of apt_preferences(5) and apt.conf(5); tests compare them with `apt-cache policy` and
`apt-config dump`.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from ..ground.host import Host
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Tuple

FENCE = "Unattended-Upgrade::Package-Blacklist"
PREFERENCES, CONFIGURATION = "/etc/apt/preferences", "/etc/apt/apt.conf"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


class AptPin(NamedTuple):
    """One word of a stanza's `Package`, with the stanza's pin (`version 535.*`) and priority."""

    file: str
    line: int
    package: str
    pin: str
    priority: int


def parts(host: Host, directory: str, ending: str) -> List[str]:
    """Return the files of a directory that apt reads. It ignores names with another ending or character."""
    rows = []
    for path in host.glob(directory, "*"):
        name = path.rpartition("/")[2]
        fits = "." not in name or name.endswith(f".{ending}")
        if _NAME.fullmatch(name) and fits and not host.is_dir(path):
            rows.append(path)
    return rows


def pins(host: Host) -> List[AptPin]:
    """Return the pins of all preferences in apt's order. A stanza that apt refuses or ignores is left out."""
    files = [PREFERENCES, *parts(host, f"{PREFERENCES}.d", "pref")]
    return [row for file in files for row in parsed(file, host.text(file) or "")]


def parsed(file: str, text: str) -> List[AptPin]:
    """Return the pins of one file. Lines with `#` are comments, also within a field."""
    rows: List[AptPin] = []
    fields: Dict[str, Tuple[int, str]] = {}
    last = ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            rows += _stanza(file, fields)
            fields, last = {}, ""
        elif line[0] in " \t":
            if last:
                fields[last] = (fields[last][0], f"{fields[last][1]} {line.strip()}")
        else:
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields.setdefault(last, (number, value.strip()))
    return rows


def _stanza(file: str, fields: Dict[str, Tuple[int, str]]) -> List[AptPin]:
    line, names = fields.get("package", (0, ""))
    pin, text = fields.get("pin", (0, ""))[1], fields.get("pin-priority", (0, ""))[1]
    priority = re.match(r"[+-]?\d+", text)
    if not pin or not priority:
        return []
    return [AptPin(file, line, name, pin, int(priority[0])) for name in names.split()]


def covers(pattern: str, name: str) -> bool:
    """Return whether a word of `Package` stands for a binary package: a name, a shell pattern or `/regex/`.

    A pattern of source packages (`src:`) does not show which binary packages it means.
    """
    if pattern.startswith("src:"):
        return False
    if pattern[:1] == "/" and pattern[-1:] == "/" and len(pattern) > 1:
        try:
            return bool(re.search(pattern[1:-1], name, re.IGNORECASE))
        except re.error:  # of POSIX, not of Python: nothing is known of it
            return False
    base = pattern.partition(":")[0]
    return fnmatchcase(name, base) if set(base) & set("*?[") else name == base


def agrees(pin: AptPin, versions: Iterable[str]) -> bool:
    """Return whether a pin prefers no other than these versions."""
    kind, _, wanted = pin.pin.partition(" ")
    wanted = wanted.strip()
    exact = kind.lower() == "version" and wanted not in ("", "*")
    return exact and pin.priority > 0 and all(fnmatchcase(item, wanted) for item in versions)


def cleared(host: Host, own: str) -> List[str]:
    """Return the lines, as FILE:LINE, by which a file after `own` takes back the list of packages to leave alone.

    apt reads the main file last. `#clear` deletes a scope with all below it, and is no comment.
    """
    directory, _, base = own.rpartition("/")
    files = [path for path in parts(host, directory, "conf") if path.rpartition("/")[2] > base]
    rows = []
    for file in [*files, CONFIGURATION]:
        text = host.text(file)
        if not text or "#clear" not in text:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            words = line.replace(";", " ").split()
            scopes = {word.rstrip(":").lower() for word in words[1:]}
            if words[:1] == ["#clear"] and scopes & _SCOPES:
                rows.append(f"{file}:{number}")
    return rows


def loosened(host: Host) -> List[str]:
    """Return the lines, as FILE:LINE (option), by which apt ignores holds or reads its preferences elsewhere."""
    rows = []
    for file in [*parts(host, f"{CONFIGURATION}.d", "conf"), CONFIGURATION]:
        for number, line in enumerate((host.text(file) or "").split("\n"), 1):
            match = _LOOSE.match(line)
            if match and match[2].strip("/").lower() not in _USUAL:
                rows.append(f"{file}:{number} ({match[1]})")
    return rows


# An option in either form: with all its scopes, or inside of them.
_LOOSE = re.compile(
    r"\s*(?!//|#)(?:.*[\s:{;])?(Ignore-Hold|Allow-Change-Held-Packages|Preferences(?:Parts)?)\s+"
    r"[\"']?([^\"';\s]+)",
    re.IGNORECASE,
)
# Values that change nothing: those of no (strutl.cc, StringToBool), and the defaults of the directories.
_USUAL = ("0", "no", "false", "without", "off", "disable", "preferences", "preferences.d") + (
    PREFERENCES.strip("/"),
    f"{PREFERENCES}.d".strip("/"),
)
_SCOPES = {FENCE.lower(), FENCE.partition("::")[0].lower()}
