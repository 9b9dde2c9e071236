"""Scenario of a simulated node: the boards of a class, derived from the facts, and the faults that a test
injects.

A scenario is a JSON document. Both the file for the simulated NVML (`lines`) and the sysfs tree (tree.py)
derive from it, so they agree. Values that the facts lack follow the rules below, and are listed in
`invented`. They do not describe real boards.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.core.errors import GoldnodeError, nearest
from goldnode.facts import host as facts
from goldnode.facts import mig

SCHEMA = "goldnode.simulated-hardware/1"
LABEL = "SIMULATED"
MOST_GPUS = 16
MIB = 1 << 20
# Return codes of NVML by the names that a fault may use. nvml.h has them all; any number works.
CODES = {
    "invalid_argument": 2,
    "not_supported": 3,
    "no_permission": 4,
    "driver_not_loaded": 9,
    "function_not_found": 13,
    "corrupted_inforom": 14,
    "lost": 15,
    "reset_required": 16,
    "library_mismatch": 18,
    "in_use": 19,
    "unknown": 999,
}
# Invented per architecture, close to real boards: highest graphics and memory clock in MHz, number in
# nvmlDeviceArchitecture_t, and whether the MIG mode survives a reboot (NVIDIA's MIG guide: on Ampere yes, on
# Hopper no).
ARCHITECTURES: Mapping[str, tuple[int, int, int, bool]] = {
    "Volta": (1530, 877, 5, False),
    "Turing": (1590, 5001, 6, False),
    "Ampere": (1410, 1215, 7, True),
    "Ada Lovelace": (2040, 6251, 8, False),
    "Hopper": (1980, 2619, 9, False),
    "Blackwell": (1965, 3996, 10, False),
    "Blackwell Ultra": (1965, 3996, 10, False),
}
CLOCK_STEP, LOWEST_CLOCK = 15, 210
# NVML's profile enumeration by number of slices: plain, with the media engines, with twice the memory.
MIG_INDEX = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
MIG_MEDIA_INDEX = {1: 7, 2: 8}
MIG_LARGE_INDEX = {1: 9}
# Ids of the GPU instance profiles of an A100 (nvidia-smi mig -lgip), by index; used for all boards.
MIG_IDS = {0: 19, 1: 14, 2: 9, 3: 5, 4: 0, 7: 20, 8: 21, 9: 15}

Gpu = dict[str, str]


class ScenarioError(GoldnodeError):
    """An impossible scenario, or an invalid fault for it."""


@dataclass(frozen=True)
class Scenario:
    """The boards of one simulated node. `system` and `gpus` map NVML fields to text (README.md lists
    them).
    """

    model: str
    vendor: str
    pci_id: str
    invented: tuple[str, ...]
    system: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    faults: Mapping[str, str] = field(default_factory=dict)
    schema: str = SCHEMA
    label: str = LABEL

    @classmethod
    def of(
        cls,
        document: Mapping[str, Any],
        driver_version: str | None = None,
        *,
        count: int | None = None,
    ) -> Scenario:
        """Return the hardware of a class document, at most `count` boards, healthy and with factory settings.

        `driver_version` is the version that NVML reports, by default that of the class. Raise ScenarioError
        for a class without a GPU or with more than 16, FactsError for a model unknown to the facts.
        """
        declared = document.get("gpu")
        if not declared:
            raise ScenarioError(
                f"class {document['class']} has no GPU to simulate",
                remedy="choose a class with `gpu`",
            )
        wanted = count if count is not None else int(declared["count"])
        if not 1 <= wanted <= MOST_GPUS:
            raise ScenarioError(
                f"{wanted} GPUs cannot be simulated", remedy=f"choose 1 to {MOST_GPUS}"
            )
        gpu = facts.gpu(declared["model"])
        row = next(row for row in facts.load("gpus.yml")[gpu.vendor] if row["sku"] == gpu.sku)
        board = _Board(gpu, row, bool(document.get("platform", {}).get("nvswitch")))
        driver = driver_version or str((document.get("driver") or {}).get("version") or "")
        make = board.nvidia if gpu.vendor == "nvidia" else board.amd
        gpus = tuple(make(index) for index in range(wanted))
        system = {"count": str(wanted)}
        if gpu.vendor == "nvidia":
            if not driver:
                raise ScenarioError(
                    f"class {document['class']} names no driver version",
                    remedy="give driver_version",
                )
            system.update(
                driver_version=driver, nvml_version=f"12.{driver}", cuda_version=_cuda(driver)
            )
        return cls(gpu.sku, gpu.vendor, gpu.pci_ids[0], tuple(board.invented), system, gpus)

    @classmethod
    def read(cls, text: str) -> Scenario:
        """Parse the JSON text of a scenario. Raise ScenarioError for another schema."""
        data = json.loads(text)
        if data.get("schema") != SCHEMA:
            raise ScenarioError(
                f"this is no scenario of schema {SCHEMA}", remedy="generate it again"
            )
        return cls(**{**data, "invented": tuple(data["invented"]), "gpus": tuple(data["gpus"])})

    def with_faults(self, faults: Iterable[str]) -> Scenario:
        """Return the same node with additional `faults` (see `parse`)."""
        return Scenario(**{**_settings(self), "faults": {**self.faults, **self.parse(faults)}})

    def parse(self, faults: Iterable[str]) -> dict[str, str]:
        """Parse faults into keys and values for the simulated NVML.

        - ``gpu3.power_limit=300000``: a getter returns this value.
        - ``gpu3.temperature.0=error:lost`` or ``error:15``: a getter fails with this return code.
        - ``gpu3.all=error:lost``: every call on GPU 3 fails; ``gpu*.…``: applies to every GPU.
        - ``init=error:driver_not_loaded``, ``init=hang`` or ``init=hang:5``: initialisation fails or hangs.
        - ``gpu3.set.power_limit=ignored``: a setter has no effect.
        - ``gpu3.absent=1``: the GPU is not on the bus; ``count=7``: number of GPUs.
        - ``gpu1.uuid=@gpu0.uuid``: copies the value of another GPU.

        Raise ScenarioError for a field that no GPU has.
        """
        found: dict[str, str] = {}
        for fault in faults:
            key, equals, value = fault.partition("=")
            if not equals:
                raise ScenarioError(
                    f'"{fault}" is no fault',
                    remedy="write KEY=VALUE, for instance gpu3.power_limit=300000",
                )
            value = self._value(value)
            for one in self._keys(key):
                found[one] = value
        return found

    def _keys(self, key: str) -> list[str]:
        if not key.startswith("gpu"):
            if key not in (*self.system, "init"):
                raise ScenarioError(
                    f'"{key}" is nothing of a simulated node',
                    remedy=nearest(key, [*self.system, "init", "gpu0.…"]),
                )
            return [key]
        parts = re.match(r"gpu(\d+|\*)\.(\S+)$", key)
        if not parts or (parts[1] != "*" and int(parts[1]) >= len(self.gpus)):
            raise ScenarioError(
                f'"{key}" names no GPU of this node',
                remedy=f"write gpu0 to gpu{len(self.gpus) - 1}, or gpu* for all",
            )
        name = parts[2]
        known = {*self.gpus[0], *SPECIAL}
        if name not in known and not name.startswith(OPEN):
            raise ScenarioError(
                f'"{name}" is no field of a simulated GPU', remedy=nearest(name, sorted(known))
            )
        return (
            [f"gpu{parts[1]}.{name}"]
            if parts[1] != "*"
            else [f"gpu{index}.{name}" for index in range(len(self.gpus))]
        )

    def _value(self, value: str) -> str:
        if value.startswith("error:"):
            code = value[6:]
            if not code.isdigit() and code not in CODES:
                raise ScenarioError(
                    f'"{code}" is no return code of NVML', remedy=nearest(code, CODES)
                )
            return f"error:{CODES.get(code, code)}"
        other = re.match(r"@gpu(\d+)\.(\S+)$", value)
        if other:
            try:
                return self.gpus[int(other[1])][other[2]]
            except (IndexError, KeyError):
                raise ScenarioError(
                    f'"{value[1:]}" is not there to be copied',
                    remedy="name a GPU and a field that it has",
                ) from None
        return value

    def after_reset(self, gpu: int) -> Scenario:
        """Return the same node after a reset of one GPU, without the faults that a reset clears."""
        return self._without(f"gpu{gpu}.{name}" for name in ENDED_BY_RESET)

    def after_boot(self) -> Scenario:
        """Return the same node after a boot, without the faults that a boot clears."""
        return self._without(
            f"gpu{gpu}.{name}"
            for gpu in range(len(self.gpus))
            for name in (*ENDED_BY_RESET, *ENDED_BY_BOOT)
        )

    def _without(self, names: Iterable[str]) -> Scenario:
        gone = set(names)
        return Scenario(
            **{
                **_settings(self),
                "faults": {key: value for key, value in self.faults.items() if key not in gone},
            }
        )

    def visible(self) -> list[int]:
        """Return the numbers of the GPUs on the bus, considering faults."""
        count = int(self.faults.get("count", self.system["count"]))
        return [
            index
            for index in range(len(self.gpus))
            if index < count and self.faults.get(f"gpu{index}.absent", "0") != "1"
        ]

    def lines(self) -> str:
        """Return the content of the file `scenario` for the simulated NVML: one key=value per line."""
        rows = [
            f"# {LABEL} hardware: {len(self.gpus)} x {self.model}",
            *(f"{key}={value}" for key, value in self.system.items()),
        ]
        rows += [
            f"gpu{index}.{key}={value}"
            for index, gpu in enumerate(self.gpus)
            for key, value in gpu.items()
        ]
        return "\n".join(rows) + "\n"

    def fault_lines(self) -> str:
        """Return the content of the file `faults` for the simulated NVML."""
        return fault_text(self.faults)

    def text(self) -> str:
        """Return the scenario as JSON."""
        return json.dumps(_settings(self), ensure_ascii=False) + "\n"


# Fields that exist only as faults, and prefixes under which any field may be set.
SPECIAL = (
    "all", "handle", "absent", "busy", "processes", "graphics_processes", "mps_processes", "enforced_power_limit", "fabric.status",
    "fabric.clique", "fabric.state", "fabric.health", "fabric.summary", "fabric.newest", "repair.channel", "repair.tpc", "unrepairable_memory",
    "gsp_firmware_version",
    # only for the sysfs tree
    "pci.gone", "pci.power_state", "pci.driver", "pci.links", "pci.bar1", "pci.bar2", "pci.iommu_group",
)  # fmt: skip
OPEN = (
    "field.", "set.", "ecc_errors.", "memory_errors.", "sram.", "nvlink.", "violation.", "remapped.", "pcie.", "temperature", "clock.",
    "retired_pages", "inforom.", "aer.", "amd.", "throttle.",
)  # fmt: skip


# Faults that a reset of the GPU clears: counters since the driver was loaded, repairs that wait for a reset
# (NVIDIA GPU Memory Error Management: the next reset remaps a row), and the action that the driver requested.
# Page retirement waits for a boot (Dynamic Page Retirement).
ENDED_BY_RESET = (
    "ecc_errors.0.0",
    "ecc_errors.1.0",
    "remapped.pending",
    "repair.channel",
    "repair.tpc",
    "field.230",
)
ENDED_BY_BOOT = ("retired_pages_pending",)


def fault_text(faults: Mapping[str, str]) -> str:
    """Return faults in the format that the simulated NVML reads."""
    return "".join(f"{key}={value}\n" for key, value in sorted(faults.items()))


def _settings(scenario: Scenario) -> dict[str, Any]:
    return {name: getattr(scenario, name) for name in scenario.__dataclass_fields__}


def _cuda(driver: str) -> str:
    """Return the newest CUDA version of the driver's branch in NVML's format (12020 is 12.2); 0 if the facts
    lack it.
    """
    try:
        newest = facts.branch(driver.partition(".")[0]).max_cuda
    except GoldnodeError:
        newest = None
    major, _, minor = (newest or "0.0").partition(".")
    return str(int(major) * 1000 + int(minor.partition(".")[0]) * 10)


class _Board:
    """One model: values from the facts, and made-up values, which are listed in `invented`."""

    def __init__(self, gpu: facts.GpuModel, row: Mapping[str, Any], nvswitch: bool) -> None:
        self.gpu, self.row, self.nvswitch = gpu, row, nvswitch
        self.invented: list[str] = []

    def _invent(self, name: str) -> None:
        if name not in self.invented:
            self.invented.append(name)

    def known(self, name: str, value: Any, otherwise: Any) -> Any:
        """Return `value`, or the made-up one if the facts have no value."""
        if value is None:
            self._invent(name)
            return otherwise
        return value

    def address(self, index: int) -> str:
        """Return the PCI address of a GPU below its own root port, which depends only on its number."""
        self._invent("pci.address")
        return f"0000:{0x10 + 8 * index:02x}:00.0"

    def nvidia(self, index: int) -> Gpu:
        gpu, row = self.gpu, self.row
        graphics, memory_clock, architecture, keeps_mig = ARCHITECTURES.get(
            gpu.architecture, (1500, 1500, 0xFFFFFFFF, False)
        )
        memory = int(self.known("memory", gpu.memory_mib, 16384)) * MIB
        default = int(self.known("power_default", gpu.power_limit_default_w, 300)) * 1000
        pcie = self.known("pcie", row.get("pcie"), {"gen": 4, "width": 16})
        links = int(self.known("nvlink", row.get("nvlink_links"), 0))
        for name in (
            "max_clock",
            "supported_clocks",
            "power_min",
            "power_max",
            "name",
            "serial",
            "uuid",
            "pci.subsystem_id",
            "vbios_version",
            "temperature",
            "power_usage",
            "clock",
            "bar1",
            "energy",
        ):
            self._invent(name)
        idle = str(LOWEST_CLOCK)
        address = self.address(index)
        vendor, device = gpu.pci_ids[0].split(":")
        steps = ",".join(str(clock) for clock in range(graphics, LOWEST_CLOCK - 1, -CLOCK_STEP))
        fields: Gpu = {
            "name": product_name(gpu.sku),
            "uuid": uuid_of(gpu.sku, index),
            "serial": f"{LABEL}-{index:02d}",
            "board_part_number": LABEL,
            "board_id": str(index),
            "minor_number": str(index),
            "architecture": str(architecture),
            "vbios_version": LABEL,
            "inforom.image": LABEL,
            "inforom.checksum": "1",
            "pci.address": address,
            "pci.device_id": f"{device}{vendor}",
            "pci.subsystem_id": f"{device}{vendor}",
            "multi_gpu_board": "0",
            "display_mode": "0",
            "display_active": "0",
            "memory.total": str(memory),
            "memory.reserved": "0",
            "memory.free": str(memory),
            "memory.used": "0",
            "bar1.total": str(_power_of_two(memory)),
            "bar1.free": str(_power_of_two(memory)),
            "bar1.used": "0",
            "persistence_mode": "0",
            "compute_mode": "0",
            "clock.0": idle,
            "clock.1": idle,
            "clock.2": str(memory_clock),
            "clock.3": idle,
            "max_clock.0": str(graphics),
            "max_clock.1": str(graphics),
            "max_clock.2": str(memory_clock),
            "max_clock.3": str(graphics),
            "supported_memory_clocks": str(memory_clock),
            "supported_graphics_clocks": steps,
            "power_management_mode": "1",
            "power_limit": str(default),
            "power_default": str(default),
            "power_min": str(default // 4),
            "power_max": str(default),
            "power_usage": str(default // 8),
            "energy": "0",
            "performance_state": "0",
            "clocks_event_reasons": "1",
            "supported_clocks_event_reasons": str(0x1FF),
            "temperature.0": "30",
            "temperature_threshold.0": "92",
            "temperature_threshold.1": "89",
            "utilization.gpu": "0",
            "utilization.memory": "0",
            "utilization.encoder": "0",
            "utilization.decoder": "0",
            "utilization.period": "1000000",
            "pcie.generation": str(pcie["gen"]),
            "pcie.width": str(pcie["width"]),
            "pcie.generation_max": str(pcie["gen"]),
            "pcie.generation_gpu_max": str(pcie["gen"]),
            "pcie.width_max": str(pcie["width"]),
            "pcie.replays": "0",
            "numa_node": str(index // 4),
            "retired_pages_pending": "error:3",
        }
        for kind in range(3):
            clock = str(memory_clock if kind == 2 else graphics)
            for name in ("application_clock", "default_application_clock", "max_customer_clock"):
                fields[f"{name}.{kind}"] = clock
        if gpu.compute_capability:
            major, _, minor = gpu.compute_capability.partition(".")
            fields.update({"compute_capability.0": major, "compute_capability.1": minor})
        ecc = row.get("ecc_default")
        if ecc is None:
            self._invent("ecc")
        on = "0" if ecc == "disabled" else "1"
        fields.update(ecc_current=on, ecc_pending=on, ecc_default=on)
        for kind in range(2):
            for counter in range(2):
                fields[f"ecc_errors.{kind}.{counter}"] = "0"
        if architecture >= 7:  # row remapping came with Ampere
            for name in (
                "correctable",
                "uncorrectable",
                "pending",
                "failure",
                "high",
                "partial",
                "low",
                "none",
            ):
                fields[f"remapped.{name}"] = "0"
            fields["remapped.max"] = "640"
        if architecture >= 9:
            fields.update({f"sram.{number}": "0" for number in range(11)})
            fields["sram.threshold_exceeded"] = "0"
            if self.nvswitch:
                fields.update(
                    {
                        "fabric.status": "0",
                        "fabric.clique": "0",
                        "fabric.state": "3",
                        "fabric.health": "0",
                        "fabric.summary": "1",
                    }
                )
        fields["inforom.valid"] = "1"
        fields.update({f"violation.{policy}": "0" for policy in range(6)})
        fields.update({f"field.{number}": "0" for number in (269, 270, 271)})
        if architecture < 7:
            fields.update(
                {"retired_pages_pending": "0", "retired_pages.0": "0", "retired_pages.1": "0"}
            )
        fields["field.230"] = "0"
        fields["field.91"] = str(links)
        for link in range(links):
            fields[f"nvlink.{link}.state"] = "1"
            fields[f"nvlink.{link}.version"] = str({7: 3, 9: 4, 10: 5}.get(architecture, 2))
            fields.update({f"nvlink.{link}.errors.{counter}": "0" for counter in range(5)})
        fields.update(self.mig(memory, keeps_mig))
        return fields

    def mig(self, memory: int, keeps: bool) -> Gpu:
        """Return mode and profiles of MIG.

        Names, slices and placements come from the facts; engines and ids are made up.
        """
        if not self.gpu.mig_capable:
            if self.gpu.mig_capable is None:
                self._invent("mig")
            return {}
        self._invent("mig_profile (ids, engines, multiprocessors)")
        fields = {"mig_current": "0", "mig_pending": "0", "mig_persistent": "1" if keeps else "0"}
        table = mig.tables(self.gpu)[-1]
        fields["mig_slices"] = str(table.compute_slices)
        for profile in table.profiles:
            name = profile.names[0]
            media, large = (
                name.endswith("+me"),
                profile.size * table.compute_slices > (1.5 * profile.compute * table.memory_slices),
            )
            index = (MIG_MEDIA_INDEX if media else MIG_LARGE_INDEX if large else MIG_INDEX).get(
                profile.compute
            )
            if index is None or f"mig_profile.{index}" in fields:
                # a variant without an index in this version of NVML's enumeration
                continue
            numbers = (
                MIG_IDS[index],
                profile.compute,
                profile.instances,
                profile.size,
                memory // MIB * profile.size // table.memory_slices,
                14 * profile.compute,
                profile.compute,
                1 if profile.compute > 1 else 0,
                0,
                int(media),
                int(media),
                0,
            )
            fields[f"mig_profile.{index}"] = (
                ",".join(map(str, numbers)) + f",{name};" + ",".join(map(str, profile.starts))
            )
        return fields

    def amd(self, index: int) -> Gpu:
        gpu = self.gpu
        for name in (
            "name",
            "unique_id",
            "serial",
            "vbios_version",
            "performance_level",
            "temperature",
        ):
            self._invent(name)
        power = int(self.known("power_default", gpu.power_limit_default_w, 300))
        pcie = self.known("pcie", self.row.get("pcie"), {"gen": 4, "width": 16})
        vendor, device = gpu.pci_ids[0].split(":")
        self._invent("power_min")
        return {
            "name": product_name(gpu.sku),
            "unique_id": hashlib.sha256(f"{gpu.sku}/{index}".encode()).hexdigest()[:16],
            "serial": f"{LABEL}-{index:02d}",
            "vbios_version": LABEL,
            "pci.address": self.address(index),
            "pci.device_id": f"{device}{vendor}",
            "memory.total": str(int(self.known("memory", gpu.memory_mib, 65536)) * MIB),
            "power_limit": str(power * 1000),
            "power_default": str(power * 1000),
            "power_max": str(power * 1000),
            "power_min": "0",
            "performance_level": "auto",
            "temperature.0": "35",
            "gfx": gpu.gfx or "",
            "pcie.generation": str(pcie["gen"]),
            "pcie.width": str(pcie["width"]),
            "pcie.generation_max": str(pcie["gen"]),
            "pcie.width_max": str(pcie["width"]),
            "numa_node": str(index // 4),
        }


def product_name(sku: str) -> str:
    """Return the product name that NVML reports: vendor and model."""
    return sku if sku.startswith(("MI", "Max", "Flex")) else f"NVIDIA {sku}"


def uuid_of(sku: str, index: int) -> str:
    """Return the UUID of a GPU, which depends only on model and number."""
    digest = hashlib.sha256(f"{LABEL}/{sku}/{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def write(scenario: Scenario, directory: Path) -> None:
    """Write the files of the simulated NVML into `directory`; existing state remains."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files(scenario).items():
        (directory / name).write_text(text, encoding="utf-8")


def files(scenario: Scenario) -> dict[str, str]:
    """Return the files of a simulator directory as text by name."""
    return {
        LABEL: (
            f"The hardware of this machine is simulated by goldnode's tests: {len(scenario.gpus)} x "
            f"{scenario.model}.\n"
            "Nothing that is read from it says anything of a real board.\n"
        ),
        "scenario.json": scenario.text(),
        "scenario": scenario.lines(),
        "faults": scenario.fault_lines(),
    }
