"""Reads that may hang (a dead disk, a network file system, unresponsive firmware), in a process that can be
abandoned.

A system call that hangs in the kernel takes no signal, and a thread in one keeps its whole process from
ending. So a forked child makes such reads: each answer is delivered on its own, a read without an answer in
time is a fault, and the remaining ones are asked of another child. The child holds none of its parent's files
open, so nothing waits for an abandoned one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time

from ..ground.process import run_alone
from .values import unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Job = Tuple[str, Callable[[], Any]]

LIMIT = 3.0  # seconds for all of it
EACH = 1.5  # seconds until one read counts as hanging
_left: List[int] = []  # children that have not been waited for


def ask(jobs: List[Job], limit: float = LIMIT, each: float = EACH) -> Dict[str, Any]:
    """Return the result of each job (name, function without arguments) by name: a JSON value, or the fault
    that there is no answer.

    Never raises, and takes at most `limit` seconds. A job that raises is a fault with the exception's text.
    """
    return Asked(jobs, limit, each).finish()


class Asked:
    """Jobs that a child has started; :meth:`finish` must be called. Work in between runs in parallel."""

    def __init__(self, jobs: List[Job], limit: float = LIMIT, each: float = EACH) -> None:
        _bury()
        self.jobs, self.limit, self.each = jobs, limit, each
        self.end: Optional[float] = None
        self.answers: Dict[str, Any] = {}
        self.child = _fork(jobs) if jobs else None

    def finish(self) -> Dict[str, Any]:
        """Return the answers, as :func:`ask` does."""
        answers = self.answers  # complete after the first call
        if self.end is None:  # counted from here: the child had time before
            self.end = time.monotonic() + self.limit
        rest = [job for job in self.jobs if job[0] not in answers]
        child = self.child
        while rest and (child or time.monotonic() < self.end):
            for name, value in _collect(child or _fork(rest), rest, self.end, self.each):
                answers[name] = value
            child = None
            rest = [job for job in rest if job[0] not in answers]
        for name, _ in rest:
            answers[name] = unread(f"not asked: the {self.limit:g} s for such reads were over")
        return answers


def _fork(jobs: List[Job]) -> Any:
    """Return (process, its pipe) of a child that works on the jobs, or the fault if none can be started."""
    out, into = os.pipe()
    try:
        pid = os.fork()
    except OSError as problem:
        os.close(out)
        os.close(into)
        return unread(f"no process can be started: {problem.strerror}", problem.errno)
    if pid == 0:
        run_alone(lambda: _work(jobs, 3), (None, None, None, into))
    os.close(into)
    return pid, out


def _collect(child: Any, jobs: List[Job], end: float, each: float) -> List[Tuple[str, Any]]:
    """Return the answers of one child to the first of the jobs.

    The last may be the fault of the job that ended or hung it.
    """
    if isinstance(child, dict):
        return [(name, child) for name, _ in jobs]
    pid, out = child
    answers: List[Tuple[str, Any]] = []
    text = b""
    asked = time.monotonic()
    late = min(asked + each, end)
    hung = False
    while len(answers) < len(jobs):
        ready, _, _ = select.select([out], [], [], max(late - time.monotonic(), 0))
        if not ready:
            hung = True
            break
        more = os.read(out, 1 << 16)
        if not more:
            break
        text += more
        *lines, text = text.split(b"\n")
        for line in lines:
            answers.append((jobs[len(answers)][0], json.loads(line)))
            asked = time.monotonic()
            late = min(asked + each, end)
    os.close(out)
    gone = _end(pid, len(answers) < len(jobs))
    if len(answers) < len(jobs):
        reason = "the process that read it ended without an answer"
        if hung:
            reason = f"no answer within {time.monotonic() - asked:.1f} s"
        if hung and not gone:
            reason += f", and process {pid}, which reads it, cannot be killed"
        answers.append((jobs[len(answers)][0], unread(reason)))
    return answers


def _work(jobs: List[Job], into: int) -> None:
    """Write the answer of each job to the descriptor `into`, a line each."""
    for _, job in jobs:
        try:
            value = job()
        except OSError as problem:
            value = unread(problem.strerror or str(problem), problem.errno)
        except Exception as problem:
            value = unread(f"{type(problem).__name__}: {problem}")
        data = json.dumps(value).encode() + b"\n"
        while data:
            data = data[os.write(into, data) :]


def _end(pid: int, wait: bool) -> bool:
    """Kill the child; whether it has gone. One that hung is waited for a moment; one that has said all is buried by the next call."""
    try:
        os.kill(pid, signal.SIGKILL)
        for _ in range(20):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
            if not wait:
                break
            time.sleep(0.002)
    except (ProcessLookupError, ChildProcessError):
        return True
    _left.append(pid)
    return False


def _bury() -> None:
    for pid in list(_left):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                _left.remove(pid)
        except ChildProcessError:
            _left.remove(pid)
