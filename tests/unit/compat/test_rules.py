"""The rules that decide now: module flavour, fabric manager's name, end of life."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from goldnode.compat import facts, rules


@pytest.mark.parametrize(
    ("architecture", "open_modules"),
    [
        ("Kepler", "impossible"),
        ("Volta", "impossible"),
        ("Turing", "supported"),
        ("Ampere", "supported"),
        ("Ada Lovelace", "supported"),
        ("hopper", "supported"),
        ("Blackwell", "required"),
        ("Blackwell Ultra", "required"),
        ("Rubin", "required"),
    ],
)
def test_open_modules(architecture: str, open_modules: str) -> None:
    assert rules.open_modules(architecture).open_modules == open_modules


@pytest.mark.parametrize(
    ("sku", "branch", "flavour"),
    [
        ("V100-SXM2-32GB", "580", "proprietary"),
        ("A100-SXM4-40GB", "535", "proprietary"),
        ("A100-SXM4-40GB", "560", "open"),
        ("H100-SXM5-80GB", "580", "open"),
        ("B200-SXM-180GB", "570", "open"),
        ("GH200-120GB (96GB HBM3)", "535", "open"),
    ],
)
def test_flavour_of_a_gpu(sku: str, branch: str, flavour: str) -> None:
    assert rules.module_flavour(facts.gpu(sku), branch)[0] == flavour


@pytest.mark.parametrize(
    ("sku", "branch", "flavour", "fault"),
    [
        ("A100-SXM4-40GB", "580", "open", None),
        ("A100-SXM4-40GB", "580", "proprietary", None),
        ("A100-SXM4-40GB", "510", "open", "branch 510 has no open kernel modules"),
        ("A100-SXM4-40GB", "615", "proprietary", "branch 615 has no proprietary kernel modules"),
        ("B200-SXM-180GB", "580", "proprietary", "needs the open kernel modules"),
        ("GH200-120GB (96GB HBM3)", "550", "proprietary", "needs the open kernel modules"),
        ("V100-SXM2-32GB", "580", "open", "does not work with the open kernel modules"),
    ],
)
def test_flavour_fault(sku: str, branch: str, flavour: Any, fault: str | None) -> None:
    found = rules.flavour_fault(facts.gpu(sku), branch, flavour)
    assert (found is None) if fault is None else (fault in str(found))


def test_every_nvidia_gpu_agrees_with_its_architecture() -> None:
    """The rule by architecture and the fact of each GPU must not contradict each other."""
    for gpu in facts.gpus().values():
        if gpu.vendor != "nvidia":
            continue
        by_architecture = rules.open_modules(gpu.architecture).open_modules
        if gpu.open_modules_required is not None and not gpu.sku.startswith("GH200"):
            assert gpu.open_modules_required == (by_architecture == "required"), gpu.sku
        if gpu.open_modules_supported is False:
            assert by_architecture == "impossible", gpu.sku


@pytest.mark.parametrize(
    ("branch", "name"),
    [("535", "nvidia-fabricmanager-535"), ("570", "nvidia-fabricmanager-570"), ("580", "nvidia-fabricmanager")],
)
def test_fabric_manager(branch: str, name: str) -> None:
    assert rules.fabric_manager_package(branch) == name


@pytest.mark.parametrize(
    ("date", "day", "past"),
    [
        ("2026-06-30", "2026-06-30", False),
        ("2026-06-30", "2026-07-01", True),
        ("2026-06", "2026-06-30", False),
        ("2026-06", "2026-07-01", True),
        ("2024-02", "2024-02-29", False),
        ("2024-02", "2024-03-01", True),
    ],
)
def test_end_of_life(date: str, day: str, past: bool) -> None:
    assert rules.past_end_of_life(date, dt.date.fromisoformat(day)) is past
