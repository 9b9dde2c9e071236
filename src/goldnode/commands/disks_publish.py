"""`goldnode disks evidence|authenticate|diff|publish|pull|promote|rollback|status|gc`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.channel_moves import human, options, show_gates, show_stand, signed, signer_of, trusted, user, waivers_of
from goldnode.errors import DiskError

if TYPE_CHECKING:
    from goldnode.disks.channels import ClassLine, DirectoryPlace, StorePlace
    from goldnode.disks.channels import Store as DiskStore
    from goldnode.images.evidence.signatures import Signer
    from goldnode.images.gates import Approval

_Command = Callable[..., Any]

_STORE = click.option(
    "--store", type=click.Path(file_okay=False, path_type=Path), help="Store of disks; default: $GOLDNODE_DISKS, else .goldnode/disks."
)
_TO = click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="GOLDNODE_DISKS_PLACE",
    help="Published directory; default: $GOLDNODE_DISKS_PLACE.",
)
_TRUST = click.option(
    "--trust",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Public keys (PEM) whose signatures count; default: images.public_key of the site file.",
)
_KEY = click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="GOLDNODE_IMAGE_KEY",
    help="Secret key (PEM) to sign with; its public half is trusted. Default: $GOLDNODE_IMAGE_KEY, else the site's.",
)
_WAIVE = click.option("--waive", multiple=True, metavar="GATE", help="Let this gate pass; needs --by and --reason, which are recorded.")
_BY = click.option("--by", help="Who decides; recorded. Default for a move without waiver or approval: your user name.")
_REASON = click.option("--reason", help="Why; recorded.")
_FORM = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS…")
@_STORE
@click.option(
    "--key", type=click.Path(dir_okay=False, path_type=Path), help="Secret key to sign with, PEM; default: the site's, else unsigned."
)
@click.option(
    "--database",
    "databases",
    multiple=True,
    metavar="KIND=FILE[@DATE]",
    help="Vulnerability database (debian or osv) with its date; default: the site's.",
)
@click.option("--against", metavar="DIR|NAME|CLASS:CHANNEL", help="Write the difference to this earlier disk too; for one disk.")
@click.option("--backend", help="Backend to inspect it for; default: that of the class in the disk.")
@click.option(
    "--policy", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Another purity.yml, with a site's own waivers."
)
@_FORM
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
    from goldnode.images.evidence import signatures, vulnerabilities
    from goldnode.images.evidence.provenance import BUILDER
    from goldnode.site import load_site

    site, kept = load_site(), _store(store)
    if against and len(disks) > 1:
        raise DiskError(f"--against is for one disk, and {len(disks)} are named", remedy="name the one that it precedes")
    secret = key or (site.resolve(site.images.signing_key) if site.images.signing_key else None)
    base = site.file.parent if site.file is not None and not databases else None
    options = Options(
        cache=kept.cache,
        signer=signatures.load_signer(secret) if secret is not None else None,
        databases=tuple(vulnerabilities.load(text, base) for text in databases or site.images.vulnerabilities),
        against=_find(kept, against) if against else None,
        builder=site.images.builder or BUILDER,
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
        click.echo(json.dumps(told, indent=1, sort_keys=True, ensure_ascii=False))
    if options.signer is None:
        click.echo("Nothing was signed: name a key with --key, or as images.signing_key in the site file.", err=True)
    if not passed:
        sys.exit(1)


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS…")
@_STORE
@_TRUST
@click.option("--no-content", is_flag=True, help="Take the disk's own files on trust; only the documents are read.")
@_FORM
def authenticate(disks: tuple[str, ...], store: Path | None, trust: tuple[Path, ...], no_content: bool, form: str) -> None:
    """Check that disks are whole, that every document is about them, and who signed it. Exit 1 where that is not so.

    What `goldnode images verify` does for an image; `goldnode disks verify` boots a disk.
    """
    from goldnode.disks.evidence import authenticate as check

    kept, keys = _store(store), trusted(trust)
    found = [_find(kept, name) for name in disks]
    results = [check(disk, keys, content=not no_content) for disk in found]
    if form == "json":
        click.echo(json.dumps([result.data() for result in results], indent=1, sort_keys=True, ensure_ascii=False))
    else:
        for disk, result in zip(found, results, strict=True):
            click.echo(f"{disk.name}\n{result.text()}")
    if not all(result.passed for result in results):
        sys.exit(1)


@click.command()
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@_STORE
@click.option("--files", is_flag=True, help="Name every file, not the first ones.")
@_FORM
def diff(old: str, new: str, store: Path | None, files: bool, form: str) -> None:
    """Show what differs between the disks A and B: packages, kernel, driver, files, size. Exit 0 whether they differ or not.

    Each is a directory, a NAME, a CLASS (its newest build) or CLASS:CHANNEL. `goldnode disks compare` tells two raw disks apart byte by byte.
    """
    from goldnode.disks.evidence import compare

    kept = _store(store)
    difference = compare(_find(kept, old), _find(kept, new), kept.cache)
    if form == "json":
        click.echo(json.dumps(difference.data(), indent=1, sort_keys=True, ensure_ascii=False))
    else:
        click.echo(difference.text(files=files))


@click.command()
@click.argument("disks", nargs=-1, required=True, metavar="DIR|NAME|CLASS…")
@_STORE
@_TO
@_TRUST
@_KEY
@options(_WAIVE, _BY, _REASON)
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
    """Copy disks with their evidence to a directory that an HTTP server serves, checksummed and signed.

    Needs a record of two good boots, a passed inspection and hygiene, and a signature. What is there already is checked, not copied.
    """
    from goldnode.disks.channels import LATER, judge
    from goldnode.disks.publish import publish as publishing

    kept, signer, keys = _store(store), signer_of(key), trusted(trust)
    place = _directory(to, kept, signer)
    waivers = waivers_of(waive, by, reason)
    for name in disks:
        disk = _find(kept, name)
        done = publishing(disk, place, signer, trust=keys, waivers=waivers)
        said = "there already, and whole" if done.before else f"{done.files} files ({human(done.size)})"
        click.echo(f"{done.directory}  {done.digest[:19]}  {said}")
        show_gates([gate for gate in done.gates if gate.state != "passed"])
        # What is published never changes, so what a later channel will ask for has to be in it now.
        short = [gate.name for gate in judge("stable", disk, trust=(*keys, signer.public), only=LATER) if not gate.open]
        if not done.before and short:
            click.echo(f"note: canary or stable will also ask for {', '.join(short)}, which this publication lacks", err=True)


@click.command()
@click.argument("name", metavar="CLASS[:CHANNEL|:BUILDID]")
@click.option(
    "--from", "origin", required=True, metavar="URL|DIR", envvar="GOLDNODE_DISKS_FROM", help="Published directory, or its address."
)
@_STORE
@_TRUST
@click.option("--ca", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate of the server's authority, PEM.")
@click.option("--format", "formats", multiple=True, help="What to bring (repeat); default: raw.zst, of which the raw disk is made.")
def pull(name: str, origin: str, store: Path | None, trust: tuple[Path, ...], ca: Path | None, formats: tuple[str, ...]) -> None:
    """Bring a published disk into the store, every byte held against what a trusted key signed; a cut pull goes on where it stopped."""
    from goldnode.disks.publish import pull as pulling
    from goldnode.disks.publish import source_of

    class_, _, wanted = name.partition(":")
    done = pulling(
        source_of(origin, ca), _store(store), class_, wanted or "stable", trust=trusted(trust), formats=formats or ("raw.zst",), say=_say
    )
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{done.disk.directory}  {done.digest[:19]}  {done.fetched} files fetched, {done.there} were there")


@click.command()
@click.argument("channel")
@click.argument("disk", metavar="CLASS[:BUILDID]|NAME")
@_STORE
@_TO
@_TRUST
@_KEY
@options(_WAIVE, _BY, _REASON)
@click.option("--approve-major", multiple=True, metavar="PART", help="Approve another series of kernel or driver; needs --by and --reason.")
@click.option("--expect", metavar="DIGEST", help="What the channel has to stand for now; `none` for nothing.")
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
    """Let CHANNEL (candidate, canary, stable, known-good) of a class stand for a build; every gate is judged by what is published.

    Without --to the channels are those of the store by itself.
    """
    from goldnode.disks.channels import promote as promoting
    from goldnode.images.gates import Approval

    kept, signer = _store(store), signer_of(key)
    place = _place(to, kept, signer)
    line, build_id = _build(place, disk)
    waivers = waivers_of(waive, by, reason)
    approvals: list[Approval] = [Approval(part, *signed(by, reason, "--approve-major")) for part in approve_major]
    done = promoting(
        place,
        kept,
        line,
        build_id,
        channel,
        signer,
        by=by or user(),
        reason=reason or "",
        trust=trusted(trust),
        waivers=waivers,
        approvals=approvals,
        expect=expect,
        say=_say,
    )
    show_gates(done.gates)
    _moved(place.name, done)


@click.command()
@click.argument("class_", metavar="CLASS")
@_STORE
@_TO
@_TRUST
@_KEY
@options(_BY, _REASON)
@click.option("--channel", default="stable", show_default=True)
@click.option("--to-disk", metavar="DISK", help="`known-good`, or a build id or digest of the history; default: what it was before.")
@click.option("--offline", is_flag=True, help="Use and change this store alone; the place gets it with the next move that reaches it.")
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
    """Let a channel of CLASS stand for the disk it stood for before."""
    from goldnode.disks.channels import StorePlace, line_of
    from goldnode.disks.channels import rollback as rolling

    kept, signer = _store(store), signer_of(key)
    place = StorePlace(kept, str(to.absolute())) if offline and to is not None else _place(to, kept, signer)
    given: dict[str, Any] = {"channel": channel, "to": to_disk, "trust": trusted(trust), "say": _say}
    done = rolling(place, kept, line_of(class_), signer, by=by or user(), reason=reason or "rollback", **given)
    _moved(place.name, done)


@click.command()
@click.argument("classes", nargs=-1, metavar="[CLASS]…")
@_STORE
@_TO
@_TRUST
@click.option("--history", "with_history", is_flag=True, help="Every move, oldest first.")
@click.option("--offline", is_flag=True, help="This store's copy of what the place has.")
@click.option("--repair", "mend", is_flag=True, help="Give channels back to what the verified history says.")
@_FORM
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
    """Show the channels, held against the signed history. Exit 1 where one is not what the history says."""
    from goldnode.disks.channels import DirectoryPlace, StorePlace, line_of, repair
    from goldnode.images import channels as moves

    kept, keys = _store(store), trusted(trust)
    place = StorePlace(kept, str(to.absolute())) if offline and to is not None else _place(to, kept, None)
    known = place.classes() if isinstance(place, DirectoryPlace) else _known(kept, place.name)
    documents: list[dict[str, Any]] = []
    bad = False
    for name in classes or known:
        line = line_of(name)
        for stand in repair(place, kept, line, keys, _say) if mend else []:
            click.echo(f"{place.name}: {stand.channel} of {line} is {stand.tag} again", err=True)
        found = moves.status(place, kept, line, keys)
        bad = bad or bool(found.pending) or any(stand.state != "ok" for stand in found.stands)
        documents.append(
            {
                "place": place.name,
                "line": str(line),
                "verified": found.verified,
                "pending": found.pending,
                "channels": [{**vars(stand), "line": str(line)} for stand in found.stands],
                "history": [entry.document() for entry in found.history.entries],
            }
        )
    if form == "json":
        click.echo(json.dumps(documents, indent=1))
    else:
        for document in documents:
            show_stand(document, with_history)
        if not documents:
            click.echo("no channel stands for anything yet")
    if bad:
        raise SystemExit(1)


@click.command()
@_STORE
@_TO
@_TRUST
@click.option("--days", type=click.FloatRange(0), default=30, show_default=True, help="What is younger stays.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
def gc(store: Path | None, to: Path | None, trust: tuple[Path, ...], days: float, dry_run: bool) -> None:
    """Take out of the store, or with --to out of a published directory, what no channel, history, class or lock names."""
    from goldnode.catalog.load import load_catalog
    from goldnode.disks import gc as collecting

    kept, keys = _store(store), trusted(trust)
    keeps = collecting.needed(kept, load_catalog(), _locks(), keys)
    if to is None:
        gone, stays = collecting.collect(kept, keeps, days=days, dry_run=dry_run)
    else:
        gone, stays = collecting.collect_place(_directory(to, kept, None), kept, keeps, keys, days=days, dry_run=dry_run)
    for item in gone:
        click.echo(f"{'would go' if dry_run else 'gone'}: {item.what}: {item.why}")
    for name, why in sorted(stays.items()):
        click.echo(f"stays: {name}: {why}")
    click.echo(f"{len(gone)} {'would go' if dry_run else 'gone'}, {human(sum(item.size for item in gone))}; {len(stays)} stay")


# What the commands share


def _store(named: Path | None) -> DiskStore:
    from goldnode.disks.channels import Store
    from goldnode.disks.model import store_directory

    return Store(store_directory(named))


def _find(kept: DiskStore, text: str) -> Any:
    """A build: a directory, a NAME, a CLASS (its newest), or CLASS:CHANNEL or CLASS:BUILDID of the store."""
    from goldnode.disks.channels import line_of, standing
    from goldnode.disks.model import find
    from goldnode.images.history import CHANNELS

    class_, colon, rest = text.partition(":")
    if colon and "/" not in text:
        return standing(kept, line_of(class_), rest) if rest in CHANNELS else find(f"{class_}-{rest}", kept.root)
    return find(text, kept.root)


def _directory(to: Path | None, kept: DiskStore, signer: Signer | None) -> DirectoryPlace:
    from goldnode.disks.channels import DirectoryPlace

    if to is None:
        raise DiskError("no directory to publish to is named", remedy="name it with --to, or in GOLDNODE_DISKS_PLACE")
    return DirectoryPlace(to, kept, signer)


def _place(to: Path | None, kept: DiskStore, signer: Signer | None) -> DirectoryPlace | StorePlace:
    from goldnode.disks.channels import StorePlace

    return StorePlace(kept) if to is None else _directory(to, kept, signer)


def _build(place: DirectoryPlace | StorePlace, text: str) -> tuple[ClassLine, str]:
    """Class and build id of a name; a class alone means the only build that is there."""
    import re

    from goldnode.disks.channels import DirectoryPlace, line_of
    from goldnode.disks.model import MANIFEST

    found = re.fullmatch(r"(.+)[:-]([0-9a-f]{12})", text)
    if found is not None:
        return line_of(found[1]), found[2]
    line = line_of(text)
    root = place.root if isinstance(place, DirectoryPlace) else place.store.root / "built"
    ids = sorted(path.parent.name for path in (root / text).glob(f"*/{MANIFEST}"))
    if len(ids) != 1:
        told = f"{len(ids)} builds" if ids else "no build"
        raise DiskError(
            f"{place.name} has {told} of {text}{': ' + ', '.join(ids) if ids else ''}",
            remedy="name one as CLASS:BUILDID" if ids else "publish one: goldnode disks publish",
        )
    return line, ids[0]


def _known(kept: DiskStore, place: str) -> list[str]:
    from goldnode.images.channels import local_places

    return [line.repository for name, line in local_places(kept) if name == place]


def _locks() -> dict[str, str]:
    """Digests of the present disk locks, and whose they are. Raises DiskError for one that cannot be read: what it names is not known."""
    from goldnode.catalog.load import LOCK_SUFFIX
    from goldnode.disks.definition import load_definition
    from goldnode.disks.locking import load_disk_lock, lock_directories

    files = {path.name: path for place in reversed(lock_directories(load_definition())) for path in place.glob(f"*{LOCK_SUFFIX}")}
    return {load_disk_lock(path).digest: f"the disk lock of {name.removesuffix(LOCK_SUFFIX)}" for name, path in sorted(files.items())}


def _moved(place: str, done: Any) -> None:
    if done.entry is not None:
        click.echo(f"{place}/{done.line} {done.channel}: {done.was or 'nothing'} -> {done.now} ({done.tag})")
    for note in done.notes:
        click.echo(f"note: {note}")


def _say(text: str) -> None:
    click.echo(text, err=True)
