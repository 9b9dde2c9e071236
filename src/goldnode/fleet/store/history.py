"""Steps of the rollouts that the store has seen to their end."""

from __future__ import annotations

import json

from sqlalchemy import Connection, select

from goldnode.fleet.rollout.check import StepOutcomes
from goldnode.fleet.store import tables


def outcomes(connection: Connection, node_class: str) -> StepOutcomes:
    """Return the steps forward of the completed rollouts of a class, from the log."""
    rollout, log = tables.rollout, tables.log
    names = connection.scalars(
        select(rollout.c.name).where(
            rollout.c["class"] == node_class, rollout.c.phase == "completed"
        )
    ).all()
    done = failed = 0
    rows = connection.execute(
        select(log.c.action, log.c.content).where(
            log.c.rollout.in_(names), log.c.action.in_(("Finish", "Overdue"))
        )
    )
    for action, text in rows:
        content = json.loads(text)
        if action == "Overdue" or (content.get("failed") and content.get("blame") == "software"):
            failed += 1
        elif content.get("phase") == "done":
            done += 1
    return StepOutcomes(len(names), done, failed)
