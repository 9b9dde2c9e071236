#!/usr/bin/env bash
# DuckDB 2.0.1: a query over files of a registered fsspec file system asks for the metadata of each file nine times, and again wherever a view is used.
#
# A count over four Parquet files makes 35 calls of info, isfile and exists and 9 of open. A view that joins another view with itself makes twice as
# many, and so on: the rows are read once, but each use is bound on its own. In object storage, each of these calls can be a request. A report of 40
# views over 18 files made 2,100 HEAD requests through s3fs 2026.9.0, and 18 GET requests for the data.
# The file system here is simulated: in memory, and it counts its calls.
# Installs DuckDB 2.0.1, fsspec 2026.9.0 and pyarrow 26.0.1 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'duckdb==2.0.1' 'fsspec==2026.9.0' 'pyarrow==26.0.1'
tools/bin/python - <<'PY'
import io
from collections import Counter

import duckdb, pyarrow as pa, pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem

calls = Counter()

class Counted(MemoryFileSystem):
    protocol, cachable = "counted", False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("counted://", "memory://"))

    def info(self, path, **more):
        calls["metadata"] += 1
        return super().info(path, **more)

    def exists(self, path, **more):
        calls["metadata"] += 1
        return super().exists(path, **more)

    def isfile(self, path):
        calls["metadata"] += 1
        return super().isfile(path)

    def _open(self, path, *words, **more):
        calls["open"] += 1
        return super()._open(path, *words, **more)

storage, data = Counted(), io.BytesIO()
pq.write_table(pa.table({"x": list(range(1000))}), data)
for number in range(4):
    storage.pipe(f"/data/{number}.parquet", data.getvalue())
connection = duckdb.connect()
connection.register_filesystem(storage)
files = [f"counted:///data/{number}.parquet" for number in range(4)]
connection.execute(f"CREATE VIEW level0 AS SELECT * FROM read_parquet({files})")
found = []
for level in range(4):
    if level:
        connection.execute(f"CREATE VIEW level{level} AS SELECT a.x FROM level{level - 1} a JOIN level{level - 1} b USING (x)")
    calls.clear()
    connection.execute(f"SELECT count(*) FROM level{level}").fetchall()
    found.append(dict(calls))
    print(f"a view of {2**level} uses of 4 files: {found[-1]}")
raise SystemExit([one["metadata"] // 35 for one in found] != [1, 2, 4, 8] or found[0]["open"] <= 4)
PY
