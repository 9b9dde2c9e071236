"""The fleet's data in object storage: a copy of the parts of a directory, and the files of it that a reader needs.

The objects have the names of the files in the directory. `parts.json` lists the parts that readers
see. It is written last, by one PUT, so a reader sees all of a copy or nothing of it. No reader lists
the bucket. An object that is not in the list is the rest of a copy that was ended.

A reader needs most bytes of the files of the days that it reads, and again those of the last report.
So it downloads each file once, into goldnode's cache, and DuckDB reads local files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from pydantic import ValidationError

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import cache_directory, sha256_of
from goldnode.documents.fleet_bucket import (
    BucketFile,
    BucketPart,
    FleetBucketDocument,
    ReplacedPart,
)
from goldnode.fleet.ingest.compact import lock_for_reading
from goldnode.fleet.ingest.tables import BASE_DAYS, CANARY, KEYS, PART_TABLES, PartName, found_parts

PARTS = "parts.json"
# Readers with an earlier list, as the views of ClickHouse, have this long to read a new one.
GRACE = timedelta(days=2)
AT_ONCE = 8  # transfers
_UNUSED = 7 * 86_400  # seconds after which a cached file goes
_TRIES = 3  # of a reader, whose list another copy may have replaced
_OPTIONS = frozenset({"endpoint", "region"})


# Table, and its parts -> those whose files are needed.
ChosenParts = Callable[[str, Sequence[PartName]], Sequence[PartName]]
_Wanted = tuple[PartName, str, BucketFile]


class ObjectStorage(Protocol):
    """A bucket, or a prefix in one. An object is replaced whole or not at all."""

    @property
    def address(self) -> str:
        """Return the address, for errors."""

    def read(self, name: str) -> bytes:
        """Return the content of an object. Raise FileNotFoundError."""

    def download(self, name: str, file: Path) -> None:
        """Write an object to a file. Raise FileNotFoundError."""

    def upload(self, file: Path, name: str) -> None:
        """Write a file to an object."""

    def write(self, name: str, content: bytes) -> None:
        """Replace an object."""

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""

    def names(self) -> dict[str, datetime]:
        """Return the objects with their times."""


def is_address(text: str) -> bool:
    """Return whether a text is the address of a bucket, and not a directory."""
    return "://" in text


@dataclass(frozen=True)
class S3Storage:
    """A prefix in a bucket of S3, or of a server that speaks its protocol."""

    address: str
    root: str
    files: pyarrow.fs.FileSystem

    @classmethod
    def of(cls, address: str) -> S3Storage:
        """Return the storage at s3://BUCKET/PREFIX?endpoint=URL&region=REGION. Raise GoldnodeError for another form.

        Keys come from where the AWS SDK looks for them: environment, ~/.aws, or the role of the machine.
        """
        parts = urlsplit(address)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.scheme != "s3" or not parts.hostname or parts.fragment or set(given) - _OPTIONS:
            raise GoldnodeError(
                f'"{parts._replace(netloc=parts.hostname or "").geturl()}" is no address of a bucket',
                remedy="give it as s3://BUCKET/PREFIX, or s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=REGION",
            )
        if "@" in parts.netloc:
            raise GoldnodeError(
                "the address of a bucket has a key in it, which every user of this machine can read",
                remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use ~/.aws/credentials",
            )
        endpoint = given.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or ""
        scheme, _, host = endpoint.rpartition("://")
        options: dict[str, Any] = {"connect_timeout": 10, "request_timeout": 60}
        # Small files by one request in place of three.
        options["allow_delayed_open"] = True
        if host:
            options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
        if given.get("region"):
            options["region"] = given["region"]
        root = f"{parts.netloc}/{parts.path.strip('/')}".rstrip("/")
        with _refused(address):
            return cls(
                address.partition("?")[0].rstrip("/"), root, pyarrow.fs.S3FileSystem(**options)
            )

    def read(self, name: str) -> bytes:
        """Return the content of an object. Raise FileNotFoundError."""
        with (
            _refused(f"{self.address}/{name}"),
            self.files.open_input_stream(f"{self.root}/{name}") as opened,
        ):
            content: bytes = opened.read()
            return content

    def download(self, name: str, file: Path) -> None:
        """Write an object to a file. Raise FileNotFoundError."""
        with (
            _refused(f"{self.address}/{name}"),
            self.files.open_input_stream(f"{self.root}/{name}") as opened,
            file.open("wb") as out,
        ):
            shutil.copyfileobj(opened, out, 4 << 20)

    def upload(self, file: Path, name: str) -> None:
        """Write a file to an object."""
        # By pyarrow as a whole: a `with` block of its stream that ends by an error completes a shortened object.
        with _refused(f"{self.address}/{name}"):
            pyarrow.fs.copy_files(
                str(file),
                f"{self.root}/{name}",
                source_filesystem=pyarrow.fs.LocalFileSystem(),
                destination_filesystem=self.files,
                use_threads=False,
            )

    def write(self, name: str, content: bytes) -> None:
        """Replace an object."""
        with _refused(f"{self.address}/{name}"):
            stream = self.files.open_output_stream(f"{self.root}/{name}")
            stream.write(content)
            stream.close()

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""
        with _refused(f"{self.address}/{name}"), suppress(FileNotFoundError):
            self.files.delete_file(f"{self.root}/{name}")

    def names(self) -> dict[str, datetime]:
        """Return the objects with their times."""
        selector = pyarrow.fs.FileSelector(self.root, allow_not_found=True, recursive=True)
        with _refused(self.address):
            return {
                info.path.removeprefix(f"{self.root}/"): info.mtime.astimezone(UTC)
                for info in self.files.get_file_info(selector)
                if info.is_file
            }


@contextmanager
def _refused(address: str) -> Iterator[None]:
    """Turn an error of the SDK into a GoldnodeError. A missing object stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as problem:
        raise GoldnodeError(
            f"the object storage refuses or does not answer: {problem}",
            file=address.partition("?")[0],
            remedy="examine the address, its endpoint and region, and the keys in AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY or ~/.aws; then run it again",
        ) from None


def listed(storage: ObjectStorage) -> FleetBucketDocument | None:
    """Return the list of parts; None where there is none. Raise GoldnodeError for a damaged one."""
    try:
        content = storage.read(PARTS)
    except FileNotFoundError:
        return None
    try:
        return FleetBucketDocument.model_validate_json(content)
    except ValidationError as problem:
        raise GoldnodeError(
            f"the list of parts is damaged, or of a later goldnode: {problem.error_count()} errors",
            file=f"{storage.address}/{PARTS}",
            remedy="update goldnode; if that does not help, remove this object and copy the directory again",
        ) from None


def _name(part: BucketPart | ReplacedPart | PartName) -> PartName:
    return part if isinstance(part, PartName) else PartName(part.class_, part.day, part.id)


def object_name(part: PartName, table: str) -> str:
    """Return the name of the object of one table of a part."""
    return part.file(Path(), table).as_posix()


def _table(part: BucketPart) -> str:
    """Return the table that completes a part."""
    return next(table for table in PART_TABLES if table in part.files)


@dataclass
class CopyPlan:
    """Plan of a copy to a bucket."""

    parts: list[BucketPart]  # that readers see before it
    replaced: list[ReplacedPart]
    new: list[tuple[PartName, str]] = field(
        default_factory=list
    )  # each with the table that completes it
    gone: list[BucketPart] = field(
        default_factory=list
    )  # replaced by new ones, or older than the days to keep
    # Of days that were pruned here, and whole in the bucket: these stay.
    pruned: list[PartName] = field(default_factory=list)
    bytes: int = 0


def plan(
    directory: Path, storage: ObjectStorage, now: datetime, keep: int | None = None
) -> CopyPlan:
    """Return what a copy changes. Nothing is written.

    A part gives way only to parts that have all of its captures. So what was merged here is replaced
    there, and what was pruned here stays there.

    :param keep: days after which parts go from the bucket; seven more for those that captures can refer to.
    """
    before = listed(storage)
    made = CopyPlan(
        parts=[] if before is None else before.parts,
        replaced=[] if before is None else before.replaced,
    )
    if not found_parts(directory) and not found_parts(directory, CANARY):
        raise GoldnodeError(
            "no captures are stored here",
            file=directory,
            remedy="run `goldnode fleet ingest` first",
        )
    first = ""
    if keep is not None:
        first = (now - timedelta(days=keep + BASE_DAYS)).strftime("%Y-%m-%d")
    made.gone += [part for part in made.parts if part.day < first]
    for table in PART_TABLES:
        there: dict[tuple[str, str], list[BucketPart]] = {}
        for part in made.parts:
            if _table(part) == table and part.day >= first:
                there.setdefault((part.class_, part.day), []).append(part)
        here: dict[tuple[str, str], list[PartName]] = {}
        for name in found_parts(directory, table):
            if name.day >= first:
                here.setdefault((name.class_, name.day), []).append(name)
        comparison = _Comparison(directory, storage, table, made)
        for place, own in sorted(here.items()):
            comparison.add(own, there.get(place, []))
    made.bytes = sum(
        file.stat().st_size
        for part, table in made.new
        for file in _files(directory, part, table).values()
    )
    return made


@dataclass(frozen=True)
class _Comparison:
    """Compares the parts of one table, here and in the bucket."""

    directory: Path
    storage: ObjectStorage
    table: str
    made: CopyPlan

    def add(self, own: Sequence[PartName], there: Sequence[BucketPart]) -> None:
        """Add what changes of one class and day."""
        known = {_name(part) for part in there}
        new = [part for part in own if part not in known]
        others = [part for part in there if _name(part) not in own]
        if not new or not others:
            self.made.new += [(part, self.table) for part in new]
            return
        keys = {part: _captures(part.file(self.directory, self.table), self.table) for part in new}
        here = {one for captures in keys.values() for one in captures}
        left: set[tuple[Any, ...]] = set()  # captures that stay in the bucket
        for part in others:
            captures = self._captures_there(_name(part))
            if captures <= here:
                self.made.gone.append(part)
            else:
                left |= captures
        for name, captures in keys.items():
            if not captures & left:
                self.made.new.append((name, self.table))
            elif captures <= left:
                self.made.pruned.append(name)
            else:
                raise GoldnodeError(
                    "this part has captures of a day that was pruned here and is whole in the bucket, and others: "
                    "readers of the bucket would see the first ones twice",
                    file=name.file(self.directory, self.table),
                    remedy="move the files of this part (the same name in each table) away, and copy those of the "
                    "other captures from another directory",
                )

    def _captures_there(self, part: PartName) -> set[tuple[Any, ...]]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "part.parquet")
            self.storage.download(object_name(part, self.table), file)
            return _captures(file, self.table)


def _captures(file: Path, table: str) -> set[tuple[Any, ...]]:
    """Return the captures of a part, or its results."""
    rows = pq.read_table(file, columns=list(KEYS[table]), partitioning=None)
    return set(zip(*(rows[name].to_pylist() for name in KEYS[table]), strict=True))


def _files(directory: Path, part: PartName, table: str) -> dict[str, Path]:
    """Return the files of a part. One of an earlier goldnode has no changes."""
    files = {name: part.file(directory, name) for name in PART_TABLES[table]}
    return {name: file for name, file in files.items() if file.exists()}


def copy(
    directory: Path, storage: ObjectStorage, now: datetime, keep: int | None = None
) -> CopyPlan:
    """Copy the parts of a directory that the bucket does not have, and remove what nobody reads any more.

    It can be ended at any time and run again: what readers see changes by one write.
    """
    holding = lock_for_reading(directory)  # a merge removes no file meanwhile
    try:
        made = plan(directory, storage, now, keep)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            new = list(threads.map(lambda one: _upload(directory, storage, *one), made.new))
    finally:
        if holding is not None:
            os.close(holding)
    gone = {_name(part) for part in made.gone}
    ended = now - GRACE
    old = [part for part in made.replaced if _time(part.since) < ended]
    after = FleetBucketDocument(
        schema="goldnode.fleet-bucket/1",
        written=_moment(now),
        parts=sorted(
            [*(part for part in made.parts if _name(part) not in gone), *new],
            key=lambda part: _name(part),
        ),
        replaced=[
            *(part for part in made.replaced if part not in old),
            *(
                ReplacedPart(
                    **{"class": part.class_},
                    day=part.day,
                    id=part.id,
                    tables=list(part.files),
                    since=_moment(now),
                )
                for part in made.gone
            ),
        ],
    )
    if new or gone or old:
        storage.write(PARTS, after.model_dump_json(by_alias=True).encode())
    _clean(storage, after, ended)
    return made


def _upload(directory: Path, storage: ObjectStorage, part: PartName, table: str) -> BucketPart:
    files = {}
    for name, file in _files(directory, part, table).items():
        storage.upload(file, object_name(part, name))
        files[name] = BucketFile(bytes=file.stat().st_size, digest=f"sha256:{sha256_of(file)}")
    return BucketPart.model_validate(
        {"class": part.class_, "day": part.day, "id": part.id, "files": files}
    )


def _clean(storage: ObjectStorage, after: FleetBucketDocument, ended: datetime) -> None:
    """Remove the objects that no list of the last days has."""
    seen = {object_name(_name(part), table) for part in after.parts for table in part.files}
    seen |= {object_name(_name(part), table) for part in after.replaced for table in part.tables}
    # Only names of our own: a bucket may have other objects.
    tables = tuple(f"{table}/class=" for tables in PART_TABLES.values() for table in tables)
    for name, time_ in storage.names().items():
        if (
            name not in seen
            and name.startswith(tables)
            and name.endswith(".parquet")
            and time_ < ended
        ):
            storage.remove(name)


def _moment(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(moment: str) -> datetime:
    return datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


@contextmanager
def fetched(storage: ObjectStorage, chosen: ChosenParts) -> Iterator[Path]:
    """Yield a directory with the files that a reader needs, as if an ingest had written it. It cannot be written to.

    :param chosen: returns the parts whose files of a table are needed, of all parts of that table.

    Files that were downloaded before come from the cache. Raise GoldnodeError for a bucket without
    captures, and for an object that is damaged.
    """
    cache = cache_directory() / "fleet-data"
    cache.mkdir(parents=True, exist_ok=True)
    _forget(cache)
    with tempfile.TemporaryDirectory(dir=cache, prefix="view-") as folder:
        for last in (*[False] * (_TRIES - 1), True):
            document = listed(storage)
            if document is None or not document.parts:
                raise GoldnodeError(
                    "no captures are stored here",
                    file=storage.address,
                    remedy="copy a directory of captures here with `goldnode fleet copy`",
                )
            try:
                _fetch(storage, _wanted(document, chosen), cache, Path(folder))
                break
            except FileNotFoundError as problem:
                # Another copy has replaced the list, and removed the objects that it replaced days ago.
                if last or listed(storage) == document:
                    raise GoldnodeError(
                        f"an object of the list of parts is gone: {problem}",
                        file=storage.address,
                        remedy="put it back from a copy, or remove parts.json from the bucket and copy the directory again",
                    ) from None
        yield Path(folder)


def _wanted(document: FleetBucketDocument, chosen: ChosenParts) -> list[_Wanted]:
    wanted: list[_Wanted] = []
    for table, tables in PART_TABLES.items():
        parts = {_name(part): part for part in document.parts if table in part.files}
        names = sorted(parts)
        for name in tables:
            for part in chosen(name, names):
                if name in parts[part].files:
                    wanted.append((part, name, parts[part].files[name]))
    return wanted


def _fetch(storage: ObjectStorage, wanted: Sequence[_Wanted], cache: Path, folder: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for (part, table, _), file in zip(
            wanted, threads.map(lambda one: _cached(storage, cache, *one), wanted), strict=True
        ):
            place = part.file(folder, table)
            place.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # of an earlier try
                # A link of its own: another reader may remove the cached name.
                place.hardlink_to(file)


def _cached(
    storage: ObjectStorage, cache: Path, part: PartName, table: str, file: BucketFile
) -> Path:
    """Return the cached file of an object, downloaded and verified if it is not there."""
    held = cache / f"{file.digest.removeprefix('sha256:')}.parquet"
    with suppress(FileNotFoundError):
        os.utime(held)
        return held
    name = object_name(part, table)
    with tempfile.NamedTemporaryFile(dir=cache, prefix="new-", delete=False) as made:
        new = Path(made.name)
    try:
        storage.download(name, new)
        if f"sha256:{sha256_of(new)}" != file.digest:
            raise GoldnodeError(
                "this object is not what the list of parts names: it is damaged, or was replaced",
                file=f"{storage.address}/{name}",
                remedy="put it back from a copy, or remove parts.json from the bucket and copy the directory again",
            )
        new.replace(held)
    finally:
        new.unlink(missing_ok=True)
    return held


def _forget(cache: Path) -> None:
    """Remove cached files that no reader has used for a week, and what killed readers have left."""
    before = time.time() - _UNUSED
    for one in cache.iterdir():
        with suppress(OSError):
            if one.lstat().st_mtime < before:
                if one.is_dir():
                    shutil.rmtree(one)
                else:
                    one.unlink()
