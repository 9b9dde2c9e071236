"""The group `goldnode images`. Each command is in the file of its topic and is imported when it is called."""

from __future__ import annotations

import click

from goldnode.commands import LazyGroup

_ELSEWHERE = {
    "list": ("images_lock", "List the images of the matrix."),
    "lock": ("images_lock", "Resolve images with apt and pip and write their locks."),
    "build": ("images_build", "Build images from their locks, offline."),
    "inspect": ("images_inspect", "Search an image, wheel, root or disk for what is foreign to its backend."),
    "smoke": ("images_smoke", "Run the smoke tests of an image."),
    "evidence": (
        "images_evidence",
        "Write and attach what proves an image: SBOM, provenance, report, signature.",
    ),
    "verify": ("images_evidence", "Check signatures, and that every document is about this image."),
    "diff": ("images_evidence", "Show what differs between two images."),
    "publish": ("images_publish", "Push images and their evidence to a registry."),
    "pull": ("images_publish", "Bring an image back from a registry, every byte checked."),
    "promote": ("images_publish", "Move a channel to an image whose gates have passed."),
    "rollback": ("images_publish", "Move a channel back to what it was."),
    "gc": ("images_publish", "Remove what no channel, history or catalog names."),
    "status": ("images_publish", "Show channels and what stands in them."),
}


@click.group(cls=LazyGroup, elsewhere=_ELSEWHERE, no_args_is_help=True)
def images() -> None:
    """Container images: one per backend, version, flavour and OS, with tags that are verified against the
    content.
    """
