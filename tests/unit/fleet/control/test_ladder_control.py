"""The controller of the ladder on a real store, with simulated nodes, and killed at any point."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tests.unit.fleet.rollout.ladder_world import SimulatedNode, rank

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.ladder import LadderController
from goldnode.fleet.control.ticket_desk import StoreTicketDesk, plain_request
from goldnode.fleet.rollout.ladder import (
    BOOTS,
    CasePhase,
    Holder,
    LadderBounds,
    LadderMode,
    LadderPolicy,
    NodeSeen,
    RepairCase,
)
from goldnode.fleet.rollout.queue import QUEUE, QueuedWork, WorkNeed
from goldnode.fleet.shared import identity
from goldnode.fleet.store import grants, nodes, orders, queue, repairs, tables, tickets
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.fleet.store.queue import NodeAsk, QueueClaim

CLASS = "h100"
REAL_WORKS = identity.works


class Kill(BaseException):
    """SIGKILL of the controller."""


class Inline:
    """A pool that runs at once, so that a test decides when a controller dies."""

    def submit(self, call: Callable[..., str], *given: Any) -> Future[str]:
        future: Future[str] = Future()
        try:
            future.set_result(call(*given))
        except Exception as problem:
            future.set_exception(problem)
        return future

    def shutdown(self, **_: object) -> None:
        """Nothing runs."""


@dataclass
class Site:
    """Simulated nodes, with the store, the clock and the kills of one test."""

    store: StoreDatabase
    nodes: dict[str, SimulatedNode]
    policy: LadderPolicy = field(default_factory=lambda: LadderPolicy(LadderMode.RUN))
    now: float = 10_000.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311 - no secret
    kill_share: float = 0.0
    acts: list[tuple[str, str, float]] = field(default_factory=list)
    made: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    live: LadderController | None = None
    # Ends of outages: of the scheduler, and by node of its BMC and of itself. All are killed and come back.
    scheduler_back: float = 0.0
    bmc_back: dict[str, float] = field(default_factory=dict)
    node_back: dict[str, float] = field(default_factory=dict)
    outages: int = 0

    def kill_part(self) -> None:
        """Kill the scheduler, a BMC or a node, by chance, for up to two hours."""
        end = self.now + self.rng.choice((300.0, 1800.0, 7200.0))
        name = self.rng.choice(list(self.nodes))
        self.outages += 1
        match self.rng.randrange(3):
            case 0:
                self.scheduler_back = end
            case 1:
                self.bmc_back[name] = end
            case _:
                self.node_back[name] = end
                self.nodes[name].boot += 1  # it comes up by itself

    def controller(self) -> LadderController:
        """Return the live controller; a new one after a kill."""
        if self.live is None:
            self.made += 1
            self.live = LadderController(
                self.store,
                dict.fromkeys(self.nodes, self.policy),
                self,
                self,
                clock=lambda: self.now,
                worker=f"w{self.made}",
            )
            self.live._pool = Inline()  # type: ignore[assignment]
        return self.live

    def point(self) -> None:
        """Die here, by chance."""
        if self.rng.random() < self.kill_share:
            raise Kill

    def tick(self, seconds: float = 60.0) -> None:
        """Run one tick of a controller that may die in it."""
        self.now += seconds
        for node in self.nodes.values():
            if node.holder is Holder.GATE and not node.fault:
                node.holder = Holder.NONE
        try:
            self.controller().tick()
        except Kill:
            self.live = None

    def read(self, cases: Mapping[str, RepairCase]) -> dict[str, NodeSeen]:
        self.point()
        if self.now < self.scheduler_back:
            return {}  # as LadderNodes: no state is known without it
        seen = {
            name: node.seen(self.now, cases.get(name))
            for name, node in self.nodes.items()
            if node.fault or name in cases or node.holder is Holder.LADDER
        }
        for name in seen:
            if self.now < self.node_back.get(name, 0.0):
                # Its check does not answer; its scheduler does.
                seen[name] = replace(seen[name], findings=None, boot_id=None)
        return seen

    def scheduler(self) -> None:
        """Raise GoldnodeError while the scheduler does not answer."""
        if self.now < self.scheduler_back:
            raise GoldnodeError("slurmctld does not answer (simulated)")

    def evidence(self, case: RepairCase) -> str:
        self.point()
        return f"{case.node}-{self.now}"

    def drain(self, case: RepairCase) -> None:
        self.point()
        self.scheduler()
        if self.nodes[case.node].holder is Holder.NONE:
            self.nodes[case.node].drain(case.run)
        self.point()

    def resume(self, case: RepairCase) -> None:
        self.point()
        self.scheduler()
        node = self.nodes[case.node]
        if node.holder is Holder.LADDER and node.run == case.run:
            node.holder = Holder.NONE
        self.point()

    def act(self, case: RepairCase) -> str:
        node = self.nodes[case.node]
        assert node.holder in (Holder.LADDER, Holder.GATE)
        self.point()
        self.acts.append((case.node, case.rung, case.changed_at))
        if case.rung == "power-cycle":
            self.bmc(case.node)
            node.powered = False
            if self.kill_share and self.rng.random() < 0.3:  # between off and on
                self.bmc_back[case.node] = self.now + 1800.0
        elif self.now < self.node_back.get(case.node, 0.0):
            raise GoldnodeError("ssh: no route to host (simulated)")
        self.point()
        self.bmc_or_on(case.node)
        if case.rung in BOOTS:
            node.boot += 1
        if node.cure is not None and rank(case.rung) >= rank(node.cure):
            node.heal()
        self.point()
        if self.rng.random() < 0.1:
            raise GoldnodeError("it did not work")
        return "done"

    def restore(self, case: RepairCase) -> str:
        self.point()
        self.bmc_or_on(case.node)
        return "interrupted"

    def bmc(self, name: str) -> None:
        """Raise GoldnodeError while the BMC of a node does not answer."""
        if self.now < self.bmc_back.get(name, 0.0):
            raise GoldnodeError("the BMC gives no answer (simulated)")

    def bmc_or_on(self, name: str) -> None:
        """Switch a node on that an order has switched off. Without its BMC it stays off, and that is an error."""
        if not self.nodes[name].powered:
            self.bmc(name)
            self.nodes[name].powered = True

    def holds(self) -> dict[str, str]:
        with self.store.read() as connection:
            hold = tables.hold
            query = select(hold.c.node, hold.c.kind).where(hold.c.owner.in_((repairs.OWNER, QUEUE)))
            return {row.node: row.kind for row in connection.execute(query)}

    def queued(self) -> list[dict[str, Any]]:
        with self.store.read() as connection:
            rows: list[dict[str, Any]] = queue.listed(connection, self.now)["requests"]
        return rows

    def without_order(self) -> list[str]:
        """Return what is drained or off, and has no hold of the ladder."""
        held = self.holds()
        drained = [n for n, node in self.nodes.items() if node.holder is Holder.LADDER]
        off = [n for n, node in self.nodes.items() if not node.powered]
        return [name for name in (*drained, *off) if name not in held]


@pytest.fixture
def site(migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return made(migrated, tmp_path, monkeypatch, 4)


def made(migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> Site:
    path = tmp_path / "fleet.db"
    shutil.copy(migrated, path)
    store = StoreDatabase(str(path))
    names = [f"n{number}" for number in range(count)]
    limits = {CLASS: FleetLimits("3", "4", "4")}
    store.run(
        lambda connection: nodes.put(
            connection, [StoredNode(name, CLASS) for name in names], limits, who="test", now=1.0
        )
    )
    own = Site(store, {name: SimulatedNode(name) for name in names})

    # A process of these tests is alive while its controller is.
    def works(run: str) -> bool | None:
        if not run.startswith("w"):
            return REAL_WORKS(run)
        return own.live is not None and own.live.worker == run

    monkeypatch.setattr(identity, "works", works)
    return own


def test_fault_is_repaired_and_its_node_returns(site: Site) -> None:
    node = site.nodes["n0"]
    node.fault, node.cure = "gpu.recovery_action", "reboot"
    site.rng.random = lambda: 0.5  # type: ignore[method-assign]
    for _ in range(60):
        site.tick()
    assert [rung for _, rung, _ in site.acts] == ["gpu-reset", "module-reload", "reboot"]
    assert node.holder is Holder.NONE
    assert site.holds() == {}
    assert site.controller().state.ended[0].phase is CasePhase.CURED


def test_log_alone_gives_the_state(site: Site) -> None:
    site.nodes["n0"].fault = "gpu.recovery_action"
    site.nodes["n1"].fault, site.nodes["n1"].cure = "gpu.lost", "reboot"
    for _ in range(80):
        site.tick()
    record = repairs.LadderRecord()
    with site.store.read() as connection:
        record.read(connection)
    assert record.state == site.controller().state
    assert record.state.cases["n0"].phase is CasePhase.TICKET
    assert site.holds() == {"n0": "failed"}


def test_limits_of_the_store_hold(site: Site) -> None:
    site.policy = LadderPolicy(LadderMode.RUN, bounds=LadderBounds(common=99))
    with site.store.write() as connection:
        for name in ("n2", "n3"):
            connection.execute(
                tables.hold.insert().values(
                    node=name, owner="outside", kind="person", since=1.0, reason="a person"
                )
            )
    for name in ("n0", "n1"):
        site.nodes[name].fault, site.nodes[name].cure = "gpu.lost", "power-cycle"
    for _ in range(8):
        site.tick()
        assert len(site.holds()) <= 2
    for _ in range(80):
        site.tick()
    assert {name for name, _, _ in site.acts} == {"n0", "n1"}
    assert site.holds() == {}


def test_node_that_a_rollout_holds_is_left_to_it(site: Site) -> None:
    with site.store.write() as connection:
        connection.execute(
            tables.hold.insert().values(
                node="n0", owner="r1", kind="failed", since=1.0, reason="rollout r1"
            )
        )
    site.nodes["n0"].fault = "gpu.lost"
    for _ in range(30):
        site.tick()
    assert site.acts == []


def test_release_of_a_ticket_returns_the_node(site: Site) -> None:
    site.nodes["n0"].fault = "gpu.lost"
    for _ in range(80):
        site.tick()
    assert site.without_order() == []
    assert site.holds() == {"n0": "failed"}
    order = PersonsOrder("ann@host", site.now, "the riser was replaced")
    site.store.run(lambda connection: grants.release(connection, "n0", order))
    site.nodes["n0"].heal()
    for _ in range(6):
        site.tick()
    assert site.nodes["n0"].holder is Holder.NONE
    assert "n0" not in site.controller().state.cases


def test_two_controllers_do_not_carry_out_one_rung_twice(site: Site) -> None:
    node = site.nodes["n0"]
    node.fault, node.cure = "gpu.lost", "power-cycle"
    other = Site(site.store, site.nodes, made=100)
    other.acts = site.acts
    for _ in range(60):
        site.tick(30.0)
        other.now = site.now + 1.0
        other.tick(0.0)
    assert len(site.acts) == len(set(site.acts)) == 2


def test_drain_that_came_too_late_is_returned_and_that_of_others_is_not(site: Site) -> None:
    site.rng.random = lambda: 0.5  # type: ignore[method-assign]
    late, other = site.nodes["n0"], site.nodes["n1"]
    late.fault, late.cure = "gpu.lost", "reboot"
    for _ in range(40):
        site.tick()
    assert site.controller().state.ended[0].phase is CasePhase.CURED
    assert late.holder is Holder.NONE
    late.drain("queue turn 1")
    other.drain("queue turn 7")
    site.tick()
    assert late.holder is Holder.NONE
    assert other.holder is Holder.LADDER, "no turn of the ladder"


def test_repair_is_in_the_list_of_the_queue(site: Site) -> None:
    site.policy = LadderPolicy(LadderMode.RUN, bounds=LadderBounds(common=99))
    site.nodes["n0"].fault = "gpu.lost"
    site.nodes["n0"].job = True
    frozen = orders.Scope("class", CLASS)
    order = PersonsOrder("ann@host", site.now, "an audit")
    site.store.run(lambda connection: orders.freeze(connection, frozen, order))
    for _ in range(5):
        site.tick()
    (row,) = site.queued()
    assert (row["work"], row["node"], row["who"], row["state"]) == (
        "repair",
        "n0",
        "ladder",
        "waiting",
    )
    assert row["reason"] == "gpu.lost: reboot"
    assert "an audit" in row["wait"]
    site.store.run(lambda connection: orders.unfreeze(connection, frozen, order))
    site.tick()
    site.tick()
    (row,) = site.queued()
    assert (row["state"], row["under"]) == ("running", "queue")
    with pytest.raises(GoldnodeError, match="End it with `goldnode fleet release n0"):
        site.store.run(lambda connection: queue.cancel(connection, row["request"], order))
    assert site.nodes["n0"].run == f"queue turn {row['turn']}"


def asked(site: Site, number: int, work: QueuedWork = QueuedWork.APPLY) -> QueueClaim:
    """Ask for a node as site.yml does."""
    needs = (WorkNeed.DRAIN, WorkNeed.DRIVER)
    given = NodeAsk(
        work, "driver 580", "ann", "m/1", f"n{number}", needs=needs, lease=10**6, limit=10**6
    )
    return site.store.run(lambda connection: queue.ask(connection, given, site.now))


@pytest.mark.parametrize("cure", ["reboot", None])
def test_driver_change_and_repair_share_one_drain(site: Site, cure: str | None) -> None:
    site.rng.random = lambda: 0.5  # type: ignore[method-assign]
    node, claim = site.nodes["n0"], asked(site, 0)
    node.fault, node.cure = "gpu.lost", cure
    for _ in range(40):
        site.tick()
    standing = site.store.run(lambda connection: queue.poll(connection, claim, site.now))
    # The repair came first, and has left the node out of service for the change.
    assert standing.may_begin
    assert (node.holder, node.run) == (Holder.LADDER, standing.run)
    assert len({row["turn"] for row in site.queued()}) == 1
    site.store.run(lambda connection: queue.begin(connection, claim, site.now))
    done = queue.WorkOutcome(True, "installed")
    ending = site.store.run(lambda connection: queue.finish(connection, claim, done, site.now))
    if cure is None:
        assert not ending.returns, "the repair has failed, and a person has its ticket"
        assert site.holds() == {"n0": "failed"}
        assert site.controller().state.cases["n0"].phase is CasePhase.TICKET
        return
    assert [row.phase for row in site.controller().state.ended] == [CasePhase.CURED]
    assert ending.returns
    site.tick()
    assert node.holder is Holder.LADDER, "its return is that of site.yml"


def test_repair_waits_for_a_change_that_has_the_node_and_joins_it(site: Site) -> None:
    site.rng.random = lambda: 0.5  # type: ignore[method-assign]
    node, claim = site.nodes["n0"], asked(site, 0)
    node.fault, node.cure = "gpu.lost", "reboot"
    for _ in range(2):
        site.tick()  # a case, and its evidence
    standing = site.store.run(lambda connection: queue.begin(connection, claim, site.now))
    node.drain(standing.run)
    for _ in range(5):
        site.tick()
    assert site.acts == []
    assert sorted((row["work"], row["state"]) for row in site.queued()) == [
        ("apply", "running"),
        ("repair", "granted"),
    ]
    done = queue.WorkOutcome(True, "installed")
    ending = site.store.run(lambda connection: queue.finish(connection, claim, done, site.now))
    assert not ending.returns
    for _ in range(30):
        site.tick()
    assert site.controller().state.ended[0].phase is CasePhase.CURED
    assert node.holder is Holder.NONE, "the repair was the last part, and returned it"
    assert site.queued() == []


def test_request_that_a_person_cancels_ends_the_repair(site: Site) -> None:
    asked(site, 1)
    asked(site, 2)
    asked(site, 3)  # no room is left
    site.store.run(lambda connection: queue.advance(connection, site.now))
    site.nodes["n0"].fault = "gpu.lost"
    for _ in range(5):
        site.tick()
    (row,) = [row for row in site.queued() if row["work"] == "repair"]
    order = PersonsOrder("ann@host", site.now, "I am on it")
    site.store.run(lambda connection: queue.cancel(connection, row["request"], order))
    site.tick()
    (ended,) = site.controller().state.ended
    assert ended.phase is CasePhase.VOID
    assert [row["work"] for row in site.queued()] == ["apply"] * 3


def test_repair_that_no_controller_ends_is_lost_and_gets_a_ticket(site: Site) -> None:
    site.nodes["n0"].fault = "gpu.lost"
    site.nodes["n0"].job = True
    for _ in range(6):
        site.tick()
    assert site.controller().state.cases["n0"].leave
    site.now += 4 * 86400.0  # no controller ran, and another asks
    site.store.run(lambda connection: queue.advance(connection, site.now))
    assert site.holds() == {"n0": "failed"}
    site.tick()
    assert site.controller().state.cases["n0"].phase is CasePhase.TICKET
    order = PersonsOrder("ann@host", site.now, "seen to")
    site.store.run(lambda connection: grants.release(connection, "n0", order))
    site.nodes["n0"].heal()
    for _ in range(4):
        site.tick()
    assert site.nodes["n0"].holder is Holder.NONE
    assert site.controller().state.cases == {}


def test_drain_of_the_gate_that_a_rollout_has_recorded_is_no_persons(site: Site) -> None:
    site.rng.random = lambda: 0.5  # type: ignore[method-assign]
    node = site.nodes["n0"]
    node.fault, node.cure, node.holder = "gpu.lost", "reboot", Holder.GATE
    values = {"node": "n0", "owner": "outside", "kind": "person", "since": 1.0}
    with site.store.write() as connection:
        connection.execute(tables.hold.insert().values(reason="goldnode: gpu.lost", **values))
    for _ in range(30):
        site.tick()
    assert [rung for _, rung, _ in site.acts] == ["reboot"]
    assert site.holds() == {}


def test_plan_mode_writes_what_it_would_do_and_does_nothing(site: Site) -> None:
    site.policy = LadderPolicy(LadderMode.PLAN)
    site.nodes["n0"].fault = "gpu.lost"
    for _ in range(20):
        site.tick()
    assert site.holds() == {}
    assert site.acts == []
    assert site.controller().state.cases["n0"].planned


def test_stop_is_lifted_by_a_person(site: Site) -> None:
    for node in site.nodes.values():
        node.fault, node.cure = "gpu.lost", "reboot"
    for _ in range(20):
        site.tick()
    assert site.acts == []
    order = PersonsOrder("ann@host", site.now, "the switch was replaced")
    site.store.run(lambda connection: repairs.lift(connection, "finding gpu.lost", order))
    site.now += 3600
    for _ in range(60):
        site.tick()
    assert len(site.acts) == 4
    assert all(node.holder is Holder.NONE for node in site.nodes.values())


def killed(site: Site, seed: int) -> None:
    """Run a sequence with kills, then let it rest."""
    site.rng = random.Random(seed)  # noqa: S311 - no secret
    site.policy = LadderPolicy(LadderMode.RUN, bounds=LadderBounds(common=99))
    site.kill_share = 0.12
    for _ in range(40):
        node = site.rng.choice(list(site.nodes.values()))
        if node.fault is None and site.rng.random() < 0.3:
            node.fault = "gpu.recovery_action"
            node.cure = site.rng.choice((None, "gpu-reset", "power-cycle"))
        if site.rng.random() < 0.2:
            site.kill_part()
        site.tick(300.0)
    site.kill_share = 0.0
    for _ in range(60):
        site.tick(900.0)
    assert site.without_order() == [], seed
    # One intent is carried out at most once.
    assert len(site.acts) == len(set(site.acts)), seed
    for name, case in site.controller().state.cases.items():
        assert case.phase is CasePhase.TICKET, (seed, name, case)
    assert set(site.holds()) == {
        name for name, case in site.controller().state.cases.items() if case.leave
    }


@pytest.mark.parametrize("seed", [5])
def test_kill_at_any_point_leaves_nothing_without_an_order(site: Site, seed: int) -> None:
    killed(site, seed)
    assert site.made > 2  # controllers did die


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_200_sequences_of_kills_leave_nothing_without_an_order(
    migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    for seed in range(100 + block * 20, 120 + block * 20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        own = made(migrated, folder, monkeypatch, 4)
        killed(own, seed)
        own.store.close()


class Desk:
    """A desk whose first calls fail."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[str] = []
        self.failures = failures

    def open(self, case: RepairCase) -> str:
        self.calls.append(f"{case.node} {case.rung}")
        if len(self.calls) <= self.failures:
            raise GoldnodeError("the store is away")
        return "gn-1"


@pytest.mark.parametrize("failures", [0, 2])
def test_last_rung_asks_the_desk_once_and_again_after_a_failure(site: Site, failures: int) -> None:
    site.nodes["n0"].fault = "gpu.recovery_action"
    site.rng.random = lambda: 0.5  # type: ignore[method-assign]
    controller, desk = site.controller(), Desk(failures)
    controller.desk = desk
    for _ in range(120):
        site.tick()
    assert controller.state.cases["n0"].phase is CasePhase.TICKET
    assert desk.calls == ["n0 ticket"] * (failures + 1)


def test_ticket_of_a_case_survives_controllers_that_die(site: Site) -> None:
    site.nodes["n0"].fault = "gpu.recovery_action"
    site.rng.random = lambda: 0.5  # type: ignore[method-assign]
    for _ in range(120):
        site.controller().desk = StoreTicketDesk(site.store, plain_request, lambda: site.now)
        site.tick()
        site.live = None  # the next tick is of another controller
    with site.store.read() as connection:
        (ticket,) = tickets.read(connection).tickets.values()
    assert ticket.request.finding == "gpu.recovery_action"
    assert not ticket.comments
