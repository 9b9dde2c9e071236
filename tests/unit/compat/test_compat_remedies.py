"""Each printed remedy that names a version, carried out, removes its finding and blocks nothing new."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.unit.compat import (
    requirement_cases,
    test_check_host,
    test_combinations,
    test_rules_workload,
    vendor_rows,
)
from tests.unit.compat.printed_remedies import untrue
from tests.unit.compat.test_rules_workload import node

from goldnode.compat import check, remedies, workloads
from goldnode.compat.model import CompatHost, Workload

CASES = Path(__file__).parents[2] / "cases/compat"
Combination = tuple[CompatHost | None, list[Workload]]


def _requirements(name: str, folder: Path) -> Iterator[Combination]:
    """Yield the requirement sets of a file, on a node of a data centre with a driver of several ages."""
    hosts = [
        ("A100-SXM4-40GB", "535.309.01"),
        ("H100-SXM5-80GB", "580.178.04"),
        ("V100-SXM2-16GB", "570.211.01"),
    ]
    for index, case in enumerate(yaml.safe_load((CASES / name).read_text(encoding="utf-8"))):
        file = folder / f"{index}.txt"
        file.write_text("\n".join(case["requirements"]) + "\n", encoding="utf-8")
        architecture = requirement_cases.ARCHITECTURES[case["machine"]]
        workload = workloads.requirements(file, python=case["python"], architecture=architecture)
        gpu, driver = hosts[index % 3]
        yield node(gpu, driver, architecture=architecture), [workload]


def _combinations(name: str, folder: Path) -> Iterator[Combination]:
    if name == "combinations":
        for case in test_combinations.CASES:
            yield (
                test_combinations.host(case.get("host")),
                test_combinations.workload(case.get("workload")),
            )
    elif name == "nodes":
        for _, _, stated, *_ in test_check_host.REFUSED:
            yield test_check_host.host(**stated), []
    elif name == "workloads":
        for _, host, stated, *_ in test_rules_workload.CASES:
            yield host, [Workload("image it", **stated)]
    elif name == "vendor":
        for row in vendor_rows.ROWS:
            yield vendor_rows._host(row), vendor_rows._workloads(row, folder)
    else:
        yield from _requirements(name, folder)


ALL = ("combinations", "nodes", "workloads", "vendor", "wheels.yml", "pip.yml")


@pytest.mark.parametrize("name", ALL)
def test_printed_remedy_is_true(name: str, tmp_path: Path) -> None:
    """A part of the large tables; `test_each_printed_remedy_is_true` reads them whole."""
    step = 1 if name in ALL[:3] else 9
    cases = list(_combinations(name, tmp_path))[::step]
    assert [text for host, loads in cases for text in untrue(host, loads)] == []


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_each_printed_remedy_is_true(name: str, tmp_path: Path) -> None:
    assert [
        text for host, loads in _combinations(name, tmp_path) for text in untrue(host, loads)
    ] == []


def test_remedy_that_was_not_judged_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remedies, "proved", lambda found, *_: list(found))
    cases = list(_combinations("combinations", tmp_path))
    assert [text for host, loads in cases for text in untrue(host, loads)] != []


def _remedies(rule: str, host: CompatHost, *loads: Workload) -> list[str | None]:
    return [item.remedy for item in check.check(host, loads) if item.rule == rule]


def _file(
    python: str = "3.12", library_cuda: dict[str, str] | None = None, **frameworks: str
) -> Workload:
    stated = {"frameworks": frameworks, "pins": frameworks, "library_cuda": library_cuda or {}}
    return Workload("file", kind="requirements", python=python, forward_compat=False, **stated)  # type: ignore[arg-type]


def test_kernel_with_a_part_of_the_fix_only_is_not_recommended() -> None:
    (remedy,) = _remedies("kernel-driver", node("A100-SXM4-40GB", "580.119.02", kernel="7.0.9"))
    assert remedy is not None
    assert "kernel 6.19" not in remedy
    assert "driver 580.178.04" in remedy


def test_series_whose_update_broke_the_build_is_recommended_before_that_update() -> None:
    (remedy,) = _remedies("kernel-driver", node("A100-SXM4-40GB", "525.125.06", kernel="6.1.76"))
    assert remedy is not None
    assert remedy.startswith("use kernel 6.1.75 or older of its series")


def test_build_that_does_not_exist_is_not_recommended() -> None:
    host = node("GB200", "580.178.04", architecture="arm64", flavour="open")
    for remedy in _remedies("torch-gpu", host, _file(torch="2.6.0")):
        assert "of PyTorch 2.6" not in (remedy or "")


def test_release_that_would_be_blocked_is_not_recommended() -> None:
    host = node("H100-SXM5-80GB", "580.178.04")
    (remedy,) = _remedies("framework-version", host, _file(python="3.10", torch="1.8.1+cu111"))
    assert remedy == "use torch 2.1.0, the nearest that is known to fit"


def test_cuda_is_not_recommended_where_no_release_of_the_framework_has_it() -> None:
    host = node("GeForce-RTX-5090", "580.178.04", flavour="open")
    (remedy,) = _remedies(
        "cuda-gpu", host, _file(library_cuda={"tensorflow": "12"}, tensorflow="2.20.0")
    )
    assert remedy == "move the workload to another class"


def test_two_frameworks_that_disagree_are_one_finding() -> None:
    both = _file(library_cuda={"tensorflow": "12"}, tensorflow="2.18.0", torch="2.6.0")
    both = dataclasses.replace(both, extras={"tensorflow": ("and-cuda",)})
    (remedy,) = _remedies("wheel-requires", node("A100-SXM4-40GB", "580.178.04"), both)
    assert remedy is not None
    assert "separate environments" in remedy
