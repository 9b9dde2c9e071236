"""Values that may be missing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import AnyStr, Callable, Match, Optional, TypeVar

    Given = TypeVar("Given")
    Made = TypeVar("Made")


def optional(function: Callable[[Given], Made], value: Optional[Given]) -> Optional[Made]:
    """Return what a function makes of a value, or None if the value is None."""
    return None if value is None else function(value)


def group(match: Optional[Match[AnyStr]], number: int = 1) -> Optional[AnyStr]:
    """Return a group of a match, or None if there is no match."""
    return match[number] if match else None
