"""Write reports into the Parquet files of the report's data, each part whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from goldnode.core.files import sync
from goldnode.fleet.ingest.flatten import Flattener
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.ingest.rows import Group, rows_of
from goldnode.fleet.ingest.tables import NODES, ORDER, SCHEMAS, PartName, found_parts

MOST_ROWS = 2_000_000  # rows that wait in memory, of all groups together
_MOST_OPEN = 64  # groups with open files
_WORK = ".ingest"  # directory of files that have no name yet
_LOCK = ".lock"


@contextmanager
def writer(directory: Path) -> Iterator[PartWriter]:
    """Yield a writer. Its rows have their names when the block ends; an error leaves none.

    One process writes at a time; another one waits.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clean_up(directory)
        (directory / _WORK).mkdir(exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=directory / _WORK))
        try:
            found = PartWriter(directory, work)
            yield found
            found.finish()
        finally:
            shutil.rmtree(work, ignore_errors=True)


def clean_up(directory: Path) -> None:
    """Remove what a killed ingest has left: files without a name, and parts without a file of `nodes`."""
    shutil.rmtree(directory / _WORK, ignore_errors=True)
    whole = set(found_parts(directory))
    for table in ORDER:
        for part in found_parts(directory, table):
            if part not in whole:
                part.file(directory, table).unlink(missing_ok=True)


class PartWriter:
    """Adds reports, and writes the parts of one ingest."""

    def __init__(self, directory: Path, work: Path) -> None:
        self.directory = directory
        self.parts: list[PartName] = []
        self._work = work
        self._flattener = Flattener()
        self._groups: dict[tuple[str, str], _OpenPart] = {}
        self._known: dict[tuple[str, str], set[tuple[str, int]]] = {}

    def add(self, report: NodeReport) -> bool:
        """Add a report. Return False for a capture that is stored already. Raise RefusedReportError."""
        place = (report.class_, report.day)
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = stored(self.directory, *place)
        capture = (report.node, int(report.time.timestamp() * 1000))
        if capture in known:
            return False
        leaves, findings = rows_of(report, self._flattener)
        if place not in self._groups:
            if len(self._groups) >= _MOST_OPEN:
                self._close(next(iter(self._groups)))
            self._groups[place] = _OpenPart(
                self._work / f"{len(self.parts) + len(self._groups)}-{place[0]}-{place[1]}"
            )
        self._groups[place].group.add(report, leaves, findings)
        known.add(capture)
        if sum(part.group.size for part in self._groups.values()) > MOST_ROWS:
            max(self._groups.values(), key=lambda part: part.group.size).flush()
        return True

    def finish(self) -> None:
        """Write what waits, and name the files."""
        for place in list(self._groups):
            self._close(place)

    def _close(self, place: tuple[str, str]) -> None:
        open_part = self._groups.pop(place)
        part = PartName(*place, open_part.close())
        for table in ORDER:
            file = part.file(self.directory, table)
            file.parent.mkdir(parents=True, exist_ok=True)
            open_part.file(table).replace(file)
            sync(file.parent)
        self.parts.append(part)


class _OpenPart:
    """Files of one part that have no name yet."""

    def __init__(self, work: Path) -> None:
        self.group = Group()
        self._work = work
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._digest = hashlib.sha256()
        work.mkdir()

    def file(self, table: str) -> Path:
        return self._work / f"{table}.parquet"

    def flush(self) -> None:
        """Write the rows in memory as row groups."""
        for table in ORDER:
            rows = self.group.table(table)
            if table not in self._writers:
                self._writers[table] = _open(self.file(table), table)
            self._writers[table].write_table(rows.cast(SCHEMAS[table]))
        for member in self.group.members:
            self._digest.update(repr(member).encode())
        self.group = Group()

    def close(self) -> str:
        """Complete the files, and return the id of the part."""
        self.flush()
        for table, opened in self._writers.items():
            opened.close()
            sync(self.file(table))
        return self._digest.hexdigest()[:24]


def _open(file: Path, table: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        file,
        SCHEMAS[table],
        compression="zstd",
        use_dictionary=True,
        write_statistics=True,
        sorting_columns=None,
        store_schema=False,
    )


def stored(directory: Path, class_: str, day: str) -> set[tuple[str, int]]:
    """Return the captures of a class and day that are stored: node, and time in milliseconds."""
    found: set[tuple[str, int]] = set()
    for part in found_parts(directory):
        if (part.class_, part.day) == (class_, day):
            rows = pq.read_table(part.file(directory, NODES), columns=["node", "time"], partitioning=None)
            times = rows["time"].cast(pa.int64()).to_pylist()
            found.update(zip(rows["node"].to_pylist(), times, strict=True))
    return found
