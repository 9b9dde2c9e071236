"""Tickets in the store: one for each node and finding, each cause once, on both engines."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from tests.unit.fleet.store.fleets import NOW

from goldnode.fleet.events import store_log
from goldnode.fleet.store import log, tickets
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.tickets import TicketPart, TicketRecord, TicketRequest

PART = TicketPart("gpu", "0000:18:00.0", "165001", "GPU-1", "NVIDIA H100", "692-2G520", "96.00")


def request(key: str = "case n1 1.0", **more: object) -> TicketRequest:
    given: dict[str, object] = {
        "node": "n1",
        "finding": "gpu.lost",
        "why": "gpu.lost after power-cycle",
        "key": key,
        "node_class": "h100",
        "simulated": True,
        "parts": (PART,),
        "inventory": (PART,),
    }
    return TicketRequest(**{**given, **more})  # type: ignore[arg-type]


def opened(store: StoreDatabase, given: TicketRequest, now: float = NOW) -> tuple[str, bool]:
    return store.run(lambda connection: tickets.open_ticket(connection, given, "repair", now))


def record(store: StoreDatabase) -> TicketRecord:
    with store.read() as connection:
        return tickets.read(connection)


def test_ticket_is_opened_once_for_a_node_and_finding(store: StoreDatabase) -> None:
    first, new = opened(store, request())
    assert new
    assert opened(store, request()) == (first, False)
    assert opened(store, request("case n1 2.0", why="it came back")) == (first, True)
    assert opened(store, request("case n1 2.0")) == (first, False)
    (ticket,) = record(store).tickets.values()
    assert ticket.request == request()
    assert [comment.text for comment in ticket.comments] == ["again: it came back"]
    # Another finding, and another node, have tickets of their own.
    assert opened(store, request("k3", finding="pcie.width"))[0] != first
    assert opened(store, request("k4", node="n2"))[0] != first


def test_closed_ticket_is_not_opened_again_by_its_own_cause(store: StoreDatabase) -> None:
    first, _ = opened(store, request())
    assert store.run(lambda c: tickets.close(c, first, "the board was replaced", "ann", NOW + 1))
    assert not store.run(lambda c: tickets.close(c, first, "again", "ann", NOW + 2))
    assert opened(store, request()) == (first, False)
    later, new = opened(store, request("case n1 9.0"), NOW + 9)
    assert new
    assert later != first
    assert [one.open for one in record(store).tickets.values()] == [False, True]


def test_comment_is_written_once_for_its_key(store: StoreDatabase) -> None:
    name, _ = opened(store, request())
    for new in (True, False):
        written = store.run(
            lambda c: tickets.comment(c, name, "the board was replaced", "return 1", ("ann", NOW))
        )
        assert written is new
    with pytest.raises(StoreError, match='no ticket "gn-1"'):
        store.run(lambda c: tickets.comment(c, "gn-1", "text", "key", ("ann", NOW)))


def test_lines_are_events_of_their_node_with_its_label(store: StoreDatabase) -> None:
    name, _ = opened(store, request())
    store.run(lambda c: tickets.comment(c, name, "a board was ordered", "k", ("ann", NOW)))
    store.run(lambda c: tickets.close(c, name, "replaced", "ann", NOW))
    events, _ = store_log.read(store, 0)
    assert [(one.kind, one.severity, one.node, one.node_class) for one in events] == [
        ("ticket.opened", "warning", "n1", "h100"),
        ("ticket.commented", "info", "n1", "h100"),
        ("ticket.closed", "info", "n1", "h100"),
    ]
    assert all(one.simulated and one.rollout is None for one in events)
    assert events[0].text == (
        f"SIMULATED: n1 needs a repair, ticket {name}: gpu.lost: gpu.lost after power-cycle"
    )
    assert events[2].text == f"ticket {name} of n1 is closed: replaced"
    assert events[0].details["request"] == json.loads(json.dumps(asdict(request())))


def test_fields_of_a_later_version_are_ignored(store: StoreDatabase) -> None:
    content = {
        "action": "OpenTicket",
        "ticket": "gn-1",
        "request": {**asdict(request()), "later": 1, "parts": [{**asdict(PART), "later": 2}]},
    }
    line = log.LogLine(NOW, "later", "OpenTicket", "gn-1", content, tickets.STREAM)
    store.run(lambda connection: log.append(connection, line))
    assert record(store).tickets["gn-1"].request == request()
