"""Signatures and attestations in the forms that cosign, podman, skopeo and admission controllers read.

They say the same as goldnode's own documents, and are signed with the same key:

* a *simple signing* payload with a bare signature: what `cosign verify` and containers-policy.json(5) check
* a Sigstore bundle (v0.3) around a DSSE envelope for each in-toto statement: the goldnode signature, the
  provenance and both SBOMs. `cosign verify-attestation` checks them

Both are referrers of the image. cosign 2 looks them up by tags instead (`sha256-….sig`, `sha256-….att`), which
`goldnode.images.cosign_tags` derives from the referrers. There is no entry in a transparency log: that would
publish the names of a site's images, and needs the network.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from goldnode import evidence
from goldnode.core.errors import ImageError
from goldnode.evidence import signatures
from goldnode.oci.layout import Layout, canonical

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import EnvelopeSigner

SIGNATURE = "application/vnd.dev.cosign.artifact.sig.v1+json"
PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
ANNOTATION = "dev.cosignproject.cosign/signature"
PREDICATE = "dev.sigstore.bundle.predicateType"

# Predicate types of the SBOMs, as cosign names them (`--type cyclonedx`, `--type spdxjson`).
_SBOMS = {
    evidence.CYCLONEDX: "https://cyclonedx.org/bom",
    evidence.SPDX: "https://spdx.dev/Document",
}


def simple_signing(digest: str, repository: str) -> bytes:
    """Return the payload that states the digest of an image, and the repository that it is for."""
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature",
    }
    return canonical({"critical": critical, "optional": None})


def attach(layout: Layout, digest: str, repository: str, name: str, signer: EnvelopeSigner) -> int:
    """Attach signature and attestations of an image. Return how many of them are new.

    `repository` is that of the signature, `name` that of the statements. Documents that this key signed
    already stay, because an ECDSA signature has other bytes each time. Attestations by this key of documents
    that are no longer attached are removed.
    """
    count = int(_sign(layout, digest, simple_signing(digest, repository), signer))
    wanted = {_predicate(payload): payload for payload in _statements(layout, digest, name)}
    for descriptor, manifest in layout.attached(digest, BUNDLE):
        try:
            opened = open_bundle(layout.read(manifest["layers"][0]["digest"]), [signer.public])
        except ImageError:
            continue  # by another key
        kind = _predicate(opened)
        # By this key and of the same statement: it stays.
        if wanted.get(kind) == opened:
            del wanted[kind]
        else:
            layout.detach(descriptor.digest)
    for kind, payload in wanted.items():
        noted = {"dev.sigstore.bundle.content": "dsse-envelope", PREDICATE: kind}
        layout.attach(digest, BUNDLE, bundle(payload, signer), annotations=noted)
    return count + len(wanted)


def _sign(layout: Layout, digest: str, payload: bytes, signer: EnvelopeSigner) -> bool:
    """Attach a simple signature unless this key made one already. Return whether it is new."""
    for _, manifest in layout.attached(digest, SIGNATURE):
        layer = manifest["layers"][0]
        if layout.read(layer["digest"]) == payload and signed_by(
            payload, _value(layer), [signer.public]
        ):
            return False
    value = base64.b64encode(signer.sign_bytes(payload)).decode()
    layout.attach(
        digest, SIGNATURE, payload, media_type=PAYLOAD, layer_annotations={ANNOTATION: value}
    )
    return True


def _statements(layout: Layout, digest: str, name: str) -> list[bytes]:
    """Return the in-toto statements about an image, from its attached documents."""
    statements = []
    for _, manifest in layout.attached(digest):
        kind, data = manifest["artifactType"], layout.read(manifest["layers"][0]["digest"])
        if kind in _SBOMS:
            # SBOMs have no subject of their own: the statement gives them one.
            statements.append(signatures.statement(name, digest, _SBOMS[kind], json.loads(data)))
        elif kind in (evidence.PROVENANCE, evidence.SIGNATURE):
            payload = signatures.payload_of(data)
            # A statement about another image, attached to this one, is not passed on.
            if signatures.subjects(payload) == [digest]:
                statements.append(payload)
    return statements


def _predicate(payload: bytes) -> str:
    return str(json.loads(payload).get("predicateType"))


def _value(layer: Mapping[str, Any]) -> str:
    return str((layer.get("annotations") or {}).get(ANNOTATION, ""))


def bundle(payload: bytes, signer: EnvelopeSigner) -> bytes:
    """Return an in-toto statement as a Sigstore bundle, signed with a key and without a log entry."""
    envelope = json.loads(signer.sign(payload))
    # cosign 2.5 refuses a key id in the envelope of a bundle; the bundle has a hint instead.
    envelope["signatures"] = [{"sig": row["sig"], "keyid": ""} for row in envelope["signatures"]]
    hint = base64.b64encode(bytes.fromhex(signer.keyid)).decode()
    return canonical(
        {
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
            "dsseEnvelope": envelope,
        }
    )


def envelope_of(data: bytes) -> bytes:
    """Return the DSSE envelope of a bundle. Raises ImageError if there is none."""
    try:
        envelope = json.loads(data)["dsseEnvelope"]
    except (ValueError, KeyError, TypeError):
        raise ImageError("it is no Sigstore bundle with an envelope") from None
    return canonical(envelope)


def open_bundle(data: bytes, keys: Sequence[SSlibKey]) -> bytes:
    """Return the verified statement of a bundle. Raises ImageError."""
    return signatures.open_envelope(envelope_of(data), keys).payload


def signed_by(payload: bytes, value: str, keys: Sequence[SSlibKey]) -> str | None:
    """Return the id of the key that made a bare signature (in base64) of a payload; None if none of them did."""
    from securesystemslib.exceptions import UnverifiedSignatureError  # only an extra installs it
    from securesystemslib.signer import Signature

    try:
        raw = base64.b64decode(value, validate=True).hex()
    except binascii.Error:
        return None
    for key in keys:
        try:
            key.verify_signature(Signature(key.keyid, raw), payload)
        except UnverifiedSignatureError:
            continue
        return str(key.keyid)
    return None


def stated(payload: bytes) -> tuple[str, str]:
    """Return digest and repository of a simple signing payload; empty if it is none."""
    try:
        critical = json.loads(payload)["critical"]
        return str(critical["image"]["docker-manifest-digest"]), str(
            critical["identity"]["docker-reference"]
        )
    except (ValueError, KeyError, TypeError):
        return "", ""
