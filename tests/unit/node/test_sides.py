"""Every finding has a side: a new one without fails here, before it decides about an image."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

import goldnode.node
from goldnode.node.verdict import sides, table

NODE = Path(goldnode.node.__file__ or "").parent
# Ids that are no constant where the finding is made: file, what stands there, and the ids that come of it.
NAMED = {
    ("check.py", "name"): ("baseline.unknown",),
    ("modules.py", "item"): ("modules.nvidia-current-peermem",),
    ("tuning.py", "item"): ("policy.host.cmdline", "policy.host.memlock"),
    ("deltas.py", "identity"): (),  # that of a finding of before
    ("deltas.py", "row['id']"): (),
    ("table.py", "entry.id"): (),  # of the table of rules
    ("events.py", "name"): (
        "xid.79",
        "pcie.aer",
        "memory.edac",
        "gpu.ras",
        "storage.errors",
        "host.blocked",
        "net.errors",
        "gpu.lost",
    ),
    ("finding.py", "name"): (),
}


def made() -> dict[str, str]:
    """Id -> where it is made, of every finding that the program can make; what is filled in is X."""
    found = {rule.id: "the table of rules" for rule in table.TABLE}
    for path in NODE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Finding", "judge_item")
                and node.args
            ):
                continue
            first = node.args[0]
            if isinstance(first, ast.Constant):
                found[str(first.value)] = path.name
            elif isinstance(first, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else None for part in first.values]
                if parts[0] is None:  # f"{item}.loaded"
                    found.update({f"{item}{parts[1]}": path.name for item in NAMED[path.name, "item"]})
                else:
                    found["".join(part or "X" for part in parts)] = path.name
            else:
                key = (path.name, ast.unparse(first))
                assert key in NAMED, (
                    f"{path.name}:{node.lineno} names a finding by {key[1]}: say in NAMED which ids that gives"
                )
                found.update(dict.fromkeys(NAMED[key], path.name))
    return found


def test_every_finding_has_a_side() -> None:
    found = made()
    assert len(found) > 90, "the findings were not found"
    lacking = {name: place for name, place in found.items() if sides.side(name) is None}
    assert not lacking, f"these findings have no side in verdict/sides.py: {lacking}"


def test_every_row_says_why_and_is_used() -> None:
    used = {next(pattern for pattern, _, _ in sides.TABLE if fnmatchcase(name, pattern)) for name in made()}
    for pattern, where, why in sides.TABLE:
        assert where in (sides.SOFTWARE, sides.HARDWARE, sides.DRIVEN), pattern
        assert len(why) > 10, pattern
        assert pattern in used, f"{pattern}: no finding has this side by this row"


def row(name: str, outcome: str = "mismatch", severity: str = "drain") -> dict[str, Any]:
    return {"id": name, "outcome": outcome, "severity": severity, "got": "that", "expected": "this"}


@pytest.mark.parametrize(
    ("found", "against"),
    [
        ([row("stack.lock")], ["stack.lock"]),
        ([row("kernel.running"), row("gpu.ecc.uncorrected")], ["kernel.running"]),
        ([row("modules.gdrdrv")], ["modules.gdrdrv"]),
        ([row("driver.loaded")], ["driver.loaded"]),
        # All GPUs have gone: that no driver is loaded says nothing of the image.
        ([row("driver.loaded"), row("gpu.count"), row("gpu.library", "could_not_read")], []),
        ([row("driver.module_file"), row("gpu.count")], ["driver.module_file"]),
        ([row("gpu.count")], []),
        ([row("gpu.count", "match"), row("driver.loaded")], ["driver.loaded"]),
        ([row("stack.holds", severity="degraded")], []),
        ([row("runtime.engine", "could_not_read")], ["runtime.engine"]),
        (
            [
                row("kernel.running", "not_verified_here"),
                row("boot.next", "deferred"),
                row("stack.lock", "suppressed"),
            ],
            [],
        ),
        ([row("something.new")], []),
        ([row("boot.next")], []),
    ],
)
def test_software_decides_and_hardware_never_does(found: list[dict[str, Any]], against: list[str]) -> None:
    assert [text.partition(":")[0] for text in sides.against({"findings": found}, ("boot.next",))] == against
