"""Several writers at once, and writers that die: no limit is passed, and nothing is half done."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event, func, select
from tests.unit.fleet.store.fleets import (
    ALICE,
    BOB,
    NEW,
    NOW,
    OLD,
    fill,
    held,
    rollout,
    take_hold,
    wish,
)

from goldnode.fleet.rollout.model import Promote
from goldnode.fleet.service import batch
from goldnode.fleet.store import controllers, grants, log, orders, rollouts, tables
from goldnode.fleet.store.backup import check_counters
from goldnode.fleet.store.controllers import Controller
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError, StaleEpochError, StoreError
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.orders import Scope

NODES, RACKS = 12, 6
LIMITS = FleetLimits("3", "2", "5", {"rack": 1})


def assert_sound(connection: Connection) -> None:
    """Check what must hold in every committed state."""
    check_counters(connection)
    buffer = tables.buffer
    over = connection.execute(select(buffer).where(buffer.c.planned > buffer.c.planned_limit)).all()
    assert not over, over
    rows = connection.execute(
        select(tables.log.c.action, func.count()).group_by(tables.log.c.action)
    )
    actions: dict[str, int] = {row[0]: row[1] for row in rows}
    holds = connection.scalar(select(func.count()).select_from(tables.hold))
    began = actions.get("Grant", 0) + actions.get("TakeHold", 0)
    ended = sum(actions.get(one, 0) for one in ("Finish", "Release", "DropHold"))
    assert began - ended == holds


def one_change(store: StoreDatabase, chance: random.Random) -> None:
    """Make one random change; a refusal is an answer."""
    number = chance.randrange(NODES)
    name = f"n{number:02}"
    kind = chance.choice(
        ("grant", "grant", "grant", "back", "overdue", "fail", "release", "freeze", "unfreeze")
    )
    works: dict[str, Callable[[Connection], Any]] = {
        "grant": lambda c: grants.grant(c, wish(number)),
        "back": lambda c: grants.give_back(c, wish(number)),
        "overdue": lambda c: grants.overdue(c, NOW + 10**6) if chance.random() < 0.2 else None,
        "fail": lambda c: take_hold(c, name, "failed", "check", ALICE),
        "release": lambda c: grants.release(c, name, BOB),
        "freeze": lambda c: orders.freeze(c, Scope(), ALICE) if chance.random() < 0.2 else None,
        "unfreeze": lambda c: orders.unfreeze(c, Scope(), ALICE),
    }
    try:
        store.run(works[kind])
    except GrantRefusedError:
        pass
    except StoreError as problem:
        if "is not out of service" not in str(problem):
            raise


def test_concurrent_changes_pass_no_limit(address: str) -> None:
    store = StoreDatabase(address)
    fill(store, NODES, LIMITS, racks=RACKS)
    done = threading.Event()
    problems: list[BaseException] = []

    def change(seed: int) -> None:
        own = StoreDatabase(address)
        chance = random.Random(seed)  # noqa: S311 - a schedule
        try:
            for _ in range(25):
                one_change(own, chance)
        except BaseException as problem:
            problems.append(problem)
        finally:
            own.close()

    def watch() -> None:
        try:
            while not done.is_set():
                with store.read() as connection:
                    assert_sound(connection)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=change, args=(seed,)) for seed in range(4)]
    watcher = threading.Thread(target=watch)
    for thread in [*threads, watcher]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    assert not problems, problems
    with store.read() as connection:
        assert_sound(connection)
    store.close()


def in_child(address: str, work: Callable[[StoreDatabase], None], kill_at: int) -> bool:
    """Run `work` in a process that dies by SIGKILL at statement `kill_at`. Return whether it died."""
    child = os.fork()
    if child == 0:
        try:
            store = StoreDatabase(address)
            count = 0

            def statement(*_: object) -> None:
                nonlocal count
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

            event.listen(store.engine, "before_cursor_execute", statement)
            event.listen(store.engine, "commit", statement)
            work(store)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_service_killed_at_any_statement_leaves_all_or_nothing(address: str) -> None:
    """The batch takes one node back and grants two."""
    store = StoreDatabase(address)
    fill(store, NODES, LIMITS, racks=RACKS)
    rollout(store)
    store.run(lambda c: grants.grant(c, wish(5)))
    before = held(store)
    store.close()

    def serve(own: StoreDatabase) -> None:
        wishes = (
            lambda c: grants.give_back(c, wish(5, boot_id="b2")),
            lambda c: grants.grant(
                c, wish(0, rollout="kernel", digest=OLD, boot_id="b1", wants=NEW)
            ),
            lambda c: grants.grant(c, wish(1)),
        )
        batch.commit(own, wishes)

    kill_at, died = 0, True
    while died:
        kill_at += 1
        died = in_child(address, serve, kill_at)
        store = StoreDatabase(address)
        after = held(store)
        with store.read() as connection:
            assert_sound(connection)
        store.close()
        assert after in (before, {"n00": "planned", "n01": "planned"})
        assert died or after != before
    assert kill_at > 10  # it did die between the statements


STALE: dict[str, Callable[[Connection, Controller], object]] = {
    "beat": lambda c, old: old.beat(c, NOW),
    "write": lambda c, old: rollouts.write(c, old, [Promote(1, ())], NOW),
    "claim": lambda c, old: old.claim(c, "worker", 1),
    "change": lambda c, old: old.change(c, why="x"),
}


@pytest.mark.parametrize("method", STALE)
def test_controller_that_was_overtaken_can_write_nothing(store: StoreDatabase, method: str) -> None:
    fill(store)
    old = rollout(store)
    store.run(lambda c: grants.grant(c, wish(0, rollout="kernel")))
    with store.write() as connection:
        connection.execute(tables.step.update().values(worker=None))
    assert store.run(lambda c: controllers.take_over(c, "kernel", "second", NOW, quiet=60)) is None
    epoch = store.run(lambda c: controllers.take_over(c, "kernel", "second", NOW + 61, quiet=60))
    assert epoch == old.epoch + 1
    with store.read() as connection:
        before = connection.execute(select(tables.rollout)).all()
    with pytest.raises(StaleEpochError, match="another controller"):
        store.run(lambda c: STALE[method](c, old))
    with store.read() as connection:
        assert connection.execute(select(tables.rollout)).all() == before


def test_controllers_that_compete_get_one_epoch_each(address: str) -> None:
    store = StoreDatabase(address)
    fill(store)
    first = rollout(store)
    epochs: list[int] = []

    def compete(name: str) -> None:
        own = StoreDatabase(address)
        for _ in range(5):
            epoch = own.run(lambda c: controllers.take_over(c, "kernel", name, NOW))
            assert epoch is not None
            epochs.append(epoch)
        own.close()

    threads = [threading.Thread(target=compete, args=(f"c{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs) == list(range(first.epoch + 1, first.epoch + 16))
    with store.read() as connection:
        assert len(log.entries(connection, rollout="kernel")) == 3 + 15  # Submit, TakeOver, Start
    store.close()


def test_claims_of_two_workers_never_overlap(store: StoreDatabase) -> None:
    fill(store, NODES, FleetLimits("8", "2", "8"), racks=NODES)
    controller = rollout(store)
    with store.write() as connection:
        connection.execute(tables.buffer.update().values(planned_limit=8, total_limit=8))
    for number in range(6):
        store.run(lambda c, number=number: grants.grant(c, wish(number, rollout="kernel")))  # type: ignore[misc]
    with store.write() as connection:
        connection.execute(tables.step.update().values(worker=None))
    first = store.run(lambda c: controller.claim(c, "w1", 4))
    second = store.run(lambda c: controller.claim(c, "w2", 4))
    assert (first, second) == (["n00", "n01", "n02", "n03"], ["n04", "n05"])
    assert store.run(lambda c: controller.claim(c, "w3", 4)) == []
