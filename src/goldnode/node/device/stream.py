"""A capture's query of the GPU library: a process of its own that starts first, answers line by line, and can
be killed.

Answers before the driver hung are used; missing ones are faults. A process that cannot be killed is
abandoned: the kernel holds it in uninterruptible sleep, and that is the finding about the driver.
"""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import suppress

from ..ground.host import ENVIRONMENT, Host, Json
from ..ground.process import Forked, Process
from . import SCHEMA
from .child import LIMIT, asking, own_archive
from .reader import stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple, Union

    AnyProcess = Union[Process, Forked]

STALL = 20.0  # seconds between two lines, once there was one: with the GPUs initialised a call takes milliseconds
MOST = 16 << 20  # bytes of an answer; 16 GPUs say some 200 KiB
PAUSE = (
    0.002  # seconds between two reads: to wake for each line of a fast driver takes 2 ms of a check
)
PIPE = 1 << 20  # bytes; an answer that fits does not wait for its reader
# The process that an earlier check left behind, and when it began: while it is there no other joins it in the driver.
LEFT = "/run/goldnode/gpu-process"
SET_PIPE_SIZE = 1031  # fcntl.F_SETPIPE_SZ, which Python names from 3.10
FOREIGN = (
    f"the process that calls the GPU library answered something that is not of schema {SCHEMA}"
)


class Pending:
    """A question that is under way. :meth:`finish` has to be called, and may be called again."""

    def __init__(
        self,
        process: Optional[AnyProcess],
        error: Optional[str],
        vendor: str,
        settings_asked: bool,
        host: Host,
    ) -> None:
        self.process = process
        self.host = host
        self.vendor = vendor
        self.settings_asked = settings_asked
        self.began = time.monotonic()
        self.answer: Optional[Json] = None if process else _nothing(error or "")

    def finish(self, limit: float = LIMIT, stall: float = STALL) -> Json:
        """Return the library's answer: ``{driver, nvml, cuda, count, gpus: [GPU …], error: fault or null,
        cost}``.

        :param limit: seconds from the start to the first line, and :data:`STALL` more for each later one.
            Never raises, never hangs.
        """
        if self.answer is None:
            lines, end = self._read(limit, stall)
            self.answer = _assemble(lines, end, self.vendor)
        return self.answer

    def settings(self) -> Json:
        """Return the same as the answer to ``{"do": "read"}`` (the package's documentation), so that no
        second process is started for it.
        """
        answer = self.finish()
        head = {"schema": SCHEMA, "vendor": self.vendor}
        if answer["count"] is None:
            error = answer["error"]
            if "rc" not in error:
                return {**head, "error": error["text"]}
            text = f"NVML cannot be used: {error['text']} (return code {error['rc']})"
            return {**head, "error": text}
        gpus: Json = {}
        for gpu in answer["gpus"]:
            values = gpu.get("settings")
            if not isinstance(values, dict) or "fault" in values:
                why = values or gpu.get("error") or {}
                values = {"rc": why.get("rc", 999), "text": why.get("text", "it was not read")}
            gpus[str(gpu["index"])] = values
        driver = answer["driver"]
        if isinstance(driver, dict):  # a fault of the capture, as the policy has faults
            driver = {"rc": driver.get("rc", 999), "text": driver["text"]}
        return {**head, "driver": driver, "gpus": gpus}

    def _read(self, limit: float, stall: float) -> Tuple[List[bytes], Optional[str]]:
        """Return the complete lines, and the fault of the process."""
        process = self.process
        assert process is not None  # noqa: S101 - an answer that there is was given without one
        out, err = process.out, process.err
        reported: Dict[int, bytearray] = {out: bytearray(), err: bytearray()}
        deadline = self.began + limit
        poll = select.poll()
        for handle in reported:
            poll.register(handle, select.POLLIN | select.POLLHUP)
        opened = set(reported)
        end: Optional[str] = None
        while out in opened and end is None:
            left = deadline - time.monotonic()
            ready = poll.poll(max(0, int(left * 1000)) + 1)
            if not ready and left <= 0:
                end = _kill(process, time.monotonic() - self.began, self.host)
            for handle, _ in ready:
                data = os.read(handle, 1 << 16)
                if not data:
                    poll.unregister(handle)
                    opened.discard(handle)
                    continue
                reported[handle] += data
                if handle == err:
                    del reported[err][:-4096]  # only the last line is reported
                if handle == out and b"\n" in data:
                    deadline = time.monotonic() + stall
                if len(reported[out]) > MOST:
                    _kill(process, 0, self.host)
                    end = "the process that calls the GPU library said more than a capture can hold, and was killed"
            if out in opened and end is None:
                time.sleep(PAUSE)
        if end is None:
            left = max(0.1, deadline - time.monotonic())
            end = _ended(process, bytes(reported[err]), left, self.host)
        process.close()
        return bytes(reported[out]).split(b"\n"), end


def start(host: Host, settings: bool = True, vendor: str = "nvidia") -> Pending:
    """Start asking. The answer belongs to `host` until :attr:`Host.pending` is taken from it: who asks for settings meanwhile gets them
    from there.

    :param settings: also what `policy` compares.
    """
    argv = (*asking(host), "device", "capture", *(["settings"] if settings else []))
    error = _left(host)
    process: Optional[AnyProcess] = None
    try:
        if error is None:
            host.commands.append(argv)
            # The same code as this process runs? A fork needs no interpreter of its own.
            if own_archive(host):
                process = Forked(lambda: stream(argv[-1:]))
            else:
                environment = {**os.environ, **ENVIRONMENT}
                process = Process(argv, environment, session=True)
    except FileNotFoundError:
        error = f"{host.program} reads the GPUs, and is not on the node yet"
    except OSError as problem:
        error = f"{host.program} cannot be run ({problem.strerror})"
    if process is not None:
        import fcntl  # start-up time: nodes without a GPU do not need it

        with suppress(OSError):  # a smaller pipe only makes the process wait for its reader
            fcntl.fcntl(process.out, SET_PIPE_SIZE, PIPE)
    pending = Pending(process, error, vendor, settings, host)
    if settings:
        host.pending = pending
    return pending


def _began(pid: int) -> Optional[str]:
    """Return the start time of a process of this machine, as the kernel counts it; None if it does not exist
    or has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
            fields = opened.read().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None


def _left(host: Host) -> Optional[str]:
    """Return the fault if the process of an earlier check still hangs."""
    words = (host.text(LEFT) or "").split()
    if len(words) == 2 and words[0].isdigit() and words[1] == _began(int(words[0])):
        return f"the GPU driver hangs: process {words[0]}, which an earlier check left behind, still cannot be killed"
    if words:
        with suppress(OSError):
            host.remove(LEFT)
    return None


def _kill(process: AnyProcess, after: float, host: Host) -> str:
    """End the process group, and return the conclusion about the driver."""
    if not process.kill():
        with suppress(OSError):
            host.write(LEFT, f"{process.pid} {_began(process.pid)}\n".encode())
        return f"the GPU driver hangs: process {process.pid} did not answer within {after:.3g} s and cannot be killed"
    return f"the GPU driver did not answer within {after:.3g} s; the process that asked was killed"


def _ended(process: AnyProcess, err: bytes, left: float, host: Host) -> Optional[str]:
    """Return the reason why a process ended; None if it ended well."""
    status = process.wait(left)
    if status is None:
        return _kill(process, left, host)
    if status == 0:
        return None
    err += process.output[process.err]  # the reason that it ended, if it printed one
    last = (err.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"])[-1][:200]
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return f"the process that calls the GPU library ended {how}: {last}"


def _nothing(text: str, rc: Optional[int] = None) -> Json:
    """Return the answer of a library that could not be used."""
    error: Json = {"fault": "unread", "text": text}
    if rc is not None:
        error["rc"] = rc
    return {
        "driver": error,
        "nvml": error,
        "cuda": error,
        "count": None,
        "gpus": [],
        "error": error,
        "cost": None,
    }


def _assemble(lines: List[bytes], end: Optional[str], vendor: str) -> Json:
    """Return the answer from its lines. Pure. From the first invalid line on, the answer is not used."""
    rows: List[Json] = []
    for line in lines:
        if not line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            end = end or FOREIGN
            break
        rows.append(row)
    head = next(iter(rows), {})
    if head.get("schema") != SCHEMA or head.get("vendor") != vendor:
        return _nothing(end or FOREIGN)
    if "error" in head:
        rc = head.get("rc")
        return _nothing(str(head["error"]), rc if isinstance(rc, int) else None)
    count = head.get("count")
    if not isinstance(count, int) or not 0 <= count <= 1024:
        return _nothing("the GPU library reported no number of GPUs")
    by_index: Dict[int, Json] = {}
    waiting: Dict[int, Any] = {}
    cost = None
    for row in rows[1:]:
        index, values = row.get("i"), row.get("set")
        if row.get("done"):
            cost = {key: row.get(key) for key in ("cpu_ms", "rss_kib", "init_ms")}
        elif isinstance(index, int) and 0 <= index < count and isinstance(values, dict):
            by_index.setdefault(index, {}).update(values)
            waiting[index] = row.get("next")
    error: Optional[Json] = None
    if cost is None:
        end = end or "the process that calls the GPU library ended before it had said all"
        at = [f"GPU {index}: {part}" for index, part in waiting.items() if part is not None]
        error = {"fault": "unread", "text": f"{end} ({at[0]})" if at else end}
    gpus = []
    for index in range(count):
        gpu: Json = {"index": index, "vendor": vendor, **by_index.get(index, {})}
        if waiting.get(index, "") is not None:  # its answer is incomplete
            text = "the process that calls the GPU library did not report this GPU"
            gpu["error"] = error or {"fault": "unread", "text": text}
        gpus.append(gpu)
    return {
        **{key: head.get(key) for key in ("driver", "nvml", "cuda", "count")},
        "gpus": gpus,
        "error": error,
        "cost": cost,
    }
