"""Handlers for the actions of domain `runtime`.

Each takes the applier and one action, applies the change, and may return a message.
"""

from __future__ import annotations

import json
import os
import re
import time

from ...effective import enginetext as text_of
from ...ground.errors import NodeError
from .. import dockerd
from ..domains import runtime
from ..observe import RECORD, load_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from ..contract import Handler, Writer
    from ..model import Action

BACKUPS = "/var/lib/goldnode/backup"
# Docker reloads its configuration within a second; a node that builds modules at the same time is slower
SECONDS = 20.0


def keep_original(applier: Writer, name: str) -> None:
    """Back up a foreign file with its mode before its first change, and record the backup in RECORD.

    RECORD: originals -> {path: {backup, mode}, or null if there was no file}.
    :func:`record.before_merge` stores the texts.
    """
    record = load_json(applier.host, RECORD) or {}
    originals, data = record.setdefault("originals", {}), applier.host.data(name)
    if name in originals:
        return
    originals[name] = None
    if data is not None:
        mode = os.stat(applier.host.real(name)).st_mode & 0o7777
        originals[name] = {"backup": BACKUPS + name, "mode": mode}
        applier.host.write(BACKUPS + name, data, mode)
    applier.host.write(RECORD, json.dumps(record, indent=1, sort_keys=True).encode())


def config(applier: Writer, action: Action) -> Optional[str]:
    """Write a merged file with its existing mode, and verify that its program can read it.

    Otherwise restore the old file.
    """
    host, name = applier.host, action.target
    before = host.data(name)
    keep_original(applier, name)
    place, mode = name, 0o644
    if before is not None:  # a link stays a link: change its target
        place, mode = (
            "/" + os.path.relpath(host.real(name), host.root),
            os.stat(host.real(name)).st_mode & 0o7777,
        )
    host.write(place, action.data["content"].encode(), mode)
    fault = unreadable(applier, name)
    if fault is None:
        return None if before is None else f"the file as it was before goldnode: {BACKUPS}{name}"
    if before is None:
        host.remove(name)
    else:
        host.write(place, before, mode)
    raise NodeError(
        f"{name} would not be read after the change, and is what it was before: {fault} Look at "
        "the file, and run again."
    )


def unreadable(applier: Writer, name: str) -> Optional[str]:
    """Return the fault that a parser or the file's own program finds in a new file, or None."""
    text = applier.host.text(name) or ""
    try:
        if name == runtime.DAEMON:
            text_of.read_json(text)
        elif name == runtime.CONTAINERD:
            text_of.read_toml(text)
    except text_of.BrokenError as broken:
        return f"{name}:{broken.line}:{broken.column}: {broken.message}."
    if name == runtime.DAEMON:
        version = re.search(r"version (\d+)\.(\d+)", applier.host.run("dockerd", "--version").out)
        if version and (int(version.group(1)), int(version.group(2))) >= runtime.VALIDATES:
            done = applier.host.run("dockerd", "--validate", "--config-file", name)
            return None if done.rc == 0 else f"{done.tail(3)}."
    if name == runtime.CONTAINERD:
        done = applier.host.run("containerd", "--config", name, "config", "dump")
        return (
            None if done.rc in (0, 127) else f"{done.tail(3)}."
        )  # 127: the engine is not installed yet
    return None


def enable(applier: Writer, action: Action) -> None:
    """Enable a unit at boot. --no-reload: a daemon-reload takes the GPUs away from running containers."""
    _systemctl(applier, "--no-reload", "enable", action.target)


def start(applier: Writer, action: Action) -> None:
    _systemctl(applier, "start", action.target)


def restart(applier: Writer, action: Action) -> None:
    applier.say(f"restarting {action.target}: {action.reason}")
    _systemctl(applier, "restart", action.target)


def reload(applier: Writer, action: Action) -> None:
    """Reload docker. On SIGHUP it reads its runtimes and the default runtime again, and no container stops.

    docker does so after systemctl has returned, so wait until it reports the new values.
    """
    _systemctl(applier, "reload", action.target)
    end = time.monotonic() + SECONDS
    want = runtime.default(applier.document)
    while time.monotonic() < end:
        info = dockerd.info()
        if all(
            name in info.get("runtimes", {}) for name in runtime.runtimes(applier.document)
        ) and info["default"] == (want or info["default"]):
            return
        time.sleep(0.2)
    raise NodeError(
        f"docker was asked to reload {runtime.DAEMON} and did not apply it. See `journalctl -u docker`."
    )


def _systemctl(applier: Writer, *words: str) -> None:
    done = applier.host.run("systemctl", *words, timeout=180)
    if done.rc != 0:
        log = applier.host.run(
            "journalctl", "-u", words[-1], "-n", "12", "--no-pager", "-o", "cat"
        ).out.strip()
        raise NodeError(
            f"systemctl {' '.join(words)} fails: {done.tail(3)}\n{log}\nPut right what it says, "
            "and run again."
        )


def generate(applier: Writer, action: Action) -> Optional[str]:
    """Generate the CDI spec with the toolkit's own program, at the path of the toolkit's refresh unit."""
    done = applier.host.run(
        "nvidia-ctk", "cdi", "generate", f"--output={action.data['output']}", timeout=120
    )
    if done.rc != 0:
        raise NodeError(
            f"nvidia-ctk cannot make a CDI spec: {done.tail(5)}\nSee that nvidia-smi works, and run again."
        )
    return None


HANDLERS: Dict[str, Handler] = {
    "runtime.config": config,
    "runtime.enable": enable,
    "runtime.start": start,
    "runtime.restart": restart,
    "runtime.reload": reload,
    "runtime.cdi": generate,
}
