"""`goldnode disks evidence|authenticate|diff|publish|pull|promote|rollback|status|gc`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands import channel_moves as shared
from goldnode.commands.output import (
    BACKEND,
    CERTIFICATE,
    DRY_RUN,
    IMAGE_FORMAT,
    KEEP_DAYS,
    POLICY,
    disk_store,
    emit,
    reports,
    say,
)
from goldnode.core.errors import DiskError

if TYPE_CHECKING:
    from goldnode.disks.lines import ClassLine
    from goldnode.disks.places import ChannelStore, DirectoryPlace, StorePlace
    from goldnode.evidence.signatures import Signer

_TO = click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="GOLDNODE_DISKS_PLACE",
    metavar="DIR",
    show_default="$GOLDNODE_DISKS_PLACE",
    help="Published directory.",
)


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS...")
@disk_store()
@shared.MADE_WITH
@click.option(
    "--against",
    metavar="DIR|NAME|CLASS:CHANNEL",
    help="Also write the differences to this earlier disk image. Only for one image.",
)
@BACKEND
@POLICY
@reports("evidence")
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
    """Write SBOMs, provenance, reports and a signature next to disk images.

    The reports cover vulnerabilities, inspection and size. Run this after `goldnode disks verify`: the signature
    covers the record of the boots, too.

    Exit status: 0 written, 1 the inspection refuses an image.
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
    emit(form, {"results": told})
    if options.signer is None:
        click.echo(
            "Nothing was signed: name a key with --key, or as images.signing_key in the site file.", err=True
        )
    if not passed:
        sys.exit(1)


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS...")
@disk_store()
@shared.TRUST
@click.option("--no-content", is_flag=True, help="Check only the documents, not the files of the disk image.")
@reports("verification")
def authenticate(
    disks: tuple[str, ...], store: Path | None, trust: tuple[Path, ...], no_content: bool, form: str
) -> None:
    """Verify the content, the evidence and the signatures of disk images.

    This is what `goldnode images verify` does for container images; `goldnode disks verify` boots an image.

    Exit status: 0 verified, 1 not verified.
    """
    from goldnode.disks.evidence import authenticate as check

    kept, keys = _store(store), shared.trusted(trust)
    found = [_find(kept, name) for name in disks]
    shared.show_verified([(disk.name, check(disk, keys, content=not no_content)) for disk in found], form)


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@disk_store()
@shared.FILES
@reports("disk-diff")
def diff(old: str, new: str, store: Path | None, files: bool, form: str) -> None:
    """Show the differences between two disk images.

    OLD and NEW are a directory, a NAME, a CLASS (its newest build) or CLASS:CHANNEL. Packages, kernel, driver,
    files and sizes are compared; `goldnode disks compare` compares two raw disks byte by byte. The exit status is
    0 whether they differ or not.
    """
    from goldnode.disks.evidence import compare

    kept = _store(store)
    difference = compare(_find(kept, old), _find(kept, new), kept.cache)
    emit(form, difference.data(), lambda: difference.text(files=files))


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS...")
@disk_store()
@_TO
@shared.TRUST
@shared.KEY
@shared.WAIVED
@reports("published-disks")
def publish(
    disks: tuple[str, ...],
    store: Path | None,
    to: Path | None,
    trust: tuple[Path, ...],
    key: Path | None,
    waive: tuple[str, ...],
    by: str | None,
    reason: str | None,
    form: str,
) -> None:
    """Copy disk images and their evidence to a published directory.

    An HTTP server serves the directory, which has checksums and signatures. Requires a record of two good boots,
    a passed inspection and hygiene check, and a signature. Existing files are verified, not copied.
    """
    from goldnode.disks.publish import publish as publishing
    from goldnode.disks.requirements import ASKED, LATER, judge
    from goldnode.evidence.size import human

    shared.check_step("publish", ASKED, waive)
    kept, signer, keys = _store(store), shared.signer_of(key), shared.trusted(trust)
    place = _directory(to, kept, signer)
    waivers = shared.waivers_of(waive, by, reason)
    rows = []
    for name in disks:
        disk = _find(kept, name)
        done = publishing(disk, place, signer, trust=keys, waivers=waivers)
        said = "there already, and whole" if done.before else f"{done.files} files ({human(done.size)})"
        rows.append({**vars(done), "gates": shared.gate_rows(done.gates)})
        if form == "text":
            click.echo(f"{done.directory}  {done.digest[:19]}  {said}")
            for line in shared.gate_lines(gate for gate in done.gates if gate.state != "passed"):
                click.echo(line)
        # A publication never changes, so documents that a later channel requires must be in it now.
        short = [
            gate.name
            for gate in judge("stable", disk, trust=(*keys, signer.public), only=LATER)
            if not gate.open
        ]
        if not done.before and short:
            say(f"note: canary or stable also require {', '.join(short)}, which this publication lacks")
    emit(form, {"disks": rows})


@click.command()
@click.argument("name", metavar="CLASS[:CHANNEL|:BUILDID]")
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="URL|DIR",
    envvar="GOLDNODE_DISKS_FROM",
    show_default="$GOLDNODE_DISKS_FROM",
    help="Published directory, or its URL.",
)
@disk_store()
@shared.TRUST
@CERTIFICATE
@click.option(
    "--image-format",
    "formats",
    multiple=True,
    metavar="FORMAT",
    show_default="raw.zst, which is unpacked to raw",
    help="Format to download. Repeatable.",
)
@reports("pulled-disk", hint=IMAGE_FORMAT)
def pull(
    name: str,
    origin: str,
    store: Path | None,
    trust: tuple[Path, ...],
    ca: Path | None,
    formats: tuple[str, ...],
    form: str,
) -> None:
    """Download a published disk image into the store.

    Every byte is verified against the checksums that a trusted key signed. An interrupted download is resumed.
    """
    from goldnode.disks.publish import pull as pulling
    from goldnode.disks.publish import source_of

    class_, _, wanted = name.partition(":")
    source, kept, keys = source_of(origin, ca), _store(store), shared.trusted(trust)
    done = pulling(
        source, kept, class_, wanted or "stable", trust=keys, formats=formats or ("raw.zst",), say=say
    )
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    emit(
        form,
        {
            "directory": done.disk.directory,
            "digest": done.digest,
            "fetched": done.fetched,
            "there": done.there,
            "notes": done.notes,
        },
        f"{done.disk.directory}  {done.digest[:19]}  {done.fetched} files fetched, {done.there} were there",
    )


@click.command()
@click.argument("channel")
@click.argument("disk", metavar="CLASS[:BUILDID]|NAME")
@disk_store()
@_TO
@shared.TRUST
@shared.KEY
@shared.WAIVED
@click.option(
    "--approve-major",
    multiple=True,
    metavar="PART",
    help="Approve another series of kernel or driver; requires --by and --reason. Repeatable.",
)
@shared.EXPECT
@reports("channel-move")
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
    form: str,
) -> None:
    """Point a channel to a disk image that meets its requirements.

    CHANNEL is candidate, canary, stable or known-good. The requirements are judged by the published evidence.
    Without --to, the channels of this store are moved.
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
        say=say,
    )
    shared.show_moved(place.name, done, form)


@click.command()
@click.argument("class_", metavar="CLASS")
@disk_store()
@_TO
@shared.TRUST
@shared.KEY
@shared.SIGNED
@shared.CHANNEL
@click.option(
    "--to-disk",
    metavar="DISK",
    show_default="the previous disk image",
    help="Disk image to return to: `known-good`, or a build ID or digest of the history.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Change only this store. The next move that reaches the directory publishes the change.",
)
@reports("channel-move")
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
    form: str,
) -> None:
    """Point a channel back to its previous disk image."""
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
        "say": say,
    }
    done = rolling(
        place, kept, line_of(class_), signer, by=by or shared.user(), reason=reason or "rollback", **given
    )
    shared.show_moved(place.name, done, form)


@click.command()
@click.argument("classes", nargs=-1, metavar="[CLASS]...")
@disk_store()
@_TO
@shared.TRUST
@shared.HISTORY
@click.option("--offline", is_flag=True, help="Show this store's copy of the directory's channels.")
@click.option(
    "--repair",
    "repairing",
    is_flag=True,
    help="Restore channels from the verified history, and publish moves that were made offline.",
)
@reports("channels")
def status(
    classes: tuple[str, ...],
    store: Path | None,
    to: Path | None,
    trust: tuple[Path, ...],
    with_history: bool,
    offline: bool,
    repairing: bool,
    form: str,
) -> None:
    """Show the channels and verify them against their history.

    Exit status: 0 all channels match their history, 1 one differs from it.
    """
    from goldnode.disks.channels import repair
    from goldnode.disks.lines import line_of
    from goldnode.disks.places import DirectoryPlace, StorePlace

    kept, keys = _store(store), shared.trusted(trust)
    place = StorePlace(kept, str(to.absolute())) if offline and to is not None else _place(to, kept, None)
    known = place.classes() if isinstance(place, DirectoryPlace) else _known(kept, place.name)
    lines = [line_of(name) for name in classes or known]
    again = (lambda line: repair(place, kept, line, keys, say)) if repairing else None
    shared.show_status(place, kept, lines, keys, again, form, with_history, _classes if classes else None)


@click.command()
@disk_store()
@_TO
@shared.TRUST
@KEEP_DAYS
@DRY_RUN
@reports("gc")
def gc(
    store: Path | None, to: Path | None, trust: tuple[Path, ...], days: float, dry_run: bool, form: str
) -> None:
    """Remove disk images that no channel, history, class or lock needs.

    Without --to the store is cleaned, with it the published directory.
    """
    from goldnode.classdoc.load import load_catalog
    from goldnode.disks import gc as collecting

    kept, keys = _store(store), shared.trusted(trust)
    keeps = collecting.needed(kept, load_catalog().whole(), _locks(), keys)
    if to is None:
        gone, stays = collecting.collect(kept, keeps, days=days, dry_run=dry_run)
    else:
        gone, stays = collecting.collect_place(
            _directory(to, kept, None), kept, keeps, keys, days=days, dry_run=dry_run
        )
    shared.show_gone(gone, stays, dry_run, form)


# Shared by the commands


def _store(named: Path | None) -> ChannelStore:
    from goldnode.disks.model import store_directory
    from goldnode.disks.places import ChannelStore

    return ChannelStore(store_directory(named))


def _find(kept: ChannelStore, text: str) -> Any:
    """Return a build: a directory, a NAME, a CLASS (its newest), or CLASS:CHANNEL or CLASS:BUILDID of the store."""
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
    """Return the digests of the current disk locks with their owners. Raises GoldnodeError."""
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
