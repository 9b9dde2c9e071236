"""site.yml on Debian 14 before its release: its kernel in three packages, dracut, apt 3.3, Python 3.14, Docker 28."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docker import DockerClient
from tests.e2e.real import document
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded

from goldnode.core.site import load_site
from goldnode.testing.lab import images
from goldnode.testing.lab.nodes import Lab, LabNode, NodeSpec

PROGRAM = "/usr/lib/goldnode/goldnode-node"
pytestmark = [pytest.mark.real, pytest.mark.long]


def test_a_node_of_debian_14(
    lab: Lab, site: Site, docker_client: DockerClient, tmp_path: Path
) -> None:
    """Converged, converged again without a change, drifted, repaired, and taken back."""
    own = tmp_path / "goldnode-site.yml"
    own.write_text("archives: {debian: {accept_expired: true}}\n")
    site = Site(site.catalog, own, site.locks)
    done = goldnode("lock", "debian14_cpu", "--out", str(site.locks), site=site)
    assert done.returncode == 0, done.stderr
    image = images.ensure(docker_client, "debian14", "bare", say=lab.say, site=load_site(own))
    node = lab.up([NodeSpec("real14", "e2e_forky", os="debian14", image=image, engine=True)])[0]
    hosts = inventory(tmp_path / "hosts", {"e2e_forky": [node]})
    succeeded(site_yml(hosts, site=site))
    release = str(document(node)["kernel"]["release"])  # type: ignore[index]
    assert node.run("test", "-s", f"/boot/initrd.img-{release}").rc == 0
    again = succeeded(site_yml(hosts, "-vvv", site=site))
    assert (again.changed[node.name], again.executions) == (0, 1)
    assert judged(node) == []

    # No package owns the kernel in /boot: a script of linux-image makes it. So the verdict is all that shows that it is gone.
    node.run("rm", f"/boot/vmlinuz-{release}")
    node.run("apt-mark", "unhold", "docker.io")
    assert judged(node) == [
        "stack.holds: mismatch: 1 free: docker.io",
        f"boot.kernel: mismatch: /boot/vmlinuz-{release} is missing",
    ]
    repaired = succeeded(site_yml(hosts, site=site))
    assert f"kernel.restore {release}" in repaired.output
    assert judged(node) == []


def judged(node: LabNode) -> list[str]:
    """Findings of a check that are wrong, beside what a container cannot show."""
    verdict = json.loads(
        node.run(PROGRAM, "check", "--format", "json", "--no-write", check=False).output
    )
    return [
        f"{row['id']}: {row['outcome']}: {row['got']}"
        for row in verdict["findings"]
        if row["outcome"] in ("mismatch", "could_not_read") and row["id"] != "boot.pending"
    ]
