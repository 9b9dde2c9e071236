"""Prebuilt modules: from a lock to a package in the site's mirror, to nodes without headers and DKMS, and
back again.

Kernels and drivers are stand-ins. The compiler in the builder root (the nodes' own image), dkms, apt and
depmod are real.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import World
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded
from tests.simulators import apt_archive

from goldnode.testing.lab import images
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

STACK = "debian12_r535"
RELEASE = "6.1.0-902-amd64"
PACKAGE = f"nvidia-current-modules-{RELEASE}"
SOURCES = (
    "nvidia-kernel-dkms",
    f"linux-headers-{RELEASE}",
    "linux-headers-6.1.0-902-common",
    "linux-kbuild-6.1",
    "linux-compiler-gcc-12-x86",
)


@dataclass
class Shop:
    """A node, a site with a mirror, and the same site with prebuilt modules."""

    node: LabNode
    dkms: Site
    prebuilt: Site
    root: Path
    hosts: Path
    status: Path

    def modules(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return goldnode("modules", *arguments, "--on", str(self.root), site=self.prebuilt)


@pytest.fixture(scope="module")
def shop(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("prebuilt")
    node, site = world.node("prebuilt", "e2e_r535"), world.site("prebuilt")
    world.publish({*apt_archive.DEFAULT, apt_archive.BROKEN})
    root = directory / "root.tar"
    container = world.lab.client.containers.create(
        images.ensure(world.lab.client, "debian12", "warm", say=print), ["true"]
    )
    try:
        with root.open("wb") as out:
            for block in container.export():
                out.write(block)  # type: ignore[arg-type]  # bytes, whatever the stubs say
    finally:
        container.remove()
    keys = directory / "keys"
    assert goldnode("mirror", "key", "--out", str(keys), site=site).returncode == 0
    mirror = directory / "mirror"
    mirror.mkdir()
    server = world.lab.serve(mirror, "mirror")
    assert site.site is not None
    found = yaml.safe_load(site.site.read_text())
    found["mirror"] = {
        "directory": str(mirror),
        "url": server.url,
        "key": str(keys / "mirror.asc"),
        "signing_key": str(keys / "mirror-signing.asc"),
    }
    sites = {}
    for kind in ("dkms", "prebuilt"):
        path = directory / f"{kind}.yml"
        path.write_text(yaml.safe_dump({**found, "modules": kind}))
        sites[kind] = Site(catalog=site.catalog, site=path, locks=site.locks)
    # The stand-in archive has a kernel for which nothing compiles: the lock is of the one before.
    world.publish()
    world.lock(site, node, STACK)
    world.publish({*apt_archive.DEFAULT, apt_archive.BROKEN})
    try:
        yield Shop(
            node,
            dkms=sites["dkms"],
            prebuilt=sites["prebuilt"],
            root=root,
            hosts=inventory(directory / "hosts", {"e2e_r535": [node]}),
            status=world.status(node),
        )
    finally:
        node.destroy()


def installed(node: LabNode) -> set[str]:
    """Names of every package that dpkg has anything of."""
    return set(node.shell("dpkg-query -W -f '${Package}\\n'").output.split())


def test_a_class_without_built_modules_is_refused_and_no_node_is_touched(shop: Shop) -> None:
    before = shop.node.shell(
        "find / -xdev -newer /etc/hostname -type f -path '/etc/*' | sort | xargs md5sum"
    ).output
    run = site_yml(shop.hosts, site=shop.prebuilt)
    assert run.rc != 0
    assert "goldnode modules build debian12_r535" in run.output
    assert (
        shop.node.shell(
            "find / -xdev -newer /etc/hostname -type f -path '/etc/*' | sort | xargs md5sum"
        ).output
        == before
    )


def test_build_publishes_a_package_that_depends_on_exactly_this_kernel(shop: Shop) -> None:
    done = shop.modules("build", STACK)
    assert done.returncode == 0, done.stderr
    assert shop.prebuilt.locks is not None
    built = yaml.safe_load((shop.prebuilt.locks / f"{STACK}.modules.yml").read_text())
    assert built["package"]["name"] == PACKAGE
    assert set(SOURCES) <= set(built["replaces"])
    again = shop.modules("build", STACK)
    assert again.returncode == 0, again.stderr
    assert "building" not in again.stderr, "what is in the cache is not compiled again"
    assert yaml.safe_load((shop.prebuilt.locks / f"{STACK}.modules.yml").read_text()) == built


def test_failed_module_build_is_a_row_with_the_compiler_error(shop: Shop) -> None:
    done = shop.modules(
        "matrix", STACK, "--kernel", "6.1.0-904-amd64", "--kernel", RELEASE, "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    rows = {row["kernel"]: row for row in json.loads(done.stdout)["results"]}
    assert rows[RELEASE]["ok"]
    assert not rows["6.1.0-904-amd64"]["ok"]
    assert "error: too few arguments to function" in rows["6.1.0-904-amd64"]["line"]
    reported = shop.modules("matrix", STACK, "--flavour", "open", "--format", "markdown")
    assert "cannot be installed" in reported.stdout
    assert "nvidia-open-kernel-dkms" in reported.stdout


def test_from_dkms_to_built_modules_and_nothing_is_left(shop: Shop) -> None:
    node = shop.node
    done = goldnode("mirror", STACK, "--on", str(shop.status), site=shop.dkms)
    assert done.returncode == 0, done.stderr
    succeeded(site_yml(shop.hosts, site=shop.dkms))
    assert (
        "/updates/dkms/"
        in node.run("modinfo", "-k", RELEASE, "-F", "filename", "nvidia-current").output
    )
    assert set(SOURCES) <= installed(node)
    succeeded(site_yml(shop.hosts, site=shop.prebuilt))
    proved(node)
    again = succeeded(site_yml(shop.hosts, "-vvv", site=shop.prebuilt))
    assert (again.changed[node.name], again.executions) == (0, 1)


def test_a_module_that_was_taken_away_is_put_there_again(shop: Shop) -> None:
    shop.node.shell(
        f"rm /lib/modules/{RELEASE}/updates/goldnode/nvidia-current.ko && depmod {RELEASE}"
    )
    verdict = json.loads(
        shop.node.run(
            "/usr/lib/goldnode/goldnode-node",
            "check",
            "--no-write",
            "--format",
            "json",
            check=False,
        ).output
    )
    wrong = {row["id"]: row for row in verdict["findings"] if row["outcome"] == "mismatch"}
    assert "installs the module" in wrong["driver.module_file"]["remedy"]
    succeeded(site_yml(shop.hosts, site=shop.prebuilt))
    proved(shop.node)


def test_and_back_to_dkms(shop: Shop) -> None:
    node = shop.node
    succeeded(site_yml(shop.hosts, site=shop.dkms))
    assert (
        "/updates/dkms/"
        in node.run("modinfo", "-k", RELEASE, "-F", "filename", "nvidia-current").output
    )
    assert PACKAGE not in installed(node)
    assert node.run("test", "-e", f"/lib/modules/{RELEASE}/updates/goldnode", check=False).rc != 0
    assert succeeded(site_yml(shop.hosts, site=shop.dkms)).changed[node.name] == 0
    succeeded(site_yml(shop.hosts, "-e", "goldnode_state=absent", site=shop.dkms))
    assert not {
        name for name in installed(node) if name.startswith(("nvidia", "linux-image-6.1.0-902"))
    }


def proved(node: LabNode) -> None:
    """The module is the package's, and nothing of what built it is on the node."""
    info = node.run("modinfo", "-k", RELEASE, "nvidia-current").output
    assert f"/lib/modules/{RELEASE}/updates/goldnode/nvidia-current.ko" in info
    assert f"vermagic:       {RELEASE} " in info
    have = installed(node)
    assert PACKAGE in have
    assert not have & set(SOURCES)
    # || true: ls fails where nothing is left, which is what is wanted; the assertion is on what it lists.
    assert (
        node.shell(
            "ls -d /usr/src/* /var/lib/dkms/nvidia* /lib/modules/*/updates/dkms 2>/dev/null || true"
        ).output.strip()
        == ""
    )
    assert node.run("dpkg", "--audit").output.strip() == ""
