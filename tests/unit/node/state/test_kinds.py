"""Every finding has a row in the table of findings, and every row is used by a finding."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import goldnode.node
from goldnode.facts import log_lines
from goldnode.node.state import kinds
from goldnode.node.state.finding import Finding
from goldnode.node.verdict import blame, rules, table

NODE = Path(goldnode.node.__file__ or "").parent
# Ids that are no constant where the finding is made: file, what stands there, and the ids that come of it.
NAMED = {
    ("check.py", "name"): ("baseline.unknown",),
    ("modules.py", "item"): ("modules.nvidia-current-peermem",),
    ("mitigations.py", "ITEM"): ("policy.host.mitigations",),
    ("parts.py", "name"): ("parts.nvidia_fs",),
    ("tuning.py", "item"): ("policy.host.cmdline", "policy.host.memlock"),
    ("deltas.py", "identity"): (),  # that of a finding of before
    ("deltas.py", "row['id']"): (),
    ("table.py", "entry.kind.id"): (),  # of the table of rules
    ("table.py", "row.id"): (),
    ("events.py", "name"): (
        "xid.79",
        "sxid.12028",
        "gpu.bus_lost",
        "driver.init_failed",
        "driver.probe_failed",
    ),
    ("events.py", "form.finding"): tuple({row.finding for row in log_lines.lines().values()}),
    ("events.py", "_id(kind, fault.row.get('code'))"): ("xid.79",),
    ("finding.py", "name"): (),
    ("settings.py", "name"): (),  # of the table of rules
    ("settings.py", "rule.name"): ("policy.persistence_mode",),
    ("driver_support.py", "name"): ("driver.support", "driver.security", "driver.known_bad"),
}


def made() -> dict[str, str]:
    """Id -> where it is made, of every finding that the program can make; what is filled in is X."""
    found = {rule.kind.id: "the table of rules" for rule in table.TABLE}
    for path in NODE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Finding", "judge_item", "_of_row", "_wrong", "_note")
                and node.args
            ):
                continue
            first = node.args[1 if node.func.id == "_of_row" else 0]
            if isinstance(first, ast.Constant):
                found[str(first.value)] = path.name
            elif isinstance(first, ast.JoinedStr):
                parts = [
                    str(part.value) if isinstance(part, ast.Constant) else None
                    for part in first.values
                ]
                if parts[0] is None:  # f"{item}.loaded"
                    found.update(
                        {f"{item}{parts[1]}": path.name for item in NAMED[path.name, "item"]}
                    )
                else:
                    found["".join(part or "X" for part in parts)] = path.name
            else:
                key = (path.name, ast.unparse(first))
                assert key in NAMED, (
                    f"{path.name}:{node.lineno} names a finding by {key[1]}: say in NAMED which ids that gives"
                )
                found.update(dict.fromkeys(NAMED[key], path.name))
    return found


def test_every_finding_has_a_row() -> None:
    found = made()
    assert len(found) > 90, "the findings were not found"
    lacking = {name: place for name, place in found.items() if kinds.kind(name) is None}
    assert not lacking, f"these findings have no row in node/state/kinds.py: {lacking}"


def test_every_row_is_complete_and_used() -> None:
    used = {row.id for name in made() if (row := kinds.kind(name)) is not None}
    for name, row in kinds.KINDS.items():
        assert row.domain in (kinds.SOFTWARE, kinds.DRIVER, kinds.HARDWARE), name
        assert row.severity in (kinds.DEGRADED, kinds.DRAIN), name
        assert (
            row.about[0].islower()
            or row.about.split()[0].rstrip(":").isupper()
            or row.about[:3].isupper()
        ), name
        assert not row.about.endswith("."), name
        assert name in used, f"{name}: no finding has this row"


def test_each_id_is_there_once() -> None:
    assert len(kinds.KINDS) == len(kinds._ROWS)


def test_the_longest_family_counts() -> None:
    assert kinds.kind("policy.host.swap") is kinds.KINDS["policy.host.*"]
    assert kinds.kind("policy.ecc") is kinds.KINDS["policy.*"]
    assert kinds.kind("blacklist.initramfs") is kinds.KINDS["blacklist.initramfs"]
    assert kinds.kind("modules.nvidia.loaded") is kinds.KINDS["modules.*.loaded"]
    assert kinds.kind("policy.*") is kinds.KINDS["policy.*"]
    assert kinds.kind("no.such") is None


def test_a_finding_without_a_row_is_refused() -> None:
    with pytest.raises(LookupError, match=r"no\.such: a finding without a row in .*kinds\.py"):
        Finding("no.such", "mismatch", "a", "b")
    assert Finding("no.such", "mismatch", "a", "b", severity="degraded").domain == kinds.HARDWARE
    assert Finding("gpu.lost", "mismatch", "a", "b").severity == kinds.DRAIN


def test_a_rule_without_a_row_or_remedy_is_refused() -> None:
    with pytest.raises(LookupError, match=r"no\.such: .*kinds\.py"):
        rules.rule("no.such")
    with pytest.raises(
        LookupError,
        match=r"stack\.lock: the rule needs a row with remedy and blast radius in .*kinds\.py",
    ):
        rules.gpu_rule("stack.lock")


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
def test_software_decides_and_hardware_never_does(
    found: list[dict[str, Any]], against: list[str]
) -> None:
    assert [
        text.partition(":")[0] for text in blame.against({"findings": found}, ("boot.next",))
    ] == against
