"""The group `goldnode disks`.

- `build`: `list`, `lock`, `build`
- `publish`: evidence, channels and the published directory
- `compare`, `netboot`, `reinstall`, `sign`, `sysupdate`, `update`, `verify`: the commands of these names
"""

from __future__ import annotations

import click

from goldnode.commands import LazyGroup

_SECTIONS = {
    "Build and test": {
        "list": (
            "disks.build",
            "List the node classes with the locks and builds of their disk images.",
        ),
        "lock": ("disks.build", "Resolve the packages of disk images and write their locks."),
        "build": ("disks.build", "Build disk images from their locks, without a network."),
        "compare": ("disks.compare", "Compare two raw disks byte by byte."),
        "verify": ("disks.verify", "Boot disk images in QEMU and check them against their class."),
    },
    "Evidence": {
        "evidence": (
            "disks.publish",
            "Write SBOMs, provenance, reports and a signature next to disk images.",
        ),
        "authenticate": (
            "disks.publish",
            "Verify the content, the evidence and the signatures of disk images.",
        ),
        "diff": ("disks.publish", "Show the differences between two disk images."),
        "sign": ("disks.sign", "Sign the boot files of a disk image for Secure Boot."),
    },
    "Publish and update": {
        "publish": (
            "disks.publish",
            "Copy disk images and their evidence to a published directory.",
        ),
        "pull": ("disks.publish", "Download a published disk image into the store."),
        "promote": (
            "disks.publish",
            "Point a channel to a disk image that meets its requirements.",
        ),
        "rollback": ("disks.publish", "Point a channel back to its previous disk image."),
        "status": ("disks.publish", "Show the channels and verify them against their history."),
        "gc": (
            "disks.publish",
            "Remove disk images that no channel, move, class or lock needs.",
        ),
        "update": (
            "disks.update",
            "Write an image to the inactive slot of a node and boot it next.",
        ),
        "sysupdate": ("disks.sysupdate", "Publish a channel for systemd-sysupdate."),
        "netboot": (
            "disks.netboot",
            "Write the files that install machines from the network.",
        ),
        "reinstall": (
            "disks.reinstall",
            "Boot a node from the network once, to install it again.",
        ),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS, no_args_is_help=True)
def disks() -> None:
    """Lock, build, boot, publish and update disk images of node classes.

    There is one image per node class, made by the same roles and locks as its nodes.
    """
