"""The controller of one rollout: observe, decide with `plan`, write, and keep the work on nodes in line.

Everything that must survive is in the store. A controller that was killed at any statement, or that
takes over, loads the rollout, reads the newest observations, and gives the workers the tasks of the
active steps: a task that was done already ends at once.

A grant exists when its transaction is committed, never before. Work of a controller that has lost
the epoch is stopped at its next tick; what it does until then is a task that the next controller
has too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.clock import SteadyClock, machine_time
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import (
    Action,
    Answer,
    CalendarReading,
    Direction,
    Evaluate,
    Grant,
    NodeObservation,
    Prior,
    RequirementResult,
    RolloutPhase,
    SchedulerObservation,
    Step,
    StepPhase,
    Wait,
)
from goldnode.fleet.rollout.parts import (
    FreezeReader,
    NodeReader,
    NodeTask,
    NodeWorker,
    Observation,
    RequirementReader,
    SchedulerReader,
)
from goldnode.fleet.rollout.plan import plan
from goldnode.fleet.rollout.queue import QueueShare
from goldnode.fleet.rollout.state import BACK_PHASES, ENDED_PHASES, Observations, RolloutState
from goldnode.fleet.shared import identity
from goldnode.fleet.store import controllers, observations, queue, rollouts
from goldnode.fleet.store.controllers import Controller
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError, StaleEpochError, StoreUnavailableError
from goldnode.fleet.store.rollouts import StoreChangedError

LOGGER = logging.getLogger("goldnode.rollout")
_SERVING = (None, StepPhase.DONE, StepPhase.PASSED, StepPhase.LEFT)  # phases in which a node serves
_AGAIN = 15.0  # seconds until a reading that failed, or found no node at all, is repeated
_ROUNDS = 100  # plans of one tick: each takes a stage further, so a tick needs a few
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class ControllerSettings:
    """Settings of a controller. Times are in seconds."""

    holder: str  # MACHINE/RUN: the name of this controller, for the store and for persons
    tick: float = 2.0  # between two decisions: a freeze is seen within it
    scheduler: float = 30.0  # between two readings of the scheduler
    nodes: float = (
        300.0  # between two readings of changed nodes in the present wave, and of unknown ones
    )
    calendars: float = 60.0  # between two readings of the freeze calendars
    all_nodes: float = 3600.0  # age of an observation after which any node is read again
    quiet: float = 60.0  # silence after which another controller is taken for dead
    clock: Callable[[], float] = time.time  # a SteadyClock, where the parts share it


@dataclass(frozen=True)
class ControllerParts:
    """The parts that a controller calls. Without a reader, nothing of its kind is observed."""

    worker: NodeWorker
    scheduler: SchedulerReader | None = None
    nodes: NodeReader | None = None
    requirements: RequirementReader | None = None
    calendars: FreezeReader | None = None
    # Called after each commit, and once in a tick without one: what persons order is written by others.
    written: Callable[[Sequence[Action]], None] = lambda actions: None
    closed: Callable[[], None] = lambda: None  # called when the controller ends


@dataclass(frozen=True)
class ControllerReport:
    """One tick: whether this controller has the rollout, what it wrote, and why the rollout waits."""

    holds: bool
    phase: RolloutPhase | None = None
    actions: tuple[Action, ...] = ()
    waits: tuple[Wait, ...] = ()
    active: int = 0
    problem: str | None = None  # why this tick could not decide

    @property
    def ended(self) -> bool:
        """Return whether the rollout has ended and no node is in a step."""
        return self.phase in ENDED_PHASES and not self.active


@dataclass
class _Reading:
    """A reading in a thread of its own, at most one at a time."""

    what: str
    every: float
    names: Callable[[], list[str]]
    read: Callable[[list[str]], Sequence[Observation]]
    due: float = 0.0
    running: Future[Sequence[Observation]] | None = field(default=None, repr=False)
    tried: bool = False  # it has ended once
    problem: str | None = None  # of the last time


class RolloutController:
    """A controller. `tick` is called again and again; `close` stops the work, never a step."""

    def __init__(
        self,
        store: StoreDatabase,
        settings: RolloutSettings,
        parts: ControllerParts,
        own: ControllerSettings,
    ) -> None:
        self.store, self.settings, self.parts, self.own = store, settings, parts, own
        self.observations = Observations()
        self.clock = own.clock if isinstance(own.clock, SteadyClock) else SteadyClock(own.clock)
        self._controller: Controller | None = None
        self._state: RolloutState | None = None
        self._seen = 0  # last line of the log in the state
        self._observed = 0  # last row of the observations
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="rollout")
        self._readings = list(self._made_readings())
        self._asked: dict[tuple[str, int], Future[RequirementResult]] = {}
        self._queued = False  # the queue has requests
        self._kept = False  # it has one of this controller

    # One tick

    def tick(self) -> ControllerReport:
        """Observe, decide and write once. A store that is away is reported: nothing is granted, work goes on."""
        now = self.clock()
        try:
            return self._tick(now)
        except StaleEpochError as problem:
            LOGGER.warning("%s", problem)
            self._lose()
            return ControllerReport(False, problem=str(problem))
        except StoreUnavailableError as problem:
            LOGGER.error("%s", problem)
            # Whether the last transaction was committed is not known: the state is loaded again.
            self._state = None
            return ControllerReport(self._controller is not None, problem=str(problem))

    def _tick(self, now: float) -> ControllerReport:
        if self._controller is None and not self._take_over(now):
            return ControllerReport(False)
        state = self._current(now)
        self._observe(state)
        self._ask_queue(state)
        now = max(now, self.clock())  # what it has read may be of machines that are ahead
        actions: list[Action] = []
        waits = self._not_ready(state)
        # Actions have consequences: decide again at once, a limited number of times.
        for _ in range(0 if waits else _ROUNDS):
            decision = plan(self.settings, state, self.observations, now, machine_time(self.clock))
            waits = decision.waits
            if not decision.actions:
                break
            try:
                written = self._write(decision.actions, state, now)
            except StoreChangedError:
                # Another writer was faster: decide again on what the store has now.
                state = self._load()
                continue
            actions += written
            if not written:  # refused by another user of the same buffers
                break
        if not actions:
            self._beat(now)
            self.parts.written(())
        self._keep_place(waits, waits_for_room=not actions)
        self._work(state)
        return ControllerReport(True, state.record.phase, tuple(actions), waits, len(state.active))

    def _ask_queue(self, state: RolloutState) -> None:
        """Read what other work asks for the nodes: it shares their drain, and is served in its order."""
        state.share = QueueShare()
        if self._queued:
            name, class_, now = self.settings.name, self.settings.class_, machine_time(self.clock)
            state.share = self.store.run(lambda c: queue.share(c, name, class_, now))

    def _keep_place(self, waits: Sequence[Wait], *, waits_for_room: bool) -> None:
        """Keep the place of the rollout among the requests of the queue while it waits for room."""
        for_room = [
            wait.reason for wait in waits if wait.subject == "grants" and wait.until is None
        ]
        wants = for_room[0] if self._queued and waits_for_room and for_room else ""
        controller = self._controller
        if controller is not None and (wants or self._kept):
            class_, now = self.settings.class_, machine_time(self.clock)
            self.store.run(lambda c: queue.keep_place(c, controller, class_, wants, now))
        self._kept = bool(wants)

    def _take_over(self, now: float) -> bool:
        name, own = self.settings.name, self.own
        with self.store.read() as connection:
            before = controllers.holder(connection, name)
        # A process of this machine that has ended gives no sign of life any more.
        dead = before is not None and identity.works(before.rpartition("/")[2]) is False
        quiet = 0.0 if dead else own.quiet
        epoch = self.store.run(lambda c: controllers.take_over(c, name, own.holder, now, quiet))
        if epoch is None:
            return False
        self._controller = Controller(self.settings.name, epoch, own.holder)
        self._state = None
        return True

    def _lose(self) -> None:
        """Stop the work: another controller has the rollout."""
        self._controller, self._state = None, None
        self.parts.worker.work(())

    def _current(self, now: float) -> RolloutState:
        """Return the state, loaded again if another writer has changed the rollout."""
        with self.store.read() as connection:
            # First: a process that was stopped for long must not act on what it knew.
            if self._controller is not None:
                self._controller.check(connection)
            stale = self._state is None or rollouts.changed(
                connection, self.settings.name, self._seen
            )
            others = rollouts.others(connection, self.settings)
            self._queued = queue.in_use(connection)
        state = self._load() if stale or self._state is None else self._state
        state.others = others
        return state

    def _load(self) -> RolloutState:
        with self.store.read() as connection:
            loaded = rollouts.load(connection, self.settings)
            # Once: later observations are read in the order of their rows.
            if not self._observed:
                for item in observations.newest(connection, self.settings.class_):
                    self.clock.follow(item.at)
                    self.observations.record(item)
        self.clock.follow(loaded.at)
        state = loaded.state
        known: list[NodeObservation | SchedulerObservation] = list(
            self.observations.scheduler.values()
        )
        for item in [*known, *self.observations.nodes.values()]:
            state.note(item)
        self._state, self._seen = state, loaded.seen
        return state

    def _not_ready(self, state: RolloutState) -> tuple[Wait, ...]:
        """Return why there is no basis for a decision yet. A rollout does not begin with an empty wave."""
        begins = state.record.phase is RolloutPhase.QUEUED
        waits = [
            Wait(
                "rollout",
                reading.problem or f"{reading.what} is read for the first time",
                self.own.holder,
            )
            for reading in self._readings
            if not reading.tried or (begins and reading.problem)
        ]
        if begins and not waits and not any(node.in_service for node in state.nodes.values()):
            waits = [
                Wait("rollout", "no node of the class is known to be in service", self.own.holder)
            ]
        return tuple(waits)

    # Observations

    def _made_readings(self) -> Iterator[_Reading]:
        scheduler, nodes = self.parts.scheduler, self.parts.nodes
        if scheduler is not None:
            yield _Reading("the scheduler", self.own.scheduler, self._asked_for, scheduler.read)
        if nodes is not None:
            surveyed = partial(self._surveyed, nodes)
            yield _Reading("the state of the nodes", self.own.nodes, self._to_survey, surveyed)
        calendars, names = self.parts.calendars, list(self.settings.calendars)
        if calendars is not None and names:
            yield _Reading(
                "the calendars", self.own.calendars, lambda: names, lambda _: calendars.read()
            )

    def _asked_for(self) -> list[str]:
        return list(self._state.nodes) if self._state is not None else []

    def _surveyed(self, reader: NodeReader, names: Sequence[str]) -> list[Observation]:
        """Read nodes outside of a step. One that answers serves, where no scheduler can be asked."""
        observed = reader.read(names)
        asks = self.parts.scheduler.asks if self.parts.scheduler is not None else lambda name: False
        serving = [
            SchedulerObservation(item.node, item.at, True)
            for item in observed
            if not asks(item.node)
        ]
        return [*serving, *observed]

    def _to_survey(self) -> list[str]:
        """Return unknown nodes, those that the present wave has changed, and those not read for long.

        A node is also unknown if nothing says whether it serves, and no scheduler can be asked.
        """
        asks = self.parts.scheduler.asks if self.parts.scheduler is not None else lambda name: False
        state, known, now = self._state, self.observations.nodes, self.clock()
        if state is None:
            return []
        wave, names = state.record.wave, []
        for name, node in state.nodes.items():
            step, last = state.steps.get(name), known.get(name)
            changed = step is not None and step.phase is StepPhase.DONE and step.wave == wave
            old = last is None or last.at < now - self.own.all_nodes
            unknown = not node.digest or (
                name not in self.observations.scheduler and not asks(name)
            )
            if name not in state.active and (old or changed or unknown):
                names.append(name)
        return names

    def _observe(self, state: RolloutState) -> None:
        """Take what workers, readers, other services and evaluations have found since the last tick."""
        with self.store.read() as connection:
            foreign, self._observed = observations.after(
                connection, self.settings.class_, self._observed
            )
        # After the store was read: what a reader hands over is not handed over again after a store that is away.
        own = [*self.parts.worker.results(), *self._read(), *self._answers()]
        for reported in foreign:
            self.clock.follow(reported.at)
            if reported.node in state.nodes:
                state.record_observation(self.observations, reported)
        new: list[NodeObservation | SchedulerObservation] = []
        answered: list[RequirementResult | CalendarReading] = []
        for item in own:
            if isinstance(item, RequirementResult | CalendarReading):
                if self._is_news(item):
                    answered.append(item)
                self.observations.record(item)
            elif item.node in state.nodes:
                if self._is_news(item):
                    new.append(item)
                state.record_observation(self.observations, item)
        if new:
            self.store.run(lambda c: observations.record(c, new, f"controller {self.own.holder}"))
        if answered:
            self._write_answers(answered)

    def _write_answers(self, results: Sequence[RequirementResult | CalendarReading]) -> None:
        controller = self._controller
        if controller is None:
            return
        now, name, holder = self.clock(), self.settings.name, controller.holder

        def write(connection: Connection) -> None:
            controller.beat(connection, now)
            observations.record_answers(connection, results, name, holder, controller.epoch)

        self.store.run(write)

    def _is_news(self, item: Observation) -> bool:
        """Return whether an observation says something else than the one before it."""
        known, key = self.observations, getattr(item, "node", "")
        table: Mapping[Any, Observation] = known.nodes
        if isinstance(item, SchedulerObservation):
            table = known.scheduler
        elif isinstance(item, CalendarReading):
            table, key = known.calendars, item.calendar
        elif isinstance(item, RequirementResult):
            table, key = known.requirements, (item.requirement, item.wave)
        before = table.get(key)
        return before is None or replace(item, at=0.0) != replace(before, at=0.0)

    def _read(self) -> Iterator[Observation]:
        """Yield what finished readings found, and start those that are due."""
        now = self.clock()
        for reading in self._readings:
            if reading.running is not None and reading.running.done():
                outcome = _result(reading.running, reading.problem)
                yield from outcome.value or ()
                reading.problem, reading.running = outcome.problem, None
                # Without any answer nothing moves: ask again soon. A single node that is away can wait.
                nothing = outcome.problem is not None or not (
                    outcome.value or self.observations.nodes
                )
                pause = min(reading.every, _AGAIN) if nothing else reading.every
                reading.due, reading.tried = now + pause, True
            if reading.running is None and now >= reading.due:
                if names := reading.names():
                    reading.running = self._threads.submit(reading.read, names)
                else:
                    reading.due, reading.tried = now + _AGAIN, True

    def _answers(self) -> Iterator[RequirementResult]:
        for key in [key for key, future in self._asked.items() if future.done()]:
            outcome = _result(self._asked.pop(key))
            unknown = RequirementResult(*key, Answer.UNKNOWN, self.clock(), outcome.problem or "")
            yield outcome.value or unknown

    def _evaluate(self, action: Evaluate) -> None:
        reader, key = self.parts.requirements, (action.requirement, action.wave)
        if reader is None:
            why = "this controller evaluates no requirements"
            result = RequirementResult(*key, Answer.UNKNOWN, self.clock(), why)
            if self._is_news(result):
                self._write_answers([result])
            self.observations.record(result)
        elif key not in self._asked:
            self._asked[key] = self._threads.submit(reader.read, *key)

    # Writes

    def _write(
        self, actions: Sequence[Action], state: RolloutState, now: float
    ) -> Sequence[Action]:
        """Write actions and take them into the state; return those that were written.

        A limit that another rollout or service has reached since the state was loaded refuses
        single grants; the others are written.
        """
        try:
            self._commit(actions, now)
        except GrantRefusedError as problem:
            if not all(isinstance(action, Grant) for action in actions):
                raise
            written = self._one_by_one(state, actions, now, problem)
        else:
            written = list(actions)
        for action in written:
            state.apply(action, now)
            if isinstance(action, Evaluate):
                self._evaluate(action)
        if written:
            self.parts.written(written)
        return written

    def _one_by_one(
        self, state: RolloutState, actions: Sequence[Action], now: float, problem: GrantRefusedError
    ) -> list[Action]:
        """Write grants unit by unit: a cohort that moves whole is granted whole, or not at all."""
        units: dict[str, list[Action]] = {}
        for action in actions:
            units.setdefault(state.unit[getattr(action, "node")], []).append(action)  # noqa: B009
        if len(units) == 1:
            LOGGER.info("refused: %s", problem)
            return []
        written: list[Action] = []
        for group in units.values():
            try:
                self._commit(group, now)
            except GrantRefusedError as refusal:
                LOGGER.info("refused: %s", refusal)
            else:
                written += group
        return written

    def _commit(self, actions: Sequence[Action], now: float) -> None:
        controller = self._controller
        if controller is None:
            raise StaleEpochError("this controller has no epoch")
        seen = self._seen
        self._seen = self.store.run(lambda c: rollouts.write(c, controller, actions, now, seen))

    def _beat(self, now: float) -> None:
        controller = self._controller
        if controller is not None:
            self.store.run(lambda c: controller.beat(c, now))

    # Work

    def _work(self, state: RolloutState) -> None:
        """Give the workers the tasks of the active steps. The epoch is checked as late as possible."""
        tasks, controller = self._tasks(state), self._controller
        if controller is not None:
            with self.store.read() as connection:
                controller.check(connection)
        self.parts.worker.work(tasks)

    def _tasks(self, state: RolloutState) -> list[NodeTask]:
        tasks = [
            NodeTask(
                step.node,
                phase=step.phase,
                direction=step.direction,
                attempt=step.attempt,
                prior=step.prior,
                tested_since=_tested_since(step, self.clock.behind()),
            )
            for step in state.active.values()
            if step.prior is not None and not _tested(step, state)
        ]
        return [*tasks, *self._leftovers(state)]

    def _leftovers(self, state: RolloutState) -> Iterator[NodeTask]:
        """Yield the return of nodes that this rollout has drained and that are in no step.

        A controller that was paused in the middle of a drain, for longer than its epoch, leaves
        such a node.
        """
        for name, seen in self.observations.scheduler.items():
            if seen.in_service or name not in state.nodes or not state.is_own(seen.reason):
                continue
            step = state.steps.get(name)
            phase = step.phase if step is not None else None
            newer = step is None or seen.at > step.changed_at
            # It goes back before it serves.
            back = state.record.phase in BACK_PHASES and state.waits(name)
            if phase in _SERVING and newer and not back and name not in state.ledger.by_node:
                prior = Prior(in_service=True, digest=state.nodes[name].digest, boot_id=None)
                direction, attempt = Direction.FORWARD, step.attempt if step is not None else 0
                yield NodeTask(name, StepPhase.RETURNING, direction, attempt, prior)

    def _leave(self) -> None:
        """Give the rollout up, so that the next controller need not wait for this one."""
        controller, self._controller = self._controller, None
        if controller is not None:
            # The store may be away, and another controller may have the rollout.
            with suppress(GoldnodeError):
                self.store.run(lambda c: controller.change(c, holder=None))

    def close(self) -> None:
        """Stop the work of this controller. Nodes stay where they are; the next controller continues, without waiting."""
        self.parts.worker.close()
        self._leave()
        if self.parts.requirements is not None:
            self.parts.requirements.close()
        self.parts.closed()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _tested(step: Step, state: RolloutState) -> bool:
    """Return whether tests of the queue keep a node that is judged from its return, or have found it unfit."""
    kept = step.node in state.share.after or state.stays_out(step.node)
    return step.phase is StepPhase.RETURNING and kept


def _tested_since(step: Step, behind: float) -> float | None:
    """Return the time of the machine from which tests before the return count.

    A return with a cause follows on a drain alone.
    """
    returns = step.phase is StepPhase.RETURNING and step.cause is None
    return step.changed_at - behind if returns else None


@dataclass(frozen=True)
class _Outcome(Generic[_Item]):
    """Result of a thread, or why it failed."""

    value: _Item | None = None
    problem: str | None = None


def _result(future: Future[_Item], before: str | None = None) -> _Outcome[_Item]:
    """Return the result, or log why there is none, unless that was the reason `before` too."""
    try:
        return _Outcome(future.result())
    except GoldnodeError as problem:
        if str(problem) != before:
            LOGGER.error("%s", problem)
        return _Outcome(problem=str(problem))
    except Exception as problem:  # a program of the site must not end the controller
        LOGGER.exception("a reading failed")
        return _Outcome(problem=repr(problem))
