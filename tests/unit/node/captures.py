"""Captures of a healthy node, and ways to spoil one: what the rules are tried on (docs/reference/capture.md is the schema).

The node is an eight-way H100 of class `class_document()`; every value is as the readers write it. :func:`spoiled` gives a copy in which one
place is another: ``spoiled(healthy(), "gpus.3.pcie.width.current", 8)``.
"""

from __future__ import annotations

import copy
from typing import Any

from goldnode.facts import health
from goldnode.node.probe.values import not_exposed, unread

Json = dict[str, Any]

BUSES = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")
BOOT = "5b8e2f1e-8f2a-4a44-9a52-000000000001"
MACHINE = "0123456789abcdef0123456789abcdef"
NO = not_exposed("Not Supported", 3)
LOST = unread("GPU is lost", 15)


def addresses(count: int = 8) -> list[str]:
    """The PCI addresses of the node's GPUs: eight to a domain."""
    return [f"{index // 8:04x}:{BUSES[index % 8]}:00.0" for index in range(count)]


def gpu(index: int = 0, address: str | None = None) -> Json:
    """One healthy H100, busy enough that nothing about it has to wait."""
    return {
        "index": index,
        "address": address or addresses(index + 1)[index],
        "pci_id": "10de:2330",
        "subsystem_id": "10de:16c1",
        "vendor": "nvidia",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
        "serial": f"16500000000{index:02d}",
        "board_part": "692-2G520-0200-000",
        "minor": index,
        "driver": "nvidia",
        "lost": False,
        "vbios": "96.00.5E.00.01",
        "gsp_firmware": "580.95.05",
        "architecture": "Hopper",
        "inforom": {"image": "G520.0200.00.05", "valid": True},
        "memory": {"total_mib": 81559, "used_mib": 1, "bar1_mib": 131072},
        "pcie": {
            "gen": {"current": 5, "max": 5, "device_max": 5},
            "width": {"current": 16, "max": 16},
            "replay": 0,
        },
        "pstate": 0,
        "utilization": {"gpu": 0, "memory": 0},
        "persistence_mode": True,
        "compute_mode": "default",
        "ecc": {
            "current": True,
            "pending": True,
            "volatile": {"corrected": 0, "uncorrected": 0},
            "aggregate": {"corrected": 0, "uncorrected": 0},
            "sram": {"threshold_exceeded": False, "corrected": 0, "parity": 0, "secded": 0},
            "dram": {"volatile_uncorrected": 0, "aggregate_uncorrected": 0},
        },
        "remapped_rows": {
            "correctable": 0,
            "uncorrectable": 0,
            "pending": False,
            "failure": False,
            "histogram": {"max": 640, "high": 0, "partial": 0, "low": 0, "none": 0},
        },
        "retired_pages": NO,
        "repair": {"channel_pending": False, "tpc_pending": False},
        "unrepairable_memory": False,
        "recovery_action": "none",
        "power": {
            "limit_w": 700.0,
            "enforced_w": 700.0,
            "default_w": 700.0,
            "min_w": 200.0,
            "max_w": 700.0,
            "draw_w": 71.5,
        },
        "clocks": {
            "current": {"graphics_mhz": 345, "sm_mhz": 345, "memory_mhz": 2619},
            "max": {"graphics_mhz": 1980, "sm_mhz": 1980, "memory_mhz": 2619},
            "application": NO,
        },
        "throttle": {
            "mask": 1,
            "active": ["gpu_idle"],
            "violation_ns": {
                "power": 0,
                "thermal": 0,
                "reliability": 0,
                "board_limit": 0,
                "low_utilization": 0,
                "sync_boost": 0,
                "hw_slowdown": 0,
                "sw_thermal": 0,
                "hw_power_brake": 0,
            },
        },
        "temperature": {
            "gpu_c": 31,
            "memory_c": 40,
            "margin_c": 56,
            "slowdown_c": 92,
            "shutdown_c": 95,
        },
        "mig": {"current": False, "pending": False, "instances": []},
        "nvlink": {
            "links": [
                {
                    "link": link,
                    "active": True,
                    "version": 4,
                    "remote": "switch",
                    "errors": {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0},
                }
                for link in range(18)
            ]
        },
        "fabric": {
            "state": "completed",
            "status": "Success",
            "clique": 0,
            "cluster": "",
            "health": {},
        },
        "processes": [],
        "settings": {},
    }


def link(gen: int = 5, width: int = 16) -> Json:
    """A PCIe link at its full rate."""
    return {"gen": gen, "max_gen": gen, "width": width, "max_width": width}


def pci(count: int = 8) -> Json:
    """GPUs and an InfiniBand adapter each behind a port of their own."""
    found: Json = {}
    for index, address in enumerate(addresses(count)):
        domain, bus = address[:4], int(address[5:7], 16)
        port = f"{domain}:{bus - 1:02x}:01.0"
        aer = {"correctable": 0, "nonfatal": 0, "fatal": 0, "counters": {}}
        found[port] = {
            "pci_id": "8086:352a",
            "class": "0x060400",
            "driver": "pcieport",
            "kind": "port",
            "path": [],
            "root_bus": f"{domain}:{bus - 1:02x}",
            "link": link(),
            "aer": dict(aer),
            "numa_node": index * 2 // count,
        }
        found[address] = {
            "pci_id": "10de:2330",
            "class": "0x030200",
            "driver": "nvidia",
            "kind": "gpu",
            "path": [port, address],
            "root_bus": f"{domain}:{bus - 1:02x}",
            "link": link(),
            "aer": dict(aer),
            "numa_node": index * 2 // count,
            "power_state": "D0",
            "enabled": True,
            "iommu_group": "12",
            "bars": [16777216, 137438953472, 33554432],
            "limits": {
                "gen": 5,
                "width": 16,
                "gbps": 504.1,
                "at": address,
                "declared_by": "device",
            },
        }
    return found


def interrupts(cpus: Any, hints: Any = (), isolated: str = "") -> Json:
    """The interrupts of the adapter eth0, on node 0: each is set to one of these processors, with the driver's hint."""
    hints = [*hints, *[None] * 6]
    rows = {
        str(100 + at): {
            "cpus": str(cpu),
            "effective": str(cpu),
            "hint": f"{1 << hints[at]:024x}" if hints[at] is not None else "0",
        }
        for at, cpu in enumerate(cpus)
    }
    device = {"node": 0, "count": 63, "read": rows}
    return {"default": "f" * 24, "isolated": isolated, "devices": {"0000:41:00.0": device}}


def healthy(count: int = 8) -> Json:
    """The capture of a healthy node with `count` GPUs."""
    found = addresses(count)
    return {
        "schema": "goldnode.capture/1",
        "time": "2026-11-22T10:00:00Z",
        "uptime": 3600.0,
        "source": "live",
        "simulated": False,
        "identity": {
            "hostname": "node1",
            "machine_id": MACHINE,
            "boot_id": BOOT,
            "boot_identity": f"{BOOT}/10",
            "class": "h100",
            "class_digest": "sha256:0",
            "lock_digest": "sha256:1",
            "image_id": None,
            "product": {
                "vendor": "Example",
                "name": "Server",
                "board": "Board",
                "bios_version": "1.2",
                "bios_date": "01/01/2026",
                "serial": "S1",
            },
            "container": False,
            "virtual": "none",
        },
        "os": {
            "id": "debian",
            "version": "13",
            "kernel": {
                "running": "6.12.1-amd64",
                "next_boot": "6.12.1-amd64",
                "installed": ["6.12.1-amd64"],
                "cmdline": "ro quiet",
                "taint": 4096,
                "taint_flags": "O",
            },
            "secure_boot": False,
            "modules": ["nvidia", "nvidia_uvm", "nvidia_modeset"],
            "module_files": {
                "6.12.1-amd64": {
                    "nvidia": {"version": "580.95.05", "license": "Dual MIT/GPL", "signer": None}
                }
            },
        },
        "driver": {
            "vendor": "nvidia",
            "loaded": "580.95.05",
            "flavour": "open",
            "library": "580.95.05",
            "proc": "580.95.05",
            "reported": "580.95.05",
            "cuda": "13.0",
            "nvml": "13.580.95.05",
            "options": {},
        },
        "gpus": [gpu(index, address) for index, address in enumerate(found)],
        "gpu_error": None,
        "nvswitches": [
            {"address": f"0000:0{n}:00.0", "pci_id": "10de:22a3", "driver": "nvidia-nvswitch"}
            for n in (5, 6, 7, 8)
        ],
        "fabric_manager": {"installed": "580.95.05", "active": True},
        "devices": {
            **{f"/dev/nvidia{n}": "0666" for n in range(count)},
            "/dev/nvidiactl": "0666",
            "/dev/nvidia-uvm": "0666",
        },
        "pci": pci(count),
        "numa": {
            "nodes": {
                "0": {"cpus": "0-47", "memory_mib": 1031000, "distance": [10, 21]},
                "1": {"cpus": "48-95", "memory_mib": 1031000, "distance": [21, 10]},
            },
            "affinity": {
                address: {
                    "node": index * 2 // count,
                    "cpus": "0-47" if index * 2 < count else "48-95",
                }
                for index, address in enumerate(found)
            },
            "interrupts": interrupts(range(6)),
            "distances": {},
        },
        "events": {
            "sources": ["kmsg"],
            "truncated": False,
            "boot_id": BOOT,
            "last_seq": 4711,
            "rows": [],
            "error": None,
        },
        "cpu": {
            "architecture": "x86_64",
            "model": "Example CPU",
            "flags": ["avx2", "sse4_2"],
            "sockets": 2,
            "cores": 96,
            "threads": 96,
            "online": "0-95",
            "smt": False,
            "governors": {"performance": 96},
            "microcode": ["0x2b0005c0"],
        },
        "memory": {
            "total_mib": 2062000,
            "available_mib": 2000000,
            "swap_total_mib": 0,
            "swap_used_mib": 0,
            "hugepages": {"2048": {"total": 0, "free": 0}},
            "shm_mib": 1031000,
            "edac": {"mc0": {"ce": 0, "ue": 0}},
            "transparent_hugepages": "madvise",
            "numa_balancing": False,
        },
        "network": {
            "eth0": {
                "address": "0000:41:00.0",
                "driver": "mlx5_core",
                "mac": "b8:ce:f6:00:00:01",
                "mtu": 9000,
                "speed_mbps": 400000,
                "duplex": "full",
                "state": "up",
                "carrier_changes": 2,
                "firmware": "28.39.1002",
                "numa_node": 0,
                "counters": {
                    "rx_dropped": 10,
                    "rx_errors": 0,
                    "rx_missed_errors": 0,
                    "rx_crc_errors": 0,
                    "tx_dropped": 0,
                    "tx_errors": 0,
                    "rx_packets": 1000000,
                    "tx_packets": 1000000,
                },
            }
        },
        "infiniband": {
            "mlx5_0": {
                "address": "0000:42:00.0",
                "firmware": "28.39.1002",
                "board": "MT_0000000838",
                "guid": "b8cef60300000001",
                "ports": {
                    "1": {
                        "state": "active",
                        "physical": "linkup",
                        "rate_gbps": 400,
                        "layer": "infiniband",
                        "counters": {"link_downed": 0, "symbol_error": 0},
                        "hw_counters": {},
                    }
                },
            }
        },
        "storage": {
            "devices": {
                "nvme0n1": {
                    "model": "Example SSD",
                    "firmware": "GDC5",
                    "size_bytes": 3840755982336,
                    "rotational": False,
                    "scheduler": "none",
                    "address": "0000:c1:00.0",
                    "state": "live",
                    "ro": False,
                    "smart": {
                        "critical_warning": 0,
                        "percentage_used": 3,
                        "media_errors": 0,
                        "available_spare": 100,
                        "temperature_c": 35,
                    },
                }
            },
            "mounts": {
                "/": {
                    "device": "/dev/nvme0n1p2",
                    "type": "ext4",
                    "options": "rw,relatime",
                    "size_mib": 3000000,
                    "free_mib": 2000000,
                    "inodes_free_percent": 99.0,
                    "readonly": False,
                }
            },
            "paths": {},
            "raid": {},
        },
        "runtime": {
            "engine": "docker",
            "version": "26.1.5",
            "toolkit": "1.17.8",
            "active": True,
            "cdi": [
                {
                    "file": "/etc/cdi/nvidia.yaml",
                    "kind": "nvidia.com/gpu",
                    "devices": count,
                    "missing": [],
                }
            ],
        },
        "services": {
            "nvidia-persistenced.service": {
                "load": "loaded",
                "active": "active",
                "sub": "running",
                "result": "success",
                "restarts": 0,
                "since_us": 1000000,
            },
            "nvidia-fabricmanager.service": {
                "load": "loaded",
                "active": "active",
                "sub": "running",
                "result": "success",
                "restarts": 0,
                "since_us": 1000000,
            },
        },
        "packages": {"drift": [], "free": [], "total": 40},
        "pressure": {
            name: {"some_us": 1000000, "full_us": 500000, "some_avg10": 0.0, "full_avg10": 0.0}
            for name in ("io", "memory", "cpu")
        },
        "time_sync": {"synchronised": True, "clock": 1795341600.0},
        "blocked": [],
    }


def spoiled(capture: Json, *changes: Any) -> Json:
    """A copy in which places are other: pairs of a dotted path and a value. Numbers in a path count in lists; a `*` there means each of them.
    The slash separates where keys hold dots: ``pci/0000:18:00.0/link/width``."""
    found = copy.deepcopy(capture)
    for path, value in zip(changes[::2], changes[1::2], strict=True):
        _put(
            found,
            str(path).split(
                "/" if "/" in path.lstrip("/") and not path.startswith("gpus.") else "."
            ),
            value,
        )
    return found


def _put(place: Any, parts: list[str], value: Any) -> None:
    head, rest = parts[0], parts[1:]
    keys: list[Any]
    if isinstance(place, list):
        keys = list(range(len(place))) if head == "*" else [int(head)]
    elif head == "*":
        keys = list(place)
    else:
        keys = [head]
    for key in keys:
        if rest:
            if isinstance(place, dict) and not isinstance(place.get(key), (dict, list)):
                place[key] = {}
            _put(place[key], rest, value)
        else:
            place[key] = copy.deepcopy(value)


def idle(capture: Json) -> Json:
    """The same node at rest: links at generation 1, P8, as a GPU that saves power shows itself (trap H1)."""
    return spoiled(
        capture,
        "gpus.*.pcie.gen.current",
        1,
        "gpus.*.pstate",
        8,
        "gpus.*.utilization",
        {"gpu": 0, "memory": 0},
        "pci.*.link.gen",
        1,
    )


def class_document(**patch: Any) -> Any:
    """What of the class of that node the rules read. Keys of `patch` stand for whole sections."""
    document: Json = {
        "schema": "goldnode.class/1",
        "class": "h100",
        "digest": "sha256:0",
        "simulated": False,
        "gpu": {
            "vendor": "nvidia",
            "model": "H100-SXM5-80GB",
            "count": 8,
            "pci_ids": ["10de:2330"],
            "architecture": "Hopper",
        },
        "platform": {"name": "hgx_h100_8", "nvswitch": True},
        "driver": {
            "vendor": "nvidia",
            "version": "580.95.05",
            "flavour": "open",
            "module": "nvidia",
            "in_tree": False,
        },
        "policy": {},
        "baseline": {},
        "health": {
            "limits": {name: row.value for name, row in health.limits().items()},
            "gpu": {
                "pcie": {"gen": 5, "width": 16},
                "nvlinks": 18,
                "memory_mib": [81559],
                "ecc": True,
                "mig": True,
            },
        },
    }
    document.update(patch)
    return document
