"""Cohorts of a run: which hosts are read, how often, and which get refusals."""

from __future__ import annotations

from typing import Any

import pytest

from goldnode.inventory import cohorts
from goldnode.inventory.cohorts import COHORT, REFUSALS


class FakeHost:
    """A host of Ansible's inventory: its name."""

    def __init__(self, name: str) -> None:
        self.name = name


class FakePlay:
    """A play, its variable manager and its inventory in one. It counts the reads of each host."""

    def __init__(self, variables: dict[str, dict[str, Any]]) -> None:
        self.hosts = {name: FakeHost(name) for name in variables}
        self.variables, self._inventory = variables, self
        self.reads: list[str] = []
        self.facts: dict[str, Any] = {}

    def get_variable_manager(self) -> FakePlay:
        return self

    def get_hosts(self, pattern: str, **_: Any) -> list[FakeHost]:
        return list(self.hosts.values())

    def get_vars(self, *, host: FakeHost, **_: Any) -> dict[str, Any]:
        self.reads.append(host.name)
        return self.variables[host.name]

    def set_nonpersistent_facts(self, name: str, facts: dict[str, Any]) -> None:
        self.facts[name] = facts


class FakeDocuments:
    """Findings of a cohort that is always refused."""

    def names(self) -> list[str]:
        return ["a", "b"]

    def cohort(self, name: str, classes: list[str]) -> dict[str, Any]:
        return {
            "refusals": [{"code": "cohort-driver", "message": f"{name}: {classes}"}],
            "messages": ["a line"],
        }


def host(name: str, cohort: str | None) -> dict[str, Any]:
    values: dict[str, Any] = {"goldnode_node_class": {"class": name, "packages": ["many"] * 1000}}
    return values if cohort is None else {**values, COHORT: cohort}


@pytest.mark.parametrize("limit", [("n1", "n2", "n3", "n4"), ("n1", "n3")], ids=["all", "limit"])
def test_each_host_is_read_once_and_a_mixed_cohort_is_refused(limit: tuple[str, ...]) -> None:
    play = FakePlay(
        {"n1": host("a", "c1"), "n2": host("b", "c1"), "n3": host("a", "c2"), "n4": host("b", None)}
    )
    seen: list[str] = []
    messages = cohorts.withhold_incompatible(
        play,
        [play.hosts[name] for name in limit],
        FakeDocuments(),  # type: ignore[arg-type]
        see=lambda name, _: seen.append(name),
    )
    assert sorted(play.reads) == ["n1", "n2", "n3", "n4"], (
        "hosts outside of the limit count for a cohort too"
    )
    assert seen == list(limit)
    assert messages == ["cohort c1, checked:", "  a line"]
    assert play.facts["n1"] == {REFUSALS: [{"code": "cohort-driver", "message": "c1: ['a', 'b']"}]}
    assert play.facts["n3"] == {REFUSALS: []}


def test_without_cohorts_only_the_hosts_of_the_run_are_read() -> None:
    play = FakePlay({"n1": host("a", None), "n2": host("b", "c1")})
    assert cohorts.withhold_incompatible(play, [play.hosts["n1"]]) == []
    assert play.reads == ["n1"]
