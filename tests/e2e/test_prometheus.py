"""Real Prometheus with node_exporter: bad verdicts and dead checkers alert, fixed ones resolve. Also the
endpoint under systemd.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.support import Services

from goldnode.node.ground import verdict_files
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

INTEGRATIONS = Path(__file__).parents[2] / "integrations"
PROGRAM = "/usr/lib/goldnode/goldnode-node"
INITRD = "/boot/initrd.img-6.1.0-902-amd64"
TEXTFILE = "/var/lib/prometheus/node-exporter/goldnode.prom"
CONF = """\
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [/etc/prometheus/goldnode*.rules.yml]
scrape_configs:
  - job_name: node
    static_configs: [{targets: ["localhost:9100"]}]
  - job_name: endpoint
    static_configs: [{targets: ["localhost:9478"]}]
"""


class Monitored:
    """A node that is watched by a Prometheus on it."""

    def __init__(self, node: LabNode) -> None:
        self.node = node

    def ask(self, path: str) -> Any:
        return json.loads(
            self.node.run(
                "curl", "-sS", "--fail", "-g", f"http://localhost:9090/api/v1/{path}"
            ).output
        )["data"]

    def firing(self) -> set[str]:
        """Names of the alerts of node_exporter's target that fire."""
        rows = self.ask("alerts")["alerts"]
        return {
            row["labels"]["alertname"]
            for row in rows
            if row["state"] == "firing" and row["labels"].get("job") == "node"
        }

    def states(self) -> set[str]:
        """States of node_exporter's target by the recording rules."""
        rows = self.ask("query?query=instance:goldnode_state:info{job='node'}")["result"]
        return {row["metric"]["state"] for row in rows}

    def until(self, wanted: Callable[[], object], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not wanted():
            assert time.monotonic() < end, self.firing()
            time.sleep(0.3)

    def watch(self) -> None:
        self.node.run("systemctl", "start", "goldnode-watch.service")


@pytest.fixture(scope="module")
def monitored(services: Services) -> Monitored:
    node = services.node
    # The rules as they are, but for how long they wait.
    rules = {
        f"/etc/prometheus/{path.name}": re.sub(
            r"(?m)^ +(for|interval): .*\n", "", path.read_text()
        ).encode()
        for path in (INTEGRATIONS / "prometheus").glob("*.rules.yml")
    }
    node.put({"/etc/prometheus/prometheus.yml": CONF.encode(), **rules})
    node.run("systemctl", "start", "prometheus-node-exporter.service", "prometheus.service")
    found = Monitored(node)
    found.watch()
    found.until(
        lambda: (
            node.run("curl", "-sS", "--fail", "http://localhost:9090/-/ready", check=False).rc == 0
        )
    )
    found.until(
        lambda: found.ask("query?query=goldnode_last_run_timestamp_seconds{job='node'}")["result"]
    )
    return found


def test_promtool_passes_the_rules_and_the_metrics(monitored: Monitored) -> None:
    node = monitored.node
    files = {
        f"/root/rules/{path.name}": path.read_bytes()
        for path in (INTEGRATIONS / "prometheus").iterdir()
    }
    node.put(files)
    reported = node.shell(
        "cd /root/rules; promtool check rules goldnode.rules.yml; promtool test rules goldnode.test.yml"
    ).output
    assert "SUCCESS" in reported
    assert node.shell(f"promtool check metrics < {TEXTFILE}").output == ""
    assert node.run("stat", "-c", "%a %U", TEXTFILE).output.split() == ["644", "root"]
    assert node.read(TEXTFILE) == node.read("/run/goldnode/metrics.prom")


def test_a_bad_verdict_alerts_and_a_repaired_one_resolves(monitored: Monitored) -> None:
    node = monitored.node
    monitored.until(lambda: "GoldnodeDrain" not in monitored.firing())
    node.run("mv", INITRD, "/root/initrd")
    monitored.watch()
    monitored.until(lambda: {"GoldnodeDrain", "GoldnodeFinding"} <= monitored.firing())
    found = monitored.ask("query?query=goldnode_finding{job='node',id='boot.initramfs'}")["result"]
    assert [row["value"][1] for row in found] == ["4"]
    assert {row["metric"]["simulated"] for row in found} == {"true"}
    node.run("mv", "/root/initrd", INITRD)
    monitored.watch()
    monitored.until(lambda: "GoldnodeDrain" not in monitored.firing())


def test_a_checker_that_died_alerts(monitored: Monitored) -> None:
    node = monitored.node
    assert "GoldnodeStale" not in monitored.firing()
    # The file stays as it is, and time goes on: what the checker wrote last was written longer ago.
    node.shell(
        f"at=$(sed -n 's/^goldnode_last_run_timestamp_seconds //p' {TEXTFILE});"
        f' sed -i "s/^goldnode_last_run_timestamp_seconds .*/goldnode_last_run_timestamp_seconds $((at - {verdict_files.LIMIT + 60}))/" {TEXTFILE}'
    )
    monitored.until(lambda: "GoldnodeStale" in monitored.firing())
    monitored.until(lambda: monitored.states() == {"stale"})
    monitored.watch()
    monitored.until(lambda: "GoldnodeStale" not in monitored.firing())
    node.run("rm", TEXTFILE)
    monitored.until(lambda: "GoldnodeGone" in monitored.firing())
    monitored.until(lambda: monitored.states() == {"silent"})
    monitored.watch()
    monitored.until(lambda: not {"GoldnodeGone", "GoldnodeStale"} & monitored.firing())


# -- the endpoint


def get(node: LabNode, path: str, *more: str) -> tuple[int, str]:
    done = node.run(
        "curl",
        "-sS",
        "-o",
        "/root/body",
        "-w",
        "%{http_code}",
        *more,
        f"http://127.0.0.1:9478{path}",
    )
    return int(done.output), node.read("/root/body")


def test_the_endpoint_is_started_by_its_socket_and_has_no_privileges(monitored: Monitored) -> None:
    node = monitored.node
    units = (
        "/etc/systemd/system/goldnode-serve.socket",
        "/etc/systemd/system/goldnode-serve.service",
    )
    sound = node.run("systemd-analyze", "verify", "--recursive-errors=no", *units, check=False)
    assert (sound.rc, sound.output) == (0, "")
    status, body = get(node, "/diagnostics")
    reported = json.loads(body)
    assert (status, reported["class"], reported["simulated"], reported["verdict"]["holds"]) == (
        200,
        "e2e_serve",
        True,
        True,
    )
    user = node.shell(
        "ps -o user= -p $(systemctl show -p MainPID --value goldnode-serve.service)"
    ).output.strip()
    assert user not in ("root", "")
    score = node.run(
        "systemd-analyze", "security", "--no-pager", "goldnode-serve.service", check=False
    ).output
    level = re.search(r"Overall exposure level for goldnode-serve.service: ([0-9.]+)", score)
    assert level is not None
    assert float(level[1]) < 2.5, score
    assert "127.0.0.1:9478" in node.run("ss", "-Hltn", "sport", "=", "9478").output
    # A container cannot show the kernel as its own, so that the verdict is `could not check`: never health.
    assert get(node, "/healthz")[0] == 503
    assert get(node, "/metrics")[1].startswith("# HELP goldnode_info")
    assert get(node, "/metrics", "-X", "POST")[0] == 405
    assert get(node, "/../../etc/passwd", "--path-as-is")[0] == 404
    monitored.until(
        lambda: monitored.ask("query?query=goldnode_verdict_age_seconds{job='endpoint'}")["result"]
    )


def test_the_endpoint_outlives_what_becomes_of_it(monitored: Monitored) -> None:
    node = monitored.node
    node.run("systemctl", "kill", "--signal=KILL", "goldnode-serve.service", check=False)
    monitored.until(
        lambda: (
            node.run("systemctl", "is-active", "goldnode-serve.service", check=False).output.strip()
            != "deactivating"
        )
    )
    node.run("systemctl", "reset-failed", "goldnode-serve.service", check=False)
    assert get(node, "/healthz")[0] == 503
    node.run("mv", verdict_files.VERDICT, "/run/goldnode/away")
    status, body = get(node, "/healthz")
    assert (status, "no verdict of this boot" in body) == (503, True)
    node.run("mv", "/run/goldnode/away", verdict_files.VERDICT)


def test_the_plugin_for_kubernetes_answers(services: Services) -> None:
    node = services.node
    node.run("systemctl", "start", "goldnode-watch.service")
    done = node.run("/usr/lib/goldnode/npd-plugin", check=False)
    assert (done.rc, done.output.startswith("goldnode: could not check")) == (2, True)


def test_a_class_without_settings_takes_it_all_away(services: Services) -> None:
    node = services.node
    services.converge("e2e_gate_drain")
    left = f"ls -d /etc/systemd/system/goldnode-serve* /etc/systemd/system/sockets.target.wants/goldnode* /usr/lib/goldnode/* {TEXTFILE} 2>/dev/null"
    # || true: ls fails where nothing is left; what it lists is asserted.
    assert node.shell(f"{left} || true").output.split() == [PROGRAM]
    assert node.run("ss", "-Hltn", "sport", "=", "9478").output == ""
    assert (
        node.run("systemctl", "is-active", "goldnode-serve.socket", check=False).output.strip()
        == "inactive"
    )
    services.converge("e2e_serve")
    assert get(node, "/metrics")[0] == 200
    node.run("systemctl", "start", "goldnode-watch.service")
    assert node.run("test", "-s", TEXTFILE, check=False).rc == 0
