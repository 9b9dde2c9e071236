"""Command `goldnode cve lane`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.cve import facts as shared
from goldnode.commands.cve import sources as given
from goldnode.commands.cve.sources import CveSources
from goldnode.commands.fleet.ingest import DATA
from goldnode.commands.options import NEW_FILE
from goldnode.commands.output import emit, html_page, reports, table

if TYPE_CHECKING:
    from goldnode.cve.ended import EndedHours
    from goldnode.documents.cve_lane import CveLaneDocument


@click.command()
@shared.CVE_NAME
@shared.PUBLISHED
@click.option("--html", type=NEW_FILE, metavar="FILE", help="Write the page to a file as well.")
@given.SOURCES
@DATA
@reports("cve-lane")
def lane(
    name: str,
    *,
    published: dt.datetime | None,
    html: Path | None,
    sources: CveSources,
    data: Path | None,
    form: str,
) -> None:
    """Show the steps of a vulnerability by class, and the hours.

    Each step has the state that is read now: mitigated nodes by their captures, the lock by its packages, nodes by what
    runs, and the proof by its list. Below are the hours from publication to proof of the earlier ones, by severity.
    """
    from goldnode.core.files import replace_file
    from goldnode.cve.ended import ended
    from goldnode.cve.lane import lane as steps
    from goldnode.fleet.shared.person import person

    read = shared.judged(name, sources, data)
    shared.record_published(read, published, person())
    document, hours = steps(read.facts), ended(read.site)
    if html is not None:
        replace_file(html, html_page("cve_lane.html.j2", found=document, hours=hours).encode())
    emit(form, document.model_dump(mode="json", by_alias=True), lambda: _text(document, hours))


def _text(document: CveLaneDocument, hours: list[EndedHours]) -> str:
    head = f"{document.cve} ({document.severity}) at {document.at}"
    if document.hours is not None:
        head += f", {document.hours} hours since its publication"
    if document.simulated:
        head += f"; {document.simulated} nodes of SIMULATED hardware"
    lines = [head]
    if not document.classes:
        lines.append("no class has it by these data and captures")
    else:
        cells = [
            [
                row.class_,
                f"{row.left} of {row.nodes}",
                *(step.state.replace("-", " ") for step in row.steps),
            ]
            for row in document.classes
        ]
        titles = ["class", "nodes left", "mitigate", "prepare", "roll-out", "prove"]
        lines += ["", table([titles, *cells]).rstrip()]
    for row in document.classes:
        for step in row.steps:
            if step.state not in ("done", "not-needed") or step.command:
                after = f"\n    {step.command}" if step.command else ""
                lines.append(f"{row.class_}: {step.step}: {step.text}{after}")
    for ended in hours:
        lines.append(
            f"{ended.severity}: {ended.count} proved, {ended.mean} hours on average, {ended.worst} at worst"
        )
    return "\n".join(lines)
