"""Many small parts become one: killed at each step, seen by readers at each step, and never twice or half."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.fleet import NOW, canary, fleet, store, store_results
from tests.unit.fleet.ingest.fleet_reports import CLASS, capture
from tests.unit.fleet.ingest.fleet_reports import NOW as TODAY
from tests.unit.fleet.ingest.fleet_reports import write as write_captures

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest import compact, prune
from goldnode.fleet.ingest.files import IngestRequest, IngestResult, ingest
from goldnode.fleet.ingest.read import ReadLimits, connect
from goldnode.fleet.ingest.tables import (
    CANARY,
    NODES,
    ORDER,
    PART_TABLES,
    SCHEMAS,
    VIEWS,
    PartName,
    found_parts,
    listed_parts,
    replacements,
)
from goldnode.fleet.report.build import report
from goldnode.fleet.report.engine import opened
from goldnode.fleet.report.frame import ReportSettings, ReportSource

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "MANY", 4)


def add(data: Path, number: int) -> IngestResult:
    """Ingest one capture in a batch of its own."""
    source = write_captures(
        data.with_name(f"in{number}"),
        capture(f"n{number}", f"2026-11-26T0{number}:00:00Z"),
        verdicts=True,
    )
    return ingest(IngestRequest(data, (source,), TODAY + number * HOUR), TODAY)


def content(data: Path) -> dict[str, list[Any]]:
    connection = connect(data)
    return {
        table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)  # noqa: S608
        for table in VIEWS
    }


def scalar(connection: Any, query: str) -> int:
    [(found,)] = connection.execute(query).fetchall()
    return int(found)


def counts(data: Path) -> tuple[set[int], int]:
    """Return how many captures each table has, and whether a row is there twice."""
    connection = connect(data)
    found = {
        scalar(connection, f"SELECT count(DISTINCT (node, time)) FROM {table}")  # noqa: S608
        for table in VIEWS
    }
    return found, scalar(connection, "SELECT count(*) FROM nodes")


def files(data: Path) -> set[str]:
    return {
        str(file.relative_to(data))
        for file in data.rglob("*")
        if file.is_file() and file.name[0] != "."
    }


def test_small_parts_of_a_day_become_one_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, plain = tmp_path / "data", tmp_path / "plain"
    for number in range(1, 4):
        add(data, number)
    assert len(found_parts(data)) == 3
    merged = add(data, 4).parts
    assert found_parts(data) == listed_parts(data) == merged
    assert len(merged) == 1
    monkeypatch.setattr(compact, "MANY", 99)
    for number in range(1, 5):
        add(plain, number)
    assert content(data) == content(plain)
    assert [add(data, number).known for number in (1, 4)] == [1, 1], "a capture is stored once"
    assert not replacements(data)


def test_large_parts_and_other_days_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    other = write_captures(tmp_path / "other", capture("x", "2026-11-20T01:00:00Z"))
    ingest(IngestRequest(data, (other,), TODAY), TODAY)
    before = set(found_parts(data))
    for number in range(1, 5):
        add(data, number)
    assert before < set(found_parts(data))
    [merged] = set(found_parts(data)) - before
    monkeypatch.setattr(compact, "SMALL", 1)
    for number in range(5, 9):
        add(data, number)
    assert merged in found_parts(data)
    assert len(found_parts(data)) == 6


def test_small_files_of_much_text_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node can send texts that a file has in one thousandth of their size: a merge has them all in memory."""
    data = tmp_path / "data"
    for number in range(1, 6):
        one = capture(f"n{number}", f"2026-11-26T0{number}:00:00Z")
        one["x"] = {f"k{text}": f"{number}-{text}-" + "a" * 16_000 for text in range(200)}
        source = write_captures(tmp_path / f"in{number}", one)
        monkeypatch.setattr(compact, "SMALL", 90_000)
        ingest(IngestRequest(data, (source,), TODAY), TODAY)
    parts = found_parts(data)
    assert len(parts) == 5
    for part in parts:
        assert sum(part.file(data, table).stat().st_size for table in ORDER) < compact.SMALL


def test_one_merge_has_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    for number in range(1, 4):
        add(data, number)
    one = compact.part_size(data, NODES, found_parts(data)[0])
    monkeypatch.setattr(compact, "_MERGED", 2.5 * one)
    add(data, 4)
    assert len(found_parts(data)) == 2


def test_a_past_report_is_the_same_after_a_compaction(tmp_path: Path) -> None:
    nodes = fleet(4)
    data = tmp_path / "data"
    for hour in (5, 4, 3):
        store(data, nodes, [NOW - hour * HOUR], gpus=1)
    past = ReportSettings(NOW - 3.5 * HOUR)
    before = report(ReportSource(data), past).model_dump_json()
    store(data, nodes, [NOW - HOUR], gpus=1)
    assert len(found_parts(data)) == 1
    assert report(ReportSource(data), past).model_dump_json() == before
    assert connect(data, ReadLimits(at=NOW - 3.5 * HOUR)).execute(
        "SELECT (SELECT count(*) FROM nodes), (SELECT count(DISTINCT time) FROM facts)"
    ).fetchall() == [(8, 2)]


def test_canary_results_are_merged_too(tmp_path: Path) -> None:
    for hour in range(1, 5):
        store_results(tmp_path, [canary("n1", NOW - hour * HOUR / 4, {"gemm": {"": [1.0] * 9}})])
    assert len(found_parts(tmp_path, CANARY)) == len(listed_parts(tmp_path, CANARY)) == 1
    store(tmp_path, fleet(1), gpus=1)
    [(rows, results)] = (
        connect(tmp_path).execute("SELECT count(*), count(DISTINCT result) FROM canary").fetchall()
    )
    assert rows == results == 4


# -- readers


def test_a_reader_keeps_its_files_until_it_ends(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(1, 4):
        add(data, number)
    reader = connect(data)
    with opened(ReportSource(data), ReportSettings(TODAY)) as connection:
        add(data, 4)
        assert len(listed_parts(data)) == 5
        assert len(found_parts(data)) == 1, "new readers see the new part alone"
        assert counts(data) == ({4}, 4)
        assert connection.execute("SELECT count(DISTINCT node) FROM facts").fetchall() == [(3,)]
    add(data, 5)
    assert len(listed_parts(data)) == 6, "the other reader has not ended"
    assert reader.execute("SELECT count(DISTINCT node) FROM facts").fetchall() == [(3,)]
    del reader
    add(data, 6)
    assert len(listed_parts(data)) == len(found_parts(data)) == 3
    assert counts(data) == ({6}, 6)


def test_directory_that_cannot_be_written_is_read_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    add(data, 1)

    def refused(*_: Any, **__: Any) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refused)
    assert counts(data) == ({1}, 1)


def test_pruned_day_does_not_come_back_by_the_parts_that_were_replaced(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(1, 4):
        add(data, number)
    reader = connect(data)
    add(data, 4)
    assert len(listed_parts(data)) == 5
    found = prune.candidates(data, 1, TODAY + timedelta(days=9))
    assert [len(day.parts) for day in found] == [5]
    assert found[0].parts[-1][0] == found_parts(data)[0], "the parts that are replaced go first"
    prune.prune(data, found)
    del reader
    assert listed_parts(data) == []
    assert files(data) == set()


# -- a damaged list of replaced parts

DAMAGED = [b"", b"{", b"[1]", b'["../../../x"]']


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data whose replaced parts are still there, with a part that was not merged."""
    data = tmp_path_factory.mktemp("merged") / "data"
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(compact, "MANY", 4)
        for number in range(1, 4):
            add(data, number)
        reader = connect(data)
        add(data, 4)
        add(data, 5)
    del reader
    assert len(listed_parts(data)) == 6
    return data


@pytest.mark.parametrize("content_", DAMAGED)
def test_damaged_list_of_replaced_parts_loses_and_repeats_no_row(
    merged: Path, tmp_path: Path, content_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    shutil.copytree(merged, data)
    [lists] = replacements(data).items()
    before = content(data)
    lists[0].replaces(data, NODES).write_bytes(content_)
    assert replacements(data) == {lists[0]: sorted(lists[1])}
    assert "found 4 replaced parts by their rows" in caplog.text
    assert content(data) == before
    add(data, 6)
    assert counts(data) == ({6}, 6)
    assert listed_parts(data) == found_parts(data)
    assert not replacements(data)


def test_damaged_list_beside_a_damaged_part_is_an_error(merged: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(merged, data)
    [(part, replaced)] = replacements(data).items()
    part.replaces(data, NODES).write_bytes(b"{")
    replaced[0].file(data, NODES).write_bytes(b"PAR1")
    with pytest.raises(GoldnodeError, match="a list of replaced parts is damaged") as caught:
        connect(data)
    assert caught.value.remedy
    assert len(listed_parts(data)) == 6, "nothing was removed"


def test_damaged_list_of_a_part_that_is_not_complete_is_removed(
    three: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(three, data)
    PartName(CLASS, "2026-11-26", "0" * 24).replaces(data, NODES).write_bytes(b"{")
    assert counts(data) == ({3}, 3)
    add(data, 5)
    assert not replacements(data)
    assert counts(data) == ({4}, 4)


# -- retention beside a compaction

LATER = TODAY + timedelta(days=9)


def test_day_that_was_merged_after_it_was_named_is_removed(three: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(three, data)
    add(data, 4)  # merged
    add(data, 5)
    found = prune.candidates(data, 1, LATER)
    compacted(data)
    assert len(found_parts(data)) == 1
    assert found_parts(data)[0] not in [part for part, _ in found[0].parts]
    assert prune.prune(data, found) == []
    assert files(data) == set()


def compacted(data: Path) -> None:
    """Merge all parts of the day, as an ingest does."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(compact, "MANY", 2)
        work = data / ".ingest"
        work.mkdir()
        compact.compact(data, [(CLASS, "2026-11-26")], work)
        work.rmdir()


def test_day_that_was_merged_with_a_later_capture_stays_and_is_named(
    three: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(three, data)
    found = prune.candidates(data, 1, LATER)
    add(data, 4)
    assert prune.prune(data, found) == found
    assert counts(data) == ({4}, 4)
    assert prune.prune(data, prune.candidates(data, 1, LATER)) == []
    assert files(data) == set()


def test_part_of_an_earlier_goldnode_is_known_by_its_list(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    shutil.copytree(three, data)
    found = prune.candidates(data, 1, LATER)
    reader = connect(data)
    monkeypatch.setattr(compact, "_ORIGINS", b"x")  # it did not write this
    compacted(data)
    monkeypatch.undo()
    del reader
    assert prune.prune(data, found) == []
    assert files(data) == set()


@pytest.mark.parametrize("step", [5, 12, 13, 21])
def test_day_is_removed_whole_next_to_a_killed_compaction(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """It was named before the ingest that was killed while it merged."""
    data = tmp_path / "data"
    shutil.copytree(three, data)
    before = prune.candidates(data, 1, LATER)
    with monkeypatch.context() as changed:
        steps(changed, step)
        killed(lambda: add(data, 4))
    left = prune.prune(data, before)
    if step >= 13:  # the merged part was complete: it has the capture that came later
        assert left == before
        assert counts(data) == ({4}, 4)
    else:
        assert left == []
        rest = found_parts(data)
        assert len(rest) == (step > 5)
    prune.prune(data, prune.candidates(data, 1, LATER))
    assert files(data) == set()


# -- killed


def steps(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the process before its n-th rename or removal, as SIGKILL does: no `finally` runs."""
    count = 0

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*words: Any, **named: Any) -> Any:
            nonlocal count
            if count == step:
                os._exit(9)
            count += 1
            return work(*words, **named)

        return wrapped

    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))


def killed(work: Callable[[], Any]) -> bool:
    if not (pid := os.fork()):
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


# Six renames of the ingest, the list, six renames of the merged part, 4 x 7 removals of old files, and the list.
_STEPS = 6 + 1 + 6 + 28 + 1


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("three") / "data"
    for number in range(1, 4):
        add(data, number)
    return data


# The steps before the last rename of the ingest are those of test_ingest.py.
@pytest.mark.parametrize("step", [5, *range(6, 15), 20, 21, 34, _STEPS - 1, _STEPS])
def test_a_killed_compaction_leaves_no_half_day_and_no_row_twice(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    data = tmp_path / "data"
    shutil.copytree(three, data)
    with monkeypatch.context() as changed:
        steps(changed, step)
        assert killed(lambda: add(data, 4)) == (step < _STEPS)
    found, rows = counts(data)
    assert len(found) == 1, "each capture is in all tables or in none"
    assert found == {rows}, "no capture is there twice"
    assert rows == (3 if step < 6 else 4)
    shutil.rmtree(data.with_name("in4"))
    result = add(data, 4)
    assert result.stored == (step < 6)
    assert counts(data) == ({4}, 4)
    shutil.rmtree(data.with_name("in4"))
    add(data, 4)  # an ingest ends what another one has left
    assert listed_parts(data) == found_parts(data)
    assert not replacements(data)
    expected = {
        str(part.file(data, table).relative_to(data))
        for part in found_parts(data)
        for table in ORDER
    }
    assert files(data) == expected


def test_every_part_has_its_tables(tmp_path: Path) -> None:
    assert {table for tables in PART_TABLES.values() for table in tables} == set(SCHEMAS)
