"""Put a rollout into the store: its document, the nodes of its class, and its limits, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from goldnode.fleet.rollout.document import RolloutFile, RolloutSettings, ShareLimit
from goldnode.fleet.rollout.model import FleetNode
from goldnode.fleet.store import controllers, nodes, rollouts, tables
from goldnode.fleet.store.controllers import Submission
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.log import entries
from goldnode.fleet.store.nodes import NodesChange, StoredNode


@dataclass(frozen=True)
class SubmittedRollout:
    """Changes of the store by a submission."""

    new: bool  # the store had no rollout of this name
    replaced: bool  # it had one with another document
    nodes: NodesChange


def fleet_limits(settings: RolloutSettings) -> FleetLimits:
    """Return the limits of a rollout as the store enforces them."""
    limits = settings.limits
    per = {"rack": limits.rack, "leaf": limits.leaf}
    return FleetLimits(
        planned=_text(limits.planned),
        failed=_text(limits.failed),
        total=_text(limits.total),
        per={scope: count for scope, count in per.items() if count is not None},
        return_within=settings.drain_wait + settings.timeout,
    )


def _text(limit: ShareLimit) -> str:
    return str(limit.count) if limit.count is not None else f"{round(limit.share * 100, 9):.12g}%"


def submit(
    connection: Connection, file: RolloutFile, members: Sequence[FleetNode], who: str, now: float
) -> SubmittedRollout:
    """Store a rollout as queued, or replace the document of one that has not ended.

    The nodes of the class become exactly `members`. Raises StoreError if the name belongs to a
    rollout that has ended or has another target, and if a node that is no longer a member is out of
    service.
    """
    settings = file.settings
    before = rollouts.document(connection, settings.name)
    changed = nodes.put(connection, _stored(connection, settings.class_, members), {}, who, now)
    given = Submission(
        name=settings.name,
        node_class=settings.class_,
        target=settings.target,
        document=file.source.text,
        limits=fleet_limits(settings),
        author=settings.author or who,
        separate=settings.author is not None,
        who=who,
    )
    new = controllers.submit(connection, given, now)
    return SubmittedRollout(new, not new and before != given.document, changed)


def refuse_replaced(connection: Connection, file: RolloutFile) -> None:
    """Raise StoreError for a document that another one has replaced since it was submitted.

    A controller that is started again with its old file must not undo what a person has submitted
    meanwhile.
    """
    name = file.settings.name
    rows = entries(connection, rollout=name, where=tables.log.c.action == "Submit")
    texts = [(row, json.loads(row["content"]).get("document")) for row in rows]
    if not texts or texts[-1][1] == file.source.text:
        return
    if any(text == file.source.text for _, text in texts):
        last = texts[-1][0]
        raise StoreError(
            f"{last['who']} has submitted another document of rollout {name} after this one",
            file=file.source.file,
            remedy="run that one; to go back to this one, submit it again with `goldnode rollout submit`",
        )


def _stored(connection: Connection, class_: str, members: Sequence[FleetNode]) -> list[StoredNode]:
    """Return members as the store has nodes. The id of a FleetLock client stays: an inventory has none."""
    node = tables.node.c
    machines: dict[str, str | None] = {
        row.name: row.machine
        for row in connection.execute(select(node.name, node.machine).where(~node.retired))
    }
    stored = [
        StoredNode(one.name, class_, one.rack, one.leaf, one.cohort, tags=one.tags)
        for one in members
    ]
    return [replace(one, machine=machines.get(one.name)) for one in stored]
