"""A store published as a signed channel, read with the node's own verification."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
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

from goldnode.channels import delegations, keys, updates
from goldnode.channels.keys import RepositoryKeys
from goldnode.channels.updates import UpdateError
from goldnode.cli import main
from goldnode.core.errors import GoldnodeError
from goldnode.documents.channel import ChannelDocument
from goldnode.fleet.control import assembly
from goldnode.fleet.control.channel import (
    ChannelKeys,
    ChannelPublisher,
    ChannelRelease,
    is_released,
)
from goldnode.fleet.control.controller import ControllerParts, ControllerSettings, RolloutController
from goldnode.fleet.rollout.document import loads
from goldnode.fleet.store import orders, schema, tables
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


def channel_keys(directory: Path) -> ChannelKeys:
    """Write new keys of a channel: one of each role, and of the orders."""
    online, targets, root, orders = (
        [key_file(directory, f"{name}.pem")] for name in ("online", "targets", "root", "orders")
    )
    return ChannelKeys(online, targets, root, orders=orders)


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
        data = node.target(node.refresh(), "orders/l4.json")
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
    found = Published(rollout, tmp_path, channel_keys(tmp_path))
    store = rollout.store()
    found.publisher(store).publish(ChannelRelease())
    store.close()
    return found


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
        found = json.loads(
            max(
                published.channel.glob("targets/orders/*.l4.json"),
                key=lambda path: path.stat().st_mtime_ns,
            ).read_bytes()
        )
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
    again = published.publisher(store).publish()
    assert (again.version, again.changed) == (1, False)
    later = published.publisher(store)
    later.clock = lambda: time.time() + 4 * 86400
    assert later.publish().version == 2
    store.close()


@pytest.fixture
def unpublished(published: Published) -> Published:
    """A channel that has no release."""
    shutil.rmtree(published.channel)
    return published


def test_failed_publication_is_logged_and_tried_again(
    unpublished: Published, caplog: pytest.LogCaptureFixture
) -> None:
    store = unpublished.rollout.store()
    publisher = unpublished.publisher(store)
    publisher()
    assert "has no root document" in caplog.text
    unpublished.publisher(store).publish(ChannelRelease())
    store.run(lambda c: orders.deny(c, "l4", documents.NEW, ALICE))
    publisher()
    assert unpublished.seen()["denied"] == {}, "not within RETRY seconds"
    publisher.clock = lambda: time.time() + 11
    publisher()
    assert unpublished.seen()["denied"]
    store.close()


def test_a_clock_that_is_set_back_after_a_failure_holds_no_publication(
    unpublished: Published,
) -> None:
    store = unpublished.rollout.store()
    publisher = unpublished.publisher(store)
    publisher()
    unpublished.publisher(store).publish(ChannelRelease())
    store.run(lambda c: orders.deny(c, "l4", documents.NEW, ALICE))
    publisher.clock = lambda: time.time() - 3600
    publisher()
    assert unpublished.seen()["denied"]
    store.close()


def test_a_target_that_is_not_released_is_not_ordered(published: Published) -> None:
    """The controller has no key of targets: what it alone wants is refused before nodes have to."""
    store = published.rollout.store()
    publisher = published.publisher(store)
    release = updates.next_release(published.channel)
    for name in list(release.signed.targets):
        if name.startswith("states/"):
            del release.signed.targets[name]
    publisher.publish_signed(updates.sign(release, keys.signers(published.keys.targets)))
    store.run(lambda c: c.execute(tables.rollout.update().values(phase="running")))
    with pytest.raises(
        UpdateError, match=r"is not released: nodes refuse it.*--targets-key"
    ) as refusal:
        publisher.publish()
    assert documents.NEW in str(refusal.value)
    publisher.publish(ChannelRelease())
    assert published.seen()["rollout"]["to"]["digest"] == documents.NEW
    store.close()


def test_a_denied_state_is_no_longer_released(published: Published) -> None:
    """The next release makes a denial permanent: the online keys cannot lift it."""
    store = published.rollout.store()
    assert is_released(published.channel, "l4", documents.NEW)
    store.run(lambda c: orders.deny(c, "l4", documents.NEW, ALICE))
    published.publisher(store).publish()
    assert is_released(published.channel, "l4", documents.NEW)
    published.publisher(store).publish(ChannelRelease())
    assert not is_released(published.channel, "l4", documents.NEW)
    assert is_released(published.channel, "l4", documents.OLD)
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
        "1.targets.json",
        "timestamp.json",
        *(f"{n}.{role}.json" for n in (4, 5) for role in ("orders", "snapshot")),
    }
    assert len(list(published.channel.glob("targets/orders/*.json"))) == 2
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
    assert len(messages) == 2, messages
    assert f"`goldnode rollout rotate-keys {published.channel}`" in messages[0]
    now = expires
    with pytest.raises(UpdateError, match="the root expired on"):
        publisher.publish()
    store.close()


def test_publish_warns_of_a_root_that_expires_and_refuses_one_that_has_expired(
    unpublished: Published, tmp_path: Path
) -> None:
    channel, own = unpublished.channel, unpublished.keys
    roots = [key_file(tmp_path, name) for name in ("a", "b", "c")]
    words = ["--channel", str(channel), "--fleet-store", unpublished.rollout.where]
    words += ["--key", str(own.online[0]), "--targets-key", str(own.targets[0])]
    RepositoryKeys(own.online, own.targets, roots, 2).create(channel)
    keys.rotate(channel, RepositoryKeys(), roots, days=20)
    done = CliRunner().invoke(main, ["rollout", "publish", "r1", *words])
    assert done.exit_code == 0, done.output
    assert "in 19 days, and nothing is trusted after that" in done.stderr
    assert f"`goldnode rollout rotate-keys {channel}`" in done.stderr
    keys.rotate(channel, RepositoryKeys(), roots, days=-1)
    done = CliRunner().invoke(main, ["rollout", "publish", "r1", *words])
    assert done.exit_code != 0
    assert "goldnode rollout rotate-keys" in done.output
    change = ["rollout", "rotate-keys", str(channel)]
    change += [word for path in roots[:2] for word in ("--root-key", str(path))]
    done = CliRunner().invoke(main, change)
    assert "4.root.json, which 2 keys must sign as before" in done.output
    done = CliRunner().invoke(main, [*change, "--threshold", "1"])
    assert "5.root.json; threshold of root LOWERED from 2 to 1" in done.output
    done = CliRunner().invoke(main, ["rollout", "publish", "r1", *words, "--release-valid", "20"])
    assert "the release of" in done.stderr
    assert "expires in 19 days" in done.stderr


def test_command_publishes_a_document_and_rotates_the_keys(
    unpublished: Published, tmp_path: Path
) -> None:
    runner, where, own = CliRunner(), unpublished.rollout.where, unpublished.keys
    (online,), (root,), (targets,) = own.online, own.root, own.targets
    document = tmp_path / "rollout.yml"
    document.write_text(documents.TEXT)
    words = ["rollout", "publish", str(document), "--channel", str(unpublished.channel)]
    words += ["--fleet-store", where]
    first = ["--root-key", str(root), "--targets-key", str(targets), "--key", str(online)]
    done = runner.invoke(main, [*words, *first, "--format", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["version"] == 1
    unpublished.seen()
    new, new_root = key_file(tmp_path, "new.pem"), key_file(tmp_path, "new-root.pem")
    roots = ["--root-key", str(root), "--new-root-key", str(new_root), "--key", str(new)]
    done = runner.invoke(main, ["rollout", "rotate-keys", str(unpublished.channel), *roots])
    assert done.exit_code == 0, done.output
    refused = runner.invoke(main, [*words, "--key", str(online)])
    assert "unchanged" in refused.output
    done = runner.invoke(main, [*words, "--key", str(new), "--targets-key", str(targets)])
    assert done.exit_code == 0, done.output
    refused = runner.invoke(main, [*words, "--key", str(online), "--targets-key", str(targets)])
    assert "snapshot has 0 signatures" in refused.output
    assert unpublished.seen()["rollout"] is None, "it has not begun"
    document.write_text(documents.TEXT.replace("4h", "5h"))
    refused = runner.invoke(main, [*words, "--key", str(new)])
    assert "is not the document of rollout r1" in refused.output


def test_commands_release_in_three_steps_on_two_machines(
    unpublished: Published, tmp_path: Path
) -> None:
    """The machine of the channel has public halves and the online key; the other one the keys of targets."""
    runner, own, second = CliRunner(), unpublished.keys, key_file(tmp_path, "second.pem")
    RepositoryKeys(own.online, [*own.targets, second], own.root, None, 2).create(
        unpublished.channel
    )
    draft, channel = tmp_path / "draft.json", str(unpublished.channel)
    words = ["rollout", "publish", "r1", "--channel", channel, "--key", str(own.online[0])]
    words += ["--fleet-store", unpublished.rollout.where]
    refused = runner.invoke(main, [*words, "--targets-key", str(second)])
    assert (
        "targets has 1 signatures by keys that the trusted root names for it, and needs 2"
        in refused.output
    )
    assert runner.invoke(main, [*words, "--prepare", str(draft)]).exit_code == 0
    for path in (own.targets[0], second):
        refused = runner.invoke(main, [*words, "--signed", str(draft)])
        assert "and needs 2" in refused.output
        done = runner.invoke(main, ["rollout", "sign-metadata", str(draft), "--key", str(path)])
        assert f"states/l4/{documents.NEW}" in done.output, done.output
    done = runner.invoke(main, [*words, "--signed", str(draft)])
    assert done.exit_code == 0, done.output
    assert unpublished.seen()["class"] == "l4"
    refused = runner.invoke(main, [*words, "--signed", str(draft)])
    assert "this targets is version 1, and the next one is 2" in refused.output
    root = tmp_path / "root-draft.json"
    rotation = ["rollout", "rotate-keys", channel]
    assert runner.invoke(main, [*rotation, "--prepare", str(root)]).exit_code == 0
    signed = ["rollout", "sign-metadata", str(root), "--key", str(own.root[0])]
    assert "targets: 2 of" in runner.invoke(main, signed).output
    done = runner.invoke(main, [*rotation, "--signed", str(root)])
    assert "2.root.json, which 1 keys must sign as before" in done.output


def test_a_team_releases_images_of_its_classes(published: Published, tmp_path: Path) -> None:
    runner, own, team = CliRunner(), published.keys, key_file(tmp_path, "team.pem")
    public = tmp_path / "team.pub"
    public.write_bytes(
        subprocess.run(
            ["openssl", "pkey", "-in", str(team), "-pubout"], check=True, capture_output=True
        ).stdout
    )
    file = tmp_path / "teams.yml"
    file.write_text("roles:\n  disks: {keys: [team.pub], paths: ['images/l4/*']}\n")
    words = ["rollout", "publish", "r1", "--channel", str(published.channel)]
    words += ["--key", str(own.online[0]), "--order-key", str(own.orders[0])]
    words += ["--fleet-store", published.rollout.where]
    refused = runner.invoke(main, [*words, "--delegations", str(file)])
    assert "are released with the keys of targets, and none is given" in refused.output
    refused = runner.invoke(main, [*words, "--role", "disks", "--targets-key", str(team)])
    assert f"{published.channel} has no role disks" in refused.output
    targets = ["--targets-key", str(own.targets[0])]
    done = runner.invoke(main, [*words, "--delegations", str(file), *targets])
    assert done.exit_code == 0, done.output
    assert list(published.channel.glob("targets/*.goldnode-node")), "images need the program"
    refused = runner.invoke(main, [*words, "--role", "disks", *targets])
    assert "disks has 0 signatures by keys that the trusted targets names for it" in refused.output
    done = runner.invoke(main, [*words, "--role", "disks", "--targets-key", str(team)])
    assert done.exit_code == 0, done.output
    done = runner.invoke(main, [*words, *targets])
    assert done.exit_code == 0, done.output
    assert updates.released(published.channel, "disks") is not None, "later releases keep the team"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("roles: {disks: {keys: [team.pub], paths: ['states/l4/*']}}", "matches no target here"),
        ("roles: {disks: {keys: [team.pub], paths: ['images/*']}}", "matches no target here"),
        (
            "roles: {orders: {keys: [team.pub], paths: ['images/l4/*']}}",
            "cannot have the name orders",
        ),
        ("roles: {disks: {keys: [team.pub], threshold: 2, paths: ['images/l4/*']}}", "it has 1"),
        ("roles: {disks: {keys: [absent.pub], paths: ['images/l4/*']}}", "cannot be read"),
    ],
)
def test_a_file_of_teams_that_does_not_fit_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    secret = key_file(tmp_path, "team.pem")
    words = ["openssl", "pkey", "-in", str(secret), "-pubout", "-out", str(tmp_path / "team.pub")]
    subprocess.run(words, check=True)
    (tmp_path / "teams.yml").write_text(text)
    with pytest.raises(GoldnodeError) as refusal:
        delegations.load(tmp_path / "teams.yml")
    assert why in str(refusal.value), refusal.value


def test_a_rollout_to_a_state_that_is_not_released_is_refused_before_it_begins(
    published: Published,
) -> None:
    file = loads(documents.TEXT.replace(documents.NEW, "sha256:" + "9" * 64))
    with pytest.raises(UpdateError, match="is not released: nodes refuse it"):
        assembly.check_target(file, published.channel)
