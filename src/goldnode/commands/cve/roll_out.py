"""Command `goldnode cve roll-out`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from goldnode.commands.cve import facts as shared
from goldnode.commands.cve import sources as given
from goldnode.commands.cve.sources import CveSources
from goldnode.commands.fleet.ingest import DATA

_DAYS = 30  # of the freeze calendars that are read


@click.command("roll-out")
@shared.CVE_NAME
@shared.CLASSES
@click.option(
    "--override-calendar",
    "overrides",
    multiple=True,
    metavar="NAME=REASON",
    help="Freeze calendar of the site that the rollout does not obey. Repeatable.",
)
@shared.WRITE
@given.SOURCES
@DATA
def roll_out(
    name: str,
    *,
    classes: tuple[str, ...],
    overrides: tuple[str, ...],
    write: bool,
    sources: CveSources,
    data: Path | None,
) -> None:
    """Write the rollout document of a fix for a class.

    The document is of the security lane: it supersedes a normal rollout, its waves soak as long as the site's rule for
    the severity says, and a freeze calendar holds it unless it is overridden by name. It moves the nodes from the lock
    that most of them report to the lock with the fix; others are named. Nothing is run: `goldnode rollout run` does that.

    Exit status: 0 the document can work, 1 it cannot, 2 an error.
    """
    from goldnode.core.files import replace_file
    from goldnode.cve.record import event
    from goldnode.cve.rollouts import document
    from goldnode.fleet.control import calendar_files
    from goldnode.fleet.rollout.check import KnownOfClass, check
    from goldnode.fleet.rollout.document import loads
    from goldnode.fleet.shared.person import person
    from goldnode.lock.model import find_lock

    calendars: dict[str, str] = {}
    for pair in overrides:
        calendar, _, reason = pair.partition("=")
        if not reason:
            raise click.UsageError(f'--override-calendar "{pair}" has no reason; write NAME=REASON')
        calendars[calendar] = reason
    read = shared.judged(name, sources, data)
    failed = False
    for class_ in shared.require_classes(read, classes):
        facts = read.facts
        entry = read.catalog.stack(facts.stacks[class_])
        digest = find_lock(entry, read.site)[0].digest
        asked = read.catalog.node_class(class_).item.evidence
        made = document(facts, class_, digest, read.site.cve, overrides=calendars, evidence=asked)
        path = facts.record.rollout(class_)
        size = len([node for node in facts.nodes if node.class_ == class_])
        readings = calendar_files.read(read.site, class_, facts.at.timestamp(), _DAYS)
        findings = check(
            loads(made.text, path),
            size=size,
            catalog=read.catalog,
            known=KnownOfClass(calendars=readings),
        ).findings
        if write:
            facts.record.add(
                event(facts.at, person(), "roll-out", "begun", path.name, class_=class_)
            )
            replace_file(path, made.text.encode())
            click.echo(f"wrote {path}")
        else:
            click.echo(f"would write {path}:\n\n{made.text}")
        for node, lock in sorted(made.others.items()):
            click.echo(f"not moved: {node} reports lock {lock}")
        for finding in findings:
            click.echo(f"{finding.severity}: {path.name}:{finding.line}: {finding.message}")
        failed = failed or any(finding.severity == "error" for finding in findings)
        if write:
            click.echo(f"run it: goldnode rollout run {path}")
    if not write:
        click.echo("add --write to do it")
    if failed:
        sys.exit(1)
