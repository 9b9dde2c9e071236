"""What the thief of each key of a channel can do: the table of docs/how-to/follow.md, row by row.

The thief signs for real with the stolen keys, may replace each file of the web server, and meets two nodes: one that has
read the channel before, and one that has its first root alone.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner
from tests.unit.fleet.control import controlled
from tests.unit.fleet.control.test_rollout_channel import ALICE, key_file
from tests.unit.fleet.rollout import documents
from tuf.api.metadata import Metadata, MetaFile

from goldnode.channels import keys, updates
from goldnode.channels.keys import RepositoryKeys
from goldnode.channels.updates import DelegatedPaths, UpdateError
from goldnode.fleet.control.channel import ChannelKeys, ChannelPublisher, ChannelRelease
from goldnode.fleet.store import orders, schema, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.node.follow import channel as channel_of_node
from goldnode.node.follow.loop import Follower
from goldnode.node.follow.repository import ChannelSource, ChannelTooLongError
from goldnode.node.follow.settings import Settings
from goldnode.node.follow.trust import ChannelRefusedError, Verifier
from goldnode.node.ground.host import Host

NODE, EVIL = "n00", "sha256:" + "e" * 64
PROGRAM, ORDERS = "goldnode-node", "orders/l4.json"
IMAGE = "images/l4/20261101.1.root.gz"


@dataclass
class Site:
    """A channel with all roles: root 2 of 3, targets 2 of 2, online, orders, and a team for images of class `l4`."""

    directory: Path
    store: StoreDatabase
    keys: ChannelKeys
    team: Path
    stolen: set[str] = field(default_factory=set)
    thief: ChannelKeys = field(init=False)  # keys at the time of the theft

    def __post_init__(self) -> None:
        self.thief = self.keys

    @property
    def channel(self) -> Path:
        return self.directory / "channel"

    @property
    def publisher(self) -> ChannelPublisher:
        return ChannelPublisher(self.store, self.channel, self.keys)

    def node(self, memory: str, days: float = 0) -> Follower:
        """Return a node; `memory` is a directory with what it has read before."""
        host = Host(str(self.directory / memory), live=True)
        first = (self.directory / "trusted-root.json").read_bytes()
        now = time.time() + days * 86400
        verifier = Verifier(host, ChannelSource(str(self.channel)), "/seen", first, now)
        own = Settings(
            channel=str(self.channel),
            service="http://127.0.0.1:1",
            node=NODE,
            node_class="l4",
            lock=None,
            group="l4",
        )
        anything: Any = None
        return Follower(host, own, verifier, anything, anything, clock=lambda: now)

    def read(self, memory: str, days: float = 0) -> Seen:
        """Return what a node takes from the channel. Raises ChannelRefusedError."""
        node = self.node(memory, days)
        document = node.document()
        assert node.trusted is not None
        wanted = channel_of_node.wish(document, NODE, time.time() + days * 86400)
        program = node.verifier.target(node.trusted, PROGRAM)
        return Seen(
            wanted.digest if wanted else None,
            program=program,
            image=document["images"],
            frozen=channel_of_node.freeze(document, NODE),
        )

    # What a thief does

    def signers(self, *names: str) -> list[Any]:
        """Return stolen keys of a role. A key that was not stolen cannot be used."""
        assert set(names) <= self.stolen
        files = {
            "online": self.thief.online,
            "orders": self.thief.orders,
            "targets": self.thief.targets,
            "one of targets": self.thief.targets[:1],
            "root": self.thief.root[:2],
            "one of root": self.thief.root[:1],
            "team": [self.team],
        }
        return keys.signers([place for name in names for place in files[name]])

    def forge(
        self, role: str, by: str, change: Callable[[Any], None], version: int | None = None
    ) -> None:
        """Change the newest document of a role, sign it with stolen keys, and put it on the web server."""
        document = updates.newest(self.channel, role)
        assert document is not None
        signed = document.signed
        signed.version = version or signed.version + 1
        change(signed)
        self.put(role, signed, by)

    def put(self, role: str, signed: Any, by: str) -> None:
        fresh: Metadata[Any] = Metadata(signed)
        for signer in self.signers(*by.split("+")) if by else ():
            fresh.sign(signer.signer, append=True)
        name = f"{role}.json" if role == "timestamp" else f"{signed.version}.{role}.json"
        (self.channel / "metadata" / name).write_bytes(fresh.to_bytes())

    def stamp(
        self, change: Callable[[dict[str, MetaFile]], None] = lambda meta: None, days: int = 7
    ) -> None:
        """Sign snapshot and timestamp with the stolen online key, over the newest documents or others."""
        meta = {f"{name}.json": MetaFile(version) for name, version in self.versions().items()}
        change(meta)
        until = dt.datetime.now(tz=dt.UTC).replace(microsecond=0) + dt.timedelta(days=days)

        def snapshot(signed: Any) -> None:
            signed.meta, signed.expires = meta, until

        self.forge("snapshot", "online", snapshot)
        newest = updates.newest(self.channel, "snapshot")
        assert newest is not None
        version = newest.signed.version

        def stamp(signed: Any) -> None:
            signed.snapshot_meta, signed.expires = MetaFile(version), until

        self.forge("timestamp", "online", stamp)

    def versions(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in (self.channel / "metadata").glob("*.*.json"):
            number, role, _ = path.name.split(".")
            if role not in ("root", "snapshot"):
                found[role] = max(found.get(role, 0), int(number))
        return found

    def file(
        self, signed: Any, name: str, data: bytes, custom: dict[str, Any] | None = None
    ) -> None:
        updates.add_file(self.channel, signed, name, data, custom)

    def order(self, change: Callable[[dict[str, Any]], None], by: str = "orders") -> None:
        """Change the orders of the class, and publish them with the stolen keys."""

        def edit(signed: Any) -> None:
            path = updates.stored_file(self.channel, signed.targets[ORDERS])
            document = json.loads(path.read_bytes())
            change(document)
            self.file(signed, ORDERS, json.dumps(document).encode())

        self.forge("orders", by, edit)


@dataclass
class Seen:
    """What a node takes from a channel: the state that it wants, the program that would write it, its image, a freeze."""

    wants: str | None
    program: bytes | None
    image: dict[str, Any]
    frozen: str | None


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    where = f"sqlite:///{tmp_path / 'fleet.db'}"
    store = StoreDatabase(where)
    store.run(schema.migrate)
    controlled.controlled(tmp_path, where)
    names = ("online", "orders", "t1", "t2", "r1", "r2", "r3", "team")
    files = {name: key_file(tmp_path, f"{name}.pem") for name in names}
    own = ChannelKeys(
        [files["online"]],
        [files["t1"], files["t2"]],
        [files["r1"], files["r2"], files["r3"]],
        2,
        2,
        orders=[files["orders"]],
    )
    found = Site(tmp_path, store, own, files["team"])
    team = DelegatedPaths("team", keys.publics([files["team"]]), ["images/l4/*"])
    found.publisher.publish(ChannelRelease(delegated=[team]))
    root = found.channel / "metadata/1.root.json"
    (tmp_path / "trusted-root.json").write_bytes(root.read_bytes())
    release = updates.next_release(found.channel, "team")
    found.file(release.signed, IMAGE, b"good image", {"header": {"build_id": "20261101.1"}})
    found.publisher.publish_signed(updates.sign(release, keys.signers([files["team"]])), "team")
    begin(store)
    found.publisher.publish()
    assert found.read("old").wants == documents.NEW
    yield found
    store.close()


def begin(store: StoreDatabase) -> None:
    """Begin the first wave, which has the node."""
    now = time.time() - 60
    with store.write() as connection:
        connection.execute(tables.rollout.update().values(phase="running"))
        row = {"rollout": "r1", "node": NODE, "wave": 0}
        connection.execute(tables.member.delete())
        connection.execute(tables.member.insert().values(**row))
        log = {"at": now, "rollout": "r1", "action": "Start", "content": json.dumps({"wave": 0})}
        connection.execute(tables.log.insert().values(**filled(tables.log, log)))


def filled(table: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table, with something in each column that needs a value."""
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.name in given:
            row[column.name] = given[column.name]
        elif not column.nullable and column.server_default is None and column.name != "seq":
            row[column.name] = 0 if "INT" in str(column.type).upper() else "x"
    return row


def evil(document: dict[str, Any]) -> None:
    document["rollout"]["to"]["digest"] = EVIL


def evil_program(site: Site, role: str, by: str) -> None:
    site.forge(role, by, lambda signed: site.file(signed, PROGRAM, b"evil"))


# Attacks that a node refuses: stolen keys, what the thief does, and the reason of the node.
Attack = Callable[[Site], None]


def all_of(*deeds: Attack) -> Attack:
    def attack(site: Site) -> None:
        for deed in deeds:
            deed(site)

    return attack


def stamped(site: Site) -> None:
    site.stamp()


def _signs(role: str, by: str) -> Attack:
    return all_of(lambda site: site.forge(role, by, lambda signed: None), stamped)


def _program_in(role: str, by: str) -> Attack:
    return all_of(lambda site: evil_program(site, role, by), stamped)


def _state_in(role: str, by: str, name: str) -> Attack:
    """A role lists a state or an image outside its paths, and the orders name it."""

    def attack(site: Site) -> None:
        site.forge(role, by, lambda signed: site.file(signed, name, b"evil", {"header": {}}))
        site.order(evil)
        site.stamp()

    return attack


def _delegates(role: str, by: str) -> Attack:
    """A role delegates all names to a key of the thief, who lists the state there."""

    def attack(site: Site) -> None:
        mine = key_file(site.directory, f"mine-{role}.pem")
        everything = DelegatedPaths("mine", keys.publics([mine]), ["*", "*/*", "*/*/*"])
        site.forge(role, by, lambda signed: updates.delegate(signed, [everything]))
        release = updates.next_release(site.channel, "mine")
        site.file(release.signed, f"states/l4/{EVIL}", b"")
        updates.sign(release, keys.signers([mine]))
        updates.write_document(site.channel / "metadata/1.mine.json", release)
        site.order(evil)
        site.stamp()

    return attack


def _older(role: str) -> Attack:
    def attack(site: Site) -> None:
        site.stamp(lambda meta: meta.update({f"{role}.json": MetaFile(1)}))

    return attack


def _without(role: str) -> Attack:
    return lambda site: site.stamp(lambda meta: _remove(meta, f"{role}.json"))


def _remove(meta: dict[str, MetaFile], name: str) -> None:
    del meta[name]


def _no_such_version(site: Site) -> None:
    site.stamp(lambda meta: meta.update({"targets.json": MetaFile(99)}))


def _in_place(role: str, by: str) -> Attack:
    """The thief has the key of a release alone, and replaces the version that is published."""

    def attack(site: Site) -> None:
        newest = updates.newest(site.channel, role)
        assert newest is not None
        version = newest.signed.version
        site.forge(role, by, lambda signed: site.file(signed, PROGRAM, b"evil"), version)

    return attack


def _other_bytes(pattern: str) -> Attack:
    def attack(site: Site) -> None:
        for path in (site.channel / "targets").glob(pattern):
            path.write_bytes(path.read_bytes().replace(b"l4", b"L4").replace(b"good", b"evil"))

    return attack


def _next_root(by: str, change: Callable[[Any], None] = lambda root: None, gap: int = 1) -> Attack:
    def attack(site: Site) -> None:
        newest = updates.newest(site.channel, "root")
        assert newest is not None
        site.forge("root", by, change, newest.signed.version + gap)
        if gap > 1:  # under the name that a node asks for
            name = f"{newest.signed.version + gap}.root.json"
            path = site.channel / "metadata" / name
            path.rename(path.with_name(f"{newest.signed.version + 1}.root.json"))

    return attack


def _lower(root: Any) -> None:
    root.roles["root"].threshold = root.roles["targets"].threshold = 1


def _mine(root: Any) -> None:
    mine = CryptoSigner.generate_ed25519().public_key
    root.add_key(mine, "targets")


def _other_class(document: dict[str, Any]) -> None:
    document["class"] = "a100"


def _own_image(document: dict[str, Any]) -> None:
    evil(document)
    document["rollout"]["to"]["kind"] = "disk"
    image = {"path": "images/evil", "size": 1, "sha256": "e" * 64, "header": {"build_id": EVIL}}
    document["images"] = {EVIL: image}


def _back(document: dict[str, Any]) -> None:
    document["rollout"]["back"] = {NODE: EVIL}


def _orders(change: Callable[[dict[str, Any]], None]) -> Attack:
    return all_of(lambda site: site.order(change), stamped)


def _twice(site: Site) -> None:
    evil_program(site, "targets", "one of targets")
    path = site.channel / "metadata" / f"{site.versions()['targets']}.targets.json"
    document = json.loads(path.read_bytes())
    document["signatures"] *= 2
    path.write_text(json.dumps(document))
    site.stamp()


NONE = r"has 0 good signatures"
ONE = r"has 1 good signatures of the trusted keys, and needs 2"
SEEN = r"this node has seen version"
REFUSED: dict[str, tuple[str, Attack, str]] = {
    # The online key
    "online signs a program": ("online", _program_in("targets", "online"), f"targets {NONE}"),
    "online signs orders": ("online", _signs("orders", "online"), f"orders {NONE}"),
    "online signs the release of a team": ("online", _signs("team", "online"), f"team {NONE}"),
    "online signs a root": ("online", _next_root("online"), f"root {NONE}"),
    "online names an older release": (
        "online",
        _no_such_version,
        "has no metadata/99.targets.json",
    ),
    "online leaves out the orders": ("online", _without("orders"), "orders.json"),
    "online leaves out the release": ("online", _without("targets"), "targets.json"),
    "online leaves out a team": ("online", _without("team"), "team.json any more|team.json"),
    "the web server has other orders": (
        "",
        _other_bytes("orders/*.l4.json"),
        "not what was signed",
    ),
    # The key of the orders, without the online key
    "orders replaces what is published": ("orders", _in_place("orders", "orders"), "longer than"),
    # The key of the orders and the online key: the controller
    "controller orders what is not released": ("orders+online", _orders(evil), "have not released"),
    "controller orders an image of its own": (
        "orders+online",
        _orders(_own_image),
        "have not released",
    ),
    "controller sends back to what is not released": (
        "orders+online",
        _orders(_back),
        "have not released",
    ),
    "controller gives orders of another class": (
        "orders+online",
        _orders(_other_class),
        "no document of schema",
    ),
    "controller gives orders in another form": (
        "orders+online",
        _orders(lambda document: document.pop("rollout")),
        "no document of schema",
    ),
    "orders lists a state": (
        "orders+online",
        _state_in("orders", "orders", f"states/l4/{EVIL}"),
        "have not released",
    ),
    "orders lists an image": (
        "orders+online",
        _state_in("orders", "orders", f"images/l4/{EVIL}.root.gz"),
        "have not released",
    ),
    "orders delegates all names": (
        "orders+online",
        _delegates("orders", "orders"),
        "have not released",
    ),
    "controller signs a release": (
        "orders+online",
        _program_in("targets", "orders+online"),
        f"targets {NONE}",
    ),
    "controller signs a root": ("orders+online", _next_root("orders+online"), f"root {NONE}"),
    # The key of a team, with the controller's
    "team lists a state": (
        "team+orders+online",
        _state_in("team", "team", f"states/l4/{EVIL}"),
        "have not released",
    ),
    "team lists an image of another class": (
        "team+orders+online",
        _state_in("team", "team", f"images/a100/{EVIL}.root.gz"),
        "have not released",
    ),
    "team lists an image in a deeper folder": (
        "team+orders+online",
        _state_in("team", "team", f"images/l4/x/{EVIL}.root.gz"),
        "have not released",
    ),
    "team signs a release": ("team+online", _program_in("targets", "team"), f"targets {NONE}"),
    "team signs orders": ("team+online", _signs("orders", "team"), f"orders {NONE}"),
    # One of two keys of targets
    "one of targets signs a program": (
        "one of targets+online",
        _program_in("targets", "one of targets"),
        f"targets {ONE}",
    ),
    "one of targets signs twice": ("one of targets+online", _twice, "no metadata of TUF"),
    "one of targets signs orders": (
        "one of targets+online",
        _signs("orders", "one of targets"),
        f"orders {NONE}",
    ),
    "one of targets and the controller sign a program": (
        "one of targets+orders+online",
        _program_in("targets", "one of targets+orders+online"),
        f"targets {ONE}",
    ),
    "one of targets signs a root": (
        "one of targets",
        _next_root("one of targets"),
        f"root {NONE}",
    ),
    # All keys of targets, without the online key
    "targets replaces what is published": (
        "targets",
        _in_place("targets", "targets"),
        "longer than|were signed",
    ),
    "targets signs a timestamp": (
        "targets",
        lambda site: site.forge("timestamp", "targets", lambda signed: None),
        f"timestamp {NONE}",
    ),
    "targets signs a root": ("targets", _next_root("targets"), f"root {NONE}"),
    # One of the keys of the root, of which two must sign
    "one of root signs a root": ("one of root", _next_root("one of root"), f"root {ONE}"),
    "one of root lowers the thresholds": (
        "one of root",
        _next_root("one of root", _lower),
        f"root {ONE}",
    ),
    "one of root names another key of targets": (
        "one of root",
        _next_root("one of root", _mine),
        f"root {ONE}",
    ),
    "one of root signs a release": (
        "one of root+online",
        _program_in("targets", "one of root"),
        f"targets {NONE}",
    ),
    "one of root signs a timestamp": (
        "one of root",
        lambda site: site.forge("timestamp", "one of root", lambda signed: None),
        f"timestamp {NONE}",
    ),
    "one of root leaves out a version": (
        "one of root",
        _next_root("one of root", gap=2),
        "root has",
    ),
    "no key at all: a root without signatures": ("", _next_root(""), f"root {NONE}"),
    "no key at all: a timestamp without signatures": (
        "",
        lambda site: site.forge("timestamp", "", lambda signed: None),
        f"timestamp {NONE}",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_thief_gets_nothing_that_the_stolen_keys_may_not_sign(site: Site, name: str) -> None:
    stolen, attack, why = REFUSED[name]
    before = site.read("old")
    site.stolen = set(stolen.split("+"))
    attack(site)
    answers = [answered(site, memory) for memory in ("old", "new")]
    refusals = [answer for answer in answers if isinstance(answer, str)]
    assert refusals, "a node refuses it"
    assert all(re.search(why, refusal) for refusal in refusals), refusals
    # A node that has the published version does not read the file of the thief, and goes on.
    assert all(answer == before for answer in answers if not isinstance(answer, str))


def answered(site: Site, memory: str, days: float = 0) -> Seen | str:
    """Return what a node takes, or why it refuses."""
    try:
        return site.read(memory, days)
    except (ChannelRefusedError, ChannelTooLongError) as refusal:
        return str(refusal)


# What a thief can do, and what ends it


def test_the_online_key_can_withhold_news_until_the_orders_expire(site: Site) -> None:
    site.stolen = {"online"}
    assert site.read("old").wants == documents.NEW
    site.stamp(lambda meta: meta.update({"orders.json": MetaFile(1)}), days=3650)
    assert "this node has seen version" in str(answered(site, "old"))
    assert site.read("new").wants is None, "a node without memory takes an older state"
    assert "orders of" in str(answered(site, "new", days=8))
    assert "has expired" in str(answered(site, "new", days=8))


def test_a_new_online_key_ends_a_freeze_and_a_version_that_is_far_ahead(site: Site) -> None:
    site.stolen = {"online"}
    for role in ("snapshot", "timestamp"):
        site.forge(role, "online", lambda signed: None, 2**31)
    newest = updates.newest(site.channel, "snapshot")
    assert newest is not None

    def far(signed: Any) -> None:
        signed.snapshot_meta = MetaFile(newest.signed.version)

    site.forge("timestamp", "online", far, 2**31)
    site.read("old")
    rotated(site, online=[key_file(site.directory, "online2.pem")])
    site.keys = replace(site.keys, online=[site.directory / "online2.pem"])
    for path in (site.channel / "metadata").glob("2147483648.*"):
        path.unlink()
    (site.channel / "metadata/timestamp.json").unlink()
    site.publisher.publish(ChannelRelease())
    assert site.read("old").wants == documents.NEW
    site.stamp()
    assert "timestamp has 0 good signatures" in str(answered(site, "old"))


def test_the_controllers_keys_can_freeze_begin_waves_and_lift_denials_of_released_states(
    site: Site,
) -> None:
    site.stolen = {"orders", "online"}

    def change(document: dict[str, Any]) -> None:
        document["frozen"] = [{"nodes": None, "reason": "no reason", "who": "thief"}]
        document["rollout"]["to"]["digest"] = documents.OLD

    site.order(change)
    site.stamp()
    found = site.read("old")
    assert found.frozen == "frozen by thief: no reason"
    assert found.wants == documents.OLD, "it is released too"
    site.store.run(lambda c: orders.deny(c, "l4", documents.OLD, ALICE))
    publisher = ChannelPublisher(site.store, site.channel, site.keys)
    publisher.publish(ChannelRelease())  # with the keys of targets
    site.order(change)
    site.stamp()
    assert "have not released" in str(answered(site, "old"))


def test_the_key_of_a_team_with_the_controllers_chooses_images_of_its_class(site: Site) -> None:
    site.stolen = {"team", "orders", "online"}
    name = f"images/l4/{EVIL}.root.gz"
    site.forge("team", "team", lambda signed: site.file(signed, name, b"x", {"header": {}}))
    site.order(evil)
    site.stamp()
    assert site.read("old").wants == EVIL
    # The keys of targets withdraw the team's key.
    other = key_file(site.directory, "team2.pem")
    team = DelegatedPaths("team", keys.publics([other]), ["images/l4/*"])
    release = site.publisher.prepare(ChannelRelease(delegated=[team]))
    updates.accept(site.channel, "targets", updates.sign(release, keys.signers(site.keys.targets)))
    site.stamp()
    assert "team has 0 good signatures" in str(answered(site, "old"))


def test_all_keys_of_targets_with_the_online_key_choose_the_program_until_they_are_rotated(
    site: Site,
) -> None:
    site.stolen = {"targets", "online"}
    evil_program(site, "targets", "targets")
    site.stamp()
    assert site.read("old").program == b"evil"
    fresh = [key_file(site.directory, name) for name in ("t3.pem", "t4.pem")]
    rotated(site, targets=fresh)
    site.keys = replace(site.keys, targets=fresh)
    site.publisher.publish(ChannelRelease())
    assert site.read("old").program != b"evil"
    evil_program(site, "targets", "targets")
    site.stamp()
    assert "targets has 0 good signatures" in str(answered(site, "old"))


def test_enough_keys_of_the_root_choose_all_until_a_person_replaces_the_root_on_the_nodes(
    site: Site,
) -> None:
    site.stolen = {"root"}
    mine = [key_file(site.directory, f"mine{number}.pem") for number in range(2)]
    change = {"root": mine[:1], "root_threshold": 1, "targets": mine[:1], "targets_threshold": 1}
    rotated(site, **change, online=mine[1:])
    release = updates.next_release(site.channel)
    site.file(release.signed, PROGRAM, b"evil")
    site.file(release.signed, "l4.json", b"{}")
    updates.accept(site.channel, "targets", updates.sign(release, keys.signers(mine[:1])))
    updates.refresh(site.channel, keys.signers(mine[1:]))
    node = site.node("old")
    assert node.verifier.target(node.verifier.refresh(), PROGRAM) == b"evil"


def test_a_new_key_of_the_orders_is_named_by_the_keys_of_targets_alone(site: Site) -> None:
    site.stolen = {"orders", "online"}
    site.keys = replace(site.keys, orders=[key_file(site.directory, "orders2.pem")])
    site.store.run(lambda c: orders.deny(c, "l4", EVIL, ALICE))
    with pytest.raises(UpdateError, match="orders has 0 signatures"):
        site.publisher.publish()
    site.publisher.publish(ChannelRelease())
    assert site.read("old").wants == documents.NEW
    site.order(lambda document: None)
    site.stamp()
    assert "orders has 0 good signatures" in str(answered(site, "old"))


def rotated(site: Site, **change: Any) -> None:
    keys.rotate(site.channel, RepositoryKeys(**change), site.keys.root[:2])


def test_each_row_of_the_table_of_thieves_names_tests_of_this_file() -> None:
    page = Path(__file__).parents[4] / "docs/how-to/follow.md"
    table = page.read_text(encoding="utf-8").partition("## The thief of each key")[2]
    named = re.findall(r"`(test_\w+)`", table.partition("\n## ")[0])
    own = {name for name in globals() if name.startswith("test_")}
    assert set(named) == own - {"test_each_row_of_the_table_of_thieves_names_tests_of_this_file"}
