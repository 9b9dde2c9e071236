"""Rows of one class and day that wait to be written, in columns."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from goldnode.fleet.ingest.flatten import Flattener
from goldnode.fleet.ingest.keys import KeyKind, kind
from goldnode.fleet.ingest.refused import AGAIN, RefusedReportError
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.ingest.tables import DIGESTS, FACTS, FINDINGS, NODES, NUMBERS, SCHEMAS
from goldnode.fleet.ingest.text import clean
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.optional import optional

_MOST_FINDINGS = 5_000  # of one verdict
_TEXT = 32  # characters of new texts that count as one row
_FINDING = ("id", "outcome", "severity", "domain", "subject", "expected", "got")


class Group:
    """Rows of one class and day."""

    def __init__(self) -> None:
        self.members: list[
            tuple[str, str]
        ] = []  # digest of the report, and node, in the order of arrival
        self.size = 0  # rows, and long texts as rows: what the memory that it takes grows with
        self._text = 0  # characters of findings
        self._flattener = Flattener()
        self._rows: dict[str, list[dict[str, Any]]] = {NODES: [], FINDINGS: []}
        self._capture_ends = {FACTS: array("i"), NUMBERS: array("i")}

    def add(self, report: NodeReport) -> None:
        """Add a report. Raise RefusedReportError, with nothing added, for one that cannot be stored."""
        findings, node = list(_findings(report)), _node_row(report)
        rows = self._flattener.rows
        self._flattener.add(report.capture)  # the last one that may refuse the report
        who = {"node": report.node, "time": report.milliseconds}
        self._rows[NODES].append(who | node)
        self._rows[FINDINGS] += [who | row for row in findings]
        self._capture_ends[FACTS].append(len(rows.facts))
        self._capture_ends[NUMBERS].append(len(rows.numbers))
        self.members.append((report.digest, report.node))
        self._text += sum(len(text) for row in findings for text in row.values() if text)
        self.size = (
            len(rows.facts) + len(rows.numbers) + len(self._rows[FINDINGS]) + len(self.members)
        )
        self.size += (self._text + self._flattener.text) // _TEXT

    def nodes(self) -> list[dict[str, Any]]:
        """Return the rows of the table of nodes, without the time of their ingest."""
        return self._rows[NODES]

    def table(self, name: str) -> pa.Table:
        """Return the rows of one table, ordered by key, so that equal values are adjacent."""
        if name == FINDINGS:
            return pa.Table.from_pylist(self._rows[name], SCHEMAS[name])
        if name == DIGESTS:
            return self._digests()
        codes = _int32(self._flattener.rows.facts if name == FACTS else self._flattener.rows.keys)
        columns = self._who(name) | (
            self._fact_columns(codes) if name == FACTS else self._number_columns(codes)
        )
        order = pc.sort_indices(columns.pop("order"))
        table = pa.table([columns[column] for column in SCHEMAS[name].names], SCHEMAS[name].names)
        return table.take(order)

    def _who(self, name: str) -> dict[str, Any]:
        """Return the columns node, time and item."""
        rows = self._flattener.rows
        items = _decoded(self._run_ends(name), _int32(rows.items))
        return self._nodes(self._captures(name)) | {
            "item": _texts(items, list(self._flattener.items))
        }

    def _captures(self, name: str) -> Any:
        """Return the number of each row's capture."""
        ends = _int32(self._capture_ends[name])
        return _decoded(ends, pa.array(range(len(ends)), pa.int32()))

    def _nodes(self, captures: Any) -> dict[str, Any]:
        """Return the columns node and time."""
        nodes = self._rows[NODES]
        times = pa.array([row["time"] for row in nodes], pa.timestamp("ms"))
        return {
            "node": _texts(captures, [row["node"] for row in nodes]),
            "time": times.take(captures),
        }

    def _run_ends(self, name: str) -> Any:
        rows = self._flattener.rows
        starts, end = rows.number_starts, len(rows.numbers)
        if name == FACTS:
            starts, end = rows.fact_starts, len(rows.facts)
        return pa.concat_arrays([_int32(starts)[1:], pa.array([end], pa.int32())])

    def _fact_columns(self, codes: Any) -> dict[str, Any]:
        """Return key, value and fault, each by a dictionary of its own, and the order of the keys."""
        facts = list(self._flattener.facts)
        columns: dict[str, Any] = {}
        for place, name in enumerate(("key", "value", "fault")):
            texts: dict[Any, int] = {}
            own = pa.array(
                [texts.setdefault(fact[place], len(texts)) for fact in facts], pa.int32()
            )
            columns[name] = _texts(own.take(codes), list(texts))
        columns["fault"] = columns["fault"].cast(pa.string())  # a null has no place in a dictionary
        return columns | {"order": text_order(columns["key"])}

    def _number_columns(self, codes: Any) -> dict[str, Any]:
        keys = list(self._flattener.keys)
        numbers = self._flattener.rows.numbers
        value = pa.Array.from_buffers(pa.float64(), len(numbers), [None, pa.py_buffer(numbers)])
        key = _texts(codes, keys)
        return {"key": key, "value": value, "order": text_order(key)}

    def _digests(self) -> pa.Table:
        """Return a digest of the facts of each section of each capture. Their order has no effect.

        It is the sum of the products of two odd numbers, modulo 2^64: one of the fact, and one of
        the item.
        """
        rows, facts = self._flattener.rows, list(self._flattener.facts)
        codes = _int32(rows.facts)
        compared = pa.array([kind(key, number=False) in _COMPARED for key, _, _ in facts]).take(
            codes
        )
        sections: dict[str, int] = {}
        section = [sections.setdefault(key.partition(".")[0], len(sections)) for key, _, _ in facts]
        items = _decoded(self._run_ends(FACTS), _int32(rows.items))
        hashes = pc.multiply(
            pa.array([_odd("\0".join(map(str, fact))) for fact in facts], pa.uint64()).take(codes),
            pa.array([_odd(item) for item in self._flattener.items], pa.uint64()).take(items),
        )
        captures = self._captures(FACTS)
        table = pa.table(
            {
                "capture": captures,
                "section": pa.array(section, pa.int32()).take(codes),
                "digest": hashes,
            }
        )
        sums = (
            table.filter(compared).group_by(["capture", "section"]).aggregate([("digest", "sum")])
        )
        sums = sums.sort_by([("section", "ascending"), ("capture", "ascending")])
        texts = pa.array([f"{value:016x}" for value in sums["digest_sum"].to_pylist()], pa.string())
        who = self._nodes(sums["capture"].combine_chunks())
        names = _texts(sums["section"].combine_chunks(), list(sections))
        return pa.table([who["node"], who["time"], names, texts], SCHEMAS[DIGESTS].names)


def _int32(values: array[int]) -> Any:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])


def _decoded(ends: Any, values: Any) -> Any:
    """Return the values of runs, one for each row. Runs of no row are left out."""
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends[:-1]])
    some = pc.greater(ends, starts)
    return pc.run_end_decode(
        pa.RunEndEncodedArray.from_arrays(ends.filter(some), values.filter(some))
    )


_COMPARED = (KeyKind.FACT, KeyKind.IDENTITY)


def _odd(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") | 1


def text_order(column: Any) -> Any:
    """Return the place of each row's text among the sorted texts."""
    return pc.rank(column.dictionary).cast(pa.int32()).take(column.indices)


def _texts(codes: Any, texts: Sequence[str | None]) -> Any:
    return pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string()))


def _findings(report: NodeReport) -> Iterable[dict[str, Any]]:
    findings = (report.verdict or {}).get("findings", [])
    if not isinstance(findings, list) or len(findings) > _MOST_FINDINGS:
        raise RefusedReportError("its verdict has no list of findings, or too many", remedy=_CHECK)
    for row in findings:
        if not isinstance(row, dict):
            raise RefusedReportError("a finding is not an object", remedy=_CHECK)
        if not row.get("id") or not row.get("outcome"):
            raise RefusedReportError("a finding has no id or no outcome", remedy=_CHECK)
        yield {key: _text(row.get(key), key) for key in _FINDING}


_CHECK = "record it again with `goldnode-node check`"


def _text(value: Any, key: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise RefusedReportError(f"{key} is not a text", remedy=_CHECK)
    return optional(clean, value)


def _node_row(report: NodeReport) -> dict[str, Any]:
    identity = report.capture.get("identity")
    identity = as_dict(identity)
    verdict = report.verdict or {}
    return {
        "cohort": report.origin.cohort,
        "boot_id": _own(identity.get("boot_id")),
        "uptime": _seconds(report.capture.get("uptime")),
        "simulated": report.capture.get("simulated") is True,
        "status": verdict.get("status"),
        "class_digest": _own(verdict.get("class_digest") or identity.get("class_digest")),
        "lock_digest": _own(verdict.get("lock_digest") or identity.get("lock_digest")),
        "engine": report.origin.engine,
        "source": report.origin.source,
    }


def _seconds(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise RefusedReportError("uptime is not a finite number", remedy=AGAIN)
    return seconds


def _own(value: Any) -> str | None:
    return clean(value) if isinstance(value, str) else None
