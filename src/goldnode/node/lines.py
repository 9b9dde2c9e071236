"""Readable JSON at low cost: one line per key and per list item. The standard encoder cannot use its compiled
part to indent, and is ten times slower then.
"""

from __future__ import annotations

from .quickjson import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


def by_lines(document: Mapping[str, Any], *, ordered: bool = False) -> str:
    """A JSON object as text, without a newline at its end; `ordered`: keys sorted, at every depth.

    Keys stand at the beginning of their line behind one space, which the shell scripts of the integrations rely on.
    """
    rows = []
    for key, value in sorted(document.items()) if ordered else document.items():
        items = (
            ",\n".join(["  " + dumps(item, sort_keys=ordered) for item in value])
            if isinstance(value, list)
            else ""
        )
        rows.append(f" {dumps(key)}: " + (f"[\n{items}\n ]" if items else dumps(value, sort_keys=ordered)))
    return "{\n" + ",\n".join(rows) + "\n}"
