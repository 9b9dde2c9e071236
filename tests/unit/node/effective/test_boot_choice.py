"""The files of the kernel that boots next. Sizes are those of Debian's linux-image-6.1.0-56-amd64 (6.1.192-2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.node.roots import make

from goldnode.node.effective.boot_choice import kernel_fault
from goldnode.node.ground.host import Host

RELEASE = "6.1.0-56-amd64"
IMAGE, DEP, CONFIG = (
    f"/boot/vmlinuz-{RELEASE}",
    f"/lib/modules/{RELEASE}/modules.dep",
    f"/boot/config-{RELEASE}",
)
WHOLE = 8245760  # what the header states; the package's file has 1472 bytes more, its signature


def image(size: int) -> bytes:
    """The head of an x86 kernel image with its set-up of 39 sectors, at the given size."""
    head = bytearray(4096)
    head[0x1F1], head[0x1F4:0x1F8], head[0x202:0x206] = 39, (514080).to_bytes(4, "little"), b"HdrS"
    return bytes(head) + bytes(size - len(head))


ARM = 37796352  # what the section table states of Debian's linux-image-6.12.118+deb13-arm64, whose file has 1472 bytes more


def arm_image(size: int, magic: bytes = b"ARMd") -> bytes:
    """The head of an arm64 kernel image (Debian's have a PE header at 0x40, two sections), at the given size."""
    head = bytearray(4096)
    head[:2], head[0x38:0x40], head[0x40:0x44] = b"MZ", magic + b"@\0\0\0", b"PE\0\0"
    head[0x10:0x18] = 0x2510000.to_bytes(
        8, "little"
    )  # the size in memory, which is larger than the file
    head[0x46:0x48], head[0x54:0x56] = b"\2\0", (160).to_bytes(2, "little")
    for row, (length, start) in enumerate(((31588352, 65536), (6142464, 31653888))):
        at = 0xF8 + 40 * row
        head[at + 16 : at + 20], head[at + 20 : at + 24] = (
            length.to_bytes(4, "little"),
            start.to_bytes(4, "little"),
        )
    return bytes(head) + bytes(size - len(head))


# files -> the fault; none for the last ones
CASES: dict[str, tuple[dict[str, str | bytes], str | None]] = {
    "deleted": ({CONFIG: "", DEP: "x"}, f"{IMAGE} is missing"),
    "empty": ({IMAGE: "", DEP: "x"}, f"{IMAGE} is empty"),
    "cut by a full /boot": ({IMAGE: image(5 << 20), DEP: "x"}, f"{IMAGE} has {5 << 20} bytes of {WHOLE}"),
    "no modules": ({IMAGE: image(WHOLE)}, f"{DEP} is missing or empty"),
    "an empty list of modules": ({IMAGE: image(WHOLE), DEP: ""}, f"{DEP} is missing or empty"),
    "whole": ({IMAGE: image(WHOLE), DEP: "x"}, None),
    "whole and signed": ({IMAGE: image(WHOLE + 1472), DEP: "x"}, None),
    "arm64, cut": ({IMAGE: arm_image(9 << 20), DEP: "x"}, f"{IMAGE} has {9 << 20} bytes of {ARM}"),
    "arm64, whole": ({IMAGE: arm_image(ARM), DEP: "x"}, None),
    "arm64, whole and signed": ({IMAGE: arm_image(ARM + 1472), DEP: "x"}, None),
    "arm64, compressed (EFI zboot)": ({IMAGE: arm_image(ARM, b"\0\0\0\0"), DEP: "x"}, None),
    "an unknown format": ({IMAGE: b"MZ" + bytes(70), DEP: "x"}, None),
    "booted from the network: /boot is empty (Warewulf excludes it)": ({DEP: "x"}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kernel_that_could_not_start_has_a_fault(tmp_path: Path, name: str) -> None:
    files, expected = CASES[name]
    assert kernel_fault(Host(str(make(tmp_path, files))), RELEASE) == expected


def test_image_behind_a_link_is_read(tmp_path: Path) -> None:
    host = Host(str(make(tmp_path, {"/boot/k/linux": "", DEP: "x"}, {IMAGE: "/boot/k/linux"})))
    assert kernel_fault(host, RELEASE) == f"{IMAGE} is empty"
