"""The nodes of a class in both states of a rollout, by the locks of its stacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from goldnode.cache.rollout import lock_of_state
from goldnode.catalog.load import Catalog
from goldnode.classdoc.findings import workloads_of_class
from goldnode.classdoc.view import ClassView, read_class
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site
from goldnode.documents.rollout import RolloutDocument
from goldnode.fleet.rollout.both_states import AFTER, BEFORE, BothStates
from goldnode.lock.model import Lock, load_lock


def read_states(
    document: RolloutDocument, catalog: Catalog, site: Site, locks: Sequence[Path] = ()
) -> BothStates:
    """Return the states of a rollout, by the locks of its stacks. `locks` are further ones."""
    given = {lock.digest: lock for lock in map(load_lock, locks)}
    views: list[ClassView] = []
    for name, end in (("from", document.from_), ("to", document.to)):
        if end.disk is not None or end.stack is None:
            return BothStates(unknown=f"`{name}` names no stack")
        try:
            lock = lock_of_state(end.stack, end.digest, catalog, site, given)
            views.append(_view(document.class_, end.stack, catalog, site, lock))
        except GoldnodeError as problem:
            return BothStates(unknown=f"`{name}`: {problem.message}")
    before, after = views
    return BothStates(
        before=dataclasses.replace(before.host, subject=BEFORE),
        after=dataclasses.replace(after.host, subject=AFTER),
        workloads=tuple(workloads_of_class(after.entry, after.host.architecture)),
    )


def _view(name: str, stack: str, catalog: Catalog, site: Site, lock: Lock) -> ClassView:
    """Return a class on a stack that may be another than its file has."""
    entry = catalog.node_class(name)
    moved = dataclasses.replace(entry, item=entry.item.model_copy(update={"stack": stack}))
    on_stack = dataclasses.replace(catalog, classes={**catalog.classes, name: moved})
    return read_class(name, on_stack, site, lock)
