"""The report of `goldnode check --to`: the consequences of an upgrade."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from goldnode.documents.base import Day, Digest, Part
from goldnode.documents.rollout import RolloutDocument

# From good to bad: no finding, warnings, no source states it, must not be used.
WhatIfVerdict: TypeAlias = Literal["fits", "limits", "unknown", "blocked"]
WhatIfKind: TypeAlias = Literal["class", "image", "requirements", "cohort"]


class WhatIfFinding(Part):
    """A finding of a compatibility check."""

    rule: str
    severity: Literal["block", "warn", "unknown"]
    message: str
    remedy: str | None
    accepted: str | None = Field(description="who accepted it and why")
    fatal: bool = Field(description="the subject must not be used")
    sources: list[str]


class WhatIfChange(Part):
    """A finding before and after the upgrade. `changed`: the same rule with another message or severity."""

    change: Literal["new", "gone", "changed", "unchanged"]
    before: WhatIfFinding | None
    after: WhatIfFinding | None


class WhatIfSubject(Part):
    """A class, a cohort, or a workload on a class, with its verdicts and findings."""

    kind: WhatIfKind
    name: str
    class_: str | None = Field(alias="class", description="the class that a workload runs on")
    before: WhatIfVerdict
    after: WhatIfVerdict
    changes: list[WhatIfChange]


class WhatIfMove(Part):
    """A class that the upgrade moves."""

    class_: str = Field(alias="class")
    stack: str = Field(description="its present stack")
    hosts: int | None = Field(
        description="number of its hosts in the inventory; null: no inventory was given"
    )
    file: str = Field(description="the file that declares the stack of the class")
    line: int | None


class WhatIfStay(Part):
    """A class that the upgrade does not move."""

    class_: str = Field(alias="class")
    stack: str
    why: str


class WhatIfPart(Part):
    """A part of the stack. All parts of an upgrade move in one transaction; null: the stack has no such part."""

    part: str
    before: str | None
    after: str | None
    rule: str | None = Field(description="rule of the check that ties the part to the others")
    why: str


class WhatIfPackage(Part):
    """A package that differs between two locks."""

    kind: Literal["moved", "rebuilt", "new", "removed"]
    part: str
    name: str
    before: str | None
    after: str | None
    held: bool = Field(description="the package is pinned and held on nodes")
    reason: str


class WhatIfLocks(Part):
    """The locks of one present stack and of the target, and their differences."""

    stack: str
    lock: Digest | None
    to_stack: str
    to_lock: Digest | None
    classes: list[str]
    parts: list[WhatIfPart]
    packages: list[WhatIfPackage]
    fetch_bytes: int
    reboot: str | None


class WhatIfStep(Part):
    """A step of the upgrade. Steps are in the order in which they have to happen."""

    do: Literal["replace", "move", "start", "drop"]
    what: list[str]
    why: str


class WhatIfRefusal(Part):
    """A reason why a class cannot get a rollout document."""

    class_: str = Field(alias="class")
    why: str
    remedy: str | None


class WhatIfCounts(Part):
    """Number of findings by change. Accepted findings are included."""

    new: int
    gone: int
    changed: int
    unchanged: int


class WhatIfDocument(Part):
    """An upgrade: its consequences, its order, and its rollout documents or the reasons why there are none."""

    schema_: Literal["goldnode.what-if/1"] = Field(alias="schema")
    facts: Day
    to_stack: str
    to_lock: Digest | None
    moves: list[WhatIfMove]
    stays: list[WhatIfStay]
    counts: WhatIfCounts
    subjects: list[WhatIfSubject]
    locks: list[WhatIfLocks]
    order: list[WhatIfStep]
    rollouts: list[RolloutDocument]
    refused: list[WhatIfRefusal]
    not_checked: list[str]
