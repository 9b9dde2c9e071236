"""Every view gives the same rows in DuckDB and in ClickHouse (chdb), over the same files."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.fleet import NOW, Json, canary, finding, fleet, put, store, store_results

from goldnode.core.errors import GoldnodeError
from goldnode.documents.floors import FloorsDocument
from goldnode.fleet.ingest import compact
from goldnode.fleet.ingest.tables import found_parts
from goldnode.fleet.report import clickhouse, engine
from goldnode.fleet.report.frame import ExpectedNode, ReportSettings, ReportSource, views

HOUR = timedelta(hours=1)
DEVICE = "0000:0a:00.0"
# Captures of these ages, in hours, of every node that reports.
AGES = (180, 50, 30, 24, 16, 12, 4, 1)
NAMES = [view.name for view in views()]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ReportSource:
    """A small fleet in which every view has rows."""
    directory = tmp_path_factory.mktemp("captures")
    nodes = fleet(12, cohort_size=6)
    for node in nodes:
        node.change(
            lambda capture: capture["storage"].update(
                paths={"/scratch": {"latency_ms": 1.0, "read_mb_s": 5000.0}}
            )
        )
    for node in nodes[:2]:
        node.change(put("driver/loaded", "570"), NOW - 35 * HOUR)
        node.find(finding("driver.loaded", "580", "570", severity="drain"), NOW - 35 * HOUR)
    for node in nodes[6:]:
        node.change(put("memory/numa_balancing", True))
    nodes[2].change(put("gpus/1/uuid", "GPU-other"), NOW - 35 * HOUR)
    nodes[3].change(
        lambda capture: capture["storage"]["paths"]["/scratch"].update(read_mb_s=3000.0)
    )
    nodes[4].change(lambda capture: capture["storage"]["mounts"].clear())
    nodes[7].change(lambda capture: capture["gpus"][1].pop("vbios"))
    nodes[5].find(finding("gpu.vbios", "96", "unread", outcome="could_not_read"))
    for age in AGES[1:]:
        nodes[6].change(put("gpus/0/pcie/replay", 2 * (50 - age)), NOW - age * HOUR)
    for start in (50, 30, 16):
        fault = finding("gpu.ecc.uncorrected", "0", "3", domain="hardware", severity="drain")
        nodes[8].findings.append((NOW - start * HOUR, fault))
    faults = nodes[8].findings
    for age in AGES:
        nodes[8].findings = faults if age in (50, 30, 16, 12) else []
        reporting = nodes[:-1] if age < 180 else nodes
        store(directory, reporting, [NOW - age * HOUR], gpus=2)
    store_results(directory, [one for node in nodes for one in measured(node.number)])
    return ReportSource(
        directory,
        [ExpectedNode("spare1", "h100", "ring09")],
        [("job7", nodes[0].name), ("job7", nodes[9].name)],
        [baseline()],
    )


def measured(number: int) -> list[Json]:
    """Canary results of a node: one is slow by its floor, one by its class, one becomes slower, one fails a job."""
    found = []
    for place in range(12 if number == 1005 else 1):
        speed = {1001: 450.0, 1005: 600.0 - 8 * place}.get(number, 600.0 + number % 7)
        latency = 9.0 if number == 1002 else 5.0 + number % 3 / 100
        samples = {
            "gemm_fp16": {DEVICE: [speed + run % 5 for run in range(20)]},
            "step_ms": {DEVICE: [latency + run % 5 / 1000 for run in range(100)]},
            "start/cold": {"": [1.0]},
        }
        found.append(canary(f"node{number}", NOW - HOUR * (30 - place), samples))
    if number == 1003:
        job = {
            "name": "fft",
            "state": "failed",
            "why": "wrong result",
            "seconds": 1.0,
            "verified": True,
        }
        found[0]["jobs"].append(job | {"metrics": []})
    return found


def baseline() -> FloorsDocument:
    """Floors of gemm_fp16 alone: other metrics are judged by their class."""
    found = canary("n", NOW, {})
    metric = {
        "name": "gemm_fp16", "job": "gemm", "phase": "warm", "unit": "TFLOPS", "better": "higher", "node": None, "device": None,
        "margin": 0.03, "nodes": 30, "devices": 30, "runs": 600, "results": 30, "verified": True,
        "statistics": [{"quantile": "p50", "median": 600.0, "low": 599.0, "high": 601.0, "sigma": 5.0, "floor": 580.0}],
        "sm_mhz": [1980.0, 1980.0], "temperature_c": None, "power_w": None,
    }  # fmt: skip
    same = {key: found[key] for key in ("class", "class_digest", "platform", "runner", "simulated")}
    content = same | {
        "schema": "goldnode.floors/1",
        "scope": "class",
        "begin": found["started"],
        "end": found["started"],
    }
    content |= {"results": 30, "nodes": ["a"], "metrics": [metric], "left_out": []}
    return FloorsDocument.model_validate_json(json.dumps(content))


@pytest.fixture(scope="module")
def settings() -> ReportSettings:
    return ReportSettings(NOW)


@pytest.fixture(scope="module")
def duckdb_rows(source: ReportSource, settings: ReportSettings) -> dict[str, list[dict[str, Any]]]:
    with engine.opened(source, settings) as connection:
        return {name: engine.rows(connection, name) for name in NAMES}


@pytest.fixture(scope="module")
def session(
    source: ReportSource, settings: ReportSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    sessions = pytest.importorskip("chdb.session")
    directory = str(tmp_path_factory.mktemp("clickhouse"))
    session = sessions.Session(directory)
    # The library blocks SIGPIPE, also for programs that later tests start.
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    session.query("CREATE DATABASE goldnode")
    session.query("USE goldnode")
    with engine.opened(source, settings) as connection:
        keys = engine.keys_of(connection)
        made = list(clickhouse.statements(source, settings, keys))
    for statement in made:
        session.query(statement)
    # Readers come later and by another connection, without the settings of the script.
    session.close()
    session = sessions.Session(directory)
    session.query("USE goldnode")
    yield session
    session.close()


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows with the types of JSON: numbers to nine digits, times to the second, in one order."""

    def value(found: Any) -> Any:
        if isinstance(found, bool) or found is None or isinstance(found, list):
            return found
        if isinstance(found, int | float):
            return f"{float(found):.9g}"
        text = str(found)
        return (
            f"{float(text):.9g}"
            if text.replace(".", "", 1).isdigit() and "." not in text
            else text[:19]
        )

    return sorted(
        json.dumps({key: value(one) for key, one in row.items()}, sort_keys=True) for row in rows
    )


@pytest.mark.parametrize("name", NAMES)
def test_view_has_the_same_rows_in_both_engines(
    name: str, duckdb_rows: dict[str, list[dict[str, Any]]], session: Any
) -> None:
    text = session.query(f"SELECT * FROM {name}", "JSONEachRow").data()  # noqa: S608
    assert duckdb_rows[name], f"the fleet of this test has nothing for {name}"
    assert plain([json.loads(line) for line in text.splitlines()]) == plain(duckdb_rows[name])


def test_columns_have_a_type_that_clickhouse_adds_up(session: Any) -> None:
    """A UNION of Int64 and UInt64 is a Variant in ClickHouse 26.9, which `sum` refuses."""
    query = "SELECT table, name, type FROM system.columns WHERE database = 'goldnode' AND type LIKE '%Variant%'"
    assert session.query(query, "CSV").data() == ""


# Rows of the stored captures: what ClickHouse reads of the files, and of tables that were filled from them.
STORED = ("captures", "results", "facts", "numbers", "digests", "findings")


class LoadedTables:
    """Statements of `clickhouse-tables` for a directory, up to the views of the report."""

    def __init__(self, source: ReportSource, settings: ReportSettings) -> None:
        with engine.opened(source, settings) as connection:
            keys = engine.keys_of(connection)
            self.rows = {name: plain(engine.rows(connection, name)) for name in STORED}
        every = list(clickhouse.statements(source, settings, keys, load=True))
        self.statements = every[: next(n for n, one in enumerate(every) if "VIEW settings" in one)]


def stored(session: Any) -> dict[str, list[str]]:
    found = {}
    for name in STORED:
        text = session.query(f"SELECT * FROM {name}", "JSONEachRow").data()  # noqa: S608
        found[name] = plain([json.loads(line) for line in text.splitlines()])
    return found


def test_load_of_tables_that_ends_at_any_statement_shows_old_rows_or_new_ones(
    session: Any, settings: ReportSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "MANY", 3)
    session.query("CREATE DATABASE tables")
    session.query("USE tables")
    try:
        directory = tmp_path / "captures"
        for age in (30, 3, 2):
            store(directory, fleet(2), [NOW - age * HOUR], gpus=1)
        old = LoadedTables(ReportSource(directory), settings)
        for statement in old.statements:
            session.query(statement)
        assert stored(session) == old.rows
        store(directory, fleet(2), [NOW - HOUR], gpus=1)  # merges the parts of the day
        new = LoadedTables(ReportSource(directory), settings)
        assert new.rows != old.rows
        views = next(n for n, one in enumerate(new.statements) if " VIEW " in one)
        inserts = [n for n, one in enumerate(new.statements[:views]) if one.startswith("INSERT")]
        for end in (inserts[2], inserts[-1], views):
            for statement in new.statements[:end]:
                session.query(statement)
            assert stored(session) == (old.rows if end < views else new.rows)
        for statement in new.statements:
            session.query(statement)
        assert stored(session) == new.rows
        kept = session.query("SELECT count(DISTINCT file) FROM loaded_nodes", "CSV").data()
        assert int(kept) == len(found_parts(directory))
    finally:
        session.query("USE goldnode")


def test_statements_can_be_run_again(source: ReportSource, settings: ReportSettings) -> None:
    with engine.opened(source, settings) as connection:
        keys = engine.keys_of(connection)
    again = (
        "CREATE OR REPLACE ",
        "CREATE TABLE IF NOT EXISTS ",
        "INSERT INTO ",
        "SET ",
        "DELETE FROM ",
    )
    for load in (False, True):
        for statement in clickhouse.statements(source, settings, keys, load=load):
            first = statement.partition("\nCREATE")[0] if statement.startswith("--") else statement
            assert first.startswith((*again, "EXCHANGE TABLES ", "--")), statement[:80]


def test_path_that_is_a_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GoldnodeError, match="reads no files whose path has one of"):
        clickhouse.ClickHouseFiles(tmp_path / "a{b}").function("facts")


def test_view_of_a_site_can_use_the_others_and_a_wrong_one_is_named(
    source: ReportSource, tmp_path: Path
) -> None:
    (tmp_path / "99_busy.sql").write_text(
        "-- Nodes that work.\nSELECT node FROM latest WHERE known = 1;\n"
    )
    with engine.opened(source, ReportSettings(NOW), tmp_path) as connection:
        assert len(engine.rows(connection, "busy")) == 11
    (tmp_path / "99_busy.sql").write_text("SELECT nothing FROM latest")
    with (
        pytest.raises(GoldnodeError, match=r"refuses the view busy.*99_busy\.sql"),
        engine.opened(source, ReportSettings(NOW), tmp_path),
    ):
        pass
    (tmp_path / "99_busy.sql").rename(tmp_path / "busy.sql")
    with (
        pytest.raises(GoldnodeError, match=r"busy\.sql.*99_name\.sql"),
        engine.opened(source, ReportSettings(NOW), tmp_path),
    ):
        pass


def test_views_of_slow_nodes_have_each_basis(duckdb_rows: dict[str, list[dict[str, Any]]]) -> None:
    slow = {
        (one["node"], one["origin"], one["basis"], one["quantile"]) for one in duckdb_rows["slow"]
    }
    assert slow == {
        ("node1001", "canary", "floors", "p50"),
        ("node1005", "canary", "floors", "p50"),
        ("node1002", "canary", "class", "p50"),
        ("node1002", "canary", "class", "p95"),
        ("node1003", "captures", "class", "p50"),
    }


def test_every_view_has_a_description_and_its_own_name() -> None:
    for view in views():
        assert len(view.about) > 30, view.name
    assert len(NAMES) == len(set(NAMES))
