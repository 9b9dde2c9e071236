"""A rollout that gives a class its driver, whose module does not build on the kernel of the lock: stopped and rolled back.

Other parts of the node change in the same run and succeed after the transaction has failed. Stand-ins of kernel and driver;
a boot is a restart of the container.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import World
from tests.e2e.support import BIN, environment, inventory, site_yml, succeeded
from tests.simulators import apt_archive

from goldnode.lock.model import load_lock

pytestmark = [pytest.mark.lab, pytest.mark.long]

BARE, STACK, CLASS = "driverless", "debian13_r550", "gains"
BARE_STACK = """\
stack: driverless
description: Debian 13 with a kernel and nothing else
os: {id: debian, version: "13", codename: trixie, architecture: amd64}
exercised: local-archive
archives: [debian]
kernel: {series: "6.12", flavour: amd64}
driver: null
fence: [linux-image-amd64, linux-headers-amd64]
end_of_life: {date: "2030-06-30", source: "Debian 13 LTS until 2030-06-30 (facts/distros.yml, eol)"}
limits: [It has a stand-in of the kernel.]
waiver: null
"""
BEFORE = f"class: {CLASS}\nsimulated: true\nbackend: cpu\nstack: {BARE}\n"
AFTER = (
    f"class: {CLASS}\nsimulated: true\nbackend: cuda\nstack: {STACK}\n"
    "gpu: {model: A100-SXM4-40GB, count: 8}\n"
)
DOCUMENT = """\
schema: goldnode.rollout/1
rollout: gains
class: gains
from: {{stack: driverless, lock: "{origin}"}}
to: {{stack: debian13_r550, lock: "{target}"}}
waves:
- {{name: canary, nodes: 1, soak: 5s}}
- {{name: all, percent: 100%}}
require:
- boot: {{same_cause: 1}}
on_fail: {{do: rollback, what: wave}}
limits: {{planned: 1, failed: 2, total: 2}}
timeout: 30m
"""


def test_canary_whose_module_does_not_build_goes_back_although_other_parts_changed(
    world: World, tmp_path: Path
) -> None:
    nodes = [world.node(name, CLASS, "debian13") for name in ("gains1", "gains2")]
    site = world.site("gains", "trixie")
    assert site.locks is not None
    classes = tmp_path / "catalog/classes"
    for place in (classes, tmp_path / "catalog/stacks"):
        place.mkdir(parents=True)
    (tmp_path / f"catalog/stacks/{BARE}.yml").write_text(BARE_STACK)
    (classes / f"{CLASS}.yml").write_text(BEFORE)
    catalog = Path(f"{site.catalog}{os.pathsep}{tmp_path / 'catalog'}")
    site = dataclasses.replace(site, catalog=catalog)
    world.lock(site, nodes[0], BARE)
    hosts = inventory(tmp_path / "inventory", {CLASS: nodes})
    content = yaml.safe_load((hosts / "hosts.yml").read_text())
    content["all"]["vars"] |= {"goldnode_accepted": [0, 3]}
    (hosts / "hosts.yml").write_text(yaml.safe_dump(content))
    reboot = ("-e", "goldnode_reboot=true", "-e", "goldnode_reboot_batch=100%")
    succeeded(site_yml(hosts, *reboot, site=site))
    world.publish((*apt_archive.DEFAULT, "newer", "broken"))
    world.lock(site, nodes[0], STACK)
    (classes / f"{CLASS}.yml").write_text(AFTER)
    assert site.locks is not None
    bare, new = (load_lock(site.locks / f"{name}.lock.yml").digest for name in (BARE, STACK))
    document = tmp_path / "gains.yml"
    document.write_text(DOCUMENT.format(origin=bare, target=new))
    done = subprocess.run(
        [str(BIN / "goldnode"), "rollout", "run", str(document), "-i", str(hosts)],
        cwd=tmp_path,
        env=environment(site),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    print(done.stdout)  # shown with a failure
    assert done.returncode == 1
    assert "rolled back" in done.stdout
    assert "not goldnode's" not in done.stdout
    assert "too few arguments to function 'pci_resize_resource'" in done.stdout
    found = [json.loads(node.read("/etc/goldnode/class.json")) for node in nodes]
    assert [one["lock"]["digest"] for one in found] == [bare] * 2
    states = [node.run("dpkg", "--audit").output.strip() for node in nodes]
    assert states == ["", ""]
    tried = [" linux-image-6.12.904" in node.read("/var/log/dpkg.log") for node in nodes]
    assert sorted(tried) == [False, True], "the canary alone was touched"
    for node in nodes:
        node.destroy()
