"""A simulated fleet for the ladder: faults, persons, jobs, kills. It carries out what `decide` returns.

The same function decides here and in the controller. The hardware is simulated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from goldnode.fleet.rollout.ladder import (
    BOOTS,
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

RUNGS = frozenset(
    ("service-restart", "gpu-reset", "module-reload", "reboot", "power-cycle", "slot-write")
)
WAYS = {
    "gpu.recovery_action": ("gpu-reset", "module-reload", "reboot", "power-cycle"),
    "gpu.lost": ("reboot", "power-cycle"),
    "fabric.manager": ("service-restart", "gpu-reset", "reboot", "power-cycle"),
    "driver.loaded": ("module-reload", "reboot", "power-cycle", "slot-write"),
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

    def seen(self) -> dict[str, NodeSeen]:
        """Return what is read of the nodes that matter."""
        watched = [*self.watch, *self.state.cases] if self.watch is not None else self.nodes
        return {
            name: self.nodes[name].seen(self.now)
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
            self.state.apply(action, self.now)
            self.log.append(action)
            if isinstance(action, MoveCase):
                self._act(action)
        for name, case in list(self.state.cases.items()):
            self._serve(name, case)

    # -- the controller's work

    def _serve(self, name: str, case: RepairCase) -> None:
        node = self.nodes[name]
        if case.planned:
            return
        if case.phase is CasePhase.INSPECT and not case.evidence and self.rng.random() < 0.9:
            self.state.apply(StoreEvidence(name, f"{name}-{self.now}"), self.now)
        elif case.phase is CasePhase.DRAIN and not case.leave and node.holder is not Holder.LADDER:
            leaves = sum(one.leave for one in self.state.cases.values())
            if leaves < self.capacity and node.holder in (Holder.NONE, Holder.GATE):
                self.state.apply(ChangeLeave(name, True), self.now)
                if node.holder is Holder.NONE:
                    node.holder = Holder.LADDER
        elif case.phase is CasePhase.RETURN:
            if node.holder is Holder.LADDER:
                node.holder = Holder.NONE
            self.state.apply(ChangeLeave(name, False), self.now)

    def _act(self, move: MoveCase) -> None:
        node = self.nodes[move.node]
        if move.phase is CasePhase.ACT:
            self.acting[move.node] = self.now + self.rng.choice((60.0, 300.0, 900.0))
            if move.rung == "power-cycle":
                node.powered = False
        elif move.phase in (CasePhase.VOID, CasePhase.CURED) and node.holder is Holder.LADDER:
            node.holder = Holder.NONE  # the store ends the leave with the case, and it is returned

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
            if node.holder is Holder.LADDER and node.readable and not ordered:
                wrong.append(f"{name} is drained without an order")
            if not node.powered and name not in self.acting:
                wrong.append(f"{name} is off without an order")
        return wrong


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

    def heal(self) -> None:
        """End the fault."""
        self.fault = self.cure = None

    def seen(self, now: float) -> NodeSeen:
        """Return what a reader sees."""
        return NodeSeen(
            self.name,
            now,
            boot_id=f"b{self.boot}",
            findings=({self.fault: WAYS[self.fault]} if self.fault else {})
            if self.powered
            else None,
            holder=self.holder,
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
