"""site.yml and hosts that train together: a cohort that cannot stand is refused before anybody is contacted, and nobody else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.ansible.test_blocked_class import THERE, play

from goldnode.catalog.load import builtin_catalog

DEMO = (builtin_catalog() / "classes/demo_a100.yml").read_text(encoding="utf-8")
YOUNGER = DEMO.replace("class: demo_a100", "class: younger").replace(
    "stack: demo_r535", "stack: debian12_r535"
)
SAME = YOUNGER.replace("class: younger", "class: other")
ELDER = SAME.replace("stack: debian12_r535", "stack: debian12_r470")


def files(other: str) -> dict[str, str]:
    """A catalog of the class `younger` and one more."""
    return {"classes/younger.yml": YOUNGER, "classes/other.yml": other}


def groups(**cohorts: str) -> dict[str, Any]:
    """Two hosts of `younger`, one of `other`, one without GPUs; `cohorts`: host -> its cohort."""
    hosts = {"younger": ["n1", "n2"], "other": ["o1"], "cpu_only": ["c1"]}
    return {
        name: {
            "hosts": {
                host: {**THERE, **({"goldnode_cohort": cohorts[host]} if host in cohorts else {})}
                for host in members
            }
        }
        for name, members in hosts.items()
    }


def outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {name: host["outcome"] for name, host in record["hosts"].items()}


def test_two_drivers_in_one_cohort_refuse_its_hosts_alone(tmp_path: Path) -> None:
    _, output, record = play(tmp_path, files(ELDER), groups(n1="red", o1="red", n2="blue"))
    assert outcomes(record) == {
        "n1": "refused",
        "o1": "refused",
        "n2": "unreachable",
        "c1": "unreachable",
    }
    (refusal,) = record["hosts"]["o1"]["refusals"]
    assert refusal["code"] == "cohort-driver"
    assert refusal["subject"] == "cohort red"
    assert "535" in refusal["message"]
    assert "470" in refusal["message"]
    assert "cohort red is blocked, and nothing was touched" in output


def test_a_limit_does_not_hide_the_others_of_a_cohort(tmp_path: Path) -> None:
    _, _, record = play(tmp_path, files(ELDER), groups(n1="red", o1="red"), "--limit", "n1,n2")
    assert outcomes(record) == {"n1": "refused", "n2": "unreachable"}


@pytest.mark.parametrize(
    ("cohorts", "text"),
    [
        ({"n1": "red", "n2": "red"}, ELDER),
        ({"n1": "red", "o1": "red"}, SAME),
        ({"n1": "red", "o1": "blue"}, ELDER),
    ],
)
def test_hosts_that_agree_or_are_apart_go_on(
    tmp_path: Path, cohorts: dict[str, str], text: str
) -> None:
    _, _, record = play(tmp_path, files(text), groups(**cohorts))
    assert set(outcomes(record).values()) == {"unreachable"}


def test_warnings_of_a_cohort_are_reported_once(tmp_path: Path) -> None:
    text = "class: other\nbackend: cuda\nsimulated: true\nstack: debian12_r535\ngpu: {model: L4, count: 1}\n"
    _, output, record = play(tmp_path, files(text), groups(n1="red", n2="red", o1="red"))
    assert set(outcomes(record).values()) == {"unreachable"}, output
    assert output.count("cohort red, checked:") == 1
    assert "different architectures" in output
