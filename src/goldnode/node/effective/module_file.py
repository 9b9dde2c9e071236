"""Whether the file of a kernel module is the one that dkms built, or that its package brought."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from ..ground.host import Host

BLOCK = 1 << 20
SIGNED = b"~Module signature appended~\n"
SETTLED = 2  # seconds; depmod writes modules.dep after the last module is in place


def altered(host: Host, release: str, file: str, package: Optional[str]) -> Optional[str]:
    """Return how a module's file differs from what was installed, or None.

    The size is always compared with that of dkms's copy. All bytes are read only if the file is younger than
    modules.dep: a fault of the disk that leaves size and time alone is not found.

    :param file: path of the module below the host's root.
    :param package: package that may have brought the file.
    """
    status, listed = os.stat(host.located(file)), host.lstat(f"/lib/modules/{release}/modules.dep")
    younger = bool(listed and status.st_mtime > listed.st_mtime + SETTLED)
    base = file.rpartition("/")[2]
    for source in host.glob("/var/lib/dkms", "*"):
        for built in host.glob(source, f"kernel-{release}-*"):
            copy = f"{built}/module/{base}"
            if not host.exists(copy):
                continue
            size = os.stat(host.real(copy)).st_size
            if size == status.st_size and (not younger or _same(host, file, copy)):
                return None
            if size < status.st_size and _end(host, file) == SIGNED != _end(host, copy):
                return None  # signed after dkms had built it
            return f"{file} is not what dkms built ({status.st_size} bytes, {copy} has {size})"
    return _unlike_package(host, file, package) if younger and package else None


def _same(host: Host, one: str, other: str) -> bool:
    with open(host.located(one), "rb") as left, open(host.real(other), "rb") as right:
        while True:
            block = left.read(BLOCK)
            if block != right.read(BLOCK):
                return False
            if not block:
                return True


def _end(host: Host, file: str) -> bytes:
    with open(host.real(file), "rb") as opened:
        opened.seek(0, os.SEEK_END)
        opened.seek(-min(opened.tell(), len(SIGNED)), os.SEEK_END)
        return opened.read()


def _unlike_package(host: Host, file: str, package: str) -> Optional[str]:
    """Return how a file differs from the sum that dpkg has of it. Without a sum, nothing is known."""
    import hashlib  # start-up time: only for a file that is younger than it should be

    for line in (host.text(f"/var/lib/dpkg/info/{package}.md5sums") or "").splitlines():
        digest, _, name = line.partition("  ")
        if file.endswith("/" + name[4 * name.startswith("usr/") :]):
            have = hashlib.md5(host.data(file) or b"", usedforsecurity=False).hexdigest()
            if have != digest:
                return f"{file} is not what {package} installed"
    return None
