"""Result of an all-reduce over the nodes of a cohort."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from goldnode.documents.base import Moment, NodePart, Part
from goldnode.documents.canary import JobState, Launcher

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CohortPair(Part):
    """Transfers of a member with another one, in GB/s: their median, and its bounds with 96 % confidence."""

    median: Rate
    low: Rate
    high: Rate


class CohortBandwidth(Part):
    """Bus bandwidth of the all-reduce of one size, in GB/s: 2 (n - 1) / n times the bytes, as nccl-tests define it."""

    mib: int
    median: Rate
    samples: list[Rate]


class CohortMember(Part):
    """One node of the cohort."""

    node: str
    state: JobState | Literal["absent"] = Field(description="absent: it gave no result")
    why: str = Field(description="empty if passed")
    slow: bool
    pairs: dict[str, CohortPair] = Field(description="by the name of the partner")


class CanaryCohortDocument(NodePart):
    """An all-reduce over a cohort, and which member is absent or slow."""

    schema_: Literal["goldnode.canary-cohort/1"] = Field(alias="schema")
    simulated: bool
    verified: bool = Field(description="false: this job was never seen on such hardware")
    cohort: str | None = Field(
        description="name of the cohort in the inventory; null: nodes were named"
    )
    class_: str | None = Field(alias="class")
    started: Moment
    how: Launcher
    backend: str
    answer: Literal["passed", "failed", "could_not_check"]
    reasons: list[str]
    bandwidth: list[CohortBandwidth]
    sees: float | None = Field(
        description="share by which a member must be slower to be named, at this spread; null: none can be named"
    )
    members: list[CohortMember]
