"""The GPUs of a capture: the real program with the simulated libnvidia-ml.so.1, procfs and the bus where that says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.hardware import library, scenario, tree
from tests.simulators.hardware.machine import Machine, launcher

from goldnode.node import probe
from goldnode.node.device import child, collect, stream
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Json
from goldnode.node.probe import command, gpus, pci
from goldnode.node.state import engine
from goldnode.node.state.removal import NO_CLASS
from goldnode.prove.redact import Redactor

H100: Json = {
    "class": "x",
    "gpu": {"vendor": "nvidia", "model": "H100-SXM5-80GB", "count": 8},
    "platform": {"nvswitch": True},
}
T4: Json = {"class": "x", "gpu": {"vendor": "nvidia", "model": "T4", "count": 1}}
POLICY: Json = {**H100, "policy": {"ecc": True}}
DRIVER = "580.105.08"
Made = Callable[..., Machine]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the simulated library."""
    place = tmp_path_factory.mktemp("library")
    library.build(place)
    return place


@pytest.fixture
def make(tmp_path: Path, built: Path) -> Made:
    """A node with these boards and faults. `nvml=False`: without the library. `bus`: other faults for what the bus and procfs show."""

    def made(
        document: Json = H100,
        *faults: str,
        count: int = 2,
        nvml: bool = True,
        bus: tuple[str, ...] | None = None,
    ) -> Machine:
        boards = scenario.Scenario.of(document, DRIVER, count=count)
        root = tmp_path / f"node{len(list(tmp_path.iterdir()))}"
        tree.write(boards.with_faults(faults if bus is None else bus), root)
        machine = Machine(root, built if nvml else None)
        scenario.write(boards.with_faults(faults), machine.place)
        Path(machine.program).write_bytes(launcher())
        Path(machine.program).chmod(0o755)
        return machine

    return made


def read(machine: Machine, document: Json | None = None, *, passive: bool = False) -> Json:
    """The sections of pci and gpus."""
    context = probe.Context(machine, document or H100, passive=passive)
    with machine.environment():
        gpus.begin(context)
        context.captured.update(pci.read(context))
        return {**context.captured, **gpus.read(context)}


def test_healthy_gpus_are_read_with_all_values(make: Made) -> None:
    machine = make()
    found = read(machine, POLICY)
    assert found["gpu_error"] is None
    assert found["simulated"] is True
    assert [
        (gpu["index"], gpu["address"], gpu["lost"], gpu["driver"]) for gpu in found["gpus"]
    ] == [
        (0, "0000:10:00.0", False, "nvidia"),
        (1, "0000:18:00.0", False, "nvidia"),
    ]
    gpu = found["gpus"][0]
    assert (gpu["pci_id"], gpu["minor"], gpu["architecture"], gpu["recovery_action"]) == (
        "10de:2330",
        0,
        "Hopper",
        "none",
    )
    assert gpu["memory"] == {"total_mib": 81559, "used_mib": 0, "bar1_mib": 131072}
    assert gpu["pcie"] == {
        "gen": {"current": 5, "max": 5, "device_max": 5},
        "width": {"current": 16, "max": 16},
        "replay": 0,
    }
    assert gpu["ecc"]["sram"] == {
        "threshold_exceeded": False,
        "corrected": 0,
        "parity": 0,
        "secded": 0,
    }
    assert gpu["power"]["limit_w"] == 700
    assert gpu["power"]["draw_w"] == 87.5
    assert [link["active"] for link in gpu["nvlink"]["links"]] == [True] * 18
    assert gpu["fabric"]["state"] == "completed"
    assert gpu["fabric"]["status"] == "Success"
    assert gpu["inforom"] == {"image": "SIMULATED", "valid": True}
    assert set(gpus.FROM_LIBRARY) <= set(gpu), "each part has a key"
    assert (
        found["driver"]["reported"]
        == found["driver"]["loaded"]
        == found["driver"]["proc"]
        == DRIVER
    )
    assert (found["driver"]["cuda"], found["driver"]["flavour"]) == ("13.0", "proprietary")
    assert found["driver"]["options"]["ModifyDeviceFiles"] == "1"
    assert len([argv for argv in machine.commands if "device" in argv]) == 1


def test_the_settings_are_those_of_a_question_of_their_own(make: Made) -> None:
    """One process answers for both, and says the same as the one that policy started until now."""
    machine = make()
    request = {"do": "read", "vendor": "nvidia", "root": machine.root}
    with machine.environment():
        alone = child.ask(machine, request)
        context = probe.Context(machine, POLICY)
        gpus.begin(context)
        assert child.ask(machine, request) == alone
        found = gpus.read(context)
    assert [gpu["settings"] for gpu in found["gpus"]] == list(alone["gpus"].values())
    assert "settings" not in read(machine, H100)["gpus"][0], "a class without policy asks for none"


def test_a_passive_look_reads_the_same(make: Made) -> None:
    """What a check has found once must not be healthy for the passive one that follows."""
    machine = make(H100, "gpu1.inforom.valid=error:corrupted_inforom")
    assert read(machine, passive=True) == read(machine)
    assert read(machine, passive=True)["gpus"][1]["inforom"]["valid"] is False


# What is spoilt of GPU 1, where in the capture it shows, and as what.
CASES: list[tuple[str, str, Any]] = [
    ("field.230=1", "recovery_action", "gpu_reset"),
    ("field.230=7", "recovery_action", "system_reboot"),
    ("field.230=9", "recovery_action", "unread"),
    ("field.230=error:not_supported", "recovery_action", "not_exposed"),
    ("ecc_current=error:not_supported", "ecc", "not_exposed"),
    ("ecc_current=error:unknown", "ecc.current", "unread"),
    ("ecc_errors.1.0=3", "ecc.volatile.uncorrected", 3),
    ("ecc_errors.1.1=18446744073709551615", "ecc.aggregate.uncorrected", 18446744073709551615),
    ("memory_errors.1.0.2=4", "ecc.dram.volatile_uncorrected", 4),
    ("sram.threshold_exceeded=1", "ecc.sram.threshold_exceeded", True),
    ("sram.0=5", "ecc.sram.parity", 5),
    ("sram.threshold_exceeded=error:function_not_found", "ecc.sram", "not_exposed"),
    ("remapped.pending=1", "remapped_rows.pending", True),
    ("remapped.failure=1", "remapped_rows.failure", True),
    ("remapped.uncorrectable=2", "remapped_rows.uncorrectable", 2),
    ("remapped.none=3", "remapped_rows.histogram.none", 3),
    ("remapped.max=error:not_supported", "remapped_rows.histogram", "not_exposed"),
    ("remapped.pending=error:no_permission", "remapped_rows", "unread"),
    (
        "repair.channel=1",
        "repair.channel_pending",
        "not_exposed",
    ),  # the other half of it this board does not tell
    ("unrepairable_memory=1", "unrepairable_memory", True),
    ("power_limit=500500", "power.limit_w", 500.5),
    ("enforced_power_limit=350000", "power.enforced_w", 350),
    ("persistence_mode=1", "persistence_mode", True),
    ("compute_mode=3", "compute_mode", "exclusive_process"),
    ("compute_mode=8", "compute_mode", "unread"),
    (
        "clocks_event_reasons=168",
        "throttle.active",
        ["hw_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"],
    ),
    ("clocks_event_reasons=2048", "throttle.active", ["bit_11"]),
    ("clocks_event_reasons=error:unknown", "throttle.mask", "unread"),
    ("violation.1=123456789012", "throttle.violation_ns.thermal", 123456789012),
    ("field.271=7", "throttle.violation_ns.hw_power_brake", 7),
    ("field.270=error:not_supported", "throttle.violation_ns.hw_thermal", "not_exposed"),
    ("temperature.0=91", "temperature.gpu_c", 91),
    ("temperature_margin=-3", "temperature.margin_c", -3),
    ("field.82=77", "temperature.memory_c", 77),
    ("performance_state=8", "pstate", 8),
    ("performance_state=32", "pstate", "unread"),
    ("pcie.width=8", "pcie.width.current", 8),
    ("pcie.replays=4000000000", "pcie.replay", 4000000000),
    ("memory.total=76546048000", "memory.total_mib", 73000),
    ("vbios_version=96.00.99.00.01", "vbios", "96.00.99.00.01"),
    ("inforom.valid=error:corrupted_inforom", "inforom.valid", False),
    ("inforom.valid=error:unknown", "inforom.valid", "unread"),
    ("mig_current=1", "mig.current", True),
    ("mig_pending=1", "mig.pending", True),
    ("fabric.state=2", "fabric.state", "in_progress"),
    ("fabric.status=999", "fabric.status", "Unknown Error"),
    ("fabric.health=16", "fabric.health.route_unhealthy", "true"),
    ("fabric.health=8", "fabric.health.route_recovery", "false"),
    ("fabric.health=1280", "fabric.health.configuration", "insufficient_nvlinks"),
    ("fabric.summary=2", "fabric.health.summary", "unhealthy"),
    ("fabric.state=0", "fabric", {"state": "not_supported"}),
    ("fabric.newest=2", "fabric.health", {}),  # a driver that has version 2 of the structure only
    (
        f"processes={os.getpid()}:1073741824",
        "processes",
        [{"pid": os.getpid(), "memory_mib": 1024}],
    ),
    # Larger than any number that Linux gives to a process.
    (
        "processes=4194400:1048576",
        "processes",
        [{"pid": 4194400, "memory_mib": 1, "state": "gone"}],
    ),
    ("name=error:unknown", "name", "SIMULATED"),
]


# Its main thread ends and another one goes on: the state of the process is Z, and it lives.
HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall({number}, 0)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of exit(2) differs")
def test_process_that_has_ended_differs_from_one_that_lives() -> None:
    child_pid = os.fork()
    if not child_pid:
        os._exit(0)
    os.waitid(os.P_PID, child_pid, os.WEXITED | os.WNOWAIT)
    assert collect.ended(child_pid) == "zombie"
    os.waitpid(child_pid, 0)
    assert collect.ended(child_pid) == "gone"
    assert collect.ended(os.getpid()) is None
    assert collect.ended(1) is None  # also for a user who may not signal it
    with subprocess.Popen([sys.executable, "-c", HEADLESS.format(number=60)]) as headless:
        stat = Path(f"/proc/{headless.pid}/stat")
        for _ in range(600):
            if stat.read_text().rpartition(") ")[2][0] == "Z":
                break
            time.sleep(0.1)
        assert stat.read_text().rpartition(") ")[2][0] == "Z"
        assert collect.ended(headless.pid) is None
        headless.kill()


def at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, dict) and "fault" in value:
            return value["fault"]
        value = value[part]
    return value["fault"] if isinstance(value, dict) and "fault" in value else value


def test_each_field_shows_what_was_spoilt_of_it(make: Made) -> None:
    """All at once on a node of as many GPUs as there are cases (in lots of 16): each GPU has one fault, and the others have none of it."""
    for start in range(0, len(CASES), 16):
        lot = CASES[start : start + 16]
        machine = make(
            H100,
            *(f"gpu{index}.{fault}" for index, (fault, _, _) in enumerate(lot)),
            count=len(lot),
        )
        found = read(machine)["gpus"]
        reported = {fault: at(gpu, path) for gpu, (fault, path, _) in zip(found, lot, strict=True)}
        # Of a name that the library does not tell, the driver's own file has one.
        want = {
            fault: value if path != "name" else "NVIDIA H100-SXM5-80GB"
            for fault, path, value in lot
        }
        assert reported == want
        for number, (_, path, _) in enumerate(lot):
            same = [
                index
                for index, (_, other, _) in enumerate(lot)
                if other.split(".")[0] != path.split(".")[0]
            ]
            assert all(at(found[index], "lost") is False for index in same), number


def test_a_lost_gpu_is_reported_to_be_lost_and_knows_nothing(make: Made) -> None:
    found = read(make(H100, "gpu1.all=error:lost", count=3), POLICY)
    assert found["gpu_error"] is None
    gpu = found["gpus"][1]
    assert (gpu["address"], gpu["index"], gpu["lost"]) == ("0000:18:00.0", 1, True)
    assert (
        gpu["ecc"]
        == gpu["memory"]
        == gpu["settings"]
        == {"fault": "unread", "text": "GPU is lost", "rc": 15}
    )
    assert gpu["uuid"].startswith("GPU-"), "the driver's own file still says it"
    assert [other["lost"] for other in found["gpus"]] == [False, True, False]


@pytest.mark.parametrize("code", ["lost", "reset_required"])
def test_a_gpu_whose_handle_cannot_be_had(make: Made, code: str) -> None:
    found = read(make(H100, f"gpu1.handle=error:{code}", count=3))
    gpu = found["gpus"][1]
    assert (gpu["address"], gpu["index"], gpu["lost"]) == ("0000:18:00.0", 1, True)
    assert gpu["memory"]["fault"] == "unread"
    assert gpu["pci_id"] == "10de:2330", "the bus says it"


def test_two_gpus_without_a_handle_are_lost_and_have_no_index(make: Made) -> None:
    found = read(make(H100, "gpu1.handle=error:lost", "gpu2.handle=error:lost", count=4))["gpus"]
    assert [(gpu["address"], gpu["index"], gpu["lost"]) for gpu in found] == [
        ("0000:10:00.0", 0, False),
        ("0000:18:00.0", None, True),
        ("0000:20:00.0", None, True),
        ("0000:28:00.0", 3, False),
    ]


def test_a_gpu_that_the_library_does_not_list(make: Made) -> None:
    found = read(make(H100, "gpu1.absent=1", count=3, bus=()))
    assert found["gpu_error"] is None
    assert [(gpu["address"], gpu["index"]) for gpu in found["gpus"]] == [
        ("0000:10:00.0", 0),
        ("0000:18:00.0", None),
        ("0000:20:00.0", 1),
    ]
    assert "does not list this GPU" in found["gpus"][1]["ecc"]["text"]


def test_a_hang_names_gpu_and_part_and_keeps_the_rest(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream.Pending.finish, "__defaults__", (90.0, 1.0))
    found = read(make(H100, "gpu1.power_usage=hang", count=3))
    first, second, third = found["gpus"]
    assert "did not answer" in found["gpu_error"]["text"]
    assert "(GPU 1: power)" in found["gpu_error"]["text"]
    assert first["power"]["limit_w"] == 700
    assert second["ecc"]["current"] is True, "it was read before the hang"
    assert second["power"] == second["fabric"] == third["ecc"] == found["gpu_error"]
    assert third["address"] == "0000:20:00.0", "the bus has it"
    assert third["uuid"].startswith("GPU-"), "and the driver's own file"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("init=error:driver_not_loaded", 9),
        ("init=error:library_mismatch", 18),
        ("init=error:unknown", 999),
    ],
)
def test_a_library_that_cannot_be_used(make: Made, fault: str, code: int) -> None:
    found = read(make(H100, fault))
    assert (found["gpu_error"]["fault"], found["gpu_error"]["rc"]) == ("unread", code)
    assert [
        (gpu["index"], gpu["address"], gpu["pci_id"], gpu["minor"]) for gpu in found["gpus"]
    ] == [
        (None, "0000:10:00.0", "10de:2330", 0),
        (None, "0000:18:00.0", "10de:2330", 1),
    ]
    assert found["gpus"][0]["ecc"] == found["gpu_error"]
    assert found["driver"]["reported"]["rc"] == code
    assert found["driver"]["loaded"] == DRIVER


def test_missing_library_is_an_error_and_gpus_are_still_listed(make: Made) -> None:
    found = read(make(nvml=False))
    assert found["gpu_error"]["rc"] == 12
    assert len(found["gpus"]) == 2
    assert found["driver"]["library"]["fault"] == "not_exposed"


def test_without_a_driver_the_bus_still_has_gpus(make: Made) -> None:
    machine = make()
    root = Path(machine.root)
    for name in ("sys/module/nvidia/version", "proc/driver/nvidia/version"):
        (root / name).unlink()
    for name in ("sys/module/nvidia", "proc/driver/nvidia"):
        (root / name).rename(root / f"{name.replace('/', '-')}.gone")
    found = read(machine, {"class": "cpu_only"})
    assert machine.commands == [], "nobody says that there is a library to ask"
    assert found["gpu_error"]["fault"] == "unread"
    assert [gpu["address"] for gpu in found["gpus"]] == ["0000:10:00.0", "0000:18:00.0"]
    read(machine)
    assert len(machine.commands) == 1, "a class that declares GPUs has it asked"


def test_a_root_that_does_not_run_is_asked_nothing(make: Made) -> None:
    host = Host(make().root)
    context = probe.Context(host, H100)
    gpus.begin(context)
    context.captured.update(pci.read(context))
    assert host.commands == []
    assert "does not run" in gpus.read(context)["gpu_error"]["text"]


def test_a_node_without_gpus(tmp_path: Path) -> None:
    context = probe.Context(Host(str(tmp_path), live=True), {"class": "cpu_only"})
    gpus.begin(context)
    context.captured["pci"] = {}
    found = gpus.read(context)
    assert found == {"gpus": [], "gpu_error": None, "driver": {"vendor": None}, "devices": {}}


def test_sixteen_gpus_and_two_with_one_uuid(make: Made) -> None:
    found = read(make(H100, "gpu9.uuid=@gpu3.uuid", count=16))["gpus"]
    assert [gpu["index"] for gpu in found] == list(range(16))
    assert found[9]["uuid"] == found[3]["uuid"] != found[4]["uuid"]


def test_older_board_has_retired_pages_and_exposes_no_newer_values(make: Made) -> None:
    gpu = read(make(T4, "gpu0.retired_pages.1=2", "gpu0.retired_pages_pending=1", count=1), T4)[
        "gpus"
    ][0]
    assert gpu["retired_pages"] == {"pending": True, "single_bit": 0, "double_bit": 2}
    assert (
        gpu["remapped_rows"]["fault"]
        == gpu["mig"]["fault"]
        == gpu["fabric"]["fault"]
        == "not_exposed"
    )
    assert gpu["nvlink"] == {"links": []}


def test_nvlinks_one_by_one(make: Made) -> None:
    faults = (
        "gpu0.nvlink.5.state=0",
        "gpu0.nvlink.7.errors.1=12",
        "gpu1.nvlink.3.state=error:unknown",
        "gpu1.field.163=error:not_supported",
    )
    first, second = read(make(H100, *faults))["gpus"]
    links = first["nvlink"]["links"]
    assert [link["link"] for link in links if link["active"] is not True] == [5]
    assert links[7]["errors"] == {"replay": 0, "recovery": 12, "crc_flit": 0}
    assert at(second["nvlink"]["links"][3], "active") == "unread"
    assert second["nvlink"]["links"][0]["errors"] == {
        "replay": 0,
        "recovery": 0,
        "crc_flit": 0,
        "crc_data": 0,
    }, "asked one by one"


def test_a_driver_that_does_not_report_how_many_links_there_are(make: Made) -> None:
    first, second = read(
        make(H100, "gpu0.field.91=error:not_supported", "gpu1.field.91=error:unknown")
    )["gpus"]
    assert len(first["nvlink"]["links"]) == 18
    assert at(second, "nvlink") == "unread"


def test_policy_is_read_last_so_that_the_library_works_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    for domain in engine.DOMAINS:
        name = vars(domain)["__name__"].rpartition(".")[2]
        monkeypatch.setattr(domain, "observe", lambda *_, name=name: asked.append(name))
    monkeypatch.setattr(engine, "observe", lambda *_: None)
    engine.observed(Host(str(tmp_path)), NO_CLASS)
    assert asked[-1] == "policy"
    assert len(asked) == len(engine.DOMAINS)


# -- files of the driver


def test_the_drivers_own_files_without_values_for_what_was_not_initialised(tmp_path: Path) -> None:
    place = tmp_path / "proc/driver/nvidia/gpus/0000:18:00.0"
    place.mkdir(parents=True)
    rows = (
        "Model: \t\t NVIDIA H100\nIRQ: 5\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
    )
    rows += "Video BIOS: \t ??.??.??.??.??\nDevice Minor: \t 3\nGPU Firmware: \t N/A\n"
    (place / "information").write_text(rows)
    context = probe.Context(Host(str(tmp_path)))
    assert gpus.information(context.files) == {"0000:18:00.0": {"name": "NVIDIA H100", "minor": 3}}


@pytest.mark.parametrize(
    ("line", "version", "flavour"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.247.01  Mon Mar 1",
            "535.247.01",
            "proprietary",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build  (x@y)",
            "580.105.08",
            "open",
        ),
        ("NVRM version:", "unread", "proprietary"),
    ],
)
def test_the_version_in_proc(tmp_path: Path, line: str, version: str, flavour: str) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{line}\nGCC version:  gcc 12\n")
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08").touch()
    (tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to(
        "libnvidia-ml.so.580.105.08"
    )
    found = gpus.driver(probe.Context(Host(str(tmp_path))).files, None, [])
    assert (at(found, "proc"), found["flavour"], found["library"]) == (
        version,
        flavour,
        "580.105.08",
    )
    assert found["reported"]["fault"] == "unread"


def test_device_nodes_with_their_modes(tmp_path: Path) -> None:
    for name, mode in (
        ("nvidia0", 0o666),
        ("nvidiactl", 0o600),
        ("nvidia-caps/nvidia-cap1", 0o400),
        ("dri/renderD128", 0o660),
        ("sda", 0o660),
    ):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
        (tmp_path / "dev" / name).chmod(mode)
    assert gpus.devices(probe.Context(Host(str(tmp_path))).files) == {
        "/dev/nvidia0": "0666",
        "/dev/nvidiactl": "0600",
        "/dev/nvidia-caps/nvidia-cap1": "0400",
        "/dev/dri/renderD128": "0660",
    }


# -- records


def record(tmp_path: Path, **changed: Any) -> str:
    whole = {
        "schema": probe.SCHEMA,
        "time": "2026-11-22T10:00:00Z",
        "source": "live",
        "gpus": [],
        "pci": {},
        **changed,
    }
    (tmp_path / "capture.json").write_text(json.dumps(whole))
    return str(tmp_path / "capture.json")


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"gpus": 3}, "gpus"),
        ({"pci": []}, "pci"),
        ({"pci": {"0000:18:00.0": 1}}, "pci.0000:18:00"),
        ({"cpu": "many"}, "cpu"),
        ({"events": {"rows": "x"}}, "events.error"),
        ({"events": {"rows": [1, {"kind": "xid"}]}}, "events.error"),
    ],
)
def test_wrong_types_of_a_record_are_faults(tmp_path: Path, changed: Json, path: str) -> None:
    found: Any = command.load(record(tmp_path, **changed))
    for part in ("pci", "0000:18:00.0") if path.startswith("pci.") else path.split("."):
        found = found[part]
    assert found["fault"] == "unread"


@pytest.mark.parametrize(
    "gpu",
    [
        None,
        1,
        "GPU",
        [],
        {"ecc": 3},
        {"memory": "80 GB"},
        {"nvlink": {"links": [1]}},
        {"nvlink": {"links": "x"}},
        {"nvlink": 5},
        {"processes": "x"},
    ],
)
def test_wrong_types_of_a_recorded_gpu_are_faults(tmp_path: Path, gpu: Any) -> None:
    found = command.load(record(tmp_path, gpus=[gpu]))["gpus"][0]
    assert isinstance(found, dict)
    assert "unread" in json.dumps(found)


def test_a_record_that_is_right_is_not_changed(make: Made, tmp_path: Path) -> None:
    found = {
        "schema": probe.SCHEMA,
        "time": "2026-11-22T10:00:00Z",
        "source": "live",
        **read(make()),
    }
    (tmp_path / "record.json").write_text(json.dumps(found))
    assert command.load(str(tmp_path / "record.json")) == found


def test_anonymous_capture_has_placeholders_for_names() -> None:
    uuid, host, disk = (
        "GPU-11111111-2222-3333-4444-555555555555",
        "node17.example.org",
        "99999999-aaaa-bbbb-cccc-dddddddddddd",
    )
    boot = "b" * 8 + "-1111-2222-3333-" + "b" * 12
    identity = {
        "hostname": host,
        "machine_id": "a" * 32,
        "boot_id": boot,
        "boot_identity": f"{boot}/7",
        "product": {"serial": "S123456"},
    }
    found = command.anonymous(
        {
            "schema": probe.SCHEMA,
            "identity": identity,
            "os": {"kernel": {"cmdline": f"root=UUID={disk} ip=10.1.2.3"}},
            "gpus": [
                {
                    "uuid": uuid,
                    "serial": "165",
                    "settings": {"uuid": uuid},
                    "name": "NVIDIA H100",
                    "inforom": {"image": "10.1.2.3"},
                },
                {
                    "uuid": uuid,
                    "serial": "1650000000001",
                    "fabric": {"cluster": "00000000-0000-0000-0000-000000000000"},
                },
            ],
            "gpu_error": {"fault": "unread", "text": f"{host}: {uuid}"},
            "network": {
                "eth0": {"mac": "aa:bb:cc:00:11:22"},
                "eth1": {"mac": {"fault": "unread", "text": "mac"}},
            },
            "events": {
                "rows": [
                    {
                        "text": f"kernel: {host} {uuid} aa:bb:cc:00:11:22 fell off 0000:18:00.0",
                        "boot_id": boot,
                    }
                ]
            },
            "storage": {
                "mounts": {
                    f"/net/{host}": {
                        "device": "filer.example.org:/export",
                        "options": "rw,addr=10.1.2.3",
                    }
                }
            },
        }
    )
    text = json.dumps(found)
    for name in (
        uuid,
        host,
        disk,
        boot,
        "a" * 32,
        "S123456",
        "1650000000001",
        "aa:bb:cc",
        "filer",
        "ip=10.1",
    ):
        assert name not in text
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-0", "GPU-0"]
    assert found["gpus"][0]["settings"]["uuid"] == "GPU-0"
    assert (found["gpus"][0]["name"], found["gpus"][0]["inforom"]["image"]) == (
        "NVIDIA H100",
        "10.1.2.3",
    )
    assert found["gpus"][1]["fabric"]["cluster"] == "00000000-0000-0000-0000-000000000000", (
        "zeros name nothing"
    )
    assert found["events"]["rows"][0]["text"] == "kernel: HOST-0 GPU-0 MAC-0 fell off 0000:18:00.0"
    assert found["gpu_error"]["text"] == "HOST-0: GPU-0"
    assert found["os"]["kernel"]["cmdline"] == "root=UUID=UUID-0 ip=SERVER-0"
    assert found["storage"]["mounts"] == {
        "/net/HOST-0": {"device": "SERVER-1:/export", "options": "rw,addr=SERVER-0"}
    }
    assert (found["identity"]["boot_id"], found["events"]["rows"][0]["boot_id"]) == (
        "BOOT-0",
        "BOOT-0",
    )
    assert command.anonymous(found) == found, "placeholders stay what they are"


def test_a_host_whose_name_is_a_word_changes_no_values() -> None:
    found = command.anonymous(
        {
            "schema": probe.SCHEMA,
            "identity": {"hostname": "node"},
            "gpus": [{"recovery_action": "node_reboot", "uuid": "GPU-1234"}],
            "numa": {"node": 1, "distances": {"a": {"b": "other_node"}}, "x": "node"},
            "blocked": [{"wait": "up"}],
        }
    )
    assert found["identity"]["hostname"] == "HOST-0"
    assert found["gpus"][0]["recovery_action"] == "node_reboot"
    assert found["numa"] == {"node": 1, "distances": {"a": {"b": "other_node"}}, "x": "node"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("root=/dev/vda1 ro quiet", "root=/dev/vda1 ro quiet"),
        ("ro quiet -- --token=abc --log 10.0.0.7", "ro quiet -- ARGUMENTS"),
        (
            "rdinit=/site/start ro init=/site/run initrd=x",
            "rdinit=PROGRAM ro init=PROGRAM initrd=x",
        ),
        ("a=x--y -- ", "a=x--y -- ARGUMENTS"),
    ],
)
def test_init_programs_and_arguments_are_masked_in_the_command_line(
    line: str, expected: str
) -> None:
    found = command.anonymous({"schema": probe.SCHEMA, "os": {"kernel": {"cmdline": line}}})
    assert found["os"]["kernel"]["cmdline"] == expected
    assert command.without_init(expected) == expected
    assert Redactor().json({"cmdline": line}) == {"cmdline": expected}


def test_capture_command_reads_a_file_or_a_root(
    make: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from goldnode.node.program.main import main

    machine = make()
    assert (
        main(
            [
                "capture",
                "--from",
                record(tmp_path, gpus=[{"uuid": "GPU-1234-5678", "lost": False}]),
                "--anonymous",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["gpus"][0]["uuid"] == "GPU-0"
    assert main(["capture", "--from", str(tmp_path / "none")]) == 3
    assert "cannot be read" in capsys.readouterr().err
    assert main(["capture", "--class", str(tmp_path / "none")]) == 3
    assert main(["capture", "--root", machine.root]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["source"], len(reported["gpus"])) == ("root", 2)
    with pytest.raises(NodeError, match="not a class document"):
        command.given_document(machine, record(tmp_path) + "x")


def test_the_names_of_parts_are_those_of_the_schema() -> None:
    """Whoever adds a part to the child adds it to what is a fault where the child said nothing."""
    reported = {"address", "pci_id", "subsystem_id", *gpus.FROM_LIBRARY}
    for _, reader in collect.parts(False):
        assert callable(reader)
    schema = (Path(__file__).parents[4] / "docs/reference/capture.md").read_text()
    assert [key for key in reported if key not in schema] == []
