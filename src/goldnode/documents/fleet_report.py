"""The state of a fleet by its captures: `goldnode fleet report`, and `goldnode fleet diff` (docs/how-to/fleet-report.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Moment, Part

ReportNodeState = Literal[
    "healthy",
    "degraded",
    "drain",
    "could_not_check",
    "not_this_class",
    "no_verdict",
    "stale",
    "silent",
]
ReportEvidence = Literal["declared", "majority", "last_week"]


class ReportNodes(Part):
    """Some nodes: their number, and their names folded into ranges."""

    count: int
    folded: str
    names: list[str]


class ReportChange(Part):
    """One value that differs. null is no value."""

    key: str = Field(description="path of the value, or id of the finding")
    part: str | None = Field(
        description="the part of the node; null: the node, or one of several equal parts"
    )
    expected: str | None = Field(
        description="the value that was declared, that the majority has, or that was there before"
    )
    got: str | None


class ReportCause(Part):
    """One cause: what differs in one topic, with all nodes on which it differs in this way."""

    class_: str = Field(alias="class")
    topic: str
    severity: Literal["degraded", "drain"] | None = Field(
        description="of the findings; null: no finding"
    )
    domain: Literal["software", "driver", "hardware"] | None = Field(
        description="fault domain of the findings"
    )
    evidence: list[ReportEvidence] = Field(
        description="declared: a finding of the verdict. majority: other nodes of class and platform differ. "
        "last_week: it was not so at the earlier time"
    )
    changes: list[ReportChange]
    share: float | None = Field(
        description="share of the nodes of class and platform that have the usual values"
    )
    of: int | None = Field(description="nodes of class and platform that were compared")
    also: list[str] = Field(
        description="topics that differ on exactly these nodes, beside another class document"
    )
    nodes: ReportNodes


class ReportUnchecked(Part):
    """Findings that could not be checked: no drift, and not healthy."""

    class_: str = Field(alias="class")
    topic: str
    changes: list[ReportChange]
    nodes: ReportNodes


class ReportDifference(Part):
    """A change between two times, with all nodes that have it."""

    class_: str = Field(alias="class")
    topic: str
    changes: list[ReportChange]
    nodes: ReportNodes


class ReportValue(Part):
    """A value and the number of nodes that have it."""

    value: str
    count: int


class ReportNoMajority(Part):
    """A fact for which no value has a majority. It is no drift."""

    class_: str = Field(alias="class")
    platform: str
    topic: str
    key: str
    part: str | None
    values: list[ReportValue]


class ReportGroupValue(Part):
    """A value in a group, with the nodes that have it."""

    value: str
    nodes: ReportNodes


class ReportMixed(Part):
    """A cohort, or another group, whose nodes differ in what they must agree on. The rarest value is first."""

    group: str
    topic: str
    key: str
    part: str | None
    values: list[ReportGroupValue]


class ReportSlow(Part):
    """A metric of a node that is worse than the floor of its class and platform."""

    node: str
    class_: str = Field(alias="class")
    source: Literal["canary", "captures"] = Field(
        description="canary: the newest result of the canary suite. captures: the last captures of seven days"
    )
    basis: Literal["floors", "class"] = Field(
        description="floors: a baseline of `goldnode floors learn`. class: robust statistics of the nodes in the same "
        "circumstances, where no baseline fits"
    )
    metric: str = Field(description="name of the metric; with the quantile if it is not the median")
    part: str | None = Field(
        description="the device, or another part of the node; null: the node as a whole"
    )
    unit: str
    samples: int
    median: float = Field(
        description="median of the samples, or the quantile that the metric names"
    )
    bound: float = Field(description="one-sided 99 % bound of it, in the node's favour")
    floor: float
    usual: float = Field(description="median of the nodes")
    loss: float = Field(description="share of the usual speed that is lost")
    nodes: int = Field(description="nodes of the baseline, or those that were compared")
    baseline: str | None = Field(description="day of the baseline; null: none")
    at: Moment = Field(description="time of the newest value")
    verified: bool = Field(description="false: the canary job was never seen on such hardware")


class ReportMeasured(Part):
    """Nodes of a class and platform with canary results of 30 days, and how they were judged."""

    class_: str = Field(alias="class")
    platform: str
    simulated: bool
    nodes: int
    floors: int = Field(description="nodes with a metric that a baseline judges")
    by_class: int = Field(
        description="nodes with a metric that robust statistics of the class judge"
    )
    not_judged: int = Field(
        description="nodes without a metric that can be judged: too few runs, or too few devices of the class"
    )
    slow: int


class ReportFailedJob(Part):
    """A job of the canary suite that did not pass, with all nodes on which it did not."""

    class_: str = Field(alias="class")
    job: str
    state: Literal["failed", "could_not_check"]
    why: str
    nodes: ReportNodes


class ReportSlowing(Part):
    """A device whose canary results become slower."""

    node: str
    class_: str = Field(alias="class")
    metric: str
    part: str | None
    results: int
    days: float
    a_day: float = Field(
        description="share of the speed that is lost in a day: Theil-Sen slope of the logarithm"
    )
    loss: float = Field(description="share that is lost over these days")


class ReportTrend(Part):
    """A counter that grows steadily."""

    node: str
    class_: str = Field(alias="class")
    counter: str
    part: str | None
    an_hour: float = Field(description="Theil-Sen slope")
    growth: float
    hours: float


class ReportLemon(Part):
    """A node with two or more faults in 30 days. The parts are counts of these days."""

    node: str
    class_: str = Field(alias="class")
    state: ReportNodeState
    score: float = Field(
        description="sum over its faults: 1 when one begins, half as much after each seven days"
    )
    parts: dict[Literal["faults", "drains", "repeats", "kinds", "xids", "boots"], int]


class ReportRung(Part):
    """Results of one rung of the ladder for one finding, by the hardware and driver before it."""

    finding: str
    rung: str
    model: str
    firmware: str
    driver: str
    tries: int
    cured: int
    came_back: int
    low: float = Field(description="lower bound of the share that is cured, 95 % (Wilson)")
    high: float = Field(description="upper bound of that share")
    never_helps: bool = Field(description="16 tries or more, and no cure")


class ReportEvent(Part):
    """One event in the history of a node."""

    at: Moment
    status: str
    booted: bool
    class_changed: bool


class ReportNode(Part):
    """A node and its state. `at` is the time of its last capture."""

    node: str
    class_: str = Field(alias="class")
    cohort: str | None
    state: ReportNodeState
    at: Moment | None
    history: list[ReportEvent] = Field(
        description="30 days: changes of status, boots, other class documents"
    )


class ReportClass(Part):
    """A class: its nodes by state. A stale or silent node is not known."""

    class_: str = Field(alias="class")
    nodes: int
    known: int
    states: dict[ReportNodeState, int]


class ReportDay(Part):
    """Nodes of a class by their last status of a day."""

    class_: str = Field(alias="class")
    day: str
    states: dict[str, int]


class ReportVersion(Part):
    """Nodes of a class with one value of what cohorts must agree on."""

    class_: str = Field(alias="class")
    key: str
    value: str
    count: int


class FleetReportDocument(Part):
    """The state of a fleet at one time, by the captures that had arrived."""

    schema_: Literal["goldnode.fleet-report/1"] = Field(alias="schema")
    at: Moment
    compared: Moment = Field(description="the earlier time of `changed`")
    stale_after_hours: float
    simulated: bool = Field(description="whether any of the nodes is simulated hardware")
    anonymous: bool
    classes: list[ReportClass]
    causes: list[ReportCause]
    unchecked: list[ReportUnchecked]
    not_known: list[ReportNode]
    mixed: list[ReportMixed]
    no_majority: list[ReportNoMajority]
    changed: list[ReportDifference]
    slow: list[ReportSlow]
    measured: list[ReportMeasured]
    failed_jobs: list[ReportFailedJob]
    slowing: list[ReportSlowing]
    trends: list[ReportTrend]
    lemons: list[ReportLemon]
    rungs: list[ReportRung] = Field(
        default_factory=list, description="of the store of the fleet, where the ladder has one"
    )
    versions: list[ReportVersion]
    days: list[ReportDay]
    nodes: list[ReportNode]


class ReportStatusChange(Part):
    """Nodes whose status differs between the two times."""

    class_: str = Field(alias="class")
    before: str
    after: str
    nodes: ReportNodes


class FleetDiffDocument(Part):
    """Differences between two times."""

    schema_: Literal["goldnode.fleet-diff/1"] = Field(alias="schema")
    from_: Moment = Field(alias="from")
    to: Moment
    simulated: bool
    changed: list[ReportDifference]
    statuses: list[ReportStatusChange]
    compared: int = Field(description="nodes with a capture of both times")
    not_compared: ReportNodes = Field(
        description="nodes without one of the two captures: not known"
    )
