"""Is this node slow? An upper 99 % bound of its median is compared with the floor of its class.

The bound is an order statistic of the runs and assumes no distribution. A node whose bound is above
the floor is not shown to be slow; a node with fewer than nine runs is not judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from goldnode.documents.canary import CanaryDocument
from goldnode.documents.floors import FloorsMetric, FloorsStatistic
from goldnode.floors.baseline import FloorBaseline
from goldnode.floors.bounds import Values, oriented, quantile, upper_bound
from goldnode.floors.counting import RESULTS, RUNS, SHARES, runs_needed
from goldnode.floors.learn import rounded
from goldnode.floors.results import (
    MetricKey,
    MetricRow,
    UncountedRow,
    check_names,
    identity,
    other_clock,
    rows,
)
from goldnode.floors.verdicts import SpeedAnswer, SpeedReport, SpeedVerdict, command, why_uncounted

_Place = tuple[str, str | None]  # node and device


@dataclass(frozen=True)
class SlowQuestion:
    """Selection to judge: these metrics, all if none is named, on these nodes. `paths` are for the command to repeat it."""

    metrics: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def judge(
    documents: Sequence[CanaryDocument], baseline: FloorBaseline, question: SlowQuestion
) -> SpeedReport:
    """Return a verdict for each metric of the baseline on each device that was measured.

    Raises FloorsError for a metric that the baseline does not have, and for a node without a
    result.
    """
    # A name that does not exist would be judged as "nothing is slow".
    check_names("metric", question.metrics, {str(key_of(one)) for one in baseline.document.metrics})
    check_names("result of node", question.nodes, {one.node for one in documents})
    own = identity(baseline.document)
    chosen = [one for one in documents if not question.nodes or one.node in question.nodes]
    uncounted = [
        UncountedRow(one.node, None, None, f"the baseline does not fit: {why}")
        for one in chosen
        if (why := own.difference(identity(one))) is not None
    ]
    counted, others = rows(one for one in chosen if identity(one) == own)
    uncounted += others
    verdicts: list[SpeedVerdict] = []
    nodes = sorted({one.node for one in chosen})
    highest = max(
        (one.sm_mhz[1] for one in baseline.document.metrics if one.sm_mhz is not None), default=0.0
    )
    for metric in _wanted(baseline, question):
        same = [
            row for row in counted if row.key == key_of(metric) and metric.node in (None, row.node)
        ]
        fit: dict[_Place, list[MetricRow]] = {}
        for row in same:
            clocks = metric.sm_mhz
            why = None if clocks is None else other_clock(row, (clocks[0], clocks[1]), highest)
            if why is not None:
                uncounted.append(UncountedRow(row.node, row.device, str(row.key), why))
            elif metric.device in (None, row.device):
                fit.setdefault((row.node, row.device), []).append(row)
        for place in sorted(fit, key=lambda one: (one[0], one[1] or "")):
            verdicts += _verdicts(_Measured(place, fit[place], metric, baseline, question))
        verdicts += [
            # No data is no pass: such a device has a verdict, too.
            _Measured(place, [], metric, baseline, question).missing(uncounted)
            for place in _missing(metric, nodes, fit, uncounted)
        ]
    verdicts += _others(nodes, baseline, question)
    return SpeedReport(tuple(verdicts), tuple(uncounted))


def _missing(
    metric: FloorsMetric,
    nodes: Iterable[str],
    fit: Collection[_Place],
    uncounted: Iterable[UncountedRow],
) -> list[_Place]:
    """Return the devices whose runs of a metric did not count, and the nodes without any device."""
    wanted = [node for node in nodes if metric.node in (None, node)]
    devices = {
        (row.node, row.device)
        for row in uncounted
        if row.metric == str(key_of(metric))
        and row.node in wanted
        and metric.device in (None, row.device)
    }
    measured = {place for place in devices if place not in fit}
    seen = {place[0] for place in (*measured, *fit)}
    return sorted(
        [*measured, *((node, metric.device) for node in wanted if node not in seen)],
        key=lambda place: (place[0], place[1] or ""),
    )


def key_of(metric: FloorsMetric) -> MetricKey:
    """Return the name of a metric with its phase."""
    return MetricKey(metric.name, metric.phase)


def _wanted(baseline: FloorBaseline, question: SlowQuestion) -> list[FloorsMetric]:
    return [
        metric
        for metric in baseline.document.metrics
        if not question.metrics or str(key_of(metric)) in question.metrics
    ]


def _others(
    nodes: Iterable[str], baseline: FloorBaseline, question: SlowQuestion
) -> list[SpeedVerdict]:
    """Return an inconclusive verdict for each node that a baseline of other nodes does not judge."""
    if baseline.document.scope == "class":
        return []
    known = ", ".join(baseline.document.nodes)
    return [
        SpeedVerdict(
            node,
            metric="all",
            unit="",
            answer=SpeedAnswer.INCONCLUSIVE,
            runs=0,
            median=None,
            bound=None,
            floor=None,
            date=baseline.date,
            repeat=_repeat(baseline, question, node),
            reason=f"the baseline is of {known} alone, and has too few nodes to judge others",
        )
        for node in nodes
        if node not in baseline.document.nodes
    ]


@dataclass(frozen=True)
class _Measured:
    """The counted rows of one metric on one device."""

    place: _Place
    rows: Sequence[MetricRow]
    metric: FloorsMetric
    baseline: FloorBaseline
    question: SlowQuestion

    @property
    def values(self) -> Values:
        return np.concatenate([row.values for row in self.rows])

    @property
    def subject(self) -> str:
        node, device = self.place
        return node if device is None else f"{node} {device}"

    def verdict(self, statistic: FloorsStatistic) -> SpeedVerdict:
        # `oriented` negates values of which less is better, so that slow is small.
        sign = 1 if self.metric.better == "higher" else -1
        share, values = SHARES[statistic.quantile], self.values
        floor = float(oriented(np.array(statistic.floor), self.metric.better))
        expected = float(quantile(values, share))
        # Above this bound the true quantile is unlikely: only a bound below the floor shows a slow
        # device.
        bound = upper_bound(values, share)
        needed = max(RUNS, runs_needed(share))
        if len(values) < needed or bound is None:
            answer = SpeedAnswer.INCONCLUSIVE
            reason = f"{len(values)} runs count, and {needed} are needed"
        elif float(bound) < floor:
            answer = SpeedAnswer.FAILS
            reason = (
                f"slow: {abs(expected / statistic.median):.1%} of the median {statistic.median:.6g}"
            )
            if self.metric.node is not None and self.metric.results < RESULTS:
                # Runs of one result are alike. On a real H200, healthy results differed from two
                # others in ten metrics.
                answer = SpeedAnswer.INCONCLUSIVE
                reason = (
                    f"below the floor ({reason.removeprefix('slow: ')}), but the baseline has {self.metric.results} "
                    f"results of this device, and {RESULTS} are needed to know how they differ"
                )
        else:
            answer = SpeedAnswer.PASSES
            reason = f"not below the floor: {abs(expected / statistic.median):.1%} of the median {statistic.median:.6g}"
        if not self.metric.verified:
            reason += "; the job is not verified on such hardware"
        name = str(key_of(self.metric))
        return SpeedVerdict(
            subject=self.subject,
            metric=name if statistic.quantile == "p50" else f"{name} {statistic.quantile}",
            unit=self.metric.unit,
            answer=answer,
            runs=len(values),
            median=rounded(sign * expected),
            bound=None if bound is None else rounded(sign * float(bound)),
            floor=statistic.floor,
            date=self.baseline.date,
            repeat=_repeat(self.baseline, self.question, self.place[0], name),
            reason=reason,
            details=(
                ("node", self.place[0]),
                ("device", self.place[1]),
                ("quantile", statistic.quantile),
                ("class_median", statistic.median),
            ),
        )

    def missing(self, uncounted: Iterable[UncountedRow]) -> SpeedVerdict:
        """Return the verdict on a node without a run that counts."""
        name = str(key_of(self.metric))
        own = [
            row
            for row in uncounted
            if row.node == self.place[0]
            and row.metric in (None, name)
            and (row.metric is None or self.place[1] in (None, row.device))
        ]
        return SpeedVerdict(
            subject=self.subject,
            metric=name,
            unit=self.metric.unit,
            answer=SpeedAnswer.INCONCLUSIVE,
            runs=0,
            median=None,
            bound=None,
            floor=self.metric.statistics[0].floor,
            date=self.baseline.date,
            repeat=_repeat(self.baseline, self.question, self.place[0], name),
            reason=f"no run counts ({why_uncounted(own) or 'it was not measured'})",
            details=(("node", self.place[0]), ("device", self.place[1])),
        )


def _verdicts(measured: _Measured) -> list[SpeedVerdict]:
    """Return the verdict on the median, and on p95 and p99 where the runs bound them."""
    first, *others = measured.metric.statistics
    runs = len(measured.values)
    # The median is always judged, even if only to report that too few runs count.
    return [measured.verdict(first)] + [
        measured.verdict(one) for one in others if runs >= runs_needed(SHARES[one.quantile])
    ]


def _repeat(
    baseline: FloorBaseline, question: SlowQuestion, node: str, metric: str | None = None
) -> str:
    words = [
        "goldnode",
        "floors",
        "check",
        *question.paths,
        "--baseline",
        str(baseline.file),
        "--node",
        node,
    ]
    return command([*words, *(["--metric", metric] if metric else [])])
