"""The check of a pod on the node that it runs on: a container that shares only processes and network with a lab node.

The node is a systemd container of the lab. A container engine takes the place of the kubelet, with the security context of
integrations/kubernetes/check.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker import DockerClient
from tests.e2e.conftest import World

from goldnode.classdoc.compile import compile_class
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import read_class
from goldnode.core import program_file
from goldnode.core.site import load_site
from goldnode.testing.lab.nodes import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.long]

MANIFEST = Path(__file__).parents[2] / "integrations/kubernetes/check.yaml"
CHECK = ("check", "--no-write", "--no-gate", "--format", "json")
PASSING = {"time", "uptime"}  # keys of a verdict that differ between two checks


class Pod:
    """Containers on the node of a lab, with the rights of the manifest's pod and nothing of the node mounted."""

    def __init__(self, client: DockerClient, node: LabNode, directory: Path) -> None:
        self.client, self.node, self.directory = client, node, directory
        rows = yaml.safe_load_all(MANIFEST.read_text())
        spec = next(row for row in rows if row["kind"] == "DaemonSet")["spec"]["template"]["spec"]
        rights = spec["containers"][0]["securityContext"]["capabilities"]
        of_node = f"container:{node.container.id}"
        self.options: dict[str, Any] = {
            "pid_mode": of_node,
            "network_mode": of_node,
            "cap_drop": rights["drop"],
            "cap_add": rights["add"],
            "read_only": True,
            "volumes": {str(directory): {"bind": "/goldnode", "mode": "ro"}},
        }

    def check(self, *words: str, **more: Any) -> tuple[int, str, str]:
        """Run the program as the script does; exit status and output."""
        command = ["python3", "-I", "-S", "/goldnode/goldnode-node", *CHECK, *words]
        container = self.client.containers.create(
            self.node.image, command, entrypoint="", **{**self.options, **more}
        )
        try:
            container.start()
            status = container.wait(timeout=120)["StatusCode"]
            out, err = (
                container.logs(stdout=stdout, stderr=not stdout).decode()
                for stdout in (True, False)
            )
            return status, out, err
        finally:
            container.remove(force=True)


@pytest.fixture(scope="module")
def pod(
    world: World, docker_client: DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pod]:
    node = world.node("kubernetes", "e2e_kubernetes")
    directory = tmp_path_factory.mktemp("goldnode")
    catalog = load_catalog()
    document = json.dumps(compile_class(read_class("cpu_only", catalog, load_site()))).encode()
    files = {"goldnode-node": program_file.build(), "class.json": document}
    for name, content in files.items():
        (directory / name).write_bytes(content)
    node.put({f"/root/{name}": content for name, content in files.items()})
    yield Pod(docker_client, node, directory)
    node.destroy()


def lasting(text: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(text).items() if key not in PASSING}


@pytest.mark.parametrize("document", [None, "class.json"])
def test_verdict_of_the_pod_is_that_of_the_node(pod: Pod, document: str | None) -> None:
    command = ["python3", "-I", "-S", "/root/goldnode-node", *CHECK]
    named = []
    if document:
        command += ["--class", f"/root/{document}"]
        named = ["--class", f"/goldnode/{document}"]
    own = pod.node.run(*command, check=False)
    status, out, err = pod.check("--root", "/proc/1/root", *named)
    assert err == ""
    assert status == own.rc, out[:3000]
    assert lasting(out) == lasting(own.output)
    assert lasting(out)["findings"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"pid_mode": None},
            "/proc/1/root is the root of this process itself. Leave out --root; in a pod, set hostPID: true.",
        ),
        (
            {"cap_add": ["SYS_CHROOT"]},
            "Give this process the capability SYS_PTRACE, and in a pod hostPID.",
        ),
        (
            {"cap_add": ["SYS_PTRACE"]},
            "/proc/1/root: Operation not permitted. Give this process the capability SYS_CHROOT.",
        ),
    ],
)
def test_missing_right_of_a_pod_is_named(pod: Pod, more: dict[str, Any], message: str) -> None:
    status, out, err = pod.check("--root", "/proc/1/root", **more)
    assert (status, err.count("\n")) == (3, 1)
    assert json.loads(out)["error"].endswith(message)


def test_a_node_without_python_is_named(pod: Pod) -> None:
    pod.node.shell("mv /usr/bin/python3 /usr/bin/python3.away")
    try:
        status, out, err = pod.check("--root", "/proc/1/root")
    finally:
        pod.node.shell("mv /usr/bin/python3.away /usr/bin/python3")
    assert (status, err.count("\n")) == (3, 1)
    assert json.loads(out)["error"].endswith("Install python3 there.")
