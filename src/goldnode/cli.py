"""Entry point of `goldnode …`: every command is one call into the package.

An expected error, or a file that cannot be read or written, prints one line to stderr and exits 2. Anything
else is a bug in goldnode and keeps its traceback.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from goldnode.commands import LazyGroup
from goldnode.core import extras
from goldnode.core.errors import GoldnodeError

# Commands with a module of their own (`goldnode.commands.NAME`) and their line in `goldnode --help`. The
# module is imported when the command runs.
_ELSEWHERE = {
    "images": "Lock, build, inspect, smoke, publish and promote the container images.",
    "disks": "Lock, build, boot, update and publish the disk images of node classes.",
    "check": "Hold classes, stacks, images and requirements against what is known to fit.",
    "lock": "Resolve STACK with apt and write STACK.lock.yml.",
    "modules": "Build kernel modules once, as a package for the mirror; tell which build.",
    "mirror": "Fetch what locks name and publish it as signed apt repositories.",
    "plan": "Show what site.yml would do to the hosts of an inventory.",
    "node-program": "Write goldnode-node, the program of the nodes, to a file.",
    "matrix": "Print the blessed matrix of stacks and classes.",
    "xid": "Explain an Xid or SXid: a number, or lines of a kernel log.",
}


class _Commands(LazyGroup):
    """A group that prints a GoldnodeError, or an OSError about a file, as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(super().list_commands(ctx))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (GoldnodeError, OSError, ModuleNotFoundError) as problem:
            error = _error(problem)
            if error is None or ctx.params.get("debug"):
                raise
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)


def _error(problem: GoldnodeError | OSError | ModuleNotFoundError) -> GoldnodeError | None:
    """Return the error that a user reads; None if `problem` is a bug."""
    if isinstance(problem, ModuleNotFoundError):
        extra = extras.of_module(problem.name)
        return None if extra is None else extras.missing([extra])
    return problem if isinstance(problem, GoldnodeError) else _of_a_file(problem)


# Errors of reading and writing that the kernel reports without a file name.
_OF_FILES = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


def _of_a_file(problem: OSError) -> GoldnodeError | None:
    """Return the error for a file that cannot be used; None if `problem` is not about a file."""
    if isinstance(problem.filename, str | bytes | Path):
        name = (
            problem.filename.decode(errors="backslashreplace")
            if isinstance(problem.filename, bytes)
            else problem.filename
        )
        return GoldnodeError(
            f"cannot be read or written: {problem.strerror}",
            file=name,
            remedy="correct its name, its directory, or who may use it",
        )
    if problem.errno in _OF_FILES:
        return GoldnodeError(
            f"a file cannot be read or written: {problem.strerror}", remedy="`goldnode --debug …` shows which"
        )
    return None


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from goldnode.compat.report import version
    from goldnode.core.program_file import payload

    click.echo(f"goldnode {version()}")
    try:
        click.echo(f"goldnode-node {payload(content=False)['sha256']}")
    except GoldnodeError as error:
        click.echo(f"goldnode-node: {error}", err=True)
    ctx.exit()


@click.group(
    cls=_Commands,
    elsewhere={name: (name.replace("-", "_"), text) for name, text in _ELSEWHERE.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version, and the node program's digest.",
)
@click.option("--debug", is_flag=True, help="Show the trace of an error.")
def main(debug: bool) -> None:
    """Turn one declared GPU node class into running nodes and images that carry the same locked stack."""
    # Do not inherit the caller's umask: files for nodes, images and published directories need fixed modes.
    # Secret files are created with an explicit mode.
    os.umask(0o022)
    # If SIGCHLD is ignored, the kernel discards exit statuses, and `subprocess` reports success for every
    # program.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@main.command()
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def classes(form: str) -> None:
    """List the node classes."""
    from goldnode.classdoc.load import load_catalog

    catalog = load_catalog()
    if form == "json":
        told = []
        for name, entry in sorted(catalog.classes.items()):
            item, gpu, stack = entry.item, entry.item.gpu, catalog.stacks[entry.item.stack].item
            told.append(
                {
                    "class": name,
                    "backend": item.backend,
                    "gpu": None if gpu is None else {"model": gpu.model, "count": gpu.count},
                    "stack": item.stack,
                    "exercised": stack.exercised,
                    "simulated": item.simulated,
                }
            )
        click.echo(json.dumps(told, indent=2, sort_keys=True, ensure_ascii=False))
        return
    rows = [("class", "backend", "gpu", "stack", "exercised", "")]
    for name, entry in sorted(catalog.classes.items()):
        item, gpu = entry.item, entry.item.gpu
        stack = catalog.stacks[item.stack].item
        hardware = f"{gpu.count} x {gpu.model}" if gpu is not None else "-"
        rows.append(
            (
                name,
                item.backend,
                hardware,
                item.stack,
                stack.exercised,
                "simulated hardware" if item.simulated else "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@main.group("class")
def class_group() -> None:
    """Work with one node class."""


@class_group.command("export")
@click.argument("name")
def class_export(name: str) -> None:
    """Print the class document of NAME as JSON."""
    from goldnode.classdoc.compile import class_document
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site

    document = class_document(name, load_catalog(), load_site())
    click.echo(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False))


@class_group.command("bless")
@click.argument(
    "captures", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--class", "name", help="Class they are nodes of; then the change of its file is printed.")
@click.option(
    "--reason",
    help="Why links and sizes other than the facts say are right: they are this hardware by design.",
)
def class_bless(captures: tuple[Path, ...], name: str | None, reason: str | None) -> None:
    """Turn CAPTURES of good nodes (`goldnode-node capture`) into the baseline of a class, for review."""
    from goldnode.classdoc import bless as blessing
    from goldnode.classdoc.load import load_catalog

    catalog = load_catalog()
    proposal = blessing.bless(captures, catalog, name, reason)
    click.echo(
        blessing.text(proposal) if name is None else blessing.patch(proposal, catalog.node_class(name).file),
        nl=False,
    )
    for note in proposal.notes:
        click.echo(f"review: {note}", err=True)


@main.command()
@click.argument("host")
@click.option(
    "-i", "--inventory", help="Inventory that HOST is a name of; without it HOST is an ssh destination."
)
@click.option("--name", help="Name of the class; default: made of the GPU model, or of the release.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Catalog directory to write the files to; default: print them.",
)
@click.option("--become", is_flag=True, help="Look as root through Ansible's become.")
@click.option(
    "--survey",
    "from_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Propose from a survey kept earlier.",
)
@click.option("--keep", type=click.Path(dir_okay=False, path_type=Path), help="Keep the survey in this file.")
def adopt(
    host: str,
    inventory: str | None,
    name: str | None,
    out: Path | None,
    become: bool,
    from_file: Path | None,
    keep: Path | None,
) -> None:
    """Inspect HOST, read-only, and propose a class and a stack for review."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.fleet import adopt as adopting

    survey = (
        adopting.read(from_file)
        if from_file
        else adopting.look(host, inventory, ["--become"] if become else [])
    )
    if keep is not None:
        keep.write_text(json.dumps(survey, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    proposal = adopting.propose(survey, name or adopting.name_for(survey), load_catalog(), load_site())
    if out is not None:
        for written in adopting.write(proposal, out):
            click.echo(f"wrote {written}")
    else:
        for path, text in proposal.files.items():
            click.echo(f"# {path}\n{text}")
    for note in proposal.notes:
        click.echo(f"review: {note}", err=True)
    click.echo(
        f"Nothing was changed on {host}. Next: review, then `goldnode lock {proposal.stack}` and `goldnode "
        "check-catalog`.",
        err=True,
    )


@main.command()
@click.argument("kind", required=False)
@click.option("--format", "form", type=click.Choice(["json", "markdown"]), default="json", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory to write all schemas to; with markdown, the file to write.",
)
def schema(kind: str | None, form: str, out: Path | None) -> None:
    """Print the JSON Schema of one KIND of document, or write all schemas (default: to schemas/).

    With --format markdown: print or write docs/reference/configuration.md, which documents every key of the files that you
    write, or only the section about KIND.
    """
    from goldnode.commands import reference
    from goldnode.commands.schema import KINDS, WRITTEN, schema_text, write_schemas
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
    for path in write_schemas(out or (Path("schemas") if installed() else data("schemas"))):
        click.echo(f"wrote {path}")


@main.command("check-catalog")
@click.option(
    "--require-lock",
    is_flag=True,
    help="End with 1 where a class cannot be applied yet, because its stack has no lock.",
)
def check_catalog(require_lock: bool) -> None:
    """Check the catalog, the site file, the facts, every class and every stack's lock.

    Classes are checked as `goldnode check` does, and the files that the site file names must exist. Of each
    file the first error is shown. Exit status: 0 no errors, 1 with --require-lock alone: a stack of a class
    has no lock, 2 errors.
    """
    from goldnode.commands.check_catalog import check
    from goldnode.compat.report import not_applicable

    found = check()
    for line in found.told:
        click.echo(line)
    for fault in found.wrong:
        click.echo(f"error: {fault}", err=True)
    if found.wrong:
        sys.exit(2)
    catalog = found.catalog
    click.echo(
        f"{len(catalog.classes)} classes, {len(catalog.stacks)} stacks, {len(catalog.platforms)} platforms "
        f"and {len(catalog.archives)} archives: no errors. {not_applicable(found.unlocked)}".rstrip(". ")
    )
    if require_lock and found.unlocked:
        sys.exit(1)


if __name__ == "__main__":
    main()
