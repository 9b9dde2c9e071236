"""The rules that decide now: module flavour, fabric manager's name, end of life."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from goldnode.compat import rules
from goldnode.facts import host as facts


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
def test_open_modules_follow_from_the_architecture(architecture: str, open_modules: str) -> None:
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
def test_flavour_fault_names_an_impossible_flavour(
    sku: str, branch: str, flavour: Any, fault: str | None
) -> None:
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
    [
        ("535", "nvidia-fabricmanager-535"),
        ("570", "nvidia-fabricmanager-570"),
        ("580", "nvidia-fabricmanager"),
    ],
)
def test_fabric_manager_package_follows_from_the_branch(branch: str, name: str) -> None:
    assert rules.fabric_manager_package(branch) == name


@pytest.mark.parametrize(
    ("date", "day"),
    [
        ("2026-06-30", "2026-06-30"),
        ("2026-06", "2026-06-30"),
        ("2024-02", "2024-02-29"),
        ("2026-12", "2026-12-31"),
    ],
)
def test_the_last_day_of_a_date(date: str, day: str) -> None:
    assert rules.last_day(date) == dt.date.fromisoformat(day)


@pytest.mark.parametrize(
    ("engine", "version", "toolkit", "mode", "message"),
    [
        pytest.param(
            "docker",
            "20.10.24+dfsg1-1+deb12u1",
            "1.20.0-1",
            "legacy",
            "20.10.24 does not read",
            id="debian-12-docker",
        ),
        pytest.param(
            "docker",
            "26.1.5+dfsg1-9+b4",
            "1.20.0-1",
            "cdi",
            "26.1.0 or later",
            id="debian-13-docker",
        ),
        pytest.param(
            "docker", "26.1.5+dfsg1-9+b4", None, "cdi", "numeric groups", id="debian-13-docker-amd"
        ),
        pytest.param(
            "docker",
            "5:27.3.1-1~debian.12~bookworm",
            "1.20.0-1",
            "cdi",
            "27.3.1",
            id="docker-ce-with-epoch",
        ),
        pytest.param(
            "docker",
            "26.0.2-1",
            "1.19.1-1",
            "legacy",
            "26.1.0 is the first",
            id="docker-knows-cdi-but-not-0.7",
        ),
        pytest.param(
            "docker", "26.0.2-1", "1.19.0-1", "cdi", "25.0", id="older-toolkit-writes-older-specs"
        ),
        pytest.param(
            "docker", "24.0.7-1", "1.19.0-1", "legacy", "25.0 is the first", id="docker-without-cdi"
        ),
        pytest.param(
            "docker", "26.1.0~ds1-1", "1.19.1-1", "cdi", "26.1.0", id="exactly-the-first-repackaged"
        ),
        pytest.param(
            "containerd",
            "1.6.20~ds1-1+deb12u3",
            "1.20.0-1",
            "legacy",
            "1.7.16 is the first",
            id="debian-12-containerd",
        ),
        pytest.param(
            "containerd", "1.7.24~ds1-6+b4", "1.20.0-1", "cdi", "1.7.16", id="debian-13-containerd"
        ),
        pytest.param(
            "containerd",
            "1.7.24~ds1-6+b4",
            "1.19.0-1",
            "legacy",
            "facts know no containerd",
            id="no-fact-is-no-promise",
        ),
        pytest.param(
            "podman",
            "4.3.1+ds1-8+deb12u1",
            "1.20.0-1",
            "legacy",
            "5.1.0 is the first",
            id="debian-12-podman",
        ),
        pytest.param("podman", "5.4.2+ds1-2+b2", "1.20.0-1", "cdi", "5.1.0", id="debian-13-podman"),
    ],
)
def test_toolkit_mode_follows_from_engine_and_toolkit(
    engine: str, version: str, toolkit: str | None, mode: str, message: str
) -> None:
    found = rules.toolkit_mode(engine, version, toolkit)
    assert found.mode == mode, found.reason
    assert message in found.reason


def test_the_floor_of_the_toolkit_is_the_newest_fix() -> None:
    rows = facts.load("container_toolkit.yml")["security"]
    assert rules.toolkit_faults(rules.toolkit_floor()) == []
    assert rules.toolkit_safe(rules.toolkit_floor())
    assert not rules.toolkit_safe("1.19.0-1")
    assert rules.toolkit_faults("1.19.0-1") == ["CVE-2026-24260"]
    assert {"CVE-2025-23266", "CVE-2026-24260"} <= set(rules.toolkit_faults("1.17.7"))
    assert all(rules.toolkit_faults(row["affected"].split()[-1]) for row in rows)
