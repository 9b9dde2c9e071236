"""Comparison of two records: inputs, layers, outputs, sampled outputs, times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from goldnode.documents.dual import (
    DualAnswer,
    DualArray,
    DualDifference,
    DualDocument,
    DualLatency,
    DualPlace,
    DualRecordArray,
    DualRecordDocument,
    DualSamples,
    DualSide,
)
from goldnode.documents.rollout import fraction
from goldnode.dual import arrays, distributions, latencies
from goldnode.dual.numbers import floats, is_float, stored
from goldnode.dual.recorder.values import Value
from goldnode.dual.store import DualRecord
from goldnode.dual.tolerances import DualTolerances, TolerancesSamples
from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import and_more

_SHOWN = 3  # names in one reason


def compare(
    a: DualRecord, b: DualRecord, tolerances: DualTolerances, now: float | None = None
) -> DualDocument:
    """Compare two records. Raises DualError if an array cannot be read."""
    comparison = _Comparison(a, b, tolerances)
    arrays = list(comparison.arrays())
    samples = list(comparison.samples())
    times = [row for phase in ("cold", "warm") if (row := comparison.latency(phase)) is not None]
    reasons = list(comparison.reasons(arrays, samples, times))
    answers = [answer for answer, _ in reasons]
    worst_first: tuple[DualAnswer, ...] = ("fail", "unknown", "pass")
    answer = next((one for one in worst_first if one in answers), worst_first[-1])
    order = [row for row in arrays if row.role != "input"]
    moment = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    return DualDocument(
        schema="goldnode.dual/1",
        answer=answer,
        reasons=[
            text
            for _, text in sorted(
                reasons, key=lambda row: ("fail", "unknown", "pass").index(row[0])
            )
        ],
        compared=moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        simulated=a.document.simulated or b.document.simulated,
        a=_side(a),
        b=_side(b),
        differences=list(differences(a.document, b.document)),
        first_difference=_first(order, {"within", "outside"}),
        first_divergence=_first(order, {"outside"}),
        arrays=arrays,
        samples=samples,
        latency=times,
    )


def _first(order: list[DualArray], states: set[str]) -> DualPlace | None:
    """Return the first array of the order of execution in one of some states."""
    for step, row in enumerate(order, start=1):
        if row.state in states:
            return DualPlace(step=step, role=row.role, name=row.name, module=row.module)
    return None


class _Comparison:
    def __init__(self, a: DualRecord, b: DualRecord, tolerances: DualTolerances) -> None:
        self.a, self.b, self.tolerances = a, b, tolerances
        self.settings = (a.document.settings.precision, b.document.settings.precision)
        self.others = {(row.role, row.name): row for row in b.document.arrays}

    # Arrays

    def arrays(self) -> Iterator[DualArray]:
        """Yield the result of each array but the sampled ones: those of A in its order, then those of B alone."""
        for row in self.a.document.arrays:
            if row.role != "sample":
                yield self._array(row)
        known = {(row.role, row.name) for row in self.a.document.arrays}
        for row in self.b.document.arrays:
            if row.role != "sample" and (row.role, row.name) not in known:
                yield arrays.absent(row, "only b has it")

    def _array(self, row: DualRecordArray) -> DualArray:
        other = self.others.get((row.role, row.name))
        if other is None:
            return arrays.absent(row, "only a has it")
        pair = arrays.ArrayPair(row, other)
        mismatch = pair.mismatch()
        if mismatch is not None:
            return arrays.absent(row, mismatch, "outside")
        precision = pair.precision(self.settings)
        bounds = self.tolerances.of(row.role, row.name, precision)
        if bounds is None:
            return arrays.absent(row, f"no tolerance is declared for {precision}")
        return arrays.compared(pair, self.a.value(row), self.b.value(other), bounds)

    # Sampled outputs

    def samples(self) -> Iterator[DualSamples]:
        """Yield the comparison of each sampled output that both records have."""
        for row in self.a.document.arrays:
            other = self.others.get((row.role, row.name))
            if row.role == "sample" and other is not None:
                yield self._samples(row, self.a.value(row), self.b.value(other))

    def _samples(self, row: DualRecordArray, a: Value, b: Value) -> DualSamples:
        default: Literal["values", "categories"] = "values" if is_float(row.dtype) else "categories"
        declared = self.tolerances.of_samples(row.name) or TolerancesSamples(
            name=row.name, kind=default
        )
        left, right = (floats(one) if is_float(one.dtype) else stored(one) for one in (a, b))
        margin, confidence = fraction(declared.margin), fraction(declared.confidence)
        samples = DualSamples(
            name=row.name,
            kind=declared.kind,
            draws_a=len(left),
            draws_b=len(right),
            distance=None,
            low=None,
            high=None,
            margin=margin,
            confidence=confidence,
            answer="unknown",
            why="a side has no draws",
        )
        if not len(left) or not len(right) or confidence >= 1:
            return samples
        if any(
            is_float(one.dtype) and np.isnan(side).any() for one, side in ((a, left), (b, right))
        ):
            return samples.model_copy(update={"answer": "fail", "why": "a draw is NaN"})
        of = distributions.of_values if declared.kind == "values" else distributions.of_categories
        count = len([one for one in self.a.document.arrays if one.role == "sample"])
        bounds = of(
            left, right, 1 - (1 - confidence) / count
        )  # Bonferroni, over all sampled outputs
        answer = bounds.answer(margin)
        figures = {
            "distance": bounds.distance,
            "low": bounds.low,
            "high": bounds.high,
            "answer": answer,
        }
        return samples.model_copy(
            update={**figures, "why": _samples_why(bounds, margin, min(len(left), len(right)))}
        )

    # Times

    def latency(self, phase: str) -> DualLatency | None:
        """Return the comparison of one phase."""
        kind: Literal["cold", "warm"] = "cold" if phase == "cold" else "warm"
        left, right = (getattr(one.document.latency, kind) for one in (self.a, self.b))
        return latencies.compared(kind, left, right, self.tolerances, len(self.tolerances.latency))

    # The answer

    def reasons(
        self, rows: list[DualArray], samples: list[DualSamples], times: list[DualLatency]
    ) -> Iterator[tuple[DualAnswer, str]]:
        """Yield an answer and its reason for all that decides."""
        basis = list(self._basis(rows))
        yield from basis
        if not basis:  # else every difference may come from other inputs
            yield from _outputs(rows)
            for one in samples:
                yield one.answer, f"{_sampled(one.name)}: {one.why}"
        names = {row.name for row in self.b.document.arrays if row.role == "sample"}
        for row in self.a.document.arrays:
            if row.role == "sample" and row.name not in names:
                yield "unknown", f"{_sampled(row.name)}: only a has it"
        yield from self._times(times)

    def _basis(self, rows: list[DualArray]) -> Iterator[tuple[DualAnswer, str]]:
        """Yield why the outputs cannot be compared at all: other inputs, or other weights."""
        inputs = [row.name for row in rows if row.role == "input" and row.state != "equal"]
        if inputs:
            yield (
                "unknown",
                f"the inputs differ: {_names(inputs)}. Record b with --inputs and the record of a",
            )
        if (
            not any(row.role == "input" for row in rows)
            and self.a.document.source != self.b.document.source
        ):
            yield (
                "unknown",
                "the commands differ, and the records have no inputs: write them as {out}/input-NAME.npy",
            )
        a, b = self.a.document, self.b.document
        if a.weights_digest != b.weights_digest:
            others = {row.name: row.digest for row in b.weights}
            differ = [row.name for row in a.weights if others.get(row.name) != row.digest]
            differ += [
                row.name for row in b.weights if row.name not in {one.name for one in a.weights}
            ]
            yield "unknown", f"the weights differ before the first run: {_names(differ)}"

    def _times(self, times: list[DualLatency]) -> Iterator[tuple[DualAnswer, str]]:
        for declared in self.tolerances.latency:
            name = f"p{declared.quantile * 100:g} of {declared.phase} runs"
            rows = [row for one in times if one.phase == declared.phase for row in one.quantiles]
            row = next((row for row in rows if row.quantile == declared.quantile), None)
            if row is None or row.answer is None:
                yield "unknown", f"{name}: a side has no times"
            else:
                yield row.answer, f"{name}: {row.why}"


def _outputs(rows: list[DualArray]) -> Iterator[tuple[DualAnswer, str]]:
    outputs = [row for row in rows if row.role == "output"]
    if not outputs:
        yield "unknown", "the records have no outputs"
    for row in outputs:
        name = "the output" if row.name == "output" else f"output {row.name}"
        if row.state == "outside":
            yield "fail", f"{name}: {row.why}"
        elif row.state == "not_compared":
            yield "unknown", f"{name}: {row.why}"
        elif row.compared == 0:
            yield "unknown", f"{name} has no elements"
    good = [row for row in outputs if row.state in ("equal", "within") and row.compared]
    if good and len(good) == len(outputs):
        same = all(row.state == "equal" for row in good)
        what = "1 output is" if len(good) == 1 else f"{len(good)} outputs are"
        yield "pass", f"{what} {'equal in every bit' if same else 'within tolerance'}"


def _sampled(name: str) -> str:
    return "the sampled output" if name == "sample" else f"sampled output {name}"


def _names(names: list[str]) -> str:
    more = and_more(len(names) - _SHOWN)
    return f"{', '.join(names[:_SHOWN])}{more}"


def _samples_why(bounds: distributions.DistributionBounds, margin: float, draws: int) -> str:
    between = f"the distance is between {bounds.low:.1%} and {bounds.high:.1%}, and {margin:.1%} is declared"
    if bounds.answer(margin) != "unknown":
        return between
    needed = distributions.needed_draws(bounds, draws, margin)
    more = "" if needed is None else f"; about {needed} draws of each side would decide"
    return f"inconclusive: {between}{more}"


# The sides


def _side(record: DualRecord) -> DualSide:
    document = record.document
    return DualSide(
        name=document.name,
        record=record.digest,
        started=document.started,
        simulated=document.simulated,
        how=document.how,
        host=document.host,
        image=document.image,
        state=document.state,
        stack=stack(document),
        precision=document.settings.precision,
        repeatable=document.repeatable,
        hooks_change_output=document.hooks_change_output,
        recorder=document.recorder,
    )


def stack(document: DualRecordDocument) -> str:
    """Return framework, device and system in one line."""
    parts = []
    if document.framework is not None:
        own = document.framework
        toolkit = ""
        if own.cuda:
            toolkit = f" (CUDA {own.cuda})"
        elif own.hip:
            toolkit = f" (HIP {own.hip})"
        parts.append(f"{own.name} {own.version}{toolkit}")
    if document.device is not None:
        device = document.device
        parts.append(f"{device.kind}: {device.name}" if device.name else device.kind)
    parts.append(document.machine.os or f"Python {document.machine.python}")
    return ", ".join(parts)


def differences(a: DualRecordDocument, b: DualRecordDocument) -> Iterator[DualDifference]:
    """Yield the settings and versions that differ."""
    left, right = dict(_facts(a)), dict(_facts(b))
    for name in dict.fromkeys([*left, *right]):
        if left.get(name) != right.get(name):
            yield DualDifference(what=name, a=left.get(name), b=right.get(name))


def _facts(document: DualRecordDocument) -> Iterator[tuple[str, str | None]]:
    content: Mapping[str, Any] = document.model_dump(
        mode="json",
        by_alias=True,
        include={"image", "state", "host", "recorder", "source", "settings", "machine"},
    )
    for part in ("framework", "device", "node"):
        own = getattr(document, part)
        content = {
            **content,
            part: None if own is None else own.model_dump(mode="json", by_alias=True),
        }
    yield from _leaves("", content)
    yield "seed", str(document.seed)


def _leaves(path: str, content: Any) -> Iterator[tuple[str, str | None]]:
    if isinstance(content, Mapping):
        for name, below in content.items():
            if name != "boot_id":
                yield from _leaves(f"{path}.{name}" if path else name, below)
    else:
        yield path, optional(str, content)
