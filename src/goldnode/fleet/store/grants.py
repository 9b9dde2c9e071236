"""Grants and returns: the ledger of nodes that are out of service.

Every function runs in the caller's write transaction. The guards of the database enforce limits,
freezes, epochs and the deny list again, so a mistake here cannot pass a limit. `explain` finds the
reason for a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
)

from goldnode.fleet.rollout.model import NodeObservation
from goldnode.fleet.store import limits, many, observations, tables
from goldnode.fleet.store.errors import GrantRefusedError, RefusalKind, StoreError
from goldnode.fleet.store.log import LogLine, append
from goldnode.fleet.store.many import padded
from goldnode.fleet.store.observations import Arrived, LastReport
from goldnode.fleet.store.room import Room, no_document

LOCK = "lock"  # owner of a hold that belongs to no rollout
_SAME = 3600.0  # seconds after which a report without news is recorded again
_SKEW = 60.0  # seconds between the clocks of two machines that are no fault
_AFTER = 0.001  # seconds
_ALIVE = 60.0  # seconds since the last sign of life of a controller that decides about overdue nodes itself
# Phases of a step that a controller leads: it judges the node, and ends the hold.
_LED = ("applying", "returning")


@dataclass(frozen=True)
class LeaveRequest:
    """Request of a node for leave to go out of service, or its return. FleetLock has `node` and `group` only."""

    node: str  # its name, or its machine id
    group: str  # class, rack, leaf or cohort of the node
    now: float
    rollout: str | None = None
    digest: str | None = None  # that the node runs
    wants: str | None = None  # digest that it moves to
    boot_id: str | None = None
    report: NodeObservation | None = None  # what the node says of itself, if it does
    granted_only: bool = False  # leave that the controller of the rollout has granted, and no other


@dataclass(frozen=True)
class Leave:
    """A grant: the node, the owner of the hold, the epoch, and the time until which the node is expected back.

    `phase` and `target` are of the step of a rollout. A node that follows a channel starts in phase
    `applying`: then it is drained.
    """

    node: str
    owner: str
    epoch: int | None
    deadline: float
    again: bool = False  # the node had it already
    phase: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class GivenBack:
    """Result of a return: whether a planned hold ended, why one did not, and the phase of a step that goes on."""

    released: bool
    refusal: GrantRefusedError | None = None
    phase: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A node with all that a grant depends on, read in one statement."""

    name: str
    domains: tuple[tuple[str, str], ...]
    row: RowMapping

    @property
    def node_class(self) -> str:
        """Return the class of the node."""
        return self.domains[0][1]


# Statements of grants and returns, built once: that costs more than to run them.
_CANDIDATES = (
    select(
        *(tables.node.c[name] for name in ("name", "machine", *tables.SCOPES, "boot_id")),
        tables.rollout.c.name.label("rollout"),
        *(tables.rollout.c[name] for name in ("phase", "wave", "target", "epoch")),
        func.coalesce(tables.rollout.c.limits, limits.of_nodes()).label("limits"),
        tables.rollout.c["class"].label("rollout_class"),
        tables.member.c.wave.label("own_wave"),
        tables.step.c.phase.label("step_phase"),
        *(tables.step.c[name] for name in ("direction", "attempt", "prior", "changed_at")),
        tables.step.c.target.label("step_target"),
        tables.hold.c.owner,
        *(tables.hold.c[name] for name in ("kind", "deadline", "reason")),
        tables.hold.c.boot_id.label("hold_boot_id"),
        tables.hold.c.epoch.label("hold_epoch"),
    )
    .select_from(tables.node)
    .join(tables.rollout, tables.rollout.c.name == bindparam("asked_rollout"), isouter=True)
    .join(
        tables.member,
        and_(
            tables.member.c.rollout == tables.rollout.c.name,
            tables.member.c.node == tables.node.c.name,
        ),
        isouter=True,
    )
    .join(
        tables.step,
        and_(
            tables.step.c.rollout == tables.rollout.c.name, tables.step.c.node == tables.node.c.name
        ),
        isouter=True,
    )
    .join(tables.hold, tables.hold.c.node == tables.node.c.name, isouter=True)
    .where(
        or_(
            *(
                column.in_(bindparam("asked_nodes", expanding=True))
                for column in (tables.node.c.name, tables.node.c.machine)
            )
        ),
        ~tables.node.c.retired,
    )
    # A planned hold first: it is the leave. Then a failed one, which only a person ends, before a person's drain.
    .order_by(case({"planned": 0, "failed": 1}, value=tables.hold.c.kind, else_=2))
)
_NEW_STEP, _NEW_HOLD = tables.step.insert(), tables.hold.insert()
_CHANGE_STEP = tables.step.update().where(
    tables.step.c.rollout == bindparam("of_rollout"), tables.step.c.node == bindparam("of_node")
)
_END_HOLD = tables.hold.delete().where(
    tables.hold.c.node == bindparam("of_node"), tables.hold.c.owner == bindparam("of_owner")
)
_Answer = TypeVar("_Answer")


def candidates(
    connection: Connection, requests: Sequence[LeaveRequest]
) -> list[Candidate | GrantRefusedError]:
    """Return the node of each request, or why there is none."""
    names: dict[str, list[str]] = {}
    for request in requests:
        names.setdefault(request.rollout or "", []).append(request.node)
    rows: dict[tuple[str, str], RowMapping] = {}
    for rollout, asked in names.items():
        given = {"asked_nodes": padded(asked), "asked_rollout": rollout}
        for row in connection.execute(_CANDIDATES, given).mappings():
            for name in (row["name"], row["machine"]):
                rows.setdefault((rollout, name), row)
    return [
        _candidate(rows.get((request.rollout or "", request.node)), request) for request in requests
    ]


def candidate(connection: Connection, request: LeaveRequest) -> Candidate:
    """Return the node of a request. Raise GrantRefusedError for an unknown node, or a group that is not its own."""
    return _only(candidates(connection, [request]))


def _only(answers: Sequence[_Answer | GrantRefusedError]) -> _Answer:
    """Return the one answer, or raise it."""
    (answer,) = answers
    if isinstance(answer, GrantRefusedError):
        raise answer
    return answer


def _candidate(row: RowMapping | None, request: LeaveRequest) -> Candidate | GrantRefusedError:
    if row is None:
        return GrantRefusedError(
            RefusalKind.UNKNOWN_NODE,
            f'the store has no node "{request.node}"',
            remedy="add it: `goldnode fleet nodes FILE`",
        )
    domains = tuple((scope, row[scope]) for scope in tables.SCOPES if row[scope])
    if not _same(request.group, domains):
        return GrantRefusedError(
            RefusalKind.UNKNOWN_GROUP,
            f'"{request.group}" is no class, rack, leaf or cohort of {row["name"]}',
            remedy=f"set the group of the client to one of: {', '.join(sorted({n for _, n in domains}))}",
        )
    return Candidate(row["name"], domains, row)


def _same(group: str, domains: tuple[tuple[str, str], ...]) -> bool:
    """Return whether a group is one of the domains. FleetLock's groups have no underscore: a hyphen replaces it."""
    return group.replace("_", "-") in {name.replace("_", "-") for _, name in domains}


def grant(connection: Connection, request: LeaveRequest) -> Leave:
    """Grant leave to a node, or raise GrantRefusedError. A node that has leave already gets the same answer."""
    return _only(grant_all(connection, [request]))


def grant_all(
    connection: Connection, requests: Sequence[LeaveRequest]
) -> list[Leave | GrantRefusedError]:
    """Grant leave to nodes in the order of their requests; return the leave of each, or why it has none.

    The number of statements does not depend on that of the requests. If a guard of the database
    refuses a node, the error is of all: then ask for one after the other.
    """
    answers: dict[int, Leave | GrantRefusedError] = {}
    examined = candidates(connection, requests)
    room: Room | None = None
    changes, taken, again = _Changes(), set(), []
    for number, (request, one) in enumerate(zip(requests, examined, strict=True)):
        if isinstance(one, GrantRefusedError):
            answers[number] = one
        elif one.name in taken:  # the second request of a node sees what the first one got
            again.append(number)
        else:
            try:
                held = _held(one, request)
                if held is None:
                    room = room or Room(
                        connection,
                        [item.domains for item in examined if isinstance(item, Candidate)],
                    )
                    answers[number] = _granted(one, request, room, changes)
                    taken.add(one.name)
                else:
                    answers[number] = held
            except GrantRefusedError as problem:
                answers[number] = problem
    changes.write(connection)
    if again:
        more = grant_all(connection, [requests[number] for number in again])
        answers |= dict(zip(again, more, strict=True))
    return [answers[number] for number in range(len(requests))]


class _Changes:
    """Rows and lines of the grants or returns of one transaction."""

    def __init__(self) -> None:
        self.new_steps: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.holds: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.lines: list[LogLine] = []

    def write(self, connection: Connection) -> None:
        """Write the rows, then the lines. A grant and a return of the same node are never in one of these."""
        many.execute(connection, _NEW_STEP, self.new_steps)
        many.execute(connection, _CHANGE_STEP, self.steps)
        many.execute(connection, _END_HOLD, self.ended)
        many.execute(connection, _NEW_HOLD, self.holds)
        append(connection, *self.lines)


def _held(found: Candidate, request: LeaveRequest) -> Leave | None:
    """Return the leave that a node has already. Raise GrantRefusedError for a node that is out for another reason."""
    row, owner = found.row, request.rollout or LOCK
    if row["owner"] is None:
        return None
    if row["owner"] == owner and row["kind"] == "planned":
        return Leave(
            found.name,
            owner,
            row["hold_epoch"],
            row["deadline"],
            again=True,
            phase=row["step_phase"],
            target=row["step_target"],
        )
    kind, remedy = RefusalKind.OUT_ALREADY, None
    if row["kind"] == "failed":
        kind = RefusalKind.PERSON
        remedy = f"a person releases it: `goldnode fleet release {found.name} --reason REASON`"
    raise GrantRefusedError(
        kind,
        f"{found.name} is out of service already ({row['kind']}, {row['owner']}): {row['reason']}",
        remedy=remedy,
    )


def _granted(found: Candidate, request: LeaveRequest, room: Room, changes: _Changes) -> Leave:
    """Return the leave of a node that has none, and note what it changes. Raise GrantRefusedError if it may not go."""
    row, owner = found.row, request.rollout or LOCK
    if request.granted_only:
        raise GrantRefusedError(
            RefusalKind.NOT_YOUR_TURN,
            _not_its_turn(found, request)
            or f"the controller of rollout {request.rollout} has not granted {found.name} yet: limits, windows and "
            "order decide",
        )
    if not row["limits"]:
        raise no_document(found.node_class)
    deadline = request.now + limits.FleetLimits.read(row["limits"]).return_within
    leave = Leave(found.name, owner, row["epoch"] if request.rollout else None, deadline)
    content = {"action": "Grant", "node": found.name, "deadline": leave.deadline}
    step = None
    if request.rollout:
        step, started = _started_step(found, request, leave)
        leave = replace(leave, phase="granted", target=started.pop("target"))
        content |= started
    room.check(found.domains, request.rollout)
    room.take(found.domains)
    if step is not None and row["step_phase"] is None:
        changes.new_steps.append({"rollout": request.rollout, "node": found.name, **step})
    elif step is not None:
        changes.steps.append({"of_rollout": request.rollout, "of_node": found.name, **step})
    reason = f"rollout {request.rollout}" if request.rollout else f"leave for {request.group}"
    changes.holds.append(
        {
            "node": found.name,
            "owner": owner,
            "kind": "planned",
            "rollout": request.rollout,
            "epoch": leave.epoch,
            "since": request.now,
            "deadline": leave.deadline,
            "boot_id": request.boot_id or row["boot_id"],
            "reason": reason,
        }
    )
    changes.lines.append(_line(found, request, content, leave.epoch))
    return leave


def _line(
    found: Candidate, request: LeaveRequest, content: dict[str, Any], epoch: int | None
) -> LogLine:
    return LogLine(
        request.now,
        who=f"node {found.name}",
        action=content["action"],
        subject=found.name,
        content=content,
        rollout=request.rollout,
        epoch=epoch,
    )


def give_back(connection: Connection, request: LeaveRequest) -> GivenBack:
    """End the planned hold of a node that is back, and record what the node reports.

    Neither limits nor a freeze stop a return. A failed hold ends only by `release`, and a node that
    runs another digest than it was granted stays out. To give back what is not held is no error, as
    in FleetLock.
    """
    return _only(give_back_all(connection, [request]))


def give_back_all(
    connection: Connection, requests: Sequence[LeaveRequest]
) -> list[GivenBack | GrantRefusedError]:
    """End the planned holds of nodes that are back, as :func:`give_back` does."""
    answers: dict[int, GivenBack | GrantRefusedError] = {}
    first: dict[str, tuple[int, Candidate]] = {}
    again = []
    for number, one in enumerate(candidates(connection, requests)):
        if isinstance(one, GrantRefusedError):
            answers[number] = one
        elif one.name in first:  # the second request of a node sees what the first one changed
            again.append(number)
        else:
            first[one.name] = number, one
    _observe(connection, [(one, requests[number]) for number, one in first.values()])
    changes = _Changes()
    for number, one in first.values():
        answers[number] = _given_back(one, requests[number], changes)
    changes.write(connection)
    if again:
        more = give_back_all(connection, [requests[number] for number in again])
        answers |= dict(zip(again, more, strict=True))
    return [answers[number] for number in range(len(requests))]


def _given_back(found: Candidate, request: LeaveRequest, changes: _Changes) -> GivenBack:
    row, owner = found.row, request.rollout or LOCK
    if row["kind"] == "failed":
        return GivenBack(
            False,
            GrantRefusedError(
                RefusalKind.PERSON,
                f"{found.name} is in the failed buffer: {row['reason']}",
                remedy=f"a person releases it: `goldnode fleet release {found.name} --reason REASON`",
            ),
        )
    if row["kind"] != "planned" or row["owner"] != owner:
        return GivenBack(False)
    if request.rollout and row["step_phase"] in _LED:
        return GivenBack(False, phase=row["step_phase"])
    phase = None
    if request.rollout:
        try:
            phase = _ended(found, request)
        except GrantRefusedError as problem:
            return GivenBack(False, problem)
    if phase:
        changes.steps.append(
            {
                "of_rollout": request.rollout,
                "of_node": found.name,
                "phase": phase,
                "changed_at": request.now,
                "epoch": row["epoch"],
                "worker": None,
            }
        )
    changes.ended.append({"of_node": found.name, "of_owner": owner})
    content = {
        "action": "Finish",
        "node": found.name,
        "phase": phase or "done",
        "wave": row["own_wave"] or 0,
    }
    changes.lines.append(_line(found, request, content, row["epoch"]))
    return GivenBack(True)


def observe_all(
    connection: Connection, requests: Sequence[LeaveRequest]
) -> list[Candidate | GrantRefusedError]:
    """Record what nodes report about themselves; return the node of each request, or why there is none."""
    answers = candidates(connection, requests)
    known = [
        (one, request)
        for one, request in zip(answers, requests, strict=True)
        if not isinstance(one, GrantRefusedError)
    ]
    _observe(connection, known)
    return answers


def _observe(connection: Connection, found: Sequence[tuple[Candidate, LeaveRequest]]) -> None:
    """Record what nodes report about themselves. Without a boot id there is nothing to record.

    A report without news is not recorded, unless the step of the node has changed since
    the last one: the controller waits for a report after that. The log decides what was before
    what, since clocks can be set back.
    """
    if not any(request.boot_id for _, request in found):
        return
    last = observations.last(connection, [one.name for one, _ in found])
    new: list[Arrived] = []
    same: list[tuple[LastReport, LeaveRequest, Arrived]] = []
    for one, request in found:
        if request.boot_id is None:
            continue
        report = request.report or NodeObservation(one.name, request.now)
        before = last.get(one.name)
        at = _in_order(request.now, one.row["changed_at"], before)
        item = replace(report, node=one.name, at=at, boot_id=request.boot_id, digest=request.digest)
        arrived = Arrived(item, f"node, for {request.rollout or LOCK}", request.now)
        if (
            before is None
            or abs(request.now - before.clock) >= _SAME
            or replace(before.report, at=at) != item
        ):
            new.append(arrived)
            last[one.name] = LastReport(
                item, request.now, before.log_seq if before is not None else 0
            )
        else:
            same.append((before, request, arrived))
    recorded = {one.item.node for one in new}
    same = [row for row in same if row[2].item.node not in recorded]
    changed = observations.changed_since(connection, {row[0].report.node: row[0] for row in same})
    new += [
        arrived for _, request, arrived in same if (arrived.item.node, request.rollout) in changed
    ]
    observations.record_all(connection, new)


def _in_order(now: float, changed_at: float | None, last: LastReport | None) -> float:
    """Return the time of a report that has arrived: not before the last one, and after the change of the step.

    A clock that is behind by seconds may be right: then the report is from before the change.
    """
    at = max(now, last.report.at) if last is not None else now
    behind = changed_at is not None and now < changed_at - _SKEW
    return max(at, changed_at + _AFTER) if changed_at is not None and behind else at


def overdue(connection: Connection, now: float) -> list[str]:
    """Move holds whose deadline has passed from the planned to the failed buffer. Return the nodes by name.

    Where the controller of a rollout lives, it decides about the nodes of the rollout.
    """
    hold, rollout = tables.hold, tables.rollout
    led = select(rollout.c.name).where(
        rollout.c.name == hold.c.rollout, rollout.c.beat_at.between(now - _ALIVE, now + _ALIVE)
    )
    late = (
        connection.execute(
            select(hold.c.node, hold.c.owner, hold.c.rollout, hold.c.deadline, hold.c.reason)
            .where(hold.c.kind == "planned", hold.c.deadline < now, ~led.exists())
            .order_by(hold.c.node)
        )
        .mappings()
        .all()
    )
    for row in late:
        reason = f"overdue: expected back {int(now - row['deadline'])} s ago ({row['reason']})"
        connection.execute(
            hold.update()
            .where(_key(row["node"], row["owner"]))
            .values(kind="failed", reason=reason)
        )
        epoch = None
        if row["rollout"]:
            epoch = connection.scalar(
                select(tables.rollout.c.epoch).where(tables.rollout.c.name == row["rollout"])
            )
            connection.execute(
                tables.step.update()
                .where(tables.step.c.rollout == row["rollout"], tables.step.c.node == row["node"])
                .values(phase="overdue", changed_at=now, epoch=epoch, cause=reason, blame="absent")
            )
        content = {"action": "Overdue", "node": row["node"], "reason": reason}
        append(
            connection,
            LogLine(
                now,
                who="lock service",
                action="Overdue",
                subject=row["node"],
                content=content,
                rollout=row["rollout"],
                epoch=epoch,
            ),
        )
    return [row["node"] for row in late]


@dataclass(frozen=True)
class PersonsOrder:
    """An order of a person: who, when and why. `who` is an authenticated identity."""

    who: str
    now: float
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise StoreError("an order needs a reason", remedy="give one with --reason")
        if not self.who.strip():
            raise StoreError("an order needs the identity of a person")

    def log(
        self,
        connection: Connection,
        subject: str,
        content: Mapping[str, Any],
        rollout: str | None = None,
        epoch: int | None = None,
    ) -> None:
        """Append to the log what was done by this order. `content` names the action."""
        append(
            connection,
            LogLine(
                self.now,
                who=self.who,
                action=content["action"],
                subject=subject,
                content=content,
                rollout=rollout,
                epoch=epoch,
            ),
        )


def release(connection: Connection, name: str, order: PersonsOrder) -> list[str]:
    """End all holds of a node. Return their owners. Raises StoreError for a node without one."""
    known = connection.execute(
        select(tables.node.c.name).where(
            or_(tables.node.c.name == name, tables.node.c.machine == name)
        )
    ).scalar()
    if known is None:
        raise StoreError(
            f'the store has no node "{name}"', remedy="`goldnode fleet status` lists them"
        )
    rows = connection.execute(
        select(tables.hold.c.owner, tables.hold.c.kind, tables.hold.c.rollout, tables.hold.c.reason)
        .where(tables.hold.c.node == known)
        .order_by(tables.hold.c.owner)
    ).all()
    if not rows:
        raise StoreError(
            f"{known} is not out of service", remedy="`goldnode fleet status` lists the holds"
        )
    connection.execute(tables.hold.delete().where(tables.hold.c.node == known))
    for owner, kind, rollout, reason in rows:
        order.log(
            connection,
            known,
            {
                "action": "Release",
                "node": known,
                "who": order.who,
                "reason": order.reason,
                "before": {"owner": owner, "kind": kind, "reason": reason},
            },
            rollout,
        )
    return [row[0] for row in rows]


def explain(
    connection: Connection, request: LeaveRequest, problem: GrantRefusedError
) -> GrantRefusedError:
    """Return a refusal by a guard with names and numbers, as far as the store still shows the reason."""
    try:
        wanted = candidate(connection, request)
        Room(connection, [wanted.domains]).check(wanted.domains, request.rollout)
    except GrantRefusedError as better:
        return better
    return problem


def _started_step(
    found: Candidate, request: LeaveRequest, leave: Leave
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the step of a node that a rollout moves, and what of it is logged; refuse a node whose turn it is not."""
    row = found.row
    reason = _not_its_turn(found, request)
    if reason:
        raise GrantRefusedError(RefusalKind.NOT_YOUR_TURN, reason)
    back = row["phase"] in tables.BACK_PHASES
    prior = json.loads(row["prior"]) if row["prior"] else {}
    target = prior.get("digest") if back else row["target"]
    if not prior:
        prior = {
            "in_service": True,
            "digest": request.digest,
            "boot_id": request.boot_id,
            "reason": "",
            "at": request.now,
        }
    values = {
        "wave": row["own_wave"],
        "direction": "back" if back else "forward",
        "phase": "granted",
        "epoch": leave.epoch,
        "attempt": (row["attempt"] or 0) + 1,
        "target": target,
        "granted_at": request.now,
        "changed_at": request.now,
        "deadline": leave.deadline,
        "prior": json.dumps(prior, sort_keys=True),
        "cause": None,
        "blame": None,
        "worker": f"node {found.name}",
    }
    return values, {
        "direction": values["direction"],
        "attempt": values["attempt"],
        "prior": prior,
        "target": target,
    }


def _not_its_turn(found: Candidate, request: LeaveRequest) -> str | None:
    """Return why a rollout does not move this node now; None if it does."""
    row = found.row
    if row["rollout"] is None:
        return f'the store has no rollout "{request.rollout}"'
    if row["rollout_class"] != found.node_class:
        return f"rollout {request.rollout} is for class {row['rollout_class']}, not for {found.node_class}"
    if row["phase"] not in (*tables.FORWARD_PHASES, *tables.BACK_PHASES):
        return f"rollout {request.rollout} is {row['phase']}"
    if row["own_wave"] is None:
        return f"rollout {request.rollout} has no wave for {found.name} yet"
    back = row["phase"] in tables.BACK_PHASES
    if back and row["step_phase"] is None:
        return f"rollout {request.rollout} is rolled back, and has not moved {found.name}"
    if not back and row["own_wave"] > row["wave"]:
        return f"{found.name} is in wave {row['own_wave']}, and wave {row['wave']} is open"
    if not back and request.wants not in (None, row["target"]):
        return f"rollout {request.rollout} moves to {row['target']}, not to {request.wants}"
    if row["step_phase"] in ("done", "deferred", "left") and row["direction"] == (
        "back" if back else "forward"
    ):
        return f"rollout {request.rollout} has moved {found.name} already"
    return None


def _ended(found: Candidate, request: LeaveRequest) -> str | None:
    """Return the phase in which a step ends when its node is back. Raises GrantRefusedError if it may not."""
    row = found.row
    if row["step_phase"] is None:
        return None
    rebooted = request.boot_id is not None and request.boot_id != row["hold_boot_id"]
    if request.digest is not None and request.digest == row["step_target"] and rebooted:
        return "done"
    prior = json.loads(row["prior"] or "{}").get("digest")
    if not rebooted and request.boot_id is not None and request.digest == prior:
        return "passed"  # it gave up before it booted, and has never left
    raise GrantRefusedError(
        RefusalKind.NOT_YOUR_TURN,
        f"{found.name} runs {request.digest or 'an unknown digest'} "
        f"{'after' if rebooted else 'without'} a boot, and was granted {row['step_target']}: it keeps its leave",
        remedy="the rollout judges it, or moves it to the failed buffer when it is overdue",
    )


def _key(name: str, owner: str) -> ColumnElement[bool]:
    return and_(tables.hold.c.node == name, tables.hold.c.owner == owner)
