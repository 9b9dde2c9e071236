"""JSON: written in a readable form at low cost, one line per key and per list item, and read without trust in its types.

With an indent, the standard encoder cannot use its compiled part and is ten times slower.
"""

from __future__ import annotations

from json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping


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
