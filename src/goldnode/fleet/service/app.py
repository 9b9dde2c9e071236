"""The lock service as an ASGI application: FleetLock's two endpoints, health, and metrics.

FleetLock: https://coreos.github.io/zincati/development/fleetlock/protocol/. A client posts its id
and its group with the header `fleet-lock-protocol: true`; status 200 is yes, any other one is no,
with `kind` and `value`. The service also reads what other clients leave out: `rollout`, `digest`,
`boot_id`, `wants`, and a report of the node about itself (`verdict`, `software`, `hardware`,
`fell_back_from`, `not_applied`). With `granted_only` a node gets the leave that the controller of
its rollout has granted, and no other. `/v1/report` takes a report alone.

A node has its slot until this service says that it has not, however often it asks: both requests
may be repeated.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.rollout.model import Answer, NodeObservation
from goldnode.fleet.service.batch import WAITING, BatchWriter, SharedRequest
from goldnode.fleet.service.bodies import BodyReader, RefusalResponse, RefusedRequestError
from goldnode.fleet.service.metrics import ServiceCounters, render
from goldnode.fleet.store import grants, log
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import (
    GrantRefusedError,
    RefusalKind,
    StoreError,
    StoreUnavailableError,
)
from goldnode.fleet.store.grants import GivenBack, Leave, LeaveRequest
from goldnode.fleet.store.status import measured
from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import clean

if TYPE_CHECKING:
    from goldnode.fleet.service.captures import CaptureReceiver

LOGGER = logging.getLogger("goldnode.fleet")
_BODY = 64 * 1024  # bytes
_PATIENCE = 10.0  # seconds for a body
# FleetLock allows letters, digits, full stop and hyphen. Names of classes also have underscores.
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,255}")
TEXTS = ("rollout", "digest", "boot_id", "wants", "verdict", "fell_back_from")
LISTS = ("software", "hardware")
_CODES = 64  # findings of a report
_NAME = 255  # letters of a name or code
_LONGEST = 1000  # letters of the reason why nothing could be applied
_TICK = 10.0  # seconds between two searches for overdue nodes
_SEAL = 60.0  # seconds between two heads of the log

# Kind of a refusal -> HTTP status. 423: may be granted later without anybody's change of the request.
_STATUS = {
    RefusalKind.UNKNOWN_NODE: 404,
    RefusalKind.UNKNOWN_GROUP: 400,
    RefusalKind.FULL: 423,
    RefusalKind.FAILED_BUFFER: 423,
    RefusalKind.FROZEN: 423,
}


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a service. With `certificates`, a node may ask only for itself."""

    certificates: bool = False
    signing_key: Path | None = None
    data: Path | None = None  # of captures; None: they are not accepted
    clock: Callable[[], float] = time.time
    tick: float = _TICK


class LockService:
    """The endpoints of one service, and its work in the background."""

    def __init__(self, store: StoreDatabase, settings: ServiceSettings) -> None:
        self.store = store
        self.settings = settings
        self.counters = ServiceCounters()
        self.writer = BatchWriter(store)
        self._bodies = BodyReader(_BODY, _PATIENCE, WAITING)
        self._measuring = asyncio.Semaphore(2)  # of the threads that requests for locks need too
        self._sealed_at = 0.0
        self.captures: CaptureReceiver | None = None
        if settings.data is not None:
            # An installation without the extra `report` serves without captures.
            from goldnode.fleet.service.captures import CaptureReceiver, CaptureSettings

            self.captures = CaptureReceiver(
                CaptureSettings(settings.data, settings.certificates, settings.clock)
            )

    def app(self) -> Starlette:
        """Return the application."""
        captures = [Route("/v1/captures", self.received, methods=["POST"])] if self.captures else []
        return Starlette(
            routes=[
                *captures,
                Route("/v1/pre-reboot", self.pre_reboot, methods=["POST"]),
                Route("/v1/steady-state", self.steady_state, methods=["POST"]),
                Route("/v1/report", self.report, methods=["POST"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )

    async def pre_reboot(self, request: Request) -> Response:
        """Grant leave to a node, or refuse it."""
        return await self._answer(request, grants.grant_all, _of_leave)

    async def steady_state(self, request: Request) -> Response:
        """End the leave of a node."""
        return await self._answer(request, grants.give_back_all, _of_return)

    async def report(self, request: Request) -> Response:
        """Record what a node reports about itself. It changes no leave."""
        return await self._answer(request, grants.observe_all, lambda node: {"node": node.name})

    async def received(self, request: Request) -> Response:
        """Take the capture and verdict of a node."""
        assert self.captures is not None  # noqa: S101 - the route exists only then
        began = time.monotonic()
        response, kind = await self.captures.receive(request)
        self.counters.count(request.url.path, response.status_code, kind, time.monotonic() - began)
        return response

    async def health(self, request: Request) -> Response:
        """Answer 200 if the store can be read, and 503 if it cannot."""
        try:
            await asyncio.to_thread(
                self._read, lambda connection: connection.exec_driver_sql("SELECT 1")
            )
        except GoldnodeError as problem:
            return _error(503, "store_unavailable", str(problem))
        return JSONResponse({"store": "up"})

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics, also while the store is away."""
        try:
            async with self._measuring:
                readings = await asyncio.to_thread(self._read, measured)
        except GoldnodeError as problem:
            LOGGER.warning("metrics without the store: %s", problem)
            readings = None
        inbox = None if self.captures is None else self.captures.inbox
        size = None if inbox is None else (inbox.reports, inbox.bytes)
        return PlainTextResponse(
            render(self.counters, readings, size),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )

    async def _answer(
        self,
        request: Request,
        together: Callable[[Connection, Sequence[LeaveRequest]], Sequence[Any]],
        content: Callable[[Any], dict[str, Any]],
    ) -> Response:
        began, kind = time.monotonic(), ""
        try:
            async with self._bodies.read(request) as body:
                wanted = self._request(request, body)
            answer = await self.writer.submit(SharedRequest(together, wanted))
            response: Response = JSONResponse(content(answer))
        except RefusedRequestError as problem:
            kind = problem.kind
            response = RefusalResponse(problem)
        except GrantRefusedError as problem:
            kind = problem.kind.value
            response = _error(_STATUS.get(problem.kind, 409), kind, str(problem))
        except StoreError as problem:
            kind = (
                "store_unavailable" if isinstance(problem, StoreUnavailableError) else "store_error"
            )
            LOGGER.error("%s: %s", request.url.path, problem)
            response = _error(503, kind, str(problem))
        self.counters.count(request.url.path, response.status_code, kind, time.monotonic() - began)
        return response

    def _request(self, request: Request, body: bytes) -> LeaveRequest:
        """Return the request of a node. Raise RefusedRequestError for one that is not FleetLock, or is for another node."""
        if request.headers.get("fleet-lock-protocol") != "true":
            raise RefusedRequestError(
                400, "invalid_protocol_header", "the header fleet-lock-protocol is not true"
            )
        try:
            content = json.loads(body)
            params = content["client_params"]
            name, group = params["id"], params["group"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RefusedRequestError(
                400,
                "invalid_client_identity",
                "the body is no JSON object with client_params.id and .group",
            ) from None
        if not isinstance(name, str) or not name or len(name) > _NAME or not _storable(name):
            raise RefusedRequestError(400, "invalid_client_identity", "client_params.id is no name")
        if not isinstance(group, str) or not _GROUP.fullmatch(group):
            raise RefusedRequestError(
                400, "invalid_client_identity", "client_params.group is no name of a group"
            )
        name = clean(name)
        given = {**content, **params}
        more = {key: _text(given, key) for key in (*TEXTS, "not_applied")}
        if self.settings.certificates and name not in request.scope["state"].get("peer", ()):
            raise RefusedRequestError(
                403,
                "wrong_node_certificate",
                f"the certificate of this connection is not for {name}",
            )
        now = self.settings.clock()
        own = {key: more[key] for key in ("rollout", "digest", "boot_id", "wants")}
        return LeaveRequest(
            name,
            group,
            now,
            **own,
            report=_report(name, now, given, more),
            granted_only=given.get("granted_only") is True,
        )

    def _read(self, work: Callable[[Connection], Any]) -> Any:
        with self.store.read() as connection:
            return work(connection)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.writer.run()), asyncio.create_task(self._background())]
        if self.captures:
            tasks.append(asyncio.create_task(self.captures.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def _background(self) -> None:
        """Move overdue nodes to the failed buffer, and seal the log. Errors are logged and tried again."""
        while True:
            try:
                await self.tick()
            except GoldnodeError as problem:
                LOGGER.error("cannot search for overdue nodes: %s", problem)
            # Without this, no node would be overdue any more, and no line would name why.
            except Exception:
                LOGGER.exception("cannot search for overdue nodes")
            await asyncio.sleep(self.settings.tick)

    async def tick(self) -> None:
        """Do the background's work once."""
        now = self.settings.clock()
        late = await self.writer.submit(lambda connection: grants.overdue(connection, now))
        for name in late:
            LOGGER.warning(
                "%s is overdue: it is in the failed buffer until a person releases it with "
                "`goldnode fleet release %s --reason REASON`",
                name,
                name,
            )
        if abs(now - self._sealed_at) >= _SEAL:  # also after a clock was set back
            await self.writer.submit(
                lambda connection: log.seal(connection, now, self.settings.signing_key)
            )
            self._sealed_at = now


def _of_leave(leave: Leave) -> dict[str, Any]:
    """Return the content of the answer to a node that gets leave."""
    return {
        "node": leave.node,
        "owner": leave.owner,
        "epoch": leave.epoch,
        "deadline": leave.deadline,
        **({} if leave.phase is None else {"phase": leave.phase, "target": leave.target}),
    }


def _of_return(found: GivenBack) -> dict[str, Any]:
    """Return the content of the answer to a node that is back. Raise the refusal of one that keeps its leave."""
    if found.refusal is not None:
        raise found.refusal
    return {"released": found.released, **({} if found.phase is None else {"phase": found.phase})}


def _storable(text: str) -> bool:
    """Return whether both databases can store a text: JSON has halves of letters, and PostgreSQL no zero byte."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _text(given: Mapping[str, Any], key: str) -> str | None:
    """Return an optional text of a request, cleaned. Raise RefusedRequestError for anything else."""
    value, longest = given.get(key), _LONGEST if key == "not_applied" else _NAME
    if value is not None and (
        not isinstance(value, str) or not value or len(value) > longest or not _storable(value)
    ):
        raise RefusedRequestError(400, "invalid_request", f"{key} is no text")
    return None if value is None else clean(value)[:longest]


def _report(
    name: str, now: float, given: Mapping[str, Any], texts: Mapping[str, str | None]
) -> NodeObservation | None:
    """Return what a node reports of itself; None if it reports nothing. Raise RefusedRequestError for what is no report."""
    lists: dict[str, tuple[str, ...]] = {}
    for key in LISTS:
        value = given.get(key) or []
        right = isinstance(value, list) and len(value) <= _CODES
        if not right or not all(
            isinstance(code, str) and 0 < len(code) <= _NAME and _storable(code) for code in value
        ):
            raise RefusedRequestError(400, "invalid_request", f"{key} is no list of codes")
        lists[key] = tuple(clean(code)[:_NAME] for code in value)
    try:
        verdict = optional(Answer, texts["verdict"])
    except ValueError:
        raise RefusedRequestError(
            400, "invalid_request", "verdict is not pass, fail or unknown"
        ) from None
    own = {key: texts[key] for key in ("fell_back_from", "not_applied")}
    if verdict is None and not any((*lists.values(), *own.values())):
        return None
    return NodeObservation(
        name,
        now,
        verdict=verdict,
        software=lists["software"],
        hardware=lists["hardware"],
        fell_back_from=own["fell_back_from"],
        not_applied=own["not_applied"],
    )


def _error(status_code: int, kind: str, value: str) -> JSONResponse:
    headers = {"Retry-After": "10"} if status_code in (423, 503) else None
    return JSONResponse({"kind": kind, "value": value}, status_code, headers=headers)


async def _http_error(request: Request, problem: Exception) -> Response:
    code = problem.status_code if isinstance(problem, HTTPException) else 500
    known = {404: "unknown_endpoint", 405: "invalid_method"}
    where = clean(f"{request.method} {request.url.path}")
    return _error(code, known.get(code, "invalid_request"), f"{where}: no such endpoint")
