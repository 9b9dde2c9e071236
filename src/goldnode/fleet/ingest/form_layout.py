"""The layout of captures of one form: where their values are in the bytes, and what rows follow from each.

It is found by flattening one of them with a mark in place of each value, as for changes (quick.py), and looking where the marks are.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from goldnode.fleet.ingest.blocks import BlockReader, ByKey, Ordered, by_key
from goldnode.fleet.ingest.flatten import Flattener, constant
from goldnode.fleet.ingest.quick import FIRST_MARK, NAMING, PART_LISTS, TYPES, mark_of
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.text import clean

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
# A list of texts and numbers is one value: reports join them.
_LIST = rb'\[[^][{}"]*(?:' + _STRING + rb'[^][{}"]*)*\]'
# With the space before it: of a piece, only this colon is in no part of what is compared.
VALUE = re.compile(rb":( ?(?:" + _STRING + rb"|" + _LIST + rb'|[^][{},:"\s]+))', re.DOTALL)
_TOKEN = re.compile(_STRING + rb'|[][{},:]|[^][{},:"\s]+', re.DOTALL)
_MARK = re.compile("⟦(\\d+)⟧")
# Kinds of rows that a value leads to: a number, a fact, the item of a part, columns of the node. OTHER: a change takes the long way.
NUMBER, FACT, PART, HEAD, OTHER = (1 << bit for bit in range(5))
# Parts of a capture that columns of a node are of.
HEADS = ("schema", "time", "uptime", "simulated", "identity")

_Path = tuple[Any, ...]


class _Place(NamedTuple):
    """One value in the bytes of a capture."""

    start: int
    end: int
    path: _Path


class _TableRows(NamedTuple):
    """The rows of a form in one table, sorted by key: the keys, how many rows each has, and the item of each row."""

    keys: list[str]
    counts: list[int]
    items: list[int]


class _PartNames(NamedTuple):
    """The parts of one object or list: the values that name them, and names that none of these may be."""

    numbers: tuple[int, ...]
    others: frozenset[str]


@dataclass
class FormLayout:
    """Where the values of a form are, and what follows from them. Values have numbers, in the order of the bytes."""

    pieces: list[bytes]  # of the capture that it was made of
    places: list[_Place]
    kinds: npt.NDArray[np.int8]
    types: npt.NDArray[np.int8]
    rows: npt.NDArray[np.int32]  # of each number or fact among those sorted by key
    facts: _TableRows
    numbers: _TableRows
    items: list[tuple[str | int, ...]]  # texts, and numbers of values
    ends: Mapping[
        int, list[tuple[int, str]]
    ]  # number of a value -> items that begin with it, and their other text
    named: Mapping[int, list[int]]  # number of a value -> other items with it
    groups: Mapping[int, _PartNames]  # number of a value -> the parts of which it names one

    def __post_init__(self) -> None:
        self._first = [0, *accumulate(len(piece) + 1 for piece in self.pieces)]
        self._numbers = {place.start: number for number, place in enumerate(self.places)}
        self._known: dict[int, tuple[list[bytes], list[int]]] = {}
        self.differing: set[int] = set()  # pieces that captures of the form had in other bytes
        self.heads = [
            (number, self.places[number].path)
            for number in np.flatnonzero(self.kinds & HEAD).tolist()
        ]

    def add_differing(self, places: Sequence[int]) -> None:
        """Note pieces that a capture of the form has in other bytes. All of them would take longer to search than those that differ."""
        if len(self.differing) + len(places) <= len(self.pieces) // 2:
            self.differing.update(places)

    def piece(self, place: int) -> tuple[list[bytes], list[int]]:
        """Return what is around the values of a piece, and their numbers; -1 for what takes the long way, or only looks like a value."""
        known = self._known.get(place)
        if known is None:
            own, first, numbers = self.pieces[place], self._first[place], []
            for match in VALUE.finditer(own):
                start = first + match.start(1) + match[1].startswith(b" ")
                number = self._numbers.get(start, -1)
                own_kind = OTHER if number < 0 else self.kinds[number]
                numbers.append(-1 if own_kind == OTHER else number)
            known = self._known[place] = (VALUE.split(own)[::2], numbers)
        return known


def layout_of(data: bytes, capture: Mapping[str, Any]) -> FormLayout | None:
    """Return the layout of a capture that these bytes begin with; None for one whose values cannot be followed into the rows."""
    try:
        places, end = _places(data)
        tokens = b",".join([data[place.start : place.end] for place in places])
        # Nothing else has been taken for the values of the capture.
        if from_json(b"[%b]" % tokens) != [at(capture, place.path) for place in places]:
            return None
    except (ValueError, LookupError, TypeError, StopIteration):
        return None
    marked = _MarkedCapture(places, capture)
    if not marked.flatten():
        return None
    items = [_parts(text) for text in marked.items]
    named, ends = _named(items)
    groups = _groups(named, places, capture)
    kinds, rows = marked.kinds(named, groups)
    return FormLayout(
        data[:end].split(b"}")[:-1],
        places,
        kinds=kinds,
        types=marked.types,
        rows=rows,
        facts=marked.facts,
        numbers=marked.numbers,
        items=items,
        ends=ends,
        named=named,
        groups=groups,
    )


def _places(data: bytes) -> tuple[list[_Place], int]:
    """Return the values of an object at the begin of these bytes, and its end. Raise ValueError for a key that is there twice."""
    tokens = _TOKEN.finditer(data)
    places: list[_Place] = []
    return places, _add_places(places, next(tokens), tokens, ())


def _add_places(
    places: list[_Place], first: re.Match[bytes], tokens: Iterator[re.Match[bytes]], path: _Path
) -> int:
    """Add the values of what begins with a token. Return its end."""
    if first[0] == b"{":
        names: set[str] = set()
        while (token := next(tokens))[0] != b"}":
            if token[0] == b",":
                continue
            name = json.loads(token[0])
            if name in names:
                raise ValueError(name)
            names.add(name)
            next(tokens)  # the colon
            _add_places(places, next(tokens), tokens, (*path, name))
        return token.end()
    if first[0] != b"[":
        places.append(_Place(first.start(), first.end(), path))
        return first.end()
    count, element, branch = len(places), 0, False
    while (token := next(tokens))[0] != b"]":
        if token[0] != b",":
            branch = branch or token[0] in (b"{", b"[")
            _add_places(places, token, tokens, (*path, element))
            element += 1
    if not branch:
        places[count:] = [_Place(first.start(), token.end(), path)]
    return token.end()


class _MarkedCapture:
    """A capture with a mark in place of each value, and its rows."""

    def __init__(self, places: list[_Place], capture: Mapping[str, Any]) -> None:
        self._places = places
        values = [at(capture, place.path) for place in places]
        self.types = np.array([TYPES[type(value)] for value in values], np.int8)
        self._given = {value for value in values if type(value) is str}
        self._capture: Any = copy.deepcopy(capture)
        self._marks: dict[int, str | float] = {}
        faults = {place.path[:-1] for place in places if place.path[-1] == "fault"}
        for number, (value, place) in enumerate(zip(values, places, strict=True)):
            if place.path[:-1] not in faults and _can_change(value, place.path):
                counted = type(value) in (int, float)
                own = self._marks[number] = FIRST_MARK + number if counted else mark_of(number)
                inner = at(self._capture, place.path[:-1])
                inner[place.path[-1]] = [own] if type(value) is list else own

    def flatten(self) -> bool:
        """Make the rows. Return False where not all marks can be seen in them."""
        flattener = Flattener()
        reader = BlockReader(flattener)
        try:
            flattener.add(self._capture)
        except RefusedReportError:
            return False
        blocks = reader.take(0)
        facts = by_key(blocks.facts, reader.fact_keys)
        numbers = by_key(blocks.numbers, flattener.key_list)
        self.facts = _table_rows(facts, blocks.facts)
        self.numbers = _table_rows(numbers, blocks.numbers)
        self.items = flattener.item_list
        codes = blocks.facts.values[facts.rows].tolist()
        self._texts = [flattener.fact_list[code][1] for code in codes]
        self._values = blocks.numbers.values[numbers.rows].tolist()
        # A long list is stored as its digest, which shows no mark.
        return all(text in self._given or not text.startswith("sha256:") for text in self._texts)

    def kinds(
        self, named: Mapping[int, list[int]], groups: Mapping[int, _PartNames]
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
        """Return what follows from each value, and its row. `named` and `groups`: of values that name parts."""
        kinds = np.full(len(self._places), OTHER, np.int8)
        rows = np.full(len(self._places), -1, np.int32)
        row_of: dict[str | float, int] = {one: row for row, one in enumerate(self._texts)}
        row_of |= {one: row for row, one in enumerate(self._values)}
        texts = {
            number: constant(own) if type(own) is float else str(own)
            for number, own in self._marks.items()
        }
        within = "\0".join(sorted(set(self._texts).difference(texts.values())))
        for number, own in self._marks.items():
            if texts[number] in within or (number in named and number not in groups):
                continue
            path = self._places[number].path
            kind = HEAD if path[0] in HEADS and len(path) < 3 else 0
            if type(own) is float and own in row_of:
                kind, rows[number] = kind | NUMBER, row_of[own]
            elif texts[number] in row_of:
                kind, rows[number] = kind | FACT, row_of[texts[number]]
            kinds[number] = kind | (PART if number in named else 0)
        return kinds, rows


def _named(
    items: list[tuple[str | int, ...]],
) -> tuple[dict[int, list[int]], dict[int, list[tuple[int, str]]]]:
    """Return the items with each value that names parts: those of several values, and the ends of those that begin with it."""
    named: dict[int, list[int]] = {}
    ends: dict[int, list[tuple[int, str]]] = {}
    for item, parts in enumerate(items):
        numbers = {part for part in parts if isinstance(part, int)}
        for number in numbers:
            named.setdefault(number, [])
            ends.setdefault(number, [])
            if len(numbers) > 1 or type(parts[0]) is str or len(parts) > 2:
                named[number].append(item)
            else:
                ends[number].append((item, "".join(map(str, parts[1:]))))
    return named, ends


def _can_change(value: Any, path: _Path) -> bool:
    """Return whether another value of this type can make no other kind of row."""
    if value is None or path in (("schema",), ("simulated",)):
        return False
    if path[-1] in NAMING:
        return type(value) is str and value != ""
    return type(value) is not list or path[-1] not in PART_LISTS


def _groups(
    named: Mapping[int, list[int]], places: list[_Place], capture: Mapping[str, Any]
) -> dict[int, _PartNames]:
    """Return the parts that values name, by these. Those of a list must all be named by texts."""
    containers: dict[_Path, list[int]] = {}
    for number in named:
        containers.setdefault(places[number].path[:-2], []).append(number)
    groups = {}
    for path, numbers in containers.items():
        parts = at(capture, path)
        if type(parts) is list and len({places[number].path[-2] for number in numbers}) < len(
            parts
        ):
            continue
        others: set[str] = set()
        for name, part in parts.items() if type(parts) is dict else ():
            # The name of a part in the document is a fact of it, unless it is its identity.
            others.add(clean(name))
            if type(part) is dict:
                others.update(str(part[key]) for key in NAMING if type(part.get(key)) is int)
        group = _PartNames(tuple(numbers), frozenset(others))
        groups.update(dict.fromkeys(numbers, group))
    return groups


def _parts(item: str) -> tuple[str | int, ...]:
    """Return an item as texts, and the numbers of the values whose marks are in it."""
    parts = _MARK.split(item)
    return tuple(
        int(part) if place % 2 else part for place, part in enumerate(parts) if part or place % 2
    )


def _table_rows(rows: ByKey, blocks: Ordered) -> _TableRows:
    return _TableRows(rows.keys, rows.counts.tolist(), blocks.items[rows.rows].tolist())


def at(tree: Any, path: Iterable[Any]) -> Any:
    """Return what is at a path."""
    for step in path:
        tree = tree[step]
    return tree
