"""The document of a rollout: it moves one class from one lock to another."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Digest, Part


class RolloutFrom(Part):
    """The state that the rollout moves away from. Nodes in another state are reported, not touched."""

    stack: str
    lock: Digest


class RolloutTo(Part):
    """The state that the rollout moves nodes to."""

    stack: str
    lock: Digest


class RolloutPer(Part):
    """Limits per group of nodes."""

    cohort: Literal["all-or-none"] = Field(description="a cohort moves whole, or not at all")


class RolloutLimits(Part):
    """Limits on nodes that are out of service at the same time."""

    per: RolloutPer


class RolloutDocument(Part):
    """The part of a rollout that a comparison can know. Waves, soak times and requirements are the owner's."""

    schema_: Literal["goldnode.rollout/1"] = Field(alias="schema")
    rollout: str = Field(description="name of the rollout", pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    class_: str = Field(alias="class")
    from_: RolloutFrom = Field(alias="from")
    to: RolloutTo
    limits: RolloutLimits | None = Field(None, description="null: the comparison found no need for a limit")
    together: list[str] = Field(
        default_factory=list,
        description="classes that must move at the same time, because they share cohorts with this class",
    )
