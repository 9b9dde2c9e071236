"""Baselines as files: a JSON document, and its signature beside it in a DSSE envelope."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.documents.floors import FloorsDocument
from goldnode.evidence import signed_file
from goldnode.evidence.signed_file import SignedKind, envelope_of
from goldnode.floors.results import FloorsError, validated
from goldnode.node.ground.json_lines import as_dict

PAYLOAD_TYPE = "application/vnd.goldnode.floors+json"
SCHEMA = "goldnode.floors/1"
KIND = SignedKind("baseline", PAYLOAD_TYPE, "learn it again with --key", FloorsError)
__all__ = ["FloorBaseline", "content", "envelope_of", "read", "write"]


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


def content(document: FloorsDocument) -> bytes:
    """Return the bytes of a baseline: equal baselines are equal files."""
    data = document.model_dump(mode="json", by_alias=True)
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def write(document: FloorsDocument, path: Path, key: Path | None) -> None:
    """Write a baseline, signed with the secret key in the file `key`. Raises GoldnodeError.

    Without a key, a signature of an earlier baseline is removed: it does not hold any more.
    """
    signed_file.write(path, content(document), key, KIND)


def read(path: Path, keys: Sequence[Path] = ()) -> FloorBaseline:
    """Read a baseline; with `keys`, files of public keys, one of them must have signed it. Raises GoldnodeError."""
    data = _bytes(path, "write it with `goldnode floors learn`, or correct its name")
    # Before it is parsed: nothing of an unsigned file is looked at.
    keyid = signed_file.verify(path, data, keys, KIND) if keys else None
    try:
        content = json.loads(data)
    # RecursionError: brackets without an end.
    except (ValueError, RecursionError) as problem:
        raise FloorsError(
            f"the baseline is no JSON: {problem}",
            file=path,
            # Only JSONDecodeError has a line.
            line=getattr(problem, "lineno", None),
            remedy="write it again with `goldnode floors learn`",
        ) from problem
    # First the schema, so that a file of another kind is named as such.
    schema = as_dict(content).get("schema")
    if schema != SCHEMA:
        raise FloorsError(
            f"the file has the schema {schema}, and {SCHEMA} is expected",
            file=path,
            remedy="name a file that `goldnode floors learn` wrote",
        )
    document = validated(
        FloorsDocument, data, path, remedy="write it again with `goldnode floors learn`"
    )
    return FloorBaseline(document, path, keyid)


def _bytes(path: Path, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise FloorsError(
            f"the file cannot be read: {problem.strerror}", file=path, remedy=remedy
        ) from problem
