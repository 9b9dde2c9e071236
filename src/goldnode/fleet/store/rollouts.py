"""Actions of `plan` in the store: each is a line of the log and the rows that it changes, in one transaction.

`load` returns the state of a rollout: the log of the rollout replayed, with the holds, freezes and
denials that it shares with persons, services and other rollouts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import yaml
from sqlalchemy import (
    ColumnElement,
    Connection,
    Exists,
    RowMapping,
    and_,
    bindparam,
    func,
    or_,
    select,
)

from goldnode.fleet.rollout import model
from goldnode.fleet.rollout.document import RolloutSettings, digest_of
from goldnode.fleet.rollout.model import (
    Action,
    FleetNode,
    OtherRollout,
    RolloutPhase,
    RolloutRecord,
)
from goldnode.fleet.rollout.state import RolloutState
from goldnode.fleet.store import limits, many, outages, tables
from goldnode.fleet.store.controllers import Controller
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.log import LogLine, append, entries
from goldnode.node.ground.optional import optional

# Lines of persons and services that concern every rollout of a class.
_SHARED = ("Freeze", "Thaw", "Release", "Deny", "LiftDenial")
# Lines for persons: no state depends on them.
ANSWER, POWER_CYCLE, POWER_CYCLED = "Answer", "PowerCycle", "PowerCycled"
CALENDAR, SILENCE = "Calendar", "Silence"
LONGEST = 92 * 86400.0  # seconds of an outage that is looked for in the log
_FOR_PERSONS = (ANSWER, POWER_CYCLE, POWER_CYCLED, CALENDAR, SILENCE)
_ENDS = ("completed", "rolled-back", "superseded")


class StoreChangedError(StoreError):
    """Another writer has changed the rollout since the state was loaded: load it again, and plan again."""


@dataclass(frozen=True)
class LoadedRollout:
    """The state of a rollout, the last line of the log that it contains, and the latest time of its lines."""

    state: RolloutState
    seen: int
    at: float = 0.0


def load(connection: Connection, settings: RolloutSettings) -> LoadedRollout:
    """Return the state of a rollout. Observations are not in it: the caller notes the newest ones."""
    row = (
        connection.execute(select(tables.rollout).where(tables.rollout.c.name == settings.name))
        .mappings()
        .first()
    )
    if row is None:
        raise StoreError(f'the store has no rollout "{settings.name}"')
    record = RolloutRecord(
        name=settings.name,
        class_=settings.class_,
        origin=settings.origin,
        target=settings.target,
        submitted_at=row["submitted_at"],
    )
    nodes = fleet_nodes(connection, settings.class_)
    state = RolloutState(record, nodes, whole_cohorts=settings.limits.whole_cohorts)
    state.others = others(connection, settings)
    seen, at = _replay(connection, state)
    state.record = replace(state.record, epoch=row["epoch"])
    data = state.to_json()
    names = set(state.nodes)
    text = str(row["document"])
    data["holds"] = [one for one in _rows(connection, tables.hold, _HOLD) if one["node"] in names]
    data["freezes"] = _rows(connection, tables.frozen, _FREEZE, tables.frozen.c.lifted_at.is_(None))
    denied = tables.denied
    rows = connection.execute(
        select(denied.c.digest, denied.c.reason).where(
            denied.c["class"] == settings.class_, denied.c.lifted_at.is_(None)
        )
    )
    data["denied"] = {row.digest: row.reason for row in rows}
    if settings.budget is not None:
        since = at - settings.budget.period - LONGEST
        data["ended"] = [
            model.to_json(item) for item in outages.ended(connection, settings.class_, since)
        ]
    latest = RolloutState.from_json(data)
    latest.document = digest_of(text)
    return LoadedRollout(latest, seen, at)


def others(connection: Connection, settings: RolloutSettings) -> tuple[OtherRollout, ...]:
    """Return the other rollouts of the class that have not ended."""
    rollout, busy = tables.rollout, _busy()
    rows = connection.execute(
        select(rollout.c.name, rollout.c.document, rollout.c.submitted_at, busy.label("busy"))
        .where(rollout.c["class"] == settings.class_, rollout.c.name != settings.name)
        .where(rollout.c.ended_at.is_(None))
        .order_by(rollout.c.submitted_at, rollout.c.name)
    )
    return tuple(
        OtherRollout(row.name, _security(row.document), row.submitted_at, bool(row.busy))
        for row in rows
    )


def _busy() -> Exists:
    """Return the condition that a rollout has a node out of service."""
    hold = tables.hold
    planned = select(hold.c.node).where(hold.c.rollout == tables.rollout.c.name)
    return planned.where(hold.c.kind == "planned").exists()


def _security(document: str) -> bool:
    """Return whether a stored document is of the security lane. It was validated when it was submitted."""
    return bool(yaml.safe_load(document).get("lane") == "security")


def document(connection: Connection, name: str) -> str | None:
    """Return the document of a rollout as it was submitted; None for an unknown one."""
    return connection.scalar(select(tables.rollout.c.document).where(tables.rollout.c.name == name))


def ended(connection: Connection, name: str) -> RolloutPhase | None:
    """Return the last phase of a rollout that has ended and has no node out of service; None for any other."""
    rollout, busy = tables.rollout, _busy()
    phase = connection.scalar(
        select(rollout.c.phase).where(
            rollout.c.name == name, rollout.c.ended_at.is_not(None), ~busy
        )
    )
    return optional(RolloutPhase, phase)


def fleet_nodes(connection: Connection, node_class: str) -> list[FleetNode]:
    """Return the nodes of a class, by name, with what they last reported."""
    node = tables.node
    names = ("name", "rack", "leaf", "cohort", "tags", "digest", "boot_id")
    rows = connection.execute(
        select(*(node.c[name] for name in names))
        .where(node.c["class"] == node_class, ~node.c.retired)
        .order_by(node.c.name)
    ).mappings()
    return [FleetNode(**{**row, "tags": tuple(json.loads(row["tags"] or "[]"))}) for row in rows]


def write(
    connection: Connection,
    controller: Controller,
    actions: Sequence[Action],
    now: float,
    seen: int | None = None,
) -> int:
    """Write the actions of a plan, all or none, and return the last line of the log.

    Raises StaleEpochError if another controller has the epoch, StoreChangedError if another writer
    has changed the rollout after line `seen`, and GrantRefusedError if a limit or a freeze is in
    the way: plan again.
    """
    controller.beat(connection, now)
    if seen is not None and changed(connection, controller.rollout, seen):
        raise StoreChangedError(
            f"another writer has changed rollout {controller.rollout}", remedy="plan again"
        )
    writer = _Writer(connection, controller, now)
    for _, group in groupby(actions, type):
        writer.write(list(group))
    append(connection, *writer.lines)
    return connection.scalar(select(func.max(tables.log.c.seq))) or 0


_HOLD = ("node", "owner", "kind", "since", "reason")
_FREEZE = ("id", "scope", "subject", "reason", "who", "at")


def _rows(
    connection: Connection, table: Any, names: Sequence[str], *where: Any
) -> list[dict[str, Any]]:
    query = select(*(table.c[name] for name in names)).where(*where)
    return [dict(row) for row in connection.execute(query).mappings()]


def concerns(name: str, node_class: str) -> ColumnElement[bool]:
    """Return the condition for lines that the state of a rollout depends on."""
    log = tables.log
    shared = and_(
        log.c.action.in_(_SHARED),
        log.c.subject.in_(("all", f"class {node_class}", f"rollout {name}")),
    )
    racks = and_(log.c.action.in_(("Freeze", "Thaw")), log.c.subject.startswith("rack "))
    # They change the holds of nodes, whatever class they are of.
    turns = log.c.action.in_(("GrantTurn", "EndTurn"))
    own = and_(log.c.rollout == name, log.c.action.not_in(_FOR_PERSONS))
    return or_(own, shared, racks, turns)


def changed(connection: Connection, name: str, seen: int) -> bool:
    """Return whether the log has lines after `seen` that the state of a rollout depends on."""
    node_class = connection.scalar(
        select(tables.rollout.c["class"]).where(tables.rollout.c.name == name)
    )
    query = (
        select(tables.log.c.seq)
        .where(tables.log.c.seq > seen, concerns(name, str(node_class)))
        .limit(1)
    )
    return connection.scalar(query) is not None


def _replay(connection: Connection, state: RolloutState) -> tuple[int, float]:
    """Apply the log of the rollout to its first state. Return the last line of the whole log, and the latest time."""
    last = connection.scalar(select(func.max(tables.log.c.seq))) or 0
    latest = 0.0
    name, node_class = state.record.name, state.record.class_
    for row in entries(connection, where=concerns(name, node_class)):
        if row["action"] == "TakeOver":
            state.record = replace(state.record, epoch=row["epoch"])
        action = read_action(row)
        node = getattr(action, "node", None)
        if action is not None and (node is None or node in state.nodes):
            state.apply(action, row["at"])
            latest = max(latest, row["at"])
    return last, latest


def read_action(row: RowMapping) -> Action | None:
    """Return the action of a line; None for a line that is no action of a rollout. Ignore later fields."""
    kind = model.ACTIONS.get(row["action"])
    if kind is None:
        return None
    content = json.loads(row["content"])
    known = {one.name for one in fields(kind)}
    return model.action_from_json(
        {
            "action": row["action"],
            **{name: value for name, value in content.items() if name in known},
        }
    )


@dataclass
class _Known:
    """A node in the store: its wave, the prior state of its step, and whether it has a step and a hold."""

    wave: int | None
    prior: str | None
    step: bool
    hold: bool


_KNOWN = (
    select(
        tables.node.c.name,
        tables.member.c.wave,
        tables.step.c.prior,
        tables.step.c.phase,
        tables.hold.c.owner,
    )
    .select_from(tables.node)
    .join(
        tables.member,
        and_(
            tables.member.c.node == tables.node.c.name,
            tables.member.c.rollout == bindparam("of_rollout"),
        ),
        isouter=True,
    )
    .join(
        tables.step,
        and_(
            tables.step.c.node == tables.node.c.name,
            tables.step.c.rollout == bindparam("of_rollout"),
        ),
        isouter=True,
    )
    .join(
        tables.hold,
        and_(
            tables.hold.c.node == tables.node.c.name, tables.hold.c.owner == bindparam("of_rollout")
        ),
        isouter=True,
    )
    .where(tables.node.c.name.in_(bindparam("of_nodes", expanding=True)))
)
_OWN_STEP = and_(
    tables.step.c.rollout == bindparam("of_rollout"), tables.step.c.node == bindparam("of_node")
)
_OWN_HOLD = and_(
    tables.hold.c.owner == bindparam("of_rollout"), tables.hold.c.node == bindparam("of_node")
)
# Statements for the rows of a group of actions, in their order.
_ROWS = (
    tables.step.insert(),
    tables.step.update().where(_OWN_STEP),
    tables.hold.delete().where(_OWN_HOLD),
    tables.hold.insert(),
    tables.hold.update().where(_OWN_HOLD),
)
_NEW_STEP, _STEP, _NO_HOLD, _NEW_HOLD, _HELD = range(len(_ROWS))


class _Writer:
    """Rows of actions, written under the epoch of one controller.

    Actions of one kind that follow each other share their statements.
    """

    def __init__(self, connection: Connection, controller: Controller, now: float) -> None:
        self.connection, self.controller, self.now = connection, controller, now
        self.rollout = controller.rollout
        self.lines: list[LogLine] = []  # the caller appends them
        self._known: dict[str, _Known] = {}
        self._rows: list[list[dict[str, Any]]] = [[] for _ in _ROWS]

    def write(self, actions: Sequence[Action]) -> None:
        """Write the rows of actions of one kind, and note their lines."""
        name = type(actions[0]).__name__
        change = _CHANGES.get(name)
        if name in _STEPS:
            self._read([getattr(action, "node") for action in actions])  # noqa: B009
        for action in actions:
            if change is not None:
                change(self, action)
            subject = str(
                getattr(action, "node", None) or getattr(action, "subject", None) or self.rollout
            )
            content = model.action_to_json(action)
            holder, epoch = self.controller.holder, self.controller.epoch
            self.lines.append(
                LogLine(
                    self.now,
                    who=holder,
                    action=name,
                    subject=subject[:255],
                    content=content,
                    rollout=self.rollout,
                    epoch=epoch,
                )
            )
        for statement, rows in zip(_ROWS, self._rows, strict=True):
            many.execute(self.connection, statement, rows)
            rows.clear()

    def _read(self, names: Sequence[str]) -> None:
        given = {"of_rollout": self.rollout, "of_nodes": many.padded(names)}
        self._known = {
            row.name: _Known(row.wave, row.prior, row.phase is not None, row.owner is not None)
            for row in self.connection.execute(_KNOWN, given)
        }

    def members(self, wave: int, names: Sequence[str]) -> None:
        rows = [{"rollout": self.rollout, "node": name, "wave": wave} for name in names]
        if rows:
            self.connection.execute(tables.member.insert(), rows)

    def start(self, action: model.Start) -> None:
        self.controller.change(self.connection, phase="running", wave=0, why="")
        self.members(0, action.nodes)
        limits.apply(self.connection)

    def extend(self, action: model.Extend) -> None:
        self.members(action.wave, action.nodes)

    def promote(self, action: model.Promote) -> None:
        self.controller.change(self.connection, wave=action.wave, why="")
        self.members(action.wave, action.nodes)

    def change_phase(self, action: model.ChangePhase) -> None:
        ended = self.now if action.phase.value in _ENDS else None
        values: dict[str, Any] = {"phase": action.phase.value, "why": action.why, "ended_at": ended}
        if action.back is not None:
            values["back"] = action.back.value
        self.controller.change(self.connection, **values)
        limits.apply(self.connection)

    def grant(self, action: model.Grant) -> None:
        back = action.direction is model.Direction.BACK
        target = action.prior.digest if back else self._target
        self.step(
            action.node,
            direction=action.direction.value,
            phase="granted",
            attempt=action.attempt,
            target=target,
            granted_at=self.now,
            deadline=action.deadline,
            prior=json.dumps(model.to_json(action.prior), sort_keys=True),
            cause=None,
            blame=None,
            worker=None,
        )
        self.hold(action.node, "planned", f"{action.direction.value} step", action.deadline)

    def proceed(self, action: model.Proceed) -> None:
        self.step(
            action.node, phase=action.phase.value, deadline=action.deadline, cause=action.cause
        )
        self.hold(action.node, "planned", None, action.deadline)

    def turn(self, action: model.Turn) -> None:
        prior = self._of(action.node).prior
        self.step(
            action.node,
            direction="back",
            phase="applying",
            attempt=action.attempt,
            target=json.loads(prior or "{}").get("digest"),
            deadline=action.deadline,
            cause=action.cause,
            blame=action.blame and action.blame.value,
        )
        self.hold(action.node, "planned", "back step", action.deadline)

    def finish(self, action: model.Finish) -> None:
        self.step(
            action.node,
            phase=action.phase.value,
            cause=action.cause,
            blame=action.blame and action.blame.value,
            worker=None,
        )
        if action.failed:
            self.hold(action.node, "failed", action.cause or "failed", None)
        else:
            self._of(action.node).hold = False
            self._rows[_NO_HOLD].append({"of_rollout": self.rollout, "of_node": action.node})

    def overdue(self, action: model.Overdue) -> None:
        self.step(action.node, phase="overdue", cause=action.reason, blame="absent", worker=None)
        self.hold(action.node, "failed", action.reason, None)

    def take_hold(self, action: model.TakeHold) -> None:
        where = self._held(action.node, action.owner)
        values = {"kind": action.kind.value, "since": self.now, "reason": action.reason}
        if not self.connection.execute(
            tables.hold.update().where(*where).values(**values)
        ).rowcount:
            self.connection.execute(
                tables.hold.insert().values(node=action.node, owner=action.owner, **values)
            )

    def drop_hold(self, action: model.DropHold) -> None:
        self.connection.execute(tables.hold.delete().where(*self._held(action.node, action.owner)))

    def deny(self, action: model.Deny) -> None:
        denied = tables.denied.c
        there = select(denied.seq).where(
            denied["class"] == self._class,
            denied.digest == action.digest,
            denied.lifted_at.is_(None),
        )
        if self.connection.scalar(there):  # by a person, or by another rollout
            return
        self.connection.execute(
            tables.denied.insert().values(
                **{"class": self._class},
                digest=action.digest,
                reason=action.reason,
                who=self.controller.holder,
                at=self.now,
            )
        )

    def freeze(self, action: model.Freeze) -> None:
        """Write a freeze. One of the same scope, by a person or for another reason, gets this reason too."""
        frozen = tables.frozen
        scope = (frozen.c.scope == action.scope.value, frozen.c.subject == action.subject)
        before = self.connection.execute(
            select(frozen).where(*scope, frozen.c.lifted_at.is_(None))
        ).first()
        if before is not None:
            reason = f"{before.reason}; {action.who}: {action.reason}"
            self.connection.execute(
                frozen.update().where(frozen.c.id == before.id).values(id=action.id, reason=reason)
            )
            return
        self.connection.execute(
            frozen.insert().values(
                id=action.id,
                scope=action.scope.value,
                subject=action.subject,
                reason=action.reason,
                who=action.who,
                at=self.now,
            )
        )

    def step(self, name: str, **values: Any) -> None:
        """Note the step of a node, a new one or the one that it has."""
        values |= {"epoch": self.controller.epoch, "changed_at": self.now}
        known = self._of(name)
        if known.step:
            self._rows[_STEP].append({"of_rollout": self.rollout, "of_node": name, **values})
            return
        first = {
            "direction": "forward",
            "attempt": 0,
            "granted_at": 0.0,
            "deadline": 0.0,
            "wave": known.wave or 0,
        }
        self._rows[_NEW_STEP].append({"rollout": self.rollout, "node": name, **first, **values})
        known.step = True

    def hold(self, name: str, kind: str, reason: str | None, deadline: float | None) -> None:
        """Note the hold of a node by this rollout, a new one or the one that it has."""
        values: dict[str, Any] = {
            "kind": kind,
            "rollout": self.rollout,
            "epoch": self.controller.epoch,
            "deadline": deadline,
        }
        if reason is not None:
            values |= {"reason": reason, "since": self.now}
        known = self._of(name)
        if known.hold:
            self._rows[_HELD].append({"of_rollout": self.rollout, "of_node": name, **values})
        elif reason is not None:
            self._rows[_NEW_HOLD].append({"node": name, "owner": self.rollout, **values})
            known.hold = True

    def _of(self, name: str) -> _Known:
        """Return what the store has of a node. One that it does not have is refused by its foreign keys."""
        return self._known.setdefault(name, _Known(None, None, False, False))

    def _held(self, name: str, owner: str) -> tuple[ColumnElement[bool], ...]:
        return tables.hold.c.node == name, tables.hold.c.owner == owner

    @cached_property
    def _class(self) -> str:
        return str(
            self.connection.scalar(
                select(tables.rollout.c["class"]).where(tables.rollout.c.name == self.rollout)
            )
        )

    @cached_property
    def _target(self) -> str:
        return str(
            self.connection.scalar(
                select(tables.rollout.c.target).where(tables.rollout.c.name == self.rollout)
            )
        )


# Actions that change rows. Evaluate and Alarm are lines only; orders of persons have functions of their own.
_CHANGES: Mapping[str, Callable[[_Writer, Any], None]] = {
    "Start": _Writer.start,
    "Promote": _Writer.promote,
    "Extend": _Writer.extend,
    "ChangePhase": _Writer.change_phase,
    "Grant": _Writer.grant,
    "Proceed": _Writer.proceed,
    "Turn": _Writer.turn,
    "Finish": _Writer.finish,
    "Overdue": _Writer.overdue,
    "TakeHold": _Writer.take_hold,
    "DropHold": _Writer.drop_hold,
    "Deny": _Writer.deny,
    "Freeze": _Writer.freeze,
}
# Of one node, which the writer reads before.
_STEPS = (
    "Grant",
    "Proceed",
    "Turn",
    "Finish",
    "Overdue",
)
