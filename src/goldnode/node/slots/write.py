"""`goldnode-node slot write`: write an image from standard input into the slot that does not run.

The stream is one line of JSON, followed by the root file system, compressed with gzip. The line:
{schema, name, class, build_id, kernel, options: its command line, root: {size, sha256}, tries,
signed: ids of the builder's keys by which the sender verified it,
signature: the builder's signed statement, which a node with keys verifies (:mod:`.builder`),
unverified: why it may be written although it has never been booted or signed, or null,
secure_boot: slot -> {digest, signature} of its unified kernel image, which this program makes of the root; or null}.

The slot has no entry while it is written. It gets one only when the image is complete, has been
read back and verified against its digest, has the node's own files, and has its kernel on the ESP.
An interrupted run thus leaves a slot that never boots, and does not change the running slot.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import uuid
import zlib

from ..effective import loader
from ..ground import boot
from ..ground.errors import NodeError
from ..ground.host import PROGRAM, Host, Json
from ..ground.typed import NamedTuple
from ..state import bootdisk, slots
from ..state.domains.program import CLASS
from ..state.observe import load_json
from . import builder, identity
from . import unified as uki

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union

SCHEMA = "goldnode.slot/1"
HEAD = 65536  # maximum length of the first line
BLOCK = 1 << 20
FLUSH_BUFFERS = 0x1261  # BLKFLSBUF: later reads come from the device, not from the cache
# Environment variable of a process with a mount namespace of its own (:func:`apart`).
OWN_NAMESPACE = "GOLDNODE_SLOT_MOUNTS"
MOUNT = "/run/goldnode/slot-root"
# Additional paths of the site that belong to the node, one per line. `*` and `?` also match in
# directories; `#` begins a comment.
SITE = "/etc/goldnode/carry"
BY_SITE = "the site lists it"

_IMAGE = {
    "schema": str,
    "name": str,
    "class": str,
    "build_id": str,
    "kernel": str,
    "options": str,
    "root": dict,
    "tries": int,
}


class Carried(NamedTuple):
    """Content that belongs to the node and not to its image: a path (with `*` and `?`), whether the
    image's own file has precedence, and why.
    """

    pattern: str
    keep: bool
    why: str


STAMP = "/var/lib/goldnode/disk/first-boot"  # goldnode-first-boot.service does nothing if it exists
# Only for a root without machine-id. A first boot removes it; the written slot gets a machine-id
# and skips the first boot.
PRESET = "/etc/systemd/system-preset/00-goldnode-image.preset"
# The only list of files to copy from the running slot into the new one; see :func:`users` for accounts.
CARRIED = (
    Carried("/etc/machine-id", False, "the node's identity"),
    Carried("/etc/hostname", False, "the node's name"),
    Carried("/etc/hosts", True, "the node's name"),
    Carried("/etc/ssh/ssh_host_*_key", False, "clients know the node by these"),
    Carried("/etc/ssh/ssh_host_*_key.pub", False, "clients know the node by these"),
    Carried("/etc/systemd/network/*", True, "addresses that are the node's own"),
    Carried("/etc/network/interfaces", True, "addresses that are the node's own"),
    Carried("/etc/network/interfaces.d/*", True, "addresses that are the node's own"),
    Carried("/etc/netplan/*.yaml", True, "addresses that are the node's own"),
    Carried(
        "/etc/sudoers.d/90-cloud-init-users",
        True,
        "the users that the node was given at its first boot",
    ),
    Carried("/etc/goldnode/*", True, "the site's files; the class document is the image's"),
    Carried(
        "/etc/ssh/sshd_config.d/50-cloud-init.conf",
        True,
        "who may log in, as cloud-init wrote it at the node's first boot",
    ),
    Carried("/root/.ssh/authorized_keys", False, "who may log in"),
    Carried(STAMP, False, "the seed was read at the node's first boot, and is not read again"),
    Carried(
        "/var/lib/cloud",
        False,
        "cloud-init's record of what it did once for the node, and of what data",
    ),
    Carried(
        "/var/lib/goldnode/sanity.json",
        False,
        "counters of the node's hardware, and what was acknowledged of them",
    ),
    Carried(
        "/var/lib/goldnode/gate.json", False, "the scheduler to which the gate reported the drain"
    ),
    Carried("/var/lib/goldnode/return-tests.json", False, "the tests before the node's return"),
    Carried(
        "/var/lib/goldnode/follow",
        False,
        "what the node has seen of its channel, and the step that it has begun",
    ),
    Carried("/var/lib/goldnode/history", False, "log of changes to the node"),
    Carried("/var/lib/goldnode/slurm-health", False, "for what Slurm has drained the node"),
)
# The new image has its own class document.
NEVER = (CLASS,)
# Files of accounts.
ACCOUNTS = ("/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow")
PEOPLE = range(1000, 60000)  # user ids of accounts that the image lacks


def head(line: str) -> Json:
    """Return the first line of the stream. Raises NodeError if it is incomplete or invalid."""
    try:
        image = json.loads(line)
    except ValueError:
        image = None
    if not isinstance(image, dict) or image.get("schema") != SCHEMA:
        raise NodeError(
            f"the input is not an image of schema {SCHEMA}. "
            "Run `goldnode disks update` of the version that this node has."
        )
    wrong = [name for name, kind in _IMAGE.items() if not isinstance(image.get(name), kind)]
    root = image.get("root")
    if (
        not isinstance(root, dict)
        or not isinstance(root.get("size"), int)
        or not re.fullmatch("[0-9a-f]{64}", str(root.get("sha256")))
    ):
        wrong.append("root")
    if (
        not re.fullmatch(r"[0-9A-Za-z.]{1,64}", str(image.get("build_id")))
        or not 1 <= int(image.get("tries") or 0) <= 9
    ):
        wrong.append("build_id or tries")
    secure = image.get("secure_boot")
    if secure is not None and not _signatures(secure):
        wrong.append("secure_boot")
    if wrong:
        raise NodeError(
            f"the input is not a complete image: {', '.join(dict.fromkeys(wrong))} is not what it has to be. "
            "Nothing was written."
        )
    return image


def _signatures(rows: Any) -> bool:
    """Return whether each slot has digest and signature of its unified kernel image."""
    try:
        return all(
            re.fullmatch("[0-9a-f]{64}", rows[slot]["digest"])
            and base64.b64decode(rows[slot]["signature"], validate=True)
            for slot in slots.SLOTS
        )
    except (KeyError, TypeError, ValueError):
        return False


def refusal(
    survey: Optional[Mapping[str, Any]],
    image: Mapping[str, Any],
    own_class: Optional[str],
    size: Optional[int],
) -> Optional[str]:
    """Return why an image may not be written here; None if it may. Pure.

    :param survey: the result of :func:`slots.survey`.
    :param size: bytes of the other slot's partition; None without such a partition.
    """
    if survey is None:
        return (
            "this node has no slots: only a disk of layout `ab` that booted with systemd-boot has. "
            "Install it again from such an image."
        )
    if survey["tried"]:
        return (
            f"the image that runs is still tried ({survey['tried']}). "
            "Wait until it is good, or reboot: it falls back by itself."
        )
    if survey["slots"][survey["running"]]["state"] != slots.GOOD:
        return (
            f"slot {survey['running']}, which runs, has no good entry to fall back to. "
            f"Look at {survey['place']}/loader/entries."
        )
    if survey["slots"][survey["running"]].get("unified") and not image.get("secure_boot"):
        return (
            f"the image that runs has a signed kernel image for Secure Boot, and {image['name']} has none. "
            "Sign it with `goldnode disks sign`, then write it again."
        )
    if own_class != image["class"]:
        return (
            f"the image is of class {image['class']}, and this node of {own_class or 'none'}. "
            "Build the image of its class."
        )
    if size is None:
        return "the disk has no second slot: it is too small for one. Install the node on a larger disk."
    if image["root"]["size"] > size:
        return (
            f"the image's root has {image['root']['size'] >> 20} MiB, and the slot {size >> 20} MiB. "
            "Build it with a smaller root."
        )
    return None


def write(host: Host, stream: IO[bytes], say: Callable[[str], None], by_hand: bool = False) -> Json:
    """Write the image of the stream into the slot that does not run, and make it boot next. Return
    the survey afterwards. Raises NodeError.
    """
    image = head(stream.readline(HEAD).decode("utf-8", "replace"))
    signer = builder.verified(host, image)
    if signer is not None:
        say(f"{image['name']} is signed by the builder's key {signer[:12]}")
    elif by_hand and not (image.get("signed") or image.get("unverified")):
        raise NodeError(
            "nothing says who signed this image. Write it with `goldnode disks update`, or give a reason as "
            "`unverified` in its first line."
        )
    with slots.alone(host):
        state = slots.survey(host)
        slot = slots.SLOTS[1 - slots.SLOTS.index(state["running"])] if state else ""
        device = (state or {"slots": {slot: {"device": None}}})["slots"][slot]["device"]
        own = (load_json(host, CLASS) or {}).get("class")
        why = refusal(state, image, own, _size(host.located(device)) if device else None)
        if why or state is None:
            raise NodeError(str(why))
        where, real = state["place"], os.path.realpath(host.located(device))
        stray = slots.elsewhere(host, where, device)
        if stray:
            raise NodeError(stray)
        bootdisk.refuse(host)
        sequence = 1 + max(int(row["sequence"] or 0) for row in state["slots"].values())
        about = {name: image[name] for name in ("name", "class", "build_id", "kernel")}
        about.update(sequence=sequence, unverified=image.get("unverified"))
        say(f"slot {slot}: {image['name']} is written to {device}")
        slots.proved(host, where, state["running"])
        withdraw(host, where, slot)
        copy(stream, real, image["root"], say)
        say("every byte is as it was built; carrying over the node's own files")
        fit(host, real, slot)
        with mounted(host, real) as root:
            reply = inside(root, image)
            carry(host, root, say)
            sources: List[Tuple[Union[str, bytes], str]] = [
                (reply[0], "vmlinuz"),
                (reply[1], "initrd.img"),
            ]
            if image.get("secure_boot"):
                sources = [(unified(root, image, slot, reply), "unified.efi")]
            linux, initrd = (*slots.copy_boot_files(host, where, slot, sources), "")[:2]
        options = slots.without_root(image["options"], slots.WATCHDOG)
        options = f"{bootdisk.with_word(host, options, where)} {slots.WATCHDOG}"
        slots.put(
            host,
            f"{where}/{slots.FOLDER}/{slot}/slot.json",
            (json.dumps(about, sort_keys=True) + "\n").encode(),
        )
        slots.record(
            host,
            where=where,
            event="written",
            slot=slot,
            about=about,
            reason=f"not verified: {image['unverified']}" if image.get("unverified") else "",
        )
        name = loader.with_counter(f"goldnode-{image['build_id']}-{slot}.conf", image["tries"])
        slots.put_entry(
            host, where, slot, name, slots.entry_text(about, slot, linux, initrd, options)
        )
        slots.clean(host, where, slot)
        return slots.boots_next(host, slot, "is written")


def withdraw(host: Host, where: str, slot: str) -> None:
    """Remove every entry of a slot, then its slot.json. From here on the slot cannot boot."""
    for entry in slots.of_slot(loader.entries(host, where), slot):
        slots.take(host, f"{where}/loader/entries/{entry.file}")
    about = f"{where}/{slots.FOLDER}/{slot}/slot.json"
    for name in (slots.spare(about), about):
        slots.take(host, name)
    slots.clean(host, where, slot)


def _size(path: str) -> Optional[int]:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.lseek(handle, 0, os.SEEK_END)
    finally:
        os.close(handle)


def copy(
    stream: IO[bytes], device: str, root: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Unpack the stream onto a device and read it back. Raises NodeError unless both have the
    digest of the image.
    """
    size, want = int(root["size"]), str(root["sha256"])
    unpack, seen, done, reported = zlib.decompressobj(31), hashlib.sha256(), 0, 0
    # With O_EXCL the kernel refuses to open a mounted block device.
    exclusive = os.O_EXCL if stat.S_ISBLK(os.stat(device).st_mode) else 0
    try:
        handle = os.open(device, os.O_RDWR | exclusive | os.O_CLOEXEC)
    except OSError as problem:
        raise NodeError(
            f"{device} cannot be written: {problem.strerror}. Is it mounted? See `findmnt {device}`."
        ) from None
    try:
        while not unpack.eof:
            part = stream.read(BLOCK)
            if not part:
                raise NodeError(
                    f"the stream ended after {done} of {size} bytes. The slot has no entry; run it again."
                )
            data = unpack.decompress(part)
            done += len(data)
            if done > size:
                raise NodeError(
                    f"the image has more than the {size} bytes that it should have. The slot has no entry."
                )
            seen.update(data)
            _all(handle, data)
            if done * 10 // size > reported:
                reported = done * 10 // size
                say(f"{done >> 20} of {size >> 20} MiB")
        if done != size or seen.hexdigest() != want:
            raise NodeError(
                f"the data received is not the image: {done} bytes of digest {seen.hexdigest()}, "
                f"want {size} of {want}. The slot has no entry."
            )
        os.fsync(handle)
        with contextlib.suppress(OSError):  # not a block device, but a file of a test
            fcntl.ioctl(handle, FLUSH_BUFFERS, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        again, left = hashlib.sha256(), size
        while left:
            data = os.read(handle, min(BLOCK, left))
            if not data:
                break
            left -= len(data)
            again.update(data)
        if again.hexdigest() != want:
            raise NodeError(
                f"{device} does not hold what was written to it. "
                "The slot has no entry; see dmesg: the disk may be failing."
            )
    except zlib.error as problem:
        raise NodeError(
            f"the stream is damaged: {problem}. The slot has no entry; run it again."
        ) from None
    except OSError as problem:
        raise NodeError(
            f"{device} cannot be written: {problem.strerror}. The slot has no entry; see dmesg."
        ) from None
    finally:
        os.close(handle)


def _all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def fit(host: Host, device: str, slot: str) -> None:
    """Check the file system, grow it to the size of the slot, and give it the slot's label and a UUID of its own."""
    done = host.run("e2fsck", "-f", "-p", device, timeout=1800)
    if done.rc not in (0, 1):
        raise NodeError(
            f"the file system of the image is not whole: {done.tail(3)}. The slot has no entry."
        )
    commands = [("resize2fs", device), ("e2label", device, f"root-{slot}")]
    guid = next(
        (part.uuid for part in bootdisk.partitions(host) if device.endswith(f"/{part.name}")), ""
    )
    if guid:  # the image's own UUID is that of every node with it
        commands.append(("tune2fs", "-U", str(identity.filesystem_uuid(uuid.UUID(guid))), device))
    for command in commands:
        done = host.run(*command, timeout=1800)
        if done.rc != 0:
            raise NodeError(
                f"{command[0]} fails on {device}: {done.tail(3)}. The slot has no entry."
            )


@contextlib.contextmanager
def mounted(host: Host, device: str) -> Iterator[str]:
    """Mount a file system for the duration of the block. The mount is in the namespace of this
    process, so that it vanishes if the process is killed.
    """
    here = host.located(MOUNT)
    os.makedirs(here, exist_ok=True)
    done = host.run("mount", "-t", "ext4", device, here)
    if done.rc != 0:
        raise NodeError(f"the slot cannot be mounted: {done.tail(2)}. It has no entry.")
    try:
        yield here
    finally:
        done = host.run("umount", here)
        os.sync()
    if done.rc != 0:
        raise NodeError(f"the slot cannot be unmounted: {done.tail(2)}. It has no entry.")


def inside(root: str, image: Mapping[str, Any]) -> Tuple[str, str]:
    """Return kernel and initramfs of the image's root. Raises NodeError if they are missing, or if
    the root is not of the image's class.
    """
    there = Host(root, live=False)
    own = (load_json(there, CLASS) or {}).get("class")
    if own != image["class"]:
        raise NodeError(
            f"the image says that it is of class {image['class']}, and holds {CLASS} of {own or 'none'}. "
            "The slot has no entry."
        )
    names = (f"/boot/vmlinuz-{image['kernel']}", f"/boot/initrd.img-{image['kernel']}")
    lost = [name for name in names if not there.exists(name)]
    if lost:
        raise NodeError(f"the image has no {' and no '.join(lost)}. The slot has no entry.")
    return there.real(names[0]), there.real(names[1])


def unified(root: str, image: Mapping[str, Any], slot: str, boot_files: Tuple[str, str]) -> bytes:
    """Return the signed unified kernel image of a slot, made of the image's root. Raises NodeError.

    Only the signature is from the sender: the bytes that it is about must be those of this root.
    """
    there, row = Host(root, live=False), image["secure_boot"][slot]
    stub, os_release = there.data(f"/{uki.STUB}"), there.data("/usr/lib/os-release")
    if not stub or os_release is None:
        raise NodeError(
            f"the image has no /{uki.STUB}, or no os-release. Add systemd-boot-efi to its packages. "
            "The slot has no entry."
        )
    with open(boot_files[0], "rb") as kernel, open(boot_files[1], "rb") as initrd:
        parts = uki.UnifiedParts(stub, os_release, image["kernel"], kernel.read(), initrd.read())
    made = uki.image(parts, slots.slot_options(slot, slots.without_root(image["options"])))
    if uki.digest(made) != row["digest"]:
        raise NodeError(
            f"the signature for slot {slot} is of another kernel, initramfs or command line than {image['name']} has. "
            "Sign it again with `goldnode disks sign` of this version. The slot has no entry."
        )
    return uki.signed(made, base64.b64decode(row["signature"]))


# -- files of the node


def carry(host: Host, root: str, say: Callable[[str], None]) -> List[str]:
    """Copy the node's own files from the running root into another. Return the copied paths.

    Reports invalid lines, and lines of SITE that match nothing, through `say`.
    """
    there = Host(root, live=False)
    rows = list(CARRIED)
    for line in (text.strip() for text in (host.text(SITE) or "").splitlines()):
        if line.startswith("/") and ".." not in line.split("/"):
            rows.append(Carried(line, False, BY_SITE))
        elif line and not line.startswith("#"):
            say(f"{SITE}: `{line}` is not carried over: expected a path from / on, without `..`")
    taken: List[str] = []
    for row in rows:
        before = len(taken)
        for path in matches(host, row.pattern):
            if (
                path in NEVER
                or path.rpartition("/")[2].startswith("goldnode-")
                or (row.keep and there.exists(path))
            ):
                continue
            if _take(host, there, path):
                taken.append(path)
        if row.why == BY_SITE and len(taken) == before:
            say(
                f"{SITE}: `{row.pattern}` takes nothing along: there is no such file here. "
                "Correct the line, or take it out."
            )
    if STAMP in taken:  # there will be no first boot to remove it
        there.remove(PRESET)
    return taken + users(host, there, say)


def matches(host: Host, pattern: str) -> List[str]:
    """Return the existing paths that match a pattern with `*` and `?` in any component."""
    paths = ["/"]
    for part in filter(None, pattern.split("/")):
        paths = [path for folder in paths for path in host.glob(folder, part)]
    return paths


def _take(host: Host, there: Host, path: str) -> bool:
    source, target = host.located(path), there.located(path)
    try:
        kind = os.lstat(source).st_mode
    except OSError:
        return False
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind)):
        return False
    _folders(host, there, os.path.dirname(path))
    if stat.S_ISDIR(kind):
        for name in sorted(os.listdir(source)):
            _take(host, there, f"{path}/{name}")
        return True
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    shutil.copy2(source, target, follow_symlinks=False)
    own = os.lstat(source)
    os.chown(target, own.st_uid, own.st_gid, follow_symlinks=False)
    return True


def _folders(host: Host, there: Host, path: str) -> None:
    """Create a directory and its parents, with mode and owner of their originals."""
    if path in ("", "/") or os.path.isdir(there.located(path)):
        return
    _folders(host, there, os.path.dirname(path))
    os.mkdir(there.located(path))
    own = os.stat(host.located(path))
    os.chmod(there.located(path), stat.S_IMODE(own.st_mode))
    os.chown(there.located(path), own.st_uid, own.st_gid)


def users(host: Host, there: Host, say: Callable[[str], None]) -> List[str]:
    """Copy user accounts (ids from 1000 on) that the image lacks, and their authorized_keys. Return the
    copied paths.

    A home that root cannot read (NFS with root_squash) is reported and does not stop the update.
    """
    rows = [line.split(":") for line in (host.text("/etc/passwd") or "").splitlines()]
    people = {
        row[0]: row for row in rows if len(row) == 7 and row[2].isdigit() and int(row[2]) in PEOPLE
    }
    have = {
        line.split(":")[0]: line.split(":")
        for line in (there.text("/etc/passwd") or "").splitlines()
        if line.count(":") == 6
    }
    # Skip an account whose UID has another name in the image: it would own that account's files.
    numbers = {row[2] for row in have.values()}
    fresh = [name for name, row in people.items() if name not in have and row[2] not in numbers]
    taken = []
    for file in ACCOUNTS if fresh else ():
        old = there.text(file)
        if old is None:
            continue
        known = {line.split(":")[0] for line in old.splitlines()}
        add = [
            line
            for line in (host.text(file) or "").splitlines()
            if line.split(":")[0] in fresh and line.split(":")[0] not in known
        ]
        if add:
            there.write_lines(file, [*(line + "\n" for line in (*old.splitlines(), *add))])
            taken.append(file)
    taken += _member_of(host, there, fresh)
    for name, row in people.items():
        keys = f"{row[5]}/.ssh/authorized_keys"
        same = (
            name in have and have[name][2] == row[2]
        )  # by user id: else the keys are of another person
        if not (name in fresh or same) or not row[5].startswith("/"):
            continue
        try:
            readable = host.data(keys) is not None
        except OSError as problem:
            say(
                f"{keys} of {name} is not carried over: {problem.strerror}. "
                "A home on a file server needs no copy; put any other there after the boot."
            )
            continue
        if readable and _take(host, there, keys):
            taken.append(keys)
    return taken


def _member_of(host: Host, there: Host, fresh: List[str]) -> List[str]:
    """Add new accounts to the groups of the image that they have on the node (sudo, adm). Return
    the changed files.
    """
    wanted: Dict[str, List[str]] = {}
    for line in (host.text("/etc/group") or "").splitlines():
        parts = line.split(":")
        if len(parts) == 4:
            wanted[parts[0]] = [name for name in parts[3].split(",") if name in fresh]
    lines, changed = [], False
    for line in (there.text("/etc/group") or "").splitlines():
        parts = line.split(":")
        add = [
            name
            for name in wanted.get(parts[0], ())
            if len(parts) == 4 and name not in parts[3].split(",")
        ]
        if add:
            line = ":".join([*parts[:3], ",".join([*filter(None, parts[3].split(",")), *add])])
            changed = True
        lines.append(line + "\n")
    if not changed:
        return []
    there.write_lines("/etc/group", lines)
    return ["/etc/group"]


def apart() -> None:
    """Restart this program in a mount namespace of its own.

    First list the candidate mount points of the ESP: an automount must happen before the namespace is
    separated.
    """
    if os.environ.get(OWN_NAMESPACE):
        return
    for name in boot.PLACES:
        with contextlib.suppress(OSError):
            os.listdir(name)
    program = sys.argv[0] if os.path.isfile(sys.argv[0]) else PROGRAM
    words = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        sys.executable,
        "-I",
        "-S",
        program,
        *sys.argv[1:],
    ]
    try:
        os.execvpe("unshare", words, {**os.environ, OWN_NAMESPACE: "1"})  # noqa: S606 - the program itself
    except OSError as problem:
        if problem.errno != errno.ENOENT:
            raise
        raise NodeError("unshare is not on this node. Install util-linux.") from None
