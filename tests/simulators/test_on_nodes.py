"""Tests of the stand-ins on nodes with apt alone: they must behave like the real packages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient
from tests.simulators.apt_archive import BROKEN, KEY, SECURITY_UPDATES, Archive, publish

from goldnode.testing.lab.nodes import Lab, LabNode, LabServer, NodeSpec

pytestmark = pytest.mark.lab
APT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
# The default run installs these by site.yml: molecule's debian13, and tests/e2e/test_standins.py (the open flavour).
IN_SITE = pytest.mark.long
CODENAMES = {"debian12": "bookworm", "debian13": "trixie"}


class World:
    """One archive, and a new node for each test."""

    def __init__(self, lab: Lab, archive: Archive, server: LabServer) -> None:
        self.lab, self.archive, self.server = lab, archive, server

    def node(self, os_name: str, *, nvidia: bool = False) -> LabNode:
        """Return a new node with the archive as its only source."""
        for old in self.lab.nodes():
            old.destroy()
        (node,) = self.lab.up([NodeSpec("node1", "standins", os=os_name, flavour="warm")])
        sources = self.archive.sources(self.server.url, CODENAMES[os_name], nvidia=nvidia)
        node.put({f"/etc/apt/keyrings/{KEY}": self.archive.key.read_bytes()})
        node.put({"/etc/apt/sources.list.d/standin.sources": sources.encode()})
        return node


@pytest.fixture(scope="module")
def world(docker_client: DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    state = tmp_path_factory.mktemp("standins")
    lab = Lab("standins", docker_client, state=state)
    lab.down()
    archive = publish(state / "archive")
    try:
        yield World(lab, archive, lab.serve(archive.directory))
    finally:
        lab.down()


def install(node: LabNode, *packages: str) -> str:
    """Install packages with apt and return its output."""
    node.run("apt-get", "update", env=APT)
    return node.run(
        "apt-get", "install", "-y", "--no-install-recommends", *packages, env=APT, check=False
    ).output


@pytest.mark.parametrize(
    ("os_name", "release", "packages", "module", "version", "library"),
    [
        pytest.param(
            "debian12", "6.1.0-902-amd64", ["nvidia-kernel-dkms", "libcuda1", "nvidia-smi", "nvidia-persistenced"],
            "nvidia-current", "535.309.01", "nvidia/current/libnvidia-ml.so.535.309.01", id="535",
        ),
        pytest.param(
            "debian12", "6.1.0-901-amd64", ["nvidia-tesla-470-kernel-dkms", "libnvidia-tesla-470-cuda1", "nvidia-tesla-470-smi"],
            "nvidia-tesla-470", "470.256.02", "nvidia/tesla-470/libnvidia-ml.so.470.256.02", id="470",
        ),
        pytest.param(
            "debian12", "6.1.0-902-amd64", ["nvidia-open"],
            "nvidia", "580.178.04", "libnvidia-ml.so.580.178.04", id="580-open", marks=IN_SITE,
        ),
        pytest.param(
            "debian13", "6.12.94+deb13-amd64", ["nvidia-kernel-dkms", "libcuda1", "nvidia-smi"],
            "nvidia-current", "550.163.01", "nvidia/current/libnvidia-ml.so.550.163.01", id="550", marks=IN_SITE,
        ),
    ],
)  # fmt: skip
def test_family_installs_and_its_module_is_built(
    world: World,
    os_name: str,
    release: str,
    packages: list[str],
    module: str,
    version: str,
    library: str,
) -> None:
    node = world.node(os_name, nvidia=packages == ["nvidia-open"])
    reported = install(node, f"linux-image-{release}", f"linux-headers-{release}", *packages)
    assert "+standin" in reported
    assert node.run("modinfo", "-k", release, "-F", "version", module).output.strip() == version, (
        reported
    )
    vermagic = node.run("modinfo", "-k", release, "-F", "vermagic", module).output
    assert vermagic.startswith(f"{release} ")
    found = node.run("readlink", "-f", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").output.strip()
    assert found == f"/usr/lib/x86_64-linux-gnu/{library}"
    smi = node.run("nvidia-smi", check=False)
    assert smi.rc == 9
    assert "stand-in" in smi.output


@pytest.mark.parametrize(
    ("os_name", "release"), [("debian12", "6.1.0-901-amd64"), ("debian13", "6.12.94+deb13-amd64")]
)
def test_initramfs_holds_nouveau_only_when_forced(world: World, os_name: str, release: str) -> None:
    node = world.node(os_name)
    install(node, f"linux-image-{release}")
    image = f"/boot/initrd.img-{release}"
    assert "nouveau" not in node.run("lsinitramfs", image).output
    node.shell(f"echo nouveau >> /etc/initramfs-tools/modules; update-initramfs -u -k {release}")
    assert re.search(r"/nouveau\.ko", node.run("lsinitramfs", image).output)
    node.run("apt-get", "purge", "-y", f"linux-image-{release}", env=APT)
    assert node.run("sh", "-c", "ls /boot").output == ""


def test_security_offers_newer_and_base_packages_move(world: World) -> None:
    node = world.node("debian12")
    install(
        node,
        "linux-image-amd64=6.1.901-1+standin1",
        "linux-image-6.1.0-901-amd64",
        "libstandin-base=1.0-1+standin1",
        "nvidia-modprobe=535.161.07-1~deb12u1+standin1",
    )
    offered = node.run("apt-get", "-s", "dist-upgrade", env=APT).output
    moved = set(re.findall(r"^Inst (\S+)", offered, re.MULTILINE))
    assert moved == {
        "linux-image-amd64",
        "linux-image-6.1.0-902-amd64",
        "libstandin-base",
        "nvidia-modprobe",
    }
    tried = node.run("unattended-upgrade", "--dry-run", "-v", env=APT).output
    assert re.search(r"Packages that will be upgraded: .*libstandin-base", tried)


def test_no_module_builds_for_the_broken_kernel(world: World) -> None:
    publish(world.archive.directory, groups={SECURITY_UPDATES, BROKEN})
    try:
        node = world.node("debian12")
        release = "6.1.0-904-amd64"
        reported = install(
            node, f"linux-image-{release}", f"linux-headers-{release}", "nvidia-kernel-dkms"
        )
    finally:
        publish(world.archive.directory)
    assert "Bad return status for module build" in reported
    assert node.run("modinfo", "-k", release, "nvidia-current", check=False).rc != 0
    log = node.run("cat", "/var/lib/dkms/nvidia-current/535.309.01/build/make.log").output
    assert "too few arguments to function" in log


def test_a_wrong_key_is_refused_by_apt(world: World) -> None:
    publish(world.archive.directory, key="wrong")
    try:
        node = world.node("debian12")
        reported = node.run("apt-get", "update", "--error-on=any", env=APT, check=False)
    finally:
        publish(world.archive.directory)
    assert reported.rc != 0
    assert "NO_PUBKEY" in reported.output


def test_requests_are_counted(world: World) -> None:
    node = world.node("debian13")
    before = len(world.server.requests())
    node.run("apt-get", "update", env=APT)
    new = world.server.requests()[before:]
    assert "GET /debian/dists/trixie/InRelease 200" in new
    node.run("true")
    assert len(world.server.requests()) == before + len(new)


def test_a_restart_is_a_boot_and_a_snapshot_keeps_what_was_installed(
    world: World, docker_client: DockerClient
) -> None:
    node = world.node("debian12")
    node.shell("touch /run/before; touch /root/kept")
    node.restart()
    assert node.run("test", "-e", "/run/before", check=False).rc != 0
    reference = node.snapshot({"test": "snapshot"})
    try:
        node.destroy()
        (copy,) = world.lab.up([NodeSpec("node1", "standins", image=reference)])
        assert copy.run("test", "-e", "/root/kept").rc == 0
        copy.destroy()
    finally:
        docker_client.images.remove(reference)


def test_down_leaves_nothing(docker_client: DockerClient, tmp_path: Path) -> None:
    lab = Lab("standins-down", docker_client, state=tmp_path)
    lab.up([NodeSpec("node1", "standins", flavour="warm")])
    assert len(lab.down()) == 3
    assert not lab.directory.exists()
    wanted: dict[str, str | list[str] | bool] = {"label": f"goldnode.lab={lab.name}"}
    assert not docker_client.containers.list(all=True, filters=wanted)
    assert not docker_client.networks.list(filters=wanted)
