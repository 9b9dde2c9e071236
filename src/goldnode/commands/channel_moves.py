"""Options and output that the commands of images and disks share: keys, decisions, moves of channels."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.channels.product import Location
from goldnode.commands.options import FILE, NEW_FILE, Decorator, KeyParameter, grouped, options
from goldnode.commands.output import emit, say
from goldnode.core.errors import GoldnodeError, ImageError, nearest
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.channels.gc import Collection, Gone
    from goldnode.channels.product import ChannelProduct, PlaceT
    from goldnode.channels.promotion import HistoryStore, MoveResult
    from goldnode.channels.requirements import (
        Requirement,
        RequirementDecision,
        Requirements,
    )
    from goldnode.channels.signed import ChannelSigners
    from goldnode.core.site import Site
    from goldnode.evidence.signatures import EnvelopeSigner, KeyPlace
    from goldnode.evidence.trust import TrustPolicy
    from goldnode.evidence.verify import Verification
    from goldnode.evidence.vulnerabilities import Database


@dataclass(frozen=True)
class Keys:
    """The files of public keys to trust, and the secret keys to sign with: files, or URIs of keys in tokens.

    `more` sign with `key` where a role needs several. `online` signs which state is the newest. A move that is signed on
    another machine is written to `prepare`, or read from `signed`.
    """

    trust: tuple[Path, ...] = ()
    key: KeyPlace | None = None
    more: tuple[KeyPlace, ...] = ()
    online: KeyPlace | None = None
    prepare: Path | None = None
    signed: Path | None = None


@dataclass(frozen=True)
class Decision:
    """Who decides and why, and what is waived or approved."""

    by: str | None = None
    reason: str | None = None
    waive: tuple[str, ...] = ()
    approve_major: tuple[str, ...] = ()
    expect: str | None = None

    def waivers(self) -> list[RequirementDecision]:
        """Return the waivers. Raises ImageError if the decider or the reason is missing."""
        return self._signed("--waive", self.waive)

    def approvals(self) -> list[RequirementDecision]:
        """Return the approvals of new major versions. Raises ImageError as `waivers` does."""
        return self._signed("--approve-major", self.approve_major)

    def _signed(self, what: str, names: Sequence[str]) -> list[RequirementDecision]:
        # Start-up time: it loads pydantic.
        from goldnode.channels.requirements import RequirementDecision

        if names and not ((self.by or "").strip() and (self.reason or "").strip()):
            raise ImageError(
                f"{what} is recorded with who decided it and why",
                remedy="add --by WHO --reason WHY",
            )
        return [RequirementDecision(name, str(self.by), str(self.reason)) for name in names]


@dataclass(frozen=True)
class StatusOptions:
    """Options of `status`: which moves are shown, and whether channels are restored first."""

    with_history: bool = False
    repair: bool = False


@dataclass(frozen=True)
class EvidenceKeys:
    """Options of evidence: the key to sign with (None: the site's), and vulnerability databases."""

    key: KeyPlace | None = None
    databases: tuple[str, ...] = ()


TRUST = click.option(
    "--trust",
    multiple=True,
    type=FILE,
    metavar="FILE",
    show_default="`images.public_key` of the site file",
    help="PEM file of trusted public keys. Repeatable.",
)
KEY = click.option(
    "--key",
    type=KeyParameter(),
    envvar="GOLDNODE_IMAGE_KEY",
    metavar="KEY",
    show_default="$GOLDNODE_IMAGE_KEY, else `images.signing_key` of the site file",
    help="Secret key to sign with: a PEM file, or hsm:KEYID?label=TOKEN. Its public key is trusted.",
)
KEYS = grouped("keys", Keys, TRUST, KEY)
ONLINE = click.option(
    "--online-key",
    "online",
    type=KeyParameter(),
    envvar="GOLDNODE_ONLINE_KEY",
    metavar="KEY",
    show_default="$GOLDNODE_ONLINE_KEY, else `images.online_key` of the site file",
    help="Secret key that signs which state of the channels is the newest.",
)
# Of a move: who may sign a channel, `targets` or one of its delegations says.
SIGNERS = grouped(
    "keys",
    Keys,
    TRUST,
    KEY,
    click.option(
        "--more-keys",
        "more",
        multiple=True,
        type=KeyParameter(),
        metavar="KEY",
        help="Further secret key, where a channel needs several signatures. Repeatable.",
    ),
    ONLINE,
    click.option(
        "--prepare",
        type=NEW_FILE,
        metavar="FILE",
        help="Write the move without signatures to FILE, and move nothing. `goldnode rollout sign-metadata` signs it on "
        "another machine.",
    ),
    click.option(
        "--signed",
        type=FILE,
        metavar="FILE",
        help="Publish the move of --prepare, which enough keys have signed.",
    ),
)
_SIGNED = options(
    click.option(
        "--by",
        metavar="NAME",
        show_default="your user name; required with a waiver or an approval",
        help="Who decides. Recorded in the history.",
    ),
    click.option(
        "--reason", metavar="TEXT", help="Reason for the decision. Recorded in the history."
    ),
)
_WAIVED = options(
    click.option(
        "--waive",
        multiple=True,
        metavar="REQUIREMENT",
        help="Waive this requirement; --by and --reason are then required. Repeatable.",
    ),
    _SIGNED,
)
DECIDED = grouped("decision", Decision, _SIGNED)
WAIVED = grouped("decision", Decision, _WAIVED)
CHANNEL = click.option(
    "--channel", default="stable", show_default=True, metavar="NAME", help="Channel to move."
)


ROOT = click.option(
    "--root",
    "roots",
    multiple=True,
    type=FILE,
    metavar="FILE",
    show_default="`images.roots` of the site file, else the root that the store saw first",
    help="Trusted root document of the channels. Repeatable.",
)


def location(*to: Decorator, offline: str = "", rooted: bool = True) -> Decorator:
    """Return the options of a location. `offline` is the help of `--offline`, for commands that have it.

    Commands that read channels are `rooted`.
    """
    more = [click.option("--offline", is_flag=True, help=offline)] if offline else []
    return grouped("location", Location, *to, *more, *([ROOT] if rooted else []))


def approved(help_: str) -> Decorator:
    """Return the options of a promotion. `help_` describes the parts whose major versions need an approval."""
    return grouped(
        "decision",
        Decision,
        _WAIVED,
        click.option("--approve-major", multiple=True, metavar="PART", help=help_),
        click.option(
            "--expect",
            metavar="DIGEST",
            help="Fail unless the channel points to this digest now; `none` for an empty channel.",
        ),
    )


def status_options(restored: str) -> Decorator:
    """Return the options of `status`. `restored` is what `--repair` restores."""
    return grouped(
        "how",
        StatusOptions,
        click.option(
            "--history", "with_history", is_flag=True, help="Show all moves, oldest first."
        ),
        click.option(
            "--repair",
            is_flag=True,
            help=f"Restore {restored} from the signed channels, and publish moves that were made offline.",
        ),
    )


FILES = click.option("--files", is_flag=True, help="List all files, not only the first ones.")
# Options of evidence.
MADE_WITH = grouped(
    "made",
    EvidenceKeys,
    click.option(
        "--key",
        type=KeyParameter(),
        envvar="GOLDNODE_IMAGE_KEY",
        metavar="KEY",
        show_default="$GOLDNODE_IMAGE_KEY, else `images.signing_key` of the site file, else unsigned",
        help="Secret key to sign with: a PEM file, or hsm:KEYID?label=TOKEN.",
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
    """Return the public keys in the files; without files, those of the site."""
    from goldnode.evidence.signatures import load_public, site_keys

    return [key for file in files for key in load_public(file)] if files else site_keys()


def trust_policy(files: Sequence[Path]) -> TrustPolicy | None:
    """Return the policy of the files, else that of the site's public key; None if there is neither."""
    from goldnode.core.site import load_site
    from goldnode.evidence.trust import load_trust

    if not files:
        site = load_site()
        files = [site.resolve(site.images.public_key)] if site.images.public_key else []
    return load_trust(files) if files else None


def signer_of(key: KeyPlace | None) -> EnvelopeSigner:
    """Return a secret key; without one, that of the site.

    Raises ImageError and SigningKeyError.
    """
    from goldnode.core.site import load_site
    from goldnode.evidence.signatures import load_key

    if key is None:
        site = load_site()
        if site.images.signing_key is None:
            raise ImageError(
                "no key is named to sign the history with",
                remedy="name it with --key, or as images.signing_key in the site file",
            )
        key = _site_key(site, site.images.signing_key)
    return load_key(key)


def _site_key(site: Site, named: str) -> KeyPlace:
    """Return a key that the site file names: a URI as it is, a file relative to the site file."""
    return named if named.startswith("hsm:") else site.resolve(named)


def signers_of(keys: Keys, days: int | None = None) -> ChannelSigners:
    """Return the keys that sign a move: those of its channel, and the online key. Raises GoldnodeError."""
    from goldnode.channels.signed import DAYS, ChannelSigners
    from goldnode.core.site import load_site
    from goldnode.evidence.signatures import load_key

    if keys.prepare is not None and keys.signed is not None:
        raise ImageError(
            "--prepare and --signed are two steps", remedy="give --prepare first, then --signed"
        )
    if keys.prepare is not None:
        return ChannelSigners(prepare=keys.prepare)
    site, online = load_site(), keys.online
    if online is None:
        if site.images.online_key is None:
            raise ImageError(
                "no key is named to sign which state of the channels is the newest",
                remedy="name it with --online-key, or as images.online_key in the site file",
            )
        online = _site_key(site, site.images.online_key)
    if keys.signed is not None:
        return ChannelSigners((), [load_key(online)], days or DAYS, signed=keys.signed)
    roles = [signer_of(keys.key), *(load_key(place) for place in keys.more)]
    return ChannelSigners(roles, [load_key(online)], days or DAYS)


def record_unsigned(store: HistoryStore, name: str, digest: str, reason: str) -> None:
    """Record in a store that an image was accepted without a signature: which, when, by whom and why."""
    import datetime as dt
    import json

    row = {
        "date": f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
        "image": name,
        "digest": digest,
        "by": user(),
        "reason": reason,
    }
    with (store.root / "unsigned.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def made_with(made: EvidenceKeys) -> tuple[EnvelopeSigner | None, tuple[Database, ...], str]:
    """Return the signer of evidence (None for unsigned), the vulnerability databases and the builder: from
    the options, else from the site.
    """
    key, databases = made.key, made.databases
    from goldnode.core.site import load_site
    from goldnode.evidence import vulnerabilities
    from goldnode.evidence.provenance import BUILDER
    from goldnode.evidence.signatures import load_key

    site = load_site()
    named = site.images.signing_key
    secret = key or (_site_key(site, named) if named else None)
    # Files of the site file are relative to it, those of the command line to the working directory.
    base = site.file.parent if site.file is not None and not databases else None
    return (
        load_key(secret) if secret else None,
        tuple(
            vulnerabilities.load(text, base) for text in databases or site.images.vulnerabilities
        ),
        site.images.builder or BUILDER,
    )


def note_unsigned(signer: EnvelopeSigner | None) -> None:
    """Print a note if evidence was written without a signature."""
    if signer is None:
        say("Nothing was signed: name a key with --key, or as images.signing_key in the site file.")


def user() -> str:
    """Return the name of the user who runs this. Raises ImageError if it cannot be determined."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A user ID without a name, as in containers: KeyError, since Python 3.13 OSError.
        raise ImageError(
            "your user name cannot be determined", remedy="name yourself with --by"
        ) from None


def show_verified(verifications: Iterable[tuple[str, Verification]], form: str) -> None:
    """Print the results of verifications, each with the name of its subject. Exit with 1 if one did not pass."""
    rows = list(verifications)
    emit(
        form,
        {"results": [{"name": name, **result.data()} for name, result in rows]},
        lambda: "\n".join(f"{name}\n{result.text()}" for name, result in rows),
    )
    # After the document: a script reads the reasons whatever the exit status is.
    if not all(result.passed for _, result in rows):
        sys.exit(1)


def check_channel(product: Requirements, channel: str, decision: Decision | None = None) -> None:
    """Refuse an unknown channel, then what `check_step` refuses. Raises ImageError."""
    # Publishing has requirements too, but it is not a channel.
    channels = [name for name in product.asked if name != "publish"]
    if channel not in channels:
        raise ImageError(f'there is no channel "{channel}"', remedy=nearest(channel, channels))
    check_step(product, channel, decision or Decision())


def check_step(product: Requirements, step: str, decision: Decision) -> None:
    """Refuse a requirement or part that the step does not have, before anything is read. Raises ImageError."""
    from goldnode.channels.requirements import RequirementDecision

    product.check(
        step,
        [RequirementDecision(name, "", "") for name in decision.waive],
        [RequirementDecision(part, "", "") for part in decision.approve_major],
    )


def requirement_lines(results: Iterable[Requirement]) -> list[str]:
    """Return the results of requirements as text, one line each."""
    lines = []
    for one in results:
        who = f" (by {one.by}: {one.reason})" if one.by else ""
        lines.append(f"  {one.name:<16} {one.state.replace('_', ' '):<10} {one.why}{who}")
    return lines


def show_published(done: Any, line: str, form: str) -> dict[str, Any]:
    """Print a publication with the requirements that did not simply pass. Return it as plain data.

    `gates` is the former name of `requirements`.
    """
    if form == "text":
        unusual = requirement_lines(one for one in done.requirements if one.state != "passed")
        click.echo("\n".join([line, *unusual]))
    rows = [vars(one) for one in done.requirements]
    return {**vars(done), "requirements": rows, "gates": rows}


# Commands of both products


def promote(
    product: ChannelProduct[PlaceT], channel: str, text: str, keys: Keys, decision: Decision
) -> tuple[str, MoveResult]:
    """Point a channel to the image with the name `text`. Return the place and the result."""
    from goldnode.channels.promotion import Move
    from goldnode.channels.requirements import Decisions
    from goldnode.core.site import load_site
    from goldnode.fleet.control.evidence import PromotionEvidence

    check_channel(product.requirements, channel, decision)
    waivers, approvals = decision.waivers(), decision.approvals()
    # Options and keys before the place is opened: a wrong one must not wait for a registry.
    signers, trust = signers_of(keys), trusted(keys.trust)
    site = load_site()
    given = Decisions(
        trust,
        waivers,
        approvals,
        limits=site.images.vulnerability_limits,
        evidence=PromotionEvidence(site),
    )
    with _delivered(product.store), product.place(*signers.roles[:1]) as place:
        line, tag = product.find(place, text)
        move = Move(
            line,
            channel,
            signers,
            by=decision.by or user(),
            reason=decision.reason or "",
            to=tag,
            expect=decision.expect,
            roots=product.location.trusted_roots(),
            say=say,
            given=given,
        )
        return place.name, product.promote(place, move)


@contextmanager
def _delivered(store: HistoryStore) -> Iterator[None]:
    """Deliver the event of a move, if the site has hooks. A hook that fails does not fail the move."""
    from goldnode.core.site import load_site
    from goldnode.fleet.events.assembly import delivery

    outbox = delivery(load_site(), channels=[store.root])
    if outbox is None:
        yield
        return
    with _noted():
        outbox.collect()  # the store is known before the move: a move that is killed still has its event
    try:
        yield
    finally:
        with _noted():
            outbox.collect()
            for name, state in (outbox.deliver() or {}).items():
                if state.error:
                    say(f"hook {name}: {state.error}; `goldnode events deliver` tries it again")


@contextmanager
def _noted() -> Iterator[None]:
    """Print a failure of the outbox, and go on."""
    try:
        yield
    except GoldnodeError as problem:
        say(f"events are not delivered: {problem}")


def rollback(
    product: ChannelProduct[PlaceT],
    line: str,
    channel: str,
    to: str | None,
    keys: Keys,
    *,
    decision: Decision,
) -> tuple[str, MoveResult]:
    """Point a channel back to its previous image, or to the image `to`. Return the place and the result."""
    from goldnode.channels.promotion import Move
    from goldnode.channels.promotion import rollback as roll_back

    # Without the decision: a way back needs no requirement, so there is nothing to waive.
    check_channel(product.requirements, channel)
    signers = signers_of(keys)
    move = Move(
        product.line(line),
        channel,
        signers,
        by=decision.by or user(),
        reason=decision.reason or "rollback",
        to=to,
        roots=product.location.trusted_roots(),
        say=say,
    )
    with _delivered(product.store), product.place(*signers.roles[:1]) as place:
        return place.name, roll_back(place, product.store, move)


def collect(product: ChannelProduct[PlaceT], how: Collection, form: str) -> None:
    """Remove unneeded images from the location of a product, and print the result."""
    gone, stays = product.collect(product.needed(), how)
    show_gone(gone, stays, how.dry_run, form)


def show_moved(shown: tuple[str, MoveResult], form: str) -> None:
    """Print the requirements and the result of a promotion or a rollback at a place."""
    place, done = shown
    lines = requirement_lines(done.requirements)
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
        "requirements": [vars(one) for one in done.requirements],
        "notes": done.notes,
    }
    emit(form, content, "\n".join(lines))


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
    product: ChannelProduct[PlaceT], names: Sequence[str], how: StatusOptions, form: str
) -> None:
    """Print the state of the channels of the named lines, or of all; with `repair`, restore them first.

    Exit with 1 if a channel differs from its history. Raises ImageError for a named line that is neither known
    nor has a history: it would look like one with empty channels.
    """
    from goldnode.channels.promotion import Repair, look, repair, states

    roots, store = product.location.trusted_roots(), product.store
    documents: list[dict[str, Any]] = []
    bad = False
    with product.place() as place:
        lines = [product.line(name) for name in names]
        # A misspelt line has no moves either, and would be reported as fine.
        known = product.known() if lines else ()
        state = look(place.files(), place.name, store, roots)
        for line in lines:
            if str(line) not in known:
                history = state.there.history(line)
                # A line that has left the matrix still has its channels.
                if not history.entries and not states(place, history):
                    raise ImageError(
                        f'there is no "{line}", and {place.name} has no channels of it',
                        remedy=nearest(str(line), known),
                    )
        for line in lines or product.lines(place, state.there):
            if how.repair:
                for repaired in repair(place, store, line, Repair(roots, say=say)):
                    click.echo(
                        f"{place.name}: {repaired.channel} of {line} is {repaired.tag} again",
                        err=True,
                    )
                state = look(place.files(), place.name, store, roots)
            history, pending = state.there.history(line), len(state.pending(line))
            present = states(place, history)
            bad = bad or bool(pending) or any(one.state != "ok" for one in present)
            documents.append(
                {
                    "place": place.name,
                    "line": str(line),
                    "verified": state.there.trusted and bool(history.entries),
                    "pending": pending,
                    "channels": [{**vars(one), "line": str(line)} for one in present],
                    "history": [
                        {**entry.document(), "line": str(line), "channel": entry.channel}
                        for entry in history.entries
                    ],
                }
            )
    emit(
        form,
        {"lines": documents},
        lambda: (
            "\n".join(line for row in documents for line in _channel_lines(row, how.with_history))
            or "no channel points to anything yet"
        ),
    )
    if bad:
        sys.exit(1)


def _channel_lines(document: dict[str, Any], with_history: bool) -> Iterator[str]:
    """Yield the state of the channels of a line as text, from its JSON document."""
    # A reader without a key is no error; the output states what was not verified.
    signed = "signatures NOT verified: no trusted root was given (--root)"
    if document["verified"]:
        signed = "signatures verified"
    if not document["history"]:
        signed = "no channel was ever set"
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
        waived = ", ".join(one["gate"] for one in row["gates"] if one["state"] != "passed")
        yield (
            f"  {row['number']:>4}  {row['date']}  {row['action']} {row['channel']}: {(row['from'] or 'nothing')[:19]}"
            f" -> {row['to'][:19]} ({row['tag']})  by {row['by']}{phrase(': {}', row['reason'])}"
            f"{phrase('  not passed: {}', waived)}"
        )
