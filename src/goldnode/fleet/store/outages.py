"""Outages of the nodes of a class that have ended, from the log: who was out, paid by which buffer, and when.

The rows of holds are of the present only. Each of their changes is a line of the log, whichever program made it.
"""

from __future__ import annotations

import json

from sqlalchemy import Connection, select

from goldnode.fleet.rollout.model import HoldKind, Outage
from goldnode.fleet.rollout.queue import QUEUE
from goldnode.fleet.store import tables
from goldnode.fleet.store.log import entries

_BEGIN, _TURN, _RETURN, _RELEASE = "Grant", "Turn", "Finish", "Release"
_QUEUE, _QUEUE_END = "GrantTurn", "EndTurn"  # of the queue, which has no rollout
_LINES = (_BEGIN, _TURN, _RETURN, "Overdue", "TakeHold", "DropHold", _RELEASE, _QUEUE, _QUEUE_END)


def ended(connection: Connection, node_class: str, since: float) -> list[Outage]:
    """Return the planned and failed outages of a class, in the order of their ends; those that began after `since`."""
    log, node = tables.log, tables.node
    of_class = select(node.c.name).where(node.c["class"] == node_class)
    where = log.c.action.in_(_LINES) & (log.c.at >= since) & log.c.subject.in_(of_class)
    present: dict[tuple[str, str], tuple[float, HoldKind]] = {}
    outages: list[Outage] = []

    def end(key: tuple[str, str], at: float) -> None:
        if key in present:
            begin, kind = present.pop(key)
            outages.append(Outage(begin, at, kind))

    for row in entries(connection, where=where):
        content, name, at = json.loads(row["content"]), row["subject"], row["at"]
        action, key = row["action"], (row["subject"], content.get("owner") or row["rollout"] or "")
        if action == _RELEASE:  # of all holds of the node
            for other in [other for other in present if other[0] == name]:
                end(other, at)
            continue
        end(key, at)
        failed = (
            action == "Overdue" or content.get("failed") or content.get("kind") == HoldKind.FAILED
        )
        failed = failed or (action == _QUEUE_END and not content["back"])
        if action in (_BEGIN, _TURN) or (action == _QUEUE and content["under"] == QUEUE):
            present[key] = (at, HoldKind.PLANNED)
        elif failed and action != "DropHold":
            present[key] = (at, HoldKind.FAILED)
    return outages
