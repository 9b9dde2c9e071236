"""A freeze in any state of a rollout: no grant after it, nodes return, and lifting it continues where it stood."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.fleet.control.controlled import ControlledRollout, controlled

from goldnode.fleet.control.controller import ControllerReport, ControllerSettings
from goldnode.fleet.rollout.model import ChangePhase, Extend, Grant, Promote, Start
from goldnode.fleet.store import orders
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.orders import Scope

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
SCOPES = (Scope(), Scope("class", "l4"), Scope("rollout", "r1"))
FAULTS = {"good": {}, "bad": {f"n{number:02}": "image" for number in range(10)}}
QUIET_TICKS = 12


def fresh(directory: Path, migrated: Path, faults: dict[str, str]) -> ControlledRollout:
    directory.mkdir()
    shutil.copy(migrated, directory / "fleet.db")
    return controlled(directory, str(directory / "fleet.db"), 10, *FAST, **faults)


def frozen_run(
    found: ControlledRollout, at: int, scope: Scope
) -> tuple[list[ControllerReport], int]:
    """Freeze before tick `at`, wait, lift it, and run to the end. Return the frozen ticks, and the ticks before."""
    store = found.store()
    controller = found.controller(store)
    ann = PersonsOrder("ann@c", found.world.now, "a reason")
    frozen: list[ControllerReport] = []
    for number in range(2000):
        if number == at:
            store.run(lambda c: orders.freeze(c, scope, ann))
        if number == at + QUIET_TICKS:
            store.run(lambda c: orders.unfreeze(c, scope, ann))
        report = controller.tick()
        found.world.now += 60
        if at <= number < at + QUIET_TICKS:
            frozen.append(report)
        elif report.ended:
            break
    controller.close()
    store.close()
    return frozen, number


def _outcome(found: ControlledRollout) -> tuple[object, ...]:
    """Return the end, without when and in which order it came."""
    lines, end = found.history()
    granted = {
        name: sum(line[0] == "Grant" for line in rows) for name, rows in lines.items() if name
    }
    return end, granted, {name: node.digest for name, node in found.world.nodes.items()}


def _ticks(places: Sequence[int], share: int) -> list[int]:
    return list(places)[1::share]


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("share", [23, pytest.param(1, marks=pytest.mark.long, id="each-tick")])
def test_freeze_in_any_state_stops_grants_and_continues_where_it_stood(
    tmp_path: Path, migrated: Path, kind: str, share: int
) -> None:
    assert ControllerSettings("c/1").tick <= 10  # a freeze is seen within a tick
    whole = fresh(tmp_path / "whole", migrated, FAULTS[kind])
    _, ticks = frozen_run(whole, 10**6, SCOPES[0])
    for number, at in enumerate(_ticks(range(ticks), share)):
        found = fresh(tmp_path / f"at-{at}", migrated, FAULTS[kind])
        frozen, _ = frozen_run(found, at, SCOPES[number % len(SCOPES)])
        for report in frozen:
            wrong = [
                one for one in report.actions if isinstance(one, Grant | Start | Promote | Extend)
            ]
            assert not wrong, f"frozen before tick {at}: {wrong}"
            assert not any(
                isinstance(one, ChangePhase) and one.phase == "completed" for one in report.actions
            )
        # What was in flight has ended, and each good node serves.
        assert not frozen[-1].active
        assert _outcome(found) == _outcome(whole), f"frozen before tick {at}"
        assert all(node.in_service for node in found.world.nodes.values())
        shutil.rmtree(tmp_path / f"at-{at}")
