"""The way of a vulnerability out of a fleet: its record, its state by class, and its proof (docs/how-to/vulnerabilities.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Day, Moment, Part
from goldnode.documents.cve import CarrierKind, CarrierStateName, CveFeed, NotJudged

LaneStepName = Literal["mitigate", "prepare", "roll-out", "prove"]
LaneState = Literal["done", "partly", "open", "not-needed"]


class LaneEvent(Part):
    """One line of the record of a vulnerability. `begun` is written before an effect, `proved` after its state was read."""

    at: Moment
    by: str
    step: LaneStepName | Literal["published"]
    event: Literal["begun", "proved", "stopped"]
    class_: str | None = Field(None, alias="class")
    text: str = ""


class LaneStep(Part):
    """State of one step of a class, as it was read, and the command that goes on."""

    step: LaneStepName
    state: LaneState
    text: str
    command: str | None = None


class LaneClass(Part):
    """One class: nodes that its captures show, those that have the vulnerability or may have it, and the steps."""

    class_: str = Field(alias="class")
    nodes: int
    left: int
    steps: list[LaneStep]


class CveLaneDocument(Part):
    """Classes and steps of one vulnerability. Hours run from its publication, as it is recorded."""

    schema_: Literal["goldnode.cve-lane/1"] = Field(alias="schema")
    cve: str
    severity: str
    summary: str
    at: Moment
    published: Moment | None = Field(description="null: not recorded")
    hours: float | None
    simulated: int = Field(description="nodes of simulated hardware")
    classes: list[LaneClass]
    feeds: list[CveFeed]


class CveLeft(Part):
    """A carrier that still has the vulnerability, or of which it is not known. `owner` is null if nothing names one."""

    kind: CarrierKind
    name: str
    class_: str | None = Field(alias="class")
    owner: str | None
    state: CarrierStateName
    why: str


class CveProofDocument(Part):
    """Carriers that are left at a time, by the data that are named. With none left and none unread it is proved."""

    schema_: Literal["goldnode.cve-proof/1"] = Field(alias="schema")
    cve: str
    severity: str
    at: Moment
    by: str
    proved: bool
    published: Moment | None
    hours: float | None
    nodes: int
    simulated: int
    oldest_capture: Moment | Day | None
    modules: list[str]
    feeds: list[CveFeed]
    left: list[CveLeft]
    not_judged: list[NotJudged]
