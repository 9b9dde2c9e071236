"""Lines of others that change what a unit does, or when: drop-ins, masks, conditions, an earlier program in PATH.

goldnode changes none of them: a person wrote them. A drop-in is compared by its effect, so that further
environment, limits and ordering are no fault.
"""

from __future__ import annotations

import os
import re

from ..effective.systemd import UnitSetting, UnitTree, effective, seconds
from ..ground.host import ENVIRONMENT, PROGRAM, Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

    Effect = Tuple[UnitSetting, str]

# Targets that start goldnode's units. A mask of one keeps all of its units from starting.
TARGETS = ("multi-user.target", "timers.target", "sockets.target")
# A default target that does not start multi-user.target.
SINGLE = ("rescue.target", "emergency.target", "basic.target", "sysinit.target")
# Patterns are compiled at their use: start-up time of a check.
# A command that starts nothing. The characters before it are systemd.service(5)'s prefixes.
_NOTHING = r"[-@:+!|]*(?:\S*/)?(?:true|false|:|sleep|echo|exit)(?:\s|$)"
_FALSE = r"[@:+!|]*(?:\S*/)?false(?:\s|$)"
_OFTEN = r"minutely|(?:\*-\*-\* )?\*:0{0,2}/(?:[1-9]|10)(?::|$)"
_PATHS = ("PathExists", "PathIsDirectory", "FileNotEmpty", "PathIsSymbolicLink", "FileIsExecutable")
_SANDBOX = ("User", "DynamicUser", "RootDirectory", "RootImage", "PrivateDevices") + (
    "PrivateUsers",
    "ProtectKernelLogs",
    "ProtectSystem",
    "ProtectProc",
    "CapabilityBoundingSet",
    "DevicePolicy",
    "InaccessiblePaths",
    "ReadOnlyPaths",
)
_HARMLESS = ("", "root", "no", "false", "0", "off", "auto", "default")
# A check writes below /var and /run, which these leave as they are.
_READ_ONLY = ("yes", "true", "1", "on", "full")
SLACK = 2.5  # times the period of a timer; a verdict is valid for three
SHORTEST = 60.0  # seconds for a check on a busy node
WHEEL = b"goldnode.node.__main__"  # in a program that pip wrote
SEARCH = (("/etc/environment", "PATH"), ("/etc/login.defs", "ENV_SUPATH"))


def survey(tree: UnitTree, own: Set[str], names: Sequence[str], others: Sequence[str]) -> List[str]:
    """Return what contradicts goldnode's units, one text with file and line each.

    :param tree: the unit files of the node.
    :param own: the files that goldnode wrote.
    :param names: goldnode's units that are installed.
    :param others: units of packages that the class needs, and that start something only with their program.
    """
    host, texts = tree.host, []
    for name in names:
        path = tree.fragment(name)
        if path is not None and path not in own:
            verb = "masks" if tree.masked(path) else "takes the place of"
            texts.append(f"{tree.entry(name) or path} {verb} {name}")
            continue
        rows = tree.settings(name)
        if any(row.file not in own for row in rows):
            decisive = _changed(host, rows, own)
            texts += [f"{row.where()} {effect} {name}" for row, effect in decisive]
    for name in others:
        path = tree.fragment(name)
        if path is None:
            continue
        if tree.masked(path):
            texts.append(f"{path} masks {name}")
            continue
        rows = tree.settings(name)
        if any(row.file not in own and row.file != path for row in rows):
            effects = [*_commands(rows, path), *_conditions(host, rows, {*own, path})]
            texts += [f"{row.where()} {effect} {name}" for row, effect in effects]
    return texts + (_targets(host, tree) if names else [])


def _targets(host: Host, tree: UnitTree) -> List[str]:
    texts = []
    for name in TARGETS:
        path = tree.fragment(name)
        if path and tree.masked(path):
            texts.append(f"{path} masks {name}")
    path = tree.fragment("default.target")
    if path:
        name = os.path.basename(host.real(path))
        if name in SINGLE or tree.masked(path):
            texts.append(f"{path} makes the node boot to {name}, which starts no goldnode unit")
    return texts


def _commands(rows: Sequence[UnitSetting], fragment: str) -> Iterator[Effect]:
    """Yield the line by which a unit of a package starts nothing, or is refused by systemd."""
    settings = effective(rows)
    lines = settings.get(("Service", "ExecStart"), [])
    programs = [row for row in lines if row.value]
    others = [row for row in lines if row.file != fragment]
    if not others:
        return
    if all(re.match(_NOTHING, row.value) for row in programs):
        yield others[-1], "leaves no program to"
    # The usual mistake is a drop-in without the empty line that clears the package's own command.
    type_ = [row.value for row in settings.get(("Service", "Type"), ())]
    if len(programs) > 1 and type_ != ["oneshot"]:
        yield others[-1], "is a second program, with which systemd refuses"


def _conditions(host: Host, rows: Sequence[UnitSetting], own: Set[str]) -> Iterator[Effect]:
    """Yield conditions of others that do not hold, or of which a file alone does not show that they hold."""
    lines = effective(rows)
    for family in ("Condition", "Assert"):
        for row in lines.get(("Unit", family), ()):
            if row.file not in own and row.value and not _holds(host, row):
                yield row, "keeps systemd from starting"


def _holds(host: Host, row: UnitSetting) -> bool:
    """Return whether a condition about a path holds now; False for any other."""
    kind, value = row.key.replace("Condition", "").replace("Assert", ""), row.value.lstrip("|")
    path = value.lstrip("!").strip()
    if kind not in _PATHS or "%" in path:
        return False
    there = host.exists(path)
    if kind == "PathIsDirectory":
        there = host.is_dir(path)
    elif kind == "PathIsSymbolicLink":
        there = host.is_link(path)
    return there != value.startswith("!")


def _changed(host: Host, rows: Sequence[UnitSetting], own: Set[str]) -> Iterator[Effect]:
    """Yield the lines of others that decide, with their effect on a unit of goldnode."""
    base, now = effective([row for row in rows if row.file in own]), effective(rows)
    yield from _conditions(host, rows, own)
    for key, lines in now.items():
        foreign = [row for row in lines if row.file not in own]
        if not foreign:
            continue
        had = [(row.key, row.value) for row in base.get(key, ()) if row.value]
        have = [(row.key, row.value) for row in lines if row.value]
        effect = _effect(key, had, have, foreign[-1].value)
        if effect:
            yield foreign[0], effect


def _effect(
    key: Tuple[str, str], had: List[Tuple[str, str]], have: List[Tuple[str, str]], last: str
) -> Optional[str]:
    """Return what the lines of others do to a unit, or None if it does its work as before.

    `had` are goldnode's own settings, `have` those in effect, as (key, value).
    """
    family, lost = key[1], any(row not in have for row in had)
    if family == "ExecStart":
        return "takes the place of the program of" if lost else None
    if family in ("ExecStartPre", "ExecCondition"):
        return "ends the start of" if re.match(_FALSE, last) else None
    if family == "On":
        return "changes the times of" if lost and not _often(had, have) else None
    if family == "Listen" or key == ("Timer", "Unit"):
        return "changes the address or unit of" if lost or key[0] == "Timer" else None
    value, before = seconds(last), [value for _, value in had]
    if family in ("RandomizedDelaySec", "AccuracySec"):
        longer = value is None or value > max(60.0, *(seconds(text) or 0 for text in before), 0)
        return "delays" if longer and last not in before and last else None
    if family in ("TimeoutStartSec", "TimeoutSec"):
        return "ends too early" if value and value < SHORTEST and last not in before else None
    if family == "ProtectSystem" and last.lower() in _READ_ONLY:
        return None
    if family == "ReadWritePaths" or (family == "CapabilityBoundingSet" and had):
        # Lines of the sandbox add up, until an empty one, or one that takes away.
        taken = not last or last.startswith("~")
        return "takes the devices or rights away from" if taken else None
    if family in _SANDBOX and last.lower() not in _HARMLESS and last not in before:
        return "takes the devices or rights away from"
    return None


def _often(had: Sequence[Tuple[str, str]], have: Sequence[Tuple[str, str]]) -> bool:
    """Return whether a timer with other times than goldnode's runs about as often.

    A time after the last run counts only if something else starts the first one.
    """
    periods = [seconds(value) for key, value in had if key.startswith("OnUnit")]
    limit = SLACK * max([value for value in periods if value] or [0])
    first = any(not key.startswith("OnUnit") for key, _ in have)
    again = [seconds(value) for key, value in have if key.startswith("OnUnit")]
    regular = any(key == "OnCalendar" and re.match(_OFTEN, value) for key, value in have)
    return regular or (first and any(value and value <= limit for value in again))


def shadows(host: Host, command: str) -> List[str]:
    """Return programs of the name of `command` that a shell of root finds before it.

    A link to goldnode's program is none. In directories that are links (/sbin) are the programs of others.
    """
    paths = [ENVIRONMENT["PATH"]]
    for file, key in SEARCH:
        text = host.text(file) or ""
        match = key in text and re.search(rf"^{key}\s*=?\s*(.*)$", text, re.MULTILINE)
        if match:
            paths.append(match[1].replace("PATH=", "").strip("\"' "))
    folder, _, name = command.rpartition("/")
    earlier: Dict[str, None] = {}
    for path in paths:
        parts = path.split(":")
        if folder in parts:
            earlier.update(dict.fromkeys(parts[: parts.index(folder)]))
    programs = [f"{part}/{name}" for part in earlier if part[:1] == "/" and not host.is_link(part)]
    return [
        path for path in programs if host.exists(path) and not _is_goldnode(host, path, command)
    ]


def _is_goldnode(host: Host, path: str, command: str) -> bool:
    """Return whether a program is a link to goldnode's, or the one that its wheel installs."""
    here = host.real(path)
    if here in (host.real(PROGRAM), host.located(command)):
        return True
    with open(here, "rb") as opened:
        return WHEEL in opened.read(1024)
