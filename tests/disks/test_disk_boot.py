"""A real machine for real firmware, and the disk of `conftest.py` verified whole: the same calls as `goldnode disks verify`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.commands.disks.verify import verify as command
from goldnode.core.errors import DiskError
from goldnode.core.files import sha256_of
from goldnode.disks import guest, qemu, verify
from goldnode.disks.model import BuiltDisk

# One process with the tests of its building, whose disk it boots.
pytestmark = [pytest.mark.disks, pytest.mark.xdist_group("disk")]

MIB = 1024 * 1024


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A disk with nothing on it: the firmware comes up and finds nothing to boot."""
    path = tmp_path / "empty.raw"
    path.touch()
    os.truncate(path, 64 * MIB)
    return path


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_machine_starts_shows_its_console_and_leaves_nothing(empty: Path, tmp_path: Path) -> None:
    with qemu.VirtualMachine(empty, tmp_path / "m", qemu.VmOptions(memory=256)) as machine:
        pid = machine.pid
        assert pid is not None
        assert machine.port
        assert "BdsDxe" in machine.wait_for("BdsDxe", 120)
        with pytest.raises(
            qemu.MachineError,
            match=r"1 s of the guest's time went by before it showed 'login:'\n-- last lines of the console",
        ):
            machine.wait_for("login:", 1)
        with pytest.raises(qemu.MachineError, match="the console shows 'BdsDxe'"):
            machine.wait_for("login:", 60, fatal=("BdsDxe",))
        machine.cut()
        assert gone(pid)
    assert sha256_of(empty) == "3b6a07d0d404fab4e23b6d34bc6696a6a312dd92821332385e5af7c01c421351", (
        "the disk is as it was"
    )


def test_a_machine_that_qemu_refuses_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(
        qemu.MachineError, match=r"QEMU does not start: .*nothing\.raw.*No such file"
    ):
        qemu.VirtualMachine(
            tmp_path / "nothing.raw", tmp_path / "m", qemu.VmOptions(memory=256)
        ).start()


def test_a_killed_run_leaves_no_machine_behind(empty: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom goldnode.disks.qemu import VirtualMachine, VmOptions\n"
        "machine = VirtualMachine(Path(sys.argv[1]), Path(sys.argv[2]), VmOptions(memory=256)).start()\n"
        "print(machine.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(empty), str(tmp_path / "m")],
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        assert not gone(pid)
        run.send_signal(signal.SIGKILL)
        run.wait()
        for _ in range(300):
            if gone(pid):
                break
            time.sleep(0.1)
        assert gone(pid)


def test_a_damaged_image_is_refused_before_a_machine_starts(
    built: BuiltDisk, tmp_path: Path
) -> None:
    place = tmp_path / "built" / built.class_ / built.build_id
    place.mkdir(parents=True)
    shutil.copy(built.directory / "disk.json", place)
    raw = place / built.path("raw").name
    subprocess.run(["cp", "--sparse=always", built.path("raw"), raw], check=True)
    with raw.open("r+b") as file:
        file.seek(built.partitions[1].start + 4096)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    done = CliRunner().invoke(command, [str(place)])
    assert isinstance(done.exception, DiskError)
    assert "is not what its manifest says" in str(done.exception)
    assert sorted(path.name for path in place.iterdir()) == sorted(["disk.json", raw.name])


NAMES = {
    "ssh",
    "boot.multi_user",
    "units.failed",
    "kernel.running",
    "packages",
    "initramfs",
    "disk.root-b",
    "check.ran",
    "gate.state",
    "plan",
}


def boots(built: BuiltDisk, work: Path, *, clones: bool) -> verify.BootReport:
    """Verify an image in emulated machines, and return the report. Fail if a check has failed."""
    report = verify.verify(built, verify.VerifyOptions(work=work, clones=clones))
    failures = [
        f"{where}: {check.id}: {check.got} (want {check.expected})"
        for where, check in report.checks()
        if check.outcome == guest.FAILED
    ]
    assert (report.error, failures) == (None, [])
    assert report.outcome == ("passed" if len(report.boots) == 2 else "failed"), (
        "a verification takes two boots"
    )
    assert report.raw_sha256 == report.raw_sha256_after == built.raw.sha256.removeprefix("sha256:")
    assert list(work.iterdir()) == [], "overlays and logs are gone"
    assert {check.id for boot in report.boots for check in boot.checks} >= NAMES
    return report


def test_an_image_boots(built: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first boot, of the two that a verification takes: each is minutes of an emulated processor."""

    def first(run: verify.BootRun, **_: bool) -> None:
        with run.machine("one", 1) as machine:
            run.boot(machine, 1, "first boot")

    monkeypatch.setattr(verify.BootRun, "all", first)
    assert [boot.what for boot in boots(built, tmp_path, clones=False).boots] == ["first boot"]


@pytest.mark.long
def test_an_image_boots_twice_and_a_clone_at_the_same_time_is_another_machine(
    built: BuiltDisk, tmp_path: Path
) -> None:
    report = boots(built, tmp_path, clones=True)
    assert [boot.what for boot in report.boots] == ["first boot", "reboot"]
    assert {check.id for check in report.clones} >= {
        "clones.machine_id",
        "clones.host_keys",
        "clones.hostname",
        "clones.client_ids",
        "clones.boot",
    }
