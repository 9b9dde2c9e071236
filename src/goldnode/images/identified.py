"""Recipes that are identified by their content: digest, build id, reference and record of a build."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from goldnode.oci.layout import canonical, digest_of
from goldnode.oci.model import BUILD_ID_LENGTH, LABELS, Built, ImageSpec


class IdentifiedRecipe:
    """Base of the recipes. Equal images have equal documents."""

    # Fields or properties of the recipes. At run time a dataclass would take these for defaults.
    if TYPE_CHECKING:

        @property
        def image(self) -> ImageSpec: ...

        @property
        def labels(self) -> Mapping[str, str]: ...

        @property
        def document(self) -> dict[str, Any]: ...

    @cached_property
    def digest(self) -> str:
        """Return `sha256:…` of the document."""
        return digest_of(canonical(self.document))

    @property
    def build_id(self) -> str:
        """Return the beginning of the digest, which is the suffix of the immutable tag."""
        return self.digest.removeprefix("sha256:")[:BUILD_ID_LENGTH]

    @property
    def ref(self) -> str:
        """Return the reference in the store: `cuda:12.4.1-runtime-debian12-BUILDID`."""
        return self.image.ref(self.build_id)

    @property
    def all_labels(self) -> dict[str, str]:
        """Return all labels, including those that depend on the finished recipe."""
        return {
            **self.labels,
            f"{LABELS}build-id": self.build_id,
            f"{LABELS}recipe": self.digest,
            "org.opencontainers.image.ref.name": self.image.immutable_tag(self.build_id),
        }

    def description(self, document: Mapping[str, Any]) -> bytes:
        """Return a document about the image with its build, as the image contains it."""
        described = {**document, "build_id": self.build_id, "recipe": self.digest}
        return json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"

    def record(self, digest: str, lock: str, tools: Mapping[str, str], started: float) -> Built:
        """Return the record of a build whose image has this digest, begun at `started` (monotonic)."""
        return Built(
            image=self.image.name,
            build_id=self.build_id,
            recipe=self.digest,
            lock=lock,
            digest=digest,
            tools={**tools},
            seconds=round(time.monotonic() - started, 2),
        )
