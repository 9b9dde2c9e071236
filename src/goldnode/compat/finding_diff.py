"""Differences between the findings of two checks of one subject. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from goldnode.compat.model import CompatFinding


@dataclass(frozen=True)
class FindingChange:
    """A finding before and after. `changed`: the same rule, with another message or severity."""

    change: Literal["new", "gone", "changed", "unchanged"]
    before: CompatFinding | None
    after: CompatFinding | None


_ORDER = {"new": 0, "changed": 1, "gone": 2, "unchanged": 3}


def finding_changes(
    before: Sequence[CompatFinding], after: Sequence[CompatFinding]
) -> list[FindingChange]:
    """Return the differences between two lists of findings about one subject: new ones first.

    Files and lines do not count, because the two sides have other stacks. A rule with one unmatched
    finding on each side is one change. With more, which belong together is not known, so they are
    listed as gone and new.
    """
    old, new = {_same(item): item for item in before}, {_same(item): item for item in after}
    changes = [FindingChange("unchanged", old[key], new[key]) for key in old if key in new]
    gone = [item for key, item in old.items() if key not in new]
    come = [item for key, item in new.items() if key not in old]
    for rule in dict.fromkeys(_about(item) for item in (*gone, *come)):
        left = [item for item in gone if _about(item) == rule]
        right = [item for item in come if _about(item) == rule]
        if len(left) == len(right) == 1:
            changes.append(FindingChange("changed", left[0], right[0]))
            continue
        changes += [FindingChange("gone", item, None) for item in left]
        changes += [FindingChange("new", None, item) for item in right]
    return sorted(changes, key=lambda item: _ORDER[item.change])


def severity_of(
    findings: Iterable[CompatFinding],
) -> Literal["fits", "limits", "unknown", "blocked"]:
    """Return the verdict that findings give a subject. Accepted findings do not count."""
    open_ = [item for item in findings if item.accepted is None]
    if any(item.fatal or item.severity == "block" for item in open_):
        return "blocked"
    if any(item.severity == "unknown" for item in open_):
        return "unknown"
    return "limits" if open_ else "fits"


def _same(item: CompatFinding) -> tuple[object, ...]:
    return (
        item.subject,
        item.rule,
        item.row,
        item.severity,
        item.message,
        item.accepted,
        item.fatal,
    )


def _about(item: CompatFinding) -> tuple[str, str, str | None]:
    return (item.subject, item.rule, item.row)
