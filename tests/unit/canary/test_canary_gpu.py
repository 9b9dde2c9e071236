"""The GPU tier against simulated libcuda, cuBLAS, NCCL and NVML; its arithmetic by itself; and the recorded runs on a real H200."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulators import accelerators
from tests.simulators.hardware import library, scenario
from tests.unit.canary.conftest import Start, small

from goldnode.canary import results
from goldnode.canary.runner import gemm
from goldnode.gpuprogram import linear

JOBS = ("discovery", "memory_bandwidth", "gemm", "host_copies", "launch_latency", "all_reduce")
REQUEST = small(
    tier="gpu",
    jobs=JOBS,
    arguments={
        "gemm": {"size": 256, "samples": 2, "seconds": 0.01, "precisions": ["fp16", "bf16", "fp8"]},
        "memory_bandwidth": {"mib": 1, "samples": 2},
        "host_copies": {"mib": 1, "samples": 2},
        "launch_latency": {"samples": 20},
        "all_reduce": {"mib": [1], "samples": 2},
    },
)
ADDRESS = "0000:18:00.0"  # of the first device of the simulated libcuda, and of the second one of the simulated NVML


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("libraries")
    accelerators.build(place, "libcuda.so.1", "libcublas.so.12", "libnccl.so.2")
    library.build(place)
    boards = scenario.Scenario.of(
        {"class": "x", "gpu": {"vendor": "nvidia", "model": "H200-SXM-141GB", "count": 2}},
        "580.105.08",
        count=2,
    )
    # 0x80 hardware power brake, 0x04 software power cap (nvml.h)
    scenario.write(boards.with_faults(("gpu1.clocks_event_reasons=132",)), place)
    return place


def environment(libraries: Path, words: str = "count=1") -> dict[str, str]:
    place = str(libraries)
    return {
        "LD_LIBRARY_PATH": place,
        "GOLDNODE_SIMULATOR": place,
        "GOLDNODE_ACCELERATOR": f"{words},clock=20",
    }


def test_all_jobs_pass_and_are_labelled_simulated(start: Start, libraries: Path) -> None:
    code, found = start(REQUEST, **environment(libraries))
    assert code == 0, [(job.name, job.why) for job in found.jobs]
    assert (found.simulated, found.platform) == (True, "SIMULATED board x 1")
    assert not any(job.verified for job in found.jobs)
    by_name = {job.name: job for job in found.jobs}
    assert {metric.name for metric in by_name["memory_bandwidth"].metrics} == {
        "memory_copy_driver",
        "memory_copy_kernel",
        "memory_triad",
    }
    assert by_name["gemm"].facts["gpu0_fp8"] == "the library is not here"
    assert "no link was measured" in by_name["all_reduce"].why


def test_samples_carry_the_state_of_the_device(start: Start, libraries: Path) -> None:
    _, found = start({**REQUEST, "jobs": ["memory_bandwidth"]}, **environment(libraries))
    (job,) = found.jobs
    assert job.facts["clock_reasons"] == "hw_power_brake_slowdown, sw_power_cap"
    for metric in job.metrics:
        assert metric.device == ADDRESS
        assert metric.conditions.sm_mhz is not None
        # The power brake comes from outside the node, the power cap is the board's own.
        assert metric.conditions.throttled == ["hw_power_brake_slowdown"]


def test_two_devices_are_measured_one_by_one_and_reduced_together(
    start: Start, libraries: Path
) -> None:
    code, found = start(
        {**REQUEST, "jobs": ["launch_latency", "all_reduce"]}, **environment(libraries, "count=2")
    )
    assert code == 0
    devices = {metric.device for metric in found.jobs[0].metrics}
    assert devices == {ADDRESS, "0000:19:00.0"}
    assert [metric.name for metric in found.jobs[1].metrics] == ["nccl_start", "allreduce_1mib"]


FAULTS = [
    ("memory_bandwidth", "wrong=copy", "failed", "memory_copy_kernel left wrong values"),
    ("gemm", "wrong=product", "failed", "the fp16 product is wrong"),
    ("all_reduce", "count=2,wrong=sum", "failed", "has another sum than 3"),
    ("discovery", "error=cuDeviceGetCount:999", "failed", "cuDeviceGetCount"),
    ("launch_latency", "hang=cuLaunchKernel", "could_not_check", "did not end within 3 s"),
    ("host_copies", "crash=cuMemHostAlloc", "failed", "SIGSEGV"),
    ("host_copies", "error=cuMemHostAlloc:2", "failed", "CUDA_ERROR_OUT_OF_MEMORY"),
]


@pytest.mark.parametrize(("job", "words", "state", "why"), FAULTS)
def test_faults_of_the_device_are_found(
    start: Start, libraries: Path, job: str, words: str, state: str, why: str
) -> None:
    limits = {job: 3} if "hang" in words else {}
    _, found = start({**REQUEST, "jobs": [job], "limits": limits}, **environment(libraries, words))
    assert (found.jobs[0].state, why in found.jobs[0].why) == (state, True), found.jobs[0].why


def test_another_number_of_gpus_than_the_class_fails(start: Start, libraries: Path) -> None:
    request = {**REQUEST, "jobs": ["discovery"], "arguments": {"discovery": {"expected": 8}}}
    code, found = start(request, **environment(libraries))
    assert (code, found.jobs[0].why) == (2, "the class has 8 GPUs, the driver finds 1")


# Numbers


def e4m3(byte: int) -> float:
    """Decode FP8 (E4M3): a sign, four bits of exponent with bias 7, three of mantissa."""
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    value = math.ldexp(mantissa, -9) if not exponent else math.ldexp(8 + mantissa, exponent - 10)
    return -value if sign else value


def numbers(name: str, data: bytes) -> list[float]:
    if name == "fp8":
        return [e4m3(byte) for byte in data]
    if name == "bf16":
        return [
            struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)
        ]
    letter, size = {"fp16": ("e", 2), "fp64": ("d", 8)}.get(name, ("f", 4))
    return list(struct.unpack(f"<{len(data) // size}{letter}", data))


@pytest.mark.parametrize("name", gemm.PRECISIONS)
def test_random_numbers_are_between_a_half_and_two(name: str) -> None:
    kind = gemm.PRECISIONS[name]
    found = numbers(name, gemm.random_numbers(kind, 4096))
    assert len(found) == 4096
    assert all(0.5 <= abs(value) < 2 for value in found)
    assert {value < 0 for value in found} == {True, False}
    assert len({abs(value) for value in found}) >= min(16, 1 << 8 * kind.size)


@given(st.sampled_from(sorted(gemm.PRECISIONS)), st.integers(1, 40))
def test_factors_are_those_of_the_known_product(name: str, n: int) -> None:
    left, right = (numbers(name, data) for data in gemm.factors(name, n))
    transposed = name == "fp8"
    for column in range(n):
        for row in range(n):
            i, k = (column, row) if transposed else (row, column)
            assert left[column * n + row] == linear.a(i, k)
            assert right[column * n + row] == linear.b(row, column)


# A real device


@pytest.mark.parametrize("number", range(1, 7))
def test_recorded_runs_on_an_h200(number: int) -> None:
    """Real results of 2026-11-26, driver 580.159.04, 1 to 3 by the first build of the program. The first was ended at its 80th second."""
    found = results.load(Path(__file__).parent / f"recorded/h200-{number}.json")
    assert (found.platform, found.simulated) == ("NVIDIA H200 x 1", False)
    medians = {
        metric.name: sorted(metric.samples)[len(metric.samples) // 2]
        for job in found.jobs
        for metric in job.metrics
        if metric.phase == "warm"
    }
    # A copy reaches most of the 4.8 TB/s of the data sheet; a slow kernel was 2.7 TiB/s.
    assert medians["memory_triad"] > 0.85 * 4800
    assert medians["gemm_fp8"] > 1.8 * medians["gemm_fp16"]
    (inference,) = (
        m for job in found.jobs for m in job.metrics if (m.name, m.phase) == ("inference", "warm")
    )
    assert len(inference.samples) == 1200
    p99 = results.quantiles(inference)[-1]
    assert p99.bound is not None
    assert p99.value <= p99.bound <= max(inference.samples)
    assert json.loads(found.model_dump_json())["jobs"][-1]["state"] == (
        "not_counted" if number == 1 else "passed"
    )
