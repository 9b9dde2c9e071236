"""Commands `goldnode events deliver` and `test`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.events import hook_of, site_with_hooks
from goldnode.commands.fleet.common import STORE, address
from goldnode.commands.options import every_option
from goldnode.commands.output import emit, reports, say
from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from goldnode.fleet.events.deliver import EventDelivery
    from goldnode.fleet.events.outbox import HookState


@click.command()
@click.option("--follow", is_flag=True, help="Go on until SIGTERM or an interrupt, as a service.")
@every_option("sources", "--follow")
@STORE
@reports("events-delivery")
def deliver(follow: bool, every: float, where: str | None, form: str) -> None:
    """Run the hooks of the site on new events.

    Reads the log of the store and the channels of the site; events of nodes are there since their ingest. Each
    hook gets its events in order and at least once: one that fails is tried again with growing pauses, and the others
    do not wait for it. A source starts at its present end when it is new.

    Exit status: 0 every hook has all events, 1 events wait for a hook, 2 an error.
    """
    from goldnode.fleet.events.assembly import of_hooks
    from goldnode.fleet.events.view import waiting as number_waiting

    site = site_with_hooks()
    _log_to_stderr()
    stop = threading.Event()
    if follow:
        for number in (signal.SIGINT, signal.SIGTERM):
            # The delivery asks before each event, so that none is left half delivered.
            signal.signal(number, lambda *_: stop.set())
    outbox = of_hooks(site)
    sources = _Sources(site, where, outbox)
    collected = 0
    while True:
        # Each time: the store may be created later, or come back.
        sources.open()
        collected += outbox.collect()
        states = outbox.deliver(stop.is_set)
        if not follow or stop.wait(every):
            break
    sources.close()
    # It holds the lock of the outbox, and this one has nothing to do.
    if states is None:
        say("another process delivers the events of this outbox")
        states = outbox.hooks()
    waiting = {
        name: number_waiting(outbox.outbox, site.events.hooks[name], states[name])
        for name in states
    }
    content = {
        "collected": collected,
        "hooks": [
            {"name": name, "waiting": waiting[name], "error": states[name].error} for name in states
        ],
    }
    lines = [f"{name}: {_line(waiting[name], states[name])}" for name in states]
    emit(form, content, "\n".join([f"{collected} new events", *lines]))
    # A timer or monitor sees failing hooks by the status alone.
    sys.exit(1 if any(waiting.values()) else 0)


def _log_to_stderr() -> None:
    """Print what the delivery logs, and nothing of other packages."""
    logger = logging.getLogger("goldnode.events")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    # Not the root logger: libraries would log each connection.
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


class _Sources:
    """The store of the site, opened as soon as it is there."""

    def __init__(self, site: Site, where: str | None, delivery: EventDelivery) -> None:
        self.place, self.delivery = address(where, site), delivery
        self._store: Any = None
        self._problem = ""

    def open(self) -> None:
        """Open the store, unless it is open. One that is away is reported once."""
        # A file of SQLite that is not there yet must not be created by a reader.
        if self._store is not None or ("://" not in self.place and not Path(self.place).exists()):
            return
        extras.require("fleet")
        # sqlalchemy: only the extra `fleet` installs it.
        from goldnode.fleet.events.assembly import log_source
        from goldnode.fleet.store.database import open_store

        try:
            self._store = open_store(self.place)
        except GoldnodeError as problem:
            if str(problem) != self._problem:
                say(f"events of rollouts are not read: {problem}")
            self._problem = str(problem)
        else:
            self.delivery.log = log_source(self._store)

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()


def _line(count: int, state: HookState) -> str:
    if not count:
        return "has all events"
    return f"{count} {'event waits' if count == 1 else 'events wait'}" + phrase(": {}", state.error)


@click.command()
@click.argument("hook")
@reports("events-test")
def test(hook: str, form: str) -> None:
    """Run one hook on a test event.

    The event is of kind hook.test, and is in no outbox. An Alertmanager gets an alert that is resolved already.
    A tracker of tickets is asked with its credentials, and gets nothing.

    Exit status: 0 the hook has taken it, 2 it has not.
    """
    from goldnode.fleet.events.deliver import test_event
    from goldnode.fleet.events.hooks import send
    from goldnode.fleet.events.trackers import tracker

    site = site_with_hooks()
    receiver = hook_of(site, hook)
    event = test_event(hook, time.time()).document(0)
    if receiver.ticket is not None:
        tracker(receiver.ticket, site.resolve).probe()
        emit(form, {"hook": hook, "id": event.id}, f"hook {hook}: its tracker answers")
        return
    send(receiver, event, site.resolve)
    emit(form, {"hook": hook, "id": event.id}, f"hook {hook} has taken the test event {event.id}")
