"""Builder of the node side of a combination from the catalog: a class, or a stack alone."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

from goldnode.catalog import models
from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.classdoc import checks, exceptions
from goldnode.compat import rules
from goldnode.compat.model import (
    Acceptance,
    CompatFinding,
    CompatHost,
    DeclaredAt,
    StackWaiver,
    Workload,
)
from goldnode.core.errors import FactsError, LockError, NoLockError
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.lock.model import Lock, find_lock
from goldnode.node.state.family import kernel_packages


def host_of_class(
    name: str,
    catalog: Catalog,
    site: Site,
    lock: Lock | None = None,
    *,
    on: dt.date | None = None,
    model: str | None = None,
) -> CompatHost:
    """Return the host of class `name`: its GPUs, platform and stack, with the lock's versions if any.

    Without `lock`, `lock.model.find_lock` finds it. `on` is the day to judge for, today by default. `model` is the
    GPU model of a class that takes any (`model: auto`). Raises GoldnodeError for an unknown class or model.
    """
    entry = catalog.node_class(name)
    item = entry.item
    platform = catalog.platforms[item.platform].item if item.platform is not None else None
    more: dict[str, object] = {
        "name": name,
        "nvswitch": platform is not None and platform.nvswitch,
        "platform": item.platform,
        "simulated": item.simulated,
        "unknown": item.compat.unknown,
        "accept": tuple(
            Acceptance(each.rule, each.reason, each.owner, each.expires, each.subject)
            for each in item.compat.accept
        )
        + exceptions.acceptances(site, name, item.stack, on or dt.datetime.now(tz=dt.UTC).date()),
        "cmdline": tuple(item.policy.host.cmdline) or None,
        "features": _features(item, catalog.stacks[item.stack].item),
    }
    places = {
        key: DeclaredAt(entry.file, entry.source.line((key,)))
        for key in ("gpu", "platform", "stack", "policy", "compat")
        if key in entry.source.data
    }
    gpus: tuple[facts.GpuModel, ...] = ()
    if item.gpu is not None and item.gpu.model == models.AUTO:
        more["auto"] = True
        more["vendor"] = checks.VENDOR_OF_BACKEND[item.backend]
        gpus = () if model is None else (_of_backend(entry, model),)
    elif item.gpu is not None:
        gpus = (facts.gpu(item.gpu.model),)
    part = _ClassPart(
        f"class {name}", DeclaredAt(entry.file, entry.source.line(("class",))), gpus, more, places
    )
    return _host(part, catalog.stacks[item.stack], site, lock, on)


def _of_backend(entry: CatalogEntry[models.NodeClass], model: str) -> facts.GpuModel:
    """Return the facts of a GPU model that a class with `model: auto` may have. Raises GoldnodeError."""
    gpu, vendor = facts.gpu(model), checks.VENDOR_OF_BACKEND[entry.item.backend]
    if gpu.vendor != vendor:
        raise entry.error(
            f'{model} is of vendor {gpu.vendor}, and class "{entry.name}" has backend {entry.item.backend}',
            "backend",
            remedy="name a model of the backend's vendor",
        )
    return gpu


def findings_of_class(
    name: str, catalog: Catalog, site: Site, lock: Lock | None = None, *, on: dt.date | None = None
) -> list[CompatFinding]:
    """Return the findings about class `name` with its images and requirements; see `compat.check.check`.

    Raises CatalogError if the class accepts findings of an unknown rule or past their expiry, and
    WorkloadError for an unreadable image or file.
    """
    from goldnode.compat.check import check

    host = host_of_class(name, catalog, site, lock, on=on)
    entry = catalog.node_class(name)
    if host.on is not None:
        checks.check_accepted(entry, catalog.stacks[entry.item.stack].file, host.on)
        exceptions.check_exceptions(site, name, entry.item.stack, host.on)
    return check(host, workloads_of_class(entry, host.architecture))


def findings_of_cohort(
    cohort: str, classes: Sequence[str], catalog: Catalog, site: Site
) -> list[CompatFinding]:
    """Return the findings about nodes of these classes in one cohort; see `rules_host.check_cohorts`.

    Raises GoldnodeError.
    """
    from goldnode.compat import rules_host
    from goldnode.compat.check import settle

    hosts = [
        dataclasses.replace(host_of_class(name, catalog, site), cohort=cohort) for name in classes
    ]
    loads = {
        host.subject: workloads_of_class(catalog.node_class(name), host.architecture)
        for host, name in zip(hosts, classes, strict=True)
    }
    return settle(rules_host.check_cohorts(hosts, loads), None)


def workloads_of_class(entry: CatalogEntry[models.NodeClass], architecture: str) -> list[Workload]:
    """Return the workloads that the class declares, on `architecture`. Raises WorkloadError."""
    if not entry.item.images and not entry.item.requirements:
        return []
    from goldnode.compat import workloads

    return workloads.of_class(entry, architecture)


def host_of_stack(
    name: str, catalog: Catalog, site: Site, lock: Lock | None = None, *, on: dt.date | None = None
) -> CompatHost:
    """Return the host of stack `name` alone, without GPUs. See `host_of_class`."""
    entry = catalog.stack(name)
    accept = exceptions.acceptances(site, None, name, on or dt.datetime.now(tz=dt.UTC).date())
    part = _ClassPart(
        f"stack {name}",
        DeclaredAt(entry.file, entry.source.line(("stack",))),
        more={"accept": accept},
    )
    return _host(part, entry, site, lock, on)


@dataclasses.dataclass(frozen=True)
class _ClassPart:
    """The part of a host that its class adds to its stack. `places` are lines of the class file, `more` further fields."""

    subject: str
    place: DeclaredAt
    gpus: tuple[facts.GpuModel, ...] = ()
    more: Mapping[str, object] = dataclasses.field(default_factory=dict)
    places: Mapping[str, DeclaredAt] = dataclasses.field(default_factory=dict)


def _host(
    part: _ClassPart,
    entry: CatalogEntry[models.Stack],
    site: Site,
    lock: Lock | None,
    on: dt.date | None,
) -> CompatHost:
    stack = entry.item
    fault: LockError | None = None
    if lock is None:
        try:
            lock = find_lock(entry, site)[0]
        # A finding (rules no-lock and lock-integrity), not an error: other rules still apply.
        except LockError as problem:
            fault = problem
    driver, runtime = stack.driver, stack.runtime
    toolkit = runtime.toolkit if runtime is not None else None
    versions = (
        {package.name: package.version for package in lock.packages} if lock is not None else {}
    )
    release = (
        lock.kernel_release if lock is not None else stack.kernel.release or stack.kernel.series
    )
    toolkit_version = None
    if toolkit is not None and toolkit.vendor == "nvidia":
        toolkit_version = versions.get(toolkit.packages[0]) or toolkit.version
    engine_version = versions.get(runtime.package) if runtime is not None else None
    mode = (
        rules.toolkit_mode(runtime.engine, engine_version, toolkit_version)
        if runtime and toolkit and engine_version
        else None
    )
    manager = (
        driver.fabric_manager.package
        if driver is not None and driver.fabric_manager is not None
        else None
    )
    fields: dict[str, object] = {
        "subject": part.subject,
        "os": f"{stack.os.id} {stack.os.version}",
        "architecture": stack.os.architecture,
        "kernel": release,
        "kernel_version": release_numbers(versions.get(kernel_packages(stack.os.id, release)[0]))
        if release is not None
        else None,
        "vendor": driver.vendor if driver is not None else None,
        "branch": driver.branch if driver is not None else None,
        "driver": (lock.driver_version if lock is not None else driver.version)
        if driver is not None and driver.vendor == "nvidia"
        else None,
        "driver_package": versions.get(driver.dkms.package)
        if driver is not None and driver.dkms is not None
        else None,
        "flavour": _flavour(driver, part.gpus),
        "gpus": part.gpus,
        "fabric_manager": release_numbers(versions.get(manager)) if manager is not None else None,
        "fabric_manager_package": manager,
        "engine": runtime.engine if runtime is not None else None,
        "engine_version": engine_version,
        "toolkit": None if toolkit_version is None else facts.release_numbers(toolkit_version),
        "toolkit_mode": mode.mode if mode is not None else None,
        "amdgpu": release_numbers(versions.get(driver.dkms.package))
        if driver is not None and driver.vendor == "amd" and driver.dkms
        else None,
        "modules": {
            module.name: release_numbers(versions.get(module.package)) or ""
            for module in stack.modules
            if module.package is not None
        },
        "place": part.place,
        "stack": entry.name,
        "unlocked": fault.message if fault is not None else None,
        "lock_fault": None if isinstance(fault, NoLockError) else fault,
        # The subnet manager may be locked as a dependency.
        "packages": (
            *(driver.packages if driver is not None else ()),
            *stack.packages,
            *(name for name in ("nvlsm",) if name in versions),
        ),
        "archives": tuple(stack.archives),
        "end_of_life": stack.end_of_life.date,
        "end_of_life_source": stack.end_of_life.source,
        "waiver": _waiver(stack.waiver),
        "on": on or dt.datetime.now(tz=dt.UTC).date(),
        "places": {**_places(entry), **part.places},
    }
    return CompatHost(**{**fields, **part.more})  # type: ignore[arg-type]


def _features(item: models.NodeClass, stack: models.Stack) -> dict[str, bool]:
    """Return whether the class uses the features that facts refer to."""
    mig = any(
        policy.mig is not None and policy.mig.enabled
        for policy in (item.policy, *item.policy.overrides)
    )
    return {
        "MIG": mig,
        # nvidia-fs is the kernel module of GPUDirect Storage.
        "GPUDirect Storage": any(
            module.name in ("nvidia_fs", "nvidia-fs") for module in stack.modules
        ),
    }


def _flavour(driver: models.Driver | None, gpus: tuple[facts.GpuModel, ...]) -> str | None:
    """Return the driver flavour. The GPU decides `auto`; for a stack alone it stays None."""
    if driver is None or driver.branch is None:
        return None
    if driver.flavour != "auto":
        return driver.flavour
    try:
        return rules.module_flavour(gpus[0], driver.branch)[0] if gpus else None
    except FactsError:
        return None


def release_numbers(version: str | None) -> str | None:
    """Return the leading numbers of a package version; None without a package."""
    return None if version is None else facts.release_numbers(version)


def _waiver(waiver: models.Waiver | None) -> StackWaiver | None:
    return (
        None
        if waiver is None
        else StackWaiver(waiver.reason, waiver.owner, waiver.expires, tuple(waiver.classes))
    )


# Location in a stack's file of each subject of a rule.
_PLACES: dict[str, tuple[str | int, ...]] = {
    "driver": ("driver",),
    "fabric_manager": ("driver", "fabric_manager"),
    "driver_packages": ("driver", "packages"),
    "kernel": ("kernel",),
    "os": ("os",),
    "engine": ("runtime",),
    "toolkit": ("runtime", "toolkit"),
    "modules": ("modules",),
    "end_of_life": ("end_of_life",),
    "waiver": ("waiver",),
}


def _places(entry: CatalogEntry[models.Stack]) -> dict[str, DeclaredAt]:
    return {
        name: DeclaredAt(entry.file, entry.source.line(path))
        for name, path in _PLACES.items()
        if path in entry.source.key_lines
    }
