"""Return from repair: what the captures since a ticket show of its node, and who may close it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from goldnode.core.site import SiteTickets
from goldnode.fleet.control.part_offenders import RepeatOffender, offenders, sighting, ticket_part
from goldnode.fleet.shared import part_places
from goldnode.fleet.shared.part_places import ChangeKind, PartChange, PartSighting
from goldnode.fleet.store.tickets import Ticket


@dataclass(frozen=True)
class TicketReturn:
    """State of the node of a ticket by its captures. `captured` is None while none has come since."""

    ticket: Ticket
    captured: datetime | None
    changes: tuple[PartChange, ...] = ()
    machine: bool | None = False  # the whole machine is another one; None: not known
    offenders: tuple[RepeatOffender, ...] = ()

    @property
    def news(self) -> list[str]:
        """Return what is different, and what the blamed parts are now, as sentences."""
        if self.captured is None:
            return []
        rows = []
        if self.machine:
            rows.append("the whole machine was replaced")
        blamed = {(part.kind, part.slot) for part in self.ticket.request.parts}
        for change in self.changes:
            if change.kind is not ChangeKind.SAME or change.slot in blamed:
                rows.append(_sentence(change))
        return rows

    @property
    def key(self) -> str:
        """Return the key of a comment with these news: the same news are one comment."""
        return f"return {self.ticket.id} {'; '.join(self.news)}"


def returned(
    ticket: Ticket,
    rows: Sequence[PartSighting],
    tickets: Sequence[Ticket],
    settings: SiteTickets,
    now: float,
) -> TicketReturn:
    """Return what the captures after a ticket show.

    :param rows: sightings of the node of the ticket.
    """
    node = ticket.request.node
    opened = datetime.fromtimestamp(ticket.opened_at, UTC).replace(tzinfo=None)
    after = [one for one in part_places.shown(rows, node) if one.last > opened]
    if not after:
        return TicketReturn(ticket, None)
    before = [sighting(part, ticket) for part in ticket.request.inventory]
    # A kind that the ticket has no part of, such as a network interface, is no news of it.
    kinds = {part.kind for part in before}
    changes = part_places.compare(before, [one for one in after if one.kind in kinds])
    repeated = offenders(tickets, after, settings, now)
    return TicketReturn(
        ticket,
        max(one.last for one in after),
        tuple(changes),
        part_places.machine_replaced(changes),
        tuple(repeated),
    )


def _sentence(change: PartChange) -> str:
    old = ticket_part(change.before).shown if change.before is not None else ""
    new = ticket_part(change.after).shown if change.after is not None else ""
    return {
        ChangeKind.SAME: f"{old} is the same part as before",
        ChangeKind.REPLACED: f"{old} was replaced by {new}",
        ChangeKind.MOVED: f"{old} is in another slot now: {new}",
        ChangeKind.ABSENT: f"{old} is not seen: it was removed, or does not answer",
        ChangeKind.NEW: f"{new} is new",
        ChangeKind.UNKNOWN: f"{old}: whether {new} is the same part is unknown",
    }[change.kind]
