"""The outbox across kills: an event is delivered at least once, with one id, and a source is read neither twice nor with gaps."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.events.event_hooks import (
    NOW,
    Clock,
    Receiver,
    add,
    delivery,
    event,
    in_child,
    webhook,
)

from goldnode.fleet.events import deliver, hooks
from goldnode.fleet.events.deliver import BackgroundDelivery, EventDelivery, LogSource
from goldnode.fleet.events.event import FleetEvent
from goldnode.fleet.events.nodes import NodeState, observe
from goldnode.fleet.events.outbox import KEPT, Outbox, OutboxError


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def killed(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_between_delivery_and_place_repeats_the_event_with_its_id(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = delivery(tmp_path, chat=webhook(tmp_path, receiver.url))
    add(found, event(1), event(2))

    def work() -> None:
        monkeypatch.setattr(Outbox, "delivered", killed)
        found.deliver()

    assert in_child(work) == -signal.SIGKILL
    assert [one["node"] for one in receiver.events] == ["n1"]
    found.deliver()
    assert [one["node"] for one in receiver.events] == ["n1", "n1", "n2"]
    first, again, _ = receiver.requests
    assert first[2] == again[2], "the same bytes"
    assert first[1]["webhook-id"] == again[1]["webhook-id"]


def test_a_kill_before_the_delivery_loses_nothing(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = delivery(tmp_path, chat=webhook(tmp_path, receiver.url))
    add(found, event(1))

    def work() -> None:
        monkeypatch.setattr(hooks, "send", killed)
        found.deliver()

    assert in_child(work) == -signal.SIGKILL
    assert receiver.events == []
    found.deliver()
    assert [one["node"] for one in receiver.events] == ["n1"]


class Lines:
    """A log with numbered lines, from which a collection reads two at a time."""

    def __init__(self) -> None:
        self.last = 0

    def read(self, after: int) -> tuple[list[FleetEvent], int]:
        found = [event(number) for number in range(after + 1, min(after + 2, self.last) + 1)]
        return found, after + len(found)


def collecting(found: EventDelivery, lines: Lines) -> EventDelivery:
    found.log = LogSource("case", lambda: lines.last, lines.read)
    return found


STATEMENTS = range(1, 60, 6)


@pytest.mark.parametrize("number", STATEMENTS)
def test_a_collection_killed_at_any_statement_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lines = Lines()
    found = collecting(delivery(tmp_path, chat={"command": {"run": ["true"]}}), lines)
    found.collect()  # the log is known from here on
    lines.last = 5
    connect, count = sqlite3.connect, iter(range(1, 1000))

    def counted(*words: Any, **given: Any) -> sqlite3.Connection:
        opened: sqlite3.Connection = connect(*words, **given)
        opened.set_trace_callback(lambda text: killed() if next(count) == number else None)
        return opened

    def work() -> None:
        monkeypatch.setattr(sqlite3, "connect", counted)
        found.collect()

    end = in_child(work)
    assert end in (-signal.SIGKILL, 0)
    if number == STATEMENTS[0]:
        assert end == -signal.SIGKILL, "statements are counted"
    found.collect()
    events = found.outbox.events()
    assert [one.id for one in events] == [event(place).id for place in range(1, 6)]
    assert [one.seq for one in events] == [1, 2, 3, 4, 5]


def test_a_new_source_begins_at_its_end_and_a_new_hook_after_the_last_event(
    tmp_path: Path, receiver: Receiver
) -> None:
    lines = Lines()
    lines.last = 3
    found = collecting(delivery(tmp_path, first={"command": {"run": ["true"]}}), lines)
    assert found.collect() == 0
    lines.last = 4
    assert found.collect() == 1
    both: dict[str, Any] = {
        "first": {"command": {"run": ["true"]}},
        "second": webhook(tmp_path, receiver.url),
    }
    found = collecting(delivery(tmp_path, **both), lines)
    lines.last = 5
    found.collect()
    found.deliver()
    assert [one["node"] for one in receiver.events] == ["n5"]


def test_two_collections_add_each_event_once(tmp_path: Path) -> None:
    lines = Lines()
    hook: dict[str, Any] = {"chat": {"command": {"run": ["true"]}}}
    one, other = (collecting(delivery(tmp_path, **hook), lines) for _ in range(2))
    one.collect()
    lines.last = 2
    found, last = lines.read(0)
    other._add("log case", "0", found, str(last))
    assert one._add("log case", "0", found, str(last)) == 0, "the other one was first"
    assert len(one.outbox.events()) == 2


def test_a_hook_that_the_site_has_no_longer_is_forgotten(
    tmp_path: Path, receiver: Receiver
) -> None:
    found = delivery(tmp_path, old=webhook(tmp_path, "http://127.0.0.1:9"))
    add(found, event(1))
    found.deliver()
    found = delivery(tmp_path, chat=webhook(tmp_path, receiver.url))
    assert found.hooks().keys() == {"chat"}
    add(found, event(2))
    found.deliver()
    assert [one["node"] for one in receiver.events] == ["n2"]


def test_one_process_delivers_at_a_time(tmp_path: Path, receiver: Receiver) -> None:
    found = delivery(tmp_path, chat=webhook(tmp_path, receiver.url))
    add(found, event())
    with found.outbox.delivery() as mine:
        assert mine
        assert found.deliver() is None
    assert receiver.events == []
    assert found.deliver() is not None
    assert len(receiver.events) == 1


def test_old_events_go_when_every_hook_has_them(tmp_path: Path, receiver: Receiver) -> None:
    clock = Clock()
    waits = webhook(tmp_path, "http://127.0.0.1:9")
    found = delivery(tmp_path, clock, chat=webhook(tmp_path, receiver.url), waits=waits)
    add(found, event(1))
    clock.now += KEPT + 1
    found.deliver()
    assert len(found.outbox.events()) == 1, "a hook does not have it"
    found = delivery(tmp_path, clock, chat=webhook(tmp_path, receiver.url))
    found.deliver()
    assert found.outbox.events() == []
    add(found, event(2))
    assert found.outbox.events()[0].seq == 2, "a number is never used twice"


def test_an_outbox_that_cannot_be_used_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(OutboxError, match="cannot be used"):
        Outbox(tmp_path / "file/events.db").hooks(["a"])
    with (
        pytest.raises(OutboxError, match="cannot be used"),
        Outbox(tmp_path / "file/events.db").delivery(),
    ):
        pass
    (tmp_path / "other.db").write_text("no database, but long enough to be read as one" * 20)
    with pytest.raises(OutboxError, match="cannot be used"):
        Outbox(tmp_path / "other.db").hooks(["a"])
    found = Outbox(tmp_path / "events.db")
    found.hooks(["a"])
    with sqlite3.connect(found.file) as later:
        later.execute("PRAGMA user_version = 9")
    with pytest.raises(OutboxError, match="has version 9"):
        found.hooks()


def test_a_source_that_cannot_be_read_is_reported_once_and_holds_nothing(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = delivery(tmp_path, chat=webhook(tmp_path, receiver.url))

    def away() -> int:
        raise OutboxError("the store is away")

    found.log = LogSource("case", away, lambda after: ([], after))
    add(found, event())
    found.collect()
    found.collect()
    found.deliver()
    assert caplog.text.count("the store is away") == 1
    assert len(receiver.events) == 1
    found.log = LogSource("case", lambda: 0, lambda after: ([], after))
    found.collect()
    assert "can be read again" in caplog.text


def test_a_hook_that_hangs_does_not_hold_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    entered, release = threading.Event(), threading.Event()

    def hangs(*_: Any) -> None:
        entered.set()
        assert release.wait(60)

    monkeypatch.setattr(hooks, "send", hangs)
    monkeypatch.setattr(deliver, "_LAST_WORDS", 0.01)
    found = delivery(tmp_path, chat={"command": {"run": ["true"]}})
    add(found, event(1), event(2))
    background = BackgroundDelivery(found)
    background.wake()
    assert entered.wait(60)
    for _ in range(100):
        background.wake()
    background.close()  # returns, although the hook still has the first event
    assert found.outbox.hooks()["chat"].seq == 0
    release.set()
    background._thread.join(60)
    assert found.outbox.hooks()["chat"].seq == 1, "the second one is for the next delivery"


def test_the_last_events_are_delivered_before_a_controller_ends(
    tmp_path: Path, receiver: Receiver
) -> None:
    found = delivery(tmp_path, chat=webhook(tmp_path, receiver.url))
    background = BackgroundDelivery(found)
    add(found, event())
    background.close()
    assert [one["node"] for one in receiver.events] == ["n1"]


# Nodes

OPEN = {"mode": "drain", "open": True, "reasons": [], "drained": None}
SHUT = {"mode": "drain", "open": False, "reasons": ["gpu.count: 7"], "drained": True}
OTHER = {**SHUT, "reasons": ["gpu.ecc: 3"]}
WARNS = {**OPEN, "reasons": ["gpu.count: 7"]}
STATES: list[tuple[str, list[tuple[str | None, Any]], list[str]]] = [
    ("a healthy node is no news", [("healthy", OPEN)], []),
    ("a first verdict that is not healthy", [("degraded", None)], ["degraded"]),
    ("the same again", [("degraded", None), ("degraded", None)], ["degraded"]),
    (
        "worse and well",
        [("healthy", None), ("drain", None), ("healthy", None)],
        ["drain", "healthy"],
    ),
    ("could not check", [("healthy", None), ("could_not_check", None)], ["could_not_check"]),
    (
        "without a verdict nothing is known",
        [("drain", None), (None, None), ("drain", None)],
        ["drain"],
    ),
    ("a gate that is closed", [("drain", SHUT)], ["drain", "closed"]),
    ("closed and open", [("drain", SHUT), ("drain", OPEN)], ["drain", "closed", "open"]),
    (
        "closed for another reason",
        [("drain", SHUT), ("drain", OTHER)],
        ["drain", "closed", "closed"],
    ),
    ("an open gate that reports is no news", [("drain", OPEN), ("drain", WARNS)], ["drain"]),
    (
        "a report without a gate",
        [("drain", SHUT), ("drain", None), ("drain", SHUT)],
        ["drain", "closed"],
    ),
]


@pytest.mark.parametrize(("what", "states", "wanted"), STATES, ids=[row[0] for row in STATES])
def test_transitions_of_a_node_are_events(
    tmp_path: Path, what: str, states: list[tuple[str | None, Any]], wanted: list[str]
) -> None:
    outbox = Outbox(tmp_path / "events.db")
    rows = [
        NodeState(
            "n1",
            node_class="h100",
            at=NOW + place,
            status=status,
            findings=("gpu.count",),
            gate=gate,
        )
        for place, (status, gate) in enumerate(states)
    ]
    for row in rows:
        observe(outbox, [row], NOW)
    found = [
        one.details.get("status") or ("open" if one.details["open"] else "closed")
        for one in outbox.events()
    ]
    assert found == wanted
    again = Outbox(tmp_path / "other.db")
    observe(again, reversed(rows), NOW)
    assert [one.id for one in again.events()] == [one.id for one in outbox.events()], (
        "in one ingest, in any order"
    )
    assert observe(outbox, rows, NOW) == 0, (
        "what was observed before, and late reports, change nothing"
    )


def test_a_node_that_does_not_report_is_silent_once_and_reports_again(tmp_path: Path) -> None:
    clock = Clock()
    found = delivery(tmp_path, clock, chat={"command": {"run": ["true"]}})
    for name in ("n1", "n2"):
        observe(found.outbox, [NodeState(name, "h100", NOW, "healthy", simulated=True)], NOW)
    clock.now += 26 * 3600 + 1
    assert found.collect() == 0, "silence is no event unless the site says after how long"
    events = found.site.events.model_copy(update={"silent_after": 26.0})
    found.site = found.site.model_copy(update={"events": events})
    observe(found.outbox, [NodeState("n2", "h100", clock.now - 60, "healthy")], clock.now)
    assert found.collect() == 1
    assert found.collect() == 0
    (silent,) = found.outbox.events()
    assert (silent.text, silent.severity) == (
        "n1 has not reported since 2026-11-26T10:00:00Z",
        "warning",
    )
    assert (silent.node_class, silent.simulated) == ("h100", True)
    observe(found.outbox, [NodeState("n1", "h100", clock.now, "healthy")], clock.now)
    assert [one.text for one in found.outbox.events(1)] == ["n1 reports again"]


def test_a_simulated_node_has_simulated_events(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "events.db")
    observe(outbox, [NodeState("n1", "h100", NOW, "drain", simulated=True)], NOW)
    (found,) = outbox.events()
    assert (found.simulated, found.severity, found.node_class) == (True, "warning", "h100")
