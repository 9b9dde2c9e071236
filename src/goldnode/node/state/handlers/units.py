"""Handlers of the actions that domain `units` plans: each takes the applier and one action, makes the change, and may tell more."""

from __future__ import annotations

from ..model import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

    from ..contract import Handler, Writer
    from ..model import Action


def reload(applier: Writer, action: Action) -> None:
    """systemd reads its units again; nothing that runs is restarted."""
    done = applier.host.run("systemctl", "daemon-reload")
    if done.rc != 0:
        raise NodeError(
            f"`systemctl daemon-reload` fails: {done.tail(3)}. Look at `journalctl -b _PID=1` on the node."
        )


def start(applier: Writer, action: Action) -> None:
    """Start a unit of goldnode's own."""
    done = applier.host.run("systemctl", "start", action.target)
    if done.rc != 0:
        raise NodeError(
            f"{action.target} does not start: {done.tail(3)}. Look at `systemctl status {action.target}` on the node."
        )


HANDLERS: Dict[str, Handler] = {
    "units.reload": reload,
    "units.start": start,
}
