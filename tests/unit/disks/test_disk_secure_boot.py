"""Disks with signed boot files: the same bytes from build and signatures, what the firmware takes, and what is refused."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.disks.disk_samples import make_disk
from tests.unit.disks.disk_trees import any_uid
from tests.unit.node.slots.programs_of_uefi import program
from tuf.api.metadata import Targets

from goldnode.core.errors import DiskError
from goldnode.disks import enrolment, secureboot
from goldnode.disks.fat import Fat32
from goldnode.disks.model import BuiltDisk
from goldnode.fleet.control.channel import add_image
from goldnode.fleet.nodes.disk_update import open_image
from goldnode.lock.modpackage import Signing
from goldnode.node.slots import unified as uki
from goldnode.node.slots import write as slotwrite

__all__ = ["any_uid"]
pytestmark = pytest.mark.usefixtures("any_uid")

WHY = "a disk of the tests"
LOADER = program(trailing=b"#### LoaderInfo: systemd-boot 257.13-1~deb13u2 ####")


def quiet(text: str) -> None:
    """Progress is not looked at."""


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Signing:
    place = tmp_path_factory.mktemp("key")
    command = (
        "openssl req -new -x509 -newkey rsa:2048 -nodes -days 30 -sha256 -subj /CN=Example "
        "-keyout modules.key -out modules.crt"
    )
    subprocess.run(command.split(), cwd=place, check=True, capture_output=True)
    return Signing(place / "modules.key", place / "modules.crt", "identity")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDisk:
    place = tmp_path_factory.mktemp("disk")
    more = {
        uki.STUB: program(),
        "usr/lib/systemd/boot/efi/systemd-bootx64.efi": LOADER,
    }
    return make_disk(place / "store", place / "work", more=more)


@pytest.fixture
def disk(built: BuiltDisk, any_uid: None) -> BuiltDisk:
    """A build that nobody has signed."""
    (built.directory / f"{built.name}{secureboot.SUFFIX}").unlink(missing_ok=True)
    return built


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """sbsign and sbverify that look at nothing: the real ones are in tests/disks/test_secure_boot.py."""
    place = tmp_path / "bin"
    place.mkdir()
    for name, text in (
        ("sbsign", 'while [ "$1" != --output ]; do shift; done; date +%N >"$2"'),
        ("sbverify", 'test "$1" = --cert && test -s "$2" && test -s "$3"'),
    ):
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv(
        "PATH", f"{place}:{Path(shutil.which('sh') or '/bin/sh').parent}:/usr/sbin:/sbin:/usr/bin"
    )
    return place


def signed(disk: BuiltDisk, signing: Signing) -> dict[str, Any]:
    document = secureboot.sign(disk, secureboot.boot_files(disk), signing)
    secureboot.save(disk, document)
    return document


def written(disk: BuiltDisk, document: dict[str, Any], out: Path) -> tuple[str, int]:
    files = secureboot.signed_files(secureboot.boot_files(disk), document, str(disk.directory))
    return secureboot.write(disk, files, document, out, enrol="virtual", progress=quiet)


def on_esp(raw: Path) -> dict[str, bytes]:
    fat = Fat32(raw.read_bytes()[1 << 20 : 41 << 20], "the ESP")
    return {entry.path: fat.content(entry) for entry in fat.entries() if not entry.directory}


@pytest.mark.parametrize(("version", "signs"), [(b"257.13-1~deb13u1", True), (b"262-1", False)])
def test_stub_newer_than_those_tried_is_not_signed(
    tmp_path: Path, version: bytes, signs: bool
) -> None:
    stub = program(trailing=b"#### LoaderInfo: systemd-stub " + version + b" ####")
    more = {uki.STUB: stub, "usr/lib/systemd/boot/efi/systemd-bootx64.efi": LOADER}
    disk = make_disk(tmp_path / "store", tmp_path / "work", more=more)
    if signs:
        assert set(secureboot.boot_files(disk).images) == {"a", "b"}
        return
    with pytest.raises(DiskError, match="systemd-stub 262, and none newer than 257") as caught:
        secureboot.boot_files(disk)
    assert "systemd-boot-efi 257 or older" in str(caught.value)


def test_signed_disk_is_a_function_of_build_and_signatures(
    disk: BuiltDisk, signing: Signing, tools: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.raw", tmp_path / "second.raw"
    document = signed(disk, signing)
    one = written(disk, document, first)
    # Another builder has the build and the document, and no key.
    other = secureboot.load(disk.directory / f"{disk.name}{secureboot.SUFFIX}")
    assert written(disk, other, second) == one
    assert first.read_bytes() == second.read_bytes()
    found = on_esp(first)
    assert sorted(found) == [
        "EFI/BOOT/BOOTX64.EFI",
        "goldnode/a/goldnode.efi",
        "goldnode/a/slot.json",
        f"loader/entries/goldnode-{disk.build_id}-a.conf",
        "loader/keys/auto/KEK.auth",
        "loader/keys/auto/PK.auth",
        "loader/keys/auto/db.auth",
        "loader/loader.conf",
    ]
    signature = base64.b64decode(document["files"]["a"]["signature"])
    assert uki.signature(found["goldnode/a/goldnode.efi"]) == signature
    assert uki.unsigned(found["EFI/BOOT/BOOTX64.EFI"]) == uki.unsigned(LOADER)
    entry = found[f"loader/entries/goldnode-{disk.build_id}-a.conf"].decode()
    assert "linux      /goldnode/a/goldnode.efi\n" in entry
    assert "initrd" not in entry
    assert b"secure-boot-enroll if-safe\n" in found["loader/loader.conf"]
    before, made = disk.path("raw").read_bytes(), first.read_bytes()
    assert (before[: 1 << 20], before[41 << 20 :]) == (made[: 1 << 20], made[41 << 20 :])


def test_unified_kernel_is_what_the_node_makes_of_the_root(
    disk: BuiltDisk, signing: Signing, tools: Path
) -> None:
    signed(disk, signing)
    rows = secureboot.for_slots(disk)
    assert rows is not None
    assert sorted(rows) == ["a", "b"]
    image = {
        "name": disk.name,
        "kernel": disk.kernel,
        "options": "root=PARTLABEL=root-a ro console=ttyS0 panic=5",
        "secure_boot": rows,
    }
    root = disk.directory.parents[3] / "work/root-a"
    boot = (str(root / f"boot/vmlinuz-{disk.kernel}"), str(root / f"boot/initrd.img-{disk.kernel}"))
    for slot in ("a", "b"):
        made = slotwrite.unified(str(root), image, slot, boot)
        assert uki.signature(made) == base64.b64decode(rows[slot]["signature"])


def test_loader_of_debian_12_enrols_on_request_only(
    disk: BuiltDisk, signing: Signing, tools: Path
) -> None:
    document, old = signed(disk, signing), LOADER.replace(b"257", b"252")
    for version, enrol, word in (
        (LOADER, "virtual", b"if-safe"),
        (old, "virtual", b"manual"),
        (old, "always", b"force"),
        (LOADER, "none", b"off"),
    ):
        files = secureboot.BootFiles(version, secureboot.boot_files(disk).images)
        content = secureboot.esp_content(disk, files, document, enrol)  # type: ignore[arg-type]
        conf = content["loader/loader.conf"]
        assert isinstance(conf, bytes)
        assert conf.endswith(b"secure-boot-enroll " + word + b"\n")
        assert ("loader/keys/auto/PK.auth" in content) == (enrol != "none")


def test_signatures_of_another_build_are_refused(
    disk: BuiltDisk, signing: Signing, tools: Path, tmp_path: Path
) -> None:
    document = signed(disk, signing)
    document["files"]["a"]["digest"] = "0" * 64
    with pytest.raises(DiskError, match="the signature of `a` is of other content"):
        written(disk, document, tmp_path / "out.raw")
    assert not (tmp_path / "out.raw").exists()
    (tools / "sbverify").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(DiskError, match="sbverify refuses the signature of `loader`"):
        written(disk, signed(disk, signing), tmp_path / "out.raw")


def test_image_of_a_followed_channel_has_the_signatures(
    disk: BuiltDisk, signing: Signing, tools: Path, tmp_path: Path
) -> None:
    """Nodes write what the release describes: `goldnode rollout publish --image`."""
    release = Targets()
    add_image(tmp_path / "channel", release, open_image(disk, WHY, unsigned=WHY))
    document = signed(disk, signing)
    other = Targets()
    add_image(tmp_path / "channel", other, open_image(disk, WHY, unsigned=WHY))
    headers = [
        target.unrecognized_fields["custom"]["header"]
        for found in (release, other)
        for target in found.targets.values()
    ]
    rows = {slot: document["files"][slot] for slot in ("a", "b")}
    assert [header["secure_boot"] for header in headers] == [None, rows]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": "goldnode.secure-boot/1"}', '{"schema": "other/1"}'],
)
def test_damaged_signatures_are_refused(disk: BuiltDisk, text: str) -> None:
    file = disk.directory / f"{disk.name}{secureboot.SUFFIX}"
    assert secureboot.for_slots(disk) is None
    file.write_text(text)
    with pytest.raises(DiskError) as caught:
        secureboot.for_slots(disk)
    assert "un `goldnode disks sign` again" in str(caught.value)


def test_signature_that_is_no_base64_is_refused(
    disk: BuiltDisk, signing: Signing, tools: Path
) -> None:
    document = signed(disk, signing)
    document["files"]["b"]["signature"] = "*"
    file = secureboot.save(disk, document)
    with pytest.raises(DiskError, match="not complete"):
        secureboot.load(file)


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goldnode.disks.secureboot.shutil.which", lambda name, path=None: None)
    with pytest.raises(DiskError) as caught:
        secureboot.require_programs("sbsign", "mcopy", "modinfo")
    assert "`apt-get install kmod mtools sbsigntool`" in str(caught.value)


def test_modules_without_a_signature_are_named(disk: BuiltDisk, tmp_path: Path) -> None:
    assert secureboot.unsigned_modules(disk, tmp_path / "cache") == ["nvidia-current"]


# -- enrolment


def test_variables_are_signed_for_the_firmware_and_the_same_each_time(
    signing: Signing, tmp_path: Path
) -> None:
    files = enrolment.enrolment_files(signing)
    assert files == enrolment.enrolment_files(signing)
    assert sorted(files) == ["KEK.auth", "PK.auth", "db.auth"]
    for name, content in files.items():
        dated, length = content[:16], int.from_bytes(content[16:20], "little")
        assert content[20:24] == b"\x00\x02\xf1\x0e"
        assert content[24:40] == enrolment.PKCS7.bytes_le
        body, listed = content[40 : 16 + length], content[16 + length :]
        assert listed == enrolment.signature_list([signing.der()])
        assert int.from_bytes(listed[16:20], "little") == len(listed)
        variable = name.removesuffix(".auth")
        covered = variable.encode("utf-16-le") + enrolment.VARIABLES[variable].bytes_le
        covered += (0x27).to_bytes(4, "little") + dated + listed
        # openssl reads the signature in a shell of its own.
        oid, inner = bytes.fromhex("06092a864886f70d010702"), _der(0xA0, body)
        (tmp_path / "p7").write_bytes(_der(0x30, oid + inner))
        (tmp_path / "data").write_bytes(covered)
        command = "openssl cms -verify -binary -inform DER -in p7 -content data -noverify -out seen"
        done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def _der(tag: int, content: bytes) -> bytes:
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def test_further_certificates_are_in_db_alone(signing: Signing, tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    shutil.copy(signing.certificate, other)
    files = enrolment.enrolment_files(signing, [other])
    alone = enrolment.enrolment_files(signing)
    assert (files["PK.auth"], files["KEK.auth"]) == (alone["PK.auth"], alone["KEK.auth"])
    assert files["db.auth"].endswith(enrolment.signature_list([signing.der()] * 2))


def test_document_names_disk_and_build(disk: BuiltDisk, signing: Signing, tools: Path) -> None:
    signed(disk, signing)
    found = json.loads((disk.directory / f"{disk.name}{secureboot.SUFFIX}").read_text())
    assert (found["schema"], found["name"], found["build_id"]) == (
        "goldnode.secure-boot/1",
        disk.name,
        disk.build_id,
    )
    assert sorted(found["files"]) == ["a", "b", "loader"]
