"""Nodes that are held back as known good: which, until when, and what replaces one that fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.fleet.rollout.documents import NEW, OLD, settings, written
from tests.unit.fleet.rollout.test_rollout_check import NODES, WHOLE, node

from goldnode.fleet.rollout.check import KnownOfClass, check
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import Finish, Grant, Start, StepPhase
from goldnode.fleet.rollout.simulate import Simulation, made_up
from goldnode.fleet.rollout.state import RolloutState
from goldnode.fleet.rollout.view import RolloutFacts, held_back, view
from goldnode.fleet.rollout.waves import assign, reserve
from goldnode.fleet.shared.variants import HardwareVariant

HELD = ("timeout: 1h", "timeout: 1h\nknown_good: 4")
WIDE = ("planned: 4, failed: 8, total: 10", "planned: 2, failed: 30, total: 40")
SOAK = ("percent: 100%", "percent: 100%, soak: 4h")


def test_choice_is_the_same_for_each_caller_and_spread_over_racks(tmp_path: Path) -> None:
    given = settings(tmp_path, HELD)
    held = reserve(given, NODES)
    assert held == reserve(given, reversed(NODES))
    assert len(held) == 4
    racks = Counter(one.rack for one in NODES if one.name in held)
    assert set(racks.values()) == {1}
    assert reserve(replace(given, name="another"), NODES) != held


def test_failed_node_is_replaced_by_one_in_the_earlier_state(tmp_path: Path) -> None:
    given = settings(tmp_path, HELD)
    held = reserve(given, NODES)
    changed = [replace(one, in_service=False) if one.name == held[0] else one for one in NODES]
    changed = [replace(one, digest=NEW) if one.name == held[1] else one for one in changed]
    now = reserve(given, changed)
    assert len(now) == 4
    assert set(held[:2]).isdisjoint(now)
    assert set(held[2:]) <= set(now)


def test_waves_leave_them_out_and_the_last_one_takes_them(tmp_path: Path) -> None:
    given = settings(tmp_path, HELD, SOAK)
    assert [wave.name for wave in given.waves] == ["canary", "first", "all", "known-good"]
    waves = assign(given, NODES)
    assert [len(names) for names in waves] == [2, 6, 28, 4]
    assert waves[-1] == tuple(sorted(reserve(given, NODES), key=waves[-1].index))


def test_hosts_of_a_pool_and_cohorts(tmp_path: Path) -> None:
    pool = ("{nodes: 2, spread: leaf}", "{hosts: [n00, n01]}")
    assert {"n00", "n01"}.isdisjoint(
        reserve(settings(tmp_path, ("timeout: 1h", "timeout: 1h\nknown_good: 38"), pool), NODES)
    )
    cohorts = [replace(one, cohort=f"c{int(one.name[1:]) // 2}") for one in NODES]
    held = reserve(
        settings(tmp_path, ("timeout: 1h", "timeout: 1h\nknown_good: 3"), WHOLE), cohorts
    )
    assert len(held) == 4
    assert set(Counter(int(name[1:]) // 2 for name in held).values()) == {2}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("faults", [(), ("hardware=20", "absent=1%", "busy=2%", "killed")])
def test_enough_good_nodes_remain_until_their_wave(
    tmp_path: Path, faults: tuple[str, ...], seed: int
) -> None:
    """Whatever fails, as many nodes serve in the earlier state as are asked for, as long as the class has them."""
    given = replace(settings(tmp_path, HELD, SOAK, WIDE), drain_wait=4 * 3600.0)
    seen: list[int] = []
    begun: list[float] = []

    def watch(state: RolloutState, action: object, now: float) -> None:
        wave = given.waves[state.record.wave]
        if wave.reserve:
            begun.append(now)
        elif isinstance(action, Grant | Finish | Start):
            waiting = [
                one
                for one in state.nodes.values()
                if one.digest == OLD
                and one.in_service
                and one.name not in state.ledger.by_node
                and one.name not in state.active
            ]
            seen.append(len(waiting))

    run = Simulation(given, made_up(60, OLD), parse(faults), seed, watch).run()
    assert run.end == "completed"
    assert begun
    # A node that has failed is replaced with the next decision, after the action that found it.
    assert min(seen) >= (4 if not faults else 3)


def test_replacement_in_the_last_wave_waits_for_the_wave_of_the_known_good(tmp_path: Path) -> None:
    given = replace(settings(tmp_path, HELD, SOAK, WIDE), drain_wait=4 * 3600.0)
    held: list[tuple[str, str]] = []
    granted: list[tuple[str, str]] = []

    def watch(state: RolloutState, action: object, now: float) -> None:
        if (
            isinstance(action, Finish)
            and action.phase is StepPhase.DEFERRED
            and state.kept(action.node)
        ):
            held.append((state.record.name, action.node))
        if isinstance(action, Grant) and (state.record.name, action.node) in held:
            granted.append((given.waves[state.record.wave].name, action.node))

    for seed in range(2):
        Simulation(given, made_up(60, OLD), parse(("hardware=100",)), seed, watch).run()
    assert held
    assert granted
    assert {wave for wave, _ in granted} == {"known-good"}


def test_view_names_them(tmp_path: Path) -> None:
    given = settings(tmp_path, HELD, SOAK)
    run = Simulation(given, made_up(40, OLD), parse(()), 1)
    for action in (Start(assign(run.settings, list(run.state.nodes.values()))[0]),):
        run.state.apply(action, 0.0)
    names = held_back(run.settings, run.state)
    assert len(names) == 4
    document = view(RolloutFacts(run.settings, run.state, run.observations, "ann"), 1.0)
    assert document.held_back == list(names)
    assert document.waves[-1].size == "4 held back"


@pytest.mark.parametrize(
    ("count", "changes", "says"),
    [
        (50, (), "known_good is 50, and 40 nodes of the class may be held back"),
        (30, (), "holds back 30 of 40 nodes"),
        (4, (("name: first", "name: known-good"),), "the wave of the nodes that are held back"),
        (4, (), 'wave "all" has no soak'),
    ],
)
def test_check(tmp_path: Path, count: int, changes: tuple[tuple[str, str], ...], says: str) -> None:
    held = ("timeout: 1h", f"timeout: 1h\nknown_good: {count}")
    found = [str(one) for one in check(written(tmp_path, held, *changes), nodes=NODES).findings]
    assert any(says in one for one in found), found


def test_check_names_variants_that_no_held_node_has(tmp_path: Path) -> None:
    usual, rare = HardwareVariant("VBIOS", "1"), HardwareVariant("VBIOS", "2")
    given = settings(tmp_path, HELD, SOAK)
    held = reserve(given, NODES)
    one = next(item.name for item in NODES if item.name not in held)
    variants = {item.name: frozenset([rare if item.name == one else usual]) for item in NODES}
    found = check(written(tmp_path, HELD, SOAK), nodes=NODES, known=KnownOfClass(variants=variants))
    assert any(
        "known_good do not have 1 hardware variants: VBIOS 2" in str(item)
        for item in found.findings
    )


def test_good_document_has_no_finding(tmp_path: Path) -> None:
    assert [str(one) for one in check(written(tmp_path, HELD, SOAK), nodes=NODES).findings] == []
    assert node(1).rack
