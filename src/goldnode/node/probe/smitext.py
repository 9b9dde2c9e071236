"""Converter from the text of `nvidia-smi -q` to the element tree of `nvidia-smi -q -x`, which :mod:`.smi` reads.

The text is indented by sections: ``    ECC Mode`` and below it ``        Current  : Enabled``. Titles that the
table lacks are left out; an unknown title has no place in a capture. The order of the table is that of the
text. A section that has a value of its own ("Remapped Rows : N/A") is an element with that text.
"""

from __future__ import annotations

from ..ground.errors import NodeError
from . import smi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Tuple
    from xml.etree.ElementTree import Element

    from ..ground.host import Json

HEAD = "NVSMI LOG"
# Titles above the first GPU.
TOP = {
    "Timestamp": "timestamp",
    "Driver Version": "driver_version",
    "CUDA Version": "cuda_version",
    "KMD Version": "kmd_version",
    "CUDA UMD Version": "cuda_umd_version",
    "Attached GPUs": "attached_gpus",
}
_POWER = {
    "Power Draw": "power_draw",
    "Average Power Draw": "average_power_draw",
    "Instantaneous Power Draw": "instant_power_draw",
    "Current Power Limit": "current_power_limit",
    "Requested Power Limit": "requested_power_limit",
    "Power Limit": "power_limit",
    "Enforced Power Limit": "enforced_power_limit",
    "Default Power Limit": "default_power_limit",
    "Min Power Limit": "min_power_limit",
    "Max Power Limit": "max_power_limit",
}
_CLOCKS = {
    "Graphics": "graphics_clock",
    "SM": "sm_clock",
    "Memory": "mem_clock",
    "Video": "video_clock",
}
_COUNTS = {
    "SRAM Correctable": "sram_correctable",
    "SRAM Uncorrectable": "sram_uncorrectable",
    "SRAM Uncorrectable Parity": "sram_uncorrectable_parity",
    "SRAM Uncorrectable SEC-DED": "sram_uncorrectable_secded",
    "DRAM Correctable": "dram_correctable",
    "DRAM Uncorrectable": "dram_uncorrectable",
    "SRAM Threshold Exceeded": "sram_threshold_exceeded",
}
_REASONS = {
    "Idle": "gpu_idle",
    "Applications Clocks Setting": "applications_clocks_setting",
    "SW Power Cap": "sw_power_cap",
    "HW Slowdown": "hw_slowdown",
    "HW Slowdown/HW Thermal Slowdown": "hw_thermal_slowdown",
    "HW Slowdown/HW Power Brake Slowdown": "hw_power_brake_slowdown",
    "HW Slowdown/HW Power Braking": "hw_power_brake_slowdown",
    "Sync Boost": "sync_boost",
    "SW Thermal Slowdown": "sw_thermal_slowdown",
    "Display Clock Setting": "display_clocks_setting",
}
_TIMES = {
    "SW Power Capping": "sw_power_cap",
    "Sync Boost": "sync_boost",
    "SW Thermal Slowdown": "sw_therm_slowdown",
    "HW Thermal Slowdown": "hw_therm_slowdown",
    "HW Power Braking": "hw_power_brake",
}
_BANKS = {"Max": "max", "High": "high", "Partial": "partial", "Low": "low", "None": "none"}
_GROUPS = {"Single Bit": "single_bit", "Double Bit": "double_bit"}
# Path of titles below a GPU -> path of elements.
PATHS: Dict[str, str] = {
    "Product Name": "product_name",
    "Product Architecture": "product_architecture",
    "Persistence Mode": "persistence_mode",
    "MIG Mode/Current": "mig_mode/current_mig",
    "MIG Mode/Pending": "mig_mode/pending_mig",
    "Serial Number": "serial",
    "GPU UUID": "uuid",
    "Minor Number": "minor_number",
    "MultiGPU Board": "multigpu_board",
    "VBIOS Version": "vbios_version",
    "Board Part Number": "board_part_number",
    "Inforom Version/Image Version": "inforom_version/img_version",
    "GPU Reset Status/Reset Required": "gpu_reset_status/reset_required",
    "GPU Reset Status/Drain and Reset Recommended": "gpu_reset_status/drain_and_reset_recommended",
    "GPU Recovery Action": "gpu_recovery_action",
    "GSP Firmware Version": "gsp_firmware_version",
    "PCI/Device Id": "pci/pci_device_id",
    "PCI/Bus Id": "pci/pci_bus_id",
    "PCI/Sub System Id": "pci/pci_sub_system_id",
    "PCI/GPU Link Info/PCIe Generation/Max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "PCI/GPU Link Info/PCIe Generation/Current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "PCI/GPU Link Info/PCIe Generation/Device Current": "pci/pci_gpu_link_info/pcie_gen/device_current_link_gen",
    "PCI/GPU Link Info/PCIe Generation/Device Max": "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",
    "PCI/GPU Link Info/Link Width/Max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "PCI/GPU Link Info/Link Width/Current": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "PCI/Replays Since Reset": "pci/replay_counter",
    "Performance State": "performance_state",
    "FB Memory Usage/Total": "fb_memory_usage/total",
    "FB Memory Usage/Used": "fb_memory_usage/used",
    "BAR1 Memory Usage/Total": "bar1_memory_usage/total",
    "Compute Mode": "compute_mode",
    "Utilization/Gpu": "utilization/gpu_util",
    "Utilization/GPU": "utilization/gpu_util",
    "Utilization/Memory": "utilization/memory_util",
    "Ecc Mode/Current": "ecc_mode/current_ecc",
    "Ecc Mode/Pending": "ecc_mode/pending_ecc",
    "ECC Mode/Current": "ecc_mode/current_ecc",
    "ECC Mode/Pending": "ecc_mode/pending_ecc",
    "ECC Errors/Channel Repair Pending": "ecc_errors/channel_repair_pending",
    "ECC Errors/TPC Repair Pending": "ecc_errors/tpc_repair_pending",
    "ECC Errors/Unrepairable Memory": "ecc_errors/unrepairable_memory",
    "Retired Pages/Single Bit ECC": "retired_pages/multiple_single_bit_retirement/retired_count",
    "Retired Pages/Double Bit ECC": "retired_pages/double_bit_retirement/retired_count",
    "Retired Pages/Pending Page Blacklist": "retired_pages/pending_blacklist",
    "Retired Pages/Pending": "retired_pages/pending_retirement",
    "Remapped Rows": "remapped_rows",
    "Remapped Rows/Correctable Error": "remapped_rows/remapped_row_corr",
    "Remapped Rows/Uncorrectable Error": "remapped_rows/remapped_row_unc",
    "Remapped Rows/Pending": "remapped_rows/remapped_row_pending",
    "Remapped Rows/Remapping Failure Occurred": "remapped_rows/remapped_row_failure",
    "Temperature/GPU Current Temp": "temperature/gpu_temp",
    "Temperature/GPU T.Limit Temp": "temperature/gpu_temp_tlimit",
    "Temperature/GPU Shutdown Temp": "temperature/gpu_temp_max_threshold",
    "Temperature/GPU Slowdown Temp": "temperature/gpu_temp_slow_threshold",
    "Temperature/GPU Max Operating Temp": "temperature/gpu_temp_max_gpu_threshold",
    "Temperature/Memory Current Temp": "temperature/memory_temp",
    "Temperature/Memory Max Operating Temp": "temperature/gpu_temp_max_mem_threshold",
    "Processes": "processes",
    "Fabric/State": "fabric/state",
    "Fabric/Status": "fabric/status",
    "Fabric/CliqueId": "fabric/cliqueId",
    "Fabric/ClusterUUID": "fabric/clusterUuid",
    "Fabric/Health/Summary": "fabric/health/summary",
    "Fabric/Health/Bandwidth": "fabric/health/bandwidth",
    "Fabric/Health/Route Recovery in progress": "fabric/health/route_recovery_in_progress",
    "Fabric/Health/Route Unhealthy": "fabric/health/route_unhealthy",
    "Fabric/Health/Access Timeout Recovery": "fabric/health/access_timeout_recovery",
    "Fabric/Health/Incorrect Configuration": "fabric/health/incorrect_configuration",
    **{f"GPU Power Readings/{title}": f"gpu_power_readings/{tag}" for title, tag in _POWER.items()},
    **{f"Power Readings/{title}": f"power_readings/{tag}" for title, tag in _POWER.items()},
    **{f"Clocks/{title}": f"clocks/{tag}" for title, tag in _CLOCKS.items()},
    **{f"Max Clocks/{title}": f"max_clocks/{tag}" for title, tag in _CLOCKS.items()},
    **{
        f"Applications Clocks/{title}": f"applications_clocks/{tag}"
        for title, tag in _CLOCKS.items()
    },
    **{
        f"Default Applications Clocks/{title}": f"default_applications_clocks/{tag}"
        for title, tag in _CLOCKS.items()
    },
    **{
        f"{heading}/{title}": f"{tag}s/{tag}_{name}"
        for heading, tag in (
            ("Clocks Event Reasons", "clocks_event_reason"),
            ("Clocks Throttle Reasons", "clocks_throttle_reason"),
        )
        for title, name in _REASONS.items()
    },
    **{
        f"Clocks Event Reasons Counters/{title}": f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}"
        for title, name in _TIMES.items()
    },
    **{
        f"Remapped Rows/Bank Remap Availability Histogram/{title}": f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}"
        for title, name in _BANKS.items()
    },
    **{
        f"ECC Errors/{heading}/{title}": f"ecc_errors/{heading.lower()}/{tag}"
        for heading in ("Volatile", "Aggregate")
        for title, tag in _COUNTS.items()
    },
    **{
        f"ECC Errors/{heading}/{title}/{what}": f"ecc_errors/{heading.lower()}/{tag}/{name}"
        for heading in ("Volatile", "Aggregate")
        for title, tag in _GROUPS.items()
        for what, name in (("Total", "total"), ("Device Memory", "device_memory"))
    },
}


def parse(data: bytes, name: str) -> Json:
    """Return the capture of the text. Raises NodeError for a text without a GPU, and for one with several logs."""
    from xml.etree import ElementTree

    root = ElementTree.Element("nvidia_smi_log")
    gpu = None
    above: List[Tuple[int, str]] = []
    logs = 0
    for line in data.decode("utf-8", "replace").splitlines():
        logs += HEAD in line
        text = line.strip()
        if not text or HEAD in line:
            continue
        depth = len(line) - len(line.lstrip())
        title, colon, value = text.partition(" : ")
        # A colon also ends the title of a section without a value.
        title = title.strip().rstrip(":").strip() if colon else text.rstrip(":").strip()
        if depth == 0 and text.startswith("GPU ") and not colon:
            gpu = ElementTree.SubElement(root, "gpu", {"id": text[4:].strip()})
            above = []
        elif gpu is None:
            if colon and title in TOP:
                ElementTree.SubElement(root, TOP[title]).text = value.strip()
        else:
            above = [row for row in above if row[0] < depth]
            path = "/".join([*(row[1] for row in above), title])
            above.append((depth, title))
            if colon and path in PATHS:
                _put(gpu, PATHS[path], value.strip())
    if gpu is None or logs > 1:
        what = "has more than one log" if logs > 1 else "names no GPU"
        raise NodeError(
            f"{name}: this text of nvidia-smi {what}. Give the whole output of one `nvidia-smi -q`, or better of "
            "`nvidia-smi -q -x`."
        )
    return {**smi.captured(root), "source": "nvidia-smi-text"}


def _put(gpu: Element, path: str, text: str) -> None:
    """Set the text at a path of elements, which are made."""
    from xml.etree import ElementTree

    place = gpu
    for tag in path.split("/"):
        child = place.find(tag)
        place = ElementTree.SubElement(place, tag) if child is None else child
    place.text = text
