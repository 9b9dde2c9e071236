"""Load a catalog: read its files, and check them against the facts and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from goldnode.catalog.load import Catalog, Faults, read_catalog
from goldnode.classdoc import checks
from goldnode.core.errors import GoldnodeError


def load_catalog(
    directories: Sequence[Path] | None = None, *, faults: list[GoldnodeError] | None = None
) -> Catalog:
    """Read and check the catalog in `directories`, or the one that environment and site file name.

    Rules that depend on the date (end of life, waivers) apply when a class is used: see `checks.check_use`.
    Raises CatalogError for the first fault. With a list in `faults`, the first fault of each file is appended to it instead,
    and the catalog lacks the items of these files.
    """
    collected = Faults(faults)
    catalog = read_catalog(directories, collected)
    for name, stack in list(catalog.stacks.items()):
        if ("archives", None) not in collected.broken:
            with collected.of(("stack", name), catalog.stacks):
                checks.check_stack(stack, catalog)
    for name, platform in list(catalog.platforms.items()):
        with collected.of(("platform", name), catalog.platforms):
            checks.check_platform(platform)
    for name, node_class in list(catalog.classes.items()):
        needed = ("stack", node_class.item.stack), ("platform", node_class.item.platform)
        if any(item in collected.broken for item in needed):
            del catalog.classes[name]  # cannot be judged before the file it refers to is fixed
            continue
        with collected.of(("class", name), catalog.classes):
            checks.check_class(node_class, catalog)
    return catalog
