"""Dashboards for Grafana: their JSON conforms to Grafana's model, and a real Prometheus has data for every panel.

Prometheus scrapes what goldnode writes of simulated nodes, a lock service, a report and dcgm-exporter (samples in the form of its
documentation), and evaluates the rules of integrations/prometheus. Grafana itself is not part of it: appearance is not verified.
"""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field
from tests.unit.integrations.dashboards import described, rendered
from tests.unit.integrations.monitoring import FOREIGN, RECORDED, RULES, WRITTEN, names
from tests.unit.node.serve.test_metrics import CAPTURE, finding, verdict

from goldnode.documents.fleet_report import FleetReportDocument
from goldnode.fleet.report import metrics as report_metrics
from goldnode.fleet.service.metrics import ServiceCounters, render
from goldnode.node.serve import metrics as node_metrics

DASHBOARDS = {path.stem: json.loads(text) for path, text in rendered().items()}


# -- form: the classic dashboard model, by
# https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/ ("Classic"). By hand on 2026-11-26 also:
# read and written again without a loss by grafana-foundation-sdk 10.1.0, types of @grafana/schema 13.2.3.


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Place(Strict):
    x: int = Field(ge=0, lt=24)
    y: int = Field(ge=0)
    w: int = Field(ge=1, le=24)
    h: int = Field(ge=1)


class SourceRef(Strict):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class Target(Strict):
    refId: str = Field(pattern="^[A-Z]$")  # noqa: N815  # Grafana's name
    datasource: SourceRef
    expr: str = Field(min_length=1)
    legendFormat: str  # noqa: N815
    instant: bool
    range: bool
    format: Literal["table", "time_series"]


class Matcher(Strict):
    id: Literal["byName"]
    options: str


class Property(Strict):
    id: Literal["color", "links", "unit"]
    value: Any


class Override(Strict):
    matcher: Matcher
    properties: list[Property] = Field(min_length=1)


class ValueMapping(Strict):
    type: Literal["value"]
    options: dict[str, dict[Literal["text", "color", "index"], Any]]


class Defaults(Strict):
    unit: Literal["s", "percentunit", "celsius", "watt", "hertz", "bytes", "reqps"] | None = None
    min: int | None = None
    custom: dict[str, Any] = Field(default_factory=dict)
    mappings: list[ValueMapping] = Field(default_factory=list)


class FieldConfig(Strict):
    defaults: Defaults
    overrides: list[Override]


class Transformation(Strict):
    id: Literal["organize", "groupingToMatrix"]
    options: dict[str, Any]


class Panel(Strict):
    id: int
    type: Literal["stat", "timeseries", "table"]
    title: str
    description: str = ""
    datasource: SourceRef
    gridPos: Place  # noqa: N815
    targets: list[Target] = Field(min_length=1)
    fieldConfig: FieldConfig  # noqa: N815
    options: dict[str, Any]
    transformations: list[Transformation] = Field(default_factory=list)


class RowPanel(Strict):
    id: int
    type: Literal["row"]
    title: str
    collapsed: bool
    panels: list[Any] = Field(max_length=0)
    gridPos: Place  # noqa: N815


class Variable(Strict):
    name: str
    label: str
    type: Literal["query", "datasource"]
    query: str
    datasource: SourceRef | None = None
    refresh: Literal[0, 1, 2] = 0
    sort: int = 0
    multi: bool = False
    includeAll: bool = False  # noqa: N815
    allValue: str | None = None  # noqa: N815
    current: dict[str, str] = Field(default_factory=dict)


class Templating(Strict):
    list: list[Variable]


class Dashboard(Strict):
    uid: str = Field(pattern=r"^[a-zA-Z0-9_-]{8,40}$")
    title: str
    description: str
    tags: list[str]
    schemaVersion: int  # noqa: N815
    editable: bool
    graphTooltip: Literal[0, 1, 2]  # noqa: N815
    timezone: str
    refresh: str
    time: dict[Literal["from", "to"], str]
    annotations: dict[Literal["list"], list[Any]]
    links: list[dict[str, Any]]
    templating: Templating
    panels: list[Panel | RowPanel]


def test_files_are_those_of_the_description() -> None:
    for path, text in rendered().items():
        assert path.read_text() == text, "run `python -m tests.unit.integrations.dashboards`"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_conforms_to_the_model(name: str) -> None:
    found = Dashboard.model_validate(DASHBOARDS[name])
    ids = [panel.id for panel in found.panels]
    assert len(set(ids)) == len(ids)
    cells = [
        (panel.gridPos.x + dx, panel.gridPos.y + dy)
        for panel in found.panels
        for dx in range(panel.gridPos.w)
        for dy in range(panel.gridPos.h)
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    assert "not verified" in found.description
    variables = {one.name for one in found.templating.list}
    for panel in found.panels:
        if isinstance(panel, Panel):
            for target in panel.targets:
                assert set(re.findall(r"\$(\w+)", target.expr)) <= variables
                assert target.instant != target.range


@pytest.mark.parametrize("name", DASHBOARDS)
def test_links_lead_to_dashboards_and_their_variables(name: str) -> None:
    urls = re.findall(r"/d/[^\"]+", json.dumps(DASHBOARDS[name]))
    for url in urls:
        uid = re.fullmatch(r"/d/([\w-]+)\?.*", url)
        assert uid is not None
        variables = {one["name"] for one in DASHBOARDS[uid[1]]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", url)) <= variables
    assert urls or name == "goldnode-node"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_queries_read_metrics_that_exist(name: str) -> None:
    for panel in DASHBOARDS[name]["panels"]:
        for target in panel.get("targets", ()):
            assert names(target["expr"]) <= set(WRITTEN) | RECORDED | FOREIGN, panel["title"]
    for variable in DASHBOARDS[name]["templating"]["list"][1:]:
        [metric] = re.findall(r"label_values\(([\w:]+)", variable["query"])
        assert metric in RECORDED


def test_recorded_series_are_used() -> None:
    used = json.dumps(DASHBOARDS) + "".join(
        str(rule.get("expr")) for path in RULES.values() for rule in _rules(path)
    )
    assert {name for name in RECORDED if name not in used} == set()


def _rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


# -- a fleet: what each target answers


def node_text(name: str, tick: int) -> str:
    """Return the metrics of a node, whose counters grow with each scrape."""
    number = int(name[1:])
    capture: dict[str, Any] = copy.deepcopy(CAPTURE)
    gpu = capture["gpus"][0]
    gpu["uuid"] = f"GPU-{number}"
    gpu["address"] = "0000:ca:00.0"
    gpu["ecc"]["volatile"]["corrected"] += tick
    gpu["pcie"]["replay"] += tick
    gpu["nvlink"]["links"][0]["errors"]["replay"] += tick
    gpu["throttle"]["violation_ns"]["power"] += tick * 10**8
    capture["pci"]["0000:18:00.0"]["aer"]["correctable"] += tick
    capture["events"]["rows"][0]["count"] += tick
    if number == 6:
        capture["driver"]["loaded"] = "580.95"
    code = {2: 1, 3: 2}.get(number, 0)
    findings = (
        [finding("pcie.width", "mismatch", "0000:18:00.0")]
        if code
        else [finding("pcie.width", "match")]
    )
    checked = datetime.fromtimestamp(0 if number == 5 else time.time(), UTC)
    judged = verdict(*findings, code=code, time=f"{checked:%Y-%m-%dT%H:%M:%SZ}")
    gate = {"mode": "drain", "open": code != 2, "told": {"by": "slurm", "ours": code == 2}}
    return node_metrics.text(judged, capture, gate, fault="too old" if number == 4 else None)


def service_text(counters: ServiceCounters) -> str:
    """Return the metrics of a lock service with a rollout, an overdue node and a limit."""
    counters.count("/v1/pre-reboot", 200, "", 0.01)
    where = {"rollout": "r1", "direction": "forward"}
    rollout = {"name": "r1", "class": "h100", "ended_at": None, "phase": "running", "wave": 0}
    buffer = {
        "scope": "class",
        "name": "h100",
        "nodes": 6,
        "planned": 1,
        "failed": 1,
        "person": 0,
        "total": 2,
    }
    return render(
        counters,
        {
            "buffers": [{**buffer, "planned_limit": 2, "failed_limit": 2, "total_limit": 3}],
            "freezes": [],
            "denied": [],
            "overdue": [{"node": "n3", "owner": "r1"}],
            "rollouts": [{**rollout, "beat_at": time.time(), "submitted_at": 0}],
            "steps": [
                {**where, "phase": "done", "nodes": 2},
                {**where, "phase": "overdue", "nodes": 1},
            ],
            "log": {"unsealed": 0},
        },
    )


def report_text() -> str:
    """Return the metrics of a report with one row in each section."""
    some = {"count": 2, "folded": "n[2-3]", "names": ["n2", "n3"]}
    change = {"key": "gpu.pcie.width", "part": "0000:18:00.0", "expected": "16", "got": "8"}
    topic = {"class": "h100", "topic": "PCIe", "changes": [change], "nodes": some}
    one = {"node": "n3", "class": "h100"}
    values = [{"value": "580.82", "nodes": some}, {"value": "580.95", "nodes": some}]
    moment = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    parts = dict.fromkeys(("faults", "drains", "repeats", "kinds", "xids", "boots"), 1)
    judged = {"basis": "class", "samples": 9, "nodes": 6, "loss": 0.1, "baseline": None}
    canary = {"source": "canary", "unit": "TFLOP/s", "at": moment, "verified": False, **judged}
    cause = {
        "severity": "drain",
        "domain": "hardware",
        "evidence": ["declared"],
        "share": 0.6,
        "of": 6,
    }
    return report_metrics.text(
        FleetReportDocument.model_validate(
            {
                "schema": "goldnode.fleet-report/1",
                "at": moment,
                "compared": moment,
                "stale_after_hours": 26,
                "simulated": True,
                "anonymous": False,
                "classes": [{"class": "h100", "nodes": 6, "known": 5, "states": {"healthy": 5, "silent": 1}}],
                "causes": [{**topic, **cause, "also": []}],
                "unchecked": [topic],
                "mixed": [{"group": "ring1", "topic": "driver", "key": "driver.loaded", "part": None, "values": values}],
                "slow": [{**one, **canary, "metric": "gemm", "part": None, "median": 88.0, "bound": 90.0, "floor": 95.0, "usual": 100.0}],
                "failed_jobs": [{"class": "h100", "job": "gemm", "state": "failed", "why": "exit status 1", "nodes": some}],
                "slowing": [{**one, "metric": "gemm", "part": None, "results": 9, "days": 20.0, "a_day": 0.01, "loss": 0.1}],
                "trends": [{**one, "counter": "gpu.pcie.replay", "part": "0000:18:00.0", "an_hour": 1.5, "growth": 30.0, "hours": 20.0}],
                "lemons": [{**one, "state": "drain", "score": 7.0, "parts": parts}],
                "versions": [{"class": "h100", "key": "driver.loaded", "value": "580.82", "count": 5}],
                **{name: [] for name in ("not_known", "no_majority", "changed", "measured", "days", "nodes")},
            }
        )
    )  # fmt: skip


# Names and units: etc/default-counters.csv of dcgm-exporter 4.8.3. Labels: its README, release notes 4.8.3 (hostname) and pull request 326
# (pci_bus_id).
DCGM = """\
# HELP {name} from a simulated GPU
# TYPE {name} gauge
{name}{{gpu="0",UUID="GPU-3",pci_bus_id="00000000:CA:00.0",device="nvidia0",modelName="NVIDIA H100",hostname="n3"}} {value}
"""


def dcgm_text() -> str:
    values = {
        "GPU_TEMP": 41,
        "GPU_UTIL": 50,
        "POWER_USAGE": 71.5,
        "FB_USED": 1024,
        "XID_ERRORS": 79,
    }
    return "".join(
        DCGM.format(name=f"DCGM_FI_DEV_{name}", value=value) for name, value in values.items()
    )


NODES = [f"n{number}" for number in range(1, 7)]


class Fleet:
    """The answers of all targets by path."""

    def __init__(self) -> None:
        self.ticks = dict.fromkeys(NODES, 0)
        self.counters = ServiceCounters()

    def text(self, path: str) -> str:
        name = path.strip("/")
        if name in self.ticks:
            self.ticks[name] += 1
            return node_text(name, self.ticks[name]) + "node_boot_time_seconds 0\n"
        return {
            "fleet": lambda: service_text(self.counters),
            "report": report_text,
            "dcgm": dcgm_text,
        }[name]()


@pytest.fixture(scope="module")
def targets() -> Iterator[str]:
    """Address of an HTTP server with all targets."""
    fleet = Fleet()
    for path in (*NODES, "fleet", "report", "dcgm"):
        assert fleet.text(path), "an error here would be a target without samples there"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = fleet.text(self.path).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ask(targets: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """A query to a real Prometheus that scrapes the targets and evaluates the rules."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    folder = tmp_path_factory.mktemp("prometheus")
    for name, path in RULES.items():
        # The rules as they are, but for how long they wait.
        text = re.sub(r"(?m)^ +(for|interval): .*\n", "", path.read_text())
        (folder / f"{name}.rules.yml").write_text(text)
    jobs = {
        "node": {name: name for name in NODES},
        "fleet": {"controller:9180": "fleet"},
        "report": {"controller:9100": "report"},
        "dcgm": {"n3:9400": "dcgm"},
    }
    lower = {"source_labels": ["pci_bus_id"], "target_label": "pci_bus_id", "action": "lowercase"}
    scraped = [
        {
            "job_name": job,
            "static_configs": [
                {"targets": [targets], "labels": {"instance": name, "__metrics_path__": f"/{path}"}}
                for name, path in found.items()
            ],
            "metric_relabel_configs": [lower] if job == "dcgm" else [],
        }
        for job, found in jobs.items()
    ]
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["*.rules.yml"],
        "scrape_configs": scraped,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    log = (folder / "log").open("wb")
    program = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         "--web.listen-address=127.0.0.1:0"],
        stderr=log,
    )  # fmt: skip
    try:
        address = until(
            lambda: re.search(r'msg="Listening on" address=(\S+)', (folder / "log").read_text())
        )[1]

        def query(kind: str, **given: object) -> list[dict[str, Any]]:
            url = f"http://{address}/api/v1/{kind}?{urllib.parse.urlencode(given)}"
            with urllib.request.urlopen(url, timeout=30) as answer:  # a server of this test
                found = json.load(answer)["data"]
            rows: list[dict[str, Any]] = found["groups" if kind == "rules" else "result"]
            return rows

        yield query
    finally:
        program.terminate()
        program.wait()
        log.close()


def until(wanted: Callable[[], Any], seconds: float = 120) -> Any:
    """Return the first answer that is not empty."""
    end = time.monotonic() + seconds
    while True:
        try:
            if found := wanted():
                return found
        except OSError:  # it starts
            pass
        assert time.monotonic() < end, "no answer"
        time.sleep(0.2)


QUERIES = [
    pytest.param(panel.type, query, id=f"{one.uid}-{row.title}-{panel.title}-{number}")
    for one in described().dashboards
    for row in one.rows
    for panel in row.panels
    for number, query in enumerate(panel.targets().values())
]


@pytest.mark.parametrize(("kind", "query"), QUERIES)
def test_panel_has_data(ask: Ask, kind: str, query: str) -> None:
    text = query.replace("$class", "h100").replace("$instance", "n3")

    def values() -> list[float]:
        now = time.time()
        if kind == "timeseries":
            rows = ask("query_range", query=text, start=now - 60, end=now, step=1)
            found = [float(value) for row in rows for _, value in row["values"]]
        else:
            found = [float(row["value"][1]) for row in ask("query", query=text)]
        return [value for value in found if math.isfinite(value)]

    assert until(values)


def test_nodes_are_in_one_state_each(ask: Ask) -> None:
    def states() -> dict[str, str] | None:
        rows = ask("query", query="instance:goldnode_state:info")
        found = {row["metric"]["instance"]: row["metric"]["state"] for row in rows}
        return found if len(found) == len(rows) == len(NODES) else None

    assert until(states) == {
        "n1": "healthy",
        "n2": "degraded",
        "n3": "drain",
        "n4": "could_not_check",
        "n5": "stale",
        "n6": "healthy",
    }


def test_metrics_of_dcgm_have_class_and_node(ask: Ask) -> None:
    [row] = until(lambda: ask("query", query="uuid:dcgm_power:watts"))
    metric = {name: row["metric"][name] for name in ("uuid", "gpu", "instance", "class")}
    assert metric == {"uuid": "GPU-3", "gpu": "0000:ca:00.0", "instance": "n3", "class": "h100"}
    assert row["value"][1] == "71.5"


def test_join_by_pci_address_has_data(ask: Ask) -> None:
    """The query of docs/how-to/monitoring.md for an exporter without UUIDs."""
    page = (Path(__file__).parents[3] / "docs/how-to/monitoring.md").read_text()
    [query] = re.findall(r"(?s)```promql\n(.*?)```", page)
    [row] = until(lambda: ask("query", query=query))
    assert (row["metric"]["gpu"], row["metric"]["class"], row["value"][1]) == (
        "0000:ca:00.0",
        "h100",
        "41",
    )


def test_all_rules_are_evaluated_without_an_error(ask: Ask) -> None:
    def health() -> set[tuple[str, str]] | None:
        rows = [rule for group in ask("rules") for rule in group["rules"]]
        found = {(rule["health"], rule.get("lastError", "")) for rule in rows}
        return (
            found
            if len(rows) == sum(len(_rules(path)) for path in RULES.values())
            and "unknown" not in {state for state, _ in found}
            else None
        )

    assert until(health) == {("ok", "")}
