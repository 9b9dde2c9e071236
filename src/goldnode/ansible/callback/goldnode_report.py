"""Callback plugin: report at the end of a run the outcome of each host and the reason, as text and as a JSON
record.
"""

from __future__ import annotations

import atexit
import fnmatch
import getpass
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible import __version__ as ansible_version
from ansible import constants as C  # noqa: N812 - its name everywhere in Ansible
from ansible import context
from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import strategy_loader

try:
    from goldnode.ansible import answers
    from goldnode.ansible.ended import index_ended_hosts
    from goldnode.ansible.release import too_old
    from goldnode.core.collector import collect_rarely
    from goldnode.core.data import PACKAGE
    from goldnode.core.errors import GoldnodeError, candidates
    from goldnode.core.extras import is_installed
    from goldnode.fleet.nodes import runs
    from goldnode.fleet.shared import identity
    from goldnode.inventory import cohorts
    from goldnode.inventory.variables import UnknownVariables
except ModuleNotFoundError as problem:  # Ansible of another Python environment
    raise AnsibleError(
        f"The Python environment of this Ansible ({sys.prefix}) lacks goldnode or a part of it: {problem}. Run the "
        "ansible-playbook of the environment that goldnode is installed in, for instance .venv/bin/ansible-playbook."
    ) from None

DOCUMENTATION = r"""
name: goldnode_report
type: aggregate
short_description: Report the result of each host, and write a JSON record of each run
description:
  - After the recap of a run that used M(goldnode_state), prints how many hosts ended how, and for those that are not fine the reason and
    the remedy; hosts with one reason share a line.
  - Keeps a record per run (schema goldnode.run/1) with every resource that was changed, the refusals, the reasons for a reboot and the verdict
    of every host. A record that cannot be written is a warning.
  - Before the first play, hosts that the variable C(goldnode_cohort) puts together are compared with each other, and with those that the run is not
    for. A conflict in a cohort refuses each of its hosts in this run, before it is contacted.
  - Unknown variables that look like goldnode's (C(goldnode_drian)) are reported once, with the hosts that have them.
  - A playbook for which the inventory holds no host at all ends with exit status 1, and so does one of which C(--tags) or C(--start-at-task)
    select no task. Ansible itself calls that a success.
options:
  runs:
    description: Directory of the records, relative to the working directory. V(off) keeps none.
    type: str
    default: .goldnode/runs
    ini: [{key: runs, section: callback_goldnode_report}]
    env: [{name: GOLDNODE_RUNS}]
  keep:
    description: How many records are kept there; the oldest go first.
    type: int
    default: 50
    ini: [{key: keep, section: callback_goldnode_report}]
    env: [{name: GOLDNODE_RUNS_KEEP}]
"""

# Operations of goldnode_state that change no node, and are not in the record.
LINEAR = ("linear", "ansible.builtin.linear")
STRATEGIES = PACKAGE / "ansible" / "strategy"
TAGS, REPORT = "tags", "report"
ACTIONS = ("goldnode_state", "goldnode_drain")
REBOOT = ("reboot", "ansible.builtin.reboot", "ansible.legacy.reboot")
SPECIAL_TAGS = {"all", "always", "never", "tagged", "untagged"}


class CallbackModule(CallbackBase):
    """Pass events to :class:`goldnode.fleet.nodes.runs.PlaybookRun`. An error in this plugin is an Ansible warning and
    never fails the run.
    """

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "goldnode_report"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Start to record a run. It is reported once one of our tasks starts."""
        # Ansible has imported what it needs by now. Its collector took 8 % of a run, and the end another 20 %.
        collect_rarely()
        arguments = context.CLIARGS
        self.started, self.begun = time.gmtime(), time.monotonic()
        self.playbook = str(playbook._file_name)
        self.turn: set[str] = set()
        self.managed = self.shown = False
        self.cohorts: list[str] | None = None
        self.unknown = UnknownVariables()
        # Workers are forked from this process, and inherit what is registered below.
        self.process = os.getpid()
        self.reports = 0  # that this run has fetched
        self.run = runs.PlaybookRun(check=bool(arguments.get("check")))
        self.run.about = {
            "playbook": self.playbook,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", self.started),
            "user": getpass.getuser(),
            "controller": socket.gethostname(),
            "run": identity.actor().run,  # as the marks of its drains name it
            "ansible": ansible_version,
            "inventory": [str(source) for source in arguments.get("inventory") or ()],
            "limit": arguments.get("subset"),
            "tags": [tag for tag in arguments.get("tags") or () if tag != "all"],
        }
        # A run that is interrupted has no end of its own.
        atexit.register(self._interrupted)
        self._check_selection(playbook)

    def set_play_context(self, play_context: Any) -> None:
        """Store what the command line sets for the connections of the play that starts."""
        self.play_context = play_context

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Register every host of the play, including those whose turn never comes."""
        inventory = play.get_variable_manager()._inventory
        index_ended_hosts(play)
        # Asked for only: Ansible warns of each strategy that is not its own.
        if os.environ.get(answers.AUDIT) == "on" and play.strategy in LINEAR:
            strategy_loader.add_directory(str(STRATEGIES))
            play.strategy = "goldnode_linear"
        self.asked: set[str] = set()  # tasks of the play
        self.play, self.hosts = play, inventory.get_hosts(play.hosts, ignore_restrictions=True)
        self.turn = {host.name for host in self.hosts}
        self.empty = not inventory.hosts
        if self.cohorts is None:
            try:
                self.cohorts = cohorts.withhold_incompatible(play, self.hosts, see=self.unknown.add)
            except AnsibleError as problem:
                # Ansible has no class of its own for a missing password.
                if "vault" not in str(problem).lower():
                    raise
                self._refuse(
                    f"The inventory has encrypted variables: {problem} Give the password with --ask-vault-pass, "
                    "--vault-password-file FILE, or ANSIBLE_VAULT_PASSWORD_FILE.",
                    # As Ansible ends where it cannot parse an inventory.
                    status=4,
                )

    def _check_selection(self, playbook: Any) -> None:
        """Refuse options that would make a run of our plays do nothing, or fail in its middle."""
        plays = [list(_tasks([*play.pre_tasks, *play.tasks])) for play in playbook.get_plays()]
        managed = [tasks for tasks in plays if any(self._name(task) in ACTIONS for task in tasks)]
        self.selective = bool(managed)
        if not managed:
            return
        if refusal := too_old():
            self._refuse(refusal)
        self.known_tags = {
            str(tag) for tasks in plays for task in tasks for tag in task.tags
        } - SPECIAL_TAGS
        for option in ("tags", "skip_tags"):
            for tag in sorted(
                set(context.CLIARGS.get(option) or ()) - self.known_tags - SPECIAL_TAGS
            ):
                self._display.warning(
                    f"--{option.replace('_', '-')} {tag} selects nothing in {self.playbook}. {self._tags_like(tag)}"
                )
        start = context.CLIARGS.get("start_at_task")
        if not start:
            return
        named = [task for tasks in plays for task in tasks if _is_named(task, start)]
        if not named:
            self._refuse(
                f'No task of {self.playbook} is called "{start}". `--list-tasks` shows their names.'
            )
        for tasks in managed:
            if any(_is_named(task, start) for task in tasks):
                # The task that is named belongs to a part, which --tags can select.
                part = named[0].args.get("part")
                known = part in self.known_tags
                use = f"Use --tags {part}." if known else "Select parts with --tags."
                self._refuse(
                    f"{self.playbook} cannot start at a task: each part needs the plan that its first task asks the node for. {use}"
                )

    def _tags_like(self, tag: str) -> str:
        """Return the tags to use in place of `tag`, as a sentence."""
        close = candidates(tag, self.known_tags)
        if close:
            return f"Use {' or '.join(close)}."
        return f"Tags: {', '.join(sorted(self.known_tags))}."

    def _refuse(self, message: str, status: int = 1) -> None:
        """End the run with an error."""
        self._display.error(message)
        raise SystemExit(status)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Fail if no host of the inventory matches. Ansible has no setting for that."""
        if self.empty:
            sources = ", ".join(self.run.about["inventory"]) or "none"
            self._display.error(
                f"There is no host in the inventory ({sources}), so that nothing was done. Name another one with -i."
            )
            raise SystemExit(1)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Add the hosts of a play with one of our tasks to the record."""
        if self._name(task) in ACTIONS and task.args.get("operation") not in (TAGS, REPORT):
            if (
                not self.managed
                and self._name(task) == "goldnode_state"
                and not task.args.get("rollback")
            ):
                self._show_findings()
            self.managed = True
            for name in self.turn:
                self.run.host(name)
        answers.begin(None)
        if answers.is_asked(task) and self.play.strategy in LINEAR and task._uuid not in self.asked:
            self.asked.add(task._uuid)
            self._ask(task)

    def _ask(self, task: Any) -> None:
        """Ask the nodes of a task from this process. Those that Ansible asks faster, or has to ask, are asked by its processes."""
        manager = self.play.get_variable_manager()
        inventory, ended = manager._inventory, self.play._removed_hosts
        batch = inventory.get_hosts(self.play.hosts, order=self.play.order)
        hosts = [host for host in batch if host.name not in ended and not self._failed(host.name)]
        off = os.environ.get(answers.AUDIT) == "off" or self._display.verbosity >= answers.SHOWN
        if len(hosts) < answers.PLAYED or off or not is_installed("asyncssh"):
            return
        # It takes as long as the plans of some hosts, and needs asyncssh.
        from goldnode.ansible import asking

        about = asking.Run(
            asking.Sources(manager._loader, inventory, manager),
            play_context=self.play_context,
            play=self.play,
            task=task.copy(),
            hosts=hosts,
            names=([host.name for host in batch], [host.name for host in self.hosts]),
        )
        answers.begin(asking.ask_task(about))

    def _failed(self, name: str) -> bool:
        row = self.run.host(name)
        return row.error is not None or row.unreachable is not None

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Announce a reboot, for which Ansible waits in silence."""
        if (
            self.managed
            and self._name(task) in REBOOT
            and self.run.host(host.name).reboots(check=False)
        ):
            variables = self.play.get_variable_manager().get_vars(play=self.play, host=host)
            if boolean(variables.get("goldnode_reboot", False), strict=False):
                self._display.display(f"[{host.name}] reboots; this may take minutes")

    def v2_runner_on_ok(self, result: Any) -> None:
        """Record a successful task."""
        answer, name = result.result, self._name(result.task)
        self.reports += name == "goldnode_state" and result.task.args.get("operation") == REPORT
        if (
            name not in (*ACTIONS, *REBOOT)
            or result.task.args.get("operation") in (TAGS, REPORT)
            or (result.task.loop is not None and "results" in answer)
        ):
            return  # another's task, or the sum of items that were reported one by one
        host = self.run.host(result.host.name)
        if "censored" in answer and name in ACTIONS:
            host.hidden = True
        elif name == "goldnode_state":
            self._state(result.task, host, answer)
        elif name == "goldnode_drain" and answer.get("drain"):
            host.drain, state = answer["drain"], result.task.args.get("state")
            host.left = str(answer["ansible_facts"].get("goldnode_left") or "")
            host.out_of_service = state == "drained" and bool(answer["drain"]["ours"])
            # Until it resumes: a host that is lost before that ends the batches after it.
            host.turn = state == "drained" and bool(result.task.any_errors_fatal)
        elif name == "goldnode_drain":
            host.turn = False  # it waits, out of service
        elif name in REBOOT and answer.get("rebooted"):
            host.saw_reboot()

    v2_runner_item_on_ok = v2_runner_on_ok

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Record a failed task or a refusal of the node."""
        answer, host = result.result, self.run.host(result.host.name)
        if answer.get("lost"):
            return  # nothing was wrong with this host: see _explain_end
        if ignore_errors or (host.error is not None and "results" in answer):
            return
        if self._name(result.task) == "goldnode_state":
            self._state(result.task, host, answer)
            host.refusals = answer.get("refusals") or []
        host.error = {
            "task": result.task.get_name(),
            "part": answer.get("part"),
            "message": runs.HIDDEN if "censored" in answer else failure_text(answer),
        }

    v2_runner_item_on_failed = v2_runner_on_failed

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Record a host that could not be reached or was lost."""
        answer = result.result
        items = [row for row in answer.get("results") or () if row.get("unreachable")]
        text = failure_text(items[-1] if items else answer)
        self.run.host(result.host.name).unreachable = runs.lost_reason(runs.unwrapped(text))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the report at the end of the run."""
        for name in set(stats.dark) & set(self.run.hosts):
            if self.run.host(name).unreachable is None:  # an event of it was lost
                self.run.host(
                    name
                ).unreachable = "Ansible could not reach it; the reason is in its output above"
        self._show("finished")
        if self.reports:
            text = f"goldnode: {self.reports} reports fetched. Next: `goldnode fleet ingest`"
            self._display.display(text)
        tags = [tag for tag in context.CLIARGS.get("tags") or () if tag != "all"]
        if (
            self.selective
            and not self.managed
            and tags
            and self.turn
            and not (stats.ok or stats.failures or stats.dark)
        ):
            self._refuse(
                f"Nothing was done: --tags {','.join(tags)} selects no task. Tags: {', '.join(sorted(self.known_tags))}."
            )

    def _show_findings(self) -> None:
        """Print the compatibility findings of the classes of this run, once each, before any host is
        contacted.
        """
        for line in self.unknown.lines():
            self._display.display(f"[WARNING]: {line}.", color=C.COLOR_WARN, stderr=True)
        manager, seen, shown = self.play.get_variable_manager(), set(), set()
        for host in self.hosts:
            # Hosts of the same groups have the same class: variables of one of them are enough.
            groups = frozenset(group.name for group in host.get_groups())
            if groups in seen:
                continue
            seen.add(groups)
            variables = manager.get_vars(play=self.play, host=host)
            name = (variables.get("goldnode_node_class") or {}).get("class")
            lines = variables.get("goldnode_class_findings") or ()
            if name is None or name in shown or not lines:
                continue
            shown.add(name)
            self._display.display(
                "\n".join([f"class {name}, checked:", *(f"  {line}" for line in lines)])
            )
        if self.cohorts:
            self._display.display("\n".join(self.cohorts))

    @staticmethod
    def _name(task: Any) -> str:
        if str(task.action) not in REBOOT:
            return str(task.action).rpartition(".")[2]
        return str(task.action)

    @staticmethod
    def _state(task: Any, host: runs.HostRun, answer: Mapping[str, Any]) -> None:
        """Record the outcome that a result of goldnode_state reports for a host; see RETURN of the module."""
        if task.args.get("operation") == "check":
            host.verdict = answer.get("verdict") or host.verdict
            return
        host.node_class = answer.get("node_class") or host.node_class
        # The first plan of a run counts; asked again later, a node has already changed.
        host.rollback = host.rollback or answer.get("rollback")
        facts = answer.get("ansible_facts") or {}
        plan = facts.get("goldnode_plan")
        host.left = (
            "" if host.drain else answer.get("left") or facts.get("goldnode_left", host.left)
        )
        if answer.get("part"):
            host.saw_apply(
                answer["part"], answer.get("resources") or [], plan, answer.get("verdict")
            )
        elif plan:
            host.saw_plan(plan)

    def _explain_end(self) -> None:
        """Record why the hosts that this run may drain or reboot had no turn, if a batch before them was lost."""
        lost = sorted(host.name for host in self.run.hosts.values() if host.turn)
        if not lost:
            return
        manager = self.play.get_variable_manager()
        for host in self.hosts:
            host_run = self.run.hosts.get(host.name)
            if (
                host_run is None
                or host_run.turn
                or host_run.outcome(self.run.check) not in (runs.REBOOT, runs.WAITING)
            ):
                continue
            variables = manager.get_vars(play=self.play, host=host)
            reboot = boolean(variables.get("goldnode_reboot", False), strict=False)
            if boolean(variables.get("goldnode_drain_for_waiting", reboot), strict=False) or reboot:
                host_run.ended = runs.ended_by(lost)

    def _interrupted(self) -> None:
        if os.getpid() == self.process:  # not a worker
            self._show("interrupted")

    def _show(self, end: str) -> None:
        if self.shown or not self.managed:
            return
        self.shown = True
        seconds = time.monotonic() - self.begun
        self._explain_end()
        self.run.about.update(seconds=round(seconds, 1), end=end)
        lines = [self.run.text(seconds)]
        place = str(self.get_option("runs"))
        if place.lower() not in ("off", "none", "no", "false", ""):
            name = f"{time.strftime('%Y%m%dT%H%M%SZ', self.started)}-{Path(self.playbook).stem}"
            try:
                path = runs.store_run(
                    Path(place).expanduser(),
                    name,
                    self.run.to_json(),
                    max(1, self.get_option("keep")),
                )
                lines.append(f"  record: {path}")
            except GoldnodeError as problem:
                self._display.warning(str(problem))
        self._display.display("\n".join(lines))


def _tasks(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the tasks of blocks, those of statically imported roles included."""
    for item in items:
        if hasattr(item, "block"):
            yield from _tasks([*item.block, *item.rescue, *item.always])
        else:
            yield item


def _is_named(task: Any, pattern: str) -> bool:
    """Return whether --start-at-task PATTERN means this task, as Ansible decides it."""
    return any(
        name and (name == pattern or fnmatch.fnmatch(name, pattern))
        for name in (task.name, task.get_name())
    )


def failure_text(answer: Mapping[str, Any]) -> str:
    """Return the message of a failed result without Ansible's wrapping; for a check, its verdict."""
    lines = str(answer.get("stdout") or "").strip().splitlines()
    if lines and lines[-1].startswith("verdict: "):
        return lines[-1]
    text = runs.unwrapped(str(answer.get("msg") or ""))
    if not text or text.startswith("non-zero return code"):
        return str(answer.get("stderr") or answer.get("stdout") or text)
    return runs.advised(text)
