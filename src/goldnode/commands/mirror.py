"""`goldnode mirror`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from goldnode.lock.fetch import Fault, Wanted
    from goldnode.lock.mirror import Mirror


class _Stacks(click.Group):
    """A group whose first word may also be a stack: `goldnode mirror STACK` is `goldnode mirror fetch STACK`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = [*self.commands, "-h", "--help"]
        if args and args[0] not in known:
            args = ["fetch", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Stacks, no_args_is_help=True, subcommand_metavar="STACK… | COMMAND [ARGS]…")
def mirror() -> None:
    """Fetch what the locks of STACK… name, each file checked, and publish it as signed apt repositories.

    `goldnode mirror STACK` is `goldnode mirror fetch STACK`.
    """


@mirror.command()
@click.argument("stacks", nargs=-1, required=True, metavar="STACK…")
@click.option(
    "--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="Files fetched at once."
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0,
    help="Seconds to wait for another run on this mirror; default: refuse.",
)
@click.option(
    "--on",
    "status",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The dpkg status file that the lock was resolved on, where it was.",
)
def fetch(stacks: tuple[str, ...], parallel: int, wait: float, status: Path | None) -> None:
    """Fetch and publish (the default command). Exit 1 where an archive does not give what is locked; nothing is published then."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock.mirror import Mirror, site_signer
    from goldnode.lock.model import find_lock

    catalog, site = load_catalog(), load_site()
    locks = {name: find_lock(catalog.stack(name), site)[0] for name in dict.fromkeys(stacks)}
    place = Mirror.of(site)
    with site_signer(site) as signer, place.writing(wait):
        progress = _progress()
        with progress:
            faults = place.fetch(list(locks.values()), catalog, site, progress, parallel=parallel)
        if faults:
            _tell(faults, list(locks))
            sys.exit(1)
        for name, lock in locks.items():
            found = place.publish(name, lock, signer=signer, status=status)
            click.echo(
                f"{name}: {len(found.packages)} packages in {found.directory}, signed by {found.fingerprint}"
            )


@mirror.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory for the two files.",
)
@click.option("--name", default="goldnode mirror", show_default=True, help="User id of the key.")
@click.option("--algorithm", type=click.Choice(["ed25519", "rsa4096"]), default="ed25519", show_default=True)
@click.option(
    "--expire",
    default="never",
    show_default=True,
    help="When it ends, as gpg writes it: never, 2y, 2030-01-31.",
)
def key(out: Path, name: str, algorithm: str, expire: str) -> None:
    """Make a key to sign the mirror with, and keep it in --out."""
    from goldnode.lock.signing import create

    fingerprint, secret, public = create(out, name, algorithm=algorithm, expire=expire)
    click.echo(
        f"{fingerprint}\n\nFor the site file:\nmirror:\n  key: {public.absolute()}\n  signing_key: {secret.absolute()}"
    )
    click.echo(
        "\nThe secret key has no passphrase: keep that file to yourself, with a copy in a safe place.",
        err=True,
    )


@mirror.command()
@click.argument("stacks", nargs=-1, metavar="[STACK…]")
@click.option("--repair", "mend", is_flag=True, help="Fetch damaged and missing files anew.")
def verify(stacks: tuple[str, ...], mend: bool) -> None:
    """Hold every file against its name and every publication against its signature and its record; exit 1 where anything is wrong."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock import upkeep
    from goldnode.lock.mirror import Mirror

    site = load_site()
    place = Mirror.of(site)
    public = upkeep.public_key(place, site)
    _known(place, stacks)
    found = upkeep.verify(place, public, stacks or None)
    for damage in found:
        click.echo(f"{damage.kind}: {damage}")
    if found and mend:
        progress = _progress()
        with progress:
            _, faults = upkeep.repair(place, found, site, progress, catalog=load_catalog())
        for fault in faults:
            click.echo(str(fault), err=True)
        found = upkeep.verify(place, public, stacks or None)
        for damage in found:
            click.echo(f"not mended: {damage}")
    if found:
        again = "" if mend else " Bring damaged files back with --repair;"
        click.echo(
            f"error: {len(found)} faults.{again} indexes and signatures are made anew by `goldnode mirror STACK`.",
            err=True,
        )
        sys.exit(1)
    stored, published = len(list(place.store.glob("*/*"))), len(_publications(place, stacks))
    click.echo(
        f"{place.directory}: {published} publications{'' if stacks else f', {stored} files'}: no faults"
    )


@mirror.command()
@click.option(
    "--keep-days",
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    help="What is younger stays in any case.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@click.option(
    "--nodes",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Records of runs or of nodes (a JSON file, or a directory of them) whose locks stay; .goldnode/runs always counts.",
)
def gc(keep_days: float, dry_run: bool, nodes: tuple[Path, ...]) -> None:
    """Take away what no lock, no channel and no node's history needs any more."""
    import os

    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock import upkeep
    from goldnode.lock.mirror import Mirror

    catalog, site = load_catalog(), load_site()
    place = Mirror.of(site)
    own = Path(os.environ.get("GOLDNODE_RUNS") or ".goldnode/runs").expanduser()
    keep = upkeep.needed(
        place, catalog, site, upkeep.node_records([*nodes, *([own] if own.is_dir() else [])])
    )
    gone, stays = upkeep.collect(place, keep, days=keep_days, dry_run=dry_run)
    for path, why in stays.items():
        click.echo(f"stays: {path.relative_to(place.directory)}: {why}")
    for item in gone:
        click.echo(
            f"{'would go' if dry_run else 'gone'}: {item.path.relative_to(place.directory)} ({item.size / 1e6:.1f} MB): {item.why}"
        )
    click.echo(f"{'would free' if dry_run else 'freed'} {sum(item.size for item in gone) / 1e6:.1f} MB")


@mirror.command()
def status() -> None:
    """List what is published."""
    from goldnode.core.site import load_site
    from goldnode.lock.mirror import Mirror
    from goldnode.lock.publication import CURRENT, Publication

    place = Mirror.of(load_site())
    rows = [("stack", "publication", "", "published", "packages", "MB", "locks")]
    for where in _publications(place, ()):
        found = Publication.read(where)
        link = where.parent / CURRENT
        current = "current" if link.is_symlink() and link.readlink().name == found.id else ""
        size = sum(row["size"] for row in found.packages) / 1e6
        locks = ", ".join(digest.removeprefix("sha256:")[:12] for digest in found.locks)
        rows.append(
            (found.stack, found.id, current, found.published, str(len(found.packages)), f"{size:.1f}", locks)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _publications(place: Mirror, stacks: tuple[str, ...]) -> list[Path]:
    from goldnode.lock.publication import publications

    return [found for found in publications(place.directory) if not stacks or found.parent.name in stacks]


def _known(place: Mirror, stacks: tuple[str, ...]) -> None:
    """Refuse a stack that was never published: nothing would be looked at, and nothing be wrong."""
    from goldnode.core.errors import MirrorError, nearest

    known = {found.parent.name for found in _publications(place, ())}
    for stack in stacks:
        if stack not in known:
            raise MirrorError(
                f'nothing of stack "{stack}" is published', file=place.directory, remedy=nearest(stack, known)
            )
    if not known:
        raise MirrorError("nothing is published", file=place.directory, remedy="run `goldnode mirror STACK`")


def _progress() -> Any:
    """A bar on a terminal, else a line per file."""
    return _Bar() if sys.stderr.isatty() else _Lines()


class _Lines:
    """A line for what is fetched, for logs."""

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def start(self, files: int, size: int, there: int) -> None:
        kept = f", {there / 1e6:.1f} MB of them kept from an earlier run" if there else ""
        click.echo(f"{files} files to fetch, {size / 1e6:.1f} MB{kept}", err=True)

    def advance(self, size: int) -> None:
        return None

    def done(self, wanted: Wanted) -> None:
        click.echo(f"fetched {wanted.name} {wanted.version} ({wanted.size / 1e6:.1f} MB)", err=True)

    def failed(self, fault: Fault) -> None:
        click.echo(f"{fault.kind} {fault.wanted.name} {fault.wanted.version}", err=True)


class _Bar:
    """One bar over all bytes, with the rate and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("fetching", total=None)
        self._left = 0

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def start(self, files: int, size: int, there: int) -> None:
        self._left = files
        self._bar.update(self._task, total=size, completed=there, description=f"{files} files")

    def advance(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def done(self, wanted: Wanted) -> None:
        self._left -= 1
        self._bar.update(self._task, description=f"{self._left} files")

    def failed(self, fault: Fault) -> None:
        self.done(fault.wanted)


def _tell(faults: list[Fault], stacks: list[str]) -> None:
    for fault in faults:
        click.echo(str(fault), err=True)
    kinds = {fault.kind for fault in faults}
    advice = []
    if kinds & {"vanished", "altered"}:
        advice.append(
            f"point the site's archives at a mirror or snapshot that kept them, or lock again (`goldnode lock {stacks[0]}`)"
        )
    if "altered" in kinds:
        advice.append("ask the archive's owner why a file changed under its version")
    if "refused" in kinds:
        advice.append("look at the credentials in /etc/apt/auth.conf and the proxy")
    if "unreachable" in kinds:
        advice.append("look at the network and run again, which goes on where this ended")
    click.echo(
        f"error: {len(faults)} files cannot be had; the others were fetched, nothing was published. {'; '.join(advice).capitalize()}.",
        err=True,
    )
