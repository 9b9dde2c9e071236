"""First boots of a release's own systemd as PID 1 in namespaces, with systemd credentials: no kernel, no firmware, no disk.

The root is one of mmdebstrap with the first-boot files of goldnode. Each boot writes to a layer of its own in memory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.unit.disks.disk_trees import spec

from goldnode.disks import firstboot

# Packages of images/disks/disks.yml that take part. Debian 14 only recommends mount, login and passwd.
PACKAGES = (
    "dbus,iproute2,libpam-systemd,login,mount,netbase,openssh-server,passwd,procps,systemd,systemd-resolved,"
    "systemd-sysv,udev,util-linux"
)
# Shared: the credentials of a service are mounted for it in a namespace of systemd's helper.
ENTER = """set -e
lower=$1 place=$2
mkdir -p "$place/boot"; mount -t tmpfs tmpfs "$place/boot"; mkdir "$place/boot/up" "$place/boot/work" "$place/boot/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$place/boot/up,workdir=$place/boot/work" "$place/boot/root"
root=$place/boot/root
mount -t proc proc "$root/proc"; mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"; mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for name in run tmp dev; do mount -t tmpfs tmpfs "$root/$name"; done
for name in null zero full random urandom tty; do touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"; done
mkdir "$root/dev/shm"; ln -s /proc/self/fd "$root/dev/fd"
mkdir -p "$root/given"; cp -a "$place/given/." "$root/given"; cp -a "$place/files/." "$root"
mkdir "$root/result"; mount --bind "$place/result" "$root/result"
ip link set lo up
mount --make-rshared "$root"
exec chroot "$root" env -i container=test CREDENTIALS_DIRECTORY=/given PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    /usr/lib/systemd/systemd --unit=probe.target --show-status=no
"""
PROBE = """#!/bin/sh
cd /result
cat /proc/sys/kernel/hostname >kernel-name
systemctl --failed --plain --no-legend | cut -d ' ' -f 1 >failed
ss -Hlntu | tr -s ' ' | cut -d ' ' -f 1,5 | sort -u >listeners
ls /run/systemd/network >networks
for name in etc/hostname etc/machine-id etc/hosts etc/motd.d/50-provision.conf etc/issue.d/50-provision.conf \\
    etc/default/locale etc/shadow etc/passwd root/.ssh/authorized_keys; do
    [ ! -e "/$name" ] || cp "/$name" "$(echo "$name" | tr / -)"
done
touch complete
systemctl --force --force poweroff
"""
SERVICE = """[Unit]
DefaultDependencies=no
After={after}
[Service]
Type=oneshot
ExecStart=/bin/sh /probe
"""
TARGET = """[Unit]
DefaultDependencies=no
AllowIsolate=yes
Wants={wants} probe.service
"""
# Units that read credentials, or name the node, at a first boot.
FIRST = (
    "systemd-sysusers.service systemd-tmpfiles-setup.service systemd-firstboot.service systemd-network-generator.service "
    "goldnode-hostname.service goldnode-first-boot.service"
)


@dataclass(frozen=True)
class FirstBoot:
    """State of a node after its first boot: content of files by path (`/` as `-`), and what the probe has listed."""

    files: Mapping[str, str]

    def rows(self, name: str) -> list[str]:
        """Return the lines of a file; none if it is absent."""
        return self.files.get(name, "").splitlines()


def prepare(root: Path, suite: str, archive: str) -> None:
    """Make the root of a release, and install the first-boot files as a build does."""
    options = ['Acquire::Check-Valid-Until "false"', 'APT::Install-Recommends "false"']
    packages = PACKAGES + ("" if suite == "bookworm" else ",systemd-repart")
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=essential", f"--include={packages}",
         *(f"--aptopt={option}" for option in options), suite, root, f"deb {archive} {suite} main"],
        check=True,
    )  # fmt: skip
    firstboot.install(root, spec("single"))
    (root / "etc/systemd/system/efi.mount").symlink_to("/dev/null")  # there is no disk
    (root / "etc/fstab").unlink()


def first_boot(
    root: Path,
    place: Path,
    credentials: Mapping[str, str],
    files: Mapping[str, str] | None = None,
    units: str = FIRST,
) -> FirstBoot:
    """Boot `root` once with these credentials and additional files, until `units` have started."""
    for folder in ("given", "files", "result"):
        (place / folder).mkdir(parents=True)
    given = {
        "probe": PROBE,
        "etc/systemd/system/probe.service": SERVICE.format(after=units),
        "etc/systemd/system/probe.target": TARGET.format(wants=units),
        **(files or {}),
    }
    for name, text in given.items():
        path = place / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (place / "given").chmod(0o700)
    for name, text in credentials.items():
        (place / "given" / name).write_text(text)
        (place / "given" / name).chmod(0o400)
    namespaces = (
        "--mount",
        "--pid",
        "--fork",
        "--uts",
        "--ipc",
        "--net",
        "--cgroup",
        "--kill-child",
    )
    done = subprocess.run(
        ["unshare", *namespaces, "sh", "-c", ENTER, "enter", root, place],
        capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    result = place / "result"
    assert (result / "complete").exists(), done.stdout + done.stderr
    return FirstBoot({path.name: path.read_text() for path in sorted(result.iterdir())})
