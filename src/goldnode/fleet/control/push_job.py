"""One Ansible run of a push, in a process of its own: `python -m goldnode.fleet.control.push_job DIRECTORY`.

DIRECTORY has `job.json` (PushJob) and `variables.json`. The results of tasks are written to
`results.jsonl`, one line each, and the output of Ansible to OUTPUT. The process ends its Ansible,
and itself, on SIGTERM and as soon as its standard input is closed: so no run outlives a controller
that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from goldnode.fleet.rollout.push_results import ENDED, FAILED, OK, UNREACHABLE

JOB, VARIABLES, RESULTS, RUNNER = "job.json", "variables.json", "results.jsonl", "runner"
OUTPUT = f"{RUNNER}/artifacts/run/stdout"
_EVENTS = {
    "runner_on_ok": OK,
    "runner_item_on_ok": OK,
    "runner_on_failed": FAILED,
    "runner_item_on_failed": FAILED,
    "runner_on_unreachable": UNREACHABLE,
}
# Parts of a task's result that a push reads; a plan is large.
_FIELDS = (
    "msg",
    "drain",
    "again",
    "empty",
    "observation",
    "refusals",
    "part",
    "lost",
    "busy",
    "boot",
    "rebooted",
    "rc",
    "stderr",
)
_LONGEST = 4000  # characters of a text


@dataclass(frozen=True)
class PushJob:
    """An Ansible run: playbook, directory in which it runs, words of its command line, variables of its environment."""

    playbook: str
    project: str
    words: tuple[str, ...]
    environment: dict[str, str]


def write(directory: Path, job: PushJob, variables: dict[str, Any]) -> None:
    """Write the files of a run. The variables hold the class document, which is too large for a command line."""
    (directory / JOB).write_text(json.dumps(asdict(job)), encoding="utf-8")
    (directory / VARIABLES).write_text(json.dumps(variables), encoding="utf-8")


def line(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a push reads of an event of ansible-runner; None if that is nothing."""
    what = _EVENTS.get(str(event.get("event")))
    data = event.get("event_data") or {}
    if what is None or (what == FAILED and data.get("ignore_errors")):
        return None
    answer = data.get("res") or {}
    # The sum of items that were reported one by one.
    if "results" in answer and what != UNREACHABLE:
        return None
    result = {name: _short(answer[name]) for name in _FIELDS if name in answer}
    errors = [
        row for row in answer.get("resources") or () if isinstance(row, dict) and row.get("error")
    ]
    if errors:
        row = errors[-1]
        result["error"] = {
            name: _short(row.get(name)) for name in ("part", "kind", "resource", "error")
        }
    return {"host": data.get("host"), "task": data.get("task"), "what": what, "result": result}


def _short(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = "\n".join(value)
    return value[:_LONGEST] if isinstance(value, str) else value


def run(directory: Path) -> int:
    """Run Ansible. Return 0 if it ended by itself, whatever its status."""
    import ansible_runner  # optional package, and slow to load

    (directory / RUNNER).mkdir(exist_ok=True)
    job = PushJob(**json.loads((directory / JOB).read_text(encoding="utf-8")))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    # Ctrl-C is for the controller, which ends its runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_await_end_of_controller, args=(stop,), daemon=True).start()
    with (directory / RESULTS).open("w", encoding="utf-8", buffering=1) as out:

        def handle(event: dict[str, Any]) -> bool:
            row = line(event)
            if row is not None:
                out.write(json.dumps(row) + "\n")
            return False  # no file for each event

        runner = ansible_runner.run(
            private_data_dir=str(directory / RUNNER),
            project_dir=job.project,
            playbook=job.playbook,
            cmdline=shlex.join([*job.words, "-e", f"@{directory / VARIABLES}"]),
            envvars=job.environment,
            settings={"pexpect_timeout": 1},
            ident="run",
            quiet=True,
            event_handler=handle,
            cancel_callback=lambda: stop.is_set() and _end_workers(),
        )
        out.write(json.dumps({ENDED: runner.status}) + "\n")
    return 0 if runner.status in ("successful", "failed") else 1


def _end_workers() -> bool:
    """End the workers of Ansible, each with its ssh: they have sessions of their own. Return True.

    A command of the site that one of them started is in another session, and finishes, so that its
    result is known.
    """
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parents[int(path.parent.name)] = int(
                path.read_text(errors="replace").rpartition(")")[2].split()[1]
            )
    below = [os.getpid()]
    for pid in below:
        below += [child for child, parent in parents.items() if parent == pid]
    ansible = _command(below[1]) if below[1:] else b""
    for pid in below[1:]:
        if _command(pid) == ansible:  # a worker is a fork
            with contextlib.suppress(OSError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)
    return True


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return str(pid).encode()


def _await_end_of_controller(stop: threading.Event) -> None:
    """Set `stop` at the end of standard input, which only the controller holds open."""
    while os.read(0, 1024):
        pass
    stop.set()


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(run(Path(sys.argv[1])))
