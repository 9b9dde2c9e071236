"""Publication of an image. The order is: blobs, manifest, evidence, read-back, immutable tag.

This order makes an interruption harmless. The tag is the last write: until then no image can be
found by name. A repeated run sends only what is missing. A publication never moves an existing tag:
it fails if the tag has different content. It relies on a layer that the registry already has only
after reading it, now or a few days ago.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from goldnode.channels.lines import line_of
from goldnode.channels.locks import lane, using
from goldnode.channels.requirements import Decisions, Requirement, RequirementDecision, refuse
from goldnode.core.errors import ImageError
from goldnode.core.files import replace_file
from goldnode.images.cosign_tags import push_tags
from goldnode.images.matrix import absent
from goldnode.images.requirements import PUBLICATION, judge
from goldnode.oci.identity import BASE_DIGEST, BASE_NAME, REPOSITORY, identity, names_of
from goldnode.oci.layout import MANIFEST, Descriptor, Layout, OciImage, canonical
from goldnode.oci.model import LABELS
from goldnode.oci.registry import Registry, RegistryAddress, Repository

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

READ_AGAIN = dt.timedelta(days=7)  # after which a layer that is relied on is read again
SETTLE = 1.0  # seconds until another publisher's write to the same tag is visible

Say = Callable[[str], None]


@dataclass
class PublishedImage:
    """Result of a publication.

    `sent` and `there` count blobs. `relied` are the digests of layers that the registry had
    already. `api`: the registry supports the Referrers API. `before`: the tag existed already, with
    the same digest.
    """

    name: str
    digest: str
    sent: int = 0
    there: int = 0
    size: int = 0
    evidence: int = 0
    api: bool = False
    requirements: list[Requirement] = field(default_factory=list)
    before: bool = False
    relied: list[str] = field(default_factory=list)


def find(layout: Layout, name: str) -> tuple[str, Descriptor]:
    """Return the ref in the store that a name identifies.

    A name is a ref itself, or a name of an image or line that exactly one build in the store has by
    its labels. A build has several refs after a promotion or a pull: its immutable one is returned.
    Raises ImageError if no build or several match.
    """
    refs = layout.refs()
    if name in refs:
        return name, refs[name]
    own = {ref: builds for ref, row in refs.items() if (builds := names_of(layout, row.digest))}
    named: dict[str, list[str]] = {}
    for ref in sorted(ref for ref, builds in own.items() if name in builds):
        named.setdefault(refs[ref].digest, []).append(ref)
    fits = [_own_ref(layout, digest, names) for digest, names in named.items()]
    if len(fits) == 1:
        return fits[0], refs[fits[0]]
    if fits:
        raise ImageError(
            f"{len(fits)} builds of {name} are in {layout.root}: {', '.join(fits)}",
            remedy="name one of them",
        )
    known = [*own, *(build for builds in own.values() for build in builds)]
    raise ImageError(f"{name} is not in {layout.root}", remedy=absent(name, known))


def _own_ref(layout: Layout, digest: str, names: Sequence[str]) -> str:
    """Return the ref of a build that its labels state, otherwise its first one."""
    own = identity(OciImage(layout, digest).config).ref
    return own if own in names else names[0]


def checked_name(image: OciImage, ref: str) -> tuple[str, str]:
    """Return repository and immutable tag of an image by its labels.

    Raises ImageError if the labels give it no name, or another one than `ref`.
    """
    own = identity(image.config)
    if not own.named:
        raise ImageError(
            f"{ref} is {own.text()}",
            remedy="build it with `goldnode images build` or `goldnode images derive`",
        )
    if own.ref != ref:
        raise ImageError(
            f"the name is {ref}, and the labels of the image say {own.ref}", remedy="build it again"
        )
    line_of(own.repository, own.tag)
    return own.repository, own.tag


@dataclass(frozen=True)
class ImagePublication:
    """How to publish an image.

    `private`: the registry may get content whose licence forbids redistribution. `full` reads every
    layer back, also those that were just sent, and those that this store has read from the registry
    lately. `mounts` maps blobs to repositories of the registry that have them, so that shared blobs
    are sent once. `settle` is the time in seconds until another publisher's write is visible.
    """

    trust: Sequence[SSlibKey] = ()
    waivers: Sequence[RequirementDecision] = ()
    private: bool = False
    full: bool = False
    mounts: dict[str, str] | None = None
    settle: float = SETTLE
    parallel: int = 4
    say: Say = lambda text: None
    now: dt.datetime | None = None


def _not_free(image: OciImage, ref: str) -> ImageError:
    """Return the error for an image that is not free to be passed on: by its declaration, or by its parts."""
    private = "publish it with --private to a registry that only you read"
    why = image.labels.get(
        f"{LABELS}licences", "its label does not say that it may be redistributed"
    )
    base = image.labels.get(BASE_DIGEST)
    if base is None or REPOSITORY not in image.labels:
        return ImageError(
            f"{ref} holds parts whose licence forbids to pass them on ({why})", remedy=private
        )
    name = image.labels.get(BASE_NAME, base)
    below = OciImage(image.layout, base) if image.layout.has(base) else None
    if below is not None and below.labels.get(f"{LABELS}redistribution") != "free":
        return ImageError(
            f"{ref} is private as its base {name} is, which holds parts whose licence forbids to pass them on ({why})",
            remedy=f"{private}, or derive it from a base without them",
        )
    unknown = "" if below is not None else f", or its base {name} is private"
    return ImageError(
        f"{ref} is private: its declaration has no `redistribution: free`{unknown}",
        remedy=f"{private}; or, where everything in it may be passed on, write `redistribution: free` into its declaration "
        "and derive it again",
    )


def publish(
    layout: Layout,
    ref: str,
    place: RegistryAddress,
    registry: Registry,
    how: ImagePublication | None = None,
) -> PublishedImage:
    """Publish the image under `ref` of the store.

    Raises ImageError; then the tag was not written, or it belongs to another image.
    """
    how = how or ImagePublication()
    descriptor = layout.refs().get(ref)
    if descriptor is None:
        raise ImageError(f"{ref} is not in {layout.root}", remedy=absent(ref, layout.refs()))
    image = OciImage(layout, descriptor.digest)
    repository, tag = checked_name(image, ref)
    if image.labels.get(f"{LABELS}redistribution") != "free" and not how.private:
        raise _not_free(image, ref)
    results = judge("publish", layout, image.digest, Decisions(how.trust, how.waivers))
    refuse("publish", ref, results)
    target = registry.repository(place.repository(repository))
    published = PublishedImage(f"{target}:{tag}", image.digest, requirements=results)
    with using(layout), lane(layout, f"{target}"):
        published.before = _immutable(target, tag, image.digest)
        _record(layout, image.digest, tag, results, how)
        push(layout, image.digest, target, published, how)
        read_relied(
            layout,
            target,
            [row for row in image.layers if how.full or row.digest in published.relied],
            how,
        )
        published.evidence, published.api = push_evidence(layout, image.digest, target, published)
        read_back(layout, image.digest, target)
        # A registry has no compare-and-set: check the tag, write it, wait, and check it again. If
        # another publisher won the race, the last check raises.
        if not _immutable(target, tag, image.digest):
            target.put_manifest(tag, layout.read(image.digest), descriptor.media_type)
            time.sleep(how.settle)
        if not _immutable(target, tag, image.digest):
            raise ImageError(
                f"{target}:{tag} is not there after it was written",
                remedy="look at the registry, and publish again",
            )
    how.say(f"{published.name} is {published.digest}")
    return published


def _immutable(target: Repository, tag: str, digest: str) -> bool:
    """Return whether the tag already points to the digest. Raises ImageError if it points to another one."""
    there = target.digest(tag)
    if there is not None and there != digest:
        raise ImageError(
            f"{target}:{tag} is {there} in the registry, and {digest} here: an immutable tag is given to "
            "one content only",
            remedy=(
                "find out who moved it or whose build is not reproducible; a changed recipe has a build id "
                "of its own"
            ),
        )
    return there is not None


def _record(
    layout: Layout, digest: str, tag: str, results: Sequence[Requirement], how: ImagePublication
) -> None:
    """Attach the publication record with the results of the requirements.

    An equal record is attached only once.
    """
    document: dict[str, Any] = {
        "schema": "goldnode.publication/1",
        "digest": digest,
        "tag": tag,
        "private": how.private,
        "gates": [result.document() for result in results],
    }
    for _, manifest in layout.attached(digest, PUBLICATION):
        kept = json.loads(layout.read(manifest["layers"][0]["digest"]))
        # Ignore the date: the record states the first publication.
        if {key: value for key, value in kept.items() if key != "published"} == document:
            return
    now = how.now or dt.datetime.now(dt.UTC)
    layout.attach(
        digest,
        PUBLICATION,
        canonical({**document, "published": now.strftime("%Y-%m-%dT%H:%M:%SZ")}),
    )


def push(
    layout: Layout,
    digest: str,
    target: Repository,
    published: PublishedImage,
    how: ImagePublication | None = None,
) -> None:
    """Upload an image's blobs in parallel, then its manifest by digest. Writes no tag."""
    image = OciImage(layout, digest)
    blobs = {row.digest: row for row in (*image.layers, Descriptor.of(image.manifest["config"]))}
    how = how or ImagePublication()
    known = {} if how.mounts is None else how.mounts

    def one(row: Descriptor) -> bool:
        others = {known.get(row.digest, target.name)} - {target.name}
        return target.push_blob(row, layout.path(row.digest), tuple(others))

    with ThreadPoolExecutor(how.parallel) as pool:
        # After a failure, `map` cancels the uploads that have not begun.
        for row, sent in zip(blobs.values(), pool.map(one, blobs.values()), strict=True):
            published.sent, published.there = published.sent + sent, published.there + (not sent)
            published.size += row.size if sent else 0
            if not sent and row.digest != image.manifest["config"]["digest"]:
                published.relied.append(row.digest)
            # The next image of this run mounts the blob from here instead of sending it.
            known[row.digest] = target.name
    # By digest only: without a tag, no user finds the image before it is verified.
    target.put_manifest(digest, layout.read(digest), image.manifest.get("mediaType", MANIFEST))


def push_evidence(
    layout: Layout, digest: str, target: Repository, published: PublishedImage
) -> tuple[int, bool]:
    """Upload everything attached to an image as referrers.

    Return the number of documents, and whether the registry's own API lists them.
    """
    rows: list[dict[str, Any]] = []
    minded = True
    for descriptor, manifest in layout.attached(digest):
        for row in (manifest["config"], *manifest["layers"]):
            blob = Descriptor.of(row)
            if target.push_blob(blob, layout.path(blob.digest)):
                published.sent, published.size = published.sent + 1, published.size + blob.size
            else:
                published.there += 1
        minded &= target.put_manifest(descriptor.digest, layout.read(descriptor.digest), MANIFEST)
        row = Descriptor(MANIFEST, descriptor.digest, descriptor.size).document()
        named = ("artifactType", "annotations")
        rows.append(row | {name: manifest[name] for name in named if manifest.get(name)})
    if rows:
        target.refer(digest, rows, minded=minded)
        push_tags(layout, digest, target)
    return len(rows), minded and bool(rows)


def read_relied(
    layout: Layout, target: Repository, rows: Sequence[Descriptor], how: ImagePublication
) -> None:
    """Read layers from the registry and validate their digests, except those read in the last days.

    A registry hashes a blob when it arrives and not later, so a claim to have it proves nothing
    about its content now. A layer that this run sent is not read. The store records which layers of
    a repository it has read, so that a repeated publication does not read gigabytes again. Raises
    ImageError.
    """
    now = how.now or dt.datetime.now(dt.UTC)
    folder = layout.root / "read" / quote(target.registry.host, safe="")
    record = folder / f"{quote(target.name, safe='')}.json"
    try:
        times = json.loads(record.read_bytes())
        read = {name: dt.datetime.fromisoformat(time_) for name, time_ in times.items()}
        recent = {name for name, at in read.items() if dt.timedelta(0) <= now - at < READ_AGAIN}
    except (OSError, ValueError, TypeError, AttributeError):
        read, recent = {}, set()  # without the record everything is read again
    todo = [row for row in rows if how.full or row.digest not in recent]
    try:
        with ThreadPoolExecutor(how.parallel) as pool:
            for row, _ in zip(todo, pool.map(target.check_blob, todo), strict=True):
                read[row.digest] = now
    finally:
        if todo:
            replace_file(record, canonical({name: at.isoformat() for name, at in read.items()}))


def read_back(layout: Layout, digest: str, target: Repository) -> None:
    """Compare the registry's content with the store.

    Manifests and documents are compared byte by byte, layers by presence and size. Raises
    ImageError.
    """
    image = OciImage(layout, digest)
    if target.manifest(digest) is None:
        raise ImageError(
            f"{target}@{digest} is not there after it was written",
            remedy="publish again, and look at the registry",
        )
    config = Descriptor.of(image.manifest["config"])
    target.read_blob(config)
    for row in image.layers:
        size = target.blob_size(row.digest)
        # -1: the registry has the blob and does not state its size.
        if size not in (row.size, -1):
            said = "absent" if size is None else f"{size} bytes"
            raise ImageError(
                f"blob {row.digest} is {said} in {target}, expected {row.size} bytes",
                remedy="publish again, and look at the registry",
            )
    for descriptor, manifest in layout.attached(digest):
        if target.manifest(descriptor.digest) is None:
            raise ImageError(
                f"{target}@{descriptor.digest} ({manifest['artifactType']}) is not there after it was "
                "written",
                remedy="publish again",
            )
        for row in manifest["layers"]:
            target.read_blob(Descriptor.of(row))
