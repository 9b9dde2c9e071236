"""What is read of an image: its files and hashes, its packages, and where each file came from."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path

import pytest
from tests.unit.evidence.samples import (
    CUBLAS,
    IMAGE,
    LOCKS,
    RECORDED,
    Files,
    Link,
    base_files,
    cuda_files,
    elf,
    image,
    sample,
)

from goldnode.core import elf as elf_module
from goldnode.core.errors import ImageError
from goldnode.evidence import layers, licences
from goldnode.evidence.contents import Contents, contents
from goldnode.evidence.layers import snapshot
from goldnode.oci.layout import Layout, OciImage


def read(layout: Layout, digest: str, locks: object = LOCKS) -> Contents:
    found = OciImage(layout, digest)
    return contents(found, snapshot(found), locks)  # type: ignore[arg-type]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_elf_soname_and_needed_are_read_in_each_format(wide: bool, order: str) -> None:
    found = elf_module.dynamic(elf("libx.so.1", ["liby.so.2", "libc.so.6"], wide=wide, order=order))
    assert (found.soname, found.needed) == ("libx.so.1", ("liby.so.2", "libc.so.6"))


def test_elf_of_this_machine() -> None:
    assert "libc.so.6" in elf_module.dynamic(Path("/bin/ls").read_bytes()).needed


def test_truncated_or_malformed_elf_has_no_dynamic_section() -> None:
    whole = elf("libx.so.1", ["libc.so.6"])
    for end in range(4, len(whole) - 1, 7):
        elf_module.dynamic(whole[:end])
    assert elf_module.dynamic(whole[:60]) == elf_module.Dynamic()
    assert elf_module.dynamic(b"#!/bin/sh\n") == elf_module.Dynamic()


def test_large_elf_is_not_held_in_memory(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_KEPT_IN_MEMORY", 100)
    digest = image(layout, "x:1", [{"lib.so": elf("lib.so.1", ["libc.so.6"], tail=bytes(3 << 20))}])
    assert snapshot(OciImage(layout, digest)).entries["lib.so"].needed == ("libc.so.6",)


def test_layers_are_laid_over_each_other(layout: Layout) -> None:
    lower = {
        "a/one": "1",
        "a/two": "2",
        "b/three": "3",
        "c": "4",
        "var/lib/dpkg/status": "Package: x\nVersion: 1\n",
    }
    upper: Files = {
        "a/.wh.one": "",
        "b/.wh..wh..opq": "",
        "b/four": "4",
        "c": Link("a/two"),
        "var/lib/dpkg/status": Link("gone"),
    }
    found = snapshot(OciImage(layout, image(layout, "x:1", [lower, upper])))
    assert set(found.entries) == {"a/two", "b/four", "c", "var/lib/dpkg/status"}
    assert found.text("var/lib/dpkg/status") is None
    assert found.resolve("c") == "a/two"
    assert found.layer_bytes == (4 + len("Package: x\nVersion: 1\n"), 1)
    assert found.entries["a/two"].sha256 == hashlib.sha256(b"2").hexdigest()


def test_an_index_is_read_once_and_a_damaged_one_again(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = OciImage(layout, sample(layout))
    first = snapshot(found, tmp_path)
    files = sorted(tmp_path.glob("layer-*"))
    assert len(files) == 2
    kept = [file.read_bytes() for file in files]
    files[0].write_bytes(kept[0][:50])
    files[1].write_bytes(gzip.compress(b'{"entries": {"x": [1]}}'))
    assert snapshot(found, tmp_path) == first
    assert [file.read_bytes() for file in files] == kept
    monkeypatch.setattr(OciImage, "layer", None)
    assert snapshot(found, tmp_path) == first


def test_deb_has_source_licence_owner_and_dependencies(layout: Layout) -> None:
    found = read(layout, sample(layout))
    libc, libgcc, python = found.debs
    assert (libc.name, libc.source, libc.source_version) == ("libc6", "glibc", "2.36-9+deb12u10")
    assert (libgcc.source, libgcc.source_version, libgcc.version) == (
        "gcc-12",
        "12.2.0-14",
        "12.2.0-14+b1",
    )
    assert (libc.sha256, libc.file) == ("1" * 64, "libc6_2.36-9+deb12u10_amd64.deb")
    assert (python.sha256, python.licence) == (
        None,
        None,
    )  # no lock has it, and its licence is prose
    # The second one's documentation is a link to the first one's.
    assert (
        libc.licence
        == libgcc.licence
        == "((GPL-2.0-or-later OR Artistic-1.0) AND BSD-3-Clause) AND LGPL-2.1-or-later"
    )
    assert found.dependencies["deb:libgcc-s1:amd64"] == ["deb:libc6:amd64"]
    assert (
        found.owners["usr/lib/x86_64-linux-gnu/libc.so.6"] == "deb:libc6:amd64"
    )  # listed below /lib


def test_wheel_has_licence_dependencies_and_altered_files(layout: Layout) -> None:
    found = read(layout, sample(layout))
    numpy, cublas = found.wheels
    assert (cublas.name, cublas.unpacked, cublas.licence) == (
        "nvidia-cublas-cu12",
        True,
        "LicenseRef-NVIDIA-Proprietary-Software",
    )
    assert cublas.files == ("usr/local/cuda-12.4/lib64/libcublas.so.12",)
    assert cublas.sha256 == "3" * 64
    assert cublas.requires == ("numpy",)
    assert (numpy.unpacked, numpy.licence) == (False, "BSD-3-Clause AND 0BSD")
    assert len(numpy.files) == 2
    assert numpy.altered == ("usr/local/lib/python3.11/dist-packages/numpy/b.py",)
    assert found.dependencies["wheel:nvidia-cublas-cu12"] == ["wheel:numpy"]
    # six is a part of a deb, so no wheel.
    assert found.unowned == ("usr/local/cuda-12.4/lib64/libcopy.so", "usr/local/lib/libstray.so")


def test_unpacked_wheel_has_the_files_of_its_record(layout: Layout) -> None:
    info = "usr/lib/goldnode/wheels/nvidia_cublas_cu12-12.4.5.8.dist-info"
    record = (
        f"../../../local/cuda-12.4/lib64/libcublas.so.12,sha256={RECORDED},1\n"
        f"../../../local/cuda-12.4/lib64/other.so,sha256={RECORDED},1\n"
        "nvidia_cublas_cu12-12.4.5.8.dist-info/METADATA,,\n"
    )
    files: Files = {
        **cuda_files(),
        f"{info}/RECORD": record,
        "usr/local/cuda-12.4/lib64/other.so": "altered",
    }
    cublas = read(layout, image(layout, "x:1", [files])).wheels[-1]
    assert cublas.files == (
        "usr/local/cuda-12.4/lib64/libcublas.so.12",
        "usr/local/cuda-12.4/lib64/other.so",
    )
    assert cublas.altered == ("usr/local/cuda-12.4/lib64/other.so",)


def test_one_content_of_two_wheels_belongs_to_the_file_of_that_name(layout: Layout) -> None:
    data = b"the same"
    recorded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    files: dict[str, bytes | str | Link | None] = {
        "usr/local/cuda/a.h": data,
        "usr/local/cuda/b.h": data,
    }
    for name in "ab":
        files[f"usr/lib/goldnode/wheels/{name}-1.dist-info/RECORD"] = (
            f"include/{name}.h,sha256={recorded},8\n"
        )
    found = read(layout, image(layout, "x:1", [files]))
    assert [(wheel.name, wheel.version, wheel.files) for wheel in found.wheels] == [
        ("a", "1", ("usr/local/cuda/a.h",)),
        ("b", "1", ("usr/local/cuda/b.h",)),
    ]


def test_an_image_without_packages_or_goldnodes_own_files(layout: Layout) -> None:
    found = read(layout, image(layout, "x:1", [{"bin/tool": elf()}]))
    assert (found.debs, found.wheels, found.os, found.unowned) == ((), (), {}, ("bin/tool",))


def test_a_description_that_is_no_json(layout: Layout) -> None:
    digest = image(layout, "x:1", [base_files(), {"usr/lib/goldnode/image.json": "{"}])
    with pytest.raises(ImageError, match=r"/usr/lib/goldnode/image.json .* is no JSON"):
        read(layout, digest)


@pytest.mark.parametrize(
    ("line", "expression"),
    [
        ("Expat", "MIT"),
        ("expat", "MIT"),
        ("GPL-2+", "GPL-2.0-or-later"),
        ("GPL-3", "GPL-3.0-only"),
        ("GPL", "GPL-1.0-or-later"),
        ("LGPL-2.1", "LGPL-2.1-only"),
        ("Apache-2.0", "Apache-2.0"),
        ("A or B, and C", "(LicenseRef-A OR LicenseRef-B) AND LicenseRef-C"),
        ("GPL-2+ with OpenSSL exception", "LicenseRef-GPL-2-with-OpenSSL-exception"),
        ("public-domain", "LicenseRef-public-domain"),
        ("and or", "LicenseRef-and-or"),
        ("GPL-2+ and", "LicenseRef-GPL-2-and"),
        ("A, and B or C", "LicenseRef-A AND (LicenseRef-B OR LicenseRef-C)"),
        ("A, B and C", "LicenseRef-A-B-and-C"),
        (
            "A and B, or C, and D",
            "((LicenseRef-A AND LicenseRef-B) OR LicenseRef-C) AND LicenseRef-D",
        ),
        ("(A or B) C", "LicenseRef-A-or-B-C"),
        ("MIT/X11 and A and A", "LicenseRef-MIT-X11 AND LicenseRef-A"),
        ("BSD-3-clause~mine", "LicenseRef-BSD-3-clause-mine"),
    ],
)
def test_debian_licence_becomes_an_spdx_expression(line: str, expression: str) -> None:
    assert licences.debian([line]) == expression


@pytest.mark.parametrize(
    ("headers", "expression"),
    [
        (
            {"license-expression": ["Apache-2.0 WITH LLVM-exception OR MIT"]},
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ),
        ({"license": ["BSD-3-Clause"]}, "BSD-3-Clause"),
        ({"license": ["MIT License"]}, "MIT"),
        ({"license": ["UNKNOWN"]}, None),
        ({"license": ["LicenseRef-NVIDIA-Proprietary"]}, "LicenseRef-NVIDIA-Proprietary"),
        ({"license-expression": ["GPL-2.0"]}, "GPL-2.0-only"),  # an id that SPDX has replaced
        (
            {"license-expression": ["mit WITH no-such-exception"]},
            "LicenseRef-mit-with-no-such-exception",
        ),
        ({"license-expression": ["MIT AND (Apache-2.0 OR"]}, "LicenseRef-MIT-AND-Apache-2.0-OR"),
        ({"license": ["Some long text\nof a licence"]}, None),
        ({"classifier": ["License :: OSI Approved :: Apache Software License"]}, "Apache-2.0"),
        ({"classifier": ["License :: OSI Approved :: BSD License"]}, "LicenseRef-BSD-License"),
        ({}, None),
    ],
)
def test_wheel_headers_give_an_spdx_expression_or_none(
    headers: dict[str, list[str]], expression: str | None
) -> None:
    assert licences.wheel(headers) == expression


def test_every_licence_string_of_debian_12_and_of_wheels_seen_so_far() -> None:
    """Regression: 536 licence lines of a Debian 12 installation and our images, 69 wheels' metadata."""
    rows = [
        line.split("\t")
        for line in Path(__file__).with_name("licence_strings.tsv").read_text().splitlines()[1:]
    ]
    assert len(rows) == 605
    for kind, said, expression, *_ in rows:
        found = licences.debian([said]) if kind == "deb" else licences.wheel(json.loads(said))
        assert (said, found or "") == (said, expression)


def test_prose_is_not_interpreted() -> None:
    assert licences.synopses("This is free software.\nLicense: GPL-2\n") == []


def test_sample_has_its_soname_and_tag() -> None:
    assert elf_module.dynamic(CUBLAS).soname == "libcublas.so.12"
    assert IMAGE.immutable_tag("x") == "12.4.1-runtime-debian12-x"
