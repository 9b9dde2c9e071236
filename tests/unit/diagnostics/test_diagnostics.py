"""goldnode.diagnostics: what a process says of itself, alone and as a path of a web application."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from tests.unit.node.serve.test_serve import GOOD

from goldnode.diagnostics import AsgiDiagnostics, WsgiDiagnostics, loopback, report
from goldnode.diagnostics.process import library, node

MAPS = """\
55d0-55d1 r--p 00000000 08:01 1 /usr/bin/python3.11
7f00-7f01 r-xp 00000000 08:01 2 /usr/lib/x86_64-linux-gnu/libcuda.so.580.82.07
7f01-7f02 r--p 00001000 08:01 2 /usr/lib/x86_64-linux-gnu/libcuda.so.580.82.07
7f02-7f03 r-xp 00000000 08:01 3 /opt/my venv/nvidia/cublas/lib/libcublasLt.so.12
7f03-7f04 r-xp 00000000 08:01 4 /opt/my venv/torch/lib/libcudart-8774224f.so.12.4.127 (deleted)
7f04-7f05 r-xp 00000000 08:01 5 /usr/local/cuda-11.8/lib64/libcudart.so.11.8.89
7f05-7f06 r-xp 00000000 08:01 6 /opt/rocm/lib/libamdhip64.so.6
7f06-7f07 r-xp 00000000 08:01 7 /usr/lib/libcudaevil/libssl.so.3
7f07-7f08 rw-p 00000000 00:00 0 [heap]
7f08-7f09 rw-p 00000000 00:00 0
torn line
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "proc/self/maps": MAPS,
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug 27 2025\nGCC version: x\n",
        "proc/uptime": "160.5 1\n",
        "proc/sys/kernel/random/boot_id": "b\n",
        "proc/1/stat": "1 (systemd) S " + " ".join("0" * 18) + " 42 0",
        "etc/goldnode/class.json": json.dumps({"digest": "sha256:c1"}),
        "run/goldnode/verdict.json": json.dumps(GOOD),
        "dev/nvidia0": "",
        "dev/nvidiactl": "",
        "dev/nvidia-caps": "",
        "dev/sda": "",
        "dev/dri/renderD128": "",
        "dev/dri/card0": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_libraries_of_this_process(root: Path) -> None:
    found = report(str(root))
    rows = {
        (row["family"], row["name"], row["version"], row["deleted"]) for row in found["libraries"]
    }
    assert rows == {
        ("cuda", "libcuda", "580.82.07", False),
        ("cuda", "libcublasLt", "12", False),
        ("cuda", "libcudart", "12.4.127", True),
        ("cuda", "libcudart", "11.8.89", False),
        ("rocm", "libamdhip64", "6", False),
    }
    assert len(found["libraries"]) == 5, "each file once"
    assert found["mixed"] == ["libcudart"]
    assert (
        next(row["path"] for row in found["libraries"] if row["name"] == "libcublasLt")
        == "/opt/my venv/nvidia/cublas/lib/libcublasLt.so.12"
    )
    assert found["driver"] == "580.82.07"
    assert found["devices"]["nodes"] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/dri/renderD128"]


def test_the_node_knows_where_its_files_are(root: Path, tmp_path: Path) -> None:
    found = report(str(root))["node"]
    assert (found["available"], found["status"], found["exit_code"], found["age_seconds"]) == (
        True,
        "healthy",
        0,
        60.5,
    )
    (root / "proc/uptime").write_text("99999.0 1\n")
    assert (node(str(root))["exit_code"], "s old" in node(str(root))["reason"]) == (3, True)
    (root / "run/goldnode/verdict.json").write_text("[" * 100_000)
    assert node(str(root))["exit_code"] == 3
    empty = report(str(tmp_path / "nowhere"))
    assert (empty["libraries"], empty["node"]["available"], empty["driver"]) == ([], False, None)
    assert "No such file" in empty["libraries_error"]


@pytest.mark.parametrize(
    "path",
    [
        "/lib/libssl.so.3",
        "/lib/libcudafake.so",
        "/lib/cuda",
        "",
        "/lib/libnccl",
        "/x/libncclx.so.2",
    ],
)
def test_library_ignores_paths_that_are_no_gpu_library(path: str) -> None:
    assert library(path) is None


def test_control_characters_do_not_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0\n\x1b[31m")
    assert report()["devices"]["environment"]["CUDA_VISIBLE_DEVICES"] == "0  [31m"


def test_frameworks_that_are_imported_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, version, lazy = (
        types.ModuleType("torch"),
        types.ModuleType("torch.version"),
        types.ModuleType("jax"),
    )
    torch.__dict__["__version__"] = "2.8.0+cu128"
    version.__dict__.update(cuda="12.8", hip=None)
    lazy.__dict__["__getattr__"] = lambda name: pytest.fail(
        f"asked for {name}, which may import what it likes"
    )
    for module in (torch, version, lazy):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert report()["frameworks"] == {
        "torch": {"version": "2.8.0+cu128", "build": "cuda 12.8"},
        "jax": {"version": None, "build": None},
    }


def test_only_the_standard_library_is_loaded_and_a_report_loads_nothing() -> None:
    code = """
import sys, json
import goldnode.diagnostics as d
d.report()
before = set(sys.modules)
d.report()
print(json.dumps([sorted(set(sys.modules) - before), sorted({name.partition('.')[0] for name in before})]))
"""
    source = Path(__file__).parents[3] / "src"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    more, loaded = json.loads(done.stdout)
    assert more == []
    assert {
        name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("_")
    } == {"goldnode"}


# -- WSGI


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"theirs"]


def wsgi(
    path: str, method: str = "GET", peer: str = "127.0.0.1", wrapped: Any = None, **more: str
) -> tuple[str, dict[str, str], bytes]:
    environ: dict[str, Any] = {
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "REQUEST_METHOD": method,
        "REMOTE_ADDR": peer,
        **more,
    }
    setup_testing_defaults(environ)
    environ["QUERY_STRING"] = ""
    reported: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> Any:
        reported.extend([status, dict(headers)])
        return lambda data: None

    parts = validator(wrapped or WsgiDiagnostics(app))(environ, start)
    body = b"".join(parts)
    parts.close()  # type: ignore[attr-defined]
    return reported[0], reported[1], body


def test_wsgi_answers_its_path_and_nothing_else() -> None:
    status, headers, body = wsgi("/diagnostics")
    assert status == "200 OK"
    assert json.loads(body)["schema"] == "goldnode.process/1"
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Cache-Control"] == "no-store"
    for path in ("/", "/diagnostics/", "/diagnosticsx", "/a/diagnostics"):
        assert wsgi(path)[2] == b"theirs"
    assert wsgi("/diagnostics", "HEAD")[2] == b""
    assert wsgi("/diagnostics", "POST")[0] == "405 Method Not Allowed"
    assert wsgi("/gpu", wrapped=WsgiDiagnostics(app, path="/gpu"))[0] == "200 OK"
    with pytest.raises(ValueError, match="begin it with /"):
        WsgiDiagnostics(app, path="gpu")


@pytest.mark.parametrize(
    ("peer", "more", "allowed"),
    [
        ("127.0.0.1", {}, True),
        ("127.9.9.9", {}, True),
        ("::1", {}, True),
        ("::ffff:127.0.0.1", {}, True),
        ("10.0.0.1", {}, False),
        ("::ffff:10.0.0.1", {}, False),
        ("", {}, False),
        ("localhost", {}, False),
        ("127.0.0.1", {"HTTP_X_FORWARDED_FOR": "10.0.0.1"}, False),
        ("127.0.0.1", {"HTTP_FORWARDED": "for=1"}, False),
    ],
)
def test_only_the_loopback_is_reported_unless_the_site_decides(
    peer: str, more: dict[str, str], allowed: bool
) -> None:
    assert wsgi("/diagnostics", peer=peer, **more)[0] == ("200 OK" if allowed else "404 Not Found")
    headers = [
        (key.removeprefix("HTTP_").replace("_", "-").lower().encode(), value.encode())
        for key, value in more.items()
    ]
    assert loopback({"type": "http", "client": (peer, 1), "headers": headers}) is allowed
    assert (
        wsgi(
            "/diagnostics",
            peer=peer,
            wrapped=WsgiDiagnostics(app, allow=lambda environ: True),
            **more,
        )[0]
        == "200 OK"
    )


def test_no_client_is_not_the_loopback() -> None:
    assert loopback({"type": "http", "client": None, "headers": []}) is False
    assert loopback({"wsgi.version": (1, 0)}) is False


# -- ASGI


def asgi(scope: dict[str, Any], wrapped: Any = None) -> list[Any]:
    sent: list[Any] = []

    async def foreign(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "theirs", "of": scope["type"]})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run((wrapped or AsgiDiagnostics)(foreign)(scope, receive, send))
    return sent


def http(path: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "path": path,
        "method": "GET",
        "client": ("127.0.0.1", 1),
        "headers": [],
        **more,
    }


def test_asgi_answers_its_path_and_nothing_else() -> None:
    start, body = asgi(http("/diagnostics"))
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert all(isinstance(name, bytes) and name == name.lower() for name, _ in start["headers"])
    assert json.loads(body["body"])["schema"] == "goldnode.process/1"
    for scope in (http("/"), {"type": "lifespan"}, {"type": "websocket", "path": "/diagnostics"}):
        assert asgi(scope) == [{"type": "theirs", "of": scope["type"]}]
    assert asgi(http("/diagnostics", client=("10.0.0.1", 5)))[0]["status"] == 404
    assert asgi(http("/diagnostics", method="POST"))[0]["status"] == 405
    assert asgi(http("/diagnostics", method="HEAD"))[1]["body"] == b""
    assert asgi(http("/api/diagnostics", root_path="/api"))[0]["status"] == 200
