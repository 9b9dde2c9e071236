"""Command `goldnode canary list`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from goldnode.commands.canary import SUITE
from goldnode.commands.output import emit, reports, table


@click.command("list")
@SUITE
@reports("canary-jobs")
def list_(file: Path | None, form: str) -> None:
    """List the jobs of the suite, and where they have run.

    A job whose GPU tier has not run on a model of GPU is *not verified* there; its results state that.
    """
    from goldnode.canary.suite import load_suite  # start-up time: it loads pydantic

    suite = load_suite(file)
    rows = [["JOB", "TIERS", "LIMIT", "GPU TIER SEEN ON", "PURPOSE"]]
    for job in suite.jobs:
        if job.site:
            seen = "the site's"
        elif "*" in job.seen:
            seen = "any"
        else:
            seen = ", ".join(job.seen) or "not verified"
        rows.append([job.name, "+".join(job.tiers), f"{job.limit:g} s", seen, job.title])
    emit(form, {"jobs": [asdict(job) for job in suite.jobs]}, lambda: table(rows))
