"""Debian's own kubectl (12: 1.20, 13: 1.32, 14: 1.36) with goldnode's drains, against a simulated API server.

kubectl is real, and so are its requests, its messages and its exit statuses. The API server is not:
`tests.simulators.kubernetes_api` says what it follows, and what it lacks.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.debian_archive import debian_archive
from tests.simulators.kubernetes_api import Cluster, serving

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain import protocol
from goldnode.fleet.drain.kubectl import KubectlDrainer, pods
from goldnode.node.ground.drained import reason

pytestmark = [pytest.mark.real, pytest.mark.long]

PACKAGES = {"bookworm": "kubernetes-client", "trixie": "kubectl", "forky": "kubectl"}
MARK = reason("ffff-000001", "ctl", "2026-11-29T00:00:00Z", "kernel 6.1 runs, want 6.2")


def _fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - the archive of apt
        return bytes(answer.read())


@pytest.fixture(scope="module", params=sorted(PACKAGES))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack kubectl of a release; its path."""
    archive = debian_archive().rstrip("/")
    suite = request.param
    index = lzma.decompress(_fetched(f"{archive}/dists/{suite}/main/binary-amd64/Packages.xz"))
    for stanza in index.decode().split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", stanza, re.MULTILINE))
        if fields.get("Package") == PACKAGES[suite]:
            break
    else:
        pytest.fail(f"{suite} has no {PACKAGES[suite]}")
    content = _fetched(f"{archive}/{fields['Filename']}")
    assert hashlib.sha256(content).hexdigest() == fields["SHA256"]
    place = tmp_path_factory.mktemp(suite)
    (place / "package.deb").write_bytes(content)
    subprocess.run(["dpkg-deb", "-x", "package.deb", "root"], cwd=place, check=True)
    return place / "root/usr/bin/kubectl"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("HOME", str(tmp_path))  # kubectl keeps what it has discovered there
    cluster = Cluster()
    for name in ("n1", "n2"):
        cluster.add_node(name)
    with serving(cluster, tmp_path / "kubeconfig"):
        yield cluster


@pytest.fixture
def kubectl(program: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *words], capture_output=True, text=True, check=False, timeout=120
        )

    return call


@pytest.fixture
def drainer(program: Path, cluster: Cluster) -> KubectlDrainer:
    def run(argv: Sequence[str]) -> str:
        assert argv[0] == "kubectl"
        return protocol.run([str(program), *argv[1:]])

    return KubectlDrainer(run=run)


def test_a_node_is_taken_and_given_back(drainer: KubectlDrainer, cluster: Cluster) -> None:
    seen = drainer.state_of("n1")
    assert (seen.in_service, seen.state) == (True, "schedulable")
    assert drainer.take("n1", MARK, seen)
    held = drainer.state_of("n1")
    assert (held.in_service, held.reason) == (False, MARK)
    assert drainer.marked() == {"n1": MARK}
    assert drainer.give("n1", held, "")
    assert drainer.state_of("n1").in_service
    assert cluster.nodes["n1"]["spec"] == {}
    assert not cluster.nodes["n1"]["metadata"].get("annotations")


def test_a_cordon_of_another_user_is_recognised(
    drainer: KubectlDrainer, kubectl: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert drainer.take("n1", MARK, drainer.state_of("n1"))
    assert kubectl("cordon", "n1").stdout == "node/n1 already cordoned\n"
    assert drainer.state_of("n1").held, "kubectl sends nothing for a node that is cordoned already"
    for word in ("uncordon", "cordon"):
        assert kubectl(word, "n1").returncode == 0
    again = drainer.state_of("n1")
    assert (again.held, again.why) == (None, "cordoned again by kubectl")
    assert drainer.marked() == {}


def test_a_change_of_another_user_is_not_overwritten(
    drainer: KubectlDrainer,
    cluster: Cluster,
    kubectl: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    seen = drainer.state_of("n1")
    assert kubectl("label", "node", "n1", "rack=r7").returncode == 0
    assert not drainer.take("n1", MARK, seen)
    assert cluster.nodes["n1"]["spec"] == {}
    assert drainer.take("n1", MARK, drainer.state_of("n1"))


def test_work_is_read_by_node(drainer: KubectlDrainer, cluster: Cluster) -> None:
    cluster.add_pod("n1", "job", "Job", limit=7200)
    cluster.add_pod("n1", "ended", "Job", phase="Succeeded")
    cluster.add_pod("n2", "web", "ReplicaSet")
    cluster.add_pod("n2", "agent", "DaemonSet")
    cluster.add_pod("n2", "bare", None)
    cluster.add_pod("n2", "static", "Node", mirror=True)
    found = sorted((pod.node, pod.owner) for pod in pods(drainer.run))
    assert found == [
        ("n1", "Job"),
        ("n2", "<none>"),
        ("n2", "DaemonSet"),
        ("n2", "Node"),
        ("n2", "ReplicaSet"),
    ]
    assert [pod.owner for pod in pods(drainer.run, "n1")] == ["Job"]
    assert pods(drainer.run, "n3") == []
    asked = drainer.nodes(drainer.run, {"n1", "n2"}, 1_795_910_400.0)
    assert asked["n1"].free_at == 1_795_910_400.0 + 7200
    assert asked["n2"].free_at > 1_795_910_400.0 + 86400, "a bare pod has no end"


def test_a_drain_ends_what_is_started_elsewhere(drainer: KubectlDrainer, cluster: Cluster) -> None:
    for name, owner in (("web", "ReplicaSet"), ("db", "StatefulSet"), ("agent", "DaemonSet")):
        cluster.add_pod("n1", name, owner, volumes=("emptyDir",))
    cluster.add_pod("n1", "static", "Node", mirror=True)
    assert drainer.take("n1", MARK, drainer.state_of("n1"))
    assert drainer.settle("n1")
    assert cluster.running() == ["agent", "static"]
    assert drainer.state_of("n1").held, "kubectl drain leaves the mark"


@pytest.mark.parametrize("owner", ["Job", None])
def test_a_rollout_waits_for_work_that_nothing_starts_again(
    drainer: KubectlDrainer, cluster: Cluster, owner: str | None
) -> None:
    cluster.add_pod("n1", "work", owner)
    cluster.add_pod("n1", "web", "ReplicaSet")
    assert not drainer.settle("n1")
    assert cluster.running() == ["web", "work"]


def test_a_pod_without_a_controller_is_named(drainer: KubectlDrainer, cluster: Cluster) -> None:
    cluster.add_pod("n1", "bare", None)
    with pytest.raises(GoldnodeError, match=r"use --force to override\): jobs/bare"):
        drainer.finish("n1")
    assert cluster.running() == ["bare"]


def test_a_disruption_budget_lets_the_rollout_ask_again(
    drainer: KubectlDrainer, cluster: Cluster
) -> None:
    cluster.add_pod("n1", "db", "StatefulSet", app="db")
    cluster.budgets.add("db")
    assert not drainer.settle("n1")
    assert cluster.running() == ["db"]
    cluster.budgets.clear()
    assert drainer.settle("n1")
    assert cluster.running() == []


def test_hundreds_of_nodes_come_in_chunks(drainer: KubectlDrainer, cluster: Cluster) -> None:
    for number in range(1100):
        cluster.add_node(f"many{number}", unschedulable=True)
    names = {f"many{number}" for number in range(1100)}
    assert set(drainer.nodes(drainer.run, names, 0.0)) == names
    assert any("continue=" in line for line in cluster.asked)


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_right_that_is_missing_is_named(
    drainer: KubectlDrainer, cluster: Cluster, verb: str
) -> None:
    seen = drainer.state_of("n1")
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: drainer.state_of("n1"),
        "patch": lambda: drainer.take("n1", MARK, seen),
    }
    cluster.refuses.add((verb, "nodes"))
    with pytest.raises(GoldnodeError, match=f'User "goldnode" cannot {verb} resource "nodes"'):
        calls[verb]()


def test_a_node_that_is_unknown_is_named(drainer: KubectlDrainer) -> None:
    with pytest.raises(GoldnodeError, match=r'nodes "n9" not found'):
        drainer.state_of("n9")


def test_an_api_server_that_does_not_answer_is_named(
    drainer: KubectlDrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(os.environ["KUBECONFIG"])
    away = json.loads(place.read_text())
    away["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    place.write_text(json.dumps(away))
    with pytest.raises(
        GoldnodeError, match=r"The connection to the server 127\.0\.0\.1:9 was refused"
    ):
        drainer.state_of("n1")
