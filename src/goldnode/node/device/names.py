"""Names for NVML's numbers and nvidia-smi's words in a capture (docs/reference/capture.md). Imports nothing."""

from __future__ import annotations

# nvml.h, nvmlClocksEventReason*: the name of each bit from the lowest.
REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown",
    "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability",
)  # fmt: skip
# nvml.h, nvmlDeviceGpuRecoveryAction_t.
ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
)
# nvml.h, nvmlGpuFabricState_t.
FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")


def address(text: str) -> str:
    """Return a PCI address as sysfs writes it.

    NVML writes the domain with eight digits, sysfs with at least four.
    """
    domain, colon, rest = text.lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}" if len(domain) == 8 and colon else text.lower()
