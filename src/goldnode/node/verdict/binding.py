"""Why a GPU does not have its vendor's driver, and which findings follow from that. Pure.

One cause is named, the first of the list in :func:`_reason` that is there: it is what a person has
to fix first.
"""

from __future__ import annotations

from ..ground.typed import NamedTuple
from ..probe.binding import DRIVERS
from ..state import family
from ..state.finding import MISMATCH, UNREAD, Finding
from ..state.remedy import COMMAND, FOLLOWS, PERSON, REBOOT, SITE, Remedy
from . import rules, table
from .rules import as_list, as_map, sanitized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

BROKEN = ("half-installed", "unpacked", "half-configured", "reinst-required")
VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


class Cause(NamedTuple):
    """Why GPUs are without their driver: a sentence, a remedy, and whether this node is known to need it."""

    text: str
    remedy: Remedy
    certain: bool


def finding(capture: Mapping[str, Any], vendor: Optional[str]) -> List[Finding]:
    """Return the finding about the drivers of a node without a class; empty if each GPU has its vendor's.

    It is a mismatch on a machine with an NVIDIA GPU. A GPU that is reserved for a virtual machine,
    a container, and a processor's own graphics without a driver leave open whether there is a
    fault.
    """
    cause = of(capture, stack=False)
    if cause is None or as_map(capture.get("binding")).get("vendor") != vendor:
        return []
    outcome = MISMATCH if cause.certain and vendor == "nvidia" else UNREAD
    text = sanitized(cause.text, 240)
    return [Finding("gpu.bound", outcome, DRIVERS[str(vendor)][0], text, cause.remedy)]


def explained(findings: List[Finding], capture: Mapping[str, Any]) -> List[Finding]:
    """Return the findings of a node with a class, with the cause in `gpu.bound` if that is a mismatch."""
    cause = of(capture, stack=True)
    if cause is None:
        return findings
    rest = list(findings)
    for number, item in enumerate(rest):
        if item.id == "gpu.bound" and item.outcome == MISMATCH:
            rest[number] = item._replace(got=sanitized(cause.text, 240), remedy=cause.remedy)
    return rest


def of(capture: Mapping[str, Any], stack: bool) -> Optional[Cause]:
    """Return the cause that the section `binding` of a capture shows; None without a GPU that lacks its driver.

    :param stack: whether the node has a class with a driver, which site.yml installs.
    """
    facts, pci = as_map(capture.get("binding")), as_map(capture.get("pci"))
    vendor = facts.get("vendor")
    if vendor not in DRIVERS:
        return None
    addresses = [str(name) for name in as_list(facts.get("addresses"))]
    bound = {name: as_map(pci.get(name)).get("driver") for name in addresses}
    holders = sorted({str(driver or "no driver") for driver in bound.values()})
    names = ", ".join(addresses[:4]) + (" …" if len(addresses) > 4 else "")
    verb = "is" if len(addresses) == 1 else "are"
    subject = f"{names} {verb} bound to {' and '.join(holders)}"
    identity = as_map(capture.get("identity"))
    if (identity.get("container") or facts.get("container")) and not capture.get("simulated"):
        remedy = Remedy(
            "Run `goldnode-node check` on the host of this container: its driver is missing.",
            PERSON,
        )
        return Cause(f"{subject} on the host of this container", remedy, False)
    reason, remedy, certain = _reason(facts, holders, stack)
    return Cause(f"{subject}: {reason}", remedy, certain)


def _reason(facts: Mapping[str, Any], holders: List[str], stack: bool) -> Tuple[str, Remedy, bool]:
    """Return reason, remedy, and whether it is a fault of this node for sure."""
    release, vendor, system = facts.get("release"), str(facts["vendor"]), str(facts.get("system"))
    own = as_list(as_map(facts.get("modules")).get(str(release)))
    packages = [row for row in as_list(facts.get("packages")) if isinstance(row, dict)]
    broken = [row for row in packages if row.get("state") in BROKEN]
    barred = [f"{row.get('where')} (`{row.get('text')}`)" for row in as_list(facts.get("barred"))]
    # The order is that of the work: a driver that is not installed cannot be kept out by a line of modprobe.d.
    if "vfio-pci" in holders:
        return _reserved(facts)
    if broken:
        names = ", ".join(f"{row.get('name')} is {row.get('state')}" for row in broken[:3])
        return f"package {names}", _complete(facts, stack), True
    if not own:
        return (*_no_module(facts, packages, system, stack), True)
    if barred:
        remedy = Remedy(f"Take back what {barred[0]} says, then reboot the node.", COMMAND, REBOOT)
        return f"{', '.join(barred[:3])} keeps {own[0]} out", remedy, True
    if "nouveau" in holders:
        return (*_nouveau(facts, system, stack), True)
    if facts.get("loaded"):
        text = f"Search `sudo dmesg` for the last lines of {own[0]}."
        if vendor == "nvidia":
            text = (
                f"Search `sudo dmesg` for the last lines of NVRM: {own[0]} is loaded and refused the GPU (a model that "
                "the driver no longer supports, or that only the other flavour of its modules does)."
            )
        return f"{own[0]} is loaded and did not take it", Remedy(text, PERSON), True
    text = (
        f"Run `sudo modprobe {own[0]}`: it loads the driver, or prints why not. `Key was rejected by service` means "
        "Secure Boot: enrol the key that signed the module (`mokutil --import`), or sign it with an enrolled one."
    )
    return f"the module {own[0]} is installed and not loaded", Remedy(text, COMMAND), True


def _reserved(facts: Mapping[str, Any]) -> Tuple[str, Remedy, bool]:
    lines = [
        f"{row.get('where')} (`{row.get('text')}`)" for row in as_list(facts.get("given_away"))
    ]
    where, back = "", "find what binds it at boot (`driverctl list-overrides`)"
    if lines:
        where, back = f" by {', '.join(lines[:3])}", f"take {lines[0]} back"
    remedy = Remedy(
        f"Judge the GPU in the virtual machine that it is reserved for. If this node is to use it, {back} and reboot.",
        PERSON,
        REBOOT,
    )
    return f"it is reserved for a virtual machine{where}", remedy, False


def _complete(facts: Mapping[str, Any], stack: bool) -> Remedy:
    if stack:
        return _site("it completes the packages")
    headers = "Run"
    if (
        facts.get("headers") is False
    ):  # DKMS cannot build without them, and the package stays half-configured
        command = family.headers_command(facts.get("release"))
        headers = f"Install the headers of the running kernel ({command}), then run"
    text = f"{headers} `sudo dpkg --configure -a`: it completes them or prints what fails. Then reboot."
    return Remedy(text, COMMAND, REBOOT)


def _site(what: str) -> Remedy:
    return Remedy(
        f"Run site.yml with `-e goldnode_reboot=true`: {what}, and reboots the node.", SITE, REBOOT
    )


def _no_module(
    facts: Mapping[str, Any], packages: List[Dict[str, Any]], system: str, stack: bool
) -> Tuple[str, Remedy]:
    """Return reason and remedy for a running kernel that has no module of the driver."""
    release, vendor = facts.get("release"), str(facts["vendor"])
    others = sorted(str(name) for name in as_map(facts.get("modules")))
    module, title = DRIVERS[vendor][0], VENDORS[vendor]
    there = [row for row in packages if row.get("state") == "installed"]
    if not there and not others:
        text = f"no {title} driver is installed"
        if stack:
            return text, _site("it installs the driver of the class")
        how = family.driver_installation(system, vendor)
        return text, Remedy(f"Install the driver with {how}, then reboot.", COMMAND, REBOOT)
    text = f"the running kernel {release} has no module {module}"
    if others:
        text += f", {others[-1]} has one"
    if stack:
        return text, _site("it builds or installs the module for the kernel of the class")
    names = (str(row["name"]) for row in there)
    prebuilt = family.modules_command(names, others[-1] if others else None, release)
    if prebuilt is not None:
        return text, Remedy(f"Run {prebuilt}, then reboot.", COMMAND, REBOOT)
    if any("dkms" in str(row["name"]) for row in there):
        how = f"`sudo dkms autoinstall -k {release}`: it builds the module, or names the log of what fails"
        if facts.get("headers") is False:
            how = f"{family.headers_command(release)}, then {how}"
        return text, Remedy(f"Run {how}. Then reboot.", COMMAND, REBOOT)
    boot = f"Boot kernel {others[-1]}, or install" if others else "Install"
    how = f"{boot} the driver's module package for {release}, then reboot."
    return text, Remedy(how, PERSON, REBOOT)


def _nouveau(facts: Mapping[str, Any], system: str, stack: bool) -> Tuple[str, Remedy]:
    """Return reason and remedy for a GPU that the kernel's own driver has although NVIDIA's is installed."""
    rebuild = family.initramfs_command(system)
    if "nouveau" in as_list(facts.get("barred_others")):
        text = "nouveau was loaded before the line that keeps it out took effect"
        first = f"Run {rebuild}, so that the initramfs has the line too, then reboot."
    else:
        text = "NVIDIA's module is installed, and no line of modprobe.d keeps nouveau out"
        first = (
            "Run `echo blacklist nouveau | sudo tee /etc/modprobe.d/blacklist-nouveau.conf` and "
            f"{rebuild}, then reboot."
        )
    return text, _site("it keeps nouveau out") if stack else Remedy(first, COMMAND, REBOOT)


# -- findings that follow from another

# Findings whose readings need the driver: without it they repeat its absence.
NEED_DRIVER = ("gpu.library", "gpu.visible", "driver.loaded", "driver.agree")


def connected(findings: List[Finding], capture: Mapping[str, Any]) -> List[Finding]:
    """Return the findings with the cause first, and with a remedy that names it in those that follow from it.

    A remedy names only a finding that the same verdict reports.
    """
    reported = {
        item.id: item
        for item in reversed(findings)
        if item.outcome in (MISMATCH, UNREAD) and item.remedy is not None
    }
    cause = reported.get("gpu.bound")
    silent = table.SILENT[UNREAD]
    error = as_map(capture).get("gpu_error")
    whole = rules.sanitized(error.get("text")) if isinstance(error, dict) else None
    linked, roots = [], []
    for item in findings:
        # A finding that repeats the driver's absence gets the remedy of that; the same fault is fixed once.
        root: Optional[Finding] = None
        if item.outcome in (MISMATCH, UNREAD):
            if cause is not None and item.id in NEED_DRIVER:
                root = cause
            elif item.remedy == silent and whole and str(item.got).startswith(whole):
                root = cause or reported.get("gpu.library")
            elif item.remedy == silent and "does not list this GPU" in str(item.got):
                root = next((reported[name] for name in GONE if name in reported), None)
            else:
                root = _missing(item, reported)
        if root is not None and root is not item and root.remedy is not None:
            text = f"Fix `{root.id}` first: {FOLLOWS}"
            item = item._replace(remedy=Remedy(text, *root.remedy.steps))
            roots.append(root.id)
        linked.append(item)
    # The cause, then what follows from it, then the rest.
    return sorted(linked, key=lambda item: (item is not cause, _place(item, roots)))


# Findings that show a GPU to be gone, the most certain first.
GONE = ("gpu.lost", "gpu.bound", "gpu.count", "gpu.visible")


def _place(item: Finding, roots: List[str]) -> int:
    """Return the place of a finding: 0 for one from which others follow, 1 for these, 2 for the rest."""
    if str(item.remedy).endswith(FOLLOWS):
        return 1
    return 0 if item.id in roots and item.outcome in (MISMATCH, UNREAD) else 2


def _missing(item: Finding, reported: Mapping[str, Finding]) -> Optional[Finding]:
    """Return the finding about a missing GPU that explains another one; None without such a finding."""
    root = next((reported[name] for name in GONE if name in reported), None)
    if root is None or root.outcome != MISMATCH:
        return None
    got = str(item.got)
    settings = item.outcome == UNREAD and item.id.startswith("policy.")
    if settings and ("do not answer" in got or "GPU is lost" in got):
        return root
    if item.id.startswith("runtime.cdi") and "/dev/nvidia" in got:
        return root
    # The library and /dev show what the bus shows: there is one GPU too few, and not one in each of the three places.
    numbers = {part.rpartition(" ")[2] for part in got.split(", ")}
    if item.id == "gpu.visible" and root.id == "gpu.count" and numbers == {root.got}:
        return root
    return None
