"""Boards, drivers, kernels and MIG layouts of tests/cases/compat/boards.yml: each is judged as its source has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import yaml

from goldnode.compat import require, workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatHost, Workload
from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.facts import mig

# Versions are text: YAML would make a number of 450.51.
CASES = yaml.load(
    (Path(__file__).parents[2] / "cases/compat/boards.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
JUDGEMENTS = {"block": "blocked", "unknown": "unknown", "warn": "fits"}


def layout(text: str) -> list[str]:
    """Return the profiles of "2 x 1g.5gb + 3g.20gb"."""
    rows = [re.fullmatch(r"(?:(\d+) x )?(\S+)", part) for part in text.split(" + ")]
    return [row[2] for row in rows if row is not None for _ in range(int(row[1] or 1))]


def judged(host: CompatHost, *rules: str) -> str:
    """Return the judgement of a host by some rules: that of the heaviest finding."""
    severities = {item.severity for item in check(host, []) if item.rule in rules}
    return next((name for key, name in JUDGEMENTS.items() if key in severities), "fits")


def node(
    model: str | None, driver: str, flavour: str | None = None, kernel: str | None = None
) -> CompatHost:
    """Return a host with this GPU, driver and kernel."""
    kinds: dict[str, Literal["open", "proprietary"]] = {"open": "open"}
    return CompatHost(
        "node",
        vendor="nvidia",
        kernel=kernel,
        kernel_version=kernel,
        branch=driver.partition(".")[0],
        driver=driver,
        flavour=kinds.get(flavour, "proprietary") if flavour else None,
        gpus=(facts.gpu(model),) if model else (),
    )


def required(text: str) -> Workload:
    """Return an image with the variables of a case."""
    environment = dict(word.split("=", 1) for word in text.split(" "))
    return Workload("an image", require_driver=require.conditions(environment))


def combinations() -> Iterator[tuple[CompatHost, list[Workload]]]:
    """Yield the cases about drivers, kernels and images as nodes with their workloads."""
    for model, driver, flavour, *_ in CASES["driver"]:
        yield node(model, driver, flavour), []
    for kernel, driver, flavour, *_ in CASES["kernel"]:
        yield node(None, driver, flavour, kernel), []
    for model, driver, name, *_ in CASES["image"]:
        yield node(model, driver), [workloads.image(name)]
    for model, driver, text, *_ in CASES["require"]:
        yield node(model, driver), [required(text)]


def test_cases_are_numerous_and_have_their_source() -> None:
    kinds = ("mig", "driver", "kernel", "absent", "image", "require")
    rows = [row for kind in kinds for row in CASES[kind]]
    assert len(rows) >= 185
    assert {row[-1] for row in rows} <= set(CASES["sources"])


@pytest.mark.parametrize("case", CASES["mig"], ids=" ".join)
def test_mig_layout(case: list[str]) -> None:
    model, driver, text, expected, _ = case
    gpu = facts.gpu(model)
    if gpu.mig_capable is False:
        assert expected == "refused"
        return
    fault = mig.fault(gpu, int(driver.partition(".")[0]), layout(text))
    assert (fault is None) == (expected == "fits"), fault
    assert mig.tables(gpu), "no table: nothing was judged"


@pytest.mark.parametrize("case", CASES["driver"], ids=" ".join)
def test_driver_and_board(case: list[str]) -> None:
    model, driver, flavour, expected, _ = case
    assert judged(node(model, driver, flavour), "gpu-driver", "module-flavour") == expected


@pytest.mark.parametrize("case", CASES["kernel"], ids=" ".join)
def test_kernel_and_driver(case: list[str]) -> None:
    kernel, driver, flavour, expected, _ = case
    assert judged(node(None, driver, flavour, kernel), "kernel-driver") == expected


@pytest.mark.parametrize("case", CASES["image"], ids=" ".join)
def test_image_and_board(case: list[str]) -> None:
    model, driver, name, expected, _ = case
    found = check(node(model, driver), [workloads.image(name)])
    assert any(item.rule == "image-gpu" for item in found) == (expected == "blocked")


@pytest.mark.parametrize("case", CASES["require"], ids=" ".join)
def test_conditions_of_an_image(case: list[str]) -> None:
    model, driver, text, expected, _ = case
    found = check(node(model, driver), [required(text)])
    assert any(item.rule == "image-requirement" for item in found) == (expected == "blocked")


@pytest.mark.parametrize("case", CASES["absent"], ids=" ".join)
def test_product_can_be_declared_or_is_refused_with_the_reason(case: list[str]) -> None:
    name, expected, _ = case
    if expected == "declared":
        assert facts.gpu(name).pci_ids
        return
    with pytest.raises(FactsError, match=f"{expected}.* is not supported"):
        facts.gpu(name)
