"""Action plugin `goldnode_drain`: takes a host out of service and back. Runs on the controller only.

Inventory variables: `goldnode_drain` (none, command, slurm, kubectl; default none), `goldnode_drain_command` and `goldnode_resume_command`
(lists of words), `goldnode_drain_name` (the scheduler's name of the host, default its inventory name).
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from goldnode.errors import GoldnodeError
from goldnode.fleet import variables
from goldnode.fleet.drain import choose

FACT = "goldnode_was_in_service"


class ActionModule(ActionBase):
    """Options: `state` (drained, resumed) and `reason`."""

    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Drain or resume; what was found at the drain is kept as a fact for the resume."""
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, arguments = self.validate_argument_spec(
            {
                "state": {"type": "str", "choices": ["drained", "resumed"], "required": True},
                "reason": {"type": "str", "default": "goldnode"},
            }
        )

        def variable(name: str, default: Any) -> Any:
            return self._templar.template(task_vars.get(name, default))

        host = task_vars.get("inventory_hostname")
        node = str(variable("goldnode_drain_name", host))
        name = str(variable("goldnode_drain", "none"))
        told = name != "none"  # nobody was told, so nothing changed
        try:
            variables.check(str(host), {key: variable(key, None) for key in variables.JUDGED if key in task_vars})
            drain = choose(
                name,
                [str(word) for word in variable("goldnode_drain_command", [])],
                [str(word) for word in variable("goldnode_resume_command", [])],
            )
            if arguments["state"] == "drained":
                in_service = drain.drain(node, arguments["reason"])
                return {"changed": in_service and told, "ansible_facts": {FACT: in_service}}
            in_service = bool(task_vars.get("ansible_facts", {}).get(FACT, True))
            drain.resume(node, in_service)
        except GoldnodeError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        return {"changed": in_service and told}
