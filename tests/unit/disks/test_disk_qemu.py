"""The virtual machine's command line and its clock, without starting one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goldnode.disks import qemu
from goldnode.disks.qemu import (
    KVM,
    TCG,
    Accelerator,
    Clock,
    Drive,
    Firmware,
    MachineError,
    VirtualMachine,
    VmOptions,
)


def machine(tmp_path: Path, disk: Path | None = None, **more: Any) -> VirtualMachine:
    chosen = more.pop("chosen", Accelerator(TCG, "no kvm"))
    return VirtualMachine(
        disk,
        tmp_path,
        VmOptions(
            firmware=Firmware(Path("/fw/code.fd"), Path("/fw/variables.fd")), chosen=chosen, **more
        ),
    )


def test_the_disk_is_not_written_and_the_guest_reaches_nothing(tmp_path: Path) -> None:
    line = " ".join(machine(tmp_path, Path("/images/a,b.raw")).command(7))
    assert "snapshot=on,file=/images/a,,b.raw" in line
    assert "restrict=on,hostfwd=tcp:127.0.0.1:0-:22" in line
    assert "socket,id=qmp,fd=7" in line
    stored = " ".join(machine(tmp_path, Path("/o.qcow2"), snapshot=False, form="qcow2").command(7))
    assert "format=qcow2" in stored
    assert "snapshot=on" not in stored
    second = " ".join(
        machine(tmp_path, drives=[Drive(Path("/seed.img"))], network=False).command(7)
    )
    assert "readonly=on,file=/seed.img" in second
    assert "netdev" not in second


@pytest.mark.parametrize(
    ("name", "counted", "words", "absent"),
    [
        (KVM, True, ("-accel kvm -cpu host", "-smp 2"), "icount"),
        (TCG, True, ("thread=single", "-icount shift=1,sleep=on -rtc clock=vm", "-smp 1"), "kvm"),
        (TCG, False, ("thread=multi", "-smp 2"), "-rtc"),
    ],
)
def test_clock_of_an_emulated_guest_counts_its_instructions_or_is_that_of_this_machine(
    tmp_path: Path,
    name: str,
    counted: bool,
    words: tuple[str, ...],
    absent: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    line = " ".join(machine(tmp_path, chosen=Accelerator(name), counted=counted).command(7))
    assert all(word in line for word in words)
    assert absent not in line


def test_a_busy_machine_takes_no_time_of_the_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = [100.0], [{"1": 0.0, "2": 0.0}]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Clock, "_waited", lambda self: dict(waited[0]))
    clock = Clock(os.getpid())
    for passed, waits, seconds in (
        (10.0, {"1": 0.0, "2": 0.0}, 10.0),  # nothing else ran
        (10.0, {"1": 4.0, "2": 8.0}, 12.0),  # the slower of its threads waited eight of ten
        (
            10.0,
            {"1": 4.0, "2": 18.0},
            13.0,
        ),  # it got nothing at all: a tenth counts, so that every limit is reached
        (10.0, {"3": 0.0}, 23.0),  # a thread that is new has waited for nothing yet
    ):
        now[0] += passed
        waited[0] = waits
        assert clock.tick() == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("\x1b[0;32m  OK  \x1b[0m] Started\r\n", "  OK  ] Started\n"),
        ("\x1b[2J\x1b[01;01H\x1b[=3hBdsDxe: starting", "BdsDxe: starting"),
        ("a\x07b\x1b]0;title\x07c", "abc"),
    ],
)
def test_the_console_without_its_control_sequences(shown: str, text: str) -> None:
    assert qemu.shown_text(shown) == text


def test_kvm_that_is_not_there_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(qemu, "DEVICE", tmp_path / "kvm")
    qemu.accelerator.cache_clear()
    try:
        assert qemu.accelerator() == Accelerator(TCG, f"there is no {tmp_path / 'kvm'}")
    finally:
        qemu.accelerator.cache_clear()


def test_check_tools_names_all_missing_programs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name.startswith("qemu") else "/x")
    with pytest.raises(
        MachineError,
        match=r"missing on this machine: qemu-system-x86_64, qemu-img\. Install them: apt-get install .*qemu-system-x86",
    ):
        qemu.check_tools()


def test_a_guest_for_arm64_has_its_own_machine_and_is_emulated_on_amd64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert qemu.accelerator("arm64") == Accelerator(TCG, "this machine is not arm64")
    words = machine(tmp_path, architecture="arm64", counted=False).command(7)
    assert words[0] == "qemu-system-aarch64"
    assert "-M virt" in " ".join(words)
    assert "-cpu neoverse-n1" in " ".join(words)


def test_tools_of_a_guest_for_arm64_are_named_with_its_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name.startswith("qemu-s") else "/x")
    with pytest.raises(
        MachineError, match=r"qemu-system-aarch64\. .*qemu-efi-aarch64 qemu-system-arm qemu-utils"
    ):
        qemu.check_tools("arm64")


def test_a_machine_that_does_not_run_reports_it(tmp_path: Path) -> None:
    idle = machine(tmp_path)
    assert (idle.status(), idle.running(), idle.console()) == ("ended", False, "")
    with pytest.raises(MachineError, match="does not run"):
        idle.wait_for("login:")
    with pytest.raises(MachineError, match="without a key"):
        idle.ssh_command("true")
    idle.cut()
    idle.stop()


def test_a_question_that_a_restart_swallowed_is_asked_again_with_more_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [qemu.MachineLateError("late"), qemu.MachineLateError("late"), "before\n", "after\n"]
    limits: list[float] = []

    def ssh(self: VirtualMachine, words: list[str], *, limit: float) -> qemu.GuestResult:
        limits.append(limit)
        answer = answers.pop(0)
        if isinstance(answer, MachineError):
            raise answer
        return qemu.GuestResult(0, str(answer), "")

    monkeypatch.setattr(VirtualMachine, "ssh", ssh)
    monkeypatch.setattr(VirtualMachine, "pauses", lambda *_: iter(range(9)))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert machine(tmp_path).wait_ssh(other_than="before") == "after"
    assert limits == [10.0, 20.0, 40.0, 40.0]


class Monitor:
    """QEMU's control socket with answers and events in the order of `lines`."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def sendall(self, text: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        given, self.text = self.text[:size], self.text[size:]
        return given


RUNNING: dict[str, Any] = {"return": {"status": "running"}}
RESET: dict[str, Any] = {"event": "RESET", "data": {"guest": True, "reason": "guest-reset"}}


def test_guest_that_shuts_down_is_asked_only_after_its_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"event": "RESET", "data": {"guest": False, "reason": "host-qmp-system-reset"}}
    # One reset before the wait, one that QEMU was asked for, and the one that ends the wait.
    lines = [RESET, RUNNING, own, RUNNING, RUNNING, {"event": "STOP"}, RESET, RUNNING]
    order: list[str] = []

    def ssh(*_: object, **__: object) -> qemu.GuestResult:
        order.append("ssh")
        return qemu.GuestResult(0, "two", "")

    def pauses(*_: object) -> Iterator[None]:
        while len(order) < 99:
            order.append("pause")
            yield

    monkeypatch.setattr(VirtualMachine, "ssh", ssh)
    monkeypatch.setattr(VirtualMachine, "pauses", pauses)
    monkeypatch.setattr(VirtualMachine, "running", lambda _: True)
    guest = machine(tmp_path)
    monitor: Any = Monitor(*lines)
    guest.control = qemu.Qmp(monitor)
    before = guest.resets()
    assert guest.wait_ssh(other_than="one", resets=before) == "two"
    assert (before, order) == (1, ["pause", "pause", "pause", "ssh"])


def test_guest_without_a_sign_of_its_reset_is_asked_after_the_time_of_a_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = iter([1.0, 60.0, 121.0])
    monkeypatch.setattr(Clock, "tick", lambda _: next(passed))
    monkeypatch.setattr(VirtualMachine, "resets", lambda _: 0)
    monkeypatch.setattr(VirtualMachine, "pauses", lambda *_: iter(range(3)))
    monkeypatch.setattr(VirtualMachine, "ssh", lambda *_, **__: qemu.GuestResult(0, "two", ""))
    assert machine(tmp_path).wait_ssh(other_than="one", resets=0) == "two"
