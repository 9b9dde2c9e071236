"""Metrics of a site's keys in Prometheus' text format: for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable

from goldnode.fleet.keys.inventory import SiteKey
from goldnode.fleet.shared.exposition import MetricSample, exposition

# name -> (type, help), in the order of the output.
METRICS = {
    "goldnode_key_expires_timestamp_seconds": (
        "gauge",
        "End of a key or certificate. No sample: it has none.",
    ),
    "goldnode_key_wrong": ("gauge", "1 when a key is missing, unreadable, or open to others."),
}


def text(keys: Iterable[SiteKey]) -> str:
    """Return the metrics of keys."""
    return exposition(METRICS, _samples(keys))


def _samples(keys: Iterable[SiteKey]) -> Iterable[MetricSample]:
    for key in keys:
        which = {"kind": key.kind, "named": key.named}
        if key.end is not None:
            yield "goldnode_key_expires_timestamp_seconds", which, key.end.timestamp()
        yield "goldnode_key_wrong", which, float(bool(key.problem))
