"""Orders of persons: freeze, unfreeze, approve, roll back, deny. Each has an identity and a reason, and is in the log."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select

from goldnode.fleet.rollout.document import digest_of
from goldnode.fleet.rollout.model import BackScope
from goldnode.fleet.shared.person import same_person
from goldnode.fleet.store import limits, rollout_view, tables
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.grants import PersonsOrder


@dataclass(frozen=True)
class Scope:
    """Nodes to which a freeze applies: all, a class, a rack, or those of a rollout."""

    kind: str = "all"
    subject: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}".strip()


def freeze(
    connection: Connection, scope: Scope, order: PersonsOrder, name: str | None = None
) -> bool:
    """Stop all grants in a scope. Return whether it was not frozen before.

    A grant after this transaction is refused. Nodes that have leave finish and return.
    """
    _known(connection, scope)
    frozen = tables.frozen
    if connection.scalar(select(frozen.c.id).where(*_in_force(scope))):
        return False
    name = name or f"freeze-{uuid4().hex[:12]}"
    connection.execute(
        frozen.insert().values(
            id=name,
            scope=scope.kind,
            subject=scope.subject,
            reason=order.reason,
            who=order.who,
            at=order.now,
        )
    )
    order.log(
        connection,
        str(scope),
        {
            "action": "Freeze",
            "id": name,
            "scope": scope.kind,
            "subject": scope.subject,
            "reason": order.reason,
            "who": order.who,
        },
        _rollout(scope),
    )
    return True


def unfreeze(connection: Connection, scope: Scope, order: PersonsOrder) -> bool:
    """Lift the freeze of a scope. Return whether there was one. Freezes of other scopes stay."""
    frozen = tables.frozen
    name = connection.scalar(select(frozen.c.id).where(*_in_force(scope)))
    if name is None:
        return False
    connection.execute(
        frozen.update().where(frozen.c.id == name).values(lifted_at=order.now, lifted_by=order.who)
    )
    order.log(
        connection,
        str(scope),
        {"action": "Thaw", "id": name, "who": order.who, "reason": order.reason},
        _rollout(scope),
    )
    return True


def approve(
    connection: Connection, rollout: str, wave: str, role: str, order: PersonsOrder
) -> bool:
    """Approve a wave of the stored document in a role. Return whether this was new.

    The approval does not count for a document that replaces this one later. Raises StoreError if
    the document separates author and approver and this is the author, and if this person has
    approved the wave in another role: two roles are two persons.
    """
    names = ("author", "separate", "epoch", "document")
    row = connection.execute(
        select(*(tables.rollout.c[name] for name in names)).where(tables.rollout.c.name == rollout)
    ).first()
    if row is None:
        raise StoreError(f'the store has no rollout "{rollout}"')
    if row.separate and same_person(row.author, order.who):
        raise StoreError(
            f"{order.who} is the author of rollout {rollout}, and its document wants another approver",
            remedy="let another person approve it",
        )
    approval, document = tables.document_approval, digest_of(row.document)
    rows = connection.execute(
        select(approval.c.role, approval.c.who).where(
            approval.c.rollout == rollout, approval.c.document == document, approval.c.wave == wave
        )
    ).all()
    if any(row.role == role for row in rows):
        return False
    own = [row.role for row in rows if same_person(row.who, order.who)]
    if own:
        raise StoreError(
            f"{order.who} has approved wave {wave} as {own[0]} already",
            remedy=f"let another person approve it as {role}",
        )
    connection.execute(
        approval.insert().values(
            rollout=rollout, document=document, wave=wave, role=role, who=order.who, at=order.now
        )
    )
    order.log(
        connection,
        wave,
        {
            "action": "Approve",
            "wave": wave,
            "role": role,
            "who": order.who,
            "document": document,
            "reason": order.reason,
        },
        rollout,
        row.epoch,
    )
    return True


_WIDTH = (BackScope.FAILED, BackScope.WAVE, BackScope.ALL)


def roll_back(connection: Connection, rollout: str, scope: BackScope, order: PersonsOrder) -> bool:
    """Roll a rollout back and deny its target. Return whether nodes have to move that did not so far.

    A rollout that has ended begins again: a controller takes it up. Raises StoreError for one that
    has moved no node, and while another rollout of the class is active.
    """
    table = tables.rollout
    row = connection.execute(select(table).where(table.c.name == rollout)).mappings().first()
    if row is None:
        raise StoreError(
            f'the store has no rollout "{rollout}"', remedy="`goldnode fleet status` lists them"
        )
    if row["phase"] in ("queued", "superseded"):
        raise StoreError(
            f"rollout {rollout} is {row['phase']}: it has nothing to roll back",
            remedy="freeze it, or roll back the rollout that has superseded it",
        )
    before = row["back"] if row["phase"] in tables.BACK_PHASES else None
    if before is not None and _WIDTH.index(scope) <= _WIDTH.index(BackScope(before)):
        if row["phase"] == "rolling-back" or not _goes_back(connection, rollout):
            return False
        scope = BackScope(before)
    active = connection.scalar(
        select(table.c.name).where(
            table.c["class"] == row["class"],
            table.c.name != rollout,
            table.c.phase.in_(tables.ACTIVE_PHASES),
        )
    )
    if active is not None:
        raise StoreError(
            f"rollout {active} of class {row['class']} is active",
            remedy=f"roll it back first: `goldnode rollout rollback {active} --what all --reason REASON`",
        )
    _newest(connection, row)
    deny(connection, row["class"], row["target"], order, rollout)
    why = f"{order.reason} (rolled back by {order.who})"
    connection.execute(
        table.update()
        .where(table.c.name == rollout)
        .values(phase="rolling-back", back=scope.value, why=why, ended_at=None)
    )
    limits.apply(connection)
    order.log(
        connection,
        rollout,
        {
            "action": "ChangePhase",
            "phase": "rolling-back",
            "why": why,
            "back": scope.value,
            "who": order.who,
            "reason": order.reason,
            "before": {"phase": row["phase"], "back": row["back"]},
        },
        rollout,
        row["epoch"],
    )
    return True


def _goes_back(connection: Connection, rollout: str) -> bool:
    """Return whether nodes have to go back that fell behind since the rollback ended, or were held at its end."""
    state = rollout_view.RolloutReader(rollout).facts(connection).state
    return any(state.waits(name) for name in state.steps)


def _newest(connection: Connection, row: RowMapping) -> None:
    """Raise StoreError if a later rollout has moved nodes of the class: its state would be skipped."""
    if row["ended_at"] is None:
        return
    table, step, log = tables.rollout, tables.step, tables.log.c
    # Lines of the log have an order that no clock changes.
    ended = select(func.max(log.seq)).where(
        log.rollout == table.c.name, log.action == "ChangePhase"
    )
    own = select(func.max(log.seq)).where(log.rollout == row["name"], log.action == "ChangePhase")
    moved = select(step.c.node).where(
        step.c.rollout == table.c.name, step.c.direction == "forward", step.c.phase == "done"
    )
    later = connection.scalar(
        select(table.c.name)
        .where(table.c["class"] == row["class"], table.c.phase.in_(("completed", "superseded")))
        .where(table.c.name != row["name"], moved.exists())
        .where(ended.scalar_subquery() > own.scalar_subquery())
        .order_by(ended.scalar_subquery().desc())
    )
    if later is not None:
        raise StoreError(
            f"rollout {later} has moved nodes of class {row['class']} after {row['name']} ended",
            remedy=f"roll that one back first: `goldnode rollout rollback {later} --what all --reason REASON`",
        )


def deny(
    connection: Connection,
    node_class: str,
    digest: str,
    order: PersonsOrder,
    rollout: str | None = None,
) -> bool:
    """Put a digest on the deny list of a class. Return whether it was not there before."""
    denied = tables.denied
    if connection.scalar(select(denied.c.seq).where(*_denied(node_class, digest))):
        return False
    connection.execute(
        denied.insert().values(
            **{"class": node_class}, digest=digest, reason=order.reason, who=order.who, at=order.now
        )
    )
    order.log(
        connection,
        f"class {node_class}",
        {"action": "Deny", "digest": digest, "reason": order.reason},
        rollout,
    )
    return True


def lift_denial(connection: Connection, node_class: str, digest: str, order: PersonsOrder) -> bool:
    """Take a digest off the deny list of a class. Return whether it was on it."""
    deleted = connection.execute(
        tables.denied.update()
        .where(*_denied(node_class, digest))
        .values(lifted_at=order.now, lifted_by=order.who)
    ).rowcount
    if deleted:
        order.log(
            connection,
            f"class {node_class}",
            {
                "action": "LiftDenial",
                "digest": digest,
                "who": order.who,
                "reason": order.reason,
            },
        )
    return bool(deleted)


def _known(connection: Connection, scope: Scope) -> None:
    """Raise StoreError for a class, a rack or a rollout without a node: a misspelt freeze would freeze nothing."""
    if scope.kind == "all":
        return
    column = tables.rollout.c.name if scope.kind == "rollout" else tables.node.c[scope.kind]
    if connection.execute(select(column).where(column == scope.subject).limit(1)).first() is None:
        raise StoreError(
            f'the store has no {scope.kind} "{scope.subject}"',
            remedy="`goldnode fleet status` lists them",
        )


def _in_force(scope: Scope) -> tuple[ColumnElement[bool], ...]:
    frozen = tables.frozen
    return (
        frozen.c.scope == scope.kind,
        frozen.c.subject == scope.subject,
        frozen.c.lifted_at.is_(None),
    )


def _denied(node_class: str, digest: str) -> tuple[ColumnElement[bool], ...]:
    denied = tables.denied
    return denied.c["class"] == node_class, denied.c.digest == digest, denied.c.lifted_at.is_(None)


def _rollout(scope: Scope) -> str | None:
    return scope.subject if scope.kind == "rollout" else None
