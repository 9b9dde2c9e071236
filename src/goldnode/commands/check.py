"""`goldnode check`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from goldnode.commands.output import LIMIT, emit, reports


def _python(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return a Python version. Raises BadParameter for text that is not one."""
    if value is not None and re.fullmatch(r"3\.\d+(\.\d+)?", value) is None:
        raise click.BadParameter(f'"{value}" is not a version of Python 3, for example 3.12.')
    return value


@click.command()
@click.option("-c", "--class", "classes", multiple=True, metavar="CLASS", help="Check this node class.")
@click.option(
    "-s",
    "--stack",
    "stacks",
    multiple=True,
    metavar="STACK",
    help="Check this stack alone, without the GPUs of any class.",
)
@click.option(
    "-i",
    "--inventory",
    "inventories",
    multiple=True,
    metavar="PATH",
    help="Check the classes and the cohorts of the hosts in this inventory.",
)
@LIMIT
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="IMAGE",
    help="Check this image on each class or stack: a reference, docker:REF, or a file with its metadata.",
)
@click.option(
    "--requirements",
    "requirements",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Check this Python requirements file on each class or stack.",
)
@click.option(
    "--python",
    metavar="VERSION",
    callback=_python,
    show_default="the version in the header of a compiled file",
    help="Python that installs the requirements files, for example 3.12.",
)
@click.option(
    "--gpu",
    "model",
    metavar="MODEL",
    help="GPU model of the nodes, for classes with `model: auto`.",
)
@reports("check", "sarif")
@click.option(
    "--require-lock",
    is_flag=True,
    help="Exit with 1 if a class cannot be applied because its stack has no lock.",
)
@click.option("--explain", metavar="RULE", help="Explain a rule: what it compares, why, and its sources.")
@click.option("--list-rules", is_flag=True, help="List all rules.")
def check(
    form: str,
    require_lock: bool,
    explain: str | None,
    list_rules: bool,
    **subjects: Any,
) -> None:
    """Check that classes, stacks, images and requirements are compatible.

    Without any of them, all classes are checked.

    Exit status: 0 nothing blocks, 1 a finding blocks or a lock is missing (with --require-lock), 2 it could not
    be checked.
    """
    from goldnode.compat import report

    if explain is not None or list_rules:
        from goldnode.compat.check import registry, rule

        rules = [rule(explain)] if explain is not None else [item for _, item in sorted(registry().items())]
        width = max(len(item.id) for item in rules)
        emit(
            form,
            {
                "schema": "goldnode.rules/1",
                "rules": [
                    {"id": item.id, "title": item.title, "explanation": item.explanation} for item in rules
                ],
            },
            report.explain(rules[0])
            if explain is not None
            else "\n".join(f"{item.id:<{width}}  {item.title}" for item in rules),
        )
        return
    if subjects["limit"] is not None and not subjects["inventories"]:
        raise click.UsageError("--limit needs an inventory (-i).")
    from goldnode.commands.check_request import CheckRequest, compatibility_report

    found = compatibility_report(CheckRequest(**subjects))
    if form == "sarif":
        click.echo(report.dumps(report.sarif(found)))
    else:
        emit(form, report.document(found), lambda: report.text(found))
    for fault in found.faults:
        click.echo(f"error: {fault}", err=True)
    if found.faults:
        sys.exit(2)
    sys.exit(1 if found.fatal or (require_lock and found.unlocked) else 0)
