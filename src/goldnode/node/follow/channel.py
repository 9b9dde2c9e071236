"""The wish of a signed channel for one node. Pure."""

from __future__ import annotations

import json
import re

from ..ground import boot
from ..ground.json_lines import as_dict
from ..ground.typed import NamedTuple
from .trust import ChannelRefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional

    from ..ground.host import Json

SCHEMA = "goldnode.channel/1"
FORWARD, BACK = "forward", "back"
_PATH = re.compile(r"(?:targets/images/[0-9A-Za-z_-]+|images)/[0-9A-Za-z._-]+")


class Wish(NamedTuple):
    """A state that the node shall move to."""

    rollout: str
    direction: str
    digest: str
    kind: str  # lock or disk


def read(data: bytes, node_class: str) -> Json:
    """Return the document of a class. Raises ChannelRefusedError for another form: a later version of goldnode wrote it."""
    try:
        document = json.loads(data)
        right = (
            document["schema"] == SCHEMA
            and document["class"] == node_class
            and isinstance(document["denied"], dict)
            and all(isinstance(row, dict) for row in document["frozen"])
            and isinstance(document["images"], dict)
            and isinstance(document.get("evidence", {}), dict)
            and (document["rollout"] is None or _is_rollout(document["rollout"]))
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        right = False
    if not right:
        raise ChannelRefusedError(
            f"the channel has no document of schema {SCHEMA} for class {node_class}. "
            "Update goldnode on this node to the version of the publisher."
        )
    return document  # type: ignore[no-any-return]


def _is_rollout(rollout: Mapping[str, Any]) -> bool:
    return (
        all(isinstance(rollout[key], str) for key in ("name", "phase", "origin"))
        and rollout["to"]["kind"] in ("lock", "disk")
        and isinstance(rollout["to"]["digest"], str)
        and all(isinstance(wave["nodes"], list) for wave in rollout["waves"])
        and isinstance(rollout["back"], dict)
    )


def wish(document: Json, node: str, now: float) -> Optional[Wish]:
    """Return where the channel wants a node to be; None where it wants nothing of it now."""
    rollout = document["rollout"]
    if rollout is None:
        return None
    kind = rollout["to"]["kind"]
    if node in rollout["back"]:
        earlier = rollout["back"][node]
        return Wish(rollout["name"], BACK, earlier, kind) if isinstance(earlier, str) else None
    if rollout["phase"] not in ("running", "completed"):
        return None
    for wave in rollout["waves"]:
        start = boot.seconds(wave.get("start"))
        if start is not None and start <= now and node in wave["nodes"]:
            return Wish(rollout["name"], FORWARD, rollout["to"]["digest"], kind)
    return None


def denial(document: Json, wanted: Wish) -> Optional[str]:
    """Return why no node may apply a state; None if it may."""
    reason = document["denied"].get(wanted.digest)
    return None if reason is None else f"{wanted.digest} is denied: {reason}"


def freeze(document: Json, node: str) -> Optional[str]:
    """Return why a node without leave must not start now; None if it may."""
    for row in document["frozen"]:
        if row.get("nodes") is None or node in row["nodes"]:
            return f"frozen by {row.get('who')}: {row.get('reason')}"
    return None


def image(path: str, info: Json) -> Json:
    """Return the image that a target of the channel describes."""
    header = as_dict(info.get("custom")).get("header")
    sha256 = info["hashes"].get("sha256")
    return {"path": path, "size": info["length"], "sha256": sha256, "header": header}


def image_of(document: Json, build: str) -> Optional[Mapping[str, Any]]:
    """Return the image of a disk build; None if the channel has none. Raises ChannelRefusedError for a malformed one."""
    image = document["images"].get(build)
    if image is None:
        return None
    header = as_dict(image).get("header")
    path: Any = as_dict(image).get("path")
    right = (
        isinstance(header, dict)
        and header.get("build_id") == build
        and isinstance(path, str)
        and _PATH.fullmatch(path) is not None
        and type(image.get("size")) is int
        and re.fullmatch("[0-9a-f]{64}", str(image.get("sha256"))) is not None
    )
    if not right:
        raise ChannelRefusedError(
            f"the channel describes image {build} in another form. Publish it again."
        )
    return image  # type: ignore[no-any-return]


def lines(document: Json) -> List[str]:
    """Return a summary of a document, for a person."""
    rollout = document["rollout"]
    if rollout is None:
        return [f"class {document['class']}: no rollout"]
    begun = [wave["name"] for wave in rollout["waves"] if wave.get("start")]
    return [
        f"rollout {rollout['name']} to {rollout['to']['kind']} {rollout['to']['digest']}: {rollout['phase']}",
        f"waves that have begun: {', '.join(begun) or 'none'} of {len(rollout['waves'])}",
    ]
