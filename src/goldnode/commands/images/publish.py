"""Command `goldnode images publish|pull|promote|rollback|status|gc`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.channels.product import Location
from goldnode.commands import channel_moves as shared
from goldnode.commands.options import (
    CERTIFICATE,
    DRY_RUN,
    KEEP_DAYS,
    REGISTRY,
    grouped,
    image_store,
    options,
    unsigned_option,
)
from goldnode.commands.output import emit, reports, say
from goldnode.core import progress
from goldnode.core.errors import ImageError
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from goldnode.oci.registry import Registry

_TO = options(
    image_store(),
    REGISTRY,
    CERTIFICATE,
)
AT = shared.location(_TO)


@dataclass(frozen=True)
class PullTrust:
    """Files of public keys and of root documents that a download is verified by, or the reason for an unsigned one."""

    trust: tuple[Path, ...] = ()
    roots: tuple[Path, ...] = ()
    unsigned: str | None = None


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@AT
@shared.TRUST
@shared.WAIVED
@click.option(
    "--private",
    is_flag=True,
    help="Publish content whose licence forbids redistribution; the registry must be private.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Read back all layers, also those that were sent or that were read lately.",
)
@reports("published-images")
def publish(
    names: tuple[str, ...],
    location: Location,
    trust: tuple[Path, ...],
    decision: shared.Decision,
    private: bool,
    *,
    full: bool,
    form: str,
) -> None:
    """Push images and their evidence to a registry.

    NAME is REPOSITORY:TAG of the store, or an image, a backend or a glob of the matrix, which select the builds
    from the current locks. Requires passed inspections and smoke tests, and a signature. Evidence is pushed
    before the immutable tags, and read back. Layers that the registry has are not sent again: they are read and
    validated, once in 7 days.
    """
    from goldnode.evidence.size import human
    from goldnode.images.product import ImageProduct
    from goldnode.images.publish import ImagePublication
    from goldnode.images.publish import publish as publishing

    product = ImageProduct(location)
    shared.check_step(product.requirements, "publish", decision)
    layout, keys = product.store, shared.trusted(trust)
    refs = list(dict.fromkeys(ref for name in names for ref in product.builds(name)))
    # One table of mounts for all images: a layer that two share is sent once.
    how = ImagePublication(keys, decision.waivers(), private, full, mounts={})
    rows = []
    with product.registry() as (where, registry):
        for ref in refs:
            with _moving(registry, f"publishing {ref}"):
                done = publishing(layout, ref, where, registry, how)
            listed = "Referrers API" if done.api else "tag sha256-…"
            reported = (
                "there already" if done.before else f"{done.sent} blobs sent ({human(done.size)})"
            )
            documents = f"{done.evidence} documents ({listed})"
            line = f"{done.name}@{done.digest}  {reported}; {done.there} were there; {documents}"
            rows.append(shared.show_published(done, line, form))
    emit(form, {"images": rows})


@click.command()
@click.argument("reference")
@image_store()
@CERTIFICATE
@click.option(
    "--platform",
    "system",
    metavar="OS/ARCH",
    show_default="that of this machine",
    help="Platform to select from an index.",
)
@grouped(
    "given",
    PullTrust,
    shared.TRUST,
    shared.ROOT,
    unsigned_option("in `unsigned.jsonl` of the store"),
)
@click.option("--no-evidence", is_flag=True, help="Do not store the attached evidence.")
@reports("pulled-image")
def pull(
    reference: str,
    store: Path | None,
    ca: Path | None,
    system: str | None,
    given: PullTrust,
    *,
    no_evidence: bool,
    form: str,
) -> None:
    """Download an image from a registry into the store.

    REFERENCE is HOST[:PORT]/NAME@DIGEST or HOST[:PORT]/NAME:TAG. Every byte is verified against its digest. An
    immutable tag or a channel's tag that was moved is refused, and so is an image that no trusted key has signed.
    --trust also takes a policy in the format of containers-policy.json(5).
    """
    from goldnode.compat.workloads import parse_reference
    from goldnode.evidence.signatures import unsigned_reason
    from goldnode.images.pull import ImagePull
    from goldnode.images.pull import pull as pulling
    from goldnode.images.store import open_store
    from goldnode.oci.registry import Registry, RegistryAddress, RegistryOptions, reached

    named = parse_reference(reference.removeprefix("http://").removeprefix("https://"))
    if named.registry is None:
        raise ImageError(
            f'"{reference}" names no registry', remedy="write it as HOST[:PORT]/NAME@sha256:…"
        )
    wanted = named.digest or named.tag
    if wanted is None:
        raise ImageError(
            f'"{reference}" names no image of {named.name}', remedy="add @sha256:… or :TAG"
        )
    place = reached(RegistryAddress(named.registry, plain_http=reference.startswith("http://")))
    registry = Registry(place.host, RegistryOptions(place.plain_http, ca))
    target = registry.repository(named.name)
    policy = shared.trust_policy(given.trust)
    reason = unsigned_reason(reference, policy is not None, given.unsigned)
    layout = open_store(store).layout
    how = ImagePull(
        policy, Location(store, roots=given.roots).trusted_roots(), not no_evidence, system
    )
    with _moving(registry, f"pulling {named.name}"):
        done = pulling(layout, target, wanted, how)
    if reason:
        shared.record_unsigned(layout, done.name, done.digest, reason)
    signed = f"signature not verified{phrase(': {}', reason)}"
    if done.signed_by:
        signed = f"signed by key {', '.join(done.signed_by)}"
    emit(
        form,
        {**vars(done), "signed_by": list(done.signed_by)},
        f"{done.ref}@{done.digest}  {done.fetched} blobs fetched, {done.there} were there; "
        f"{done.evidence} documents; {signed}",
    )
    if named.digest is None:
        click.echo(
            f"{done.name} is a tag, which may move: use the digest in scripts",
            err=True,
        )


@click.command()
@click.argument("channel")
@click.argument("name", metavar="NAME")
@AT
@shared.SIGNERS
@shared.approved(
    "Approve a new major version of cudnn or nccl; requires --by and --reason. Repeatable."
)
@reports("channel-move")
def promote(
    channel: str,
    name: str,
    location: Location,
    keys: shared.Keys,
    decision: shared.Decision,
    *,
    form: str,
) -> None:
    """Point a channel to an image that meets its requirements.

    CHANNEL is candidate, canary, stable or known-good. NAME is a published image. Without --to, the channels of
    this store are moved.
    """
    from goldnode.images.product import ImageProduct

    shared.show_moved(shared.promote(ImageProduct(location), channel, name, keys, decision), form)


@click.command()
@click.argument("line")
@shared.location(
    _TO,
    offline="Change only this store. The next move that reaches the registry publishes the change.",
)
@shared.SIGNERS
@shared.DECIDED
@shared.CHANNEL
@click.option(
    "--to-image",
    metavar="IMAGE",
    show_default="the previous image",
    help="Image to return to: `known-good`, or a digest or immutable tag of the history.",
)
@reports("channel-move")
def rollback(
    line: str,
    location: Location,
    keys: shared.Keys,
    decision: shared.Decision,
    channel: str,
    *,
    to_image: str | None,
    form: str,
) -> None:
    """Point a channel back to its previous image.

    LINE is a series of builds, for instance cuda:12.4-runtime-debian12.
    """
    from goldnode.images.product import ImageProduct
    from goldnode.oci.registry import UnreachableError

    try:
        shown = shared.rollback(
            ImageProduct(location),
            line=line,
            channel=channel,
            to=to_image,
            keys=keys,
            decision=decision,
        )
    except UnreachableError as problem:
        # A rollback is urgent, and works without the registry.
        problem.remedy = (
            f"roll back in this store alone with --offline, or {problem.remedy or 'run it again'}"
        )
        raise
    shared.show_moved(shown, form)


@click.command()
@click.argument("lines", nargs=-1, metavar="[LINE]...")
@shared.location(_TO, offline="Show this store's copy of the registry's channels.")
@shared.status_options("tags")
@reports("channels")
def status(
    lines: tuple[str, ...], location: Location, how: shared.StatusOptions, form: str
) -> None:
    """Show the channels and verify them against their history.

    LINE is a series of builds, for instance cuda:12.4-runtime-debian12; without it, all are shown.

    Exit status: 0 all channels match their history, 1 one differs from it.
    """
    from goldnode.images.product import ImageProduct

    shared.show_status(ImageProduct(location), lines, how, form)


@click.command()
@AT
@KEEP_DAYS
@click.option(
    "--repository",
    "repositories",
    multiple=True,
    metavar="NAME",
    show_default="cpu, cuda, oneapi, rocm, and the derived images of the store",
    help="Repository of the registry to clean, with --to. Repeatable.",
)
@DRY_RUN
@reports("gc")
def gc(
    location: Location,
    days: float,
    repositories: tuple[str, ...],
    dry_run: bool,
    *,
    form: str,
) -> None:
    """Remove images that no channel, move, class or lock needs.

    Without --to the store is cleaned, with it the registry.
    """
    from goldnode.channels.gc import Collection
    from goldnode.images.product import ImageProduct

    product = ImageProduct(location, repositories)
    if location.to:
        say(f"repositories of {location.to}: {', '.join(product.repositories)}")
    shared.collect(product, Collection(days, dry_run), form)


@contextmanager
def _moving(registry: Registry, what: str) -> Iterator[None]:
    """Show a byte counter on a terminal."""
    with progress.bytes_moved(what) as registry.moved:
        yield
