"""Tables of the report's data, and the names of their files.

One file holds the rows of one ingest for one class and one day (UTC) of the captures:

    DIRECTORY/TABLE/class=CLASS/day=YYYY-MM-DD/part-ID.parquet

`class` and `day` are columns by the names of the directories, as DuckDB and ClickHouse read them.
The six files of one part have the same ID. The file of `nodes` gets its name last: a part without
it is the rest of an ingest that was killed, and no reader here opens it. All times are UTC.

Rows that did not change are not stored again. A capture without `base` is stored whole in `facts`,
`numbers` and `digests`. One with a base has what the base has, but for the keys that it has rows of
in `changes`, and for its own digests. A base is in a part of its own class, less than BASE_DAYS
before or after. Parts of an earlier goldnode have no file of `changes`, and whole captures alone.

The table `canary` is written by itself: its one file is whole or not there.

A compacted part replaces several small ones. Its list of them, part-ID.replaces, is written before
its file of `nodes`, so that this file makes it visible and hides the others in one step.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.class_names import is_class

LOGGER = logging.getLogger("goldnode.fleet")

NODES, FINDINGS, FACTS, NUMBERS, DIGESTS = "nodes", "findings", "facts", "numbers", "digests"
CHANGES = "changes"
BASE_DAYS = 7  # a capture refers to a base of less than this many days before or after it
CANARY = "canary"
_MOMENT = pa.timestamp("ms")
_TEXTS = pa.list_(pa.field("element", pa.string()))

SCHEMAS: dict[str, pa.Schema] = {
    # One row for each capture.
    NODES: pa.schema(
        [
            ("node", pa.string()),
            ("time", _MOMENT),  # of the capture, by the clock of the node
            ("cohort", pa.string()),
            ("received", _MOMENT),  # of the ingest, by the clock of the controller
            ("boot_id", pa.string()),
            ("uptime", pa.float64()),  # seconds
            ("simulated", pa.bool_()),
            ("status", pa.string()),  # of the verdict; null: there was no verdict
            ("class_digest", pa.string()),
            ("lock_digest", pa.string()),
            ("engine", pa.string()),  # digest of the program on the node
            ("source", pa.string()),  # directory, ansible, http
            ("base", _MOMENT),  # time of the node's capture whose rows this one has; null: its own
            ("precision", pa.string()),  # stated: numbers are rounded; null: they are exact
            ("blocks", pa.binary()),  # digests of the blocks of a whole capture, for the ingest
        ]
    ),
    # One row for each finding of the verdict.
    FINDINGS: pa.schema(
        [
            ("node", pa.string()),
            ("time", _MOMENT),
            ("id", pa.string()),
            ("outcome", pa.string()),
            ("severity", pa.string()),
            ("domain", pa.string()),
            ("subject", pa.string()),
            ("expected", pa.string()),
            ("got", pa.string()),
        ]
    ),
    # One row for each text, flag and constant number of a capture. `fault` is set where the node has no value.
    FACTS: pa.schema(
        [
            ("node", pa.string()),
            ("time", _MOMENT),
            ("item", pa.string()),  # identity of the part; "" for the node itself
            ("key", pa.string()),
            ("value", pa.string()),
            ("fault", pa.string()),  # not_exposed or unread, then `value` is its text
            ("place", pa.int16()),  # of the row among those of the capture with this key
        ]
    ),
    # One row for each counter and gauge.
    NUMBERS: pa.schema(
        [
            ("node", pa.string()),
            ("time", _MOMENT),
            ("item", pa.string()),
            ("key", pa.string()),
            ("value", pa.float64()),
            ("place", pa.int16()),
        ]
    ),
    # One row for each key of facts or of numbers whose rows differ from those of the base: these replace them.
    CHANGES: pa.schema(
        [
            ("node", pa.string()),
            ("time", _MOMENT),
            ("base", _MOMENT),
            ("key", pa.string()),
            ("items", _TEXTS),  # empty: those of the base, by their places
            ("values", pa.list_(pa.field("element", pa.float64()))),  # of numbers, else empty
            ("texts", _TEXTS),  # values of facts, else empty
            ("faults", _TEXTS),
        ]
    ),
    # One row for each section of a capture: a digest of its facts. Equal digests need no comparison of facts.
    DIGESTS: pa.schema(
        [
            ("node", pa.string()),
            ("time", _MOMENT),
            ("section", pa.string()),
            ("digest", pa.string()),
        ]
    ),
    # One row for each quantile of a metric in a canary result, and one without metric for each other job.
    CANARY: pa.schema(
        [
            ("node", pa.string()),
            ("time", _MOMENT),  # begin of the result, by the clock of the node
            ("received", _MOMENT),
            ("result", pa.string()),  # digest of the document
            ("simulated", pa.bool_()),
            ("class_digest", pa.string()),
            ("platform", pa.string()),
            ("runner", pa.string()),
            ("image", pa.string()),
            ("boot_id", pa.string()),
            ("how", pa.string()),
            ("job", pa.string()),
            ("state", pa.string()),  # of the job
            ("why", pa.string()),
            ("verified", pa.bool_()),
            ("metric", pa.string()),  # gemm_fp16, or gemm_fp16/cold for the first call of a process
            ("device", pa.string()),  # PCI address; "" for the node as a whole
            ("unit", pa.string()),
            ("better", pa.string()),  # higher or lower
            # p50; p95 and p99 on the bad side, where the runs bound them.
            ("quantile", pa.string()),
            ("runs", pa.int32()),
            ("value", pa.float64()),
            # 99 % bound of the quantile in favour of the device; null: too few runs.
            ("bound", pa.float64()),
            ("sm_mhz", pa.float64()),  # highest SM clock of the runs
            # Highest SM clock of the device over all metrics of the result.
            ("device_sm_mhz", pa.float64()),
            ("uncounted", pa.string()),  # why the metric does not count; null: it counts
        ]
    ),
}
# In the order in which a part gets its names: the file of `nodes` completes it.
ORDER = (FINDINGS, FACTS, NUMBERS, DIGESTS, CHANGES, NODES)
VIEWS = (FINDINGS, FACTS, NUMBERS, DIGESTS, NODES)  # what readers see: every capture whole
# Table whose file completes a part -> tables of the part, in the order of their names.
PART_TABLES = {NODES: ORDER, CANARY: (CANARY,)}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_ID = re.compile(r"[0-9a-f]{24}")
_PART = re.compile(r"part-([0-9a-f]{24})")
KEYS = {NODES: ("node", "time"), CANARY: ("result",)}  # columns that name a capture, or a result


class PartName(NamedTuple):
    """Name of a part: class, day of its captures, and the digest of its content."""

    class_: str
    day: str
    id: str

    def file(self, directory: Path, table: str) -> Path:
        """Return the file of one table."""
        return folder(directory, table, self.class_, self.day) / f"part-{self.id}.parquet"

    def replaces(self, directory: Path, table: str) -> Path:
        """Return the file with the list of parts that this one replaces; only compacted parts have one."""
        return folder(directory, table, self.class_, self.day) / f"part-{self.id}.replaces"


def by_change(file: Path) -> bool:
    """Return whether a file of any table is of a part with changes: an earlier goldnode wrote none."""
    directory, place = file.parents[3], file.relative_to(file.parents[2])
    return (directory / CHANGES / place).exists()


def days_around(day: str) -> tuple[str, str]:
    """Return the first and the last day on which a base of a capture of this day can be."""
    moment = date.fromisoformat(day)
    span = timedelta(days=BASE_DAYS)
    return (moment - span).isoformat(), (moment + span).isoformat()


def days_between(first: str, last: str) -> list[str]:
    """Return the days from the first to the last one."""
    begin, end = date.fromisoformat(first), date.fromisoformat(last)
    return [(begin + timedelta(days=one)).isoformat() for one in range((end - begin).days + 1)]


def folder(directory: Path, table: str, class_: str, day: str) -> Path:
    """Return the directory of one table for one class and day."""
    return directory / table / f"class={class_}" / f"day={day}"


def listed_parts(directory: Path, table: str = NODES) -> list[PartName]:
    """Return the parts that have a file in a table, sorted. Other files and directories are ignored."""
    return _named(directory, table, "parquet")


def replacements(directory: Path, table: str = NODES) -> dict[PartName, list[PartName]]:
    """Return the parts that have a list of parts that they replace, whether they are complete or not.

    A list that is damaged is found again by the rows of the parts. Raise GoldnodeError if that
    cannot be done.
    """
    replaced = {}
    for part in _named(directory, table, "replaces"):
        file = part.replaces(directory, table)
        try:
            ids = _ids(file.read_bytes())
        except FileNotFoundError:  # a compaction has just ended
            continue
        except OSError as problem:
            raise GoldnodeError(
                f"this list of replaced parts cannot be read: {problem.strerror}",
                file=file,
                remedy="make it readable for this user",
            ) from None
        if ids is None:
            replaced[part] = _same_rows(directory, table, part)
            LOGGER.warning(
                "%s is damaged: found %d replaced parts by their rows", file, len(replaced[part])
            )
        else:
            replaced[part] = [PartName(part.class_, part.day, one) for one in ids]
    return replaced


def _ids(data: bytes) -> list[str] | None:
    """Return the ids of a list of parts; None for a damaged one. An id is part of a path."""
    try:
        ids = json.loads(data)
    except ValueError:
        return None
    right = isinstance(ids, list) and all(
        isinstance(one, str) and _ID.fullmatch(one) for one in ids
    )
    return ids if right and ids else None


def _same_rows(directory: Path, table: str, part: PartName) -> list[PartName]:
    """Return the parts whose rows a compacted one has: no other two parts of a day have a capture in common."""
    others = listed_parts(directory, table)
    if part not in others:  # it is not complete, so it replaces nothing yet
        return []
    own = _keys(directory, table, part)
    same = (
        one for one in others if one != part and (one.class_, one.day) == (part.class_, part.day)
    )
    return [one for one in same if _keys(directory, table, one) <= own]


def _keys(directory: Path, table: str, part: PartName) -> set[tuple[Any, ...]]:
    file = part.file(directory, table)
    try:
        rows = pq.read_table(file, columns=list(KEYS[table]), partitioning=None)
    except (OSError, pa.ArrowException) as problem:
        raise GoldnodeError(
            f"a list of replaced parts is damaged, and this file cannot be read to find it again: {problem}",
            file=file,
            remedy="put it back from a copy, or move the files of its part (the same name in each table) away",
        ) from None
    return set(zip(*(rows[name].to_pylist() for name in KEYS[table]), strict=True))


def found_parts(directory: Path, table: str = NODES) -> list[PartName]:
    """Return the parts that readers open, sorted: those that another part of the table replaces are left out."""
    # In this order: the list of a compacted part is there before the part is.
    listed = listed_parts(directory, table)
    lists = replacements(directory, table)
    gone = {one for part, replaced in lists.items() if part in listed for one in replaced}
    return [part for part in listed if part not in gone]


def _named(directory: Path, table: str, suffix: str) -> list[PartName]:
    names = []
    for file in (directory / table).glob(f"class=*/day=*/part-*.{suffix}"):
        class_, day = file.parts[-3].removeprefix("class="), file.parts[-2].removeprefix("day=")
        match = _PART.fullmatch(file.stem)
        if match and _DAY.fullmatch(day) and is_class(class_):
            names.append(PartName(class_, day, match[1]))
    return sorted(names)
