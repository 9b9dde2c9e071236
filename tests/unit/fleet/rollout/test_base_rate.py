"""A base rate that is too low by half is named before the next rollout, by the steps of an earlier one."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.fleet.control.controlled import controlled
from tests.unit.fleet.rollout import documents

from goldnode.cli import main
from goldnode.fleet.rollout.check import KnownOfClass, StepOutcomes, check
from goldnode.fleet.rollout.model import RolloutPhase
from goldnode.fleet.store import history

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
HALF = ("base_rate: 0.2%", "base_rate: 0.1%")


def _warned(directory: Path, earlier: StepOutcomes, *changes: tuple[str, str]) -> bool:
    found = check(documents.written(directory, *changes), known=KnownOfClass(earlier=earlier))
    return any(finding.code == "base-rate" for finding in found.findings)


def test_rate_that_is_too_low_by_half_is_named(tmp_path: Path) -> None:
    chance, named, wrong = random.Random(1), 0, 0  # noqa: S311 - drawn fleets
    for _ in range(100):
        failed = sum(chance.random() < 0.002 for _ in range(10_000))
        earlier = StepOutcomes(1, 10_000 - failed, failed)
        named += _warned(tmp_path, earlier, HALF)
        wrong += _warned(tmp_path, earlier)
    assert named >= 70  # after one rollout over 10,000 nodes; two are always enough
    assert wrong <= 8
    assert _warned(tmp_path, StepOutcomes(2, 19_960, 40), HALF)


def test_finding_has_the_line_and_the_figures(tmp_path: Path) -> None:
    found = check(
        documents.written(tmp_path, HALF), known=KnownOfClass(earlier=StepOutcomes(1, 9_978, 22))
    )
    (finding,) = [finding for finding in found.findings if finding.code == "base-rate"]
    assert str(finding).startswith(
        f"{tmp_path}/rollout.yml:14: warning: 22 of 10000 nodes failed in 1 completed"
    )
    assert "Write base_rate: 0.22%" in str(finding)
    assert not found.refused


def test_outcomes_are_those_of_completed_rollouts(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(migrated, tmp_path / "fleet.db")
    found = controlled(tmp_path, str(tmp_path / "fleet.db"), 12, *FAST, n00="silent", n05="module")
    store = found.store()
    with store.read() as connection:
        assert history.outcomes(connection, "l4") == StepOutcomes(0, 0, 0)
    report, _ = found.run(ticks=400)
    if (
        report.phase is not RolloutPhase.COMPLETED
    ):  # overdue nodes wait for a person; the phase is what counts
        with store.write() as connection:
            connection.exec_driver_sql("UPDATE rollout SET phase = 'completed'")
    with store.read() as connection:
        seen = history.outcomes(connection, "l4")
        assert history.outcomes(connection, "h100").rollouts == 0
    store.close()
    assert (seen.rollouts, seen.failed) == (1, 2)
    assert seen.done >= 1
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(tmp_path / "fleet.db"))
    path = tmp_path / "rollout.yml"
    path.write_text(documents.TEXT)
    done = CliRunner().invoke(
        main, ["rollout", "check", str(path), "--nodes", "12", "--format", "json"]
    )
    codes = [finding["code"] for finding in json.loads(done.stdout)["findings"]]
    assert "base-rate" in codes
