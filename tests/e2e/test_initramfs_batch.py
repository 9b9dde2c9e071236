"""Whole initramfs images of Debian's kernels, made by Debian's mkinitramfs and with the functions that copy in batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.initramfs_batch import both

from goldnode.testing.lab.nodes import Lab, LabNode, NodeSpec

pytestmark = [pytest.mark.real, pytest.mark.long]
# What adds hooks: encrypted and layered disks, ssh, a splash screen, microcode, firmware.
PACKAGES = "cryptsetup-initramfs lvm2 mdadm plymouth dropbear-initramfs amd64-microcode firmware-misc-nonfree firmware-bnx2x"
# The kernel's own image is not needed here, and takes longer than all packages.
INSTALL = f"""sed -i 's/^Components: main$/Components: main non-free-firmware/' /etc/apt/sources.list.d/debian.sources
mkdir -p /opt/stub && printf '#!/bin/sh\n' >/opt/stub/update-initramfs && chmod 755 /opt/stub/update-initramfs
apt-get update -q
apt-get install -y -q --no-install-recommends -o DPkg::Path=/opt/stub:/usr/sbin:/usr/bin:/sbin:/bin \
    linux-image-amd64 initramfs-tools busybox gzip xz-utils {PACKAGES}
"""
# Settings of initramfs.conf -> whether copying in batches is used, on Debian 12.
SETTINGS = {
    "most": "MODULES=most\nCOMPRESS=zstd\nCOMPRESSLEVEL=1\n",
    "netboot, gzip, private": "MODULES=netboot\nCOMPRESS=gzip\nCOMPRESSLEVEL=1\nUMASK=0077\nBOOT=nfs\n",
    "list, xz": "MODULES=list\nCOMPRESS=xz\nCOMPRESSLEVEL=0\nBUSYBOX=y\n",
}


@pytest.fixture(scope="module", params=["debian12", "debian13"])
def node(request: pytest.FixtureRequest, lab: Lab) -> Iterator[LabNode]:
    """A node with Debian's newest kernel and with packages that add hooks."""
    name = str(request.param)
    made = lab.up([NodeSpec(f"initramfs{name[-2:]}", "e2e_main", os=name, flavour="bare")])[0]
    made.shell(INSTALL)
    yield made
    made.destroy()


@pytest.mark.parametrize("settings", SETTINGS)
def test_entries_are_those_of_debians_tool(node: LabNode, settings: str) -> None:
    release = node.run("ls", "/lib/modules").output.split()[0]
    debians, batched, printed = both(node, release, SETTINGS[settings], "nvme mlx5_ib bnx2x amdgpu")
    assert batched == debians
    assert len(batched) > 300
    assert "file by file" not in printed, printed
