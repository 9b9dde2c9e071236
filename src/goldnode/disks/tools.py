"""Wrapper of the external tools that make a disk.

It checks that they are installed and runs them so that their output does not depend on the build machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from goldnode.core.errors import DiskError

Progress = Callable[[str], None]

# Tool -> Debian package that provides it.
PACKAGES = {
    "debugfs": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "fallocate": "util-linux",
    "fsck.vfat": "dosfstools",
    "gzip": "gzip",
    "mcopy": "mtools",
    "mkfs.vfat": "dosfstools",
    "mke2fs": "e2fsprogs",
    "mksquashfs": "squashfs-tools",
    "mmd": "mtools",
    "qemu-img": "qemu-utils",
    "sfdisk": "fdisk",
    "tar": "tar",
    "zstd": "zstd",
}

# Debian package -> command that prints its version.
_VERSIONS = {
    # mkfs.vfat has no --version, but prints its version before it fails.
    "dosfstools": ("mkfs.vfat", "/nonexistent/esp"),
    "e2fsprogs": ("mke2fs", "-V"),
    "fdisk": ("sfdisk", "--version"),
    "mtools": ("mcopy", "-V"),
    "qemu-utils": ("qemu-img", "--version"),
    "tar": ("tar", "--version"),
    "zstd": ("zstd", "--version"),
}


def path() -> str:
    """Return $PATH plus the sbin directories, which a user's own PATH often lacks."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(
        [
            *places,
            *(place for place in ("/usr/local/sbin", "/usr/sbin", "/sbin") if place not in places),
        ]
    )


def require(*tools: str) -> None:
    """Raise DiskError if one of `tools` is not installed. The remedy names the packages to install."""
    missing = [tool for tool in tools if shutil.which(tool, path=path()) is None]
    if missing:
        packages = sorted({PACKAGES.get(tool, tool) for tool in missing})
        raise DiskError(
            f"this machine has no {', '.join(missing)}, and a disk image is made with "
            f"{'it' if len(missing) == 1 else 'them'}",
            remedy=f"install {' '.join(packages)}",
        )


def environment(epoch: int) -> dict[str, str]:
    """Return a reproducible environment for a tool: fixed date, UTC, C locale, no configuration of this
    machine.

    - mke2fs sorts directories by locale; mtools and vfat write local time.
    - e2fsprogs before 1.47.1 reads `E2FSPROGS_FAKE_TIME` instead of `SOURCE_DATE_EPOCH`.
    - ext4 features come from /etc/mke2fs.conf, mtools settings from /etc and the user's home. Both are
      disabled.
    """
    # fakeroot needs the variables other than TMPDIR.
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key in ("TMPDIR", "LD_PRELOAD", "LD_LIBRARY_PATH", "FAKEROOTKEY")
    }
    return inherited | {
        "PATH": path(),
        "LC_ALL": "C",
        "TZ": "UTC",
        "HOME": "/nonexistent",
        "SOURCE_DATE_EPOCH": str(epoch),
        "E2FSPROGS_FAKE_TIME": str(epoch),
        "MKE2FS_CONFIG": os.devnull,
        "MTOOLSRC": os.devnull,
    }


def run(
    *words: str | Path,
    epoch: int = 0,
    stdin: str | bytes | None = None,
    good: tuple[int, ...] = (0,),
    cwd: Path | None = None,
) -> str:
    """Run a tool and return its stdout and stderr.

    Raises DiskError with the last lines of output if it fails. A full disk gets an error of its own.
    """
    argv = [str(word) for word in words]
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            argv,
            input=data if data is not None else b"",
            capture_output=True,
            check=False,
            env=environment(epoch),
            cwd=cwd,
        )
    except OSError as problem:
        raise DiskError(
            f"{argv[0]} cannot be run: {problem.strerror}",
            remedy=f"install {PACKAGES.get(argv[0], argv[0])}",
        ) from problem
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    if done.returncode not in good:
        if "No space left on device" in text:
            raise no_space(f"{argv[0]} had no space left to write to")
        last = " / ".join(line.strip() for line in text.strip().splitlines()[-4:])
        raise DiskError(
            f"{argv[0]} failed with exit status {done.returncode}: {last or 'it printed nothing'}"
        )
    return text


def no_space(message: str) -> DiskError:
    """Return the error for a full file system."""
    return DiskError(
        message, remedy="make room there, or name another place with --store or $GOLDNODE_DISKS"
    )


def versions() -> dict[str, str]:
    """Return the version of each tool that shapes a disk's bytes, by Debian package.

    Omit tools that are not installed.
    """
    numbers = {}
    for name, words in _VERSIONS.items():
        if shutil.which(words[0], path=path()) is None:
            continue
        done = subprocess.run(list(words), capture_output=True, check=False, env=environment(0))
        number = re.search(
            r"\d+\.\d+(?:\.\d+)*", (done.stdout + done.stderr).decode("utf-8", "replace")
        )
        if number:
            numbers[name] = number[0]
    return numbers
