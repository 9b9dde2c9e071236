"""The floors of a class: what results of the canary suite were when the class was well, and the least that is accepted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from goldnode.documents.base import Digest, Moment, Part
from goldnode.documents.canary import Range

Quantile = Literal["p50", "p95", "p99"]
Number = Annotated[float, Field(allow_inf_nan=False)]


class FloorsStatistic(Part):
    """One quantile of the samples. p95 and p99 are on the bad side: the greatest latencies, the least throughputs."""

    quantile: Quantile
    median: Number = Field(description="median of the quantiles of the devices")
    low: Number | None = Field(
        description="lower 99 % bound of that median; null: too few devices for a bound"
    )
    high: Number | None = Field(description="upper 99 % bound; null: too few devices for a bound")
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        description="standard deviation between devices, from the median absolute deviation; between runs where "
        "the floor is of one device"
    )
    floor: Number = Field(
        description="worse of: median less the margin, and median less three sigma; a ceiling where lower is better"
    )


class FloorsMetric(Part):
    """Floors of one metric."""

    name: str
    job: str
    phase: Literal["cold", "warm"]
    unit: str
    better: Literal["higher", "lower"]
    node: str | None = Field(description="node that the floor is for; null: all nodes of the class")
    device: str | None = Field(description="device that the floor is for; null: each device")
    margin: Annotated[float, Field(ge=0, lt=1)]
    nodes: Annotated[int, Field(ge=1)]
    devices: Annotated[int, Field(ge=1)]
    runs: Annotated[int, Field(ge=1)]
    results: Annotated[int, Field(ge=1, description="results of the suite that the runs are from")]
    verified: bool = Field(description="false: the job was never seen on such hardware")
    statistics: list[FloorsStatistic] = Field(
        min_length=1, description="p95 and p99 only where the runs of each device bound them"
    )
    sm_mhz: Range = Field(
        description="highest SM clock of the runs, over the devices; null: not read"
    )
    temperature_c: Range
    power_w: Range


class FloorsLeftOut(Part):
    """Results that the baseline does not contain."""

    node: str
    device: str | None
    metric: str | None = Field(description="null: all of the node, or all of a result")
    results: Annotated[int, Field(ge=1)]
    why: str


class FloorsDocument(Part):
    """A baseline: the floors of one class on one platform, in one state, by one version of the runner."""

    schema_: Literal["goldnode.floors/1"] = Field(alias="schema")
    class_: str | None = Field(alias="class")
    class_digest: str | None = Field(description="a node with another class digest is not judged")
    platform: str
    runner: Digest
    simulated: bool
    scope: Literal["class", "nodes"] = Field(
        description="nodes: too few nodes for the spread of a class, so that only these nodes are judged"
    )
    begin: Moment = Field(description="first result")
    end: Moment = Field(description="last result: the date of the baseline")
    results: Annotated[int, Field(ge=1)] = Field(description="documents that were counted")
    nodes: list[str] = Field(min_length=1)
    metrics: list[FloorsMetric] = Field(min_length=1)
    left_out: list[FloorsLeftOut]
