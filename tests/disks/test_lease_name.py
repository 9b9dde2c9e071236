"""A node without a name takes that of its DHCP lease, by release: the real systemd-networkd and dnsmasq in a container.

systemd 252 and 257 write a file for each lease. That of 262 writes none: goldnode's first boot asks it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.debian_archive import debian_archive

from goldnode.disks.firstboot import FILES

pytestmark = [
    pytest.mark.disks,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="the root filesystem is made as root"),
    pytest.mark.skipif(
        shutil.which("mmdebstrap") is None or shutil.which("docker") is None,
        reason="mmdebstrap or docker is not installed",
    ),
]

SUITES = {"bookworm": True, "trixie": True, "forky": False}  # whether networkd writes leases
PACKAGES = "systemd,systemd-sysv,mount,dnsmasq-base,iproute2"
UNITS = ("goldnode-lease-name.path", "goldnode-lease-name.service")
# /proc/sys is read-only in a container, and docker mounts a file of its own over /etc/hostname.
ENTER = "mount -o remount,rw /proc/sys && exec /sbin/init"
WIRE = """
umount /etc/hostname
rm -f /etc/hostname
ip netns add server
ip link add wire0 type veth peer name wire1 netns server
ip link set wire0 address 02:00:00:00:00:17
ip -n server addr add 10.9.0.1/24 dev wire1
ip -n server link set wire1 up
printf '[Match]\\nName=wire0\\n[Network]\\nDHCP=ipv4\\nLinkLocalAddressing=no\\n' >/etc/systemd/network/50-wire.network
systemctl daemon-reload
systemctl restart systemd-networkd
"""
SERVE = """ip netns exec server dnsmasq --port=0 --interface=wire1 --bind-interfaces --dhcp-range=10.9.0.10,10.9.0.20 \\
--dhcp-host=02:00:00:00:00:17,node-17 --dhcp-leasefile=/run/given --user=root"""

STATE = "systemctl show --value --property ActiveState goldnode-lease-name.service"

Inside = Callable[[str], str]


def docker(*words: str, given: str | None = None) -> str:
    return subprocess.run(
        ["docker", *words], input=given, capture_output=True, text=True, check=True, timeout=300
    ).stdout


@pytest.fixture(scope="module", params=SUITES)
def image(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A release, and its image with systemd and dnsmasq."""
    suite = str(request.param)
    name = f"goldnode-lease-{suite}-{uuid4().hex[:8]}"
    made = subprocess.Popen(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}",
         "--aptopt=Acquire::Check-Valid-Until \"false\"", suite, "-", debian_archive()],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    subprocess.run(
        ["docker", "import", "-", name], stdin=made.stdout, check=True, capture_output=True
    )
    assert made.wait() == 0
    yield suite, name
    docker("rmi", name)


@pytest.fixture
def inside(image: tuple[str, str]) -> Iterator[Inside]:
    """A shell in a container of the release, with systemd as PID 1 and a wire that nobody serves."""
    suite, name = image
    unified = Path("/sys/fs/cgroup/unified")
    # systemd 262 knows no control groups of version 1.
    groups = unified if suite == "forky" and unified.is_dir() else unified.parent
    container = docker(
        "run", "--detach", "--network", "none", "--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--security-opt", "seccomp=unconfined",
        "--security-opt", "apparmor=unconfined", "--cgroupns=host", "--volume", f"{groups}:/sys/fs/cgroup:rw", "--tmpfs", "/run", "--tmpfs", "/tmp",
        "--env", "container=docker", name, "/bin/sh", "-c", ENTER,
    ).strip()  # fmt: skip

    def run(script: str) -> str:
        return docker("exec", "-i", container, "sh", "-eu", given=script)

    try:
        # || true: systemd may not answer yet. The loop ends only with a state in which the boot is over.
        eventually(
            lambda: run("systemctl is-system-running || true") in ("running\n", "degraded\n"),
            container,
            limit=60,
        )
        run("mkdir -p /usr/lib/goldnode/disk")
        common = FILES / "common/usr/lib"
        docker("cp", str(common / "goldnode/disk/first-boot"), f"{container}:/usr/lib/goldnode/disk/first-boot")  # fmt: skip
        for unit in UNITS:
            docker("cp", str(common / "systemd/system" / unit), f"{container}:/etc/systemd/system/{unit}")  # fmt: skip
        run(WIRE)
        yield run
    finally:
        docker("rm", "-f", container)


def eventually(true: Callable[[], bool], what: str, limit: float = 40) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.5)


def name(inside: Inside) -> str:
    return inside("cat /proc/sys/kernel/hostname").strip()


def test_lease_that_comes_after_the_boot_names_the_node(
    inside: Inside, image: tuple[str, str]
) -> None:
    inside("systemctl start goldnode-lease-name.path")
    eventually(
        lambda: inside(STATE) == "inactive\n",
        "the service looks once at the beginning",
    )
    assert name(inside) != "node-17"
    inside(SERVE)
    eventually(lambda: name(inside) == "node-17", inside("journalctl --no-pager | tail -n 30"))
    assert bool(inside("ls /run/systemd/netif/leases")) is SUITES[image[0]]
    # Further changes of the interface find nothing to do, and nothing fails.
    for _ in range(12):
        inside("ip link set wire0 down; ip link set wire0 up")
    eventually(
        lambda: inside(STATE) == "inactive\n",
        "the service ends",
    )
    assert inside("systemctl --failed --no-legend") == ""
    assert inside("journalctl --no-pager -u goldnode-lease-name.service | grep -c called") == "1\n"


def test_lease_of_before_names_the_node_and_a_name_of_its_own_stays(inside: Inside) -> None:
    inside(SERVE)
    eventually(lambda: "10.9.0." in inside("ip -4 -br address show wire0"), "there is a lease")
    inside("echo own >/etc/hostname; systemctl start goldnode-lease-name.service")
    assert name(inside) != "node-17"
    inside("rm /etc/hostname; systemctl start goldnode-lease-name.path")
    eventually(lambda: name(inside) == "node-17", inside("journalctl --no-pager | tail -n 30"))
