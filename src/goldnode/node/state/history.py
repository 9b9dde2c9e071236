"""History of changes to a node: one small file for each apply that changed something or failed halfway."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass

from ..ground.host import Host, boot_identity
from .domains.program import CLASS
from .observe import HISTORY, load_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from ..ground.document import ClassDocument


SCHEMA = "goldnode.applied/1"
KEEP = 50
TEXT = 300  # characters stored from each end of a text; the controller's record has more


def ends(text: Optional[str]) -> Optional[str]:
    """Return a text, shortened to its beginning and its end.

    The beginning names the failed command, and at the end programs print the reason.
    """
    return text if text is None or len(text) <= 2 * TEXT else f"{text[:TEXT]} … {text[-TEXT:]}"


def earlier_lock(host: Host, digest: str) -> Optional[str]:
    """Return the digest of the lock that was in force before `digest`, or None if there was no other.

    The last record has it; without records, the class document on the node does.
    """
    names = host.glob(HISTORY, "*.json")
    last = load_json(host, names[-1]) if names else None
    if last is None:
        before = ((load_json(host, CLASS) or {}).get("lock") or {}).get("digest")
        return None if before == digest else before
    earlier: Optional[str] = last.get("lock_digest")
    # If the same lock is applied again, its last record names the earlier one.
    return last.get("earlier_lock_digest") if earlier == digest else earlier


@dataclass(frozen=True)
class AppliedPart:
    """The outcome of one apply: its actions, the digest of the lock before it, its duration, and its error."""

    part: str
    done: List[Dict[str, Any]]
    earlier: Optional[str]
    seconds: float
    error: Optional[str]
    by: str = "apply"


def record(host: Host, document: ClassDocument, applied: AppliedPart) -> None:
    """Write one record and drop the oldest ones.

    File names are numbered, so that their order does not depend on the node's clock.
    """
    names = [os.path.basename(name) for name in host.glob(HISTORY, "*.json")]
    match = re.match(r"\d+", names[-1]) if names else None
    number = int(match.group()) + 1 if match else 1
    now = time.gmtime()
    entry = {
        "schema": SCHEMA,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
        "seconds": round(applied.seconds, 2),
        "part": applied.part,
        "by": applied.by,
        "class": document["class"],
        "class_digest": document["digest"],
        "lock_digest": document["lock"]["digest"],
        "earlier_lock_digest": applied.earlier,
        "boot_identity": boot_identity(host),
        "error": ends(applied.error),
        "actions": [
            {
                "kind": row["kind"],
                "target": row["target"],
                "reason": ends(row["reason"]),
                "error": ends(row["error"]),
                "seconds": row["seconds"],
            }
            for row in applied.done
        ],
    }
    name = f"{HISTORY}/{number:06d}-{time.strftime('%Y%m%dT%H%M%SZ', now)}-{applied.part}.json"
    host.write(name, json.dumps(entry, indent=1, sort_keys=True).encode())
    for old in names[: max(0, len(names) + 1 - KEEP)]:
        host.remove(f"{HISTORY}/{old}")
