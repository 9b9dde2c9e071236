"""Handlers for the actions of the domains `units` and `serve`. That of `serve.release` is in gate/handlers.py.

Each takes the applier and one action, applies the change, and may return a message.
"""

from __future__ import annotations

import os

from ...ground.errors import NodeError
from .. import record
from ..observe import HISTORY, RECORD

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


def start_socket(applier: Writer, action: Action) -> None:
    """Start a socket again: systemd changes its address only after it is stopped, and a running service holds it."""
    host = applier.host
    host.run("systemctl", "stop", action.target, action.target.replace(".socket", ".service"))
    start(applier, action)


def restore_record(applier: Writer, action: Action) -> str:
    """Begin the record of this node again. The state before goldnode stays unknown.

    The apply itself writes the index of documents and the history.
    """
    host = applier.host
    os.makedirs(host.located(HISTORY), 0o755, exist_ok=True)
    if not host.exists(RECORD):
        record.write(host, {"held": action.data["held"]})
    return "a removal will leave installed what goldnode cannot know to be its own"


HANDLERS: Dict[str, Handler] = {
    "record.restore": restore_record,
    "serve.start": start_socket,
    "units.reload": reload,
    "units.start": start,
}
