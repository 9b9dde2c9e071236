"""Values that all packages of images share: an image of the matrix, and the result of its build."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

NAME = re.compile(r"^[a-z0-9]+(?:[.-][a-z0-9_.+]+)*$")
BUILD_ID_LENGTH = 12

# Our own labels and annotations; the standard ones are org.opencontainers.image.*
LABELS = "io.goldnode."

# dpkg's name of an architecture: uname's name. OCI uses the same names as dpkg for these.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
Architecture = Literal["amd64", "arm64"]
AMD64: Architecture = "amd64"  # names of images omit it


def system_word(os: str, architecture: str) -> str:
    """Return the part of names and tags for OS and architecture: `debian12`, `debian12_arm64`."""
    return os if architecture in ("", AMD64) else f"{os}_{architecture}"


@dataclass(frozen=True)
class ImageSpec:
    """One image of the matrix.

    `name` is BACKEND-VERSION-FLAVOUR-OS (`cuda-12.4.1-runtime-debian12`), by which commands, locks and files call it; its
    repository is `backend` and its tag the rest. `parent` is the name of the image whose layers it begins with; None for
    the first one, which is made of packages alone. `architecture` is dpkg's name.

    A derived image has a `repository` of its own instead of `backend`, and a `release` in its tag instead of `version`,
    which is that of the base's runtime. Its `name` is the repository.
    """

    name: str
    backend: str
    version: str
    flavour: str
    os: str
    parent: str | None = None
    repository: str = ""
    release: str = ""
    architecture: str = AMD64

    @property
    def tag(self) -> str:
        """Return the tag without a build id: the base of channels and short names."""
        return f"{self.release or self.version}-{self.flavour}-{system_word(self.os, self.architecture)}"

    def ref(self, build_id: str) -> str:
        """Return the reference of a build in a store: `cuda:12.4.1-runtime-debian12-BUILDID`."""
        return f"{self.repository or self.backend}:{self.immutable_tag(build_id)}"

    def immutable_tag(self, build_id: str) -> str:
        """Return the tag of a build, which no other content ever gets."""
        return f"{self.tag}-{build_id}"


@dataclass(frozen=True)
class Built:
    """A build of an image: what it was made from, and what came out.

    `build_id` is the start of `recipe`, the sha256 of all that decides the content: the lock, the recipe's own text, the parent's
    recipe, and the versions of engine and compressor. `digest` is that of the OCI manifest in the store.
    """

    image: str
    build_id: str
    recipe: str
    lock: str
    digest: str
    tools: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
