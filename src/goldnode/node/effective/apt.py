"""apt's preferences and the list of packages that unattended upgrades leave alone, as apt reads them. Reads only.

The rules are those of apt_preferences(5), which tests compare with `apt-cache policy`. :mod:`.apt_conf` reads apt.conf.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from ..ground.host import Host
from ..ground.typed import NamedTuple
from . import apt_conf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Tuple

    from .apt_conf import AptConfiguration

FENCE = "Unattended-Upgrade::Package-Blacklist"
PREFERENCES = "/etc/apt/preferences"


class AptPin(NamedTuple):
    """One word of a stanza's `Package`, with the stanza's pin (`version 535.*`) and priority."""

    file: str
    line: int
    package: str
    pin: str
    priority: int


def pins(host: Host) -> List[AptPin]:
    """Return the pins of all preferences in apt's order. A stanza that apt refuses or ignores is left out."""
    files = [PREFERENCES, *apt_conf.parts(host, f"{PREFERENCES}.d", "pref")]
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


def cleared(configuration: AptConfiguration, own: str) -> List[str]:
    """Return the lines, as FILE:LINE, by which the list of packages to leave alone loses entries of the file `own`."""
    scope = f"{FENCE}::".lower()
    rows = {
        clearing.where: None
        for clearing in configuration.clearings
        if clearing.setting.file == own and clearing.setting.name.lower().startswith(scope)
    }
    return list(rows)


def loosened(configuration: AptConfiguration) -> List[str]:
    """Return the lines, as FILE:LINE (option), by which apt ignores holds or reads its preferences elsewhere."""
    rows = []
    for name in _LOOSE:
        setting = configuration.find(name)
        if setting is not None and configuration.truth(name):
            rows.append(f"{setting.where} ({setting.name})")
    return rows + apt_conf.moved(configuration, _PLACES)


# With --force-yes, too, apt changes packages on hold.
_LOOSE = ("APT::Ignore-Hold", "APT::Get::Allow-Change-Held-Packages", "APT::Get::Force-Yes")
_PLACES = {
    "Dir::Etc::Preferences": PREFERENCES,
    "Dir::Etc::PreferencesParts": f"{PREFERENCES}.d",
}
