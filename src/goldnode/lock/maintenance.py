"""Maintenance of a mirror: validate every byte, and collect files that nothing needs."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from goldnode.catalog.load import LOCK_SUFFIX, Catalog
from goldnode.core.errors import MirrorError
from goldnode.core.files import sha256_of, sync
from goldnode.core.site import Site
from goldnode.lock.archives import archive_addresses
from goldnode.lock.fetch import Fetcher, FetchFault, FetchProgress, FileToFetch, address
from goldnode.lock.mirror import Mirror, read_public
from goldnode.lock.model import load_lock
from goldnode.lock.publication import (
    ARCHIVE,
    COMPONENT,
    CURRENT,
    NODE_PACKAGE,
    PUBLIC_KEY,
    RECORD,
    SUITE,
    Publication,
    publication_id,
    publications,
)
from goldnode.lock.publish import wrong_indexes
from goldnode.lock.signing import check_signature

CHANNELS = "channels.json"
GRACE_DAYS = 30

_NAME = re.compile(r"^[0-9a-f]{64}$")

DamageKind = Literal["store", "publication", "signature"]


@dataclass(frozen=True)
class MirrorDamage:
    """One damaged or unexpected file of a mirror.

    `sha256` is the file of the store that a repair would have to fetch.
    """

    kind: DamageKind
    path: Path
    message: str
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


# Verifying


def verify(
    mirror: Mirror, public: bytes, stacks: Iterable[str] | None = None
) -> list[MirrorDamage]:
    """Validate the files of the store by hash, and publications by signature, indexes and record.

    `stacks` selects publications; default: all. A signature must be of one of the `public` keys.
    Return the damage in order.
    """
    chosen = None if stacks is None else set(stacks)
    places = [
        place
        for place in publications(mirror.directory)
        if chosen is None or place.parent.name in chosen
    ]
    problems: list[MirrorDamage] = []
    records: list[Publication] = []
    for place in places:
        try:
            records.append(Publication.read(place))
        except MirrorError as problem:
            problems.append(MirrorDamage("publication", place / RECORD, problem.message))
    named = None if chosen is None else {sha for record in records for sha in record.hashes}
    problems += _store(mirror, named)
    for record in records:
        problems += _publication(mirror, record, public)
    for stack in sorted((mirror.directory / "stacks").glob("*")):
        link = (
            stack / CURRENT
        )  # not looked for by its name, which does not find a link that leads nowhere
        if (
            (chosen is None or stack.name in chosen)
            and link.is_symlink()
            and not (link / RECORD).is_file()
        ):
            problems.append(MirrorDamage("publication", link, "leads to no publication"))
    return sorted(problems, key=lambda damage: (str(damage.path), damage.message))


def _store(mirror: Mirror, only: set[str] | None) -> Iterator[MirrorDamage]:
    files = sorted(path for path in mirror.store.glob("*/*") if only is None or path.name in only)
    # Hashing releases the interpreter's lock, so threads use several CPUs.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for path, digest in zip(files, pool.map(_digest, files), strict=True):
            if not _NAME.match(path.name) or path.parent.name != path.name[:2]:
                yield MirrorDamage("store", path, "is no file of a mirror's store")
            elif digest is None:
                yield MirrorDamage("store", path, "cannot be read", path.name)
            elif digest != path.name:
                yield MirrorDamage(
                    "store", path, f"has SHA-256 {digest}, its name says another", path.name
                )


def _digest(path: Path) -> str | None:
    try:
        return sha256_of(path)
    except OSError:
        return None


def _publication(mirror: Mirror, record: Publication, public: bytes) -> Iterator[MirrorDamage]:
    place = record.directory
    if record.id != place.name or publication_id(record.hashes) != place.name:
        yield MirrorDamage(
            "publication", place / RECORD, "names other packages than the directory's name"
        )
    signed = place / f"dists/{SUITE}/InRelease"
    if not signed.is_file():
        yield MirrorDamage("signature", signed, "is not there")
        return
    # The indexes are compared only if the Release file that lists them is authentic.
    good, text = check_signature(signed, public)
    if good is None:
        yield MirrorDamage("signature", signed, text)
    elif good != record.fingerprint:
        yield MirrorDamage(
            "signature", signed, f"is signed by {good}, the record says {record.fingerprint}"
        )
    else:
        yield from _indexes(place, text, record)
    for row in record.packages:
        file, cached = place / row["pool"], mirror.path(row["sha256"])
        if not cached.is_file():
            yield MirrorDamage(
                "store",
                cached,
                f"is not there; {row['name']} {row['version']} of stack {record.stack} needs it",
                row["sha256"],
            )
        if not file.is_file():
            yield MirrorDamage("publication", file, "is not there", row["sha256"])
        elif not (cached.is_file() and file.samefile(cached)) and _digest(file) != row["sha256"]:
            yield MirrorDamage(
                "publication",
                file,
                f"has other bytes than {row['name']} {row['version']}",
                row["sha256"],
            )


def _indexes(place: Path, release: str, record: Publication) -> Iterator[MirrorDamage]:
    base = place / f"dists/{SUITE}"
    for file, why in wrong_indexes(place, release):
        yield MirrorDamage("publication", file, why)
    offered: dict[str, tuple[str, str]] = {}
    for file in base.glob(f"{COMPONENT}/*/Packages"):
        for stanza in file.read_text(encoding="utf-8").split("\n\n"):
            fields = dict(re.findall(r"^(Filename|SHA256|Package): (.*)$", stanza, re.MULTILINE))
            if len(fields) == 3:
                offered[fields["SHA256"]] = (fields["Package"], fields["Filename"])
    if {
        sha: (row["name"], row["pool"])
        for sha, row in ((row["sha256"], row) for row in record.packages)
    } != offered:
        yield MirrorDamage(
            "publication",
            base / COMPONENT,
            "the indexes offer other packages than the record names",
        )


def repair(
    mirror: Mirror,
    damages: Iterable[MirrorDamage],
    site: Site,
    progress: FetchProgress | None = None,
    *,
    catalog: Catalog,
    pause: float = 1.0,
) -> tuple[list[MirrorDamage], list[FetchFault]]:
    """Fetch damaged and missing files of the store again and link them into the publications.

    Return the damages that fetching does not fix (indexes and signatures: publish again), and the
    files that are not available.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    records: list[Publication] = []
    damages = list(damages)
    with mirror.writing(), mirror.disk():
        for place in publications(mirror.directory):
            try:
                records.append(Publication.read(place))
            except MirrorError:
                continue
            rows |= {row["sha256"]: {**row, "record": records[-1]} for row in records[-1].packages}
        broken = {damage.sha256 for damage in damages if damage.sha256 is not None}
        left = [damage for damage in damages if damage.sha256 is None]
        wanted: list[FileToFetch] = []
        for sha256 in sorted(broken):
            row = rows.get(sha256)
            if row is None:  # nothing that is published names it: it can go
                mirror.path(sha256).unlink(missing_ok=True)
            elif row["archive"] == ARCHIVE:  # made here, so that no archive has it
                left += [damage for damage in damages if damage.sha256 == sha256]
            elif _digest(mirror.path(sha256)) != sha256:
                record = row["record"]
                now, then = archive_addresses(
                    record.stack, row["archive"], record.day, catalog, site
                )
                url, older = address(now, row["path"]), then and address(then, row["path"])
                wanted.append(
                    FileToFetch(
                        sha256,
                        size=row["size"],
                        url=url,
                        name=row["name"],
                        version=row["version"],
                        archive=row["archive"],
                        older=older,
                    )
                )
        faults = Fetcher(mirror.partial, mirror.keep, progress=progress, pause=pause).fetch(wanted)
        for record in records:
            for row in record.packages:
                cached, file = mirror.path(row["sha256"]), record.directory / row["pool"]
                if (
                    row["sha256"] in broken
                    and cached.is_file()
                    and not (file.exists() and file.samefile(cached))
                ):
                    # Linked beside and renamed: nodes that read meanwhile see the old file or the
                    # new one.
                    fresh = file.with_name(f".{file.name}.new")
                    fresh.unlink(missing_ok=True)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    os.link(cached, fresh)
                    fresh.replace(file)
                    sync(file.parent)
    return left, faults


# Collecting


@dataclass
class NeededFiles:
    """Content that must stay, each with its owner. `locks` are digests, `hashes` files,
    `publications` (stack, ID).
    """

    locks: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    publications: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectedFile:
    """One thing that is removed, or would be.

    It is a publication, a file of the store, or the rest of an interrupted fetch. `size` is the
    number of bytes that this frees.
    """

    path: Path
    size: int
    why: str


def needed(mirror: Mirror, catalog: Catalog, site: Site, nodes: Iterable[Path] = ()) -> NeededFiles:
    """Return everything that still needs a file.

    That is: locks (of the catalog, the site, $GOLDNODE_LOCKS), rows of `STACK.modules.yml`,
    channels, the current publications of the catalog's stacks, and locks in `nodes` (records of
    runs, or of nodes).

    Raises GoldnodeError for anything unreadable, because its files must stay.
    """
    files = NeededFiles()
    places = dict.fromkeys(
        [
            *site.lock_directories(),
            *(
                place
                for entry in catalog.stacks.values()
                for place in site.lock_places(entry.file.parent, "stacks")
            ),
        ]
    )
    for directory in places:
        for path in sorted(directory.glob(f"*{LOCK_SUFFIX}")):
            lock = load_lock(path)
            files.locks[lock.digest] = str(path)
            files.hashes |= dict.fromkeys((item.sha256 for item in lock.packages), str(path))
        for path in sorted(directory.glob("*.modules.yml")):
            files.hashes |= dict.fromkeys(_hashes(_read(path, yaml.safe_load)), str(path))
    channels = mirror.directory / CHANNELS
    if channels.exists():
        named = _read(channels, json.loads)
        if not isinstance(named, dict) or not all(
            isinstance(stacks, dict) for stacks in named.values()
        ):
            raise MirrorError(
                "these are no channels, so that nothing is collected: expected {channel: {stack: publication}}",
                file=channels,
            )
        for channel, stacks in named.items():
            for stack, identity in stacks.items():
                files.publications[(stack, str(identity))] = f"channel {channel}"
    for stack in [*catalog.stacks, NODE_PACKAGE]:
        link = mirror.directory / "stacks" / stack / CURRENT
        if link.is_symlink():
            files.publications.setdefault(
                (stack, link.readlink().name),
                f"current for {stack}" if stack == NODE_PACKAGE else f"current for stack {stack}",
            )
    for path in nodes:
        for digest in _digests(_read(path, json.loads)):
            files.locks.setdefault(digest, f"history in {path}")
    return files


def node_records(paths: Iterable[Path]) -> list[Path]:
    """Return the JSON files in `paths`, which may be directories. Raises MirrorError for a missing one."""
    records: list[Path] = []
    for path in paths:
        if not path.exists():
            raise MirrorError(
                "there is no such file of node histories", file=path, remedy="correct --nodes"
            )
        records += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return records


def _read(path: Path, parse: Any) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as problem:
        raise MirrorError(
            f"this cannot be read, so that nothing is collected: {problem}",
            file=path,
            remedy="fix it, or move it away if nothing needs it",
        ) from problem


def _hashes(value: Any) -> Iterator[str]:
    """Yield every SHA-256 that a document names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "sha256" and isinstance(item, str):
                yield item
            else:
                yield from _hashes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _hashes(item)


def _digests(value: Any) -> Iterator[str]:
    """Yield all digests of locks in a record.

    Their keys are `lock_digest`, `earlier_lock_digest`, and {lock: {digest}} of a class document.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key.endswith("lock_digest") and isinstance(item, str):
                yield item
            elif (
                key == "lock" and isinstance(item, Mapping) and isinstance(item.get("digest"), str)
            ):
                yield item["digest"]
            else:
                yield from _digests(item)
    elif isinstance(value, list):
        for item in value:
            yield from _digests(item)


def collect(
    mirror: Mirror,
    keep: NeededFiles,
    *,
    days: float = GRACE_DAYS,
    dry_run: bool = False,
    now: dt.datetime | None = None,
) -> tuple[list[CollectedFile], dict[Path, str]]:
    """Remove publications and files older than `days` that nothing in `keep` needs.

    A file goes if no publication and no lock names it. Return what was removed (or would
    be), and the reason for each publication that stays.

    If the record of a publication is unreadable, it stays and no file of the store is removed.
    """
    now = now or dt.datetime.now(dt.UTC)
    edge = now - dt.timedelta(days=days)
    stays: dict[Path, str] = {}
    gone: list[CollectedFile] = []
    used: dict[str, str] = dict(keep.hashes)
    unsure = False
    leaving: list[Publication] = []
    with mirror.writing(), mirror.disk():
        for place in publications(mirror.directory):
            try:
                record = Publication.read(place)
            except MirrorError as problem:
                stays[place], unsure = problem.message, True
                continue
            reason = keep.publications.get((record.stack, record.id)) or next(
                (keep.locks[item] for item in record.locks if item in keep.locks), None
            )
            if reason is None and dt.datetime.fromisoformat(record.published) > edge:
                reason = f"published {record.published}, less than {days:g} days ago"
            if reason is None:
                leaving.append(record)
                continue
            stays[place] = reason
            used |= dict.fromkeys(record.hashes, str(place))
        for record in leaving:
            own = sum(
                path.stat().st_size
                for path in record.directory.rglob("*")
                # Files that the store or another publication also has take no space of their own.
                if path.is_file() and path.stat().st_nlink == 1
            )
            gone.append(
                CollectedFile(
                    record.directory,
                    own,
                    f"published {record.published}; no lock, channel or node needs it",
                )
            )
        # An unreadable record may name any file.
        if not unsure:
            for path in sorted([*mirror.store.glob("*/*"), *mirror.partial.glob("*")]):
                status = path.stat()
                if path.name in used or dt.datetime.fromtimestamp(status.st_mtime, dt.UTC) > edge:
                    continue
                gone.append(CollectedFile(path, status.st_size, "nothing that stays names it"))
        if not dry_run:
            for item in gone:
                if item.path.is_dir():
                    _remove(item.path)
                else:
                    item.path.unlink(missing_ok=True)
    return gone, stays


def _remove(directory: Path) -> None:
    """Remove a publication in one step, so that it is either complete or absent."""
    hidden = directory.with_name(f".{directory.name}.gone")
    shutil.rmtree(hidden, ignore_errors=True)
    # Before the directory: `current` must not lead nowhere.
    link = directory.parent / CURRENT
    if link.is_symlink() and link.readlink().name == directory.name:
        link.unlink()
    directory.rename(hidden)
    sync(directory.parent)
    shutil.rmtree(hidden, ignore_errors=True)


def public_key(mirror: Mirror, site: Site) -> bytes:
    """Return the key that verifies publications: the site's, else the one that signed the mirror
    last. Raises MirrorError.
    """
    named = site.mirror.key if site.mirror is not None else None
    path = site.resolve(named) if named is not None else mirror.directory / PUBLIC_KEY
    return read_public(path, remedy="name it as `mirror.key`")
