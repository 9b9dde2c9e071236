#!/usr/bin/env bash
# ClickHouse 26.9 (chdb 4.4.0): a view that was created under join_use_nulls = 1 shows columns of the type Nullable, and no NULL, to a connection
# without that setting.
#
# The view stores the types of its columns and not the settings. A row without a partner in a LEFT JOIN is NULL for the connection that created the
# view, and an empty text for others, where DESCRIBE says Nullable(String). So `WHERE t IS NULL` finds nothing, without an error. The same SELECT with
# `SETTINGS join_use_nulls = 1` at its end has the NULL for every connection.
# Installs chdb 4.4.0 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'chdb==4.4.0'
tools/bin/python - <<'PY'
from chdb.session import Session

join = "SELECT a.n AS n, b.t AS t FROM a LEFT JOIN b ON a.n = b.n"
session = Session("data")
for statement in (
    "CREATE DATABASE one", "USE one",
    "CREATE TABLE a (n Int32) ENGINE = MergeTree ORDER BY n", "INSERT INTO a VALUES (1), (2)",
    "CREATE TABLE b (n Int32, t String) ENGINE = MergeTree ORDER BY n", "INSERT INTO b VALUES (1, 'one')",
    "SET join_use_nulls = 1", f"CREATE VIEW plain AS {join}", f"CREATE VIEW own AS {join} SETTINGS join_use_nulls = 1",
):
    session.query(statement)
count = "SELECT count() FROM {} WHERE t IS NULL"
same = int(session.query(count.format("plain"), "CSV").data())
session.close()
session = Session("data")  # another connection
session.query("USE one")
kind = session.query("SELECT type FROM system.columns WHERE table = 'plain' AND name = 't'", "TSVRaw").data().strip()
other, own = (int(session.query(count.format(view), "CSV").data()) for view in ("plain", "own"))
print(f"column {kind}; rows that are NULL: same connection {same}, another {other}, another with the setting in the view {own}")
raise SystemExit((kind, same, other, own) != ("Nullable(String)", 1, 0, 1))
PY
