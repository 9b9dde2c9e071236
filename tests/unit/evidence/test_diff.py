"""The difference between two images, and the size report."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.evidence.samples import (
    LOCKS,
    STATUS,
    Files,
    Link,
    base_files,
    cuda_files,
    elf,
    image,
    sample,
)
from tests.unit.images.registries import make_image

from goldnode.core.errors import ImageError
from goldnode.evidence import size
from goldnode.evidence.diff import ImageDiff, compare_images
from goldnode.evidence.write import examine
from goldnode.images.names import find, reference
from goldnode.oci.layout import Layout
from goldnode.oci.model import Built

CUDNN = "usr/lib/goldnode/wheels/nvidia_cudnn_cu{major}-{version}.dist-info/METADATA"


def difference(layout: Layout, old: str, new: str) -> ImageDiff:
    return compare_images(examine(layout, old, LOCKS), examine(layout, new, LOCKS))


def cudnn(*versions: str) -> dict[str, bytes | str | Link | None]:
    return {
        CUDNN.format(major=12, version=version)
        if number == 0
        else CUDNN.format(major=11, version=version): (
            f"Name: nvidia-cudnn-cu{12 - number}\nVersion: {version}\n\n"
        )
        for number, version in enumerate(versions)
    }


def test_image_does_not_differ_from_itself(layout: Layout) -> None:
    digest = sample(layout)
    found = difference(layout, digest, digest)
    assert not found
    assert "the same image" in found.text()


def test_packages_files_libraries_and_settings(layout: Layout) -> None:
    old = sample(layout)
    status = STATUS.replace("deb12u10", "deb12u12").replace(
        "Package: python3", "Package: python3.11"
    )
    base = base_files(status) | {
        "usr/lib/x86_64-linux-gnu/libc.so.6": elf("libc.so.6", tail=b"new"),
        "usr/lib/x86_64-linux-gnu/libgcc_s.so.1": elf("libgcc_s.so.1", ["libm.so.6"]),
    }
    cuda = cuda_files() | {"usr/local/lib/libstray.so": elf("libother.so"), "opt/new": "x"}
    env = {
        "Env": ["PATH=/bin", "NEW=1"],
        "Labels": {"io.goldnode.backend": "cuda", "io.goldnode.build-id": "b"},
        "User": "1000",
    }
    found = difference(layout, old, image(layout, "cuda:x", [base, cuda], **env))
    packages = {row.name: (row.was, row.now) for row in found.packages["debs"]}
    assert packages == {
        "libc6": ("2.36-9+deb12u10", "2.36-9+deb12u12"),
        "python3": ("3.11.2-1+b1", None),
        "python3.11": (None, "3.11.2-1+b1"),
    }
    # libc.so.6 changed with its package; libgcc_s.so.1 without.
    assert [row.name for row in found.unexplained] == [
        "opt/new",
        "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
        "usr/local/lib/libstray.so",
    ]
    assert found.files["libc6"] == {"changed": 1}
    assert found.records == 1  # dpkg's status
    assert found.needed == [
        {
            "path": "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
            "added": ["libm.so.6"],
            "removed": ["libc.so.6"],
        }
    ]
    assert [(row.name, row.kind) for row in found.libraries] == [
        ("libother.so", "added"),
        ("libstray.so", "removed"),
    ]
    assert {(row.name, row.was, row.now) for row in found.environment} == {
        ("PATH", "/usr/bin", "/bin"),
        ("NEW", None, "1"),
        ("CUDA_VERSION", "12.4.1", None),
    }
    assert found.labels == []
    assert [row.name for row in found.identity] == ["io.goldnode.build-id"]
    assert [row.name for row in found.config] == ["User"]
    assert (found.major, found.layers_shared) == ([], 0)
    text = found.text()
    for line in (
        "debs: 1 moved, 1 new, 1 removed",
        "  libc6 2.36-9+deb12u10 -> 2.36-9+deb12u12",
        "  - python3 3.11.2-1+b1",
        "files that changed without their package: 3",
        "  /usr/lib/x86_64-linux-gnu/libgcc_s.so.1: + libm.so.6, - libc.so.6",
        "  + NEW 1",
        "0 of 2 layers are the old image's",
    ):
        assert line in text, text
    assert found.document() == found.document()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (["8.9.7.29"], ["9.1.0.70"], [("cudnn", "8.9.7.29", "9.1.0.70")]),
        (["9.1.0.70"], ["9.28.0.42"], []),
        (["9.1.0.70"], ["9.1.0.70", "8.9.7.29"], [("cudnn", "9.1.0.70", "8.9.7.29, 9.1.0.70")]),
        (["9.1.0.70"], [], []),
    ],
)
def test_change_of_a_major_version_is_reported(
    layout: Layout, old: list[str], new: list[str], expected: list[tuple[str, str, str]]
) -> None:
    digests = [
        image(layout, f"x:{number}", [base_files(), cudnn(*versions)])
        for number, versions in enumerate((old, new))
    ]
    found = difference(layout, *digests)
    assert [(row.name, row.was, row.now) for row in found.major] == expected
    assert ("MAJOR cudnn" in found.text()) == bool(expected)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("Package: libnccl2\nVersion: 2.21.5-1\n", "Package: libnccl2\nVersion: 3.0.1-1\n", "nccl"),
        (
            "Package: libcudart11.0\nVersion: 11.8.89~11.8.0-3\n",
            "Package: libcudart12\nVersion: 12.4.127~12.4.1-2\n",
            "cuda",
        ),
        (
            "Package: python3\nVersion: 3.11.2-1+b1\n",
            "Package: python3\nVersion: 3.13.5-1\n",
            "python",
        ),
        (
            "Package: libc6\nVersion: 1:2.36-9\n",
            "Package: libc6\nVersion: 1:2.36-9+deb12u1\n",
            None,
        ),
    ],
)
def test_major_changes_of_debs(layout: Layout, old: str, new: str, part: str | None) -> None:
    found = difference(
        layout,
        *[
            image(layout, f"x:{number}", [{"var/lib/dpkg/status": text}])
            for number, text in enumerate((old, new))
        ],
    )
    assert [row.name for row in found.major] == ([part] if part else [])


def test_a_library_is_followed_across_its_file_name(layout: Layout) -> None:
    digests = [
        image(
            layout,
            f"x:{number}",
            [{f"usr/lib/libx.so.1.{number}": elf("libx.so.1", ["libc.so.6", f"liby.so.{number}"])}],
        )
        for number in (1, 2)
    ]
    assert difference(layout, *digests).needed == [
        {"path": "usr/lib/libx.so.1.2", "added": ["liby.so.2"], "removed": ["liby.so.1"]}
    ]


def test_modes_and_links_count_and_hard_links_do_not(layout: Layout) -> None:
    old = image(layout, "x:1", [{"a": "1", "b": "1", "l": Link("a"), "d": None}])
    new = image(layout, "x:2", [{"a": "1", "b": Link("a", hard=True), "l": Link("b"), "d": None}])
    found = difference(layout, old, new)
    assert [(row.name, row.was, row.now) for row in found.unexplained] == [
        ("l", "0644 0:0 -> a", "0644 0:0 -> b")
    ]


def test_same_version_other_file(layout: Layout) -> None:
    from dataclasses import replace

    digest = sample(layout)
    other = [
        replace(LOCKS[0], debs=[replace(LOCKS[0].debs[0], sha256="9" * 64), LOCKS[0].debs[1]]),
        LOCKS[1],
    ]
    found = compare_images(examine(layout, digest, LOCKS), examine(layout, digest, other))
    assert found.rebuilt == ["libc6"]


def test_sizes_add_up_over_layers_packages_and_files(layout: Layout) -> None:
    upper: Files = {
        "usr/lib/x86_64-linux-gnu/libc.so.6": elf("libc.so.6", tail=bytes(1000)),
        "usr/local/x": "12345",
    }
    digest = image(layout, "x:1", [base_files(), upper])
    found: dict[str, Any] = size.sizes(*examine(layout, digest))
    first, second = found["layers"]
    assert first["hidden"] == len(elf("libc.so.6"))
    assert second["hidden"] == 0
    assert first["files"] + second["files"] - found["hidden"] == found["files"]
    assert found["packages"][0]["package"] == "libc6 2.36-9+deb12u10"
    assert found["packages"][0]["size"] == len(elf("libc.so.6")) + 1000
    assert found["files"] == found["without_package"] + sum(
        row["size"] for row in found["packages"]
    )
    assert found["compressed"] == sum(layer.size for layer in layout.image(digest).layers)
    assert second["step"] == "step 1"


def test_image_is_found_by_each_of_its_names(layout: Layout) -> None:
    (ref, one), (_, two) = (
        make_image(layout, build=letter * 12, content=letter.encode()) for letter in ("a", "b")
    )
    assert find(layout, ref) == find(layout, one) == one
    assert reference(layout, one) == ref
    records = [Built("cuda-12.4.1-runtime-debian12", "bbbbbbbbbbbb", "", "", two)]
    for name in ("cuda-12.4.1-runtime-debian12-bbbbbbbbbbbb", "bbbbbbbbbbbb"):
        assert find(layout, name, records) == two
    with pytest.raises(ImageError, match="means 2 images"):
        find(layout, "cuda-12.4.1-runtime-debian12", records)
    with pytest.raises(ImageError, match=r"means 2 images .* Name one of them with its build id"):
        find(layout, "cuda:12.4.1-runtime-debian12")
    with pytest.raises(ImageError, match='Use "cuda:12'):
        find(layout, "cuda:12.4.1-runtime-debian12-aaaaaaaaaaab")
    with pytest.raises(ImageError, match="Pull it, or name another"):
        find(layout, "sha256:" + "0" * 64)
