"""Causes: rows of the views `declared`, `majority` and `last_week` joined, so that each difference is one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from goldnode.documents.fleet_report import ReportCause, ReportChange, ReportNodes
from goldnode.fleet.report.fold import fold

NONE, SEPARATOR = "␀", "␟"  # as the views write them
_Row = Mapping[str, Any]


@dataclass
class _OpenCause:
    """A cause whose evidence is not complete."""

    class_: str
    topic: str
    changes: tuple[ReportChange, ...]
    nodes: set[str]
    severity: str | None = None
    domain: str | None = None
    evidence: list[str] = field(default_factory=list)
    usual: int | None = None
    total: int | None = None
    also: list[str] = field(default_factory=list)


def nodes_of(names: Iterable[str]) -> ReportNodes:
    """Return some nodes as a document has them."""
    ordered = sorted(names)
    return ReportNodes(count=len(ordered), folded=fold(ordered), names=ordered)


def changes_of(texts: Iterable[str]) -> tuple[ReportChange, ...]:
    """Return the changes that a view has as texts."""
    changes = []
    for text in texts:
        key, part, expected, got, *_ = text.split(SEPARATOR)
        changes.append(
            ReportChange(key=key, part=part or None, expected=_value(expected), got=_value(got))
        )
    return tuple(changes)


def _value(text: str) -> str | None:
    return None if text == NONE else text


def causes(
    declared: Iterable[_Row], majority: Iterable[_Row], changed: Iterable[_Row]
) -> list[ReportCause]:
    """Return one cause for each way in which nodes differ, the most severe and widest first.

    A difference from the majority is no cause of its own where a finding of the same topic names
    the node.
    """
    open_causes = [_declared(row) for row in declared if row["outcome"] == "mismatch"]
    named: dict[tuple[str, str], set[str]] = {}
    for cause in open_causes:
        named.setdefault((cause.class_, cause.topic), set()).update(cause.nodes)
    open_causes += _majority(majority, open_causes, named)
    _mark_new(open_causes, changed)
    open_causes = _below_others(open_causes)
    open_causes.sort(key=_rank)
    return [_finished(cause) for cause in open_causes]


def _declared(row: _Row) -> _OpenCause:
    severities, domains = set(), set()
    for text in row["changes"]:
        *_, severity, domain = text.split(SEPARATOR)
        severities.add(severity)
        domains.add(domain)
    return _OpenCause(
        row["class"],
        row["topic"],
        changes_of(row["changes"]),
        set(row["nodes"]),
        severity="drain" if "drain" in severities else "degraded",
        domain=next((one for one in ("hardware", "driver", "software") if one in domains), None),
        evidence=["declared"],
    )


def _majority(
    rows: Iterable[_Row], declared: Sequence[_OpenCause], named: Mapping[tuple[str, str], set[str]]
) -> list[_OpenCause]:
    """Return the causes of the majority view for nodes without a finding of that topic, and mark the others."""
    open_causes: list[_OpenCause] = []
    for row in rows:
        changes = []
        for text in row["changes"]:
            key, part, usual, got, *_ = text.split(SEPARATOR)
            changes.append(
                ReportChange(key=key, part=part or None, expected=_value(usual), got=_value(got))
            )
        nodes = set(row["nodes"])
        for cause in declared:
            if (cause.class_, cause.topic) == (row["class"], row["topic"]) and cause.nodes & nodes:
                cause.usual, cause.total = row["n"], row["total"]
                if "majority" not in cause.evidence:
                    cause.evidence.append("majority")
        others = nodes - named.get((row["class"], row["topic"]), set())
        if others:
            open_causes.append(
                _OpenCause(
                    row["class"],
                    row["topic"],
                    tuple(changes),
                    others,
                    evidence=["majority"],
                    usual=row["n"],
                    total=row["total"],
                )
            )
    return open_causes


def _mark_new(found: Iterable[_OpenCause], changed: Iterable[_Row]) -> None:
    new: dict[tuple[str, str], set[str]] = {}
    for row in changed:
        new.setdefault((row["class"], row["topic"]), set()).update(row["nodes"])
    for cause in found:
        if cause.nodes <= new.get((cause.class_, cause.topic), set()):
            cause.evidence.append("last_week")


# Differences from the majority that another cause explains, on the same nodes: its topic -> their topics.
# A GPU that is gone takes its PCI function, its device node and its place in the topology with it.
_EXPLAINED = {
    "GPU count": frozenset(
        {"PCIe", "NUMA", "device nodes", "NVLink", "NVSwitch", "CDI", "GPU place", "fabric"}
    ),
    "driver": frozenset({"kernel modules", "fabric manager", "CDI"}),
    "kernel": frozenset({"kernel modules"}),
}


def _below_others(found: list[_OpenCause]) -> list[_OpenCause]:
    """Return the causes without those that another one explains, which names them."""
    result = []
    for cause in found:
        top = None
        if "declared" not in cause.evidence:
            top = next((one for one in found if _explains(one, cause)), None)
        if top is None:
            result.append(cause)
        elif cause.topic not in top.also:
            top.also.append(cause.topic)
    return result


def _explains(top: _OpenCause, cause: _OpenCause) -> bool:
    if top is cause or top.class_ != cause.class_:
        return False
    if top.topic in ("GPU count", "GPU state") and "declared" in top.evidence and _missing(cause):
        return cause.nodes <= top.nodes
    if top.topic == "class":  # another class document: whatever differs on exactly its nodes
        return cause.nodes == top.nodes and cause.topic != "class"
    if cause.topic not in _EXPLAINED.get(top.topic, ()):
        return False
    if top.topic == "GPU count":
        return cause.nodes <= top.nodes and any(change.got is None for change in cause.changes)
    return cause.nodes == top.nodes


def _missing(cause: _OpenCause) -> bool:
    """Return whether all that a cause names are values that some GPUs lack (view missing_values)."""
    return all(change.got is None and " of " in (change.part or "") for change in cause.changes)


def _rank(cause: _OpenCause) -> tuple[Any, ...]:
    order = {"drain": 0, "degraded": 1, None: 2}
    return (
        order[cause.severity],
        -len(cause.nodes),
        cause.class_,
        cause.topic,
        sorted(cause.nodes)[:1],
    )


def _finished(cause: _OpenCause) -> ReportCause:
    share = None
    if cause.total and cause.usual is not None:
        share = round(cause.usual / cause.total, 4)
    return ReportCause.model_validate(
        {
            "class": cause.class_,
            "topic": cause.topic,
            "severity": cause.severity,
            "domain": cause.domain,
            "evidence": cause.evidence,
            "changes": list(cause.changes),
            "share": share,
            "of": cause.total,
            "also": sorted(cause.also),
            "nodes": nodes_of(cause.nodes),
        }
    )
