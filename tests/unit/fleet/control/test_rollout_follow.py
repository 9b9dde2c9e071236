"""Rollouts whose nodes follow a channel, end to end but for the machines, which are simulated."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from tests.unit.fleet.control.followed import FollowedRollout, followed, free_port, served
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.store.fleets import held

from goldnode.fleet.rollout.model import RolloutPhase
from goldnode.fleet.store import grants, orders
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.orders import Scope
from goldnode.node.follow.loop import FILE
from goldnode.node.ground.errors import NodeError

ALICE = PersonsOrder("alice@c", 0.0, "a reason")


@pytest.fixture
def where(tmp_path: Path, migrated: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'fleet.db')}"


def digests(rollout: FollowedRollout) -> set[str]:
    return {machine.digest for machine in rollout.machines.values()}


def test_good_rollout_ends_and_each_node_boots_once(tmp_path: Path, where: str) -> None:
    rollout = followed(tmp_path, where)
    store = rollout.store()
    with served(rollout):
        report = rollout.run(store)
        rollout.passes()
    assert report.phase is RolloutPhase.COMPLETED, (report, rollout.said)
    assert digests(rollout) == {documents.NEW}
    assert {machine.boots for machine in rollout.machines.values()} == {2}
    assert held(store) == {}
    assert not list(tmp_path.glob(f"nodes/*{FILE}")), "no step is left"
    store.close()


@pytest.mark.parametrize("fault", ["refuses", "broken"])
def test_bad_change_is_stopped_in_the_canary_wave_and_rolled_back(
    tmp_path: Path, where: str, fault: str
) -> None:
    rollout = followed(
        tmp_path,
        where,
        ("timeout: 1h", "timeout: 1h\non_fail: {do: rollback, what: wave}"),
        every=fault,
    )
    store = rollout.store()
    with served(rollout):
        report = rollout.run(store)
    assert report.phase is RolloutPhase.ROLLED_BACK, (report, rollout.said)
    assert digests(rollout) == {documents.OLD}
    touched = [name for name, machine in rollout.machines.items() if machine.boots > 1]
    assert len(touched) <= 2
    assert held(store) == {}, rollout.said
    with store.read() as connection:
        assert connection.exec_driver_sql("SELECT digest FROM denied").scalars().all() == [
            documents.NEW
        ]
    store.close()


def test_node_that_falls_back_keeps_its_slot_and_the_others_go_on(
    tmp_path: Path, where: str
) -> None:
    rollout = followed(tmp_path, where)
    bad = "n1"
    rollout.machines[bad].fault = "broken"
    store = rollout.store()
    with served(rollout):
        rollout.run(store, rounds=30)
        others = {machine.digest for name, machine in rollout.machines.items() if name != bad}
        assert others == {documents.NEW}, rollout.said
        assert held(store) == {bad: "failed"}
        assert "keeps its slot: n1 is in the failed buffer" in rollout.said[bad][-1]
        boots = rollout.machines[bad].boots
        assert boots == 2, "it does not take the same bad release again"
        store.run(lambda c: grants.release(c, bad, ALICE))
        rollout.machines[bad].fault = ""
        rollout.run(store, rounds=8, to_end=False)
    assert digests(rollout) == {documents.NEW}, "\n".join(rollout.said[bad][-12:])
    store.close()


@pytest.mark.long
def test_silent_node_becomes_overdue_and_failed_and_the_others_go_on(
    tmp_path: Path, where: str
) -> None:
    rollout = followed(tmp_path, where)
    rollout.machines["n2"].fault = "silent"
    store = rollout.store()
    with served(rollout):
        rollout.run(store, rounds=30, step=300.0)
    assert held(store) == {"n2": "failed"}
    with store.read() as connection:
        (reason,) = connection.exec_driver_sql("SELECT reason FROM hold").scalars().all()
    assert "did not report in time" in reason
    assert {m.digest for name, m in rollout.machines.items() if name != "n2"} == {documents.NEW}
    store.close()


def booted(rollout: FollowedRollout) -> set[str]:
    """Return the machines that have booted once more."""
    return {name for name, machine in rollout.machines.items() if machine.boots == 2}


def test_nothing_starts_while_the_service_is_away_and_slots_stay(
    tmp_path: Path, where: str
) -> None:
    rollout, late = followed(tmp_path, where), time.monotonic() + 60
    store = rollout.store()
    with served(rollout):
        rollout.run(store, rounds=1)
        controller = rollout.controller(store)
        moved = booted(rollout)
        while len(moved) < 2 and time.monotonic() < late:  # what a tick starts ends when it can
            controller.tick()
            rollout.passes()  # the canaries boot
            moved = booted(rollout)
    assert len(moved) == 2
    for _ in range(3):
        rollout.passes()
        rollout.now += 20
        controller.tick()
    assert booted(rollout) == moved
    assert set(held(store)) == moved, "each keeps its slot until the service has its report"
    text = rollout.said[sorted(moved)[0]][-1]
    assert "the lock service" in text
    assert "is away" in text
    controller.close()
    with served(rollout):
        report = rollout.run(store)
    assert report.phase is RolloutPhase.COMPLETED, rollout.said
    store.close()


@pytest.mark.long
def test_channel_that_is_away_starts_nothing_and_ends_what_was_begun(
    tmp_path: Path, where: str
) -> None:
    rollout = followed(tmp_path, where)
    store = rollout.store()
    with served(rollout):
        rollout.run(store, rounds=1)
        controller = rollout.controller(store)
        for _ in range(3):
            controller.tick()
        rollout.passes()
        moved = {name for name, machine in rollout.machines.items() if machine.boots == 2}
        for _ in range(4):
            rollout.passes(channel=str(tmp_path / "gone"))
            rollout.now += 20
            controller.tick()
        assert {name for name, machine in rollout.machines.items() if machine.boots == 2} == moved
        for name in moved:
            assert "its step has ended" in " ".join(rollout.said[name])
        controller.close()
    store.close()


@pytest.mark.long
def test_frozen_rollout_grants_nothing_and_granted_nodes_finish(tmp_path: Path, where: str) -> None:
    rollout = followed(tmp_path, where)
    store = rollout.store()
    with served(rollout):
        rollout.run(store, rounds=1)
        store.run(lambda c: orders.freeze(c, Scope(), ALICE))
        rollout.run(store, rounds=6)
        moved = [name for name, machine in rollout.machines.items() if machine.boots == 2]
        assert len(moved) <= 2
        store.run(lambda c: orders.unfreeze(c, Scope(), ALICE))
        report = rollout.run(store)
    assert report.phase is RolloutPhase.COMPLETED
    store.close()


def test_controller_that_starts_after_the_nodes_have_reported_begins(
    tmp_path: Path, where: str
) -> None:
    rollout = followed(tmp_path, where)
    store = rollout.store()
    with served(rollout):
        rollout.passes()
        report = rollout.run(store)
    assert report.phase is RolloutPhase.COMPLETED, report
    store.close()


def test_node_that_has_never_reported_is_deferred_once(tmp_path: Path, where: str) -> None:
    rollout = followed(tmp_path, where)
    rollout.machines["n0"].up = False
    store = rollout.store()
    with served(rollout):
        rollout.run(store, rounds=4)
    with store.read() as connection:
        query = "SELECT count(*) FROM log WHERE action = 'Finish' AND subject = 'n0'"
        assert connection.exec_driver_sql(query).scalar_one() <= 1
    store.close()


@pytest.mark.long
def test_busy_gpu_is_not_taken_away(tmp_path: Path, where: str) -> None:
    rollout = followed(tmp_path, where)
    for machine in rollout.machines.values():
        machine.busy = "pid 7 python"
    store = rollout.store()
    with served(rollout):
        rollout.run(store, rounds=4)
        assert {machine.boots for machine in rollout.machines.values()} == {1}
        assert any(
            "a GPU is in use by pid 7 python" in text
            for said in rollout.said.values()
            for text in said
        )
        for machine in rollout.machines.values():
            machine.busy = None
        assert rollout.run(store).phase is RolloutPhase.COMPLETED
    store.close()


@pytest.mark.long
@pytest.mark.parametrize("where_cut", ["apply", "reboot"])
def test_pass_that_is_cut_off_continues(tmp_path: Path, where: str, where_cut: str) -> None:
    rollout = followed(tmp_path, where)
    store = rollout.store()

    class Cut(BaseException):
        pass

    def cut(*words: object) -> None:
        raise Cut

    for machine in rollout.machines.values():
        setattr(machine, where_cut, cut)
    with served(rollout):
        rollout.run(store, rounds=1)
        controller = rollout.controller(store)
        for _ in range(3):
            controller.tick()
        controller.close()
        with pytest.raises(Cut):
            rollout.passes()
        for machine in rollout.machines.values():
            delattr(machine, where_cut)
        report = rollout.run(store)
    assert report.phase is RolloutPhase.COMPLETED, rollout.said
    assert {machine.boots for machine in rollout.machines.values()} == {2}
    store.close()


def test_damaged_step_file_is_an_error_with_its_remedy(tmp_path: Path, where: str) -> None:
    rollout = followed(tmp_path, where)
    follower = rollout.follower("n0", service=f"http://127.0.0.1:{free_port()}")
    follower.host.write(FILE, b"torn")
    with pytest.raises(NodeError, match="Compare `goldnode fleet status`"):
        follower.run()


@pytest.mark.long
def test_rollout_to_another_kind_of_state_is_reported(tmp_path: Path, where: str) -> None:
    rollout = followed(tmp_path, where)
    for machine in rollout.machines.values():
        machine.kind = "disk"
    store = rollout.store()
    with served(rollout):
        rollout.run(store, rounds=3)
    assert any(
        "is to a lock, and it is simulated" in text
        for said in rollout.said.values()
        for text in said
    )
    assert {machine.boots for machine in rollout.machines.values()} == {1}
    store.close()
