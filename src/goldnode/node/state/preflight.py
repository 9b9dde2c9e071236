"""Reasons to refuse all changes.

All of them are collected, so that one run reports everything that must be fixed.
"""

from __future__ import annotations

import re

from . import family, gpumodel, obstacles
from .domains.packages import broken_packages
from .model import Action, Note, Observed, Refusal, declared
from .obstacles import SHARED, TMP, VAR_TMP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence, Tuple

    from ..ground.document import ClassDocument


MIB = 1 << 20
# A kernel image and two copies of its initramfs (update-initramfs writes the new one next to the old).
# Observed: 8 + 2 x 60 MiB.
BOOT_SPACE = 160 * MIB
# The build tree of the NVIDIA module with its objects. Observed: 620 MiB for 535.
BUILD_SPACE = 1024 * MIB
# An initramfs before it is packed, and the small files of apt and maintainer scripts. Estimates.
INITRAMFS_SPACE, SMALL_SPACE = 256 * MIB, 16 * MIB
# Unpacked size of a .deb as a multiple of its download size. Observed: 3.1 for driver
# libraries, 4.4 for headers.
UNPACK = 5


def identity(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse a node that does not belong to the class: operating system and GPUs."""
    refused = []
    wanted = document["os"]
    if (seen.os.get("id"), seen.os.get("version")) != (wanted["id"], wanted["version"]):
        have = f"{seen.os.get('id') or 'unknown'} {seen.os.get('version') or ''}".strip()
        remedy = "Move the host to a class whose stack is for its release, or reinstall it."
        if not seen.os.get("id"):
            # A mistyped directory looks so.
            have = "no system that /etc/os-release names"
            remedy = (
                "With goldnode_root or --root: correct the path, or install a system there first."
            )
        refused.append(
            Refusal(
                "wrong-os",
                f"The node runs {have}; class {document['class']} (stack "
                f"{document['stack']['name']}) is for {wanted['id']} {wanted['version']}.",
                remedy,
            )
        )
    if seen.simulated and not document["simulated"]:
        refused.append(
            Refusal(
                "simulated-hardware",
                f"The node's hardware is simulated, and class {document['class']} is of real "
                "hardware: what it would prove is not true.",
                "Use a class with `simulated: true`, or take the simulator "
                "(/opt/goldnode-simulator) off the node.",
            )
        )
    gpu = document.get("gpu")
    # A class with simulated GPUs is checked only if the simulator provides the bus.
    if gpu and gpumodel.is_auto(gpu):
        return refused + _auto(document, seen)
    if seen.gpus is not None and (seen.simulated or not document["simulated"]):
        foreign = [
            f"{g['address']} ({g['id']})"
            for g in seen.gpus
            if not gpu or g["id"] not in gpu["pci_ids"]
        ]
        if foreign:
            text = f"GPU {', '.join(foreign)} is in a class without a GPU: {document['class']} would leave it without its driver."
            if gpu:
                model = f"{gpu['model']} ({', '.join(gpu['pci_ids'])})"
                text = f"GPU {', '.join(foreign)} is not a {model}, which is what class {document['class']} is made of."
            remedy = "Move the host to the class of its GPUs (`goldnode classes` lists them)."
            refused.append(Refusal("wrong-gpu", text, remedy))
        elif gpu and len(seen.gpus) != gpu["count"]:
            refused.append(
                Refusal(
                    "gpu-count",
                    f"The PCI bus shows {len(seen.gpus)} {gpu['model']}; class {document['class']} "
                    f"has {gpu['count']}.",
                    "Look at lspci and the BMC for a GPU that fell off the bus, or correct `count` "
                    "in the class.",
                )
            )
    return refused


def _auto(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse the GPUs of a node whose class takes any model that fits its stack."""
    if seen.gpus is None:
        return []
    gpu, refused = declared(document["gpu"]), []
    rows = gpumodel.on_bus(gpu, seen.gpus)
    for row in rows:
        why = gpumodel.unfit(gpu, row["id"])
        if why:
            refused.append(
                Refusal(
                    "wrong-gpu",
                    f"GPU {row['address']} ({row['id']}) does not fit class {document['class']}: {why}.",
                    "Use a class with another stack (`goldnode classes` lists them).",
                )
            )
    unknown = gpumodel.names(gpu, [str(row["id"]) for row in rows])[1]
    if unknown and gpumodel.unknown_blocks(document):
        refused.append(
            Refusal(
                "unknown-gpu",
                f"The facts have no GPU model with the PCI id {', '.join(unknown)}, and class {document['class']} "
                "blocks what is unknown.",
                "Add the model to the facts with its source, or accept the unknown in the class (`compat.unknown`).",
            )
        )
    if len(rows) != gpu["count"]:
        refused.append(
            Refusal(
                "gpu-count",
                f"The PCI bus shows {len(rows)} GPUs of {gpu['vendor'].upper()}; class {document['class']} has "
                f"{gpu['count']}.",
                "Correct `count` in the class, or check `lspci` for a GPU that is missing.",
            )
        )
    return refused


def notes(document: ClassDocument, seen: Observed) -> List[Note]:
    """Return notes on declared settings that cannot be checked here."""
    rows = []
    gpu = document.get("gpu")
    if gpu and seen.gpus is not None and gpumodel.is_auto(gpu):
        ids = [str(row["id"]) for row in gpumodel.on_bus(gpu, seen.gpus)]
        unknown = gpumodel.names(gpu, ids)[1]
        if unknown:
            rows.append(
                Note(
                    "gpu.model",
                    f"the facts have no model with the PCI id {', '.join(unknown)}: unknown whether the stack fits it",
                )
            )
    if gpu and seen.gpus is None:
        rows.append(
            Note(
                "gpu",
                "a container or an image does not show the GPUs of a node: their PCI ids and count",
            )
        )
    elif gpu and document["simulated"] and not seen.simulated:
        rows.append(
            Note("gpu", "the class says simulated: the PCI bus is not searched for its GPUs")
        )
    rows += [
        Note(name, "declared by the class; this version neither sets nor reads it")
        for name in unread(document)
    ]
    if seen.running_kernel is None:
        rows.append(Note("kernel.running", "the kernel that runs here is another machine's"))
    if document.get("driver") and seen.running_kernel is None:
        rows.append(Note("driver.loaded", "the modules that are loaded here are another machine's"))
    return rows


# Sections of a class's `baseline` that the verdict checks (verdict/hardware.py, links.py, host_rules.py).
_JUDGED = ("gpu", "cpu", "memory", "network", "infiniband", "storage", "modules", "services")


def unread(document: ClassDocument) -> List[str]:
    """Return the baseline sections that this version does not check. A newer version wrote them."""
    return [
        f"baseline.{key}" for key in sorted(document.get("baseline") or {}) if key not in _JUDGED
    ]


def unsigned_modules(document: ClassDocument) -> List[str]:
    """Return the stack's modules that a kernel under Secure Boot would refuse to load."""
    driver, names = document.get("driver"), []
    if driver and not driver.get("in_tree") and not driver.get("signed"):
        names.append(driver["module"])
    signed = bool(driver and driver.get("signed"))
    # Modules without a package of their own, or in the driver's prebuilt package, share the driver's signature.
    shared = (None, driver.get("package") if driver else None)
    for row in document.get("modules") or ():
        if row["dkms"] or (row["package"] in shared and not signed):
            names.append(row["name"])
    return names


def readiness(document: ClassDocument, seen: Observed, actions: List[Action]) -> List[Refusal]:
    """Refuse if the planned changes would do harm now."""
    refused: List[Refusal] = []
    kinds = {action.kind for action in actions}
    transaction = next((action for action in actions if action.kind == "packages.transact"), None)
    refused += broken_by_others(seen)
    refused += obstacles.mounted(seen, actions)
    restored = {"module.restore", "kernel.restore", "packages.reinstall"}
    if kinds & {"packages.transact", "packages.repair", "packages.hold", *restored}:
        refused += locked(seen)
    changes = {"module.build", "module.restore", "packages.reinstall"}
    if transaction is None and not kinds & changes:
        return refused
    unsigned = unsigned_modules(document)
    if seen.secure_boot and unsigned:
        refused.append(
            Refusal(
                "secure-boot",
                f"Secure Boot is on and stack {document['stack']['name']} has unsigned modules: "
                f"the kernel would refuse {', '.join(unsigned)}.",
                "Switch Secure Boot off in the firmware, or use a stack with signed modules; what "
                "works now is left as it is.",
            )
        )
    driver = document.get("driver")
    if seen.runfile and driver and driver.get("vendor") == "nvidia":
        refused.append(
            Refusal(
                "runfile",
                f"{seen.runfile} shows a driver installed by NVIDIA's .run file, which packages "
                "would mix with.",
                "Run `nvidia-uninstall` on the node first.",
            )
        )
    if driver and driver.get("vendor") == "nvidia":
        refused += obstacles.remains(seen)
    refused += obstacles.dkms(document, seen) + obstacles.clock(document, seen)
    refused += in_use(seen)
    refused += _space(document, seen, transaction, "module.build" in kinds)
    return refused + _compiler(seen, kinds)


def broken_by_others(seen: Observed) -> List[Refusal]:
    """Refuse if dpkg was interrupted by another program. goldnode finishes its own interrupted runs."""
    broken = [*seen.driver_files.get("unfinished", ()), *broken_packages(seen)]
    if not broken or seen.journal is not None:
        return []
    # dpkg configures neither kind again: their files are not all there.
    half = [
        name
        for name in broken_packages(seen)
        if seen.packages[name]["state"] in ("half-installed", "reinst-required")
    ]
    remedy = "Run `dpkg --configure -a` and `apt-get -f install` on the node, look at what they say, and run again."
    if half:
        names = " ".join(half)
        remedy = (
            f"Run `apt-get install --reinstall {names}`, or `dpkg --remove --force-remove-reinstreq {names}` if "
            "no archive has the version, then `dpkg --configure -a`, and run again."
        )
    return [
        Refusal(
            "dpkg-broken",
            "dpkg is in the middle of something that is not goldnode's: "
            f"{', '.join(broken[:5])}{' …' if len(broken) > 5 else ''} not wholly installed.",
            remedy,
        )
    ]


def locked(seen: Observed) -> List[Refusal]:
    """Refuse if another process holds dpkg's lock."""
    if not seen.lock_holder:
        return []
    return [
        Refusal(
            "dpkg-locked",
            f"dpkg is locked by process {seen.lock_holder}.",
            "Wait for it, or stop what started it (`systemctl status apt-daily-upgrade`), and run "
            "again; never remove the lock file.",
        )
    ]


def in_use(seen: Observed) -> List[Refusal]:
    """Refuse if processes have a GPU open."""
    if not seen.holders:
        return []
    who = "; ".join(_holder(holder) for holder in seen.holders)
    return [
        Refusal(
            "gpu-in-use",
            f"Processes hold the GPU: {who}.",
            "Drain the node (stop those units or containers), then run again.",
        )
    ]


def _holder(holder: Mapping[str, Any]) -> str:
    text = f"pid {holder['pid']} {holder['command']}"
    if holder["unit"]:
        text += f", unit {holder['unit']}"
    return text + (f", container {holder['container']}" if holder["container"] else "")


def _space(
    document: ClassDocument, seen: Observed, transaction: Optional[Action], build: bool
) -> List[Refusal]:
    """Check the free space and inodes for the transaction, from the package sizes in the lock."""
    needs = dict.fromkeys(SHARED, 0)
    files = dict.fromkeys(SHARED, 0)
    if transaction is not None:
        names = {item.partition("=")[0] for item in transaction.data["install"]}
        missing = [
            p
            for p in document["packages"]
            if p["name"] in names and seen.version(p["name"]) != p["version"]
        ]
        for package in missing:
            size, name = int(package["size"]), package["name"]
            place = "/lib/modules" if family.in_modules(name) else "/usr"
            needs[place] += size * UNPACK
            files[place] += family.inodes(name)
            needs["/var/cache/apt/archives"] += size
            files["/var"] += 10  # dpkg's records of it
        if any(package["name"] == document["kernel"]["image"] for package in missing):
            needs["/boot"], files["/boot"] = BOOT_SPACE, 8
            needs[VAR_TMP], files[VAR_TMP] = INITRAMFS_SPACE, 5_000
        if missing:
            needs[TMP], files[TMP] = SMALL_SPACE, 20
    if build:
        needs["/var"] += BUILD_SPACE
        files["/var"] += 5_000
    short = _short(seen, needs, seen.space)
    refused = [
        Refusal(
            "no-space",
            f"{_free(places, f'{free // MIB} MiB')} and {total // MIB} MiB are needed.",
            _room(places[0], "df -h"),
        )
        for places, free, total in short
    ]
    for places, free, total in _short(seen, files, seen.inodes):
        text = f"{_free(places, f'{free} inodes')} and {total} are needed."
        refused.append(Refusal("no-inodes", text, _room(places[0], "df -i")))
    return refused


def _short(
    seen: Observed, needs: Mapping[str, int], free: Mapping[str, int]
) -> List[Tuple[List[str], int, int]]:
    """Return the file systems with too little: paths that share it, free and needed amount.

    The need of a path that was not observed is one of the directory above it.
    """
    wanted = {path: need for path, need in needs.items() if need and path in free}
    for path, need in needs.items():
        if need and path not in free and SHARED[path] in free:
            wanted[SHARED[path]] = wanted.get(SHARED[path], 0) + need
    rows = []
    for path in (path for path in needs if path in wanted):
        device = seen.filesystems.get(path)
        together = [
            other
            for other in needs
            if other in wanted
            and (other == path or (device is not None and seen.filesystems.get(other) == device))
        ]
        total = sum(wanted[other] for other in together)
        if free[path] < total and path == together[0]:
            rows.append((together, free[path], total))
    return rows


def _free(places: Sequence[str], amount: str) -> str:
    if len(places) == 1:
        return f"{places[0]} has {amount} free"
    return f"{' and '.join(places)} share {amount} of free space"


def _room(place: str, shown: str) -> str:
    if place == "/boot":
        return "Remove kernels that no class needs (`apt-get purge linux-image-…`), or enlarge it."
    clean = "`apt-get clean` first, or remove" if place.startswith("/var") else "Remove"
    return f"Make room there: {clean} what is not needed (`{shown} {place}`)."


def _compiler(seen: Observed, kinds: Any) -> List[Refusal]:
    """Refuse to build a module with a compiler that does not match the kernel's.

    Plugins and flags of another major version break the build.
    """
    if "module.build" not in kinds:
        return []
    built, installed = (_major(seen.compiler.get(key)) for key in ("kernel", "installed"))
    if built and installed and built != installed:
        return [
            Refusal(
                "compiler",
                f"The kernel was built by {seen.compiler['kernel']}, the node's compiler is "
                f"{seen.compiler['installed']}.",
                f"Install gcc-{built}, or put back the default compiler of the release.",
            )
        ]
    return []


def _major(text: Optional[str]) -> Optional[str]:
    match = re.search(r"(\d+)\.\d+\.\d+", text or "")
    return match.group(1) if match else None
