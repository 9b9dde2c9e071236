"""Action plugin `goldnode_rollout`: take a node over for one run of a rollout, and observe it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase

from goldnode.ansible.release import require_ansible
from goldnode.core import guarded
from goldnode.fleet.rollout import node_state
from goldnode.node.program.remote import LOST

PAUSE = 3.0  # seconds between two readings of a node that has no verdict of its boot yet


class ActionModule(ActionBase):
    """Options: `operation` (claim, confirm, observe) and `wait`. The token of the run is the variable `goldnode_claim`."""

    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Perform one operation, in one remote execution where nothing has to be waited for."""
        require_ansible()
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, arguments = self.validate_argument_spec(
            {
                "operation": {
                    "type": "str",
                    "choices": ["claim", "confirm", "observe"],
                    "required": True,
                },
                "wait": {"type": "int", "default": 0},
            }
        )
        self._variables = task_vars
        if arguments["operation"] == "observe":
            return self.observe(arguments["wait"])
        token = str(self.variable("goldnode_claim", ""))
        if arguments["operation"] == "confirm":
            done = self._low_level_execute_command(node_state.confirm(token))
            if done["rc"] == 0:
                return {"changed": False}
            return {"failed": True, "msg": LOST, "lost": True}
        done = self._low_level_execute_command(node_state.claim(token, arguments["wait"]))
        if done["rc"] != 0:
            reported = (
                str(done.get("stderr") or done["stdout"]).strip() or f"exit status {done['rc']}"
            )
            return {
                "failed": True,
                "msg": f"the node cannot be taken over: {reported}",
                "busy": True,
            }
        return {"changed": False, "boot": node_state.read(str(done["stdout"])).boot_id or ""}

    def observe(self, wait: int) -> dict[str, Any]:
        """Return the observation. With `wait`, wait for the verdict of this boot, and judge at last if none comes."""
        end = time.monotonic() + wait
        at, state = self.reading()
        while state.fault and wait and time.monotonic() < end:
            time.sleep(PAUSE)
            at, state = self.reading()
        if state.fault and wait:
            # Its exit status is of no interest: the verdict is read from the node again.
            self._low_level_execute_command(guarded.script(["check"]))
            at, state = self.reading()
        accepted = [int(code) for code in self.variable("goldnode_accepted", [0])]
        name = str(self._variables.get("inventory_hostname"))
        result = {
            "changed": False,
            "observation": asdict(node_state.observe(name, at, state, accepted)),
        }
        return {**result, "msg": state.fault} if state.fault else result

    def reading(self) -> tuple[float, node_state.NodeReading]:
        """Return the time before the question, and the answer."""
        # Before the question: a slow answer must not look newer than it is.
        at = time.time()
        return at, node_state.read(str(self._low_level_execute_command(node_state.READ)["stdout"]))

    def variable(self, name: str, default: Any) -> Any:
        """Return the value of a variable of the host."""
        return self._templar.template(self._variables.get(name, default))
