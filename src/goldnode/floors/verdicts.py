"""Verdicts on speed: each with its metric, runs, median, bound, floor, the date of the baseline, and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from goldnode.floors.results import UncountedRow


class SpeedAnswer(Enum):
    """Answer of a comparison. INCONCLUSIVE: there are too few runs, or none that count; it never passes."""

    PASSES = "passes"
    FAILS = "fails"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class SpeedVerdict:
    """Verdict on one metric. `median`, `bound` and `floor` are in its unit; None: there is none."""

    subject: str  # node and device, or the arms of a comparison
    metric: str  # with phase and quantile: gemm_fp16, gemm_fp16/cold, decode/warm p99
    unit: str
    answer: SpeedAnswer
    runs: int
    median: float | None
    bound: float | None
    floor: float | None
    date: str | None  # of the baseline
    repeat: str
    reason: str
    details: tuple[tuple[str, Any], ...] = ()  # further fields of the JSON document

    def data(self) -> dict[str, Any]:
        """Return the verdict for a JSON document."""
        return {
            "subject": self.subject,
            "metric": self.metric,
            "unit": self.unit,
            "answer": self.answer.value,
            "runs": self.runs,
            "median": self.median,
            "bound": self.bound,
            "floor": self.floor,
            "baseline": self.date,
            "repeat": self.repeat,
            "reason": self.reason,
            **dict(self.details),
        }

    def sentence(self) -> str:
        """Return the verdict as a sentence."""
        return (
            f"{self.subject} {self.metric}: {self.answer.value}: {self.reason}; median {self._shown(self.median)} of "
            f"{self.runs} runs, bound {self._shown(self.bound)}, floor {self._shown(self.floor)}, baseline of "
            f"{self.date or 'no day'}; repeat with `{self.repeat}`"
        )

    def _shown(self, value: float | None) -> str:
        return "unknown" if value is None else f"{value:.6g} {self.unit}"


@dataclass(frozen=True)
class SpeedReport:
    """All verdicts of a comparison, and the results that did not count."""

    verdicts: tuple[SpeedVerdict, ...]
    uncounted: tuple[UncountedRow, ...]

    @property
    def answer(self) -> SpeedAnswer:
        """Return the answer of all: one failure fails, and nothing passes without every verdict."""
        answers = {one.answer for one in self.verdicts}
        if SpeedAnswer.FAILS in answers:
            return SpeedAnswer.FAILS
        return SpeedAnswer.PASSES if answers == {SpeedAnswer.PASSES} else SpeedAnswer.INCONCLUSIVE


def command(words: Iterable[str]) -> str:
    """Return a command line that a shell reads as these words."""
    return shlex.join(words)


def why_uncounted(uncounted: Sequence[UncountedRow], shown: int = 2) -> str:
    """Return the reasons why results did not count, the most frequent first; empty if all did."""
    reasons: dict[str, int] = {}
    for row in uncounted:
        reasons[row.why] = reasons.get(row.why, 0) + 1
    named = sorted(reasons, key=lambda why: (-reasons[why], why))
    return "; ".join(f"{reasons[why]} not counted: {why}" for why in named[:shown])
