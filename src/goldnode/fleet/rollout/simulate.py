"""A simulated rollout: discrete events around the same `plan` that a controller calls.

Nothing here is measured. Jobs end at random (exponential, four hours left on average), a change and
its boot take nine minutes on average, and nodes fail as the chosen faults have it.
"""

from __future__ import annotations

import gc
import heapq
import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from goldnode.fleet.rollout import faults
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.faults import SimulatedFaults
from goldnode.fleet.rollout.model import (
    Action,
    Alarm,
    Answer,
    Approve,
    CalendarReading,
    ChangePhase,
    Direction,
    Evaluate,
    Finish,
    FleetNode,
    Freeze,
    Grant,
    LogEntry,
    NodeObservation,
    Proceed,
    Promote,
    RequirementResult,
    RolloutPhase,
    RolloutRecord,
    SchedulerObservation,
    Start,
    StepPhase,
    Turn,
)
from goldnode.fleet.rollout.plan import plan
from goldnode.fleet.rollout.simulated_floors import SimulatedCanaries
from goldnode.fleet.rollout.state import Observations, RolloutState
from goldnode.node.ground.drained import reason

TICK = 60.0  # seconds between two decisions; a controller decides every 10
JOB_LEFT = 4 * 3600.0  # mean time that a job has left
JOB_LONGEST = 24 * 3600.0  # time limit of jobs
IDLE = 1800.0  # seconds until an idle node gets a job
BUSY = 0.9  # share of nodes with a job
DRAIN = (5.0, 20.0)  # seconds until an idle node is drained, or a node is returned
APPLY = (360.0, 720.0)  # seconds of a change with its boot and check
DOWN = 600.0  # seconds until a killed controller runs again
CUT = 3600.0  # seconds of a partition
LATE = 2 * 3600.0  # mean seconds until a change that fails late does so
LONGEST = 90 * 86400.0  # simulated seconds, after which a run is given up
SETTLED = 10_000  # decisions in one tick, above which `plan` does not come to rest
_CAUSES = {"module": "module-build", "image": "boot-check", "late": "service-check"}


@dataclass(frozen=True)
class SimulatedRun:
    """Result of one simulated run. Hours are from its begin; None: it did not happen."""

    seed: int
    end: str  # phase at the end, or frozen, or not ended
    hours: float  # until the last node had moved
    # Until the rollout was completed; nodes that were deferred move later.
    hours_completed: float | None
    hours_99: float | None  # until 99 % of the nodes had moved
    touched: int  # nodes that had a grant forward
    touched_at_stop: int | None
    stopped_after: float | None
    rule: str | None  # that stopped it
    reason: str | None
    wave: str  # at the stop, or at the end
    done: int
    failed: int
    overdue: int
    deferred: int
    denied: int  # nodes that have the denied state at the end
    slow: int  # nodes in service with a loss that no requirement saw
    capacity_lost: float  # node-hours, idle while out of service for a step
    idle_median: float  # seconds from a drained node to the begin of its change
    peak_out: int
    # Hours, done, planned, failed.
    timeline: tuple[tuple[float, int, int, int], ...] = field(repr=False, default=())


@dataclass
class _World:
    """The truth about nodes that the controller does not see."""

    random: random.Random
    digest: dict[str, str] = field(default_factory=dict)
    boots: dict[str, int] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)  # node -> fault of the change on it
    out: set[str] = field(default_factory=set)  # under repair
    busy: set[str] = field(default_factory=set)  # never drained
    variant: set[str] = field(default_factory=set)  # nodes of the hardware that the change breaks
    cut: dict[str, float] = field(default_factory=dict)  # rack -> end of its partition


def of_variant(nodes: Sequence[FleetNode], rate: float) -> set[str]:
    """Return the nodes of the hardware variant that a simulated change breaks: the same ones in each run."""
    draw = random.Random(0)  # noqa: S311 - repeatable
    names = [node.name for node in nodes]
    return set(draw.sample(names, max(1, round(rate * len(names))))) if names else set()


class Simulation:
    """One run. `watch` is called after each action, with the state that follows it."""

    def __init__(
        self,
        settings: RolloutSettings,
        nodes: Sequence[FleetNode],
        chosen: SimulatedFaults,
        seed: int,
        watch: Callable[[RolloutState, Action, float], None] | None = None,
        *,
        calendars: Sequence[CalendarReading] = (),
    ) -> None:
        # The rank of nodes depends on the name: each run has another order.
        settings = replace(settings, name=f"{settings.name}-{seed}")
        self.settings, self.chosen, self.seed, self.watch = settings, chosen, seed, watch
        self.rate = dict(chosen.rates)
        self.world = _World(random.Random(seed))  # noqa: S311 - a simulation, repeatable by its seed
        self.state = RolloutState(
            RolloutRecord(
                name=settings.name,
                class_=settings.class_,
                origin=settings.origin,
                target=settings.target,
                epoch=1,
            ),
            nodes,
            whole_cohorts=settings.limits.whole_cohorts,
        )
        self.observations = Observations()
        for reading in calendars:
            self.observations.record(reading)
        self.drained = reason(
            self.state.run, "simulated", "1970-01-01T00:00:00Z", "simulated drain"
        )
        self.log: list[LogEntry] = []
        self.events: list[tuple[float, int, str, str, int]] = []
        self.sequence = 0
        self.down_until = 0.0
        self.canaries: dict[str, SimulatedCanaries] = {}  # requirement -> its results
        self.tally = _Tally()
        self.wake = -1.0
        self.refreshed = -2
        self._begin(nodes)

    # Events

    def _at(self, time: float, kind: str, subject: str = "", number: int = 0) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, kind, subject, number))

    def _begin(self, nodes: Sequence[FleetNode]) -> None:
        world = self.world
        for node in nodes:
            world.digest[node.name] = self.settings.origin
            world.boots[node.name] = 0
        hardware = self.rate.get("hardware", 0.0)
        if hardware:
            share = faults.OUT_AT_ONCE * hardware / faults.KINDS["hardware"].default
            for node in nodes:
                if world.random.random() < share:
                    self._at(0.0, "breaks", node.name)
            self._next_hardware(0.0)
        if self.rate.get("busy"):
            names = [node.name for node in nodes]
            world.busy = {name for name in names if world.random.random() < self.rate["busy"]}
        if self.rate.get("variant"):
            world.variant = of_variant(nodes, self.rate["variant"])
        for kind in ("killed", "partition"):
            if self.rate.get(kind):
                self._at(world.random.expovariate(self.rate[kind] / 86400), kind)
        for name, roles in self.settings.approve.items():
            for role in roles:
                self._apply(Approve(name, role, "simulated", self.settings.digest), 0.0)
        self._at(0.0, "tick")

    def run(self) -> SimulatedRun:
        """Run until the rollout has ended, is frozen, or does not proceed any more."""
        # A run makes a hundred thousand objects and no cycles. Searching them for cycles takes a tenth of it.
        collects = gc.isenabled()
        gc.disable()
        try:
            return self._run()
        finally:
            if collects:
                gc.enable()

    def _run(self) -> SimulatedRun:
        now = 0.0
        while self.events:
            now = math.ceil(self.events[0][0] / TICK) * TICK
            if now > LONGEST:
                break
            while self.events and self.events[0][0] <= now:
                time, _, kind, subject, number = heapq.heappop(self.events)
                self._event(time, kind, subject, number)
            if now < self.down_until:
                self._at(self.down_until, "tick")
                continue
            self._refresh_jobs(now)
            self._decide(now)
            if (self.state.has_ended() or self.state.freezes) and not self.state.active:
                break
        return self._result(now)

    def _decide(self, now: float) -> None:
        """Plan and apply until there is nothing to do at this time."""
        for _ in range(SETTLED):
            decision = plan(self._settings(), self.state, self.observations, now)
            if not decision.actions:
                break
            for action in decision.actions:
                self._apply(action, now)
                self._react(action, now)
        else:
            raise AssertionError(f"plan() does not come to rest: {decision.actions[:3]}")
        if decision.wake_at is not None and decision.wake_at != self.wake:
            self.wake = decision.wake_at
            self._at(max(decision.wake_at, now + 1e-3), "tick")
        self.tally.sample(self.state, now)

    def _settings(self) -> RolloutSettings:
        return self.settings

    def _apply(self, action: Action, now: float) -> None:
        self.state.apply(action, now)
        self.log.append(LogEntry(len(self.log), now, self.state.record.epoch, action))
        self.tally.count(self.state, action, now)
        if self.watch is not None:
            self.watch(self.state, action, now)

    def _event(self, time: float, kind: str, subject: str, number: int) -> None:
        getattr(self, f"_on_{kind}")(time, subject, number)

    def _on_tick(self, time: float, subject: str, number: int) -> None:
        """Wake the controller."""

    # Reports

    def _silent(self, node: str, time: float, kind: str, number: int) -> bool:
        """Delay a report of a node that is cut off; return whether it is."""
        rack = self.state.nodes[node].rack
        end = self.world.cut.get(rack or "", 0.0)
        if time >= end:
            return False
        self._at(end + self.world.random.uniform(*DRAIN), kind, node, number)
        return True

    def _scheduler(self, node: str, time: float, in_service: bool, free_at: float = 0.0) -> None:
        reason = "" if in_service else self.drained
        item = SchedulerObservation(node, time, in_service, free_at, reason)
        self.state.record_observation(self.observations, item)

    def _report(self, node: str, time: float, verdict: Answer, **findings: tuple[str, ...]) -> None:
        world = self.world
        item = NodeObservation(
            node,
            time,
            boot_id=f"{node}/{world.boots[node]}",
            digest=world.digest[node],
            verdict=verdict,
            software=findings.get("software", ()),
            hardware=findings.get("hardware", ()),
        )
        self.state.record_observation(self.observations, item)

    def _refresh_jobs(self, now: float) -> None:
        """Draw the jobs of the nodes from which the next wave is chosen: exponential times have no memory."""
        record, state = self.state.record, self.state
        wave = record.wave if record.phase is RolloutPhase.RUNNING else -1
        if wave == self.refreshed:
            return
        if wave >= 0 and (
            state.ended[wave] < state.wave_size[wave]
            or now < record.finished_at + self.settings.waves[wave].soak
        ):
            return
        self.refreshed = wave
        for name in state.nodes:
            if name not in state.wave_of and name not in self.world.out:
                self._scheduler(name, now, True, self._free_at(now))

    def _free_at(self, now: float) -> float:
        busy = self.world.random.random() < BUSY
        return now + min(self.world.random.expovariate(1 / JOB_LEFT), JOB_LONGEST) if busy else 0.0

    def _watch_job(self, node: str, now: float) -> None:
        """Report the next job of a node, as long as it waits."""
        free_at = self.state.nodes[node].free_at
        self._at(free_at if free_at > now else now + IDLE, "job_ends", node)

    def _on_job_ends(self, time: float, node: str, number: int) -> None:
        if self.state.waits(node) and self.state.nodes[node].in_service:
            self._scheduler(node, time, True, self._free_at(time))
            self._watch_job(node, time)

    # Reactions of nodes to actions

    def _react(self, action: Action, now: float) -> None:
        if isinstance(action, Grant):
            node = self.state.nodes[action.node]
            drained = now + self.world.random.uniform(*DRAIN)
            self._at(max(drained, node.free_at), "drained", action.node, action.attempt)
        elif isinstance(action, Turn) or (
            isinstance(action, Proceed) and action.phase is StepPhase.APPLYING
        ):
            attempt = self.state.steps[action.node].attempt
            self._at(now + self.world.random.uniform(*APPLY), "booted", action.node, attempt)
        elif isinstance(action, Proceed):
            attempt = self.state.steps[action.node].attempt
            self._at(now + self.world.random.uniform(*DRAIN), "returned", action.node, attempt)
        elif isinstance(action, Start | Promote):
            for name in action.nodes:
                self._watch_job(name, now)
        elif isinstance(action, ChangePhase) and action.phase is RolloutPhase.ROLLING_BACK:
            for name in self.state.nodes:
                if self.state.waits(name) and self.state.nodes[name].in_service:
                    self._on_job_ends(now, name, 0)
        elif isinstance(action, Evaluate):
            self._at(now + 1.0, "evaluated", action.requirement, action.wave)
        elif isinstance(action, Finish) and action.phase is StepPhase.DONE:
            self._in_service(action.node, now)

    def _current(self, node: str, attempt: int) -> bool:
        step = self.state.steps.get(node)
        return step is not None and step.attempt == attempt and node in self.state.active

    def _on_drained(self, time: float, node: str, attempt: int) -> None:
        if not self._current(node, attempt) or self._silent(node, time, "drained", attempt):
            return
        if node in self.world.busy:
            return
        self.tally.drained[node] = time
        self._scheduler(node, time, False)

    def _on_returned(self, time: float, node: str, attempt: int) -> None:
        if self._current(node, attempt) and not self._silent(node, time, "returned", attempt):
            self._scheduler(node, time, True)

    def _on_booted(self, time: float, node: str, attempt: int) -> None:
        if not self._current(node, attempt) or node in self.world.out:
            return
        if self._silent(node, time, "booted", attempt):
            return
        if self.state.steps[node].direction is Direction.BACK:
            self.world.boots[node] += 1
            self.world.digest[node] = self.settings.origin
            self.world.broken.pop(node, None)
            self._report(node, time, Answer.PASSES)
            return
        self._boot_forward(node, time)

    def _boot_forward(self, node: str, time: float) -> None:
        """Boot the new state, with the faults that it has on this node."""
        world, chance = self.world, self.world.random.random
        if chance() < self.rate.get("absent", 0.0):
            return
        if chance() < self.rate.get("lying", 0.0):
            old = NodeObservation(
                node, time, f"{node}/{world.boots[node]}", self.settings.target, Answer.PASSES
            )
            self.state.record_observation(self.observations, old)
            return
        world.boots[node] += 1
        if chance() < self.rate.get("module", 0.0):
            item = NodeObservation(
                node,
                time,
                f"{node}/{world.boots[node]}",
                self.settings.origin,
                Answer.PASSES,
                software=(_CAUSES["module"],),
                fell_back_from=self.settings.target,
            )
            self.state.record_observation(self.observations, item)
            return
        world.digest[node] = self.settings.target
        if node in world.variant or chance() < self.rate.get("image", 0.0):
            world.broken[node] = "image"
            self._report(node, time, Answer.FAILS, software=(_CAUSES["image"],))
            return
        for kind in ("late", "slow"):
            if chance() < self.rate.get(kind, 0.0):
                world.broken[node] = kind
        self._report(node, time, Answer.PASSES)

    def _in_service(self, node: str, now: float) -> None:
        if self.world.broken.get(node) == "late":
            self._at(now + self.world.random.expovariate(1 / LATE), "fails_late", node)

    def _on_fails_late(self, time: float, node: str, number: int) -> None:
        step = self.state.steps.get(node)
        serving = (
            step is not None
            and step.phase is StepPhase.DONE
            and step.direction is Direction.FORWARD
        )
        if serving and node not in self.world.out:
            self._report(node, time, Answer.FAILS, software=(_CAUSES["late"],))
            self._scheduler(node, time, False)

    def _on_evaluated(self, time: float, name: str, wave: int) -> None:
        """Answer a requirement: floors by simulated canaries; the others pass, unless there is no data."""
        answer, reason = Answer.PASSES, "simulated"
        item = next(one.requirement for one in self.settings.outside if one.name == name)
        if item.floors is not None:
            canaries = self.canaries.setdefault(name, SimulatedCanaries(self.seed))
            answer, reason = canaries.judge(item.floors, self.state, self.world.broken, time)
        elif self.world.random.random() < self.rate.get("no-data", 0.0):
            answer, reason = Answer.UNKNOWN, "simulated: no data"
        self.observations.record(RequirementResult(name, wave, answer, time, reason))

    # Faults outside of the change

    def _next_hardware(self, now: float) -> None:
        rate = self.rate["hardware"] * len(self.state.nodes) / 1000 / 86400
        self._at(now + self.world.random.expovariate(rate), "hardware")

    def _on_hardware(self, time: float, subject: str, number: int) -> None:
        names = self.tally.names or list(self.state.nodes)
        self.tally.names = names
        self._on_breaks(time, names[self.world.random.randrange(len(names))], 0)
        self._next_hardware(time)

    def _on_breaks(self, time: float, node: str, number: int) -> None:
        world = self.world
        if node in world.out:
            return
        world.out.add(node)
        step = self.state.steps.get(node)
        applying = (
            node in self.state.active and step is not None and step.phase is StepPhase.APPLYING
        )
        if applying:
            world.boots[node] += 1
            if step is not None and step.direction is Direction.FORWARD:
                world.digest[node] = self.settings.target
        self._report(node, time, Answer.FAILS, hardware=("hardware",))
        if node not in self.state.active:
            self._scheduler(node, time, False)
        self._at(time + faults.repair(world.random), "repaired", node)

    def _on_repaired(self, time: float, node: str, number: int) -> None:
        self.world.out.discard(node)
        self._report(node, time, Answer.PASSES)
        if node not in self.state.active:
            self._scheduler(node, time, True)

    def _on_killed(self, time: float, subject: str, number: int) -> None:
        """Kill the controller: what it did not store is lost, and the next one has another epoch."""
        self.down_until = time + DOWN
        data = json.loads(json.dumps(self.state.to_json()))
        self.state = RolloutState.from_json(data)
        self.state.record = replace(self.state.record, epoch=self.state.record.epoch + 1)
        # A real controller loads the rows of its store; the JSON form is the same state.
        for report in self.observations.nodes.values():
            self.state.note(report)
        for seen in self.observations.scheduler.values():
            self.state.note(seen)
        self._at(time + self.world.random.expovariate(self.rate["killed"] / 86400), "killed")

    def _on_partition(self, time: float, subject: str, number: int) -> None:
        racks = sorted({node.rack for node in self.state.nodes.values() if node.rack is not None})
        if racks:
            self.world.cut[self.world.random.choice(racks)] = time + CUT
        self._at(time + self.world.random.expovariate(self.rate["partition"] / 86400), "partition")

    def _result(self, now: float) -> SimulatedRun:
        state, tally, world = self.state, self.tally, self.world
        phases = [step.phase for step in state.steps.values()]
        end = state.record.phase.value
        if not state.has_ended():
            end = "frozen" if state.freezes else "not ended"
        waited = sorted(tally.waited)
        return SimulatedRun(
            seed=self.seed,
            end=end,
            hours=now / 3600,
            hours_completed=tally.completed,
            hours_99=next(
                (row[0] for row in tally.timeline if row[1] >= 0.99 * len(state.nodes)), None
            ),
            touched=len(tally.touched),
            touched_at_stop=tally.touched_at_stop,
            stopped_after=tally.stopped_after,
            rule=tally.rule,
            reason=tally.reason,
            wave=self.settings.waves[min(state.record.wave, len(self.settings.waves) - 1)].name,
            done=sum(
                step.phase is StepPhase.DONE and step.direction is Direction.FORWARD
                for step in state.steps.values()
            ),
            failed=phases.count(StepPhase.FAILED),
            overdue=phases.count(StepPhase.OVERDUE),
            deferred=phases.count(StepPhase.DEFERRED),
            denied=sum(world.digest[name] in state.denied for name in state.nodes),
            slow=sum(kind == "slow" for kind in world.broken.values()),
            capacity_lost=(
                sum(tally.idle) + sum(max(0.0, now - since) for since in tally.drained.values())
            )
            / 3600,
            idle_median=waited[len(waited) // 2] if waited else 0.0,
            peak_out=tally.peak,
            timeline=tuple(tally.timeline),
        )


@dataclass
class _Tally:
    """Cost of the run so far."""

    touched: set[str] = field(default_factory=set)
    touched_at_stop: int | None = None
    stopped_after: float | None = None
    rule: str | None = None
    reason: str | None = None
    drained: dict[str, float] = field(default_factory=dict)
    idle: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    peak: int = 0
    completed: float | None = None
    timeline: list[tuple[float, int, int, int]] = field(default_factory=list)

    def count(self, state: RolloutState, action: Action, now: float) -> None:
        """Count what an action costs."""
        if isinstance(action, Grant) and action.direction is Direction.FORWARD:
            self.touched.add(action.node)
        elif isinstance(action, Finish) and not action.failed:
            since = self.drained.pop(action.node, None)
            if since is not None:
                self.idle.append(now - since)
        elif (
            isinstance(action, Alarm) and action.code in ("stopped", "frozen") and self.rule is None
        ):
            self._stop(now, action.subject, action.text)
        elif isinstance(action, Proceed) and action.phase is StepPhase.APPLYING:
            self.waited.append(now - self.drained.get(action.node, now))
        elif isinstance(action, ChangePhase | Freeze):
            self.peak = max(self.peak, state.ledger.out)
            if isinstance(action, ChangePhase) and action.phase is RolloutPhase.COMPLETED:
                self.completed = now / 3600

    def _stop(self, now: float, rule: str, reason: str) -> None:
        self.touched_at_stop, self.stopped_after = len(self.touched), now / 3600
        self.rule, self.reason = rule, reason

    def sample(self, state: RolloutState, now: float) -> None:
        """Remember the counts at this time."""
        ledger = state.ledger
        self.peak = max(self.peak, ledger.out)
        row = (now / 3600, state.serving, ledger.planned, ledger.failed)
        if not self.timeline or self.timeline[-1][1:] != row[1:]:
            self.timeline.append(row)


def made_up(count: int, origin: str, *, rack: int = 4, leaf: int = 32) -> list[FleetNode]:
    """Return `count` simulated nodes, four to a rack and 32 to a leaf switch."""
    width = len(str(count))
    return [
        FleetNode(
            name=f"sim{number:0{width}d}",
            rack=f"r{number // rack:0{width}d}",
            leaf=f"l{number // leaf:0{width}d}",
            digest=origin,
            in_service=True,
        )
        for number in range(count)
    ]


def shifted(readings: Iterable[CalendarReading], begin: float) -> list[CalendarReading]:
    """Return readings in the time of a simulation that begins at `begin`."""
    return [
        replace(
            item,
            at=item.at - begin,
            until=item.until - begin,
            spans=tuple(
                replace(span, begin=span.begin - begin, end=span.end - begin) for span in item.spans
            ),
        )
        for item in readings
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
