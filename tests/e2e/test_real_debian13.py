"""site.yml on Debian 13: the 550 driver on the newest kernel, and the in-tree drivers of AMD and Intel."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.real import converge, document, prove
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded

from goldnode.lock.model import load_lock
from goldnode.testing.lab.nodes import Lab, NodeSpec

pytestmark = pytest.mark.real


@pytest.mark.long  # eight minutes of compiling on two cores; what is Debian 13's alone beside the driver is in the test below
def test_the_driver_is_built_on_debian_13(lab: Lab, site: Site, tmp_path: Path) -> None:
    assert site.locks is not None
    done = goldnode("lock", "debian13_r550", "--out", str(site.locks), site=site)
    assert done.returncode == 0, done.stderr
    lock = load_lock(site.locks / "debian13_r550.lock.yml")
    node = lab.up([NodeSpec("real13", "e2e_r550", os="debian13", flavour="bare-ccache")])[0]
    converge(node, "e2e_r550", site, tmp_path)
    assert prove(node) == (lock.kernel_release, lock.driver_version)


def test_amds_in_tree_driver_on_debian_13(lab: Lab, site: Site, tmp_path: Path) -> None:
    done = goldnode("lock", "debian13_rocm", "--out", str(site.locks), site=site)
    assert done.returncode == 0, done.stderr
    node = lab.up([NodeSpec("rocm13", "e2e_rocm", os="debian13", flavour="bare", engine=True)])[0]
    hosts = inventory(tmp_path, {"e2e_rocm": [node]})
    succeeded(site_yml(hosts, site=site))
    release = str(document(node)["kernel"]["release"])  # type: ignore[index]
    assert "amdgpu" in node.run("modinfo", "-k", release, "-F", "filename", "amdgpu").output
    assert succeeded(site_yml(hosts, site=site)).changed["rocm13"] == 0


@pytest.mark.long  # two runs of site.yml; the test of AMD's driver goes the same way
def test_intels_in_tree_driver_on_debian_13(lab: Lab, site: Site, tmp_path: Path) -> None:
    done = goldnode("lock", "debian13_intel", "--out", str(site.locks), site=site)
    assert done.returncode == 0, done.stderr
    node = lab.up([NodeSpec("intel13", "e2e_intel", os="debian13", flavour="bare")])[0]
    hosts = inventory(tmp_path, {"e2e_intel": [node]})
    succeeded(site_yml(hosts, site=site))
    release = str(document(node)["kernel"]["release"])  # type: ignore[index]
    aliases = node.run("modinfo", "-k", release, "-F", "alias", "xe").output
    assert "d0000e20b" in aliases.lower(), "the kernel lists an Arc B580"
    firmware = node.run("sh", "-c", "ls /lib/firmware/xe/bmg_guc_70.bin*").output
    assert "bmg_guc_70.bin" in firmware
    second = succeeded(site_yml(hosts, site=site))
    assert second.changed["intel13"] == 0, second.output[-6000:]
