"""Carriers of vulnerabilities: `goldnode cve` (docs/how-to/vulnerabilities.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Day, Moment, Part

CarrierKind = Literal["lock", "disk", "image", "derived", "channel", "node"]
CarrierStateName = Literal[
    "affected",
    "fix-not-booted",
    "next-boot",
    "not-loaded",
    "denied",
    "not-built",
    "unknown",
    "fixed",
    "not-affected",
]


class CveFeed(Part):
    """Data that were used. `date` is that of the data; null with `age_days`: not known."""

    kind: Literal["debian", "osv", "oval", "csaf", "facts"]
    name: str
    sha256: str = Field(description='"" for the facts')
    date: Day | None
    date_from: str = Field(description="what states the date")
    age_days: int | None
    note: str = Field(description='a limit of the data; "" if there is none')


class CveRow(Part):
    """Carriers of one kind in the same state, and why."""

    state: CarrierStateName
    kind: CarrierKind
    names: list[str]
    package: str
    version: str
    fixed: str | None = Field(description="first version with the fix; null: none is known")
    word: str = Field(description="the source's own word, as postponed or undetermined")
    feed: str
    why: str


class CveEntry(Part):
    """One vulnerability with its rows, the worst first. `counts`: kind -> state -> number of carriers."""

    id: str
    severity: str
    summary: str
    note: str = Field(description="as withdrawn on a day; empty without")
    counts: dict[CarrierKind, dict[CarrierStateName, int]]
    rows: list[CveRow]


class NotJudged(Part):
    """Carriers of which the packages are not known, or not all of them."""

    why: str
    kind: CarrierKind
    names: list[str]


class CveDocument(Part):
    """Carriers of vulnerabilities. A carrier that is not listed was not read."""

    schema_: Literal["goldnode.cve/1"] = Field(alias="schema")
    at: Moment
    feeds: list[CveFeed]
    vulnerabilities: list[CveEntry]
    no_record: list[str] = Field(description="asked about, and in none of the data")
    not_judged: list[NotJudged]
    nodes: dict[Literal["captured", "simulated"], int]
