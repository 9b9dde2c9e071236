"""Cohorts that move whole: in no committed state do two serving nodes of one cohort have different states.

A real store; the nodes are simulated, and the controller is killed at statements.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.unit.fleet.control.controlled import (
    ControlledRollout,
    Killed,
    StatementCounter,
    World,
    controlled,
)

from goldnode.fleet.store.database import StoreDatabase

SIZE, COHORT = 16, 4
CHANGES = (
    ("soak: 4h", "soak: 20m"),
    ("soak: 4h", "soak: 20m"),
    ("canary: {nodes: 2, spread: leaf}", "canary: {nodes: 4}"),
    (
        "planned: 4, failed: 8, total: 10",
        "planned: 8, failed: 8, total: 10, per: {cohort: all-or-none}",
    ),
)
ALL = ("timeout: 1h", "timeout: 1h\non_fail: {do: rollback, what: all}")


def cohort_of(name: str) -> int:
    return int(name[1:]) // COHORT


def mixed(world: World) -> list[str]:
    """Return the cohorts that serve in two states."""
    states: dict[int, set[str]] = {}
    for name, node in world.nodes.items():
        if node.in_service:
            states.setdefault(cohort_of(name), set()).add(node.digest)
    return [
        f"cohort {number}: {sorted(found)}" for number, found in states.items() if len(found) > 1
    ]


def fresh(
    directory: Path, migrated: Path, *changes: tuple[str, str], **faults: str
) -> ControlledRollout:
    directory.mkdir()
    shutil.copy(migrated, directory / "fleet.db")
    found = controlled(directory, str(directory / "fleet.db"), SIZE, *CHANGES, *changes, **faults)
    store = found.store()
    with store.write() as connection:
        for name in found.world.names:
            connection.exec_driver_sql(
                f"UPDATE node SET cohort = 'c{cohort_of(name)}' WHERE name = '{name}'"  # noqa: S608
            )
    store.close()
    return found


def run(found: ControlledRollout, kill_at: int | None = None) -> tuple[int, list[str]]:
    """Run to the end; return the statements, and what was mixed at a commit or at a deed on a node."""
    wrong: list[str] = []

    def watch(store: StoreDatabase) -> None:
        event.listen(store.engine, "commit", lambda _: wrong.extend(mixed(found.world)))

    for life in range(1, 4):
        store = found.store()
        watch(store)
        counter = StatementCounter(kill_at if life == 1 else None)
        counter.watch(store)
        controller = found.controller(store, f"c/{life}")
        try:
            for _ in range(2000):
                report = controller.tick()
                wrong += mixed(found.world)
                found.world.now += 60
                if report.ended:
                    return counter.count, wrong
        except Killed:
            continue
        finally:
            controller.close()
            store.close()
    raise AssertionError("the rollout does not end")


@pytest.mark.parametrize("kind", ["good", "bad"])
@pytest.mark.parametrize("share", [401, pytest.param(3, marks=pytest.mark.long, id="every-third")])
def test_cohort_never_serves_in_two_states(
    tmp_path: Path, migrated: Path, kind: str, share: int
) -> None:
    faults: dict[str, Any] = (
        {} if kind == "good" else {"n05": "image", "n06": "image", "n09": "module"}
    )
    whole = fresh(tmp_path / "whole", migrated, ALL, **faults)
    statements, wrong = run(whole)
    assert not wrong, wrong[:3]
    assert len(set(map(cohort_of, whole.world.served))) >= 1
    for place in range(1, statements, share):
        found = fresh(tmp_path / f"cut-{place}", migrated, ALL, **faults)
        _, wrong = run(found, place)
        assert not wrong, f"killed before statement {place}: {wrong[:3]}"
        shutil.rmtree(tmp_path / f"cut-{place}")


def test_mixed_cohort_is_noticed_by_the_test(tmp_path: Path, migrated: Path) -> None:
    found = fresh(tmp_path / "one", migrated)
    found.world.nodes["n00"].digest = found.world.target
    assert mixed(found.world)
