"""The record of a run of a playbook over a fleet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Moment, Part
from goldnode.documents.plan import PartName, PlanNote, PlanRefusal, PlanWaiting
from goldnode.documents.verdict import VerdictCounts

HostOutcome = Literal[
    "unreachable",
    "failed",
    "refused",
    "held",
    "unknown",
    "not reached",
    "reboot pending",
    "waiting for drain",
    "changed",
    "converged",
]


class RunResource(Part):
    """One resource that a run changed, would change, or failed to change.

    A long content is given as its digest and number of lines.
    """

    resource: str
    kind: str
    phase: Literal["image", "boot", "device"]
    changed: bool
    would_change: bool
    reason: str
    before: str | None
    after: str | None
    told: str | None = Field(description="output of the programs that made the change")
    error: str | None
    seconds: float | None


class RunReboot(Part):
    """Why the host needs a reboot, and whether the run rebooted it."""

    reasons: list[str]
    done: bool


class RunVerdict(Part):
    """The verdict of the last check in the run, without its findings."""

    status: str
    exit_code: int
    simulated: bool
    time: str
    counts: VerdictCounts


class RunRollbackState(Part):
    """A state of the node that a rollback left or restored."""

    class_: str = Field(alias="class")
    stack: str
    lock_digest: str
    release: str


class RunRollback(Part):
    """A rollback. `again` is true if the host had been rolled back before."""

    to: RunRollbackState
    left: RunRollbackState
    again: bool


class RunFailure(Part):
    """The task that failed."""

    task: str
    part: str | None
    message: str


class RunDrainRecord(Part):
    """A drain as it is recorded on the node: who drained it, why, and the state that was found."""

    by: str = Field(description="the scheduler")
    node: str = Field(description="the scheduler's name of the node")
    run: str
    controller: str
    since: str
    reason: str
    in_service: bool | None
    state: str
    was: str = Field(description="the reason that the scheduler showed before")


class RunDrain(Part):
    """The last drain or return of the host in the run."""

    changed: bool
    in_service: bool
    ours: bool
    left: str | None
    note: str | None
    record: RunDrainRecord | None


class RunHost(Part):
    """One host of a run."""

    class_: str | None = Field(None, alias="class")
    class_digest: str | None = None
    lock_digest: str | None = None
    outcome: HostOutcome
    why: str | None
    parts: dict[PartName, list[RunResource]]
    refusals: list[PlanRefusal]
    notes: list[PlanNote]
    waiting: list[PlanWaiting]
    reboot: RunReboot
    out_of_service: bool
    drain: RunDrain | None
    rollback: RunRollback | None
    verdict: RunVerdict | None
    faults: list[str] = Field(description="findings against the node, one line each")
    error: RunFailure | None
    unreachable: str | None


class RunDocument(Part):
    """A run: when, by whom, over which hosts, and the outcome of each."""

    schema_: Literal["goldnode.run/1"] = Field(alias="schema")
    run: str = Field(description="id of the run, as in the reasons of its drains")
    playbook: str
    started: Moment
    seconds: float
    end: Literal["finished", "interrupted"]
    user: str
    controller: str
    ansible: str = Field(description="version of ansible-core")
    inventory: list[str]
    limit: str | None
    tags: list[str]
    check: bool
    counts: dict[HostOutcome, int]
    hosts: dict[str, RunHost]
