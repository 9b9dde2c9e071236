"""Values that all packages of images share: an image of the matrix, and the result of its build."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NAME = re.compile(r"^[a-z0-9]+(?:[.-][a-z0-9_.+]+)*$")
BUILD_ID_LENGTH = 12

# Our own labels and annotations; the standard ones are org.opencontainers.image.*
LABELS = "io.goldnode."


@dataclass(frozen=True)
class ImageSpec:
    """One image of the matrix.

    `name` is BACKEND-VERSION-FLAVOUR-OS (`cuda-12.4.1-runtime-debian12`), by which commands, locks and files call it; its
    repository is `backend` and its tag the rest. `parent` is the name of the image whose layers it begins with; None for
    the first one, which is made of packages alone.
    """

    name: str
    backend: str
    version: str
    flavour: str
    os: str
    parent: str | None = None

    @property
    def tag(self) -> str:
        """The tag without a build id: what channels and short names are made of."""
        return f"{self.version}-{self.flavour}-{self.os}"

    def immutable_tag(self, build_id: str) -> str:
        """The tag of one build of it, never given to another content."""
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
