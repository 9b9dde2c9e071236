"""Disks with their health, mounts with their space, RAID; and the speed of the paths that the class names.

Every query of a disk or a file system runs in a child process of its own: a dead disk or a lost NFS server
hangs its reader. Nothing is written, not even an access time.
"""

from __future__ import annotations

import os
import stat
import time
from functools import partial

from ..ground.host import Json, mount_tables
from . import reader_process
from .context import Context
from .machine import chosen
from .network import pci_address
from .values import Files, is_fault, not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

BLOCK = "/sys/block"
VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "rbd")
# File systems with no device file that hold data all the same; also what begins with fuse.
REMOTE = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "ceph",
    "beegfs",
    "gpfs",
    "wekafs",
    "glusterfs",
    "virtiofs",
    "9p",
    "zfs",
    "pvfs2",
    "panfs",
)
MOST_MOUNTS, MOST_DISKS = 64, 128
MOVING = ("recovery", "resync", "reshape", "check")  # what /proc/mdstat shows as under way
# NCCL and data loaders exchange data there. Its size is in the section memory.
SHM = "/dev/shm"  # noqa: S108 - the name of a mount
# NVMe: the Get Log Page command for SMART / Health Information (NVM Express Base Specification, "Get Log Page"; linux/nvme_ioctl.h).
ADMIN, GET_LOG_PAGE, SMART, PAGE = 0xC0484E41, 0x02, 0x02, 512
# How much is read of a path that the class names.
SECONDS, BYTES, STEP, SMALL, READS, ENTRIES = 1.0, 64 << 20, 1 << 20, 4096, 9, 256


def slow_reads(context: Context) -> List[Tuple[str, Callable[[], Any]]]:
    """Return the reads that may hang: those of disks and of file systems."""
    files = context.files
    if not context.host.live:
        return []
    mounted = context.mounts = mounts(files, named(context))
    # Local devices come first: a network file system is the likeliest to hang.
    jobs: List[Tuple[str, Callable[[], Any]]] = [
        (f"smart {name}", partial(smart, files, name))
        for name in sorted(set(_over(files).values()))
    ]
    ordered = sorted(mounted.keys() - {SHM}, key=lambda name: (remote(mounted[name]["type"]), name))
    return jobs + [(f"space {name}", partial(space, files, name)) for name in ordered]


def _over(files: Files) -> Dict[str, str]:
    """Return the NVMe controller of each namespace."""
    return {
        name: controller(files, name)
        for name in files.names(BLOCK)
        if name.startswith("nvme") and not hidden(name)
    }


def read(context: Context) -> Json:
    """Read the section storage."""
    files = context.files
    if not context.host.live:
        return {"storage": not_exposed("an image does not run")}
    asked = context.asked or reader_process.Asked(slow_reads(context))
    over, mounted = _over(files), context.mounts
    measured = {name: row for name, row in mounted.items() if name != SHM}
    disks, arrays = devices(files), raid(files)
    answers = asked.finish()
    for name in disks:
        smart_of = f"smart {over.get(name)}"
        if smart_of in answers:  # not a disk that came meanwhile
            disks[name]["smart"] = answers[smart_of]
    for name, row in measured.items():
        answer = answers[f"space {name}"]
        if is_fault(answer):
            answer = dict.fromkeys(("size_mib", "free_mib", "inodes_free_percent"), answer)
        row.update(answer)
    section: Json = {"devices": disks, "mounts": mounted, "raid": arrays}
    paths = named(context)
    if paths and not context.passive:
        section["paths"] = reader_process.ask(
            [(name, partial(speed, files, name)) for name in paths],
            2 * len(paths) + 2.0,
            SECONDS + 1,
        )
    return {"storage": section}


def named(context: Context) -> List[str]:
    """Return the paths for which the class declares a speed."""
    baseline = (context.document.get("health") or {}).get("baseline") or {}
    paths = (baseline.get("storage") or {}).get("paths")
    if not isinstance(paths, dict):
        return []
    return [name for name in sorted(paths) if isinstance(name, str) and name.startswith("/")]


# -- disks


def devices(files: Files) -> Dict[str, Json]:
    """Return the disks that are hardware (or virtual hardware), from sysfs."""
    disks: Dict[str, Json] = {}
    for name in files.names(BLOCK):
        if name.startswith(VIRTUAL_DISKS) or hidden(name):
            continue
        folder = f"{BLOCK}/{name}"
        sectors = files.number(
            f"{folder}/size"
        )  # of 512 bytes, independent of the disk's sector size
        if sectors == 0:  # a drive without a medium
            continue
        disks[name] = {
            "model": _first(files, f"{folder}/device/model", f"{folder}/device/device/model"),
            "firmware": _first(files, f"{folder}/device/firmware_rev", f"{folder}/device/rev"),
            "size_bytes": sectors * 512 if isinstance(sectors, int) else sectors,
            "rotational": flag(files.text(f"{folder}/queue/rotational")),
            "scheduler": chosen(files.text(f"{folder}/queue/scheduler")),
            "address": pci_address(files, folder),
            "state": files.text(f"{folder}/device/state"),
            "ro": flag(files.text(f"{folder}/ro")),
        }
        if len(disks) >= MOST_DISKS:
            break
    return disks


def hidden(name: str) -> bool:
    """Return whether it is one path of a disk with several, as nvme0c1n1 is: the disk itself is there too."""
    return name.startswith("nvme") and "c" in name[4:].partition("n")[0]


def controller(files: Files, name: str) -> str:
    """Return the controller of an NVMe disk, which may have another number than the disk.

    It is the directory of the disk, or the first of several controllers that reach it.
    """
    above = (files.target(f"{BLOCK}/{name}") or "").split("/")[:-1]
    for part in [*reversed(above), *files.names(f"{BLOCK}/{name}/device")]:
        if part.startswith("nvme") and part[4:].isdigit():
            return part
    return "nvme" + name[4:].partition("n")[0]


def _first(files: Files, *names: str) -> Any:
    answer: Any = None
    for name in names:
        text = files.text(name)
        if isinstance(text, str):
            return text
        answer = answer or text
    return answer


def flag(value: Any) -> Any:
    """Convert 0 and 1 to false and true."""
    if is_fault(value):
        return value
    return value == "1" if value in ("0", "1") else unread(f"neither 0 nor 1: {str(value)[:20]!r}")


def smart(files: Files, name: str) -> Json:
    """Return the health log of an NVMe controller. In a directory that plays a node, /dev/nvmeN is a file
    with the log page.
    """
    path = f"{files.root}/dev/{name}"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as problem:
        fault = not_exposed if problem.errno in (2, 6, 19) else unread  # ENOENT, ENXIO, ENODEV
        return fault(problem.strerror or "", problem.errno)
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISCHR(kind):
            page = _log_page(handle)
        elif files.root and stat.S_ISREG(kind):
            page = os.read(handle, PAGE)
        else:
            return unread(f"/dev/{name} is no character device")
    finally:
        os.close(handle)
    return decode(page)


def _log_page(handle: int) -> bytes:
    import array
    import fcntl
    import struct

    page = array.array("B", bytes(PAGE))
    # struct nvme_admin_cmd, 72 bytes. No time limit of its own: the kernel resets a controller whose command has run out of time, and a
    # check must not be what does that.
    number = (PAGE // 4 - 1) << 16 | SMART
    command = struct.pack(
        "<BBHIIIQQIIIIIIIIII",
        GET_LOG_PAGE,
        0,
        0,
        0xFFFFFFFF,
        0,
        0,
        0,
        page.buffer_info()[0],
        0,
        PAGE,
        number,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    )
    status = fcntl.ioctl(handle, ADMIN, bytearray(command), True)
    if status:
        raise ValueError(f"the controller refuses its health log: NVMe status {status:#x}")
    return page.tobytes()


def decode(page: bytes) -> Json:
    """Return the fields of the SMART / Health Information log page that show whether a disk fails."""
    if len(page) < PAGE:
        return unread(f"the health log has {len(page)} bytes, not {PAGE}")
    kelvin = int.from_bytes(page[1:3], "little")
    return {
        "critical_warning": page[0],
        "temperature_c": kelvin - 273 if kelvin else not_exposed("the disk reports no temperature"),
        "available_spare": page[3],
        "spare_threshold": page[4],
        "percentage_used": page[5],
        "media_errors": int.from_bytes(page[160:176], "little"),
        "power_on_hours": int.from_bytes(page[128:144], "little"),
    }


# -- mounts


def remote(kind: str) -> bool:
    """Return whether a file system is not on a disk of this machine."""
    return kind in REMOTE or kind.startswith("fuse.")


def mounts(files: Files, wanted: List[str]) -> Dict[str, Json]:
    """Return mounts that hold data: each device or export once, at its shortest path; the root; /dev/shm; and
    the mounts of the wanted paths.
    """
    for table in (*mount_tables("mounts"), "/proc/mounts"):
        text = files.data(table, 1 << 20)
        if isinstance(text, bytes):
            break
    rows: Dict[str, List[str]] = {}
    for line in text.decode("utf-8", "replace").splitlines() if isinstance(text, bytes) else ():
        fields = line.split(" ")
        if len(fields) > 3:
            path = unescape(fields[1])
            # The last mount on a path is what is seen there.
            rows[path] = [unescape(fields[0]), fields[2], fields[3]]
    needed = {"/", SHM}
    for name in wanted:
        under = [path for path in rows if name == path or name.startswith(path.rstrip("/") + "/")]
        needed.add(max(under, key=len, default="/"))
    first: Dict[str, str] = {}
    for path in sorted(rows, key=len):
        source, kind, _ = rows[path]
        if source.startswith("/dev/") or remote(kind):
            first.setdefault(source, path)
    paths = {*first.values(), *(path for path in needed if path in rows)}
    mounted: Dict[str, Json] = {}
    for path in sorted(paths, key=lambda name: (name not in needed, name))[:MOST_MOUNTS]:
        source, kind, options = rows[path]
        mounted[path] = {
            "device": source,
            "type": kind,
            "options": options[:400],
            "readonly": "ro" in options.split(","),
        }
    return dict(sorted(mounted.items()))


def unescape(text: str) -> str:
    r"""Decode a field of /proc/mounts, in which space, tab, newline and backslash are \040, \011, \012 and
    \134.
    """
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def space(files: Files, path: str) -> Json:
    """Return the size, and the space that is free for unprivileged users."""
    status = os.statvfs(files.root + path)
    inodes: Any = not_exposed("it has no fixed number of inodes")
    if status.f_files:
        inodes = round(100 * status.f_favail / status.f_files, 1)
    return {
        "size_mib": status.f_blocks * status.f_frsize >> 20,
        "free_mib": status.f_bavail * status.f_frsize >> 20,
        "inodes_free_percent": inodes,
    }


def raid(files: Files) -> Any:
    """Return the arrays of /proc/mdstat: level, state (active, degraded, recovering, inactive), expected and
    active devices.
    """
    text = files.text("/proc/mdstat")
    if not isinstance(text, str):
        return {} if text.get("fault") == "not_exposed" else text
    arrays: Dict[str, Json] = {}
    row: Optional[Json] = None
    for line in text.splitlines():
        words = line.split()
        if len(words) > 2 and words[1] == ":" and words[0].startswith("md"):
            members = [word for word in words if "[" in word and not word.startswith("[")]
            levels = ("raid", "linear", "multipath", "faulty")
            level = next((word for word in words[2:] if word.startswith(levels)), None)
            gone = [word.partition("[")[0] for word in members if "(F)" in word]
            use = [word for word in members if "(F)" not in word and "(S)" not in word]
            row = {
                "level": level,
                "state": "active" if words[2] == "active" else "inactive",
                "devices": len(members),
                "active": len(use),
            }
            if gone:
                row["failed"] = gone
            arrays[words[0]] = row
        elif row is not None and line[:1] in (" ", "\t"):
            for word in words:
                have, slash, use_text = word.strip("[]").partition("/")
                if word.startswith("[") and slash and have.isdigit() and use_text.isdigit():
                    row["devices"], row["active"] = int(have), int(use_text)
                # [U_]: the slots in their order, and which of them have no disk.
                elif word.startswith("[") and have and not have.strip("U_") and "_" in have:
                    row["missing"] = [slot for slot, state in enumerate(have) if state == "_"]
            if row["state"] == "active" and row["active"] < row["devices"]:
                row["state"] = "degraded"
            # A check and a resync read a whole array; a recovery and a reshape have not made it whole yet.
            moving = next((word for word in words if word in MOVING), None)
            if moving in ("recovery", "reshape"):
                row["state"] = "recovering"
        elif not line.strip():
            row = None
    return arrays


# -- how fast


def speed(files: Files, path: str) -> Json:
    """Return the read speed of a path: the median of some small reads (ms) and one long one (MB/s), past the
    page cache.

    Reads at most 64 MiB and one second, from the largest file among the first hundreds below the path, sparse
    files excluded. Without direct reads there is no result.
    """
    here = files.real(path)
    if here is None:
        return _unmeasured(not_exposed("no such path"))
    file = largest(files.root + here)
    if file is None:
        return _unmeasured(not_exposed("no file to read there"))
    name, size = file
    quiet = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_DIRECT
    try:
        handle = os.open(name, quiet | os.O_NOATIME)
    except PermissionError:  # not the owner, and not root to this file system
        return _unmeasured(unread("reading it would write a time of access"))
    except OSError as problem:
        fault = not_exposed if problem.errno == 22 else unread  # EINVAL: no O_DIRECT here
        return _unmeasured(fault(f"past the page cache: {problem.strerror}", problem.errno))
    try:
        return measure(handle, size)
    except OSError as problem:
        return _unmeasured(unread(problem.strerror or "", problem.errno))
    finally:
        os.close(handle)


def _unmeasured(fault: Json) -> Json:
    return {"latency_ms": fault, "read_mb_s": fault}


def measure(handle: int, size: int) -> Json:
    """Measure latency and throughput of an open file of `size` bytes."""
    import mmap
    import random

    buffer = mmap.mmap(-1, STEP)  # aligned, as O_DIRECT wants
    small, end = memoryview(buffer)[:SMALL], time.monotonic() + SECONDS
    times = []
    for _ in range(READS):
        at = random.randrange(max(size // SMALL, 1)) * SMALL  # noqa: S311 - a place in a file
        before = time.monotonic()
        os.preadv(handle, [small], at)
        times.append(time.monotonic() - before)
        if time.monotonic() > end - SECONDS / 2:
            break
    answer: Json = {"latency_ms": round(sorted(times)[len(times) // 2] * 1e3, 3)}
    if size < 4 * STEP:
        answer["read_mb_s"] = not_exposed(f"no file of {4 * STEP >> 20} MiB or more to read there")
        return answer
    offset = random.randrange(max((size - BYTES) // STEP, 1)) * STEP  # noqa: S311
    done, before = 0, time.monotonic()
    while done < BYTES and time.monotonic() < end:
        got = os.preadv(handle, [buffer], offset + done)
        done += got
        if got < STEP:
            break
    spent = time.monotonic() - before
    answer["read_mb_s"] = unread("nothing could be read")
    if done and spent > 0:
        answer["read_mb_s"] = round(done / 1e6 / spent, 1)
    return answer


def largest(path: str) -> Optional[Tuple[str, int]]:
    """Return (name, size) of the path itself, or of the largest regular file without holes among the first
    entries of its directories.
    """
    best: Optional[Tuple[str, int]] = None
    todo, seen = [path], 0
    while todo and seen < ENTRIES:
        name = todo.pop(0)
        entry = os.lstat(name)
        seen += 1
        if stat.S_ISREG(entry.st_mode):
            whole = entry.st_blocks * 512 >= entry.st_size * 0.9
            if entry.st_size >= SMALL and whole and (best is None or entry.st_size > best[1]):
                best = (name, entry.st_size)
            if best and best[1] >= BYTES:
                break
        elif stat.S_ISDIR(entry.st_mode):
            try:
                with os.scandir(name) as inside:
                    for _, item in zip(range(ENTRIES), inside):
                        todo.append(item.path)
            except OSError:
                continue
    return best
