"""Requests of the queue in the store: one turn for all that wait, limits, kills, and two processes that decide at once."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event, select, text
from tests.unit.fleet.store.fleets import (
    ALICE,
    CLASS,
    NOW,
    counters,
    fill,
    held,
    leave,
    refusal,
    rollout,
    take_hold,
)

from goldnode.fleet.rollout.queue import LEASE, LIMIT, QueuedWork, RequestState, WorkNeed
from goldnode.fleet.shared import identity
from goldnode.fleet.store import grants, log, orders, outages, queue, tables
from goldnode.fleet.store.backup import check_counters
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError, StoreError
from goldnode.fleet.store.orders import Scope
from goldnode.fleet.store.queue import NodeAsk, QueueClaim, QueueError, QueueStanding, WorkOutcome

DRIVER = (WorkNeed.DRAIN, WorkNeed.DRIVER)
DONE = WorkOutcome(True, "well")


def asked(
    store: StoreDatabase,
    number: int,
    work: QueuedWork = QueuedWork.REPAIR,
    holder: str = "m/1",
    **more: object,
) -> QueueClaim:
    node = None if work is QueuedWork.MIRROR else f"n{number:02}"
    given = NodeAsk(work, "Xid 79", "ann@m", holder, node, **more)  # type: ignore[arg-type]
    return store.run(lambda c: queue.ask(c, given, NOW))


def polled(store: StoreDatabase, claim: QueueClaim, now: float = NOW) -> QueueStanding:
    return store.run(lambda c: queue.poll(c, claim, now))


def begun(store: StoreDatabase, claim: QueueClaim, now: float = NOW) -> QueueStanding:
    return store.run(lambda c: queue.begin(c, claim, now))


def ended(
    store: StoreDatabase, claim: QueueClaim, outcome: WorkOutcome = DONE, now: float = NOW
) -> queue.PartEnding:
    return store.run(lambda c: queue.finish(c, claim, outcome, now))


def back(store: StoreDatabase, claim: QueueClaim, serves: bool = True) -> None:
    store.run(lambda c: queue.returned(c, claim, serves, "" if serves else "its check fails", NOW))


def actions(store: StoreDatabase) -> list[str]:
    with store.read() as connection:
        return [row["action"] for row in log.entries(connection)]


def test_two_works_share_one_turn_in_order(store: StoreDatabase) -> None:
    fill(store)
    driver, repair = (
        asked(store, 0, QueuedWork.APPLY, needs=DRIVER),
        asked(store, 0, QueuedWork.REPAIR, "m/2"),
    )
    first, second = polled(store, repair), polled(store, driver)
    assert (first.may_begin, second.may_begin) == (True, False)
    assert first.run == second.run
    assert held(store) == {"n00": "planned"}
    begun(store, repair)
    with pytest.raises(QueueError, match="may not begin"):
        begun(store, driver)
    ending = ended(store, repair)
    assert (ending.last, ending.others) == (False, ("apply of ann@m has not begun",))
    begun(store, driver)
    ending = ended(store, driver)
    assert ending.returns
    assert ending.parts == ("repair of ann@m is done: well", "apply of ann@m is done: well")
    assert held(store) == {"n00": "planned"}, "the return check is a part of the turn"
    back(store, driver)
    assert held(store) == {}
    assert actions(store).count("GrantTurn") == 1


def together(store: StoreDatabase, own: int, *numbers: int, holder: str = "m/1") -> QueueClaim:
    given = NodeAsk(QueuedWork.APPLY, "a lock", "ann@m", holder, f"n{own:02}", needs=DRIVER)
    names = [f"n{number:02}" for number in numbers]
    return store.run(lambda c: queue.ask_together(c, given, names, NOW))


def test_nodes_asked_together_are_granted_whole_and_begin_as_one(store: StoreDatabase) -> None:
    fill(store)
    other = asked(store, 1, holder="m/2")
    begun(store, other)
    # Two workers of one run: the second finds what the first has asked for it.
    claims = [together(store, 0, 0, 1), together(store, 1, 0, 1)]
    standing = polled(store, claims[0])
    assert standing.wait is None, "the node of another work is shared"
    assert not standing.may_begin
    assert held(store) == {"n00": "planned", "n01": "planned"}
    ended(store, other)
    begun(store, claims[1])
    assert begun(store, claims[0]).request.state is RequestState.RUNNING
    for claim in claims:
        assert ended(store, claim).returns
        back(store, claim)
    assert held(store) == {}


def test_two_runs_that_share_nodes_do_not_wait_for_each_other(store: StoreDatabase) -> None:
    fill(store)
    person = store.run(lambda c: take_hold(c, "n01", "person", "bob", ALICE))
    assert person is None
    first = together(store, 0, 0, 1)
    assert "2 nodes are granted together: bob has drained n01" in str(polled(store, first).wait)
    assert held(store) == {"n01": "person"}, "nothing is taken in part"
    with pytest.raises(QueueError, match="ann@m asks for n01 already"):
        together(store, 2, 1, 2, holder="m/2")
    order = ALICE
    store.run(lambda c: queue.cancel(c, first.id, order))
    with store.read() as connection:
        assert queue.view(connection, NOW).requests == []


def test_run_that_died_is_done_again_and_its_node_returns(store: StoreDatabase) -> None:
    """Not by other work: it does not know in what state the first one left the node."""
    fill(store)
    begun(store, together(store, 0, 0, 1))
    store.run(lambda c: queue.advance(c, NOW + 10**7))
    assert held(store) == {"n00": "failed", "n01": "failed"}
    update = asked(store, 0, QueuedWork.DISK_UPDATE)
    begun(store, update)
    assert not ended(store, update).returns
    again = together(store, 0, 0)
    assert begun(store, again).run != queue.turn_name(1)
    with store.read() as connection:
        runs = queue.ended_runs(connection, "n00")
    assert identity.rollout_run(queue.turn_name(1)) in runs
    assert ended(store, again).returns
    back(store, again)
    assert held(store) == {"n01": "failed"}


def test_failed_part_is_reported_beside_the_one_that_was_done(store: StoreDatabase) -> None:
    fill(store)
    repair, driver = asked(store, 0), asked(store, 0, QueuedWork.APPLY, "m/2")
    polled(store, repair)
    begun(store, repair)
    ended(store, repair, WorkOutcome(False, "the BMC does not answer", fit=False))
    begun(store, driver)
    ending = ended(store, driver)
    assert (ending.last, ending.returns) == (True, False)
    assert ending.parts == (
        "repair of ann@m has failed: the BMC does not answer",
        "apply of ann@m is done: well",
    )
    assert held(store) == {"n00": "failed"}
    with store.read() as connection:
        reason = connection.scalar(select(tables.hold.c.reason))
    assert "the BMC does not answer" in str(reason)


def test_failure_that_leaves_the_node_fit_returns_it(store: StoreDatabase) -> None:
    fill(store)
    claim = asked(store, 0)
    polled(store, claim)
    begun(store, claim)
    assert ended(store, claim, WorkOutcome(False, "nothing to repair")).returns
    back(store, claim)
    assert held(store) == {}
    with store.read() as connection:
        assert connection.scalar(select(tables.request.c.state)) == "failed"


def test_return_that_fails_leaves_the_node_out(store: StoreDatabase) -> None:
    fill(store)
    claim = asked(store, 0)
    begun(store, claim)
    ended(store, claim)
    back(store, claim, serves=False)
    assert held(store) == {"n00": "failed"}


def test_limits_hold_and_the_wait_names_them(store: StoreDatabase) -> None:
    fill(store)
    first, of_rack = asked(store, 0), asked(store, 4, holder="m/2")
    assert polled(store, first).may_begin
    assert "rack r0: 1 of 1 nodes are planned" in str(polled(store, of_rack).wait)
    second, of_class = asked(store, 1, holder="m/3"), asked(store, 2, holder="m/4")
    assert polled(store, second).may_begin
    assert "class h100: 2 of 2 nodes are planned" in str(polled(store, of_class).wait)
    assert counters(store, "class", CLASS) == (2, 0, 0, 2)


def test_repair_of_a_failed_node_needs_no_room_and_releases_it(store: StoreDatabase) -> None:
    fill(store)
    leave(store, 0)
    store.run(lambda c: grants.overdue(c, NOW + 10**6))
    claim = asked(store, 0)
    assert polled(store, claim).may_begin
    assert counters(store, "class", CLASS) == (0, 1, 0, 1)
    begun(store, claim)
    assert ended(store, claim).returns
    back(store, claim)
    assert held(store) == {}
    assert actions(store)[-2:] == ["Release", "EndTurn"]


def test_update_of_a_failed_node_leaves_it_out(store: StoreDatabase) -> None:
    fill(store)
    leave(store, 0)
    store.run(lambda c: grants.overdue(c, NOW + 10**6))
    claim = asked(store, 0, QueuedWork.DISK_UPDATE)
    begun(store, claim)
    ending = ended(store, claim)
    assert (ending.last, ending.returns) == (True, False)
    assert held(store) == {"n00": "failed"}


def test_work_on_a_node_is_a_hold_a_request_or_a_rollout_and_no_drain_of_a_person(
    store: StoreDatabase,
) -> None:
    def work(number: int) -> str | None:
        return store.run(lambda c: queue.work_on(c, f"n{number:02}", NOW))

    fill(store, 4)
    assert work(0) is None
    store.run(lambda c: take_hold(c, "n00", "person", "bob", ALICE))
    assert work(0) is None
    claim = asked(store, 1)
    assert work(1) == "ann@m has asked for it (repair)"
    polled(store, claim)
    assert str(work(1)).startswith("queue holds it (")
    rollout(store, waves=(("n02",),))
    assert (work(2), work(3)) == ("rollout kernel takes it next", None)


def test_drain_of_a_person_is_never_overridden(store: StoreDatabase) -> None:
    fill(store)
    store.run(lambda c: take_hold(c, "n00", "person", "bob", ALICE))
    assert "bob has drained n00" in str(polled(store, asked(store, 0)).wait)
    test = asked(store, 0, QueuedWork.RETURN_TEST, needs=())
    begun(store, test)
    assert not ended(store, test).returns
    assert held(store) == {"n00": "person"}


def test_node_in_a_turn_gets_no_other_grant(store: StoreDatabase) -> None:
    fill(store)
    claim = asked(store, 0)
    polled(store, claim)
    assert refusal(store, 0) == "out_of_service_already"
    # A person releases a failed node while it is repaired: its turn still has it.
    leave(store, 1)
    store.run(lambda c: grants.overdue(c, NOW + 10**6))
    begun(store, asked(store, 1, holder="m/2"))
    store.run(lambda c: grants.release(c, "n01", ALICE))
    with pytest.raises(GrantRefusedError, match="has a turn of the queue"):
        leave(store, 1)


@pytest.mark.parametrize("began", [False, True])
def test_asker_that_dies_leaves_the_queue(store: StoreDatabase, began: bool) -> None:
    fill(store)
    claim = asked(store, 0)
    polled(store, claim)
    if began:
        begun(store, claim)
    later = NOW + max(LEASE, LIMIT) + 1
    decision, view = store.run(lambda c: queue.advance(c, later))
    assert not decision.waits
    assert not view.requests
    assert held(store) == ({"n00": "failed"} if began else {})
    with pytest.raises(QueueError):
        polled(store, claim, later)


def test_process_of_this_machine_that_ended_is_known_at_once(
    store: StoreDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    claim = asked(store, 0)
    monkeypatch.setattr(identity, "works", lambda run: False)
    store.run(lambda c: queue.advance(c, NOW + 1))
    with pytest.raises(QueueError, match="is expired"):
        polled(store, claim)


def test_part_that_was_lost_does_not_take_the_others_along(store: StoreDatabase) -> None:
    fill(store)
    repair, driver = asked(store, 0), asked(store, 0, QueuedWork.APPLY, "m/2", lease=10 * LIMIT)
    begun(store, repair)
    later = NOW + LIMIT + 1
    assert polled(store, driver, later).may_begin
    begun(store, driver, later)
    ending = ended(store, driver, now=later)
    assert not ending.returns
    assert "has not ended within 2 hours" in ending.parts[0]
    assert "apply of ann@m is done" in ending.parts[1]
    assert held(store) == {"n00": "failed"}


def test_request_is_taken_over_from_a_dead_process_only(store: StoreDatabase) -> None:
    fill(store)
    first = asked(store, 0)
    with pytest.raises(QueueError, match="asks for n00 already"):
        asked(store, 0, holder="m/2")
    begun(store, first)
    late = NodeAsk(QueuedWork.REPAIR, "again", "bob@m", "m/2", "n00")
    second = store.run(lambda c: queue.ask(c, late, NOW + LEASE + 1))
    with pytest.raises(QueueError, match="belongs to another process"):
        ended(store, first)
    assert ended(store, second).returns


def test_cancel(store: StoreDatabase) -> None:
    fill(store)
    claim = asked(store, 0)
    polled(store, claim)
    assert store.run(lambda c: queue.cancel(c, claim.id, ALICE))
    assert held(store) == {}
    assert not store.run(lambda c: queue.cancel(c, claim.id, ALICE))
    again = asked(store, 0)
    begun(store, again)
    with pytest.raises(QueueError, match="has begun"):
        store.run(lambda c: queue.cancel(c, again.id, ALICE))


def test_freeze_stops_grants_and_no_return(store: StoreDatabase) -> None:
    fill(store)
    first = asked(store, 0)
    begun(store, first)
    store.run(lambda c: orders.freeze(c, Scope(), ALICE))
    assert "all is frozen" in str(polled(store, asked(store, 1, holder="m/2")).wait)
    ended(store, first)
    back(store, first)
    assert held(store) == {}


def test_mirror_needs_quiet(store: StoreDatabase) -> None:
    fill(store)
    driver = asked(store, 0, QueuedWork.APPLY, needs=DRIVER)
    begun(store, driver)
    mirror = asked(store, 0, QueuedWork.MIRROR, "m/2", needs=())
    assert "drivers are being changed on n00" in str(polled(store, mirror).wait)
    ended(store, driver)
    back(store, driver)
    assert polled(store, mirror).may_begin
    begun(store, mirror)
    later = asked(store, 1, QueuedWork.APPLY, "m/3", needs=DRIVER)
    assert "the mirror is refreshed" in str(polled(store, later).wait)
    assert ended(store, mirror).last
    assert polled(store, later).may_begin


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (NodeAsk(QueuedWork.REPAIR, "x", "ann", "m/1", "n99"), "no node"),
        (NodeAsk(QueuedWork.REPAIR, " ", "ann", "m/1", "n00"), "needs a reason"),
        (NodeAsk(QueuedWork.MIRROR, "x", "ann", "m/1", "n00"), "has no node"),
    ],
)
def test_wrong_request(store: StoreDatabase, given: NodeAsk, problem: str) -> None:
    fill(store)
    with pytest.raises(StoreError, match=problem):
        store.run(lambda c: queue.ask(c, given, NOW))


def test_part_joins_the_grant_of_a_rollout_before_its_change(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    leave(store, 0, rollout="kernel", digest="sha256:old", boot_id="b1")
    claim = asked(store, 0)
    standing = polled(store, claim)
    assert (standing.may_begin, standing.run) == (True, "kernel")
    begun(store, claim)
    ending = ended(store, claim, WorkOutcome(False, "broken", fit=False))
    assert not ending.returns
    assert held(store) == {"n00": "failed"} or counters(store, "class", CLASS)[:2] == (1, 1)


@pytest.mark.parametrize("steps", [25, pytest.param(300, marks=pytest.mark.long)], ids=str)
def test_two_processes_that_decide_at_once_pass_no_limit(store: StoreDatabase, steps: int) -> None:
    """Each asks, works and dies at random; every committed state obeys the limits."""
    fill(store, 12, racks=6)
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - the same choices each time
        claims: list[QueueClaim] = []
        for step in range(steps):
            now = NOW + step
            try:
                one_step(store, chance, claims, f"m{seed}/1", now)
            except StoreError:
                continue
            except BaseException as problem:
                problems.append(problem)
                return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    with store.read() as connection:
        check_counters(connection)
        twice = connection.execute(
            text(
                "SELECT node FROM request WHERE state IN ('granted', 'running', 'returning') "
                "GROUP BY node HAVING count(DISTINCT turn) > 1"
            )
        ).all()
        grants_of = [row for row in actions(store) if row == "GrantTurn"]
        assert not twice
    assert len(grants_of) > steps // 25
    assert counters(store, "class", CLASS)[0] <= 2


def one_step(
    store: StoreDatabase, chance: random.Random, claims: list[QueueClaim], holder: str, now: float
) -> None:
    """NodeAsk, go one step further with a claim, or forget one as a process that was killed does."""
    operation = chance.randrange(6)
    if operation == 0 or not claims:
        work = chance.choice([QueuedWork.REPAIR, QueuedWork.APPLY, QueuedWork.DISK_UPDATE])
        node = f"n{chance.randrange(12):02}"
        given = NodeAsk(work, "x", "ann", holder, node, lease=10, limit=20)
        claims.append(store.run(lambda c: queue.ask(c, given, now)))
        return
    claim = chance.choice(claims)
    for name in [name for name, kind in held(store).items() if kind == "failed"]:
        store.run(lambda c, one=name: grants.release(c, one, ALICE))  # type: ignore[misc]
    steps: dict[RequestState, Callable[[], object]] = {
        RequestState.GRANTED: lambda: begun(store, claim, now),
        RequestState.RUNNING: lambda: ended(store, claim, now=now),
        RequestState.RETURNING: lambda: back(store, claim),
    }
    try:
        standing = polled(store, claim, now)
    except QueueError:
        claims.remove(claim)
        raise
    if operation == 5 and chance.randrange(4) == 0:
        claims.remove(claim)
    elif (step := steps.get(standing.request.state)) is not None:
        step()


def test_turns_are_outages_of_the_class(store: StoreDatabase) -> None:
    fill(store)
    well, broken = asked(store, 0), asked(store, 1, holder="m/2")
    for claim in (well, broken):
        begun(store, claim)
        ended(store, claim)
    back(store, well)
    back(store, broken, serves=False)
    store.run(lambda c: grants.release(c, "n01", ALICE))
    with store.read() as connection:
        kinds = [outage.kind for outage in outages.ended(connection, CLASS, NOW)]
    assert sorted(kinds) == ["failed", "planned", "planned"]


def work_of_a_run(address: str, number: int) -> None:
    """Ask for two nodes, work and return them; be killed before statement `number`."""
    store = StoreDatabase(address)
    count = 0

    def statement(*_: object) -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(store.engine, "before_cursor_execute", statement)
    event.listen(store.engine, "commit", statement)
    # queue.process() is the parent of a worker.
    holder = f"m/{identity.run_id(os.getpid())}"
    claims = [together(store, own, 0, 1, holder=holder) for own in (0, 1)]
    for claim in claims:
        begun(store, claim)
    for claim in claims:
        ended(store, claim)
        back(store, claim)


@pytest.mark.long
def test_kill_between_any_statements_leaves_whole_grants(address: str) -> None:
    """A process that is killed leaves what the last transaction has written, and the next one goes on from there."""
    killed_everywhere(address, step=7)


@pytest.mark.long
def test_kill_before_every_statement_leaves_whole_grants(migrated: Path, tmp_path: Path) -> None:
    where = str(shutil.copy(migrated, tmp_path / "fleet.db"))
    assert killed_everywhere(where, step=1) > 100


def killed_everywhere(address: str, step: int) -> int:
    """Kill a run before each statement in steps, and check what it leaves. Return the number of kills."""
    # Each run is forked from a process that has imported all of this: a start would take longer than the run.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    first = StoreDatabase(address)
    fill(first)
    seen: set[str] = set()
    number, kills, status = 0, 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        number += step
        kills += 1
        process = context.Process(target=work_of_a_run, args=(address, number))
        process.start()
        process.join(60)
        status = process.exitcode or 0
        with first.read() as connection:
            own = queue.view(connection, NOW).requests
            check_counters(connection)
        states = {str(one.state) for one in own}
        seen |= states
        assert len(own) in (0, 1, 2)
        # Granted and begun as one; ended one after the other.
        assert "waiting" not in states or len(states) == 1
        assert "granted" not in states or len(states) == 1
        assert set(held(first)) >= {
            one.node for one in own if one.state is not RequestState.WAITING
        }
        # Any later asker finds the process dead: what had begun is out, and nothing else is.
        first.run(lambda c: queue.advance(c, NOW))
        with first.read() as connection:
            assert queue.view(connection, NOW).requests == []
        left = held(first)
        assert set(left.values()) <= {"failed"}
        for name in left:
            first.run(lambda c, name=name: grants.release(c, name, ALICE))  # type: ignore[misc]
    assert status == 0
    assert {"waiting", "granted", "running"} <= seen, seen
    first.close()
    return kills - 1
