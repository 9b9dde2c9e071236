"""Commands `goldnode keys …`."""

from __future__ import annotations

import datetime as dt
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.options import (
    DIRECTORY,
    FILE,
    NEW_FILE,
    OLD_DIRECTORY,
    grouped,
    key_option,
)
from goldnode.commands.output import emit, reports, table
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file

if TYPE_CHECKING:
    from goldnode.fleet.keys.inventory import SiteKey
    from goldnode.fleet.keys.rotation import RotationState

_AUTHORITY = click.option(
    "--authority",
    type=OLD_DIRECTORY,
    metavar="DIRECTORY",
    help="Directory of the authority of nodes.",
)
_OUT = click.option(
    "--out", type=DIRECTORY, required=True, metavar="DIRECTORY", help="Directory for the files."
)
_CHANNEL = ("online", "orders", "root", "targets")
_MADE = (
    *("authority", "documents", "evidence", "images", "log", "mirror", "modules", "release"),
    "webhook",
    *_CHANNEL,
)
ROTATED = (*_MADE, "node", "tls", "token")


@click.group()
def keys() -> None:
    """Show, make, rotate and revoke the keys of a site."""


@keys.command("list")
@_AUTHORITY
@click.option(
    "--channel",
    "channels",
    type=OLD_DIRECTORY,
    multiple=True,
    metavar="DIRECTORY",
    help="Directory of a published channel. May be repeated.",
)
@click.option(
    "--within",
    type=click.IntRange(1, 3650),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Report keys that expire within so many days.",
)
@click.option(
    "--out",
    type=NEW_FILE,
    metavar="FILE",
    help="With --format prometheus: write to this file, whole or not at all, for node_exporter's textfile collector.",
)
@reports("keys", "prometheus")
def list_(
    authority: Path | None,
    channels: tuple[Path, ...],
    within: int,
    out: Path | None,
    form: str,
) -> None:
    """List every key of the site: purpose, where it is trusted, mode and end.

    The channels of images and disks are those that the stores have seen. A rotation that has begun is listed until it
    ends, where its record is beside a key.

    Exit status: 0 nothing to do, 1 a key expires, has expired, is missing, others can read it, or a rotation has not ended.
    """
    from goldnode.core.site import load_site
    from goldnode.disks.model import store_directory as disk_store
    from goldnode.fleet.keys import inventory, metrics
    from goldnode.fleet.keys.kinds import KINDS
    from goldnode.images.store import store_directory as image_store

    if out is not None and form != "prometheus":
        raise click.UsageError("--out needs --format prometheus")
    rows = list(inventory.site_keys(load_site()))
    rows += inventory.authority_keys(authority) if authority else []
    for channel in channels:
        rows += inventory.channel_keys(channel)
    for store in (disk_store(None), image_store(None)):
        rows += inventory.copied_channels(store)
    rows += list(inventory.rotations(rows))
    about, now = {kind.name: kind for kind in KINDS}, dt.datetime.now(dt.UTC)
    content = [
        {
            "kind": key.kind,
            "named": key.named,
            "purpose": about[key.kind].purpose,
            "trusted": about[key.kind].trusted,
            "file": None if key.file is None else str(key.file),
            "mode": key.mode or None,
            "expires": None if key.end is None else key.end.isoformat(),
            "warning": key.warning(now, within) or None,
        }
        for key in rows
    ]
    warnings = [key for key in rows if key.warning(now, within)]
    lines = [f"{key.kind} {key.named}: {key.warning(now, within)}" for key in warnings]
    if form != "prometheus":
        emit(form, {"keys": content}, lambda: "\n".join([_table(rows), *lines]))
    elif out is None:
        click.echo(metrics.text(rows), nl=False)
    else:
        replace_file(out, metrics.text(rows).encode())
    sys.exit(1 if warnings else 0)


def _table(rows: list[SiteKey]) -> str:
    from goldnode.fleet.keys.kinds import KINDS

    trusted = {kind.name: kind.trusted for kind in KINDS}
    if not rows:
        return "the site file names no key"
    head = ("kind", "named", "mode", "expires", "trusted by")
    lines = [
        (key.kind, key.named, key.mode or "-", _day(key.end), trusted[key.kind]) for key in rows
    ]
    return table([head, *lines])


def _day(end: dt.datetime | None) -> str:
    return "-" if end is None else f"{end:%Y-%m-%d}"


@keys.command()
@click.argument("kind", type=click.Choice(_MADE))
@_OUT
@click.option(
    "--name", default="goldnode", show_default=True, metavar="TEXT", help="Name in the key."
)
@reports("keys-make")
def make(kind: str, out: Path, name: str, form: str) -> None:
    """Make a key of a KIND in a directory.

    The secret half has mode 0600. A key that is there stays, and the command ends with an error.

    The page of keys has what follows: where the public half goes, and how a key is rotated.
    """
    from goldnode.fleet.keys import making

    paths = making.make(kind, out, name, dt.datetime.now(dt.UTC))
    content = {"kind": kind, "files": [str(path) for path in paths]}
    emit(form, content, "\n".join(f"wrote {path}" for path in paths))


@keys.command()
@click.argument("node")
@_AUTHORITY
@_OUT
@click.option(
    "--valid",
    "days",
    type=click.IntRange(1, 3650),
    default=365,
    show_default=True,
    metavar="DAYS",
    help="Days until the certificate expires; at most until that of the authority does.",
)
@click.option("--server", "serves", is_flag=True, help="For the lock service, by its DNS name.")
@reports("keys-issue")
def issue(
    node: str, authority: Path | None, out: Path, days: int, *, serves: bool, form: str
) -> None:
    """Issue a certificate for a NODE, by its id in the store: NODE.pem and NODE.key."""
    from goldnode.fleet.keys import authority as nodes

    now = dt.datetime.now(dt.UTC)
    path = nodes.issue(_given(authority), node, out, now, days, serves=serves)
    key = out / f"{node}.key"
    content = {"node": node, "certificate": str(path), "key": str(key)}
    emit(form, content, f"wrote {path} and {key}")


@keys.command()
@click.argument("node")
@_AUTHORITY
@reports("keys-revoke")
def revoke(node: str, authority: Path | None, form: str) -> None:
    """Revoke the certificates of a NODE before their end.

    A service that runs with `--client-crl DIR/revoked.pem` refuses them from its next look at the file on, five
    seconds later at most.
    """
    from goldnode.fleet.keys import authority as nodes

    directory = _given(authority)
    count = nodes.revoke(directory, node, dt.datetime.now(dt.UTC))
    written = directory / nodes.REVOKED
    content = {"node": node, "revoked": count, "list": str(written)}
    emit(form, content, f"revoked {count} certificates of {node}: wrote {written}")


@dataclass(frozen=True)
class RotatedKey:
    """Values of the options for a key that is rotated, as `goldnode.fleet.keys.procedures.KeyPlaces` has it."""

    authority: Path | None
    channel: Path | None
    old: Path | None
    new: Path | None
    out: Path | None
    root_keys: tuple[Any, ...]


@dataclass(frozen=True)
class RotationOptions:
    """Extent of a rotation, as `goldnode.fleet.keys.rotation.RotationRequest` has it."""

    apply: bool
    stolen: bool
    confirmed: str | None
    days: int | None


@keys.command()
@click.argument("kind", type=click.Choice(ROTATED))
@click.argument("name", required=False)
@grouped(
    "request",
    RotationOptions,
    click.option("--apply", is_flag=True, help="Carry out the steps that can be done now."),
    click.option(
        "--done",
        "confirmed",
        metavar="STEP",
        help="Confirm that the next step, which a person does, is done; then go on as with --apply.",
    ),
    click.option(
        "--stolen",
        is_flag=True,
        help="Withdraw the old key as soon as the new one is trusted, without an overlap.",
    ),
    click.option(
        "--overlap",
        "days",
        type=click.IntRange(0, 3650),
        metavar="DAYS",
        show_default="that of the kind",
        help="At least so long both keys are trusted. It counts when the rotation begins.",
    ),
)
@grouped(
    "key",
    RotatedKey,
    _AUTHORITY,
    click.option(
        "--channel",
        type=OLD_DIRECTORY,
        metavar="DIRECTORY",
        help="Published directory: for root, targets, online and orders.",
    ),
    click.option(
        "--old",
        type=FILE,
        metavar="FILE",
        help="The key that goes: for keys of channels, releases, and one of several keys of documents.",
    ),
    click.option(
        "--new",
        type=FILE,
        metavar="FILE",
        help="The new key, where it is not made here: a token, or the public half of a key.",
    ),
    click.option(
        "--out",
        type=DIRECTORY,
        metavar="DIRECTORY",
        show_default="the directory of the old key",
        help="Directory for record and new key: for keys of channels and releases.",
    ),
    key_option("--root-key", "root_keys", "Secret key of the present root of the channel."),
)
@reports("keys-rotation")
def rotate(
    kind: str, name: str | None, request: RotationOptions, key: RotatedKey, form: str
) -> None:
    """Rotate a key of a KIND by its procedure.

    NAME is the node, the service, the hook or the team. Without --apply nothing is changed. With it, goldnode does its
    steps until one needs a person or time. The same command goes on later, also after an interruption.
    """
    from goldnode.core.site import load_site
    from goldnode.fleet.keys import procedures, rotation

    now = dt.datetime.now(dt.UTC)
    places = procedures.KeyPlaces(load_site(), now, name, **vars(key), sign_heads=sign_heads)
    wanted = rotation.RotationRequest(**vars(request))
    state = rotation.carry_out(procedures.procedure(kind, places), wanted, now)
    emit(form, state.content(), lambda: _steps(state))


def sign_heads(secret: Path, public: Path) -> int:
    """Sign for the heads of the log of the site's store with another key. Return how many."""
    from goldnode.core.site import load_site
    from goldnode.fleet.store import log
    from goldnode.fleet.store.database import open_store

    store, now = open_store(load_site().fleet_store()), time.time()
    try:
        return store.run(
            lambda own: log.sign_again(own, now, "goldnode keys rotate", secret, public)
        )
    finally:
        store.close()


def _steps(state: RotationState) -> str:
    days = 0 if state.stolen else state.days
    overlap = f"; both keys are trusted for at least {days} days" if days else ""
    lines = [f"{state.rotation.kind} {state.rotation.named}: {state.state}{overlap}"]
    for row in state.steps:
        when = f" {row.at[:10]}" if row.at else ""
        lines.append(f"{row.state + when:<15} {row.step.name:<12} {row.step.who}: {row.step.text}")
        lines += [f"{'':<28} run: {row.step.command}"] if row.step.command and not row.at else []
        lines += [f"{'':<28} waits: {row.why}"] if row.why else []
    if state.state == "planned":
        lines.append("nothing was changed; --apply begins")
    return "\n".join(lines)


def _given(authority: Path | None) -> Path:
    if authority is None:
        raise GoldnodeError(
            "an authority of nodes is needed",
            remedy="give --authority DIR; `goldnode keys make authority --out DIR` makes one",
        )
    return authority
