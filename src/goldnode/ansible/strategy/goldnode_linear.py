"""Strategy plugin `goldnode_linear`: Ansible's `linear`, in which the plans of many nodes are asked from this one process.

Ansible takes a process, an `ssh` and a handshake for each host of a task. Here the sessions of
:mod:`goldnode.ansible.asking` ask all hosts for their plan at the first of them. The task then runs for each host as in
`linear`, by Ansible's own executor and our action plugin, but in this process, and its connection has the answer already.
So results, statistics, callbacks and reports are those of `linear`.

A host that gave no answer, and one whose action wants anything else executed, is asked by a process of Ansible. All other
tasks are Ansible's. With `GOLDNODE_AUDIT=on` the callback plugin sets this strategy for plays of the strategy `linear`.
"""

from __future__ import annotations

import os
from typing import Any

from ansible._internal import _task
from ansible.executor.task_executor import TaskExecutor
from ansible.executor.task_result import _RawTaskResult
from ansible.plugins.loader import get_plugin_loader_namespace
from ansible.plugins.strategy.linear import StrategyModule as Linear
from ansible.utils.display import Display

from goldnode.ansible.answers import AUDIT, FEW, SHOWN, NodeAnswer, TaskAnswers, is_asked
from goldnode.ansible.asking import Run, Sources, ask_task
from goldnode.core.extras import is_installed

DOCUMENTATION = """
name: goldnode_linear
short_description: Ansible's linear, with the plans of many nodes asked from one process
description:
  - As C(linear). The task that gets the plan of every node is asked over ssh sessions of one process, if asyncssh is installed.
author: goldnode
"""

display = Display()


class _AnotherError(BaseException):
    """The action wants something else executed than the node was asked. No handler for errors may hold it up."""


class _Executor(TaskExecutor):
    """Ansible's executor of a task, with a connection that has the answer."""

    answer: NodeAnswer

    def _get_connection(self, *given: Any, **named: Any) -> Any:
        connection = super()._get_connection(*given, **named)
        connection.exec_command = self._exec_command
        return connection

    def _exec_command(
        self, command: str, in_data: Any = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        known = None if in_data else self.answer.to(command)
        if known is None:
            raise _AnotherError
        return known


class StrategyModule(Linear):
    """See the module."""

    def __init__(self, tqm: Any) -> None:
        super().__init__(tqm)
        self._iterator: Any = None
        self._answers: TaskAnswers | None = None
        self._asked: set[str] = set()

    def run(self, iterator: Any, play_context: Any) -> Any:
        """Run the play."""
        self._iterator = iterator
        return super().run(iterator, play_context)

    def _queue_task(
        self, host: Any, task: Any, task_vars: dict[str, Any], play_context: Any
    ) -> None:
        result = None
        if is_asked(task) and not self._step:
            if task._uuid not in self._asked:
                self._asked.add(task._uuid)
                self._answers = self._ask(task, play_context)
            if answer := self._answers and self._answers.take(host.name):
                result = self._executed(answer, host, task, task_vars, play_context=play_context)
        if result is None:
            super()._queue_task(host, task, task_vars, play_context)
            return
        self._queued_task_cache[host.name, task._uuid] = {
            "host": host,
            "task": task,
            "task_vars": task_vars,
            "play_context": play_context,
        }
        self._tqm.send_callback("v2_runner_on_start", host, task)
        # The way of a process of Ansible, whose results come through this queue.
        self._final_q.send_task_result(result)
        self._pending_results += 1

    def _ask(self, task: Any, play_context: Any) -> TaskAnswers | None:
        """Return the answers of the hosts of a task, None if Ansible asks them."""
        ended = self._iterator._play._removed_hosts
        hosts = [host for host in self.get_hosts_left(self._iterator) if host.name not in ended]
        off = os.environ.get(AUDIT) == "off" or display.verbosity >= SHOWN
        if len(hosts) < FEW or off or not is_installed("asyncssh"):
            return None
        about = Run(
            Sources(self._loader, self._inventory, self._variable_manager),
            play_context=play_context,
            play=self._iterator._play,
            task=task.copy(),
            hosts=hosts,
            names=(self._hosts_cache, self._hosts_cache_all),
        )
        return ask_task(about)

    def _executed(
        self,
        answer: NodeAnswer,
        host: Any,
        task: Any,
        task_vars: dict[str, Any],
        *,
        play_context: Any,
    ) -> Any:
        """Return the result of the task for a host, None if its action wants something else than the answer."""
        own = task.copy(exclude_parent=True, exclude_tasks=True)
        own._parent = task._parent
        executor = _Executor(
            host,
            own,
            task_vars,
            play_context,
            self._loader,
            shared_loader_obj=get_plugin_loader_namespace(),
            final_q=self._final_q,
            variable_manager=self._variable_manager,
        )
        executor.answer = answer
        try:
            with _task.TaskContext(own):
                data = executor.run()
        except _AnotherError:
            return None
        return _RawTaskResult(host=host, task=own, return_data=data, task_fields=own.dump_attrs())
