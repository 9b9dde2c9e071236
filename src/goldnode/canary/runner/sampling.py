"""Clocks, temperature, power and throttle reasons of GPUs, read from NVML around and during samples."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set, Tuple

from .records import Conditions, unread

# Reasons that come from outside the node. nvml.h: the hardware power brake is asserted by the
# system's power supply. Heat and power limits of the board itself belong to the node: they may be
# the fault that a canary has to find.
OUTSIDE = frozenset({"hw_power_brake_slowdown"})
SM_CLOCK, GPU_SENSOR = 1, 0  # nvml.h: NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


class Watch:
    """Reader of the GPUs' state. Without NVML, everything stays unread."""

    def __init__(self) -> None:
        self.why = ""
        self.reasons: Set[str] = set()  # every reason that was seen, those of the node included
        self._ranges: Dict[Tuple[str, str], List[float]] = {}
        self._outside: Dict[str, Optional[Set[str]]] = {}
        self._handles: Dict[str, Any] = {}
        self._collect: Any = None
        try:
            # Here and not above: a node without NVML or its binding has no conditions, and still
            # has samples.
            from goldnode.node.device import collect

            collect.nvml.nvmlInit()
            self._collect = collect
        except Exception as problem:  # any failure of NVML must not take the samples down
            self.why = f"NVML cannot be used: {problem}"

    def read(self, address: Optional[str]) -> None:
        """Read one GPU by its PCI address and widen its ranges."""
        if self._collect is None or not address:
            return
        gpu = self._gpu(address)
        if gpu is None:
            return
        self._widen(address, "sm_mhz", gpu.ask("nvmlDeviceGetClockInfo", SM_CLOCK))
        self._widen(address, "temperature_c", gpu.ask("nvmlDeviceGetTemperature", GPU_SENSOR))
        self._widen(address, "power_w", gpu.watts("nvmlDeviceGetPowerUsage"))
        mask = gpu.either(REASONS)
        if isinstance(mask, int):
            names = set(self._collect.bits(mask))
            self.reasons |= names
            reasons = self._outside.setdefault(address, set())
            if reasons is not None:
                reasons |= names & OUTSIDE

    def take(self, address: Optional[str]) -> Conditions:
        """Return what was read since the last call, and begin again."""
        conditions = unread()
        if address:
            conditions["sm_mhz"] = self._ranges.pop((address, "sm_mhz"), None)
            conditions["temperature_c"] = self._ranges.pop((address, "temperature_c"), None)
            conditions["power_w"] = self._ranges.pop((address, "power_w"), None)
            outside = self._outside.pop(address, None)
            conditions["throttled"] = None if outside is None else sorted(outside)
        return conditions

    def facts(self) -> Dict[str, Any]:
        """Return all clock reasons that were seen, or why there are none."""
        return {
            "clock_reasons": self.why or ", ".join(sorted(self.reasons - {"gpu_idle"})) or "none"
        }

    def _gpu(self, address: str) -> Any:
        if address not in self._handles:
            collect = self._collect
            try:
                handle = collect.nvml.nvmlDeviceGetHandleByPciBusId(address.encode())
                self._handles[address] = collect.NvmlGpu(handle)
            except collect.nvml.NVMLError as problem:
                self.why = f"NVML does not find {address}: {problem}"
                self._handles[address] = None
        return self._handles[address]

    def _widen(self, address: str, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return  # a fault of NVML
        least, greatest = self._ranges.get((address, name), [float(value), float(value)])
        self._ranges[address, name] = [min(least, float(value)), max(greatest, float(value))]
