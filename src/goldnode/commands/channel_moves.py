"""Options and output that the commands of images and disks share: keys, decisions, moves of channels."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.core.errors import ImageError, nearest

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.channels.gc import Gone
    from goldnode.channels.history import Line
    from goldnode.channels.moves import Keeper, Moved, Place, Stand
    from goldnode.channels.requirements import Approval, Gate, Waiver
    from goldnode.evidence.signatures import Signer
    from goldnode.evidence.verify import Verification
    from goldnode.evidence.vulnerabilities import Database
    from goldnode.lock.model import Sealed

Command = Callable[..., Any]


def options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator."""

    def apply(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


TRUST = click.option(
    "--trust",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Public keys (PEM) whose signatures count; default: images.public_key of the site file.",
)
KEY = click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="GOLDNODE_IMAGE_KEY",
    help="Secret key (PEM) to sign with; its public half is trusted. Default: $GOLDNODE_IMAGE_KEY, else the site's.",
)
SIGNED = options(
    click.option(
        "--by", help="Who decides; recorded. Default for a move without waiver or approval: your user name."
    ),
    click.option("--reason", help="Why; recorded."),
)
WAIVED = options(
    click.option(
        "--waive",
        multiple=True,
        metavar="GATE",
        help="Let this gate pass; needs --by and --reason, which are recorded.",
    ),
    SIGNED,
)
EXPECT = click.option(
    "--expect", metavar="DIGEST", help="What the channel has to stand for now; `none` for nothing."
)
HISTORY = click.option("--history", "with_history", is_flag=True, help="Every move, oldest first.")
FORM = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
DAYS = click.option(
    "--days", type=click.FloatRange(0), default=30, show_default=True, help="What is younger stays."
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would go.")
# Options of evidence.
MADE_WITH = options(
    click.option(
        "--key",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="GOLDNODE_IMAGE_KEY",
        help="Secret key to sign with, PEM. Default: $GOLDNODE_IMAGE_KEY, else the site's, else unsigned.",
    ),
    click.option(
        "--database",
        "databases",
        multiple=True,
        metavar="KIND=FILE[@DATE]",
        help="Vulnerability database (debian or osv) with its date; default: the site's.",
    ),
)


def trusted(files: Sequence[Path]) -> list[SSlibKey]:
    """The public keys of the files, else the site's."""
    from goldnode.core.site import load_site
    from goldnode.evidence.signatures import load_public

    if not files:
        site = load_site()
        files = [site.resolve(site.images.public_key)] if site.images.public_key else []
    return [key for file in files for key in load_public(file)]


def signer_of(key: Path | None) -> Signer:
    """The secret key of the file, else the site's. Raises ImageError and SigningKeyError."""
    from goldnode.core.site import load_site
    from goldnode.evidence.signatures import load_signer

    if key is None:
        site = load_site()
        if site.images.signing_key is None:
            raise ImageError(
                "no key is named to sign the history with",
                remedy="name it with --key, or as images.signing_key in the site file",
            )
        key = site.resolve(site.images.signing_key)
    return load_signer(key)


def made_with(key: Path | None, databases: Sequence[str]) -> tuple[Signer | None, tuple[Database, ...], str]:
    """Return the signer of evidence (None for unsigned), the vulnerability databases and the builder: from
    the options, else from the site.
    """
    from goldnode.core.site import load_site
    from goldnode.evidence import vulnerabilities
    from goldnode.evidence.provenance import BUILDER
    from goldnode.evidence.signatures import load_signer

    site = load_site()
    secret = key or (site.resolve(site.images.signing_key) if site.images.signing_key else None)
    base = site.file.parent if site.file is not None and not databases else None
    return (
        load_signer(secret) if secret is not None else None,
        tuple(vulnerabilities.load(text, base) for text in databases or site.images.vulnerabilities),
        site.images.builder or BUILDER,
    )


def channels(asked: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the requirements of the channels only. Publishing has requirements too, but it is not a channel."""
    return {name: gates for name, gates in asked.items() if name != "publish"}


def check_step(
    step: str,
    asked: Mapping[str, Sequence[str]],
    waive: Sequence[str] = (),
    approve: Sequence[str] = (),
    parts: Sequence[str] = (),
) -> None:
    """Refuse a channel that there is not, and a gate or part that the step does not ask for: before keys, stores and names are looked at.

    Raises ImageError. `step`: a channel, or `publish`; `asked`: the gates of each.
    """
    from goldnode.channels.requirements import Approval, Waiver, check_asked

    if step not in asked:
        raise ImageError(f'there is no channel "{step}"', remedy=nearest(step, asked))
    check_asked(
        step,
        asked[step],
        [Waiver(gate, "", "") for gate in waive],
        [Approval(part, "", "") for part in approve],
        parts,
    )


def waivers_of(gates: Sequence[str], by: str | None, reason: str | None) -> list[Waiver]:
    """Return waivers of requirements. Raises ImageError if the decider or the reason is missing."""
    from goldnode.channels.requirements import Waiver

    return [Waiver(gate, *_signed(by, reason, "--waive")) for gate in gates]


def approvals_of(parts: Sequence[str], by: str | None, reason: str | None) -> list[Approval]:
    """Return approvals of new major versions. Raises ImageError if the decider or the reason is missing."""
    from goldnode.channels.requirements import Approval

    return [Approval(part, *_signed(by, reason, "--approve-major")) for part in parts]


def _signed(by: str | None, reason: str | None, what: str) -> tuple[str, str]:
    """Who and why, for `what`. Raises ImageError where one of them is not said."""
    if not (by or "").strip() or not (reason or "").strip():
        raise ImageError(
            f"{what} is recorded with who decided it and why", remedy="add --by WHO --reason WHY"
        )
    return str(by), str(reason)


def user() -> str:
    """Return the name of the user who runs this. Raises ImageError if it cannot be determined."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ImageError("nobody knows who you are", remedy="name yourself with --by") from None


def say(text: str) -> None:
    """Print a progress message on standard error."""
    click.echo(text, err=True)


def show_verified(found: Iterable[tuple[str, Verification]], form: str) -> None:
    """Print what came of checks, each with the name of what was checked. Exit 1 where one did not pass."""
    rows = list(found)
    if form == "json":
        show_json([result.data() for _, result in rows])
    else:
        for name, result in rows:
            click.echo(f"{name}\n{result.text()}")
    if not all(result.passed for _, result in rows):
        sys.exit(1)


def show_json(document: Any) -> None:
    """Print JSON whose keys are in order."""
    click.echo(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False))


def show_gates(gates: Sequence[Gate]) -> None:
    """Print gates."""
    for gate in gates:
        who = f" (by {gate.by}: {gate.reason})" if gate.by else ""
        click.echo(f"  {gate.name:<16} {gate.state.replace('_', ' '):<10} {gate.why}{who}")


def show_moved(place: str, done: Moved) -> None:
    """Print what a promotion or a rollback did."""
    if done.entry is not None:
        click.echo(f"{place}/{done.line} {done.channel}: {done.was or 'nothing'} -> {done.now} ({done.tag})")
    for note in done.notes:
        click.echo(f"note: {note}")


def lock_digests(files: Mapping[str, Path], load: Callable[[Path], Sealed], what: str) -> dict[str, str]:
    """Digests of locks, and whose they are, for what keeps what they would build. Raises GoldnodeError for one that cannot be read: what it
    names is not known, and must not go."""
    return {load(path).digest: f"the {what} of {name}" for name, path in sorted(files.items())}


def show_gone(gone: Sequence[Gone], stays: Mapping[str, str], dry_run: bool) -> None:
    """Print what went, or would, and what stays."""
    from goldnode.evidence.size import human

    word = "would go" if dry_run else "gone"
    for item in gone:
        click.echo(f"{word}: {item.what}: {item.why}")
    for name, why in sorted(stays.items()):
        click.echo(f"stays: {name}: {why}")
    click.echo(f"{len(gone)} {word}, {human(sum(item.size for item in gone))}; {len(stays)} stay")


def show_status(
    place: Place,
    store: Keeper,
    lines: Sequence[Line],
    trust: Sequence[SSlibKey],
    repair: Callable[[Line], Sequence[Stand]] | None,
    form: str,
    with_history: bool,
    known: Callable[[], Iterable[str]] | None = None,
) -> None:
    """Print the state of the channels of some lines at a place; with `repair`, restore them first.

    Exit with 1 if a channel differs from its history. `known` lists the lines that may exist when the user
    named `lines`. Raises ImageError for a line that is neither known nor has a history: it would look like
    one with empty channels.
    """
    from goldnode.channels.moves import status

    names = sorted(known()) if known is not None else []
    for line in lines if known is not None else ():
        if str(line) not in names:
            found = status(place, store, line)
            if not found.history.entries and not found.stands:
                raise ImageError(
                    f'there is no "{line}", and {place.name} has no history of it',
                    remedy=nearest(str(line), names),
                )

    documents: list[dict[str, Any]] = []
    bad = False
    for line in lines:
        for stand in repair(line) if repair is not None else ():
            click.echo(f"{place.name}: {stand.channel} of {line} is {stand.tag} again", err=True)
        found = status(place, store, line, trust)
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
            _show_stand(document, with_history)
        if not documents:
            click.echo("no channel stands for anything yet")
    if bad:
        sys.exit(1)


def _show_stand(document: dict[str, Any], with_history: bool) -> None:
    """Print how the channels of a line stand, from what `status --format json` prints."""
    signed = (
        "signatures verified"
        if document["verified"]
        else "signatures NOT verified: no key was given (--trust)"
    )
    if not document["history"]:
        signed = "no history: no channel ever stood for anything"
    click.echo(f"{document['place']}/{document['line']}  ({signed})")
    for row in document["channels"]:
        told = {
            "ok": "",
            "unfinished": f"  UNFINISHED: the tag is {row['found']}; run the same command again, or --repair",
            "moved": f"  MOVED: the tag is {row['found']}, which the history does not say",
            "absent": "  GONE: there is no such tag; --repair brings it back",
        }[row["state"]]
        click.echo(
            f"  {row['channel']:<10}  {row['tag']:<44}  {row['digest'][:19]}  {row['date'][:10]}  {row['by']}{told}"
        )
    if document["pending"]:
        click.echo(
            f"  {document['pending']} moves were made in this store and wait for the registry: the next move, or --repair, brings them there"
        )
    for row in document["history"] if with_history else []:
        waived = ", ".join(gate["gate"] for gate in row["gates"] if gate["state"] != "passed")
        click.echo(
            f"  {row['number']:>4}  {row['date']}  {row['action']} {row['channel']}: {(row['from'] or 'nothing')[:19]} -> {row['to'][:19]} ({row['tag']})"
            f"  by {row['by']}{': ' + row['reason'] if row['reason'] else ''}{'  not passed: ' + waived if waived else ''}"
        )
