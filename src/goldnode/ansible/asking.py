"""The plan of many nodes, asked from this one process by the action plugin of Ansible and by our sessions.

The action plugin of a host runs in this process, with the connection that Ansible itself sets up for the host from
inventory, variables and command line. What it wants to have executed goes over a session of
:mod:`goldnode.audit.sessions` instead of an `ssh`.

A session counts only if it gave an answer. A host that has anything which is not honoured here, that refuses the login,
shows another key, does not answer or lacks the program is a reason in the notes, and Ansible asks it afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import constants as C  # noqa: N812 - its name everywhere in Ansible
from ansible import context
from ansible._internal._templating._engine import TemplateEngine
from ansible.executor.task_executor import TaskExecutor
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import get_plugin_loader_namespace
from ansible.template import Templar
from ansible.utils.display import Display

from goldnode.ansible.answers import TaskAnswers
from goldnode.audit.ssh_options import SshConfiguration, SshTarget, UnsupportedError, split
from goldnode.fleet.nodes.asked import ANSWERS, asked_by_ansible_lines
from goldnode.inventory.variables import UnknownVariables

if TYPE_CHECKING:
    from goldnode.audit.sessions import Become, SessionAnswer, SessionError

IN_FLIGHT = 64
COLLECTED = (
    100  # closed connections after which what is left of them is collected: about 40 kB each
)
PART = 250  # hosts from which a further process pays
# Variables on which no option of a connection depends: the host and its port, and what Ansible itself sets.
ALIKE = {
    "ansible_check_mode",
    "ansible_config_file",
    "ansible_dependent_role_names",
    "ansible_diff_mode",
    "ansible_facts",
    "ansible_forks",
    "ansible_host",
    "ansible_inventory_sources",
    "ansible_local",
    "ansible_play_batch",
    "ansible_play_hosts",
    "ansible_play_hosts_all",
    "ansible_play_name",
    "ansible_play_role_names",
    "ansible_playbook_python",
    "ansible_port",
    "ansible_role_names",
    "ansible_search_path",
    "ansible_verbosity",
    "ansible_version",
}
# Names that take precedence over `ansible_host` and `ansible_port`.
OLD_NAMES = {"ansible_ssh_host", "ansible_ssh_port"}


display = Display()


class CommandWanted(Exception):  # noqa: N818 - the way out of an action, and no error
    """The action wants this command executed."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command


class _Connection:
    """Ansible's connection of a host, and the way to the host. Hosts whose variables of ssh and become are equal share one."""

    def __init__(self, host: Any, variables: dict[str, Any], about: Run, *, shared: bool) -> None:
        task = about.task
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
        self.play_context = about.play_context.set_task_and_variable_override(
            task=task, variables=variables, templar=engine
        )
        self.play_context.post_validate(templar=engine)
        executor._play_context = self.play_context
        self.plugin = executor._get_connection(variables, engine, "ssh")
        executor._connection = self.plugin
        executor._set_connection_options(variables, engine)
        self.handler = type(executor._get_action_handler(engine))
        self._shared, self._host = shared, str(self.plugin.get_option("host"))
        self._words = self._split()
        self._port = variables.get("ansible_port")

    def _split(self) -> tuple[tuple[str, ...], int | None, str | None] | UnsupportedError:
        """Return the ssh command of Ansible without what differs from host to host, or why it is not followed."""
        for option in ("password", "private_key", "pkcs11_provider"):
            if self.plugin.get_option(option):
                return UnsupportedError(f"it logs in with the option {option} of Ansible")
        program = self.plugin.get_option("ssh_executable")
        if program not in ("ssh", "/usr/bin/ssh"):
            return UnsupportedError(f"its ssh is {program}")
        # The path of shared connections, which are not used here, has the name of the host.
        self.plugin.host = self._host
        command = [word.decode() for word in self.plugin._build_command(program, "ssh")]
        try:
            return split(command)
        except UnsupportedError as problem:
            return problem

    def target(
        self, configuration: SshConfiguration, name: str, variables: dict[str, Any]
    ) -> SshTarget:
        """Return the server that Ansible's ssh would reach for a host. Raises UnsupportedError."""
        if isinstance(self._words, UnsupportedError):
            raise self._words
        words, port, user = self._words
        host = self._host
        if self._shared:
            host = str(variables.get("ansible_host") or name)
            # A port in the arguments of ssh comes before that of a variable.
            if port is not None and str(port) == str(self._port):
                port = int(variables["ansible_port"])
        return configuration.reach(words, host, port, user)

    def become(self, command: str) -> Become | None:
        """Return how `command` asks for the password of become, if there is one. Raises UnsupportedError."""
        from goldnode.audit.sessions import Become  # asyncssh is an optional package

        plugin = self.plugin.become
        password = plugin.get_option("become_pass") if plugin is not None else None
        if not password or plugin.success not in command:
            return None
        if plugin.name != "sudo" or not plugin.prompt:
            raise UnsupportedError(f"become has a password for {plugin.name}")
        return Become(plugin.prompt, plugin.success, str(password))


class HostAction:
    """The action plugin of one host."""

    def __init__(self, host: Any, variables: dict[str, Any], about: Run) -> None:
        self.name, self.variables = host.name, variables
        self._answer: tuple[int, bytes, bytes] | None = None
        self.command = ""  # that the node was asked
        self.connection = about.connection(host, variables)
        engine = TemplateEngine(loader=about.loader, variables=variables)
        self._handler = self.connection.handler(
            task=about.task,
            connection=self.connection.plugin,
            play_context=self.connection.play_context,
            loader=about.loader,
            templar=Templar._from_template_engine(engine),
            shared_loader_obj=about.plugins,
        )
        self._handler._execute_module = self._no_module

    def _execute(
        self, command: str, in_data: Any = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        if self._answer is None:
            self.command = command
            raise CommandWanted(command)
        answer, self._answer = self._answer, None
        return answer

    def _no_module(self, *given: Any, **named: Any) -> None:
        raise UnsupportedError("it needs the module of Ansible")

    def run(self, answer: SessionAnswer | None = None) -> dict[str, Any]:
        """Return the result. Raises CommandWanted without an answer, where one is needed, and UnsupportedError."""
        self._answer = None
        if answer is not None:
            self._answer = (answer.status, answer.stdout, answer.stderr)
        # Other hosts have the connection too, each for the time of one call.
        self.connection.plugin.exec_command = self._execute
        try:
            result: dict[str, Any]
            if answer is None:
                result = self._handler.run(task_vars=self.variables)
            else:
                result = self._handler.resumed()
        finally:
            self._handler.cleanup()
        return result

    def target(self, configuration: SshConfiguration) -> SshTarget:
        """Return the server that Ansible's ssh would reach. Raises UnsupportedError."""
        return self.connection.target(configuration, self.name, self.variables)


@dataclass(frozen=True)
class Sources:
    """Ansible's loader of files, its inventory, and its manager of variables."""

    loader: Any
    inventory: Any
    manager: Any


class Run:
    """Inventory, play and task of a run, shared by all hosts that are asked."""

    def __init__(
        self,
        sources: Sources,
        *,
        play_context: PlayContext,
        play: Any,
        task: Any,
        hosts: list[Any],
        names: tuple[list[str], list[str]] | None = None,
    ) -> None:
        self.loader, self.inventory = sources.loader, sources.inventory
        self.manager = sources.manager
        self.plugins = get_plugin_loader_namespace()
        self.play_context, self.play, self.task, self.hosts = play_context, play, task, hosts
        self.names = [host.name for host in hosts]
        # Those of the batch and of the play, which are variables of each host.
        self._played = names or (self.names, self.names)
        self.unknown = UnknownVariables()
        self._connections: dict[str, _Connection] = {}

    def action(self, host: Any) -> HostAction:
        """Return the action for a host."""
        variables = self.manager.get_vars(
            play=self.play,
            host=host,
            task=self.task,
            _hosts=self._played[0],
            _hosts_all=self._played[1],
        )
        self.unknown.add(host.name, variables)
        return HostAction(host, variables, self)

    def groups(self) -> dict[str, list[str]]:
        """Return the hosts of each group that are asked, with those of its children."""
        asked = set(self.names)
        groups = self.inventory.groups.items()
        return {
            name: sorted(asked.intersection(host.name for host in group.get_hosts()))
            for name, group in groups
        }

    def connection(self, host: Any, variables: dict[str, Any]) -> _Connection:
        """Return the connection of a host: its own, if anything of ssh or become is a template or has an older name."""
        own = {
            name: value
            for name, value in variables.items()
            if name.startswith("ansible_") and name not in ALIKE
        }
        written = repr([*sorted(own.items()), "ansible_port" in variables])
        apart = [variables.get(name) for name in ("ansible_host", "ansible_port")]
        # A value in a vault may be a template.
        marks = ("{{", "{%", "EncryptedString")
        template = any(mark in text for mark in marks for text in (written, repr(apart)))
        if template or variables.keys() & OLD_NAMES:
            return _Connection(host, variables, self, shared=False)
        if written not in self._connections:
            self._connections[written] = _Connection(host, variables, self, shared=True)
        return self._connections[written]


# The line of a file for a host: from its action, and from its result if it needs none of the node, else from the answer.
Line = Callable[[HostAction, "dict[str, Any] | SessionAnswer"], str]


def ask_all(about: Run, place: Path, in_flight: int, line: Line) -> dict[str, Any]:
    """Ask the hosts, and write a line for each answer to files in `place`. Return the notes of it.

    Of a large fleet each processor has a part: a process does one thing at a time.
    """
    workers = max(1, min(len(about.hosts) // PART, len(os.sched_getaffinity(0))))
    parts = [about.hosts[number::workers] for number in range(workers)]
    notes: dict[str, Any] = {"asked": 0, "by_ansible": {}, "missing": False, "unknown": {}}
    others = [_forked(about, part, place, in_flight // workers, line) for part in parts[1:]]
    noted = [asyncio.run(_ask(about, parts[0], place, max(1, in_flight // workers), line))]
    for part, (process, file) in zip(parts[1:], others, strict=True):
        os.waitpid(process, 0)
        noted.append(_notes_of(file, part))
    for one in noted:
        notes["asked"] += one["asked"]
        for key in ("by_ansible", "unknown"):
            for reason, names in one[key].items():
                notes[key].setdefault(reason, []).extend(names)
    return notes


def _forked(
    about: Run, hosts: list[Any], place: Path, in_flight: int, line: Line
) -> tuple[int, Path]:
    """Start a process that asks `hosts`. Return its id, and the file that gets its notes."""
    file = place / f"asked-by-{hosts[0].name}.json"
    # Another thread of the process, of which there is none in the new one, may hold it.
    with display._lock:
        process = os.fork()
    if process:
        return process, file
    # It leaves by _exit: what is registered for the end, and the rest of this program, are of the first process.
    try:
        notes = asyncio.run(_ask(about, hosts, place, max(1, in_flight), line))
        file.write_text(json.dumps(notes), encoding="utf-8")
        os._exit(0)
    finally:
        os._exit(1)


def _notes_of(file: Path, hosts: list[Any]) -> dict[str, Any]:
    """Return the notes of a process. If it was killed, Ansible asks its hosts."""
    if file.is_file():
        notes: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return notes
    reason = "the process that asked it ended"
    return {"asked": 0, "by_ansible": {reason: [host.name for host in hosts]}, "unknown": {}}


async def _ask(
    about: Run, hosts: list[Any], place: Path, in_flight: int, line: Line
) -> dict[str, Any]:
    """Ask hosts and write their answers. Return how many answered, and by reason those that Ansible has to ask."""
    from goldnode.audit.sessions import SessionError, Sessions  # asyncssh is an optional package

    configuration, left = SshConfiguration(), iter(hosts)
    reasons: dict[str, list[str]] = {}
    refusing: set[str] = set()  # jump hosts that Ansible asks too, for one of the hosts behind each
    asked = collected = 0
    # The modules of asyncssh are there to the end, too.
    gc.freeze()
    # One file for all: a file for each host took more time than the rest of its answer.
    answers = (place / f"{ANSWERS}{os.getpid()}").open("a", encoding="utf-8", buffering=1)

    async def work(sessions: Sessions) -> None:
        nonlocal asked, collected
        for host in left:
            if sessions.closed - collected >= COLLECTED:
                collected = sessions.closed
                gc.collect()
            try:
                answers.write(await answer_of(sessions, host))
                asked += 1
            except (UnsupportedError, SessionError) as problem:
                reasons.setdefault(str(problem), []).append(host.name)
            except Exception as problem:
                # Of whatever kind: the answer for this host is the one that Ansible gives.
                reasons.setdefault(f"{type(problem).__name__}: {problem}", []).append(host.name)

    async def answer_of(sessions: Sessions, host: Any) -> str:
        action = about.action(host)
        try:
            return line(action, action.run())
        except CommandWanted as wanted:
            command = wanted.command
            become = action.connection.become(command)
        try:
            answer = await sessions.ask(action.target(configuration), command, become)
        except SessionError as problem:
            if problem.wrong_password:
                # Asked again, it would count as a second attempt.
                return line(action, {"failed": True, "msg": "Task failed: Incorrect sudo password"})
            if not problem.refused_by or problem.refused_by not in refusing:
                refusing.add(problem.refused_by)
                raise
            return line(action, _behind(problem))
        return line(action, answer)

    with answers:
        async with Sessions() as sessions:
            await asyncio.gather(*(work(sessions) for _ in range(in_flight)))
    return {"asked": asked, "by_ansible": reasons, "unknown": about.unknown.found}


def _behind(problem: SessionError) -> dict[str, Any]:
    """Return the result of a further host behind a jump host that refused the login.

    Each attempt of Ansible would be one more failed login there, and sshd shuts an address out for some (PerSourcePenalties).
    """
    message = f"Failed to connect to the host via ssh: {problem}. {problem.refused_by} was not asked again for this host."
    return {"unreachable": True, "msg": message}


def ask_task(about: Run) -> TaskAnswers:
    """Ask the hosts of a task. Return their answers, which last as long as the run of Ansible, and name those that Ansible has to ask."""
    place = Path(tempfile.mkdtemp(dir=C.DEFAULT_LOCAL_TMP))
    limited = context.CLIARGS.get("forks") != C.DEFAULT_FORKS
    # The objects that were read so far stay: a collector has nothing to find in them, and processes share their pages.
    gc.collect()
    gc.freeze()
    try:
        notes = ask_all(about, place, hosts_in_flight(limited=limited), _command_line)
    finally:
        gc.unfreeze()
    for line in asked_by_ansible_lines(notes):
        display.display(f"note: {line}.", stderr=True)
    return TaskAnswers(about.task._uuid, sorted(place.glob(f"{ANSWERS}*")))


def _command_line(action: HostAction, answer: dict[str, Any] | SessionAnswer) -> str:
    """Return the line of a host: the command, why it is not asked again, and the answer; or no command if the action asked nothing."""
    row: list[Any] = [action.name, action.command]
    if isinstance(answer, dict):
        row += [answer, 0, "", ""]
    else:
        texts = (answer.stdout.decode("latin-1"), answer.stderr.decode("latin-1"))
        row += [None, answer.status, *texts]
    return f"{json.dumps(row)}\n"


def hosts_in_flight(*, limited: bool) -> int:
    """Return how many hosts are asked at a time: `--forks`, if it was given."""
    return int(context.CLIARGS["forks"]) if limited else IN_FLIGHT
