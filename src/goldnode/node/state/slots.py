"""Two root partitions on one disk: which one runs, which one boots next, and whether the image that boots is
good.

The partitions are `root-a` and `root-b` (PARTLABEL, on the disk of the booted ESP: :mod:`.bootdisk`), and the
boot loader is systemd-boot. For each
slot the ESP holds `goldnode/SLOT/slot.json` {name, class, build_id, sequence, kernel, good,
unverified}, a kernel and an initramfs, and one entry `goldnode-BUILDID-SLOT.conf`.

A new image has a higher sequence, so it boots next. Its entry has a boot counter in its name, which
limits the number of boots before one of them is good. :func:`bless` removes the counter of a
good image, or systemd-bless-boot if this program cannot. systemd-boot skips an entry without tries left and boots the other slot. No program of
ours has to run for that.

A good image gets retries too: each boot that reaches multi-user.target writes its entry with a new counter and the word
`goldnode.good` (:func:`arm`). The counter of an entry with that word is no trial: nothing is judged, and nothing but
an emergency restarts the machine. It only limits how often an image starts that no longer comes up.

All writes to the ESP go to a new name, are flushed, renamed, flushed again and read back. Only then
the old file is removed. The entry comes last. FAT has no journal: after a power cut at any moment,
whichever unflushed sectors reached the disk, there is a complete entry of a slot with complete
files (docs/how-to/disk-slots.md, "A power cut").
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import time
from hashlib import sha256

from ..effective import loader, uki
from ..ground.boot import ARMED, NOTICE, SIGNED_IMAGE, UP
from ..ground.errors import NodeError
from ..ground.host import Host, Json, boot_identity, is_container
from . import bootdisk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

SLOTS = ("a", "b")
FOLDER = "goldnode"  # on the ESP
HISTORY = f"{FOLDER}/history"  # results of images: a JSON object per line, oldest first
HISTORY_LINES = 60  # lines of the history
TRIES = 3
LOCK = "/run/goldnode/slots.lock"
# Seconds to wait for another change of the slots. All but the writing of an image take less: a kernel's package must not
# fail to reach the ESP because the boot has just begun to write the retries or the recovery.
WAIT = 120.0
# In the entry of an image on trial: a hardware watchdog, if there is one, resets a machine that hangs.
WATCHDOG = "systemd.watchdog_sec=60"
# Findings that do not count against an image on trial: until it is blessed, the other slot may boot next.
OWN = ("boot.next", "boot.pending", "boot.trial", "boot.copies")
EMPTY, TRYING, GOOD, FAILED = "empty", "tried", "good", "failed"
# Events of the history: boots of a good image that did not come up, and a root that the initramfs repaired.
RETRIED, REPAIRED = "retried", "repaired"
# A new directory of the ESP gets room for this many names of 200 letters. On a small ESP, a cluster holds
# one.
RESERVED = 3
# Suffixes of files of the ESP that are incomplete or about to be removed. systemd-boot reads neither.
FRESH, GONE = ".new", ".old"


def running(host: Host) -> Optional[str]:
    """Return the running slot according to the kernel's command line; None if another root runs."""
    match = re.search(
        r"(?:^|\s)root=PARTLABEL=root-([ab])(?:\s|$)", host.text("/proc/cmdline") or ""
    )
    return match.group(1) if match and host.live and not is_container(host) else None


def place(host: Host) -> Optional[str]:
    """Return the mount point of the ESP with the slots; None without one, or if it is not mounted."""
    where = loader.partition(host)
    return where if where and host.is_dir(f"{where}/{FOLDER}") else None


def known(host: Host, where: str, slot: str) -> Json:
    """Return the content of `slot.json` of a slot; empty if it is missing or damaged."""
    name = f"{where}/{FOLDER}/{slot}/slot.json"
    for path in (spare(name), name):
        try:
            state = json.loads(host.text(path) or "null")
        except ValueError:
            continue
        if isinstance(state, dict):
            return state
    return {}


def of_slot(entries: Sequence[loader.LoaderEntry], slot: str) -> List[loader.LoaderEntry]:
    """Return the entries that boot a slot, in the order of systemd-boot. Pure."""
    return loader.ordered(
        [
            entry
            for entry in entries
            if entry.id.startswith("goldnode-") and entry.id.endswith(f"-{slot}.conf")
        ],
    )


def armed(entry: loader.LoaderEntry) -> bool:
    """Return whether an entry is that of a good image with retries. Pure."""
    return ARMED in entry.fields.get("options", "").split()


def retried(host: Host) -> bool:
    """Return whether this boot started a good image with retries: its command line has the word.

    A unified kernel image ignores the options of its entry, so that the entry itself is read.
    """
    if ARMED in (host.text("/proc/cmdline") or "").split():
        return True
    where = place(host)
    entry = counted(host, where) if where else None
    return entry is not None and entry.unified and armed(entry)


def tried(host: Host, where: str) -> Optional[loader.LoaderEntry]:
    """Return the entry that this boot tries; None for any other boot.

    The entry is on trial while it has a counter, unless it is that of a good image.
    """
    entry = counted(host, where)
    return None if entry is None or armed(entry) else entry


def counted(host: Host, where: str) -> Optional[loader.LoaderEntry]:
    """Return the entry whose counter systemd-boot decremented for this boot, while it has a counter; otherwise None."""
    path = loader.variable(host, "LoaderBootCountPath")
    name = (path or "").replace("\\", "/").rpartition("/")[2]
    return next(
        (
            entry
            for entry in loader.entries(host, where)
            if entry.file == name and entry.left is not None
        ),
        None,
    )


def survey(host: Host) -> Optional[Json]:
    """Return the slots of this node, as `goldnode-node slot status` reports them; None on a disk without
    slots.

    {place, running, tried: file of the entry that this boot tries or None, next: slot that boots
    next or None, why, slots: slot -> {image, class, build_id, sequence, kernel, unverified, entry,
    left, done, state, was_good: the entry has retries of a good image, unified: it starts a unified kernel
    image, device}, fallback: message about a newer image that failed, or None}.
    """
    where, slot = place(host), running(host)
    if where is None or slot is None:
        return None
    choice, all_of = loader.next_boot(host, where), loader.entries(host, where)
    trial, mine = tried(host, where), counted(host, where)
    rows: Dict[str, Json] = {}
    for name in SLOTS:
        about, own = known(host, where, name), of_slot(all_of, name)
        entry = own[0] if own else None
        rows[name] = {
            "image": about.get("name"),
            **{
                key: about.get(key)
                for key in ("class", "build_id", "sequence", "kernel", "unverified")
            },
            "entry": entry.file if entry else None,
            "left": entry.left if entry else None,
            "done": entry.done if entry else None,
            "state": state(entry, about, bool(mine and entry and mine.file == entry.file)),
            "was_good": bool(entry and armed(entry)),
            "unified": bool(entry and entry.unified),
            "device": bootdisk.device(host, f"root-{name}"),
        }
    nexts = [
        name for name in SLOTS if choice.entry is not None and choice.entry in of_slot(all_of, name)
    ]
    facts: Json = {
        "place": where,
        "running": slot,
        "tried": trial.file if trial else None,
        "next": nexts[0] if nexts else None,
        "why": choice.reason,
        "slots": rows,
    }
    facts["fallback"] = fallback(facts, history(host, where))
    return facts


def elsewhere(host: Host, where: str, device: str) -> Optional[str]:
    """Return why a partition with the right label is not this node's other slot: it, or the ESP, is on
    another disk than `/`.

    Return None if all are on one disk. A partition whose disk sysfs does not show (device-mapper, a
    container) is not judged.
    """
    numbers = bootdisk.mounted(host)
    name = os.path.relpath(
        os.path.realpath(host.located(device)), os.path.realpath(host.located("/dev"))
    ).replace("/", "!")
    disks = {
        f"{device} (/dev/{name.replace('!', '/')})": bootdisk.disk(
            host, f"/sys/class/block/{name}"
        ),
        "/": bootdisk.disk(host, f"/sys/dev/block/{numbers.get('/')}"),
        f"the ESP at {where}": bootdisk.disk(host, f"/sys/dev/block/{numbers.get(where)}"),
    }
    result = {what: disk for what, disk in disks.items() if disk}
    if len(set(result.values())) < 2:
        return None
    return (
        f"{'; '.join(f'{what} is on disk {disk}' for what, disk in result.items())}. "
        f"All have to be on one disk, and labels of two are the same. {bootdisk.REMEDY} Nothing was written."
    )


def state(entry: Optional[loader.LoaderEntry], about: Mapping[str, Any], now: bool) -> str:
    """Return the state of a slot: empty, tried, good, or failed. Pure.

    :param now: whether this boot tries the slot, possibly with its last try.
    """
    if entry is None or not about:
        return EMPTY
    if entry.left is None or (armed(entry) and (now or not entry.bad)):
        return GOOD
    return FAILED if entry.bad and not now else TRYING


def fallback(found: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]) -> Optional[str]:
    """Return the message about a newer image that has used up its tries; None without such an image. Pure.

    :param found: the result of :func:`survey`.
    :param attempts: lines of the history.
    """
    runs = found["running"]
    other = SLOTS[1 - SLOTS.index(runs)]
    mine, its = found["slots"][runs], found["slots"][other]
    if its["state"] != FAILED or (its["sequence"] or 0) < (mine["sequence"] or 0):
        return None
    why = [
        row for row in attempts if row.get("image") == its["image"] and row.get("event") == FAILED
    ]
    reported = "it left no reason: it ended before one could be written (panic, no root, power)"
    if why:
        reported = str(why[-1].get("reason"))
    times = its["done"] or 1
    tries = f"{times} tries" if times > 1 else "its try"
    failed_so = f"failed {tries}"
    if its.get("was_good"):
        failed_so = f"was good, and no longer comes up ({tries})"
    return f"image {its['image']} in slot {other} {failed_so}: {reported}; {mine['image']} in slot {runs} runs"


def show_failure(host: Host, verdict: Mapping[str, Any]) -> None:
    """Show a newer image that failed at logins, as the verdict does."""
    bad = [
        str(row["got"])
        for row in verdict["findings"]
        if row["id"] == "slot.fallback" and row["outcome"] == "mismatch"
    ]
    if bad:
        host.write(NOTICE, f"{bad[0]}\n".encode())
    else:
        host.remove(NOTICE)


# -- writing on the ESP


@contextlib.contextmanager
def alone(host: Host, wait: float = WAIT) -> Iterator[None]:
    """Lock the slots for one change. What the change is based on has to be read while the lock is held.

    Raises NodeError if another process still has the lock after `wait` seconds.
    """
    here = host.located(LOCK)
    os.makedirs(os.path.dirname(here), exist_ok=True)
    with open(here, "a") as opened:
        end = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= end:
                    raise NodeError(
                        "another run writes the slots of this node. Wait for it."
                    ) from None
                time.sleep(0.2)
        yield


def spare(name: str) -> str:
    """Return the name of the second copy of a file of the ESP, which exists only during a replacement. Pure.

    The copy of an entry is an entry of the same slot. It precedes the original in systemd-boot's
    order.
    """
    match = re.fullmatch(r"(.+)-([ab](?:\+\d+(?:-\d+)?)?\.conf)", name)
    return f"{match[1]}-new-{match[2]}" if match else f"{name}.next"


def put(host: Host, name: str, content: bytes) -> None:
    """Replace a file of the ESP. At any moment the disk has a complete copy of it, under its name or that of
    :func:`spare`.

    Linux's vfat replaces a file by rename in several sectors, in any order. A power cut may thus
    destroy both files, which is why there is a second copy.
    """
    second = spare(name)
    left = host.data(second)
    if left:  # an interrupted run left this complete copy; the file itself may be incomplete
        commit(host, name, left)
    if left is not None:
        take(host, second)
    if host.exists(name):
        commit(host, second, content)
    commit(host, name, content)
    take(host, second)


def commit(host: Host, name: str, content: bytes) -> None:
    """Write a file of the ESP and verify that the disk holds it. Raises NodeError, and then removes the file
    if it is new.

    The data is flushed under another name first. After a rename, vfat's directory entry is empty on
    the disk until the file itself is flushed once more. The rest is in its directory. fsync also
    flushes the disk's own cache; syncfs does not do that on vfat.
    """
    here = host.located(name)
    folder, fresh, new = os.path.dirname(here), here + FRESH, not host.exists(name)
    try:
        make(folder)
        with open(fresh, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
            os.replace(fresh, here)
            os.fsync(out.fileno())
        settle(folder)
        wrong = None if reread(here) == content else "the disk does not hold what was written"
    except OSError as problem:
        wrong = problem.strerror or str(problem)
    if wrong:
        with contextlib.suppress(OSError):
            for left in (name + FRESH, *([name] if new else [])):
                take(host, left)
        raise NodeError(
            f"{name} cannot be written: {wrong}. The current image still boots. See `dmesg` and `df "
            f"{os.path.dirname(name)}`."
        )


def reread(path: str) -> bytes:
    """Return the content of a file on the disk: drop the kernel's cached pages first."""
    with open(path, "rb") as opened:
        with contextlib.suppress(OSError):  # not every file system supports the advice
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return opened.read()


def make(folder: str) -> None:
    """Make a directory of the ESP with room for later names, and flush it before anything is written into it.

    If a directory grows later, the allocation table on the disk may lack its end. Firmware then
    reads none of its names.
    """
    if os.path.isdir(folder):
        return
    make(os.path.dirname(folder))
    os.mkdir(folder)
    names = [f"{folder}/{'room' * 50}{number}" for number in range(RESERVED)]
    for name in names:
        open(name, "wb").close()
    for name in names:
        os.unlink(name)
    settle(folder)
    settle(os.path.dirname(folder))


def settle(path: str) -> None:
    """Flush a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take(host: Host, name: str) -> None:
    """Remove a file on the ESP durably.

    Rename it first: fsck.vfat truncates a file whose clusters are already free, and half an entry
    is still an entry.
    """
    here = host.located(name)
    if not os.path.lexists(here):
        return
    gone = here + GONE
    try:
        os.replace(here, gone)
    except OSError:  # the directory has no room for another name
        gone = here
    settle(os.path.dirname(here))
    os.unlink(gone)
    settle(os.path.dirname(here))


def put_entry(host: Host, where: str, slot: str, file: str, text: str) -> None:
    """Make one file the only entry of a slot. When the disk has it, remove the other entries and leftovers of
    interrupted runs.
    """
    folder = f"{where}/loader/entries"
    put(host, f"{folder}/{file}", text.encode())
    others = [
        f"{folder}/{entry.file}"
        for entry in of_slot(loader.entries(host, where), slot)
        if entry.file != file
    ]
    for path in (*others, *leftovers(host, where)):
        take(host, path)


def leftovers(host: Host, where: str) -> List[str]:
    """List files that interrupted runs left among the entries.

    The last pattern matches a name of which only the short form (8.3) was written.
    """
    return [
        path
        for pattern in (f"goldnode-*{FRESH}", f"goldnode-*{GONE}", "GOLDNO~*")
        for path in host.glob(f"{where}/loader/entries", pattern)
    ]


def proved(host: Host, where: str, slot: str) -> None:
    """Verify that the disk has everything needed to boot a slot, before a caller removes the alternative.
    Raises NodeError.
    """
    own = of_slot(loader.entries(host, where), slot)
    paths = [f"{where}/loader/entries/{own[0].file}"] if own else []
    paths += [
        f"{where}/{word.lstrip('/')}"
        for key in ("linux", "initrd")
        for word in (own[0].fields.get(key, "").split() if own else ())
    ]
    lost = [path for path in paths if not host.data(path)]
    # Entry, kernel and initramfs; a unified kernel image has the last two inside.
    if len(paths) < (2 if own and own[0].unified else 3) or lost:
        raise NodeError(
            f"slot {slot}, which runs, could not boot again: {' and '.join(lost) or 'its entry'} "
            "is missing or empty on the ESP. Run `goldnode-node slot sync`, then this again."
        )
    for path in (*paths, *sorted({os.path.dirname(path) for path in paths})):
        settle(host.located(path))


def history(host: Host, where: str) -> List[Json]:
    """Return the history of images on this node, oldest first. Skips torn lines."""
    rows = []
    for line in (
        host.text(spare(f"{where}/{HISTORY}")) or host.text(f"{where}/{HISTORY}") or ""
    ).splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def record(
    host: Host, where: str, event: str, slot: str, about: Mapping[str, Any], *, reason: str = ""
) -> None:
    """Append a line to the history: {time, boot, event, slot, image, reason}."""
    row = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "boot": boot_identity(host),
        "event": event,
        "slot": slot,
        "image": about.get("name"),
        "reason": reason,
    }
    rows = [*history(host, where), row][-HISTORY_LINES:]
    put(
        host,
        f"{where}/{HISTORY}",
        "".join(json.dumps(item, sort_keys=True) + "\n" for item in rows).encode(),
    )


def entry_text(about: Mapping[str, Any], slot: str, linux: str, initrd: str, options: str) -> str:
    """Return the text of a slot's entry. Pure.

    :param options: the kernel command line without `root=`.
    """
    rows = (
        ("title", f"goldnode {about['name']}"),
        ("sort-key", "goldnode"),
        ("version", f"{about['sequence']}~{about['build_id']}"),
        ("linux", linux),
        ("initrd", initrd),
        ("options", slot_options(slot, options)),
    )
    return "".join(f"{key} {value}\n" for key, value in rows if value)


def slot_options(slot: str, options: str) -> str:
    """Return the kernel command line of a slot, from the rest of it. Pure."""
    return f"root=PARTLABEL=root-{slot} {options}".rstrip()


def without_root(options: str, *others: str) -> str:
    """Return a command line without `root=` and without the given words. Pure."""
    return " ".join(
        word for word in options.split() if not word.startswith("root=") and word not in others
    )


def digest(path: str, part: Optional[Tuple[int, int]] = None) -> str:
    """Return the SHA-256 of a file, in hex, or of the part of it with this place and size."""
    hashed = sha256()
    start, left = part or (0, os.stat(path).st_size)
    with open(path, "rb") as opened:
        opened.seek(start)
        while left and (block := opened.read(min(left, 1 << 20))):
            hashed.update(block)
            left -= len(block)
    return str(hashed.hexdigest())


def copy_boot_files(
    host: Host, where: str, slot: str, sources: Sequence[Tuple[Union[str, bytes], str]]
) -> List[str]:
    """Copy kernel and initramfs of a slot to the ESP, each under a name with its digest. Return their paths
    on the ESP. Raises NodeError if the ESP has no room.

    :param sources: (path on this machine or content, beginning of the name).
    """
    folder = f"{where}/{FOLDER}/{slot}"
    make(host.located(folder))
    clean(host, where, slot)  # leftovers of an interrupted run take room
    remove_salvaged(host, where)
    names, missing = [], []
    for source, name in sources:
        if isinstance(source, bytes):
            content = source
        else:
            with open(source, "rb") as opened:
                content = opened.read()
        path = free = f"{folder}/{name}-{sha256(content).hexdigest()[:12]}"
        # An entry may name a damaged file, so do not replace it: use another name until no entry refers to
        # it.
        for number in itertools.count(1):
            if host.data(free) in (content, None):
                break
            free = f"{path}.{number}"
        names.append(free)
        missing += [] if host.exists(free) else [(free, content)]
    need = sum(len(content) for _, content in missing) + (1 << 20)
    stat = os.statvfs(host.located(folder))
    room = stat.f_bavail * stat.f_frsize
    if missing and room < need:
        raise NodeError(
            f"the ESP at {where} has {room >> 20} MiB free, "
            f"and kernel and initramfs of slot {slot} need {need >> 20} MiB. "
            f"Remove what else lies there; the entries are as they were."
        )
    for name, content in missing:
        commit(host, name, content)
    for name in names:  # files that existed before may not have been flushed
        settle(host.located(name))
    settle(host.located(folder))
    return [name[len(where) :] for name in names]


def clean(host: Host, where: str, slot: str) -> None:
    """Remove kernels and initramfs of a slot that no entry names, and leftovers of interrupted runs."""
    named = {
        word
        for entry in loader.entries(host, where)
        for key in ("linux", "initrd")
        for word in entry.fields.get(key, "").split()
    }
    about = f"{where}/{FOLDER}/{slot}/slot.json"
    for path in host.glob(f"{where}/{FOLDER}/{slot}", "*"):
        if path[len(where) :] not in named and path not in (about, spare(about)):
            take(host, path)


def remove_salvaged(host: Host, where: str) -> None:
    """Remove the files that fsck.vfat made of lost clusters.

    Each power cut may lose a kernel and an initramfs that no name refers to yet. `fsck.vfat -a`, at the next boot, makes
    files FSCK0000.REC and so on of them in the root of the ESP, where they would take its room for ever.
    """
    for path in host.glob(where, "*"):
        if re.fullmatch(r"FSCK\d{4}\.REC", path.rpartition("/")[2], re.IGNORECASE):
            take(host, path)


# -- the running slot follows its own kernel


def wanted_release(host: Host, where: str, slot: str) -> Optional[str]:
    """Return the kernel release that the slot's entry boots."""
    own = of_slot(loader.entries(host, where), slot)
    return (own and loader.release(host, where, own[0])) or known(host, where, slot).get("kernel")


def stale(host: Host, where: str, slot: str) -> Optional[str]:
    """Return how the slot's kernel or initramfs on the ESP differs from the one in its /boot; None if they
    are equal.

    Digests are cached below /run by size, time and inode.
    """
    own = of_slot(loader.entries(host, where), slot)
    release = wanted_release(host, where, slot)
    if not own or not release:
        return "the slot that runs has no entry of its own"
    cache = f"{LOCK}.digests"
    try:
        before = json.loads(host.text(cache) or "{}")
    except ValueError:
        before = {}
    fresh: Dict[str, str] = {}

    def of(path: str, section: str = "") -> Optional[str]:
        here = host.real(path)
        part = uki.place(here, section) if section else None
        if section and part is None:
            return None
        try:
            stat = os.stat(here)
        except OSError:
            return None
        key = f"{path}:{section}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"
        fresh[key] = before.get(key) or digest(here, part)
        return fresh[key]

    wrong = []
    for key, name in (
        ("linux", f"/boot/vmlinuz-{release}"),
        ("initrd", f"/boot/initrd.img-{release}"),
    ):
        if own[0].unified:
            have = of(f"{where}/{own[0].fields['linux'].lstrip('/')}", f".{key}")
        else:
            have = of(where + "/" + own[0].fields.get(key, "").lstrip("/"))
        want = of(name)
        if want is not None and have != want:
            wrong.append(name)
    if fresh != before:
        host.write(cache, json.dumps(fresh).encode())
    return f"not as in this root: {', '.join(wrong)}" if wrong else None


def sync(host: Host, release: Optional[str] = None) -> Optional[str]:
    """Make the entry of the running slot boot a kernel of its root, with its current initramfs.

    Return a message, or None if nothing changed. Raises NodeError.

    :param release: the kernel to boot; None for the one that the entry boots already.
    """
    where, slot = place(host), running(host)
    if where is None or slot is None:
        return None
    bootdisk.refuse(host)
    with alone(host):
        release = release or wanted_release(host, where, slot)
        own = of_slot(loader.entries(host, where), slot)
        if not own or not release:
            raise NodeError(
                f"slot {slot}, which runs, has no entry on the ESP at {where}. "
                f"Look at {where}/loader/entries."
            )
        if own[0].unified:
            if release == loader.release(host, where, own[0]) and not stale(host, where, slot):
                return None
            raise NodeError(f"slot {slot} {' '.join(SIGNED_IMAGE)}")
        names = (f"/boot/vmlinuz-{release}", f"/boot/initrd.img-{release}")
        lost = [name for name in names if not host.exists(name)]
        if lost:
            raise NodeError(
                f"{' and '.join(lost)}: not there, so that slot {slot} cannot boot {release}. Run site.yml."
            )
        linux, initrd = copy_boot_files(
            host,
            where,
            slot,
            [(host.real(names[0]), "vmlinuz"), (host.real(names[1]), "initrd.img")],
        )
        about = {**known(host, where, slot), "kernel": release}
        flush_root(host, release)
        options = without_root(own[0].fields.get("options", ""))
        text = entry_text(about, slot, linux, initrd, bootdisk.with_word(host, options, where))
        file = settled(own[0])
        same = [entry.file for entry in own] == [file] and host.text(
            f"{where}/loader/entries/{file}"
        ) == text
        if same and not leftovers(host, where):
            return None
        put(
            host,
            f"{where}/{FOLDER}/{slot}/slot.json",
            (json.dumps(about, sort_keys=True) + "\n").encode(),
        )
        put_entry(host, where, slot, file, text)
        clean(host, where, slot)
        return f"slot {slot} boots {release} as it is now"


def flush_root(host: Host, release: str) -> None:
    """Flush the file systems of /boot and of a kernel's modules, before an entry names the kernel. Raises NodeError.

    depmod and the builds of modules flush nothing. After a power cut the entry would start a kernel whose modules the
    root does not have.
    """
    modules = f"/lib/modules/{release}"
    paths = ["/boot", *([modules] if host.is_dir(modules) else [])]
    done = host.run("sync", "-f", *paths, timeout=600)
    if done.rc != 0:
        raise NodeError(
            f"{' and '.join(paths)} cannot be flushed to the disk: {done.tail(2)}. The current entry still boots. "
            "See `dmesg`."
        )


def settled(entry: loader.LoaderEntry) -> str:
    """Return the name that an entry should have: without the marker of a second copy. Pure.

    An entry with a counter retains its name, because systemd-bless-boot looks for it.
    """
    if entry.left is not None:
        return entry.file
    return re.sub(r"(?:-new)+(-[ab]\.conf)$", r"\1", entry.file)


def name_disk(host: Host) -> Optional[str]:
    """Put the GUID of the ESP into the entry of the running slot. Return it; None if it is there or unknown.

    A kernel without EFI variables finds its disk by it. Raises NodeError.
    """
    where, slot = place(host), running(host)
    own = of_slot(loader.entries(host, where), slot) if where and slot else []
    if where is None or not own or own[0].unified:
        return None
    before = own[0].fields.get("options", "").split()
    after = bootdisk.with_word(host, " ".join(before), where).split()
    fresh = [word for word in after if word not in before]
    if fresh:
        edit_cmdline(host, fresh, [word for word in before if word not in after])
    return fresh[0] if fresh else None


def edit_cmdline(host: Host, add: Sequence[str], drop: Sequence[str]) -> None:
    """Add words to the command line of the running slot, and remove words from it. Raises NodeError."""
    where, slot = place(host), running(host)
    bootdisk.refuse(host)
    with alone(host):
        own = of_slot(loader.entries(host, where), slot) if where and slot else []
        if where is None or slot is None or not own:
            raise NodeError(
                "the slot that runs has no entry on the ESP. See `goldnode-node slot status`."
            )
        if own[0].unified:
            raise NodeError(f"slot {slot} {' '.join(SIGNED_IMAGE)}")
        name = f"{where}/loader/entries/{own[0].file}"
        line = own[0].fields.get("options", "")
        after = " ".join(
            [
                *(word for word in line.split() if word not in drop),
                *(word for word in add if word not in line.split()),
            ]
        )
        rows = [
            row for row in (host.text(name) or "").splitlines() if not row.startswith("options ")
        ]
        put_entry(
            host,
            where,
            slot,
            settled(own[0]),
            "".join(f"{row}\n" for row in (*rows, f"options {after}")),
        )


def failed(host: Host) -> str:
    """Record why a boot that tries an image is given up, unless the check has done so in this boot. Return
    the reason.
    """
    facts = survey(host)
    if facts is None or counted(host, facts["place"]) is None:
        return "this boot tries no image"
    where, slot = facts["place"], facts["running"]
    failures = [
        row
        for row in history(host, where)
        if row.get("boot") == boot_identity(host) and row.get("event") == FAILED
    ]
    if failures:
        return str(failures[-1].get("reason"))
    lost = host.run(
        "systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--full"
    ).out
    names = [line.split()[0] for line in lost.splitlines() if line.split()]
    waits = host.run("systemctl", "list-jobs", "--plain", "--no-legend", "--full").out
    jobs = [
        words[1]
        for words in (line.split() for line in waits.splitlines())
        if len(words) > 3 and words[3] == "running"
    ]
    jobs = [name for name in jobs if not name.startswith("goldnode-tries")]
    emergency = host.run("systemctl", "is-active", "emergency.target").out.strip() in (
        "active",
        "activating",
    )
    parts = ["emergency mode"] if emergency else []
    parts += [f"failed: {', '.join(names[:5])}"] if names else []
    parts += [f"still starting: {', '.join(jobs[:5])}"] if jobs and not names else []
    text = f"the boot did not complete ({'; '.join(parts) or 'nothing says why'})"
    stray = bootdisk.astray(host)
    if stray:  # the ESP may be that of another disk
        return f"{text}; not recorded: {stray}"
    record(host, where=where, event=FAILED, slot=slot, about=known(host, where, slot), reason=text)
    return text


# -- retries of a good image


def arm(host: Host, tries: int = TRIES) -> Optional[str]:
    """Give the good image that runs its retries: a counter and the word ARMED in its entry. Return a message, or None
    if it has them.

    Nothing is written in a boot that tries an image, and on a node without slots. Raises NodeError.
    """
    where, slot = place(host), running(host)
    if where is None or slot is None or tried(host, where) is not None:
        return None
    host.write(UP, b"")
    bootdisk.refuse(host)
    with alone(host):
        own = of_slot(loader.entries(host, where), slot)
        about = known(host, where, slot)
        if bootdisk.binding(host).get("repaired") and not any(
            row.get("event") == REPAIRED and row.get("boot") == boot_identity(host)
            for row in history(host, where)
        ):
            text = "the initramfs could not mount the root, and repaired it with a copy of its superblock"
            record(host, where=where, event=REPAIRED, slot=slot, about=about, reason=text)
        # An entry with a counter that is not armed waits for its trial: `slot back` to the slot that runs, for instance.
        if not own or not about or (own[0].left is not None and not armed(own[0])):
            return None
        name = f"{where}/loader/entries/{own[0].file}"
        text = host.text(name) or ""
        if not armed(own[0]):
            rows = [row for row in text.splitlines() if not row.startswith("options ")]
            rows.append(f"options {own[0].fields.get('options', '')} {ARMED}")
            text = "".join(f"{row}\n" for row in rows)
        file = loader.with_counter(settled(own[0]._replace(file=own[0].id, left=None)), tries)
        if [entry.file for entry in own] == [file] and host.text(name) == text:
            return None
        put_entry(host, where, slot, file, text)
        return f"image {about.get('name')} in slot {slot} has {tries} tries from here on"


def bless(host: Host) -> Optional[str]:
    """Remove the counter from the entry that this boot has counted. Return a message, or None if none of ours has one.

    systemd-bless-boot then finds its work done. Its own rename may lose the entry: a power cut before the file is
    flushed once more leaves neither name. Raises NodeError.
    """
    where = place(host)
    if where is None or loader.variable(host, "LoaderBootCountPath") is None:
        return None
    bootdisk.refuse(host)
    with alone(host):
        entry, folder, done = counted(host, where), f"{where}/loader/entries", None
        if entry is not None and entry.id.startswith("goldnode-"):
            put(host, f"{folder}/{entry.id}", host.data(f"{folder}/{entry.file}") or b"")
            take(host, f"{folder}/{entry.file}")
            done = f"entry {entry.id} has no counter any more"
        for path in leftovers(host, where):
            take(host, path)
        return done


# -- the next boot


def boots_next(host: Host, slot: str, done: str) -> Json:
    """Return the survey after a change, if the slot boots next. Raises NodeError if systemd-boot's settings
    select another entry.

    :param done: the change, as part of an error message.
    """
    after = survey(host) or {}
    if after.get("next") != slot:
        raise NodeError(
            f"slot {slot} {done}, and does not boot next: {after.get('why')}. "
            "Take the wish back (`bootctl set-default ''`, `bootctl set-oneshot ''`) "
            "or correct `default` in loader.conf."
        )
    return after


# -- rollback


def back(host: Host, tries: int = TRIES) -> Json:
    """Make the other slot's last good image boot next. It is on trial like a new image: if it fails, the
    current slot boots again.

    Raises NodeError if the other slot has no good image.
    """
    with alone(host):
        facts = survey(host)
        if facts is None:
            raise NodeError(
                "this node has no slots. Only a disk of layout `ab` that booted with systemd-boot has."
            )
        bootdisk.refuse(host)
        where, runs = facts["place"], facts["running"]
        other = SLOTS[1 - SLOTS.index(runs)]
        about = known(host, where, other)
        own = of_slot(loader.entries(host, where), other)
        row = facts["slots"][other]
        if not own or not about:
            raise NodeError(
                f"slot {other} holds no image to go back to. Write one with `goldnode disks update`."
            )
        if row["state"] != GOOD and not about.get("good"):
            raise NodeError(
                f"image {about.get('name')} in slot {other} was never good (it is {row['state']}). "
                "Write another image."
            )
        if facts["tried"]:
            raise NodeError(
                f"the image that runs is still tried ({facts['tried']}). "
                "Wait until it is good, or reboot: it falls back by itself."
            )
        entry = own[0]
        about = {
            **about,
            "sequence": 1 + max(int(row.get("sequence") or 0) for row in facts["slots"].values()),
        }
        fields = entry.fields
        options = without_root(fields.get("options", ""), WATCHDOG, ARMED)
        options = bootdisk.with_word(host, options, where)
        text = entry_text(
            about, other, fields.get("linux", ""), fields.get("initrd", ""), f"{options} {WATCHDOG}"
        )
        # First record that it was good and what is asked for, which does not affect the boot order; then write the
        # entry, which does. After a power cut in between, the history has a request that was not carried out; the
        # reverse would be a boot without a reason.
        put(
            host,
            f"{where}/{FOLDER}/{other}/slot.json",
            (json.dumps({**about, "good": True}, sort_keys=True) + "\n").encode(),
        )
        record(
            host,
            where=where,
            event="back",
            slot=other,
            about=about,
            reason=f"asked for while {facts['slots'][runs]['image']} ran",
        )
        put_entry(host, where, other, loader.with_counter(entry.id, tries), text)
        return boots_next(host, other, "has its last good image again")
