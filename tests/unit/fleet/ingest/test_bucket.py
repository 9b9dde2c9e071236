"""A copy of the data in object storage: ended at each step, read at each step, and never twice or half.

The storage is simulated in memory. tests/e2e/test_object_storage.py has a server that speaks S3.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner
from tests.unit.fleet.ingest.fleet_reports import NOW, capture, write

from goldnode.cli import main
from goldnode.core.errors import GoldnodeError
from goldnode.documents.fleet_bucket import BucketTable
from goldnode.fleet.ingest import bucket, compact, prune
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.read import connect
from goldnode.fleet.ingest.tables import NODES, PART_TABLES, PartName, found_parts

HOUR = timedelta(hours=1)
Captures = list[tuple[str, str]]


class EndedError(Exception):
    """The process ends here."""


@dataclass
class SimulatedStorage:
    """Object storage in memory. It ends the process at a write of that number."""

    address: str = "s3://simulated/fleet"
    now: datetime = NOW
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    writes: int = 0
    end_at: int | None = None
    downloads: list[str] = field(default_factory=list)

    def _write(self) -> None:
        self.writes += 1
        if self.writes == self.end_at:
            raise EndedError

    def read(self, name: str) -> bytes:
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name][0]

    def download(self, name: str, file: Path) -> None:
        file.write_bytes(self.read(name))
        self.downloads.append(name)

    def upload(self, file: Path, name: str) -> None:
        self.write(name, file.read_bytes())

    def write(self, name: str, content: bytes) -> None:
        self._write()
        self.objects[name] = (content, self.now)

    def remove(self, name: str) -> None:
        self._write()
        self.objects.pop(name, None)

    def names(self) -> dict[str, datetime]:
        return {name: time for name, (_, time) in self.objects.items()}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compact, "MANY", 4)
    monkeypatch.setattr(bucket, "AT_ONCE", 1)  # writes in one order
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))


def add(data: Path, *times: str, node: str = "n1") -> None:
    """Ingest captures in a batch of their own."""
    source = data.with_name("in-" + "".join(times).replace(":", "") + node)
    write(source, *(capture(node, f"2026-11-{time}:00:00Z") for time in times), verdicts=True)
    ingest(IngestRequest(data, (source,), NOW), NOW)


def every(table: str, parts: Sequence[PartName]) -> Sequence[PartName]:
    return parts


def seen(storage: SimulatedStorage) -> Captures:
    """Return the captures that a reader sees. Each must have its facts."""
    if bucket.listed(storage) is None:
        return []
    with bucket.fetched(storage, every) as directory:
        return content(directory)


def content(directory: Path) -> Captures:
    connection = connect(directory)
    rows = connection.execute(
        "SELECT node, strftime(time, '%d %H') FROM nodes ORDER BY ALL"
    ).fetchall()
    whole = connection.execute(
        "SELECT DISTINCT node, strftime(time, '%d %H') FROM facts ORDER BY ALL"
    ).fetchall()
    assert rows == whole
    return rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    add(data, "24T01")
    add(data, "25T01")
    add(data, "25T02", node="n2")
    return data


def merge(data: Path) -> None:
    """Add captures of a day until its parts are merged."""
    for hour in (3, 4):
        add(data, f"25T{hour:02}")
    assert len([part for part in found_parts(data) if part.day == "2026-11-25"]) == 1


def test_copy_that_ends_at_any_write_shows_the_old_data_or_the_new(
    data: Path, tmp_path: Path
) -> None:
    first = SimulatedStorage()
    bucket.copy(data, first, NOW)
    old = seen(first)
    assert old == content(data)
    merge(data)
    new = content(data)
    whole = SimulatedStorage(objects=dict(first.objects))
    bucket.copy(data, whole, NOW)
    assert seen(whole) == new != old
    assert whole.writes == 7  # six files of the merged part, and the list
    for end in range(1, whole.writes + 1):
        storage = SimulatedStorage(objects=dict(first.objects), end_at=end)
        with pytest.raises(EndedError):
            bucket.copy(data, storage, NOW)
        assert seen(storage) == old
        storage.end_at = None
        bucket.copy(data, storage, NOW)
        assert seen(storage) == new


def test_second_copy_writes_nothing(data: Path) -> None:
    storage = SimulatedStorage()
    assert len(bucket.copy(data, storage, NOW).new) == 3
    before = storage.writes
    assert bucket.copy(data, storage, NOW + HOUR).new == []
    assert storage.writes == before


def test_plan_writes_nothing_and_names_what_a_copy_does(data: Path) -> None:
    storage = SimulatedStorage()
    planned = bucket.plan(data, storage, NOW)
    assert (len(planned.new), storage.objects) == (3, {})
    assert planned.bytes == sum(len(one) for one, _ in _copied(data).objects.values()) - len(
        _copied(data).objects[bucket.PARTS][0]
    )


def _copied(data: Path) -> SimulatedStorage:
    storage = SimulatedStorage()
    bucket.copy(data, storage, NOW)
    return storage


def test_replaced_objects_stay_two_days_and_objects_of_others_for_ever(data: Path) -> None:
    storage = _copied(data)
    storage.objects["facts/notes.txt"] = (b"of a person", NOW - timedelta(days=99))
    rest = "facts/class=h100/day=2026-11-01/part-" + "0" * 24 + ".parquet"
    storage.objects[rest] = (b"of an ended copy", NOW - timedelta(days=99))
    early = set(storage.objects) - {rest}
    merge(data)
    storage.now = NOW + HOUR
    bucket.copy(data, storage, NOW + HOUR)
    assert early <= set(storage.objects)
    assert rest not in storage.objects
    bucket.copy(data, storage, NOW + timedelta(days=2))
    assert early <= set(storage.objects)
    bucket.copy(data, storage, NOW + timedelta(days=2, hours=2))
    gone = early - set(storage.objects)
    assert len(gone) == 12
    assert all("day=2026-11-25" in name for name in gone)
    assert seen(storage) == content(data)


def test_day_that_was_pruned_here_stays_whole_in_the_bucket(data: Path) -> None:
    add(data, "10T01", "11T01")
    add(data, "12T01")  # from its base of the 11th
    storage = _copied(data)
    before = content(data)
    for keep in (15, 14, 1):
        prune.prune(data, prune.candidates(data, keep, NOW))
        done = bucket.copy(data, storage, NOW)
        assert (done.new, done.gone) == ([], [])
        assert seen(storage) == before != content(data)


def test_day_that_was_pruned_here_and_merged_with_later_captures_is_refused(data: Path) -> None:
    add(data, "11T01", "11T02")
    add(data, "12T01")
    storage = _copied(data)
    prune.prune(data, prune.candidates(data, 14, NOW))  # leaves the base of the 12th
    assert bucket.copy(data, storage, NOW).pruned
    for hour in (4, 5, 6):
        add(data, f"11T{hour:02}", node=f"m{hour}")
    before = dict(storage.objects)
    with pytest.raises(GoldnodeError, match="would see the first ones twice"):
        bucket.copy(data, storage, NOW)
    assert storage.objects == before


def test_old_days_go_with_keep_but_for_seven_that_others_can_refer_to(data: Path) -> None:
    add(data, "01T01", node="old")
    storage = _copied(data)
    assert bucket.copy(data, storage, NOW, keep=18).gone == []
    assert [part.day for part in bucket.copy(data, storage, NOW, keep=17).gone] == ["2026-11-01"]
    assert ("old", "01 01") not in seen(storage)
    # The directory has it still, and it is not copied again.
    assert bucket.copy(data, storage, NOW, keep=17).new == []


def test_reader_downloads_each_file_once_and_only_those_of_its_tables(data: Path) -> None:
    storage = _copied(data)

    def nodes_of_a_day(table: str, parts: Sequence[PartName]) -> Sequence[PartName]:
        return [part for part in parts if table == NODES or part.day == "2026-11-25"]

    with bucket.fetched(storage, nodes_of_a_day) as directory:
        days = {file.parent.name for file in directory.glob("facts/*/*/*.parquet")}
        assert days == {"day=2026-11-25"}
        assert len(found_parts(directory)) == 3
    assert {name.partition("/")[0] for name in storage.downloads if "day=2026-11-24" in name} == {
        NODES
    }
    assert not directory.exists()
    storage.downloads.clear()
    with bucket.fetched(storage, nodes_of_a_day):
        assert storage.downloads == []


def test_reader_takes_the_new_list_if_its_own_was_replaced_meanwhile(data: Path) -> None:
    storage = _copied(data)
    merge(data)

    class Slow(SimulatedStorage):
        def download(self, name: str, file: Path) -> None:
            if not self.downloads:
                later = NOW + timedelta(days=3)
                for now in (NOW, later):
                    bucket.copy(data, storage, now)
            super().download(name, file)

    slow = Slow(objects=storage.objects)
    assert seen(slow) == content(data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2026-11-24", "../../etc"),
        ('"class":"', '"class":"../'),
        ("bucket/1", "bucket/2"),
        ("}", ""),
    ],
)
def test_damaged_list_is_refused(data: Path, old: str, new: str) -> None:
    storage = _copied(data)
    storage.objects[bucket.PARTS] = (
        storage.read(bucket.PARTS).replace(old.encode(), new.encode()),
        NOW,
    )
    with pytest.raises(GoldnodeError, match="damaged, or of a later goldnode"):
        seen(storage)


def test_damaged_object_and_missing_object_are_named(data: Path) -> None:
    storage = _copied(data)
    name = next(one for one in storage.objects if one.startswith("facts/"))
    whole = storage.objects[name]
    storage.objects[name] = (whole[0][:-1] + b"x", NOW)
    with pytest.raises(GoldnodeError, match="is not what the list of parts names"):
        seen(storage)
    del storage.objects[name]
    with pytest.raises(GoldnodeError, match=f"is gone: {name}"):
        seen(storage)
    storage.objects[name] = whole
    assert seen(storage) == content(data)


def test_list_has_the_tables_of_a_part() -> None:
    assert set(get_args(BucketTable)) == {name for names in PART_TABLES.values() for name in names}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("gs://bucket/fleet", "is no address of a bucket"),
        ("s3:///fleet", "is no address of a bucket"),
        ("s3://bucket/fleet?acces_key=x", "is no address of a bucket"),
        ("s3://user:secret@bucket/fleet", "has a key in it"),
        ("https://user:secret@host/bucket", "is no address of a bucket"),
    ],
)
def test_wrong_address_is_refused_without_its_secret(address: str, message: str) -> None:
    with pytest.raises(GoldnodeError, match=message) as refused:
        bucket.S3Storage.of(address)
    assert "secret" not in str(refused.value)


def test_commands_read_a_bucket_or_refuse_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SimulatedStorage()
    monkeypatch.setattr(bucket.S3Storage, "of", lambda address: storage)

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, ["fleet", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    copied = json.loads(
        run("copy", "s3://simulated/fleet", "--data", str(data), "--format", "json")
    )
    assert len(copied["copied"]) == 3
    time = ("--at", "2026-11-26T08:00Z")
    for words in (
        ("report", "--format", "json"),
        ("sql", "SELECT count(*) FROM captures", "--format", "json"),
    ):
        there = run(*words, *time, "--data", "s3://simulated/fleet")
        assert there == run(*words, *time, "--data", str(data))
    script = run("sql", "--script", "clickhouse", *time, "--data", "s3://simulated/fleet")
    assert "FROM s3(goldnode, filename = 'facts/class=*/day=*/part-*.parquet'" in script
    assert "file('" not in script
    refused = CliRunner().invoke(main, ["fleet", "ingest", "--data", "s3://simulated/fleet"])
    assert (refused.exit_code, "is no directory" in refused.output) == (2, True)
