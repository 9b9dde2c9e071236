"""Drain and return of nodes through the site's scheduler. Runs on the controller, with the site's own
programs.

A node that its owner had already drained or cordoned stays so, with its reason. A run that is
killed between drain and return leaves a drain of its own, and the next run continues with it. The
*current* state of the scheduler decides, never memory alone:

* in service: nothing is left to return;
* out of service with the mark of a run as its reason (:mod:`goldnode.node.ground.drained`): it was in service
  before, so it is returned, unless that run is still working;
* out of service for any other reason: its owner returns it. That includes the gate on the node.

The site's own command shows no reason. Then the record on the node decides
(:mod:`goldnode.fleet.drain.record`), and an undecided node stays out of service.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain import record as drain_record
from goldnode.fleet.drain.questions import Ask, ScheduledNode
from goldnode.fleet.drain.record import DrainRecord, DrainRecords
from goldnode.fleet.shared import identity
from goldnode.fleet.shared.identity import Actor
from goldnode.node.ground.drained import FILE, GATE, LEASE, Mark, mark, reason

Run = Callable[[Sequence[str]], str]

TRIES = 5  # of a change that another one got in the way of
# How a person returns a node. Here, and not with each scheduler: the record of a node can name another one than its
# inventory.
BY_HAND = {
    "slurm": "`scontrol update NodeName={node} State=RESUME`",
    "kubectl": "`kubectl uncordon {node}`",
}


def run(argv: Sequence[str]) -> str:
    """Run a program of the site; its standard output. A failure is an error that shows what it said."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
            # scontrol writes a time after each reason, in the format of the environment.
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
        )
    except FileNotFoundError:
        raise GoldnodeError(
            f"{argv[0]}: not found on this machine",
            remedy="Install the scheduler's client, or set goldnode_drain: none",
        ) from None
    except subprocess.TimeoutExpired:
        raise GoldnodeError(
            f"{' '.join(argv)}: no answer within an hour",
            remedy="Look at the scheduler, then run again",
        ) from None
    if done.returncode != 0:
        raise GoldnodeError(
            f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}",
            remedy="Put that right, then run again",
        )
    return done.stdout


@dataclass(frozen=True)
class DrainCaller:
    """The run that drains nodes and returns them.

    `take_over`: treat drains by runs of other controllers as abandoned at once. `waits`: a drain
    waits until no work is left; otherwise it ends no work, and is repeated until its outcome is
    `empty`. `was`: the reason that the scheduler showed of the node in service, for a node whose
    own record is lost. `ended`: runs that are known to have ended, although a mark of them is left.
    """

    actor: Actor = field(default_factory=identity.actor)
    take_over: bool = False
    waits: bool = True
    was: str = ""
    clock: Callable[[], float] = time.time
    ended: frozenset[str] = frozenset()

    def now(self) -> str:
        """Return the time as a mark has it."""
        return datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def works(self, run: str, since: str, held: bool = True) -> bool:
        """Return whether the run that drained at this time has to be taken for one that still works.

        :param held: the scheduler shows its drain, or shows none at all.
        """
        if run == self.actor.run or run in self.ended:
            return False
        if held and identity.is_rollout(run):
            return not self.take_over  # it has its end in its store, and not by time
        alive = identity.works(run)
        if alive is not None:
            return alive
        # A run on another controller cannot be asked whether it lives: its mark counts until the lease ends.
        try:
            age = (
                self.clock()
                - datetime.strptime(since, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
            )
        except ValueError:
            age = LEASE + 1
        return not self.take_over and age < LEASE


@dataclass(frozen=True)
class DrainState:
    """State of a node in a scheduler: whether it gets work, the scheduler's name of the state, and the
    reason.
    """

    in_service: bool
    state: str
    reason: str
    version: str = ""  # of what was read, where the scheduler refuses a change of anything else

    @property
    def why(self) -> str:
        """Return the reason for which the node is out of service; the state where the scheduler has no reason."""
        return self.reason if self.in_service or self.reason else f"{self.state}, without a reason"

    @property
    def held(self) -> Mark | None:
        """Return the mark of the run that holds the node out of service, or None."""
        return None if self.in_service else mark(self.reason)


@dataclass(frozen=True)
class DrainOutcome:
    """Result of a drain or a return.

    `changed`: the scheduler's state was changed. `in_service`: the node was in service before.
    `ours`: a drain of a run holds it now. `left`: the run that had left it out of service. `note`:
    a sentence for a person. `record`: the record as it was written. `empty`: no work is left on the
    node. `again`: the drain has to be repeated, because the scheduler does not end it by itself.
    """

    changed: bool
    in_service: bool
    ours: bool = False
    left: str | None = None
    note: str | None = None
    record: DrainRecord | None = None
    empty: bool = True
    again: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the outcome for the record of the run, in which each drain has ended."""
        content = {**asdict(self), "record": asdict(self.record) if self.record else None}
        del content["empty"], content["again"]  # for the caller alone
        return content


class Drainer(Protocol):
    """A scheduler, or the site's commands, as a way to drain nodes.

    Both methods store a record of the drain in `records`, unless that is None. They raise
    GoldnodeError; its message has the state of the node.
    """

    def drain(
        self, node: str, why: str, caller: DrainCaller, records: DrainRecords | None = None
    ) -> DrainOutcome:
        """Take a node out of service and wait until no work is left on it, if the caller waits.

        A drain that an earlier run left is continued.
        """

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        """Return a node that a run has drained.

        A node that another user holds out of service stays so. The outcome names the holder and the
        way to return it.

        :param before: whether the node was in service before the caller's own drain, for a command without
            records.
        """

    def review(self, node: str, caller: DrainCaller, records: DrainRecords) -> DrainOutcome:
        """Review the drain that an earlier run has left, and forget it unless it still holds the node; `ours`
        reports that. Changes no state.
        """

    def marked(self) -> dict[str, str]:
        """Return all nodes that runs hold out of service, with their reasons, from one call.

        Empty if that cannot be listed.
        """


@dataclass
class NoDrainer:
    """No scheduler."""

    def drain(
        self, node: str, why: str, caller: DrainCaller, records: DrainRecords | None = None
    ) -> DrainOutcome:
        return DrainOutcome(changed=False, in_service=True)

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        stored = records.read() if records else None
        if stored is None or (stored.node is None and stored.damaged is None):
            return DrainOutcome(changed=False, in_service=True)
        if stored.node is None:
            note = f"{FILE} on the node cannot be read ({stored.damaged}): an earlier run may have left {node} out of service. See the scheduler"
            return DrainOutcome(
                changed=False, in_service=True, note=f"{note}, then delete the file."
            )
        return DrainOutcome(
            changed=False,
            in_service=True,
            left=stored.node.about(),
            note=moved(stored.node, "none", node),
        )

    def review(self, node: str, caller: DrainCaller, records: DrainRecords) -> DrainOutcome:
        return self.resume(node, caller, records)

    def marked(self) -> dict[str, str]:
        return {}


def by_hand(by: str, node: str) -> str:
    """Return the command with which a person returns a node."""
    return BY_HAND.get(by, "your resume command for {node}").format(node=node)


def moved(record: DrainRecord, by: str, node: str) -> str:
    """Return a sentence about a drain by another scheduler, or under another name, than the inventory's."""
    now = (
        "goldnode_drain is now `none`" if by == "none" else f"the inventory says {node} by {by} now"
    )
    hand = by_hand(record.by, record.node)
    return (
        f"{record.by} has {record.node} drained since {record.about()}, and {now}: it stays drained. "
        f"Return it with {hand} where its reason is still “{record.reason}”, then delete {FILE} on the node."
    )


def busy(node: str, run: str, controller: str, since: str) -> GoldnodeError:
    """Return the error of a node that another run has."""
    if identity.is_rollout(run):
        return GoldnodeError(
            f"{node} was drained by a rollout ({run}, controller {controller}, {since}), which has not returned it",
            remedy="Let the rollout return it or release it there; where its store is lost, run again with -e goldnode_take_over=true",
        )
    return GoldnodeError(
        f"{node} was drained by run {run} of {controller}, {since}, which may still work on it",
        remedy="Wait for it to end; where it has died, run again with -e goldnode_take_over=true",
    )


def since(held: Mark) -> str:
    """Return which run has drained, for a person."""
    return f"run {held.run} of {held.controller}, {held.time}"


def own(stored: drain_record.FoundRecords, by: str, node: str) -> DrainRecord | None:
    """Return the node's record if it is of this scheduler and name.

    Raises GoldnodeError for a record of another one, which must not be lost.
    """
    record = stored.node
    if record is not None and (record.by, record.node) != (by, node):
        raise GoldnodeError(
            moved(record, by, node).rstrip("."), remedy="Then run again; nothing was changed"
        )
    return record


class SchedulerDrainer:
    """Common base of schedulers that show who holds a node."""

    name = ""
    drains_by_itself = False  # a drained node becomes empty without a further call

    def state_of(self, node: str) -> DrainState:
        """Return the scheduler's state of a node."""
        raise NotImplementedError

    def take(self, node: str, why: str, seen: DrainState) -> bool:
        """Take a node out of service for this reason. Return False if its state is no longer `seen`."""
        raise NotImplementedError

    def give(self, node: str, seen: DrainState, note: str) -> bool:
        """Return a node to service and restore the note that was its reason.

        Return False if its state is no longer `seen`.
        """
        raise NotImplementedError

    def finish(self, node: str) -> None:
        """Wait until no work is left on a node."""
        raise NotImplementedError

    def settle(self, node: str) -> bool:
        """Return whether no work is left on a drained node. Ends no work, and does not wait for any."""
        raise NotImplementedError

    def marked(self) -> dict[str, str]:
        """See :class:`Drainer`."""
        raise NotImplementedError

    def nodes(
        self, ask: Ask, wanted: Collection[str], at: float, reservation: str | None = None
    ) -> dict[str, ScheduledNode]:
        """Return those of the wanted nodes that the scheduler knows, from a few questions for all of them.

        :param at: time of the questions by the scheduler's clock, in seconds since the epoch.
        :param reservation: the maintenance reservation of the site for this rollout.
        """
        raise NotImplementedError

    def drain(
        self, node: str, why: str, caller: DrainCaller, records: DrainRecords | None = None
    ) -> DrainOutcome:
        """See :class:`Drainer`."""
        before = own(records.read(), self.name, node) if records else None
        text = reason(caller.actor.run, caller.actor.controller, caller.now(), why)
        record: DrainRecord | None = None
        left: str | None = None
        for _ in range(TRIES):
            seen = self.state_of(node)
            held = self._held(node, seen, before, caller)
            free = seen.in_service or held is not None
            if record is None:
                left = since(held) if held and held.run != caller.actor.run else None
                record = self._record(node, text, seen, before, caller)
                if records and record != before:
                    records.write(record)
            # A drain that is gone on with gets the mark of this run as well: by it others see that a run works here.
            if not free or record.reason == seen.reason or self.take(node, text, seen):
                break
        else:
            raise GoldnodeError(
                f"{node} changes while it is to be drained",
                remedy="See who else drains it, then run again",
            )
        # Settling may evict pods, so it is not done to a node that another holds.
        empty = True
        if caller.waits:
            self.finish(node)
        elif free:
            empty = self.settle(node)
        # Draining can take hours: a person may have returned the node meanwhile, and is not overruled.
        if self.state_of(node).in_service:
            raise GoldnodeError(
                f"{node} was returned to service while it drained",
                remedy="Ask who did; run again when it may be drained. It was not changed",
            )
        note = None if free else f"{node} was out of service before ({self.shown(seen)})"
        again = not empty and not self.drains_by_itself
        return DrainOutcome(
            free,
            in_service=free,
            ours=free,
            left=left,
            note=note,
            record=record,
            empty=empty,
            again=again,
        )

    def review(self, node: str, caller: DrainCaller, records: DrainRecords) -> DrainOutcome:
        """See :class:`Drainer`."""
        return self._end(node, caller, records, returns=False)

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        """See :class:`Drainer`."""
        return self._end(node, caller, records, returns=True)

    def _end(
        self, node: str, caller: DrainCaller, records: DrainRecords | None, returns: bool
    ) -> DrainOutcome:
        stored = records.read() if records else drain_record.FoundRecords()
        record = stored.node
        if record is not None and (record.by, record.node) != (self.name, node):
            return DrainOutcome(
                changed=False,
                in_service=True,
                left=record.about(),
                note=moved(record, self.name, node),
            )
        left = record.about() if record and record.run != caller.actor.run else None
        for _ in range(TRIES):
            seen = self.state_of(node)
            try:
                held = self._held(node, seen, record, caller)
            except GoldnodeError as problem:
                return DrainOutcome(changed=False, in_service=True, left=left, note=str(problem))
            left = since(held) if held and held.run != caller.actor.run else left
            if held and not returns:
                return DrainOutcome(
                    changed=False, in_service=True, ours=True, left=left, record=record
                )
            # The note of a node in service, which a run that was killed has not given back with it, is given back as well.
            was = record.was if record and record.in_service and (held or seen.in_service) else ""
            if record is None and held:
                was = caller.was
            if not (held or (was and seen.in_service and not seen.reason)) or self.give(
                node, seen, was
            ):
                break
        else:
            raise GoldnodeError(
                f"{node} changes while it is to be returned",
                remedy="See who else works on it, then run again",
            )
        if records:
            records.clear()
        if held or seen.in_service:
            return DrainOutcome(changed=held is not None, in_service=True, left=left, record=record)
        gate = ""
        if seen.reason.startswith(GATE):
            gate = " The gate on the node returns it by itself once its check is fine, or"
        note = f"{node} is out of service ({self.shown(seen)}), not for a run, and stays so.{gate} {by_hand(self.name, node)} returns it."
        return DrainOutcome(changed=False, in_service=False, left=left, note=note, record=record)

    @staticmethod
    def _held(
        node: str, seen: DrainState, record: DrainRecord | None, caller: DrainCaller
    ) -> Mark | None:
        """Return the mark of the run that holds the node.

        Raises GoldnodeError if another run may still work on it.
        """
        held = seen.held
        if held and caller.works(held.run, held.time):
            raise busy(node, held.run, held.controller, held.time)
        # Of a node that another holds, or that is not drained yet, the record alone says that a run works on it.
        others = record is not None and record.run != caller.actor.run
        if record and others and not held:
            sure = identity.works(record.run) is True
            if sure or (not seen.in_service and caller.works(record.run, record.since, held=False)):
                raise busy(node, record.run, record.controller, record.since)
        return held

    def _record(
        self,
        node: str,
        text: str,
        seen: DrainState,
        before: DrainRecord | None,
        caller: DrainCaller,
    ) -> DrainRecord:
        """Return the record of a drain. A continued drain has the state and note that the first run found."""
        actor, state, was = caller.actor, seen.state, seen.reason
        if seen.held and before and before.run == actor.run and before.reason == seen.reason:
            return before  # this run's own drain, unchanged
        if seen.held:
            state, was = (
                (before.state, before.was) if before and before.in_service else ("", caller.was)
            )
        elif seen.in_service and not was and before and before.in_service:
            was = before.was  # that run was killed between the return and the note
        free = seen.in_service or seen.held is not None
        return DrainRecord(
            self.name,
            node=node,
            run=actor.run,
            controller=actor.controller,
            since=caller.now(),
            reason=text,
            in_service=free,
            state=state,
            was=was,
        )

    def shown(self, seen: DrainState) -> str:
        """Return the state for a person."""
        return f"{self.name}: {seen.state}, {seen.reason or 'no reason'}"
