"""Canonical JSON (OLPC), the bytes that signatures of TUF metadata are over. Equal to that of securesystemslib."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

DEEPEST = 64  # levels of a document


def encoded(value: Any) -> bytes:
    """Return the canonical form of parsed JSON. Raises ValueError for what has none: floats and lone surrogates."""
    parts: List[str] = []
    _add(value, parts, 0)
    return "".join(parts).encode("utf-8")  # UnicodeEncodeError is a ValueError


def _add(value: Any, parts: List[str], depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"a document of more than {DEEPEST} levels")
    if value is None:
        parts.append("null")
    elif value is True or value is False:
        parts.append("true" if value else "false")
    elif isinstance(value, str):
        parts.append(_text(value))
    elif isinstance(value, int):
        parts.append(str(value))
    elif isinstance(value, (list, tuple)):
        parts.append("[")
        for number, item in enumerate(value):
            parts.append("," if number else "")
            _add(item, parts, depth + 1)
        parts.append("]")
    elif isinstance(value, dict):
        parts.append("{")
        for number, name in enumerate(sorted(value)):
            parts.append(("," if number else "") + _text(name) + ":")
            _add(value[name], parts, depth + 1)
        parts.append("}")
    else:
        raise ValueError(f"{type(value).__name__} has no canonical form")


def _text(value: str) -> str:
    # Only these two are escaped, and no control characters.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
