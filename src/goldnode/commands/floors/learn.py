"""Command `goldnode floors learn`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.dual import signing_key
from goldnode.commands.floors import RESULTS, percent
from goldnode.commands.options import FILE, NEW_FILE, grouped
from goldnode.commands.output import emit, reports

if TYPE_CHECKING:
    from goldnode.floors.learn import LearnSettings


@dataclass(frozen=True)
class LearnOptions:
    """Which results to take, and how far a node may be below the others."""

    class_name: str | None
    platform: str | None
    margins: tuple[str, ...]


@click.command()
@RESULTS
@click.option(
    "--out",
    type=NEW_FILE,
    required=True,
    metavar="FILE",
    help="File of the baseline. Its signature is in FILE.dsse.",
)
@click.option(
    "--key",
    type=FILE,
    metavar="FILE",
    show_default="`fleet.signing_key` of the site file, else unsigned",
    help="Secret key that signs the baseline, PEM (ed25519 or ECDSA).",
)
@grouped(
    "how",
    LearnOptions,
    click.option("--class", "class_name", metavar="CLASS", help="Take the results of this class."),
    click.option(
        "--platform",
        metavar="PLATFORM",
        help="Take the results of this platform, such as 'NVIDIA H200 x 8'.",
    ),
    click.option(
        "--margin",
        "margins",
        multiple=True,
        metavar="[METRIC=]PERCENT",
        show_default="3%",
        help="Loss below the median that is accepted, for all metrics or for one. Repeatable.",
    ),
)
@reports("floors-baseline")
def learn(
    results: tuple[Path, ...], out: Path, key: Path | None, how: LearnOptions, form: str
) -> None:
    """Learn the floors of a class from canary results, and sign them.

    RESULTS are files or directories that `goldnode canary run` wrote. A floor is the median of the devices less the
    margin, or less three robust standard deviations if that is lower. Slow nodes leave the baseline and are
    listed; nothing is learnt if more than a fifth would leave, or if the devices have two modes. With fewer than
    eight devices or three nodes, each device gets a floor of its own, and other nodes are not judged.

    Exit status: 0 the baseline was written, 2 nothing could be learnt, or a file could not be read.
    """
    # numpy: only the extra `floors` installs it.
    from goldnode.commands.floors import text as floors_text
    from goldnode.core import extras

    extras.require("floors")
    from goldnode.floors import baseline, learn  # numpy: only the extra `floors` installs it
    from goldnode.floors import results as canary

    key = signing_key(key)
    learned = learn.learn(canary.read(results), _settings(how))
    baseline.write(learned, out, key)
    written = baseline.FloorBaseline(learned, out, None)
    signed = "signed" if key is not None else "not signed: name a key with --key"
    emit(
        form,
        floors_text.data(written),
        lambda: f"wrote {out} ({signed})\n\n{floors_text.baseline_text(written)}",
    )


def _settings(how: LearnOptions) -> LearnSettings:
    """Return the settings that the options give."""
    # numpy: only the extra `floors` installs it.
    from goldnode.floors.learn import MARGIN, LearnSettings

    margin, margins = MARGIN, {}
    for text in how.margins:
        name, equals, value = text.rpartition("=")
        if equals:
            margins[name] = percent(value)
        else:
            margin = percent(value)
    return LearnSettings(margin, margins, how.class_name, how.platform)
