"""Start of the recorder: on this machine, on a host over ssh, or in a container.

The recorder, the model's file and the inputs of another record go to it as one tar archive on
standard input. The record comes back as one on standard output, so that no directory is shared.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from goldnode.dual import pack, store
from goldnode.dual.errors import DualError
from goldnode.dual.store import DualRecord

# Unpacks standard input into a new directory, and starts the recorder. {place} is that directory.
_BOOTSTRAP = """\
import os, shutil, subprocess, sys, tarfile, tempfile
place = tempfile.mkdtemp(prefix="goldnode-dual-")
try:
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            path = os.path.join(place, member.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                shutil.copyfileobj(archive.extractfile(member), out)
    words = [word.replace("{place}", place) for word in sys.argv[1:]]
    sys.exit(subprocess.call([sys.executable, *words], stdin=subprocess.DEVNULL))
finally:
    shutil.rmtree(place, ignore_errors=True)
"""
_PLACE = "{place}"
_STDERR = 4000  # characters of a message
ENGINES = ("docker", "podman")


@dataclass(frozen=True)
class DualTarget:
    """Where to record: one of a host and an image, or this machine."""

    host: str | None = None
    image: str | None = None
    engine: str = "docker"
    python: str = "python3"
    gpus: str | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class DualJob:
    """The model file or the command to record, and the recorder's other arguments."""

    arguments: tuple[str, ...] = ()
    model: Path | None = None
    command: tuple[str, ...] = ()
    inputs: DualRecord | None = None
    limit: float = 1800.0  # seconds


def record(target: DualTarget, job: DualJob, out: Path) -> DualRecord:
    """Record, and return what was written to the new directory `out`. Raises DualError."""
    store.place_new(out)
    name = f"goldnode-dual-{os.getpid()}-{secrets.token_hex(4)}"
    place = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        answer = _run(_words(target, job, name), job, place)
        if answer.status != 0 or answer.problem is not None:
            raise _failed(target, answer, job.limit)
        recorded = store.read(place)
        for row in recorded.document.arrays:
            recorded.value(row)
        place.rename(out)
        return store.read(out)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if target.image is not None:  # the end of its client does not end a container
            subprocess.run(
                [_engine(target), "rm", "--force", name], capture_output=True, check=False
            )


@dataclass(frozen=True)
class _Ended:
    """The end of a recorder: exit status, last lines of standard error, and a fault of its answer."""

    status: int
    stderr: tuple[bytes, ...]
    problem: DualError | None
    expired: bool


def _run(words: list[str], job: DualJob, place: Path) -> _Ended:
    """Start the recorder, send what it needs, and unpack its answer."""
    # A session of its own, so that the end of the bootstrap is the end of the model too.
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    source, sink, errors = process.stdout, process.stdin, process.stderr
    assert source is not None  # noqa: S101 - Popen was asked for pipes
    stderr: list[bytes] = []
    sender = threading.Thread(target=_send, args=(sink, job), daemon=True)
    relay = threading.Thread(target=_relay, args=(errors, stderr), daemon=True)
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        _kill(process)

    clock = threading.Timer(job.limit, stop)
    for thread in (sender, relay, clock):
        thread.start()
    try:
        problem = _received(source, place)
        status = process.wait()
    finally:
        clock.cancel()
        _kill(process)
    relay.join(5)
    return _Ended(status, tuple(stderr), problem, expired.is_set())


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _received(source: IO[bytes], place: Path) -> DualError | None:
    try:
        store.unpack(source, place, "the answer of the recorder")
    except DualError as problem:
        return problem
    finally:
        source.close()
    return None


def _failed(target: DualTarget, ended: _Ended, limit: float) -> DualError:
    where = target.image or target.host or "this machine"
    if ended.expired:
        return DualError(
            f"the recorder on {where} did not end within {limit:g} s", remedy="raise --timeout"
        )
    if ended.status != 0 or ended.problem is None:
        lines = [
            line
            for line in b"".join(ended.stderr).decode(errors="replace").splitlines()
            if line.strip()
        ]
        last = lines[-1][:300] if lines else "it printed nothing"
        message = f"the recorder on {where} ended with status {ended.status}: {last}"
        return DualError(message, remedy="see its output above")
    return ended.problem


def _relay(source: IO[bytes], lines: list[bytes]) -> None:
    """Pass the output of the model on to standard error, and keep its end."""
    for line in source:
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
        lines.append(line[:_STDERR])
        del lines[:-20]


def _send(out: IO[bytes], job: DualJob) -> None:
    try:
        with out, tarfile.open(fileobj=out, mode="w|") as archive:
            _add(archive, pack.NAME, pack.program())
            if job.model is not None:
                _add(archive, _model_name(job.model), job.model.read_bytes())
            if job.inputs is not None:
                rows = [row for row in job.inputs.document.arrays if row.role == "input"]
                for row in rows:
                    job.inputs.value(row)  # validated before another machine reads it
                    _add(archive, row.file, (job.inputs.directory / row.file).read_bytes())
                files = {
                    "schema": job.inputs.document.schema_,
                    "arrays": [row.model_dump(mode="json") for row in rows],
                }
                _add(archive, store.RECORD, json.dumps(files).encode())
    except BrokenPipeError:
        pass  # the other end reports why


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _model_name(model: Path) -> str:
    return model.name if model.name not in (pack.NAME, store.RECORD) else "model.py"


def _words(target: DualTarget, job: DualJob, name: str) -> list[str]:
    """Return the command that starts the bootstrap."""
    own = [f"{_PLACE}/{pack.NAME}", "--out", "-", *job.arguments]
    if job.model is not None:
        own += ["--model", f"{_PLACE}/{_model_name(job.model)}"]
    if job.inputs is not None:
        own += ["--inputs", _PLACE]
    if target.image is not None:
        start = _container(target, name)
        own += ["--how", "engine", "--image", image_id(target)]
    elif target.host is not None:
        start, own = [target.python], [*own, "--how", "ssh", "--host", target.host]
    else:
        start, own = [target.python], [*own, "--how", "local"]
    if job.command:
        own += ["--", *job.command]
    words = [*start, "-c", _BOOTSTRAP, *own]
    if target.host is not None:
        return ["ssh", "-o", "BatchMode=yes", "--", target.host, shlex.join(words)]
    return words


def _container(target: DualTarget, name: str) -> list[str]:
    """Return the command line of a container without network, capabilities and writable root."""
    engine = _engine(target)
    words = [
        engine,
        "run",
        "--rm",
        "--name",
        name,
        "--interactive",
        "--network",
        "none",
        "--read-only",
        "--cap-drop",
        "ALL",
    ]
    words += ["--security-opt", "no-new-privileges", "--pids-limit", "4096", "--ipc", "private"]
    words += ["--tmpfs", "/tmp:rw,exec,mode=1777", "--env", "HOME=/tmp", "--shm-size", "1g"]  # noqa: S108
    if target.gpus is not None:
        words += ["--gpus", target.gpus]
    for device in target.devices:
        words += ["--device", device, "--group-add", str(Path(device).stat().st_gid)]
    return [*words, "--entrypoint", target.python, image_id(target)]


def _engine(target: DualTarget) -> str:
    if shutil.which(target.engine) is None:
        raise DualError(
            f"there is no {target.engine} on this machine",
            remedy="install it, or name another --engine",
        )
    return target.engine


def image_id(target: DualTarget) -> str:
    """Return the id of an image in the engine: the digest of its configuration. Raises DualError."""
    done = subprocess.run(
        [_engine(target), "image", "inspect", "--format", "{{.Id}}", str(target.image)],
        capture_output=True,
        text=True,
        check=False,
    )
    identity = done.stdout.strip()
    if done.returncode != 0 or not identity:
        last = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise DualError(
            f"{target.engine} does not have the image {target.image}: {last[:200]}",
            remedy=f"fetch it: {target.engine} pull {target.image}",
        )
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"
