"""The results of a canary suite: samples of every job, with the state of the device while they were taken."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from goldnode.documents.base import Digest, Moment, NodePart, Part

JobState = Literal["passed", "failed", "not_run", "not_counted", "could_not_check"]
Launcher = Literal["ssh", "engine", "slurm", "kubernetes", "local"]
# Least and greatest value that was read; null: not read.
Range = Annotated[list[float], Field(min_length=2, max_length=2)] | None


class CanaryConditions(Part):
    """State of the device around and during the samples of a metric."""

    sm_mhz: Range
    temperature_c: Range
    power_w: Range
    throttled: list[str] | None = Field(
        description="reasons from outside the node that slowed the device, by NVML's names; null: not read"
    )


class CanaryMetric(Part):
    """Samples of one quantity on one device. Statistics are computed from them, never on the node."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    device: str | None = Field(description="PCI address; null: the node as a whole")
    phase: Literal["cold", "warm"] = Field(
        description="cold: the first call of a process; warm: later calls"
    )
    samples: list[Annotated[float, Field(allow_inf_nan=False)]]
    conditions: CanaryConditions


class CanaryJob(Part):
    """One job of the suite and its outcome."""

    name: str
    state: JobState = Field(
        description="not_counted: the test was ended by work that arrived, or disturbed; not_run: this node "
        "lacks what the job needs; could_not_check: the job itself did not work"
    )
    why: str = Field(description="empty if passed")
    seconds: float = Field(ge=0)
    verified: bool = Field(description="false: this job was never seen on such hardware")
    facts: dict[str, str | int | float | bool | None] = Field(
        default_factory=dict, description="what the job found, for instance versions; not compared"
    )
    metrics: list[CanaryMetric]


class CanaryDocument(NodePart):
    """One run of the canary suite on one node."""

    schema_: Literal["goldnode.canary/1"] = Field(alias="schema")
    simulated: bool
    node: str
    class_: str | None = Field(alias="class")
    class_digest: str | None
    platform: str = Field(
        description="model and count of the devices, for instance: NVIDIA H200 x 1"
    )
    runner: Digest = Field(description="digest of the program that ran the jobs")
    image: str | None = Field(description="digest of the container image; null: no container")
    started: Moment
    boot_id: str
    how: Launcher
    jobs: list[CanaryJob]
