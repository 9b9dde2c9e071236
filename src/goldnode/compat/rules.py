"""Rules that compile a class need the facts for: module flavour, package names, support dates, toolkit mode.

Pure functions; each answer includes its reason.
"""

from __future__ import annotations

import calendar
import datetime as dt
from typing import Literal

from goldnode.compat.model import StackWaiver
from goldnode.core.dataclass import dataclass
from goldnode.facts import host as facts
from goldnode.facts.host import ModuleFlavour, release_numbers
from goldnode.node.state.debversion import compare


@dataclass(frozen=True)
class ModuleSupport:
    """Module support of an architecture: the open modules are `required`, `supported` or `impossible`."""

    open_modules: Literal["required", "supported", "impossible"]
    reason: str


def open_modules(architecture: str) -> ModuleSupport:
    """Return the module support of NVIDIA `architecture`.

    An unknown architecture is assumed to be newer than the facts: open is required.
    """
    rules = facts.load("nvidia_drivers.yml")["rules"]
    # The list is sorted by age, so an index is a rank.
    order = [name.casefold() for name in rules["architectures"]["oldest_first"]]
    limits = rules["open_modules"]
    name = architecture.casefold()
    if name not in order:
        return ModuleSupport(
            "required",
            f'architecture "{architecture}" is not in the facts and taken for a newer one',
        )
    if order.index(name) >= order.index(limits["required_from_architecture"].casefold()):
        return ModuleSupport(
            "required",
            f"{limits['required_from_architecture']} and later work with the open modules only",
        )
    if order.index(name) >= order.index(limits["first_architecture"].casefold()):
        return ModuleSupport(
            "supported", f"the open modules work on {limits['first_architecture']} and later"
        )
    return ModuleSupport(
        "impossible", f"the open modules work on {limits['first_architecture']} and later only"
    )


def architecture_reached(gpu: facts.GpuModel, first: str) -> bool:
    """Return whether the architecture of `gpu` is `first` or a later one."""
    order = [
        name.casefold()
        for name in facts.load("nvidia_drivers.yml")["rules"]["architectures"]["oldest_first"]
    ]
    name = gpu.architecture.casefold()
    return name in order and order.index(name) >= order.index(first.casefold())


def module_flavour(gpu: facts.GpuModel, branch: str) -> tuple[ModuleFlavour, str]:
    """Return the module flavour for `gpu` on driver `branch`, and the reason.

    If both are possible, it is the branch's default: open from 560, proprietary before.
    """
    limits = facts.load("nvidia_drivers.yml")["rules"]["open_modules"]
    allowed = open_modules(gpu.architecture)
    if gpu.open_modules_required:
        return "open", f"{gpu.sku} needs the open modules"
    if allowed.open_modules == "required":
        return "open", allowed.reason
    if allowed.open_modules == "impossible":
        return "proprietary", allowed.reason
    first = limits["default_from_branch"]
    if int(branch) >= first:
        return "open", f"the open modules are the default from branch {first}"
    return "proprietary", f"the proprietary modules are the default before branch {first}"


def flavour_fault(gpu: facts.GpuModel, branch: str, flavour: ModuleFlavour) -> str | None:
    """Return why `flavour` cannot drive `gpu` on `branch`, or None if it can."""
    limits = facts.load("nvidia_drivers.yml")["rules"]["open_modules"]
    allowed = open_modules(gpu.architecture)
    if flavour == "proprietary":
        if gpu.open_modules_required or allowed.open_modules == "required":
            return f"{gpu.sku} ({gpu.architecture}) needs the open kernel modules"
        if int(branch) >= limits["only_flavour_from_branch"]:
            return f"branch {branch} has no proprietary kernel modules"
        return None
    if allowed.open_modules == "impossible":
        return f"{gpu.sku} ({gpu.architecture}) does not work with the open kernel modules"
    if int(branch) < limits["first_branch"]:
        return f"branch {branch} has no open kernel modules, the first is {limits['first_branch']}"
    return None


def fabric_manager_package(branch: str) -> str:
    """Return the fabric manager's package name for driver `branch`.

    Below branch 580 the name contains the branch.
    """
    rule = facts.load("nvidia_drivers.yml")["rules"]["fabric_manager"]
    if int(branch) >= rule["plain_name_from_branch"]:
        return str(rule["package"])
    return str(rule["package_before"]).replace("<branch>", branch)


def last_day(date: str) -> dt.date:
    """Return the last day that `date` (YYYY-MM-DD or YYYY-MM) covers."""
    year, month, *day = (int(part) for part in date.split("-"))
    return dt.date(year, month, day[0] if day else calendar.monthrange(year, month)[1])


@dataclass(frozen=True)
class Support:
    """Support state of a stack past its end of life.

    `ended`: no waiver. `waived`: a waiver is in force. `foreign`: its waiver is for other classes.
    `expired`: its waiver has expired.
    """

    state: Literal["ended", "waived", "foreign", "expired"]
    message: str
    remedy: str


def support(
    stack: str,
    ended: dt.date,
    source: str,
    waiver: StackWaiver | None,
    node_class: str | None,
    *,
    on: dt.date,
) -> Support | None:
    """Return the support state of stack `stack` on day `on`; None if it is still supported.

    `ended` is the last supported day. With `node_class` None the stack is judged alone, as for a
    class that the waiver does not name.
    """
    if ended >= on:
        return None
    reported = f'stack "{stack}" is past its end of life since {ended} ({source})'
    if waiver is None:
        return Support(
            "ended",
            f"{reported} and has no waiver",
            "choose a supported stack",
        )
    # Before the date: renewing a waiver for other classes would not help this one.
    if waiver.classes and node_class not in waiver.classes:
        return Support(
            "foreign",
            f"{reported}, and its waiver is for {', '.join(waiver.classes)} only",
            "choose a supported stack, or have the waiver's owner add the class",
        )
    if waiver.expires < on:
        return Support(
            "expired",
            f"{reported}, and its waiver expired on {waiver.expires}",
            f"move to a supported stack, or have {waiver.owner} renew the waiver",
        )
    return Support("waived", reported, "move to a supported stack before the waiver ends")


@dataclass(frozen=True)
class ToolkitMode:
    """How an engine gives containers access to GPUs: `cdi` or `legacy`, and why.

    `known` is False if no source states the engine's CDI support.
    """

    mode: Literal["cdi", "legacy"]
    reason: str
    known: bool = True


_CDI_OF_OLDER = ("docker", "podman")


def toolkit_mode(engine: str, engine_version: str, toolkit_version: str | None) -> ToolkitMode:
    """Return how `engine` gives containers access to GPUs, from Debian package versions.

    CDI if the engine can read the CDI specs that the toolkit writes, otherwise legacy (the
    toolkit's runtime and its hook). With `toolkit_version` None goldnode writes the spec itself, as
    for AMD GPUs. That spec has the requirements of the newest toolkit's specs.
    """
    limits = facts.load("container_toolkit.yml")["runtime_minimum"]
    newer = limits["toolkit_1_19_1_and_later_cdi_0_7"]
    writes = str(newer["toolkit"])
    if toolkit_version is None or not _before(toolkit_version, writes):
        least = newer.get(engine)
        what = f"as toolkit {writes} and later writes it"
        if toolkit_version is None:
            what = "specs with numeric groups"
        what = f"CDI 0.7 ({what})"
    else:
        # For older toolkits the facts state a CDI minimum of docker and podman only.
        least = limits[f"cdi_in_{engine}"][engine] if engine in _CDI_OF_OLDER else None
        what = "CDI"
        podman = limits["cdi_in_podman"]
        # Between the first that reads CDI and one that was seen with such a toolkit, no source decides.
        between = not _before(engine_version, podman["podman"])
        between = between and _before(engine_version, podman["seen"])
        if engine == "podman" and between:
            reason = f"{podman['podman']} is the first podman that reads CDI, and {podman['seen']} the first "
            reason += f"that was seen to read specs of toolkit {podman['toolkit']}"
            return ToolkitMode("legacy", reason, known=False)
        old = limits["cdi_in_containerd"]
        if engine == "containerd" and compare(release_numbers(engine_version), old[engine]) <= 0:
            reason = f"containerd {old[engine]} has no CDI, and {old['seen']} the key enable_cdi"
            return ToolkitMode("legacy", reason)
    if least is None:
        return ToolkitMode("legacy", f"the facts know no {engine} that reads {what}", known=False)
    if _before(engine_version, least):
        return ToolkitMode(
            "legacy",
            f"{engine} {release_numbers(engine_version)} does not read {what}, {least} is the first that does",
        )
    return ToolkitMode(
        "cdi", f"{engine} {release_numbers(engine_version)} reads {what}: {least} or later does"
    )


def _before(version: str, least: str) -> bool:
    """Return whether `version` is older than release `least`.

    Repackaging suffixes (+dfsg1, ~ds1) are ignored.
    """
    return compare(release_numbers(version), least) < 0


def toolkit_floor() -> str:
    """Return the oldest version of the NVIDIA container toolkit that no known bulletin affects."""
    return str(facts.load("container_toolkit.yml")["meta"]["minimum_safe"])


def toolkit_faults(version: str) -> list[str]:
    """Return the CVEs that affect `version` of the NVIDIA container toolkit, in the order of the facts."""
    rows = facts.load("container_toolkit.yml")["security"]
    return [cve for row in rows if _before(version, row["fixed"]) for cve in row["cve"]]


def toolkit_origins(version: str) -> tuple[facts.Origin, ...]:
    """Return the sources of `toolkit_faults`."""
    rows = facts.load("container_toolkit.yml")["security"]
    keys = [row["source"] for row in rows if _before(version, row["fixed"])]
    return facts.origins("container_toolkit.yml", list(dict.fromkeys(keys)))


def toolkit_safe(version: str) -> bool:
    """Return whether `version` is at or above the floor."""
    return not _before(version, toolkit_floor())
