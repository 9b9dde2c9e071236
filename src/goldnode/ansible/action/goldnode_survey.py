"""Action plugin `goldnode_survey`: send the on-node program to the node, and return its survey."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from goldnode.ansible.release import require_ansible
from goldnode.core.program_file import payload


class ActionModule(ActionBase):
    """Takes no options."""

    _supports_check_mode = True
    MODULE = "goldnode_survey"  # its full name in the collection

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the module of the same name with the program (one remote execution)."""
        require_ansible()
        super().run(tmp, task_vars)
        self.validate_argument_spec({})
        result: dict[str, Any] = self._execute_module(
            module_name=self.MODULE,
            module_args={"program": payload(content=True)["content"]},
            task_vars=task_vars,
        )
        result.pop("invocation", None)  # the program, again
        return result
