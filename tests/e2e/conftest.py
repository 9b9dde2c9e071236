"""Nodes, archives and sites for the end-to-end tests, created once per session and removed at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient
from tests.e2e.support import Services, Site, goldnode
from tests.simulators import apt_archive

from goldnode.testing.lab import images
from goldnode.testing.lab.images import RELEASES
from goldnode.testing.lab.nodes import Lab, LabNode, LabServer, NodeSpec

CATALOG = Path(__file__).parent / "catalog"


@dataclass
class World:
    """A lab with a stand-in archive that its nodes, and the locks, take their packages from."""

    lab: Lab
    directory: Path
    server: LabServer

    def publish(
        self, groups: Collection[str] = apt_archive.DEFAULT, **options: object
    ) -> apt_archive.Archive:
        """Publish the archive anew; the server goes on serving it."""
        return apt_archive.publish(self.directory / "archive", groups=groups, **options)  # type: ignore[arg-type]

    def node(
        self,
        name: str,
        group: str,
        os_name: str = "debian12",
        *,
        engine: bool = False,
        extra: Collection[str] = (),
    ) -> LabNode:
        """A fresh node with compiler and initramfs-tools, and no packages of any stack; `engine`: a container engine can run in it.

        `extra`: further packages of Debian's, which are in its image from the beginning.
        """
        for found in self.lab.nodes():
            if found.name == name:
                found.destroy()
        image = (
            images.ensure(self.lab.client, os_name, "warm", say=self.lab.say, extra=sorted(extra))
            if extra
            else None
        )
        node = self.lab.up(
            [NodeSpec(name, group, os=os_name, flavour="warm", image=image, engine=engine)]
        )[0]
        self.status(node).write_text(node.read("/var/lib/dpkg/status"))
        return node

    def status(self, node: LabNode) -> Path:
        """What dpkg knew on the node when it was fresh: locks are resolved on top of that."""
        return self.directory / f"{node.name}.status"

    def site(self, name: str, release: str = "bookworm") -> Site:
        """A site on this archive with a directory of locks of its own."""
        archive = self.publish()
        locks = self.directory / f"locks-{name}"
        locks.mkdir(exist_ok=True)
        path = archive.write_site(
            self.directory / f"{name}-site.yml", self.server.url, release=release
        )
        return Site(catalog=CATALOG, site=path, locks=locks)

    def lock(self, site: Site, node: LabNode, *stacks: str) -> None:
        """Resolve stacks for what the archive has now, on top of what the node had when it was fresh."""
        for stack in stacks:
            done = goldnode(
                "lock",
                stack,
                "--upgrade",
                "--on",
                str(self.status(node)),
                "--out",
                str(site.locks),
                site=site,
            )
            assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def world(docker_client: DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("world")
    lab = Lab(f"e2e-{os.getpid()}", docker_client, state=directory)
    try:
        apt_archive.publish(directory / "archive")
        yield World(lab, directory, lab.serve(directory / "archive"))
    finally:
        lab.down()


@pytest.fixture(scope="module")
def make(world: World) -> Iterator[Callable[..., tuple[LabNode, Site]]]:
    """A function that gives a fresh node and a site with locks for the stacks named. The nodes go with their module: each that runs takes
    several of the kernel's inotify instances, of which a machine may have 128 in all."""

    def build(
        name: str,
        group: str,
        *stacks: str,
        os_name: str = "debian12",
        groups: Collection[str] = apt_archive.DEFAULT,
    ) -> tuple[LabNode, Site]:
        release = RELEASES[os_name].calls_itself
        node, site = world.node(name, group, os_name), world.site(name, release)
        world.publish(groups)
        world.lock(site, node, *stacks)
        return node, site

    yield build
    for node in world.lab.nodes():
        if node.name != SERVICES_NODE:  # which several modules share
            node.destroy()


# A scheduler and a monitoring system, as Debian packages them: one node is controller and compute node, and watches itself.
SERVICES_NODE = "services"
SERVICES = (
    "curl",
    "munge",
    "prometheus",
    "prometheus-node-exporter",
    "slurm-client",
    "slurmctld",
    "slurmd",
)


@pytest.fixture(scope="session")
def services(world: World) -> Iterator[Services]:
    """A converged node of class e2e_serve; its daemons do not run yet."""
    node, site = world.node(SERVICES_NODE, "e2e_serve", extra=SERVICES), world.site("services")
    node.run(
        "systemctl",
        "disable",
        "--now",
        *(f"{name}.service" for name in SERVICES if name not in ("curl", "slurm-client")),
    )
    world.lock(site, node, "e2e_plain")
    found = Services(node, site, world.directory / "services")
    found.converge("e2e_serve")
    yield found
    node.destroy()


@pytest.fixture(scope="module")
def lab(docker_client: DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of the module's own, for tests with real packages."""
    directory = tmp_path_factory.mktemp("real")
    found = Lab(f"real-{os.getpid()}-{directory.name}", docker_client, state=directory)
    try:
        yield found
    finally:
        found.down()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """This machine's own archives, and locks made now: a committed lock may hold what Debian has moved on from."""
    return Site(catalog=CATALOG, locks=tmp_path_factory.mktemp("locks"))
