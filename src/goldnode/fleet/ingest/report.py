"""One report of a node: its capture, and its verdict. Read from bytes that anybody may have written."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from pydantic_core import from_json

from goldnode.fleet.ingest.class_names import NO_CLASS, is_class
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.text import clean
from goldnode.node.ground.json_lines import as_dict, as_list
from goldnode.node.ground.verdict_files import LARGEST_REPORT, REPORT

_MOST_ELEMENTS = 200_000  # commas, which bounds the memory of the parsed document
AHEAD = timedelta(minutes=10)  # a clock of a node may be this much ahead of the controller's
EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)  # a clock without a battery starts before
CAPTURE, VERDICT = "goldnode.capture/1", "goldnode.verdict/1"
STATUSES = ("healthy", "degraded", "drain", "could_not_check", "not_this_class")
SOURCES = ("ansible", "http")  # beside `directory`
INBOX_SOURCE = "inbox"
GATES = ("report", "drain", "block")
_MOST_REASONS, _LONGEST_REASON = 32, 500  # of a gate
_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


@dataclass(frozen=True)
class ReportOrigin:
    """Where a report comes from, and the values that only the controller knows."""

    source: str = "directory"  # or one of SOURCES; INBOX_SOURCE: as the report names it
    node: str | None = None
    class_: str | None = None
    cohort: str | None = None
    engine: str | None = None


@dataclass(frozen=True)
class NodeReport:
    """A report with its types checked."""

    node: str
    class_: str
    time: datetime
    origin: ReportOrigin
    capture: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    digest: str  # sha256 of the bytes
    gate: Mapping[str, Any] | None = None  # mode, open, reasons, drained

    @cached_property
    def day(self) -> str:
        """Day of the capture, UTC."""
        return self.time.date().isoformat()

    @cached_property
    def milliseconds(self) -> int:
        """Time of the capture since the epoch."""
        return int(self.time.timestamp() * 1000)


def attached(report: NodeReport, verdict: Mapping[str, Any] | None, name: str) -> NodeReport:
    """Return a report with the verdict that is beside it. Raise RefusedReportError for one of another boot."""
    if verdict is None:
        return report
    if report.verdict is not None:
        raise RefusedReportError(
            f"{name} has a verdict, and there is one beside it", remedy="remove one of them"
        )
    return _checked(replace(report, verdict=verdict))


def brief(report: NodeReport) -> NodeReport:
    """Return a report without its capture, but for whether it is simulated: a small part of the memory."""
    simulated = report.capture.get("simulated") is True
    verdict = report.verdict
    if verdict is not None:
        declared = [row for row in as_list(verdict.get("findings")) if isinstance(row, dict)]
        findings = [{key: row.get(key) for key in ("id", "outcome")} for row in declared]
        verdict = {"status": verdict.get("status"), "findings": findings}
    return replace(report, capture={"simulated": simulated}, verdict=verdict)


def _checked(report: NodeReport) -> NodeReport:
    """Return a report whose verdict is one, and of the boot of its capture. Raise RefusedReportError."""
    verdict, identity = report.verdict, _identity(report.capture)
    if verdict is None:
        return report
    if verdict.get("schema") != VERDICT:
        raise RefusedReportError(f"its verdict is not of schema {VERDICT}", remedy=_RECORD)
    if verdict.get("status") not in STATUSES:
        raise RefusedReportError("its verdict has no known status", remedy=_RECORD)
    boots = (verdict.get("boot_identity"), identity.get("boot_identity"))
    if all(isinstance(boot, str) for boot in boots) and boots[0] != boots[1]:
        raise RefusedReportError("its verdict is of another boot", remedy="fetch both again")
    given = report.origin.class_
    return replace(report, class_=_class(given, verdict, identity))


def _identity(capture: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_dict(capture.get("identity"))


def report_of(
    document: dict[str, Any], data: bytes, origin: ReportOrigin, now: datetime
) -> NodeReport:
    """Return the report in a document of these bytes: a capture, or an object with `capture` and `verdict`.

    Raise RefusedReportError for anything else, and for a time that cannot be right.
    """
    schema = document.get("schema")
    if schema == CAPTURE:
        capture, verdict = document, None
    elif schema == REPORT:
        capture, verdict = document.get("capture"), document.get("verdict")  # type: ignore[assignment]
        origin = _named(document, origin)
    else:
        raise RefusedReportError(
            f"schema {str(schema)[:60]!r}, not {CAPTURE} or {REPORT}", remedy=_RECORD
        )
    if not isinstance(capture, dict) or capture.get("schema") != CAPTURE:
        raise RefusedReportError(f"no capture of schema {CAPTURE}", remedy=_RECORD)
    if verdict is not None and not isinstance(verdict, dict):
        raise RefusedReportError("its verdict is not an object", remedy=_RECORD)
    gate = _gate(document.get("gate")) if schema == REPORT else None
    identity = _identity(capture)
    return _checked(
        NodeReport(
            node_name(origin.node or identity.get("hostname")),
            class_=_class(origin.class_, verdict, identity),
            time=moment(capture.get("time"), now),
            origin=origin,
            capture=capture,
            verdict=verdict,
            digest=hashlib.sha256(data).hexdigest(),
            gate=gate,
        )
    )


def _gate(value: Any) -> dict[str, Any] | None:
    """Return the state of a gate with its types checked; None for none. Raise RefusedReportError for another form."""
    if value is None:
        return None
    reasons = as_dict(value).get("reasons")
    if (
        not isinstance(reasons, list)
        or value.get("mode") not in GATES
        or not isinstance(value.get("open"), bool)
        or not isinstance(value.get("drained"), bool | None)
    ):
        raise RefusedReportError("its gate is not one", remedy=_RECORD)
    shown = [
        clean(one[:_LONGEST_REASON])[:_LONGEST_REASON]
        for one in reasons[:_MOST_REASONS]
        if isinstance(one, str)
    ]
    return {
        "mode": value["mode"],
        "open": value["open"],
        "reasons": shown,
        "drained": value.get("drained"),
    }


_RECORD = "record it with `goldnode-node capture`"


def load(data: bytes) -> dict[str, Any]:
    """Return the JSON object in these bytes. Raise RefusedReportError for anything else, and for what is too large."""
    if len(data) > LARGEST_REPORT:
        raise too_large()
    if data.count(b",") > _MOST_ELEMENTS:
        raise RefusedReportError(f"more than {_MOST_ELEMENTS} elements", remedy=_RECORD)
    try:
        content = from_json(data, allow_inf_nan=False)
    except ValueError as problem:
        raise RefusedReportError(f"not JSON: {clean(str(problem)[:200])}", remedy=_RECORD) from None
    if not isinstance(content, dict):
        raise RefusedReportError("not a JSON object", remedy=_RECORD)
    return content


def too_large() -> RefusedReportError:
    """Return the refusal of a report that is too large."""
    return RefusedReportError(
        f"larger than {LARGEST_REPORT >> 20} MiB", remedy="give one capture in each file"
    )


def _named(document: Mapping[str, Any], origin: ReportOrigin) -> ReportOrigin:
    """Return the origin with the names of a report, where the controller gave none."""
    names = {}
    for key, name in (
        ("node", "node"),
        ("class", "class_"),
        ("cohort", "cohort"),
        ("engine", "engine"),
    ):
        value = document.get(key)
        if value is not None and (not isinstance(value, str) or len(value) > 255):
            raise RefusedReportError(f"its {key} is not a text", remedy=_RECORD)
        names[name] = getattr(origin, name) or (clean(value) if value else None)
    # Only what this program has put into the inbox may name another source than the directory.
    source = document.get("source") if origin.source == INBOX_SOURCE else None
    return ReportOrigin(source if source in SOURCES else origin.source, **names)


def node_name(name: Any) -> str:
    """Return the name of a node. Raise RefusedReportError for what cannot be one."""
    if not isinstance(name, str) or not _NODE.fullmatch(name):
        shown = clean(name[:60]) if isinstance(name, str) else None
        raise RefusedReportError(
            "no name of a node" if shown is None else f"{shown!r} is not a name of a node",
            remedy="give a capture that was recorded without --anonymous, or name the node in the report",
        )
    return name


def _class(
    given: str | None, verdict: Mapping[str, Any] | None, identity: Mapping[str, Any]
) -> str:
    for name in (given, (verdict or {}).get("class"), identity.get("class")):
        if isinstance(name, str) and name:
            if not is_class(name):
                raise RefusedReportError(
                    f"{clean(name[:60])!r} is not a name of a class", remedy=_RECORD
                )
            return name
    return NO_CLASS


def moment(text: Any, now: datetime) -> datetime:
    """Return the time of a capture. Raise RefusedReportError for another form, and for a time that cannot be right."""
    if not isinstance(text, str) or not _MOMENT.fullmatch(text):
        raise RefusedReportError("its time is not of the form 2026-11-26T10:00:00Z", remedy=_RECORD)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise RefusedReportError(f"its time {text} does not exist", remedy=_RECORD) from None
    if parsed > now + AHEAD:
        raise RefusedReportError(
            f"its time {text} is after that of this machine, {now:%Y-%m-%dT%H:%M:%SZ}",
            remedy="correct the clock of the node, or of this machine",
        )
    if parsed < EARLIEST:
        raise RefusedReportError(
            f"its time {text} is before {EARLIEST:%Y}", remedy="correct the clock of the node"
        )
    return parsed
