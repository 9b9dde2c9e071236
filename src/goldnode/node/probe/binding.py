"""Facts about GPUs that their vendor's driver does not have: packages, modules, configuration. Read without root.

The section is there only if a GPU is bound to another driver or to none, so that a healthy node reads nothing.
"""

from __future__ import annotations

import re

from ..effective import kmod
from ..ground.host import Json
from ..ground.json_lines import as_text
from .context import Context
from .gpus import vendor_of
from .machine import printable
from .machine import release as os_release
from .values import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

# The kernel drivers of each vendor's GPUs, and the names that their module files have in distributions.
DRIVERS = {"nvidia": ("nvidia",), "amd": ("amdgpu",), "intel": ("xe", "i915")}
MODULES = {
    "nvidia": r"nvidia(?:-current|-tesla(?:-\d+)?|-legacy-\w+)?",
    "amd": r"amdgpu",
    "intel": r"xe|i915",
}
# No pattern is compiled before a GPU without its driver is found: this module is imported by every check.
# Packages of a driver: module, libraries of compute, and the metapackages that people install.
PACKAGES = {
    "nvidia": (
        r"nvidia-(?:driver|dkms|kernel|open|headless|current|tesla|legacy|modprobe)|cuda-drivers"
        r"|linux-(?:modules|objects|signatures)-nvidia|lib(?:nvidia-(?:compute|ml|cfg)|cuda1)"
    ),
    "amd": r"amdgpu-(?:dkms|core)",
    "intel": r"intel-(?:i915|xe)-dkms",
}
STATUS, MOST_STATUS, MOST_INDEX = "/var/lib/dpkg/status", 64 << 20, 16 << 20
DRIVERCTL = "/etc/driverctl.d"
# Files that engines put into their containers.
MARKS = ("/.dockerenv", "/run/.containerenv")


def read(context: Context) -> Json:
    """Return section `binding`; empty if every GPU has its vendor's driver."""
    loose = {
        address: str(vendor_of(row))
        for address, row in sorted(context.functions().items())
        if isinstance(row, dict)
        and row.get("kind") == "gpu"
        and row.get("gone") is not True
        and vendor_of(row) in DRIVERS
        and row.get("driver") not in DRIVERS[str(vendor_of(row))]
    }
    if not loose or not context.host.live:
        return {}
    vendor = next(name for name in DRIVERS if name in loose.values())
    names = [address for address, own in loose.items() if own == vendor]
    return {"binding": facts(context, vendor, names)}


def facts(context: Context, vendor: str, addresses: List[str]) -> Json:
    """Return the facts about one vendor's GPUs that its driver does not have."""
    files, host = context.files, context.host
    running = files.text("/proc/sys/kernel/osrelease")
    release = as_text(running) or ""
    command_line = files.text("/proc/cmdline")
    built = modules(files, vendor)
    section: Json = {
        "vendor": vendor,
        "addresses": addresses,
        "packages": packages(files, vendor),
        "release": release or None,
        "system": os_release(files).get("ID") or None,
        "container": context.container or any(files.there(name) for name in MARKS),
        "modules": built,
        "headers": files.there(f"/lib/modules/{release}/build/Makefile") if release else None,
        "loaded": any(files.there(f"/sys/module/{name}/initstate") for name in DRIVERS[vendor]),
    }
    try:
        lines = kmod.read(host, as_text(command_line) or "")
    except OSError as problem:
        return {**section, "error": f"{problem.filename}: {problem.strerror}"}
    own, others = [*DRIVERS[vendor], *built.get(release, ())], ("nouveau", "nova_core", "radeon")
    lines = kmod.settled(host, lines, [*own, *others], release)
    ids = [str(context.captured["pci"][address].get("pci_id")) for address in addresses]
    taken = [
        (f"{DRIVERCTL}/{name}", "driverctl")
        for name in addresses
        if files.text(f"{DRIVERCTL}/{name}") == "vfio-pci"
    ]
    taken += [(line.where(), line.text()) for line in kmod.given_away(lines, ids)]
    section["barred"] = [shown(line.where(), line.text()) for line in kmod.against(lines, own)]
    section["given_away"] = [shown(*pair) for pair in taken]
    section["barred_others"] = [name for name in others if kmod.against(lines, [name])]
    return section


def shown(where: str, text: str) -> Json:
    """Return a line of configuration: its place and its text."""
    return {"where": printable(where, 120), "text": printable(text, 120)}


def packages(files: Files, vendor: str) -> Optional[List[Json]]:
    """Return the driver's packages with dpkg's state of each, or None without a readable database of dpkg."""
    data = files.data(STATUS, MOST_STATUS)
    if not isinstance(data, bytes):
        return None
    rows = []
    for stanza in data.decode("utf-8", "replace").split("\n\n"):
        name = re.match(r"\s*Package: (\S+)", stanza)
        if name is None or not re.match(PACKAGES[vendor], name[1]):
            continue
        status = re.search(r"^Status: \S+ (\S+) (\S+)", stanza, re.MULTILINE)
        version = re.search(r"^Version: (\S+)", stanza, re.MULTILINE)
        state = status[2] if status else "unknown"
        if status and status[1] != "ok":
            state = "reinst-required"
        if state not in ("not-installed", "config-files"):
            rows.append({"name": name[1], "version": version and version[1], "state": state})
    return rows


def modules(files: Files, vendor: str) -> Dict[str, List[str]]:
    """Return kernel release -> names of the vendor's driver modules that modprobe would find for it."""
    by_release = {}
    pattern = re.compile(rf"^(?:\S*/)?({MODULES[vendor]})\.ko(?:\.\w+)?:", re.MULTILINE)
    for release in files.names("/lib/modules"):
        index = files.data(f"/lib/modules/{release}/modules.dep", MOST_INDEX)
        if isinstance(index, bytes):
            names = sorted(set(pattern.findall(index.decode("utf-8", "replace"))))
            if names:
                by_release[release] = names
    return by_release
