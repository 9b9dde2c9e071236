"""The lock service on real sockets, behind clients that are slow, leave, send too much or do not read."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.requests import Request
from tests.unit.fleet.service.test_captures import NOW, report
from tests.unit.fleet.store.fleets import CLASS, fill

from goldnode.fleet.service import app, bodies, captures
from goldnode.fleet.service import server as http_server
from goldnode.fleet.service.server import Listen, server
from goldnode.fleet.store.database import StoreDatabase
from goldnode.node.ground.verdict_files import LARGEST_REPORT

HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nfleet-lock-protocol: true\r\n"
LOCK = HEAD.format("/v1/report") + "Content-Length: 1000\r\n\r\n"
CAPTURE = HEAD.format("/v1/captures") + "Content-Length: 1000\r\n\r\n"
CHUNKED = HEAD.format("/v1/report") + "Transfer-Encoding: chunked\r\n\r\n"
LONG = 600.0  # seconds: no limit ends a slow client while a test runs


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Limits that no slow client reaches, for a test to change before the service starts."""
    for module in (app, captures, http_server):
        monkeypatch.setattr(module, "_PATIENCE", LONG)
    monkeypatch.setattr(captures.CaptureReceiver, "run", lambda _: asyncio.Event().wait())
    monkeypatch.setattr(
        captures.CaptureSettings, "clock", staticmethod(NOW.timestamp), raising=False
    )
    return monkeypatch


class Service:
    """A running service without TLS."""

    def __init__(self, store: StoreDatabase, data: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.store, self.data = store, data
        self.slow: list[socket.socket] = []

    def start(self) -> None:
        self.running = server(self.store, Listen("127.0.0.1", self.port, data=self.data))
        self.thread = threading.Thread(target=self.running.run)
        self.thread.start()
        end = time.monotonic() + 30
        while not self.running.started and time.monotonic() < end:
            time.sleep(0.02)

    def stop(self) -> None:
        for client in self.slow:
            client.close()
        self.running.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()

    def connect(self, data: str | bytes) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        client.sendall(data.encode() if isinstance(data, str) else data)
        self.slow.append(client)
        return client

    def post(self, path: str, body: str | bytes | Iterator[bytes]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", path, body, {"fleet-lock-protocol": "true"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def works(self, node: str) -> None:
        """Assert that healthy clients get their answers."""
        lock = json.dumps({"client_params": {"id": "n00", "group": CLASS}})
        assert self.post("/v1/pre-reboot", lock) == 200
        assert self.post("/v1/captures", report(node)) in (202, 429)
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.fixture
def service(tmp_path: Path, migrated: Path, patience: pytest.MonkeyPatch) -> Iterator[Service]:
    store = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    fill(store)
    found = Service(store, tmp_path / "data")
    yield found
    found.stop()
    store.close()


def until_closed(client: socket.socket) -> bytes:
    """Return what a client reads until the service closes."""
    found = b""
    while more := client.recv(65536):
        found += more
    return found


@pytest.mark.parametrize(
    "data",
    [
        "",
        HEAD.format("/v1/captures"),
        LOCK + "x",
        CAPTURE + "x",
        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["nothing", "head", "lock", "capture", "reader"],
)
def test_200_slow_clients_delay_no_other_one(service: Service, data: str) -> None:
    service.start()
    for _ in range(200):
        service.connect(data)
    service.works("n1")
    service.works("n2")


def test_large_bodies_that_stop_make_room_for_others(
    service: Service, patience: pytest.MonkeyPatch
) -> None:
    patience.setattr(bodies, "_MEMORY", 1_000_000)
    patience.setattr(bodies, "_HEALTHY", 0.0)
    service.start()
    large = HEAD.format("/v1/captures") + "Content-Length: 900000\r\n\r\n" + "x" * 300_000
    for number in range(8):
        service.connect(large)
        service.works(f"n{number}")
    assert until_closed(service.slow[0]).startswith(b"HTTP/1.1 408 ")


def test_every_body_and_head_has_a_time_limit(
    service: Service, patience: pytest.MonkeyPatch
) -> None:
    for module in (app, captures, http_server):
        patience.setattr(module, "_PATIENCE", 0.3)
    service.start()
    for data in (LOCK + "x", CAPTURE + "x", CHUNKED + "1\r\nx\r\n"):
        assert until_closed(service.connect(data)).startswith(b"HTTP/1.1 408 ")
    for data in ("", "POST /v1/rep"):
        assert until_closed(service.connect(data)) == b""
    client = service.connect("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.recv(4096).startswith(b"HTTP/1.1 404 ")
    client.sendall(b"GET")
    until_closed(client)


def test_a_client_that_leaves_costs_no_traceback(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.start()
    for data in (LOCK + "x", CAPTURE + "x", CHUNKED + "1\r\nx\r\nzz\r\n", "nonsense\r\n\r\n", LOCK):
        for _ in range(5):
            service.connect(data).close()
    client = service.connect(CHUNKED + "fffff\r\n" + "x" * 0xFFFFF + "\r\n")
    assert client.recv(4096).startswith(b"HTTP/1.1 413 ")
    client.sendall(b"no chunk\r\n\r\n")
    with suppress(ConnectionResetError):
        until_closed(client)
    service.works("n1")
    found = [record.getMessage() for record in caplog.records if record.exc_info]
    assert not found
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("path", ["/v1/report", "/v1/captures"])
def test_a_client_that_sends_before_it_reads_gets_its_413(service: Service, path: str) -> None:
    service.start()
    for size in (LARGEST_REPORT + 1, 4 * LARGEST_REPORT):
        assert service.post(path, b"x" * size) == 413
        assert (
            service.post(path, (b"x" * 65536 for _ in range(size // 65536 + 1))) == 413
        )  # chunked
    service.works("n1")


def test_more_connections_than_open_files_close_the_oldest(
    service: Service, patience: pytest.MonkeyPatch
) -> None:
    patience.setattr(http_server, "_most", lambda: 20)
    patience.setattr(http_server, "_HEALTHY", 0.3)
    service.start()
    for data in ("", LOCK + "x"):
        for _ in range(40):
            service.connect(data)
        time.sleep(0.5)  # now they are slow
        service.works("n1")
    assert until_closed(service.slow[0]) == b""


def test_unread_answer_is_dropped(service: Service, patience: pytest.MonkeyPatch) -> None:
    patience.setattr(app, "render", lambda *_: "x" * 8_000_000)
    patience.setattr(http_server, "_UNSENT", 16_000_000)
    service.start()
    read = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(10):
        service.connect(read)
    service.works("n1")
    ended = 0
    for client in service.slow:
        client.settimeout(0.3)
        try:
            ended += len(until_closed(client)) < 8_000_000
        except ConnectionResetError:
            ended += 1
        except TimeoutError:  # it got all of it, and the connection stays open
            pass
    assert ended >= 5


def test_no_memory_is_counted_when_no_request_is_left(patience: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        reader = bodies.BodyReader(100, 0.05, 8)

        def request(*parts: bytes | None) -> Request:
            waiting = list(parts)

            async def receive() -> dict[str, object]:
                if not waiting:
                    await asyncio.sleep(LONG)
                part = waiting.pop(0)
                if part is None:
                    return {"type": "http.disconnect"}
                return {"type": "http.request", "body": part, "more_body": part != b""}

            return Request({"type": "http", "headers": []}, receive)

        for parts, status in (
            ((b"x" * 60,), 408),
            ((b"x" * 60, None), 408),
            ((b"x" * 60, b"x" * 60), 413),
            ((b"x" * 60, b""), 0),
        ):
            found = 0
            try:
                async with reader.read(request(*parts)) as body:
                    assert (body, reader.memory) == (b"x" * 60, 60)
            except bodies.RefusedRequestError as problem:
                found = problem.status
            assert (found, reader.memory) == (status, 0)

    asyncio.run(main())
