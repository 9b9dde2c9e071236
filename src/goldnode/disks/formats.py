"""Writers of the formats in which a disk is distributed.

These are qcow2, the raw disk compressed with zstd, and the root as a tar with kernel and initramfs (for PXE
and bare metal).

Equal input gives equal bytes with the same tools (`tools.versions()`):

- A qcow2 contains no date.
- zstd's output depends on its version and level. The number of threads does not matter, but `--single-thread`
  would write different frames, so it is never used.
- The tar is sorted. It has numeric owners and no date later than the image's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from goldnode.core.errors import DiskError, nearest
from goldnode.core.files import sha256_of
from goldnode.disks import tools
from goldnode.disks.model import FORMATS, DiskFile
from goldnode.disks.tools import Progress

LEVEL = 6  # zstd level; it determines the bytes
_CLUSTER = 65536  # qcow2 cluster size in bytes; a reader decompresses whole clusters


def write(
    raw: Path,
    root: Path,
    kind: str,
    out: Path,
    *,
    epoch: int,
    release: str,
    progress: Progress = lambda _: None,
) -> DiskFile:
    """Write format `kind` (a key of `FORMATS`) to the file `out`, atomically.

    `raw` is the disk. `root` is the directory it was made from, read for `tar`, `vmlinuz` and `initrd`.
    `release` is the kernel release. Format `raw` is the disk itself, so `out` must equal `raw`. Raises
    DiskError for an unknown format, a missing tool or lack of space.
    """
    if kind not in FORMATS:
        raise DiskError(
            f'there is no format "{kind}" of a disk image', remedy=nearest(kind, FORMATS)
        )
    if kind == "raw":
        if raw != out:
            raise DiskError("the raw disk is written by `assemble`, and not copied")
        return described(out, kind)
    source = {
        "vmlinuz": root / f"boot/vmlinuz-{release}",
        "initrd": root / f"boot/initrd.img-{release}",
        "tar": root,
    }.get(kind, raw)
    if not source.exists():
        raise DiskError(f"{kind} is made of {source}, which is not there")
    tools.require(
        *{"qcow2": ("qemu-img",), "raw.zst": ("zstd",), "tar": ("tar", "zstd")}.get(kind, ())
    )
    progress(f"writing {out.name}")
    # A fixed name, so that the next run overwrites the leftover of a killed one.
    new = out.with_name(f".{out.name}.new")
    try:
        new.unlink(missing_ok=True)
        if kind == "qcow2":
            # -m 1 and no -W: qemu-img writes the clusters one by one, in disk order.
            options = f"compression_type=zstd,cluster_size={_CLUSTER},compat=1.1,lazy_refcounts=off"
            tools.run(
                "qemu-img",
                "convert",
                "-q",
                "-m",
                "1",
                "-f",
                "raw",
                "-O",
                "qcow2",
                "-c",
                "-o",
                options,
                raw,
                new,
                epoch=epoch,
            )
        elif kind == "raw.zst":
            tools.run(
                "zstd",
                "-q",
                "-f",
                "-T0",
                f"-{LEVEL}",
                "--check",
                "--no-progress",
                raw,
                "-o",
                new,
                epoch=epoch,
            )
        elif kind == "tar":
            _tar(root, new, epoch)
        else:
            shutil.copyfile(source, new)
        new.chmod(0o644)
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.replace(out)
    except OSError as problem:
        if problem.errno == 28:
            raise tools.no_space(f"there is no space left for {out}") from problem
        raise DiskError(
            f"{out} cannot be written: {problem.strerror}", remedy="name another place with --store"
        ) from problem
    finally:
        new.unlink(missing_ok=True)
    return described(out, kind)


def described(path: Path, kind: str) -> DiskFile:
    """Return the manifest entry of a file: name, format, size and SHA-256."""
    return DiskFile(path.name, kind, path.stat().st_size, sha256_of(path))


def unpack(packed: Path, raw: Path) -> None:
    """Decompress a `.raw.zst` into a sparse file. Raises DiskError on failure."""
    tools.require("zstd")
    tools.run("zstd", "-q", "-d", "-f", "--sparse", "--no-progress", packed, "-o", raw)


def _tar(root: Path, out: Path, epoch: int) -> None:
    """Write `root` as a compressed tar.

    Include capabilities and ACLs, exclude labels of the build machine (SELinux and the like).
    """
    words = [
        *(
            "tar",
            "--create",
            "--directory",
            str(root),
            "--format=posix",
            "--sort=name",
            "--numeric-owner",
            "--clamp-mtime",
            f"--mtime=@{epoch}",
        ),
        # Drop atime and ctime, and the process number that tar puts into the name of a pax header.
        "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
        *(
            "--xattrs",
            "--xattrs-include=security.capability",
            "--xattrs-include=user.*",
            "--acls",
            "--warning=no-file-ignored",
            ".",
        ),
    ]
    environment = tools.environment(epoch)
    with (
        out.open("wb") as file,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as tar,
        subprocess.Popen(
            ["zstd", "-q", "-T0", f"-{LEVEL}", "--check", "--no-progress"],
            stdin=tar.stdout,
            stdout=file,
            stderr=subprocess.PIPE,
            env=environment,
        ) as zstd,
    ):
        if tar.stdout is not None:
            tar.stdout.close()  # so that tar gets SIGPIPE if zstd exits early
        reported = zstd.communicate()[1] + tar.communicate()[1]
    if tar.returncode or zstd.returncode:
        text = reported.decode("utf-8", "replace").strip()
        if "No space left on device" in text:
            raise tools.no_space(f"there is no space left for {out}")
        raise DiskError(
            f"tar or zstd failed ({tar.returncode}, {zstd.returncode}): "
            f"{' / '.join(text.splitlines()[-3:]) or 'they printed nothing'}"
        )
