"""Answers that a process of Ansible finds in place of its node: to the command that was asked, once, and to no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from goldnode.ansible import answers

ASKED = "sudo -p 'key=abc' sh -c 'echo BECOME-SUCCESS-abc; plan'"
AGAIN = "sudo -p 'key=xyz' sh -c 'echo BECOME-SUCCESS-xyz; plan'"


class Node:
    """A connection of Ansible."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def exec_command(
        self, command: str, in_data: Any = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        self.executed.append(command)
        return 0, b"by ssh", b""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    unreachable = {"unreachable": True, "msg": "Failed to connect"}
    refused = {"failed": True, "msg": "Task failed: Incorrect sudo password"}
    rows = [
        ["h1", ASKED, None, 0, "by a session", ""],
        ["h2", ASKED, unreachable, 0, "", ""],
        ["h3", ASKED, refused, 0, "", ""],
        ["h4", "", {"failed": True, "msg": "no class"}, 0, "", ""],
    ]
    file = tmp_path / "answered-1"
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    # The process was killed in a line.
    file.write_text(f'{text}["h5", "sudo', encoding="utf-8")
    answers.begin(answers.TaskAnswers("task", [file]))
    yield Node()
    answers.begin(None)


def test_the_answer_is_given_once_to_the_command_that_was_asked(node: Node) -> None:
    answers.execute_first(node, "task", "h1")
    assert node.exec_command(AGAIN) == (0, b"by a session", b"")
    assert node.exec_command(AGAIN) == (0, b"by ssh", b"")
    # A second attempt of the task in the same process asks the node.
    answers.execute_first(node, "task", "h1")
    assert node.exec_command(AGAIN) == (0, b"by ssh", b"")


def test_another_command_and_a_command_with_input_ask_the_node(node: Node) -> None:
    answers.execute_first(node, "task", "h1")
    assert node.exec_command("another") == (0, b"by ssh", b"")
    assert node.exec_command(AGAIN) == (0, b"by ssh", b"")
    answers.execute_first(node, "task", "h2")
    assert node.exec_command(ASKED, in_data=b"x") == (0, b"by ssh", b"")


@pytest.mark.parametrize(
    ("task", "host"), [("another", "h1"), ("task", "h4"), ("task", "h5"), ("task", "h6")]
)
def test_a_host_without_an_answer_is_asked(node: Node, task: str, host: str) -> None:
    answers.execute_first(node, task, host)
    assert node.exec_command(ASKED) == (0, b"by ssh", b"")


@pytest.mark.parametrize(
    ("host", "kind", "message"),
    [
        ("h2", AnsibleConnectionFailure, "Failed to connect"),
        ("h3", AnsibleError, "Incorrect sudo password"),
    ],
)
def test_a_host_that_is_not_asked_again_has_the_error_of_ansible(
    node: Node, host: str, kind: type[Exception], message: str
) -> None:
    answers.execute_first(node, "task", host)
    with pytest.raises(kind, match=f"^{message}"):
        node.exec_command(AGAIN)
    assert not node.executed


DEFAULTS: dict[str, Any] = {"action": "goldnode_state", "args": {}, "loop": None, "loop_with": None}
DEFAULTS |= {"when": [], "delegate_to": None, "async_val": 0, "throttle": 0, "timeout": 0}
DEFAULTS |= {"debugger": None, "run_once": False, "environment": []}


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ({}, True),
        ({"action": "goldnode.node.goldnode_state", "args": {"operation": "plan"}}, True),
        ({"action": "ansible.builtin.command"}, False),
        ({"args": {"operation": "apply"}}, False),
        ({"args": {"rollback": True}}, False),
        ({"loop": [1]}, False),
        ({"when": ["x"]}, False),
        ({"delegate_to": "h2"}, False),
        ({"run_once": True}, False),
        ({"async_val": 10}, False),
        # Each bounds the task in a way that one process for all hosts does not keep.
        ({"throttle": 2}, False),
        ({"timeout": 5}, False),
        # It may run the task of a host again, in a process with the same answers.
        ({"debugger": "on_failed"}, False),
        ({"environment": [{"A": "b"}]}, False),
    ],
)
def test_a_task_is_asked_whole_only_if_it_is_a_plan_of_each_host(
    changed: dict[str, Any], *, asked: bool
) -> None:
    assert answers.is_asked(SimpleNamespace(**{**DEFAULTS, **changed})) is asked
