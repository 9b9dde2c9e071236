"""Intel's boards of tests/cases/compat/intel.yml: each is judged as its source has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from goldnode.compat.check import check
from goldnode.compat.model import CompatHost
from goldnode.facts import host as facts

# Versions are text: YAML would make a number of 6.10.
CASES = yaml.load(
    (Path(__file__).parents[2] / "cases/compat/intel.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
JUDGEMENTS = {"block": "blocked", "unknown": "unknown", "warn": "fits"}


def test_cases_have_their_source() -> None:
    assert {row[-1] for row in CASES["board"]} == set(CASES["sources"])


@pytest.mark.parametrize("case", CASES["board"], ids=" ".join)
def test_board_on_driver_kernel_and_opencl(case: list[str]) -> None:
    model, module, kernel, opencl, expected, _ = case
    host = CompatHost(
        "node",
        vendor="intel",
        gpus=(facts.gpu(model),),
        kernel=kernel,
        kernel_version=kernel,
        kernel_module=module,
        opencl=None if opencl == "none" else opencl,
    )
    found = [item for item in check(host, []) if item.rule == "intel-gpu"]
    severities = {item.severity for item in found}
    judgement = next((name for key, name in JUDGEMENTS.items() if key in severities), "fits")
    assert judgement == expected, [item.message for item in found]
    for item in found:
        assert item.sources, item
        assert item.remedy or item.severity == "unknown", item
