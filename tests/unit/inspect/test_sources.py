"""What can be inspected, layers on layers, and sources that mean harm."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.unit.inspect.things import (
    debs,
    elf,
    image,
    installed,
    layer,
    os_release,
    saved,
    wheel,
    wheel_files,
)

from goldnode.core.errors import ImageError
from goldnode.gpuprogram.smoke import pack
from goldnode.images.matrix import absent
from goldnode.inspect import scan, targets
from goldnode.inspect.scan import Limits, Scan, View, shown
from goldnode.oci.layout import Layout

NCCL = {"usr/lib/libnccl.so.2": elf(soname="libnccl.so.2")}


def scanned(files: dict[str, bytes | tuple[str, str] | None], limits: Limits | None = None) -> Scan:
    with tarfile.open(fileobj=io.BytesIO(layer(files)), mode="r|") as tar:
        return scan.scan_tar(tar, limits)


def test_layers_replace_and_remove(tmp_path: Path) -> None:
    view = View()
    view.add(
        scanned(
            {
                "a": None,
                "a/libx.so": elf(),
                "a/b": None,
                "a/b/liby.so": elf(),
                "c/libz.so": elf(),
                "d/libd.so": elf(),
                "e": elf(),
                "f.so": elf(),
            }
        )
    )
    view.add(
        scanned(
            {
                "a/.wh.libx.so": b"",
                "c/.wh..wh..opq": b"",
                "c/new.so": elf(soname="new"),
                "d": b"now a file",
                "e": b"no library now",
                "f.so/g": b"",
            }
        )
    )
    assert set(view.elf) == {"a/b/liby.so", "c/new.so"}
    assert set(view.paths) == {"a", "a/b", "a/b/liby.so", "c/new.so", "d", "e", "f.so/g"}
    layout = Layout(tmp_path)
    image(
        layout,
        "cpu:1-base-debian12",
        [{"a": None, "a/libx.so": elf()}, {"a/.wh.libx.so": b"", "b.so": elf()}],
    )
    members = layout.image("cpu:1-base-debian12").members
    (target,) = targets.find("cpu:1-base-debian12", layout)
    assert set(target.view.paths) == set(members), "as the layout itself sees it"


def test_everything_that_holds_the_same_gives_the_same(tmp_path: Path) -> None:
    files: dict[str, bytes | tuple[str, str] | None] = {
        **os_release(),
        **NCCL,
        "usr/lib/libnccl.so": ("l", "libnccl.so.2"),
    }
    root = tmp_path / "root"
    (tmp_path / "root.tar").write_bytes(layer(files))
    (tmp_path / "root.tar.gz").write_bytes(gzip.compress(layer(files)))
    with tarfile.open(tmp_path / "root.tar") as tar:
        tar.extractall(root, filter="tar")
    layout = Layout(tmp_path / "layout")
    image(layout, "cuda:12.4.1-base-debian12", [files])
    with tarfile.open(tmp_path / "archive.tar", "w") as tar:
        tar.add(tmp_path / "layout", arcname=".")
    saved(tmp_path / "saved.tar", [files])
    for name in ("root", "root.tar", "root.tar.gz", "layout", "archive.tar", "saved.tar"):
        (target,) = targets.find(str(tmp_path / name), None)
        assert set(target.view.elf) == {"usr/lib/libnccl.so.2"}, name
        assert target.view.texts["etc/os-release"] == os_release()["etc/os-release"].decode(), name
        assert target.view.configured == (name not in ("root", "root.tar", "root.tar.gz"))


def test_an_image_of_the_matrix_is_every_build_of_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for build in ("0123456789ab", "ba9876543210"):
        image(layout, f"cuda:12.4.1-base-debian12-{build}", [NCCL])
    image(layout, "cuda:12.4.1-base-debian13-0123456789ab", [NCCL])
    found = targets.find("cuda-12.4.1-base-debian12", layout)
    assert [target.view.name for target in found] == [
        f"cuda:12.4.1-base-debian12-{build}" for build in ("0123456789ab", "ba9876543210")
    ]
    assert {target.backend for target in found} == {"cuda"}
    (one,) = targets.find("cuda:12.4.1-base-debian13", layout)
    assert one.view.name == "cuda:12.4.1-base-debian13-0123456789ab"
    with pytest.raises(ImageError, match=r'Use "cuda-12\.4\.1-base-debian13"'):
        targets.find("cuda:12.4.2-base-debian13", layout, absent=absent)


def test_a_layout_of_attached_documents_and_platforms(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    digest = image(layout, "cpu:1-base-debian12", [NCCL])
    layout.attach(digest, "application/x", b"{}")
    (target,) = targets.find(str(tmp_path), None)
    assert target.image is not None
    assert target.image.digest == digest


def test_wheels_in_a_directory_are_one_set(tmp_path: Path) -> None:
    wheel(tmp_path, "a", "1", {"a/x.so": elf()}, ["nvidia-nccl-cu12"])
    wheel(tmp_path, "nvidia-nccl-cu12", "2.21.5", {"nvidia/nccl/lib/libnccl.so.2": elf()})
    (target,) = targets.find(str(tmp_path), None)
    assert set(target.view.elf) == {"a/x.so", "nvidia/nccl/lib/libnccl.so.2"}


def test_a_layer_is_scanned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, cache = Layout(tmp_path / "layout"), tmp_path / "cache"
    image(
        layout,
        "cpu:1-base-debian12",
        [NCCL, installed(wheel_files("a", "1", {"a/b.so": elf(needed=["libc.so.6"])}))],
    )
    (first,) = targets.find("cpu:1-base-debian12", layout, cache)
    calls: list[str] = []
    monkeypatch.setattr(targets, "scan_tar", lambda *_, name, **__: calls.append(name))
    (second,) = targets.find("cpu:1-base-debian12", layout, cache)
    assert calls == []
    assert second.view == first.view
    for file in (cache / "inspect").iterdir():
        file.write_text("{}")
    with pytest.raises(AttributeError):  # what stands for the scan gives None
        targets.find("cpu:1-base-debian12", layout, cache)
    assert len(calls) == 1, "a damaged one is made again"


def test_an_altered_blob_is_no_layer(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    digest = image(layout, "cpu:1-base-debian12", [NCCL])
    blob = layout.path(layout.image(digest).layers[0].digest)
    blob.write_bytes(blob.read_bytes() + b"x")
    with pytest.raises(ImageError, match="is altered"):
        targets.find("cpu:1-base-debian12", layout)


def test_a_directory_with_devices_pipes_and_loops(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/libx.so").write_bytes(elf())
    os.mkfifo(tmp_path / "usr/pipe")
    (tmp_path / "usr/loop").symlink_to("../usr")
    (tmp_path / "usr/self").symlink_to("self")
    (tmp_path / "usr/out").symlink_to("/etc/hostname")
    (tmp_path / "usr/libcuda.so.1").symlink_to("/dev/zero")
    found = scan.scan_directory(tmp_path)
    assert set(found.elf) == {"usr/libx.so"}
    assert {path: entry.kind for path, entry in found.paths.items()} == {
        "usr": "d",
        "usr/libx.so": "f",
        "usr/pipe": "o",
        "usr/loop": "l",
        "usr/self": "l",
        "usr/out": "l",
        "usr/libcuda.so.1": "l",
    }
    assert found.left_out == {}


def test_a_file_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(elf())
    (tmp_path / "a").symlink_to("there")
    with pytest.raises(OSError, match="symbolic"):
        scan.ListedFileOpener(str(tmp_path / "a"))()


def test_a_tar_with_devices_and_paths_that_climb() -> None:
    found = scanned(
        {
            "dev/zero": ("c", ""),
            "dev/pipe": ("p", ""),
            "../../etc/x.so": elf(),
            "/abs/y.so": elf(),
            "h": ("h", "../../etc/shadow"),
        }
    )
    assert set(found.elf) == {"../../etc/x.so", "abs/y.so"}, (
        "names only: nothing is written anywhere"
    )
    assert found.paths["dev/zero"].kind == "o"


def test_a_tar_that_ends_early_has_not_been_looked_at() -> None:
    whole = layer({"a.so": elf(), "b.so": elf() + b"x" * 100_000})
    with tarfile.open(fileobj=io.BytesIO(whole[: len(whole) // 2]), mode="r|") as tar:
        found = scan.scan_tar(tar, name="layer")
    assert found.left_out


def test_files_beyond_a_limit_are_left_out_with_the_reason() -> None:
    files: dict[str, bytes | tuple[str, str] | None] = {
        f"{number}.so": elf() for number in range(20)
    }
    assert "more than 5 files" in next(iter(scanned(files, Limits(files=5)).left_out.values()))
    assert "larger than is read" in scanned(files, Limits(file=100)).left_out["0.so"]
    assert len(scanned(files, Limits(total=3000)).elf) < 20
    assert "the remaining files were not read" in next(
        iter(scanned(files, Limits(total=3000)).left_out.values())
    )
    assert (
        "larger than is read"
        in scanned({"etc/os-release": b"x" * 200}, Limits(text=100)).left_out["etc/os-release"]
    )


def test_a_wheel_that_expands_without_end(tmp_path: Path) -> None:
    path = wheel(
        tmp_path, "bomb", "1", {"a/x.so": b"\x7fELF" + b"\0" * (30 << 20), "a/y.so": elf()}
    )
    assert path.stat().st_size < 100_000
    found = scan.scan_wheel(path)
    assert "expands" in found.left_out["a/x.so"]
    assert set(found.elf) == {"a/y.so"}


def test_wheel_member_larger_than_its_stated_size_is_left_out(tmp_path: Path) -> None:
    path = wheel(tmp_path, "liar", "1", {"a/x.so": elf() + b"x" * 5000})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02", 0, data.index(b"a/x.so", data.index(b"PK\x01\x02")))
    data[at + 24 : at + 28] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    assert scan.scan_wheel(path).left_out.keys() == {"a/x.so"}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:200], lambda data: data.replace(b"PK\x01\x02", b"PK\x01\x09")]
)
def test_damaged_wheel_is_an_error(tmp_path: Path, damage: object) -> None:
    path = wheel(tmp_path, "a", "1", {"a/x.so": elf()})
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ImageError, match="no wheel that can be read"):
        targets.find(str(path), None)


def test_a_wheel_with_a_link_and_an_encrypted_file(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("a/libcuda.so.1")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/shadow")
        archive.writestr("a/x.so", elf())
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 8] |= 1
    path.write_bytes(data)
    found = scan.scan_wheel(path)
    assert found.paths["a/libcuda.so.1"].kind == "l"
    assert "encrypted" in found.left_out["a/x.so"]


def test_names_are_shown_without_control_characters() -> None:
    assert shown("a\x1b[31mb\n\u202ec\udcff") == r"a\x1b[31mb\n\u202ec\udcff"
    assert shown("größe/ein name") == "größe/ein name"


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"QFI\xfb", "qemu-img convert"),
        (b"hsqs", "unsquashfs"),
        (b"!<arch>\n", "dpkg-deb"),
        (b"GIF89a", "Name"),
    ],
)
def test_unsupported_file_type_is_an_error_with_a_hint(
    tmp_path: Path, head: bytes, said: str
) -> None:
    path = tmp_path / "thing"
    path.write_bytes(head + b"\0" * 4096)
    with pytest.raises(ImageError) as caught:
        targets.find(str(path), None)
    assert said in str(caught.value)


def test_a_saved_image_whose_manifest_names_what_is_not_there(tmp_path: Path) -> None:
    rows = json.dumps(
        [{"Config": "config.json", "RepoTags": None, "Layers": ["gone.tar"]}]
    ).encode()
    (tmp_path / "x.tar").write_bytes(layer({"manifest.json": rows, "config.json": b"{}"}))
    with pytest.raises(ImageError, match="cannot be read as a tar"):
        targets.find(str(tmp_path / "x.tar"), None)


def test_a_kept_scan_is_what_was_scanned() -> None:
    found = scanned(
        {
            **installed(wheel_files("a", "1", {"a/b.so": elf(needed=["x"], strings=["liby.so"])})),
            **debs({"a": ("1", "", [])}),
            "usr/bin/smoke": pack.program(),
        }
    )
    assert found.bundles == {"usr/bin/smoke": pack.digest()}
    assert Scan.of(json.loads(json.dumps(found.document()))) == found
    assert Scan.of({"version": 0}) is None
    assert Scan.of([]) is None
