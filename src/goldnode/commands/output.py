"""Options and output that all commands share: `--format`, JSON documents, tables and errors.

A command that reports something is decorated with `reports("NAME")` and calls `emit` once. With `--format json`
standard output is one document of schema goldnode.NAME/1; messages go to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from goldnode.core import progress
from goldnode.core.errors import GoldnodeError

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

# Keys of click's Context.meta, which a command and its parents share.
_FORM, _SCHEMA, _EMITTED = "goldnode.form", "goldnode.schema", "goldnode.emitted"
ERROR_SCHEMA = "goldnode.error/1"


class OutputOption(click.Option):
    """An option that accepts former spellings too, which neither help nor completion shows.

    `former` maps a spelling to the value it sets; None if the value follows on the command line.
    """

    def __init__(
        self, *args: Any, former: Mapping[str, str | None] | None = None, **given: Any
    ) -> None:
        super().__init__(*args, **given)
        self.former = former or {}

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register the option and its former spellings."""
        super().add_to_parser(parser, ctx)
        for name, value in self.former.items():
            many = "append" if self.multiple else "store"
            action = (
                {"action": many}
                if value is None
                else {"action": "store_const", "const": value, "nargs": 0}
            )
            parser.add_option(obj=self, opts=[name], dest=self.name, **action)


class FormatOption(OutputOption):
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


def options(*decorators: Decorator) -> Decorator:
    """Combine several options into one decorator."""

    def apply(command: Command) -> Command:
        for option in reversed(decorators):
            command = option(command)
        return command

    return apply


def grouped(name: str, kind: type[Any], *decorators: Decorator) -> Decorator:
    """Combine options whose values the command gets as one argument `name`: a frozen dataclass `kind`.

    The fields of `kind` are named after the options. A field without an option has its default.
    """
    names = [
        str(param.name) for param in click.command()(options(*decorators)(lambda: None)).params
    ]

    def apply(command: Command) -> Command:
        @wraps(command)
        def call(**given: Any) -> Any:
            own = {one: given.pop(one) for one in names}
            return command(**given, **{name: kind(**own)})

        return options(*decorators)(call)

    return apply


def document(name: str, content: Mapping[str, Any]) -> str:
    """Return `content` as a JSON document of schema goldnode.`name`/1."""
    return dumps({"schema": f"goldnode.{name}/1", **content})


def emit(form: str, content: Mapping[str, Any], text: str | Callable[[], str] = "") -> None:
    """Print `content` as the command's JSON document, or `text`. A "schema" in `content` wins over the declared one."""
    progress.stop()
    if form == "json":
        meta = click.get_current_context().meta
        click.echo(dumps({"schema": meta[_SCHEMA], **content}))
        meta[_EMITTED] = True
        return
    shown = text if isinstance(text, str) else text()
    if shown:
        click.echo(shown, nl=not shown.endswith("\n"))


def dumps(document: Mapping[str, Any]) -> str:
    """Return a JSON document as text, with sorted keys. Paths and dates become strings."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=str)


def emit_error(
    ctx: click.Context, problem: GoldnodeError | click.ClickException, given: Sequence[str]
) -> None:
    """Print an error as JSON if the command line `given` asks for it and no document was printed yet."""
    form = ctx.meta.get(_FORM)
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


# Options with one name and one help text in all commands.

OFFLINE_INDEXES = click.option(
    "--offline", is_flag=True, help="Use the cached archive indexes without refreshing them."
)
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)
IMAGE_FORMAT = " The format of a disk image is given with --image-format."
KEEP_DAYS = click.option(
    "--keep-days",
    "days",
    cls=OutputOption,
    former={"--days": None},
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Do not remove anything younger than this.",
)
LIMIT = click.option(
    "-l",
    "--limit",
    metavar="PATTERN",
    help="Select only the hosts that match this Ansible pattern.",
)
BECOME = click.option("-b", "--become", is_flag=True, help="Become root on the host.")
WAIT = click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="Time to wait for another process that uses the mirror; 0 fails at once.",
)
REGISTRY = click.option(
    "--to",
    "to",
    metavar="HOST[:PORT][/PREFIX]",
    envvar="GOLDNODE_REGISTRY",
    show_default="$GOLDNODE_REGISTRY",
    help="Registry to use.",
)
CERTIFICATE = click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="PEM certificate of the authority that signed the server's certificate.",
)


def out_directory(default: str) -> Decorator:
    """Return the option `--out` for a directory. `default` is the directory used without it."""
    return click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        show_default=default,
        help="Directory to write to.",
    )


def store(name: str, variable: str, directory: str) -> Decorator:
    """Return the option `--store`; its parameter is called `name`."""
    return click.option(
        "--store",
        name,
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        show_default=f"${variable}, else {directory}",
        help="Image store.",
    )


def image_store(name: str = "store") -> Decorator:
    """Return the option `--store` of `goldnode images`."""
    return store(name, "GOLDNODE_IMAGES", ".goldnode/images")


def disk_store(name: str = "store") -> Decorator:
    """Return the option `--store` of `goldnode disks`."""
    return store(name, "GOLDNODE_DISKS", ".goldnode/disks")


@dataclass(frozen=True)
class LockOptions:
    """How to lock: only check the locks, upgrade packages, use cached indexes alone."""

    only_check: bool = False
    upgrade: bool = False
    offline: bool = False

    def check(self) -> None:
        """Refuse options that exclude each other."""
        if self.only_check and self.upgrade:
            raise click.UsageError("--check and --upgrade exclude each other")


def lock_options(upgrade: str, offline: Decorator) -> Decorator:
    """Return the options of a command that writes locks. `upgrade` is the help of `--upgrade`."""
    return grouped(
        "how",
        LockOptions,
        click.option(
            "--check",
            "only_check",
            is_flag=True,
            help="Write nothing. Report vanished and changed packages; exit with 1 if a lock is unusable.",
        ),
        click.option("--upgrade", is_flag=True, help=upgrade),
        offline,
    )


@dataclass(frozen=True)
class BuildOptions:
    """How to build: without downloads, twice to compare the results, or not at all."""

    offline: bool = False
    twice: bool = False
    dry_run: bool = False


def build_options(compared: str) -> Decorator:
    """Return the options of a command that builds. `compared` are the results that `--twice` compares."""
    return grouped(
        "how",
        BuildOptions,
        click.option(
            "--offline",
            is_flag=True,
            help="Download nothing; all packages must be in the pool already.",
        ),
        click.option(
            "--twice",
            is_flag=True,
            help=f"Build a second time, in another directory from the pool alone, and compare the {compared}.",
        ),
        DRY_RUN,
    )


MATRIX = click.option(
    "--matrix",
    "matrix_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    show_default="$GOLDNODE_MATRIX, else goldnode's own",
    help="Image matrix.",
)
DEFINITION = click.option(
    "--definition",
    "definition_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    show_default="$GOLDNODE_DISK_DEFINITION, else goldnode's own",
    help="Disk definition.",
)
BACKEND = click.option(
    "--backend",
    metavar="NAME",
    show_default="as the image declares",
    help="Backend to inspect for.",
)
POLICY = click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    show_default="goldnode's own",
    help="Purity policy (purity.yml), with the waivers of the site.",
)


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
