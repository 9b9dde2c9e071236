"""Placeholders for values that identify one machine or one board.

Equal values get equal placeholders, numbered in order of appearance. No part of a value remains, not even a
hash. PCI addresses, models and versions stay. Keys and patterns are those of `goldnode-node capture
--anonymous`; here they apply to all files of a run together.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any, Dict, List

from goldnode.node.probe.command import FREE, INTERNET, NAMES, PATTERNS, without_init

# Elements of `nvidia-smi -q -x`, by the kind of their content.
ELEMENTS = {
    "serial": (
        "SERIAL"
    ), "uuid": "GPU", "clusteruuid": "CLUSTER", "chassis_serial_number": "SERIAL", "serial_number": "SERIAL",
    "board_serial": (
        "SERIAL"
    ), "gpu_fabric_guid": "GUID", "peer_id": "GUID", "process_name": "PROCESS", "guid": "GUID",
}  # fmt: skip
UNINFORMATIVE = (
    "",
    "n/a",
    "none",
    "unknown",
    "unknown error",
    "not supported",
    "[n/a]",
    "requested functionality has been deprecated",
    "-",
)
INTERNET6 = (
    r"(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
    r"|(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6})(?![\w:.])"
)
# Shorter values are replaced only in prose and under their own key: elsewhere a serial number "12"
# is just a number. Numbers need more digits. A value without any digit ("Default string", "To be
# filled by O.E.M.") identifies nothing, and is replaced only under its own key.
SHORT, SHORT_NUMBER = 6, 9
SERIALS = ("serial", "chassis_serial", "board_serial", "product_serial")
MADE = re.compile(
    r"(?:SERIAL|GPU|MAC|HOST|MACHINE|BOOT|GUID|CLUSTER|WWN|UUID|SERVER|PROCESS|USER)-\d+"
)


class Redactor:
    """Collector of identifying values from captures and texts, which it then removes from output."""

    def __init__(self) -> None:
        self.names: Dict[str, str] = {}  # value in lower case -> placeholder, replaced everywhere
        # The same, for values replaced only in free text and under their own keys.
        self.words: Dict[str, str] = {}
        self.keyed: Dict[str, str] = {}  # values replaced only under their own key
        self.paths: Dict[str, str] = {}
        self.counts: Dict[str, int] = {}
        self._pattern: Any = None

    # -- collecting

    def add(self, value: str, kind: str) -> None:
        """Add one value. Empty values (N/A, zeros) and placeholders are skipped."""
        value = value.strip()
        low = value.lower()
        if (
            low in UNINFORMATIVE
            or not set(low) - set("0-:x")
            or MADE.fullmatch(value)
            or low in self._all()
        ):
            return
        made = f"{kind}-{self.counts.get(kind, 0)}"
        bare = re.fullmatch(r"(?:gpu|mig)-([0-9a-f]{8}-.*)", low)
        if bare and bare[1] in self.names:
            made = self.names[bare[1]]
        else:
            self.counts[kind] = self.counts.get(kind, 0) + 1
        short = len(low) < (SHORT_NUMBER if low.isdigit() else SHORT)
        place = self.words if short else self.names
        if kind in ("HOST", "USER"):
            # A name of letters alone may also be a key or a word of a document ("gpu", "admin").
            if not re.search(r"[\d.-]", low):
                place = self.words
        elif not re.search(r"\d", low):
            place = self.keyed
        place[low] = made
        if bare:  # nvidia-smi and NVML name the same GPU with and without the prefix
            self.names[bare[1]] = made
        self._pattern = None

    def path(self, place: str, name: str) -> None:
        """Replace a directory of this machine with `name`."""
        if len(place) > 1:
            self.paths[place.rstrip("/")] = name

    def machine(self) -> None:
        """Add the names of this machine and of its user."""
        for host in (socket.gethostname(), socket.gethostname().partition(".")[0]):
            self.add(host, "HOST")
        for file in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            self.add(_line(file), "MACHINE")
        self.add(_line("/proc/sys/kernel/random/boot_id"), "BOOT")
        home = os.path.expanduser("~")
        if home not in ("/", "/root", "~"):
            self.path(home, "~")
        for key in ("USER", "LOGNAME", "SUDO_USER"):
            if os.environ.get(key, "root") != "root":
                self.add(os.environ[key], "USER")

    def learn(self, value: Any, key: str = "") -> None:
        """Add the identifying values of a JSON document."""
        if isinstance(value, dict):
            for one, item in value.items():
                self.learn(item, "text" if "fault" in value else one)
        elif isinstance(value, list):
            for item in value:
                self.learn(item, key)
        elif isinstance(value, str):
            if key in NAMES or key in SERIALS:
                self.add(value, NAMES.get(key, "SERIAL"))
            self._patterns(value, key in FREE)
            if key == "device" and ":/" in value:  # a file system on another machine, such as NFS
                self.add(value.partition(":/")[0], "SERVER")

    def learn_text(self, text: str) -> None:
        """Add the identifying values of a text, such as the output of `nvidia-smi -q -x`."""
        for name, value in re.findall(r"<([A-Za-z_]+)>([^<>]*)</\1>", text):
            if name.lower() in ELEMENTS:
                self.add(value, ELEMENTS[name.lower()])
        self._patterns(text, True)

    def _patterns(self, text: str, free: bool) -> None:
        for kind, pattern in PATTERNS:
            for name in re.findall(pattern, text):
                self.add(name, kind)
        if free:
            for name in re.findall(INTERNET, text):
                parts = name.split(".")
                # Versions such as 580.65.06.1 look similar; 0.0.0.0 and loopback identify nothing.
                is_address = all(part == str(int(part)) and int(part) < 256 for part in parts)
                if is_address and parts[0] not in ("0", "127"):
                    self.add(name, "SERVER")
            for name in re.findall(INTERNET6, text, re.I):
                self.add(name, "SERVER")

    def _all(self) -> Dict[str, str]:
        return {**self.keyed, **self.words, **self.names}

    # -- replacing

    def _known(self) -> Any:
        if self._pattern is None:
            # The longest first: a name may contain another. Without names, match nothing.
            names = sorted(self.names, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)", re.I)
        return self._pattern

    def text(self, text: str, free: bool = True) -> str:
        """Return the text without identifying values.

        `free` marks prose or a log, where the short name of a host counts too.
        """
        self._patterns(text, free)
        for place, name in sorted(self.paths.items(), key=lambda row: -len(row[0])):
            text = text.replace(place, name)
        # One pass for all names, so that no placeholder is searched for names again.
        text = self._known().sub(lambda match: self.names[match[0].lower()], text)
        if free and self.words:
            words = "|".join(re.escape(word) for word in sorted(self.words, key=len, reverse=True))
            text = re.sub(
                rf"(?<![\w-])(?:{words})(?![\w-])",
                lambda match: self.words[match[0].lower()],
                text,
                flags=re.I,
            )
        return text

    def json(self, value: Any, key: str = "") -> Any:
        """Return the document without identifying values, keys included (paths, interfaces)."""
        if isinstance(value, dict):
            return {
                self.text(str(one), False): self.json(item, "text" if "fault" in value else one)
                for one, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.json(item, key) for item in value]
        if not isinstance(value, str):
            return value
        if key == "cmdline":
            value = without_init(value)
        if (key in NAMES or key in SERIALS) and value.strip().lower() in self._all():
            return self._all()[value.strip().lower()]
        return self.text(
            value,
            key
            in (
                *FREE,
                "reason",
                "notes",
                "got",
                "expected",
                "why",
                "error",
                "evidence",
                "remedy",
                "next",
            ),
        )

    def leaks(self, text: str) -> List[str]:
        """Return the placeholders of values that a text still contains."""
        low = text.lower()
        return sorted({made for name, made in self.names.items() if name in low})

    def report(self) -> Dict[str, int]:
        """Return the number of replaced values of each kind."""
        return dict(sorted(self.counts.items()))


def _line(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.readline().strip()
    except OSError:
        return ""
