"""Further attacks on the channels of images and disks: forms of metadata, names, and what the client of a team reads."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.channels import signing
from tests.unit.channels.test_channel_thieves import (
    DISK,
    IMAGE,
    UNSIGNED,
    Site,
    evil,
    site,
    template,
)
from tuf.api.metadata import DelegatedRole, Delegations, MetaFile, Targets

from goldnode.channels import delegations, signed
from goldnode.channels.delegations import CHANNELS
from goldnode.channels.updates import UpdateError
from goldnode.core.errors import DiskError, GoldnodeError
from goldnode.disks.directory import ENVELOPE, PREDICATE
from goldnode.disks.model import MANIFEST, SUMS
from goldnode.disks.places import ChannelStore
from goldnode.disks.publish import pull
from goldnode.evidence.signatures import load_signer

__all__ = ["site", "template"]

Change = Callable[[Any], None]
STABLE = DISK.target("stable")


def _row(change: Change) -> Change:
    """Return a change of the last recorded move of a disk's channel."""

    def apply(document: Targets) -> None:
        change(document.targets[STABLE].unrecognized_fields["custom"]["moves"][-1])

    return apply


def _digest(document: Targets) -> None:
    """The target and its move name a path in place of a digest."""
    target = document.targets[STABLE]
    target.hashes["sha256"] = "../../../etc/passwd"
    target.unrecognized_fields["custom"]["moves"][-1]["to"] = "sha256:../../../etc/passwd"


def _renamed(name: str) -> Change:
    """Return a change that lists a good target under another name as well."""

    def apply(document: Targets) -> None:
        document.targets[name] = document.targets[STABLE]

    return apply


def _expired(document: Targets) -> None:
    document.expires = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=1)


# By the key of one team, with the online key: what is wrong with the release of that team.
TEAM: dict[str, tuple[Change, str]] = {
    "a tag leads out of the store": (_row(lambda row: row.update(tag="../../../etc")), "tag"),
    "a tag is a flag": (_row(lambda row: row.update(tag="--to=/etc")), "tag"),
    "a digest is a path": (_digest, "to of a move"),
    "a number is negative": (_row(lambda row: row.update(number=-5)), "number of a move"),
    "a date is a number": (_row(lambda row: row.update(date=20261128)), "date of a move"),
    "a person is a list": (_row(lambda row: row.update(by=["ana"])), "by of a move"),
    "a requirement is a text": (_row(lambda row: row.update(gates=["order"])), "gates of a move"),
    "a move has a second name of a field": (
        _row(lambda row: row.update(channel="stable")),
        "another form",
    ),
    "a channel is not one of goldnode": (_renamed("l4/disk/stab1e"), "channel of a move"),
    "a name leads out of the place": (_renamed("../l4/disk/stable"), "no line"),
    "a name has an empty part": (_renamed("/l4/disk/stable"), "no line"),
    "a release has expired": (_expired, "has expired"),
}


@pytest.mark.parametrize("name", TEAM)
def test_clients_refuse_a_release_of_a_team_in_another_form(site: Site, name: str) -> None:
    change, why = TEAM[name]
    if name.startswith("a name"):  # patterns of the team do not match it: only targets can list it
        site.forge("targets", ("t1", "t2"), lambda it: _copy(site, it, change))
    else:
        site.forge("disks", ("disks",), change)
    site.stamp()
    for client in ("old", "new"):
        with pytest.raises(GoldnodeError, match=why):
            site.sees(client)


def _copy(site: Site, document: Targets, change: Change) -> None:
    rows = signing.said(site.place).moves[STABLE]
    document.targets[STABLE] = signed.target_of(STABLE, rows)
    change(document)
    del document.targets[STABLE]


def _nested(site: Site, name: str, paths: list[str]) -> None:
    """The team of disks delegates to a role of its own, by the name of another one, and signs that."""
    key = load_signer(site.key("disks")).public
    role = DelegatedRole(name, [key.keyid], 1, True, paths=paths)

    def change(document: Targets) -> None:
        document.delegations = Delegations({key.keyid: key}, {name: role})

    site.forge("disks", ("disks",), change)

    def own(document: Targets) -> None:
        evil(IMAGE, "stable")(document)
        document.targets["aaa/disk/stable"] = document.targets[IMAGE.target("stable")]

    site.forge("images", ("disks",), own)
    if name != "images":
        newest = f"{signed.version_of(site.place.held, 'images')}.images.json"
        site.place.held[f"1.{name}.json"] = site.place.held.pop(newest)
    site.stamp()


def test_a_team_does_not_get_the_channels_of_another_one_by_its_name(site: Site) -> None:
    """The thief gives a role of its own the name of the other team's role."""
    _nested(site, "images", ["*/disk/*"])
    for client in ("old", "new"):
        with pytest.raises(GoldnodeError, match=f"delegates further|{UNSIGNED}"):
            site.sees(client)


def test_a_team_does_not_delegate_further(site: Site) -> None:
    _nested(site, "mine", ["cuda/*/*", "*/disk/*"])
    for client in ("old", "new"):
        with pytest.raises(GoldnodeError, match=r"delegates further|refused"):
            site.sees(client)


@pytest.mark.parametrize("threshold", [0, -1])
def test_a_threshold_below_one_is_refused_though_all_keys_of_targets_sign_it(
    site: Site, threshold: int
) -> None:
    def change(document: Any) -> None:
        document.delegations.roles["disks"].threshold = threshold

    site.forge("targets", ("t1", "t2"), change)
    site.stamp()
    for client in ("old", "new"):
        with pytest.raises(GoldnodeError, match="refused"):
            site.sees(client)


def test_a_key_that_is_listed_twice_signs_once(site: Site, tmp_path: Path) -> None:
    def change(document: Any) -> None:
        role = document.delegations.roles["disks"]
        role.threshold, role.keyids = 2, role.keyids * 2

    site.forge("targets", ("t1", "t2"), change)
    site.stamp()
    with pytest.raises(GoldnodeError, match="refused"):
        site.sees("old")
    public = site.folder / "keys/ci.pub"
    rows = f"roles:\n  ci:\n    keys: [{public}, {public}]\n    threshold: 2\n    paths: ['*/disk/*']\n"
    (tmp_path / "teams.yml").write_text(rows)
    with pytest.raises(UpdateError, match="2 keys of ci must sign, and it has 1"):
        delegations.load(tmp_path / "teams.yml", CHANNELS)


def test_the_state_of_another_place_of_the_same_keys_is_refused(site: Site, tmp_path: Path) -> None:
    """A server swaps two places: each is signed, by the same keys, and has a root of the same bytes."""
    other = signing.MemoryPlace()
    other.held = dict(site.place.held)
    swapped = Site(site.folder, other, tmp_path)
    signed.write_folder(signed.copy_of(swapped.store("old"), "memory"), site.place.held)
    swapped.promote(DISK, "stable", "b", "disks")
    first, site.place.held = site.place.held, dict(other.held)
    site.promote(DISK, "stable", "a", "disks")
    signed.write_folder(signed.copy_of(swapped.store("old"), "memory"), site.place.held)
    other.held = dict(first)
    swapped.promote(DISK, "candidate", "b", "ci")
    for _ in range(4):
        other_version = signed.version_of(other.held)
        with pytest.raises(GoldnodeError, match=r"went different ways|older than|lack moves"):
            swapped.pulls("old")
        swapped.stamp()
        assert signed.version_of(other.held) > other_version


# Names, and builds that a channel does not mean


class Build:
    """A source of pulls with a build at `l4/a`, whose checksums the builder has signed for a class and a build."""

    name = "memory"

    def __init__(self, site: Site, signed_for: tuple[str, str], manifest: str) -> None:
        sums = f"{manifest}  {MANIFEST}\n".encode()
        subject = [(SUMS, hashlib.sha256(sums).hexdigest()), (MANIFEST, EMPTY)]
        statement = {
            "predicateType": PREDICATE,
            "predicate": dict(zip(("class", "build_id"), signed_for, strict=True)),
            "subject": [{"name": name, "digest": {"sha256": value}} for name, value in subject],
        }
        envelope = load_signer(site.key("builder")).sign(json.dumps(statement).encode())
        self.files = {f"l4/a/{ENVELOPE}": envelope, f"l4/a/{SUMS}": sums, f"l4/a/{MANIFEST}": b""}
        self.site, self.asked = site, list[str]()

    def small(self, path: str) -> bytes | None:
        self.asked.append(path)
        return self.files.get(path, self.site.place.held.get(path.removeprefix("metadata/")))

    def pull(self, folder: Path, name: str) -> None:
        trust, roots = [load_signer(self.site.key("builder")).public], [self.site.root]
        pull(self, ChannelStore(folder), name, trust=trust, roots=roots)  # type: ignore[arg-type]


EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    ("signed_for", "manifest", "why"),
    [
        (("h100", "a"), "a" * 64, "it was signed for h100 a, not for l4 a"),
        (("l4", "b"), "a" * 64, "it was signed for l4 b, not for l4 a"),
        (("l4", "a"), EMPTY, "and stable of l4 points to sha256:aaaa"),
    ],
    ids=["image of another class", "image of another build", "hash of another artifact"],
)
def test_a_build_that_a_channel_does_not_mean_is_refused_though_its_builder_signed_it(
    site: Site, tmp_path: Path, signed_for: tuple[str, str], manifest: str, why: str
) -> None:
    with pytest.raises(DiskError, match=why):
        Build(site, signed_for, manifest).pull(tmp_path, "l4:stable")
    assert not (tmp_path / "partial").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("../l4:stable", "l4/../h100:stable", "/etc:stable", "-l4:stable", ":stable", "L4:stable"),
        *(
            "l4:../stable",
            "l4:stable/..",
            "l4:stable:stable",
            "l4:STABLE",
            "l4:stable\n",
            "l4%2f:stable",
        ),
    ],
)
def test_a_name_with_separators_or_in_another_case_asks_for_nothing(
    site: Site, tmp_path: Path, name: str
) -> None:
    source = Build(site, ("l4", "a"), "a" * 64)
    with pytest.raises(DiskError, match=r"is no name of a class|is no channel and no build id"):
        source.pull(tmp_path, name)
    assert source.asked == []


# By who writes the place alone, before any signature is looked at


def _many_roles(site: Site) -> None:
    site.stamp(lambda meta: meta.update({f"role{n}.json": MetaFile(1) for n in range(5000)}))


def _text(name: str, text: str) -> Callable[[Site], None]:
    def attack(site: Site) -> None:
        site.place.held[name] = text.encode()

    return attack


FORMS: dict[str, Callable[[Site], None]] = {
    "a timestamp of many levels": _text("timestamp.json", "[" * 100_000),
    "a timestamp with an infinite version": _text(
        "timestamp.json", '{"signed": {"meta": {"snapshot.json": {"version": 1e999}}}}'
    ),
    "a timestamp that names a path": _text(
        "timestamp.json", '{"signed": {"meta": {"snapshot.json": {"version": "../../1"}}}}'
    ),
    "a timestamp that is a list": _text("timestamp.json", "[1]"),
    "a snapshot of thousands of roles": _many_roles,
}


@pytest.mark.parametrize("name", FORMS)
def test_files_of_a_place_that_anybody_could_write_are_read_within_limits(
    site: Site, name: str
) -> None:
    FORMS[name](site)
    asked: list[str] = []

    def read(file: str) -> bytes | None:
        asked.append(file)
        return site.place.held.get(file)

    with pytest.raises(UpdateError, match=r"another form|too many"):
        signed.newest_files(read)
    assert len(asked) < 1000


def test_roots_without_an_end_are_not_read() -> None:
    asked: list[str] = []

    def read(file: str) -> bytes:
        asked.append(file)
        return b"{}"

    with pytest.raises(UpdateError, match="too many"):
        signed.newest_files(read)
    assert len(asked) < 1000


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"signed": {"_type": "targets", "targets": {"l4/disk/stable": {"custom": {"moves": [{"number": 1e999}]}}}}}',
        '{"signed": {"_type": "targets", "targets": []}}',
        '{"signed": []}',
        "null",
    ],
)
def test_a_damaged_copy_of_a_store_is_an_error(text: str) -> None:
    with pytest.raises(UpdateError, match="another form"):
        signed.unverified({"1.targets.json": text.encode()})
