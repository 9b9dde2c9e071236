"""`goldnode fleet report` beside a store: which rung of the ladder cured which finding."""

from __future__ import annotations

import json
import re
import shutil
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result
from tests.simulators.fleet import NOW, fleet, store

from goldnode.cli import main
from goldnode.commands.schema.kinds import schema
from goldnode.fleet.rollout.ladder import CasePhase, LadderAction, MoveCase, OpenCase, RepairCase
from goldnode.fleet.store import repairs
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.repairs import LadderRecord

DAY = timedelta(days=1)
AT = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("captures")
    store(directory, fleet(6, cohort_size=3), [NOW - 8 * DAY, NOW - timedelta(hours=1)])
    return directory


def run(*words: object) -> Result:
    done = CliRunner().invoke(main, ["fleet", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done


def repaired(where: Path, count: int) -> None:
    """Write repairs to a store in which a boot has not cured a lost GPU, and the ticket followed."""
    database, record = StoreDatabase(str(where)), LadderRecord()
    begun = NOW.timestamp() - 1000.0

    def write(*actions: LadderAction, at: float) -> None:
        database.run(lambda connection: repairs.write(connection, record, actions, begun + at))
        with database.read() as connection:
            record.read(connection)

    for number in range(count):
        name = f"n{number:02}"
        case = RepairCase(
            name,
            finding="gpu.lost",
            climb=("reboot",),
            opened_at=begun,
            phase=CasePhase.DRAIN,
            rung="reboot",
            changed_at=begun,
            deadline=begun,
        )
        write(OpenCase(case), at=1)
        act = MoveCase(name, CasePhase.ACT, "reboot")
        write(act, MoveCase(name, CasePhase.CHECK, "reboot", outcome="booted"), at=2)
        write(MoveCase(name, CasePhase.TICKET, "ticket", "gpu.lost after reboot"), at=3)
    database.close()


def test_rung_that_never_helps_is_in_the_report(
    captures: Path, migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Path(shutil.copy(migrated, tmp_path / "fleet.db"))
    repaired(where, 16)
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(where))
    text = run("report", "--data", captures, "--at", AT).output
    (line,) = [line for line in text.splitlines() if line.startswith("gpu.lost  ")]
    assert re.split(r"\s{2,}", line) == [
        "gpu.lost", "reboot", "-", "0 of 16 (0% to 19%)", "never helps",
    ]  # fmt: skip
    page = run("report", "--data", captures, "--at", AT, "--format", "html").output
    assert "Which rung cured which finding" in page
    assert "never helps" in page
    shown = run("report", "--data", captures, "--at", AT, "--format", "json").stdout
    (row,) = json.loads(shown)["rungs"]
    jsonschema.validate(json.loads(shown), schema("fleet-report"))
    assert (row["tries"], row["cured"], row["never_helps"]) == (16, 0, True)
    # What came later is in no report of an earlier time.
    before = f"{NOW - DAY / 24:%Y-%m-%dT%H:%M:%SZ}"
    early = run("report", "--data", captures, "--at", before, "--format", "json").stdout
    assert json.loads(early)["rungs"] == []
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(tmp_path / "none.db"))
    shown = run("report", "--data", captures, "--at", AT, "--format", "json").stdout
    assert json.loads(shown)["rungs"] == []
