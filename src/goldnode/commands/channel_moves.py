"""Options and output that the commands of images and disks share: keys, decisions, moves of channels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.output import emit, options
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

TRUST = click.option(
    "--trust",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    show_default="`images.public_key` of the site file",
    help="PEM file of trusted public keys. Repeatable.",
)
KEY = click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="GOLDNODE_IMAGE_KEY",
    metavar="FILE",
    show_default="$GOLDNODE_IMAGE_KEY, else `images.signing_key` of the site file",
    help="PEM file of the secret key to sign with. Its public key is trusted.",
)
SIGNED = options(
    click.option(
        "--by",
        metavar="NAME",
        show_default="your user name; required with a waiver or an approval",
        help="Who decides. Recorded in the history.",
    ),
    click.option("--reason", metavar="TEXT", help="Reason for the decision. Recorded in the history."),
)
WAIVED = options(
    click.option(
        "--waive",
        multiple=True,
        metavar="REQUIREMENT",
        help="Waive this requirement; --by and --reason are then required. Repeatable.",
    ),
    SIGNED,
)
CHANNEL = click.option(
    "--channel", default="stable", show_default=True, metavar="NAME", help="Channel to move."
)
EXPECT = click.option(
    "--expect",
    metavar="DIGEST",
    help="Fail unless the channel points to this digest now; `none` for an empty channel.",
)
HISTORY = click.option("--history", "with_history", is_flag=True, help="Show all moves, oldest first.")
FILES = click.option("--files", is_flag=True, help="List all files, not only the first ones.")
# Options of evidence.
MADE_WITH = options(
    click.option(
        "--key",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="GOLDNODE_IMAGE_KEY",
        metavar="FILE",
        show_default="$GOLDNODE_IMAGE_KEY, else `images.signing_key` of the site file, else unsigned",
        help="PEM file of the secret key to sign with.",
    ),
    click.option(
        "--database",
        "databases",
        multiple=True,
        metavar="KIND=FILE[@DATE]",
        show_default="`images.vulnerabilities` of the site file",
        help="Vulnerability database with its date; KIND is debian or osv. Repeatable.",
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
    """Refuse an unknown channel, and a requirement or part that the step does not have, before anything is read.

    Raises ImageError. `step`: a channel, or `publish`; `asked`: the requirements of each.
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
    """Return who decides on `what` and why. Raises ImageError if one of them is missing."""
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
        raise ImageError("your user name cannot be determined", remedy="name yourself with --by") from None


def show_verified(found: Iterable[tuple[str, Verification]], form: str) -> None:
    """Print the results of verifications, each with the name of its subject. Exit with 1 if one did not pass."""
    rows = list(found)
    emit(
        form,
        {"results": [{"name": name, **result.data()} for name, result in rows]},
        lambda: "\n".join(f"{name}\n{result.text()}" for name, result in rows),
    )
    if not all(result.passed for _, result in rows):
        sys.exit(1)


def gate_rows(gates: Iterable[Gate]) -> list[dict[str, Any]]:
    """Return requirements as plain data."""
    return [vars(gate) for gate in gates]


def gate_lines(gates: Iterable[Gate]) -> list[str]:
    """Return requirements as text, one line each."""
    lines = []
    for gate in gates:
        who = f" (by {gate.by}: {gate.reason})" if gate.by else ""
        lines.append(f"  {gate.name:<16} {gate.state.replace('_', ' '):<10} {gate.why}{who}")
    return lines


def show_moved(place: str, done: Moved, form: str) -> None:
    """Print the requirements and the result of a promotion or a rollback."""
    lines = gate_lines(done.gates)
    if done.entry is not None:
        lines.append(
            f"{place}/{done.line} {done.channel}: {done.was or 'nothing'} -> {done.now} ({done.tag})"
        )
    lines += [f"note: {note}" for note in done.notes]
    content = {
        "place": place,
        "line": str(done.line),
        "channel": done.channel,
        "moved": done.entry is not None,
        "from": done.was,
        "to": done.now,
        "tag": done.tag,
        "requirements": gate_rows(done.gates),
        "notes": done.notes,
    }
    emit(form, content, "\n".join(lines))


def lock_digests(files: Mapping[str, Path], load: Callable[[Path], Sealed], what: str) -> dict[str, str]:
    """Return the digests of locks with their owners, so that the content they would build is retained.

    Raises GoldnodeError for an unreadable lock: its content is unknown and must not be removed.
    """
    return {load(path).digest: f"the {what} of {name}" for name, path in sorted(files.items())}


def show_gone(gone: Sequence[Gone], stays: Mapping[str, str], dry_run: bool, form: str) -> None:
    """Print removed or removable items, and retained ones with the reason."""
    from goldnode.evidence.size import human

    word, size = "would go" if dry_run else "gone", sum(item.size for item in gone)
    lines = [f"{word}: {item.what}: {item.why}" for item in gone]
    lines += [f"stays: {name}: {why}" for name, why in sorted(stays.items())]
    lines.append(f"{len(gone)} {word}, {human(size)}; {len(stays)} stay")
    content = {
        "dry_run": dry_run,
        "removed": [vars(item) for item in gone],
        "size": size,
        "retained": dict(stays),
    }
    emit(form, content, "\n".join(lines))


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
    emit(
        form,
        {"lines": documents},
        lambda: (
            "\n".join(line for row in documents for line in _stand_lines(row, with_history))
            or "no channel points to anything yet"
        ),
    )
    if bad:
        sys.exit(1)


def _stand_lines(document: dict[str, Any], with_history: bool) -> Iterator[str]:
    """Yield the state of the channels of a line as text, from its JSON document."""
    signed = (
        "signatures verified"
        if document["verified"]
        else "signatures NOT verified: no key was given (--trust)"
    )
    if not document["history"]:
        signed = "no history: no channel was ever set"
    yield f"{document['place']}/{document['line']}  ({signed})"
    for row in document["channels"]:
        remark = {
            "ok": "",
            "unfinished": f"  UNFINISHED: the tag is {row['found']}; run the same command again, or --repair",
            "moved": f"  MOVED: the tag is {row['found']}, which is not in the history",
            "absent": "  GONE: the tag does not exist; --repair restores it",
        }[row["state"]]
        yield (
            f"  {row['channel']:<10}  {row['tag']:<44}  {row['digest'][:19]}  {row['date'][:10]}  {row['by']}{remark}"
        )
    if document["pending"]:
        yield (
            f"  {document['pending']} moves were made in this store and are not in the registry yet: the next "
            "move, or --repair, publishes them"
        )
    for row in document["history"] if with_history else []:
        waived = ", ".join(gate["gate"] for gate in row["gates"] if gate["state"] != "passed")
        yield (
            f"  {row['number']:>4}  {row['date']}  {row['action']} {row['channel']}: {(row['from'] or 'nothing')[:19]}"
            f" -> {row['to'][:19]} ({row['tag']})  by {row['by']}{': ' + row['reason'] if row['reason'] else ''}"
            f"{'  not passed: ' + waived if waived else ''}"
        )
