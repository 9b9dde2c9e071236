"""Debian's real container engines on nodes: they retain their owner's settings and run containers through the
toolkit.

Kernel, driver and toolkit are stand-ins. docker, containerd and runc come from the Debian archive that this
machine's apt uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import World
from tests.e2e.support import Site, inventory, site_yml, succeeded
from tests.simulators.hardware import Scenario
from tests.simulators.hardware import node as hardware

from goldnode.core.site import Site as Addresses
from goldnode.core.site import archive_url
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.real

DAEMON = "/etc/docker/daemon.json"
HOOK = "/usr/bin/nvidia-container-runtime-hook"
OWNERS = '{\n  "log-driver": "json-file",\n  "labels": ["rack=7"],\n  "runtimes": {"mine": {"path": "runc"}}\n}\n'
CONTAINERD = """\
# mine
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.example/pause:3.9"   # ours
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/opt/mine"
"""
# An image without a registry: busybox, which is static, and nothing else.
IMAGE = """
apt-get install -y --no-install-recommends busybox-static
mkdir -p /root/image/bin && cp /bin/busybox /root/image/bin/busybox
for name in sh sleep env; do ln -sf busybox /root/image/bin/$name; done
tar -C /root/image -c . | docker import - local:1
"""
Engine = Callable[[str, str], tuple[LabNode, Site]]


@pytest.fixture(scope="module")
def engine(world: World) -> Engine:
    """A function that gives a node in which an engine can run, with its owner's docker on it, and a site with a lock for `stack`."""

    def build(name: str, stack: str) -> tuple[LabNode, Site]:
        release, os_name = {"12": ("bookworm", "debian12"), "13": ("trixie", "debian13")}[
            stack[-2:]
        ]
        node, site = world.node(name, stack, os_name, engine=True), world.site(name, release)
        # The stand-ins of the engines go, so that the real ones are what there is.
        world.publish(withdraw=["docker.io_*", "docker-cli_*", "containerd_*", "runc_*"])
        assert site.site is not None
        text = yaml.safe_load(site.site.read_text())
        text["archives"]["debian-main"] = {"url": archive_url(Addresses(), "debian")}
        site.site.write_text(yaml.safe_dump(text, sort_keys=False))
        world.lock(site, node, stack)
        cli = " docker-cli" if os_name == "debian13" else ""
        source = "/etc/apt/sources.list.d/owner.list"
        node.put({source: f"deb {archive_url(Addresses(), 'debian')} {release} main\n".encode()})
        node.shell(
            f"apt-get update; DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends docker.io{cli}"
        )
        node.shell(IMAGE)
        node.run("rm", source)
        return node, site

    return build


def info(node: LabNode) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        node.run("docker", "info", "--format", "{{json .}}").output.splitlines()[0]
    )
    return found


def pid(node: LabNode, unit: str = "docker") -> str:
    return node.run("systemctl", "show", "-p", "MainPID", "--value", unit).output.strip()


def findings(node: LabNode) -> dict[str, str]:
    """Outcomes of the runtime's items, as the check on the node gives them now."""
    node.run("/usr/lib/goldnode/goldnode-node", "check", check=False)
    verdict = json.loads(node.read("/run/goldnode/verdict.json"))
    return {
        row["id"]: row["outcome"] for row in verdict["findings"] if row["id"].startswith("runtime.")
    }


@pytest.fixture(scope="module")
def docker12(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LabNode, Site, Path]:
    """Debian 12's docker 20.10 with settings of its owner; the tests of this module follow the node in their order."""
    node, site = engine("engine12", "e2e_engine12")
    node.put({DAEMON: OWNERS.encode(), "/etc/containerd/config.toml": CONTAINERD.encode()})
    node.shell("systemctl restart docker")
    return node, site, inventory(tmp_path_factory.mktemp("hosts"), {"e2e_engine12": [node]})


def test_docker_gets_the_toolkit_and_keeps_its_owners_settings(
    docker12: tuple[LabNode, Site, Path],
) -> None:
    node, site, hosts = docker12
    succeeded(site_yml(hosts, site=site))
    found = json.loads(node.read(DAEMON))
    assert list(found) == ["log-driver", "labels", "runtimes"]
    assert found["runtimes"] == {
        "mine": {"path": "runc"},
        "nvidia": {"path": "nvidia-container-runtime"},
    }
    assert node.read("/var/lib/goldnode/backup" + DAEMON) == OWNERS
    assert node.read("/etc/containerd/config.toml") == CONTAINERD, (
        "docker's class has nothing to say to containerd"
    )
    assert str(info(node)["ServerVersion"]).startswith("20.10."), "the real docker of Debian 12"
    assert 'mode = "legacy"' in node.read("/etc/nvidia-container-runtime/config.toml")
    # docker was there before the toolkit, so it had to be restarted to know --gpus.
    for way in ("--runtime=nvidia", "--gpus=all"):
        reported = node.run(
            "docker", "run", "--rm", "--network=none", way, "local:1", "/bin/env"
        ).output
        assert ("GOLDNODE_STANDIN_TOOLKIT=1" in reported) == (way == "--runtime=nvidia"), reported
    assert (
        "GOLDNODE"
        not in node.run("docker", "run", "--rm", "--network=none", "local:1", "/bin/env").output
    )
    assert findings(node) == {
        "runtime.engine": "match",
        "runtime.config": "match",
        "runtime.toolkit": "match",
    }


def test_a_second_run_restarts_nothing(docker12: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = docker12
    before = pid(node)
    again = succeeded(site_yml(hosts, "-vvv", site=site))
    assert (again.changed[node.name], again.executions) == (0, 1)
    assert pid(node) == before


def test_broken_json_is_refused_with_its_place_and_nothing_is_touched(
    docker12: tuple[LabNode, Site, Path],
) -> None:
    node, site, hosts = docker12
    good, before = node.read(DAEMON), pid(node)
    broken = '{\n  "log-driver": "json-file",\n  "debug": true,,\n}\n'
    node.put({DAEMON: broken.encode()})
    node.run("apt-mark", "unhold", "docker.io")
    try:
        run = site_yml(hosts, site=site)
        assert run.rc != 0
        assert f"{DAEMON}:3:17" in run.output
        assert node.read(DAEMON) == broken
        assert "docker.io" not in node.run("apt-mark", "showhold").output, "nothing was touched"
        assert pid(node) == before
    finally:
        node.put({DAEMON: good.encode()})
    succeeded(site_yml(hosts, site=site))
    assert pid(node) == before


def test_nothing_restarts_while_a_gpu_container_runs(docker12: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = docker12
    node.shell(
        "docker run -d --name training --network=none --runtime=nvidia local:1 /bin/sleep 9999"
    )
    before = pid(node)
    # As if the toolkit had been installed just now; and the owner drops the runtime, which docker forgets at once.
    node.shell(f"chmod 755 {HOOK}")
    node.put({DAEMON: OWNERS.encode()})
    node.shell("systemctl reload docker; sleep 1")
    assert "nvidia" not in info(node)["Runtimes"]  # type: ignore[operator]
    run = succeeded(site_yml(hosts, site=site))
    assert "runtime.reload docker.service" in run.output
    (waiting,) = json.loads(
        node.run("/usr/lib/goldnode/goldnode-node", "plan", "--format", "json").output
    )["waiting"]
    assert waiting["subject"] == "docker.service"
    assert (
        "restarts with the next run once the node is drained: container training"
        in waiting["message"]
    )
    assert pid(node) == before, "docker was told by SIGHUP, and not restarted"
    assert "nvidia" in info(node)["Runtimes"]  # type: ignore[operator]
    assert (
        node.run("docker", "inspect", "-f", "{{.State.Running}}", "training").output.strip()
        == "true"
    )
    assert findings(node)["runtime.config"] == "mismatch", "what waits is no pass"
    node.run("docker", "rm", "-f", "training")
    assert "runtime.restart docker.service" in succeeded(site_yml(hosts, "-v", site=site)).output
    assert pid(node) != before
    assert findings(node)["runtime.config"] == "match"
    assert succeeded(site_yml(hosts, site=site)).changed[node.name] == 0


def test_containerd_takes_the_drop_in_and_keeps_its_owners_table(
    docker12: tuple[LabNode, Site, Path], world: World, tmp_path: Path
) -> None:
    node, site, _ = docker12
    world.lock(site, node, "e2e_containerd12")
    hosts = inventory(tmp_path, {"e2e_containerd12": [node]})
    succeeded(site_yml(hosts, site=site))
    text = node.read("/etc/containerd/config.toml")
    assert [
        line for line in text.splitlines() if "inserted by goldnode" not in line
    ] == CONTAINERD.splitlines()
    dump = node.shell("containerd config dump").output
    for wanted in (
        'sandbox_image = "registry.example/pause:3.9"',
        'bin_dir = "/opt/mine"',
        "containerd.runtimes.nvidia]",
        "containerd.runtimes.runc]",
        'BinaryName = "/usr/bin/nvidia-container-runtime"',
    ):
        assert wanted in dump, dump
    # Of runc and of nvidia; containerd's own choice is cgroupfs.
    assert dump.count("SystemdCgroup = true") == 2, dump
    plugins = node.run("ctr", "plugins", "ls").output
    assert [
        line.split()[-1]
        for line in plugins.splitlines()
        if line.startswith("io.containerd.grpc.v1 ") and " cri " in line
    ] == ["ok"], plugins
    assert findings(node)["runtime.config"] == "match"
    assert succeeded(site_yml(hosts, site=site)).changed[node.name] == 0
    # The owner changes his table: the drop-in follows.
    node.put({"/etc/containerd/config.toml": text.replace("pause:3.9", "pause:4").encode()})
    succeeded(site_yml(hosts, site=site))
    assert (
        'sandbox_image = "registry.example/pause:4"' in node.shell("containerd config dump").output
    )


def test_debian_13s_docker_gives_gpus_by_cdi(engine: Engine, tmp_path: Path) -> None:
    node, site = engine("engine13", "e2e_engine13")
    hosts = inventory(tmp_path, {"e2e_engine13": [node]})
    succeeded(site_yml(hosts, site=site))
    assert json.loads(node.read(DAEMON))["features"] == {"cdi": True}
    assert info(node)["CDISpecDirs"] == ["/etc/cdi", "/var/run/cdi"], (
        "docker had to be restarted for that"
    )
    assert 'mode = "cdi"' in node.read("/etc/nvidia-container-runtime/config.toml")
    node.shell("test -L /etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.path")
    assert findings(node)["runtime.cdi"] == "not_verified_here", (
        "this container shows no GPU to make a spec for"
    )

    document = json.loads(node.read("/etc/goldnode/class.json"))
    hardware.install(node, Scenario.of(document))
    assert findings(node)["runtime.cdi"] == "mismatch", "GPUs, and no spec"
    succeeded(site_yml(hosts, site=site))
    assert "nvidia.com/gpu" in node.read("/var/run/cdi/nvidia.yaml")
    reported = node.run(
        "docker",
        "run",
        "--rm",
        "--network=none",
        "--device=nvidia.com/gpu=3",
        "local:1",
        "/bin/env",
    ).output
    assert "GOLDNODE_STANDIN_DEVICE=3" in reported
    everything = {
        "runtime.engine": "match",
        "runtime.config": "match",
        "runtime.toolkit": "match",
        "runtime.cdi": "match",
    }
    assert findings(node) == everything
    assert succeeded(site_yml(hosts, site=site)).changed[node.name] == 0

    # The driver moves and takes a library along that the spec names: found, and made anew.
    node.shell(
        "sed -i 's|hostPath: .*|hostPath: /usr/lib/gone/libcuda.so.1|' /var/run/cdi/nvidia.yaml"
    )
    assert findings(node)["runtime.cdi"] == "mismatch"
    before = pid(node)
    succeeded(site_yml(hosts, site=site))
    assert (findings(node), pid(node)) == (everything, before)
