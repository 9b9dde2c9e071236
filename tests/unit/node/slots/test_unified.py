"""Unified kernel images: what is in them, what a signature is about, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.slots.programs_of_uefi import program

from goldnode.node.effective import uki as reader
from goldnode.node.ground.errors import NodeError
from goldnode.node.slots import unified as uki

PARTS = uki.UnifiedParts(
    program(), b"ID=debian\n", "6.1.0-1-amd64", b"kernel" * 999, b"initramfs" * 777
)
OPTIONS = "root=PARTLABEL=root-a ro"


def test_unified_image_has_each_part_in_a_section_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "a.efi"
    file.write_bytes(uki.image(PARTS, OPTIONS))
    found = {row[0]: reader.section(str(file), row[0]) for row in uki.sections(file.read_bytes())}
    assert list(found) == [".text", ".osrel", ".cmdline", ".uname", ".initrd", ".linux"]
    assert found[".osrel"] == PARTS.os_release
    assert found[".cmdline"] == OPTIONS.encode()
    assert found[".uname"] == PARTS.release.encode()
    assert (found[".initrd"], found[".linux"]) == (PARTS.initrd, PARTS.kernel)
    assert reader.section(str(file), ".dtb") is None
    assert uki.image(PARTS, OPTIONS) == file.read_bytes(), "the same parts give the same bytes"


def test_sections_follow_each_other_in_memory_and_in_the_file() -> None:
    image = uki.image(PARTS, OPTIONS)
    rows = uki.sections(image)
    for one, other in itertools.pairwise(rows):
        assert one[2] + one[1] <= other[2]
        assert one[4] + one[3] <= other[4]
        assert (other[2] % uki.PAGE, other[4] % 512) == (0, 0)
    head = uki.headers(image)
    (size,) = struct.unpack_from("<I", image, head.optional + 56)
    assert size >= rows[-1][2] + rows[-1][1]
    assert size % head.section_align == 0


def test_symbols_behind_the_stub_are_left_out() -> None:
    other = PARTS._replace(stub=program(trailing=b"symbols" * 40))
    assert uki.image(other, OPTIONS) == uki.image(PARTS, OPTIONS)


def test_signature_changes_neither_digest_nor_content() -> None:
    image = uki.image(PARTS, OPTIONS)
    signed = uki.signed(image, b"a signature")
    assert uki.signature(signed) == b"a signature"
    assert uki.signature(image) is None
    assert uki.digest(signed) == uki.digest(image)
    assert uki.unsigned(signed) == image
    assert uki.signed(signed, b"another") == uki.signed(image, b"another")


@pytest.mark.parametrize("name", [".text", ".cmdline", ".initrd", ".linux"])
def test_one_changed_bit_has_another_digest(name: str) -> None:
    image = bytearray(uki.image(PARTS, OPTIONS))
    (row,) = [row for row in uki.sections(bytes(image)) if row[0] == name]
    image[row[4] + row[1] - 1] ^= 1
    assert uki.digest(bytes(image)) != uki.digest(uki.image(PARTS, OPTIONS))


def test_checksum_is_that_of_the_pe_format() -> None:
    image = uki.signed(uki.image(PARTS, OPTIONS), b"a signature")
    place = uki.headers(image).optional + uki.CHECKSUM
    (stated,) = struct.unpack_from("<I", image, place)
    bare, total = image[:place] + bytes(4) + image[place + 4 :], 0
    for (word,) in struct.iter_unpack("<H", bare):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    assert stated == total + len(image)


@pytest.mark.parametrize(
    ("stub", "text"),
    [
        (b"MZ", "too short"),
        (b"\x7fELF" + bytes(600), "no program of UEFI for amd64"),
        (program(machine=0xAA64), "no program of UEFI for amd64"),
        (program(headers=512), "have no room"),
    ],
)
def test_stub_that_cannot_be_used_is_refused(stub: bytes, text: str) -> None:
    with pytest.raises(NodeError, match=text):
        uki.image(PARTS._replace(stub=stub), OPTIONS)


@given(st.binary(max_size=600), st.integers(0, 1400))
def test_damaged_program_is_read_or_refused(noise: bytes, at: int) -> None:
    image = uki.signed(program(), b"a signature")
    image = image[:at] + noise + image[at + len(noise) :]
    for read in (uki.sections, uki.digest, uki.signature, uki.unsigned):
        with contextlib.suppress(NodeError):
            read(image)


@given(st.lists(st.binary(min_size=1, max_size=5000), min_size=1, max_size=8))
def test_every_section_is_read_as_it_was_added(contents: list[bytes]) -> None:
    parts = [(f".part{number}", content) for number, content in enumerate(contents)]
    image = uki.unsigned(uki.assemble(program(), parts))
    found = [image[row[4] : row[4] + row[1]] for row in uki.sections(image)[1:]]
    assert found == contents
    assert uki.unsigned(uki.signed(image, contents[0])) == image


def test_file_that_is_no_program_has_no_section(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    assert reader.section(str(tmp_path / "a"), ".linux") is None
    assert reader.section(str(tmp_path / "missing"), ".linux") is None
