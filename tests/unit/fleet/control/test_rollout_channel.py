"""A store published as a signed channel, read with the node's own verification."""

from __future__ import annotations

import datetime as dt
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.unit.fleet.control import controlled
from tests.unit.fleet.rollout import documents

from goldnode.channels import updates
from goldnode.channels.updates import RootKeys, UpdateError
from goldnode.cli import main
from goldnode.documents.channel import ChannelDocument
from goldnode.evidence.signatures import load_signer
from goldnode.fleet.control.channel import ChannelPublisher
from goldnode.fleet.control.channel_keys import ChannelKeys
from goldnode.fleet.control.controller import ControllerParts, ControllerSettings, RolloutController
from goldnode.fleet.store import orders, schema
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.orders import Scope
from goldnode.node.follow.repository import ChannelSource
from goldnode.node.follow.trust import Verifier
from goldnode.node.ground.host import Host

ALICE = PersonsOrder("alice@c", controlled.START, "a reason")


def key_file(directory: Path, name: str) -> Path:
    """Write a new secret key."""
    path = directory / name
    path.write_bytes(
        Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
    )
    path.chmod(0o600)
    return path


@dataclass
class Published:
    """A rollout with its store, and a channel of it."""

    rollout: controlled.ControlledRollout
    directory: Path
    keys: ChannelKeys

    @property
    def channel(self) -> Path:
        return self.directory / "channel"

    def publisher(self, store: StoreDatabase) -> ChannelPublisher:
        return ChannelPublisher(store, self.channel, self.keys)

    def seen(self) -> dict[str, Any]:
        """Return the document of the class, as a node verifies it."""
        host = Host(str(self.directory / "node"), live=True)
        first = (self.channel / "metadata/1.root.json").read_bytes()
        node = Verifier(host, ChannelSource(str(self.channel)), "/seen", first, time.time())
        data = node.target(node.refresh(), "l4.json")
        assert data is not None
        found: dict[str, Any] = json.loads(data)
        ChannelDocument.model_validate_json(data)
        return found


@pytest.fixture
def published(tmp_path: Path) -> Published:
    where = f"sqlite:///{tmp_path / 'fleet.db'}"
    store = StoreDatabase(where)
    store.run(schema.migrate)
    store.close()
    rollout = controlled.controlled(tmp_path, where)
    keys = ChannelKeys([key_file(tmp_path, "online.pem")], [key_file(tmp_path, "root.pem")])
    return Published(rollout, tmp_path, keys)


def test_channel_follows_a_rollout_wave_by_wave(published: Published) -> None:
    rollout = published.rollout
    store = rollout.store()
    publisher = published.publisher(store)
    own = ControllerSettings("c/1", quiet=0.0, clock=lambda: rollout.world.now)
    parts = ControllerParts(controlled.SimulatedWorker(rollout.world), written=publisher)
    controller = RolloutController(store, rollout.settings, parts, own)
    sizes: list[list[int]] = []
    for _ in range(2000):
        report = controller.tick()
        rollout.world.now += controlled.TICK / 2
        found = json.loads(next(published.channel.glob("targets/*.l4.json")).read_bytes())
        if (
            len(sizes) < 3
            and [len(wave["nodes"]) for wave in found["rollout"]["waves"]] not in sizes
        ):
            sizes.append([len(wave["nodes"]) for wave in found["rollout"]["waves"]])
        if report.ended:
            break
    controller.close()
    store.close()
    found = published.seen()
    assert found["rollout"]["phase"] == "completed"
    assert [len(wave["nodes"]) for wave in found["rollout"]["waves"]] == [2, 6, 4]
    starts = [wave["start"] for wave in found["rollout"]["waves"]]
    assert starts == sorted(starts)
    assert all(starts)
    assert found["rollout"]["to"] == {"kind": "lock", "digest": documents.NEW}


def test_freeze_and_denial_of_a_person_are_published_at_the_next_tick(published: Published) -> None:
    store = published.rollout.store()
    publisher = published.publisher(store)
    publisher()
    assert published.seen()["frozen"] == []
    store.run(lambda c: orders.freeze(c, Scope("rack", "r1"), ALICE))
    store.run(lambda c: orders.deny(c, "l4", documents.NEW, ALICE))
    publisher()
    found = published.seen()
    (freeze,) = found["frozen"]
    assert freeze == {"nodes": ["n01", "n05", "n09"], "reason": "a reason", "who": "alice@c"}
    assert found["denied"] == {documents.NEW: "a reason"}
    store.run(lambda c: orders.unfreeze(c, Scope("rack", "r1"), ALICE))
    publisher()
    assert published.seen()["frozen"] == []
    store.close()


def test_unchanged_state_is_not_signed_again_until_its_signatures_age(published: Published) -> None:
    store = published.rollout.store()
    first = published.publisher(store).publish()
    assert (first.version, first.changed) == (1, True)
    again = published.publisher(store).publish()
    assert (again.version, again.changed) == (1, False)
    later = published.publisher(store)
    later.clock = lambda: time.time() + 4 * 86400
    assert later.publish().version == 2
    store.close()


def test_failed_publication_is_logged_and_tried_again(
    published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    store = published.rollout.store()
    publisher = ChannelPublisher(store, published.channel, ChannelKeys(published.keys.keys))
    publisher()
    assert "has no root document" in caplog.text
    publisher.keys = published.keys
    publisher()
    assert not published.channel.joinpath("metadata/timestamp.json").exists(), (
        "not within RETRY seconds"
    )
    publisher.clock = lambda: time.time() + 11
    publisher()
    assert published.seen()["class"] == "l4"
    store.close()


def test_a_clock_that_is_set_back_after_a_failure_holds_no_publication(
    published: Published,
) -> None:
    store = published.rollout.store()
    publisher = ChannelPublisher(store, published.channel, ChannelKeys(published.keys.keys))
    publisher()
    publisher.keys = published.keys
    publisher.clock = lambda: time.time() - 3600
    publisher()
    assert published.channel.joinpath("metadata/timestamp.json").exists()
    store.close()


def test_files_that_another_key_has_signed_are_not_carried_over(
    published: Published, tmp_path: Path
) -> None:
    store = published.rollout.store()
    published.publisher(store).publish()
    for path in published.channel.glob("targets/*.l4.json"):
        path.write_bytes(path.read_bytes().replace(b'"images":{}', b'"images":[]'))
    with pytest.raises(UpdateError, match="not what was signed"):
        published.publisher(store).publish()
    store.close()


def test_old_versions_are_removed(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goldnode.fleet.control.channel.KEPT", 2)
    store = published.rollout.store()
    publisher = published.publisher(store)
    for number in range(4):
        store.run(lambda c, n=number: orders.deny(c, "l4", f"sha256:{n}", ALICE))  # type: ignore[misc]
        publisher()
    names = {path.name for path in published.channel.glob("metadata/*")}
    assert names == {
        "1.root.json",
        "timestamp.json",
        *(f"{n}.{role}.json" for n in (3, 4) for role in ("targets", "snapshot")),
    }
    assert len(list(published.channel.glob("targets/*.json"))) == 2
    assert len(published.seen()["denied"]) == 4
    store.close()


def test_a_root_that_expires_is_logged_once_a_day_and_publishes_nothing_after_its_end(
    published: Published, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = published.rollout.store()
    publisher = published.publisher(store)
    expires = publisher.publish().root.expires
    # In the morning, so that the second hour is of the same day whenever the test runs.
    morning = (expires - dt.timedelta(days=10)).replace(hour=6)
    now = morning
    publisher.clock = lambda: now.timestamp()
    for hours in (0, 1, 25):
        now = morning + dt.timedelta(hours=hours)
        publisher._again = 0.0
        publisher()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert f"`goldnode rollout rotate-keys {published.channel}`" in messages[0]
    now = expires
    with pytest.raises(UpdateError, match="the root expired on"):
        publisher.publish()
    store.close()


def test_publish_warns_of_a_root_that_expires_and_refuses_one_that_has_expired(
    published: Published, tmp_path: Path
) -> None:
    online, roots = published.keys.keys[0], [key_file(tmp_path, name) for name in ("a", "b", "c")]
    words = [
        "--channel",
        str(published.channel),
        "--fleet-store",
        published.rollout.where,
        "--key",
        str(online),
    ]
    keys = RootKeys([load_signer(path) for path in roots], 2)
    updates.create(published.channel, keys, [load_signer(online)], days=20)
    done = CliRunner().invoke(main, ["rollout", "publish", "r1", *words])
    assert done.exit_code == 0, done.output
    assert "in 19 days, and nothing is trusted after that" in done.stderr
    assert f"`goldnode rollout rotate-keys {published.channel}`" in done.stderr
    updates.rotate(
        published.channel, RootKeys(keys.signers, 2, keys.signers), [load_signer(online)], days=-1
    )
    done = CliRunner().invoke(main, ["rollout", "publish", "r1", *words])
    assert done.exit_code != 0
    assert "goldnode rollout rotate-keys" in done.output
    change = ["rollout", "rotate-keys", str(published.channel), "--key", str(online)]
    change += [
        word
        for path in roots[:2]
        for word in ("--root-key", str(path), "--new-root-key", str(path))
    ]
    done = CliRunner().invoke(main, change)
    assert "3.root.json, which 2 keys must sign as before" in done.output
    done = CliRunner().invoke(main, [*change, "--threshold", "1"])
    assert "4.root.json; threshold LOWERED from 2 to 1" in done.output
    assert CliRunner().invoke(main, ["rollout", "publish", "r1", *words]).exit_code == 0


def test_command_publishes_a_document_and_rotates_the_keys(
    published: Published, tmp_path: Path
) -> None:
    runner, where = CliRunner(), published.rollout.where
    (online,), (root,) = published.keys.keys, published.keys.root_keys
    document = tmp_path / "rollout.yml"
    document.write_text(documents.TEXT)
    words = [
        "rollout",
        "publish",
        str(document),
        "--channel",
        str(published.channel),
        "--fleet-store",
        where,
    ]
    words += ["--key", str(online)]
    done = runner.invoke(main, [*words, "--root-key", str(root), "--format", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["version"] == 1
    published.seen()
    new, new_root = key_file(tmp_path, "new.pem"), key_file(tmp_path, "new-root.pem")
    roots = ["--root-key", str(root), "--new-root-key", str(new_root)]
    done = runner.invoke(
        main,
        ["rollout", "rotate-keys", str(published.channel), "--key", str(new), *roots],
    )
    assert done.exit_code == 0, done.output
    refused = runner.invoke(main, words)
    assert "the root document does not name the given key" in refused.output
    assert runner.invoke(main, [*words[:-1], str(new)]).exit_code == 0
    assert published.seen()["rollout"] is None, "it has not begun"
    document.write_text(documents.TEXT.replace("4h", "5h"))
    refused = runner.invoke(main, words)
    assert "is not the document of rollout r1" in refused.output
