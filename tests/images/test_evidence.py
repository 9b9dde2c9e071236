"""Evidence of a real Debian root with a real wheel of NVIDIA's in it, validated against dpkg's own answer and the wheel itself."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from goldnode.core.site import Site, archive_url
from goldnode.evidence import cyclonedx_bom, sbom
from goldnode.evidence.contents import contents
from goldnode.evidence.diff import compare_images
from goldnode.evidence.layers import snapshot
from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Layout, OciImage, canonical

pytestmark = pytest.mark.images

PINNED = "nvidia-cuda-runtime-cu12==12.4.127"
HOME = "usr/local/cuda-12.4/targets/x86_64-linux"


@dataclass(frozen=True)
class Real:
    """The layout, the images without and with the wheel, the wheel, and the root's tar."""

    layout: Layout
    base: str
    runtime: str
    wheel: Path
    root: Path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    place = tmp_path_factory.mktemp("real")
    root = place / "root.tar"
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=essential",
        "--mode=root",
        "bookworm",
        str(root),
        archive_url(Site(), "debian"),
    ]
    subprocess.run(command, check=True)
    pip = [
        "python3",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(place),
        PINNED,
    ]
    subprocess.run([*pip, "--platform", "manylinux2014_x86_64"], check=True)
    (wheel,) = place.glob("*.whl")
    layout = Layout(place / "store")
    layers = [_gzipped(layout, root.read_bytes())]
    base = _image(layout, "cuda:base", layers)
    layers.append(_gzipped(layout, _unpacked(wheel)))
    return Real(layout, base, _image(layout, "cuda:runtime", layers), wheel, root)


def _gzipped(layout: Layout, data: bytes) -> dict[str, object]:
    return layout.put(gzip.compress(data, 1, mtime=0), f"{LAYER}+gzip").document()


def _image(layout: Layout, ref: str, layers: list[dict[str, object]]) -> str:
    config = {
        "created": "2026-11-22T00:00:00Z",
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers"},
    }
    config_row = layout.put(canonical(config), CONFIG).document()
    found = layout.put(
        canonical(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_row, "layers": layers}
        ),
        MANIFEST,
    )
    layout.set_ref(ref, found)
    return found.digest


def _unpacked(wheel: Path) -> bytes:
    """As the builder unpacks it: libraries and headers below /usr/local/cuda-12.4, the dist-info kept."""
    raw = io.BytesIO()
    with zipfile.ZipFile(wheel) as archive, tarfile.open(fileobj=raw, mode="w") as tar:
        for row in archive.infolist():
            if row.is_dir() or row.filename.endswith("__init__.py"):
                continue
            inside = row.filename.split("/", 2)
            name = (
                f"usr/lib/goldnode/wheels/{row.filename}"
                if ".dist-info/" in row.filename
                else f"{HOME}/{inside[2]}"
            )
            info = tarfile.TarInfo(name)
            info.size = row.file_size
            tar.addfile(info, io.BytesIO(archive.read(row)))
    return raw.getvalue()


def test_sbom_agrees_with_dpkg_and_the_wheel(real: Real, tmp_path: Path) -> None:
    image = OciImage(real.layout, real.runtime)
    there = contents(image, snapshot(image, tmp_path))
    with tarfile.open(real.root) as tar:
        tar.extract("./var/lib/dpkg/status", tmp_path, filter="data")
    query = [
        "dpkg-query",
        f"--admindir={tmp_path}/var/lib/dpkg",
        "--show",
        "--showformat=${Package} ${Version} ${source:Package} ${source:Version}\\n",
    ]
    said = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(said) > 50
    assert sorted(
        f"{row.name} {row.version} {row.source} {row.source_version}" for row in there.debs
    ) == sorted(said)
    # Every library and program has an origin: the merged /lib, diversions and links of a real root included.
    assert [path for path in there.unowned if there.snapshot.entries[path].elf] == []
    document = cyclonedx_bom.cyclonedx(image, there)
    cyclonedx_bom.validate(document)
    (wheel,) = (
        row
        for row in json.loads(document)["components"]
        if row["name"] == "nvidia-cuda-runtime-cu12"
    )
    hashes = {
        row["name"]: {item["alg"]: item["content"] for item in row["hashes"]}
        for row in wheel["components"]
    }
    with zipfile.ZipFile(real.wheel) as archive:
        library = hashlib.sha256(
            archive.read("nvidia/cuda_runtime/lib/libcudart.so.12")
        ).hexdigest()
    assert hashes[f"/{HOME}/lib/libcudart.so.12"]["SHA-256"] == library
    assert len(hashes) > 50


def test_spdx_tools_find_nothing_wrong(real: Real, tmp_path: Path) -> None:
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    image = OciImage(real.layout, real.runtime)
    file = tmp_path / "image.spdx.json"
    file.write_bytes(sbom.spdx(image, contents(image, snapshot(image))))
    assert [
        message.validation_message for message in validate_full_spdx_document(parse_file(str(file)))
    ] == []


def test_the_difference_is_the_wheel(real: Real) -> None:
    read = [
        (image, contents(image, snapshot(image)))
        for image in (OciImage(real.layout, digest) for digest in (real.base, real.runtime))
    ]
    found = compare_images(read[0], read[1])
    assert found.packages["debs"] == []
    assert [(row.name, row.was, row.now) for row in found.packages["wheels"]] == [
        ("nvidia-cuda-runtime-cu12", None, "12.4.127")
    ]
    assert [row.name for row in found.libraries] == ["libcudart.so.12"]
    assert found.unexplained == []
    assert (found.layers_shared, found.layers) == (1, (1, 2))
