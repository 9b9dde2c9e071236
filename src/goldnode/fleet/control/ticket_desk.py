"""The desk of tickets: gathers what a repair needs, and opens the ticket of a case in the store, once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldnode.core.site import Site
from goldnode.fleet.control.part_offenders import offenders, parts_of
from goldnode.fleet.control.ticket_gather import read_object
from goldnode.fleet.rollout.ladder import RepairCase
from goldnode.fleet.store import tickets
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.repairs import OWNER
from goldnode.fleet.store.tickets import TicketRequest

Gather = Callable[[RepairCase, str], TicketRequest]


@dataclass(frozen=True)
class StoreTicketDesk:
    """A TicketDesk over the store. `gather` returns the request of a case for a key; it may take minutes."""

    store: StoreDatabase
    gather: Gather
    clock: Callable[[], float] = time.time

    def open(self, case: RepairCase) -> str:
        """See TicketDesk."""
        key = case_key(case)
        with self.store.read() as connection:
            # Asked first: the evidence of a ticket that is there already is not gathered again.
            known = tickets.read(connection).by_key(key)
        if known is not None:
            return known.id
        request, now = self.gather(case, key), self.clock()
        return self.store.run(
            lambda connection: tickets.open_ticket(connection, request, OWNER, now)
        )[0]


def case_key(case: RepairCase) -> str:
    """Return the key of the ticket of a case."""
    return f"case {case.node} {case.opened_at!r}"


def plain_request(case: RepairCase, key: str) -> TicketRequest:
    """Return a request with what the case itself has."""
    return TicketRequest(case.node, case.finding, case.why, key)


@dataclass(frozen=True)
class NodeOffenders:
    """Repeat offenders among the parts that the evidence of a node shows."""

    site: Site
    store: StoreDatabase
    clock: Callable[[], float] = time.time

    def why(self, node: str) -> str:
        """Return why nothing but a person returns a node; empty if something may."""
        settings, now = self.site.tickets, self.clock()
        with self.store.read() as connection:
            record = tickets.read(connection)
        if len(record.tickets) < settings.offender_repairs:
            return ""
        capture = newest_capture(Path(self.site.ladder.evidence) / node)
        parts = parts_of(capture, node, now) if capture is not None else []
        rows = offenders(record.tickets.values(), parts, settings, now)
        return rows[0].sentence(settings) if rows else ""


def newest_capture(place: Path) -> dict[str, Any] | None:
    """Return the newest capture of the evidence of a node; None without one."""
    for folder in sorted(place.glob("*"), reverse=True):
        capture = read_object(folder / "capture.json")
        if capture is not None:
            return capture
    return None
