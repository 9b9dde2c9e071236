"""The shell that verifies a node's program before it runs as root: run for real, in a directory that plays the node."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.node.state.test_cases import document

from goldnode.ansible.action import goldnode_state
from goldnode.ansible.modules import goldnode_state as module
from goldnode.node.state.domains.program import OTHER, PROGRAM
from goldnode.node.state.model import Plan

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")

MALLORY = 4711
GOOD = b"#!/bin/sh\n# goldnode's own\n"


class Node:
    """A tree with a program that leaves a mark when it runs, and answers with a plan as good as any."""

    def __init__(self, root: Path) -> None:
        self.root, self.mark = root, root / "ran"
        self.place = root / PROGRAM.lstrip("/")
        self.place.parent.mkdir(parents=True)
        self.answer = json.dumps(Plan((), class_digest=document()["digest"]).to_json())
        self.place.write_text(f"#!/bin/sh\necho \"$@\" >>{self.mark}\necho '{self.answer}'\n")
        self.place.chmod(0o755)
        self.digest = "sha256:" + hashlib.sha256(self.place.read_bytes()).hexdigest()

    def run(self, command: str) -> dict[str, Any]:
        """Run a command of the controller's as the node's root shell does, with the program's path and those above it in the tree."""
        here = re.sub(
            r"(?<=[\s<])(/|/usr|/usr/lib(/goldnode\S*)?)(?=\s)",
            lambda found: f"{self.root}{found[0]}",
            command,
        )
        done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=False)
        lines = {"stdout_lines": done.stdout.splitlines(), "stderr_lines": done.stderr.splitlines()}
        return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr, **lines}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    os.umask(0o022)
    return Node(tmp_path)


class Silent:
    """A display that keeps nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *words, **more: None


class Template:
    """A templar for values that hold no template."""

    def template(self, value: Any) -> Any:
        return value


class Asked(goldnode_state.ActionModule):
    """The action plugin with a connection to the tree."""

    def __init__(self, node: Node) -> None:
        self._templar, self._display, self._low_level_execute_command = (
            Template(),
            Silent(),
            node.run,
        )
        self._program = node.digest
        self._connection, self._task = None, SimpleNamespace(_uuid="task")

    def controller(self) -> dict[str, Any]:
        return {"program": self._program, "deny_list": {}, "fleet_data": ""}


@pytest.fixture
def asked(node: Node) -> Asked:
    return Asked(node)


def linked(node: Node) -> None:
    away = node.root / "theirs"
    node.place.rename(away)
    node.place.symlink_to(away)


def moved(node: Node) -> None:
    away = node.root / "lib"
    node.place.parent.rename(away)
    node.place.parent.symlink_to(away)


def another(node: Node) -> None:
    node.place.write_text(node.place.read_text() + "\n")


DAMAGE: dict[str, Callable[[Node], None]] = {
    "owner": lambda node: os.chown(node.place, MALLORY, -1),
    "group": lambda node: os.chown(node.place, -1, MALLORY),
    "mode for all": lambda node: node.place.chmod(0o757),
    "mode for a group": lambda node: node.place.chmod(0o775),
    "a link": linked,
    "owner of its directory": lambda node: os.chown(node.place.parent, MALLORY, -1),
    "mode of its directory": lambda node: node.place.parent.chmod(0o777),
    "its directory is a link": moved,
    "owner of /usr": lambda node: os.chown(node.root / "usr", MALLORY, -1),
    "mode of /usr/lib": lambda node: (node.root / "usr/lib").chmod(0o775),
    "owner of the root": lambda node: os.chown(node.root, MALLORY, -1),
}


def test_program_of_roots_own_answers_in_one_execution(node: Node, asked: Asked) -> None:
    plan = asked.resident(document(), {"inventory_hostname": "n1"})
    assert plan is not None
    assert plan["actions"] == []
    assert node.mark.read_text().startswith("plan --resident --engine-digest sha256:")
    assert node.mark.read_text().count("\n") == 1


@pytest.mark.parametrize("damage", [*DAMAGE.values(), another], ids=[*DAMAGE, "another program"])
def test_program_that_others_can_change_is_never_run_however_well_it_would_answer(
    node: Node, asked: Asked, damage: Callable[[Node], None]
) -> None:
    damage(node)
    assert asked.resident(document(), {"inventory_hostname": "n1"}) is None
    assert not node.mark.exists()
    assert asked._lacks_program, "the module is asked with the program at once"


@pytest.mark.parametrize(
    "damage", [None, *DAMAGE.values(), another], ids=["root's own", *DAMAGE, "another program"]
)
def test_check_by_the_playbook_runs_no_program_that_others_can_change(
    node: Node, asked: Asked, damage: Callable[[Node], None] | None
) -> None:
    asked._task = SimpleNamespace(check_mode=False)
    if damage is None:
        assert asked.check({})["rc"] == 0
        assert node.mark.read_text() == "check --format json\n"
        return
    damage(node)
    found = asked.check({})
    assert (found["failed"], found["rc"]) == (True, OTHER)
    assert "Run site.yml" in found["msg"]
    assert not node.mark.exists()


@pytest.mark.parametrize(
    ("answer", "why"),
    [("all is well", "not JSON"), ("{}", "plan does not have the keys")],
    ids=["prose", "no plan"],
)
def test_answer_that_is_no_plan_is_reported_and_not_believed(
    node: Node, monkeypatch: pytest.MonkeyPatch, answer: str, why: str
) -> None:
    node.place.write_text(f"#!/bin/sh\necho '{answer}'\n")
    node.digest = "sha256:" + hashlib.sha256(node.place.read_bytes()).hexdigest()
    asked, shown = Asked(node), list[str]()
    monkeypatch.setattr(
        asked,
        "_display",
        type("Display", (), {"display": lambda self, text, **more: shown.append(text)})(),
    )
    assert asked.resident(document(), {"inventory_hostname": "n1"}) is None
    assert why in shown[0]


def test_program_that_is_missing_is_another_one(node: Node, asked: Asked) -> None:
    node.place.unlink()
    assert asked.resident(document(), {"inventory_hostname": "n1"}) is None
    assert asked._lacks_program


class Arguments:
    """What the module reads of Ansible's own class."""

    def __init__(self, node: Node) -> None:
        self.params = {"program": {"sha256": node.digest}, "root": str(node.root)}


@pytest.mark.parametrize(
    "damage",
    [row for name, row in DAMAGE.items() if name != "group"],
    ids=[name for name in DAMAGE if name != "group"],
)
def test_module_runs_no_program_that_others_can_change(
    node: Node, damage: Callable[[Node], None]
) -> None:
    assert module.program(Arguments(node)) == str(node.place)
    damage(node)
    assert module.program(Arguments(node)) is None
