"""Events of nodes, from the reports that an ingest stores: another status, or another state of the gate.

The outbox has the newest state of each node. A report that is older than it changes nothing. The
first state of a node is an event only if the node is not healthy or its gate is closed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from goldnode.fleet.events.event import FleetEvent, identity
from goldnode.fleet.events.outbox import Outbox
from goldnode.fleet.ingest.report import NodeReport
from goldnode.node.ground.json_lines import as_list
from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import phrase
from goldnode.node.state.finding import FINE

HEALTHY = "healthy"
_SHOWN = 4  # ids or reasons in a sentence
_MOST = 32  # of them in `details`


@dataclass(frozen=True)
class NodeState:
    """The part of a report that events are made of. `at` is in seconds since the epoch."""

    node: str
    node_class: str
    at: float
    status: str | None  # None: the report has no verdict
    findings: tuple[str, ...] = ()
    gate: Mapping[str, Any] | None = None  # mode, open, reasons, drained
    simulated: bool = False

    def content(self) -> dict[str, Any]:
        """Return the state as the outbox has it."""
        return {"status": self.status, "gate": optional(dict, self.gate)}

    def known(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known with the state before: a report may lack the verdict or the gate."""
        own = {"class": self.node_class, "simulated": self.simulated}
        content = self.content()
        return own | {
            key: before.get(key) if content[key] is None else content[key] for key in content
        }


def observe(outbox: Outbox, states: Iterable[NodeState], now: float) -> int:
    """Add the events of these states. Return how many there are."""
    with outbox.write() as connection:
        return sum(
            _observe(outbox, connection, state, now) for state in sorted(states, key=lambda s: s.at)
        )


def _observe(outbox: Outbox, connection: sqlite3.Connection, state: NodeState, now: float) -> int:
    row = connection.execute("SELECT at, state FROM node WHERE name = ?", (state.node,)).fetchone()
    if row is not None and row["at"] >= state.at:
        return 0
    before = json.loads(row["state"]) if row is not None else {"status": None, "gate": None}
    _store(connection, state.node, state.at, state.known(before))
    return outbox.add(connection, _events(state, before), now)


def _store(
    connection: sqlite3.Connection, node: str, at: float, content: Mapping[str, Any]
) -> None:
    row = (node, at, json.dumps(content, sort_keys=True))
    connection.execute("INSERT OR REPLACE INTO node VALUES (?, ?, ?)", row)


def silence(outbox: Outbox, before: float, now: float) -> int:
    """Add an event for each node whose last report is older than `before`, once. Return how many there are."""
    added = 0
    with outbox.write() as connection:
        query = "SELECT name, at, state FROM node WHERE at < ? AND state NOT LIKE '%\"silent\": true%' ORDER BY name"
        for row in connection.execute(query, (before,)).fetchall():
            content = json.loads(row["state"])
            _store(connection, row["name"], row["at"], {**content, "silent": True})
            last = NodeState(
                row["name"], content["class"], row["at"], None, simulated=content["simulated"]
            )
            added += outbox.add(connection, [_silent(last, row["at"], True, now)], now)
    return added


def _silent(state: NodeState, last: float, silent: bool, at: float) -> FleetEvent:
    when = f"{datetime.fromtimestamp(last, UTC):%Y-%m-%dT%H:%M:%SZ}"
    text = (
        f"{state.node} has not reported since {when}" if silent else f"{state.node} reports again"
    )
    event = _event(state, "node.silent", text, {"silent": silent, "last": when}, not silent)
    return replace(event, at=at)


def _events(state: NodeState, before: Mapping[str, Any]) -> Iterator[FleetEvent]:
    if before.get("silent"):
        yield _silent(state, state.at, False, state.at)
    if state.status is not None and state.status != (before["status"] or HEALTHY):
        yield _verdict(state, before["status"])
    gate = state.gate
    if gate is not None:
        earlier = before["gate"] or {"open": True, "reasons": []}
        reasons = not gate["open"] and gate["reasons"] != earlier["reasons"]
        if gate["open"] != earlier["open"] or reasons:
            yield _gate(state, gate)


def _verdict(state: NodeState, before: str | None) -> FleetEvent:
    findings_text = f": {', '.join(state.findings[:_SHOWN])}" if state.findings else ""
    was = phrase(", was {}", before)
    return _event(
        state,
        "node.verdict",
        f"{state.node} is {state.status}{was}{findings_text}",
        {"before": before, "status": state.status, "findings": list(state.findings[:_MOST])},
        state.status == HEALTHY,
    )


def _gate(state: NodeState, gate: Mapping[str, Any]) -> FleetEvent:
    why = f": {'; '.join(gate['reasons'][:2])}" if gate["reasons"] and not gate["open"] else ""
    text = f"the gate of {state.node} is {'open' if gate['open'] else 'closed'}{why}"
    return _event(state, "node.gate", text, dict(gate), bool(gate["open"]))


def _event(
    state: NodeState, kind: str, text: str, details: dict[str, Any], good: bool
) -> FleetEvent:
    return FleetEvent(
        id=identity(kind, state.node, state.at, json.dumps(details, sort_keys=True)),
        at=state.at,
        kind=kind,
        severity="info" if good else "warning",
        source="captures",
        subject=state.node,
        text=text,
        details=details,
        node=state.node,
        node_class=state.node_class,
        simulated=state.simulated,
    )


def state_of(report: NodeReport) -> NodeState:
    """Return the state of a node in a report."""
    verdict = report.verdict
    return NodeState(
        report.node,
        node_class=report.class_,
        at=report.time.timestamp(),
        status=None if verdict is None else str(verdict.get("status")),
        findings=failing(verdict),
        gate=report.gate,
        simulated=report.capture.get("simulated") is True,
    )


def failing(verdict: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the ids of the findings of a verdict that are not fine, each once."""
    rows = (verdict or {}).get("findings")
    failing_rows = [
        str(row.get("id"))
        for row in as_list(rows)
        if isinstance(row, dict) and row.get("outcome") not in FINE
    ]
    return tuple(sorted(set(failing_rows)))
