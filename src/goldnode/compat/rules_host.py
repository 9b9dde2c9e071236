"""Rules over the node alone: GPU, driver, kernel, OS, fabric manager, container toolkit, support and security.

Each rule is silent about what the host does not state; what is stated and no source judges is `unknown`. Facts of one row that decided are
shown with the row's own doubts.
"""

from __future__ import annotations

from collections.abc import Iterator

from goldnode.compat import facts, rules
from goldnode.compat.facts import Gpu, Origin, numbers
from goldnode.compat.model import Finding, Host, Rule, Workload
from goldnode.errors import FactsError


def _branch(host: Host) -> facts.Branch | None:
    """The facts of the host's driver branch; None where it has no NVIDIA branch, or one that the facts do not know."""
    if host.vendor != "nvidia" or host.branch is None:
        return None
    try:
        return facts.branch(host.branch)
    except FactsError:
        return None


def _driver(host: Host) -> str:
    """The driver for a sentence: its version, else its branch."""
    return f"driver {host.driver}" if host.driver else f"driver branch {host.branch}"


# GPU and driver


def gpu_driver(host: Host | None, workload: Workload | None = None) -> Iterator[Finding]:
    """The driver is new enough for the GPU, and its branch has not dropped the GPU's architecture."""
    if host is None or host.branch is None:
        return
    branch = _branch(host)
    if branch is None:
        yield Finding(
            "gpu-driver",
            "unknown",
            host.subject,
            f"NVIDIA driver branch {host.branch} is not in the facts, so that nothing is known of the GPUs it supports",
            (),
            f"use a branch that the facts know: {', '.join(facts.branches()[-6:])}",
            host.at("driver"),
        )
        return
    for gpu in host.gpus:
        if gpu.vendor == "nvidia":
            yield from _too_old(host, gpu, branch)
            yield from _dropped(host, gpu, branch)


def _too_old(host: Host, gpu: Gpu, branch: facts.Branch) -> Iterator[Finding]:
    least = _least(gpu, branch.name)
    if least is None:
        newest = _order(branch.newest_architecture)
        if newest is not None and (_order(gpu.architecture) or 0) > newest:
            message = (
                f"{gpu.sku} is of architecture {gpu.architecture}, and driver branch {branch.name} ends with {branch.newest_architecture}"
            )
            yield _gpu_finding(host, "block", message, branch.architecture_origins, _from_branch(gpu))
        return
    # Of some models only the oldest branch that lists them is known.
    origins = gpu.origins("min_driver")
    if host.driver is not None:
        short = numbers(host.driver) < numbers(least)
    else:  # only the branch is known: some version of it has to reach the least
        short = numbers(branch.name) < numbers(least)[:1] or (
            numbers(branch.name) == numbers(least)[:1]
            and bool(branch.point_releases)
            and max(map(numbers, branch.point_releases)) < numbers(least)
        )
    if short:
        first = f"driver {least}" if "." in least else f"driver branch {least}"
        message = f"{gpu.sku} needs {first} or later, and the stack has {_driver(host)}"
        yield _gpu_finding(host, "block", message, origins, f"use {first} or later; {_supported(gpu)}", _doubt(gpu))


def _dropped(host: Host, gpu: Gpu, branch: facts.Branch) -> Iterator[Finding]:
    oldest, own = _order(branch.oldest_architecture), _order(gpu.architecture)
    if oldest is not None and own is not None and own < oldest:
        last = [name for name in facts.branches() if (_order(facts.branch(name).oldest_architecture) or 0) <= own][-1]
        message = f"driver branch {branch.name} supports {branch.oldest_architecture} and later, and {gpu.sku} is {gpu.architecture}"
        yield _gpu_finding(
            host, "block", message, branch.architecture_origins, f"use driver branch {last}, the last for {gpu.architecture}"
        )


def _gpu_finding(host: Host, severity: object, message: str, origins: tuple[Origin, ...], remedy: str, doubt: str | None = None) -> Finding:
    return Finding("gpu-driver", severity, host.subject, message, origins, remedy, host.at("gpu", "driver"), doubt)  # type: ignore[arg-type]


def _least(gpu: Gpu, branch: str) -> str | None:
    """The first driver that supports `gpu`, as branch `branch` sees it: its own first version where it came to several branches."""
    if not gpu.min_driver:
        return gpu.min_driver_branch
    own = [version for version in gpu.min_driver if numbers(version)[:1] == numbers(branch)]
    return own[0] if own else min(gpu.min_driver, key=numbers)


def _doubt(gpu: Gpu) -> str | None:
    """What the GPU's row says against its drivers; its other doubts (memory, PCIe) have no part in this."""
    return gpu.doubt if gpu.doubt is not None and "driver" in gpu.doubt else None


def _supported(gpu: Gpu) -> str:
    """The branches that still get fixes and support `gpu`, for a remedy."""
    least = min(map(numbers, gpu.min_driver), default=numbers(gpu.min_driver_branch or "0"))
    own = _order(gpu.architecture) or 0
    names = [
        name
        for name in facts.fixed_branches()
        if (_order(facts.branch(name).oldest_architecture) or 0) <= own and numbers(name) >= least[:1]
    ]
    return f"branches {', '.join(names)} support it and get fixes" if names else "no branch that gets fixes supports it"


def _from_branch(gpu: Gpu) -> str:
    return f"use a newer driver; {_supported(gpu)}"


def _order(architecture: str | None) -> int | None:
    """Where an architecture stands among NVIDIA's, oldest first; text after its name does not count ("Blackwell (anything newer …)")."""
    if architecture is None:
        return None
    order = facts.load("nvidia_drivers.yml")["rules"]["architectures"]["oldest_first"]
    found = [index for index, name in enumerate(order) if architecture.casefold().startswith(name.casefold())]
    return max(found, key=lambda index: len(order[index]), default=None)


def module_flavour(host: Host | None, workload: Workload | None = None) -> Iterator[Finding]:
    """The open or proprietary kernel modules are those that the GPU and the branch have."""
    if host is None or host.flavour is None or host.branch is None:
        return
    limits = facts.load("nvidia_drivers.yml")["rules"]["open_modules"]
    for gpu in host.gpus:
        fault = rules.flavour_fault(gpu, host.branch, host.flavour) if gpu.vendor == "nvidia" else None
        if fault is None:
            continue
        other = "open" if host.flavour == "proprietary" else "proprietary"
        remedy = f"use a stack with the {other} modules"
        if other == "open" and int(host.branch) < limits["first_branch"]:
            remedy += f", which branches from {limits['first_branch']} on have"
        if other == "open" and int(host.branch) < limits["default_from_branch"]:
            remedy += f"; {_supported(gpu)}"
        yield Finding(
            "module-flavour",
            "block",
            host.subject,
            f"{fault}, and {_driver(host)} comes with the {host.flavour} ones",
            facts.origins("nvidia_drivers.yml", limits["source"]),
            remedy,
            host.at("driver"),
            facts.doubt(limits) if int(host.branch) >= limits["only_flavour_from_branch"] else None,
        )


# Kernel and driver


def _kernel(host: Host) -> tuple[str, bool] | None:
    """The upstream kernel version, and whether it is exact. Releases like 6.1.0-56-amd64 name a series only."""
    if host.kernel_version is not None:
        return host.kernel_version, True
    if host.kernel is None:
        return None
    found = numbers(host.kernel)
    if len(found) > 2 and found[2] > 0:
        return ".".join(map(str, found[:3])), True
    return ".".join(map(str, found[:2])), False


def kernel_driver(host: Host | None, workload: Workload | None = None) -> Iterator[Finding]:
    """The driver's module builds on the kernel."""
    if host is None or host.vendor != "nvidia" or host.branch is None:
        return
    kernel, branch = _kernel(host), _branch(host)
    driver = host.driver or (branch.point_releases[-1] if branch is not None and branch.point_releases else None)
    if kernel is None or driver is None:
        return
    flavour = host.flavour or "proprietary"
    version, exact = kernel
    built = facts.kernel_build(version, driver, flavour)
    newest = facts.kernel_build(f"{version}.{_ANY_UPDATE}", driver, flavour) if not exact else built
    if host.unlocked and (built.outcome != "fails"):
        return  # what is not exact is told by `no-lock`
    if built.outcome == "ok" and newest.outcome == "fails":
        message = f"whether driver {driver} builds depends on the update of kernel {version}, which is not known: {newest.reason}"
        remedy = "name the exact kernel: lock the stack"
        yield Finding("kernel-driver", "unknown", host.subject, message, newest.origins, remedy, host.at("kernel"), newest.doubt)
    elif built.outcome == "fails":
        which = "" if host.driver else ", the newest of its branch"
        message = f"the driver's module does not build: {built.reason}{which}"
        yield Finding(
            "kernel-driver",
            "block",
            host.subject,
            message,
            built.origins,
            _builds(host, version, driver, flavour),
            host.at("kernel", "driver"),
            built.doubt,
        )
    elif built.outcome == "unknown":
        message = f"{built.reason}"
        yield Finding(
            "kernel-driver",
            "unknown",
            host.subject,
            message,
            built.origins,
            _builds(host, version, driver, flavour),
            host.at("kernel", "driver"),
        )


_ANY_UPDATE = 9999  # of a stable series: later than each that the table names


def _builds(host: Host, kernel: str, driver: str, flavour: facts.Flavour) -> str:
    """The nearest pairs of kernel and driver that build, for a remedy."""
    kernels = [name for name in facts.kernels_built() if facts.kernel_build(name, driver, flavour).outcome == "ok"]
    older = [name for name in kernels if numbers(name) < numbers(kernel)] or kernels
    drivers = [
        item for item in facts.branch(driver.split(".")[0]).point_releases if facts.kernel_build(kernel, item, flavour).outcome == "ok"
    ]
    others = [
        version
        for name in facts.fixed_branches()
        if name != driver.split(".")[0]
        for version in facts.branch(name).point_releases[-1:]
        if facts.kernel_build(kernel, version, flavour).outcome == "ok"
    ]
    said = []
    if older:
        said.append(f"use kernel {max(older, key=numbers)}, the newest before it on which {driver} is known to build")
    if drivers:
        said.append(f"use driver {drivers[-1]}, the newest of branch {driver.split('.')[0]} that is known to build on {kernel}")
    elif others:
        said.append(f"use driver {', '.join(others)}: known to build on {kernel}")
    return ", or ".join(said) or "build it in a clean root first (goldnode modules build), and keep what came of it"


RULES: tuple[Rule, ...] = (
    Rule(
        "gpu-driver",
        "The driver supports the GPU",
        "Each GPU model has a first driver that lists it, and each driver branch a range of architectures: an older driver does not know the "
        "GPU's PCI id, a newer branch has dropped old architectures. A stack without a lock is judged by its branch.",
        gpu_driver,
    ),
    Rule(
        "module-flavour",
        "Open or proprietary kernel modules, as GPU and branch allow",
        "Blackwell, Grace Hopper and later are driven by the open kernel modules only; Maxwell, Pascal and Volta by the proprietary ones only; "
        "branches before 515 have no open modules, the newest no proprietary ones.",
        module_flavour,
    ),
    Rule(
        "kernel-driver",
        "The driver's module builds on the kernel",
        "Held against the table of builds: what was seen to build or to fail decides; else the changes of the kernel that are known to break a "
        "version, and the first version of each branch that has the fix. The table is of NVIDIA's own sources: a distribution's patched package "
        "may build where it says that they fail. What neither says is unknown.",
        kernel_driver,
    ),
)

# Rules over several hosts, which are called with them: see `image_on` and `check_cohorts`.
MORE: tuple[Rule, ...] = ()
