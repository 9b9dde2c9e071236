"""Tests of the simulated NVML through the real pynvml, each caller in its own process, like programs on a
node.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.hardware import Scenario, ScenarioError, write
from tests.simulators.hardware.library import functions, pynvml_source, source

from goldnode.facts import host as facts

# Every call returns its value, or the return code as {"rc": N}.
PRELUDE = """
import json, sys
from pynvml import *
def get(call, *arguments):
    try:
        return call(*arguments)
    except NVMLError as error:
        return {"rc": error.value}
def show(*values):
    print(json.dumps(values))
"""
INIT = "nvmlInit(); gpus = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]; gpu = gpus[0]\n"


def document(model: str = "A100-SXM4-40GB", count: int = 8) -> dict[str, Any]:
    return {
        "class": "case",
        "gpu": {"model": model, "count": count},
        "platform": {"nvswitch": True},
        "driver": {"version": "535.309.01"},
    }


class Machine:
    """A directory of the simulator, and processes that use its GPUs."""

    def __init__(self, library: Path, directory: Path, scenario: Scenario) -> None:
        self.library, self.directory, self.scenario = library, directory, scenario
        write(scenario, directory)

    def start(self, code: str, init: str = INIT) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library.parent),
            "GOLDNODE_SIMULATOR": str(self.directory),
        }
        argv = [sys.executable, "-c", PRELUDE + init + code]
        return subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, code: str, init: str = INIT) -> list[Any]:
        """Return the values that `code` passes to `show`."""
        process = self.start(code, init)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        found: list[Any] = json.loads(out)
        return found

    def fault(self, *faults: str) -> None:
        self.scenario = self.scenario.with_faults(faults)
        write(self.scenario, self.directory)

    def reboot(self) -> None:
        """Delete the state under /run, as a reboot does."""
        (self.directory / "run" / "state").unlink()


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Callable[..., Machine]:
    def make(model: str = "A100-SXM4-40GB", count: int = 8) -> Machine:
        return Machine(library, tmp_path, Scenario.of(document(model, count)))

    return make


# ---- identity


def test_boards_are_those_of_the_class(machine: Callable[..., Machine]) -> None:
    have = machine()
    driver, count, name, uuids, pci, memory = have.run(
        "p = nvmlDeviceGetPciInfo(gpu)\n"
        "show(nvmlSystemGetDriverVersion(), len(gpus), nvmlDeviceGetName(gpu), [nvmlDeviceGetUUID(g) for "
        "g in gpus],"
        " [hex(p.pciDeviceId), p.busId], [nvmlDeviceGetMemoryInfo(gpu).total, "
        "nvmlDeviceGetMemoryInfo(gpu, version=nvmlMemory_v2).total])"
    )
    assert (driver, count, name) == ("535.309.01", 8, "NVIDIA A100-SXM4-40GB")
    assert len(set(uuids)) == 8
    assert all(
        re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) for uuid in uuids
    )
    vendor, device = facts.gpu("A100-SXM4-40GB").pci_ids[0].split(":")
    assert pci == [f"0x{device}{vendor}", "00000000:10:00.0"]
    assert memory == [(facts.gpu("A100-SXM4-40GB").memory_mib or 0) << 20] * 2


def test_simulated_gpu_reports_a_simulated_serial_and_vbios(
    machine: Callable[..., Machine],
) -> None:
    have = machine()
    serial, vbios = have.run("show(nvmlDeviceGetSerial(gpu), nvmlDeviceGetVbiosVersion(gpu))")
    assert serial == "SIMULATED-00"
    assert vbios == "SIMULATED"
    assert "simulated" in (have.directory / "SIMULATED").read_text()
    assert {"max_clock", "serial", "power_min"} <= set(have.scenario.invented)
    assert "memory" not in have.scenario.invented


def test_gpus_are_found_by_uuid_serial_and_address(machine: Callable[..., Machine]) -> None:
    have = machine()
    found = have.run(
        "g = gpus[5]; u = nvmlDeviceGetUUID(g); s = nvmlDeviceGetSerial(g); b = "
        "nvmlDeviceGetPciInfo(g).busId\n"
        "show(*[nvmlDeviceGetIndex(h) for h in (nvmlDeviceGetHandleByUUID(u.encode()), "
        "nvmlDeviceGetHandleBySerial(s.encode()),"
        " nvmlDeviceGetHandleByPciBusId(b.encode()), nvmlDeviceGetHandleByPciBusId(b[4:].lower().encode()))],"
        " get(nvmlDeviceGetHandleByUUID, b'GPU-0'), get(nvmlDeviceGetHandleByIndex, 8))"
    )
    assert found == [5, 5, 5, 5, {"rc": 6}, {"rc": 2}]


def test_every_function_of_pynvml_is_there(library: Path) -> None:
    reported = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    assert (
        sorted(set(functions(pynvml_source())) - set(re.findall(r" T (nvml\w+)", reported))) == []
    )


def test_the_library_runs_on_an_older_system(library: Path) -> None:
    """The library must need no newer C library than that of the oldest supported node (Debian 11: 2.31)."""
    reported = subprocess.run(
        ["objdump", "-T", str(library)], capture_output=True, text=True, check=True
    ).stdout
    needed = {
        tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", reported)
    }
    assert needed
    assert max(needed) <= (2, 31)


def test_the_same_inputs_give_the_same_text() -> None:
    assert source() == source()
    assert Scenario.of(document()).lines() == Scenario.of(document()).lines()
    assert Scenario.read(Scenario.of(document()).text()) == Scenario.of(document())


def test_structures_have_the_sizes_of_the_abi(machine: Callable[..., Machine]) -> None:
    """Writing past the end of a structure would corrupt the caller, so a guard follows each one."""
    have = machine("H100-SXM5-80GB", 1)
    found = have.run(
        "import ctypes, pynvml\n"
        "def guarded(name, struct, version=None):\n"
        "    class Guarded(ctypes.Structure):\n"
        "        _fields_ = [('inner', struct), ('guard', ctypes.c_ubyte * 64)]\n"
        "    one = Guarded(); ctypes.memset(ctypes.byref(one), 0xA5, ctypes.sizeof(one)); "
        "ctypes.memset(ctypes.byref(one.inner), 0, ctypes.sizeof(one.inner))\n"
        "    if version: one.inner.version = version\n"
        "    rc = getattr(pynvml.nvmlLib, name)(gpu, ctypes.byref(one))\n"
        "    return [rc, bytes(one.guard) == b'\\xa5' * 64]\n"
        "show(*[guarded(*row) for row in ("
        "('nvmlDeviceGetPciInfo_v3', nvmlPciInfo_t), ('nvmlDeviceGetPciInfoExt', nvmlPciInfoExt_v1_t, "
        "0x1000040),"
        "('nvmlDeviceGetMemoryInfo', c_nvmlMemory_t), ('nvmlDeviceGetMemoryInfo_v2', c_nvmlMemory_v2_t, "
        "0x2000028),"
        "('nvmlDeviceGetBAR1MemoryInfo', c_nvmlBAR1Memory_t), ('nvmlDeviceGetUtilizationRates', "
        "c_nvmlUtilization_t),"
        "('nvmlDeviceGetRowRemapperHistogram', c_nvmlRowRemapperHistogramValues),"
        "('nvmlDeviceGetSramEccErrorStatus', c_nvmlEccSramErrorStatus_v1_t, 0x1000068),"
        "('nvmlDeviceGetTemperatureV', c_nvmlTemperature_v1_t, 0x100000C),"
        "('nvmlDeviceGetGpuFabricInfo', c_nvmlGpuFabricInfo_t), ('nvmlDeviceGetGpuFabricInfoV', "
        "c_nvmlGpuFabricInfo_v2_t, 0x2000024),"
        ")])"
    )
    assert found == [[0, True]] * len(found)


# ---- setters and their reading back


def test_settings_of_one_process_are_read_by_another_until_reboot(
    machine: Callable[..., Machine],
) -> None:
    have = machine()
    have.run(
        "nvmlDeviceSetPersistenceMode(gpu, 1); nvmlDeviceSetPowerManagementLimit(gpu, 300000); "
        "nvmlDeviceSetComputeMode(gpu, 3)\n"
        "clock = nvmlDeviceGetSupportedGraphicsClocks(gpu, nvmlDeviceGetSupportedMemoryClocks(gpu)[0])[2]\n"
        "nvmlDeviceSetApplicationsClocks(gpu, nvmlDeviceGetSupportedMemoryClocks(gpu)[0], clock); show()"
    )
    read = (
        "show(*[[nvmlDeviceGetPersistenceMode(g), nvmlDeviceGetPowerManagementLimit(g), "
        "nvmlDeviceGetEnforcedPowerLimit(g),"
        " nvmlDeviceGetComputeMode(g), nvmlDeviceGetApplicationsClock(g, 0)] for g in gpus[:2]])"
    )
    first, second = have.run(read)
    assert first == [1, 300000, 300000, 3, 1380]
    assert second == [0, 400000, 400000, 0, 1410]
    have.reboot()
    assert have.run(read)[0] == second
    assert (
        "nvmlDeviceSetPowerManagementLimit 300000 rc=0"
        in (have.directory / "run" / "calls").read_text()
    )


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceSetPowerManagementLimit, gpu, 99999",
        "nvmlDeviceSetPowerManagementLimit, gpu, 400001",
        "nvmlDeviceSetApplicationsClocks, gpu, 1215, 1405",
        "nvmlDeviceSetApplicationsClocks, gpu, 1200, 1410",
        "nvmlDeviceSetGpuLockedClocks, gpu, 1400, 1300",
        "nvmlDeviceSetGpuLockedClocks, gpu, 210, 1411",
        "nvmlDeviceSetMemoryLockedClocks, gpu, 1215, 1216",
        "nvmlDeviceSetComputeMode, gpu, 4",
        "nvmlDeviceSetEccMode, gpu, 2",
        "nvmlDeviceSetMigMode, gpu, 2",
        "nvmlDeviceSetPersistenceMode, gpu, 2",
        "nvmlDeviceSetPersistenceMode, 4096, 1",
    ],
)
def test_unsupported_setting_is_refused_and_not_stored(
    machine: Callable[..., Machine], call: str
) -> None:
    have = machine()
    assert have.run(f"show(get({call}))") == [{"rc": 2}]
    assert not (have.directory / "state").read_text()


def test_locked_clocks_show_only_in_the_clock_that_runs(machine: Callable[..., Machine]) -> None:
    have = machine()
    have.run(
        "nvmlDeviceSetGpuLockedClocks(gpu, 1200, 1300); nvmlDeviceSetMemoryLockedClocks(gpu, 1215, "
        "1215); show()"
    )
    assert have.run(
        "show(nvmlDeviceGetClockInfo(gpu, 0), nvmlDeviceGetApplicationsClock(gpu, 0))"
    ) == [
        1200,
        1410,
    ]
    assert "gpu0.locked_graphics.1=1300" in (have.directory / "run" / "state").read_text()
    have.run("nvmlDeviceResetGpuLockedClocks(gpu); nvmlDeviceResetMemoryLockedClocks(gpu); show()")
    assert have.run("show(nvmlDeviceGetClockInfo(gpu, 0))") == [210]


def test_ecc_waits_for_the_reboot(machine: Callable[..., Machine]) -> None:
    have = machine()
    assert have.run(
        "nvmlDeviceSetEccMode(gpu, 0); show(nvmlDeviceGetEccMode(gpu), nvmlDeviceGetEccMode(gpus[1]))"
    ) == [[1, 0], [1, 1]]
    assert have.run("show(nvmlDeviceGetEccMode(gpu))") == [[1, 0]]
    have.reboot()
    assert have.run("show(nvmlDeviceGetEccMode(gpu), nvmlDeviceGetEccMode(gpus[1]))") == [
        [0, 0],
        [1, 1],
    ]


def test_ecc_counters_are_cleared_but_for_the_lifetime_ones(
    machine: Callable[..., Machine],
) -> None:
    have = machine()
    (have.directory / "run").mkdir()
    (have.directory / "run" / "state").write_text(
        "booted=1\ngpu0.ecc_errors.1.0=3\ngpu0.ecc_errors.1.1=7\n"
    )
    found = have.run(
        "show(nvmlDeviceGetTotalEccErrors(gpu, 1, 0), nvmlDeviceGetTotalEccErrors(gpu, 1, 1), "
        "nvmlDeviceClearEccErrorCounts(gpu, 0),"
        " get(nvmlDeviceClearEccErrorCounts, gpu, 1), nvmlDeviceGetTotalEccErrors(gpu, 1, 0), "
        "nvmlDeviceGetTotalEccErrors(gpu, 1, 1))"
    )
    assert found == [3, 7, None, {"rc": 3}, 0, 7]


# ---- MIG


def test_mig_instances_are_created_and_lost_at_a_reboot(machine: Callable[..., Machine]) -> None:
    have = machine()
    layout = (
        "names = {}\n"
        "for index in range(NVML_GPU_INSTANCE_PROFILE_COUNT):\n"
        "    p = get(nvmlDeviceGetGpuInstanceProfileInfo, gpu, index)\n"
        "    if not isinstance(p, dict): names[p.id] = p.name\n"
        "def listed():\n"
        "    found = []\n"
        "    for id in names:\n"
        "        array = (c_nvmlGpuInstance_t * 16)(); count = c_uint(16)\n"
        "        nvmlDeviceGetGpuInstances(gpu, id, array, byref(count))\n"
        "        for g in array[:count.value]:\n"
        "            i = nvmlGpuInstanceGetInfo(g); found.append([names[i.profileId], i.id, "
        "i.placement.start, i.placement.size])\n"
        "    return sorted(found)\n"
    )
    assert have.run(
        "show(get(nvmlDeviceCreateGpuInstance, gpu, 9), nvmlDeviceSetMigMode(gpu, 1), "
        "nvmlDeviceGetMigMode(gpu))"
    ) == [
        {"rc": 3},
        0,
        [1, 1],
    ]
    made = have.run(
        layout + "ids = {n: i for i, n in names.items()}\n"
        "three = nvmlDeviceCreateGpuInstance(gpu, ids['MIG 3g.20gb']); nvmlDeviceCreateGpuInstance(gpu, "
        "ids['MIG 4g.20gb'])\n"
        "nvmlGpuInstanceCreateComputeInstance(three, NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE)\n"
        "show(sorted(names.values()), get(nvmlDeviceCreateGpuInstance, gpu, ids['MIG 1g.5gb']),"
        " get(nvmlGpuInstanceCreateComputeInstance, three, 0), get(nvmlGpuInstanceDestroy, three), "
        "get(nvmlDeviceSetMigMode, gpu, 0))"
    )
    assert made[0] == sorted(
        f"MIG {name}" for name in facts.gpu("A100-SXM4-40GB").mig_profiles or ()
    )
    assert made[1:] == [{"rc": 23}, {"rc": 23}, {"rc": 19}, {"rc": 19}]
    seen, mig = have.run(
        layout + "m = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)\n"
        "show(listed(), [nvmlDeviceGetUUID(m)[:4], nvmlDeviceGetName(m), "
        "get(nvmlDeviceGetMigDeviceHandleByIndex, gpu, 1),"
        " get(nvmlDeviceGetRemappedRows, gpu), get(nvmlDeviceSetComputeMode, gpu, 3)])"
    )
    assert seen == [["MIG 3g.20gb", 1, 4, 4], ["MIG 4g.20gb", 2, 0, 4]]
    assert mig == ["MIG-", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", {"rc": 6}, {"rc": 3}, {"rc": 3}]
    have.reboot()  # an Ampere board retains the mode, but no board retains the instances
    assert have.run(
        layout + "show(nvmlDeviceGetMigMode(gpu), listed(), nvmlDeviceSetMigMode(gpu, 0))"
    ) == [
        [1, 1],
        [],
        0,
    ]


def test_mig_of_a_busy_gpu_waits(machine: Callable[..., Machine]) -> None:
    have = machine()
    have.fault("gpu0.processes=4242:1000000")
    assert have.run(
        "show(nvmlDeviceSetMigMode(gpu, 1), nvmlDeviceGetMigMode(gpu), "
        "nvmlDeviceGetComputeRunningProcesses(gpu)[0].pid)"
    ) == [
        19,
        [0, 1],
        4242,
    ]
    have.reboot()
    assert have.run("show(nvmlDeviceGetMigMode(gpu))") == [[1, 1]]


def test_a_hopper_board_forgets_mig_at_the_reboot(machine: Callable[..., Machine]) -> None:
    have = machine("H100-SXM5-80GB")
    assert have.run("nvmlDeviceSetMigMode(gpu, 1); show(nvmlDeviceGetMigMode(gpu))") == [[1, 1]]
    have.reboot()
    assert have.run("show(nvmlDeviceGetMigMode(gpu))") == [[0, 0]]


def test_a_board_without_mig_does_not_support_it(machine: Callable[..., Machine]) -> None:
    have = machine("L4", 1)
    assert have.run("show(get(nvmlDeviceGetMigMode, gpu), get(nvmlDeviceSetMigMode, gpu, 1))") == [
        {"rc": 3},
        {"rc": 3},
    ]


# ---- faults


@pytest.mark.parametrize(
    ("fault", "rc"),
    [
        ("init=error:driver_not_loaded", 9),
        ("init=error:library_mismatch", 18),
        ("init=error:999", 999),
    ],
)
def test_init_fails_with_the_injected_code(
    machine: Callable[..., Machine], fault: str, rc: int
) -> None:
    have = machine()
    have.fault(fault)
    assert have.run("show(get(nvmlInit), get(nvmlDeviceGetCount))", init="") == [
        {"rc": rc},
        {"rc": 1},
    ]


def test_faults_of_one_gpu(machine: Callable[..., Machine]) -> None:
    have = machine()
    have.fault(
        "gpu3.all=error:lost",
        "gpu2.power_limit=250000",
        "gpu1.uuid=@gpu0.uuid",
        "gpu*.temperature.0=91",
        "gpu4.ecc_current=error:not_supported",
    )
    found = have.run(
        "nvmlDeviceSetPowerManagementLimit(gpus[2], 350000)\n"
        "show(get(nvmlDeviceGetName, gpus[3]), get(nvmlDeviceSetPersistenceMode, gpus[3], 1), "
        "nvmlDeviceGetPowerManagementLimit(gpus[2]),"
        " nvmlDeviceGetUUID(gpus[1]) == nvmlDeviceGetUUID(gpu), nvmlDeviceGetTemperature(gpus[7], 0), "
        "get(nvmlDeviceGetEccMode, gpus[4]))"
    )
    assert found == [{"rc": 15}, {"rc": 15}, 250000, True, 91, {"rc": 3}]


def test_setters_that_fail_or_do_nothing(machine: Callable[..., Machine]) -> None:
    have = machine()
    have.fault("gpu0.set.power_limit=error:no_permission", "gpu1.set.power_limit=ignored")
    assert have.run(
        "show(*[[get(nvmlDeviceSetPowerManagementLimit, g, 200000), "
        "nvmlDeviceGetPowerManagementLimit(g)] for g in gpus[:3]])"
    ) == [[{"rc": 4}, 400000], [None, 400000], [None, 200000]]


def test_faults_are_seen_at_the_next_init(machine: Callable[..., Machine]) -> None:
    have = machine()
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(have.library.parent),
        "GOLDNODE_SIMULATOR": str(have.directory),
    }
    code = (
        PRELUDE + INIT + "before = nvmlDeviceGetTemperature(gpu, 0)\n"
        f"open({str(have.directory / 'faults')!r}, 'w').write('gpu0.temperature.0=95\\n')\n"
        "same = nvmlDeviceGetTemperature(gpu, 0); nvmlShutdown(); nvmlInit(); show(before, same, "
        "nvmlDeviceGetTemperature(gpu, 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [30, 30, 95]


def test_absent_gpus_are_not_counted(machine: Callable[..., Machine]) -> None:
    have = machine()
    have.fault("gpu3.absent=1")
    assert have.run("show(len(gpus), nvmlDeviceGetSerial(gpus[3]))") == [7, "SIMULATED-04"]
    have.fault("count=6")
    assert have.run("show(len(gpus))") == [5]


def test_a_hang_is_killed_by_the_parent_and_blocks_nothing(machine: Callable[..., Machine]) -> None:
    have = machine()
    have.fault("gpu0.temperature.0=hang", "gpu1.temperature.0=hang:1")
    hung = have.start("print('asking', flush=True); nvmlDeviceGetTemperature(gpu, 0)")
    assert hung.stdout is not None
    assert hung.stdout.readline() == "asking\n"
    assert have.run(
        "nvmlDeviceSetPersistenceMode(gpu, 1); show(nvmlDeviceGetPersistenceMode(gpu), "
        "nvmlDeviceGetTemperature(gpus[1], 0))"
    ) == [
        1,
        30,
    ]
    assert hung.poll() is None
    hung.kill()
    assert hung.wait(10) == -9
    hung.communicate()


def test_sixteen_gpus_and_no_more(machine: Callable[..., Machine]) -> None:
    have = machine(count=16)
    assert have.run(
        "show(len({nvmlDeviceGetUUID(g) for g in gpus}), len({nvmlDeviceGetPciInfo(g).busId for g in gpus}))"
    ) == [16, 16]
    with pytest.raises(ScenarioError, match="17 GPUs cannot be simulated"):
        Scenario.of(document(count=17))


def test_setters_at_the_same_time_lose_nothing(machine: Callable[..., Machine]) -> None:
    have = machine()
    work = [
        have.start(
            f"for n in range(40): nvmlDeviceSetPowerManagementLimit(gpus[{g}], 200000 + n)\nshow()"
        )
        for g in range(8)
    ]
    for process in work:
        assert process.wait(60) == 0
        process.communicate()
    assert have.run("show(*[nvmlDeviceGetPowerManagementLimit(g) for g in gpus])") == [200039] * 8


@pytest.mark.parametrize(
    ("fault", "output"),
    [
        ("gpu3.power_limt=1", "power_limit"),
        ("gpu9.power_limit=1", "gpu0 to gpu7"),
        ("gpu3.power_limit", "KEY=VALUE"),
        ("gpu3.all=error:lst", "lost"),
        ("inti=error:9", "init"),
        ("gpu1.uuid=@gpu8.uuid", "Name a GPU"),
    ],
)
def test_a_fault_that_cannot_be_is_explained(fault: str, output: str) -> None:
    with pytest.raises(ScenarioError) as reported:
        Scenario.of(document()).with_faults([fault])
    assert output in str(reported.value)


@pytest.mark.parametrize(
    "model", [sku for sku, gpu in facts.gpus().items() if gpu.vendor == "nvidia"]
)
def test_every_model_of_the_facts_can_be_simulated(model: str) -> None:
    scenario = Scenario.of(document(model, 1))
    assert scenario.gpus[0]["name"]
    profiles = {
        row.split(",")[-1] for key, row in scenario.gpus[0].items() if key.startswith("mig_profile")
    }
    assert bool(profiles) == bool(facts.gpu(model).mig_capable)
