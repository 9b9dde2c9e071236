"""Which request is served next, who waits for whom, and what holds under any schedule of kills."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fleet.rollout.queue_schedules import (
    BOUND,
    CLASS,
    DRAINS,
    HOUR,
    NODES,
    WORKS,
    QueueWorld,
)

from goldnode.fleet.rollout.queue import (
    COURTESY,
    PATIENCE,
    DomainRoom,
    GrantTogether,
    GrantTurn,
    JoinTurn,
    QueuedWork,
    QueueFreeze,
    QueueHold,
    QueueNode,
    QueueRequest,
    QueueView,
    RequestState,
    RequeueRequest,
    decide,
    may_begin,
    next_part,
)

NOW = 1000.0
SCHEDULES = st.lists(st.integers(0, 2**14 - 1), max_size=80)


def obey(schedule: list[int]) -> None:
    world = QueueWorld()
    world.run(schedule)
    assert world.let_end() <= BOUND


@given(SCHEDULES)
@settings(max_examples=60)
def test_invariants_under_any_schedule(schedule: list[int]) -> None:
    obey(schedule)


@pytest.mark.parametrize("schedules", [40, pytest.param(2500, marks=pytest.mark.long)], ids=str)
def test_invariants_under_many_random_schedules(schedules: int) -> None:
    """Longer ones than those that hypothesis draws first."""
    chance = random.Random(37)  # noqa: S311 - the same schedules each time
    for _ in range(schedules):
        obey([chance.randrange(2**14) for _ in range(chance.randrange(20, 120))])


def request(number: int, node: str | None = "n0", **more: object) -> QueueRequest:
    values = {
        "id": number,
        "work": QueuedWork.REPAIR,
        "class_": CLASS,
        "reason": "Xid 79",
        "who": "ann",
        "holder": f"m/{number}",
        "since": NOW + number,
        "beat_at": NOW + 100,
        "node": node,
        **more,
    }
    return QueueRequest(**values)  # type: ignore[arg-type]


def seen(
    *requests: QueueRequest,
    planned: int = 1,
    nodes: dict[str, QueueNode] | None = None,
    freezes: tuple[QueueFreeze, ...] = (),
) -> QueueView:
    own = {
        f"n{number}": QueueNode(f"n{number}", (("class", CLASS), ("rack", f"r{number}")))
        for number in range(NODES)
    } | (nodes or {})
    room = {("class", CLASS): DomainRoom(planned_limit=planned, failed_limit=2, total_limit=4)}
    return QueueView(requests, own, room, freezes)


def granted(view: QueueView, now: float = NOW + 100) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (action.node, action.requests)
        for action in decide(view, now).actions
        if isinstance(action, GrantTurn)
    ]


def held(name: str, *holds: QueueHold, **more: object) -> dict[str, QueueNode]:
    node = QueueNode(name, (("class", CLASS),), holds)
    return {name: replace(node, **more)}  # type: ignore[arg-type]


FAILED = QueueHold("kernel", "failed", "driver")
PERSON = QueueHold("bob", "person", "memory")


def test_driver_change_and_repair_share_one_turn() -> None:
    both = (request(1, work=QueuedWork.APPLY), request(2))
    assert granted(seen(*both)) == [("n0", (1, 2))]


def test_parts_run_in_the_stated_order() -> None:
    parts = [
        request(number, work=work, state=RequestState.GRANTED, turn=1, under="queue")
        for number, work in enumerate(reversed(list(QueuedWork)[:-1]), 1)
    ]
    begun = []
    while (number := next_part(parts, None)) is not None:
        begun.append(next(part.work for part in parts if part.id == number))
        parts = [part for part in parts if part.id != number]
    assert begun == list(QueuedWork)[:-1]


def test_one_part_runs_at_a_time() -> None:
    first = request(1, state=RequestState.RUNNING, turn=1, under="queue")
    second = request(2, work=QueuedWork.APPLY, state=RequestState.GRANTED, turn=1, under="queue")
    assert next_part([first, second], None) is None


@pytest.mark.parametrize(
    ("step", "work", "begins"),
    [
        ("granted", QueuedWork.REPAIR, True),
        ("applying", QueuedWork.REPAIR, False),
        ("granted", QueuedWork.RETURN_TEST, False),
        ("returning", QueuedWork.RETURN_TEST, True),
    ],
)
def test_part_under_a_rollout_waits_for_its_step(step: str, work: QueuedWork, begins: bool) -> None:
    part = request(1, work=work, state=RequestState.GRANTED, turn=1, under="kernel")
    node = held("n0", QueueHold("kernel", "planned", "", NOW), step=step)["n0"]
    assert (next_part([part], node) == 1) is begins


@pytest.mark.parametrize(
    ("first", "nodes", "rule"),
    [
        ({}, {}, "age"),
        ({"since": NOW + 50, "security": True}, {}, "the security lane goes before age"),
        ({"since": NOW + 50}, held("n0", FAILED), "the repair of a node that is out goes first"),
    ],
)
def test_order(first: dict[str, object], nodes: dict[str, QueueNode], rule: str) -> None:
    one = replace(request(1), **first)  # type: ignore[arg-type]
    view = seen(one, request(2, "n1"), nodes=nodes)
    assert granted(view)[0] == ("n0", (1,)), rule


def test_old_request_is_not_overtaken_by_the_security_lane() -> None:
    old, newer = request(1, since=NOW - PATIENCE), request(2, "n1", security=True)
    assert granted(seen(newer, old))[0] == ("n0", (1,))


def test_repair_of_a_node_that_is_out_needs_no_room() -> None:
    view = seen(request(1), planned=0, nodes=held("n0", FAILED))
    assert granted(view) == [("n0", (1,))]


@pytest.mark.parametrize(
    ("view", "reason", "owner"),
    [
        (seen(request(1), planned=0), "class h100: 0 of 0 nodes are planned", "nodes that are"),
        (seen(request(1), nodes=held("n0", PERSON)), "bob has drained n0: memory", "bob"),
        (seen(request(1), nodes=held("n0", FAILED, PERSON)), "bob has drained n0", "bob"),
        (
            seen(request(1), nodes=held("n0", QueueHold("kernel", "planned", "rollout kernel"))),
            "kernel has n0: rollout kernel",
            "kernel",
        ),
        (
            seen(request(1), freezes=(QueueFreeze("all", "", "audit", "carol"),)),
            "all is frozen by carol: audit",
            "carol",
        ),
        (seen(request(1, "n9")), "the store has no node n9", "person"),
        (seen(request(1, needs=())), "n0 is in service, and the work is for a node", "person"),
    ],
)
def test_wait_names_what_is_in_the_way(view: QueueView, reason: str, owner: str) -> None:
    decision = decide(view, NOW + 100)
    assert not decision.actions
    (wait,) = decision.waits
    assert reason in wait.reason
    assert owner in wait.owner


def test_tests_do_not_wait_for_the_person_who_has_drained_the_node() -> None:
    view = seen(
        request(1), request(2, work=QueuedWork.RETURN_TEST, needs=()), nodes=held("n0", PERSON)
    )
    assert granted(view) == [("n0", (2,))]


def test_request_waits_a_moment_for_the_rollout_that_wants_the_node_too() -> None:
    wanted = held("n0", wanted_by="kernel")
    assert granted(seen(request(1), nodes=wanted)) == []
    offered = request(1, offered_at=NOW + 100)
    assert (
        "rollout kernel takes n0 too"
        in decide(seen(offered, nodes=wanted), NOW + 101).waits[0].reason
    )
    alone = replace(offered, beat_at=NOW + 100 + COURTESY)
    assert granted(seen(alone, nodes=wanted), NOW + 100 + COURTESY) == [("n0", (1,))]


def test_old_request_that_lacks_one_place_keeps_the_others_free() -> None:
    """Else requests for other racks could take the last place of the class for ever."""
    full = {("class", CLASS): DomainRoom(1, 0, 1, 2, 2, 4), ("rack", "r0"): DomainRoom(1, 0, 1, 1)}
    old = replace(seen(request(1, since=NOW - PATIENCE), request(2, "n1")), room=full)
    assert granted(old) == []
    assert granted(replace(old, requests=(request(1), request(2, "n1")))) == [("n1", (2,))]


def test_rollout_keeps_its_place_in_the_order() -> None:
    rollout = request(1, None, work=QueuedWork.ROLLOUT, rollout="kernel", needs=DRAINS)
    assert granted(seen(rollout, request(2, "n1"))) == []
    assert granted(seen(rollout, request(2, "n1"), planned=2)) == [("n1", (2,))]
    assert granted(seen(replace(rollout, since=NOW + 50), request(2, "n1"))) == [("n1", (2,))]


def several(first: int, *names: str, **more: object) -> list[QueueRequest]:
    """Return requests that were asked together."""
    return [
        request(number, name, together=f"run {first}", since=NOW + first, **more)
        for number, name in enumerate(names, first)
    ]


def whole(view: QueueView, now: float = NOW + 100) -> list[list[str]]:
    return [
        [part.node for part in action.parts]
        for action in decide(view, now).actions
        if isinstance(action, GrantTogether)
    ]


def test_several_nodes_are_granted_whole() -> None:
    both = several(1, "n0", "n1")
    assert whole(seen(*both, planned=2)) == [["n0", "n1"]]
    (busy,) = held("n1", QueueHold("kernel", "planned", "rollout")).values()
    waiting = seen(*both, planned=3, nodes={"n1": busy})
    assert whole(waiting) == []
    waits = decide(waiting, NOW + 100).waits
    assert [wait.request for wait in waits] == [1, 2]
    assert waits[0].reason == "2 nodes are granted together: kernel has n1: rollout"


def test_two_runs_on_the_same_nodes_have_one_order_on_each() -> None:
    """Else each could have a node that the other waits for."""
    apply = several(1, "n0", "n1", work=QueuedWork.APPLY)
    rollback = several(3, "n1", "n2", work=QueuedWork.ROLLBACK)
    view = seen(*apply, *rollback, planned=3)
    assert whole(view) == [["n0", "n1"]]
    turns = [replace(one, state=RequestState.GRANTED, turn=one.id, under="queue") for one in apply]
    taken = {
        name: QueueNode(name, (("class", CLASS),), (QueueHold("queue", "planned", "", NOW),))
        for name in ("n0", "n1")
    }
    later = seen(*turns, *rollback, planned=3, nodes=taken)
    (action,) = decide(later, NOW + 100).actions
    assert isinstance(action, GrantTogether)
    assert [type(part).__name__ for part in action.parts] == ["JoinTurn", "GrantTurn"]
    states = {3: 2, 4: 4}  # its turns: that of n1, and one of its own
    joined = [
        replace(one, state=RequestState.GRANTED, turn=states[one.id], under="queue")
        for one in rollback
    ]
    shared = seen(*turns, *joined, planned=3, nodes=taken)
    assert [may_begin(shared, one) for one in (*turns, *joined)] == [False, False, True, True]


def test_other_request_shares_the_turn_of_several_nodes() -> None:
    both = several(1, "n0", "n1", work=QueuedWork.APPLY)
    (action,) = decide(seen(*both, request(3), planned=2), NOW + 100).actions
    assert isinstance(action, GrantTogether)
    assert [part.requests for part in action.parts] == [(1, 3), (2,)]


def test_more_nodes_than_a_limit_allows_are_refused_by_name() -> None:
    (first, *_) = decide(seen(*several(1, "n0", "n1"), planned=1), NOW + 100).waits
    assert first.for_person
    assert "class h100 has a limit of 1, and 2 of its nodes are asked at once" in first.reason


def test_old_request_for_several_nodes_is_not_overtaken() -> None:
    busy = held("n1", QueueHold("kernel", "planned", "rollout"))
    later = request(3, "n0", since=NOW + 50)
    young = seen(*several(1, "n0", "n1"), later, planned=2, nodes=busy)
    assert granted(young) == [("n0", (3,))]
    old = [replace(one, since=NOW - PATIENCE) for one in several(1, "n0", "n1")]
    waits = decide(seen(*old, later, planned=2, nodes=busy), NOW + 100)
    assert not waits.actions
    assert "n0 is left free for request 1, which has waited for a day" in waits.waits[2].reason


def test_old_request_that_a_person_holds_up_takes_no_place_from_others() -> None:
    old = [replace(one, since=NOW - PATIENCE) for one in several(1, "n0", "n1")]
    view = seen(*old, request(3), planned=2, nodes=held("n1", PERSON))
    assert granted(view) == [("n0", (3,))]


def test_mirror_and_drivers_wait_for_each_other() -> None:
    mirror = request(1, None, work=QueuedWork.MIRROR, needs=(), class_="")
    driver = request(2, "n1", work=QueuedWork.APPLY, needs=WORKS[QueuedWork.APPLY])
    running = replace(driver, state=RequestState.RUNNING, turn=2, under="queue")
    waits = decide(seen(mirror, running), NOW + 100).waits
    assert "drivers are being changed on n1" in waits[0].reason
    assert granted(seen(mirror, driver)) == []
    quiet = replace(mirror, state=RequestState.RUNNING)
    assert "the mirror is refreshed" in decide(seen(quiet, driver), NOW + 100).waits[0].reason


def test_dead_asker_loses_its_place_and_a_late_part_ends() -> None:
    silent = request(1, beat_at=NOW)
    assert "no sign of life" in str(decide(seen(silent), NOW + 10 * HOUR).actions)
    late = request(1, state=RequestState.RUNNING, turn=1, under="queue", deadline=NOW)
    assert "LoseWork" in str(decide(seen(late), NOW + 1).actions)


RUNNING = request(9, state=RequestState.RUNNING, turn=9, under="queue", deadline=NOW + HOUR)
TURN = QueueHold("queue", "planned", "repair", NOW + HOUR)


@pytest.mark.parametrize(
    ("nodes", "joins"),
    [
        (held("n0", TURN), True),
        (held("n0", TURN, PERSON), False),
        (held("n0", TURN, ended=frozenset({QueuedWork.APPLY})), False),
    ],
    ids=["turn", "turn of a node that a person has drained since", "work that the turn has done"],
)
def test_request_joins_the_turn_of_its_node(nodes: dict[str, QueueNode], joins: bool) -> None:
    view = seen(RUNNING, request(1, work=QueuedWork.APPLY), nodes=nodes)
    actions = decide(view, NOW + 100).actions
    assert [type(action) for action in actions] == ([JoinTurn] if joins else [])


def test_part_waits_again_once_the_rollout_has_given_its_node_up() -> None:
    part = request(1, state=RequestState.GRANTED, turn=1, under="kernel")
    kept = held("n0", QueueHold("kernel", "planned", "", NOW + HOUR), step="granted")
    assert not decide(seen(part, nodes=kept), NOW + 100).actions
    actions = decide(seen(part), NOW + 100).actions
    assert actions == (RequeueRequest(1, "rollout kernel has given up n0"),)
