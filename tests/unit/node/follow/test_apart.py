"""A pass in two units: the one that acts believes nothing of the one that has the network."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.follow.channels import Channel
from tests.unit.node.follow.test_follow_network import Answers
from tests.unit.node.follow.test_follow_network import server as server
from tests.unit.node.follow.twounits import TwoUnitHost

from goldnode.node.follow import apart, repository
from goldnode.node.follow.apart import ApartSource
from goldnode.node.follow.loop import Follower
from goldnode.node.follow.machine import Machine, NotAppliedError
from goldnode.node.follow.repository import ChannelAwayError
from goldnode.node.follow.settings import STAGED, STATE, Settings
from goldnode.node.follow.trust import ChannelRefusedError, Verifier
from goldnode.node.ground.errors import NodeError

DOCUMENT = {
    "schema": "goldnode.channel/1",
    "class": "gpu",
    "denied": {},
    "frozen": [],
    "images": {},
}
PROGRAM = b"#!/usr/bin/python3\n\xff\x00"


def follower(
    channel: Channel, host: TwoUnitHost, source: str | None = None, **settings: Any
) -> Follower:
    """A pass of a node that uses no network, with its own memory."""
    own = Settings(
        source or str(channel.place),
        service="http://x",
        node="n1",
        node_class="gpu",
        lock=None,
        group="gpu",
    )._replace(**settings)
    first = channel.file("1.root.json").read_bytes()
    other: Any = ApartSource(host, own, first)
    verifier = Verifier(host, other, f"{STATE}/metadata", first, time.time())
    machine = Machine(host, own, other, lambda text: None)
    return Follower(host, own, verifier, other, machine)


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    made = Channel(tmp_path / "channel")
    document = json.dumps({**DOCUMENT, "rollout": None}).encode()
    made.files = {"gpu.json": document, "goldnode-node": PROGRAM}
    made.write()
    return made


@pytest.fixture
def host(tmp_path: Path) -> TwoUnitHost:
    return TwoUnitHost(str(tmp_path / "node"))


def test_pass_without_a_network_gets_what_the_other_unit_has_verified(
    channel: Channel, host: TwoUnitHost
) -> None:
    channel.versions["root"] = 2  # a rotation
    channel.write_root(threshold=2)
    channel.next()
    found = follower(channel, host)
    assert found.document()["rollout"] is None
    assert len(host.requests) == 1
    stored = {Path(name).name for name in host.glob(f"{STATE}/metadata", "*.json")}
    assert stored == {"root.json", "timestamp.json", "snapshot.json", "targets.json"}
    assert found.trusted is not None
    assert found.verifier.target(found.trusted, "goldnode-node") == PROGRAM
    assert not Path(host.located(apart.REQUEST)).exists()


def test_second_pass_fetches_only_what_is_new(channel: Channel, host: TwoUnitHost) -> None:
    follower(channel, host).document()
    follower(channel, host).document()
    names = set(json.loads(host.answer.read_text())["value"])
    assert {name.rpartition("/")[2] for name in names if "metadata" in name} == {"timestamp.json"}


def test_node_of_an_earlier_version_goes_on_with_what_it_has_seen(
    channel: Channel, host: TwoUnitHost
) -> None:
    """Its one unit stored the same files: a state before them is refused by the first pass in two units."""
    own = host.located(f"{STATE}/metadata")
    before = {path.name: path.read_bytes() for path in (channel.place / "metadata").glob("*.json")}
    channel.next()
    earlier = Verifier(
        host,
        repository.ChannelSource(str(channel.place)),
        f"{STATE}/metadata",
        channel.file("1.root.json").read_bytes(),
        time.time(),
    )
    earlier.refresh()
    assert Path(own, "timestamp.json").exists()
    for name, data in before.items():  # the channel is replayed
        channel.file(name).write_bytes(data)
    with pytest.raises(ChannelRefusedError, match="this node has seen version 2"):
        follower(channel, host).document()


def _changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def spoil(answer: Path) -> None:
        content = json.loads(answer.read_text())
        change(content)
        answer.write_text(json.dumps(content))

    return spoil


def _edited(name: str, before: str, after: str) -> Callable[[Path], None]:
    def change(content: dict[str, Any]) -> None:
        (full,) = (key for key in content["value"] if key.endswith(name))
        assert before in content["value"][full]
        content["value"][full] = content["value"][full].replace(before, after)

    return _changed(change)


def _pipe(answer: Path) -> None:
    answer.unlink()
    os.mkfifo(answer)


def _socket(answer: Path) -> None:
    answer.unlink()
    with contextlib.chdir(answer.parent):  # a path of a socket is short
        socket.socket(socket.AF_UNIX).bind("answer")


def _link(answer: Path) -> None:
    content = answer.read_bytes()
    answer.unlink()
    answer.with_name("elsewhere").write_bytes(content)
    answer.symlink_to("elsewhere")


# Each is what the unit with the network may leave once somebody else runs in it -> how the pass ends.
HOSTILE = {
    "nothing": (lambda path: path.unlink(), ChannelAwayError, "has not answered"),
    "a pipe": (_pipe, ChannelAwayError, "has not answered"),
    "a socket": (_socket, ChannelAwayError, "has not answered"),
    "a link": (_link, ChannelAwayError, "has not answered"),
    "no JSON": (lambda path: path.write_bytes(b"\xff{"), ChannelAwayError, "has not answered"),
    "too deep": (lambda path: path.write_text("[" * 10**6), ChannelAwayError, "has not answered"),
    "a list": (lambda path: path.write_text("[]"), ChannelAwayError, "has not answered"),
    "an earlier answer": (_changed(lambda it: it.update(id="0")), ChannelAwayError, "not answered"),
    "no documents": (_changed(lambda it: it.update(value=None)), ChannelRefusedError, "has no meta"),
    "documents of other types": (
        _changed(lambda it: it.update(value=dict.fromkeys(it["value"], 7))),
        ChannelRefusedError,
        "has no meta",
    ),
    "letters that are no bytes": (
        _edited("targets.json", '"gpu.json"', '"gp\u2603.json"'),
        ChannelRefusedError,
        "0 good signatures|not what was signed",
    ),
    "another expiry": (_edited("timestamp.json", '"version":1}}', '"version":2}}'), ChannelRefusedError, "0 good signatures"),
    "another document": (_edited("gpu.json", "null", "nul1"), ChannelRefusedError, "not what was signed"),
    "a problem of no kind": (
        _changed(lambda it: it.update(problem=["x"], text={"y": "\x1b[31m"})),
        ChannelAwayError,
        r"\\x1b",
    ),
    "a problem with escapes": (
        _changed(lambda it: it.update(problem="refused", text="\x1b]0;x\x07 " + "y" * 5000)),
        ChannelRefusedError,
        r"^\\x1b\]0;x\\x07 y{900,990}$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_of_an_answer_is_believed(channel: Channel, host: TwoUnitHost, name: str) -> None:
    spoil, error, text = HOSTILE[name]
    host.spoil = spoil
    with pytest.raises(error, match=text):
        follower(channel, host).document()
    stored = host.glob(f"{STATE}/metadata", "targets.json")
    assert not stored or name == "another document"  # all before it was signed
    # What a spoiled pass leaves does not stop the next one.
    host.spoil = None
    if host.answer.is_socket() or host.answer.is_fifo():
        host.answer.unlink()
    assert follower(channel, host).document()["rollout"] is None


def test_answer_that_is_too_large_is_none(
    channel: Channel, host: TwoUnitHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "LONGEST", 1000)
    with pytest.raises(ChannelAwayError, match="has not answered"):
        follower(channel, host).document()


def test_problems_arrive_as_what_they_are(channel: Channel, host: TwoUnitHost) -> None:
    channel.file("timestamp.json").unlink()
    with pytest.raises(ChannelRefusedError, match=r"has no metadata/timestamp\.json"):
        follower(channel, host).document()
    with pytest.raises(ChannelAwayError, match="does not exist"):
        follower(channel, host, source="/nowhere").document()
    Path(host.located("/wrong.pem")).write_text("none")
    service = follower(channel, host, ca="/wrong.pem", service="https://x").service
    with pytest.raises(NodeError, match="the TLS files cannot be used"):
        service.ask("v1/report", {})


def test_lock_service_is_asked_by_the_other_unit(
    channel: Channel, host: TwoUnitHost, server: Answers
) -> None:
    body = json.dumps({"phase": "applying", "target": "sha256:1"}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    server.answers["/v1/pre-reboot"] = head + body
    asked = follower(channel, host, service=server.address).service
    given = asked.ask("v1/pre-reboot", {"rollout": "r1", "granted_only": True})
    assert tuple(given) == (True, "applying", "sha256:1", "", "")
    forged: list[Any] = [{"yes": "true"}, {"yes": 1, "phase": 7}, [], None]
    for answer in forged:
        host.spoil = _changed(lambda it, value=answer: it.update(value=value))  # type: ignore[misc]
        assert not asked.ask("v1/pre-reboot", {}).yes


def test_image_is_downloaded_by_the_other_unit_and_never_through_a_link(
    channel: Channel, host: TwoUnitHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(100_000)
    (channel.place / "images").mkdir()
    (channel.place / "images/b.root.gz").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    image = {"path": "images/b.root.gz", "size": len(data), "sha256": digest}
    found = follower(channel, host)
    path = Path(found.machine._staged(image))
    earlier = Path(host.located(STAGED), "a.root.gz.part")
    earlier.parent.mkdir(parents=True)
    earlier.write_bytes(b"of an earlier version, whose unit did both")
    found.machine.source.stage(image, str(path), print)
    assert not earlier.exists()
    with found.machine._packed(image) as opened:
        assert opened.read() == data
    path.rename(f"{path}.other")
    path.symlink_to(f"{path}.other")
    with pytest.raises(NotAppliedError, match="symbolic links"):
        found.machine._packed(image)
    path.unlink()
    monkeypatch.setattr(repository, "SPARE", 1 << 60)
    assert "has no room" in str(found.machine.source.stage(image, str(path), print))


def test_tls_key_is_in_the_request_alone(
    channel: Channel, host: TwoUnitHost, tmp_path: Path
) -> None:
    Path(host.located("/")).mkdir(exist_ok=True)
    for name in ("ca", "key"):
        Path(host.located(f"/{name}.pem")).write_text(f"secret-{name}")
    follower(channel, host, ca="/ca.pem", key="/key.pem", certificate=None).document()
    assert "secret-key" in host.requests[0]
    places = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key.pem"]
    assert not [path for path in places if b"secret-key" in path.read_bytes()]
