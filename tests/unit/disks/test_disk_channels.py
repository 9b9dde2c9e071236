"""Channels of disks: what has to be there before one moves, what a cut leaves, two at once, and the way back, offline too.

The disks are fixtures: directories of the manifest's form whose files are noise, with records of boots that nobody made."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.channels import signing
from tests.unit.disks.disk_samples import BUILDS, CLASS, make_build, prove, sign
from tests.unit.images.registries import make_key

from goldnode.channels import promotion as channels_moves
from goldnode.channels import signed
from goldnode.channels.lines import CHANNELS, History
from goldnode.channels.promotion import Repair, repair, rollback
from goldnode.channels.requirements import (
    ChannelSubject,
    Decisions,
    Requirement,
    RequirementDecision,
)
from goldnode.channels.updates import UpdateError
from goldnode.core.errors import DiskError, GoldnodeError, ImageError
from goldnode.cve.subjects import Carriers, disk_channels
from goldnode.disks import requirements
from goldnode.disks.channels import channel_head, promote
from goldnode.disks.contents import digest_of
from goldnode.disks.evidence import document
from goldnode.disks.lines import line_of
from goldnode.disks.model import BuiltDisk, Hygiene
from goldnode.disks.places import ChannelStore, DirectoryPlace, DiskStorePlace
from goldnode.disks.publish import publish
from goldnode.disks.requirements import judge, judge_one
from goldnode.evidence.signatures import load_public, load_signer
from goldnode.fleet.nodes.disk_update import chosen_image

pytestmark = pytest.mark.usefixtures("unsynced")
LINE = line_of(CLASS)
NOW = dt.datetime(2026, 11, 22, 5, 0, tzinfo=dt.UTC)


@dataclass
class World:
    """A store, a published directory, a key, and disks by name."""

    store: ChannelStore
    root: Path
    keys: tuple[Path, Path]
    disks: dict[str, BuiltDisk]
    folder: Path
    trusted: Path = Path()

    @property
    def history(self) -> History:
        return signing.said(self.place).history(LINE)

    def status(self) -> signing.LineState:
        seen = signing.state(self.place, self.store, self.trusted)
        return signing.status(self.place, seen, LINE)

    @property
    def place(self) -> DirectoryPlace:
        return DirectoryPlace(self.root, self.store, load_signer(self.keys[0]))

    def build(self, name: str, *, proof: dict[str, Any] | None = None, **given: Any) -> BuiltDisk:
        disk = make_build(self.store.root, name, **given)
        prove(disk, self.keys[0], **(proof or {}))
        self.disks[name] = disk
        return disk

    def publish(self, name: str, *, waive: tuple[str, ...] = (), **given: Any) -> BuiltDisk:
        disk = self.build(name, **given)
        publish(
            disk,
            self.place,
            load_signer(self.keys[0]),
            waivers=[RequirementDecision(gate, "ana", "a test") for gate in waive],
            now=NOW,
        )
        return disk

    def promote(self, name: str, channel: str, **given: Any) -> Any:
        settings: dict[str, Any] = {
            "by": "ana",
            "now": NOW,
            "place": self.place,
            "evidence": signing.unasked,
        } | given
        place = settings.pop("place")
        return promote(
            place,
            self.store,
            signing.move(
                LINE,
                channel,
                signing.signers(self.folder, self.keys[0]),
                to=BUILDS[name],
                **settings,
            ),
        )

    def rollback(self, **given: Any) -> Any:
        settings: dict[str, Any] = {
            "by": "ana",
            "reason": "it is slow",
            "now": NOW,
            "place": self.place,
        } | given
        return rollback(
            settings.pop("place"),
            self.store,
            signing.move(
                LINE,
                settings.pop("channel", "stable"),
                signing.signers(self.folder, self.keys[0]),
                **settings,
            ),
        )

    def all_the_way(self, name: str, **given: Any) -> None:
        for channel in ("candidate", "canary", "stable"):
            self.promote(name, channel, **given)

    def heads(self) -> dict[str, str]:
        names = {digest_of(disk): name for name, disk in self.disks.items()}
        found = {channel: self.place.pointer(LINE, channel) for channel in CHANNELS}
        return {channel: names.get(digest, digest) for channel, digest in found.items() if digest}

    def reported(self) -> dict[str, str]:
        names = {digest_of(disk): name for name, disk in self.disks.items()}
        history = self.history
        return {
            channel: names[entry.now] for channel in CHANNELS if (entry := history.current(channel))
        }


@pytest.fixture
def world(tmp_path: Path, keys: tuple[Path, Path]) -> World:
    (tmp_path / "place").mkdir()
    own = World(ChannelStore(tmp_path / "store"), tmp_path / "place", keys, {}, tmp_path / "keys")
    own.trusted = signing.make_channels(own.place, own.store, own.folder, keys[0])
    return own


# Gates

_CHECK = {"id": "kernel", "outcome": "failed", "expected": "6.1", "got": "6.12"}


@pytest.mark.parametrize(
    ("proof", "gate", "state", "reported"),
    [
        pytest.param({"boots": 0}, "booted", "missing", "never booted", id="never-booted"),
        pytest.param(
            {"boots": 1}, "booted", "failed", "booted 1 times, expected 2", id="booted-once"
        ),
        pytest.param(
            {"boot": {"outcome": "failed"}},
            "booted",
            "failed",
            "outcome of its boots is failed",
            id="boot-failed",
        ),
        pytest.param(
            {"boot": {"outcome": "not-verifiable"}},
            "booted",
            "failed",
            "not-verifiable, expected passed",
            id="not-verified",
        ),
        pytest.param(
            {"boot": {"raw_sha256": "0" * 64}},
            "booted",
            "failed",
            "about another disk: raw_sha256",
            id="other-disk-booted",
        ),
        pytest.param(
            {"boot": {"build_id": "e" * 12}},
            "booted",
            "failed",
            "another disk: build_id",
            id="other-build-booted",
        ),
        pytest.param(
            {"boot": {"raw_sha256_after": "0" * 64}},
            "booted",
            "failed",
            "not the same after",
            id="changed-by-boot",
        ),
        pytest.param(
            {"boot": {"boots": [{"checks": [_CHECK]}, {"checks": [_CHECK]}]}},
            "booted",
            "failed",
            "expected 6.1, got 6.12",
            id="check-failed",
        ),
        pytest.param(
            {"boot": {"boots": [{"checks": []}, {"checks": []}]}},
            "booted",
            "failed",
            "booted 0 times",
            id="nothing-checked",
        ),
        pytest.param(
            {"boot": {"boots": "two"}}, "booted", "failed", "booted 0 times", id="boots-unreadable"
        ),
        pytest.param(
            {"inspection": None}, "inspection", "missing", "no cpu_node-", id="not-inspected"
        ),
        pytest.param(
            {"inspection": False},
            "inspection",
            "failed",
            "libcudart.so.12 is foreign",
            id="inspection-refused",
        ),
        pytest.param({"papers": False}, "sbom", "missing", "cdx.json", id="no-sbom"),
        pytest.param({"papers": False}, "provenance", "missing", "provenance", id="no-provenance"),
        pytest.param(
            {"vulnerabilities": "not_checked"},
            "vulnerabilities",
            "not_run",
            "no package was compared",
            id="no-database",
        ),
    ],
)
def test_unmet_requirement_has_a_reason_and_a_remedy(
    world: World, proof: dict[str, Any], gate: str, state: str, reported: str
) -> None:
    disk = world.build("a", proof=proof)
    found = {
        row.name: row for row in judge("stable", disk, Decisions(trust=load_public(world.keys[1])))
    }
    assert (found[gate].state, found[gate].met) == (state, False)
    assert reported in found[gate].why
    assert found[gate].remedy


def test_good_disk_meets_every_requirement_but_order(world: World) -> None:
    given = Decisions(trust=load_public(world.keys[1]), evidence=signing.unasked)
    found = judge("stable", world.build("a"), given)
    assert [row.name for row in found if not row.met] == ["order"]
    booted = next(row for row in found if row.name == "booted")
    assert booted.why == "booted 2 times (tcg); not verifiable here: gpu"


@pytest.mark.parametrize(
    ("hygiene", "state"),
    [
        ((), "missing"),
        ((Hygiene("keys", "failed", "an ssh host key is in it"),), "failed"),
        ((Hygiene("keys", "waived", "for a reason"),), "passed"),
    ],
)
def test_hygiene_gate_state_follows_from_its_checks(
    world: World, hygiene: tuple[Hygiene, ...], state: str
) -> None:
    found = {row.name: row for row in judge("publish", world.build("a", hygiene=hygiene))}
    assert found["hygiene"].state == state


def _altered(disk: BuiltDisk) -> None:
    path = disk.directory / f"{disk.name}.raw"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def _late(disk: BuiltDisk) -> None:
    path = document(disk, "verified")
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))


def _unread(disk: BuiltDisk) -> None:
    document(disk, "verified").write_text("{")


@pytest.mark.parametrize(
    ("wrong", "gate"),
    [(_altered, "built"), (_late, "signature"), (_unread, "booted")],
    ids=["altered", "later", "unreadable"],
)
def test_altered_late_or_unreadable_disk_files_fail_their_gate(
    world: World, wrong: Callable[[BuiltDisk], None], gate: str
) -> None:
    disk = world.build("a")
    wrong(disk)
    found = {
        row.name: row for row in judge("publish", disk, Decisions(trust=load_public(world.keys[1])))
    }
    assert found[gate].state == "failed"


def test_without_a_key_a_signature_is_not_verified(world: World) -> None:
    assert {row.name: row.state for row in judge("publish", world.build("a"))}[
        "signature"
    ] == "not_verified"


def test_a_waiver_of_what_is_not_asked_for_is_refused(world: World) -> None:
    disk = world.build("a")
    with pytest.raises(ImageError, match='publish has no requirement "bootd"') as problem:
        judge("publish", disk, Decisions(waivers=[RequirementDecision("bootd", "ana", "x")]))
    assert problem.value.remedy == 'use "booted"'
    with pytest.raises(ImageError, match='no approval of "cudnn"'):
        judge("stable", disk, Decisions(approvals=[RequirementDecision("cudnn", "ana", "x")]))


# Moves


def test_from_candidate_to_known_good(world: World) -> None:
    world.publish("a")
    for channel in CHANNELS:
        moved = world.promote("a", channel)
        assert moved.entry.channel == channel
    assert world.heads() == world.reported() == dict.fromkeys(CHANNELS, "a")
    states = [head.state for head in world.status().stands]
    assert states == ["ok"] * 4
    assert {gate["gate"] for gate in moved.entry.requirements} >= {
        "built",
        "hygiene",
        "booted",
        "inspection",
        "signature",
        "order",
    }
    assert "is there already" not in str(moved.notes)
    assert "already" in str(world.promote("a", "stable").notes)


def test_packages_of_vulnerabilities_are_those_of_what_each_channel_points_to(world: World) -> None:
    from goldnode.classdoc.load import load_catalog

    world.publish("a")
    world.publish("b")
    world.promote("a", "candidate")
    world.promote("b", "candidate")
    world.promote("b", "canary")
    catalog, known = load_catalog(), Carriers()
    carried = list(disk_channels(catalog, world.store, known))
    names = [f"{channel} of {CLASS} at {world.place.name}" for channel in ("candidate", "canary")]
    assert [(one.kind, one.name, one.unread) for one in carried] == [
        ("channel", name, "") for name in names
    ]
    assert {one.digest for one in carried} == {world.disks["b"].disk_lock}
    assert [item.source for item in carried[0].packages] == ["bash"]
    assert carried[0].system is not None
    shutil.rmtree(world.disks["b"].directory)
    carried = list(disk_channels(catalog, world.store, known))
    assert [one.name for one in carried] == names
    assert all("goldnode disks pull" in one.unread for one in carried)


def test_a_disk_that_never_booted_is_never_promoted(world: World) -> None:
    with pytest.raises(ImageError, match="is not published: booted: it was never booted"):
        world.publish("a", proof={"boots": 0})
    left = {path.name for path in world.root.iterdir()} - {".staging", signed.FOLDER}
    assert left == set()
    with pytest.raises(ImageError, match="is not there"):
        world.promote("a", "candidate")


def test_a_waived_gate_is_waived_again_and_recorded(world: World) -> None:
    world.publish("a", proof={"boots": 0}, waive=("booted",))
    with pytest.raises(ImageError, match="is not promoted to candidate: booted"):
        world.promote("a", "candidate")
    moved = world.promote(
        "a", "candidate", waivers=[RequirementDecision("booted", "ana", "a test of waivers")]
    )
    row = next(gate for gate in moved.entry.requirements if gate["gate"] == "booted")
    assert (row["state"], row["by"], row["reason"]) == ("waived", "ana", "a test of waivers")


def test_the_order_of_channels_is_stored(world: World) -> None:
    world.publish("a")
    with pytest.raises(ImageError, match="it never was canary"):
        world.promote("a", "stable")


def test_one_that_was_rolled_back_as_bad_goes_no_further(world: World) -> None:
    for name in "ab":
        world.publish(name)
        world.promote(name, "candidate")
        world.promote(name, "canary")
    world.rollback(channel="canary")
    with pytest.raises(
        ImageError, match=r"order: canary was rolled back from it .*to canary again"
    ):
        world.promote("b", "stable")
    world.promote("a", "stable")


@pytest.mark.parametrize(
    ("given", "part", "reported"),
    [
        ({"kernel": "6.12.41-cloud-amd64"}, "kernel", "kernel goes from 6.1 to 6.12"),
        ({"driver": "550.163.01"}, "driver", "driver goes from 535 to 550"),
        ({"driver": None}, "driver", "driver goes from 535 to none"),
    ],
)
def test_another_series_needs_an_approval_of_its_own(
    world: World, given: dict[str, Any], part: str, reported: str
) -> None:
    world.publish("a", driver="535.309.01")
    world.all_the_way("a")
    world.publish("b", **{"driver": "535.309.01", **given})
    world.promote("b", "candidate")
    with pytest.raises(ImageError, match=reported):
        world.promote("b", "canary")
    with pytest.raises(ImageError, match="approved part by part"):
        world.promote("b", "canary", waivers=[RequirementDecision("majors", "ana", "x")])
    moved = world.promote(
        "b", "canary", approvals=[RequirementDecision(part, "ana", "tried on two nodes")]
    )
    assert moved.entry.approvals == ({"part": part, "by": "ana", "reason": "tried on two nodes"},)


def test_a_point_release_needs_none(world: World) -> None:
    world.publish("a", driver="535.309.01")
    world.all_the_way("a")
    world.publish("b", driver="535.400.02", kernel="6.1.0-54-cloud-amd64")
    world.all_the_way("b")
    assert world.heads()["stable"] == "b"


def test_a_tampered_disk_is_not_promoted(world: World) -> None:
    world.publish("a")
    path = world.root / CLASS / BUILDS["a"] / f"{CLASS}-{BUILDS['a']}.qcow2"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DiskError, match=r"qcow2 is altered: its sha256 is"):
        world.promote("a", "candidate")
    assert world.reported() == {}


def test_expect_holds_a_move_back(world: World) -> None:
    world.publish("a")
    world.promote("a", "candidate", expect="none")
    world.publish("b")
    with pytest.raises(ImageError, match="expected none"):
        world.promote("b", "candidate", expect="none")


def test_the_way_back_and_further(world: World) -> None:
    for name in "abc":
        world.publish(name)
        world.all_the_way(name)
    world.rollback()
    assert world.heads()["stable"] == "b"
    world.rollback()
    assert world.heads()["stable"] == world.reported()["stable"] == "a"
    with pytest.raises(ImageError, match="pointed to nothing before"):
        world.rollback()
    world.rollback(to=BUILDS["c"])
    assert world.heads()["stable"] == "c"
    chain = world.root / CLASS / "channels/stable.json"
    assert json.loads(chain.read_text())["path"] == f"{CLASS}/{BUILDS['c']}"


def test_way_back_asks_for_no_evidence(world: World) -> None:
    for name in "ab":
        world.publish(name)
        world.all_the_way(name)
    world.publish("c")

    def none_left(_: ChannelSubject) -> Requirement:
        return Requirement("evidence", "missing", "no statement of this kind")

    with pytest.raises(ImageError, match="no statement of this kind"):
        world.all_the_way("c", evidence=none_left)
    world.rollback()
    assert world.heads()["stable"] == "a"


def test_back_to_known_good(world: World) -> None:
    world.publish("a")
    world.all_the_way("a")
    world.promote("a", "known-good")
    for name in "bc":
        world.publish(name)
        world.all_the_way(name)
    assert world.rollback(to="known-good").tag == BUILDS["a"]


def test_back_to_what_the_place_lost(world: World) -> None:
    import shutil

    for name in "ab":
        world.publish(name)
        world.all_the_way(name)
    shutil.rmtree(world.root / CLASS / BUILDS["a"])
    world.rollback()
    assert world.heads()["stable"] == "a"
    assert (world.root / CLASS / BUILDS["a"] / "SHA256SUMS").is_file()


def test_offline_and_copied_there_later(world: World) -> None:
    for name in "ab":
        world.publish(name)
        world.all_the_way(name)
    name = world.place.name
    moved = world.rollback(place=DiskStorePlace(world.store, name))
    assert moved.tag == BUILDS["a"]
    assert world.heads()["stable"] == "b"  # the place has not seen it
    assert channel_head(world.store, LINE, "stable").build_id == BUILDS["a"]
    assert world.status().pending == 1
    repair(world.place, world.store, LINE, Repair([world.trusted]))
    assert world.heads()["stable"] == world.reported()["stable"] == "a"


def test_a_store_by_itself_has_channels_too(world: World) -> None:
    world.build("a")
    place = DiskStorePlace(world.store)
    signing.make_channels(place, world.store, world.folder, world.keys[0])
    for channel in ("candidate", "canary", "stable"):
        world.promote("a", channel, place=place)
    assert channel_head(world.store, LINE, "stable").build_id == BUILDS["a"]
    with pytest.raises(DiskError, match="known-good of cpu_node points to nothing"):
        channel_head(world.store, LINE, "known-good")


def test_image_of_a_channel_is_opened_as_the_signed_channel_has_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`disks update --image` and `rollout publish --image` with CLASS:CHANNEL."""
    place, root = DiskStorePlace(world.store), world.store.root
    # Another root than that of the directory, which the store knows too.
    trusted = signing.make_channels(place, world.store, tmp_path / "own", world.keys[0])
    world.folder = tmp_path / "own"
    for name in "ab":
        world.build(name)
        for channel in ("candidate", "canary", "stable"):
            world.promote(name, channel, place=place)
    site = tmp_path / "site.yml"
    monkeypatch.setenv("GOLDNODE_SITE", str(site))
    site.write_text("{}\n")
    wanted = f"{LINE}:stable"

    def refusal(text: str = wanted) -> str:
        with pytest.raises(GoldnodeError) as caught:
            chosen_image(text, root, "for this test")
        return str(caught.value)

    assert "by which key to believe who built it" in refusal()
    site.write_text(f"images: {{public_key: {world.keys[1]}}}\n")
    assert "names no root by which to believe a channel" in refusal()
    site.write_text(f"images: {{public_key: {world.keys[1]}, roots: [{trusted}]}}\n")
    assert f"image {world.disks['b'].name} has no partition esp" in refusal(), (
        "found, and it has no slots"
    )
    # Who can write the store moves its name of the channel: the signed channel decides.
    world.store.name_as(
        channels_moves.local_name("store", LINE, "stable"), digest_of(world.disks["a"])
    )
    assert f"image {world.disks['b'].name} has no partition esp" in refusal()
    assert "known-good of cpu_node points to nothing" in refusal(f"{LINE}:known-good")
    other = make_key(tmp_path, "other")
    site.write_text(f"images: {{public_key: {other[1]}, roots: [{trusted}]}}\n")
    assert "is not authentic" in refusal() or "signed by a key" in refusal()
    # Who can write the store replaces all of it, with a root of his own.
    stranger = tmp_path / "stranger"
    (tmp_path / "elsewhere").mkdir()
    own = World(ChannelStore(tmp_path / "elsewhere"), world.root, other, {}, stranger)
    foreign = DiskStorePlace(own.store)
    signing.make_channels(foreign, own.store, stranger, other[0])
    moves = signing.state(place, world.store).there.moves
    with signed.opened(foreign.files()) as repository:
        signed.release(repository, moves, signing.signers(stranger, other[0]))
        files = signed.read_folder(repository / signed.FOLDER)
    signed.write_folder(signed.copy_of(world.store, "store"), files)
    site.write_text(f"images: {{public_key: {world.keys[1]}, roots: [{trusted}]}}\n")
    assert "no trusted root document is one of store" in refusal()


@pytest.mark.parametrize("cut", ["before", "between"])
def test_a_cut_move_is_finished_by_the_same_command(
    world: World, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    world.publish("a")
    name = {"before": "commit", "between": "point"}[cut]
    with monkeypatch.context() as patched:

        def dies(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(DirectoryPlace, name, dies)
        with pytest.raises(KeyboardInterrupt):
            world.promote("a", "candidate")
    assert world.heads() == {}
    states = [head.state for head in world.status().stands]
    assert states == ([] if cut == "before" else ["unfinished"])
    world.promote("a", "candidate")
    assert world.heads() == world.reported() == {"candidate": "a"}
    assert len(world.history.entries) == 1


def test_a_pointer_that_a_person_changed_is_reported_and_repaired(world: World) -> None:
    for name in "ab":
        world.publish(name)
    world.promote("a", "candidate")
    path = world.root / CLASS / "channels/candidate.json"
    path.write_text(
        path.read_text().replace(digest_of(world.disks["a"]), digest_of(world.disks["b"]))
    )
    assert [head.state for head in world.status().stands] == ["moved"]
    with pytest.raises(ImageError, match="was moved to"):
        world.promote("b", "candidate")
    repair(world.place, world.store, LINE, Repair([world.trusted]))
    assert world.heads() == {"candidate": "a"}


def test_channels_that_were_altered_are_refused(world: World) -> None:
    world.publish("a")
    world.promote("a", "candidate")
    path = sorted((world.root / signed.FOLDER).glob("*.targets.json"))[-1]
    path.write_bytes(path.read_bytes().replace(b'"by": "ana"', b'"by": "bob"', 1))
    with pytest.raises(UpdateError, match=r"is refused"):
        world.promote("a", "canary")


def _mover(root: str, place: str, key: str, folder: str, name: str) -> str:
    store = ChannelStore(Path(root))
    signer = signing.signers(Path(folder), Path(key))
    try:
        promote(
            DirectoryPlace(Path(place), store, signer.roles[0]),
            store,
            signing.move(LINE, "candidate", signer, to=BUILDS[name], by=name),
        )
    except GoldnodeError as problem:
        return problem.message
    return "moved"


def test_two_that_move_one_channel_follow_each_other(world: World) -> None:
    for name in "abcd":
        world.publish(name)
    files = [str(path) for path in (world.store.root, world.root, world.keys[0], world.folder)]
    rows = [(*files, name) for name in "abcd"]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.starmap(_mover, rows) == ["moved"] * 4
    history = world.history
    assert [entry.number for entry in history.entries] == [1, 2, 3, 4]
    assert sorted(entry.by for entry in history.entries) == ["a", "b", "c", "d"]
    assert world.heads() == world.reported()


@pytest.mark.parametrize("name", ["../up", "", "Upper", "a/b", ".staging", "a b"])
def test_names_that_no_class_has(name: str) -> None:
    with pytest.raises(DiskError, match="is no name of a class"):
        line_of(name)


def test_every_requirement_has_a_reader() -> None:
    asked = {name for names in requirements.REQUIREMENTS.asked.values() for name in names} - {
        "order",
        "majors",
    }
    assert asked == set(requirements.READERS)


def test_signed_again_after_the_boot_it_is_good_again(world: World) -> None:
    disk = world.build("a")
    _late(disk)
    sign(disk, world.keys[0])
    assert {
        row.name: row.state
        for row in judge("publish", disk, Decisions(trust=load_public(world.keys[1])))
    }["signature"] == "passed"


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_requirement_booted_reads_what_verification_writes(world: World, outcome: str) -> None:
    from goldnode.disks import verify
    from goldnode.disks.guest import UNVERIFIABLE, GuestCheck
    from goldnode.disks.qemu import TCG, Accelerator

    disk = world.build("a", proof={"boots": 0})
    checks = [
        GuestCheck("kernel", "passed", disk.kernel, disk.kernel),
        GuestCheck("gpu", UNVERIFIABLE, "a GPU", "there is none"),
    ]
    report = verify.BootReport(disk, Accelerator(TCG, "no KVM"), disk.raw.sha256, disk.raw.sha256)
    report.boots = [verify.Boot(number, "boot", 30.0, checks) for number in (1, 2)]
    report.clones = [
        GuestCheck("machine-id", outcome, "two", "two" if outcome == "passed" else "one")  # type: ignore[arg-type]
    ]
    verify.write(report)
    booted = judge_one("booted", disk)
    assert booted.state == outcome
    assert booted.why == (
        "booted 2 times (tcg); not verifiable here: gpu"
        if outcome == "passed"
        else "machine-id: expected two, got one"
    )


def test_an_unsigned_image_is_installed_for_a_recorded_reason_only(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`disks update` and `rollout publish` on a site without keys."""
    site = tmp_path / "site.yml"
    monkeypatch.setenv("GOLDNODE_SITE", str(site))
    site.write_text("{}\n")
    disk = world.build("a")
    with pytest.raises(ImageError, match=r"who built it.*--unsigned REASON"):
        chosen_image(disk.name, world.store.root, "a lab")
    # Accepted, and refused later: this sample has no slots.
    with pytest.raises(DiskError, match="has no partition esp"):
        chosen_image(disk.name, world.store.root, "a lab", unsigned="a lab without keys")
    site.write_text(f"images: {{public_key: {world.keys[1]}}}\n")
    with pytest.raises(ImageError, match="is for sites without keys"):
        chosen_image(disk.name, world.store.root, "a lab", unsigned="a lab without keys")
