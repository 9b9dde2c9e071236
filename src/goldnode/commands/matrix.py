"""`goldnode matrix`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--format", "form", type=click.Choice(["text", "markdown", "html"]), default="text", show_default=True
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default: print it."
)
def matrix(form: str, out: Path | None) -> None:
    """Print the blessed matrix: every stack and class with what runs on it, and what speaks against it.

    It is judged for the day of the compatibility facts: the same catalog, locks and facts give the same matrix.
    """
    from goldnode.classdoc import blessed_combinations as tables
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site

    shown = {"text": tables.text, "markdown": tables.markdown, "html": tables.html}[form](
        tables.matrix(load_catalog(), load_site())
    )
    if out is None:
        click.echo(shown, nl=False)
        return
    out.write_text(shown, encoding="utf-8")
    click.echo(f"wrote {out}")
