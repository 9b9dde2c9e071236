"""Host tuning and other out-of-tree modules on a systemd node: real dkms, modinfo, pam_limits, systemd;
stand-in modules.

The node is a container, so live kernel values are those of its host. They are neither set nor checked here
(tests/unit/node/state/test_tuning.py does both on a generated root), and no module is loaded.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import World
from tests.e2e.support import ROOT, Site, environment, inventory, site_yml, succeeded
from tests.simulators import apt_archive

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]
RELEASE = "6.1.0-902-amd64"
GROUPS = {*apt_archive.DEFAULT, apt_archive.MODULES}
PROGRAM = "/usr/lib/goldnode/goldnode-node"
FSTAB = "/dev/vda1 / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n"


@pytest.fixture(scope="module")
def tuned(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[LabNode, Site, Path]:
    """A node with a line for swap; the tests of this module follow it through its life in their order."""
    node, site = make("tuned", "e2e_modules", "e2e_modules", "debian12_r535", groups=GROUPS)
    node.put({"/etc/fstab": FSTAB.encode()})
    return node, site, inventory(tmp_path_factory.mktemp("inventory"), {"e2e_modules": [node]})


def findings(node: LabNode) -> dict[str, dict[str, Any]]:
    """What the check on the node says now, by the name of the item."""
    verdict = json.loads(
        node.run(PROGRAM, "check", "--no-write", "--format", "json", check=False).output
    )
    return {finding["id"]: finding for finding in verdict["findings"]}


def against(node: LabNode, module: str = "standin_peer") -> tuple[str, str]:
    """The inode of the standin_ofed that a module was compiled against, and of the one that is there."""
    reported = node.run("modinfo", "-k", RELEASE, "-F", "against", module).output.strip()
    return reported, node.shell(
        f"stat -c %i $(modinfo -k {RELEASE} -n standin_ofed)"
    ).output.strip()


def test_modules_are_built_in_order_and_the_files_are_there(
    tuned: tuple[LabNode, Site, Path],
) -> None:
    node, site, hosts = tuned
    run = succeeded(site_yml(hosts, site=site))
    assert run.changed["tuned"] > 0
    for module in ("standin_ofed", "nvidia-current", "nvidia-current-peermem", "standin_peer"):
        assert (
            node.run("modinfo", "-k", RELEASE, "-F", "vermagic", module).output.split()[0]
            == RELEASE
        )
    reported, there = against(node)
    assert reported == there
    assert node.read("/etc/modules-load.d/goldnode.conf").split("\n")[1:] == [
        "standin_ofed",
        "standin_peer",
        "",
    ]
    assert "softdep nvidia-current pre: standin_ofed\n" in node.read(
        "/etc/modprobe.d/goldnode-modules.conf"
    )
    order = node.shell(f"modprobe -n -v -S {RELEASE} standin_peer").output
    assert re.findall(r"(standin_\w+)\.ko", order) == ["standin_ofed", "standin_peer"], order
    held = node.run("apt-mark", "showhold").output.split()
    assert {"standin-ofed-dkms", "standin-peer-dkms"} <= set(held)
    found = findings(node)
    assert {
        found[f"modules.{name}"]["outcome"]
        for name in ("standin_ofed", "standin_peer", "nvidia-current-peermem")
    } == {"match"}
    assert found["modules.standin_peer.loaded"]["outcome"] == "not_verified_here"
    assert succeeded(site_yml(hosts, site=site)).changed["tuned"] == 0


def test_the_host_keeps_what_a_container_can_keep(
    world: World, tuned: tuple[LabNode, Site, Path]
) -> None:
    node, _, _ = tuned
    assert node.read("/etc/fstab") == FSTAB.replace("/swapfile", "# goldnode: /swapfile")
    assert (
        node.run("systemctl", "is-enabled", "swap.target", check=False).output.strip() == "masked"
    )
    # Locked memory: a fresh login through pam_limits, and a unit that starts now.
    login = subprocess.run(
        node.ssh("ulimit -Hl; ulimit -Sl"), capture_output=True, text=True, check=True
    )
    assert login.stdout.split() == ["4096", "4096"]
    assert (
        node.run("systemd-run", "--wait", "--pipe", "--quiet", "sh", "-c", "ulimit -l")
        .output.strip()
        .endswith("4096")
    )
    # systemd's own readers take the files: only keys of net. would be set, and there are none.
    assert (
        "vm.nr_hugepages = 64\n"
        in node.run("/usr/lib/systemd/systemd-sysctl", "--cat-config").output
    )
    answer = node.run(
        "/usr/lib/systemd/systemd-sysctl", "--prefix=net", "/etc/sysctl.d/90-goldnode.conf"
    )
    assert answer.output == ""
    shown = node.shell(
        "mkdir -p /tmp/grub; GRUB_CMDLINE_LINUX=quiet; . /etc/default/grub.d/91-goldnode-cmdline.cfg; echo $GRUB_CMDLINE_LINUX"
    )
    assert (
        shown.output.strip()
        == "quiet intel_iommu=on iommu=pt hugepagesz=1G hugepages=1 pci=realloc"
    )
    # `udevadm verify` came with systemd 254, which is Debian 13's.
    newer = world.node("udev", "e2e_modules", "debian13")
    rules = "/etc/udev/rules.d/90-goldnode-net.rules"
    newer.put({rules: node.read(rules).encode()})
    reported = newer.run("udevadm", "verify", rules, check=False)
    assert (reported.rc, "1 udev rules files have been checked" in reported.output) == (0, True), (
        reported.output
    )
    newer.put({rules: node.read(rules).replace("ATTR{mtu}", "ATTRS{mtu}").encode()})
    assert newer.run("udevadm", "verify", rules, check=False).rc != 0, (
        "verify passes whatever it is given"
    )
    newer.destroy()
    found = {
        name.removeprefix("policy.host."): row
        for name, row in findings(node).items()
        if name.startswith("policy.host.")
    }
    assert found.pop("memlock")["outcome"] == "match"
    assert {row["outcome"] for row in found.values()} == {"not_verified_here"}
    assert len(found) == 9


def test_the_node_suite_agrees(tuned: tuple[LabNode, Site, Path]) -> None:
    _, site, hosts = tuned
    done = subprocess.run(
        [ROOT / "scripts" / "verify", "-i", hosts],
        env=environment(site),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_module_built_against_an_earlier_module_is_rebuilt(
    tuned: tuple[LabNode, Site, Path],
) -> None:
    node, site, hosts = tuned
    which = f"-m standin-ofed -v 24.10.1 -k {RELEASE}"
    # A second name, so that the file system does not give the number of the old file to the new one.
    node.shell(f"ln $(modinfo -k {RELEASE} -n standin_ofed) /lib/modules/earlier-standin-ofed")
    node.shell(f"dkms build --force {which} && dkms install --force {which}")
    node.shell("rm /lib/modules/earlier-standin-ofed")
    reported, there = against(node)
    assert reported != there, "the node was not spoilt, so that mending it would prove nothing"
    found = findings(node)
    assert "against an earlier standin_ofed" in found["modules.standin_peer"]["got"]
    assert "against an earlier standin_ofed" in found["modules.nvidia-current-peermem"]["got"]
    run = succeeded(site_yml(hosts, site=site))
    assert "standin_peer was rebuilt" in run.output
    reported, there = against(node)
    assert reported == there
    assert succeeded(site_yml(hosts, site=site)).changed["tuned"] == 0


def test_a_module_removed_by_hand_is_found_and_built(tuned: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = tuned
    node.shell(f"rm /lib/modules/{RELEASE}/updates/dkms/standin_ofed.ko*; depmod {RELEASE}")
    found = findings(node)["modules.standin_ofed"]
    assert (found["outcome"], found["severity"]) == ("mismatch", "drain")
    assert "finds no standin_ofed" in found["got"]
    assert node.run(PROGRAM, "check", "--no-write", check=False).rc == 2
    succeeded(site_yml(hosts, site=site))
    reported, there = against(node)
    assert reported == there
    assert succeeded(site_yml(hosts, site=site)).changed["tuned"] == 0


def test_a_kernel_without_the_modules_is_reported_for_each(
    world: World, tuned: tuple[LabNode, Site, Path]
) -> None:
    node, _, _ = tuned
    world.publish({*GROUPS, apt_archive.BROKEN})
    answer = node.shell(
        "apt-get update >/dev/null; apt-get install -y --no-install-recommends linux-image-6.1.0-904-amd64 2>&1"
    ).output
    for module in (
        "nvidia-current 535.309.01",
        "standin_ofed",
        "nvidia-current-peermem",
        "standin_peer",
    ):
        assert f"goldnode: kernel 6.1.0-904-amd64 has no module {module} (found: none)" in answer
    node.shell("apt-get purge -y linux-image-6.1.0-904-amd64")
    # One alone: the others are silent.
    node.shell(f"mv /lib/modules/{RELEASE}/updates/dkms/standin_peer.ko* /root; depmod {RELEASE}")
    answer = node.run("/etc/kernel/postinst.d/zz-goldnode", RELEASE).output
    assert [line.split(" has no module ")[1].split()[0] for line in answer.splitlines()] == [
        "standin_peer"
    ]
    node.shell(f"mv /root/standin_peer.ko* /lib/modules/{RELEASE}/updates/dkms/; depmod {RELEASE}")
    world.publish(GROUPS)


def test_a_class_without_them_takes_the_files_away(
    tuned: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    node, site, _ = tuned
    hosts = inventory(tmp_path, {"e2e_r535": [node]})
    succeeded(site_yml(hosts, site=site))
    assert node.read("/etc/fstab") == FSTAB
    assert (
        node.run("systemctl", "is-enabled", "swap.target", check=False).output.strip() == "static"
    )
    left = node.shell(
        "ls /etc/sysctl.d /etc/security/limits.d /etc/udev/rules.d /etc/default/grub.d /etc/modules-load.d 2>/dev/null"
    ).output
    assert "goldnode" not in left
    assert "standin-ofed-dkms" not in node.run("apt-mark", "showhold").output
    assert succeeded(site_yml(hosts, site=site)).changed["tuned"] == 0
