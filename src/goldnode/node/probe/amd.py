"""AMD GPUs from the files of the amdgpu driver, without ROCm.

Sources: the kernel's Documentation/gpu/amdgpu (driver-misc, thermal, ras, xgmi) and hwmon/sysfs-interface;
for the binary ``gpu_metrics`` the structures of drivers/gpu/drm/amd/include/kgd_pp_interface.h, and the
chip-independent status bits of drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h. One GPU is one PCI function:
its partitions have DRM cards of their own, and no function.
"""

from __future__ import annotations

from .folder import Folder
from .values import is_fault, known, not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from ..ground.host import Json
    from .context import Context

BUS = "/sys/bus/pci/devices"
NODES = "/sys/class/kfd/kfd/topology/nodes"
MIB = 1 << 20
XGMI = 11  # type of a KFD link
# gpu_metrics (format 1): content revision -> (offset of the 32-bit status of the chip's own bits, offset of the 64-bit status).
STATUS = {0: (68, 0), 1: (68, 0), 2: (68, 0), 3: (68, 112)}
# Content revision, size of the structure (0: any) -> offset of the cycles that were counted; five residencies follow. Revision 6 changed within
# one version of the kernel. Revisions 4 and 5 have a status that the driver always fills with 0.
RESIDENCIES = {(6, 384): 104, (6, 1664): 32, (7, 0): 40, (8, 0): 40}
NEVER_WRITTEN = 0xFFFFFFFFFFFFFFFF
# End of each range of bits, and what its reasons have in common.
KINDS = ((16, "power"), (32, "current"), (56, "thermal"))
THROTTLERS = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")
BITS = {
    0: "ppt0", 1: "ppt1", 2: "ppt2", 3: "ppt3", 4: "spl", 5: "fppt", 6: "sppt", 7: "sppt_apu", 16: "tdc_gfx", 17: "tdc_soc", 18: "tdc_mem",
    19: "tdc_vdd", 20: "tdc_cvip", 21: "edc_cpu", 22: "edc_gfx", 23: "apcc", 32: "temp_gpu", 33: "temp_core", 34: "temp_mem", 35: "temp_edge",
    36: "temp_hotspot", 37: "temp_soc", 38: "temp_vr_gfx", 39: "temp_vr_soc", 40: "temp_vr_mem0", 41: "temp_vr_mem1", 42: "temp_liquid0",
    43: "temp_liquid1", 44: "vrhot0", 45: "vrhot1", 46: "prochot_cpu", 47: "prochot_gfx", 56: "ppm", 57: "fit",
}  # fmt: skip


def read_gpus(context: Context) -> List[Json]:
    """Return the capture's GPU objects of the AMD functions in section ``pci``, ordered by address."""
    mine = {
        name: one
        for name, one in context.functions().items()
        if one.get("kind") == "gpu" and one["pci_id"].startswith("1002:")
    }
    if not mine:
        return []
    links = _links(context, mine)
    unlisted = not_exposed("KFD does not list this GPU")
    rows = []
    for address in sorted(mine):
        with Folder(context.files, f"{BUS}/{address}") as folder:
            rows.append(_gpu(folder, address, mine[address], links.get(address, unlisted)))
    return rows


def _gpu(folder: Folder, address: str, function: Json, links: Any) -> Json:
    power, temperature = _sensors(folder)
    row: Json = {
        "index": None,
        "address": address,
        "pci_id": function["pci_id"],
        "subsystem_id": _pair(folder, "subsystem_vendor", "subsystem_device"),
        "vendor": "amd",
        "name": filled(folder, "product_name"),
        "uuid": filled(folder, "unique_id"),
        "serial": filled(folder, "serial_number"),
        "board_part": filled(folder, "product_number"),
        "driver": function["driver"],
        "lost": function.get("gone") is True,
        "vbios": filled(folder, "vbios_version"),
        "memory": {
            "total_mib": mib(folder, "mem_info_vram_total"),
            "used_mib": mib(folder, "mem_info_vram_used"),
            "bar1_mib": mib(folder, "mem_info_vis_vram_total"),
        },
        "pcie": {"replay": folder.number("pcie_replay_count")},
        "utilization": {
            "gpu": folder.number("gpu_busy_percent"),
            "memory": folder.number("mem_busy_percent"),
        },
        "performance_level": filled(folder, "power_dpm_force_performance_level"),
        "power": power,
        "clocks": _clocks(folder),
        "throttle": throttle(folder.data("gpu_metrics")),
        "temperature": temperature,
        "partition": {
            "compute": filled(folder, "current_compute_partition"),
            "memory": filled(folder, "current_memory_partition"),
        },
        "bad_pages": _bad_pages(folder),
        # Not xgmi_error: to read that file clears what the chip has counted, and writes to the kernel's log (amdgpu_xgmi.c).
        "xgmi": {"links": links, "hive": filled(folder, "xgmi_hive_info/xgmi_hive_id")},
        "processes": [],
    }
    row["ras"] = _ras(folder)
    row["ecc"] = _ecc(row["ras"])
    row["settings"] = settings(row)
    return row


def filled(folder: Folder, name: str) -> Any:
    """Return a text, or its fault. An empty file counts as a missing one."""
    text = folder.text(name)
    if not isinstance(text, str):
        return text
    return text[:200] or not_exposed(f"{name} is empty")


def mib(folder: Folder, name: str) -> Any:
    """Convert bytes to MiB."""
    size = folder.number(name)
    return size // MIB if isinstance(size, int) else size


def scaled(value: Any, unit: int) -> Any:
    """Convert millionths or thousandths to whole units, as an integer if possible."""
    if not isinstance(value, int):
        return value
    return value / unit if value % unit else value // unit


def _pair(folder: Folder, first: str, second: str) -> Any:
    numbers = [folder.number(first), folder.number(second)]
    for number in numbers:
        if is_fault(number):
            return number
    return ":".join(f"{number:04x}" for number in numbers)


def _sensors(folder: Folder) -> Tuple[Json, Json]:
    """Return (power in W, temperature in degrees Celsius) from hwmon's microwatts and thousandths of a
    degree.
    """
    monitors = [name for name in folder.names("hwmon") if name.startswith("hwmon")]
    if not monitors:
        none = not_exposed("no hwmon")
        return none, none
    place = f"hwmon/{monitors[0]}"
    power = {
        f"{key}_w": scaled(folder.number(f"{place}/power1_{name}"), 1000000)
        for key, name in (
            ("limit", "cap"),
            ("default", "cap_default"),
            ("min", "cap_min"),
            ("max", "cap_max"),
            ("draw", "average"),
        )
    }
    if is_fault(power["draw_w"]):  # newer chips report only the current draw
        power["draw_w"] = scaled(folder.number(f"{place}/power1_input"), 1000000)
    labels = {}
    for number in (1, 2, 3, 4):
        label = folder.text(f"{place}/temp{number}_label")
        if isinstance(label, str):
            labels[label] = f"{place}/temp{number}_"
    temperature: Json = {}
    hot = labels.get("junction") or labels.get("edge")
    for key, base, name in (
        ("gpu_c", hot, "input"),
        ("slowdown_c", hot, "crit"),
        ("shutdown_c", hot, "emergency"),
        ("memory_c", labels.get("mem"), "input"),
    ):
        temperature[key] = not_exposed("no such sensor")
        if base:
            temperature[key] = scaled(folder.number(base + name), 1000)
    if known(temperature["gpu_c"]) and known(temperature["slowdown_c"]):
        temperature["margin_c"] = temperature["slowdown_c"] - temperature["gpu_c"]
    return power, temperature


def _clocks(folder: Folder) -> Json:
    """Parse the levels of ``pp_dpm_*``.

    A star marks the current level; ``S`` is a sleep state and does not count.
    """
    row: Json = {"current": {}, "max": {}}
    for key, name in (("graphics_mhz", "sclk"), ("memory_mhz", "mclk")):
        text = folder.text(f"pp_dpm_{name}")
        if not isinstance(text, str):
            row["current"][key] = row["max"][key] = text
            continue
        levels: List[int] = []
        now: Any = None
        for line in text.split("\n")[:64]:
            parts = line.split()
            # 1: 2100Mhz *
            clock = parts[1][:-3] if len(parts) >= 2 and parts[1].lower().endswith("mhz") else ""
            if not clock.isdecimal() or len(clock) > 6:
                continue
            if parts[0] != "S:":
                levels.append(int(clock))
            if parts[-1] == "*":
                now = int(clock)
        if not levels:
            row["max"][key] = unread(f"no level in {text[:40]!r}")
            row["current"][key] = row["max"][key] if now is None else now
            continue
        row["max"][key] = max(levels)
        if now is None:
            now = not_exposed("no level is marked as the current one")
        row["current"][key] = now
    return row


def throttle(data: Any) -> Json:
    """Return the throttle state from the binary ``gpu_metrics``: ``{status, active, kinds}`` now, or
    ``{residency}`` since the driver was loaded (cycles of each counted reason), depending on its revision.
    An unknown revision is a fault.
    """
    if not isinstance(data, bytes):
        return data  # type: ignore[no-any-return]
    if len(data) < 4:
        return unread(f"gpu_metrics is {len(data)} bytes")
    size, form, content = int.from_bytes(data[:2], "little"), data[2], data[3]
    offset = RESIDENCIES.get((content, size), RESIDENCIES.get((content, 0)))
    if form != 1 or (offset is None and content not in STATUS):
        return not_exposed(
            f"gpu_metrics of revision {form}.{content} and {size} bytes has no known throttling fields"
        )
    if size > len(data) or size < (80 if offset is None else offset + 24):
        return unread(f"gpu_metrics is {len(data)} bytes and says {size}")
    if offset is not None:
        cycles, *rows = [
            int.from_bytes(data[offset + 4 * place : offset + 4 * place + 4], "little")
            for place in range(6)
        ]
        # The driver fills the structure with ones before it writes the values that the chip reports.
        reported = {
            name: not_exposed("the chip does not say") if value == 0xFFFFFFFF else value
            for name, value in zip(THROTTLERS, rows)
        }
        return {"residency": {**reported, "cycles": cycles}}
    own, common = STATUS[content]
    status = NEVER_WRITTEN
    if common and size >= common + 8:
        status = int.from_bytes(data[common : common + 8], "little")
    if status != NEVER_WRITTEN:
        bits = [bit for bit in range(64) if status >> bit & 1]
        return {
            "status": status,
            "active": [BITS.get(bit, f"bit{bit}") for bit in bits],
            "kinds": sorted({_kind_of_bit(bit) for bit in bits}),
        }
    status = int.from_bytes(data[own : own + 4], "little")
    if status == 0xFFFFFFFF:
        return not_exposed("the chip does not say")
    if status:
        alone = not_exposed("the bits are of this chip alone")
        return {"status": status, "active": alone, "kinds": alone}
    return {"status": 0, "active": [], "kinds": []}


def _kind_of_bit(bit: int) -> str:
    """Return the kind of a reason by the range of its bit (amdgpu_smu.h)."""
    return next((kind for end, kind in KINDS if bit < end), "other")


def _ras(folder: Folder) -> Any:
    """Return ``{BLOCK: {ue, ce, de?}}`` from ``ras/umc_err_count`` (``ue: 0``), on newer kernels from
    ``ras/aca_umc``.
    """
    names = folder.names("ras")
    blocks: Json = {}
    for name in names:
        block = ""
        if name.endswith("_err_count"):
            block = name[: -len("_err_count")]
        elif name.startswith("aca_"):
            block = name[len("aca_") :]
        if not block or block in blocks:
            continue
        text = folder.text(f"ras/{name}")
        if not isinstance(text, str):
            blocks[block] = text
            continue
        row: Dict[str, Any] = {}
        for line in text.split("\n")[:16]:
            key, _, count = line.partition(":")
            count = count.strip()
            if key.strip() in ("ue", "ce", "de") and count.isdecimal() and len(count) <= 20:
                row[key.strip()] = int(count)
        if "ue" not in row or "ce" not in row:
            row = unread(f"no counters in {text[:40]!r}")
        blocks[block] = row
    return blocks or not_exposed("no error counters in ras")


def _ecc(ras: Any) -> Json:
    """Return sums over all blocks since the driver was loaded.

    If a block could not be read, there is no sum.
    """
    if is_fault(ras):
        return {"volatile": {"corrected": ras, "uncorrected": ras}}
    for row in ras.values():
        if is_fault(row):
            return {"volatile": {"corrected": row, "uncorrected": row}}
    corrected, uncorrected = (sum(row[key] for row in ras.values()) for key in ("ce", "ue"))
    return {"volatile": {"corrected": corrected, "uncorrected": uncorrected}}


def _bad_pages(folder: Folder) -> Any:
    """Count the lines ``0x027f5d43 : 0x00001000 : R`` by state: retired, pending, and not retirable."""
    data = folder.data("ras/gpu_vram_bad_pages", 1 << 20)
    if not isinstance(data, bytes):
        return data
    counts = {"R": 0, "P": 0, "F": 0}
    for line in data.decode("ascii", "replace").split("\n"):
        parts = line.split(" : ")
        if not line.strip():
            continue
        if len(parts) != 3 or parts[2].strip() not in counts:
            return unread(f"no page: {line[:40]!r}")
        counts[parts[2].strip()] += 1
    return {"retired": counts["R"], "pending": counts["P"], "unreservable": counts["F"]}


def _links(context: Context, mine: Json) -> Dict[str, Any]:
    """Return the number of xGMI links of each function, from its first node in KFD's topology (partitions
    have more).
    """
    counts: Dict[str, Any] = {}
    with Folder(context.files, NODES) as nodes:
        for node in sorted(nodes.names(), key=lambda name: (len(name), name)):
            rows = _properties(nodes, f"{node}/properties")
            place = rows.get("location_id", 0)
            if not place:
                continue  # a processor
            address = f"{rows.get('domain', 0):04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}.0"
            if address in counts or address not in mine:
                continue
            links = nodes.names(f"{node}/io_links")
            types = [
                _properties(nodes, f"{node}/io_links/{link}/properties").get("type")
                for link in links
            ]
            counts[address] = types.count(XGMI)
            if None in types:
                counts[address] = unread("a link of this node could not be read")
    return counts


def _properties(nodes: Folder, name: str) -> Dict[str, int]:
    text = nodes.text(name)
    rows = {}
    for line in text.split("\n")[:128] if isinstance(text, str) else ():
        key, _, value = line.strip().partition(" ")
        if value.isdecimal() and len(value) <= 20:
            rows[key] = int(value)
    return rows


def settings(row: Json) -> Json:
    """Return the settings that the policy compares (a GPU of goldnode.device/1, as :mod:`..device.amd` reads
    it), from values read before.
    """

    def as_answer(value: Any) -> Any:
        if not is_fault(value):
            return value
        # NVML_ERROR_NOT_SUPPORTED and NVML_ERROR_UNKNOWN: the policy knows no other library's codes.
        return {"rc": 3 if value["fault"] == "not_exposed" else 999, "text": value["text"]}

    power = row["power"]
    return {
        "uuid": row["uuid"] if known(row["uuid"]) else row["address"],
        "address": row["address"],
        "pci_id": row["pci_id"],
        "name": as_answer(row["name"]),
        "performance_level": as_answer(row["performance_level"]),
        "power": {
            key: as_answer(power if is_fault(power) else power[f"{key}_w"])
            for key in ("limit", "default", "min", "max")
        },
        "processes": [],
    }
