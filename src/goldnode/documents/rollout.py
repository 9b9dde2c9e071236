"""The document of a rollout: it moves one class from one state to another, wave by wave.

`goldnode check --to` writes the part that a comparison can know. Waves, soak times, limits and requirements are
the owner's; `goldnode rollout check` names what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.documents.base import Digest, Part

NAME = r"^[a-z0-9][a-z0-9_.-]*$"
_DURATION = r"^[0-9]+(\.[0-9]+)?[smhd]$"
_PERCENT = r"^[0-9]+(\.[0-9]+)?%$"
_RATIO = r"^[0-9]+(\.[0-9]+)?x$"
_CLOCK = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Return a duration such as `4h` in seconds."""
    return float(text[:-1]) * _SECONDS[text[-1]]


def fraction(text: str) -> float:
    """Return a percentage such as `2%` as a fraction."""
    return float(text[:-1]) / 100


def _form(pattern: str, expected: str, example: str) -> Callable[[Any], Any]:
    def judge(value: Any) -> Any:
        if not isinstance(value, str) or not re.fullmatch(pattern[1:-1], value):
            raise ValueError(f"expected {expected} | write it as {example}")
        return value

    return judge


def _text(pattern: str, description: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "description": description})


def _at_most_all(value: str) -> str:
    if fraction(value) > 1:
        raise ValueError(f"{value} is more than all | write at most 100%")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f'"{value}" is not a time zone | write a name of the tz database, such as Europe/Zurich'
        ) from None
    return value


Duration = Annotated[
    str,
    BeforeValidator(_form(_DURATION, "a time with its unit", "30m, 4h or 2d")),
    _text(_DURATION, "a number and s, m, h or d"),
]
Percent = Annotated[
    str,
    BeforeValidator(_form(_PERCENT, "a percentage", "2%")),
    AfterValidator(_at_most_all),
    _text(_PERCENT, "a percentage"),
]
Ratio = Annotated[
    str, BeforeValidator(_form(_RATIO, "a factor", "1.5x")), _text(_RATIO, "a factor, such as 1.5x")
]
Clock = Annotated[
    str,
    BeforeValidator(_form(_CLOCK, "a time of day in quotes", '"08:00"')),
    _text(_CLOCK, "a time of day"),
]
Zone = Annotated[str, AfterValidator(_zone)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=NAME)]


def _one_of(part: Part, names: tuple[str, ...], what: str) -> None:
    given = [name for name in names if getattr(part, name) is not None]
    if len(given) != 1:
        choices = " and ".join(given) if given else "none of them"
        raise ValueError(
            f"{what} has one of {', '.join(names)}; it has {choices} | write exactly one"
        )


class _RolloutEnd(Part):
    """A state of nodes: a lock, with its stack, or the build of a disk image."""

    stack: str | None = None
    lock: Digest | None = None
    disk: str | None = Field(None, description="id of a disk build")

    @model_validator(mode="after")
    def _whole(self) -> _RolloutEnd:
        _one_of(self, ("lock", "disk"), "a state")
        return self

    @property
    def digest(self) -> str:
        """Return the name by which nodes report this state."""
        return self.lock or self.disk or ""


class RolloutFrom(_RolloutEnd):
    """The state that the rollout moves away from. Nodes in another state are reported, not touched."""


class RolloutTo(_RolloutEnd):
    """The state that the rollout moves nodes to."""


class RolloutPool(Part):
    """Nodes that go first."""

    nodes: Count | None = Field(None, description="number of nodes, chosen by rank")
    hosts: list[str] | None = Field(None, description="names of nodes")
    spread: Literal["rack", "leaf"] | None = Field(
        None, description="take them from different ones"
    )
    never: list[str] = Field(default_factory=list, description="tags of nodes that are not chosen")

    @model_validator(mode="after")
    def _whole(self) -> RolloutPool:
        _one_of(self, ("nodes", "hosts"), "a pool")
        return self


class RolloutWave(Part):
    """Nodes that move before the next wave begins."""

    name: Name
    pool: str | None = Field(None, description="all nodes of this pool")
    nodes: Count | None = Field(None, description="number of further nodes")
    percent: Percent | None = Field(
        None, description="share of the class that has moved after this wave"
    )
    soak: Duration = Field(
        "0s", description="time after the last node of the wave, before requirements are final"
    )

    @model_validator(mode="after")
    def _whole(self) -> RolloutWave:
        _one_of(self, ("pool", "nodes", "percent"), "a wave")
        return self


class RolloutPer(Part):
    """Limits per group of nodes."""

    rack: Count | None = Field(
        None, description="planned nodes of a rack that are out at the same time"
    )
    leaf: Count | None = Field(
        None, description="planned nodes of a leaf switch that are out at the same time"
    )
    cohort: Literal["all-or-none"] | None = Field(
        None, description="a cohort moves whole, or not at all; null: its nodes move one by one"
    )


class RolloutBudget(Part):
    """Node-hours that planned work may have out of service, in a sliding period."""

    node_hours: Annotated[float, Field(gt=0)] | None = Field(
        None, description="node-hours in the period"
    )
    share: Percent | None = Field(
        None, description="share of all node-hours of the class in the period"
    )
    per: Duration = Field("28d", description="the period, which slides")
    failures: bool = Field(
        default=False,
        description="true: time that nodes are out because they failed counts as well",
    )

    @model_validator(mode="after")
    def _whole(self) -> RolloutBudget:
        _one_of(self, ("node_hours", "share"), "a budget")
        return self


class RolloutLimits(Part):
    """Limits on nodes that are out of service at the same time."""

    planned: Percent | Count | None = Field(None, description="nodes that the rollout takes out")
    failed: Percent | Count | None = Field(
        None, description="failed nodes; above it nothing is granted"
    )
    total: Percent | Count | None = Field(
        None, description="nodes that are out for any reason; at it nothing is granted"
    )
    per: RolloutPer | None = None
    budget: RolloutBudget | None = Field(
        None, description="node-hours out of service by planned work of the class; null: no limit"
    )


class RolloutBoot(Part):
    """Requirement on the verdicts of the new boots."""

    base_rate: Percent = Field("0.2%", description="nodes that fail without any change")
    hardware_rate: Percent = Field(
        "1%", description="nodes on which a boot uncovers faulty hardware"
    )
    confidence: Percent = Field(
        "99.99%", description="certainty that a stop needs, at each node that finishes"
    )
    same_cause: Count = Field(
        2, description="nodes of the first two waves with one cause that stop"
    )
    judged: Percent = Field(
        "75%", description="nodes of a wave that must pass before the next one begins"
    )


class RolloutFloors(Part):
    """Requirement on measured speed: canary results of changed nodes, before and after, less those of other nodes."""

    metrics: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1, description="such as gemm_fp16, gemm_fp16/cold or decode_ms:p99"
    )
    margin: Percent = Field("2%", description="loss that is accepted")
    control: bool = Field(
        default=True,
        description="compare with nodes that have not changed; false: a drift of all nodes counts as a loss",
    )


class RolloutPrometheus(Part):
    """Requirement on a query. An empty answer, NaN, an error and a timeout are unknown."""

    query: str = Field(min_length=1)
    max: float | int | None = Field(None, description="highest value that passes")
    min: float | int | None = Field(None, description="lowest value that passes")
    worse_than: Ratio | None = Field(
        None, description="factor over the unchanged nodes; the query is `by (arm)`"
    )


class RolloutCommand(Part):
    """Requirement on a program: 0 passes, 1 fails, another exit status and a timeout are unknown."""

    run: list[str] = Field(
        min_length=1, description="program and arguments; {wave} is the name of the wave"
    )
    timeout: Duration = "30m"


class RolloutDual(Part):
    """Requirement on a dual run between the two states. No report, and one of other states, is unknown."""

    report: str = Field(
        min_length=1,
        description="file of `goldnode dual compare --report`; {wave} is the name of the wave",
    )
    max_age: Duration = Field("30d", description="time since the new state was recorded")


class RolloutEvidence(Part):
    """Requirement on signed statements about the class in its new state. A missing, stale or refused one is unknown."""

    kinds: list[EvidenceKind] = Field(
        min_length=1, description="kinds of evidence, each of which must be current"
    )
    max_age: Duration | None = Field(None, description="time since the proof was made; null: any")


class RolloutRequirement(Part):
    """One requirement of every wave."""

    boot: RolloutBoot | None = None
    floors: RolloutFloors | None = None
    prometheus: RolloutPrometheus | None = None
    command: RolloutCommand | None = None
    dual: RolloutDual | None = None
    evidence: RolloutEvidence | None = None

    @model_validator(mode="after")
    def _whole(self) -> RolloutRequirement:
        kinds = ("boot", "floors", "prometheus", "command", "dual", "evidence")
        _one_of(self, kinds, "a requirement")
        return self


class RolloutOnFail(Part):
    """Reaction to a failed requirement."""

    do: Literal["rollback", "freeze"] = "rollback"
    what: Literal["failed", "wave", "all"] = Field(
        default="wave", description="nodes that a rollback moves back"
    )


class RolloutOnUnknown(Part):
    """Reaction to a requirement without an answer."""

    after: Duration = "6h"
    do: Literal["freeze"] = "freeze"


class RolloutWindow(Part):
    """Time in which nodes may be taken out of service."""

    days: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] = Field(min_length=1)
    from_: Clock = Field(alias="from")
    to: Clock = Field(description="before `from`: on the next day")
    zone: Zone = Field(description="name of the tz database")


class RolloutDrain(Part):
    """Drain of a node."""

    wait: Duration = Field(default="24h", description="time for the jobs of a node to end")
    then: Literal["skip"] = Field(
        default="skip",
        description="a node that is busy for longer is passed over, and moves when it is free",
    )
    late: Duration = Field(
        default="24h",
        description="time that the last wave waits for nodes that stay busy; then the rollout is completed without them",
    )
    attempts: Count = Field(
        default=3,
        description="grants of a node that stays busy each time; then the rollout goes on without it",
    )
    reservation: str | None = Field(
        default=None,
        min_length=1,
        pattern=r"^[^\s,=]+$",
        description="maintenance reservation of Slurm that was made for this rollout; nodes in any other count as out of service",
    )


class RolloutDocument(Part):
    """A rollout. The first keys are those that a comparison knows; the others are the owner's."""

    schema_: Literal["goldnode.rollout/1"] = Field(alias="schema")
    rollout: Name = Field(description="name of the rollout")
    class_: str = Field(alias="class")
    from_: RolloutFrom = Field(alias="from")
    to: RolloutTo
    reinstall: bool = Field(
        default=False,
        description="true: nodes are installed again from the network, and lose everything on their disks; `to` is a disk build",
    )
    limits: RolloutLimits | None = Field(
        None, description="null: the comparison found no need for a limit"
    )
    together: list[str] = Field(
        default_factory=list,
        description="classes that must move at the same time, because they share cohorts with this class",
    )
    author: str | None = Field(None, description="who wrote it; may not approve its waves")
    lane: Literal["normal", "security"] = Field(
        "normal", description="security: supersedes a normal rollout"
    )
    pools: dict[str, RolloutPool] = Field(default_factory=dict)
    waves: list[RolloutWave] = Field(default_factory=list)
    known_good: Count | None = Field(
        None,
        description="nodes that are held back, spread over racks, until all waves have passed; they move in a last wave of their own",
    )
    require: list[RolloutRequirement] = Field(default_factory=list)
    on_fail: RolloutOnFail = RolloutOnFail()
    on_unknown: RolloutOnUnknown = RolloutOnUnknown()
    windows: list[RolloutWindow] = Field(default_factory=list, description="empty: at any time")
    override_calendars: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict,
        description="freeze calendar of the site -> reason; only in the security lane, and recorded",
    )
    drain: RolloutDrain = RolloutDrain()
    timeout: Duration = Field(
        "1h", description="time from the drained node to the verdict of the new boot"
    )
    approve: dict[str, list[str]] = Field(
        default_factory=dict,
        description="wave -> roles, each of which approves before the wave begins",
    )

    @model_validator(mode="after")
    def _reinstalls(self) -> RolloutDocument:
        if self.reinstall and self.to.disk is None:
            raise ValueError("`reinstall` installs a disk build | write `to: {disk: BUILDID}`")
        if self.reinstall and self.from_.disk is None and self.on_fail.do == "rollback":
            raise ValueError(
                "nodes that are installed again have no way back to a lock | write `on_fail: {do: freeze}`"
            )
        return self
