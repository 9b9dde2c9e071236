"""Checks of a catalog file against the facts and the other files.

Each check raises the error of the first fault, at the line of the value. `not_checked` returns
values that the facts cannot judge, so that silence is never taken for a pass. Compatibility (GPU,
driver, kernel, toolkit …) is the job of `goldnode.compat`, class by class.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, get_args

from goldnode.catalog import models
from goldnode.compat import rules
from goldnode.core.errors import CatalogError, FactsError, WorkloadError, nearest
from goldnode.facts import health
from goldnode.facts import host as facts
from goldnode.facts import mig as placement
from goldnode.node.gate.return_tests import CAUSES
from goldnode.node.state import kinds

if TYPE_CHECKING:
    from goldnode.catalog.load import Catalog, CatalogEntry

ARCHITECTURES = get_args(models.OperatingSystem.model_fields["architecture"].annotation)
# Driver vendor of each backend.
VENDOR_OF_BACKEND: Mapping[str, Literal["nvidia", "amd", "intel"] | None] = {
    "cuda": "nvidia",
    "rocm": "amd",
    "oneapi": "intel",
    "cpu": None,
}


def check_stack(entry: CatalogEntry[models.Stack], catalog: Catalog) -> None:
    """Check a stack's archives, and its driver and dates against the facts. Raises CatalogError."""
    stack = entry.item
    _check_os(entry)
    named = [
        (("archives",), stack.archives),
        *((("options", part, "archives"), row.archives) for part, row in stack.options.items()),
    ]
    for keys, names in named:
        for index, name in enumerate(names):
            if name not in catalog.archives:
                raise entry.error(
                    f'archive "{name}" is not in the catalog',
                    *keys,
                    index,
                    remedy=nearest(name, catalog.archives),
                )
    _check_modules(entry)
    _check_toolkit(entry)
    driver = stack.driver
    if driver is None or driver.vendor != "nvidia" or driver.branch is None:
        return
    try:
        branch = facts.branch(driver.branch)
    except FactsError as error:
        raise entry.error(error.message, "driver", "branch", remedy=error.remedy) from None
    if branch.end_of_life is not None:
        last = rules.last_day(branch.end_of_life)
        if stack.end_of_life.date > last:
            reported = "; ".join(
                f"{date} by {origin}" for origin, date in branch.end_of_life_sources
            )
            raise entry.error(
                f"the stack claims support until {stack.end_of_life.date}, but driver branch {branch.name} "
                f"ends {branch.end_of_life} ({reported})",
                "end_of_life",
                "date",
                remedy=f'write "{last}" or earlier',
            )
    if driver.fabric_manager is not None:
        expected = rules.fabric_manager_package(driver.branch)
        if driver.fabric_manager.package != expected:
            raise entry.error(
                f'the fabric manager of branch {driver.branch} is called "{expected}", not '
                f'"{driver.fabric_manager.package}"',
                "driver",
                "fabric_manager",
                "package",
                remedy=f'use "{expected}"',
            )


def _check_os(entry: CatalogEntry[models.Stack]) -> None:
    """Check that version, codename and architecture belong to one release known to the facts."""
    os = entry.item.os
    kernel = entry.item.kernel
    for key, value in (("flavour", kernel.flavour), ("release", kernel.release)):
        other = next(
            (name for name in ARCHITECTURES if value is not None and value.split("-")[-1] == name),
            os.architecture,
        )
        if other != os.architecture:
            raise entry.error(
                f"kernel {value} is of architecture {other}, and the stack of {os.architecture}",
                "kernel",
                key,
                remedy=f"write architecture: {other}, or the kernel of {os.architecture}",
            )
    # The facts need not know the release: an unknown one is not an error here.
    row = facts.distribution(f"{os.id} {os.version}")
    codename = row.get("codename") if row is not None else None
    if row is not None and codename is not None and os.codename != codename:
        raise entry.error(
            f'{os.id.capitalize()} {os.version} is "{codename}", not "{os.codename}" (facts/distros.yml, '
            f"{row['id']})",
            "os",
            "codename",
            remedy=f'use "{codename}", or correct the version',
        )


def _check_modules(entry: CatalogEntry[models.Stack]) -> None:
    """Check that each out-of-tree module has a package and comes after the modules it depends on."""
    stack = entry.item
    own = [stack.driver.module] if stack.driver is not None else []
    known: list[str] = []
    for index, module in enumerate(stack.modules):
        if module.name in (*known, *own):
            raise entry.error(
                f'module "{module.name}" is declared twice',
                "modules",
                index,
                "name",
                remedy="keep one of the two",
            )
        if module.package is None and (stack.driver is None or stack.driver.in_tree):
            raise entry.error(
                f'module "{module.name}" has no package, and the stack has no driver whose packages would '
                "install it",
                "modules",
                index,
                remedy="name its package",
            )
        if module.package is None and (module.dkms is not None or module.before_driver):
            key = "dkms" if module.dkms is not None else "before_driver"
            raise entry.error(
                f'module "{module.name}" is the driver\'s own, which settles `{key}`',
                "modules",
                index,
                key,
                remedy=f"name its package, or remove `{key}`",
            )
        for place, name in enumerate(module.after):
            allowed = [*known, *([] if module.before_driver else own)]
            if name not in allowed:
                later = name in [other.name for other in stack.modules] or name in own
                raise entry.error(
                    f'module "{module.name}" comes after "{name}", which '
                    f"{'comes later' if later else 'the stack does not have'}",
                    "modules",
                    index,
                    "after",
                    place,
                    remedy="put it before this one" if later else nearest(name, allowed),
                )
        known.append(module.name)


def check_platform(entry: CatalogEntry[models.Platform]) -> None:
    """Check the GPU models a platform names. Raises CatalogError."""
    if entry.item.gpus is None:
        return
    for index, model in enumerate(entry.item.gpus.models):
        try:
            facts.gpu(model)
        except FactsError as error:
            raise entry.error(error.message, "gpus", "models", index, remedy=error.remedy) from None


def check_class(entry: CatalogEntry[models.NodeClass], catalog: Catalog) -> None:
    """Check a class's references and values. Raises CatalogError."""
    item = entry.item
    if item.stack not in catalog.stacks:
        raise entry.error(
            f'stack "{item.stack}" is not in the catalog',
            "stack",
            remedy=nearest(item.stack, catalog.stacks),
        )
    stack = catalog.stacks[item.stack].item
    for index, option in enumerate(item.options):
        known = [*stack.options, models.KERNEL_HEADERS]
        if option not in known:
            raise entry.error(
                f'stack "{stack.stack}" has no optional part "{option}"',
                "options",
                index,
                remedy=nearest(option, known) or "take it out, or add it to `options` of the stack",
            )
    _check_backend(entry, stack)
    if item.gate == "block" and stack.runtime is not None and stack.runtime.engine == "podman":
        raise entry.error(
            f'stack "{stack.stack}" has podman, which has no daemon that a gate could keep from starting',
            "gate",
            remedy=(
                "use `drain`, which keeps the scheduler from starting work, or a stack with docker or "
                "containerd"
            ),
        )
    _check_return_tests(entry)
    if item.images or item.requirements:
        _check_workloads(entry)
    gpu = None
    if item.gpu is not None and item.gpu.model != models.AUTO:
        try:
            gpu = facts.gpu(item.gpu.model)
        except FactsError as error:
            raise entry.error(error.message, "gpu", "model", remedy=error.remedy) from None
    _check_platform_of(entry, catalog, stack)
    _check_host(entry)
    _check_suppressions(entry)
    if item.gpu is not None and item.gpu.model == models.AUTO:
        _check_auto(entry, stack)
        return
    if gpu is None:
        if item.baseline.gpu is not None:
            raise entry.error(
                "the class has no GPU, but its baseline speaks of one",
                "baseline",
                "gpu",
                remedy="remove it, or declare `gpu`",
            )
        # Without GPUs, only the part about the host can have an effect.
        # The first question spares a validator, which takes longer to build than all else here.
        stated = item.policy.model_fields_set - {"host"}
        if stated and item.policy != models.Policy(host=item.policy.host):
            raise entry.error(
                "the class has no GPU, but its policy sets one",
                "policy",
                remedy="keep only `host`, or declare `gpu`",
            )
        return
    _check_gpu(entry, gpu, stack)
    _check_policy(entry, gpu, _branch(stack))
    _check_baseline(entry, gpu)


def _check_workloads(entry: CatalogEntry[models.NodeClass]) -> None:
    """Check image references, their stated properties, and that the named files exist.

    The content of the files is read by the compatibility check.
    """
    from goldnode.compat import workloads

    base = entry.file.parent
    for index, image in enumerate(entry.item.images):
        try:
            workloads.parse_reference(image.ref)
            if image.metadata is None:
                workloads.image(image.ref, image)
        except WorkloadError as error:
            raise entry.error(error.message, "images", index, remedy=error.remedy) from None
        if image.metadata is not None and not (base / image.metadata).exists():
            raise entry.error(
                f"there is no {base / image.metadata}",
                "images",
                index,
                "metadata",
                remedy="name it relative to this file",
            )
    for index, text in enumerate(entry.item.requirements):
        # start-up time: few classes name requirements
        from goldnode.compat.project_files import split_extras

        path, _ = split_extras(base / text)
        if not path.is_file():
            raise entry.error(
                f"there is no file {path}",
                "requirements",
                index,
                remedy="name it relative to this file",
            )


def check_waiver(entry: CatalogEntry[models.Stack], catalog: Catalog) -> None:
    """Refuse a waiver for a class that does not use the stack: it has no effect. Raises CatalogError."""
    for index, name in enumerate(
        entry.item.waiver.classes if entry.item.waiver is not None else ()
    ):
        users = [
            node_class.name
            for node_class in catalog.classes.values()
            if node_class.item.stack == entry.name
        ]
        if name not in users:
            other = catalog.classes.get(name)
            why = (
                f'uses stack "{other.item.stack}"' if other is not None else "is not in the catalog"
            )
            remedy = "take it out"
            if other is None and users:
                remedy = f"{nearest(name, users)}, or take it out"
            raise entry.error(
                f'the waiver is for class "{name}", which {why}',
                "waiver",
                "classes",
                index,
                remedy=remedy,
            )


def not_checked(entry: CatalogEntry[models.NodeClass]) -> list[str]:
    """Return the settings of the class that the facts cannot judge, one sentence each."""
    item = entry.item
    if item.gpu is None:
        return []
    if item.gpu.model == models.AUTO:
        return [
            "the GPU model is the node's own (auto); the node is judged by the facts of its model"
        ]
    gpu = facts.gpu(item.gpu.model)
    sentences = []
    policies = [item.policy, *item.policy.overrides]
    if any(policy.clocks is not None for policy in policies):
        sentences.append(
            f"policy.clocks was not checked: the facts hold no supported clocks of {gpu.sku}"
        )
    if (
        any(policy.power_limit_watts is not None for policy in policies)
        and gpu.power_limit_default_w is None
    ):
        sentences.append(
            f"policy.power_limit_watts was not checked: the facts hold no power limit of {gpu.sku}"
        )
    if any(policy.mig is not None for policy in policies) and gpu.mig_capable is None:
        sentences.append(
            f"policy.mig was not checked: the facts do not say whether {gpu.sku} has MIG"
        )
    known = health.hardware(item.gpu.model)
    pcie = item.baseline.gpu.pcie if item.baseline.gpu is not None else None
    for key, name, fact in (
        ("gen", "generation", known.pcie_gen),
        ("width", "width", known.pcie_width),
    ):
        if fact is None and (pcie is None or getattr(pcie, key) is None):
            sentences.append(
                f"the PCIe {name} of {gpu.sku} is neither in the facts nor in baseline.gpu.pcie: nodes "
                "validate it against the maximum of both ends"
            )
    if item.policy.module_options:
        sentences.append(
            "policy.module_options was not checked: the facts hold no list of module options"
        )
    return sentences


def _check_toolkit(entry: CatalogEntry[models.Stack]) -> None:
    """Check that the stack lists all packages of the NVIDIA container toolkit.

    Raises CatalogError. Rule `toolkit-floor` judges its version.
    """
    toolkit = entry.item.runtime.toolkit if entry.item.runtime is not None else None
    if toolkit is None or toolkit.vendor != "nvidia":
        return
    known = [str(name) for name in facts.load("container_toolkit.yml")["packages"]["names"]]
    missing = [name for name in known if name not in toolkit.packages]
    if missing:
        raise entry.error(
            f'the container toolkit lacks "{missing[0]}": its packages carry one version and move together',
            "runtime",
            "toolkit",
            "packages",
            remedy=f"list {', '.join(known)}",
        )


def _check_backend(entry: CatalogEntry[models.NodeClass], stack: models.Stack) -> None:
    item = entry.item
    wanted = VENDOR_OF_BACKEND[item.backend]
    have = stack.driver.vendor if stack.driver is not None else None
    if wanted != have:
        backend = next(name for name, vendor in VENDOR_OF_BACKEND.items() if vendor == have)
        carries = f"carries {_driver_of(have)}"
        raise entry.error(
            f'backend "{item.backend}" needs {_driver_of(wanted)}, but stack "{item.stack}" {carries}',
            "backend",
            remedy=f'use backend "{backend}", or a stack with {_driver_of(wanted)}',
        )
    if item.backend == "cpu" and item.gpu is not None:
        raise entry.error(
            "a class of backend cpu declares GPUs", "gpu", remedy="remove `gpu` or change `backend`"
        )
    if item.backend != "cpu" and item.gpu is None:
        raise entry.error(
            f'backend "{item.backend}" needs `gpu`',
            "backend",
            remedy="declare gpu: {model: …, count: …}",
        )


def _driver_of(vendor: str | None) -> str:
    names = {"nvidia": "an NVIDIA driver", "amd": "an AMD driver", "intel": "an Intel driver"}
    return "no GPU driver" if vendor is None else names[vendor]


def _check_platform_of(
    entry: CatalogEntry[models.NodeClass], catalog: Catalog, stack: models.Stack
) -> None:
    item = entry.item
    if item.platform is None:
        return
    if item.platform not in catalog.platforms:
        raise entry.error(
            f'platform "{item.platform}" is not in the catalog',
            "platform",
            remedy=nearest(item.platform, catalog.platforms),
        )
    platform = catalog.platforms[item.platform].item
    slots = platform.gpus
    if item.gpu is not None and slots is not None:
        if slots.models and item.gpu.model not in slots.models:
            # The class knows its GPU; most likely the platform is the mistake.
            fitting = [
                name
                for name, other in sorted(catalog.platforms.items())
                if other.item.gpus is not None and item.gpu.model in other.item.gpus.models
            ]
            built = "another platform, or none: no platform names it"
            if fitting:
                built = f"platform {' or '.join(fitting)}, which is built with it"
            raise entry.error(
                f'platform "{item.platform}" is not built with {item.gpu.model}, but with '
                f"{', '.join(slots.models)}",
                "platform",
                remedy=f"use {built}",
            )
        if item.gpu.count > slots.count:
            raise entry.error(
                f'{item.gpu.count} GPUs do not fit platform "{item.platform}", which has {slots.count}',
                "gpu",
                "count",
                remedy=f"use at most {slots.count}",
            )


def is_finding(pattern: str) -> bool:
    """Return whether `pattern` (an id, * and ? as in file names) can match a finding of the health check."""
    if any(fnmatchcase(name, pattern) for name in findings()):
        return True
    begins = re.split(r"[*?\[]", pattern)[0]
    if begins == pattern:
        return kinds.kind(pattern) is not None
    # The rest of a family's id is given by the class or the node, so the parts before both
    # wildcards decide.
    families = [name.partition("*")[0] for name in kinds.KINDS if "*" in name]
    return any(begins.startswith(name) or name.startswith(begins) for name in families)


def findings() -> list[str]:
    """Return all fixed finding ids (docs/reference/sanity.md)."""
    return sorted(name for name in kinds.KINDS if "*" not in name)


def _check_return_tests(entry: CatalogEntry[models.NodeClass]) -> None:
    """Refuse tests that nothing would enforce: those of the gate, where it does not drain."""
    tests = entry.item.return_tests
    if tests is None or entry.item.gate == "drain":
        return
    for cause in CAUSES:
        if getattr(tests, f"after_{cause}"):
            raise entry.error(
                f"nothing enforces after_{cause} with `gate: {entry.item.gate}`: only a gate that drains holds a node",
                "return_tests",
                f"after_{cause}",
                remedy="write `gate: drain`, or remove the key",
            )


def _check_suppressions(entry: CatalogEntry[models.NodeClass]) -> None:
    for index, item in enumerate(entry.item.suppressions):
        if not is_finding(item.id):
            raise entry.error(
                f'there is no finding "{item.id}" that could be suppressed',
                "suppressions",
                index,
                "id",
                remedy=nearest(item.id, findings()),
            )


def past_suppressions(
    entry: CatalogEntry[models.NodeClass], on: dt.date | None = None
) -> list[str]:
    """Return a sentence for each suppression that expired before day `on` (default today).

    Its findings count again.
    """
    today = on or dt.datetime.now(tz=dt.UTC).date()
    return [
        f"{entry.file}:{entry.source.line(('suppressions', index))}: "
        f'"{item.id}" was accepted by {item.owner} until {item.expires}, and counts '
        f"again. Fix its cause, or have {item.owner} renew it."
        for index, item in enumerate(entry.item.suppressions)
        if item.expires < today
    ]


# Kernel command line parameters that have their own key in `policy.host`.
_WORD_KEYS = {
    **dict.fromkeys(("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough"), "iommu"),
    **dict.fromkeys(("hugepages", "hugepagesz", "default_hugepagesz"), "hugepages"),
    "transparent_hugepage": "transparent_hugepages",
    "numa_balancing": "numa_balancing",
}
# At most IFNAMSIZ - 1 characters, and none that is a pattern in udev rules.
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")


def _check_host(entry: CatalogEntry[models.NodeClass]) -> None:
    host, network = entry.item.policy.host, entry.item.baseline.network
    seen: set[str] = set()
    for index, word in enumerate(host.cmdline):
        key = word.partition("=")[0]
        rival = _WORD_KEYS.get(key)
        if word in seen:
            raise entry.error(
                f'"{word}" appears twice in the command line',
                "policy",
                "host",
                "cmdline",
                index,
                remedy="remove one of them",
            )
        if rival is not None and getattr(host, rival) not in (None, {}):
            raise entry.error(
                f'"{word}" repeats `{rival}` of this class',
                "policy",
                "host",
                "cmdline",
                index,
                remedy=f"keep one of the two; `{rival}` is read back and judged",
            )
        seen.add(word)
    for name, interface in host.network.items():
        if not _INTERFACE.fullmatch(name):
            raise entry.error(
                f'"{name}" is not the name of a network interface',
                "policy",
                "host",
                "network",
                name,
                remedy="write the name as `ip link` shows it, at most 15 letters and digits",
            )
        healthy = network[name].mtu if name in network else None
        if healthy is not None and healthy != interface.mtu:
            raise entry.error(
                f"the baseline wants MTU {healthy} on {name}, and the policy sets {interface.mtu}",
                "baseline",
                "network",
                name,
                "mtu",
                remedy=f"write {interface.mtu}, or leave it out: what the policy sets is judged as well",
            )


def _check_gpu(
    entry: CatalogEntry[models.NodeClass], gpu: facts.GpuModel, stack: models.Stack
) -> None:
    driver = stack.driver
    if driver is None:
        return
    if gpu.vendor != driver.vendor:
        raise entry.error(
            f'{gpu.sku} needs {_driver_of(gpu.vendor)}, but stack "{stack.stack}" carries '
            f"{_driver_of(driver.vendor)}",
            "gpu",
            "model",
            remedy="correct the model or the stack",
        )


def _check_auto(entry: CatalogEntry[models.NodeClass], stack: models.Stack) -> None:
    """Check a class with `model: auto`: nothing in it may depend on a model that is not known. Raises CatalogError."""
    item = entry.item
    if stack.driver is not None and stack.driver.flavour == "auto":
        raise entry.error(
            f'stack "{stack.stack}" chooses the flavour of its kernel modules by the GPU model, which this class leaves open',
            "gpu",
            "model",
            remedy="declare the model, or use a stack with one flavour",
        )
    if item.baseline.gpu is not None:
        raise entry.error(
            "the baseline is of one GPU model, and the class takes any (`model: auto`)",
            "baseline",
            "gpu",
            remedy="declare the model, or remove it",
        )
    for key in ("clocks", "power_limit_watts", "ecc", "mig"):
        if getattr(item.policy, key) is not None:
            raise entry.error(
                f"`{key}` depends on the GPU model, and the class takes any (`model: auto`)",
                "policy",
                key,
                remedy=f"declare the model, or write `{key}` into policy.overrides for each model that has it",
            )
    for index, override in enumerate(item.policy.overrides):
        if override.model is None:
            raise entry.error(
                f"an override for {override.target} cannot be checked where the model is open (`model: auto`)",
                "policy",
                "overrides",
                index,
                remedy="write it for a model",
            )
    vendor = VENDOR_OF_BACKEND[item.backend]
    # Any model of the vendor will do: what depends on the model was refused above.
    gpu = next(gpu for gpu in facts.gpus().values() if gpu.vendor == vendor)
    _check_policy(entry, gpu, _branch(stack))


# Settings that only one vendor's driver supports.
_NVIDIA_ONLY = ("persistence_mode", "clocks", "ecc", "compute_mode", "mig", "sharing")
_AMD_ONLY = ("performance_level",)
# Nothing is set on Intel's GPUs.
_NOT_INTEL = (*_NVIDIA_ONLY, *_AMD_ONLY, "power_limit_watts")


def _branch(stack: models.Stack) -> int | None:
    """Return the branch of the stack's driver; None without one."""
    declared = None if stack.driver is None else stack.driver.branch
    return None if declared is None else int(declared)


def _check_policy(
    entry: CatalogEntry[models.NodeClass], gpu: facts.GpuModel, branch: int | None
) -> None:
    policy = entry.item.policy
    _check_settings(entry, policy, gpu, branch, where=("policy",))
    seen: dict[str, int] = {}
    for index, override in enumerate(policy.overrides):
        where = ("policy", "overrides", index)
        for name in _targets(override):
            if name in seen:
                raise entry.error(
                    f"overrides {seen[name] + 1} and {index + 1} are both for {name}",
                    *where,
                    remedy="make one of the two",
                )
            seen[name] = index
        _check_indexes(entry, override, where)
        if not set(override.model_dump(exclude_none=True)) - {"model", "indexes", "uuid"}:
            raise entry.error(
                f"the override for {override.target} changes nothing",
                *where,
                remedy="state the difference, or remove it",
            )
        own = gpu
        if override.model is not None:
            try:
                own = facts.gpu(override.model)
            except FactsError as error:
                raise entry.error(error.message, *where, "model", remedy=error.remedy) from None
            if own.vendor != gpu.vendor:
                raise entry.error(
                    f"{own.sku} needs {_driver_of(own.vendor)}, but the class is of {gpu.sku}",
                    *where,
                    "model",
                    remedy=f"use a model with {_driver_of(gpu.vendor)}, or remove the override",
                )
        _check_settings(entry, override, own, branch, where=where)
        _check_mode_with_mig(entry, override, where)
    _check_mode_with_mig(entry, None, ("policy",))


def _targets(override: models.GpuOverride) -> list[str]:
    if override.indexes is None:
        return [override.target]
    return [f"GPU {number}" for number in override.indexes]


def _check_indexes(
    entry: CatalogEntry[models.NodeClass],
    override: models.GpuOverride,
    where: tuple[str | int, ...],
) -> None:
    """Refuse an override for GPUs that the nodes of the class do not have."""
    count = entry.item.gpu.count if entry.item.gpu is not None else 0
    beyond = [number for number in override.indexes or () if number >= count]
    if beyond:
        raise entry.error(
            f"the nodes of the class have {count} GPUs, and their indexes end with {count - 1}, not with {beyond[0]}",
            *where,
            "indexes",
            remedy=f"use indexes from 0 to {count - 1}",
        )


def _check_settings(
    entry: CatalogEntry[models.NodeClass],
    policy: models.GpuPolicy,
    gpu: facts.GpuModel,
    branch: int | None,
    *,
    where: tuple[str | int, ...],
) -> None:
    """Check settings against the limits of a GPU model, as far as the facts know them.

    The node validates them again against the actual board.
    """
    for key in _NOT_INTEL if gpu.vendor == "intel" else ():
        if getattr(policy, key, None) is not None:
            raise entry.error(
                f"goldnode sets no `{key}` on Intel's GPUs", *where, key, remedy=f"remove `{key}`"
            )
    for key in _AMD_ONLY if gpu.vendor == "nvidia" else _NVIDIA_ONLY:
        if getattr(policy, key, None) is not None and not (key == "mig" and gpu.vendor == "amd"):
            raise entry.error(
                f"`{key}` is of {'AMD' if gpu.vendor == 'nvidia' else 'NVIDIA'}'s GPUs only, and {gpu.sku} "
                "is not one",
                *where,
                key,
                remedy=f"remove `{key}`",
            )
    clocks = policy.clocks
    # In an override, `mode` alone is valid: it applies the class's clocks in another mode.
    empty = clocks is not None and clocks.graphics_mhz is None and clocks.memory_mhz is None
    if (
        clocks is not None
        and empty
        and (where == ("policy",) or "mode" not in clocks.model_fields_set)
    ):
        raise entry.error(
            "`clocks` names no clock",
            *where,
            "clocks",
            remedy="write graphics_mhz, memory_mhz or both, or remove `clocks`",
        )
    limit = gpu.power_limit_default_w
    if (
        policy.power_limit_watts is not None
        and limit is not None
        and policy.power_limit_watts > limit
    ):
        raise entry.error(
            f"{policy.power_limit_watts} W is above the {limit} W limit of {gpu.sku} "
            f"({_origin(gpu, 'memory_power')})",
            *where,
            "power_limit_watts",
            remedy=f"use at most {limit}",
        )
    mig = policy.mig
    if mig is None or (not mig.enabled and gpu.vendor == "nvidia"):
        return
    # Rows of other vendors have no `mig` key. NVIDIA's rows have true, false, or null for
    # "unknown".
    if gpu.mig_capable is False or gpu.vendor != "nvidia":
        raise entry.error(
            f"{gpu.sku} has no MIG ({_origin(gpu, 'mig')})",
            *where,
            "mig",
            "enabled",
            remedy="remove `mig`",
        )
    known = gpu.mig_profiles or ()
    for index, profile in enumerate(mig.profiles):
        if known and profile not in known:
            same_slices = [name for name in known if name.split(".")[0] == profile.split(".")[0]]
            raise entry.error(
                f'"{profile}" is not a MIG profile of {gpu.sku} ({_origin(gpu, "mig")})',
                *where,
                "mig",
                "profiles",
                index,
                remedy=nearest(profile, same_slices or known),
            )
    fault = placement.fault(gpu, branch, mig.profiles)
    if fault is not None:
        raise _impossible_layout(entry, gpu, fault, (*where, "mig", "profiles"))


def _impossible_layout(
    entry: CatalogEntry[models.NodeClass],
    gpu: facts.GpuModel,
    fault: placement.MigFault,
    where: tuple[str | int, ...],
) -> CatalogError:
    """Return the error of MIG profiles for which one GPU has no placement, or that the driver branch does not have."""
    remedy = "use other profiles"
    if fault.possible:
        remedy = (
            f"use `profiles: [{', '.join(fault.possible)}]`, the largest part of them that fits"
        )
    elif fault.profile is not None:
        remedy = f"remove `{fault.profile}`"
    sources = "; ".join(str(origin) for origin in fault.origins)
    return entry.error(f"{gpu.sku}: {fault.message} ({sources})", *where, remedy=remedy)


def _check_mode_with_mig(
    entry: CatalogEntry[models.NodeClass],
    override: models.GpuOverride | None,
    where: tuple[str | int, ...],
) -> None:
    """Refuse a compute mode other than the default together with MIG.

    With MIG enabled, the compute mode is the default one and cannot be changed (nvml.h,
    nvmlDeviceSetComputeMode). For an override the effective settings count: its own, otherwise
    those of the class.
    """
    policy = entry.item.policy
    mig, mode = policy.mig, policy.compute_mode
    if override is not None:
        mig, mode = override.mig or mig, override.compute_mode or mode
    if mig is None or not mig.enabled:
        return
    sharing = policy.sharing if override is None or override.compute_mode is None else None
    for key, value in (("compute_mode", mode), ("sharing", sharing)):
        if value not in (None, "default", "none"):
            own = override is None or getattr(override, key, None) is not None
            remedy = f"remove `{key}`, or `mig`"
            if not own:
                remedy = "add `compute_mode: default` to the override, or remove its `mig`"
            raise entry.error(
                f"`{key}: {value}`{'' if own else ' of the class'} is not possible with MIG, which fixes "
                "the compute mode to default (nvml.h)",
                *where,
                key if own else "mig",
                remedy=remedy,
            )


# Share of the VRAM that a driver may reserve. More missing VRAM is a fault (facts/health.yml,
# memory_sets).
_VRAM = 0.05


def _check_baseline(entry: CatalogEntry[models.NodeClass], gpu: facts.GpuModel) -> None:
    """Require a reason for a baseline that contradicts the facts about the model.

    The difference is either by design, or a fault that was blessed.
    """
    baseline = entry.item.baseline.gpu
    if baseline is None:
        return
    where = ("baseline", "gpu")
    _check_hardware(entry, baseline, gpu, baseline.reason, where)
    count = entry.item.gpu.count if entry.item.gpu is not None else 0
    if len(baseline.numa) > count:
        raise entry.error(
            f"NUMA nodes of {len(baseline.numa)} GPUs, and a node has {count}",
            *where,
            "numa",
            remedy="keep one for each GPU",
        )
    if len(baseline.overrides) > count:
        raise entry.error(
            f"{len(baseline.overrides)} overrides, and a node has {count} GPUs",
            *where,
            "overrides",
            remedy="remove those too many",
        )
    for index, override in enumerate(baseline.overrides):
        _check_hardware(entry, override, gpu, override.reason, (*where, "overrides", index))


def _check_hardware(
    entry: CatalogEntry[models.NodeClass],
    stated: models.GpuHealth,
    gpu: facts.GpuModel,
    reason: str | None,
    where: tuple[str | int, ...],
) -> None:
    known = health.hardware(gpu.sku)
    more = "correct it, or say in `reason` why it is right"
    for key, have in (("gen", known.pcie_gen), ("width", known.pcie_width)):
        want = getattr(stated.pcie, key) if stated.pcie is not None else None
        if (
            want is not None
            and have is not None
            and want != have
            and (want > have or reason is None)
        ):
            raise entry.error(
                f"PCIe {'generation' if key == 'gen' else 'width'} {want}, and {gpu.sku} has {have} "
                f"({_origin(gpu, 'pcie')})",
                *where,
                "pcie",
                key,
                remedy=f"use at most {have}" if want > have else more,
            )
    if (
        stated.nvlinks is not None
        and known.nvlinks is not None
        and stated.nvlinks != known.nvlinks
        and reason is None
    ):
        raise entry.error(
            f"{stated.nvlinks} NVLinks, and {gpu.sku} has {known.nvlinks} ({_origin(gpu, 'nvlink')})",
            *where,
            "nvlinks",
            remedy=more,
        )
    for index, size in enumerate(stated.memory_mib):
        if (
            known.memory_mib
            and reason is None
            and all(abs(size - right) > _VRAM * right for right in known.memory_mib)
        ):
            sizes = " or ".join(str(right) for right in known.memory_mib)
            raise entry.error(
                f"{size} MiB of VRAM, and {gpu.sku} has {sizes} ({_origin(gpu, 'memory')})",
                *where,
                "memory_mib",
                index,
                remedy=more,
            )


def _origin(gpu: facts.GpuModel, name: str) -> str:
    # AMD's rows have separate sources for power and memory, NVIDIA's one source for both.
    origins = gpu.origins(name) or gpu.origins("power")
    return "; ".join(str(origin) for origin in origins) or "facts/gpus.yml"
