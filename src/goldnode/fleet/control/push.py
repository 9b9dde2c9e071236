"""Push: work on nodes over ssh, one small Ansible run per node (the playbook `rollout.yml` of this package).

`Push` is the NodeWorker of a rollout, `PushReader` its NodeReader. Both run Ansible through
ansible-runner, each run in a process of its own (`push_job`), so that no call waits for a node.
Nothing has to survive here: a controller that takes over gives the same tasks, and the playbook
continues a node where it stands.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from goldnode.core.data import PACKAGE, ansible_environment, data
from goldnode.core.errors import GoldnodeError
from goldnode.core.extras import require
from goldnode.fleet.control import push_job
from goldnode.fleet.control.clock import machine_time
from goldnode.fleet.control.push_job import PushJob
from goldnode.fleet.drain.protocol import DrainCaller
from goldnode.fleet.rollout import push_results
from goldnode.fleet.rollout.model import Direction, NodeObservation, StepPhase
from goldnode.fleet.rollout.parts import NodeTask, Observation
from goldnode.fleet.rollout.push_results import PushEnd, PushTerms
from goldnode.fleet.shared import identity
from goldnode.node.ground.drained import reason

LOGGER = logging.getLogger("goldnode.rollout")
_FORKS = 20  # of a run on many nodes
# A return frees capacity, so it goes first.
_PHASES = (StepPhase.RETURNING, StepPhase.APPLYING, StepPhase.GRANTED)
_GRACE = 15.0  # seconds that a run has to end
_LONGEST_PAUSE = 300.0
# A task that was done and stays is done again: what was observed may have been replaced by an older reading that
# arrived later. Seconds until the first time, doubled each time.
_STAYS, _LONGEST_STAY = 120.0, 3600.0
_ASKING = frozenset(
    {
        "-k",
        "--ask-pass",
        "-K",
        "--ask-become-pass",
        "-J",
        "--ask-vault-pass",
        "--ask-vault-password",
    }
)
_FORBIDDEN = frozenset(
    {"-i", "--inventory", "-l", "--limit", "-C", "--check", "-t", "--tags", "--skip-tags"}
)


class PushError(GoldnodeError):
    """Settings with which no node can be reached or changed, or a run that reached none."""


@dataclass(frozen=True)
class PushSettings:
    """Settings of a push. One object is for `Push` and `PushReader`.

    :param project: the site directory, from which Ansible runs: its ansible.cfg, inventory and records of runs.
    :param inventory: sources of the inventory, as for `-i`; relative to `project`.
    :param rollout: name of the rollout; drains carry its mark.
    :param target: digest of the lock that the rollout moves to.
    :param document: class document of the target (`ClassDocuments().document(CLASS)`); its lock is `target`.
    :param parallel: Ansible runs at the same time. Drains have as many of their own, so that a busy node holds up
        neither a change nor a return.
    :param group: nodes in one Ansible run of the reader.
    :param arguments: further options of ansible-playbook, such as `--user` and `--become`.
    :param tries: failed applications of one task before the node counts as failed.
    :param pause: seconds before a run that did not end well is repeated; doubled each time, up to five minutes.
    :param reading: seconds that one run of the reader may take.
    :param work: private directory for the files of runs; below `project` if relative. The last output of a failed
        node stays there, in `failed/NODE.log`.
    """

    project: Path
    inventory: tuple[str, ...]
    rollout: str
    target: str
    document: Mapping[str, Any]
    parallel: int = 20
    group: int = 100
    arguments: tuple[str, ...] = ()
    tries: int = 2
    pause: float = 10.0
    reading: float = 300.0
    work: Path = Path(".goldnode/rollouts")
    clock: Callable[[], float] = time.time

    @property
    def directory(self) -> Path:
        """Return the directory of this rollout's files."""
        return (self.project / self.work / quote(self.rollout, safe="")).resolve()

    def source(self, text: str) -> str:
        """Return a source of the inventory as an argument of ansible-playbook: absolute, unless it is a list of hosts."""
        return text if "," in text else str((self.project / Path(text).expanduser()).resolve())

    def check(self) -> None:
        """Raise PushError for settings that cannot work, MissingExtraError without Ansible."""
        require("ansible")
        if not self.project.is_dir():
            raise PushError(
                "this is no directory", file=self.project, remedy="name the site directory"
            )
        for text in self.inventory:
            if "," not in text and not Path(self.source(text)).exists():
                raise PushError(
                    "there is no such inventory",
                    file=Path(self.source(text)),
                    remedy="name another with -i",
                )
        if not self.inventory:
            raise PushError("no inventory is named", remedy="name one with -i")
        lock = (self.document.get("lock") or {}).get("digest")
        if "error" in self.document or lock != self.target:
            why = self.document.get("error") or f"its lock is {lock}"
            raise PushError(
                f'class "{self.document.get("class")}" cannot be applied: the rollout moves to {self.target}, and {why}',
                remedy="check out the catalog and the locks of that state, or submit another rollout",
            )
        asking = [word for word in self.arguments if word in _ASKING]
        if asking:
            raise PushError(
                f"{asking[0]} asks a person, and runs of a rollout have none",
                remedy="use a key, a user who needs no password for sudo, or a password file",
            )
        other = [word for word in self.arguments if word.partition("=")[0] in _FORBIDDEN]
        if other:
            raise PushError(f"{other[0]} is set by the rollout itself", remedy="leave it out")
        if min(self.parallel, self.group, self.tries) < 1:
            raise PushError(
                "parallel, group and tries are at least 1", remedy="give a larger number"
            )

    def environment(self) -> dict[str, str]:
        """Return the variables of the environment of a run."""
        environ = dict(os.environ)
        config = self.project.resolve() / "ansible.cfg"
        if not environ.get("ANSIBLE_CONFIG") and config.is_file():
            environ["ANSIBLE_CONFIG"] = str(config)
        environment = ansible_environment(environ, own=not environ.get("ANSIBLE_CONFIG"))
        # ansible-runner sets this variable, which hides the directories in ansible.cfg.
        callbacks = [str(PACKAGE / "ansible/callback"), environ.get("ANSIBLE_CALLBACK_PLUGINS", "")]
        return {
            **environment,
            "ANSIBLE_CALLBACK_PLUGINS": os.pathsep.join(place for place in callbacks if place),
            "ANSIBLE_DISPLAY_OK_HOSTS": "true",  # results are read from what ansible-runner displays
            "ANSIBLE_NOCOLOR": "1",
            "GOLDNODE_RUNS_KEEP": environ.get(
                "GOLDNODE_RUNS_KEEP", "1000"
            ),  # one record for each phase of a node
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), environ.get("PATH", os.defpath)]
            ),
        }


class AnsibleProcess(Protocol):
    """A run that was started: a process in its own session, or that of a test."""

    def poll(self) -> int | None:
        """Return the exit status; None while it works."""

    def terminate(self) -> None:
        """Ask it to end, with its Ansible."""

    def kill(self) -> None:
        """End it at once."""


def start(directory: Path) -> AnsibleProcess:
    """Start `push_job`. It ends with this process: only this process holds its standard input open."""
    with (directory / "errors").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "goldnode.fleet.control.push_job", str(directory)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )


class Runs:
    """Starts Ansible runs of the playbook, each with files in a directory of its own, and reads what they reported.

    The directories are in one of this controller, which goes with it; those of dead controllers go
    as well.
    """

    def __init__(
        self, settings: PushSettings, begin: Callable[[Path], AnsibleProcess] = start
    ) -> None:
        self.settings, self.begin = settings, begin
        root = settings.directory
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.place = Path(tempfile.mkdtemp(prefix=f"run-{identity.actor().run}.", dir=root))
        except OSError as problem:
            why = f"the files of the rollout cannot be written here: {problem.strerror}"
            raise PushError(
                why, file=root, remedy="let this user write to the site directory"
            ) from None
        # `is False`: of a run on another machine, which may share the directory, it is not known (None).
        for left in root.glob("run-*"):
            if identity.works(left.name.removeprefix("run-").rpartition(".")[0]) is False:
                shutil.rmtree(left, ignore_errors=True)
        self._numbers = itertools.count(1)

    def begin_run(
        self, names: Sequence[str], variables: Mapping[str, Any]
    ) -> tuple[Path, AnsibleProcess]:
        """Start a run on these nodes; return its directory and process."""
        directory = self.place / str(next(self._numbers))
        directory.mkdir(mode=0o700)
        own = self.settings
        limit = directory / "limit"
        limit.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        words = [word for source in own.inventory for word in ("-i", own.source(source))]
        words += ["--limit", f"@{limit}", "--forks", str(min(len(names), _FORKS)), *own.arguments]
        playbook, project = str(data("rollout.yml")), str(own.project.resolve())
        push_job.write(
            directory, PushJob(playbook, project, tuple(words), own.environment()), dict(variables)
        )
        return directory, self.begin(directory)

    @staticmethod
    def lines(directory: Path) -> list[dict[str, Any]]:
        """Return what a run has reported. A torn last line is left out."""
        rows = []
        with contextlib.suppress(OSError):
            for line in (directory / push_job.RESULTS).read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    rows.append(json.loads(line))
        return rows

    @staticmethod
    def output(directory: Path) -> str:
        """Return what Ansible printed, or else why it did not begin."""
        for name in (push_job.OUTPUT, "errors"):
            with contextlib.suppress(OSError):
                text = (directory / name).read_text(encoding="utf-8", errors="replace")
                if text.strip():
                    return text
        return ""

    def keep(self, name: str, directory: Path) -> Path:
        """Keep the output of a run as the last one of a node that failed."""
        path = self.settings.directory / "failed" / f"{quote(name, safe='')}.log"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(self.output(directory), encoding="utf-8")
        return path

    def close(self) -> None:
        """Remove the directory of this controller."""
        shutil.rmtree(self.place, ignore_errors=True)


@dataclass
class _Work:
    """The run of one task."""

    task: NodeTask
    directory: Path
    process: AnsibleProcess
    began: float
    stopped: float | None = None  # when it was asked to end


@dataclass
class _Progress:
    """Progress of a present task between its runs."""

    task: NodeTask
    done: bool = False  # for good
    good: int = 0  # runs that ended well
    bad: int = 0
    refused: int = 0
    due: float = 0.0  # of the next run
    problem: str | None = None


class Push:
    """NodeWorker: drains, applies, boots, judges and returns nodes over ssh, each in a run of its own."""

    def __init__(
        self, settings: PushSettings, begin: Callable[[Path], AnsibleProcess] = start
    ) -> None:
        """Check the settings. Raises PushError for those that cannot work, MissingExtraError without Ansible."""
        settings.check()
        self.settings = settings
        self._runs = Runs(settings, begin)
        self._tasks: dict[str, _Progress] = {}
        self._work: dict[str, _Work] = {}
        self._found: list[Observation] = []

    def work(self, tasks: Collection[NodeTask]) -> None:
        """Work on exactly these tasks. Never waits: runs are started here, and ended ones are read by `results`."""
        self._reap()
        wanted = {task.node: task for task in tasks}
        for name, task in wanted.items():
            known = self._tasks.get(name)
            if known is None or _key(known.task) != _key(task):
                self._tasks[name] = _Progress(task)
        for name in [name for name in self._tasks if name not in wanted]:
            del self._tasks[name]
        for name, work in self._work.items():
            present = self._tasks.get(name)
            if present is None or _key(present.task) != _key(work.task):
                self._stop(work)
        self._start()

    def results(self) -> list[Observation]:
        """Return what ended runs have observed since the last call."""
        self._reap()
        observed, self._found = self._found, []
        return observed

    def problems(self) -> dict[str, str]:
        """Return, for each node of a present task that could not be worked on, why, and where its output is."""
        return {name: known.problem for name, known in self._tasks.items() if known.problem}

    def close(self) -> None:
        """Stop all runs. A node in the middle of a change is left; the same task continues it."""
        for work in self._work.values():
            self._stop(work)
        end = time.monotonic() + _GRACE
        while any(work.process.poll() is None for work in self._work.values()):
            if time.monotonic() > end:
                for work in self._work.values():
                    work.process.kill()
                break
            time.sleep(0.1)
        self._work.clear()
        self._tasks.clear()
        self._runs.close()

    # Runs

    def _start(self) -> None:
        """Start the runs that are due, within the limits; drains have their own."""
        now = self.settings.clock()
        drains = sum(work.task.phase is StepPhase.GRANTED for work in self._work.values())
        free = {True: self.settings.parallel - drains}
        free[False] = self.settings.parallel - (len(self._work) - drains)
        due = [
            known
            for name, known in self._tasks.items()
            if not known.done and known.due <= now and name not in self._work
        ]
        for known in sorted(due, key=lambda known: _PHASES.index(known.task.phase)):
            drain = known.task.phase is StepPhase.GRANTED
            if known.task.direction is Direction.BACK and known.task.prior.digest is None:
                self._lost(known, now)
            elif free[drain] > 0:
                free[drain] -= 1
                self._begin(known, now)

    def _begin(self, known: _Progress, now: float) -> None:
        task = known.task
        try:
            directory, process = self._runs.begin_run([task.node], self._variables(task))
        except OSError as problem:  # no space, no processes: it may pass
            known.problem, known.due = (
                f"no run can be started: {problem}",
                now + self.settings.pause,
            )
            LOGGER.error("%s: %s", task.node, known.problem)
            return
        self._work[task.node] = _Work(task, directory, process, now)

    def _lost(self, known: _Progress, now: float) -> None:
        """Report a node that has no earlier state to go back to."""
        known.done, known.problem = (
            True,
            "its state before the step is unknown, so it cannot go back",
        )
        if known.task.phase is StepPhase.APPLYING:
            self._found.append(NodeObservation(known.task.node, now, not_applied=known.problem))

    def _variables(self, task: NodeTask) -> dict[str, Any]:
        return {
            "goldnode_phase": push_results.phase(task),
            "goldnode_rollout": self.settings.rollout,
            "goldnode_claim": uuid.uuid4().hex,
            "goldnode_prior_boot": task.prior.boot_id or "",
            "goldnode_prior_in_service": task.prior.in_service,
            "goldnode_prior_reason": task.prior.reason,
            "goldnode_to": task.prior.digest or "",
            "goldnode_tested_since": _moment(task.tested_since),
            "goldnode_node_class": self.settings.document,
        }

    def _reap(self) -> None:
        """Take the results of ended runs. A run that was stopped had another task than the present one."""
        now = self.settings.clock()
        for name, work in list(self._work.items()):
            if work.process.poll() is None:
                if work.stopped is not None and now - work.stopped > _GRACE:
                    work.process.kill()
                continue
            del self._work[name]
            known = self._tasks.get(name)
            if work.stopped is None and known is not None and _key(known.task) == _key(work.task):
                self._take(known, work, now)
            shutil.rmtree(work.directory, ignore_errors=True)

    def _take(self, known: _Progress, work: _Work, now: float) -> None:
        lines = self._runs.lines(work.directory)
        outcome = push_results.result(work.task, lines, work.began, now, self._terms())
        self._found += outcome.observations
        known.problem = None
        if outcome.problem is None:
            known.due = now + min(_STAYS * 2**known.good, _LONGEST_STAY)
            known.good += 1
            return
        try:
            path = self._runs.keep(work.task.node, work.directory)
            known.problem = f"{outcome.problem} (output: {path})"
        except OSError as problem:
            known.problem = f"{outcome.problem} (its output cannot be kept: {problem.strerror})"
        LOGGER.warning("%s: %s", work.task.node, known.problem)
        known.refused += outcome.end is PushEnd.REFUSED
        if outcome.failure is not None and known.refused >= self.settings.tries:
            self._found.append(outcome.failure)
            known.done = True
        known.due = now + min(self.settings.pause * 2**known.bad, _LONGEST_PAUSE)
        known.bad += 1

    def _terms(self) -> PushTerms:
        actor = identity.rollout_actor(self.settings.rollout)
        mark = reason(
            actor.run,
            actor.controller,
            DrainCaller(actor, clock=lambda: machine_time(self.settings.clock)).now(),
            f"rollout {self.settings.rollout}",
        )
        return PushTerms(self.settings.target, mark)

    def _stop(self, work: _Work) -> None:
        if work.stopped is None:
            work.stopped = self.settings.clock()
            work.process.terminate()


class PushReader:
    """NodeReader: reads digest, boot and verdict of many nodes in few Ansible runs, one light execution each."""

    def __init__(
        self, settings: PushSettings, begin: Callable[[Path], AnsibleProcess] = start
    ) -> None:
        settings.check()
        self.settings, self._begin = settings, begin

    def read(self, names: Iterable[str]) -> list[NodeObservation]:
        """Return what nodes report now; one that does not answer is left out. Raises PushError if no run works."""
        wanted, observed = list(names), list[NodeObservation]()
        runs = Runs(self.settings, self._begin)
        try:
            for at in range(0, len(wanted), self.settings.group):
                observed += self._group(runs, wanted[at : at + self.settings.group])
        finally:
            runs.close()
        return observed

    def _group(self, runs: Runs, names: Sequence[str]) -> list[NodeObservation]:
        variables = {"goldnode_phase": "observe", "goldnode_rollout": self.settings.rollout}
        directory, process = runs.begin_run(names, variables)
        end = time.monotonic() + self.settings.reading
        while process.poll() is None:
            if time.monotonic() > end:
                process.terminate()
                break
            time.sleep(0.1)
        while process.poll() is None and time.monotonic() < end + _GRACE:
            time.sleep(0.1)
        if process.poll() is None:
            process.kill()
        lines = runs.lines(directory)
        if not any("host" in line for line in lines):
            said = [line for line in runs.output(directory).splitlines() if line.strip()]
            raise PushError(
                f"Ansible read none of {len(names)} nodes: {' '.join(said[-3:]) or 'it printed nothing'}",
                remedy=f"try `ansible {shlex.quote(names[0])} -m ping` in {self.settings.project}",
            )
        return list(push_results.observations(lines).values())


def _moment(at: float | None) -> str:
    """Return a time as results of tests have it; empty for none."""
    return "" if at is None else DrainCaller(clock=lambda: at).now()


def _key(task: NodeTask) -> tuple[StepPhase, Direction, int]:
    return task.phase, task.direction, task.attempt
