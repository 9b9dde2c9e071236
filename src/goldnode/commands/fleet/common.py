"""Options and functions that the commands of `goldnode fleet` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from goldnode.core import extras
from goldnode.core.site import FLEET_STORE, Site, load_site

if TYPE_CHECKING:
    from goldnode.fleet.store.database import StoreDatabase
    from goldnode.fleet.store.grants import PersonsOrder

_T = TypeVar("_T")
_VARIABLE = "GOLDNODE_FLEET_STORE"

SIMULATED = "SIMULATED: the class declares simulated hardware"
STORE = click.option(
    "--fleet-store",
    "where",
    metavar="STORE",
    show_default=f"${_VARIABLE}, else the site file's fleet.store, else {FLEET_STORE}",
    help="The store: a file (SQLite) or postgresql://USER@HOST/DATABASE.",
)
REASON = click.option(
    "--reason",
    required=True,
    metavar="REASON",
    help="Reason, for the log and for everyone who is refused.",
)


def address(where: str | None, site: Site) -> str:
    """Return the address of the store that a command uses."""
    # The environment variable is read by `fleet_store`, with the site file.
    return where or site.fleet_store()


def key_file(site: Site, name: str) -> Path | None:
    """Return the file of `fleet.signing_key` or `fleet.public_key`; None if the site has none."""
    named = getattr(site.fleet, name)
    return site.resolve(named) if named else None


@contextmanager
def opened(where: str | None, *, create: bool = False) -> Iterator[StoreDatabase]:
    """Yield the store, with tables that this goldnode can write."""
    extras.require("fleet")
    # Here, since an installation without the extra has no SQLAlchemy.
    from goldnode.fleet.store.database import open_store

    store = open_store(address(where, load_site()), create=create)
    try:
        yield store
    finally:
        store.close()


def order(reason: str) -> PersonsOrder:
    """Return an order of the person at this process."""
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.shared.person import person
    from goldnode.fleet.store.grants import PersonsOrder

    return PersonsOrder(person(), time.time(), reason)


def give(where: str | None, reason: str, work: Callable[[Any, PersonsOrder], _T]) -> _T:
    """Run an order of a person in one transaction of the store."""
    with opened(where) as store:
        given = order(reason)
        return store.run(lambda connection: work(connection, given))


def simulated_class(class_: str) -> bool | None:
    """Return whether the catalog declares the hardware of a class as simulated: the store does not know it."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.errors import GoldnodeError

    try:
        node_class = load_catalog(faults=[]).classes.get(class_)
    except GoldnodeError:  # the state of a rollout must be visible where the catalog is broken
        return None
    return None if node_class is None else node_class.item.simulated
