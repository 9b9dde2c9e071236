"""`goldnode disks evidence|authenticate|diff|publish|pull|promote|rollback|status|gc`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands import channel_moves as shared
from goldnode.core.errors import DiskError

if TYPE_CHECKING:
    from goldnode.disks.lines import ClassLine
    from goldnode.disks.places import ChannelStore, DirectoryPlace, StorePlace
    from goldnode.evidence.signatures import Signer

_STORE = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Store of disks; default: $GOLDNODE_DISKS, else .goldnode/disks.",
)
_TO = click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="GOLDNODE_DISKS_PLACE",
    help="Published directory; default: $GOLDNODE_DISKS_PLACE.",
)


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS…")
@_STORE
@shared.MADE_WITH
@click.option(
    "--against",
    metavar="DIR|NAME|CLASS:CHANNEL",
    help="Write the difference to this earlier disk too; for one disk.",
)
@click.option("--backend", help="Backend to inspect it for; default: that of the class in the disk.")
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another purity.yml, with a site's own waivers.",
)
@shared.FORM
def evidence(
    disks: tuple[str, ...],
    store: Path | None,
    key: Path | None,
    databases: tuple[str, ...],
    against: str | None,
    backend: str | None,
    policy: Path | None,
    form: str,
) -> None:
    """Write what proves built disks beside them: SBOMs, provenance, vulnerabilities, inspection, size, and a signature over all of it.

    Run it after `goldnode disks verify`: the signature covers the record of the boots, too. Exit 1 where the inspection refuses a disk.
    """
    from goldnode.disks.evidence import TITLES, Options, document, write

    kept = _store(store)
    if against and len(disks) > 1:
        raise DiskError(
            f"--against is for one disk, and {len(disks)} are named", remedy="name the one that it precedes"
        )
    signer, known, builder = shared.made_with(key, databases)
    options = Options(
        cache=kept.cache,
        signer=signer,
        databases=known,
        against=_find(kept, against) if against else None,
        builder=builder,
        backend=backend,
        policy=policy,
    )
    told, passed = [], True
    for name in disks:
        disk = _find(kept, name)
        written = write(disk, options)
        passed = passed and bool(json.loads(document(disk, "inspection").read_bytes())["passed"])
        told.append({"disk": disk.name, "documents": [vars(one) for one in written]})
        if form == "text":
            click.echo(disk.name)
            for one in written:
                click.echo(f"  {one.state:<8} {TITLES.get(one.kind, one.kind):<16} {one.line}")
    if form == "json":
        shared.show_json(told)
    if options.signer is None:
        click.echo(
            "Nothing was signed: name a key with --key, or as images.signing_key in the site file.", err=True
        )
    if not passed:
        sys.exit(1)


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS…")
@_STORE
@shared.TRUST
@click.option(
    "--no-content", is_flag=True, help="Take the disk's own files on trust; only the documents are read."
)
@shared.FORM
def authenticate(
    disks: tuple[str, ...], store: Path | None, trust: tuple[Path, ...], no_content: bool, form: str
) -> None:
    """Verify that disks are complete, that every document is about them, and who signed it. Exit status 1 if
    not.

    This is the counterpart of `goldnode images verify`; `goldnode disks verify` boots a disk.
    """
    from goldnode.disks.evidence import authenticate as check

    kept, keys = _store(store), shared.trusted(trust)
    found = [_find(kept, name) for name in disks]
    shared.show_verified([(disk.name, check(disk, keys, content=not no_content)) for disk in found], form)


@click.command()
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@_STORE
@click.option("--files", is_flag=True, help="Name every file, not the first ones.")
@shared.FORM
def diff(old: str, new: str, store: Path | None, files: bool, form: str) -> None:
    """Show the differences between the disks A and B: packages, kernel, driver, files, size. Exit status 0
    whether they differ or not.

    Each is a directory, a NAME, a CLASS (its newest build) or CLASS:CHANNEL. `goldnode disks compare`
    compares two raw disks byte by byte.
    """
    from goldnode.disks.evidence import compare

    kept = _store(store)
    difference = compare(_find(kept, old), _find(kept, new), kept.cache)
    if form == "json":
        shared.show_json(difference.data())
    else:
        click.echo(difference.text(files=files))


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS…")
@_STORE
@_TO
@shared.TRUST
@shared.KEY
@shared.WAIVED
def publish(
    disks: tuple[str, ...],
    store: Path | None,
    to: Path | None,
    trust: tuple[Path, ...],
    key: Path | None,
    waive: tuple[str, ...],
    by: str | None,
    reason: str | None,
) -> None:
    """Copy disks with their evidence to a directory that an HTTP server serves, with checksums and
    signatures.

    Requires a record of two good boots, a passed inspection and hygiene check, and a signature. Files that
    are already there are verified, not copied.
    """
    from goldnode.disks.publish import publish as publishing
    from goldnode.disks.requirements import ASKED, LATER, judge
    from goldnode.evidence.size import human

    shared.check_step("publish", ASKED, waive)
    kept, signer, keys = _store(store), shared.signer_of(key), shared.trusted(trust)
    place = _directory(to, kept, signer)
    waivers = shared.waivers_of(waive, by, reason)
    for name in disks:
        disk = _find(kept, name)
        done = publishing(disk, place, signer, trust=keys, waivers=waivers)
        said = "there already, and whole" if done.before else f"{done.files} files ({human(done.size)})"
        click.echo(f"{done.directory}  {done.digest[:19]}  {said}")
        shared.show_gates([gate for gate in done.gates if gate.state != "passed"])
        # A publication never changes, so documents that a later channel requires must be in it now.
        short = [
            gate.name
            for gate in judge("stable", disk, trust=(*keys, signer.public), only=LATER)
            if not gate.open
        ]
        if not done.before and short:
            click.echo(
                f"note: canary or stable will also ask for {', '.join(short)}, which this publication lacks",
                err=True,
            )


@click.command()
@click.argument("name", metavar="CLASS[:CHANNEL|:BUILDID]")
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="URL|DIR",
    envvar="GOLDNODE_DISKS_FROM",
    help="Published directory, or its address.",
)
@_STORE
@shared.TRUST
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificate of the server's authority, PEM.",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    help="What to bring (repeat); default: raw.zst, of which the raw disk is made.",
)
def pull(
    name: str,
    origin: str,
    store: Path | None,
    trust: tuple[Path, ...],
    ca: Path | None,
    formats: tuple[str, ...],
) -> None:
    """Download a published disk into the store. Every byte is validated against the sums that a trusted key
    signed. An interrupted pull resumes.
    """
    from goldnode.disks.publish import pull as pulling
    from goldnode.disks.publish import source_of

    class_, _, wanted = name.partition(":")
    source, kept, keys = source_of(origin, ca), _store(store), shared.trusted(trust)
    done = pulling(
        source, kept, class_, wanted or "stable", trust=keys, formats=formats or ("raw.zst",), say=shared.say
    )
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(
        f"{done.disk.directory}  {done.digest[:19]}  {done.fetched} files fetched, {done.there} were there"
    )


@click.command()
@click.argument("channel")
@click.argument("disk", metavar="CLASS[:BUILDID]|NAME")
@_STORE
@_TO
@shared.TRUST
@shared.KEY
@shared.WAIVED
@click.option(
    "--approve-major",
    multiple=True,
    metavar="PART",
    help="Approve another series of kernel or driver; needs --by and --reason.",
)
@shared.EXPECT
def promote(
    channel: str,
    disk: str,
    store: Path | None,
    to: Path | None,
    trust: tuple[Path, ...],
    key: Path | None,
    waive: tuple[str, ...],
    by: str | None,
    reason: str | None,
    approve_major: tuple[str, ...],
    expect: str | None,
) -> None:
    """Point CHANNEL (candidate, canary, stable, known-good) of a class to a build. Every requirement is
    judged by the published evidence. Without --to, the channels of the local store are moved.
    """
    from goldnode.disks.channels import promote as promoting
    from goldnode.disks.requirements import ASKED, MAJORS

    shared.check_step(channel, shared.channels(ASKED), waive, approve_major, MAJORS)
    kept, signer = _store(store), shared.signer_of(key)
    place = _place(to, kept, signer)
    line, build_id = _build(place, disk)
    waivers = shared.waivers_of(waive, by, reason)
    approvals = shared.approvals_of(approve_major, by, reason)
    done = promoting(
        place,
        kept,
        line,
        build_id,
        channel,
        signer,
        by=by or shared.user(),
        reason=reason or "",
        trust=shared.trusted(trust),
        waivers=waivers,
        approvals=approvals,
        expect=expect,
        say=shared.say,
    )
    shared.show_gates(done.gates)
    shared.show_moved(place.name, done)


@click.command()
@click.argument("class_", metavar="CLASS")
@_STORE
@_TO
@shared.TRUST
@shared.KEY
@shared.SIGNED
@click.option("--channel", default="stable", show_default=True)
@click.option(
    "--to-disk",
    metavar="DISK",
    help="`known-good`, or a build id or digest of the history; default: what it was before.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Use and change this store alone; the place gets it with the next move that reaches it.",
)
def rollback(
    class_: str,
    store: Path | None,
    to: Path | None,
    trust: tuple[Path, ...],
    key: Path | None,
    by: str | None,
    reason: str | None,
    channel: str,
    to_disk: str | None,
    offline: bool,
) -> None:
    """Point a channel of CLASS to its previous disk."""
    from goldnode.disks.channels import rollback as rolling
    from goldnode.disks.lines import line_of
    from goldnode.disks.places import StorePlace
    from goldnode.disks.requirements import ASKED

    shared.check_step(channel, shared.channels(ASKED))
    kept, signer = _store(store), shared.signer_of(key)
    place = StorePlace(kept, str(to.absolute())) if offline and to is not None else _place(to, kept, signer)
    given: dict[str, Any] = {
        "channel": channel,
        "to": to_disk,
        "trust": shared.trusted(trust),
        "say": shared.say,
    }
    done = rolling(
        place, kept, line_of(class_), signer, by=by or shared.user(), reason=reason or "rollback", **given
    )
    shared.show_moved(place.name, done)


@click.command()
@click.argument("classes", nargs=-1, metavar="[CLASS]…")
@_STORE
@_TO
@shared.TRUST
@shared.HISTORY
@click.option("--offline", is_flag=True, help="This store's copy of what the place has.")
@click.option("--repair", "mend", is_flag=True, help="Give channels back to what the verified history says.")
@shared.FORM
def status(
    classes: tuple[str, ...],
    store: Path | None,
    to: Path | None,
    trust: tuple[Path, ...],
    with_history: bool,
    offline: bool,
    mend: bool,
    form: str,
) -> None:
    """Show the channels, validated against the signed history. Exit status 1 if one differs from it."""
    from goldnode.disks.channels import repair
    from goldnode.disks.lines import line_of
    from goldnode.disks.places import DirectoryPlace, StorePlace

    kept, keys = _store(store), shared.trusted(trust)
    place = StorePlace(kept, str(to.absolute())) if offline and to is not None else _place(to, kept, None)
    known = place.classes() if isinstance(place, DirectoryPlace) else _known(kept, place.name)
    lines = [line_of(name) for name in classes or known]
    mending = (lambda line: repair(place, kept, line, keys, shared.say)) if mend else None
    shared.show_status(place, kept, lines, keys, mending, form, with_history, _classes if classes else None)


@click.command()
@_STORE
@_TO
@shared.TRUST
@shared.DAYS
@shared.DRY_RUN
def gc(store: Path | None, to: Path | None, trust: tuple[Path, ...], days: float, dry_run: bool) -> None:
    """Take out of the store, or with --to out of a published directory, what no channel, history, class or lock names."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.disks import gc as collecting

    kept, keys = _store(store), shared.trusted(trust)
    keeps = collecting.needed(kept, load_catalog(), _locks(), keys)
    if to is None:
        gone, stays = collecting.collect(kept, keeps, days=days, dry_run=dry_run)
    else:
        gone, stays = collecting.collect_place(
            _directory(to, kept, None), kept, keeps, keys, days=days, dry_run=dry_run
        )
    shared.show_gone(gone, stays, dry_run)


# Shared by the commands


def _store(named: Path | None) -> ChannelStore:
    from goldnode.disks.model import store_directory
    from goldnode.disks.places import ChannelStore

    return ChannelStore(store_directory(named))


def _find(kept: ChannelStore, text: str) -> Any:
    """A build: a directory, a NAME, a CLASS (its newest), or CLASS:CHANNEL or CLASS:BUILDID of the store."""
    from goldnode.channels.history import CHANNELS
    from goldnode.disks.channels import standing
    from goldnode.disks.lines import line_of
    from goldnode.disks.model import find

    class_, colon, rest = text.partition(":")
    if colon and "/" not in text:
        return (
            standing(kept, line_of(class_), rest) if rest in CHANNELS else find(f"{class_}-{rest}", kept.root)
        )
    return find(text, kept.root)


def _directory(to: Path | None, kept: ChannelStore, signer: Signer | None) -> DirectoryPlace:
    from goldnode.disks.places import DirectoryPlace

    if to is None:
        raise DiskError(
            "no directory to publish to is named", remedy="name it with --to, or in GOLDNODE_DISKS_PLACE"
        )
    return DirectoryPlace(to, kept, signer)


def _place(to: Path | None, kept: ChannelStore, signer: Signer | None) -> DirectoryPlace | StorePlace:
    from goldnode.disks.places import StorePlace

    return StorePlace(kept) if to is None else _directory(to, kept, signer)


def _build(place: DirectoryPlace | StorePlace, text: str) -> tuple[ClassLine, str]:
    """Return class and build id of a name. A class alone means its only build. An existing class is matched
    by its complete name, whatever its ending.
    """
    import re

    from goldnode.disks.lines import CLASS_NAME, line_of
    from goldnode.disks.model import MANIFEST
    from goldnode.disks.places import DirectoryPlace

    root = place.root if isinstance(place, DirectoryPlace) else place.store.root / "built"
    found = re.fullmatch(r"(.+)[:-]([0-9a-f]{12})", text)
    if found is not None and not (CLASS_NAME.fullmatch(text) and (root / text).is_dir()):
        return line_of(found[1]), found[2]
    line = line_of(text)
    ids = sorted(path.parent.name for path in (root / text).glob(f"*/{MANIFEST}"))
    if len(ids) != 1:
        told = f"{len(ids)} builds" if ids else "no build"
        raise DiskError(
            f"{place.name} has {told} of {text}{': ' + ', '.join(ids) if ids else ''}",
            remedy="name one as CLASS:BUILDID" if ids else "publish one: goldnode disks publish",
        )
    return line, ids[0]


def _classes() -> list[str]:
    from goldnode.classdoc.load import load_catalog

    return sorted(load_catalog().classes)


def _known(kept: ChannelStore, place: str) -> list[str]:
    from goldnode.channels.moves import local_places

    return [line.repository for name, line in local_places(kept) if name == place]


def _locks() -> dict[str, str]:
    """Digests of the present disk locks, and whose they are. Raises GoldnodeError."""
    from goldnode.catalog.load import LOCK_SUFFIX
    from goldnode.disks.definition import load_definition
    from goldnode.disks.locking import load_disk_lock, lock_directories

    files = {
        path.name: path
        for place in reversed(lock_directories(load_definition()))
        for path in place.glob(f"*{LOCK_SUFFIX}")
    }
    return shared.lock_digests(
        {name.removesuffix(LOCK_SUFFIX): path for name, path in files.items()}, load_disk_lock, "disk lock"
    )
