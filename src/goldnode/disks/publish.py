"""Publication of disks to a directory that any HTTP server can serve, and download from it.

    PLACE/CLASS/BUILDID/            one immutable build: its files, its evidence, SHA256SUMS and signatures
    PLACE/metadata/                 the signed channels of all classes (`goldnode.channels.signed`)
    PLACE/CLASS/channels/           CHANNEL.json and, for netboot, CHANNEL.ipxe
    PLACE/index.json                every class, build and channel, for programs
    PLACE/streams/v1/               the same as simplestreams, for image services

A build is assembled under PLACE/.staging, read back, and renamed into place, so that it is visible only when
complete.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.channels import promotion, signed
from goldnode.channels.lines import CHANNELS
from goldnode.channels.locks import lane, using
from goldnode.channels.requirements import Decisions, RequirementDecision, refuse
from goldnode.core.errors import DiskError, ImageError, nearest
from goldnode.core.files import replace_file, sha256_of
from goldnode.disks import formats
from goldnode.disks.directory import (
    _BUILD,
    ENVELOPE,
    PREDICATE,
    full,
    read_sums,
    refresh,
)
from goldnode.disks.lines import ClassLine, line_of
from goldnode.disks.model import FORMATS, MANIFEST, SUMS, BuiltDisk
from goldnode.disks.places import ChannelStore, DirectoryPlace
from goldnode.disks.requirements import judge
from goldnode.disks.upload import PublishedDisk, _space, copy_build
from goldnode.evidence import signatures
from goldnode.lock.fetch import Fetcher, FetchError, FileToFetch, address, read_small
from goldnode.lock.transport import Transport

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import EnvelopeSigner

_SMALL = 64 << 20  # size limit of a document that is read into memory
_PAUSE = 0.2  # seconds to wait after an interruption


Say = Callable[[str], None]


def publish(
    disk: BuiltDisk,
    place: DirectoryPlace,
    signer: EnvelopeSigner,
    *,
    trust: Sequence[SSlibKey] = (),
    waivers: Sequence[RequirementDecision] = (),
    now: dt.datetime | None = None,
) -> PublishedDisk:
    """Publish a build with its evidence.

    Raises DiskError and ImageError; nothing becomes visible in that case.
    """
    line_of(disk.class_)
    results = judge("publish", disk, Decisions((*trust, signer.public), waivers))
    refuse("publish", disk.name, results)
    with using(place.store), place.turn():
        published = copy_build(disk, place, signer, results, now=now)
        with full(place.root):
            refresh(place.root)
    published.requirements = results
    return published


# Pulling


class PullSource:
    """A published directory, on this machine or behind HTTP. `ca` is the certificate of its authority (PEM).

    Raises DiskError for an address of another kind.
    """

    def __init__(self, text: str, ca: Path | None = None) -> None:
        if re.match(r"https?://", text):
            self.name = self._base = text.rstrip("/")
        elif "://" in text:
            raise DiskError(
                f"{text} is no place to pull from",
                remedy="name a directory, or an http or https address",
            )
        else:
            root = Path(text).absolute()
            self.name, self._base = str(root), root.as_uri()
            if not root.is_dir():
                raise DiskError(
                    f"{root} is no directory",
                    remedy="mount what it lies on, or name another with --from",
                )
        self._transport = Transport(settings={"acquire::https::cainfo": str(ca)} if ca else {})

    def small(self, path: str) -> bytes | None:
        """Return a document, or None if it does not exist.

        Raises DiskError if that cannot be determined, or if it is too large.
        """
        try:
            # A document is read into memory before its signature is checked.
            return read_small(address(self._base, path), _SMALL, self._transport)
        except FetchError as problem:
            raise DiskError(
                f"{self.name}/{path}: {problem}", remedy="look at the server, and run it again"
            ) from None

    def fetch(self, path: str, into: Path, sha256: str) -> bool:
        """Download a file to `into`, resuming a partial one.

        Return False if it was complete already. Raises DiskError on failure.
        """
        if _is(into, sha256):
            return False

        def keep(part: Path, _: str) -> None:
            part.replace(into)

        fetcher = Fetcher(into.parent, keep, parallel=1, transport=self._transport, pause=_PAUSE)
        url = address(self._base, path)
        wanted = FileToFetch(sha256, None, url, into.name, version="", archive=self.name)
        for fault in fetcher.fetch([wanted]):
            remedies = {
                "vanished": "publish the disk again",
                "altered": "find out who changed it; nothing of it was kept",
            }
            remedy = remedies.get(fault.kind, "run it again: what is here is kept")
            raise DiskError(
                f"{into.name} is {fault.kind}: {fault.why}", file=self.name, remedy=remedy
            )
        return True


@dataclass
class PulledDisk:
    """Result of a pull. `fetched` and `there` count files."""

    disk: BuiltDisk
    digest: str
    fetched: int = 0
    there: int = 0


def pull(
    source: PullSource,
    store: ChannelStore,
    build: str,
    *,
    trust: Sequence[SSlibKey],
    roots: Sequence[Path] = (),
    formats: Sequence[str] = ("raw.zst",),
    say: Say = lambda text: None,
) -> PulledDisk:
    """Download a build into the store. `build` is CLASS:CHANNEL, CLASS:BUILDID, or CLASS for stable.

    Every byte is validated against a trusted signature.

    `formats` selects the files of the disk. `raw.zst` is unpacked to the raw disk, and only that is kept.
    Raises DiskError; the store then contains nothing new except partial files, from which the next run
    resumes.
    """
    name, _, wanted = build.partition(":")
    line, wanted = line_of(name), wanted or "stable"
    if not trust:
        raise DiskError(
            "a disk is pulled only where its signature can be verified",
            remedy="name the public key with --trust",
        )
    build_id, digest = wanted, None
    if wanted in CHANNELS:
        build_id, digest = _look_up(source, store, line, wanted, roots)
    elif _BUILD.fullmatch(wanted) is None:
        raise DiskError(
            f'"{wanted}" is no channel and no build id', remedy=nearest(wanted, CHANNELS)
        )
    place = f"{name}/{build_id}"
    sums, manifest = _signed(source, place, name, build_id, trust)
    # A signature alone would accept another build that the same key signed.
    if digest is not None and f"sha256:{sums[MANIFEST]}" != digest:
        raise DiskError(
            f"{source.name}/{place} is sha256:{sums[MANIFEST][:12]}…, and {wanted} of {name} points to "
            f"{digest[:19]}…",
            remedy="find out who moved it; `goldnode disks status` at the place shows more",
        )
    # Partial files have fixed names, so that the next run resumes; two runs would write into one.
    with using(store), lane(store, f"{name}-{build_id}", name="pull"):
        stage = store.root / "partial" / f"{name}-{build_id}"
        with full(store.root):
            stage.mkdir(parents=True, exist_ok=True)
            # First: it states the files and sizes of the rest.
            replace_file(stage / MANIFEST, manifest)
            disk = BuiltDisk.load(stage)
            pulled = PulledDisk(disk, f"sha256:{sums[MANIFEST]}")
            target = store.root / "built" / name / build_id
            own = _own(target, pulled.digest)
            packed, unpacked = f"{disk.name}{FORMATS['raw.zst']}", f"{disk.name}.raw"
            whole = own and "raw.zst" in formats and _is(target / unpacked, disk.raw.sha256)
            for file in _files(disk, sums, formats):
                complete = whole if file == packed else _is(target / file, sums[file])
                if own and complete:
                    pulled.there += 1
                    continue
                say(f"{place}/{file}")
                fresh = source.fetch(f"{place}/{file}", stage / file, sums[file])
                pulled.fetched, pulled.there = pulled.fetched + fresh, pulled.there + (not fresh)
            if "raw.zst" in formats and not whole:
                _unpack(stage, disk)
            elif own:
                (stage / packed).unlink(missing_ok=True)
            _into(stage, target, disk, own)
    if wanted in CHANNELS:
        store.name_as(promotion.local_name(source.name, line, wanted), pulled.digest)
    pulled.disk = BuiltDisk.load(target)
    return pulled


def _look_up(
    source: PullSource, store: ChannelStore, line: ClassLine, channel: str, roots: Sequence[Path]
) -> tuple[str, str]:
    """Return build id and digest of a channel's target, according to the signed channels only."""
    files = signed.newest_files(lambda name: source.small(f"{signed.FOLDER}/{name}"))
    channels = promotion.followed(files, source.name, store, roots)
    last = channels.history(line).current(channel)
    if last is None:
        history = channels.history(line)
        known = ", ".join(one for one in CHANNELS if history.current(one)) or "none"
        raise DiskError(
            f"{channel} of {line} points to nothing at {source.name} (of its channels: {known})",
            remedy="promote a disk to it, name a build id, or correct the class or the place",
        )
    if not channels.trusted:
        raise DiskError(
            f"nothing says whether the channels of {source.name} are its publisher's",
            remedy="name its root document, from a place that you trust, with --root or in images.roots of the site file",
        )
    return last.tag, last.now


def _signed(
    source: PullSource, place: str, name: str, build_id: str, trust: Sequence[SSlibKey]
) -> tuple[dict[str, str], bytes]:
    """Return the hashes that a trusted key signed for a published build, and the build's manifest."""
    papers = {file: source.small(f"{place}/{file}") for file in (ENVELOPE, SUMS, MANIFEST)}
    there = {file: data for file, data in papers.items() if data is not None}
    if absent := [file for file in papers if file not in there]:
        raise DiskError(
            f"{source.name}/{place} has no {', '.join(absent)}",
            remedy="look at what is published: index.json names it",
        )
    where = f"{source.name}/{place}/{ENVELOPE}"
    try:
        statement = json.loads(signatures.open_envelope(there[ENVELOPE], trust).payload)
        named = {str(row["name"]): str(row["digest"]["sha256"]) for row in statement["subject"]}
        reported = (
            statement["predicateType"],
            statement["predicate"]["class"],
            statement["predicate"]["build_id"],
        )
    except ImageError as problem:
        raise DiskError(problem.message, file=where, remedy=problem.remedy) from None
    except (ValueError, KeyError, TypeError):
        raise DiskError("it is no statement about a published disk", file=where) from None
    # A valid envelope of another build, copied here, would otherwise be accepted.
    if reported != (PREDICATE, name, build_id):
        raise DiskError(
            f"it was signed for {reported[1]} {reported[2]}, not for {name} {build_id}",
            file=where,
            remedy="find out who put it there",
        )
    for file in (SUMS, MANIFEST):
        if hashlib.sha256(there[file]).hexdigest() != named.get(file):
            raise DiskError(
                f"{file} is not what was signed",
                file=f"{source.name}/{place}",
                remedy="find out who changed it",
            )
    sums = read_sums(there[SUMS].decode("utf-8", "replace"), f"{source.name}/{place}/{SUMS}")
    return sums, there[MANIFEST]


def _files(disk: BuiltDisk, sums: Mapping[str, str], formats: Sequence[str]) -> list[str]:
    """Return the files to download: documents first, then the requested formats.

    Raises DiskError for a format that is not published.
    """
    by_format = {disk.name + suffix: form for form, suffix in FORMATS.items()}
    for form in formats:
        if form not in FORMATS or disk.name + FORMATS[form] not in sums:
            offered = sorted(form for file, form in by_format.items() if file in sums)
            raise DiskError(
                f"{disk.name} is not published as {form}", remedy=nearest(form, offered)
            )
    # Small ones first: a missing document fails before gigabytes were downloaded.
    small = [file for file in sums if file not in by_format and file != MANIFEST]
    return [*small, *(disk.name + FORMATS[form] for form in formats)]


def _own(target: Path, digest: str) -> bool:
    """Return whether the store has this very build. Raises DiskError if it has another one under that id."""
    if not (target / MANIFEST).is_file():
        return False
    here = f"sha256:{sha256_of(target / MANIFEST)}"
    if here != digest:
        raise DiskError(
            f"{target} is {here[:19]}, and what is published is {digest[:19]}: a build id is given to one "
            "content only",
            remedy="find out whose build is not reproducible; move the store's build away to pull the other",
        )
    return True


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of(path) == sha256


def _unpack(stage: Path, disk: BuiltDisk) -> None:
    packed, raw = stage / f"{disk.name}{FORMATS['raw.zst']}", stage / f"{disk.name}.raw"
    with _space():
        formats.unpack(packed, raw)
    if (got := sha256_of(raw)) != disk.raw.sha256:
        raw.unlink()
        packed.unlink()
        raise DiskError(
            f"{packed.name} holds a disk with sha256 {got[:16]}…, the manifest says {disk.raw.sha256[:16]}…",
            file=stage,
            remedy="the publication contradicts itself: publish the disk again",
        )
    if not any(row.format == "raw.zst" for row in disk.files):
        packed.unlink()


def _into(stage: Path, target: Path, disk: BuiltDisk, own: bool) -> None:
    """Move a download into the store: a new build by one rename, additional files of an existing build one by
    one.
    """
    if not own:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A leftover of an interrupted build, without a manifest.
        shutil.rmtree(target, ignore_errors=True)
        stage.rename(target)
    else:
        for path in sorted(stage.iterdir()):
            path.replace(target / path.name)
        stage.rmdir()
    here = sorted(path for path in target.iterdir() if path.name != SUMS and path.is_file())
    replace_file(
        target / SUMS, "".join(f"{sha256_of(path)}  {path.name}\n" for path in here).encode()
    )
