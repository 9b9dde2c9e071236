"""The facts by which site.yml ends the play of a host, and the list of the hosts that have ended.

Ansible compiles each condition, and each variable of the play that it uses, again for each host. So a fact is the condition.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.playbook.play import Play
from hypothesis import given
from hypothesis import strategies as st

from goldnode.ansible.action.goldnode_state import ActionModule
from goldnode.ansible.ended import EndedHosts, index_ended_hosts

SITE = Path(__file__).parents[3] / "site.yml"
EMPTY: dict[str, Any] = {
    "state": "present",
    "actions": [],
    "parts": {},
    "refusals": [],
    "notes": [],
    "waiting": [],
    "holders": [],
    "drain": "",
    "reboot": {"required": False, "reasons": [], "after": [], "held": []},
}
ACTION: dict[str, Any] = {
    "part": "sanity",
    "kind": "link",
    "target": "/x",
    "reason": "want it",
    "data": {},
}
ACTION |= {"phase": "image", "before": None, "after": None, "reboot": None}


def facts(
    monkeypatch: pytest.MonkeyPatch, left: str = "", check: bool = False, **changes: Any
) -> dict[str, Any]:
    """Return the facts that the action plugin gives for a plan, and `variables` of the host beside it."""
    variables = changes.pop("variables", {})
    action = object.__new__(ActionModule)
    action._task, action._templar = (
        SimpleNamespace(check_mode=check),
        SimpleNamespace(template=bool),
    )
    action._display = SimpleNamespace(verbosity=0)
    monkeypatch.setattr(action, "left", lambda plan, task_vars: left)
    result = {"plan": {**EMPTY, **changes}}
    hosts = {"ansible_play_hosts_all": ["a", "b", "c", "d", "e"]}
    found: dict[str, Any] = action.planned(result, {}, {**hosts, **variables})["ansible_facts"]
    return found


def conditions() -> dict[str, str]:
    """Return the condition of each task of site.yml that ends hosts, by the name of the task."""
    plays = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    tasks = [task for play in plays for task in play["tasks"]]
    return {
        task["name"]: task["when"]
        for task in tasks
        if task.get("ansible.builtin.meta") == "end_host"
    }


def test_hosts_of_a_converged_fleet_end_by_a_fact_each() -> None:
    named = conditions()
    assert named["Skip hosts that match their class"] == "ansible_facts['goldnode_matches']"
    assert named["Skip hosts with nothing to finish"] == "ansible_facts['goldnode_settled']"


@pytest.mark.parametrize(
    ("actions", "left", "verify", "check", "ended"),
    [
        (0, "", False, False, True),
        (1, "", False, False, False),
        (0, "", True, False, False),
        (0, "run 1", False, False, False),  # an earlier run left it out of service
        (0, "run 1", False, True, True),
        (0, "run 1", True, True, False),
    ],
)
def test_host_that_matches_its_class_ends(
    actions: int,
    left: str,
    verify: bool,
    check: bool,
    *,
    ended: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {"sanity_verify": verify}
    found = facts(
        monkeypatch, left=left, check=check, variables=variables, actions=[ACTION] * actions
    )
    assert found["goldnode_matches"] is ended


@pytest.mark.parametrize(
    ("required", "waiting", "settled"),
    [(False, 0, True), (True, 0, False), (False, 1, False), (True, 2, False)],
)
def test_host_with_nothing_to_finish_is_settled(
    required: bool, waiting: int, *, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = facts(
        monkeypatch,
        reboot={**EMPTY["reboot"], "required": required},
        waiting=[{"subject": "x", "message": "y"}] * waiting,
    )
    assert found["goldnode_settled"] is settled


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3))), st.lists(st.integers(0, 3)))
def test_ended_hosts_are_found_as_in_a_list(
    steps: list[tuple[bool, int]], first: list[int]
) -> None:
    names = [f"n{number}" for number in first]
    found = EndedHosts(names)
    for added, number in steps:
        name = f"n{number}"
        if added:
            names.append(name)
            found.append(name)
        elif name in names:
            names.remove(name)
            found.remove(name)
        assert found == names
        assert [f"n{other}" in found for other in range(4)] == [
            f"n{other}" in names for other in range(4)
        ]


def test_ended_hosts_of_a_play_are_indexed() -> None:
    """The release of Ansible that is installed has the list, and looks hosts up in it."""
    play = Play()
    play._removed_hosts = ["n1"]
    index_ended_hosts(play)
    assert isinstance(play._removed_hosts, EndedHosts)
    assert play._removed_hosts == ["n1"]
    index_ended_hosts(play)
    index_ended_hosts(object())
