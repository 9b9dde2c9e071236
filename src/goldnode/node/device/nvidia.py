"""NVIDIA GPUs through NVML (nvml.h). The dynamic loader finds the library. Runs only in the
process that can be killed.
"""

from __future__ import annotations

import ctypes
import math
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

    from ..ground.host import Json


class _Instead:
    """Replacement for two modules that pynvml imports at a higher cost than all the rest: nothing of
    ctypes.util (which is for Windows), and one function of string, for the names of exceptions.
    """

    @staticmethod
    def find_library(name: str) -> None:
        """Find nothing. pynvml calls this only if the dynamic loader does not find the library."""

    @staticmethod
    def capwords(text: str, separator: str) -> str:
        """Capitalize the words of a text."""
        return separator.join(word.capitalize() for word in text.split(separator))


_instead = [name for name in ("ctypes.util", "string") if name not in sys.modules]
for _name in _instead:
    sys.modules[_name] = _Instead  # type: ignore[assignment]
import pynvml as nvml  # noqa: E402

for _name in _instead:
    del sys.modules[_name]


def _mismatch(text: str) -> nvml.NVMLError:
    """Return pynvml's NVMLLibraryMismatchError, which is no NVMLError, as the NVMLError that it hides.

    pynvml raises it if a library of an older driver lacks the newest version of a function.
    """
    return nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)


nvml.NVMLLibraryMismatchError = _mismatch

from .names import address  # noqa: E402

COMPUTE_MODES = {
    nvml.NVML_COMPUTEMODE_DEFAULT: "default",
    nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
}
CLOCKS = (("graphics", nvml.NVML_CLOCK_GRAPHICS), ("memory", nvml.NVML_CLOCK_MEM))
# A compute instance that takes the whole GPU instance, by the number of slices (nvml.h, NVML_COMPUTE_INSTANCE_PROFILE_*).
FULL_INSTANCE = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses",
)
NOT_EXPOSED = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def fault(problem: nvml.NVMLError) -> Json:
    """Return an error of NVML as data."""
    return {"rc": problem.value, "text": str(problem)}


def get(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a getter, or its fault."""
    try:
        return function(*arguments)
    except nvml.NVMLError as problem:
        return fault(problem)
    except UnicodeDecodeError:
        return {"rc": nvml.NVML_ERROR_UNKNOWN, "text": "this is no text"}


def first(names: Sequence[str], *arguments: Any) -> Any:
    """Return the result of the first of several getters that this driver has, or its fault."""
    value: Any = None
    for name in names:
        value = get(getattr(nvml, name), *arguments)
        if not is_fault(value) or value["rc"] != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            break
    return value


def is_fault(value: Any) -> bool:
    """Return whether a value is a fault."""
    return isinstance(value, dict) and "rc" in value


def read() -> Json:
    """Return the settings of all GPUs."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as problem:
        return {
            "error": f"NVML cannot be used: {problem} (return code {problem.value})",
            "rc": problem.value,
        }
    try:
        count = get(nvml.nvmlDeviceGetCount)
        if is_fault(count):
            return {
                "error": f"NVML cannot count GPUs: {count['text']} (return code {count['rc']})",
                "rc": count["rc"],
            }
        return {
            "driver": get(nvml.nvmlSystemGetDriverVersion),
            "gpus": {str(index): gpu(index) for index in range(count)},
        }
    finally:
        nvml.nvmlShutdown()


def gpu(index: int) -> Json:
    """Return one GPU, field by field."""
    handle = get(nvml.nvmlDeviceGetHandleByIndex, index)
    return dict(handle) if is_fault(handle) else of(handle)


def of(handle: Any) -> Json:
    """Return the settings of the GPU of a handle."""
    pci = get(nvml.nvmlDeviceGetPciInfo, handle)
    lost = is_fault(pci)
    device = 0 if lost else int(pci.pciDeviceId)
    return {
        "uuid": get(nvml.nvmlDeviceGetUUID, handle),
        "address": pci if lost else address(_text(pci.busId)),
        "pci_id": pci if lost else f"{device & 0xFFFF:04x}:{device >> 16:04x}",
        "name": get(nvml.nvmlDeviceGetName, handle),
        "persistence_mode": get(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        "power": power(handle),
        "clocks": clocks(handle),
        "ecc": get(lambda: _pair(nvml.nvmlDeviceGetEccMode(handle))),
        "compute_mode": get(
            lambda: COMPUTE_MODES.get(nvml.nvmlDeviceGetComputeMode(handle), "unknown")
        ),
        "mig": get(mig, handle),
        "processes": processes(handle),
    }


def processes(handle: Any) -> Any:
    """Return the pids of the processes on a GPU. Branch 470 does not have the third version of the call."""
    rows = first(PROCESSES, handle)
    return rows if is_fault(rows) else [process.pid for process in rows]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pair(modes: List[int]) -> Json:
    return {"current": bool(modes[0]), "pending": bool(modes[1])}


def power(handle: Any) -> Json:
    """Return the power limits in watts, as integers if possible."""

    def watts(milli: int) -> float:
        return milli / 1000 if milli % 1000 else milli // 1000

    limits = get(nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    return {
        "limit": get(lambda: watts(nvml.nvmlDeviceGetPowerManagementLimit(handle))),
        "default": get(lambda: watts(nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))),
        "min": limits if is_fault(limits) else watts(limits[0]),
        "max": limits if is_fault(limits) else watts(limits[1]),
    }


def clocks(handle: Any) -> Json:
    """Return the application clocks, the highest clocks, and the supported clocks, in MHz."""

    def supported() -> Dict[str, List[List[int]]]:
        return {
            str(memory): runs(nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory))
            for memory in nvml.nvmlDeviceGetSupportedMemoryClocks(handle)
        }

    return {
        "application": {
            name: get(nvml.nvmlDeviceGetApplicationsClock, handle, kind) for name, kind in CLOCKS
        },
        "max": {name: get(nvml.nvmlDeviceGetMaxClockInfo, handle, kind) for name, kind in CLOCKS},
        "supported": get(supported),
    }


def runs(values: List[int]) -> List[List[int]]:
    """Return a list of clocks as runs of first, last and step: eighty numbers 15 MHz apart are one run."""
    ranges: List[List[int]] = []
    for value in sorted(values):
        if ranges and ranges[-1][2] == 0:
            ranges[-1][1:] = [value, value - ranges[-1][0]]
        elif ranges and value - ranges[-1][1] == ranges[-1][2]:
            ranges[-1][1] = value
        else:
            ranges.append([value, value, 0])
    return ranges


# -- MIG


def mig(handle: Any) -> Json:
    """Return the MIG mode, the existing GPU instances, and the possible ones."""
    modes = _pair(nvml.nvmlDeviceGetMigMode(handle))
    known = list(profiles(handle))
    there: List[str] = []
    if modes["current"]:
        for name, info in known:
            there += [name] * len(instances(handle, info))
    return {**modes, "instances": there, "profiles": [name for name, _ in known]}


def profiles(handle: Any) -> Iterator[Tuple[str, Any]]:
    """Yield (name, profile) of each GPU instance profile of the board.

    Drivers before 510 give no names; they are derived from slices and memory.
    """
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        for version in (2, 1):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=version)
            except nvml.NVMLError as problem:
                if problem.value == nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                    continue
                break
            name = _text(info.name) if version == 2 else ""
            yield (
                name.replace("MIG ", "")
                or f"{info.sliceCount}g.{math.ceil(info.memorySizeMB / 1024)}gb",
                info,
            )
            break


def instances(handle: Any, info: Any) -> List[Any]:
    """Return the GPU instances of one profile."""
    array = (nvml.c_nvmlGpuInstance_t * max(int(info.instanceCount), 1))()
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstances(handle, info.id, array, ctypes.byref(count))
    return list(array[: count.value])


def set_mig(handle: Any, value: Mapping[str, Any]) -> Json:
    """Set the mode, then the layout.

    If the mode becomes active only with a reset or a boot, the layout waits for it.
    """
    modes = nvml.nvmlDeviceGetMigMode(handle)
    wanted = 1 if value["enabled"] else 0
    there = mig(handle)["instances"] if modes[0] else []
    # Where only the pending mode is wrong, the instances stay: nothing is wrong with them.
    right = bool(modes[0] and wanted and sorted(there) == sorted(value.get("profiles", there)))
    # Before anything is cleared: a layout that cannot be made must not cost the one that is there.
    rows = layout(handle, value.get("profiles", ())) if modes[0] else []
    if isinstance(rows, dict):
        return rows
    if modes[0] and not right and ("profiles" in value or not wanted):
        clear(handle)
    if modes != [wanted, wanted]:
        status = nvml.nvmlDeviceSetMigMode(handle, wanted)
        if status != nvml.NVML_SUCCESS:
            return {"text": f"becomes active with a reset ({nvml.NVMLError(status)})"}
    if nvml.nvmlDeviceGetMigMode(handle)[0] != wanted:
        return {"text": "becomes active with the next boot"}
    if right:
        return {}
    if not modes[0]:
        rows = layout(handle, value.get("profiles", ()))
        if isinstance(rows, dict):
            return rows
    for info, at in rows:
        made = create(handle, info.id, at)
        whole = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
            made, FULL_INSTANCE[int(info.sliceCount)], 0, version=1
        )
        nvml.nvmlGpuInstanceCreateComputeInstance(made, whole.id)
    return {}


def layout(handle: Any, names: Sequence[str]) -> Any:
    """Return (profile, place) of each instance in the order of creation, or the fault of a layout that cannot be made."""
    known = dict(profiles(handle))
    unknown = [name for name in names if name not in known]
    if unknown:
        return {
            "rc": nvml.NVML_ERROR_INVALID_ARGUMENT,
            "text": f"the board has no profile {unknown[0]}",
        }
    # Large ones first: where the driver chooses the places, small ones before them may leave no room in one piece.
    rows = sorted(
        (known[name] for name in names),
        key=lambda info: (-int(info.sliceCount), -int(info.memorySizeMB)),
    )
    places = place([starts(handle, info) for info in rows])
    if places is None:
        return {
            "rc": nvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
            "text": f"one GPU has no place for {', '.join(names)} together",
        }
    return list(zip(rows, places))


def starts(handle: Any, info: Any) -> Optional[List[Tuple[int, int]]]:
    """Return (first memory slice, slices) of each place that a profile can have; None from a driver without the call."""
    call, count = nvml.nvmlDeviceGetGpuInstancePossiblePlacements, ctypes.c_uint(0)
    if is_fault(get(call, handle, info.id, None, ctypes.byref(count))):
        return None
    array = (nvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    call(handle, info.id, array, ctypes.byref(count))
    return [(int(row.start), int(row.size)) for row in array[: count.value]]


def place(
    choices: Sequence[Optional[List[Tuple[int, int]]]], taken: Sequence[int] = ()
) -> Optional[List[Optional[Tuple[int, int]]]]:
    """Return a place for each profile so that none overlaps another, None if there is none.

    The driver itself takes the first place that is free: 1g.5gb and 2g.10gb before 3g.20gb leave it no room
    (MIG User Guide, creation of a 3-2-1-1 geometry).
    """
    if not choices:
        return []
    for at in choices[0] if choices[0] is not None else (None,):
        own = list(range(at[0], at[0] + at[1])) if at else []
        if not set(own) & set(taken):
            rest = place(choices[1:], [*taken, *own])
            if rest is not None:
                return [at, *rest]
    return None


def create(handle: Any, profile: int, at: Optional[Tuple[int, int]]) -> Any:
    """Create a GPU instance at a place, or where the driver puts it."""
    if at is not None:
        where = nvml.c_nvmlGpuInstancePlacement_t(*at)
        try:
            return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                handle, profile, ctypes.byref(where)
            )
        except nvml.NVMLError as problem:
            if problem.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    return nvml.nvmlDeviceCreateGpuInstance(handle, profile)


def clear(handle: Any) -> None:
    """Destroy every compute instance, then every GPU instance."""
    for _, info in profiles(handle):
        for instance in instances(handle, info):
            for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
                try:
                    profile = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                        instance, number, 0, version=1
                    )
                except nvml.NVMLError:  # the GPU instance is too small for this one
                    continue
                array = (nvml.c_nvmlComputeInstance_t * max(int(profile.instanceCount), 1))()
                count = ctypes.c_uint(0)
                nvml.nvmlGpuInstanceGetComputeInstances(
                    instance, profile.id, array, ctypes.byref(count)
                )
                for compute in array[: count.value]:
                    nvml.nvmlComputeInstanceDestroy(compute)
            nvml.nvmlGpuInstanceDestroy(instance)


# -- setting


def set_clocks(handle: Any, value: Mapping[str, Any]) -> Json:
    """Set application clocks together, locked ones one by one. ``parts`` has the result of each."""
    graphics, memory = value.get("graphics_mhz"), value.get("memory_mhz")
    parts: Dict[str, Json] = {}
    if value["mode"] == "application":
        reported = done(nvml.nvmlDeviceSetApplicationsClocks, handle, memory, graphics)
        parts = {"graphics_mhz": reported, "memory_mhz": reported}
    else:
        if graphics is not None:
            parts["graphics_mhz"] = done(
                nvml.nvmlDeviceSetGpuLockedClocks, handle, graphics, graphics
            )
        if memory is not None:
            parts["memory_mhz"] = done(nvml.nvmlDeviceSetMemoryLockedClocks, handle, memory, memory)
    # A part that this driver does not offer must not hide that another one failed.
    worst = sorted(parts.values(), key=lambda part: (part["rc"] == 0, part["rc"] in NOT_EXPOSED))[0]
    return {**worst, "parts": parts}


def done(function: Callable[..., Any], *arguments: Any) -> Json:
    """Return the result of a setter: ``{rc, text}``."""
    try:
        function(*arguments)
    except nvml.NVMLError as problem:
        return fault(problem)
    return {"rc": 0, "text": "Success"}


def change(settings: Sequence[Mapping[str, Any]]) -> Json:
    """Set them in their order; each has its own result."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as problem:
        return {
            "error": f"NVML cannot be used: {problem} (return code {problem.value})",
            "rc": problem.value,
        }
    try:
        return {
            "results": [
                {**setting, "rc": 0, "text": "Success", **one(setting)} for setting in settings
            ]
        }
    finally:
        nvml.nvmlShutdown()


def one(setting: Mapping[str, Any]) -> Json:
    """Set one thing on one GPU."""
    value = setting["value"]
    modes = {name: number for number, name in COMPUTE_MODES.items()}
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(setting["uuid"])
        if setting["field"] == "clocks":
            return set_clocks(handle, value)
        if setting["field"] == "mig":
            return set_mig(handle, value)
        if setting["field"] == "compute_mode":
            return done(nvml.nvmlDeviceSetComputeMode, handle, modes[value])
        if setting["field"] == "power_limit_watts":
            return done(nvml.nvmlDeviceSetPowerManagementLimit, handle, round(value * 1000))
        setter = {
            "persistence_mode": nvml.nvmlDeviceSetPersistenceMode,
            "ecc": nvml.nvmlDeviceSetEccMode,
        }[setting["field"]]
        return done(setter, handle, 1 if value else 0)
    except nvml.NVMLError as problem:
        return fault(problem)
