# ruff: noqa: E501
"""A GPU that its vendor's driver does not have: check and diagnose name the cause first, with a remedy that fits, without root."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node import captures

from goldnode.node.diagnose import checks, sample
from goldnode.node.ground import known
from goldnode.node.ground.host import Host
from goldnode.node.probe.values import unread
from goldnode.node.state import remedy
from goldnode.node.state.finding import MATCH, MISMATCH, UNREAD, Finding
from goldnode.node.state.kinds import KINDS
from goldnode.node.verdict import binding, report, undeclared

DMESG = remedy.Remedy("Read dmesg.", remedy.PERSON)
GPU, RELEASE = "0000:01:00.0", "6.8.0-60-generic"
# Packages of a workstation with Ubuntu's driver, and their states in dpkg.
DRIVER = {
    "nvidia-driver-580": "installed",
    "libnvidia-compute-580": "installed",
    "nvidia-dkms-580": "installed",
}
PREBUILT = {
    "nvidia-driver-580": "installed",
    "linux-modules-nvidia-580-6.8.0-58-generic": "installed",
}
BUILT = (RELEASE, "updates/dkms/nvidia.ko.zst")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here needs rates between two samples."""
    monkeypatch.setattr(sample, "INTERVAL", 0.06)


def workstation(
    root: Path,
    driver: str | None = None,
    packages: dict[str, str] | None = None,
    built: tuple[tuple[str, str], ...] = (),
    headers: bool = True,
    system: str = "ubuntu",
    files: dict[str, str] | None = None,
    pci_id: str = "10de:2684",
) -> Host:
    """A live machine with one graphics card in a root directory, as an ordinary user reads it."""
    address = root / f"sys/devices/pci0000:00/0000:00:01.0/{GPU}"
    vendor, device = pci_id.split(":")
    texts = {
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "class": "0x030000",
        "subsystem_vendor": "0x10de",
        "subsystem_device": "0x165b",
        "modalias": f"pci:v0000{vendor.upper()}d0000{device.upper()}sv000010DEsd0000165Bbc03sc00i00",
    }
    written = {str(address.relative_to(root) / name): text for name, text in texts.items()}
    status = "".join(
        f"Package: {name}\nStatus: install ok {state}\nArchitecture: amd64\nVersion: 580.95.05-1\n\n"
        for name, state in (packages or {}).items()
    )
    written.update(
        {
            "etc/os-release": f"ID={system}\nVERSION_ID=24.04\n",
            "var/lib/dpkg/status": "Package: bash\nStatus: install ok installed\nVersion: 5\n\n"
            + status,
            "proc/sys/kernel/osrelease": RELEASE,
            "proc/cmdline": "quiet",
            "proc/uptime": "400.0 300.0",
        }
    )
    for release in {RELEASE, *(release for release, _ in built)}:
        rows = [f"{name}: kernel/drivers/other.ko\n" for at, name in built if at == release]
        written[f"lib/modules/{release}/modules.dep"] = "kernel/drivers/other.ko:\n" + "".join(rows)
    if headers:
        written[f"lib/modules/{RELEASE}/build/Makefile"] = ""
    for name, text in {**written, **(files or {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    bus = root / "sys/bus/pci"
    (bus / "devices").mkdir(parents=True)
    (bus / "devices" / GPU).symlink_to(address)
    if driver is not None:
        (bus / "drivers" / driver).mkdir(parents=True)
        (address / "driver").symlink_to(bus / "drivers" / driver)
    return Host(str(root), live=True)


D = "etc/modprobe.d/"
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: (machine, fragment of the cause, fragment of the remedy)
    "no driver at all, Ubuntu": ({"driver": "nouveau"}, "bound to nouveau: no NVIDIA driver is installed", "`sudo ubuntu-drivers install`, then reboot"),
    "no driver at all, Debian": ({"driver": "nouveau", "system": "debian"}, "no NVIDIA driver is installed", "`sudo apt install nvidia-driver` (component non-free), then reboot"),
    "no driver at all, another distribution": ({"system": "arch"}, "bound to no driver: no NVIDIA driver is installed", "the packages of the distribution"),
    "half-configured": ({"driver": "nouveau", "packages": {**DRIVER, "nvidia-dkms-580": "half-configured"}}, "package nvidia-dkms-580 is half-configured", "Run `sudo dpkg --configure -a`"),
    "half-configured without headers": ({"packages": {**DRIVER, "nvidia-dkms-580": "half-configured"}, "headers": False}, "is half-configured", f"`sudo apt install linux-headers-{RELEASE}`), then run `sudo dpkg --configure -a`"),
    "unpacked": ({"packages": {"nvidia-driver-580": "unpacked"}}, "package nvidia-driver-580 is unpacked", "dpkg --configure -a"),
    "removed packages do not count": ({"packages": {"nvidia-driver-580": "config-files"}}, "no NVIDIA driver is installed", "ubuntu-drivers"),
    "no module for this kernel": ({"packages": DRIVER, "built": (("6.8.0-58-generic", "updates/dkms/nvidia.ko"),)}, f"the running kernel {RELEASE} has no module nvidia, 6.8.0-58-generic has one", f"Run `sudo dkms autoinstall -k {RELEASE}`"),
    "no module and no headers": ({"packages": DRIVER, "headers": False}, f"the running kernel {RELEASE} has no module nvidia", f"Run `sudo apt install linux-headers-{RELEASE}`, then `sudo dkms autoinstall"),
    "prebuilt for another kernel": ({"packages": PREBUILT, "built": (("6.8.0-58-generic", "kernel/nvidia-580/nvidia.ko"),)}, "has no module nvidia", f"`sudo apt install linux-modules-nvidia-580-{RELEASE}`"),
    "nouveau was first": ({"driver": "nouveau", "packages": DRIVER, "built": (BUILT,)}, "no line of modprobe.d keeps nouveau out", "echo blacklist nouveau"),
    "nouveau from the initramfs": ({"driver": "nouveau", "packages": DRIVER, "built": (BUILT,), "files": {"lib/modprobe.d/n.conf": "blacklist nouveau\n"}}, "nouveau was loaded before the line that keeps it out", "Run `sudo update-initramfs -u`"),
    "nouveau from the initramfs of dracut": ({"driver": "nouveau", "system": "fedora", "built": (BUILT,), "files": {"lib/modprobe.d/n.conf": "blacklist nouveau\n"}}, "nouveau was loaded before", "`sudo dracut --force`"),
    "same out by a file": ({"packages": DRIVER, "built": (BUILT,), "files": {D + "blacklist-nvidia.conf": "# prime-select\nblacklist nvidia\nalias nvidia off\n"}}, "/etc/modprobe.d/blacklist-nvidia.conf:2 (`blacklist nvidia`)", "Take back what /etc/modprobe.d/blacklist-nvidia.conf:2"),
    "same out by the command line": ({"packages": DRIVER, "built": (BUILT,), "files": {"proc/cmdline": "quiet module_blacklist=nvidia"}}, "the kernel command line (`module_blacklist=nvidia`) keeps nvidia out", "Take back what the kernel command line"),
    "not loaded": ({"packages": DRIVER, "built": (BUILT,)}, "the module nvidia is installed and not loaded", "Run `sudo modprobe nvidia`"),
    "refused by the module": ({"packages": DRIVER, "built": (BUILT,), "files": {"sys/module/nvidia/initstate": "live"}}, "nvidia is loaded and did not take it", "`sudo dmesg`"),
    "vfio by options": ({"driver": "vfio-pci", "packages": DRIVER, "files": {D + "vfio.conf": "options vfio-pci ids=10de:2684,10de:22ba\n"}}, "reserved for a virtual machine by /etc/modprobe.d/vfio.conf:1", "take /etc/modprobe.d/vfio.conf:1"),
    "vfio by driverctl": ({"driver": "vfio-pci", "files": {f"etc/driverctl.d/{GPU}": "vfio-pci\n"}}, f"reserved for a virtual machine by /etc/driverctl.d/{GPU}", "take /etc/driverctl.d"),
    "vfio by a person": ({"driver": "vfio-pci"}, "bound to vfio-pci: it is reserved for a virtual machine", "driverctl list-overrides"),
    "inside a container": ({"driver": "nouveau", "files": {".dockerenv": ""}}, "bound to nouveau on the host of this container", "on the host of this container"),
    "an AMD GPU same out": ({"pci_id": "1002:744c", "built": ((RELEASE, "kernel/amd/amdgpu.ko"),), "files": {D + "a.conf": "blacklist amdgpu\n"}}, "/etc/modprobe.d/a.conf:1 (`blacklist amdgpu`) keeps amdgpu out", "Take back"),
}  # fmt: skip
UNCERTAIN = ("vfio", "inside a container", "an AMD GPU")


@pytest.mark.parametrize("name", CASES)
def test_check_and_diagnose_name_the_cause_first(tmp_path: Path, name: str) -> None:
    machine, cause, remedy = CASES[name]
    host = workstation(tmp_path, **machine)
    verdict = undeclared.examine(host, known.facts(), passive=True)

    first = verdict["findings"][0]
    assert first["id"] == "gpu.bound"
    assert cause in first["got"]
    assert remedy in first["remedy"]
    assert verdict["exit_code"] == (3 if name.startswith(UNCERTAIN) else 2)
    rows = report.verdict_table(verdict).splitlines()
    table = rows[next(n for n, row in enumerate(rows) if row.startswith("----")) + 1]
    assert cause in table

    line = checks.diagnose(*sample.take(host))["lines"][0]
    assert cause in line["text"]
    assert remedy in line["next"]


def test_consequences_of_an_unbound_gpu_are_listed_once(tmp_path: Path) -> None:
    host = workstation(tmp_path, driver="nouveau")
    verdict = undeclared.examine(host, known.facts(), passive=True)
    following = [row for row in verdict["findings"] if row["remedy"] and row["id"] != "gpu.bound"]
    assert len(following) > 15
    assert {row["remedy"] for row in following} == {"Fix `gpu.bound` first: this follows from it."}
    text = report.verdict_table(verdict)
    for row in following:
        assert len(re.findall(rf"(?<![\w.]){re.escape(row['id'])}(?![\w.])", text)) == 1, row["id"]


def named(verdict: dict[str, Any]) -> set[str]:
    """The findings that remedies of a verdict name."""
    text = " ".join(str(row["remedy"]) for row in verdict["findings"] if row["outcome"] != "match")
    return set(re.findall(r"`([\w.]+)`", text)) & set(KINDS)


def test_every_row_that_a_remedy_names_is_in_the_verdict(tmp_path: Path) -> None:
    for name, (machine, _, _) in CASES.items():
        (tmp_path / name).mkdir()
        verdict = undeclared.examine(
            workstation(tmp_path / name, **machine), known.facts(), passive=True
        )
        assert named(verdict) <= {
            row["id"] for row in verdict["findings"] if row["outcome"] != "match"
        }


def test_a_bound_gpu_reads_nothing(tmp_path: Path) -> None:
    host = workstation(tmp_path, driver="nvidia", packages={"nvidia-dkms-580": "half-configured"})
    capture = undeclared.live(host, passive=True)
    assert "binding" not in capture


def test_seven_of_eight_gpus_in_the_library_point_to_the_row_that_counts_them() -> None:
    capture = captures.healthy()
    fault = unread("the GPU library does not list this GPU")
    last = capture["gpus"][-1]
    same = ("address", "vendor", "driver", "pci_id", "subsystem_id", "lost")
    capture["gpus"][-1] = {key: last[key] if key in same else fault for key in last} | {
        "index": None
    }
    verdict = undeclared.examine(Host("/"), known.facts(), captured=capture)

    following = [row for row in verdict["findings"] if "does not list this GPU" in str(row["got"])]
    assert len(following) > 10
    assert {row["remedy"] for row in following} == {
        "Fix `gpu.visible` first: this follows from it."
    }
    assert named(verdict) <= {
        row["id"] for row in verdict["findings"] if row["outcome"] == "mismatch"
    }


@pytest.mark.parametrize("lost", [False, True], ids=["7 of 8", "one is lost"])
def test_missing_gpu_is_one_cause_with_its_consequences_below_it(lost: bool) -> None:
    """F04 and F15 of a node with a class: what the missing GPU takes along is not a fault beside it."""
    whole = Finding("gpu.lost", MATCH, "answers", "8 answer")
    rows = [
        Finding("policy.ecc", UNREAD, "on", "on 7 of 8; 1 of 8 GPUs do not answer", DMESG),
        Finding("gpu.visible", MISMATCH, "8 each", "library 7, PCI bus 7, /dev 7", DMESG),
        Finding("runtime.cdi_paths", MISMATCH, "all", "1 missing: /dev/nvidia7", DMESG),
        Finding("net.mtu", MISMATCH, "9000", "1500", DMESG),
        Finding("gpu.count", MISMATCH, "8", "7", DMESG) if not lost else whole,
    ]
    if lost:
        rows[0] = rows[0]._replace(got="GPU 3: GPU is lost (return code 15)")
        rows[1] = rows[1]._replace(outcome=MATCH)
        rows.append(Finding("gpu.lost", MISMATCH, "answers", "lost", DMESG, subject="0000:5d:00.0"))
    root = "gpu.lost" if lost else "gpu.count"
    linked = binding.connected(rows, {})
    assert linked[0].id == root
    assert linked[0].remedy == DMESG
    following = [item.id for item in linked if str(item.remedy).endswith(remedy.FOLLOWS)]
    assert following == [item.id for item in linked[1 : 1 + len(following)]]
    assert set(following) == {"policy.ecc", "runtime.cdi_paths"} | (
        set() if lost else {"gpu.visible"}
    )
    # Without the cause nothing follows from it.
    alone = binding.connected([item for item in rows if item.id != root], {})
    assert not [item for item in alone if f"`{root}`" in str(item.remedy)]
    # Three places that differ are a fault of their own.
    rows[1] = Finding("gpu.visible", MISMATCH, "8 each", "library 6, PCI bus 7, /dev 7", DMESG)
    assert DMESG in [
        item.remedy for item in binding.connected(rows, {}) if item.id == "gpu.visible"
    ]
