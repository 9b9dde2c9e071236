"""An image in a registry is read for a check: configuration and forward-compatibility library, on Debian's docker-registry."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.images.registry_server import DockerRegistry

from goldnode.commands.check import request
from goldnode.compat import workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatHost, Workload
from goldnode.core.errors import ImageError
from goldnode.facts import host as facts
from goldnode.images.remote_image import RemoteImage, read_image
from goldnode.inspect.cuda_compat import compat_drivers
from goldnode.oci.layout import INDEX, MANIFEST, Descriptor, canonical, digest_of
from goldnode.oci.registry import Repository

pytestmark = pytest.mark.images

LIBRARY = "usr/local/cuda-13.2/compat/libcuda.so.595.45.04"
STATUS = (
    "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\n\n"
    "Package: cuda-compat-13-2\nStatus: install ok installed\nArchitecture: amd64\nVersion: 595.45.04-0ubuntu1\n"
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    if shutil.which("docker-registry") is None:
        pytest.skip("needs docker-registry")
    found = DockerRegistry(tmp_path_factory.mktemp("registry"))
    yield found
    found.kill()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library with the note of NVIDIA's package, made by gcc. No real one is at hand."""
    folder = tmp_path_factory.mktemp("library")
    owner = b"NVIDIA Corporation\0"
    content = json.dumps({"Format": 1, "CUDA Version": "13.2", "Driver": [535, 570, 580]}).encode()
    note = struct.pack("<III", len(owner), len(content), 1)
    note += owner.ljust(-(-len(owner) // 4) * 4, b"\0") + content.ljust(
        -(-len(content) // 4) * 4, b"\0"
    )
    words = ",".join(str(byte) for byte in note)
    (folder / "note.s").write_text(
        f'.section .note.cuda.fwd_compatibility,"a",@note\n.byte {words}\n'
    )
    command = ["gcc", "-shared", "-nostdlib", "-o", "libcuda.so", "note.s"]
    subprocess.run(command, check=True, cwd=folder)
    return (folder / "libcuda.so").read_bytes()


def layer(files: dict[str, bytes]) -> bytes:
    """Return a layer with these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0)


def push(repository: Repository, layers: list[tuple[str, bytes]], folder: Path) -> None:
    """Push an image of layers, each with its build step, as an index for amd64."""
    environment = ["CUDA_VERSION=13.2.0", "NVIDIA_REQUIRE_CUDA=cuda>=13.2 driver>=535"]
    config = canonical(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": environment},
            "history": [{"created_by": step} for step, _ in layers],
            "rootfs": {"type": "layers", "diff_ids": []},
        }
    )
    rows: list[Descriptor] = []
    for data in (config, *(content for _, content in layers)):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        (folder / digest).write_bytes(data)
        kind = "application/vnd.oci.image.layer.v1.tar+gzip" if rows else "config"
        if kind == "config":
            kind = "application/vnd.oci.image.config.v1+json"
        rows.append(Descriptor(kind, digest, len(data)))
        repository.push_blob(rows[-1], folder / digest)
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": rows[0].document(),
            "layers": [row.document() for row in rows[1:]],
        }
    )
    repository.put_manifest(digest_of(manifest), manifest, MANIFEST)
    entry = Descriptor(MANIFEST, digest_of(manifest), len(manifest)).document()
    entry["platform"] = {"os": "linux", "architecture": "amd64"}
    index = canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    repository.put_manifest("26.03-py3", index, INDEX)


def workload(image: RemoteImage) -> Workload:
    """Return the workload of an image that was read."""
    found = image.library
    layers = workloads.ReadLayers(complete=not image.unread)
    if found is not None:
        layers = workloads.ReadLayers(found.version, found.drivers)
    return workloads.registry_image("vendor.example/team/model:1", image.config, layers)


def severity(image: RemoteImage, driver: str) -> str | None:
    """Return the severity of the finding about CUDA and driver on an A100."""
    branch = driver.partition(".")[0]
    gpu = facts.gpu("A100-SXM4-40GB")
    host = CompatHost("node", vendor="nvidia", driver=driver, branch=branch, gpus=(gpu,))
    found = check(host, [workload(image)])
    return next((item.severity for item in found if item.rule == "cuda-driver"), None)


def test_library_and_its_note_decide_where_the_facts_have_no_list(
    registry: DockerRegistry, library: bytes, tmp_path: Path
) -> None:
    repository = registry.client().repository("t/noted")
    base = layer({"etc/os-release": b"ID=ubuntu\n", "var/lib/dpkg/status": b"Package: libc6\n"})
    compat = layer({LIBRARY: library, "var/lib/dpkg/status": STATUS.encode()})
    push(
        repository, [("ADD base", base), ("RUN apt-get install cuda-compat-13-2", compat)], tmp_path
    )
    image = read_image(repository, "26.03-py3")
    assert image.library is not None
    assert (image.library.version, image.library.drivers) == ("595.45.04", (535, 570, 580))
    assert image.packages == {"cuda-compat-13-2": "595.45.04-0ubuntu1"}
    assert (image.read, image.unread) == (len(base) + len(compat), [])
    assert severity(image, "535.309.01") == "warn"
    assert severity(image, "550.163.01") == "block", "the note does not name this branch"
    assert severity(image, "595.58.03") is None


def test_library_that_a_later_layer_removes_is_not_in_the_image(
    registry: DockerRegistry, library: bytes, tmp_path: Path
) -> None:
    repository = registry.client().repository("t/removed")
    steps = [
        ("RUN apt-get install cuda-compat-13-2", layer({LIBRARY: library})),
        ("RUN rm -r compat", layer({"usr/local/cuda-13.2/.wh.compat": b""})),
    ]
    push(repository, steps, tmp_path)
    image = read_image(repository, "26.03-py3")
    assert image.library is None
    assert workload(image).forward_compat is False
    assert severity(image, "535.309.01") == "block"


def test_layers_beyond_the_budget_are_named_and_leave_it_unknown(
    registry: DockerRegistry, library: bytes, tmp_path: Path
) -> None:
    repository = registry.client().repository("t/large")
    large = layer({LIBRARY: library, "data": bytes(range(256)) * 400})
    push(repository, [("COPY it", large), ("ADD base", layer({"a": b"a"}))], tmp_path)
    image = read_image(repository, "26.03-py3", budget=len(large) - 1)
    assert image.unread == [len(large)]
    assert image.read < len(large)
    assert workload(image).forward_compat is None


def test_image_of_another_architecture_is_an_error(
    registry: DockerRegistry, tmp_path: Path
) -> None:
    repository = registry.client().repository("t/amd")
    push(repository, [("ADD base", layer({"a": b"a"}))], tmp_path)
    with pytest.raises(ImageError, match="has no image for arm64, only for amd64"):
        read_image(repository, "26.03-py3", "arm64")
    with pytest.raises(ImageError, match="has no image 1"):
        read_image(repository, "1")


def test_altered_layer_is_an_error(registry: DockerRegistry, tmp_path: Path) -> None:
    repository = registry.client().repository("t/altered")
    data = layer({"a": b"a" * 5000})
    push(repository, [("ADD base", data)], tmp_path)
    stored = registry.blob("sha256:" + hashlib.sha256(data).hexdigest())
    stored.write_bytes(layer({"a": b"b" * 5000}).ljust(len(data), b"\0")[: len(data)])
    with pytest.raises(ImageError):
        read_image(repository, "26.03-py3")


def test_library_without_a_note_has_none(library: bytes) -> None:
    assert compat_drivers(library) == (535, 570, 580)
    assert compat_drivers(library.replace(b"fwd_compatibility", b"xwd_compatibility")) == ()
    assert compat_drivers(b"#!/bin/sh\n") == ()


def test_check_reads_an_image_by_its_form(
    registry: DockerRegistry,
    library: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--image registry:REF` reaches the registry by its own address, with the certificate and login that Docker would use."""
    client = registry.client()
    push(client.repository("t/form"), [("RUN cuda-compat", layer({LIBRARY: library}))], tmp_path)
    monkeypatch.setattr(
        "goldnode.images.remote_image.Registry", lambda host, options: registry.client(host)
    )
    given = request.CheckRequest(images=[f"registry:{registry.host}/t/form:26.03-py3"])
    [load] = request.given_workloads(given, "amd64")
    assert (load.cuda, load.forward_compat_version) == ("13.2.0", "595.45.04")
    assert load.compat_drivers == (535, 570, 580)
    assert load.require_driver == "cuda>=13.2 driver>=535"
