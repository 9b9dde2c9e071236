"""Captures over HTTP: `POST /v1/captures` puts the report of a node into the inbox of the fleet's data.

The body is a report (schema goldnode.node-report/1), as `goldnode-node report` prints it, the
changes of one (schema goldnode.node-changes/1), as `goldnode-node report --to` sends it, or a
result of the canary suite (schema goldnode.canary/1), as `goldnode canary run` writes it. The
answer 202 says that it is on disk; an ingest in a process of its own stores it within a minute.
With certificates, a node may report only itself. Needs the extra `report`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from goldnode.fleet.ingest import bases, results
from goldnode.fleet.ingest.arrivals import whole_report
from goldnode.fleet.ingest.inbox import INBOX, content_of, put_document
from goldnode.fleet.ingest.quick import QuickBases, QuickReport, quick
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import ReportOrigin, load, report_of
from goldnode.fleet.ingest.rows import Group
from goldnode.fleet.ingest.wire import changes_of, document_of
from goldnode.fleet.service.bodies import BodyReader, RefusalResponse, RefusedRequestError
from goldnode.node.ground.changes import BASE_HEADER, CHANGES
from goldnode.node.ground.verdict_files import LARGEST_REPORT, REPORT

LOGGER = logging.getLogger("goldnode.fleet")
# Reports that are parsed at once: one takes many times its bytes, and leaves a thread to the requests for locks.
_TOGETHER = 4
_ARRIVING = 512  # reports on their way
_WAITING = 256  # complete reports that wait for their turn
_PATIENCE = 30.0  # seconds for one body
_MOST = 100_000  # reports in the inbox; ingest takes 500 a second
_MOST_BYTES = 8 << 30  # of them: 80 KiB a report, and less than a disk
APART = 10.0  # seconds between two reports of one node
_PERIOD = 60.0  # seconds between two ingests


@dataclass(frozen=True)
class CaptureSettings:
    """Where captures go, and whether the certificate of a connection names its node."""

    data: Path
    certificates: bool = False
    clock: Callable[[], float] = time.time
    period: float = _PERIOD


@dataclass(frozen=True)
class InboxDocument:
    """A document for the inbox, whose node and form have been checked."""

    schema: str
    node: str
    content: bytes


@dataclass(frozen=True)
class SentBody:
    """A body as it came, and the names in the certificate of its connection. `base`: the node will send changes from it."""

    body: bytes
    encoding: str
    base: bool
    peer: Any


@dataclass(frozen=True)
class InboxSize:
    """Reports in the inbox, and their bytes."""

    reports: int = 0
    bytes: int = 0


class CaptureReceiver:
    """The endpoint, and the ingest in the background."""

    def __init__(self, settings: CaptureSettings) -> None:
        self.settings = settings
        # The site's precision is that of the ingest: here only counts whether a report can be stored.
        self._quick = QuickBases(settings.data, exact=None)
        self._bodies = BodyReader(LARGEST_REPORT, _PATIENCE, _ARRIVING)
        self._turns = asyncio.Semaphore(_TOGETHER)
        self._waiting = 0
        self._last: dict[
            tuple[str, str], float
        ] = {}  # schema and node of a document -> when it came
        self._filling = threading.Lock()
        self.inbox = InboxSize()

    async def receive(self, request: Request) -> tuple[Response, str]:
        """Store a report in the inbox, or refuse it. Return the answer, and the kind of a refusal."""
        try:
            answer = await self._received(request)
        except RefusedRequestError as problem:
            return RefusalResponse(problem), problem.kind
        return JSONResponse(answer, 202), ""

    async def _received(self, request: Request) -> dict[str, str]:
        if full := _full(self.inbox):  # before the body is read
            raise replace(full, unread=True)
        async with self._bodies.read(request) as body:
            if self._waiting >= _WAITING:
                raise RefusedRequestError(
                    503, "busy", "too many reports wait", {"Retry-After": "60"}
                )
            self._waiting += 1
            try:
                async with self._turns:
                    return await asyncio.to_thread(self._accept, _sent(request, body))
            finally:
                self._waiting -= 1

    def _accept(self, sent: SentBody) -> dict[str, str]:
        """Put a document into the inbox and return the answer. Raise RefusedRequestError."""
        now = self.settings.clock()
        try:
            body = _inflated(sent)
            document = self._document(body, sent.peer, datetime.fromtimestamp(now, UTC))
        except RefusedReportError as problem:
            raise RefusedRequestError(422, "refused_report", str(problem)) from None
        node = document.node
        self._check_peer(node, sent.peer)
        # Not after it: a clock that was set back would refuse all reports until it is there again.
        last = (document.schema, node)
        if 0 <= now - self._last.get(last, -APART) < APART:
            raise RefusedRequestError(
                429, "too_often", f"{node} has just reported", {"Retry-After": f"{APART:.0f}"}
            )
        answer = {"node": node}
        content = document.content
        # Without certificates, anyone could fill the disk under names of nodes.
        if sent.base and self.settings.certificates and document.schema == REPORT:
            with suppress(OSError):  # without a base, the node sends whole reports
                answer["base"] = bases.hold(self.settings.data, node, body)
                content = _with_base(content, answer["base"])
        self._put(content)
        if len(self._last) > _MOST:
            self._last.clear()
        self._last[last] = now
        return answer

    def _check_peer(self, node: str, peer: Any) -> None:
        """Raise RefusedRequestError for a connection whose certificate is not for the node."""
        if self.settings.certificates and node not in peer:
            why = f"the certificate of this connection is not for {node}"
            raise RefusedRequestError(403, "wrong_node_certificate", why)

    def _document(self, body: bytes, peer: Any, now: datetime) -> InboxDocument:
        """Return what is in a body. Raise as `_document` does, and RefusedRequestError for changes that need another base."""
        content = load(body)
        if content.get("schema") != CHANGES:
            return _document(content, body, now)
        changes = changes_of(content)
        self._check_peer(changes.node, peer)  # before its base is read
        origin = ReportOrigin("http")
        try:
            rows = self._quick.load(changes.node, changes.base)
            one = QuickReport(changes, body, "http", now)
            # A report that no ingest can store does not reach the disk.
            if rows is None or quick(rows, one, exact=True) is None:
                Group().add(whole_report(self.settings.data, changes, origin, now, body))
        except RefusedReportError as problem:
            raise RefusedRequestError(409, "whole_report", str(problem)) from None
        text = json.dumps(document_of(content, "http"), separators=(",", ":"))
        return InboxDocument(CHANGES, changes.node, text.encode())

    def _put(self, content: bytes) -> None:
        """Write a document into the inbox, within its limits. Raise RefusedRequestError."""
        size = len(content)
        # The place is taken before the file is written: threads share the last one.
        with self._filling:
            if full := _full(self.inbox, size):
                raise full
            self._add(1, size)
        try:
            put_document(self.settings.data, content)
        except OSError as problem:
            with self._filling:
                self._add(-1, -size)
            full_disk = problem.errno in (errno.ENOSPC, errno.EDQUOT)
            LOGGER.error("the inbox of captures cannot be written: %s", problem)
            raise RefusedRequestError(
                507 if full_disk else 503, "inbox", "the inbox cannot be written"
            ) from None

    def _add(self, reports: int, size: int) -> None:
        before = self.inbox
        self.inbox = InboxSize(max(0, before.reports + reports), max(0, before.bytes + size))

    async def run(self) -> None:
        """Store the inbox again and again, until the task is cancelled. Failures are logged."""
        while True:
            try:
                await self.ingest()
            # Without this, no report would be stored any more, and no line would name why.
            except Exception:
                LOGGER.exception("captures: the inbox could not be stored, and will be tried again")
            await asyncio.sleep(self.settings.period)

    async def ingest(self) -> None:
        """Store what is in the inbox, in another process: it would take seconds from the answers of this one."""
        await self._count()
        if not self.inbox.reports:
            return
        words = ("-m", "goldnode.cli", "fleet", "ingest", "--data", str(self.settings.data))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.terminate()  # the next ingest completes it
            await process.wait()
            raise
        for line in errors.decode("utf-8", "replace").splitlines():
            LOGGER.warning("captures: %s", line)
        if process.returncode not in (0, 1):
            LOGGER.error("captures: `goldnode fleet ingest` ended with %s", process.returncode)
        await self._count()

    async def _count(self) -> None:
        """Count what is in the inbox: other services and Ansible write into it too."""
        inbox = await asyncio.to_thread(_measured, self.settings.data / INBOX)
        with self._filling:
            self.inbox = inbox


def _sent(request: Request, body: bytes) -> SentBody:
    return SentBody(
        body,
        request.headers.get("content-encoding", ""),
        base=request.headers.get(BASE_HEADER) == "hold",
        peer=request.scope["state"].get("peer", ()),
    )


def _inflated(sent: SentBody) -> bytes:
    """Return the body without its compression. Raise RefusedReportError for what is none, or too large."""
    if sent.encoding in ("", "identity"):
        return sent.body
    if sent.encoding != "deflate":
        raise RefusedRequestError(415, "invalid_request", "Content-Encoding is not deflate")
    inflating = zlib.decompressobj()
    try:
        body = inflating.decompress(sent.body, LARGEST_REPORT)
    except zlib.error:
        raise RefusedRequestError(400, "invalid_request", "the body is not deflated") from None
    if inflating.unconsumed_tail:
        raise _too_large()
    if not inflating.eof:
        raise RefusedRequestError(400, "invalid_request", "a part of the body is missing")
    return body


def _with_base(content: bytes, digest: str) -> bytes:
    """Return the content of a file of the inbox with the name of the base that it is: it is stored whole."""
    named = {**json.loads(content), "base": digest}
    return json.dumps(named, separators=(",", ":"), sort_keys=True).encode()


def _document(document: dict[str, Any], body: bytes, now: datetime) -> InboxDocument:
    """Return the report or the canary result in a body.

    Raise RefusedReportError for what no ingest can store, and RefusedRequestError for what is too
    large for the inbox.
    """
    if document.get("schema") == results.SCHEMA:
        result = results.parse(document, body, None, now)
        return InboxDocument(results.SCHEMA, result.node, body)
    report = report_of(document, body, ReportOrigin("http"), now)
    Group().add(report)  # what no ingest can store does not reach the disk
    origin = report.origin
    stored: dict[str, Any] = {"class": report.class_, "source": "http", "engine": origin.engine}
    stored["cohort"] = origin.cohort
    stored |= {"capture": report.capture, "verdict": report.verdict, "gate": report.gate}
    try:
        content = content_of(report.node, stored)
    except ValueError:  # letters that are no ASCII take more bytes there
        raise _too_large() from None
    return InboxDocument(REPORT, report.node, content)


def _too_large() -> RefusedRequestError:
    return RefusedRequestError(
        413, "invalid_request", f"the body is longer than {LARGEST_REPORT} bytes"
    )


def _full(inbox: InboxSize, size: int = 0) -> RefusedRequestError | None:
    """Return the refusal of a report for which the inbox has no room; None if it has."""
    if inbox.reports < _MOST and inbox.bytes + size <= _MOST_BYTES:
        return None
    value = (
        f"the inbox has {inbox.reports} reports of {inbox.bytes >> 20} MiB, of {_MOST} and {_MOST_BYTES >> 20} MiB "
        "at most: the ingest does not keep up, see the log of the service"
    )
    return RefusedRequestError(503, "inbox_full", value, {"Retry-After": "60"})


def _measured(inbox: Path) -> InboxSize:
    count = total = 0
    for file in inbox.glob("*.json"):
        with suppress(FileNotFoundError):  # an ingest works beside it
            total += file.stat().st_size
            count += 1
    return InboxSize(count, total)
