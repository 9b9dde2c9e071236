"""One run of the suite through a launcher: sends program and request, waits, and ends the run when other work arrives.

Every launcher starts the same few lines of Python on the node, with program and request on standard
input. Standard input stays open. When it is closed, for instance because this controller died, the
program ends its jobs and writes what it has.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from goldnode.canary import pack
from goldnode.canary.errors import CanaryError
from goldnode.canary.streams import Streams
from goldnode.documents.canary import CanaryDocument

# Runs on the node. A line with two sizes, then program and request; the program removes the
# directory at its end.
BOOT = """\
import os, sys, tempfile
def exactly(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit("goldnode-canary: standard input ended early")
        data += part
    return data
line = b""
while not line.endswith(b"\\n"):
    line += exactly(1)
folder = tempfile.mkdtemp(prefix="goldnode-canary-")
names = [os.path.join(folder, name) for name in ("goldnode-canary", "request.json")]
for name, size in zip(names, line.split()):
    with open(name, "wb") as out:
        out.write(exactly(int(size)))
os.execv(sys.executable, [sys.executable, "-I", names[0], "--request", names[1], "--until-eof", "--remove", folder])
"""
PROGRAM = ("python3", "-I", "-c", BOOT)
PERIOD = 2.0  # seconds between two questions about other work
GRACE = (
    6.0  # seconds for the program to write its document after it was ended; work waits 10 s at most
)

# Returns a sentence about work that has arrived for the node; empty without any.
Arrived = Callable[[], str]


@dataclass(frozen=True)
class CanaryRun:
    """One run of the suite on one node.

    `command` starts :data:`PROGRAM` there. `arrived` is asked every PERIOD. `cancel` is run when
    the command has to be killed, because the work may go on without it. `limit` is in seconds, for
    the whole run.
    """

    node: str
    how: str
    command: Sequence[str]
    request: Mapping[str, Any]
    arrived: Arrived | None = None
    cancel: Callable[[], None] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    limit: float = 3600.0


def payload(request: Mapping[str, Any]) -> bytes:
    """Return the bytes for standard input of :data:`BOOT`."""
    program, asked = pack.program(), json.dumps(request).encode()
    return b"%d %d\n" % (len(program), len(asked)) + program + asked


def run(given: CanaryRun) -> CanaryDocument:
    """Run the suite and return its document. Raises CanaryError without a document that can be used."""
    asked = {
        **given.request,
        "values": {**given.request.get("values", {}), "node": given.node, "how": given.how},
    }
    try:
        process = subprocess.Popen(
            list(given.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **given.environment},
        )
    except OSError as problem:
        raise CanaryError(
            f"{given.command[0]} cannot be started: {problem.strerror or problem}",
            remedy=f"install {given.command[0]} on this machine, or choose another way with --how",
        ) from problem
    session = _Session(given, process)
    try:
        out, err = session.wait(payload(asked))
    finally:
        session.close()
    return session.document(out, err)


class _Session:
    """A running command with its standard streams."""

    def __init__(self, given: CanaryRun, process: subprocess.Popen[bytes]) -> None:
        self.given, self.process = given, process
        self.ended = ""  # why it was ended

    def wait(self, data: bytes) -> tuple[bytes, bytes]:
        """Send the payload, wait for the end, and return both outputs."""
        streams = Streams(self.process, data)
        started = asked = time.monotonic()
        deadline = started + self.given.limit
        while not streams.step(0.2):
            now = time.monotonic()
            if now >= deadline:
                if self.ended:
                    self.close()
                    break
                self.ended = f"the run did not end within {self.given.limit:g} s"
                streams.hang_up()
                deadline = now + GRACE
            elif not self.ended and self.given.arrived is not None and now - asked >= PERIOD:
                asked = now
                self.ended = self.given.arrived()
                if self.ended:
                    streams.hang_up()
                    deadline = now + GRACE
        return streams.out, streams.err

    def close(self) -> None:
        """End the command and what it left behind."""
        running = self.process.poll() is None
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if running and self.given.cancel is not None:
            # A scheduler without an answer must not hide why the run has ended.
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self.given.cancel()

    def document(self, out: bytes, err: bytes) -> CanaryDocument:
        """Return the document that the program printed."""
        try:
            data = json.loads(out)
            if self.ended:
                for job in data["jobs"]:
                    if job["state"] == "not_counted":
                        job["why"] = self.ended
            return CanaryDocument.model_validate_json(json.dumps(data))
        except (ValueError, KeyError, TypeError, ValidationError) as problem:
            last = (err.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"])[
                -1
            ][:300]
            if self.ended:
                raise CanaryError(
                    f"{self.given.node}: ended without results: {self.ended}",
                    remedy="run the suite again when the node is idle",
                ) from None
            shown = f"status {self.process.returncode}: {last}"
            if isinstance(problem, ValidationError):
                shown = f"{problem.error_count()} errors, the first: {problem.errors()[0]['loc']} {problem.errors()[0]['msg']}"
            raise CanaryError(
                f"{self.given.node}: goldnode-canary gave no document of schema goldnode.canary/1 ({shown})",
                remedy=f"run `{' '.join(self.given.command[:2])} …` by hand to see why",
            ) from None
