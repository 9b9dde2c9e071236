"""Files with data on vulnerabilities: KIND=FILE or KIND=URL, with the date of the data.

An address is read from the cache. It is fetched only on request, and the old copy stays if that fails.
"""

from __future__ import annotations

import bz2
import datetime as dt
import email.utils
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from urllib3.exceptions import HTTPError

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import cache_directory, replace_file
from goldnode.cve.bulletins import LABEL, FactBulletins
from goldnode.cve.claims import ClaimSource, OsRelease
from goldnode.cve.csaf import CsafDocuments
from goldnode.cve.debian import DebianTracker
from goldnode.cve.osv import OsvRecords
from goldnode.cve.oval import OvalDefinitions
from goldnode.evidence.vulnerabilities import documents_in, file_date, named_file
from goldnode.lock.transport import Transport
from goldnode.node.ground.text import phrase

KINDS = ("debian", "osv", "oval", "csaf")
WHAT = "vulnerability data"
# The Debian tracker lists some 4,000 source packages: a file with fewer is an excerpt.
_WHOLE = 1000
_DATED = re.compile(r"@(\d{4}-\d\d-\d\d)$")
_MOST = 1 << 30  # bytes of a fetched file
_OK = 200
_BZIP2 = b"BZh"


@dataclass(frozen=True)
class Feed:
    """Data of one file or of the facts. `date` is a day (UTC), `date_from` what states it, `note` a limit of the data."""

    kind: str
    name: str
    sha256: str
    date: str
    date_from: str
    source: ClaimSource
    note: str = ""

    def age(self, today: dt.date) -> int | None:
        """Return the age of the data in days; None if their date is unknown."""
        try:
            return (today - dt.date.fromisoformat(self.date)).days
        except ValueError:
            return None

    def line(self, today: dt.date) -> str:
        """Return kind, file, date and age for a reader."""
        age = self.age(today)
        dated = "of unknown date"
        if age is not None:
            dated = f"of {self.date} ({self.date_from}), {age} days old"
        return f"{self.kind} {self.name} {dated}{phrase('; {}', self.note)}"


@dataclass(frozen=True)
class FeedRequest:
    """How to read feeds: the releases that are asked about, and whether to fetch addresses."""

    systems: Set[OsRelease]
    fetch: bool = False
    base: Path | None = None
    get: Callable[[str], tuple[bytes, str]] | None = None  # address -> content, Last-Modified


def load_feeds(texts: Sequence[str], request: FeedRequest) -> list[Feed]:
    """Return the feeds that are named, and the facts. Raise GoldnodeError for one that cannot be read."""
    return [*(load_feed(text, request) for text in texts), _facts()]


def load_feed(text: str, request: FeedRequest) -> Feed:
    """Return the feed `KIND=FILE[@DATE]` or `KIND=URL[@DATE]`. Raise GoldnodeError."""
    kind, _, place = text.partition("=")
    if place.startswith(("http://", "https://")) and kind in KINDS:
        match = _DATED.search(place)
        url = place[: match.start()] if match else place
        path, fetched = _cached(url, request)
        return _read(
            kind, path, url, (match[1], "given") if match else (fetched, "of the server"), request
        )
    kind, path, day = named_file(text, KINDS, WHAT, request.base)
    return _read(kind, path, path.name, (day, "given") if day else ("", ""), request)


def _read(kind: str, path: Path, name: str, dated: tuple[str, str], request: FeedRequest) -> Feed:
    note, newest = "", ""
    source: ClaimSource
    try:
        hasher = hashlib.sha256()
        documents = []
        for data in _definitions_in(path) if kind == "oval" else documents_in(path):
            hasher.update(data)
            documents.append(data)
        if kind == "oval":
            source = definitions = OvalDefinitions(map(_opened, documents))
            newest = definitions.newest
        elif kind == "debian":
            codenames = {one.codename for one in request.systems if one.id == "debian"}
            source = tracker = DebianTracker(b"".join(documents).decode(), codenames)
            if tracker.sources < _WHOLE:
                note = f"an excerpt: it knows {tracker.sources} source packages"
        elif kind == "osv":
            source = records = OsvRecords(documents)
            newest = records.newest
        else:
            source = bulletins = CsafDocuments(documents)
            newest = bulletins.newest
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as problem:
        raise GoldnodeError(
            f"the {WHAT} cannot be read as {kind}: {problem}",
            file=path,
            remedy="name the right kind, or get the file again",
        ) from problem
    if not dated[0]:
        dated = (
            (newest, "its newest record") if newest else (file_date(path), "the file's own date")
        )
    return Feed(kind, name, hasher.hexdigest(), *dated, source=source, note=note)


def _definitions_in(path: Path) -> Iterator[bytes]:
    """Yield the XML files of a directory, or a file. They may be compressed, as the publishers have them."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.xml*") if file.suffix in (".xml", ".bz2"))
    yield from (file.read_bytes() for file in files)


def _opened(data: bytes) -> IO[bytes]:
    """Return an XML document to read from. One release is 300 MB, so that it is unpacked while it is read."""
    stream = io.BytesIO(data)
    return bz2.BZ2File(stream) if data.startswith(_BZIP2) else stream


def _facts() -> Feed:
    source = FactBulletins()
    return Feed(LABEL, "NVIDIA's bulletins", "", source.date, "the facts", source=source)


def _cached(url: str, request: FeedRequest) -> tuple[Path, str]:
    """Return the cached file of an address and the day of its content, fetched first if that is asked for."""
    place = cache_directory() / "cve" / hashlib.sha256(url.encode()).hexdigest()[:24]
    about = place.with_suffix(".json")
    if request.fetch:
        content, modified = (request.get or _get)(url)
        replace_file(place, content)
        replace_file(about, json.dumps({"url": url, "day": _day(modified)}).encode())
    try:
        stated = json.loads(about.read_bytes())
        if place.is_file():
            return place, str(stated["day"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never fetched, or removed half: both are cured by fetching
    raise GoldnodeError(
        f"{url} was not fetched yet", remedy="add --fetch, or name a file in place of the address"
    )


def _day(modified: str) -> str:
    """Return the day of an HTTP date, today's without one: the tracker's JSON has no date of its own."""
    try:
        return email.utils.parsedate_to_datetime(modified).date().isoformat()
    except (TypeError, ValueError):
        return dt.datetime.now(dt.UTC).date().isoformat()


def _get(url: str) -> tuple[bytes, str]:
    try:
        response = Transport().get(url, {})
        if response.status != _OK:
            raise GoldnodeError(
                f"{url} cannot be fetched: HTTP status {response.status}",
                remedy="check the address; without --fetch the copy in the cache is used",
            )
        content = response.read(_MOST)
        return content, response.headers.get("Last-Modified", "")
    except HTTPError as problem:
        raise GoldnodeError(
            f"{url} cannot be fetched: {problem}",
            remedy="check the network; without --fetch the copy in the cache is used",
        ) from problem
