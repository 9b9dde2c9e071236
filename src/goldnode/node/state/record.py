"""The record of changes to things that goldnode does not own, so that a removal can undo them.

It is stored on the node and written before each change. It is a JSON mapping in
:data:`observe.RECORD`; a missing key means that nothing of that kind was done.

* first: the state of the node before goldnode: {holds: [package], kernel: the running release or None,
  directories: [path], sources: [{file, uri, suite}]}. It is missing on a node that an older goldnode set up;
  then the origin of packages is unknown.
* held, was_held: packages that goldnode holds, and those that it has released again.
* brought: packages that goldnode installed, including dependencies.
* was: package -> {from, to}: the version before goldnode's first change, and the version that it set last.
* automatic: packages that apt had marked as dependencies before goldnode requested them by name.
* residual: packages of which only configuration files existed.
* removed: package -> version of packages that goldnode removed.
* commented: files in which goldnode has commented out lines.
* merged: path -> {before, after}: texts of a foreign file that goldnode has added to
  (before: None for a new file).
* links: path -> {before, after}: targets of a foreign link that goldnode has changed.
"""

from __future__ import annotations

import difflib
import json
import os
import platform
import re

from ..effective import apt as apt_effective
from ..ground.host import Host, Json, is_container
from ..ground.json_lines import as_dict, as_list
from ..ground.optional import optional
from .observe import (
    LINKS,
    MANAGED,
    RECORD,
    automatic,
    load_json,
    managed_files,
    packages,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional, Set

    from .model import Action


# Directories that goldnode may create. Those that existed before goldnode stay even when they are empty.
_DIRECTORIES = (
    {directory for directory, _ in MANAGED}
    | {os.path.dirname(name) for name in LINKS}
    | {"/etc/docker"}
)
PLACES = tuple(sorted(_DIRECTORIES | {os.path.dirname(name) for name in _DIRECTORIES}))


def read(host: Host) -> Json:
    """Return the record, or an empty mapping."""
    return as_dict(load_json(host, RECORD))


def write(host: Host, record: Mapping[str, Any]) -> None:
    """Write the record atomically."""
    host.write(RECORD, json.dumps(record, indent=1, sort_keys=True).encode())


def first_contact(host: Host) -> None:
    """Record the original state of the node, before the first change ever.

    Does nothing if goldnode has changed the node before: the original state is then lost.
    """
    if host.exists(RECORD) or managed_files(host):
        return
    sources = [
        {key: row[key] for key in ("file", "uri", "suite")} for row in apt_effective.sources(host)
    ]
    first = {
        "holds": sorted(name for name, package in packages(host).items() if package["hold"]),
        "kernel": platform.release() if host.live and not is_container(host) else None,
        "directories": [name for name in PLACES if host.is_dir(name)],
        "sources": sources,
    }
    write(host, {"first": first})


def before_transaction(host: Host, simulated: str, named: Iterable[str]) -> None:
    """Record the package changes of an apt transaction from its simulation.

    `named` are the packages that apt is given by name. apt marks those as manually installed.
    """
    record = read(host)
    states = residual_states(host)
    extended = automatic(host.text("/var/lib/apt/extended_states") or "")
    write(
        host,
        extended_record(
            record,
            simulated=simulated,
            named=named,
            have=packages(host),
            auto=extended,
            residual=states,
        ),
    )


def extended_record(
    record: Mapping[str, Any],
    simulated: str,
    named: Iterable[str],
    have: Mapping[str, Json],
    auto: Iterable[str],
    *,
    residual: Iterable[str],
) -> Json:
    """Return the record with a simulated transaction added. Pure."""
    here = {
        name
        for name, package in have.items()
        if package["state"] not in ("config-files", "not-installed")
    }
    # An earlier run may have been interrupted before it installed these.
    installed: Set[str] = set(record.get("brought", ())) & (here | set(residual))
    was: Dict[str, Dict[str, str]] = dict(record.get("was", {}))
    removed: Dict[str, str] = dict(record.get("removed", {}))
    left: Set[str] = set(record.get("residual", ()))
    for name, version in re.findall(
        r"^Inst (\S+) (?:\[[^\]]*\] )?\((\S+)", simulated, re.MULTILINE
    ):
        removed.pop(name, None)
        if name not in here:
            installed.add(name)
            left |= {name} & set(residual)
        elif name not in installed and have[name]["version"] != version:
            # Over several updates, `from` stays the version before goldnode.
            was[name] = {
                "from": was[name]["from"] if name in was else str(have[name]["version"]),
                "to": version,
            }
    for name in removed_by(simulated):
        # A package that goldnode itself installed needs no restoring.
        if name not in installed and name in have:
            removed[name] = was.pop(name, {}).get("from", str(have[name]["version"]))
    marks = set(record.get("automatic", ())) | ((set(named) & set(auto)) - installed)
    # apt marks packages that are requested by name as manual; remember those that were automatic.
    return {
        **record,
        "brought": sorted(installed),
        "was": was,
        "removed": removed,
        "residual": sorted(left),
        "automatic": sorted(marks),
    }


def residual_states(host: Host) -> List[str]:
    """Return the packages of which only configuration files are left."""
    fields = "${Package}\t${db:Status-Status}\n"
    reported = Host("/").run(
        "dpkg-query", f"--admindir={host.located('/var/lib/dpkg')}", "-W", "-f", fields
    )
    rows = [line.split("\t") for line in reported.out.splitlines()]
    return sorted({row[0] for row in rows if row[1] == "config-files"})


def unmerge(before: Any, after: Any, now: Any) -> Any:
    """Return `now` without the change from `before` to `after`.

    Values that goldnode set and that are unchanged since are restored; everything else stays. All
    three are JSON values, and mappings are handled key by key. None means that the key (or file)
    does not exist.
    """
    if isinstance(after, dict) and isinstance(now, dict):
        old = as_dict(before)
        result = {}
        for key in [*now, *(key for key in old if key not in now and key not in after)]:
            value = unmerge(old.get(key), after.get(key), now.get(key))
            if value is not None:
                result[key] = value
        return result if result or isinstance(before, dict) else None
    # A list that changed since: remove only the items that goldnode added.
    if isinstance(after, list) and isinstance(now, list) and now != after:
        old_items = as_list(before)
        added = [item for item in after if item not in old_items]
        remaining = [item for item in now if item not in added]
        return remaining if remaining or isinstance(before, list) else None
    return before if now == after else now


def before_files(host: Host, actions: Iterable[Action]) -> None:
    """Record which part of the class writes which path, before it does."""
    parts = {action.target: action.part for action in actions if action.target.startswith("/")}
    record = read(host)
    if parts.items() - record.get("parts", {}).items():
        record["parts"] = {**record.get("parts", {}), **parts}
        write(host, record)


def before_merge(host: Host, name: str, content: str) -> None:
    """Record that goldnode is about to write this content, with its settings merged in, to a foreign file."""
    record = read(host)
    now = host.text(name)
    before = now
    known = record.setdefault("merged", {}).get(name)
    if known and now is not None:
        try:
            # The current text without goldnode's settings: the administrator may have edited the file since.
            before = unmerged_text(name, known["before"], known["after"], now)
        except ValueError:
            before = known["before"]
    elif known:
        before = None
    record["merged"][name] = {"before": before, "after": content}
    write(host, record)


def before_link(host: Host, name: str, target: str) -> None:
    """Record the target of a foreign link before it is changed."""
    record = read(host)
    known = record.setdefault("links", {})
    have = os.readlink(host.located(name)) if host.is_link(name) else None
    known[name] = {"before": known[name]["before"] if name in known else have, "after": target}
    write(host, record)


def unmerged_text(name: str, before: Optional[str], after: str, now: str) -> Optional[str]:
    """Return the text of a file without goldnode's settings, or None if nothing else is in it.

    A file that is unchanged since gets its original text. JSON is handled key by key,
    any other text line by line.

    :raises ValueError: if one of the texts of a .json file is not JSON.
    """
    if now == after:
        return before
    if not name.endswith(".json"):
        return unmerged_lines(
            (before or "").splitlines(True), after.splitlines(True), now.splitlines(True)
        )
    value = _json(now)
    result = unmerge(optional(_json, before), _json(after), value)
    if result is None or result == value:
        return None if result is None else now
    indent = re.search(r"^([ \t]+)\S", now, re.MULTILINE)
    return json.dumps(result, indent=indent.group(1) if indent else 4, ensure_ascii=False) + "\n"


def _json(text: str) -> Any:
    """Parse a JSON value. Like docker, treat an empty file as an empty object."""
    return json.loads(text) if text.strip() else {}


def removed_by(simulated: str) -> Set[str]:
    """Return the packages that an apt transaction removes, from its simulation."""
    return set(re.findall(r"^(?:Remv|Purg) (\S+)", simulated, re.MULTILINE))


def forget_versions(host: Host, names: Iterable[str]) -> None:
    """Drop recorded earlier versions that apt can no longer install."""
    record = read(host)
    record["was"] = {
        name: row for name, row in record.get("was", {}).items() if name not in set(names)
    }
    write(host, record)


def unmerged_lines(before: List[str], after: List[str], now: List[str]) -> str:
    """Return `now` with the lines that goldnode inserted replaced by the original ones.

    Lines that were changed since stay.
    """
    result = list(now)
    start = 0
    for kind, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(
        None, before, after, False
    ).get_opcodes():
        own = after[new_from:new_to]
        if kind == "equal" or not own:
            continue
        # Runs of lines are restored in order, so search after the last one.
        places = [
            at
            for at in range(start, len(result) - len(own) + 1)
            if result[at : at + len(own)] == own
        ]
        if places:
            result[places[0] : places[0] + len(own)] = before[old_from:old_to]
            start = places[0] + old_to - old_from
    return "".join(result)
