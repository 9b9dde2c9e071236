"""Names of metrics: those that goldnode writes, those that its rules record, and those of others that it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from goldnode.fleet.events import metrics as event_metrics
from goldnode.fleet.keys import metrics as key_metrics
from goldnode.fleet.report import metrics as report_metrics
from goldnode.fleet.service import metrics as service_metrics
from goldnode.node.serve import metrics as node_metrics

ROOT = Path(__file__).parents[3]
RULES = {
    path.name.removesuffix(".rules.yml"): path
    for path in sorted((ROOT / "integrations/prometheus").glob("*.rules.yml"))
}
WRITTEN = {
    **node_metrics.METRICS,
    **service_metrics.METRICS,
    **report_metrics.METRICS,
    **event_metrics.METRICS,
    **key_metrics.METRICS,
}
# Prometheus' own, node_exporter's, and those of dcgm-exporter up to 4.8: etc/default-counters.csv of
# https://github.com/NVIDIA/dcgm-exporter, tag 4.6.0-4.8.3.
FOREIGN = {
    "ALERTS",
    "up",
    "node_boot_time_seconds",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_XID_ERRORS",
}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABELS = re.compile(r"\{[^}]*\}|\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)")
_RANGE = re.compile(r"\[[^]]*\]|\boffset\s+\w+")
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*(?!\s*\()")
_WORDS = {"and", "or", "unless", "bool", "by", "on", "group_left"}


def names(query: str) -> set[str]:
    """Return the metrics of a query in PromQL, without its labels, functions and durations."""
    text = _RANGE.sub(" ", _LABELS.sub(" ", _STRING.sub('""', query)))
    return {
        match[0] for match in re.finditer(r"(?<![\w:$])" + _NAME.pattern + r"(?![\w:])", text)
    } - _WORDS


def rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a file, of all its groups."""
    return [
        rule
        for group in yaml.safe_load(RULES[name].read_text())["groups"]
        for rule in group["rules"]
    ]


def all_rules() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in RULES:
        for rule in rules(name):
            yield name, rule


RECORDED = {rule["record"] for _, rule in all_rules() if "record" in rule}
