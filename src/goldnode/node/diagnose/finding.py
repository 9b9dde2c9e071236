"""Result lines of a diagnosis, and access to sample values of unknown type."""

from __future__ import annotations

import shlex

from ..ground.host import Json
from ..ground.typed import NamedTuple
from ..probe.machine import printable
from ..probe.values import is_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Tuple

COMPUTE, INPUT, COMMUNICATION, MISMATCH = "compute", "input", "communication", "mismatch"
OK, FOUND, UNKNOWN = "ok", "found", "unknown"


class Line(NamedTuple):
    """One check: its name, its outcome (ok, found, unknown), and a sentence.

    A finding also has a kind, a weight relative to the other lines of the report, and a command for a closer
    look.
    """

    check: str
    status: str
    text: str
    kind: Optional[str] = None
    weight: int = 0
    next: Optional[str] = None


class Suspect(NamedTuple):
    """A suspected bottleneck: the fields of :class:`Line` that it sets."""

    text: str
    kind: str
    weight: int
    next: str


def gpus_of(sample: Mapping[str, Any]) -> List[Json]:
    """Return the GPUs of a capture; empty if the section is not usable."""
    gpus = sample.get("gpus")
    if not isinstance(gpus, list):
        return []
    return [gpu for gpu in gpus if isinstance(gpu, dict) and not is_fault(gpu)]


def rows_of(value: Any, *keys: str) -> List[Tuple[str, Any]]:
    """Return the sorted entries of the object below these keys; empty if there is no object."""
    rows = get(value, *keys)
    return sorted(rows.items()) if isinstance(rows, dict) and not is_fault(rows) else []


def get(value: Any, *keys: str) -> Any:
    """Return the value below these keys of nested objects.

    Return None for a missing value, and a fault if reading failed on the way.
    """
    for key in keys:
        if not isinstance(value, dict) or is_fault(value):
            return value if is_fault(value) else None
        value = value.get(key)
    return value


def word(value: Any) -> str:
    """Quote an untrusted name as one shell word. People paste the commands of a report into a root shell."""
    return shlex.quote(printable(str(value), 240))


def line_of(check: str, suspects: List[Suspect], fine: str, unknown: List[str]) -> Line:
    """Return the line of a check.

    It lists the heaviest faults; without faults, the parts that could not be checked; without either, `fine`.
    """
    if suspects:
        suspects = sorted(suspects, key=lambda item: -item.weight)
        text = "; ".join(item.text for item in suspects[:3])
        if len(suspects) > 3:
            text += f" (and {len(suspects) - 3} more)"
        worst = suspects[0]
        return Line(check, FOUND, text, worst.kind, worst.weight, next=worst.next)
    return Line(check, UNKNOWN, "; ".join(unknown[:3])) if unknown else Line(check, OK, fine)


# -- 1: GPUs
