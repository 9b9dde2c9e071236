"""Images of tests/cases/compat/images.yml: each is judged as its source has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from goldnode.compat import require, workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, CompatHost, Workload
from goldnode.facts import host as facts

# Versions are text: YAML would make a number of 450.51.
CASES = yaml.load(
    (Path(__file__).parents[2] / "cases/compat/images.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
JUDGEMENTS = {"block": "blocked", "unknown": "unknown", "warn": "limits"}


def node(model: str, driver: str, mode: str | None = None) -> CompatHost:
    """Return a host with this GPU and driver."""
    gpu = facts.gpu(model)
    if gpu.vendor == "amd":
        return CompatHost("node", vendor="amd", amdgpu=driver, gpus=(gpu,))
    branch = driver.partition(".")[0]
    return CompatHost(
        "node", vendor="nvidia", branch=branch, driver=driver, gpus=(gpu,), toolkit_mode=mode
    )


def of_image(host: CompatHost, load: Workload) -> list[CompatFinding]:
    """Return the findings about the image: those that the node has without it do not count."""
    alone = {(item.rule, item.row, item.message) for item in check(host, [])}
    found = check(host, [load])
    return [item for item in found if (item.rule, item.row, item.message) not in alone]


def judged(found: list[CompatFinding]) -> str:
    """Return the judgement: that of the heaviest finding."""
    severities = {item.severity for item in found}
    return next((name for key, name in JUDGEMENTS.items() if key in severities), "fits")


def test_cases_have_their_source() -> None:
    rows = [*CASES["image"], *CASES["require"]]
    assert {row[-1] for row in rows} == set(CASES["sources"])


@pytest.mark.parametrize("case", CASES["image"], ids=" ".join)
def test_image_on_a_board(case: list[str]) -> None:
    model, driver, name, expected, _ = case
    found = of_image(node(model, driver), workloads.image(name))
    assert judged(found) == expected, [f"{item.rule}: {item.message}" for item in found]


@pytest.mark.parametrize("case", CASES["require"], ids=" ".join)
def test_conditions_of_an_environment(case: list[str]) -> None:
    model, driver, mode, text, expected, _ = case
    environment = dict(word.split("=", 1) for word in text.split(" "))
    load = Workload("an image", require_driver=require.conditions(environment))
    found = of_image(node(model, driver, mode), load)
    assert judged(found) == expected, [f"{item.rule}: {item.message}" for item in found]


def test_release_after_the_last_read_one_names_the_day_of_its_own_table() -> None:
    found = check(node("T4", "580.178.04"), [workloads.image("ollama/ollama:0.99.0")])
    (message,) = [item.message for item in found if item.rule == "framework-version"]
    assert "images of ollama were read up to" in message
