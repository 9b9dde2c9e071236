"""The group `goldnode images`.

- `lock`: `list` and `lock`
- `build`, `derive`, `inspect`, `smoke`: the commands of these names
- `evidence`: evidence, verification and differences
- `publish`, `index`: registries and channels
"""

from __future__ import annotations

import click

from goldnode.commands import LazyGroup

_SECTIONS = {
    "Build and test": {
        "list": ("images.lock", "List the images of the matrix with their locks."),
        "lock": ("images.lock", "Resolve the packages and wheels of images and write their locks."),
        "build": ("images.build", "Build images from their locks, without a network."),
        "derive": ("images.derive", "Build an image of your own on a base."),
        "inspect": (
            "images.inspect",
            "Inspect images for content of another backend and for wrong tags.",
        ),
        "smoke": ("images.smoke", "Run the smoke tests inside images."),
    },
    "Evidence": {
        "evidence": (
            "images.evidence",
            "Write and attach SBOMs, provenance, reports and a signature.",
        ),
        "verify": (
            "images.evidence",
            "Verify the content, the evidence and the signatures of images.",
        ),
        "diff": ("images.evidence", "Show the differences between two images."),
    },
    "Registry and channels": {
        "publish": ("images.publish", "Push images and their evidence to a registry."),
        "index": (
            "images.index",
            "Publish one tag for the builds of an image for several architectures.",
        ),
        "pull": ("images.publish", "Download an image from a registry into the store."),
        "promote": ("images.publish", "Point a channel to an image that meets its requirements."),
        "rollback": ("images.publish", "Point a channel back to its previous image."),
        "status": ("images.publish", "Show the channels and verify them against their history."),
        "gc": ("images.publish", "Remove images that no channel, move, class or lock needs."),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS, no_args_is_help=True)
def images() -> None:
    """Lock, build, inspect, test and publish container images.

    There is one image per backend, version, flavour and OS. Its tag is verified against its content.
    """
