"""A module's file against dkms's copy of it, and against dpkg's sum."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from tests.unit.node.roots import make

from goldnode.node.effective.module_file import SIGNED, altered
from goldnode.node.ground.host import Host

RELEASE = "6.1.0-9-amd64"
FILE = f"/lib/modules/{RELEASE}/updates/dkms/nvidia-current.ko"
COPY = f"/var/lib/dkms/nvidia-current/535.2/{RELEASE}/x86_64/module/nvidia-current.ko"
LINK = {f"/var/lib/dkms/nvidia-current/kernel-{RELEASE}-x86_64": f"535.2/{RELEASE}/x86_64"}
SUMS = "/var/lib/dpkg/info/gpu-modules.md5sums"


def sums(data: bytes, folder: str = "lib") -> str:
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return (
        f"0  usr/share/doc/x\n{digest}  {folder}/modules/{RELEASE}/updates/dkms/nvidia-current.ko\n"
    )


# files, seconds by which the module is younger than modules.dep, and a fragment of the difference (None: there is none)
CASES: dict[str, tuple[dict[str, str | bytes], int, str | None]] = {
    "as dkms built it": ({FILE: "ab", COPY: "ab"}, -1, None),
    "touched": ({FILE: "ab", COPY: "ab"}, 99, None),
    "other bytes": ({FILE: "ax", COPY: "ab"}, 99, "is not what dkms built"),
    "cut": ({FILE: "a", COPY: "ab"}, -1, "(1 bytes, "),
    "signed by the site afterwards": ({FILE: b"ab" + SIGNED, COPY: "ab"}, 99, None),
    "another file, signed as dkms does it": ({FILE: b"abc" + SIGNED, COPY: b"ab" + SIGNED}, 99, "is not what dkms built"),
    "no copy of dkms": ({FILE: "ab"}, 99, None),
    "as the package brought it": ({FILE: "ab", SUMS: sums(b"ab")}, 99, None),
    "not as the package brought it": ({FILE: "ax", SUMS: sums(b"ab")}, 99, "is not what gpu-modules installed"),
    "the same in a package with /usr": ({FILE: "ax", SUMS: sums(b"ab", "usr/lib")}, 99, "is not what gpu-modules installed"),
    "an older file of a package is not read": ({FILE: "ax", SUMS: sums(b"ab")}, -1, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_changed_file_of_a_module_is_found(tmp_path: Path, name: str) -> None:
    files, younger, expected = CASES[name]
    listed = f"/lib/modules/{RELEASE}/modules.dep"
    make(tmp_path, {**files, listed: "x"}, LINK if COPY in files else None)
    os.utime(tmp_path / listed[1:], (1000, 1000))
    os.utime(tmp_path / FILE[1:], (1000 + younger, 1000 + younger))
    found = altered(Host(str(tmp_path)), RELEASE, FILE, "gpu-modules")
    assert (found is None) if expected is None else (expected in str(found)), found
