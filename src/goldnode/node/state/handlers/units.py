"""Handlers for the actions of domain `units`.

Each takes the applier and one action, applies the change, and may return a message.
"""

from __future__ import annotations

from ...ground.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

    from ..contract import Handler, Writer
    from ..model import Action


def reload(applier: Writer, action: Action) -> None:
    """Make systemd read its units again. Running services are not restarted."""
    done = applier.host.run("systemctl", "daemon-reload")
    if done.rc != 0:
        raise NodeError(
            f"`systemctl daemon-reload` fails: {done.tail(3)}. Look at `journalctl -b _PID=1` on the node."
        )


def start(applier: Writer, action: Action) -> None:
    """Start a unit that belongs to goldnode."""
    done = applier.host.run("systemctl", "start", action.target)
    if done.rc != 0:
        raise NodeError(
            f"{action.target} does not start: {done.tail(3)}. Look at `systemctl status "
            f"{action.target}` on the node."
        )


HANDLERS: Dict[str, Handler] = {
    "units.reload": reload,
    "units.start": start,
}
