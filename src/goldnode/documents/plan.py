"""The plan: the difference between the state that a class declares and that of a node."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from goldnode.documents.base import Part

PartName = Literal[
    "node_class",
    "kernel",
    "gpu_driver",
    "container_runtime",
    "gpu_policy",
    "host_tuning",
    "storage",
    "sanity",
]


class PlanAction(Part):
    """One change. `kind` names the handler, `target` the object, and `data` holds the handler's parameters."""

    part: PartName
    kind: str
    target: str
    reason: str
    phase: Literal["image", "boot", "device"]
    before: str | None = Field(
        description="content before the change; null if there was no content"
    )
    after: str | None
    reboot: str | None = Field(description="why the change needs a reboot")
    data: dict[str, Any]


class PlanRefusal(Part):
    """A reason not to touch the node."""

    code: str
    message: str
    remedy: str


class PlanNote(Part):
    """A declared setting that could not be checked here."""

    subject: str
    message: str


class PlanWaiting(Part):
    """A change that waits for the node to be drained."""

    part: PartName
    subject: str
    message: str


class PlanHolder(Part):
    """A process that has a GPU open."""

    pid: int
    command: str
    unit: str | None
    container: str | None


class PlanReboot(Part):
    """Whether the node needs a reboot now, and after the plan was applied."""

    required: bool
    reasons: list[str]
    after: list[str]
    held: list[str] = Field(description="problems that a reboot would cause; they block it")


class PlanDocument(Part):
    """The changes that would be made, the reasons for them, and the obstacles."""

    schema_: Literal["goldnode.plan/1"] = Field(alias="schema")
    state: Literal["present", "absent"]
    class_digest: str
    boot_identity: str | None
    actions: list[PlanAction]
    parts: dict[PartName, list[str]] = Field(description="the actions of each part, one line each")
    refusals: list[PlanRefusal]
    notes: list[PlanNote]
    waiting: list[PlanWaiting]
    holders: list[PlanHolder]
    drain: str = Field(description="the node's record of a drain by a run, as text")
    reboot: PlanReboot
    done: list[dict[str, Any]] | None = Field(None, description="the changes made, after `apply`")
