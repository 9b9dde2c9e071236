"""GPUs: from their library (called in a process that can be killed), and from procfs and sysfs without it."""

from __future__ import annotations

import os

from ..ground.host import SIMULATED_KERNEL, Json
from ..ground.json_lines import as_dict
from .context import Context
from .values import Files, known, not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
SIMULATOR = "/opt/goldnode-simulator"
PROC = "/proc/driver/nvidia"
# Parts of an NVIDIA GPU that only its library reports. Each becomes a fault if it is missing.
FROM_LIBRARY = (
    "uuid", "name", "serial", "board_part", "minor", "vbios", "gsp_firmware", "architecture", "recovery_action", "persistence_mode",
    "compute_mode", "memory", "pcie", "pstate", "utilization", "ecc", "remapped_rows", "retired_pages", "repair", "unrepairable_memory",
    "power", "clocks", "throttle", "temperature", "mig", "nvlink", "fabric", "processes", "inforom",
)  # fmt: skip
# Where distributions and NVIDIA's installer put the library; the version is in the name that the link leads to.
LIBRARY = "libnvidia-ml.so.1"
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/x86_64-linux-gnu/nvidia/current",
             "/usr/lib/aarch64-linux-gnu/nvidia/current", "/lib/x86_64-linux-gnu", "/lib64")  # fmt: skip


def begin(context: Context) -> None:
    """Start to query the GPU library if there may be NVIDIA GPUs, by the class or by the loaded driver."""
    host, files = context.host, context.files
    declared = (context.document.get("gpu") or {}).get("vendor")
    there = any(
        files.there(name) for name in (f"{PROC}/version", "/sys/module/nvidia", "/dev/nvidiactl")
    )
    if not host.live or not (declared == "nvidia" or there):
        return
    from ..device import stream

    # Settings are read if policy compares them, or if there is no class to say which ones matter.
    settings = not context.document or bool(context.document.get("policy"))
    context.question = stream.start(host, settings)


def read(context: Context) -> Json:
    """Read the sections gpus, gpu_error, driver and devices."""
    question = context.question
    context.host.pending = None
    answer = question.finish() if question is not None else None
    cards: Dict[str, Any] = {
        address: row
        for address, row in context.functions().items()
        if isinstance(row, dict) and row.get("kind") == "gpu"
    }
    informed = information(context.files)
    nvidia = {
        address: cards.get(address)
        for address in {*informed, *(a for a, row in cards.items() if vendor_of(row) == "nvidia")}
    }
    gpus, error = _nvidia(context, answer, nvidia, informed)
    for vendor in ("amd", "intel"):
        if any(vendor_of(row) == vendor for row in cards.values()):
            rows, problem = _others(
                context, vendor, {a: row for a, row in cards.items() if vendor_of(row) == vendor}
            )
            gpus += rows
            error = error or problem
    sections: Json = {
        "gpus": sorted(gpus, key=_order),
        "gpu_error": error,
        "driver": driver(context.files, answer, [vendor_of(row) for row in cards.values()]),
        "devices": devices(context.files),
    }
    # A simulator outside of its usual directory is recognized by the serial numbers that it gives.
    if any(context.files.there(path) for path in (SIMULATOR, SIMULATED_KERNEL)) or any(
        str(row.get("serial")).startswith("SIMULATED") for row in gpus
    ):
        sections["simulated"] = True
    return sections


def _order(gpu: Mapping[str, Any]) -> Tuple[str, int]:
    address, index = gpu.get("address"), gpu.get("index")
    return (address if isinstance(address, str) else "~", index if isinstance(index, int) else -1)


def vendor_of(row: Any) -> Optional[str]:
    """Return the vendor of a function of section pci."""
    text = as_dict(row).get("pci_id")
    return VENDORS.get(text[:4]) if isinstance(text, str) else None


def _nvidia(
    context: Context, answer: Optional[Json], there: Mapping[str, Any], informed: Mapping[str, Json]
) -> Tuple[List[Json], Optional[Json]]:
    """Return NVIDIA GPUs: those that the library lists, then those that only the bus or the driver's files
    show; and why the library did not answer.

    A GPU that the library lists without its address is matched with the only unmatched GPU of the bus.
    """
    error: Optional[Json] = answer["error"] if answer is not None else None
    if answer is None and there and context.host.live:
        error = unread("the GPU library was not asked: no NVIDIA driver is loaded")
    elif answer is None and there:
        error = unread("this root does not run")
    listed: List[Json] = []
    for gpu in answer["gpus"] if answer is not None else ():
        own = dict(gpu)
        fault = own.pop("error", None)
        if fault is not None:
            asked = (*FROM_LIBRARY, "settings") if context.question.settings_asked else FROM_LIBRARY
            own = {**dict.fromkeys(asked, fault), **own}
        own.setdefault("lost", False)
        own["_fault"] = fault
        listed.append(own)
    placed = {gpu["address"]: gpu for gpu in listed if isinstance(gpu.get("address"), str)}
    nowhere = [gpu for gpu in listed if not isinstance(gpu.get("address"), str)]
    alone = sorted(set(there) - set(placed))
    gpus = [gpu for gpu in listed if gpu not in nowhere]
    if nowhere and len(nowhere) == len(alone):
        # Several GPUs without an address cannot be matched, so none of them gets the library's number.
        for gpu, address in zip(nowhere, alone):
            index = gpu["index"] if len(nowhere) == 1 else None
            fault = gpu["_fault"] or gpu.get("address")
            gpus.append({**gpu, "index": index, "address": address, "_fault": fault})
        alone = []
    else:
        gpus += nowhere
    for address in alone:
        fault = error or unread("the GPU library does not list this GPU")
        own = {"index": None, "vendor": "nvidia", "address": address, "lost": False}
        gpus.append({**own, **dict.fromkeys(FROM_LIBRARY, fault)})
    for gpu in gpus:
        gpu.pop("_fault", None)
        own_address = str(gpu.get("address"))
        row = there.get(own_address)
        if isinstance(row, dict):
            gpu["driver"] = row.get("driver")
            for key in ("pci_id", "subsystem_id"):
                if not known(gpu.get(key)):
                    gpu[key] = row.get(key) or gpu.get(key)
            if row.get("gone") is True:
                gpu["lost"] = True
        # The driver's files fill in for a silent library: they can be read while it hangs.
        for key, value in informed.get(own_address, {}).items():
            if not known(gpu.get(key)):
                gpu[key] = value
    return gpus, error


def _others(
    context: Context, vendor: str, rows: Mapping[str, Any]
) -> Tuple[List[Json], Optional[Json]]:
    """Return AMD and Intel GPUs from sysfs. One that their reader does not describe is listed with its PCI
    data.
    """
    gpus: List[Json] = []
    error = None
    try:
        if vendor == "amd":
            from . import amd as reader
        else:
            from . import intel as reader  # type: ignore[no-redef]
        gpus = list(reader.read_gpus(context))
    except Exception as problem:  # a reader that fails must not take the GPUs away with it
        error = unread(f"the reader of {vendor}'s GPUs failed: {type(problem).__name__}: {problem}")
    seen = {gpu.get("address") for gpu in gpus}
    for address, row in rows.items():
        if address not in seen and (vendor == "amd" or error):
            fault = error or unread("its driver's files do not list this GPU")
            gpus.append({"index": None, "vendor": vendor, "address": address, "pci_id": row.get("pci_id"), "driver": row.get("driver"),
                          "lost": row.get("gone") is True, "memory": fault, "pcie": fault, "power": fault})  # fmt: skip
    return gpus, error


# -- files that the NVIDIA kernel driver shows


def information(files: Files) -> Dict[str, Json]:
    """Return GPUs by address from the driver's own files. They call no firmware, so they answer when the
    library hangs.
    """
    keys = {
        "Model": "name",
        "GPU UUID": "uuid",
        "Video BIOS": "vbios",
        "Device Minor": "minor",
        "GPU Firmware": "gsp_firmware",
    }
    by_address: Dict[str, Json] = {}
    for name in files.names(f"{PROC}/gpus"):
        text = files.text(f"{PROC}/gpus/{name}/information")
        if not isinstance(text, str):
            continue
        fields: Json = {}
        for line in text.splitlines():
            title, _, value = line.partition(":")
            key, value = keys.get(title.strip()), value.strip()
            # Question marks: the GPU was never initialised. N/A: without GSP firmware.
            if not key or not value or "?" in value or value == "N/A":
                continue
            if key != "minor":
                fields[key] = value
            elif value.isdigit():
                fields[key] = int(value)
        by_address[name.lower()] = fields
    return by_address


def driver(files: Files, answer: Optional[Json], vendors: List[Optional[str]]) -> Json:
    """Return the versions of the GPU driver's parts, each from its own source."""
    proc = files.text(f"{PROC}/version")
    loaded = files.text("/sys/module/nvidia/version")
    there = isinstance(proc, str) or isinstance(loaded, str) or "nvidia" in vendors
    if answer is None and not there:
        # amdgpu is the vendor's even if it is not loaded; of Intel's two drivers the loaded one counts.
        if "amd" in vendors:
            return {"vendor": "amd", "loaded": files.text("/sys/module/amdgpu/version")}
        for name in ("xe", "i915"):
            if "intel" in vendors and files.there(f"/sys/module/{name}"):
                return {"vendor": "intel", "loaded": files.text(f"/sys/module/{name}/version")}
        return {"vendor": None}
    unasked = unread("the GPU library was not asked")
    versions: Json = {
        "vendor": "nvidia",
        "loaded": loaded,
        "proc": proc,
        "flavour": proc,
        "library": library(files),
        "reported": answer["driver"] if answer else unasked,
        "cuda": answer["cuda"] if answer else unasked,
        "nvml": answer["nvml"] if answer else unasked,
        "options": options(files),
    }
    monitor = files.real(f"{LIBRARIES[os.uname().machine == 'aarch64']}/libdcgm.so.3")
    if monitor is not None:
        versions["dcgm"] = os.path.basename(monitor).partition(".so.")[2]
    if isinstance(proc, str):
        # NVRM version: NVIDIA UNIX [Open Kernel Module for] x86_64 [Kernel Module]  570.86.15  Release Build …
        words = proc.splitlines()[0].split() if proc else []
        versions["proc"] = next(
            (word for word in words if word[:1].isdigit() and "." in word),
            unread("the file names no version"),
        )
        versions["flavour"] = "open" if "Open" in words else "proprietary"
    return versions


def options(files: Files) -> Any:
    """Return the options with which the module was loaded."""
    text = files.text(f"{PROC}/params")
    if not isinstance(text, str):
        return text
    rows = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, colon, value in rows if colon}


def library(files: Files) -> Any:
    """Return the version of the installed libnvidia-ml.so.1, from its file's name."""
    for folder in LIBRARIES:
        path = files.real(f"{folder}/{LIBRARY}")
        if path is not None:
            version = os.path.basename(path).partition(".so.")[2]
            return version if "." in version else unread(f"{path} has no version in its name")
    return not_exposed(f"there is no {LIBRARY}")


def devices(files: Files) -> Dict[str, str]:
    """Return the device nodes that a GPU program opens, each with its mode."""
    modes: Dict[str, str] = {}
    names = [
        f"/dev/{name}" for name in files.names("/dev") if name.startswith("nvidia") or name == "kfd"
    ]
    names += [f"/dev/nvidia-caps/{name}" for name in files.names("/dev/nvidia-caps")]
    names += [f"/dev/dri/{name}" for name in files.names("/dev/dri") if name.startswith("renderD")]
    for name in names:
        try:
            mode = os.lstat(files.root + name).st_mode
        except OSError:
            continue
        if mode & 0o170000 != 0o040000:
            modes[name] = f"{mode & 0o7777:04o}"
    return modes
