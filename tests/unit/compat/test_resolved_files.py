"""Complete answers of resolvers: what a package pins itself is its tested combination, and nothing of it is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.compat.test_rules_workload import node

from goldnode.compat import workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding

CASES = Path(__file__).parents[2] / "cases/compat/resolved"
FILES = sorted(CASES.glob("*.txt"))
# A100 with a driver that runs every CUDA of these files natively or by minor-version compatibility.
NODE = node("A100-SXM4-40GB", "610.43.02", unknown="block")


def found(path: Path, host: object = NODE) -> list[CompatFinding]:
    workload = workloads.requirements(path)
    return [item for item in check(host, [workload]) if item.subject == workload.subject]  # type: ignore[arg-type]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_answer_of_a_resolver_passes_where_unknown_is_a_block(path: Path) -> None:
    assert [item.message for item in found(path) if item.severity != "warn"] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_answer_without_comments_is_read_alike(path: Path, tmp_path: Path) -> None:
    """`pip freeze` writes the same pins and not who requires them."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "#" not in line]
    (tmp_path / "frozen.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    workload = workloads.requirements(tmp_path / "frozen.txt", python="3.12")
    others = [item for item in check(NODE, [workload]) if item.subject == workload.subject]
    assert [item.message for item in others if item.severity != "warn"] == []


@pytest.mark.parametrize(
    ("name", "gpu", "driver", "rule"),
    [
        ("torch-2.8", "B200", "580.178.04", None),
        ("torch-2.8", "P100-PCIE-16GB", "580.178.04", "torch-gpu"),
        ("vllm", "V100-SXM2-32GB", "580.178.04", "framework-gpu"),
        ("sglang", "V100-SXM2-32GB", "580.178.04", "gpu-package"),
        ("jax-cuda13", "A100-SXM4-40GB", "570.211.01", "cuda-driver"),
        ("jax-cuda13", "V100-SXM2-32GB", "580.178.04", "framework-gpu"),
        ("tensorflow", "A100-SXM4-40GB", "470.256.02", "cuda-driver"),
        ("cupy-cuda13x", "A100-SXM4-40GB", "570.211.01", "cuda-driver"),
        ("cupy-cuda13x", "V100-SXM2-32GB", "580.178.04", "cuda-gpu"),
        ("rapids-cu12", "P100-PCIE-16GB", "580.178.04", "gpu-package"),
        ("rapids-cu12", "V100-SXM2-32GB", "580.178.04", None),
        ("rapids-cu13", "A100-SXM4-40GB", "570.211.01", "cuda-driver"),
        ("onnxruntime-gpu", "A100-SXM4-40GB", "570.211.01", "cuda-driver"),
    ],
)
def test_answer_is_judged_by_the_node(name: str, gpu: str, driver: str, rule: str | None) -> None:
    blocks = {
        item.rule
        for item in found(CASES / f"{name}.txt", node(gpu, driver))
        if item.severity == "block"
    }
    assert (rule in blocks) if rule is not None else not blocks


def test_two_frameworks_that_cannot_agree_are_one_block(tmp_path: Path) -> None:
    """TensorFlow 2.18 and torch 2.6 pin other versions of a dozen libraries: no pin satisfies both."""
    lines = [
        "tensorflow[and-cuda]==2.18.0",
        "torch==2.6.0",
        "nvidia-cublas-cu12==12.5.3.2",
        "nvidia-cuda-cupti-cu12==12.5.82",
        "nvidia-cuda-nvrtc-cu12==12.5.82",
        "nvidia-cuda-runtime-cu12==12.5.82",
        "nvidia-cudnn-cu12==9.3.0.75",
        "nvidia-cufft-cu12==11.2.3.61",
        "nvidia-curand-cu12==10.3.6.82",
        "nvidia-cusolver-cu12==11.6.3.83",
        "nvidia-cusparse-cu12==12.5.1.3",
        "nvidia-nccl-cu12==2.21.5",
        "nvidia-nvjitlink-cu12==12.5.82",
    ]
    for text in (lines, [lines[0].replace("[and-cuda]", ""), *lines[1:]], lines[:2]):
        (tmp_path / "r.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
        workload = workloads.requirements(tmp_path / "r.txt", python="3.12")
        (block,) = [
            item
            for item in check(NODE, [workload])
            if item.severity == "block" and item.subject == workload.subject
        ]
        assert "torch 2.6.0 requires" in block.message
        assert "tensorflow 2.18.0 requires" in block.message
        assert "separate environments" in (block.remedy or "")
