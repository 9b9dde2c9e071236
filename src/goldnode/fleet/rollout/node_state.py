"""State of a node as a rollout needs it: the lock in force, the boot, and the verdict of that boot.

One short shell script reads it, without goldnode's program: a node is asked in one light remote
execution.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from goldnode.fleet.rollout.model import Answer, NodeObservation
from goldnode.node.ground import boot, verdict_files
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.text import clean, cleaned
from goldnode.node.program.remote import CLAIM
from goldnode.node.state.apply import LOCK
from goldnode.node.state.domains.program import CLASS
from goldnode.node.state.finding import MISMATCH
from goldnode.node.state.observe import INDEX
from goldnode.node.verdict import current
from goldnode.node.verdict.blame import causes

_MARK = "--- goldnode "
_DEGRADED = 1  # exit code of a check that found a difference
_BOOT_ID, _STAT, _UPTIME = "/proc/sys/kernel/random/boot_id", "/proc/1/stat", "/proc/uptime"
_BOOT = f"for f in {_BOOT_ID} {_STAT}; do"
_SHOW = f'echo "{_MARK}$f"; cat "$f" 2>/dev/null; echo; done'
# The class document is large, and is read only on a node without an index (of an older goldnode).
READ = f"""for f in {_BOOT_ID} {_STAT} {_UPTIME} {verdict_files.VERDICT} {INDEX}; do {_SHOW}
[ -e {INDEX} ] || for f in {CLASS}; do {_SHOW}"""
# The lock of the node's engine: an application that an earlier run left at work ends first.
CLAIMS = """umask 022; mkdir -p /run/goldnode && exec 9>>{lock} || exit 1
flock -w {wait} 9 || {{ echo "an application of another run is still at work on the node" >&2; exit 75; }}
printf %s {token} >{file}.new && mv {file}.new {file} || exit 1
{boot} {show}"""
CONFIRMS = '[ "$(cat {file} 2>/dev/null)" = {token} ]'


def claim(token: str, wait: int) -> str:
    """Return the script by which a run takes a node over, and which shows the boot of the node.

    An earlier run that still works on the node, on any controller, is refused from then on. The
    claim ends with the boot.
    """
    return CLAIMS.format(
        lock=LOCK, wait=wait, token=shlex.quote(token), file=CLAIM, boot=_BOOT, show=_SHOW
    )


def confirm(token: str) -> str:
    """Return the script that fails if another run has taken the node over."""
    return CONFIRMS.format(file=CLAIM, token=shlex.quote(token))


@dataclass(frozen=True)
class NodeReading:
    """Reading of a node. `digest` is None unless all of a lock was applied; `fault`: why no verdict holds."""

    boot_id: str | None
    digest: str | None
    verdict: Mapping[str, Any] | None
    fault: str | None


def read(text: str) -> NodeReading:
    """Return the reading of the output of READ, or of a part of it, with its texts cleaned."""
    files: dict[str, str] = {}
    for part in f"\n{text}".split(f"\n{_MARK}")[1:]:
        name, _, content = part.replace("\r\n", "\n").partition("\n")
        files[name.strip()] = content
    identity = boot.identity(files.get(_BOOT_ID, ""), files.get(_STAT, ""))
    row = _in_force(files)
    verdict = _json(files.get(verdict_files.VERDICT, ""))
    fault = current.fault(
        verdict, identity, boot.uptime(files.get(_UPTIME, "")), row.get("class_digest")
    )
    digest = str(row["lock_digest"]) if row.get("whole") and row.get("lock_digest") else None
    return NodeReading(identity, digest, None if fault else verdict, fault)


def observe(
    node: str, at: float, found: NodeReading, accepted: Collection[int] = (0,)
) -> NodeObservation:
    """Return the observation of a reading.

    A verdict passes with an accepted exit code. One that could not check, or that does not hold, is
    unknown. "Could not check" comes before "degraded" in a verdict; to accept it does not accept a
    difference.
    """
    if found.verdict is None:
        return NodeObservation(node, at, found.boot_id, found.digest, Answer.UNKNOWN)
    code = found.verdict["exit_code"]
    if code == current.UNKNOWN and any(
        row["outcome"] == MISMATCH for row in found.verdict["findings"]
    ):
        code = _DEGRADED
    answer = Answer.UNKNOWN if code == current.UNKNOWN else Answer.FAILS
    if code in accepted:
        answer = Answer.PASSES
    software, hardware = causes(found.verdict) if answer is Answer.FAILS else ([], [])
    return NodeObservation(
        node,
        at=at,
        boot_id=found.boot_id,
        digest=found.digest,
        verdict=answer,
        software=tuple(software),
        hardware=tuple(hardware),
    )


def _in_force(files: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the row of the class document in force."""
    rows = as_dict(_json(files.get(INDEX, ""))).get("rows")
    if isinstance(rows, list) and rows and isinstance(rows[-1], dict):
        return rows[-1]
    document = _json(files.get(CLASS, ""))
    if not isinstance(document, dict) or not isinstance(document.get("lock"), dict):
        return {}
    lock = document["lock"].get("digest")
    return {"class_digest": document.get("digest"), "lock_digest": lock, "whole": True}


def _json(text: str) -> Any:
    try:
        return cleaned(json.loads(text)) if text.strip() else None
    except (ValueError, RecursionError):
        return clean(text)
