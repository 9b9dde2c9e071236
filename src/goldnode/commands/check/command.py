"""Command `goldnode check`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.options import DIRECTORY, LIMIT, REQUIRE_LOCK
from goldnode.commands.output import emit, reports, say

if TYPE_CHECKING:
    from goldnode.commands.check.request import CheckRequest


def _python(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return a Python version. Raises BadParameter for text that is not one."""
    if value is not None and re.fullmatch(r"3\.\d+(\.\d+)?", value) is None:
        raise click.BadParameter(f'"{value}" is not a version of Python 3, for example 3.12.')
    return value


@click.command()
@click.option(
    "-c", "--class", "classes", multiple=True, metavar="CLASS", help="Check this node class."
)
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
    help="Check this image on each class or stack: a reference, docker:REF, registry:REF (read from its registry), or a file with its metadata.",
)
@click.option(
    "--requirements",
    "requirements",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Check the Python packages of this file on each class or stack: requirements, uv.lock[EXTRA], pylock.toml, poetry.lock, "
    "pyproject.toml, environment.yml, Dockerfile.",
)
@click.option(
    "--python",
    metavar="VERSION",
    callback=_python,
    show_default="the version in the header of a compiled file",
    help="Python that installs the requirements files, for example 3.12.",
)
@click.option(
    "--read-wheels",
    is_flag=True,
    help="Read the code for GPUs in pinned wheels that the facts do not have, from pip's indexes: metadata and libraries, by ranges.",
)
@click.option(
    "--gpu",
    "model",
    metavar="MODEL",
    help="GPU model of the nodes, for classes with `model: auto`.",
)
@click.option(
    "--to",
    metavar="STACK|LOCK",
    help="Compare the classes with the same classes on this stack, or on the lock in this file.",
)
@click.option(
    "--rollouts",
    type=DIRECTORY,
    metavar="DIR",
    help="With --to, write the rollout document of each class that can move to this directory.",
)
@reports("check", "sarif", "html")
@REQUIRE_LOCK
@click.option(
    "--explain", metavar="RULE", help="Explain a rule: what it compares, why, and its sources."
)
@click.option("--list-rules", is_flag=True, help="List all rules.")
def check(
    form: str,
    require_lock: bool,
    explain: str | None,
    list_rules: bool,
    to: str | None,
    *,
    rollouts: Path | None,
    **subjects: Any,
) -> None:
    """Check that classes, stacks, images and requirements are compatible.

    Without any of them, the classes of your site are checked; all classes if it declares none.

    With --to, report the consequences of an upgrade: findings that are new, gone or changed, the parts that move
    together, their order, and a rollout document for each class or the reason why there is none.

    Exit status: 0 nothing blocks, 1 a finding blocks or a lock is missing (with --require-lock), 2 it could not
    be checked. With --to: 0 each class has a rollout document, 1 a class has none, 2 it could not be compared.
    """
    from goldnode.compat import report  # start-up time: it loads pydantic

    if explain is not None or list_rules:
        from goldnode.compat.check import registry, rule

        if explain is not None:
            rules = [rule(explain)]
            text = report.explain(rules[0])
        else:
            rules = [item for _, item in sorted(registry().items())]
            width = max(len(item.id) for item in rules)
            text = "\n".join(f"{item.id:<{width}}  {item.title}" for item in rules)
        emit(
            form,
            {
                "schema": "goldnode.rules/1",
                "rules": [
                    {"id": item.id, "title": item.title, "explanation": item.explanation}
                    for item in rules
                ],
            },
            text,
        )
        return
    if subjects["limit"] is not None and not subjects["inventories"]:
        raise click.UsageError("--limit needs an inventory (-i).")
    from goldnode.commands.check.request import CheckRequest, compatibility_report

    # Before the formats: html and --rollouts exist with --to alone.
    if to is not None:
        _compare(form, CheckRequest(**subjects), to, rollouts)
        return
    if form == "html" or rollouts is not None:
        raise click.UsageError(f"{'--format html' if form == 'html' else '--rollouts'} needs --to.")
    judged = compatibility_report(CheckRequest(**subjects))
    if form == "sarif":
        click.echo(report.dumps(report.sarif(judged)))
    else:
        emit(form, report.document(judged), lambda: report.text(judged))
    for fault in judged.faults:
        click.echo(f"error: {fault}", err=True)
    if judged.faults:
        sys.exit(2)
    sys.exit(1 if judged.fatal or (require_lock and judged.unlocked) else 0)


def _compare(form: str, request: CheckRequest, to: str, rollouts: Path | None) -> None:
    """Report the consequences of an upgrade to `to`."""
    if form == "sarif" or request.stacks:
        raise click.UsageError(
            f"--to does not go with {'--format sarif' if form == 'sarif' else '--stack'}."
        )
    from goldnode.commands.check import what_if_report
    from goldnode.commands.check.what_if import what_if

    comparison, faults = what_if(request, to)
    if form == "html":
        click.echo(what_if_report.html(comparison), nl=False)
    else:
        emit(
            form,
            comparison.model_dump(mode="json", by_alias=True),
            lambda: what_if_report.text(comparison),
        )
    for path in what_if_report.write_rollouts(comparison, rollouts) if rollouts is not None else ():
        say(f"wrote {path}")
    for fault in faults:
        click.echo(f"error: {fault}", err=True)
    if faults:
        sys.exit(2)
    sys.exit(1 if comparison.refused else 0)
