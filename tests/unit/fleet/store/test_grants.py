"""Grants and returns, on both engines: every limit, every refusal, and the ledger that they leave."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, text
from tests import postgresql
from tests.unit.fleet.store.fleets import (
    ALICE,
    CLASS,
    LIMITS,
    NEW,
    NOW,
    OLD,
    back,
    counters,
    drop_hold,
    fill,
    held,
    leave,
    refusal,
    rollout,
    take_hold,
    wish,
)

from goldnode.fleet.rollout.model import Proceed, Promote, StepPhase
from goldnode.fleet.store import grants, limits, nodes, observations, orders, rollouts, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError, RefusalKind, StaleEpochError, StoreError
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.fleet.store.orders import Scope


def test_limits_of_class_and_rack_hold_and_a_return_frees_them(store: StoreDatabase) -> None:
    fill(store)
    assert leave(store, 0).deadline == NOW + LIMITS.return_within
    assert refusal(store, 4) == "failed_lock_semaphore_full"  # rack r0
    leave(store, 1)
    assert refusal(store, 2) == "failed_lock_semaphore_full"  # class
    assert counters(store, "class", CLASS) == (2, 0, 0, 2)
    assert back(store, 0).released
    assert refusal(store, 4) == "granted"
    assert held(store) == {"n01": "planned", "n04": "planned"}


def test_counting_a_hold_reads_four_buffers_and_not_all_of_them(migrated: Path) -> None:
    connection = sqlite3.connect(migrated)
    triggers = connection.execute(
        "SELECT sql FROM sqlite_master WHERE name IN "
        "('goldnode_hold_added', 'goldnode_hold_removed', 'goldnode_hold_changed')"
    ).fetchall()
    assert len(triggers) == 3
    for (trigger,) in triggers:
        counted = re.findall(r"UPDATE buffer SET .*?;", trigger)
        assert len(counted) == 4
        for found in counted:
            statement = re.sub(r"\b(OLD|NEW)\.\w+", "'x'", found)
            steps = [step for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert sum(step.startswith("SEARCH buffer USING") for step in steps) == 1
            assert not [step for step in steps if step.startswith("SCAN buffer")]
    connection.close()


def test_counting_a_hold_on_postgresql_never_reads_the_whole_table(
    server: postgresql.Cluster, template: str
) -> None:
    """A plan is stored while the table is small or unknown to the statistics, and serves when it is large."""
    store = StoreDatabase(server.create(f"scans_{os.getpid()}", template))
    fleet = [StoredNode(f"n{number:04}", CLASS, f"r{number}") for number in range(1000)]
    store.run(lambda c: nodes.put(c, fleet, {CLASS: FleetLimits("50", "50", "50")}, "test", NOW))
    scans = text("SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'buffer'")
    with store.write() as connection:
        before = connection.scalar(scans)
        for number in range(30):
            connection.execute(
                tables.hold.insert().values(
                    node=f"n{number:04}",
                    owner="lock",
                    kind="planned",
                    since=NOW,
                    deadline=NOW,
                    reason="leave",
                )
            )
        connection.execute(tables.hold.delete())
        assert connection.scalar(scans) == before
    store.close()


def test_refusal_names_the_domain_and_the_numbers(store: StoreDatabase) -> None:
    fill(store)
    leave(store, 0)
    with pytest.raises(
        GrantRefusedError, match=r"^rack r0: 1 nodes are out of service \(planned\), the limit is 1"
    ):
        leave(store, 4)


def test_asking_again_gives_the_same_answer_and_counts_once(store: StoreDatabase) -> None:
    fill(store)
    first = leave(store, 0)
    again = leave(store, 0, now=NOW + 60)
    assert (again.deadline, again.again) == (first.deadline, True)
    assert counters(store, "class", CLASS)[0] == 1


@pytest.mark.parametrize(
    ("number", "more", "kind"),
    [
        (99, {}, "unknown_node"),
        (0, {"group": "other"}, "unknown_group"),
        (0, {"group": "r1"}, "unknown_group"),
        (0, {"group": "r0"}, "granted"),
        (0, {"node": f"{0:032x}"}, "granted"),
        (0, {"rollout": "none"}, "not_your_turn"),
    ],
)
def test_unknown_names_are_refused(
    store: StoreDatabase, number: int, more: dict[str, str], kind: str
) -> None:
    fill(store)
    assert refusal(store, number, **more) == kind


def test_class_without_limits_gets_no_grant(store: StoreDatabase) -> None:
    fill(store, limits=None)
    assert refusal(store, 0) == "no_document_in_force"


@pytest.mark.parametrize(
    "scope", [Scope(), Scope("class", CLASS), Scope("rack", "r0")], ids=lambda scope: scope.kind
)
def test_freeze_stops_grants_and_no_return(store: StoreDatabase, scope: Scope) -> None:
    fill(store)
    leave(store, 4)
    assert store.run(lambda c: orders.freeze(c, scope, ALICE))
    assert not store.run(lambda c: orders.freeze(c, scope, ALICE))
    assert back(store, 4).released
    assert refusal(store, 4) == "frozen"
    assert refusal(store, 1) == ("granted" if scope.kind == "rack" else "frozen")
    assert store.run(lambda c: orders.unfreeze(c, scope, ALICE))
    assert refusal(store, 4) == "granted"


def test_overdue_node_moves_to_the_failed_buffer_and_others_go_on(store: StoreDatabase) -> None:
    fill(store)
    leave(store, 0)
    leave(store, 1)
    late = NOW + LIMITS.return_within + 1
    assert store.run(lambda c: grants.overdue(c, late - 2)) == []
    assert store.run(lambda c: grants.overdue(c, late)) == ["n00", "n01"]
    assert counters(store, "class", CLASS) == (0, 2, 0, 2)
    assert refusal(store, 2) == "granted"
    assert refusal(store, 3) == "failed_lock_semaphore_full"  # 3 total
    answer = back(store, 0)
    assert (answer.released, answer.refusal and answer.refusal.kind) == (
        False,
        "release_by_a_person_only",
    )
    assert held(store)["n00"] == "failed"
    assert store.run(lambda c: grants.release(c, "n00", ALICE)) == ["lock"]
    assert refusal(store, 0) == "granted"


def test_failures_above_their_limit_stop_grants(store: StoreDatabase) -> None:
    fill(store, limits=FleetLimits("2", "1", "8"))
    store.run(lambda c: take_hold(c, "n04", "failed", "check", ALICE))
    store.run(lambda c: take_hold(c, "n05", "failed", "check", ALICE))
    assert refusal(store, 0) == "failed_buffer_full"


def test_node_with_two_reasons_counts_once_together(store: StoreDatabase) -> None:
    fill(store)
    store.run(lambda c: take_hold(c, "n00", "failed", "check", ALICE))
    store.run(lambda c: take_hold(c, "n00", "person", "alice", ALICE))
    assert counters(store, "class", CLASS) == (0, 1, 1, 1)
    assert store.run(lambda c: drop_hold(c, "n00", "alice", ALICE))
    assert counters(store, "class", CLASS) == (0, 1, 0, 1)
    assert store.run(lambda c: grants.release(c, "n00", ALICE)) == ["check"]
    assert counters(store, "class", CLASS) == (0, 0, 0, 0)


def test_release_of_a_node_with_two_reasons_counts_once(store: StoreDatabase) -> None:
    """PostgreSQL runs triggers after a DELETE of two rows when both are gone."""
    fill(store)
    store.run(lambda c: take_hold(c, "n00", "failed", "check", ALICE))
    store.run(lambda c: take_hold(c, "n00", "person", "alice", ALICE))
    assert store.run(lambda c: grants.release(c, "n00", ALICE)) == ["alice", "check"]
    assert counters(store, "class", CLASS) == (0, 0, 0, 0)
    with store.write() as connection:
        connection.execute(
            tables.hold.insert(),
            [
                {"node": "n00", "owner": owner, "kind": "failed", "since": 1, "reason": ""}
                for owner in "ab"
            ],
        )
        connection.execute(
            text(
                "INSERT INTO hold (node, owner, kind, since, reason) "
                "SELECT 'n01', name, 'failed', 1, '' FROM node WHERE name < 'n02'"
            )
        )
    assert counters(store, "class", CLASS) == (0, 4, 0, 2)


def test_edited_limits_are_in_force_at_once(store: StoreDatabase) -> None:
    fill(store, limits=FleetLimits("1", "2", "8"))
    leave(store, 0)
    assert refusal(store, 1) == "failed_lock_semaphore_full"
    fill(store, limits=FleetLimits("2", "2", "8"))
    assert refusal(store, 1) == "granted"
    fill(
        store, limits=FleetLimits("1", "2", "8")
    )  # two are out: neither is lost, and no third one goes
    assert refusal(store, 2) == "failed_lock_semaphore_full"
    assert back(store, 0).released
    assert refusal(store, 2) == "failed_lock_semaphore_full"
    assert back(store, 1).released
    assert refusal(store, 2) == "granted"


def test_rollout_moves_nodes_of_open_waves_only(store: StoreDatabase) -> None:
    fill(store)
    controller = rollout(store, waves=(("n00", "n01"), ("n02",)))
    assert refusal(store, 2, rollout="kernel") == "not_your_turn"
    assert refusal(store, 0, rollout="kernel", wants="sha256:other") == "not_your_turn"
    granted = leave(store, 0, rollout="kernel", wants=NEW, digest=OLD, boot_id="b1")
    assert (granted.epoch, granted.owner) == (controller.epoch, "kernel")
    answer = back(store, 0, rollout="kernel", digest=OLD, boot_id="b2")  # it fell back
    assert answer.refusal is not None
    assert held(store) == {"n00": "planned"}
    assert back(store, 0, rollout="kernel", digest=NEW, boot_id="b2").released
    assert refusal(store, 0, rollout="kernel") == "not_your_turn"  # done
    store.run(lambda c: rollouts.write(c, controller, [Promote(1, ("n02",))], NOW))
    assert refusal(store, 2, rollout="kernel") == "granted"


def test_node_that_gives_up_before_it_boots_is_passed_over(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    leave(store, 0, rollout="kernel", digest=OLD, boot_id="b1")
    assert back(store, 0, rollout="kernel", digest=OLD, boot_id="b1").released
    assert leave(store, 0, rollout="kernel", digest=OLD, boot_id="b1").again is False


def test_denied_digest_is_refused_until_it_is_lifted(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    store.run(lambda c: orders.deny(c, CLASS, NEW, ALICE))
    assert refusal(store, 0, rollout="kernel") == "digest_denied"
    assert held(store) == {}
    assert store.run(lambda c: orders.lift_denial(c, CLASS, NEW, ALICE))
    assert refusal(store, 0, rollout="kernel") == "granted"


def test_grant_under_an_old_epoch_is_refused_by_the_database(store: StoreDatabase) -> None:
    fill(store)
    old = rollout(store)

    def insert(connection: Connection) -> None:
        connection.execute(
            tables.hold.insert().values(
                node="n00",
                owner="kernel",
                kind="planned",
                rollout="kernel",
                epoch=old.epoch - 1,
                since=NOW,
                deadline=NOW,
                reason="",
            )
        )

    with pytest.raises(StaleEpochError):
        store.run(insert)


# Statements of a program that knows no rule: the guards stop each one.
RAW = {
    "frozen": (
        "INSERT INTO frozen VALUES ('f', 'all', '', '', 'x', 1, NULL, NULL)",
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) VALUES ('n00', 'x', 'planned', 1, 2, '')",
    ),
    "planned": (
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) "
        "SELECT name, 'x', 'planned', 1, 2, '' FROM node WHERE name < 'n02'",
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) VALUES ('n02', 'x', 'planned', 1, 2, '')",
    ),
    "kind": (
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) VALUES ('n00', 'x', 'failed', 1, 2, '')",
        "UPDATE hold SET kind = 'planned'",
    ),
    "out": (
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) VALUES ('n00', 'x', 'person', 1, 2, '')",
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) VALUES ('n00', 'y', 'planned', 1, 2, '')",
    ),
    "twice": (
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) VALUES ('n00', 'x', 'failed', 1, 2, '')",
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) VALUES ('n00', 'x', 'failed', 1, 2, '') "
        "ON CONFLICT DO NOTHING",
    ),
    "moved": (
        "INSERT INTO hold (node, owner, kind, since, deadline, reason) VALUES ('n00', 'x', 'planned', 1, 2, '')",
        "UPDATE node SET rack = 'r9' WHERE name = 'n00'",
    ),
    "append": ("UPDATE log SET who = 'x'",),
    "append (delete)": ("DELETE FROM log",),
    "backwards": ("UPDATE rollout SET epoch = 5", "UPDATE rollout SET epoch = 4"),
    "phase": (
        "UPDATE rollout SET phase = 'superseded'",
        "INSERT INTO hold (node, owner, kind, rollout, epoch, since, deadline, reason) "
        "VALUES ('n00', 'x', 'planned', 'kernel', 1, 1, 2, '')",
    ),
    "author": ("INSERT INTO approval VALUES ('kernel', 'first', 'oncall', 'alice@controller', 1)",),
}


@pytest.mark.parametrize("guard", RAW)
def test_guard_stops_a_program_that_knows_no_rule(store: StoreDatabase, guard: str) -> None:
    fill(store)
    rollout(store)
    *before, last = RAW[guard]
    with store.write() as connection:
        for statement in before:
            connection.execute(text(statement))
    with pytest.raises(StoreError) as caught, store.write() as connection:
        connection.execute(text(last))
    assert f"goldnode:{guard.split()[0]}" in str(caught.value.__cause__)


def test_held_node_that_moves_is_counted_where_it_is(store: StoreDatabase) -> None:
    fill(store)
    store.run(lambda c: take_hold(c, "n00", "failed", "check", ALICE))
    with store.write() as connection:
        connection.execute(
            tables.node.update().where(tables.node.c.name == "n00").values(rack="r1")
        )
        limits.apply(connection)
    assert counters(store, "rack", "r0") == (0, 0, 0, 0)
    assert counters(store, "rack", "r1") == (0, 1, 0, 1)


def test_every_change_has_a_line_in_the_log(store: StoreDatabase) -> None:
    fill(store)
    leave(store, 0)
    back(store, 0, boot_id="b1")
    store.run(lambda c: orders.freeze(c, Scope("rack", "r0"), ALICE))
    with store.read() as connection:
        rows = connection.execute(
            select(tables.log.c.action, tables.log.c.who).order_by(tables.log.c.seq)
        ).all()
    assert [tuple(row) for row in rows] == [
        ("PutNodes", "test"),
        ("Grant", "node n00"),
        ("Finish", "node n00"),
        ("Freeze", ALICE.who),
    ]


def test_refused_grant_leaves_nothing_behind(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    store.run(lambda c: orders.deny(c, CLASS, NEW, ALICE))
    refusal(store, 0, rollout="kernel")
    with store.read() as connection:
        assert connection.execute(select(tables.step)).all() == []
        assert (
            connection.scalar(
                select(tables.log.c.action).order_by(tables.log.c.seq.desc()).limit(1)
            )
            == "Deny"
        )


def test_explain_finds_the_reason_for_a_guards_refusal(store: StoreDatabase) -> None:
    fill(store)
    store.run(lambda c: orders.freeze(c, Scope(), ALICE))
    guard = GrantRefusedError(RefusalKind.FULL, "a guard")
    with store.read() as connection:
        found = grants.explain(connection, wish(0), guard)
    assert found.message == "all is frozen by alice@controller: a reason"


def test_return_of_an_overdue_node_is_refused_although_a_person_drained_it_too(
    store: StoreDatabase,
) -> None:
    fill(store)
    leave(store, 0)
    store.run(lambda c: grants.overdue(c, NOW + 10**6))
    store.run(lambda c: take_hold(c, "n00", "person", "alice", ALICE))
    answer = back(store, 0)
    assert not answer.released
    assert answer.refusal is not None
    assert answer.refusal.kind is RefusalKind.PERSON
    assert refusal(store, 0) == "release_by_a_person_only"


def reports(store: StoreDatabase, number: int, **more: str | float) -> list[float]:
    """Report once, and return the times of all reports of the node."""
    table = tables.observation
    request = wish(number, **more)
    store.run(lambda c: grants.observe_all(c, [request]))
    with store.read() as connection:
        rows = connection.execute(select(table.c.received_at).where(table.c.node == request.node))
        return [row[0] for row in rows]


@pytest.mark.parametrize("back_by", [0.0, 3.0, 3600.0, 10**7])
def test_report_after_a_change_of_the_step_counts_whatever_the_clock_of_the_service_is(
    store: StoreDatabase, back_by: float
) -> None:
    fill(store)
    controller = rollout(store)
    own = {"rollout": "kernel", "digest": OLD, "boot_id": "b1"}
    leave(store, 0, **own)
    assert len(reports(store, 0, now=NOW + 10, **own)) == 1
    before = len(reports(store, 0, now=NOW + 11 - back_by, **own))
    assert before == 1 + (back_by > 3600), "it reports nothing new"
    step = Proceed("n00", StepPhase.APPLYING, NOW + 900)
    store.run(lambda c: rollouts.write(c, controller, [step], NOW + 20))
    found = reports(store, 0, now=NOW + 30 - back_by, **own)
    assert len(found) == before + 1
    assert found == sorted(found)
    assert found[-1] > NOW + 20


def test_reports_of_two_services_have_the_order_of_their_arrival(store: StoreDatabase) -> None:
    fill(store)
    for boot, now in (("b1", NOW + 30), ("b2", NOW), ("b3", NOW + 31)):
        found = reports(store, 0, boot_id=boot, now=now)
    assert found == sorted(found)
    with store.read() as connection:
        last = observations.last(connection, ["n00"])
    assert last["n00"].report.boot_id == "b3"


def test_reports_with_a_clock_that_was_set_back_do_not_fill_the_store(store: StoreDatabase) -> None:
    fill(store)
    for second in range(20):
        found = reports(store, 0, boot_id="b1", now=NOW + 10**7 * (second == 0) + second)
    assert len(found) == 2, "one by each clock"
