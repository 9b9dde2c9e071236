"""Entries of the journal for changes of the node's state, with a MESSAGE_ID and fields.

They are sent in journald's native protocol (systemd, "Native Journal Protocol"): one datagram for
each entry. Without journald nothing is sent, and nothing fails: the state itself is in the files of
the gate.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from ..ground.host import Host

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "goldnode"
WAIT = 0.5  # seconds for a journal that does not read: the check must not wait for it
ERROR, WARNING, NOTICE = 3, 4, 5  # priorities of syslog


class JournalEvent(NamedTuple):
    """One kind of entry. The id never changes: rules of sites match it."""

    id: str  # MESSAGE_ID
    when: str
    fields: Sequence[str]  # beside COMMON; each has the prefix GOLDNODE_


COMMON = ("EVENT", "CLASS", "SIMULATED")
EVENTS: Mapping[str, JournalEvent] = {
    "node.verdict": JournalEvent(
        "2c552acf4ce943a3a322a7c286965c61",
        "a check finds another status than the check before it, or is the first one of a boot",
        ("STATUS", "STATUS_BEFORE", "FINDINGS"),
    ),
    "gate.opened": JournalEvent(
        "94906924bf774485bca4afdc911c040e",
        "the gate lets work start, and did not before",
        ("MODE",),
    ),
    "gate.closed": JournalEvent(
        "5cbc1f0475b642b3bcb2f20ff9ca3be8",
        "the gate keeps work from starting, and did not before, or has other reasons",
        ("MODE", "REASON"),
    ),
    "node.drained": JournalEvent(
        "0badc0ff7cd74d45961d9f6d129e3c9f",
        "the gate has drained the node, or has found it drained by another party",
        ("BY", "OURS", "REASON"),
    ),
    "node.resumed": JournalEvent(
        "f9a6f6d50c8c46bb8abf792f98ad18ca",
        "the gate no longer wants the node drained; OURS is 0 where another party's drain stays",
        ("BY", "OURS"),
    ),
    "tests.opened": JournalEvent(
        "ab586489524743d4b19f1c022438458d",
        "the gate wants tests before the node returns, for this cause",
        ("CAUSE", "JOBS", "REASON"),
    ),
    "tests.closed": JournalEvent(
        "4dff24c05d5c45abb56741a9c54754c2",
        "they have passed, or a person (BY) has ended them",
        ("CAUSE", "BY", "REASON"),
    ),
    "gate.failed": JournalEvent(
        "5bed6f9c721f4f4396c552db083c3a81",
        "a drain or a resume has failed; the next check tries it again",
        ("REASON",),
    ),
}


def send(host: Host, event: str, message: str, priority: int, fields: Mapping[str, object]) -> bool:
    """Write one entry. Return whether journald has it; never raises for a journal that cannot be
    written.

    :param event: a key of EVENTS.
    :param fields: values by name, without the prefix.
    """
    if not host.live:  # an image has no journal of its own
        return False
    entry = {
        "MESSAGE": message,
        "MESSAGE_ID": EVENTS[event].id,
        "PRIORITY": str(priority),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "GOLDNODE_EVENT": event,
    }
    for name, value in fields.items():
        entry[f"GOLDNODE_{name}"] = str(int(value)) if isinstance(value, bool) else str(value)
    place = host.located(SOCKET)
    if not os.path.exists(place):
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(WAIT)
        out.connect(place)
        return out.send(encoded(entry)) > 0
    return False


def encoded(fields: Mapping[str, str]) -> bytes:
    """Return the datagram of an entry. A value of several lines has its length before it, 64 bits,
    little-endian.
    """
    rows = []
    for name, text in fields.items():
        value = text.encode("utf-8", "replace")
        if b"\n" in value:
            rows.append(name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n")
        else:
            rows.append(name.encode() + b"=" + value + b"\n")
    return b"".join(rows)
