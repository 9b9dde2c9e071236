"""Metrics of the delivery in Prometheus' text format: for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from goldnode.fleet.events.outbox import HookState
from goldnode.fleet.shared.exposition import MetricSample, exposition

# name -> (type, help), in the order of the output.
METRICS = {
    "goldnode_hook_waiting": ("gauge", "Events that wait for a hook."),
    "goldnode_hook_failures": (
        "gauge",
        "Failed deliveries of a hook since its last one that succeeded.",
    ),
    "goldnode_hook_delivered_timestamp_seconds": (
        "gauge",
        "Last delivery of a hook. No sample: it had none.",
    ),
}


def text(states: Mapping[str, HookState], waiting: Mapping[str, int]) -> str:
    """Return the metrics of all hooks."""
    return exposition(METRICS, _samples(states, waiting))


def _samples(states: Mapping[str, HookState], waiting: Mapping[str, int]) -> Iterable[MetricSample]:
    for name, state in states.items():
        where = {"hook": name}
        yield "goldnode_hook_waiting", where, waiting[name]
        yield "goldnode_hook_failures", where, state.failures
        if state.delivered is not None:
            yield "goldnode_hook_delivered_timestamp_seconds", where, state.delivered
