"""The record of how long tests took: estimates, updates, and its form in git."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.suite import timings
from tests.suite.timings import Timings

FILES: dict[str, timings.FileRecord] = {
    "tests/a/test_a.py": {
        "tests": 5,
        "seconds": 70.0,
        "slow": {"test_slow[x@y]": 50.0, "test_s": 10.0},
    }
}


@pytest.mark.parametrize(
    ("nodeid", "parts"),
    [
        ("a/test_a.py::test_x", ("a/test_a.py", "", "test_x")),
        ("a/test_a.py::test_x@disk", ("a/test_a.py", "disk", "test_x")),
        ("a/test_a.py::test_x[a@b]", ("a/test_a.py", "", "test_x[a@b]")),
        ("a/test_a.py::test_x[a@b]@disk", ("a/test_a.py", "disk", "test_x[a@b]")),
        ("a/test_a.py::TestX::test_x", ("a/test_a.py", "", "TestX::test_x")),
    ],
)
def test_an_id_is_split_as_pytest_xdist_joins_it(nodeid: str, parts: tuple[str, str, str]) -> None:
    assert timings.split(nodeid) == parts


@pytest.mark.parametrize(
    ("nodeid", "marks", "seconds"),
    [
        ("tests/a/test_a.py::test_slow[x@y]", {"lab"}, 50.0),
        ("tests/a/test_a.py::test_s@disk", {"lab"}, 10.0),
        # 70 s less 60 s, over the three that are not recorded by themselves.
        ("tests/a/test_a.py::test_other", {"real"}, pytest.approx(10 / 3)),
        ("tests/a/test_new.py::test_other", {"lab"}, 30.0),
        ("tests/a/test_new.py::test_other", {"real", "long"}, 300.0),
        ("tests/a/test_new.py::test_other", {"parametrize"}, 0.1),
        ("tests/a/test_new.py::test_other[mypy]", {"parametrize", "xdist_group"}, 60.0),
    ],
)
def test_estimate_is_the_record_or_the_marker(nodeid: str, marks: set[str], seconds: float) -> None:
    assert Timings(files=FILES).seconds(nodeid, marks) == seconds


def test_update_replaces_whole_files_and_keeps_the_others() -> None:
    record = Timings(files=dict(FILES))
    record.update({"tests/b/test_b.py::test_one@disk": 7.26, "tests/b/test_b.py::test_two": 1.04})
    assert record.files["tests/b/test_b.py"] == {
        "tests": 2,
        "seconds": 8.3,
        "slow": {"test_one": 7.3},
    }
    assert record.files["tests/a/test_a.py"] == FILES["tests/a/test_a.py"]


def test_record_is_read_back_and_has_a_line_per_file(tmp_path: Path) -> None:
    stages: dict[str, timings.StageRecord] = {"unit": {"seconds": 1.5, "tests": 2, "files": 1}}
    for record in (Timings("abc", "2026-11-23", 2, stages, FILES), Timings()):
        timings.save(record, tmp_path / "deep/durations.json")
        record.source = tmp_path / "deep/durations.json"
        assert timings.load(record.source) == record
    assert timings.text(Timings(stages=stages, files=FILES)).count('\n  "') == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": {}}', "null"])
def test_a_torn_record_does_not_count(tmp_path: Path, content: str) -> None:
    (tmp_path / "torn.json").write_text(content)
    assert timings.load(tmp_path / "torn.json") == Timings()


def test_committed_record_is_readable_and_in_its_own_form() -> None:
    if timings.COMMITTED.exists():
        record = timings.load(timings.COMMITTED)
        assert record.files, f"run `scripts/test --record` to write {timings.COMMITTED}"
        assert timings.text(record) == timings.COMMITTED.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119.4, "119 s"), (120, "2 min"), (130.2, "2 min 10 s"), (3600, "60 min")],
)
def test_a_duration_is_spelled(seconds: float, words: str) -> None:
    assert timings.spell(seconds) == words
