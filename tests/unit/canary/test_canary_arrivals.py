"""Other work on a node, by a made /proc: jobs of Slurm, and processes that compute on a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from goldnode.canary.runner.arrivals import Arrivals

ME = os.getpid()


def process(
    root: Path, pid: int, name: str, parent: int = 1, files: tuple[str, ...] = (), **texts: str
) -> None:
    folder = root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 0 0")
    for number, file in enumerate(files):
        (folder / f"fd/{number}").symlink_to(file)
    for file, text in texts.items():
        (folder / file).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    process(tmp_path, 1, "systemd", 0)
    process(tmp_path, ME, "python3", 1)
    process(tmp_path, 90, "nv-hostengine", 1, ("/dev/nvidiactl", "/dev/nvidia0"))
    process(tmp_path, 91, "slurmd", 1)
    (tmp_path / "proc/meminfo").write_text("")
    return tmp_path


def test_monitors_are_no_work(root: Path) -> None:
    found = Arrivals(str(root))
    assert [found.work() for _ in range(3)] == ["", "", ""]


def test_a_diagnosis_that_the_host_engine_of_dcgm_started_is_no_work(root: Path) -> None:
    process(root, 95, "nvvs", 90, ("/dev/nvidia-uvm",))
    process(root, 96, "nvvs", 95, ("/dev/nvidia-uvm",))
    found = Arrivals(str(root))
    assert [found.work(), found.work()] == ["", ""]


def test_a_slurm_job_is_work_at_once(root: Path) -> None:
    found = Arrivals(str(root))
    assert found.work() == ""
    process(root, 700, "slurmstepd", 1, cmdline="slurmstepd: [42.batch]\0")
    assert found.work() == "a Slurm job runs on the node (process 700)"


def test_steps_of_the_own_job_are_not(root: Path) -> None:
    process(root, 700, "slurmstepd", 1, cmdline="slurmstepd: [42.extern]\0")
    assert Arrivals(str(root), own_job="42").work() == ""
    assert Arrivals(str(root), own_job="4").work() != ""


def test_a_step_daemon_above_the_program_is_its_own(root: Path) -> None:
    (root / f"proc/{ME}/stat").write_text(f"{ME} (python3) S 700 0 0")
    process(root, 700, "slurmstepd", 1)
    assert Arrivals(str(root)).work() == ""


@pytest.mark.parametrize("file", ["/dev/nvidia-uvm", "/dev/kfd"])
def test_a_process_on_a_gpu_is_work_when_it_stays(root: Path, file: str) -> None:
    found = Arrivals(str(root))
    process(root, 800, "train (v2)", 1, ("/dev/null", file))
    assert found.work() == ""  # a health check would be gone by the next call
    assert found.work() == "another process computes on a GPU: train (v2) (process 800)"


def test_own_jobs_and_own_containers_are_not(root: Path) -> None:
    process(root, 800, "python3", ME, ("/dev/nvidia-uvm",))
    process(root, 801, "python3", 800, ("/dev/nvidia-uvm",))
    process(root, 802, "python3", 1, ("/dev/nvidia-uvm",), environ="A=1\0GOLDNODE_CANARY_RUN=abc\0")
    found = Arrivals(str(root), own_run="abc")
    assert [found.work(), found.work()] == ["", ""]
    other = Arrivals(str(root), own_run="abcd")
    assert [other.work(), other.work()] == [
        "",
        "another process computes on a GPU: python3 (process 802)",
    ]
