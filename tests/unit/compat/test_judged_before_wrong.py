"""Combinations that an independent trial found wrongly judged or not judged: each has the verdict of its public source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.compat.test_rules_workload import node

from goldnode.compat import workloads
from goldnode.compat.check import check

ARM: dict[str, Any] = {"architecture": "arm64", "flavour": "open"}
# GPU, driver, other fields of the node, requirements or an image, and the worst finding ("" is none).
CASES: list[tuple[str, str, dict[str, Any], list[str], str]] = [
    ("P100-PCIE-16GB", "580.178.04", {}, ["cudf-cu12==25.8.0"], "block"),
    ("A100-SXM4-40GB", "570.172.08", {}, ["cudf-cu13==25.12.0"], "block"),
    ("V100-SXM2-32GB", "580.178.04", {}, ["cupy-cuda13x==13.6.0"], "block"),
    ("A100-SXM4-40GB", "570.211.01", {}, ["cupy-cuda13x==13.6.0"], "block"),
    ("V100-SXM2-32GB", "580.178.04", {}, ["nvidia-cudnn-cu13==9.17.0.29"], "block"),
    ("T4", "580.178.04", {}, ["flash-attn==2.8.3"], "block"),
    ("V100-SXM2-32GB", "580.178.04", {}, ["torch==2.6.0"], ""),
    ("A100-SXM4-40GB", "580.178.04", {}, ["torch==2.8.0", "nvidia-cudnn-cu12==9.10.2.21"], ""),
    ("P100-PCIE-16GB", "580.178.04", {}, ["vllm==0.11.0"], "block"),
    ("GeForce-RTX-5070", "580.178.04", {}, ["tensorflow[and-cuda]==2.20.0"], "block"),
    ("GH200-144G-HBM3e", "580.178.04", ARM, ["torch==2.5.1"], "block"),
    ("GB200", "580.178.04", ARM, ["torch==2.6.0"], "block"),
    ("V100S-PCIE-32GB", "580.178.04", {}, ["image nvcr.io/nvidia/tritonserver:25.04-py3"], "block"),
    ("A100-SXM4-40GB", "535.309.01", {}, ["image nvidia/cuda:12.9.1-base-ubuntu24.04"], "warn"),
    ("A100-SXM4-40GB", "535.309.01", {}, ["image pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime"], "warn"),
    ("GeForce-RTX-3090", "450.248.02", {}, [], "block"),
    ("A100-SXM4-40GB", "570.153.02", {"kernel": "6.15.0", "flavour": "proprietary"}, [], "block"),
    ("A100-SXM4-40GB", "580.119.02", {"kernel": "6.19.0"}, [], "block"),
    ("A100-SXM4-40GB", "580.126.09", {"kernel": "6.19.0"}, [], "block"),
    ("A100-SXM4-40GB", "580.119.02", {"kernel": "7.0.9"}, [], "block"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "driver", "more", "asked", "expected"),
    CASES,
    ids=lambda value: "+".join(value).replace(" ", "-") if isinstance(value, list) else None,
)
def test_combination_has_the_verdict_of_its_source(
    gpu: str, driver: str, more: dict[str, Any], asked: list[str], expected: str, tmp_path: Path
) -> None:
    host = node(gpu, driver, **more)
    loads = []
    if asked and asked[0].startswith("image "):
        loads = [workloads.of_text(asked[0].removeprefix("image "))]
    elif asked:
        file = tmp_path / "requirements.txt"
        file.write_text("\n".join(asked) + "\n", encoding="utf-8")
        architecture = more.get("architecture", "amd64")
        loads = [workloads.requirements(file, python="3.12", architecture=architecture)]
    found = [
        item
        for item in check(host, loads)
        if not loads or item.subject.startswith(loads[0].subject)
    ]
    order = ["", "warn", "unknown", "block"]
    assert max([item.severity for item in found], key=order.index, default="") == expected
