"""Command `goldnode rollout publish` and `goldnode rollout rotate-keys`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.fleet.common import STORE, opened
from goldnode.commands.options import (
    DIRECTORY,
    OLD_DIRECTORY,
    RotationKeys,
    disk_store,
    grouped,
    new_root,
    rotated,
    rotation,
    signing_keys,
    unverified_option,
    valid_option,
)
from goldnode.commands.output import emit, reports, say
from goldnode.core import files
from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.channel_keys import DAYS, ROTATE, ChannelKeys

if TYPE_CHECKING:
    from goldnode.fleet.nodes.disk_update import UpdateImage
    from goldnode.fleet.store.database import StoreDatabase

_SIGNED = "each state of the channel"  # by --key


@dataclass(frozen=True)
class ChannelImages:
    """Disk images to add, how far they are trusted, and the store of disks."""

    images: tuple[str, ...]
    unverified: str | None
    store: Path | None

    def opened(self) -> list[UpdateImage]:
        """Return the images, validated byte by byte."""
        from goldnode.disks.model import find, store_directory
        from goldnode.fleet.nodes.disk_update import open_image

        return [
            open_image(find(name, store_directory(self.store)), self.unverified)
            for name in self.images
        ]


@click.command()
@click.argument("what", metavar="ROLLOUT|DOCUMENT")
@click.option(
    "--channel",
    required=True,
    type=DIRECTORY,
    metavar="DIR",
    help="Directory of the channel to write.",
)
@grouped(
    "keys",
    ChannelKeys,
    signing_keys(_SIGNED),
    new_root("channel"),
)
@valid_option(DAYS)
@grouped(
    "added",
    ChannelImages,
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="IMAGE",
        help="Built disk that nodes may install: its directory, or its name in the store of disks. Repeatable; later "
        "publications keep it.",
    ),
    unverified_option("each node"),
    disk_store(),
)
@STORE
@reports("rollout-publication")
def publish(
    what: str,
    channel: Path,
    keys: ChannelKeys,
    days: int,
    added: ChannelImages,
    *,
    where: str | None,
    form: str,
) -> None:
    """Publish a rollout, with all of the store, as a signed channel that nodes follow.

    ROLLOUT is a rollout of the store; DOCUMENT is the file of one. The channel has the waves as the controller
    began them, the freezes, and the denied digests of each class. A controller with a channel publishes by itself at
    each change. This command does it without a controller, for example after a freeze, and adds disk images.
    """
    files.readable_by_others()
    with opened(where) as store:
        # Here, since an installation without the extra has no SQLAlchemy.
        from goldnode.fleet.control.channel import ChannelPublisher

        name = _submitted(store, what)
        published = ChannelPublisher(store, channel, keys, days).publish(added.opened())
    if warning := published.root.warning(f"{ROTATE} {channel}"):
        say(warning)
    verb = "published" if published.changed else "unchanged:"
    emit(
        form,
        {
            "rollout": name,
            "channel": str(channel),
            "version": published.version,
            "changed": published.changed,
            "root": str(published.root.path),
            "root_expires": f"{published.root.expires:%Y-%m-%dT%H:%M:%SZ}",
            "images": list(published.images),
        },
        f"{verb} version {published.version} of {channel}, with rollout {name}; nodes trust it by {published.root.path}",
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
@rotation(_SIGNED)
@reports("rollout-root")
def rotate_keys(channel: Path, change: RotationKeys, form: str) -> None:
    """Replace the keys of a channel.

    From now on, --key signs each state and --new-root-key the root. Nodes follow by themselves, because the present
    keys of the root sign the next one. Publish again afterwards, with the images of the channel.
    """
    done = rotated(channel, change)
    emit(form, done.content(), f"{done.text()}; now publish again with the new key and the images")
