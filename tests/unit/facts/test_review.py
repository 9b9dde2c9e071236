"""`goldnode facts audit`: stale files, rows that contradict, rows in doubt, and rows from a single source."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.facts import audit
from goldnode.facts import host as facts
from goldnode.facts.review import ages, review

FILE = """meta: {subject: s, compiled: '2026-11-01'}
sources:
  a: {title: A}
  b: {title: B}
rows:
- {id: one, value: '1', source: a}
- {id: two, value: '2', source: [a, b], conflict: B says 3}
- {id: three, value: '3', source: {x: a, y: b}, confidence: medium (second-hand)}
"""


def test_review_names_rows_to_read_again(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text(FILE)
    (found,) = review(dt.date(2026, 12, 1), directory=tmp_path)
    assert (found.age_days, found.stale, found.sourced, found.single) == (30, False, 3, 1)
    assert [(row.name, row.line, row.why) for row in found.contradictory] == [
        ("rows two", 7, "B says 3")
    ]
    assert [(row.name, row.line) for row in found.in_doubt] == [("rows three", 8)]


@pytest.mark.parametrize(("age", "stale"), [(30, False), (31, True)])
def test_a_file_is_stale_after_its_age(tmp_path: Path, age: int, stale: bool) -> None:
    (tmp_path / "x.yml").write_text(FILE)
    day = dt.date(2026, 11, 1) + dt.timedelta(days=age)
    assert review(day, stale_after=30, directory=tmp_path)[0].stale is stale


def test_command_reports_every_file() -> None:
    result = CliRunner().invoke(
        main, ["facts", "audit", "--format", "json", "--stale-after", "100000"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == "goldnode.facts-audit/1"
    assert found["faults"] == []
    assert {"wheels.yml", "cuda.yml"} <= {item["name"] for item in found["files"]}


def test_command_fails_for_a_stale_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from goldnode.facts import review as module

    (tmp_path / "x.yml").write_text(FILE.replace("2026", "2020"))
    monkeypatch.setattr(module.review, "__kwdefaults__", {"stale_after": 90, "directory": tmp_path})
    result = CliRunner().invoke(main, ["facts", "audit"])
    assert result.exit_code == 1
    assert "x.yml: stale" in result.output


def test_ages_are_those_of_the_lists_with_the_oldest_first() -> None:
    rows = ages(dt.date(2026, 11, 28))
    assert [row.complete_until for row in rows] == sorted(row.complete_until for row in rows)
    (bulletins,) = [row for row in rows if row.lists == "driver bulletins"]
    assert bulletins.file == "security.yml"
    assert bulletins.age_days == (dt.date(2026, 11, 28) - bulletins.complete_until).days


def test_age_fails_only_for_a_list_older_than_the_limit() -> None:
    oldest = ages(dt.datetime.now(tz=dt.UTC).date())[0]
    for limit, status in ((oldest.age_days, 0), (oldest.age_days - 1, 1)):
        result = CliRunner().invoke(main, ["facts", "age", "--older-than", str(limit)])
        assert result.exit_code == status
        assert result.output.startswith(str(oldest.complete_until))


def test_a_list_cannot_be_complete_after_its_file_was_compiled(tmp_path: Path) -> None:
    for path in facts.FACTS.glob("*.yml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / "security.yml"
    until = next(row for row in ages(dt.date(2026, 11, 28)) if row.lists == "driver bulletins")
    file.write_text(file.read_text().replace(f"'{until.complete_until}'", "'2099-01-01'"))
    (fault,) = audit.faults(tmp_path)
    assert (fault.file, fault.line) == ("security.yml", 5)
    assert "driver bulletins is complete until 2099-01-01" in fault.message
