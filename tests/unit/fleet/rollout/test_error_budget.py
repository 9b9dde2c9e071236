"""The error budget: planned work of a class has no more node-hours out of service than the document says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fleet.control.controlled import controlled
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.rollout.documents import settings, written
from tests.unit.fleet.rollout.schedules import Fleet
from tests.unit.fleet.rollout.test_rollout_invariants import quick

from goldnode.fleet.rollout.budget import longest_leave, use
from goldnode.fleet.rollout.check import check
from goldnode.fleet.rollout.document import BudgetSettings, RolloutSettings
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import Hold, HoldKind, Outage
from goldnode.fleet.rollout.plan import plan
from goldnode.fleet.rollout.simulate import TICK, Simulation, made_up
from goldnode.fleet.rollout.state import RolloutState
from goldnode.fleet.rollout.view import view
from goldnode.fleet.store import rollouts
from goldnode.fleet.store.rollout_view import RolloutReader

HOUR, DAY = 3600.0, 86400.0
BUDGET = ("total: 10}", "total: 10, budget: {node_hours: 20, per: 2d}}")
DRAIN = ("timeout: 1h", "timeout: 1h\ndrain: {wait: 2h}")  # one node: at most five hours
WIDE = ("planned: 4, failed: 8, total: 10", "planned: 4, failed: 30, total: 40")


def spent(state: RolloutState, since: float, until: float) -> float:
    """Return the node-seconds of planned outages in a span, without the code under test."""
    rows = [(item.begin, item.end) for item in state.ledger.ended if item.kind is HoldKind.PLANNED]
    for holds in state.ledger.by_node.values():
        rows += [(hold.since, until) for hold in holds.values() if hold.kind is HoldKind.PLANNED]
    return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in rows)


@given(
    hours=st.floats(5, 60),
    days=st.floats(0.5, 5),
    seed=st.integers(0, 1000),
    faults=st.sampled_from(
        [
            (),
            ("hardware=40",),
            ("absent=5%",),
            ("busy=5%", "partition"),
            ("hardware=20", "absent=2%", "lying=2%"),
        ]
    ),
)
@quick(8)
def test_planned_work_never_exceeds_it(
    tmp_path_factory: pytest.TempPathFactory,
    hours: float,
    days: float,
    seed: int,
    faults: tuple[str, ...],
) -> None:
    """For any budget, period and faults: at no moment has a period before it more planned node-hours."""
    base = settings(tmp_path_factory.mktemp("budget"), DRAIN, WIDE)
    allowed = replace(base, budget=BudgetSettings(days * DAY, hours * HOUR), rollback=None)
    worst: list[float] = []

    def watch(state: RolloutState, action: object, now: float) -> None:
        worst.append(spent(state, now - days * DAY, now))

    Simulation(allowed, made_up(30, documents.OLD), parse(faults), seed, watch).run()
    # The controller decides once in a tick: a step ends up to one later than its deadline, on each node.
    assert max(worst) <= hours * HOUR + 3 * TICK * allowed.limits.planned.nodes(30)


def blocked(
    tmp_path: Path, *outages: Outage, now: float = 0.0, failures: bool = False
) -> tuple[int, float | None]:
    """Return how many nodes get leave of a rollout that begins after outages, and until when it waits."""
    base = settings(tmp_path, BUDGET, DRAIN)
    assert base.budget is not None
    fleet = Fleet(replace(base, budget=replace(base.budget, failures=failures)))
    fleet.now = now
    for item in outages:
        fleet.state.ledger.add(item)
    fleet.settle()
    found = plan(fleet.settings, fleet.state, fleet.observations, fleet.now)
    waits = [
        wait.until
        for wait in found.waits
        if wait.reason.startswith("the error budget has 20.0 node-hours in 2 days")
    ]
    return len(fleet.state.active), waits[0] if waits else None


PLANNED, FAILED = HoldKind.PLANNED, HoldKind.FAILED


@pytest.mark.parametrize(
    ("outages", "now", "failures", "active", "until"),
    [
        ((), 0.0, False, 2, None),
        # 16 of 20 node-hours are used, and a node may take 5.
        (
            (Outage(0, 8 * HOUR, PLANNED), Outage(0, 8 * HOUR, PLANNED)),
            9 * HOUR,
            False,
            0,
            2 * DAY + 8 * HOUR,
        ),
        (
            (Outage(0, 2 * HOUR, PLANNED), Outage(0, 14 * HOUR, PLANNED)),
            15 * HOUR,
            False,
            0,
            2 * DAY + 2 * HOUR,
        ),
        ((Outage(0, 16 * HOUR, PLANNED),), 2 * DAY + 16 * HOUR, False, 2, None),
        ((Outage(0, 10 * HOUR, PLANNED),), 11 * HOUR, False, 2, None),
        ((Outage(0, 16 * HOUR, FAILED),), 17 * HOUR, False, 2, None),
        ((Outage(0, 16 * HOUR, FAILED),), 17 * HOUR, True, 0, 2 * DAY + 16 * HOUR),
    ],
)
def test_rollout_waits_until_outages_are_a_period_old(
    tmp_path: Path,
    outages: tuple[Outage, ...],
    now: float,
    failures: bool,
    active: int,
    until: float | None,
) -> None:
    assert blocked(tmp_path, *outages, now=now, failures=failures) == (active, until)


def test_share_is_of_all_node_hours(tmp_path: Path) -> None:
    share = settings(tmp_path, ("total: 10}", "total: 10, budget: {share: 0.5%, per: 28d}}"))
    assert share.budget is not None
    assert share.budget.seconds(100) == pytest.approx(0.005 * 100 * 28 * DAY)


def test_other_holds_are_reserved_or_used(tmp_path: Path) -> None:
    fleet = Fleet(settings(tmp_path, BUDGET, DRAIN))
    fleet.state.ledger.put(Hold("n00", "lock", HoldKind.PLANNED, 0.0, "leave"))
    fleet.state.ledger.put(Hold("n01", "health", HoldKind.FAILED, 0.0, "ecc"))
    found = use(fleet.settings, fleet.state, HOUR)
    assert found is not None
    assert (found.used, found.reserved) == (0.0, longest_leave(fleet.settings))
    assert fleet.settings.budget is not None
    counted = replace(fleet.settings, budget=replace(fleet.settings.budget, failures=True))
    found = use(counted, fleet.state, HOUR)
    assert found is not None
    assert found.used == HOUR


def test_rollback_is_not_held_up(tmp_path: Path) -> None:
    wide: RolloutSettings = settings(tmp_path, BUDGET, DRAIN)
    run = Simulation(wide, made_up(40, documents.OLD), parse(("image=100%",)), 1).run()
    assert run.end == "rolled-back"
    assert run.denied == 0


def test_store_counts_the_outages_of_every_rollout_of_the_class(
    tmp_path: Path, migrated: Path
) -> None:
    where = tmp_path / "fleet.db"
    where.write_bytes(migrated.read_bytes())
    found = controlled(
        tmp_path, str(where), 12, ("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m")
    )
    store = found.store()
    controller = found.controller(store, "c/1")
    for _ in range(200):
        found.world.now += 61
        if controller.tick().ended:
            break
    later = replace(
        found.settings, name=found.settings.name, budget=BudgetSettings(28 * DAY, 400 * HOUR)
    )
    with store.read() as connection:
        state = rollouts.load(connection, later).state
    kinds = [item.kind for item in state.ledger.ended]
    assert kinds == [HoldKind.PLANNED] * 12
    assert [item.end for item in state.ledger.ended] == sorted(
        item.end for item in state.ledger.ended
    )
    facts = replace(RolloutReader(found.settings.name).read(store), settings=later, state=state)
    document = view(facts, found.world.now)
    assert document.budget is not None
    assert document.budget.used == pytest.approx(
        sum(item.end - item.begin for item in state.ledger.ended) / HOUR
    )
    controller.close()


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("{node_hours: 4, per: 2d}", "no node ever fits"),
        ("{node_hours: 12, per: 2d}", "40 nodes of 20 minutes take 13.3 node-hours"),
    ],
)
def test_check(tmp_path: Path, budget: str, says: str) -> None:
    change = ("total: 10}", f"total: 10, budget: {budget}}}")
    found = [str(one) for one in check(written(tmp_path, change, DRAIN), size=40).findings]
    assert any(says in one for one in found), found
