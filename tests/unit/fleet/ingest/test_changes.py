"""Storage by change: what is read is what whole captures would give, in rows and in reports, killed or not."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from benchmarks.ingest import lifelike
from tests.simulators.fleet import Json, finding, verdict

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest import compact, prune
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.precision import EXACT, STATED, precisions, step
from goldnode.fleet.ingest.read import ReadLimits, connect
from goldnode.fleet.ingest.report import ReportOrigin, report_of
from goldnode.fleet.ingest.rows import Bases
from goldnode.fleet.ingest.tables import (
    CHANGES,
    DIGESTS,
    FACTS,
    FINDINGS,
    NODES,
    NUMBERS,
    ORDER,
    SCHEMAS,
    VIEWS,
    found_parts,
)
from goldnode.fleet.ingest.write import writer
from goldnode.fleet.report import topics
from goldnode.fleet.report.build import report
from goldnode.fleet.report.frame import ReportSettings, ReportSource

HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 11, 18, 20, tzinfo=UTC)
RECORDED = Path(__file__).parents[3] / "cases" / "recorded"
Captures = list[tuple[datetime, list[Json]]]


def lifelike_captures() -> Captures:
    """Three nodes with two GPUs: hours of one night, and a week later; parts and keys come and go."""
    nodes = lifelike.nodes(3)
    found = []
    for age in (*range(6), 168, 169, 170, 171, 172):
        time = BEGIN + age * HOUR
        captures = list(lifelike.captures(nodes, time))
        for one in captures:
            one["identity"]["class"] = "h100"
            del one["gpus"][2:]
        first, second, third = captures
        if age in (2, 3, 169):
            first["driver"]["loaded"] = "570.1"
            first["events"]["rows"] = [
                {"kind": "xid", "code": 79, "address": "0000:18:00.0", "count": age, "text": "x"}
            ]
        if age in (4, 170):
            second["gpus"][1] = {"address": "0000:2a:00.0", "lost": True, "uuid": "GPU-lost"}
            second["gpus"].reverse()
        if age in (3, 171):
            third["gpus"][0]["vbios"] = {"fault": "unread", "text": "GPU is lost"}
            third["gpus"][0]["ecc"]["aggregate"]["corrected"] = {"fault": "unread", "text": ""}
            third["storage"]["mounts"]["/scratch"] = copy.deepcopy(third["storage"]["mounts"]["/"])
        third["gpus"][1]["pcie"]["replay"] = 7 * age
        found.append((time, captures))
    return found


def recorded_captures() -> Captures:
    """The recorded captures of real and simulated machines, idle and under load."""
    found = []
    for file in sorted(RECORDED.glob("*/capture*.json")):
        one = json.loads(file.read_text(encoding="utf-8"))
        one["identity"] |= {"hostname": file.parent.name.replace("_", "-"), "class": "h100"}
        found.append((datetime.fromisoformat(one["time"]), [one]))
    return sorted(found, key=lambda pair: pair[0])


def store(data: Path, captures: Captures, precision: str = EXACT) -> Path:
    for time, some in captures:
        with writer(data, time + HOUR / 60, precision) as parts:
            for one in some:
                name = one["identity"]["hostname"]
                findings = [finding("driver.loaded", "580", "570")] if name.endswith("0") else []
                content = {
                    "schema": "goldnode.node-report/1",
                    "node": name,
                    "class": "h100",
                    "cohort": "ring1",
                    "capture": one,
                    "verdict": verdict("h100", time, findings),
                }
                origin = ReportOrigin("directory")
                assert parts.add(
                    report_of(content, json.dumps(content).encode(), origin, time + HOUR)
                )
    return data


@pytest.fixture(scope="module", params=[lifelike_captures, recorded_captures])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Captures, Path, Path]:
    """Captures, stored whole and by change."""
    captures = request.param()
    folder = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(Bases, "fitting", lambda *_: None)
        store(folder / "whole", captures)
    return captures, folder / "whole", store(folder / "changes", captures)


COLUMNS = {
    table: [name for name in SCHEMAS[table].names if name not in ("base", "blocks", "place")]
    for table in VIEWS
}
# The precision is a statement about the numbers, not one of the rows that are compared.
COLUMNS[NODES].remove("precision")


def content(
    data: Path, tables: Iterable[str] = VIEWS, limits: ReadLimits | None = None
) -> dict[str, list[Any]]:
    with connect(data, limits) as connection:
        return {
            table: sorted(
                connection.execute(
                    f"SELECT class, day, {', '.join(COLUMNS[table])} FROM {table}"  # noqa: S608
                ).fetchall(),
                key=repr,
            )
            for table in tables
        }


@pytest.fixture(scope="module")
def expected_answers(both: tuple[Captures, Path, Path]) -> list[str]:
    """The reports over captures that are stored whole."""
    captures, whole, _ = both
    return answers(whole, captures)


def answers(data: Path, captures: Captures, count: int = 3) -> list[str]:
    """Return the reports of three times, or of the first ones."""
    times = [captures[0][0], captures[len(captures) // 2][0], captures[-1][0]]
    return [
        report(ReportSource(data), ReportSettings(time + HOUR / 2, before)).model_dump_json()
        for time, before in zip(times[:count], (None, times[1] - 2 * HOUR, None), strict=False)
    ]


def test_rows_are_those_of_whole_captures(both: tuple[Captures, Path, Path]) -> None:
    _, whole, changes = both
    expected, found = content(whole), content(changes)
    for table in VIEWS:
        assert found[table] == expected[table], table
        assert table == "findings" or found[table]
    size = {data: stored_rows(data, FACTS) for data in (whole, changes)}
    assert size[changes] < size[whole]
    assert stored_rows(changes, CHANGES)


@pytest.mark.parametrize("kind", ["last", "at", "since"])
def test_limits_leave_out_the_changes_of_other_captures(
    both: tuple[Captures, Path, Path], kind: str
) -> None:
    captures, whole, changes = both
    middle = captures[len(captures) // 2][0]
    limits = {
        "last": ReadLimits(last=True),
        "at": ReadLimits(at=middle),
        "since": ReadLimits(since=middle),
    }[kind]
    tables = [table for table in VIEWS if table != NODES]
    assert content(changes, tables, limits) == content(whole, tables, limits)


def test_older_capture_of_the_same_part_is_not_read_as_the_last(tmp_path: Path) -> None:
    older, newer = lifelike_captures()[1:3]
    # In one part, the newer one first: it is the base.
    data = store(tmp_path, [(newer[0], [*newer[1], *older[1]])])
    assert stored_rows(data, CHANGES)
    with connect(data, ReadLimits(last=True)) as connection:
        for table in (FACTS, NUMBERS):
            query = f"SELECT DISTINCT time FROM {table}"  # noqa: S608
            assert connection.execute(query).fetchall() == [(newer[0].replace(tzinfo=None),)]


def stored_rows(data: Path, table: str) -> int:
    return sum(
        pq.read_metadata(part.file(data, table)).num_rows
        for part in found_parts(data)
        if part.file(data, table).exists()
    )


def test_reports_find_the_same(
    both: tuple[Captures, Path, Path], expected_answers: list[str]
) -> None:
    captures, _, changes = both
    assert answers(changes, captures) == expected_answers


def test_reports_find_the_same_at_the_stated_precision(
    both: tuple[Captures, Path, Path], expected_answers: list[str], tmp_path: Path
) -> None:
    captures, whole, _ = both
    stated = store(tmp_path / "stated", captures, STATED)
    assert answers(stated, captures) == expected_answers
    with connect(stated) as rounded, connect(whole) as exact:
        query = "SELECT node, time, item, key, value FROM numbers ORDER BY ALL"
        [numbers, others] = [one.execute(query).fetchall() for one in (rounded, exact)]
        assert rounded.execute("SELECT DISTINCT precision FROM nodes").fetchall() == [(STATED,)]
    assert len(numbers) == len(others)
    different = 0
    for one, other in zip(numbers, others, strict=True):
        assert one[:4] == other[:4]
        assert abs(one[4] - other[4]) <= (step(one[3]) or 0) / 2, one
        different += one != other
    assert different


def test_directory_of_an_earlier_goldnode_is_read_and_goes_on(
    both: tuple[Captures, Path, Path],
    expected_answers: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captures, whole, _ = both
    old = tmp_path / "old"
    with monkeypatch.context() as changed:
        changed.setattr(Bases, "fitting", lambda *_: None)
        changed.setattr(compact, "ENDED", 99)
        store(old, captures[:-1])
    rows = content(old)
    earlier_format(old)
    expected = content(whole)
    assert content(old) == rows
    # The last capture is not in it, so only the reports of times before it.
    count = 2 if captures[len(captures) // 2][0] + HOUR / 2 < captures[-1][0] else 1
    assert answers(old, captures, count) == expected_answers[:count]
    store(old, captures[-1:])
    rest = [
        table for table in VIEWS if table != "digests"
    ]  # the digests are others, and compared alone
    assert content(old, rest) == {table: expected[table] for table in rest}
    monkeypatch.setattr(compact, "MANY", 2)
    work = old / ".ingest"
    work.mkdir()
    compact.compact(old, {(part.class_, part.day) for part in found_parts(old)}, work)
    assert content(old, rest) == {table: expected[table] for table in rest}
    for part in found_parts(old):
        for table in ORDER:
            assert part.file(old, table).exists() or len(captures) < 6, "a merge writes all tables"


def earlier_format(data: Path) -> None:
    """Remove what an earlier goldnode did not write."""
    shutil.rmtree(data / CHANGES)
    for table, more in ((NODES, 3), (FACTS, 1), (NUMBERS, 1)):
        for file in (data / table).rglob("*.parquet"):
            rows = pq.read_table(file, partitioning=None)
            pq.write_table(rows.select(SCHEMAS[table].names[:-more]), file)


def test_late_capture_refers_to_the_base_and_changes_no_other(tmp_path: Path) -> None:
    captures = lifelike_captures()[:6]
    late = [captures[place] for place in (0, 5, 2, 4, 1, 3)]
    assert content(store(tmp_path / "late", late)) == content(store(tmp_path / "right", captures))


def test_capture_that_did_not_change_adds_no_row(tmp_path: Path) -> None:
    [(time, [one, *_]), *_] = lifelike_captures()
    store(tmp_path, [(time, [one])])
    for hour in range(1, 4):
        later = copy.deepcopy(one)
        later["time"] = f"{time + hour * HOUR:%Y-%m-%dT%H:%M:%SZ}"
        store(tmp_path, [(time + hour * HOUR, [later])])
    assert stored_rows(tmp_path, NODES) == 4
    assert stored_rows(tmp_path, CHANGES) == 0
    with connect(tmp_path) as connection:
        counts = connection.execute("SELECT count(*) FROM facts GROUP BY time").fetchall()
    assert len(set(counts)) == 1
    assert stored_rows(tmp_path, FACTS) == counts[0][0]


def test_day_that_has_ended_becomes_one_part_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = lifelike_captures()[:6]
    monkeypatch.setattr(compact, "ENDED", 99)
    expected = content(store(tmp_path / "parts", captures))
    assert len(found_parts(tmp_path / "parts")) == 6
    monkeypatch.setattr(compact, "ENDED", 4)
    monkeypatch.setattr(compact, "TOGETHER", 300)  # rows: a merge takes its keys in several turns
    data = store(tmp_path / "merged", captures)
    assert [part.day for part in found_parts(data)] == ["2026-11-18", "2026-11-19", "2026-11-19"]
    assert content(data) == expected


# -- files that were moved away


def stored_nights(data: Path) -> tuple[datetime, Path]:
    """Store hours around midnight; return the time of the last, and a file of nodes of the first day, which has all bases."""
    captures = lifelike_captures()[:6]
    store(data, captures)
    first = next(part for part in found_parts(data) if stored_rows_of(part.file(data, FACTS)))
    return captures[-1][0], first.file(data, NODES)


def stored_rows_of(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)


def test_base_that_was_moved_away_is_named_by_each_reader(tmp_path: Path) -> None:
    last, nodes = stored_nights(tmp_path)
    for table in ORDER:
        (tmp_path / table / nodes.relative_to(tmp_path / NODES)).unlink()
    for limits in (None, ReadLimits(last=True), ReadLimits(since=last - HOUR / 2)):
        with pytest.raises(
            GoldnodeError, match=r"is gone: .* captures .* those of 2026-11-18T20:00:00Z"
        ) as error:
            connect(tmp_path, limits)
        assert error.value.file == str(nodes.parent)
    with pytest.raises(GoldnodeError, match="is gone") as error:
        report(ReportSource(tmp_path), ReportSettings(last + HOUR / 2))
    assert error.value.file == str(nodes.parent)


@pytest.mark.parametrize("table", [FACTS, NUMBERS, DIGESTS, FINDINGS, CHANGES])
def test_one_file_of_a_part_that_was_moved_away_is_named(tmp_path: Path, table: str) -> None:
    last, _ = stored_nights(tmp_path)
    gone = max(found_parts(tmp_path)).file(tmp_path, table)
    gone.unlink()
    with pytest.raises((GoldnodeError, duckdb.Error), match=gone.name):
        content(tmp_path)
    with pytest.raises(GoldnodeError, match=gone.name):
        report(ReportSource(tmp_path), ReportSettings(last + HOUR / 2))


# -- retention


def test_prune_leaves_the_captures_that_later_ones_refer_to(tmp_path: Path) -> None:
    captures = lifelike_captures()[:6]  # from 20:00 to 1:00 of the next day
    data = store(tmp_path / "data", captures)
    midnight = BEGIN.replace(hour=0, tzinfo=None) + timedelta(days=1)
    expected = {
        table: [row for row in rows if row[COLUMNS[table].index("time") + 2] >= midnight]
        for table, rows in content(data).items()
    }
    found = prune.candidates(data, 1, BEGIN + timedelta(days=2))
    assert [day.day for day in found] == ["2026-11-18"]
    prune.prune(data, found)
    left = content(data)
    for table, rows in expected.items():
        place = COLUMNS[table].index("time") + 2
        assert [row for row in left[table] if row[place] >= midnight] == rows, table
    times = {row[COLUMNS[NODES].index("time") + 2] for row in left[NODES]}
    # Bases alone: the first captures, and that of another hour with which a node had other parts.
    assert len([time for time in times if time < midnight]) < 4
    assert prune.candidates(data, 1, BEGIN + timedelta(days=2)) == [], "nothing is left to remove"
    later = BEGIN + timedelta(days=9)
    prune.prune(data, prune.candidates(data, 1, later))
    assert found_parts(data) == []


# -- killed


def killed_at(work: Callable[[], Any], step_: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """End a process before its n-th rename or removal, as SIGKILL does. Return whether it came to it."""
    if not (pid := os.fork()):
        count = 0

        def counted(do: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*words: Any, **named: Any) -> Any:
                nonlocal count
                if count == step_:
                    os._exit(9)
                count += 1
                return do(*words, **named)

            return wrapped

        for name in ("replace", "unlink"):
            monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, list[Any]]]:
    """Data of the hours before midnight, files of two hours around it, and the rows of both."""
    captures = lifelike_captures()[:6]
    folder = tmp_path_factory.mktemp("night")
    data, source = store(folder / "data", captures[:3]), folder / "in"
    source.mkdir()
    for _, some in captures[3:5]:
        for one in some:
            name = f"{one['identity']['hostname']}-{one['time'][:13]}"
            (source / f"{name}.json").write_text(json.dumps(one), encoding="utf-8")
    whole = folder / "whole"
    shutil.copytree(data, whole)
    take(whole, source)
    return data, source, content(whole)


def take(data: Path, source: Path) -> None:
    received = BEGIN + 6 * HOUR
    result = ingest(IngestRequest(data, (source,), received), received)
    assert not result.refused


# Six renames for each of two days; then the day that has ended becomes one part: its list, six renames, 4 x 7 removals, the list.
@pytest.mark.parametrize("step_", [0, 4, 5, 6, 11, 12, 13, 18, 19, 30])
def test_killed_ingest_of_changes_loses_and_repeats_nothing(
    night: tuple[Path, Path, dict[str, list[Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_: int,
) -> None:
    data, source, expected = night
    mine = tmp_path / "data"
    shutil.copytree(data, mine)
    assert killed_at(lambda: take(mine, source), step_, monkeypatch) == (step_ < 48)
    rows = content(mine)
    captures = {(row[2], row[3]) for row in rows[NODES]}
    for table in (FACTS, NUMBERS):
        # What is there is whole: the rows of each capture are those of an ingest that was not killed.
        assert rows[table] == [row for row in expected[table] if (row[2], row[3]) in captures]
    take(mine, source)
    assert content(mine) == expected


@pytest.mark.parametrize("step_", [0, 6, 7, 13, 14, 20])
def test_killed_retention_leaves_later_captures_whole(
    night: tuple[Path, Path, dict[str, list[Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_: int,
) -> None:
    data, source, expected = night
    mine = tmp_path / "data"
    shutil.copytree(data, mine)
    take(mine, source)
    later = BEGIN + timedelta(days=2)
    found = prune.candidates(mine, 1, later)
    killed_at(lambda: prune.prune(mine, found), step_, monkeypatch)
    midnight = BEGIN.replace(hour=0, tzinfo=None) + timedelta(days=1)
    for _ in range(2):
        rows = content(mine)
        for table in VIEWS:
            place = COLUMNS[table].index("time") + 2
            late = [row for row in expected[table] if row[place] >= midnight]
            assert [row for row in rows[table] if row[place] >= midnight] == late, table
        prune.prune(mine, prune.candidates(mine, 1, later))


# -- precision


def test_keys_that_a_report_reads_are_exact() -> None:
    """A rate or a metric of the report has no step, and neither has a counter of errors."""
    for key in (
        *SAMPLES,
        *(rule.pattern.replace("*", "x") for rule in (*topics.RATES, *topics.METRICS)),
    ):
        if topics.rate(key) or topics.metric(key) or "error" in key or "ecc" in key:
            assert step(key) is None, key


SAMPLES = (
    "gpu.ecc.aggregate.corrected",
    "gpu.pcie.replay",
    "gpu.nvlink.links.errors.replay",
    "network.counters.rx_errors",
    "infiniband.ports.counters.symbol_error",
    "pressure.memory.full_avg10",  # a rule of the node reads it
    "storage.mounts.free_mib",  # likewise
    "storage.paths.latency_ms",
)


def test_each_precision_has_a_source_and_a_step_that_is_a_power_of_two() -> None:
    for one in precisions():
        assert one.sources, one.pattern
        assert one.why
        mantissa, _ = one.step.as_integer_ratio()
        assert mantissa & (mantissa - 1) == 0, one.pattern
