"""Ingest of a directory: once, whole, and with what is hostile left out."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.unit.fleet.ingest.fleet_reports import CLASS, NOW, capture, verdict
from tests.unit.fleet.ingest.fleet_reports import write as captured

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest import arrivals, files, inbox, read, write
from goldnode.fleet.ingest.files import IngestRequest, IngestResult, ingest
from goldnode.fleet.ingest.read import ReadLimits, connect
from goldnode.fleet.ingest.report import report_of
from goldnode.fleet.ingest.tables import NODES, ORDER, SCHEMAS, VIEWS, found_parts


def run(data: Path, *sources: Path, received: datetime | None = NOW) -> IngestResult:
    return ingest(IngestRequest(data, sources, received), NOW)


def rows(data: Path, query: str, **limits: Any) -> list[tuple[Any, ...]]:
    return connect(data, ReadLimits(**limits)).execute(query).fetchall()


def content(data: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(data)): file.read_bytes() for file in sorted(data.rglob("*.parquet"))
    }


def test_captures_with_verdicts_are_in_every_table(tmp_path: Path) -> None:
    captured(tmp_path / "in", capture("n1"), capture("n2"), verdicts=True)
    captured(tmp_path / "in", capture("n3"))
    result = run(tmp_path / "data", tmp_path / "in")
    assert (result.stored, result.known, result.refused) == (3, 0, [])
    found = rows(
        tmp_path / "data",
        "SELECT node, class, status, received, source, simulated FROM nodes ORDER BY node",
    )
    received = NOW.replace(tzinfo=None)
    assert found == [
        ("n1", CLASS, "degraded", received, "directory", True),
        ("n2", CLASS, "degraded", received, "directory", True),
        ("n3", CLASS, None, received, "directory", True),
    ]
    assert rows(tmp_path / "data", "SELECT node, id, got, subject FROM findings ORDER BY node") == [
        ("n1", "driver.version", "570.1", None),
        ("n2", "driver.version", "570.1", None),
    ]
    assert rows(
        tmp_path / "data", "SELECT count(*) FROM facts WHERE key = 'gpu.vbios' AND fault IS NULL"
    ) == [(24,)]
    assert rows(
        tmp_path / "data", "SELECT count(*) FROM numbers WHERE key = 'gpu.temperature.gpu_c'"
    ) == [(24,)]
    assert rows(
        tmp_path / "data", "SELECT DISTINCT value, fault FROM facts WHERE key = 'gpu.retired_pages'"
    ) == [("Not Supported", "not_exposed")]


def test_files_have_the_declared_columns(tmp_path: Path) -> None:
    run(tmp_path / "data", captured(tmp_path / "in", capture(), verdicts=True))
    part = found_parts(tmp_path / "data")[0]
    for table in ORDER:
        found = pq.ParquetFile(part.file(tmp_path / "data", table)).schema_arrow
        assert [(field.name, str(field.type)) for field in found] == [
            (field.name, str(field.type)) for field in SCHEMAS[table]
        ], table


def test_the_same_captures_twice_are_one_row_and_the_same_files(tmp_path: Path) -> None:
    source = captured(tmp_path / "in", capture("n1"), capture("n2"))
    run(tmp_path / "data", source)
    before = content(tmp_path / "data")
    result = run(tmp_path / "data", source, received=NOW + timedelta(hours=1))
    assert (result.stored, result.known) == (0, 2)
    assert content(tmp_path / "data") == before
    run(tmp_path / "other", source)
    assert content(tmp_path / "other") == before


def test_a_second_capture_for_one_time_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "data", captured(tmp_path / "in", capture("n1")))
    other = capture("n1")
    other["driver"]["loaded"] = "570.1"
    result = run(tmp_path / "data", captured(tmp_path / "again", other))
    assert (result.stored, result.known) == (0, 1)
    assert rows(tmp_path / "data", "SELECT value FROM facts WHERE key = 'driver.loaded'") == [
        ("580.95.05",)
    ]


def test_a_late_capture_is_in_its_own_day_and_not_in_a_past_report(tmp_path: Path) -> None:
    query = "SELECT node, CAST(day AS VARCHAR) FROM nodes ORDER BY ALL"
    data = tmp_path / "data"
    run(data, captured(tmp_path / "a", capture("n1")))
    past = rows(data, query, at=NOW)
    late = captured(tmp_path / "b", capture("n1", "2026-11-20T10:00:00Z"), capture("n2"))
    run(data, late, received=NOW + timedelta(hours=1))
    assert rows(data, query, at=NOW) == past == [("n1", "2026-11-26")]
    assert rows(data, query) == [("n1", "2026-11-20"), ("n1", "2026-11-26"), ("n2", "2026-11-26")]
    assert rows(data, "SELECT DISTINCT node FROM facts", at=NOW) == [("n1",)]


def test_backfilled_captures_are_in_past_reports(tmp_path: Path) -> None:
    run(
        tmp_path / "data",
        captured(tmp_path / "a", capture("n1", "2026-11-20T10:00:00Z")),
        received=None,
    )
    at = datetime(2026, 11, 21, tzinfo=UTC)
    assert rows(tmp_path / "data", "SELECT node FROM nodes", at=at) == [("n1",)]
    with pytest.raises(GoldnodeError, match="no captures of this time"):
        connect(tmp_path / "data", ReadLimits(at=at - timedelta(days=2)))


def test_digests_change_with_facts_and_with_nothing_else(tmp_path: Path) -> None:
    hot, moved, changed = (
        capture("n1", "2026-11-26T11:00:00Z"),
        capture("n1", "2026-11-26T11:10:00Z"),
        capture("n1", "2026-11-26T11:20:00Z"),
    )
    hot["gpus"][0]["temperature"]["gpu_c"] = 80
    moved["gpus"].reverse()
    for index, gpu in enumerate(moved["gpus"]):
        gpu["index"] = gpu["minor"] = index
    first, second = changed["gpus"][:2]
    first["vbios"], second["vbios"] = "96.00.99", first["vbios"]
    run(tmp_path / "data", captured(tmp_path / "in", capture("n1")))
    for number, one in enumerate((hot, moved, changed)):
        run(tmp_path / "data", captured(tmp_path / f"in{number}", one))
    found = rows(
        tmp_path / "data", "SELECT digest FROM digests WHERE section = 'gpu' ORDER BY time"
    )
    assert found[0] == found[1] == found[2] != found[3]


HOSTILE: dict[str, tuple[str, str]] = {
    "cut": ('{"schema": "goldnode.capture/1", "ti', "not JSON"),
    "list": ("[]", "not a JSON object"),
    "number": ("NaN", "not JSON"),
    "nan": ('{"schema": "goldnode.capture/1", "x": NaN}', "not JSON"),
    "deep": ("[" * 100_000, "not JSON"),
    "deep-object": ('{"a":' * 100_000, "not JSON"),
    "keys": (
        "{" + ",".join(f'"k{n}":1' for n in range(250_000)) + "}",
        "more than 200000 elements",
    ),
    "schema": ('{"schema": "goldnode.capture/2"}', "schema 'goldnode.capture/2'"),
    "no-schema": ("{}", "schema 'None'"),
    "control-schema": ('{"schema": "\\u001b[31m"}', "schema '\\\\x1b"),
    "surrogate": ('{"schema": "\\ud800"}', "not JSON"),
    "raw-control": ('{"schema": "\x00"}', "not JSON"),
    "digits": ('{"a": ' + "9" * 5000 + "}", "not JSON"),
}
# Verdicts of a good capture.
_VERDICTS: dict[str, tuple[dict[str, Any], str]] = {
    "status": ({"status": {}}, "no known status"),
    "digest": ({"class_digest": "x" * 20_000}, "a text has 20000 characters"),
    "no-id": ({"findings": [{"outcome": "mismatch"}]}, "a finding has no id or no outcome"),
    "no-outcome": ({"findings": [{"id": "driver.version"}]}, "a finding has no id or no outcome"),
}
_SPOILED: dict[str, tuple[dict[str, Any], str]] = {
    "future": ({"time": "2026-11-26T12:11:00Z"}, "is after that of this machine"),
    "past": ({"time": "1970-01-01T00:00:00Z"}, "before 2020"),
    "no-day": ({"time": "2026-02-30T00:00:00Z"}, "does not exist"),
    "no-time": ({"time": None}, "its time is not of the form"),
    "infinite": ({"uptime": 1e308, "memory": {"available_mib": 1e308 * 10}}, "not a finite number"),
    "html": ({"identity": {"hostname": "<script>alert(1)</script>"}}, "is not a name of a node"),
    "dots": ({"identity": {"hostname": "../../etc/passwd"}}, "is not a name of a node"),
    "class": ({"identity": {"hostname": "n7", "class": "../x"}}, "is not a name of a class"),
    "nameless": ({"identity": {"fault": "unread", "text": ""}}, "no name of a node"),
    "long": ({"os": {"id": "x" * 100_000}}, "a text has 100000 characters"),
    "wide": ({"x": {f"k{n}": 1 for n in range(60_000)}}, "more than 50000 values"),
    "long-key": ({"x": {"k" * 200: {"l" * 200: 1}}}, "a key has more than 400 characters"),
    "long-item": (
        {"network": {"eth0": {"address": "x" * 3_000}}},
        "has 3000 characters, more than 2000",
    ),
    "uptime": ({"uptime": 10**400}, "uptime is not a finite number"),
}


def _hostile_verdicts() -> dict[str, tuple[str, str]]:
    found = {}
    for name, (change, message) in _VERDICTS.items():
        one = capture(f"v-{name}")
        report = {
            "schema": "goldnode.node-report/1",
            "capture": one,
            "verdict": verdict(one, **change),
        }
        found[f"v-{name}"] = (json.dumps(report), message)
    return found


def test_hostile_files_are_refused_by_name_and_the_rest_is_unharmed(tmp_path: Path) -> None:
    source = captured(tmp_path / "in", capture("a0"), capture("z9"), verdicts=True)
    run(tmp_path / "clean", source)
    hostile = {**HOSTILE, **_hostile_verdicts()}
    for name, (text, _) in hostile.items():
        (source / f"h-{name}.json").write_text(text, encoding="utf-8")
    for name, (change, _) in _SPOILED.items():
        text = json.dumps({**capture(f"m-{name}"), **change}).replace("Infinity", "1e999")
        (source / f"h-{name}.json").write_text(text, encoding="utf-8")
    with (source / "h-sparse.json").open("w") as large:
        large.truncate(4 << 30)  # a text of 4 GB, without its space
    os.mkfifo(source / "h-fifo.json")
    (source / "h-directory.json").mkdir()
    result = run(tmp_path / "data", source)
    found = {refusal.file.name: refusal.message for refusal in result.refused}
    expected = {name: message for name, (_, message) in {**hostile, **_SPOILED}.items()}
    expected |= {"sparse": "larger than 4 MiB", "fifo": "not a regular file"}
    assert found.keys() == {f"h-{name}.json" for name in expected}
    for name, message in expected.items():
        assert message.replace("\\\\", "\\") in found[f"h-{name}.json"], name
        assert found[f"h-{name}.json"].isprintable()
    assert all(refusal.remedy for refusal in result.refused)
    assert result.stored == 2
    assert content(tmp_path / "data") == content(tmp_path / "clean")


def test_a_boot_identity_that_is_no_text_is_no_boot(tmp_path: Path) -> None:
    one = capture("n1")
    source = captured(tmp_path / "in", one)
    (source / "n1-2026-11-26T10.verdict.json").write_text(
        json.dumps(verdict(one, boot_identity={"a": 1}))
    )
    assert run(tmp_path / "data", source).stored == 1


def test_a_report_that_the_program_fails_on_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = captured(tmp_path / "in", capture("n1"), capture("n2"))
    parsed = report_of

    def fails(content: dict[str, Any], *more: Any) -> Any:
        if content["identity"]["hostname"] == "n1":
            raise TypeError("unhashable type")
        return parsed(content, *more)

    monkeypatch.setattr(arrivals, "report_of", fails)
    result = run(tmp_path / "data", source)
    assert result.stored == 1
    assert [(one.file.name[:2], one.message) for one in result.refused] == [
        ("n1", "cannot be read: TypeError: unhashable type")
    ]


def test_a_damaged_file_of_the_data_is_named_and_no_report_is_refused_for_it(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    run(data, captured(tmp_path / "in", capture("n1")))
    part = found_parts(data)[0].file(data, NODES)
    part.write_bytes(part.read_bytes()[:100])
    inbox.put(data, "n2", {"class": CLASS, "capture": capture("n2")})
    with pytest.raises(GoldnodeError, match="damaged") as caught:
        run(data)
    assert caught.value.file == str(part)
    assert len(list((data / "inbox").iterdir())) == 1
    assert not (data / "refused").exists()


def test_a_verdict_of_another_kind_or_boot_is_refused(tmp_path: Path) -> None:
    found = capture("n1")
    wrong = {
        "boot": verdict(found, boot_identity="another"),
        "schema": {"schema": "goldnode.gate/1"},
        "status": verdict(found, status="splendid"),
        "findings": verdict(found, findings={"a": 1}),
        "finding": verdict(found, findings=["x"]),
        "text": verdict(found, findings=[{"id": 7}]),
    }
    for name, one in wrong.items():
        source = captured(tmp_path / name, found)
        (source / "n1-2026-11-26T10.verdict.json").write_text(json.dumps(one), encoding="utf-8")
        result = run(tmp_path / "data", source)
        assert (result.stored, len(result.refused)) == (0, 1), name
    assert not found_parts(tmp_path / "data")


def test_control_characters_and_html_in_values_are_stored_escaped_or_as_text(
    tmp_path: Path,
) -> None:
    found = capture("n1")
    found["gpus"][0]["vbios"] = "\x1b[2J<b>\u202e"
    run(tmp_path / "data", captured(tmp_path / "in", found))
    query = "SELECT value FROM facts WHERE key = 'gpu.vbios' AND item = 'GPU-n1-0'"
    assert rows(tmp_path / "data", query) == [("\\x1b[2J<b>\\u202e",)]


def test_memory_is_bounded_by_the_largest_report(tmp_path: Path) -> None:
    """A process with little memory refuses what is hostile, and stores the rest."""
    source = captured(tmp_path / "in", capture("n1"))
    (source / "a.json").write_text('{"a":"' + "x" * (3 << 20) + '"}', encoding="utf-8")
    (source / "b.json").write_text("[" + ",".join(["[]"] * 190_000) + "]", encoding="utf-8")
    with (source / "c.json").open("w") as large:
        large.truncate(4 << 30)
    program = (
        "import sys, resource; from pathlib import Path\n"
        "from tests.unit.fleet.ingest.test_ingest import run\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "result = run(Path(sys.argv[2]), Path(sys.argv[1]))\n"
        "print(result.stored, len(result.refused), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(source), str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)),
    )
    stored, refused, grown = map(int, done.stdout.split())
    assert (stored, refused) == (1, 3)
    assert grown < 200_000, "KiB"


def test_long_texts_are_written_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these reports is small enough; together they would be held in memory until the end."""
    monkeypatch.setattr(write, "MOST_ROWS", 20_000)
    flushed: list[int] = []
    flush = write.OpenPart.flush

    def counted(part: write.OpenPart) -> None:
        flushed.append(len(part.group.members))
        flush(part)

    monkeypatch.setattr(write.OpenPart, "flush", counted)
    reports = []
    for number in range(8):
        one = capture(f"n{number}")
        one["x"] = {f"k{text}": f"{number}-{text}-" + "a" * 16_000 for text in range(20)}
        reports.append(one)
    assert run(tmp_path / "data", captured(tmp_path / "in", *reports)).stored == 8
    assert sum(flushed) == 8
    assert max(flushed) < 8
    assert rows(tmp_path / "data", "SELECT count(*) FROM facts WHERE length(value) > 16000") == [
        (160,)
    ]


class _KilledError(BaseException):
    pass


@pytest.mark.parametrize("step", range(14))
def test_a_killed_ingest_leaves_no_half_day_and_the_next_one_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The ingest of two days is killed before each rename in turn, without any clean-up."""
    data = tmp_path / "data"
    run(data, captured(tmp_path / "old", capture("n0", "2026-11-25T08:00:00Z"), verdicts=True))
    source = captured(
        tmp_path / "in",
        capture("n1", "2026-11-25T10:00:00Z"),
        capture("n2"),
        capture("n3"),
        verdicts=True,
    )
    run(tmp_path / "whole", tmp_path / "old")
    run(tmp_path / "whole", source)
    if not (pid := os.fork()):  # killed like by SIGKILL: no `finally` runs
        count = 0
        rename = Path.replace

        def renamed(self: Path, target: Path) -> Path:
            nonlocal count
            if count == step:
                os._exit(9)
            count += 1
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", renamed)
        run(data, source)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert killed == (step < 12), "two parts of six files"
    counts = ", ".join(f"(FROM {table} SELECT count(DISTINCT (node, time)))" for table in VIEWS)
    (seen,) = rows(data, f"VALUES ({counts})")
    assert len(set(seen)) == 1, "each capture is in all tables or in none"
    result = run(data, source)
    assert result.refused == []
    assert content(data) == content(tmp_path / "whole")
    assert not (data / ".ingest").exists()


def test_the_rest_of_another_killed_ingest_is_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run(data, captured(tmp_path / "in", capture("n1")))
    part = found_parts(data)[0]
    half = part._replace(id="0" * 24)
    half.file(data, "facts").write_bytes(b"half")
    (data / "facts" / "notes.txt").write_text("of a person", encoding="utf-8")
    assert rows(data, "SELECT count(DISTINCT node) FROM facts") == [(1,)]
    run(data, captured(tmp_path / "more", capture("n2")))
    assert not half.file(data, "facts").exists()
    assert (data / "facts" / "notes.txt").exists()


def test_many_classes_and_days_need_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "_MOST_OPEN", 2)
    monkeypatch.setattr(write, "MOST_ROWS", 4_000)
    found = [
        capture(f"n{day}-{node}", f"2026-11-{day:02}T10:00:00Z")
        for node in range(3)
        for day in range(1, 6)
    ]
    result = run(tmp_path / "data", captured(tmp_path / "in", *found))
    assert result.stored == 15
    assert rows(
        tmp_path / "data", "SELECT count(*), count(DISTINCT node), count(DISTINCT day) FROM nodes"
    ) == [(15, 15, 5)]
    assert rows(tmp_path / "data", "SELECT count(*) FROM facts WHERE key = 'gpu.vbios'") == [(120,)]
    assert run(tmp_path / "data", tmp_path / "in").known == 15


def test_the_inbox_is_emptied_and_what_cannot_be_stored_is_reserved(tmp_path: Path) -> None:
    data = tmp_path / "data"
    found = capture("n1")
    report = {
        "source": "ansible",
        "class": CLASS,
        "cohort": "ring0",
        "capture": found,
        "verdict": verdict(found),
    }
    file = inbox.put(data, "rack1-n1", report)
    assert inbox.put(data, "rack1-n1", report) == file
    (data / "inbox" / "bad.json").write_text("{}", encoding="utf-8")
    (data / "inbox" / ".new-x").write_text("half", encoding="utf-8")
    result = run(data)
    assert (result.stored, len(result.refused)) == (1, 1)
    assert rows(data, "SELECT node, cohort, source FROM nodes") == [
        ("rack1-n1", "ring0", "ansible")
    ]
    assert [one.name for one in (data / "inbox").iterdir()] == [".new-x"]
    assert [one.name for one in (data / "refused").iterdir()] == ["bad.json"]


def test_a_part_is_complete_by_its_file_of_nodes(tmp_path: Path) -> None:
    run(
        tmp_path / "data",
        captured(tmp_path / "in", capture("n1"), capture("n2", "2026-11-25T10:00:00Z")),
    )
    first = found_parts(tmp_path / "data")[0]
    first.file(tmp_path / "data", NODES).unlink()
    assert rows(tmp_path / "data", "SELECT DISTINCT node FROM facts") == [("n1",)]


def test_reading_a_directory_without_captures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GoldnodeError, match="goldnode fleet ingest"):
        read.connect(tmp_path)


def test_a_report_that_another_ingest_has_just_stored_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the lock of the other one, which empties the inbox after that."""
    data = tmp_path / "data"
    for name in ("n1", "n2"):
        inbox.put(data, name, {"class": CLASS, "source": "http", "capture": capture(name)})
    gone, open_ = sorted((data / "inbox").iterdir())[0], files.read

    def read_(file: str) -> bytes:
        if file == str(gone):
            gone.unlink()
        return open_(file)

    monkeypatch.setattr(files, "read", read_)
    result = run(data)
    assert (result.stored, result.refused) == (1, [])
    assert not (data / "refused").exists()


def test_file_that_grows_while_it_is_read_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, status = tmp_path / "n1.json", os.fstat
    file.write_bytes(bytes(range(256)) * 1_000)

    def smaller(handle: int) -> os.stat_result:
        return os.stat_result([*status(handle)[:6], 10, *status(handle)[7:]])

    monkeypatch.setattr(os, "fstat", smaller)
    assert files.read(file) == file.read_bytes()


def test_ingest_imports_no_pandas_and_leaves_it_usable(tmp_path: Path) -> None:
    """Where pandas is installed, pyarrow imports it for the first array: most of the start of an ingest."""
    pytest.importorskip("pandas")
    captured(tmp_path / "in", capture("n1"))
    script = f"""
import sys
from pathlib import Path
from goldnode.fleet.ingest.files import IngestRequest, ingest
assert ingest(IngestRequest(Path({str(tmp_path / "data")!r}), (Path({str(tmp_path / "in")!r}),))).stored == 1
assert "pandas" not in sys.modules
import pyarrow as pa
assert list(pa.table({{"a": [1, 2]}}).to_pandas()["a"]) == [1, 2]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_collector_has_its_thresholds_again_after_an_ingest(tmp_path: Path) -> None:
    before = gc.get_threshold()
    assert run(tmp_path / "data", tmp_path).stored == 0
    assert gc.get_threshold() == before


def test_refused_reports_are_bounded_by_bytes_and_the_newest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    monkeypatch.setattr(files, "_MOST_REFUSED_BYTES", 2500)
    for number in range(4):
        bad = data / "inbox" / f"bad{number}.json"
        bad.parent.mkdir(parents=True, exist_ok=True)
        bad.write_text("{" * 1000)
        os.utime(bad, (number, number))
        run(data)
    assert sorted(one.name for one in (data / "refused").iterdir()) == ["bad2.json", "bad3.json"]
