"""A channel of the last version, whose one online key signed targets, snapshot and timestamp, gets roles of its own."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.fleet.control import controlled
from tests.unit.fleet.control.test_rollout_channel import key_file
from tests.unit.fleet.control.test_stolen_keys import Site, begin
from tests.unit.fleet.rollout import documents
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from goldnode.channels import updates
from goldnode.cli import main
from goldnode.evidence.signatures import load_signer
from goldnode.fleet.control.channel import ChannelKeys, ChannelRelease
from goldnode.fleet.store import schema
from goldnode.fleet.store.database import StoreDatabase
from goldnode.node.follow.trust import ChannelRefusedError

END = dt.datetime.now(tz=dt.UTC).replace(microsecond=0) + dt.timedelta(30)


def earlier_channel(channel: Path, root_key: Path, online: Path, version: int = 5) -> None:
    """Write a channel as the last version did: l4.json is a file of `targets`, and one key signs three roles."""
    root = Root(1, expires=END, consistent_snapshot=True)
    root.add_key(load_signer(root_key).public, "root")
    for role in ("targets", "snapshot", "timestamp"):
        root.add_key(load_signer(online).public, role)
    targets = Targets(version, expires=END)
    updates.add_file(channel, targets, "l4.json", json.dumps(ORDERS).encode())
    meta = {"targets.json": MetaFile(version)}
    for name, signed, key in (
        ("1.root", root, root_key),
        (f"{version}.targets", targets, online),
        (f"{version}.snapshot", Snapshot(version, expires=END, meta=meta), online),
        ("timestamp", Timestamp(version, expires=END, snapshot_meta=MetaFile(version)), online),
    ):
        document: Metadata[Any] = updates.sign(Metadata(signed), [load_signer(key)])
        updates.write_document(channel / "metadata" / f"{name}.json", document)


ORDERS = {
    "schema": "goldnode.channel/1",
    "class": "l4",
    "denied": {},
    "frozen": [],
    "images": {},
    "rollout": {
        "name": "r1",
        "phase": "running",
        "origin": documents.OLD,
        "to": {"kind": "lock", "digest": documents.NEW},
        "waves": [{"name": "canary", "start": "2026-01-01T00:00:00Z", "nodes": ["n00"]}],
        "back": {},
    },
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    where = f"sqlite:///{tmp_path / 'fleet.db'}"
    store = StoreDatabase(where)
    store.run(schema.migrate)
    controlled.controlled(tmp_path, where)
    begin(store)
    root, online, targets = (key_file(tmp_path, f"{name}.pem") for name in ("root", "online", "t"))
    found = Site(tmp_path, store, ChannelKeys([online], [targets], [root]), targets)
    earlier_channel(found.channel, root, online)
    first = found.channel / "metadata/1.root.json"
    (tmp_path / "trusted-root.json").write_bytes(first.read_bytes())
    yield found
    store.close()


def command(site: Site, *words: str) -> str:
    done = CliRunner().invoke(main, ["rollout", *words])
    assert "Traceback" not in done.output
    return done.output


def test_channel_is_migrated_by_one_rotation_and_followed_before_and_after(site: Site) -> None:
    (root,), (online,), (targets,) = site.keys.root, site.keys.online, site.keys.targets
    publish = ["publish", "r1", "--channel", str(site.channel), "--key", str(online)]
    publish += ["--fleet-store", f"sqlite:///{site.directory / 'fleet.db'}"]
    node = site.node("old")
    assert node.document()["rollout"]["to"]["digest"] == documents.NEW, "it signs the orders too"

    # Nothing is published until the roles are apart: the controller's key would still choose what is installed.
    refused = command(site, *publish)
    assert "one key signs targets and the timestamp" in refused or "is not released" in refused
    assert "goldnode rollout" in refused
    refused = command(site, *publish, "--targets-key", str(online))
    assert "one key signs targets and the timestamp" in refused
    assert "goldnode rollout rotate-keys" in refused

    rotate = ["rotate-keys", str(site.channel), "--root-key", str(root)]
    done = command(site, *rotate, "--targets-key", str(targets))
    assert "2.root.json, which 1 keys must sign as before" in done
    done = command(site, *publish, "--targets-key", str(targets))
    assert "published version 6" in done, "a node refuses a lower number"
    for memory in ("old", "new"):
        follower = site.node(memory)
        assert follower.document()["rollout"]["to"]["digest"] == documents.NEW
        assert follower.trusted is not None
        assert follower.trusted.root["version"] == 2


def test_old_online_key_orders_nothing_after_the_migration(site: Site) -> None:
    """The same key stays online: what it signed alone before is refused."""
    (root,), (online,), (targets,) = site.keys.root, site.keys.online, site.keys.targets
    rotate = ["rotate-keys", str(site.channel), "--root-key", str(root)]
    command(site, *rotate, "--targets-key", str(targets))
    with pytest.raises(ChannelRefusedError, match="targets has 0 good signatures"):
        site.node("new").document()
    where = f"sqlite:///{site.directory / 'fleet.db'}"
    words = ["publish", "r1", "--channel", str(site.channel), "--key", str(online)]
    words += ["--fleet-store", where, "--targets-key", str(targets)]
    command(site, *words)
    site.stolen = {"online"}
    site.forge("targets", "online", lambda signed: site.file(signed, "l4.json", b"evil"))
    site.stamp()
    with pytest.raises(ChannelRefusedError, match="targets has 0 good signatures"):
        site.node("old").document()


def test_nodes_of_the_last_version_find_the_orders_of_the_release(site: Site) -> None:
    """They read no delegated role: `l4.json` of targets has the orders of the time of the release."""
    (root,), (targets,) = site.keys.root, site.keys.targets
    rotate = ["rotate-keys", str(site.channel), "--root-key", str(root)]
    command(site, *rotate, "--targets-key", str(targets))
    site.publisher.publish(ChannelRelease())
    node = site.node("old")
    trusted = node.verifier.refresh()
    earlier = json.loads(node.verifier.target(trusted, "l4.json") or b"null")
    orders = json.loads(node.verifier.target(trusted, "orders/l4.json") or b"null")
    assert earlier["rollout"]["waves"] == orders["rollout"]["waves"]
    assert earlier["rollout"]["waves"][0]["start"]
