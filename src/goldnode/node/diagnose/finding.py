"""Lines of a diagnosis, and access to values of a sample without trust in their types."""

from __future__ import annotations

import shlex

from ..host import Json
from ..plain import NamedTuple
from ..probe.machine import plain
from ..probe.values import is_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Tuple

COMPUTE, INPUT, COMMUNICATION, MISMATCH = "compute", "input", "communication", "mismatch"
OK, FOUND, UNKNOWN = "ok", "found", "unknown"


class Line(NamedTuple):
    """One check: its name, its outcome (ok, found, unknown), one sentence; of what is found its kind, its weight against the others of the
    report, and the command that looks closer."""

    check: str
    status: str
    text: str
    kind: Optional[str] = None
    weight: int = 0
    next: Optional[str] = None


class Found(NamedTuple):
    """A fault: the fields of :class:`Line` that it sets."""

    text: str
    kind: str
    weight: int
    next: str


def gpus_of(sample: Mapping[str, Any]) -> List[Json]:
    """Return the GPUs of a capture; empty if the section is not usable."""
    found = sample.get("gpus")
    return (
        [gpu for gpu in found if isinstance(gpu, dict) and not is_fault(gpu)]
        if isinstance(found, list)
        else []
    )


def rows_of(value: Any, *keys: str) -> List[Tuple[str, Any]]:
    """The entries of the object below these keys, sorted; none where there is no object."""
    found = get(value, *keys)
    return sorted(found.items()) if isinstance(found, dict) and not is_fault(found) else []


def get(value: Any, *keys: str) -> Any:
    """Return the value below keys of nested objects; None if there is none, a fault if that is one."""
    for key in keys:
        if not isinstance(value, dict) or is_fault(value):
            return value if is_fault(value) else None
        value = value.get(key)
    return value


def word(value: Any) -> str:
    """Return a foreign name quoted as one word of a shell command that a person may paste as root."""
    return shlex.quote(plain(str(value), 240))


def line_of(check: str, found: List[Found], fine: str, unknown: List[str]) -> Line:
    """Return the line of a check: its faults, heaviest first; else what could not be checked; else that all
    is well.
    """
    if found:
        found = sorted(found, key=lambda item: -item.weight)
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        text = "; ".join(item.text for item in found[:3]) + more
        return Line(check, FOUND, text, found[0].kind, found[0].weight, found[0].next)
    return Line(check, UNKNOWN, "; ".join(unknown[:3])) if unknown else Line(check, OK, fine)


# -- 1: GPUs
