"""The GPU tier against simulated libraries, which compute on the host and say so; the floor against a driver of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.simulators import accelerators
from tests.unit.gpuprogram.conftest import Run, one, states

from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.gpuprogram import cuda, device, image, linear
from goldnode.gpuprogram.results import Failed
from goldnode.gpuprogram.smoke import pack

SMALL = ("--tier", "gpu", "--size", "48", "--seconds", "0.01", "--memory-mib", "2")
TESTS = dict.fromkeys(("discovery", "gemm", "inference", "collective", "memory"), "passed")


@pytest.fixture(params=["cuda", "rocm"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A backend, and a root with device files of two of its GPUs."""
    accelerators.devices(
        tmp_path / "root", request.param, 2, "10de:2335" if request.param == "cuda" else "1002:74a1"
    )
    return str(request.param)


def test_two_devices_pass_and_are_marked_as_simulated(
    run: Run, libraries: Path, backend: str
) -> None:
    code, record = run(
        "--backend", backend, *SMALL, LD_LIBRARY_PATH=str(libraries), GOLDNODE_ACCELERATOR="count=2"
    )
    assert code == 0
    found = states(record, "gpu")
    found.pop("run-time compiled", None)
    assert found == TESTS
    assert record["simulated"] is True
    assert record["tiers"]["gpu"]["simulated"] is True
    got = one(record, "gpu", "discovery")["got"]
    assert [row["name"] for row in got["devices"]] == ["SIMULATED board"] * 2
    assert one(record, "gpu", "collective")["figures"]["ranks"] == 2
    assert one(record, "gpu", "memory")["figures"]["gpu1_mib"] == 2


@pytest.mark.parametrize(
    ("fault", "test", "why"),
    [
        ("wrong=memory", "memory", "GPU 0: memory differs from what was written"),
        ("wrong=product", "gemm", "the fp16 product is wrong in row 3, column 1"),
        ("wrong=relu", "inference", "GPU 0: the network's output is wrong"),
        ("wrong=sum", "collective", "GPU 1 has another sum"),
        ("error=ncclCommInitAll:2", "collective", "ncclCommInitAll: unhandled system error"),
        ("error=cuMemAlloc_v2:2", "memory", "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"),
        ("crash=cuLaunchKernel", "inference", "ended by SIGSEGV"),
    ],
)
def test_a_fault_fails_its_test(
    run: Run, libraries: Path, tmp_path: Path, fault: str, test: str, why: str
) -> None:
    accelerators.devices(tmp_path / "root", "cuda", 2)
    words = ("--backend", "cuda", *SMALL, "--test", test)
    code, record = run(
        *words, LD_LIBRARY_PATH=str(libraries), GOLDNODE_ACCELERATOR=f"count=2,{fault}"
    )
    assert code == 2
    assert why in one(record, "gpu", test)["why"]


def test_a_driver_that_hangs_could_not_be_run(run: Run, libraries: Path, tmp_path: Path) -> None:
    accelerators.devices(tmp_path / "root", "cuda", 1)
    words = ("--backend", "cuda", *SMALL, "--test", "memory", "--limit", "3")
    code, record = run(
        *words, LD_LIBRARY_PATH=str(libraries), GOLDNODE_ACCELERATOR="hang=cuLaunchKernel"
    )
    assert (code, record["tiers"]["gpu"]["state"], record["status"]) == (3, "not_run", "not_run")
    assert record["tiers"]["gpu"]["why"] == "could not be run: memory"


def test_a_lost_device_and_none_at_all_fail(run: Run, libraries: Path, tmp_path: Path) -> None:
    accelerators.devices(tmp_path / "root", "cuda", 2)
    words = ("--backend", "cuda", *SMALL, "--test", "discovery")
    for fault, expected, got in (("count=1", 2, 1), ("count=0", 0, 100)):
        code, record = run(*words, LD_LIBRARY_PATH=str(libraries), GOLDNODE_ACCELERATOR=fault)
        test = one(record, "gpu", "discovery")
        assert (code, test["expected"], test["got"]) == (2, expected, got)
    code, _ = run(
        *words,
        LD_LIBRARY_PATH=str(libraries),
        GOLDNODE_ACCELERATOR="count=1",
        CUDA_VISIBLE_DEVICES="1",
    )
    assert code == 0  # the environment leaves one out
    code, _ = run(
        *words, "--gpus", "4", LD_LIBRARY_PATH=str(libraries), GOLDNODE_ACCELERATOR="count=2"
    )
    assert code == 2


def test_one_device_has_no_collective(run: Run, libraries: Path, tmp_path: Path) -> None:
    accelerators.devices(tmp_path / "root", "cuda", 1)
    code, record = run(
        "--backend", "cuda", *SMALL, LD_LIBRARY_PATH=str(libraries), GOLDNODE_ACCELERATOR="count=1"
    )
    assert (code, states(record, "gpu")["collective"], record["tiers"]["gpu"]["state"]) == (
        0,
        "not_run",
        "passed",
    )
    assert "collective" in record["tiers"]["gpu"]["why"]


def test_without_a_driver_library_device_files_fail(run: Run, tmp_path: Path) -> None:
    accelerators.devices(tmp_path / "root", "cuda", 1)
    code, record = run("--backend", "cuda", "--test", "driver", "--test", "discovery")
    assert code == 2
    assert "the container toolkit did not bring it" in one(record, "cpu", "driver")["why"]


# -- the floor


class Host(device.GpuDriver):
    """A driver whose matrix unit takes no time at all: `tflops` are what a clock of the test's own makes of it."""

    blas = ("fp16", "tf32")

    def __init__(self, name: str = "NVIDIA H200", tflops: float = 700.0) -> None:
        self.gpu = device.GpuDevice(
            0, name=name, memory=141 << 30, address="0000:18:00.0", capability=(9, 0), units=132
        )
        self.tflops = tflops

    def use(self, index: int) -> None:
        assert index == 0

    def gpus(self) -> list[device.GpuDevice]:
        return [self.gpu]

    def free(self) -> int:
        return 140 << 30

    def kernels(self) -> str:
        return "none"


def measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: Host, pci_id: str = "10de:2335"
) -> dict[str, Any]:
    accelerators.devices(tmp_path, "cuda", 1, pci_id)
    monkeypatch.setattr(cuda, "open_driver", lambda **options: host)
    monkeypatch.setattr(
        device,
        "multiply",
        lambda found, kind, n, seconds: host.tflops if kind == "fp16" else host.tflops / 2,
    )
    return device.gemm("cuda", floors=pack.floors(), root=str(tmp_path))


def test_gemm_below_the_floor_of_its_model_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = measured(monkeypatch, tmp_path, Host())
    assert found["state"] == "passed"
    assert found["expected"] == [
        {"model": "H200-SXM-141GB", "floor_tflops": {"fp16": 445.1, "tf32": 222.5}}
    ]
    assert (found["got"][0]["size"], found["why"]) == (8192, "")
    with pytest.raises(Failed, match="slower than the floor: GPU 0 fp16, GPU 0 tf32") as raised:
        measured(monkeypatch, tmp_path, Host(tflops=400.0))
    assert raised.value.result["figures"] == {"gpu0_fp16_tflops": 400.0, "gpu0_tf32_tflops": 200.0}


@pytest.mark.parametrize(
    ("name", "pci_id", "why"),
    [
        ("NVIDIA Something", "10de:ffff", "its PCI id is in no row of the facts"),
        ("NVIDIA H200 MIG 1g.18gb", "10de:2335", "it is a part of a board"),
    ],
)
def test_gemm_without_a_known_floor_passes_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, pci_id: str, why: str
) -> None:
    found = measured(monkeypatch, tmp_path, Host(name, 1.0), pci_id)
    assert found["state"] == "passed"
    assert f"no floor is known for {name}: {why}" in found["why"]


def test_matrices_fit_what_is_free() -> None:
    assert device.fitting(140 << 30, 8192) == 8192
    assert device.fitting(1 << 30, 8192) == 4096
    assert device.fitting(0, 8192) == 256


def test_every_floor_is_of_a_model_that_the_facts_know(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pack.floors()
    models = [row["model"] for row in rows]
    assert len(models) == len(set(models))
    assert {
        "A100-SXM4-40GB",
        "H100-SXM5-80GB",
        "H200-SXM-141GB",
        "B200-SXM-180GB",
        "MI300X",
        "L4",
    } <= set(models)
    peaks = {
        sku: row["tflops"]
        for row in facts.load("performance.yml")["dense_peaks"]
        for sku in row["skus"]
    }
    for row in rows:
        assert row["pci_ids"]
        assert all(
            0.2 * peaks[row["model"]][name] <= floor <= 0.5 * peaks[row["model"]][name]
            for name, floor in row["floor_tflops"].items()
        )
    data = {
        "floor_share": {"value": 0.5},
        "dense_peaks": [{"skus": ["H200-SXM-140GB"], "tflops": {"fp16": 1}}],
    }
    monkeypatch.setattr(
        facts,
        "load",
        lambda name, real=facts.load: data if name == "performance.yml" else real(name),
    )
    with pytest.raises(FactsError, match="H200-SXM-140GB"):
        pack.floors()


def test_pci_ids_and_devices_are_read_from_files(tmp_path: Path) -> None:
    accelerators.devices(tmp_path, "cuda", 2)
    assert image.pci_id("0000:18:00.0", str(tmp_path)) == "10de:2335"
    assert image.pci_id("0000:99:00.0", str(tmp_path)) is None
    assert len(image.devices("cuda", str(tmp_path))) == 2
    assert image.devices("rocm", str(tmp_path)) == []
    render = tmp_path / "dev/dri/renderD128"
    render.parent.mkdir()
    render.touch()
    vendor = tmp_path / "sys/class/drm/renderD128/device/vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("0x1a03\n")  # a management controller's display
    assert image.devices("oneapi", str(tmp_path)) == []
    vendor.write_text("0x8086\n")
    assert image.devices("oneapi", str(tmp_path)) == [str(render)]
    assert linear.cell(0, 0, 35) == sum(linear.a(0, k) * linear.b(k, 0) for k in range(35))
