"""Each public report gets the answer that a demanding operator needs, and the page counts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reports.__main__ import PAGE, page
from tests.reports.corpus import ROOT, Report, files, open_reports, reports
from tests.reports.doors import DOORS, differences

from goldnode.core.environment import VARIABLES

FILES = list(files())
NAMES = [f"{file.parent.name}/{file.stem}" for file in FILES]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all reports: what was read of the catalog is read once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def desk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of this machine has an effect."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("GOLDNODE_CACHE", str(cache))


REBUILT = [report for report in reports() if not report.not_rebuilt]


@pytest.mark.parametrize("report", REBUILT, ids=[report.id for report in REBUILT])
def test_report_gets_its_answer(report: Report, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    answer = DOORS[report.ask](report, place)
    wrong = differences(report, answer)
    if report.id in open_reports():
        assert wrong, f"{report.id} is answered rightly: take its row from open.yml"
        pytest.xfail("; ".join(wrong))
    assert not wrong, f"{report.report}\n{answer.text}"


def test_ids_and_areas_are_unique_and_open_rows_have_a_report() -> None:
    names = [file.stem for file in FILES]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert set(open_reports()) <= set(NAMES)
    beside = {path.with_suffix(".yml") for path in ROOT.glob("*/*") if path.is_dir()}
    assert {path for path in beside if path.parent.name != "__pycache__"} <= set(FILES)


def test_every_report_was_judged_before_any_fix() -> None:
    assert [row.id for row in REBUILT if row.first is None or (row.trial and not row.before)] == []


def test_every_report_states_where_it_is_from() -> None:
    unread = [
        report.id
        for report in reports()
        for source in report.sources
        if source.read is None and not source.seen
    ]
    assert unread == [], "state the day on which the thread was read, or in `seen` what was"


def test_page_equals_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.reports --write"
