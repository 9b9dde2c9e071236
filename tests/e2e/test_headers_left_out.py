"""Real kernels of Debian without the headers that nothing on the node needs: a new node, one of an earlier lock, and the way back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.e2e.real import document
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded

from goldnode.lock.model import load_lock, write_lock
from goldnode.node.state.family import builds_modules
from goldnode.testing.lab.nodes import Lab, LabNode, NodeSpec

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
]  # four runs of site.yml and a rollback, per release

OS = {
    "debian12": {"id": "debian", "version": "12", "codename": "bookworm", "architecture": "amd64"},
    "debian13": {"id": "debian", "version": "13", "codename": "trixie", "architecture": "amd64"},
}


def write_catalog(root: Path, os_name: str, *options: str) -> Path:
    """A kernel and nothing else; the class asks for `options`."""
    stack = {
        "stack": "plain",
        "description": "A kernel and nothing else",
        "os": OS[os_name],
        "exercised": "debian-archive",
        "archives": ["debian", "debian-security"],
        "kernel": {"series": {"debian12": "6.1", "debian13": "6.12"}[os_name], "flavour": "amd64"},
        "driver": None,
        "fence": ["linux-image-amd64", "linux-headers-amd64"],
        "end_of_life": {"date": "2028-06-30", "source": "test"},
    }
    node_class = {
        "class": "plain_node",
        "backend": "cpu",
        "stack": "plain",
        "options": list(options),
    }
    for place, content in (("stacks/plain", stack), ("classes/plain_node", node_class)):
        path = root / f"{place}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return root


def lines(node: LabNode, command: str) -> set[str]:
    return set(node.shell(command).output.split())


def installed(node: LabNode) -> set[str]:
    fields = "${Package} ${db:Status-Status}\\n"
    rows = node.run("dpkg-query", "-W", "-f", fields).output.splitlines()
    return {row.split()[0] for row in rows if row.endswith(" installed")}


def compilers(node: LabNode) -> set[str]:
    return {
        name
        for name in installed(node)
        if builds_modules(name) or re.fullmatch(r"gcc-\d+(-x86-64-linux-gnu)?|dkms|make", name)
    }


def locked(site: Site) -> str:
    assert site.locks is not None
    done = goldnode("lock", "plain", "--out", str(site.locks), site=site)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("os_name", list(OS))
def test_node_of_an_earlier_lock_keeps_its_headers_until_a_person_removes_them(
    lab: Lab, tmp_path: Path, os_name: str
) -> None:
    site = Site(
        write_catalog(tmp_path / "catalog", os_name, "kernel-headers"), None, tmp_path / "locks"
    )
    (tmp_path / "locks").mkdir()
    locked(site)
    file = tmp_path / "locks/plain.lock.yml"
    # As locks were before headers became optional: each node gets them.
    rows = [item.model_copy(update={"when": None}) for item in load_lock(file).packages]
    write_lock(load_lock(file).model_copy(update={"packages": rows}), tmp_path / "locks")
    write_catalog(tmp_path / "catalog", os_name)
    headers = {item.name for item in load_lock(file).packages if builds_modules(item.name)}
    image = f"linux-image-{load_lock(file).kernel_release}"
    assert len(headers) >= 3

    node = lab.up([NodeSpec(f"lean-{os_name}", "plain_node", os=os_name, flavour="bare")])[0]
    hosts = inventory(tmp_path / "hosts", {"plain_node": [node]})
    before = compilers(node)
    succeeded(site_yml(hosts, site=site))
    assert compilers(node) >= headers
    compiler = compilers(node) - headers - before
    assert compiler
    assert lines(node, "apt-mark showhold") >= {image, *headers}

    check = goldnode("lock", "plain", "--check", "--out", str(site.locks), site=site)
    assert check.returncode == 0, check.stderr
    assert "unneeded: linux-headers-" in check.stdout + check.stderr
    assert "are left out" in locked(site)
    moved = succeeded(site_yml(hosts, site=site))
    text = " ".join(moved.output.split())
    purge = re.search(r"sudo (apt-get purge --autoremove (?:linux-[\w.+-]+ ?)+)", text)
    assert purge, moved.output[-6000:]
    assert set(purge[1].split()[3:]) >= headers
    assert compilers(node) >= headers | compiler, "nothing is removed"
    assert lines(node, "apt-mark showhold") & headers == set()
    assert image in lines(node, "apt-mark showhold")
    gone = node.run("apt-get", "-s", "autoremove").output
    assert not re.search(r"^Remv ", gone, re.MULTILINE), gone
    assert document(node)["kernel"]["headers"] == ""  # type: ignore[index]
    assert succeeded(site_yml(hosts, site=site)).changed[node.name] == 0

    back = site_yml(
        hosts, "-e", '{"goldnode_accepted": [0, 3]}', site=site, playbook="rollback.yml"
    )
    assert back.rc == 0, back.output[-6000:]
    assert lines(node, "apt-mark showhold") >= {image, *headers}
    succeeded(site_yml(hosts, site=site))

    node.run(
        "env", "DEBIAN_FRONTEND=noninteractive", *purge[1].split()[:2], "-y", *purge[1].split()[2:]
    )
    assert compilers(node) == before
    assert succeeded(site_yml(hosts, site=site)).changed[node.name] == 0, "no run asks for them"


@pytest.mark.parametrize("os_name", list(OS))
def test_new_node_gets_headers_only_if_its_class_asks(
    lab: Lab, tmp_path: Path, os_name: str
) -> None:
    site = Site(write_catalog(tmp_path / "catalog", os_name), None, tmp_path / "locks")
    (tmp_path / "locks").mkdir()
    locked(site)
    node = lab.up([NodeSpec(f"new-{os_name}", "plain_node", os=os_name, flavour="bare")])[0]
    hosts = inventory(tmp_path / "hosts", {"plain_node": [node]})
    before = installed(node)
    succeeded(site_yml(hosts, site=site))
    release = str(document(node)["kernel"]["release"])  # type: ignore[index]
    assert node.run("test", "-s", f"/boot/initrd.img-{release}").rc == 0
    assert f"linux-image-{release}" in installed(node) - before
    assert compilers(node) - before == set()
    again = succeeded(site_yml(hosts, "-vvv", site=site))
    assert (again.changed[node.name], again.executions) == (0, 1)

    write_catalog(tmp_path / "catalog", os_name, "kernel-headers")
    locked(site)
    succeeded(site_yml(hosts, site=site))
    assert f"linux-headers-{release}" in lines(node, "apt-mark showhold")
    assert node.run("test", "-e", f"/lib/modules/{release}/build/Makefile").rc == 0
    assert "linux-headers-amd64" not in installed(node), "no metapackage"
    assert succeeded(site_yml(hosts, site=site)).changed[node.name] == 0
