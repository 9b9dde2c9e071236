"""Deliver events of tickets to a tracker: a record for each ticket, once, and its follow-ups as comments.

Intent → effect → outcome: the outbox has a line before a record or comment is sent, and the id of the record
after it. Where an answer was lost, the tracker is searched first. Its index may be late, so that the search
waits a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from goldnode.documents.event import EventDocument
from goldnode.fleet.events.hooks import EventHookError
from goldnode.fleet.events.outbox import Outbox, TrackerRecord
from goldnode.fleet.events.trackers import TicketText, Tracker

OPENED, COMMENTED, CLOSED = "ticket.opened", "ticket.commented", "ticket.closed"
KINDS = (OPENED, COMMENTED, CLOSED)
SETTLE = 60.0  # seconds in which a tracker may not show a new record to a search


def send(
    outbox: Outbox,
    name: str,
    tracker: Tracker,
    event: EventDocument,
    clock: Callable[[], float],
) -> None:
    """Deliver an event of a ticket to the tracker of a hook. Raises EventHookError; then it is delivered again."""
    ticket = str(event.details.get("ticket"))
    record = outbox.tracker(name, ticket)
    if event.kind == OPENED:
        if record is None or record.remote is None:
            _open(outbox, tracker, record, _new(name, event, ticket, clock()))
        return
    # A hook begins with the events after it was added: a ticket before that is not in its tracker.
    if record is None or record.remote is None:
        return
    text = TicketText(
        f"goldnode event {event.id}", f"Re: ticket {ticket}", f"{_label(event)}{event.text}"
    )
    begun = outbox.begin_comment(name, event.id, clock())
    if begun is not None:
        _settled(begun, clock())
        if tracker.commented(record.remote, text.mark):
            return
    tracker.comment(record.remote, text)


def _new(
    name: str, event: EventDocument, ticket: str, now: float
) -> tuple[TrackerRecord, TicketText]:
    return TrackerRecord(name, ticket, now), opening(event)


def _open(
    outbox: Outbox,
    tracker: Tracker,
    before: TrackerRecord | None,
    new: tuple[TrackerRecord, TicketText],
) -> None:
    record, text = new
    remote = None
    if before is not None:
        _settled(before.begun, record.begun)
        remote = tracker.find(text.mark)
    if remote is None:
        outbox.put_tracker(record)
        remote = tracker.create(text)
    outbox.put_tracker(replace(record, remote=remote.id, url=remote.url))


def _settled(begun: float, now: float) -> None:
    """Raise EventHookError while a search may not show what was sent. A clock that was set back does not wait for ever."""
    if 0 <= now - begun < SETTLE:
        raise EventHookError(
            f"an earlier answer of the tracker was lost; it is searched in {SETTLE - (now - begun):.0f} s"
        )


def opening(event: EventDocument) -> TicketText:
    """Return the text of a new ticket."""
    request: Mapping[str, Any] = event.details.get("request") or {}
    ticket = str(event.details.get("ticket"))
    parts = list(request.get("parts") or ())
    serial = next((part.get("serial") for part in parts if part.get("serial")), None)
    named = f" (serial {serial})" if serial else ""
    lines = [
        f"{_label(event)}Node {event.node} needs a repair.",
        f"Finding: {request.get('finding')}",
        f"Reason: {request.get('why')}",
    ]
    if event.node_class:
        lines.append(f"Class: {event.node_class}")
    lines += ["", *(_part(part) for part in parts)] if parts else []
    if request.get("text"):
        lines += ["", str(request["text"])]
    if request.get("bundle"):
        lines += ["", f"Bundle: {request['bundle']}", f"SHA-256: {request['bundle_sha256']}"]
    lines += ["", f"Ticket of goldnode: {ticket}"]
    summary = " ".join(f"{_label(event)}{event.node}: {request.get('finding')}{named}".split())
    return TicketText(ticket, summary, "\n".join(lines))


def _part(part: Mapping[str, Any]) -> str:
    fields = {
        "serial": "serial",
        "UUID": "identity",
        "part number": "part_number",
        "firmware": "firmware",
    }
    shown = [str(part.get("model") or ""), *(
        f"{label} {part[name]}" for label, name in fields.items() if part.get(name)
    )]  # fmt: skip
    return f"Part: {part.get('kind')} {part.get('slot') or ''}: {', '.join(one for one in shown if one)}"


def _label(event: EventDocument) -> str:
    return "SIMULATED: " if event.simulated and not event.text.startswith("SIMULATED") else ""
