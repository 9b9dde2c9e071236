"""Evidence that a node wants before it moves: signed statements, in the channel, about the state that it moves to.

The class names the kinds (`evidence.follow`). A file of the node has the keys. A node knows no packages of the state
that it moves to, so it accepts statements about exactly that lock, or about the lock of that disk build. The way back
needs no evidence.
"""

from __future__ import annotations

import json

from ..ground import boot
from ..ground.host import Host
from ..ground.json_lines import as_dict, as_list
from ..ground.renewal import STEPS, renew
from ..ground.text import clean
from ..state import envelopes
from . import channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional, Tuple

    from ..ground.host import Json
    from .channel import Wish
    from .settings import Settings

KEYS = "/etc/goldnode/evidence-keys.pem"
DISK = "disk"
AHEAD = 300.0  # seconds that clocks may differ
_STATEMENT = "https://in-toto.io/Statement/v1"
_TYPE = "urn:goldnode:evidence:%s:1"


def refusal(
    host: Host, settings: Settings, document: Json, wanted: Wish, now: float
) -> Optional[str]:
    """Return why the evidence in a channel does not let a node move, and the command that makes it; None if it does.

    Raises NodeError for a file without a key, or one that others than root can change.
    """
    kinds = list(settings.proofs)
    if not kinds or wanted.direction == channel.BACK:
        return None
    keys = envelopes.trusted(host, KEYS, f"no evidence counts. Correct it: {envelopes.AGAIN}")
    if keys is None:
        return (
            f"the class wants evidence ({', '.join(kinds)}), and this node has no keys to verify it with: put the public "
            f"keys of who signs it into {KEYS}, from a place that you trust"
        )
    given, lock = as_dict(document.get("evidence")), wanted.digest
    if wanted.kind == DISK:
        # The statement about the boots of a build also names its lock.
        if DISK in kinds:
            kinds.remove(DISK)
        kinds.insert(0, DISK)
    for kind in kinds:
        predicate, subjects, why = _read(given.get(kind), kind, keys)
        if not why and kind == DISK and wanted.kind == DISK:
            lock = subjects.get("lock", "")
            if predicate.get("build") != wanted.digest:
                why = f"it is about build {predicate.get('build')}, not {wanted.digest}"
        why = why or _judge(predicate, subjects, lock, settings, now)
        if why:
            how = renew(kind, settings.node_class) if kind in STEPS else "update goldnode here"
            return f"evidence of kind {kind} does not count: {clean(why)[:200]}: {how}"
    return None


def _read(
    envelope: Any, kind: str, keys: Mapping[str, Tuple[str, str]]
) -> Tuple[Mapping[str, Any], Dict[str, str], str]:
    """Return the predicate of a statement, its subjects by sort, and why it is refused (empty: it is not)."""
    if not isinstance(envelope, dict):
        return {}, {}, "the channel has none about this state"
    opened = envelopes.opened(envelope, keys)
    if opened is None:
        named = envelopes.signers(envelope)
        return {}, {}, f"no key of {KEYS} has signed it (its signatures: {named})"
    try:
        statement = as_dict(json.loads(opened[1]))
    except (ValueError, RecursionError):
        statement = {}
    predicate = as_dict(statement.get("predicate"))
    if statement.get("_type") != _STATEMENT or statement.get("predicateType") != _TYPE % kind:
        return {}, {}, f"it is a statement of another kind: {statement.get('predicateType')}"
    subjects: Dict[str, str] = {}
    for row in as_list(statement.get("subject")):
        sort, _, name = str(as_dict(row).get("name")).partition(":")
        digest = as_dict(as_dict(row).get("digest")).get("sha256")
        subjects[sort] = name if sort == "class" else f"sha256:{digest}"
    return predicate, subjects, ""


def _judge(
    predicate: Mapping[str, Any],
    subjects: Mapping[str, str],
    lock: str,
    settings: Settings,
    now: float,
) -> str:
    """Return why a statement does not count for a state; empty if it does."""
    node_class, time = settings.node_class, predicate.get("time")
    if subjects.get("class") != node_class or predicate.get("class") != node_class:
        return f"its subject is class {subjects.get('class')}, not {node_class}"
    if subjects.get("lock") != lock:
        return f"it is stale: it is about {subjects.get('lock')}, and the rollout goes to {lock}"
    if predicate.get("simulated") is not False and not settings.simulated:
        return f"it was made on simulated hardware, which never proves the real class {node_class}"
    result = as_dict(predicate.get("result"))
    if result.get("outcome") != "passed":
        return f"its outcome is {result.get('outcome')}: {result.get('summary')}"
    made = boot.seconds(time)
    if made is None or made > now + AHEAD:
        return f"it was made at {time}, in the future"
    days = settings.proof_days
    if days is not None and now - made > days * 86400:
        return f"it is stale: it was made at {time}, and the class accepts {days} days"
    return ""
