"""Did the change cost? The same nodes before and after, less the drift of nodes that did not change.

For each node the loss is the logarithm of the ratio of its medians. A change passes if every
metric's upper 97.5 % bound of the loss is below the margin (non-inferiority). It fails if a loss is
significant, with Holm's correction over the metrics, and the margin is not excluded. Anything else
is inconclusive. With a control arm the test is Wilcoxon's rank sum between the losses of both arms;
subtracting the control's median instead would ignore its error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from goldnode.documents.canary import CanaryDocument
from goldnode.floors.bounds import (
    ComparisonSize,
    LossBounds,
    Values,
    holm,
    loss_bounds,
    loss_p_value,
    pooled_spread,
    quantile,
    smallest_loss_seen,
)
from goldnode.floors.counting import SHARES, runs_needed
from goldnode.floors.learn import rounded
from goldnode.floors.limits import ALPHA, CONTROL, MARGIN, NODES, RUNS, nodes_needed
from goldnode.floors.results import (
    FloorsError,
    MetricRow,
    ResultIdentity,
    UncountedRow,
    identity,
    other_clock,
    rows,
    short,
)
from goldnode.floors.verdicts import SpeedAnswer, SpeedReport, SpeedVerdict, command, why_uncounted
from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import phrase

_Arm = tuple[str, str]  # (changed or control, before or after)
_Circumstances = TypeVar("_Circumstances", bound=Hashable)


@dataclass(frozen=True)
class ChangeMetric:
    """A metric as a document names it: `gemm_fp16`, `gemm_fp16/cold`, `decode_ms:p99`."""

    name: str  # with the phase
    quantile: str = "p50"

    def __str__(self) -> str:
        return self.name if self.quantile == "p50" else f"{self.name} {self.quantile}"

    @property
    def share(self) -> float:
        """Return the share of the values below the quantile, where more is better."""
        return next(share for name, share in SHARES.items() if name == self.quantile)

    @property
    def runs(self) -> int:
        """Return the fewest runs of a node before, and after."""
        return RUNS if self.quantile == "p50" else runs_needed(self.share)


def metric_of(text: str) -> ChangeMetric:
    """Return the metric that a person wrote. Raises FloorsError for a quantile that there is not."""
    name, colon, quantile = text.partition(":")
    if not colon:
        return ChangeMetric(name)
    if quantile not in SHARES:
        raise FloorsError(
            f'the metric "{text}" has the quantile "{quantile}"',
            remedy=f"write one of {', '.join(SHARES)}",
        )
    return ChangeMetric(name, quantile)


@dataclass(frozen=True)
class ChangeArms:
    """Results before and after a change, of the nodes that changed and of a control arm. None: without one."""

    before: Sequence[CanaryDocument]
    after: Sequence[CanaryDocument]
    changed: frozenset[str]
    control: frozenset[str] | None


@dataclass(frozen=True)
class ChangeQuestion:
    """Metrics to compare, and the accepted loss. `repeat` are the words of the command that repeats all of it."""

    metrics: tuple[ChangeMetric, ...] = ()  # empty: all that were measured before and after
    margin: float = MARGIN
    alpha: float = ALPHA
    repeat: tuple[str, ...] = ("goldnode", "floors", "check")


def arms_of(
    before: Sequence[CanaryDocument], after: Sequence[CanaryDocument], control: Iterable[str] = ()
) -> ChangeArms:
    """Return the arms: `control`, else the nodes whose class digest and image are the same before and after.

    Raises FloorsError if no node changed.
    """
    both = {one.node for one in before} & {one.node for one in after}
    if not both:
        raise FloorsError(
            "no node has results before and after",
            remedy="name the results of the same nodes, before and after",
        )
    states = [{node: _states(documents, node) for node in both} for documents in (before, after)]
    named = frozenset(control)
    unchanged = named or frozenset(node for node in both if states[0][node] == states[1][node])
    changed = frozenset(both - unchanged)
    if not changed:
        raise FloorsError(
            "no node changed: class digest and image are the same before and after on each",
            remedy="name the nodes that did not change with --control",
        )
    return ChangeArms(before, after, changed, unchanged or None)


def _states(documents: Iterable[CanaryDocument], node: str) -> set[tuple[str | None, str | None]]:
    return {(one.class_digest, one.image) for one in documents if one.node == node}


def judge(arms: ChangeArms, question: ChangeQuestion) -> SpeedReport:
    """Return a verdict for each metric."""
    counted, uncounted = _counted(arms)
    metrics = question.metrics or _all_metrics(counted)
    losses = [_losses(counted, metric, uncounted) for metric in metrics]
    comparisons = [
        _Comparison(metric, loss, arms, question, len(metrics))
        for metric, loss in zip(metrics, losses, strict=True)
    ]
    # Several metrics are tested: each must not have its own chance of a false alarm.
    rejected = holm([one.p_value for one in comparisons], question.alpha)
    return SpeedReport(
        tuple(
            one.verdict(lost, uncounted) for one, lost in zip(comparisons, rejected, strict=True)
        ),
        tuple(uncounted),
    )


def _counted(arms: ChangeArms) -> tuple[dict[_Arm, list[MetricRow]], list[UncountedRow]]:
    """Return the rows of each arm that count, and the others."""
    uncounted: list[UncountedRow] = []
    groups: dict[_Arm, list[CanaryDocument]] = {}
    for time, documents in (("before", arms.before), ("after", arms.after)):
        groups["changed", time] = [one for one in documents if one.node in arms.changed]
        if arms.control is not None:
            groups["control", time] = [one for one in documents if one.node in arms.control]
    # Runner, platform and kind are those of the changed nodes now; each group has one digest and
    # image.
    wanted = _usual(groups["changed", "after"], identity)
    counted: dict[_Arm, list[MetricRow]] = {}
    for arm, documents in groups.items():
        state = _usual(documents, lambda one: (one.class_digest, one.image))
        # A result of another version or image than most of its arm is no part of the question.
        fit = []
        for one in documents:
            why = _difference(one, wanted, state)
            if why is None:
                fit.append(one)
            else:
                uncounted.append(UncountedRow(one.node, None, None, why))
        counted[arm], others = rows(fit)
        uncounted += others
    return _same_clock(counted, uncounted), uncounted


def _usual(
    documents: Sequence[CanaryDocument], of: Callable[[CanaryDocument], _Circumstances]
) -> _Circumstances | None:
    """Return the most frequent circumstances; None without a document."""
    counts = Counter(of(one) for one in documents)
    return max(counts, key=lambda one: (counts[one], str(one)), default=None)


def _difference(
    document: CanaryDocument,
    wanted: ResultIdentity | None,
    state: tuple[str | None, str | None] | None,
) -> str | None:
    """Return why a result does not count in its arm; None if it does."""
    own = identity(document)
    if wanted is not None:
        # The digest is what changes: it is compared within an arm only.
        why = ResultIdentity(
            wanted.class_, own.class_digest, wanted.platform, wanted.runner, wanted.simulated
        ).difference(own)
        if why is not None:
            return why
    if state is not None and (document.class_digest, document.image) != state:
        return (
            f"it is of class digest {short(document.class_digest)} with image {short(document.image)}, and most are of "
            f"{short(state[0])} with {short(state[1])}"
        )
    return None


def _same_clock(
    counted: Mapping[_Arm, list[MetricRow]], uncounted: list[UncountedRow]
) -> dict[_Arm, list[MetricRow]]:
    """Return the rows at the clock of the changed nodes before. Adds the others to `uncounted`."""
    usual: dict[object, list[float]] = {}
    device = 0.0
    for row in counted["changed", "before"]:
        if row.clock is not None:
            usual.setdefault(row.key, []).append(row.clock)
            # 0: the device does not report its clock.
            device = max(device, row.device_clock or 0.0)
    fit: dict[_Arm, list[MetricRow]] = {}
    for arm, same in counted.items():
        fit[arm] = []
        for row in same:
            clocks = usual.get(row.key)
            middle = float(np.median(clocks)) if clocks else 0.0
            why = other_clock(row, (middle, middle), device) if clocks else None
            if why is None:
                fit[arm].append(row)
            else:
                uncounted.append(UncountedRow(row.node, row.device, str(row.key), why))
    return fit


def _all_metrics(counted: Mapping[_Arm, Sequence[MetricRow]]) -> tuple[ChangeMetric, ...]:
    names = [{str(row.key) for row in counted["changed", time]} for time in ("before", "after")]
    if not names[0] & names[1]:
        raise FloorsError(
            "no metric counts before and after on the changed nodes",
            remedy="measure both with the same version of the runner",
        )
    return tuple(ChangeMetric(name) for name in sorted(names[0] & names[1]))


@dataclass(frozen=True)
class _Losses:
    """Losses of nodes, as logarithms, and the speeds behind them."""

    changed: Values
    control: Values
    before: float | None  # median of the changed nodes
    after: float | None
    runs: int  # of the changed nodes, after
    unit: str
    better: str
    date: str | None  # of the last result before


def _losses(
    counted: Mapping[_Arm, Sequence[MetricRow]], metric: ChangeMetric, uncounted: list[UncountedRow]
) -> _Losses:
    """Return the loss of each node that has enough runs before and after. Adds the others to `uncounted`."""
    own = {
        arm: [row for row in rows if str(row.key) == metric.name] for arm, rows in counted.items()
    }
    arms: dict[str, Values] = {}
    middles: tuple[list[float], list[float]] = ([], [])
    runs = 0
    for arm in ("changed", "control"):
        times = [_by_place(own.get((arm, time), ())) for time in ("before", "after")]
        rows: dict[str, list[float]] = {}
        for place in sorted(set(times[0]) & set(times[1]), key=str):
            counts = [len(time[place]) for time in times]
            if min(counts) < metric.runs:
                why = f"{counts[0]} runs before and {counts[1]} after count, and {metric.runs} are needed"
                uncounted.append(UncountedRow(*place, str(metric), why))
                continue
            speeds = [float(quantile(time[place], metric.share)) for time in times]
            # Nodes are the unit of the test: the median of a node's devices is its loss.
            rows.setdefault(place[0], []).append(_loss(speeds[0], speeds[1]))
            if arm == "changed":
                middles[0].append(abs(speeds[0]))
                middles[1].append(abs(speeds[1]))
                runs += counts[1]
        arms[arm] = np.array([float(np.median(rows[node])) for node in sorted(rows)])
    first = next(iter([*own["changed", "after"], *own["changed", "before"]]), None)
    return _Losses(
        arms["changed"],
        control=arms["control"],
        before=float(np.median(middles[0])) if middles[0] else None,
        after=float(np.median(middles[1])) if middles[1] else None,
        runs=runs,
        unit="" if first is None else first.metric.unit,
        better="higher" if first is None else first.metric.better,
        date=max((row.document.started[:10] for row in own["changed", "before"]), default=None),
    )


def _loss(before: float, after: float) -> float:
    """Return the logarithm of the loss. Speeds are negative where less is better."""
    return math.log(before / after) if before > 0 else math.log(after / before)


def _by_place(rows: Iterable[MetricRow]) -> dict[tuple[str, str | None], Values]:
    parts: dict[tuple[str, str | None], list[Values]] = {}
    for row in rows:
        parts.setdefault((row.node, row.device), []).append(row.values)
    return {place: np.concatenate(values) for place, values in parts.items()}


@dataclass(frozen=True)
class _Comparison:
    """One metric of a change."""

    metric: ChangeMetric
    losses: _Losses
    arms: ChangeArms
    question: ChangeQuestion
    metrics: int

    @property
    def control(self) -> Values | None:
        return None if self.arms.control is None else self.losses.control

    @property
    def too_few(self) -> str | None:
        """Return why there are too few results; None if there are enough."""
        if len(self.losses.changed) < NODES:
            return (
                f"{len(self.losses.changed)} changed nodes have {self.metric.runs} runs before and after, and "
                f"{NODES} are needed"
            )
        if self.control is not None and len(self.control) < CONTROL:
            return f"{len(self.control)} unchanged nodes have enough runs, and {CONTROL} are needed"
        return None

    @property
    def p_value(self) -> float:
        return 1.0 if self.too_few is not None else loss_p_value(self.losses.changed, self.control)

    @property
    def size(self) -> ComparisonSize:
        control = optional(len, self.control)
        alpha = self.question.alpha
        return ComparisonSize(len(self.losses.changed), control, alpha, alpha / self.metrics)

    def share(self, loss: float) -> float:
        """Return a loss as a share of the speed before: of a throughput lost, of a latency added."""
        # 1 - exp(-loss), or exp(loss) - 1
        return self.sign * (math.exp(self.sign * loss) - 1)

    @property
    def sign(self) -> int:
        """Return the direction of a loss: down for a throughput, up for a latency."""
        return -1 if self.losses.better == "higher" else 1

    @property
    def margin(self) -> float:
        """Return the margin as a logarithm."""
        return self.sign * math.log(1 + self.sign * self.question.margin)

    def verdict(self, lost: bool, uncounted: Sequence[UncountedRow]) -> SpeedVerdict:
        """Return the verdict. `lost`: Holm's procedure found a loss."""
        answer, reason, bounds, seen = self._answer(lost, uncounted)
        loss: tuple[float | None, ...] = (None, None, None)
        if bounds is not None:
            loss = (bounds.estimate, bounds.low, bounds.high)
        estimate, low, high = (optional(self.share, one) for one in loss)
        return SpeedVerdict(
            subject=self._subject(),
            metric=str(self.metric),
            unit=self.losses.unit,
            answer=answer,
            runs=self.losses.runs,
            median=_rounded(self.losses.after),
            bound=self._after(high),
            floor=self._after(self.question.margin),
            date=self.losses.date,
            repeat=command([*self.question.repeat, "--metric", _written(self.metric)]),
            reason=reason,
            details=(
                ("changed_nodes", len(self.losses.changed)),
                ("control_nodes", optional(len, self.control)),
                ("median_before", self.losses.before),
                ("loss", _rounded(estimate)),
                ("loss_at_least", _rounded(low)),
                ("loss_at_most", _rounded(high)),
                ("margin", self.question.margin),
                ("loss_seen", None if seen is None else rounded(self.share(seen))),
            ),
        )

    def _after(self, loss: float | None) -> float | None:
        """Return the speed that a loss, given as a share, leaves of the speed before."""
        if loss is None or self.losses.before is None:
            return None
        return rounded(self.losses.before * (1 + self.sign * loss))

    def _answer(
        self, lost: bool, uncounted: Sequence[UncountedRow]
    ) -> tuple[SpeedAnswer, str, LossBounds | None, float | None]:
        """Return answer, reason, bounds of the loss, and the smallest loss that would be seen."""
        few = self.too_few
        if few is not None:
            own = [
                row for row in uncounted if row.metric in (None, self.metric.name, str(self.metric))
            ]
            return SpeedAnswer.INCONCLUSIVE, few + phrase(" ({})", why_uncounted(own)), None, None
        bounds = loss_bounds(self.losses.changed, self.control, self.question.alpha)
        seen = smallest_loss_seen(
            self.size, pooled_spread(self.losses.changed, self.control), self.margin
        )
        power = self._power(seen)
        loss = f"loss {self.share(bounds.estimate):.1%}"
        at_most = "" if bounds.high is None else f", at most {self.share(bounds.high):.1%}"
        limit = f"margin {self.question.margin:.1%}"
        # Not losing is shown by the bound, not by the lack of a significant loss.
        if bounds.high is not None and bounds.high < self.margin:
            return SpeedAnswer.PASSES, f"{loss}{at_most}, {limit}; {power}", bounds, seen
        if lost:
            least = "" if bounds.low is None else f", at least {self.share(bounds.low):.1%}"
            return (
                SpeedAnswer.FAILS,
                f"the change costs: {loss}{least}, {limit}; {power}",
                bounds,
                seen,
            )
        reason = f"{loss}{at_most}, {limit}: neither a loss nor its absence is shown; {power}"
        return SpeedAnswer.INCONCLUSIVE, reason, bounds, seen

    def _power(self, seen: float | None) -> str:
        if seen is None:
            needed = nodes_needed(self.size.control, self.size.alpha_loss)
            return f"no loss can be shown: {self.metrics} metrics need {needed} changed nodes"
        return f"a loss of {self.share(seen):.1%} is stopped with 90 % probability"

    def _subject(self) -> str:
        control = "no control arm" if self.control is None else f"{len(self.control)} unchanged"
        return f"{len(self.losses.changed)} changed nodes ({control})"


def _rounded(value: float | None) -> float | None:
    return optional(rounded, value)


def _written(metric: ChangeMetric) -> str:
    return metric.name if metric.quantile == "p50" else f"{metric.name}:{metric.quantile}"
