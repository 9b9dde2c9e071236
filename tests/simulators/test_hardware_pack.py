"""Tests of packing the simulated hardware as an archive for a virtual machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.simulators.hardware.node import LOADER, PLACE, UNIT

DOCUMENT: dict[str, Any] = {
    "class": "boards",
    "gpu": {"model": "A100-SXM4-40GB", "count": 8, "vendor": "nvidia"},
    "platform": {"nvswitch": True},
    "driver": {"version": "535.309.01"},
}


def packed(tmp_path: Path, *words: str) -> dict[str, tarfile.TarInfo]:
    """Return the members of the archive by name; unpack it to `tmp_path`/root."""
    file, out = tmp_path / "class.json", tmp_path / "out.tar"
    file.write_text(json.dumps(DOCUMENT))
    command = [
        sys.executable,
        "-m",
        "tests.simulators.hardware",
        "pack",
        "--document",
        str(file),
        "--out",
        str(out),
        *words,
    ]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "root").mkdir()
    subprocess.run(["tar", "-x", "-f", out, "-C", tmp_path / "root"], check=True)
    with tarfile.open(out) as archive:
        return {f"/{member.name}": member for member in archive.getmembers()}


def boards(tmp_path: Path) -> int:
    """Return the number of GPUs on the bus of the archive."""
    bus = tmp_path / "root" / PLACE.lstrip("/") / "tree/sys/bus/pci"
    return len([path for path in bus.rglob("vendor") if "10de" in path.read_text()])


def test_the_archive_holds_library_bus_and_unit_for_a_virtual_machine(tmp_path: Path) -> None:
    members = packed(tmp_path)
    assert {
        f"{PLACE}/SIMULATED",
        f"{PLACE}/scenario",
        f"{PLACE}/lib/libnvidia-ml.so.1",
        LOADER,
    } <= members.keys()
    assert members[f"{PLACE}/show"].mode == 0o755
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
    unit = (tmp_path / "root" / f"etc/systemd/system/{UNIT}").read_text()
    assert "ConditionVirtualization=vm\n" in unit
    assert "container" not in unit
    assert "After=local-fs.target systemd-udev-trigger.service\n" in unit
    assert boards(tmp_path) == 8


def test_a_fault_takes_a_board_off_the_bus(tmp_path: Path) -> None:
    packed(tmp_path, "--fault", "gpu0.absent=1")
    assert boards(tmp_path) == 7
    assert "gpu0.absent=1" in (tmp_path / "root" / PLACE.lstrip("/") / "faults").read_text()
