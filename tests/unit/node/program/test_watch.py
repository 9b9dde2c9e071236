"""The watch of the kernel's log: what is a reason to look, how often it asks, and how it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.unit.node.state.test_cases import document, merge

from goldnode.core import program_file as nodefile
from goldnode.node.program import watch
from goldnode.node.state.domains import units
from goldnode.node.state.model import Observed
from goldnode.node.state.observe import LINKS
from goldnode.node.state.removal import part_of

XID = b"3,7,12345678,-;NVRM: Xid (PCI:0000:18:00): 79, pid=12, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("record", "is_one"),
    [
        (XID, True),
        (XID.replace(b"3,7", b"11,7"), False),  # user space quotes it
        (b"3,7,1,-;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30", True),
        (b"3,7,1,-;NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)", True),
        (
            b"3,7,1,-;pcieport 0000:00:1c.4: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            True,
        ),
        (
            b"4,7,1,-;pcieport 0000:00:1c.4: PCIe Bus Error: severity=Corrected, type=Physical Layer",
            False,
        ),
        (b"6,7,1,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01", False),
        (b"6,7,1,-;usb 1-1: new device\n DRIVER=NVRM: Xid ", False),
        (b"", False),
        (b"torn", False),
        (b"x,y,z;NVRM: Xid ", False),
    ],
)
def test_only_gpu_and_fatal_pcie_kernel_messages_are_a_reason(record: bytes, is_one: bool) -> None:
    assert watch.is_reason(record) is is_one


def test_faults_of_real_machines_are_reasons() -> None:
    real = yaml.safe_load((Path(__file__).parents[3] / "cases/logs/real.yml").read_text())
    for case in real:
        if any(
            event["kind"] in ("xid", "sxid", "bus_lost", "init_failed", "api_mismatch")
            for event in case["events"]
        ):
            assert any(watch.is_reason(b"3,1,1,-;" + line.encode()) for line in case["lines"]), (
                case["source"]
            )


class Log:
    """A log that is written to by a test: a packet is a record, as a read of /dev/kmsg gives it."""

    def __init__(self) -> None:
        import socket

        self.own, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.started: list[float] = []
        self.now = 100.0
        self.many = threading.Semaphore(0)

    def begin(self) -> None:
        self.started.append(self.now)
        self.many.release()


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    log.own.close()
    log.peer.close()


def test_a_storm_is_one_start_and_one_when_the_pause_is_over(log: Log) -> None:
    """Nothing that comes during the pause is forgotten; nothing that is no reason starts anything."""

    def clock() -> float:
        log.now += 0.001
        return log.now

    runner = threading.Thread(target=watch.watch, args=(log.peer.fileno(), log.begin, clock, 0.5))
    runner.start()
    log.own.send(b"6,1,1,-;usb 1-1: new device")
    for _ in range(50):
        log.own.send(XID)
    assert log.many.acquire(timeout=20)
    log.now += 1.0
    assert log.many.acquire(timeout=20), "the reason that came during the pause is owed"
    log.own.close()
    runner.join(20)
    assert not runner.is_alive()
    assert 2 <= len(log.started) <= 3
    assert log.started[1] - log.started[0] >= 0.5


def test_pending_reason_starts_a_check_when_the_log_ends(log: Log) -> None:
    for record in (XID, XID):
        log.own.send(record)
    log.own.close()
    watch.watch(log.peer.fileno(), log.begin, lambda: 100.0, 1000.0)
    assert len(log.started) == 2


def test_watch_starts_the_check_unit_without_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[list[str]] = []

    def spawn(name: str, argv: list[str], environment: dict[str, str]) -> int:
        reported.append(argv)
        raise FileNotFoundError(name)

    monkeypatch.setattr(os, "posix_spawnp", spawn)
    watch.start()
    assert reported == [["systemctl", "start", "--no-block", "goldnode-watch.service"]]


def test_watch_ends_with_0_when_the_kernel_log_is_absent(tmp_path: Path) -> None:
    assert watch.main(str(tmp_path)) == 0


def test_watch_imports_only_its_own_package(tmp_path: Path) -> None:
    """As the unit runs it: from the one file, in an interpreter that has none of the program's modules."""
    program = tmp_path / "goldnode-node"
    program.write_bytes(nodefile.build())
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import goldnode.node.program.watch;"
        "print(*[n for n in sys.modules if n.split('.')[0] in ('goldnode', 're', 'json', 'subprocess', 'dataclasses', 'ctypes', 'hashlib')])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        "goldnode",
        "goldnode.node",
        "goldnode.node.program",
        "goldnode.node.program.watch",
    ]


def test_the_unit_is_of_classes_with_a_gpu() -> None:
    wanted = document()
    path = f"{units.FOLDER}/{units.EVENTS}"
    assert path in [file.path for file in units.wanted(wanted, Observed())]
    assert path not in [
        file.path for file in units.wanted(merge(wanted, {"gpu": None}), Observed())
    ]
    assert units.EVENTS_LINK in LINKS
    assert part_of(path, {}) == part_of(units.EVENTS_LINK, {}) == "sanity"


def test_the_unit_is_skipped_and_not_failed_where_there_is_nothing_to_watch() -> None:
    lines = units.EVENTS_TEXT.splitlines()
    for line in (
        "ConditionPathExists=/dev/kmsg",
        "ConditionVirtualization=!container",
        "ConditionPathExists=/etc/goldnode/class.json",
    ):
        assert line in lines
    assert "Restart=on-failure" in lines
    assert "ProtectKernelLogs=yes" not in lines, "it would take /dev/kmsg away"
