"""The check without a class on the layouts of distributions: os-release, paths of the driver's library, cgroups, with and without systemd.

Each layout is a directory that plays a machine, and is labelled so: its paths are those of the distribution, its values are ours. The GPU
library is a program that prints the answer of a healthy L4. What runs on real userlands is in tests/nodes/test_userlands.py.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import documents
from tests.unit.node.captures import gpu
from tests.unit.node.roots import make

from goldnode.node.device import SCHEMA
from goldnode.node.ground import known
from goldnode.node.ground.host import Host
from goldnode.node.verdict import undeclared
from goldnode.node.verdict.report import verdict_table

NOW = 1795341600.0
DRIVER = "580.178.04"
ADDRESS = "0000:3b:00.0"
V2 = "0::/init.scope\n"
V1 = "12:devices:/\n4:memory:/\n1:name=systemd:/init.scope\n0::/init.scope\n"

# Distribution: os-release, folder of the library, /proc/1/cgroup, whether systemd runs.
LAYOUTS: dict[str, tuple[str, str, str, bool]] = {
    "debian 11": ('ID=debian\nVERSION_ID="11"\n', "/usr/lib/x86_64-linux-gnu", V2, True),
    "ubuntu 22.04": ('NAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n', "/usr/lib/x86_64-linux-gnu", V2, True),
    "ubuntu 24.04": ('VERSION_ID="24.04"\nID=ubuntu\n', "/usr/lib/x86_64-linux-gnu", V2, True),
    "rhel 8.10": ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="8.10"\n', "/usr/lib64", V1, True),
    "rhel 9.6": ('NAME="Red Hat Enterprise Linux"\nID="rhel"\nVERSION_ID="9.6"\n', "/usr/lib64", V2, True),
    "sles 15.6": ('NAME="SLES"\nVERSION_ID="15.6"\nID="sles"\nID_LIKE="suse"\n', "/usr/lib64", V1, True),
    "amzn 2023": ('ID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"\n', "/usr/lib64", V2, True),
    "alpine 3.22.0": ("ID=alpine\nVERSION_ID=3.22.0\n", "/usr/lib", "0::/\n", False),
}  # fmt: skip


def library(where: Path, **changes: Any) -> Path:
    """A program that answers as the process that asks NVML does, of one GPU."""
    own = {
        **gpu(0, ADDRESS),
        "pci_id": "10de:27b8",
        "name": "NVIDIA L4",
        "gsp_firmware": DRIVER,
        **changes,
    }
    own["memory"] = {"total_mib": 23034, "used_mib": 0, "bar1_mib": 32768}
    own["pcie"] = {
        "gen": {"current": 4, "max": 4, "device_max": 4},
        "width": {"current": 16, "max": 16},
        "replay": 0,
    }
    own.pop("index")
    lines = [
        {"schema": SCHEMA, "vendor": "nvidia", "driver": DRIVER, "nvml": f"13.{DRIVER}", "cuda": "13.0", "count": 1},
        {"i": 0, "next": None, "set": own},
        {"done": True, "cpu_ms": 1, "rss_kib": 2, "init_ms": 3},
    ]  # fmt: skip
    program = where / "program"
    body = "".join(f"print({json.dumps(line)!r}, flush=True)\n" for line in lines)
    program.write_text(f"#!{sys.executable} -IS\n{body}")
    program.chmod(0o755)
    return program


def machine(where: Path, layout: str, more: dict[str, str] | None = None) -> Host:
    """The machine of a layout, with one L4 whose driver is loaded."""
    release, libraries, cgroup, systemd = LAYOUTS[layout]
    bus = f"/sys/devices/pci0000:3a/0000:3a:00.0/{ADDRESS}"
    files = {
        "/usr/lib/os-release": release,
        "/proc/1/cgroup": cgroup,
        "/proc/uptime": "5000.00 9000.00\n",
        "/proc/sys/kernel/osrelease": "6.1.0-1\n",
        "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n",
        f"/proc/driver/nvidia/gpus/{ADDRESS}/information": "Model: NVIDIA L4\n",
        "/sys/module/nvidia/version": f"{DRIVER}\n",
        f"{libraries}/libnvidia-ml.so.{DRIVER}": "",
        "/dev/nvidia0": "",
        "/dev/nvidiactl": "",
        f"{bus}/modalias": "pci:v000010DEd000027B8sv000010DEsd000016CAbc03sc02i00\n",
        f"{bus}/current_link_speed": "16.0 GT/s PCIe\n",
        f"{bus}/current_link_width": "16\n",
        f"{bus}/max_link_speed": "16.0 GT/s PCIe\n",
        f"{bus}/max_link_width": "16\n",
        **({"/run/systemd/system/x": ""} if systemd else {}),
        **(more or {}),
    }
    links = {
        "/etc/os-release": "../usr/lib/os-release",
        f"{libraries}/libnvidia-ml.so.1": f"libnvidia-ml.so.{DRIVER}",
        f"/sys/bus/pci/devices/{ADDRESS}": f"../../../devices/pci0000:3a/0000:3a:00.0/{ADDRESS}",
        f"{bus}/driver": "../../../../bus/pci/drivers/nvidia",
    }
    root = make(where / "root", files, links)
    found = Host(str(root), live=True)
    found.program = str(library(where))
    return found


def check(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = documents.valid(
        json.dumps(undeclared.examine(host, known.facts(), now=NOW))
    )
    return found


def outcomes(verdict: dict[str, Any]) -> dict[str, str]:
    return {row["id"]: row["outcome"] for row in verdict["findings"]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_healthy_gpu_is_healthy_on_the_layout_of(layout: str, tmp_path: Path) -> None:
    verdict = check(machine(tmp_path, layout))
    bad = [row for row in verdict["findings"] if row["outcome"] not in ("match", "deferred")]
    assert (verdict["exit_code"], bad) == (0, []), verdict["unread"]
    assert verdict["detected"] == {
        "gpus": ["1 x L4"],
        "driver": DRIVER,
        "platform": [layout, "kernel 6.1.0-1"],
    }
    found = outcomes(verdict)
    assert {
        found[name]
        for name in ("gpu.library", "gpu.visible", "driver.agree", "gpu.memory", "pcie.width")
    } == {"match"}, "the driver's library is found where this distribution has it"
    assert {row["item"] for row in verdict["undeclared"]} >= {"os", "kernel", "driver", "gpu.count"}
    assert not (tmp_path / "root/run/goldnode").exists()
    assert not (tmp_path / "root/var/lib/goldnode").exists()


@pytest.mark.parametrize(
    "more",
    [
        {"/.dockerenv": ""},
        {"/run/.containerenv": ""},
        {"/proc/1/environ": "PATH=/bin\0KUBERNETES_SERVICE_HOST=10.0.0.1\0"},
        {"/proc/1/environ": "container=lxc\0"},
    ],
)
def test_a_container_with_some_of_the_gpus_of_its_host_has_lost_none(
    tmp_path: Path, more: dict[str, str]
) -> None:
    other = f"/sys/bus/pci/devices/{ADDRESS[:5]}5e:00.0/modalias"
    text = "pci:v000010DEd000027B8sv000010DEsd000016CAbc03sc02i00\n"
    inside = check(machine(tmp_path / "a", "ubuntu 24.04", {other: text, **more}))
    assert "gpu.visible" not in outcomes(inside)
    assert "a container" in inside["detected"]["platform"]
    outside = check(machine(tmp_path / "b", "ubuntu 24.04", {other: text}))
    assert outcomes(outside)["gpu.visible"] == "mismatch"


def test_a_gpu_without_a_driver_could_not_be_checked(tmp_path: Path) -> None:
    host = machine(tmp_path, "ubuntu 24.04")
    for name in (
        "proc/driver/nvidia/version",
        "sys/module/nvidia/version",
        "dev/nvidiactl",
        "dev/nvidia0",
    ):
        (Path(host.root) / name).unlink()
    (Path(host.root) / "sys/module/nvidia").rmdir()
    verdict = check(host)
    assert verdict["exit_code"] == 3
    assert {row["why"] for row in verdict["unread"]} >= {"no_driver"}
    assert "no GPU driver answers" in verdict_table(verdict)


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    host = machine(tmp_path, "rhel 9.6")
    head = {
        "schema": SCHEMA,
        "vendor": "nvidia",
        "error": "NVML Shared Library Not Found",
        "rc": 12,
    }
    Path(host.program).write_text(f"#!{sys.executable} -IS\nprint({json.dumps(head)!r})\n")
    verdict = check(host)
    assert verdict["exit_code"] in (2, 3)
    assert outcomes(verdict)["gpu.library"] in ("mismatch", "could_not_read")


def remove(root: Path, names: tuple[str, ...]) -> None:
    import shutil

    for name in names:
        here = root / name
        if here.is_symlink() or here.is_file():
            here.unlink()
        elif here.exists():
            shutil.rmtree(here)


@pytest.mark.parametrize(
    "missing",
    [
        ("proc",),
        ("sys",),
        ("dev",),
        ("etc",),
        ("usr/lib/os-release",),
        ("sys/bus",),
        ("proc/driver",),
        ("proc/sys", "proc/uptime", "proc/1"),
        ("run",),
        ("proc", "sys", "dev", "etc", "run"),
    ],
)
def test_a_machine_of_which_parts_are_missing_gets_a_verdict(
    tmp_path: Path, missing: tuple[str, ...]
) -> None:
    host = machine(tmp_path, "sles 15.6")
    remove(Path(host.root), missing)
    verdict = check(host)
    assert verdict["exit_code"] in (0, 1, 2, 3)
    assert verdict_table(verdict).splitlines()[-1].startswith("verdict: ")


def test_folders_that_a_user_may_not_enter_end_in_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reads everything, so the refusal is made here: each open below these folders fails."""
    host = machine(tmp_path, "ubuntu 22.04")
    denied = tuple(f"{host.root}/{name}" for name in ("proc/driver", "sys/module", "proc/1"))
    really = os.open

    def refuse(path: Any, *given: Any, **more: Any) -> int:
        if str(path).startswith(denied):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *given, **more)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    verdict = check(host)
    assert verdict["exit_code"] in (0, 1, 2, 3)


def test_no_gpu_at_all_is_reported_and_is_not_healthy(tmp_path: Path) -> None:
    host = machine(tmp_path, "alpine 3.22.0")
    remove(Path(host.root), ("sys/bus", "sys/module", "proc/driver", "dev"))
    verdict = check(host)
    text = verdict_table(verdict)
    assert verdict["exit_code"] == 3
    assert "found: no GPU; alpine 3.22.0" in text
    assert "the PCI bus could not be read: no /sys/bus/pci/devices" in text
