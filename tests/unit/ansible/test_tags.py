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


def play(playbook: str, *words: str, where: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a playbook of the tree for a host that nobody answers for: contacted, it would be unreachable."""
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "n1,", playbook, *words]
    return subprocess.run(
        [*command, "-e", "ansible_host=127.0.0.1", "-e", "ansible_port=1"],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_tag_of_another_playbook_leaves_the_nodes_alone(tmp_path: Path) -> None:
    book = tmp_path / "all.yml"
    task = {"ansible.builtin.debug": {"msg": "hello"}, "tags": ["web"]}
    plays = [{"hosts": "all", "gather_facts": False, "tasks": [task]}]
    book.write_text(
        yaml.safe_dump([*plays, {"import_playbook": str(ROOT / "site.yml")}]), encoding="utf-8"
    )
    done = play(str(book), "--tags", "web")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Get the plan of every node" not in done.stdout
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tags", "kernl"], "--tags kernl selects nothing in site.yml. Use kernel."),
        (
            ["--tags", "web"],
            "Nothing was done: --tags web selects no task. Tags: container_runtime, goldnode,",
        ),
        (["--start-at-task", "Bring it"], 'No task of site.yml is called "Bring it".'),
        (
            ["--start-at-task", "Install the locked kernel"],
            "cannot start at a task: each part needs the plan",
        ),
        (["--start-at-task", "Apply the GPU *"], "Use --tags gpu_policy."),
    ],
    ids=" ".join,
)
def test_a_selection_of_nothing_is_an_error(words: list[str], expected: str) -> None:
    done = play("site.yml", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert expected in " ".join((done.stdout + done.stderr).split())
    assert "UNREACHABLE" not in done.stdout


@pytest.mark.parametrize("book", ["site", "rollback"])
def test_a_selection_of_nothing_is_an_error_without_the_callback(tmp_path: Path, book: str) -> None:
    # From another directory, where no ansible.cfg enables it.
    done = play(str(ROOT / f"{book}.yml"), "--tags", "kernl", where=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    words = " ".join((done.stdout + done.stderr).split())
    assert f"--tags kernl selects no part of {book}." in words


def test_a_tag_to_skip_that_exists_nowhere_is_a_warning() -> None:
    done = play("site.yml", "--skip-tags", "kernal")
    assert "--skip-tags kernal selects nothing in site.yml. Use kernel." in " ".join(
        done.stderr.split()
    )


@pytest.mark.parametrize("role", PARTS)
def test_options_of_a_role_are_variables_that_goldnode_reads(role: str) -> None:
    specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())[
        "argument_specs"
    ]
    options = specs["main"]["options"]
    assert options, "a role documents the variables that it reads"
    assert options.keys() <= {*SETTINGS, "goldnode_node_class"}
