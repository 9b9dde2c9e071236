"""The reader of ELF files: what it finds, and that no content of a file makes it fail or read without bound."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.inspect.things import NVIDIA, cudart, elf

from goldnode.inspect import elf as reader


def test_elf_reader_returns_needed_soname_strings_and_device_code() -> None:
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


def test_python_executable_has_needed_libraries_and_no_fault() -> None:
    found = reader.read(Path(sys.executable).resolve().read_bytes())
    assert found.needed
    assert found.fault == ""
    assert found.device == ()


@pytest.mark.parametrize("table", [True, False])
def test_device_code_is_seen_by_its_record_where_its_section_has_another_name_or_none(
    table: bool,
) -> None:
    found = reader.read(
        elf(
            sections={".renamed": b"x" * 64},
            data=b"\0" * 16 + NVIDIA + b"\0" * 16,
            section_table=table,
        )
    )
    assert found.device == ("nvFatBin record",)


def test_a_library_that_registers_device_code_and_one_that_is_it() -> None:
    assert reader.read(elf(imports=["__sycl_register_lib"])).device == ("__sycl_register_lib",)
    assert reader.read(elf(machine=190)).machine == "cubin"
    assert reader.read(elf(machine=224)).machine == "amdgpu"


def test_strings_are_found_without_a_section_table() -> None:
    assert reader.read(elf(strings=["libcuda.so.1"], section_table=False)).strings == (
        "libcuda.so.1",
    )


def test_versions_that_libraries_report() -> None:
    assert reader.cudart_version(cudart(12040)) == "12.4"
    assert reader.cudart_version(cudart(13000)) == "13.0"
    assert reader.cudart_version(cudart(12040) + cudart(12090)) is None, "two versions are none"
    assert reader.cudart_version(elf(text=b"\xc7\x07\x10\x00\x00\x00")) is None
    assert reader.nccl_version(elf(strings=["NCCL version 2.21.5+cuda12.4"])) == "2.21.5"
    assert reader.nccl_version(elf()) is None
    assert reader.cudnn_version(elf(), 9) is None


# ----- names that the linker merged into longer strings

WORDS = [
    "Failed to load ",
    "cannot open '",
    "%s",
    "no",
    "x-",
    "stub_",
    "error 12:",
    "/opt/lib/",
    "see ",
    "",
]
NAMES = [
    "libcuda.so",
    "libcuda.so.1",
    "libamdhip64.so.6",
    "libze_loader.so.1",
    "libnvidia-ml.so.1",
    "libx_y+z.so.2.3",
]


def merged(strings: list[str]) -> list[str]:
    """The strings that a linker writes: one that another ends with is no string of its own (`ld -O2`, SHF_MERGE)."""
    return sorted(
        {
            row
            for row in strings
            if not any(other != row and other.endswith(row) for other in strings)
        }
    )


def drawn(chance: random.Random) -> tuple[set[str], list[str]]:
    """Names that a program loads, and all of its strings: the names, and sentences that end with one or hold it."""
    loaded = set(chance.sample(NAMES, chance.randrange(1, 5)))
    sentences = [
        chance.choice(WORDS) + chance.choice(WORDS) + name
        for name in sorted(loaded)
        if chance.random() < 0.8
    ]
    inside = [
        f"{chance.choice(WORDS)}{name}{chance.choice([': no', ' (12)', '_x', '.%d'])}"
        for name in NAMES
        if chance.random() < 0.5
    ]
    return loaded, [*loaded, *sentences, *inside]


def test_each_name_is_found_however_its_string_is_merged_and_no_name_within_a_sentence() -> None:
    chance = random.Random(23)  # noqa: S311 - the same every time
    for _ in range(300):
        loaded, strings = drawn(chance)
        found = reader.read(elf(imports=["dlopen"], strings=merged(strings))).strings
        assert {name for name in found if name in NAMES} == loaded, strings


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
def test_each_name_is_found_in_what_the_linker_writes(tmp_path: Path) -> None:
    chance = random.Random(24)  # noqa: S311 - the same every time
    for number in range(3):
        loaded, strings = drawn(chance)
        text = "".join(f"    puts({json.dumps(row)});\n" for row in strings)
        (tmp_path / "a.c").write_text(
            f"#include <dlfcn.h>\n#include <stdio.h>\nint main(void) {{\n    dlopen(0, 2);\n{text}}}\n"
        )
        program = tmp_path / f"program{number}"
        subprocess.run(
            ["gcc", "-O2", "-fno-builtin", "-o", program, tmp_path / "a.c", "-ldl"], check=True
        )
        data = program.read_bytes()
        assert sum(row.encode() + b"\0" in data for row in strings) == len(strings)
        found = reader.read(data)
        assert found.loads
        assert {name for name in found.strings if name in NAMES} == loaded, strings


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
def test_a_section_is_found_where_its_name_is_the_end_of_its_relocations_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.c").write_text(
        'int f(void) { return 0; }\nasm(".section .nv_fatbin,\\"a\\"\\n.quad f\\n");\n'
    )
    subprocess.run(["gcc", "-c", "-o", tmp_path / "a.o", tmp_path / "a.c"], check=True)
    data = (tmp_path / "a.o").read_bytes()
    assert b"\0.nv_fatbin\0" not in data
    assert b".rela.nv_fatbin\0" in data
    assert reader.read(data).device == (".nv_fatbin",)


@pytest.mark.parametrize(
    ("string", "names"),
    [
        ("Failed to load libcuda.so.1", {"libcuda.so.1"}),
        ("%slibcuda.so.1", {"libcuda.so.1"}),
        ("/opt/stub-libcuda.so", {"stub-libcuda.so", "libcuda.so"}),
        ("no plugin x.so", set()),
        ("libcuda.so.1 is missing", set()),
        ("libcuda.so.1.", set()),
        ("needs " + "x" * 200 + "libcuda.so.1", {"libcuda.so.1"}),
    ],
)
def test_names_at_the_end_of_a_string(string: str, names: set[str]) -> None:
    assert set(reader.read(elf(imports=["dlopen"], strings=[string])).strings) == names


def test_a_file_loads_libraries_where_dlopen_is_the_end_of_another_symbol() -> None:
    assert reader.read(elf(imports=["lt_dlopen"])).loads
    assert reader.read(elf(imports=["dlmopen"])).loads
    assert not reader.read(elf(imports=["dlopen_failed"])).loads


def damaged() -> list[tuple[str, bytes]]:
    whole = elf(
        needed=["libc.so.6"],
        soname="libx.so",
        strings=["libcuda.so.1"],
        sections={".nv_fatbin": b"x"},
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
def test_damaged_file_has_a_fault_within_half_a_second(title: str, data: bytes) -> None:
    started = time.process_time()
    assert reader.read(data).fault
    assert time.process_time() - started < 0.5


def test_no_content_raises() -> None:
    chance = random.Random(6)  # noqa: S311 - the same every time
    whole = elf(
        needed=["libc.so.6"],
        strings=["libcuda.so.1"],
        sections={".nv_fatbin": b"x" * 64},
        data=NVIDIA,
    )
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(chance.randrange(1, 12)):
            broken[chance.randrange(4, len(broken))] = chance.randrange(256)
        reader.read(bytes(broken))
        reader.symbol(bytes(broken), b"cudnnGetVersion")
