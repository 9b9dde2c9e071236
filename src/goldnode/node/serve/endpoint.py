"""Diagnostics endpoint: a small HTTP server that answers only from the files of the last check.

goldnode-serve.socket starts it as an unprivileged user, and it exits when it is idle. It has four
paths and the methods GET and HEAD. No part of a request is used as a file path or echoed.
:mod:`connections` limits the size and time of requests, and their number.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from ..ground import boot, gate_files, verdict_files
from ..ground.host import Host
from ..ground.json_lines import as_map
from ..ground.text import and_more, spaced
from ..verdict import current
from . import libraries, metrics
from .connections import MOST, TEXT, EndpointRequest, Loop
from .publish import PUBLIC, load, root_expires

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

SCHEMA = "goldnode.diagnostics/1"
IDLE = 60.0  # seconds without a request until the process exits; the socket starts it again
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"
PATHS = ("/", "/diagnostics", "/metrics", "/healthz")
MISSING = "not found; there are /diagnostics, /metrics and /healthz\n"


class Answers:
    """Answers of each path, from the files of a node."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._libraries: Optional[List[Dict[str, Any]]] = None

    def at(self, path: str) -> Tuple[int, str, str]:
        """Return status, content type and body for a path without its query. Raises nothing."""
        try:
            return self._at(path)
        # A malformed file must neither look healthy nor end the server.
        except Exception as problem:
            print(
                f"goldnode-node: {type(problem).__name__}: {_line(str(problem))}", file=sys.stderr
            )
            return 500, TEXT, "could_not_check: the files of the last check cannot be read\n"

    def _at(self, path: str) -> Tuple[int, str, str]:
        if path == "/healthz":
            return self.healthz()
        if path == "/metrics":
            return 200, PROMETHEUS, self.metrics()
        if path == "/diagnostics":
            return 200, JSON, json.dumps(self.diagnostics(), indent=1) + "\n"
        if path == "/":
            return 200, TEXT, "goldnode: /diagnostics /metrics /healthz\n"
        return 404, TEXT, MISSING

    def verdict(self) -> Tuple[Any, Optional[str], Optional[float]]:
        """Return the verdict, why it does not count (None if it does), and its age in seconds."""
        verdict, fault = current.load(self.host.root)
        now = boot.uptime(self.host.text("/proc/uptime") or "")
        at = as_map(verdict).get("uptime")
        if not isinstance(at, (int, float)) or now is None or now < at - 1:  # of another boot
            return verdict, fault, None
        return verdict, fault, max(0.0, now - at)

    def document(self) -> Dict[str, Any]:
        """Return the class document; empty without one."""
        return as_map(load(self.host, verdict_files.CLASS))

    def healthz(self) -> Tuple[int, str, str]:
        """Return 200 for a valid verdict that is healthy, or degraded if the class accepts that.

        Return 503 with the reason otherwise.
        """
        verdict, fault, _ = self.verdict()
        if fault is not None:
            return 503, TEXT, f"could_not_check: {_line(fault)}\n"
        code = verdict["exit_code"]
        if code == 0:
            return 200, TEXT, "healthy\n"
        if code == 1 and as_map(self.document().get("serve")).get("accept_degraded") is True:
            return 200, TEXT, "degraded, which the class accepts\n"
        wrong = [
            str(f.get("id"))
            for f in verdict["findings"]
            if isinstance(f, dict) and metrics.OUTCOMES.get(str(f.get("outcome")), 3) >= 3
        ]
        shown = ", ".join(wrong[:8]) + and_more(len(wrong) - 8)
        return 503, TEXT, _line(f"{verdict.get('status')} (exit code {code}): {shown}") + "\n"

    def metrics(self) -> str:
        """Return the current metrics, with the age of the verdict."""
        verdict, fault, age = self.verdict()
        return metrics.text(
            verdict,
            captured=load(self.host, PUBLIC),
            gate=load(self.host, gate_files.STATE),
            fault=fault,
            age=age,
            root_expires=root_expires(self.host),
        )

    def diagnostics(self) -> Dict[str, Any]:
        """Return the facts needed first in an incident.

        These are driver, devices, CUDA libraries, class, lock, image, and the verdict with its age.
        """
        verdict, fault, age = self.verdict()
        verdict = as_map(verdict)
        document, capture = self.document(), as_map(load(self.host, PUBLIC))
        gpus = capture.get("gpus")
        if isinstance(gpus, list):
            gpus = [_gpu(row) for row in gpus if isinstance(row, dict)]
        findings = verdict.get("findings") or []
        if (
            fault is not None
        ):  # findings of a verdict that does not count would be taken for current ones
            findings = []
        identity = as_map(capture.get("identity"))
        if self._libraries is None:
            self._libraries = libraries.installed(self.host)
        return {
            "schema": SCHEMA,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "simulated": verdict.get("simulated") is True
            or capture.get("simulated") is True
            or document.get("simulated") is True,
            "hostname": identity.get("hostname")
            or (self.host.text("/proc/sys/kernel/hostname") or "").strip()
            or None,
            "class": document.get("class"),
            "class_digest": document.get("digest"),
            "lock_digest": as_map(document.get("lock")).get("digest"),
            "stack": as_map(document.get("stack")).get("name"),
            "image_id": identity.get("image_id"),
            "verdict": {
                "holds": fault is None,
                "reason": fault,
                "status": verdict.get("status") if fault is None else "could_not_check",
                "exit_code": verdict.get("exit_code") if fault is None else current.UNKNOWN,
                "time": verdict.get("time"),
                "age_seconds": None if age is None else round(age, 1),
                "findings": [
                    f for f in findings if isinstance(f, dict) and f.get("outcome") != "match"
                ],
            },
            "gate": load(self.host, gate_files.STATE),
            "capture_time": capture.get("time"),
            "kernel": as_map(as_map(capture.get("os")).get("kernel")).get("running"),
            "driver": capture.get("driver"),
            "gpus": gpus,
            "gpu_error": capture.get("gpu_error"),
            "devices": capture.get("devices"),
            "libraries": self._libraries,
        }


def _gpu(row: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a GPU without serial number and processes, which are confidential."""
    shown = (
        "index",
        "address",
        "pci_id",
        "vendor",
        "name",
        "uuid",
        "driver",
        "lost",
        "vbios",
        "memory",
        "persistence_mode",
        "compute_mode",
        "mig",
    )
    return {name: row[name] for name in shown if name in row}


def _line(text: str) -> str:
    return spaced(text)[:500]


# -- the server


def serve(listening: socket.socket, answers: Answers, idle: float = IDLE) -> None:
    """Serve requests until none has arrived for `idle` seconds."""
    Loop(listening, request_of, answers.at).run(idle)


def request_of(data: bytes) -> EndpointRequest:
    """Return the request in these bytes, the head of it."""
    if len(data) > MOST:
        return EndpointRequest("", answer=(431, TEXT, f"a request is at most {MOST} bytes\n"))
    words = data.split(b"\n", 1)[0].rstrip(b"\r").decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return EndpointRequest("", answer=(400, TEXT, "not a request of HTTP/1\n"))
    method, path = words[0], words[1].partition("?")[0]
    if method not in ("GET", "HEAD"):
        return EndpointRequest(path, allow=True, answer=(405, TEXT, "only GET and HEAD\n"))
    return EndpointRequest(
        path, method == "HEAD", answer=None if path in PATHS else (404, TEXT, MISSING)
    )


def inherited() -> Optional[socket.socket]:
    """Return the first socket that systemd passed (sd_listen_fds(3), descriptor 3); None without one."""
    if (
        os.environ.get("LISTEN_PID") != str(os.getpid())
        or (os.environ.get("LISTEN_FDS") or "0") == "0"
    ):
        return None
    os.set_inheritable(3, False)
    return socket.socket(fileno=3)


def address(text: str) -> Tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[V6]:PORT`, or a port alone (on the loopback).

    :raises ValueError: for any other text.
    """
    name, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"{text!r} is not an address to listen on: write PORT or ADDRESS:PORT")
    return name.strip("[]") or "127.0.0.1", int(port)
