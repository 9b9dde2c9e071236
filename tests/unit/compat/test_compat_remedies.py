"""Each printed remedy that names a version, carried out, removes its finding and blocks nothing new."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.unit.compat import (
    requirement_cases,
    test_autumn_cases,
    test_board_cases,
    test_check_host,
    test_combinations,
    test_rocm_cases,
    test_rules_workload,
    test_trial_cases,
    test_winter_cases,
    vendor_rows,
)
from tests.unit.compat.printed_remedies import untrue
from tests.unit.compat.remedy_walk import WalkEnd, walk
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


_SEASONS = {
    "autumn": test_autumn_cases.CASES,
    "winter": test_winter_cases.CASES,
    "trial": [test_trial_cases.row(case) for case in test_trial_cases.CASES],
}


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
    elif name == "boards":
        yield from test_board_cases.combinations()
    elif name == "rocm":
        yield from map(test_rocm_cases.combination, test_rocm_cases.CASES["node"])
    elif name == "vendor":
        for row in vendor_rows.ROWS:
            yield vendor_rows.host(row), vendor_rows.loads(row, folder)
    elif name in _SEASONS:
        # test_part_cases reads the remedies of parts.
        rows = [row for row in _SEASONS[name] if "parts" not in row]
        yield from (test_autumn_cases.combination(row, folder) for row in rows)
    else:
        yield from _requirements(name, folder)


ALL = (
    *("combinations", "nodes", "workloads", "boards", "rocm"),
    *("vendor", "autumn", "winter", "trial", "wheels.yml", "pip.yml"),
)


@pytest.mark.parametrize("name", ALL)
def test_printed_remedy_is_true(name: str, tmp_path: Path) -> None:
    """A part of the large tables; `test_each_printed_remedy_is_true` reads them whole."""
    step = 1 if name in ALL[:5] else 9
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


# Remedies that no version of a combination carries out, by what they ask for. Each states that nothing else is known.
DEAD_ENDS = {
    "another class": r"^move the workload to another class$|^use a class with GPUs|^use GPUs of a later architecture|^use another class; no known ROCm",
    "several environments or nodes": r"^install the two in separate environments|^put them into different nodes$",
    "another stack": r"^(choose|move to) a supported (stack|release)|^use one of ubuntu\d+",
    "a kernel or OS of another kind": r"^use (a non-RT kernel|GA kernel|Ubuntu) ?",
    "another image": r"^use (an image whose condition|the same versions built for|an older release of the image|an image with PyTorch for CUDA: no wheel)",
    "nothing that is known": r"no (single )?(version|release|known build)\b.* (is known|fits the rest)|does not fit the rest of it$",
    "another build": r"^use (a framework that contains its own cuDNN|a later release of PyTorch|another release of \S+, or build it)",
    "the lock again": r"^r$",  # the remedy of the lock's own error
}


def _dead_end(end: WalkEnd) -> bool:
    remedy = end.block.remedy or "" if end.block is not None else ""
    return any(re.search(pattern, remedy) for pattern in DEAD_ENDS.values())


@pytest.mark.parametrize("name", ALL)
def test_remedies_lead_to_ok_or_to_a_stated_dead_end(name: str, tmp_path: Path) -> None:
    """A part of the large tables; `test_all_remedies_lead_to_ok_or_to_a_stated_dead_end` reads them whole."""
    step = 1 if name in ALL[:5] else 13
    ends = [walk(*case) for case in list(_combinations(name, tmp_path))[::step]]
    assert [str(end) for end in ends if end.block is not None and not _dead_end(end)] == []
    assert not any(end.endless for end in ends)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_all_remedies_lead_to_ok_or_to_a_stated_dead_end(name: str, tmp_path: Path) -> None:
    ends = [walk(*case) for case in _combinations(name, tmp_path)]
    assert [str(end) for end in ends if end.block is not None and not _dead_end(end)] == []
    if name == "rocm":
        return  # mostly boards that no release serves
    # A dead end is the exception: three of four blocks can be removed by what their remedies name.
    blocked = [end for end in ends if end.remedies or end.block is not None]
    assert sum(end.block is None for end in blocked) > 0.68 * len(blocked)


def test_condition_on_other_gpus_does_not_ask_for_a_driver() -> None:
    for mode in (None, "cdi"):
        host = node("A100-SXM4-40GB", "535.309.01", toolkit_mode=mode)
        (remedy,) = _remedies(
            "image-requirement", host, Workload("i", require_driver="cuda>=12.9,arch>=9.0")
        )
        assert remedy == "use an image whose condition admits the GPUs of class it"


def test_walk_follows_several_remedies() -> None:
    """V100 with a driver of 535 and a torch for CUDA 13 in a file that pins its libraries."""
    end = walk(node("V100-SXM2-32GB", "535.309.01"), [_file(python="3.14", torch="2.5.1")])
    assert str(end) == "Python 3.13 -> ok"


def test_walk_that_ends_names_the_block() -> None:
    end = walk(
        node("V100-SXM2-32GB", "580.178.04"), [_file(jax="0.9.0", library_cuda={"jax": "13"})]
    )
    assert end.block is not None
    assert "use GPUs of a later architecture" in str(end)


@pytest.mark.parametrize(
    ("version", "known", "first"),
    [
        ("9.1.0.70", ["8.9.7.29", "9.1.1.17", "9.13.1.26"], "9.1.1.17"),
        ("2.8.0", ["2.7.1", "2.8.1", "2.9.0"], "2.8.1"),
        ("2.10.0", ["2.9.1", "2.11.0"], "2.9.1"),
        ("3.9", ["3.10", "3.11", "3.12"], "3.10"),
        ("1.0", ["2.0", "0.9"], "0.9"),
    ],
)
def test_nearest_known_version_is_the_nearest(version: str, known: list[str], first: str) -> None:
    assert remedies.nearest(version, known)[0] == first
    assert sorted(remedies.nearest(version, known)) == sorted(known)


def test_nearest_python_is_named() -> None:
    (remedy,) = _remedies(
        "framework-python", node("A100-SXM4-40GB", "580.178.04"), _file("3.9", torch="2.10.0")
    )
    assert remedy == "use Python 3.10"


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
