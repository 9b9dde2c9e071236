"""Rules about the node alone: GPU, driver, kernel, OS, fabric manager, toolkit, support and security.

A rule ignores properties that the host does not state. It returns `unknown` for a stated property
that no source covers. If one row of the facts decides, the finding includes the row's own doubts.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from goldnode.catalog.tiers import BRANCH_KINDS, TIERS
from goldnode.compat import known_bad, remedies, rules
from goldnode.compat.model import (
    CompatFinding,
    CompatHost,
    CompatRule,
    DeclaredAt,
    FindingSubject,
    StackWaiver,
    Workload,
    about,
)
from goldnode.compat.remedies import CompatRemedy
from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.facts import module_builds
from goldnode.facts import workload as workload_facts
from goldnode.facts.host import GpuModel, Origin, numbers
from goldnode.facts.module_builds import ModuleBuildFact
from goldnode.node.ground.json_lines import as_rows
from goldnode.node.ground.optional import optional


def _branch(host: CompatHost) -> facts.Branch | None:
    """Return the facts of the host's driver branch; None if it has no NVIDIA branch or the facts lack it."""
    if host.vendor != "nvidia" or host.branch is None:
        return None
    try:
        return facts.branch(host.branch)
    except FactsError:
        return None


def driver_name(host: CompatHost) -> str:
    """Return the driver as part of a sentence: its version, or else its branch."""
    return f"driver {host.driver}" if host.driver else f"driver branch {host.branch}"


# GPU and driver


def gpu_driver(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the driver is new enough for the GPU, and its branch still supports the architecture."""
    if host is None or host.branch is None:
        return
    branch = _branch(host)
    if branch is None:
        yield about(host, "driver").unknown(
            "gpu-driver",
            f"NVIDIA driver branch {host.branch} is not in the facts, so that nothing is known of the GPUs "
            f"it supports; {facts.read_until('nvidia_drivers.yml', 'driver releases')}",
            remedy=CompatRemedy.of(
                *([remedies.driver(name, "driver branch {}")] for name in facts.fixed_branches()),
                otherwise=_NO_BRANCH,
            ),
        )
        return
    for gpu in host.gpus:
        if gpu.vendor == "nvidia":
            yield from _too_old(host, gpu, branch)
            yield from _dropped(host, gpu, branch)


def _too_old(host: CompatHost, gpu: GpuModel, branch: facts.Branch) -> Iterator[CompatFinding]:
    least = _least(gpu, branch.name)
    if least is None:
        # No first driver is known: the range of architectures is the only evidence.
        newest = _order(branch.newest_architecture)
        if newest is not None and (_order(gpu.architecture) or 0) > newest:
            yield about(host, "gpu", "driver").block(
                "gpu-driver",
                f"{gpu.sku} is of architecture {gpu.architecture}, and driver branch {branch.name} ends "
                f"with {branch.newest_architecture}",
                branch.architecture_origins,
                remedy=_from_branch(gpu),
            )
        return
    if host.driver is not None:
        short = numbers(host.driver) < numbers(least)
    else:  # only the branch is known: it is too old only if even its newest version is
        short = numbers(branch.name) < numbers(least)[:1] or (
            numbers(branch.name) == numbers(least)[:1]
            and bool(branch.point_releases)
            and max(map(numbers, branch.point_releases)) < numbers(least)
        )
    remedy = CompatRemedy.of(
        [*remedies.drivers(least), *_fixed_drivers()],
        ending=f"; {_supported(gpu)}",
        otherwise=_NO_BRANCH,
    )
    if short and _possible(host, gpu):
        yield about(host, "gpu", "driver").unknown(
            "gpu-driver",
            f"{least} is the first driver that is known to support {gpu.sku}; whether {driver_name(host)} does is not "
            f"known, as {gpu.possible_from} may be the first",
            gpu.origins("min_driver"),
            remedy=remedy,
            doubt=_doubt(gpu),
        )
    elif short:
        first = f"driver {least}" if "." in least else f"driver branch {least}"
        message = f"{gpu.sku} needs {first} or later, and the stack has {driver_name(host)}"
        # For some models only the oldest branch that lists them is known.
        yield about(host, "gpu", "driver").block(
            "gpu-driver", message, gpu.origins("min_driver"), remedy=remedy, doubt=_doubt(gpu)
        )
    elif (released := _released_before(host, gpu, branch, least)) is not None:
        yield about(host, "gpu", "driver").unknown(
            "gpu-driver",
            f"{least}, of {gpu.min_driver_date}, is the first driver that is known to support {gpu.sku}; "
            f"{driver_name(host)} is of a later branch, but of {released}",
            gpu.origins("min_driver"),
            remedy=remedy,
            doubt=_doubt(gpu),
        )


def _possible(host: CompatHost, gpu: GpuModel) -> bool:
    """Return whether the host's driver is at least the one from which on support is possible."""
    least = gpu.possible_from
    return least is not None and host.driver is not None and numbers(host.driver) >= numbers(least)


def _released_before(
    host: CompatHost, gpu: GpuModel, branch: facts.Branch, least: str
) -> str | None:
    """Return the day of the host's driver if it is of a later branch than `least`, and older; None otherwise."""
    if gpu.min_driver_date is None or host.driver is None or least.partition(".")[0] == branch.name:
        return None
    released = branch.released.get(host.driver)
    return released if released is not None and released < gpu.min_driver_date else None


def _dropped(host: CompatHost, gpu: GpuModel, branch: facts.Branch) -> Iterator[CompatFinding]:
    oldest, own = _order(branch.oldest_architecture), _order(gpu.architecture)
    if oldest is not None and own is not None and own < oldest:
        last = [
            name
            for name in facts.branches()
            if (_order(facts.branch(name).oldest_architecture) or 0) <= own
        ][-1]
        message = (
            f"driver branch {branch.name} supports {branch.oldest_architecture} and later, and {gpu.sku} "
            f"is {gpu.architecture}"
        )
        yield about(host, "gpu", "driver").block(
            "gpu-driver",
            message,
            branch.architecture_origins,
            remedy=CompatRemedy.of(
                [remedies.driver(last, f"driver branch {{}}, the last for {gpu.architecture}")],
                otherwise=_NO_BRANCH,
            ),
        )


def _least(gpu: GpuModel, branch: str) -> str | None:
    """Return the first driver that supports `gpu`, from the view of branch `branch`.

    Branches that were alive when support was added have a first version each. A branch between two
    of them never got it. The branches after the last one have it from their first version on.
    """
    if not gpu.min_driver:
        return gpu.min_driver_branch
    first = sorted(gpu.min_driver, key=numbers)
    return next((version for version in first if numbers(version)[:1] >= numbers(branch)), first[0])


def _doubt(gpu: GpuModel) -> str | None:
    """Return the doubts of the GPU's row about its drivers, without those about memory or PCIe."""
    if gpu.doubt is not None and "driver" in gpu.doubt:
        return gpu.doubt
    listed = {origin.key for origin in gpu.origins("min_driver")} == {"ogkm"}
    return "a driver's list of products can follow its support late" if listed else None


def _supported(gpu: GpuModel) -> str:
    """Return the branches that still get fixes and support `gpu`, as part of a remedy."""
    least = min(map(numbers, gpu.min_driver), default=numbers(gpu.min_driver_branch or "0"))
    own = _order(gpu.architecture) or 0
    names = [
        name
        for name in facts.fixed_branches()
        if (_order(facts.branch(name).oldest_architecture) or 0) <= own
        and numbers(name) >= least[:1]
    ]
    if not names:
        return "no branch that gets fixes supports it"
    return f"branches {', '.join(names)} support it and get fixes"


def _from_branch(gpu: GpuModel) -> str:
    return CompatRemedy.of(_fixed_drivers(), ending=f"; {_supported(gpu)}", otherwise=_NO_BRANCH)


_NO_BRANCH = (
    "put the GPU into another node: no driver branch that gets fixes serves all of this one"
)


def _fixed_drivers() -> list[remedies.RemedyOption]:
    """Return the options of the branches that get fixes, oldest first, each from its security floor on."""
    return [remedies.driver(version, "driver {} or later") for version in _floors()]


def _floors() -> list[str]:
    return [facts.security_floor(name).floor or name for name in facts.fixed_branches()]


def _order(architecture: str | None) -> int | None:
    """Return the rank of an architecture in NVIDIA's order, oldest first; None if unknown.

    Text after the name is ignored ("Blackwell (anything newer …)").
    """
    if architecture is None:
        return None
    order = facts.load("nvidia_drivers.yml")["rules"]["architectures"]["oldest_first"]
    return _rank(architecture, tuple(order))


@cache
def _rank(architecture: str, order: Sequence[str]) -> int | None:
    ranks = [
        index
        for index, name in enumerate(order)
        if architecture.casefold().startswith(name.casefold())
    ]
    # The longest match wins, because one name may be a prefix of another.
    return max(ranks, key=lambda index: len(order[index]), default=None)


def module_flavour(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that GPU and branch support the flavour (open or proprietary) of the kernel modules."""
    if host is None or host.flavour is None or host.branch is None:
        return
    limits = facts.load("nvidia_drivers.yml")["rules"]["open_modules"]
    for gpu in host.gpus:
        fault = (
            rules.flavour_fault(gpu, host.branch, host.flavour) if gpu.vendor == "nvidia" else None
        )
        if fault is None:
            continue
        other: facts.ModuleFlavour = "open" if host.flavour == "proprietary" else "proprietary"
        has_open = f", which branches from {limits['first_branch']} on have"
        lacks_open = other == "open" and int(host.branch) < limits["first_branch"]
        only_one = int(host.branch) >= limits["only_flavour_from_branch"]
        old = other == "open" and int(host.branch) < limits["default_from_branch"]
        stack = f"a stack with the {other} modules{has_open if lacks_open else ''}"
        options = [remedies.flavour(other, stack)]
        options += [
            remedies.flavour(
                other, f"a stack with the {other} modules and driver {{}} or later", driver=item
            )
            for item in _floors()
        ]
        yield about(host, "driver").block(
            "module-flavour",
            f"{fault}, and {driver_name(host)} comes with the {host.flavour} ones",
            facts.origins("nvidia_drivers.yml", limits["source"]),
            remedy=CompatRemedy.of(
                options, ending=f"; {_supported(gpu)}" if old else "", otherwise=_NO_BRANCH
            ),
            doubt=facts.doubt(limits) if only_one else None,
        )


def geforce_open(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check GeForce GPUs with the open modules of branches that need a module parameter for them."""
    if host is None or host.flavour != "open" or host.branch is None or not host.branch.isdigit():
        return
    limit = facts.load("nvidia_drivers.yml")["rules"]["open_modules"]["geforce_parameter"]
    names = [gpu.sku for gpu in host.gpus if gpu.sku.startswith("GeForce") and not gpu.data_centre]
    first = facts.load("nvidia_drivers.yml")["rules"]["open_modules"]["first_branch"]
    if not names or not first <= int(host.branch) <= limit["last_branch"]:
        return
    enabled = any(word.endswith(f"{limit['name']}=1") for word in host.cmdline or ())
    how = f"does not load for it without {limit['name']}=1"
    if enabled:
        how = f"is enabled by {limit['name']}"
    yield about(host, "driver").finding(
        "geforce-open",
        "warn" if enabled else "block",
        f"{driver_name(host)} supports {names[0]} with the open modules in alpha quality only, and {how}",
        facts.origins("nvidia_drivers.yml", limit["source"]),
        remedy=CompatRemedy.of(
            [remedies.flavour("proprietary", "the proprietary modules")],
            [
                dataclasses.replace(one, text=f"a branch after {limit['last_branch']}")
                for one in _fixed_drivers()
            ],
        ),
    )


# Kernel and driver


def _kernel(host: CompatHost) -> tuple[str, bool] | None:
    """Return the upstream kernel version, and whether it is exact.

    Releases like 6.1.0-56-amd64 name only a series.
    """
    if host.kernel_version is not None:
        return host.kernel_version, True
    if host.kernel is None:
        return None
    version = numbers(host.kernel)
    if len(version) > 2 and version[2] > 0:
        return ".".join(map(str, version[:3])), True
    return ".".join(map(str, version[:2])), False


def kernel_driver(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the driver's module builds on the kernel."""
    if host is None or host.vendor != "nvidia" or host.branch is None:
        return
    kernel, branch = _kernel(host), _branch(host)
    # Without a lock: the version that one would take, the newest of the branch.
    driver = host.driver or (
        branch.point_releases[-1] if branch is not None and branch.point_releases else None
    )
    if kernel is None or driver is None:
        return
    flavour = host.flavour or "proprietary"
    measured = _measured(host, flavour)
    if measured is not None:
        if measured.outcome != "builds":
            message = f"the driver's module does not build: {measured.reason}"
            remedy: str = _measured_to_build(host, measured)
            if remedy == _CLEAN_ROOT and measured.outcome == "excluded":
                remedy = "use a kernel that the package's dkms.conf admits"
            elif remedy == _CLEAN_ROOT:
                remedy = _builds(host, kernel[0], driver, flavour)
            yield about(host, "kernel", "driver").block(
                "kernel-driver", message, measured.origins, remedy=remedy
            )
        return
    version, exact = kernel
    # If only the series is known, try both its first and a hypothetical latest update.
    built = facts.kernel_build(version, driver, flavour, host.driver_package)
    newest = built
    if not exact:
        newest = facts.kernel_build(
            f"{version}.{_ANY_UPDATE}", driver, flavour, host.driver_package
        )
    if host.unlocked and (built.outcome != "fails"):
        return  # `no-lock` reports inexact versions
    if built.outcome == "ok" and newest.outcome == "fails":
        message = (
            f"whether driver {driver} builds depends on the update of kernel {version}, which is not "
            f"known: {newest.reason}"
        )
        yield about(host, "kernel").unknown(
            "kernel-driver",
            message,
            newest.origins,
            remedy="name the exact kernel: lock the stack",
            doubt=newest.doubt,
        )
    elif built.outcome == "fails":
        which = "" if host.driver else ", the newest of its branch"
        yield about(host, "kernel", "driver").block(
            "kernel-driver",
            f"the driver's module does not build: {built.reason}{which}",
            built.origins,
            remedy=_builds(host, version, driver, flavour),
            doubt="; ".join(filter(None, (built.doubt, unmeasured(host, flavour)))) or None,
        )
    elif built.outcome == "unknown":
        yield about(host, "kernel", "driver").unknown(
            "kernel-driver",
            "; ".join(filter(None, (built.reason, unmeasured(host, flavour)))),
            built.origins,
            remedy=_builds(host, version, driver, flavour),
        )


def _measured(host: CompatHost, flavour: facts.ModuleFlavour) -> ModuleBuildFact | None:
    """Return the measured build of a locked driver package on the locked kernel, if there is one."""
    if host.driver_package is None or host.kernel is None:
        return None
    return module_builds.measured(
        host.driver_package, flavour, host.kernel, host.kernel_version, host.architecture
    )


def unmeasured(host: CompatHost, flavour: facts.ModuleFlavour) -> str | None:
    """Return how to measure the build of a locked pair; None if the pair is not known exactly."""
    if host.driver_package is None or host.kernel is None:
        return None
    # It builds for the machine that it runs on.
    where = "" if host.architecture == "amd64" else f" on a machine of {host.architecture}"
    return (
        "the pair was not measured; `goldnode modules matrix --packages --driver "
        f"'*={host.driver_package}' --flavour {flavour} --kernel {host.kernel}` builds it{where}"
    )


def _measured_to_build(host: CompatHost, failed: ModuleBuildFact) -> CompatRemedy:
    """Return the nearest measured pairs that build, as a remedy: an older kernel, another package."""
    rows = [
        row
        for row in module_builds.builds()
        if row.outcome == "builds" and row.flavour == failed.flavour
    ]
    rows = [row for row in rows if row.architecture == failed.architecture]
    wanted = numbers(failed.kernel_version)
    older = [
        row
        for row in rows
        if row.version == failed.version
        and row.os == failed.os
        and numbers(row.kernel_version) < wanted
    ]
    older.sort(key=lambda row: numbers(row.kernel_version), reverse=True)
    others = sorted({(row.package, row.version) for row in rows if row.kernel == failed.kernel})
    packages = [
        remedies.package(version, f"{package} {version}, measured to build on {failed.kernel}")
        for package, version in others
    ]
    return CompatRemedy.of(
        [
            remedies.kernel(
                row.kernel,
                f"kernel {row.kernel}, on which this package was measured to build",
                version=row.kernel_version,
            )
            for row in older
        ],
        *([one] for one in packages[:4]),
        otherwise=_CLEAN_ROOT,
    )


_ANY_UPDATE = 9999  # a stable update later than any in the table
_CLEAN_ROOT = "build it in a clean root first, and add the result to the site's facts: `goldnode modules matrix --packages`"


def _builds(
    host: CompatHost, kernel: str, driver: str, flavour: facts.ModuleFlavour
) -> CompatRemedy:
    """Return the nearest pairs of kernel and driver that build, as a remedy."""
    branch = driver.split(".")[0]
    known = facts.branch(branch).point_releases if branch in facts.branches() else ()
    newest = f"the newest of branch {branch} that is known to build on {kernel}"
    own = [remedies.driver(item, f"driver {{}}, {newest}") for item in reversed(known)]
    others = [
        [
            remedies.driver(item, f"driver {{}}, known to build on {kernel}")
            for item in reversed(points)
        ]
        for name in facts.fixed_branches()
        if name != branch and (points := facts.branch(name).point_releases)
    ]
    own = [
        one for one, item in zip(own, reversed(known), strict=True) if _ok(kernel, item, flavour)
    ]
    return CompatRemedy.of(
        _older_kernels(kernel, driver, flavour),
        own,
        # Another branch is a larger change: only where no version of the own one builds.
        *([] if own else others),
        otherwise=_CLEAN_ROOT,
    )


def _ok(kernel: str, driver: str, flavour: facts.ModuleFlavour) -> bool:
    return facts.kernel_build(kernel, driver, flavour).outcome == "ok"


def _older_kernels(
    kernel: str, driver: str, flavour: facts.ModuleFlavour
) -> list[remedies.RemedyOption]:
    """Return the options of a kernel before `kernel` on which the driver is known to build, the newest first.

    Of a series whose later updates break the build, the option is the last update before them.
    """
    options = []
    before = [name for name in facts.kernels_built() if numbers(name) <= numbers(kernel)]
    exact = [name for name in before if len(numbers(name)) > 2]
    for name in sorted(before, key=numbers, reverse=True):
        point = numbers(name)
        text = f"the newest before it on which {driver} is known to build"
        if _ok(name, driver, flavour) and (
            len(point) > 2 or _ok(f"{name}.{_ANY_UPDATE}", driver, flavour)
        ):
            options.append(remedies.kernel(name, f"kernel {name}, {text}"))
        elif len(point) > 2 and _ok(
            last := f"{point[0]}.{point[1]}.{point[2] - 1}", driver, flavour
        ):
            if any(
                numbers(other)[:2] == point[:2] and _ok(other, driver, flavour) for other in exact
            ):
                continue  # an update of the series on which it was built is better
            options.append(remedies.kernel(last, f"kernel {last} or older of its series, {text}"))
    return options


def gpu_mix(host: CompatHost | None, workload: Workload | None = None) -> Iterator[CompatFinding]:
    """Check a node with GPUs of several architectures: they share driver, module flavour and binaries."""
    if host is None or len({gpu.architecture for gpu in host.gpus}) < 2:
        return
    nvidia = [gpu for gpu in host.gpus if gpu.vendor == "nvidia"]
    allowed = {
        gpu.sku: rules.open_modules(gpu.architecture).open_modules
        for gpu in nvidia
        if not gpu.open_modules_required
    }
    # The row of a model outweighs its architecture.
    allowed |= {gpu.sku: "required" for gpu in nvidia if gpu.open_modules_required}
    limits = facts.load("nvidia_drivers.yml")["rules"]["open_modules"]
    sources = facts.origins("nvidia_drivers.yml", limits["source"])
    needs = [name for name, open_modules in allowed.items() if open_modules == "required"]
    cannot = [name for name, open_modules in allowed.items() if open_modules == "impossible"]
    if needs and cannot:
        yield about(host, "gpu").block(
            "gpu-mix",
            f"{needs[0]} needs the open kernel modules and {cannot[0]} does not work with them, so that no "
            "driver serves both",
            sources,
            remedy="put them into different nodes",
        )
        return
    names = ", ".join(f"{gpu.sku} ({gpu.architecture})" for gpu in host.gpus)
    yield about(host, "gpu").warn(
        "gpu-mix",
        f"the node has GPUs of several architectures: {names}; each binary has to carry code for all of them",
        remedy="make a class of its own for each model",
    )


def other_modules(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check other out-of-tree modules against kernel and driver."""
    if host is None:
        return
    judged: Mapping[str, str] = {}
    if host.modules:
        from goldnode.compat import parts  # start-up time: most stacks have no further modules

        judged = parts.by_module()
    for name, version in host.modules.items():
        if name in judged:
            continue  # the rules about parts judge it
        shown = f"{name} {version}".rstrip()
        kernel = _kernel(host)
        on = f" on kernel {kernel[0]}" if kernel is not None else ""
        driver = f" beside {driver_name(host)}" if host.branch is not None else ""
        message = f"no source says whether module {shown} builds{on}{driver}"
        yield about(host, "modules").unknown(
            "other-modules",
            message,
            remedy="try it in a clean root (goldnode modules build), and accept it in the class once it was seen "
            "to build",
        )


# Operating system


def os_kernel(host: CompatHost | None, workload: Workload | None = None) -> Iterator[CompatFinding]:
    """Check that the OS ships the kernel, with the security updates of the day the facts were compiled."""
    if host is None or host.os is None:
        return
    kernel, row = _kernel(host), facts.distribution(host.os)
    if kernel is None:
        return
    if row is None or not row.get("kernels"):
        known = ", ".join(
            item["name"]
            for item in facts.load("distros.yml")["distributions"]
            if item.get("kernels")
        )
        yield about(host, "os").unknown(
            "os-kernel",
            f"no source says which kernels {_os_name(host)} carries",
            remedy=f"the facts know {known}",
        )
        return
    version, exact = kernel
    carried = {suite: str(text).split(" ")[0] for suite, text in row["kernels"].items()}
    origins = _distro_origins(row, "rest", "glibc_kernel")
    listed = ", ".join(f"{text} ({suite})" for suite, text in carried.items())
    same = {
        suite: text for suite, text in carried.items() if numbers(text)[:2] == numbers(version)[:2]
    }
    if not same and host.kernel_version is not None and host.stack is not None:
        return  # apt has resolved it from the OS's archives
    replaced = {numbers(text)[:2] for text in row.get("kernels_before", ())}
    if not same and numbers(version)[:2] in replaced:
        best = max(carried.values(), key=numbers)
        yield about(host, "kernel", "os").warn(
            "os-kernel",
            f"kernel {version} is of a series that {row['name']} has replaced, and gets no more fixes; it carries {listed}",
            origins,
            remedy=CompatRemedy.of(
                [remedies.kernel(best, f"a kernel of series {'.'.join(best.split('.')[:2])}")]
            ),
        )
        return
    if not same:
        # Unknown, not a block: the facts list the suites that were read, and there are others.
        message = f"no source says that {row['name']} carries kernel {version}; it carries {listed}"
        best = max(carried.values(), key=numbers)
        yield about(host, "kernel", "os").unknown(
            "os-kernel",
            message,
            origins,
            remedy=CompatRemedy.of(
                [remedies.kernel(best, f"a kernel of series {'.'.join(best.split('.')[:2])}")]
            ),
            doubt=facts.doubt(row),
        )
        return
    suite, newest = max(same.items(), key=lambda item: numbers(item[1]))
    if exact and len(numbers(newest)) > 2 and numbers(version) < numbers(newest):
        day = facts.load("distros.yml")["meta"]["compiled"]
        yield about(host, "kernel", "os").warn(
            "os-kernel",
            f"kernel {version} lacks the fixes of {newest}, which {row['name']} had on {day} ({suite})",
            origins,
            remedy=f"lock the stack again, with a driver that builds on {newest}",
            doubt=facts.doubt(row),
        )


def os_support(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the OS release still gets security fixes."""
    row = facts.distribution(host.os) if host is not None and host.os is not None else None
    if host is None or row is None or host.on is None:
        return
    standard = _day(row.get("standard_support_until") or row.get("full_support_until"))
    late = _day(row.get("lts_until") or row.get("maintenance_until"))
    origins = _distro_origins(row, "support")
    last = late or standard
    if last is not None and last < host.on:
        yield about(host, "os").block(
            "os-support",
            f"{row['name']} gets no fixes since {last}",
            origins,
            remedy="move to a supported release, or accept it in the class with reason, owner and expiry",
            doubt=facts.doubt(row),
        )
    elif standard is not None and standard < host.on:
        whose = "extended security maintenance" if "ubuntu" in row["id"] else "long-term support"
        yield about(host, "os").warn(
            "os-support",
            f"standard support of {row['name']} ended on {standard}; {whose} lasts until {late}, and "
            "covers less",
            origins,
            remedy=f"plan the move before {late}",
            doubt=facts.doubt(row),
        )


def driver_packages(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the OS's archives have the driver branch, and that packages match its flavour and branch."""
    if host is None or host.vendor != "nvidia" or host.branch is None or host.os is None:
        return
    data = facts.load("distros.yml")
    row = facts.distribution(host.os)
    if host.driver_package is not None:
        pass  # apt has resolved it from the OS's archives
    # Only the OS's own archives: of any other, the facts do not list what it carries.
    elif host.archives and all(name.startswith(_os_id(host)) for name in host.archives):
        carried = _archive_drivers(row) if row is not None else []
        if row is None or not carried:
            yield about(host, "driver", "os").unknown(
                "driver-packages",
                f"no source says which drivers {_os_name(host)} carries in its own archive",
                remedy="name the archive that the driver comes from",
                doubt=facts.doubt(row) if row else None,
            )
        elif host.branch not in {version.split(".")[0] for version in carried}:
            have = ", ".join(sorted(set(carried), key=numbers))
            message = f"{row['name']} carries drivers {have} in its own archive, and none of branch {host.branch}"
            own = max(carried, key=numbers)
            repository = "add NVIDIA's repository (archive nvidia-cuda) to the stack"
            yield about(host, "driver", "os").block(
                "driver-packages",
                message,
                _distro_origins(row, "rest"),
                remedy=CompatRemedy.of(
                    [
                        remedies.driver(
                            own, f"use branch {own.split('.')[0]}", archives=host.archives
                        )
                    ],
                    [remedies.of_host(repository, archives=(*host.archives, "nvidia-cuda"))],
                    verb="",
                ),
                doubt=facts.doubt(row),
            )
    elif "nvidia-cuda" in host.archives:
        names = data["repositories"]["distro_names"]
        if host.os.replace(" ", "").replace(".", "") not in names:
            message = f"NVIDIA's repository has no directory for {_os_name(host)}"
            yield about(host, "os").block(
                "driver-packages",
                message,
                facts.origins("distros.yml", data["repositories"]["source"]),
                remedy=f"use one of {', '.join(names)}",
                doubt=facts.doubt(row) if row else None,
            )
    yield from _package_names(host, data["package_names"])


def _package_names(host: CompatHost, names: Mapping[str, Any]) -> Iterator[CompatFinding]:
    branch = str(host.branch)
    for item in names["deb_nvidia_repo"]:
        pattern = re.escape(item["name"]).replace("<branch>", r"(?P<branch>\d+)")
        flavour = next(
            (
                word
                for word in ("open", "proprietary")
                if f"{word} modules" in str(item.get("meaning"))
            ),
            None,
        )
        for package in host.packages:
            match = re.fullmatch(pattern, package)
            if match is None:
                continue
            origins = facts.origins("distros.yml", item["source"])
            own = match.groupdict().get("branch")
            if flavour is not None and host.flavour is not None and flavour != host.flavour:
                yield about(host, "driver_packages", "os").block(
                    "driver-packages",
                    f"package {package} contains the {flavour} kernel modules, and the stack declares the "
                    f"{host.flavour} ones",
                    origins,
                    remedy=CompatRemedy.of(
                        [remedies.of_host(f"declare `flavour: {flavour}`", flavour=flavour)],
                        verb="",
                    ),
                )
            if own is not None and own != branch:
                yield about(host, "driver_packages", "os").block(
                    "driver-packages",
                    f"package {package} is of branch {own}, and the stack declares branch {branch}",
                    origins,
                    remedy=CompatRemedy.of(
                        [_other_package(host, package, package.replace(own, branch))]
                    ),
                )
    change = next(
        (item for item in names["change_of_packaging"] if "pinning packages" in item["fact"]), None
    )
    if (
        change is None
        or host.os is None
        or not host.os.startswith("ubuntu")
        or "nvidia-cuda" not in host.archives
    ):
        return
    numbered = [
        name
        for name in host.packages
        if name.endswith(f"-{branch}") and not name.startswith("nvidia-driver-pinning")
    ]
    # The fact is a sentence that names the affected branches; the change begins with the lowest.
    first = min(int(number) for number in re.findall(r"\b(\d{3})\b", change["fact"]))
    if numbered and int(branch) >= first:
        message = (
            f"package {numbered[0]} carries its branch in its name, and NVIDIA's packages for Ubuntu no "
            f"longer do from {first} on"
        )
        remedy = f"use the plain name together with nvidia-driver-pinning-{branch}"
        origins = facts.origins("distros.yml", change["source"])
        yield about(host, "driver_packages").warn(
            "driver-packages", message, origins, remedy=remedy, doubt=facts.doubt(change)
        )


def _other_package(host: CompatHost, package: str, other: str) -> remedies.RemedyOption:
    return remedies.of_host(
        other, packages=tuple(other if one == package else one for one in host.packages)
    )


def _archive_drivers(row: Mapping[str, Any]) -> list[str]:
    """Return the driver versions in an OS's own archive."""
    drivers: list[str] = []
    for name, versions in (row.get("driver_packages") or {}).items():
        if name.startswith("nvidia-") and name.endswith("driver"):
            texts = versions.values() if isinstance(versions, dict) else [versions]
            drivers += [facts.release_numbers(str(text)) for text in texts if text is not None]
    return drivers


def _os_id(host: CompatHost) -> str:
    return (host.os or "").split(" ")[0]


def _os_name(host: CompatHost) -> str:
    return (host.os or "").capitalize()


def _distro_origins(row: Mapping[str, Any], *keys: str) -> tuple[Origin, ...]:
    sources = [row["source"][key] for key in keys if key in row["source"]]
    return facts.origins(
        "distros.yml",
        [item for part in sources for item in as_rows(part)],
    )


def _day(text: object) -> dt.date | None:
    date = re.match(r"\d{4}-\d{2}-\d{2}", str(text))
    return dt.date.fromisoformat(date[0]) if date else None


# NVSwitch


def fabric_manager(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that a node with NVSwitch has the branch's fabric manager at exactly the driver's version."""
    if host is None or host.vendor != "nvidia" or host.branch is None or not host.branch.isdigit():
        return
    named = facts.load("nvidia_drivers.yml")["rules"]["fabric_manager"]
    expected = rules.fabric_manager_package(host.branch)
    origins = facts.origins("nvidia_drivers.yml", ["fmug", "gdc"])
    manager = about(host, "fabric_manager", "driver")
    package = host.fabric_manager_package
    if package is not None and package != expected:
        message = (
            f'the fabric manager of branch {host.branch} is called "{expected}", not "{package}"'
        )
        named_by = facts.origins("nvidia_drivers.yml", named["source"])
        right = CompatRemedy.of(
            [remedies.of_host(f'"{expected}"', fabric_manager_package=expected)]
        )
        yield manager.block(
            "fabric-manager", message, named_by, remedy=right, doubt=facts.doubt(named)
        )
    if (
        host.fabric_manager is not None
        and host.driver is not None
        and numbers(host.fabric_manager) != numbers(host.driver)
    ):
        message = (
            f"the fabric manager is {host.fabric_manager} and the driver {host.driver}: it does not start "
            "beside another version"
        )
        same = remedies.of_host(
            f"{expected} {host.driver}, and lock the two together",
            fabric_manager=host.driver,
            fabric_manager_package=expected,
        )
        yield manager.block("fabric-manager", message, origins, remedy=CompatRemedy.of([same]))
    if host.nvswitch and not host.simulated and package is None and host.fabric_manager is None:
        on = (
            f'platform "{host.platform}" has NVSwitch' if host.platform else "the node has NVSwitch"
        )
        which = f'stack "{host.stack}"' if host.stack else "the stack"
        message = f"{on}, and {which} carries no fabric manager: CUDA does not start (error 802)"
        yield about(host, "platform", "driver").block(
            "fabric-manager",
            message,
            origins,
            remedy=CompatRemedy.of(
                [
                    remedies.of_host(
                        f"a stack with `driver.fabric_manager: {{package: {expected}}}` from NVIDIA's repository",
                        fabric_manager=host.driver or host.branch,
                        fabric_manager_package=expected,
                    )
                ]
            ),
        )
    yield from _subnet_manager(host)
    yield from _board_without_nvswitch(host)


def _subnet_manager(host: CompatHost) -> Iterator[CompatFinding]:
    """Check that a board with NVLink 5 switches has the NVLink subnet manager beside the fabric manager."""
    named = facts.load("nvidia_drivers.yml")["rules"]["fabric_manager"]
    package, first = named["subnet_manager"], named["subnet_manager_from_architecture"]
    boards = [
        gpu.sku for gpu in host.gpus if "SXM" in gpu.sku and rules.architecture_reached(gpu, first)
    ]
    if not host.nvswitch or host.simulated or not boards or package in host.packages:
        return
    yield about(host, "fabric_manager", "driver").block(
        "fabric-manager",
        f"the NVSwitches of {boards[0]} need {package} beside the fabric manager, and the stack carries none: "
        "the fabric is not set up, and CUDA does not start (error 802)",
        facts.origins("nvidia_drivers.yml", ["gdc", "fmug"]),
        remedy=CompatRemedy.of(
            [
                remedies.of_host(
                    f"{package} among the packages of the driver",
                    packages=(*host.packages, package),
                )
            ]
        ),
    )


def _board_without_nvswitch(host: CompatHost) -> Iterator[CompatFinding]:
    """Report SXM boards on a platform that declares no NVSwitch, so that nothing demands a fabric manager.

    Boards of eight have NVSwitch from Ampere on; those of four are joined by NVLink alone.
    """
    boards = [
        gpu.sku
        for gpu in host.gpus
        if "SXM" in gpu.sku and rules.architecture_reached(gpu, "Ampere")
    ]
    if host.nvswitch or host.simulated or host.platform is None or not boards:
        return
    yield about(host, "platform", "gpu").unknown(
        "fabric-manager",
        f'{boards[0]} is a module of HGX boards, of which those of eight have NVSwitch, and platform "{host.platform}" '
        "declares none: whether a fabric manager is needed is not known",
        facts.origins("nvidia_drivers.yml", ["fmug"]),
        remedy="name the platform of the board, for example hgx_h100_8, or declare one of four GPUs",
    )


# Containers


def toolkit_floor(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the NVIDIA container toolkit has no known vulnerabilities."""
    if host is None or host.toolkit is None or rules.toolkit_safe(host.toolkit):
        return
    message = f"container toolkit {host.toolkit} is affected by {', '.join(rules.toolkit_faults(host.toolkit))}"
    floor = rules.toolkit_floor()
    safe = [remedies.of_host(f"{floor} or later, or null for the newest", toolkit=floor)]
    if host.engine is not None:
        # An engine that cannot read the specs of that toolkit moves with it.
        least = _engine_for_cdi(host.engine)
        both = f"{floor} or later with {host.engine} {least} or later"
        fields = {"toolkit": floor, "engine_version": least, "toolkit_mode": "cdi"}
        safe.append(remedies.of_host(both, **fields))
    yield about(host, "toolkit").block(
        "toolkit-floor",
        message,
        rules.toolkit_origins(host.toolkit),
        remedy=CompatRemedy.of(safe),
    )


def _engine_for_cdi(engine: str) -> str:
    """Return the first version of an engine that reads the CDI specs of the newest toolkits."""
    data = facts.load("container_toolkit.yml")["runtime_minimum"]
    limits = data["toolkit_1_19_1_and_later_cdi_0_7"]
    return str(limits.get(engine, data["cdi_in_docker"]["docker"]))


def toolkit_cdi(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the engine can read the CDI specs of the toolkit.

    Otherwise containers get GPUs in the deprecated legacy mode.
    """
    if host is None or host.toolkit is None or host.engine is None or host.engine_version is None:
        return
    able = rules.toolkit_mode(host.engine, host.engine_version, host.toolkit)
    if able.mode == "cdi":
        return
    data = facts.load("container_toolkit.yml")
    limits = data["runtime_minimum"]["toolkit_1_19_1_and_later_cdi_0_7"]
    origins = facts.origins("container_toolkit.yml", limits["source"])
    shown = f"{host.engine} {facts.release_numbers(host.engine_version)}"
    fixed = [
        f"{row['distro']} has {host.engine} {row[name]}"
        for row in data["runtime_minimum"]["debian_check"]
        if row["ok_for_cdi_0_7"]
        for name in (host.engine, f"{host.engine}.io")
        if name in row
    ]
    least = _engine_for_cdi(host.engine)
    newer = remedies.of_host(
        f"{host.engine} {least} or later", engine_version=least, toolkit_mode="cdi"
    )
    remedy = CompatRemedy.of([newer], ending=f"; {fixed[0]}" if fixed else "")
    if host.toolkit_mode == "legacy":
        yield about(host, "engine").warn(
            "toolkit-cdi",
            "containers get GPUs in the toolkit's legacy mode, which is deprecated since 1.18.0, because "
            f"{able.reason}",
            origins,
            remedy=remedy,
        )
    elif (
        not able.known
        and rules.toolkit_mode(host.engine, host.engine_version, str(limits["toolkit"])).mode
        == "cdi"
    ):
        return  # an engine that reads the newer specs reads the older ones too
    elif not able.known:
        yield about(host, "engine").unknown(
            "toolkit-cdi",
            f"whether {shown} reads the CDI specs of container toolkit {host.toolkit} is not known: "
            f"{able.reason}",
            origins,
            remedy=remedy,
        )
    else:
        yield about(host, "engine").block(
            "toolkit-cdi",
            f"{shown} does not read the CDI specs of container toolkit {host.toolkit}: {able.reason}",
            origins,
            remedy=remedy,
        )


# AMD


def amdgpu(host: CompatHost | None, workload: Workload | None = None) -> Iterator[CompatFinding]:
    """Check that AMD's driver supports the GPU, and the OS and its kernel."""
    if host is None or host.vendor != "amd":
        return
    data = facts.load("rocm.yml")
    kernel = _kernel(host)
    if host.amdgpu is None:
        for gpu in host.gpus:
            of = f" of kernel {kernel[0]}" if kernel is not None else ""
            message = (
                f"no source says how well the kernel's own amdgpu{of} serves {gpu.sku} ({gpu.gfx}): AMD's "
                "documents are about its own driver"
            )
            newest = next(
                item[0] for item in reversed(data["amdgpu_driver"]["releases"]) if item[0]
            )
            yield about(host, "gpu", "driver").unknown(
                "amdgpu",
                message,
                facts.origins("rocm.yml", ["inst"]),
                remedy=CompatRemedy.of(
                    [remedies.of_host(f"use AMD's driver (newest seen: {newest})", amdgpu=newest)],
                    [
                        remedies.RemedyOption(
                            "accept it in the class once the node was seen to work"
                        )
                    ],
                    verb="",
                ),
            )
        return
    for gpu in host.gpus:
        least, why = _least_amdgpu(gpu, data)
        if least is not None and numbers(host.amdgpu) < numbers(least):
            message = (
                f"{gpu.sku} ({gpu.gfx}) needs amdgpu {least} or later ({why}), and the stack has "
                f"{host.amdgpu}"
            )
            yield about(host, "driver").block(
                "amdgpu",
                message,
                facts.origins("rocm.yml", ["amdgpuop", "docs71"]),
                remedy=CompatRemedy.of(
                    [remedies.of_host(f"amdgpu {least} or later", amdgpu=least)]
                ),
            )
    if host.os is not None:
        yield from _amd_os(host, data, kernel)


def _least_amdgpu(gpu: GpuModel, data: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the first release of AMD's driver for a GPU, and the reason.

    Without its own, it is the release that came with the first ROCm for the GPU.
    """
    if gpu.min_amdgpu is not None:
        return gpu.min_amdgpu, "according to AMD's GPU operator"
    for row in data["releases"]:
        if gpu.min_rocm is not None and row["version"] == gpu.min_rocm and row.get("amdgpu"):
            return row["amdgpu"], f"it came with ROCm {gpu.min_rocm}, the first for it"
    return None, ""


def _amd_os(
    host: CompatHost, data: Mapping[str, Any], kernel: tuple[str, bool] | None
) -> Iterator[CompatFinding]:
    current = data["operating_systems_current"]
    origins = facts.origins("rocm.yml", current["source"])
    name = _os_name(host)
    # AMD publishes this list for its current driver only, so it cannot block an earlier one.
    rows = [row for row in current["list"] if workload_facts.lists_system(row["os"], name)]
    if not rows and workload_facts.rocm_for(host.amdgpu or "", host.os or ""):
        return  # the page of a ROCm release lists driver and system
    if not rows:
        listed = "; ".join(row["os"] for row in current["list"])
        yield about(host, "os").unknown(
            "amdgpu",
            f"AMD's list of operating systems for amdgpu {current['amdgpu']} does not have {name}",
            origins,
            remedy=f"use one of {listed}",
        )
        return
    wanted = [str(row["kernel"]) for row in rows if row["kernel"] is not None]
    if (
        wanted
        and kernel is not None
        and numbers(kernel[0])[:2] not in {numbers(item)[:2] for item in wanted}
    ):
        yield about(host, "kernel").unknown(
            "amdgpu",
            f"AMD lists {name} with kernel {', '.join(wanted)} for amdgpu {current['amdgpu']}, and the "
            f"stack has {kernel[0]}",
            origins,
            remedy=CompatRemedy.of(*([remedies.kernel(item, f"kernel {item}")] for item in wanted)),
        )


# Security and support


def security_floor(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the driver is at its branch's security floor, and that the branch still gets fixes.

    A driver below the floor blocks: a fixed version of the same branch exists, and the update needs
    no decision. A branch that the newest bulletin leaves unfixed warns: no version of it would be
    better. Whether to leave the branch depends on the end of life, its waiver and the known-bad
    list, which block or record it. A waiver for use past the end of life covers this finding too,
    and is shown.
    """
    branch = optional(_branch, host)
    if host is None or branch is None:
        return
    try:
        floor = facts.security_floor(branch.name)
    except FactsError:
        message = f"no bulletin says anything of driver branch {branch.name}"
        yield about(host, "driver").unknown(
            "security-floor",
            message,
            remedy=CompatRemedy.of(*([one] for one in _fixed_drivers()), otherwise=_NO_BRANCH),
        )
        return
    gets_fixes = [name for name in facts.fixed_branches() if _drives_all(name, host)]
    floors = {name: facts.security_floor(name).floor or name for name in gets_fixes}
    others = CompatRemedy.of(
        *([remedies.driver(version, f"{name} ({{}})")] for name, version in floors.items()),
        verb="use a branch that gets fixes: ",
        between=", ",
        otherwise=_NO_BRANCH,
    )
    newest = facts.load("security.yml")["meta"]["newest_bulletin"]
    if (
        floor.floor is not None
        and host.driver is not None
        and numbers(host.driver) < numbers(floor.floor)
    ):
        message = (
            f"driver {host.driver} is below {floor.floor}, the oldest of branch {branch.name} with the "
            f"fixes of bulletin {floor.bulletin}"
        )
        message += f" ({floor.bulletin_date})"
        better = [
            remedies.driver(version, "better driver {}, of a branch that gets fixes")
            for version in floors.values()
        ]
        own = [remedies.driver(floor.floor, "{} or later")]
        yield about(host, "driver").block(
            "security-floor",
            message,
            floor.origins,
            remedy=CompatRemedy.of(own, [] if floor.fixed else better),
        )
    elif floor.state.startswith("unknown"):
        yield about(host, "driver").unknown(
            "security-floor",
            f"no bulletin says anything of driver branch {branch.name}, which is newer than all that were "
            f"read; {facts.read_until('security.yml', 'driver bulletins')}",
            floor.origins,
            remedy=others,
        )
    elif not floor.fixed:
        last = ""
        if floor.floor:
            last = f"; the last fixes for it are in {floor.floor} (bulletin {floor.bulletin}, {floor.bulletin_date})"
        message = (
            f"no version of driver branch {branch.name} has the fixes of bulletin {newest}{last}"
        )
        state = _support(host)
        accepted = None
        if state is not None and state.state == "waived" and host.waiver is not None:
            accepted = _waived(host.waiver)
        yield about(host, "driver").warn(
            "security-floor", message, floor.origins, remedy=others, doubt=None, accepted=accepted
        )


def driver_branch(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the tier of the class allows the kind of its driver branch."""
    branch = optional(_branch, host)
    if host is None or branch is None or host.tier is None:
        return
    allowed = TIERS[host.tier].branches
    better = [
        name
        for name in facts.fixed_branches()
        if facts.branch(name).kind in allowed and _drives_all(name, host)
    ]
    remedy = CompatRemedy.of(
        *([remedies.driver(name, f"{{}} ({facts.branch(name).kind})")] for name in better),
        verb="use a stack with driver branch ",
        otherwise=_NO_BRANCH,
    )
    subject = about(host, "tier", "driver")
    if branch.kind is None:
        message = (
            f"no source states of which kind driver branch {branch.name} is, and the class is of tier {host.tier}; "
            f"{facts.read_until('nvidia_drivers.yml', 'driver releases')}"
        )
        if allowed != set(BRANCH_KINDS):
            yield subject.unknown("driver-branch", message, branch.kind_origins, remedy=remedy)
    elif branch.kind not in allowed:
        kinds = " and ".join(sorted(allowed))
        message = (
            f"driver branch {branch.name} is {BRANCH_KINDS[branch.kind]} ({branch.kind}); tier {host.tier} "
            f"allows {kinds}"
        )
        yield subject.block("driver-branch", message, branch.kind_origins, remedy=remedy)


def _drives_all(branch: str, host: CompatHost) -> bool:
    """Return whether branch `branch` supports every GPU of the host."""
    own = facts.branch(branch)
    for gpu in host.gpus:
        least = _least(gpu, branch)
        old, has = _order(own.oldest_architecture), _order(gpu.architecture)
        if (least is not None and numbers(branch) < numbers(least)[:1]) or (
            old is not None and has is not None and has < old
        ):
            return False
    return True


def end_of_life(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Check that the stack is supported on the day, or that a waiver in force lets the class use it."""
    support = optional(_support, host)
    if host is None or support is None:
        return
    sources = _branch_ends(host)
    where = host.at("stack", "end_of_life")
    if support.state == "expired":
        where = host.at("waiver", "stack")
    accepted = (
        _waived(host.waiver) if support.state == "waived" and host.waiver is not None else None
    )
    if host.simulated and accepted is None:
        accepted = "its hardware is simulated: it shows the machinery, and is no stack to run"
    branch = _branch(host)
    doubt = None
    if branch is not None and branch.conflict is not None and "end of life" in branch.conflict:
        doubt = branch.conflict
    yield FindingSubject(host.subject, where).block(
        "end-of-life",
        support.message,
        sources,
        remedy=support.remedy,
        doubt=doubt,
        accepted=accepted,
    )


def _support(host: CompatHost) -> rules.Support | None:
    if host.end_of_life is None or host.on is None:
        return None
    reported = host.end_of_life_source or "as its stack says"
    return rules.support(
        host.stack or host.subject,
        ended=host.end_of_life,
        source=reported,
        waiver=host.waiver,
        node_class=host.name,
        on=host.on,
    )


def _waived(waiver: StackWaiver) -> str:
    return f"{waiver.reason} ({waiver.owner}, until {waiver.expires})"


def _branch_ends(host: CompatHost) -> tuple[Origin, ...]:
    branch = _branch(host)
    return tuple(origin for origin, _ in branch.end_of_life_sources) if branch is not None else ()


def no_lock(host: CompatHost | None, workload: Workload | None = None) -> Iterator[CompatFinding]:
    """Report a stack without a lock: its declarations are judged, its exact versions are unknown."""
    if host is None or host.unlocked is None or host.lock_fault is not None:
        return
    open_ = []
    if host.branch is not None and host.driver is None:
        open_ = ["whether the module builds on the kernel", "the security floor"]
    open_ += ["the versions of its modules"] if "" in host.modules.values() else []
    open_ += ["the fabric manager's version"] if host.fabric_manager_package is not None else []
    if host.engine is not None and host.branch is not None:
        open_.append("the container toolkit against its safe floor and the engine")
    message = (
        f"{host.unlocked}: only what it declares was judged, and not "
        f"{', '.join(open_ or ['the exact versions of kernel and packages'])}"
    )
    yield about(host, "stack", "kernel").unknown(
        "no-lock",
        message,
        remedy=f"run `goldnode lock {host.stack}` where its archives can be reached",
    )


def lock_integrity(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Block a stack whose lock is edited, conflicting or unreadable: no version in it can be trusted."""
    fault = host.lock_fault if host is not None else None
    if host is None or fault is None:
        return
    place = DeclaredAt(Path(fault.file), fault.line) if fault.file is not None else host.at("stack")
    where = f"{fault.file}: " if fault.file is not None else ""
    if fault.file is not None and fault.line is not None:
        where = f"{fault.file}:{fault.line}: "
    yield FindingSubject(host.subject, place).block(
        "lock-integrity",
        f"the lock of stack {host.stack} cannot be used: {where}{fault.message}",
        remedy=fault.remedy,
    )


def known_bad_host(
    host: CompatHost | None, workload: Workload | None = None
) -> Iterator[CompatFinding]:
    """Yield the findings of known-bad rows about the node alone."""
    if host is not None:
        yield from known_bad.findings(host)


# Several hosts


def check_cohorts(
    hosts: Sequence[CompatHost], workloads: Mapping[str, Sequence[Workload]] | None = None
) -> list[CompatFinding]:
    """Return the findings about the cohorts of `hosts`.

    Nodes that train together need one driver version and one NCCL version. Hosts of one class and
    cohort may be given once. `workloads` maps a host's subject to its workloads. Those that state
    an NCCL version must agree within a cohort.
    """
    cohorts: dict[str, list[CompatHost]] = {}
    for host in hosts:
        if host.cohort is not None:
            cohorts.setdefault(host.cohort, []).append(host)
    findings: list[CompatFinding] = []
    for name, members in sorted(cohorts.items()):
        # One host per class is enough: all nodes of a class have the same versions.
        findings += _cohort(
            f"cohort {name}",
            list({host.subject: host for host in members}.values()),
            workloads or {},
        )
    return findings


def _cohort(
    subject: str, hosts: list[CompatHost], workloads: Mapping[str, Sequence[Workload]]
) -> Iterator[CompatFinding]:
    cohort = FindingSubject(subject, hosts[0].place)
    drivers = _by({host.subject: driver_name(host) for host in hosts if host.branch is not None})
    branches = {host.branch for host in hosts if host.branch is not None}
    exact = {host.driver for host in hosts if host.driver is not None}
    if len(branches) > 1 or len(exact) > 1:
        yield cohort.block(
            "cohort-driver",
            f"nodes that train together need one driver version, and these have {_values_text(drivers)}",
            remedy="give their classes one stack, or split the cohort",
        )
    elif (
        len(branches) == 1
        and len(hosts) > 1
        and any(host.driver is None for host in hosts)
        and len({host.stack for host in hosts}) > 1
    ):
        yield cohort.unknown(
            "cohort-driver",
            f"whether its nodes have one driver version is not known without locks: {_values_text(drivers)}",
            remedy="lock their stacks, or give their classes one stack",
        )
    kinds = _by(
        {
            host.subject: ", ".join(sorted({gpu.architecture for gpu in host.gpus}))
            for host in hosts
            if host.gpus
        }
    )
    if len(kinds) > 1:
        yield cohort.warn(
            "cohort-mix",
            f"its nodes have GPUs of different architectures: {_values_text(kinds)}; the slowest sets the pace, "
            "and binaries need code for all",
            remedy="split the cohort by architecture",
        )
    if any(host.parts or host.modules for host in hosts):
        from goldnode.compat import coexistence  # start-up time: most classes have no further parts

        yield from coexistence.findings(cohort, hosts)
    versions = _by(
        {
            host.subject: _nccl(workloads.get(host.subject, ()))
            for host in hosts
            if _nccl(workloads.get(host.subject, ()))
        }
    )
    if len(versions) > 1:
        yield cohort.block(
            "cohort-nccl",
            f"nodes that train together need one NCCL, and their images have {_values_text(versions)}",
            remedy="give their classes images with one NCCL, or split the cohort",
        )


def _nccl(workloads: Sequence[Workload]) -> str:
    return ", ".join(sorted({workload.nccl for workload in workloads if workload.nccl is not None}))


def _by(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Group the keys by value."""
    keys: dict[str, list[str]] = {}
    for who, value in values.items():
        keys.setdefault(value, []).append(who)
    return keys


def _values_text(values: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{value} ({', '.join(who)})" for value, who in sorted(values.items()))


RULES: tuple[CompatRule, ...] = (
    CompatRule(
        "gpu-driver",
        "The driver supports the GPU",
        "Each GPU model has a first driver that lists it, and each driver branch a range of architectures: "
        "an older driver does not know the GPU's PCI id, a newer branch has dropped old architectures. A "
        "stack without a lock is judged by its branch.",
        gpu_driver,
        {"gpus.yml": ("ogkm", "log", "cnd"), "nvidia_drivers.yml": ("arch", "ogkm", "ndet")},
    ),
    CompatRule(
        "module-flavour",
        "Open or proprietary kernel modules, as GPU and branch allow",
        "Blackwell, Grace Hopper and later are driven by the open kernel modules only; Maxwell, Pascal and "
        "Volta by the proprietary ones only; branches before 515 have no open modules, the newest no "
        "proprietary ones.",
        module_flavour,
        {"nvidia_drivers.yml": ("ogkm", "dig610", "forum560", "blog", "rn615", "dig620")},
    ),
    CompatRule(
        "kernel-driver",
        "The driver's module builds on the kernel",
        "Validated against the table of builds: what was seen to build or to fail decides; else the "
        "changes of "
        "the kernel that are known to break a version, and the first version of each branch that has the "
        "fix. The table covers NVIDIA's own sources: a distribution's patched package may build where it "
        "says that they fail. Anything in neither is unknown.",
        kernel_driver,
        {
            "nvidia_drivers.yml": (
                "deb",
                "observed",
                "i1224",
                "i554125",
                "i379",
                "fed72",
                "gentoo71",
            )
        },
    ),
    CompatRule(
        "gpu-mix",
        "One architecture per node",
        "GPUs of several architectures in one node share one driver and one flavour of its modules; "
        "pre-Turing and Blackwell have none in common.",
        gpu_mix,
        {"nvidia_drivers.yml": ("ogkm", "dig610", "blog")},
    ),
    CompatRule(
        "other-modules",
        "Other out-of-tree modules fit kernel and driver",
        "Modules that a stack names besides the driver's own and those of declared parts are built for "
        "its kernel too. No source states which builds work: a build is unknown until it was seen.",
        other_modules,
    ),
    CompatRule(
        "os-kernel",
        "The kernel is one that the OS carries",
        "The kernels of each release's archives on the day that the facts were compiled. An older update "
        "of the same series lacks fixes; a series that the release does not carry gets none from it.",
        os_kernel,
        {"distros.yml": ("apt", "rocm641", "rocminst", "cudnn840", "u2604")},
    ),
    CompatRule(
        "os-support",
        "The OS release gets security fixes",
        "The end of standard and of long-term support of each release. Past both it blocks; between the "
        "two it warns, since the late phase covers fewer packages.",
        os_support,
        {"distros.yml": ("eol",)},
    ),
    CompatRule(
        "driver-packages",
        "The archives have the driver, and its packages are of its branch and flavour",
        "Which branches a release carries in its own archive, which releases NVIDIA's repository serves, "
        "and what its packages are called: names lost their branch at 580 (fabric manager) and 590 "
        "(Ubuntu), and metapackages install one flavour of the modules.",
        driver_packages,
        {"distros.yml": ("apt", "role", "blog", "gdc", "dig620", "q615", "img")},
    ),
    CompatRule(
        "fabric-manager",
        "NVSwitch has a fabric manager of the driver's version",
        "Fabric manager refuses to start beside a driver of another version, and without it CUDA fails "
        "with error 802 on machines with NVSwitch. Its package carries the branch in its name below 580.",
        fabric_manager,
        {"nvidia_drivers.yml": ("fmug", "gdc")},
    ),
    CompatRule(
        "toolkit-floor",
        "The container toolkit has no known holes",
        "NVIDIA's bulletins on the container toolkit name the first fixed version; several holes let a "
        "container out to the host.",
        toolkit_floor,
        {"container_toolkit.yml": ("ps", "b5599")},
    ),
    CompatRule(
        "toolkit-cdi",
        "The engine reads the toolkit's CDI specs",
        "From 1.19.1 the toolkit writes CDI 0.7, which older engines reject; docker reads CDI at all from "
        "25.0 on. Where the engine cannot, containers get GPUs in the legacy mode, which is deprecated.",
        toolkit_cdi,
        {"container_toolkit.yml": ("rn", "chg", "debian")},
    ),
    CompatRule(
        "amdgpu",
        "AMD's driver knows the GPU and is supported on the OS",
        "The first driver release for each GPU, and AMD's list of operating systems and kernels. AMD's "
        "documents do not cover the kernel's own amdgpu, so that it stays unknown.",
        amdgpu,
        {"rocm.yml": ("amdgpuop", "docs71", "inst")},
    ),
    CompatRule(
        "security-floor",
        "The driver has the fixes that NVIDIA's bulletins list",
        "Each branch has an oldest version without known holes. Below it blocks: a better version of the "
        "same branch exists. A branch that the newest bulletin leaves unfixed warns: its end of life "
        "decides, with its waiver.",
        security_floor,
        {"security.yml": ("ps", "b5861")},
    ),
    CompatRule(
        "end-of-life",
        "The stack is supported, or its use past that is waived",
        "A stack past its end of life needs a waiver with reason, owner and expiry, in its file, for the "
        "class. One that has expired or is for other classes does not count. The report shows every "
        "waiver that applies.",
        end_of_life,
        {"nvidia_drivers.yml": ("dds615", "eol"), "distros.yml": ("eol",)},
    ),
    CompatRule(
        "driver-branch",
        "The tier of the class allows the kind of its driver branch",
        "A class of tier production runs long-term support and production branches. New feature branches have no "
        "end of life of their own: they end when the next one appears. A class without a tier is not judged.",
        driver_branch,
        {"nvidia_drivers.yml": ("dds620", "dds615", "eol")},
    ),
    CompatRule(
        "no-lock",
        "The stack has a lock, so that exact versions can be judged",
        "Without a lock only the series of the kernel and the branch of the driver are known.",
        no_lock,
    ),
    CompatRule(
        "geforce-open",
        "GeForce GPUs with the open modules",
        "The first branches with open modules support GeForce and workstation GPUs in alpha quality, and only with "
        "a module parameter. Facts: nvidia_drivers.yml (rules, open_modules, geforce_parameter).",
        geforce_open,
        {"nvidia_drivers.yml": ("open515", "open525", "open535")},
    ),
    CompatRule(
        "lock-integrity",
        "The lock of the stack is as goldnode wrote it",
        "A lock that was edited by hand, that has conflict markers of a merge, that belongs to another stack or "
        "that cannot be read proves nothing about the versions of a node. A missing or stale lock is the "
        "subject of no-lock.",
        lock_integrity,
    ),
    CompatRule(
        known_bad.RULE,
        "The combination is on no list of known bad ones",
        "Changelogs, bulletins, release notes and issue threads report combinations that fail; each row "
        "of the list has its conditions, what is seen, what to do, and its source. A row that another "
        "rule found too is reported once, by that rule. A row with a condition that cannot be decided is "
        "unknown.",
        known_bad_host,
    ),
)


def facts_age(limit: int, on: dt.date) -> list[CompatFinding]:
    """Return a warning if the facts in force are older than `limit` days on day `on`."""
    compiled = facts.compiled()
    age = (on - compiled).days
    if age <= limit:
        return []
    return [
        FindingSubject("facts").warn(
            "facts-age",
            f"the facts are of {compiled}, {age} days old; the site's limit is {limit}",
            remedy="run `goldnode facts update`",
        )
    ]


# Rules that `check.check`, `check_cohorts` and `facts_age` implement.
MORE: tuple[CompatRule, ...] = (
    CompatRule(
        "facts-age",
        "The facts are recent",
        "A site that updates its facts sets the age from which they count as old (`facts.max_age` of the site file, in "
        "days). They lack later releases and reports.",
        None,
    ),
    CompatRule(
        "gpu-model",
        "The GPU model is known",
        "A class with `gpu: {model: auto}` takes the model that a node has. Without a node its GPU is unknown: each "
        "model of the facts is judged, and those that the stack does not fit are named. The node refuses them by its "
        "PCI bus. `--gpu MODEL`, a capture and `goldnode apply --local` give the model.",
        None,
    ),
    CompatRule(
        "cohort-driver",
        "One driver version per cohort",
        "Hosts with the same inventory variable goldnode_cohort train together. That they have one driver "
        "version is goldnode's own rule: no project tests collectives between different drivers.",
        None,
    ),
    CompatRule(
        "cohort-mix",
        "One architecture per cohort",
        "GPUs of several architectures in one cohort work, at the pace of the slowest.",
        None,
    ),
    CompatRule(
        "coexistence",
        "Nodes of one job have parts that work with each other",
        "Which two versions of NCCL, UCX, Open MPI, MLNX_OFED and other parts may be in one job or one cluster. "
        "`goldnode rollout check` applies it to the two states of a rollout, of which a cohort has both while it "
        "moves node by node.",
        None,
        {"parts.yml": ("nccl_src", "ompi", "ucx_news", "ucx_ci", "mofed_general")},
    ),
    CompatRule(
        "cohort-nccl",
        "One NCCL per cohort",
        "Ranks with different NCCL versions may fail or hang when they connect. This compares the images "
        "of a cohort's classes.",
        None,
    ),
)
