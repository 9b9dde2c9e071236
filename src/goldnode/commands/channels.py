"""Commands `goldnode channels …`: keys, refresh and migrate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.channels.product import Location
from goldnode.commands import channel_moves as shared
from goldnode.commands.options import (
    CERTIFICATE,
    FILE,
    grouped,
    key_option,
    number_of_keys,
    options,
    store,
)
from goldnode.commands.output import emit, reports

if TYPE_CHECKING:
    from goldnode.channels.signed import ChannelSigners

_KIND = click.argument("kind", type=click.Choice(["disks", "images"]), metavar="disks|images")
_AT = shared.location(
    options(
        store("store", "GOLDNODE_DISKS or $GOLDNODE_IMAGES", ".goldnode/disks or .goldnode/images"),
        click.option(
            "--to",
            metavar="DIR|HOST[:PORT][/PREFIX]",
            show_default="the channels of the store itself",
            help="Published directory of disks, or registry of images.",
        ),
        CERTIFICATE,
    )
)
_ONLINE = key_option(
    "--online-key", "online", "Online key, which signs which state is the newest.", required=True
)
_TARGETS = key_option(
    "--targets-key", "targets", "Offline key of targets, which signs channels and delegations."
)
_TEAMS = key_option(
    "--team-key", "team", "Key of a role of --delegations, which signs its channels."
)
_VALID = click.option(
    "--valid",
    "days",
    type=click.IntRange(min=1),
    default=90,
    show_default=True,
    metavar="DAYS",
    help="Days until the signatures of the online keys expire.",
)


@dataclass(frozen=True)
class ChannelKeyOptions:
    """Keys of the channels of a place."""

    online: tuple[Any, ...]
    targets: tuple[Any, ...] = ()
    team: tuple[Any, ...] = ()
    root_keys: tuple[Any, ...] = ()
    new_keys: tuple[Any, ...] = ()
    threshold: int | None = None
    targets_threshold: int | None = None
    days: int = 90


_KEYS = grouped(
    "keys",
    ChannelKeyOptions,
    _ONLINE,
    _TARGETS,
    _TEAMS,
    key_option(
        "--root-key",
        "root_keys",
        "Key of the present root, which signs the next one; for a new place the key of its root.",
    ),
    key_option("--new-root-key", "new_keys", "Key of the next root. Without it they stay."),
    number_of_keys(
        "--threshold", "threshold", "1, or as before", "Keys of the root that must sign."
    ),
    number_of_keys(
        "--targets-threshold",
        "targets_threshold",
        "1, or as before",
        "Keys of targets that must sign.",
    ),
    _VALID,
)
_RENEWAL = grouped("keys", ChannelKeyOptions, _ONLINE, _TARGETS, _TEAMS, _VALID)


@click.group()
def channels() -> None:
    """Make, change and renew the signatures of channels of images and disks."""


@channels.command("keys")
@_KIND
@_AT
@_KEYS
@click.option(
    "--delegations",
    type=FILE,
    metavar="FILE",
    show_default="as before",
    help="YAML file of the roles that may sign some channels: their keys, thresholds and patterns of channels.",
)
@reports("channel-keys")
def keys_(
    kind: str,
    location: Location,
    keys: ChannelKeyOptions,
    delegations: Path | None,
    *,
    form: str,
) -> None:
    """Make the keys of the channels of a place, or replace them.

    The first run makes the channels. Later, --root-key signs the next root: with --targets-key, --online-key and
    --new-root-key as they are from now on. Without --root-key the root stays, and --delegations alone changes. Clients
    follow by themselves; each needs the root of its first day, from a place that it trusts, in images.roots of its site
    file.
    """
    from goldnode.channels.delegations import CHANNELS, load
    from goldnode.channels.keys import RepositoryKeys
    from goldnode.channels.upkeep import ChannelKeyChange, change_keys, newest_root

    following = RepositoryKeys(
        keys.online, keys.targets, keys.new_keys, keys.threshold, keys.targets_threshold
    )
    teams = None if delegations is None else load(delegations, CHANNELS)
    change = ChannelKeyChange(following, keys.root_keys, teams)
    product = _product(kind, location)
    with product.place() as place:
        done = change_keys(
            place, product.store, change, _signers(keys), roots=location.trusted_roots()
        )
        path = newest_root(place, product.store)
    content = {
        "place": place.name,
        "root": str(path),
        "threshold": None if done is None else done.now,
        "threshold_before": None if done is None else done.before,
    }
    emit(form, content, f"{place.name}: {path}" + ("" if done is None else done.thresholds()))


@channels.command()
@_KIND
@_AT
@_RENEWAL
@reports("channel-refresh")
def refresh(kind: str, location: Location, keys: ChannelKeyOptions, form: str) -> None:
    """Sign the present state of channels again before its signatures expire.

    Run it by a timer with the online key alone. Once a year, give the keys of targets and of the delegated roles as well:
    their signatures are renewed too.
    """
    from goldnode.channels.signed import version_of
    from goldnode.channels.upkeep import ChannelKeyChange, change_keys

    product = _product(kind, location)
    with product.place() as place:
        change = ChannelKeyChange(renew=True)
        change_keys(place, product.store, change, _signers(keys), roots=location.trusted_roots())
        version = version_of(place.files())
    emit(form, {"place": place.name, "version": version}, f"{place.name}: version {version}")


@channels.command()
@_KIND
@_AT
@shared.SIGNERS
@click.option(
    "--apply", "applied", is_flag=True, help="Migrate. Without it, only show what is to do."
)
@reports("channel-migration")
def migrate(kind: str, location: Location, keys: shared.Keys, applied: bool, *, form: str) -> None:
    """Turn the histories of the last release into signed channels, with their whole past.

    Make the keys of the place first (`goldnode channels keys`). --trust names the keys that signed the histories. All
    lines are added in one write, so that an interrupted run can be repeated.

    Exit status: 0 done, or nothing to do.
    """
    from goldnode.channels import migration

    product = _product(kind, location)
    with product.place() as place:
        done = migration.migrate(
            place,
            product.store,
            product.former_lines(place),
            shared.trusted(keys.trust),
            signers=shared.signers_of(keys) if applied else None,
            roots=location.trusted_roots(),
        )
    verb = "added" if done.applied else "to add (--apply)"
    rows = [f"{done.place}/{line}: {count} moves {verb}" for line, count in done.moves.items()]
    emit(form, vars(done), "\n".join(rows) or f"{done.place} has no histories of the last release")


def _product(kind: str, location: Location) -> Any:
    # Start-up time.
    from goldnode.disks.product import DiskProduct
    from goldnode.images.product import ImageProduct

    return DiskProduct(location) if kind == "disks" else ImageProduct(location)


def _signers(given: ChannelKeyOptions) -> ChannelSigners:
    """Return the secret keys of the options: public halves of a rotation sign nothing."""
    from goldnode.channels import keys
    from goldnode.channels.signed import ChannelSigners

    roles, online = (
        keys.signers([key for key in places if not keys.is_public(key)])
        for places in ((*given.targets, *given.team), given.online)
    )
    return ChannelSigners(roles, online, given.days)
