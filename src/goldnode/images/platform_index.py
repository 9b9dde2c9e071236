"""An image index (OCI): one tag for the published builds of one image for several architectures.

docker, podman and skopeo select the manifest of their own platform from it. An index has no content
of its own: it lists digests of images that the registry already has under their immutable tags,
with their evidence. So it is a function of these images, and a repeated publication changes
nothing.

Its tag ends with `-index-` and the beginning of its digest. It is not the tag of one build, and
channels do not move it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from goldnode.core.errors import ImageError
from goldnode.oci.layout import INDEX, MANIFEST, Descriptor, Layout, OciImage, canonical, digest_of
from goldnode.oci.model import BUILD_ID_LENGTH, LABELS
from goldnode.oci.registry import INDEXES, Registry, RegistryAddress, Repository


@dataclass
class PublishedIndex:
    """Result of a publication. `platforms` maps `linux/arm64` to the digest of its image. `before`: the index
    was there already.
    """

    name: str
    digest: str
    platforms: dict[str, str] = field(default_factory=dict)
    before: bool = False


@dataclass(frozen=True)
class PlatformIndex:
    """The index of `images` (ref and image), by platform. `about` are the labels that they share."""

    images: Mapping[str, tuple[str, OciImage]]
    about: Mapping[str, str]

    @property
    def data(self) -> bytes:
        """Return the document, in a fixed order."""
        manifests = []
        for platform, (_, image) in sorted(self.images.items()):
            system, _, architecture = platform.partition("/")
            size = len(image.layout.read(image.digest))
            row = Descriptor(MANIFEST, image.digest, size).document()
            manifests.append({**row, "platform": {"architecture": architecture, "os": system}})
        # No date and no builder: equal images must give an equal index.
        annotations = {f"{LABELS}{key}": value for key, value in self.about.items()}
        return canonical(
            {
                "schemaVersion": 2,
                "mediaType": INDEX,
                "manifests": manifests,
                "annotations": annotations,
            }
        )

    @property
    def digest(self) -> str:
        """`sha256:…` of the document."""
        return digest_of(self.data)

    @property
    def tag(self) -> str:
        """Return the tag of this content alone: `1-base-debian12-index-DIGEST`."""
        parts = (*(self.about[key] for key in ("runtime", "flavour", "os")), "index")
        return "-".join((*parts, self.digest.partition(":")[2][:BUILD_ID_LENGTH]))


def index_of(layout: Layout, refs: Sequence[str]) -> PlatformIndex:
    """Return the index of these images of the store.

    Raises ImageError if they are not one image for several platforms.
    """
    images: dict[str, tuple[str, OciImage]] = {}
    about: dict[str, str] = {}
    for ref in refs:
        image = layout.image(ref)
        platform = "/".join(
            str(image.config.get(key) or "unknown") for key in ("os", "architecture")
        )
        own = {
            key: image.labels.get(LABELS + key, "")
            for key in ("backend", "runtime", "flavour", "os")
        }
        if not all(own.values()):
            raise ImageError(
                f"{ref} has no labels of an image of goldnode", remedy="build it again"
            )
        if about and own != about:
            raise ImageError(
                f"{ref} is not the same image as {next(iter(images.values()))[0]}, for another platform",
                remedy="name the builds of one image",
            )
        if platform in images:
            raise ImageError(
                f"{ref} and {images[platform][0]} are both for {platform}",
                remedy="name one build of each",
            )
        images[platform], about = (ref, image), own
    if len(images) < 2:
        raise ImageError(
            f"an index of {', '.join(refs) or 'no image'} would have less than two platforms",
            remedy="build the image for another architecture, and publish it",
        )
    return PlatformIndex(images, about)


def publish_index(
    layout: Layout, refs: Sequence[str], place: RegistryAddress, registry: Registry
) -> PublishedIndex:
    """Publish the index of these images, which the registry must have under their immutable tags.

    Nothing is sent but the index: each image met the requirements when it was published. Raises
    ImageError if the registry lacks an image, or has another one under its tag.
    """
    index = index_of(layout, refs)
    target = registry.repository(place.repository(index.about["backend"]))
    for ref, image in index.images.values():
        tag = ref.partition(":")[2]
        there = target.digest(tag)
        # An index never lists an image that another publisher put under this tag.
        if there != image.digest:
            said = "is not there" if there is None else f"is {there} there, and {image.digest} here"
            raise ImageError(
                f"{target}:{tag} {said}", remedy=f"publish it: goldnode images publish {ref}"
            )
    published = PublishedIndex(f"{target}:{index.tag}", index.digest)
    published.platforms = {platform: image.digest for platform, (_, image) in index.images.items()}
    there = target.digest(index.tag)
    # The tag ends with the beginning of the digest, so goldnode never writes another content there.
    published.before = there == index.digest
    if there not in (None, index.digest):
        raise ImageError(
            f"{published.name} is {there}, and its tag states another digest",
            remedy="find out who moved it, and delete it",
        )
    if not published.before:
        target.put_manifest(index.tag, index.data, INDEX)
    # Another writer may have replaced it meanwhile: registries have no compare-and-set.
    if target.digest(index.tag) != index.digest:
        raise ImageError(
            f"{published.name} is not there after it was written", remedy="publish it again"
        )
    return published


def listed(target: Repository, tags: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the digests of images that indexes of a repository list, each with the reason to keep it.

    `tags` maps digests of the repository to their tags.
    """
    reasons: dict[str, str] = {}
    for digest, names in tags.items():
        manifest = target.manifest(digest)
        if manifest is None or manifest.media_type not in INDEXES:
            continue
        rows = json.loads(manifest.data).get("manifests", [])
        reasons |= {str(row["digest"]): f"the index {next(iter(names))} lists it" for row in rows}
    return reasons
