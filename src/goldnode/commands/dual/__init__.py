"""The group `goldnode dual`: the commands `record` and `compare`, and `text` with their reports."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands import LazyGroup
from goldnode.commands.options import FILE

_SECTIONS = {
    "Dual runs": {
        "record": (
            "dual.record",
            "Run a model or a command on one stack, and write what it computes as a record.",
        ),
        "compare": (
            "dual.compare",
            "Compare two records: outputs, first divergence, sampled outputs and times.",
        ),
    },
}


KEY = click.option(
    "--key",
    type=FILE,
    metavar="FILE",
    show_default="`fleet.signing_key` of the site file, else unsigned",
    help="Secret key that signs, PEM (ed25519 or ECDSA). The signature is in FILE.dsse beside what it signs.",
)


def signing_key(given: Path | None) -> Path | None:
    """Return the file of the secret key: the one given, else that of the site file, else none."""
    from goldnode.core.site import load_site  # start-up time: it loads pydantic

    site = load_site()
    if given is None and site.fleet.signing_key:
        return site.resolve(site.fleet.signing_key)
    return given


@click.group(cls=LazyGroup, sections=_SECTIONS)
def dual() -> None:
    """Compare what two stacks, images or backends compute from the same inputs."""
