"""Verification of an image: its blobs, the subjects of the attached documents, and their signatures.

An image passes only if every requested check was made and succeeded. A check that could not be made is *not
verified*, and the image does not pass.
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
from goldnode.evidence import cosign, signatures
from goldnode.oci.layout import Layout, OciImage

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import EnvelopeSigner

PREDICATE = "urn:goldnode:image-evidence:1"
_FILES = {
    evidence.CYCLONEDX: "sbom.cdx",
    evidence.SPDX: "sbom.spdx",
    **{kind: name for kind, name in evidence.SHORT.items() if " " not in name},
}
State = Literal["ok", "refused", "not_verified", "note"]


@dataclass(frozen=True)
class AttachedDocument:
    """A document attached to an image.

    `artefact` is the digest of the artefact's manifest, `digest` that of the document itself. `signature` is
    that of a signature in the form of cosign, in base64.
    """

    type: str
    artefact: str
    digest: str
    data: bytes
    signature: str = ""


@dataclass(frozen=True)
class VerificationRow:
    """Result of one check."""

    what: str
    state: State
    detail: str


@dataclass(frozen=True)
class Verification:
    """Results of all checks of one image."""

    digest: str
    rows: list[VerificationRow]

    @property
    def passed(self) -> bool:
        """Return whether at least one check succeeded and none was refused or left out."""
        return any(row.state == "ok" for row in self.rows) and all(
            row.state in ("ok", "note") for row in self.rows
        )

    def demand(self, name: str, remedy: str) -> None:
        """Raise ImageError with the first reason why `name` is not verified.

        Whatever installs or signs an image calls this, where the site or an option names a public key.
        """
        if self.passed:
            return
        bad = next((row for row in self.rows if row.state not in ("ok", "note")), None)
        why = f"{bad.what}: {bad.detail}" if bad is not None else "nothing was verified"
        raise ImageError(f"{name} is not verified: {why}", remedy=remedy)

    def data(self) -> dict[str, Any]:
        """Return the results as JSON-serialisable data."""
        rows = [{"what": row.what, "state": row.state, "detail": row.detail} for row in self.rows]
        return {"subject": self.digest, "passed": self.passed, "checks": rows}

    def text(self) -> str:
        """Return the results as a table for people."""
        width = max((len(row.what) for row in self.rows), default=0)
        lines = [
            f"{row.state.replace('_', ' '):<12}  {row.what.ljust(width)}  {row.detail}".rstrip()
            for row in self.rows
        ]
        return "\n".join(
            [*lines, f"{self.digest}: {'verified' if self.passed else 'NOT verified'}"]
        )


def documents(layout: Layout, digest: str) -> list[AttachedDocument]:
    """Return the documents attached to an image, sorted by type and digest."""
    attached = []
    for descriptor, manifest in layout.attached(digest):
        for layer in manifest.get("layers", []):
            attached.append(
                AttachedDocument(
                    str(manifest.get("artifactType", "")),
                    descriptor.digest,
                    layer["digest"],
                    layout.read(layer["digest"]),
                    str((layer.get("annotations") or {}).get(cosign.ANNOTATION, "")),
                )
            )
    return sorted(attached, key=lambda row: (row.type, row.digest))


def export(layout: Layout, digest: str, directory: Path) -> list[Path]:
    """Write the manifest and all attached documents as files, so that other programs can verify them.

    Return the paths of the files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {"manifest.json": layout.read(digest)}
    for row in documents(layout, digest):
        name = _FILES.get(row.type, re.sub(r"[^a-z0-9.+-]+", "-", row.type.lower()))
        # The first document of a kind gets the short name; further ones get part of their digest.
        files[
            f"{name}.json" if f"{name}.json" not in files else f"{name}-{row.digest[7:19]}.json"
        ] = row.data
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return [directory / name for name in files]


def signature_statement(name: str, digest: str, attached: Sequence[AttachedDocument]) -> bytes:
    """Return the in-toto statement to sign: the image and the documents attached to it."""
    rows = sorted(
        (row.type, row.digest, len(row.data)) for row in attached if row.type in evidence.SIGNED
    )
    listed = [{"type": kind, "digest": sha256, "size": size} for kind, sha256, size in rows]
    return signatures.statement(name, digest, PREDICATE, {"documents": listed})


def sign(layout: Layout, digest: str, name: str, signer: EnvelopeSigner) -> str:
    """Sign an image together with everything attached to it, and return the digest of the signature's
    artefact.

    The new signature replaces an earlier one by the same key. It also replaces one by another key that lists
    a document no longer attached. A valid signature by this key with the same payload stays: ECDSA would
    produce different bytes each time.
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
            # By this key and altered, or by another one of documents that are gone.
            if signer.keyid in row.data.decode("utf-8", "replace") or not _listed(row.data) <= here:
                layout.detach(row.artefact)
            continue
        # The same documents: a new signature would only differ in its random number (ECDSA).
        if opened.payload == payload:
            return row.artefact
        layout.detach(row.artefact)
    return layout.attach(digest, evidence.SIGNATURE, signer.sign(payload)).digest


def verify(
    layout: Layout, digest: str, keys: Sequence[SSlibKey], *, layers: bool = True
) -> Verification:
    """Check one image: its blobs, the subject of each attached document, and the signatures.

    `layers`: hash the layer blobs too, instead of comparing only their sizes.
    """
    rows: list[VerificationRow] = []
    attached: list[AttachedDocument] = []
    try:
        rows.append(_blobs(OciImage(layout, digest), layers))
        attached = documents(layout, digest)
    except ImageError as problem:
        return Verification(digest, [*rows, VerificationRow("image", "refused", problem.message)])
    for row in attached:
        fault = _about(row, digest)
        if fault is not None:
            rows.append(VerificationRow(_name(row), "refused", fault))
    rows += signed(attached, digest, keys)
    return Verification(digest, rows)


def _name(row: AttachedDocument) -> str:
    return evidence.SHORT.get(row.type, row.type)


def _blobs(image: OciImage, layers: bool) -> VerificationRow:
    _ = image.config  # reads the configuration and checks its digest
    for layer in image.layers:
        path = image.layout.path(layer.digest)
        if not path.is_file():
            return VerificationRow(
                "image", "refused", f"layer {layer.digest} is not in {image.layout.root}"
            )
        # The size first: layers are large, and hashing one takes seconds.
        if path.stat().st_size != layer.size or (
            layers and f"sha256:{sha256_of(path)}" != layer.digest
        ):
            return VerificationRow("image", "refused", f"layer {layer.digest} is altered")
    how = "" if layers else "; the layers' content was not read"
    return VerificationRow(
        "image",
        "ok" if layers else "note",
        f"manifest, configuration and {len(image.layers)} layers are whole{how}",
    )


def _about(row: AttachedDocument, digest: str) -> str | None:
    """Return an error if a document names another image as its subject, otherwise None."""
    try:
        said = _subjects(row)
    except ImageError as problem:
        return problem.message
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "it cannot be read"
    # Evidence of another image, attached to this one.
    wrong = [item for item in said if item != digest]
    return f"it is about {wrong[0]}" if wrong else None


def _subjects(row: AttachedDocument) -> list[str]:
    payload = signatures.payload_of(row.data)
    document = json.loads(payload)
    if row.type in (evidence.PROVENANCE, evidence.SIGNATURE):
        digests = signatures.subjects(payload)
        if not digests:
            raise ImageError("it is no in-toto statement about an image")
        return digests
    if row.type == cosign.SIGNATURE:
        return [cosign.stated(row.data)[0]]
    if row.type == cosign.BUNDLE:
        return signatures.subjects(signatures.payload_of(cosign.envelope_of(row.data)))
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
    if isinstance(document, dict) and isinstance(document.get("subject"), str):
        return [str(document["subject"])]
    return []


def _listed(data: bytes) -> set[tuple[str, str]]:
    """Return type and digest of the documents that a signature lists; empty if it is unreadable."""
    try:
        rows = json.loads(signatures.payload_of(data))["predicate"]["documents"]
        return {(str(row["type"]), str(row["digest"])) for row in rows}
    except (ImageError, ValueError, KeyError, TypeError):
        return set()


def signed(
    attached: Sequence[AttachedDocument], digest: str, keys: Sequence[SSlibKey]
) -> list[VerificationRow]:
    """Check the attached documents against the signatures among them.

    Return one row per signature. If a signature is valid, also return one row per document. These are the
    documents that it covers or should cover, and those no longer attached.
    """
    rows: list[VerificationRow] = []
    listed: set[tuple[str, str]] | None = None
    signature_rows = [row for row in attached if row.type == evidence.SIGNATURE]
    # Not refused: without a key, nothing is known about the signature.
    if not keys:
        why = "there is no signature, and no public key was named"
        if signature_rows:
            why = "no public key was named"
        return [VerificationRow("signature", "not_verified", why)]
    if not signature_rows:
        return [VerificationRow("signature", "refused", "the image is not signed")]
    for row in signature_rows:
        try:
            opened = signatures.open_envelope(row.data, keys)
        except ImageError as problem:
            rows.append(VerificationRow("signature", "refused", problem.message))
            continue
        statement = json.loads(opened.payload)
        if (
            signatures.subjects(opened.payload) != [digest]
            or statement.get("predicateType") != PREDICATE
        ):
            rows.append(VerificationRow("signature", "refused", "it was given for something else"))
            continue
        rows.append(VerificationRow("signature", "ok", f"by key {opened.keyid[:12]}"))
        # Documents covered by any valid signature count as signed, so several keys can sign parts of the
        # evidence.
        listed = (listed or set()) | _listed(row.data)
    # Without a valid signature the documents are neither covered nor missing.
    if listed is None:
        return rows
    here = {(row.type, row.digest) for row in attached}
    for kind, document in sorted(listed - here):
        rows.append(
            VerificationRow(
                evidence.SHORT.get(kind, kind),
                "refused",
                f"{document} is signed for, and is not attached",
            )
        )
    for row in attached:
        if row.type == evidence.SIGNATURE:
            continue
        if row.type in (cosign.SIGNATURE, cosign.BUNDLE):
            rows.append(checked_cosign(row, keys))
        elif (row.type, row.digest) in listed:
            rows.append(VerificationRow(_name(row), "ok", "signed for"))
        elif row.type in evidence.SIGNED:
            rows.append(
                VerificationRow(
                    _name(row),
                    "refused",
                    "it was attached after the signature; `goldnode images evidence` signs it again",
                )
            )
        else:
            rows.append(VerificationRow(_name(row), "note", "the signature does not cover it"))
        # Provenance has a signature of its own, for programs that read it alone.
        if row.type == evidence.PROVENANCE and signatures.is_envelope(row.data):
            try:
                signatures.open_envelope(row.data, keys)
            except ImageError as problem:
                rows.append(VerificationRow(_name(row), "refused", problem.message))
    return rows


def checked_cosign(row: AttachedDocument, keys: Sequence[SSlibKey]) -> VerificationRow:
    """Check a signature or attestation in the form of cosign. One by an unknown key is a note."""
    unknown = "no key that is known here made it, or it was altered"
    if row.type == cosign.SIGNATURE:
        key = cosign.signed_by(row.data, row.signature, keys)
        detail = unknown if key is None else f"by key {key[:12]}, for {cosign.stated(row.data)[1]}"
        return VerificationRow(_name(row), "note" if key is None else "ok", detail)
    try:
        predicate = json.loads(cosign.open_bundle(row.data, keys)).get("predicateType")
    except (ImageError, ValueError, AttributeError):
        return VerificationRow(_name(row), "note", unknown)
    return VerificationRow(_name(row), "ok", str(predicate))
