"""Statements: a proof as an in-toto statement (v1) in a DSSE envelope, one file of at most 20 kB.

`goldnode.documents.evidence` has the predicates. The file is what `cosign verify-blob-attestation --signature` reads.
The subject that cosign compares with a file is the record of the proof. The digest of the class document and of the
lock are goldnode's own: they cover canonical JSON, not the bytes of a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from goldnode.core.errors import EvidenceError, ImageError
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.documents.evidence import PREDICATES, EvidencePredicate
from goldnode.evidence.signatures import PAYLOAD, STATEMENT, open_envelope
from goldnode.node.ground.json_lines import as_dict
from goldnode.oci.layout import canonical

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import EnvelopeSigner

LARGEST = 20_000  # bytes of an envelope
SUFFIX = ".dsse.json"
_TYPE = "urn:goldnode:evidence:{}:1"
_KINDS = {_TYPE.format(kind): kind for kind in PREDICATES}


@dataclass(frozen=True)
class Proof:
    """A proof that is not signed yet. `subjects` are names and digests (`sha256:…`)."""

    kind: EvidenceKind
    predicate: EvidencePredicate
    subjects: Mapping[str, str]


@dataclass(frozen=True)
class SignedProof(Proof):
    """A proof whose signature was verified. `keyid` is the SHA-256 of the public key."""

    keyid: str
    path: Path

    def subject(self, prefix: str) -> str | None:
        """Return the digest of the first subject of a sort, such as `lock`; None without one."""
        return next(
            (digest for name, digest in self.subjects.items() if name.startswith(f"{prefix}:")),
            None,
        )

    @property
    def class_(self) -> str | None:
        """Return the name of the class in the subjects."""
        names = (name for name in self.subjects if name.startswith("class:"))
        return next((name.partition(":")[2] for name in names), None)


def type_of(kind: EvidenceKind) -> str:
    """Return the predicateType of a kind."""
    return _TYPE.format(kind)


def statement(proof: Proof) -> bytes:
    """Return the statement as canonical JSON."""
    rows = [
        {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
        for name, digest in sorted(proof.subjects.items())
    ]
    return canonical(
        {
            "_type": STATEMENT,
            "subject": rows,
            "predicateType": type_of(proof.kind),
            "predicate": proof.predicate.model_dump(mode="json", by_alias=True),
        }
    )


def envelope(proof: Proof, signer: EnvelopeSigner) -> bytes:
    """Return the signed statement. Raises EvidenceError if it is too large."""
    data = signer.sign(statement(proof), PAYLOAD)
    if len(data) > LARGEST:
        raise EvidenceError(
            f"the statement has {len(data)} bytes, more than {LARGEST}",
            remedy="sign the record of one node, not of many",
        )
    return data


def read(path: Path, keys: Sequence[SSlibKey], withdrawn: Sequence[SSlibKey] = ()) -> SignedProof:
    """Read and verify a statement. Raises EvidenceError with the reason for which it is refused.

    :param withdrawn: keys that no longer count. They are named in the error, so that an old key is not mistaken for a
        stranger's.
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(LARGEST + 1)
    except OSError as problem:
        raise EvidenceError(
            f"the statement cannot be read: {problem.strerror}", file=path
        ) from None
    if len(data) > LARGEST:
        raise EvidenceError(f"the statement is larger than {LARGEST} bytes", file=path)
    old = {key.keyid for key in withdrawn}
    try:
        opened_by = open_envelope(data, [key for key in keys if key.keyid not in old])
    except ImageError as problem:
        # A valid signature of a withdrawn key is another case than one that does not hold.
        if old and _holds(data, withdrawn):
            raise EvidenceError(
                "it is signed by a key that was withdrawn",
                file=path,
                remedy="make the proof again, and sign it with the present key",
            ) from None
        raise EvidenceError(
            f"the signature is refused: {problem.message}", file=path, remedy=problem.remedy
        ) from None
    if opened_by.payload_type != PAYLOAD:
        raise EvidenceError(
            f"it is signed as {opened_by.payload_type}, expected {PAYLOAD}", file=path
        )
    proof = parse(opened_by.payload, path)
    return SignedProof(proof.kind, proof.predicate, proof.subjects, opened_by.keyid, path)


def _holds(data: bytes, keys: Sequence[SSlibKey]) -> bool:
    try:
        open_envelope(data, keys)
    except ImageError:
        return False
    return True


def parse(payload: bytes, path: Path | None = None) -> Proof:
    """Return the proof in a statement, without its signature. Raises EvidenceError.

    Unknown keys of the statement itself are ignored, as in-toto demands of readers. Those of a predicate are refused:
    its type has a version.
    """
    try:
        document = as_dict(json.loads(payload))
    except ValueError:
        raise EvidenceError("the signed document is no JSON", file=path) from None
    if document.get("_type") != STATEMENT:
        raise EvidenceError(f"_type is {document.get('_type')!r}, expected {STATEMENT}", file=path)
    kind = _KINDS.get(str(document.get("predicateType")))
    if kind is None:
        raise EvidenceError(
            f"predicateType {document.get('predicateType')!r} is no kind of evidence",
            file=path,
            remedy=f"name a statement of one of: {', '.join(_KINDS)}",
        )
    try:
        predicate = PREDICATES[kind].model_validate_json(json.dumps(document.get("predicate")))
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the predicate"
        raise EvidenceError(
            f"the predicate of kind {kind} is not valid: {where}: {first['msg']}", file=path
        ) from None
    return Proof(kind, predicate, _subjects(document.get("subject"), path))


def _subjects(rows: Any, path: Path | None) -> dict[str, str]:
    try:
        return {str(row["name"]): f"sha256:{cast('str', row['digest']['sha256'])}" for row in rows}
    except (KeyError, TypeError):
        raise EvidenceError("a subject has no name, or no digest of sha256", file=path) from None
