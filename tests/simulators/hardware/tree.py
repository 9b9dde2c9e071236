"""sysfs and procfs of a scenario: PCI devices from the root ports down, driver files, and AMD's DRM, hwmon
and KFD.

`write` creates a directory that serves as the root of a Host. All entries are plain files. A value written to
``power1_cap`` is read back, and no kernel can reject it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.simulators.hardware.scenario import LABEL, Gpu, Scenario

# This file in a PCI tree marks it as simulated (observe.SIMULATED_BUS).
MARKER = "goldnode-simulator"
SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
# Location of devices: the kernel's path, or below the PCI bus, for a tree that is mounted over it.
DEVICES, DEVICES_OF_A_MOUNT = "sys/devices", "sys/bus/pci/simulated"
# A generic root port with the ids of an Intel server processor. The switch has those of a Broadcom PEX 89000.
PORT, SWITCH = ("8086", "352a"), ("1000", "c030")
NIC, NVME, NVSWITCH, CONSOLE, UNCORE = (
    ("15b3", "1021"),
    ("144d", "a80a"),
    ("10de", "22a3"),
    ("1a03", "2000"),
    ("8086", "3258"),
)
# Bridges in a GPU's package or on its card, as (upstream port, downstream port), by PCI vendor and model
# prefix.
ON_PACKAGE = {
    "1002:74": (("1022", "1500"), ("1002", "1501")),
    "8086:56": (("8086", "4fa0"), ("8086", "4fa4")),
}
DRIVERS = {"nvidia": "nvidia", "amd": "amdgpu", "intel": "xe"}
CLASSES = {"nvidia": "0x030200", "amd": "0x120000", "intel": "0x038000"}
AER = {
    "aer_dev_correctable": (
        "RxErr",
        "BadTLP",
        "BadDLLP",
        "Rollover",
        "Timeout",
        "NonFatalErr",
        "CorrIntErr",
        "HeaderOF",
        "TOTAL_ERR_COR",
    ),
    "aer_dev_nonfatal": (
        "Undefined",
        "DLP",
        "TLP",
        "CmpltTO",
        "UnxCmplt",
        "MalfTLP",
        "TOTAL_ERR_NONFATAL",
    ),
    "aer_dev_fatal": (
        "Undefined",
        "DLP",
        "TLP",
        "CmpltTO",
        "UnxCmplt",
        "MalfTLP",
        "TOTAL_ERR_FATAL",
    ),
}


@dataclass(frozen=True)
class Layout:
    """Devices of a node besides its GPUs, and the hops between GPU and processor. By default, each GPU is
    directly below a root port.

    :param per_switch: GPUs below one PCIe switch; 0: no switch.
    :param nics: network functions, distributed over the switches (one per GPU first), or below their own root
        ports without switches.
    :param nvmes: NVMe functions below their own root ports, half of them on each NUMA node.
    :param nvswitches: NVSwitches below one root port.
    :param bridges: show the bridges of GPUs that have them in their package (ON_PACKAGE).
    :param others: if not 0, a BMC console and that many functions of the processor, which no check covers.
    :param nodes: NUMA nodes; 0: no /sys/devices/system/node.
    :param cpus: CPUs of all nodes.
    :param faults: faults of devices other than GPUs, in the syntax of :func:`write`: ``nic3.pcie.width``,
        ``nvme0.absent``, ``nic1.numa_node``, ``nic1.irqs=0-47``: processors that its interrupts are set to.
    """

    per_switch: int = 0
    nics: int = 0
    nvmes: int = 0
    nvswitches: int = 0
    bridges: bool = False
    others: int = 0
    nodes: int = 0
    cpus: int = 96
    faults: Mapping[str, str] = field(default_factory=dict)


# A server with eight GPUs in four pairs. Each pair shares a switch with its NICs.
HGX = Layout(per_switch=2, nics=8, nvmes=10, nvswitches=4, bridges=True, others=300, nodes=2)


def write(
    scenario: Scenario, root: Path, *, devices: str = DEVICES, layout: Layout = Layout()
) -> Path:
    """Write the tree of the visible GPUs, with the faults of the scenario, below `root`; return `root`.

    A field whose fault is a return code has its healthy value here: sysfs has no return codes. The following
    faults affect the PCI path. They apply to a GPU, or through `layout.faults` to another device.

    - ``gpu3.pcie.HOP_generation`` and ``gpu3.pcie.HOP_width``: maximum of one end of a link.
    - ``gpu3.pcie.HOP_now_generation`` and ``gpu3.pcie.HOP_now_width``: current state of the link.
    - ``gpu3.aer.correctable`` and ``gpu3.aer.HOP.fatal``: error counters.
    - ``gpu3.pci.gone=1``: the configuration space reads all ones.
    - ``gpu3.pci.power_state``, ``gpu3.pci.driver``, ``gpu3.pci.bar1=BYTES``, ``gpu3.numa_node``: the value.
    - ``gpu3.pci.links=0``: no link files, as in a virtual machine.

    HOP is one of these:

    - ``port``: the slot, which is the port above the device, or above the bridges in its package
    - ``switch``: the upstream port of the switch
    - ``root``: the root port above the switch
    """
    tree = _Tree(root, devices)
    driver = DRIVERS[scenario.vendor]
    tree.file(f"sys/bus/pci/{MARKER}", f"{LABEL}: {scenario.model}\n")
    tree.folder("sys/bus/pci/drivers/pcieport")
    tree.folder(f"sys/bus/pci/drivers/{driver}")
    for name, device in _devices(scenario, layout).items():
        place = _pci(tree, device, layout)
        if not name.startswith("gpu"):
            continue
        index = int(name[3:])
        if driver == "amdgpu":
            _amd(tree, device.fields, index, place)
        elif driver == "xe":
            _intel(tree, device.fields, index, place)
    _numa(tree, layout)
    version = scenario.system.get("driver_version", "")
    tree.file(f"sys/module/{driver}/initstate", "live\n")
    tree.file(f"sys/module/{driver}/refcnt", "0\n")
    if driver == "nvidia":
        tree.file("sys/module/nvidia/version", f"{version}\n")
        _nvidia_proc(tree, scenario, version)
    elif driver == "amdgpu":
        tree.file("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
    return root


def places(scenario: Scenario, layout: Layout, devices: str = DEVICES) -> dict[str, str]:
    """Return the folder below the root of each device that `write` creates, by name.

    Names are ``gpu0``, ``nic3``, ``nvme1`` and ``nvswitch2``. Callers add further files there.
    """
    return {name: _folder(device, devices) for name, device in _devices(scenario, layout).items()}


def _with_faults(scenario: Scenario, index: int) -> Gpu:
    prefix = f"gpu{index}."
    changed = {
        key.removeprefix(prefix): value
        for key, value in scenario.faults.items()
        if key.startswith(prefix)
    }
    return {
        **scenario.gpus[index],
        **{
            key: value for key, value in changed.items() if not value.startswith(("error:", "hang"))
        },
    }


@dataclass(frozen=True)
class _Device:
    """A function and the ports above it, from the root port down: (name of the hop, address, ids)."""

    fields: Gpu
    kind: str
    driver: str
    hops: tuple[tuple[str, str, tuple[str, str]], ...]


def _devices(scenario: Scenario, layout: Layout) -> dict[str, _Device]:
    found: dict[str, _Device] = {}
    bridges = next(
        (
            ids
            for model, ids in ON_PACKAGE.items()
            if layout.bridges and scenario.pci_id.startswith(model)
        ),
        None,
    )
    visible = scenario.visible()
    for index in visible:
        gpu = _with_faults(scenario, index)
        if scenario.vendor == "intel":
            gpu = {"pci.bar2": str(1 << (int(gpu["memory.total"]) - 1).bit_length()), **gpu}
        bus = int(scenario.gpus[index]["pci.address"][5:7], 16)
        hops = _above(bus - (2 if bridges else 0), *_group(layout, index, 8 * index, bool(bridges)))
        if bridges:
            hops += (
                ("bridge", f"0000:{bus - 2:02x}:00.0", bridges[0]),
                ("inner", f"0000:{bus - 1:02x}:00.0", bridges[1]),
            )
        found[f"gpu{index}"] = _Device(
            gpu, CLASSES[scenario.vendor], gpu.get("pci.driver", DRIVERS[scenario.vendor]), hops
        )
    best = {
        "pcie.generation": "5",
        "pcie.generation_max": "5",
        "pcie.width": "16",
        "pcie.width_max": "16",
    }
    slow = {**best, "pcie.width": "4", "pcie.width_max": "4"}
    nodes = max(1, layout.nodes)
    for number in range(layout.nics):
        if layout.per_switch:
            bus = 0x11 + 8 * (number % len(scenario.gpus)) + number // len(scenario.gpus)
            hops = _above(
                bus, *_group(layout, number % len(scenario.gpus), bus - 0x10, bool(bridges))
            )
            node = scenario.gpus[number % len(scenario.gpus)]["numa_node"]
        else:
            bus, node = 0xB1 + 2 * number, str(number % nodes)
            hops = _above(bus)
        found[f"nic{number}"] = _other(
            layout,
            name=f"nic{number}",
            ids=NIC,
            kind="0x020000",
            driver="mlx5_core",
            address=f"0000:{bus:02x}:00.0",
            fields=best,
            node=node,
            hops=hops,
        )
    for number in range(layout.nvmes):
        bus, node = 0x91 + 2 * number, str(number * nodes // layout.nvmes)
        found[f"nvme{number}"] = _other(
            layout,
            name=f"nvme{number}",
            ids=NVME,
            kind="0x010802",
            driver="nvme",
            address=f"0000:{bus:02x}:00.0",
            fields=slow,
            node=node,
            hops=_above(bus),
        )
    for number in range(layout.nvswitches):
        bus, two = (
            0xF2 + number,
            {**best, "pcie.generation": "5", "pcie.width": "2", "pcie.width_max": "2"},
        )
        hops = _above(bus, 0xF2, number)
        found[f"nvswitch{number}"] = _other(
            layout,
            name=f"nvswitch{number}",
            ids=NVSWITCH,
            kind="0x068000",
            driver="nvidia-nvswitch",
            address=f"0000:{bus:02x}:00.0",
            fields=two,
            node="0",
            hops=hops,
        )
    if layout.others:
        found["console"] = _other(
            layout,
            name="console",
            ids=CONSOLE,
            kind="0x030000",
            driver="ast",
            address="0000:03:00.0",
            fields={"pci.links": "0"},
            node="0",
            hops=_above(3),
        )
    for number in range(layout.others):
        address = (
            f"0000:fe:{number >> 3 & 31:02x}.{number & 7}"
            if number < 256
            else f"0000:ff:{number >> 3 & 31:02x}.{number & 7}"
        )
        found[f"other{number}"] = _other(
            layout,
            name=f"other{number}",
            ids=UNCORE,
            kind="0x088000",
            driver="",
            address=address,
            fields={"pci.links": "0"},
            node="0",
            hops=(),
        )
    return {
        name: device for name, device in found.items() if device.fields.get("absent", "0") != "1"
    }


def _group(layout: Layout, index: int, slot: int, bridges: bool) -> tuple[int, int] | tuple[()]:
    """Return (first bus below the switch, port number at the switch) of a GPU or a device next to it."""
    if not layout.per_switch:
        return ()
    first = index // layout.per_switch * layout.per_switch
    return 0x10 + 8 * first - (2 if bridges else 0), slot - 8 * first


def _above(
    bus: int, first: int | None = None, port: int = 0
) -> tuple[tuple[str, str, tuple[str, str]], ...]:
    """Return the ports above bus `bus`.

    This is a root port; with `first`, it is the root port of the switch whose first bus is `first`, and two
    ports of that switch.
    """
    if first is None:
        return (("port", f"0000:{bus - 1:02x}:01.0", PORT),)
    return (
        ("root", f"0000:{first - 3:02x}:01.0", PORT),
        ("switch", f"0000:{first - 2:02x}:00.0", SWITCH),
        ("port", f"0000:{first - 1:02x}:{port & 31:02x}.0", SWITCH),
    )


def _other(
    layout: Layout,
    name: str,
    ids: tuple[str, str],
    kind: str,
    driver: str,
    address: str,
    fields: Gpu,
    node: str,
    hops: tuple[tuple[str, str, tuple[str, str]], ...],
) -> _Device:
    changed = {
        key.partition(".")[2]: value
        for key, value in layout.faults.items()
        if key.partition(".")[0] == name
    }
    all_fields = {
        "pci.address": address,
        "pci.device_id": ids[1] + ids[0],
        "numa_node": node,
        **fields,
        **changed,
    }
    return _Device(all_fields, kind, changed.get("pci.driver", driver), hops)


def _folder(device: _Device, devices: str) -> str:
    above = [address for _, address, _ in device.hops]
    return "/".join(
        [
            devices,
            f"pci{(above or [device.fields['pci.address']])[0][:7]}",
            *above,
            device.fields["pci.address"],
        ]
    )


def _pci(tree: _Tree, device: _Device, layout: Layout) -> str:
    """Write a function and the ports above it; return its folder."""
    fields = device.fields
    place = _folder(device, tree.devices)
    best = (int(fields.get("pcie.generation_max", 5)), int(fields.get("pcie.width_max", 16)))
    now = (int(fields.get("pcie.generation", best[0])), int(fields.get("pcie.width", best[1])))
    shown = fields.get("pci.links") != "0"
    # Both ends of each link, from the root port down; upper ends have even indices.
    ends = [
        *device.hops,
        ("", fields["pci.address"], (fields["pci.device_id"][4:], fields["pci.device_id"][:4])),
    ]
    names = [name for name, _, _ in ends]
    path = [key for key in fields if key.startswith(("pcie.", "aer."))]
    inner = (
        (1, 1) if fields["pci.device_id"].endswith("8086") else best
    )  # Intel's cards always report 2.5 GT/s x1 here
    slot = names.index("bridge") if "bridge" in names else len(ends) - 1
    most = [
        [
            int(fields.get(f"pcie.{name}_{what}", _most(name, ids, best)[number]))
            for number, what in enumerate(WHAT)
        ]
        for name, _, ids in ends
    ]
    most[slot] = list(best)
    for index, (name, address, ids) in enumerate(ends):
        own = not name
        pair = [end for end in (index, index ^ 1) if end < len(ends)]
        around = {names[end] for end in pair} - {""}
        link = []
        for number, what in enumerate(WHAT):
            reported = [
                fields[key] for end in around if (key := f"pcie.{end}_now_{what}") in fields
            ]
            link.append(
                int(reported[0])
                if reported
                else min(
                    [*(most[end][number] for end in pair), *([now[number]] if slot in pair else [])]
                )
            )
        if "inner" in around:
            most[index], link = list(inner), list(inner)
        where = place if own else place[: place.index(f"/{address}") + len(address) + 1]
        counters = {
            part: fields.get(f"aer.{name + '.' if name else ''}{part}", "")
            for part in ("correctable", "nonfatal", "fatal")
        }
        faults = tuple(f"{what}.{end}" for what in ("pcie", "aer") for end in around)
        if where in tree.written and not any(key.startswith(faults) for key in path):
            continue  # already written for another device below the same switch, perhaps with faults
        tree.written.add(where)
        _device(
            tree,
            place=where,
            ids=ids,
            kind=device.kind if own else "0x060400",
            now=tuple(link),
            best=tuple(most[index]),
            fields=fields,
            counters=counters,
            own=own,
            shown=shown,
        )
        driver = device.driver if own else "pcieport"
        kind = device.kind if own else "0x060400"
        known = {
            "DRIVER": driver,
            "PCI_CLASS": f"{int(kind, 16):X}",
            "PCI_ID": f"{ids[0]}:{ids[1]}".upper(),
            "PCI_SUBSYS_ID": f"{ids[0]}:{ids[1]}".upper(),
            "PCI_SLOT_NAME": address,
            "MODALIAS": _modalias(*ids, kind),
        }
        tree.file(
            f"{where}/uevent", "".join(f"{key}={value}\n" for key, value in known.items() if value)
        )
        if driver:
            tree.folder(f"sys/bus/pci/drivers/{driver}")
            tree.link(f"{where}/driver", f"sys/bus/pci/drivers/{driver}")
        tree.link(f"sys/bus/pci/devices/{address}", where)
        group = fields.get(
            "pci.iommu_group", str(int(address[5:7], 16) * 8 + int(address[8:10], 16))
        )
        tree.folder(f"sys/kernel/iommu_groups/{group}")
        tree.link(f"{where}/iommu_group", f"sys/kernel/iommu_groups/{group}")
    if layout.nodes:
        tree.file(f"{place}/local_cpulist", f"{_cpus(layout, int(fields['numa_node']))}\n")
    if layout.nodes > 1 and device.kind.startswith("0x02"):
        _interrupts(tree, place, fields, layout)
    return place


def _interrupts(tree: _Tree, place: str, fields: Gpu, layout: Layout) -> None:
    """Write eight interrupts of an adapter, one for each of its first processors, or all for the processors of a fault."""
    first = int(_cpus(layout, int(fields["numa_node"])).partition("-")[0])
    for at in range(8):
        number = 64 + 8 * int(fields["pci.address"][5:7], 16) + at
        cpus = fields.get("irqs", str(first + at))
        tree.file(f"{place}/msi_irqs/{number}", "msix\n")
        rows = {
            "smp_affinity_list": cpus,
            "effective_affinity_list": cpus.partition("-")[0],
            "affinity_hint": f"{1 << (first + at):08x}",
        }
        tree.files(f"proc/irq/{number}", rows)
    tree.file("proc/irq/default_smp_affinity", f"{(1 << layout.cpus) - 1:x}\n")


WHAT = ("generation", "width")


def _most(name: str, ids: tuple[str, str], best: tuple[int, int]) -> tuple[int, int]:
    """Return the maximum of a port.

    Ports of switches and processors have the best values of the simulation. A slot is as wide as its device.
    """
    return (
        best
        if name == "port" and ids != SWITCH
        else (max(5, best[0]), 16 if name != "port" else best[1])
    )


def _cpus(layout: Layout, node: int) -> str:
    each = layout.cpus // max(1, layout.nodes)
    return (
        f"{node * each}-{node * each + each - 1}"
        if 0 <= node < layout.nodes
        else f"0-{layout.cpus - 1}"
    )


def _numa(tree: _Tree, layout: Layout) -> None:
    base = "sys/devices/system/node"
    for node in range(layout.nodes):
        total = 1056 * 1000 * 1000 // layout.nodes
        rows = {"MemTotal": total, "MemFree": total // 2}
        tree.files(
            f"{base}/node{node}",
            {
                "cpulist": _cpus(layout, node),
                "meminfo": "\n".join(
                    f"Node {node} {name}:{value:>16} kB" for name, value in rows.items()
                ),
                "distance": " ".join(
                    "10" if other == node else "21" for other in range(layout.nodes)
                ),
            },
        )
    if layout.nodes:
        tree.file(f"{base}/online", f"0-{layout.nodes - 1}\n" if layout.nodes > 1 else "0\n")


def _device(
    tree: _Tree,
    place: str,
    ids: tuple[str, str],
    kind: str,
    now: tuple[int, ...],
    best: tuple[int, ...],
    fields: Gpu,
    counters: Mapping[str, str],
    *,
    own: bool,
    shown: bool,
) -> None:
    vendor, device = ids
    gone = own and fields.get("pci.gone") == "1"
    values = {
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "subsystem_vendor": f"0x{vendor}",
        "subsystem_device": f"0x{device}",
        "class": kind,
        "modalias": _modalias(vendor, device, kind),
        "revision": "0xa1",
        "numa_node": fields["numa_node"],
        "power_state": fields.get("pci.power_state", "D0") if own else "D0",
        "enable": "1",
    }
    if shown:
        values.update(
            current_link_speed="Unknown" if gone else f"{SPEEDS[now[0]]} GT/s PCIe",
            current_link_width="63" if gone else str(now[1]),
            max_link_speed=f"{SPEEDS[best[0]]} GT/s PCIe",
            max_link_width=str(best[1]),
        )
    for name, value in values.items():
        tree.file(f"{place}/{name}", f"{value}\n")
    for name, rows in AER.items() if shown else ():
        tree.file(
            f"{place}/{name}", _counters(name, rows, counters[name.removeprefix("aer_dev_")] or "0")
        )
    identity = b"".join(int(part, 16).to_bytes(2, "little") for part in (vendor, device))
    tree.file(f"{place}/config", b"\xff" * 256 if gone else identity + bytes(252))
    sizes = (
        {
            0: 1 << 24,
            1: int(fields.get("pci.bar1", fields.get("bar1.total", 0))),
            2: int(fields.get("pci.bar2", 0)),
            3: 1 << 25,
        }
        if own
        else {}
    )
    tree.file(
        f"{place}/resource", "".join(_window(number, sizes.get(number, 0)) for number in range(13))
    )


@cache
def _counters(name: str, rows: tuple[str, ...], count: str) -> str:
    """Return a file of error counters, of which one and the sum have a count."""
    first = {"aer_dev_correctable": "RxErr", "aer_dev_nonfatal": "CmpltTO", "aer_dev_fatal": "DLP"}[
        name
    ]
    return "".join(
        f"{row} {count if row == first or row.startswith('TOTAL') else 0}\n" for row in rows
    )


@cache
def _window(number: int, size: int) -> str:
    start = 0x20000000000 * (number + 1)
    return (
        f"0x{start:016x} 0x{start + size - 1:016x} 0x{0x14220C if size else 0:016x}\n"
        if size
        else " ".join(["0x" + "0" * 16] * 3) + "\n"
    )


def _modalias(vendor: str, device: str, kind: str) -> str:
    high, low = vendor.upper().zfill(8), device.upper().zfill(8)
    return f"pci:v{high}d{low}sv{high}sd{low}bc{kind[2:4].upper()}sc{kind[4:6].upper()}i{kind[6:8].upper()}"


def _nvidia_proc(tree: _Tree, scenario: Scenario, version: str) -> None:
    # The label replaces the build date of a real driver.
    reported = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  {LABEL}\nGCC version:  {LABEL}\n"
    tree.file("proc/driver/nvidia/version", reported)
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
            "mem_info_vis_vram_total": gpu["memory.total"],
            "mem_busy_percent": "0",
            "product_number": LABEL,
            "current_compute_partition": gpu.get("amd.partition.compute", "SPX"),
            "current_memory_partition": gpu.get("amd.partition.memory", "NPS1"),
            "pp_dpm_sclk": gpu.get("amd.pp_dpm_sclk", "0: 500Mhz *\n1: 1000Mhz\n2: 2100Mhz"),
            "pp_dpm_mclk": gpu.get("amd.pp_dpm_mclk", "0: 900Mhz *\n1: 1300Mhz"),
            "ras/features": "feature mask: 0x1",
            **{
                f"ras/{block}_err_count": f"ue: {gpu.get(f'amd.ras.{block}.ue', '0')}\nce: "
                f"{gpu.get(f'amd.ras.{block}.ce', '0')}"
                for block in ("umc", "sdma", "gfx", "mmhub", "xgmi_wafl")
            },
            "ras/gpu_vram_bad_pages": "\n".join(
                f"0x{0x027F5D43 + 8 * page:08x} : 0x00001000 : {flag}"
                for flag in "RPF"
                for page in range(int(gpu.get(f"amd.bad_pages.{flag}", "0")))
            ),
            "power_dpm_force_performance_level": gpu["performance_level"],
            "pcie_replay_count": gpu.get("pcie.replays", "0"),
            "gpu_busy_percent": "0",
        },
    )
    monitor = f"{place}/hwmon/hwmon{index}"
    tree.files(
        monitor, {"name": "amdgpu", **microwatts, "power1_average": "0", "temp1_label": "edge"}
    )
    tree.file(f"{monitor}/temp1_input", f"{int(gpu['temperature.0']) * 1000}\n")
    hot = str(int(gpu.get("amd.junction", gpu["temperature.0"])) * 1000)
    tree.files(
        monitor,
        {
            "temp2_label": "junction",
            "temp2_input": hot,
            "temp2_crit": "100000",
            "temp2_emergency": "105000",
        },
    )
    tree.files(
        monitor,
        {
            "temp3_label": "mem",
            "temp3_input": hot,
            "temp3_crit": "105000",
            "temp3_emergency": "110000",
        },
    )
    tree.file(f"{place}/gpu_metrics", _metrics(gpu))
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
            "io_links/0/properties": f"type 2\nnode_from {index + 1}\nnode_to 0",
            **{
                f"io_links/{link + 1}/properties": f"type 11\nnode_from {index + 1}\nnode_to {link + 2}"
                for link in range(int(gpu.get("amd.links", "7")))
            },
        },
    )


def _metrics(gpu: Gpu) -> bytes:
    """Return gpu_metrics of revision 1.8 (kgd_pp_interface.h).

    It has the header and the throttling counters; the rest is zero.
    """
    counted = [
        gpu.get(f"amd.throttle.{name}", "0")
        for name in ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")
    ]
    numbers = b"".join(int(value).to_bytes(4, "little") for value in ["1000000", *counted])
    return ((2240).to_bytes(2, "little") + bytes([1, 8]) + bytes(36) + numbers).ljust(2240, b"\0")


_CAPS = {
    "power1_cap": "power_limit",
    "power1_cap_default": "power_default",
    "power1_cap_max": "power_max",
    "power1_cap_min": "power_min",
}


def _intel(tree: _Tree, gpu: Gpu, index: int, place: str) -> None:
    """Write the files of the xe driver.

    The format is that of the kernel's Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon, xe_gt_freq and
    xe_gt_throttle.
    """
    frequencies = {
        "act": "0",
        "cur": "1550",
        "min": "300",
        "max": "1600",
        "rp0": "1600",
        "rpe": "900",
        "rpn": "300",
    }
    frequency = f"{place}/tile0/gt0/freq0"
    tree.files(
        frequency,
        {f"{name}_freq": gpu.get(f"clock.{name}", value) for name, value in frequencies.items()},
    )
    reasons = ("pl1", "pl2", "pl4", "prochot", "ratl", "thermal", "vr_tdc", "vr_thermalert")
    active = {f"reason_{name}": gpu.get(f"throttle.{name}", "0") for name in reasons}
    tree.files(f"{frequency}/throttle", {"status": str(int("1" in active.values())), **active})
    monitor = f"{place}/hwmon/hwmon{index}"
    tree.files(
        monitor,
        {
            "name": "xe",
            "power1_max": str(int(gpu["power_limit"]) * 1000),
            "power1_rated_max": str(int(gpu["power_default"]) * 1000),
        },
    )
    tree.files(
        monitor,
        {
            "energy1_input": "0",
            "temp2_label": "pkg",
            "temp2_input": f"{int(gpu['temperature.0']) * 1000}",
        },
    )
    card = f"{place}/drm/card{index}"
    tree.folder(card)
    tree.link(f"{card}/device", place)
    tree.link(f"sys/class/drm/card{index}", card)


def _gfx(name: str) -> int:
    """Return the KFD number of a target: gfx942 is 90402, gfx90a is 90010 (the last two digits are
    hexadecimal).
    """
    digits = name.removeprefix("gfx")
    return (
        int(digits[:-2]) * 10000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)
        if len(digits) > 2
        else 0
    )


class _Tree:
    """Files below a root. Links are relative, so that the tree can be moved or mounted elsewhere."""

    def __init__(self, root: Path, devices: str) -> None:
        self.root, self.base, self.devices = root, str(root), devices
        self.written: set[str] = set()
        self.made: set[str] = set()  # folders

    def folder(self, name: str) -> None:
        if name not in self.made:
            (self.root / name).mkdir(parents=True, exist_ok=True)
            self.made.add(name)

    def file(self, name: str, content: str | bytes) -> None:
        self.folder(name.rpartition("/")[0])
        data = content.encode() if isinstance(content, str) else content
        with open(f"{self.base}/{name}", "wb", buffering=0) as opened:  # noqa: PTH123 - thousands of files
            opened.write(data)

    def files(self, folder: str, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            self.file(f"{folder}/{name}", f"{value}\n")

    def link(self, name: str, target: str) -> None:
        self.folder(name.rpartition("/")[0])
        place = self.root / name
        place.unlink(missing_ok=True)
        place.symlink_to(relative(target, name))


@cache
def relative(target: str, name: str) -> str:
    """Return the content of a link `name` to `target`; both are below the root."""
    return os.path.relpath(f"/{target}", f"/{name.rpartition('/')[0]}")
