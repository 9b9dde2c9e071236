"""The parts and packages that move together in an upgrade from one lock to another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import NodeClass, Stack
from goldnode.documents.what_if import WhatIfLocks
from goldnode.lock.diff import ChangeReason, LockDiff, PackageChange, compare_locks
from goldnode.lock.model import Lock

Json = dict[str, Any]
Side = tuple[Stack, Lock | None]

# Rule of the check that ties a part to the others, and the reason.
_TIES = {
    "kernel": ("kernel-driver", "the driver's module is built for exactly this kernel"),
    "driver": ("driver-packages", "kernel module, firmware and libraries have one version"),
    "fabric manager": (
        "fabric-manager",
        "it has the driver's version; without it CUDA does not start",
    ),
    "subnet manager": ("fabric-manager", "the fabric manager of NVLink 5 boards needs it"),
    "container engine": (
        "toolkit-cdi",
        "it reads the device specifications that the toolkit writes",
    ),
    "container toolkit": ("toolkit-floor", "it puts the libraries of this driver into containers"),
}
_MODULE = ("other-modules", "it is built for this kernel and uses the symbols of this driver")
_OPTION = (None, "it is an optional part of the stack that a class uses")


def nvswitch(item: NodeClass, catalog: Catalog) -> bool:
    """Return whether the nodes of a class have NVSwitch."""
    return item.platform is not None and catalog.platforms[item.platform].item.nvswitch


def locks_of(
    before: Side, after: Side, classes: Sequence[CatalogEntry[NodeClass]], *, nvswitch: bool
) -> WhatIfLocks:
    """Return the parts and packages that differ between two stacks with their locks, for these classes."""
    options = sorted({option for entry in classes for option in entry.item.options})
    conditions = {*options, *(["nvswitch"] if nvswitch else [])}
    diff = LockDiff()
    if before[1] is not None and after[1] is not None:
        diff = compare_locks(
            before[1], after[1], ChangeReason(intent=before[0].stack != after[0].stack)
        )
    changes = [
        change
        for change in diff.changes
        if any(row is not None and row.applies(conditions) for row in (change.was, change.now))
    ]
    return WhatIfLocks.model_validate(
        {
            "stack": before[0].stack,
            "lock": None if before[1] is None else before[1].digest,
            "to_stack": after[0].stack,
            "to_lock": None if after[1] is None else after[1].digest,
            "classes": [entry.name for entry in classes],
            "parts": list(_parts(before, after, options, nvswitch)),
            "packages": [_package(change) for change in changes],
            "fetch_bytes": sum(change.now.size for change in changes if change.now is not None),
            "reboot": diff.reboot,
        }
    )


def _package(change: PackageChange) -> Json:
    row = change.now or change.was
    return {
        "kind": change.kind,
        "part": change.part,
        "name": change.name,
        "before": None if change.was is None else change.was.version,
        "after": None if change.now is None else change.now.version,
        "held": row is not None and row.set == "stack",
        "reason": change.reason,
    }


def _parts(before: Side, after: Side, options: Sequence[str], nvswitch: bool) -> Iterable[Json]:
    """Yield each part of either stack with its versions, in the order of _TIES, modules and options last."""
    old, new = _versions(before, options, nvswitch), _versions(after, options, nvswitch)
    for part in dict.fromkeys((*_TIES, *old, *new)):
        if old.get(part) is None and new.get(part) is None:
            continue
        rule, why = _TIES.get(part) or (_MODULE if part.startswith("module ") else _OPTION)
        yield {
            "part": part,
            "before": old.get(part),
            "after": new.get(part),
            "rule": rule,
            "why": why,
        }


def _versions(side: Side, options: Sequence[str], nvswitch: bool) -> dict[str, str | None]:
    """Return the version of each part: from the lock, or as the stack declares it."""
    stack, lock = side
    locked = {} if lock is None else {row.name: row.version for row in lock.packages}
    versions: dict[str, str | None] = {
        "kernel": (lock and lock.kernel_release) or stack.kernel.release or stack.kernel.series
    }
    driver, runtime = stack.driver, stack.runtime
    if driver is not None:
        declared = driver.version or (driver.branch and f"branch {driver.branch}")
        versions["driver"] = (lock.driver_version if lock is not None else None) or declared
        if nvswitch and driver.fabric_manager is not None:
            versions["fabric manager"] = _of(locked, driver.fabric_manager.package)
    if "nvlsm" in options:
        versions["subnet manager"] = _of(locked, "nvlsm")
    if runtime is not None:
        versions["container engine"] = _of(locked, runtime.package)
        if runtime.toolkit is not None:
            versions["container toolkit"] = _of(locked, runtime.toolkit.packages[0])
    for module in stack.modules:
        if module.package is not None:
            versions[f"module {module.name}"] = _of(locked, module.package)
    for name in options:
        if name != "nvlsm" and name in stack.options:
            versions[f"option {name}"] = _of(locked, stack.options[name].packages[0])
    return versions


def _of(locked: dict[str, str], package: str) -> str:
    return locked.get(package, "not locked")
