"""The caches that a rollout turns cold: the parts of their keys that differ between its two states.

A cold cache is never wrong. Each node compiles again, in the first job that runs on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.catalog.load import Catalog
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site
from goldnode.documents.rollout import RolloutDocument
from goldnode.lock.model import Lock, find_lock, load_lock
from goldnode.node.cachekey.caches import CACHES, STRENGTHS


@dataclass(frozen=True)
class KeyChange:
    """One component of keys that a rollout changes."""

    component: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.component} {self.before or 'absent'} -> {self.after or 'absent'}"


@dataclass(frozen=True)
class ColdCache:
    """A cache that a rollout turns cold, at these strengths.

    `where` is `all`, or `host`: only of programs that run without a container image.
    """

    cache: str
    strengths: tuple[str, ...]
    where: str
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True)
class ColdCaches:
    """The caches of a rollout. `unknown` is the reason why its states could not be compared."""

    caches: tuple[ColdCache, ...] = ()
    unknown: str | None = None


def cold(
    document: RolloutDocument, catalog: Catalog, site: Site, locks: Sequence[Path] = ()
) -> ColdCaches:
    """Return the caches that a rollout turns cold.

    Reads the locks of both stacks. `locks` are further ones, for states whose lock has been
    replaced. Raises LockError if one of these cannot be read.
    """
    # By digest: the name of a stack leads to its current lock alone.
    given = {lock.digest: lock for lock in map(load_lock, locks)}
    states = []
    # One state that is not known is enough: nothing can be compared then.
    for name, end in (("from", document.from_), ("to", document.to)):
        if end.disk is not None:
            return ColdCaches(
                unknown=f"`{name}` is a disk image, whose driver this command does not read"
            )
        if end.stack is None:
            return ColdCaches(unknown=f"`{name}` names no stack")
        try:
            states.append(
                _state(
                    end.stack, lock_of_state(end.stack, end.digest, catalog, site, given), catalog
                )
            )
        except GoldnodeError as problem:
            return ColdCaches(unknown=f"`{name}`: {problem.message}")
    before, after = states
    changes = [
        KeyChange(name, before.get(name), after.get(name))
        # A component that one state lacks has changed as well.
        for name in sorted(set(before) | set(after))
        if before.get(name) != after.get(name)
    ]
    return ColdCaches(tuple(_colds(changes)))


def lock_of_state(
    stack: str, digest: str, catalog: Catalog, site: Site, given: Mapping[str, Lock]
) -> Lock:
    """Return the lock of a state. Raises GoldnodeError if it is not here."""
    if digest in given:
        return given[digest]
    lock, path = find_lock(catalog.stack(stack), site)
    if lock.digest != digest:
        raise GoldnodeError(
            f"the lock of stack {stack} here ({path.name}) is not {digest[:19]}…; give the other one with --lock"
        )
    return lock


def _state(stack: str, lock: Lock, catalog: Catalog) -> Mapping[str, str | None]:
    """Return the components of keys that a stack and its lock decide."""
    entry = catalog.stack(stack)
    driver, system = entry.item.driver, entry.item.os
    digests: dict[str, str | None] = {
        "host.os": f"{system.id} {system.version}",
        "host.architecture": system.architecture,
    }
    if driver is not None:
        digests |= {
            "driver.vendor": driver.vendor,
            "driver.version": lock.driver_version,
            "driver.flavour": driver.flavour,
        }
    return digests


def _colds(changes: list[KeyChange]) -> list[ColdCache]:
    # Keys of programs in a container have the release of their image, not that of the host.
    everywhere = tuple(change for change in changes if change.component != "host.os")
    colds = []
    for cache in CACHES.values():
        strengths = tuple(
            name for name in STRENGTHS if name == "exact" or cache.portable is not None
        )
        if everywhere:
            colds.append(ColdCache(cache.name, strengths, "all", everywhere))
        elif changes and cache.stubs:
            # Another release has another C library and another Python.
            colds.append(ColdCache(cache.name, strengths, "host", tuple(changes)))
    return colds
