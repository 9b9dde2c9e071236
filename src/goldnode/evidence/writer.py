"""Writer of evidence documents, for every kind of image: it writes those that are missing or have changed."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from goldnode.core.errors import ImageError
from goldnode.evidence import signatures, vulnerabilities
from goldnode.evidence.provenance import BUILDER
from goldnode.evidence.signatures import EnvelopeSigner


@dataclass(frozen=True)
class WrittenEvidence:
    """Result for one document: its kind, whether it was written or is up to date, and a one-line summary."""

    kind: str
    state: Literal["written", "kept"]
    line: str


@dataclass(frozen=True)
class EvidenceOptions:
    """Inputs of the evidence documents besides the image. `builder` is a URI that identifies the builder."""

    cache: Path | None = None
    signer: EnvelopeSigner | None = None
    databases: tuple[vulnerabilities.Database, ...] = ()
    builder: str = BUILDER


class EvidenceWriter(ABC):
    """Writes the documents about one image, each in place of the earlier one of its kind."""

    @abstractmethod
    def existing(self, kind: str) -> Iterable[bytes]:
        """Return the documents of a kind that are there."""

    @abstractmethod
    def replace(self, kind: str, data: bytes) -> None:
        """Store a document, and remove those that it replaces."""

    def __call__(self, kind: str, data: bytes, line: str) -> WrittenEvidence:
        """Write a document unless it is there already."""
        if data in self.existing(kind):
            return WrittenEvidence(kind, "kept", line)
        self.replace(kind, data)
        return WrittenEvidence(kind, "written", line)

    def bill(self, kind: str, data: bytes, line: str) -> WrittenEvidence:
        """Write a CycloneDX bill of materials. Raises ImageError if it violates the schema."""
        from goldnode.evidence.cyclonedx_bom import validate  # its library takes 0.3 s to load

        # Validation loads a large schema; skip it for a document that is there already.
        if data not in self.existing(kind):
            validate(data)
        return self(kind, data, line)

    def provenance(self, kind: str, statement: bytes, options: EvidenceOptions) -> WrittenEvidence:
        """Write a provenance statement, in an envelope if there is a signer."""
        materials = len(
            json.loads(statement)["predicate"]["buildDefinition"]["resolvedDependencies"]
        )
        if options.signer is None:
            return self(kind, statement, f"{materials} materials; not signed: no key was named")
        return self(kind, self.envelope(kind, statement, options.signer), f"{materials} materials")

    def envelope(self, kind: str, payload: bytes, signer: EnvelopeSigner) -> bytes:
        """Return a payload in a signed envelope.

        A valid envelope that is there is used again: an ECDSA signature has other bytes each time.
        """
        for data in self.existing(kind):
            if signatures.is_envelope(data):
                try:
                    if signatures.open_envelope(data, [signer.public]).payload == payload:
                        return data
                except ImageError:
                    continue
        return signer.sign(payload)
