"""Disks and roots as OCI images, for what takes its images from a registry.

Each is an OCI image layout in a tar ("OCI archive"): skopeo, podman, containerd and Docker from 25 read it.

- `oci`: the root as an image of one layer. Warewulf and OpenCHAMI make a node of it: kernel and initramfs are in
  /boot of the root.
- `containerdisk`: the qcow2 as /disk/NAME.qcow2, owned by user 107. KubeVirt boots a VM from it.
"""

from __future__ import annotations

import datetime
import re
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from goldnode.core.files import sha256_of
from goldnode.oci.layers import Layer, normalised, write_members
from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Descriptor, Layout, canonical
from goldnode.oci.model import LABELS

_QEMU = 107  # user and group that QEMU runs as in KubeVirt's pods
_NOTHING = re.compile(r"(?!)")  # matches no name


@dataclass(frozen=True)
class ImageFacts:
    """Facts that an archive states: name of the disk, kernel release, date of its files (seconds), dpkg's name of the architecture."""

    name: str
    release: str
    epoch: int
    architecture: str = "amd64"


def from_root(tar: Path, out: Path, facts: ImageFacts) -> None:
    """Write the root in `tar` (not compressed) as an OCI archive."""
    with tempfile.TemporaryDirectory(prefix=".oci-", dir=out.parent) as place:
        layout = Layout(Path(place))
        with tar.open("rb") as file:
            layer = write_members(layout, normalised(file, facts.epoch, _NOTHING))
        settings: dict[str, object] = {"Cmd": ["/sbin/init"], "StopSignal": "SIGRTMIN+3"}
        _archive(layout, out, layer, settings, facts)


def from_qcow2(qcow2: Path, out: Path, facts: ImageFacts) -> None:
    """Write a qcow2 as an OCI archive with one file. Its layer is not compressed, as the qcow2 is."""
    with tempfile.TemporaryDirectory(prefix=".oci-", dir=out.parent) as place:
        layout = Layout(Path(place))
        with tempfile.NamedTemporaryFile(dir=layout.root) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for info, content in _disk(qcow2, facts.name, facts.epoch):
                    tar.addfile(info, content)
            file.flush()
            digest = f"sha256:{sha256_of(Path(file.name))}"
            size = Path(file.name).stat().st_size
            Path(file.name).chmod(0o644)
            layout.path(digest).hardlink_to(file.name)
        layer = Layer(digest, Descriptor(LAYER, digest, size))
        _archive(layout, out, layer, {}, facts)


def _disk(qcow2: Path, name: str, epoch: int) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    folder = tarfile.TarInfo("disk")
    folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o755, epoch
    folder.uid = folder.gid = _QEMU
    yield folder, None
    info = tarfile.TarInfo(f"disk/{name}.qcow2")
    info.size, info.mode, info.mtime = qcow2.stat().st_size, 0o440, epoch
    info.uid = info.gid = _QEMU
    with qcow2.open("rb") as content:
        yield info, content


def _archive(
    layout: Layout,
    out: Path,
    layer: Layer,
    settings: dict[str, object],
    facts: ImageFacts,
) -> None:
    """Add configuration and manifest to a layout with one layer, and write it as a tar."""
    created = datetime.datetime.fromtimestamp(facts.epoch, datetime.UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    labels = {
        "org.opencontainers.image.title": facts.name,
        "org.opencontainers.image.created": created,
        f"{LABELS}kernel": facts.release,
    }
    config = {
        "created": created,
        "architecture": facts.architecture,
        "os": "linux",
        "config": {**settings, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff]},
        "history": [{"created": created, "created_by": "goldnode disks build"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.put(canonical(config), CONFIG).document(),
        "layers": [layer.blob.document()],
        "annotations": labels,
    }
    layout.set_ref(facts.name, layout.put(canonical(manifest), MANIFEST))
    (layout.root / ".lock").unlink()
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(layout.root.rglob("*")):
            info = tarfile.TarInfo(str(path.relative_to(layout.root)))
            info.mtime = facts.epoch
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
                continue
            info.size, info.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                tar.addfile(info, content)
