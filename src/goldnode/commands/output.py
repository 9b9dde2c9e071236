"""Output of commands: `--format`, JSON documents, tables, pages and errors.

A command that reports something is decorated with `reports("NAME")` and calls `emit` once. With `--format json`
standard output is one document of schema goldnode.NAME/1; messages go to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import click

from goldnode.commands.options import Decorator, RenamedOption
from goldnode.core import progress
from goldnode.core.errors import GoldnodeError

# Keys of click's Context.meta, which a command and its parents share.
_FORM, _SCHEMA, _EMITTED = "goldnode.form", "goldnode.schema", "goldnode.emitted"
ERROR_SCHEMA = "goldnode.error/1"


class FormatOption(RenamedOption):
    """`--format` of a command that prints documents of `schema`."""

    def __init__(self, *args: Any, schema: str, **given: Any) -> None:
        super().__init__(*args, **given)
        self.schema = schema


def _chosen(ctx: click.Context, option: click.Parameter, form: str) -> str:
    ctx.meta[_FORM] = form
    ctx.meta[_SCHEMA] = getattr(option, "schema", None)
    return form


class _Forms(click.Choice[str]):
    """The output formats, with a hint for a wrong one."""

    def __init__(self, forms: Sequence[str], hint: str) -> None:
        super().__init__(forms)
        self.hint = hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as problem:
            raise click.BadParameter(problem.message + self.hint, ctx=ctx, param=param) from None


def reports(name: str, *more: str, json_flag: bool = False, hint: str = "") -> Decorator:
    """Add `--format`, passed as `form`, to a command that prints documents of schema goldnode.`name`/1.

    `more` are formats besides text and json. `json_flag` accepts `--json`, the former spelling. `hint` is added to
    the error of a wrong format.
    """
    return click.option(
        "--format",
        "form",
        cls=FormatOption,
        schema=f"goldnode.{name}/1",
        former={"--json": "json"} if json_flag else None,
        type=_Forms(["text", "json", *more], hint),
        default="text",
        show_default=True,
        is_eager=True,  # an error in another option is reported in this format
        callback=_chosen,
        help="Output format.",
    )


def document(name: str, content: Mapping[str, Any]) -> str:
    """Return `content` as a JSON document of schema goldnode.`name`/1."""
    return dumps({"schema": f"goldnode.{name}/1", **content})


def emit(form: str, content: Mapping[str, Any], text: str | Callable[[], str] = "") -> None:
    """Print `content` as the command's JSON document, or `text`. A "schema" in `content` wins over the declared one."""
    progress.stop()
    if form == "json":
        # Shared by all contexts of one run, so that the error handler of the top group sees it.
        meta = click.get_current_context().meta
        click.echo(dumps({"schema": meta[_SCHEMA], **content}))
        meta[_EMITTED] = True
        return
    shown = text if isinstance(text, str) else text()
    if shown:
        click.echo(shown, nl=not shown.endswith("\n"))


def emit_rows(content: Mapping[str, Any], name: str, rows: Iterable[str]) -> None:
    """Print `content` as the command's JSON document, with `rows` as its last field `name`, one a line.

    Each row is the text of a JSON value with sorted keys. The rows are written as they come: they need not fit in memory. `name` sorts after the other fields.
    """
    progress.stop()
    meta = click.get_current_context().meta
    head = dumps({"schema": meta[_SCHEMA], **content})
    meta[_EMITTED] = True
    click.echo(f'{head.removesuffix("}").rstrip()},\n  "{name}": [', nl=False)
    before = "\n"
    for row in rows:
        click.echo(f"{before}    {row}", nl=False)
        before = ",\n"
    click.echo("\n  ]\n}" if before != "\n" else "]\n}")


def dumps(document: Mapping[str, Any]) -> str:
    """Return a JSON document as text, with sorted keys. Paths and dates become strings."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=str)


def emit_error(
    ctx: click.Context, problem: GoldnodeError | click.ClickException, given: Sequence[str]
) -> None:
    """Print an error as JSON if the command line `given` asks for it and no document was printed yet."""
    form = ctx.meta.get(_FORM)
    # Standard output is exactly one document: not a second one, and none for text.
    if (form != "json" and (form or not _asks_for_json(given))) or ctx.meta.get(_EMITTED):
        return
    cause = problem.__cause__
    if isinstance(cause, GoldnodeError):  # a command with exit statuses of its own wraps it
        problem = cause
    if isinstance(problem, GoldnodeError):
        error, file, line, remedy = problem.message, problem.file, problem.line, problem.remedy
    else:
        error, file, line, remedy = problem.format_message(), None, None, None
        if isinstance(problem, click.UsageError) and problem.ctx is not None:
            remedy = f"see `{problem.ctx.command_path} --help`"
    click.echo(
        dumps(
            {"schema": ERROR_SCHEMA, "error": error, "file": file, "line": line, "remedy": remedy}
        )
    )


def _asks_for_json(given: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON, if it could not be parsed as far as `--format`."""
    # Words after `--` belong to another program.
    words = list(given[: given.index("--")] if "--" in given else given)
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in aligned columns. The first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def say(text: str) -> None:
    """Print a message on standard error."""
    click.echo(text, err=True)


def html_page(template: str, /, **values: object) -> str:
    """Return a self-contained HTML page from a template of the commands. The style of all pages is page.css."""
    from importlib.resources import files  # start-up time: only for pages

    import jinja2

    folders = [
        str(files(package) / "templates") for package in ("goldnode.commands", "goldnode.classdoc")
    ]
    environment = jinja2.Environment(
        # A missing variable must fail instead of leaving an empty cell.
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(**values)
