"""Disks in virtual machines: UEFI firmware, virtio, KVM if it works, otherwise QEMU's emulation (TCG).

:class:`Machine` boots a disk without changing its file (`snapshot`), or on an overlay (:func:`overlay`) that
stores the guest's writes. The serial console goes to a file, ssh to a port of the loopback interface, control
commands over QMP.

Limits are in the guest's own time. It excludes the time that the virtual processors wait for a real one, so
that load on this machine does not fail a boot. The guest has no access to any network beyond QEMU. A machine
ends with the process that started it, even if that is killed.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from goldnode.core.errors import DiskError
from goldnode.core.files import sha256_of
from goldnode.node.ground.text import phrase
from goldnode.oci.emulation import native
from goldnode.oci.model import AMD64

# Debian packages that this module requires for guests of any architecture.
REQUIREMENTS = ("openssh-client", "qemu-utils", "util-linux")

KVM, TCG = "kvm", "tcg"
DEVICE = Path("/dev/kvm")
# Seconds until a probe fails. Firmware writes to its serial port much earlier on any processor that KVM can
# use.
PROBE = 20.0
PANIC = "Kernel panic - not syncing"
# An instruction of an emulated guest takes 2**SHIFT ns of its time. A real processor needs less than 1 ns, so
# unit timeouts expire early even with 1. With 3, a driver's compressed module that was loaded four times hit
# the 90 s of systemd-modules-load.
SHIFT = 1


@dataclass(frozen=True)
class VmArchitecture:
    """A virtual machine of one architecture: QEMU's program, machine and processor for an emulated guest, and its firmware.

    `firmware` are pairs of code and variables in order of preference, all without Secure Boot: Debian and Ubuntu, then the
    Fedora family, then Arch and openSUSE. `packages` are Debian's.
    """

    program: str
    machine: str
    processor: str
    firmware: Sequence[tuple[str, str]]
    packages: Sequence[str]


VM_ARCHITECTURES: Mapping[str, VmArchitecture] = {
    "amd64": VmArchitecture(
        "qemu-system-x86_64",
        "q35",
        # x86-64-v2 and random numbers. `max`, with AVX2, nested virtualization and page tables of five levels, needs a
        # fifth more processor time for a boot of Debian 12 (2026-12-01, QEMU 7.2): the kernel uses, tests and offers to
        # guests of its own what QEMU can only compute.
        "qemu64,svm=off,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+rdrand",
        (
            ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
            ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
            ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
            ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
            ("/usr/share/qemu/ovmf-x86_64-code.bin", "/usr/share/qemu/ovmf-x86_64-vars.bin"),
        ),
        ("ovmf", "qemu-system-x86"),
    ),
    "arm64": VmArchitecture(
        "qemu-system-aarch64",
        "virt",
        # Without pointer authentication, which `max` computes for each call of a function.
        "neoverse-n1",
        (
            ("/usr/share/AAVMF/AAVMF_CODE.no-secboot.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),
            ("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),
            (
                "/usr/share/edk2/aarch64/QEMU_EFI-pflash.raw",
                "/usr/share/edk2/aarch64/vars-template-pflash.raw",
            ),
            ("/usr/share/edk2/aarch64/QEMU_CODE.fd", "/usr/share/edk2/aarch64/QEMU_VARS.fd"),
            ("/usr/share/qemu/aavmf-aarch64-code.bin", "/usr/share/qemu/aavmf-aarch64-vars.bin"),
        ),
        ("qemu-efi-aarch64", "qemu-system-arm"),
    ),
}
LINES = 25  # console lines in an error
# Minimum share of wall-clock time that counts, so that a machine without any processor time still reaches its
# limit.
LEAST = 0.1
# Seconds of the guest's time for the first question whether ssh answers; each one that is late gets twice the time of the one before.
# A guest that restarts does not end its connections, and ssh would wait five minutes for the answer.
PATIENCE = 10.0
# Seconds of the guest's time for a shutdown, after which it is asked without a sign that it has been reset.
SHUTDOWN = 120.0
SSH_OPTIONS = (
    "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
    "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20",
    "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=20",
)  # fmt: skip


class MachineError(DiskError):
    """A virtual machine cannot be started, or did not do what was expected.

    The message ends with the last lines of its console.
    """


class MachineLateError(MachineError):
    """A command in a virtual machine was not done within its limit."""


@dataclass(frozen=True)
class Accelerator:
    """Executor of the guest's instructions.

    `name` is kvm or tcg; `why` is the reason for not using kvm (empty if it is used).
    """

    name: str
    why: str = ""


@dataclass(frozen=True)
class Firmware:
    """UEFI firmware: its code, and the initial variables of a new machine."""

    code: Path
    variables: Path


@dataclass(frozen=True)
class Drive:
    """An additional disk. The guest may write to it unless `readonly`.

    `device` is QEMU's name of the hardware. An `nvme` needs a serial number.
    """

    path: Path
    format: str = "raw"
    readonly: bool = True
    serial: str = ""
    device: str = "virtio-blk-pci"


@dataclass(frozen=True)
class GuestResult:
    """Result of a command in the guest. `rc` 255 means that ssh itself failed."""

    rc: int
    out: str
    err: str


def find_firmware(architecture: str = AMD64) -> Firmware:
    """Return the UEFI firmware for guests of an architecture. Raises MachineError if it is not installed."""
    about = VM_ARCHITECTURES[architecture]
    for code, variables in about.firmware:
        if Path(code).is_file() and Path(variables).is_file():
            return Firmware(Path(code), Path(variables))
    raise MachineError(
        "there is no UEFI firmware for virtual machines on this machine",
        remedy=f"install it: apt-get install {about.packages[0]}",
    )


def check_tools(architecture: str = AMD64) -> None:
    """Raise MachineError with all requirements of guests of an architecture that are missing on this machine."""
    about = VM_ARCHITECTURES[architecture]
    missing = [
        name
        for name in (about.program, "qemu-img", "setpriv", "ssh", "ssh-keygen")
        if not shutil.which(name)
    ]
    if missing:
        raise MachineError(
            f"missing on this machine: {', '.join(missing)}",
            remedy=f"install them: apt-get install {' '.join(sorted((*REQUIREMENTS, *about.packages)))}",
        )
    find_firmware(architecture)


def tools(architecture: str = AMD64) -> dict[str, str]:
    """Return what boots a guest: the version of QEMU, and the digest of the firmware, which states no version.

    Raises MachineError if one is not installed.
    """
    check_tools(architecture)
    program = VM_ARCHITECTURES[architecture].program
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    number = re.search(r"\d+\.\d+(?:\.\d+)*", done.stdout)
    firmware = find_firmware(architecture).code
    return {
        "qemu": number[0] if number is not None else "not stated",
        firmware.name: f"sha256:{sha256_of(firmware)}",
    }


@functools.cache
def accelerator(architecture: str = AMD64) -> Accelerator:
    """Return KVM if firmware really starts under it, otherwise TCG with the reason.

    The result is cached for the life of the process.

    /dev/kvm may exist and accept a machine, but not run it: nested KVM can meet instructions that it cannot
    execute.
    """
    if not native(architecture):
        return Accelerator(TCG, f"this machine is not {architecture}")
    if not DEVICE.exists():
        return Accelerator(TCG, f"there is no {DEVICE}")
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return Accelerator(TCG, f"{DEVICE} may not be used by this user")
    try:
        with tempfile.TemporaryDirectory(prefix="goldnode-kvm-") as work:
            machine = VirtualMachine(
                None,
                Path(work),
                VmOptions(
                    memory=256,
                    chosen=Accelerator(KVM),
                    network=False,
                    architecture=architecture,
                ),
            )
            with machine:
                deadline = time.monotonic() + PROBE
                while time.monotonic() < deadline:
                    # Any output of the firmware: the guest has executed instructions.
                    if len(machine.console().strip()) > 0:
                        return Accelerator(KVM)
                    # A processor that KVM cannot emulate pauses the machine with internal-error.
                    status = machine.status()
                    if status != "running":
                        return Accelerator(
                            TCG, f"{DEVICE} is there, and a machine under it ends in {status}"
                        )
                    time.sleep(0.1)
    except MachineError as error:
        return Accelerator(
            TCG, f"{DEVICE} is there, and does not start a machine: {error.message.splitlines()[0]}"
        )
    return Accelerator(TCG, f"{DEVICE} is there, and a machine under it does nothing")


def overlay(base: Path, path: Path, *, size: int | None = None, form: str = "raw") -> Path:
    """Create a copy-on-write layer (qcow2) at `path` over `base`, which is not changed.

    `size` in bytes, if larger than the base.

    Raises MachineError on failure.
    """
    command = [
        "qemu-img",
        "create",
        "-q",
        "-f",
        "qcow2",
        "-b",
        # qemu-img resolves a relative name against the overlay, not the working directory.
        str(base.absolute()),
        "-F",
        form,
        str(path),
    ]
    done = subprocess.run(
        [*command, *([str(size)] if size else [])], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MachineError(
            f"an overlay over {base} cannot be made: {done.stderr.strip()}",
            remedy="see whether there is room for it",
        )
    return path


def make_key(directory: Path) -> Path:
    """Create a temporary ssh key `directory`/key with its public half key.pub, and return its path."""
    key = directory / "key"
    if not key.exists():
        subprocess.run(
            [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                "goldnode-verify",
                "-f",
                str(key),
            ],
            check=True,
        )
    return key


def escaped(text: str | Path) -> str:
    """Escape a value of a QEMU option: commas are doubled."""
    return str(text).replace(",", ",,")


class Clock:
    """Clock of a guest's own time: wall-clock time minus the time its threads waited for a processor
    (schedstat).

    If the kernel does not report waiting times, it is the wall-clock time.
    """

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}/task")
        self._last, self._waits = time.monotonic(), self._waited()
        self.seconds = 0.0

    def _waited(self) -> dict[str, float]:
        times: dict[str, float] = {}
        with contextlib.suppress(OSError):
            for thread in self._folder.iterdir():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    times[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return times

    def tick(self) -> float:
        """Return the guest's elapsed time in seconds."""
        now, waits = time.monotonic(), self._waited()
        passed = now - self._last
        # The thread that waited longest counts: a boot is as slow as its slowest processor.
        lost = max(
            (value - self._waits.get(name, 0.0) for name, value in waits.items()), default=0.0
        )
        # schedstat counts waits at their end, so a single tick may lose more than has passed.
        self.seconds += max(passed - lost, passed * LEAST)
        self._last, self._waits = now, waits
        return self.seconds


@dataclass
class Qmp:
    """Client of QEMU's control socket (QMP). `events` are those that came with answers."""

    socket: socket.socket
    buffer: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> dict[str, Any]:
        while b"\n" not in self.buffer:
            more = self.socket.recv(65536)
            if not more:
                raise OSError("QEMU has closed its control socket")
            self.buffer += more
        line, _, self.buffer = self.buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str, **arguments: Any) -> Any:
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            answer = self.read()
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise OSError(str(answer["error"].get("desc")))
            elif "return" in answer:
                return answer["return"]


@dataclass(frozen=True)
class VmOptions:
    """Properties of a virtual machine.

    - `snapshot` discards the guest's writes and leaves the file unchanged. `form` is the format of the file.
    - `memory` is in MiB. The default is two processors, as far as this process may use them, and one with `counted`.
    - `counted`: the clock of an emulated guest advances with its instructions, and no time limit of it expires while
      it waits for a busy processor. Without it, its clock is that of this machine, and a boot takes less than half the time.
    - `credentials` are systemd credentials by name, passed in the SMBIOS tables. systemd 252 reads them; the
      disk needs no changes.
    - `drives` are additional disks.
    - `architecture` is dpkg's name of the guest's.
    - `network` adds a network card. Port 22 of the guest is forwarded to a port of the loopback interface.
    """

    snapshot: bool = True
    form: str = "raw"
    memory: int = 2048
    processors: int | None = None
    mac: str = "52:54:00:67:6e:01"
    key: Path | None = None
    user: str = "root"
    credentials: Mapping[str, str] = field(default_factory=dict)
    drives: Sequence[Drive] = ()
    network: bool = True
    firmware: Firmware | None = None
    chosen: Accelerator | None = None
    counted: bool = True
    reboots: bool = True
    architecture: str = AMD64


class VirtualMachine:
    """A virtual machine. As a context manager it starts the machine and cleans up.

    - `disk` is the file to boot, or None.
    - `work` is a private directory: console (`console.log`), firmware variables (persistent between starts),
      and QEMU's messages (`qemu.log`).
    - `port` of the loopback interface leads to port 22 of the guest.
    """

    def __init__(self, disk: Path | None, work: Path, options: VmOptions | None = None) -> None:
        self.disk, self.work, self.options = disk, work, options or VmOptions()
        self.key = self.options.key
        self.firmware = self.options.firmware or find_firmware(self.options.architecture)
        self.accelerator = self.options.chosen or accelerator(self.options.architecture)
        self.counted = self.options.counted and self.accelerator.name != KVM
        usual = 1 if self.counted else min(2, len(os.sched_getaffinity(0)))
        self.processors = self.options.processors or usual
        self.booted: str | None = None  # set by callers: the last known boot id
        self.port: int | None = None
        self.clock: Clock | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.control: Qmp | None = None

    # -- its life

    def command(self, qmp: int) -> list[str]:
        """Return QEMU's command line. `qmp` is the file descriptor of its control socket."""
        about = VM_ARCHITECTURES[self.options.architecture]
        words = [
            about.program,
            # No default devices and no configuration of the host: the same machine everywhere.
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-M",
            about.machine,
            "-m",
            str(self.options.memory),
            "-smp",
            str(self.processors),
        ]
        # A guest that breaks out of an emulated device cannot start programs or raise its rights.
        words += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny"]
        if self.accelerator.name == KVM:
            words += ["-accel", KVM, "-cpu", "host"]
        elif self.counted:
            # icount ties the guest's clock to the instructions it executes. With the wall clock, its unit
            # timeouts (90 s) would expire while it waits for a busy processor, and a good image would fail.
            # It supports one processor only.
            words += ["-accel", f"{TCG},thread=single", "-cpu", about.processor]
            words += ["-icount", f"shift={SHIFT},sleep=on", "-rtc", "clock=vm"]
        else:
            words += ["-accel", f"{TCG},thread=multi", "-cpu", about.processor]
        words += ["-drive", f"if=pflash,format=raw,readonly=on,file={escaped(self.firmware.code)}"]
        words += ["-drive", f"if=pflash,format=raw,file={escaped(self.work / 'variables.fd')}"]
        words += [
            "-chardev",
            f"file,id=console,path={escaped(self.work / 'console.log')},append=on",
            "-serial",
            "chardev:console",
        ]
        words += ["-chardev", f"socket,id=qmp,fd={qmp}", "-mon", "chardev=qmp,mode=control"]
        # Without entropy, the first boot would wait for the random numbers of its ssh keys.
        words += ["-device", "virtio-rng-pci"]
        if not self.options.reboots:
            words += ["-no-reboot"]
        if self.disk is not None:
            # cache=unsafe skips flushes: a crash of this machine ends the guest anyway.
            keeps = "snapshot=on" if self.options.snapshot else "cache=unsafe"
            words += [
                "-drive",
                f"if=none,id=disk,format={self.options.form},discard=unmap,{keeps},file={escaped(self.disk)}",
            ]
            words += ["-device", "virtio-blk-pci,drive=disk,bootindex=0"]
        for number, drive in enumerate(self.options.drives):
            mode = "readonly=on" if drive.readonly else "cache=unsafe"
            words += [
                "-drive",
                f"if=none,id=drive{number},format={drive.format},{mode},file={escaped(drive.path)}",
            ]
            words += [
                "-device",
                f"{drive.device},drive=drive{number}" + phrase(",serial={}", drive.serial),
            ]
        if self.options.network:
            # restrict: the guest reaches neither this machine nor any network. Port 0: the system picks a
            # free one.
            words += [
                "-netdev",
                "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22",
                "-device",
                # Without a boot ROM, the firmware does not try the network first.
                f"virtio-net-pci,netdev=net,mac={self.options.mac},romfile=",
            ]
        for file in sorted(self.work.glob("credential-*")):
            words += ["-smbios", f"type=11,path={escaped(file)}"]
        return words

    def start(self) -> VirtualMachine:
        """Start the machine and return it.

        The console file is appended to. Raises MachineError on failure.
        """
        if self._process is not None:
            raise MachineError("the machine runs already")
        about = VM_ARCHITECTURES[self.options.architecture]
        if not shutil.which(about.program) or not shutil.which("setpriv"):
            check_tools(self.options.architecture)
        self.work.mkdir(parents=True, exist_ok=True)
        # A copy: boot entries that the guest writes stay, and the file of the package is not touched.
        if not (self.work / "variables.fd").exists():
            shutil.copyfile(self.firmware.variables, self.work / "variables.fd")
        for number, (name, value) in enumerate(sorted(self.options.credentials.items())):
            # In a file: a command line has a limited length and is visible to every user.
            (self.work / f"credential-{number}").write_text(
                f"io.systemd.credential.binary:{name}={_base64(value)}"
            )
        mine, its = socket.socketpair()
        try:
            with (self.work / "qemu.log").open("ab") as log:
                # setpriv --pdeathsig: the kernel kills QEMU when the thread that started it ends, for any
                # reason.
                self._process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", *self.command(its.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(its.fileno(),),
                    start_new_session=True,  # Ctrl-C at the terminal must reach only us; we then stop QEMU
                )
            its.close()
            mine.settimeout(60)
            self.control = Qmp(mine)
            # The greeting.
            self.control.read()
            # QMP accepts no other command before this one.
            self.control.ask("qmp_capabilities")
            self.clock = Clock(self._process.pid)
            if self.options.network:
                self.port = self._forwarded()
        except (OSError, ValueError) as error:
            self.cut()
            mine.close()
            raise MachineError(
                f"QEMU does not start: {self._complaint() or error}", remedy="see what it says"
            ) from None
        return self

    def _forwarded(self) -> int:
        if self.control is None:
            raise ValueError("it has no control socket")
        network = str(self.control.ask("human-monitor-command", **{"command-line": "info usernet"}))
        forward = re.search(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", network)
        if not forward:
            raise ValueError(f"it does not say which port it forwards: {network.strip()}")
        return int(forward[1])

    def _live(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise MachineError("the machine does not run")
        return self._process

    def time(self) -> float:
        """Return the seconds of its own time that the machine has run since its start."""
        self._live()
        return self.clock.tick() if self.clock else 0.0

    def _complaint(self) -> str:
        with contextlib.suppress(OSError):
            return (self.work / "qemu.log").read_text(errors="replace").strip()[-1500:]
        return ""

    @property
    def pid(self) -> int | None:
        """Return the process id of QEMU; None if it is not running."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        return None

    def running(self) -> bool:
        """Return whether QEMU is running. The guest inside may have stopped."""
        return self.pid is not None

    def status(self) -> str:
        """Return QEMU's run state (running, paused, internal-error, shutdown …), or `ended` if QEMU is not
        running.
        """
        if not self.running() or self.control is None:
            return "ended"
        try:
            return str(self.control.ask("query-status")["status"])
        except OSError:
            return "ended"

    def resets(self) -> int:
        """Return how often the guest has reset the machine since its start, by itself or by a panic."""
        if not self.running() or self.control is None:
            return 0
        self.status()  # events come with answers
        return sum(
            event["event"] == "RESET" and bool(event.get("data", {}).get("guest"))
            for event in self.control.events
        )

    def cut(self) -> None:
        """Cut the power: writes that the guest has not flushed are lost."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                # QEMU would flush its caches on SIGTERM; a power cut does not.
                process.send_signal(signal.SIGKILL)
            process.wait()
        self._close()

    def _close(self) -> None:
        if self.control is not None:
            self.control.socket.close()
            self.control = None

    def stop(self, limit: float = 120) -> None:
        """Press the power button.

        Cut the power if the guest does not shut down within `limit` seconds of its time.
        """
        if self._process is not None and self.running() and self.control is not None:
            with contextlib.suppress(OSError):
                self.control.ask("system_powerdown")
            clock = Clock(self._process.pid)
            while self.running() and clock.tick() < limit:
                time.sleep(0.1)
        self.cut()

    def __enter__(self) -> VirtualMachine:
        return self.start() if self._process is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut()

    # -- what it says and does

    def console(self) -> str:
        """Return everything the serial console has shown since the first start in this directory."""
        try:
            return shown_text((self.work / "console.log").read_bytes().decode(errors="replace"))
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = LINES) -> str:
        """Return the last non-empty lines of the console."""
        return "\n".join([line for line in self.console().splitlines() if line.strip()][-lines:])

    def error(self, message: str, remedy: str | None = None) -> MachineError:
        """Return an error about this machine, with the last lines of its console and QEMU's own messages."""
        reported = self._complaint()
        text = f"{message}; QEMU says: {reported}" if reported else message
        return MachineError(
            f"{text}\n-- last lines of the console ({self.accelerator.name}) --\n"
            f"{self.tail() or 'nothing'}\n--",
            remedy=remedy,
        )

    def pauses(self, limit: float, what: str, fatal: Sequence[str], since: int) -> Iterator[None]:
        """Yield until `limit` seconds of the guest's time have passed, then raise.

        Raise at once if the machine has ended or panicked.
        """
        clock = Clock(self._live().pid)
        while True:
            yield
            if not self.running():
                raise self.error(f"the machine ended before {what}")
            shown = self.console()[since:]
            for sign in fatal:
                if sign in shown:
                    raise self.error(f"the console shows {sign!r} before {what}")
            if clock.tick() > limit:
                raise self.error(
                    f"{limit:.0f} s of the guest's time went by before {what}",
                    "see what its console shows",
                )
            status = self.status()
            if status not in ("running", "ended"):
                raise self.error(f"the machine is in state {status} before {what}")
            time.sleep(0.2)

    def wait_for(
        self, text: str, limit: float = 300, *, fatal: Sequence[str] = (PANIC,), since: int = 0
    ) -> str:
        """Wait until the console shows `text` after its first `since` characters, and return the console from
        there on.

        `limit` is in seconds of the guest's time. `fatal` are texts that end the wait at once. Raises
        MachineError.
        """
        for _ in self.pauses(limit, f"it showed {text!r}", (), since):
            shown = self.console()[since:]
            if text in shown:
                return shown
            bad = next((sign for sign in fatal if sign in shown), None)
            if bad:
                raise self.error(f"the console shows {bad!r} before it showed {text!r}")
        raise AssertionError("unreachable")

    def ssh_command(self, *words: str) -> list[str]:
        """Return the argument list that runs `words` in the guest, or a shell without them."""
        if self.key is None or self.port is None:
            raise MachineError(
                "the machine has no ssh: it was started without a key or without a network"
            )
        return [
            "ssh",
            "-i",
            str(self.key),
            "-p",
            str(self.port),
            *SSH_OPTIONS,
            f"{self.options.user}@127.0.0.1",
            *words,
        ]

    def ssh(
        self, words: Sequence[str], *, stdin: bytes | None = None, limit: float = 300
    ) -> GuestResult:
        """Run `words` in the guest's login shell, joined by spaces as ssh does.

        `limit` is in seconds of the guest's time.
        """
        pid = self._live().pid
        with (
            # Files, not pipes: a full pipe would block while this process waits for the guest.
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin or b"")
            given.seek(0)
            process = subprocess.Popen(
                self.ssh_command(*words), stdin=given, stdout=out, stderr=err
            )
            clock = Clock(pid)
            try:
                while True:
                    try:
                        rc = process.wait(0.1)
                        break
                    except subprocess.TimeoutExpired:
                        if clock.tick() > limit:
                            late = self.error(
                                f"`{' '.join(words)[:80]}` in the guest was not done after {limit:.0f} s of "
                                "its time"
                            )
                            raise MachineLateError(late.message, remedy=late.remedy) from None
                        if not self.running():
                            raise self.error(
                                f"the machine ended during `{' '.join(words)[:80]}`"
                            ) from None
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            err.seek(0)
            return GuestResult(
                rc, out.read().decode(errors="replace"), err.read().decode(errors="replace")
            )

    def wait_ssh(
        self,
        limit: float = 600,
        *,
        other_than: str | None = None,
        resets: int | None = None,
        fatal: Sequence[str] = (PANIC,),
        since: int = 0,
    ) -> str:
        """Wait until ssh answers, and return the guest's boot id.

        `other_than` is the id of the boot that has to be over, and `resets` was :meth:`resets` in that boot: until it
        grows, a guest that shuts down is not disturbed by connections, each of which costs an emulated one a second.
        After `SHUTDOWN` seconds it is asked all the same. Raises MachineError with ssh's last message after `limit`
        seconds of the guest's time.
        """
        reported, patience = "nothing", PATIENCE
        moments = self.pauses(limit, "ssh answered", fatal, since)
        if resets is not None:
            shutdown = Clock(self.pid or 0)
            while self.resets() <= resets and shutdown.tick() < SHUTDOWN:
                next(moments)
        while True:
            try:
                next(moments)
            except MachineError as error:
                raise MachineError(
                    f"{error.message}\nssh said last: {reported}", remedy=error.remedy
                ) from None
            try:
                done = self.ssh(["cat", "/proc/sys/kernel/random/boot_id"], limit=patience)
            except MachineLateError as late:
                reported, patience = late.message.splitlines()[0], patience * 2
                continue
            # The guest answers until it is down, so a reboot is over only with another boot id.
            if done.rc == 0 and done.out.strip() and done.out.strip() != other_than:
                return done.out.strip()
            reported = done.err.strip() or reported
            time.sleep(0.5)


def shown_text(text: str) -> str:
    """Return console text without the terminal's control sequences."""
    text = re.sub(
        r"\x1b(?:\[[0-9;?=]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cDEHM])",
        "",
        text,
    )
    return "".join(
        letter for letter in text.replace("\r", "") if letter in "\n\t" or letter.isprintable()
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
