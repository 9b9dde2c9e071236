"""A site with hooks, and receivers of events, for the tests of the delivery."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from goldnode.core.site import Site, load_site
from goldnode.fleet.events.deliver import EventDelivery
from goldnode.fleet.events.event import FleetEvent, identity
from goldnode.fleet.events.outbox import Outbox

NOW = 1_795_687_200.0  # 2026-11-26T10:00:00Z
KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver:
    """An HTTP server that stores requests, and answers with the statuses that a test gives it; 200 when none is left."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.before: Callable[[], None] = lambda: None  # called before the answer
        self.arrived = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append((self.path, headers, body))
                receiver.before()
                receiver.arrived.set()
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                self.send_response(status)
                if status in (301, 302, 307, 308):
                    self.send_header("Location", f"{receiver.url}/elsewhere")
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"text")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def events(self) -> list[Any]:
        """The bodies in the order of their arrival."""
        return [json.loads(body) for _, _, body in self.requests]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def secret(directory: Path, text: str = SECRET, mode: int = 0o600) -> Path:
    """Write a file with a secret."""
    file = directory / "secret"
    file.write_text(f"{text}\n")
    file.chmod(mode)
    return file


def webhook(directory: Path, url: str, **more: Any) -> dict[str, Any]:
    """A webhook in a site file."""
    return {"webhook": {"url": url, "secret": str(secret(directory)), **more}}


def site(directory: Path, **hooks: Any) -> Site:
    """Write a site file with hooks, and read it."""
    file = directory / "goldnode-site.yml"
    content = {"events": {"outbox": "events.db", "hooks": hooks}, "fleet": {"store": "fleet.db"}}
    file.write_text(yaml.safe_dump(content))
    return load_site(file)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def delivery(directory: Path, clock: Clock | None = None, **hooks: Any) -> EventDelivery:
    """The delivery of a site with these hooks, which begin before the first event."""
    own = site(directory, **hooks)
    found = EventDelivery(own, Outbox(own.events_outbox()), clock=clock or Clock())
    found.hooks()
    return found


def event(number: int = 1, **more: Any) -> FleetEvent:
    """An event of a node."""
    given: dict[str, Any] = {
        "id": identity("case", number),
        "at": NOW,
        "kind": "node.verdict",
        "severity": "warning",
        "source": "captures",
        "subject": f"n{number}",
        "text": f"n{number} is degraded",
        "details": {"before": "healthy", "status": "degraded", "findings": []},
        "node": f"n{number}",
        "node_class": "h100",
    }
    return FleetEvent(**{**given, **more})


def add(found: EventDelivery, *events: FleetEvent) -> None:
    """Put events into the outbox."""
    with found.outbox.write() as connection:
        found.outbox.add(connection, events, found.clock())


def in_child(work: Any) -> int:
    """Run `work` in a process of its own, and return how that ended: the negative number of a signal, or the status."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
