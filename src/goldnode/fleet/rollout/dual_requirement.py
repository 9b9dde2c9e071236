"""Answer of the requirement `dual`: the report of a dual run between the two states of a rollout.

Only a report of these states, that is not too old, passes or fails. Any other one is unknown.
"""

from __future__ import annotations

from datetime import UTC, datetime

from goldnode.documents.dual import DualDocument
from goldnode.documents.rollout import RolloutDual, seconds
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import Answer

_AHEAD = 300.0  # seconds that clocks may differ
_ANSWERS = {"pass": Answer.PASSES, "fail": Answer.FAILS, "unknown": Answer.UNKNOWN}


class NoReportError(Exception):
    """There is no report that answers, and why."""


def answer(
    report: DualDocument, item: RolloutDual, settings: RolloutSettings, now: float, verified: bool
) -> tuple[Answer, str]:
    """Return the answer of a dual run, and why. Raises NoReportError.

    :param verified: the signature of the report was verified.
    """
    for side, state, wanted in (
        ("a", report.a.state, settings.origin),
        ("b", report.b.state, settings.target),
    ):
        if state != wanted:
            raise NoReportError(
                f"side {side} of the report was recorded in {state or 'no known state'}, not in {wanted}"
            )
    if report.simulated:
        raise NoReportError("the report is of simulated hardware")
    age = now - _moment(report.b.started)
    if age > seconds(item.max_age):
        raise NoReportError(
            f"side b was recorded at {report.b.started}, longer ago than {item.max_age}"
        )
    if age < -_AHEAD:
        raise NoReportError(f"side b was recorded at {report.b.started}, in the future")
    reason = next(iter(report.reasons), "the report has no reason")
    label = "" if verified else "its signature is not verified (no fleet.public_key); "
    return _ANSWERS[report.answer], f"{label}{report.a.name} and {report.b.name}: {reason}"


def _moment(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise NoReportError(f"{text} is no time") from None
