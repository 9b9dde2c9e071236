"""Values of the fixtures. Each part of a host is read by one command when a test first uses it.

The scripts run with the host's own python3 and its standard library; nothing has to be installed there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from goldnode.node.ground.optional import optional
from goldnode.testing.testinfra.nvml import SCRIPT

Json = dict[str, Any]
SECONDS = 120  # a wedged driver must not hang a suite: timeout(1) ends with 124
NOT_SUPPORTED, NO_FUNCTION = 3, 13  # return codes of NVML
# GT/s of a lane -> generation of PCIe.
SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
# nvmlComputeMode_t. 1, exclusive for a thread, was removed from NVML.
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}

# Plain reads, in one process; a file that is not there is null.
SYSFS = r"""
import json, os
base = "/sys/bus/pci/devices"
def text(name):
    try:
        with open(name) as opened:
            return opened.read().strip()
    except OSError:
        return None
devices = {}
for address in sorted(os.listdir(base)) if os.path.isdir(base) else ():
    place = os.path.join(base, address)
    names = "vendor device class numa_node current_link_speed current_link_width max_link_speed max_link_width local_cpulist"
    row = {name: text(os.path.join(place, name)) for name in names.split()}
    driver = os.path.join(place, "driver")
    row["driver"] = os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None
    row["path"] = [part for part in os.path.realpath(place).split("/") if part.count(":") == 2]
    devices[address] = row
nodes = {}
base = "/sys/devices/system/node"
for name in os.listdir(base) if os.path.isdir(base) else ():
    if name.startswith("node") and name[4:].isdigit():
        nodes[name[4:]] = {"cpus": text(os.path.join(base, name, "cpulist")), "distance": text(os.path.join(base, name, "distance"))}
loaded = [line.split()[0] for line in (text("/proc/modules") or "").splitlines()]
versions = {name: text("/sys/module/%s/version" % name) for name in loaded}
print(json.dumps({"pci": devices, "nodes": nodes, "modules": versions}))
"""


class UnreadError(Exception):
    """A value of a host could not be read. A test that meets it fails."""


class Function(Mapping[str, Any]):
    """One PCI function: `address`, `id` (``10de:2330``), `kind` (the class code, ``0302``), `driver`,
    `numa_node`, `gen`, `width`, `max_gen`, `max_width`, and `path`, the addresses from the root port to
    it. None if the kernel does not show a value.
    """

    def __init__(self, address: str, row: Mapping[str, Any]) -> None:
        self._row: Json = {
            "address": address,
            "id": f"{str(row['vendor'])[2:]}:{str(row['device'])[2:]}",
            "kind": str(row["class"])[2:6],
            "driver": row["driver"],
            "numa_node": optional(int, row["numa_node"]),
            "cpus": row["local_cpulist"],
            "gen": _generation(row["current_link_speed"]),
            "max_gen": _generation(row["max_link_speed"]),
            "width": _link_width(row["current_link_width"]),
            "max_width": _link_width(row["max_link_width"]),
            "path": row["path"],
        }

    def __getitem__(self, key: str) -> Any:
        return self._row[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __getattr__(self, key: str) -> Any:
        try:
            return self.__dict__["_row"][key]
        except KeyError:
            raise AttributeError(key) from None

    def __repr__(self) -> str:
        return f"<{self._row['address']} {self._row['id']}>"


class Pci:
    """PCI functions by address."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self.functions = {address: Function(address, row) for address, row in rows.items()}

    def __getitem__(self, address: str) -> Function:
        return self.functions[address.lower()]

    def __iter__(self) -> Iterator[Function]:
        return iter(self.functions.values())

    @property
    def gpus(self) -> list[Function]:
        """Return NVIDIA's display functions (class 03) and processing accelerators of any vendor (12)."""
        return [
            one
            for one in self
            if one.kind[:2] == "12" or (one.kind[:2] == "03" and one.id.startswith("10de:"))
        ]

    def hops(self, function: Function) -> list[Function]:
        """Return the functions from the root port to this one."""
        return [self.functions[address] for address in function.path if address in self.functions]

    def narrowest(self, function: Function) -> Function:
        """Return the first hop with the slowest current link. Raises UnreadError if no hop shows a link."""
        shown = [hop for hop in self.hops(function) if hop.gen and hop.width]
        if not shown:
            raise UnreadError(f"no link is shown on the way to {function.address}")
        # Each generation doubles the rate of a lane.
        return min(shown, key=lambda hop: 2**hop.gen * hop.width)


class NumaReader:
    """NUMA nodes: `nodes` {number: {cpus, distance}}, and :meth:`of`."""

    def __init__(self, nodes: Mapping[str, Any], pci: Pci) -> None:
        self.nodes = {int(number): row for number, row in nodes.items()}
        self._pci = pci

    def of(self, address: str) -> int | None:
        """Return the node of a PCI function; -1 if the firmware gives none, None if the kernel does not
        report it.
        """
        node: int | None = self._pci[address].numa_node
        return node


class ModulesReader:
    """Loaded kernel modules: ``"nvidia_uvm" in modules``; ``modules["nvidia"]`` is its version, or None
    without one.
    """

    def __init__(self, rows: Mapping[str, str | None]) -> None:
        self._rows = dict(rows)

    def __contains__(self, name: object) -> bool:
        return str(name).replace("-", "_") in self._rows

    def __getitem__(self, name: str) -> str | None:
        return self._rows[name.replace("-", "_")]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._rows))


class Gpus:
    """GPUs as NVML reports them, one mapping each: index, uuid, pci_id, persistence_mode, power_limit_mw,
    application_clocks [graphics, memory], ecc [current, pending], compute_mode, mig [current, pending],
    instances.

    A value is ``{"rc": N}`` if NVML returned an error code instead.
    """

    def __init__(self, capture: Mapping[str, Any]) -> None:
        if "gpus" not in capture:
            raise UnreadError(f"NVML does not answer: {dict(capture)}")
        self.rows: list[Json] = capture["gpus"]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Json]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> Json:
        return self.rows[index]

    @property
    def lost(self) -> list[Json]:
        """Return the GPUs that NVML lists and cannot read."""
        return [gpu for gpu in self.rows if "rc" in gpu]


class Reading:
    """Readings of one host, each taken when it is first used."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def _run(self, script: str) -> Json:
        done = self.host.run(f"timeout -k 5 {SECONDS} python3 -I -c %s", script)
        if done.rc != 0:
            raise UnreadError(
                f"the host's python3 ended with {done.rc}: {done.stderr.strip()[-500:]}"
            )
        document = json.loads(done.stdout)
        if not isinstance(document, dict):
            raise UnreadError(f"the host's python3 said {done.stdout[:200]!r}")
        return document

    @functools.cached_property
    def sysfs(self) -> Json:
        return self._run(SYSFS)

    @functools.cached_property
    def pci(self) -> Pci:
        return Pci(self.sysfs["pci"])

    @functools.cached_property
    def numa(self) -> NumaReader:
        return NumaReader(self.sysfs["nodes"], self.pci)

    @functools.cached_property
    def modules(self) -> ModulesReader:
        return ModulesReader(self.sysfs["modules"])

    @functools.cached_property
    def gpus(self) -> Gpus:
        return Gpus(self._run(SCRIPT))


def differences(policy: Mapping[str, Any], gpus: Gpus) -> list[str]:
    """Return the differences between a policy and the GPUs, one line per GPU and key. A value that NVML does
    not report is a difference.
    """
    lines = [
        f"GPU {gpu['index']}: it does not answer (return code {gpu['rc']})" for gpu in gpus.lost
    ]
    for gpu in (gpu for gpu in gpus if "rc" not in gpu):
        for key, want in policy.items():
            have = _setting(gpu, key)
            if key in READ and have != (expected := _expected(key, want)):
                lines.append(
                    f"GPU {gpu['index']} {gpu['uuid']}: {key}: want {expected}, have {have}"
                )
    return lines


READ = {"persistence_mode", "power_limit_watts", "ecc", "compute_mode", "mig", "clocks"}


def _expected(key: str, value: Any) -> Any:
    if key == "ecc":
        return [int(value), int(value)]
    if key == "clocks":
        return [value.get("graphics_mhz"), value.get("memory_mhz")]
    if key == "mig":
        return int(value["enabled"])
    return int(value) if key == "persistence_mode" else value


def _setting(gpu: Mapping[str, Any], key: str) -> Any:
    if key == "power_limit_watts":
        limit = gpu["power_limit_mw"]
        return limit if isinstance(limit, dict) else limit / 1000
    if key == "compute_mode":
        mode = gpu["compute_mode"]
        return mode if isinstance(mode, dict) else COMPUTE_MODES.get(mode, mode)
    if key == "mig":
        if isinstance(gpu["mig"], list):
            return gpu["mig"][0]
        # A GPU or a driver without MIG has it off.
        if gpu["mig"]["rc"] in (NOT_SUPPORTED, NO_FUNCTION):
            return 0
        return gpu["mig"]
    if key == "clocks":
        return gpu["application_clocks"]
    return gpu.get(key)


def _generation(speed: str | None) -> int | None:
    try:
        return SPEEDS.get(float((speed or "").split()[0]))
    except (IndexError, ValueError):
        return None


def _link_width(width: str | None) -> int | None:
    # PCIe has at most 32 lanes. The kernel prints 0 or a larger number where there is no link.
    return int(width) if width and width.isdigit() and 0 < int(width) <= 32 else None
