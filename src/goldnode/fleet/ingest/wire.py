"""Reports that a node sends as changes from a report that this machine holds (`goldnode.node.ground.changes`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import SOURCES, node_name
from goldnode.node.ground.changes import CHANGES, DIGEST, REPORTED, is_branch
from goldnode.node.ground.verdict_files import REPORT

MOST_VALUES = 60_000  # numbers of values, and subtrees
_DEEPEST = 32  # steps of a path
_AGAIN = "send the whole report"
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class WireChanges:
    """The changes of a report with their types checked. `at` are distances between the numbers of values."""

    node: str
    base: str
    at: list[int]
    to: list[Any]
    trees: list[list[Any]]
    source: str | None = None


def changes_of(content: Mapping[str, Any]) -> WireChanges:
    """Return the changes in a document. Raise RefusedReportError for another form."""
    node, base = node_name(content.get("node")), content.get("base")
    at, to, trees = (content.get(name) for name in ("at", "to", "trees"))
    if not isinstance(base, str) or not is_digest(base):
        raise _wrong("base is no digest")
    if not (isinstance(at, list) and isinstance(to, list) and isinstance(trees, list)):
        raise _wrong("at, to or trees is not a list")
    if len(at) != len(to) or len(at) + len(trees) > MOST_VALUES:
        raise _wrong("at and to have other lengths, or too many values")
    if not set(map(type, at)) <= {int} or (at and not 0 <= min(at) <= max(at) < MOST_VALUES):
        raise _wrong("at has no distances")
    if 0 in at[1:]:
        raise _wrong("at names a value twice")
    for tree in trees:
        right = isinstance(tree, list) and len(tree) in (1, 2) and isinstance(tree[0], list)
        if not right or not 0 < len(tree[0]) < _DEEPEST:
            raise _wrong("a subtree has no path")
    source = content.get("source")
    own = source if source in SOURCES else None
    return WireChanges(node, base, at, to, trees=trees, source=own)


def is_digest(text: str) -> bool:
    """Return whether a text is the name of a base, which is part of a path."""
    return len(text) == DIGEST and _HEX.issuperset(text)


def document_of(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the content of a file of the inbox for changes that came this way."""
    names = ("node", "base", "at", "to", "trees")
    return {"schema": CHANGES, "source": source, **{name: content[name] for name in names}}


def applied(base: Mapping[str, Any], changes: WireChanges) -> dict[str, Any]:
    """Return the whole report, made of the values of the base, which is changed. Raise RefusedReportError for changes that do not fit it."""
    report = {key: base[key] for key in REPORTED if key in base}
    numbers, total = [], 0
    for gap in changes.at:
        total += gap
        numbers.append(total)
    left = list(zip(numbers, changes.to, strict=True))
    left.reverse()  # the next one is the last
    _set_values(report, 0, left)
    if left:
        raise _unfitting()
    for path, *value in changes.trees:
        _set_tree(report, path, value)
    return {**report, "schema": REPORT, "node": changes.node, "source": changes.source}


def _set_values(branch: Any, first: int, left: list[tuple[int, Any]]) -> int:
    """Set the values in a tree whose first value has this number. Return the number after its last one."""
    for key in sorted(branch) if type(branch) is dict else range(len(branch)):
        inner = branch[key]
        if is_branch(inner):
            first = _set_values(inner, first, left)
        else:
            if left and left[-1][0] == first:
                branch[key] = left.pop()[1]
            first += 1
    return first


def _set_tree(report: dict[str, Any], path: list[Any], value: list[Any]) -> None:
    """Set or remove one subtree."""
    place: Any = report
    for step in path[:-1]:
        place = _inner(place, step)
    last = path[-1]
    if type(place) is dict and isinstance(last, str):
        if value:
            place[last] = value[0]
            # In the order in which the node sends a whole report: that of rows follows from it.
            ordered = sorted(place.items())
            place.clear()
            place.update(ordered)
        elif last in place:
            del place[last]
        else:
            raise _unfitting()
    elif type(place) is list and type(last) is int and 0 <= last < len(place) and value:
        place[last] = value[0]
    else:
        raise _unfitting()


def _inner(place: Any, step: Any) -> Any:
    if type(place) is dict and isinstance(step, str) and step in place:
        return place[step]
    if type(place) is list and type(step) is int and 0 <= step < len(place):
        return place[step]
    raise _unfitting()


def _wrong(what: str) -> RefusedReportError:
    return RefusedReportError(f"no changes of schema {CHANGES}: {what}", remedy=_AGAIN)


def _unfitting() -> RefusedReportError:
    return RefusedReportError("its changes do not fit their base", remedy=_AGAIN)
