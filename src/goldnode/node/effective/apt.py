"""apt's sources, its preferences and the list of packages that unattended upgrades leave alone, as apt reads them. Reads only.

The rules are those of sources.list(5) and apt_preferences(5), which tests compare with apt. :mod:`.apt_conf` reads apt.conf.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from ..ground.host import Host, Json
from ..ground.typed import NamedTuple
from . import apt_conf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping, Tuple

    from .apt_conf import AptConfiguration

FENCE = "Unattended-Upgrade::Package-Blacklist"
PREFERENCES = "/etc/apt/preferences"
PARTS = "/etc/apt/sources.list.d"


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
    """Return the pins of one file."""
    rows: List[AptPin] = []
    for fields in stanzas(text):
        line, names = fields.get("package", (0, ""))
        pin, number = fields.get("pin", (0, ""))[1], fields.get("pin-priority", (0, ""))[1]
        priority = re.match(r"[+-]?\d+", number)
        if pin and priority:
            pin = " ".join(pin.split("\n"))
            rows += [AptPin(file, line, name, pin, int(priority[0])) for name in names.split()]
    return rows


def stanzas(text: str) -> List[Dict[str, Tuple[int, str]]]:
    """Return the stanzas of a file: name of a field in lower case -> its line, and its value with folded lines joined by line ends.

    As apt 2.6.2 and 3.3.3 read them: only an empty line ends a stanza. A line with a space, and a comment, do not, so that two stanzas
    become one. Of a field that is given twice, the last value counts.
    """
    rows: List[Dict[str, Tuple[int, str]]] = []
    fields: Dict[str, Tuple[int, str]] = {}
    last = ""
    for number, raw in enumerate([*text.split("\n"), ""], 1):
        line = raw.rstrip("\r")
        if line.startswith("#"):
            continue
        if not line:
            rows += [fields] if fields else []
            fields, last = {}, ""
        elif line[0] in " \t":
            if last:
                fields[last] = (fields[last][0], f"{fields[last][1]}\n{line.strip()}")
        elif ":" in line:
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields[last] = (number, value.strip())
    return rows


# Options that apt wants equal in all entries of a URI and suite, beside Signed-By: `Conflicting values set for option` otherwise
# (apt 2.6.2 and 3.3.3, tried).
OF_RELEASE = (
    "Trusted",
    "Check-Valid-Until",
    "Check-Date",
    "Valid-Until-Min",
    "Valid-Until-Max",
    "Date-Max-Future",
)
_DEB_LINE = r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)"
_OFF = ("no", "false", "without", "off", "disable", "0")


def sources(host: Host) -> List[Json]:
    """Return one row per URI and suite of every enabled binary source of apt, in both formats.

    Keys: file, line, uri (without a slash at its end), suite, components, signed_by, release (values of OF_RELEASE), architectures
    (None: those of the machine). Neither quotes nor variables of a line are resolved.
    """
    rows: List[Json] = []
    for name in ["/etc/apt/sources.list", *apt_conf.parts(host, PARTS, "list")]:
        if not name.endswith(
            ".list"
        ):  # a name without an ending is read in other directories of apt
            continue
        for number, line in enumerate((host.text(name) or "").splitlines(), 1):
            source = re.match(_DEB_LINE, line)
            if source:
                words = (source[1] or "").split()
                options = dict(word.split("=", 1) for word in words if "=" in word)
                options = {"arch": "", **{key.lower(): value for key, value in options.items()}}
                options["architectures"] = options["arch"].replace(",", " ")
                rows.append(_source((name, number), source[2], source[3], source[4], options))
    for name in apt_conf.parts(host, PARTS, "sources"):
        for stanza in stanzas(host.text(name) or "") if name.endswith(".sources") else ():
            fields = {key: value for key, (_, value) in stanza.items()}
            off = fields.get("enabled", "yes").lower() in _OFF
            if off or "deb" not in fields.get("types", "").split():
                continue
            number = min(line for line, _ in stanza.values())
            rows += [
                _source((name, number), uri, suite, fields.get("components", ""), fields)
                for uri in fields.get("uris", "").split()
                for suite in fields.get("suites", "").split()
            ]
    return rows


def _source(
    where: Tuple[str, int], uri: str, suite: str, components: str, options: Mapping[str, str]
) -> Json:
    return {
        "file": where[0],
        "line": where[1],
        "uri": uri.rstrip("/"),
        "suite": suite,
        "components": components.split(),
        "signed_by": options.get("signed-by"),
        "release": {key: options[key.lower()] for key in OF_RELEASE if key.lower() in options},
        "architectures": options.get("architectures", "").split() or None,
    }


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
