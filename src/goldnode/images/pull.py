"""Download of an image into the store. What a tag promises is verified before a layer moves.

A registry can point any tag to anything. So an image under an immutable tag must have that name in
its own labels, and the digest that the signed channels of its line have for that tag. A channel's tag
must point to the image of that channel. The image and its documents must be signed by a trusted key.
"""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from goldnode.channels import promotion, signed
from goldnode.channels.lines import CHANNELS as NAMES
from goldnode.channels.lines import ChannelLine, History, line_of
from goldnode.channels.locks import disk, using
from goldnode.core.errors import ImageError, nearest
from goldnode.evidence import verify
from goldnode.evidence.trust import TrustPolicy
from goldnode.images.cosign_tags import simple_signatures
from goldnode.oci.identity import IMMUTABLE, ImageIdentity, identity
from goldnode.oci.layout import MANIFEST, Descriptor, Layout
from goldnode.oci.model import BUILD_ID_LENGTH
from goldnode.oci.registry import DOCKER_MANIFEST, INDEXES, Manifest, Repository

CHANNELS = (
    "goldnode-channels"  # repository and tag of the signed channels below a registry's prefix
)
METADATA = "application/vnd.goldnode.channels.v1+json"
TITLE = "org.opencontainers.image.title"


@dataclass
class PulledImage:
    """Result of a pull: the image, its ref in the store, and the number of blobs fetched.

    `signed_by` are the beginnings of the ids of the keys that verified its signatures; empty if no
    key was trusted, and then the signatures were not verified.
    """

    name: str
    digest: str
    ref: str
    fetched: int = 0
    there: int = 0
    evidence: int = 0
    signed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImagePull:
    """How to pull an image.

    `system` (`linux/amd64`) selects from an index; the default is this machine's. `roots` are trusted root
    documents of channels. Without `evidence`, the attached documents are not stored.
    """

    trust: TrustPolicy | None = None
    roots: Sequence[Path] = ()
    evidence: bool = True
    system: str | None = None
    parallel: int = 4


def pull(
    layout: Layout, target: Repository, reference: str, how: ImagePull | None = None
) -> PulledImage:
    """Download an image into the store by digest or tag, and validate every byte against its digest.

    The image gets its name only after that. Raises ImageError, before a layer is fetched, if its
    tag was moved, if it is not signed as the policy requires, and if its labels claim the immutable
    name of another image of the store.
    """
    how = how or ImagePull()
    with using(layout):
        manifest = _one(target, reference, how.system)
        document = manifest.document
        if "layers" not in document or "config" not in document:
            raise ImageError(
                f"{target}@{manifest.digest} is no image",
                remedy="name an image, not a document about one",
            )
        config = Descriptor.of(document["config"])
        rows = {
            row["digest"]: Descriptor.of(row)
            for row in document["layers"]
            if row["digest"] != config.digest
        }
        pulled = PulledImage(
            f"{target}:{reference}" if ":" not in reference else f"{target}@{reference}",
            manifest.digest,
            "",
        )
        # The configuration first: its labels name the image, and a conflict must show before the
        # large download.
        first = target.pull_blob(config, layout)
        own = identity(layout.document(config.digest))
        pulled.ref = _ref(layout, own, manifest.digest, target)
        if ":" not in reference:
            _check_tag(layout, target, reference, manifest, own, roots=how.roots)
        if how.trust is not None:
            pulled.signed_by = _check_trust(target, reference, manifest, how.trust)
        with ThreadPoolExecutor(how.parallel) as pool:
            for new in (first, *pool.map(lambda row: target.pull_blob(row, layout), rows.values())):
                pulled.fetched, pulled.there = pulled.fetched + new, pulled.there + (not new)
        with disk(layout):
            layout.put(manifest.data, manifest.media_type)
            if how.evidence:
                pulled.evidence = pull_evidence(layout, target, manifest.digest)
            # Again: another pull may have taken the name meanwhile.
            _ref(layout, own, manifest.digest, target)
            layout.set_ref(pulled.ref, manifest.descriptor)
    return pulled


def pull_evidence(layout: Layout, target: Repository, digest: str) -> int:
    """Attach all documents that refer to an image in the registry to the same image in the store.

    Return the number of documents. Raises ImageError if the registry lists a document that it does
    not have.
    """
    count = 0
    for row in target.referrers(digest)[0]:
        manifest = target.manifest(str(row.get("digest")))
        if manifest is None:
            raise ImageError(
                f"{target} lists {row.get('digest')} as a referrer of {digest}, and does not have it",
                remedy="publish the image again",
            )
        document = manifest.document
        if (
            document.get("subject", {}).get("digest") != digest
            or len(document.get("layers", [])) != 1
        ):
            continue  # it has another subject, or an unknown form
        layer = Descriptor.of(document["layers"][0])
        kind = str(document.get("artifactType") or document["config"]["mediaType"])
        data = target.read_blob(layer)
        attached = layout.attach(
            digest,
            kind,
            data,
            media_type=layer.media_type,
            annotations=document.get("annotations"),
            layer_annotations=dict(layer.annotations),
        )
        # Another tool wrote it in a different form, so the copy would have another digest.
        if attached.digest != manifest.digest:
            layout.detach(attached.digest)
            continue
        count += 1
    return count


def _one(target: Repository, reference: str, system: str | None) -> Manifest:
    manifest = target.manifest(reference)
    if manifest is None:
        raise ImageError(
            f"{target} has no {reference}",
            remedy=nearest(reference, target.tags()) or "look at what was published there",
        )
    if manifest.media_type not in INDEXES:
        if manifest.media_type not in (MANIFEST, DOCKER_MANIFEST):
            raise ImageError(f"{target}:{reference} is a {manifest.media_type}, which is no image")
        return manifest
    # OCI names architectures as Go does, uname as the kernel does.
    wanted = (
        system
        or f"linux/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"
    )
    offered: dict[str, str] = {}
    for row in manifest.document.get("manifests", []):
        platform_of = row.get("platform") or {}
        offered[
            "/".join(
                filter(
                    None,
                    (
                        platform_of.get("os"),
                        platform_of.get("architecture"),
                        platform_of.get("variant"),
                    ),
                )
            )
        ] = row["digest"]
    digest = offered.get(wanted)
    inner = target.manifest(digest) if digest else None
    if inner is None or inner.media_type in INDEXES:
        raise ImageError(
            f"{target}:{reference} has no image for {wanted}",
            remedy=nearest(wanted, [one for one in offered if one]),
        )
    return inner


def _ref(layout: Layout, own: ImageIdentity, digest: str, target: Repository) -> str:
    """Return the name of a pulled image in the store: the immutable one from its labels, otherwise its
    origin.

    Anyone can write labels. So this raises ImageError if the store has that immutable name for
    another image.
    """
    if not own.repository or not IMMUTABLE.fullmatch(own.tag):
        return f"{target}@{digest}"
    name = own.ref
    have = layout.refs().get(name)
    if have is not None and have.digest != digest:
        raise ImageError(
            f"{name} is {have.digest} in {layout.root}, and {digest} in {target} by its labels: an "
            "immutable name is given to one content only",
            remedy=(
                "find out whose labels are wrong or whose build is not reproducible; to look at it, pull "
                "it into another store (--store)"
            ),
        )
    return name


# Tags


def _check_tag(
    layout: Layout,
    target: Repository,
    tag: str,
    manifest: Manifest,
    own: ImageIdentity,
    *,
    roots: Sequence[Path],
) -> None:
    """Refuse a tag that does not point to what it promises. Raises ImageError.

    Only tags of the forms that goldnode gives promise something: immutable tags and those of
    channels.
    """
    digest = manifest.digest
    index = re.fullmatch(rf".+-index-([0-9a-f]{{{BUILD_ID_LENGTH}}})", tag)
    if index is not None and not (target.digest(tag) or "").startswith(f"sha256:{index[1]}"):
        raise ImageError(
            f"{target}:{tag} is not the index whose digest begins with {index[1]}: the tag was moved",
            remedy=f"find out who did; to have its image anyway, pull it by digest: {target}@{digest}",
        )
    if IMMUTABLE.fullmatch(tag):
        if own.tag != tag or not _in_repository(own, target):
            raise ImageError(
                f"{target}:{tag} is {digest}, which is {own.text()}: a tag of this form is immutable, so it was "
                "moved, or goldnode did not publish it",
                remedy=f"find out who did; to have this image anyway, pull it by digest: {target}@{digest}",
            )
        name = line_of(own.repository, tag).name
        for entry in _history(layout, target, name, roots).entries:
            if entry.tag == tag and entry.now != digest:
                raise ImageError(
                    f"{target}:{tag} is {digest}, and was {entry.now} when it was promoted to {entry.channel}: "
                    "the tag was moved",
                    remedy=f"find out who did; pull {target}@{entry.now}",
                )
        return
    for name, channel in _pointers(tag):
        history = _history(layout, target, name, roots)
        last = history.current(channel)
        # An interrupted move leaves the tag at the previous image.
        if last is not None and digest not in (last.now, last.was):
            raise ImageError(
                f"{target}:{tag} is {digest}, and the history of {history.line} has {last.now} as {channel}: the tag was "
                "moved by something else than goldnode",
                remedy=f"`goldnode images status --repair` resets it; or pull {target}@{last.now}",
            )


def _in_repository(own: ImageIdentity, target: Repository) -> bool:
    """Return whether a repository is one that an image of this name is published to."""
    return f"/{target.name}".endswith(f"/{own.repository}")


def _pointers(tag: str) -> list[tuple[str, str]]:
    """Return line names and channels whose tag this may be. Only the history of a line shows that it exists."""
    names = {channel: tag.removesuffix(f"-{channel}") for channel in NAMES if channel != "stable"}
    tags = {channel: name for channel, name in names.items() if name != tag} or {"stable": tag}
    return [
        (name, channel)
        for channel, name in tags.items()
        if re.fullmatch(r"[^-:]+-[^-:]+-[^-:]+", name)
    ]


def channel_files(target: Repository, seen: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """Return the signed metadata of the channels of a registry; empty without any.

    `seen` has blobs by digest that were read before, and gets the others.
    """
    manifest = target.manifest(CHANNELS)
    if manifest is None:
        return {}
    document = manifest.document
    if document.get("artifactType") != METADATA:
        raise ImageError(
            f"{target}:{CHANNELS} has no channels of goldnode",
            remedy="find out who wrote that tag; delete it, and the next promotion restores what this store has seen",
        )
    files: dict[str, bytes] = {}
    seen = {} if seen is None else seen
    for layer in map(Descriptor.of, document.get("layers", [])):
        if layer.digest not in seen:
            seen[layer.digest] = target.read_blob(layer)
        files[dict(layer.annotations).get(TITLE, "")] = seen[layer.digest]
    return signed.newest_files(files.get)


def _history(layout: Layout, target: Repository, name: str, roots: Sequence[Path]) -> History:
    """Return the verified moves of a line of this repository; empty without channels."""
    parts = target.name.split("/")
    for at in range(len(parts), 0, -1):
        # The name of a repository has a prefix; the channels are below it.
        prefix, line = parts[: at - 1], ChannelLine("/".join(parts[at - 1 :]), name)
        files = channel_files(target.registry.repository("/".join((*prefix, CHANNELS))))
        place = "/".join((target.registry.host, *prefix))
        # A copy without channels there: who can write the registry has deleted them.
        if files or signed.copy_of(layout, place).is_dir():
            return promotion.followed(files, place, layout, roots).history(line)
    return History(ChannelLine(target.name, name))


# Trust


def _check_trust(
    target: Repository, reference: str, manifest: Manifest, trust: TrustPolicy
) -> tuple[str, ...]:
    """Return the ids of the keys that signed an image and its documents. Raises ImageError.

    The documents are read into a temporary layout: the store gets nothing that is refused.
    """
    with tempfile.TemporaryDirectory(prefix="goldnode-pull-") as name:
        scratch = Layout(Path(name))
        scratch.put(manifest.data, manifest.media_type)
        pull_evidence(scratch, target, manifest.digest)
        attached = verify.documents(scratch, manifest.digest)
    simple = simple_signatures(target, manifest.digest)
    return trust.check(str(target), reference, manifest.digest, attached, simple)
