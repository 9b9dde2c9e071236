"""A root that is small and complete enough to become a disk; nothing in it runs."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from goldnode.disks import assemble
from goldnode.disks.architecture import ARCHITECTURES
from goldnode.disks.assemble import LOADERS, MIB, Sizes, Spec
from goldnode.disks.model import Layout

EPOCH = 1_760_000_000
RELEASE = "6.1.0-0-amd64"
CAPABILITY = bytes.fromhex(
    "0100000200200000000000000000000000000000"
)  # cap_net_raw=ep, of revision 2


def spec(layout: Layout = "ab", **changes: Any) -> Spec:
    """A disk of 200 MiB."""
    values: dict[str, Any] = {
        "name": "cpu_only-0123456789ab",
        "layout": layout,
        "loader": LOADERS.get(layout, "grub"),
        "sizes": Sizes(40 * MIB, 160 * MIB),
        "seed": uuid.UUID("5f0c1a52-6a1e-4f3c-9f60-60a1d40de001"),
        "epoch": EPOCH,
        "command_line": "console=ttyS0",
        "release": RELEASE,
        "build_id": "0123456789ab",
        "sequence": 3,
    }
    return Spec(**(values | changes))


def tree(place: Path, order: int = 1) -> Path:
    """Make the root as directory `place`; `order` -1 makes its files the other way round."""
    files = {
        f"boot/vmlinuz-{RELEASE}": b"kernel" * 50_000,
        f"boot/initrd.img-{RELEASE}": b"initramfs" * 40_000,
        **{row.systemd_boot: b"MZ systemd-boot" for row in ARCHITECTURES.values()},
        **{row.grub: b"MZ grub" for row in ARCHITECTURES.values()},
        "etc/hostname": b"builder\n",
        "etc/ssh/ssh_host_rsa_key": b"not a key\n",
        "etc/shadow": b"root:*::\n",
        "usr/bin/systemd-repart": b"",
        "usr/lib/systemd/systemd": b"",
        "usr/lib/systemd/systemd-growfs": b"",
        "usr/lib/systemd/systemd-resolved": b"",
        "usr/sbin/sshd": b"",
        "usr/share/a name with spaces": b'and "quotes"\n',
        "usr/share/umlaut-\u00e4": b"",
        "usr/share/sparse": bytes(9000) + b"end",
        **{f"usr/share/many/{number:03}": str(number).encode() for number in range(300)},
    }
    place.mkdir(parents=True)
    for name in ("dev", "efi", "proc", "run", "sys"):
        (place / name).mkdir()
    for name in sorted(files, reverse=order < 0):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])
        path.chmod(0o755 if "/bin/" in name else 0o644)
    (place / "etc/shadow").chmod(0o640)
    (place / "usr/bin/link").symlink_to("systemd-repart")
    (place / "usr/bin/long").symlink_to("x" * 80)
    (place / "usr/bin/hard").hardlink_to(place / "usr/bin/systemd-repart")
    os.mkfifo(place / "usr/share/fifo")
    os.utime(place / "etc/shadow", (EPOCH - 1000, EPOCH - 1000))
    for folder, _, _ in os.walk(place):
        Path(folder).chmod(0o755)
    return place


@pytest.fixture
def any_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests that are about something else run as any user."""
    if os.geteuid():
        monkeypatch.setattr(assemble, "_check_root", lambda root: None)
