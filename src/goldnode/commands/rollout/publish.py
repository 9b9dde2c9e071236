"""Command `goldnode rollout publish` and `goldnode rollout rotate-keys`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.fleet.common import STORE, opened
from goldnode.commands.metadata import rotate_published
from goldnode.commands.options import (
    DIRECTORY,
    FILE,
    OLD_DIRECTORY,
    ROTATION,
    TWO_MACHINES,
    KeyOptions,
    RotationKeys,
    TwoMachines,
    disk_store,
    grouped,
    key_option,
    key_options,
    options,
    unsigned_option,
    unverified_option,
    valid_options,
)
from goldnode.commands.output import emit, reports, say
from goldnode.core import files
from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.channel_keys import DAYS

if TYPE_CHECKING:
    from goldnode.fleet.control.channel import ChannelPublication, ChannelPublisher, ChannelRelease
    from goldnode.fleet.store.database import StoreDatabase


@dataclass(frozen=True)
class ReleaseOptions:
    """A release: disk images and how far they are trusted, the store of disks, delegations, the role, and days."""

    images: tuple[str, ...]
    unverified: str | None
    store: Path | None
    delegations: Path | None
    role: str
    days: int
    release_days: int
    unsigned: str | None = None

    def release(self) -> ChannelRelease:
        """Return the release, with images that were validated byte by byte."""
        from goldnode.channels import delegations
        from goldnode.fleet.control.channel import ChannelRelease
        from goldnode.fleet.nodes.disk_update import chosen_image

        images = [
            chosen_image(name, self.store, self.unverified, unsigned=self.unsigned)
            for name in self.images
        ]
        delegated = None if self.delegations is None else delegations.load(self.delegations)
        return ChannelRelease(images, delegated, self.role, self.release_days)


_RELEASE = options(
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="IMAGE",
        help="Built disk that nodes may install: its directory, its name in the store of disks, or CLASS:CHANNEL, whose history "
        "and image have to be signed. Repeatable; later releases keep it.",
    ),
    unverified_option("each node"),
    unsigned_option("on each node"),
    disk_store(),
    click.option(
        "--delegations",
        type=FILE,
        metavar="FILE",
        help="Teams that may release images of some classes (YAML); later releases keep them.",
    ),
    click.option(
        "--role",
        default="targets",
        show_default=True,
        metavar="NAME",
        help="Who releases: targets, or the team of --delegations whose keys are given with --targets-key.",
    ),
    valid_options(DAYS),
)


@click.command()
@click.argument("what", metavar="ROLLOUT|DOCUMENT")
@click.option(
    "--channel",
    required=True,
    type=DIRECTORY,
    metavar="DIR",
    help="Directory of the channel to write.",
)
@key_options(
    "channel",
    key_option(
        "--order-key",
        "order_keys",
        "Key of the controller, which begins waves, freezes and denies.",
        default="the online keys",
    ),
)
@grouped("wanted", ReleaseOptions, _RELEASE)
@TWO_MACHINES
@STORE
@reports("rollout-publication")
def publish(
    what: str,
    channel: Path,
    keys: KeyOptions,
    wanted: ReleaseOptions,
    machines: TwoMachines,
    *,
    where: str | None,
    form: str,
) -> None:
    """Publish a rollout, with all of the store, as a signed channel that nodes follow.

    ROLLOUT is a rollout of the store; DOCUMENT is the file of one. With --targets-key it is released: nodes may move to
    its target, and to the images that were added. Without it only the waves, freezes and denied digests of the store
    are published, among what is released. A controller with a channel does that by itself at each change.
    """
    files.readable_by_others()
    with opened(where) as store:
        # Here, since an installation without the extra has no SQLAlchemy.
        from goldnode.core.site import load_site
        from goldnode.fleet.control.channel import ChannelKeys, ChannelPublisher
        from goldnode.fleet.control.evidence import FollowedEvidence

        name = _submitted(store, what)
        own = ChannelKeys(**keys.given(), orders=keys.order_keys)
        publisher = ChannelPublisher(
            store, channel, own, wanted.days, evidence=FollowedEvidence(load_site())
        )
        if machines.prepare is not None:
            _prepare(publisher, wanted, machines.prepare, form)
            return
        published = _publish(publisher, wanted, machines.signed)
    for warning in published.warnings(channel):
        say(warning)
    verb = "published" if published.changed else "unchanged:"
    expires = published.release_expires
    emit(
        form,
        {
            "rollout": name,
            "channel": str(channel),
            "version": published.version,
            "changed": published.changed,
            "root": str(published.root.path),
            "root_expires": f"{published.root.expires:%Y-%m-%dT%H:%M:%SZ}",
            "release_expires": expires and f"{expires:%Y-%m-%dT%H:%M:%SZ}",
            "images": list(published.images),
        },
        f"{verb} version {published.version} of {channel}, with rollout {name}; nodes trust it by {published.root.path}",
    )


def _publish(
    publisher: ChannelPublisher, wanted: ReleaseOptions, signed: Path | None
) -> ChannelPublication:
    from goldnode.channels import updates  # start-up time

    if signed is not None:
        return publisher.publish_signed(updates.read_document(signed), wanted.role)
    if publisher.keys.targets:
        return publisher.publish(wanted.release())
    if wanted.images or wanted.delegations:
        raise GoldnodeError(
            "images and delegations are released with the keys of targets, and none is given",
            remedy="give --targets-key, or --prepare FILE and sign that on the machine that has the keys",
        )
    return publisher.publish()


def _prepare(publisher: ChannelPublisher, wanted: ReleaseOptions, file: Path, form: str) -> None:
    from goldnode.channels import updates  # start-up time

    document = publisher.prepare(wanted.release())
    updates.write_document(file, document)
    emit(
        form,
        {"prepared": str(file), "version": document.signed.version, "role": wanted.role},
        f"wrote {file}, without signatures; sign it with `goldnode rollout sign-metadata {file} --key KEY`, then publish "
        f"it with --signed {file}",
    )


def _submitted(store: StoreDatabase, what: str) -> str:
    """Return the name of a rollout of the store. Raises GoldnodeError for one that was not submitted as it is."""
    from sqlalchemy import select  # only the extra `fleet` installs it

    from goldnode.fleet.control.document_files import load
    from goldnode.fleet.store import tables

    path = Path(what)
    name = load(path).settings.name if path.is_file() else what
    with store.read() as connection:
        stored = connection.scalar(
            select(tables.rollout.c.document).where(tables.rollout.c.name == name)
        )
    if stored is None:
        raise GoldnodeError(
            f'the store has no rollout "{name}"',
            remedy="submit it: `goldnode rollout submit DOCUMENT`",
        )
    # Text for text: a document with a changed comment is another one.
    if path.is_file() and stored != path.read_text(encoding="utf-8"):
        raise GoldnodeError(
            f"{path} is not the document of rollout {name} in the store",
            file=path,
            remedy="submit it again: `goldnode rollout submit DOCUMENT`",
        )
    return name


@click.command("rotate-keys")
@click.argument("channel", type=OLD_DIRECTORY, metavar="CHANNEL")
@ROTATION
@reports("rollout-root")
def rotate_keys(channel: Path, change: RotationKeys, machines: TwoMachines, form: str) -> None:
    """Replace keys of a channel.

    A role whose keys are not given keeps them. Nodes follow by themselves, because the present keys of the root sign
    the next one. Publish again afterwards with --targets-key, and with the images of the channel if the keys of targets
    have changed.

    A channel of an earlier version, whose one key signs everything, gets its offline keys of targets with --targets-key.
    """
    rotate_published(channel, change, machines, form)
