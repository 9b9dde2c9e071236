"""Conditions of site.yml that end the play of a host: which hosts end, and that most need no variable of the play;
and the list of the hosts that have ended.

Ansible compiles each condition, and each variable of the play that it uses, again for each host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.playbook.play import Play
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, StrictUndefined

from goldnode.ansible.ended import EndedHosts, index_ended_hosts

SITE = Path(__file__).parents[3] / "site.yml"
CONVERGED = "Skip hosts that match their class"
NOTHING = "Skip hosts where nothing may be finished now"


def ends(task: str, **variables: Any) -> bool:
    """Return whether the task ends the play of a host with these variables. Any other variable is an error."""
    found = [
        one for play in yaml.safe_load(SITE.read_text(encoding="utf-8")) for one in play["tasks"]
    ]
    (condition,) = (one["when"] for one in found if one["name"] == task)
    environment = Environment(undefined=StrictUndefined, autoescape=True)
    environment.filters["bool"] = lambda value: value in (True, "true", "yes", 1)
    return bool(environment.compile_expression(condition, undefined_to_none=False)(**variables))


def facts(
    actions: int = 0, required: bool = False, waiting: int = 0, left: str | None = None
) -> dict[str, Any]:
    plan = {"actions": [{}] * actions, "reboot": {"required": required}, "waiting": [{}] * waiting}
    return {"goldnode_plan": plan, **({} if left is None else {"goldnode_left": left})}


@pytest.mark.parametrize(
    ("actions", "left", "verify", "check", "ended"),
    [
        (0, None, False, False, True),
        (0, "", False, False, True),
        (1, "", False, False, False),
        (0, "", True, False, False),
        (0, "run 1", False, False, False),  # an earlier run left it out of service
        (0, "run 1", False, True, True),
        (0, "run 1", True, True, False),
    ],
)
def test_host_that_matches_its_class_ends(
    actions: int, left: str | None, verify: bool, check: bool, ended: bool
) -> None:
    given = {"sanity_verify": verify, "ansible_check_mode": check}
    assert ends(CONVERGED, ansible_facts=facts(actions, left=left), **given) is ended


def test_host_that_matches_its_class_needs_no_variable() -> None:
    assert ends(CONVERGED, ansible_facts=facts(left=""), ansible_check_mode=False)
    assert ends(NOTHING, ansible_facts=facts())


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize(("required", "waiting"), [(True, 0), (False, 1), (True, 2)])
def test_host_with_something_to_finish_ends_only_without_permission(
    required: bool, waiting: int, finishes: bool
) -> None:
    found = facts(required=required, waiting=waiting)
    assert ends(NOTHING, ansible_facts=found, site_finishes=finishes) is not finishes


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
