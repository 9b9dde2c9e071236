"""The group `goldnode disks`. Each command is in the file of its topic and is imported when it is called."""

from __future__ import annotations

import click

from goldnode.commands import LazyGroup

_ELSEWHERE = {
    "list": ("disks_build", "List the node classes and their disk images."),
    "lock": ("disks_build", "Resolve every package of a class's disk image and write its lock."),
    "build": ("disks_build", "Build the disk image of a class from its lock, offline."),
    "compare": ("disks_compare", "Show what differs between two raw disks."),
    "verify": ("disks_verify", "Boot a disk image and hold what comes up against its class."),
    "update": ("disks_update", "Write the other slot of a node from an image, or go back."),
    "evidence": ("disks_publish", "Write what proves a disk image: SBOM, provenance, signature."),
    "authenticate": ("disks_publish", "Check signatures, and that every document is about this disk."),
    "publish": ("disks_publish", "Copy a disk image and its evidence to where nodes fetch it."),
    "pull": ("disks_publish", "Bring a published disk image back, every byte checked."),
    "promote": ("disks_publish", "Move a channel to a disk image whose gates have passed."),
    "rollback": ("disks_publish", "Move a channel back to what it was."),
    "status": ("disks_publish", "Show channels and what stands in them."),
    "diff": ("disks_publish", "Show what differs between two disk images, for review."),
    "gc": ("disks_publish", "Remove what no channel or history names."),
}


@click.group(cls=LazyGroup, elsewhere=_ELSEWHERE, no_args_is_help=True)
def disks() -> None:
    """Disk images: one per node class, from the same roles and locks as its nodes."""
