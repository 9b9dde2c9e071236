"""Command `goldnode rollout sign`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands.options import FILE
from goldnode.commands.output import emit, reports
from goldnode.commands.rollout import DOCUMENT


@click.command()
@DOCUMENT
@click.option(
    "--key",
    type=FILE,
    required=True,
    metavar="FILE",
    help="Secret key of the author, PEM (ed25519 or ECDSA).",
)
@reports("rollout-sign")
def sign(document: Path, key: Path, form: str) -> None:
    """Sign a rollout document as its author.

    The signature is in DOCUMENT.dsse. Where the site file has `fleet.document_key`, a document is refused without one.
    """
    from goldnode.fleet.control import document_files  # start-up time: it loads pydantic

    path = document_files.sign(document, key)
    emit(form, {"document": str(document), "signature": str(path)}, f"wrote {path}")
