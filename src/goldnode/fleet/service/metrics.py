"""Metrics of the lock service in Prometheus' text format: its requests, and the ledger that all services share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from goldnode.fleet.shared.exposition import MetricSample, exposition

# name -> (type, help), in the order of the output.
METRICS = {
    "goldnode_fleet_store_up": ("gauge", "1 when the store could be read for these metrics."),
    "goldnode_fleet_requests_total": ("counter", "Requests of this service since it started."),
    "goldnode_fleet_request_seconds_total": (
        "counter",
        "Time spent on answers of this service, waiting included.",
    ),
    "goldnode_fleet_inbox_reports": (
        "gauge",
        "Reports in the inbox that no ingest has stored yet. No sample: this service takes no captures.",
    ),
    "goldnode_fleet_inbox_bytes": ("gauge", "Bytes of these reports."),
    "goldnode_fleet_nodes": ("gauge", "Nodes of a failure domain."),
    "goldnode_fleet_out": (
        "gauge",
        "Holds of a failure domain by kind; total counts each node once.",
    ),
    "goldnode_fleet_limit": (
        "gauge",
        "Limit of a failure domain by kind. No sample: none applies.",
    ),
    "goldnode_fleet_frozen": ("gauge", "Freezes in force."),
    "goldnode_fleet_denied": ("gauge", "Digests on a deny list."),
    "goldnode_fleet_overdue": (
        "gauge",
        "1 for each node that did not return in time and waits for a person.",
    ),
    "goldnode_fleet_changing": (
        "gauge",
        "1 for each node that is out of service for planned work: of a rollout from its drain on, else from its grant.",
    ),
    "goldnode_rollout_phase": ("gauge", "1 for the phase of each rollout that has not ended."),
    "goldnode_rollout_wave": ("gauge", "Number of the present wave of a rollout, from 1."),
    "goldnode_rollout_nodes": (
        "gauge",
        "Nodes of a rollout by state; a state that begins with back- is of a rollback.",
    ),
    "goldnode_rollout_frozen": (
        "gauge",
        "1 while a freeze of the fleet, the class or the rollout is in force.",
    ),
    "goldnode_rollout_controller_seen_timestamp_seconds": (
        "gauge",
        "Last sign of life of the controller of a rollout; its submission, where none has taken it.",
    ),
    "goldnode_rollout_node": (
        "gauge",
        "1 for each node in service of a class with an active rollout: arm is changed or control.",
    ),
    "goldnode_fleet_log_unsealed": ("gauge", "Lines of the log after the last sealed head."),
}


class ServiceCounters:
    """Counts of this process. Other services count their own requests."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int, str]] = Counter()
        self.seconds: Counter[str] = Counter()

    def count(self, path: str, status: int, kind: str, seconds: float) -> None:
        """Count one answer. `kind` is a refusal's, or empty."""
        self.requests[(path, status, kind)] += 1
        self.seconds[path] += seconds  # type: ignore[assignment]


def render(
    counters: ServiceCounters,
    status: Mapping[str, Any] | None,
    inbox: tuple[int, int] | None = None,
) -> str:
    """Return all metrics; without those of the store if `status` is None.

    :param inbox: reports in the inbox and their bytes; None for a service without captures.
    """
    samples = list(_own(counters)) + (list(_of_store(status)) if status else [])
    if inbox is not None:
        samples.append(("goldnode_fleet_inbox_reports", {}, inbox[0]))
        samples.append(("goldnode_fleet_inbox_bytes", {}, inbox[1]))
    samples.append(("goldnode_fleet_store_up", {}, float(status is not None)))
    return exposition(METRICS, samples)


def _own(counters: ServiceCounters) -> Iterable[MetricSample]:
    for (path, code, kind), count in sorted(counters.requests.items()):
        yield "goldnode_fleet_requests_total", {"path": path, "status": code, "kind": kind}, count
    for path, seconds in sorted(counters.seconds.items()):
        yield "goldnode_fleet_request_seconds_total", {"path": path}, seconds


def _of_store(status: Mapping[str, Any]) -> Iterable[MetricSample]:
    for row in status["buffers"]:
        where = {"scope": row["scope"], "name": row["name"]}
        yield "goldnode_fleet_nodes", where, row["nodes"]
        for kind in ("planned", "failed", "person", "total"):
            yield "goldnode_fleet_out", {**where, "kind": kind}, row[kind]
            if row.get(f"{kind}_limit") is not None:
                yield "goldnode_fleet_limit", {**where, "kind": kind}, row[f"{kind}_limit"]
    yield "goldnode_fleet_frozen", {}, len(status["freezes"])
    yield "goldnode_fleet_denied", {}, len(status["denied"])
    for row in status["overdue"]:
        yield "goldnode_fleet_overdue", {"node": row["node"], "owner": row["owner"]}, 1
    for row in status.get("changing", ()):
        yield "goldnode_fleet_changing", row, 1
    yield from _of_rollouts(status)
    for row in status.get("arms", ()):
        yield "goldnode_rollout_node", row, 1
    yield "goldnode_fleet_log_unsealed", {}, status["log"]["unsealed"]


def _of_rollouts(status: Mapping[str, Any]) -> Iterable[MetricSample]:
    """Yield samples of the rollouts that have not ended."""
    frozen = {(row["scope"], row["subject"]) for row in status["freezes"]}
    classes = {row["name"]: row["class"] for row in status["rollouts"]}
    for row in status["rollouts"]:
        if row["ended_at"] is not None:
            continue
        where = {"rollout": row["name"], "class": row["class"]}
        scopes = {("all", ""), ("class", row["class"]), ("rollout", row["name"])}
        yield "goldnode_rollout_phase", {**where, "phase": row["phase"]}, 1
        yield "goldnode_rollout_wave", where, row["wave"] + 1
        yield "goldnode_rollout_frozen", where, bool(frozen & scopes)
        seen = row["beat_at"] if row["beat_at"] is not None else row["submitted_at"]
        yield "goldnode_rollout_controller_seen_timestamp_seconds", where, seen
    for row in status["steps"]:
        state = f"back-{row['phase']}" if row["direction"] == "back" else row["phase"]
        where = {"rollout": row["rollout"], "class": classes[row["rollout"]]}
        yield "goldnode_rollout_nodes", {**where, "state": state}, row["nodes"]
