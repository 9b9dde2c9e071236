"""Reports of the real program of the nodes over TLS: to goldnode's service, and through nginx in front of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.fleet.service.test_server import authority

from goldnode.commands.node_program import node_program
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.service import captures
from goldnode.fleet.service.server import Listen, server
from goldnode.fleet.store.database import StoreDatabase

__all__ = ["authority"]
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
# As `docs/how-to/fleet-data.md` says, with a port and files of this test.
SITE = """\
server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {tls}/localhost.pem;
    ssl_certificate_key {tls}/localhost.key;
    ssl_client_certificate {tls}/ca.pem;
    ssl_verify_client on;
    client_max_body_size 4m;
    location /v1/captures {{ proxy_pass http://127.0.0.1:{to}; }}
}}
"""
Send = Callable[..., "subprocess.CompletedProcess[str]"]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}")


@contextmanager
def serving(store: Path, listen: Listen) -> Iterator[None]:
    database = StoreDatabase(str(store))
    running = server(database, listen)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        wait_for(listen.port)
        yield
    finally:
        running.should_exit = True
        thread.join()
        database.close()


@contextmanager
def proxied(work: Path, tls: Path, to: int) -> Iterator[int]:
    """The port of nginx, which asks for certificates of nodes and passes their reports on."""
    assert NGINX is not None
    port = free_port()
    work.mkdir()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {work}/{kind};\n" for kind in kinds)
    site = SITE.format(port=port, tls=tls, to=to)
    (work / "nginx.conf").write_text(
        f"daemon off; pid {work}/pid; error_log {work}/error; user root;\nevents {{}}\nhttp {{ access_log off; {places} {site} }}\n"
    )
    words = [NGINX, "-c", str(work / "nginx.conf"), "-p", str(work), "-e", str(work / "error")]
    with subprocess.Popen(words) as running:
        try:
            wait_for(port)
            yield port
        finally:
            running.terminate()
            running.wait(20)


@pytest.fixture
def send(tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch) -> Send:
    """Run `goldnode-node report --to` of the built program on a root with the name n00."""
    monkeypatch.setattr(captures, "APART", 0.0)
    program, root = tmp_path / "goldnode-node", tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/hostname").write_text("n00\n")
    made = CliRunner().invoke(node_program, ["--out", str(program)])
    assert made.exit_code == 0, made.output

    def run(port: int, node: str | None = "n00", *more: str) -> subprocess.CompletedProcess[str]:
        words = ["report", "--root", str(root), "--to", f"https://localhost:{port}", *more]
        words += ["--ca", str(authority / "ca.pem")]
        if node:
            words += ["--certificate", str(authority / f"{node}.pem")]
            words += ["--key", str(authority / f"{node}.key")]
        return subprocess.run(
            [sys.executable, str(program), *words], capture_output=True, text=True, check=False
        )

    return run


def sent(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["sent"])


def test_node_sends_the_whole_report_and_then_changes_over_tls(
    tmp_path: Path, migrated: Path, authority: Path, send: Send
) -> None:
    data, port = tmp_path / "data", free_port()
    own = (authority / "localhost.pem", authority / "localhost.key", authority / "ca.pem")
    with serving(migrated, Listen("127.0.0.1", port, *own, data=data)):
        assert sent(send(port)) == "whole"
        time.sleep(1.1)  # a capture has its time to the second
        assert sent(send(port)) == "changes"
        refused = send(port, "localhost")
        assert (refused.returncode, "not for n00" in refused.stderr) == (3, True), refused.stderr
        assert "is away" in send(port, None).stderr
    assert ingest(IngestRequest(data), datetime.now(UTC)).stored == 2


@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_node_sends_whole_reports_through_nginx(
    tmp_path: Path, migrated: Path, authority: Path, send: Send
) -> None:
    """Behind it, the service sees no certificates of nodes, and thus holds no reports."""
    data, port = tmp_path / "data", free_port()
    listen = Listen("127.0.0.1", port, data=data)
    with serving(migrated, listen), proxied(tmp_path / "nginx", authority, port) as front:
        assert sent(send(front)) == "whole"
        time.sleep(1.1)
        assert sent(send(front)) == "whole"
        without = send(front, None)
        assert without.returncode == 3
        assert "HTTP 400: 400 No required SSL certificate was sent. Use a cert" in without.stderr
    assert ingest(IngestRequest(data), datetime.now(UTC)).stored == 2
