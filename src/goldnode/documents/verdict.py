"""The verdict: a capture judged against its node class (/run/goldnode/verdict.json)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, RootModel

from goldnode.documents.base import Day, Digest, Moment, Part
from goldnode.node.state.kinds import KINDS

FindingOutcome = Literal[
    "match",
    "mismatch",
    "not_exposed",
    "could_not_read",
    "not_verified_here",
    "deferred",
    "suppressed",
]
FindingSeverity = Literal["degraded", "drain"]


# `*` in the table stands for a name that the node or the class gives.
# A dot in brackets: JSON doubles each backslash.
_IDS = f"^({'|'.join(sorted(KINDS)).replace('.', '[.]').replace('*', '.+')})$"


class VerdictFinding(Part):
    """One declared item and its comparison with the node."""

    id: str = Field(
        pattern=_IDS, description="id of a row in the table of findings (docs/reference/sanity.md)"
    )
    outcome: FindingOutcome
    severity: FindingSeverity
    expected: str | None
    got: str | None
    remedy: str | None
    steps: list[str] = Field(description="the remedy as steps of docs/reference/sanity.md")
    subject: str | None = Field(description="the object concerned, if that is not the whole node")
    evidence: list[str]
    blast: Literal["nothing", "process", "gpu", "node", "hardware"] | None = Field(
        description="blast radius of the remedy"
    )
    domain: Literal["software", "driver", "hardware"] = Field(
        description="fault domain: what has to change so that the finding disappears"
    )


class VerdictCounts(Part):
    """The number of findings per outcome."""

    match: int
    mismatch: int
    not_exposed: int
    could_not_read: int
    not_verified_here: int
    deferred: int
    suppressed: int


class VerdictRecord(Part):
    """The capture that was judged, if it was a recorded one."""

    time: str | None
    source: str | None
    hostname: str | None


class VerdictUnjudged(Part):
    """An item that this user may not read, or that the record does not state."""

    id: str
    subject: str | None
    got: str | None


class VerdictUnread(Part):
    """Items that could not be read for one reason."""

    why: Literal["permission", "no_driver", "missing", "source", "other"]
    got: str
    items: list[str]


class VerdictDetected(Part):
    """GPUs by model, version of the NVIDIA driver, and the platform."""

    gpus: list[str]
    driver: str | None
    platform: list[str]


class VerdictUndeclared(Part):
    """An item that a class would declare, with the value found."""

    item: str
    found: str | int


class Verdict(Part):
    """A judged capture. `status` is the exit code in words.

    Exit codes: 0 healthy, 1 degraded, 2 drain, 3 could not check, 4 not this class. If there was no class
    document to judge by, the fields about the class are null and those about its stack are missing.
    """

    schema_: Literal["goldnode.verdict/1"] = Field(alias="schema")
    time: Moment
    status: Literal["healthy", "degraded", "drain", "could_not_check", "not_this_class"]
    exit_code: int = Field(ge=0, le=4)
    counts: VerdictCounts
    findings: list[VerdictFinding]
    class_: str | None = Field(alias="class")
    class_digest: Digest | None
    stack: str | None = None
    lock_digest: Digest | None
    exercised: str | None = None
    simulated: bool
    passive: bool
    boot_identity: str | None
    uptime: float | None
    recorded: VerdictRecord | None = None
    unjudged: list[VerdictUnjudged] | None = Field(
        None, description="without a class: what needs root"
    )
    unread: list[VerdictUnread] | None = Field(
        None, description="without a class: what could not be read, by reason"
    )
    detected: VerdictDetected | None = Field(
        None, description="without a class: what the check found"
    )
    driver: list[VerdictFinding] | None = Field(
        None,
        description="without a class: the driver by the facts, without effect on the exit code",
    )
    undeclared: list[VerdictUndeclared] | None = Field(
        None, description="without a class: what one would declare"
    )
    advice: list[str] | None = Field(
        None, description="without a class: the facts' limits for models and driver"
    )
    facts: Day | None = Field(None, description="without a class: the date of the facts")


class NoVerdict(Part):
    """The answer of `check --cached --format json` if no verdict is current."""

    schema_: Literal["goldnode.verdict/1"] = Field(alias="schema")
    status: Literal["could_not_check"]
    exit_code: Literal[3]
    reason: str
    remedy: str


class VerdictDocument(RootModel[Verdict | NoVerdict]):
    """Output of `goldnode-node check --format json`, and content of the verdict file."""
