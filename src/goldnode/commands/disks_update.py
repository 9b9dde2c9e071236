"""`goldnode disks update`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("node")
@click.option(
    "-i", "--inventory", help="Inventory that NODE is a name of; without it NODE is an ssh destination."
)
@click.option(
    "--image",
    help="Directory of a build, its disk.json or raw disk, its name, or a class; default: the newest of the node's class.",
)
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of disk images; default: $GOLDNODE_DISKS.",
)
@click.option(
    "--back", is_flag=True, help="Have the other slot's last good image boot next, instead of writing one."
)
@click.option(
    "--reboot",
    is_flag=True,
    help="Boot it, drained as the inventory says (goldnode_drain), and wait until it is good.",
)
@click.option(
    "--unverified",
    metavar="REASON",
    help="Why an image may be written that nobody has booted; it is recorded on the node.",
)
@click.option(
    "--tries",
    type=click.IntRange(1, 9),
    default=3,
    show_default=True,
    help="Boots that the image may take to be good.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=60),
    default=2400,
    show_default=True,
    help="Seconds for the boot, all tries included.",
)
@click.option("-b", "--become", is_flag=True, help="Work as root on the node through sudo.")
@click.option("--format", "shape", type=click.Choice(["text", "json"]), default="text", show_default=True)
def update(
    node: str,
    inventory: str | None,
    image: str | None,
    store: Path | None,
    back: bool,
    reboot: bool,
    unverified: str | None,
    tries: int,
    timeout: float,
    become: bool,
    shape: str,
) -> None:
    """Write an image to the inactive slot of NODE and boot it next; or go back. The active slot is not
    touched, so it can always boot again.

    Exit status: 0 if done and, with --reboot, the image is good; 2 if the update was refused or could not be
    written, or the node fell back.
    """
    from goldnode.core.errors import DiskError
    from goldnode.disks.model import find, store_directory
    from goldnode.fleet import disk_update as updating
    from goldnode.inventory.selection import check_inventory

    if back and (image or unverified):
        raise DiskError("--back writes no image", remedy="leave --image and --unverified out")
    if inventory is not None:
        check_inventory(inventory)
    target = updating.node(node, inventory, become)

    def say(text: str) -> None:
        click.echo(text, err=True)

    chosen = None
    if not back:
        if image is None:
            with updating.program(target) as there:
                found = there.survey()
            image = str(found["slots"][found["running"]]["class"])
        named = Path(image)
        image = str(named.parent) if named.is_file() else image
        say(f"checking {image}")
        chosen = updating.open_image(find(image, store_directory(store)), unverified, tries)
    after = updating.run(target, updating.Wish(chosen, reboot, timeout), say)
    click.echo(
        json.dumps(after, indent=1, sort_keys=True) if shape == "json" else updating.text(after, target.name)
    )
