"""An OCI image layout on disk: blobs by digest, manifests, the files of an image, and its attached documents.

The layout is that of the OCI image specification 1.1 (`oci-layout`, `index.json`, `blobs/sha256`), so skopeo,
buildah and others can read it. Evidence about an image is an artefact manifest with a `subject`, as in a
registry.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

from goldnode.core.decompress import unpacked
from goldnode.core.errors import ImageError
from goldnode.node.ground.json_lines import as_dict

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
REF = "org.opencontainers.image.ref.name"

Content = TypeVar("Content")
_BLOCK = 1 << 20  # bytes of one read


@dataclass(frozen=True)
class Descriptor:
    """Media type, digest (`sha256:…`) and size in bytes of a blob."""

    media_type: str
    digest: str
    size: int
    annotations: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, data: Any) -> Descriptor:
        """Read a descriptor of a manifest or index. Raises ImageError for another form."""
        row = as_dict(data)
        kind, digest, size = row.get("mediaType"), row.get("digest"), row.get("size")
        notes = row.get("annotations") or {}
        if not (
            isinstance(kind, str)
            and isinstance(digest, str)
            and type(size) is int
            and size >= 0
            and isinstance(notes, dict)
            and _are_texts([*notes.values()])
        ):
            raise ImageError(
                f"a blob is described in another form than OCI's: {data!r:.120}",
                remedy="build or pull the image again",
            )
        return cls(kind, digest, size, tuple(sorted(notes.items())))

    def document(self) -> dict[str, Any]:
        """Return the descriptor as it is in a manifest."""
        fields: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.annotations:
            fields["annotations"] = dict(self.annotations)
        return fields


def canonical(document: Any) -> bytes:
    """Return the bytes of a JSON document. Keys are sorted and there are no spaces, so that equal documents have
    equal digests.
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(data: bytes) -> str:
    """`sha256:…` of bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_manifest(data: bytes, where: str) -> dict[str, Any]:
    """Return a manifest or an index. Raises ImageError if what goldnode reads of it has another form than OCI's."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    parts = as_dict(document)
    layers, manifests = parts.get("layers", []), parts.get("manifests", [])
    lists = isinstance(layers, list) and isinstance(manifests, list)
    if not isinstance(document, dict) or not lists or not _are_texts([parts.get("mediaType", "")]):
        raise ImageError(
            f"{where} is no manifest: it is no JSON object with lists of layers or manifests",
            remedy="look at the registry's storage; build or pull the image again",
        )
    for row in (*layers, *manifests, *([parts["config"]] if "config" in parts else [])):
        Descriptor.of(row)
    return document


def read_config(data: bytes, where: str) -> dict[str, Any]:
    """Return an image configuration. Raises ImageError if what goldnode reads of it has another form than OCI's."""
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        config = None
    whole = as_dict(config)
    settings, rootfs = whole.get("config") or {}, whole.get("rootfs") or {}
    labels, history = as_dict(settings).get("Labels") or {}, whole.get("history") or []
    if not (
        isinstance(config, dict)
        and isinstance(settings, dict)
        and isinstance(rootfs, dict)
        and isinstance(labels, dict)
        and _are_texts([*labels.values()])
        and _are_texts(settings.get("Env") or [])
        and _are_texts(rootfs.get("diff_ids") or [])
        and isinstance(history, list)
        and all(isinstance(row, dict) for row in history)
    ):
        raise ImageError(
            f"{where} has another form than an image configuration of OCI",
            remedy="build or pull the image again",
        )
    return whole


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


# RecursionError: JSON that is nested too deeply.
_NO_INDEX = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
# Of a damaged archive, and of a damaged or cut compression.
_NO_LAYER = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, FileNotFoundError)


class Layout:
    """An OCI image layout. Writers in several processes are safe: blobs are renamed into place, the index is locked."""

    def __init__(self, root: Path, *, create: bool = True) -> None:
        self.root = root
        if create:
            (root / "blobs/sha256").mkdir(parents=True, exist_ok=True)
            if not (root / "oci-layout").exists():
                _write(root / "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
            if not (root / "index.json").exists():
                _write(
                    root / "index.json",
                    canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}),
                )
        elif not (root / "oci-layout").is_file():
            raise ImageError(f"{root} is no OCI image layout: it has no oci-layout file")

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether or not it is there."""
        kind, _, value = digest.partition(":")
        if kind != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
            raise ImageError(f"{digest!r} is no sha256 digest")
        return self.root / "blobs/sha256" / value

    def has(self, digest: str) -> bool:
        """Return whether the blob is there; its content is not read."""
        return self.path(digest).is_file()

    def read(self, digest: str) -> bytes:
        """Return the content of one file, with links followed; None if it does not exist. Reads its layer up
        to that file.
        """
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError:
            raise ImageError(
                f"blob {digest} is not in {self.root}", remedy="build or pull the image again"
            ) from None
        if digest_of(data) != digest:
            raise ImageError(
                f"blob {digest} in {self.root} is altered",
                remedy="delete that file and build or pull the image again",
            )
        return data

    def document(self, digest: str) -> dict[str, Any]:
        """Return the content of a JSON blob."""
        try:
            content = json.loads(self.read(digest))
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise ImageError(f"blob {digest} in {self.root} is no JSON object")
        return content

    def put(self, data: bytes, media_type: str) -> Descriptor:
        """Keep bytes as a blob."""
        digest = digest_of(data)
        if self.has(digest):
            os.utime(self.path(digest))  # it is needed now: what collects garbage looks at the age
        else:
            _write(self.path(digest), data)
        return Descriptor(media_type, digest, len(data))

    def index(self) -> list[dict[str, Any]]:
        """Return the descriptors in index.json."""
        try:
            manifests = json.loads((self.root / "index.json").read_bytes())["manifests"]
            for row in manifests:
                Descriptor.of(row)
        except _NO_INDEX as error:
            raise ImageError(f"{self.root}/index.json cannot be read: {error}") from error
        return list(manifests)

    @contextmanager
    def _changing(self) -> Iterator[list[dict[str, Any]]]:
        with (self.root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            rows = self.index()
            yield rows
            rows.sort(key=lambda row: ((row.get("annotations") or {}).get(REF, ""), row["digest"]))
            _write(
                self.root / "index.json",
                canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}),
            )

    def refs(self) -> dict[str, Descriptor]:
        """Return the names (`cuda:12.4.1-runtime-debian12-BUILDID`) and the manifests that they point to."""
        return {
            name: Descriptor.of(row)
            for row in self.index()
            if (name := (row.get("annotations") or {}).get(REF)) is not None
        }

    def set_ref(self, name: str, descriptor: Descriptor) -> None:
        """Point `name` to a manifest; its previous manifest loses the name."""
        with self._changing() as rows:
            rows[:] = [row for row in rows if (row.get("annotations") or {}).get(REF) != name]
            rows.append(
                {
                    **Descriptor(
                        descriptor.media_type, descriptor.digest, descriptor.size
                    ).document(),
                    "annotations": {REF: name},
                }
            )

    def name_as(self, name: str, digest: str) -> None:
        """Point `name` to an image of this layout. Without that image, remove the name rather than leave it
        on the wrong one.
        """
        if self.has(digest):
            self.set_ref(name, Descriptor(MANIFEST, digest, self.path(digest).stat().st_size))
        elif name in self.refs():
            self.drop_ref(name)

    def drop_ref(self, name: str) -> None:
        """Take a name away; the blobs stay until `collect`."""
        with self._changing() as rows:
            rows[:] = [row for row in rows if (row.get("annotations") or {}).get(REF) != name]

    def image(self, name: str) -> OciImage:
        """Return the image of a name or of a manifest's digest. Raises ImageError."""
        if name.startswith("sha256:"):
            return OciImage(self, name)
        descriptor = self.refs().get(name)
        if descriptor is None:
            raise ImageError(
                f"{name} is not in {self.root}", remedy="`goldnode images list` names what is there"
            )
        return OciImage(self, descriptor.digest)

    def attach(
        self,
        subject: str,
        artifact_type: str,
        data: bytes,
        *,
        media_type: str | None = None,
        annotations: Mapping[str, str] | None = None,
        layer_annotations: Mapping[str, str] | None = None,
    ) -> Descriptor:
        """Attach a document to the image with manifest digest `subject`: an artefact manifest (OCI 1.1). Returns its descriptor.

        The same document attached twice is one artefact. `layer_annotations` are those of the document itself.
        """
        layer = self.put(data, media_type or artifact_type)
        noted = tuple(sorted((layer_annotations or {}).items()))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": artifact_type,
            "config": self.put(b"{}", EMPTY).document(),
            "layers": [replace(layer, annotations=noted).document()],
            "subject": Descriptor(MANIFEST, subject, self.path(subject).stat().st_size).document(),
            "annotations": dict(annotations or {}),
        }
        descriptor = self.put(canonical(manifest), MANIFEST)
        row = {
            **descriptor.document(),
            "artifactType": artifact_type,
            "annotations": {"io.goldnode.subject": subject},
        }
        with self._changing() as rows:
            if all(other["digest"] != descriptor.digest for other in rows):
                rows.append(row)
        return descriptor

    def detach(self, digest: str) -> None:
        """Take an attached document off its image; its blobs stay until `collect`."""
        with self._changing() as rows:
            rows[:] = [row for row in rows if row["digest"] != digest]

    def attached(
        self, subject: str, artifact_type: str | None = None
    ) -> list[tuple[Descriptor, dict[str, Any]]]:
        """Return the documents attached to an image: descriptor and artefact manifest of each, by digest."""
        documents = []
        for row in self.index():
            if (row.get("annotations") or {}).get(
                "io.goldnode.subject"
            ) == subject and artifact_type in (
                None,
                row.get("artifactType"),
            ):
                documents.append((Descriptor.of(row), self.document(row["digest"])))
        return sorted(documents, key=lambda pair: pair[0].digest)


@dataclass(frozen=True)
class Member:
    """A file of an image as its last layer left it. `path` is relative (`usr/bin/env`); `layer` counts from 0."""

    path: str
    layer: int
    info: tarfile.TarInfo


class OciImage:
    """One image of a layout: its manifest, its configuration, its files."""

    def __init__(self, layout: Layout, digest: str) -> None:
        self.layout = layout
        self.digest = digest
        self.manifest = read_manifest(layout.read(digest), f"{digest} in {layout.root}")
        if "layers" not in self.manifest or "config" not in self.manifest:
            raise ImageError(f"{digest} in {layout.root} is no image manifest")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the image configuration: `config` (Env, Labels, …), `rootfs`, `history`."""
        digest = self.manifest["config"]["digest"]
        return read_config(self.layout.read(digest), f"blob {digest} in {self.layout.root}")

    @property
    def layers(self) -> list[Descriptor]:
        """Return the layers, lowest first."""
        return [Descriptor.of(row) for row in self.manifest["layers"]]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the configuration."""
        return dict((self.config.get("config") or {}).get("Labels") or {})

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the configuration."""
        rows = (self.config.get("config") or {}).get("Env") or []
        return dict(row.partition("=")[::2] for row in rows)

    @contextmanager
    def layer(self, number: int) -> Iterator[tarfile.TarFile]:
        """Yield the tar of a layer as a stream: members in order, each read before the next. Raises ImageError."""
        row = self.layers[number]
        try:
            with (
                self.layout.path(row.digest).open("rb") as raw,
                unpacked_layer(raw, row.media_type) as plain,
                tarfile.open(fileobj=plain, mode="r|", bufsize=_BLOCK) as tar,
            ):
                yield tar
        except _NO_LAYER as problem:
            raise ImageError(
                f"layer {row.digest} in {self.layout.root} cannot be read: {problem}",
                remedy="build or pull the image again",
            ) from problem

    @cached_property
    def members(self) -> dict[str, Member]:
        """Return the files of the image by path, without files that a higher layer removes or replaces. Read each layer's headers once."""
        layers = []
        for number in range(len(self.layers)):
            with self.layer(number) as tar:
                layers.append(
                    {clean(info.name): Member(clean(info.name), number, info) for info in tar}
                )
        return overlay(layers, lambda member: member.info.isdir())

    def files(self, wanted: set[str] | None = None) -> Iterator[tuple[Member, IO[bytes]]]:
        """Regular files of the image with their content, in the order of the layers; `wanted`: only these paths.

        The content is a stream of the layer: read before the next file is asked for. A hard link's is its target's.
        """
        by_layer: dict[int, dict[str, list[Member]]] = {}
        for path, member in self.members.items():
            if (wanted is None or path in wanted) and (member.info.isreg() or member.info.islnk()):
                source = clean(member.info.linkname) if member.info.islnk() else path
                by_layer.setdefault(member.layer, {}).setdefault(source, []).append(member)
        for number, sources in sorted(by_layer.items()):
            with self.layer(number) as tar:
                for info in tar:
                    members = sources.get(clean(info.name)) if info.isreg() else None
                    if not members:
                        continue
                    stream = tar.extractfile(info)
                    if stream is None:  # only of what is no file
                        continue
                    if len(members) == 1:
                        yield members[0], stream
                        continue
                    data = stream.read()
                    for member in members:
                        yield member, io.BytesIO(data)

    @cached_property
    def folders(self) -> set[str]:
        """Return the directories that exist because they have content: a tar need not list them."""
        return parents(self.members)

    def resolve(self, path: str) -> str | None:
        """Return the path that `path` leads to inside the image; None if it leads nowhere. Links are followed."""

        def link(here: str) -> str | None:
            member = self.members.get(here)
            if member is None:
                return "" if here in self.folders else None
            return member.info.linkname if member.info.issym() else ""

        return follow(path, link)

    def read(self, path: str) -> bytes | None:
        """Return the content of one file; None without that file. Links are followed. The layer is read up to the file."""
        real = self.resolve(path)
        if real is None:
            return None
        for _, stream in self.files({real}):
            return stream.read()
        return None


def overlay(
    layers: Iterable[Mapping[str, Content]], is_directory: Callable[[Content], bool]
) -> dict[str, Content]:
    """Return the paths that remain of layers, lowest first. Whiteouts (`.wh.NAME`, `.wh..wh..opq`) are
    applied and not returned.
    """
    contents: dict[str, Content] = {}
    for layer in layers:
        gone, opaque, here = [], [], {}
        for path, item in layer.items():
            folder, _, name = path.rpartition("/")
            if name == ".wh..wh..opq":
                opaque.append(folder)
            elif name.startswith(".wh."):
                gone.append(f"{folder}/{name[4:]}".lstrip("/"))
            elif path:
                here[path] = item
        # A file that replaces a directory removes the directory's content.
        gone += [
            path
            for path, item in here.items()
            if not is_directory(item) and path in contents and is_directory(contents[path])
        ]
        for path in gone:
            contents.pop(path, None)
        prefixes = tuple(f"{path}/" for path in (*gone, *opaque) if path)
        if "" in opaque:
            contents.clear()
        if prefixes:
            contents = {
                path: item for path, item in contents.items() if not path.startswith(prefixes)
            }
        contents.update(here)
    return contents


def parents(paths: Iterable[str]) -> set[str]:
    """Return the directories above relative paths."""
    above: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in above:
            above.add(path)
    return above


def follow(path: str, link: Callable[[str], str | None]) -> str | None:
    """Return the path that `path` leads to below a root; None if it leads nowhere. Links are followed as in a chroot.

    :param link: where a path leads: the link's target, "" for what is there and no link, None for what is not there.
    """
    todo, links = clean(path).split("/"), 0
    done: list[str] = []
    while todo:
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done[-1:] = []
            continue
        target = link("/".join([*done, part]))
        if target is None:
            return None
        if not target:
            done.append(part)
            continue
        links += 1
        if links > 40:
            return None
        if target.startswith("/"):
            done = []
        todo = [*target.split("/"), *todo]
    return "/".join(done)


def clean(name: str) -> str:
    """Return the name of a tar member as a relative path without `./`."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


@contextmanager
def unpacked_layer(raw: IO[bytes], media_type: str) -> Iterator[IO[bytes]]:
    """Yield the tar archive of a layer, unpacked by its media type."""
    if media_type.endswith(("+gzip", ".gzip")):
        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream  # type: ignore[misc]
    elif media_type.endswith(("+zstd", ".zstd")):
        with unpacked("zstd", raw) as plain:
            yield plain
    else:
        yield raw


def _write(path: Path, data: bytes) -> None:
    with _temporary(path.parent) as (file, done):
        file.write(data)
        done(path)


@contextmanager
def _temporary(directory: Path) -> Iterator[tuple[IO[bytes], Any]]:
    """Yield a file that gets its name only when it is complete and on the disk."""
    number, name = tempfile.mkstemp(prefix=".new-", dir=directory)
    kept = False

    def done(path: Path) -> None:
        nonlocal kept
        file.flush()
        os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
        kept = True

    try:
        with os.fdopen(number, "wb") as file:
            yield file, done
    finally:
        if not kept:
            Path(name).unlink(missing_ok=True)
