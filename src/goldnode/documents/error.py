"""The error that every command prints with `--format json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Part


class ErrorDocument(Part):
    """An expected error. The exit status is the same as without `--format json`."""

    schema_: Literal["goldnode.error/1"] = Field(alias="schema")
    error: str = Field(description="the error, in one sentence")
    file: str | None = Field(description="the file with the cause")
    line: int | None = Field(description="the line in it, from 1")
    remedy: str | None = Field(
        description="how to fix it; null where the error says it, or it is unknown"
    )
