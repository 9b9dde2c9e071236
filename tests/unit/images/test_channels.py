"""Channels: what has to be there before one moves, what a cut leaves, who notices whom, and the way back, offline too."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from tests.unit.channels import signing
from tests.unit.images.registries import (
    Simulated,
    always,
    before,
    dies_at_write,
    make_image,
    once,
    prove,
    running,
    sign,
)
from tests.unit.vulnerability_samples import vulnerability_report

from goldnode import evidence
from goldnode.channels import signed
from goldnode.channels.lines import CHANNELS, ChannelLine, History, line_of
from goldnode.channels.promotion import (
    MoveResult,
    Repair,
    repair,
    rollback,
)
from goldnode.channels.requirements import NO_SOAK, RequirementDecision
from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.cve.subjects import image_channels
from goldnode.images.channels import ImageStorePlace, RegistryPlace, promote
from goldnode.images.imagelock import find_lock, lock_file
from goldnode.images.matrix import load_matrix
from goldnode.images.pull import pull
from goldnode.images.store import ImageStore
from goldnode.oci.layout import Layout, canonical
from goldnode.oci.model import Built
from goldnode.oci.registry import UnreachableError, registry_address

pytestmark = pytest.mark.usefixtures("unsynced")
LINE = ChannelLine("cuda", "12.4-runtime-debian12")
BUILDS = {"a": "a" * 12, "b": "b" * 12, "c": "c" * 12, "d": "d" * 12}
NO_PAPERS = ("sbom", "provenance", "vulnerabilities", "order")
NOW = dt.datetime(2026, 11, 22, 5, 0, tzinfo=dt.UTC)


@dataclass
class World:
    """A store, a registry with published images a, b and c of one line, and the key."""

    layout: Layout
    server: Simulated
    keys: tuple[Path, Path]
    digests: dict[str, str]
    folder: Path
    trusted: Path = Path()

    @property
    def history(self) -> History:
        return signing.said(self.place).history(LINE)

    def status(self, **given: Any) -> signing.LineState:
        place, roots = given.pop("place", self.place), given.pop("roots", [self.trusted])
        return signing.status(place, signing.state(place, self.layout, *roots), LINE)

    @cached_property
    def place(self) -> RegistryPlace:
        return RegistryPlace(
            registry_address(f"http://{self.server.host}/gpu"),
            self.server.client(tries=1),
            self.layout,
        )

    def publish(self, name: str, **given: Any) -> str:
        proof: dict[str, Any] = {"gpu": "passed"} | {
            key: given.pop(key)
            for key in ("gpu", "papers", "inspection", "vulnerabilities")
            if key in given
        }
        ref, digest = make_image(self.layout, build=BUILDS[name], content=name.encode(), **given)
        prove(self.layout, digest, self.keys[0], **proof)
        self.server.load(self.layout, digest, "gpu/cuda", ref.partition(":")[2])
        self.digests[name] = digest
        return digest

    def promote(self, name: str, channel: str, **given: Any) -> MoveResult:
        settings: dict[str, Any] = {
            "by": "ana",
            "settle": 0,
            "now": NOW,
            "place": self.place,
            "evidence": signing.unasked,
        } | given
        place, layout = settings.pop("place"), settings.pop("layout", self.layout)
        return promote(
            place,
            layout,
            signing.move(
                line_of("cuda", self.tag(name)),
                channel,
                signing.signers(self.folder, self.keys[0]),
                to=self.tag(name),
                **{"roots": [self.trusted], **settings},
            ),
        )

    def rollback(self, **given: Any) -> MoveResult:
        settings: dict[str, Any] = {
            "by": "ana",
            "reason": "it is slow",
            "settle": 0,
            "now": NOW,
            "place": self.place,
        } | given
        return rollback(
            settings.pop("place"),
            self.layout,
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

    def tag(self, name: str) -> str:
        return f"12.4.1-runtime-debian12-{BUILDS[name]}"

    def stands(self) -> dict[str, str]:
        """What each channel's tag stands for, by the names of the images."""
        names = {digest: name for name, digest in self.digests.items()}
        found = {
            channel: self.server.tag("gpu/cuda", LINE.pointer(channel)) for channel in CHANNELS
        }
        return {channel: names.get(digest, digest) for channel, digest in found.items() if digest}

    def said(self) -> dict[str, str]:
        """What the history says of each channel."""
        names = {digest: name for name, digest in self.digests.items()}
        history = self.history
        return {
            channel: names[entry.now] for channel in CHANNELS if (entry := history.current(channel))
        }


@pytest.fixture
def world(tmp_path: Path, keys: tuple[Path, Path]) -> Iterator[World]:
    with running(Simulated()) as server:
        assert isinstance(server, Simulated)
        own = World(Layout(tmp_path / "store"), server, keys, {}, tmp_path / "keys")
        own.trusted = signing.make_channels(own.place, own.layout, own.folder, keys[0])
        server.log.clear()
        yield own


def snapshot(server: Simulated) -> tuple[Any, ...]:
    return dict(server.blobs), dict(server.manifests), dict(server.named)


def restore(server: Simulated, kept: tuple[Any, ...]) -> None:
    server.dead, server.rules = False, []
    server.blobs, server.manifests, server.named = dict(kept[0]), dict(kept[1]), dict(kept[2])


def test_a_tag_belongs_to_the_line_of_its_short_name() -> None:
    assert line_of("cuda", "12.4.1-runtime-debian12-0123456789ab") == LINE
    assert line_of("cpu", "1-base-debian13-0123456789ab").name == "1-base-debian13"
    assert (
        line_of("oneapi", "2025.3.3-runtime-debian12-0123456789ab").name
        == "2025.3-runtime-debian12"
    )
    assert line_of("rocm", "distro-base-debian13-0123456789ab").name == "distro-base-debian13"
    assert line_of("cuda", "12.8.1-torch2.9-debian12-0123456789ab").name == "12.8-torch2.9-debian12"
    with pytest.raises(ImageError, match=r"is no immutable tag"):
        line_of("cuda", "12.4-runtime-debian12")


def test_packages_of_vulnerabilities_are_those_of_what_a_channel_points_to(world: World) -> None:
    digest = world.publish("a")
    world.promote("a", "candidate")
    matrix, store = load_matrix(), ImageStore(world.layout.root)
    (unknown,) = image_channels(matrix, store)
    assert unknown.name.startswith(f"candidate of {LINE} at ")
    assert "lock of what the channel points to is not known" in unknown.unread
    name = next(name for name, row in matrix.images.items() if lock_file(row) is not None)
    lock = find_lock(matrix.chain(name)[-1])
    store.record(Built(name, BUILDS["a"], "r" * 64, lock.digest, digest))
    (known,) = image_channels(matrix, store)
    assert (known.kind, known.unread, known.digest) == ("channel", "", lock.digest)
    assert {item.name for item in lock.debs} <= {item.name for item in known.packages}
    assert known.system is not None


def test_an_image_goes_from_channel_to_channel(world: World) -> None:
    world.publish("a")
    for channel in ("candidate", "canary", "stable", "known-good"):
        done = world.promote("a", channel)
        assert done.entry is not None
        assert world.stands()[channel] == world.said()[channel] == "a"
        assert (NO_SOAK in done.notes) is (channel != "candidate")
        assert (NO_SOAK in done.entry.notes) is (channel != "candidate")
    history = world.history
    assert [(entry.action, entry.channel, entry.was) for entry in history.entries] == [
        ("promote", channel, None) for channel in CHANNELS
    ]
    gates = {gate["gate"]: gate for gate in history.entries[-1].requirements}
    assert {gate["state"] for gate in gates.values()} == {"passed"}
    assert gates["inspection"]["evidence"] == [
        world.layout.attached(world.digests["a"], evidence.INSPECTION)[0][0].digest
    ]
    assert world.server.tag("gpu/cuda", "12.4-runtime-debian12") == world.digests["a"]


def test_pointers_move_and_nothing_is_copied(world: World) -> None:
    world.publish("a")
    world.promote("a", "candidate")
    writes = [text for text in world.server.writes() if "/manifests/" in text]
    assert writes[-2:] == [
        "PUT /v2/gpu/goldnode-channels/manifests/goldnode-channels",
        "PUT /v2/gpu/cuda/manifests/12.4-runtime-debian12-candidate",
    ]


class TestGates:
    @pytest.mark.parametrize(
        ("channel", "given", "why"),
        [
            ("canary", {"papers": False}, "sbom: no CycloneDX is attached"),
            (
                "stable",
                {"gpu": "not_run"},
                "smoke-gpu: the smoke tests of tier gpu were not run: no GPU here",
            ),
            (
                "stable",
                {"vulnerabilities": "not_checked"},
                "vulnerabilities: no package was compared with a database.*that you give",
            ),
            (
                "known-good",
                {"vulnerabilities": ""},
                "vulnerabilities: no package was compared with a database",
            ),
            ("canary", {}, "order: it never was candidate"),
            ("stable", {}, "order: it never was canary"),
            ("known-good", {}, "order: it never was stable"),
        ],
    )
    def test_a_channel_asks_for_its_gates(
        self, world: World, channel: str, given: dict[str, Any], why: str
    ) -> None:
        world.publish("a", **given)
        if "order" not in why:
            for before_it in CHANNELS[: CHANNELS.index(channel)]:
                world.promote(
                    "a",
                    before_it,
                    waivers=[RequirementDecision("vulnerabilities", "ana", "a test")]
                    if before_it == "stable"
                    else [],
                )
        stands, files = world.stands(), world.place.files()
        with pytest.raises(ImageError, match=why):
            world.promote("a", channel)
        assert (world.stands(), world.place.files()) == (stands, files)

    def test_one_that_was_rolled_back_as_bad_goes_no_further(self, world: World) -> None:
        for name in "abc":
            world.publish(name)
            world.promote(name, "candidate")
            world.promote(name, "canary")
        # One that another followed was not found bad.
        world.promote("a", "stable")
        world.rollback(channel="canary")
        with pytest.raises(
            ImageError,
            match=r"order: canary was rolled back from it on 2026-11-22 \(it is slow\).*to canary again",
        ):
            world.promote("c", "stable")
        world.promote("b", "stable")
        # Nor does it help that it was one that another followed before.
        world.promote("a", "canary")
        world.rollback(channel="canary")
        world.rollback(channel="stable")
        assert world.stands() == {"candidate": "c", "canary": "b", "stable": "a"}
        with pytest.raises(ImageError, match=r"order: stable was rolled back from it"):
            world.promote("b", "known-good")
        world.promote("a", "known-good", reason="it was not at fault")
        # What is promoted there again, or what the rollback itself leads to, stands there.
        world.promote("c", "canary", reason="fixed")
        world.promote("c", "stable")
        # Several steps at once: what was passed is out as well.
        world.rollback(channel="canary", to=world.digests["a"])
        with pytest.raises(ImageError, match=r"order: canary was rolled back from it"):
            world.promote("b", "stable")

    def test_a_cpu_image_needs_no_gpu(self, world: World) -> None:
        ref, digest = make_image(
            world.layout, backend="cpu", version="1", flavour="base", build=BUILDS["a"], parts=""
        )
        prove(world.layout, digest, world.keys[0])
        world.server.load(world.layout, digest, "gpu/cpu", ref.partition(":")[2])
        for channel in CHANNELS:
            promote(
                world.place,
                world.layout,
                signing.move(
                    line_of("cpu", ref.partition(":")[2]),
                    channel,
                    signing.signers(world.folder, world.keys[0]),
                    to=ref.partition(":")[2],
                    evidence=signing.unasked,
                    by="ana",
                    settle=0,
                ),
            )
        assert world.server.tag("gpu/cpu", "1-base-debian12") == digest

    def test_a_waiver_is_recorded_in_the_signed_history(self, world: World) -> None:
        world.publish("a", gpu="not_run")
        world.promote("a", "candidate")
        world.promote("a", "canary")
        world.promote(
            "a", "stable", waivers=[RequirementDecision("smoke-gpu", "ana", "no GPU in this lab")]
        )
        last = world.history.entries[-1]
        gate = next(gate for gate in last.requirements if gate["gate"] == "smoke-gpu")
        assert (gate["state"], gate["by"], gate["reason"]) == (
            "waived",
            "ana",
            "no GPU in this lab",
        )

    def test_a_report_that_was_made_with_a_database_counts_beside_one_without(
        self, world: World
    ) -> None:
        world.publish("a", vulnerabilities="not_checked")
        report = vulnerability_report(world.digests["a"], "partly_checked")
        world.layout.attach(world.digests["a"], evidence.VULNERABILITIES, canonical(report))
        sign(world.layout, world.digests["a"], world.keys[0])
        world.server.load(world.layout, world.digests["a"], "gpu/cuda", world.tag("a"))
        world.all_the_way("a")
        assert world.stands()["stable"] == "a"

    def test_promotion_fails_when_the_registry_lacks_the_truth_record(self, world: World) -> None:
        world.publish("a")
        rows = [
            key
            for key, (data, _) in world.server.manifests.items()
            if json.loads(data).get("artifactType") == evidence.TRUTH
        ]
        for key in rows:
            del world.server.manifests[key]
        with pytest.raises(ImageError, match=r"truth: no truth record"):
            world.promote("a", "candidate")

    def test_a_failure_that_comes_later_stops_it(self, world: World) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        failed = {
            "tiers": {"gpu": {"state": "failed", "why": "GEMM below its floor", "tests": []}},
            "simulated": False,
        }
        world.layout.attach(world.digests["a"], evidence.SMOKE, canonical(failed))
        sign(world.layout, world.digests["a"], world.keys[0])
        world.server.load(world.layout, world.digests["a"], "gpu/cuda", world.tag("a"))
        world.promote("a", "canary")
        with pytest.raises(ImageError, match=r"tier gpu failed: GEMM below its floor"):
            world.promote("a", "stable")

    def test_promotion_of_an_unpublished_image_is_an_error(self, world: World) -> None:
        with pytest.raises(ImageError, match=r"is not there.*goldnode images publish"):
            world.promote("a", "candidate")

    def test_a_layer_that_is_gone_stops_it(self, world: World) -> None:
        world.publish("a")
        layer = next(key for key, data in world.server.blobs.items() if b"opt/content" in data)
        del world.server.blobs[layer]
        with pytest.raises(ImageError, match=r"is not whole"):
            world.promote("a", "candidate")


class TestMajors:
    @pytest.mark.parametrize(
        ("parts", "part", "why"),
        [
            ("cudnn=10.0.0,nccl=2.21.5", "cudnn", r"cudnn goes from 9\.1\.0 to 10\.0\.0"),
            ("nccl=2.21.5", "cudnn", r"cudnn goes from 9\.1\.0 to none"),
            ('{"cudnn": "9.2.0", "nccl": "3.0.1"}', "nccl", r"nccl goes from 2\.21\.5 to 3\.0\.1"),
        ],
    )
    def test_a_new_major_needs_its_own_approval_each_time(
        self, world: World, parts: str, part: str, why: str
    ) -> None:
        world.publish("a")
        world.all_the_way("a")
        world.publish("b", parts=parts)
        world.promote("b", "candidate")
        approval = [RequirementDecision(part, "ana", "the model is retrained")]
        for channel in ("canary", "stable"):
            with pytest.raises(
                ImageError, match=f"{why}.*--approve-major {part} --by WHO --reason WHY"
            ):
                world.promote("b", channel)
            with pytest.raises(ImageError, match=r"approved part by part"):
                world.promote("b", channel, waivers=[RequirementDecision("majors", "ana", "x")])
            done = world.promote("b", channel, approvals=approval)
            assert done.entry is not None
            assert done.entry.approvals == (
                {"part": part, "by": "ana", "reason": "the model is retrained"},
            )
        assert world.stands()["stable"] == "b"

    def test_a_minor_change_or_a_new_part_needs_none(self, world: World) -> None:
        world.publish("a", parts="nccl=2.21.5")
        world.all_the_way("a")
        world.publish("b", parts="cudnn=9.1.0,nccl=2.22.0")
        world.all_the_way("b")
        assert world.stands()["stable"] == "b"

    def test_an_unknown_version_is_no_equal_one(self, world: World) -> None:
        world.publish("a")
        world.all_the_way("a")
        world.publish("b", parts=None)
        world.promote("b", "candidate")
        with pytest.raises(
            ImageError, match=r"whether cudnn has another major version cannot be determined"
        ):
            world.promote("b", "canary")

    def test_an_image_that_is_gone_is_no_equal_one(self, world: World) -> None:
        world.publish("a")
        world.all_the_way("a")
        world.publish("b")
        world.promote("b", "candidate")
        del world.server.manifests["gpu/cuda", world.digests["a"]]
        with pytest.raises(ImageError, match=r"whether cudnn .* cannot be determined: .* has no "):
            world.promote("b", "canary")
        approvals = [RequirementDecision(one, "ana", "looked at") for one in ("cudnn", "nccl")]
        assert world.promote("b", "canary", approvals=approvals).entry is not None

    def test_an_approval_of_something_else_is_refused(self, world: World) -> None:
        world.publish("a")
        with pytest.raises(ImageError, match=r'asks for no approval of "cudn". Use "cudnn"'):
            world.promote("a", "canary", approvals=[RequirementDecision("cudn", "ana", "x")])

    def test_first_canary_is_compared_with_stable(self, world: World) -> None:
        world.publish("a")
        waive = [RequirementDecision("order", "ana", "the first one")]
        world.promote("a", "stable", waivers=waive)
        world.publish("b", parts="cudnn=10.0,nccl=2.21.5")
        world.promote("b", "candidate")
        with pytest.raises(ImageError, match=r"cudnn goes from"):
            world.promote("b", "canary")


class TestCuts:
    def cuts(self, world: World, do: Any, old: dict[str, str], new: dict[str, str]) -> int:
        """Let the registry die at each write of `do`: users see the old state or the new one, and a repeat completes it."""
        kept, begun = snapshot(world.server), len(world.history.entries)
        copy = signed.copy_of(world.layout, world.place.name)
        local = {path: path.read_bytes() for path in copy.iterdir()}
        for number in range(50):
            restore(world.server, kept)
            for path in copy.iterdir():
                path.unlink()
            for path, data in local.items():
                path.write_bytes(data)
            world.server.rules = [dies_at_write(number)]
            try:
                do()
            except UnreachableError:
                pass
            else:
                return number
            assert world.server.dead
            assert world.stands() == old
            world.server.dead, world.server.rules = False, []
            state = world.status()
            said = world.said()
            assert said in (old, new)
            lag = {channel for channel in new if said[channel] != old[channel]}
            assert {stand.channel: stand.state for stand in state.stands} == {
                one: "unfinished" if one in lag else "ok" for one in new
            }
            do()
            assert world.stands() == new == world.said()
            # Recorded once, however often it was begun.
            assert len(world.history.entries) == begun + 1
        raise AssertionError("it never came to its end")

    def test_interrupted_promotion_leaves_the_old_or_the_new_state(self, world: World) -> None:
        world.publish("a")
        world.publish("b")
        for name, channel in ("a", "candidate"), ("a", "canary"), ("b", "candidate"):
            world.promote(name, channel)
        old = world.stands()
        assert (
            self.cuts(world, lambda: world.promote("b", "canary"), old, old | {"canary": "b"}) == 8
        )

    def test_interrupted_rollback_leaves_the_old_or_the_new_state(self, world: World) -> None:
        for name in "ab":
            world.publish(name)
            world.promote(name, "candidate")
            world.promote(name, "canary")
        old = world.stands()
        assert (
            self.cuts(world, lambda: world.rollback(channel="canary"), old, old | {"canary": "a"})
            == 8
        )

    def test_a_lost_answer_is_no_second_move(self, world: World) -> None:
        world.publish("a")
        world.server.rules = [
            once("lost", "^PUT .*/manifests/goldnode-channels"),
            once("lost", "^PUT .*-candidate"),
        ]
        for _ in range(3):
            try:
                world.promote("a", "candidate")
                break
            except UnreachableError:
                continue
        assert world.stands() == {"candidate": "a"}
        assert len(world.history.entries) == 1


class TestOthers:
    def test_one_that_is_overtaken_before_its_write_moves_nothing(
        self, world: World, tmp_path: Path
    ) -> None:
        world.publish("a")
        world.publish("b")
        other = Layout(tmp_path / "other")
        # Its first look at the history is over: the other one comes right before the second one, which is just ahead of the write.
        world.server.rules.append(
            before(
                "^GET .*/manifests/goldnode-channels",
                lambda: world.promote("b", "candidate", layout=other),
                skip=1,
            )
        )
        with pytest.raises(ImageError, match=r"another process changed the channels"):
            world.promote("a", "candidate")
        assert world.stands() == world.said() == {"candidate": "b"}

    def test_one_that_is_overwritten_does_not_touch_the_tag(
        self, world: World, tmp_path: Path
    ) -> None:
        world.publish("a")
        world.publish("b")
        first = world.server.named["gpu/goldnode-channels", "goldnode-channels"]
        other = Layout(tmp_path / "other")

        def overwrite() -> None:  # the other one had looked before we wrote
            world.server.named["gpu/goldnode-channels", "goldnode-channels"] = first
            world.promote("b", "candidate", layout=other)

        world.server.rules.append(before("^GET .*/manifests/goldnode-channels", overwrite, skip=2))
        with pytest.raises(ImageError, match=r"another process changed the channels"):
            world.promote("a", "candidate")
        assert world.stands() == world.said() == {"candidate": "b"}

    def test_one_that_is_overwritten_late_follows_what_stands(
        self, world: World, tmp_path: Path
    ) -> None:
        world.publish("a")
        world.publish("b")
        first = world.server.named["gpu/goldnode-channels", "goldnode-channels"]
        other = Layout(tmp_path / "other")

        def overwrite() -> None:
            world.server.named["gpu/goldnode-channels", "goldnode-channels"] = first
            del world.server.named["gpu/cuda", LINE.pointer("candidate")]
            world.promote("b", "candidate", layout=other)
            world.server.named["gpu/cuda", LINE.pointer("candidate")] = world.digests[
                "a"
            ]  # our write of the tag came last

        world.server.rules.append(before("^GET .*/manifests/goldnode-channels", overwrite, skip=3))
        with pytest.raises(ImageError, match=r"another process changed the channels"):
            world.promote("a", "candidate")
        assert world.stands() == world.said() == {"candidate": "b"}

    def test_a_channel_that_others_moved_is_refused_and_given_back(self, world: World) -> None:
        for name in "abc":
            world.publish(name)
        world.all_the_way("a")
        world.promote("b", "candidate")
        world.promote("b", "canary")
        world.server.named["gpu/cuda", LINE.name] = world.digests["c"]
        with pytest.raises(ImageError, match=r"was moved to .*goldnode images status --repair"):
            world.promote("b", "stable")
        assert world.stands()["stable"] == "c"
        found = {stand.channel: stand.state for stand in world.status().stands}
        assert found == {"candidate": "ok", "canary": "ok", "stable": "moved"}
        with pytest.raises(ImageError, match=r"--root"):
            repair(world.place, Layout(world.folder / "other"), LINE, Repair())
        repaired = repair(world.place, world.layout, LINE, Repair([world.trusted], settle=0))
        assert [stand.channel for stand in repaired] == ["stable"]
        assert world.stands()["stable"] == "a"

    def test_an_immutable_tag_that_was_moved_is_not_promoted(self, world: World) -> None:
        world.publish("a")
        world.publish("b")
        world.promote("a", "candidate")
        world.server.named["gpu/cuda", world.tag("a")] = world.digests["b"]
        with pytest.raises(ImageError, match=r"the tag was moved"):
            world.promote("a", "canary")

    def test_promotion_fails_when_the_channel_is_not_as_expected(self, world: World) -> None:
        world.publish("a")
        with pytest.raises(ImageError, match=r"candidate of .* is none, expected sha256:12"):
            world.promote("a", "candidate", expect="sha256:12")
        world.promote("a", "candidate", expect="none")
        world.promote("a", "candidate", expect=world.digests["a"][:20])

    def test_repeated_promotion_adds_no_entry(self, world: World) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        files = world.place.files()
        assert world.promote("a", "candidate").entry is None
        assert world.place.files() == files


class TestSignedChannels:
    """States of the registry that are no continuation of what the store has seen, or not signed by the right keys."""

    def moved(self, world: World) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        world.promote("a", "canary")

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda files: {**files, "3.targets.json": b"{}"}, "another form|refused"),
            (lambda files: edited(files, "targets", "reason"), "refused: .*is not the one"),
            (lambda files: edited(files, "snapshot", "version"), "another form|refused|lack"),
            (lambda files: edited(files, "timestamp", "expires"), "refused: not enough"),
        ],
        ids=["cut", "move", "snapshot", "timestamp"],
    )
    def test_altered_channels_are_refused(self, world: World, change: Any, why: str) -> None:
        self.moved(world)
        world.place.commit(change(world.place.files()))
        with pytest.raises(GoldnodeError, match=why):
            world.promote("a", "stable", layout=Layout(world.folder / "other"))
        with pytest.raises(GoldnodeError, match=why):
            signing.state(world.place, Layout(world.folder / "third"), world.trusted)

    def test_a_root_of_another_place_is_refused(self, world: World, tmp_path: Path) -> None:
        self.moved(world)
        other = ImageStorePlace(Layout(tmp_path / "other"))
        folder = tmp_path / "stranger"
        root = signing.make_channels(other, other.layout, folder, world.keys[0])
        with pytest.raises(ImageError, match="no trusted root document is one of"):
            world.status(roots=[root])
        # Nobody was asked: not verified, and not refused.
        fresh = signing.state(world.place, Layout(tmp_path / "fresh"))
        assert not signing.status(world.place, fresh, LINE).verified

    def test_a_registry_that_forgot_what_this_store_saw_gets_it_back(self, world: World) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        before_it = world.place.files()
        world.promote("a", "canary")
        world.place.commit(before_it)  # a registry that came back from its backup
        assert world.status().pending == 1
        world.promote("a", "stable")
        assert len(world.history.entries) == 3
        assert world.stands() == {"candidate": "a", "canary": "a", "stable": "a"}

    def test_one_that_went_another_way_is_refused(self, world: World, tmp_path: Path) -> None:
        world.publish("a")
        world.publish("b")
        empty = world.place.files()
        world.promote("a", "candidate")
        del world.server.named["gpu/cuda", LINE.pointer("candidate")]
        world.place.commit(empty)
        world.promote("b", "candidate", layout=Layout(tmp_path / "other"))
        with pytest.raises(GoldnodeError, match=r"went different ways"):
            world.promote("a", "canary")


def edited(files: Mapping[str, bytes], role: str, field: str) -> dict[str, bytes]:
    """Return metadata with another value in the newest document of a role, whose signature stays."""
    name = [name for name in sorted(files) if name.split(".")[-2] == role][-1]
    document = json.loads(files[name])
    if role == "targets":
        target = next(iter(document["signed"]["targets"].values()))
        target["custom"]["moves"][0][field] = "other"
    elif field == "version":
        document["signed"]["version"] += 1
    else:
        document["signed"][field] = "2099-01-01T00:00:00Z"
    return {**files, name: json.dumps(document).encode()}


class TestRollback:
    @pytest.fixture
    def moved(self, world: World) -> World:
        for name in "abc":
            world.publish(name, papers=False)
            world.promote(
                name,
                "stable",
                waivers=[RequirementDecision(gate, "ana", "a test") for gate in NO_PAPERS],
            )
        return world

    def test_one_command_goes_back_and_the_next_one_further(self, moved: World) -> None:
        done = moved.rollback()
        assert (done.now, done.tag) == (moved.digests["b"], moved.tag("b"))
        assert moved.stands()["stable"] == "b"
        moved.rollback()
        assert moved.stands() == moved.said() == {"stable": "a"}
        with pytest.raises(ImageError, match=r"pointed to nothing before"):
            moved.rollback()
        again = {"waivers": [RequirementDecision(gate, "ana", "a test") for gate in NO_PAPERS]}
        with pytest.raises(
            ImageError,
            match=r"not promoted to stable: stable was rolled back from it.*--reason WHY",
        ):
            moved.promote("c", "stable", **again)
        done = moved.promote("c", "stable", **again, reason="the load was at fault")
        assert any(note.endswith("promoted again: the load was at fault") for note in done.notes)
        moved.rollback()
        assert moved.stands()["stable"] == "a"

    def test_to_known_good_or_to_one_that_is_named(self, moved: World) -> None:
        with pytest.raises(ImageError, match=r"known-good of .* points to nothing"):
            moved.rollback(to="known-good")
        moved.promote(
            "a",
            "known-good",
            waivers=[RequirementDecision(gate, "ana", "a test") for gate in NO_PAPERS[:3]],
        )
        moved.rollback(to="known-good")
        assert moved.stands()["stable"] == "a"
        moved.rollback(to=moved.tag("c"))
        assert moved.stands()["stable"] == "c"
        moved.rollback(to=moved.digests["b"])
        assert moved.stands()["stable"] == "b"
        with pytest.raises(ImageError, match=r"names no images"):
            moved.rollback(to="sha256:0000000000000")

    def test_rollback_succeeds_without_an_inspection_record(self, moved: World) -> None:
        moved.server.manifests = {
            key: row
            for key, row in moved.server.manifests.items()
            if json.loads(row[0]).get("artifactType") != evidence.INSPECTION
        }
        moved.rollback()
        assert moved.stands()["stable"] == "b"

    def test_a_tag_that_others_moved_does_not_stop_it(self, moved: World) -> None:
        moved.server.named["gpu/cuda", LINE.name] = moved.publish("d")
        done = moved.rollback()
        assert moved.stands()["stable"] == "b"
        assert any(f"pointed to {moved.digests['d']}" in note for note in done.notes)

    def test_an_image_that_the_registry_lost_comes_from_the_store(self, moved: World) -> None:
        del moved.server.manifests["gpu/cuda", moved.digests["b"]]
        moved.server.blobs = {
            key: data for key, data in moved.server.blobs.items() if b"opt/content" not in data
        }
        moved.rollback()
        assert moved.stands()["stable"] == "b"
        target = moved.place.repository(LINE)
        assert (
            pull(Layout(moved.layout.root.parent / "third"), target, moved.digests["b"]).fetched
            == 3
        )

    def test_offline_it_uses_the_store_and_the_registry_gets_it_later(self, moved: World) -> None:
        moved.server.rules = [always("drop", "")]
        with pytest.raises(UnreachableError):
            moved.rollback()
        copy = ImageStorePlace(moved.layout, moved.place.name)
        done = moved.rollback(place=copy)
        assert done.now == moved.digests["b"]
        assert any("has not seen this yet" in note for note in done.notes)
        assert moved.layout.refs()[f"{moved.place.name}/{LINE}"].digest == moved.digests["b"]
        moved.rollback(place=copy)
        assert copy.pointer(LINE, "stable") == moved.digests["a"]
        moved.server.rules = []
        assert moved.stands()["stable"] == "c"
        assert moved.status().pending == 2
        said: list[str] = []
        moved.promote(
            "a",
            "known-good",
            say=said.append,
            waivers=[RequirementDecision(gate, "ana", "a test") for gate in NO_PAPERS[:3]],
        )
        assert moved.stands()["stable"] == "a" == moved.said()["stable"]
        assert "stable of cuda:12.4-runtime-debian12" in said[0]
        assert moved.status().pending == 0

    def test_offline_it_needs_the_whole_image_here(self, moved: World) -> None:
        for path in (moved.layout.root / "blobs/sha256").iterdir():
            if b"opt/content" in path.read_bytes():
                path.unlink()
        with pytest.raises(ImageError, match=r"Pull the image again"):
            moved.rollback(place=ImageStorePlace(moved.layout, moved.place.name))
        assert moved.said()["stable"] == "c"

    def test_nothing_to_go_back_to(self, world: World) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        with pytest.raises(ImageError, match=r"stable of .* never pointed to anything .*candidate"):
            world.rollback()


def test_a_store_by_itself_has_channels_too(world: World) -> None:
    here = ImageStorePlace(world.layout)
    root = signing.make_channels(here, world.layout, world.folder, world.keys[0])
    for name in "ab":
        _, digest = make_image(world.layout, build=BUILDS[name], content=name.encode())
        prove(world.layout, digest, world.keys[0], gpu="passed")
        world.digests[name] = digest
        for channel in CHANNELS[:3]:
            world.promote(name, channel, place=here, roots=[root])
    assert world.layout.refs()[str(LINE)].digest == world.digests["b"]
    world.rollback(place=here)
    assert world.layout.refs()[str(LINE)].digest == world.digests["a"]
    assert {stand.state for stand in world.status(place=here, roots=[root]).stands} == {"ok"}
    assert world.server.log == []
