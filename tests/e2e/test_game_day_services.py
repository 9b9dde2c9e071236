"""A game day beside a real slurmctld, Prometheus and Alertmanager: the node is held, and the alert arrives."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import documents
from tests.e2e.support import BIN, ROOT, Services
from tests.e2e.test_slurm import Cluster, Controller, cluster

from goldnode.testing.lab.nodes import LabNode

__all__ = ["cluster"]  # fixture
pytestmark = [pytest.mark.lab, pytest.mark.long]

# requirements: Debian packages that the test machine needs for this file; scripts/test installs them.
REQUIREMENTS = ("prometheus-alertmanager",)

CLASS = "e2e_serve"
ALERTMANAGER = "/usr/local/bin/alertmanager"
PROMETHEUS = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [/etc/prometheus/goldnode*.rules.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["localhost:9093"]}}]}}]}}
scrape_configs:
  - job_name: endpoint
    static_configs: [{{targets: ["localhost:9478"], labels: {{node: {name}}}}}]
"""
# A client of Slurm on the controller: slurmctld works on the node.
CLIENT = """#!{python}
import sys, docker
node = docker.from_env().containers.get("{container}")
done = node.exec_run(["{name}", *sys.argv[1:]], demux=True)
print((done.output[0] or b"").decode(), end="")
print((done.output[1] or b"").decode(), end="", file=sys.stderr)
sys.exit(done.exit_code)
"""
ROUTES = "route: {receiver: none, group_wait: 1s}\nreceivers: [{name: none}]\n"


@pytest.fixture(scope="module")
def watched(services: Services) -> str:
    """The address of a node with a Prometheus and an Alertmanager. The rules of goldnode are as they are, with their delays shortened."""
    node = services.node
    binary = shutil.which("prometheus-alertmanager")
    if binary is None:
        # The program under test itself: nothing else raises a real alert. scripts/test installs it.
        pytest.skip("needs prometheus-alertmanager")
    rules = {
        f"/etc/prometheus/{path.name}": path.read_text().replace("for: 10m", "for: 5s").encode()
        for path in (ROOT / "integrations/prometheus").glob("*.rules.yml")
    }
    # It does not start without these.
    templates = {
        str(path): path.read_bytes()
        for path in Path("/usr/share/prometheus/alertmanager").glob("*.tmpl")
    }
    node.put(
        {
            "/etc/prometheus/prometheus.yml": PROMETHEUS.format(name=node.name).encode(),
            "/etc/alertmanager.yml": ROUTES.encode(),
            **templates,
            **rules,
        }
    )
    node.put({ALERTMANAGER: Path(binary).read_bytes()}, mode=0o755)
    node.run(
        *("systemd-run", "-q", "--unit=alertmanager", ALERTMANAGER),
        *("--config.file=/etc/alertmanager.yml", "--storage.path=/var/lib/alertmanager"),
        "--cluster.listen-address=",
    )
    node.run("systemctl", "restart", "prometheus.service")
    node.run("systemctl", "start", "goldnode-watch.service")
    ready(node, "localhost:9090/-/ready")
    ready(node, "localhost:9093/-/ready")
    node.container.reload()
    (network,) = node.container.attrs["NetworkSettings"]["Networks"].values()
    return f"http://{network['IPAddress']}"


def scheduled(services: Services, place: Path) -> Controller:
    """A controller whose inventory has Slurm as the scheduler."""
    controller = Controller(services, place)
    for name in ("squeue", "sinfo"):
        client = place / "bin" / name
        container = services.node.container.id
        client.write_text(CLIENT.format(python=sys.executable, container=container, name=name))
        client.chmod(0o755)
    (controller.hosts / "group_vars").mkdir()
    (controller.hosts / "group_vars/all.yml").write_text("goldnode_drain: slurm\n")
    return controller


def ready(node: LabNode, address: str) -> None:
    end = time.monotonic() + 180
    while node.run("curl", "-sS", "--fail", address, check=False).rc:
        assert time.monotonic() < end, address
        time.sleep(0.5)


def test_slurm_holds_the_node_and_the_alert_arrives_at_the_alertmanager(
    services: Services, cluster: Cluster, watched: str, tmp_path: Path
) -> None:
    controller = scheduled(services, tmp_path)
    cluster.wait("IDLE", "")
    words = ["game-day", CLASS, "-i", str(controller.hosts), "--node", services.node.name]
    words += ["--fault", "hold", "--now", "--within", "180", "--apply", "--format", "json"]
    words += ["--prometheus", f"{watched}:9090", "--alertmanager", f"{watched}:9093"]
    process = subprocess.Popen(
        [str(BIN / "goldnode"), *words],
        cwd=ROOT,
        env=controller.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rows = []
    while process.poll() is None:
        rows.append(cluster.row())
        time.sleep(0.5)
    out, errors = process.communicate()
    assert process.returncode == 0, out + errors
    document = documents.valid(out)
    outcomes = {row["witness"]: row["outcome"] for row in document["sightings"]}
    assert (document["state"], document["held_by"], document["left"]) == ("ended", "slurm", [])
    assert outcomes == {
        "check": "seen",
        "gate": "not_asked",
        "alert": "seen",
        "alertmanager": "seen",
        "report": "not_asked",
    }
    reasons = {reason for state, reason in rows if state == "IDLE+DRAIN"}
    assert any("game day hold, by " in reason for reason in reasons), rows
    cluster.wait("IDLE", "")
    print(json.dumps(document["sightings"]))


def test_end_returns_the_node_that_a_killed_controller_has_held(
    services: Services, cluster: Cluster, tmp_path: Path
) -> None:
    controller = scheduled(services, tmp_path)
    node = ["game-day", CLASS, "-i", str(controller.hosts), "--node", services.node.name]
    process = subprocess.Popen(
        [str(BIN / "goldnode"), *node, "--fault", "second-program", "--apply"],
        cwd=ROOT,
        env=controller.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 180
    while services.node.run("test", "-e", "/usr/local/sbin/goldnode-node", check=False).rc:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.5)
    process.kill()
    process.communicate()
    cluster.stays("IDLE+DRAIN", "goldnode run ")
    done = subprocess.run(
        [str(BIN / "goldnode"), *node, "--end"],
        cwd=ROOT,
        env=controller.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.wait("IDLE", "")
    assert services.node.run("test", "-e", "/usr/local/sbin/goldnode-node", check=False).rc
