"""The reader of ELF files: what it finds, and that no content of a file makes it fail or read without bound."""

from __future__ import annotations

import random
import struct
import sys
import time
from pathlib import Path

import pytest
from tests.unit.images.inspect.things import NVIDIA, cudart, elf

from goldnode.inspect import elf as reader


def test_what_a_file_says() -> None:
    found = reader.read(
        elf(
            needed=["libc.so.6", "libcudart.so.12"],
            soname="libx.so.1",
            imports=["dlopen"],
            strings=[
                "/opt/x/libcuda.so.1",
                "libnvidia-ml.so.1",
                "libc.so.6",
                "error in libcublas.so.12: no",
                "x.source",
                "libnot.so.x",
            ],
            sections={".nv_fatbin": b"x" * 4096},
        )
    )
    assert (found.machine, found.soname, found.fault) == ("amd64", "libx.so.1", "")
    assert found.needed == ("libc.so.6", "libcudart.so.12")
    assert found.loads
    assert found.strings == ("libcuda.so.1", "libnvidia-ml.so.1")
    assert (found.device, found.device_bytes) == ((".nv_fatbin",), 4096)


def test_python_itself() -> None:
    found = reader.read(Path(sys.executable).resolve().read_bytes())
    assert found.needed
    assert found.fault == ""
    assert found.device == ()


@pytest.mark.parametrize("table", [True, False])
def test_device_code_is_seen_by_its_record_where_its_section_has_another_name_or_none(table: bool) -> None:
    found = reader.read(
        elf(sections={".renamed": b"x" * 64}, data=b"\0" * 16 + NVIDIA + b"\0" * 16, section_table=table)
    )
    assert found.device == ("nvFatBin record",)


def test_a_library_that_registers_device_code_and_one_that_is_it() -> None:
    assert reader.read(elf(imports=["__sycl_register_lib"])).device == ("__sycl_register_lib",)
    assert reader.read(elf(machine=190)).machine == "cubin"
    assert reader.read(elf(machine=224)).machine == "amdgpu"


def test_strings_are_found_without_a_section_table() -> None:
    assert reader.read(elf(strings=["libcuda.so.1"], section_table=False)).strings == ("libcuda.so.1",)


def test_versions_that_libraries_report() -> None:
    assert reader.cudart_version(cudart(12040)) == "12.4"
    assert reader.cudart_version(cudart(13000)) == "13.0"
    assert reader.cudart_version(cudart(12040) + cudart(12090)) is None, "two versions are none"
    assert reader.cudart_version(elf(text=b"\xc7\x07\x10\x00\x00\x00")) is None
    assert reader.nccl_version(elf(strings=["NCCL version 2.21.5+cuda12.4"])) == "2.21.5"
    assert reader.nccl_version(elf()) is None
    assert reader.cudnn_version(elf(), 9) is None


def damaged() -> list[tuple[str, bytes]]:
    whole = elf(
        needed=["libc.so.6"], soname="libx.so", strings=["libcuda.so.1"], sections={".nv_fatbin": b"x"}
    )
    rows = [
        (f"cut at {length}", whole[:length])
        for length in (4, 20, 51, 63, 64, 100, 300, len(whole) // 2, len(whole) - 1)
    ]
    for title, offset, value in (
        ("sections past its end", 40, struct.pack("<Q", 1 << 60)),
        ("section count", 60, b"\xff\xff"),
        ("section size", 58, b"\x01\x00"),
        ("segments past its end", 32, struct.pack("<Q", (1 << 64) - 1)),
        ("segment count", 56, b"\xff\xff"),
        ("class", 4, b"\x07"),
        ("byte order", 5, b"\x09"),
        ("dynamic past its end", 64 + 3 * 56 + 8, struct.pack("<Q", 1 << 62)),
    ):
        rows.append((title, whole[:offset] + value + whole[offset + len(value) :]))
    # No number of sections in the header: it is in the first section, which asks for four milliards.
    shoff = struct.unpack_from("<Q", whole, 40)[0]
    huge = bytearray(whole)
    struct.pack_into("<HH", huge, 60, 0, 0xFFFF)
    struct.pack_into("<Q", huge, shoff + 32, 1 << 32)
    return [*rows, ("four milliard sections", bytes(huge))]


@pytest.mark.parametrize(("title", "data"), damaged(), ids=[title for title, _ in damaged()])
def test_a_damaged_file_is_said_to_be(title: str, data: bytes) -> None:
    started = time.process_time()
    assert reader.read(data).fault
    assert time.process_time() - started < 0.5


def test_no_content_raises() -> None:
    chance = random.Random(6)  # noqa: S311 - the same every time
    whole = elf(
        needed=["libc.so.6"], strings=["libcuda.so.1"], sections={".nv_fatbin": b"x" * 64}, data=NVIDIA
    )
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(chance.randrange(1, 12)):
            broken[chance.randrange(4, len(broken))] = chance.randrange(256)
        reader.read(bytes(broken))
        reader.symbol(bytes(broken), b"cudnnGetVersion")
