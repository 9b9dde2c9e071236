"""A site with a channel of the last version migrates, rolls out, and rotates each key of the channel; an old node follows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.fleet.control import controlled
from tests.unit.fleet.control.test_channel_migration import earlier_channel
from tests.unit.fleet.control.test_rollout_channel import key_file
from tests.unit.fleet.control.test_stolen_keys import Site, begin
from tests.unit.fleet.rollout import documents

from goldnode.channels import updates
from goldnode.cli import main
from goldnode.evidence.signatures import public_half
from goldnode.fleet.control.channel import ChannelKeys
from goldnode.fleet.store import schema
from goldnode.fleet.store.database import StoreDatabase


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Make a channel of the last version: one key signs targets, snapshot and timestamp. A node has read it."""
    where = f"sqlite:///{tmp_path / 'fleet.db'}"
    store = StoreDatabase(where)
    store.run(schema.migrate)
    controlled.controlled(tmp_path, where)
    begin(store)
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", where)
    root, online, targets = (key_file(tmp_path, f"{name}.pem") for name in ("root", "online", "t"))
    own = Site(tmp_path, store, ChannelKeys([online], [targets], [root]), targets)
    earlier_channel(own.channel, root, online)
    first = own.channel / "metadata/1.root.json"
    (tmp_path / "trusted-root.json").write_bytes(first.read_bytes())
    yield own
    store.close()


def command(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*map(str, words), "--format", "json"])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def following(site: Site) -> dict[str, str]:
    return {memory: site.node(memory).document()["rollout"]["to"]["digest"] for memory in MEMORIES}


# A node that reads all, one that was off since before the migration, and one with its first root alone.
MEMORIES = ("always", "asleep", "new")


def publish(site: Site, *more: object) -> None:
    keys: list[object] = ["--key", site.keys.online[0]]
    if site.keys.orders:
        keys += ["--order-key", site.keys.orders[0]]
    command("rollout", "publish", "r1", "--channel", site.channel, *keys, *more)


def released(site: Site) -> None:
    publish(site, "--targets-key", site.keys.targets[0])


def rotated(site: Site, kind: str, *more: object) -> None:
    """Rotate a key by the command until its procedure ends: publish when it waits for that, and confirm the rest."""
    out, (old,) = site.directory / "keys", getattr(site.keys, kind)
    words = ["keys", "rotate", kind, "--channel", site.channel, "--out", out, "--old", old, *more]
    new = out / f"rotation-{kind}/new/{kind}.pem"
    document = command(*words, "--apply")
    while document["state"] != "completed":
        (row,) = [row for row in document["steps"] if row["state"] == "next"]
        if row["name"] in ("publish", "trust"):
            site.keys = changed(site.keys, kind, new)
            released(site)
            document = command(*words, "--apply")
        else:
            document = command(*words, "--done", row["name"])
    (ended,) = out.glob(f"rotation-{kind}-ended-*")
    site.keys = changed(site.keys, kind, ended / "new" / new.name)


def changed(keys: ChannelKeys, kind: str, new: Path) -> ChannelKeys:
    change: dict[str, Any] = {kind: [new]}
    return replace(keys, **change)


def test_a_site_of_the_last_version_migrates_rolls_out_and_rotates_every_key(site: Site) -> None:
    for memory in ("always", "asleep"):
        assert site.node(memory).document()["rollout"]["to"]["digest"] == documents.NEW
    shutil.copytree(site.directory / "asleep", site.directory / "before")
    (root,), (targets,) = site.keys.root, site.keys.targets

    # The migration: targets has a key of its own, and the controller one for its orders.
    command("rollout", "rotate-keys", site.channel, "--root-key", root, "--targets-key", targets)
    site.keys = replace(site.keys, orders=[key_file(site.directory, "orders.pem")])
    released(site)
    assert site.node("always").document()["rollout"]["to"]["digest"] == documents.NEW

    first = {
        name: public_half(getattr(site.keys, name)[0]).keyid
        for name in ("online", "targets", "orders", "root")
    }
    for kind in ("online", "targets", "orders", "root"):
        rotated(site, kind, *(["--root-key", site.keys.root[0]] if kind != "orders" else []))
        publish(site)  # the controller goes on
        assert site.node("always").document()["rollout"]["to"]["digest"] == documents.NEW, kind
    names = updates.newest(site.channel, "root")
    assert names is not None
    trusted = {keyid for role in names.signed.roles.values() for keyid in role.keyids}
    assert not trusted & set(first.values())
    delegated = updates.newest(site.channel, "targets")
    assert delegated is not None
    assert first["orders"] not in delegated.signed.delegations.roles["orders"].keyids

    # The node that slept all the time reads one root after the other.
    assert following(site) == dict.fromkeys(MEMORIES, documents.NEW)
    node = site.node("asleep")
    node.document()
    assert node.trusted is not None
    assert node.trusted.root["version"] == names.signed.version


def test_a_root_key_that_lies_elsewhere_signs_there(site: Site) -> None:
    """Two of three root keys, of which this machine has one."""
    (root,), (online,), (targets,) = site.keys.root, site.keys.online, site.keys.targets
    two = [key_file(site.directory, f"r{number}.pem") for number in (2, 3)]
    new = [word for one in (root, *two) for word in ("--new-root-key", one)]
    rotate = ["rollout", "rotate-keys", site.channel, "--root-key", root, "--targets-key", targets]
    command(*rotate, *new, "--threshold", 2)
    released(site)
    words = [
        "keys",
        "rotate",
        "online",
        "--channel",
        site.channel,
        "--out",
        site.directory / "keys",
    ]
    words += ["--old", online, "--apply"]
    document = command(*words, "--root-key", root)
    (row,) = [row for row in document["steps"] if row["state"] == "next"]
    assert row["name"] == "trust"
    assert "root has 1 signatures" in row["waits_for"]
    prepared = site.directory / "keys/rotation-online/next-root.json"
    assert str(prepared) in row["waits_for"]
    command("rollout", "sign-metadata", prepared, "--key", two[0])
    document = command(*words)  # without a key here: it publishes what was signed
    assert [row["name"] for row in document["steps"] if row["state"] == "next"] == ["publish"]
    newest = updates.newest(site.channel, "root")
    assert newest is not None
    assert newest.signed.roles["root"].threshold == 2, "thresholds stay"


def test_another_old_key_and_a_published_directory_for_the_new_one_are_refused(site: Site) -> None:
    stranger = key_file(site.directory, "stranger.pem")
    words = ["keys", "rotate", "online", "--channel", str(site.channel), "--apply"]
    for out, old, error in (
        (site.directory / "keys", stranger, "the root names another key for snapshot than --old"),
        (site.channel / "keys", site.keys.online[0], "in the directory that is published"),
    ):
        done = CliRunner().invoke(main, [*words, "--out", str(out), "--old", str(old)])
        assert done.exit_code != 0
        assert error in done.output
    assert updates.newest(site.channel, "root").signed.version == 1  # type: ignore[union-attr]
    assert not (site.channel / "keys").exists()
