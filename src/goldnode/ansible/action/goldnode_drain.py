"""Action plugin `goldnode_drain`: take a host out of service and back. The controller asks the scheduler; the
node stores a record.

Inventory variables: `goldnode_drain` (none, command, slurm, kubectl; default none), `goldnode_drain_command`
and `goldnode_resume_command` (lists of words), `goldnode_drain_name` (the scheduler's name of the host,
default its inventory name), `goldnode_take_over`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ansible import constants as C  # noqa: N812 - its name everywhere in Ansible
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from goldnode.ansible.release import require_ansible
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import load_site
from goldnode.fleet.drain.choice import choose
from goldnode.fleet.drain.protocol import DrainCaller, Drainer, DrainOutcome
from goldnode.fleet.drain.record import DrainRecords, local_file
from goldnode.fleet.nodes import return_tests
from goldnode.fleet.nodes.queue_place import NoQueue, QueuePlace, place_of_run
from goldnode.fleet.nodes.runs import ended_by
from goldnode.fleet.shared import identity
from goldnode.inventory import variables
from goldnode.node.ground.gate_files import STATE as GATE

BOOT_ID = "/proc/sys/kernel/random/boot_id"
FACT, LEFT = "goldnode_was_in_service", "goldnode_left"


class ActionModule(ActionBase):
    """Options: `state` (drained, left, waits, resumed), `reason`, `work`, and `after` and `since` for tests before a return."""

    _supports_check_mode = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Drain or resume.

        The owner of the drain is queried at the return; the run's own memory does not decide it.
        """
        require_ansible()
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, arguments = self.validate_argument_spec(
            {
                "state": {
                    "type": "str",
                    "choices": ["drained", "left", "waits", "resumed"],
                    "required": True,
                },
                "reason": {"type": "str", "default": "goldnode"},
                "after": {"type": "str", "choices": return_tests.CAUSES},
                "since": {"type": "str", "default": ""},
                "work": {"type": "str", "choices": ["apply", "rollback"]},
            }
        )

        def variable(name: str, default: Any) -> Any:
            return self._templar.template(task_vars.get(name, default))

        host = task_vars.get("inventory_hostname")
        node = str(variable("goldnode_drain_name", host))
        name = str(variable("goldnode_drain", "none"))
        # Before the settings are read: a turn must end even where they are wrong.
        if arguments["state"] == "waits":
            finish_batch(str(host))
        if arguments["state"] == "drained" and self._task.any_errors_fatal:
            lost = lost_in_earlier_batches(task_vars)
            if lost:
                return {"failed": True, "changed": False, "lost": lost, "msg": ended_by(lost)}
            begin_batch(str(host))
        rollout = str(variable("goldnode_rollout", ""))
        # A rollout has the node from its own grant.
        place = None
        if not rollout:
            place = self._place(arguments, str(host), task_vars)
        if arguments["state"] == "waits":
            if place is not None:
                with closing(place.store):
                    place.wait()
                    place.finish(False, "it waits for its boot", fit=False)
            return {"changed": False}
        facts = task_vars.get("ansible_facts", {})
        try:
            variables.check(
                str(host),
                {key: variable(key, None) for key in variables.JUDGED if key in task_vars},
            )
            drain = choose(
                name,
                [str(word) for word in variable("goldnode_drain_command", [])],
                [str(word) for word in variable("goldnode_resume_command", [])],
            )
            take_over = boolean(variable("goldnode_take_over", False), strict=False)
            caller, before = DrainCaller(take_over=take_over), facts.get(FACT)
            if rollout:
                caller, before = rollout_caller(rollout, take_over, task_vars)
            # Without a scheduler, and without a record of one, there is nothing to keep.
            still_drained = name != "none" or facts.get(LEFT)
            if still_drained:
                records = DrainRecords(
                    self.shell,
                    local_file(runs_directory(), name, node),
                    str(variable("goldnode_root", "")),
                )
            else:
                records = None
            node_facts: dict[str, Any]
            if place is not None and arguments["state"] != "left":
                caller = replace(place.wait(), take_over=take_over)
            elif place is not None:
                caller = replace(caller, ended=place.ended_runs())
            if arguments["state"] == "drained":
                outcome = drain.drain(node, arguments["reason"], caller, records)
                node_facts = {FACT: outcome.in_service}
            elif arguments["state"] == "left":
                if records:
                    outcome = drain.review(node, caller, records)
                else:
                    outcome = DrainOutcome(changed=False, in_service=True)
                node_facts = {LEFT: outcome.left if outcome.ours else ""}
            else:
                if records is not None and arguments["after"]:
                    self._require_tests(arguments, drain, node, records, task_vars)
                if place is None or place.finish(True, arguments["reason"]).returns:
                    outcome = drain.resume(node, caller, records, before)
                else:
                    outcome = DrainOutcome(changed=False, in_service=True, note=self.lines[-1])
                if place is not None and place.returns:
                    place.returned(True)
                node_facts = {LEFT: ""}
                finish_batch(str(host))
        except GoldnodeError as problem:
            if place is not None and place.claim is not None:
                with suppress(GoldnodeError):  # the first error is the one to show
                    place.failed(str(problem))
            raise AnsibleActionFail(str(problem)) from problem
        finally:
            if place is not None:
                place.store.close()
        result = {
            "changed": outcome.changed,
            "ansible_facts": node_facts,
            "drain": outcome.to_json(),
            "empty": outcome.empty,
            "again": outcome.again,
        }
        return {**result, "msg": outcome.note} if outcome.note else result

    def _place(
        self, arguments: Mapping[str, Any], host: str, task_vars: Mapping[str, Any]
    ) -> QueuePlace | None:
        """Return the place of this run in the queue of the fleet; None without a queue, which is shown once."""
        self.lines: list[str] = []
        if not arguments["work"]:
            return None
        # A return takes no node of others: only a drain is asked for the whole batch.
        batch = ()
        if arguments["state"] == "drained":
            batch = task_vars.get("ansible_play_batch", ())
        try:
            place = place_of_run(
                load_site(), host, arguments["work"], reason=arguments["reason"], batch=batch
            )
        except GoldnodeError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        if isinstance(place, NoQueue):
            if first_time(place.text()):
                self._display.display(place.text())
            return None
        return replace(place, tell=self._show)

    def _show(self, line: str) -> None:
        self.lines.append(line)
        self._display.display(line)

    def _require_tests(
        self,
        arguments: dict[str, Any],
        drain: Drainer,
        node: str,
        records: DrainRecords,
        task_vars: dict[str, Any],
    ) -> None:
        """Raise GoldnodeError unless the tests that the class wants before this return have passed."""
        document = task_vars.get("goldnode_node_class") or {}
        tests = return_tests.of_class(str(document.get("class")), arguments["after"])
        gated = bool(document.get("return_tests"))
        since = return_tests.drained_at(drain, node, records) if tests.jobs or gated else None
        if since is None:
            return
        host = str(task_vars.get("inventory_hostname"))
        if gated:
            root = str(self._templar.template(task_vars.get("goldnode_root", ""))).rstrip("/")
            state = self.shell(f"cat {shlex.quote(root + GATE)} 2>/dev/null || :")
            if held := return_tests.held_by_gate(state):
                raise GoldnodeError(f"{host} stays out of service: {held}, then run again")
        # Results of an earlier boot prove nothing about this one.
        boot = self.shell(f"cat {BOOT_ID}").strip()
        if outstanding := tests.outstanding(host, max(since, arguments["since"]), boot):
            raise GoldnodeError(f"{host} stays out of service: {outstanding}, then run again")

    def shell(self, script: str) -> str:
        """Run a shell script on the node, and return its output."""
        done = self._low_level_execute_command(script)
        if done["rc"] != 0:
            reported = str(done.get("stderr") or done["stdout"]).strip()
            raise GoldnodeError(
                f"the record of the drain cannot be kept on the node: {reported or done['rc']}",
                remedy="See to its /var/lib/goldnode",
            )
        return str(done["stdout"])


# Ansible ends a play with any_errors_fatal at a failed host of a batch, and goes on to the next batch after an
# unreachable one (ansible-core 2.19 to 2.22: it counts that host twice, so that the batch never fails as a whole). So
# each node leaves a mark in the directory of the run from its drain to its return.
def _marks() -> Path:
    return Path(C.DEFAULT_LOCAL_TMP) / "goldnode-batch"


def first_time(line: str) -> bool:
    """Return whether no worker of this run has shown a line yet."""
    name = f"goldnode-shown-{hashlib.sha256(line.encode()).hexdigest()[:16]}"
    try:
        (Path(C.DEFAULT_LOCAL_TMP) / name).mkdir()
    except FileExistsError:
        return False
    return True


def begin_batch(host: str) -> None:
    """Record that a host is out of service in its batch."""
    _marks().mkdir(exist_ok=True)
    (_marks() / quote(host, safe="")).touch()


def finish_batch(host: str) -> None:
    """Record that a host has come through its batch."""
    (_marks() / quote(host, safe="")).unlink(missing_ok=True)


def lost_in_earlier_batches(task_vars: Mapping[str, Any]) -> list[str]:
    """Return the hosts of earlier batches that did not come back: unreachable or failed."""
    if not _marks().is_dir():
        return []
    begun = {unquote(path.name) for path in _marks().iterdir()}
    return sorted(begun - {str(name) for name in task_vars.get("ansible_play_batch", ())})


def rollout_caller(
    rollout: str, take_over: bool, task_vars: Mapping[str, Any]
) -> tuple[DrainCaller, bool | None]:
    """Return the caller of a rollout, and whether its store has the node in service before the step.

    All controllers of a rollout are one run, which sees in the scheduler when a node is empty. Each phase of a step is
    a run of Ansible, so no fact of the drain reaches the return: the store's copy of the prior state does.
    """
    # Words of a person, which are no template.
    was = str(task_vars.get("goldnode_prior_reason") or "")
    before = task_vars.get("goldnode_prior_in_service")
    return DrainCaller(identity.rollout_actor(rollout), take_over, waits=False, was=was), before


def runs_directory() -> str:
    """Return the directory of the run records, as the callback goldnode_report has it, or its default if that
    plugin is not enabled.
    """
    try:
        return str(
            C.config.get_config_value("runs", plugin_type="callback", plugin_name="goldnode_report")
        )
    except AnsibleError:
        return os.environ.get("GOLDNODE_RUNS", ".goldnode/runs")
