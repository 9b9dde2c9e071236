"""Files of rollout documents and of their signatures: read, verified and signed."""

from __future__ import annotations

from pathlib import Path

from goldnode.core import extras
from goldnode.core.errors import ImageError
from goldnode.core.files import replace_file
from goldnode.fleet.rollout.document import RolloutError, RolloutFile, loads

PAYLOAD_TYPE = "application/vnd.goldnode.rollout+yaml"  # of a signed document


def envelope_of(path: Path) -> Path:
    """Return the file with the signature of a document: a DSSE envelope that contains the document."""
    return path.with_name(f"{path.name}.dsse")


def sign(path: Path, key: Path) -> Path:
    """Sign a document that can be read. Return the file with the signature. Raises GoldnodeError."""
    # Here, since a site without a key needs no cryptography.
    from goldnode.evidence.signatures import load_signer

    data = load_signer(key).sign(load(path).text.encode(), PAYLOAD_TYPE)
    replace_file(envelope_of(path), data)
    return envelope_of(path)


def load(path: Path, keys: Path | None = None) -> RolloutFile:
    """Read a rollout document; with `keys`, a file of public keys, one of them must have signed it.

    `path` is the document, with its signature in the file of `envelope_of`, or that file itself.
    Raises RolloutError with file and line.
    """
    data = _content(path)
    # A YAML document can begin with a brace too, so the content decides.
    embedded = data.lstrip().startswith(b"{") and _is_envelope(data)
    keyid = None
    if keys is not None:
        envelope = path if embedded else envelope_of(path)
        payload, keyid = _opened(data if embedded else _content(envelope, path), envelope, keys)
        # The document is what a person has read: it must be what was signed.
        if not embedded and payload != data:
            raise RolloutError(
                "the document differs from what was signed",
                file=path,
                remedy=f"sign it again with `goldnode rollout sign {path}`",
            )
        data = payload
    elif embedded:
        data = _payload(data, path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise RolloutError(
            f"the file is not text in UTF-8 ({problem.reason} at byte {problem.start})",
            file=path,
            remedy="save it as UTF-8",
        ) from problem
    return loads(text, path, keyid)


def _content(path: Path, document: Path | None = None) -> bytes:
    """Return the bytes of a document, or of the signature of `document`."""
    try:
        return path.read_bytes()
    except OSError as problem:
        if document is not None and isinstance(problem, FileNotFoundError):
            raise RolloutError(
                "the document is not signed, and the site file has fleet.document_key",
                file=document,
                remedy=f"sign it with `goldnode rollout sign {document}`",
            ) from problem
        raise RolloutError(
            f"the file cannot be read: {problem.strerror}",
            file=path,
            remedy="create it, or correct its name or its mode",
        ) from problem


def _is_envelope(data: bytes) -> bool:
    from goldnode.evidence.signatures import is_envelope

    return is_envelope(data)


def _payload(data: bytes, path: Path) -> bytes:
    from goldnode.evidence.signatures import payload_of

    try:
        return payload_of(data)
    except ImageError as problem:
        raise RolloutError(problem.message, file=path) from problem


def _opened(data: bytes, path: Path, keys: Path) -> tuple[bytes, str]:
    """Return the payload of a verified envelope, and the id of the key."""
    try:
        from goldnode.evidence.signatures import load_public, open_envelope

        opened = open_envelope(data, load_public(keys))
    except ImportError:
        raise RolloutError(
            "the signature cannot be verified", file=path, remedy=extras.missing(["fleet"]).remedy
        ) from None
    except ImageError as problem:
        raise RolloutError(
            f"the signature is wrong: {problem.message}",
            file=path,
            remedy="sign it with a key of fleet.document_key",
        ) from problem
    if opened.payload_type != PAYLOAD_TYPE:
        raise RolloutError(
            f"this is signed as {opened.payload_type}, and is no rollout document", file=path
        )
    return opened.payload, opened.keyid
