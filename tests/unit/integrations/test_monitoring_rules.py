"""Rules for Prometheus: each alert fires and does not fire in a test of promtool, and has a runbook; each metric exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from tests.unit.integrations.monitoring import (
    FOREIGN,
    RECORDED,
    ROOT,
    RULES,
    WRITTEN,
    all_rules,
    names,
    rules,
)

from goldnode.facts import health
from goldnode.fleet.report import topics

RUNBOOKS = "docs/how-to/alerts.md"
ALERTS = {rule["alert"]: rule for _, rule in all_rules() if "alert" in rule}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("name", RULES)
def test_promtool_passes_the_rules(name: str) -> None:
    for words in (("check", "rules", f"{name}.rules.yml"), ("test", "rules", f"{name}.test.yml")):
        done = subprocess.run(
            ["promtool", *words],
            cwd=RULES[name].parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", RULES)
def test_every_alert_is_tested_both_ways(name: str) -> None:
    tests = yaml.safe_load(RULES[name].with_name(f"{name}.test.yml").read_text())["tests"]
    rows: dict[str, list[Any]] = {}
    for row in (row for test in tests for row in test.get("alert_rule_test", ())):
        rows.setdefault(row["alertname"], []).append(row["exp_alerts"])
    alerts = {rule["alert"] for rule in rules(name) if "alert" in rule}
    assert set(rows) == alerts
    assert {alert for alert, found in rows.items() if any(found)} == alerts, (
        "an alert that never fires"
    )
    assert {alert for alert, found in rows.items() if not all(found)} == alerts, (
        "an alert that always fires"
    )


@pytest.mark.parametrize(("name", "rule"), list(all_rules()))
def test_rule_reads_metrics_that_exist(name: str, rule: dict[str, Any]) -> None:
    assert names(rule["expr"]) <= set(WRITTEN) | RECORDED | FOREIGN


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (
            'sum by (class) (a_b{state=~"x|y", class!="up"}) / 2 > on (class) c:d:e offset 1d',
            {"a_b", "c:d:e"},
        ),
        ('label_replace(A_B, "uuid", "$1", "UUID", "(.+)") * 1024', {"A_B"}),
        ("rate(a_total[5m]) unless on (x) group_left () b and c", {"a_total", "b", "c"}),
        ('topk(5, a{class=~"$class"}) or b ^ 0', {"a", "b"}),
    ],
)
def test_names_of_a_query(query: str, found: set[str]) -> None:
    assert names(query) == found


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_links_to_its_runbook(alert: str) -> None:
    found = ALERTS[alert]
    assert found["annotations"]["runbook_url"] == f"{RUNBOOKS}#{alert.lower()}"
    assert found["labels"]["severity"] in ("critical", "warning", "info")
    sections = re.split(r"(?m)^### ", (ROOT / RUNBOOKS).read_text())[1:]
    [section] = [one for one in sections if one.partition("\n")[0] == alert]
    assert len(section.splitlines()) >= 3, "a runbook has more than its name"


def test_every_runbook_has_an_alert() -> None:
    assert set(re.findall(r"(?m)^### (Goldnode\w+)$", (ROOT / RUNBOOKS).read_text())) == set(ALERTS)


def test_verdict_alert_and_report_share_the_limits_of_corrected_memory_errors() -> None:
    found = [
        int(text)
        for text in re.findall(r"> (\d+)", ALERTS["GoldnodeCorrectedMemoryErrors"]["expr"])
    ]
    days = [health.limits()[name].value for name in ("edac_corrected_day", "ecc_corrected_day")]
    assert found == days
    keys = ("memory.edac.ce", "gpu.ecc.aggregate.corrected", "gpu.ecc.volatile.corrected")
    rules = [topics.rate(key) for key in keys]
    assert [rule and rule.an_hour * 24 for rule in rules] == [days[0], days[1], days[1]]
