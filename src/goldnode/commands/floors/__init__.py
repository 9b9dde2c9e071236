"""The group `goldnode floors`: the commands `learn`, `show` and `check`, and `text` with their reports."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands import LazyGroup
from goldnode.commands.options import EXISTING, FILE

_SECTIONS = {
    "Baselines": {
        "learn": (
            "floors.learn",
            "Learn the floors of a class from canary results, and sign them.",
        ),
        "show": (
            "floors.show",
            "Show a baseline: its floors, its conditions, and who was left out.",
        ),
    },
    "Verdicts": {
        "check": (
            "floors.check",
            "Check canary results against a baseline, or against results before a change.",
        ),
    },
}
RESULTS = click.argument(
    "results",
    nargs=-1,
    required=True,
    type=EXISTING,
    metavar="RESULTS...",
)
TRUST = click.option(
    "--trust",
    multiple=True,
    type=FILE,
    metavar="FILE",
    show_default="`fleet.public_key` of the site file",
    help="PEM file of trusted public keys. Repeatable.",
)


@click.group(cls=LazyGroup, sections=_SECTIONS)
def floors() -> None:
    """Learn performance floors from canary results, and check results against them."""


def trusted(given: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the files of public keys: those given, else that of the site file, else none."""
    from goldnode.core.site import load_site  # start-up time: it loads pydantic

    if given:
        return given
    site = load_site()
    return (site.resolve(site.fleet.public_key),) if site.fleet.public_key else ()


def percent(text: str) -> float:
    """Return a margin such as 3% as a fraction. Raises click.BadParameter."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        # Refused below, with the message for a number out of range.
        value = -1.0
    if not text.endswith("%") or not 0 < value < 1:
        raise click.BadParameter(f'"{text}" is no percentage between 0 and 100; write it as 3%')
    return value
