"""The report of the node: its capture and verdict (schema goldnode.node-report/1).

`goldnode-node report` prints it and writes nothing; with `--to` it sends it. A controller gets it in the execution of a plan.
"""

from __future__ import annotations

import json
import os
from typing import cast

from ..ground import gate_files, verdict_files
from ..ground.errors import NodeError
from ..ground.json_lines import as_map, as_text
from ..probe import CAPTURE
from ..state.observe import load_json
from ..verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from ..ground.document import ClassDocument
    from ..ground.host import Host, Json


def arguments(parser: Any) -> None:
    """Add the options of `goldnode-node report`."""
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="check the node now, even if the last check still holds",
    )
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="only the report of the last check, and an error if that does not hold: needs none of the rights of a check",
    )
    parser.add_argument(
        "--to",
        metavar="URL",
        help="send it to the fleet's service, as what has changed since the last whole report",
    )
    parser.add_argument("--certificate", metavar="FILE", help="certificate of this node, for --to")
    parser.add_argument("--key", metavar="FILE", help="its key, if that is in another file")
    parser.add_argument("--ca", metavar="FILE", help="certificates of authorities to trust")


def run(host: Host, options: Any) -> int:
    """Print the report of the node as one line of JSON, or send it and print how."""
    if host.live and os.geteuid() != 0:
        raise NodeError("the capture can be read by root alone. Run `sudo goldnode-node report`.")
    if options.recorded and options.fresh:
        raise NodeError("--fresh checks the node and --recorded does not. Give one of them.")
    content = _recorded_alone(host) if options.recorded else report(host, fresh=options.fresh)
    if options.to:
        from .sending import send  # start-up time: only to send needs a client

        content = send(host, content, options)
    print(json.dumps(content, separators=(",", ":")))
    return 0


def report(host: Host, engine: Optional[str] = None, fresh: bool = False) -> Json:
    """Return the report of the last check if its verdict holds, else of a new passive check.

    :param engine: digest of the program that runs.
    :param fresh: make a new check in any case: the last one does not show what has changed since.
    """
    return (None if fresh else recorded(host, engine)) or _fresh(host, engine)


def recorded(host: Host, engine: Optional[str] = None) -> Optional[Json]:
    """Return the report of the last check; None if its verdict does not hold, or its capture is of
    another boot.
    """
    verdict, why = current.load(host.root)
    if why is not None:
        return None
    capture = load_json(host, CAPTURE)
    identity = as_map(as_map(capture).get("identity"))
    if identity.get("boot_identity") != verdict["boot_identity"]:
        return None
    return {**report_of(capture, verdict, engine), "gate": _gate(host)}


def _recorded_alone(host: Host) -> Json:
    content = recorded(host)
    if content is None:
        why = current.load(host.root)[1] or "its capture is of another boot"
        raise NodeError(
            f"there is no report of a check that holds: {why}. Run `goldnode-node check` first."
        )
    return content


def _gate(host: Host) -> Optional[Json]:
    """Return what the gate of the last check did; None without a record of it."""
    state = load_json(host, gate_files.STATE)
    try:
        drain = state["told"]
        return {
            **{key: state[key] for key in ("mode", "open", "reasons", "since")},
            # null: not drained; false: by another party
            "drained": bool(drain["ours"]) if drain else None,
        }
    except (KeyError, TypeError):
        return None


def _fresh(host: Host, engine: Optional[str]) -> Json:
    """Return the report of a new check. A node without a class has a capture alone."""
    from ..probe import capture  # start-up time: a recorded report needs no check
    from ..verdict import check as checking

    document = load_json(host, verdict_files.CLASS)
    if not isinstance(document, dict):
        return report_of(capture(host, None, True), None, engine)
    checked = checking.examine(host, cast("ClassDocument", document), passive=True)
    return report_of(checked.capture or {}, checked.verdict, engine)


def report_of(capture: Json, verdict: Optional[Json], engine: Optional[str]) -> Json:
    return {
        "schema": verdict_files.REPORT,
        "node": as_text(as_map(capture.get("identity")).get("hostname")),
        "class": (verdict or {}).get("class"),
        "engine": engine,
        "capture": capture,
        "verdict": verdict,
    }
