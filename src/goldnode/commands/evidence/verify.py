"""Command `goldnode evidence verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from goldnode.commands.evidence import CLASS, DOCUMENT, TRUST, present_class, row, trusted
from goldnode.commands.options import EXISTING
from goldnode.commands.output import emit, reports
from goldnode.core.errors import EvidenceError


@click.command()
@CLASS
@click.argument("files", nargs=-1, type=EXISTING, metavar="[FILE]...")
@TRUST
@DOCUMENT
@reports("evidence-verify")
def verify(
    class_: str,
    files: tuple[Path, ...],
    trust: tuple[Path, ...],
    document: Path | None,
    *,
    form: str,
) -> None:
    """Verify statements: signature, subject, hardware, and that nothing has changed.

    Without FILE, all statements of the class in the site's directory are verified.

    Exit status: 0 all count, 1 one is refused, stale or failed, 2 there is none.
    """
    from goldnode.core.site import load_site  # start-up time: it loads pydantic
    from goldnode.evidence import proved

    present, keys = present_class(class_, document), trusted(trust)
    if files:
        rows = [proved.judge(file, present, keys) for file in files]
    else:
        folder = proved.directory(load_site(), class_)
        rows = proved.statuses(folder, present, keys)
        if not rows:
            raise EvidenceError(
                f"there is no statement about class {class_}",
                file=folder,
                remedy="make one with `goldnode evidence sign`",
            )
    content = {"class": class_, "statements": [row(one, class_) for one in rows]}
    lines = [f"{one.state}: {one.path}: {one.why}" for one in rows]
    emit(form, content, "\n".join(lines))
    sys.exit(0 if all(one.state == "current" for one in rows) else 1)
