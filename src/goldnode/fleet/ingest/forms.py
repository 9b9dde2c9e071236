"""Whole captures by their bytes, without a parser and a walk: most have the form of one before, and differ from it in values.

JSON in which a value is replaced by another one has the same form. Where the bytes of a capture are those of an earlier one, its
model, but for values, its rows are those of the model but for what follows from these values. All else takes the long way: the
capture is parsed and flattened. Both ways give the same rows.

A capture is cut at each `}`, and pieces that differ from those of the model are searched for values. Which rows follow from a
value is found by flattening the model with a mark in place of each one, as for changes (quick.py).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from operator import ne
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import from_json

from goldnode.fleet.ingest.blocks import CaptureBlocks, GroupRows, by_key
from goldnode.fleet.ingest.flatten import LONGEST_ITEM, Flattener
from goldnode.fleet.ingest.form_layout import (
    FACT,
    HEADS,
    NUMBER,
    PART,
    VALUE,
    FormLayout,
    at,
    layout_of,
)
from goldnode.fleet.ingest.quick import STAND_IN, TYPES, fact_text
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import load
from goldnode.fleet.ingest.text import clean
from goldnode.node.ground.verdict_files import LARGEST_REPORT

_CAPTURE = b'"capture":'  # the key of a capture in a report
_MOST_BYTES = 1 << 16  # of the values that differ from those of a model
_MOST_MODELS = 8
_SEEN = 4  # captures of one form that take the long way before one of them becomes a model


class FormedCapture(NamedTuple):
    """A capture by its model. Its document has only those parts of the capture that no row is of."""

    model: FormModel
    numbers: list[int]  # of the values that differ
    values: list[Any]
    document: dict[str, Any]
    content: bytes  # of the capture


class _UsualPieces(NamedTuple):
    """Pieces of a model that other captures differ from: what is around their values, these, and the numbers of these."""

    places: list[int]
    around: list[bytes]
    values: list[bytes]
    numbers: list[int]


class FormModel:
    """One capture of a form: its bytes, and its blocks in one group of rows."""

    def __init__(
        self, layout: FormLayout, pieces: list[bytes], capture: Mapping[str, Any], nested: bool
    ) -> None:
        self.layout, self._pieces, self._nested = layout, pieces, nested
        self._tokens: dict[int, list[bytes]] = {}
        self._usual = _UsualPieces([], [b""], [], [])
        self._alone: set[int] = set()  # pieces that are not among the usual ones
        self._head = {"identity": {}, **{key: capture[key] for key in HEADS if key in capture}}
        self._names = {
            number: clean(at(capture, layout.places[number].path)) for number in layout.groups
        }

    def take(self, rows: GroupRows) -> bool:
        """Take the blocks of the capture in a group of rows. Return False if they are not those of the form."""
        flattener, reader, blocks = rows
        # A model outlives the group of its rows: those of a class with new names of parts (UUIDs) in each
        # capture are megabytes.
        self._flattener, self._reader = weakref.ref(flattener), weakref.ref(reader)
        layout, texts = self.layout, flattener.item_list
        facts = by_key(blocks.facts, reader.fact_keys)
        numbers = by_key(blocks.numbers, flattener.key_list)
        filled = [self._filled(parts, {}) for parts in layout.items]
        for own, table, form in (
            (facts, blocks.facts, layout.facts),
            (numbers, blocks.numbers, layout.numbers),
        ):
            items = [texts[code] for code in table.items[own.rows].tolist()]
            if (own.keys, own.counts.tolist()) != (form.keys, form.counts) or items != [
                filled[item] for item in form.items
            ]:
                return False
        self._facts, self._numbers, self._blocks = facts.rows, numbers.rows, blocks
        self._items = np.array([flattener.item(text) for text in filled], np.int32)
        self._fact_items = np.empty(len(facts.rows), np.int32)
        self._fact_items[facts.rows] = layout.facts.items
        self._number_items = np.empty(len(numbers.rows), np.int32)
        self._number_items[numbers.rows] = layout.numbers.items
        self._number_keys = np.repeat(blocks.numbers.keys, blocks.numbers.counts)
        return True

    def at(self, rows: GroupRows, data: bytes, document: Mapping[str, Any]) -> FormModel | None:
        """Return a model for another group of rows, of a document that this one could read."""
        pieces = data[_begin(data, self._nested) :].split(b"}", len(self._pieces))[:-1]
        capture = document["capture"] if self._nested else document
        other = FormModel(self.layout, pieces, capture, self._nested)
        return other if other.take(rows) else None

    def read(self, data: bytes) -> FormedCapture | None:
        """Return the capture in these bytes; None for one of another form."""
        start = _begin(data, self._nested)
        count = len(self._pieces)
        pieces = data[start:].split(b"}", count)
        if start < 0 or len(pieces) <= count:
            return None
        usual = self._usual_pieces()
        differing = set(compress(range(count), map(ne, self._pieces, pieces)))
        rest = sorted(differing.difference(usual.places))
        numbers: list[int] = []
        tokens: list[bytes] = []
        for text, (around, listed), own in (
            (_joined(pieces, usual.places), (usual.around, usual.numbers), usual.values),
            *((pieces[place], self.layout.piece(place), self._own(place)) for place in rest),
        ):
            parts = VALUE.split(text)
            if parts[::2] != around:
                return None
            values = parts[1::2]
            changed = list(map(ne, values, own))
            numbers += compress(listed, changed)
            tokens += compress(values, changed)
        joined = b",".join(tokens)
        if -1 in numbers or len(joined) > _MOST_BYTES:
            return None
        try:
            given = from_json(b"[%b]" % joined, allow_inf_nan=False)
        except ValueError:
            return None
        document = self._document(data[:start], pieces[-1], self._changed_head(numbers, given))
        if document is None:
            return None
        self.layout.add_differing(rest)
        content = data[start : len(data) - len(pieces[-1])]
        return FormedCapture(self, numbers, given, document, content)

    def _usual_pieces(self) -> _UsualPieces:
        """Return the pieces that most captures of the form have in other bytes, to be searched at once."""
        known = self.layout.differing
        if len(known) > len(self._usual.places) + len(self._alone):
            # A text with a brace is cut in two. Its begin would be one value with what follows it here.
            places = [one for one in sorted(known) if not _has_brace(self._pieces[one] + b'}"]')]
            if _has_brace(_joined(self._pieces, places)):
                places = []
            self._alone = known.difference(places)
            parts = VALUE.split(_joined(self._pieces, places))
            numbers = [number for place in places for number in self.layout.piece(place)[1]]
            self._usual = _UsualPieces(places, parts[::2], parts[1::2], numbers)
        return self._usual

    def _own(self, place: int) -> list[bytes]:
        """Return the values of a piece of the model."""
        tokens = self._tokens.get(place)
        if tokens is None:
            tokens = self._tokens[place] = VALUE.split(self._pieces[place])[1::2]
        return tokens

    def _changed_head(self, numbers: Sequence[int], values: Sequence[Any]) -> dict[str, Any]:
        head = {**self._head, "identity": {**self._head["identity"]}}
        changed = dict(zip(numbers, values, strict=True))
        for number, path in self.layout.heads:
            if number in changed:
                at(head, path[:-1])[path[-1]] = changed[number]
        return head

    def _document(self, before: bytes, after: bytes, head: dict[str, Any]) -> dict[str, Any] | None:
        """Return the document that a capture with this head is in; None if the capture is another part of it."""
        if not self._nested:
            return None if after.strip(b" \t\r\n") else head
        try:
            document = load(b'%b"%b"%b' % (before, STAND_IN.encode(), after))
        except RefusedReportError:
            return None
        return {**document, "capture": head} if document.get("capture") == STAND_IN else None

    def blocks(self, one: FormedCapture, time: int) -> CaptureBlocks | None:
        """Return the blocks of a capture; None for one that takes the long way, which may refuse it."""
        layout, flattener, reader = self.layout, self._flattener(), self._reader()
        if flattener is None or reader is None:
            return None
        numbers = np.array(one.numbers, np.int64)
        if list(map(TYPES.get, map(type, one.values))) != layout.types[numbers].tolist():
            return None
        kinds = layout.kinds[numbers]
        counted, stated = (kinds & NUMBER) > 0, (kinds & FACT) > 0
        try:
            measured = np.array(list(compress(one.values, counted.tolist())), np.float64)
            texts = [fact_text(value, "") for value in compress(one.values, stated.tolist())]
            items = self._renamed(one, ((kinds & PART) > 0).tolist())
        except (RefusedReportError, OverflowError):
            return None
        if items is None or not math.isfinite(measured.sum()):
            return None
        facts, readings = self._blocks.facts, self._blocks.numbers
        values, changed = facts.values.copy(), readings.values.copy()
        places = self._numbers[layout.rows[numbers[counted]]]
        changed[places] = reader.rounded(measured, self._number_keys[places])
        rows = self._facts[layout.rows[numbers[stated]]].tolist()
        for row, text in zip(rows, texts, strict=True):
            values[row] = flattener.fact_code(flattener.fact_list[values[row]][0], text)
        codes = self._items
        if items:
            codes = codes.copy()
            codes[list(items)] = flattener.new_items(list(items.values()))
        return reader.digested(
            facts.replaced(codes[self._fact_items], values),
            readings.replaced(codes[self._number_items], changed),
            time,
        )

    def is_of(self, flattener: Flattener) -> bool:
        """Return whether its rows are in the group with this Flattener."""
        return self._flattener() is flattener

    def _renamed(self, one: FormedCapture, chosen: Sequence[bool]) -> dict[int, str] | None:
        """Return the items that differ; None where the names alone do not tell parts apart."""
        layout = self.layout
        values = zip(compress(one.numbers, chosen), compress(one.values, chosen), strict=True)
        names = {number: clean(value) for number, value in values}
        for group in {layout.groups[number] for number in names}:
            own = [names.get(number, self._names[number]) for number in group.numbers]
            if len(set(own)) < len(own) or "" in own or not group.others.isdisjoint(own):
                return None
        items: dict[int, str] = {}
        for number, name in names.items():
            items.update((item, name + text) for item, text in layout.ends[number])
            for item in layout.named[number]:
                items[item] = self._filled(layout.items[item], names)
        return None if max(map(len, items.values()), default=0) > LONGEST_ITEM else items

    def _filled(self, parts: tuple[str | int, ...], names: Mapping[int, str]) -> str:
        own = self._names
        return "".join(
            [part if isinstance(part, str) else names.get(part, own[part]) for part in parts]
        )


class CaptureForms:
    """The models of an ingest, the one that was used last first."""

    def __init__(self) -> None:
        self._models: list[FormModel] = []
        self._seen: dict[Any, int] = {}

    def read(self, data: bytes) -> Iterator[FormedCapture]:
        """Yield the capture of a document by each model whose form it has."""
        for model in list(self._models) if len(data) <= LARGEST_REPORT else ():
            formed = model.read(data)
            if formed is not None:
                self._use(model)
                yield formed

    def learn(
        self,
        data: bytes,
        document: Mapping[str, Any],
        rows: GroupRows,
        formed: FormedCapture | None = None,
    ) -> None:
        """Make a model of a capture that took the long way, if others of its form have come.

        :param formed: the capture by a model of other rows.
        """
        if formed is not None:
            model = formed.model.at(rows, data, document)
        else:
            nested = "capture" in document
            form = (rows.blocks.base.keys.tobytes(), rows.blocks.rows, nested)
            self._seen[form] = seen = self._seen.get(form, 0) + 1
            # Where a model did not help, others are tried less and less often.
            if seen < _SEEN or seen & (seen - 1):
                return
            model = _model(data, document, nested)
            if model is not None and not model.take(rows):
                model = None
        if model is not None:
            self._use(model)
            del self._models[_MOST_MODELS:]

    def _use(self, model: FormModel) -> None:
        if model in self._models:
            self._models.remove(model)
        self._models.insert(0, model)


def _joined(pieces: Sequence[bytes], places: Sequence[int]) -> bytes:
    return b"}".join([pieces[place] for place in places])


def _has_brace(text: bytes) -> bool:
    """Return whether a value in this text has a brace, which pieces are cut at."""
    return any(b"}" in value for value in VALUE.findall(text))


def _begin(data: bytes, nested: bool) -> int:
    """Return where the capture of a document begins; -1 for none."""
    return data.find(b"{", data.find(_CAPTURE) + 1) if nested else 0


def _model(data: bytes, document: Mapping[str, Any], nested: bool) -> FormModel | None:
    """Return a model of a capture; None for one whose values cannot be followed into the rows."""
    capture = document["capture"] if nested else document
    layout = layout_of(data[_begin(data, nested) :], capture)
    return None if layout is None else FormModel(layout, layout.pieces, capture, nested)
