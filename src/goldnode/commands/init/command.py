"""Command `goldnode init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.options import DIRECTORY, options
from goldnode.commands.output import emit, reports

if TYPE_CHECKING:
    from goldnode.commands.init.request import InitAnswers

_QUESTIONS = options(
    click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="HOST",
        help="Host of the inventory, or a range such as gpu[01:08]; repeat it for more.",
    ),
    click.option("--local", is_flag=True, help="The host is this machine."),
    click.option(
        "-c", "--class", "node_class", metavar="CLASS", help="Class of the catalog for the hosts."
    ),
    click.option(
        "--gpu",
        metavar="GPU",
        help="GPUs of each host: auto (one NVIDIA card of any model), none, MODEL, or 'COUNT x MODEL'.",
    ),
    click.option(
        "--stack", metavar="STACK", help="Stack of the catalog: OS, kernel, driver and engine."
    ),
    click.option(
        "--name",
        metavar="NAME",
        show_default="from the GPU",
        help="Name of a class that the catalog does not have.",
    ),
    click.option(
        "--graphics",
        is_flag=True,
        help="A monitor is on an NVIDIA card: add the stack's optional part of that name.",
    ),
    click.option(
        "--user", metavar="USER", help="SSH user; one other than root becomes root with sudo."
    ),
)


def _terminal() -> bool:
    """Return whether a person can be asked."""
    return sys.stdin.isatty()


@click.command()
@click.argument("directory", type=DIRECTORY, default=".")
@_QUESTIONS
@click.option(
    "-y", "--yes", is_flag=True, help="Use the default of every question that no option answers."
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist with another content.")
@reports("init")
def init(directory: Path, yes: bool, overwrite: bool, form: str, **given: Any) -> None:
    """Write a site directory: inventory, class, site file and ansible.cfg.

    Three questions decide it: the hosts, their GPUs, and their OS and stack. Options answer them too. The result is
    checked, and the next commands are printed. No file is replaced without permission.

    Exit status: 0 written, 1 written and the check blocks the class, 2 an error.
    """
    from goldnode.commands.init import request  # start-up time: it loads pydantic

    flags: InitAnswers = request.InitAnswers(**given)
    ask = None if yes or not _terminal() else request.ask
    if ask is None and not yes:
        request.require_answers(flags)

    def may_replace(path: Path) -> bool:
        question = f"{path} exists with another content. Replace it?"
        return overwrite or (ask is not None and click.confirm(question, default=False, err=True))

    done = request.run(directory, flags, ask, may_replace)
    emit(form, done.document(), done.text)
    sys.exit(1 if done.report.fatal else 0)
