"""Parts of a node by tickets and captures, and parts that were blamed too often: repeat offenders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from goldnode.core.site import SiteTickets
from goldnode.fleet.shared.part_places import MACHINE, PartSighting, identities
from goldnode.fleet.store.tickets import Ticket, TicketPart

DAY = 86400.0


@dataclass(frozen=True)
class RepeatOffender:
    """A part of a node, and the tickets that blame it."""

    part: PartSighting
    tickets: tuple[Ticket, ...]

    def sentence(self, settings: SiteTickets) -> str:
        """Return why its node is not returned."""
        names = ", ".join(ticket.id for ticket in self.tickets)
        return (
            f"{ticket_part(self.part).shown} has {len(self.tickets)} tickets within {settings.offender_days:g} days "
            f"({names}): a repeat offender"
        )


def offenders(
    tickets: Iterable[Ticket], parts: Sequence[PartSighting], settings: SiteTickets, now: float
) -> list[RepeatOffender]:
    """Return the parts with `offender_repairs` tickets or more within `offender_days`, in any node."""
    recent = [one for one in tickets if one.opened_at > now - settings.offender_days * DAY]
    rules = identities(parts)
    rows = []
    for part in parts:
        names = rules.names(part)
        own = tuple(one for one in recent if names & blamed(one))
        if len(own) >= settings.offender_repairs:
            rows.append(RepeatOffender(part, own))
    return rows


def blamed(ticket: Ticket) -> frozenset[str]:
    """Return the serial numbers and UUIDs of the parts that a ticket is about."""
    rules = identities(sighting(part, ticket) for part in ticket.request.inventory)
    names = (rules.names(sighting(part, ticket)) for part in ticket.request.parts)
    return frozenset().union(*names)


def sighting(part: TicketPart, ticket: Ticket) -> PartSighting:
    """Return a part of a ticket as a sighting at the time of the ticket."""
    at = datetime.fromtimestamp(ticket.opened_at, UTC).replace(tzinfo=None)
    return PartSighting(
        ticket.request.node,
        part.kind,
        part.slot,
        part.serial,
        part.identity,
        first=at,
        last=at,
        model=part.model,
        part_number=part.part_number,
        firmware=part.firmware,
    )


def ticket_part(part: PartSighting) -> TicketPart:
    """Return a sighting as a part of a ticket."""
    return TicketPart(
        part.kind,
        part.slot,
        part.serial,
        part.identity,
        part.model,
        part_number=part.part_number,
        firmware=part.firmware,
    )


def parts_of(capture: Mapping[str, Any], node: str, at: float) -> list[PartSighting]:
    """Return machine and GPUs of one capture. Values with a fault are None."""
    when = datetime.fromtimestamp(at, UTC).replace(tzinfo=None)
    simulated = capture.get("simulated") is True
    product = _object(_object(capture.get("identity")).get("product"))
    machine = ("serial", "", "name", "board", "bios_version")
    rows = [_part(node, (MACHINE, ""), product, machine, when)]
    gpus = capture.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else []:
        slot = _text(_object(gpu), "address")
        if slot:
            names = ("serial", "uuid", "name", "board_part", "vbios")
            rows.append(_part(node, ("gpu", slot), _object(gpu), names, when))
    return [replace(row, simulated=simulated) for row in rows]


def _part(
    node: str,
    place: tuple[str, str],
    row: Mapping[str, Any],
    names: Sequence[str],
    when: datetime,
) -> PartSighting:
    serial, identity, model, part_number, firmware = (_text(row, name) for name in names)
    return PartSighting(
        node,
        *place,
        serial,
        identity,
        first=when,
        last=when,
        model=model,
        part_number=part_number,
        firmware=firmware,
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    return value if isinstance(value, str) and value else None
