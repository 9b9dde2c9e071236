"""Downloads of files with known SHA-256: several in parallel, each resumed after an interruption
and validated while it arrives.

The hash of a file is known before it is requested, so a partial download can be continued without a
validator from the server: the complete file has the hash or not. apt's own fetcher continues a file
only if its modification time equals the server's, which a killed process never set.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal, Protocol
from urllib.parse import quote, unquote, urlsplit

from urllib3.exceptions import HTTPError

from goldnode.core.errors import LockError
from goldnode.core.logins import masked
from goldnode.lock.transport import Transport

BLOCK = 1 << 17  # bytes read at once
TRIES = 5  # in a row without a block's worth of progress
PAUSE = 1.0  # seconds before the second try; doubled before each further one

FetchFaultKind = Literal["vanished", "altered", "refused", "unreachable"]


@dataclass(frozen=True)
class FileToFetch:
    """File to fetch: hash, size in bytes (None: unknown), location, and its name for a person.

    `older` is its location on the day of its lock, for a file that has left its archive since.
    """

    sha256: str
    size: int | None
    url: str
    name: str
    version: str
    archive: str
    older: str | None = None

    def locations(self) -> list[str]:
        """Return where the file is, in the order in which to ask."""
        return [self.url, *([self.older] if self.older is not None else [])]


@dataclass(frozen=True)
class FetchFault:
    """File that its archive does not deliver as locked."""

    kind: FetchFaultKind
    wanted: FileToFetch
    why: str

    @property
    def message(self) -> str:
        """Return the fault with the name of the file."""
        wanted = self.wanted
        return f"{wanted.name} {wanted.version} of archive {wanted.archive}: {self.why}"

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class FetchProgress(Protocol):
    """Observer of a download. Called from several threads."""

    def start(self, files: int, size: int, there: int) -> None:
        """Begin: number and size of all files. `there` bytes remain from an earlier run."""

    def advance(self, size: int) -> None:
        """Count `size` more bytes. A negative number means that bytes have to be fetched again."""

    def done(self, wanted: FileToFetch) -> None:
        """Count a file that is complete and has the expected hash."""

    def failed(self, fault: FetchFault) -> None:
        """Count a file that could not be fetched."""


class Silent:
    """Progress that shows nothing."""

    def start(self, files: int, size: int, there: int) -> None: ...

    def advance(self, size: int) -> None: ...

    def done(self, wanted: FileToFetch) -> None: ...

    def failed(self, fault: FetchFault) -> None: ...


class FetchError(Exception):
    """The server does not deliver a file, and another try would not help."""

    def __init__(self, kind: FetchFaultKind, message: str) -> None:
        super().__init__(message)
        self.kind: FetchFaultKind = kind


class _CutError(Exception):
    """The connection ended early, or the server asks for patience: another try may do."""


class _RangeError(_CutError):
    """The server does not continue what is here: it is fetched from its beginning."""


class _StoppedError(Exception):
    """Another file's error, or the user, ended the run."""


class Fetcher:
    """Fetches files into a directory of partial ones, and hands each over when it is complete.

    `keep` takes a finished file's path and hash; it is called from the thread that fetched it.
    """

    def __init__(
        self,
        partial: Path,
        keep: Callable[[Path, str], None],
        *,
        parallel: int = 4,
        transport: Transport | None = None,
        progress: FetchProgress | None = None,
        pause: float = PAUSE,
    ) -> None:
        self.partial, self.keep, self.parallel, self.pause = partial, keep, parallel, pause
        self.transport = transport or Transport(connections=parallel)
        self.progress = progress or Silent()
        self._stop = threading.Event()

    def fetch(self, wanted: Iterable[FileToFetch]) -> list[FetchFault]:
        """Fetch all files, in no order, and return one fault for each file that could not be fetched.

        Raises OSError if the disk cannot take a file, and LockError before anything is fetched if
        it is too small.
        """
        # One file may be asked for by several stacks; the big ones go first, so that none is left
        # alone at the end.
        files = sorted(
            {item.sha256: item for item in wanted}.values(),
            key=lambda item: (-(item.size or 0), item.url),
        )
        self.partial.mkdir(parents=True, exist_ok=True)
        size, there = (
            sum(item.size or 0 for item in files),
            sum(min(self._size(item), item.size or 0) for item in files),
        )
        self._check_room(size - there)
        self.progress.start(len(files), size, there)
        self.transport.prepare(
            [url for item in files for url in item.locations() if url.startswith("http")]
        )
        faults: list[FetchFault] = []
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="fetch") as pool:
            futures = [pool.submit(self._one, item) for item in files]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()  # nothing is left to stop unless one raised, or the user interrupts
                for future in futures:
                    future.cancel()
        raised = [
            error
            for future in done
            if (error := future.exception()) and not isinstance(error, _StoppedError)
        ]
        if raised:
            raise raised[0]
        faults = [fault for future in futures if (fault := future.result())]
        return sorted(faults, key=lambda fault: (fault.wanted.archive, fault.wanted.name))

    def _size(self, item: FileToFetch) -> int:
        try:
            return (self.partial / item.sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def _forget(self, item: FileToFetch) -> None:
        self.progress.advance(-self._size(item))
        (self.partial / item.sha256).unlink(missing_ok=True)

    def _check_room(self, size: int) -> None:
        """Raise LockError if fewer than `size` bytes are free."""
        free = shutil.disk_usage(self.partial).free
        if size > free:
            raise LockError(
                f"{size / 1e6:.0f} MB are to be fetched, and {free / 1e6:.0f} MB are free",
                file=self.partial,
                remedy="make room there, or name a directory on another file system",
            )

    def _one(self, item: FileToFetch) -> FetchFault | None:
        reasons = []
        for url in item.locations():
            try:
                self._file(replace(item, url=url))
            except FetchError as fault:
                reasons.append(f"{fault} ({masked(url)})")
                # Only these two can differ at the other address; a server that refuses or is down
                # is reported.
                kind = fault.kind
                if kind not in ("vanished", "altered"):
                    break
            else:
                self.progress.done(item)
                return None
        refused = FetchFault(kind, item, "; ".join(reasons))
        self.progress.failed(refused)
        return refused

    def _file(self, item: FileToFetch) -> None:
        path = self.partial / item.sha256
        left, again = TRIES, False
        while True:
            had = self._size(item)
            try:
                got = self._pass(item, path)
            except _CutError as cut:
                if isinstance(cut, _RangeError):
                    self._forget(item)
                # A try that brought a block does not count: a slow server may need many
                # connections.
                moved = self._size(item) - had
                left = TRIES if moved >= BLOCK else left - 1
                if left <= 0:
                    raise FetchError(
                        "unreachable", f"{cut}, after {TRIES} tries; what came is kept, run again"
                    ) from cut
                if self._stop.wait(0 if moved >= BLOCK else self.pause * 2 ** (TRIES - left - 1)):
                    raise _StoppedError from None
                continue
            if got == item.sha256:
                self.keep(path, item.sha256)
                return
            # The bytes are complete and wrong: nothing of them can be continued.
            self._forget(item)
            if not had or again:
                raise FetchError(
                    "altered", f"expected SHA-256 {item.sha256}, the archive gives {got}"
                )
            again = True  # what an earlier run had left of it may have been the fault

    def _pass(self, item: FileToFetch, path: Path) -> str:
        """Fetch the rest of the file, from its current size. Return the SHA-256 of the complete file."""
        if item.size is not None and self._size(item) > item.size:
            path.unlink()
        # Append mode, so that bytes of an interrupted run are never overwritten; they are hashed
        # first.
        with path.open("a+b") as out:
            hasher = hashlib.sha256()
            out.seek(0)
            while block := out.read(BLOCK):
                hasher.update(block)
            have, whole = out.tell(), item.size
            # Without a size, only the hash shows that nothing is missing.
            if (hasher.hexdigest() != item.sha256) if whole is None else (have < whole):
                with _body(self.transport, item, have) as (start, length, blocks):
                    # The server ignored the range and sends the file from its beginning.
                    if start != have:
                        out.truncate(0)
                        self.progress.advance(-have)
                        have, hasher = 0, hashlib.sha256()
                    if whole is None and length is not None:
                        whole = have + length
                    elif length is not None and have + length != whole:
                        raise FetchError(
                            "altered", f"expected {whole} bytes, the archive has {have + length}"
                        )
                    for block in blocks:
                        if self._stop.is_set():
                            raise _StoppedError
                        have += len(block)
                        if whole is not None and have > whole:
                            raise FetchError(
                                "altered", f"expected {whole} bytes, the archive gives more"
                            )
                        out.write(block)
                        hasher.update(block)
                        self.progress.advance(len(block))
                if whole is not None and have < whole:
                    if length is not None or urlsplit(item.url).scheme in ("http", "https"):
                        raise _CutError(f"the connection ended after {have} of {whole} bytes")
                    raise FetchError("altered", f"expected {whole} bytes, the archive has {have}")
            # Synced before it gets its name in the store: a power cut must not leave a short file
            # under a hash.
            out.flush()
            os.fsync(out.fileno())
        return hasher.hexdigest()


def read_small(url: str, limit: int, transport: Transport) -> bytes | None:
    """Return a file of at most `limit` bytes; None if there is none. Raises FetchError."""
    item = FileToFetch("", None, url, url, version="", archive="")
    for left in reversed(range(TRIES)):
        data = b""
        try:
            with _body(transport, item) as (_, length, blocks):
                for block in blocks:
                    data += block
                    if len(data) > limit:
                        raise FetchError("refused", f"it has more than {limit} bytes")
            if length is not None and len(data) < length:
                raise _CutError(f"the connection ended after {len(data)} of {length} bytes")
        except FetchError as fault:
            if fault.kind == "vanished":
                return None
            raise
        except _CutError as cut:
            if not left:
                raise FetchError("unreachable", f"{cut}, after {TRIES} tries") from cut
        else:
            return data
    return None


def address(base: str, path: str) -> str:
    """Return the address of the file at `path` below the archive at `base`."""
    return f"{base.rstrip('/')}/{quote(path, safe='/~+:')}"


@contextmanager
def _body(
    transport: Transport, item: FileToFetch, have: int = 0
) -> Iterator[tuple[int, int | None, Iterator[bytes]]]:
    """Return the offset at which the answer begins, its announced size, and its blocks."""
    if urlsplit(item.url).scheme in ("file", "copy"):
        with _local(item) as source:
            left = os.fstat(source.fileno()).st_size - have
            source.seek(have)
            yield have, max(left, -have), iter(lambda: source.read(BLOCK), b"")
        return
    try:
        answer = transport.get(item.url, {"Range": f"bytes={have}-"} if have else {})
    except HTTPError as problem:
        raise _CutError(f"the server cannot be reached: {_why(problem)}") from problem
    try:
        length = answer.headers.get("Content-Length", "")
        size = int(length) if length.isdigit() else None
        if answer.status == 206 and have:
            reported = re.match(
                r"bytes (\d+)-\d*/(\d+|\*)", answer.headers.get("Content-Range", "")
            )
            if reported is None or int(reported.group(1)) != have:
                raise _RangeError("the server answers another range than was asked for")
            if item.size and reported.group(2) not in ("*", str(item.size)):
                raise FetchError(
                    "altered",
                    f"expected {item.size} bytes, the archive has {reported.group(2)}",
                )
            start = have
        elif answer.status == 200:
            start = 0
        elif answer.status == 416:
            raise _RangeError("the server has no more of it than is here")
        elif answer.status in (404, 410):
            raise _vanished(item)
        elif answer.status in (401, 403, 407):
            raise FetchError(
                "refused", f"the server answers {answer.status} {answer.reason or ''}".rstrip()
            )
        elif answer.status in (408, 425, 429) or answer.status >= 500:
            raise _CutError(f"the server answers {answer.status} {answer.reason or ''}".rstrip())
        else:
            raise FetchError(
                "refused", f"the server answers {answer.status} {answer.reason or ''}".rstrip()
            )
        yield start, size, _blocks(answer)
    finally:
        answer.close()


@contextmanager
def _local(item: FileToFetch) -> Iterator[IO[bytes]]:
    path = Path(unquote(urlsplit(item.url).path))
    try:
        source = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise _vanished(item) from None
    except OSError as problem:
        raise FetchError("refused", f"it cannot be read: {problem.strerror}") from problem
    with source:
        yield source


def _vanished(item: FileToFetch) -> FetchError:
    size = "" if item.size is None else f"{item.size} bytes with "
    return FetchError(
        "vanished", f"expected {size}SHA-256 {item.sha256}, the archive has no such file"
    )


def _blocks(answer: object) -> Iterator[bytes]:
    """Yield the blocks of the body. An early end raises an error, because the file's size is known."""
    try:
        while block := answer.read1(BLOCK):  # type: ignore[attr-defined]
            yield block
    except HTTPError as problem:
        raise _CutError(f"the connection broke: {_why(problem)}") from problem
    except OSError as problem:
        # This machine's disk, not the connection: another try would fail in the same way.
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        raise _CutError(f"the connection broke: {problem}") from problem


def _why(problem: BaseException) -> str:
    """Return the innermost reason on one line, without the address, which may hold a password."""
    inner = getattr(problem, "reason", None) or problem
    return re.sub(
        r"^<[^>]*>:\s*|HTTPS?Connection(?:Pool)?\([^)]*\):\s*", "", str(inner)
    ).splitlines()[0]
