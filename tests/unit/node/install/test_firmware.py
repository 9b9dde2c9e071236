"""The boot entry of an installed disk, and the one of the network."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import uuid
from pathlib import Path

import pytest

from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.install import firmware
from goldnode.node.slots import netboot
from goldnode.node.slots.identity import GLOBAL, Variables, primary

GUID = uuid.UUID("3d0b5c9e-6d7a-4a55-9a53-0f6b6f2a1e01")
# As OVMF writes them: a boot from the network by PXE, and one from the firmware's own file system.
NETWORK = (
    struct.pack("<IH", 1, 45)
    + "UEFI PXEv4\0".encode("utf-16-le")
    + bytes.fromhex(
        "02010c00d041030a00000000010106000002030b2500525400990001" + "00" * 26 + "017fff0400"
    )
)
SHELL = struct.pack("<IH", 1, 4) + "UiApp\0".encode("utf-16-le") + bytes.fromhex("7fff0400")


def write(path: str, data: bytes) -> None:
    Path(path).write_bytes(data)


class VariableFiles(Variables):
    """Variables in a directory of a test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), write)


@pytest.fixture
def variables(tmp_path: Path) -> Variables:
    folder = tmp_path / "sys/firmware/efi/efivars"
    folder.mkdir(parents=True)
    made = VariableFiles(folder)
    for number, value in enumerate((SHELL, NETWORK)):
        made.put(made.name(number), value)
    made.put_order([0, 1])
    return made


@pytest.mark.skipif(not shutil.which("sfdisk"), reason="needs fdisk")
def test_option_names_the_esp_by_number_place_and_guid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.touch()
    os.truncate(disk, 8 << 20)
    rows = f"label: gpt\nstart=2048, size=2048, type=linux\nstart=4096, size=4096, type=uefi, uuid={GUID}\n"
    subprocess.run(["sfdisk", "-q", str(disk)], input=rows, text=True, check=True)
    handle = os.open(disk, os.O_RDONLY)
    table = primary(handle)
    os.close(handle)
    assert table is not None
    value = firmware.option(table)
    assert value is not None
    drive = value[value.index(bytes.fromhex("04012a00")) :]
    assert struct.unpack_from("<IQQ", drive, 4) == (2, 4096, 4096)
    assert drive[24:42] == GUID.bytes_le + b"\x02\x02"
    assert "\\EFI\\BOOT\\BOOTX64.EFI".encode("utf-16-le") in value
    assert struct.unpack_from("<H", value, 4)[0] == len(value) - 6 - len("goldnode\0") * 2
    arm = os.uname_result(("Linux", "node", "6.12", "#1", "aarch64"))
    monkeypatch.setattr(os, "uname", lambda: arm)
    assert "\\EFI\\BOOT\\BOOTAA64.EFI\0".encode("utf-16-le") in (firmware.option(table) or b"")


def test_the_entry_of_a_disk_becomes_the_first_and_is_written_again_later(
    variables: Variables,
) -> None:
    title = "goldnode\0".encode("utf-16-le")
    assert firmware.put_first(variables, b"\1\0\0\0\4\0" + title + b"first") == 2
    assert variables.order() == [2, 0, 1]
    assert firmware.put_first(variables, b"\1\0\0\0\4\0" + title + b"second") == 2
    assert variables.order() == [2, 0, 1]
    assert variables.read(variables.name(2)).endswith(b"second")


def test_the_next_boot_is_from_the_first_entry_of_a_network_card(
    variables: Variables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert netboot.network_entry(variables) == 1
    monkeypatch.setattr(netboot, "Variables", lambda folder: variables)
    assert netboot.boot_once(Host(str(tmp_path), live=True)).startswith("the next boot is Boot0001")
    assert variables.read(f"{variables.folder}/BootNext-{GLOBAL}") == b"\1\0"


@pytest.mark.parametrize("value", [struct.pack("<I", 0) + NETWORK[4:], NETWORK[:9], b"", SHELL])
def test_an_entry_that_is_inactive_or_cut_is_no_network_boot(
    variables: Variables, value: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variables.put(variables.name(1), value)
    assert netboot.network_entry(variables) is None
    monkeypatch.setattr(netboot, "Variables", lambda folder: variables)
    with pytest.raises(NodeError, match="no active boot entry for a network card"):
        netboot.boot_once(Host(str(tmp_path), live=True))
