"""JSON: written in a readable form at low cost, one line per key and per list item, and read without trust in its types.

With an indent, the standard encoder cannot use its compiled part and is ten times slower.
"""

from __future__ import annotations

from json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional


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


def as_map(value: Any) -> Dict[str, Any]:
    """Return a mapping that is not a fault, otherwise an empty one."""
    return value if isinstance(value, dict) and "fault" not in value else {}


def as_list(value: Any) -> List[Any]:
    """Return a list, otherwise an empty one."""
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> Dict[str, Any]:
    """Return a mapping, otherwise an empty one. A fault is a mapping, too: see `as_map`."""
    return value if isinstance(value, dict) else {}


def as_text(value: Any) -> Optional[str]:
    """Return a text, otherwise None."""
    return value if isinstance(value, str) else None


def as_rows(value: Any) -> List[Any]:
    """Return a list, otherwise a list with the value as its only item."""
    return value if isinstance(value, list) else [value]
