"""A small matrix with locks and a pool of made-up files, and an engine that runs nothing: for tests of recipes and builds."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from goldnode.core.errors import ImageError
from goldnode.images.imagelock import ImageLock, _Parent, intent_digest
from goldnode.images.matrix import ImageMatrix, MatrixRow, load_matrix
from goldnode.images.store import ImageStore
from goldnode.lock.locked_files import LockedDeb, LockedWheel
from goldnode.oci import engines, layers
from goldnode.oci.engines import EngineStep

MATRIX = """\
matrix: 1
systems:
  debian12: {id: debian, release: "12", codename: bookworm, architectures: [amd64], python: "3.11", glibc: "2.36", archives: [debian]}
  debian13: {id: debian, release: "13", codename: trixie, architectures: [amd64], python: "3.13", glibc: "2.41", archives: [debian]}
licences:
  debian: {title: MIT, redistribution: free, note: made up}
  nvidia: {title: LicenseRef-NVIDIA, redistribution: private, note: made up}
backends:
  cpu:
    title: Debian
    purity: cpu
    releases:
      - version: "1"
        os: [debian12, debian13]
        components: {os: {debs: [base-files], licence: debian}}
        flavours: {base: {parent: null, components: [os]}}
  cuda:
    title: CUDA
    purity: cuda
    releases:
      - version: 12.4.1
        os: [debian12]
        components:
          cudart: {version: 12.4.127, wheel: nvidia-cuda-runtime-cu12, layout: cuda, licence: nvidia}
          cudnn: {version: 9.1.0.70, wheel: nvidia-cudnn-cu12, layout: cuda, licence: nvidia}
          cublas: {version: 12.4.5.8, wheel: nvidia-cublas-cu12, layout: cuda, licence: nvidia}
        flavours:
          base: {parent: cpu-1-base, components: [cudart]}
          runtime: {parent: base, components: [cublas, cudnn]}
          devel: {parent: runtime, debs: [make]}
      - version: 13.0.0
        os: [debian13]
        components: {cudart: {version: 13.0.48, wheel: nvidia-cuda-runtime, layout: cuda, licence: nvidia}}
        flavours: {base: {parent: cpu-1-base, components: [cudart]}}
"""
TOOLS = {
    "zlib": "1.3",
    "layer": "1",
    "mmdebstrap": "1.3.5",
    "apt": "2.6",
    "dpkg": "1.21",
    "engine": "fake 1",
}
WHEELS = {
    "cuda-12.4.1-base-debian12": {"nvidia_cuda_runtime_cu12": "12.4.127"},
    "cuda-12.4.1-runtime-debian12": {
        "nvidia_cublas_cu12": "12.4.5.8",
        "nvidia_cudnn_cu12": "9.1.0.70",
    },
    "cuda-13.0.0-base-debian13": {"nvidia_cuda_runtime": "13.0.48"},
}
DEBS = {
    "cpu-1-base-debian12": ["base-files"],
    "cpu-1-base-debian13": ["base-files"],
    "cuda-12.4.1-devel-debian12": ["make"],
}


def wheel_bytes(name: str, version: str) -> bytes:
    """A wheel with one library, the same bytes for the same name and version."""
    out = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in (
            (f"nvidia/{name}/lib/lib{name}.so.1", f"{name} {version}"),
            (f"{info}/METADATA", f"Name: {name}\nVersion: {version}\n"),
            (f"{info}/RECORD", f"{info}/RECORD,,\n"),
        ):
            archive.writestr(zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0)), text)
    return out.getvalue()


class World:
    """A matrix, locks that can be changed, and a store whose pool has the files."""

    def __init__(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / "matrix.yml").write_text(MATRIX)
        self.place = place
        self.matrix: ImageMatrix = load_matrix(place / "matrix.yml")
        self.wheels = {name: dict(rows) for name, rows in WHEELS.items()}
        self.store = ImageStore(place / "store")
        self.resolved = "2026-11-22"

    def rows(self) -> list[tuple[MatrixRow, ImageLock]]:
        """All rows with their locks, whose files are in the pool afterwards."""
        found: list[tuple[MatrixRow, ImageLock]] = []
        digests: dict[str, str] = {}
        for row in self.matrix.images.values():
            parent = row.image.parent
            lock = ImageLock(
                lock=1,
                image=row.name,
                intent=intent_digest(row),
                resolved=self.resolved,
                parent=_Parent(image=parent, lock=digests[parent]) if parent is not None else None,
                archives=[],
                debs=[self.deb(name) for name in DEBS.get(row.name, ())],
                wheels=[
                    self.wheel(name, version)
                    for name, version in self.wheels.get(row.name, {}).items()
                ],
            )
            digests[row.name] = lock.digest
            found.append((row, lock))
        return found

    def keep(self, file: str, data: bytes) -> str:
        """Put a file into the pool; returns its hash."""
        sha256 = hashlib.sha256(data).hexdigest()
        target = self.store.pool / sha256 / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return sha256

    def wheel(self, name: str, version: str) -> LockedWheel:
        """A made-up wheel, locked."""
        data, file = wheel_bytes(name, version), f"{name}-{version}-py3-none-any.whl"
        return LockedWheel(
            name=name,
            version=version,
            file=file,
            sha256=self.keep(file, data),
            size=len(data),
            why="requested",
        )

    def deb(self, name: str) -> LockedDeb:
        """A made-up package, locked."""
        data, file = f"package {name}".encode(), f"{name}_1_amd64.deb"
        sha256 = self.keep(file, data)
        return LockedDeb(
            name=name,
            version="1",
            architecture="amd64",
            sha256=sha256,
            size=len(data),
            path=f"pool/{file}",
            archive="debian",
            why="requested",
        )


@dataclass
class FakeEngine:
    """An engine that puts one file into its layer, and remembers what it was asked."""

    name: str = "fake"
    version: str = "1"
    exercised: str = "nowhere"
    steps: list[EngineStep] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    content: str = "the cache"
    fails: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def run(self, step: EngineStep) -> Iterator[IO[bytes]]:
        """See Engine."""
        self.steps.append(step)
        libraries = (step.directory / "libraries").read_text()
        self.shown.append(libraries)
        if any(name in libraries for name in self.fails):
            raise ImageError("the script failed")
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            for name, text in (("etc/ld.so.cache", self.content + libraries), ("run/left", "over")):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(text), 2_000_000_000
                tar.addfile(info, io.BytesIO(text.encode()))
            for name, target in self.links.items():
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, target
                tar.addfile(info)
        raw.seek(0)
        yield raw


def fake_root(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No mmdebstrap, no dpkg-deb: a root with one file. Returns the list of roots that were made."""
    made: list[str] = []

    def make_root(
        repository: Path, packages: Sequence[str], plan: engines.RootPlan, into: Path, *, work: Path
    ) -> None:
        codename = plan.codename
        made.append(codename)
        with tarfile.open(into, "w") as tar:
            for name in ("etc", "usr", "usr/bin", "usr/lib", "usr/local", "etc/os-release"):
                kind = tarfile.REGTYPE if "release" in name else tarfile.DIRTYPE
                info = tarfile.TarInfo(name)
                info.type, info.mode, info.mtime = kind, 0o755, plan.epoch
                info.size = len(codename) if kind == tarfile.REGTYPE else 0
                tar.addfile(info, io.BytesIO(codename.encode()))

    monkeypatch.setattr(engines, "make_root", make_root)
    monkeypatch.setattr(
        "goldnode.images.build.stanza", lambda path, sha256, error: f"Package: {path.name}\n"
    )
    monkeypatch.setattr(layers, "tools", lambda: {"zlib": "1.3", "layer": "1"})
    return made
