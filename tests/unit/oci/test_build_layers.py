"""Layers: equal content is equal bytes, wheels come out where they belong, libraries keep what ldconfig reads."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
import shutil
import struct
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from goldnode.core.errors import ImageError
from goldnode.oci import layers
from goldnode.oci.layers import (
    LayerEntry,
    WheelLayout,
    WheelSource,
    draw,
    normalised,
    outline,
    wheel_layer,
    with_directories,
    write_layer,
)
from goldnode.oci.layout import Layout

DATE = 1_700_000_000
PYTHON = WheelLayout("3.11")
CUDA = WheelLayout("3.11", "usr/local/cuda-12.4")


def wheel(
    path: Path,
    files: dict[str, bytes],
    *,
    name: str = "thing",
    version: str = "1.0",
    extra: dict[str, bytes] | None = None,
) -> Path:
    info = f"{name}-{version}.dist-info"
    everything = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\n",
        **{f"{info}/{key}": value for key, value in (extra or {}).items()},
    }
    out = path / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(out, "w") as archive:
        for key, value in everything.items():
            archive.writestr(zipfile.ZipInfo(key, (2024, 2, 3, 4, 5, 6)), value)
        archive.writestr(
            f"{info}/RECORD",
            "".join(f"{key},sha256=abc,{len(value)}\n" for key, value in everything.items())
            + f"{info}/RECORD,,\n",
        )
    return out


def read(layout: Layout, layer: layers.Layer) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layout.read(layer.blob.digest)))) as tar:
        return {info.name: info for info in tar}


def text(layout: Layout, layer: layers.Layer, name: str) -> str:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layout.read(layer.blob.digest)))) as tar:
        found = tar.extractfile(name)
        assert found is not None
        return found.read().decode()


def test_layer_has_its_digest_size_and_normalized_members(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layer = write_layer(
        layout,
        with_directories(
            [LayerEntry.text("opt/x/a", "hello", DATE), LayerEntry.link("opt/x/b", "a", DATE)]
        ),
    )
    packed = layout.read(layer.blob.digest)
    assert layer.diff == "sha256:" + hashlib.sha256(gzip.decompress(packed)).hexdigest()
    assert layer.blob.size == len(packed)
    members = read(layout, layer)
    assert list(members) == ["opt/x", "opt/x/a", "opt/x/b"]
    assert {(info.uid, info.gid, info.uname, info.mtime) for info in members.values()} == {
        (0, 0, "", DATE)
    }
    assert members["opt/x/b"].linkname == "a"


def test_the_bytes_do_not_depend_on_processors_or_the_order_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB: three members
    entries = [LayerEntry.text("opt/b", content, DATE), LayerEntry.text("opt/a", "x", DATE)]
    found = set()
    for number, processors in enumerate((1, 2, 7)):
        monkeypatch.setattr(
            "goldnode.oci.layers.os.cpu_count", lambda processors=processors: processors
        )
        layout = Layout(tmp_path / str(number))
        found.add(write_layer(layout, with_directories(entries[:: 1 if number % 2 else -1])))
    assert len(found) == 1
    assert layout.read(found.pop().blob.digest).count(b"\x1f\x8b\x08") >= 3


def test_another_date_is_another_layer(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert write_layer(layout, [LayerEntry.text("a", "", DATE)]) != write_layer(
        layout, [LayerEntry.text("a", "", DATE + 1)]
    )


def test_failed_layer_leaves_no_blob(tmp_path: Path) -> None:
    layout = Layout(tmp_path)

    def broken() -> io.BytesIO:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_layer(layout, [LayerEntry("a", size=1, open=broken)])
    assert list((tmp_path / "blobs/sha256").iterdir()) == []


def test_a_wheel_in_a_python_layout(tmp_path: Path) -> None:
    path = wheel(
        tmp_path,
        {
            "thing/__init__.py": b"def main(): ...\n",
            "thing-1.0.data/scripts/run": b"#!python\nprint()\n",
            "thing-1.0.data/data/lib/libx.so": b"no library",
            "thing-1.0.data/headers/x.h": b"",
        },
        extra={
            "entry_points.txt": b"[console_scripts]\nthing = thing:main [extra]\n[other]\nx = y:z\n"
        },
    )
    layout = Layout(tmp_path / "store")
    layer = wheel_layer(layout, [path], PYTHON, {}, development=False)
    members = read(layout, layer)
    site = "usr/local/lib/python3.11/dist-packages"
    assert {name for name, info in members.items() if info.isreg()} == {
        f"{site}/thing/__init__.py",
        *(
            f"{site}/thing-1.0.dist-info/{name}"
            for name in ("METADATA", "WHEEL", "RECORD", "INSTALLER", "entry_points.txt")
        ),
        "usr/local/bin/run",
        "usr/local/bin/thing",
        "usr/local/lib/libx.so",
        "usr/local/include/python3.11/thing/x.h",
    }
    assert text(layout, layer, "usr/local/bin/run").startswith("#!/usr/bin/python3\nprint")
    assert "from thing import main" in text(layout, layer, "usr/local/bin/thing")
    assert members["usr/local/bin/run"].mode == members["usr/local/bin/thing"].mode == 0o755
    assert (
        members[f"{site}/thing/__init__.py"].mtime == 1706933106
    )  # as the wheel has it, so that a later lock has the same layer
    rows = {
        row[0]: row
        for row in csv.reader(
            io.StringIO(text(layout, layer, f"{site}/thing-1.0.dist-info/RECORD"))
        )
    }
    assert {
        "../../../bin/run",
        "../../../bin/thing",
        "../../libx.so",
        "thing/__init__.py",
        "thing-1.0.dist-info/INSTALLER",
    } <= rows.keys()
    assert rows["../../../bin/run"][1] != "sha256=abc"  # it was rewritten, so its hash is another
    assert {f"{site}/{name}" for name in rows if not name.startswith("..")} <= members.keys()


def test_a_wheel_in_cudas_layout(tmp_path: Path) -> None:
    path = wheel(
        tmp_path,
        {
            "nvidia/__init__.py": b"",
            "nvidia/cublas/lib/libcublas.so.12": b"x",
            "nvidia/cublas/lib/__init__.py": b"",
            "nvidia/cublas/include/cublas.h": b"",
            "nvidia/cu13/bin/nvcc": b"",
            "nvidia/cu13/nvvm/bin/cicc": b"",
        },
        name="nvidia_cublas_cu12",
    )
    layout = Layout(tmp_path / "store")
    layer = wheel_layer(layout, [path], CUDA, {}, development=False)
    home, info = "usr/local/cuda-12.4", "usr/lib/goldnode/wheels/nvidia_cublas_cu12-1.0.dist-info"
    files = {name for name, member in read(layout, layer).items() if member.isreg()}
    assert {name for name in files if name.startswith(home)} == {
        f"{home}/targets/x86_64-linux/lib/libcublas.so.12",
        f"{home}/targets/x86_64-linux/include/cublas.h",
        f"{home}/bin/nvcc",
        f"{home}/nvvm/bin/cicc",
    }
    record = text(layout, layer, f"{info}/RECORD")
    assert (
        "../../../local/cuda-12.4/targets/x86_64-linux/lib/libcublas.so.12,sha256=abc,1" in record
    )
    assert "__init__" not in record


def test_a_wheel_that_is_no_part_of_cuda_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="layout: python"):
        wheel_layer(
            Layout(tmp_path / "s"),
            [wheel(tmp_path, {"numpy/core.py": b""})],
            CUDA,
            {},
            development=False,
        )


def test_two_wheels_with_one_path(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "s")
    one = wheel(tmp_path, {"nvidia/a/include/x.h": b"1"}, name="one")
    same = wheel(tmp_path, {"nvidia/b/include/x.h": b"1"}, name="same")
    other = wheel(tmp_path, {"nvidia/b/include/x.h": b"2"}, name="other")
    wheel_layer(layout, [one, same], CUDA, {}, development=False)
    with pytest.raises(
        ImageError, match=r"one-1\.0.* and other-1\.0.* both contain /usr/local/cuda-12\.4/targets"
    ):
        wheel_layer(layout, [one, other], CUDA, {}, development=False)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "thing-1.0.data/data/../../../etc/passwd", "/etc/passwd"]
)
def test_a_wheel_does_not_leave_its_place(tmp_path: Path, name: str) -> None:
    path = wheel(tmp_path, {name: b"x"})
    with pytest.raises(ImageError, match="outside of itself"):
        wheel_layer(Layout(tmp_path / "s"), [path], PYTHON, {}, development=False)


def test_file_that_is_no_wheel_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("no zip")
    with pytest.raises(ImageError, match=r"cannot be read.*fetch it again"):
        WheelSource(tmp_path / "a.whl", PYTHON)


def library(soname: bytes = b"libx.so.1", fill: int = 500_000) -> bytes:
    """A shared object with a SONAME, and much that nobody reads."""
    strings = b"\0" + soname + b"\0"
    header, dynamic_at = 64 + 2 * 56, 4096
    dynamic = struct.pack("<qQqQqQqQ", 5, 4096 + 64, 10, len(strings), 14, 1, 0, 0)
    size = dynamic_at + 64 + len(strings) + fill
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01" + bytes(9),
        3,
        62,
        1,
        0,
        64,
        0,
        0,
        64,
        56,
        2,
        64,
        0,
        0,
    )
    programs = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096) + struct.pack(
        "<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, 64, 64, 8
    )
    return (
        (head + programs).ljust(dynamic_at, b"\x01") + dynamic + strings + b"\x07" * fill
        if len(head + programs) == header
        else b""
    )


def test_an_outline_is_what_ldconfig_reads(tmp_path: Path) -> None:
    """ldconfig itself, on the whole libraries and on their outlines: one cache."""
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if ldconfig is None:
        pytest.skip("no ldconfig here")
    seen = []
    for kind in ("whole", "outline"):
        root = tmp_path / kind
        for name in ("libx.so.1", "other-name.so"):
            place = root / "opt/lib" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "whole":
                place.write_bytes(library())
            else:
                shape = outline(library())
                assert shape is not None
                draw(shape, place)
                assert place.stat().st_size == len(library())
                assert place.stat().st_blocks * 512 < 100_000
        (root / "etc").mkdir()
        (root / "etc/ld.so.conf").write_text("/opt/lib\n")
        subprocess.run([ldconfig, "-X", "-r", str(root)], check=True, capture_output=True)
        seen.append((root / "etc/ld.so.cache").read_bytes())
    assert seen[0] == seen[1]
    assert b"libx.so.1" in seen[0]


def test_links_for_names_that_programs_ask_for(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"nvidia/x/lib/libx-1234.so": library()})
    with_shape = WheelSource(path, CUDA)
    shapes = with_shape.libraries()
    folder = "usr/local/cuda-12.4/targets/x86_64-linux/lib"
    assert {name: shape["soname"] for name, shape in shapes.items()} == {
        f"{folder}/libx-1234.so": "libx.so.1"
    }
    sonames = {path: {f"{folder}/libx-1234.so": "libx.so.1"}}
    layout = Layout(tmp_path / "s")
    plain = read(layout, wheel_layer(layout, [path], CUDA, sonames, development=False))
    assert plain[f"{folder}/libx.so.1"].linkname == "libx-1234.so"
    assert f"{folder}/libx.so" not in plain
    devel = read(layout, wheel_layer(layout, [path], CUDA, sonames, development=True))
    assert devel[f"{folder}/libx.so"].linkname == "libx-1234.so"


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF\x01\x01" + bytes(80), b"#!/bin/sh\n" * 20, library()[:100]]
)
def test_outline_is_none_for_a_file_that_is_no_library(data: bytes) -> None:
    assert outline(data) is None


def test_an_engines_layer_made_even() -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, mtime in (
            ("./b", DATE + 9),
            ("run/x", DATE),
            ("a/", DATE - 5),
            (".wh.mnt", DATE),
            ("a/.wh.gone", DATE),
        ):
            info = tarfile.TarInfo(name)
            info.mtime, info.uname = mtime, "root"
            tar.addfile(info)
    raw.seek(0)
    found = [info for info, _ in normalised(raw, DATE, re.compile(r"(?:mnt|run)(?:/.*)?"))]
    assert [(info.name, info.mtime, info.uname) for info in found] == [
        ("a", DATE - 5, ""),
        ("a/.wh.gone", DATE, ""),
        ("b", DATE, ""),
    ]


def test_the_type_of_a_file_is_no_part_of_its_mode() -> None:
    """buildah writes it there; without this no directory is recognised as its parent's, and engines differ."""
    info = tarfile.TarInfo("etc")
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[100:108] = b"0040755\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    raw = io.BytesIO(bytes(block) + bytes(1024))
    assert [info.mode for info, _ in normalised(raw, DATE, re.compile("x"))] == [0o755]
