"""Retention: it removes what it names, and nothing else."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.fleet.ingest.fleet_reports import CLASS, NOW, capture, write

from goldnode.cli import main
from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest import prune
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.tables import ORDER, found_parts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    source = write(
        tmp_path / "in", *(capture("n1", f"2026-11-{day:02}T10:00:00Z") for day in (1, 10, 25, 26))
    )
    ingest(IngestRequest(tmp_path / "data", (source,), NOW), NOW)
    return tmp_path / "data"


def days(data: Path) -> list[str]:
    return [part.day for part in found_parts(data)]


@pytest.mark.parametrize(
    ("keep", "left"), [(90, 4), (25, 4), (24, 3), (16, 3), (15, 2), (1, 2), (0, 1)]
)
def test_whole_days_that_are_older_are_named(data: Path, keep: int, left: int) -> None:
    assert len(days(data)) - len(prune.candidates(data, keep, NOW)) == left


def test_only_the_named_parts_are_removed(data: Path) -> None:
    others = [
        data / "facts" / f"class={CLASS}" / "day=2026-11-01" / "notes.txt",
        data / "nodes" / "day=2020-01-01",
    ]
    for other in others:
        other.write_text("of a person", encoding="utf-8")
    before = {str(file) for file in data.rglob("*")}
    found = prune.candidates(data, 20, NOW)
    assert [(day.class_, day.day, len(day.parts)) for day in found] == [(CLASS, "2026-11-01", 1)]
    prune.prune(data, found)
    gone = before - {str(file) for file in data.rglob("*")}
    names = {
        str(part.file(data, table)) for day in found for part, _ in day.parts for table in ORDER
    }
    folders = {str(Path(name).parent) for name in names} - {str(others[0].parent)}
    assert gone == names | folders
    assert all(other.exists() for other in others)


def test_a_part_that_arrives_meanwhile_is_not_removed(data: Path, tmp_path: Path) -> None:
    found = prune.candidates(data, 20, NOW)
    late = write(tmp_path / "late", capture("n2", "2026-11-01T11:00:00Z"))
    ingest(IngestRequest(data, (late,), NOW + timedelta(hours=1)), NOW)
    prune.prune(data, found)
    assert days(data) == ["2026-11-01", "2026-11-10", "2026-11-25", "2026-11-26"]


@pytest.mark.parametrize("text", ["90", "d", "0d", "-1d", "90h", "1.5d", "999999d", ""])
def test_a_wrong_duration_is_an_error_with_an_example(text: str) -> None:
    with pytest.raises(GoldnodeError, match="--keep 90d"):
        prune.days(text)


def test_the_command_prints_first_and_asks(data: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(
        main, ["fleet", "prune", "--data", str(data), "--keep", "1d"], input="n\n"
    )
    assert shown.exit_code == 1
    assert "2026-11-10" in shown.output
    assert len(days(data)) == 4
    done = runner.invoke(
        main, ["fleet", "prune", "--data", str(data), "--keep", "1d", "--yes", "--format", "json"]
    )
    assert done.exit_code == 0, done.output
    removed = [row["day"] for row in json.loads(done.stdout)["removed"]]
    assert removed[:2] == ["2026-11-01", "2026-11-10"]


def test_the_command_stores_and_names_the_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in", capture("n1", "2026-11-20T10:00:00Z"))
    (source / "bad.json").write_text("{", encoding="utf-8")
    data = tmp_path / "data"
    done = CliRunner().invoke(
        main, ["fleet", "ingest", "--data", str(data), str(source), "--format", "json"]
    )
    assert done.exit_code == 1
    content = json.loads(done.stdout)
    assert (content["schema"], content["stored"]) == ("goldnode.fleet-ingest/1", 1)
    assert "bad.json: not JSON" in done.stderr
    again = CliRunner().invoke(
        main, ["fleet", "ingest", "--data", str(data), str(source / "missing.json")]
    )
    assert again.exit_code == 2
