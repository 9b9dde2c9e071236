"""Latency of NVML calls. `main` runs in a child process that can be killed.

pynvml comes from the node program's file. Each call is timed separately, on every GPU in turn,
until there are enough samples or its time is over.
"""

from __future__ import annotations

import json
import math
import os
import sys
from statistics import median
from time import perf_counter
from typing import Any, Callable, Dict, List, Sequence

# Limits per call.
SAMPLES, SECONDS = 200, 1.0

Json = Dict[str, Any]


def spread(values: Sequence[float]) -> Json:
    """Return count, minimum, median, 95th percentile (nearest rank) and maximum of the values."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}
    figures = {
        "min": ordered[0],
        "p50": median(ordered),
        "p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "max": ordered[-1],
    }
    return {"count": len(ordered), **{key: round(value, 3) for key, value in figures.items()}}


def calls(nvml: Any) -> Dict[str, Callable[[Any], Any]]:
    """Return the calls to time, by name: those that a check makes for each GPU."""
    # NVML renamed "throttle reasons" to "event reasons"; older bindings have only the former.
    events = getattr(
        nvml,
        "nvmlDeviceGetCurrentClocksEventReasons",
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
    )
    return {
        "name": nvml.nvmlDeviceGetName,
        "uuid": nvml.nvmlDeviceGetUUID,
        "PCI info": nvml.nvmlDeviceGetPciInfo,
        "persistence mode": nvml.nvmlDeviceGetPersistenceMode,
        "temperature": lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "SM clock": lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "memory clock": lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "power draw": nvml.nvmlDeviceGetPowerUsage,
        "power limit": nvml.nvmlDeviceGetPowerManagementLimit,
        "utilization": nvml.nvmlDeviceGetUtilizationRates,
        "memory": nvml.nvmlDeviceGetMemoryInfo,
        "clock event reasons": events,
        "ECC mode": nvml.nvmlDeviceGetEccMode,
        "uncorrected ECC errors": lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0),
        "remapped rows": nvml.nvmlDeviceGetRemappedRows,
        "PCIe generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
        "PCIe replays": nvml.nvmlDeviceGetPcieReplayCounter,
        "NVLink 0 state": lambda gpu: nvml.nvmlDeviceGetNvLinkState(gpu, 0),
        "processes": nvml.nvmlDeviceGetComputeRunningProcesses_v3,
    }


def measure(nvml: Any, samples: int, seconds: float) -> Json:
    """Time every call.

    Return {gpus, init_us, shutdown_us, calls: {name: {count, min, p50, p95, max} in µs, or {rc,
    text}}}.
    """
    began = perf_counter()
    nvml.nvmlInit()
    init = perf_counter() - began
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    timings: Json = {}
    for name, call in calls(nvml).items():
        taken: List[float] = []
        end = perf_counter() + seconds
        try:
            while handles and len(taken) < samples and perf_counter() < end:
                for handle in handles:
                    start = perf_counter()
                    call(handle)
                    taken.append(1e6 * (perf_counter() - start))
            timings[name] = spread(taken)
        except nvml.NVMLError as problem:
            timings[name] = {"rc": problem.value, "text": str(problem)}
    began = perf_counter()
    nvml.nvmlShutdown()
    return {
        "gpus": len(handles),
        "init_us": round(1e6 * init, 1),
        "shutdown_us": round(1e6 * (perf_counter() - began), 1),
        "calls": timings,
    }


def main() -> int:
    """Print the results as JSON. Arguments: samples and seconds per call."""
    to = os.dup(1)
    os.dup2(2, 1)  # keep output of libraries out of the answer
    import pynvml as nvml  # from the node program's file, which only this process has on its path

    samples, seconds = int(sys.argv[1]), float(sys.argv[2])
    try:
        timings = measure(nvml, samples, seconds)
    except nvml.NVMLError as problem:
        timings = {"error": str(problem), "rc": problem.value}
    os.write(to, json.dumps(timings).encode())
    os._exit(0)  # skip the shutdown: a library that hangs while unloading must not block the answer
