"""Turn a capture into rows: key, item and value of every leaf."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from goldnode.fleet.ingest.keys import NESTED, PARTS, RENAMED, KeyKind, kind
from goldnode.fleet.ingest.refused import RefusedReportError

MOST_LEAVES = 50_000  # values of one capture; an 8-way node with 18 links for each GPU has 3,300
LONGEST = 16_384  # characters of one text
DEEPEST = 12  # objects inside objects; the schema has 7
SEPARATOR = "/"  # between the identity of a part and that of a part inside it


class Leaf(NamedTuple):
    """One value of a capture. Numbers are floats; `fault` is set where the node has no value."""

    key: str
    item: str
    value: str | float
    fault: str | None = None


class _Name:
    """One key, with what is known of it, and the keys below it. Shared by all captures of an ingest."""

    __slots__ = ("children", "fields", "key", "nested", "number", "text")

    def __init__(self, key: str) -> None:
        self.key = key
        self.children: dict[str, _Name] = {}
        self.fields = PARTS.get(key)
        self.nested = NESTED.get(key)
        self.number = kind(key, number=True)
        self.text = kind(key, number=False)


class Flattener:
    """Flattens captures, and remembers the keys that it has seen."""

    def __init__(self) -> None:
        self._root = _Name("")
        self._known = 0

    def leaves(self, capture: Mapping[str, Any]) -> list[Leaf]:
        """Return the leaves of a capture. Raise RefusedReportError for what is too large, too deep or not a number."""
        if self._known > MOST_LEAVES:  # keys that hostile captures have made up
            self._root, self._known = _Name(""), 0
        found: list[Leaf] = []
        for name, value in capture.items():
            self._walk(value, self._child(self._root, name), "", found, 0)
        return found

    def _child(self, parent: _Name, name: str) -> _Name:
        found = parent.children.get(name)
        if found is None:
            self._known += 1
            if self._known > 2 * MOST_LEAVES:
                raise RefusedReportError("too many different keys", remedy="record the capture again")
            own = clean(name) if parent.key else RENAMED.get(name, clean(name))
            found = parent.children[name] = _Name(f"{parent.key}.{own}" if parent.key else own)
        return found

    def _walk(self, value: Any, name: _Name, item: str, found: list[Leaf], depth: int) -> None:
        if value is None or name.text is KeyKind.DROPPED:
            return
        if depth > DEEPEST:
            raise RefusedReportError(f"{name.key[:200]} is nested more than {DEEPEST} deep", remedy=_AGAIN)
        if isinstance(value, dict):
            if "fault" in value:
                found.append(_fault(value, name, item))
            elif name.fields is not None:
                self._parts(value, name, item, found, depth)
            else:
                children = name.children
                for one, inner in value.items():
                    child = children.get(one) or self._child(name, one)
                    self._walk(inner, child, item, found, depth + 1)
        elif isinstance(value, list):
            self._list(value, name, item, found, depth)
        else:
            _leaf(value, name, item, found)
        if len(found) > MOST_LEAVES:
            raise RefusedReportError(f"more than {MOST_LEAVES} values", remedy=_AGAIN)

    def _parts(self, value: Mapping[str, Any], name: _Name, item: str, found: list[Leaf], depth: int) -> None:
        """Walk the elements of an object, each as a part."""
        given = [(one, identity(inner, name.fields or (), one)) for one, inner in value.items()]
        for (one, own), unique in zip(given, _unique(given), strict=True):
            below = f"{item}{SEPARATOR}{unique}" if item else unique
            inner = value[one]
            if name.nested and isinstance(inner, dict) and "fault" not in inner:
                self._parts(inner, self._nested(name), below, found, depth + 1)
                continue
            if own != one and isinstance(inner, dict):  # the name in the document is not the identity
                _leaf(one, self._child(name, "name"), below, found)
            self._part(inner, name, below, found, depth)

    def _part(self, value: Any, name: _Name, item: str, found: list[Leaf], depth: int) -> None:
        """Walk one element of an object or list of parts."""
        if isinstance(value, dict) and "fault" not in value:
            for one, inner in value.items():
                self._walk(inner, self._child(name, one), item, found, depth + 1)
        elif isinstance(value, dict):
            found.append(_fault(value, name, item))
        elif isinstance(value, list):
            _leaf(_joined(value, name), name, item, found)
        elif value is not None:
            _leaf(value, name, item, found)

    def _nested(self, name: _Name) -> _Name:
        key = name.nested or ""
        return name.children.setdefault("\0", _Name(key))

    def _list(self, value: list[Any], name: _Name, item: str, found: list[Leaf], depth: int) -> None:
        if name.fields is None or not all(isinstance(one, dict) for one in value):
            _leaf(_joined(value, name), name, item, found)
            return
        given = [("", identity(one, name.fields, "")) for one in value]
        for inner, unique in zip(value, _unique(given), strict=True):
            self._part(inner, name, f"{item}{SEPARATOR}{unique}" if item else unique, found, depth)


_AGAIN = "record it again with `goldnode-node capture`"


def identity(value: Any, fields: tuple[str, ...], name: str) -> str:
    """Return the identity of a part: its fields in order of preference, else its name.

    Events have no identity of their own: kind, code and address together are theirs.
    """
    if not isinstance(value, dict):
        return clean(name)
    if fields[:1] == ("kind",) and fields[-1:] == ("address",):
        return " ".join(
            clean(str(value[field])) for field in fields if isinstance(value.get(field), str | int)
        )
    for field in fields:
        own = value.get(field)
        if isinstance(own, str | int) and not isinstance(own, bool) and own != "":
            return clean(str(own))
    return clean(name)


def _unique(given: list[tuple[str, str]]) -> list[str]:
    """Return the identities; those that several parts share get the name, or a number, of the part added."""
    counts: dict[str, int] = {}
    for _, own in given:
        counts[own] = counts.get(own, 0) + 1
    seen: dict[str, int] = {}
    result = []
    for name, own in given:
        if counts[own] > 1 or own == "":
            seen[own] = seen.get(own, 0) + 1
            own = f"{own}#{clean(name) if name else seen[own]}"
        result.append(own)
    return result


def _fault(value: Mapping[str, Any], name: _Name, item: str) -> Leaf:
    fault = value["fault"]
    if fault not in ("not_exposed", "unread"):
        raise RefusedReportError(f"{name.key[:200]} has a fault of no known kind", remedy=_AGAIN)
    text = value.get("text")
    return Leaf(name.key, item, clean(text) if isinstance(text, str) else "", fault)


def _leaf(value: Any, name: _Name, item: str, found: list[Leaf]) -> None:
    if isinstance(value, str):
        found.append(Leaf(name.key, item, clean(value)))
    elif isinstance(value, bool):
        found.append(Leaf(name.key, item, "true" if value else "false"))
    elif name.number is KeyKind.DROPPED:
        return
    elif name.number in (KeyKind.COUNTER, KeyKind.GAUGE):
        found.append(Leaf(name.key, item, number(value, name.key)))
    else:
        number(value, name.key)
        found.append(Leaf(name.key, item, _constant(value)))


def _constant(value: int | float) -> str:
    """Return a constant number as a text: 700.0 and 700 are the same limit."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def number(value: Any, key: str) -> float:
    """Return a value as a float. Raise RefusedReportError for what is no finite number."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise RefusedReportError(f"{key[:200]} is not a finite number", remedy=_AGAIN)
    return found


def _joined(value: list[Any], name: _Name) -> str:
    """Return a list of texts or numbers as one text. A list has an order only where all are numbers."""
    if any(isinstance(one, dict | list) for one in value):
        raise RefusedReportError(
            f"{name.key[:200]} is a list of objects that no table describes", remedy=_AGAIN
        )
    for one in value:
        if isinstance(one, float):
            number(one, name.key)
    texts = [
        _constant(one) if isinstance(one, int | float) and not isinstance(one, bool) else str(one)
        for one in value
    ]
    return clean(" ".join(texts if all(isinstance(one, int) for one in value) else sorted(texts)))


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_BIDI = {code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def clean(text: str) -> str:
    """Return a text with control characters and lone surrogates escaped. Raise RefusedReportError for one that is
    too long.
    """
    if len(text) > LONGEST:
        raise RefusedReportError(f"a text has {len(text)} characters, more than {LONGEST}", remedy=_AGAIN)
    if text.isprintable():
        return text
    return text.translate(_ESCAPES | _BIDI).encode("utf-8", "backslashreplace").decode()
