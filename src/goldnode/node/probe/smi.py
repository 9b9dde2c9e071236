"""Converter from `nvidia-smi -q -x` output of any driver since 470 to a capture, so that an attachment of a
ticket can be judged.

Element names changed over the years (the numbers of nvsmi_device_vN.dtd, 11 to 13, and drivers between them);
each key of a capture lists its names. A missing element gives no key; an element with an error is a fault
with its text.
"""

from __future__ import annotations

from ..device.names import ACTIONS, FABRIC_STATES, REASONS, address
from ..ground.errors import NodeError
from . import SCHEMA
from .values import is_fault, known, not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence
    from xml.etree.ElementTree import Element

    from ..ground.host import Json

# nvidia-smi's placeholders for a missing value, in lower case and without brackets: hardware or driver lack it …
NONE = (
    "n/a",
    "not supported",
    "not available",
    "function not found",
    "requested functionality has been deprecated",
)
# … it could not be read …
BROKEN = (
    "unknown error",
    "err!",
    "error",
    "insufficient permissions",
    "no permission",
    "in use by another client",
)
# … or the GPU cannot be reached.
LOST = ("gpu is lost", "gpu requires reset")
LONGEST = 200
# Its words for NVML's recovery actions, where they are not the same with spaces.
RECOVERY = {"reset": "gpu_reset", "reboot": "node_reboot", "recover imex domain": "recover_imex"}
HEALTH = {
    "route_recovery_in_progress": "route_recovery", "route_unhealthy": "route_unhealthy", "access_timeout_recovery": "access_timeout_recovery",
    "partition_assigned": "partition_assigned",
}  # fmt: skip


def parse(data: bytes, name: str) -> Json:
    """Return the capture.

    Raises NodeError for other output, truncated output, and output that declares entities.
    """
    from xml.etree import ElementTree

    if b"<!ENTITY" in data.upper():
        raise NodeError(
            f"{name}: declares XML entities, which nvidia-smi never does. It is not read."
        )
    try:
        # Its encoding is given here, so that none that the document names can hide anything from the look above.
        root = ElementTree.fromstring(data, ElementTree.XMLParser(encoding="utf-8"))  # noqa: S314 - entities are refused above
    except (ElementTree.ParseError, ValueError, LookupError) as problem:
        cut = b"<nvidia_smi_log" in data and b"</nvidia_smi_log>" not in data
        what = "is cut off before </nvidia_smi_log>" if cut else f"is not XML ({problem})"
        raise NodeError(
            f"{name}: {what}. Give the whole output of one `nvidia-smi -q -x`."
        ) from None
    if root.tag != "nvidia_smi_log":
        raise NodeError(
            f"{name}: its XML is <{root.tag[:40]}>, not <nvidia_smi_log>. Give the output of `nvidia-smi -q -x`."
        )
    return captured(root)


def captured(root: Element) -> Json:
    """Return the capture of an <nvidia_smi_log> element."""
    elements = root.findall("gpu")
    attached = _text(root, "attached_gpus")
    # With -i it lists only some GPUs, and a position in the list is not the library's index.
    whole = attached == str(len(elements))
    gpus = [_Gpu(element).read(index if whole else None) for index, element in enumerate(elements)]
    gpus.sort(key=lambda gpu: str(gpu.get("address")))
    driver: Json = {"vendor": "nvidia"}
    # The first names are deprecated since 610, whose output has both; they end with CUDA 14.0.
    for key, tags in (
        ("reported", ("driver_version", "kmd_version")),
        ("cuda", ("cuda_version", "cuda_umd_version")),
    ):
        text = next((text for text in (_text(root, tag) for tag in tags) if text is not None), None)
        if text is not None:
            driver[key] = not_exposed(text) if _absent(text) else text
    count = {}
    if attached is not None and attached.isdigit() and not whole:
        count["gpu_count"] = int(attached)
    return {
        "schema": SCHEMA,
        "time": None,
        "recorded": _text(root, "timestamp"),  # local time of a place that it does not name
        "uptime": None,
        "source": "nvidia-smi-xml",
        "simulated": any(str(gpu.get("serial")).startswith("SIMULATED") for gpu in gpus),
        "identity": _guest(elements),
        "driver": driver,
        "gpus": gpus,
        "gpu_error": None,
        **count,
    }


# The modes of `gpu_virtualization_mode` by which a guest knows that it is one.
GUESTS = {"pass-through": "GPU passed through", "vgpu": "vGPU"}


def _guest(elements: Sequence[Element]) -> Json:
    """Return the identity of the machine: only that it is a virtual one, if the driver reports it."""
    for element in elements:
        mode = (_text(element, "gpu_virtualization_mode/virtualization_mode") or "").lower()
        if mode in GUESTS:
            return {"virtual": GUESTS[mode]}
    return {}


def _text(element: Element, path: str) -> Optional[str]:
    child = element.find(path)
    return None if child is None else (child.text or "").strip()[:LONGEST]


def _bare(text: str) -> str:
    return text.strip("[]").lower()


def _absent(text: str) -> bool:
    return _bare(text) in NONE or _bare(text).startswith(NONE[-1])


# -- from texts. Each gives None for a text that is none of its kind.


def _number(text: str) -> Any:
    """Return a number with or without a unit behind it, as an integer if possible."""
    digits = text.split(" ")[0].rstrip("x%")
    try:
        value = float(digits)
    except ValueError:
        return None
    if value - value != 0:
        return None
    return int(value) if value == int(value) else value


def _integer(text: str) -> Optional[int]:
    value = _number(text)
    return value if isinstance(value, int) else None


def _flag(text: str) -> Optional[bool]:
    return {
        "yes": True,
        "1": True,
        "enabled": True,
        "true": True,
        "no": False,
        "0": False,
        "disabled": False,
        "false": False,
    }.get(text.lower())


def _state(text: str) -> Optional[int]:
    return _integer(text[1:]) if text[:1] == "P" else None


def _text_or_none(text: str) -> Optional[str]:
    return text or None


def _ids(text: str) -> Optional[str]:
    """Split 233010DE into device and vendor."""
    text = text.lower()
    if text.startswith("0x"):
        text = text[2:]
    if len(text) != 8 or set(text) - set("0123456789abcdef"):
        return None
    return f"{text[4:]}:{text[:4]}"


def _nanoseconds(text: str) -> Optional[int]:
    value, _, unit = text.partition(" ")
    factor = {"us": 1000, "ns": 1}.get(unit)
    return int(value) * factor if value.isdigit() and factor else None


def _action(text: str) -> Optional[str]:
    word = text.lower().replace("-", " ")
    word = RECOVERY.get(word, word.replace(" ", "_"))
    return word if word in ACTIONS else None


def _mode(text: str) -> Optional[str]:
    return _listed(text, ("default", "exclusive_process", "exclusive_thread", "prohibited"))


def _listed(text: str, words: Sequence[str]) -> Optional[str]:
    word = text.lower().replace(" ", "_")
    return word if word in words else None


class _Gpu:
    """One <gpu> element."""

    def __init__(self, element: Element) -> None:
        self.element = element
        self.lost = False

    def get(self, *paths: str, to: Callable[[str], Any] = _text_or_none) -> Any:
        """Return the value at the first path that has one, otherwise the fault of the first that exists; None
        without any.
        """
        fault = None
        for path in paths:
            text = _text(self.element, path)
            if text is None:
                continue
            value = self.value(text, to)
            if not is_fault(value):
                return value
            fault = fault or value
        return fault

    def value(self, text: str, to: Callable[[str], Any]) -> Any:
        """Return a text as a value, or its fault."""
        if _absent(text):
            return not_exposed(text)
        if _bare(text) in LOST:
            self.lost = True
            return unread(text)
        value = None if _bare(text) in BROKEN else to(text)
        if value is not None:
            return value
        return unread(f"nvidia-smi says {text!r}" if text else "the element is empty")

    def object(self, to: Callable[[str], Any], **paths: Any) -> Any:
        """Return keys with their values, without missing ones.

        If all have the same fault, return that; None if all are missing.
        """
        values: Dict[str, Any] = {}
        for key, path in paths.items():
            value = self.get(*([path] if isinstance(path, str) else path), to=to)
            if value is not None:
                values[key] = value
        return _one(values)

    def read(self, index: Optional[int]) -> Json:
        """Return the GPU as docs/reference/capture.md describes it."""
        gpu: Json = {"index": index, "vendor": "nvidia"}

        def put(key: str, value: Any) -> None:
            if value is not None:
                gpu[key] = value

        where = self.get("pci/pci_bus_id") or self.element.get("id")
        put("address", address(where) if isinstance(where, str) else where)
        put("pci_id", self.get("pci/pci_device_id", to=_ids))
        put("subsystem_id", self.get("pci/pci_sub_system_id", to=_ids))
        for key, tag in (("name", "product_name"), ("uuid", "uuid"), ("serial", "serial"), ("board_part", "board_part_number"),
                         ("vbios", "vbios_version"), ("gsp_firmware", "gsp_firmware_version"), ("architecture", "product_architecture")):  # fmt: skip
            put(key, self.get(tag))
        put("minor", self.get("minor_number", to=_integer))
        put("multi_gpu_board", self.get("multigpu_board", to=_flag))
        put("recovery_action", self.recovery())
        put("persistence_mode", self.get("persistence_mode", to=_flag))
        put("compute_mode", self.get("compute_mode", to=_mode))
        put("pstate", self.get("performance_state", "power_state", to=_state))
        memory = {
            "total_mib": "fb_memory_usage/total",
            "used_mib": "fb_memory_usage/used",
            "bar1_mib": "bar1_memory_usage/total",
        }
        put("memory", self.object(_integer, **memory))
        put("pcie", self.pcie())
        put(
            "utilization",
            self.object(_integer, gpu="utilization/gpu_util", memory="utilization/memory_util"),
        )
        put("ecc", self.ecc())
        put("remapped_rows", self.remapped())
        put("remapped_banks", self.banks())
        put("retired_pages", self.retired())
        put(
            "repair",
            self.object(
                _flag,
                channel_pending="ecc_errors/channel_repair_pending",
                tpc_pending="ecc_errors/tpc_repair_pending",
            ),
        )
        put("unrepairable_memory", self.get("ecc_errors/unrepairable_memory", to=_flag))
        put("power", self.power())
        put("clocks", self.clocks())
        put("throttle", self.throttle())
        degrees = {"gpu_c": "gpu_temp", "memory_c": "memory_temp", "margin_c": "gpu_temp_tlimit", "slowdown_c": "gpu_temp_slow_threshold",
                   "shutdown_c": "gpu_temp_max_threshold", "max_c": "gpu_temp_max_gpu_threshold",
                   "memory_max_c": "gpu_temp_max_mem_threshold"}  # fmt: skip
        put(
            "temperature",
            self.object(_integer, **{key: f"temperature/{tag}" for key, tag in degrees.items()}),
        )
        put("mig", self.mig())
        put("fabric", self.fabric())
        put("processes", self.processes())
        put("inforom", self.object(_text_or_none, image="inforom_version/img_version"))
        gpu["lost"] = self.lost
        return gpu

    def recovery(self) -> Any:
        """Return the recovery action. Before driver 570 two flags reported a requested reset; without them
        other actions are unknown.
        """
        action = self.get("gpu_recovery_action", to=_action)
        if known(action):
            return action
        for tag, name in (
            ("reset_required", "gpu_reset"),
            ("drain_and_reset_recommended", "drain_and_reset"),
        ):
            if self.get(f"gpu_reset_status/{tag}", to=_flag) is True:
                return name
        return action

    def pcie(self) -> Any:
        link = "pci/pci_gpu_link_info"
        gen = {"current": (f"{link}/pcie_gen/current_link_gen", f"{link}/pcie_gen/device_current_link_gen"),
               "max": f"{link}/pcie_gen/max_link_gen", "device_max": f"{link}/pcie_gen/max_device_link_gen"}  # fmt: skip
        width = {
            "current": f"{link}/link_widths/current_link_width",
            "max": f"{link}/link_widths/max_link_width",
        }
        parts = {
            "gen": self.object(_integer, **gen),
            "width": self.object(_integer, **width),
            "replay": self.get("pci/replay_counter", to=_integer),
        }
        return _one({key: value for key, value in parts.items() if value is not None})

    def ecc(self) -> Any:
        mode = self.object(_flag, current="ecc_mode/current_ecc", pending="ecc_mode/pending_ecc")
        if mode is None or is_fault(mode):
            return mode
        section: Json = dict(mode)
        for when in ("volatile", "aggregate"):
            here = f"ecc_errors/{when}"
            # Up to Volta this is a total; since Turing there are parts, which NVML adds up.
            row = {
                "corrected": self.sum(
                    f"{here}/single_bit/total",
                    (f"{here}/sram_correctable", f"{here}/dram_correctable"),
                ),
                "uncorrected": self.sum(
                    f"{here}/double_bit/total",
                    tuple(
                        f"{here}/{tag}"
                        for tag in (
                            "sram_uncorrectable",
                            "sram_uncorrectable_parity",
                            "sram_uncorrectable_secded",
                            "dram_uncorrectable",
                        )
                    ),
                ),
            }
            row = {key: value for key, value in row.items() if value is not None}
            if row:
                section[when] = row
        sums = "ecc_errors/aggregate"
        sram = self.object(
            _integer,
            corrected=f"{sums}/sram_correctable",
            parity=f"{sums}/sram_uncorrectable_parity",
            secded=f"{sums}/sram_uncorrectable_secded",
        )
        exceeded = self.get(f"{sums}/sram_threshold_exceeded", to=_flag)
        if exceeded is not None:
            rest = {} if sram is None or is_fault(sram) else sram
            sram = _one({"threshold_exceeded": exceeded, **rest})
        if sram is not None:
            section["sram"] = sram
        dram = {
            f"{when}_uncorrected": (
                f"ecc_errors/{when}/dram_uncorrectable",
                f"ecc_errors/{when}/double_bit/device_memory",
            )
            for when in ("volatile", "aggregate")
        }
        counters = self.object(_integer, **dram)
        if counters is not None:
            section["dram"] = counters
        return section

    def sum(self, total: str, parts: Sequence[str]) -> Any:
        """Return a stated total, or the sum of its parts. Parts that this board does not count are left out;
        an unreadable part makes the sum unread.
        """
        total_value = self.get(total, to=_integer)
        if total_value is not None:
            return total_value
        values = [
            value for value in (self.get(part, to=_integer) for part in parts) if value is not None
        ]
        for value in values:
            if is_fault(value) and value["fault"] == "unread":
                return value
        numbers = [value for value in values if not is_fault(value)]
        if numbers:
            return sum(numbers)
        return values[0] if values else None

    def remapped(self) -> Any:
        whole = _text(self.element, "remapped_rows")
        if whole is None:
            return None
        if whole:
            return self.value(whole, lambda text: None)
        flags = self.object(
            _flag,
            pending="remapped_rows/remapped_row_pending",
            failure="remapped_rows/remapped_row_failure",
        )
        counts = self.object(
            _integer,
            correctable="remapped_rows/remapped_row_corr",
            uncorrectable="remapped_rows/remapped_row_unc",
        )
        if is_fault(counts) or counts is None:
            return counts if flags is None or is_fault(flags) else flags
        if is_fault(flags):
            flags = {"pending": flags, "failure": flags}
        counts.update(flags or {})
        banks = "remapped_rows/row_remapper_histogram"
        text = _text(self.element, banks)
        if text:
            counts["histogram"] = self.value(text, lambda _: None)
        elif text is not None:
            counts["histogram"] = self.object(
                _integer,
                **{
                    key: f"{banks}/row_remapper_histogram_{key}"
                    for key in ("max", "high", "partial", "low", "none")
                },
            )
        return {key: value for key, value in counts.items() if value is not None}

    def banks(self) -> Any:
        """Return the remapped banks, which outputs of Rubin GPUs have (driver 615)."""
        here = "remapped_banks/bank_remapper"
        counts = self.object(_integer, none=f"{here}_histogram/bank_remapper_histogram_none")
        pending = self.get(f"{here}_pending", to=_flag)
        if pending is None:
            return counts
        return _one({"pending": pending, **({} if counts is None or is_fault(counts) else counts)})

    def retired(self) -> Any:
        here = "retired_pages"
        counts = {
            "single_bit": f"{here}/multiple_single_bit_retirement/retired_count",
            "double_bit": f"{here}/double_bit_retirement/retired_count",
        }
        pages = self.object(_integer, **counts)
        pending = self.get(f"{here}/pending_retirement", f"{here}/pending_blacklist", to=_flag)
        if pages is not None and not is_fault(pages) and pending is not None:
            pages["pending"] = pending
        return pages

    def power(self) -> Any:
        new, old = "gpu_power_readings", "power_readings"
        return self.object(
            _number,
            limit_w=(
                f"{new}/requested_power_limit",
                f"{new}/current_power_limit",
                f"{old}/power_limit",
            ),
            enforced_w=(f"{new}/current_power_limit", f"{old}/enforced_power_limit"),
            default_w=(f"{new}/default_power_limit", f"{old}/default_power_limit"),
            min_w=(f"{new}/min_power_limit", f"{old}/min_power_limit"),
            max_w=(f"{new}/max_power_limit", f"{old}/max_power_limit"),
            draw_w=(
                f"{new}/average_power_draw",
                f"{new}/power_draw",
                f"{new}/instant_power_draw",
                f"{old}/power_draw",
            ),
        )

    def clocks(self) -> Any:
        clocks = {}
        for key, tag in (
            ("current", "clocks"),
            ("max", "max_clocks"),
            ("application", "applications_clocks"),
            ("application_default", "default_applications_clocks"),
        ):
            value = self.object(
                _integer,
                graphics_mhz=f"{tag}/graphics_clock",
                sm_mhz=f"{tag}/sm_clock",
                memory_mhz=f"{tag}/mem_clock",
            )
            if value is not None:
                clocks[key] = value
        return clocks or None

    def throttle(self) -> Any:
        section: Json = {}
        for prefix in ("clocks_event_reason", "clocks_throttle_reason"):
            folder = self.element.find(f"{prefix}s")
            if folder is None:
                continue
            text = (folder.text or "").strip()
            if text:
                section["mask"] = section["active"] = self.value(text[:LONGEST], lambda _: None)
                continue
            active: List[str] = []
            fault = None
            for bit, name in enumerate(REASONS):
                tag = name.replace("display_clock_", "display_clocks_")
                reasons = self.get(
                    f"{prefix}s/{prefix}_{tag}",
                    to=lambda text: {"active": True, "not active": False}.get(text.lower()),
                )
                if is_fault(reasons):
                    fault = fault or reasons
                elif reasons:
                    active.append(REASONS[bit])
            # A single missing bit leaves the mask unknown; the bits that were read are kept.
            section["active"] = active or fault or []
            section["mask"] = fault or sum(1 << REASONS.index(name) for name in active)
        counters = {"power": "sw_power_cap", "sync_boost": "sync_boost", "sw_thermal": "sw_therm_slowdown", "hw_thermal": "hw_therm_slowdown",
                    "hw_power_brake": "hw_power_brake"}  # fmt: skip
        here = "clocks_event_reasons_counters"
        reasons = self.object(
            _nanoseconds,
            **{
                key: (f"{here}/{here}_{tag}", f"{here}/clocks_event_reason_{tag}")
                for key, tag in counters.items()
            },
        )
        if reasons is not None:
            section["violation_ns"] = reasons
        return section or None

    def mig(self) -> Any:
        modes = self.object(_flag, current="mig_mode/current_mig", pending="mig_mode/pending_mig")
        if modes is None or is_fault(modes):
            return modes
        devices = self.element.findall("mig_devices/mig_device")
        text = _text(self.element, "mig_devices")
        if devices:
            modes["instances"] = not_exposed("nvidia-smi's XML names no profiles")
        elif text is not None and text.lower() in ("none", "n/a", ""):
            modes["instances"] = []
        return modes

    def fabric(self) -> Any:
        state = self.get("fabric/state", to=lambda text: _listed(text, FABRIC_STATES))
        if state is None or is_fault(state):
            return state
        section: Json = {"state": state}
        for key, tag, to in (
            ("status", "status", _text_or_none),
            ("clique", "cliqueId", _integer),
            ("cluster", "clusterUuid", _text_or_none),
        ):
            value = self.get(f"fabric/{tag}", to=to)
            if value is not None:
                section[key] = value
        health: Json = {}
        for tag, key in HEALTH.items():
            value = self.get(
                f"fabric/health/{tag}", to=lambda text: _listed(text, ("true", "false"))
            )
            if known(value):
                health[key] = value
        width = self.get(
            "fabric/health/bandwidth",
            to=lambda text: {"full": "false", "degraded": "true"}.get(text.lower()),
        )
        if known(width):
            health["degraded_bandwidth"] = width
        for key, tag in (("summary", "summary"), ("configuration", "incorrect_configuration")):
            word = self.get(f"fabric/health/{tag}", to=lambda text: text.lower().replace(" ", "_"))
            if known(word):
                health[key] = "correct" if word == "none" else word
        if self.element.find("fabric/health") is not None:
            section["health"] = health
        return section

    def processes(self) -> Any:
        folder = self.element.find("processes")
        if folder is None:
            return None
        text = (folder.text or "").strip()
        if text and len(folder) == 0:
            return [] if text.lower() == "none" else self.value(text[:LONGEST], lambda _: None)
        rows = []
        for row in folder.findall("process_info"):
            pid, used = _text(row, "pid"), _text(row, "used_memory")
            kind = _text(row, "type")
            if kind == "G":
                continue  # NVML's list of compute processes has none that only draw
            process: Json = {"pid": self.value(pid or "", _integer)}
            if used is not None:
                process["memory_mib"] = self.value(used, _integer)
            rows.append(process)
        return rows


def _one(values: Dict[str, Any]) -> Any:
    """Return an object, or the one fault that all its values have; None if it is empty."""
    first = next(iter(values.values()), None)
    if is_fault(first) and all(value == first for value in values.values()):
        return first
    return values or None
