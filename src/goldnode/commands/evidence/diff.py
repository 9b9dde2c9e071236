"""Command `goldnode evidence diff`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands.evidence import CLASS, DOCUMENT, TRUST, present_class, row, trusted
from goldnode.commands.output import emit, reports


@click.command()
@CLASS
@TRUST
@DOCUMENT
@reports("evidence-diff")
def diff(class_: str, trust: tuple[Path, ...], document: Path | None, *, form: str) -> None:
    """Show which evidence is stale, or would be, by which package, field, fact or tool.

    With --document, the comparison is with a class document that is not in force yet: what it would make stale.
    """
    from goldnode.core.site import load_site  # start-up time: it loads pydantic
    from goldnode.evidence import proved

    present = present_class(class_, document)
    rows = proved.statuses(proved.directory(load_site(), class_), present, trusted(trust))
    content = {"class": class_, "statements": [row(one, class_) for one in rows]}
    lines: list[str] = []
    for status in rows:
        lines.append(f"{status.kind or '?'} {status.state}: {status.path}")
        if status.state == "refused":
            lines.append(f"  {status.why}")
        lines += [f"  {change.text()}" for change in status.changed]
        if status.changed:
            lines.append(f"  {status.renew(class_)}")
    emit(form, content, "\n".join(lines) or f"there is no statement about class {class_}")
