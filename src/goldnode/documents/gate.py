"""The state of a node's gate (/run/goldnode/gate.json)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Moment, NodePart, Part


class GateDrain(Part):
    """The drain that the gate requested, and how: by Slurm, or by the commands of the site file."""

    by: Literal["slurm", "command"]
    since: Moment
    ids: list[str] = Field(description="ids of the findings that led to it")
    ours: bool = Field(description="false if the node was drained already, for another reason")
    commands: dict[Literal["drain", "resume"], list[str]]


class GateTests(Part):
    """The tests before a return of one cause that the class declares."""

    cause: Literal["xid", "repair", "absence"]
    since: Moment | None = Field(
        description="results count that began then or later; null: the cause is not open"
    )
    why: str | None = Field(description="why the cause was opened")
    jobs: list[str] = Field(description="the jobs that the class wants")
    outstanding: list[str] = Field(description="a sentence for each job that has not passed")
    missing: list[str] = Field(description="the names of these jobs")


class GateTestsState(Part):
    """Tests before the node's return. The gate holds the node while a job is outstanding."""

    causes: list[GateTests]
    unknown: list[str] = Field(
        description="causes that could not be decided, and why; they do not hold the node"
    )


class GateDocument(NodePart):
    """Whether work may start on the node, and why not."""

    schema_: Literal["goldnode.gate/1"] = Field(alias="schema")
    mode: Literal["report", "drain", "block"]
    open: bool
    reasons: list[str]
    since: Moment = Field(description="the last change of mode, open or reasons")
    verdict_time: str | None
    told: GateDrain | None = Field(
        description="the drain that the gate requested and has not ended"
    )
    tests: GateTestsState | None = Field(
        default=None,
        description="absent where the class declares no tests after xid, repair or absence",
    )
    error: str | None = Field(
        description="why the scheduler could not be called; the next check tries again"
    )
