"""Captures and surveys of arm64 machines.

`SOURCES` are public: what `lscpu` and /proc/cpuinfo print there. Features are shortened, and the values are theirs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.roots import context, make

from goldnode.node.ground.host import Host
from goldnode.node.probe import machine
from goldnode.node.program import survey

# name -> (implementer, part, variant, revision, features, model, source)
PROCESSORS: dict[str, tuple[str, str, str, str, str, str, str]] = {
    "GH200 and GB200 (Grace)": (
        "0x41", "0xd4f", "0x0", "0", "fp asimd sve2 bf16 bti", "Neoverse-V2",
        "archspec/archspec-json issue 83 (lscpu of a GH200); a kernel mailing list's report of a 72-core Grace (stored id 24698213696)",
    ),
    "Ampere Altra": ("0x41", "0xd0c", "0x3", "1", "fp asimd lrcpc ssbs", "Neoverse-N1", "archspec/archspec-json issue 41"),
    "Graviton 3": ("0x41", "0xd40", "0x1", "1", "fp asimd sve", "Neoverse-V1", "build notes of a public project (stored id 18239146582)"),
    "QEMU, -cpu cortex-a72": ("0x41", "0xd08", "0x0", "3", "fp asimd crc32 cpuid", "Cortex-A72", "QEMU 7.2, own boot of 2026-11-30"),
    "Vera (Olympus)": ("0x4e", "0x010", "0x0", "0", "fp asimd", "Olympus", "Linux e185c8a0d842, cputype.h"),
    "a part that lscpu does not know": ("0x41", "0xdff", "0x0", "0", "fp", "0x41 0xdff", "made up"),
    "one part number of another maker": ("0x48", "0xd4f", "0x0", "0", "fp", "0x48 0xd4f", "made up"),
}  # fmt: skip


def cpuinfo(name: str, cpus: int = 2) -> str:
    """The form of arch/arm64/kernel/cpuinfo.c: no model name, no flags, no microcode."""
    maker, part, variant, revision, features, _, _ = PROCESSORS[name]
    return "".join(
        f"processor\t: {number}\nBogoMIPS\t: 2000.00\nFeatures\t: {features}\nCPU implementer\t: {maker}\n"
        f"CPU architecture: 8\nCPU variant\t: {variant}\nCPU part\t: {part}\nCPU revision\t: {revision}\n\n"
        for number in range(cpus)
    )


@pytest.mark.parametrize("name", PROCESSORS)
def test_processor_of_arm_has_the_name_that_lscpu_gives_it(tmp_path: Path, name: str) -> None:
    root = make(tmp_path, {"/proc/cpuinfo": cpuinfo(name)})
    features, model = PROCESSORS[name][4:6]
    got = machine.cpu(context(root))
    assert got["model"] == model
    assert got["flags"] == sorted(features.split())
    assert got["microcode"] == []
    assert survey.hardware(Host(str(root)))["processor"] == model


# files -> (product name, platform)
PRODUCTS: dict[str, tuple[dict[str, str], str | None, Any]] = {
    "DMI": ({"/sys/class/dmi/id/product_name": "Grace Server\n", "/proc/device-tree/model": "else\0"}, "Grace Server", "none"),
    "a device tree only": ({"/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0"}, "NVIDIA Jetson AGX Orin Developer Kit", "none"),
    "QEMU's virt without firmware": ({"/proc/device-tree/model": "linux,dummy-virt\0"}, "linux,dummy-virt", "qemu"),
    "QEMU's virt with UEFI": (
        {"/sys/class/dmi/id/sys_vendor": "QEMU\n", "/sys/class/dmi/id/product_name": "QEMU Virtual Machine\n"}, "QEMU Virtual Machine", "qemu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_machine_without_dmi_is_named_after_its_device_tree(tmp_path: Path, name: str) -> None:
    files, product, virtual = PRODUCTS[name]
    root = make(tmp_path, {**files, "/proc/cpuinfo": cpuinfo("Ampere Altra")})
    got = machine.identity(context(root))
    assert (got["product"]["name"], got["virtual"]) == (product, virtual)
    assert survey.hardware(Host(str(root)))["product"] == product


def test_page_size_is_that_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, {"/proc/meminfo": "MemTotal:  502000000 kB\n"})
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGESIZE": 65536}[name])
    assert machine.memory(context(tmp_path).files)["page_kib"] == 64
