"""A simulated fleet for the ladder: faults, persons, jobs, kills. It carries out what `decide` returns.

The same function decides here and in the controller. The hardware is simulated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.unit.fleet.rollout.queue_schedules import QueueWorld

from goldnode.fleet.rollout.ladder import (
    BOOTS,
    ENDED,
    CasePhase,
    ChangeLeave,
    Holder,
    LadderAction,
    LadderPolicy,
    LadderState,
    MoveCase,
    NodeSeen,
    OpenCase,
    RepairCase,
    StoreEvidence,
    decide,
)
from goldnode.fleet.rollout.queue import (
    ALREADY_OUT,
    QueuedWork,
    QueueHold,
    QueueRequest,
    RequestState,
    may_begin,
)
from goldnode.fleet.shared.identity import rollout_run

RUNGS = frozenset(
    (
        "service-restart", "gpu-reset", "module-reload", "reboot", "power-cycle", "slot-write", "reinstall",
    )
)  # fmt: skip
WAYS = {
    "gpu.recovery_action": ("gpu-reset", "module-reload", "reboot", "power-cycle"),
    "gpu.lost": ("reboot", "power-cycle"),
    "fabric.manager": ("service-restart", "gpu-reset", "reboot", "power-cycle"),
    "driver.loaded": ("module-reload", "reboot", "power-cycle", "slot-write", "reinstall"),
    "gpu.sram": (),
}


@dataclass
class World:
    """Nodes by name, with what is true of each. `cures`: the rung from which on a fault is cured; None: by a person."""

    rng: random.Random
    policies: dict[str, LadderPolicy]
    step: float = 60.0
    now: float = 1000.0
    state: LadderState = field(default_factory=LadderState)
    log: list[LadderAction] = field(default_factory=list)
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    acting: dict[str, float] = field(default_factory=dict)  # node -> end of the rung
    violations: list[str] = field(default_factory=list)
    capacity: int = 10**6  # leaves of the store at once
    watch: set[str] | None = None  # the nodes that may have a fault; None: all

    @cached_property
    def queue(self) -> LadderQueue:
        """Return the queue of this fleet: repairs and other work ask it for nodes."""
        return LadderQueue(self)

    def seen(self) -> dict[str, NodeSeen]:
        """Return what is read of the nodes that matter."""
        watched = [*self.watch, *self.state.cases] if self.watch is not None else self.nodes
        return {
            name: self.nodes[name].seen(self.now, self.state.cases.get(name))
            for name in watched
            if (self.nodes[name].fault or name in self.state.cases) and self.nodes[name].readable
        }

    def tick(self) -> None:
        """Let one interval pass: the world goes on, then the ladder decides and acts."""
        self.now += self.step
        self._outcomes()
        self._restores()
        for action in decide(self.policies, self.state, self.seen(), self.now):
            self._judge(action)
            follows: list[LadderAction] = []
            if isinstance(action, MoveCase):
                follows = self._ends(action)
            for one in (action, *follows):
                self.state.apply(one, self.now)
                self.log.append(one)
            if isinstance(action, MoveCase):
                self._act(action)
        for name, case in list(self.state.cases.items()):
            self._serve(name, case)
        self.queue.others(self.now)

    # -- the controller's work

    def _serve(self, name: str, case: RepairCase) -> None:
        node = self.nodes[name]
        if case.planned:
            return
        if case.phase is CasePhase.INSPECT and not case.evidence and self.rng.random() < 0.9:
            self.state.apply(StoreEvidence(name, f"{name}-{self.now}"), self.now)
        elif case.phase is CasePhase.DRAIN and case.leave and node.holder is Holder.NONE:
            node.drain(case.run)
        elif case.phase is CasePhase.DRAIN and not case.leave and node.holder is not Holder.OTHER:
            run = self.queue.asked_for(name, self.now, node.holder is Holder.GATE)
            if run:
                self.state.apply(ChangeLeave(name, True, run), self.now)
        elif case.phase is CasePhase.RETURN:
            if node.holder is Holder.LADDER and node.run == case.run:
                node.holder = Holder.NONE
            self.queue.leave_ends(name)
            self.state.apply(ChangeLeave(name, False), self.now)

    def _ends(self, move: MoveCase) -> list[LadderAction]:
        """End the part of a case as the store does, and return what follows."""
        case = self.state.cases[move.node]
        if move.phase in ENDED:
            self.queue.leave_ends(move.node)
        elif move.phase is CasePhase.TICKET:
            self.queue.leave_ends(move.node, fit=False)
        elif move.phase is CasePhase.RETURN and case.leave:
            run = self.queue.work_ends(move.node, move.cured or case.cured)
            if run != RETURNS:
                return [ChangeLeave(move.node, False, run)]
        return []

    def release(self, name: str) -> None:
        """Release a node as a person: all its holds end."""
        self.queue.released(name)
        self.state.apply(ChangeLeave(name, False), self.now)

    def _act(self, move: MoveCase) -> None:
        node = self.nodes[move.node]
        if move.phase is CasePhase.ACT:
            self.acting[move.node] = self.now + self.rng.choice((60.0, 300.0, 900.0))
            if move.rung == "power-cycle":
                node.powered = False
        elif move.phase in ENDED and node.holder is Holder.LADDER and self.queue.left(move.node):
            node.holder = Holder.NONE  # its drain has no order, so the next tick returns it

    def _outcomes(self) -> None:
        for name, end in list(self.acting.items()):
            if end > self.now:
                continue
            del self.acting[name]
            node, case = self.nodes[name], self.state.cases[name]
            node.powered = True
            done = self.rng.random() < 0.95
            if done and case.rung in BOOTS:
                node.boot += 1
            if done and node.cure is not None and rank(case.rung) >= rank(node.cure):
                node.heal()
            move = MoveCase(
                name,
                CasePhase.CHECK,
                case.rung,
                case.why,
                self.now + self.policies[name].bounds.check,
                outcome="done" if done else "failed",
            )
            self.state.apply(move, self.now)
            self.log.append(move)

    def kill(self) -> None:
        """Kill the controller: what it did is lost, and the next one finds the intent without an outcome."""
        for name in list(self.acting):
            self.acting[name] = self.now  # the next controller restores the node, and records it

    def _restores(self) -> None:
        for name in self.nodes if self.watch is None else self.watch:
            node = self.nodes[name]
            if node.holder is Holder.GATE and not node.fault:
                node.holder = Holder.NONE  # the gate returns a good node

    # -- invariants

    def _judge(self, action: LadderAction) -> None:
        if isinstance(action, OpenCase):
            if action.case.node in self.state.cases:
                self.violations.append(f"{action.case.node} has two cases")
            return
        if not isinstance(action, MoveCase) or action.phase is not CasePhase.ACT:
            return
        case, node = self.state.cases[action.node], self.nodes[action.node]
        bounds = self.policies[action.node].bounds
        hour = [row for row in self.state.rungs if row.at > self.now - 3600]
        own = [
            row
            for row in self.state.rungs
            if row.node == action.node and row.at > self.now - bounds.node_window
        ]
        before = [
            row for row in self.state.rungs if row.node == action.node and row.at >= case.opened_at
        ]
        active = [
            one for one in self.state.cases.values() if one.leave and one.phase.value != "ticket"
        ]
        checks = {
            "no evidence": not case.evidence,
            "evidence is older than the rung before": bool(before)
            and float(case.evidence.rpartition("-")[2]) < (before[-1].ended_at or 0),
            "no leave": not case.leave,
            "a person holds it": node.holder is Holder.OTHER,
            "it has a job": node.job,
            "above per_hour": len(hour) >= bounds.per_hour,
            "above per_node": len(own) >= bounds.per_node,
            "above together": len(active) > bounds.together,
            "it goes down the ladder": bool(before) and rank(action.rung) < rank(before[-1].rung),
            "too many attempts": sum(row.rung == action.rung for row in before) >= bounds.attempts,
            "forbidden": action.rung in self.policies[action.node].forbidden,
            "a cohort has two": node.cohort is not None
            and sum(self.nodes[one.node].cohort == node.cohort for one in active) > 1,
            "planned": case.planned,
            "stopped": f"finding {case.finding}" in self.state.stops,
            "not its way": action.rung not in WAYS[case.finding],
            "its part does not run": not self.queue.acts(action.node),
            "another drain": node.holder is Holder.LADDER and node.run != case.run,
        }
        self.violations += [f"{action.node}: {name}" for name, wrong in checks.items() if wrong]

    def at_rest(self) -> list[str]:
        """Return what is drained or off without an order."""
        wrong = []
        for name, node in self.nodes.items():
            case = self.state.cases.get(name)
            ordered = case is not None and (
                case.leave or case.phase in (CasePhase.RETURN, CasePhase.ACT)
            )
            # A node whose state cannot be read is decided on later.
            if (
                node.holder is Holder.LADDER
                and node.readable
                and not ordered
                and self.queue.left(name)
            ):
                wrong.append(f"{name} is drained without an order")
            if not node.powered and name not in self.acting:
                wrong.append(f"{name} is off without an order")
        return wrong


RETURNS = "the ladder returns it"
ASKER = "(ladder)"
NO_END = 10**7.0  # seconds


class LadderQueue(QueueWorld):
    """The queue of a world, with other work beside the repairs: the pure decision of the product grants."""

    def __init__(self, world: World) -> None:
        domains = {
            name: (("class", "h100"), *([("rack", node.rack)] if node.rack else ()))
            for name, node in world.nodes.items()
        }
        super().__init__(domains)
        self.world = world
        self.shared = 0  # turns with a repair and other work

    def wanted(self) -> set[str]:
        """Return the nodes with an open request: a fleet of thousands has few of them."""
        return {one.node for one in self.requests.values() if one.node is not None}

    def settle(self, stop_after: int | None = None) -> None:
        """Decide, within the capacity of the world. Requests that have ended are forgotten."""
        self.limits = {"class": (self.world.capacity, None, None), "rack": (None, None, None)}
        self.beat()
        super().settle(stop_after)
        for node in {one.node for one in self.open() if one.turn and one.node}:
            works = {one.work for one in self.parts(node)}
            self.shared += len(works) > 1 and QueuedWork.REPAIR in works
        self.requests = {one.id: one for one in self.open()}
        self.check_parts()

    def check_parts(self) -> None:
        """Check that one part at a time runs on a node, and that a hold has a part."""
        for name in self.held | self.wanted():
            running = [one for one in self.parts(name) if one.state is RequestState.RUNNING]
            assert len(running) <= 1, name
            planned = [one for one in self.nodes[name].holds if one.kind == "planned"]
            assert bool(planned) == any(one.under == "queue" for one in self.parts(name)), name

    def part(self, name: str) -> QueueRequest | None:
        """Return the open request of the ladder for a node."""
        return next((one for one in self.open() if one.node == name and one.holder == ASKER), None)

    def acts(self, name: str) -> bool:
        """Return whether the part of the ladder is the one that runs on a node."""
        return [one.holder for one in self.parts(name) if one.state is RequestState.RUNNING] == [
            ASKER
        ]

    def left(self, name: str) -> bool:
        """Return whether nothing in the queue orders that a node is out of service."""
        return not self.parts(name) and not self.nodes[name].holds

    def asked_for(self, name: str, now: float, by_gate: bool) -> str:
        """Ask for a node, or ask again. Return the run of its turn once its part begins."""
        self.now = now
        if by_gate:
            self.hold(name, QueueHold("repair", "failed", "its gate"))
        if self.part(name) is None:
            self.ask(name, QueuedWork.REPAIR, holder=ASKER)
            self.change(self.number, limit=NO_END)
        self.settle()
        part = self.part(name)
        if part is None or not may_begin(self.view(), part):
            return ""
        self.begin(part)
        return f"queue turn {part.turn}"

    def leave_ends(self, name: str, fit: bool = True) -> None:
        """End the part of the ladder, whatever state it is in."""
        if fit:
            self.drop(name, "repair")
        part = self.part(name)
        if part is None:
            return
        if part.state is RequestState.RUNNING:
            self.end(part.id, succeeded=False, fit=fit)
        elif part.state is not RequestState.RETURNING:
            self.close(part.id, RequestState.CANCELLED)
        if self.requests[part.id].state is RequestState.RETURNING:
            self.end(part.id, succeeded=True, fit=True)

    def work_ends(self, name: str, cured: bool) -> str | None:
        """End the work of the ladder. Return the run that its case keeps, or RETURNS."""
        part = self.part(name)
        if part is None or part.state is not RequestState.RUNNING:
            return None
        self.end(part.id, succeeded=cured, fit=True)
        if self.requests[part.id].state is RequestState.RETURNING:
            return RETURNS
        self.drop(name, "repair")
        if self.parts(name) or part.turn in self.unfit:
            return ""
        return None

    def released(self, name: str) -> None:
        """End all holds of a node, by a person. Other work that has it ends, and returns what it has drained."""
        node = self.world.nodes[name]
        for one in self.parts(name):
            own = f"queue turn {one.turn}" == node.run and node.holder is Holder.LADDER
            if one.holder != ASKER and own and not self.acts(name):
                node.holder = Holder.NONE
        for one in self.parts(name):
            self.change(one.id, state=RequestState.FAILED)
        for hold in self.nodes[name].holds:
            self.drop(name, hold.owner)

    def others(self, now: float) -> None:
        """Let the other work go on: it drains, works and returns; on a node of a person or of its gate it gives up."""
        self.now = now
        if not self.requests:
            return
        self.settle()
        for one in self.open():
            if one.node is None or one.holder == ASKER:
                continue
            node, run = self.world.nodes[one.node], f"queue turn {one.turn}"
            free = node.holder is Holder.NONE or (node.holder is Holder.LADDER and node.run == run)
            # On a node that was out before, it would leave its own drain: no matter of the ladder.
            if one.state is RequestState.GRANTED and (not free or one.under == ALREADY_OUT):
                self.close(one.id, RequestState.CANCELLED)
            elif one.state is RequestState.GRANTED and may_begin(self.view(), one):
                self.begin(one)
                node.drain(run)
            elif one.state is RequestState.RUNNING and self.world.rng.random() < 0.3:
                self.end(one.id, succeeded=True, fit=True)
            elif one.state is RequestState.RETURNING:
                if node.holder is Holder.LADDER and node.run == run:
                    node.holder = Holder.NONE
                self.end(one.id, succeeded=True, fit=True)


@dataclass
class SimulatedNode:
    """Truth about one node."""

    name: str
    fault: str | None = None
    cure: str | None = None
    holder: Holder = Holder.NONE
    job: bool = False
    boot: int = 1
    powered: bool = True
    readable: bool = True
    outstanding: str = ""
    cohort: str | None = None
    rack: str | None = None
    can: frozenset[str] = RUNGS
    run: str = ""  # that has drained it, where `holder` is the ladder: the mark in its scheduler

    def drain(self, run: str) -> None:
        """Drain it for a turn of the queue, or for a rollout."""
        self.holder, self.run = Holder.LADDER, run

    def heal(self) -> None:
        """End the fault."""
        self.fault = self.cure = None

    def seen(self, now: float, case: RepairCase | None = None) -> NodeSeen:
        """Return what a reader sees."""
        holder = self.holder
        if holder is Holder.LADDER and (case is None or case.run != self.run):
            holder = Holder.TURN
        return NodeSeen(
            self.name,
            now,
            boot_id=f"b{self.boot}",
            findings=({self.fault: WAYS[self.fault]} if self.fault else {})
            if self.powered
            else None,
            holder=holder,
            drained_by=rollout_run(self.run),
            reason="a person's reason" if self.holder is Holder.OTHER else "",
            in_service=self.holder is Holder.NONE,
            busy=self.job,
            outstanding=self.outstanding,
            can=self.can,
            rack=self.rack,
            cohort=self.cohort,
        )


_RANKS = (
    "inspect",
    "service-restart",
    "gpu-reset",
    "module-reload",
    "reboot",
    "power-cycle",
    "slot-write",
    "reinstall",
    "ticket",
)


def rank(rung: str) -> int:
    """Return the place of a rung."""
    return _RANKS.index(rung)


def verdict(findings: Sequence[str], boot: object = 1) -> dict[str, Any]:
    """Return what `goldnode-node check --format json` prints on a simulated node with findings that drain it."""
    counts = dict.fromkeys(
        ("match", "mismatch", "not_exposed", "could_not_read", "not_verified_here", "deferred", "suppressed"), 0
    )  # fmt: skip
    return {
        "schema": "goldnode.verdict/1",
        "time": "2026-11-28T00:00:00Z",
        "status": "drain" if findings else "healthy",
        "exit_code": 2 if findings else 0,
        "counts": counts,
        "findings": [
            {
                "id": name,
                "outcome": "mismatch",
                "severity": "drain",
                "expected": "none",
                "got": "a fault (simulated)",
                "remedy": "reset",
                "steps": ["gpu_reset"],
                "subject": None,
                "evidence": [],
                "blast": "gpu",
                "domain": "hardware",
            }
            for name in findings
        ],
        "class": "h100",
        "class_digest": None,
        "lock_digest": None,
        "simulated": True,
        "passive": False,
        "boot_identity": f"boot-{boot}",
        "uptime": 1.0,
    }
