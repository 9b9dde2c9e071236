"""Change settings slightly, read them back, and restore them: persistence, power limit, application clocks,
compute mode.

Only settings that NVML reads back are changed, one GPU after the other, on GPUs without processes.
A state file records the original values before the first change, and is removed after the last
reading. If a run was killed in between, the next one restores them first. This module cannot reset
a GPU or set ECC or MIG.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, cast

from goldnode.node.ground.json_lines import as_map
from goldnode.prove.session import FinishedProcess, NotChecked, Session

SCHEMA = "goldnode.prove-gpu-state/1"
# In the order of setting; restored in reverse order.
FIELDS = (
    "persistence_mode",
    "power_limit_watts",
    "clocks",
    "compute_mode",
)
# Only on request: NVML cannot read a lock, so a lock from before the run would be lost.
LOCKED = "locked_clocks"
ABSENT = (3, 13)  # NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND
STEP_W = 5  # watts by which a power limit is changed, and back

Json = Dict[str, Any]


class GpuSettingChange(NamedTuple):
    """One setting of one GPU: its original value and the temporary one.

    If `other` is None, `why` is the reason to skip the setting.
    """

    uuid: str
    field: str
    original: Any
    other: Any
    why: str = ""


def is_fault(value: Any) -> bool:
    """Return whether a value of a reading is missing, or an NVML return code."""
    return value is None or (isinstance(value, dict) and "rc" in value)


def current(gpu: Mapping[str, Any], field: str) -> Any:
    """Return a setting of a GPU in the form that sets it; a fault if it was not read."""
    if field == "power_limit_watts":
        return gpu["power"].get("limit")
    if field == "clocks":
        own = gpu["clocks"].get("application") or {}
        bad = next(
            (value for value in (own.get("graphics"), own.get("memory")) if is_fault(value)), None
        )
        if bad is not None or not own:
            return bad
        return {"mode": "application", "graphics_mhz": own["graphics"], "memory_mhz": own["memory"]}
    return gpu.get(field)


def proposals(gpus: Mapping[str, Any]) -> List[GpuSettingChange]:
    """Return the changes to make on each GPU of a reading. Pure."""
    return [
        _proposal(gpu, field)
        for gpu in gpus.values()
        if not is_fault(gpu) and not is_fault(gpu.get("uuid"))
        for field in FIELDS
    ]


def _proposal(gpu: Mapping[str, Any], field: str) -> GpuSettingChange:
    value = current(gpu, field)
    uuid = gpu["uuid"]
    if is_fault(value):
        return GpuSettingChange(
            uuid,
            field,
            value,
            None,
            f"this driver does not show it ({(value or {}).get('text', 'no value')})",
        )
    other, why = {
        "persistence_mode": _persistence,
        "power_limit_watts": _power,
        "clocks": _clocks,
        "compute_mode": _compute,
    }[field](gpu, value)
    return GpuSettingChange(uuid, field, value, other, why)


def _persistence(gpu: Mapping[str, Any], value: Any) -> Tuple[Any, str]:
    # Never switch it off: without a client the driver would then forget clocks and power limit.
    if value:
        return None, "it is on, and without it the driver may forget clocks and power limit"
    return True, ""


def _power(gpu: Mapping[str, Any], value: Any) -> Tuple[Any, str]:
    low, high = gpu["power"].get("min"), gpu["power"].get("max")
    if is_fault(low) or is_fault(high):
        return None, "its range cannot be read"
    for other in (value - STEP_W, value + STEP_W):
        if low <= other <= high:
            return other, ""
    return None, f"its range leaves no other value ({low} to {high} W)"


def _clocks(gpu: Mapping[str, Any], value: Any) -> Tuple[Any, str]:
    # The driver accepts a graphics clock only with a memory clock that it lists it for.
    runs = _supported(gpu).get(str(value["memory_mhz"]))
    clocks = sorted(
        {clock for first, last, step in runs or [] for clock in range(first, last + 1, step or 1)}
    )
    lower = [clock for clock in clocks if clock < value["graphics_mhz"]]
    if not lower or value["graphics_mhz"] not in clocks:
        return None, "its driver lists no lower clock beside the one that is set"
    return {**value, "graphics_mhz": lower[-1]}, ""


def _supported(gpu: Mapping[str, Any]) -> Json:
    """Return the graphics clocks of a GPU as runs by memory clock; empty if the driver lists none."""
    runs = gpu["clocks"].get("supported")
    return {} if is_fault(runs) else as_map(runs)


def _compute(gpu: Mapping[str, Any], value: Any) -> Tuple[Any, str]:
    if value not in ("default", "exclusive_process", "prohibited"):
        return None, f"{value} is not known here, and could not be put back"
    return ("exclusive_process" if value == "default" else "default"), ""


def lock(gpu: Mapping[str, Any]) -> Optional[Json]:
    """Return the setting that locks the graphics clock to the second highest of the driver's list.

    Return None without a list.
    """
    clocks = sorted(
        {last - (step or 0) for rows in _supported(gpu).values() for _, last, step in rows}
    )
    return {"mode": "locked", "graphics_mhz": clocks[-1]} if clocks else None


def without_processes(gpus: Mapping[str, Any]) -> Json:
    """Return a reading without the processes on the GPUs, which change by themselves."""
    return {
        index: gpu and {key: item for key, item in gpu.items() if key != "processes"}
        for index, gpu in gpus.items()
    }


def differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> List[str]:
    """Return the differences between two readings, as `gpu0.power.limit: 700, was 695`."""
    paths = []
    for key in sorted({*before, *after}):
        one, two, name = before.get(key), after.get(key), f"{path}.{key}" if path else f"gpu{key}"
        if isinstance(one, dict) and isinstance(two, dict):
            paths += differences(one, two, name)
        elif one != two:
            paths.append(f"{name}: {two}, was {one}")
    return paths


# -- driver


def read(session: Session) -> Json:
    """Read all settings of all GPUs in a child process with a time limit. Raises NotChecked."""
    answer = _asked(session, {"do": "read", "vendor": "nvidia", "root": "/"}).json(
        "the reading of the settings"
    )
    if "error" in answer:
        raise NotChecked(f"the settings cannot be read: {answer['error']}")
    return cast("Json", answer["gpus"])


def put(session: Session, rows: List[Json]) -> List[Json]:
    """Apply settings in order. Return the results. Raises NotChecked."""
    answer = _asked(session, {"do": "set", "vendor": "nvidia", "root": "/", "settings": rows}).json(
        "the setting"
    )
    if "error" in answer:
        raise NotChecked(f"nothing can be set: {answer['error']}")
    return cast("List[Json]", answer["results"])


def back(session: Session, rows: List[Json]) -> List[str]:
    """Restore settings in the given order. Return the settings that the driver refused. Raises NotChecked."""
    locks = [item["uuid"] for item in rows if item["field"] == LOCKED]
    refused: List[str] = []
    if locks:
        command = session.own("goldnode.prove.unlock", *locks, append=[str(session.carried.node)])
        for item in (
            session.children.run(command, 60.0).json("the end of the lock").get("results", [])
        ):
            refused += [] if item["rc"] == 0 else [f"{LOCKED}: {item['text']}"]
    # In reverse order of setting: locks were set last.
    rest = [item for item in rows if item["field"] != LOCKED]
    return refused + [
        f"{item['field']} {item['value']}: {item['text']}"
        for item in (put(session, rest) if rest else [])
        if item["rc"] != 0
    ]


def _asked(session: Session, request: Json) -> FinishedProcess:
    # Not with session.node: restoring must work after the time of the run is over.
    command = [*session.python(), str(session.carried.node), "device"]
    return session.children.run(command, 60.0, json.dumps(request).encode())


def row(change: GpuSettingChange, value: Any) -> Json:
    """Return a setting in the form of the device protocol."""
    return {"uuid": change.uuid, "field": change.field, "value": value}


# -- state file


def boot_id() -> str:
    """Return the kernel's id of this boot; empty if unreadable."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def write_restore_file(state: Path, rows: List[Json]) -> None:
    """Write the settings to restore, in that order, before the first change. Raises OSError."""
    state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"schema": SCHEMA, "boot_id": boot_id(), "found": rows}
    # Renamed into place: the next run refuses half a file, and would restore nothing.
    fresh = state.with_name(f".{state.name}")
    with open(
        fresh, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)
    ) as out:
        json.dump(document, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(fresh, state)


def read_restore_file(state: Path) -> Optional[List[Json]]:
    """Return the settings that an earlier run did not restore; None without any.

    Raises NotChecked if the file is not ours or incomplete.
    """
    try:
        # Owner and content come from one open file: it cannot be replaced between the two.
        with open(state, encoding="utf-8") as opened:
            owner = os.fstat(opened.fileno()).st_uid
            settings = json.load(opened)
        rows = settings["found"]
        if settings["schema"] != SCHEMA or not all(
            item["field"] in (*FIELDS, LOCKED) and isinstance(item["uuid"], str) for item in rows
        ):
            raise ValueError("it is of another schema")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise NotChecked(
            f"{state} cannot be read ({problem}): compare the GPUs with `nvidia-smi -q`, then remove the file"
        ) from None
    # Root sets what the file names, so no other user may have written it.
    if owner not in (0, os.geteuid()):
        raise NotChecked(
            f"{state} belongs to another user: compare the GPUs with `nvidia-smi -q`, then remove the file"
        )
    if settings["boot_id"] != boot_id():
        forget(state)  # a boot resets these settings
        return None
    return list(rows)


def forget(state: Path) -> None:
    """Remove the state file, and its directory if it is empty."""
    state.unlink(missing_ok=True)
    try:
        state.parent.rmdir()
    except OSError:  # the user's own directory, or not empty
        return
