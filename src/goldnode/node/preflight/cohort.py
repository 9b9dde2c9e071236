"""Values that the nodes of one job share: a directory with a file of each node, or one file of all.

Each node writes its own file before it reads those of the others. Of any two nodes, at least the later one sees both, so
that a job never starts on two different states unnoticed. The directory belongs to one job.
"""

from __future__ import annotations

import json
import os
import re

from ..ground.errors import NodeError
from ..probe.machine import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Tuple

SCHEMA = "goldnode.cohort/1"
# of one node's file, and nodes
MOST_BYTES, MOST_NODES = 64 << 10, 16384
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")


def document(node: str, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the values of one node as a document. Pure."""
    return {"schema": SCHEMA, "nodes": {node: dict(values)}}


def publish(directory: str, node: str, values: Mapping[str, Any]) -> None:
    """Write the file of this node, by a rename. Raises NodeError."""
    if not NAME.match(node):
        raise NodeError(f"{printable(node, 80)!r} is no name of a node. Give --node.")
    target = f"{directory}/{node}.json"
    fresh = f"{directory}/.{node}.{os.urandom(8).hex()}"
    try:
        os.makedirs(directory, 0o755, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o644), "w", encoding="utf-8") as opened:
            json.dump(document(node, values), opened)
        os.rename(fresh, target)
    except OSError as problem:
        raise NodeError(
            f"{printable(target, 200)} cannot be written: {problem.strerror}. Give a directory that all nodes of the job share."
        ) from None


def others(place: str, node: str) -> "Tuple[Dict[str, Any], List[str]]":
    """Return the values of the other nodes, and the names of those whose file cannot be read.

    `place` is a directory, or a file with all nodes. Raises NodeError if it cannot be read.
    """
    nodes: Dict[str, Any] = {}
    broken: List[str] = []
    try:
        names = sorted(os.listdir(place)) if os.path.isdir(place) else None
    except OSError as problem:
        raise NodeError(
            f"{printable(place, 200)} cannot be read: {problem.strerror}. Correct --cohort."
        ) from None
    if names is None:
        nodes = _nodes(place)
    else:
        rows = [name for name in names if name.endswith(".json") and not name.startswith(".")]
        if len(rows) > MOST_NODES:
            raise NodeError(
                f"{printable(place, 200)} has more than {MOST_NODES} files. Use a directory for each job."
            )
        for name in rows:
            # This node has written its own file before; a damaged one must not count against others.
            if name == f"{node}.json":
                continue
            try:
                nodes.update(_nodes(f"{place}/{name}"))
            except NodeError:
                broken.append(name[: -len(".json")])
    return {name: row for name, row in nodes.items() if name != node}, broken


def _nodes(name: str) -> Dict[str, Any]:
    """Return the nodes of a file. Raises NodeError."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            data = opened.read((MOST_BYTES * 256) + 1)
        content = json.loads(data)
    except OSError as problem:
        raise NodeError(
            f"{printable(name, 200)} cannot be read: {problem.strerror}. Correct --cohort."
        ) from None
    except (ValueError, RecursionError):
        content = None
    right = isinstance(content, dict) and content.get("schema") == SCHEMA
    nodes = content.get("nodes") if right else None
    if not isinstance(nodes, dict) or not all(isinstance(row, dict) for row in nodes.values()):
        raise NodeError(
            f"{printable(name, 200)} has no values of nodes (schema {SCHEMA}). `goldnode-node preflight --print` writes them."
        )
    return nodes
