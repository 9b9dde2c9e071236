"""Writers of the formats in which a disk is distributed.

These are qcow2, the raw disk compressed with zstd, the root as a tar or squashfs with kernel and initramfs (for PXE
and bare metal), the forms of clouds (VHD, VMDK, the tar of Compute Engine), and OCI images.

Equal input gives equal bytes with the same tools (`tools.versions()`):

- A qcow2 contains no date.
- zstd's output depends on its version and level. The number of threads does not matter, but `--single-thread`
  would write different frames, so it is never used.
- The tar is sorted. It has numeric owners and no date later than the image's.
- The identifiers of a VHD and a VMDK are derived from the disk's name.
- squashfs has a compressor per processor and one order of blocks; its dates come from `SOURCE_DATE_EPOCH`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from goldnode.core.errors import DiskError, nearest
from goldnode.core.files import sha256_of
from goldnode.disks import containers, tools, vhd, vmdk
from goldnode.disks.model import FORMATS, DiskFile

LEVEL = 6  # zstd level; it determines the bytes
_NAMES = uuid.UUID(
    "8d7c6a9e-2f0b-5c41-9a57-64d3f1b0e2c8"
)  # of identifiers that come from a disk's name
_CLUSTER = 65536  # qcow2 cluster size in bytes; a reader decompresses whole clusters


def write(
    raw: Path,
    root: Path,
    kind: str,
    out: Path,
    *,
    epoch: int,
    release: str,
    architecture: str = "amd64",
) -> DiskFile:
    """Write format `kind` (a key of `FORMATS`) to the file `out`, atomically.

    `raw` is the disk. `root` is the directory it was made from, read for `tar`, `vmlinuz` and `initrd`.
    `release` is the kernel release, `architecture` dpkg's name of the root's. Format `raw` is the disk itself, so `out`
    must equal `raw`. Raises DiskError for an unknown format, a missing tool or lack of space.
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
        "squashfs": root,
        "oci": root,
    }.get(kind, raw)
    if not source.exists():
        raise DiskError(f"{kind} is made of {source}, which is not there")
    tools.require(*_TOOLS.get(kind, ()))
    # A fixed name, so that the next run overwrites the leftover of a killed one.
    new = out.with_name(f".{out.name}.new")
    try:
        new.unlink(missing_ok=True)
        writer = _WRITERS.get(kind)
        if writer is None:
            shutil.copyfile(source, new)
        else:
            writer(
                source,
                new,
                Made(out.name.removesuffix(FORMATS[kind]), release, epoch, architecture),
            )
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


class Made(containers.ImageFacts):
    """Facts of the disk that its forms contain."""

    @property
    def identifier(self) -> uuid.UUID:
        """Return an identifier that is equal for equal disks."""
        return uuid.uuid5(_NAMES, self.name)


def described(path: Path, kind: str) -> DiskFile:
    """Return the manifest entry of a file: name, format, size and SHA-256."""
    return DiskFile(path.name, kind, path.stat().st_size, sha256_of(path))


def unpack(packed: Path, raw: Path) -> None:
    """Decompress a `.raw.zst` into a sparse file. Raises DiskError on failure."""
    tools.require("zstd")
    tools.run("zstd", "-q", "-d", "-f", "--sparse", "--no-progress", packed, "-o", raw)


def _qcow2(raw: Path, out: Path, made: Made) -> None:
    # -m 1 and no -W: qemu-img writes the clusters one by one, in disk order.
    options = f"compression_type=zstd,cluster_size={_CLUSTER},compat=1.1,lazy_refcounts=off"
    how = ("-q", "-m", "1", "-f", "raw", "-O", "qcow2", "-c", "-o", options)
    tools.run("qemu-img", "convert", *how, raw, out, epoch=made.epoch)


def _zst(raw: Path, out: Path, made: Made) -> None:
    how = ("-q", "-f", "-T0", f"-{LEVEL}", "--check", "--no-progress")
    tools.run("zstd", *how, raw, "-o", out, epoch=made.epoch)


def _vhd(raw: Path, out: Path, made: Made) -> None:
    _grown(raw, out, vhd.MIB, made)
    size = out.stat().st_size
    with out.open("ab") as file:
        file.write(vhd.footer(size, identifier=made.identifier, epoch=made.epoch))


def _vmdk(raw: Path, out: Path, made: Made) -> None:
    with out.open("wb") as file:
        vmdk.write(raw, file, identifier=made.identifier.int & 0xFFFFFFFF)


def _gce(raw: Path, out: Path, made: Made) -> None:
    """Write the tar of Compute Engine: one file, disk.raw, of whole GiB, with its holes in GNU tar's old form."""
    with tempfile.TemporaryDirectory(prefix=".gce-", dir=out.parent) as place:
        _grown(raw, Path(place) / "disk.raw", 1 << 30, made)
        _tar(
            Path(place),
            out,
            made.epoch,
            ("--format=oldgnu", "--sparse", "--owner=0", "--group=0", "--mode=0644", "disk.raw"),
            through=("gzip", "-n", "-6"),
        )


def _grown(raw: Path, out: Path, unit: int, made: Made) -> None:
    """Copy a disk and its holes to one of whole `unit` bytes. The first boot moves the second partition table to the
    end.
    """
    tools.run("cp", "--sparse=always", raw, out, epoch=made.epoch)
    size = raw.stat().st_size
    os.truncate(out, -(-size // unit) * unit)


def _root(root: Path, out: Path, made: Made) -> None:
    _tar(
        root,
        out,
        made.epoch,
        _WHOLE,
        through=("zstd", "-q", "-T0", f"-{LEVEL}", "--check", "--no-progress"),
    )


def _squashfs(root: Path, out: Path, made: Made) -> None:
    # squashfs has capabilities and no access lists; mksquashfs reports each list and goes on.
    how = ("-noappend", "-no-progress", "-quiet", "-comp", "zstd")
    tools.run("mksquashfs", root, out, *how, epoch=made.epoch)


def _oci(root: Path, out: Path, made: Made) -> None:
    with tempfile.NamedTemporaryFile(prefix=".tar-", dir=out.parent) as whole:
        _tar(root, Path(whole.name), made.epoch, _WHOLE, through=("cat",))
        containers.from_root(Path(whole.name), out, made)


def _containerdisk(raw: Path, out: Path, made: Made) -> None:
    with tempfile.NamedTemporaryFile(prefix=".qcow2-", dir=out.parent) as disk:
        _qcow2(raw, Path(disk.name), made)
        containers.from_qcow2(Path(disk.name), out, made)


_WRITERS: Mapping[str, Callable[[Path, Path, Made], None]] = {
    "qcow2": _qcow2,
    "raw.zst": _zst,
    "tar": _root,
    "vhd": _vhd,
    "vmdk": _vmdk,
    "gce": _gce,
    "squashfs": _squashfs,
    "oci": _oci,
    "containerdisk": _containerdisk,
}
_TOOLS = {
    "qcow2": ("qemu-img",),
    "raw.zst": ("zstd",),
    "tar": ("tar", "zstd"),
    "gce": ("tar", "gzip"),
    "squashfs": ("mksquashfs",),
    "oci": ("tar",),
    "containerdisk": ("qemu-img",),
}
# Of the tar of a root: capabilities and access lists of files, none of the labels of the build machine (SELinux).
_WHOLE = (
    "--format=posix",
    # Drop atime and ctime, and the process number that tar puts into the name of a pax header.
    "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
    *("--xattrs", "--xattrs-include=security.capability", "--xattrs-include=user.*", "--acls"),
    ".",
)


def _tar(
    directory: Path, out: Path, epoch: int, options: Sequence[str], *, through: Sequence[str]
) -> None:
    """Write a directory as a tar through a compressor: sorted, with numeric owners, no date later than `epoch`.

    `options` end with what to write of it.
    """
    words = [
        *("tar", "--create", "--directory", str(directory), "--sort=name", "--numeric-owner"),
        *("--clamp-mtime", f"--mtime=@{epoch}", "--warning=no-file-ignored", *options),
    ]
    environment = tools.environment(epoch)
    with (
        out.open("wb") as file,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as tar,
        subprocess.Popen(
            list(through), stdin=tar.stdout, stdout=file, stderr=subprocess.PIPE, env=environment
        ) as packer,
    ):
        if tar.stdout is not None:
            tar.stdout.close()  # so that tar gets SIGPIPE if the compressor exits early
        reported = packer.communicate()[1] + tar.communicate()[1]
    if tar.returncode or packer.returncode:
        text = reported.decode("utf-8", "replace").strip()
        if "No space left on device" in text:
            raise tools.no_space(f"there is no space left for {out}")
        raise DiskError(
            f"tar or {through[0]} failed ({tar.returncode}, {packer.returncode}): "
            f"{' / '.join(text.splitlines()[-3:]) or 'they printed nothing'}"
        )
