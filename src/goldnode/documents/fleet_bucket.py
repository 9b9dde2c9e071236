"""The list of the parts of a fleet's data in object storage: `parts.json` (docs/how-to/outgrown.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from goldnode.documents.base import Day, Digest, Moment, Part

BucketTable = Literal["nodes", "findings", "facts", "numbers", "digests", "changes", "canary"]

# Each is a part of a path: nothing in it can leave the directory.
_Class = Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9_]{0,127}|_none)$")]
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]


class BucketFile(Part):
    """One file of a part."""

    bytes: int
    digest: Digest


class BucketPart(Part):
    """A part that readers see, with its files. Their names are those in a directory of captures."""

    class_: _Class = Field(alias="class")
    day: Day
    id: _Id
    files: dict[BucketTable, BucketFile]


class ReplacedPart(Part):
    """A part that readers saw before. Its objects stay for those that have an earlier list."""

    class_: _Class = Field(alias="class")
    day: Day
    id: _Id
    tables: list[BucketTable]
    since: Moment


class FleetBucketDocument(Part):
    """The parts of a fleet's data in object storage. It is replaced in one step."""

    schema_: Literal["goldnode.fleet-bucket/1"] = Field(alias="schema")
    written: Moment
    parts: list[BucketPart]
    replaced: list[ReplacedPart]
