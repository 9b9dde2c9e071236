"""`goldnode images publish|pull|promote|rollback|status|gc`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands import channel_moves as shared
from goldnode.commands.output import (
    CERTIFICATE,
    DRY_RUN,
    KEEP_DAYS,
    emit,
    image_store,
    options,
    reports,
    say,
)
from goldnode.core import progress
from goldnode.core.errors import ImageError

if TYPE_CHECKING:
    from goldnode.images.channels import ImagePlace
    from goldnode.oci.layout import Layout
    from goldnode.oci.registry import Registry, Where

_BACKENDS = ("cpu", "cuda", "oneapi", "rocm")

_TO = options(
    click.option(
        "--to",
        "to",
        metavar="HOST[:PORT][/PREFIX]",
        envvar="GOLDNODE_REGISTRY",
        show_default="$GOLDNODE_REGISTRY",
        help="Registry to use.",
    ),
    CERTIFICATE,
)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@image_store()
@_TO
@shared.TRUST
@shared.WAIVED
@click.option(
    "--private",
    is_flag=True,
    help="Publish content whose licence forbids redistribution; the registry must be private.",
)
@click.option("--full", is_flag=True, help="Read back all blobs, not only manifests and documents.")
@reports("published-images")
def publish(
    names: tuple[str, ...],
    store: Path | None,
    to: str | None,
    ca: Path | None,
    trust: tuple[Path, ...],
    waive: tuple[str, ...],
    by: str | None,
    reason: str | None,
    private: bool,
    full: bool,
    form: str,
) -> None:
    """Push images and their evidence to a registry.

    NAME is REPOSITORY:TAG of the store, or an image, a backend or a glob of the matrix, which select the builds
    from the current locks. Requires passed inspections and smoke tests, and a signature. Evidence is pushed
    before the immutable tags, and everything is read back. Content that the registry has is not sent again.
    """
    from goldnode.channels.requirements import ASKED
    from goldnode.evidence.size import human
    from goldnode.images.publish import publish as publishing

    shared.check_step("publish", ASKED, waive)
    layout, keys = _layout(store), shared.trusted(trust)
    refs = list(dict.fromkeys(ref for name in names for ref in _builds(store, layout, name)))
    waivers = shared.waivers_of(waive, by, reason)
    mounts: dict[str, str] = {}
    rows = []
    with _registry(to, ca) as (where, registry):
        for ref in refs:
            with _moving(registry, f"publishing {ref}"):
                done = publishing(
                    layout,
                    ref,
                    where,
                    registry,
                    trust=keys,
                    waivers=waivers,
                    private=private,
                    full=full,
                    mounts=mounts,
                )
            listed = "Referrers API" if done.api else "tag sha256-…"
            said = "there already" if done.before else f"{done.sent} blobs sent ({human(done.size)})"
            if form == "text":
                click.echo(
                    f"{done.name}@{done.digest}  {said}; {done.there} were there; {done.evidence} documents ({listed})"
                )
                for line in shared.gate_lines(gate for gate in done.gates if gate.state != "passed"):
                    click.echo(line)
            rows.append({**vars(done), "gates": shared.gate_rows(done.gates)})
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
@click.option("--no-evidence", is_flag=True, help="Do not download the attached evidence.")
@reports("pulled-image")
def pull(
    reference: str,
    store: Path | None,
    ca: Path | None,
    system: str | None,
    no_evidence: bool,
    form: str,
) -> None:
    """Download an image from a registry into the store.

    REFERENCE is HOST[:PORT]/NAME@DIGEST or HOST[:PORT]/NAME:TAG. Every byte is verified against its digest.
    """
    from goldnode.compat.workloads import parse_reference
    from goldnode.images.publish import pull as pulling
    from goldnode.oci.registry import Registry, Where, reached

    found = parse_reference(reference.removeprefix("http://").removeprefix("https://"))
    if found.registry is None:
        raise ImageError(f'"{reference}" names no registry', remedy="write it as HOST[:PORT]/NAME@sha256:…")
    wanted = found.digest or found.tag
    if wanted is None:
        raise ImageError(f'"{reference}" names no image of {found.name}', remedy="add @sha256:… or :TAG")
    place = reached(Where(found.registry, plain_http=reference.startswith("http://")))
    registry = Registry(place.host, plain_http=place.plain_http, ca=ca)
    target = registry.repository(found.name)
    with _moving(registry, f"pulling {found.name}"):
        done = pulling(_layout(store), target, wanted, evidence=not no_evidence, system=system)
    emit(
        form,
        vars(done),
        f"{done.ref}@{done.digest}  {done.fetched} blobs fetched, {done.there} were there; {done.evidence} documents",
    )
    if found.digest is None:
        click.echo(
            f"{done.name} is a tag, which may move: use the digest in scripts",
            err=True,
        )


@click.command()
@click.argument("channel")
@click.argument("name", metavar="NAME")
@image_store()
@_TO
@shared.TRUST
@shared.KEY
@shared.WAIVED
@click.option(
    "--approve-major",
    multiple=True,
    metavar="PART",
    help="Approve a new major version of cudnn or nccl; requires --by and --reason. Repeatable.",
)
@shared.EXPECT
@reports("channel-move")
def promote(
    channel: str,
    name: str,
    store: Path | None,
    to: str | None,
    ca: Path | None,
    trust: tuple[Path, ...],
    key: Path | None,
    waive: tuple[str, ...],
    by: str | None,
    reason: str | None,
    approve_major: tuple[str, ...],
    expect: str | None,
    form: str,
) -> None:
    """Point a channel to an image that meets its requirements.

    CHANNEL is candidate, canary, stable or known-good. NAME is a published image. Without --to, the channels of
    this store are moved.
    """
    from goldnode.channels.requirements import ASKED, MAJORS
    from goldnode.images.channels import promote as promoting

    shared.check_step(channel, shared.channels(ASKED), waive, approve_major, MAJORS)
    layout = _layout(store)
    repository, _, tag = name.partition(":")
    if not tag:
        found = _builds(store, layout, name)
        if len(found) > 1:
            raise ImageError(
                f"{name} means {len(found)} builds: {', '.join(found)}", remedy="name one of them"
            )
        repository, _, tag = found[0].partition(":")
    waivers = shared.waivers_of(waive, by, reason)
    approvals = shared.approvals_of(approve_major, by, reason)
    signer = shared.signer_of(key)
    with _place(to, ca, layout) as place:
        done = promoting(
            place,
            layout,
            repository,
            tag,
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
@click.argument("line")
@image_store()
@_TO
@shared.TRUST
@shared.KEY
@shared.SIGNED
@shared.CHANNEL
@click.option(
    "--to-image",
    metavar="IMAGE",
    show_default="the previous image",
    help="Image to return to: `known-good`, or a digest or immutable tag of the history.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Change only this store. The next move that reaches the registry publishes the change.",
)
@reports("channel-move")
def rollback(
    line: str,
    store: Path | None,
    to: str | None,
    ca: Path | None,
    trust: tuple[Path, ...],
    key: Path | None,
    by: str | None,
    reason: str | None,
    channel: str,
    to_image: str | None,
    offline: bool,
    form: str,
) -> None:
    """Point a channel back to its previous image.

    LINE is a series of builds, for instance cuda:12.4-runtime-debian12.
    """
    from goldnode.channels.history import read_line
    from goldnode.channels.moves import rollback as rolling
    from goldnode.channels.requirements import ASKED
    from goldnode.images.channels import StorePlace
    from goldnode.oci.registry import UnreachableError, where

    shared.check_step(channel, shared.channels(ASKED))
    layout, wanted = _layout(store), read_line(line)
    signer, keys, who = shared.signer_of(key), shared.trusted(trust), by or shared.user()
    why = reason or "rollback"
    try:
        if offline and to is not None:
            place: ImagePlace = StorePlace(layout, str(where(to)))
            done = rolling(
                place,
                layout,
                wanted,
                signer,
                by=who,
                reason=why,
                channel=channel,
                to=to_image,
                trust=keys,
                say=say,
            )
        else:
            with _place(to, ca, layout) as place:
                done = rolling(
                    place,
                    layout,
                    wanted,
                    signer,
                    by=who,
                    reason=why,
                    channel=channel,
                    to=to_image,
                    trust=keys,
                    say=say,
                )
    except UnreachableError as problem:
        problem.remedy = (
            f"roll back in this store alone with --offline, or {problem.remedy or 'run it again'}"
        )
        raise
    shared.show_moved(place.name, done, form)


@click.command()
@click.argument("lines", nargs=-1, metavar="[LINE]...")
@image_store()
@_TO
@shared.TRUST
@shared.HISTORY
@click.option("--offline", is_flag=True, help="Show this store's copy of the registry's channels.")
@click.option(
    "--repair",
    is_flag=True,
    help="Restore tags from the verified history, and publish moves that were made offline.",
)
@reports("channels")
def status(
    lines: tuple[str, ...],
    store: Path | None,
    to: str | None,
    ca: Path | None,
    trust: tuple[Path, ...],
    with_history: bool,
    offline: bool,
    repair: bool,
    form: str,
) -> None:
    """Show the channels and verify them against their history.

    LINE is a series of builds, for instance cuda:12.4-runtime-debian12; without it, all are shown.

    Exit status: 0 all channels match their history, 1 one differs from it.
    """
    from goldnode.channels import moves
    from goldnode.channels.history import read_line
    from goldnode.images import channels
    from goldnode.oci.registry import where

    layout, keys = _layout(store), shared.trusted(trust)
    with _place(None if offline else to, ca, layout) as place:
        if offline and to is not None:
            place = channels.StorePlace(layout, str(where(to)))
        wanted = [read_line(line) for line in lines] or [
            line for name in _BACKENDS for line in place.lines(name)
        ]
        repairing = (lambda line: moves.repair(place, layout, line, keys, say=say)) if repair else None
        shared.show_status(
            place, layout, wanted, keys, repairing, form, with_history, _lines if lines else None
        )


@click.command()
@image_store()
@_TO
@shared.TRUST
@KEEP_DAYS
@click.option(
    "--repository",
    "repositories",
    multiple=True,
    metavar="NAME",
    show_default=", ".join(_BACKENDS),
    help="Repository of the registry to clean, with --to. Repeatable.",
)
@DRY_RUN
@reports("gc")
def gc(
    store: Path | None,
    to: str | None,
    ca: Path | None,
    trust: tuple[Path, ...],
    days: float,
    repositories: tuple[str, ...],
    dry_run: bool,
    form: str,
) -> None:
    """Remove images that no channel, history, class or lock needs.

    Without --to the store is cleaned, with it the registry.
    """
    from goldnode.classdoc.load import load_catalog
    from goldnode.images import gc as collecting
    from goldnode.images.channels import RegistryPlace

    layout, keys = _layout(store), shared.trusted(trust)
    keeps = collecting.needed(layout, load_catalog(), _locks(), keys)
    if to is None:
        gone, stays = collecting.collect(layout, keeps, days=days, dry_run=dry_run)
    else:
        with _registry(to, ca) as (where, registry):
            place = RegistryPlace(where, registry, layout)
            gone, stays = collecting.collect_registry(
                place, layout, repositories or _BACKENDS, keeps, keys, days=days, dry_run=dry_run
            )
    shared.show_gone(gone, stays, dry_run, form)


# Shared by the commands


def _layout(store: Path | None) -> Layout:
    from goldnode.images.store import open_store

    return open_store(store).layout


def _locks() -> dict[str, str]:
    """Return the digests of the locks of the matrix, including stale ones, with their owners. Raises GoldnodeError."""
    from goldnode.images.imagelock import load_lock, lock_file
    from goldnode.images.matrix import load_matrix

    files = {name: path for name, row in load_matrix().images.items() if (path := lock_file(row)) is not None}
    return shared.lock_digests(files, load_lock, "lock")


def _lines() -> list[str]:
    """Return the lines of the matrix."""
    from goldnode.channels.history import line_of
    from goldnode.images.matrix import load_matrix
    from goldnode.oci.model import BUILD_ID_LENGTH

    rows = load_matrix().images.values()
    return sorted(
        {str(line_of(row.image.backend, row.image.immutable_tag("0" * BUILD_ID_LENGTH))) for row in rows}
    )


def _builds(store: Path | None, layout: Layout, name: str) -> list[str]:
    """Return the refs of a name: itself, the builds from the current locks of the rows it selects, else the only build."""
    from goldnode.images.imagelock import find_lock
    from goldnode.images.matrix import load_matrix
    from goldnode.images.publish import find
    from goldnode.images.store import open_store

    if ":" in name:
        return [find(layout, name)[0]]
    matrix, built = load_matrix(), open_store(store).built().values()
    rows = {
        row.name
        for row in matrix.images.values()
        if name in (row.name, row.image.backend) or fnmatchcase(row.name, name)
    }
    found: list[str] = []
    for row in (matrix.images[one] for one in sorted(rows)):
        own = [item for item in built if item.image == row.name]
        if own:
            lock = find_lock(row).digest
            found += [
                f"{row.image.backend}:{row.image.immutable_tag(item.build_id)}"
                for item in own
                if item.lock == lock
            ]
    return found or [find(layout, name)[0]]


@contextmanager
def _registry(to: str | None, ca: Path | None) -> Iterator[tuple[Where, Registry]]:
    from goldnode.oci.registry import Registry, reached, where

    if not to:
        raise ImageError("no registry is named", remedy="name it with --to, or in GOLDNODE_REGISTRY")
    place = reached(where(to))
    yield place, Registry(place.host, plain_http=place.plain_http, ca=ca)


@contextmanager
def _place(to: str | None, ca: Path | None, layout: Layout) -> Iterator[ImagePlace]:
    from goldnode.images.channels import RegistryPlace, StorePlace

    if not to:
        yield StorePlace(layout)
        return
    with _registry(to, ca) as (where, registry):
        yield RegistryPlace(where, registry, layout)


@contextmanager
def _moving(registry: Registry, what: str) -> Iterator[None]:
    """Show a byte counter on a terminal."""
    with progress.bytes_moved(what) as registry.moved:
        yield
