"""Rows of one class and day that wait to be written, in columns."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from goldnode.fleet.ingest.blocks import (
    BlockChanges,
    BlockReader,
    CaptureBase,
    CaptureBlocks,
    GroupRows,
    Ordered,
    is_packed,
    unpacked,
)
from goldnode.fleet.ingest.findings import FINDING, finding_columns, text_size
from goldnode.fleet.ingest.flatten import Flattener
from goldnode.fleet.ingest.forms import FormedCapture
from goldnode.fleet.ingest.node_columns import node_columns
from goldnode.fleet.ingest.precision import STATED
from goldnode.fleet.ingest.quick import QuickChanges, ReportShape, fits
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.ingest.tables import (
    BASE_DAYS,
    CHANGES,
    DIGESTS,
    FACTS,
    FINDINGS,
    NUMBERS,
    SCHEMAS,
)
from goldnode.node.ground.optional import optional

_TEXT = 32  # characters of new texts that count as one row
_MOST_CHANGED = 2  # a capture of which more than the half has changed is stored whole
_TOGETHER = (
    32  # captures whose sections are digested at once: their words fit into the cache of a core
)
BASE_MILLISECONDS = BASE_DAYS * 86_400_000


class Group:
    """Rows of one class and day.

    `bases`: the captures of each node that later ones may refer to; those that this group stores
    whole are added to it. `exact`: numbers as they are, else to the stated precision.
    """

    def __init__(self, bases: Bases | None = None, exact: bool = True) -> None:
        # Digest of the report, and node, in the order of arrival.
        self.members: list[tuple[str, str]] = []
        self.size = 0  # rows, and long texts as rows: what the memory that it takes grows with
        self.bases = Bases() if bases is None else bases
        self._precision = None if exact else STATED
        self._text = self._count = 0  # characters of findings; rows
        self._flattener = Flattener()
        self._reader = BlockReader(self._flattener, exact)
        self._nodes: list[dict[str, Any]] = []
        # Columns of the table, without the node and time; of each capture, how many rows they have.
        self._findings: dict[str, list[str | None]] = {name: [] for name in FINDING}
        self._finding_counts: list[int] = []
        # Number of each capture with its rows.
        self._whole: dict[str, list[tuple[int, Ordered]]] = {FACTS: [], NUMBERS: []}
        self._changed: dict[str, list[_ChangedBlocks]] = {FACTS: [], NUMBERS: []}
        self._quick = _QuickRows()
        self._digested: list[tuple[int, str, str]] = []
        self.last: GroupRows | None = None  # of the last capture that was added with all its rows

    def add(self, report: NodeReport, whole: bool = False) -> None:
        """Add a report. Raise RefusedReportError, with nothing added, for one that cannot be stored.

        :param whole: store it whole: a node sends changes from it.
        """
        findings = finding_columns(report)
        node_columns(report)
        self._flattener.add(report.capture)  # the last one that may refuse the report
        blocks = self._reader.take(report.milliseconds)
        self.last = GroupRows(self._flattener, self._reader, blocks)
        self._add_blocks(report, blocks, findings, whole)

    def add_formed(self, report: NodeReport, formed: FormedCapture, whole: bool = False) -> bool:
        """Add a report whose capture has the form of one of this group. Return False for one that must be added as a whole.

        Raise RefusedReportError, with nothing added, for one that cannot be stored.
        """
        if not formed.model.is_of(self._flattener):
            return False
        findings = finding_columns(report)
        node_columns(report)
        blocks = formed.model.blocks(formed, report.milliseconds)
        if blocks is None:
            return False
        self.last = GroupRows(self._flattener, self._reader, blocks)
        self._add_blocks(report, blocks, findings, whole)
        return True

    def _add_blocks(
        self,
        report: NodeReport,
        blocks: CaptureBlocks,
        findings: Mapping[str, Sequence[str | None]],
        whole: bool,
    ) -> None:
        """Add the blocks of a capture, or what differs from its base."""
        node, time, number = node_columns(report), report.milliseconds, len(self.members)
        base = self.bases.fitting(report.node, time)
        changes = None if base is None or whole else blocks.compared(self.bases.digests(base))
        packed = None
        if base is None or changes is None or changes.rows * _MOST_CHANGED > blocks.rows:
            base, packed = None, blocks.base.packed()
            self._add_whole(number, blocks)
            self.bases.add(report.node, HeldBase(time, packed))
        else:
            self._add_changes(number, blocks, changes)
        node |= {"base": optional(lambda one: one.time, base), "blocks": packed}
        self._add_row(report, node, findings, text_size(findings))

    def add_quick(self, changes: QuickChanges) -> bool:
        """Add a report whose changed rows are known. Return False for one that must be added as a whole.

        Raise RefusedReportError, with nothing added, for one that cannot be stored.
        """
        report, base = changes.report, changes.base
        held = self.bases.fitting(report.node, report.milliseconds)
        if held is None or not fits(base, held.time, held.check):
            return False
        rows = len(changes.numbers) + sum(map(len, changes.facts.values()))
        if rows * _MOST_CHANGED > base.shape.size:
            return False
        number = len(self.members)
        if len(changes.numbers):
            self._quick.numbers.setdefault(
                base.shape.id, _QuickNumbers(base.shape, [], [], [])
            ).add(number, changes)
        for key, texts in changes.facts.items():
            self._quick.captures.append(number)
            self._quick.counts.append(len(texts))
            self._quick.facts += [self._flattener.fact_code(key, text) for text in texts]
        self._count += rows
        node = {**changes.node, "base": held.time, "blocks": None}
        self._add_row(report, node, base.shared.findings, base.shared.text)
        return True

    def _add_row(
        self,
        report: NodeReport,
        node: dict[str, Any],
        findings: Mapping[str, Sequence[str | None]],
        text: int,
    ) -> None:
        """Add the rows of nodes and findings, whose texts have this many characters, and count."""
        node["node"], node["time"] = report.node, report.milliseconds
        node["precision"] = self._precision
        self._nodes.append(node)
        for name, texts in findings.items():
            self._findings[name] += texts
        self._text += text
        self._finding_counts.append(len(findings["id"]))
        self.members.append((report.digest, report.node))
        self.size = self._count + len(self._findings["id"]) + len(self.members)
        self.size += (self._text + self._flattener.text) // _TEXT

    def _add_whole(self, number: int, blocks: CaptureBlocks) -> None:
        self._whole[FACTS].append((number, blocks.facts))
        self._whole[NUMBERS].append((number, blocks.numbers))
        self._count += blocks.rows

    def _add_changes(self, number: int, blocks: CaptureBlocks, changes: BlockChanges) -> None:
        if len(changes.facts.keys):
            self._changed[FACTS].append(_changed(number, changes.facts, changes.fact_items))
            compared = self._reader.compared
            keys = [code for code in changes.facts.keys.tolist() if compared[code]]
            if keys:
                sections = self._reader.sections(blocks.facts, keys)
                self._digested += [(number, *one) for one in sections.items()]
        if len(changes.numbers.keys):
            self._changed[NUMBERS].append(_changed(number, changes.numbers, changes.number_items))
        self._count += changes.rows

    def nodes(self) -> list[dict[str, Any]]:
        """Return the rows of the table of nodes, without the time of their ingest."""
        return self._nodes

    def table(self, name: str) -> pa.Table:
        """Return the rows of one table, ordered by key, so that equal values are adjacent."""
        if name == FINDINGS:
            return self._finding_table()
        if name == DIGESTS:
            return self._digests()
        if name == CHANGES:
            return self._changes()
        rows = [rows for _, rows in self._whole[name]]
        keys = _joined([one.keys for one in rows], np.int32)
        counts = _joined([one.counts for one in rows], np.int64)
        order = np.argsort(_rank(self._keys(name))[keys], kind="stable")
        places, _ = _list_places(counts, order)
        captures = np.repeat(
            np.array([number for number, _ in self._whole[name]], np.int32),
            [len(one.keys) for one in rows],
        )
        columns = self._who(np.repeat(captures[order], counts[order]))
        values = _joined([one.values for one in rows], np.int32 if name == FACTS else np.float64)
        columns |= {
            "item": _texts(
                _joined([one.items for one in rows], np.int32)[places], self._flattener.item_list
            ),
            "key": _texts(np.repeat(keys[order], counts[order]), self._keys(name)),
            "place": pa.array(_joined([one.places for one in rows], np.int16)[places]),
        }
        if name == FACTS:
            columns |= self._fact_columns(values[places])
        else:
            columns["value"] = pa.array(values[places])
        return pa.table([columns[column] for column in SCHEMAS[name].names], SCHEMAS[name].names)

    def _finding_table(self) -> pa.Table:
        captures = np.repeat(np.arange(len(self._nodes), dtype=np.int32), self._finding_counts)
        columns = self._who(captures)
        columns |= {name: pa.array(texts, pa.string()) for name, texts in self._findings.items()}
        schema = SCHEMAS[FINDINGS]
        return pa.table([columns[column] for column in schema.names], schema.names).cast(schema)

    def _keys(self, name: str) -> list[str]:
        return self._reader.fact_keys if name == FACTS else self._flattener.key_list

    def _who(self, captures: Any) -> dict[str, Any]:
        """Return the columns node and time."""
        nodes = self._nodes
        times = np.array([row["time"] for row in nodes], "datetime64[ms]")
        return {
            "node": _texts(captures, [row["node"] for row in nodes]),
            "time": pa.array(times[captures]),
        }

    def _fact_columns(self, codes: Any) -> dict[str, Any]:
        """Return value and fault, each by a dictionary of its own."""
        columns: dict[str, Any] = {}
        facts = self._flattener.fact_list
        for place, name in ((1, "value"), (2, "fault")):
            texts: dict[Any, int] = {}
            own = np.array([texts.setdefault(fact[place], len(texts)) for fact in facts], np.int32)
            columns[name] = _texts(own[codes], list(texts))
        columns["fault"] = columns["fault"].cast(pa.string())  # a null has no place in a dictionary
        return columns

    def _changes(self) -> pa.Table:
        return pa.concat_tables([self._changed_blocks(name) for name in (FACTS, NUMBERS)])

    def _changed_blocks(self, name: str) -> pa.Table:
        """Return a row for each changed block of one table, in the order of the keys."""
        chosen = [*self._changed[name], *self._quick_blocks(name)]
        counts = _joined([one.rows.counts for one in chosen], np.int64)
        keys = _joined([one.rows.keys for one in chosen], np.int32)
        with_items = _joined([one.items for one in chosen], np.bool_)
        captures = _joined([one.captures for one in chosen], np.int32)
        order = np.argsort(_rank(self._keys(name))[keys], kind="stable")
        places, offsets = _list_places(counts, order)
        values = _joined(
            [one.rows.values for one in chosen], np.int32 if name == FACTS else np.float64
        )[places]
        own = np.repeat(with_items[order], counts[order])
        items = _joined([one.rows.items for one in chosen], np.int32)[places][own]
        item_counts = np.where(with_items[order], counts[order], 0)
        empty = np.zeros(len(order) + 1, np.int32)
        lists: dict[str, tuple[Any, Any]] = {
            "items": (_ends(item_counts), _texts(items, self._flattener.item_list)),
            "values": (empty, pa.array([], pa.float64())),
            "texts": (empty, pa.array([], pa.string())),
            "faults": (empty, pa.array([], pa.string())),
        }
        if name == FACTS:
            facts = self._fact_columns(values)
            lists |= {"texts": (offsets, facts["value"]), "faults": (offsets, facts["fault"])}
        else:
            lists["values"] = (offsets, pa.array(values))
        bases = np.array([row["base"] or 0 for row in self._nodes], "datetime64[ms]")
        columns = self._who(captures[order])
        columns |= {
            "base": pa.array(bases[captures[order]]),
            "key": _texts(keys[order], self._keys(name)),
        }
        for column, (ends, content) in lists.items():
            text = content if column == "values" else content.cast(pa.string())
            columns[column] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), text)
        schema = SCHEMAS[CHANGES]
        return pa.table([columns[column] for column in schema.names], schema.names).cast(schema)

    def _quick_blocks(self, name: str) -> Iterator[_ChangedBlocks]:
        """Yield the changed blocks that came without their whole captures."""
        quick = self._quick
        if name == FACTS and quick.facts:
            counts, codes = np.array(quick.counts, np.int64), np.array(quick.facts, np.int32)
            keys = self._reader.fact_blocks(codes)[np.cumsum(counts) - counts]
            yield _without_items(np.array(quick.captures, np.int32), keys, counts, codes)
        for one in quick.numbers.values() if name == NUMBERS else ():
            captures, blocks = np.stack(one.blocks).nonzero()
            codes = np.array(
                [self._flattener.number_code(key) for key in one.shape.number_keys], np.int32
            )
            yield _without_items(
                np.array(one.captures, np.int32)[captures],
                codes[blocks],
                one.shape.number_counts[blocks],
                np.concatenate(one.values),
            )

    def _digests(self) -> pa.Table:
        """Return a digest of the facts of each section of each capture, of one with a base only where it differs."""
        rows = sorted([*self._digested, *self._whole_digests()], key=lambda row: (row[1], row[0]))
        columns = self._who(np.array([number for number, _, _ in rows], np.int32))
        columns |= {
            "section": pa.array([section for _, section, _ in rows], pa.string()),
            "digest": pa.array([digest for _, _, digest in rows], pa.string()),
        }
        schema = SCHEMAS[DIGESTS]
        return pa.table([columns[column] for column in schema.names], schema.names)

    def _whole_digests(self) -> Iterator[tuple[int, str, str]]:
        """Yield the number, section and digest of each section of the captures that are stored whole."""
        equal: dict[tuple[bytes, bytes], list[tuple[int, Ordered]]] = {}
        for number, facts in self._whole[FACTS]:
            blocks = facts.keys.tobytes(), facts.counts.tobytes()
            equal.setdefault(blocks, []).append((number, facts))
        for captures in equal.values():
            for first in range(0, len(captures), _TOGETHER):
                some = captures[first : first + _TOGETHER]
                for section, digests in self._reader.section_digests([one for _, one in some]):
                    for (number, _), digest in zip(some, digests, strict=True):
                        yield number, section, digest


class _ChangedBlocks(NamedTuple):
    """Changed blocks of captures. `captures`: their number, for each block; `items`: whether its items differ too."""

    captures: Any
    rows: Ordered
    items: Any


def _changed(number: int, rows: Ordered, items: Any) -> _ChangedBlocks:
    return _ChangedBlocks(np.full(len(rows.keys), number, np.int32), rows, items)


def _without_items(captures: Any, keys: Any, counts: Any, values: Any) -> _ChangedBlocks:
    """Return blocks whose items are those of the base."""
    starts, rows = np.cumsum(counts) - counts, len(values)
    items, places = np.zeros(rows, np.int32), np.zeros(rows, np.int16)
    ordered = Ordered(keys, starts, counts, items=items, values=values, places=places)
    return _ChangedBlocks(captures, ordered, np.zeros(len(keys), np.bool_))


class _QuickNumbers(NamedTuple):
    """Changed numbers of captures of one shape: which of its blocks, and their values. Arrays wait to be joined at once."""

    shape: ReportShape
    captures: list[int]
    blocks: list[Any]
    values: list[Any]

    def add(self, number: int, changes: QuickChanges) -> None:
        self.captures.append(number)
        self.blocks.append(changes.number_blocks)
        self.values.append(changes.numbers)


class _QuickRows:
    """Changed rows that came without their whole captures. Of facts: number of the capture and of texts of each key, and codes."""

    def __init__(self) -> None:
        self.numbers: dict[str, _QuickNumbers] = {}  # by the id of the shape
        self.captures: list[int] = []
        self.counts: list[int] = []
        self.facts: list[int] = []


class HeldBase:
    """A capture that is stored whole: its time in milliseconds, and its digests as bytes (`CaptureBase.packed`)."""

    __slots__ = ("_check", "packed", "time")

    def __init__(self, time: int, packed: bytes) -> None:
        self.time, self.packed = time, packed
        self._check = -1

    @property
    def check(self) -> int:
        """Number that the digests of two captures have by chance only."""
        if self._check < 0:
            self._check = zlib.crc32(self.packed)
        return self._check


class Bases:
    """The newest capture of each node of a class that is stored whole."""

    def __init__(self) -> None:
        self._bases: dict[str, HeldBase] = {}
        self._added: dict[str, HeldBase] = {}
        self._shared: dict[bytes, Any] = {}  # keys that captures of equal nodes have in common

    def fitting(self, node: str, time: int) -> HeldBase | None:
        """Return the base for a capture of this time (ms): one of less than seven days before or after it."""
        base = self._added.get(node) or self._bases.get(node)
        return base if base is not None and abs(time - base.time) < BASE_MILLISECONDS else None

    def digests(self, base: HeldBase) -> CaptureBase:
        """Return the digests of a base."""
        own = unpacked(base.time, base.packed)
        return own._replace(keys=self._shared.setdefault(own.keys.tobytes(), own.keys))

    def add(self, node: str, base: HeldBase) -> None:
        """Add a base that is not yet in a file with a name: captures of other files must not refer to it."""
        last = self._added.get(node)
        if last is None or last.time <= base.time:
            self._added[node] = base

    def load(self, node: str, base: HeldBase) -> None:
        """Add a base that is in a file with a name. Bytes of another form are left out."""
        last = self._bases.get(node)
        if is_packed(base.packed) and (last is None or last.time <= base.time):
            self._bases[node] = base

    def opened(self) -> Bases:
        """Return the bases for another group: its own are added to none of the others."""
        other = Bases()
        other._bases, other._shared = self._bases, self._shared
        return other

    def named(self, other: Bases) -> None:
        """Take over the bases of a group whose files have their names."""
        for node, base in other._added.items():
            self.load(node, base)


def _joined(columns: list[Any], kind: Any) -> Any:
    return np.concatenate(columns) if columns else np.empty(0, kind)


def _rank(texts: list[str]) -> Any:
    """Return the place of each text among the sorted ones."""
    ranks = np.empty(len(texts), np.int32)
    ranks[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    return ranks


def _ends(counts: Any) -> Any:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _list_places(counts: Any, order: Any) -> tuple[Any, Any]:
    """Return the places of the values of lists that are put in an order, and their offsets."""
    ends = _ends(counts[order])
    starts = np.cumsum(counts) - counts
    places = np.arange(ends[-1]) + np.repeat(starts[order] - ends[:-1], counts[order])
    return places, ends


def text_order(column: Any) -> Any:
    """Return the place of each row's text among the sorted texts."""
    return pc.rank(column.dictionary).cast(pa.int32()).take(column.indices)


def _texts(codes: Any, texts: Sequence[str | None]) -> Any:
    return pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string()))
