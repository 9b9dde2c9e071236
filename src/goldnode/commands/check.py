"""`goldnode check`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.option("-c", "--class", "classes", multiple=True, help="Check this node class.")
@click.option(
    "-s", "--stack", "stacks", multiple=True, help="Check this stack alone, with the GPUs of no class."
)
@click.option(
    "-i",
    "--inventory",
    "inventories",
    multiple=True,
    help="Check the classes of this inventory's hosts, and its cohorts.",
)
@click.option("-l", "--limit", help="Only hosts of the inventory that this pattern of Ansible's names.")
@click.option(
    "--image",
    "images",
    multiple=True,
    help="On each of them: an image reference, docker:REF, or a file of its metadata.",
)
@click.option(
    "--requirements",
    "requirements",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="On each of them: a Python requirements file.",
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "sarif"]), default="text", show_default=True
)
@click.option(
    "--require-lock",
    is_flag=True,
    help="End with 1 where a class cannot be applied yet, because its stack has no lock.",
)
@click.option("--explain", metavar="RULE", help="Tell what RULE compares, why, and what it rests on.")
@click.option("--list-rules", is_flag=True, help="List all rules.")
def check(
    classes: tuple[str, ...],
    stacks: tuple[str, ...],
    inventories: tuple[str, ...],
    limit: str | None,
    images: tuple[str, ...],
    requirements: tuple[Path, ...],
    form: str,
    require_lock: bool,
    explain: str | None,
    list_rules: bool,
) -> None:
    """Hold classes, stacks, images and requirements against what is known to fit; by default all classes.

    Exit status: 0 nothing blocks, 1 something does (with --require-lock also a missing lock), 2 it could not be checked.
    """
    from goldnode.compat import report

    if explain is not None or list_rules:
        from goldnode.compat.check import registry, rule

        if explain is not None:
            click.echo(report.explain(rule(explain)))
            return
        width = max(len(name) for name in registry())
        for name, item in sorted(registry().items()):
            click.echo(f"{name:<{width}}  {item.title}")
        return
    if limit is not None and not inventories:
        raise click.UsageError("--limit needs an inventory (-i).")
    from goldnode.commands.check_request import look

    found = look(classes, stacks, inventories, limit, images, requirements)
    if form == "json":
        click.echo(report.dumps(report.document(found)))
    elif form == "sarif":
        click.echo(report.dumps(report.sarif(found)))
    else:
        click.echo(report.text(found))
    sys.exit(1 if found.fatal or (require_lock and found.unlocked) else 0)
