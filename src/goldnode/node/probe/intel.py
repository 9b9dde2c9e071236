"""Intel GPUs from the files of xe and i915.

Sources: the kernel's Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon,
drivers/gpu/drm/xe/xe_gt_freq.c and xe_gt_throttle.c (reasons differ by platform and kernel, so every file of
that form is read), i915's gt/intel_gt_sysfs_pm.c.
"""

from __future__ import annotations

from .amd import MIB, scaled
from .folder import Folder
from .values import is_fault, known, not_exposed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Tuple

    from ..ground.host import Json
    from .context import Context

BUS = "/sys/bus/pci/devices"
SMALL_BAR = 256 * MIB  # the window of a card whose BAR was not resized, independent of its memory
THERMAL = ("therm", "prochot", "ratl")
POWER = ("pl1", "pl2", "pl4", "psys", "iccmax", "vr_tdc", "fastvmode")


def read_gpus(context: Context) -> List[Json]:
    """Return the GPU objects of the capture for Intel's functions of its section ``pci``, in the order of
    their addresses.
    """
    rows = []
    for address, function in sorted(context.functions().items()):
        if function.get("kind") == "gpu" and function["pci_id"].startswith("8086:"):
            with Folder(context.files, f"{BUS}/{address}") as folder:
                rows.append(_gpu(folder, address, function))
    return rows


def _gpu(folder: Folder, address: str, function: Json) -> Json:
    # xe: tile0/gt0/freq0/act_freq; i915: drm/card1/gt/gt0/rps_act_freq_mhz, and on older kernels drm/card1/gt_act_freq_mhz.
    tiles = [
        f"{tile}/{gt}"
        for tile in _numbered(folder, ".", "tile")
        for gt in _numbered(folder, tile, "gt")
    ]
    card = next((f"drm/{name}" for name in _numbered(folder, "drm", "card")), "drm/none")
    gts = [] if tiles else [f"{card}/gt/{gt}" for gt in _numbered(folder, f"{card}/gt", "gt")]
    power, temperature = _sensors(folder)
    return {
        "index": None,
        "address": address,
        "pci_id": function["pci_id"],
        "vendor": "intel",
        "driver": function["driver"],
        "lost": function.get("gone") is True,
        "memory": _memory(folder, function, card),
        "power": power,
        "clocks": _clocks(folder, tiles, gts, card),
        "throttle": _throttle(folder, tiles, gts),
        "temperature": temperature,
        "processes": [],
    }


def _numbered(folder: Folder, place: str, start: str) -> List[str]:
    return [
        name
        for name in folder.names(place)
        if name.startswith(start) and name[len(start) :].isdecimal()
    ]


def _memory(folder: Folder, function: Json, card: str) -> Json:
    """Return ``total_mib`` as the driver reports it (`source` ``driver``).

    Otherwise it is the size of BAR 2 (``bar2``), the next power of two.
    """
    totals = [folder.number(f"{card}/lmem_total_bytes")]
    if not known(totals[0]):
        totals = [
            folder.number(f"{tile}/physical_vram_size_bytes")
            for tile in _numbered(folder, ".", "tile")
        ]
    sizes = [size for size in totals if isinstance(size, int)]
    if sizes and len(sizes) == len(totals):
        return {"total_mib": sum(sizes) // MIB, "source": "driver"}
    bars = function.get("bars")
    if not isinstance(bars, list) or len(bars) < 3:
        return {"total_mib": bars if is_fault(bars) else not_exposed("no BAR 2")}
    if bars[2] <= SMALL_BAR:
        return {
            "total_mib": not_exposed("the driver does not say, and BAR 2 is a window only"),
            "bar1_mib": bars[2] // MIB,
        }
    return {"total_mib": bars[2] // MIB, "bar1_mib": bars[2] // MIB, "source": "bar2"}


def _clocks(folder: Folder, tiles: List[str], gts: List[str], card: str) -> Json:
    if tiles:
        now, most = (
            folder.number(f"{tiles[0]}/freq0/act_freq"),
            folder.number(f"{tiles[0]}/freq0/max_freq"),
        )
        best = folder.number(f"{tiles[0]}/freq0/rp0_freq")
    elif gts:
        now, most, best = [
            folder.number(f"{gts[0]}/rps_{name}_freq_mhz") for name in ("act", "max", "RP0")
        ]
    else:
        now, most, best = [
            folder.number(f"{card}/gt_{name}_freq_mhz") for name in ("act", "max", "RP0")
        ]
    # The hardware's range, and the limit set within it: NVML calls such a limit an application clock.
    return {
        "current": {"graphics_mhz": now},
        "max": {"graphics_mhz": best},
        "application": {"graphics_mhz": most},
    }


def _throttle(folder: Folder, tiles: List[str], gts: List[str]) -> Json:
    """Return ``{active, kinds}``: the reasons of all GTs, as the driver names them."""
    active = set()
    files = [(f"{gt}/freq0/throttle", "reason_") for gt in tiles] + [
        (gt, "throttle_reason_") for gt in gts
    ]
    seen = False
    for place, start in files:
        for name in folder.names(place):
            if not name.startswith(start):
                continue
            value = folder.number(f"{place}/{name}")
            if is_fault(value):
                return value  # type: ignore[return-value]
            seen = True
            if value and name != f"{start}status":
                active.add(name[len(start) :][:40])
            elif value:
                active.add("status")
        status = folder.number(f"{place}/status") if start == "reason_" else 0
        if isinstance(status, int) and status:
            active.add("status")
    if not seen:
        return not_exposed("no reasons for throttling")
    if (
        len(active) > 1
    ):  # the status sums up the others, and stands alone when none of them is known
        active.discard("status")
    return {"active": sorted(active), "kinds": sorted({_kind(name) for name in active})}


def _kind(reason: str) -> str:
    if any(word in reason for word in THERMAL):
        return "thermal"
    return "power" if reason.startswith(POWER) else "other"


def _sensors(folder: Folder) -> Tuple[Any, Any]:
    """Return (power in W, temperature in degrees Celsius). xe numbers its channels: 1 is the card, 2 the
    package, 3 the memory.
    """
    monitors = [name for name in folder.names("hwmon") if name.startswith("hwmon")]
    if not monitors:
        none = not_exposed("no hwmon")
        return none, none
    place = f"hwmon/{monitors[0]}"
    power = {}
    for key, name in (("limit_w", "max"), ("default_w", "rated_max")):
        card, package = (folder.number(f"{place}/power{channel}_{name}") for channel in (1, 2))
        # A driver limits the card or its package. Microwatts.
        power[key] = scaled(package if is_fault(card) and not is_fault(package) else card, 1000000)
    labels = {str(folder.text(f"{place}/temp{number}_label")): number for number in (1, 2, 3)}
    package = labels.get("pkg", 2 if folder.there(f"{place}/temp2_input") else 1)
    memory = labels.get("vram", 3)
    temperature = {
        key: scaled(folder.number(f"{place}/temp{channel}_{name}"), 1000)
        for key, channel, name in (
            ("gpu_c", package, "input"), ("slowdown_c", package, "crit"), ("shutdown_c", package, "emergency"), ("memory_c", memory, "input")
        )
    }  # fmt: skip
    if known(temperature["gpu_c"]) and known(temperature["slowdown_c"]):
        temperature["margin_c"] = temperature["slowdown_c"] - temperature["gpu_c"]
    return power, temperature
