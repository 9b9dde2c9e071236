"""Drain and return, against recorded answers of the schedulers' own programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from goldnode.errors import GoldnodeError
from goldnode.fleet.drain import Command, Kubectl, Slurm, choose


class Recorder:
    """Stands in for running a program: keeps what was asked, answers from a list of states."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str]) -> str:
        self.asked.append(" ".join(argv))
        shows = argv[1] in ("show", "get")
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]) if shows else ""


def slurm(*states: str) -> tuple[Slurm, Recorder]:
    recorder = Recorder(*(f"NodeName=n1 Arch=x86_64 State={state} Reason=x" for state in states))
    return Slurm(run=recorder, wait=60, sleep=lambda seconds: None), recorder


def test_slurm_waits_for_the_jobs_and_resumes_what_it_drained() -> None:
    drain, recorder = slurm("ALLOCATED", "ALLOCATED+DRAIN", "MIXED+DRAIN", "IDLE+DRAIN")
    assert drain.drain("n1", "kernel") is True
    assert recorder.asked[1] == "scontrol update NodeName=n1 State=DRAIN Reason=kernel"
    assert len([line for line in recorder.asked if "show" in line]) == 4
    drain.resume("n1", True)
    assert recorder.asked[-1] == "scontrol update NodeName=n1 State=RESUME"


def test_slurm_leaves_a_node_drained_that_was_drained() -> None:
    drain, recorder = slurm("IDLE+DRAIN")
    assert drain.drain("n1", "kernel") is False
    drain.resume("n1", False)
    assert not [line for line in recorder.asked if "update" in line]


@pytest.mark.parametrize(
    ("reason", "in_service"),
    [
        ("goldnode disks update: cpu-1 is booted [root@2026-01-01T00:00:00]", True),
        ("goldnode: gpu.count: 7, want 8 [slurm@2026-01-01T00:00:00]", False),  # the gate on the node
        ("disk is failing [ann@2026-01-01T00:00:00] Comment=goldnode disks update: of another", False),
        ("", False),
    ],
)
def test_slurm_returns_what_a_run_of_ours_left_drained_and_nothing_else(reason: str, in_service: bool) -> None:
    recorder = Recorder(
        f"NodeName=n1 Arch=x86_64 State=IDLE+DRAIN RealMemory=1 Reason={reason}\n" if reason else "NodeName=n1 State=IDLE+DRAIN\n"
    )
    drain = Slurm(run=recorder)
    assert drain.drain("n1", "goldnode disks update: cpu-2 is booted", "goldnode disks update:") is in_service
    assert drain.drain("n1", "kernel") is False  # who says nothing of reasons of its own
    drain.resume("n1", in_service)
    assert ("scontrol update NodeName=n1 State=RESUME" in recorder.asked) is in_service


def test_what_stays_drained_is_told_with_what_returns_it() -> None:
    told = Slurm(run=Recorder("NodeName=n1 State=IDLE+DRAIN Reason=disk is failing [ann@now] Comment=x\n")).stays("n1")
    assert "(Slurm: disk is failing [ann@now]), and stays so. `scontrol update NodeName=n1 State=RESUME` returns it" in told
    assert "`kubectl uncordon n1` returns it" in Kubectl(run=Recorder("")).stays("n1")
    assert "as off says, and stays so. `on -f n1` returns it" in Command(["off"], ["on", "-f"]).stays("n1")


def test_slurm_gives_up_on_jobs_that_do_not_end() -> None:
    drain, _ = slurm("ALLOCATED", "ALLOCATED+DRAIN")
    with pytest.raises(GoldnodeError, match="still has jobs after 60 s"):
        drain.drain("n1", "kernel")


def test_slurm_node_of_another_name() -> None:
    with pytest.raises(GoldnodeError, match="tells no state of node n1"):
        Slurm(run=Recorder("slurm_load_node error")).drain("n1", "x")


@pytest.mark.parametrize(("cordoned", "uncordons"), [(False, True), (True, False)])
def test_kubectl_uncordons_only_what_it_cordoned(cordoned: bool, uncordons: bool) -> None:
    recorder = Recorder(json.dumps({"spec": {"unschedulable": True} if cordoned else {}}))
    drain = Kubectl(run=recorder)
    in_service = drain.drain("n1", "kernel")
    drain.resume("n1", in_service)
    assert in_service is uncordons
    assert any(line.startswith("kubectl drain n1") for line in recorder.asked)
    assert ("kubectl uncordon n1" in recorder.asked) is uncordons


def script(path: Path, status: int) -> str:
    path.write_text(f'#!/bin/sh\necho "$@" >> {path}.log\necho trouble >&2\nexit {status}\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("status", "in_service"), [(0, True), (3, False)])
def test_a_command_of_the_site(tmp_path: Path, status: int, in_service: bool) -> None:
    drain = Command([script(tmp_path / "drain", status)], [script(tmp_path / "resume", 0)])
    assert drain.drain("n1", "a reason") is in_service
    assert (tmp_path / "drain.log").read_text() == "n1 a reason\n"
    drain.resume("n1", in_service)
    assert (tmp_path / "resume.log").exists() is in_service


def test_a_command_that_fails_stops_the_reboot(tmp_path: Path) -> None:
    with pytest.raises(GoldnodeError, match="trouble"):
        Command([script(tmp_path / "drain", 1)], ["true"]).drain("n1", "x")


@pytest.mark.parametrize(("name", "text"), [("lsf", "is not known"), ("command", "needs goldnode_drain_command")])
def test_what_is_not_known_is_refused(name: str, text: str) -> None:
    with pytest.raises(GoldnodeError, match=text):
        choose(name)
