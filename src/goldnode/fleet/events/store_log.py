"""Events of the log of the store: rollouts, steps of nodes, and orders of persons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from goldnode.fleet.events.event import FleetEvent, identity
from goldnode.fleet.rollout.lines import sentence, severity
from goldnode.fleet.store import tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.log import decoded, entries
from goldnode.fleet.store.tickets import STREAM as TICKETS

# Action of a line -> kind. A request to evaluate changes no state, and is no event.
KINDS: Mapping[str, str | None] = {
    "Submit": "rollout.submitted",
    "TakeOver": "rollout.controller",
    "Start": "rollout.wave",
    "Promote": "rollout.wave",
    "Extend": "rollout.wave",
    "ChangePhase": "rollout.phase",
    "Evaluate": None,
    "Answer": "rollout.requirement",
    "Calendar": "rollout.calendar",
    "Silence": "node.silenced",
    "Alarm": "rollout.alarm",
    "Approve": "rollout.approved",
    "Grant": "node.granted",
    "Proceed": "node.step",
    "Turn": "node.step",
    "Finish": "node.finished",
    "Overdue": "node.overdue",
    "TakeHold": "node.held",
    "DropHold": "node.hold-ended",
    "Release": "node.released",
    "PowerCycle": "node.power",
    "PowerCycled": "node.power",
    "Freeze": "fleet.frozen",
    "Thaw": "fleet.unfrozen",
    "Deny": "state.denied",
    "LiftDenial": "state.allowed",
    "PutNodes": "fleet.nodes",
    "OpenTicket": "ticket.opened",
    "CommentTicket": "ticket.commented",
    "CloseTicket": "ticket.closed",
}
_BATCH = 1000  # lines of one reading


def newest(store: StoreDatabase) -> int:
    """Return the number of the last line."""
    with store.read() as connection:
        return connection.scalar(select(func.max(tables.log.c.seq))) or 0


def read(store: StoreDatabase, after: int) -> tuple[list[FleetEvent], int]:
    """Return the events of the lines after a number, and the number of the last line that was read."""
    if newest(store) <= after:
        return [], after
    with store.read() as connection:
        if store.postgresql:
            # A line can be committed after one with a higher number. The lock waits for all that are not committed.
            connection.exec_driver_sql("LOCK TABLE log IN SHARE MODE")
        rollout = tables.rollout
        query = select(rollout.c.name, rollout.c["class"])
        classes: dict[str, str] = {row[0]: row[1] for row in connection.execute(query)}
        where = tables.log.c.seq <= after + _BATCH
        rows = [decoded(dict(row)) for row in entries(connection, after=after, where=where)]
        last = max((row["seq"] for row in rows), default=after + _BATCH)
    events = (event(row, classes) for row in rows)
    return [one for one in events if one is not None], last


def event(row: Mapping[str, Any], classes: Mapping[str, str]) -> FleetEvent | None:
    """Return the event of a decoded line; None if it changes no state."""
    action, content = row["action"], row["content"]
    kind = KINDS.get(action, "fleet.other")
    if kind is None:
        return None
    subject, rollout = row["subject"], row["rollout"]
    if rollout == TICKETS:
        rollout = None
    of_class = subject.removeprefix("class ") if subject.startswith("class ") else None
    return FleetEvent(
        # A store that was created again has other lines with the same numbers: time and author are in the id.
        id=identity("log", row["seq"], row["at"], row["who"], action, subject),
        at=row["at"],
        kind=kind,
        severity=severity(action, content),
        source="log",
        subject=subject,
        text=f"{rollout}: {sentence(row)}" if rollout else sentence(row),
        details={
            name: value for name, value in content.items() if name not in ("action", "document")
        },
        node=content.get("node"),
        node_class=classes.get(rollout or "") or content.get("class") or of_class,
        rollout=rollout,
        simulated=content.get("simulated"),
    )
