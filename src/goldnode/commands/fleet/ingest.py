"""Command `goldnode fleet ingest` and `goldnode fleet prune`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.options import DIRECTORY, DRY_RUN, options
from goldnode.commands.output import emit, reports
from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import FLEET_DATA, load_site

if TYPE_CHECKING:
    from goldnode.fleet.ingest.files import IngestResult
    from goldnode.fleet.ingest.report import NodeReport

_PATH = click.Path(path_type=Path)
_DEFAULT = f"$GOLDNODE_FLEET_DATA, else the site file's fleet.data, else {FLEET_DATA}"
DATA = click.option(
    "--data",
    type=DIRECTORY,
    metavar="DIRECTORY",
    show_default=_DEFAULT,
    help="Directory of the fleet's captures.",
)
DATA_OR_BUCKET = click.option(
    "--data",
    metavar="DIRECTORY|ADDRESS",
    show_default=_DEFAULT,
    help="Directory of the fleet's captures, or s3://BUCKET/PREFIX with a copy of one.",
)


def directory(given: Path | None) -> Path:
    """Return the directory of captures that a command uses. Raise MissingExtraError without the extra `report`."""
    extras.require("report")
    where = given or load_site().fleet_data()
    # A path has one slash where an address has two.
    if re.match(r"[a-z0-9]+:/", str(where)):
        raise GoldnodeError(
            f"{where} is no directory: only `goldnode fleet report`, `diff` and `sql --data ADDRESS` read a bucket",
            remedy="name a directory, and copy it to the bucket with `goldnode fleet copy`",
        )
    return where


@click.command()
@click.argument("sources", nargs=-1, type=_PATH, metavar="[FILE|DIRECTORY]...")
@options(
    click.option(
        "--class", "class_name", metavar="CLASS", help="Class of nodes whose capture names none."
    ),
    click.option(
        "--backfill",
        is_flag=True,
        help="Store old captures as if they had arrived when they were made: reports on the past then have them.",
    ),
)
@click.option(
    "--anonymous",
    is_flag=True,
    help="Store keyed digests in place of serial numbers, UUIDs, network addresses and host names.",
)
@DATA
@reports("fleet-ingest")
def ingest(
    sources: tuple[Path, ...],
    class_name: str | None,
    backfill: bool,
    anonymous: bool,
    data: Path | None,
    *,
    form: str,
) -> None:
    """Write captures, verdicts and canary results to the fleet's data.

    Without arguments, it stores what `site.yml`, `report.yml` and the service have received, and removes it from the
    inbox. In a directory, each file *.json is a capture or a result of `goldnode canary run`; NAME.verdict.json is the
    verdict of NAME.json, and verdict.json that of capture.json. The same capture or result is stored once.

    Exit status: 0 all are stored, 1 some were refused.
    """
    where = directory(data)
    # pyarrow: only the extra `report` installs it.
    from goldnode.fleet.ingest.files import IngestRequest
    from goldnode.fleet.ingest.files import ingest as run

    now = datetime.now(UTC)
    request = IngestRequest(
        where,
        sources=sources,
        received=None if backfill else now,
        class_=class_name,
        anonymous=anonymous,
        precision=load_site().fleet.precision,
        # A backfill is of the past: nothing has just happened.
        observe=(lambda reports: None) if backfill else _observe,
    )
    result = run(request, now)
    for refusal in result.refused:
        remedy = f". {refusal.remedy[:1].upper()}{refusal.remedy[1:]}" if refusal.remedy else ""
        click.echo(f"refused: {refusal.file}: {refusal.message}{remedy}.", err=True)
    emit(form, _content(result), _text(result, where))
    if result.refused:
        click.get_current_context().exit(1)


def _observe(reports: Sequence[NodeReport]) -> None:
    """Add the events of nodes to the outbox, if the site has hooks, and deliver what is due."""
    from goldnode.fleet.events.assembly import delivery
    from goldnode.fleet.events.nodes import observe, state_of

    outbox = delivery(load_site())
    if outbox is not None:
        # Before the events: it removes the state of hooks that the site no longer has.
        outbox.hooks()
        observe(outbox.outbox, map(state_of, reports), time.time())
        # Now, since a site may have no service that delivers.
        outbox.deliver()


def _content(result: IngestResult) -> dict[str, object]:
    refused = [
        {"file": str(one.file), "message": one.message, "remedy": one.remedy}
        for one in result.refused
    ]
    parts = [{"class": part.class_, "day": part.day, "id": part.id} for part in result.parts]
    return {
        "stored": result.stored,
        "results": result.results,
        "known": result.known,
        "refused": refused,
        "parts": parts,
    }


def _text(result: IngestResult, where: Path) -> str:
    days = len({(part.class_, part.day) for part in result.parts})
    counts = [f"{result.stored} captures stored in {where}"]
    if result.results:
        counts[0] = (
            f"{result.stored} captures and {result.results} canary results stored in {where}"
        )
    if days > 1:
        counts[0] += f", of {days} classes and days"
    if result.known:
        counts.append(f"{result.known} were stored before")
    if result.refused:
        counts.append(f"{len(result.refused)} refused")
    return "; ".join(counts)


@click.command()
@click.option("--keep", required=True, metavar="DAYS", help="Days to keep, as 90d.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@DATA
@reports("fleet-prune")
def prune(keep: str, yes: bool, data: Path | None, form: str) -> None:
    """Remove captures that are older than a number of days.

    It prints each class and day first, and asks. Nothing else in the directory is removed.
    """
    where = directory(data)
    # pyarrow: only the extra `report` installs it.
    from goldnode.fleet.ingest import bases
    from goldnode.fleet.ingest import prune as pruning

    old = pruning.candidates(where, pruning.days(keep), datetime.now(UTC))
    lines = [
        f"{day.day}  {day.class_}  {len(day.parts)} parts, {day.size / 1e6:.1f} MB" for day in old
    ]
    content: dict[str, list[dict[str, Any]]] = {
        "removed": [
            {
                "class": day.class_,
                "day": day.day,
                "parts": [part.id for part, _ in day.parts],
                "bytes": day.size,
            }
            for day in old
        ]
    }
    if not old:
        emit(form, content, f"nothing in {where} is older than {keep}")
        return
    # Shown before the question; standard output stays one document.
    click.echo("\n".join(lines), err=form == "json")
    if not yes:
        click.confirm(f"Remove these days from {where}?", abort=True, err=True)
    # A question may wait for minutes, in which captures arrive and parts are merged.
    left = pruning.prune(where, old)
    # A node that has sent no base for this long has left the fleet.
    bases.forget(where, time.time() - 86_400 * pruning.days(keep))
    remaining = [(day.class_, day.day) for day in left]
    content["left"] = [{"class": class_, "day": day} for class_, day in remaining]
    content["removed"] = [
        row for row in content["removed"] if (row["class"], row["day"]) not in remaining
    ]
    total = sum(day.size for day in old if day not in left)
    lines = [f"removed {len(old) - len(left)} classes and days, {total / 1e6:.1f} MB"]
    lines += [
        f"{day.day}  {day.class_}: has captures that arrived meanwhile; run it again"
        for day in left
    ]
    emit(form, content, "\n".join(lines))


@click.command()
@click.argument("address", metavar="s3://BUCKET/PREFIX")
@click.option(
    "--keep",
    metavar="DAYS",
    help="Remove captures from the bucket that are older, as 365d; without it, none is removed.",
)
@DRY_RUN
@DATA
@reports("fleet-copy")
def copy(address: str, keep: str | None, dry_run: bool, data: Path | None, *, form: str) -> None:
    """Copy captures to object storage, for reports with `--data s3://…`.

    Parts that the bucket has are not copied again. Readers see all of a copy, or nothing of it: one that was ended can be run again. Days that
    were pruned here stay in the bucket. Add ?endpoint=https://HOST:PORT&region=REGION for a server of your own. Keys come from where the AWS
    SDK looks for them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, or the role of the machine.
    """
    where = directory(data)
    # pyarrow: only the extra `report` installs it.
    from goldnode.fleet.ingest import bucket
    from goldnode.fleet.ingest import prune as pruning

    days = None if keep is None else pruning.days(keep)
    storage = bucket.S3Storage.of(address)
    run = bucket.plan if dry_run else bucket.copy
    done = run(where, storage, datetime.now(UTC), days)
    content = {
        "address": storage.address,
        "dry_run": dry_run,
        "copied": [{"class": part.class_, "day": part.day, "id": part.id} for part, _ in done.new],
        "bytes": done.bytes,
        "removed": [{"class": part.class_, "day": part.day, "id": part.id} for part in done.gone],
        "pruned_here": [
            {"class": part.class_, "day": part.day, "id": part.id} for part in done.pruned
        ],
    }
    would = "would be " if dry_run else ""
    counts = [
        f"{len(done.new)} parts {would}copied to {storage.address}, {done.bytes / 1e6:.1f} MB"
    ]
    if done.gone:
        counts.append(f"{len(done.gone)} that they replace or that are old {would}removed")
    if done.pruned:
        counts.append(f"{len(done.pruned)} were pruned here and stay whole there")
    emit(form, content, "; ".join(counts))
