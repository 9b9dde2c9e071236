"""The state of the node for a key: the public part of the last capture, or a new capture.

The public part needs neither root nor the driver, and a container can have it by a mount of /run/goldnode.
"""

from __future__ import annotations

import json

from ..ground.errors import NodeError
from ..serve.publish import PUBLIC
from ..serve.publish import SCHEMA as PUBLIC_SCHEMA
from ..state.domains.program import CLASS
from ..verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from ..ground.host import Host, Json

MOST = 64 << 20  # bytes of a file


def capture_of(host: Host, record: Optional[str], document: Optional[Json]) -> Json:
    """Return the capture that `record` names, the node's last one if it holds, or a new one. Raises NodeError."""
    if record is not None:
        # The readers of a record take as long to import as a key to make.
        from ..probe.command import load

        return load(record)
    if current.load(host.root)[1] is None:
        last = public(host)
        if last is not None:
            return last
    if not host.live:
        raise NodeError("there is no current verdict. Give --from with a capture of this node.")
    from ..probe import capture  # start-up time: usually the last check has a capture

    return capture(host, document, True)


def public(host: Host) -> Optional[Json]:
    """Return the public part of the last capture; None if it is missing or damaged."""
    try:
        capture = json.loads(host.text(PUBLIC) or "null")
    except (OSError, ValueError, RecursionError):
        return None
    return capture if isinstance(capture, dict) and capture.get("schema") == PUBLIC_SCHEMA else None


def class_of(host: Host, name: Optional[str], recorded: bool = False) -> Optional[Json]:
    """Return the class document: the one that `name` names, or the node's own. None without a class.

    The node's own document does not count for a recorded capture. Raises NodeError.
    """
    # A record may be of another node, whose class this node's document is not.
    if name is None and recorded:
        return None
    try:
        if name is None:
            data = host.data(CLASS)
            if data is None:
                return None
        else:
            with open(name, "rb") as opened:
                data = opened.read(MOST)
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as problem:
        raise NodeError(
            f"{name or CLASS} cannot be read as a class document: {problem}. `goldnode class export` writes one."
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("class"), str):
        raise NodeError(
            f"{name or CLASS} is not a class document. `goldnode class export` writes one."
        )
    return document
