"""`ansible … -m goldnode_state -a operation=plan --tree DIRECTORY`, with many nodes asked from this one process.

Ansible takes a process, an `ssh` and a handshake of 0.06 s for each host. Here the action plugin runs in this process,
with the connection that Ansible itself sets up for the host from inventory, variables and command line. What it wants
to have executed goes over a session of :mod:`goldnode.audit.sessions` instead of an `ssh`.

The session counts only if it gave a plan. A host that has anything which is not honoured here, that refuses the login,
shows another key, does not answer or lacks the program is asked by Ansible afterwards, and its answer is Ansible's.

Run as a module, with the arguments of `ansible`. DIRECTORY gets an answer per host, and the file NOTES beside it the
number of hosts that this process asked, and those that Ansible asked by reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ansible import context
from ansible._internal._templating._engine import TemplateEngine
from ansible.cli import CLI
from ansible.cli.adhoc import AdHocCLI
from ansible.executor.task_executor import TaskExecutor
from ansible.playbook.block import Block
from ansible.playbook.play import Play
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import get_plugin_loader_namespace

from goldnode.audit.ssh_options import SshConfiguration, SshTarget, UnsupportedError
from goldnode.core.extras import is_installed
from goldnode.fleet.nodes.plan import NOTES

AUDIT = "GOLDNODE_AUDIT"
FEW = 4  # hosts that Ansible asks faster
IN_FLIGHT = 64


class _Wanted(Exception):  # noqa: N818 - the way out of an action, and no error
    """The action wants this command executed."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command


class _HostAction:
    """The action plugin of one host, with Ansible's own connection for it."""

    def __init__(self, host: Any, task: Any, variables: dict[str, Any], about: _Run) -> None:
        self.name, self._variables = host.name, variables
        self._answer: tuple[int, bytes, bytes] | None = None
        executor = TaskExecutor(
            host,
            task,
            variables,
            about.play_context,
            about.loader,
            about.plugins,
            None,
            about.manager,
        )
        engine = TemplateEngine(loader=about.loader, variables=variables)
        kind = variables.get("ansible_connection") or task.connection
        if kind not in ("ssh", "smart", "ansible.builtin.ssh"):
            raise UnsupportedError(f"its connection is {kind}")
        executor._play_context = about.play_context.set_task_and_variable_override(
            task=task, variables=variables, templar=engine
        )
        executor._play_context.post_validate(templar=engine)
        self.connection = executor._get_connection(variables, engine, "ssh")
        executor._connection = self.connection
        executor._set_connection_options(variables, engine)
        self.connection.exec_command = self._execute
        self._handler = executor._get_action_handler(engine)
        self._handler._execute_module = self._no_module

    def _execute(
        self, command: str, in_data: Any = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        if self._answer is None:
            raise _Wanted(command)
        answer, self._answer = self._answer, None
        return answer

    def _no_module(self, *given: Any, **named: Any) -> None:
        raise UnsupportedError("it needs the module of Ansible")

    def run(self, answer: tuple[int, bytes, bytes] | None = None) -> dict[str, Any]:
        """Return the result. Raises _Wanted without an answer, where one is needed, and UnsupportedError."""
        self._answer = answer
        try:
            result: dict[str, Any] = self._handler.run(task_vars=self._variables)
        finally:
            self._handler.cleanup()
        return result

    def target(self, configuration: SshConfiguration) -> SshTarget:
        """Return the server that Ansible's ssh would reach. Raises UnsupportedError."""
        connection = self.connection
        for option in ("password", "private_key", "pkcs11_provider"):
            if connection.get_option(option):
                raise UnsupportedError(f"it logs in with the option {option} of Ansible")
        if connection.become is not None and connection.become.get_option("become_pass"):
            raise UnsupportedError("become has a password")
        program = connection.get_option("ssh_executable")
        if program not in ("ssh", "/usr/bin/ssh"):
            raise UnsupportedError(f"its ssh is {program}")
        host = str(connection.get_option("host"))
        connection.host = host
        command = [word.decode() for word in connection._build_command(program, "ssh")]
        return configuration.target(command, host)


class _Run:
    """What is the same for all hosts of a run."""

    def __init__(self, cli: AuditCLI, pattern: str) -> None:
        self.loader, self.inventory, self.manager = cli._play_prereqs()
        self.plugins = get_plugin_loader_namespace()
        play = cli._play_ds(pattern, context.CLIARGS["seconds"], context.CLIARGS["poll_interval"])
        self.play = Play().load(play, variable_manager=self.manager, loader=self.loader)
        connection, become = cli.ask_passwords()
        passwords = {"conn_pass": connection, "become_pass": become}
        self.play_context = PlayContext(self.play, passwords, None)
        wanted = context.CLIARGS["module_name"]
        # A play has tasks of its own too, which flush handlers.
        self.task = next(task for task in _tasks(self.play.compile()) if task.action == wanted)
        self.hosts = cli.get_host_list(self.inventory, context.CLIARGS["subset"], pattern)
        self.names = [host.name for host in self.hosts]

    def action(self, host: Any) -> _HostAction:
        """Return the action for a host."""
        variables = self.manager.get_vars(
            play=self.play, host=host, task=self.task, _hosts=self.names, _hosts_all=self.names
        )
        return _HostAction(host, self.task, variables, self)


def _tasks(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, Block):
            yield from _tasks(item.block)
        else:
            yield item


class _StartedOnce(CLI):
    """What `AdHocCLI.run` starts with, which Ansible does not expect twice."""

    _started = False

    def run(self) -> Any:
        """Start the command."""
        if not self._started:
            self._started = True
            return super().run()
        return None


class AuditCLI(AdHocCLI, _StartedOnce):
    """The command `ansible`, which asks the hosts that it can from this process first."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        self._prerequisites: Any = None
        self._passwords: Any = None
        self._limited = "--forks" in arguments

    def _play_prereqs(self) -> Any:
        """Read the inventory once."""
        if self._prerequisites is None:
            self._prerequisites = super()._play_prereqs()
        return self._prerequisites

    def ask_passwords(self) -> Any:
        """Ask once."""
        if self._passwords is None:
            self._passwords = super().ask_passwords()
        return self._passwords

    def _in_flight(self) -> int:
        """Return how many hosts are asked at a time: `--forks`, if it was given."""
        return int(context.CLIARGS["forks"]) if self._limited else IN_FLIGHT

    def run(self) -> Any:
        """Ask the hosts, and have Ansible ask the rest."""
        _StartedOnce.run(self)
        tree = Path(context.CLIARGS["tree"])
        notes: dict[str, Any] = {"asked": 0, "by_ansible": {}, "missing": False}
        about = _Run(self, context.CLIARGS["args"])
        many = len(about.hosts) >= FEW and os.environ.get(AUDIT) != "off"
        if many and not is_installed("asyncssh"):
            notes["missing"] = True
        elif many:
            rest = asyncio.run(_ask(about, tree, notes, self._in_flight()))
            about.inventory.restrict_to_hosts(rest)
        tree.with_name(NOTES).write_text(json.dumps(notes), encoding="utf-8")
        if notes["asked"] == len(about.hosts):
            return 0
        return super().run()


async def _ask(about: _Run, tree: Path, notes: dict[str, Any], in_flight: int) -> list[Any]:
    """Ask the hosts and write their answers. Return those that Ansible has to ask, and note the reasons."""
    from goldnode.audit.sessions import SessionError, Sessions  # asyncssh is an optional package

    configuration, rest = SshConfiguration(), []
    left = iter(about.hosts)

    async def work(sessions: Sessions) -> None:
        for host in left:
            try:
                result = await asked(sessions, host)
                (tree / host.name).write_text(json.dumps(result), encoding="utf-8")
                notes["asked"] += 1
            except (UnsupportedError, SessionError) as problem:
                rest.append(host)
                notes["by_ansible"].setdefault(str(problem), []).append(host.name)
            except Exception as problem:
                # Of whatever kind: the answer for this host is the one that Ansible gives.
                rest.append(host)
                reason = f"{type(problem).__name__}: {problem}"
                notes["by_ansible"].setdefault(reason, []).append(host.name)

    async def asked(sessions: Sessions, host: Any) -> dict[str, Any]:
        action = about.action(host)
        try:
            return action.run()
        except _Wanted as wanted:
            command = wanted.command
        answer = await sessions.ask(action.target(configuration), command)
        return action.run((answer.status, answer.stdout, answer.stderr))

    async with Sessions() as sessions:
        await asyncio.gather(*(work(sessions) for _ in range(in_flight)))
    return rest


def main() -> None:
    """Run as `ansible` does."""
    AuditCLI.cli_executor(["ansible", *sys.argv[1:]])


if __name__ == "__main__":
    os.umask(0o077)
    main()
