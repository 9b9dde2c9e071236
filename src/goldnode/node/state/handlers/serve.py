"""Handlers for the actions of domain `serve`."""

from __future__ import annotations

from ...gate import gate
from ...gate.scheduler import HookError
from .. import shims
from ..model import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

    from ..contract import Handler, Writer
    from ..model import Action


def start(applier: Writer, action: Action) -> None:
    """Restart the socket.

    systemd changes the address only after the socket is stopped, and a running service holds the socket.
    """
    host = applier.host
    host.run("systemctl", "stop", action.target, action.target.replace(".socket", ".service"))
    done = host.run("systemctl", "start", action.target)
    if done.rc != 0:
        raise NodeError(
            f"{action.target} does not start: {done.tail(3)}. Is its address in use? See "
            f"`systemctl status {action.target}`."
        )


def release(applier: Writer, action: Action) -> str:
    """Resume the node, unless it is drained for another reason by now."""
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
    "serve.start": start,
    "serve.release": release,
}
