"""The identity of an image: an image of ours, one derived from it, or a child that inherited its labels.

A Dockerfile that begins `FROM` one of our images inherits all labels. So labels alone never prove an
identity. The configuration also lists its build steps, and ours end with a step that names the image. Each
further step, even one that adds no layer, makes a child. Signatures protect against forged configurations;
this module does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from goldnode.oci.layout import Layout, OciImage, canonical, digest_of
from goldnode.oci.model import BUILD_ID_LENGTH, LABELS, system_word

# Present in derived images only: the repository that the team chose, and the digest of the layers.
REPOSITORY = f"{LABELS}repository"
ROOTFS = f"{LABELS}rootfs"
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"

# The form of an immutable tag. It recognises a tag, and never identifies an image.
IMMUTABLE = re.compile(
    rf"(?P<version>[^-]+)-(?P<flavour>[^-]+)-(?P<os>[^-]+)-(?P<build>[0-9a-f]{{{BUILD_ID_LENGTH}}})"
)

Kind = Literal["matrix", "derived", "child", "unverified", "foreign"]


@dataclass(frozen=True)
class ImageIdentity:
    """Identity of an image according to its configuration.

    `kind` is one of:

    * `matrix`: an image of an image matrix, as `goldnode images build` made it.
    * `derived`: an image that `goldnode images derive` made.
    * `child`: another tool added steps or layers to one of these. `ancestor` is the image whose labels the
      child inherited; the child itself has no name.
    * `unverified`: the labels name an image, and the build steps are unknown (output of `docker inspect`).
      `ancestor` is the image that they name.
    * `foreign`: there are no labels of goldnode.

    `repository`, `version`, `flavour`, `os` and `build_id` name the image; they are empty for the last three
    kinds. `backend` and `runtime` describe the content, also of a child. `base_name` and `base_digest` are the
    image that it begins with. The digest of a child's base is unknown.
    """

    kind: Kind
    repository: str = ""
    version: str = ""
    flavour: str = ""
    os: str = ""
    build_id: str = ""
    backend: str = ""
    runtime: str = ""
    base_name: str = ""
    base_digest: str = ""
    ancestor: ImageIdentity | None = None

    @property
    def named(self) -> bool:
        """Return whether the image is exactly the one that its labels name."""
        return self.kind in ("matrix", "derived")

    @property
    def tag(self) -> str:
        """Return the immutable tag; empty if the image has no name of its own."""
        parts = (self.version, self.flavour, self.os, self.build_id)
        return "-".join(parts) if all(parts) else ""

    @property
    def ref(self) -> str:
        """Reference in a store or registry: `cuda:12.4.1-runtime-debian12-BUILDID`; empty without a name."""
        return f"{self.repository}:{self.tag}" if self.repository and self.tag else ""

    @property
    def name(self) -> str:
        """Name for commands: `cuda-12.4.1-runtime-debian12`, or the repository of a derived image."""
        if self.kind == "derived":
            return self.repository
        return "-".join((self.repository, self.version, self.flavour, self.os)) if self.tag else ""

    def text(self) -> str:
        """Describe the identity in a few words."""
        if self.kind == "child":
            return f"a child of {self.base_name}, built by another tool"
        if self.kind == "unverified":
            return (
                f"labelled as {self.base_name}, which could not be checked without its build steps"
            )
        if self.kind == "foreign":
            return "no image of goldnode"
        return f"{self.ref}, derived from {self.base_name}" if self.kind == "derived" else self.ref


def identity(config: Mapping[str, Any]) -> ImageIdentity:
    """Return the identity of the image with this configuration: an OCI one, or output of `docker inspect`."""
    settings = config.get("config") or config.get("Config") or {}
    rootfs = config.get("rootfs") or config.get("RootFS") or {}
    return identity_of(
        settings.get("Labels") or {},
        rootfs.get("diff_ids") or rootfs.get("Layers") or [],
        config.get("history"),
    )


def identity_of(
    labels: Mapping[str, str], layers: Sequence[str], history: Sequence[Mapping[str, Any]] | None
) -> ImageIdentity:
    """Return the identity from labels, the digests of the uncompressed layers, and the build steps.

    `history` has the form of an OCI configuration, oldest step first. None: it is unknown.
    """
    labelled = _labelled(labels)
    if labelled is None:
        return ImageIdentity("foreign")
    if history is None:
        kind: Kind = "child" if _other_layers(labels, layers) else "unverified"
        return _nameless(kind, labelled)
    steps = [row for row in history if not row.get("empty_layer")]
    last = history[-1].get("created_by") if history else None
    own = (
        last == step_of(labelled.name)
        and len(steps) == len(layers)
        and not _other_layers(labels, layers)
    )
    return labelled if own else _nameless("child", labelled)


def step_of(name: str) -> str:
    """Return the text of the last build step of the image with this name."""
    return f"goldnode identity of {name}"


def rootfs_digest(layers: Sequence[str]) -> str:
    """Return the digest of a list of layers, given as digests of their uncompressed content."""
    return digest_of(canonical(list(layers)))


def _other_layers(labels: Mapping[str, str], layers: Sequence[str]) -> bool:
    return ROOTFS in labels and labels[ROOTFS] != rootfs_digest(layers)


def _labelled(labels: Mapping[str, str]) -> ImageIdentity | None:
    """Return the image that labels name, or None if they name none."""
    backend, runtime, flavour, system, build = (
        labels.get(LABELS + key, "") for key in ("backend", "runtime", "flavour", "os", "build-id")
    )
    if not (backend and runtime and flavour and system and build):
        return None
    derived = REPOSITORY in labels
    return ImageIdentity(
        kind="derived" if derived else "matrix",
        repository=labels.get(REPOSITORY, backend),
        version=labels.get(f"{LABELS}version", "") if derived else runtime,
        flavour=flavour,
        os=system_word(system, labels.get(f"{LABELS}architectures", "")),
        build_id=build,
        backend=backend,
        runtime=runtime,
        base_name=labels.get(BASE_NAME, ""),
        base_digest=labels.get(BASE_DIGEST, ""),
    )


def _nameless(kind: Kind, ancestor: ImageIdentity) -> ImageIdentity:
    # The inherited base labels name the base of the ancestor, so they do not describe this image.
    return ImageIdentity(
        kind,
        backend=ancestor.backend,
        runtime=ancestor.runtime,
        base_name=ancestor.ref,
        ancestor=ancestor,
    )


def names_of(layout: Layout, digest: str) -> frozenset[str]:
    """Return the names of an image without its build id, by its labels; empty if they give it none.

    These are the name for commands (`cuda-12.4.1-runtime-debian12`) and the mutable reference
    (`cuda:12.4.1-runtime-debian12`).
    """
    if not layout.has(digest) or "layers" not in layout.document(digest):
        return frozenset()
    image = OciImage(layout, digest)
    if not layout.has(image.manifest["config"]["digest"]):
        return frozenset()
    own = identity(image.config)
    if not own.ref:
        return frozenset()
    return frozenset((own.name, f"{own.repository}:{own.tag.removesuffix(f'-{own.build_id}')}"))
