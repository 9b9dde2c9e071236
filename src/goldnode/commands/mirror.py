"""Command `goldnode mirror`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.options import DIRECTORY, DRY_RUN, FILE, KEEP_DAYS, WAIT, RenamedOption
from goldnode.commands.output import emit, reports, say, table
from goldnode.core import progress

if TYPE_CHECKING:
    from goldnode.core.site import Site
    from goldnode.lock.fetch import FetchFault
    from goldnode.lock.mirror import Mirror


class _Stacks(click.Group):
    """A group whose first word may also be a stack: `goldnode mirror STACK` is `goldnode mirror fetch STACK`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = [*self.commands, "-h", "--help"]
        # `known` has the options for help, which are no stacks.
        if args and args[0] not in known:
            args = ["fetch", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Stacks, no_args_is_help=True, subcommand_metavar="STACK... | COMMAND [ARGS]...")
def mirror() -> None:
    """Fetch locked packages and publish them as signed apt repositories.

    `goldnode mirror STACK` is short for `goldnode mirror fetch STACK`.
    """


@mirror.command()
@click.argument("stacks", nargs=-1, required=True, metavar="STACK...")
@click.option(
    "-j",
    "--jobs",
    "parallel",
    cls=RenamedOption,
    former={"--parallel": None},
    type=click.IntRange(1, 32),
    default=4,
    show_default=True,
    metavar="N",
    help="Number of parallel downloads.",
)
@WAIT
@click.option(
    "--on",
    "status",
    type=FILE,
    metavar="FILE",
    help="The dpkg status file that the lock was resolved on, if it was resolved with --on.",
)
@click.option(
    "--queue",
    "queued",
    is_flag=True,
    help="Publish when no driver of the fleet is being changed: wait for that in the queue of the fleet.",
)
@reports("mirror-fetch")
def fetch(
    stacks: tuple[str, ...],
    parallel: int,
    wait: float,
    status: Path | None,
    *,
    queued: bool,
    form: str,
) -> None:
    """Fetch the packages of the locks of STACKs and publish them.

    This is the default command. Every file is verified against the lock.

    Exit status: 0 published, 1 an archive does not deliver what is locked; nothing is published then.
    """
    from goldnode.classdoc.load import load_catalog  # start-up time: it loads pydantic
    from goldnode.core.site import load_site
    from goldnode.lock.mirror import Mirror, site_signer
    from goldnode.lock.model import find_lock

    catalog, site = load_catalog(), load_site()
    # All locks before the first download: a missing one is known at once.
    locks = {name: find_lock(catalog.stack(name), site)[0] for name in dict.fromkeys(stacks)}
    place = Mirror.of(site)
    # A test signature comes before the downloads: a wrong key fails now, not after an hour.
    with site_signer(site) as signer, place.writing(wait):
        with progress.downloads() as watcher:
            faults = place.fetch(list(locks.values()), catalog, site, watcher, parallel=parallel)
        failed = [
            {"kind": fault.kind, "file": fault.wanted.name, "why": fault.message}
            for fault in faults
        ]
        if faults:
            emit(form, {"published": [], "failed": failed})
            _print_faults(faults, list(locks))
            sys.exit(1)
        progress.step(f"publishing {', '.join(locks)}")
        with _quiet(site, f"publishing {', '.join(locks)}") if queued else nullcontext():
            published = [
                place.publish(name, lock, signer=signer, status=status)
                for name, lock in locks.items()
            ]
    emit(
        form,
        {
            "published": [
                {
                    "stack": publication.stack,
                    "directory": publication.directory,
                    "packages": len(publication.packages),
                    "fingerprint": publication.fingerprint,
                }
                for publication in published
            ],
            "failed": failed,
        },
        "\n".join(
            f"{publication.stack}: {len(publication.packages)} packages in {publication.directory}, signed by {publication.fingerprint}"
            for publication in published
        ),
    )


@contextmanager
def _quiet(site: Site, reason: str) -> Iterator[None]:
    """Wait until no driver is being changed; no change of one begins until the block ends."""
    from goldnode.fleet.nodes.queue_place import in_turn  # the fleet: an extra
    from goldnode.fleet.rollout.queue import QueuedWork

    turn = in_turn(site, None, QueuedWork.MIRROR, needs=(), reason=reason, tell=say)
    with turn as (_, place):
        yield
        if place is not None:
            place.finish(True, "published")


@mirror.command()
@click.option(
    "--out",
    type=DIRECTORY,
    required=True,
    metavar="DIR",
    help="Directory to write the two key files to.",
)
@click.option(
    "--name",
    default="goldnode mirror",
    show_default=True,
    metavar="TEXT",
    help="User ID of the key.",
)
@click.option(
    "--algorithm",
    type=click.Choice(["ed25519", "rsa4096"]),
    default="ed25519",
    show_default=True,
    help="Algorithm of the key.",
)
@click.option(
    "--expire",
    default="never",
    show_default=True,
    metavar="WHEN",
    help="Expiry of the key, as gpg writes it: never, 2y, 2030-01-31.",
)
@reports("mirror-key")
def key(out: Path, name: str, algorithm: str, expire: str, form: str) -> None:
    """Create the signing key of the mirror."""
    from goldnode.lock.signing import create

    fingerprint, secret, public = create(out, name, algorithm=algorithm, expire=expire)
    emit(
        form,
        {"fingerprint": fingerprint, "key": public.absolute(), "signing_key": secret.absolute()},
        f"{fingerprint}\n\nFor the site file:\nmirror:\n  key: {public.absolute()}\n  signing_key: {secret.absolute()}",
    )
    click.echo(
        "\nThe secret key has no passphrase: protect the file, and back it up in a safe place.",
        err=True,
    )


@mirror.command()
@click.argument("stacks", nargs=-1, metavar="[STACK]...")
@click.option("--repair", is_flag=True, help="Fetch damaged and missing files again.")
@reports("mirror-check")
def verify(stacks: tuple[str, ...], repair: bool, form: str) -> None:
    """Verify all files and the signatures of all publications.

    Exit status: 0 no faults, 1 faults.
    """
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock import maintenance
    from goldnode.lock.mirror import Mirror

    site = load_site()
    place = Mirror.of(site)
    public = maintenance.public_key(place, site)
    _known(place, stacks)
    problems = maintenance.verify(place, public, stacks or None)
    lines = [f"{damage.kind}: {damage}" for damage in problems]
    if problems and repair:
        with progress.downloads() as watcher:
            _, faults = maintenance.repair(place, problems, site, watcher, catalog=load_catalog())
        for fault in faults:
            click.echo(str(fault), err=True)
        # All again: a repaired file must be as sound as the others.
        problems = maintenance.verify(place, public, stacks or None)
        lines += [f"not repaired: {damage}" for damage in problems]
    stored, published = len(list(place.store.glob("*/*"))), len(_publications(place, stacks))
    if not problems:
        size = "" if stacks else f", {stored} files"
        lines.append(f"{place.directory}: {published} publications{size}: no faults")
    emit(
        form,
        {
            "directory": place.directory,
            "publications": published,
            "files": stored,
            "faults": [
                {"kind": damage.kind, "path": damage.path, "message": damage.message}
                for damage in problems
            ],
        },
        "\n".join(lines),
    )
    if problems:
        again = "" if repair else " Fetch damaged files again with --repair;"
        click.echo(
            f"error: {len(problems)} faults.{again} `goldnode mirror STACK` writes indexes and signatures again,"
            " `goldnode modules build STACK` and `goldnode package publish` the packages that goldnode makes.",
            err=True,
        )
        sys.exit(1)


@mirror.command()
@KEEP_DAYS
@DRY_RUN
@click.option(
    "--nodes",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    show_default=".goldnode/runs, always included",
    help="Run records or node records whose locks are retained: a JSON file, or a directory of them. Repeatable.",
)
@reports("gc")
def gc(days: float, dry_run: bool, nodes: tuple[Path, ...], form: str) -> None:
    """Remove files that no lock, channel or node history needs."""
    import os

    from goldnode.channels.gc import Gone
    from goldnode.classdoc.load import load_catalog
    from goldnode.commands.channel_moves import show_gone
    from goldnode.core.site import load_site
    from goldnode.lock import maintenance
    from goldnode.lock.mirror import Mirror

    # All or nothing: packages of a stack that cannot be read would look unneeded.
    catalog, site = load_catalog().whole(), load_site()
    place = Mirror.of(site)
    # Nodes may still roll back to the locks of recent runs.
    own = Path(os.environ.get("GOLDNODE_RUNS") or ".goldnode/runs").expanduser()
    keep = maintenance.needed(
        place, catalog, site, maintenance.node_records([*nodes, *([own] if own.is_dir() else [])])
    )
    gone, stays = maintenance.collect(place, keep, days=days, dry_run=dry_run)
    shown = [
        Gone(str(item.path.relative_to(place.directory)), item.why, item.size) for item in gone
    ]
    show_gone(
        shown,
        {str(path.relative_to(place.directory)): why for path, why in stays.items()},
        dry_run,
        form,
    )


@mirror.command()
@reports("mirror-status")
def status(form: str) -> None:
    """List the published repositories."""
    from goldnode.core.site import load_site
    from goldnode.lock.mirror import Mirror
    from goldnode.lock.publication import CURRENT, Publication

    place = Mirror.of(load_site())
    rows: list[dict[str, Any]] = []
    for where in _publications(place, ()):
        publication = Publication.read(where)
        link = where.parent / CURRENT
        rows.append(
            {
                "stack": publication.stack,
                "publication": publication.id,
                "current": link.is_symlink() and link.readlink().name == publication.id,
                "published": publication.published,
                "packages": len(publication.packages),
                "size": sum(row["size"] for row in publication.packages),
                "locks": sorted(publication.locks),
            }
        )
    lines = [("stack", "publication", "", "published", "packages", "MB", "locks")]
    lines += [
        (
            row["stack"],
            row["publication"],
            "current" if row["current"] else "",
            row["published"],
            str(row["packages"]),
            f"{row['size'] / 1e6:.1f}",
            ", ".join(digest.removeprefix("sha256:")[:12] for digest in row["locks"]),
        )
        for row in rows
    ]
    emit(form, {"directory": place.directory, "publications": rows}, table(lines))


def _publications(place: Mirror, stacks: tuple[str, ...]) -> list[Path]:
    from goldnode.lock.publication import publications

    return [
        publication
        for publication in publications(place.directory)
        if not stacks or publication.parent.name in stacks
    ]


def _known(place: Mirror, stacks: tuple[str, ...]) -> None:
    """Refuse a stack that was never published: there is nothing to verify."""
    from goldnode.core.errors import MirrorError, nearest

    known = {publication.parent.name for publication in _publications(place, ())}
    for stack in stacks:
        if stack not in known:
            raise MirrorError(
                f'nothing of stack "{stack}" is published',
                file=place.directory,
                remedy=nearest(stack, known),
            )
    if not known:
        raise MirrorError(
            "nothing is published", file=place.directory, remedy="run `goldnode mirror STACK`"
        )


def _print_faults(faults: list[FetchFault], stacks: list[str]) -> None:
    for fault in faults:
        click.echo(str(fault), err=True)
    kinds = {fault.kind for fault in faults}
    advice = []
    if kinds & {"vanished", "altered"}:
        advice.append(
            f"point the site's archives at a mirror or snapshot that still has them, or lock again (`goldnode lock {stacks[0]}`)"
        )
    if "altered" in kinds:
        advice.append("ask the archive's owner why a file changed under its version")
    if "refused" in kinds:
        advice.append("check the credentials in /etc/apt/auth.conf and the proxy")
    if "unreachable" in kinds:
        advice.append("check the network and run again; the download resumes")
    click.echo(
        f"error: {len(faults)} files are not available; the others were fetched, nothing was published. {'; '.join(advice).capitalize()}.",
        err=True,
    )
