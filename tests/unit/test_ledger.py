"""The ledger of figures: readers on the records of the pages, comparison, and the second run of one that is dearer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import ledger

PAGES = Path(__file__).parents[2] / "docs/benchmarks"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_benchmark_is_in_the_ledger_or_costs_nothing() -> None:
    names = {path.parent.name for path in BENCHMARKS.glob("*/__main__.py")}
    assert set(ledger.FORMS) | ledger.WITHOUT_COST == names
    assert not set(ledger.FORMS) & ledger.WITHOUT_COST


@pytest.mark.parametrize("name", ledger.FORMS)
def test_reader_finds_its_figures_in_the_record_of_the_page(name: str) -> None:
    found = json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))
    figures = ledger.FORMS[name].read(found)
    assert figures
    for figure, value in figures.items():
        number = value[1] if isinstance(value, tuple) else value
        assert number > 0, figure


def test_recorded_figures_are_those_of_the_readers() -> None:
    record = ledger.recorded()
    for name, row in record["benchmarks"].items():
        assert row["words"] == list(ledger.FORMS[name].words), "benchmarks/run --all --record"
        assert all(value > 0 for value in row["figures"].values())


@pytest.mark.parametrize(
    ("now", "was", "dearer"),
    [
        (1.29, 1.0, False),
        (1.3, 1.0, True),
        (0.5, 1.0, False),
        (1.0, None, False),
        (None, 1.0, False),
    ],
)
def test_figure_is_dearer_from_a_factor_on(
    now: float | None, was: float | None, dearer: bool
) -> None:
    assert ledger.Comparison("check", "cold", now, was).dearer is dearer


def test_new_and_lost_figures_are_listed() -> None:
    rows = ledger.compare({"check": {"a": 2.0, "b": 1.0}}, {"check": {"a": 1.0, "c": 1.0}})
    assert [(row.figure, row.now, row.was) for row in rows] == [
        ("a", 2.0, 1.0),
        ("b", 1.0, None),
        ("c", None, 1.0),
    ]
    assert "DEARER" in "\n".join(ledger.lines(rows))


def test_dearer_benchmark_runs_again_and_the_better_figure_counts() -> None:
    answers = iter([{"a": 2.0, "b": 1.0}, {"a": 1.1, "b": 1.2}])
    was = {"check": {"a": 1.0, "b": 1.0}}
    assert ledger.run(["check"], was, lambda _: next(answers)) == {"check": {"a": 1.1, "b": 1.0}}
    once = iter([{"a": 1.2, "b": 1.0}])
    assert ledger.run(["check"], was, lambda _: next(once))["check"]["a"] == 1.2


def test_command_ends_with_one_for_a_dearer_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ledger, "RECORD", tmp_path / "ledger.json")
    monkeypatch.setattr(ledger, "run", lambda names, was: {"check": {"cold": 2.0}})
    assert ledger.main(["--only", "check", "--record"]) == 0
    (row,) = json.loads((tmp_path / "ledger.json").read_text())["benchmarks"].values()
    assert row["load"] >= 0, "the load of other work is stated for each benchmark"
    assert ledger.main(["--only", "check"]) == 0
    monkeypatch.setattr(ledger, "run", lambda names, was: {"check": {"cold": 2.7}})
    assert ledger.main(["--only", "check"]) == 1
    assert "1.35  DEARER" in capsys.readouterr().out
