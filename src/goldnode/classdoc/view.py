"""View of one node class: its class, stack, platform, lock, GPU and host, read and validated once.

`read_class` reads. `findings.findings_of` checks what was read, and `compile.compile_class` writes
the class document of it. Neither looks anything up in the catalog again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from goldnode.catalog import models
from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.classdoc import checks, exceptions, mitigations
from goldnode.compat import rules
from goldnode.compat.model import CompatHost, DeclaredAt, StackWaiver
from goldnode.core.dataclass import dataclass
from goldnode.core.errors import FactsError, LockError, NoLockError
from goldnode.core.site import Site, SiteException
from goldnode.facts import host as facts
from goldnode.facts.host import ModuleFlavour
from goldnode.lock.model import Lock, find_lock
from goldnode.node.state.family import kernel_packages

# Paths in the file of a class and of a stack, by the names that rules give to what they judge.
_CLASS_KEYS = ("class", "gpu", "platform", "stack", "policy", "compat", "parts", "tier")
_CLASS_LINES = {key: (key,) for key in _CLASS_KEYS}
_STACK_LINES: dict[str, tuple[str, ...]] = {
    "driver": ("driver",),
    "fabric_manager": ("driver", "fabric_manager"),
    "driver_packages": ("driver", "packages"),
    "kernel": ("kernel",),
    "os": ("os",),
    "engine": ("runtime",),
    "toolkit": ("runtime", "toolkit"),
    "modules": ("modules",),
    "parts": ("parts",),
    "end_of_life": ("end_of_life",),
    "waiver": ("waiver",),
}


@dataclass(frozen=True)
class StackView:
    """A stack with its lock, on one day. `fault` is why there is no usable lock; some rules need none."""

    entry: CatalogEntry[models.Stack]
    lock: Lock | None
    fault: LockError | None
    on: dt.date
    versions: Mapping[str, str]  # of each locked package; empty without a lock
    kernel: str | None  # release; without a lock the one that the stack states, or its series
    kernel_packages: Sequence[str]  # the names of its image and its headers
    toolkit: str | None  # package version of the container toolkit, without a lock the stated one
    toolkit_mode: rules.ToolkitMode | None  # None also for an engine that is not locked


@dataclass(frozen=True)
class ClassView:
    """A node class with everything that its check and its document need.

    `gpu` is None without GPUs, and for `model: auto` unless a model was named. `host` is the node
    side of the compatibility check. `exceptions` and `mitigations` are those of the site that are in force for it.
    """

    entry: CatalogEntry[models.NodeClass]
    stack: StackView
    gpu: facts.GpuModel | None
    host: CompatHost
    exceptions: Sequence[SiteException]
    mitigations: Sequence[mitigations.Mitigation]
    catalog: Catalog
    site: Site


def read_stack(
    entry: CatalogEntry[models.Stack],
    site: Site,
    lock: Lock | None = None,
    *,
    on: dt.date | None = None,
) -> StackView:
    """Return a stack with `lock`, or with the lock that `lock.model.find_lock` finds. `on` is today by default.

    Raises GoldnodeError for a site file that names no usable directory of locks.
    """
    # Anything but a LockError is raised: a wrong site file concerns every class.
    fault: LockError | None = None
    if lock is None:
        try:
            lock = find_lock(entry, site)[0]
        # A finding (rules no-lock and lock-integrity), not an error: other rules still apply.
        except LockError as problem:
            fault = problem
    item = entry.item
    kernel = lock.kernel_release if lock is not None else item.kernel.release or item.kernel.series
    versions = {row.name: row.version for row in lock.packages} if lock is not None else {}
    toolkit, mode = _toolkit(item.runtime, versions)
    return StackView(
        entry,
        lock,
        fault,
        on=on or dt.datetime.now(tz=dt.UTC).date(),
        versions=versions,
        kernel=kernel,
        kernel_packages=kernel_packages(item.os.id, kernel) if kernel is not None else (),
        toolkit=toolkit,
        toolkit_mode=mode,
    )


def _toolkit(
    runtime: models.Runtime | None, versions: Mapping[str, str]
) -> tuple[str | None, rules.ToolkitMode | None]:
    """Return version and mode of the container toolkit."""
    if runtime is None or runtime.toolkit is None:
        return None, None
    engine, version = versions.get(runtime.package), runtime.toolkit.version
    # AMD's has no packages: goldnode writes the CDI spec.
    if runtime.toolkit.packages:
        version = versions.get(runtime.toolkit.packages[0]) or version
    return version, rules.toolkit_mode(runtime.engine, engine, version) if engine else None


def read_class(
    name: str,
    catalog: Catalog,
    site: Site,
    lock: Lock | None = None,
    *,
    on: dt.date | None = None,
    model: str | None = None,
) -> ClassView:
    """Return class `name` with its stack, lock, facts and host. `lock` and `on` are as for `read_stack`.

    `model` is the GPU model of a class that takes any (`model: auto`). Raises GoldnodeError for an
    unknown class or model.
    """
    entry = catalog.node_class(name)
    item = entry.item
    stack = read_stack(catalog.stacks[item.stack], site, lock, on=on)
    excepted = exceptions.in_force(site, name, item.stack, stack.on)
    accept = exceptions.acceptances([*item.compat.accept, *excepted])
    platform = catalog.platforms[item.platform].item if item.platform is not None else None
    auto = item.gpu is not None and item.gpu.model == models.AUTO
    gpu: facts.GpuModel | None = None
    if item.gpu is not None and not auto:
        gpu = facts.gpu(item.gpu.model)
    elif auto and model is not None:
        gpu = _of_backend(entry, model)
    places = _places(entry, _CLASS_LINES)
    host = stack_host(
        stack, f"class {name}", places.pop("class"), gpus=(gpu,) if gpu is not None else ()
    )
    host = dataclasses.replace(
        host,
        name=name,
        # With `model: auto` the backend decides the vendor: the stack may carry no driver of its
        # own.
        auto=auto,
        vendor=checks.VENDOR_OF_BACKEND[item.backend] if auto else host.vendor,
        nvswitch=platform is not None and platform.nvswitch,
        platform=item.platform,
        simulated=item.simulated,
        tier=item.tier,
        unknown=item.compat.unknown,
        accept=accept,
        cmdline=tuple(item.policy.host.cmdline) or None,
        features=_features(item, stack.entry.item),
        places={**host.places, **places, **_part_places(entry)},
    )
    conditions = {*item.options, *(["nvswitch"] if host.nvswitch else [])}
    host = _with_parts(host, stack, conditions, (stack.entry.item.parts, item.parts))
    return ClassView(
        entry,
        stack,
        gpu,
        host=host,
        exceptions=excepted,
        mitigations=mitigations.in_force(site, name, stack.on, _kernel_version(stack)),
        catalog=catalog,
        site=site,
    )


def _kernel_version(stack: StackView) -> str | None:
    """Return the version of the kernel's package in the lock; None without a lock."""
    versions = (stack.versions.get(name) for name in stack.kernel_packages)
    return next((version for version in versions if version is not None), None)


def host_of_stack(
    name: str, catalog: Catalog, site: Site, *, on: dt.date | None = None
) -> CompatHost:
    """Return the host of stack `name` alone, without GPUs. Raises GoldnodeError for an unknown stack."""
    entry = catalog.stack(name)
    stack = read_stack(entry, site, on=on)
    place = DeclaredAt(entry.file, entry.source.line(("stack",)))
    host = stack_host(stack, f"stack {name}", place)
    host = _with_parts(host, stack, (), (entry.item.parts,))
    accept = exceptions.acceptances(exceptions.in_force(site, None, name, stack.on))
    return dataclasses.replace(host, accept=accept)


def _with_parts(
    host: CompatHost,
    stack: StackView,
    conditions: Collection[str],
    declared: Iterable[models.Parts],
) -> CompatHost:
    """Return the host with its further parts: those of the packages that it gets, then the declared ones."""
    locked: dict[str, str] = {}
    if stack.lock is not None:
        from goldnode.compat import parts  # start-up time: only a lock has packages

        locked = parts.of_packages(
            {row.name: row.version for row in stack.lock.packages if row.applies(conditions)}
        )
    stated = {name: value for part in declared for name, value in part if value is not None}
    if not locked and not stated:
        return host
    return dataclasses.replace(host, parts={**locked, **stated}, locked_parts=locked)


def _part_places(
    entry: CatalogEntry[models.NodeClass] | CatalogEntry[models.Stack],
) -> dict[str, DeclaredAt]:
    """Return the lines of the parts that a class or stack declares."""
    names = entry.item.parts.model_fields_set
    return _places(entry, {f"parts.{name}": ("parts", name) for name in names})


def _places(
    entry: CatalogEntry[Any], paths: Mapping[str, tuple[str, ...]]
) -> dict[str, DeclaredAt]:
    return {name: DeclaredAt(entry.file, line) for name, line in entry.lines(paths).items()}


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


def stack_host(
    stack: StackView, subject: str, place: DeclaredAt, *, gpus: tuple[facts.GpuModel, ...] = ()
) -> CompatHost:
    """Return a node with this stack and these GPUs: exact versions from the lock, otherwise what the stack states."""
    item, versions = stack.entry.item, stack.versions
    driver, runtime = item.driver, item.runtime
    image = stack.kernel_packages[0] if stack.kernel_packages else ""
    # A module whose package carries the version of a part is judged as that part.
    of_parts: Mapping[str, str] = {}
    if item.modules and stack.lock is not None:
        from goldnode.compat import parts  # start-up time: most stacks have no further modules

        of_parts = parts.by_package()
    host = CompatHost(
        subject,
        os=f"{item.os.id} {item.os.version}",
        architecture=item.os.architecture,
        kernel=stack.kernel,
        kernel_version=release_numbers(versions.get(image)),
        page_kib=item.kernel.page_kib,
        gpus=gpus,
        modules={
            module.name: release_numbers(versions.get(module.package)) or ""
            for module in item.modules
            if module.package is not None and module.package not in of_parts
        },
        place=place,
        stack=stack.entry.name,
        unlocked=stack.fault.message if stack.fault is not None else None,
        lock_fault=None if isinstance(stack.fault, NoLockError) else stack.fault,
        packages=(
            *(driver.packages if driver is not None else ()),
            *item.packages,
            # The subnet manager may be locked as a dependency.
            *(name for name in ("nvlsm",) if name in versions),
        ),
        archives=tuple(item.archives),
        end_of_life=item.end_of_life.date,
        end_of_life_source=item.end_of_life.source,
        waiver=_waiver(item.waiver),
        on=stack.on,
        places={**_places(stack.entry, _STACK_LINES), **_part_places(stack.entry)},
    )
    if runtime is not None:
        mode = stack.toolkit_mode
        host = dataclasses.replace(
            host,
            engine=runtime.engine,
            engine_version=versions.get(runtime.package),
            toolkit=release_numbers(stack.toolkit),
            toolkit_mode=mode.mode if mode is not None else None,
        )
    return host if driver is None else _with_driver(host, driver, stack)


def _with_driver(host: CompatHost, driver: models.Driver, stack: StackView) -> CompatHost:
    """Return the host with the driver of its stack."""
    module = stack.versions.get(driver.dkms.package) if driver.dkms is not None else None
    manager = driver.fabric_manager.package if driver.fabric_manager is not None else None
    version = driver.version if stack.lock is None else stack.lock.driver_version
    return dataclasses.replace(
        host,
        vendor=driver.vendor,
        branch=driver.branch,
        driver=version if driver.vendor == "nvidia" else None,
        driver_package=module,
        flavour=_flavour(driver, host.gpus),
        fabric_manager=release_numbers(stack.versions.get(manager)) if manager else None,
        fabric_manager_package=manager,
        amdgpu=release_numbers(module) if driver.vendor == "amd" else None,
        kernel_module=driver.module if driver.vendor == "intel" else None,
        opencl=release_numbers(stack.versions.get("intel-opencl-icd")),
    )


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


def _flavour(driver: models.Driver, gpus: tuple[facts.GpuModel, ...]) -> ModuleFlavour | None:
    """Return the driver flavour. The GPU decides `auto`; for a stack alone it stays None."""
    if driver.branch is None:
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
    if waiver is None:
        return None
    return StackWaiver(waiver.reason, waiver.owner, waiver.expires, tuple(waiver.classes))
