"""What `follow` makes of servers that are no channel and no lock service."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.follow.lockservice import PRE_REBOOT, LockClient
from goldnode.node.follow.loop import Follower
from goldnode.node.follow.machine import UNKNOWN, Observation
from goldnode.node.follow.repository import ChannelAwayError, ChannelSource, ChannelTooLongError
from goldnode.node.follow.settings import Settings
from goldnode.node.ground.host import Host

PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 4\r\n\r\n<p/>"
YES = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LOGIN = b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"


class Answers(socketserver.ThreadingTCPServer):
    """A server that answers each path with fixed bytes, and closes."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers, self.asked = answers, list[str]()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(socketserver.StreamRequestHandler):
    server: Answers

    def handle(self) -> None:
        path = self.rfile.readline().split()[1].decode()
        length = 0
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self.rfile.read(length)
        self.server.asked.append(path)
        self.wfile.write(self.server.answers[path])


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers({}) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def client(address: str) -> LockClient:
    return LockClient(
        Settings("/channel", service=address, node="n1", node_class="c", lock="sha256:1", group="c")
    )


def test_empty_200_of_another_fleetlock_server_is_a_grant(server: Answers) -> None:
    server.answers["/v1/pre-reboot"] = YES
    assert client(server.address).ask(PRE_REBOOT, {}).yes


def test_redirect_to_a_page_that_answers_200_is_no_leave(server: Answers) -> None:
    server.answers |= {"/v1/pre-reboot": LOGIN, "/login": YES}
    with pytest.raises(ChannelAwayError, match="HTTP 302"):
        client(server.address).ask(PRE_REBOOT, {})
    assert server.asked == ["/v1/pre-reboot"]


@pytest.mark.parametrize(
    "answer",
    [
        PAGE,
        PAGE.replace(b"200 OK", b"403 Forbidden"),
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 20000 x\r\n\r\n",
        b"",
    ],
    ids=["page", "forbidden-page", "no-status", "long-status", "nothing"],
)
def test_answer_not_from_a_lock_service_decides_nothing(server: Answers, answer: bytes) -> None:
    server.answers["/v1/pre-reboot"] = answer
    with pytest.raises(ChannelAwayError, match="lock service"):
        client(server.address).ask(PRE_REBOOT, {})


@pytest.mark.parametrize("answer", [b"no HTTP\r\n\r\n", b"HTTP/1.1 20000 x\r\n\r\n", b""])
def test_channel_whose_server_speaks_no_http_is_away(server: Answers, answer: bytes) -> None:
    server.answers["/metadata/timestamp.json"] = answer
    with pytest.raises(ChannelAwayError, match="timestamp"):
        ChannelSource(server.address).document("metadata/timestamp.json", 1000)


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate", encoding="utf-8")
    with pytest.raises(ChannelAwayError, match="certificate"):
        ChannelSource("https://channel.example", str(wrong)).document("x", 10)


def test_endless_document_is_a_refusal_and_the_node_still_reports(tmp_path: Path) -> None:
    asked: list[str] = []

    class Service:
        def ask(self, endpoint: str, more: Any) -> Any:
            asked.append(endpoint)
            raise ChannelAwayError("away")

    class Machine:
        kind, why = "lock", ""

        def observe(self, wanted: Any) -> Observation:
            return Observation(
                "boot",
                digest="sha256:1",
                verdict=UNKNOWN,
                software=[],
                hardware=[],
                fell_back_from=None,
                settled=True,
            )

    class Verifier:
        def refresh(self) -> Any:
            raise ChannelTooLongError("timestamp.json is longer than 16384 bytes: refused.")

    own = Settings(
        "/channel", service="http://x", node="n1", node_class="c", lock="sha256:1", group="c"
    )
    parts: tuple[Any, ...] = (Host(str(tmp_path)), own, Verifier(), Service(), Machine())
    found = Follower(*parts).run()
    assert found.problem
    assert "longer than 16384 bytes: refused. nothing is started." in found.text
    assert asked == ["v1/report"]
