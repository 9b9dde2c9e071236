"""Handlers of the actions that return a node to service: the engine plans them, and the gate
carries them out.

The engine does not know the gate. The program hands it this table (state/apply.py).
"""

from __future__ import annotations

from ..ground.errors import NodeError
from ..ground.scheduler import HookError
from ..state import shims
from . import gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

    from ..state.contract import Handler, Writer
    from ..state.model import Action


def release_gate(applier: Writer, action: Action) -> str:
    """Resume the node if the gate drained it, and start the units that the gate blocks."""
    try:
        return "\n".join(gate.release(applier.host))
    except HookError as problem:
        raise NodeError(
            f"the gate has drained this node and cannot resume it: {problem}. Fix that, then run again."
        ) from None


def release_health_check(applier: Writer, action: Action) -> str:
    """Resume the node that slurm-health has drained, unless it is drained for another reason by now."""
    try:
        resumed = gate.resume(applier.host, str(action.data["reason"]))
    except HookError as problem:
        raise NodeError(
            f"slurm-health has drained this node, and it cannot be resumed: {problem}. Put that "
            "right, then run again."
        ) from None
    for name in (shims.MEMORY, shims.INTENT):
        applier.host.remove(name)
    return (
        "resumed" if resumed else "it is not drained for that reason any more, and stays as it is"
    )


HANDLERS: Dict[str, Handler] = {
    "gate.release": release_gate,
    "serve.release": release_health_check,
}
