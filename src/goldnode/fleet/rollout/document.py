"""The document of a rollout as `plan` uses it: durations in seconds, shares as fractions, windows with zones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import time
from pathlib import Path
from zoneinfo import ZoneInfo

from goldnode.core import yamlsource
from goldnode.core.errors import GoldnodeError
from goldnode.core.yamlsource import YamlSource
from goldnode.documents.rollout import (
    RolloutBoot,
    RolloutBudget,
    RolloutDocument,
    RolloutPool,
    RolloutRequirement,
    fraction,
    seconds,
)
from goldnode.fleet.rollout.model import BackScope
from goldnode.fleet.rollout.windows import DAYS, RolloutHours
from goldnode.node.ground.optional import optional

# Limits where the document has none (docs/explanation/rollouts.md has their source).
KNOWN_GOOD = "known-good"  # name of the wave that takes the nodes that were held back
PLANNED, FAILED, TOTAL = "2%", "8%", "10%"


class RolloutError(GoldnodeError):
    """A rollout document that cannot be read."""


@dataclass(frozen=True)
class ShareLimit:
    """A limit: a number of nodes, or a share of the class, rounded down, but at least one node."""

    count: int | None = None
    share: float = 0.0

    def nodes(self, size: int) -> int:
        """Return the limit for a class of `size` nodes."""
        # 1e-9: 2% of 50 is 1, not 0.9999999.
        return (
            self.count if self.count is not None else max(1, math.floor(self.share * size + 1e-9))
        )


@dataclass(frozen=True)
class WaveSettings:
    """One wave: a pool, a number of further nodes, or the share that has moved after it."""

    name: str
    pool: str | None
    nodes: int | None
    share: float | None
    soak: float
    reserve: bool = False  # it takes the nodes that were held back


@dataclass(frozen=True)
class LimitSettings:
    """Limits on nodes that are out of service."""

    planned: ShareLimit
    failed: ShareLimit
    total: ShareLimit
    rack: int | None = None
    leaf: int | None = None
    whole_cohorts: bool = False


@dataclass(frozen=True)
class BudgetSettings:
    """The error budget of a class: a number of node-seconds, or a share of all of a period."""

    period: float
    node_seconds: float | None = None
    share: float = 0.0
    failures: bool = False

    def seconds(self, size: int) -> float:
        """Return the budget of a class of `size` nodes, in node-seconds."""
        return (
            self.node_seconds if self.node_seconds is not None else self.share * size * self.period
        )


@dataclass(frozen=True)
class BootSettings:
    """The requirement on boots."""

    base_rate: float
    hardware_rate: float
    confidence: float
    same_cause: int
    judged: float

    def needed(self, size: int) -> int:
        """Return how many nodes of a wave must pass. A failure is no proof that the others are good."""
        # 1e-9: as in ShareLimit.nodes.
        return max(1, math.ceil(self.judged * size - 1e-9))


@dataclass(frozen=True)
class OutsideRequirement:
    """A requirement that a caller answers: floors, a query, a command, a dual run or evidence."""

    name: str
    requirement: RolloutRequirement


@dataclass(frozen=True)
class RolloutSettings:
    """A rollout as a person wants it. `plan` reads nothing else of the document."""

    name: str
    class_: str
    origin: str
    target: str
    security: bool
    author: str | None
    pools: Mapping[str, RolloutPool]
    waves: tuple[WaveSettings, ...]
    limits: LimitSettings
    boot: BootSettings | None
    outside: tuple[OutsideRequirement, ...]
    rollback: BackScope | None  # None: freeze
    unknown_after: float
    windows: tuple[RolloutHours, ...]
    drain_wait: float
    drain_late: float
    timeout: float
    drain_attempts: int = 3
    reservation: str | None = None  # of Slurm, made for this rollout
    approve: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    budget: BudgetSettings | None = None
    known_good: int = 0  # nodes that are held back until the wave KNOWN_GOOD
    calendars: tuple[str, ...] = ()  # freeze calendars of the site, each of which must be read
    overridden: Mapping[str, str] = field(
        default_factory=dict
    )  # calendar -> reason of its override
    digest: str = ""  # of the text of the document: an approval counts for this text only


def settings(document: RolloutDocument) -> RolloutSettings:
    """Return the settings of a document."""
    limits = document.limits
    per = limits.per if limits is not None else None
    boot = next((item.boot for item in document.require if item.boot is not None), None)
    return RolloutSettings(
        name=document.rollout,
        class_=document.class_,
        origin=document.from_.digest,
        target=document.to.digest,
        security=document.lane == "security",
        author=document.author,
        pools=document.pools,
        waves=_waves(document),
        known_good=document.known_good or 0,
        budget=optional(_budget, limits.budget if limits else None),
        limits=LimitSettings(
            planned=_limit(limits.planned if limits else None, PLANNED),
            failed=_limit(limits.failed if limits else None, FAILED),
            total=_limit(limits.total if limits else None, TOTAL),
            rack=per.rack if per else None,
            leaf=per.leaf if per else None,
            whole_cohorts=bool(per and per.cohort),
        ),
        boot=optional(_boot, boot),
        outside=outside(document),
        rollback=BackScope(document.on_fail.what) if document.on_fail.do == "rollback" else None,
        unknown_after=seconds(document.on_unknown.after),
        windows=tuple(
            RolloutHours(
                days=frozenset(DAYS.index(day) for day in window.days),
                begin=time.fromisoformat(window.from_),
                end=time.fromisoformat(window.to),
                zone=ZoneInfo(window.zone),
            )
            for window in document.windows
        ),
        drain_wait=seconds(document.drain.wait),
        drain_late=seconds(document.drain.late),
        timeout=seconds(document.timeout),
        drain_attempts=document.drain.attempts,
        reservation=document.drain.reservation,
        approve={wave: tuple(roles) for wave, roles in document.approve.items()},
        # `check` refuses an override outside of the security lane; here it has no effect.
        overridden=document.override_calendars if document.lane == "security" else {},
    )


def _budget(budget: RolloutBudget) -> BudgetSettings:
    return BudgetSettings(
        period=seconds(budget.per),
        node_seconds=optional(lambda hours: hours * 3600, budget.node_hours),
        share=optional(fraction, budget.share) or 0.0,
        failures=budget.failures,
    )


def _waves(document: RolloutDocument) -> tuple[WaveSettings, ...]:
    """Return the waves of a document, and the one of the nodes that are held back."""
    waves = [
        WaveSettings(
            name=wave.name,
            pool=wave.pool,
            nodes=wave.nodes,
            share=optional(fraction, wave.percent),
            soak=seconds(wave.soak),
        )
        for wave in document.waves
    ]
    if document.known_good and waves:
        waves.append(WaveSettings(KNOWN_GOOD, None, None, 1.0, 0.0, reserve=True))
    return tuple(waves)


def _limit(written: str | int | None, default: str) -> ShareLimit:
    value = default if written is None else written
    return ShareLimit(count=value) if isinstance(value, int) else ShareLimit(share=fraction(value))


def _boot(boot: RolloutBoot) -> BootSettings:
    return BootSettings(
        base_rate=fraction(boot.base_rate),
        hardware_rate=fraction(boot.hardware_rate),
        confidence=fraction(boot.confidence),
        same_cause=boot.same_cause,
        judged=fraction(boot.judged),
    )


def kind_of(requirement: RolloutRequirement) -> str:
    """Return the key of a requirement: boot, floors, prometheus, command, dual or evidence."""
    return next(
        name for name in type(requirement).model_fields if getattr(requirement, name) is not None
    )


def outside(document: RolloutDocument) -> tuple[OutsideRequirement, ...]:
    """Return the requirements that a caller answers. A second one of a kind has a number in its name."""
    requirements: list[OutsideRequirement] = []
    for item in document.require:
        kind = kind_of(item)
        if kind == "boot":
            continue
        same = sum(kind_of(one.requirement) == kind for one in requirements)
        requirements.append(OutsideRequirement(kind if not same else f"{kind}-{same + 1}", item))
    return tuple(requirements)


@dataclass(frozen=True)
class RolloutFile:
    """A document that was read from a file, with the lines of its keys."""

    document: RolloutDocument
    settings: RolloutSettings
    source: YamlSource
    text: str  # as written, for the store
    keyid: str | None = None  # id of the key that signed it; None: not verified


def loads(
    text: str, file: str | Path = "the stored document", keyid: str | None = None
) -> RolloutFile:
    """Read a rollout document from its text. Raises RolloutError; `file` names it there."""
    source = yamlsource.parse(text, Path(file), error=RolloutError)
    document = yamlsource.validate(RolloutDocument, source, error=RolloutError)
    with_digest = replace(settings(document), digest=digest_of(text))
    return RolloutFile(document, with_digest, source, text, keyid)


def digest_of(text: str) -> str:
    """Return the SHA-256 of the text of a document, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
