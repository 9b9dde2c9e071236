"""`goldnode-node act`: do what follows from the last verdict, which `check --defer` has stored.

The units of the check run both. The check reads what others write, logs and answers of drivers for instance, in a
sandbox. This command has the rights to drain, to start and to install a kernel's boot entry, and reads goldnode's
own documents alone.
"""

from __future__ import annotations

import sys

from ..ground.errors import NodeError
from ..ground.host import Host
from ..ground.verdict_files import CLASS, VERDICT
from ..probe import CAPTURE
from ..state.finding import UNREAD
from ..state.observe import load_json
from ..verdict import check as checking
from ..verdict import current, deltas
from . import judging, main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from ..ground.document import ClassDocument
    from ..ground.host import Json


def arguments(parser: Any) -> None:
    """Add no arguments."""


def run(host: Host, options: Any) -> int:
    """Act on the last verdict. Return 0. Raises OSError if a file of the gate could not be written."""
    options.document = CLASS
    document: Optional[ClassDocument] = None
    try:
        document = main.read_document(host, options)
    except NodeError as problem:  # the gate stays in its last mode
        print(f"goldnode-node: {problem}", file=sys.stderr)
    verdict, why = current.load(host.root)
    whole = isinstance(verdict, dict) and isinstance(verdict.get("findings"), list)
    checked = _checked(host, verdict) if whole else None
    if document is not None and whole and why is None:
        verdict = main.settled(host, document, verdict, bool(verdict.get("passive")))
    # Without a file of a verdict the check could not write it.
    unwritten = None if whole else OSError(0, "the check has stored no verdict", VERDICT)
    done = judging.follow(host, document, judging.Delivered(verdict, [], unwritten), checked)
    if whole:
        main.show_fallback(host, done.verdict)
    for line in done.messages:
        print(line, file=sys.stderr)
    if done.unwritten is not None and whole:
        raise done.unwritten
    return 0


def _checked(host: Host, verdict: Json) -> Optional[checking.Checked]:
    """Return the check behind the verdict; None if it could not store its state, as the verdict reports then."""
    rows = verdict["findings"]
    if any(row["id"] == "memory.state" and row["outcome"] == UNREAD for row in rows):
        return None
    capture, memory = load_json(host, CAPTURE), load_json(host, deltas.MEMORY)
    return checking.Checked(verdict, capture, memory, None) if capture and memory else None
