"""Class names as reports and the data of the fleet have them. No extra is needed."""

from __future__ import annotations

import re

NO_CLASS = "_none"  # directory of captures of nodes without a class
_CLASS = re.compile(r"[a-z0-9][a-z0-9_]{0,127}|_none")


def is_class(text: str) -> bool:
    """Return whether a text is the name of a class, as the catalog allows it, or NO_CLASS."""
    return _CLASS.fullmatch(text) is not None
