"""The power-cycle command of a site: once for a step, in the log before and after, and never a release."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.unit.fleet.store.fleets import ALICE, NOW, fill, held, rollout

from goldnode.core.site import SiteFleet
from goldnode.fleet.control import power
from goldnode.fleet.control.power import PowerCycle, PowerCycleError, power_cycle
from goldnode.fleet.rollout.model import Action, Direction, Grant, Overdue, Prior
from goldnode.fleet.store import grants, rollouts
from goldnode.fleet.store.controllers import Controller
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.log import decoded, entries


@pytest.fixture
def store(tmp_path: Path, migrated: Path) -> Iterator[StoreDatabase]:
    database = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    fill(database)
    yield database
    database.close()


@pytest.fixture
def controller(store: StoreDatabase) -> Controller:
    found = rollout(store)
    granted(store, found, 1)
    return found


def granted(store: StoreDatabase, controller: Controller, attempt: int) -> None:
    """Grant leave to n00, and let it become overdue."""
    actions: list[Action] = [
        Grant("n00", Direction.FORWARD, attempt, NOW + 60, Prior(True, "sha256:old", "b")),
        Overdue("n00", "late"),
    ]
    store.run(lambda c: rollouts.write(c, controller, actions, NOW))


def cycle(
    store: StoreDatabase, *command: str, node: str = "n00", timeout: float = 20
) -> power.PowerCycleResult:
    given = PowerCycle(
        "kernel", node, command or ("/bin/echo", "cycled", "{node}"), "c/1", timeout=timeout
    )
    return power_cycle(store, given, lambda: NOW)


def lines(store: StoreDatabase) -> list[tuple[str, dict[str, Any]]]:
    with store.read() as connection:
        rows = [decoded(dict(row)) for row in entries(connection, rollout="kernel", subject="n00")]
    return [(row["action"], row["content"]) for row in rows if row["action"].startswith("Power")]


def test_overdue_node_is_cycled_once_and_stays_in_the_failed_buffer(
    store: StoreDatabase, controller: Controller
) -> None:
    done = cycle(store)
    assert (done.tried, done.succeeded, done.text) == (True, True, "succeeded: cycled n00")
    assert not cycle(store).tried
    assert held(store) == {"n00": "failed"}
    before, after = lines(store)
    assert before[0] == "PowerCycle"
    assert before[1]["command"] == "/bin/echo cycled n00"
    assert after == ("PowerCycled", {**after[1], "succeeded": True, "attempt": 1})


def test_next_attempt_of_the_node_may_be_cycled_again(
    store: StoreDatabase, controller: Controller
) -> None:
    assert cycle(store).tried
    store.run(lambda c: grants.release(c, "n00", ALICE))
    assert not cycle(store).tried
    granted(store, controller, 2)
    assert cycle(store).tried


def test_crash_during_the_command_never_repeats_it(
    store: StoreDatabase, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(power, "_ran", killed)
        with pytest.raises(KeyboardInterrupt):
            cycle(store)
    assert [action for action, _ in lines(store)] == ["PowerCycle"]
    assert not cycle(store).tried


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("/bin/sh", "-c", "echo no such BMC; exit 3", "{node}"), "exit status 3: no such BMC"),
        (
            ("/nonexistent/bmc", "{node}"),
            "could not run /nonexistent/bmc: No such file or directory",
        ),
    ],
)
def test_command_that_fails_is_logged_and_not_repeated(
    store: StoreDatabase, controller: Controller, command: tuple[str, ...], text: str
) -> None:
    done = cycle(store, *command)
    assert (done.tried, done.succeeded, done.text) == (True, False, text)
    assert lines(store)[-1][1]["result"] == text
    assert not cycle(store, *command).tried


def test_command_that_hangs_ends_with_its_children(
    store: StoreDatabase, controller: Controller
) -> None:
    began = time.monotonic()
    done = cycle(store, "/bin/sh", "-c", "sleep 60 & wait", "{node}", timeout=0.3)
    assert (done.succeeded, done.text) == (False, "did not end within 0.3 s")
    assert time.monotonic() - began < 20


def test_released_node_is_not_cycled(store: StoreDatabase, controller: Controller) -> None:
    store.run(lambda c: grants.release(c, "n00", ALICE))
    assert not cycle(store).tried


def test_node_that_is_not_overdue_is_not_cycled(
    store: StoreDatabase, controller: Controller
) -> None:
    command = (sys.executable, "-c", "raise SystemExit(1)", "{node}")
    assert not cycle(store, *command, node="n01").tried
    assert not lines(store)


def test_line_changes_no_state_of_the_rollout(store: StoreDatabase, controller: Controller) -> None:
    with store.read() as connection:
        seen = entries(connection, limit=1)[0]["seq"]
    cycle(store)
    with store.read() as connection:
        assert not rollouts.changed(connection, "kernel", seen)


def test_command_must_name_the_node(store: StoreDatabase, controller: Controller) -> None:
    with pytest.raises(PowerCycleError, match=r"has no \{node\}"):
        cycle(store, "/bin/true")
    with pytest.raises(PowerCycleError, match="cannot be passed"):
        cycle(store, "/bin/echo", "{node}", node="--all")
    with pytest.raises(ValidationError, match=r"needs \{node\}"):
        SiteFleet(power_cycle=("bmc-cycle", "--all"))
    assert SiteFleet(power_cycle=("bmc-cycle", "{node}")).power_cycle == ("bmc-cycle", "{node}")
