"""Command `goldnode adopt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from goldnode.commands.options import (
    BECOME,
    DIRECTORY,
    FILE,
    NEW_FILE,
    RenamedOption,
    inventory_option,
    out_directory,
)
from goldnode.commands.output import emit, reports, say
from goldnode.core import progress


@click.command()
@click.argument("host")
@inventory_option("Inventory that defines HOST. Without it, HOST is an SSH destination.")
@click.option(
    "--name",
    metavar="CLASS",
    show_default="from the GPU model or the OS release",
    help="Name of the new class.",
)
@out_directory("print the files")
@click.option(
    "--site",
    "site_directory",
    type=DIRECTORY,
    metavar="DIR",
    help="Write a site directory as `goldnode init` does, with HOST in the new class.",
)
@BECOME
@click.option(
    "--survey",
    "from_file",
    type=FILE,
    metavar="FILE",
    help="Use this saved survey instead of connecting to HOST.",
)
@click.option(
    "--save-survey",
    "save_to",
    cls=RenamedOption,
    former={"--keep": None},
    type=NEW_FILE,
    metavar="FILE",
    help="Write the survey of HOST to this file.",
)
@reports("class-proposal")
def adopt(
    host: str,
    name: str | None,
    out: Path | None,
    site_directory: Path | None,
    save_to: Path | None,
    *,
    form: str,
    **survey_from: Any,
) -> None:
    """Propose a class and a stack for a machine that runs already.

    HOST is surveyed and not changed. Review the files before you use them.
    """
    if out is not None and site_directory is not None:
        raise click.UsageError(
            "--out writes into a catalog and --site a whole directory: use one of them."
        )
    from goldnode.classdoc.load import load_catalog  # start-up time: it loads pydantic
    from goldnode.core.site import load_site
    from goldnode.fleet.nodes import adopt as adopting

    # After the checks of options: only now a connection is opened.
    progress.step(f"surveying {host}")
    survey = _survey(host, **survey_from)
    if save_to is not None:
        save_to.write_text(json.dumps(survey, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    # The survey is in its file by now, and can be used again if the proposal fails.
    class_name = name or adopting.name_for(survey)
    proposal = adopting.propose(survey, class_name, load_catalog(), load_site())
    written: list[str] = []
    if out is not None:
        written = [str(path) for path in adopting.write(proposal, out)]
    elif site_directory is not None:
        written = [
            str(path) for path in adopting.write_site(proposal, class_name, host, site_directory)
        ]
    emit(
        form,
        {
            "host": host,
            "class": class_name,
            "stack": proposal.stack,
            "files": proposal.files,
            "written": written,
            "notes": proposal.notes,
        },
        "\n".join(f"wrote {path}" for path in written)
        or "\n".join(f"# {path}\n{text}" for path, text in proposal.files.items()),
    )
    for note in proposal.notes:
        say(f"review: {note}")
    place = f"`cd {site_directory}`, " if site_directory is not None else ""
    say(
        f"Nothing was changed on {host}. Next: review, then {place}`goldnode lock {proposal.stack}` and `goldnode "
        "check-catalog`."
    )


def _survey(
    host: str, inventory: str | None, become: bool, from_file: Path | None
) -> dict[str, Any]:
    """Return the survey in a file, or that of HOST."""
    from goldnode.fleet.nodes import adopt as adopting

    if from_file is not None:
        return adopting.read(from_file)
    return adopting.survey_host(host, inventory, ["--become"] if become else [])
