"""One initramfs per transaction: the program that dpkg finds first, and what is owed when a run ends early."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result
from goldnode.node.state import deferred, initramfs_batch
from goldnode.node.state import observe as owing

WHOLE = ("env", f"PATH={initramfs_batch.PATH}", "update-initramfs", "-u")
# How update-initramfs is called; by which package's script; whether it is done at once.
CALLS = [
    (
        "-c -k 6.1.0-902-amd64 -b /boot",
        "linux-image-6.1.0-902-amd64",
        True,
    ),  # a kernel is never there without one
    ("-d -k 6.1.0-901-amd64 -b /boot", "linux-image-6.1.0-901-amd64", True),
    ("-u", "nvidia-kernel-common", True),  # which only activates the trigger
    ("-u", "", False),  # which is the trigger
    ("-u -k 6.1.0-902-amd64", "dkms", False),
    ("-u -k all", "", False),
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program, with the real one and its list in a directory of the test's."""
    real = tmp_path / "real"
    real.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/done\n')
    real.chmod(0o755)
    found = tmp_path / "update-initramfs"
    found.write_text(
        deferred.TEXT.replace(deferred.REAL, str(real)).replace(owing.OWED, str(tmp_path / "owed"))
    )
    found.chmod(0o755)
    return found


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("arguments", "package", "at_once"), CALLS)
def test_a_call_is_done_at_once_or_written_down(
    program: Path, arguments: str, package: str, at_once: bool
) -> None:
    environment = {**os.environ, **({"DPKG_MAINTSCRIPT_PACKAGE": package} if package else {})}
    environment.pop("DPKG_MAINTSCRIPT_PACKAGE", None) if not package else None
    subprocess.run([str(program), *arguments.split()], check=True, env=environment)
    assert (lines(program.with_name("done")), lines(program.with_name("owed"))) == (
        ([arguments], []) if at_once else ([], [arguments])
    )


def test_initramfs_is_updated_at_once_when_it_cannot_be_recorded(program: Path) -> None:
    program.with_name("owed").mkdir()
    subprocess.run(
        [str(program), "-u"],
        check=True,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"]},
    )
    assert lines(program.with_name("done")) == ["-u"]


class Node(Host):
    """A node whose update-initramfs answers with `status`, and whose newest kernel is 6.1.0-902-amd64."""

    status = 0

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None):  # type: ignore[no-untyped-def] # as in Host
        self.commands.append(argv)
        return Result(
            argv,
            self.status,
            "6.1.0-902-amd64\n6.1.0-901-amd64\n" if argv[0] == "linux-version" else "",
            "no space left",
        )


def test_owed_initramfs_updates_run_once_and_are_forgotten(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    deferred.begin(node)
    assert os.access(tmp_path / deferred.PROGRAM.lstrip("/"), os.X_OK)
    (tmp_path / owing.OWED.lstrip("/")).write_text("-u\n-u -k all\n-u\n")
    reported: list[str] = []
    deferred.settle(node, reported.append)
    assert [argv for argv in node.commands if argv[0] == "env"] == [
        WHOLE,
        (*WHOLE, "-k", "all"),
    ]
    assert reported == ["update-initramfs -u", "update-initramfs -u -k all"]
    assert not (tmp_path / owing.DEFERRED.lstrip("/")).exists()


def test_failed_initramfs_update_stays_owed(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    node.status = 1
    deferred.begin(node)
    (tmp_path / owing.OWED.lstrip("/")).write_text("-u\n")
    with pytest.raises(NodeError, match="update-initramfs -u fails; the earlier initramfs is kept"):
        deferred.settle(node, lambda text: None)
    assert owing.owed(node) == ["-u"]


# What is younger than the initramfs of the new kernel, and whether a lone -u has anything to add to it.
YOUNGER: dict[str, tuple[str | None, bool]] = {
    "nothing": (None, True),
    "the linker's cache": ("etc/ld.so.cache", True),
    "another kernel's module": ("lib/modules/6.1.0-901-amd64/updates/x.ko", True),
    "a package that was unpacked": ("var/lib/dpkg/info/busybox.list", False),
    "a modprobe file": ("etc/modprobe.d/nvidia.conf", False),
    "a file of /etc": ("etc/crypttab", False),
    "a module of this kernel": ("lib/modules/6.1.0-902-amd64/updates/x.ko", False),
    "a hook": ("usr/share/initramfs-tools/hooks/x", False),
}


@pytest.mark.parametrize("case", YOUNGER)
def test_a_new_kernels_initramfs_is_made_again_only_where_something_has_changed_since(
    tmp_path: Path, case: str
) -> None:
    changed, fresh = YOUNGER[case]
    for name, _ in YOUNGER.values():
        if name is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
    node = Node(str(tmp_path))
    deferred.begin(node)
    time.sleep(0.02)  # the clock of a file system ticks some hundred times a second
    (tmp_path / deferred.MADE.lstrip("/")).mkdir()
    (tmp_path / deferred.MADE.lstrip("/") / "6.1.0-902-amd64").touch()
    (tmp_path / owing.OWED.lstrip("/")).write_text("-u\n")
    time.sleep(0.02)
    if changed is not None:
        (tmp_path / changed).unlink()
        (tmp_path / changed).touch()
    deferred.settle(node, lambda text: None)
    assert (WHOLE not in node.commands) == fresh


def test_an_initramfs_of_an_earlier_transaction_is_made_again(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    deferred.begin(node)
    (tmp_path / owing.OWED.lstrip("/")).write_text("-u\n")
    deferred.settle(node, lambda text: None)
    assert WHOLE in node.commands


def test_begin_removes_marks_of_an_earlier_transaction(tmp_path: Path) -> None:
    mark = tmp_path / deferred.MADE.lstrip("/") / "6.1.0-902-amd64"
    (tmp_path / "var/lib/dpkg/info").mkdir(parents=True)
    mark.parent.mkdir(parents=True)
    mark.touch()
    deferred.begin(Node(str(tmp_path)))
    assert not mark.exists()
