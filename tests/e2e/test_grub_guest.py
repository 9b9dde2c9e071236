"""GRUB's menus of generated settings, written by grub-mkconfig of a Debian that booted, compared with ours.

One boot of the emulated guest of tests/e2e/qemu writes all menus. Its root is on a partition of a virtual disk, and
`uname`, `grub-probe` and os-release are its own. The settings and the comparison are those of test_effective_releases.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from tests.e2e import test_effective_releases as releases
from tests.e2e.qemu import disk

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mmdebstrap needs root"),
]

CODENAME = "bookworm"
CPU_SECONDS = 1200.0
# Emulation is slow: kernels, themes and other systems that no setting is about cost a process each.
PREPARE = """set -e
mount -o remount,rw /
mkdir -p /root/kernels
mv /boot/vmlinuz-* /boot/initrd.img-* /boot/config-* /root/kernels/
for script in 05_debian_theme 20_linux_xen 30_os-prober 30_uefi-firmware 41_custom; do
    [ ! -e "/etc/grub.d/$script" ] || chmod -x "/etc/grub.d/$script"
done
cp -r /run/payload/cases /shared
export LANG=C
grub-mkconfig --version
"""


def test_menus_of_a_booted_guest_are_those_of_the_settings(tmp_path: Path) -> None:
    base = disk.base(disk.debian(CODENAME, tmp_path))
    image = disk.copy(base, tmp_path / "disk.raw")
    cases = tmp_path / "cases"
    releases.write_configurations(cases)
    payload: dict[str, str | bytes] = {
        f"cases/{place.relative_to(cases)}": place.read_bytes()
        for place in cases.rglob("*")
        if place.is_file()
    }
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    console = disk.boot(image, {**payload, "run": PREPARE + releases.MENUS}, tmp_path, limit=3000)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert disk.DONE + "0" in console, console[-3000:]
    answers = tmp_path / "answers"
    disk.extract(image, ["/shared"], answers)
    assert releases.differences(answers / "shared") == {}
    spent = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    assert spent < CPU_SECONDS
