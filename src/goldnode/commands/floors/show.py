"""Command `goldnode floors show`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands.floors import TRUST, trusted
from goldnode.commands.options import FILE
from goldnode.commands.output import emit, reports


@click.command()
@click.argument("baseline", type=FILE, metavar="BASELINE")
@TRUST
@reports("floors-baseline")
def show(baseline: Path, trust: tuple[Path, ...], form: str) -> None:
    """Show a baseline: its floors, its conditions, and who was left out.

    With a public key, the baseline must be signed by it.

    Exit status: 0, or 2 if the baseline could not be read or its signature is wrong.
    """
    # numpy: only the extra `floors` installs it.
    from goldnode.commands.floors import text as floors_text
    from goldnode.core import extras

    extras.require("floors")
    from goldnode.floors import baseline as baselines  # numpy: only the extra `floors` installs it

    learned = baselines.read(baseline, trusted(trust))
    emit(form, floors_text.data(learned), lambda: floors_text.baseline_text(learned))
