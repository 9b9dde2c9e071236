"""Verification of a built disk image by booting it. No image counts as good without.

The image file is read-only: its hash is taken before and after, and a guest's writes go to a temporary
overlay. A temporary ssh key is passed as a systemd credential (`ssh.authorized_keys.root`, in the machine's
SMBIOS tables), so the image needs no change.

Boots: 1. first boot of an overlay, 2. its reboot; a clone boots at the same time, on processors of its own, or afterwards.
With simulated GPUs: 3. a boot with all of them, 4. a boot with one missing. `guest.py` judges the facts. docs/explanation/disk-verification.md lists the
checks.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from goldnode.core import release
from goldnode.core.errors import DiskError
from goldnode.core.files import replace_file, sha256_of
from goldnode.disks import guest, qemu, simulated
from goldnode.disks.guest import FAILED, PASSED, UNVERIFIABLE, Facts, GuestCheck, GuestExpectations
from goldnode.disks.model import VERIFIED, BuiltDisk
from goldnode.disks.qemu import (
    Accelerator,
    MachineError,
    VirtualMachine,
    VmOptions,
    accelerator,
    check_tools,
    make_key,
    overlay,
)
from goldnode.gpuprogram.image import memory as free_memory

SCHEMA = 1
COLLECTOR = Path(__file__).with_name("collector.py")
BOOT = 600.0  # limit of a boot, in seconds of the guest's time
ASK = 900.0  # limit of one collection of facts, likewise
MIB = 1024 * 1024
PREFIX = ".verify-"  # name prefix of a run's directory
GUARD = "lock"  # lock file in it, held while the run lives
SPARE = (
    512 * MIB
)  # extra size of the guest's disk, beyond image and second slot, so that growth is visible
ROOM = 2048 * MIB  # maximum free space that the overlays of one run need

# Share of the processors that other work may use without which guests would miss time limits of their units.
BUSY = 0.25

Say = Callable[[str], None]
Judge = Callable[[list[GuestCheck], Facts], list[GuestCheck]]


@dataclass
class Boot:
    """One boot of one machine.

    `seconds` is the machine's own time until it answered on ssh, `wall_seconds` our time for the boot and its checks.
    """

    number: int
    what: str
    seconds: float
    checks: list[GuestCheck]
    simulated: bool = False
    facts: Facts = field(default_factory=dict, repr=False)
    wall_seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "what": self.what,
            "seconds": round(self.seconds, 1),
            "wall_seconds": round(self.wall_seconds, 1),
            "simulated": self.simulated,
            "outcome": guest.outcome(self.checks),
            "checks": [check.row() for check in self.checks],
        }


@dataclass
class BootReport:
    """Result of a verification. `to_json` is the content of verified.json."""

    built: BuiltDisk
    accelerator: Accelerator
    raw_sha256: str
    raw_sha256_after: str = ""
    boots: list[Boot] = field(default_factory=list)
    clones: list[GuestCheck] = field(default_factory=list)
    tools: Mapping[str, str] = field(default_factory=dict)
    counted: bool = False  # the guests' clock counts their instructions
    first_try: str = ""  # what failed before, with the clock of this machine
    time: str = ""  # when the last boot had ended, UTC
    error: str | None = None

    @property
    def simulated(self) -> bool:
        return any(boot.simulated for boot in self.boots)

    def checks(self) -> Iterator[tuple[str, GuestCheck]]:
        """Yield all checks with the boot they belong to."""
        for boot in self.boots:
            yield from ((f"boot {boot.number}", check) for check in boot.checks)
        yield from (("clones", check) for check in self.clones)
        yield (
            "image",
            guest.same("image.untouched", self.raw_sha256, self.raw_sha256_after or "not read"),
        )

    @property
    def broken(self) -> str:
        """Return what the boots ended with: the first line of an error, or the failed checks; empty if they passed."""
        if self.error:
            return self.error.splitlines()[0]
        checks = [check for boot in self.boots for check in boot.checks] + self.clones
        return ", ".join(sorted({check.id for check in guest.failed(checks)}))

    @property
    def outcome(self) -> str:
        """Return `passed` only if the image booted twice, no check failed, and its file is unchanged."""
        good = self.error is None and len([boot for boot in self.boots if not boot.simulated]) >= 2
        return PASSED if good and not guest.failed(check for _, check in self.checks()) else FAILED

    def count(self, outcome: str) -> int:
        return sum(check.outcome == outcome for _, check in self.checks())

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.built.name,
            "class": self.built.class_,
            "build_id": self.built.build_id,
            "raw_sha256": self.raw_sha256,
            "raw_sha256_after": self.raw_sha256_after,
            "time": self.time,
            "tools": dict(self.tools),
            "accelerator": self.accelerator.name,
            "accelerator_reason": self.accelerator.why,
            "counted_clock": self.counted,
            "first_try": self.first_try,
            "simulated_hardware": self.simulated,
            "boots": [boot.row() for boot in self.boots],
            "clones": [check.row() for check in self.clones],
            "counts": {outcome: self.count(outcome) for outcome in (PASSED, FAILED, UNVERIFIABLE)},
            "error": self.error,
            "outcome": self.outcome,
        }

    def table(self, *, everything: bool = False) -> str:
        """Return the report as text: failures, then items that could not be verified, then a summary."""
        lines = [f"{self.built.name}: {self.outcome}"]
        if self.accelerator.why:
            lines.append(f"without KVM: {self.accelerator.why}; emulated ({self.accelerator.name})")
        if self.first_try:
            lines.append(
                f"second try, with a clock that counts instructions; the first one: {self.first_try}"
            )
        if self.simulated:
            lines.append(
                "SIMULATED HARDWARE in the boots marked so: nothing in them speaks of a real GPU"
            )
        for boot in self.boots:
            mark = " [simulated GPUs]" if boot.simulated else ""
            lines.append(
                f"boot {boot.number} ({boot.what}){mark}: {guest.outcome(boot.checks)}, answered after "
                f"{boot.seconds:.0f} s of its time"
            )
        rows = list(self.checks())
        for title, outcome in (
            ("FAILED", FAILED),
            ("not verifiable here", UNVERIFIABLE),
            *((("passed", PASSED),) if everything else ()),
        ):
            chosen = [(where, check) for where, check in rows if check.outcome == outcome]
            if not chosen:
                continue
            lines.append(f"{title} ({len(chosen)}):")
            seen: dict[tuple[str, str, str], list[str]] = {}
            for where, check in chosen:
                seen.setdefault((check.id, check.expected, check.got), []).append(
                    where.removeprefix("boot ")
                )
            for (name, expected, got), places in seen.items():
                lines.append(
                    f"  {name} [{', '.join(places)}]: {got}"
                    + (f" (want {expected})" if outcome != PASSED else "")
                )
        if self.error:
            lines.append(f"error: {self.error}")
        lines.append(
            f"{self.count(PASSED)} passed, {self.count(FAILED)} failed, {self.count(UNVERIFIABLE)} not "
            "verifiable here"
        )
        return "\n".join(lines)


class Estimate:
    """Time that the boots of one verification still need. `seconds` has the duration of each boot, by number."""

    def __init__(self, seconds: dict[int, float], boots: int) -> None:
        self.seconds, self.boots = seconds, boots
        self.current, self.begun = 0, time.monotonic()

    def forget(self) -> None:
        """Forget all durations: the guests get another clock, with which a boot takes longer."""
        self.seconds.clear()
        self.current = 0

    def begin(self, number: int) -> None:
        """Start the time of a boot, and end that of the boot before it."""
        if self.current:
            self.seconds[self.current] = time.monotonic() - self.begun
        self.current, self.begun = number, time.monotonic()

    def left(self) -> float | None:
        """Return the seconds that are left; None before a boot is known to have taken any time."""
        if not self.seconds:
            return None
        longest = max(self.seconds.values())
        rest = self.seconds.get(self.current, longest) - (time.monotonic() - self.begun)
        later = range(self.current + 1, self.boots + 1)
        return max(rest, 0.0) + sum(self.seconds.get(number, longest) for number in later)


def last_durations(disks: list[BuiltDisk], chosen: Accelerator) -> dict[int, float]:
    """Return the duration of each boot in the newest verification of `disks` with this accelerator, in seconds."""
    for built in disks:
        try:
            known = json.loads((built.directory / VERIFIED).read_text())
            # A version that recorded no clock counted instructions under emulation.
            counted = known.get("counted_clock", chosen.name == qemu.TCG)
            if known["accelerator"] == chosen.name and not counted:
                return {boot["number"]: float(boot["wall_seconds"]) for boot in known["boots"]}
        except (OSError, ValueError, TypeError, KeyError):
            continue  # not verified, or by a version that recorded no times: there is no estimate
    return {}


class Others:
    """Processor time that other processes of this machine have taken since this object was made."""

    def __init__(self) -> None:
        self.began, self.used = time.monotonic(), self.taken()

    @staticmethod
    def taken() -> float:
        """Return the seconds that all processors have worked for others; 0 if the kernel does not tell (proc(5), /proc/stat)."""
        try:
            words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
            user, nice, system, _, _, irq, softirq, steal = (int(word) for word in words[:8])
        except (OSError, ValueError):
            return 0.0
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy - sum(os.times()[:4])

    def processors(self) -> float:
        """Return how many processors other work has kept busy."""
        passed = time.monotonic() - self.began
        return max(self.taken() - self.used, 0.0) / passed if passed > 0 else 0.0


def check_files(built: BuiltDisk, say: Say = lambda text: None) -> str:
    """Validate the raw disk against its manifest and return its SHA-256.

    Raises DiskError before anything is started.
    """
    raw = built.path("raw")
    remedy = f"remove {built.directory} and run `goldnode disks build {built.class_}` again"
    if raw.stat().st_size != built.raw.size:
        raise DiskError(
            f"the raw disk has {raw.stat().st_size} bytes, and its manifest says {built.raw.size}",
            file=raw,
            remedy=remedy,
        )
    say("reading the image")
    digest = sha256_of(raw)
    if digest != built.raw.sha256.removeprefix("sha256:"):
        raise DiskError(
            f"the raw disk is not what its manifest says: sha256 {digest}, expected {built.raw.sha256}",
            file=raw,
            remedy=remedy,
        )
    return digest


@dataclass(frozen=True)
class VerifyOptions:
    """Guests to boot, and what is left of them.

    - `work` is the directory for overlays and logs. The default is the parent of the build, since overlays
      are large.
    - `clones` also boots a second overlay, at the same time where this machine has processors for both.
    - `gpus` adds two boots with simulated GPUs.
    - `memory` of each guest is in MiB.
    - `keep` leaves consoles and the collected facts in `work`.
    """

    work: Path | None = None
    clones: bool = True
    gpus: bool = False
    memory: int = 2048
    keep: bool = False


def verify(
    built: BuiltDisk,
    options: VerifyOptions | None = None,
    *,
    say: Say = lambda text: None,
    estimate: Estimate | None = None,
) -> BootReport:
    """Boot an image and check the guest against its class.

    Nothing is written into the build: :func:`write` does that.

    `estimate` is informed when a boot begins.

    Raises DiskError before anything is started: if the image does not match its manifest, or if this machine
    lacks a tool or space. The same applies if GPUs are requested, but the class has no GPU or the simulator
    is not available. A guest that does not boot is not an error: the report contains it.
    """
    chosen = options or VerifyOptions()
    architecture = built.os.architecture
    check_tools(architecture)
    if chosen.gpus:
        simulated.check(built)
    place = chosen.work or built.directory.parent
    place.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(place).free < ROOM:
        free = shutil.disk_usage(place).free // MIB
        raise DiskError(
            f"there are {free} MiB free, and the overlays of a verification need up to {ROOM // MIB} MiB",
            file=place,
            remedy="make room",
        )
    # Reading an image takes a while: whatever else may be missing is missing before that.
    others = Others()
    before = check_files(built, say)
    # The checks of the guest are goldnode's own.
    booted_with = {**qemu.tools(architecture), "goldnode": release.version()}
    report = BootReport(built, accelerator(architecture), before, tools=booted_with)
    if report.accelerator.why:
        say(f"without KVM: {report.accelerator.why}; the guests are emulated, which takes minutes")
    sweep(place)
    emulated = report.accelerator.name == qemu.TCG
    if emulated and others.processors() > len(os.sched_getaffinity(0)) * BUSY:
        say("other work keeps this machine busy: the guests' clock counts their instructions")
        report.counted = True
        if estimate:
            estimate.forget()
    _boots(report, place, chosen, say, estimate)
    if report.broken and emulated and not report.counted:
        # On a busy machine, a unit of a good image can reach its time limit. With the slower clock it cannot.
        first_try = report.broken
        say(
            f"failed: {first_try}; trying again with a clock that counts the guest's instructions, which takes twice as long"
        )
        if estimate:
            estimate.forget()
        report = replace(report, boots=[], clones=[], error=None, counted=True, first_try=first_try)
        _boots(report, place, chosen, say, estimate)
    report.raw_sha256_after = sha256_of(built.path("raw"))
    report.time = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    return report


def _boots(
    report: BootReport,
    place: Path,
    chosen: VerifyOptions,
    say: Say,
    estimate: Estimate | None,
) -> None:
    """Boot the image in a directory of its own, and add boots, clones or an error to the report."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    with (directory / GUARD).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # released when this process ends, for any reason
        try:
            run = BootRun(report.built, report, directory, chosen.memory, say)
            run.estimate = estimate or Estimate({}, 0)
            run.all(clones=chosen.clones, gpus=chosen.gpus)
        except MachineError as error:
            report.error = str(error)
        finally:
            if chosen.keep:
                (directory / GUARD).unlink()
                say(f"kept: {directory}")
            else:
                shutil.rmtree(directory, ignore_errors=True)


def sweep(place: Path) -> None:
    """Remove the leftovers of killed runs in `place`. Runs that are alive hold their locks."""
    for guard in place.glob(f"{PREFIX}*/{GUARD}"):
        with contextlib.suppress(OSError), guard.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(guard.parent, ignore_errors=True)


def write(report: BootReport) -> Path:
    """Write verified.json next to the manifest, atomically, and return its path."""
    path = report.built.directory / VERIFIED
    replace_file(
        path,
        (
            json.dumps(report.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        ).encode(),
    )
    return path


def room_for(guests: int, memory: int, processors: int) -> bool:
    """Return whether this process may use `processors` for each of `guests`, and `memory` MiB for each is free.

    Guests that share processors take longer together than one after the other: 240 s for a first boot of two, of which
    one takes 130 s alone (2026-12-01, two processors each on two cores).
    """
    return (
        len(os.sched_getaffinity(0)) >= guests * processors
        and free_memory() >= guests * memory * MIB
    )


class BootRun:
    """One verification run: its directory and its machines."""

    def __init__(
        self, built: BuiltDisk, report: BootReport, directory: Path, memory: int, say: Say
    ) -> None:
        self.built, self.report, self.directory, self.memory, self.say = (
            built,
            report,
            directory,
            memory,
            say,
        )
        self.estimate = Estimate({}, 0)
        self.key = make_key(directory)
        end = max((part.start + part.size for part in built.partitions), default=built.raw.size)
        slot = 0
        if built.layout == "ab":
            slot = next((part.size for part in built.partitions if part.name == "root-a"), 0)
        self.size = -(-(max(end, built.raw.size) + slot + SPARE) // MIB) * MIB
        self.wanted = GuestExpectations.of(built, self.size)

    def machine(self, name: str, number: int) -> VirtualMachine:
        """Return a machine on an overlay of its own."""
        place = self.directory / name
        place.mkdir()
        disk = overlay(self.built.path("raw"), place / "overlay.qcow2", size=self.size)
        credentials = {"ssh.authorized_keys.root": (self.key.with_suffix(".pub")).read_text()}
        return VirtualMachine(
            disk,
            place,
            VmOptions(
                snapshot=False,
                form="qcow2",
                memory=self.memory,
                key=self.key,
                credentials=credentials,
                mac=f"52:54:00:67:6e:{number:02x}",
                counted=self.report.counted,
                architecture=self.report.built.os.architecture,
            ),
        )

    def all(self, *, clones: bool, gpus: bool) -> None:
        with self.clone() if clones else contextlib.nullcontext() as identity:
            with self.machine("one", 1) as one:
                first = self.boot(one, 1, "first boot")
                second = self.boot(one, 2, "reboot", first=first)
                if gpus:
                    self.with_gpus(one, second)
            if identity is not None:
                self.say("comparing with a clone")
                self.report.clones = [
                    *guest.unique(first.facts, identity()),
                    guest.holds(
                        "clones.boot",
                        True,
                        "the clone boots, beside the first",
                        "it answers",
                    ),
                ]

    @contextlib.contextmanager
    def clone(self) -> Iterator[Callable[[], Facts]]:
        """Boot a second overlay in the background. Yield a function that returns its identity, or raises MachineError.

        Without processors and memory for both guests, it boots when the function is called.
        """
        machine = self.machine("two", 2)
        if not room_for(2, self.memory, machine.processors):
            yield lambda: self.identity_of(machine)
            return
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.identity_of, machine)
            try:
                yield answer.result
            finally:
                machine.cut()  # the pool waits for its thread, which an interrupted run must not

    def identity_of(self, machine: VirtualMachine) -> Facts:
        """Boot a machine, return its identity and cut its power.

        Nothing else is asked: the same image passes the full set of checks in the other machine.
        """
        with machine:
            machine.wait_ssh(BOOT)
            facts = self.ask(machine, identity=True)
            machine.cut()
        return facts

    def ask(
        self, machine: VirtualMachine, *, identity: bool = False, first: Facts | None = None
    ) -> Facts:
        """Collect the guest's facts, or only its identity, after systemd has finished starting units.

        The list of an initramfs that `first`, the facts of an earlier boot, has by digest is taken from there. Raises
        MachineError on failure.
        """
        known = (first or {}).get("sum", {}).get(f"/boot/initrd.img-{self.wanted.kernel}")
        full = {**self.wanted.asked(), "listed": known}
        request = json.dumps({"identity": True} if identity else full)
        done = machine.ssh(
            ["python3", "-I", "-", shlex.quote(request)], stdin=COLLECTOR.read_bytes(), limit=ASK
        )
        try:
            answers: Facts = json.loads(done.out)
        except ValueError:
            text = (
                f"the guest could not be asked: exit status {done.rc}, "
                f"{(done.err or done.out).strip()[-600:]}"
            )
            raise machine.error(text) from None
        if first and answers.get("initramfs") is None and not identity:
            return {**answers, "initramfs": first.get("initramfs")}
        return answers

    def boot(
        self,
        machine: VirtualMachine,
        number: int,
        what: str,
        *,
        first: Boot | None = None,
        gpus: Judge | None = None,
        missing: bool = False,
    ) -> Boot:
        """Boot a machine, or reboot a running one, and add the judged boot to the report.

        `gpus` marks a boot with simulated GPUs: it derives this boot's checks from the common ones.
        """
        self.say(f"boot {number}: {what}" + (" with simulated GPUs" if gpus else ""))
        self.estimate.begin(number)
        since = time.monotonic()
        before, resets = None, None
        if machine.booted:
            before, resets = machine.booted, machine.resets()
            machine.ssh(["systemctl", "reboot"])
        began = machine.time()
        machine.booted = machine.wait_ssh(BOOT, other_than=before, resets=resets)
        seconds = machine.time() - began
        facts = self.ask(machine, first=first.facts if first else None)
        checks = guest.judge(
            facts,
            self.wanted,
            first=first.facts if first else None,
            simulated=gpus is not None,
            missing=missing,
        )
        checks.insert(
            0,
            GuestCheck(
                "ssh",
                PASSED,
                "answers with the key of this run",
                f"after {seconds:.0f} s of the guest's time",
            ),
        )
        checks = gpus(checks, facts) if gpus else checks
        measured = Boot(
            number,
            what=what,
            seconds=seconds,
            checks=checks,
            simulated=gpus is not None,
            facts=facts,
            wall_seconds=time.monotonic() - since,
        )
        (self.directory / f"facts-{number}.json").write_text(json.dumps(facts, indent=1))
        self.report.boots.append(measured)
        self.say(
            f"boot {number}: {guest.outcome(checks)}"
            + "".join(f"\n  {check.id}: {check.got}" for check in guest.failed(checks))
        )
        return measured

    def with_gpus(self, machine: VirtualMachine, before: Boot) -> None:
        """Boot twice with simulated GPUs: with all of them, then with one missing."""
        document = before.facts.get("class")
        if not isinstance(document, dict):
            raise machine.error("the guest has no class document to simulate GPUs of")
        self.say("installing simulated GPUs in the guest")
        closing = simulated.install(machine, document)
        self.wanted = replace(self.wanted, class_digest=closing["digest"])

        def healthy(checks: list[GuestCheck], facts: Facts) -> list[GuestCheck]:
            return checks + simulated.healthy(facts, closing)

        def faulty(checks: list[GuestCheck], facts: Facts) -> list[GuestCheck]:
            # The fault is intended: check its consequences, not that everything is healthy.
            still = [
                check
                for check in checks
                if check.id in simulated.STILL or check.id.startswith("units.")
            ]
            return still + simulated.faulty(facts, closing)

        self.boot(machine, len(self.report.boots) + 1, "all GPUs there", gpus=healthy)
        simulated.lose(machine, closing)
        self.boot(machine, len(self.report.boots) + 1, "a GPU missing", gpus=faulty, missing=True)
