"""Reports in files: captures, verdicts beside them, and the inbox of the data directory."""

from __future__ import annotations

import contextlib
import gc
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.anonymous import FleetNames
from goldnode.fleet.ingest.arrivals import CaptureArrivals
from goldnode.fleet.ingest.inbox import INBOX
from goldnode.fleet.ingest.precision import EXACT
from goldnode.fleet.ingest.refused import AGAIN, RefusedReportError
from goldnode.fleet.ingest.report import (
    INBOX_SOURCE,
    VERDICT,
    NodeReport,
    ReportOrigin,
    load,
    too_large,
)
from goldnode.fleet.ingest.tables import PartName
from goldnode.fleet.ingest.text import clean
from goldnode.fleet.ingest.write import writer
from goldnode.node.ground.verdict_files import LARGEST_REPORT

REFUSED = "refused"  # directory beside the inbox: reports that no ingest can store
_MOST_REFUSED = 1_000  # files in it
_MOST_REFUSED_BYTES = 256 << 20  # of all of them; the oldest go first
_OBJECTS = 10_000  # objects with references that are new before Python looks for cycles
_MORE = 64 << 10  # bytes of a file that has grown since its size was read


@dataclass(frozen=True)
class RefusedFile:
    """A file that was not stored, and why."""

    file: Path
    message: str
    remedy: str | None


@dataclass
class IngestResult:
    """Outcome of an ingest."""

    stored: int = 0
    results: int = 0  # canary results that were stored
    known: int = 0  # captures and results that were stored before
    refused: list[RefusedFile] = field(default_factory=list)
    parts: list[PartName] = field(default_factory=list)


@dataclass(frozen=True)
class IngestRequest:
    """Files or directories to ingest; none: the inbox. `received` None: as the captures' own times."""

    data: Path
    sources: tuple[Path, ...] = ()
    received: datetime | None = None
    class_: str | None = None
    anonymous: bool = False
    precision: str = EXACT  # or STATED
    # Called with the reports whose rows have names, before their files leave the inbox: at least once for each.
    observe: Callable[[Sequence[NodeReport]], None] = lambda reports: None


def ingest(request: IngestRequest, now: datetime | None = None) -> IngestResult:
    """Store the reports of all files. A file that cannot be stored does not end the ingest of the others.

    Files of the inbox are removed once their rows have names. Those that no ingest can store move
    to `refused`.
    """
    now = now or datetime.now(UTC)
    inbox = not request.sources
    names = FleetNames(request.data) if request.anonymous else None
    origin = ReportOrigin(INBOX_SOURCE if inbox else "directory", class_=request.class_)
    result, done = IngestResult(), []
    observed: list[NodeReport] = []
    with _rare_collections(), writer(request.data, request.received, request.precision) as out:
        arrivals = CaptureArrivals(out, origin, names, now)
        named = _files(request.sources or (request.data / INBOX,), inbox)
        # Texts: paths as objects take as long as a report by change.
        for file in sorted(named, key=lambda name: name.split(os.sep)):  # noqa: PTH206 - as above
            try:
                # A report of the inbox has its verdict in it.
                beside = None if inbox else _verdict(file)
                arrival = arrivals.add(read(file), beside, os.path.basename(file))  # noqa: PTH119 - a text
            except RefusedReportError as problem:
                if inbox and not Path(file).exists():  # another ingest has just stored it
                    continue
                result.refused.append(RefusedFile(Path(file), problem.message, problem.remedy))
                continue
            # Some are ValueErrors: of the files that are written, not of this report.
            except pa.ArrowException:
                raise
            except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
                # One report of an unforeseen form must not stop the others, nor stay in the inbox for ever.
                why = clean(f"cannot be read: {type(problem).__name__}: {problem}"[:300])
                result.refused.append(RefusedFile(Path(file), why, AGAIN))
                continue
            done.append(file)
            result.known += not arrival.added
            if arrival.report is None:
                result.results += arrival.added
            else:
                observed.append(arrival.report)
                result.stored += arrival.added
        parts = out.parts  # filled as the block ends
    result.parts = sorted(parts)
    request.observe(observed)
    if inbox:
        _empty(request.data, done, result.refused)
    return result


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cycles of objects less often: thousands of objects of each capture are in none."""
    before = gc.get_threshold()
    if before[0]:  # 0: the collector is off
        gc.set_threshold(max(_OBJECTS, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _empty(data: Path, done: list[str], refused: list[RefusedFile]) -> None:
    """Remove what is stored from the inbox, and move what is refused. Of that, the newest files are left."""
    for name in done:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108 - thousands a second
    if not refused:
        return
    aside = data / REFUSED
    aside.mkdir(exist_ok=True)
    for refusal in refused:
        with contextlib.suppress(FileNotFoundError):
            refusal.file.replace(aside / refusal.file.name)
    empty = []
    for file in aside.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another ingest removes old ones too
            state = file.stat()
            empty.append((state.st_mtime, file.name, state.st_size, file))
    total = 0
    for number, (_, _, size, file) in enumerate(sorted(empty, reverse=True)):
        total += size
        if number >= _MOST_REFUSED or (total > _MOST_REFUSED_BYTES and number):
            file.unlink(missing_ok=True)


def _files(sources: tuple[Path, ...], inbox: bool) -> Iterator[str]:
    """Yield the files of captures and reports. A file that is named is one of them."""
    for source in sources:
        if source.is_dir():
            for folder, folders, names in os.walk(source):
                folders[:] = [name for name in folders if not name.startswith(".")]
                yield from (
                    os.path.join(folder, name)  # noqa: PTH118 - thousands a second
                    for name in names
                    if name.endswith(".json") and not name.startswith(".") and not is_verdict(name)
                )
        elif source.exists():
            yield str(source)
        elif not inbox:
            raise GoldnodeError(
                "there is no such file or directory", file=source, remedy="correct its name"
            )


def is_verdict(name: str) -> bool:
    """Return whether a file is, by its name, the verdict of a capture beside it."""
    return name == "verdict.json" or name.endswith(".verdict.json")


def _verdict(file: str) -> Mapping[str, Any] | None:
    """Return the verdict in the file beside a capture; None without such a file."""
    folder, name = os.path.split(file)
    if name == "capture.json":
        beside = "verdict.json"
    else:
        beside = f"{name.removesuffix('.json').removesuffix('.capture')}.verdict.json"
    named = os.path.join(folder, beside)  # noqa: PTH118 - thousands a second
    if not os.path.exists(named):  # noqa: PTH110 - as above
        return None
    verdict = load(read(named))
    if verdict.get("schema") != VERDICT:
        raise RefusedReportError(
            f"{beside} beside it is not of schema {VERDICT}", remedy="correct its name"
        )
    return verdict


def read(file: str | Path) -> bytes:
    """Return the content of a regular file. Raise RefusedReportError for any other, and for a large one."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        raise RefusedReportError(
            f"cannot be read: {problem.strerror}", remedy="correct who may read it"
        ) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedReportError("not a regular file", remedy="remove it from the directory")
        if status.st_size > LARGEST_REPORT:
            raise too_large()
        data = os.read(handle, status.st_size + 1)
        # A larger buffer for what is mostly the end of the file would be memory that the kernel clears for each one.
        while len(data) <= LARGEST_REPORT and (more := os.read(handle, _MORE)):
            data += more
        return data
    finally:
        os.close(handle)
