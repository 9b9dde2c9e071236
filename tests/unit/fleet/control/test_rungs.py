"""Rungs carried out: their scripts by a real shell with simulated programs of a node, and a boot by a real slurmctld."""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests import slurm

from goldnode.core.errors import GoldnodeError
from goldnode.core.site import SiteLadder
from goldnode.facts import ladder as facts
from goldnode.fleet.control import rungs
from goldnode.fleet.control.ladder import RefusedRungError
from goldnode.fleet.control.rungs import RungTools
from goldnode.fleet.rollout.ladder import CasePhase, RepairCase

CASE = RepairCase(
    "n1",
    finding="fabric.manager",
    climb=(),
    opened_at=1.0,
    phase=CasePhase.ACT,
    rung="service-restart",
    changed_at=1.0,
    deadline=1.0,
)
UNITS = facts.way("fabric.manager").units  # type: ignore[union-attr]


@dataclass
class Node:
    """A node whose programs are simulated by shell scripts; it duck-types SshNode. Each call of a program is logged."""

    place: Path
    boots: list[bytes] = field(
        default_factory=list
    )  # ids of its boots, as ssh reads them; b"": no answer

    def program(self, name: str, text: str) -> None:
        path = self.place / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.place}/calls\n{text}\n')
        path.chmod(stat.S_IRWXU)

    @property
    def calls(self) -> list[str]:
        return (self.place / "calls").read_text().splitlines()

    def run(
        self, *command: str, stdin: bytes | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[bytes]:
        if command[-1] == "/proc/sys/kernel/random/boot_id":
            answer = self.boots[0]
            if len(self.boots) > 1:
                del self.boots[0]
            return subprocess.CompletedProcess(command, 0 if answer else 255, answer, b"")
        script = command[-1].replace("/run/goldnode", str(self.place))
        return subprocess.run(
            ["sh", "-c", script.replace("sleep 2", ":")],
            capture_output=True,
            check=False,
            env={**os.environ, "PATH": f"{self.place}:{os.environ['PATH']}"},
        )


def tools(node: Node, **more: object) -> RungTools:
    return RungTools(
        SiteLadder(mode="run"),
        lambda name: node,  # type: ignore[arg-type,return-value]
        guard=lambda name: "",
        resolve=Path,
        class_=lambda name: "h100",
        sleep=lambda seconds: None,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    own = Node(tmp_path, [b"b1"])
    own.program("systemctl", "exit 0")
    own.program("modprobe", "exit 0")
    own.program("nvidia-smi", "exit 0")
    return own


def test_service_restart_passes_over_units_that_are_not_installed(node: Node) -> None:
    first, last = UNITS[0], UNITS[-1]
    node.program("systemctl", f'[ "$1" != cat ] || [ "$2" = {last} ] || exit 1')
    assert tools(node).act(CASE) == f"{last} restarted"
    assert f"systemctl restart {last}" in node.calls
    assert first == last or f"systemctl restart {first}" not in node.calls


def test_service_that_does_not_stay_active_is_a_failure(node: Node) -> None:
    node.program("systemctl", '[ "$1" != is-active ] || exit 3')
    with pytest.raises(GoldnodeError, match="does not stay active"):
        tools(node).act(CASE)


def test_node_without_any_of_the_units_is_a_failure(node: Node) -> None:
    node.program("systemctl", '[ "$1" != cat ] || exit 1')
    with pytest.raises(GoldnodeError, match="n1 has none of"):
        tools(node).act(CASE)


@pytest.mark.parametrize("rung", ["gpu-reset", "module-reload"])
def test_services_of_the_driver_are_stopped_before_and_started_after(node: Node, rung: str) -> None:
    """The GPU is simulated: no process of this machine has one open."""
    assert tools(node).act(replace(CASE, rung=rung)) in ("reset", "reloaded")
    calls = [line for line in node.calls if "is-active" not in line]
    work = next(n for n, line in enumerate(calls) if line.startswith(("nvidia-smi", "modprobe")))
    assert all(line.startswith("systemctl stop") for line in calls[:work])
    assert calls[:work]
    assert all(line.startswith("systemctl start") for line in calls[work:] if "systemctl" in line)
    assert sum("stop" in line for line in calls) == sum("systemctl start" in line for line in calls)
    assert not (node.place / "ladder-services").exists()


def test_reset_that_fails_starts_the_services_again(node: Node) -> None:
    node.program("nvidia-smi", "echo 'the driver hangs (simulated)'; exit 15")
    with pytest.raises(GoldnodeError, match="the driver hangs"):
        tools(node).act(replace(CASE, rung="gpu-reset"))
    assert node.calls[-1].startswith("systemctl start")


def test_interrupted_reset_is_restored_by_another_controller(node: Node) -> None:
    (node.place / "ladder-services").write_text("nvidia-persistenced.service\n")
    assert "the services of the driver run" in tools(node).restore(replace(CASE, rung="gpu-reset"))
    assert node.calls[-1] == "systemctl start nvidia-persistenced.service"


def test_node_that_is_busy_again_is_left_alone(node: Node) -> None:
    own = replace(tools(node), guard=lambda name: "a job runs on it")
    with pytest.raises(RefusedRungError, match="a job runs on it"):
        own.act(CASE)
    assert not (node.place / "calls").exists()


@pytest.mark.real
@pytest.mark.long
@pytest.mark.skipif(slurm.missing() is not None, reason=slurm.missing() or "")
def test_node_that_ssh_does_not_reach_is_booted_by_a_real_slurmctld(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boot itself is simulated: RebootProgram of the test's cluster does nothing."""
    with slurm.cluster(1) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.conf)
        cluster.update("n1", "State=DRAIN", "Reason=repair")
        node.boots = [b"", b"", b"b2"]
        text = tools(node, slurm={"n1": "n1"}).act(replace(CASE, rung="reboot"))
        assert text == "booted: b2"
        state, _ = cluster.rows()["n1"]
        assert "REBOOT" in state, state


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("script", [rungs.GPU_RESET, rungs.MODULE_RELOAD, rungs.RESTORE])
def test_scripts_are_valid_for_the_shells_of_nodes(shell: str, script: str) -> None:
    subprocess.run([shell, "-n", "-c", script], check=True)
