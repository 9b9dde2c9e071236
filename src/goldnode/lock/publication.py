"""Publications of a mirror. A light module, for callers that only ask whether a lock has been published.

A publication is a directory `MIRROR/stacks/STACK/ID` with a static apt repository and
`publication.json`. The ID is derived from the content, so two mirrors of one lock agree on it, and
a class document can name it before it exists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldnode.core.errors import MirrorError

SCHEMA = "goldnode.publication/1"
SUITE, COMPONENT, ARCHIVE = "goldnode", "main", "goldnode-mirror"
RECORD, CURRENT, PUBLIC_KEY = "publication.json", "current", "mirror.asc"
NODE_PACKAGE = "goldnode-node"  # package of the node program, and its place among the stacks


def publication_id(hashes: Iterable[str]) -> str:
    """Return the name of the publication that holds exactly the files of these SHA-256: 16 hexadecimal digits."""
    return hashlib.sha256("\n".join(sorted(set(hashes))).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Publication:
    """A published repository.

    `packages` are rows of a lock ({name, version, architecture, sha256, size, archive, path …})
    with `pool`, the path in this repository. `locks` maps the digest of each lock it was published
    for to that lock's text. `published` is the time, in UTC.
    """

    directory: Path
    stack: str
    id: str
    published: str
    fingerprint: str
    locks: Mapping[str, str]
    packages: tuple[Mapping[str, Any], ...]

    @property
    def hashes(self) -> set[str]:
        """Return the SHA-256 of its packages."""
        return {row["sha256"] for row in self.packages}

    def to_json(self) -> dict[str, Any]:
        """Return the record (schema goldnode.publication/1)."""
        return {
            "schema": SCHEMA,
            "stack": self.stack,
            "id": self.id,
            "published": self.published,
            "signed_by": self.fingerprint,
            "locks": dict(self.locks),
            "packages": [dict(row) for row in self.packages],
        }

    @property
    def day(self) -> str:
        """Return the day of the lock that it was first published for (YYYY-MM-DD)."""
        import yaml  # most callers only ask whether there is a publication

        return str(yaml.safe_load(next(iter(self.locks.values())))["resolved"])

    @classmethod
    def read(cls, directory: Path) -> Publication:
        """Read the record in `directory`. Raises MirrorError."""
        path = directory / RECORD
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["schema"] != SCHEMA:
                raise MirrorError(
                    f'the record has schema "{record["schema"]}", expected "{SCHEMA}"',
                    file=path,
                    remedy="use the goldnode that wrote it",
                )
            return cls(
                directory=directory,
                stack=record["stack"],
                id=record["id"],
                published=record["published"],
                fingerprint=record["signed_by"],
                locks=record["locks"],
                packages=tuple(record["packages"]),
            )
        except OSError as problem:
            raise MirrorError(
                f"the record of a publication cannot be read: {problem.strerror}", file=path
            ) from problem
        except (ValueError, KeyError, TypeError) as problem:
            raise MirrorError(
                f"this is no record of a publication: {problem}",
                file=path,
                remedy="remove that publication and run `goldnode mirror` again",
            ) from problem


def place(directory: Path, stack: str, hashes: Iterable[str]) -> Path:
    """Return the directory for a publication of exactly these files, whether or not it exists."""
    return directory / "stacks" / stack / publication_id(hashes)


def publications(directory: Path, stack: str | None = None) -> list[Path]:
    """Return the directories of all publications, of one stack or of all, in order. Incomplete ones
    are skipped.
    """
    records = (directory / "stacks").glob(f"{stack or '*'}/*/{RECORD}")
    return sorted(
        path.parent
        for path in records
        # `current` links to a publication, and names with a dot are being made or removed.
        if not path.parent.is_symlink() and not path.parent.name.startswith(".")
    )
