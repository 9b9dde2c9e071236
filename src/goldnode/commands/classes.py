"""Command `goldnode classes`, and `goldnode class export` and `bless`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands.options import FILE
from goldnode.commands.output import dumps, emit, reports, say, table


@click.command()
@reports("classes")
def classes(form: str) -> None:
    """List the node classes."""
    from goldnode.classdoc.load import load_catalog  # start-up time: it loads pydantic

    catalog = load_catalog()
    rows, lines = [], [("class", "backend", "gpu", "stack", "exercised", "")]
    for name, entry in sorted(catalog.classes.items()):
        item, gpu, stack = entry.item, entry.item.gpu, catalog.stacks[entry.item.stack].item
        rows.append(
            {
                "class": name,
                "backend": item.backend,
                "gpu": None if gpu is None else {"model": gpu.model, "count": gpu.count},
                "stack": item.stack,
                "exercised": stack.exercised,
                "simulated": item.simulated,
            }
        )
        lines.append(
            (
                name,
                item.backend,
                f"{gpu.count} x {gpu.model}" if gpu is not None else "-",
                item.stack,
                stack.exercised,
                "simulated hardware" if item.simulated else "",
            )
        )
    emit(form, {"classes": rows}, table(lines))


@click.group("class", no_args_is_help=True)
def class_() -> None:
    """Export the document of a node class, or propose its baseline."""


@class_.command()
@click.argument("name", metavar="CLASS")
def export(name: str) -> None:
    """Print the class document of CLASS as JSON."""
    from goldnode.classdoc.compile import class_document
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site

    click.echo(dumps(class_document(name, load_catalog(), load_site())))


@class_.command()
@click.argument(
    "captures",
    nargs=-1,
    required=True,
    type=FILE,
    metavar="CAPTURE...",
)
@click.option(
    "-c",
    "--class",
    "name",
    metavar="CLASS",
    help="Print the change to the file of this class, as a diff.",
)
@click.option(
    "--reason",
    metavar="TEXT",
    help="Accept links and sizes that differ from the facts, for this reason.",
)
@reports("baseline-proposal")
def bless(captures: tuple[Path, ...], name: str | None, reason: str | None, form: str) -> None:
    """Propose the baseline of a class from captures of healthy nodes.

    `goldnode-node capture` writes a CAPTURE. Review the proposal before you copy it into the class file.
    """
    from goldnode.classdoc import bless as blessing
    from goldnode.classdoc.load import load_catalog

    catalog = load_catalog()
    proposal = blessing.bless(captures, catalog, name, reason)
    # Without a class there is no file to change: the baseline is printed alone.
    patch = None if name is None else blessing.patch(proposal, catalog.node_class(name).file)
    emit(
        form,
        {"class": name, "baseline": proposal.baseline, "patch": patch, "notes": proposal.notes},
        patch if patch is not None else blessing.text(proposal),
    )
    for note in proposal.notes:
        say(f"review: {note}")
