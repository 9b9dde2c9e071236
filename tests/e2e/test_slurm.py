"""A real slurmctld and slurmd: a faulty node drains with goldnode's reason, a mended one returns, and what a person drained stays drained."""

from __future__ import annotations

import json
import re
import time

import pytest
from tests.e2e.support import Services

from goldnode.lab.nodes import Node
from goldnode.node import gate
from goldnode.node.verdict import current

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

    def __init__(self, node: Node) -> None:
        self.node = node

    def row(self) -> tuple[str, str]:
        """State and reason of the node, as Slurm tells them."""
        text = self.node.run("scontrol", "show", "node", self.node.name, "--oneliner").output
        state, reason = re.search(r"\bState=(\S+)", text), re.search(r"\bReason=(.*?)(?: \[\S+@\S+\])?\s*$", text)
        return (state[1] if state else ""), (reason[1] if reason else "")

    def wait(self, state: str, reason: str, seconds: float = 20) -> None:
        """Until the node is in `state` for a reason that begins so."""
        end = time.monotonic() + seconds
        while (row := self.row())[0] != state or not row[1].startswith(reason) or bool(row[1]) != bool(reason):
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

    def mend(self) -> None:
        self.node.run("mv", "/root/initrd", INITRD)
        self.watch()

    def grow_old(self) -> None:
        """As if no check had been made for longer than a verdict holds."""
        verdict = json.loads(self.node.read(current.VERDICT))
        self.node.shell(f'sed -i \'s/^ "uptime": .*/ "uptime": {verdict["uptime"] - current.LIMIT - 60},/\' {current.VERDICT}')

    def by_hand(self, *change: str) -> None:
        self.node.run("scontrol", "update", f"NodeName={self.node.name}", *change)


@pytest.fixture(scope="module")
def cluster(services: Services) -> Cluster:
    node = services.node
    node.put({"/etc/slurm/slurm.conf": CONF.format(name=node.name).encode()})
    node.shell("mkdir -p /var/lib/slurm/slurmctld /var/lib/slurm/slurmd; chown slurm: /var/lib/slurm/slurmctld")
    node.run("systemctl", "start", "munge.service", "slurmctld.service", "slurmd.service")
    found = Cluster(node)
    found.wait("IDLE", "", 40)
    found.watch()
    return found


def test_a_faulty_node_drains_and_a_mended_one_returns(cluster: Cluster) -> None:
    cluster.spoil()
    cluster.wait("IDLE+DRAIN", "goldnode: boot.initramfs: missing")
    cluster.watch()
    cluster.stays("IDLE+DRAIN", "goldnode: boot.initramfs: missing")
    cluster.mend()
    cluster.wait("IDLE", "")
    cluster.stays("IDLE", "")


def test_a_job_that_runs_is_left_alone(cluster: Cluster) -> None:
    node = cluster.node
    node.shell("cd /tmp; sbatch --quiet --output=/dev/null --wrap 'sleep 300'")
    cluster.wait("ALLOCATED", "")
    cluster.spoil()
    cluster.wait("ALLOCATED+DRAIN", "goldnode: boot.initramfs")
    assert node.run("squeue", "--noheader", "--format=%T").output.split() == ["RUNNING"]
    cluster.mend()
    cluster.wait("ALLOCATED", "")
    node.run("scancel", "--full", "--user=root")
    cluster.wait("IDLE", "", 40)


def test_a_node_that_a_person_drained_stays_drained(cluster: Cluster) -> None:
    cluster.by_hand("State=DRAIN", "Reason=bad fan")
    cluster.spoil()
    cluster.stays("IDLE+DRAIN", "bad fan")
    cluster.mend()
    cluster.stays("IDLE+DRAIN", "bad fan")
    cluster.by_hand("State=RESUME")
    cluster.wait("IDLE", "")
    # And one whose drain a person takes over.
    cluster.spoil()
    cluster.wait("IDLE+DRAIN", "goldnode: ")
    cluster.by_hand("State=DRAIN", "Reason=bad fan")
    cluster.mend()
    cluster.stays("IDLE+DRAIN", "bad fan")
    cluster.by_hand("State=RESUME")
    cluster.wait("IDLE", "")


def test_a_checker_that_stopped_drains_and_returns(cluster: Cluster) -> None:
    cluster.grow_old()
    cluster.wait("IDLE+DRAIN", LATE)
    # The checks begin again and find the node bad: one drain, which ends when both causes are gone.
    cluster.spoil()
    cluster.stays("IDLE+DRAIN", LATE)
    cluster.mend()
    cluster.wait("IDLE", "")
    assert json.loads(cluster.node.read(gate.MEMORY))["drained"] is None


def test_what_a_person_resumes_is_left_to_him(cluster: Cluster) -> None:
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
