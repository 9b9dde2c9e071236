"""Evidence of a real small disk: what the bills say of debs, modules and loader; who signed; what an altered file or document meets."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.disks.disk_samples import KO, MODULES, make_build, make_disk, prove
from tests.unit.images.registries import make_key

from goldnode.core.errors import DiskError, ImageError
from goldnode.disks import contents as reading
from goldnode.disks import slot_image
from goldnode.disks.contents import digest_of
from goldnode.disks.evidence import DiskEvidenceOptions, authenticate, compare, document, write
from goldnode.disks.model import BuiltDisk
from goldnode.evidence import cyclonedx_bom, vulnerabilities
from goldnode.evidence.signatures import load_public, load_signer, payload_of, subjects
from goldnode.fleet.nodes.disk_update import open_image
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.slots import builder

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="a disk keeps the owners of its files, so it is assembled as root"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[BuiltDisk, BuiltDisk]:
    """Two disks: bash has moved in the second, which has one file more and one changed that no package has."""
    work = tmp_path_factory.mktemp("disks")
    old = make_disk(work / "store", work, "a", more={"etc/motd": b"one"})
    return old, make_disk(
        work / "store",
        work,
        "b",
        bash="5.2.15-2+b8",
        more={"etc/motd": b"two", "opt/tool": b"\x7fELF tool"},
    )


def copied(disk: BuiltDisk, into: Path) -> BuiltDisk:
    """A copy to write beside; its raw disk is the same file."""
    here = into / disk.directory.name
    here.mkdir(parents=True)
    for path in disk.directory.iterdir():
        if path.suffix == ".raw":
            (here / path.name).hardlink_to(path)
        else:
            shutil.copyfile(path, here / path.name)
    return BuiltDisk.load(here)


@pytest.fixture
def disk(made: tuple[BuiltDisk, BuiltDisk], tmp_path: Path) -> BuiltDisk:
    return copied(made[0], tmp_path)


@pytest.fixture(scope="module")
def proven(
    made: tuple[BuiltDisk, BuiltDisk],
    keys: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> BuiltDisk:
    """The first with all its evidence, signed."""
    disk = copied(made[0], tmp_path_factory.mktemp("proven"))
    prove(disk, None, papers=False, inspection=None)
    write(disk, DiskEvidenceOptions(signer=load_signer(keys[0])))
    return disk


@pytest.fixture
def signed(proven: BuiltDisk, tmp_path: Path) -> BuiltDisk:
    return copied(proven, tmp_path)


def say(disk: BuiltDisk, kind: str) -> Any:
    return json.loads(payload_of(document(disk, kind).read_bytes()))


def test_the_bills_name_debs_modules_and_loader(disk: BuiltDisk) -> None:
    rows = write(disk, DiskEvidenceOptions())
    assert "on the disk" in next(row.line for row in rows if row.kind == "size")
    assert {row.kind for row in rows} == {
        "cyclonedx",
        "spdx",
        "provenance",
        "vulnerabilities",
        "inspection",
        "size",
    }
    bill = say(disk, "cyclonedx")
    cyclonedx_bom.validate(document(disk, "cyclonedx").read_bytes())
    assert bill["metadata"]["component"]["hashes"] == [
        {"alg": "SHA-256", "content": disk.raw.sha256}
    ]
    parts = {row["name"]: row for row in bill["components"]}
    assert parts["bash"]["hashes"][0]["content"] == disk.packages[0].sha256
    assert parts["bash"]["licenses"][0]["expression"] == "GPL-3.0-or-later"
    module = {row["name"]: row["value"] for row in parts[f"/{KO}"]["properties"]}
    assert parts[f"/{KO}"]["type"] == "device-driver"
    assert module["goldnode:made"] == "prebuilt by goldnode"
    assert module["goldnode:origin"].startswith(f"pkg:deb/debian/{MODULES}@535.309.01")
    assert module["goldnode:sources"] == "nvidia-kernel-dkms=535.309.01-0+deb12u1"
    loader = parts["ESP:/EFI/BOOT/BOOTX64.EFI"]
    assert loader["type"] == "firmware"
    assert any("systemd-boot-efi" in row["value"] for row in loader["properties"])
    entry = {
        row["value"]
        for row in parts[f"ESP:/loader/entries/goldnode-{disk.build_id}-a.conf"]["properties"]
    }
    assert any("made by the build" in value for value in entry)


def test_spdx_is_valid_and_names_the_same_files(proven: BuiltDisk, tmp_path: Path) -> None:
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    file = tmp_path / "disk.spdx.json"
    file.write_bytes(document(proven, "spdx").read_bytes())
    found = parse_file(str(file))
    assert validate_full_spdx_document(found) == []
    names = {row.name for row in found.files}
    assert f"./{KO}" in names
    assert "./efi/EFI/BOOT/BOOTX64.EFI" in names


def test_provenance_is_about_every_file_and_names_every_lock(proven: BuiltDisk) -> None:
    disk = proven
    statement = say(disk, "provenance")
    assert {row["name"] for row in statement["subject"]} == {
        disk.name,
        *(row.file for row in disk.files),
    }
    uris = {row["uri"] for row in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert {f"urn:goldnode:class:{disk.class_}", f"urn:goldnode:disk-lock:{disk.class_}"} <= uris
    assert "pkg:deb/debian/bash@5.2.15-2+b7?arch=amd64" in uris
    assert statement["predicate"]["buildDefinition"]["internalParameters"]["modules"] == {
        "nvidia-current": "k" * 8
    }


def test_written_again_the_documents_are_the_same(disk: BuiltDisk, keys: tuple[Path, Path]) -> None:
    write(disk, DiskEvidenceOptions(signer=load_signer(keys[0])))
    before = {path.name: path.read_bytes() for path in disk.directory.glob("*.json")}
    assert {row.state for row in write(disk, DiskEvidenceOptions(signer=load_signer(keys[0])))} == {
        "kept"
    }
    assert {path.name: path.read_bytes() for path in disk.directory.glob("*.json")} == before


def test_vulnerabilities_go_by_the_source_package(disk: BuiltDisk, tmp_path: Path) -> None:
    database = tmp_path / "tracker.json"
    row = {
        "releases": {
            "bookworm": {
                "status": "resolved",
                "fixed_version": "2.36-9+deb12u14",
                "urgency": "high",
            }
        }
    }
    database.write_text(json.dumps({"glibc": {"CVE-2026-1": row}}))
    write(
        disk,
        DiskEvidenceOptions(databases=(vulnerabilities.load(f"debian={database}@2026-11-20"),)),
    )
    report = say(disk, "vulnerabilities")
    assert [(item["id"], item["package"], item["fixed"]) for item in report["vulnerabilities"]] == [
        ("CVE-2026-1", "libc6", "2.36-9+deb12u14")
    ]
    assert report["subject"] == digest_of(disk)


def test_sizes_are_reported(proven: BuiltDisk) -> None:
    disk = proven
    sizes = say(disk, "size")
    assert sizes["raw"] == disk.raw.size
    assert sizes["esp"] > 0
    assert {row["format"] for row in sizes["formats"]} == {"raw", "qcow2"}


def test_second_reading_of_a_disk_comes_from_the_cache(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = reading.read(disk, tmp_path / "cache")

    def never(*_: object) -> Any:
        raise AssertionError("it was read again")

    monkeypatch.setattr(reading, "read_partition", never)
    assert (
        reading.read(disk, tmp_path / "cache").root.snapshot.entries == first.root.snapshot.entries
    )


def test_a_signed_disk_is_authentic(signed: BuiltDisk, keys: tuple[Path, Path]) -> None:
    found = authenticate(signed, load_public(keys[1]))
    assert found.passed, found.text()
    assert "boot record" in {row.what for row in found.rows if row.detail == "signed for"}
    assert subjects(payload_of(document(signed, "signature").read_bytes()))[0] == digest_of(signed)


def _tamper(disk: BuiltDisk, keys: tuple[Path, Path]) -> str:
    path = disk.directory / f"{disk.name}.qcow2"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.unlink()
    path.write_bytes(data)
    return "qcow2 is altered"


def _document(disk: BuiltDisk, keys: tuple[Path, Path]) -> str:
    path = document(disk, "cyclonedx")
    path.write_bytes(path.read_bytes().replace(b"GPL-3.0-or-later", b"MIT             "))
    return "it is not what was signed"


def _foreign(disk: BuiltDisk, keys: tuple[Path, Path]) -> str:
    path = document(disk, "spdx")
    path.write_bytes(path.read_bytes().replace(digest_of(disk).encode(), b"sha256:" + b"0" * 64))
    return "it is about sha256:000"


def _later(disk: BuiltDisk, keys: tuple[Path, Path]) -> str:
    document(disk, "diff").write_text(json.dumps({"subject": digest_of(disk)}))
    return "written after the signature"


def _gone(disk: BuiltDisk, keys: tuple[Path, Path]) -> str:
    document(disk, "size").unlink()
    return "signed for, and is not here"


def _unsigned(disk: BuiltDisk, keys: tuple[Path, Path]) -> str:
    document(disk, "signature").unlink()
    return "is not signed"


def _other_boot(disk: BuiltDisk, keys: tuple[Path, Path]) -> str:
    prove(disk, None, papers=False, inspection=None, boot={"raw_sha256": "0" * 64})
    return "it is about the raw disk 000"


@pytest.mark.parametrize(
    "wrong", [_tamper, _document, _foreign, _later, _gone, _unsigned, _other_boot]
)
def test_authenticate_refuses_altered_foreign_or_unsigned_disks(
    signed: BuiltDisk, keys: tuple[Path, Path], wrong: Callable[..., str]
) -> None:
    reported = wrong(signed, keys)
    found = authenticate(signed, load_public(keys[1]))
    assert not found.passed
    assert any(reported in row.detail for row in found.rows if row.state == "refused"), found.text()


def test_another_key_and_none_are_no_good(signed: BuiltDisk, tmp_path: Path) -> None:
    other = load_public(make_key(tmp_path, "other")[1])
    assert not authenticate(signed, other, content=False).passed
    assert "NOT verified" in authenticate(signed, [], content=False).text()


def test_a_node_verifies_what_evidence_signs(
    signed: BuiltDisk, keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `disks evidence` through what `disks update` sends to what `slot write` demands; one byte of the root is enough."""
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    (tmp_path / "site.yml").write_text(f"images: {{public_key: {keys[1]}}}\n")
    node = Host(str(tmp_path / "node"), live=False)
    node.write(builder.KEYS, keys[1].read_bytes(), 0o644)
    first = open_image(signed, "a test").first
    assert builder.verified(node, first) == load_public(keys[1])[0].keyid
    raw = signed.path("raw")
    data = bytearray(raw.read_bytes())
    data[slot_image.partition(signed, "root-a").start + 4096] ^= 1
    raw.unlink()  # it has another name in other tests
    raw.write_bytes(data)
    forged = {**first, **slot_image.about(signed)}
    with pytest.raises(NodeError, match=r"root of .* is not what the builder has signed"):
        builder.verified(node, forged)


def test_an_altered_disk_gets_no_evidence(disk: BuiltDisk) -> None:
    raw = disk.directory / f"{disk.name}.raw"
    data = raw.read_bytes()
    raw.unlink()
    raw.write_bytes(data[:-1] + b"x")
    with pytest.raises(DiskError, match="is altered"):
        write(disk, DiskEvidenceOptions())
    raw.write_bytes(data[:-1])
    with pytest.raises(DiskError, match="the manifest says"):
        write(disk, DiskEvidenceOptions())
    assert not document(disk, "cyclonedx").exists()


def test_a_disk_whose_root_is_damaged_is_not_read(tmp_path: Path) -> None:
    disk = make_build(tmp_path, "a", bulk=4 << 20)
    with pytest.raises(ImageError, match="no file system of ext4"):
        write(disk, DiskEvidenceOptions(backend="cpu"))


def test_the_difference_for_a_reader(made: tuple[BuiltDisk, BuiltDisk]) -> None:
    found = compare(*made)
    text = found.text()
    assert "bash 5.2.15-2+b7 -> 5.2.15-2+b8" in text
    assert {row.name for row in found.unexplained} == {"etc/motd", "opt/tool"}
    assert "kernel" not in {row.name for row in found.facts}
    assert found.data()["against"] == digest_of(made[0])
    assert "the same disk" in compare(made[0], made[0]).text()
