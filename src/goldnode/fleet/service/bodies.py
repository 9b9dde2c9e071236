"""Bodies of requests: each has limits of size and time, and all of them together a limit of memory.

A slow client delays nobody: it holds no turn, only the bytes that it has sent. Where memory or
places run out, the body that has been on its way for longest makes room, if that is longer than a
healthy client takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

_HEALTHY = 2.0  # seconds that a body of a client that is not slow may take under load
_MEMORY = 64 << 20  # bytes of all bodies
_UNREAD = 32 << 20  # bytes of a refused body that are received, so that its client reads the answer
_PATIENCE = 5.0  # seconds for them


@dataclass
class RefusedRequestError(Exception):
    """A request that is refused, with the answer: status, kind and value."""

    status: int
    kind: str
    value: str
    headers: dict[str, str] = field(default_factory=dict)
    unread: bool = False  # whether a part of the body may still come


class RefusalResponse(JSONResponse):
    """The answer to a refused request.

    If a part of the body may still come, it is received and dropped after the answer, and then the
    connection is closed. A connection that is closed at once would be reset, and clients that send
    before they read, like Python's, would not see the answer.
    """

    def __init__(self, problem: RefusedRequestError) -> None:
        close = {"Connection": "close"} if problem.unread else {}
        content = {"kind": problem.kind, "value": problem.value}
        super().__init__(content, problem.status, headers={**problem.headers, **close})
        self._unread = problem.unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, and receive the rest of the request."""
        if not self._unread:
            await super().__call__(scope, receive, send)
            return
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await _drop(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drop(receive: Receive) -> None:
    left = _UNREAD
    while left > 0:
        message: Message = await receive()
        left -= len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return


class _Arriving:
    """A body on its way."""

    def __init__(self, limit: asyncio.Timeout, began: float) -> None:
        self.limit, self.began = limit, began
        self.size = 0


class BodyReader:
    """Reads bodies of up to `largest` bytes within `seconds`, at most `most` at a time."""

    def __init__(self, largest: int, seconds: float, most: int) -> None:
        self.largest, self.seconds, self.most = largest, seconds, most
        self.memory = 0  # bytes of all bodies, until their requests are answered
        self._arriving: dict[_Arriving, None] = {}  # the oldest one first

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a request. Raise RefusedRequestError for one that is too large or does not arrive."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.largest:
            raise self._too_large()
        if len(self._arriving) >= self.most:
            self._make_room(None)
        body = bytearray()
        try:
            async with asyncio.timeout(self.seconds) as limit:
                arriving = _Arriving(limit, asyncio.get_running_loop().time())
                self._arriving[arriving] = None
                try:
                    async for part in request.stream():
                        self._add(arriving, len(part))
                        body += part
                finally:
                    self._arriving.pop(arriving, None)
        except TimeoutError:
            self.memory -= arriving.size
            why = "the body did not arrive"
            raise RefusedRequestError(
                408, "invalid_request", why, {"Connection": "close"}
            ) from None
        except ClientDisconnect:  # nobody reads this answer
            self.memory -= arriving.size
            raise RefusedRequestError(408, "invalid_request", "the client has left") from None
        except BaseException:
            self.memory -= arriving.size
            raise
        content = bytes(body)
        del body
        try:
            yield content
        finally:
            self.memory -= arriving.size

    def _add(self, arriving: _Arriving, size: int) -> None:
        """Count a part of a body. Raise RefusedRequestError if there is no room for it."""
        arriving.size += size
        self.memory += size
        if arriving.size > self.largest:
            raise self._too_large()
        while self.memory > _MEMORY:
            self._make_room(arriving)

    def _make_room(self, arriving: _Arriving | None) -> None:
        """End the oldest body on its way. Raise RefusedRequestError if no other one is slow."""
        oldest = next(iter(self._arriving), None)
        now = asyncio.get_running_loop().time()
        if oldest is None or oldest is arriving or now - oldest.began < _HEALTHY:
            raise RefusedRequestError(
                503,
                "busy",
                "too many requests are on their way",
                {"Retry-After": "60"},
                unread=True,
            )
        del self._arriving[oldest]
        self.memory -= oldest.size
        oldest.size = 0
        oldest.limit.reschedule(now)

    def _too_large(self) -> RefusedRequestError:
        return RefusedRequestError(
            413, "invalid_request", f"the body is longer than {self.largest} bytes", unread=True
        )
