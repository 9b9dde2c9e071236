"""The steps of a vulnerability by class, each by the state that is read now, and never by how a command has ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.classdoc.mitigations import Mitigation
from goldnode.cve.nodes import NodeFacts
from goldnode.cve.record import CveRecord, hours_since, moment
from goldnode.cve.report import CarrierRow, CveReport, CveSummary
from goldnode.cve.subjects import is_kernel
from goldnode.documents.cve_lane import (
    CveLaneDocument,
    CveLeft,
    CveProofDocument,
    LaneClass,
    LaneState,
    LaneStep,
)

_GOOD = ("fixed", "not-affected")


@dataclass(frozen=True)
class LaneFacts:
    """All that the steps of one vulnerability are read from.

    `stacks` is class -> stack. `digest` returns the digest of the class document as it is now; it is asked for classes
    with a mitigation only. `missing` returns the steps of `prepare` that are not done, with the reason.
    """

    cve: str
    entry: CveSummary | None
    report: CveReport
    nodes: Sequence[NodeFacts]
    stacks: Mapping[str, str]
    mitigation: Mitigation | None
    record: CveRecord
    digest: Callable[[str], str]
    missing: Callable[[str], list[tuple[str, str]]]
    at: dt.datetime
    owners: Mapping[str, str]  # node -> owner
    modules: tuple[str, ...] = ()

    def rows(self, kind: str, name: str) -> list[CarrierRow]:
        """Return the rows of a carrier."""
        rows = self.entry.rows if self.entry is not None else []
        return [row for row in rows if row.kind == kind and name in row.names]

    def states(self) -> dict[str, CarrierRow]:
        """Return node -> its worst row."""
        states: dict[str, CarrierRow] = {}
        for row in self.entry.rows if self.entry is not None else ():
            if row.kind == "node":
                for name in row.names:
                    states.setdefault(name, row)
        return states

    def left(self) -> dict[str, CarrierRow]:
        """Return the nodes that have the vulnerability or may have it, each with its worst row."""
        return {name: row for name, row in self.states().items() if row.state not in _GOOD}

    def unread(self) -> set[str]:
        """Return the nodes of which something was not judged."""
        rows = (row for row in self.report.head.not_judged if row.kind == "node")
        return {name for row in rows for name in row.names}


def kernel_fix(facts: LaneFacts, names: Iterable[str]) -> str | None:
    """Return the version of the kernel's package with the fix for the locks of some classes.

    None if a lock has the fix already, or if the data do not agree: a mitigation then ends by its expiry alone.
    """
    versions: set[str | None] = set()
    for name in names:
        rows = facts.rows("lock", facts.stacks.get(name, ""))
        kernels = [row for row in rows if is_kernel(row.package.partition(" ")[0])]
        if not kernels:
            return None
        versions |= {row.fixed if row.state == "affected" else None for row in kernels}
    return versions.pop() if len(versions) == 1 else None


def classes(facts: LaneFacts) -> list[str]:
    """Return the classes that the vulnerability concerns: their nodes, their locks, their mitigation or their record."""
    left = facts.left()
    named = {node.class_ for node in facts.nodes if node.name in left and node.class_ is not None}
    named |= {
        name for name, stack in facts.stacks.items() if _open_rows(facts.rows("lock", stack))
    } & {node.class_ for node in facts.nodes}
    if facts.mitigation is not None:
        named |= set(facts.mitigation.classes)
    named |= {event.class_ for event in facts.record.events() if event.class_ is not None}
    return sorted(name for name in named if name is not None)


def lane(facts: LaneFacts) -> CveLaneDocument:
    """Return the state of all classes and steps."""
    left, published = facts.left(), facts.record.published()
    rows = []
    for name in classes(facts):
        nodes = [node for node in facts.nodes if node.class_ == name]
        open_nodes = [node for node in nodes if node.name in left]
        steps = [
            _mitigate(facts, name, open_nodes, left),
            _prepare(facts, name),
            _roll_out(facts, name, nodes, open_nodes),
            _prove(facts, open_nodes),
        ]
        rows.append(
            LaneClass.model_validate(
                {"class": name, "nodes": len(nodes), "left": len(open_nodes), "steps": steps}
            )
        )
    entry = facts.entry
    return CveLaneDocument(
        schema="goldnode.cve-lane/1",
        cve=facts.cve,
        severity=entry.severity if entry is not None else "not stated",
        summary=entry.summary if entry is not None else "",
        at=moment(facts.at),
        published=moment(published) if published is not None else None,
        hours=hours_since(published, facts.at),
        simulated=len([node for node in facts.nodes if node.simulated]),
        classes=rows,
        feeds=facts.report.head.feeds,
    )


def _open_rows(rows: Iterable[CarrierRow]) -> list[CarrierRow]:
    return [row for row in rows if row.state not in _GOOD]


def _step(step: str, state: LaneState, text: str, command: str | None = None) -> LaneStep:
    return LaneStep.model_validate({"step": step, "state": state, "text": text, "command": command})


def mitigated(facts: LaneFacts, name: str, nodes: Iterable[NodeFacts]) -> list[NodeFacts]:
    """Return the nodes of a class that are seen to have the mitigation.

    A module that is kept out is seen in the capture. Other settings count if the node has the class document with them and its
    health check found no fault.
    """
    row, left = facts.mitigation, facts.left()
    if row is None or name not in row.classes or row.expires < facts.at.date():
        return []
    if row.deny:
        denied = set(row.modules)
        seen = [node for node in nodes if node.modules is not None and not denied & node.modules]
        nodes = [node for node in seen if denied <= node.denied | node.absent]
        if not row.sysctl and not row.cmdline:
            return [node for node in nodes if node.name in left]
    digest = facts.digest(name)
    return [
        node
        for node in nodes
        if node.name in left and node.class_digest == digest and node.status == "healthy"
    ]


def _mitigate(
    facts: LaneFacts, name: str, nodes: Sequence[NodeFacts], left: Mapping[str, CarrierRow]
) -> LaneStep:
    if not nodes:
        row = facts.mitigation
        if row is not None and name in row.classes:
            command = f"goldnode cve mitigate {facts.cve} --lift"
            return _step("mitigate", "not-needed", "no node has it: lift the mitigation", command)
        return _step("mitigate", "not-needed", "no node has it")
    row = facts.mitigation
    if row is None or name not in row.classes:
        command = f"goldnode cve mitigate {facts.cve} --class {name}"
        return _step("mitigate", "open", f"{len(nodes)} nodes have no mitigation", command)
    if row.expires < facts.at.date():
        return _step("mitigate", "open", f"the mitigation of {row.owner} expired on {row.expires}")
    have = mitigated(facts, name, nodes)
    text = f"{len(have)} of {len(nodes)} nodes have it, until {row.expires} ({row.owner})"
    if len(have) == len(nodes):
        return _step("mitigate", "done", text)
    return _step("mitigate", "partly", text, f"ansible-playbook site.yml --limit {name}")


def _prepare(facts: LaneFacts, name: str) -> LaneStep:
    stack = facts.stacks.get(name)
    command = f"goldnode cve prepare {facts.cve} --class {name}"
    if stack is None:
        return _step("prepare", "open", "the class is not in the catalog")
    missing = facts.missing(name)
    if not missing:
        return _step("prepare", "done", f"{stack} and what is built from it have the fix")
    state: LaneState = "partly"
    if missing[0][0] == "lock":
        state = "open"
    return _step("prepare", state, "; ".join(f"{part}: {why}" for part, why in missing), command)


def _roll_out(
    facts: LaneFacts, name: str, nodes: Sequence[NodeFacts], left: Sequence[NodeFacts]
) -> LaneStep:
    if not nodes:
        return _step("roll-out", "open", "no captures: nodes of the class are not known")
    if not left:
        return _step("roll-out", "done", f"{len(nodes)} nodes run the fix")
    path = facts.record.rollout(name)
    text = f"{len(left)} of {len(nodes)} nodes are left"
    if path.is_file():
        return _step("roll-out", "partly", text, f"goldnode rollout run {path}")
    return _step("roll-out", "open", text, f"goldnode cve roll-out {facts.cve} --class {name}")


def _prove(facts: LaneFacts, left: Sequence[NodeFacts]) -> LaneStep:
    command = f"goldnode cve prove {facts.cve}"
    proof = read_proof(facts.record.proof)
    if proof is None:
        return _step("prove", "open", "no proof", command)
    text = f"proof of {proof.at}: {len(proof.left)} left"
    if proof.proved and not left:
        return _step("prove", "done", text)
    return _step("prove", "partly", text, command)


def read_proof(path: Path) -> CveProofDocument | None:
    """Return a proof; None if it is missing or cannot be read."""
    try:
        return CveProofDocument.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def proof(facts: LaneFacts, by: str) -> CveProofDocument:
    """Return what is left, each with its owner. What was not judged is left too: it is not known to be free of it."""
    by_name = {node.name: node for node in facts.nodes}
    left = []
    for row in _open_rows(facts.entry.rows if facts.entry is not None else ()):
        for name in row.names:
            node = by_name.get(name) if row.kind == "node" else None
            left.append(
                CveLeft.model_validate(
                    {
                        "kind": row.kind,
                        "name": name,
                        "class": node.class_ if node is not None else None,
                        "owner": facts.owners.get(name) if node is not None else None,
                        "state": row.state,
                        "why": f"{row.package} {row.version}: {row.why}",
                    }
                )
            )
    published = facts.record.published()
    known = facts.entry is not None
    unread = facts.report.head.not_judged
    return CveProofDocument(
        schema="goldnode.cve-proof/1",
        cve=facts.cve,
        severity=facts.entry.severity if facts.entry is not None else "not stated",
        at=moment(facts.at),
        by=by,
        proved=known and bool(facts.nodes) and not left and not unread,
        published=moment(published) if published is not None else None,
        hours=hours_since(published, facts.at),
        nodes=len(facts.nodes),
        simulated=len([node for node in facts.nodes if node.simulated]),
        oldest_capture=min((node.captured for node in facts.nodes), default=None),
        modules=list(facts.modules),
        feeds=facts.report.head.feeds,
        left=left,
        not_judged=unread,
    )
