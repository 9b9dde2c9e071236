"""Command `goldnode schema`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("kind", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "markdown"]),
    default="json",
    show_default=True,
    help="Output format: JSON Schema, or the reference of all keys.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Directory to write all schemas to, or with markdown the file to write.",
)
def schema(kind: str | None, form: str, out: Path | None) -> None:
    """Print or write the JSON Schemas of all files and documents.

    With KIND, print the schema of that file or document. Without it, write all schemas to --out, or to schemas/
    by default. With `--format markdown`, print or write docs/reference/configuration.md, which documents every key.
    """
    from goldnode.commands.schema import reference  # start-up time: it loads pydantic
    from goldnode.commands.schema.kinds import KINDS, WRITTEN, schema_text, write_schemas
    from goldnode.core.data import data, installed
    from goldnode.core.errors import CatalogError, nearest

    known = WRITTEN if form == "markdown" else KINDS
    if kind is not None and kind not in known:
        raise CatalogError(f'there is no schema "{kind}"', remedy=nearest(kind, known))
    if form == "markdown":
        text = reference.page() if kind is None else reference.section(kind)
        if out is None:
            click.echo(text, nl=False)
        else:
            out.write_text(text, encoding="utf-8")
            click.echo(f"wrote {out}")
        return
    if kind is not None:
        click.echo(schema_text(kind), nl=False)
        return
    # A wheel's own schemas stay as they are.
    for path in write_schemas(out or (Path("schemas") if installed() else data("schemas"))):
        click.echo(f"wrote {path}")
