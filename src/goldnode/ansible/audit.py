"""`ansible … -m goldnode_state -a operation=plan --tree DIRECTORY`, with many nodes asked from this one process.

Ansible takes a process, an `ssh` and a handshake of 0.06 s for each host. Here the action plugin runs in this process,
with the connection that Ansible itself sets up for the host from inventory, variables and command line. What it wants
to have executed goes over a session of :mod:`goldnode.audit.sessions` instead of an `ssh`.

The session counts only if it gave a plan. A host that has anything which is not honoured here, that refuses the login,
shows another key, does not answer or lacks the program is asked by Ansible afterwards, and its answer is Ansible's.

Run by :mod:`goldnode.ansible.audit_start`, with the arguments of `ansible`. The answers to this process are in files beside DIRECTORY, one line
per host; those to Ansible are in DIRECTORY, one file per host. The file LISTING beside it has the hosts of each
group, and NOTES the number of hosts that this process asked, those that Ansible asked by reason, and the variables that
look like goldnode's and are not.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import context
from ansible.cli import CLI
from ansible.cli.adhoc import AdHocCLI
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.block import Block
from ansible.playbook.play import Play
from ansible.playbook.play_context import PlayContext

from goldnode.ansible.answers import AUDIT, FEW
from goldnode.ansible.asking import HostAction, Run, Sources, ask_all, hosts_in_flight
from goldnode.core.errors import InventoryError
from goldnode.core.extras import is_installed
from goldnode.fleet.nodes.asked import LISTING, NOTES

if TYPE_CHECKING:
    from goldnode.audit.sessions import SessionAnswer


def _tasks(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, Block):
            yield from _tasks(item.block)
        else:
            yield item


class _StartedOnce(CLI):
    """The start of `AdHocCLI.run`, which Ansible does not expect twice."""

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
            DataLoader.load_from_file = _loaded
            self._prerequisites = super()._play_prereqs()
        return self._prerequisites

    def ask_passwords(self) -> Any:
        """Ask once."""
        if self._passwords is None:
            self._passwords = super().ask_passwords()
        return self._passwords

    def _about(self, pattern: str) -> Run:
        loader, inventory, manager = self._play_prereqs()
        play = self._play_ds(pattern, context.CLIARGS["seconds"], context.CLIARGS["poll_interval"])
        play = Play().load(play, variable_manager=manager, loader=loader)
        connection, become = self.ask_passwords()
        passwords = {"conn_pass": connection, "become_pass": become}
        wanted = context.CLIARGS["module_name"]
        return Run(
            Sources(loader, inventory, manager),
            play_context=PlayContext(play, passwords, None),
            play=play,
            # A play has tasks of its own too, which flush handlers.
            task=next(task for task in _tasks(play.compile()) if task.action == wanted),
            hosts=self.get_host_list(inventory, context.CLIARGS["subset"], pattern),
        )

    def run(self) -> Any:
        """Ask the hosts, and have Ansible ask the rest."""
        _StartedOnce.run(self)
        tree = Path(context.CLIARGS["tree"])
        notes: dict[str, Any] = {"asked": 0, "by_ansible": {}, "missing": False}
        about = self._about(context.CLIARGS["args"])
        if any(" " in name for name in about.names):
            _refuse(about.names)
        tree.with_name(LISTING).write_text(json.dumps(about.groups()), encoding="utf-8")
        # All that was read is there to the end: a collector has nothing to find in it, and processes share its pages.
        gc.collect()
        gc.freeze()
        many = len(about.hosts) >= FEW and os.environ.get(AUDIT) != "off"
        if many and not is_installed("asyncssh"):
            notes["missing"] = True
        elif many:
            notes = ask_all(about, tree.parent, hosts_in_flight(limited=self._limited), _line)
            left = {name for names in notes["by_ansible"].values() for name in names}
            about.inventory.restrict_to_hosts([host for host in about.hosts if host.name in left])
        if not notes["asked"] and not notes["by_ansible"]:
            for host in about.hosts:
                variables = about.manager.get_vars(host=host, include_hostvars=False)
                about.unknown.add(host.name, variables)
            notes["unknown"] = about.unknown.found
        tree.with_name(NOTES).write_text(json.dumps(notes), encoding="utf-8")
        if notes["asked"] == len(about.hosts):
            return 0
        return super().run()


def _refuse(names: list[str]) -> None:
    # Its imports take 0.1 s, and hardly any run needs them.
    from goldnode.inventory.listing import check_names

    try:
        check_names(None, names)
    except InventoryError as problem:
        # The caller finds no listing, and says more of it.
        raise AnsibleError(str(problem)) from problem


def _loaded(
    loader: DataLoader, file_name: str, cache: str = "all", unsafe: bool = False, **given: Any
) -> Any:
    """Return the content of a file, as `DataLoader.load_from_file` does, without a copy of what nothing else has.

    Of an inventory of 5,000 hosts the copy takes 30 MiB and a second.
    """
    alone = cache == "none"
    return _load_from_file(loader, file_name, cache=cache, unsafe=unsafe or alone, **given)


_load_from_file = DataLoader.load_from_file


def _line(action: HostAction, answer: dict[str, Any] | SessionAnswer) -> str:
    """Return the line of a host: its result without the only value that differs on each, so that equal ones are read once."""
    result = answer if isinstance(answer, dict) else action.run(answer)
    if plan := result.get("ansible_facts", {}).get("goldnode_plan"):
        plan["boot_identity"] = None
    return f"{json.dumps([action.name, json.dumps(result)])}\n"


def main() -> None:
    """Run as `ansible` does."""
    AuditCLI.cli_executor(["ansible", *sys.argv[1:]])
