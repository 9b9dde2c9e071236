"""Command `goldnode facts`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.metadata import rotate_published
from goldnode.commands.options import (
    DIRECTORY,
    NEW_FILE,
    OLD_DIRECTORY,
    ROTATION,
    KeyOptions,
    RotationKeys,
    TwoMachines,
    key_options,
    valid_options,
)
from goldnode.commands.output import emit, reports, say
from goldnode.core import files

if TYPE_CHECKING:
    from goldnode.facts.audit import FactsFault
    from goldnode.facts.review import ListAge, ReviewedFile


@click.group()
def facts() -> None:
    """Check the compatibility facts, and update them without a release."""


@facts.command()
@reports("facts-audit")
@click.option(
    "--stale-after",
    type=click.IntRange(min=1),
    default=90,
    show_default=True,
    metavar="DAYS",
    help="Age from which a file is stale.",
)
def audit(form: str, stale_after: int) -> None:
    """List facts that are wrong, stale, contradictory, in doubt or from a single source.

    Exit status: 0 no row is wrong and no file is stale, 1 otherwise.
    """
    import datetime as dt

    from goldnode.facts import audit as rows
    from goldnode.facts.review import review

    faults = rows.faults()
    files = review(dt.datetime.now(tz=dt.UTC).date(), stale_after=stale_after)
    content = {
        "faults": [asdict(fault) for fault in faults],
        "files": [{**asdict(file), "compiled": str(file.compiled)} for file in files],
    }
    emit(form, content, lambda: _text(faults, files))
    sys.exit(1 if faults or any(file.stale for file in files) else 0)


@facts.command()
@reports("facts-age")
@click.option(
    "--older-than",
    type=click.IntRange(min=0),
    metavar="DAYS",
    help="Exit with 1 if a list is older.",
)
def age(form: str, older_than: int | None) -> None:
    """Show up to which day each list of the facts is complete.

    Releases, bulletins and boards after that day are not in the facts, so that goldnode calls them unknown. Files
    that are no list of a publisher's releases, such as limits of health checks, are left out.

    Exit status: 0, or 1 if a list is older than --older-than.
    """
    import datetime as dt

    from goldnode.facts.review import ages

    rows = ages(dt.datetime.now(tz=dt.UTC).date())
    content = {
        "lists": [{**asdict(row), "complete_until": str(row.complete_until)} for row in rows]
    }
    emit(form, content, lambda: _ages_text(rows))
    sys.exit(int(older_than is not None and any(row.age_days > older_than for row in rows)))


def _ages_text(rows: list[ListAge]) -> str:
    width = max((len(row.lists) for row in rows), default=0)
    return "\n".join(
        f"{row.complete_until}  {row.age_days:4} days  {row.lists:{width}}  {row.file}"
        for row in rows
    )


@facts.command()
@reports("facts-update")
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    show_default="`facts.source` of the site file",
    help="Repository of updates: an address, a directory, or a zip archive.",
)
def update(form: str, source: str | None) -> None:
    """Fetch signed facts, and use them from now on.

    The site file names the publisher's root document (`facts.root`). The update is used if enough of the
    trusted keys have signed it, if it has not expired, if it is not older than an earlier one, and if this
    version of goldnode can read all of it. Otherwise the facts in force stay.

    Exit status: 0 the newest facts are in force, 2 the update was refused or could not be read.
    """
    from goldnode.fleet.nodes.facts_update import install

    installed = install(source)
    content = {
        **asdict(installed.update),
        "directory": str(installed.directory),
        "changed": installed.changed,
    }
    verb = "installed" if installed.changed else "in force already"
    emit(
        form,
        content,
        f"update {installed.update.version} of {installed.update.source}: {verb}, facts of {installed.update.compiled}, "
        f"in {installed.directory}; its signatures expire on {installed.update.expires[:10]}",
    )


@facts.command()
@click.argument("repository", type=DIRECTORY, metavar="REPOSITORY")
@key_options("repository")
@click.option(
    "--facts",
    "directory",
    type=OLD_DIRECTORY,
    metavar="DIR",
    show_default="the facts of this version",
    help="Directory of the facts files to publish.",
)
@valid_options(90)
@click.option(
    "--bundle", type=NEW_FILE, metavar="FILE", help="Also write the repository as a zip archive."
)
@reports("facts-publication")
def publish(repository: Path, form: str, keys: KeyOptions, **given: Any) -> None:
    """Publish signed facts in a directory.

    With --targets-key the facts are released. Without it the present release is only signed as the newest for some
    more days. Facts with an error are not published. Serve REPOSITORY with a web server, or hand out the archive of
    --bundle. Each site needs the newest `metadata/N.root.json` once, from a source that it trusts.
    """
    from goldnode.channels.keys import RepositoryKeys  # start-up time; so below
    from goldnode.fleet.nodes import facts_update

    files.readable_by_others()
    bundle = given["bundle"]
    version, root = facts_update.publish(repository, RepositoryKeys(**keys.given()), **given)
    if warning := root.warning(f"{facts_update.ROTATE} {repository}"):
        say(warning)
    emit(
        form,
        {
            "repository": str(repository),
            "version": version,
            "root": str(root.path),
            "root_expires": f"{root.expires:%Y-%m-%dT%H:%M:%SZ}",
            "bundle": bundle and str(bundle),
        },
        f"published version {version} in {repository}; sites trust it by {root.path}",
    )


@facts.command()
@click.argument(
    "repository",
    type=OLD_DIRECTORY,
    metavar="REPOSITORY",
)
@ROTATION
@reports("facts-root")
def rotate(repository: Path, change: RotationKeys, machines: TwoMachines, form: str) -> None:
    """Replace keys of a repository of facts.

    A role whose keys are not given keeps them. Sites follow by themselves, because the present keys of the root sign
    the next one. Publish again afterwards with --targets-key.

    A repository of an earlier version, whose one key signs everything, gets its offline keys of targets with
    --targets-key.
    """
    rotate_published(repository, change, machines, form)


def _text(faults: list[FactsFault], files: list[ReviewedFile]) -> str:
    lines = [f"wrong: {fault.error()}" for fault in faults]
    for file in files:
        state = "stale" if file.stale else "current"
        lines.append(
            f"{file.name}: {state} ({file.age_days} days), {file.single} of {file.sourced} rows from a single source, "
            f"{len(file.contradictory)} contradictory, {len(file.in_doubt)} in doubt"
        )
        for kind, rows in (("contradictory", file.contradictory), ("in doubt", file.in_doubt)):
            lines += [f"  {kind}: {row.name} (line {row.line}): {row.why}" for row in rows]
    lines.append(
        f"{len(files)} files: {len(faults)} rows are wrong, {sum(file.stale for file in files)} files are stale."
    )
    return "\n".join(lines)
