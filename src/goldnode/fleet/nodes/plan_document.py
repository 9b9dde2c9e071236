"""Parser for the plan that a node sends (schema goldnode.plan/1).

The plan is untrusted input: nothing of it is used before all of it has been validated.
"""

from __future__ import annotations

import json
from typing import Any

from goldnode.node.state.model import PARTS, PHASES, PLAN_SCHEMA, PRESENT

# characters; the complete plan of a bare node, with every file in it, is about 100 KiB
LIMIT = 8 * 1024 * 1024

# Type of each key: a tuple lists alternative types, a list has items of one shape, a dict has exactly these
# keys.
_TEXT = (str, type(None))
_ACTION = {
    "part": str, (
        "kind"
    ): str, (
        "target"
    ): str, "reason": str, "phase": str, "before": _TEXT, "after": _TEXT, "reboot": _TEXT, "data": dict,
}  # fmt: skip
_PLAN = {
    "schema": str,
    "state": str,
    "class_digest": str,
    "boot_identity": _TEXT,
    "actions": [_ACTION],
    "parts": {part: [str] for part in PARTS},
    "refusals": [{"code": str, "message": str, "remedy": str}],
    "notes": [{"subject": str, "message": str}],
    "waiting": [{"part": str, "subject": str, "message": str}],
    "holders": [{"pid": int, "command": str, "unit": _TEXT, "container": _TEXT}],
    "drain": str,
    "reboot": {"required": bool, "reasons": [str], "after": [str], "held": [str]},
}


class PlanError(ValueError):
    """The node sent an invalid plan. The text locates the fault in one clause."""


def read_plan(text: str, class_digest: str) -> dict[str, Any]:
    """Parse and validate `text` as a plan for the class document with digest `class_digest`.

    Raises PlanError.
    """
    if len(text) > LIMIT:
        raise PlanError(f"{len(text)} characters, want at most {LIMIT}")
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise PlanError(f"not JSON ({problem})") from None
    _check(plan, _PLAN, "plan")
    if plan["schema"] != PLAN_SCHEMA:
        raise PlanError(f"schema is not {PLAN_SCHEMA}")
    if plan["class_digest"] != class_digest:
        raise PlanError("it is a plan for another class document")
    if plan["state"] != PRESENT:
        raise PlanError("it is a plan of a removal")
    for action in plan["actions"]:
        if action["part"] not in PARTS or action["phase"] not in PHASES:
            raise PlanError("an action is of no known part or phase")
    lines = {
        part: [
            f"{a['kind']} {a['target']}: {a['reason']}"
            for a in plan["actions"]
            if a["part"] == part
        ]
        for part in PARTS
    }
    if plan["parts"] != lines:
        raise PlanError("its parts are not its actions")
    checked: dict[str, Any] = plan
    return checked


def _check(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, dict):
        if not isinstance(value, dict) or value.keys() != shape.keys():
            raise PlanError(f"{where} does not have the keys {', '.join(shape)}")
        for key, inner in shape.items():
            _check(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise PlanError(f"{where} is not a list")
        for number, item in enumerate(value):
            _check(item, shape[0], f"{where}[{number}]")
    elif not isinstance(value, shape):
        raise PlanError(f"{where} is of type {type(value).__name__}")
