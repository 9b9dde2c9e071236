"""Push: which runs are started for which tasks, and what their results mean. The runs are simulated."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from goldnode.fleet.control import push, push_job
from goldnode.fleet.control.push import Push, PushError, PushReader, PushSettings
from goldnode.fleet.rollout import node_state, push_results
from goldnode.fleet.rollout.model import (
    Answer,
    Blame,
    Direction,
    NodeObservation,
    Prior,
    SchedulerObservation,
    Step,
    StepPhase,
)
from goldnode.fleet.rollout.parts import NodeTask
from goldnode.fleet.rollout.steps import judge
from goldnode.fleet.shared import identity
from goldnode.node.ground.drained import mark

OLD, NEW = "sha256:old", "sha256:new"
PRIOR = Prior(in_service=True, digest=OLD, boot_id="b1/1")
GRANTED, APPLYING, RETURNING = StepPhase.GRANTED, StepPhase.APPLYING, StepPhase.RETURNING


def task(
    node: str,
    phase: StepPhase = APPLYING,
    direction: Direction = Direction.FORWARD,
    attempt: int = 1,
) -> NodeTask:
    return NodeTask(node, phase, direction, attempt, PRIOR)


class Process:
    """A simulated run. The test ends it with results."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.status, self.ending = directory, None, False
        self.job = json.loads((directory / push_job.JOB).read_text())
        self.variables = json.loads((directory / push_job.VARIABLES).read_text())
        self.nodes = (directory / "limit").read_text().split()
        self.stubborn = self.killed = False

    status: int | None

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.ending = True
        if not self.stubborn:
            self.status = 1

    def kill(self) -> None:
        self.killed, self.status = True, -9

    def end(self, *lines: Mapping[str, Any], status: str = "successful") -> None:
        rows = [*lines, {push_results.ENDED: status}]
        (self.directory / push_job.RESULTS).write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
        output = self.directory / push_job.OUTPUT
        output.parent.mkdir(parents=True)
        output.write_text("what Ansible printed\n")
        self.status = 0


@dataclasses.dataclass
class Site:
    """A push with simulated runs, and a clock that the test moves."""

    project: Path
    runs: list[Process] = dataclasses.field(default_factory=list)
    now: float = 1000.0

    def settings(self, **options: Any) -> PushSettings:
        document = {"class": "c", "lock": {"digest": NEW}}
        return PushSettings(
            self.project, ("hosts.yml",), "r1", NEW, document, clock=lambda: self.now, **options
        )

    def begin(self, directory: Path) -> Process:
        self.runs.append(Process(directory))
        return self.runs[-1]

    def push(self, **options: Any) -> Push:
        return Push(self.settings(**options), self.begin)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "hosts.yml").write_text("c: {hosts: {n1: }}\n")
    return Site(tmp_path)


def row(node: str, name: str, what: str = push_results.OK, **result: Any) -> dict[str, Any]:
    return {"host": node, "task": name, "what": what, "result": result}


def observed(
    node: str, digest: str | None = NEW, verdict: str = "pass", **more: Any
) -> dict[str, Any]:
    seen = {
        "node": node,
        "at": 1005.0,
        "boot_id": "b1/2",
        "digest": digest,
        "verdict": verdict,
        **more,
    }
    return row(node, "Observe the node", observation=seen)


def drained(node: str, **more: Any) -> dict[str, Any]:
    record = {"was": "", "reason": "goldnode run x", "by": "command"}
    empty = more.pop("empty", True)
    found = {"in_service": True, "note": None, "record": record, **more}
    return row(node, "Take the node out of service", drain=found, empty=empty)


def test_each_node_has_a_run_of_its_own_with_what_its_task_needs(site: Site) -> None:
    worker = site.push(arguments=("--user", "ops"))
    worker.work(
        [
            task("n1", GRANTED),
            task("n2"),
            task("n3", direction=Direction.BACK),
            task("n4", RETURNING),
        ]
    )
    phases = {run.nodes[0]: run.variables["goldnode_phase"] for run in site.runs}
    assert phases == {"n1": "drain", "n2": "apply", "n3": "back", "n4": "return"}
    found = next(run for run in site.runs if run.nodes == ["n3"])
    assert found.variables["goldnode_prior_boot"] == "b1/1"
    assert (
        found.variables["goldnode_prior_in_service"],
        found.variables["goldnode_prior_reason"],
    ) == (
        True,
        "",
    )
    assert found.variables["goldnode_to"] == OLD
    assert found.variables["goldnode_node_class"]["lock"]["digest"] == NEW
    assert found.job["words"][-2:] == ["--user", "ops"]
    assert len({run.variables["goldnode_claim"] for run in site.runs}) == 4
    worker.work(
        [
            task("n1", GRANTED),
            task("n2"),
            task("n3", direction=Direction.BACK),
            task("n4", RETURNING),
        ]
    )
    assert len(site.runs) == 4, "a task under way is not started again"


def test_a_node_that_passes_is_reported_and_left_alone(site: Site) -> None:
    worker = site.push()
    worker.work([task("n1")])
    site.runs[0].end(observed("n1"))
    assert worker.results() == [NodeObservation("n1", 1005.0, "b1/2", NEW, Answer.PASSES)]
    site.now += 100
    worker.work([task("n1")])
    assert len(site.runs) == 1
    assert not site.runs[0].directory.exists(), "the files of a run go with it"
    site.now += 30
    worker.work([task("n1")])
    assert len(site.runs) == 2, (
        "a task that stays is done again: an older reading may have arrived later"
    )


def test_a_drain_reports_the_state_before_it_and_after_it(site: Site) -> None:
    worker = site.push()
    worker.work([task("n1", GRANTED), task("n2", GRANTED), task("n3", GRANTED)])
    site.now += 5
    site.runs[0].end(drained("n1"))
    site.runs[1].end(
        drained("n2", in_service=False, record={"was": "fan broken", "reason": "goldnode run x"})
    )
    site.runs[2].end(drained("n3", empty=False))
    assert worker.results() == [
        SchedulerObservation("n1", 1000.0, True),
        SchedulerObservation("n1", 1005.0, False, 0.0, "goldnode run x"),
        SchedulerObservation("n2", 1000.0, False, 0.0, "fan broken"),
        SchedulerObservation("n2", 1005.0, False, 0.0, "fan broken"),
    ], "of a node with jobs, the scheduler shows when it is empty"


def test_a_node_without_a_scheduler_is_out_under_the_mark_of_the_rollout(site: Site) -> None:
    worker = site.push()
    worker.work([task("n1", GRANTED)])
    site.runs[0].end(drained("n1", record=None))
    before, after = worker.results()
    assert isinstance(before, SchedulerObservation)
    assert isinstance(after, SchedulerObservation)
    assert before.in_service
    held = mark(after.reason)
    assert held is not None
    assert held.run == identity.rollout_run("r1")


def test_a_return_waits_for_tests_after_a_change_alone(site: Site) -> None:
    worker = site.push()
    changed = dataclasses.replace(task("n1", RETURNING), tested_since=1_790_000_000.0)
    worker.work([changed, task("n2", RETURNING)])
    since = {run.nodes[0]: run.variables["goldnode_tested_since"] for run in site.runs}
    assert since == {"n1": "2026-09-21T14:13:20Z", "n2": ""}
    why = "n1 stays out of service: tests before its return: gemm has not run since"
    site.runs[0].end(
        row("n1", "Put the node back into service", push_results.FAILED, msg=why), status="failed"
    )
    assert worker.results() == [], "the step goes on"
    assert why in worker.problems()["n1"]
    site.now += 60
    worker.work([changed, task("n2", RETURNING)])
    assert [run.nodes[0] for run in site.runs[2:]] == ["n1"], "it is tried again"


def test_a_return_reports_who_has_the_node(site: Site) -> None:
    worker = site.push()
    worker.work([task("n1", RETURNING), task("n2", RETURNING), task("n3", RETURNING)])
    site.runs[0].end(drained("n1"))
    site.runs[1].end(drained("n2", in_service=False, record={"was": "fan broken"}, note="stays so"))
    site.runs[2].end(
        drained("n3", note="was drained by run y of other, which may still work on it")
    )
    assert worker.results() == [
        SchedulerObservation("n1", 1000.0, True),
        SchedulerObservation("n2", 1000.0, False, 0.0, "fan broken"),
    ]
    assert "may still work" in worker.problems()["n3"]


@pytest.mark.parametrize(
    ("line", "cause", "blame"),
    [
        (
            row(
                "n1",
                "node_class : Apply every part of the plan",
                push_results.FAILED,
                msg="dkms failed\nlong log",
                part="gpu_driver",
                error={
                    "part": "gpu_driver",
                    "kind": "module.build",
                    "resource": "nvidia",
                    "error": "no rule",
                },
            ),
            "gpu_driver: module.build nvidia: no rule",
            Blame.SOFTWARE,
        ),
        (
            row(
                "n1",
                "Get the plan",
                push_results.FAILED,
                refusals=[{"code": "no-space", "message": "/boot is full"}],
            ),
            "no-space: /boot is full",
            Blame.SOFTWARE,
        ),
        (
            row(
                "n1",
                "Get the plan",
                push_results.FAILED,
                refusals=[{"code": "gpu-count", "message": "7 of 8"}],
            ),
            "gpu-count: 7 of 8",
            Blame.HARDWARE,
        ),
    ],
)
def test_an_application_that_fails_again_is_reported_with_its_cause(
    site: Site, line: dict[str, Any], cause: str, blame: Blame
) -> None:
    worker = site.push(tries=2)
    worker.work([task("n1")])
    site.runs[0].end(line, status="failed")
    worker.work([task("n1")])
    assert worker.results() == [], "it is tried again first"
    assert len(site.runs) == 1, "after a pause"
    site.now += 11
    worker.work([task("n1")])
    site.runs[1].end(line, status="failed")
    (found,) = worker.results()
    assert isinstance(found, NodeObservation)
    assert found.not_applied == cause
    assert "failed/n1.log" in worker.problems()["n1"]
    assert (
        site.project / ".goldnode/rollouts/r1/failed/n1.log"
    ).read_text() == "what Ansible printed\n"
    step = Step(
        "n1",
        wave=0,
        direction=Direction.FORWARD,
        phase=APPLYING,
        epoch=1,
        attempt=1,
        granted_at=900.0,
        changed_at=900.0,
        deadline=9000.0,
        prior=PRIOR,
    )
    judged = judge(step, found, NEW)
    assert (judged.answer, judged.cause, judged.blame) == (Answer.FAILS, cause, blame)
    site.now += 1000
    worker.work([task("n1")])
    assert len(site.runs) == 2


@pytest.mark.parametrize(
    "lines",
    [
        [row("n1", "Get the plan", push_results.UNREACHABLE, msg="ssh: connect: timed out")],
        [row("n1", "node_class : Reboot the node", push_results.FAILED, msg="Timed out waiting")],
        [
            row(
                "n1",
                "Get the plan",
                push_results.FAILED,
                refusals=[{"code": "gpu-in-use", "message": "pid 7"}],
            )
        ],
        [row("n1", "Take the node over", push_results.FAILED, msg="still at work", busy=True)],
        [row("n1", "Apply every part", push_results.FAILED, msg="taken over", lost=True)],
        [],
    ],
)
def test_push_without_evidence_yields_a_problem_and_no_result(
    site: Site, lines: list[dict[str, Any]]
) -> None:
    worker = site.push(tries=1)
    for number in range(1, 4):
        worker.work([task("n1")])
        assert len(site.runs) == number
        site.runs[-1].end(*lines, status="failed")
        assert worker.results() == []
        assert worker.problems()["n1"]
        site.now += 300


def test_a_verdict_that_could_not_check_is_unknown_and_asked_again(site: Site) -> None:
    worker = site.push()
    worker.work([task("n1")])
    site.runs[0].end(observed("n1", verdict="unknown"))
    (found,) = worker.results()
    assert isinstance(found, NodeObservation)
    assert found.verdict is Answer.UNKNOWN
    site.now += 11
    worker.work([task("n1")])
    site.runs[1].end(observed("n1", digest=None))
    worker.results()
    assert "no whole lock" in worker.problems()["n1"]


def test_runs_are_bounded_and_drains_have_a_limit_of_their_own(site: Site) -> None:
    worker = site.push(parallel=2)
    tasks = [task(f"d{n}", GRANTED) for n in range(5)] + [task(f"a{n}") for n in range(5)]
    worker.work([*tasks, task("r0", RETURNING)])
    assert sorted(run.nodes[0] for run in site.runs) == ["a0", "d0", "d1", "r0"], (
        "a return goes first"
    )
    for run in site.runs:
        run.end()
    worker.work([*tasks, task("r0", RETURNING)])
    assert sorted(run.nodes[0] for run in site.runs[4:]) == ["a1", "a2", "d2", "d3"]


def test_a_changed_task_starts_only_after_the_run_of_the_earlier_one_has_ended(site: Site) -> None:
    worker = site.push()
    worker.work([task("n1")])
    site.runs[0].stubborn = True
    back = task("n1", direction=Direction.BACK, attempt=2)
    worker.work([back])
    assert site.runs[0].ending
    assert len(site.runs) == 1, "one run at a time for a node"
    site.now += 20
    worker.work([back])
    assert site.runs[0].killed
    worker.work([back])
    assert site.runs[1].variables["goldnode_phase"] == "back"
    worker.work([])
    assert site.runs[1].ending
    assert worker.results() == []


def test_a_node_without_an_earlier_state_is_not_sent_back(site: Site) -> None:
    worker = site.push()
    lost = dataclasses.replace(
        task("n1", direction=Direction.BACK), prior=dataclasses.replace(PRIOR, digest=None)
    )
    worker.work([lost])
    (found,) = worker.results()
    assert isinstance(found, NodeObservation)
    assert found.not_applied == "its state before the step is unknown, so it cannot go back"
    assert site.runs == []


def test_a_run_that_cannot_be_started_is_tried_again(site: Site) -> None:
    def full(directory: Path) -> Process:
        raise OSError(28, "No space left on device")

    worker = Push(site.settings(), full)
    worker.work([task("n1")])
    assert "No space left" in worker.problems()["n1"]
    assert worker.results() == []
    (site.project / "file").write_text("")
    with pytest.raises(PushError, match="cannot be written"):
        site.push(work=Path("file"))


def test_close_ends_all_runs_and_removes_their_files(site: Site) -> None:
    worker = site.push()
    worker.work([task("n1"), task("n2")])
    worker.close()
    assert all(run.ending for run in site.runs)
    assert list((site.project / ".goldnode/rollouts/r1").glob("run-*")) == []


def test_files_of_a_dead_controller_are_removed(site: Site) -> None:
    first = site.push()
    root = site.project / ".goldnode/rollouts/r1"
    dead = root / f"run-{identity.place()}-000000.left"
    dead.mkdir()
    second = site.push()
    assert not dead.exists()
    assert len(list(root.glob("run-*"))) == 2, "those of a controller that works stay"
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"inventory": ("nowhere.yml",)}, "no such inventory"),
        ({"inventory": ()}, "no inventory"),
        ({"target": "sha256:other"}, "the rollout moves to sha256:other"),
        ({"arguments": ("--ask-become-pass",)}, "asks a person"),
        ({"arguments": ("--limit", "n1")}, "set by the rollout"),
        ({"parallel": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    site: Site, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(PushError, match=text):
        Push(dataclasses.replace(site.settings(), **options), site.begin)


# The reader


class Answers(Process):
    """A run that ends at once."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        lines = [observed(node) for node in self.nodes if node != "away"]
        lines += [row("away", "Observe", push_results.UNREACHABLE, msg="no route")] * (
            "away" in self.nodes
        )
        self.end(*lines)


def test_the_reader_leaves_out_nodes_that_do_not_answer(site: Site) -> None:
    runs: list[Answers] = []

    def begin(directory: Path) -> Answers:
        runs.append(Answers(directory))
        return runs[-1]

    names = [f"n{number}" for number in range(5)]
    found = PushReader(site.settings(group=4), begin).read([*names, "away"])
    assert [item.node for item in found] == names
    assert [len(run.nodes) for run in runs] == [4, 2]
    assert runs[0].variables == {"goldnode_phase": "observe", "goldnode_rollout": "r1"}


def test_a_reader_that_reaches_nothing_reports_what_ansible_printed(site: Site) -> None:
    def begin(directory: Path) -> Process:
        run = Process(directory)
        run.end(status="failed")
        return run

    with pytest.raises(PushError, match="what Ansible printed"):
        PushReader(site.settings(), begin).read(["n1"])


# The process of a run, with Ansible on this machine

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: Say, ansible.builtin.debug: {msg: begun}}
    - name: Wait
      ansible.builtin.command: sh -c "setsid sh -c 'sleep 2; touch {{ playbook_dir }}/finished' & exec sleep 654321"
"""


def commands() -> bytes:
    """Command lines of all processes."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += path.read_bytes()
    return found


def test_a_run_ends_with_its_controller(site: Site, tmp_path: Path) -> None:
    book, directory = tmp_path / "book.yml", tmp_path / "run"
    book.write_text(PLAY)
    directory.mkdir()
    words = ("-i", "localhost,", "-c", "local")
    push_job.write(
        directory,
        push_job.PushJob(str(book), str(tmp_path), words, site.settings().environment()),
        {},
    )
    process = push.start(directory)
    end = time.monotonic() + 60
    while b"sleep\x00654321" not in commands():
        assert process.poll() is None, push.Runs.output(directory)
        assert time.monotonic() < end
        time.sleep(0.1)
    process.stdin.close()  # type: ignore[attr-defined]  # as the kernel does for a process that was killed
    process.wait(timeout=30)  # type: ignore[attr-defined]
    assert {push_results.ENDED: "canceled"} in push.Runs.lines(directory)
    assert "begun" in push.Runs.output(directory)
    end = time.monotonic() + 10
    while str(book).encode() in commands() or b"sleep\x00654321" in commands():
        assert time.monotonic() < end, "Ansible has not ended with it"
        time.sleep(0.1)
    while not (tmp_path / "finished").exists():
        assert time.monotonic() < end, "a command in a session of its own finishes"
        time.sleep(0.1)


# The state of a node


def reading(
    verdict: Mapping[str, Any] | None, index: Mapping[str, Any] | None
) -> node_state.NodeReading:
    stat = "1 (systemd) S " + " ".join(str(number) for number in range(1, 40))
    files = {
        "/proc/sys/kernel/random/boot_id": "abc\n",
        "/proc/1/stat": stat,
        "/proc/uptime": "100.0 1.0\n",
        "/run/goldnode/verdict.json": json.dumps(verdict) if verdict else "",
        "/var/lib/goldnode/classes/index.json": json.dumps(index, indent=1) if index else "",
    }
    return node_state.read(
        "".join(f"--- goldnode {name}\n{text}\n" for name, text in files.items())
    )


INDEX = {"rows": [{"class_digest": "sha256:c", "lock_digest": NEW, "whole": True}]}
VERDICT = {
    "schema": "goldnode.verdict/1",
    "exit_code": 0,
    "findings": [],
    "boot_identity": "abc/19",
    "uptime": 90.0,
    "class_digest": "sha256:c",
}


def finding(name: str, outcome: str = "mismatch", severity: str = "drain") -> dict[str, str]:
    return {"id": name, "outcome": outcome, "severity": severity}


def test_the_state_of_a_node_is_its_whole_lock_and_the_verdict_of_its_boot() -> None:
    found = node_state.observe("n1", 5.0, reading(VERDICT, INDEX))
    assert found == NodeObservation("n1", 5.0, "abc/19", NEW, Answer.PASSES)
    half = {"rows": [{**INDEX["rows"][0], "whole": False}]}
    assert node_state.observe("n1", 5.0, reading(VERDICT, half)).digest is None


@pytest.mark.parametrize(
    ("verdict", "accepted", "answer"),
    [
        (None, (0,), Answer.UNKNOWN),
        ({**VERDICT, "boot_identity": "abc/18"}, (0,), Answer.UNKNOWN),
        ({**VERDICT, "class_digest": "sha256:other"}, (0,), Answer.UNKNOWN),
        ({**VERDICT, "exit_code": 3}, (0,), Answer.UNKNOWN),
        ({**VERDICT, "exit_code": 3}, (0, 3), Answer.PASSES),
        # Of a node in a container, where something cannot be checked and something else differs.
        (
            {**VERDICT, "exit_code": 3, "findings": [finding("service.active")]},
            (0, 3),
            Answer.FAILS,
        ),
        (
            {**VERDICT, "exit_code": 3, "findings": [finding("service.active")]},
            (0, 1, 3),
            Answer.PASSES,
        ),
        (
            {**VERDICT, "exit_code": 3, "findings": [finding("boot.next", "not_verified_here")]},
            (0, 3),
            Answer.PASSES,
        ),
        (
            {**VERDICT, "exit_code": 1, "findings": [finding("gpu.link", severity="degraded")]},
            (0,),
            Answer.FAILS,
        ),
        (
            {**VERDICT, "exit_code": 2, "findings": [finding("kernel.running")]},
            (0, 3),
            Answer.FAILS,
        ),
    ],
)
def test_could_not_check_is_neither_good_nor_bad(
    verdict: Mapping[str, Any] | None, accepted: tuple[int, ...], answer: Answer
) -> None:
    assert node_state.observe("n1", 5.0, reading(verdict, INDEX), accepted).verdict is answer


def test_findings_are_divided_by_their_fault_domain() -> None:
    def causes(*names: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        rows = [finding("stack.lock", "match"), *(finding(name) for name in names)]
        verdict = {**VERDICT, "exit_code": 1, "findings": rows}
        found = node_state.observe("n1", 5.0, reading(verdict, INDEX), (0,))
        return found.software, found.hardware

    assert causes("kernel.running", "gpu.count") == (("kernel.running",), ("gpu.count",))
    assert causes("driver.loaded") == (("driver.loaded",), ())
    assert causes("driver.loaded", "gpu.count")[0] == (), (
        "while a GPU is missing, the driver says nothing"
    )
    assert causes("unheard.of") == ((), ("unheard.of",))


def test_events_of_ansible_runner_are_read() -> None:
    event = {
        "event": "runner_on_failed",
        "event_data": {
            "host": "n1",
            "task": "Apply",
            "res": {
                "msg": ["one", "two"],
                "part": "kernel",
                "ansible_facts": {"goldnode_plan": {}},
                "resources": [
                    {"part": "kernel", "kind": "k", "resource": "r", "error": "e", "before": "x"}
                ],
            },
        },
    }
    assert push_job.line(event) == {
        "host": "n1",
        "task": "Apply",
        "what": "failed",
        "result": {
            "msg": "one\ntwo",
            "part": "kernel",
            "error": {"part": "kernel", "kind": "k", "resource": "r", "error": "e"},
        },
    }
    assert push_job.line({"event": "playbook_on_stats", "event_data": {}}) is None
    assert (
        push_job.line(
            {"event": "runner_on_failed", "event_data": {"ignore_errors": True, "res": {}}}
        )
        is None
    )
    assert push_results.phase(task("n1", GRANTED, Direction.BACK)) == "drain"
