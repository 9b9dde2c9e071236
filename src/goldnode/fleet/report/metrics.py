"""Metrics of a report in Prometheus' text format, for the textfile collector of node_exporter on the controller.

They have what no single node knows: cohorts, majorities, floors, and nodes without a capture.
Healthy nodes have no series of their own, so that their number does not depend on the size of the
fleet.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from goldnode.documents.fleet_report import FleetReportDocument, ReportCause
from goldnode.fleet.shared.exposition import MetricSample, exposition

# name -> (type, help), in the order of the output.
METRICS = {
    "goldnode_report_timestamp_seconds": ("gauge", "Time of the report."),
    "goldnode_report_simulated": ("gauge", "1 when any node of the report is simulated hardware."),
    "goldnode_report_nodes": (
        "gauge",
        "Nodes of a class by state. Stale and silent nodes are not known: never healthy.",
    ),
    "goldnode_report_cause_nodes": (
        "gauge",
        "Nodes with one cause of drift or a fault. key and got are of the first value that differs.",
    ),
    "goldnode_report_unchecked_nodes": ("gauge", "Nodes on which a topic could not be checked."),
    "goldnode_report_mixed_values": (
        "gauge",
        "Different values in a group, such as a cohort, whose nodes must agree.",
    ),
    "goldnode_report_slow_loss_ratio": (
        "gauge",
        "Share of the usual speed that a node has lost in a metric that is below its floor.",
    ),
    "goldnode_report_slowing_per_day": (
        "gauge",
        "Share of its speed that a device loses in a day, by its canary results.",
    ),
    "goldnode_report_failed_job_nodes": (
        "gauge",
        "Nodes on which a job of the canary suite did not pass.",
    ),
    "goldnode_report_growth_per_hour": (
        "gauge",
        "Slope of a counter of a node that grows steadily.",
    ),
    "goldnode_report_offender_score": ("gauge", "Score of a node with repeated faults."),
    "goldnode_report_version_nodes": ("gauge", "Nodes of a class with one value of a version."),
}


def text(found: FleetReportDocument) -> str:
    """Return the metrics of a report. With simulated nodes, every sample has the label `simulated="true"`."""
    mark = {"simulated": "true"} if found.simulated else {}
    return exposition(
        METRICS, ((name, {**labels, **mark}, value) for name, labels, value in _samples(found))
    )


def _samples(found: FleetReportDocument) -> Iterator[MetricSample]:
    yield "goldnode_report_timestamp_seconds", {}, datetime.fromisoformat(found.at).timestamp()
    yield "goldnode_report_simulated", {}, float(found.simulated)
    for one in found.classes:
        for state, nodes in one.states.items():
            yield "goldnode_report_nodes", {"class": one.class_, "state": state}, nodes
    for cause in found.causes:
        yield "goldnode_report_cause_nodes", _labels(cause), cause.nodes.count
    for left in found.unchecked:
        labels = {"class": left.class_, "topic": left.topic}
        yield "goldnode_report_unchecked_nodes", labels, left.nodes.count
    for group in found.mixed:
        where = {"group": group.group, "topic": group.topic, "key": group.key, "part": group.part}
        yield "goldnode_report_mixed_values", where, len(group.values)
    for job in found.failed_jobs:
        labels = {"class": job.class_, "job_name": job.job, "state": job.state}
        yield "goldnode_report_failed_job_nodes", labels, job.nodes.count
    yield from _nodes(found)
    for version in found.versions:
        labels = {"class": version.class_, "key": version.key, "value": version.value}
        yield "goldnode_report_version_nodes", labels, version.count


def _nodes(found: FleetReportDocument) -> Iterator[MetricSample]:
    """Yield the samples of single nodes: slow ones, growing counters, repeat offenders."""
    for slow in found.slow:
        where = {"node": slow.node, "class": slow.class_, "metric": slow.metric, "part": slow.part}
        mark = {} if slow.verified else {"verified": "false"}
        yield "goldnode_report_slow_loss_ratio", {**where, "source": slow.source, **mark}, slow.loss
    for slowing in found.slowing:
        where = {
            "node": slowing.node,
            "class": slowing.class_,
            "metric": slowing.metric,
            "part": slowing.part,
        }
        yield "goldnode_report_slowing_per_day", where, slowing.a_day
    for trend in found.trends:
        where = {
            "node": trend.node,
            "class": trend.class_,
            "counter": trend.counter,
            "part": trend.part,
        }
        yield "goldnode_report_growth_per_hour", where, trend.an_hour
    for lemon in found.lemons:
        yield (
            "goldnode_report_offender_score",
            {"node": lemon.node, "class": lemon.class_},
            lemon.score,
        )


def _labels(cause: ReportCause) -> dict[str, object]:
    first = next(iter(cause.changes), None)
    return {
        "class": cause.class_,
        "topic": cause.topic,
        "severity": cause.severity,
        "domain": cause.domain,
        "evidence": ",".join(cause.evidence),
        "key": first.key if first else None,
        "got": first.got if first else None,
    }
