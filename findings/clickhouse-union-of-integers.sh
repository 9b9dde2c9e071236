#!/usr/bin/env bash
# ClickHouse 26.9 (chdb 4.4.0): UNION ALL of Int64 and UInt64, as of a difference of counts and a count, is a Variant, which sum() refuses.
#
# `count()` is UInt64 and `count() - count()` Int64. DuckDB has one type for both. In ClickHouse, the union has no error and prints the same rows; only
# a reader that adds them up gets ILLEGAL_TYPE_OF_ARGUMENT.
# Installs chdb 4.4.0 and DuckDB 2.0.1 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'chdb==4.4.0' 'duckdb==2.0.1'
tools/bin/python - <<'PY'
import duckdb
from chdb.session import Session

union = "SELECT count(*) AS n FROM t UNION ALL SELECT count(*) - count(*) AS n FROM t"
make, total = "CREATE TABLE t AS SELECT 1 AS x", f"SELECT sum(n) FROM ({union}) AS u"
duckdb.execute(make)
session = Session("data")
session.query("CREATE DATABASE one")
session.query("USE one")
session.query("CREATE TABLE t ENGINE = MergeTree ORDER BY tuple() AS SELECT 1 AS x")
kind = session.query(f"SELECT DISTINCT toTypeName(n) FROM ({union})", "TSVRaw").data().strip()
rows = sorted(session.query(union, "CSV").data().split())
try:
    answer = session.query(total, "CSV").data().strip()
except Exception as problem:
    answer = "ILLEGAL_TYPE_OF_ARGUMENT" if "ILLEGAL_TYPE_OF_ARGUMENT" in str(problem) else str(problem)
print(f"ClickHouse: type {kind}, rows {rows}, sum {answer}; DuckDB: sum {duckdb.execute(total).fetchall()[0][0]}")
raise SystemExit((kind, rows, answer) != ("Variant(Int64, UInt64)", ["0", "1"], "ILLEGAL_TYPE_OF_ARGUMENT"))
PY
