"""Who holds a GPU: what decides whether drivers, engines and devices may be taken away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.ground.host import Host
from goldnode.node.state import observe


def process(root: Path, pid: int, unit: str, *opened: str) -> None:
    """A process in a procfs below `root`."""
    here = root / "proc" / str(pid)
    (here / "fd").mkdir(parents=True)
    for number, target in enumerate(opened):
        (here / "fd" / str(number)).symlink_to(target)
    (here / "comm").write_text("python3\n")
    (here / "cgroup").write_text(f"0::/system.slice/{unit}\n")


def test_a_file_that_is_closed_meanwhile_hides_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, 7, "slurmstepd.scope", "/data/shard-1", "/dev/nvidia0", "/data/shard-2")
    read = os.readlink

    def race(name: Any) -> str:
        target = str(read(name))
        if "shard" in target:
            raise FileNotFoundError(name)
        return target

    monkeypatch.setattr(os, "readlink", race)
    assert [row["pid"] for row in observe.gpu_holders(Host(str(tmp_path)))] == [7]


@pytest.mark.parametrize(
    "unit", ["nvidia-persistenced.service", "goldnode-mps.service", "goldnode-watch.service"]
)
def test_daemons_of_the_driver_and_goldnodes_own_units_are_no_jobs(
    tmp_path: Path, unit: str
) -> None:
    process(tmp_path, 7, unit, "/dev/nvidiactl")
    assert observe.gpu_holders(Host(str(tmp_path))) == []


def test_a_process_that_ends_while_it_is_read_is_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, 7, "job.scope")

    def gone(name: str, mode: str) -> None:
        raise ProcessLookupError(3, "No such process", name)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", gone)
        assert Host(str(tmp_path)).text("/proc/7/comm") is None
