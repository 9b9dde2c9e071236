"""`goldnode-node ack`: acknowledge the counters and findings up to now. Name, time and reason are
stored with the acknowledgement.
"""

from __future__ import annotations

import json
import os
import sys
from fnmatch import fnmatchcase
from typing import cast

from ..gate.return_tests import ID
from ..ground import verdict_files
from ..ground.errors import NodeError
from ..ground.host import Host
from ..probe import CAPTURE
from ..state import owners
from ..state.observe import load_json
from ..verdict import current, deltas
from ..verdict.ack import ALL, settle, timestamp
from ..verdict.rules import as_list, as_map, sanitized
from .judging import judge_again
from .return_command import end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping

    from ..ground.document import ClassDocument


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
    parser.add_argument(
        "--by",
        default="",
        metavar="WHO",
        help="who acknowledges; recorded (on a terminal: asked for)",
    )
    parser.add_argument(
        "--reason",
        default="",
        metavar="TEXT",
        help="action taken, or why it is not a fault; recorded (on a terminal: asked for)",
    )


def run(host: Host, options: Any) -> int:
    """Settle the requested items.

    Return 0. Raises NodeError if there is no state, or if it cannot be used.
    """
    _ask(options)
    if not options.by.strip() or not options.reason.strip():
        raise NodeError(
            "it is recorded who acknowledges and why. Add `--by NAME --reason TEXT`, neither empty."
        )
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
            "time": timestamp(),
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


def _ask(options: Any) -> None:
    """Ask for name and reason on a terminal: the remedies of findings name the command without them."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    for name, question in (
        ("by", "Your name"),
        ("reason", "Reason (the repair, or why it is no fault)"),
    ):
        if not getattr(options, name):
            print(f"{question}: ", end="", file=sys.stderr, flush=True)
            setattr(options, name, sys.stdin.readline().strip())


def _judged(host: Host) -> List[str]:
    """Judge the node again, so that verdict, gate and metrics do not show what is settled. Return
    messages.
    """
    document = None
    if host.live and os.geteuid() == 0:
        owners.believe(host, verdict_files.CLASS)  # it names the commands of the gate
        document = load_json(host, verdict_files.CLASS)
    if not isinstance(document, dict) or current.load(host.root)[1] is not None:
        return ["Run `goldnode-node check` for the verdict that holds now."]
    messages = judge_again(host, cast("ClassDocument", document))
    return [*messages, f"The node was judged again: {current.load(host.root)[0]['status']}."]


def _end_tests(host: Host, options: Any) -> List[str]:
    """End the tests before a return that are named. A pattern for all findings ends none: it is
    also used after a repair, which the tests are for.
    """
    if not options.id.startswith(ID):
        return []
    return end(host, options.id, sanitized(options.by, 80), sanitized(options.reason, 400))


def _capture(host: Host) -> Mapping[str, Any]:
    """Return the capture of the last check; empty if there is none."""
    try:
        capture = json.loads(host.text(CAPTURE) or "")
    except (OSError, ValueError):
        raise NodeError(
            f"{CAPTURE} is not there: what is to be settled was not seen since boot. Run `goldnode-node check` first."
        ) from None
    return as_map(capture)
