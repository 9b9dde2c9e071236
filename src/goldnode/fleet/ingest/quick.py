"""Rows of changes without the whole report: where the values of a base are in its rows.

Most changes are readings and counters. Their rows follow from the rows of the base, which are in a file beside it, and from
the shape of the report: the row of each value, which nodes of equal hardware share. Anything else (a subtree, a text that
reports compare, an identity, another type) takes the long way: the whole report is made of the base, and flattened.

A shape is found by flattening the capture with a mark in place of each value, and looking where the marks are in the rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from itertools import accumulate, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from goldnode.fleet.ingest import bases, keys, precision
from goldnode.fleet.ingest.bases import BASES, ROWS, base_file, write_cache
from goldnode.fleet.ingest.blocks import COMPARED, BlockReader, GroupRows, Ordered, by_key
from goldnode.fleet.ingest.findings import finding_columns, text_size
from goldnode.fleet.ingest.flatten import Flattener, constant, joined
from goldnode.fleet.ingest.node_columns import node_columns, uptime_seconds
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import NodeReport, ReportOrigin, brief, load, moment
from goldnode.fleet.ingest.text import clean
from goldnode.fleet.ingest.wire import WireChanges, is_digest
from goldnode.node.ground.changes import REPORTED, is_branch

_FORM = 2  # of the files
NOTHING, NUMBER, FACT, LONG = range(
    4
)  # what a value is in the rows; LONG: its change takes the long way
TYPES = {type(None): 0, bool: 1, int: 2, float: 2, str: 3, list: 4, dict: 5}
# Values that name a part, or make another kind of row of it.
NAMING = frozenset({"fault", *(field for fields in keys.PARTS.values() for field in fields)})
PART_LISTS = {key.rpartition(".")[2] for key in keys.PARTS} | set(keys.RENAMED)
FIRST_MARK = 7e9 + 0.5  # of numbers: no other value of a capture is one by chance
# Values outside of the rows that may change: of the capture, the columns of its node; of the verdict, nothing that is stored.
TIME, UPTIME = ("capture", "time"), ("capture", "uptime")
_UNSTORED = frozenset(
    {
        ("verdict", "time"),
        ("verdict", "uptime"),
        ("verdict", "recorded", "time"),
        ("gate", "since"),
    }
)
_NODE = ("identity", "simulated", "schema")  # of the capture: columns of the node
_MOST_SHARED = 2_000  # texts that rows of bases share, in memory
_WORD = 8  # bytes of a number
# Stands in for a capture while the rest of its report is parsed. No report can have it.
STAND_IN = secrets.token_hex(16)


@dataclass(frozen=True)
class ReportShape:
    """The row of each value of reports of one form. Blocks are those of numbers, then those of facts, sorted by key."""

    id: str
    kinds: npt.NDArray[np.int8]  # of each value
    types: npt.NDArray[np.int8]
    rows: npt.NDArray[np.int32]  # of numbers, or of facts
    number_keys: list[str]
    number_counts: npt.NDArray[np.int64]
    fact_keys: list[str]
    fact_counts: npt.NDArray[np.int64]
    time: int  # number of the value
    uptime: int

    @cached_property
    def size(self) -> int:
        """Number of rows of a capture."""
        return int(self.number_counts.sum() + self.fact_counts.sum())

    @cached_property
    def numbers(self) -> int:
        """Number of rows of numbers."""
        return int(self.number_counts.sum())

    @cached_property
    def number_blocks(self) -> npt.NDArray[np.int64]:
        """Block of each row of numbers."""
        return np.repeat(np.arange(len(self.number_keys)), self.number_counts)

    @cached_property
    def steps(self) -> npt.NDArray[np.float64]:
        """Step of each block of numbers; 0 for numbers that are stored as they are."""
        return np.array([precision.step(key) or 0.0 for key in self.number_keys])

    @cached_property
    def joined(self) -> dict[str, str]:
        """Texts of lists, by their representation."""
        return {}

    @cached_property
    def _fact_starts(self) -> list[int]:
        return list(accumulate(self.fact_counts.tolist(), initial=0))

    @cached_property
    def _fact_places(self) -> dict[int, tuple[str, int]]:
        return {}

    def fact_place(self, number: int) -> tuple[str, int]:
        """Return the key of a value that is a fact, and its place among those of the key."""
        place = self._fact_places.get(number)
        if place is None:
            row = int(self.rows[number])
            block = bisect_right(self._fact_starts, row) - 1
            place = (self.fact_keys[block], row - self._fact_starts[block])
            self._fact_places[number] = place
        return place

    def packed(self) -> bytes:
        """Return the shape as JSON."""
        arrays = ("kinds", "types", "rows", "number_counts", "fact_counts")
        content = {name: getattr(self, name).tolist() for name in arrays}
        names = ("number_keys", "fact_keys", "time", "uptime")
        return json.dumps({**content, **{name: getattr(self, name) for name in names}}).encode()

    @classmethod
    def unpacked(cls, id_: str, data: bytes) -> ReportShape:
        """Return the shape in these bytes. Raise an error of any kind for bytes of another form."""
        content = json.loads(data)
        return cls(
            id_,
            kinds=np.array(content["kinds"], np.int8),
            types=np.array(content["types"], np.int8),
            rows=np.array(content["rows"], np.int32),
            number_keys=content["number_keys"],
            number_counts=np.array(content["number_counts"], np.int64),
            fact_keys=content["fact_keys"],
            fact_counts=np.array(content["fact_counts"], np.int64),
            time=content["time"],
            uptime=content["uptime"],
        )


class SharedHead(NamedTuple):
    """Content of a report beside its rows, which many nodes share. `text`: characters of the findings."""

    class_: str
    engine: str | None
    verdict: Mapping[str, Any] | None  # as `report.brief` has it
    gate: Mapping[str, Any] | None
    findings: Mapping[str, list[str | None]]
    text: int


class BaseRows(NamedTuple):
    """The rows of a base: numbers in the order of the shape, and the texts of the facts that may change."""

    shape: ReportShape
    time: int
    check: int
    node: Mapping[str, Any]  # columns of the table of nodes
    texts: Mapping[str, list[str]]
    shared: SharedHead
    numbers: npt.NDArray[np.float64]


class QuickChanges(NamedTuple):
    """The rows of a capture that differ from those of its base, and the report without its capture."""

    report: NodeReport
    node: dict[str, Any]  # columns of the table of nodes
    base: BaseRows
    number_blocks: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.float64]
    facts: Mapping[str, list[str]]  # key -> texts


class ArrivedBase(NamedTuple):
    """A base by the form of its capture (forms.py)."""

    digest: str
    capture: bytes
    layout: object  # the same one for captures of the same form


class QuickBases:
    """The rows of bases of one ingest, and the shapes that they share.

    :param exact: numbers as they are, or to the stated precision. None: rows of either are read, and none are made.
    """

    def __init__(self, data: Path, exact: bool | None) -> None:
        self._data, self._exact = data, exact is not False
        self._rules = {rules(one) for one in (True, False) if exact in (one, None)}
        self._folder = f"{data}/{BASES}"
        self._shapes: dict[str, ReportShape | None] = {}
        self._marked: dict[str, ReportShape | None] = {}
        self._shared: dict[bytes, SharedHead] = {}
        # Shapes of captures by their form, each with the layout that its key is of.
        self._arrived: dict[tuple[int, str], tuple[ReportShape | None, object]] = {}
        self._flattener = Flattener()
        self._reader = BlockReader(self._flattener, self._exact)

    def load(self, node: str, digest: str) -> BaseRows | None:
        """Return the rows of a base; None where they are not stored, or by another goldnode."""
        try:
            with open(f"{self._folder}/{node}/{digest}{ROWS}", "rb", buffering=0) as file:  # noqa: PTH123 - thousands a second
                data = file.readall()
        except FileNotFoundError:
            return None
        try:
            if int(data[:8], 16) != zlib.crc32(memoryview(data)[9:]):
                return None
            middle = data.index(b"\n", 9)
            end = data.index(b"\n", middle + 1)
            own = from_json(data[9:middle])
            if own["rules"] not in self._rules:
                return None
            shape = self._shape(own["shape"])
            values = np.frombuffer(data, "<f8", offset=end + 1)
            shared = self._head(data[middle + 1 : end])
            rows = (own["time"], own["check"], own["node"], own["texts"])
        except (ValueError, KeyError, TypeError):
            return None
        if shape is None or len(values) != shape.numbers:
            return None
        return BaseRows(shape, *rows, shared, values)

    def _head(self, line: bytes) -> SharedHead:
        """Return what a line of JSON has. Raise an error of any kind for one of another form."""
        head = self._shared.get(line)
        if head is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            head = self._shared[line] = SharedHead(**json.loads(line))
        return head

    def _shape(self, id_: str) -> ReportShape | None:
        if id_ not in self._shapes:
            shape = None
            # It is made again with the next base.
            with suppress(OSError, ValueError, KeyError, TypeError, zlib.error):
                shape = ReportShape.unpacked(id_, zlib.decompress(self._file(id_).read_bytes()))
            self._shapes[id_] = shape
        return self._shapes[id_]

    def _file(self, id_: str) -> Path:
        return self._data / BASES / ".shapes" / f"{id_}.z"

    def make(self, digest: str, base: Mapping[str, Any], report: NodeReport, packed: bytes) -> None:
        """Store the rows of a base whose capture is stored whole with these digests, if changes can be made of them."""
        try:
            self._flattener.add(report.capture)
        except RefusedReportError:
            return
        blocks = self._reader.take(report.milliseconds)
        if blocks.base.packed() == packed:
            own = _sorted_rows(GroupRows(self._flattener, self._reader, blocks))
            self._write(digest, report, self._shape_of(base, own.facts, own.numbers), own)

    def make_arrived(self, base: ArrivedBase, report: NodeReport, rows: GroupRows) -> None:
        """Store the rows of a base as it arrives, stored whole, so that the first changes from it are quick.

        Not where the node has sent its capture in other bytes than goldnode writes.
        """
        if not is_digest(base.digest):
            return
        try:
            body = bases.held_body(self._data, report.node, base.digest)
            before, own, after = body.partition(base.capture)
            around = load(b'%b"%b"%b' % (before, STAND_IN.encode(), after))
        except RefusedReportError:
            return
        if not own or around.get("capture") != STAND_IN:
            return
        form = (id(base.layout), _form({key: around[key] for key in REPORTED if key in around}))
        sorted_rows = _sorted_rows(rows)
        if form not in self._arrived:
            shape = self._shape_of(load(body), sorted_rows.facts, sorted_rows.numbers)
            self._arrived[form] = (shape, base.layout)
        self._write(base.digest, report, self._arrived[form][0], sorted_rows)

    def _write(
        self, digest: str, report: NodeReport, shape: ReportShape | None, own: _SortedRows
    ) -> None:
        """Write the rows of a base with this digest. Without a shape, no changes can be made of them."""
        if shape is None:
            return
        rows, facts, numbers = own
        listed, packed = rows.flattener.fact_list, rows.blocks.base.packed()
        texts, first = {}, 0
        codes = facts.values.tolist()
        for key, count in zip(facts.keys, facts.counts.tolist(), strict=True):
            own_facts = [listed[code] for code in codes[first : first + count]]
            first += count
            if not is_compared(key) and all(fault is None for _, _, fault in own_facts):
                texts[key] = [text for _, text, _ in own_facts]
        head = {
            "rules": rules(self._exact),
            "shape": shape.id,
            "time": report.milliseconds,
            "check": zlib.crc32(packed),
            "node": node_columns(report),
            "texts": texts,
        }
        content = _lines(head, _shared_head(report)) + numbers.values.astype("<f8").tobytes()
        file = base_file(self._data, report.node, digest, ROWS)
        write_cache(file, b"%08x\n" % zlib.crc32(content) + content)

    def _shape_of(
        self, base: Mapping[str, Any], facts: _Sorted, numbers: _Sorted
    ) -> ReportShape | None:
        """Return the shape of a report with these rows; None for one whose values cannot be followed into the rows."""
        report = {key: base[key] for key in REPORTED if key in base}
        rows = [facts.keys, facts.counts.tolist(), numbers.keys, numbers.counts.tolist()]
        content = json.dumps([rules(self._exact), _form(report), rows])
        id_ = hashlib.sha256(content.encode()).hexdigest()[:32]
        if self._shape(id_) is None and id_ not in self._marked:
            shape = self._marked[id_] = _marked_shape(
                id_, list(_values(report, ())), facts, numbers
            )
            if shape is not None:
                file = self._file(id_)
                write_cache(file, zlib.compress(shape.packed(), 1))
                self._shapes[id_] = shape
        return self._shapes[id_]


class _Sorted(NamedTuple):
    """Rows by blocks that are sorted by key."""

    keys: list[str]
    counts: npt.NDArray[np.int64]
    values: Any


def _sorted(rows: Ordered, names: list[str]) -> _Sorted:
    """Return rows in the order of keys: that of codes is another one in each process."""
    own = by_key(rows, names)
    return _Sorted(own.keys, own.counts, rows.values[own.rows])


class _SortedRows(NamedTuple):
    """The rows of a capture, and its facts and numbers sorted by key."""

    rows: GroupRows
    facts: _Sorted
    numbers: _Sorted


def _sorted_rows(rows: GroupRows) -> _SortedRows:
    facts = _sorted(rows.blocks.facts, rows.reader.fact_keys)
    return _SortedRows(rows, facts, _sorted(rows.blocks.numbers, rows.flattener.key_list))


def _values(branch: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield path and value of each value, in the order of their numbers."""
    for key in sorted(branch) if type(branch) is dict else range(len(branch)):
        inner = branch[key]
        if is_branch(inner):
            yield from _values(inner, (*path, key))
        else:
            yield (*path, key), inner


def _form(value: Any) -> str:
    """Return the keys of a tree and the types of its values, as one text: thousands of small objects cost more."""
    if not is_branch(value):
        return str(TYPES[type(value)])
    if type(value) is list:
        return f"[{','.join(map(_form, value))}]"
    shown = [
        f"{key!r}:{_form(inner) if is_branch(inner := value[key]) else TYPES[type(inner)]}"
        for key in sorted(value)
    ]
    return f"{{{','.join(shown)}}}"


def mark_of(number: int) -> str:
    return f"⟦{number}⟧"


def _marked_shape(
    id_: str, values: list[tuple[tuple[Any, ...], Any]], facts: _Sorted, numbers: _Sorted
) -> ReportShape | None:
    """Return the shape of a report, by the rows of one with marks in place of its values."""
    marked: dict[str, Any] = {}
    kinds, marks = np.full(len(values), LONG, np.int8), {}
    paths = [path for path, _ in values]
    faulty = {path[:-1] for path in paths if path[-1] == "fault"}
    for number, (path, value) in enumerate(values):
        mark = value
        if path in _UNSTORED or path in (TIME, UPTIME):
            kinds[number] = NOTHING
        elif path[0] == "capture" and path[-1] not in NAMING and path[1] not in _NODE:
            # A list of parts without parts has no row, and one of texts has.
            parts = value == [] and path[-1] in PART_LISTS
            if (
                path[:-1] not in faulty
                and value is not None
                and type(value) is not dict
                and not parts
            ):
                mark = mark_of(number) if type(value) not in (int, float) else FIRST_MARK + number
                mark = [mark] if type(value) is list else mark
                marks[number] = mark
        _put(marked, path, mark)
    given = {value for _, value in values if type(value) is str}
    marked_rows = _marked_rows(marked.get("capture", {}), given, facts, numbers)
    if marked_rows is None:
        return None
    rows = np.full(len(values), -1, np.int32)
    in_facts, in_numbers, texts = marked_rows
    for number, mark in marks.items():
        one = mark[0] if type(mark) is list else mark
        if one in in_numbers:
            kinds[number], rows[number] = NUMBER, in_numbers[one]
        elif (text := constant(one) if type(one) is float else one) in in_facts:
            place = in_facts[text]
            compared = is_compared(
                facts.keys[int(np.searchsorted(np.cumsum(facts.counts), place, "right"))]
            )
            kinds[number], rows[number] = LONG if compared else FACT, place
        elif str(text) not in texts:
            kinds[number] = NOTHING  # no row has it
    return ReportShape(
        id_,
        kinds=kinds,
        types=np.array([TYPES[type(value)] for _, value in values], np.int8),
        rows=rows,
        number_keys=numbers.keys,
        number_counts=numbers.counts,
        fact_keys=facts.keys,
        fact_counts=facts.counts,
        time=paths.index(TIME) if TIME in paths else -1,
        uptime=paths.index(UPTIME) if UPTIME in paths else -1,
    )


def _marked_rows(
    capture: Any, given: set[str], facts: _Sorted, numbers: _Sorted
) -> tuple[dict[str, int], dict[float, int], str] | None:
    """Return the row of each text and of each number of a marked capture, and all texts; None if its rows are other ones."""
    flattener = Flattener()
    reader = BlockReader(flattener)
    try:
        flattener.add(_rebuilt(capture))
    except RefusedReportError:
        return None
    blocks = reader.take(0)
    own_facts = _sorted(blocks.facts, reader.fact_keys)
    own_numbers = _sorted(blocks.numbers, flattener.key_list)
    for own, other in ((own_facts, facts), (own_numbers, numbers)):
        if own.keys != other.keys or not np.array_equal(own.counts, other.counts):
            return None
    texts = [flattener.fact_list[code][1] for code in own_facts.values.tolist()]
    # A long list is stored as its digest, which shows no mark.
    if any(text.startswith("sha256:") and text not in given for text in texts):
        return None
    every = "\0".join([*texts, *flattener.item_list])
    places = {value: place for place, value in enumerate(own_numbers.values.tolist())}
    return {text: place for place, text in enumerate(texts)}, places, every


def _put(tree: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Put a value into a tree of dictionaries; a key that is a number is a place in a list."""
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = value


def _rebuilt(tree: Any) -> Any:
    """Return the tree with its lists."""
    if type(tree) is not dict:
        return tree
    if tree and all(type(key) is int for key in tree):
        return [_rebuilt(tree[key]) for key in sorted(tree)]
    return {key: _rebuilt(value) for key, value in tree.items()}


@cache
def is_compared(key: str) -> bool:
    """Return whether reports compare the facts of a key: the digest of a section is of them."""
    return keys.kind(key, number=False) in COMPARED


@cache
def rules(exact: bool) -> str:
    """Return a digest of what rows are made by: rows of another goldnode are not used."""
    steps = [(one.pattern, one.step) for one in precision.precisions()]
    own = (_FORM, exact, keys.RULES, sorted(NAMING), sorted(_UNSTORED), [] if exact else steps)
    return hashlib.sha256(repr(own).encode()).hexdigest()[:16]


def _lines(own: Mapping[str, Any], shared: SharedHead) -> bytes:
    """Return the two lines of JSON in a file of rows, with spaces after the first so that numbers begin at a word."""
    first, second = (
        json.dumps(content, separators=(",", ":")).encode() for content in (own, shared._asdict())
    )
    gap = -(len("00000000\n\n\n") + len(first) + len(second)) % _WORD
    return first + b" " * gap + b"\n" + second + b"\n"


def _shared_head(report: NodeReport) -> SharedHead:
    """Return what a report has beside its rows and the columns of its node."""
    findings = finding_columns(report)
    return SharedHead(
        report.class_,
        engine=report.origin.engine,
        verdict=brief(report).verdict,
        gate=report.gate,
        findings=findings,
        text=text_size(findings),
    )


@dataclass(frozen=True)
class QuickReport:
    """Changes with the bytes that they came in, and the source that the controller names."""

    changes: WireChanges
    data: bytes
    source: str
    now: datetime


def quick(base: BaseRows, one: QuickReport, exact: bool) -> QuickChanges | None:
    """Return the rows of changes; None where they take the long way. Raise RefusedReportError for what is no report."""
    shape, changes = base.shape, one.changes
    numbers = np.array(changes.at, np.int64).cumsum()
    if changes.trees or not len(numbers) or numbers[-1] >= len(shape.kinds):
        return None
    kinds = shape.kinds[numbers]
    types = list(map(TYPES.get, map(type, changes.to)))
    if (kinds == LONG).any() or types != shape.types[numbers].tolist():
        return None
    counted = kinds == NUMBER
    left = {
        number: (kind, value)
        for number, kind, value in zip(
            numbers[~counted].tolist(),
            kinds[~counted].tolist(),
            compress(changes.to, (~counted).tolist()),
            strict=True,
        )
    }
    if shape.time not in left:
        return None
    report = _report(base, one, left[shape.time][1])
    node = {**base.node, "source": one.source}
    if shape.uptime in left:
        node["uptime"] = uptime_seconds(left[shape.uptime][1])
    facts = _facts(base, {number: value for number, (kind, value) in left.items() if kind == FACT})
    given = list(compress(changes.to, counted.tolist()))
    chosen = _numbers(base, numbers[counted], given, exact)
    if facts is None or chosen is None:
        return None
    return QuickChanges(report, node, base, *chosen, facts)


def _numbers(
    base: BaseRows, numbers: npt.NDArray[np.int64], given: list[Any], exact: bool
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]] | None:
    """Return the blocks of numbers that differ, and their values; None for what is no finite number."""
    shape = base.shape
    hit = np.zeros(len(shape.number_keys), np.bool_)
    if not given:
        return hit, np.empty(0)
    rows = shape.rows[numbers]
    try:
        values = np.array(given, np.float64)
    except OverflowError:
        return None  # the long way refuses it by its key
    if not math.isfinite(values.sum()) and not np.isfinite(values).all():
        return None
    blocks = shape.number_blocks[rows]
    if not exact:
        steps = shape.steps[blocks]
        rounded = steps > 0
        values[rounded] = np.round(values[rounded] / steps[rounded]) * steps[rounded]
    own = base.numbers.copy()
    own[rows] = values
    hit[blocks[values.view(np.uint64) != base.numbers[rows].view(np.uint64)]] = True
    return hit, own[hit[shape.number_blocks]]


def _facts(base: BaseRows, values: Mapping[int, Any]) -> dict[str, list[str]] | None:
    """Return the texts of each key whose facts differ. `values` are by their numbers."""
    own, known = base.texts, base.shape.joined
    if len(known) > _MOST_SHARED:
        known.clear()
    changed: dict[str, list[str]] = {}
    for number, value in values.items():
        key, place = base.shape.fact_place(number)
        if key not in own:
            return None
        texts = changed.get(key)
        if texts is None:
            texts = changed[key] = list(own[key])
        if (
            type(value) is list
        ):  # most are lists of a few reasons: joining them takes ten times as long
            text = known.get(repr(value))
            if text is None:
                text = known[repr(value)] = fact_text(value, key)
        else:
            text = fact_text(value, key)
        texts[place] = text
    return {key: texts for key, texts in changed.items() if texts != own[key]}


def fact_text(value: Any, key: str) -> str:
    """Return a value as the text of a fact, as the Flattener does."""
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is list:
        return clean(joined(value, key))
    return clean(value if type(value) is str else constant(value, key))


def _report(base: BaseRows, one: QuickReport, time: Any) -> NodeReport:
    """Return the report without its capture, as `report.brief` does. Raise RefusedReportError for a time of another form."""
    node, shared = one.changes.node, base.shared
    return NodeReport(
        node,
        class_=shared.class_,
        time=moment(time, one.now),
        origin=ReportOrigin(one.source, node=node, class_=shared.class_, engine=shared.engine),
        capture={"simulated": base.node["simulated"]},
        verdict=shared.verdict,
        digest=hashlib.sha256(one.data).hexdigest(),
        gate=shared.gate,
    )


def fits(base: BaseRows, time: int, check: int) -> bool:
    """Return whether the rows of a base are those that are stored: its time, and the check of its digests."""
    return base.time == time and base.check == check
