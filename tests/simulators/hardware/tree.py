"""The sysfs and procfs of a scenario: PCI devices with a root port each, the driver's own files, AMD's DRM, hwmon and KFD entries.

`write` makes a directory that serves as the root of a Host. Below it everything is a plain file: what is written to
``power1_cap`` is read back, and no kernel is there to refuse it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.simulators.hardware.scenario import LABEL, Gpu, Scenario

# Its presence in a PCI tree says that a simulator shows it (observe.SIMULATED_BUS).
MARKER = "goldnode-simulator"
SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
# Where devices are: as the kernel has it, or below the PCI bus, for a tree that is mounted over it.
DEVICES, DEVICES_OF_A_MOUNT = "sys/devices", "sys/bus/pci/simulated"
# A generic root port; the ids are Intel's for one of its server processors.
PORT = ("8086", "352a")
AER = {
    "aer_dev_correctable": ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF", "TOTAL_ERR_COR"),
    "aer_dev_nonfatal": ("Undefined", "DLP", "TLP", "CmpltTO", "UnxCmplt", "MalfTLP", "TOTAL_ERR_NONFATAL"),
    "aer_dev_fatal": ("Undefined", "DLP", "TLP", "CmpltTO", "UnxCmplt", "MalfTLP", "TOTAL_ERR_FATAL"),
}


def write(scenario: Scenario, root: Path, *, devices: str = DEVICES) -> Path:
    """Write the tree of the GPUs that are on the bus, with the faults of the scenario, below `root`; return `root`.

    Of fields with a return code for a fault the healthy value is shown: sysfs has no return codes.
    """
    tree = _Tree(root, devices)
    driver = "nvidia" if scenario.vendor == "nvidia" else "amdgpu"
    tree.file(f"sys/bus/pci/{MARKER}", f"{LABEL}: {scenario.model}\n")
    tree.folder("sys/bus/pci/drivers/pcieport")
    tree.folder(f"sys/bus/pci/drivers/{driver}")
    for index in scenario.visible():
        gpu = _with_faults(scenario, index)
        place = _pci(tree, gpu, driver, "0x120000" if driver == "amdgpu" else "0x030200")
        if driver == "amdgpu":
            _amd(tree, gpu, index, place)
    version = scenario.system.get("driver_version", "")
    tree.file(f"sys/module/{driver}/initstate", "live\n")
    tree.file(f"sys/module/{driver}/refcnt", "0\n")
    if driver == "nvidia":
        tree.file("sys/module/nvidia/version", f"{version}\n")
        _nvidia_proc(tree, scenario, version)
    else:
        tree.file("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
    return root


def _with_faults(scenario: Scenario, index: int) -> Gpu:
    prefix = f"gpu{index}."
    changed = {key.removeprefix(prefix): value for key, value in scenario.faults.items() if key.startswith(prefix)}
    return {**scenario.gpus[index], **{key: value for key, value in changed.items() if not value.startswith(("error:", "hang"))}}


def _pci(tree: _Tree, gpu: Gpu, driver: str, kind: str) -> str:
    """A GPU below its root port; return its folder. A fault in pcie.port_generation or pcie.port_width is the port's own."""
    address = gpu["pci.address"]
    bus = int(address[5:7], 16)
    port = f"0000:{bus - 1:02x}:01.0"
    above = f"{tree.devices}/pci0000:{bus - 1:02x}/{port}"
    here = f"{above}/{address}"
    best = (gpu["pcie.generation_max"], gpu["pcie.width_max"])
    device, vendor = gpu["pci.device_id"][:4], gpu["pci.device_id"][4:]
    narrow = (gpu.get("pcie.port_generation", best[0]), gpu.get("pcie.port_width", best[1]))
    _device(tree, above, PORT, "0x060400", (gpu["pcie.generation"], gpu["pcie.width"]), narrow, gpu["numa_node"])
    _device(tree, here, (vendor, device), kind, (gpu["pcie.generation"], gpu["pcie.width"]), best, gpu["numa_node"])
    tree.link(f"{above}/driver", "sys/bus/pci/drivers/pcieport")
    tree.link(f"{here}/driver", f"sys/bus/pci/drivers/{driver}")
    for place in (above, here):
        tree.link(f"sys/bus/pci/devices/{place.rpartition('/')[2]}", place)
    return here


def _device(tree: _Tree, place: str, ids: tuple[str, str], kind: str, now: tuple[str, str], best: tuple[str, str], numa: str) -> None:
    vendor, device = ids
    values = {
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "subsystem_vendor": f"0x{vendor}",
        "subsystem_device": f"0x{device}",
        "class": kind,
        "revision": "0xa1",
        "current_link_speed": f"{SPEEDS[int(now[0])]} GT/s PCIe",
        "current_link_width": now[1],
        "max_link_speed": f"{SPEEDS[int(best[0])]} GT/s PCIe",
        "max_link_width": best[1],
        "numa_node": numa,
        "power_state": "D0",
        "enable": "1",
    }
    for name, value in values.items():
        tree.file(f"{place}/{name}", f"{value}\n")
    for name, rows in AER.items():
        tree.file(f"{place}/{name}", "".join(f"{row} 0\n" for row in rows))
    identity = b"".join(int(part, 16).to_bytes(2, "little") for part in (vendor, device))
    tree.file(f"{place}/config", identity + bytes(252))


def _nvidia_proc(tree: _Tree, scenario: Scenario, version: str) -> None:
    # The text where a real one has the date of its build says what this is.
    told = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  {LABEL}\nGCC version:  {LABEL}\n"
    tree.file("proc/driver/nvidia/version", told)
    tree.file("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nEnableStreamMemOPs: 0\n")
    for index in scenario.visible():
        gpu = _with_faults(scenario, index)
        rows = {
            "Model": gpu["name"],
            "GPU UUID": gpu["uuid"],
            "Video BIOS": gpu["vbios_version"],
            "Bus Type": "PCIe",
            "Bus Location": gpu["pci.address"],
            "Device Minor": gpu["minor_number"],
            "GPU Excluded": "No",
        }
        text = "".join(f"{name}: \t {value}\n" for name, value in rows.items())
        tree.file(f"proc/driver/nvidia/gpus/{gpu['pci.address']}/information", text)


def _amd(tree: _Tree, gpu: Gpu, index: int, place: str) -> None:
    microwatts = {name: str(int(gpu[field]) * 1000) for name, field in _CAPS.items()}
    tree.files(
        place,
        {
            "unique_id": gpu["unique_id"],
            "serial_number": gpu["serial"],
            "product_name": gpu["name"],
            "vbios_version": gpu["vbios_version"],
            "mem_info_vram_total": gpu["memory.total"],
            "mem_info_vram_used": "0",
            "power_dpm_force_performance_level": gpu["performance_level"],
            "pcie_replay_count": "0",
            "gpu_busy_percent": "0",
        },
    )
    monitor = f"{place}/hwmon/hwmon{index}"
    tree.files(monitor, {"name": "amdgpu", **microwatts, "power1_average": "0", "temp1_label": "edge"})
    tree.file(f"{monitor}/temp1_input", f"{int(gpu['temperature.0']) * 1000}\n")
    card = f"{place}/drm/card{index}"
    tree.folder(card)
    tree.link(f"{card}/device", place)
    tree.link(f"sys/class/drm/card{index}", card)
    bus = int(gpu["pci.address"][5:7], 16)
    tree.files(
        f"sys/class/kfd/kfd/topology/nodes/{index + 1}",
        {
            "gpu_id": str(0x1000 + index),
            "name": gpu["gfx"],
            "properties": f"gfx_target_version {_gfx(gpu['gfx'])}\nlocation_id {bus << 8}\ndomain 0",
        },
    )


_CAPS = {"power1_cap": "power_limit", "power1_cap_default": "power_default", "power1_cap_max": "power_max", "power1_cap_min": "power_min"}


def _gfx(name: str) -> int:
    """KFD's number of a target: gfx942 is 90402, gfx90a is 90010 (the last two digits are hexadecimal)."""
    digits = name.removeprefix("gfx")
    return int(digits[:-2]) * 10000 + int(digits[-2], 16) * 100 + int(digits[-1], 16) if len(digits) > 2 else 0


class _Tree:
    """Files below a root; links are relative, so that they hold wherever the root is."""

    def __init__(self, root: Path, devices: str) -> None:
        self.root, self.devices = root, devices

    def folder(self, name: str) -> Path:
        place = self.root / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def file(self, name: str, content: str | bytes) -> None:
        place = self.folder(name.rpartition("/")[0]) / name.rpartition("/")[2]
        place.write_bytes(content.encode() if isinstance(content, str) else content)

    def files(self, folder: str, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            self.file(f"{folder}/{name}", f"{value}\n")

    def link(self, name: str, target: str) -> None:
        folder = self.folder(name.rpartition("/")[0])
        place = folder / name.rpartition("/")[2]
        place.unlink(missing_ok=True)
        place.symlink_to(os.path.relpath(self.root / target, folder))
