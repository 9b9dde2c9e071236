"""The machine of `follow`: downloads, the program that writes images, and the site's command for locks."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goldnode.node.follow import machine as machine_of
from goldnode.node.follow import repository
from goldnode.node.follow import settings as settings_of
from goldnode.node.follow.channel import FORWARD, Wish
from goldnode.node.follow.machine import Machine, NotAppliedError
from goldnode.node.follow.repository import ChannelAwayError, ChannelSource
from goldnode.node.follow.settings import Settings
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.state import slots

DATA = os.urandom(100_000)
WISH = Wish("r1", FORWARD, "bbb", "disk")
# In place of `slot write`: it stores what it gets.
WRITER = b"""import sys, pathlib
data = sys.stdin.buffer.read()
print("goldnode-node: wrote", len(data), file=sys.stderr)
pathlib.Path(__file__).with_name("written").write_bytes(data)
sys.exit(3 if len(data) < 100_000 else 0)
"""


def survey(state: str = "empty", build: str | None = None) -> dict[str, Any]:
    rows = {
        "a": {"build_id": "aaa", "state": "good"},
        "b": {"build_id": build, "state": state},
    }
    return {"running": "a", "tried": None, "next": "a", "place": "/efi", "slots": rows}


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A node with slots and a channel with one image."""
    channel = tmp_path / "channel"
    (channel / "images").mkdir(parents=True)
    (channel / "images/bbb.root.gz").write_bytes(DATA)
    image = {
        "path": "images/bbb.root.gz",
        "size": len(DATA),
        "sha256": hashlib.sha256(DATA).hexdigest(),
        "header": {"build_id": "bbb", "class": "c"},
    }
    lines: list[str] = []
    host = Host(str(tmp_path / "node"), live=True)
    own = Settings(
        str(channel), service="http://x", node="n", node_class="c", lock="sha256:1", group="c"
    )
    made = Machine(host, own, ChannelSource(str(channel)), lines.append)
    monkeypatch.setattr(slots, "survey", lambda host: survey())
    document = {"images": {"bbb": image}}
    staged = tmp_path / "node" / settings_of.STAGED.lstrip("/") / "bbb.root.gz"
    return SimpleNamespace(
        machine=made, document=document, lines=lines, staged=staged, host=host, image=image
    )


def test_image_is_downloaded_once_and_written_with_its_header(found: SimpleNamespace) -> None:
    assert found.machine.stage(found.document, WISH) is None
    assert found.staged.read_bytes() == DATA
    found.machine.apply(found.document, WISH, WRITER)
    written = Path(found.host.located("/run/goldnode/written")).read_bytes()
    assert written == b'{"build_id": "bbb", "class": "c"}\n' + DATA
    assert not found.staged.exists()
    assert not Path(found.host.located(machine_of.COPY)).exists()


def test_node_without_room_for_the_image_waits(
    found: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "SPARE", 1 << 60)
    why = found.machine.stage(found.document, WISH)
    assert why.startswith(f"{found.staged.parent} has no room for 0 MiB")
    with pytest.raises(NotAppliedError, match="No such file"):
        found.machine.apply(found.document, WISH, WRITER)


def test_channel_that_goes_away_while_it_is_read_is_no_failure_of_the_change(
    found: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Torn:
        def __enter__(self) -> Torn:
            return self

        def __exit__(self, *words: object) -> None:
            pass

        def read(self, size: int) -> bytes:
            raise OSError("connection reset")

    monkeypatch.setattr(Machine, "_packed", lambda self, image: Torn())
    with pytest.raises(ChannelAwayError, match="connection reset"):
        found.machine.apply(found.document, WISH, WRITER)


def test_refusal_of_the_writer_is_why_nothing_was_applied(found: SimpleNamespace) -> None:
    writer = b"import sys; sys.exit('goldnode-node: the slot is too small')"
    found.machine.stage(found.document, WISH)
    with pytest.raises(NotAppliedError, match=r"^the slot is too small"):
        found.machine.apply(found.document, WISH, writer)


def test_image_in_the_other_slot_is_not_written_again(
    found: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(slots, "survey", lambda host: survey("good", "bbb"))
    monkeypatch.setattr(slots, "back", lambda host: called.append("back"))
    assert found.machine.stage({"images": {}}, WISH) is None
    found.machine.apply({"images": {}}, WISH, None)
    assert called == ["back"]


def test_failed_image_in_the_other_slot_is_a_fall_back(
    found: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "survey", lambda host: survey("failed", "bbb"))
    seen = found.machine.observe(WISH)
    assert (seen.digest, seen.fell_back_from, seen.software) == ("aaa", "bbb", ["slot.fallback"])
    assert found.machine.observe(None).fell_back_from is None


def test_command_of_the_site_applies_a_lock(found: SimpleNamespace, tmp_path: Path) -> None:
    script = 'echo "$GOLDNODE_ROLLOUT $GOLDNODE_TARGET $GOLDNODE_DIRECTION"; [ "$GOLDNODE_TARGET" = good ]'
    found.machine.settings = found.machine.settings._replace(apply=("sh", "-c", script))
    assert found.machine.kind == "lock"
    found.machine.apply({}, Wish("r1", FORWARD, "good", "lock"), None)
    assert found.lines[-1] == "r1 good forward"
    with pytest.raises(NotAppliedError, match="sh ended with 1: r1 bad forward"):
        found.machine.apply({}, Wish("r1", FORWARD, "bad", "lock"), None)
    found.machine.settings = found.machine.settings._replace(apply=("/no/such/command",))
    with pytest.raises(NotAppliedError, match="No such file"):
        found.machine.apply({}, Wish("r1", FORWARD, "x", "lock"), None)


def test_settings_name_what_is_missing(tmp_path: Path) -> None:
    host = Host(str(tmp_path), live=True)
    options = SimpleNamespace(channel=None, service=None, node=None, root_document=None)
    with pytest.raises(NodeError, match="has no class"):
        settings_of.load(host, options)
    host.write("/etc/goldnode/class.json", b'{"class": "h100_sxm", "lock": {"digest": "sha256:1"}}')
    with pytest.raises(NodeError, match="no channel is named"):
        settings_of.load(host, options)
    options.channel, options.service = "/channel", "http://x"
    own = settings_of.load(host, options)
    assert (own.group, own.lock, own.root) == ("h100-sxm", "sha256:1", settings_of.ROOT_DOCUMENT)
