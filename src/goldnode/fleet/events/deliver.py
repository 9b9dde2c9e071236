"""Collect new events, and deliver them to the hooks of the site: at least once, in order, each hook by itself.

A hook that fails is tried again with a pause that doubles, up to five minutes; its later events
wait for it, and the other hooks do not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, SiteHook
from goldnode.documents.event import EventDocument
from goldnode.fleet.events import channels, hooks, nodes, ticket_delivery, trackers
from goldnode.fleet.events.alerts import REPEAT, alerts, payload, until
from goldnode.fleet.events.event import SEVERITIES, FleetEvent, identity
from goldnode.fleet.events.outbox import DIRECTORY, LONGEST_PAUSE, HookState, Outbox

LOGGER = logging.getLogger("goldnode.events")
_PAGE = 100  # events of one reading
_LAST_WORDS = (
    15.0  # seconds for the events of a rollout that has ended; later ones are for the next delivery
)

LogReader = Callable[[int], tuple[list[FleetEvent], int]]


@dataclass(frozen=True)
class LogSource:
    """The log of a store: its name, the number of its last line, and the events after one."""

    name: str
    newest: Callable[[], int]
    read: LogReader


@dataclass
class EventDelivery:
    """Delivery of one site. `log` is its store, if it has one."""

    site: Site
    outbox: Outbox
    log: LogSource | None = None
    channels: tuple[Path, ...] = ()
    clock: Callable[[], float] = time.time
    _problems: dict[str, str] = field(default_factory=dict)

    # Collect

    def collect(self) -> int:
        """Add what is new in the sources. Return the number of events. A source that cannot be read is logged.

        A source is read from its present end on, when it is new: what it has is no news.
        """
        self.hooks()  # those that are new begin before what is added now
        added = 0
        if self.log is not None:
            with self._reported(self.log.name):
                added += self._collect_log(self.log)
        silent = self.site.events.silent_after
        if silent is not None:
            added += nodes.silence(self.outbox, self.clock() - silent * 3600, self.clock())
        for directory in sorted({*self.channels, *self.outbox.directories()}):
            with self._reported(str(directory)):
                added += self._collect_channels(directory)
        return added

    @contextlib.contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Log the failure of a source once, and its end."""
        try:
            yield
        except (GoldnodeError, OSError) as problem:
            if self._problems.get(name) != str(problem):
                LOGGER.error("events of %s cannot be read: %s", name, problem)
            self._problems[name] = str(problem)
        else:
            if self._problems.pop(name, None):
                LOGGER.info("events of %s can be read again", name)

    def _collect_log(self, log: LogSource) -> int:
        source, added = f"log {log.name}", 0
        with self.outbox.write() as connection:
            place = self.outbox.place(connection, source)
            if place is None:
                self.outbox.put_place(connection, source, str(log.newest()))
                return 0
        after = self._replaced(source, int(place), log.newest())
        while True:
            events, last = log.read(after)
            if last == after:
                return added
            added += self._add(source, str(after), events, str(last))
            after = last

    def _add(self, source: str, before: str, events: list[FleetEvent], after: str) -> int:
        """Add events with the place after them, unless another process has done that meanwhile."""
        with self.outbox.write() as connection:
            if self.outbox.place(connection, source) != before:
                return 0
            self.outbox.put_place(connection, source, after)
            return self.outbox.add(connection, events, self.clock())

    def _collect_channels(self, directory: Path) -> int:
        """Add the events of a directory. A history that appears later is new from its first entry on."""
        added, known = 0, f"{DIRECTORY}{directory}"
        places = channels.places(directory)
        with self.outbox.write() as connection:
            first = self.outbox.place(connection, known) is None
            self.outbox.put_place(connection, known, "known")
            for name, last in places.items():
                if self.outbox.place(connection, name) is None:
                    self.outbox.put_place(connection, name, str(last if first else 0))
            before = {name: int(self.outbox.place(connection, name) or 0) for name in places}
        for name, last in places.items():
            if last < before[name]:
                # Counted again: another process may have read further meanwhile.
                self._replaced(name, before[name], channels.places(directory).get(name, 0))
            elif last > before[name]:
                events, after = channels.read(name, before[name])
                added += self._add(name, str(before[name]), events, str(after))
        return added

    def _replaced(self, source: str, before: int, last: int) -> int:
        """Return how far a source was read; its end, if it ends before that: what follows there is new."""
        if last >= before:
            return before
        LOGGER.warning(
            "events: %s ends at %d, and was read to %d: it was replaced", source, last, before
        )
        with self.outbox.write() as connection:
            self.outbox.put_place(connection, source, str(last))
        return last

    # Deliver

    def hooks(self) -> dict[str, HookState]:
        """Return the state of the hooks that the site has, and remove that of others."""
        wanted = self.site.events.hooks
        states = self.outbox.hooks(wanted)
        for name in states.keys() - wanted.keys():
            self.outbox.forget(name)
        return {name: state for name, state in states.items() if name in wanted}

    def deliver(self, stop: Callable[[], bool] = lambda: False) -> dict[str, HookState] | None:
        """Deliver what is due to every hook. Return their state; None if another process delivers.

        `stop` is asked before each event.
        """
        states = self.hooks()
        with self.outbox.delivery() as mine:
            if not mine:
                return None
            if states:
                with ThreadPoolExecutor(len(states), thread_name_prefix="hook") as threads:
                    list(threads.map(lambda name: self._deliver(name, stop), states))
            self.outbox.prune(self.clock())
        return self.hooks()

    def _deliver(self, name: str, stop: Callable[[], bool]) -> None:
        hook, state = self.site.events.hooks[name], self.outbox.hooks()[name]
        # A pause has a limit, also where the clock was set back.
        if 0 < state.again - self.clock() <= LONGEST_PAUSE:
            return
        try:
            self._pages(name, hook, state.seq, stop)
            if hook.alertmanager is not None and not stop():
                self._repeat(name, hook, state)
        except Exception as problem:  # one receiver must not end the delivery to the others
            text = str(problem).rstrip(".") if isinstance(problem, GoldnodeError) else repr(problem)
            failed = self.outbox.failed(name, text, self.clock())
            pause = failed.again - self.clock()
            LOGGER.warning("hook %s: %s; it is tried again in %.0f s", name, text, max(0, pause))

    def _pages(self, name: str, hook: SiteHook, seq: int, stop: Callable[[], bool]) -> None:
        while not stop():
            page = self.outbox.events(seq, _PAGE)
            if not page:
                return
            for event in page:
                if stop():
                    return
                wanted = wants(hook, event)
                if wanted and hook.ticket is not None:
                    tracker = trackers.tracker(hook.ticket, self.site.resolve)
                    ticket_delivery.send(self.outbox, name, tracker, event, self.clock)
                elif wanted:
                    hooks.send(hook, event, self.site.resolve, self.clock)
                seq = event.seq
                if wanted or event is page[-1]:
                    after = _active(name, hook, event, self.clock()) if wanted else _nothing
                    self.outbox.delivered(name, seq, self.clock() if wanted else None, after)

    def _repeat(self, name: str, hook: SiteHook, state: HookState) -> None:
        """Send active alerts again."""
        now = self.clock()
        if hook.alertmanager is None or 0 <= now - state.repeated < REPEAT:
            return
        content = [{**json.loads(text), "endsAt": until(now)} for text in self.outbox.alerts(name)]
        if content:
            hooks.post_alerts(hook.alertmanager, content, self.site.resolve)
        self.outbox.repeated(name, now)
        if state.failures:
            self.outbox.delivered(name, state.seq, None)


def wants(hook: SiteHook, event: EventDocument) -> bool:
    """Return whether a hook gets an event. An Alertmanager also gets what resolves an alert."""
    if not any(fnmatchcase(event.kind, one) for one in hook.kinds):
        return False
    if hook.ticket is not None:
        return event.kind in ticket_delivery.KINDS
    severe = SEVERITIES.index(event.severity) >= SEVERITIES.index(hook.severity)
    if hook.alertmanager is None:
        return severe
    alerting = alerts(event)
    return bool(alerting) and (severe or not any(one.active for one in alerting))


def _nothing(connection: sqlite3.Connection) -> None:
    pass


def _active(
    name: str, hook: SiteHook, event: EventDocument, now: float
) -> Callable[[sqlite3.Connection], None]:
    """Return the change of the table of active alerts for a delivered event."""

    def change(connection: sqlite3.Connection) -> None:
        for alert in alerts(event) if hook.alertmanager is not None else ():
            connection.execute("DELETE FROM alert WHERE hook = ? AND key = ?", (name, alert.key))
            if alert.active and hook.alertmanager is not None and event.kind != "rollout.alarm":
                content = json.dumps(payload(event, alert, hook.alertmanager.labels, now))
                connection.execute("INSERT INTO alert VALUES (?, ?, ?)", (name, alert.key, content))

    return change


def test_event(hook: str, now: float) -> FleetEvent:
    """Return the event of `goldnode events test`."""
    return FleetEvent(
        id=identity("test", hook, now),
        at=now,
        kind="hook.test",
        severity="critical",
        source="test",
        subject=hook,
        text=f"test of hook {hook}: nothing has happened",
    )


class BackgroundDelivery:
    """Delivery in a thread of its own, for a process that must not wait for a hook."""

    def __init__(self, delivery: EventDelivery) -> None:
        self.delivery = delivery
        self._wake, self._stop, self._now = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Ask for a delivery. Returns at once."""
        self._wake.set()

    def close(self) -> None:
        """Give the last events their time, then stop. The others wait for the next delivery."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_LAST_WORDS)
        self._now.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            last = self._stop.is_set()
            try:
                self.delivery.collect()
                self.delivery.deliver(self._now.is_set)
            except (
                Exception
            ) as problem:  # a rollout goes on without its events; the next delivery has them
                LOGGER.error("events are not delivered: %s", problem)
            if last:
                return
