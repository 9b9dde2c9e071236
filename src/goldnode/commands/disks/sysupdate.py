"""Command `goldnode disks sysupdate`."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.channels.product import Location
from goldnode.commands import channel_moves as shared
from goldnode.commands.options import disk_store, grouped, options, published_disks
from goldnode.commands.output import emit, reports, say
from goldnode.core.errors import DiskError

if TYPE_CHECKING:
    from goldnode.lock.signing import ArchiveSigner

_AT = shared.location(
    options(
        disk_store(),
        published_disks(exists=True),
    )
)


@dataclass(frozen=True)
class NodeFiles:
    """Options of the files of nodes: their directory, the address of the published one, and the release of systemd."""

    nodes: Path | None = None
    address: str | None = None
    systemd: int = 257
    component: str | None = None


@click.command()
@click.argument("name", metavar="CLASS[:CHANNEL]")
@_AT
@click.option(
    "--openpgp-key",
    "key",
    metavar="FILE|FINGERPRINT",
    show_default="`mirror.signing_key` of the site file",
    help="Secret OpenPGP key that signs SHA256SUMS: a file, or a key of your keyring.",
)
@click.option(
    "--valid-days",
    type=click.IntRange(1, 365),
    metavar="DAYS",
    show_default="without end",
    help="Days after which nodes with a systemd that reads BEST-BEFORE refuse the files. Run this again before.",
)
@grouped(
    "files",
    NodeFiles,
    click.option(
        "--nodes",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Also write the files of nodes to this directory, as they belong in /etc.",
    ),
    click.option(
        "--address",
        metavar="URL",
        help="Address of the published directory, as nodes reach it. Required with --nodes.",
    ),
    click.option(
        "--systemd",
        type=int,
        default=257,
        show_default=True,
        metavar="NUMBER",
        help="Release of systemd on the nodes.",
    ),
    click.option(
        "--component",
        metavar="NAME",
        help="Component of systemd-sysupdate, for nodes that update something else with it, too.",
    ),
)
@reports("sysupdate")
def sysupdate(
    name: str,
    location: Location,
    key: str | None,
    valid_days: int | None,
    files: NodeFiles,
    *,
    form: str,
) -> None:
    """Publish a channel for systemd-sysupdate.

    Writes root, kernel, initramfs and boot entry of the channel's image to CLASS/sysupdate/CHANNEL of the published
    directory, with checksums and an OpenPGP signature. CHANNEL is `stable` if it is not named. Run it again after each
    move of the channel.
    """
    from goldnode.channels import promotion
    from goldnode.channels.lines import CHANNELS
    from goldnode.core.errors import nearest
    from goldnode.disks import sysupdate as published
    from goldnode.disks.product import DiskProduct
    from goldnode.evidence.size import human

    class_, _, channel = name.partition(":")
    channel = channel or "stable"
    if channel not in CHANNELS:
        raise DiskError(f'there is no channel "{channel}"', remedy=nearest(channel, CHANNELS))
    if (files.nodes is None) != (files.address is None):
        raise DiskError(
            "--nodes and --address belong together",
            remedy="name the directory for the files of nodes, and the address from which nodes download",
        )
    if files.component and re.fullmatch(r"[a-z0-9][a-z0-9-]*", files.component) is None:
        raise DiskError(
            f'"{files.component}" is no name of a component',
            remedy="write lower-case letters, digits and hyphens",
        )
    product = DiskProduct(location)
    place, line = product.directory(), product.line(class_)
    channels = promotion.followed(
        place.files(), place.name, product.store, location.trusted_roots()
    )
    if not channels.trusted:
        raise DiskError(
            f"nothing says whether the channels of {place.name} are its publisher's",
            remedy="name its root document with --root, or in images.roots of the site file",
        )
    best_before = None
    if valid_days is not None:
        best_before = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=valid_days)
    history = channels.history(line)
    # Of the node first: a release that cannot be served is refused before a disk is unpacked.
    versions = published.offered(history, channel)
    followed = published.FollowedChannel(
        class_,
        channel,
        files.address or "",
        versions[0].version if versions else "",
        files.component,
    )
    if files.nodes is not None:
        published.definitions(followed, files.systemd)
    with _signer(key) as signer:
        done = published.write(
            place, line, channel, history, signer, best_before=best_before, progress=say
        )
        node_files = []
        if files.nodes is not None:
            node_files = published.write_definitions(
                followed, files.systemd, signer.public, files.nodes
            )
    lines = [f"{done.directory}  signed by {signer.fingerprint}"]
    lines += [f"  {file}  {human(size)}" for file, size in done.sizes.items()]
    lines += [str(path) for path in node_files]
    content = {
        "directory": done.directory,
        "versions": done.versions,
        "fingerprint": signer.fingerprint,
        "files": done.sizes,
        "nodes": node_files,
    }
    emit(form, content, "\n".join(lines))


def _signer(key: str | None) -> AbstractContextManager[ArchiveSigner]:
    """Return the OpenPGP key to sign with: the named one, else that of the site's mirror."""
    from goldnode.core.site import load_site
    from goldnode.lock.mirror import site_signer
    from goldnode.lock.signing import open_signer

    if key is not None:
        return open_signer(key, Path())
    return site_signer(load_site())
