"""A wheel on an index is read by ranges, and once: its code for GPUs, its libraries and its requirements."""

from __future__ import annotations

import hashlib
import http.server
import re
import struct
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.compat.test_rules_workload import node

from goldnode.commands.check.request import CheckRequest, given_workloads
from goldnode.compat.check import check
from goldnode.core.errors import ImageError
from goldnode.images.remote_wheel import wheel_code
from goldnode.images.wheelindex import Index

FILE = "own_kernels-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"


def fat_binary(*entries: tuple[int, int]) -> bytes:
    """Return a fat binary: kind (1 PTX, 2 machine code) and architecture of each entry."""
    body = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, 8) + bytes(12) + struct.pack("<I", arch) + bytes(40)
        for kind, arch in entries
    )
    return b"\x50\xed\x55\xba\x01\x00\x10\x00" + struct.pack("<Q", len(body)) + body


class _Ranges(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: _Server = self.server  # type: ignore[assignment]
        content = server.files.get(self.path)
        asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if content is not None and asked and server.ranges:
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            content = content[first : last + 1]
            server.sent += len(content)
        else:
            self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


class _Server(http.server.ThreadingHTTPServer):
    files: dict[str, bytes]
    ranges = True
    sent = 0


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / FILE
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "own/model.bin", hashlib.sha256(b"x").digest() * 500_000, zipfile.ZIP_STORED
        )
        archive.writestr(
            "own/lib.so",
            b"\x7fELF" + bytes(64) + b"\0libcudart.so.12\0" + fat_binary((2, 80), (2, 90), (1, 90)),
        )
        archive.writestr(
            "own_kernels-1.0.dist-info/METADATA", "Name: own-kernels\nRequires-Dist: numpy>=1\n\n"
        )
    content = wheel.read_bytes()
    server = _Server(("127.0.0.1", 0), _Ranges)
    link = f'<a href="/files/{FILE}#sha256={hashlib.sha256(content).hexdigest()}">{FILE}</a>'
    server.files = {"/simple/own-kernels/": link.encode(), f"/files/{FILE}": content}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def index(server: _Server) -> Index:
    return Index(f"http://127.0.0.1:{server.server_address[1]}/simple/")


def test_code_is_read_by_ranges_and_cached(served: _Server) -> None:
    read = wheel_code(index(served), "own-kernels", "1.0", "x86_64")
    assert read is not None
    assert (read.code, read.ptx, read.needs) == (("8.0", "9.0"), ("9.0",), ("libcudart.so.12",))
    assert read.requires == ("numpy",)
    assert served.sent < len(served.files[f"/files/{FILE}"])  # the model was not fetched
    before = served.sent
    assert wheel_code(index(served), "own-kernels", "1.0", "x86_64") == read
    assert served.sent == before


def test_release_without_a_wheel_for_the_machine_is_none(served: _Server) -> None:
    assert wheel_code(index(served), "own-kernels", "1.0", "aarch64") is None
    assert wheel_code(index(served), "own-kernels", "2.0", "x86_64") is None


def test_index_without_ranges_is_an_error(served: _Server) -> None:
    served.ranges = False
    with pytest.raises(ImageError, match="does not serve a part"):
        wheel_code(index(served), "own-kernels", "1.0", "x86_64")


def test_check_reads_what_the_facts_do_not_have(
    served: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from goldnode.images import wheelindex

    address = f"http://127.0.0.1:{served.server_address[1]}/simple/"
    monkeypatch.setattr(wheelindex, "pip_settings", lambda: {"index-url": address})
    monkeypatch.setattr("goldnode.compat.gpu_packages.uses_gpu", lambda name: name == "own-kernels")
    (tmp_path / "r.txt").write_text("own-kernels==1.0\n", encoding="utf-8")

    def judged(gpu: str, *, read: bool) -> list[str]:
        request = CheckRequest(requirements=[tmp_path / "r.txt"], python="3.12", read_wheels=read)
        loads = given_workloads(request, "amd64")
        return [
            item.severity
            for item in check(node(gpu, "610.43.02"), loads)
            if item.rule == "gpu-package"
        ]

    assert judged("T4", read=False) == ["unknown"]
    assert judged("T4", read=True) == ["block"]
    assert judged("A100-SXM4-40GB", read=True) == []
    assert judged("B200", read=True) == ["warn"]
