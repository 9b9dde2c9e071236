"""How each kind of evidence is made: the commands that a refusal names, on a controller and on a node alike."""

from __future__ import annotations

# kind -> how the record is made, and its name
STEPS = {
    "boot": ("`goldnode-node report --fresh > report.json` on a node of {class}", "report.json"),
    "canary": ("`goldnode canary run --class {class} --out canary`", "canary/RESULT.json"),
    "floors": ("`goldnode floors learn canary --out floors.json`", "floors.json"),
    "dual": ("`goldnode dual compare A B --report dual.json`", "dual.json"),
    "smoke": (
        "`goldnode images smoke DIGEST --gpus all --format json > smoke.json` on a node of {class}",
        "smoke.json",
    ),
    "disk": ("`goldnode disks verify {class}`", "BUILD/verified.json"),
    "prove-gpu": ("`scripts/prove-gpu --out run` on a node of {class}", "run"),
    "module-build": ("`goldnode modules build STACK`", "RESULT.json"),
}


def renew(kind: str, node_class: str) -> str:
    """Return the commands that make and sign a proof of a kind, as one instruction."""
    how, record = STEPS[kind]
    made = how.replace("{class}", node_class)
    return f"run {made}, then `goldnode evidence sign {kind} {record} --class {node_class}`"
