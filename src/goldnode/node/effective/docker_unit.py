"""The command line of dockerd as its unit will start it, and the keys of daemon.json that it contradicts.

dockerd does not start if a setting is both a flag and a key of daemon.json, whatever the values.
`runtimes` is the exception: both lists are used. Names and rules are those of `dockerd --validate`
26.1, which the tests run; 20.10 names the same keys.
"""

from __future__ import annotations

import re

from ..ground.host import Host
from ..ground.typed import NamedTuple
from .systemd import UnitTree, logical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping


class Word(NamedTuple):
    """A word of the command line, and the file and line that has it."""

    text: str
    where: str


UNIT = "docker.service"
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
    commands: List[Word] = []
    files: List[str] = []
    environment: Dict[str, Word] = {}
    for row in UnitTree(host).settings(UNIT):
        where = f"{row.file}:{row.line}"
        if row.section != "Service":
            continue
        if row.key == "ExecStart":
            commands = [*commands, Word(row.value, where)] if row.value else []
        elif row.key == "EnvironmentFile":
            files = [*files, row.value.lstrip("-")] if row.value else []
        elif row.key == "Environment":
            pairs = (item.partition("=") for item in _split(row.value))
            given = {name: Word(text, where) for name, _, text in pairs}
            environment = {**environment, **given} if row.value else {}
    for file in files:  # they override Environment=, wherever they are named
        for number, line in logical(host.text(file) or ""):
            name, equals, text = line.partition("=")
            unquoted = _split(text)
            if equals:
                value = unquoted[0] if unquoted else ""
                environment[name.strip()] = Word(value, f"{file}:{number}")
    words: List[Word] = []
    for command in commands[-1:]:
        for text in _split(command.text):
            variable = re.fullmatch(r"\$\{?(\w+)\}?", text)
            if variable is None:
                words.append(Word(text, command.where))
            elif variable[1] in environment:
                given_at = environment[variable[1]]
                words += [Word(part, given_at.where) for part in given_at.text.split()]
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


def _split(text: str) -> List[str]:
    import shlex  # start-up time: most nodes have no such unit

    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.split()
