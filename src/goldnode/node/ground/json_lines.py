"""Readable JSON at low cost: one line per key and per list item.

With an indent, the standard encoder cannot use its compiled part and is ten times slower.
"""

from __future__ import annotations

from json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


def by_lines(document: Mapping[str, Any], *, ordered: bool = False) -> str:
    """Return a JSON object as text, without a trailing newline.

    :param ordered: sort keys, at every depth.
    """
    rows = []
    for key, value in sorted(document.items()) if ordered else document.items():
        if isinstance(value, list) and value:
            items = ",\n".join(["  " + dumps(item, sort_keys=ordered) for item in value])
            text = f"[\n{items}\n ]"
        else:
            text = dumps(value, sort_keys=ordered)
        rows.append(f" {dumps(key)}: {text}")
    return "{\n" + ",\n".join(rows) + "\n}"
