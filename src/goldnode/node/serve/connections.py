"""Connections of the diagnostics endpoint: one loop serves all sockets, so that a slow client
delays no other one.

A client costs no thread: the loop reads its request and writes its answer as far as the socket
allows. Only the content of an answer is computed in a thread, at most one for each path, and
everybody who waits for a path shares it. A client has :data:`PATIENCE` seconds in all. Where all
:data:`CROWD` connections are taken, the oldest one makes room.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import threading
import time
from collections import deque

from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, Dict, List, Optional, Tuple

    Answer = Tuple[int, str, str]  # status, content type, body

MOST = 8192  # maximum size of a request, headers included
PATIENCE = 5.0  # seconds of a connection, from its first byte to its last
SILENCE = 0.5  # seconds for the next part of a body that nobody reads
CROWD = 96  # connections; the service may have 128 files open
UNREAD = 1 << 20  # bytes of a body that are received after the answer
TEXT = "text/plain; charset=utf-8"
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
LATE: Answer = (408, TEXT, "the request took too long\n")
STUCK: Answer = (
    503,
    TEXT,
    "could_not_check: the files of the last check could not be read in time\n",
)


class EndpointRequest(NamedTuple):
    """The head of a request: it asks for a path, or `answer` is its answer already."""

    path: str
    head: bool = False  # whether to omit the body
    allow: bool = False  # whether to name the methods that there are
    answer: Optional[Answer] = None


class Connection:
    """One client: it sends a request, waits for its answer, reads it, and may still send a body."""

    def __init__(self, client: socket.socket, now: float) -> None:
        self.client = client
        self.end = now + PATIENCE
        self.until = self.end
        self.received = b""
        self.request: Optional[EndpointRequest] = None
        self.asked = 0  # number of the request for a path; 0: it does not wait for a thread
        self.unsent: Optional[List[memoryview]] = None  # None: there is no answer yet
        self.unread = UNREAD

    def complete(self) -> bool:
        """Return whether the head of the request is complete, or too long."""
        return b"\r\n\r\n" in self.received or b"\n\n" in self.received or len(self.received) > MOST

    def answer(self, status: int, kind: str, data: bytes) -> None:
        """Set the answer that is to be sent."""
        lines = [
            f"HTTP/1.1 {status} {REASONS[status]}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(data)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        lines += ["Allow: GET, HEAD"] if self.request is not None and self.request.allow else []
        self.unsent = [memoryview("\r\n".join([*lines, "", ""]).encode())]
        if data and not (self.request is not None and self.request.head):
            self.unsent.append(memoryview(data))


class Loop:
    """Serves connections with the functions that parse a request and compute the answer of a path."""

    def __init__(
        self,
        listening: socket.socket,
        parse: Callable[[bytes], EndpointRequest],
        compute: Callable[[str], Answer],
    ) -> None:
        self._listening, self._parse, self._compute = listening, parse, compute
        self._open: Dict[socket.socket, Connection] = {}  # the oldest one first
        self._selector = selectors.DefaultSelector()
        self._requests = 0  # requests for a path until now
        self._computing: Dict[str, int] = {}  # path -> the last request that its thread answers
        self._computed: Deque[Tuple[str, int, str, bytes]] = deque()
        # A thread writes to it when an answer is there.
        self._awake, self._wake = socket.socketpair()
        self._awake.setblocking(False)
        self._wake.setblocking(False)

    def run(self, idle: float) -> None:
        """Serve until no client has connected for `idle` seconds and none is left."""
        self._listening.setblocking(False)
        try:
            self._selector.register(self._listening, selectors.EVENT_READ)
            self._selector.register(self._awake, selectors.EVENT_READ)
            last = time.monotonic()
            while self._open or time.monotonic() < last + idle:
                ends = [connection.until for connection in self._open.values()] or [last + idle]
                for key, _ in self._selector.select(max(0.0, min(ends) - time.monotonic())):
                    if key.fileobj is self._listening:
                        self._accept()
                        last = time.monotonic()
                    elif key.fileobj is self._awake:
                        self._take()
                    elif key.fileobj in self._open:  # it may have made room for another one
                        self._serve(self._open[key.fileobj])
                self._expire()
        finally:
            for connection in list(self._open.values()):
                self._close(connection)
            self._selector.close()
            self._awake.close()
            self._wake.close()

    def _accept(self) -> None:
        """Accept the clients that wait."""
        while True:
            try:
                client, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as problem:  # the client has disconnected, or too many files are open
                print(f"goldnode-node: accept: {problem}", file=sys.stderr)
                if self._open:
                    self._close(next(iter(self._open.values())))
                time.sleep(0.01)
                return
            client.setblocking(False)
            self._open[client] = connection = Connection(client, time.monotonic())
            self._selector.register(client, selectors.EVENT_READ)
            if len(self._open) > CROWD:
                self._close(next(iter(self._open.values())))
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        """Receive or send what is possible without waiting."""
        try:
            if connection.unsent is None:
                self._receive(connection)
            elif connection.unsent:
                self._send(connection)
            else:
                self._drain(connection)
        except BlockingIOError:
            pass
        except OSError:  # the client has disconnected
            self._close(connection)

    def _receive(self, connection: Connection) -> None:
        """Receive the head of a request, and see to its answer once it is complete."""
        while not connection.complete():
            more = connection.client.recv(4096)
            if not more:
                break
            connection.received += more
        connection.request = request = self._parse(connection.received)
        connection.received = b""
        if request.answer is not None:
            status, kind, body = request.answer
            self._answer(connection, status, kind, body.encode())
            return
        self._selector.unregister(connection.client)  # nothing to do until there is an answer
        self._requests += 1
        connection.asked = self._requests
        self._start(request.path)

    def _waiting(self, path: str) -> List[Connection]:
        """Return who waits for the answer of a path."""
        return [
            one
            for one in self._open.values()
            if one.asked and one.request and one.request.path == path
        ]

    def _start(self, path: str) -> None:
        """Compute the answer of a path if someone waits for it, unless a thread does already."""
        if path not in self._computing and self._waiting(path):
            self._computing[path] = self._requests
            threading.Thread(target=self._work, args=(path,), daemon=True).start()

    def _work(self, path: str) -> None:
        status, kind, body = self._compute(path)
        self._computed.append((path, status, kind, body.encode("utf-8", "replace")))
        # The buffer may be full of such bytes already, or the loop has ended.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _take(self) -> None:
        """Send the answers that have been computed to who had asked before."""
        self._awake.recv(4096)
        while self._computed:
            path, status, kind, data = self._computed.popleft()
            last = self._computing.pop(path)
            for connection in self._waiting(path):
                if connection.asked <= last:
                    self._answer(connection, status, kind, data)
            self._start(path)

    def _answer(self, connection: Connection, status: int, kind: str, data: bytes) -> None:
        """Begin to send an answer."""
        if connection.asked:
            connection.asked = 0
            self._selector.register(connection.client, selectors.EVENT_READ)
        connection.answer(status, kind, data)
        self._selector.modify(connection.client, selectors.EVENT_WRITE)
        self._serve(connection)

    def _send(self, connection: Connection) -> None:
        """Send the rest of an answer."""
        assert connection.unsent is not None  # noqa: S101 - of those who have one
        while connection.unsent:
            part = connection.unsent[0]
            connection.unsent[0] = part[connection.client.send(part) :]
            if not connection.unsent[0]:
                del connection.unsent[0]
        # Receive the rest of the request. Otherwise the kernel would reset the connection before
        # the client has read the answer.
        connection.client.shutdown(socket.SHUT_WR)
        connection.until = min(connection.end, time.monotonic() + SILENCE)
        self._selector.modify(connection.client, selectors.EVENT_READ)

    def _drain(self, connection: Connection) -> None:
        """Receive what nobody reads, until the client closes or it is too much."""
        more = connection.client.recv(65536)
        connection.unread -= len(more)
        connection.until = min(connection.end, time.monotonic() + SILENCE)
        if not more or connection.unread < 0:
            self._close(connection)

    def _expire(self) -> None:
        """End the connections whose time is over; one without an answer gets the reason."""
        now = time.monotonic()
        for connection in [one for one in self._open.values() if one.until <= now]:
            if connection.unsent is not None:
                self._close(connection)
                continue
            status, kind, body = STUCK if connection.asked else LATE
            connection.end = connection.until = now + SILENCE
            self._answer(connection, status, kind, body.encode())

    def _close(self, connection: Connection) -> None:
        if self._open.pop(connection.client, None) is None:
            return
        if not connection.asked:  # who waits for a thread is not registered
            self._selector.unregister(connection.client)
        connection.client.close()
