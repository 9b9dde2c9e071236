"""Handlers for the actions of domain `policy`.

Each takes the applier and one action, applies the change, and may return a message.
"""

from __future__ import annotations

import json
import time

from ...device.child import ask
from ...ground.errors import NodeError
from ..domains.policy import ABSENT, RECORD, RECORD_SCHEMA, driver_load
from ..observe import load_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from ...ground.host import Json
    from ..contract import Handler, Writer
    from ..model import Action

MIG_PARTED = "/usr/bin/nvidia-mig-parted"
MIG_CONFIG = "/run/goldnode/mig-parted.json"
# Resetting eight GPUs and recreating their MIG instances; NVML first initializes every GPU.
LIMIT = 240.0


def set_gpu(applier: Writer, action: Action) -> Optional[str]:
    """Apply one setting of one GPU.

    The first action of a plan applies all of them in one process, since loading the GPU library is
    slow.
    """
    key = (action.data["uuid"], action.data["field"])
    if key not in applier.outcomes:
        todo = [planned for planned in applier.planned if planned.kind == "gpu.set"]
        applier.outcomes.update(_set(applier, todo[todo.index(action) :]))
    reported = applier.outcomes.pop(key)
    absent = reported["rc"] in ABSENT
    if reported["rc"] != 0 and not absent:
        raise NodeError(
            f"{action.target} cannot be set to {action.data['value']}: {reported['text']} (return code "
            f"{reported['rc']}). "
            "Look at dmesg and at `goldnode-node check` on the node."
        )
    if absent:
        return f"the driver does not have it: {reported['text']}"
    return None if reported["text"] == "Success" else str(reported["text"])


def _set(applier: Writer, actions: List[Action]) -> Dict[Tuple[str, str], Json]:
    """Apply all settings, and return the result of each.

    The results are also recorded, since some settings cannot be read back.
    """
    host = applier.host
    results: List[Json] = []
    rows = [{key: action.data[key] for key in ("uuid", "field", "value")} for action in actions]
    parted = host.exists(MIG_PARTED)
    layouts = [action for action in actions if action.data["field"] == "mig" and parted]
    if layouts:
        # A change of MIG may reset the GPU. Apply it before the settings that a reset clears, and after ECC,
        # whose pending mode survives a reset.
        early = [row for row in rows if row["field"] in ("persistence_mode", "ecc")]
        results += _ask(applier, actions[0], early) if early else []
        reported: Json = _mig_parted(applier, layouts)
        results += [{**row, **reported} for row in rows if row["field"] == "mig"]
        rows = [row for row in rows if row["field"] not in ("persistence_mode", "ecc", "mig")]
    results += _ask(applier, actions[0], rows) if rows else []
    _remember(applier, results)
    return {(row["uuid"], row["field"]): row for row in results}


def _ask(applier: Writer, first: Action, rows: List[Json]) -> List[Json]:
    answer = ask(
        applier.host,
        {"do": "set", "vendor": first.data["vendor"], "root": applier.host.root, "settings": rows},
        LIMIT,
    )
    if "error" in answer:
        raise NodeError(
            f"the GPUs cannot be set: {answer['error']}. Look at dmesg on the node; if the driver "
            "hangs, reboot it."
        )
    return list(answer["results"])


def _mig_parted(applier: Writer, actions: List[Action]) -> Json:
    """Apply the MIG layout with NVIDIA's mig-parted.

    It handles placements and resets better than this program.
    """
    devices = [
        {
            "devices": [action.data["index"]],
            "mig-enabled": action.data["value"]["enabled"],
            "mig-devices": {
                name: action.data["value"].get("profiles", []).count(name)
                for name in action.data["value"].get("profiles", [])
            },
        }
        for action in actions
    ]
    applier.host.write(
        MIG_CONFIG,
        json.dumps({"version": "v1", "mig-configs": {"goldnode": devices}}, indent=1).encode(),
    )
    done = applier.host.run(MIG_PARTED, "apply", "-f", MIG_CONFIG, "-c", "goldnode", timeout=LIMIT)
    if done.rc != 0:
        return {"rc": 999, "text": f"nvidia-mig-parted: {done.tail(3)}"}
    return {"rc": 0, "text": "Success"}


def _remember(applier: Writer, results: List[Json]) -> None:
    """Record the results of the setters, for this boot and this load of the driver."""
    host = applier.host
    load = driver_load(host)
    record = load_json(host, RECORD) or {}
    reported: Dict[str, Any] = record.get("set", {}) if record.get("driver_load") == load else {}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for row in results:
        outcome: Json = {key: row[key] for key in ("value", "rc", "text", "parts") if key in row}
        outcome["at"] = now
        # Switching the MIG mode resets the GPU. That clears its clocks, which cannot be read back.
        if row["field"] == "mig":
            reported.get(row["uuid"], {}).pop("clocks", None)
        reported.setdefault(row["uuid"], {})[row["field"]] = outcome
    host.write(
        RECORD,
        json.dumps(
            {"schema": RECORD_SCHEMA, "driver_load": load, "set": reported},
            indent=1,
            sort_keys=True,
        ).encode(),
    )


def restart_unit(applier: Writer, action: Action) -> None:
    """Restart a unit whose files have just been written. systemd must read them first."""
    for argv in (("systemctl", "daemon-reload"), ("systemctl", "restart", action.target)):
        done = applier.host.run(*argv, timeout=180)
        if done.rc != 0:
            raise NodeError(
                f"{' '.join(argv)} fails: {done.tail(5)}. Look at `journalctl -u {action.target}` "
                "on the node."
            )


HANDLERS: Dict[str, Handler] = {
    "gpu.set": set_gpu,
    "gpu.unit": restart_unit,
}
