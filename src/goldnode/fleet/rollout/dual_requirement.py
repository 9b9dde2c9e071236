"""Answer of the requirement `dual`: the report of a dual run between the two states of a rollout.

Only a report of these states, that is not too old, passes or fails. Any other file, and none, is unknown.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from goldnode.documents.dual import DualDocument
from goldnode.documents.rollout import RolloutDual, seconds
from goldnode.dual import signing
from goldnode.evidence import signed_file
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import Answer

_LARGEST = 256 << 20  # bytes of a report
_AHEAD = 300.0  # seconds that clocks may differ
_ANSWERS = {"pass": Answer.PASSES, "fail": Answer.FAILS, "unknown": Answer.UNKNOWN}


class NoReportError(Exception):
    """There is no report that answers, and why."""


def answer(
    item: RolloutDual, settings: RolloutSettings, wave: str, now: float, keys: Sequence[Path] = ()
) -> tuple[Answer, str]:
    """Return the answer of a dual run, and why. Raises NoReportError, and GoldnodeError for a wrong signature.

    :param keys: files of public keys, one of which must have signed the report. Empty: it is not verified.
    """
    found = _report(Path(item.report.replace("{wave}", wave)), keys)
    for side, state, wanted in (
        ("a", found.a.state, settings.origin),
        ("b", found.b.state, settings.target),
    ):
        if state != wanted:
            raise NoReportError(
                f"side {side} of the report was recorded in {state or 'no known state'}, not in {wanted}"
            )
    if found.simulated:
        raise NoReportError("the report is of simulated hardware")
    age = now - _moment(found.b.started)
    if age > seconds(item.max_age):
        raise NoReportError(
            f"side b was recorded at {found.b.started}, longer ago than {item.max_age}"
        )
    if age < -_AHEAD:
        raise NoReportError(f"side b was recorded at {found.b.started}, in the future")
    reason = found.reasons[0] if found.reasons else "the report has no reason"
    label = "" if keys else "its signature is not verified (no fleet.public_key); "
    return _ANSWERS[found.answer], f"{label}{found.a.name} and {found.b.name}: {reason}"


def _moment(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise NoReportError(f"{text} is no time") from None


def _report(path: Path, keys: Sequence[Path]) -> DualDocument:
    data = _content(path)
    if keys:
        envelope = signed_file.envelope_of(path)
        if not os.path.lexists(envelope):
            raise NoReportError(
                f"{path} is not signed; compare again with `goldnode dual compare --report --key`"
            )
        signed_file.check(_content(envelope), path, data, keys, signing.REPORT)
    try:
        return DualDocument.model_validate_json(data)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise NoReportError(
            f"{path} is no report of `goldnode dual compare`: {where}: {first['msg']}"
        ) from None


def _content(path: Path) -> bytes:
    """Return the content of a file. Raises NoReportError."""
    try:
        # Without waiting: the name could be a pipe that no program writes to.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NoReportError(f"{path} is no regular file")
            data = file.read(_LARGEST + 1)
    except OSError as problem:
        raise NoReportError(f"{path} cannot be read: {problem.strerror}") from None
    if len(data) > _LARGEST:
        raise NoReportError(f"{path} is larger than {_LARGEST} bytes")
    return data
