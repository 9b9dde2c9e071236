"""Command `goldnode import`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from goldnode.commands.options import BECOME, DIRECTORY, OLD_DIRECTORY, grouped
from goldnode.commands.output import emit, reports, say
from goldnode.core import progress


@dataclass(frozen=True)
class ReachOptions:
    """How the machines are listed and reached."""

    program: str | None = None
    user: str | None = None
    become: bool = False
    forks: int | None = None
    surveys: Path | None = None


@click.command("import")
@click.argument("source")
@click.option(
    "--out",
    type=DIRECTORY,
    metavar="DIR",
    show_default="print the report",
    help="Write a site directory with all proposals.",
)
@grouped(
    "reach",
    ReachOptions,
    click.option(
        "--program",
        metavar="WORDS",
        show_default="scontrol or kubectl",
        help="Program that lists the nodes, as in 'ssh login1 scontrol'.",
    ),
    click.option("--user", metavar="NAME", help="User of ssh."),
    BECOME,
    click.option(
        "-f",
        "--forks",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="`forks` of ansible.cfg",
        help="Number of hosts to survey in parallel.",
    ),
    click.option(
        "--surveys",
        type=OLD_DIRECTORY,
        metavar="DIR",
        help="Use these saved surveys (HOST.json) and contact no host.",
    ),
)
@reports("fleet-proposal")
def import_(source: str, out: Path | None, form: str, *, reach: ReachOptions) -> None:
    """Propose classes, cohorts and deviations for a fleet that runs already.

    SOURCE is slurm or kubernetes, a file with the saved output of `scontrol show node` or `kubectl get
    nodes -o json`, or an Ansible inventory, such as a list of names. The hosts are surveyed and not
    changed. Review the files before you use them.
    """
    from goldnode.classdoc.load import load_catalog  # start-up time: it loads pydantic
    from goldnode.core.site import load_site
    from goldnode.fleet.nodes import fleet_proposal
    from goldnode.inventory.fleet_sources import read_source

    known = read_source(source, shlex.split(reach.program or ""))
    if reach.surveys is not None:
        surveyed = fleet_proposal.read_surveys(reach.surveys, known)
    else:
        progress.step(f"surveying {len(known.hosts)} hosts")
        options = ["--become"] if reach.become else []
        if reach.forks is not None:
            options += ["--forks", str(reach.forks)]
        surveyed = fleet_proposal.survey_hosts(known, options, reach.user)
    progress.step("comparing the surveys")
    proposal = fleet_proposal.propose_fleet(known, surveyed, load_catalog(), load_site())
    written: list[str] = []
    if out is not None:
        texts = fleet_proposal.files(proposal, surveyed, known)
        written = [str(path) for path in fleet_proposal.write(texts, out)]
    text = fleet_proposal.report(proposal)
    emit(form, {"source": source, **proposal.to_json(), "written": written}, text)
    say("No host was changed.")
    if out is None:
        say("Next: run it again with --out DIR to write the files.")
        return
    say(
        f"Wrote {len(written)} files. Next: review {out}/import/report.md, then the classes and the inventory."
    )
    if known.inventory is not None:
        say(
            f"The connections are in {known.inventory}: copy it, with its group_vars, into {out}/inventory."
        )
