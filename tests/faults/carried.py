"""Remedies carried out: each row's fault on a node, the steps of each remedy that the check gives, and the check again.

The fault is not alone: where the class wants ECC on, the pending mode of each GPU is off, so that every restart that does not set it back
first turns ECC off. Steps of a program are taken as they stand. Of a person's work only the power cycle is done (`repair`), and nothing of what a
person would find: such a fault may stay, and must not become worse.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from tests.faults.run import BAD, PERIOD, Bases, Node
from tests.faults.table import Row
from tests.simulators.hardware import machine, scenario

from goldnode.node.state import preflight, remedy

Json = dict[str, Any]
# Faults of the table that a setter ends. On a node they are drift: state of the simulated board, not an answer that sticks.
SETTABLE = re.compile(
    r"gpu\d+\.(persistence_mode|ecc_current|ecc_pending|mig_current|mig_pending|power_limit|application_clock\.\d)$"
)
# Faults that the simulator cannot end, since it has no packages to install and no kernel to boot.
SOFTWARE = {
    "F14": "another driver is loaded",
    "F24": "the library is of another version",
    "D07": "the library is of another version",
    "D11": "another kernel runs",
    "D12": "nouveau is loaded",
    "D13": "nouveau holds a GPU",
    "D14": "a package is half-configured",
    "D15": "a module is missing",
}
HUMAN = (remedy.PERSON, remedy.REPAIR)


@dataclass
class Carried:
    """What became of one remedy: the finding, the bad findings before and after, whether its steps were taken, and what went wrong with one."""

    finding: Json
    before: list[Json]
    after: list[Json]
    carried: bool
    failed: list[str] = field(default_factory=list)


def bad(verdict: Json) -> list[Json]:
    """The findings of a verdict that speak against the node."""
    return [finding for finding in verdict["findings"] if finding["outcome"] in BAD]


def spoiled(row: Row, bases: Bases) -> Node:
    """A node with the fault of a row, and with pending ECC modes that the class does not want."""
    node = bases.node(row.node)
    row.do(node, 1)
    if node.boards is None:
        return node
    loose = {key: value for key, value in node.boards.faults.items() if SETTABLE.match(key)}
    node.boards = replace(
        node.boards,
        faults={key: value for key, value in node.boards.faults.items() if key not in loose},
    )
    node.faulty([])
    # A driver that enforces the limit it was given is part of the same drift.
    if any(key.endswith("power_limit") for key in loose):
        node.boards = replace(
            node.boards,
            faults={
                k: v
                for k, v in node.boards.faults.items()
                if not k.endswith("enforced_power_limit")
            },
        )
        node.faulty([])
    if (node.document.get("policy") or {}).get("ecc") and node.boards.vendor == "nvidia":
        for gpu in range(len(node.boards.gpus)):
            loose = {f"gpu{gpu}.ecc_current": "1", f"gpu{gpu}.ecc_pending": "0", **loose}
    scenario.write(
        replace(node.boards, faults={}), node.machine.place
    )  # a driver that is made to hang would not begin its boot
    machine.drift(node.machine, loose)
    scenario.write(node.boards, node.machine.place)
    return node


def run(row: Row, bases: Bases) -> list[Carried]:
    """Carry out each remedy that the check gives for the fault of a row, each on a node of its own; equal ones of several GPUs once."""
    node = spoiled(row, bases)
    before = bad(node.check())
    own = {
        (item["id"], tuple(item["steps"])): item
        for item in reversed(before)
        if re.fullmatch(row.find, item["id"]) and item["remedy"]
    }
    found: list[Carried] = []
    for finding in own.values():
        result = Carried(
            finding, before, [], carried=mechanical(finding["steps"]) and row.name not in SOFTWARE
        )
        if result.carried:
            node = node if not found else spoiled(row, bases)
            if found:
                node.check()
            result.failed = [
                f"{step}: {problem}"
                for step in finding["steps"]
                if (problem := take(step, node, row, finding))
            ]
            node.wait(PERIOD)
            result.after = bad(node.check())
        found.append(result)
    return found


def mechanical(steps: Iterable[str]) -> bool:
    """Whether any step is one that the simulator can take."""
    return not set(steps) <= {remedy.PERSON, remedy.COMMAND}


def take(step: str, node: Node, row: Row, finding: Json) -> str | None:
    """Take one step; None, or why it could not be taken."""
    if step in (remedy.POLICY, remedy.SITE):
        return apply(node)
    if step == remedy.GPU_RESET:
        return reset(node, finding)
    if step in (remedy.REBOOT, remedy.REPAIR):
        boot(node, row)
        return None
    if step == remedy.ACKNOWLEDGE:
        if not (node.root / "run/goldnode/capture.json").exists():
            node.check()  # a boot ends with one
        command = re.search(
            r"`goldnode-node (ack --id [^`]+ --by … --reason …)`", finding["remedy"]
        )
        if command is None:
            return f"the remedy has no whole command: {finding['remedy']}"
        code, _, reported = node.command(*shlex.split(command[1]))
        return reported if code else None
    return None


def apply(node: Node) -> str | None:
    """`goldnode-node policy apply`. It may find that something is left, or cannot be read; it must not fail.

    The classes of the scoreboard are those of real boards, which a node with simulated ones refuses to apply: not here.
    """
    with mock.patch.object(preflight, "identity", return_value=[]):
        _, out, reported = node.command("policy", "apply", "--format", "json")
    return None if '"exit_code"' in out else f"{out}{reported}"


def boot(node: Node, row: Row) -> None:
    """A boot, with what it ends and what of the fault outlives it; `goldnode-policy.service` runs at its end."""
    if node.boards is not None:
        node.boards = node.boards.after_boot()
        node.faulty([])
    machine.reboot(node.machine)
    if row.boot is not None and node.healthy is not None:
        node.boards, node.on_bus = node.healthy, {}
        node.faulty([])
        row.boot(node, 1)
    elif not row.outlives and node.boards is not None:
        node.boards = node.healthy
        node.faulty([])
    apply(node)


def reset(node: Node, finding: Json) -> str | None:
    """A reset of the GPU that a finding is about."""
    if node.boards is None:
        return "this node has no GPUs"
    addresses = [gpu["pci.address"] for gpu in node.boards.gpus]
    index = addresses.index(finding["subject"]) if finding["subject"] in addresses else 0
    if code := machine.reset(node.machine, index):
        return f"the GPU refuses it (return code {code})"
    node.boards = node.boards.after_reset(index)
    node.faulty([])
    return None


def judge(result: Carried) -> list[str]:
    """What is wrong with a remedy that was carried out."""
    if not result.carried:
        return []
    wrong = list(result.failed)
    key = (result.finding["id"], result.finding["subject"])
    had = {(finding["id"], finding["subject"]): finding for finding in result.before}
    for finding in result.after:
        name = (finding["id"], finding["subject"])
        if name not in had:
            if not follows(finding, result.finding):
                wrong.append(f"{finding['id']} {finding['subject'] or ''} is new: {finding['got']}")
        elif (had[name]["severity"], finding["severity"]) == ("degraded", "drain"):
            wrong.append(f"{finding['id']} has become worse: {finding['got']}")
    left = [finding for finding in result.after if (finding["id"], finding["subject"]) == key]
    if left and not any(step in HUMAN for step in (*result.finding["steps"], *left[0]["steps"])):
        wrong.append(
            f"it is still there, and no person is asked for: {left[0]['got']}; {left[0]['remedy']}"
        )
    ecc = [
        finding
        for finding in result.after
        if finding["id"] == "policy.ecc" and finding["outcome"] == "mismatch"
    ]
    before = str(had.get(("policy.ecc", None), {}).get("got"))
    wrong += [
        f"ECC is worse than before ({before}): {finding['got']}"
        for finding in ecc
        if finding["got"] != before
    ]
    return wrong


def follows(finding: Json, cause: Json) -> bool:
    """Whether a finding is what is left to a person of another one that was about the same GPU."""
    return finding["subject"] == cause["subject"] is not None and any(
        step in HUMAN for step in finding["steps"]
    )


def restarts(steps: Iterable[str]) -> bool:
    """Whether a remedy restarts the node or a GPU."""
    return any(step in remedy.RESTARTS for step in steps)


def spoils(findings: Iterable[Json]) -> bool:
    """Whether the check knows of a pending ECC mode that a restart would make current."""
    return any(item["id"] == "policy.ecc" and item["outcome"] == "mismatch" for item in findings)
