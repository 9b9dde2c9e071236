"""A synthetic fleet of any size in the layout of the ingest, multiplied in DuckDB from the rows of one node.

Parsing 10,000 captures is the benchmark of the ingest; here only the files matter. Simulated.
"""
# ruff: noqa: S608  # names and times of this file alone

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
from tests.simulators import fleet as simulated

from goldnode.fleet.ingest.tables import CHANGES, DIGESTS, FACTS, FINDINGS, NODES, NUMBERS

NOW = datetime(2026, 11, 26, 8, 0, tzinfo=UTC)
_COLUMNS = {
    FACTS: ("item", "key", "value", "fault"),
    NUMBERS: ("item", "key", "value"),
    DIGESTS: ("section", "digest"),
}
_NAME = "printf('node%05d', n)"
# Every 500th node runs another driver, every 700th has another MTU since last week; one in 50 has not reported.
_DRIFT = {
    "driver": "n % 500 = 7",
    "network": "n % 700 = 9 AND NOT earlier",
}
_BASE = timedelta(
    days=3
)  # age of the captures that the last ones refer to, if these are stored by change
# Readings and counters of GPUs that differ from those of the base: 20 keys with 200 values of a node.
_CHANGED = "^gpu.(temperature|power|clocks.current|utilization|throttle|memory.used)"
_EMPTY = ", ".join(f"CAST([] AS VARCHAR[]) AS {name}" for name in ("items", "texts", "faults"))


def make(
    directory: Path,
    nodes: int = 10_000,
    times: tuple[timedelta, ...] = (timedelta(hours=1), timedelta(days=7, hours=2)),
    by_change: bool = False,
) -> None:
    """Write the captures of `nodes` nodes for these ages.

    :param by_change: the first ones are stored as changes from others of three days ago, which are added.
    """
    with tempfile.TemporaryDirectory() as folder:
        seed = Path(folder)
        simulated.store(seed, simulated.fleet(1), [NOW - timedelta(days=1)])
        connection = duckdb.connect()
        connection.execute("SET threads=2; SET memory_limit='4GB'; SET enable_progress_bar=false")
        for age in (*times, _BASE) if by_change else times:
            selects = _day(nodes, NOW - age)
            if by_change:
                _add_changes(selects, NOW - age, changed=age == times[0])
            _write(connection, seed, directory, selects, NOW - age)


def _stamp(time: datetime) -> str:
    return f"TIMESTAMP_MS '{time:%Y-%m-%d %H:%M:%S}'"


def _add_changes(selects: dict[str, str], time: datetime, changed: bool) -> None:
    """Make of the tables of a day those of a build that stores changes. `changed`: its captures refer to those of the base's day."""
    base = _stamp(NOW - _BASE)
    selects[NODES] = (
        f"SELECT *, {base if changed else 'NULL::TIMESTAMP_MS'} AS base FROM ({selects[NODES]})"
    )
    for table in (FACTS, NUMBERS):
        place = "row_number() OVER (PARTITION BY node, key ORDER BY item) - 1"
        selects[table] = (
            f"SELECT *, CAST({place} AS SMALLINT) AS place FROM ({selects[table]}) ORDER BY key, node, place"
        )
    numbers = selects[NUMBERS]
    selects[
        CHANGES
    ] = f"""SELECT node, time, {base} AS base, key, {_EMPTY}, list(value + 1 ORDER BY place) AS "values"
        FROM ({numbers}) WHERE regexp_matches(key, '{_CHANGED}') AND {"true" if changed else "false"}
        GROUP BY node, time, key ORDER BY key, node"""
    if changed:
        for table in (FACTS, NUMBERS, DIGESTS):
            selects[table] = f"SELECT * FROM ({selects[table]}) WHERE false"


def _day(nodes: int, time: datetime) -> dict[str, str]:
    """Return the SELECT of each table for whole captures of one time."""
    stamp = _stamp(time)
    earlier = "true" if NOW - time > timedelta(days=6) else "false"
    present = f"(SELECT range AS n, {_NAME.replace('n)', 'range)')} AS node FROM range({nodes}) WHERE {earlier} OR range % 50 <> 11)"
    odd = {
        topic: f"({rule.replace('NOT earlier', 'NOT ' + earlier)})"
        for topic, rule in _DRIFT.items()
    }
    return {
        NODES: f"""SELECT p.node, {stamp} AS time, printf('ring%04d', n // 8) AS cohort, {stamp} AS received,
            printf('boot-%d', n) AS boot_id, 3600.0 AS uptime, true AS simulated,
            CASE WHEN {odd["driver"]} THEN 'drain' ELSE 'healthy' END AS status, class_digest, lock_digest, engine, source
            FROM {present} p, seed""",
        FACTS: f"""SELECT p.node, {stamp} AS time,
            CASE WHEN starts_with(item, 'GPU-') THEN printf('GPU-%08x', n) || substr(item, 13) ELSE item END AS item, key,
            CASE WHEN key = 'driver.loaded' AND {odd["driver"]} THEN '570.86.15'
                 WHEN key = 'network.mtu' AND {odd["network"]} THEN '1500'
                 WHEN key IN ('gpu.uuid', 'gpu.serial') THEN printf('GPU-%08x', n) || substr(item, 13)
                 WHEN starts_with(key, 'identity.') AND key IN ('identity.hostname', 'identity.machine_id', 'identity.boot_id',
                    'identity.boot_identity', 'identity.product.serial') THEN p.node ELSE value END AS value, fault
            FROM seed, {present} p ORDER BY key, item, p.node""",
        NUMBERS: f"""SELECT p.node, {stamp} AS time,
            CASE WHEN starts_with(item, 'GPU-') THEN printf('GPU-%08x', n) || substr(item, 13) ELSE item END AS item, key,
            CASE WHEN key = 'gpu.temperature.gpu_c' THEN 30.0 + (n * 7 + ascii(right(item, 1))) % 40 ELSE value END AS value
            FROM seed, {present} p ORDER BY key, item, p.node""",
        DIGESTS: f"""SELECT p.node, {stamp} AS time, section,
            CASE WHEN section = 'driver' AND {odd["driver"]} THEN 'a'
                 WHEN section = 'network' AND {odd["network"]} THEN 'b' ELSE digest END AS digest
            FROM {present} p, seed""",
        FINDINGS: f"""SELECT p.node, {stamp} AS time, 'driver.loaded' AS id, 'mismatch' AS outcome, 'drain' AS severity,
            'driver' AS domain, NULL::VARCHAR AS subject, '580.95.05' AS expected, '570.86.15' AS got
            FROM {present} p WHERE {odd["driver"]}""",
    }


def _write(
    connection: duckdb.DuckDBPyConnection,
    seed: Path,
    directory: Path,
    selects: dict[str, str],
    time: datetime,
) -> None:
    for table, select in selects.items():
        file = (
            directory
            / table
            / "class=h100"
            / f"day={time:%Y-%m-%d}"
            / f"part-{time:%Y%m%d%H%M%S}{'0' * 10}.parquet"
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = NUMBERS if table == CHANGES else table
        seeds = next(iter((seed / rows).glob("*/*/*.parquet")))
        with_seed = f"WITH seed AS (SELECT * FROM read_parquet('{seeds}', hive_partitioning=false))"
        connection.execute(
            f"COPY ({with_seed} {select}) TO '{file}' (FORMAT parquet, COMPRESSION zstd)"
        )
