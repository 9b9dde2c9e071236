"""Typed access to `facts/ladder.yml`: the rungs of the remediation ladder, and the way of each finding.

A repair begins with `inspect` and ends with `ticket`; :func:`way` returns the rungs between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.facts import xid
from goldnode.facts.host import Origin
from goldnode.node.state.kinds import KINDS

FILE = "ladder.yml"
INSPECT, TICKET = "inspect", "ticket"


@dataclass(frozen=True)
class LadderWay:
    """The way of one finding: its rungs between `inspect` and `ticket`, units for a restart, and the reason."""

    finding: str
    climb: tuple[str, ...]
    units: tuple[str, ...]
    why: str
    origins: tuple[Origin, ...]

    @property
    def first(self) -> str:
        """Return the first rung after `inspect`."""
        return self.climb[0] if self.climb else TICKET


@cache
def rungs() -> dict[str, str]:
    """Return the rungs, from the one with the least effect, with what each does."""
    return {row["rung"]: row["does"] for row in facts.load(FILE)["rungs"]}


def names(row: Mapping[str, Any]) -> list[str]:
    """Return the ids of the findings of a row, which has them by their first part."""
    return [
        f"{part}.{rest}" if rest else part for part, rests in row["ids"].items() for rest in rests
    ]


@cache
def _rows() -> dict[str, dict[str, Any] | None]:
    """Return the row of each finding of the table; None for one that the ladder leaves alone."""
    data = facts.load(FILE)
    rows: dict[str, dict[str, Any] | None] = {}
    for row in (*data["findings"], *data["left"]):
        for name in names(row):
            if name not in KINDS or name in rows:
                fault = "is in two rows" if name in rows else "is no finding of the health check"
                raise FactsError(f"{name} {fault}", file=f"facts/{FILE}")
            rows[name] = row if "climb" in row else None
    return rows


@cache
def _actions() -> dict[str, dict[str, Any]]:
    """Return the row of each action. Raises FactsError for one that xid.yml does not have."""
    rows = {row["action"]: row for row in facts.load(FILE)["actions"]}
    unknown = set(rows) - set(xid.actions()) - {row.action for row in xid.codes().values()}
    if unknown:
        raise FactsError(f"no Xid has the action {min(unknown)}", file=f"facts/{FILE}")
    return rows


def way(finding: str) -> LadderWay | None:
    """Return the way of a finding by its id in a verdict; None for one that the ladder leaves alone.

    An Xid without an action, or with an unknown one, has no rung but the inspection.
    """
    number = re.fullmatch(r"s?xid\.(\d+)", finding)
    if number is not None:
        code = xid.codes().get(int(number[1]))
        row = _actions().get(code.action or "") if code is not None else None
        if row is None:
            return LadderWay(finding, (), (), "no action is known for it", ())
        why = f"{code.kind} {code.code}: {row['action']}" if code is not None else ""
    else:
        row = _rows().get(finding) or next(
            (
                row
                for name, row in _rows().items()
                if "*" in name and re.fullmatch(re.escape(name).replace(r"\*", ".+"), finding)
            ),
            None,
        )
        if row is None:
            return None
        why = row["why"]
    units = tuple(row.get("units") or ())
    return LadderWay(finding, tuple(row["climb"]), units, why, facts.origins(FILE, row["source"]))
