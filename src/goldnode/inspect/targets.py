"""Inspection targets: OCI layouts, saved images, tars and directories with a root, wheels, and disks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from goldnode.core.decompress import ZSTD, unpacked
from goldnode.core.errors import ImageError, nearest
from goldnode.inspect.scan import (
    Limits,
    Scan,
    View,
    kept_scan,
    scan_directory,
    scan_tar,
    scan_wheel,
    shown,
)
from goldnode.oci.identity import identity, names_of
from goldnode.oci.layout import INDEX, Layout, OciImage

# Smaller inputs are scanned faster in one process.
_WORTH_A_PROCESS = 64 << 20
_DOCUMENT = 8 << 20  # bytes of a manifest or configuration

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", ZSTD)
_REFUSED = {
    b"QFI\xfb": ("a qcow2 disk", "convert it with `qemu-img convert -O raw`"),
    b"hsqs": ("a squashfs file system", "unpack it with `unsquashfs` and name the directory"),
    b"KDMV": ("a VMDK disk", "convert it with `qemu-img convert -O raw`"),
    b"!<arch>\n": ("a Debian package", "unpack it with `dpkg-deb -R` and name the directory"),
}


@dataclass
class InspectionTarget:
    """One thing to inspect. `image` is set for an image in a layout, so that the result can be attached to
    it.
    """

    view: View
    kind: str
    backend: str = ""
    image: OciImage | None = None


def find(
    text: str,
    layout: Layout | None,
    cache: Path | None = None,
    *,
    jobs: int = 0,
    limits: Limits | None = None,
    absent: Callable[[str, Iterable[str]], str] = nearest,
) -> list[InspectionTarget]:
    """Resolve `text` to targets: a path, otherwise a name or digest in `layout`.

    Raise ImageError if it is neither, or cannot be read. `jobs` is the number of processes that scan layers
    and wheels; 0 means one per processor, at most four. `absent` returns the remedy for an image that
    `layout` lacks; its arguments are the name and the names in the layout.
    """
    path = Path(text)
    run = _ScanRun(cache, jobs or min(4, os.cpu_count() or 1), limits)
    if path.is_dir():
        if (path / "oci-layout").is_file():
            there = Layout(path, create=False)
            return [_of_image(there, digest, name, run) for name, digest in _images(there)]
        wheels = sorted(path.glob("*.whl"))
        if wheels:
            return [_of_wheels(wheels, str(path), run)]
        return [InspectionTarget(_view(str(path), [scan_directory(path, limits)]), "root")]
    if path.is_file():
        return _of_file(path, run)
    if layout is not None:
        targets = _named(text, layout)
        if targets:
            return [_of_image(layout, digest, name, run) for name, digest in targets]
    known = [] if layout is None else sorted(layout.refs())
    raise ImageError(
        f"there is no file, directory or image {shown(text)!r}",
        remedy=absent(text, known) or "name a path",
    )


@dataclass
class _ScanRun:
    cache: Path | None
    jobs: int
    limits: Limits | None

    def map(
        self, work: Callable[..., Scan], rows: Sequence[tuple[Any, ...]], size: int
    ) -> list[Scan]:
        """Call `work` with each row, in parallel processes if worth it. `size` is the total input in
        bytes.
        """
        if self.jobs > 1 and len(rows) > 1 and size >= _WORTH_A_PROCESS:
            with ProcessPoolExecutor(min(self.jobs, len(rows))) as pool:
                return [
                    row.result() for row in [pool.submit(work, *arguments) for arguments in rows]
                ]
        return [work(*arguments) for arguments in rows]


def _view(name: str, scans: Sequence[Scan]) -> View:
    view = View(name=name)
    for scan in scans:
        view.add(scan)
    return view


# ----- images of a layout


def _named(text: str, layout: Layout) -> list[tuple[str, str]]:
    """Return the images that a name refers to: a digest, a ref, or every build that has it by its labels."""
    if text.startswith("sha256:"):
        return [(text, text)] if layout.has(text) else []
    refs = layout.refs()
    if text in refs:
        return [(text, refs[text].digest)]
    return [
        (name, row.digest)
        for name, row in sorted(refs.items())
        if text in names_of(layout, row.digest)
    ]


def _images(layout: Layout) -> Iterator[tuple[str, str]]:
    """Return names and manifests of the images of a layout, without artefacts.

    Of an index, return only the images for Linux.
    """
    todo = [
        (
            dict(row.get("annotations") or {}).get(
                "org.opencontainers.image.ref.name", row["digest"]
            ),
            row,
        )
        for row in layout.index()
    ]
    number = 0
    while todo:
        name, row = todo.pop(0)
        number += 1
        # An index may contain indexes, and a hostile one itself.
        if number > 1000:
            raise ImageError(
                f"{layout.root} names more than 1,000 manifests", remedy="name one of its images"
            )
        if row.get("artifactType") or not layout.has(row["digest"]):
            continue
        document = layout.document(row["digest"])
        if document.get("mediaType", row.get("mediaType")) in (
            INDEX,
            "application/vnd.docker.distribution.manifest.list.v2+json",
        ):
            todo += [
                (name, sub)
                for sub in document.get("manifests", [])
                if (sub.get("platform") or {}).get("os", "linux") == "linux"
            ]
        elif "layers" in document and "subject" not in document:
            yield name, row["digest"]


def _of_image(layout: Layout, digest: str, name: str, run: _ScanRun) -> InspectionTarget:
    image = OciImage(layout, digest)
    layers = image.layers
    rows = [(layout.root, digest, number, run.cache, run.limits) for number in range(len(layers))]
    view = _view(name, run.map(scan_layer, rows, sum(layer.size for layer in layers)))
    _configure(view, image.config)
    return InspectionTarget(view, "image", view.labels.get("io.goldnode.backend", ""), image)


def scan_layer(
    root: Path, manifest: str, number: int, cache: Path | None, limits: Limits | None
) -> Scan:
    """Scan layer `number` of an image of the layout at `root`, or return the cached scan of that layer.

    Raise ImageError if the blob is missing or altered.
    """
    image = OciImage(Layout(root, create=False), manifest)
    digest = image.layers[number].digest

    def make() -> Scan:
        path = image.layout.path(digest)
        try:
            with path.open("rb") as blob:
                is_whole = "sha256:" + hashlib.file_digest(blob, "sha256").hexdigest() == digest
        except FileNotFoundError:
            raise ImageError(
                f"blob {digest} is not in {root}", remedy="build or pull the image again"
            ) from None
        if not is_whole:
            raise ImageError(
                f"blob {digest} in {root} is altered",
                remedy="delete that file and build or pull the image again",
            )
        try:
            with image.layer(number) as tar:
                return scan_tar(tar, limits, name=digest)
        except (ImageError, OSError) as error:
            return Scan(left_out={digest: f"the layer cannot be read: {error.__cause__ or error}"})

    return kept_scan(digest, cache, make)


def _configure(view: View, config: dict[str, Any]) -> None:
    settings = config.get("config") or {}
    view.configured = True
    view.environment = dict(str(row).partition("=")[::2] for row in settings.get("Env") or [])
    view.labels = {str(key): str(value) for key, value in (settings.get("Labels") or {}).items()}
    view.architecture = str(config.get("architecture", ""))
    view.command = tuple(
        map(str, [*(settings.get("Entrypoint") or []), *(settings.get("Cmd") or [])])
    )
    view.workdir = str(settings.get("WorkingDir") or "")
    view.user = str(settings.get("User") or "")
    view.identity = identity(config)


# ----- files


def _of_file(path: Path, run: _ScanRun) -> list[InspectionTarget]:
    if path.suffix == ".whl":
        return [_of_wheels([path], path.name, run)]
    with path.open("rb") as file:
        head = file.read(2048)
    for magic, (what, remedy) in _REFUSED.items():
        if head.startswith(magic):
            raise ImageError(f"{path} is {what}, which is not read", remedy=remedy)
    if (
        any(head.startswith(magic) for magic in _COMPRESSED)
        or head[257:262] == b"ustar"
        or (_may_be_tar(head) and _is_tar(path))
    ):
        return _of_tar(path, run)
    from goldnode.inspect import disk

    return [
        InspectionTarget(_view(name, [scan]), "disk")
        for name, scan in disk.scan_disk(path, run.limits)
    ]


def _may_be_tar(head: bytes) -> bool:
    """Return whether a file that begins with `head` may be a tar older than POSIX, which has no magic number.

    Only its checksum identifies such a tar. tarfile accepts zeros as an empty tar, and reads a field without
    digits as checksum 0. By chance, that matches about one in some hundred partition tables.
    """
    return any(head[148:156]) and head[510:512] != b"\x55\xaa"


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False


def scan_wheel_file(path: Path, limits: Limits | None) -> Scan:
    """Call `scan_wheel`. A module-level function, so that it can be pickled for another process."""
    return scan_wheel(path, limits)


def _of_wheels(paths: list[Path], name: str, run: _ScanRun) -> InspectionTarget:
    scans = run.map(
        scan_wheel_file,
        [(path, run.limits) for path in paths],
        sum(path.stat().st_size for path in paths),
    )
    return InspectionTarget(_view(name, scans), "wheel" if len(paths) == 1 else "wheels")


def _of_tar(path: Path, run: _ScanRun) -> list[InspectionTarget]:
    try:
        with _tar(path) as tar:
            first = tar.next()
            names: set[str] = set()
            # Docker and skopeo put the identifying files among few others; a root has tens of thousands.
            while first is not None and len(names) < 5000:
                names.add(first.name.removeprefix("./"))
                first = tar.next()
            if "manifest.json" in names and not {"etc", "usr"} & names:
                return [_of_saved(tar, row, run) for row in _json(tar, "manifest.json", path)]
            if "oci-layout" in names and "index.json" in names:
                return [
                    _of_archive(tar, row, path, run)
                    for row in _json(tar, "index.json", path)["manifests"]
                ]
        with _tar(path) as tar:
            return [
                InspectionTarget(
                    _view(str(path), [scan_tar(tar, run.limits, name=path.name)]), "root"
                )
            ]
    except (tarfile.TarError, EOFError, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ImageError(
            f"{path} cannot be read as a tar: {error}", remedy="write it again"
        ) from error


@contextmanager
def _tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar, which may be compressed."""
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        if file.read(4) == ZSTD:
            file.seek(0)
            plain = stack.enter_context(tempfile.TemporaryFile(prefix="goldnode-inspect-"))
            shutil.copyfileobj(unpacked("zstd", file), plain, 1 << 20)
            plain.seek(0)
            yield stack.enter_context(tarfile.open(fileobj=plain, mode="r:"))
        else:
            file.seek(0)
            yield stack.enter_context(tarfile.open(fileobj=file, mode="r:*"))


def _json(tar: tarfile.TarFile, name: str, path: Path) -> Any:
    with _member(tar, name) as stream:
        data = stream.read(_DOCUMENT + 1)
    if len(data) > _DOCUMENT:
        raise ImageError(f"{name} in {path} is larger than any manifest")
    return json.loads(data)


@contextmanager
def _member(tar: tarfile.TarFile, name: str) -> Iterator[IO[bytes]]:
    for _ in range(8):
        try:
            info = tar.getmember(name)
        except KeyError:
            info = tar.getmember(f"./{name}")
        if not info.issym():  # docker save links layers that several images share
            break
        name = os.path.normpath(os.path.join(os.path.dirname(name), info.linkname))  # noqa: PTH118, PTH120 - names inside a tar
    stream = tar.extractfile(info) if info.isreg() else None
    if stream is None:
        raise KeyError(f"{name} is no file of it")
    with stream:
        yield stream


def _of_saved(tar: tarfile.TarFile, row: dict[str, Any], run: _ScanRun) -> InspectionTarget:
    """Return the target of an image written by `docker save`."""
    name = next(iter(row.get("RepoTags") or []), row["Config"])
    view = View(name=name)
    for layer in row["Layers"]:
        view.add(_nested(tar, layer, run))
    with _member(tar, row["Config"]) as stream:
        _configure(view, json.loads(stream.read(_DOCUMENT)))
    return InspectionTarget(view, "image", view.labels.get("io.goldnode.backend", ""))


def _of_archive(
    tar: tarfile.TarFile, row: dict[str, Any], path: Path, run: _ScanRun
) -> InspectionTarget:
    """Return the target of an image of an OCI layout in a tar."""

    def blob(digest: str) -> str:
        return "blobs/" + digest.replace(":", "/")

    manifest = _json(tar, blob(row["digest"]), path)
    if "layers" not in manifest:
        raise ImageError(
            f"{path} holds an index of several platforms", remedy="unpack it and name the directory"
        )
    view = View(
        name=(row.get("annotations") or {}).get("org.opencontainers.image.ref.name", row["digest"])
    )
    for layer in manifest["layers"]:
        view.add(_nested(tar, blob(layer["digest"]), run))
    _configure(view, _json(tar, blob(manifest["config"]["digest"]), path))
    return InspectionTarget(view, "image", view.labels.get("io.goldnode.backend", ""))


def _nested(tar: tarfile.TarFile, name: str, run: _ScanRun) -> Scan:
    with _member(tar, name) as stream, ExitStack() as stack:
        try:
            is_zstd = stream.read(4) == ZSTD
            stream.seek(0)
            plain = stack.enter_context(unpacked("zstd", stream)) if is_zstd else stream
            with tarfile.open(fileobj=plain, mode="r|" if is_zstd else "r|*") as layer:
                return scan_tar(layer, run.limits, name=name)
        except (tarfile.TarError, EOFError, OSError) as error:
            return Scan(left_out={name: f"the layer cannot be read: {error}"})
