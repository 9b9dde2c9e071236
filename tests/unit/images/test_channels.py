"""Channels: what has to be there before one moves, what a cut leaves, who notices whom, and the way back, offline too."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from tests.unit.images.registries import (
    Simulated,
    always,
    before,
    dies_at_write,
    make_image,
    make_key,
    once,
    prove,
    running,
    sign,
)
from tests.unit.vulnerability_samples import vulnerability_report

from goldnode import evidence
from goldnode.channels.history import CHANNELS, ChannelLine, History, add, line_of, read
from goldnode.channels.moves import (
    Move,
    MoveResult,
    Repair,
    repair,
    rollback,
    saved_history,
    status,
)
from goldnode.channels.requirements import NO_SOAK, Approval, RequirementWaiver
from goldnode.core.errors import ImageError
from goldnode.evidence.signatures import load_public, load_signer
from goldnode.images.channels import ImageStorePlace, RegistryPlace, promote
from goldnode.images.pull import pull
from goldnode.oci.layout import Layout, canonical
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
        } | given
        place, layout = settings.pop("place"), settings.pop("layout", self.layout)
        return promote(
            place,
            layout,
            Move(
                line_of("cuda", self.tag(name)),
                channel,
                load_signer(self.keys[0]),
                to=self.tag(name),
                **settings,
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
            Move(LINE, settings.pop("channel", "stable"), load_signer(self.keys[0]), **settings),
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
        history = read(self.place.text(LINE), LINE, load_public(self.keys[1]), where="test")
        return {
            channel: names[entry.now] for channel in CHANNELS if (entry := history.current(channel))
        }


@pytest.fixture
def world(tmp_path: Path, keys: tuple[Path, Path]) -> Iterator[World]:
    with running(Simulated()) as server:
        assert isinstance(server, Simulated)
        yield World(Layout(tmp_path / "store"), server, keys, {})


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


def test_an_image_goes_from_channel_to_channel(world: World) -> None:
    world.publish("a")
    for channel in ("candidate", "canary", "stable", "known-good"):
        done = world.promote("a", channel)
        assert done.entry is not None
        assert world.stands()[channel] == world.said()[channel] == "a"
        assert (NO_SOAK in done.notes) is (channel != "candidate")
        assert (NO_SOAK in done.entry.notes) is (channel != "candidate")
    history = read(world.place.text(LINE), LINE, load_public(world.keys[1]), where="test")
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
        "PUT /v2/gpu/cuda/manifests/12.4-runtime-debian12-history",
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
                    waivers=[RequirementWaiver("vulnerabilities", "ana", "a test")]
                    if before_it == "stable"
                    else [],
                )
        stands, text = world.stands(), world.place.text(LINE)
        with pytest.raises(ImageError, match=why):
            world.promote("a", channel)
        assert (world.stands(), world.place.text(LINE)) == (stands, text)

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
                Move(
                    line_of("cpu", ref.partition(":")[2]),
                    channel,
                    load_signer(world.keys[0]),
                    to=ref.partition(":")[2],
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
            "a", "stable", waivers=[RequirementWaiver("smoke-gpu", "ana", "no GPU in this lab")]
        )
        last = read(world.place.text(LINE), LINE, load_public(world.keys[1]), where="test").entries[
            -1
        ]
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
        approval = [Approval(part, "ana", "the model is retrained")]
        for channel in ("canary", "stable"):
            with pytest.raises(
                ImageError, match=f"{why}.*--approve-major {part} --by WHO --reason WHY"
            ):
                world.promote("b", channel)
            with pytest.raises(ImageError, match=r"approved part by part"):
                world.promote("b", channel, waivers=[RequirementWaiver("majors", "ana", "x")])
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

    def test_an_approval_of_something_else_is_refused(self, world: World) -> None:
        world.publish("a")
        with pytest.raises(ImageError, match=r'asks for no approval of "cudn". Use "cudnn"'):
            world.promote("a", "canary", approvals=[Approval("cudn", "ana", "x")])

    def test_first_canary_is_compared_with_stable(self, world: World) -> None:
        world.publish("a")
        waive = [RequirementWaiver("order", "ana", "the first one")]
        world.promote("a", "stable", waivers=waive)
        world.publish("b", parts="cudnn=10.0,nccl=2.21.5")
        world.promote("b", "candidate")
        with pytest.raises(ImageError, match=r"cudnn goes from"):
            world.promote("b", "canary")


class TestCuts:
    def cuts(self, world: World, do: Any, old: dict[str, str], new: dict[str, str]) -> int:
        """Let the registry die at each write of `do`: users see the old state or the new one, and a repeat completes it."""
        kept, local = snapshot(world.server), saved_history(world.layout, world.place.name, LINE)
        copy = world.layout.root / "channels"
        for number in range(50):
            restore(world.server, kept)
            file = next(copy.glob("*/*/*.jsonl"), None)
            if file is not None:
                file.write_bytes(local) if local else file.unlink()
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
            state = status(world.place, world.layout, LINE, load_public(world.keys[1]))
            said = world.said()
            assert said in (old, new)
            lag = {channel for channel in new if said[channel] != old[channel]}
            assert {stand.channel: stand.state for stand in state.stands} == {
                one: "unfinished" if one in lag else "ok" for one in new
            }
            do()
            assert world.stands() == new == world.said()
            before_it = world.place.text(LINE)
            assert (
                len(before_it.splitlines()) == len(kept_lines(kept)) + 1
            )  # recorded once, however often it was begun
        raise AssertionError("it never came to its end")

    def test_interrupted_promotion_leaves_the_old_or_the_new_state(self, world: World) -> None:
        world.publish("a")
        world.publish("b")
        for name, channel in ("a", "candidate"), ("a", "canary"), ("b", "candidate"):
            world.promote(name, channel)
        old = world.stands()
        assert (
            self.cuts(world, lambda: world.promote("b", "canary"), old, old | {"canary": "b"}) == 4
        )

    def test_interrupted_rollback_leaves_the_old_or_the_new_state(self, world: World) -> None:
        for name in "ab":
            world.publish(name)
            world.promote(name, "candidate")
            world.promote(name, "canary")
        old = world.stands()
        assert (
            self.cuts(world, lambda: world.rollback(channel="canary"), old, old | {"canary": "a"})
            == 4
        )

    def test_a_lost_answer_is_no_second_move(self, world: World) -> None:
        world.publish("a")
        world.server.rules = [once("lost", "^PUT .*-history"), once("lost", "^PUT .*-candidate")]
        for _ in range(3):
            try:
                world.promote("a", "candidate")
                break
            except UnreachableError:
                continue
        assert world.stands() == {"candidate": "a"}
        assert len(world.place.text(LINE).splitlines()) == 1


def kept_lines(kept: tuple[Any, ...]) -> list[bytes]:
    """The lines of the history in a snapshot of the registry."""
    _, manifests, named = kept
    data, _ = manifests["gpu/cuda", named["gpu/cuda", LINE.history]]
    found: bytes = kept[0]["gpu/cuda", json.loads(data)["layers"][0]["digest"]]
    return found.splitlines()


class TestOthers:
    def test_one_that_is_overtaken_before_its_write_moves_nothing(
        self, world: World, tmp_path: Path
    ) -> None:
        world.publish("a")
        world.publish("b")
        other = Layout(tmp_path / "other")
        # Its first look at the history is over: the other one comes right before the second one, which is just ahead of the write.
        world.server.rules.append(
            before("^GET .*-history", lambda: world.promote("b", "candidate", layout=other), skip=1)
        )
        with pytest.raises(ImageError, match=r"another process changed the channels"):
            world.promote("a", "candidate")
        assert world.stands() == world.said() == {"candidate": "b"}

    def test_one_that_is_overwritten_does_not_touch_the_tag(
        self, world: World, tmp_path: Path
    ) -> None:
        world.publish("a")
        world.publish("b")
        empty = snapshot(world.server)
        other = Layout(tmp_path / "other")

        def overwrite() -> None:  # the other one had looked before we wrote
            kept = world.server.named.pop(("gpu/cuda", LINE.history))
            assert kept
            world.promote("b", "candidate", layout=other)

        world.server.rules.append(before("^GET .*-history", overwrite, skip=2))
        with pytest.raises(ImageError, match=r"another process changed the channels"):
            world.promote("a", "candidate")
        assert world.stands() == world.said() == {"candidate": "b"}
        assert empty

    def test_one_that_is_overwritten_late_follows_what_stands(
        self, world: World, tmp_path: Path
    ) -> None:
        world.publish("a")
        world.publish("b")
        other = Layout(tmp_path / "other")

        def overwrite() -> None:
            del world.server.named["gpu/cuda", LINE.history]
            del world.server.named["gpu/cuda", LINE.pointer("candidate")]
            world.promote("b", "candidate", layout=other)
            world.server.named["gpu/cuda", LINE.pointer("candidate")] = world.digests[
                "a"
            ]  # our write of the tag came last

        world.server.rules.append(before("^GET .*-history", overwrite, skip=3))
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
        found = {
            stand.channel: stand.state for stand in status(world.place, world.layout, LINE).stands
        }
        assert found == {"candidate": "ok", "canary": "ok", "stable": "moved"}
        with pytest.raises(ImageError, match=r"--trust"):
            repair(world.place, world.layout, LINE, Repair(()))
        assert [
            stand.channel
            for stand in repair(
                world.place, world.layout, LINE, Repair(load_public(world.keys[1]), settle=0)
            )
        ] == ["stable"]
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
        text = world.place.text(LINE)
        assert world.promote("a", "candidate").entry is None
        assert world.place.text(LINE) == text


class TestHistory:
    def forge(self, world: World, change: Any) -> None:
        data = change(world.place.text(LINE))
        (world.layout.root / "channels").rename(world.layout.root / "kept")
        world.place.commit(LINE, data)

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda text: text[:-10], "entry 2 (is cut short|cannot be read)"),
            (lambda text: b"".join(text.splitlines(keepends=True)[1:]), "entry 1 does not follow"),
            (
                lambda text: b"".join(reversed(text.splitlines(keepends=True))),
                "entry 1 does not follow",
            ),
            (lambda text: text + b"{}\n", "entry 3 cannot be read"),
            (
                lambda text: text.replace(b'"sig":"', b'"sig":"AAAA', 1),
                "entry 2 does not follow",
            ),
        ],
        ids=["cut", "first-gone", "order", "added", "signature"],
    )
    def test_an_altered_history_is_refused(self, world: World, change: Any, why: str) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        world.promote("a", "canary")
        self.forge(world, change)
        with pytest.raises(ImageError, match=why):
            world.promote("a", "stable")
        with pytest.raises(ImageError, match=why):
            status(world.place, world.layout, LINE, load_public(world.keys[1]))

    def test_one_signed_by_another_key_is_refused(self, world: World, tmp_path: Path) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        stranger = make_key(tmp_path, "stranger")
        with pytest.raises(
            ImageError,
            match=r"entry 1 has no good signature: it is signed by a key that is not known here",
        ):
            status(world.place, world.layout, LINE, load_public(stranger[1]))
        assert not status(
            world.place, world.layout, LINE
        ).verified  # nobody was asked: not verified, and not refused

    def test_a_stolen_key_is_withdrawn_and_the_past_stays(
        self, world: World, tmp_path: Path
    ) -> None:
        """The new key signs over the past; what the thief of the old one adds is refused by who trusts the new one."""
        world.publish("a")
        world.promote("a", "candidate")
        old, new = world.keys, make_key(tmp_path, "new")
        both, present = [*load_public(old[1]), *load_public(new[1])], load_public(new[1])
        with pytest.raises(ImageError, match="entry 1 has no good signature"):
            read(world.place.text(LINE), LINE, present, where="test")
        world.keys = new
        again = world.promote("a", "candidate", again=True, trust=both)
        assert again.entry is not None
        assert again.entry.was == again.entry.now
        past = read(world.place.text(LINE), LINE, present, where="test")
        assert [entry.by for entry in past.entries] == ["ana", "ana"]
        assert past.signers == (present[0].keyid,)
        thief = load_signer(old[0])
        entry = replace(past.entries[-1], number=3, previous=past.head, channel="stable")
        forged = add(past, entry, thief).text
        with pytest.raises(ImageError, match="entry 3 has no good signature"):
            read(forged, LINE, present, where="test")
        assert read(forged, LINE, both, where="test").entries, (
            "who trusts the old key still believes"
        )

    def test_a_thief_who_replaces_the_past_breaks_the_chain(
        self, world: World, tmp_path: Path
    ) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        old, world.keys = world.keys, make_key(tmp_path, "new")
        world.promote("a", "candidate", again=True, trust=load_public(old[1]))
        first, second = world.place.text(LINE).splitlines(keepends=True)
        entry = read(first, LINE, where="test").entries[0]
        other = add(History(LINE), replace(entry, reason="other"), load_signer(old[0])).text
        with pytest.raises(ImageError, match="entry 2 does not follow"):
            read(other + second, LINE, load_public(world.keys[1]), where="test")

    def test_one_of_another_line_is_refused(self, world: World) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        other = ChannelLine("cuda", "12.8-runtime-debian12")
        with pytest.raises(ImageError, match=r"entry 1 is of the line cuda:12.4-runtime-debian12"):
            read(world.place.text(LINE), other, where="test")

    def test_one_that_forgot_what_this_store_saw_gets_it_back(self, world: World) -> None:
        world.publish("a")
        world.promote("a", "candidate")
        short = world.place.text(LINE)
        world.promote("a", "canary")
        world.place.commit(LINE, short)  # a registry that came back from its backup
        world.promote("a", "stable")
        assert len(world.place.text(LINE).splitlines()) == 3
        assert world.stands() == {"candidate": "a", "canary": "a", "stable": "a"}

    def test_one_that_went_another_way_is_refused(self, world: World, tmp_path: Path) -> None:
        world.publish("a")
        world.publish("b")
        world.promote("a", "candidate")
        del world.server.named["gpu/cuda", LINE.history]
        del world.server.named["gpu/cuda", LINE.pointer("candidate")]
        world.promote("b", "candidate", layout=Layout(tmp_path / "other"))
        with pytest.raises(ImageError, match=r"went different ways"):
            world.promote("a", "canary")


class TestRollback:
    @pytest.fixture
    def moved(self, world: World) -> World:
        for name in "abc":
            world.publish(name, papers=False)
            world.promote(
                name,
                "stable",
                waivers=[RequirementWaiver(gate, "ana", "a test") for gate in NO_PAPERS],
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
        again = {"waivers": [RequirementWaiver(gate, "ana", "a test") for gate in NO_PAPERS]}
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
            waivers=[RequirementWaiver(gate, "ana", "a test") for gate in NO_PAPERS[:3]],
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
        found = status(moved.place, moved.layout, LINE, load_public(moved.keys[1]))
        assert found.pending == 2
        said: list[str] = []
        moved.promote(
            "a",
            "known-good",
            say=said.append,
            waivers=[RequirementWaiver(gate, "ana", "a test") for gate in NO_PAPERS[:3]],
        )
        assert moved.stands()["stable"] == "a" == moved.said()["stable"]
        assert "stable of cuda:12.4-runtime-debian12" in said[0]
        assert status(moved.place, moved.layout, LINE, load_public(moved.keys[1])).pending == 0

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
    for name in "ab":
        _, digest = make_image(world.layout, build=BUILDS[name], content=name.encode())
        prove(world.layout, digest, world.keys[0], gpu="passed")
        world.digests[name] = digest
        for channel in CHANNELS[:3]:
            world.promote(name, channel, place=here)
    assert world.layout.refs()[str(LINE)].digest == world.digests["b"]
    world.rollback(place=here)
    assert world.layout.refs()[str(LINE)].digest == world.digests["a"]
    assert {stand.state for stand in status(here, world.layout, LINE).stands} == {"ok"}
    assert world.server.log == []
