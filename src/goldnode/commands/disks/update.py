"""Command `goldnode disks update`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from goldnode.commands.options import (
    BECOME,
    disk_store,
    grouped,
    inventory_option,
    unsigned_option,
    unverified_option,
)
from goldnode.commands.output import emit, reports, say


@dataclass(frozen=True)
class ImageChoice:
    """The image to write, and how far it is trusted."""

    image: str | None
    store: Path | None
    unverified: str | None
    tries: int
    unsigned: str | None = None


@dataclass(frozen=True)
class BootOptions:
    """Whether to reboot the node, and the time limit in seconds."""

    reboot: bool
    timeout: float


@click.command()
@click.argument("node")
@inventory_option("Inventory that defines NODE. Without it, NODE is an SSH destination.")
@grouped(
    "chosen",
    ImageChoice,
    click.option(
        "--image",
        metavar="IMAGE",
        show_default="newest build of the node's class",
        help="Image to write: a build directory, its disk.json or raw disk, a name in the store, a class, or CLASS:CHANNEL, "
        "whose history and image have to be signed.",
    ),
    disk_store(),
    unverified_option("the node"),
    unsigned_option("on the node"),
    click.option(
        "--tries",
        type=click.IntRange(1, 9),
        default=3,
        show_default=True,
        metavar="N",
        help="Number of boots after which an image that is not good is given up.",
    ),
)
@click.option(
    "--back", is_flag=True, help="Write nothing; boot the last good image of the other slot next."
)
@grouped(
    "boot",
    BootOptions,
    click.option(
        "--reboot",
        is_flag=True,
        help="Drain the node as `goldnode_drain` of the inventory defines, reboot it, and wait until it is good.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=60),
        default=2400,
        show_default=True,
        metavar="SECONDS",
        help="Time limit for the reboot, including all tries.",
    ),
)
@BECOME
@reports("slots")
def update(
    node: str,
    inventory: str | None,
    chosen: ImageChoice,
    back: bool,
    boot: BootOptions,
    *,
    become: bool,
    form: str,
) -> None:
    """Write an image to the inactive slot of a node and boot it next.

    With --back, boot the image of the other slot instead. The active slot is not touched, so it can always boot
    again.

    Exit status: 0 done, and with --reboot the image is good; 2 the update was refused or failed, or the node fell
    back.
    """
    from goldnode.core import extras
    from goldnode.core.errors import DiskError

    # Signatures of images as well: the module below needs both.
    extras.require("ansible", "images")
    from goldnode.fleet.nodes import disk_update as updating
    from goldnode.fleet.nodes.reach import node as reach_node
    from goldnode.inventory.selection import check_inventory

    image = chosen.image
    if back and (image or chosen.unverified or chosen.unsigned):
        raise DiskError(
            "--back writes no image", remedy="remove --image, --unverified and --unsigned"
        )
    if inventory is not None:
        check_inventory(inventory)
    target = reach_node(node, inventory, become)

    opened = None
    if not back:
        if image is None:
            # The class of the slot that runs now: the newest build of it is meant.
            with updating.program(target) as there:
                surveyed = there.survey()
            image = str(surveyed["slots"][surveyed["running"]]["class"])
        named = Path(image)
        # disk.json or the raw disk means the build that it is part of.
        image = str(named.parent) if named.is_file() else image
        say(f"checking {image}")
        opened = updating.chosen_image(
            image, chosen.store, chosen.unverified, chosen.tries, unsigned=chosen.unsigned
        )
    after = updating.run(target, updating.DiskUpdate(opened, boot.reboot, boot.timeout), say)
    emit(form, after, lambda: updating.text(after, target.name))
