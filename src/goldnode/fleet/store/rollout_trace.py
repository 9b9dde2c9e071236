"""The trace of a real rollout, from the store, judged by the rules that the simulator obeys."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, and_, select

from goldnode.fleet.rollout.audit import TraceAudit
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import RolloutRecord
from goldnode.fleet.rollout.state import Observations, RolloutState
from goldnode.fleet.store import observations, tables
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.log import entries
from goldnode.fleet.store.rollouts import ANSWER, concerns, fleet_nodes, read_action


def violations(connection: Connection, settings: RolloutSettings) -> list[str]:
    """Replay a rollout with its observations, and return what `rollout.audit` refuses of it."""
    submitted = connection.scalar(
        select(tables.rollout.c.submitted_at).where(tables.rollout.c.name == settings.name)
    )
    if submitted is None:
        raise StoreError(f'the store has no rollout "{settings.name}"')
    record = RolloutRecord(
        settings.name, settings.class_, settings.origin, settings.target, submitted_at=submitted
    )
    nodes = [
        replace(node, digest=None, boot_id=None, in_service=None)
        for node in fleet_nodes(connection, settings.class_)
    ]
    state = RolloutState(record, nodes, whole_cohorts=settings.limits.whole_cohorts)
    seen, audit = Observations(), TraceAudit(settings)
    pending = observations.history(connection, settings.class_)
    for row in entries(
        connection, where=concerns(settings.name, settings.class_) | _answers(settings.name)
    ):
        while pending and pending[0][0] < row["seq"]:
            state.record_observation(seen, pending.pop(0)[1])
        if row["action"] == "TakeOver":
            state.record = replace(state.record, epoch=row["epoch"])
        elif row["action"] == ANSWER:
            seen.record(observations.answer(row))
        action = read_action(row)
        if action is not None and getattr(action, "node", None) in (None, *state.nodes):
            audit.before(state, action)
            state.apply(action, row["at"])
            audit.after(state, seen, action, row["at"])
    return audit.violations


def _answers(name: str) -> ColumnElement[bool]:
    return and_(tables.log.c.rollout == name, tables.log.c.action == ANSWER)
