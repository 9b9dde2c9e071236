"""Cleanup of a root filesystem: removes machine identity, traces of the build, and anything that differs
between two builds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from goldnode.node.state import shaping

MACHINE_ID = "uninitialized\n"  # machine-id(5): the first boot of each clone generates its own

# Paths to remove: files that programs recreate, records of the installation, and the identity of one machine.
_GONE = (
    "etc/ssh/ssh_host_*",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/.pwd.lock",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/subuid-",
    "etc/subgid-",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "root/.bash_history",
    "usr/sbin/policy-rc.d",
    "var/cache/ldconfig/aux-cache",
    "var/cache/debconf/*-old",
    "var/cache/apt/*",
    "var/cache/man/*",
    "var/cache/fontconfig/*",
    "var/lib/apt/lists/*",
    "var/lib/dbus/machine-id",
    "var/lib/dpkg/*-old",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/credential.secret",
    "var/lib/systemd/catalog/database",
    "var/log/*",
    "var/tmp/*",
    # Digests of the build machine's /etc, with its keys and names. They differ on a node, whose first change
    # then builds an initramfs.
    shaping.FILE.lstrip("/"),
    "dev/*",
    "run/*",
    "tmp/*",
)
# Directories that programs expect even when empty.
_STAY = (
    ("var/cache/apt/archives/partial", 0o755),
    ("var/lib/apt/lists/partial", 0o755),
    ("var/log/journal", 0o2755),
    ("efi", 0o755),
)


def sanitise(root: Path, epoch: int) -> None:
    """Remove from a root filesystem everything that an image must not contain, and clamp all dates to `epoch`
    (seconds).
    """
    for pattern in _GONE:
        for path in sorted(root.glob(pattern)):
            _remove(path)
    for name, mode in _STAY:
        path = root / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
    for path in list(root.rglob("__pycache__")):
        # Bytecode contains the modification times of its sources. `bytecode` adds what goldnode-node needs of it.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    _put(root / "etc/machine-id", MACHINE_ID, 0o444)
    if (root / "usr/lib/systemd/systemd-resolved").exists():
        (root / "etc/resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
    date(root, epoch)


def date(root: Path, epoch: int) -> None:
    """Clamp all modification times in `root` to `epoch`, in whole seconds."""
    for path in _everything(root):
        status = os.lstat(path)
        when = min(int(status.st_mtime), epoch)
        os.utime(path, (when, when), follow_symlinks=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put(path: Path, text: str, mode: int) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _everything(root: Path) -> Iterator[str]:
    """Yield everything below the root and then the root, the content of a directory before the directory
    itself.
    """
    for where, folders, names in os.walk(root, topdown=False):
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]  # noqa: PTH114, PTH118
        yield from (os.path.join(where, name) for name in (*names, *links))  # noqa: PTH118
        yield where
