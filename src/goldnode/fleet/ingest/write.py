"""Write reports into the Parquet files of the report's data, each part whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import sync
from goldnode.fleet.ingest import compact, results
from goldnode.fleet.ingest.blocks import GroupRows
from goldnode.fleet.ingest.compact import formatted
from goldnode.fleet.ingest.forms import FormedCapture
from goldnode.fleet.ingest.precision import EXACT
from goldnode.fleet.ingest.quick import QuickChanges
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.ingest.results import CanaryResult
from goldnode.fleet.ingest.rows import Bases, Group, HeldBase
from goldnode.fleet.ingest.tables import (
    CANARY,
    NODES,
    ORDER,
    SCHEMAS,
    PartName,
    days_around,
    days_between,
    found_parts,
    listed_parts,
)

# Rows that wait in memory, of all groups together. Four times as many take half as much memory again and more CPU, and
# the files have as many bytes.
MOST_ROWS = 500_000
_BATCH = 256  # bases that are read at once
_MOST_OPEN = 64  # groups with open files
_MOST_RESULT_ROWS = 100_000  # rows of canary results of one group that wait in memory
_WORK = ".ingest"  # directory of files that have no name yet
LOCK = ".lock"


@contextmanager
def writer(
    directory: Path, received: datetime | None, precision: str = EXACT
) -> Iterator[PartWriter]:
    """Yield a writer. Its rows have their names when the block ends; an error leaves none.

    One process writes at a time; another one waits. `received` is the time of this ingest. None:
    that of the latest capture of each part, so that a report on the past has them.
    """
    leave_out_pandas()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clean_up(directory)
        with work_folder(directory) as work:
            parts = PartWriter(directory, work, received, precision)
            yield parts
            parts.finish()
            parts.compact()


def leave_out_pandas() -> None:
    """Make pyarrow work without pandas: where that is installed, its first array of a list or of numpy imports it.

    It takes 0.3 s of CPU and more, and no ingest has a value of it. Later conversions to pandas work all the same.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])  # pyarrow tries once
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    """Finds no pandas."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextmanager
def work_folder(directory: Path) -> Iterator[Path]:
    """Yield an empty directory for files without a name. The caller holds the lock of writers."""
    (directory / _WORK).mkdir(exist_ok=True)
    try:
        yield Path(tempfile.mkdtemp(dir=directory / _WORK))
    finally:
        shutil.rmtree(directory / _WORK, ignore_errors=True)


def clean_up(directory: Path) -> None:
    """Remove what a killed ingest has left: files without a name, parts without a file of `nodes`, replaced parts."""
    shutil.rmtree(directory / _WORK, ignore_errors=True)
    whole = set(listed_parts(directory))
    for table in ORDER:
        for part in listed_parts(directory, table):
            if part not in whole:
                part.file(directory, table).unlink(missing_ok=True)
    compact.finish(directory)


class PartWriter:
    """Adds reports, and writes the parts of one ingest."""

    def __init__(
        self, directory: Path, work: Path, received: datetime | None, precision: str = EXACT
    ) -> None:
        self.directory = directory
        self.exact = precision == EXACT
        self._bases: dict[str, Bases] = {}  # of classes
        self._loaded: set[tuple[str, str]] = set()  # classes and days whose bases are among them
        self._received = None if received is None else int(received.timestamp() * 1000)
        self.parts: list[PartName] = []
        self._work = work
        self._opened = self._size = 0
        self._groups: dict[tuple[str, str], OpenPart] = {}
        self._known: dict[tuple[str, str], set[tuple[str, int]]] = {}
        self._results: dict[tuple[str, str], _OpenResults] = {}
        self._known_results: dict[tuple[str, str], set[str]] = {}

    def add(self, report: NodeReport, whole: bool = False) -> bool:
        """Add a report. Return False for a capture that is stored already. Raise RefusedReportError.

        :param whole: store it whole: a node sends changes from it.
        """
        if self._is_known(report):
            return False
        group = self._open((report.class_, report.day)).group
        before = group.size
        group.add(report, whole)
        self._added(report, group.size - before)
        return True

    def add_quick(self, changes: QuickChanges) -> bool | None:
        """Add a report whose changed rows are known. Return None for one that must be added as a whole, else as `add`."""
        report = changes.report
        if self._is_known(report):
            return False
        group = self._open((report.class_, report.day)).group
        before = group.size
        if not group.add_quick(changes):
            return None
        self._added(report, group.size - before)
        return True

    def add_formed(
        self, report: NodeReport, formed: FormedCapture, whole: bool = False
    ) -> bool | None:
        """Add a report whose capture has a known form. Return None for one that must be added as a whole, else as `add`."""
        if self._is_known(report):
            return False
        group = self._open((report.class_, report.day)).group
        before = group.size
        if not group.add_formed(report, formed, whole):
            return None
        self._added(report, group.size - before)
        return True

    def last_rows(self, report: NodeReport) -> GroupRows | None:
        """Return the rows of the capture that was last added to the group of a report; None if these are written."""
        opened = self._groups.get((report.class_, report.day))
        return None if opened is None else opened.group.last

    def base(self, report: NodeReport) -> HeldBase | None:
        """Return a report that is stored whole in a file with a name; None for another one."""
        if (report.class_, report.day) not in self._loaded:
            self._stored_bases(report.class_, report.day)
        base = self._bases[report.class_].fitting(report.node, report.milliseconds)
        return base if base is not None and base.time == report.milliseconds else None

    def _is_known(self, report: NodeReport) -> bool:
        place = (report.class_, report.day)
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = stored(self.directory, *place)
        return (report.node, report.milliseconds) in known

    def _added(self, report: NodeReport, rows: int) -> None:
        """Note a capture that was added, and write rows if too many wait."""
        self._known[report.class_, report.day].add((report.node, report.milliseconds))
        self._size += rows
        if self._size > MOST_ROWS:
            largest = max(self._groups.values(), key=lambda part: part.group.size)
            self._size -= largest.group.size
            largest.flush()

    def add_result(self, result: CanaryResult) -> bool:
        """Add a canary result. Return False for one that is stored already. Raise RefusedReportError."""
        place = (result.class_, result.day)
        known = self._known_results.get(place)
        if known is None:
            known = self._known_results[place] = stored_results(self.directory, *place)
        if result.id in known:
            return False
        rows = list(results.rows(result))
        if place not in self._results:
            if len(self._results) >= _MOST_OPEN:
                self._close_results(next(iter(self._results)))
            self._opened += 1
            self._results[place] = _OpenResults(
                self._work / f"{self._opened}.parquet", self._received
            )
        self._results[place].add(result.id, rows)
        known.add(result.id)
        return True

    def finish(self) -> None:
        """Write what waits, and name the files."""
        for place in list(self._groups):
            self._close(place)
        for place in list(self._results):
            self._close_results(place)

    def compact(self) -> None:
        """Merge the small parts of the days of this ingest where there are many."""
        merged = compact.compact(
            self.directory, {(part.class_, part.day) for part in self.parts}, self._work
        )
        for new, old in merged.items():
            self.parts[:] = [part for part in self.parts if part not in old]
            self.parts.append(new)

    def _close_results(self, place: tuple[str, str]) -> None:
        group = self._results.pop(place)
        part = PartName(*place, group.close())
        file = part.file(self.directory, CANARY)
        file.parent.mkdir(parents=True, exist_ok=True)
        group.file.replace(file)
        sync(file.parent)
        self.parts.append(part)

    def _open(self, place: tuple[str, str]) -> OpenPart:
        if place not in self._groups:
            if len(self._groups) >= _MOST_OPEN:
                self._close(next(iter(self._groups)))
            self._opened += 1
            bases = self._stored_bases(*place).opened()
            self._groups[place] = OpenPart(self._work / str(self._opened), bases, self.exact)
        return self._groups[place]

    def _stored_bases(self, class_: str, day: str) -> Bases:
        """Return the stored bases that captures of a class and day can have."""
        bases = self._bases.setdefault(class_, Bases())
        first, last = days_around(day)
        for part in found_parts(self.directory):
            near = part.class_ == class_ and first <= part.day <= last
            if near and (class_, part.day) not in self._loaded:
                _load_bases(bases, self.directory, part)
        self._loaded.update((class_, one) for one in days_between(first, last))
        return bases

    def _close(self, place: tuple[str, str]) -> None:
        group = self._groups.pop(place)
        self._size -= group.group.size
        if not group.used:
            return
        part = PartName(*place, group.close(self._received))
        for table in ORDER:
            file = part.file(self.directory, table)
            file.parent.mkdir(parents=True, exist_ok=True)
            group.file(table).replace(file)
            sync(file.parent)
        self.parts.append(part)
        self._bases[place[0]].named(group.bases)


class OpenPart:
    """Files of one part that have no name yet."""

    def __init__(self, work: Path, bases: Bases, exact: bool) -> None:
        self.bases = bases
        self._exact = exact
        self.group = Group(bases, exact)
        self._work = work
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._nodes: list[dict[str, Any]] = []
        self._digest = hashlib.sha256()

    @property
    def used(self) -> bool:
        """Return whether the part has a capture."""
        return bool(self._nodes or self.group.members)

    def file(self, table: str) -> Path:
        """Return the file of a table."""
        return self._work / f"{table}.parquet"

    def flush(self) -> None:
        """Write the rows in memory as row groups."""
        self._work.mkdir(exist_ok=True)
        for table in ORDER[:-1]:
            rows = self.group.table(table)
            if table not in self._writers:
                self._writers[table] = pq.ParquetWriter(
                    self.file(table), rows.schema, **formatted(table)
                )
            self._writers[table].write_table(rows, row_group_size=MOST_ROWS * 2)
        for member in self.group.members:
            self._digest.update(repr(member).encode())
        self._nodes += self.group.nodes()
        self.group = Group(self.bases, self._exact)

    def close(self, received: int | None) -> str:
        """Complete the files, and return the id of the part."""
        if self.group.members:
            self.flush()
        at = max(row["time"] for row in self._nodes) if received is None else received
        rows = pa.Table.from_pylist([row | {"received": at} for row in self._nodes], SCHEMAS[NODES])
        pq.write_table(rows, self.file(NODES), **formatted(NODES))
        sync(self.file(NODES))
        for table, opened in self._writers.items():
            opened.close()
            sync(self.file(table))
        return self._digest.hexdigest()[:24]


class _OpenResults:
    """File of canary results that has no name yet."""

    def __init__(self, file: Path, received: int | None) -> None:
        self.file = file
        self._received = received
        self._rows: list[dict[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None
        self._digest = hashlib.sha256()

    def add(self, result: str, rows: list[dict[str, Any]]) -> None:
        """Add the rows of a result. Without a time of this ingest, it arrived when it was measured."""
        arrived = self._received
        self._rows += [
            row | {"received": row["time"] if arrived is None else arrived} for row in rows
        ]
        self._digest.update(result.encode())
        if len(self._rows) > _MOST_RESULT_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.file, SCHEMAS[CANARY], **formatted(CANARY))
        self._writer.write_table(pa.Table.from_pylist(self._rows, SCHEMAS[CANARY]))
        self._rows = []

    def close(self) -> str:
        """Complete the file, and return the id of the part."""
        self._flush()
        assert self._writer is not None  # noqa: S101 - for mypy
        self._writer.close()
        sync(self.file)
        return self._digest.hexdigest()[:24]


def stored_results(directory: Path, class_: str, day: str) -> set[str]:
    """Return the canary results of a class and day that are stored."""
    digests: set[str] = set()
    for part in found_parts(directory, CANARY):
        if (part.class_, part.day) == (class_, day):
            rows = columns_of(part.file(directory, CANARY), "result")
            digests.update(rows["result"].unique().to_pylist())
    return digests


def stored(directory: Path, class_: str, day: str) -> set[tuple[str, int]]:
    """Return the captures of a class and day that are stored: node, and time in milliseconds."""
    moments: set[tuple[str, int]] = set()
    for part in found_parts(directory):
        if (part.class_, part.day) == (class_, day):
            rows = columns_of(part.file(directory, NODES), "node", "time")
            times = rows["time"].cast(pa.int64()).to_pylist()
            moments.update(zip(rows["node"].to_pylist(), times, strict=True))
    return moments


def _load_bases(bases: Bases, directory: Path, part: PartName) -> None:
    """Add the bases of a part. An earlier goldnode recorded no bases."""
    if "blocks" not in nodes_columns(directory, part):
        return
    file = part.file(directory, NODES)
    try:
        # In batches: the whole column would be in memory three times, and it has 7 to 12 KB a node.
        for batch in pq.ParquetFile(file).iter_batches(_BATCH, columns=["node", "time", "blocks"]):
            times = batch.column("time").cast(pa.int64()).to_pylist()
            nodes, blocks = (batch.column(name).to_pylist() for name in ("node", "blocks"))
            for node, time, data in zip(nodes, times, blocks, strict=True):
                if data is not None:  # a whole capture
                    bases.load(node, HeldBase(time, data))
    except pa.ArrowException as problem:
        raise _damaged(file, problem) from None


def nodes_columns(directory: Path, part: PartName) -> list[str]:
    """Return the columns of the file of nodes of a part. Raise GoldnodeError for a damaged one."""
    file = part.file(directory, NODES)
    try:
        return list(pq.read_schema(file).names)
    except pa.ArrowException as problem:
        raise _damaged(file, problem) from None


def columns_of(file: Path, *names: str) -> pa.Table:
    """Return columns of a stored file. Raise GoldnodeError for a damaged one."""
    try:
        return pq.read_table(file, columns=list(names), partitioning=None)
    except pa.ArrowException as problem:
        raise _damaged(file, problem) from None


def _damaged(file: Path, problem: Exception) -> GoldnodeError:
    return GoldnodeError(
        f"this file of the fleet's data is damaged: {problem}",
        file=file,
        remedy="put it back from a copy, or move the files of its part (the same name in each table) away",
    )
