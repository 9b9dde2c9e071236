"""The place of one piece of work in the queue, for the process that does it: wait, take the node, report, return it.

A site without a store has no queue, and neither has a node that its store does not know, or whose
class has no limits there. Then work is done as without this module, and one line names the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import FLEET_STORE, Site
from goldnode.fleet.drain.protocol import DrainCaller
from goldnode.fleet.shared import identity
from goldnode.node.ground.drained import LEASE

# sqlalchemy: only the extra `fleet` installs it, and a site without a store needs none.
if TYPE_CHECKING:
    from sqlalchemy import Connection

    from goldnode.fleet.rollout.queue import QueuedWork, WorkNeed
    from goldnode.fleet.store.database import StoreDatabase
    from goldnode.fleet.store.queue import NodeAsk, PartEnding, QueueClaim, QueueStanding

PAUSE = 5.0  # seconds between two questions
WAIT = 24 * 3600.0  # seconds after which a process no longer waits for its turn


class QueueWaitError(GoldnodeError):
    """The work did not get its node. Nothing was done to it."""


@dataclass(frozen=True)
class NoQueue:
    """There is no queue for a node, and why."""

    why: str

    def text(self) -> str:
        """Return the line for a person."""
        return f"no queue: {self.why}"


def queue_of(site: Site, node: str | None) -> StoreDatabase | NoQueue:
    """Return the store whose queue decides about a node, or about a mirror, or why there is none.

    Raises StoreError for a store that is declared and cannot be read: it could not be checked who
    else waits for the node.
    """
    where = site.fleet_store()
    if "://" not in where and not Path(where).expanduser().exists():
        return NoQueue("this site has no store of its fleet")
    if where == FLEET_STORE and not extras.installed("fleet"):
        return NoQueue(f"{where} cannot be read without the extra fleet")
    extras.require("fleet")
    from goldnode.fleet.store import queue
    from goldnode.fleet.store.database import open_store

    store = open_store(where)
    with store.read() as connection:
        why = queue.unknown(connection, node) if node is not None else None
    if why is None:
        return store
    store.close()
    return NoQueue(why)


@dataclass
class QueuePlace:
    """The place of one process in the queue of a store.

    :param tell: gets a line whenever the reason to wait has changed.
    :param together: the nodes that are granted whole with this one.
    :param patient: wait for a person too; otherwise that is an error at once.
    """

    store: StoreDatabase
    wanted: NodeAsk
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    together: tuple[str, ...] = ()
    patient: bool = True
    claim: QueueClaim | None = None
    ended: bool = False  # the result of the work is reported
    returns: bool = False  # this process returns the node now
    _shown: str = field(default="", repr=False)

    def wait(self, limit: float = WAIT) -> DrainCaller:
        """Wait for the turn of this work, begin it, and return the caller that drains the node.

        Raises QueueWaitError after `limit` seconds, and QueueError if the request was cancelled.
        """
        from goldnode.fleet.store import queue

        claim = self.claim = self.store.run(self._ask)
        end = self.clock() + limit
        try:
            while True:
                standing = self.store.run(lambda c: queue.poll(c, claim, self.clock()))
                if standing.may_begin or standing.request.state == "running":
                    break
                self._report(standing)
                if not self.patient and standing.wait is not None and standing.wait.for_person:
                    raise QueueWaitError(
                        f"{self._subject} is not granted: {standing.wait.reason}",
                        remedy=f"this ends with {standing.wait.owner}: `goldnode fleet queue` and "
                        "`goldnode fleet status` have the details; or leave the node out",
                    )
                if self.clock() >= end:
                    raise QueueWaitError(
                        f"{self._subject} was not granted within {limit / 3600:g} hours: {self._shown}",
                        remedy="`goldnode fleet queue` lists who waits for whom",
                    )
                self.sleep(PAUSE)
            self.store.run(lambda c: queue.begin(c, claim, self.clock()))
        except BaseException as problem:
            with suppress(GoldnodeError):
                why = f"its process has stopped to wait: {problem or type(problem).__name__}"
                self.store.run(lambda c: queue.withdraw(c, claim, why, self.clock()))
            raise
        # Every part of a turn drains as the same run: the next one continues with the drain.
        actor = identity.rollout_actor(standing.run)
        return DrainCaller(actor, ended=self.ended_runs())

    def ended_runs(self) -> frozenset[str]:
        """Return the runs of earlier turns of the node: a drain that one of them has left may be taken over."""
        from goldnode.fleet.store import queue

        with self.store.read() as connection:
            return queue.ended_runs(connection, self._subject)

    def _ask(self, connection: Connection) -> QueueClaim:
        from goldnode.fleet.store import queue

        if len(self.together) > 1:
            return queue.ask_together(connection, self.wanted, self.together, self.clock())
        return queue.ask(connection, self.wanted, self.clock())

    def _report(self, standing: QueueStanding) -> None:
        wait = standing.wait
        text = "another part of its turn runs"
        if wait is not None:
            text = f"place {wait.place}: {wait.reason}"
        if text != self._shown:
            self._shown = text
            self.tell(f"{self._subject} waits in the queue, {text}")

    @property
    def _subject(self) -> str:
        return self.wanted.node or "the mirror"

    def finish(self, succeeded: bool, text: str, fit: bool = True) -> PartEnding:
        """Report the result of the work. Its ending shows whether this process returns the node now."""
        from goldnode.fleet.store import queue

        claim, outcome = self._claim(), queue.WorkOutcome(succeeded, text, fit)
        ending = self.store.run(lambda c: queue.finish(c, claim, outcome, self.clock()))
        self.ended, self.returns = True, ending.returns
        if ending.others:
            self.tell(f"{self._subject} stays out of service: {'; '.join(ending.others)}")
        elif not ending.returns and ending.parts:
            self.tell(f"{self._subject} is not returned: {'; '.join(ending.parts)}")
        return ending

    def returned(self, back: bool, text: str = "") -> None:
        """Report the end of the return."""
        from goldnode.fleet.store import queue

        claim = self._claim()
        self.store.run(lambda c: queue.returned(c, claim, back, text, self.clock()))

    def failed(self, problem: str) -> None:
        """Report that the work, or the return, has failed: the node stays out of service."""
        if self.claim is not None and self.returns:
            self.returned(False, problem)
        elif self.claim is not None and not self.ended:
            self.finish(False, problem, fit=False)

    def _claim(self) -> QueueClaim:
        if self.claim is None:
            raise QueueWaitError("nothing was asked of the queue")
        return self.claim


@contextmanager
def in_turn(
    site: Site,
    node: str | None,
    work: QueuedWork,
    *,
    needs: tuple[WorkNeed, ...],
    reason: str,
    tell: Callable[[str], None],
) -> Iterator[tuple[DrainCaller, QueuePlace | None]]:
    """Wait for the turn of a work on a node, or for quiet without one; yield who drains it, and its place in the queue, if there is one.

    If the block raises, that is reported to the queue, and the node stays out of service.
    """
    queued = queue_of(site, node)
    if isinstance(queued, NoQueue):
        tell(queued.text())
        yield DrainCaller(), None
        return
    place = QueuePlace(queued, _wanted(node, work, needs, reason), tell)
    try:
        caller = place.wait()
        try:
            yield caller, place
        except BaseException as problem:
            with suppress(GoldnodeError):  # the first error is the one to show
                place.failed(str(problem) or type(problem).__name__)
            raise
    finally:
        queued.close()


def _wanted(
    node: str | None, work: QueuedWork, needs: tuple[WorkNeed, ...], reason: str
) -> NodeAsk:
    from goldnode.fleet.shared.person import person
    from goldnode.fleet.store import queue

    # A day for jobs to end, and hours for the work: as the lease of a drain.
    limit = float(LEASE)
    return queue.NodeAsk(work, reason, person(), queue.process(), node, needs=needs, limit=limit)


def place_of_run(
    site: Site, node: str, work: str, *, reason: str, batch: Collection[str]
) -> QueuePlace | NoQueue:
    """Return the place of a run of Ansible for one node of its batch, which is granted whole, or why there is no queue.

    Every worker of the run is the same asker, and so is a later task: `wait` goes on with the request that this run has for
    the node. The caller closes the store. It is impatient: a batch that waits for a person would stop the run for a day.

    :param work: `apply` or `rollback`.
    """
    queued = queue_of(site, node)
    if isinstance(queued, NoQueue):
        return queued
    from goldnode.fleet.rollout.queue import QueuedWork, WorkNeed
    from goldnode.fleet.store import queue

    with queued.read() as connection:
        limited = [name for name in batch if queue.unknown(connection, name) is None]
    needs = (WorkNeed.DRAIN, WorkNeed.REBOOT, WorkNeed.DRIVER)
    wanted = _wanted(node, QueuedWork(work), needs, reason)
    return QueuePlace(queued, wanted, _silent, together=tuple(limited), patient=False)


def _unqueued(result: ReturnTestResult) -> None:
    """Report no result: there is no turn."""


def _silent(line: str) -> None:
    """Show nothing: a run of Ansible sets its own."""


@dataclass(frozen=True)
class ReturnTestResult:
    """Result of the tests of a node. A node whose test failed is not `fit`; one that could not be tested may be."""

    passed: bool
    fit: bool
    text: str


@contextmanager
def return_test_turn(
    site: Site, node: str, tell: Callable[[str], None], back: Callable[[DrainCaller], None]
) -> Iterator[Callable[[ReturnTestResult], None]]:
    """Wait until the tests of a node may run: after all other work of its turn. Yield what takes their result.

    Nothing is asked for a node that the store has in service: it may be idle, and its tests take it from nobody. Neither for
    one whose repair waits for these tests: the ladder has it, and returns it once they have passed.

    :param back: returns the node to service, if its tests were the last part of a turn.
    """
    queued = queue_of(site, node)
    if isinstance(queued, NoQueue):
        tell(queued.text())
        yield _unqueued
        return
    from goldnode.fleet.rollout.queue import QueuedWork
    from goldnode.fleet.store import queue, repairs

    try:
        with queued.read() as connection:
            out = queue.is_out(connection, node) and not repairs.waits_for_tests(connection, node)
        if not out:
            yield _unqueued
            return
        wanted = _wanted(node, QueuedWork.RETURN_TEST, (), "tests before its return")
        place = QueuePlace(queued, wanted, tell, patient=False)
        caller = place.wait()

        def ended(result: ReturnTestResult) -> None:
            if place.finish(result.passed, result.text, fit=result.fit).returns:
                back(caller)
                place.returned(True)

        try:
            yield ended
        except BaseException as problem:
            with suppress(GoldnodeError):  # the first error is the one to show
                place.failed(str(problem) or type(problem).__name__)
            raise
    finally:
        queued.close()
