"""Publication of an image, and pull. The order is: blobs, manifest, evidence, immutable tag, read-back.

This order makes an interruption harmless. The tag is the last write: until then no image can be found by
name. A repeated run sends only what is missing. A publication never moves an existing tag: it fails if the
tag has different content.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from goldnode.channels.history import IMMUTABLE, line_of
from goldnode.channels.locks import disk, lane, using
from goldnode.channels.requirements import Decisions, Requirement, RequirementWaiver, refuse
from goldnode.core.errors import ImageError, nearest
from goldnode.images.matrix import absent
from goldnode.images.requirements import PUBLICATION, judge
from goldnode.oci.layout import MANIFEST, Descriptor, Layout, OciImage, canonical
from goldnode.oci.model import LABELS
from goldnode.oci.registry import (
    DOCKER_MANIFEST,
    INDEXES,
    Manifest,
    Registry,
    RegistryRequest,
    Repository,
    Where,
)

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

SETTLE = 1.0  # seconds until another publisher's write to the same tag is visible

Say = Callable[[str], None]


@dataclass
class PublishedImage:
    """Result of a publication.

    `sent` and `there` count blobs. `api`: the registry supports the Referrers API. `before`: the tag existed
    already, with the same digest.
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


def find(layout: Layout, name: str) -> tuple[str, Descriptor]:
    """Return the ref in the store that a name identifies.

    A name is a ref itself, or an image name (BACKEND-VERSION-FLAVOUR-OS) with exactly one build in the store.
    Raises ImageError if no build or several match.
    """
    refs = layout.refs()
    if name in refs:
        return name, refs[name]
    own: dict[str, str] = {}
    for ref in refs:
        repository, _, tag = ref.partition(":")
        if IMMUTABLE.fullmatch(tag):
            own[ref] = f"{repository}-{tag.rpartition('-')[0]}"
    fits = sorted(ref for ref, image in own.items() if name in (image, image.replace("-", ":", 1)))
    if len(fits) == 1:
        return fits[0], refs[fits[0]]
    if fits:
        raise ImageError(
            f"{len(fits)} builds of {name} are in {layout.root}: {', '.join(fits)}", remedy="name one of them"
        )
    raise ImageError(f"{name} is not in {layout.root}", remedy=absent(name, [*own, *own.values()]))


def identity(image: OciImage, ref: str) -> tuple[str, str]:
    """Return repository and immutable tag of a ref, validated against the image's own labels.

    Raises ImageError if they contradict each other.
    """
    repository, _, tag = ref.partition(":")
    line_of(repository, tag)
    version, flavour, system, build = tag.rsplit("-", 3)
    for label, value in (
        ("backend", repository),
        ("runtime", version),
        ("flavour", flavour),
        ("os", system),
        ("build-id", build),
    ):
        said = image.labels.get(LABELS + label)
        if said != value:
            raise ImageError(
                f"{ref} says {label} {value}, the image's label {LABELS}{label} says {said or 'nothing'}",
                remedy="build it again",
            )
    return repository, tag


@dataclass(frozen=True)
class ImagePublication:
    """How to publish an image.

    `private`: the registry may get content whose licence forbids redistribution. `full` reads every blob back,
    not only manifests and documents. `mounts` maps blobs to repositories of the registry that have them, so
    that shared blobs are sent once. `settle` is the time in seconds until another publisher's write is visible.
    """

    trust: Sequence[SSlibKey] = ()
    waivers: Sequence[RequirementWaiver] = ()
    private: bool = False
    full: bool = False
    mounts: dict[str, str] | None = None
    settle: float = SETTLE
    parallel: int = 4
    say: Say = lambda text: None
    now: dt.datetime | None = None


def publish(
    layout: Layout, ref: str, place: Where, registry: Registry, how: ImagePublication | None = None
) -> PublishedImage:
    """Publish the image under `ref` of the store.

    Raises ImageError; then the tag was not written, or it belongs to another image.
    """
    how = how or ImagePublication()
    descriptor = layout.refs().get(ref)
    if descriptor is None:
        raise ImageError(f"{ref} is not in {layout.root}", remedy=absent(ref, layout.refs()))
    image = OciImage(layout, descriptor.digest)
    repository, tag = identity(image, ref)
    if image.labels.get(f"{LABELS}redistribution") != "free" and not how.private:
        why = image.labels.get(f"{LABELS}licences", "its label does not say that it may be redistributed")
        raise ImageError(
            f"{ref} holds parts whose licence forbids to pass them on ({why})",
            remedy="publish it with --private to a registry that only you read",
        )
    results = judge("publish", layout, image.digest, Decisions(how.trust, how.waivers))
    refuse("publish", ref, results)
    target = registry.repository(place.repository(repository))
    found = PublishedImage(f"{target}:{tag}", image.digest, requirements=results)
    with using(layout), lane(layout, f"{target}"):
        found.before = _immutable(target, tag, image.digest)
        _record(layout, image.digest, tag, results, how)
        push(layout, image.digest, target, found, mounts=how.mounts, parallel=how.parallel)
        found.evidence, found.api = push_evidence(layout, image.digest, target, found)
        read_back(layout, image.digest, target, full=how.full)
        # A registry has no compare-and-set: check the tag, write it, wait, and check it again. If another
        # publisher won the race, the last check raises.
        if not _immutable(target, tag, image.digest):
            target.put_manifest(tag, layout.read(image.digest), descriptor.media_type)
            time.sleep(how.settle)
        if not _immutable(target, tag, image.digest):
            raise ImageError(
                f"{target}:{tag} is not there after it was written",
                remedy="look at the registry, and publish again",
            )
    how.say(f"{found.name} is {found.digest}")
    return found


def _immutable(target: Repository, tag: str, digest: str) -> bool:
    """Return whether the tag already points to the digest. Raises ImageError if it points to another one."""
    found = target.digest(tag)
    if found is not None and found != digest:
        raise ImageError(
            f"{target}:{tag} is {found} in the registry, and {digest} here: an immutable tag is given to "
            "one content only",
            remedy=(
                "find out who moved it or whose build is not reproducible; a changed recipe has a build id "
                "of its own"
            ),
        )
    return found is not None


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
        digest, PUBLICATION, canonical({**document, "published": now.strftime("%Y-%m-%dT%H:%M:%SZ")})
    )


def push(
    layout: Layout,
    digest: str,
    target: Repository,
    found: PublishedImage,
    *,
    mounts: dict[str, str] | None = None,
    parallel: int = 4,
) -> None:
    """Upload an image's blobs in parallel, then its manifest by digest. Writes no tag."""
    image = OciImage(layout, digest)
    blobs = {row.digest: row for row in (*image.layers, Descriptor.of(image.manifest["config"]))}
    known = mounts if mounts is not None else {}

    def one(row: Descriptor) -> bool:
        other = known.get(row.digest)
        return target.push_blob(
            row, layout.path(row.digest), (other,) if other and other != target.name else ()
        )

    with ThreadPoolExecutor(parallel) as pool:
        futures = {pool.submit(one, row): row for row in blobs.values()}
        done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in done:
            sent = future.result()
            found.sent, found.there = found.sent + sent, found.there + (not sent)
            found.size += futures[future].size if sent else 0
            # The next image of this run mounts the blob from here instead of sending it.
            known[futures[future].digest] = target.name
    # By digest only: without a tag, no user finds the image before it is verified.
    target.put_manifest(digest, layout.read(digest), image.manifest.get("mediaType", MANIFEST))


def push_evidence(layout: Layout, digest: str, target: Repository, found: PublishedImage) -> tuple[int, bool]:
    """Upload everything attached to an image as referrers.

    Return the number of documents, and whether the registry's own API lists them.
    """
    rows: list[dict[str, Any]] = []
    minded = True
    for descriptor, manifest in layout.attached(digest):
        for row in (manifest["config"], *manifest["layers"]):
            blob = Descriptor.of(row)
            if target.push_blob(blob, layout.path(blob.digest)):
                found.sent, found.size = found.sent + 1, found.size + blob.size
            else:
                found.there += 1
        minded = target.put_manifest(descriptor.digest, layout.read(descriptor.digest), MANIFEST) and minded
        row = {
            **Descriptor(MANIFEST, descriptor.digest, descriptor.size).document(),
            "artifactType": manifest["artifactType"],
        }
        rows.append(row | ({"annotations": manifest["annotations"]} if manifest.get("annotations") else {}))
    if rows:
        target.refer(digest, rows, minded=minded)
    return len(rows), minded and bool(rows)


def read_back(layout: Layout, digest: str, target: Repository, *, full: bool = False) -> None:
    """Compare the registry's content with the store.

    Manifests and documents are compared byte by byte, layers by presence and size, or completely with `full`.
    Raises ImageError.
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
        if full:
            check_blob(target, row)
    for descriptor, manifest in layout.attached(digest):
        if target.manifest(descriptor.digest) is None:
            raise ImageError(
                f"{target}@{descriptor.digest} ({manifest['artifactType']}) is not there after it was "
                "written",
                remedy="publish again",
            )
        for row in manifest["layers"]:
            target.read_blob(Descriptor.of(row))


def check_blob(target: Repository, row: Descriptor) -> None:
    """Read a blob from the registry and compare its digest, without storing it. Raises ImageError."""
    hasher, size = hashlib.sha256(), 0
    what = f"blob {row.digest} of {target} cannot be read back"
    request = RegistryRequest("GET", f"/v2/{target.name}/blobs/{row.digest}", (200,), what, target.name)
    with target.registry.open(request) as answer:
        for block in answer.blocks():
            hasher.update(block)
            size += len(block)
    if "sha256:" + hasher.hexdigest() != row.digest:
        raise ImageError(
            f"blob {row.digest} of {target} is altered: expected {row.size} bytes with that digest, got "
            f"{size} with sha256:{hasher.hexdigest()}",
            remedy="delete it from the registry's storage and publish again",
        )


# Pulling


@dataclass
class PulledImage:
    """Result of a pull: the image, its ref in the store, and the number of blobs fetched."""

    name: str
    digest: str
    ref: str
    fetched: int = 0
    there: int = 0
    evidence: int = 0


def pull(
    layout: Layout,
    target: Repository,
    reference: str,
    *,
    evidence: bool = True,
    system: str | None = None,
    parallel: int = 4,
) -> PulledImage:
    """Download an image into the store by digest or tag, and validate every byte against its digest.

    The image gets its name only after that. `system` (`linux/amd64`) selects from an index; the default is
    this machine's. Raises ImageError, also if the image's labels claim the immutable name of another image of
    the store.
    """
    with using(layout):
        manifest = _one(target, reference, system)
        document = manifest.document
        if "layers" not in document or "config" not in document:
            raise ImageError(
                f"{target}@{manifest.digest} is no image", remedy="name an image, not a document about one"
            )
        config = Descriptor.of(document["config"])
        rows = {
            row["digest"]: Descriptor.of(row) for row in document["layers"] if row["digest"] != config.digest
        }
        found = PulledImage(
            f"{target}:{reference}" if ":" not in reference else f"{target}@{reference}", manifest.digest, ""
        )
        # The configuration first: its labels name the image, and a conflict must show before the large
        # download.
        first = target.pull_blob(config, layout)
        found.ref = _ref(layout, layout.document(config.digest), manifest.digest, target)
        with ThreadPoolExecutor(parallel) as pool:
            for new in (first, *pool.map(lambda row: target.pull_blob(row, layout), rows.values())):
                found.fetched, found.there = found.fetched + new, found.there + (not new)
        with disk(layout):
            layout.put(manifest.data, manifest.media_type)
            if evidence:
                found.evidence = pull_evidence(layout, target, manifest.digest)
            _ref(
                layout, layout.document(config.digest), manifest.digest, target
            )  # again: another pull may have taken the name meanwhile
            layout.set_ref(found.ref, manifest.descriptor)
    return found


def pull_evidence(layout: Layout, target: Repository, digest: str) -> int:
    """Attach all documents that refer to an image in the registry to the same image in the store.

    Return the number of documents. Raises ImageError if the registry lists a document that it does not have.
    """
    count = 0
    for row in target.referrers(digest)[0]:
        found = target.manifest(str(row.get("digest")))
        if found is None:
            raise ImageError(
                f"{target} lists {row.get('digest')} as a referrer of {digest}, and does not have it",
                remedy="publish the image again",
            )
        document = found.document
        if document.get("subject", {}).get("digest") != digest or len(document.get("layers", [])) != 1:
            continue  # it has another subject, or an unknown form
        layer = Descriptor.of(document["layers"][0])
        kind = str(document.get("artifactType") or document["config"]["mediaType"])
        data = target.read_blob(layer)
        attached = layout.attach(
            digest, kind, data, media_type=layer.media_type, annotations=document.get("annotations")
        )
        if (
            attached.digest != found.digest
        ):  # another tool wrote it in a different form, so the copy would have another digest
            layout.detach(attached.digest)
            continue
        count += 1
    return count


def _one(target: Repository, reference: str, system: str | None) -> Manifest:
    found = target.manifest(reference)
    if found is None:
        raise ImageError(
            f"{target} has no {reference}",
            remedy=nearest(reference, target.tags()) or "look at what was published there",
        )
    if found.media_type not in INDEXES:
        if found.media_type not in (MANIFEST, DOCKER_MANIFEST):
            raise ImageError(f"{target}:{reference} is a {found.media_type}, which is no image")
        return found
    # OCI names architectures as Go does, uname as the kernel does.
    wanted = (
        system
        or f"linux/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"
    )
    offered: dict[str, str] = {}
    for row in found.document.get("manifests", []):
        told = row.get("platform") or {}
        offered["/".join(filter(None, (told.get("os"), told.get("architecture"), told.get("variant"))))] = (
            row["digest"]
        )
    digest = offered.get(wanted)
    inner = target.manifest(digest) if digest else None
    if inner is None or inner.media_type in INDEXES:
        raise ImageError(
            f"{target}:{reference} has no image for {wanted}",
            remedy=nearest(wanted, [one for one in offered if one]),
        )
    return inner


def _ref(layout: Layout, config: dict[str, Any], digest: str, target: Repository) -> str:
    """Return the name of a pulled image in the store: the immutable one from its labels, otherwise its
    origin.

    Anyone can write labels. So this raises ImageError if the store has that immutable name for another image.
    """
    labels = (config.get("config") or {}).get("Labels") or {}
    said = {
        key: labels.get(LABELS + key) or "" for key in ("backend", "runtime", "flavour", "os", "build-id")
    }
    tag = f"{said['runtime']}-{said['flavour']}-{said['os']}-{said['build-id']}"
    if not said["backend"] or not IMMUTABLE.fullmatch(tag):
        return f"{target}@{digest}"
    name = f"{said['backend']}:{tag}"
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
