"""Whether what is attached to an image is about it, was signed by a known key, and is whole.

`passed` means that every check that was asked for was made and held. What could not be checked is *not verified* and does not pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from goldnode import evidence
from goldnode.core.errors import ImageError
from goldnode.core.files import sha256_of
from goldnode.evidence import signatures
from goldnode.oci.layout import Layout, OciImage

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import Signer

PREDICATE = "urn:goldnode:image-evidence:1"
_FILES = {
    evidence.CYCLONEDX: "sbom.cdx",
    evidence.SPDX: "sbom.spdx",
    **{kind: name for kind, name in evidence.SHORT.items() if " " not in name},
}
State = Literal["ok", "refused", "not_verified", "note"]


@dataclass(frozen=True)
class Document:
    """An attached document: its artefact's digest, its own, its bytes."""

    type: str
    artefact: str
    digest: str
    data: bytes


@dataclass(frozen=True)
class Row:
    """One check and what came of it."""

    what: str
    state: State
    detail: str


@dataclass(frozen=True)
class Verification:
    """All checks of one image."""

    digest: str
    rows: list[Row]

    @property
    def passed(self) -> bool:
        """Whether something was verified, and nothing was refused or left out."""
        return any(row.state == "ok" for row in self.rows) and all(
            row.state in ("ok", "note") for row in self.rows
        )

    def data(self) -> dict[str, Any]:
        """As plain data."""
        rows = [{"what": row.what, "state": row.state, "detail": row.detail} for row in self.rows]
        return {"subject": self.digest, "passed": self.passed, "checks": rows}

    def text(self) -> str:
        """For a reader."""
        width = max((len(row.what) for row in self.rows), default=0)
        lines = [
            f"{row.state.replace('_', ' '):<12}  {row.what.ljust(width)}  {row.detail}".rstrip()
            for row in self.rows
        ]
        return "\n".join([*lines, f"{self.digest}: {'verified' if self.passed else 'NOT verified'}"])


def documents(layout: Layout, digest: str) -> list[Document]:
    """Everything that is attached to an image, by type and digest."""
    found = []
    for descriptor, manifest in layout.attached(digest):
        for layer in manifest.get("layers", []):
            found.append(
                Document(
                    str(manifest.get("artifactType", "")),
                    descriptor.digest,
                    layer["digest"],
                    layout.read(layer["digest"]),
                )
            )
    return sorted(found, key=lambda row: (row.type, row.digest))


def export(layout: Layout, digest: str, directory: Path) -> list[Path]:
    """Write the manifest and everything attached as files, for other programs to verify. Returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {"manifest.json": layout.read(digest)}
    for row in documents(layout, digest):
        name = _FILES.get(row.type, re.sub(r"[^a-z0-9.+-]+", "-", row.type.lower()))
        # The first of a kind has the plain name.
        files[f"{name}.json" if f"{name}.json" not in files else f"{name}-{row.digest[7:19]}.json"] = row.data
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return [directory / name for name in files]


def signature_statement(name: str, digest: str, attached: Sequence[Document]) -> bytes:
    """What a signature says: this image, with these documents about it."""
    rows = sorted((row.type, row.digest, len(row.data)) for row in attached if row.type in evidence.SIGNED)
    listed = [{"type": kind, "digest": found, "size": size} for kind, found, size in rows]
    return signatures.statement(name, digest, PREDICATE, {"documents": listed})


def sign(layout: Layout, digest: str, name: str, signer: Signer) -> str:
    """Sign an image with all that is attached to it, in place of an earlier signature by the same key, and of one by another that names a
    document which left since. Returns the artefact's digest.

    A signature by this key that says the same and holds is kept: one by ECDSA would have other bytes each time.
    """
    attached = documents(layout, digest)
    here = {(row.type, row.digest) for row in attached}
    payload = signature_statement(name, digest, attached)
    for row in attached:
        if row.type != evidence.SIGNATURE:
            continue
        try:
            opened = signatures.open_envelope(row.data, [signer.public])
        except ImageError:
            if signer.keyid in row.data.decode("utf-8", "replace") or not _listed(row.data) <= here:
                layout.detach(row.artefact)
            continue
        if opened.payload == payload:
            return row.artefact
        layout.detach(row.artefact)
    return layout.attach(digest, evidence.SIGNATURE, signer.sign(payload)).digest


def verify(layout: Layout, digest: str, keys: Sequence[SSlibKey], *, layers: bool = True) -> Verification:
    """Check an image of a layout: its blobs, what each document says it is about, and the signatures. `layers`: hash those too."""
    rows: list[Row] = []
    attached: list[Document] = []
    try:
        image = OciImage(layout, digest)
        rows.append(_blobs(image, layers))
        attached = documents(layout, digest)
    except ImageError as problem:
        return Verification(digest, [*rows, Row("image", "refused", problem.message)])
    for row in attached:
        fault = _about(row, digest)
        if fault is not None:
            rows.append(Row(_name(row), "refused", fault))
    rows += signed(attached, digest, keys)
    return Verification(digest, rows)


def _name(row: Document) -> str:
    return evidence.SHORT.get(row.type, row.type)


def _blobs(image: OciImage, layers: bool) -> Row:
    _ = image.config  # read whole and held against its digest
    for layer in image.layers:
        path = image.layout.path(layer.digest)
        if not path.is_file():
            return Row("image", "refused", f"layer {layer.digest} is not in {image.layout.root}")
        if path.stat().st_size != layer.size or (layers and f"sha256:{sha256_of(path)}" != layer.digest):
            return Row("image", "refused", f"layer {layer.digest} is altered")
    how = "" if layers else "; the layers' content was not read"
    return Row(
        "image",
        "ok" if layers else "note",
        f"manifest, configuration and {len(image.layers)} layers are whole{how}",
    )


def _about(row: Document, digest: str) -> str | None:
    """What is wrong with what a document says it is about; None where it is right, or says nothing."""
    try:
        said = _subjects(row)
    except ImageError as problem:
        return problem.message
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "it cannot be read"
    wrong = [item for item in said if item != digest]
    return f"it is about {wrong[0]}" if wrong else None


def _subjects(row: Document) -> list[str]:
    payload = signatures.payload_of(row.data)
    document = json.loads(payload)
    if row.type in (evidence.PROVENANCE, evidence.SIGNATURE):
        found = signatures.subjects(payload)
        if not found:
            raise ImageError("it is no in-toto statement about an image")
        return found
    if row.type == evidence.CYCLONEDX:
        hashes = document["metadata"]["component"]["hashes"]
        return [f"sha256:{item['content']}" for item in hashes if item["alg"] == "SHA-256"]
    if row.type == evidence.SPDX:
        described = {
            item["relatedSpdxElement"]
            for item in document["relationships"]
            if item["relationshipType"] == "DESCRIBES"
        } | set(document.get("documentDescribes", []))
        return [
            f"sha256:{item['checksumValue']}"
            for package in document["packages"]
            if package["SPDXID"] in described
            for item in package["checksums"]
            if item["algorithm"] == "SHA256"
        ]
    return (
        [str(document["subject"])]
        if isinstance(document, dict) and isinstance(document.get("subject"), str)
        else []
    )


def _listed(data: bytes) -> set[tuple[str, str]]:
    """Type and digest of the documents that a signature names; none where it cannot be read."""
    try:
        rows = json.loads(signatures.payload_of(data))["predicate"]["documents"]
        return {(str(row["type"]), str(row["digest"])) for row in rows}
    except (ImageError, ValueError, KeyError, TypeError):
        return set()


def signed(attached: Sequence[Document], digest: str, keys: Sequence[SSlibKey]) -> list[Row]:
    """Check what is attached to an image against the signatures among it: a row for each signature, and where one is good, for each document
    that is covered, that should be, or that is gone."""
    rows: list[Row] = []
    listed: set[tuple[str, str]] | None = None
    found = [row for row in attached if row.type == evidence.SIGNATURE]
    if not keys:
        why = "no public key was named" if found else "there is no signature, and no public key was named"
        return [Row("signature", "not_verified", why)]
    if not found:
        return [Row("signature", "refused", "the image is not signed")]
    for row in found:
        try:
            opened = signatures.open_envelope(row.data, keys)
        except ImageError as problem:
            rows.append(Row("signature", "refused", problem.message))
            continue
        statement = json.loads(opened.payload)
        if signatures.subjects(opened.payload) != [digest] or statement.get("predicateType") != PREDICATE:
            rows.append(Row("signature", "refused", "it was given for something else"))
            continue
        rows.append(Row("signature", "ok", f"by key {opened.keyid[:12]}"))
        listed = (listed or set()) | _listed(row.data)
    if listed is None:
        return rows
    here = {(row.type, row.digest) for row in attached}
    for kind, document in sorted(listed - here):
        rows.append(
            Row(evidence.SHORT.get(kind, kind), "refused", f"{document} is signed for, and is not attached")
        )
    for row in attached:
        if row.type == evidence.SIGNATURE:
            continue
        if (row.type, row.digest) in listed:
            rows.append(Row(_name(row), "ok", "signed for"))
        elif row.type in evidence.SIGNED:
            rows.append(
                Row(
                    _name(row),
                    "refused",
                    "it was attached after the signature; `goldnode images evidence` signs anew",
                )
            )
        else:
            rows.append(Row(_name(row), "note", "the signature does not cover it"))
        if row.type == evidence.PROVENANCE and signatures.is_envelope(row.data):
            try:
                signatures.open_envelope(row.data, keys)
            except ImageError as problem:
                rows.append(Row(_name(row), "refused", problem.message))
    return rows
