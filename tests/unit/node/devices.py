"""GPUs as they are read from a node that is what its class says; a case spoils one field of them."""

from __future__ import annotations

from typing import Any

from goldnode.node.state.domains import policy

# Limits and clocks of the board that the cases are about, as its NVML tells them; nothing outside the cases goes by them.
POWER = {"default": 400, "min": 100, "max": 400}
SUPPORTED = {"1215": [[210, 1410, 15]]}
PROFILES = ["1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]


def uuid(index: int) -> str:
    """The UUID of GPU `index` of the cases."""
    return f"GPU-0000000{index}-0000-0000-0000-000000000000"


def board(index: int) -> dict[str, Any]:
    """An A100 as the driver leaves it after a boot."""
    return {
        "uuid": uuid(index),
        "address": f"0000:0{index + 1}:00.0",
        "pci_id": "10de:20b0",
        "name": "NVIDIA A100-SXM4-40GB",
        "persistence_mode": False,
        "power": {"limit": 400, **POWER},
        "clocks": {
            "application": {"graphics": 1095, "memory": 1215},
            "max": {"graphics": 1410, "memory": 1215},
            "supported": SUPPORTED,
        },
        "ecc": {"current": True, "pending": True},
        "compute_mode": "default",
        "mig": {"current": False, "pending": False, "instances": [], "profiles": PROFILES},
        "processes": [],
    }


def amd_board(index: int) -> dict[str, Any]:
    """An MI300X as the driver leaves it after a boot."""
    return {
        "uuid": f"00aa{index}",
        "address": f"0000:0{index + 1}:00.0",
        "pci_id": "1002:74a1",
        "name": "AMD Instinct MI300X",
        "performance_level": "auto",
        "power": {"limit": 750, "default": 750, "min": 0, "max": 750},
        "processes": [],
    }


def as_declared(document: Any) -> dict[str, Any]:
    """`gpu_settings` of a node whose GPUs are set as the class says: {} where it says nothing."""
    if not policy.declares(document):
        return {}
    nvidia = document["gpu"]["vendor"] == "nvidia"
    found: dict[str, Any] = {
        "vendor": document["gpu"]["vendor"],
        "error": None,
        "gpus": {},
        "record": {},
    }
    for index in range(document["gpu"]["count"]):
        gpu = board(index) if nvidia else amd_board(index)
        for key, value in policy.effective(document, gpu).items():
            if key == "power_limit_watts":
                gpu["power"]["limit"] = value
            elif key == "ecc":
                gpu["ecc"] = {"current": value, "pending": value}
            elif key == "mig":
                on = value["enabled"]
                gpu["mig"].update(current=on, pending=on, instances=list(value.get("profiles", [])))
            elif key == "clocks":
                target = policy.clock_target(gpu, value)
                if target["mode"] == "application":
                    gpu["clocks"]["application"] = {
                        name: target[f"{name}_mhz"] for name in ("graphics", "memory")
                    }
                parts = {part: {"rc": 0, "text": "Success"} for part in target if part != "mode"}
                reported = {
                    "value": target,
                    "rc": 0,
                    "text": "Success",
                    "parts": parts,
                    "at": "2026-11-21T10:00:00Z",
                }
                found["record"].setdefault(gpu["uuid"], {})["clocks"] = reported
            else:
                gpu[key] = value
        found["gpus"][str(index)] = gpu
    if nvidia:
        found["persistenced"] = {
            "exec": "/usr/bin/nvidia-persistenced --user nvpd",
            "arguments": None,
        }
    if document["policy"].get("sharing") == "mps":
        found["mps"] = {"installed": True, "active": True}
    return found
