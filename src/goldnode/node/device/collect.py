"""NVIDIA GPUs in a capture (docs/reference/capture.md), read from NVML part by part. Runs only in the process that can
be killed.

Each part is written as soon as it is read. Return codes 3 and 13 mean that board or driver do not have it; 15
and 16 that the GPU is lost; others that it could not be read. Units are those of nvml.h: milliwatts, bytes,
nanoseconds.
"""

from __future__ import annotations

import json
import math
import os
from ctypes import byref
from time import monotonic, sleep

from . import SCHEMA
from . import nvidia as settings
from .names import ACTIONS, FABRIC_STATES, REASONS, address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

    Json = Dict[str, Any]

nvml = settings.nvml  # type: ignore[attr-defined]
ABSENT = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
LOST = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)
MIB = 1 << 20
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip
# nvmlPerfPolicyType_t, in nanoseconds, and the three newer policies, which have fields of their own.
POLICIES = {
    "power": 0,
    "thermal": 1,
    "sync_boost": 2,
    "board_limit": 3,
    "low_utilization": 4,
    "reliability": 5,
}
# Field ids of nvml.h, NVML_FI_DEV_*.
POLICY_FIELDS = {"sw_thermal": 269, "hw_thermal": 270, "hw_power_brake": 271}
MEMORY_TEMPERATURE, LINK_COUNT, RECOVERY = 82, 91, 230
LINK_FIELDS = {"replay": 161, "recovery": 162, "crc_flit": 163}
LINK_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: the first bit of each, two bits wide, 1 true and 2 false.
FABRIC_HEALTH = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
    "partition_assigned": 12,
}
FABRIC_CONFIGURATION = (
    None, "correct", "incorrect_system_guid", "incorrect_chassis_serial", "no_partition", "insufficient_nvlinks",
    "incompatible_firmware", "invalid_location", "invalid_gpu_state",
)  # fmt: skip
FABRIC_SUMMARY = (None, "healthy", "unhealthy", "limited_capacity")


def fault(rc: int, text: Optional[str] = None) -> Json:
    """Return a return code of NVML as a fault of the capture."""
    return {
        "fault": "not_exposed" if rc in ABSENT else "unread",
        "text": text or str(nvml.NVMLError(rc)),
        "rc": rc,
    }


def is_fault(value: Any) -> bool:
    """Return whether a value is a fault."""
    return isinstance(value, dict) and "fault" in value


def unknown(what: str, value: int) -> Json:
    """Return the fault of a number that this version of goldnode has no name for. It is reported and never
    interpreted.
    """
    return {"fault": "unread", "text": f"{what} {value} is not known to this version"}


class NvmlGpu:
    """One GPU: its handle, whether any call found it lost, and what parts share."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.lost = False
        self.why: Optional[Json] = None  # the fault that shows it
        self.fields: Dict[int, Any] = {}
        self.in_use = False  # memory or use of which there must be a process

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the result of a getter, or its fault; text as str."""
        try:
            value = getattr(nvml, name)(self.handle, *arguments)
            return value.decode() if isinstance(value, bytes) else value
        except nvml.NVMLError as problem:
            return self.fault(problem.value)
        except UnicodeDecodeError:
            return {"fault": "unread", "text": "this is no text"}

    def fault(self, rc: int) -> Json:
        """Return a return code as a fault, and note a lost GPU."""
        why = fault(rc)
        if rc in LOST and not self.lost:
            self.lost, self.why = True, why
        return why

    def either(self, names: Sequence[str], *arguments: Any) -> Any:
        """Return the first of several getters that this driver has. Some were renamed."""
        value: Any = None
        for name in names:
            value = self.ask(name, *arguments)
            if not is_fault(value) or value["rc"] != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                break
        return value

    def flag(self, name: str, *arguments: Any) -> Any:
        """Return a number as true or false."""
        value = self.ask(name, *arguments)
        return value if is_fault(value) else bool(value)

    def watts(self, name: str) -> Any:
        """Convert milliwatts to watts."""
        value = self.ask(name)
        return value if is_fault(value) else watts(value)

    def batch(self, wanted: Sequence[Any]) -> List[Any]:
        """Read values of fields in one call. Each field is a number, or a pair of number and scope."""
        rows = self.ask("nvmlDeviceGetFieldValues", list(wanted))
        if is_fault(rows):
            return [rows] * len(wanted)
        return [self.fault(row.nvmlReturn) if row.nvmlReturn else number(row) for row in rows]


def number(row: Any) -> Any:
    """Return the member of nvmlValue_t that the type names (nvml.h, nvmlValueType_t). A double that is no
    number is None: JSON has none.
    """
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    if row.valueType >= len(kinds):
        return unknown("value type", row.valueType)
    value = getattr(row.value, kinds[row.valueType])
    return value if math.isfinite(value) else None


def watts(milli: int) -> float:
    """Return watts, as an integer if there is no fraction."""
    return milli / 1000 if milli % 1000 else milli // 1000


def bits(mask: int) -> List[str]:
    """Return the names of the throttle reasons in a mask; a bit without a name is reported by its number."""
    return [
        REASONS[bit] if bit < len(REASONS) else f"bit_{bit}"
        for bit in range(mask.bit_length())
        if mask >> bit & 1
    ]


# -- parts. Each gives keys of docs/reference/capture.md's GPU.


def identity(gpu: NvmlGpu) -> Json:
    pci = gpu.ask("nvmlDeviceGetPciInfo")
    ids: Json = {"address": pci, "pci_id": pci, "subsystem_id": pci}
    if not is_fault(pci):
        device, board = int(pci.pciDeviceId), int(pci.pciSubSystemId)
        ids = {
            "address": address(pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId),
            "pci_id": f"{device & 0xFFFF:04x}:{device >> 16:04x}",
            "subsystem_id": f"{board & 0xFFFF:04x}:{board >> 16:04x}",
        }
    names = {
        "name": "Name",
        "uuid": "UUID",
        "serial": "Serial",
        "board_part": "BoardPartNumber",
        "minor": "MinorNumber",
    }
    ids.update({key: gpu.ask(f"nvmlDeviceGet{name}") for key, name in names.items()})
    ids["multi_gpu_board"] = gpu.flag("nvmlDeviceGetMultiGpuBoard")
    architecture = gpu.ask("nvmlDeviceGetArchitecture")
    if not is_fault(architecture):
        architecture = ARCHITECTURES.get(architecture) or unknown("architecture", architecture)
    return {
        **ids,
        "vbios": gpu.ask("nvmlDeviceGetVbiosVersion"),
        "gsp_firmware": gpu.ask("nvmlDeviceGetGspFirmwareVersion"),
        "architecture": architecture,
    }


def recovery(gpu: NvmlGpu) -> Json:
    """Read the driver's own verdict, and the other field values in the same call."""
    wanted = [RECOVERY, LINK_COUNT, MEMORY_TEMPERATURE, *POLICY_FIELDS.values()]
    gpu.fields = dict(zip(wanted, gpu.batch(wanted)))
    action = gpu.fields[RECOVERY]
    if not is_fault(action):
        action = ACTIONS[action] if action < len(ACTIONS) else unknown("recovery action", action)
    return {"recovery_action": action}


def modes(gpu: NvmlGpu) -> Json:
    compute = gpu.ask("nvmlDeviceGetComputeMode")
    if not is_fault(compute):
        compute = settings.COMPUTE_MODES.get(compute) or unknown("compute mode", compute)
    return {"persistence_mode": gpu.flag("nvmlDeviceGetPersistenceMode"), "compute_mode": compute}


def memory(gpu: NvmlGpu) -> Json:
    whole, bar1 = gpu.ask("nvmlDeviceGetMemoryInfo"), gpu.ask("nvmlDeviceGetBAR1MemoryInfo")
    if not is_fault(whole):
        gpu.in_use = whole.used > whole.total * UNEXPLAINED
    return {
        "memory": {
            "total_mib": whole if is_fault(whole) else whole.total // MIB,
            "used_mib": whole if is_fault(whole) else whole.used // MIB,
            "bar1_mib": bar1 if is_fault(bar1) else bar1.bar1Total // MIB,
        }
    }


def pcie(gpu: NvmlGpu) -> Json:
    def ask(name: str) -> Any:
        return gpu.ask(f"nvmlDeviceGet{name}")

    return {
        "pcie": {
            "gen": {
                "current": ask("CurrPcieLinkGeneration"),
                "max": ask("MaxPcieLinkGeneration"),
                "device_max": ask("GpuMaxPcieLinkGeneration"),
            },
            "width": {"current": ask("CurrPcieLinkWidth"), "max": ask("MaxPcieLinkWidth")},
            "replay": ask("PcieReplayCounter"),
        }
    }


def load(gpu: NvmlGpu) -> Json:
    state, rates = (
        gpu.ask("nvmlDeviceGetPerformanceState"),
        gpu.ask("nvmlDeviceGetUtilizationRates"),
    )
    if not is_fault(state) and state >= 16:  # P0 to P15; 32 is NVML's own unknown
        state = unknown("performance state", state)
    if not is_fault(rates):
        gpu.in_use = gpu.in_use or rates.gpu > BUSY
        rates = {"gpu": rates.gpu, "memory": rates.memory}
    return {"pstate": state, "utilization": rates}


def ecc(gpu: NvmlGpu) -> Json:
    mode = gpu.ask("nvmlDeviceGetEccMode")
    if is_fault(mode) and mode["rc"] in ABSENT:
        return {"ecc": mode}

    def errors(counter: int) -> Json:
        return {
            name: gpu.ask("nvmlDeviceGetTotalEccErrors", kind, counter)
            for name, kind in (("corrected", 0), ("uncorrected", 1))
        }

    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    sram = gpu.ask("nvmlDeviceGetSramEccErrorStatus", byref(status))
    if not is_fault(sram):
        sram = {
            "threshold_exceeded": bool(status.bThresholdExceeded),
            "corrected": status.aggregateCor,
            "parity": status.aggregateUncParity,
            "secded": status.aggregateUncSecDed,
        }
    device = nvml.NVML_MEMORY_LOCATION_DEVICE_MEMORY
    return {
        "ecc": {
            "current": mode if is_fault(mode) else bool(mode[0]),
            "pending": mode if is_fault(mode) else bool(mode[1]),
            "volatile": errors(0),
            "aggregate": errors(1),
            "sram": sram,
            "dram": {
                "volatile_uncorrected": gpu.ask("nvmlDeviceGetMemoryErrorCounter", 1, 0, device),
                "aggregate_uncorrected": gpu.ask("nvmlDeviceGetMemoryErrorCounter", 1, 1, device),
            },
        }
    }


def repairs(gpu: NvmlGpu) -> Json:
    rows = gpu.ask("nvmlDeviceGetRemappedRows")
    if not is_fault(rows):
        banks = gpu.ask("nvmlDeviceGetRowRemapperHistogram")
        if not is_fault(banks):
            banks = {
                name: getattr(banks, name) for name in ("max", "high", "partial", "low", "none")
            }
        rows = {
            "correctable": rows[0],
            "uncorrectable": rows[1],
            "pending": bool(rows[2]),
            "failure": bool(rows[3]),
            "histogram": banks,
        }
    pending = gpu.flag("nvmlDeviceGetRetiredPagesPendingStatus")
    pages = pending
    if not (is_fault(pending) and pending["rc"] in ABSENT):
        pages = {"pending": pending}
        for name, cause in (("single_bit", 0), ("double_bit", 1)):
            addresses = gpu.ask("nvmlDeviceGetRetiredPages", cause)
            pages[name] = addresses if is_fault(addresses) else len(addresses)
    repair = gpu.ask("nvmlDeviceGetRepairStatus")
    if not is_fault(repair):
        repair = {"channel_pending": bool(repair[0]), "tpc_pending": bool(repair[1])}
    return {
        "remapped_rows": rows,
        "retired_pages": pages,
        "repair": repair,
        "unrepairable_memory": gpu.flag("nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    }


def power(gpu: NvmlGpu) -> Json:
    limits = gpu.ask("nvmlDeviceGetPowerManagementLimitConstraints")
    return {
        "power": {
            "limit_w": gpu.watts("nvmlDeviceGetPowerManagementLimit"),
            "enforced_w": gpu.watts("nvmlDeviceGetEnforcedPowerLimit"),
            "default_w": gpu.watts("nvmlDeviceGetPowerManagementDefaultLimit"),
            "min_w": limits if is_fault(limits) else watts(limits[0]),
            "max_w": limits if is_fault(limits) else watts(limits[1]),
            "draw_w": gpu.watts("nvmlDeviceGetPowerUsage"),
        }
    }


def clocks(gpu: NvmlGpu) -> Json:
    kinds = (("graphics_mhz", 0), ("sm_mhz", 1), ("memory_mhz", 2))
    calls = (
        ("current", "ClockInfo"),
        ("max", "MaxClockInfo"),
        ("application", "ApplicationsClock"),
    )
    return {
        "clocks": {
            name: {key: gpu.ask(f"nvmlDeviceGet{call}", kind) for key, kind in kinds}
            for name, call in calls
        }
    }


def throttle(gpu: NvmlGpu) -> Json:
    mask = gpu.either(
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    )
    counters: Json = {}
    for name, policy in POLICIES.items():
        violation = gpu.ask("nvmlDeviceGetViolationStatus", policy)
        counters[name] = violation if is_fault(violation) else violation.violationTime
    counters.update({name: gpu.fields[field] for name, field in POLICY_FIELDS.items()})
    return {
        "throttle": {
            "mask": mask,
            "active": mask if is_fault(mask) else bits(mask),
            "violation_ns": counters,
        }
    }


def temperature(gpu: NvmlGpu) -> Json:
    return {
        "temperature": {
            "gpu_c": gpu.either(("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), 0),
            "memory_c": gpu.fields[MEMORY_TEMPERATURE],
            "margin_c": gpu.ask("nvmlDeviceGetMarginTemperature"),
            "slowdown_c": gpu.ask(
                "nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            "shutdown_c": gpu.ask(
                "nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
            ),
        }
    }


def mig(gpu: NvmlGpu) -> Json:
    mode = gpu.ask("nvmlDeviceGetMigMode")
    if is_fault(mode):
        return {"mig": mode}
    there: Any = []
    if mode[0]:
        try:
            there = settings.mig(gpu.handle)["instances"]
        except nvml.NVMLError as problem:
            there = gpu.fault(problem.value)
    return {"mig": {"current": bool(mode[0]), "pending": bool(mode[1]), "instances": there}}


def nvlink(gpu: NvmlGpu) -> Json:
    """Return the NVLinks. Their count comes from an NVML field; older drivers are probed link by link."""
    count = gpu.fields[LINK_COUNT]
    if is_fault(count) and count["rc"] not in ABSENT:
        return {"nvlink": count}
    links: List[Json] = []
    # Answers for a link that the GPU does not have.
    end = (*ABSENT, nvml.NVML_ERROR_INVALID_ARGUMENT)
    for link in range(nvml.NVML_NVLINK_MAX_LINKS if is_fault(count) else count):
        state = gpu.flag("nvmlDeviceGetNvLinkState", link)
        if is_fault(count) and is_fault(state) and state["rc"] in end:
            break
        links.append({"link": link, "active": state})
    if not links:
        return {"nvlink": count if is_fault(count) else {"links": []}}
    values = gpu.batch([(field, row["link"]) for row in links for field in LINK_FIELDS.values()])
    for place, row in enumerate(links):
        row["version"] = gpu.ask("nvmlDeviceGetNvLinkVersion", row["link"])
        row["errors"] = dict(zip(LINK_FIELDS, values[3 * place : 3 * place + 3]))
        # Before Hopper they are no fields.
        if any(is_fault(value) and value["rc"] in ABSENT for value in row["errors"].values()):
            row["errors"] = {
                name: gpu.ask("nvmlDeviceGetNvLinkErrorCounter", row["link"], counter)
                for name, counter in LINK_COUNTERS.items()
            }
    return {"nvlink": {"links": links}}


def fabric(gpu: NvmlGpu) -> Json:
    reported: Any = None
    for name, kind in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        answer = getattr(nvml, kind)()
        reported = gpu.ask(name, byref(answer))
        if not is_fault(reported):
            break
        if reported["rc"] not in (
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        ):
            return {"fabric": reported}
    if is_fault(reported):
        return {"fabric": reported}
    state = dict(enumerate(FABRIC_STATES)).get(answer.state)
    result: Json = {"state": state or unknown("fabric state", answer.state)}
    if state == "not_supported":
        return {"fabric": result}
    cluster, status = bytes(answer.clusterUuid).hex(), "Success"
    if answer.status != nvml.NVML_SUCCESS:
        status = str(nvml.NVMLError(answer.status))
    result.update(
        status=status,
        clique=answer.cliqueId,
        cluster="-".join(
            (cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])
        ),
    )
    if hasattr(answer, "healthMask"):
        mask = answer.healthMask
        health = {
            name: ("true", "false")[(mask >> bit & 3) - 1]
            for name, bit in FABRIC_HEALTH.items()
            if mask >> bit & 3 in (1, 2)
        }
        configuration = mask >> 8 & 15
        if configuration:
            health["configuration"] = (
                dict(enumerate(FABRIC_CONFIGURATION)).get(configuration)
                or f"incorrect_{configuration}"
            )
        summary = getattr(answer, "healthSummary", 0)
        if summary:
            health["summary"] = dict(enumerate(FABRIC_SUMMARY)).get(summary) or f"unknown_{summary}"
        result["health"] = health
    return {"fabric": result}


# Use without a process is examined from here on: share of the memory (a driver's own part is smaller), per cent of use.
UNEXPLAINED, BUSY = 0.05, 50
OTHERS = ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
# The driver gives the memory of a process that ends back some time after it is gone: seconds for all GPUs together.
PATIENCE = 3.0
_patience: List[float] = []


def processes(gpu: NvmlGpu) -> Json:
    listed = _listed(gpu)
    while not is_fault(listed) and any("state" in row for row in listed):
        if not _patience:
            _patience.append(monotonic() + PATIENCE)
        if monotonic() > _patience[0]:
            break
        sleep(0.2)
        listed = _listed(gpu)
    if listed or not gpu.in_use:
        return {"processes": listed}
    others = [gpu.ask(name) for name in OTHERS]
    read = [len(rows) for rows in others if not is_fault(rows)]
    return {"processes": listed, "other_processes": sum(read) if read else others[0]}


def _listed(gpu: NvmlGpu) -> Any:
    """Return the processes that compute, each with its `state` if it has ended."""
    rows = gpu.either(settings.PROCESSES)
    if is_fault(rows):
        return rows
    listed = []
    for row in rows:
        used: Any = fault(3, "the driver does not report it")
        if row.usedGpuMemory is not None:
            used = row.usedGpuMemory // MIB
        state = ended(row.pid)
        listed.append({"pid": row.pid, "memory_mib": used, **({"state": state} if state else {})})
    return listed


def ended(pid: int) -> Optional[str]:
    """Return "gone" or "zombie" for a process that has ended; None for one that lives, or of which nothing is known."""
    try:
        os.kill(pid, 0)  # works where /proc hides the processes of others
        with open(f"/proc/{pid}/stat", "rb") as opened:
            state = opened.read().rpartition(b") ")[2][:1]
        # Where only the main thread has ended, the process lives.
        return (
            "zombie" if state in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) < 2 else None
        )
    except ProcessLookupError:
        return "gone"
    except (OSError, OverflowError):
        return None


def inforom(gpu: NvmlGpu) -> Json:
    """Read the InfoROM image, and whether its checksums are right."""
    valid = gpu.ask("nvmlDeviceValidateInforom")
    if valid is None:  # the call returns nothing but its code
        valid = True
    elif valid["rc"] == nvml.NVML_ERROR_CORRUPTED_INFOROM:
        valid = False
    return {"inforom": {"image": gpu.ask("nvmlDeviceGetInforomImageVersion"), "valid": valid}}


def parts(with_settings: bool) -> List[Tuple[str, Callable[[NvmlGpu], Json]]]:
    """Return name and reader of each part in reading order. The GPU's identity and its driver's verdict come first."""
    readers: List[Tuple[str, Callable[[NvmlGpu], Json]]] = [
        ("identity", identity),
        ("recovery_action", recovery),
        ("modes", modes),
        ("memory", memory),
        ("pcie", pcie),
        ("load", load),
        ("ecc", ecc),
        ("repairs", repairs),
        ("power", power),
        ("clocks", clocks),
        ("throttle", throttle),
        ("temperature", temperature),
        ("mig", mig),
        ("nvlink", nvlink),
        ("fabric", fabric),
        ("processes", processes),
        ("inforom", inforom),
    ]
    if with_settings:
        readers.append(("settings", lambda gpu: {"settings": settings.of(gpu.handle)}))
    return readers


# -- lines


def stream(to: int, with_settings: bool) -> None:
    """Write the lines of a capture to a file descriptor (the package's documentation has them). Returns when all was said."""

    def say(line: Json) -> None:
        data = json.dumps(line).encode() + b"\n"
        while data:
            data = data[os.write(to, data) :]

    head: Json = {"schema": SCHEMA, "vendor": "nvidia"}
    began = monotonic()
    try:
        nvml.nvmlInit()
        ready = monotonic()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as problem:
        say({**head, "error": str(problem), "rc": problem.value})
        return
    cuda = settings.get(nvml.nvmlSystemGetCudaDriverVersion)
    if settings.is_fault(cuda):
        cuda = fault(cuda["rc"])
    else:
        cuda = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else unknown("CUDA", 0)
    say(
        {
            **head,
            "driver": _system(nvml.nvmlSystemGetDriverVersion),
            "nvml": _system(nvml.nvmlSystemGetNVMLVersion),
            "cuda": cuda,
            "count": count,
        }
    )
    for index in range(count):
        _one(index, parts(with_settings), say)
    used, own = os.times(), _rss()
    say(
        {
            "done": True,
            "cpu_ms": round((used.user + used.system) * 1000),
            "rss_kib": own,
            "init_ms": round((ready - began) * 1000),
        }
    )


def _one(
    index: int, wanted: List[Tuple[str, Callable[[NvmlGpu], Json]]], say: Callable[[Json], None]
) -> None:
    """Read every part of one GPU. If the GPU cannot be reached, each part has the same fault."""
    say({"i": index, "next": "handle", "set": {}})
    try:
        gpu = NvmlGpu(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as problem:
        lost = {"lost": problem.value in LOST, "error": fault(problem.value)}
        say({"i": index, "next": None, "set": lost})
        return
    names = [name for name, _ in wanted]
    for place, (name, read) in enumerate(wanted):
        try:
            values = read(gpu)
        # One part that this version cannot read must not cost the others.
        except Exception as problem:
            values = {name: {"fault": "unread", "text": f"{type(problem).__name__}: {problem}"}}
        if gpu.lost:  # it would say the same to each further question, and each may take its time
            say({"i": index, "next": None, "set": {**values, "lost": True, "error": gpu.why}})
            return
        if place == len(wanted) - 1:
            values["lost"] = False
        say({"i": index, "next": (*names[place + 1 :], None)[0], "set": values})


def _system(function: Callable[[], Any]) -> Any:
    value = settings.get(function)
    if settings.is_fault(value):
        return fault(value["rc"])
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _rss() -> int:
    """Return the highest resident size of this process in KiB, or 0 without /proc, as in a bare chroot.

    getrusage(2) would count the process that this one was started from.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as opened:
            return next((int(line.split()[1]) for line in opened if line.startswith("VmHWM")), 0)
    except OSError:
        return 0
