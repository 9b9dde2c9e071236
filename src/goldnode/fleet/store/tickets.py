"""Tickets of broken hardware in the store: their log is their state.

A node and finding have one open ticket at most: what comes later is a comment of it. A ticket is a line of
the log before anything is sent; the outbox of events delivers that line (goldnode.fleet.events.ticket_delivery).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from sqlalchemy import Connection

from goldnode.core.errors import nearest
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.log import LogLine, append, entries

# Lines of tickets have this in the column `rollout`, which is indexed. No rollout can have such a name.
STREAM = "(tickets)"


@dataclass(frozen=True, slots=True)
class TicketPart:
    """A part of a node, as a capture had it. `slot` is its PCI address; empty for the machine itself.

    `serial` and `identity` (UUID of a GPU) are None where the capture lacks them.
    """

    kind: str
    slot: str
    serial: str | None = None
    identity: str | None = None
    model: str | None = None
    part_number: str | None = None
    firmware: str | None = None

    @property
    def shown(self) -> str:
        """Return the part as a person reads it."""
        name = f"serial {self.serial}" if self.serial else self.identity or "without an identity"
        return f"{self.kind} {self.slot} ({name})" if self.slot else f"{self.kind} ({name})"


@dataclass(frozen=True, slots=True)
class TicketRequest:
    """A wish for a ticket. `key` names its cause: the same key twice is one line.

    `parts`: the parts that the finding is about. `inventory`: all parts of the node then, by which a swap is
    recognised. `bundle`: name and SHA-256 of the RMA bundle; empty without one.
    """

    node: str
    finding: str
    why: str
    key: str
    node_class: str | None = None
    simulated: bool | None = None
    parts: tuple[TicketPart, ...] = ()
    inventory: tuple[TicketPart, ...] = ()
    text: str = ""
    bundle: str = ""
    bundle_sha256: str = ""


@dataclass(frozen=True, slots=True)
class TicketComment:
    """A comment of a ticket."""

    at: float
    who: str
    text: str
    key: str


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket. `closed_at` is None while it is open."""

    id: str
    request: TicketRequest
    opened_at: float
    who: str
    comments: tuple[TicketComment, ...] = ()
    closed_at: float | None = None
    closed_why: str = ""

    @property
    def open(self) -> bool:
        """Return whether it is open."""
        return self.closed_at is None


@dataclass
class TicketRecord:
    """All tickets, as far as the log was read."""

    tickets: dict[str, Ticket] = field(default_factory=dict)
    seq: int = 0

    def read(self, connection: Connection) -> TicketRecord:
        """Apply the lines since the last one."""
        for row in entries(connection, rollout=STREAM, after=self.seq):
            self.seq = row["seq"]
            self._apply(json.loads(row["content"]), row["at"], row["who"])
        return self

    def _apply(self, content: Mapping[str, Any], at: float, who: str) -> None:
        action, name = content.get("action"), str(content.get("ticket"))
        if action == "OpenTicket":
            self.tickets[name] = Ticket(name, _request(content["request"]), at, who)
            return
        ticket = self.tickets.get(name)
        if ticket is None:
            return  # of a later version
        if action == "CommentTicket":
            comment = TicketComment(at, who, content["text"], content["key"])
            self.tickets[name] = replace(ticket, comments=(*ticket.comments, comment))
        elif action == "CloseTicket":
            self.tickets[name] = replace(ticket, closed_at=at, closed_why=content["reason"])

    def of(self, node: str, finding: str) -> Ticket | None:
        """Return the open ticket of a node and finding."""
        return next(
            (
                one
                for one in self.tickets.values()
                if one.open and (one.request.node, one.request.finding) == (node, finding)
            ),
            None,
        )

    def by_key(self, key: str) -> Ticket | None:
        """Return the ticket that this cause has opened, or that has a comment of it."""
        return next(
            (
                one
                for one in self.tickets.values()
                if key in (one.request.key, *(comment.key for comment in one.comments))
            ),
            None,
        )

    def named(self, name: str) -> Ticket:
        """Return a ticket by its id. Raises StoreError."""
        if name not in self.tickets:
            raise StoreError(
                f'the store has no ticket "{name}"',
                remedy=nearest(name, self.tickets) or "`goldnode fleet ticket list` lists them",
            )
        return self.tickets[name]


def _request(content: Mapping[str, Any]) -> TicketRequest:
    """Return a request from its JSON form. Ignore fields of a later version."""
    values = _known(TicketRequest, content)
    for name in ("parts", "inventory"):
        rows = values.get(name, ())
        values[name] = tuple(TicketPart(**_known(TicketPart, row)) for row in rows)
    return TicketRequest(**values)


def _known(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in content.items() if name in names}


def read(connection: Connection) -> TicketRecord:
    """Return all tickets of the store."""
    return TicketRecord().read(connection)


def open_ticket(
    connection: Connection, request: TicketRequest, who: str, now: float
) -> tuple[str, bool]:
    """Open a ticket in the transaction, or comment on the one that its node and finding have.

    Return the id of the ticket, and whether a line was written: the same `key` twice writes none, also where
    the ticket has been closed since.
    """
    record = read(connection)
    known = record.by_key(request.key)
    if known is not None:
        return known.id, False
    ticket = record.of(request.node, request.finding)
    if ticket is not None:
        text = f"again: {request.why}"
        if request.bundle:
            text += f"; bundle {request.bundle}, SHA-256 {request.bundle_sha256}"
        _comment(connection, ticket, text, request.key, (who, now))
        return ticket.id, True
    name = identity(request.node, request.finding, request.key)
    content = {
        "action": "OpenTicket",
        "ticket": name,
        "node": request.node,
        "class": request.node_class,
        "simulated": request.simulated,
        "request": asdict(request),
    }
    append(connection, _line(name, content, who, now))
    return name, True


def comment(
    connection: Connection, ticket: str, text: str, key: str, author: tuple[str, float]
) -> bool:
    """Add a comment, once for a `key`. Return whether it is new. Raises StoreError for an unknown ticket.

    :param author: who writes it, and the time now.
    """
    one = read(connection).named(ticket)
    if any(key == known.key for known in one.comments):
        return False
    _comment(connection, one, text, key, author)
    return True


def close(connection: Connection, ticket: str, reason: str, who: str, now: float) -> bool:
    """Close a ticket. Return whether it was open. Raises StoreError for an unknown one."""
    one = read(connection).named(ticket)
    if not one.open:
        return False
    content = {
        "action": "CloseTicket",
        "ticket": ticket,
        "node": one.request.node,
        "class": one.request.node_class,
        "simulated": one.request.simulated,
        "reason": reason,
    }
    append(connection, _line(ticket, content, who, now))
    return True


def _comment(
    connection: Connection, ticket: Ticket, text: str, key: str, author: tuple[str, float]
) -> None:
    content = {
        "action": "CommentTicket",
        "ticket": ticket.id,
        "node": ticket.request.node,
        "class": ticket.request.node_class,
        "simulated": ticket.request.simulated,
        "text": text,
        "key": key,
    }
    append(connection, _line(ticket.id, content, *author))


def _line(name: str, content: Mapping[str, Any], who: str, now: float) -> LogLine:
    return LogLine(
        now, who=who, action=content["action"], subject=name, content=content, rollout=STREAM
    )


def identity(*cause: str) -> str:
    """Return the id of a ticket: a word that trackers take as a label."""
    return f"gn-{hashlib.sha256(json.dumps(cause).encode()).hexdigest()[:12]}"


def repairs_of(tickets: Sequence[Ticket], names: frozenset[str], since: float) -> list[Ticket]:
    """Return the tickets since a time that blame a part with one of these identities or serial numbers."""
    return [
        one
        for one in tickets
        if one.opened_at >= since
        and any({part.serial, part.identity} & names for part in one.request.parts)
    ]
