"""AMD boards on ROCm of tests/cases/compat/rocm.yml: each is judged as its source has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from goldnode.compat.check import check
from goldnode.compat.model import CompatHost, Workload
from goldnode.facts import host as facts

# Versions are text: YAML would make a number of 6.10.
CASES = yaml.load(
    (Path(__file__).parents[2] / "cases/compat/rocm.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
JUDGEMENTS = {"block": "blocked", "unknown": "unknown", "warn": "fits"}
RULES = {"rocm-gpu", "rocm-os", "rocm-driver", "amdgpu"}


def combination(case: list[str]) -> tuple[CompatHost, list[Workload]]:
    """Return node and image of a case."""
    rocm, model, system, driver, *_ = case
    host = CompatHost("node", vendor="amd", gpus=(facts.gpu(model),), os=system, amdgpu=driver)
    return host, [Workload("image", rocm=rocm)]


def test_cases_have_their_source() -> None:
    assert {row[-1] for row in CASES["node"]} <= set(CASES["sources"])


@pytest.mark.parametrize("case", CASES["node"], ids=" ".join)
def test_rocm_on_board_system_and_driver(case: list[str]) -> None:
    host, loads = combination(case)
    found = [item for item in check(host, loads) if item.rule in RULES]
    severities = {item.severity for item in found}
    judgement = next((name for key, name in JUDGEMENTS.items() if key in severities), "fits")
    assert judgement == case[4], [f"{item.rule}: {item.message}" for item in found]
