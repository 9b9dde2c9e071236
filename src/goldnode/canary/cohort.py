"""All-reduce over a cohort: one run of the suite on each member at the same time, and the answer for the cohort.

A member without a result, or one that the others waited for, gives *could not check* with its name.
A wrong sum, a member that is slower than the others with each of its partners, and a bandwidth
below the site's floor give *failed*.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from goldnode.canary import session
from goldnode.canary.session import CanaryRun
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file
from goldnode.documents.canary import CanaryDocument, CanaryJob, Launcher
from goldnode.documents.canary_cohort import (
    CanaryCohortDocument,
    CohortBandwidth,
    CohortMember,
    CohortPair,
)

JOB = "cohort_all_reduce"
DIRECTORY = Path(".goldnode/cohorts")
FEWEST = 3  # members with which a slow one can be named: with two there is one pair
MemberPairs = Mapping[str, Mapping[str, CohortPair]]
_METRIC = re.compile(r"cohort\d+_allreduce_(\d+)mib")


@dataclass(frozen=True)
class CohortSettings:
    """The measurement. `address`: of the first member, as the others reach it. `margin`: share below the others."""

    address: str
    port: int
    backend: str | None = None
    processes: int = 1
    mib: tuple[int, ...] = (16,)
    samples: int = 20
    patience: float = 60.0
    margin: float = 0.1
    floor: float | None = None  # GB/s

    def arguments(self, member: int, members: int) -> dict[str, Any]:
        """Return the arguments of the job of one member."""
        arguments: dict[str, Any] = {
            "member": member,
            "members": members,
            "address": self.address,
            "port": self.port,
            "processes": self.processes,
            "mib": list(self.mib),
            "samples": self.samples,
            "patience": self.patience,
        }
        return arguments if self.backend is None else {**arguments, "backend": self.backend}


def request(
    settings: CohortSettings, member: int, members: int, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the request of one member, of a request for this job."""
    return {**given, "jobs": [JOB], "arguments": {JOB: settings.arguments(member, members)}}


def moment() -> str:
    """Return the time, as documents have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass(frozen=True)
class CohortOutcome:
    """Answer of one member: its document, or the reason why there is none."""

    node: str
    document: CanaryDocument | None = None
    error: str = ""

    @property
    def job(self) -> CanaryJob | None:
        """Return the result of the job."""
        jobs = self.document.jobs if self.document is not None else []
        return next((job for job in jobs if job.name == JOB), None)

    @property
    def blames(self) -> list[int] | None:
        """Return the members for which this one waited; None if it did not fail because of others."""
        text = self.job.facts.get("blames") if self.job is not None else None
        return [int(one) for one in text.split(",") if one] if isinstance(text, str) else None


def run(runs: Sequence[CanaryRun]) -> list[CohortOutcome]:
    """Run on all members at the same time. If one of them is busy, none is started."""
    for one in runs:
        # All are asked before any is started: half a cohort would wait for the rest.
        busy = one.arrived() if one.arrived is not None else ""
        if busy:
            reasons = {other.node: f"not started: {one.node} is busy" for other in runs}
            reasons[one.node] = f"left alone: {busy}"
            return [CohortOutcome(other.node, error=reasons[other.node]) for other in runs]
    with ThreadPoolExecutor(len(runs)) as threads:
        return list(threads.map(_outcome, runs))


def _outcome(given: CanaryRun) -> CohortOutcome:
    try:
        return CohortOutcome(given.node, session.run(given))
    except GoldnodeError as problem:
        return CohortOutcome(given.node, error=problem.message.removeprefix(f"{given.node}: "))


@dataclass
class _Judged:
    """State of the judgement: the answer so far, with its reasons."""

    failed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    slow: set[str] = field(default_factory=set)
    # Members about which there is a sentence, or nothing to report.
    clear: set[str] = field(default_factory=set)

    @property
    def answer(self) -> Literal["passed", "failed", "could_not_check"]:
        """Answer for the cohort: a failure outweighs what could not be checked."""
        if self.failed:
            return "failed"
        return "could_not_check" if self.unknown else "passed"


def judge(
    outcomes: Sequence[CohortOutcome],
    settings: CohortSettings,
    how: Launcher,
    cohort: str | None = None,
) -> CanaryCohortDocument:
    """Return the answer for the cohort. `outcomes` are in the order of the members."""
    names = [one.node for one in outcomes]
    judged = _Judged()
    _states(outcomes, names, judged)
    pairs = {one.node: _pairs(one, names) for one in outcomes}
    bandwidth = [] if judged.failed or judged.unknown else _bandwidth(outcomes)
    if bandwidth:
        # Only where all members have measured: a failed member explains slow partners.
        judged.slow |= slow(pairs, settings.margin)
        judged.failed += [_slow_reason(name, pairs) for name in names if name in judged.slow]
        for one in bandwidth:
            if settings.floor is not None and one.median < settings.floor:
                judged.failed.append(
                    f"the bus bandwidth of {one.mib} MiB is {one.median:.4g} GB/s, below {settings.floor:g} GB/s"
                )
    documents = [one.document for one in outcomes if one.document is not None]
    first = next(iter(documents), None)
    jobs = [one.job for one in outcomes if one.job is not None]
    return CanaryCohortDocument(
        schema="goldnode.canary-cohort/1",
        simulated=any(one.simulated for one in documents),
        verified=bool(jobs) and all(job.verified for job in jobs),
        cohort=cohort,
        **{"class": first.class_ if first else None},
        started=first.started if first else moment(),
        how=how,
        backend=settings.backend or "auto",
        answer=judged.answer,
        reasons=judged.failed + judged.unknown,
        bandwidth=bandwidth,
        sees=sees(pairs, settings.margin) if bandwidth else None,
        members=[_member(one, one.node in judged.slow, pairs[one.node]) for one in outcomes],
    )


def _member(one: CohortOutcome, is_slow: bool, pairs: Mapping[str, CohortPair]) -> CohortMember:
    if one.job is None:
        return CohortMember(node=one.node, state="absent", why=one.error, slow=False, pairs={})
    why = "slower than the other members with each partner" if is_slow else one.job.why
    return CohortMember(
        node=one.node,
        state="failed" if is_slow else one.job.state,
        why=why,
        slow=is_slow,
        pairs=dict(pairs),
    )


def _states(outcomes: Sequence[CohortOutcome], names: Sequence[str], judged: _Judged) -> None:
    """Judge the results of the members: whose fault it is that there is no measurement."""
    waiting: list[CohortOutcome] = []
    for one in outcomes:
        job = one.job
        if job is None:
            judged.unknown.append(f"{one.node} is absent: {one.error}")
        elif job.state == "failed":
            judged.failed.append(f"{one.node}: {job.why}")
        elif job.state != "passed" and one.blames is None:
            judged.unknown.append(f"{one.node}: {job.state.replace('_', ' ')}: {job.why}")
        elif job.state != "passed":
            waiting.append(one)
            continue
        judged.clear.add(one.node)
    for one in waiting:
        for number in one.blames or ():
            name = names[number] if number < len(names) else f"member {number}"
            if name not in judged.clear:
                judged.clear.add(name)
                judged.unknown.append(f"{name}: {one.node} reports: {_named(_why(one), names)}")
    if waiting and not (judged.unknown or judged.failed):
        judged.unknown.append(
            f"no member can be named: {waiting[0].node} reports: {_why(waiting[0])}"
        )


def _why(one: CohortOutcome) -> str:
    return one.job.why if one.job is not None else one.error


def _named(why: str, names: Sequence[str]) -> str:
    """Return a sentence with the names of members instead of their numbers."""

    def named(match: re.Match[str]) -> str:
        numbers = [int(text) for text in match[1].split(", ")]
        return ", ".join(
            names[number] if number < len(names) else str(number) for number in numbers
        )

    return re.sub(r"\bmember (\d+(?:, \d+)*)", named, why)


def _pairs(one: CohortOutcome, names: Sequence[str]) -> dict[str, CohortPair]:
    job = one.job
    if job is None or job.state != "passed":
        return {}
    pairs = {}
    for number, name in enumerate(names):
        median, low, high = (job.facts.get(f"pair_{number}{end}") for end in ("", "_low", "_high"))
        if isinstance(median, float) and isinstance(low, float) and isinstance(high, float):
            pairs[name] = CohortPair(median=median, low=low, high=high)
    return pairs


def _bandwidth(outcomes: Sequence[CohortOutcome]) -> list[CohortBandwidth]:
    """Return the bandwidth of each size. A sample is that of the member for which it took longest."""
    sizes: dict[int, list[list[float]]] = {}
    for one in outcomes:
        for metric in one.job.metrics if one.job is not None else ():
            if match := _METRIC.fullmatch(metric.name):
                sizes.setdefault(int(match[1]), []).append(metric.samples)
    rows = {
        # An all-reduce is as fast as its slowest member.
        mib: [min(values) for values in zip(*samples, strict=False)]
        for mib, samples in sizes.items()
    }
    return [
        CohortBandwidth(mib=mib, median=statistics.median(samples), samples=samples)
        for mib, samples in sorted(rows.items())
        if samples
    ]


def slow(pairs: MemberPairs, margin: float) -> set[str]:
    """Return the members that are slower than the pairs without them, with each partner and by more than `margin`.

    The bounds of the medians decide, so that noise names no member. A slow link of one pair names
    none either.
    """
    slow_nodes = set()
    for name, own in pairs.items():
        others = _without(name, pairs)
        # Even with its best partner: a slow partner or link must not name this member.
        if own and others and max(one.high for one in own.values()) < (1 - margin) * others:
            slow_nodes.add(name)
    return slow_nodes


def _without(name: str, pairs: MemberPairs) -> float:
    """Return the median of the lower bounds of the pairs without a member; 0 if there are none."""
    lows = [
        pair.low
        for one, partners in pairs.items()
        for other, pair in partners.items()
        if name not in (one, other)
    ]
    return statistics.median(lows) if lows else 0.0


def sees(pairs: MemberPairs, margin: float) -> float | None:
    """Return by which share a member must be slower to be named, at the spread of all pairs.

    None with two members: there is one pair, and nothing to compare it with.
    """
    measured = [pair for partners in pairs.values() for pair in partners.values()]
    if len(pairs) < FEWEST or not measured:
        return None
    low, high = (
        statistics.median(one.low for one in measured),
        statistics.median(one.high for one in measured),
    )
    # A member is named when its upper bound is below the margin of the others' lower bounds.
    return round(1 - (1 - margin) * low / high, 3) if high else None


def _slow_reason(name: str, pairs: MemberPairs) -> str:
    best = max(one.median for one in pairs[name].values())
    return (
        f"{name} is slow: at most {best:.4g} GB/s with any partner, and the pairs without it have at least "
        f"{_without(name, pairs):.4g} GB/s"
    )


def amended(one: CohortOutcome, document: CanaryCohortDocument) -> CanaryDocument | None:
    """Return the document of a member, in which the job of a slow member has failed: tests before a return read it."""
    member = next(member for member in document.members if member.node == one.node)
    if one.document is None or not member.slow:
        return one.document
    jobs = [
        job.model_copy(update={"state": "failed", "why": member.why}) if job.name == JOB else job
        for job in one.document.jobs
    ]
    return one.document.model_copy(update={"jobs": jobs})


def store(document: CanaryCohortDocument, directory: Path = DIRECTORY) -> Path:
    """Write the document as DIRECTORY/COHORT/STARTED.json, whole or not at all. Return the file."""
    name = (
        # The name of a cohort is the site's, and may hold a slash or begin with a dot.
        re.sub(r"[^A-Za-z0-9._-]", "_", document.cohort or document.members[0].node).lstrip(".")
        or "_"
    )
    stem = document.started.replace(":", "").replace("-", "")
    target = directory / name / f"{stem}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, (document.model_dump_json(by_alias=True, indent=1) + "\n").encode())
    return target
