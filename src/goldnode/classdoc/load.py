"""Load a catalog: read its files, and check them against the facts and against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from goldnode.catalog import models
from goldnode.catalog.load import Catalog, CatalogEntry, collected, read_catalog
from goldnode.classdoc import checks
from goldnode.core.errors import CatalogError, GoldnodeError
from goldnode.facts import host as facts


def load_catalog(
    directories: Sequence[Path] | None = None, *, faults: list[GoldnodeError] | None = None
) -> Catalog:
    """Read and check the catalog in `directories`, or the one that environment and site file name.

    A file of the environment's catalog that has a fault stops only what depends on it: the fault is
    logged as a warning, and whoever asks for the item gets its error. With a list in `faults`, the
    first fault of each file is appended to it, and nothing is logged. With `directories` alone, the
    first fault is raised. Rules that depend on the date (end of life, waivers) apply when a class
    is used: see `findings.check_use`.
    """
    if faults is None and directories is None:
        own_faults: list[GoldnodeError] = []
        catalog = load_catalog(faults=own_faults)
        # A wrong site file concerns everything, and not one item.
        if ("site", None) in catalog.broken:
            raise catalog.broken["site", None]
        if own_faults:
            import logging  # start-up time: most catalogs have no fault

            # Without a handler, Python writes warnings to stderr.
            log = logging.getLogger("goldnode")
        for fault in own_faults:
            log.warning("warning: not used: %s", fault)
        return catalog
    catalog = read_catalog(directories, faults)
    if faults is not None:
        faults += facts.site_faults()
    for name, stack in list(catalog.stacks.items()):
        if (
            # The archive that the stack names may be in the file with the error.
            not set(_archives(stack)) <= set(catalog.archives)
            and ("archives", None) in catalog.broken
        ):
            catalog.remove(
                ("stack", name), _because(("stack", name), catalog.broken["archives", None])
            )
            continue
        with collected(catalog, ("stack", name), faults):
            checks.check_stack(stack, catalog)
    for name, platform in list(catalog.platforms.items()):
        with collected(catalog, ("platform", name), faults):
            checks.check_platform(platform)
            catalog.platforms[name] = _with_models(platform)
    for name, node_class in list(catalog.classes.items()):
        needed = ("stack", node_class.item.stack), ("platform", node_class.item.platform)
        broken = [item for item in needed if item in catalog.broken]
        if broken:
            catalog.remove(("class", name), _because(("class", name), catalog.broken[broken[0]]))
            continue
        with collected(catalog, ("class", name), faults):
            catalog.classes[name] = _with_model(node_class)
            checks.check_class(catalog.classes[name], catalog)
    return catalog


def _archives(stack: CatalogEntry[models.Stack]) -> list[str]:
    return [
        *stack.item.archives,
        *(name for part in stack.item.options.values() for name in part.archives),
    ]


def _because(what: tuple[str, str], error: GoldnodeError) -> CatalogError:
    """Return the error of an item that depends on a broken one."""
    return CatalogError(
        f'{what[0]} "{what[1]}" cannot be used: {error.message}',
        file=error.file,
        line=error.line,
        remedy=error.remedy,
    )


def _with_model(entry: CatalogEntry[models.NodeClass]) -> CatalogEntry[models.NodeClass]:
    """Return the class with the facts' names of its GPU models in place of product names."""
    item = entry.item
    if item.gpu is None:
        return entry
    update: dict[str, object] = {"gpu": item.gpu.model_copy(update={"model": _sku(item.gpu.model)})}
    if any(override.model is not None for override in item.policy.overrides):
        overrides = [
            row if row.model is None else row.model_copy(update={"model": _sku(row.model)})
            for row in item.policy.overrides
        ]
        update["policy"] = item.policy.model_copy(update={"overrides": overrides})
    return dataclasses.replace(entry, item=item.model_copy(update=update))


def _with_models(entry: CatalogEntry[models.Platform]) -> CatalogEntry[models.Platform]:
    """Return the platform with the facts' names of its GPU models in place of product names."""
    slots = entry.item.gpus
    if slots is None or not slots.models:
        return entry
    named = slots.model_copy(update={"models": [_sku(name) for name in slots.models]})
    return dataclasses.replace(entry, item=entry.item.model_copy(update={"gpus": named}))


def _sku(name: str) -> str:
    return facts.gpu_of_product(name) or name
