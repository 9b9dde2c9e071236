"""The group `goldnode images`. Each command is in the file of its topic and is imported when it is called."""

from __future__ import annotations

import click

from goldnode.commands import LazyGroup

_SECTIONS = {
    "Build and test": {
        "list": ("images_lock", "List the images of the matrix with their locks."),
        "lock": ("images_lock", "Resolve the packages and wheels of images and write their locks."),
        "build": ("images_build", "Build images from their locks, without a network."),
        "derive": ("images_derive", "Build an image of your own on a base."),
        "inspect": ("images_inspect", "Inspect images for content of another backend and for wrong tags."),
        "smoke": ("images_smoke", "Run the smoke tests inside images."),
    },
    "Evidence": {
        "evidence": ("images_evidence", "Write and attach SBOMs, provenance, reports and a signature."),
        "verify": ("images_evidence", "Verify the content, the evidence and the signatures of images."),
        "diff": ("images_evidence", "Show the differences between two images."),
    },
    "Registry and channels": {
        "publish": ("images_publish", "Push images and their evidence to a registry."),
        "index": ("images_index", "Publish one tag for the builds of an image for several architectures."),
        "pull": ("images_publish", "Download an image from a registry into the store."),
        "promote": ("images_publish", "Point a channel to an image that meets its requirements."),
        "rollback": ("images_publish", "Point a channel back to its previous image."),
        "status": ("images_publish", "Show the channels and verify them against their history."),
        "gc": ("images_publish", "Remove images that no channel, history, class or lock needs."),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS, no_args_is_help=True)
def images() -> None:
    """Lock, build, inspect, test and publish container images.

    There is one image per backend, version, flavour and OS. Its tag is verified against its content.
    """
