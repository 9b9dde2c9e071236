"""A node that installs its stack only from the site's mirror, without other routes, after upstream dropped
the locked versions.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import World
from tests.e2e.support import Run, Site, goldnode, inventory, site_yml, succeeded

from goldnode.lock.model import Lock, load_lock
from goldnode.lock.publication import Publication, publications
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

STACK = "debian12_r535"
Make = Callable[..., tuple[LabNode, Site]]


@dataclass
class Mirrored:
    """A node, a site whose mirror is served to it, and the lock."""

    world: World
    node: LabNode
    site: Site
    hosts: Path
    directory: Path
    lock: Lock

    def mirror(self, *arguments: str) -> str:
        done = goldnode("mirror", *arguments, site=self.site)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def fetch(self) -> str:
        return self.mirror("fetch", STACK, "--on", str(self.world.status(self.node)))

    def run(self, *arguments: str) -> Run:
        return site_yml(self.hosts, *arguments, site=self.site)

    def packages(self) -> str:
        return self.node.run(
            "dpkg-query", "-W", "-f", "${Package}=${Version} ${db:Status-Status}\n"
        ).output

    def publication(self) -> Publication:
        return Publication.read(publications(self.directory, STACK)[0])


@pytest.fixture(scope="module")
def mirrored(
    world: World, make: Make, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mirrored]:
    """The tests of this module follow one node through its life in their order."""
    node, site = make("mirrored", "e2e_r535", STACK)
    directory, keys = tmp_path_factory.mktemp("mirror"), tmp_path_factory.mktemp("keys")
    server = world.lab.serve(directory, "mirror")
    assert site.site is not None
    assert site.locks is not None
    done = goldnode("mirror", "key", "--out", str(keys / "own"), site=site)
    assert done.returncode == 0, done.stderr
    text = yaml.safe_load(site.site.read_text())
    own = {
        name: str(keys / "own" / file)
        for name, file in (("key", "mirror.asc"), ("signing_key", "mirror-signing.asc"))
    }
    text["mirror"] = {"directory": str(directory), "url": server.url, **own}
    path = site.site.with_name("mirrored-site-with-mirror.yml")
    path.write_text(yaml.safe_dump(text))
    hosts = inventory(tmp_path_factory.mktemp("inventory"), {"e2e_r535": [node]})
    lock = load_lock(site.locks / f"{STACK}.lock.yml")
    yield Mirrored(
        world, node=node, site=replace(site, site=path), hosts=hosts, directory=directory, lock=lock
    )
    server.destroy()
    world.publish()


def test_a_class_that_is_not_in_the_mirror_is_refused(mirrored: Mirrored) -> None:
    before = mirrored.packages()
    run = mirrored.run()
    assert run.rc != 0
    assert f'the lock of stack "{STACK}". Run `goldnode mirror {STACK}`' in run.output.replace(
        '\\"', '"'
    )
    assert mirrored.packages() == before
    assert mirrored.node.run("ls", "/etc/goldnode", check=False).rc != 0


def test_a_truncated_package_is_refused_by_the_node_and_repaired_here(mirrored: Mirrored) -> None:
    """The first run finds a mirror whose disk has lost half of a package."""
    mirrored.fetch()
    before = mirrored.packages()
    kernel = next(
        row for row in mirrored.publication().packages if row["name"].startswith("linux-image-")
    )
    file = mirrored.publication().directory / kernel["pool"]
    file.chmod(0o644)
    with file.open("r+b") as opened:
        opened.truncate(kernel["size"] // 2)
    run = mirrored.run()
    assert run.rc != 0
    assert "a locked package cannot be downloaded; no package was changed" in run.output
    assert mirrored.packages() == before
    found = goldnode("mirror", "verify", site=mirrored.site)
    assert found.returncode == 1
    assert (
        f"store: {mirrored.directory}/store/sha256/{kernel['sha256'][:2]}/{kernel['sha256']}: has SHA-256"
        in found.stdout
    )
    assert "no faults" in mirrored.mirror("verify", "--repair")


def test_node_installs_from_the_mirror_when_upstream_has_no_packages(mirrored: Mirrored) -> None:
    node, world = mirrored.node, mirrored.world
    world.publish(withdraw=["*"])
    try:
        node.container.reload()
        inside = [
            "nsenter",
            "--target",
            str(node.container.attrs["State"]["Pid"]),
            "--net",
        ]  # the node itself may not change its routes
        subprocess.run([*inside, "ip", "route", "del", "default"], check=True)
        assert node.run("ip", "route", "get", "192.0.2.1", check=False).rc != 0, (
            "the node is to have no route but to its own network"
        )
        asked = len(world.server.requests())
        succeeded(mirrored.run())
        assert world.server.requests()[asked:] == [], "nothing is asked of the archive"
    finally:
        world.publish()
    have = set(mirrored.packages().splitlines())
    for item in mirrored.lock.stack_set(nvswitch=False):
        assert f"{item.name}={item.version} installed" in have
    sources = node.run("sh", "-c", "cat /etc/apt/sources.list.d/goldnode-*.sources").output
    assert (
        f"URIs: {yaml.safe_load(Path(str(mirrored.site.site)).read_text())['mirror']['url']}/stacks/{STACK}/"
        in sources
    )
    assert sources.count("Types: deb") == 1


def test_second_run_changes_nothing_and_dist_upgrade_moves_no_package(mirrored: Mirrored) -> None:
    again = succeeded(mirrored.run())
    assert again.changed["mirrored"] == 0
    # Held whole: an upgrade with every source the node has moves none of it.
    simulated = mirrored.node.run("apt-get", "-s", "-y", "dist-upgrade").output
    assert not [
        item.name
        for item in mirrored.lock.stack_set(nvswitch=False)
        if f"Inst {item.name} " in simulated
    ]


def test_the_nodes_own_sources_are_its_own_matter(mirrored: Mirrored) -> None:
    """What the mirror has not is not taken from elsewhere, and indexes of other sources are left where they are."""
    node = mirrored.node
    own = "/var/lib/apt/lists/own.example_debian_dists_bookworm_main_binary-amd64_Packages"
    node.run("sh", "-c", f": > {own}")
    node.run("apt-mark", "unhold", "nvidia-smi")
    node.run("dpkg", "--purge", "--force-depends", "nvidia-smi")
    node.run("sh", "-c", "rm -f /var/lib/apt/lists/*goldnode*")
    succeeded(mirrored.run())
    assert node.run("test", "-e", own, check=False).rc == 0
    assert "nvidia-smi" in node.run("apt-mark", "showhold").output


def test_a_mirror_that_is_mounted_on_the_node_serves_as_well(mirrored: Mirrored) -> None:
    """As an air gap has it: a disk or a share with the mirror on it, named by a file address."""
    node = mirrored.node
    files = [path for path in (mirrored.directory / "stacks").rglob("*") if path.is_file()]
    node.put(
        {f"/srv/mirror/{path.relative_to(mirrored.directory)}": path.read_bytes() for path in files}
    )
    assert mirrored.site.site is not None
    text = yaml.safe_load(mirrored.site.site.read_text())
    text["mirror"]["url"] = "file:///srv/mirror"
    path = mirrored.site.site.with_name("mounted-site.yml")
    path.write_text(yaml.safe_dump(text))
    node.run("apt-mark", "unhold", "nvidia-smi")
    node.run("dpkg", "--purge", "--force-depends", "nvidia-smi")
    mounted = replace(mirrored, site=replace(mirrored.site, site=path))
    succeeded(mounted.run())
    assert (
        "URIs: file:///srv/mirror/stacks/"
        in node.run("sh", "-c", "cat /etc/apt/sources.list.d/goldnode-*.sources").output
    )
    assert "nvidia-smi" in node.run("apt-mark", "showhold").output
    assert succeeded(mounted.run()).changed["mirrored"] == 0
