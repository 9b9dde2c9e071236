"""The table of drift (table.yml), and the judgement of what on_node.py saw on a node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/reference/drift.md"
RELEASE = "6.1.0-902-amd64"
LIBRARIES = "/usr/lib/x86_64-linux-gnu/nvidia/current"
VARIABLES = {
    "K": RELEASE,
    "LIB": LIBRARIES,
    "MOD": f"/lib/modules/{RELEASE}/updates/dkms/nvidia-current.ko",
}
Kind = Literal["trial", "own", "harmless"]
BY_ENGINE, BY_SITE = "apply", "site.yml"
# Notes of every plan in a container.
USUAL = ("boot.entry", "modules.loaded", "runtime.gpus", "policy", "policy.host", "policy.host.cmdline", "gpu", "kernel.running", "driver.loaded")  # fmt: skip


@dataclass(frozen=True)
class DriftRow:
    """One manipulation. table.yml describes the fields."""

    kind: Kind
    id: str
    do: str
    check: dict[str, str]
    plan: str | None
    repair: str | None
    quick: bool = False

    @property
    def reported(self) -> bool:
        """Return whether a person made the change and takes it back; otherwise goldnode repairs it."""
        return self.repair not in (None, BY_ENGINE, BY_SITE)

    def request(self) -> dict[str, Any]:
        """Return what on_node.py reads."""
        return {"do": self.do, "repair": self.repair, "variables": VARIABLES}


def rows() -> list[DriftRow]:
    """Return the rows of table.yml."""
    table = yaml.safe_load((HERE / "table.yml").read_text(encoding="utf-8"))
    empty: dict[str, Any] = {"check": {}, "plan": None, "repair": None}
    return [DriftRow(kind=kind, **{**empty, **row}) for kind in table for row in table[kind]]


def together(harmless: list[DriftRow]) -> DriftRow:
    """Return all harmless manipulations as one."""
    script = "\n".join(f"({row.do})" for row in harmless)
    return DriftRow("harmless", "all", script, {}, None, None)


def answers(plan: dict[str, Any]) -> list[str]:
    """Return the texts of a plan: actions, refusals and notes."""
    return [
        *(f"{kind} {target}" for _, kind, target, _ in plan["actions"]),
        *(f"{code}: {message}" for code, message, _ in plan["refusals"]),
        *(f"{item} {message}" for item, message in plan["notes"] if item not in USUAL),
    ]


def faults(row: DriftRow, seen: dict[str, Any]) -> list[str]:
    """Return how the answers of a node differ from the row; empty if they do not."""
    status, output = seen["do"]
    if status:
        return [f"the manipulation itself failed: {output}"]
    wrong, plan = seen["check"]["wrong"], seen["plan"]
    if "error" in plan:
        return [f"no plan: {plan['error']}"]
    found = answers(plan)
    if row.kind == "harmless":
        return [f"check: {wrong}"] * bool(wrong) + [f"plan: {found}"] * bool(
            plan["actions"] or plan["refusals"]
        )
    texts = [
        f"check has no {item} with {text!r}: {wrong}"
        for item, text in row.check.items()
        if not any(name.split()[0] == item and text in got for name, got in wrong.items())
    ]
    if row.plan is not None and not any(row.plan in text for text in found):
        texts.append(f"the plan has no {row.plan!r}: {found}")
    if row.reported and plan["actions"] and not plan["refusals"]:
        texts.append(f"the plan changes what a person did: {found}")
    return texts + _left(seen)


def _left(seen: dict[str, Any]) -> list[str]:
    """Return what is left after the repair. A reboot that it asks for is not carried out."""
    after = {name: got for name, got in seen["after"]["wrong"].items() if name != "boot.pending"}
    left = seen["left"]
    if "error" in left:
        return [f"no plan after the repair: {left['error']}"]
    texts = [f"the repair failed: {text}" for text in seen.get("failed", ())]
    if seen.get("undo", [0])[0]:
        texts.append(f"the commands of the repair failed: {seen['undo'][1]}")
    if after:
        texts.append(f"after the repair check has {after}")
    if left["actions"] or left["refusals"]:
        texts.append(f"after the repair the plan has {answers(left)}")
    return texts
