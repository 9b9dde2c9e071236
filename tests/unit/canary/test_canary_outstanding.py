"""Tests before a return over ssh: the controller's commands against the node's own program, in a directory."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.node.gate.test_return_gate import LINK, XID, Machine, clock

from goldnode.canary import results, session
from goldnode.canary.session import CanaryRun
from goldnode.canary.suite import CanaryClass
from goldnode.cli import main
from goldnode.commands.canary import outstanding as canary_outstanding
from goldnode.commands.canary import run as canary_run
from goldnode.core.errors import GoldnodeError
from goldnode.documents.canary import CanaryDocument
from goldnode.fleet.nodes import reach
from goldnode.fleet.nodes.reach import SshNode
from goldnode.fleet.nodes.return_delivery import HeldNode
from goldnode.node.gate import return_tests
from goldnode.node.ground import verdict_files
from goldnode.node.ground.errors import NodeError
from goldnode.node.program import judging, return_command
from goldnode.node.program.arguments import parse

__all__ = ["clock"]  # a fixture

RECORDED = CanaryDocument.model_validate_json(
    (Path(__file__).parent / "recorded/h200-2.json").read_text()
)


@dataclass(frozen=True)
class Door(SshNode):
    """ssh to a machine: its program answers in this process. `answer` replaces that."""

    machine: Any = None
    answer: subprocess.CompletedProcess[bytes] | None = None

    def run(
        self, *command: str, stdin: bytes | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[bytes]:
        if self.answer is not None:
            return self.answer
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
            patch.setattr("os.geteuid", lambda: 0)
            patch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdin or b"")))
            patch.setattr(judging, "judge", lambda host, *_, **__: (host.check(), []))
            options = parse(list(command[1:]))
            try:
                rc = options.run(self.machine, options)
            except NodeError as problem:
                return subprocess.CompletedProcess(
                    command, 3, b"", f"goldnode-node: {problem}\n".encode()
                )
        return subprocess.CompletedProcess(command, rc, out.getvalue().encode(), b"")


@pytest.fixture
def node(tmp_path: Path, clock: Callable[[Machine], None]) -> Machine:
    found = Machine(tmp_path / "node")
    clock(found)
    found.write(verdict_files.CLASS, json.dumps(found.document()).encode())
    found.check()
    return found


class Controller:
    """The commands in a directory, with ssh to one machine. `states`: what the jobs of the next run end as."""

    def __init__(self, node: Machine, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.place = node, place
        self.states: dict[str, str] = {}
        self.asked: list[tuple[str, list[str], Any]] = []
        self.busy = ""
        self.answer: subprocess.CompletedProcess[bytes] | None = None
        monkeypatch.chdir(place)
        monkeypatch.setattr(
            reach,
            "reached",
            lambda name, *_: Door(name, (), machine=node, answer=self.answer),
        )
        monkeypatch.setattr(canary_run, "busy_by_scheduler", lambda *_: lambda: self.busy)
        monkeypatch.setattr(canary_run, "class_of", lambda name: CanaryClass(name))
        monkeypatch.setattr(session, "run", self.session)
        hosts = {"_meta": {"hostvars": {"n1": {}}}, "case": {"hosts": ["n1"]}}
        monkeypatch.setattr(canary_run, "inventory_listing", lambda path: hosts if path else {})
        monkeypatch.setattr(canary_run, "declaring_hosts", lambda _: ["n1"])

    def document(self, jobs: list[str], **patch: Any) -> CanaryDocument:
        row = RECORDED.jobs[0]
        rows = [
            row.model_copy(
                update={"name": job, "state": self.states.get(job, "passed"), "why": "w"}
            )
            for job in jobs
        ]
        own = {
            "simulated": False,
            "node": "n1",
            "started": return_tests.utc(self.node.clock),
            "boot_id": self.node.boot_id,
            "jobs": rows,
        }
        return RECORDED.model_copy(update={**own, **patch})

    def session(self, given: CanaryRun) -> CanaryDocument:
        self.node.clock += 60
        self.asked.append(
            (given.node, list(given.request["jobs"]), given.request["values"]["class"])
        )
        return self.document(list(given.request["jobs"]))

    def call(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["canary", *words])


@pytest.fixture
def controller(node: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    return Controller(node, tmp_path, monkeypatch)


def test_exactly_the_outstanding_jobs_run_and_the_node_returns_at_once(
    controller: Controller, node: Machine
) -> None:
    node.check(LINK)
    node.check()
    node.clock += 60
    results.store(controller.document(["memory"]))
    done = controller.call("run", "--outstanding", "-i", "hosts")
    assert done.exit_code == 0, done.output
    assert controller.asked == [("n1", ["gemm"], "case")], (
        "what was stored is delivered, not run again"
    )
    assert "n1: no test is outstanding, and its gate is open" in done.output
    assert not node.drained
    assert len(list(results.files([results.DIRECTORY]))) == 2
    again = controller.call("run", "--outstanding", "-i", "hosts")
    assert (again.exit_code, len(controller.asked)) == (0, 1)
    assert again.output == "1 of 1 nodes: no test is outstanding, and the gate is open\n"


@pytest.mark.parametrize(
    ("state", "status", "shown"),
    [
        ("failed", 2, "n1 stays out of service (xid): gemm is failed (w)"),
        ("could_not_check", 3, "gemm is could not check (w)"),
        ("not_run", 3, "gemm is not run (w)"),
    ],
)
def test_a_job_that_does_not_pass_leaves_the_node_out(
    controller: Controller, node: Machine, state: str, status: int, shown: str
) -> None:
    node.check(XID)
    node.check()
    controller.states = {"gemm": state}
    done = controller.call("run", "n1", "--outstanding")
    assert (done.exit_code, shown in done.output, node.drained) == (status, True, True), done.output


def test_a_busy_node_is_left_alone(controller: Controller, node: Machine) -> None:
    node.check(XID)
    controller.busy = "slurm shows work on n1"
    done = controller.call("run", "--outstanding", "-i", "hosts", "--format", "json")
    found = json.loads(done.stdout)["runs"][0]
    assert (done.exit_code, controller.asked) == (3, [])
    assert "left alone: slurm shows work on n1" in found["error"]


def test_the_job_of_a_cohort_is_left_to_its_command(controller: Controller, node: Machine) -> None:
    document = node.document(after_xid=["cohort_all_reduce"])
    node.write(verdict_files.CLASS, json.dumps(document).encode())
    node.check(XID, after_xid=["cohort_all_reduce"])
    done = controller.call("run", "--outstanding", "-i", "hosts")
    assert (done.exit_code, controller.asked) == (3, [])
    assert "`goldnode canary cohort`" in done.output


def test_a_run_before_a_return_delivers_its_result(
    controller: Controller, node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.check(XID)
    node.check()
    monkeypatch.setattr(canary_run, "before_return", lambda _: ("gemm",))
    words = ("run", "n1", "--how", "ssh", "--class", "case", "--before-return", "xid")
    done = controller.call(*words)
    assert (done.exit_code, node.drained) == (0, False), done.output
    controller.answer = subprocess.CompletedProcess((), 255, b"", b"ssh: connect: no route\n")
    done = controller.call(*words)
    assert done.exit_code == 3
    assert "the results did not reach its gate: n1: ssh: connect: no route" in done.output


def test_stored_results_are_delivered(controller: Controller, node: Machine) -> None:
    """As after a run through Slurm, Kubernetes or a container engine."""
    node.check(XID)
    node.check()
    early = node.clock - 3600
    results.store(controller.document(["gemm"], started=return_tests.utc(early)))
    results.store(controller.document(["gemm"], boot_id="b0"))
    results.store(controller.document(["gemm"], node="n2"))
    done = controller.call("deliver", "n1")
    assert (done.exit_code, node.drained) == (3, True)
    assert "n1 stays out of service (xid): gemm has not run since" in done.output
    assert "refused" not in done.output, "the controller sends what may count"
    node.clock += 60
    results.store(controller.document(["gemm"], how="slurm"))
    done = controller.call("deliver", "-i", "hosts", "--format", "json")
    assert (done.exit_code, node.drained) == (0, False), done.output
    assert json.loads(done.stdout)["nodes"][0]["tests"]["open"] is True


ANSWERS = [
    (255, b"", b"Permission denied", "Permission denied. check `ssh`"),
    (127, b"", b"sh: goldnode-node: not found", "has no goldnode-node with tests before a return"),
    (3, b"", b"goldnode-node: argument COMMAND: invalid choice: 'return-tests'", "run `ansible-playbook site.yml"),
    (3, b"", b"goldnode-node: root alone can read", "its tests cannot be read: root alone can read"),
    (0, b"{}", b"", "its tests cannot be read: schema: Field required"),
    (0, b"[" * 100_000, b"", "its tests cannot be read"),
    (0, b"\xff", b"", "its tests cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("rc", "out", "err", "wanted"), ANSWERS)
def test_a_node_that_gives_no_tests_is_an_error_of_its_own(
    controller: Controller, rc: int, out: bytes, err: bytes, wanted: str
) -> None:
    controller.answer = subprocess.CompletedProcess((), rc, out, err)
    for words in (("run", "n1", "--outstanding"), ("deliver", "n1")):
        done = controller.call(*words)
        assert (done.exit_code, wanted.lower() in done.output.lower()) == (3, True), done.output
        assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--outstanding"), "name a NODE, or an inventory"),
        (("deliver",), "name a NODE, or an inventory"),
        (("run", "n1", "--outstanding", "--how", "slurm"), "goldnode canary deliver"),
        (("run", "n1", "--outstanding", "--job", "gemm"), "leave out --job"),
        (("run", "n9", "--outstanding", "-i", "hosts"), "the inventory has no host n9"),
    ],
)
def test_wrong_use_is_explained(
    controller: Controller, words: tuple[str, ...], message: str
) -> None:
    done = controller.call(*words)
    assert done.exit_code == 2
    assert message in done.output


def test_hosts_of_classes_that_declare_tests_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {("a", "xid"): ["gemm"], ("b", "rollout"): ["gemm"]}
    fake = SimpleNamespace(
        names=lambda: ["a", "b"], return_tests=lambda *key: declared.get(key, [])
    )
    monkeypatch.setattr("goldnode.classdoc.cache.ClassDocuments", lambda: fake)
    inventory = {
        "a": {"hosts": ["n2"], "children": ["c"]},
        "c": {"hosts": ["n1"]},
        "b": {"hosts": ["n3"]},
    }
    assert canary_outstanding.declaring_hosts(inventory) == ["n1", "n2"]


def test_results_without_samples_fit_into_one_call() -> None:
    sent: list[bytes] = []

    class Counting(Door):
        def run(self, *command: str, stdin: bytes | None = None, timeout: float = 600) -> Any:
            sent.append(stdin or b"")
            return subprocess.CompletedProcess(command, 255, b"", b"")

    with pytest.raises(GoldnodeError):
        HeldNode("n1", lambda: Counting("n1", ())).deliver([RECORDED] * 100)
    rows = json.loads(sent[0])
    assert len(rows) == 32
    assert len(sent[0]) < 500_000
    assert all(return_tests.result_fault(row) == "" for row in rows)
    assert return_command.LARGEST > 4 * (4 << 20) - 1
