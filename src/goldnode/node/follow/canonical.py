"""Canonical JSON (OLPC), the bytes that signatures of TUF metadata are over. Equal to that of securesystemslib."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEEPEST = 64  # levels of a document


def encoded(value: Any) -> bytes:
    """Return the canonical form of parsed JSON. Raises ValueError for what has none: floats and lone surrogates."""
    return _form(value, 0).encode("utf-8")  # UnicodeEncodeError is a ValueError


def _form(value: Any, depth: int) -> str:
    if depth > DEEPEST:
        raise ValueError(f"a document of more than {DEEPEST} levels")
    if value is None or isinstance(value, int):
        return json.dumps(value)
    if isinstance(value, str):  # only these two are escaped, and no control characters
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_form(item, depth + 1) for item in value)}]"
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        rows = (f"{_form(name, depth)}:{_form(value[name], depth + 1)}" for name in sorted(value))
        return f"{{{','.join(rows)}}}"
    raise ValueError(f"{type(value).__name__} has no canonical form")
