"""Parts of a stack in tests/cases/compat/parts.yml: each is judged as its source has it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from goldnode.compat import parts, remedies, rules_host, rules_parts
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, CompatHost
from goldnode.facts import host as facts

# Versions are text: YAML would make a number of 2.3.
CASES: dict[str, Any] = yaml.load(
    (Path(__file__).parents[2] / "cases/compat/parts.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
JUDGEMENTS = {"block": "blocked", "unknown": "unknown", "warn": "limits"}
OF_A_NODE = {rule.id for rule in rules_parts.RULES}
TOGETHER = {"coexistence", "cohort-driver"}


def node(stated: dict[str, Any], name: str = "node") -> CompatHost:
    """Return the host of a case."""
    fields = {key: stated[key] for key in ("os", "kernel", "flavour", "toolkit") if key in stated}
    driver, gpu = stated.get("driver"), stated.get("gpu")
    return CompatHost(
        name,
        vendor="nvidia" if driver else None,
        branch=driver.partition(".")[0] if driver else None,
        driver=driver,
        engine=stated.get("engine"),
        engine_version=stated.get("engine_version"),
        gpus=(facts.gpu(gpu),) if gpu else (),
        parts=stated.get("parts", {}),
        **fields,
    )


def judged(found: list[CompatFinding], rules: set[str]) -> tuple[str, set[str]]:
    """Return the heaviest judgement of some rules, and the rules that have it."""
    mine = [item for item in found if item.rule in rules]
    for severity, name in JUDGEMENTS.items():
        deciding = {item.rule for item in mine if item.severity == severity}
        if deciding:
            return name, deciding
    return "fits", set()


def text(case: dict[str, Any]) -> str:
    """Return the name of a case."""
    return " ".join(f"{key}={value}" for key, value in case.items() if key not in ("source", "by"))


def test_cases_are_numerous_and_have_their_source() -> None:
    rows = CASES["node"] + CASES["together"]
    assert len(rows) >= 120
    assert {row["source"] for row in rows} <= set(CASES["sources"])
    assert set(CASES["sources"]) == {row["source"] for row in rows}


@pytest.mark.parametrize("case", CASES["node"], ids=text)
def test_part_on_a_node(case: dict[str, Any]) -> None:
    found = check(node(case), [])
    judgement, deciding = judged(found, OF_A_NODE)
    shown = [f"{item.rule}: {item.message}" for item in found if item.rule in OF_A_NODE]
    assert judgement == case["judge"], shown
    assert case.get("by") in deciding or not deciding


def test_each_rule_has_cases_that_it_decides() -> None:
    assert {row["by"] for row in CASES["node"] if "by" in row} == OF_A_NODE


def test_module_of_a_stack_is_judged_as_its_part() -> None:
    host = node({"driver": "535.183.06", "flavour": "proprietary"})
    found = check(dataclasses.replace(host, modules={"nvidia_fs": "2.24.2"}), [])
    stated = {item.rule: item for item in found if "nvidia-fs 2.24.2" in item.message}
    assert set(stated) == {"part-storage"}
    assert "a version before 2.17.5" in (stated["part-storage"].remedy or "")
    unlocked = dataclasses.replace(host, modules={"nvidia_fs": ""})
    assert "part-storage" in {item.rule for item in check(unlocked, [])}
    no_lock = dataclasses.replace(unlocked, unlocked="no lock")
    assert "part-storage" not in {item.rule for item in check(no_lock, [])}


@pytest.mark.parametrize("case", CASES["together"], ids=text)
def test_parts_of_two_nodes_of_one_job(case: dict[str, Any]) -> None:
    hosts = [node(case[key], key) for key in ("a", "b")]
    cohort = [CompatHost(**{**vars(host), "cohort": "train", "stack": "s"}) for host in hosts]
    found = rules_host.check_cohorts(cohort)
    judgement, deciding = judged(found, TOGETHER)
    assert judgement == case["judge"], [item.message for item in found]
    assert case.get("by") in deciding or not deciding


def carried_out(text: str, finding: CompatFinding, host: CompatHost) -> Iterator[CompatHost]:
    """Yield what each way of a printed remedy makes of a host, as a person reads it."""
    titles = {name: parts.title(name) for name in parts.of_host(host)}
    own = max(
        (name for name, title in titles.items() if title in finding.message),
        key=lambda name: -finding.message.index(titles[name]),
        default="",
    )
    words = {
        r"Kubernetes (\S+) or later": "kubernetes",
        r"Kubernetes (\S+) to \S+": "kubernetes",
        r"DOCA-Host (\S+), whose": "doca",
        r"kubelet (\S+) or (?:later|older)": "kubernetes",
        r"the exporter (\S+)": "dcgm_exporter",
        r"use (\d\S+?),? (?:or later|which is listed)": own,
        r"use `gpudirect_rdma: (dma-buf)`": "gpudirect_rdma",
        r"use (\d[\d.]+), and lock the two together": own,
    }
    for pattern, name in words.items():
        for version in re.findall(pattern, text):
            yield dataclasses.replace(host, parts={**host.parts, name: version})
    for version in re.findall(r"driver (\d[\d.]+) or later", text):
        changed = remedies.driver(version).change
        assert changed is not None
        yield changed((host, None))[0]  # type: ignore[misc]
    for version in re.findall(r"`gpudirect_rdma: peermem` with MLNX_OFED (\d\S+)", text):
        beside = {"gpudirect_rdma": "peermem", "ofed": version}
        yield dataclasses.replace(host, parts={**host.parts, **beside})
    if "a stack with the open modules" in text:
        yield dataclasses.replace(host, flavour="open")


@pytest.mark.parametrize("case", [row for row in CASES["node"] if row["judge"] != "fits"], ids=text)
def test_printed_remedy_removes_its_finding(case: dict[str, Any]) -> None:
    host = node(case)
    for finding in check(host, []):
        if finding.rule not in OF_A_NODE or finding.remedy is None:
            continue
        for changed in carried_out(finding.remedy, finding, host):
            left = [item.message for item in check(changed, []) if item.rule == finding.rule]
            assert finding.message not in left, finding.remedy
            blocked = {item.rule for item in check(changed, []) if item.severity == "block"}
            assert blocked <= {item.rule for item in check(host, []) if item.severity == "block"}
