"""Implementation of `goldnode disks update NODE`: write an image to the inactive slot of a node and boot it,
or go back.

The node is reached by ssh as the inventory defines (address, user, port, key, become). This version
of goldnode's node program runs there: it is uploaded and removed afterwards, so that an older one
on the node does not matter. `node/slots/write.py` describes the protocol and the work on the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from goldnode.channels.lines import CHANNELS
from goldnode.channels.product import Location
from goldnode.core import guarded
from goldnode.core import program_file as nodefile
from goldnode.core.errors import DiskError
from goldnode.core.site import load_site
from goldnode.disks import secureboot, slot_image
from goldnode.disks.channels import channel_head
from goldnode.disks.lines import line_of
from goldnode.disks.model import VERIFIED, BuiltDisk, find, store_directory
from goldnode.disks.places import ChannelStore
from goldnode.evidence.signatures import site_keys, unsigned_reason
from goldnode.fleet.drain.choice import choose
from goldnode.fleet.drain.protocol import DrainCaller, Drainer, NoDrainer, by_hand
from goldnode.fleet.nodes import queue_place, return_tests
from goldnode.fleet.nodes.reach import SshNode, last_line
from goldnode.fleet.rollout.queue import QueuedWork, WorkNeed
from goldnode.fleet.shared import denylist
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.text import phrase
from goldnode.node.slots.write import SCHEMA
from goldnode.node.state.domains.program import OTHER
from goldnode.node.state.slots import FAILED, SLOTS

PROGRAM = "/run/goldnode/update"  # path on the node, while an update runs
PAUSE = 5.0  # seconds between two polls of a booting node

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

Say = Callable[[str], None]


# -- the image


@dataclass(frozen=True)
class UpdateImage:
    """A built disk in the form that an update sends.

    `start` is the offset of its root file system in the raw disk, `first` the header line.
    """

    disk: BuiltDisk
    raw: Path
    start: int
    first: Mapping[str, Any]


def first_line(
    about: Mapping[str, Any],
    tries: int,
    unverified: str | None = None,
    signed: Sequence[str] = (),
    signature: Mapping[str, Any] | None = None,
    *,
    secure_boot: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the first line of the stream to a node.

    :param about: the fields that the builder signs (:func:`goldnode.disks.slot_image.about`).
    :param signed: ids of the keys by which it was verified here, `signature` the envelope, which the node verifies.
    :param secure_boot: digest and signature of the unified kernel of each slot (:func:`goldnode.disks.secureboot.for_slots`).
    """
    return {
        "schema": SCHEMA,
        **about,
        "tries": tries,
        "signed": list(signed),
        "signature": signature,
        "unverified": unverified,
        "secure_boot": secure_boot,
    }


def send(path: Path, start: int, first: Mapping[str, Any], write: Callable[[bytes], Any]) -> None:
    """Write an image as a node expects it: the header line, then the gzipped root file system, whose holes
    cost next to nothing.
    """
    write(json.dumps(first).encode() + b"\n")
    # 31 selects the gzip format.
    pack = zlib.compressobj(1, zlib.DEFLATED, 31)
    with path.open("rb") as opened:
        opened.seek(start)
        left = int(first["root"]["size"])
        while left and (data := opened.read(min(slot_image.BLOCK, left))):
            left -= len(data)
            if part := pack.compress(data):
                write(part)
    write(pack.flush())


def verified(disk: BuiltDisk, unverified: str | None) -> str | None:
    """Return None if an image passed `goldnode disks verify`, otherwise its state and the
    given reason.

    Raises DiskError if it is closed and no reason was given.
    """
    from goldnode.disks.requirements import judge_one  # start-up time: most updates end before it

    boots = judge_one("booted", disk)
    if boots.met:
        return None
    if not (unverified or "").strip():
        raise DiskError(
            f"image {disk.name} is not verified: {boots.why}",
            file=disk.directory / VERIFIED,
            remedy=f"run `goldnode disks verify {disk.directory}`, or give a reason: --unverified REASON",
        )
    return f"{boots.why}; {unverified}"


def authentic(disk: BuiltDisk, keys: Sequence[SSlibKey]) -> None:
    """Verify what `goldnode disks authenticate` verifies, without the bytes of the files. Raises ImageError.

    Without keys the site trusts every account that can write its store of disks.
    """
    from goldnode.disks import evidence  # its libraries are an extra

    if keys:
        evidence.authenticate(disk, keys, content=False).demand(
            f"image {disk.name}",
            f"`goldnode disks authenticate {disk.directory}` has the details: fetch it again from where it is "
            f"published, or, if it was built here, sign it with `goldnode disks evidence {disk.directory}`",
        )


def chosen_image(
    text: str,
    store: Path | None,
    unverified: str | None = None,
    tries: int = 3,
    *,
    unsigned: str | None = None,
) -> UpdateImage:
    """Open the image that `text` names: a build, or CLASS:CHANNEL as the signed channels have it.

    A channel needs a root of the site. An image has to be signed by a key of the site; without one, `unsigned` is
    the reason why it may be installed. The node records it. Raises as `open_image`.
    """
    reason = unsigned_reason(text, bool(site_keys()), unsigned)
    class_, colon, channel = text.partition(":")
    if not colon or "/" in text or channel not in CHANNELS:
        return open_image(find(text, store_directory(store)), unverified, tries, unsigned=reason)
    roots = Location(store).trusted_roots()
    if not roots:
        raise DiskError(
            f"{text} cannot be installed: this site names no root by which to believe a channel",
            remedy="name the root document of the channels in images.roots of the site file, or name a build",
        )
    disk = channel_head(ChannelStore(store_directory(store)), line_of(class_), channel, roots=roots)
    return open_image(disk, unverified, tries, unsigned=reason)


def open_image(
    disk: BuiltDisk, unverified: str | None = None, tries: int = 3, *, unsigned: str = ""
) -> UpdateImage:
    """Validate a built disk against its manifest, byte by byte, and return what a node needs of it.

    With `images.public_key` in the site file, the manifest and the documents must be signed too,
    whatever reason is given for an image that was not booted.

    Raises DiskError and ImageError on failure, DeniedError for a denied build, and DenyListError
    where that could not be checked.
    """
    denylist.check(denylist.read(load_site().deny_list()), disk.class_, disk.build_id)
    if not slot_image.has_slots(disk):
        raise DiskError(
            f"image {disk.name} has layout `{disk.layout}` and loader `{disk.loader}`: only `ab` with "
            "systemd-boot has slots",
            file=disk.directory,
            remedy="say `layout: ab` and `loader: systemd-boot` in images/disks/disks.yml, "
            "and build it again",
        )
    keys = site_keys()
    authentic(disk, keys)
    reasons = (verified(disk, unverified), unsigned and f"it is not signed: {unsigned}")
    raw, root = disk.path("raw"), slot_image.partition(disk, "root-a")
    size, whole = slot_image.digest(raw)
    if (size, whole) != (disk.raw.size, disk.raw.sha256):
        raise DiskError(
            f"image {disk.name} is damaged: {size} bytes of SHA-256 {whole}, expected {disk.raw.size} of "
            f"{disk.raw.sha256}",
            file=raw,
            remedy=f"run `goldnode disks build {disk.class_}` again, or fetch it again",
        )
    first = first_line(
        slot_image.about(disk),
        tries,
        "; ".join(filter(None, reasons)) or None,
        [key.keyid[:16] for key in keys],
        slot_image.signature(disk),
        secure_boot=secureboot.for_slots(disk),
    )
    return UpdateImage(disk, raw, root.start, first)


# -- the node


@dataclass(frozen=True)
class InstalledProgram:
    """The node program of this version, installed on a node."""

    node: SshNode
    place: str

    def slot_command(self, *words: str) -> tuple[str, ...]:
        """Return the remote command for `slot WORDS`."""
        return ("python3", "-I", "-S", self.place, "slot", *words)

    def survey(self) -> dict[str, Any]:
        """Return the state of the node's slots. Raises DiskError if the node has no slots."""
        return answer(
            self.node.run(*self.slot_command("status", "--format", "json")), self.node.name
        )

    def back(self) -> dict[str, Any]:
        """Boot the other slot's last good image next.

        Return the state afterwards. Raises DiskError with the node's reason.
        """
        return answer(self.node.run(*self.slot_command("back", "--format", "json")), self.node.name)


@contextlib.contextmanager
def program(target: SshNode) -> Iterator[InstalledProgram]:
    """Install goldnode's program on the node for the duration of the context."""
    place = f"{PROGRAM}-{os.getpid()}-{os.urandom(4).hex()}"
    script = f"install -d -m 755 -o 0 -g 0 /run/goldnode && umask 077 && cat >{place}"
    # A name of its own: two updates at once do not overwrite each other's program.
    target.output_of("sh", "-c", script, stdin=nodefile.build(writer=True))
    try:
        yield InstalledProgram(target, place)
    finally:
        # The result does not matter: /run is empty after the next boot.
        target.run("rm", "-f", place)


def answer(done: subprocess.CompletedProcess[bytes], name: str) -> dict[str, Any]:
    """Return the slot state that a command on the node printed.

    Raises DiskError with its message if it failed.
    """
    try:
        survey = json.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        survey = None
    if (
        not isinstance(survey, dict)
        or not isinstance(survey.get("slots"), dict)
        or set(survey["slots"]) != set(SLOTS)
    ):
        raise DiskError(
            f"{name}: {last_line(done.stderr) or 'it does not report its slots'}",
            remedy="see docs/how-to/disk-slots.md",
        )
    return survey


def holders(found: Mapping[str, Any]) -> str | None:
    """Return the processes that have a GPU open, as the node reports them, or None.

    The driver's own daemons do not count. Pure.
    """
    rows = [f"pid {row['pid']} {row['command']}" for row in found.get("holders") or ()]
    more = " …" if len(rows) > 3 else ""
    return ", ".join(rows[:3]) + more or None


# -- the run


def refusal(image: UpdateImage, found: Mapping[str, Any]) -> str | None:
    """Return why an image must not be sent to a node, or None.

    Pure. The node checks again before it writes.
    """
    runs = found["slots"][found["running"]]
    other = found["slots"][SLOTS[1 - SLOTS.index(found["running"])]]
    # Until the image that runs is good, the other slot is the way back, and must not be
    # overwritten.
    if found["tried"]:
        return f"it still tries the image that runs ({found['tried']}): wait until that is good"
    if runs["class"] != image.disk.class_:
        return f"it is of class {runs['class']}, and the image of {image.disk.class_}"
    if other["device"] is None:
        return "its disk has no second slot: it is too small for one"
    if runs["image"] == image.disk.name and not image.first["unverified"]:
        return f"it runs image {image.disk.name} already"
    return None


def write(there: InstalledProgram, image: UpdateImage, say: Say) -> dict[str, Any]:
    """Write the inactive slot, whose image then boots next. Return the state afterwards.

    Raises DiskError on failure; the running slot then stays the default.
    """
    return answer(
        feed(
            there.node.local_command(*there.slot_command("write", "--format", "json")), image, say
        ),
        there.node.name,
    )


def feed(words: Sequence[str], image: UpdateImage, say: Say) -> subprocess.CompletedProcess[bytes]:
    """Run a command and send it the image. Pass on its stderr line by line."""
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    told: dict[str, bytes] = {}

    def listen(name: str, stream: IO[bytes] | None, line: Say) -> None:
        kept = []
        for text in stream or ():
            kept.append(text)
            line(text.decode("utf-8", "replace").rstrip())
        told[name] = b"".join(kept)

    # Both pipes are emptied while the image is written: the node's program would wait on a full
    # one.
    threads = [
        threading.Thread(target=listen, args=("out", process.stdout, lambda text: None)),
        threading.Thread(target=listen, args=("err", process.stderr, say)),
    ]
    for thread in threads:
        thread.start()
    try:
        # A node that refuses the image closes the pipe and reports the reason.
        with (
            contextlib.suppress(BrokenPipeError),
            process.stdin or contextlib.nullcontext() as stdin,
        ):
            if stdin is not None:
                send(image.raw, image.start, image.first, stdin.write)
        process.wait()
    finally:
        if process.poll() is None:  # the node's process ends with its input
            process.kill()
            process.wait()
        for thread in threads:
            thread.join()
    return subprocess.CompletedProcess(
        words, process.returncode, told.get("out", b""), told.get("err", b"")
    )


def drain_of(target: SshNode) -> Drainer:
    """Return the drain backend for the node, from the variables that `site.yml` uses."""
    variables = target.variables

    def listed(name: str) -> list[str]:
        value = variables.get(name) or []
        return [str(word) for word in value] if isinstance(value, list) else shlex.split(str(value))

    return choose(
        str(variables.get("goldnode_drain") or "none"),
        listed("goldnode_drain_command"),
        listed("goldnode_resume_command"),
    )


def boot_id(target: SshNode) -> str | None:
    """Return the id of the node's current boot; None while it does not answer."""
    done = target.run("cat", "/proc/sys/kernel/random/boot_id", timeout=60)
    return done.stdout.decode("ascii", "replace").strip() if done.returncode == 0 else None


def run_installed(
    target: SshNode, *words: str, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run the program that the node's image installed, of any version, if only root can change it.

    Otherwise return OTHER.
    """
    return target.run("sh", "-c", guarded.script(words), timeout=timeout)


def spoils(target: SshNode) -> str | None:
    """Apply the GPU policy on the node, and return why a reboot would leave it wrong; None if it would not.

    A node that cannot answer does not block the reboot: nothing is then known against it.
    """
    run_installed(target, "policy", "apply", timeout=600)
    done = run_installed(target, "plan", "--format", "json", timeout=300)
    try:
        shown = json.loads(done.stdout)
    except ValueError:
        return None
    reboot = as_dict(shown).get("reboot")
    held = as_dict(reboot).get("held")
    return "; ".join(map(str, held)) if held else None


def restart(
    target: SshNode,
    slot: str,
    image: str,
    limit: float,
    say: Say,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Reboot the node and wait until the image under trial is good.

    Raises DiskError if it is not, or if the node does not come back.

    :param slot: the slot that boots next; the other one may contain the same image.
    :param limit: seconds until the node has to be settled. It must allow for all tries of a broken image.
    """
    before = boot_id(target)
    say(f"{target.name} boots {image}")
    # The connection may break before the answer: the id of the boot shows what happened.
    target.run("systemctl", "reboot", timeout=60)
    end = clock() + limit
    told = ""
    while clock() < end:
        time.sleep(PAUSE)
        # Not `uptime`: only the id shows that this is another boot.
        now = boot_id(target)
        if now is None or now == before:
            continue
        done = run_installed(target, "slot", "status", "--format", "json", timeout=120)
        if done.returncode == OTHER:
            raise DiskError(
                f"{target.name} boots {image}, where others than root can change goldnode's program, or it "
                "is missing; it was not asked",
                remedy="look at `goldnode-node check` in the image's verification, and build the image again",
            )
        try:
            survey = answer(done, target.name)
        except DiskError:
            continue  # the node is still booting, or going down again
        runs = survey["slots"][survey["running"]]
        if survey["running"] == slot and survey["tried"] is None:
            return survey
        if survey["running"] != slot and not survey["tried"]:
            reason = survey["fallback"] or f"image {runs['image']} in slot {survey['running']} runs"
            raise DiskError(
                f"{target.name} fell back: {reason}",
                remedy="see `goldnode-node check` on the node; it is in service as before",
            )
        state = f"{image} is tried, {runs['left']} tries left after this one"
        if state != told:
            told = state
            say(state)
    raise DiskError(
        f"{target.name} has not settled within {limit:g} s",
        remedy="look at its console; where the image is broken it falls back by itself",
    )


@dataclass(frozen=True)
class DiskUpdate:
    """The requested update: an image (None: go back), whether to boot it, and the time limit of the boot in
    seconds.
    """

    image: UpdateImage | None
    reboot: bool
    limit: float = 2400.0


def run(target: SshNode, wish: DiskUpdate, say: Say) -> dict[str, Any]:
    """Write an image or go back, and boot it on request with the node drained.

    Return the slot state afterwards. Raises DiskError.

    Writing the inactive slot disturbs no workload, so the node is drained only for the boot.
    Without a drain backend, a GPU in use is an error before anything is written.
    """
    drain = drain_of(target)
    with program(target) as there:
        survey = there.survey()
        if wish.image is not None and (why := refusal(wish.image, survey)):
            raise DiskError(
                f"{target.name}: {why}",
                file=wish.image.disk.directory,
                remedy="see `goldnode-node slot status` on the node",
            )
        if wish.image is None:
            other = survey["slots"][SLOTS[1 - SLOTS.index(survey["running"])]]
            # The way back is denied like the way forward: the other slot may have a withdrawn
            # build.
            denials = denylist.read(load_site().deny_list())
            denylist.check(denials, str(other.get("class")), str(other.get("build_id")))
        if wish.reboot and isinstance(drain, NoDrainer) and (used := holders(survey)):
            raise DiskError(
                f"{target.name}: a GPU is in use by {used}, and no scheduler drains the node",
                remedy="set goldnode_drain in the inventory, stop them, or leave --reboot out",
            )
        after = write(there, wish.image, say) if wish.image is not None else there.back()
        slot = str(after["next"])
        image = str(after["slots"][slot]["image"])
        if not wish.reboot:
            return after
    # No drain record on the node: it would be lost with the old root. Slurm and Kubernetes preserve the
    # mark of the run.
    with queue_place.in_turn(
        load_site(),
        target.name,
        QueuedWork.DISK_UPDATE,
        needs=(WorkNeed.DRAIN, WorkNeed.REBOOT),
        reason=f"{image} is booted",
        tell=say,
    ) as (caller, place):
        return boot(target, DiskBoot(drain, slot, image, wish.limit), say, caller, place)


@dataclass(frozen=True)
class DiskBoot:
    """An image that was written to a slot, the drain of its node, and the time limit of the boot in seconds."""

    drain: Drainer
    slot: str
    image: str
    limit: float


def boot(
    target: SshNode,
    wanted: DiskBoot,
    say: Say,
    caller: DrainCaller,
    place: queue_place.QueuePlace | None,
) -> dict[str, Any]:
    """Drain the node, boot the image, and return the node, unless other work of the queue follows. Raises DiskError."""
    drain, slot, image = wanted.drain, wanted.slot, wanted.image
    name = str(target.variables.get("goldnode_drain_name") or target.name)
    before = drain.drain(name, f"disks update: {image} is booted", caller)
    with program(target) as there:
        used = holders(there.survey())
    if used:
        raise DiskError(
            f"{target.name}: a GPU is still in use by {used} after the drain; {image} is written, and "
            "boots with the next boot",
            remedy="stop them and reboot the node; it stays drained",
        )
    if text := spoils(target):
        raise DiskError(
            f"{target.name}: not rebooted, since {text}; {image} is written, and boots with the next boot",
            remedy="see policy.ecc and policy.mig of `goldnode-node check` on the node, then reboot it; it "
            "stays drained",
        )
    # If this raises, the node stays drained for an operator to inspect.
    survey = restart(target, slot, image, wanted.limit, say)
    if place is not None and not place.finish(True, f"{image} runs").returns:
        return survey
    if before.ours and (held := outstanding(target, str(survey["slots"][slot].get("class")))):
        returns = by_hand(str(target.variables.get("goldnode_drain")), name)
        raise DiskError(
            f"{target.name}: {image} runs, and the node stays drained: {held}",
            remedy=f"then return it with {returns}",
        )
    if note := drain.resume(name, caller, before=before.in_service).note:
        say(note)
    if place is not None:
        place.returned(True)
    return survey


def outstanding(target: SshNode, class_: str) -> str:
    """Return which tests the class wants before a node that was just booted returns; empty if none."""
    booted = DrainCaller().now()  # no result of this boot is older
    return return_tests.of_class(class_, "rollout").outstanding(target.name, booted)


def text(found: Mapping[str, Any], name: str) -> str:
    """Return one line per slot, for people. Pure."""
    lines = []
    for slot, row in found["slots"].items():
        marks = [
            word
            for word, true in (
                ("runs", slot == found["running"]),
                ("boots next", slot == found["next"]),
            )
            if true
        ]
        state = "used up" if row["state"] == FAILED else row["state"]
        lines.append(
            f"{name}: slot {slot}: {row['image'] or 'no image'}, {state}"
            + phrase(" ({})", ", ".join(marks))
        )
    if found["fallback"]:
        lines.append(f"{name}: {found['fallback']}")
    return "\n".join(lines)
