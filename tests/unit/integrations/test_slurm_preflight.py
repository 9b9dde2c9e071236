"""The pre-flight of Slurm's jobs: Prolog and TaskProlog with a real slurmctld and two slurmd. The verdicts and the hardware are simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import slurm
from tests.slurm import SlurmCluster
from tests.unit.node.captures import healthy
from tests.unit.node.serve.test_metrics import finding
from tests.unit.node.serve.test_serve import GOOD

from goldnode.node.cachekey import directory
from goldnode.node.serve.publish import public
from goldnode.node.state import shims

ROOT = Path(__file__).parents[3]
INTEGRATIONS = ROOT / "integrations"
needs_slurm = pytest.mark.skipif(slurm.missing() is not None, reason=slurm.missing() or "")
MORE = """\
Prolog={directory}/prolog
TaskProlog={directory}/task-prolog
PrologFlags=Alloc
SchedulerParameters=nohold_on_prolog_fail,batch_sched_delay=0
"""
# Slurm's scripts of each node, on one machine: a root directory for each node, and this checkout's program.
PROGRAM = """#!/bin/sh
verb=$1; shift
sub=; [ "$verb" != cache ] || {{ sub=$1; shift; }}
PYTHONPATH={source} exec {python} -m goldnode.node "$verb" --root "{directory}/nodes/$SLURMD_NODENAME" $sub "$@"
"""
WRAPPER = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export GOLDNODE_PROGRAM={directory}/program GOLDNODE_STATE={directory}/nodes/$SLURMD_NODENAME/state GOLDNODE_RUN={directory}/nodes/$SLURMD_NODENAME/state
exec {directory}/{script}
"""
BAD: dict[str, Any] = {"exit_code": 2, "findings": [finding("gpu.count", "mismatch")]}
IMAGE = "sha256:" + "a" * 64


class Nodes:
    """The files of two nodes, and their cluster."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster, self.directory = cluster, cluster.directory

    def executable(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755)

    def write(self, node: str, name: str, content: Any) -> None:
        path = self.directory / "nodes" / node / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def good(self, node: str, driver: str = "580.95.05", mode: str = "drain") -> None:
        """Give a node a good verdict, as a check would."""
        capture = healthy()
        capture["driver"]["loaded"] = driver
        # slurm-health compares it with the uptime of this machine.
        uptime = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        for name, content in {
            "proc/uptime": "160.5 1\n",
            "proc/sys/kernel/random/boot_id": "b\n",
            "proc/1/stat": "1 (systemd) S " + " ".join("0" * 18) + " 42 0",
            "etc/goldnode/class.json": {"digest": "sha256:c1", "class": "h100", "policy": {}},
            "run/goldnode/verdict.json": GOOD,
            "run/goldnode/public.json": public(capture),
            "state/gate.mode": f"{mode}\n",
            "state/pass": f"{uptime} 900\n",
            "state/status": f"{uptime} 0 healthy h100\n",
        }.items():
            self.write(node, name, content)

    def bad(self, node: str) -> None:
        self.write(node, "run/goldnode/verdict.json", {**GOOD, **BAD})

    def health(self, node: str) -> None:
        """Run the HealthCheckProgram of a node, as slurmd does."""
        state = str(self.directory / "nodes" / node / "state")
        env = {
            **os.environ,
            "SLURM_CONF": self.cluster.conf,
            "SLURMD_NODENAME": node,
            "GOLDNODE_STATE": state,
            "GOLDNODE_RUN": state,
        }
        done = subprocess.run(
            ["sh", "-c", shims.SLURM],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, "resumed" in done.stderr) == (0, True), done.stderr

    def stays_in_service(self, node: str) -> None:
        """Wait until the last job of a node has ended: no drain, and no reason."""
        self.cluster.wait(lambda: self.cluster.rows()[node][0] == "IDLE")
        assert self.cluster.rows()[node] == ("IDLE", "")

    def srun(self, *words: str, nodes: str = "n1", **variables: str) -> tuple[int, str, str]:
        """Run a job on nodes; its exit status and both outputs."""
        env = {**os.environ, "SLURM_CONF": self.cluster.conf, **variables}
        count = str(nodes.count(",") + 1)
        command = ["srun", f"--nodelist={nodes}", f"--nodes={count}", "--chdir=/tmp", *words]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=90
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def started() -> Iterator[SlurmCluster]:
    with slurm.cluster(2, MORE) as found:
        yield found


@pytest.fixture
def nodes(started: SlurmCluster) -> Nodes:
    found = Nodes(started)
    place = {"directory": started.directory, "source": ROOT / "src", "python": sys.executable}
    found.executable("program", PROGRAM.format(**place))
    for name, text in (("prolog", shims.PROLOG), ("task-prolog", shims.TASK_PROLOG)):
        found.executable(f"{name}.own", text)
        found.executable(name, WRAPPER.format(script=f"{name}.own", **place))
    for node in started.nodes:
        found.good(node)
        (started.directory / "nodes" / node / "state/slurm-health").unlink(missing_ok=True)
    started.reset()
    return found


@needs_slurm
def test_a_job_starts_on_a_good_node(nodes: Nodes) -> None:
    assert nodes.srun("echo", "ran") == (0, "ran\n", "")
    nodes.stays_in_service("n1")


@needs_slurm
def test_a_bad_node_is_drained_with_the_reason_and_returns_by_itself(nodes: Nodes) -> None:
    nodes.bad("n1")
    words = ("--parsable", "--nodelist=n1", "--output=/dev/null", "--chdir=/tmp", "--wrap", "true")
    job = nodes.cluster.call("sbatch", *words).strip()
    nodes.cluster.wait(lambda: "DRAIN" in nodes.cluster.rows()["n1"][0])
    reason = nodes.cluster.rows()["n1"][1]
    assert reason.startswith("goldnode: n1: verdict: gpu.count"), reason
    assert "Submit the job to another node" in reason
    # The job was requeued, and not held.
    nodes.cluster.wait(
        lambda: "JobState=PENDING" in nodes.cluster.call("scontrol", "show", "job", job)
    )
    assert "JobHeldAdmin" not in nodes.cluster.call("scontrol", "show", "job", job)
    nodes.good("n1")
    nodes.health("n1")
    nodes.cluster.wait(lambda: "DRAIN" not in nodes.cluster.rows()["n1"][0])
    nodes.cluster.call("scancel", job)


@needs_slurm
def test_a_drain_of_a_person_keeps_its_reason(nodes: Nodes) -> None:
    nodes.bad("n1")
    env = {**os.environ, "SLURM_CONF": nodes.cluster.conf, "SLURMD_NODENAME": "n1"}
    nodes.cluster.update("n1", "State=DRAIN", "Reason=bad fan")
    done = subprocess.run(
        [nodes.directory / "prolog"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("goldnode: n1: verdict: gpu.count"), done.stderr
    assert nodes.cluster.rows()["n1"] == ("IDLE+DRAIN", "bad fan")
    assert not (nodes.directory / "nodes/n1/state/slurm-health").exists()


@needs_slurm
def test_a_class_that_only_reports_stops_no_job(nodes: Nodes) -> None:
    nodes.good("n1", mode="report")
    nodes.bad("n1")
    assert nodes.srun("echo", "ran")[:2] == (0, "ran\n")
    nodes.stays_in_service("n1")


@needs_slurm
def test_an_image_that_does_not_fit_ends_the_job_with_one_line_and_no_drain(
    nodes: Nodes, tmp_path: Path
) -> None:
    file = tmp_path / "image.json"
    file.write_text(json.dumps({"Config": {"Env": ["CUDA_VERSION=14.0.0"]}}))
    code, output, _ = nodes.srun("echo", "ran", GOLDNODE_IMAGE_FILE=str(file))
    assert code == 1
    assert output.startswith(
        "goldnode: n1: image: the image: CUDA 14.0.0 is of CUDA 14.0, and driver 580.95.05"
    )
    assert output.count("\n") == 1
    file.write_text(json.dumps({"Config": {"Env": ["CUDA_VERSION=13.0.1"]}}))
    assert nodes.srun("echo", "ran", GOLDNODE_IMAGE_FILE=str(file))[:2] == (0, "ran\n")
    nodes.stays_in_service("n1")


@needs_slurm
def test_a_cohort_of_two_drivers_never_runs_whole(nodes: Nodes, tmp_path: Path) -> None:
    place = str(tmp_path / "job")
    code, output, _ = nodes.srun("echo", "ran", nodes="n1,n2", GOLDNODE_COHORT=place)
    assert (code, output.count("ran")) == (0, 2), output
    nodes.good("n2", driver="570.172.08")
    code, output, _ = nodes.srun(
        "echo", "ran", nodes="n1,n2", GOLDNODE_COHORT=str(tmp_path / "job2")
    )
    assert code == 1
    assert output.count("ran") < 2
    assert "cohort: driver is 5" in output


@needs_slurm
def test_a_job_gets_the_caches_of_its_node(nodes: Nodes, tmp_path: Path) -> None:
    place = str(tmp_path / "caches")
    words = ("sh", "-c", "echo $CUDA_CACHE_PATH; echo $TRITON_CACHE_DIR")
    code, output, _ = nodes.srun(
        *words, GOLDNODE_CACHES=place, GOLDNODE_IMAGE=IMAGE, GOLDNODE_CACHE_NAMES="cuda triton"
    )
    assert code == 0, output
    for line in output.splitlines():
        assert line.startswith(f"{place}/")
        assert directory.verify(str(Path(line).parent)) == []
    nodes.good("n2", driver="570.172.08")
    other = nodes.srun(
        *words,
        nodes="n2",
        GOLDNODE_CACHES=place,
        GOLDNODE_IMAGE=IMAGE,
        GOLDNODE_CACHE_NAMES="cuda triton",
    )
    assert not set(output.splitlines()) & set(other[1].splitlines())
    for variables, expected in (
        ({"GOLDNODE_CACHES": f"{place}/$(id)"}, "characters"),
        ({"GOLDNODE_CACHES": place}, "--image"),
    ):
        code, output, _ = nodes.srun(*words, **variables)
        assert (code, output.count("\n"), expected in output) == (3, 1, True), output


# -- the files


def test_integrations_have_the_texts_of_the_program() -> None:
    for name, text in (("slurm-prolog", shims.PROLOG), ("slurm-task-prolog", shims.TASK_PROLOG)):
        path = INTEGRATIONS / "slurm" / name
        assert path.read_text() == text, name
        assert path.stat().st_mode & 0o111


def test_the_init_container_has_no_rights_and_reads_only() -> None:
    pod = yaml.safe_load((INTEGRATIONS / "kubernetes/preflight.yaml").read_text())
    (container,) = pod["spec"]["initContainers"]
    assert container["image"] == pod["spec"]["containers"][0]["image"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    volumes = {row["name"]: row["hostPath"]["path"] for row in pod["spec"]["volumes"]}
    mounts = {row["mountPath"]: volumes[row["name"]] for row in container["volumeMounts"]}
    assert mounts == {
        "/goldnode": "/usr/lib/goldnode",
        "/run/goldnode": "/run/goldnode",
        "/etc/goldnode": "/etc/goldnode",
    }
    assert container["command"][1:3] == ["/goldnode/goldnode-node", "preflight"]
