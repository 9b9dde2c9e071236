"""Real slurmctld and slurmd: faulty nodes drain with goldnode's reason, fixed ones resume, manual drains stay
drained.

Finally site.yml is killed, with all its processes, between drain and resume, and run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from docker.errors import APIError
from tests.e2e.support import ROOT, Services, Site, command, environment, goldnode, inventory

from goldnode.node.gate import return_tests
from goldnode.node.ground import drained, gate_files, verdict_files
from goldnode.node.probe import CAPTURE
from goldnode.node.verdict import deltas
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

# A finding of severity drain, made and mended by the tests.
INITRD = "/boot/initrd.img-6.1.0-902-amd64"
CONF = """\
ClusterName=lab
SlurmctldHost={name}
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
HealthCheckProgram=/usr/lib/goldnode/slurm-health
HealthCheckInterval=1
HealthCheckNodeState=ANY
NodeName={name} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
LATE = "goldnode: health check: the last verdict is too old"


class Cluster:
    """A cluster of one node."""

    def __init__(self, node: LabNode) -> None:
        self.node = node

    def row(self) -> tuple[str, str]:
        """State and reason of the node, as Slurm tells them."""
        text = self.node.run("scontrol", "show", "node", self.node.name, "--oneliner").output
        state, reason = (
            re.search(r"\bState=(\S+)", text),
            re.search(r"\bReason=(.*?)(?: \[\S+@\S+\])?\s*$", text),
        )
        return (state[1] if state else ""), (reason[1] if reason else "")

    def wait(self, state: str, reason: str) -> None:
        """Until the node is in `state` for a reason that begins so. The limit is for a machine that does much else."""
        end = time.monotonic() + 180
        while (
            (row := self.row())[0] != state
            or not row[1].startswith(reason)
            or bool(row[1]) != bool(reason)
        ):
            assert time.monotonic() < end, f"{row}, want {state} {reason!r}"
            time.sleep(0.3)

    def stays(self, state: str, reason: str, rounds: int = 3) -> None:
        """The node is in this state still after so many health checks."""
        for _ in range(rounds):
            time.sleep(1.1)
            row = self.row()
            assert (row[0], row[1].startswith(reason)) == (state, True), row

    def watch(self) -> None:
        self.node.run("systemctl", "start", "goldnode-watch.service")

    def spoil(self) -> None:
        self.node.run("mv", INITRD, "/root/initrd")
        self.watch()

    def repair(self) -> None:
        self.node.run("mv", "/root/initrd", INITRD)
        self.watch()

    def grow_old(self) -> None:
        """As if no check had been made for longer than a verdict holds."""
        verdict = json.loads(self.node.read(verdict_files.VERDICT))
        uptime = int(verdict["uptime"] - verdict_files.LIMIT - 60)
        self.node.shell(
            f'sed -i \'s/^ "uptime": .*/ "uptime": {uptime},/\' {verdict_files.VERDICT};'
            f" sed -i 's/^[0-9]*/{uptime}/' {verdict_files.STATUS}"
        )

    def by_hand(self, *change: str) -> None:
        self.node.run("scontrol", "update", f"NodeName={self.node.name}", *change)


@pytest.fixture(scope="module")
def cluster(services: Services) -> Cluster:
    node = services.node
    node.put({"/etc/slurm/slurm.conf": CONF.format(name=node.name).encode()})
    node.shell(
        "mkdir -p /var/lib/slurm/slurmctld /var/lib/slurm/slurmd; chown slurm: /var/lib/slurm/slurmctld"
    )
    # Each check is one that a test starts: the timer's, every five minutes, would make a verdict new that a test has made old.
    node.run("systemctl", "stop", "goldnode-watch.timer")
    node.run("systemctl", "start", "munge.service", "slurmctld.service", "slurmd.service")
    found = Cluster(node)
    found.wait("IDLE", "")
    found.watch()
    return found


def test_a_faulty_node_drains_and_a_repaired_one_returns(cluster: Cluster) -> None:
    cluster.spoil()
    cluster.wait("IDLE+DRAIN", "goldnode: boot.initramfs: missing")
    cluster.watch()
    cluster.stays("IDLE+DRAIN", "goldnode: boot.initramfs: missing")
    cluster.repair()
    cluster.wait("IDLE", "")
    cluster.stays("IDLE", "")


def test_a_job_that_runs_is_left_alone(cluster: Cluster) -> None:
    node = cluster.node
    node.shell("cd /tmp; sbatch --quiet --output=/dev/null --wrap 'sleep 300'")
    cluster.wait("ALLOCATED", "")
    cluster.spoil()
    cluster.wait("ALLOCATED+DRAIN", "goldnode: boot.initramfs")
    assert node.run("squeue", "--noheader", "--format=%T").output.split() == ["RUNNING"]
    cluster.repair()
    cluster.wait("ALLOCATED", "")
    node.run("scancel", "--full", "--user=root")
    cluster.wait("IDLE", "")


def test_a_node_that_a_person_drained_stays_drained(cluster: Cluster) -> None:
    cluster.by_hand("State=DRAIN", "Reason=bad fan")
    cluster.spoil()
    cluster.stays("IDLE+DRAIN", "bad fan")
    cluster.repair()
    cluster.stays("IDLE+DRAIN", "bad fan")
    cluster.by_hand("State=RESUME")
    cluster.wait("IDLE", "")
    # And one whose drain a person takes over.
    cluster.spoil()
    cluster.wait("IDLE+DRAIN", "goldnode: ")
    cluster.by_hand("State=DRAIN", "Reason=bad fan")
    cluster.repair()
    cluster.stays("IDLE+DRAIN", "bad fan")
    cluster.by_hand("State=RESUME")
    cluster.wait("IDLE", "")


def test_a_checker_that_stopped_drains_and_returns(cluster: Cluster) -> None:
    cluster.grow_old()
    cluster.wait("IDLE+DRAIN", LATE)
    # The checks begin again and find the node bad: one drain, which ends when both causes are gone.
    cluster.spoil()
    cluster.stays("IDLE+DRAIN", LATE)
    cluster.repair()
    cluster.wait("IDLE", "")
    assert json.loads(cluster.node.read(gate_files.RECORD))["drained"] is None


def test_node_resumed_by_a_person_is_not_drained_again(cluster: Cluster) -> None:
    cluster.grow_old()
    cluster.wait("IDLE+DRAIN", LATE)
    cluster.by_hand("State=RESUME")
    cluster.wait("IDLE", "")
    cluster.stays("IDLE", "")
    cluster.watch()
    cluster.stays("IDLE", "", 2)


def test_slurmd_is_answered_quickly(cluster: Cluster) -> None:
    """A verdict that holds costs no call of scontrol, and the program never fails: newer slurmds wait for status 0 before they register."""
    done = cluster.node.shell(
        "mkdir -p /tmp/none; printf '#!/bin/sh\\necho called >&2; exit 1\\n' > /tmp/none/scontrol; chmod 755 /tmp/none/scontrol;"
        " GOLDNODE_PATH=/tmp/none /usr/lib/goldnode/slurm-health"
    )
    assert (done.rc, done.output) == (0, "")


@pytest.mark.long
def test_a_node_returns_when_its_outstanding_tests_have_passed(
    cluster: Cluster, services: Services, tmp_path: Path
) -> None:
    """The record of its tests is damaged, which opens every cause. The suite runs over ssh, and its gate resumes the node."""
    node = cluster.node
    document = node.read(verdict_files.CLASS)
    jobs = {"after_repair": ["discovery"], "after_absence": ["discovery"], "absence_days": 7}
    wants = {**json.loads(document), "return_tests": jobs}
    node.put({verdict_files.CLASS: json.dumps(wants).encode()})
    try:
        cluster.watch()
        cluster.stays("IDLE", "", 1)
        node.put({return_tests.FILE: b'{"torn'})
        cluster.watch()
        reason = "goldnode: tests before its return (repair): discovery has not run since "
        cluster.wait("IDLE+DRAIN", reason)
        cluster.watch()
        cluster.stays("IDLE+DRAIN", reason)
        node.shell("rm -rf /run/goldnode/gate.json /run/goldnode/pass")  # as after a boot
        cluster.watch()
        cluster.stays("IDLE+DRAIN", reason, 1)
        # As after a month without a check. It is an absence where the clock of this machine is synchronised.
        memory = json.loads(node.read(deltas.MEMORY))
        away = {"boot": "another/1", "clock": time.time() - 30 * 86400}
        node.put({deltas.MEMORY: json.dumps({**memory, **away}).encode()})
        before = json.loads(node.read(gate_files.STATE))["tests"]["causes"]
        cluster.watch()
        synchronised = json.loads(node.read(CAPTURE))["time_sync"]["synchronised"] is True
        tests = json.loads(node.read(gate_files.STATE))["tests"]
        since = {row["cause"]: row["since"] for row in before}
        opened = {row["cause"] for row in tests["causes"] if row["since"] != since[row["cause"]]}
        assert (opened, len(tests["unknown"])) == (
            ({"absence"}, 0) if synchronised else (set(), 1)
        ), tests
        hosts = inventory(tmp_path / "hosts", {"e2e_serve": [node]})
        words = ["canary", "run", node.name, "--outstanding", "-i", str(hosts), "--tier", "cpu"]
        done = goldnode(*words, "--out", str(tmp_path / "results"), site=services.site)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{node.name}: no test is outstanding, and its gate is open" in done.stdout
        cluster.wait("IDLE", "")
        again = goldnode(*words, "--out", str(tmp_path / "results"), site=services.site)
        assert (again.returncode, len(list((tmp_path / "results").rglob("*.json")))) == (0, 1)
    finally:
        node.put(
            {verdict_files.CLASS: document.encode() if isinstance(document, str) else document}
        )
        cluster.watch()


# -- site.yml, killed between drain and return

# scontrol on the controller: slurmctld works on the node, and is not up yet when the node has just booted. A drain ends the jobs, here one that
# has a GPU open. Where `trap` matches a call, the run stops after it, until it is killed.
SCONTROL = """#!{python}
import pathlib, re, sys, time, docker
place, words = pathlib.Path("{place}"), sys.argv[1:]
node = docker.from_env().containers.get("{container}")
end = time.monotonic() + 180
while (done := node.exec_run(["scontrol", *words], demux=True)).exit_code and time.monotonic() < end:
    time.sleep(0.3)
if "State=DRAIN" in words:
    node.exec_run(["systemctl", "stop", "train.service"])
if (place / "trap").exists() and re.search((place / "trap").read_text(), " ".join(words)):
    (place / "reached").touch()
    time.sleep(600)
print((done.output[0] or b"").decode(), end="")
print((done.output[1] or b"").decode(), end="", file=sys.stderr)
sys.exit(done.exit_code)
"""
MAY = ("-e", "goldnode_reboot=true")
FILE = drained.FILE


def kill_all(pid: int) -> None:
    """SIGKILL to a process and all that came of it; Ansible's workers have sessions of their own."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    for one in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


class Controller:
    """Runs site.yml as a user does whose fleet is scheduled by Slurm."""

    def __init__(self, services: Services, place: Path) -> None:
        self.node, self.place = services.node, place
        (place / "bin").mkdir()
        script = place / "bin/scontrol"
        script.write_text(
            SCONTROL.format(python=sys.executable, place=place, container=self.node.container.id)
        )
        script.chmod(0o755)
        self.hosts = inventory(place / "hosts", {"e2e_serve": [self.node]})
        site = Site(services.site.catalog, services.site.site, services.site.locks, place / "runs")
        self.environment = {
            **environment(site),
            "ANSIBLE_DISPLAY_OK_HOSTS": "1",
            "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "1",
        }
        self.environment["PATH"] = f"{place / 'bin'}:{self.environment['PATH']}"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        words = command(
            self.hosts,
            "-e",
            "goldnode_drain=slurm",
            "-e",
            '{"goldnode_accepted": [0, 3]}',
            *arguments,
        )
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            words, cwd=ROOT, env=self.environment, text=True, start_new_session=True, **pipes
        )

    def run(self, *arguments: str) -> str:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output[-6000:]
        return re.sub(r"\s+", " ", output)

    def killed(self, *arguments: str, task: str = "", call: str = "") -> None:
        """A run that is killed as a task begins, or once scontrol was called like this."""
        (self.place / "reached").unlink(missing_ok=True)
        if call:
            (self.place / "trap").write_text(call)
        process, seen, lines = self.start(*arguments), threading.Event(), []

        def read() -> None:
            for line in process.stdout or ():
                lines.append(line)
                if task and line.startswith((f"TASK [{task}]", f"TASK [node_class : {task}]")):
                    seen.set()

        reader = threading.Thread(target=read)
        reader.start()
        end = time.monotonic() + 300
        while not seen.is_set() and not (self.place / "reached").exists():
            assert process.poll() is None, "".join(lines)[-6000:]
            assert time.monotonic() < end, "".join(lines)[-6000:]
            time.sleep(0.02)
        kill_all(process.pid)
        process.wait()
        reader.join()
        (self.place / "trap").unlink(missing_ok=True)

    def wants_boot(self) -> None:
        self.node.shell(
            "mkdir -p /run/goldnode; echo '[\"a test wants it\"]' >/run/goldnode/reboot-required"
        )

    def settle(self) -> None:
        """Wait until the boot is over that a killed run may have asked for at the last moment."""
        calm, end = 0, time.monotonic() + 300
        while calm < 10:
            assert time.monotonic() < end, "the node does not settle"
            time.sleep(0.5)
            with contextlib.suppress(APIError):  # the container is just restarting
                state = self.node.run("systemctl", "is-system-running", check=False).output.strip()
                calm = calm + 1 if state in ("running", "degraded") else 0
        self.node.wait()

    def has_record(self) -> bool:
        return self.node.run("test", "-e", FILE, check=False).rc == 0


@pytest.fixture(scope="module")
def controller(
    cluster: Cluster, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Controller:
    cluster.node.run("systemctl", "enable", "munge.service", "slurmctld.service", "slurmd.service")
    return Controller(services, tmp_path_factory.mktemp("controller"))


def test_a_node_that_was_in_service_returns_wherever_the_run_was_killed(
    cluster: Cluster, controller: Controller
) -> None:
    """One run after the other goes on with what the one before left; the last finds the node converged, and returns it."""
    node, own = cluster.node, "goldnode run "
    controller.wants_boot()
    controller.killed(*MAY, call="State=DRAIN")
    cluster.wait("IDLE+DRAIN", own)
    first = cluster.row()[1]
    # A job has a GPU open, and systemd is not reloaded meanwhile: that waits for the drain, which ends the job.
    node.shell(
        "mknod /dev/nvidia0 c 1 3; systemd-run --unit=train sh -c 'exec sleep 3600 < /dev/nvidia0'"
    )
    node.shell("echo '# changed' >> /etc/systemd/system/goldnode-watch.timer")
    controller.killed(*MAY, task="Apply every part of the plan")
    cluster.wait("IDLE+DRAIN", own)
    assert cluster.row()[1] != first, "in the name of the run that works now"
    node.shell("rm /dev/nvidia0")
    controller.killed(*MAY, task="Reboot the node")
    controller.settle()
    controller.wants_boot()
    controller.killed(*MAY, task="Judge the node before its return")
    assert controller.has_record()
    cluster.wait("IDLE+DRAIN", own)
    output = controller.run()
    cluster.wait("IDLE", "")
    assert "It was left out of service by run" in output
    assert "it is back." in output
    assert not controller.has_record()
    assert "left out of service" not in controller.run("-vvv")


@pytest.mark.long  # one more boot; tests/unit/fleet/drain/test_drain.py kills after the return as well
def test_a_run_that_was_killed_after_the_return_has_left_nothing(
    cluster: Cluster, controller: Controller
) -> None:
    controller.wants_boot()
    controller.killed(*MAY, call="State=RESUME")
    assert controller.has_record()
    cluster.wait("IDLE", "")
    controller.run()
    cluster.wait("IDLE", "")
    assert not controller.has_record()


def test_a_node_of_which_the_record_is_lost_is_found_by_its_reason(
    cluster: Cluster, controller: Controller
) -> None:
    controller.wants_boot()
    controller.killed(*MAY, call="State=DRAIN")
    cluster.node.shell(f"rm {FILE} /run/goldnode/reboot-required")
    assert "it is back." in controller.run()
    cluster.wait("IDLE", "")


def test_a_person_keeps_the_node_before_and_after_the_kill(
    cluster: Cluster, controller: Controller
) -> None:
    """State and reason, word for word: drained before the run, and drained again while nobody worked on it."""
    cluster.by_hand("State=DRAIN", "Reason=bad fan; ask ann")
    controller.wants_boot()
    controller.killed(*MAY, task="Judge the node before its return")
    assert controller.has_record()
    assert (
        "is out of service (slurm: IDLE+DRAIN, bad fan; ask ann), not for a run, and stays so."
        in controller.run()
    )
    cluster.wait("IDLE+DRAIN", "bad fan; ask ann")
    assert cluster.row()[1] == "bad fan; ask ann"
    assert not controller.has_record()
    cluster.by_hand("State=RESUME")
    controller.wants_boot()
    controller.killed(*MAY, call="State=DRAIN")
    cluster.by_hand("State=DRAIN", "Reason=bad fan; ask bob")
    controller.run(*MAY)
    assert cluster.row() == ("IDLE+DRAIN", "bad fan; ask bob")
    cluster.by_hand("State=RESUME")
    cluster.wait("IDLE", "")
