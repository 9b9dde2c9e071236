"""The record: what goldnode did to things that are not its own, so that it can be undone. Written before the deed, kept on the node.

A JSON mapping in :data:`observe.RECORD`; a key that is missing says that nothing of the kind was done.

first: how the node was when goldnode came: {holds: [package], kernel: the release that ran or None, directories: [path],
sources: [{file, uri, suite}]}. Missing on a node that an older goldnode has made: then who brought what is not known.
held, was_held: packages that goldnode holds, and those it has let go again.
brought: packages that were not there before, dependencies included. was: package -> {from, to}: version before goldnode's first change
of it, and the one goldnode gave it last. automatic: packages apt held for a dependency before goldnode named them.
residual: packages of which configuration files alone were there. removed: package -> version, of what goldnode took away.
commented: files in which goldnode has commented lines out. merged: path -> {before, after}: texts of a file of somebody else's that
goldnode has added to (before: None where there was no file). links: path -> {before, after}: what such a link led to.
parts: path -> part of the class that wrote it (:data:`.model.PARTS`), by which a removal takes it away.
"""

from __future__ import annotations

import difflib
import json
import os
import platform
import re

from ..host import Host, Json, is_container
from .observe import LINKS, MANAGED, RECORD, apt_sources, automatic, load_json, managed_files, packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional, Set

    from .model import Action


# Places where goldnode may make a directory; those that were there before stay when they are empty.
_BESIDE = (
    {directory for directory, _ in MANAGED} | {os.path.dirname(name) for name in LINKS} | {"/etc/docker"}
)
PLACES = tuple(sorted(_BESIDE | {os.path.dirname(name) for name in _BESIDE}))


def read(host: Host) -> Json:
    """The record; empty when there is none."""
    found = load_json(host, RECORD)
    return found if isinstance(found, dict) else {}


def write(host: Host, record: Mapping[str, Any]) -> None:
    """Keep the record, atomically."""
    host.write(RECORD, json.dumps(record, indent=1, sort_keys=True).encode())


def first_contact(host: Host) -> None:
    """Note how the node was, before the first change ever. Where goldnode has been before, it is too late to know."""
    if host.exists(RECORD) or managed_files(host):
        return
    sources = [{key: row[key] for key in ("file", "uri", "suite")} for row in apt_sources(host)]
    first = {
        "holds": sorted(name for name, package in packages(host).items() if package["hold"]),
        "kernel": platform.release() if host.live and not is_container(host) else None,
        "directories": [name for name in PLACES if host.is_dir(name)],
        "sources": sources,
    }
    write(host, {"first": first})


def before_transaction(host: Host, simulated: str, named: Iterable[str]) -> None:
    """Note what an apt transaction is about to do to packages, from its simulation. `named`: packages given to apt by name, which it
    marks as asked for."""
    record = read(host)
    states = residual_states(host)
    extended = automatic(host.text("/var/lib/apt/extended_states") or "")
    write(host, extended_record(record, simulated, named, packages(host), extended, states))


def extended_record(
    record: Mapping[str, Any],
    simulated: str,
    named: Iterable[str],
    have: Mapping[str, Json],
    auto: Iterable[str],
    residual: Iterable[str],
) -> Json:
    """The record with the transaction added whose simulation is given. Pure."""
    here = {
        name for name, package in have.items() if package["state"] not in ("config-files", "not-installed")
    }
    # What an earlier run meant to bring and never did is nobody's.
    brought: Set[str] = set(record.get("brought", ())) & (here | set(residual))
    was: Dict[str, Dict[str, str]] = dict(record.get("was", {}))
    removed: Dict[str, str] = dict(record.get("removed", {}))
    left: Set[str] = set(record.get("residual", ()))
    for name, version in re.findall(r"^Inst (\S+) (?:\[[^\]]*\] )?\((\S+)", simulated, re.MULTILINE):
        removed.pop(name, None)
        if name not in here:
            brought.add(name)
            left |= {name} & set(residual)
        elif name not in brought and have[name]["version"] != version:
            was[name] = {
                "from": was[name]["from"] if name in was else str(have[name]["version"]),
                "to": version,
            }
    for name in removed_by(simulated):
        if name not in brought and name in have:
            removed[name] = was.pop(name, {}).get("from", str(have[name]["version"]))
    marks = set(record.get("automatic", ())) | ((set(named) & set(auto)) - brought)
    return {
        **record,
        "brought": sorted(brought),
        "was": was,
        "removed": removed,
        "residual": sorted(left),
        "automatic": sorted(marks),
    }


def residual_states(host: Host) -> List[str]:
    """Packages of which configuration files alone are there."""
    fields = "${Package}\t${db:Status-Status}\n"
    found = Host("/").run("dpkg-query", f"--admindir={host.located('/var/lib/dpkg')}", "-W", "-f", fields)
    rows = [line.split("\t") for line in found.out.splitlines()]
    return sorted({row[0] for row in rows if row[1] == "config-files"})


def unmerge(before: Any, after: Any, now: Any) -> Any:
    """What `now` is without the change from `before` to `after`: what goldnode gave and nobody has changed since goes back, all else stays.

    Three JSON values; a mapping is taken key by key. None stands for a key (or file) that is not there.
    """
    if isinstance(after, dict) and isinstance(now, dict):
        old = before if isinstance(before, dict) else {}
        result = {}
        for key in [*now, *(key for key in old if key not in now and key not in after)]:
            value = unmerge(old.get(key), after.get(key), now.get(key))
            if value is not None:
                result[key] = value
        return result if result or isinstance(before, dict) else None
    if isinstance(after, list) and isinstance(now, list) and now != after:
        old_items = before if isinstance(before, list) else []
        added = [item for item in after if item not in old_items]
        kept = [item for item in now if item not in added]
        return kept if kept or isinstance(before, list) else None
    return before if now == after else now


def before_files(host: Host, actions: Iterable[Action]) -> None:
    """Record which part of the class writes which path, before it does."""
    parts = {action.target: action.part for action in actions if action.target.startswith("/")}
    record = read(host)
    if parts.items() - record.get("parts", {}).items():
        record["parts"] = {**record.get("parts", {}), **parts}
        write(host, record)


def before_merge(host: Host, name: str, content: str) -> None:
    """Note that a file of somebody else's is about to get this content, which has goldnode's settings merged into it."""
    record = read(host)
    now = host.text(name)
    before = now
    known = record.setdefault("merged", {}).get(name)
    if known and now is not None:
        try:
            before = unmerged_text(
                name, known["before"], known["after"], now
            )  # what has become of it without goldnode
        except ValueError:
            before = known["before"]
    elif known:
        before = None
    record["merged"][name] = {"before": before, "after": content}
    write(host, record)


def before_link(host: Host, name: str, target: str) -> None:
    """Note where a link that is not goldnode's own leads, before it is made to lead elsewhere."""
    record = read(host)
    known = record.setdefault("links", {})
    have = os.readlink(host.located(name)) if host.is_link(name) else None
    known[name] = {"before": known[name]["before"] if name in known else have, "after": target}
    write(host, record)


def unmerged_text(name: str, before: Optional[str], after: str, now: str) -> Optional[str]:
    """The text of a file without goldnode's settings; None: the file goes, since nothing else is in it. Untouched since: as it was.

    JSON is taken key by key, any other text line by line.

    :raises ValueError: when one of the texts of a file that is called JSON is not JSON.
    """
    if now == after:
        return before
    if not name.endswith(".json"):
        return unmerged_lines((before or "").splitlines(True), after.splitlines(True), now.splitlines(True))
    value = _json(now)
    result = unmerge(None if before is None else _json(before), _json(after), value)
    if result is None or result == value:
        return None if result is None else now
    indent = re.search(r"^([ \t]+)\S", now, re.MULTILINE)
    return json.dumps(result, indent=indent.group(1) if indent else 4, ensure_ascii=False) + "\n"


def _json(text: str) -> Any:
    """A JSON value; an empty file, which docker takes for an empty object, is one."""
    return json.loads(text) if text.strip() else {}


def removed_by(simulated: str) -> Set[str]:
    """The packages that an apt transaction takes away, from its simulation."""
    return set(re.findall(r"^(?:Remv|Purg) (\S+)", simulated, re.MULTILINE))


def forget_versions(host: Host, names: Iterable[str]) -> None:
    """Earlier versions of packages are owed no more: apt cannot put them back."""
    record = read(host)
    record["was"] = {name: row for name, row in record.get("was", {}).items() if name not in set(names)}
    write(host, record)


def unmerged_lines(before: List[str], after: List[str], now: List[str]) -> str:
    """`now` with each run of lines that goldnode put in given back for what was there, where somebody has not changed it since."""
    result = list(now)
    start = 0
    for kind, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(
        None, before, after, False
    ).get_opcodes():
        ours = after[new_from:new_to]
        if kind == "equal" or not ours:
            continue
        places = [
            at for at in range(start, len(result) - len(ours) + 1) if result[at : at + len(ours)] == ours
        ]
        if places:
            result[places[0] : places[0] + len(ours)] = before[old_from:old_to]
            start = places[0] + old_to - old_from
    return "".join(result)
