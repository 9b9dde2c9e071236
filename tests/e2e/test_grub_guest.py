"""GRUB's menus of generated settings, written by grub-mkconfig of a Debian that booted, compared with ours.

One boot of an emulated guest writes all menus: its root is on a virtual disk, and the running kernel, the device nodes and what
grub-probe finds are its own. Its first process is the script, without systemd. The settings and the comparison are those of
test_effective_releases.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.e2e import test_effective_releases as releases
from tests.e2e.qemu import disk

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mmdebstrap needs root"),
    pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed"),
]

CONFIGURATIONS = 50
PACKAGES = ("linux-image-cloud-amd64", "initramfs-tools", "grub-common", "grub2-common", "zstd")
# Emulation is slow: the initramfs holds what this one disk needs.
SMALL = r"""set -eu
mkdir -p "$1/etc/initramfs-tools/conf.d"
printf 'MODULES=list\nCOMPRESS=zstd\n' >"$1/etc/initramfs-tools/conf.d/small"
printf '%s\n' virtio_pci virtio_blk ext4 crc32c_generic >"$1/etc/initramfs-tools/modules"
"""
# Scripts of GRUB for kernels, themes and systems that no setting is about cost processes.
FIRST = f"""#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C
for script in 05_debian_theme 20_linux_xen 30_os-prober 30_uefi-firmware 41_custom; do
    [ ! -e "/etc/grub.d/$script" ] || chmod -x "/etc/grub.d/$script"
done
(
{releases.MENUS}
)
status=$?
sync
echo "{disk.DONE}$status"
mount -o remount,ro /
echo o >/proc/sysrq-trigger
sleep 60
"""


def test_menus_of_a_booted_guest_are_those_of_the_settings(tmp_path: Path) -> None:
    root, image = tmp_path / "root", tmp_path / "disk"
    hook = tmp_path / "small"
    hook.write_text("#!/bin/sh\n" + SMALL)
    hook.chmod(0o755)
    archives = "".join(item.line() + "\n" for item in disk.debian("bookworm", tmp_path))
    disk.run(
        "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}",
        f"--essential-hook={hook}", "", root, "-", stdin=archives,
    )  # fmt: skip
    for part in ("vmlinuz", "initrd.img"):
        shutil.copy(root / part, tmp_path / part)
        (root / part).unlink()
    shutil.rmtree(root / "boot")
    (root / "boot").mkdir()
    releases.write_configurations(root / "shared", CONFIGURATIONS)
    (root / "first").write_text(FIRST)
    (root / "first").chmod(0o755)
    disk.run("mke2fs", "-q", "-t", "ext4", "-d", root, image, "1500M")
    done = subprocess.run(
        [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "2", "-m", "1024", "-M", "q35",
            "-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot",
            "-kernel", tmp_path / "vmlinuz", "-initrd", tmp_path / "initrd.img",
            "-append", "root=/dev/vda rw init=/first console=ttyS0 loglevel=3 mitigations=off",
            "-drive", f"file={image},if=virtio,format=raw,cache=unsafe",
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=3000,
    )  # fmt: skip
    assert disk.DONE + "0" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
    answers = tmp_path / "answers"
    answers.mkdir()
    disk.run("debugfs", "-R", f"rdump /shared {answers}", image)
    assert releases.differences(answers / "shared", CONFIGURATIONS) == {}
