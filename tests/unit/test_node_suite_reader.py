"""Readers of the node suite whose programs differ by release."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.nodes.reader import Node

# As of dracut 112-7 of Debian 14, cut; the device is of a test.
LSINITRD = """Image: /boot/initrd.img-7.2.12+deb14-amd64: 42M
========================================================================
Version: dracut-112

Arguments: --force

dracut modules:
systemd-modules-load
========================================================================
drwxr-xr-x   2 root     root            0 Dec  1 08:37 .
lrwxrwxrwx   1 root     root            7 Dec  1 08:37 bin -> usr/bin
crw-r--r--   1 root     root       5,   1 Jul 30  2026 dev/console
-rw-r--r--   1 root     root        91336 Jan  1  1970 usr/lib/modules/7.2.12/kernel/fs/fat/vfat.ko.xz
========================================================================
"""


@pytest.mark.parametrize(
    ("program", "output", "names"),
    [
        ("lsinitramfs", ".\nbin\n", [".", "bin"]),
        (
            "lsinitrd",
            LSINITRD,
            [".", "bin", "dev/console", "usr/lib/modules/7.2.12/kernel/fs/fat/vfat.ko.xz"],
        ),
    ],
)
def test_names_in_an_initramfs_come_from_the_program_of_the_node(
    program: str, output: str, names: list[str]
) -> None:
    def run(command: str, *arguments: str) -> Any:
        if command.startswith("command -v"):
            rc, text = int(program not in command), ""
        else:
            rc, text = (0, output) if command.startswith(program) else (127, "not found")
        return SimpleNamespace(rc=rc, stdout=text, stderr="", command=command)

    document: dict[str, Any] = {
        "kernel": {"release": "7.2.12"},
        "driver": None,
        "packages": [],
    }
    assert Node(SimpleNamespace(run=run), document).initramfs_names("/boot/initrd.img") == names
