"""The forms in which a disk is handed on: qcow2, zstd of the raw disk, and the root as a tar with kernel and initramfs for PXE and bare metal.

Equal input is equal bytes with the same tools (`tools.versions()`): a qcow2 has no date in it; zstd's output depends on its version and level,
and not on how many threads it uses, as long as it is not told to use none (`--single-thread` writes other frames, and is not used); the
tar is sorted, with numbers for owners and no date after the image's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from goldnode.disks import tools
from goldnode.disks.model import FORMATS, DiskFile
from goldnode.disks.tools import Progress
from goldnode.errors import DiskError, nearest
from goldnode.files import sha256_of

LEVEL = 6  # of zstd
_CLUSTER = 65536  # of qcow2; compressed clusters are decompressed whole


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
    """Write format `kind` (a key of `FORMATS`) as the file `out`, which is there whole or not at all.

    `raw` is the disk, `root` the directory it was made of (read for `tar`, `vmlinuz` and `initrd`); `release` names the kernel. Format `raw`
    is the disk itself: `out` has to be `raw`. Raises DiskError: for an unknown format, a missing tool, no space.
    """
    if kind not in FORMATS:
        raise DiskError(f'there is no format "{kind}" of a disk image', remedy=nearest(kind, FORMATS))
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
    tools.require(*{"qcow2": ("qemu-img",), "raw.zst": ("zstd",), "tar": ("tar", "zstd")}.get(kind, ()))
    progress(f"writing {out.name}")
    new = out.with_name(
        f".{out.name}.new"
    )  # always the same name: what a killed run left is overwritten by the next
    try:
        new.unlink(missing_ok=True)
        if kind == "qcow2":
            # -m 1 and no -W: clusters are written one by one, in the order of the disk.
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
    """Size and SHA-256 of a file, as the manifest has them."""
    return DiskFile(path.name, kind, path.stat().st_size, sha256_of(path))


def unpack(packed: Path, raw: Path) -> None:
    """Decompress a `.raw.zst` into a sparse file. Raises DiskError."""
    tools.require("zstd")
    tools.run("zstd", "-q", "-d", "-f", "--sparse", "--no-progress", packed, "-o", raw)


def _tar(root: Path, out: Path, epoch: int) -> None:
    """Capabilities and access lists go with the files; labels of this machine (SELinux and the like) do not."""
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
        # No time of access or change, and no process number in the name of a header.
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
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as tar,
        subprocess.Popen(
            ["zstd", "-q", "-T0", f"-{LEVEL}", "--check", "--no-progress"],
            stdin=tar.stdout,
            stdout=file,
            stderr=subprocess.PIPE,
            env=environment,
        ) as zstd,
    ):
        if tar.stdout is not None:
            tar.stdout.close()  # so that tar hears when zstd ends
        said = zstd.communicate()[1] + tar.communicate()[1]
    if tar.returncode or zstd.returncode:
        text = said.decode("utf-8", "replace").strip()
        if "No space left on device" in text:
            raise tools.no_space(f"there is no space left for {out}")
        raise DiskError(
            f"tar or zstd failed ({tar.returncode}, {zstd.returncode}): {' / '.join(text.splitlines()[-3:]) or 'they said nothing'}"
        )
