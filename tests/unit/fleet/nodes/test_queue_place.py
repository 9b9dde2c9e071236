"""The place of a process in the queue: it waits for its turn, and two works share one real drain."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from tests import slurm
from tests.unit.fleet.store.fleets import CLASS, NOW, fill, held

from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, load_site
from goldnode.fleet.drain import protocol
from goldnode.fleet.drain.protocol import DrainCaller
from goldnode.fleet.drain.slurm import SlurmDrainer
from goldnode.fleet.nodes import queue_place
from goldnode.fleet.nodes.queue_place import NoQueue, QueuePlace, QueueWaitError, in_turn, queue_of
from goldnode.fleet.rollout.queue import QueuedWork, WorkNeed
from goldnode.fleet.store import nodes, queue, schema
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
