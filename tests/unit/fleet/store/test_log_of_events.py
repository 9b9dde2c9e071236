"""The log as a source of events on both engines: a line that is committed late is not passed over."""

from __future__ import annotations

import threading
from typing import Any

from tests.unit.fleet.store.fleets import NOW

from goldnode.fleet.events import store_log
from goldnode.fleet.store import log
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.log import LogLine


def line(name: str) -> LogLine:
    return LogLine(
        NOW, "ann", "Freeze", name, {"scope": "rack", "subject": name, "id": name, "reason": "heat"}
    )


def test_lines_are_events_in_their_order(store: StoreDatabase) -> None:
    for name in ("r1", "r2", "r3"):
        store.run(lambda connection, name=name: log.append(connection, line(name)))  # type: ignore[misc]
    found, last = store_log.read(store, 1)
    assert [one.subject for one in found] == ["r2", "r3"]
    assert last == store_log.newest(store) == 3
    other, _ = store_log.read(store, 0)
    assert [one.id for one in other[1:]] == [one.id for one in found]


def test_a_line_that_is_committed_after_a_later_one_is_not_lost(store: StoreDatabase) -> None:
    if not store.postgresql:  # one writer at a time: numbers are in the order of the commits
        return
    found: list[Any] = []
    with store.unlocked() as early:
        log.append(early, line("early"))
        store.run(lambda c: log.append(c, line("late")))
        reader = threading.Thread(target=lambda: found.extend(store_log.read(store, 0)[0]))
        reader.start()
        # The reader must wait for this transaction. Without its lock it ends here, with the later line alone.
        reader.join(1)
        assert reader.is_alive()
    reader.join(30)
    assert [one.subject for one in found] == ["early", "late"]
