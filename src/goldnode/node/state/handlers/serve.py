"""Handlers for the actions of domain `serve`. That of `serve.release` is in gate/handlers.py."""

from __future__ import annotations

from ...ground.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

    from ..contract import Handler, Writer
    from ..model import Action


def start(applier: Writer, action: Action) -> None:
    """Restart the socket.

    systemd changes the address only after the socket is stopped, and a running service holds the
    socket.
    """
    host = applier.host
    host.run("systemctl", "stop", action.target, action.target.replace(".socket", ".service"))
    done = host.run("systemctl", "start", action.target)
    if done.rc != 0:
        raise NodeError(
            f"{action.target} does not start: {done.tail(3)}. Is its address in use? See "
            f"`systemctl status {action.target}`."
        )


HANDLERS: Dict[str, Handler] = {
    "serve.start": start,
}
