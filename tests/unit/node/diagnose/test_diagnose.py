"""diagnose: each bottleneck and each mismatch from two samples, hostile processes, and a real run on this machine."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.roots import context, make

from goldnode.node.diagnose import checks, command, compatible, running, sample
from goldnode.node.ground.host import Host
from goldnode.node.probe import gpus, logs
from goldnode.node.probe.values import not_exposed, unread
from goldnode.node.program import main as program

TABLE = {
    "families": {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"},
    "bundled": {"12.2": "535.54.03", "12.4": "550.54.14"},
}
XID = {
    "31": ["RESTART_APP", "none", "a program's fault"],
    "79": ["RESTART_BM", "drain", "the GPU fell off the bus"],
    "63": ["x", "degraded", "y"],
}
CLASS = {"gpu": {"vendor": "nvidia", "count": 2}, "xid": XID, "health": {"cuda": TABLE}}


def listed(*lines: str) -> list[dict[str, Any]]:
    """The rows of lines of a kernel log."""
    return logs.parse(f"[   12.{at}] {line}" for at, line in enumerate(lines))


def gpu(index: int, **values: Any) -> dict[str, Any]:
    """An H100 at work."""
    zero = dict.fromkeys(
        (
            "power",
            "thermal",
            "reliability",
            "board_limit",
            "low_utilization",
            "hw_slowdown",
            "sw_thermal",
            "hw_power_brake",
        ),
        0,
    )
    return {
        "index": index,
        "address": f"0000:{index + 1}8:00.0",
        "pci_id": "10de:2330",
        "vendor": "nvidia",
        "uuid": f"GPU-{index}aaa",
        "utilization": {"gpu": 70, "memory": 30},
        "power": {"limit_w": 700.0, "default_w": 700.0, "draw_w": 500.0},
        "clocks": {"current": {"sm_mhz": 1980}, "max": {"sm_mhz": 1980}},
        "throttle": {"active": [], "violation_ns": zero},
        "ecc": {
            "volatile": {"corrected": 0, "uncorrected": 0},
            "sram": {"threshold_exceeded": False},
        },
        "remapped_rows": {"pending": False, "failure": False},
        "recovery_action": "none",
        "pcie": {"replay": 5},
        "fabric": {"state": "completed"},
        "nvlink": {"links": [{"link": 0, "active": True, "errors": {"replay": 0, "crc_flit": 4}}]},
        "processes": [{"pid": 10, "memory_mib": 1}],
        **values,
    }


def healthy(uptime: float = 100.0) -> dict[str, Any]:
    """A sample of a node on which nothing is wrong."""
    step = int((uptime - 100) * 1e6)
    return {
        "schema": "goldnode.capture/1",
        "uptime": uptime,
        "identity": {"boot_id": "b"},
        "gpus": [gpu(0), gpu(1)],
        "gpu_error": None,
        "driver": {
            "vendor": "nvidia",
            "loaded": "535.261.03",
            "library": "535.261.03",
            "cuda": "12.2",
        },
        "devices": {"/dev/nvidia0": "0666", "/dev/nvidia1": "0666", "/dev/nvidiactl": "0666"},
        "pci": {
            f"0000:{n}8:00.0": {
                "kind": "gpu",
                "pci_id": "10de:2330",
                "aer": {"correctable": 3, "nonfatal": 0, "fatal": 0},
            }
            for n in (1, 2)
        },
        "pressure": {
            name: {"some_us": step // 100, "full_us": step // 200}
            for name in ("io", "memory", "cpu")
        },
        "cpu_time": {"iowait": step // 100000, "total": step // 100},
        "blocked": [],
        "network": {
            "eth0": {
                "state": "up",
                "carrier_changes": 2,
                "counters": {"rx_dropped": 100, "rx_errors": 0, "rx_packets": 10**6},
            }
        },
        "infiniband": {
            "mlx5_0": {
                "ports": {
                    "1": {
                        "state": "active",
                        "physical": "linkup",
                        "counters": {"link_downed": 1},
                        "hw_counters": {},
                    }
                }
            }
        },
        "events": {"rows": [], "error": None},
        "workloads": {"processes": [process()], "unseen": 0, "error": None},
    }


def process(**values: Any) -> dict[str, Any]:
    """A process that fits driver 535."""
    return {
        "pid": 10,
        "command": "python3",
        "libraries": [
            {
                "name": "cudart",
                "path": "/usr/local/cuda-12.2/lib64/libcudart.so.12.2.140",
                "version": "12.2.140",
                "deleted": False,
            },
            {
                "name": "cuda",
                "path": "/usr/lib/libcuda.so.535.261.03",
                "version": "535.261.03",
                "deleted": False,
            },
            {
                "name": "nccl",
                "path": "/usr/lib/libnccl.so.2.18.5",
                "version": "2.18.5",
                "deleted": False,
            },
        ],
        "torch": None,
        "environment": {},
        "missing": [],
        "interfaces": ["lo", "eth0"],
        "same_network": True,
        **values,
    }


def changed(sample: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a sample with one thing otherwise; `path` are keys and indexes with slashes."""
    found = copy.deepcopy(sample)
    at: Any = found
    *keys, last = path.split("|")
    for key in keys:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(last) if isinstance(at, list) else last] = value
    return found


def report(
    second: dict[str, Any], first: dict[str, Any] | None = None, document: Any = None
) -> Any:
    return checks.diagnose(
        first if first is not None else healthy(), second, CLASS if document is None else document
    )


def line(found: Any, name: str) -> Any:
    return next(row for row in found["lines"] if row["check"] == name)


def test_healthy_node_has_six_ok_lines_and_exit_0() -> None:
    got = report(healthy(101.0))
    assert [row["status"] for row in got["lines"]] == ["ok"] * 6
    assert (got["bottleneck"], got["exit_code"], got["seconds"]) == ("none", 0, 1.0)


# What is otherwise in the second sample, the line that tells it, a word of it, the bottleneck. Counters: what they grew in one second.
FAULTS = [
    ("gpus", [gpu(0)], "gpus", "2 declared", "compute"),
    ("gpus|1|lost", True, "gpus", "is lost", "compute"),
    ("pci|0000:28:00.0|gone", True, "gpus", "1 on the bus", "compute"),
    ("devices", {"/dev/nvidia0": "0666"}, "gpus", "1 in /dev", "compute"),
    (
        "gpu_error",
        unread("the GPU driver hangs: process 7 did not answer within 40 s and cannot be killed"),
        "gpus",
        "hangs",
        "compute",
    ),
    ("gpu_error", not_exposed("driver not loaded", 9), "gpus", "not loaded", "compute"),
    ("gpu_error", unread("mismatch", 18), "gpus", "different drivers", "mismatch"),
    ("driver|library", "535.247.01", "gpus", "535.247.01", "mismatch"),
    ("gpus|0|fabric", {"state": "in_progress"}, "gpus", "fabric", "communication"),
    ("gpus|0|recovery_action", "gpu_reset", "errors", "asks for gpu reset", "compute"),
    ("gpus|0|ecc|volatile|uncorrected", 1, "errors", "1 uncorrectable", "compute"),
    ("gpus|0|ecc|sram|threshold_exceeded", True, "errors", "caches", "compute"),
    ("gpus|0|remapped_rows|pending", True, "errors", "waits for a reset", "compute"),
    ("gpus|0|remapped_rows|failure", True, "errors", "replaced", "compute"),
    ("gpus|0|pcie|replay", 9, "errors", "4 PCIe replays", "compute"),
    ("pci|0000:18:00.0|aer|correctable", 13, "errors", "10 correctable", "compute"),
    ("pci|0000:18:00.0|aer|fatal", 1, "errors", "1 fatal", "compute"),
    (
        "events|rows",
        [{"kind": "xid", "code": 79, "address": "0000:18:00", "count": 2}],
        "errors",
        "Xid 79 on 0000:18:00 2 times",
        "compute",
    ),
    ("events|rows", [{"kind": "xid", "code": 63}], "errors", "Xid 63", "compute"),
    (
        "events|rows",
        listed("amdgpu 0000:0a:00.0: amdgpu: GPU reset(1) failed"),
        "errors",
        "could not reset the GPU on 0000:0a:00.0",
        "compute",
    ),
    (
        "events|rows",
        listed("block nvme0n1: no available path - failing I/O"),
        "errors",
        "no path to the disk is left on nvme0n1",
        "input",
    ),
    (
        "events|rows",
        listed("bnxt_en 0000:40:00.0 eno1: hwrm ring alloc failure rc: 5"),
        "errors",
        "could not start the adapter",
        "communication",
    ),
    (
        "events|rows",
        listed("nvidia-modeset: Version mismatch: nvidia.ko(410.73) nvidia-modeset.ko(390.87)"),
        "errors",
        "two modules of the driver",
        "mismatch",
    ),
    (
        "events|rows",
        [{"kind": "oops", "text": "Oops: 0000 [#1] SMP NOPTI"}],
        "errors",
        "had an oops",
        "compute",
    ),
    (
        "altered",
        [{"package": "libcuda1", "path": "/usr/lib/libcuda.so.535", "why": "is missing"}],
        "fit",
        "libcuda.so.535 of libcuda1 is missing",
        "mismatch",
    ),
    ("events|rows", [{"kind": "xid", "code": 4711}], "errors", "does not know", "compute"),
    (
        "events|rows",
        [{"kind": "sxid", "code": 20034, "fatal": True}],
        "errors",
        "SXid 20034 (fatal)",
        "communication",
    ),
    (
        "events|rows",
        [{"kind": "api_mismatch", "text": "NVRM: API mismatch"}],
        "errors",
        "different drivers",
        "mismatch",
    ),
    (
        "events|rows",
        [{"kind": "io_error", "text": "nvme0n1: I/O error"}],
        "errors",
        "disk",
        "input",
    ),
    ("gpus|0|throttle|violation_ns|thermal", 500_000_000, "load", "heat 50 %", "compute"),
    (
        "gpus|0|throttle|violation_ns|hw_power_brake",
        20_000_000,
        "load",
        "power brake of the machine 2.0 %",
        "compute",
    ),
    ("gpus|0|throttle|active", ["hw_thermal_slowdown"], "load", "slowed down now", "compute"),
    (
        "gpus|0",
        gpu(
            0,
            utilization={"gpu": 100},
            clocks={"current": {"sm_mhz": 600}, "max": {"sm_mhz": 1980}},
        ),
        "load",
        "600 of 1980",
        "compute",
    ),
    ("pressure|io|some_us", 450_000, "input", "storage 45 %", "input"),
    ("pressure|memory|full_us", 100_000, "input", "memory 10 %", "input"),
    ("pressure|cpu|some_us", 900_000, "input", "processor 90 %", "input"),
    (
        "network|eth0|counters|rx_dropped",
        5100,
        "network",
        "5000 packets a second received dropped",
        "communication",
    ),
    ("network|eth0|counters|rx_errors", 3, "network", "3 packets a second", "communication"),
    ("network|eth0|carrier_changes", 4, "network", "2 times", "communication"),
    (
        "infiniband|mlx5_0|ports|1|counters|link_downed",
        2,
        "network",
        "link_downed",
        "communication",
    ),
    ("infiniband|mlx5_0|ports|1|state", "init", "network", "subnet manager", "communication"),
    ("infiniband|mlx5_0", unread("no answer within 1.5 s"), "network", "firmware", "communication"),
    ("gpus|0|nvlink|links|0|errors|crc_flit", 9, "network", "5 crc flit", "communication"),
    ("gpus|0|nvlink|links|0|active", False, "network", "NVLink 0 went down", "communication"),
]


@pytest.mark.parametrize(
    ("path", "value", "check", "text", "bottleneck"),
    FAULTS,
    ids=[f"{row[0]}-{row[3]}" for row in FAULTS],
)
def test_each_fault_is_found_by_its_check(
    path: str, value: Any, check: str, text: str, bottleneck: str
) -> None:
    got = report(changed(healthy(101.0), path, value))
    row = line(got, check)
    assert row["status"] == "found"
    assert text in row["text"]
    assert row["next"]
    assert (got["bottleneck"], got["exit_code"]) == (bottleneck, 1)
    assert {other["check"] for other in got["lines"] if other["status"] != "ok"} <= {
        check,
        "errors",
    }


def test_a_power_cap_below_the_default_is_reported_unless_the_class_wants_it() -> None:
    capped = gpu(0, power={"limit_w": 500.0, "default_w": 700.0, "draw_w": 499.0})
    capped["throttle"] = {"active": ["sw_power_cap"], "violation_ns": {"power": 900_000_000}}
    second = changed(healthy(101.0), "gpus|0", capped)
    first = changed(healthy(), "gpus|0|throttle|violation_ns|power", 0)
    got = report(second, first)
    assert "held at 500 W of 700 W 90 % of the time" in line(got, "load")["text"]
    assert (
        report(second, first, {**CLASS, "policy": {"gpu": {"power_limit_w": 500}}})["exit_code"]
        == 0
    )
    usual = changed(healthy(101.0), "gpus|0|throttle|violation_ns|power", 900_000_000)
    assert report(usual)["exit_code"] == 0, "a GPU at its own limit is at work"


# -- blocked tasks


def test_a_task_blocked_in_both_samples_has_its_name_reported() -> None:
    task = {"pid": 7, "command": "dataloader\x1b[2J", "wait": "nfs_wait"}
    first, second = healthy(), healthy(101.0)
    second["blocked"] = [task]
    assert report(second, first)["exit_code"] == 0, "it may just have begun to wait"
    first["blocked"] = [dict(task)]
    got = report(second, first)
    assert "dataloader?[2J (pid 7, nfs_wait)" in line(got, "input")["text"]
    assert (got["bottleneck"], got["next"]) == ("input", "cat /proc/7/stack; dmesg | tail -50")
    second["blocked"][0]["wait"] = first["blocked"][0]["wait"] = "os_acquire_rwlock_write"
    assert report(second, first)["bottleneck"] == "compute", "it waits in the GPU driver"


@pytest.mark.parametrize(("ticks", "status"), [(5, "ok"), (60, "found")])
def test_iowait_where_the_kernel_has_no_pressure(ticks: int, status: str) -> None:
    first, second = healthy(), healthy(101.0)
    for one in (first, second):
        one["pressure"] = {
            name: not_exposed("No such file or directory", 2) for name in ("io", "memory", "cpu")
        }
    second["cpu_time"] = {"iowait": ticks, "total": 200}
    first["cpu_time"] = {"iowait": 0, "total": 0}
    got = report(second, first)
    assert line(got, "input")["status"] == status
    if status == "found":
        assert (got["bottleneck"], "30 %" in got["verdict"]) == ("input", True)


def test_neither_pressure_nor_iowait_is_no_pass() -> None:
    first, second = healthy(), healthy(101.0)
    for one in (first, second):
        one["pressure"] = not_exposed("no")
        one["cpu_time"] = unread("torn")
    got = report(second, first)
    assert (line(got, "input")["status"], got["exit_code"], got["bottleneck"]) == (
        "unknown",
        3,
        "undetermined",
    )


# -- what outweighs what


def test_waiting_for_storage_outweighs_dropped_packets_while_gpus_wait() -> None:
    second = changed(
        changed(healthy(101.0), "pressure|io|some_us", 450_000),
        "network|eth0|counters|rx_dropped",
        5100,
    )
    assert report(second)["bottleneck"] == "input"
    for index in (0, 1):
        second = changed(second, f"gpus|{index}|utilization|gpu", 99)
    got = report(second)
    assert (got["bottleneck"], got["exit_code"]) == ("communication", 1), (
        "busy GPUs are not kept waiting by storage"
    )


@pytest.mark.parametrize(
    ("use", "draw", "processes", "bottleneck", "text"),
    [
        (99, 690.0, True, "compute", "what limits the work"),
        (99, 120.0, True, "communication", "collective"),
        (12, 200.0, True, "undetermined", "neither storage nor network"),
        (70, 500.0, True, "none", "nothing is wrong"),
        (0, 70.0, False, "none", "nothing runs"),
    ],
)
def test_load_decides_the_bottleneck_when_nothing_is_wrong(
    use: int, draw: float, processes: bool, bottleneck: str, text: str
) -> None:
    second = healthy(101.0)
    for one in second["gpus"]:
        one.update(
            utilization={"gpu": use}, power={"limit_w": 700.0, "default_w": 700.0, "draw_w": draw}
        )
        one["processes"] = one["processes"] if processes else []
    second["workloads"]["processes"] = second["workloads"]["processes"] if processes else []
    got = report(second)
    assert (got["bottleneck"], got["exit_code"]) == (bottleneck, 0)
    assert text in got["verdict"]


@pytest.mark.parametrize(
    "path", ["ecc", "remapped_rows", "recovery_action", "fabric", "nvlink", "pcie"]
)
def test_value_not_exposed_by_a_gpu_is_no_fault(path: str) -> None:
    second = changed(healthy(101.0), f"gpus|0|{path}", not_exposed("Not Supported", 3))
    assert report(second)["exit_code"] == 0


# -- counters


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        (5, 9, 4),
        (5, 5, 0),
        ((1 << 32) - 3, 4, 7),
        (1 << 40, 3, None),
        (900, 3, None),
        (None, 3, None),
        (3, None, None),
        (not_exposed("x"), 3, None),
        (True, 3, None),
        ("5", 9, None),
    ],
)
def test_counters_that_wrap_or_begin_again(first: Any, second: Any, want: int | None) -> None:
    assert checks.grown(first, second) == want


def test_a_driver_that_was_loaded_again_between_samples_is_no_throttling() -> None:
    first = changed(healthy(), "gpus|0|throttle|violation_ns|thermal", 10**12)
    assert report(healthy(101.0), first)["exit_code"] == 0


@pytest.mark.parametrize(
    "first",
    [
        None,
        {**healthy(), "identity": {"boot_id": "other"}},
        healthy(102.0),
        {**healthy(), "uptime": None},
    ],
)
def test_missing_or_unrelated_first_sample_gives_no_rates(first: Any) -> None:
    got = checks.diagnose(first, healthy(101.0), CLASS)
    assert got["seconds"] is None
    assert {line(got, name)["status"] for name in ("load", "input", "network")} == {"unknown"}
    assert got["exit_code"] == 3


# -- nothing unread is a pass


@pytest.mark.parametrize(
    ("path", "value", "check"),
    [
        ("gpus", unread("the reader failed"), "gpus"),
        ("gpus", [], "load"),
        ("events", unread("kmsg"), "errors"),
        ("gpus|0|ecc", unread("Unknown Error", 999), "errors"),
        ("gpus|0|recovery_action", unread("Timeout", 10), "errors"),
        ("gpus|0|throttle", unread("Unknown Error", 999), "load"),
        ("events", {"rows": [], "error": unread("Operation not permitted", 1)}, "errors"),
        ("network", unread("x"), "network"),
        ("workloads", {"processes": [], "unseen": 0, "error": unread("x")}, "fit"),
        ("workloads", {"processes": [], "unseen": 0, "error": None}, "fit"),
        (
            "workloads",
            {"processes": [{"pid": 3, "error": unread("no answer within 1.5 s")}], "unseen": 0},
            "fit",
        ),
        (
            "workloads",
            {"processes": [process(libraries=unread("Permission denied", 13))], "unseen": 0},
            "fit",
        ),
    ],
)
def test_unread_section_gives_status_unknown_and_exit_3(path: str, value: Any, check: str) -> None:
    document = {"xid": XID, "health": {"cuda": TABLE}}
    second = changed(healthy(101.0), path, value)
    second["pci"] = {} if path == "gpus" else second["pci"]
    second["devices"] = {} if path == "gpus" else second["devices"]
    got = report(second, None, document)
    assert line(got, check)["status"] == "unknown"
    assert got["exit_code"] == 3


def test_a_machine_without_gpus_and_class_is_not_healthy() -> None:
    got = checks.diagnose({}, {}, {})
    assert got["exit_code"] == 3
    assert (
        line(got, "gpus")["text"]
        == "no GPU on the bus, and no class document says that there should be one"
    )


def test_an_xid_without_a_table_is_reported_and_not_judged() -> None:
    second = changed(healthy(101.0), "events|rows", [{"kind": "xid", "code": 79}])
    got = report(second, None, {"gpu": {"vendor": "nvidia", "count": 2}})
    assert (line(got, "errors")["status"], got["exit_code"]) == ("unknown", 3)
    assert "goldnode xid 79" in line(got, "errors")["text"]


def test_an_xid_of_a_program_is_no_fault() -> None:
    got = report(changed(healthy(101.0), "events|rows", [{"kind": "xid", "code": 31, "count": 3}]))
    assert got["exit_code"] == 0
    assert "Xid 31 3 times" in line(got, "errors")["text"]


# -- what runs


CUDA = "/usr/local/cuda-12.2/lib64/libcudart.so.12.2.140"


def lib(name: str, path: str, version: str, deleted: bool = False) -> dict[str, Any]:
    return {"name": name, "path": path, "version": version, "deleted": deleted}


RUNTIME = lib("cudart", CUDA, "12.2.140")
MISMATCHES = [
    (
        {"libraries": [lib("cudart", "/x/libcudart.so.13.0.48", "13.0.48")]},
        "needs driver 580.65.06",
        "mismatch",
    ),
    (
        {"libraries": [RUNTIME, lib("cuda", "/opt/libcuda.so.470.1", "470.1")]},
        "the loaded driver is 535.261.03",
        "mismatch",
    ),
    (
        {"libraries": [RUNTIME, lib("cuda", "/usr/lib/libcuda.so.535.247.01", "535.247.01", True)]},
        "replaced under it",
        "mismatch",
    ),
    (
        {"libraries": [RUNTIME, lib("cudart", "/venv/lib/libcudart.so.12", "12.1.105")]},
        "2 copies of libcudart",
        "mismatch",
    ),
    (
        {
            "libraries": [RUNTIME],
            "environment": {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs:/x"},
        },
        "stubs",
        "mismatch",
    ),
    (
        {"libraries": [RUNTIME], "environment": {"LD_LIBRARY_PATH": "/usr/local/cuda-11.8/lib64"}},
        "/usr/local/cuda-11.8/lib64, and",
        "mismatch",
    ),
    ({"libraries": [RUNTIME], "missing": ["/opt/cuda-9/lib"]}, "which is not there", "mismatch"),
    ({"libraries": [RUNTIME], "torch": "11.8"}, "PyTorch was built with CUDA 11.8", "mismatch"),
    ({"environment": {"CUDA_VISIBLE_DEVICES": "0,7"}}, "names 7", "mismatch"),
    ({"environment": {"CUDA_VISIBLE_DEVICES": "GPU-zzz"}}, "names GPU-zzz", "mismatch"),
    (
        {"environment": {"NCCL_SOCKET_IFNAME": "ens"}},
        "names no interface there is (lo, eth0)",
        "communication",
    ),
    (
        {"environment": {"NCCL_IB_HCA": "mlx5_8"}},
        "names no device there is (mlx5_0)",
        "communication",
    ),
    ({"environment": {"NCCL_IB_HCA": "mlx5_0:2"}}, "no port that is active", "communication"),
    ({"environment": {"NCCL_IB_DISABLE": "1"}}, "goes over TCP", "communication"),
]


@pytest.mark.parametrize(
    ("values", "text", "bottleneck"), MISMATCHES, ids=[row[1] for row in MISMATCHES]
)
def test_fit_finds_each_mismatch(values: dict[str, Any], text: str, bottleneck: str) -> None:
    second = changed(healthy(101.0), "workloads|processes", [process(**values)])
    got = report(second)
    row = line(got, "fit")
    assert row["status"] == "found"
    assert text in row["text"]
    assert row["next"]
    assert (got["bottleneck"], got["exit_code"]) == (bottleneck, 1)


FITS = [
    {
        "libraries": [lib("cudart", "/x/libcudart.so.12.8", "12.8.90")]
    },  # newer than the driver's own CUDA, of the family it runs
    {"libraries": [lib("cudart", "/x/libcudart.so.11.0", "11.8.89")]},
    {
        "libraries": [
            lib("cudart", "/x/13", "13.0.48"),
            lib("cuda", "/usr/local/cuda-13.0/compat/libcuda.so.580.65.06", "580.65.06"),
        ]
    },
    {
        "libraries": [RUNTIME],
        "environment": {"LD_LIBRARY_PATH": "/usr/local/cuda-12/lib64:/home/me/lib"},
        "missing": ["/home/me/lib"],
    },
    {
        "environment": {
            "NCCL_SOCKET_IFNAME": "^docker,lo",
            "NCCL_IB_HCA": "=mlx5_0",
            "NCCL_IB_DISABLE": "0",
        }
    },
    {
        "environment": {
            "NCCL_SOCKET_IFNAME": "=eth0",
            "NCCL_IB_HCA": "mlx5_0:1",
            "CUDA_VISIBLE_DEVICES": "1,GPU-0",
        }
    },
    {"environment": {"CUDA_VISIBLE_DEVICES": "MIG-abc"}},
]


HOSTILE = "$(reboot)`x`;'&"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("workloads|processes", [process(libraries=[RUNTIME], missing=[f"/cuda/{HOSTILE}"])]),
        (
            "workloads|processes",
            [process(libraries=[RUNTIME, lib("cuda", f"/{HOSTILE}/libcuda.so.470.1", "470.1")])],
        ),
        (
            "workloads|processes",
            [process(pid=HOSTILE, libraries=[RUNTIME, {**RUNTIME, "path": "/x"}])],
        ),
        ("network", {HOSTILE: {"state": "up", "carrier_changes": 9}}),
        ("infiniband", {HOSTILE: unread("no answer")}),
        ("pci", {HOSTILE: {"gone": True}, **healthy()["pci"]}),
        ("events|rows", [{"kind": "xid", "code": HOSTILE, "fatal": True}]),
        ("gpus|0|index", HOSTILE),
    ],
)
def test_a_command_to_run_next_is_safe_to_paste(path: str, value: Any) -> None:
    first, second = healthy(), changed(healthy(101.0), path, value)
    first["network"][HOSTILE] = {"state": "up", "carrier_changes": 2}
    second["gpus"][0]["recovery_action"] = "gpu_reset" if path.startswith("gpus") else "none"
    row = next(row for row in report(second, first)["lines"] if row["status"] == "found")
    lexer = shlex.shlex(row["next"], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = [word for word in lexer if "reboot" in word]
    assert all(HOSTILE in word for word in words), "it stays one word, quoted"


@pytest.mark.parametrize("values", FITS)
def test_fit_is_ok_for_compatible_processes(values: dict[str, Any]) -> None:
    got = report(changed(healthy(101.0), "workloads|processes", [process(**values)]))
    assert line(got, "fit")["status"] == "ok", line(got, "fit")
    assert got["exit_code"] == 0


def test_an_interface_that_is_down_is_reported_where_it_is_this_nodes() -> None:
    second = changed(healthy(101.0), "network|eth0|state", "down")
    second["workloads"]["processes"] = [process(environment={"NCCL_SOCKET_IFNAME": "eth0"})]
    assert "eth0, which is down" in line(report(second), "fit")["text"]
    second["workloads"]["processes"][0]["same_network"] = False
    assert line(report(second), "fit")["status"] == "ok", "another network's eth0"


def test_two_versions_of_nccl() -> None:
    other = process(pid=11, libraries=[RUNTIME, lib("nccl", "/y/libnccl.so.2.21.5", "2.21.5")])
    got = report(changed(healthy(101.0), "workloads|processes", [process(), other]))
    assert "2.18.5 in python3 (pid 10), 2.21.5 in python3 (pid 11)" in line(got, "fit")["text"]


@pytest.mark.parametrize(
    ("cuda", "driver", "reported", "table", "want"),
    [
        ("12.2.140", "535.261.03", "12.2", None, ""),
        ("12.4.1", "535.261.03", "12.2", None, ""),
        ("13.0.1", "535.261.03", "12.2", None, "is of CUDA 13.0"),
        ("12.4.1", "535.261.03", None, TABLE, ""),
        ("12.4.1", "470.1", None, TABLE, "needs driver 525.60.13"),
        ("11.8", "535.1", None, TABLE, ""),
        ("12.4.1", "535.261.03", None, None, None),
        ("14.0.1", "535.261.03", None, TABLE, None),
        (None, "535.261.03", "12.2", TABLE, None),
        ("x.y", "535.261.03", "12.2", TABLE, None),
    ],
)
def test_a_runtime_against_a_driver(
    cuda: Any, driver: Any, reported: Any, table: Any, want: str | None
) -> None:
    got = compatible.judge(cuda, driver, reported, table)
    assert got == want if not want else got is not None and got.startswith(want)


@pytest.mark.parametrize(
    ("wanted", "name", "port", "want"),
    [
        ("eth", "eth0", None, True),
        ("=eth", "eth0", None, False),
        ("^eth", "eth0", None, False),
        ("^=eth", "eth0", None, True),
        ("lo,ib", "ib1", None, True),
        ("mlx5_0:1", "mlx5_0", "2", False),
        ("^mlx5_0:1", "mlx5_0", "2", True),
        ("mlx5_1", "mlx5_10", "1", True),
        ("=mlx5_1", "mlx5_10", "1", False),
        ("", "eth0", None, False),
    ],
)
def test_interface_selection_follows_the_rules_of_nccl(
    wanted: str, name: str, port: str | None, want: bool
) -> None:
    assert compatible.selects(wanted, name, port) is want


# -- reading processes


MAPS = b"""7f00 r-xp 0 0:1 1   /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
7f01 r-xp 0 0:1 1   /venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12
7f02 r--p 0 0:1 1   /venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12
7f03 r-xp 0 0:1 1   /venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2
7f04 r-xp 0 0:1 1   /opt/libnccl.so.2
7f05 r-xp 0 0:1 1   /venv/lib/python3.11/site-packages/torch/lib/libcublas-37d11411.so.11 (deleted)
7f06 rw-p 0 0:0 0
7f07 rw-p 0 0:0 0   [heap]
7f08 r-xp 0 0:1 1   /tmp/li\\012b\x1b[31mcudart.so.12
torn
"""
ENVIRON = b"PASSWORD=secret\0LD_LIBRARY_PATH=/usr/local/cuda-11.8/lib64:/venv\0NCCL_IB_HCA=mlx5_0\x1b[2J\nx\0CUDA_VISIBLE_DEVICES=0\0NCCL_\0=\0AWS_NCCL_KEY=k"


def node(root: Path, pid: int = 41, maps: bytes = MAPS, environ: bytes = ENVIRON) -> Path:
    """A node on which one process holds /dev/nvidia0."""
    own = f"/proc/{pid}"
    packages = f"{own}/root/venv/lib/python3.11/site-packages"
    make(
        root,
        {
            f"{own}/comm": b"py\x1b[31mthon\n",
            f"{own}/maps": maps,
            f"{own}/environ": environ,
            f"{own}/net/dev": "Inter-|   Receive\n face |bytes\n    lo: 0 0\n  eth0: 1 2\n",
            f"{packages}/nvidia_cuda_runtime_cu12-12.4.127.dist-info/METADATA": "",
            f"{packages}/nvidia_nccl_cu12-2.21.5.dist-info/METADATA": "",
            f"{packages}/torch/version.py": "__version__ = '2.6.0+cu118'\ncuda: Optional[str] = '11.8'\n",
            f"{own}/root/opt/libnccl.so.2": b"\x7fELF"
            + b"\0" * 5000
            + b"NCCL version 2.19.3+cuda12.3\0",
            f"{own}/root/venv/x": "",
            "/proc/42/comm": "bash\n",
        },
        {
            f"{own}/fd/3": "/dev/nvidia0",
            "/proc/42/fd/0": "/dev/null",
            f"{own}/fd/4": "/dev/nvidiactl",
        },
    )
    return root


def test_a_process_on_a_gpu(tmp_path: Path) -> None:
    got = running.read(context(node(tmp_path)).files)
    assert (got["error"], got["unseen"], len(got["processes"])) == (None, 0, 1)
    row = got["processes"][0]
    assert (row["pid"], row["command"], row["torch"], row["interfaces"]) == (
        41,
        "py?[31mthon",
        "11.8",
        ["lo", "eth0"],
    )
    assert [(item["name"], item["version"], item["deleted"]) for item in row["libraries"]] == [
        ("cuda", "535.261.03", False),
        ("cudart", "12.4.127", False),
        ("nccl", "2.21.5", False),
        ("nccl", "2.19.3", False),
        ("cublas", "11", True),
    ]
    assert row["missing"] == ["/usr/local/cuda-11.8/lib64"]


def test_nothing_of_an_environment_is_stored_but_what_is_named() -> None:
    got = running.variables(ENVIRON)
    assert got == {
        "LD_LIBRARY_PATH": "/usr/local/cuda-11.8/lib64:/venv",
        "NCCL_IB_HCA": "mlx5_0?[2J?x",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert running.variables(unread("Permission denied", 13)) == {}


def test_a_process_that_vanishes_and_maps_that_may_not_be_read(tmp_path: Path) -> None:
    node(tmp_path)
    (tmp_path / "proc/41/comm").unlink()
    assert running.read(context(tmp_path).files)["processes"] == []
    make(tmp_path, {"/proc/41/comm": "python\n"})
    (tmp_path / "proc/41/maps").unlink()
    (tmp_path / "proc/41/maps").mkdir()
    row = running.read(context(tmp_path).files)["processes"][0]
    assert row["libraries"]["fault"] == "unread"
    second = changed(healthy(101.0), "workloads|processes", [row])
    assert line(report(second), "fit")["status"] == "unknown"


def test_a_map_that_cannot_be_read_at_all_hangs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node(tmp_path)
    monkeypatch.setattr(running, "process", lambda *_: __import__("time").sleep(60))
    monkeypatch.setattr("goldnode.node.probe.reader_process.ask.__defaults__", (1.0, 0.2))
    row = running.read(context(tmp_path).files)["processes"][0]
    assert row["pid"] == 41
    assert "no answer" in row["error"]["text"]


def test_a_library_that_is_a_link_or_a_device_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "proc/41/root/opt").mkdir(parents=True)
    (tmp_path / "host").write_bytes(b"NCCL version 9.9.9")
    for target in ("/dev/zero", tmp_path / "host"):
        (tmp_path / "proc/41/root/opt/libnccl.so.2").unlink(missing_ok=True)
        (tmp_path / "proc/41/root/opt/libnccl.so.2").symlink_to(target)
        got = running.library(context(tmp_path).files, "/proc/41/root", "/opt/libnccl.so.2")
        assert got == {
            "name": "nccl",
            "path": "/opt/libnccl.so.2",
            "version": "2",
            "deleted": False,
        }


def test_processes_that_there_was_no_time_for_are_counted(tmp_path: Path) -> None:
    assert running.scan(context(node(tmp_path)).files, limit=-1.0) == [[], 2]


# -- samples and the command


def test_a_driver_that_did_not_answer_is_not_asked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(sample, "INTERVAL", 0.0)
    monkeypatch.setattr(
        gpus, "begin", lambda here: begun.append(here.document["health"]["limits"]["gpu_answer_s"])
    )
    monkeypatch.setattr(
        gpus, "read", lambda here: {"gpus": [], "gpu_error": unread("hangs"), "driver": {}}
    )
    host = Host(
        str(make(tmp_path, {"/proc/uptime": "5 1\n", "/proc/stat": "cpu 1 2 3 4 5 6 7 8 9\n"})),
        live=True,
    )
    first, second = sample.take(host, {"health": {"limits": {"gpu_answer_s": 90}}})
    assert begun == [sample.ANSWER], "nor waited for as long as a boot may"
    assert first["gpu_error"] == second["gpu_error"]
    assert second["cpu_time"] == {"iowait": 5, "total": 36}
    assert checks.diagnose(first, second)["exit_code"] == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("cpu 1 2 3", True),
        ("", True),
        ("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1", False),
        ("intr 1 2 3 4 5 6 7 8 9", True),
    ],
)
def test_times_of_all_cpus(text: str, fault: bool) -> None:
    assert ("fault" in sample.cpu_time(text)) is fault


def run(*arguments: str) -> int:
    return program.main(["diagnose", *arguments])


def test_diagnosis_of_recorded_captures_is_printed_without_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    bad = changed(healthy(101.0), "gpus|1|lost", True)
    bad["gpus"][1]["address"] = "0000:28\x1b[31m"
    first.write_text(json.dumps(healthy()))
    second.write_text(json.dumps({**bad, "simulated": True}))
    (tmp_path / "class.json").write_text(json.dumps(CLASS))
    assert (
        run("--from", str(first), "--from", str(second), "--class", str(tmp_path / "class.json"))
        == 1
    )
    text = capsys.readouterr().out
    assert text.startswith("SIMULATED HARDWARE")
    assert "\x1b" not in text
    assert "bottleneck: compute" in text
    assert "next: dmesg" in text
    assert (
        run("--from", str(first), "--format", "json", "--class", str(tmp_path / "class.json")) == 3
    )
    assert json.loads(capsys.readouterr().out)["schema"] == "goldnode.diagnosis/1"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "goldnode.verdict/1"}', "\x00"])
def test_file_that_is_no_capture_exits_3(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text(content)
    assert run("--from", str(tmp_path / "x")) == 3
    assert "capture" in capsys.readouterr().err
    assert run("--from", "a", "--from", "b", "--from", "c") == 3
    assert run("--class", str(tmp_path / "none")) == 3


@pytest.mark.parametrize(
    "value", [None, 3, "x", [], {}, [None], [3], {"a": 3}, {"fault": "unread", "text": "x"}, True]
)
def test_a_torn_capture_crashes_nothing(value: Any) -> None:
    for key in healthy():
        second = {**healthy(101.0), key: value}
        got = checks.diagnose(healthy(), second, CLASS)
        command.text(got)
        assert got["exit_code"] in (0, 1, 3)
    for key in gpu(0):
        checks.diagnose(healthy(), changed(healthy(101.0), f"gpus|0|{key}", value), CLASS)
    for key in process():
        checks.diagnose(
            healthy(), changed(healthy(101.0), f"workloads|processes|0|{key}", value), CLASS
        )


def test_this_machine_is_diagnosed_without_a_crash() -> None:
    source = Path(command.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "goldnode.node", "diagnose", "--format", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    got = json.loads(done.stdout)
    assert done.returncode == got["exit_code"]
    assert len(got["lines"]) == 6
    assert got["seconds"] >= 0.9


def test_a_real_process_with_a_library_mapped(tmp_path: Path) -> None:
    place = tmp_path / "cuda-12.4/lib64"
    place.mkdir(parents=True)
    (place / "libcudart.so.12.4.127").write_bytes(b"\x7fELF" + b"\0" * 8192)
    text = "import mmap,sys; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),0,access=mmap.ACCESS_READ); print(1,flush=True); sys.stdin.read()"
    environment = {
        "LD_LIBRARY_PATH": f"{place}:/no/such/cuda",
        "NCCL_IB_HCA": "mlx5_9",
        "SECRET": "x",
    }
    with subprocess.Popen(
        [sys.executable, "-c", text, place / "libcudart.so.12.4.127"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        row = running.process(context(Path("/")).files, started.pid)
        started.communicate()
    assert row is not None
    assert row["libraries"] == [
        {
            "name": "cudart",
            "path": str(place / "libcudart.so.12.4.127"),
            "version": "12.4.127",
            "deleted": False,
        },
    ]
    assert row["environment"] == {
        key: value for key, value in environment.items() if key != "SECRET"
    }
    assert row["missing"] == ["/no/such/cuda"]
    assert row["same_network"] is True
    assert "lo" in row["interfaces"]
    assert running.process(context(Path("/")).files, started.pid) is None, "it has ended"


@pytest.mark.parametrize(
    "lines",
    [
        # A later line withdraws it; it is harmless; its limit is not known without a class document.
        ["amdgpu 0000:0a:00.0: amdgpu: GPU reset(1) failed", "amdgpu 0000:0a:00.0: amdgpu: GPU reset(2) succeeded!"],
        ["amdgpu 0000:0d:00.0: amdgpu: Failed to export SMU metrics table!"],
        ["bnxt_en 0000:40:00.0 eno1: hwrm query error recovery failure rc: -5"],
    ],
)  # fmt: skip
def test_lines_that_are_no_fault_are_no_bottleneck(lines: list[str]) -> None:
    got = report(changed(healthy(101.0), "events|rows", listed(*lines)))
    assert [line["status"] for line in got["lines"] if line["check"] == "errors"] == ["ok"]


def test_files_of_the_driver_are_compared_with_their_packages(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib/libcuda.so.535"
    info = tmp_path / "var/lib/dpkg/info"
    for folder in (library.parent, info, tmp_path / "proc"):
        folder.mkdir(parents=True)
    library.write_text("the library")
    digest = hashlib.md5(library.read_bytes(), usedforsecurity=False).hexdigest()
    for name in ("libcuda1:amd64", "bash"):
        (info / f"{name}.md5sums").write_text(f"{digest}  usr/lib/libcuda.so.535\n")
        (info / f"{name}.list").write_text("/usr/lib/libcuda.so.535\n")
    (tmp_path / "proc/stat").write_text("cpu 1 2\nbtime 100\n")
    inspected = context(tmp_path)
    assert sample.altered(inspected) == {"altered": []}
    os.utime(info / "libcuda1:amd64.list", (200, 200))
    library.write_text("another library")
    (row,) = sample.altered(inspected)["altered"]
    assert (row["package"], row["why"]) == ("libcuda1", "has other content than its package")
    library.unlink()
    assert [row["why"] for row in sample.altered(inspected)["altered"]] == ["is missing"]


def test_files_that_could_not_be_verified_are_unknown() -> None:
    got = report(changed(healthy(101.0), "altered", unread("Input/output error", 5)))
    (line,) = (line for line in got["lines"] if line["check"] == "fit")
    assert line["status"] == "unknown"
    assert "Input/output error" in line["text"]
