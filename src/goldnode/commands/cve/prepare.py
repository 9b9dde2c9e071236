"""Command `goldnode cve prepare`."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from goldnode.commands.cve import facts as shared
from goldnode.commands.cve import sources as given
from goldnode.commands.cve.sources import CveSources
from goldnode.commands.fleet.ingest import DATA

_LINES = 5  # of a command's output


@click.command()
@shared.CVE_NAME
@shared.CLASSES
@shared.WRITE
@given.SOURCES
@DATA
def prepare(
    name: str, *, classes: tuple[str, ...], write: bool, sources: CveSources, data: Path | None
) -> None:
    """Make lock, module and disk of a class with the fix.

    Shows for each class which of the lock, the kernel module, the lock of the disk, the disk and its boot are missing,
    by what is there now. With --write it runs the command of each missing one, in order, and reads the state again: a
    command that ends well and proves nothing stops the class. A run that was cut goes on where it was.

    Exit status: 0 nothing is missing, 1 something is, 2 an error.
    """
    from goldnode.cve.prepare import PrepareRequest, run, steps
    from goldnode.fleet.shared.person import person

    read = shared.judged(name, sources, data)
    missing = False
    for class_ in shared.require_classes(read, classes):
        facts = read.facts
        request = PrepareRequest(
            facts.cve, class_, read.catalog, read.site, matcher=read.matcher, at=facts.at
        )
        click.echo(f"{class_}:")
        who = (person(), lambda: dt.datetime.now(dt.UTC))
        execute = command_output if write else None
        for result in run(steps(request), execute, facts.record, class_, who):
            text = result.text.replace("\n", "\n    ")
            command = ""
            if result.state in ("missing", "waits"):
                missing = True
                command = f"\n    goldnode {' '.join(result.step.words)}"
            done = {"ran": "done now"}.get(result.state, result.state)
            click.echo(f"  {result.step.name}: {done}{f': {text}' if text else ''}{command}")
    if missing:
        sys.exit(1)


def command_output(words: Sequence[str]) -> str:
    """Run a command of goldnode and return the last lines of its output."""
    argv = [sys.executable, "-m", "goldnode.cli", *words]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return "\n".join(done.stdout.strip().splitlines()[-_LINES:])
