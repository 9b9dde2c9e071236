"""The state of a rollout as `goldnode rollout status --format json` prints it, and the events of its log."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from goldnode.documents.base import Moment, Part

Phase = Literal["queued", "running", "rolling-back", "completed", "rolled-back", "superseded"]


class RolloutStatusController(Part):
    """The controller of a rollout."""

    state: Literal["working", "quiet", "none", "ended"] = Field(
        description="quiet: it has given no sign of life for a minute; none: no controller has taken the rollout"
    )
    holder: str | None = Field(description="the controller with the epoch")
    epoch: int
    since: Moment | None = Field(
        description="its last sign of life; the submission, where none has taken it"
    )
    remedy: str | None = Field(description="the command that continues the rollout")


class RolloutStatusApproval(Part):
    """An approval that a wave needs."""

    role: str
    who: str | None = Field(description="null: it is missing")
    at: Moment | None


class RolloutStatusWave(Part):
    """One wave."""

    name: str
    number: int = Field(description="from 1")
    state: Literal["passed", "present", "stopped", "later"]
    size: str = Field(description="nodes as the document has them")
    nodes: int = Field(description="nodes of this wave by now")
    states: dict[str, int] = Field(
        description="state -> nodes; a state that begins with back- is of a rollback"
    )
    soak_until: Moment | None = Field(description="end of the soak, once all nodes have ended")
    approvals: list[RolloutStatusApproval]


class RolloutStatusBuffer(Part):
    """One limit of a failure domain, and the nodes that are out."""

    scope: str
    name: str
    kind: Literal["planned", "failed", "total"]
    used: int
    limit: int | None = Field(description="null: no limit applies")


class RolloutStatusRequirement(Part):
    """The answer of one requirement for the present wave."""

    name: str
    answer: Literal["pass", "fail", "unknown"]
    reason: str
    at: Moment | None = Field(description="time of the answer; null: none yet, or computed now")


class RolloutStatusNode(Part):
    """A node that is under way, failed, or not as the rollout wants it."""

    node: str
    state: str
    wave: str
    since: Moment | None
    deadline: Moment | None
    cause: str | None
    blame: Literal["software", "hardware", "absent"] | None


class RolloutStatusWait(Part):
    """A reason why the rollout does not proceed now."""

    subject: str
    reason: str
    owner: str = Field(description="the program, role or person that ends the wait")
    until: Moment | None
    remedy: str | None = Field(
        description="the command that ends it; null: it ends by itself, or needs work"
    )


class RolloutStatusRemains(Part):
    """A node that a rollback leaves in the denied state or out of service."""

    node: str
    reason: str
    remedy: str = Field(description="the command that ends it")


class RolloutStatusFreeze(Part):
    """A freeze in force that holds this rollout."""

    scope: str
    subject: str
    who: str
    reason: str
    at: Moment


class RolloutStatusAlarm(Part):
    """An alarm of this rollout."""

    code: str
    subject: str
    text: str


class RolloutStatusBudget(Part):
    """The error budget of the class, in node-hours."""

    node_hours: float
    period_days: float
    used: float = Field(description="by outages that ended within the period")
    reserved: float = Field(description="for nodes that are out now, at their longest")
    text: str
    room: int = Field(description="nodes that may go out now")
    again: Moment | None = Field(
        description="when the next node may; null: now, or when a node returns"
    )


class RolloutStatusDocument(Part):
    """The state of one rollout, from one consistent view of the store."""

    schema_: Literal["goldnode.rollout-status/1"] = Field(alias="schema")
    at: Moment
    rollout: str
    class_: str = Field(alias="class")
    simulated: bool | None = Field(
        description="whether the class declares simulated hardware; null: the class is not in the catalog"
    )
    from_: str = Field(alias="from")
    to: str
    phase: Phase
    why: str = Field(description="reason of the last change of the phase")
    author: str
    submitted: Moment
    started: Moment | None
    ended: Moment | None
    controller: RolloutStatusController
    waves: list[RolloutStatusWave]
    buffers: list[RolloutStatusBuffer]
    requirements: list[RolloutStatusRequirement]
    states: dict[str, int] = Field(description="state -> nodes of the class")
    nodes: list[RolloutStatusNode] = Field(
        description="without nodes that wait, are done or were left alone"
    )
    waits: list[RolloutStatusWait]
    remains: list[RolloutStatusRemains] = Field(
        description="nodes that a rollback leaves in the denied state or out of service"
    )
    budget: RolloutStatusBudget | None = Field(
        None, description="null: the document has no error budget"
    )
    held_back: list[str] = Field(
        default_factory=list,
        description="nodes that stay in the earlier state as known good until all waves have passed",
    )
    freezes: list[RolloutStatusFreeze]
    denied: dict[str, str] = Field(description="digest on the deny list of the class -> reason")
    alarms: list[RolloutStatusAlarm]


class RolloutEventDocument(Part):
    """One line of `goldnode rollout events`: a transition in the log of the store."""

    schema_: Literal["goldnode.rollout-event/1"] = Field(alias="schema")
    seq: int = Field(description="number of the line in the log; it increases")
    at: Moment
    rollout: str | None = Field(description="null: an order on the fleet, a class or a rack")
    event: str = Field(
        description="the action, for instance Grant, Finish, Overdue, ChangePhase, Freeze, Alarm"
    )
    severity: Literal["info", "warning", "critical"]
    subject: str
    node: str | None
    who: str
    text: str = Field(description="one sentence for a person")
    details: dict[str, Any] = Field(description="the content of the line")
