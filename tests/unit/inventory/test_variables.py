"""The variables of an inventory: which are goldnode's, and what would fail only when packages have changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from goldnode.core.errors import InventoryError
from goldnode.inventory.variables import OWN, SETTINGS, UnknownVariables, check, check_written

ROOT = Path(__file__).parents[3]
COMMANDS: dict[str, Any] = {
    "goldnode_drain_command": ["/bin/d"],
    "goldnode_resume_command": ["/bin/r", 1],
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"goldnode_drain": "slrum"},
            'goldnode_drain of host h1 is "slrum", expected none, command, slurm or kubectl. Use "slurm".',
        ),
        (
            {"goldnode_drain_command": "scontrol update"},
            "goldnode_drain_command of host h1 is text, expected a list of words. Write [scontrol, update].",
        ),
        (
            {"goldnode_resume_command": {"a": 1}},
            "goldnode_resume_command of host h1 is {'a': 1}, expected a list of words",
        ),
        (
            {"goldnode_resume_command": ["a", None]},
            "goldnode_resume_command of host h1 is ['a', None], expected a list of words",
        ),
        (
            {"goldnode_drain": "command", "goldnode_drain_command": ["x"]},
            "host h1 is command, and goldnode_resume_command is not set",
        ),
        (
            {"goldnode_lock_timeout": "ten"},
            'goldnode_lock_timeout of host h1 is "ten", expected seconds. Write a whole number',
        ),
        (
            {"goldnode_lock_timeout": True},
            "goldnode_lock_timeout of host h1 is True, expected seconds",
        ),
        (
            {"goldnode_reboot_timeout": -1},
            "goldnode_reboot_timeout of host h1 is -1, expected seconds",
        ),
    ],
)
def test_invalid_variable_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InventoryError) as caught:
        check("h1", values)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"goldnode_drain": "slurm", "goldnode_lock_timeout": 10, "goldnode_reboot_timeout": "600"},
        {"goldnode_drain": "command", **COMMANDS},
    ],
)
def test_valid_variables_are_accepted(values: dict[str, Any]) -> None:
    check("h1", values)


def test_a_template_is_left_to_the_run() -> None:
    check_written("h1", {"goldnode_drain": "{{ 'slrum' }}"})
    with pytest.raises(InventoryError):
        check_written("h1", {"goldnode_drain": "slrum", "goldnode_cohort": "{{ x }}"})


def test_unknown_variables_are_reported_with_their_hosts() -> None:
    found = UnknownVariables()
    for host in ("h1", "h2", "h3", "h4"):
        found.add(host, ["goldnode_drian", "goldnode_drain", "ansible_host", "goldnode_node_class"])
    found.add("h1", ["goldnode_statee", "sanity_verfy", "sanity_page_of_ours", "goldnode_xyzzy"])
    assert found.lines() == [
        'goldnode_drian (hosts h1, h2, h3 and 1 more) is not a variable of goldnode: use "goldnode_drain"',
        'goldnode_statee (host h1) is not a variable of goldnode: use "goldnode_state"',
        "goldnode_xyzzy (host h1) is not a variable of goldnode",
        'sanity_verfy (host h1) is not a variable of goldnode: use "sanity_verify"',
    ]


def test_every_variable_that_is_used_is_known() -> None:
    """The variables of docs/reference/variables.md, and those that playbooks, roles and plugins read."""
    page = ROOT / "docs/reference/variables.md"
    documented = set(
        re.findall(r"`((?:goldnode|sanity)_[a-z_]+)`", page.read_text(encoding="utf-8"))
    )
    assert "goldnode_drain" in documented
    used = set()
    places = [
        ROOT / "site.yml",
        ROOT / "report.yml",
        ROOT / "rollback.yml",
        ROOT / "rollout.yml",
        *(ROOT / "rollout").glob("*.yml"),
        *(ROOT / "roles").rglob("*.yml"),
        *(ROOT / "src/goldnode/ansible").rglob("*.py"),
    ]
    for path in places:
        used |= set(
            re.findall(
                r"(?<![\w$/])((?:goldnode|sanity)_[a-z_]+)\b", path.read_text(encoding="utf-8")
            )
        )
    plugins = {
        "goldnode_class",
        "goldnode_report",
        "goldnode_rollout",
        "goldnode_state",
        "goldnode_drain",
    }
    plugins |= {"goldnode_linear", "goldnode_slurm", "goldnode_kubernetes"}
    assert (documented | used) - set(SETTINGS) - set(OWN) - plugins <= {
        "goldnode_modules",
        "goldnode_drian",
    }  # an example of a wrong one
