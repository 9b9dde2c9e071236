"""Tags of the playbooks, and the variables that the roles document."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from goldnode.inventory.variables import SETTINGS
from goldnode.node.state.model import PARTS

ROOT = Path(__file__).parents[3]


def roles(*words: str) -> list[str]:
    """Return the roles whose tasks site.yml would run with these options, in order."""
    command = [
        sys.executable,
        "-m",
        "ansible",
        "playbook",
        "-i",
        "inventories/demo",
        "site.yml",
        "--list-tasks",
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # A role's own validation of its arguments always runs, and changes nothing.
    names = re.findall(r"^      (\w+) : (?!Validating arguments)", done.stdout, re.MULTILINE)
    return list(dict.fromkeys(names))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tags", "gpu_driver"], ["node_class", "gpu_driver"]),
        (["--tags", "kernel,sanity"], ["node_class", "kernel", "sanity"]),
        (["--skip-tags", "kernel"], [part for part in PARTS if part != "kernel"]),
        (["--tags", "goldnode"], list(PARTS)),
    ],
    ids=" ".join,
)
def test_tags_select_parts(words: list[str], expected: list[str]) -> None:
    assert roles(*words) == expected


def test_a_tag_of_another_playbook_leaves_the_nodes_alone() -> None:
    """Nothing listens where the host of the inventory should be: it would be unreachable."""
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "n1,", "site.yml", "--tags", "web"]
    done = subprocess.run(
        [*command, "-e", "ansible_host=127.0.0.1", "-e", "ansible_port=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ask every node" not in done.stdout


@pytest.mark.parametrize("role", PARTS)
def test_options_of_a_role_are_variables_that_goldnode_reads(role: str) -> None:
    specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    options = specs["main"]["options"]
    assert options, "a role documents the variables that it reads"
    assert options.keys() <= {*SETTINGS, "goldnode_node_class"}
