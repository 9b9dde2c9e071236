"""The place of a process in the queue: it waits for its turn, and two works share one real drain."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select
from tests import slurm
from tests.unit.fleet.store.fleets import CLASS, NOW, fill, held

from goldnode.commands.canary.outstanding import NodeOutcome
from goldnode.commands.canary.run import ReturnTestTurns
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, load_site
from goldnode.fleet.drain import protocol
from goldnode.fleet.drain.protocol import DrainCaller
from goldnode.fleet.drain.slurm import SlurmDrainer
from goldnode.fleet.nodes import queue_place
from goldnode.fleet.nodes.queue_place import (
    NoQueue,
    QueuePlace,
    QueueWaitError,
    ReturnTestResult,
    in_turn,
    queue_of,
    return_test_turn,
)
from goldnode.fleet.rollout.ladder import CasePhase, Holder, MoveCase, OpenCase, RepairCase
from goldnode.fleet.rollout.queue import QueuedWork, WorkNeed
from goldnode.fleet.shared.identity import rollout_run
from goldnode.fleet.shared.person import person
from goldnode.fleet.store import nodes, queue, repairs, schema, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode

Turn = AbstractContextManager[tuple[DrainCaller, QueuePlace | None]]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(tmp_path / "fleet.db"))
    monkeypatch.setattr(queue_place, "PAUSE", 0.05)
    return load_site()


ONE = FleetLimits("1", "2", "3")


def stored(site: Site, limits: FleetLimits | None = ONE) -> StoreDatabase:
    store = StoreDatabase(site.fleet_store())
    store.run(schema.migrate)
    fill(store, 4, limits)
    return store


def turn(site: Site, node: str, work: QueuedWork, lines: list[str]) -> Turn:
    return in_turn(site, node, work, needs=(WorkNeed.DRAIN,), reason="a reason", tell=lines.append)


def test_site_without_a_store_has_no_queue(site: Site) -> None:
    lines: list[str] = []
    with turn(site, "n00", QueuedWork.DISK_UPDATE, lines) as (_, place):
        assert place is None
    assert lines == ["no queue: this site has no store of its fleet"]


def test_node_that_the_store_does_not_limit_has_no_queue(site: Site) -> None:
    stored(site, None).close()
    found = queue_of(site, "n00"), queue_of(site, "n99")
    assert found == (
        NoQueue(f"class {CLASS} has no limits in the store"),
        NoQueue("the store has no node n99"),
    )


def test_node_is_held_until_the_work_has_returned_it(site: Site) -> None:
    store, lines = stored(site), list[str]()
    with turn(site, "n00", QueuedWork.DISK_UPDATE, lines) as (caller, place):
        assert place is not None
        assert caller.actor.run != DrainCaller().actor.run
        assert held(store) == {"n00": "planned"}
        assert place.finish(True, "booted").returns
        place.returned(True)
    assert held(store) == {}
    assert lines == []
    store.close()


@pytest.mark.parametrize("when", ["work", "return"])
def test_node_of_a_work_that_failed_stays_out(site: Site, when: str) -> None:
    store = stored(site)

    def fails() -> None:
        with turn(site, "n00", QueuedWork.DISK_UPDATE, []) as (_, place):
            assert place is not None
            if when == "return":
                place.finish(True, "booted")
            raise GoldnodeError("no answer")

    with pytest.raises(GoldnodeError, match="no answer"):
        fails()
    assert held(store) == {"n00": "failed"}
    store.close()


def test_place_shows_what_it_waits_for_and_ends(site: Site) -> None:
    store, lines = stored(site), list[str]()
    first = queue.NodeAsk(QueuedWork.REPAIR, "Xid 79", "bob", "m/1", "n01")
    now = 2 * NOW  # its lease does not end during the test
    store.run(lambda c: queue.ask(c, first, now))
    store.run(lambda c: queue.advance(c, now))
    wanted = queue.NodeAsk(QueuedWork.APPLY, "x", "ann", "m/2", "n00")
    place = QueuePlace(store, wanted, lines.append, sleep=lambda seconds: None)
    with pytest.raises(QueueWaitError, match="was not granted within 0 hours"):
        place.wait(limit=0)
    assert lines == ["n00 waits in the queue, place 1: class h100: 1 of 1 nodes are planned"]
    with store.read() as connection:
        assert len(queue.view(connection, now).requests) == 1, "it has left the queue"
    store.close()


def test_mirror_is_published_while_no_driver_is_changed(site: Site) -> None:
    store, lines = stored(site), list[str]()
    driver = queue.NodeAsk(
        QueuedWork.APPLY, "x", "bob", "m/1", "n01", needs=(WorkNeed.DRAIN, WorkNeed.DRIVER)
    )
    with in_turn(site, None, QueuedWork.MIRROR, needs=(), reason="new lock", tell=lines.append) as (
        _,
        place,
    ):
        assert place is not None
        store.run(lambda c: queue.ask(c, driver, time.time()))
        decision, _ = store.run(lambda c: queue.advance(c, time.time()))
        assert "the mirror is refreshed: new lock" in decision.waits[0].reason
        place.finish(True, "published")
    store.run(lambda c: queue.advance(c, time.time()))
    assert held(store) == {"n01": "planned"}
    assert lines == []
    store.close()


PASSED, BAD = ReturnTestResult(True, True, "passed"), ReturnTestResult(False, False, "gemm failed")


def delivered(site: Site, result: ReturnTestResult) -> tuple[list[str], list[str]]:
    """Run tests of a node in its turn. Return the lines for a person, and the runs that returned it."""
    lines, returned = list[str](), list[str]()

    def back(caller: DrainCaller) -> None:
        returned.append(caller.actor.run)

    with return_test_turn(site, "n00", lines.append, back) as report:
        report(result)
    return lines, returned


def requests_of(store: StoreDatabase) -> list[tuple[str, str]]:
    with store.read() as connection:
        rows = connection.execute(select(tables.request.c.work, tables.request.c.state))
        return [(row.work, row.state) for row in rows]


def test_tests_of_a_node_in_service_ask_nobody(site: Site) -> None:
    assert delivered(site, PASSED) == (["no queue: this site has no store of its fleet"], [])
    store = stored(site)
    assert delivered(site, PASSED) == ([], [])
    assert requests_of(store) == []
    store.close()


def failed_node(store: StoreDatabase, node: str) -> None:
    values = {"owner": "health", "kind": "failed", "since": NOW, "reason": "ecc"}
    with store.write() as connection:
        connection.execute(tables.hold.insert().values(node=node, **values))


def test_tests_alone_leave_a_failed_node_where_it_was(site: Site) -> None:
    store = stored(site)
    failed_node(store, "n00")
    text = f"n00 is not returned: return-test of {person()} is done: passed"
    assert delivered(site, PASSED) == ([text], [])
    assert held(store) == {"n00": "failed"}
    store.close()


@pytest.mark.parametrize("result", [PASSED, BAD])
def test_tests_after_a_repair_return_the_node_or_leave_it_out(
    site: Site, result: ReturnTestResult
) -> None:
    store = stored(site)
    repair = queue.NodeAsk(QueuedWork.REPAIR, "Xid 79", "bob", "m/1", "n00")
    claim = store.run(lambda c: queue.ask(c, repair, time.time()))
    store.run(lambda c: queue.begin(c, claim, time.time()))
    seen: list[tuple[list[str], list[str]]] = []
    thread = threading.Thread(target=lambda: seen.append(delivered(site, result)))
    thread.start()
    while ("return-test", "granted") not in requests_of(store):
        time.sleep(0.02)
    done = queue.WorkOutcome(True, "reset")
    assert not store.run(lambda c: queue.finish(c, claim, done, time.time())).returns
    thread.join(60)
    ((_, returned),) = seen
    if result is PASSED:
        assert returned == [rollout_run(f"queue turn {claim.id}")]
        assert held(store) == {}
    else:
        assert (returned, held(store)) == ([], {"n00": "failed"})
    store.close()


def test_tests_that_a_repair_waits_for_do_not_wait_for_it(site: Site) -> None:
    """The ladder has the node, and returns it: each would wait for the other until a time limit."""
    store, record = stored(site), repairs.LadderRecord()
    case = RepairCase(
        "n00",
        finding="gpu.lost",
        climb=("reboot",),
        opened_at=NOW,
        phase=CasePhase.DRAIN,
        rung="reboot",
        changed_at=NOW,
        deadline=NOW,
    )
    times = (time.time(), 1e6)

    def read() -> None:
        with store.read() as connection:
            record.read(connection)

    store.run(lambda c: repairs.write(c, record, [OpenCase(case)], times[0]))
    read()
    assert store.run(lambda c: repairs.take(c, record, case, Holder.NONE, times)) == ""
    read()
    check = MoveCase("n00", CasePhase.CHECK, "reboot", "gpu.lost", outcome="booted")
    store.run(lambda c: repairs.write(c, record, [check], times[0]))
    assert delivered(site, PASSED) == ([], [])
    assert requests_of(store) == [("repair", "running")]
    store.close()


def test_command_runs_tests_in_their_turn(site: Site) -> None:
    store = stored(site)
    failed_node(store, "n00")
    turns = ReturnTestTurns({})
    outcome = turns.run("n00", lambda: NodeOutcome("n00", error=GoldnodeError("no GPU is seen")))
    assert str(outcome.error).startswith("no GPU is seen")
    assert requests_of(store) == [("return-test", "failed")]
    # A person has asked for the same: that is the outcome, and no test runs.
    given = queue.NodeAsk(QueuedWork.RETURN_TEST, "x", "bob", "m/1", "n00", needs=())
    store.run(lambda c: queue.ask(c, given, time.time()))
    ran: list[str] = []

    def test() -> NodeOutcome:
        ran.append("n00")
        return NodeOutcome("n00")

    assert "bob asks for n00 already" in str(turns.run("n00", test).error)
    assert ran == []
    store.close()


@pytest.mark.long
@pytest.mark.skipif(slurm.missing() is not None, reason=slurm.missing() or "")
def test_driver_change_and_repair_share_one_drain_of_a_real_slurmctld(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is returned once, and out of service during both works."""
    store = StoreDatabase(site.fleet_store())
    store.run(schema.migrate)
    own = [StoredNode("n1", CLASS), StoredNode("n2", CLASS)]
    limits = {CLASS: FleetLimits("1", "1", "2")}
    store.run(lambda c: nodes.put(c, own, limits, "test", NOW))
    with slurm.cluster(2) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.conf)
        calls: list[str] = []
        done: list[tuple[str, str]] = []

        def run(argv: Sequence[str]) -> str:
            calls.extend(word for word in argv if word.startswith("State="))
            return protocol.run(argv)

        def work(kind: QueuedWork, holder: str, problems: list[str]) -> None:
            wanted = queue.NodeAsk(kind, "x", "ann", holder, "n1")
            place = QueuePlace(store, wanted, lambda text: None)
            drainer = SlurmDrainer(run=run)
            try:
                caller = place.wait()
                before = drainer.drain("n1", str(kind), caller)
                done.append((str(kind), cluster.rows()["n1"][0]))
                if place.finish(True, "well").returns:
                    drainer.resume("n1", caller, before=before.in_service)
                    place.returned(True)
            except BaseException as problem:
                problems.append(repr(problem))

        # Another work has the only place, so that both wait at once.
        other = queue.NodeAsk(QueuedWork.APPLY, "x", "bob", "m/3", "n2", lease=3600)
        busy = store.run(lambda c: queue.ask(c, other, time.time()))
        store.run(lambda c: queue.advance(c, time.time()))
        problems: list[str] = []
        kinds = (QueuedWork.APPLY, QueuedWork.REPAIR)
        threads = [
            threading.Thread(target=partial(work, kind, f"m/{number}", problems))
            for number, kind in enumerate(kinds)
        ]
        for thread in threads:
            thread.start()
        while True:
            with store.read() as connection:
                seen = queue.listed(connection, time.time())["requests"]
            if len(seen) == 3:
                break
        order = PersonsOrder("ann@m", time.time(), "a reason")
        store.run(lambda c: queue.cancel(c, busy.id, order))
        for thread in threads:
            thread.join(60)
        assert not problems
        assert [kind for kind, _ in done] == ["repair", "apply"]
        assert all("DRAIN" in state for _, state in done)
        # The second drain only renews the reason: the node is out of service from the first one to the return.
        assert calls == ["State=DRAIN", "State=DRAIN", "State=RESUME"]
        # On a busy machine, slurmd answers late: IDLE+NOT_RESPONDING.
        state, reason = cluster.rows()["n1"]
        assert "DRAIN" not in state
        assert not reason
    assert held(store) == {}
    store.close()
