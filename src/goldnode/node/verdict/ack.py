"""`goldnode-node ack`: acknowledge the counters and findings up to now. Name, time and reason are stored with
the acknowledgement.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import cast

from ..ground.host import Host
from ..probe import CAPTURE
from ..state import owners
from ..state.model import NodeError
from . import current, deltas, events
from .hardware import gpu_key
from .rules import as_list, as_map, sanitized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

    from ..ground.document import ClassDocument


# Which counters belong to which finding.
COUNTED = {
    "gpu.ecc.aggregate": "/ecc.aggregate.uncorrected",
    "pcie.aer": "/aer.",
    "storage.health": "/media_errors",
    "memory.edac": "/ce",
}
ALL = "*"


def arguments(parser: Any) -> None:
    """Add the options of `goldnode-node ack`."""
    parser.add_argument(
        "--id",
        default=ALL,
        metavar="ID",
        help="id of the findings, as a pattern with * and ? (default: all); tests.CAUSE ends tests before a return",
    )
    parser.add_argument(
        "--subject",
        metavar="SUBJECT",
        help="subject of the findings, as a pattern, for instance a PCI address (default: all)",
    )
    parser.add_argument("--by", required=True, metavar="WHO", help="who acknowledges; recorded")
    parser.add_argument(
        "--reason",
        required=True,
        metavar="TEXT",
        help="action taken, or why it is not a fault; recorded",
    )


def run(host: Host, options: Any) -> int:
    """Settle the requested items.

    Return 0. Raises NodeError if there is no state, or if it cannot be used.
    """
    if not options.by.strip() or not options.reason.strip():
        raise NodeError("--by and --reason say who settles it, and why: neither is empty.")
    tests = _end_tests(host, options)
    capture = _capture(host)
    memory, fault = deltas.load(host, capture)
    left = host.exists(deltas.DAMAGED)
    if fault is not None and not fnmatchcase("memory.state", options.id):
        raise NodeError(
            f"{deltas.MEMORY} cannot be used: {fault}. Run `goldnode-node check`, which moves it away."
        )
    if not memory and not left:
        raise NodeError(f"nothing is kept in {deltas.MEMORY} yet. Run `goldnode-node check` first.")
    done = tests
    if left and fnmatchcase("memory.state", options.id):
        host.remove(deltas.DAMAGED)
        done.append("memory.state")
    if memory:
        done += settle(memory, capture, options.id, options.subject)
        row: Dict[str, Any] = {
            "by": sanitized(options.by, 80),
            "reason": sanitized(options.reason, 400),
            "time": _now(),
            "id": sanitized(options.id, 80),
            "subject": sanitized(options.subject, 80) if options.subject else None,
            "settled": done[:64],
        }
        memory["acks"] = [*as_list(memory.get("acks")), row][-100:]
        deltas.save(host, memory, None)
    if options.format == "json":
        print(json.dumps({"schema": "goldnode.ack/1", "settled": done}, indent=1))
    else:
        print("settled:", ", ".join(done) or "nothing of that name was open")
    for line in _judged(host):
        print(line, file=sys.stderr)
    return 0


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _judged(host: Host) -> List[str]:
    """Judge the node again, so that verdict, gate and metrics do not show what is settled. Return messages."""
    from ..program.judging import judge_again  # judging imports this package

    document = None
    if host.live and os.geteuid() == 0:
        owners.believe(host, current.CLASS)  # it names the commands of the gate
        with suppress(ValueError):
            document = json.loads(host.text(current.CLASS) or "null")
    if not isinstance(document, dict) or current.load(host.root)[1] is not None:
        return ["Run `goldnode-node check` for the verdict that holds now."]
    messages = judge_again(host, cast("ClassDocument", document))
    return [*messages, f"The node was judged again: {current.load(host.root)[0]['status']}."]


def _end_tests(host: Host, options: Any) -> List[str]:
    """End the tests before a return that are named. A pattern for all findings ends none: it is also used after a repair,
    which the tests are for.
    """
    from ..gate.return_tests import ID
    from ..program.return_command import end  # it imports the gate, whose lock it takes

    if not options.id.startswith(ID):
        return []
    by = sanitized(options.by, 80)
    return end(host, options.id, by, sanitized(options.reason, 400))


def settle(
    memory: Dict[str, Any],
    capture: Mapping[str, Any],
    name: str = ALL,
    subject: Optional[str] = None,
) -> Any:
    """Update `memory`, and return the names of the items that were open and are now settled.

    Changes `memory` only.
    """

    def about(text: Optional[str]) -> bool:
        return subject is None or fnmatchcase(text or "", subject)

    done = []
    lasting = as_map(memory.get("standing"))
    for key in list(lasting):
        identity, _, what = key.partition("|")
        if fnmatchcase(identity, name) and about(what):
            del lasting[key]
            done.append(f"{identity} {what}".strip())
    owners = {f"gpu/{uuid}": address for uuid, address in _addresses(capture).items()}
    for key, row in as_map(memory.get("counters")).items():
        parts = key.split("/")
        what = owners.get("/".join(parts[:2]), "".join(parts[1:2]))
        if isinstance(row, dict) and row.get("last") != row.get("base") and about(what):
            names = [item for item, mark in COUNTED.items() if mark in key]
            if any(fnmatchcase(item, name) for item in names):
                done.append(f"{names[0]} {what}")
            if name == ALL or any(fnmatchcase(item, name) for item in names):
                row["base"], row["time"] = row.get("last"), _now()
    if memory.get("jump") and fnmatchcase("time.sync", name) and subject is None:
        memory["jump"] = None
        done.append("time.sync")
    now, known = deltas.known(capture), as_map(memory.get("known"))
    for key, value in now.items():
        kind, _, rest = key.partition("/")
        what = rest.rpartition("/")[0]
        named = fnmatchcase(f"changed.{kind}", name) and about(what)
        if named and known.get(key) not in (None, value):
            known[key] = value
            done.append(f"changed.{kind} {what}".strip())
    memory["events"], logged = events.acknowledge(capture, memory, name, subject)
    done += logged
    return done


def _addresses(capture: Mapping[str, Any]) -> Dict[str, str]:
    """Return the PCI address of each GPU by its key in the state file."""
    return {
        gpu_key(gpu): str(gpu.get("address"))
        for gpu in as_list(capture.get("gpus"))
        if isinstance(gpu, dict)
    }


def _capture(host: Host) -> Mapping[str, Any]:
    """Return the capture of the last check; empty if there is none."""
    try:
        capture = json.loads(host.text(CAPTURE) or "")
    except (OSError, ValueError):
        raise NodeError(
            f"{CAPTURE} is not there: what is to be settled was not seen since boot. Run `goldnode-node check` first."
        ) from None
    return as_map(capture)
