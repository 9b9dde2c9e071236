"""`goldnode disks verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="DIR|CLASS…")
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where disk images are kept; default: $GOLDNODE_DISKS.",
)
@click.option(
    "--clones/--no-clones",
    default=True,
    show_default=True,
    help="Boot a second copy beside the first, and compare who they are.",
)
@click.option(
    "--simulated-gpu", is_flag=True, help="Two more boots with simulated GPUs: all of them, and one missing."
)
@click.option(
    "--memory",
    type=click.IntRange(512),
    default=2048,
    show_default=True,
    metavar="MIB",
    help="Of each guest.",
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where overlays go while it runs; default: beside the image.",
)
@click.option("--keep", is_flag=True, help="Leave overlays, consoles and what the guests said there.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as one JSON object by name.")
@click.option("--all", "everything", is_flag=True, help="Show what passed, too.")
def verify(
    names: tuple[str, ...],
    store: Path | None,
    clones: bool,
    simulated_gpu: bool,
    memory: int,
    work: Path | None,
    keep: bool,
    as_json: bool,
    everything: bool,
) -> None:
    """Boot disk images, twice each, and hold what comes up against their class.

    DIR is a built image, CLASS a node class with one (its newest). The image is never changed. The report is written beside it as verified.json. Exit
    code 0: every image is good as far as a virtual machine can show; 1: a check failed; 2: it could not be tried.
    """
    from goldnode.disks import verify as verification
    from goldnode.disks.model import find, store_directory

    found = [find(name, store_directory(store)) for name in names]
    reports = {}
    for built in found:
        report = verification.verify(
            built,
            work=work,
            clones=clones,
            gpus=simulated_gpu,
            memory=memory,
            keep=keep,
            say=lambda text, name=built.name: click.echo(f"{name}: {text}", err=True),  # type: ignore[misc]
        )
        reports[built.name] = report
        verification.write(report)
        if not as_json:
            click.echo(report.table(everything=everything))
    if as_json:
        click.echo(
            json.dumps({name: report.to_json() for name, report in reports.items()}, indent=1, sort_keys=True)
        )
    sys.exit(0 if all(report.outcome == "passed" for report in reports.values()) else 1)
