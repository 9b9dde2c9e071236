"""Settings that are changed a little, read back and restored: persistence, power limit, application clocks,
compute mode.

Only settings that NVML reads back are touched, one GPU after the other, on GPUs without processes. The
original values are written to a state file before the first change, and the file is removed after the last
reading. If a run was killed in between, the next one restores them first. This module cannot reset a GPU or
set ECC or MIG.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from goldnode.prove.session import Done, NotChecked, Session

SCHEMA = "goldnode.prove-gpu-state/1"
FIELDS = (
    "persistence_mode",
    "power_limit_watts",
    "clocks",
    "compute_mode",
)  # in the order of setting; put back in the opposite one
LOCKED = "locked_clocks"  # on request alone: no call of NVML reads a lock, so that one which was there before would be lost
ABSENT = (3, 13)  # NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND
STEP_W = 5

Json = Dict[str, Any]


class Change(NamedTuple):
    """One setting of one GPU: what was found and what it is set to meanwhile. `other` None: why it is left alone."""

    uuid: str
    field: str
    found: Any
    other: Any
    why: str = ""


def is_fault(value: Any) -> bool:
    """Whether a value of a reading is a return code of NVML."""
    return value is None or (isinstance(value, dict) and "rc" in value)


def current(gpu: Mapping[str, Any], field: str) -> Any:
    """Return a setting of a GPU in the form that sets it; a fault if it was not read."""
    if field == "power_limit_watts":
        return gpu["power"].get("limit")
    if field == "clocks":
        own = gpu["clocks"].get("application") or {}
        bad = next((value for value in (own.get("graphics"), own.get("memory")) if is_fault(value)), None)
        if bad is not None or not own:
            return bad
        return {"mode": "application", "graphics_mhz": own["graphics"], "memory_mhz": own["memory"]}
    return gpu.get(field)


def proposals(gpus: Mapping[str, Any]) -> List[Change]:
    """Return the changes to make on each GPU of a reading. Pure."""
    found = []
    for gpu in gpus.values():
        if is_fault(gpu) or is_fault(gpu.get("uuid")):
            continue
        found += [_proposal(gpu, field) for field in FIELDS]
    return found


def _proposal(gpu: Mapping[str, Any], field: str) -> Change:
    value = current(gpu, field)
    uuid = gpu["uuid"]
    if is_fault(value):
        return Change(
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
    return Change(uuid, field, value, other, why)


def _persistence(gpu: Mapping[str, Any], value: Any) -> Tuple[Any, str]:
    # Off, with no client left, would make the driver forget clocks and power limit: that is no setting as found.
    return (
        (True, "")
        if not value
        else (None, "it is on, and without it the driver may forget clocks and power limit")
    )


def _power(gpu: Mapping[str, Any], value: Any) -> Tuple[Any, str]:
    low, high = gpu["power"].get("min"), gpu["power"].get("max")
    if is_fault(low) or is_fault(high):
        return None, "its range cannot be read"
    for other in (value - STEP_W, value + STEP_W):
        if low <= other <= high:
            return other, ""
    return None, f"its range leaves no other value ({low} to {high} W)"


def _clocks(gpu: Mapping[str, Any], value: Any) -> Tuple[Any, str]:
    runs = gpu["clocks"].get("supported")
    runs = runs.get(str(value["memory_mhz"])) if isinstance(runs, dict) and not is_fault(runs) else None
    clocks = sorted(
        {clock for first, last, step in runs or [] for clock in range(first, last + 1, step or 1)}
    )
    lower = [clock for clock in clocks if clock < value["graphics_mhz"]]
    if not lower or value["graphics_mhz"] not in clocks:
        return None, "its driver lists no lower clock beside the one that is set"
    return {**value, "graphics_mhz": lower[-1]}, ""


def _compute(gpu: Mapping[str, Any], value: Any) -> Tuple[Any, str]:
    if value not in ("default", "exclusive_process", "prohibited"):
        return None, f"{value} is not known here, and could not be put back"
    return ("exclusive_process" if value == "default" else "default"), ""


def lock(gpu: Mapping[str, Any]) -> Optional[Json]:
    """Return the setting that locks the graphics clock to the second highest of the driver's list; None
    without a list.
    """
    runs = gpu["clocks"].get("supported")
    clocks = (
        sorted({last - (step or 0) for rows in runs.values() for _, last, step in rows})
        if isinstance(runs, dict) and not is_fault(runs)
        else []
    )
    return {"mode": "locked", "graphics_mhz": clocks[-1]} if clocks else None


def plain(gpus: Mapping[str, Any]) -> Json:
    """A reading without what changes by itself: who uses the GPUs."""
    return {
        index: gpu if is_fault(gpu) else {key: item for key, item in gpu.items() if key != "processes"}
        for index, gpu in gpus.items()
    }


def differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> List[str]:
    """Return the differences between two readings, as `gpu0.power.limit: 700, was 695`."""
    found = []
    for key in sorted({*before, *after}):
        one, two, name = before.get(key), after.get(key), f"{path}.{key}" if path else f"gpu{key}"
        if isinstance(one, dict) and isinstance(two, dict):
            found += differences(one, two, name)
        elif one != two:
            found.append(f"{name}: {two}, was {one}")
    return found


# -- with a driver


def read(session: Session) -> Json:
    """All settings of all GPUs, by a process that can be killed. Raises NotChecked."""
    answer = _asked(session, {"do": "read", "vendor": "nvidia", "root": "/"}).json(
        "the reading of the settings"
    )
    if "error" in answer:
        raise NotChecked(f"the settings cannot be read: {answer['error']}")
    gpus: Json = answer["gpus"]
    return gpus


def put(session: Session, rows: List[Json]) -> List[Json]:
    """Set things in their order; return the results. Raises NotChecked."""
    answer = _asked(session, {"do": "set", "vendor": "nvidia", "root": "/", "settings": rows}).json(
        "the setting"
    )
    if "error" in answer:
        raise NotChecked(f"nothing can be set: {answer['error']}")
    results: List[Json] = answer["results"]
    return results


def back(session: Session, rows: List[Json]) -> List[str]:
    """Put settings back, in the order given; return what the setters refused. Raises NotChecked."""
    locks = [item["uuid"] for item in rows if item["field"] == LOCKED]
    refused: List[str] = []
    if locks:
        command = session.own("goldnode.prove.unlock", *locks, append=[str(session.carried.node)])
        for item in session.children.run(command, 60.0).json("the end of the lock").get("results", []):
            refused += [] if item["rc"] == 0 else [f"{LOCKED}: {item['text']}"]
    rest = [item for item in rows if item["field"] != LOCKED]
    return refused + [
        f"{item['field']} {item['value']}: {item['text']}"
        for item in (put(session, rest) if rest else [])
        if item["rc"] != 0
    ]


def _asked(session: Session, request: Json) -> Done:
    # Not by session.node: the end of the run's time must not keep settings from being put back.
    command = [*session.python(), str(session.carried.node), "device"]
    return session.children.run(command, 60.0, json.dumps(request).encode())


def row(change: Change, value: Any) -> Json:
    """A setting as the device protocol has it."""
    return {"uuid": change.uuid, "field": change.field, "value": value}


# -- what is kept while something is changed


def boot_id() -> str:
    """The kernel's own name of this boot; empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def keep(state: Path, rows: List[Json]) -> None:
    """Write what is to be put back, in that order, before anything is changed. Raises OSError."""
    state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"schema": SCHEMA, "boot_id": boot_id(), "found": rows}
    fresh = state.with_name(f".{state.name}")
    with open(fresh, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
        json.dump(document, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(fresh, state)


def kept(state: Path) -> Optional[List[Json]]:
    """Return the settings that an earlier run did not restore; None without any. Raises NotChecked for a
    foreign or incomplete file.
    """
    try:
        with open(state, encoding="utf-8") as opened:
            owner = os.fstat(opened.fileno()).st_uid
            found = json.load(opened)
        rows = found["found"]
        if found["schema"] != SCHEMA or not all(
            item["field"] in (*FIELDS, LOCKED) and isinstance(item["uuid"], str) for item in rows
        ):
            raise ValueError("it is of another schema")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise NotChecked(
            f"{state} cannot be read ({problem}): compare the GPUs with `nvidia-smi -q`, then remove the file"
        ) from None
    if owner not in (0, os.geteuid()):
        raise NotChecked(
            f"{state} belongs to another user: compare the GPUs with `nvidia-smi -q`, then remove the file"
        )
    if found["boot_id"] != boot_id():
        forget(state)  # the driver has forgotten these settings with that boot
        return None
    return list(rows)


def forget(state: Path) -> None:
    """Take the state file away, and its directory where it is empty."""
    state.unlink(missing_ok=True)
    try:
        state.parent.rmdir()
    except OSError:  # the user's own directory, or not empty
        return
