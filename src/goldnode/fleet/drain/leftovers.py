"""Drains that earlier runs have left, found without contacting a node."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain.choice import SCHEDULERS
from goldnode.fleet.drain.protocol import Drainer, since
from goldnode.fleet.drain.record import parse
from goldnode.node.ground.drained import mark


def left(name: str, node: str, on_node: str, cache: Path, drain: Callable[[], Drainer]) -> str:
    """Return the earlier run that left a node out of service, as far as known without contacting it.

    Empty if there is none.

    :param on_node: text of the node's own record, from its plan.
    :param cache: directory of this run, so that the scheduler is asked once for all nodes.
    """
    if on_node:
        try:
            return parse(on_node).about()
        except ValueError as problem:
            return f"a run of which the record cannot be read: {problem}"
    if name not in SCHEDULERS:
        return ""
    # Ansible runs this in a process per host: the first one asks, and the others wait for its answer.
    with (cache / f"goldnode-{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = cache / f"goldnode-{name}.json"
        if not answer.exists():
            new = answer.with_suffix(".new")
            try:
                new.write_text(json.dumps(drain().marked()))
            except (GoldnodeError, ValueError, KeyError) as problem:
                # An empty answer, so that the other hosts of this run do not repeat the question and its error.
                new.write_text("{}")
                new.replace(answer)
                raise GoldnodeError(
                    f"{name} cannot be asked for nodes that an earlier run has left out of service: {problem}",
                    remedy="Those that have a record of it are found all the same",
                ) from None
            new.replace(answer)
    held = mark(str(json.loads(answer.read_text()).get(node, "")))
    return since(held) if held else ""
