"""One document of an ingest: a capture, a report, the changes of one, or a canary result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from goldnode.fleet.ingest import bases, results
from goldnode.fleet.ingest.anonymous import FleetNames
from goldnode.fleet.ingest.forms import CaptureForms, FormedCapture
from goldnode.fleet.ingest.quick import ArrivedBase, QuickBases, QuickReport, quick
from goldnode.fleet.ingest.report import (
    INBOX_SOURCE,
    NodeReport,
    ReportOrigin,
    attached,
    brief,
    load,
    report_of,
)
from goldnode.fleet.ingest.wire import WireChanges, applied, changes_of
from goldnode.fleet.ingest.write import PartWriter
from goldnode.node.ground.changes import CHANGES


@dataclass(frozen=True)
class CaptureArrival:
    """The result of one document: whether it was new, and its report without the capture (`report.brief`); None for a canary result."""

    added: bool
    report: NodeReport | None = None


class CaptureArrivals:
    """Adds documents to the parts of an ingest."""

    def __init__(
        self, out: PartWriter, origin: ReportOrigin, names: FleetNames | None, now: datetime
    ) -> None:
        self._data, self._out, self._origin = out.directory, out, origin
        self._names, self._now = names, now
        self._quick = QuickBases(self._data, out.exact)
        self._forms = CaptureForms()

    def add(self, data: bytes, verdict: Mapping[str, Any] | None, name: str) -> CaptureArrival:
        """Add a document of these bytes. Raise RefusedReportError for one that cannot be stored.

        :param verdict: the verdict beside it.
        :param name: of its file, for messages.
        """
        formed = None
        # Digests in place of names are of the whole capture.
        for formed in self._forms.read(data) if self._names is None else ():
            arrival = self._formed(formed, data, verdict, name)
            if arrival is not None:
                return arrival
        content = load(data)
        schema = content.get("schema")
        if schema == results.SCHEMA:
            result = results.parse(content, data, self._origin.class_, self._now)
            return CaptureArrival(
                self._out.add_result(self._names.result(result) if self._names else result)
            )
        if schema == CHANGES:
            return self._changes(changes_of(content), data)
        report = attached(report_of(content, data, self._origin, self._now), verdict, name)
        arrival = self._report(report, self._is_base(content))
        rows = self._out.last_rows(report) if self._names is None and arrival.added else None
        if rows is not None:
            self._forms.learn(data, content, rows, formed)
        return arrival

    def _is_base(self, content: Mapping[str, Any]) -> bool:
        """Return whether changes from a report may follow: only what the service has put into the inbox is a base (bases.py)."""
        return self._origin.source == INBOX_SOURCE and isinstance(content.get("base"), str)

    def _formed(
        self, formed: FormedCapture, data: bytes, verdict: Mapping[str, Any] | None, name: str
    ) -> CaptureArrival | None:
        """Add a capture of a known form; return None for one that takes the long way."""
        content = formed.document
        report = attached(report_of(content, data, self._origin, self._now), verdict, name)
        whole = self._is_base(content)
        added = self._out.add_formed(report, formed, whole)
        rows = self._out.last_rows(report) if added and whole else None
        if rows is not None and self._origin.class_ is None:
            own = ArrivedBase(content["base"], formed.content, formed.model.layout)
            self._quick.make_arrived(own, report, rows)
        return None if added is None else CaptureArrival(added, brief(report))

    def _report(self, report: NodeReport, whole: bool = False) -> CaptureArrival:
        # Events have no names either.
        report = self._names.report(report) if self._names else report
        return CaptureArrival(self._out.add(report, whole), brief(report))

    def _changes(self, changes: WireChanges, data: bytes) -> CaptureArrival:
        """Add a report by its changed rows if that can be, else make the whole report."""
        inbox = self._origin.source == INBOX_SOURCE
        source = changes.source if inbox and changes.source else "directory"
        rows = None
        # A class that the command names, and digests in place of names, are of the whole report.
        simple = self._names is None and self._origin.class_ is None
        if simple:
            rows = self._quick.load(changes.node, changes.base)
        if rows is not None:
            short = quick(rows, QuickReport(changes, data, source, self._now), self._out.exact)
            added = None if short is None else self._out.add_quick(short)
            if short is not None and added is not None:
                return CaptureArrival(added, short.report)
        report = whole_report(self._data, changes, self._origin, self._now, data)
        arrival = self._report(report)
        if simple and rows is None:
            self._make_rows(changes)
        return arrival

    def _make_rows(self, changes: WireChanges) -> None:
        """Store the rows of a base, so that the next changes are quick, if its capture is stored whole."""
        base = bases.held(self._data, changes.node, changes.base)
        report = report_of(base | {"node": changes.node}, b"", self._origin, self._now)
        own = self._out.base(report)
        if own is not None:
            self._quick.make(changes.base, base, report, own.packed)


def whole_report(
    data: Path, changes: WireChanges, origin: ReportOrigin, now: datetime, content: bytes
) -> NodeReport:
    """Return the report that changes make of their base. Raise RefusedReportError if they do not fit, or it is not held."""
    base = bases.held(data, changes.node, changes.base)
    return report_of(applied(base, changes), content, origin, now)
