"""Controllers of rollouts: submission, the epoch, and the work that a controller claims.

One controller has the epoch of a rollout. Another takes over with `epoch + 1`; from then on every
write of the first one is refused, in code and by the guards. Clocks decide only when to try, never
who is right.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from goldnode.fleet.store import limits, tables
from goldnode.fleet.store.errors import StaleEpochError, StoreError
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.log import LogLine, append
from goldnode.node.ground.optional import optional

_LATER = 0.001  # seconds


@dataclass(frozen=True)
class Submission:
    """A rollout to store: its document as written, what the store reads of it, and its author."""

    name: str
    node_class: str
    target: str
    document: str
    limits: FleetLimits
    author: str
    separate: bool = False  # the author cannot approve
    who: str | None = None  # the person who submits it; None: the author


def submit(connection: Connection, given: Submission, now: float) -> bool:
    """Store a rollout as queued, or replace the document of one that has not ended. Return whether it is new."""
    rollout = tables.rollout
    old = connection.execute(
        select(rollout.c["class"], rollout.c.target, rollout.c.ended_at, rollout.c.document).where(
            rollout.c.name == given.name
        )
    ).first()
    values = {
        "document": given.document,
        "limits": given.limits.text(),
        "author": given.author,
        "separate": given.separate,
    }
    if old is None:
        # The order of submissions decides which limits are in force: it must not depend on a clock that was set back.
        last = connection.scalar(
            select(func.max(rollout.c.submitted_at)).where(rollout.c["class"] == given.node_class)
        )
        connection.execute(
            rollout.insert().values(
                name=given.name,
                **{"class": given.node_class},
                target=given.target,
                phase="queued",
                submitted_at=now if last is None else max(now, last + _LATER),
                **values,
            )
        )
    elif old.ended_at is not None or (old[0], old.target) != (given.node_class, given.target):
        raise StoreError(
            f"rollout {given.name} has ended, or has another class or target",
            remedy="give the new document another name",
        )
    elif old.document == given.document:
        return False
    else:
        connection.execute(rollout.update().where(rollout.c.name == given.name).values(**values))
    limits.apply(connection)
    content = {
        "action": "Submit",
        "target": given.target,
        "new": old is None,
        "document": given.document,
    }
    who = given.who or given.author
    append(
        connection,
        LogLine(
            now,
            who=who,
            action="Submit",
            subject=given.node_class,
            content=content,
            rollout=given.name,
        ),
    )
    return old is None


def holder(connection: Connection, name: str) -> str | None:
    """Return the controller of a rollout."""
    holder_name = connection.scalar(
        select(tables.rollout.c.holder).where(tables.rollout.c.name == name)
    )
    return optional(str, holder_name)


def epoch_of(connection: Connection, name: str) -> int:
    """Return the present epoch of a rollout."""
    return (
        connection.scalar(select(tables.rollout.c.epoch).where(tables.rollout.c.name == name)) or 0
    )


def take_over(
    connection: Connection, name: str, holder: str, now: float, quiet: float = 0.0
) -> int | None:
    """Take the epoch of a rollout and return it. None while its holder gave a sign of life within `quiet` seconds."""
    rollout = tables.rollout
    row = connection.execute(
        select(rollout.c.epoch, rollout.c.holder, rollout.c.beat_at).where(rollout.c.name == name)
    ).first()
    if row is None:
        raise StoreError(f'the store has no rollout "{name}"')
    # abs: a sign of life from a clock that is far ahead must not hold the rollout for ever.
    if (
        row.holder not in (None, holder)
        and row.beat_at is not None
        and abs(now - row.beat_at) < quiet
    ):
        return None
    epoch: int = row.epoch + 1
    done = connection.execute(
        rollout.update()
        .where(rollout.c.name == name, rollout.c.epoch == row.epoch)
        .values(epoch=epoch, holder=holder, beat_at=now)
    ).rowcount
    if not done:
        return None
    content = {"action": "TakeOver", "epoch": epoch, "holder": holder, "from": row.holder}
    append(
        connection,
        LogLine(
            now,
            who=holder,
            action="TakeOver",
            subject=name,
            content=content,
            rollout=name,
            epoch=epoch,
        ),
    )
    return epoch


@dataclass(frozen=True)
class Controller:
    """A controller with the epoch of a rollout. Each method raises StaleEpochError once another one has it."""

    rollout: str
    epoch: int
    holder: str

    def beat(self, connection: Connection, now: float) -> None:
        """Give a sign of life."""
        self.change(connection, beat_at=now)

    def check(self, connection: Connection) -> None:
        """Check the epoch without a write."""
        if epoch_of(connection, self.rollout) != self.epoch:
            raise self._stale()

    def _stale(self) -> StaleEpochError:
        return StaleEpochError(
            f"another controller has taken over rollout {self.rollout}",
            remedy="stop this controller; the other one goes on",
        )

    def change(self, connection: Connection, **values: object) -> None:
        """Change the row of the rollout."""
        rollout = tables.rollout
        done = connection.execute(
            rollout.update()
            .where(rollout.c.name == self.rollout, rollout.c.epoch == self.epoch)
            .values(**values)
        ).rowcount
        if not done:
            raise self._stale()

    def claim(self, connection: Connection, worker: str, count: int) -> list[str]:
        """Claim granted steps for a worker process. No step has two workers."""
        step = tables.step
        names = list(
            connection.scalars(
                select(step.c.node)
                .where(
                    step.c.rollout == self.rollout,
                    step.c.phase == "granted",
                    step.c.worker.is_(None),
                )
                .order_by(step.c.granted_at, step.c.node)
                .limit(count)
                .with_for_update(skip_locked=True)
            )
        )
        if names:
            connection.execute(
                step.update()
                .where(step.c.rollout == self.rollout, step.c.node.in_(names))
                .values(worker=worker, epoch=self.epoch)
            )
        return names
