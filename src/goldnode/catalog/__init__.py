"""What may exist, as data: stacks, platforms, node classes and archives, and the class document made of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goldnode.catalog.load import Catalog, load_catalog
    from goldnode.classdoc.compile import class_document
    from goldnode.inventory.classes import classes_of_hosts

__all__ = ["Catalog", "class_document", "classes_of_hosts", "load_catalog"]

# Resolved when asked for: compiling needs the locks, and the locks need the catalog's models.
_HOMES = {
    "Catalog": "load",
    "class_document": "compile",
    "classes_of_hosts": "inventory",
    "load_catalog": "load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
