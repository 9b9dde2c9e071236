"""Turn captures into rows: key, item and value of every leaf.

Most of a capture is the same on each node of a class: the rows of an object are remembered with its
content, and copied when the same content comes again.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from goldnode.fleet.ingest.keys import NESTED, PARTS, RENAMED, KeyKind, kind
from goldnode.fleet.ingest.refused import AGAIN, RefusedReportError
from goldnode.fleet.ingest.text import LONGEST, clean

MOST_VALUES = 50_000  # of one capture; one of an 8-way node with 18 links for each GPU has 3,300
DEEPEST = 12  # objects inside objects; the schema has 7
# Characters of a key, and of the identity of a part. Both have the names of all objects around them: without a limit, a
# report of 1 MB would need gigabytes of memory.
LONGEST_KEY, LONGEST_ITEM = 400, 2_000
SEPARATOR = "/"  # between the identity of a part and that of a part inside it
FAULTS = ("not_exposed", "unread")
_MEASURED = (KeyKind.COUNTER, KeyKind.GAUGE)
# An object is remembered until more of its tries failed than this, and less than one of eight found it.
_TRIES, _RARELY = 32, 8
_REMEMBERED = 2_000  # contents of one object
_LARGEST = 65_536  # bytes of one content


class Leaf(NamedTuple):
    """One value of a capture. Numbers are floats; `fault` is set where the node has no value."""

    key: str
    item: str
    value: str | float
    fault: str | None = None


class Rows:
    """Rows of captures: codes of facts, codes of the keys of numbers with their values, and runs of items.

    A run is the code of an item with the number of facts and of numbers before it. It lasts until
    the next one.
    """

    __slots__ = ("fact_starts", "facts", "items", "keys", "number_starts", "numbers")

    def __init__(self) -> None:
        self.facts, self.keys, self.numbers = array("i"), array("i"), array("d")
        self.items, self.fact_starts, self.number_starts = array("i"), array("i"), array("i")

    def lengths(self) -> tuple[int, ...]:
        """Return the length of each column."""
        return tuple(len(getattr(self, name)) for name in self.__slots__)

    def cut(self, lengths: tuple[int, ...]) -> None:
        """Remove all rows after these lengths."""
        for name, length in zip(self.__slots__, lengths, strict=True):
            del getattr(self, name)[length:]


class _Remembered(NamedTuple):
    """Rows of an object. Items are relative to the item of the object."""

    facts: array[int]
    keys: array[int]
    numbers: array[float]
    runs: list[tuple[str, int, int]]


class _Name:
    """One key, with what is known of it and of the keys below it. Codes are of one Flattener."""

    __slots__ = (
        "children", "codes", "constants", "dropped", "failed", "fields", "found", "key", "measured", "memory", "nested", "number_code",
    )  # fmt: skip

    def __init__(self, key: str) -> None:
        self.key = key
        self.children: dict[str, _Name] = {}
        self.fields = PARTS.get(key)
        self.nested = NESTED.get(key)
        number = kind(key, number=True)
        self.dropped = number is KeyKind.DROPPED
        self.measured = number in _MEASURED
        self.codes: dict[str, int] = {}  # text of the document -> code of the fact
        self.number_code = -1
        self.constants: dict[int | float, str] = {}  # texts of numbers that are facts
        self.memory: dict[bytes, _Remembered] | None = {}
        self.found = self.failed = 0


class Flattener:
    """Flattens captures into `rows`. Their codes are places in `facts`, `keys` and `items`."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str, str | None], int] = {}  # key, value, fault
        self.keys: dict[str, int] = {}
        self.items: dict[str, int] = {}
        # The same in the order of their codes.
        self.fact_list: list[tuple[str, str, str | None]] = []
        self.key_list: list[str] = []
        self.item_list: list[str] = []
        self.rows = Rows()
        self.text = 0  # characters of all facts and items, which are in memory once
        self._root = _Name("")
        self._names = self._first = 0

    def add(self, capture: Mapping[str, Any]) -> None:
        """Add the rows of a capture. Raise RefusedReportError for what is too large, too deep, or no number.

        A refused capture leaves nothing, in the dictionaries neither.
        """
        rows = self.rows
        before = rows.lengths()
        dictionaries: tuple[tuple[dict[Any, int], list[Any]], ...] = (
            (self.facts, self.fact_list),
            (self.keys, self.key_list),
            (self.items, self.item_list),
        )
        texts, text = [len(listed) for _, listed in dictionaries], self.text
        first = len(rows.numbers)
        self._first = len(rows.facts) + first
        try:
            self._start("")
            self._object(capture, self._root, "", -1)
            # An exponent that is too large is read as infinite. The sum of finite numbers may be it as well.
            if not math.isfinite(sum(rows.numbers[first:])):
                self._check_finite(first)
        except BaseException:
            rows.cut(before)
            self.text = text
            for (known, listed), count in zip(dictionaries, texts, strict=True):
                del listed[count:]
                while len(known) > count:
                    known.popitem()
            # Its memory may have codes of the refused capture.
            self._root, self._names = _Name(""), 0
            raise

    def fact_code(self, key: str, text: str) -> int:
        """Return the code of a fact whose text is clean."""
        fact = (key, text, None)
        code = self.facts.setdefault(fact, len(self.facts))
        if code == len(self.fact_list):
            self.fact_list.append(fact)
            self.text += len(text)
        return code

    def number_code(self, key: str) -> int:
        """Return the code of a key of numbers."""
        code = self.keys.setdefault(key, len(self.keys))
        if code == len(self.key_list):
            self.key_list.append(key)
        return code

    def leaves(self) -> Iterator[Leaf]:
        """Yield the leaves of all captures, facts first."""
        rows, facts, keys, items = self.rows, self.fact_list, self.key_list, self.item_list
        for starts, end in (
            (rows.fact_starts, len(rows.facts)),
            (rows.number_starts, len(rows.numbers)),
        ):
            for item, first, last in zip(rows.items, starts, [*starts, end][1:], strict=True):
                for row in range(first, last):
                    if starts is rows.fact_starts:
                        key, value, fault = facts[rows.facts[row]]
                        yield Leaf(key, items[item], value, fault)
                    else:
                        yield Leaf(keys[rows.keys[row]], items[item], rows.numbers[row])

    def _check_finite(self, first: int) -> None:
        for key, value in zip(self.rows.keys[first:], self.rows.numbers[first:], strict=True):
            if not math.isfinite(value):
                raise _no_number(self.key_list[key])

    def _start(self, item: str) -> None:
        """Begin a run."""
        rows = self.rows
        rows.items.append(self.item(item))
        rows.fact_starts.append(len(rows.facts))
        rows.number_starts.append(len(rows.numbers))

    def item(self, item: str) -> int:
        """Return the code of an item."""
        code = self.items.get(item)
        if code is not None:
            return code
        if len(item) > LONGEST_ITEM:
            raise RefusedReportError(
                f"the identity of a part has {len(item)} characters, more than {LONGEST_ITEM}",
                remedy=AGAIN,
            )
        self.text += len(item)
        self.item_list.append(item)
        return self.items.setdefault(item, len(self.items))

    def new_items(self, texts: Sequence[str]) -> list[int]:
        """Return the codes of items, most of which are new and none of which is too long."""
        known, first = self.items, len(self.items)
        codes = list(map(known.setdefault, texts, range(first, first + len(texts))))
        if len(known) < first + len(texts):  # some are known, or there twice
            while len(known) > first:
                known.popitem()
            return [self.item(text) for text in texts]
        self.item_list += texts
        self.text += sum(map(len, texts))
        return codes

    def _child(self, parent: _Name, name: str) -> _Name:
        self._names += 1
        if self._names > MOST_VALUES:
            raise RefusedReportError("too many different keys", remedy=AGAIN)
        own = clean(name) if parent.key else RENAMED.get(name, clean(name))
        if len(parent.key) + len(own) > LONGEST_KEY:
            raise RefusedReportError(
                f"a key has more than {LONGEST_KEY} characters: {f'{parent.key}.{own}'[:60]}…",
                remedy=AGAIN,
            )
        child = parent.children[name] = _Name(f"{parent.key}.{own}" if parent.key else own)
        return child

    def _object(self, value: Mapping[str, Any], name: _Name, item: str, depth: int) -> None:
        """Walk an object whose names are part of the keys.

        It does itself for texts and numbers what `_value` does: a capture has thousands of them.
        """
        children, rows = name.children, self.rows
        facts, keys, numbers = rows.facts, rows.keys, rows.numbers
        for one, inner in value.items():
            child = children.get(one)
            if child is None:
                child = self._child(name, one)
            type_ = type(inner)
            if child.dropped or inner is None:
                continue
            if type_ is str:
                code = child.codes.get(inner)
                facts.append(self._code(child, inner) if code is None else code)
            elif (type_ is int or type_ is float) and child.number_code >= 0:
                try:
                    numbers.append(inner)
                except OverflowError:
                    raise _no_number(child.key) from None
                keys.append(child.number_code)
            else:
                self._value(inner, child, item, depth + 1)

    def _value(self, value: Any, name: _Name, item: str, depth: int) -> None:
        type_ = type(value)
        if name.dropped:
            return
        if type_ is str:
            code = name.codes.get(value)
            self.rows.facts.append(self._code(name, value) if code is None else code)
        elif type_ is int or type_ is float:
            if name.measured:
                self._number(value, name)
            else:
                text = name.constants.get(value)
                if text is None:
                    text = constant(value, name.key)
                    if len(name.constants) < _REMEMBERED:
                        name.constants[value] = text
                self._fact(text, name)
        elif type_ is bool:
            self._fact("true" if value else "false", name)
        elif value is not None:
            if depth > DEEPEST:
                raise RefusedReportError(f"{name.key[:200]} is nested too deep", remedy=AGAIN)
            if name.memory is None:
                self._container(value, name, item, depth)
            else:
                self._again(value, name, item, depth)

    def _fact(self, text: str, name: _Name) -> None:
        code = name.codes.get(text)
        self.rows.facts.append(self._code(name, text) if code is None else code)

    def _code(self, name: _Name, text: str, fault: str | None = None) -> int:
        """Return the code of a fact that this key has had not yet."""
        fact = (name.key, clean(text), fault)
        known = len(self.facts)
        code = self.facts.setdefault(fact, known)
        if code == known:
            self.fact_list.append(fact)
            self.text += len(fact[1])
        if fault is None:
            name.codes[text] = code
        return code

    def _number(self, value: int | float, name: _Name) -> None:
        if name.number_code < 0:
            name.number_code = self.number_code(name.key)
        try:
            self.rows.numbers.append(value)
        except OverflowError:
            raise _no_number(name.key) from None
        self.rows.keys.append(name.number_code)

    def _again(self, value: Any, name: _Name, item: str, depth: int) -> None:
        """Copy the rows of an object or list that was seen before, or walk it and remember them."""
        memory = name.memory
        assert memory is not None  # noqa: S101 - for mypy
        content = marshal.dumps(value, 2)  # version 2: equal contents have equal bytes
        known = memory.get(content)
        rows = self.rows
        facts, numbers, runs = len(rows.facts), len(rows.numbers), len(rows.items)
        if known is None:
            name.failed += 1
            if name.failed > _TRIES and name.found * _RARELY < name.failed:
                name.memory = None
            self._container(value, name, item, depth)
            if name.memory is not None and len(content) <= _LARGEST and len(memory) < _REMEMBERED:
                memory[content] = self._remembered(item, facts, numbers, runs)
            return
        name.found += 1
        rows.facts.extend(known.facts)
        rows.keys.extend(known.keys)
        rows.numbers.extend(known.numbers)
        for relative, fact, number in known.runs:
            rows.items.append(self.item(item + relative if item else relative[1:]))
            rows.fact_starts.append(facts + fact)
            rows.number_starts.append(numbers + number)

    def _remembered(self, item: str, facts: int, numbers: int, runs: int) -> _Remembered:
        """Return the rows from these places on, with items relative to `item`."""
        rows, values = self.rows, []
        if len(rows.items) > runs:
            items = self.item_list
            for run in range(runs, len(rows.items)):
                below = items[rows.items[run]]
                relative = below[len(item) :] if item or not below else f"{SEPARATOR}{below}"
                values.append(
                    (relative, rows.fact_starts[run] - facts, rows.number_starts[run] - numbers)
                )
        return _Remembered(rows.facts[facts:], rows.keys[numbers:], rows.numbers[numbers:], values)

    def _container(self, value: Any, name: _Name, item: str, depth: int) -> None:
        if len(value) + len(self.rows.facts) + len(self.rows.numbers) - self._first > MOST_VALUES:
            raise RefusedReportError(f"more than {MOST_VALUES} values", remedy=AGAIN)
        if type(value) is list:
            self._list(value, name, item, depth)
        elif "fault" in value:
            self._fault(value, name)
        elif name.fields is not None:
            self._parts(value, name, item, depth)
        else:
            self._object(value, name, item, depth)

    def _parts(self, value: Mapping[str, Any], name: _Name, item: str, depth: int) -> None:
        """Walk the elements of an object, each as a part."""
        given = [
            (clean(one), identity(inner, name.fields or (), one)) for one, inner in value.items()
        ]
        for (one, own), unique, inner in zip(given, _unique(given), value.values(), strict=True):
            below = f"{item}{SEPARATOR}{unique}" if item else unique
            if name.nested and type(inner) is dict and "fault" not in inner:
                nested = name.children.get(_NESTED)
                if nested is None:
                    nested = name.children[_NESTED] = _Name(name.nested)
                self._parts(inner, nested, below, depth + 1)
                continue
            self._start(below)
            if own != one and type(inner) is dict:  # the name in the document is not the identity
                self._fact(one, name.children.get("name") or self._child(name, "name"))
            self._part(inner, name, below, depth)
        self._start(item)

    def _list(self, value: list[Any], name: _Name, item: str, depth: int) -> None:
        if name.fields is None or not all(type(one) is dict for one in value):
            self._fact(joined(value, name.key), name)
            return
        given = [("", identity(one, name.fields, "")) for one in value]
        for inner, unique in zip(value, _unique(given), strict=True):
            below = f"{item}{SEPARATOR}{unique}" if item else unique
            self._start(below)
            self._part(inner, name, below, depth)
        self._start(item)

    def _part(self, value: Any, name: _Name, item: str, depth: int) -> None:
        """Walk one element of an object or list of parts."""
        if type(value) is dict:
            if "fault" in value:
                self._fault(value, name)
            else:
                self._object(value, name, item, depth + 1)
        elif type(value) is list:
            self._fact(joined(value, name.key), name)
        else:
            self._value(value, name, item, depth)

    def _fault(self, value: Mapping[str, Any], name: _Name) -> None:
        fault, text = value["fault"], value.get("text")
        if fault not in FAULTS:
            raise RefusedReportError(f"{name.key[:200]} has a fault of no known kind", remedy=AGAIN)
        self.rows.facts.append(self._code(name, text if type(text) is str else "", fault))


_NESTED = "\0"  # name of the keys of parts inside parts; no document has it


def identity(value: Any, fields: tuple[str, ...], name: str) -> str:
    """Return the identity of a part: the first of its fields that has a value, else its name.

    An event is identified by kind, code and address together.
    """
    if type(value) is dict:
        if fields == EVENT:
            return " ".join(
                clean(str(value[field])) for field in fields if value.get(field) is not None
            )
        for field in fields:
            own = value.get(field)
            if type(own) in (str, int) and own != "":
                return clean(str(own))
    return clean(name)


EVENT = PARTS["events.rows"]


def _unique(given: list[tuple[str, str]]) -> list[str]:
    """Return the identities. Those that several parts share, and empty ones, get the name or a number added."""
    own = [identity for _, identity in given]
    if len(set(own)) == len(own) and "" not in own:
        return own
    taken = {one for one in own if own.count(one) == 1} if len(own) < 1000 else set()
    seen: dict[str, int] = {}
    result = []
    for name, one in given:
        if one in taken and one:
            result.append(one)
            continue
        seen[one] = seen.get(one, 0) + 1
        result.append(f"{one}#{name or seen[one]}")
    return result


def constant(value: int | float, key: str = "") -> str:
    """Return a constant number as a text: 700.0 and 700 are the same limit."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _no_number(key)
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def _no_number(key: str) -> RefusedReportError:
    return RefusedReportError(f"{key[:200]} is not a finite number", remedy=AGAIN)


def joined(value: list[Any], key: str) -> str:
    """Return a list of texts or numbers as one text. Texts are sorted: their order has no meaning."""
    if any(isinstance(one, dict | list) for one in value):
        return _text_of(value, key)
    texts = []
    for one in value:
        number = isinstance(one, int | float) and not isinstance(one, bool)
        texts.append(constant(one, key) if number else str(one))
    return " ".join(texts if all(isinstance(one, int) for one in value) else sorted(texts))


def _text_of(value: list[Any], key: str) -> str:
    """Return a list that no table describes as JSON, or as its digest if it is long."""
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False)
    except ValueError:
        raise _no_number(key) from None
    return text if len(text) < LONGEST else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
