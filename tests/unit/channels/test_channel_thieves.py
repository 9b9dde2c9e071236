"""What the thief of each key of image and disk channels can do: the table of docs/how-to/channel-keys.md, row by row.

The thief signs for real with the stolen keys, may replace everything at the place, and meets two clients: one that has
seen the place before, and one that has its first root alone.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.channels import signing
from tuf.api.metadata import Metadata, MetaFile

from goldnode.channels import delegations, keys, promotion, signed, updates, upkeep
from goldnode.channels.keys import RepositoryKeys
from goldnode.channels.lines import ChannelLine, RecordedMove
from goldnode.channels.promotion import Move
from goldnode.channels.signed import ChannelSigners
from goldnode.channels.updates import DelegatedPaths, UpdateError
from goldnode.core.errors import DiskError, GoldnodeError
from goldnode.disks.lines import line_of
from goldnode.disks.places import ChannelStore
from goldnode.disks.publish import pull
from goldnode.evidence.signatures import load_signer

DISK, IMAGE = line_of("l4"), ChannelLine("cuda", "12.4-runtime-debian12")
GOOD, EVIL = "sha256:" + "a" * 64, "sha256:" + "e" * 64
TEAMS = ("ci", "disks", "images")
NAMES = ("online", "r1", "r2", "t1", "t2", *TEAMS)


@dataclass
class Site:
    """A place with all roles: root and targets 2 of 2, CI for candidates, one team for disks and one for images."""

    folder: Path
    place: signing.MemoryPlace
    stores: Path | None = None

    def key(self, name: str) -> Path:
        return signing.key_of(self.folder / "keys", name)

    def signers(self, *names: str) -> ChannelSigners:
        roles = [load_signer(self.key(name)) for name in names]
        return ChannelSigners(roles, [load_signer(self.key("online"))])

    def store(self, name: str) -> signing.MemoryStore:
        return signing.MemoryStore((self.stores or self.folder) / name)

    @property
    def root(self) -> Path:
        return self.folder / "first-root.json"

    def promote(self, line: ChannelLine, channel: str, letter: str, *names: str) -> None:
        move = Move(line, channel, self.signers(*names), "ana", to=letter)
        promotion.promote(self.place, self.store("own"), move, lambda *_: ([], []))

    def sees(self, client: str) -> dict[str, str]:
        """Return what a client believes of each channel. Raises GoldnodeError for what it refuses."""
        roots = [self.root] if client == "new" else []
        channels = signing.state(self.place, self.store(client), *roots).there
        assert channels.trusted
        return {name: rows[-1].now for name, rows in channels.moves.items()}

    def pulls(self, client: str) -> None:
        """Pull a disk, as far as its channels: the place has no build. Raises GoldnodeError for what is refused."""
        roots = [self.root] if client == "new" else []
        trust = [load_signer(self.key("disks")).public]
        with pytest.raises(DiskError) as refusal:
            pull(
                HeldFiles(self.place),  # type: ignore[arg-type]
                ChannelStore(self.store(client).root),
                "l4",
                trust=trust,
                roots=roots,
            )
        if "memory/l4/" not in refusal.value.message:
            raise refusal.value

    # What a thief does

    def forge(
        self, role: str, by: tuple[str, ...], change: Callable[[Any], None], gap: int = 1
    ) -> None:
        """Change the newest document of a role, sign it with stolen keys, and put it at the place."""
        name = max(
            (name for name in self.place.held if name.split(".")[-2] == role),
            key=lambda name: int(name.split(".")[0]) if name[0].isdigit() else 0,
        )
        document: Metadata[Any] = Metadata.from_bytes(self.place.held[name])
        document.signed.version += gap
        change(document.signed)
        document.signatures.clear()
        for signer in keys.signers([self.key(one) for one in by]):
            document.sign(signer.signer, append=True)
        file = f"{role}.json" if role == "timestamp" else f"{document.signed.version}.{role}.json"
        self.place.held[file] = document.to_bytes()

    def stamp(self, change: Callable[[dict[str, MetaFile]], None] = lambda meta: None) -> None:
        """Sign snapshot and timestamp with the stolen online key, over the newest documents or others."""
        versions: dict[str, int] = {}
        for name in self.place.held:
            role = name.split(".")[-2]
            if role not in ("root", "snapshot", "timestamp"):
                versions[role] = max(versions.get(role, 0), int(name.split(".")[0]))
        meta = {f"{role}.json": MetaFile(version) for role, version in versions.items()}
        change(meta)
        self.forge("snapshot", ("online",), lambda signed: setattr(signed, "meta", meta))
        version = signed.version_of(self.place.held, "snapshot")
        self.forge(
            "timestamp",
            ("online",),
            lambda signed: setattr(signed, "snapshot_meta", MetaFile(version)),
        )


class HeldFiles:
    """The files of a place in memory, as a source of pulls."""

    name = "memory"

    def __init__(self, place: signing.MemoryPlace) -> None:
        self.place = place

    def small(self, path: str) -> bytes | None:
        return self.place.held.get(path.removeprefix(f"{signed.FOLDER}/"))

    def fetch(self, path: str, into: Path, sha256: str) -> bool:
        raise AssertionError("no build is published")


def evil(
    line: ChannelLine, channel: str, past: Sequence[RecordedMove] = ()
) -> Callable[[Any], None]:
    """Return a change that points a channel to the thief's image, after the moves of its past."""
    name = line.target(channel)
    move = RecordedMove(99, "promote", channel, None, EVIL, "evil", "thief", "2026-11-28T10:00:00Z")

    def change(document: Any) -> None:
        document.targets[name] = signed.target_of(name, [*past, replace(move, size=1)])

    return change


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("site"), signing.MemoryPlace())
    teams = [
        DelegatedPaths(name, keys.publics([site.key(name)]), [path])
        for name, path in zip(TEAMS, ("*/*/candidate", "*/disk/*", "cuda/*/*"), strict=True)
    ]
    first = RepositoryKeys(
        [site.key("online")],
        [site.key("t1"), site.key("t2")],
        root_threshold=2,
        targets_threshold=2,
    )
    change = upkeep.ChannelKeyChange(first, [site.key("r1"), site.key("r2")], teams)
    upkeep.change_keys(site.place, site.store("own"), change, site.signers(*NAMES[3:]))
    site.root.write_bytes(site.place.held["1.root.json"])
    site.promote(DISK, "candidate", "a", "ci")
    for line, team in ((DISK, "disks"), (IMAGE, "images")):
        site.promote(line, "stable", "a", team)
    signed.write_folder(signed.copy_of(site.store("old"), "memory"), site.place.files())
    return site


@pytest.fixture
def site(template: Site, tmp_path: Path) -> Site:
    place = signing.MemoryPlace()
    place.held = dict(template.place.held)
    own = Site(template.folder, place)
    assert own.sees("old") == own.sees("new") == dict.fromkeys(own.sees("old"), GOOD)
    return own


Attack = Callable[[Site], None]


def _signs(role: str, by: tuple[str, ...], line: ChannelLine, channel: str = "stable") -> Attack:
    def attack(site: Site) -> None:
        site.forge(role, by, evil(line, channel))
        site.stamp()

    return attack


def _meta(change: Callable[[dict[str, MetaFile]], None]) -> Attack:
    return lambda site: site.stamp(change)


def _older(site: Site) -> None:
    """The thief of the online key names the release of a team before its promotion."""
    site.place.held["1.disks.json"] = _FIRST[0]
    site.stamp(lambda meta: meta.update({"disks.json": MetaFile(1)}))


_FIRST: list[bytes] = []


def _mixed(site: Site) -> None:
    """The release of today with the snapshot of another day."""
    later = dict(site.place.held)
    site.promote(DISK, "candidate", "b", "ci")
    name = next(name for name in site.place.held if name.endswith(".ci.json"))
    old = next(name for name in later if name.endswith(".ci.json"))
    site.place.held = {**later, old: site.place.held[name]}


def _root(
    by: tuple[str, ...], change: Callable[[Any], None] = lambda root: None, gap: int = 1
) -> Attack:
    def attack(site: Site) -> None:
        site.forge("root", by, change, gap)
        if gap > 1:
            site.place.held["2.root.json"] = site.place.held.pop(f"{1 + gap}.root.json")

    return attack


def _other_root(site: Site) -> None:
    """A writer puts a root of its own in the place of the one that was seen."""
    root: Metadata[Any] = Metadata.from_bytes(site.place.held["1.root.json"])
    root.signed.roles["timestamp"].keyids = root.signed.roles["root"].keyids
    site.place.held["1.root.json"] = root.to_bytes()


def _lower(root: Any) -> None:
    root.roles["root"].threshold = root.roles["targets"].threshold = 1


def _delegates(site: Site) -> None:
    mine = DelegatedPaths("mine", keys.publics([site.key("online")]), ["*/*/*"])
    site.forge("targets", ("t1",), lambda document: updates.delegate(document, [mine]))
    site.stamp()


def _other_place(site: Site) -> None:
    other = signing.MemoryPlace()
    signing.make_channels(other, site.store("other"), site.folder / "thief", site.key("online"))
    site.place.held = other.held


def _twice(site: Site) -> None:
    site.forge("targets", ("t1",), evil(DISK, "stable"))
    name = f"{signed.version_of(site.place.held, 'targets')}.targets.json"
    document = json.loads(site.place.held[name])
    document["signatures"] *= 2
    site.place.held[name] = json.dumps(document).encode()
    site.stamp()


def _lies(site: Site) -> None:
    """A team says of its channel that the last move led elsewhere than its target."""
    name = DISK.target("stable")

    def change(document: Any) -> None:
        document.targets[name].hashes["sha256"] = "e" * 64

    site.forge("disks", ("disks",), change)
    site.stamp()


UNSIGNED = "not enough of the trusted keys have signed it"
REFUSED: dict[str, tuple[Attack, str]] = {
    # Who can write the place, without a key
    "a writer puts another place's channels there": (_other_place, "root|refused"),
    "a writer replaces the root that was seen": (_other_root, "root that was seen|no trusted root"),
    "a writer mixes states of two days": (_mixed, "not the one that was signed"),
    # The online key
    "online signs targets": (_signs("targets", ("online",), DISK), UNSIGNED),
    "online signs the channels of a team": (_signs("disks", ("online",), DISK), UNSIGNED),
    "online signs candidates": (_signs("ci", ("online",), DISK, "candidate"), UNSIGNED),
    "online signs a root": (_root(("online",)), "refused"),
    "online leaves a team out": (
        _meta(lambda meta: meta.__delitem__("disks.json")),
        "refused",
    ),
    "online names an older release": (_older, "older than what was seen|refused"),
    "online names a release that nobody signed": (
        _meta(lambda meta: meta.update({"targets.json": MetaFile(99)})),
        "lack|refused",
    ),
    # Keys of teams
    "CI signs for the team of disks": (_signs("disks", ("ci",), DISK), UNSIGNED),
    "the team of disks signs for that of images": (_signs("images", ("disks",), IMAGE), UNSIGNED),
    "a team signs targets": (_signs("targets", ("disks", "images", "ci"), DISK), UNSIGNED),
    "a team lies about its last move": (_lies, "leads to another image than its target"),
    # The builder's key signs images alone
    "the builder signs a channel": (_signs("targets", ("builder",), DISK), UNSIGNED),
    "the builder signs the channels of a team": (_signs("disks", ("builder",), DISK), UNSIGNED),
    # Keys of targets and root
    "one of two keys of targets signs a channel": (_signs("targets", ("t1",), DISK), UNSIGNED),
    "one of two keys of targets signs twice": (_twice, "refused|another form"),
    "one of two keys of targets delegates all": (_delegates, UNSIGNED),
    "one of two keys of the root signs a root": (_root(("r1",)), UNSIGNED),
    "one of two keys of the root lowers the thresholds": (_root(("r1",), _lower), UNSIGNED),
    "the keys of the root leave out a version": (_root(("r1", "r2"), gap=2), "refused"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_clients_refuse_what_the_thief_signs(site: Site, name: str, template: Site) -> None:
    attack, why = REFUSED[name]
    if attack is _older and not _FIRST:
        _FIRST.append(_first_release(template))
    attack(site)
    for client in ("old", "new"):
        if attack is _older and client == "new":
            continue  # who has seen nothing takes any state that was signed, until it expires
        with pytest.raises(GoldnodeError, match=why):
            site.sees(client)


def _first_release(template: Site) -> bytes:
    """Return the first, empty release of the team of disks, as it was signed at the beginning."""
    name = next(name for name in template.place.held if name.endswith(".disks.json"))
    document: Metadata[Any] = Metadata.from_bytes(template.place.held[name])
    first = copy.deepcopy(document)
    first.signed.version, first.signed.targets = 1, {}
    first.signatures.clear()
    first.sign(load_signer(template.key("disks")).signer)
    return first.to_bytes()


# Channels that a role may not sign: listed there, and no client reads them.
IGNORED: dict[str, tuple[str, ChannelLine, str]] = {
    "CI promotes to stable": ("ci", DISK, "stable"),
    "CI promotes an image to known-good": ("ci", IMAGE, "known-good"),
    "the team of disks moves an image": ("disks", IMAGE, "stable"),
    "the team of images moves a disk": ("images", DISK, "canary"),
    "the team of images moves another backend": (
        "images",
        ChannelLine("rocm", "6-base-debian12"),
        "stable",
    ),
}


@pytest.mark.parametrize("name", IGNORED)
def test_a_role_signs_its_own_channels_alone(site: Site, name: str) -> None:
    role, line, channel = IGNORED[name]
    before = site.sees("old")
    _signs(role, (role,), line, channel)(site)
    for client in ("old", "new"):
        assert site.sees(client) == before


def test_a_role_with_the_online_key_chooses_its_own_channels_until_it_is_replaced(
    site: Site,
) -> None:
    before = dict(site.place.held)
    past = signing.said(site.place).moves[DISK.target("candidate")]
    _signs("ci", ("ci",), DISK, "candidate")(site)
    with pytest.raises(GoldnodeError, match="went different ways"):
        site.sees("old")  # the thief left the past out
    name = DISK.target("candidate")
    site.place.held = dict(before)
    site.forge("ci", ("ci",), evil(DISK, "candidate", past))
    site.stamp()
    assert site.sees("old")[name] == EVIL
    assert site.sees("old")[DISK.target("stable")] == GOOD


def _drops_the_past(site: Site) -> None:
    site.forge("disks", ("disks",), evil(DISK, "stable"))
    site.stamp()


def _ends_earlier(site: Site) -> None:
    site.forge("disks", ("disks",), lambda document: document.targets.clear())
    site.stamp()


def _same_version(site: Site) -> None:
    """Two states of the same version: each is signed, and they have different moves."""
    before = dict(site.place.held)
    site.promote(DISK, "stable", "b", "disks")
    signed.write_folder(signed.copy_of(site.store("twin"), "memory"), site.place.held)
    site.place.held = before
    _drops_the_past(site)


PASTS: dict[str, tuple[Attack, str, str]] = {
    "a team drops the past": (_drops_the_past, "old", "went different ways"),
    "a team drops the end of the past": (_ends_earlier, "old", "lack moves that"),
    "two states of one version": (_same_version, "twin", "went different ways"),
    "a writer deletes the channels": (
        lambda site: site.place.held.clear(),
        "old",
        "lack moves that",
    ),
}


@pytest.mark.parametrize("name", PASTS)
def test_a_pull_refuses_channels_that_lack_moves_which_were_seen(
    site: Site, name: str, tmp_path: Path
) -> None:
    attack, client, why = PASTS[name]
    own = replace(site, stores=tmp_path)
    signed.write_folder(signed.copy_of(own.store(client), "memory"), site.place.held)
    own.pulls(client)
    attack(own)
    for _ in range(2):  # a refusal leaves the copy, so that the next pull is refused too
        with pytest.raises(GoldnodeError, match=why):
            own.pulls(client)


def test_the_online_key_can_freeze_and_the_freeze_ends_by_itself(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = dict(site.place.held)
    site.promote(DISK, "candidate", "b", "ci")
    site.place.held = frozen
    assert site.sees("old")[DISK.target("candidate")] == GOOD, "withheld, for some days"
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=signed.DAYS + 1)
    real = dt.datetime

    class Later(real):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return later

    monkeypatch.setattr("tuf.ngclient._internal.trusted_metadata_set.datetime.datetime", Later)
    for client in ("old", "new"):
        with pytest.raises(UpdateError, match=r"has expired.*goldnode channels refresh"):
            site.sees(client)


def test_a_stolen_key_of_a_team_is_replaced_by_the_keys_of_targets_alone(
    site: Site, tmp_path: Path
) -> None:
    own = Site(site.folder, site.place)
    teams = [
        DelegatedPaths("ci", keys.publics([site.key("ci2")]), ["*/*/candidate"]),
        DelegatedPaths("disks", keys.publics([site.key("disks")]), ["*/disk/*"]),
        DelegatedPaths("images", keys.publics([site.key("images")]), ["cuda/*/*"]),
    ]
    store = signing.MemoryStore(tmp_path / "store")
    change = upkeep.ChannelKeyChange(teams=teams)
    with pytest.raises(UpdateError, match="targets has 0 signatures"):
        upkeep.change_keys(site.place, store, change, own.signers("ci2"), roots=[site.root])
    upkeep.change_keys(site.place, store, change, own.signers("t1", "t2", "ci2"), roots=[site.root])
    assert site.sees("new") == site.sees("old"), "the past is signed by the new key"
    _signs("ci", ("ci",), DISK, "candidate")(site)
    with pytest.raises(UpdateError, match=UNSIGNED):
        site.sees("new")


def test_a_stolen_online_key_is_replaced_by_the_keys_of_the_root(
    site: Site, tmp_path: Path
) -> None:
    store, before = signing.MemoryStore(tmp_path / "store"), dict(site.place.held)
    present = [site.key("r1"), site.key("r2")]
    change = upkeep.ChannelKeyChange(RepositoryKeys([site.key("online2")]), present)
    signers = ChannelSigners((), [load_signer(site.key("online2"))])
    done = upkeep.change_keys(site.place, store, change, signers, roots=[site.root])
    assert done is not None
    assert done.now == done.before, "thresholds stay"
    assert site.sees("old") == site.sees("new")
    after = dict(site.place.held)
    site.stamp()  # by the stolen key
    with pytest.raises(UpdateError, match=UNSIGNED):
        site.sees("new")
    # The thief takes the new root away again: who has seen it goes back to no older one.
    own = replace(site, stores=tmp_path)
    signed.write_folder(signed.copy_of(own.store("old"), "memory"), after)
    for newer in range(4):  # from the timestamp before to newer ones
        site.place.held = {name: data for name, data in before.items() if name != "2.root.json"}
        for _ in range(newer):
            site.stamp()
        for roots in ([], [site.root]):
            with pytest.raises(GoldnodeError, match=f"older than|root that was seen|{UNSIGNED}"):
                promotion.followed(site.place.held, "memory", own.store("old"), roots)
        assert signed.seen(own.store("old"), "memory") == after


def test_all_keys_of_targets_choose_each_channel_until_they_are_replaced(
    site: Site, tmp_path: Path
) -> None:
    before, moves = dict(site.place.held), signing.said(site.place).moves
    for line in (DISK, IMAGE):  # of teams too
        name = line.target("stable")
        site.forge("targets", ("t1", "t2"), evil(line, "stable", moves[name]))
        site.stamp()
        assert site.sees("old")[name] == site.sees("new")[name] == EVIL
    site.place.held = before
    own, store = ["t3", "t4"], signing.MemoryStore(tmp_path / "store")
    following = RepositoryKeys(targets=[site.key(name) for name in own])
    change = upkeep.ChannelKeyChange(following, [site.key("r1"), site.key("r2")])
    upkeep.change_keys(site.place, store, change, site.signers(*own), roots=[site.root])
    assert site.sees("old") == site.sees("new") == dict.fromkeys(moves, GOOD)
    _signs("targets", ("t1", "t2"), DISK)(site)
    for client in ("old", "new"):
        with pytest.raises(UpdateError, match=UNSIGNED):
            site.sees(client)


def test_keys_that_expired_are_a_refresh_away(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signers = replace(site.signers(), days=-1)
    monkeypatch.setattr(updates, "DAYS", 1)
    with signed.opened(site.place.files()) as repository:
        updates.refresh(repository, signers.online, -1)
        site.place.held = signed.read_folder(repository / signed.FOLDER)
    with pytest.raises(UpdateError, match=r"goldnode channels refresh"):
        site.sees("new")
    store = signing.MemoryStore(tmp_path / "store")
    change = upkeep.ChannelKeyChange(renew=True)
    upkeep.change_keys(site.place, store, change, site.signers(), roots=[site.root])
    assert site.sees("new") == site.sees("old")


def test_a_promotion_by_the_wrong_key_names_who_may_sign(site: Site) -> None:
    with pytest.raises(
        UpdateError, match="disks has 0 signatures by keys that the trusted targets names"
    ):
        site.promote(DISK, "canary", "b", "ci")


@pytest.mark.parametrize(
    ("paths", "right"),
    [
        ("l4/disk/stable", True),
        ("cuda/*/*", True),
        ("*/disk/candidate", True),
        ("l4/stable", False),
        ("images/l4/x", False),
    ],
)
def test_a_file_of_delegations_names_channels(
    tmp_path: Path, site: Site, paths: str, right: bool
) -> None:
    public = site.folder / "keys/ci.pub"
    (tmp_path / "teams.yml").write_text(
        f"roles:\n  ci:\n    keys: [{public}]\n    paths: ['{paths}']\n"
    )
    if right:
        (team,) = delegations.load(tmp_path / "teams.yml", delegations.CHANNELS)
        assert team.paths == [paths]
    else:
        with pytest.raises(
            UpdateError, match=r"teams.yml:4: .*matches no target here.*CLASS/disk/CHANNEL"
        ):
            delegations.load(tmp_path / "teams.yml", delegations.CHANNELS)


def test_each_row_of_the_table_of_thieves_names_tests_of_this_file() -> None:
    page = Path(__file__).parents[3] / "docs/how-to/channel-keys.md"
    table = page.read_text(encoding="utf-8").partition("## The thief of each key")[2]
    named = set(re.findall(r"`(test_\w+)`", table.partition("\n## ")[0]))
    assert named <= {name for name in globals() if name.startswith("test_")}
    assert named
