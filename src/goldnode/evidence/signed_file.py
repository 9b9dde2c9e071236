"""A document with its signature beside it: FILE.dsse is a DSSE envelope that contains the document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.core.files import replace_file
from goldnode.evidence.signatures import load_public, load_signer, open_envelope
from goldnode.node.ground.optional import optional


@dataclass(frozen=True)
class SignedKind:
    """A kind of document: its name in messages, its payload type, how to sign one again, and its error."""

    name: str
    payload_type: str
    again: str
    error: type[GoldnodeError]


def envelope_of(path: Path) -> Path:
    """Return the file with the signature of a document."""
    return path.with_name(f"{path.name}.dsse")


def write(path: Path, data: bytes, key: Path | None, kind: SignedKind) -> None:
    """Write a document, signed with the secret key in the file `key`. Raises GoldnodeError.

    Without a key, a signature of an earlier document is removed: it does not hold any more.
    """
    # The key is read first, so that a wrong one changes nothing.
    signer = optional(load_signer, key)
    if signer is not None and _signed(path, data, key, kind):
        return
    replace_file(path, data)
    if signer is not None:
        replace_file(envelope_of(path), signer.sign(data, kind.payload_type))
    else:
        envelope_of(path).unlink(missing_ok=True)


def _signed(path: Path, data: bytes, key: Path | None, kind: SignedKind) -> bool:
    """Return whether these bytes are there with a signature of this key: ECDSA would write another one each time."""
    if key is None or not path.is_file() or not envelope_of(path).is_file():
        return False
    try:
        opened = open_envelope(envelope_of(path).read_bytes(), [load_signer(key).public])
    except ImageError:
        return False
    return path.read_bytes() == data == opened.payload and opened.payload_type == kind.payload_type


def verify(path: Path, data: bytes, keys: Sequence[Path], kind: SignedKind) -> str:
    """Return the id of the key that signed a document. Raises the error of the kind."""
    envelope = envelope_of(path)
    try:
        signed = envelope.read_bytes()
    except FileNotFoundError:
        raise kind.error(
            f"the {kind.name} is not signed, and a public key is named",
            file=path,
            remedy=kind.again,
        ) from None
    except OSError as problem:
        raise kind.error(
            f"the file cannot be read: {problem.strerror}", file=envelope, remedy=kind.again
        ) from problem
    return check(signed, path, data, keys, kind)


def check(signed: bytes, path: Path, data: bytes, keys: Sequence[Path], kind: SignedKind) -> str:
    """Return the id of the key that signed a document, by the content of its envelope. Raises the error of the kind."""
    envelope = envelope_of(path)
    try:
        known = [key for file in keys for key in load_public(file)]
        opened = open_envelope(signed, known)
    except ImageError as problem:
        raise kind.error(
            f"the signature is wrong: {problem.message}",
            file=envelope,
            remedy=problem.remedy or kind.again,
        ) from problem
    # A valid signature of another kind of document must not be passed off as this one.
    if opened.payload_type != kind.payload_type:
        raise kind.error(
            f"this is signed as {opened.payload_type}, and is no {kind.name}",
            file=envelope,
            remedy=kind.again,
        )
    if opened.payload != data:
        raise kind.error(
            f"the {kind.name} differs from what was signed", file=path, remedy=kind.again
        )
    return opened.keyid
