"""Command `goldnode disks evidence|authenticate|diff|publish|pull|promote|rollback|status|gc`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from goldnode.channels.product import Location
from goldnode.commands import channel_moves as shared
from goldnode.commands.options import (
    BACKEND,
    CERTIFICATE,
    DRY_RUN,
    IMAGE_FORMAT,
    KEEP_DAYS,
    POLICY,
    disk_store,
    options,
    published_disks,
)
from goldnode.commands.output import emit, reports, say
from goldnode.core.errors import DiskError

_TO = options(
    disk_store(),
    published_disks(),
)
_DISKS = click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS...")
_AT = shared.location(_TO)
_ROOTED = shared.location(disk_store())
_STORE = shared.location(disk_store(), rooted=False)


@click.command()
@_DISKS
@_STORE
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
    location: Location,
    made: shared.EvidenceKeys,
    against: str | None,
    backend: str | None,
    *,
    policy: Path | None,
    form: str,
) -> None:
    """Write SBOMs, provenance, reports and a signature next to disk images.

    The reports cover vulnerabilities, inspection and size. Run this after `goldnode disks verify`: the signature
    covers the record of the boots, too.

    Exit status: 0 written, 1 the inspection refuses an image.
    """
    from goldnode.disks.evidence import TITLES, DiskEvidenceOptions, document, write
    from goldnode.disks.product import DiskProduct

    product = DiskProduct(location)
    if against and len(disks) > 1:
        raise DiskError(
            f"--against is for one disk, and {len(disks)} are named",
            remedy="name the one that it precedes",
        )
    signer, known, builder = shared.made_with(made)
    options = DiskEvidenceOptions(
        cache=product.store.cache,
        signer=signer,
        databases=known,
        against=product.build(against) if against else None,
        builder=builder,
        backend=backend,
        policy=policy,
    )
    lines, passed = [], True
    for name in disks:
        disk = product.build(name)
        written = write(disk, options)
        passed = passed and bool(json.loads(document(disk, "inspection").read_bytes())["passed"])
        lines.append({"disk": disk.name, "documents": [vars(one) for one in written]})
        if form == "text":
            click.echo(disk.name)
            for one in written:
                click.echo(f"  {one.state:<8} {TITLES.get(one.kind, one.kind):<16} {one.line}")
    emit(form, {"results": lines})
    shared.note_unsigned(signer)
    if not passed:
        sys.exit(1)


@click.command()
@_DISKS
@_STORE
@shared.TRUST
@click.option(
    "--no-content", is_flag=True, help="Check only the documents, not the files of the disk image."
)
@reports("verification")
def authenticate(
    disks: tuple[str, ...], location: Location, trust: tuple[Path, ...], no_content: bool, form: str
) -> None:
    """Verify the content, the evidence and the signatures of disk images.

    This is what `goldnode images verify` does for container images; `goldnode disks verify` boots an image.

    Exit status: 0 verified, 1 not verified.
    """
    from goldnode.disks.evidence import authenticate as check
    from goldnode.disks.product import DiskProduct

    product, keys = DiskProduct(location), shared.trusted(trust)
    built = [product.build(name) for name in disks]
    shared.show_verified(
        [(disk.name, check(disk, keys, content=not no_content)) for disk in built], form
    )


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@_STORE
@shared.FILES
@reports("disk-diff")
def diff(old: str, new: str, location: Location, files: bool, form: str) -> None:
    """Show the differences between two disk images.

    OLD and NEW are a directory, a NAME, a CLASS (its newest build) or CLASS:CHANNEL. Packages, kernel, driver,
    files and sizes are compared; `goldnode disks compare` compares two raw disks byte by byte. The exit status is
    0 whether they differ or not.
    """
    from goldnode.disks.evidence import compare
    from goldnode.disks.product import DiskProduct

    product = DiskProduct(location)
    difference = compare(product.build(old), product.build(new), product.store.cache)
    emit(form, difference.data(), lambda: difference.text(files=files))


@click.command()
@_DISKS
@_AT
@shared.KEYS
@shared.WAIVED
@reports("published-disks")
def publish(
    disks: tuple[str, ...],
    location: Location,
    keys: shared.Keys,
    decision: shared.Decision,
    form: str,
) -> None:
    """Copy disk images and their evidence to a published directory.

    An HTTP server serves the directory, which has checksums and signatures. Requires a record of two good boots,
    a passed inspection and hygiene check, and a signature. Existing files are verified, not copied. Signatures for
    Secure Boot (`goldnode disks sign`) that are made later are added to what is published.
    """
    from goldnode.channels.requirements import Decisions
    from goldnode.core.site import load_site
    from goldnode.disks.product import DiskProduct
    from goldnode.disks.publish import publish as publishing
    from goldnode.disks.requirements import AFTER_BUILD, judge_one
    from goldnode.evidence.size import human

    product = DiskProduct(location)
    shared.check_step(product.requirements, "publish", decision)
    signer, trust = shared.signer_of(keys.key), shared.trusted(keys.trust)
    place = product.directory(signer)
    waivers = decision.waivers()
    given = Decisions((*trust, signer.public), limits=load_site().images.vulnerability_limits)
    rows = []
    for name in disks:
        disk = product.build(name)
        done = publishing(disk, place, signer, trust=trust, waivers=waivers)
        if done.signatures:
            reported = "there already; the signatures for Secure Boot are added"
        elif done.before:
            reported = "there already, and whole"
        else:
            reported = f"{done.files} files ({human(done.size)})"
        line = f"{done.directory}  {done.digest[:19]}  {reported}"
        rows.append(shared.show_published(done, line, form))
        # A publication never changes, so documents that a later channel requires must be in it now.
        short = [name for name in AFTER_BUILD if not judge_one(name, disk, given).met]
        if not done.before and short:
            say(
                f"note: canary or stable also require {', '.join(short)}, which this publication lacks"
            )
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
@_ROOTED
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
    location: Location,
    trust: tuple[Path, ...],
    ca: Path | None,
    *,
    formats: tuple[str, ...],
    form: str,
) -> None:
    """Download a published disk image into the store.

    The target of a channel is verified by a trusted root (--root), and every byte against the checksums that a trusted
    key (--trust) signed. An interrupted download is resumed.
    """
    from goldnode.disks.product import DiskProduct
    from goldnode.disks.publish import PullSource
    from goldnode.disks.publish import pull as pulling

    source, store, keys = PullSource(origin, ca), DiskProduct(location).store, shared.trusted(trust)
    done = pulling(
        source,
        store,
        name,
        trust=keys,
        roots=location.trusted_roots(),
        formats=formats or ("raw.zst",),
        say=say,
    )
    emit(
        form,
        {
            "directory": done.disk.directory,
            "digest": done.digest,
            "fetched": done.fetched,
            "there": done.there,
        },
        f"{done.disk.directory}  {done.digest[:19]}  {done.fetched} files fetched, {done.there} were there",
    )


@click.command()
@click.argument("channel")
@click.argument("disk", metavar="CLASS[:BUILDID]|NAME")
@_AT
@shared.SIGNERS
@shared.approved(
    "Approve another series of kernel or driver; requires --by and --reason. Repeatable."
)
@reports("channel-move")
def promote(
    channel: str,
    disk: str,
    location: Location,
    keys: shared.Keys,
    decision: shared.Decision,
    *,
    form: str,
) -> None:
    """Point a channel to a disk image that meets its requirements.

    CHANNEL is candidate, canary, stable or known-good. The requirements are judged by the published evidence.
    Without --to, the channels of this store are moved.
    """
    from goldnode.disks.product import DiskProduct

    shared.show_moved(shared.promote(DiskProduct(location), channel, disk, keys, decision), form)


@click.command()
@click.argument("class_", metavar="CLASS")
@shared.location(
    _TO,
    offline="Change only this store. The next move that reaches the directory publishes the change.",
)
@shared.SIGNERS
@shared.DECIDED
@shared.CHANNEL
@click.option(
    "--to-disk",
    metavar="DISK",
    show_default="the previous disk image",
    help="Disk image to return to: `known-good`, or a build ID or digest of the history.",
)
@reports("channel-move")
def rollback(
    class_: str,
    location: Location,
    keys: shared.Keys,
    decision: shared.Decision,
    channel: str,
    *,
    to_disk: str | None,
    form: str,
) -> None:
    """Point a channel back to its previous disk image."""
    from goldnode.disks.product import DiskProduct

    shared.show_moved(
        shared.rollback(
            DiskProduct(location),
            line=class_,
            channel=channel,
            to=to_disk,
            keys=keys,
            decision=decision,
        ),
        form,
    )


@click.command()
@click.argument("classes", nargs=-1, metavar="[CLASS]...")
@shared.location(_TO, offline="Show this store's copy of the directory's channels.")
@shared.status_options("channels")
@reports("channels")
def status(
    classes: tuple[str, ...], location: Location, how: shared.StatusOptions, form: str
) -> None:
    """Show the channels and verify them against their history.

    Exit status: 0 all channels match their history, 1 one differs from it.
    """
    from goldnode.disks.product import DiskProduct

    shared.show_status(DiskProduct(location), classes, how, form)


@click.command()
@_AT
@KEEP_DAYS
@DRY_RUN
@reports("gc")
def gc(location: Location, days: float, dry_run: bool, form: str) -> None:
    """Remove disk images that no channel, move, class or lock needs.

    Without --to the store is cleaned, with it the published directory.
    """
    from goldnode.channels.gc import Collection
    from goldnode.disks.product import DiskProduct

    shared.collect(DiskProduct(location), Collection(days, dry_run), form)
