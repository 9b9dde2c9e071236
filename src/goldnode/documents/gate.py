"""The state of a node's gate (/run/goldnode/gate.json)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Moment, Part


class GateDrain(Part):
    """The drain that the gate requested, and how: by Slurm, or by the commands of the site file."""

    by: Literal["slurm", "command"]
    since: Moment
    ids: list[str] = Field(description="ids of the findings that led to it")
    ours: bool = Field(description="false if the node was drained already, for another reason")
    commands: dict[Literal["drain", "resume"], list[str]]


class GateDocument(Part):
    """Whether work may start on the node, and why not."""

    schema_: Literal["goldnode.gate/1"] = Field(alias="schema")
    mode: Literal["report", "drain", "block"]
    open: bool
    reasons: list[str]
    since: Moment = Field(description="the last change of mode, open or reasons")
    verdict_time: str | None
    told: GateDrain | None = Field(description="the drain that the gate requested and has not ended")
    error: str | None = Field(description="why the scheduler could not be called; the next check tries again")
