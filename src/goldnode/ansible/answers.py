"""The answers of nodes that were asked for their plan before Ansible runs the task for each of them.

The nodes of a task are asked by :mod:`goldnode.ansible.asking` in the process of `ansible-playbook`. The processes that
Ansible forks for the task, one per host, inherit where the answers are. The action plugin then has the answer of its
node in place of a connection. This module imports little, since each of these processes uses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - its name everywhere in Ansible
from ansible.errors import AnsibleConnectionFailure, AnsibleError

AUDIT = "GOLDNODE_AUDIT"
FEW = 4  # hosts that Ansible asks faster
PLAYED = 8  # hosts of a play from which the import of asyncssh pays, 0.14 s: a process is taken for each host all the same
SHOWN = 3  # -vvv: a person looks at the ssh commands of Ansible
ACTIONS = ("goldnode_state", "goldnode.node.goldnode_state")
# The parts of a command that differ each time that it is built.
RANDOM = re.compile(r"BECOME-SUCCESS-[a-z]+|key=[a-z]+")
# As a connection of Ansible executes a command: its exit status, standard output and standard error.
Execute = Callable[..., tuple[int, bytes, bytes]]


class NodeAnswer:
    """The answer of a node to a command, or why the node is not asked again."""

    def __init__(self, row: list[Any]) -> None:
        self._command, self._problem, self._status, self._stdout, self._stderr = row[1:]

    def to(self, command: str) -> tuple[int, bytes, bytes] | None:
        """Return the answer to a command, None if the node was asked something else. Raises AnsibleError without an answer."""
        if RANDOM.sub("", command) != RANDOM.sub("", self._command):
            return None
        if self._problem:
            kind = AnsibleConnectionFailure if self._problem.get("unreachable") else AnsibleError
            raise kind(self._problem["msg"].removeprefix("Task failed: "))
        return self._status, self._stdout.encode("latin-1"), self._stderr.encode("latin-1")


class TaskAnswers:
    """The answers of the nodes of a task. They stay in their files: with reports they are 50 kB each."""

    def __init__(self, task: str, files: list[Path]) -> None:
        self.task = task  # its identifier
        self._places = {name: place for file in files for name, place in _places(file)}

    def take(self, host: str) -> NodeAnswer | None:
        """Return the answer of a host once, else None: a second attempt asks the node."""
        place = self._places.pop(host, None)
        if place is None:
            return None
        file, offset = place
        with file.open("rb") as lines:
            lines.seek(offset)
            return NodeAnswer(json.loads(lines.readline()))


# Of the task that Ansible runs now. A process of the task has a copy.
current: TaskAnswers | None = None


def begin(answers: TaskAnswers | None) -> None:
    """Have the processes of the next task find these answers."""
    global current
    current = answers


def execute_first(connection: Any, task: str, host: str) -> None:
    """Have a connection of Ansible give the answer of its host once, if the task has one, and no other command it."""
    answer = current.take(host) if current is not None and current.task == task else None
    if answer is None:
        return
    execute: Execute = connection.exec_command

    def answered(
        command: str, in_data: Any = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        connection.exec_command = execute
        known = None if in_data else answer.to(command)
        return known or execute(command, in_data=in_data, sudoable=sudoable)

    connection.exec_command = answered


def is_asked(task: Any) -> bool:
    """Return whether a task gets the plan of each host, of all hosts of the play and of nothing else."""
    if task.action not in ACTIONS or task.args.get("operation", "plan") != "plan":
        return False
    apart = task.loop or task.loop_with or task.when or task.delegate_to or task.async_val
    bounded = task.throttle or task.timeout or task.debugger or C.ENABLE_TASK_DEBUGGER
    return not (apart or bounded or task.run_once or task.args.get("rollback") or task.environment)


def _places(file: Path) -> Iterator[tuple[str, tuple[Path, int]]]:
    """Yield the hosts in a file of answers, and where the line of each begins."""
    offset = 0
    with file.open("rb") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:  # the last one, of a process that was killed
                return
            if row[1]:  # else the action asked nothing
                yield row[0], (file, offset)
            offset += len(line)
