"""The kernel's log since boot: Xid, SXid, bus errors and similar (:mod:`.logs`), from the first source that
has it.

The ring (/dev/kmsg) comes first: it needs no program, and its records have a number. Records that newer ones
have overwritten are taken from this node's last capture of the same boot if it reaches the remaining ones,
else from the journal. Otherwise `truncated` reports the gap, and an incomplete log is never read as a clean
one.
"""

from __future__ import annotations

import errno
import json
import os

from ..ground.host import Json
from . import logs
from .context import CAPTURE, Context
from .values import is_fault, not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

KMSG = "/dev/kmsg"
RECORD = 16384  # bytes of one record: the kernel's own limit is half of it
MOST = 64 << 20  # bytes of a ring, of a journal, of a file that are read; of a file the last ones
TIME = 4.0  # seconds for the journal
FILES = ("/var/log/kern.log", "/var/log/syslog", "/var/log/messages", "/var/log/dmesg")
FIELDS = "MESSAGE,SYSLOG_FACILITY,_TRANSPORT,_SOURCE_MONOTONIC_TIMESTAMP"


def read(context: Context) -> Json:
    """Read section `events` of the capture (docs/reference/capture.md)."""
    files = context.files
    text = files.text("/proc/sys/kernel/random/boot_id")
    boot_id = text if isinstance(text, str) and text else None
    section: Json = {
        "sources": [],
        "truncated": False,
        "boot_id": boot_id,
        "last_seq": None,
        "rows": [],
        "error": None,
    }
    if context.container:
        section["error"] = not_exposed("a container shows the kernel log of its host")
        return {"events": section}
    parser = logs.LogParser(boot_id)
    ring = ring_of(files.root + KMSG)
    if isinstance(ring, dict):
        if not (context.host.live and journal(context, parser, section, None)) and not files_of(
            context, parser, section
        ):
            section["error"] = ring
    else:
        records, first, lost = ring
        stored: List[Json] = []
        after = -1
        if lost:
            stored, after = last_capture(context, boot_id, first)
            if after >= 0:
                section["sources"].append("capture")
            elif not (context.host.live and journal(context, parser, section, usec(records))):
                section["truncated"] = True
        section["sources"].append("kmsg")
        feed(parser, records, after)
        merge(parser, stored)
    rows = parser.result()
    section.update(rows=rows, last_seq=parser.last_seq)
    if parser.dropped:
        section["dropped"] = parser.dropped
    return {"events": section}


def feed(parser: logs.LogParser, records: bytes, after: int = -1) -> None:
    """Feed records, one per line, to the parser.

    Skip those that cannot hold an event, and those up to number `after`.
    """
    for line in logs.candidates(records):
        if after >= 0:
            number = line.split(b",", 2)[1:2]
            if number and number[0].isdigit() and int(number[0]) <= after:
                continue
        parser.line(line)
    last = records.rstrip(b"\n").rpartition(b"\n")[2].split(b",", 2)
    if len(last) == 3 and last[1].isdigit():
        parser.last_seq = max(int(last[1]), parser.last_seq or 0)


def ring_of(path: str) -> Any:
    """Return (records, number of the first, whether some are lost), or the fault. A regular file in its place
    is read as lines.

    Properties below a record are skipped; a record is one line.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        absent = problem.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO)
        fault = not_exposed if absent else unread
        return fault(f"/dev/kmsg: {os.strerror(problem.errno or 0)}", problem.errno)
    try:
        if os.fstat(handle).st_mode & 0o170000 != 0o020000:
            data = b""
            while len(data) < MOST:
                more = os.read(handle, 1 << 20)
                if not more:
                    break
                data += more
            lines = [
                line
                for line in data.split(b"\n")
                if line[:1] not in (b" ", b"") or b"NVRM:" in line
            ]
            first = number_of(lines[0]) if lines else 0
            return b"\n".join(lines), first, first > 0
        return records_of(handle)
    except OSError as problem:
        return unread(f"/dev/kmsg: {os.strerror(problem.errno or 0)}", problem.errno)
    finally:
        os.close(handle)


def records_of(handle: int) -> Tuple[bytes, int, bool]:
    """Return all records that the ring holds now, one per line.

    EAGAIN marks the end; EPIPE means that records were lost meanwhile.
    """
    records: List[bytes] = []
    size = 0
    lost = False
    while size < MOST:
        try:
            record = os.read(handle, RECORD)
        except BlockingIOError:
            break
        except BrokenPipeError:
            lost = True
            continue
        if not record:
            break
        records.append(record.partition(b"\n")[0])
        size += len(record)
    else:
        lost = True
    first = number_of(records[0]) if records else 0
    return b"\n".join(records), first, lost or first > 0


def number_of(record: bytes) -> int:
    """Return the sequence number of a record; 0 if it has none (a file of plain lines)."""
    parts = record[:64].split(b",", 2)
    return int(parts[1]) if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() else 0


def usec(records: bytes) -> Optional[int]:
    """Return the time of the first record, in microseconds since boot."""
    parts = records[:64].split(b",", 3)
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else None


def last_capture(context: Context, boot_id: Optional[str], first: int) -> Tuple[List[Json], int]:
    """Return the events of this node's last capture and the last record number they cover.

    The number is -1 if the capture is of another boot, incomplete, or leaves a gap before record `first`.
    """
    data = context.files.data(CAPTURE, 32 << 20)
    try:
        events = json.loads(data)["events"] if isinstance(data, bytes) else None
        if (
            not isinstance(events, dict)
            or is_fault(events)
            or not boot_id
            or events["boot_id"] != boot_id
            or events["truncated"]
        ):
            return [], -1
        rows, last = events["rows"], events["last_seq"]
        if (
            events["error"] is not None
            or type(last) is not int
            or last < first - 1
            or not isinstance(rows, list)
        ):
            return [], -1
        return [
            dict(row)
            for row in rows
            if isinstance(row["parameters"], dict) and type(row["count"]) is int
        ], last
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], -1


def merge(parser: logs.LogParser, stored: List[Json]) -> None:
    """Put the rows of an earlier capture before the new ones, and add up their counts."""
    rows: Dict[Tuple[Any, ...], Json] = {}
    for row in stored:
        rows[key_of(row)] = {**row, "_strong": row["count"]}
    for row in parser.rows.values():
        have = rows.get(key_of(row))
        if have is None:
            rows[key_of(row)] = row
            continue
        have["count"] += row["count"]
        have["last_seq"], have["last_uptime_s"] = row["last_seq"], row["last_uptime_s"]
        if row["fatal"] is not None:
            have["fatal"] = bool(have.get("fatal")) or row["fatal"]
        for name, value in row["parameters"].items():
            if name == "alone":
                have["parameters"]["alone"] = have["parameters"].get("alone", 0) + value
            elif name in ("pids", "names", "caused_by") and isinstance(
                have["parameters"].get(name), list
            ):
                have["parameters"][name] = list(dict.fromkeys([*have["parameters"][name], *value]))[
                    : logs.NAMES
                ]
            else:
                parser.keep(have["parameters"], name, value)
    parser.rows = rows


def key_of(row: Json) -> Tuple[Any, ...]:
    """Return the identity of a row within a capture."""
    parameters = row["parameters"]
    more = [str(parameters.get(name)) for name in logs.APART]
    return (row.get("kind"), row.get("code"), row.get("address"), row.get("mig"), *more)


def journal(context: Context, parser: logs.LogParser, section: Json, until: Optional[int]) -> bool:
    """Read this boot's kernel log from the journal, up to the time `until` (microseconds since boot). Return
    whether it was complete.

    journalctl gets TIME seconds and MOST bytes and is killed at either limit. It reads the journal of the
    root directory.
    """
    import subprocess  # rarely needed
    import time

    root = context.host.root
    argv = ["journalctl", "-k", "-b", "--no-pager", "-q", "-o", "json", f"--output-fields={FIELDS}"]
    if root != "/":
        argv += ["--root", root]
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError:
        return False
    import select

    out = child.stdout
    if out is None:
        return False
    deadline = time.monotonic() + TIME
    pieces: List[bytes] = []
    size, ended = 0, False
    try:
        while size < MOST:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                break
            piece = os.read(out.fileno(), 1 << 18)
            if not piece:
                ended = True
                break
            pieces.append(piece)
            size += len(piece)
        ended = ended and child.wait(1) == 0
    except subprocess.TimeoutExpired:
        ended = False
    finally:
        child.kill()
        out.close()
        child.wait()
    data = b"".join(pieces)
    first = monotonic(data[: data.find(b"\n")])
    last = monotonic(data.rstrip(b"\n").rpartition(b"\n")[2])
    if first is None:
        return False
    section["sources"].append("journal")
    for line in logs.candidates(data):
        at = monotonic(line)
        if until is None or (at is not None and at < until):
            parser.line(line)
    # journald reads the ring from its first record on, which is of the first moments.
    reached = until is not None and last is not None and last >= until
    whole = first <= 1_000_000 and (ended or reached)
    if until is None and not whole:
        section["truncated"] = True
        return True
    return whole


def monotonic(line: bytes) -> Optional[int]:
    """Return the time of a journal entry (JSON) in microseconds since boot."""
    _, mark, rest = line.partition(b'"_SOURCE_MONOTONIC_TIMESTAMP":"')
    digits = rest.partition(b'"')[0]
    return int(digits) if mark and digits.isdigit() else None


def files_of(context: Context, parser: logs.LogParser, section: Json) -> bool:
    """Read the first existing log file: its last boot, or all of it if it does not show where a boot begins.
    Return whether there was one.
    """
    for name in FILES:
        data = tail(context.files.root + name)
        if data is None:
            continue
        section["sources"].append(name)
        if len(data) >= MOST or (context.host.live and logs.BOOT not in data):
            section["truncated"] = True
        for line in logs.candidates(data):
            parser.line(line)
        return True
    return False


def tail(path: str) -> Optional[bytes]:
    """Return the last MOST bytes of a regular file without a torn first line; None if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if status.st_mode & 0o170000 != 0o100000 or not status.st_size:
            return None
        offset = max(0, status.st_size - MOST)
        data = os.pread(handle, MOST, offset)
        return data.partition(b"\n")[2] if offset else data
    except OSError:
        return None
    finally:
        os.close(handle)


def parsed(text: str) -> Json:
    """Return section `events` of a given text (an attachment of a ticket), for the last boot in it."""
    parser = logs.LogParser()
    data = text.encode("utf-8", "replace")
    for line in logs.candidates(data):
        parser.line(line)
    section: Json = {
        "sources": ["text"],
        "truncated": False,
        "boot_id": None,
        "last_seq": parser.last_seq,
        "rows": parser.result(),
        "error": None,
    }
    if parser.dropped:
        section["dropped"] = parser.dropped
    return section
