"""The controller of the remediation ladder: reads, asks `goldnode.fleet.rollout.ladder`, writes and acts.

An effect follows its line in the log: intent → effect → outcome. The line of a rung names the process
that carries it out. When that process has died, another restores what the rung may have taken down
(power, modules, services), and records an outcome; it does not repeat the rung.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.silences import NodeSilences
from goldnode.fleet.rollout.ladder import (
    CasePhase,
    ChangeLeave,
    Holder,
    LadderAction,
    LadderBounds,
    LadderPolicy,
    LadderState,
    MoveCase,
    NodeSeen,
    RepairCase,
    StoreEvidence,
    decide,
)
from goldnode.fleet.shared import identity
from goldnode.fleet.store import repairs
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError, StoreUnavailableError
from goldnode.fleet.store.queue import QueueError
from goldnode.fleet.store.repairs import LadderBehindError, LadderRecord

LOGGER = logging.getLogger("goldnode.ladder")
AGAIN = 300.0  # seconds before a ticket that could not be opened is tried again


class RefusedRungError(GoldnodeError):
    """A rung was not begun: the node is not as the decision saw it."""


class LadderHands(Protocol):
    """Work on nodes. Each method may take minutes, and raises GoldnodeError."""

    def evidence(self, case: RepairCase) -> str:
        """Store the evidence of a case, and return its digest."""

    def drain(self, case: RepairCase) -> None:
        """Take a node out of service, or continue with that. Waits for no work."""

    def resume(self, case: RepairCase) -> None:
        """Return a node that the run of a case has drained. A node of another holder stays as it is."""

    def act(self, case: RepairCase) -> str:
        """Carry out the rung of a case, and return what was done. Raises RefusedRungError before any effect."""

    def restore(self, case: RepairCase) -> str:
        """Restore what an interrupted rung may have taken down, and return what was done."""


class TicketDesk(Protocol):
    """The last rung: a ticket for a person."""

    def open(self, case: RepairCase) -> str:
        """Open the ticket of a case, and return its id. Once for a case, however often it is called.

        It may take minutes, and raises GoldnodeError; it is called again then.
        """


class LadderReader(Protocol):
    """State of nodes."""

    @property
    def unread(self) -> Mapping[str, str]:
        """Nodes whose last check is not known, with the reason: they are not healthy, and get no repair."""

    def read(self, cases: Mapping[str, RepairCase]) -> dict[str, NodeSeen]:
        """Return the nodes with a finding, and those with a case. One that cannot be read is left out."""


@dataclass
class LadderReport:
    """Result of a tick: the transitions that were written, and why nothing could be; `unread`: see LadderReader."""

    actions: list[LadderAction] = field(default_factory=list)
    problem: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass
class LadderController:
    """One controller. Any number may run on one store: the log decides (goldnode.fleet.store.repairs)."""

    store: StoreDatabase
    policies: Mapping[str, LadderPolicy]
    reader: LadderReader
    hands: LadderHands
    clock: Callable[[], float] = time.time
    threads: int = 8
    desk: TicketDesk | None = None
    silences: NodeSilences | None = None
    record: LadderRecord = field(default_factory=LadderRecord)
    worker: str = field(default_factory=lambda: identity.actor().run)
    _running: dict[tuple[str, str], Future[str]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor | None = None
    # Cases whose ticket is open, and those whose ticket failed with the time of the next try.
    _tickets: dict[tuple[str, float], float] = field(default_factory=dict)
    _waits: dict[str, str] = field(default_factory=dict)  # node -> the reason that was logged last

    @property
    def state(self) -> LadderState:
        """Return the state as of the last reading."""
        return self.record.state

    def tick(self) -> LadderReport:
        """Read, decide, write, and start what is due. Never waits for work on nodes."""
        report = LadderReport()
        try:
            self._read()
            self._collect(report)
            seen = self.reader.read(self.state.cases)
            report.unread = dict(self.reader.unread)
            self._write(decide(self.policies, self.state, seen, self.clock()), report)
            self._work(seen, report)
        except LadderBehindError:
            LOGGER.debug("another controller has written; this one decides again")
        except StoreUnavailableError as problem:
            report.problem = str(problem)
        if self.silences is not None:
            self.silences.wake(bool(report.actions))
        return report

    def idle(self) -> bool:
        """Return whether no work on a node is under way."""
        return not self._running

    def close(self) -> None:
        """Start no further work. A rung that has begun ends by itself, or another controller restores the node."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self.silences is not None:
            self.silences.close()

    # -- the store

    def _read(self) -> None:
        with self.store.read() as connection:
            self.record.read(connection)
            ended = repairs.ended_leaves(connection, self.state.cases, self.clock())
        if ended:
            self._append(ended)

    def _append(self, actions: list[LadderAction]) -> None:
        now = self.clock()

        self.store.run(lambda connection: repairs.write(connection, self.record, actions, now))
        with self.store.read() as connection:
            self.record.read(connection)

    def _write(self, actions: list[LadderAction], report: LadderReport) -> None:
        ready = list(map(self._signed, actions))
        if ready:
            self._append(ready)
            report.actions += ready

    def _signed(self, action: LadderAction) -> LadderAction:
        """Return an action; the intent of a rung with the process that carries it out."""
        if isinstance(action, MoveCase) and action.phase is CasePhase.ACT:
            return replace(action, worker=self.worker)
        return action

    # -- work on nodes

    def _work(self, seen: Mapping[str, NodeSeen], report: LadderReport) -> None:
        for name, case in list(self.state.cases.items()):
            if case.planned:
                continue
            if case.phase is CasePhase.INSPECT and not case.evidence:
                self._start("evidence", case, self.hands.evidence)
            elif case.phase is CasePhase.DRAIN:
                self._take(case, seen.get(name))
            elif case.phase is CasePhase.ACT and case.worker == self.worker:
                self._start(case.rung, case, self.hands.act)
            elif case.phase is CasePhase.ACT and self._abandoned(case):
                self._start("restore", case, self.hands.restore)
            elif case.phase is CasePhase.RETURN:
                self._return(case, seen.get(name))
            elif case.phase is CasePhase.TICKET:
                self._ticket(case)

        self._return_strays(seen)

    def _return_strays(self, seen: Mapping[str, NodeSeen]) -> None:
        """Return nodes with a drain of the ladder and without a case: a kill or a race left it, and nothing orders it."""
        names = [
            name
            for name, node in seen.items()
            if node.holder is Holder.TURN and name not in self.state.cases
        ]
        if not names:
            return
        with self.store.read() as connection:
            left = repairs.left_drains(connection, names)
        for name, run in left.items():
            if seen[name].drained_by == identity.rollout_run(run):
                self._start("resume", _stray(name, run), self._resumed)

    def _abandoned(self, case: RepairCase) -> bool:
        """Return whether the process of a rung has ended. Of another machine it is known by the deadline alone."""
        alive = identity.works(case.worker)
        return alive is False or (alive is None and self.clock() > case.deadline - 600.0)

    def _start(self, work: str, case: RepairCase, call: Callable[[RepairCase], str]) -> None:
        key = (case.node, f"{work} {case.changed_at}")
        if key not in self._running:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="ladder")
            self._running[key] = self._pool.submit(call, case)

    def _ticket(self, case: RepairCase) -> None:
        """Open the ticket of a case, unless this process has; the desk knows what others have opened."""
        again = self._tickets.get((case.node, case.opened_at), 0.0)
        if self.desk is not None and self.clock() >= again:
            self._start("ticket", case, self.desk.open)

    def _take(self, case: RepairCase, seen: NodeSeen | None) -> None:
        """Ask the queue, and drain once the part begins. A refusal is no error: the case waits."""
        if case.leave:
            if seen is not None and seen.holder is Holder.NONE and seen.in_service is not False:
                self._start("drain", case, self._drained)
            return
        holder = Holder.NONE
        if seen is not None:
            holder = seen.holder
        limit = part_limit(self.policies[case.node].bounds)
        now = self.clock()
        try:
            wait = self.store.run(
                lambda connection: repairs.take(connection, self.record, case, holder, (now, limit))
            )
        except (GrantRefusedError, QueueError) as problem:
            wait = str(problem)
        if wait != self._waits.get(case.node):
            self._waits[case.node] = wait
            if wait:
                LOGGER.info("%s waits: %s", case.node, wait)
        with self.store.read() as connection:
            self.record.read(connection)

    def _drained(self, case: RepairCase) -> str:
        self.hands.drain(case)
        return ""

    def _return(self, case: RepairCase, seen: NodeSeen | None) -> None:
        if any(name == case.node for name, _ in self._running):
            return  # a drain that is under way must not come after the return
        if seen is None or seen.holder is Holder.LADDER:
            if case.leave:
                now = self.clock()
                self.store.run(lambda connection: repairs.prolong(connection, case.node, now))
            if case.run:
                self._start("resume", case, self._resumed)
        elif case.leave:
            self._append([ChangeLeave(case.node, False)])

    def _resumed(self, case: RepairCase) -> str:
        self.hands.resume(case)
        return ""

    def _collect(self, report: LadderReport) -> None:
        """Record the outcome of work that has ended."""
        for key in [key for key, future in self._running.items() if future.done()]:
            future = self._running.pop(key)
            name, work = key[0], key[1].partition(" ")[0]
            case = self.state.cases.get(name)
            text, failed = self._result(name, work, future)
            if case is None or key[1] != f"{work} {case.changed_at}":
                continue  # decided since
            if work == "ticket":
                again = self.clock() + AGAIN if failed else math.inf
                self._tickets[name, case.opened_at] = again
                continue
            if case.phase is CasePhase.INSPECT and work == "evidence" and not failed:
                self._write([StoreEvidence(name, text)], report)
            elif case.phase is CasePhase.ACT:
                now, bounds = self.clock(), self.policies[name].bounds
                move = MoveCase(
                    name,
                    CasePhase.CHECK,
                    rung=case.rung,
                    why=case.why,
                    deadline=now + bounds.check,
                    outcome=f"failed: {text}" if failed else text or "done",
                )
                self._write([move], report)

    @staticmethod
    def _result(name: str, work: str, future: Future[str]) -> tuple[str, bool]:
        try:
            return future.result(), False
        except GoldnodeError as problem:
            LOGGER.warning("%s: %s: %s", name, work, problem)
            return str(problem), True
        except Exception as problem:  # a program of the site must not end the controller
            LOGGER.exception("%s: %s failed", name, work)
            return type(problem).__name__, True


def part_limit(bounds: LadderBounds) -> float:
    """Return the seconds after which a repair without an end is lost: each rung at its limits, one drain and the tests."""
    rung = bounds.evidence + bounds.act + bounds.check
    return bounds.drain + bounds.tests + bounds.per_node * rung


def _stray(name: str, run: str) -> RepairCase:
    """Return a case for the return of a node that has none."""
    return RepairCase(
        name,
        finding="",
        climb=(),
        opened_at=0.0,
        phase=CasePhase.RETURN,
        rung="inspect",
        changed_at=0.0,
        deadline=0.0,
        run=run,
    )
