"""Tables under the views that come from no file: many rows, in statements that both engines take."""
# ruff: noqa: S608  # names of tables of this file alone

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.simulators.fleet import NOW, fleet, put, store

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.tables import found_parts
from goldnode.fleet.report import clickhouse, engine, frame
from goldnode.fleet.report.build import report
from goldnode.fleet.report.frame import ExpectedNode, ReportKeys, ReportSettings, ReportSource

COLUMNS = ["key text", "n int", "rate float"]
ROWS: list[tuple[Any, ...]] = [
    ("it's", 1, 0.02),
    ("\\", -7, 1e-05),
    (None, 0, 1e20),
    ("x", 2**30, -1.5),
]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_rows_are_those_of_a_chain_of_selects(count: int) -> None:
    rows = ROWS[:count]
    with duckdb.connect(":memory:") as connection:
        chain = frame.values(COLUMNS, rows, engine.DUCKDB.types, engine.quoted)
        found = [connection.sql(text) for text in (engine.select_rows(COLUMNS, rows), chain)]
        assert found[0].types == found[1].types
        assert found[0].fetchall() == found[1].fetchall() == rows


def test_rows_are_one_select_whatever_their_number() -> None:
    text = engine.select_rows(["node text"], [(f"n{number}",) for number in range(20_000)])
    assert text.count("SELECT") == 1


def test_statements_for_clickhouse_are_below_the_size_that_it_reads(tmp_path: Path) -> None:
    store(tmp_path, fleet(2), [NOW - timedelta(hours=1)])
    expected = [
        ExpectedNode(f"rack{number:05}-node.example.com", "h100", "ring")
        for number in range(10_000)
    ]
    source = ReportSource(tmp_path, expected)
    found = list(clickhouse.statements(source, ReportSettings(NOW), ReportKeys([], [], [])))
    assert max(len(one.encode()) for one in found) < 262_144  # max_query_size
    assert sum(one.count("rack0") for one in found if " expected " in one) == 10_000


def test_finding_without_an_id_in_old_files_is_no_key() -> None:
    with duckdb.connect(":memory:") as connection:
        connection.execute(
            "CREATE TABLE stored_facts AS SELECT 'a' AS key; CREATE TABLE stored_numbers AS SELECT 'b' AS key"
        )
        changes = "CAST(['x'] AS VARCHAR[]) AS texts, CAST([] AS DOUBLE[]) AS \"values\""
        connection.execute(f"CREATE TABLE stored_changes AS SELECT 'd' AS key, {changes}")
        connection.execute("CREATE TABLE findings AS SELECT unnest(['c', NULL]) AS id")
        assert engine.keys_of(connection) == ReportKeys(["a", "d"], ["b"], ["c"])


@pytest.fixture
def by_change(tmp_path: Path) -> ReportSource:
    """Captures of some days by change, in which a counter, a metric and facts differ."""
    nodes = fleet(3)
    nodes[0].change(lambda capture: capture["storage"].update(paths={"/scratch": {"read_mb_s": 1}}))
    for hour in (200, 30, 2):
        nodes[0].change(put("gpus/0/pcie/replay", 300 - hour), NOW - timedelta(hours=hour))
        nodes[0].change(put("storage/paths/*/read_mb_s", hour), NOW - timedelta(hours=hour))
        nodes[1].change(put("driver/loaded", f"570.{hour}"), NOW - timedelta(hours=hour))
        store(tmp_path, nodes, [NOW - timedelta(hours=hour)], gpus=2)
    return ReportSource(tmp_path)


def test_watched_views_have_the_rows_of_their_keys(by_change: ReportSource) -> None:
    with engine.opened(by_change, ReportSettings(NOW)) as connection:
        keys = "SELECT key FROM rates UNION SELECT key FROM metrics"
        for watched, every in (
            ("watched_numbers", "stored_numbers"),
            ("replaced_watched", "replaced_numbers"),
            ("replacing_watched", "replacing_numbers"),
        ):
            found, expected = (
                connection.execute(f"SELECT * FROM {name} WHERE {where} ORDER BY ALL").fetchall()
                for name, where in ((watched, "true"), (every, f"key IN ({keys})"))
            )
            assert found == expected != [], watched


def test_tables_of_a_report_have_its_captures_as_the_views_of_all_have_them(
    by_change: ReportSource,
) -> None:
    rows = {}
    for narrow in (True, False):
        with engine.opened(by_change, ReportSettings(NOW), narrow=narrow) as connection:
            wanted = frame.wanted_captures()
            for table in ("facts", "numbers", "digests"):
                query = (
                    f"SELECT * FROM {table} SEMI JOIN ({wanted}) USING (node, time) ORDER BY ALL"
                )
                rows[table, narrow] = connection.execute(query).fetchall()
            if narrow:
                assert connection.execute("SELECT count(*) FROM replacing_facts").fetchone() != (0,)
    for table in ("facts", "numbers", "digests"):
        assert rows[table, True] == rows[table, False] != [], table


@pytest.mark.parametrize("table", ["nodes", "facts", "findings"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_file_that_is_damaged_or_was_removed_meanwhile_is_an_error_with_its_name(
    tmp_path: Path, table: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, fleet(2), [NOW - timedelta(hours=1)])
    found = found_parts(tmp_path)
    file = found[0].file(tmp_path, table)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        # Listed before it was removed.
        monkeypatch.setattr(
            frame, "found_parts", lambda _, name="nodes": found if name == "nodes" else []
        )
        file.unlink()
    with pytest.raises(GoldnodeError, match=file.name):
        report(ReportSource(tmp_path), ReportSettings(NOW))
