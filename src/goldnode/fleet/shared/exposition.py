"""Prometheus' text format (version 0.0.4) of the metrics of the controller: the lock service and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from goldnode.node.serve.metrics import escaped

MetricSample = tuple[str, Mapping[str, object], float]


def exposition(known: Mapping[str, tuple[str, str]], samples: Iterable[MetricSample]) -> str:
    """Return samples as text, in the order of `known`: name -> (type, help). Labels without a value are left out.

    The values of samples with the same name and labels are added up: Prometheus refuses a file with
    one sample twice.
    """
    families: dict[str, dict[str, float]] = {}
    for name, labels, value in samples:
        series = families.setdefault(name, {})
        key = _labels(labels)
        series[key] = series.get(key, 0) + value
    lines = []
    for name, (kind, text) in known.items():
        if name in families:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{key} {value:.15g}" for key, value in families[name].items()]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    pairs = ",".join(
        f'{name}="{escaped(value)}"'
        for name, value in labels.items()
        if value is not None and value != ""
    )
    return f"{{{pairs}}}" if pairs else ""
