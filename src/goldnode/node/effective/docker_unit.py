"""The command line of dockerd as its unit will start it, and the keys of daemon.json that it contradicts.

dockerd does not start if a setting is both a flag and a key of daemon.json, whatever the values.
`runtimes` is the exception: both lists are used. Names and rules are those of `dockerd --validate`
26.1, which the tests run; 20.10 names the same keys.
"""

from __future__ import annotations

import re
import shlex

from ..ground.host import Host
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, Iterator, List, Mapping, Tuple


class Word(NamedTuple):
    """A word of the command line, and the file and line that has it."""

    text: str
    where: str


UNIT = "docker.service"
# Highest precedence first (systemd.unit(5)).
FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
# Keys with another name than their flag: dockerd's lists are plural in daemon.json.
KEYS = {
    "insecure-registry": "insecure-registries",
    **{
        name: f"{name}s"
        for name in (
            "authorization-plugin", "cdi-spec-dir", "default-address-pool", "default-network-opt", "default-ulimit", "dns-opt", "exec-opt",
            "feature", "host", "label", "log-opt", "node-generic-resource", "registry-mirror", "storage-opt",
        )
    },
}  # fmt: skip
SHORT = {"b": "bridge", "D": "debug", "G": "group", "H": "host", "l": "log-level", "p": "pidfile", "s": "storage-driver"}  # fmt: skip
# Given by key in both places (daemon/config of moby, skipDuplicates, skipValidateOptions).
BOTH = ("runtimes", "features")


def command_line(host: Host) -> List[Word]:
    """Return the words of ExecStart= of docker's unit with its drop-ins and its environment; [] without a unit."""
    main = next((f"{place}/{UNIT}" for place in FOLDERS if host.exists(f"{place}/{UNIT}")), None)
    drop_ins: Dict[str, str] = {}
    for place in FOLDERS:
        for path in host.glob(f"{place}/{UNIT}.d", "*.conf"):
            drop_ins.setdefault(path.rpartition("/")[2], path)
    commands: List[Word] = []
    environment: Dict[str, Word] = {}
    for path in [*([main] if main else []), *(drop_ins[name] for name in sorted(drop_ins))]:
        for key, value, where in _settings(host.text(path) or "", path):
            if key == "ExecStart":
                commands = [*commands, Word(value, where)]
                if not value:  # takes the commands before it away
                    commands = []
            elif key == "Environment":
                for item in _split(value):
                    name, _, text = item.partition("=")
                    environment[name] = Word(text, where)
            elif key == "EnvironmentFile" and value:
                file = value.lstrip("-")
                for name, text, line in _settings(host.text(file) or "", file):
                    unquoted = _split(text)
                    environment[name] = Word(unquoted[0] if unquoted else "", line)
    words: List[Word] = []
    for command in commands[-1:]:
        for text in _split(command.text):
            variable = re.fullmatch(r"\$\{?(\w+)\}?", text)
            if variable is None:
                words.append(Word(text, command.where))
            elif variable[1] in environment:
                given = environment[variable[1]]
                words += [Word(part, given.where) for part in given.text.split()]
    return words


def contradicted(words: Iterable[Word], settings: Mapping[str, object]) -> Dict[str, str]:
    """Return the keys of daemon.json that are flags too: key -> file and line of the flag."""
    result: Dict[str, str] = {}
    for word in words:
        if word.text.startswith("--"):
            name = word.text[2:].partition("=")[0]
        elif word.text[:1] == "-":
            name = SHORT.get(word.text[1:2], "")
        else:
            continue
        key = KEYS.get(name, name)
        if key in settings and key not in BOTH:
            result.setdefault(key, word.where)
    return result


def _settings(text: str, path: str) -> Iterator[Tuple[str, str, str]]:
    number, lines = 0, text.splitlines()
    while number < len(lines):
        began, line = number + 1, lines[number].strip()
        while line.endswith("\\") and number + 1 < len(lines):
            number += 1
            line = f"{line[:-1]} {lines[number].strip()}"
        number += 1
        key, equals, value = line.partition("=")
        if equals and line[0] not in "#;":
            yield key.strip(), value.strip(), f"{path}:{began}"


def _split(text: str) -> List[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.split()
