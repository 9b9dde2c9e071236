"""State of one run: its child processes, its time, its output directory, and the outcomes of its steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

from goldnode.prove.redact import Redactor

Json = Dict[str, Any]

PASSED, FAILED, UNCHECKED, SKIPPED = "passed", "failed", "could not check", "skipped"
# A process in uninterruptible sleep ignores signals. Leave it behind after these seconds.
GRACE = 5.0
MOST = 64 << 20  # maximum size of an answer in bytes
SOURCES = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class StepOutcome:
    """Result of a step, with its reason as one sentence for the summary."""

    status: str
    reason: str = ""
    figures: Json = field(default_factory=dict)


class NotChecked(Exception):  # noqa: N818 - the name is the outcome
    """A step could not check its subject."""


class Stopped(BaseException):
    """A signal ends the run. Not an Exception, so no step mistakes it for its own failure.

    `outcome` is the result of the interrupted step.
    """

    outcome: Optional[StepOutcome] = None


class FinishedProcess(NamedTuple):
    """A child process that ended, or was killed. `fault` is None or a sentence."""

    rc: int
    out: bytes
    err: bytes
    seconds: float
    fault: Optional[str]

    def last(self) -> str:
        """Return the last line of standard error."""
        lines = self.err.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "it printed nothing"

    def json(self, what: str) -> Json:
        """Return standard output as a JSON object. Raises NotChecked with the reason if it is not one."""
        if self.fault is not None:
            raise NotChecked(f"{what}: {self.fault}")
        try:
            document = json.loads(self.out)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise NotChecked(
                f"{what} ended with status {self.rc} and printed no JSON: {self.last()}"
            )
        return document


class Children:
    """Starter of programs in their own sessions. Kills a program and its children when its time is over."""

    def __init__(self) -> None:
        self.running: List[subprocess.Popen[bytes]] = []
        self.stuck: List[int] = []

    def start(
        self, argv: Sequence[str], environment: Optional[Mapping[str, str]] = None
    ) -> subprocess.Popen[bytes]:
        """Start a program with pipes. The caller must call :meth:`end`."""
        # A session of its own: `end` also kills what the program started. Ctrl-C reaches only us.
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **(environment or {}), "LC_ALL": "C"},
        )
        self.running.append(process)
        return process

    def run(
        self,
        argv: Sequence[str],
        limit: float,
        stdin: bytes = b"",
        environment: Optional[Mapping[str, str]] = None,
    ) -> FinishedProcess:
        """Run a program to its end. Failures of the program do not raise.

        A signal to this process ends the program too.
        """
        # Status 124 as of timeout(1), 127 as of a shell.
        if limit <= 0:
            return FinishedProcess(124, b"", b"", 0.0, "the time of the whole run was over")
        began = time.monotonic()
        try:
            process = self.start(argv, environment)
        except OSError as problem:
            return FinishedProcess(
                127, b"", b"", 0.0, f"{argv[0]} cannot be run ({problem.strerror})"
            )
        fault = None
        try:
            out, err = process.communicate(stdin, timeout=limit)
        except subprocess.TimeoutExpired:
            fault = f"no answer within {limit:.0f} s"
            out, err = b"", b""
        finally:
            fault = self.end(process, fault)
        return FinishedProcess(
            process.returncode if process.returncode is not None else 124,
            out[:MOST],
            err[-65536:],
            time.monotonic() - began,
            fault,
        )

    def end(self, process: subprocess.Popen[bytes], fault: Optional[str] = None) -> Optional[str]:
        """Kill the remains of a child process and everything it started.

        Return the fault, extended with the fate of the process.
        """
        alive = process.poll() is None
        # Twice for a live process: one that forks during the first signal may leave a new process
        # behind.
        for _ in range(2 if alive else 1):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                break
        if alive:
            try:
                process.communicate(timeout=GRACE)
                fault = fault and f"{fault}; the process was killed"
            except (subprocess.TimeoutExpired, ValueError, OSError):
                self.stuck.append(process.pid)
                fault = f"{fault or 'it hangs'}; process {process.pid} cannot be killed: the driver hangs"
        if process in self.running:
            self.running.remove(process)
        return fault

    def stop(self) -> None:
        """End all running child processes."""
        for process in list(self.running):
            self.end(process)


class ProveOutput:
    """The output directory. Redacts every file when it is written, and all of them again in :meth:`seal`."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self.folder, self.redactor = folder, redactor
        self.written: Dict[str, Any] = {}
        self.simulated = False  # labels each document, because it may be read without the others

    def json(self, name: str, value: Any) -> None:
        """Write a JSON document."""
        self.written[name] = value
        self._put(name)

    def text(self, name: str, value: str) -> None:
        """Write a text."""
        self.json(name, value)

    def _put(self, name: str) -> None:
        value = self.written[name]
        if self.simulated and isinstance(value, dict):
            value = {**value, "hardware": "SIMULATED"}
        if isinstance(value, str):
            text = self.redactor.text(value)
        else:
            text = json.dumps(self.redactor.json(value), indent=1, sort_keys=True) + "\n"
        # Renamed into place: a run that is killed leaves no half document.
        fresh = self.folder / f".{name}"
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.folder / name)

    def seal(self) -> List[str]:
        """Write every file again, redacted with all names known by now.

        Return the files that still contain a name; they are removed.
        """
        # A later step may have learnt a name that an earlier file contains.
        for name in list(self.written):
            self._put(name)
        leaking = []
        for path in sorted(self.folder.iterdir()):
            if self.redactor.leaks(path.read_text(encoding="utf-8", errors="replace")):
                path.unlink()
                leaking.append(path.name)
        return leaking


class ProveSettings(NamedTuple):
    """Options of the command line.

    `state` is the file of the original settings while they are changed. `short` does little work,
    for practice.
    """

    out: Path
    carry: Path
    state: Path
    change: bool = False
    locked_clocks: bool = False
    short: bool = False
    minutes: float = 10.0


class Session:
    """Shared state of the steps. A field is None or empty until its step sets it."""

    def __init__(self, settings: ProveSettings, carried: Any, temporary: Path) -> None:
        self.settings, self.carried, self.temporary = settings, carried, temporary
        self.redactor = Redactor()
        self.output = ProveOutput(settings.out, self.redactor)
        self.children = Children()
        self.deadline = time.monotonic() + 60 * settings.minutes
        self.steps: List[Json] = []
        self.notes: List[str] = []
        self.shielded = 0  # above 0 while settings are restored: a signal waits
        self.signal: Optional[str] = None
        self.simulated = False
        self.hangs: Optional[str] = None  # reason why no further step may call the driver
        self.capture: Optional[Json] = None
        self.loaded: Optional[Json] = None  # capture under load
        self.first: Optional[Json] = None  # first reading of all settings
        self.chosen: Any = None  # goldnode.prove.classes.ChosenClass
        self.versions: Json = {}

    # -- child processes

    def left(self, limit: float, reserve: float = 15.0) -> float:
        """Return the time limit of a child process: at most `limit`, and at most the rest of the run without
        `reserve`.

        `reserve` is the time for the end of the run, in seconds.
        """
        return min(limit, self.deadline - time.monotonic() - reserve)

    def node(self, *words: str, limit: float = 120.0, stdin: bytes = b"") -> FinishedProcess:
        """Run the node program."""
        return self.children.run(
            [*self.python(), str(self.carried.node), *words], self.left(limit), stdin
        )

    def python(self, *, site: bool = False) -> List[str]:
        """Return the command of this interpreter, isolated from the caller's environment.

        `site` includes installed packages.
        """
        return [sys.executable, "-I"] if site else [sys.executable, "-I", "-S"]

    def own(
        self, module: str, *words: str, site: bool = False, append: Sequence[str] = ()
    ) -> List[str]:
        """Return the command that runs `main` of a module of this checkout."""
        # Not -m: with -I, Python searches neither the working directory nor PYTHONPATH.
        code = (
            f"import sys; sys.path.insert(0, {str(SOURCES)!r}); sys.path += {list(append)!r}; from "
            f"{module} import main; sys.exit(main())"
        )
        # -B: write no byte code into the checkout
        return [*self.python(site=site), "-B", "-c", code, *words]

    # -- steps

    def step(self, name: str, title: str, work: Callable[[Session], StepOutcome]) -> StepOutcome:
        """Run one step. An exception becomes its outcome and does not stop the next step."""
        print(f"{title} …", flush=True)
        began = time.monotonic()
        files = set(self.output.written)
        stopped = None
        try:
            if self.deadline - began < 20 and name not in ALWAYS:
                outcome = StepOutcome(
                    UNCHECKED, f"the {self.settings.minutes:g} minutes of the run were over"
                )
            else:
                outcome = work(self)
        except NotChecked as problem:
            outcome = StepOutcome(UNCHECKED, str(problem))
        except Stopped as problem:
            stopped = problem
            outcome = problem.outcome or StepOutcome(UNCHECKED, f"interrupted by {problem}")
        except Exception as problem:  # one failed step must not take down the others, nor pass
            traceback.print_exc()
            outcome = StepOutcome(
                UNCHECKED, f"a fault of prove-gpu: {type(problem).__name__}: {problem}"
            )
        self.steps.append(
            {
                "name": name,
                "title": title,
                "status": outcome.status,
                "reason": outcome.reason,
                "figures": outcome.figures,
                "seconds": round(time.monotonic() - began, 2),
                "files": sorted(set(self.output.written) - files),
            }
        )
        print(
            f"  {outcome.status}"
            + (f": {self.redactor.text(outcome.reason)}" if outcome.reason else ""),
            flush=True,
        )
        if stopped is not None:
            raise stopped
        return outcome

    # -- signals

    def listen(self) -> None:
        """End the run cleanly on SIGINT, SIGTERM and SIGHUP."""

        def stop(number: int, _: Any) -> None:
            self.signal = signal.Signals(number).name
            if not self.shielded:
                raise Stopped(self.signal)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Enter a context that no signal interrupts: `with session.shield(): …`.

        A signal that arrives meanwhile takes effect at its end.
        """
        before = self.signal
        self.shielded += 1
        try:
            yield
        finally:
            self.shielded -= 1
        # Not after an exception, which goes on by itself; nor twice for one signal.
        if self.signal and before is None and not self.shielded:
            raise Stopped(self.signal)


# Steps that run even when the time is over: they take seconds, and the run is incomplete without
# them.
ALWAYS = ("settings",)


def temporary() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory that only its owner can read. It contains raw captures."""
    return tempfile.TemporaryDirectory(prefix="prove-gpu-")
