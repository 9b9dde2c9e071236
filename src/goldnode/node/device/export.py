"""The current policy of a node, in the form of a class file."""

from __future__ import annotations

import json

from ..ground.host import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping


def is_value(value: Any) -> bool:
    """Return whether it is a value and not a fault."""
    return value is not None and not (isinstance(value, dict) and "rc" in value)


def settings(gpu: Mapping[str, Any]) -> Json:
    """Return the settings of one GPU in the keys of a class; unreadable ones are left out."""
    values: Json = {
        key: gpu[key]
        for key in ("persistence_mode", "compute_mode", "performance_level")
        if is_value(gpu.get(key))
    }
    application = gpu.get("clocks", {}).get("application", {})
    clocks = {
        f"{name}_mhz": application[name]
        for name in ("graphics", "memory")
        if is_value(application.get(name))
    }
    if clocks:
        values["clocks"] = clocks
    limit = gpu.get("power", {}).get("limit")
    if is_value(limit):
        values["power_limit_watts"] = int(limit)
    if is_value(gpu.get("ecc")):
        values["ecc"] = gpu["ecc"]["pending"]
    if is_value(gpu.get("mig")):
        values["mig"] = {"enabled": gpu["mig"]["pending"]}
        if gpu["mig"]["instances"]:
            values["mig"]["profiles"] = sorted(gpu["mig"]["instances"])
    return values


def policy(answer: Mapping[str, Any]) -> Json:
    """Return the common settings of all GPUs, and an override by UUID for each that differs. Locked clocks
    are not included: no call reads them.
    """
    each: Dict[str, Json] = {
        gpu["uuid"]: settings(gpu)
        for gpu in answer["gpus"].values()
        if isinstance(gpu.get("uuid"), str)
    }
    if not each:
        return {}
    values = list(each.values())
    common: Json = {}
    for key in sorted({key for value in values for key in value}):
        here = [json.dumps(value.get(key), sort_keys=True) for value in values]
        # Of values that are equally frequent, the first as text: the export must not depend on the order of GPUs.
        most = max(sorted(set(here)), key=here.count)
        if json.loads(most) is not None:
            common[key] = json.loads(most)
    overrides = []
    for uuid, value in each.items():
        other = {key: value[key] for key in value if value[key] != common.get(key)}
        if other:
            overrides.append({"uuid": uuid, **other})
    if overrides:
        common["overrides"] = overrides
    return {"policy": common}


def yaml(value: Mapping[str, Any], indent: int = 0) -> List[str]:
    """Return lines of YAML for nested mappings, lists and scalars, which is all that a policy holds."""
    lines = []
    for key, item in value.items():
        head = "  " * indent + f"{key}:"
        if isinstance(item, dict):
            lines += [head, *yaml(item, indent + 1)]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            lines.append(head)
            for row in item:
                inner = yaml(row, indent + 2)
                lines += ["  " * (indent + 1) + "- " + inner[0].lstrip(), *inner[1:]]
        else:
            lines.append(f"{head} {json.dumps(item)}")
    return lines
