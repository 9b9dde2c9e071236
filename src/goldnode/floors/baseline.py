"""Baselines as files: a JSON document, and its signature beside it in a DSSE envelope."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from goldnode.core.errors import ImageError
from goldnode.core.files import replace_file
from goldnode.documents.floors import FloorsDocument
from goldnode.evidence.signatures import load_public, load_signer, open_envelope
from goldnode.floors.results import FloorsError

PAYLOAD_TYPE = "application/vnd.goldnode.floors+json"
SCHEMA = "goldnode.floors/1"


@dataclass(frozen=True)
class FloorBaseline:
    """A baseline that was read. `keyid` is that of the key that signed it; None: not verified."""

    document: FloorsDocument
    file: Path
    keyid: str | None

    @property
    def date(self) -> str:
        """Return the day of the last result in it."""
        return self.document.end[:10]


def envelope_of(path: Path) -> Path:
    """Return the file with the signature of a baseline: a DSSE envelope that contains the baseline."""
    return path.with_name(f"{path.name}.dsse")


def content(document: FloorsDocument) -> bytes:
    """Return the bytes of a baseline: equal baselines are equal files."""
    data = document.model_dump(mode="json", by_alias=True)
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def write(document: FloorsDocument, path: Path, key: Path | None) -> None:
    """Write a baseline, signed with the secret key in the file `key`. Raises GoldnodeError.

    Without a key, a signature of an earlier baseline is removed: it does not hold any more.
    """
    data = content(document)
    # The key is read first, so that a wrong one changes nothing.
    signer = None if key is None else load_signer(key)
    if signer is not None and _signed(path, data, key):
        return
    replace_file(path, data)
    if signer is not None:
        replace_file(envelope_of(path), signer.sign(data, PAYLOAD_TYPE))
    else:
        envelope_of(path).unlink(missing_ok=True)


def _signed(path: Path, data: bytes, key: Path | None) -> bool:
    """Return whether these bytes are there with a signature of this key: ECDSA would write another one each time."""
    if key is None or not path.is_file() or not envelope_of(path).is_file():
        return False
    try:
        opened = open_envelope(envelope_of(path).read_bytes(), [load_signer(key).public])
    except ImageError:
        return False
    return path.read_bytes() == data == opened.payload and opened.payload_type == PAYLOAD_TYPE


def read(path: Path, keys: Sequence[Path] = ()) -> FloorBaseline:
    """Read a baseline; with `keys`, files of public keys, one of them must have signed it. Raises GoldnodeError."""
    data = _bytes(path, "write it with `goldnode floors learn`, or correct its name")
    keyid = _verified(path, data, keys) if keys else None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise FloorsError(
            f"the baseline is no JSON: {problem}",
            file=path,
            line=getattr(problem, "lineno", None),
            remedy="write it again with `goldnode floors learn`",
        ) from problem
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise FloorsError(
            f"the file has the schema {schema}, and {SCHEMA} is expected",
            file=path,
            remedy="name a file that `goldnode floors learn` wrote",
        )
    try:
        document = FloorsDocument.model_validate_json(data)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FloorsError(
            f"{where}: {first['msg']}", file=path, remedy="write it again with `goldnode floors learn`"
        ) from problem
    return FloorBaseline(document, path, keyid)


def _bytes(path: Path, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise FloorsError(
            f"the file cannot be read: {problem.strerror}", file=path, remedy=remedy
        ) from problem


def _verified(path: Path, data: bytes, keys: Sequence[Path]) -> str:
    """Return the id of the key that signed a baseline."""
    envelope = envelope_of(path)
    again = "learn it again with --key"
    if not envelope.exists():
        raise FloorsError("the baseline is not signed, and a public key is named", file=path, remedy=again)
    try:
        known = [key for file in keys for key in load_public(file)]
        opened = open_envelope(_bytes(envelope, again), known)
    except ImageError as problem:
        raise FloorsError(
            f"the signature is wrong: {problem.message}", file=envelope, remedy=problem.remedy or again
        ) from problem
    if opened.payload_type != PAYLOAD_TYPE:
        raise FloorsError(
            f"this is signed as {opened.payload_type}, and is no baseline", file=envelope, remedy=again
        )
    if opened.payload != data:
        raise FloorsError("the baseline differs from what was signed", file=path, remedy=again)
    return opened.keyid
