"""integrations/kubernetes/check: what a verdict becomes on a simulated API server, and what happens without one."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.simulators.kubernetes_api import Cluster, serving

from goldnode.core import program_file

INTEGRATION = Path(__file__).parents[3] / "integrations/kubernetes"
SCRIPT = INTEGRATION / "check"
FINDING = {
    "id": "driver.loaded",
    "outcome": "mismatch",
    "severity": "drain",
    "expected": "580.65.06",
    "got": "570.86.15",
    "remedy": "Reboot.",
}
BAD = {"status": "drain", "exit_code": 2, "findings": [FINDING]}
GOOD = {"status": "healthy", "exit_code": 0, "findings": []}
UNREAD = {"status": "could_not_check", "exit_code": 3, "findings": []}
ARGUMENTS = "check --passive --no-write --no-gate --format json --root /proc/1/root"


class Node:
    """A node of a simulated cluster. Its check is a stub in the program that goldnode builds."""

    def __init__(self, cluster: Cluster, address: str, place: Path, empty: Path) -> None:
        self.cluster, self.address, self.program = cluster, address, place / "goldnode-node"
        self.empty = empty

    def words(self, answer: object, *more: str, status: int = 0) -> list[str]:
        """Return a command line of the script, for a check with this answer: a verdict, or a text."""
        if isinstance(answer, dict):
            status = status or int(answer["exit_code"])
            answer = json.dumps({"time": "2026-11-29T00:00:00Z", **answer})
        stub = f"""import sys
assert " ".join(sys.argv[1:]) == {ARGUMENTS!r}, sys.argv
print({answer!r})
print("what went wrong", file=sys.stderr)
sys.exit({status})
"""
        shutil.copy(self.empty, self.program)
        with zipfile.ZipFile(self.program, "a") as archive:
            archive.writestr("__main__.py", stub)
        words = ["--node", "n1", "--program", str(self.program), "--api", self.address]
        return [sys.executable, "-I", str(SCRIPT), *words, *more]

    def check(
        self, answer: object, *more: str, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Check and publish once."""
        words = self.words(answer, "--once", *more, status=status)
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    @property
    def condition(self) -> dict[str, Any]:
        return self.cluster.conditions("n1")["GPUNodeSanity"]

    @property
    def taints(self) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = self.cluster.nodes["n1"]["spec"].get("taints", [])
        return rows


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program without its start."""
    path = tmp_path_factory.mktemp("program") / "empty"
    with (
        zipfile.ZipFile(io.BytesIO(program_file.build())) as source,
        zipfile.ZipFile(path, "w") as copy,
    ):
        for name in source.namelist():
            if name != "__main__.py":
                copy.writestr(name, source.read(name))
    return path


@pytest.fixture
def node(tmp_path: Path, empty: Path) -> Iterator[Node]:
    cluster = Cluster()
    cluster.add_node("n1")
    with serving(cluster, tmp_path / "kubeconfig") as address:
        yield Node(cluster, address, tmp_path, empty)


@pytest.mark.parametrize(
    ("answer", "status", "reason", "message"),
    [
        (GOOD, "False", "NodeIsSane", "goldnode: healthy"),
        (
            {**GOOD, "simulated": True},
            "False",
            "NodeIsSane",
            "goldnode: healthy (simulated hardware)",
        ),
        (
            BAD,
            "True",
            "NodeIsNotSane",
            "goldnode: drain: driver.loaded: 570.86.15, expected 580.65.06. Reboot.",
        ),
        (UNREAD, "Unknown", "NodeNotChecked", "goldnode: could not check"),
        ("", "Unknown", "NodeNotChecked", "goldnode: could not check: what went wrong"),
        ("{", "Unknown", "NodeNotChecked", "goldnode: could not check: what went wrong"),
        (
            '{"schema": "goldnode.error/1", "error": "a pod needs hostPID: true"}',
            "Unknown",
            "NodeNotChecked",
            "goldnode: could not check: a pod needs hostPID: true",
        ),
        ("[]", "Unknown", "NodeNotChecked", "goldnode: could not check: what went wrong"),
    ],
)
def test_a_verdict_becomes_a_condition(
    node: Node, answer: object, status: str, reason: str, message: str
) -> None:
    done = node.check(answer)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{message}\n", "")
    found = node.condition
    assert (found["status"], found["reason"], found["message"]) == (status, reason, message)
    assert node.cluster.conditions("n1")["Ready"] == {"type": "Ready", "status": "True"}
    assert [event["message"] for event in node.cluster.events] == [message]


def test_a_verdict_with_another_exit_status_does_not_count(node: Node) -> None:
    node.check(GOOD, status=1)
    assert (node.condition["status"], node.condition["message"]) == (
        "Unknown",
        "goldnode: could not check: the verdict has exit code 0, the check ended with 1",
    )


def test_an_event_is_written_for_each_change_only(node: Node) -> None:
    for answer in (GOOD, GOOD, BAD, BAD, GOOD):
        assert node.check(answer).returncode == 0
    assert [(row["type"], row["reason"]) for row in node.cluster.events] == [
        ("Normal", "NodeIsSane"),
        ("Warning", "NodeIsNotSane"),
        ("Normal", "NodeIsSane"),
    ]


def test_a_long_message_passes_the_api_server(node: Node) -> None:
    long = {**BAD, "findings": [{**FINDING, "got": "x" * 3000}]}
    assert node.check(long).returncode == 0
    assert len(node.condition["message"]) == 1000


def test_the_time_of_a_change_stays_until_the_next(node: Node) -> None:
    node.check(BAD)
    since = dict(node.condition)
    time.sleep(1.1)
    node.check(BAD)
    assert node.condition["lastTransitionTime"] == since["lastTransitionTime"]
    assert node.condition["lastHeartbeatTime"] > since["lastHeartbeatTime"]
    node.check(GOOD)
    assert node.condition["lastTransitionTime"] > since["lastTransitionTime"]


def test_a_taint_is_of_a_bad_verdict_and_leaves_those_of_others(node: Node) -> None:
    other = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    own = {"key": "goldnode.io/unhealthy", "value": "drain", "effect": "NoSchedule"}
    node.cluster.nodes["n1"]["spec"]["taints"] = [other]
    node.check(BAD)
    assert node.taints == [other], "only with --taint"
    for answer, wanted in ((BAD, [other, own]), ("", [other, own]), (GOOD, [other])):
        assert node.check(answer, "--taint").returncode == 0
        assert node.taints == wanted


def test_a_taint_that_another_one_adds_meanwhile_is_not_lost(node: Node) -> None:
    other = {"key": "other", "effect": "NoExecute"}

    def meanwhile() -> None:
        node.cluster.before_patch = lambda: None
        node.cluster.patch_node("n1", {"spec": {"taints": [other]}}, "other")

    node.cluster.before_patch = meanwhile
    done = node.check(BAD, "--taint")
    assert done.returncode == 1
    assert "not published: PATCH /api/v1/nodes/n1: 409" in done.stderr
    assert node.taints == [other]
    node.check(BAD, "--taint")
    assert [row["key"] for row in node.taints] == ["other", "goldnode.io/unhealthy"]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (("get", "nodes"), 'User "goldnode" cannot get resource "nodes"'),
        (("patch", "nodes/status"), 'User "goldnode" cannot patch resource "nodes/status"'),
        (("create", "events"), 'User "goldnode" cannot create resource "events"'),
    ],
)
def test_a_right_that_is_missing_is_named(
    node: Node, refused: tuple[str, str], message: str
) -> None:
    node.cluster.refuses.add(refused)
    done = node.check(GOOD)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_api_server_that_is_away_is_named(node: Node) -> None:
    node.address = "http://127.0.0.1:9"
    done = node.check(GOOD)
    assert done.returncode == 1
    assert done.stderr.startswith("goldnode: not published: GET /api/v1/nodes/n1: ")
    assert "Traceback" not in done.stderr


def test_metrics_are_those_of_the_node_program(node: Node) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = node.words(BAD, "--port", str(port), "--every", "60")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("goldnode: drain")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        child.terminate()
    assert "goldnode_verdict_exit_code 2\n" in text
    assert 'goldnode_finding{id="driver.loaded"' in text


def test_the_rights_are_those_that_the_check_needs() -> None:
    rows = list(yaml.safe_load_all((INTEGRATION / "check.yaml").read_text()))
    rules = [
        rule for row in rows if row["kind"] in ("ClusterRole", "Role") for rule in row["rules"]
    ]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["nodes"], ["get"]),
        (["nodes/status"], ["patch"]),
        (["events"], ["create"]),
    ]
    pod = next(row for row in rows if row["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "SYS_CHROOT"]}
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_program_and_script_fit_a_config_map() -> None:
    """The API server takes 1 MiB in all keys together (https://kubernetes.io/docs/concepts/configuration/configmap/)."""
    assert len(program_file.build()) + SCRIPT.stat().st_size < 1 << 20
