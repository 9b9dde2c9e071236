"""Launchers: this machine, a command that behaves badly, a recorded kubectl, a real Slurm, and the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests import slurm
from tests.slurm import SlurmCluster
from tests.unit.canary.conftest import small

from goldnode.canary import kubernetes, launchers, pack, session, suite
from goldnode.canary.errors import CanaryError
from goldnode.canary.runner.arrivals import Arrivals
from goldnode.canary.session import CanaryRun
from goldnode.canary.slurm import SlurmJob
from goldnode.cli import main
from goldnode.commands.canary import outstanding as canary_outstanding
from goldnode.commands.canary import run as canary_run

RECORDED = Path(__file__).parent / "recorded/h200-2.json"
DISCOVERY = small(tier="cpu", jobs=["discovery"])
SLEEPS = small(
    tier="cpu",
    jobs=["long"],
    site_jobs=[{"name": "long", "command": ["sleep", "60"], "limit": 60, "tier": None}],
)


def leftovers() -> set[str]:
    return {path.name for path in Path("/tmp").glob("goldnode-canary-*")}


def test_local_session_passes_and_leaves_no_files() -> None:
    before = leftovers()
    found = session.run(replace(launchers.local(DISCOVERY, "n1"), arrived=None))
    assert (found.node, found.how, found.jobs[0].state) == ("n1", "local", "passed")
    assert found.runner == pack.digest()
    assert leftovers() <= before


def test_work_that_arrives_ends_the_run_and_nothing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PERIOD", 0.5)
    arrived = iter(["", "", "job 7 waits for n1"])
    found = session.run(
        replace(launchers.local(SLEEPS, "n1"), arrived=lambda: next(arrived, "more"))
    )
    assert [(job.state, job.why) for job in found.jobs] == [("not_counted", "job 7 waits for n1")]


def test_a_run_past_its_limit_is_ended() -> None:
    found = session.run(replace(launchers.local(SLEEPS, "n1"), arrived=None, limit=2))
    assert found.jobs[0].state == "not_counted"
    assert found.jobs[0].why == "the run did not end within 2 s"


BAD = [
    (("false",), "gave no document"),
    (("echo", "{}"), "gave no document"),
    (("echo", '{"schema": "goldnode.canary/1"}'), "gave no document"),
    (("/nonexistent/program",), "cannot be started"),
    (("sh", "-c", "echo the driver is gone >&2; exit 4"), "status 4: the driver is gone"),
]


@pytest.mark.parametrize(("command", "message"), BAD)
def test_a_command_without_results_is_an_error(command: tuple[str, ...], message: str) -> None:
    with pytest.raises(CanaryError, match=message):
        session.run(CanaryRun("n1", "ssh", command, DISCOVERY))


def test_a_command_that_hangs_is_killed_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GRACE", 0.5)
    cancelled: list[bool] = []
    given = CanaryRun(
        "n1", "slurm", ("sleep", "60"), DISCOVERY, cancel=lambda: cancelled.append(True), limit=0.5
    )
    with pytest.raises(CanaryError, match="ended without results"):
        session.run(given)
    assert cancelled == [True]


def test_a_container_has_no_network_and_no_privileges() -> None:
    options = launchers.ContainerOptions("image", "podman", gpus="all", cpus=0.9, cpuset="0")
    words = list(launchers.container(DISCOVERY, "n1", options).command)
    text = " ".join(words[: words.index("image")])
    for part in (
        "podman run",
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "--gpus all",
        "--cpus 0.9",
    ):
        assert part in text
    assert words[words.index("image") + 1 :] == ["-I", "-c", session.BOOT]


# Kubernetes: kubectl is a recorded stand-in

KUBECTL = """\
#!/bin/sh
echo "$@" >>"{log}"
case "$*" in
  *create*) cat >"{log}.manifest" ;;
  *"get job/"*) cat "{status}" ;;
  *logs*) echo "goldnode-canary: discovery"; cat "{document}" ;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    status = tmp_path / "status.json"
    status.write_text(json.dumps({"status": {"succeeded": 1}}))
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(log=tmp_path / "log", status=status, document=RECORDED))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kubernetes, "PERIOD", 0.01)
    return tmp_path


def test_a_job_is_created_read_and_removed(kubectl: Path) -> None:
    found = kubernetes.run(
        kubernetes.prepared(DISCOVERY, "n1", "registry/torch@sha256:1", "gpu-tests", 8)
    )
    assert found.platform == "NVIDIA H200 x 1"
    calls = (kubectl / "log").read_text().splitlines()
    assert [line.split()[:3] for line in calls] == [
        ["--namespace", "gpu-tests", word] for word in ("create", "get", "logs", "delete")
    ]
    config, job = json.loads((kubectl / "log.manifest").read_text())["items"]
    assert config["metadata"]["name"] == job["metadata"]["name"]
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "n1"}
    assert pod["terminationGracePeriodSeconds"] < 10
    assert 0 < job["spec"]["activeDeadlineSeconds"] <= 3600
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert len(pack.program()) < 1 << 20, "a ConfigMap holds 1 MiB"


def test_a_pod_that_does_not_start_is_a_busy_node(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kubectl / "status.json").write_text(json.dumps({"status": {"active": 1, "ready": 0}}))
    monkeypatch.setattr(kubernetes, "START", 0.05)
    with pytest.raises(CanaryError, match="the node is busy, or lacks the image"):
        kubernetes.run(kubernetes.prepared(DISCOVERY, "n1", "image"))
    assert "delete" in (kubectl / "log").read_text()


# Slurm

needs_slurm = pytest.mark.skipif(slurm.missing() is not None, reason=slurm.missing() or "")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm.cluster(2) as found:
        yield found


@pytest.mark.long
@needs_slurm
def test_a_slurm_job_gives_way_to_a_job_that_waits(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real slurmctld and slurmd: results of an idle node; then a job arrives, and runs within ten seconds."""
    monkeypatch.setenv("SLURM_CONF", cluster.conf)
    quick = {**DISCOVERY, "watch": False}
    found = session.run(launchers.slurm(quick, "n1"))
    assert (found.node, found.how, found.jobs[0].state) == ("n1", "slurm", "passed")
    given = launchers.slurm({**SLEEPS, "watch": False}, "n1")
    arrived: list[bool] = []

    def ask() -> str:
        if not arrived and "RUNNING" in cluster.call("squeue", "--noheader", "--format=%T"):
            words = (
                "--parsable",
                "--nodelist=n1",
                "--output=/dev/null",
                "--chdir=/tmp",
                "--wrap",
                "sleep 30",
            )
            cluster.call("sbatch", *words)
            arrived.append(True)
        return given.arrived() if given.arrived else ""

    ended = session.run(replace(given, arrived=ask))
    assert ended.jobs[0].state == "not_counted"
    assert "waits for n1" in ended.jobs[0].why
    cluster.wait(
        lambda: (
            cluster.call("squeue", "--noheader", "--format=%T %j").split()[:2]
            == ["RUNNING", "wrap"]
        ),
        10,  # the bound of acceptance (c) 13
    )
    # The other node is free, this one is not: srun refuses to wait.
    with pytest.raises(CanaryError, match="gave no document"):
        session.run(launchers.slurm(quick, "n1"))
    cluster.reset()


def test_a_cancellation_that_fails_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel() -> None:
        raise subprocess.TimeoutExpired("scancel", 30)

    monkeypatch.setattr(session, "GRACE", 0.5)
    given = CanaryRun("n1", "slurm", ("sleep", "60"), DISCOVERY, cancel=cancel, limit=0.5)
    with pytest.raises(CanaryError, match="ended without results"):
        session.run(given)


def test_names_that_slurm_does_not_expand_in_time_are_no_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(words: Any, **more: Any) -> Any:
        if words[0] == "scontrol":
            raise subprocess.TimeoutExpired(words, more["timeout"])
        return subprocess.CompletedProcess(words, 0, "11|Resources|n[1-2]||train", "")

    monkeypatch.setattr("goldnode.canary.slurm.subprocess.run", run)
    assert SlurmJob("n1").arrived() == ""


PENDING = [
    ("11|(Resources)|n1|n1|train", "job 11 waits for n1 ((Resources))"),
    ("11|Resources|n2||train", ""),
    ("11|Priority|||train", "job 11 waits for nodes (Priority)"),
    ("11|Dependency|n1||train", ""),
    ("11|JobHeldUser|n1||train", ""),
    ("11|Resources|n1||{own}", ""),
    ("", ""),
]


@pytest.mark.parametrize(("line", "wanted"), PENDING)
def test_only_jobs_that_wait_for_this_node_count(
    line: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SlurmJob("n1")
    program = tmp_path / "squeue"
    program.write_text(f"#!/bin/sh\necho '{line.replace('{own}', job.name)}'\n")
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$3"\n')
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert job.arrived() == wanted


# Commands


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["canary", *words])


def test_list_names_what_is_not_verified(tmp_path: Path) -> None:
    found = call("list")
    assert found.exit_code == 0
    assert "NVIDIA H200" in found.output
    rows = json.loads(call("list", "--format", "json").stdout)["jobs"]
    assert {row["name"] for row in rows} >= {"gemm", "inference", "all_reduce", "storage"}


def test_show_has_quantiles_with_bounds() -> None:
    found = call("show", str(RECORDED))
    assert found.exit_code == 0
    (row,) = [
        line
        for line in found.output.splitlines()
        if line.startswith("inference") and " warm " in line
    ]
    assert "too few" not in row
    assert any(
        "too few" in line for line in found.output.splitlines() if line.startswith("training_step")
    )
    assert "SIMULATED" not in found.output
    data = json.loads(call("show", str(RECORDED), "--format", "json").stdout)
    assert data["results"][0]["schema"] == "goldnode.canary/1"


def test_run_stores_results_and_ends_with_their_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests on this machine run jobs of a real Slurm, which are other work on this node.
    request = suite.request
    monkeypatch.setattr(
        suite, "request", lambda *words, **given: {**request(*words, **given), "watch": False}
    )
    monkeypatch.setattr(Arrivals, "work", lambda _: "")
    file = tmp_path / "canary.yml"
    file.write_text(
        "canary: 1\njobs:\n- {name: bad, command: [sh, -c, 'echo broken >&2; exit 1']}\n"
    )
    out = tmp_path / "out"
    found = call("run", "--job", "discovery", "--tier", "cpu", "--out", str(out))
    assert found.exit_code == 0, found.output
    found = call(
        "run",
        "--suite",
        str(file),
        "--job",
        "bad",
        "--tier",
        "cpu",
        "--out",
        str(out),
        "--format",
        "json",
    )
    assert found.exit_code == 2
    (run,) = json.loads(found.stdout)["runs"]
    assert run["result"]["jobs"][0]["why"] == "the command ended with status 1: broken"
    assert len(list(out.rglob("*.json"))) == 2


STATES = [
    ([["passed", "not_run"], ["passed"]], 0),
    ([["passed"], ["not_run"]], 3),  # nothing was tested on the second node
    ([[]], 3),
    ([["passed"], None], 3),
    ([["passed", "not_counted"]], 3),
    ([["failed"], None], 2),
]


@pytest.mark.parametrize(("nodes", "status"), STATES)
def test_exit_status_is_0_only_if_a_job_has_passed_on_each_node(
    nodes: list[list[str] | None], status: int
) -> None:
    done = []
    for states in nodes:
        document = SimpleNamespace(jobs=[SimpleNamespace(state=state) for state in states or ()])
        done.append(canary_outstanding.NodeOutcome("n", None if states is None else document))  # type: ignore[arg-type]
    assert canary_run.exit_status(done) == status


WRONG: list[tuple[Any, ...]] = [
    (("--how", "ssh"), "needs a NODE"),
    (("n1",), "without NODE"),
    (("--how", "engine"), "needs --image"),
    (("n1", "--how", "kubernetes", "--image", "x", "--gpus", "all"), "needs a number for --gpus"),
    (("--job", "gem"), 'Use "gemm"'),
    (("--class", "nonesuch"), "nonesuch"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_use_is_explained(words: tuple[str, ...], message: str) -> None:
    found = call("run", *words)
    assert found.exit_code == 2
    assert message in found.output


def test_the_program_is_written(tmp_path: Path) -> None:
    target = tmp_path / "goldnode-canary"
    found = call("program", "--out", str(target))
    assert found.exit_code == 0
    assert pack.digest() in found.output
    assert target.read_bytes() == pack.program()
    assert sys.version_info >= (3, 9)
