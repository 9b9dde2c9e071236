"""The image of a channel in a published directory, verified: the channel by TUF, the build by the key of its builder.

The same files as `goldnode disks pull` reads, and the same verifier as `goldnode-node follow` uses.
"""

from __future__ import annotations

import hashlib
import json
import re

from ..follow.trust import Verifier
from ..ground.errors import NodeError
from ..ground.json_lines import as_dict
from ..ground.typed import NamedTuple
from .signed import statement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from ..follow.repository import ChannelSource
    from ..ground.host import Host

KEYS = "/etc/goldnode/image-keys.pem"  # of the builders, as for `slot write`
PREDICATE = "urn:goldnode:disk-publication:1"
MANIFEST, ENVELOPE = "disk.json", "SHA256SUMS.dsse.json"
LIMIT = 16 << 20  # bytes of one document


class InstalledImage(NamedTuple):
    """A verified image: the file with its compressed disk (address below the directory, SHA-256), and the size of the disk in bytes."""

    name: str
    node_class: str
    build: str
    path: str
    sha256: str
    size: int
    esp: tuple[int, int]  # first byte and size of the partition
    layout: str


def find(host: Host, verifier: Verifier, node_class: str, channel: str) -> InstalledImage:
    """Return the image that a channel of a class points to. Raises NodeError for anything that is not signed."""
    source = verifier.repository
    trusted = verifier.refresh()
    info = verifier.find(trusted, f"{node_class}/disk/{channel}")
    if info is None:
        raise NodeError(
            f"{source.source} has no channel {channel} of class {node_class}. Promote a disk to it: `goldnode disks promote`."
        )
    moves = as_dict(info.get("custom")).get("moves")
    build = as_dict(moves[-1]).get("tag") if isinstance(moves, list) and moves else None
    if not isinstance(build, str) or not re.fullmatch("[0-9a-f]{12}", build):
        raise NodeError(
            f"{channel} of class {node_class} at {source.source} names no build. Promote it again."
        )
    folder = f"{node_class}/{build}"
    data = _document(source, f"{folder}/{MANIFEST}")
    if hashlib.sha256(data).hexdigest() != info["hashes"].get("sha256"):
        raise NodeError(
            f"{source.source}/{folder}/{MANIFEST} is not what {channel} points to. Find out who changed it; nothing was written."
        )
    sums = _signed(host, _document(source, f"{folder}/{ENVELOPE}"), node_class, build)
    try:
        manifest = json.loads(data)
        name = str(manifest["name"])
        esp = next(row for row in manifest["partitions"] if row["name"] == "esp")
        path = f"{name}.raw.zst"
        image = InstalledImage(
            name=name,
            node_class=node_class,
            build=build,
            path=f"{folder}/{path}",
            sha256=sums[path],
            size=int(manifest["raw"]["size"]),
            esp=(int(esp["start"]), int(esp["size"])),
            layout=str(manifest["layout"]),
        )
        right = sums[MANIFEST] == hashlib.sha256(data).hexdigest() and "/" not in name
    except (KeyError, TypeError, ValueError, StopIteration):
        right = False
    if not right:
        raise NodeError(
            f"the builder of {folder} has signed no disk of this form. Publish it with this version of goldnode."
        )
    return image


def _document(source: ChannelSource, path: str) -> bytes:
    data = source.document(path, LIMIT)
    if data is None:
        raise NodeError(f"{source.source} has no {path}. Publish the disk again.")
    return data


def _signed(host: Host, data: bytes, node_class: str, build: str) -> Mapping[str, str]:
    """Return the SHA-256 of each file of a build, as a key of KEYS has signed them. Raises NodeError."""
    signed = statement(
        host,
        data,
        KEYS,
        without="no image is written",
        refusal=f"no key of {KEYS} has signed {node_class} {build}",
        remedy="Publish it with the key of this installer, or make the installer again. Nothing was written.",
    )
    try:
        about = signed["predicate"]
        right = (signed["predicateType"], about["class"], about["build_id"]) == (
            PREDICATE,
            node_class,
            build,
        )
        sums = {str(row["name"]): str(row["digest"]["sha256"]) for row in signed["subject"]}
    except (KeyError, TypeError):
        right, sums = False, {}
    if not right:
        raise NodeError(
            f"the builder's signature of {node_class} {build} is for something else. Nothing was written."
        )
    return sums
