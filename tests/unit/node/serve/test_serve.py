"""The diagnostics endpoint: what it answers, and what it does with those who do not ask properly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.node.serve.test_metrics import CAPTURE, finding, verdict

from goldnode.node.ground.host import Host
from goldnode.node.serve import connections, endpoint, publish
from goldnode.node.serve.endpoint import Answers, request_of

GOOD = verdict(finding("gpu.count", "match"), code=0, boot_identity="b/42", status="healthy")


class Tree:
    """A node's files as the last check left them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("/proc/uptime", "160.5 1000\n")
        self.put("/proc/sys/kernel/random/boot_id", "b\n")
        self.put("/proc/sys/kernel/hostname", "n1\n")
        self.put("/proc/1/stat", "1 (systemd) S " + " ".join("0" * 18) + " 42 0")
        self.put(
            "/etc/goldnode/class.json",
            json.dumps({"class": "h100", "digest": "sha256:c1", "lock": {"digest": "sha256:10"}}),
        )
        self.put("/run/goldnode/verdict.json", json.dumps(GOOD))
        self.put("/run/goldnode/public.json", json.dumps(publish.public(CAPTURE)))

    def put(self, name: str, text: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def answers(self) -> Answers:
        return Answers(Host(str(self.root), live=True))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def get(tree: Tree, path: str, method: str = "GET") -> tuple[int, str]:
    request = request_of(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status, _, body = request.answer or tree.answers().at(request.path)
    return status, body


def test_healthz_is_good_only_while_a_good_verdict_counts(tree: Tree) -> None:
    assert get(tree, "/healthz") == (200, "healthy\n")
    assert get(tree, "/healthz?verbose=1")[0] == 200
    tree.put("/proc/uptime", "5000.0 1\n")
    status, body = get(tree, "/healthz")
    assert status == 503
    assert "4900 s old" in body
    tree.put("/proc/uptime", "160.5 1\n")
    tree.put("/etc/goldnode/class.json", json.dumps({"class": "h100", "digest": "sha256:new"}))
    assert get(tree, "/healthz")[0] == 503


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema": "goldnode.verdict/1"}', "[" * 100_000]
)
def test_a_torn_verdict_is_never_health(tree: Tree, text: str) -> None:
    tree.put("/run/goldnode/verdict.json", text)
    status, body = get(tree, "/healthz")
    assert status in (500, 503)
    assert "could_not_check" in body
    assert (
        "goldnode_verdict_exit_code 3" in get(tree, "/metrics")[1]
        or get(tree, "/metrics")[0] == 500
    )
    status, body = get(tree, "/diagnostics")
    assert status == 500 or json.loads(body)["verdict"]["exit_code"] == 3


@pytest.mark.parametrize(
    ("code", "accept", "status"),
    [(1, False, 503), (1, True, 200), (2, True, 503), (3, True, 503), (4, True, 503)],
)
def test_degraded_will_do_where_the_class_allows_it(
    tree: Tree, code: int, accept: bool, status: int
) -> None:
    bad = verdict(
        finding("net.mtu", "mismatch", severity="degraded"), code=code, boot_identity="b/42"
    )
    tree.put("/run/goldnode/verdict.json", json.dumps(bad))
    tree.put(
        "/etc/goldnode/class.json",
        json.dumps({"digest": "sha256:c1", "serve": {"accept_degraded": accept}}),
    )
    found = get(tree, "/healthz")
    assert found[0] == status
    assert status == 200 or "net.mtu" in found[1]


def test_diagnostics_has_verdict_and_libraries(tree: Tree) -> None:
    lib = "usr/lib/x86_64-linux-gnu"
    tree.put(f"/{lib}/libcudart.so.12.4.127", "")
    (tree.root / lib / "libcudart.so.12").symlink_to("libcudart.so.12.4.127")
    tree.put(f"/{lib}/libevil.so.1", "")
    tree.put("/usr/local/cuda-12.4/version.json", json.dumps({"cuda": {"version": "12.4.1"}}))
    tree.put("/usr/local/cuda-11/version.json", '{"cuda": 7}')
    reported = json.loads(get(tree, "/diagnostics")[1])
    assert reported["schema"] == "goldnode.diagnostics/1"
    assert (
        reported["class"],
        reported["class_digest"],
        reported["lock_digest"],
        reported["image_id"],
    ) == (
        "h100",
        "sha256:c1",
        "sha256:10",
        "img-1",
    )
    assert reported["driver"] == {"loaded": "580.82", "cuda": "13.0"}
    assert reported["gpus"][0]["uuid"] == "GPU-1"
    assert "serial" not in reported["gpus"][0]
    verdict = reported["verdict"]
    assert (verdict["holds"], verdict["status"], verdict["age_seconds"], verdict["findings"]) == (
        True,
        "healthy",
        60.5,
        [],
    )
    assert reported["libraries"] == [
        {"name": "cuda", "version": "12.4.1", "path": "/usr/local/cuda-12.4"},
        {
            "name": "libcudart",
            "version": "12.4.127",
            "path": "/usr/lib/x86_64-linux-gnu/libcudart.so.12.4.127",
        },
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/diagnostics/",
        "/metrics/../healthz",
        "/etc/goldnode/class.json",
    ],
)
def test_a_path_is_one_of_four_or_nothing(tree: Tree, path: str) -> None:
    assert get(tree, path)[0] == 404


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"DELETE / HTTP/1.1\r\n\r\n", 405),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"", 400),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * connections.MOST, 431),
        (b"HEAD /healthz HTTP/1.0\n\n", None),
    ],
)
def test_improper_request_gets_its_status_code(data: bytes, status: int | None) -> None:
    found = request_of(data)
    assert (found.answer[0] if found.answer else None) == status
    assert found.head is data.startswith(b"HEAD")
    assert found.allow is (status == 405)


@pytest.mark.parametrize(
    ("text", "found"),
    [("9478", ("127.0.0.1", 9478)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:9478", ("::1", 9478))],  # noqa: S104
)
def test_an_address_without_a_name_is_the_loopback(text: str, found: tuple[str, int]) -> None:
    assert endpoint.address(text) == found


@pytest.mark.parametrize("text", ["", "x", "127.0.0.1:", "1:99999", "1:-1", "\u0661"])
def test_invalid_listen_address_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="address to listen on"):
        endpoint.address(text)


# -- over a real socket


@pytest.fixture
def served(tree: Tree, request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """The address of an endpoint. Like systemd's socket, it starts the endpoint again after an idle time."""
    idle = getattr(request, "param", 0.3)
    listening, stopped = socket.create_server(("127.0.0.1", 0), backlog=256), threading.Event()

    def activated() -> None:
        while not stopped.is_set():
            endpoint.serve(listening, tree.answers(), idle)

    thread = threading.Thread(target=activated, daemon=True)
    thread.start()
    yield listening.getsockname()
    stopped.set()
    thread.join(timeout=60)
    listening.close()
    assert not thread.is_alive(), "it ends when nobody asks any more"


def exchange(where: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(where, timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        while more := connection.recv(65536):
            answer += more
    return answer


def test_server_answers_with_200_405_or_431(served: tuple[str, int]) -> None:
    head, _, body = exchange(served, b"GET /healthz HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b"healthy\n"
    assert f"Content-Length: {len(body)}".encode() in head
    head, _, body = exchange(served, b"HEAD /diagnostics HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert body == b""
    assert b"Content-Type: application/json" in head
    head = exchange(
        served, b"PUT /healthz HTTP/1.1\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70000
    ).partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 405 ")
    assert b"Allow: GET, HEAD" in head
    assert exchange(served, b"GET / HTTP/1.1\r\nX: " + b"y" * 20000).startswith(b"HTTP/1.1 431 ")


def open_slow(where: tuple[str, int], count: int, data: bytes) -> list[socket.socket]:
    """Connect clients that send some bytes of a request, and do nothing more."""
    slow = []
    for _ in range(count):
        client = socket.socket()
        # A large answer does not fit into the kernel's buffers.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(where)
        client.sendall(data)
        slow.append(client)
    return slow


def test_a_slow_client_gets_408_and_one_that_leaves_nothing(
    served: tuple[str, int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    slow = open_slow(served, 12, b"GET /hea")
    slow.pop().close()
    for client in slow:
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
        client.close()
    assert exchange(served, b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 9000\r\n\r\nx",
        b"GET /diagnostics HTTP/1.1\r\n\r\n",
    ],
)
def test_200_slow_clients_delay_no_other_one(
    tree: Tree, served: tuple[str, int], monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(
        connections, "PATIENCE", 600.0
    )  # nobody is answered because others have timed out
    monkeypatch.setattr(connections, "SILENCE", 600.0)
    tree.put(
        "/run/goldnode/gate.json", json.dumps({"reasons": ["x" * 1_000_000]})
    )  # in /diagnostics
    threads = threading.active_count()
    slow = open_slow(served, 200, data)
    for _ in range(3):
        assert exchange(served, b"GET /healthz HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\nhealthy\n")
    assert threading.active_count() <= threads + len(endpoint.PATHS)
    for client in slow:
        client.close()


@pytest.mark.parametrize(
    "served", [3.0], indirect=True
)  # seconds: one process serves the whole test
def test_a_disk_that_hangs_costs_one_thread_and_no_answer_of_another_path(
    served: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = [], threading.Event()

    def hangs(answers: Answers) -> dict[str, object]:
        began.append(answers)
        goes_on.wait(60)
        return {"read": "at last"}

    monkeypatch.setattr(Answers, "diagnostics", hangs)
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    for _ in range(2):  # also once the first ones have been given up
        slow = open_slow(served, 20, b"GET /diagnostics HTTP/1.1\r\n\r\n")
        assert exchange(served, b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        for client in slow:
            assert client.recv(4096).startswith(b"HTTP/1.1 503 ")
            client.close()
    assert len(began) == 1
    monkeypatch.setattr(connections, "PATIENCE", 60.0)
    asked = open_slow(served, 3, b"GET /diagnostics HTTP/1.1\r\n\r\n")
    goes_on.set()
    for client in asked:
        with client, client.makefile("rb") as answer:
            assert b"at last" in answer.read()
    assert 2 <= len(began) <= 4  # who asked before an answer was begun gets that one


def test_the_command_takes_the_socket_of_systemd_and_ends(tree: Tree) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    # What systemd does: the socket is descriptor 3, and the environment says whose it is.
    start = (
        "import os, sys; os.dup2(int(sys.argv.pop(1)), 3); os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); "
        "from goldnode.node.program.main import main; raise SystemExit(main())"
    )
    source = str(Path(endpoint.__file__).parents[3])
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            start,
            str(listening.fileno()),
            "serve",
            "--root",
            str(tree.root),
            "--idle",
            "1",
        ],
        pass_fds=(listening.fileno(),),
        env={**os.environ, "PYTHONPATH": source},
    )
    try:
        where = listening.getsockname()
        body = exchange(where, b"GET /metrics HTTP/1.1\r\n\r\n").decode()
        assert "goldnode_verdict_holds" in body
        assert child.wait(timeout=30) == 0
    finally:
        child.kill()
        listening.close()


def test_the_command_without_a_socket_is_no_success(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    from goldnode.node.program.main import main

    assert main(["serve", "--root", str(tree.root)]) == 3
    assert "goldnode-serve.socket" in capsys.readouterr().err
    assert main(["serve", "--root", str(tree.root), "--listen", "nonsense"]) == 3


@pytest.mark.parametrize(
    "place", ["/etc/goldnode/follow/root.json", "/var/lib/goldnode/follow/metadata/root.json"]
)
def test_metrics_have_the_end_of_the_root_of_the_channel(tree: Tree, place: str) -> None:
    name = "goldnode_follow_root_expires_timestamp_seconds"
    assert name not in get(tree, "/metrics")[1]
    tree.put("/etc/goldnode/follow/root.json", '{"signed": {"expires": "2026-11-28T00:00:00Z"}}')
    tree.put(place, '{"signed": {"expires": "2027-11-28T00:00:00Z"}}')
    assert f"{name} 1827360000" in get(tree, "/metrics")[1]
    tree.put(place, '{"signed": {"expires": 7}}')
    assert name not in get(tree, "/metrics")[1]


def test_the_age_is_that_of_the_verdict(tree: Tree) -> None:
    assert "goldnode_verdict_age_seconds 60.5" in get(tree, "/metrics")[1]
    assert time.strftime("%Y") in json.loads(get(tree, "/diagnostics")[1])["time"]
