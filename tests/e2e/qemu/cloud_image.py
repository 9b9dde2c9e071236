"""A vendor's cloud image of Debian 12, made from Debian's packages: a stand-in for `genericcloud`, which is not in an archive of packages.

Partitions, packages, GRUB, network, the empty machine-id and the settings of cloud-init are those of Debian's own image
(salsa.debian.org/cloud-team/debian-cloud-images, read in copies). Its kernel is the one of the last point release, and so older than that of a lock
that is made now. GRUB is installed by its own programs, in a first boot of an emulated guest that starts nothing else. The image is made once for each
recipe, below ``~/.cache/goldnode/cloud``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.e2e.qemu.disk import DONE, MIB, Archive, GuestError, run

# requirements: Debian packages that the test machine needs for this file; scripts/test installs them.
REQUIREMENTS = (
    "debian-archive-keyring",
    "dosfstools",
    "e2fsprogs",
    "fdisk",
    "mmdebstrap",
    "ovmf",
    "qemu-system-x86",
    "qemu-utils",
    "xorriso",
)

PACKAGES = (
    *(
        "linux-image-cloud-amd64/bookworm",
        "grub-cloud-amd64",
        "initramfs-tools",
        "zstd",
        "apparmor",
    ),
    *("cloud-init", "cloud-guest-utils", "cloud-initramfs-growroot"),
    *("systemd-resolved", "libnss-myhostname", "netplan.io", "polkitd", "systemd-timesyncd"),
    *("openssh-server", "sudo", "libpam-systemd", "unattended-upgrades"),
    *(
        "apt-utils",
        "cron",
        "dbus",
        "e2fsprogs",
        "fdisk",
        "init",
        "iproute2",
        "iptables",
        "iputils-ping",
        "kmod",
        "less",
    ),
    *("logrotate", "netbase", "nano", "procps", "python3", "readline-common", "udev", "whiptail"),
    *("ca-certificates", "pciutils", "ethtool", "xz-utils", "man-db", "uuid-runtime"),
)
BIOS_START, ESP_START, ROOT_START = 1 * MIB, 4 * MIB, 128 * MIB
ROOT_SIZE = 2048 * MIB
USER = "debian"  # that cloud-init makes

# Run by mmdebstrap with the root as $1.
CONFIGURE = r"""set -eu
rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
: >"$1/etc/apt/sources.list"
rm -f "$1"/etc/apt/sources.list.d/*
mkdir -p "$1/etc/apt/mirrors" "$1/boot/efi"
echo @ARCHIVE@ >"$1/etc/apt/mirrors/debian.list"
echo @SECURITY@ >"$1/etc/apt/mirrors/debian-security.list"
cat >"$1/etc/apt/sources.list.d/debian.sources" <<'END'
Types: deb deb-src
URIs: mirror+file:///etc/apt/mirrors/debian.list
Suites: bookworm bookworm-updates
Components: main

Types: deb deb-src
URIs: mirror+file:///etc/apt/mirrors/debian-security.list
Suites: bookworm-security
Components: main
END
cat >"$1/etc/cloud/cloud.cfg.d/01_debian_cloud.cfg" <<'END'
apt:
  generate_mirrorlists: true
system_info:
  default_user:
    name: debian
    sudo: ["ALL=(ALL) NOPASSWD:ALL"]
    shell: /bin/bash
    lock_passwd: True
    gecos: Debian
    groups: [adm, audio, cdrom, dialout, dip, floppy, plugdev, sudo, video]
END
mkdir -p "$1/etc/default/grub.d"
echo 'PARTUUID=@ROOT@ / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1' >"$1/etc/fstab"
echo 'PARTUUID=@ESP@ /boot/efi vfat defaults 0 0' >>"$1/etc/fstab"
chroot "$1" systemctl enable systemd-networkd.service systemd-resolved.service
ln -sf /run/systemd/resolve/resolv.conf "$1/etc/resolv.conf"
echo LANG=C.UTF-8 >"$1/etc/default/locale"
touch "$1/etc/grub.d/enable_cloud"
rm -rf "$1"/etc/ssh/ssh_host_* "$1"/var/lib/dbus/machine-id "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/log/apt "$1"/var/log/*.log
: >"$1/etc/hostname"
: >"$1/etc/machine-id"
"""
# The same as the package grub-cloud-amd64 does where Debian's image is made.
BAKE = f"""#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C
(
set -e
mount /dev/vda15 /boot/efi
grub-install --target=i386-pc /dev/vda
grub-install --target=x86_64-efi --no-nvram --uefi-secure-boot --force-extra-removable
update-grub
umount /boot/efi
)
status=$?
rm -f /bake /etc/machine-id.lock
sync
echo "{DONE}$status"
mount -o remount,ro /
echo o >/proc/sysrq-trigger
sleep 60
"""
ROOT_ID, ESP_ID = "7d0c6d3e-3f2b-4a69-9c0e-1f8f3a5c41aa", "7d0c6d3e-3f2b-4a69-9c0e-1f8f3a5c41ab"


def ensure(archives: list[Archive], cache: Path | None = None) -> Path:
    """The image (raw), from the cache or made now: root, the archives and some minutes are needed then."""
    recipe = "\0".join(
        [
            CONFIGURE,
            BAKE,
            *PACKAGES,
            *(f"{a.suite} {' '.join(a.components)}" for a in archives),
        ]
    )
    home = (cache or Path.home() / ".cache/goldnode/cloud") / hashlib.sha256(
        recipe.encode()
    ).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    made = home / "image.raw"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process makes it, and the others wait for it
        if not made.exists():
            with tempfile.TemporaryDirectory(prefix="making-", dir=home) as scratch:
                _make(Path(scratch), archives).replace(made)
    return made


def _hook(scratch: Path, name: str, script: str) -> Path:
    path = scratch / name
    path.write_text("#!/bin/sh\n" + script.replace("@ROOT@", ROOT_ID).replace("@ESP@", ESP_ID))
    path.chmod(0o755)
    return path


def _make(scratch: Path, archives: list[Archive]) -> Path:
    root = scratch / "root"
    # The image names the archives of this machine; cloud-init writes these files again at the first boot.
    main = next(a.url for a in archives if "security" not in a.suite)
    security = next((a.url for a in archives if "security" in a.suite), main)
    configure = CONFIGURE.replace("@ARCHIVE@", main).replace("@SECURITY@", security)
    run(
        "mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}",
        "--aptopt=Acquire::Languages none",
        f"--customize-hook={_hook(scratch, 'configure', configure)}",
        "", root, "-", stdin="".join(archive.line() + "\n" for archive in archives),
    )  # fmt: skip
    (root / "bake").write_text(BAKE)
    (root / "bake").chmod(0o755)
    for part in ("vmlinuz", "initrd.img"):
        shutil.copy(root / part, scratch / part)
    tree, esp, disk = scratch / "root.img", scratch / "esp.img", scratch / "image.raw"
    for path, size in (
        (tree, ROOT_SIZE),
        (esp, ROOT_START - ESP_START),
        (disk, ROOT_START + ROOT_SIZE + MIB),
    ):
        path.touch()
        os.truncate(path, size)
    run("mkfs.vfat", "-F", "32", esp)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-d", root, tree)
    shutil.rmtree(root)
    run(
        "sfdisk", "-q", disk,
        stdin="label: gpt\n"
        f"1: start={ROOT_START // 512}, size={ROOT_SIZE // 512}, type=linux, uuid={ROOT_ID}\n"
        f"14: start={BIOS_START // 512}, size={(ESP_START - BIOS_START) // 512}, type=21686148-6449-6E6F-744E-656564454649\n"
        f"15: start={ESP_START // 512}, size={(ROOT_START - ESP_START) // 512}, type=uefi, uuid={ESP_ID}\n",
    )  # fmt: skip
    for image, start in ((esp, ESP_START), (tree, ROOT_START)):
        run(
            "dd",
            f"if={image}",
            f"of={disk}",
            "bs=1M",
            f"seek={start // MIB}",
            "conv=notrunc,sparse",
            "status=none",
        )
    command = [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "qemu64,-svm", "-smp", "2", "-m", "1024", "-M", "q35",
        "-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot",
        "-kernel", f"{scratch}/vmlinuz", "-initrd", f"{scratch}/initrd.img",
        "-append", "root=/dev/vda1 rw init=/bake console=ttyS0 loglevel=3 no_timer_check",
        "-drive", f"file={disk},if=virtio,format=raw,cache=unsafe",
    ]  # fmt: skip
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=1800
    )
    if DONE + "0" not in done.stdout:
        raise GuestError(f"GRUB was not installed\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return disk
