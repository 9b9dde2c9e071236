"""Command `goldnode evidence list`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.evidence import (
    CLASS,
    DOCUMENT,
    TRUST,
    hardware_text,
    present_class,
    row,
    trusted,
)
from goldnode.commands.output import emit, reports, table

if TYPE_CHECKING:
    from goldnode.evidence.proved import ProofStatus


@click.command("list")
@CLASS
@TRUST
@DOCUMENT
@reports("evidence-list")
def list_(class_: str, trust: tuple[Path, ...], document: Path | None, *, form: str) -> None:
    """List what is proved about a class, on which hardware, by whom and since when.

    A kind without a statement is listed as missing. A stale one names its first change, and each row that does not
    count has the command that makes the proof again.
    """
    from goldnode.core.site import load_site  # start-up time: it loads pydantic
    from goldnode.documents.evidence import PREDICATES
    from goldnode.evidence import proved

    present = present_class(class_, document)
    rows = proved.statuses(proved.directory(load_site(), class_), present, trusted(trust))
    known = {one.kind for one in rows}
    rows += [
        proved.ProofStatus(kind, "missing", "no statement of this kind")
        for kind in PREDICATES
        if kind not in known
    ]
    content = {
        "class": class_,
        "class_digest": present.document["digest"],
        "lock": present.document["lock"]["digest"],
        "evidence": [row(one, class_) for one in rows],
    }
    emit(form, content, lambda: _text(class_, rows))


def _text(class_: str, rows: Sequence[ProofStatus]) -> str:
    cells = [["KIND", "STATE", "SINCE", "HARDWARE", "KEY", "WHY"]]
    for status in rows:
        cells.append([str(status.kind or "?"), status.state, *_proof(status), status.why])
    steps = {status.kind: status.renew(class_) for status in rows if status.state != "current"}
    current = {status.kind for status in rows if status.state == "current"}
    lines = [f"  {kind}: {step}" for kind, step in steps.items() if step and kind not in current]
    renewal = "\n\nto make a proof (again):\n" + "\n".join(lines) if lines else ""
    return table(cells) + renewal


def _proof(status: ProofStatus) -> list[str]:
    """Return since, hardware and key of a row."""
    if status.proof is None:
        return ["-", "-", "-"]
    since = status.proof.predicate.time
    return [since, hardware_text(status), status.proof.keyid[:12]]
