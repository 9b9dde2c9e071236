#!/usr/bin/env bash
# pyarrow 26.0.1: Parquet files with compression="zstd" and no level are of level 1; those of DuckDB 2.0.1, as of zstd's own programs, are of level 3.
#
# The same table thus has another size by each writer. In a store of captures of machines, level 3 took 7 % fewer bytes. pyarrow documents that a
# default is chosen and not which one, and the file does not name it.
# Installs pyarrow 26.0.1 and DuckDB 2.0.1 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'pyarrow==26.0.1' 'duckdb==2.0.1'
tools/bin/python - <<'PY'
import os
import duckdb, pyarrow as pa, pyarrow.parquet as pq

table = pa.table({"text": [f"machine {number % 1000} counter {number * number % 97}" for number in range(100_000)]})

def arrow(**level: int) -> int:
    pq.write_table(table, "arrow.parquet", compression="zstd", use_dictionary=False, **level)
    return os.path.getsize("arrow.parquet")

def duck(level: str = "") -> int:
    duckdb.execute(f"COPY (SELECT * FROM 'plain.parquet') TO 'duck.parquet' (FORMAT parquet, COMPRESSION zstd{level})")
    return os.path.getsize("duck.parquet")

pq.write_table(table, "plain.parquet", compression="none")
arrows = [arrow(), arrow(compression_level=1), arrow(compression_level=3)]
ducks = [duck(), duck(", COMPRESSION_LEVEL 1"), duck(", COMPRESSION_LEVEL 3")]
print(f"bytes without a level, at 1, at 3: pyarrow {arrows}, DuckDB {ducks}")
raise SystemExit(not (arrows[0] == arrows[1] != arrows[2] and ducks[0] == ducks[2] != ducks[1]))
PY
