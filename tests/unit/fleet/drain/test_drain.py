"""Drain and return, against schedulers that answer as the real ones do, with the run killed after each of its calls."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain import record as drain_record
from goldnode.fleet.drain.choice import SCHEDULERS, choose
from goldnode.fleet.drain.command import CommandDrainer
from goldnode.fleet.drain.kubectl import KubectlDrainer
from goldnode.fleet.drain.leftovers import left
from goldnode.fleet.drain.protocol import BY_HAND, DrainCaller, Drainer, NoDrainer, SchedulerDrainer
from goldnode.fleet.drain.record import DrainRecord, DrainRecords
from goldnode.fleet.drain.slurm import SlurmDrainer, slurm_rows
from goldnode.fleet.shared import identity
from goldnode.fleet.shared.identity import Actor
from goldnode.inventory.variables import DRAINS
from goldnode.node.ground.drained import FILE, LEASE, mark, reason

NOW = 1_790_000_000.0
# Ids of runs of this machine that have ended, and of one of another machine.
DEAD, NEXT, THIRD, FOREIGN = (
    f"{identity.place()}-dead01",
    f"{identity.place()}-dead02",
    f"{identity.place()}-dead03",
    "ffff-000001",
)
SINCE = "2026-09-21T14:13:20Z"  # NOW


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of records are written, and no power goes."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def caller(run: str = DEAD, **more: Any) -> DrainCaller:
    return DrainCaller(Actor(run, "ctl"), clock=lambda: NOW, **more)


class Killed(BaseException):
    """SIGKILL: no handler of the run sees it."""


@dataclass
class Steps:
    """Counts the calls of a run, and kills it after the one with this number; 0 kills it before the first."""

    kill: int | None = None
    done: int = 0

    def __call__(self, call: Callable[[], Any]) -> Any:
        if self.kill == 0:
            raise Killed
        result = call()
        self.done += 1
        if self.done == self.kill:
            raise Killed
        return result


# -- schedulers


@dataclass
class FakeSlurm:
    """One node as slurmctld keeps it; `jobs`: how many looks a job is still there."""

    flags: set[str] = field(default_factory=lambda: {"IDLE"})
    reason: str = ""
    jobs: int = 0
    steps: Steps = field(default_factory=Steps)
    asked: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> str:
        self.asked.append(" ".join(argv))
        return cast(str, self.steps(lambda: self.answer(list(argv))))

    def answer(self, argv: list[str]) -> str:
        if argv[1] == "update":
            self.update(*argv[3:])
            return ""
        self.jobs, work = max(0, self.jobs - 1), "ALLOCATED" if self.jobs else "IDLE"
        state = "+".join(
            [
                work if flag == "IDLE" else flag
                for flag in sorted(self.flags, key=lambda flag: (flag == "DRAIN", flag))
            ]
        )
        why = f"Reason={self.reason} [root@2026-01-01T00:00:00]" if self.reason else ""
        return f"NodeName=n1 Arch=x86_64 CoresPerSocket=1 State={state} ThreadsPerCore=1 {why}\n"

    def update(self, *words: str) -> None:
        given = dict(word.split("=", 1) for word in words)
        if "Reason" in given:
            self.reason = given["Reason"]
        if given.get("State") == "DRAIN":
            self.flags |= {"DRAIN"}
        elif (
            given.get("State") == "RESUME"
        ):  # as slurmctld does: DRAIN, DOWN and the reason go together
            self.flags, self.reason = {"IDLE"}, ""

    def drain_by(self, why: str) -> None:
        self.update("State=DRAIN", f"Reason={why}")

    def down_by(self, why: str) -> None:
        self.flags, self.reason = {"DOWN"}, why

    def resume_by(self) -> None:
        self.update("State=RESUME")

    def seen(self) -> Any:
        return (frozenset(self.flags), self.reason)

    def scheduler(self) -> Drainer:
        return SlurmDrainer(run=self, wait=60, sleep=lambda seconds: None)


@dataclass
class FakeKubectl:
    """One node as the API server keeps it, with who set `unschedulable` last, and the version that guards a change."""

    unschedulable: bool = False
    owner: str | None = None
    annotations: dict[str, str] = field(default_factory=dict)
    version: int = 1
    between: Callable[[], None] | None = (
        None  # happens between the next look and the change after it
    )
    managed: bool = True
    pods: list[str] = field(default_factory=list)  # kinds of their controllers
    steps: Steps = field(default_factory=Steps)
    asked: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> str:
        self.asked.append(" ".join(argv))
        return cast(str, self.steps(lambda: self.answer(list(argv))))

    def node(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": "n1",
            "resourceVersion": str(self.version),
            "annotations": dict(self.annotations),
        }
        if self.managed and self.owner:
            metadata["managedFields"] = [
                {"manager": self.owner, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
            ]
        return {"metadata": metadata, "spec": {"unschedulable": True} if self.unschedulable else {}}

    def answer(self, argv: list[str]) -> str:
        if argv[1:3] == ["get", "nodes"]:
            return json.dumps({"items": [self.node()] if self.unschedulable else []})
        if argv[1:3] == ["get", "pods"]:
            return "".join(f"n1   2026-09-21T14:00:00Z   <none>   {kind}\n" for kind in self.pods)
        if argv[1] == "get":
            return json.dumps(self.node())
        if argv[1] == "patch":
            if self.between:
                self.between()
                self.between = None
            patch = json.loads(argv[argv.index("-p") + 1])
            if patch["metadata"].get("resourceVersion") != str(self.version):
                raise GoldnodeError(
                    "kubectl patch failed: Error from server (Conflict): the object has been modified"
                )
            for name, value in patch["metadata"]["annotations"].items():
                self.annotations.pop(name, None)
                if value is not None:
                    self.annotations[name] = value
            self.cordon(bool(patch["spec"]["unschedulable"]), "goldnode")
        elif argv[1] == "drain":
            self.cordon(True, "kubectl")
            self.pods = [kind for kind in self.pods if kind == "DaemonSet"]
        return ""

    def cordon(self, value: bool, manager: str) -> None:
        if value != self.unschedulable:  # kubectl sends nothing for a node that is cordoned already
            self.unschedulable, self.owner = value, manager if value else None
        self.version += 1

    def drain_by(self, why: str) -> None:
        self.resume_by()  # a cordon of a node that is cordoned changes nothing anywhere
        self.cordon(True, "kubectl")

    def resume_by(self) -> None:
        self.cordon(False, "kubectl")

    def seen(self) -> Any:
        return (
            self.unschedulable,
            self.owner,
            {name: text for name, text in self.annotations.items() if not mark(text)},
        )

    def scheduler(self) -> Drainer:
        return KubectlDrainer(run=self)


class FakeCommand:
    """The site's own programs: real ones, which keep the state in a file. `says`: the drain prints the reason of a node that is drained."""

    def __init__(self, place: Path, says: bool) -> None:
        self.place, self.steps = place, Steps()
        tell = 'printf "reason: %s\\n" "$(cat out)"; ' if says else ""
        (place / "drain").write_text(
            f'#!/bin/sh\ncd "{place}" || exit 1; [ -e out ] && {{ {tell}exit 3; }}; printf %s "$2" >out\n'
        )
        (place / "resume").write_text(f'#!/bin/sh\nrm -f "{place}/out"\n')
        for name in ("drain", "resume"):
            (place / name).chmod(0o755)

    def drain_by(self, why: str) -> None:
        (self.place / "out").write_text(why)

    def resume_by(self) -> None:
        (self.place / "out").unlink(missing_ok=True)

    def seen(self) -> Any:
        return (self.place / "out").read_text() if (self.place / "out").exists() else None

    def scheduler(self) -> Drainer:
        steps = self.steps

        class Counted(CommandDrainer):
            @staticmethod
            def _call(argv: Sequence[str], noted: Path | None) -> tuple[int, str]:
                return cast("tuple[int, str]", steps(lambda: CommandDrainer._call(argv, noted)))

        return Counted([str(self.place / "drain")], [str(self.place / "resume")])


Fake = FakeSlurm | FakeKubectl | FakeCommand
# A fake of each of SCHEDULERS. The tests of runs that are killed, here and in fleet/control, use all of them.
FAKES: dict[str, Callable[[], Fake]] = {"slurm": FakeSlurm, "kubectl": FakeKubectl}


# -- a node and the runs on it


@dataclass
class World:
    """A node's own files, the controller's, and a scheduler."""

    fake: Fake
    root: Path
    name: str = "slurm"
    quick: bool = False

    def shell(self, script: str) -> str:
        def quickly() -> str:
            """What the shell does with the scripts of drain_record, without one: there are thousands."""
            if script.startswith("[ ! -e"):
                return f"there\n{self.file.read_text()}" if self.file.exists() else ""
            if "printf %s " in script:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                words = shlex.split(script)
                self.file.write_text(words[words.index("%s") + 1])
            else:
                self.file.unlink(missing_ok=True)
            return ""

        def call() -> str:
            done = subprocess.run(
                ["/bin/sh", "-c", script], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        return cast(str, self.fake.steps(quickly if self.quick else call))

    @property
    def records(self) -> DrainRecords:
        return DrainRecords(
            self.shell,
            drain_record.local_file(str(self.root / "runs"), self.name, "n1"),
            str(self.root),
        )

    @property
    def file(self) -> Path:
        return self.root / FILE.lstrip("/")

    def whole(self, kill: int | None = None, run: str = DEAD, **more: Any) -> None:
        """A run that drains, changes and returns; killed after a call."""
        self.fake.steps = Steps(kill)
        scheduler = self.fake.scheduler()
        try:
            scheduler.drain("n1", "kernel 6.1 runs, want 6.2", caller(run, **more), self.records)
            scheduler.resume("n1", caller(run, **more), self.records)
        except Killed:
            pass

    def looks(
        self, run: str = NEXT, kill: int | None = None, judged: bool = True, **more: Any
    ) -> list[str]:
        """A run of site.yml that finds the node converged; returns its notes. `judged`: whether its check is fine."""
        self.fake.steps = Steps()
        text = self.file.read_text() if self.file.exists() else ""
        cache = self.root / f"cache-{run}-{len(list(self.root.iterdir()))}"
        cache.mkdir()
        scheduler, notes = self.fake.scheduler(), []
        if left(self.name, "n1", text, cache, lambda: scheduler):
            self.fake.steps = Steps(kill)
            scheduler = self.fake.scheduler()
            try:
                found = scheduler.review("n1", caller(run, **more), self.records)
                notes.append(found.note or "")
                if found.ours and judged:
                    notes.append(
                        scheduler.resume("n1", caller(run, **more), self.records).note or ""
                    )
            except Killed:
                pass
        return [note for note in notes if note]


def fakes(place: Path, kind: str, quick: bool = False) -> World:
    root = place / kind
    root.mkdir(parents=True)
    if kind in FAKES:
        return World(FAKES[kind](), root, kind, quick)
    return World(FakeCommand(root, kind == "speaks"), root, "command", quick)


# What a node may be before a run: name, how it came about.
PRIOR: dict[str, Callable[[Any], None]] = {
    "in service": lambda fake: None,
    "drained by a person": lambda fake: fake.drain_by("bad fan; do not touch, ann"),
    "drained by the gate": lambda fake: fake.drain_by("goldnode: gpu.count: 7 (want 8)"),
}
SLURM_ONLY: dict[str, Callable[[Any], None]] = {
    "drained by the health check": lambda fake: fake.drain_by(
        "goldnode: health check: the last verdict is too old"
    ),
    "in service with a note": lambda fake: fake.update("Reason=fan replaced, watch it"),
    "down": lambda fake: fake.down_by("power supply, ann"),
}
KINDS = (*FAKES, "silent", "speaks")


def calls(place: Path, kind: str, prior: Callable[[Any], None]) -> int:
    """How many calls a run of this kind makes."""
    world = fakes(place / "count", kind)
    prior(world.fake)
    world.whole()
    return world.fake.steps.done


def rows() -> list[tuple[str, str]]:
    return [
        (kind, name)
        for kind in KINDS
        for name in ({**PRIOR, **SLURM_ONLY} if kind == "slurm" else PRIOR)
    ]


@pytest.mark.parametrize(("kind", "name"), rows())
def test_a_run_killed_at_any_step_is_ended_by_the_next_one(
    tmp_path: Path, kind: str, name: str
) -> None:
    """State and reason are at the end what they were before, whether the next run drains again or finds the node converged."""
    prior = {**PRIOR, **SLURM_ONLY}[name]
    most = calls(tmp_path, kind, prior)
    assert most >= 6
    for kill, again in itertools.product(
        range(most + 1), ("drains", "converged", "killed as well")
    ):
        world = fakes(tmp_path / f"{kill}-{again}", kind, quick=True)
        prior(world.fake)
        before = world.fake.seen()
        world.whole(kill)
        if again == "killed as well":
            for second in range(1, 4):
                world.whole(second, run=NEXT)
                world.looks(NEXT, kill=second)
        if again == "drains":
            world.whole(run=THIRD)
        else:
            world.looks(THIRD)
        assert world.fake.seen() == before, (kind, name, kill, again)
        assert not world.file.exists(), (kind, name, kill, again)


# What another does between the death of a run and the next one.
MEANWHILE: dict[str, Callable[[Any], Any]] = {
    "drains it": lambda fake: fake.drain_by("bad fan, ann"),
    "resumes it": lambda fake: fake.resume_by(),
    "resumes and drains it": lambda fake: (fake.resume_by(), fake.drain_by("bad fan, ann")),
    "adds to the reason": lambda fake: fake.drain_by(f"{fake.reason or 'x'}, and a bad fan"),
}


LAST_WORDS = [
    (kind, what)
    for kind in (*FAKES, "speaks")
    for what in MEANWHILE
    if kind == "slurm" or what != "adds to the reason"
]


@pytest.mark.parametrize(("kind", "what"), LAST_WORDS)
def test_the_last_word_is_the_persons(tmp_path: Path, kind: str, what: str) -> None:
    most = calls(tmp_path, kind, PRIOR["in service"])
    # A command can only be asked by draining, which is not done to look at a converged node: there the record decides.
    ways = ("drains",) if kind == "speaks" else ("drains", "converged")
    for kill, again in itertools.product(range(most + 1), ways):
        world = fakes(tmp_path / f"{kill}-{again}", kind, quick=True)
        world.whole(kill)
        MEANWHILE[what](world.fake)
        wanted = world.fake.seen()
        world.whole(run=NEXT) if again == "drains" else world.looks()
        assert world.fake.seen() == wanted, (kind, what, kill, again)


@pytest.mark.parametrize("kind", ["slurm", "kubectl"])
@pytest.mark.parametrize(
    "lost", ["node", "controller", "both", "torn", "empty", "another scheduler's"]
)
def test_a_record_that_is_lost_or_damaged_is_not_needed(
    tmp_path: Path, kind: str, lost: str
) -> None:
    for again in ("drains", "converged"):
        world = fakes(tmp_path / again, kind)
        before = world.fake.seen()
        world.whole(5)
        assert world.fake.seen() != before
        if lost in ("node", "both"):
            world.file.unlink()
        if lost in ("controller", "both"):
            for path in (world.root / "runs/drains").iterdir():
                path.unlink()
        if lost in ("torn", "empty"):
            world.file.write_text("{" if lost == "torn" else "")
        if lost == "another scheduler's":
            world.file.write_text(
                DrainRecord(
                    "lsf",
                    node="n1",
                    run=DEAD,
                    controller="ctl",
                    since=SINCE,
                    reason="x",
                    in_service=True,
                ).text()
            )
            (note,) = world.looks()
            assert "lsf has n1 drained since run" in note
            assert world.file.exists(), "until a person has seen to it"
            with pytest.raises(GoldnodeError, match="lsf has n1 drained"):
                world.fake.scheduler().drain("n1", "x", caller(NEXT), world.records)
            assert world.fake.seen() != before
            continue
        world.whole(run=NEXT) if again == "drains" else world.looks()
        assert world.fake.seen() == before
        assert not world.file.exists()


def test_no_scheduler_any_more_is_reported_and_not_forgotten(tmp_path: Path) -> None:
    world = fakes(tmp_path, "slurm")
    world.whole(5)
    outcome = NoDrainer().review("n1", caller(NEXT), world.records)
    assert not outcome.ours
    assert (
        "goldnode_drain is now `none`: it stays drained. Return it with `scontrol update NodeName=n1 State=RESUME`"
        in (outcome.note or "")
    )
    assert world.file.exists()
    world.file.write_text("{")
    assert "cannot be read" in (NoDrainer().resume("n1", caller(NEXT), world.records).note or "")


@pytest.mark.parametrize("kind", ["slurm", "kubectl", "silent"])
def test_a_node_on_which_another_run_works_is_left_to_it(tmp_path: Path, kind: str) -> None:
    alive = identity.run_id(os.getpid())
    assert alive is not None
    world = fakes(tmp_path, kind)
    world.whole(6, run=alive)
    taken, text = world.fake.seen(), world.file.read_text()
    (note,) = world.looks()
    assert f"drained by run {alive} of ctl" in note
    with pytest.raises(GoldnodeError, match="may still work on it"):
        world.fake.scheduler().drain("n1", "x", caller(NEXT), world.records)
    assert (world.fake.seen(), world.file.read_text()) == (taken, text)


@pytest.mark.parametrize("kind", ["slurm", "kubectl", "silent"])
@pytest.mark.parametrize(
    ("age", "take_over", "returns"),
    [(3600, False, False), (3600, True, True), (LEASE + 60, False, True)],
)
def test_a_drain_of_another_controller_is_given_its_time(
    tmp_path: Path, kind: str, age: float, take_over: bool, returns: bool
) -> None:
    world = fakes(tmp_path, kind)
    before = world.fake.seen()
    world.whole(6 if kind != "silent" else 4, run=FOREIGN)
    later = {"take_over": take_over}
    world.fake.steps, scheduler = Steps(), world.fake.scheduler()
    who = replace(caller(NEXT, **later), clock=lambda: NOW + age)
    found = scheduler.review("n1", who, world.records)
    assert found.ours is returns
    if returns:
        scheduler.resume("n1", who, world.records)
        assert world.fake.seen() == before
    else:
        assert "-e goldnode_take_over=true" in (found.note or "")
        assert world.file.exists()


def test_a_node_that_is_not_fine_is_not_returned(tmp_path: Path) -> None:
    world = fakes(tmp_path, "slurm")
    world.whole(6)
    taken = world.fake.seen()
    world.looks(judged=False)
    assert world.fake.seen() == taken
    assert world.file.exists()
    world.looks()
    assert world.fake.seen() == (frozenset({"IDLE"}), "")


def test_reason_names_the_run_and_the_record_has_the_earlier_state(tmp_path: Path) -> None:
    world = fakes(tmp_path, "slurm")
    fake = cast(FakeSlurm, world.fake)
    fake.update("Reason=fan replaced")
    world.whole(6)
    assert re.fullmatch(
        rf"goldnode run {DEAD}\.[0-9a-f]{{6}} of ctl at {SINCE}: kernel 6\.1 runs, want 6\.2",
        fake.reason,
    )
    kept = DrainRecord(
        "slurm",
        node="n1",
        run=DEAD,
        controller="ctl",
        since=SINCE,
        reason=fake.reason,
        in_service=True,
        state="IDLE",
        was="fan replaced",
    )
    found = world.records.read()
    assert (found.node, found.local) == (kept, kept)
    assert world.file.stat().st_mode & 0o777 == 0o644


def test_a_command_that_was_cut_off_before_it_ended_leaves_the_node_as_it_is(
    tmp_path: Path,
) -> None:
    """Nothing says whose drain it is: not the command, not the node, and the controller's file went with the controller."""
    world = fakes(tmp_path, "silent")
    world.whole(3)
    for path in (world.root / "runs/drains").iterdir():
        path.unlink()
    assert json.loads(world.file.read_text())["in_service"] is None
    (note,) = world.looks()
    assert (
        "It cannot be seen whether n1 was in service before: the run was cut off as it drained it. It stays as it is."
        in note
    )
    assert f"`{tmp_path}/silent/resume n1` returns it." in note
    assert world.fake.seen() is not None


def test_a_command_outlives_the_run_that_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    """What it came to is noted all the same."""
    slow = tmp_path / "slow"
    slow.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo told; touch {tmp_path}/out\n"
    )
    slow.chmod(0o755)
    local = tmp_path / "command-n1.json"
    text = f"""
import subprocess
from pathlib import Path
from goldnode.fleet.drain.command import CommandDrainer
from goldnode.fleet.drain.protocol import BY_HAND, DrainCaller
from goldnode.fleet.drain.record import DrainRecords
shell = lambda script: subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout
CommandDrainer(["{slow}"], ["true"]).drain("n1", "x", DrainCaller(), DrainRecords(shell, Path("{local}"), "{tmp_path}"))
"""
    process = subprocess.Popen([sys.executable, "-c", text], start_new_session=True)
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (tmp_path / "go").touch()
    run = json.loads(local.read_text())["run"]
    noted = tmp_path / f"command-n1.json.{run}.drain"
    while not noted.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert noted.read_text() == "0\n"


# -- each scheduler


def test_slurm_waits_for_the_jobs_and_resumes_what_it_drained() -> None:
    fake = FakeSlurm(jobs=3)
    assert fake.scheduler().drain("n1", "kernel", caller()).in_service
    assert re.match(
        r"scontrol update NodeName=n1 State=DRAIN Reason=goldnode run \S+ of ctl at \S+: kernel$",
        fake.asked[1],
    )
    assert len([line for line in fake.asked if "show" in line]) == 5
    assert fake.scheduler().resume("n1", caller()).changed
    assert fake.asked[-1] == "scontrol update NodeName=n1 State=RESUME"


def test_slurm_gives_up_on_jobs_that_do_not_end() -> None:
    with pytest.raises(GoldnodeError, match="still has jobs after 60 s"):
        FakeSlurm(jobs=100).scheduler().drain("n1", "kernel", caller())


@pytest.mark.parametrize("kind", ["slurm", "kubectl"])
def test_a_node_that_is_returned_while_it_drains_is_not_touched(tmp_path: Path, kind: str) -> None:
    """Who says that it works again has the last word: the run must not boot it under the jobs that come."""
    world = fakes(tmp_path, kind)
    scheduler = cast(SchedulerDrainer, world.fake.scheduler())
    scheduler.finish = lambda node: cast(Any, world.fake).resume_by()  # type: ignore[method-assign]
    with pytest.raises(GoldnodeError, match="was returned to service while it drained"):
        scheduler.drain("n1", "kernel", caller(), world.records)


def test_slurm_node_of_another_name() -> None:
    with pytest.raises(GoldnodeError, match="shows no state of node n1"):
        SlurmDrainer(run=lambda argv: "slurm_load_node error").drain("n1", "x", caller())


@pytest.mark.parametrize(
    ("line", "in_service", "state", "why"),
    [
        ("NodeName=n1 State=IDLE", True, "IDLE", ""),
        (
            "NodeName=n1 State=MIXED+PLANNED Reason=note [ann@2026-01-01T00:00:00]",
            True,
            "MIXED+PLANNED",
            "note",
        ),
        (
            "NodeName=n1 State=IDLE*+DRAIN Reason=bad [x] fan [ann@2026-01-01T00:00:00] Comment=y",
            False,
            "IDLE+DRAIN",
            "bad [x] fan",
        ),
        ("NodeName=n1 State=DOWN*+DRAIN Reason=x Extra=z", False, "DOWN+DRAIN", "x"),
        (
            "NodeName=n1 State=DOWN Reason=Not responding [slurm@2026-01-01T00:00:00]",
            False,
            "DOWN",
            "Not responding",
        ),
        ("NodeName=n1 State=IDLE+DRAIN", False, "IDLE+DRAIN", ""),
    ],
)
def test_scontrol_line_gives_state_reason_and_service(
    line: str, in_service: bool, state: str, why: str
) -> None:
    ((name, found),) = slurm_rows(f"{line}\n\n")
    assert (name, found.in_service, found.state, found.reason) == ("n1", in_service, state, why)


def test_a_node_that_is_down_is_not_resumed_for_the_mark_alone() -> None:
    text = reason(DEAD, "ctl", SINCE, "x")
    ((_, found),) = slurm_rows(f"NodeName=n1 State=DOWN Reason={text}")
    assert (found.in_service, found.held) == (False, None)


@pytest.mark.parametrize("managed", [True, False])
def test_kubectl_cordons_with_its_reason_in_one_change(managed: bool) -> None:
    fake = FakeKubectl(managed=managed)
    assert fake.scheduler().drain("n1", "kernel", caller()).in_service
    assert len([line for line in fake.asked if " patch " in line]) == 1
    assert "kubectl drain n1 --ignore-daemonsets" in " ".join(fake.asked)
    assert mark(fake.annotations["goldnode/drained-for"]) == (DEAD, "ctl", SINCE, "kernel")
    assert fake.scheduler().resume("n1", caller()).changed
    assert (fake.unschedulable, fake.annotations) == (False, {})


def test_kubectl_leaves_annotation_and_cordon_of_another() -> None:
    fake = FakeKubectl(
        unschedulable=True,
        owner="kubectl",
        annotations={"goldnode/drained-for": "bad fan, ann"},
    )
    outcome = fake.scheduler().drain("n1", "kernel", caller())
    assert (outcome.changed, outcome.ours) == (False, False)
    note = fake.scheduler().resume("n1", caller()).note or ""
    assert (
        "(kubectl: cordoned, bad fan, ann), not for a run, and stays so. `kubectl uncordon n1` returns it."
        in note
    )
    assert (fake.unschedulable, fake.annotations) == (
        True,
        {"goldnode/drained-for": "bad fan, ann"},
    )


def test_kubectl_a_cordon_between_look_and_change_is_not_overwritten() -> None:
    fake = FakeKubectl()
    fake.between = lambda: fake.cordon(True, "kubectl")
    assert not fake.scheduler().drain("n1", "kernel", caller()).ours
    assert fake.annotations == {}
    fake.scheduler().resume("n1", caller())
    assert fake.unschedulable


def test_kubectl_failure_to_drain_is_raised() -> None:
    def forbidden(argv: Sequence[str]) -> str:
        if argv[1] == "patch":
            raise GoldnodeError("kubectl patch failed: Forbidden")
        return json.dumps(FakeKubectl().node())

    with pytest.raises(GoldnodeError, match="Forbidden"):
        KubectlDrainer(run=forbidden).drain("n1", "x", caller())


def script(path: Path, status: int) -> str:
    path.write_text(f'#!/bin/sh\necho "$@" >> {path}.log\necho trouble >&2\nexit {status}\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("status", "in_service"), [(0, True), (3, False)])
def test_a_command_of_the_site(tmp_path: Path, status: int, in_service: bool) -> None:
    drain = CommandDrainer([script(tmp_path / "drain", status)], [script(tmp_path / "resume", 0)])
    assert drain.drain("n1", "a reason", caller()).in_service is in_service
    assert re.fullmatch(
        r"n1 goldnode run \S+ of ctl at \S+: a reason\n", (tmp_path / "drain.log").read_text()
    )
    note = drain.resume("n1", caller(), before=in_service).note
    assert (tmp_path / "resume.log").exists() is in_service
    assert in_service is (note is None)


def test_a_command_that_fails_stops_the_reboot(tmp_path: Path) -> None:
    with pytest.raises(GoldnodeError, match="trouble"):
        CommandDrainer([script(tmp_path / "drain", 1)], ["true"]).drain("n1", "x", caller())
    with pytest.raises(GoldnodeError, match="not found"):
        CommandDrainer(["/nowhere/drain"], ["true"]).drain("n1", "x", caller())


@pytest.mark.parametrize(
    ("name", "text"), [("lsf", "is not known"), ("command", "needs goldnode_drain_command")]
)
def test_unknown_or_unconfigured_drain_backend_is_refused(name: str, text: str) -> None:
    with pytest.raises(GoldnodeError, match=text):
        choose(name)


# -- marks, records, identity


@pytest.mark.parametrize(
    "text",
    [
        "",
        "goldnode: kernel",
        "goldnode run of the mill",
        "bad fan",
        reason(DEAD, "ctl", SINCE, "kernel") + " and a bad fan",
        reason(DEAD, "ctl", SINCE, "kernel").replace("kernel", "Kernel"),
        " " + reason(DEAD, "ctl", SINCE, "kernel"),
    ],
)
def test_only_what_a_run_wrote_word_for_word_is_its_mark(text: str) -> None:
    assert mark(text) is None


@pytest.mark.parametrize(
    "why",
    [
        "",
        "a",
        "x" * 999,
        "two\nlines\t\x1b[31m",
        "quotes \" and ' and [root@2026-01-01T00:00:00]",
        "größer — Comment=x",
    ],
)
def test_a_mark_is_one_line_and_is_found_again(why: str) -> None:
    text = reason(DEAD, "ctl.example.net", SINCE, why)
    found = mark(text)
    assert found is not None
    assert (found.run, found.controller, found.time) == (DEAD, "ctl.example.net", SINCE)
    assert text.isprintable()
    assert len(text) < 400


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema": "goldnode.drain/2"}',
        '{"schema": "goldnode.drain/1", "by": "slurm"}',
    ],
)
def test_damaged_drain_record_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        drain_record.parse(text)


def test_drain_record_with_a_wrong_type_is_an_error() -> None:
    good = DrainRecord(
        "slurm", node="n1", run=DEAD, controller="ctl", since=SINCE, reason="x", in_service=None
    )
    assert drain_record.parse(good.text()) == good
    for name, value in (("in_service", "yes"), ("by", None), ("node", ["n1"])):
        with pytest.raises(ValueError, match="another type"):
            drain_record.parse(json.dumps({**json.loads(good.text()), name: value}))


def test_a_record_goes_with_the_directory_that_a_removal_has_left_for_it(tmp_path: Path) -> None:
    world = fakes(tmp_path, "slurm")
    world.whole(6)
    assert world.file.exists()
    world.looks()
    assert not world.file.parent.exists()


def test_the_run_of_this_process_works_and_others_do_not() -> None:
    here = identity.actor()
    assert identity.works(here.run) is True
    assert identity.works(DEAD) is False
    assert identity.works(FOREIGN) is None


def test_the_scheduler_is_asked_once_for_all_hosts(tmp_path: Path) -> None:
    fake = FakeSlurm()
    fake.drain_by(reason(DEAD, "ctl", SINCE, "kernel"))
    asked = [left("slurm", name, "", tmp_path, fake.scheduler) for name in ("n1", "n2", "n3")]
    assert asked == [f"run {DEAD} of ctl, {SINCE}", "", ""]
    assert fake.asked == ["scontrol show node --oneliner"]
    assert left("none", "n1", "", tmp_path, fake.scheduler) == ""


def test_unreachable_scheduler_is_reported_once(tmp_path: Path) -> None:
    def broken(argv: Sequence[str]) -> str:
        raise GoldnodeError("scontrol: not found on this machine")

    with pytest.raises(
        GoldnodeError, match="slurm cannot be asked for nodes that an earlier run has left"
    ):
        left("slurm", "n1", "", tmp_path, lambda: SlurmDrainer(run=broken))
    assert left("slurm", "n2", "", tmp_path, lambda: SlurmDrainer(run=broken)) == ""
    assert "cannot be read" in left("slurm", "n3", "{", tmp_path, lambda: SlurmDrainer(run=broken))


def test_a_drain_that_does_not_wait_leaves_the_jobs_to_slurm() -> None:
    slurm = FakeSlurm(jobs=1000)
    run = identity.rollout_run("r1")
    drainer = SlurmDrainer(run=slurm, sleep=lambda seconds: pytest.fail("it waited"))
    busy = drainer.drain("n1", "rollout r1", caller(run, waits=False))
    assert (busy.in_service, busy.ours, busy.empty) == (True, True, False)
    held = mark(slurm.reason)
    assert held is not None
    assert held.run == run
    slurm.jobs = 0
    assert drainer.drain("n1", "rollout r1", caller(run, waits=False)).empty, (
        "another controller continues it"
    )
    assert "empty" not in busy.to_json()


def test_each_scheduler_is_a_value_of_the_inventory_and_has_a_way_back_and_a_fake() -> None:
    assert {"none", "command", *SCHEDULERS} == set(DRAINS)
    assert set(BY_HAND) == set(SCHEDULERS)
    assert set(FAKES) == set(SCHEDULERS)


def test_role_and_page_have_each_value_of_the_inventory() -> None:
    root = Path(__file__).parents[4]
    specs = yaml.safe_load((root / "roles/node_class/meta/argument_specs.yml").read_text())
    options = specs["argument_specs"]["main"]["options"]
    assert set(options["goldnode_drain"]["choices"]) == set(DRAINS)
    page = (root / "docs/reference/variables.md").read_text()
    assert [name for name in SCHEDULERS if f"\n| `{name}` | " not in page] == []


def test_a_kubectl_that_does_not_know_the_flag_for_managed_fields_is_asked_without_it() -> None:
    asked: list[list[str]] = []

    def run(argv: Sequence[str]) -> str:
        asked.append(list(argv))
        if "--show-managed-fields" in argv:  # as kubectl 1.20.2 answers
            raise GoldnodeError("kubectl get failed: Error: unknown flag: --show-managed-fields")
        return json.dumps({"metadata": {"resourceVersion": "7"}, "spec": {"unschedulable": True}})

    state = KubectlDrainer(run=run).state_of("n1")
    assert (state.in_service, state.version) == (False, "7")
    assert [words[4:] for words in asked] == [
        ["-o", "json", "--show-managed-fields"],
        ["-o", "json"],
    ]
