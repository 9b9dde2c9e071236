"""Rows that wait to be written, in columns: one group for each class and day."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from goldnode.fleet.ingest.flatten import Flattener, Leaf, clean
from goldnode.fleet.ingest.keys import KeyKind, kind
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.ingest.tables import DIGESTS, FACTS, FINDINGS, NODES, NUMBERS, SCHEMAS

_MOST_FINDINGS = 5_000
_FINDING = ("id", "outcome", "severity", "domain", "subject", "expected", "got")


class _Texts:
    """A column of texts as numbers into a dictionary."""

    def __init__(self) -> None:
        self.codes: dict[str | None, int] = {}
        self.rows = array("i")

    def add(self, text: str | None) -> None:
        self.rows.append(self.codes.setdefault(text, len(self.codes)))

    def add_many(self, text: str | None, count: int) -> None:
        self.rows.extend(array("i", [self.codes.setdefault(text, len(self.codes))]) * count)

    def column(self) -> Any:
        """Return the column. A null has a place in the dictionary of pyarrow too."""
        indices = pa.Array.from_buffers(pa.int32(), len(self.rows), [None, pa.py_buffer(self.rows)])
        values = pa.array(self.codes, pa.string())
        if None in self.codes:
            return values.take(indices).dictionary_encode()
        return pa.DictionaryArray.from_arrays(indices, values)

    def order(self) -> Any:
        """Return the place of each row's text in the sorted order of all texts."""
        ranks = pc.rank(pa.array(self.codes, pa.string()), sort_keys="ascending", tiebreaker="min")
        indices = pa.Array.from_buffers(pa.int32(), len(self.rows), [None, pa.py_buffer(self.rows)])
        return ranks.take(indices)


class _Values:
    """Facts or numbers of one group."""

    def __init__(self, numbers: bool) -> None:
        self.node, self.item, self.key = _Texts(), _Texts(), _Texts()
        self.time = array("q")
        self.value: Any = array("d") if numbers else _Texts()
        self.fault = None if numbers else _Texts()

    def finish(self, node: str, time: int, count: int) -> None:
        """Add the node and time of the last `count` rows."""
        self.node.add_many(node, count)
        self.time.extend(array("q", [time]) * count)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return the rows, ordered by key: equal values then stand together."""
        columns = {name: part.column() for name in ("node", "item", "key") if (part := getattr(self, name))}
        columns["time"] = _times(self.time)
        if self.fault is None:
            columns["value"] = pa.Array.from_buffers(
                pa.float64(), len(self.value), [None, pa.py_buffer(self.value)]
            )
        else:
            columns["value"], columns["fault"] = self.value.column(), self.fault.column()
        found = pa.table([columns[name] for name in schema.names], schema.names)
        return found.take(pc.sort_indices(self.key.order()))


def _times(values: array[int]) -> Any:
    return pa.Array.from_buffers(pa.timestamp("ms"), len(values), [None, pa.py_buffer(values)])


class Group:
    """Rows of one class and day."""

    def __init__(self) -> None:
        self.facts, self.numbers = _Values(numbers=False), _Values(numbers=True)
        self.others: dict[str, list[dict[str, Any]]] = {NODES: [], FINDINGS: [], DIGESTS: []}
        self.members: list[tuple[str, str, str]] = []  # node, time, digest of the report
        self.size = 0

    def add(self, report: NodeReport, leaves: Sequence[Leaf], findings: Sequence[dict[str, Any]]) -> None:
        """Add the rows of a report. The leaves and findings were made before, so that this cannot fail halfway."""
        time = int(report.time.timestamp() * 1000)
        before = len(self.facts.key.rows), len(self.numbers.key.rows)
        for leaf in leaves:
            if isinstance(leaf.value, float):
                self.numbers.key.add(leaf.key)
                self.numbers.item.add(leaf.item)
                self.numbers.value.append(leaf.value)
            else:
                self.facts.key.add(leaf.key)
                self.facts.item.add(leaf.item)
                self.facts.value.add(leaf.value)
                self.facts.fault.add(leaf.fault)  # type: ignore[union-attr]
        self.facts.finish(report.node, time, len(self.facts.key.rows) - before[0])
        self.numbers.finish(report.node, time, len(self.numbers.key.rows) - before[1])
        who = {"node": report.node, "time": time}
        self.others[NODES].append(who | _node_row(report))
        self.others[FINDINGS] += [who | row for row in findings]
        self.others[DIGESTS] += [who | row for row in digests(leaves)]
        self.members.append((report.node, str(time), report.digest))
        self.size += len(leaves) + len(findings) + 20

    def table(self, name: str) -> pa.Table:
        """Return the rows of one table."""
        schema = SCHEMAS[name]
        if name in self.others:
            return pa.Table.from_pylist(self.others[name], schema)
        found = (self.facts if name == FACTS else self.numbers).table(schema)
        return found.cast(schema) if False else found


def rows_of(report: NodeReport, flattener: Flattener) -> tuple[list[Leaf], list[dict[str, Any]]]:
    """Return the leaves and findings of a report. Raise RefusedReportError for one that cannot be stored."""
    return flattener.leaves(report.capture), list(_findings(report))


def _findings(report: NodeReport) -> Iterable[dict[str, Any]]:
    found = (report.verdict or {}).get("findings", [])
    if not isinstance(found, list) or len(found) > _MOST_FINDINGS:
        raise RefusedReportError("its verdict has no list of findings, or too many", remedy=_AGAIN)
    for row in found:
        if not isinstance(row, dict):
            raise RefusedReportError("a finding is not an object", remedy=_AGAIN)
        yield {key: _text(row.get(key), key) for key in _FINDING}


_AGAIN = "record it again with `goldnode-node check`"


def _text(value: Any, key: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise RefusedReportError(f"{key} is not a text", remedy=_AGAIN)
    return clean(value)


def _node_row(report: NodeReport) -> dict[str, Any]:
    identity = report.capture.get("identity")
    identity = identity if isinstance(identity, dict) else {}
    verdict = report.verdict or {}
    uptime = report.capture.get("uptime")
    return {
        "cohort": report.origin.cohort,
        "received": int(report.origin.received.timestamp() * 1000),
        "boot_id": _own(identity.get("boot_id")),
        "uptime": float(uptime) if isinstance(uptime, int | float) and not isinstance(uptime, bool) else None,
        "simulated": report.capture.get("simulated") is True,
        "status": verdict.get("status"),
        "class_digest": _own(verdict.get("class_digest") or identity.get("class_digest")),
        "lock_digest": _own(verdict.get("lock_digest") or identity.get("lock_digest")),
        "engine": report.origin.engine,
        "source": report.origin.source,
    }


def _own(value: Any) -> str | None:
    return clean(value) if isinstance(value, str) else None


def digests(leaves: Sequence[Leaf]) -> list[dict[str, Any]]:
    """Return a digest of the facts of each section of a capture. The order of the facts has no effect."""
    sections: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        if not isinstance(leaf.value, float) and kind(leaf.key, number=False) is not KeyKind.ORDER:
            sections.setdefault(leaf.key.partition(".")[0], []).append(leaf)
    return [
        {"section": section, "digest": hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:32]}
        for section, rows in sorted(sections.items())
    ]
