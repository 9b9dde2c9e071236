"""Whether all files are there that captures by change refer to. Without one, a reader would show less, or values of another time."""
# ruff: noqa: S608  # names of files, quoted

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.tables import CHANGES, NODES, PartName, folder
from goldnode.fleet.ingest.write import columns_of, nodes_columns

if TYPE_CHECKING:
    import duckdb


def change_files(directory: Path, parts: Iterable[PartName]) -> list[Path]:
    """Return the files of changes of parts. Raise GoldnodeError for one that is gone: an earlier goldnode wrote none."""
    files = []
    for part in parts:
        file = part.file(directory, CHANGES)
        if file.exists():
            files.append(file)
        elif _has_changes(directory, part):
            raise GoldnodeError(
                "this file of the fleet's data is gone: without it, captures of its part would have the values of another time",
                file=file,
                remedy="put it back from a copy, or move the files of its part (the same name in each table) away",
            )
    return files


def _has_changes(directory: Path, part: PartName) -> bool:
    """Return whether a capture of a part has a base: of whole captures alone, a part needs no file of changes."""
    if "base" not in nodes_columns(directory, part):
        return False
    rows = columns_of(part.file(directory, NODES), "base")
    return int(rows["base"].null_count) < len(rows)


def check_bases(
    connection: duckdb.DuckDBPyConnection, directory: Path, parts: Sequence[PartName]
) -> None:
    """Raise GoldnodeError if a capture of `stored_nodes` refers to one that is in none of these parts."""
    wanted = connection.execute(
        "SELECT DISTINCT class, strftime(base, '%Y-%m-%d') FROM stored_nodes WHERE base IS NOT NULL"
    ).fetchall()
    for class_, day in sorted(wanted):
        near = [part for part in parts if (part.class_, part.day) == (class_, day)]
        files = ", ".join(
            "'" + str(part.file(directory, NODES)).replace("'", "''") + "'" for part in near
        )
        own = f"SELECT node, time FROM read_parquet([{files}], hive_partitioning=false)"
        lost = connection.execute(
            "SELECT count(*), min(c.node), arg_min(c.time, c.node), arg_min(c.base, c.node) FROM stored_nodes AS c "
            f"{f'ANTI JOIN ({own}) AS b ON b.node = c.node AND b.time = c.base' if near else ''} "
            "WHERE c.class = ? AND strftime(c.base, '%Y-%m-%d') = ?",
            [class_, day],
        ).fetchone()
        assert lost is not None  # noqa: S101 - a count has a row
        if lost[0]:
            _, node, time, base = lost
            raise GoldnodeError(
                f"a part of this directory is gone: {lost[0]} captures have the values of one in it, "
                f"the first that of {node} at {time:%Y-%m-%dT%H:%M:%SZ} those of {base:%Y-%m-%dT%H:%M:%SZ}",
                file=folder(directory, NODES, class_, day),
                remedy="put back the files of the part (the same name in each table), or move the parts of these captures away",
            )
