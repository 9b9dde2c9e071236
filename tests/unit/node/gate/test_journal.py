"""Entries of the journal for transitions of verdict and gate, received by a real socket, and read by a parser of its own."""

from __future__ import annotations

import json
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.gate.test_gate import BAD, GOOD, OTHER, SITE, Node, finding, verdict

from goldnode.node.gate import gate, journal
from goldnode.node.ground.host import Host
from goldnode.node.program import return_command
from goldnode.node.state.finding import MISMATCH

PAGE = Path(__file__).parents[4] / "docs/how-to/events.md"


def decoded(data: bytes) -> dict[str, str]:
    """Read a datagram as the protocol describes it, field by field."""
    fields = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, data = rest[8 : 8 + size], rest[8 + size :]
            assert data[:1] == b"\n"
            data = data[1:]
        else:
            data = rest
        fields[name.decode()] = value.decode()
    return fields


class Journald:
    """A socket where journald's would be."""

    def __init__(self, root: str) -> None:
        place = Path(root) / journal.SOCKET.lstrip("/")
        place.parent.mkdir(parents=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(place))
        self.socket.setblocking(False)

    def entries(self) -> list[dict[str, str]]:
        """What has arrived since the last call."""
        found = []
        while True:
            try:
                found.append(decoded(self.socket.recv(1 << 16)))
            except BlockingIOError:
                return found

    def names(self) -> list[str]:
        return [entry["GOLDNODE_EVENT"] for entry in self.entries()]


@pytest.fixture
def root() -> Iterator[Path]:
    # The path of a socket has at most 107 bytes, and that of tmp_path may be longer.
    with tempfile.TemporaryDirectory(prefix="gn-") as name:
        yield Path(name) / "n"


@pytest.fixture
def node(root: Path) -> Node:
    found = Node(root)
    found.script("drain-node", "exit 0")
    found.script("resume-node", "exit 0")
    return found


@pytest.fixture
def journald(node: Node) -> Iterator[Journald]:
    found = Journald(node.root)
    yield found
    found.socket.close()


def save(node: Host, status: str, code: int, **patch: Any) -> None:
    """A verdict with this status."""
    written = {**(BAD if code else GOOD), "status": status, "exit_code": code, **patch}
    gate.save(node, written, json.dumps(written))


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_encoded_journal_fields_decode_unchanged(fields: dict[str, str]) -> None:
    assert decoded(journal.encoded(fields)) == fields


def test_a_verdict_is_an_entry_when_its_status_changes(node: Node, journald: Journald) -> None:
    save(node, "healthy", 0)
    save(node, "healthy", 0)
    save(node, "drain", 2, simulated=True)
    first, second = journald.entries()
    assert (first["GOLDNODE_STATUS_BEFORE"], first["GOLDNODE_STATUS"], first["PRIORITY"]) == (
        "none",
        "healthy",
        "5",
    )
    assert second == {
        "MESSAGE": "goldnode: the node is drain, was healthy: stack.lock",
        "MESSAGE_ID": journal.EVENTS["node.verdict"].id,
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "goldnode",
        "GOLDNODE_EVENT": "node.verdict",
        "GOLDNODE_STATUS": "drain",
        "GOLDNODE_STATUS_BEFORE": "healthy",
        "GOLDNODE_FINDINGS": "stack.lock",
        "GOLDNODE_CLASS": "case",
        "GOLDNODE_SIMULATED": "1",
    }


GATE = [
    ("a good node", [("block", GOOD)], ["gate.opened"]),
    ("nothing changed", [("block", GOOD), ("block", GOOD)], ["gate.opened"]),
    ("a bad node", [("block", GOOD), ("block", BAD)], ["gate.opened", "gate.closed"]),
    ("another reason", [("block", BAD), ("block", OTHER)], ["gate.closed", "gate.closed"]),
    ("a bad node again", [("block", BAD), ("block", BAD)], ["gate.closed"]),
    ("good again", [("block", BAD), ("block", GOOD)], ["gate.closed", "gate.opened"]),
    ("report opens for a bad node", [("report", BAD), ("report", OTHER)], ["gate.opened"]),
    ("drained", [("drain", BAD)], ["gate.closed", "node.drained"]),
    (
        "drained and resumed",
        [("drain", BAD), ("drain", GOOD)],
        ["gate.closed", "node.drained", "gate.opened", "node.resumed"],
    ),
]


@pytest.mark.parametrize(("what", "checks", "wanted"), GATE, ids=[row[0] for row in GATE])
def test_each_transition_of_the_gate_is_an_entry(
    node: Node, journald: Journald, what: str, checks: list[Any], wanted: list[str]
) -> None:
    for mode, found in checks:
        node.act(mode, found, **SITE)
    assert journald.names() == wanted


def test_a_drain_that_fails_is_an_entry_once(node: Node, journald: Journald) -> None:
    node.script("drain-node", "exit 1")
    node.act("drain", BAD, **SITE)
    node.act("drain", BAD, **SITE)
    assert journald.names() == ["gate.closed", "gate.failed"]
    node.script("drain-node", "exit 3")
    node.act("drain", BAD, **SITE)
    (entry,) = journald.entries()
    assert (entry["GOLDNODE_EVENT"], entry["GOLDNODE_OURS"]) == ("node.drained", "0")


def test_entries_have_the_fields_of_the_table(node: Node, journald: Journald) -> None:
    save(node, "drain", 2)
    for found in (BAD, GOOD):
        node.act("drain", found, **SITE)
    node.script("drain-node", "exit 1")
    node.act("drain", BAD, **SITE)
    with_tests = {"gate": "drain", "site": SITE, "return_tests": {"after_xid": ["gemm"]}}
    gate.act(node, with_tests, verdict(finding(MISMATCH, "drain", "xid.48"), code=2))
    assert return_command.end(node, "tests.xid", "kim", "bench") == ["tests.xid"]
    entries = journald.entries()
    assert {entry["GOLDNODE_EVENT"] for entry in entries} == set(journal.EVENTS)
    for entry in entries:
        event = journal.EVENTS[entry["GOLDNODE_EVENT"]]
        assert entry["MESSAGE_ID"] == event.id
        own = {name.removeprefix("GOLDNODE_") for name in entry if name.startswith("GOLDNODE_")}
        assert own == {*journal.COMMON, *event.fields}


def test_without_journald_a_check_does_the_same(node: Node) -> None:
    save(node, "drain", 2)
    node.act("drain", BAD, **SITE)
    assert not node.open
    stale = Journald(node.root)
    stale.socket.close()  # its file is left: nobody listens
    assert not journal.send(node, "gate.opened", "text", journal.NOTICE, {})
    node.act("drain", GOOD, **SITE)
    assert node.open


def test_a_journal_that_does_not_read_does_not_hold_the_check(
    node: Node, journald: Journald, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "WAIT", 0.01)
    sent = [journal.send(node, "gate.opened", "x" * 4000, journal.NOTICE, {}) for _ in range(500)]
    assert sent[0] is True
    assert sent[-1] is False


def test_an_image_has_no_journal(root: Path) -> None:
    image = Node(root)
    image.live = False
    opened = Journald(image.root)
    save(image, "healthy", 0)
    assert not journal.send(image, "gate.opened", "text", journal.NOTICE, {})
    assert opened.entries() == []
    opened.socket.close()


def test_ids_are_fixed_and_documented() -> None:
    ids = [event.id for event in journal.EVENTS.values()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in ids)
    page = PAGE.read_text()
    for name, event in journal.EVENTS.items():
        fields = ", ".join(f"`GOLDNODE_{field}`" for field in event.fields)
        assert f"| `{name}` | {event.when} | {fields} | `{event.id}` |" in page
