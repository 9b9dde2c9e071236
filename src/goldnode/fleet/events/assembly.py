"""Put a delivery together from the site file, the store and the channels of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core.site import Site
from goldnode.fleet.events.deliver import EventDelivery, LogSource
from goldnode.fleet.events.outbox import Outbox
from goldnode.node.ground.optional import optional

if TYPE_CHECKING:
    from goldnode.fleet.store.database import StoreDatabase


def delivery(
    site: Site, store: StoreDatabase | None = None, channels: Iterable[Path] = ()
) -> EventDelivery | None:
    """Return the delivery of a site; None if it has no hooks."""
    return of_hooks(site, store, channels) if site.events.hooks else None


def of_hooks(
    site: Site, store: StoreDatabase | None = None, channels: Iterable[Path] = ()
) -> EventDelivery:
    """Return the delivery of a site that has hooks."""
    own = {site.resolve(name) for name in site.events.channels}
    directories = sorted({*own, *(path.absolute() for path in channels)})
    log = optional(log_source, store)
    return EventDelivery(site, Outbox(site.events_outbox()), log, tuple(directories))


def log_source(store: StoreDatabase) -> LogSource:
    """Return the log of a store as a source. Its name has no password."""
    # The extra `fleet`, which a site with captures alone lacks.
    from goldnode.fleet.events import store_log

    return LogSource(
        store.name, lambda: store_log.newest(store), lambda after: store_log.read(store, after)
    )
