"""The ladder: its cases one by one, and its invariants under random schedules of faults, persons, jobs and kills."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from tests.unit.fleet.rollout.ladder_world import WAYS, SimulatedNode, World

from goldnode.fleet.rollout.ladder import (
    CasePhase,
    Holder,
    LadderBounds,
    LadderMode,
    LadderPolicy,
    LadderState,
    MoveCase,
    RepairCase,
    StopLadder,
    decide,
)
from goldnode.fleet.rollout.queue import QueuedWork

RUN = LadderPolicy(LadderMode.RUN)


def world(count: int = 1, policy: LadderPolicy = RUN, seed: int = 1) -> World:
    made = World(random.Random(seed), {})  # noqa: S311 - no secret
    for number in range(count):
        name = f"n{number}"
        made.nodes[name] = SimulatedNode(name, rack=f"r{number}")
        made.policies[name] = policy
    return made


def ticks(made: World, count: int) -> None:
    for _ in range(count):
        made.tick()
        assert not made.violations, made.violations
        assert not made.at_rest(), made.at_rest()


def rungs(made: World) -> list[str]:
    return [row.rung for row in made.state.rungs]


def holder(made: World) -> Holder:
    return made.nodes["n0"].holder


@pytest.mark.parametrize("cure", WAYS["gpu.recovery_action"])
def test_fault_climbs_to_the_rung_that_cures_it(cure: str) -> None:
    made = world()
    made.nodes["n0"].fault, made.nodes["n0"].cure = "gpu.recovery_action", cure
    made.rng.random = lambda: 0.5  # type: ignore[method-assign]
    ticks(made, 300)
    way = WAYS["gpu.recovery_action"]
    assert rungs(made) == list(way[: way.index(cure) + 1])
    assert [row.phase for row in made.state.ended] == [CasePhase.CURED]
    assert holder(made) is Holder.NONE


def test_fault_that_no_rung_cures_ends_with_a_ticket() -> None:
    made = world()
    made.nodes["n0"].fault = "gpu.recovery_action"
    ticks(made, 400)
    assert made.state.cases["n0"].phase is CasePhase.TICKET
    assert holder(made) is Holder.LADDER
    assert made.state.cases["n0"].leave  # the order for which it stays drained
    # A person releases the node: the ladder returns what it had drained.
    made.release("n0")
    made.nodes["n0"].heal()
    ticks(made, 10)
    assert holder(made) is Holder.NONE
    assert "n0" not in made.state.cases


def test_fault_that_is_gone_before_the_rung_is_left_alone() -> None:
    made = world()
    made.nodes["n0"].fault = "gpu.lost"
    made.nodes["n0"].job = True
    ticks(made, 5)
    assert made.state.cases["n0"].phase is CasePhase.DRAIN
    made.nodes["n0"].heal()
    ticks(made, 10)
    assert rungs(made) == []
    assert made.state.ended[0].phase is CasePhase.VOID
    assert holder(made) is Holder.NONE


def test_evidence_of_another_boot_is_void() -> None:
    made = world()
    made.nodes["n0"].fault = "gpu.lost"
    made.nodes["n0"].job = True
    ticks(made, 6)
    made.nodes["n0"].boot += 1
    made.nodes["n0"].job = False
    before = made.state.cases["n0"].evidence
    ticks(made, 1)
    assert made.state.cases["n0"].phase is CasePhase.INSPECT
    ticks(made, 6)
    assert made.state.rungs[0].evidence != before
    assert made.state.rungs[0].boot_id == "b2"


def test_person_who_takes_the_node_ends_the_repair() -> None:
    made = world()
    made.nodes["n0"].fault = "gpu.lost"
    made.nodes["n0"].job = True
    ticks(made, 6)
    made.nodes["n0"].holder = Holder.OTHER
    ticks(made, 100)
    assert rungs(made) == []
    assert holder(made) is Holder.OTHER
    assert "n0" not in made.state.cases


def test_job_is_waited_for_and_the_node_returns_when_it_takes_too_long() -> None:
    made = world(policy=LadderPolicy(LadderMode.RUN, bounds=LadderBounds(drain=1800)))
    made.nodes["n0"].fault = "gpu.lost"
    made.nodes["n0"].job = True
    ticks(made, 45)
    assert rungs(made) == []
    assert made.state.ended[0].phase is CasePhase.VOID
    assert holder(made) is Holder.NONE


def test_node_that_its_gate_drained_is_repaired_and_returned_by_its_gate() -> None:
    made = world()
    node = made.nodes["n0"]
    node.fault, node.cure, node.holder = "gpu.lost", "reboot", Holder.GATE
    made.rng.random = lambda: 0.5  # type: ignore[method-assign]
    ticks(made, 60)
    assert rungs(made) == ["reboot"]
    assert holder(made) is Holder.NONE
    assert made.state.ended[0].phase is CasePhase.CURED


def test_class_forbids_rungs() -> None:
    made = world(policy=LadderPolicy(LadderMode.RUN, frozenset({"module-reload", "power-cycle"})))
    made.nodes["n0"].fault = "gpu.recovery_action"
    ticks(made, 400)
    assert rungs(made) == ["gpu-reset", "reboot"]


def test_rung_that_a_node_cannot_do_is_passed_over() -> None:
    made = world()
    made.nodes["n0"].fault = "gpu.lost"
    made.nodes["n0"].can = frozenset({"power-cycle"})
    ticks(made, 200)
    assert rungs(made) == ["power-cycle"]
    assert made.state.cases["n0"].phase is CasePhase.TICKET


def test_recurrence_begins_a_rung_higher_and_the_third_is_a_ticket() -> None:
    made = world()
    node = made.nodes["n0"]
    made.rng.random = lambda: 0.5  # type: ignore[method-assign]
    for _ in range(2):
        node.fault, node.cure = "gpu.recovery_action", "gpu-reset"
        ticks(made, 90)
        assert node.fault is None
    assert rungs(made) == ["gpu-reset", "module-reload"]
    node.fault, node.cure = "gpu.recovery_action", "gpu-reset"
    ticks(made, 90)
    assert rungs(made) == ["gpu-reset", "module-reload"]
    assert made.state.cases["n0"].phase is CasePhase.TICKET
    assert "case 3" in made.state.cases["n0"].why


def test_many_nodes_with_one_new_finding_stop_the_ladder() -> None:
    made = world(32)
    for node in made.nodes.values():
        node.fault, node.cure = "driver.loaded", "reboot"
    ticks(made, 120)
    assert rungs(made) == []
    stop = next(item for item in made.log if isinstance(item, StopLadder))
    assert stop.subject == "finding driver.loaded"
    assert len(stop.nodes) == 32
    # A person lifts it: then the bounds hold, one node after the other.
    made.state.stops.clear()
    ticks(made, 600)
    assert rungs(made)


def test_rack_with_different_findings_stops_the_ladder() -> None:
    made = world(4)
    for node, fault in zip(made.nodes.values(), WAYS, strict=False):
        node.fault, node.rack = fault, "r7"
    ticks(made, 60)
    assert "rack r7" in made.state.stops
    assert rungs(made) == []


def test_plan_mode_records_and_changes_nothing() -> None:
    made = world(policy=LadderPolicy(LadderMode.PLAN))
    made.nodes["n0"].fault = "gpu.lost"
    ticks(made, 100)
    case = made.state.cases["n0"]
    assert case.planned
    assert case.rung == "reboot"
    assert holder(made) is Holder.NONE
    made.nodes["n0"].heal()
    ticks(made, 2)
    assert "n0" not in made.state.cases


def test_ladder_is_off_by_default() -> None:
    made = world(policy=LadderPolicy())
    made.nodes["n0"].fault = "gpu.lost"
    ticks(made, 20)
    assert made.log == []


def test_ladder_that_is_turned_off_returns_its_nodes() -> None:
    made = world()
    made.nodes["n0"].fault = "gpu.lost"
    made.nodes["n0"].job = True
    ticks(made, 6)
    assert holder(made) is Holder.LADDER
    made.policies["n0"] = LadderPolicy()
    ticks(made, 5)
    assert holder(made) is Holder.NONE
    assert made.state.cases == {}


def test_node_with_outstanding_tests_stays_out() -> None:
    made = world()
    node = made.nodes["n0"]
    node.fault, node.cure, node.outstanding = "gpu.lost", "reboot", "smoke has not run"
    made.rng.random = lambda: 0.5  # type: ignore[method-assign]
    ticks(made, 100)
    assert holder(made) is Holder.LADDER
    assert made.state.cases["n0"].phase is CasePhase.CHECK
    node.outstanding = ""
    ticks(made, 5)
    assert holder(made) is Holder.NONE


def test_node_that_stays_silent_climbs() -> None:
    made = world()
    node = made.nodes["n0"]
    node.fault = "gpu.lost"
    ticks(made, 8)
    node.readable = True
    made.rng.random = lambda: 0.5  # type: ignore[method-assign]
    ticks(made, 20)
    assert rungs(made)[0] == "reboot"


_SMALL = LadderBounds(per_hour=6, together=3, per_node=5, node_window=86400.0)


def schedule(seed: int) -> World:
    """Run one random schedule: faults, persons, jobs, silence, kills, frozen capacity."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    bounds = replace(
        _SMALL,
        attempts=rng.choice((1, 2)),
        together=rng.choice((1, 3)),
        common=rng.choice((2, 3, 99)),
    )
    forbidden = frozenset(rng.sample(sorted(WAYS["gpu.recovery_action"]), rng.choice((0, 1, 2))))
    made = world(6, LadderPolicy(LadderMode.RUN, forbidden, bounds), seed)
    made.step = rng.choice((60.0, 300.0, 900.0))
    made.capacity = rng.choice((1, 2, 6))
    for number, node in enumerate(made.nodes.values()):
        node.cohort = f"c{number // 2}" if rng.random() < 0.5 else None
    for _ in range(60):
        node = rng.choice(list(made.nodes.values()))
        event = rng.random()
        if event < 0.25 and node.fault is None:
            node.fault = rng.choice(list(WAYS))
            node.cure = rng.choice((None, *WAYS[node.fault]))
            node.holder = (
                Holder.GATE if node.holder is Holder.NONE and rng.random() < 0.3 else node.holder
            )
        elif event < 0.33 and node.holder is not Holder.OTHER:
            node.holder = Holder.OTHER
        elif event < 0.45 and node.holder is Holder.OTHER:
            node.holder = Holder.NONE
        elif event < 0.55:
            node.job = node.holder is Holder.NONE and not node.job
        elif event < 0.6:
            node.heal()
        elif event < 0.68:
            made.kill()
        elif event < 0.72:
            made.state.stops.clear()
        elif event < 0.76:
            node.outstanding = "" if node.outstanding else "smoke has not run"
        elif event < 0.8:
            node.readable = not node.readable
        elif event < 0.84 and node.name not in made.acting:
            node.boot += 1
        elif event < 0.88 and node.name in made.state.cases:
            # A person releases the hold in the middle of a repair.
            made.release(node.name)
        elif event >= 0.94:
            work = rng.choice((QueuedWork.APPLY, QueuedWork.ROLLBACK, QueuedWork.DISK_UPDATE))
            made.queue.ask(node.name, work)
        made.tick()
        assert not made.violations, (seed, made.violations)
        assert not made.at_rest(), (seed, made.at_rest())
    return made


def quiet(made: World) -> None:
    """Let the world rest: every case ends within the bounds, or waits for a person by name."""
    made.state.stops.clear()
    made.capacity = 6
    for node in made.nodes.values():
        node.job, node.outstanding, node.readable = False, "", True
        node.holder = Holder.NONE if node.holder is Holder.OTHER else node.holder
    made.step = 900.0
    for _ in range(400):
        made.tick()
        made.state.stops.clear()
        assert not made.violations, made.violations
        assert not made.at_rest(), made.at_rest()
    for case in made.state.cases.values():
        assert case.phase is CasePhase.TICKET, case


@pytest.mark.parametrize("block", range(4))
def test_invariants_hold_in_random_schedules(block: int) -> None:
    made = [schedule(seed) for seed in range(block * 20, block * 20 + 20)]
    assert sum(len(one.state.rungs) for one in made) > 20  # the schedules do exercise the rungs
    assert sum(one.queue.shared for one in made) > 0  # and turns that a repair shares


@pytest.mark.long
def test_invariants_hold_in_2000_random_schedules() -> None:
    begun, shared = 0, 0
    for seed in range(1000, 3000):
        made = schedule(seed)
        begun, shared = begun + len(made.state.rungs), shared + made.queue.shared
    assert begun > 5000
    assert shared > 500


def test_every_case_ends_or_waits_for_a_person() -> None:
    for seed in range(12):
        quiet(schedule(seed))


def test_check_of_the_boot_before_does_not_judge_a_boot() -> None:
    before = RepairCase(
        "n0", "gpu.lost", ("reboot",), 0.0, CasePhase.CHECK, "reboot", 100.0, 900.0, "b1", "e", True
    )
    state = LadderState({"n0": before})
    seen = SimulatedNode("n0", holder=Holder.LADDER).seen(200.0, before)
    assert decide({"n0": RUN}, state, {"n0": seen}, 200.0) == []
    (move,) = decide({"n0": RUN}, state, {"n0": replace(seen, boot_id="b2")}, 200.0)
    assert isinstance(move, MoveCase)
    assert move.phase is CasePhase.RETURN


FAULTS = 4.18 / 1000  # a node and day: InfiniteHBD-Trace, 400 GPU servers, 349 days
# Share of faults -> finding and the rung that cures it. Assumed: no public trace has the cure of each fault.
CURES = (
    (0.45, "gpu.recovery_action", "gpu-reset"),
    (0.15, "gpu.recovery_action", "reboot"),
    (0.15, "gpu.lost", "reboot"),
    (0.10, "gpu.lost", "power-cycle"),
    (0.05, "driver.loaded", "module-reload"),
    (0.10, "gpu.sram", None),
)


def month(count: int) -> tuple[World, float, float]:
    """Return the fleet after 30 simulated days, its lost node-hours, and those of repairs on the next working day."""
    rng = random.Random(37)  # noqa: S311 - no secret
    made = world(count, LadderPolicy(LadderMode.RUN, bounds=LadderBounds(together=count // 100)))
    made.watch, made.step = set(), 300.0
    names, lost, by_hand = list(made.nodes), 0.0, 0.0
    for number in range(30 * 288):
        day, hour = divmod(number * made.step / 3600.0, 24.0)
        if rng.random() < FAULTS * count / 288:
            node = made.nodes[rng.choice(names)]
            if node.fault is None and node.name not in made.state.cases:
                share = rng.random()
                for part, fault, cure in CURES:
                    share -= part
                    if share < 0:
                        node.fault, node.cure, node.holder = fault, cure, Holder.GATE
                        break
                else:
                    continue
                made.watch.add(node.name)
                # On the next working day at 9, four hours.
                wait = next(d for d in range(1, 4) if (int(day) + d) % 7 < 5) * 24.0 + 9.0 - hour
                by_hand += min(wait + 4.0, (30.0 - day) * 24.0 - hour)
        made.tick()
        lost += sum(made.nodes[name].holder is not Holder.NONE for name in made.watch) / 12.0
        made.watch -= {
            name
            for name in made.watch
            if made.nodes[name].fault is None and made.nodes[name].holder is Holder.NONE
        }
        for name, case in list(made.state.cases.items()):
            # Persons repair what has a ticket, on the next working day too.
            if case.phase is CasePhase.TICKET and made.now - case.changed_at > 86400.0:
                made.nodes[name].heal()
                made.release(name)
        assert not made.violations, made.violations
    return made, lost, by_hand


@pytest.mark.long
def test_10000_nodes_over_30_days_cost_20_seconds() -> None:
    begun = time.process_time()
    made, lost, by_hand = month(10_000)
    assert time.process_time() - begun < 20
    assert len(made.state.ended) > 1000
    assert not [stop for stop in made.log if isinstance(stop, StopLadder)]
    assert lost < by_hand / 5, (lost, by_hand)
