"""`goldnode images publish`, `pull`, `promote`, `status`, `rollback` and `gc` as a user calls them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.channels import signing
from tests.unit.images.registries import Simulated, always, make_image, make_key, prove, running

from goldnode.channels.requirements import NO_SOAK
from goldnode.cli import main
from goldnode.commands.images.derive import BaseSource
from goldnode.core.errors import ImageError
from goldnode.images.imagelock import ImageLock, dump_lock, find_lock, load_lock
from goldnode.images.matrix import load_matrix
from goldnode.images.store import open_store
from goldnode.oci.layout import Layout

BUILDS = {"a": "a" * 12, "b": "b" * 12}
LINE = "cuda:12.4-runtime-debian12"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files need not reach the disk, nobody else writes, and the settings of whoever runs the tests do not count."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    for module in ("images.publish", "channels.promotion"):
        monkeypatch.setattr(f"goldnode.{module}.time.sleep", lambda seconds: None)
    for name in ("GOLDNODE_REGISTRY", "GOLDNODE_IMAGE_KEY", "GOLDNODE_SITE", "GOLDNODE_IMAGES"):
        monkeypatch.delenv(name, raising=False)


class Desk:
    """A working directory with a store, keys and a registry."""

    def __init__(self, directory: Path, server: Simulated) -> None:
        self.server, self.layout = server, Layout(directory / "store")
        self.secret, self.public = make_key(directory)
        self.online, self.root = signing.key_of(directory, "online"), directory / "root.json"
        self.digests: dict[str, str] = {}
        for name, build in BUILDS.items():
            _, self.digests[name] = make_image(self.layout, build=build, content=name.encode())
            prove(self.layout, self.digests[name], self.secret, gpu="passed")

    def run(self, *words: str, key: bool = True) -> Result:
        keys = {
            "publish": ("--trust", str(self.public)),
            "status": ("--root", str(self.root)),
            "pull": ("--trust", str(self.public)),
            "gc": (),
        }
        signs = ("--key", str(self.secret), "--online-key", str(self.online))
        given = keys.get(words[0], signs) if key else ()
        to = (
            ("--to", f"{self.server.host}/gpu")
            if words[0] not in ("pull", "gc") and "--here" not in words
            else ()
        )
        argv = [
            "images",
            words[0],
            "--store",
            str(self.layout.root),
            *to,
            *given,
            *(word for word in words[1:] if word != "--here"),
        ]
        return CliRunner().invoke(main, argv)

    def channels(self, *words: str, here: bool = False) -> str:
        """Make the channels of the registry, or other words, as a user does. Return what was printed."""
        targets, root = str(self.secret), str(signing.key_of(self.layout.root.parent, "root-key"))
        keys = ("--root-key", root, "--targets-key", targets, "--online-key", str(self.online))
        to = () if here else ("--to", f"{self.server.host}/gpu")
        words = words or ("keys", "images", *to, *keys)
        done = CliRunner().invoke(main, ["channels", *words, "--store", str(self.layout.root)])
        assert done.exit_code == 0, done.output
        (made,) = self.layout.root.glob("channels/*/metadata/1.root.json")
        self.root.write_bytes(made.read_bytes())
        return done.output

    def good(self, *words: str) -> str:
        done = self.run(*words)
        assert done.exit_code == 0, done.output
        return done.output


def ref(name: str) -> str:
    return f"cuda:12.4.1-runtime-debian12-{BUILDS[name]}"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    with running(Simulated(api=False)) as server:
        assert isinstance(server, Simulated)
        yield Desk(tmp_path, server)


def test_from_the_store_to_stable_and_back(desk: Desk, tmp_path: Path) -> None:
    desk.channels()
    said = desk.good("publish", ref("a"), ref("b"))
    assert said.count("tag sha256-…") == 2
    assert f"{desk.server.host}/gpu/{ref('a')}@{desk.digests['a']}" in said
    assert "there already" in desk.good("publish", ref("a"))
    for name in "ab":
        for channel in ("candidate", "canary", "stable"):
            said = desk.good("promote", channel, ref(name))
            assert (f"note: {NO_SOAK}" in said) is (channel != "candidate")
            assert "inspection       passed" in said
    assert desk.server.tag("gpu/cuda", LINE.partition(":")[2]) == desk.digests["b"]
    assert f"-> {desk.digests['a']}" in desk.good("rollback", LINE, "--reason", "it is slow")
    said = desk.good("status", "--history")
    assert "signatures verified" in said
    assert "rollback stable" in said
    assert "it is slow" in said
    document = json.loads(desk.good("status", "--format", "json"))["lines"][0]
    assert {row["channel"]: row["digest"] for row in document["channels"]} == {
        "candidate": desk.digests["b"],
        "canary": desk.digests["b"],
        "stable": desk.digests["a"],
    }
    fresh = ["--store", str(tmp_path / "fresh"), "--to", f"{desk.server.host}/gpu"]
    assert "NOT verified" in CliRunner().invoke(main, ["images", "status", *fresh]).output
    done = CliRunner().invoke(
        main,
        [
            "images",
            "pull",
            "--store",
            str(tmp_path / "other"),
            f"{desk.server.host}/gpu/cuda@{desk.digests['a']}",
            "--trust",
            str(desk.public),
        ],
    )
    assert done.output.startswith(f"{ref('a')}@{desk.digests['a']}  3 blobs fetched")


def test_an_unsigned_image_is_pulled_for_a_recorded_reason_only(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.good("publish", ref("a"))
    name = f"{desk.server.host}/gpu/cuda@{desk.digests['a']}"
    words = ["images", "pull", name, "--store", str(tmp_path / "other")]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 2
    assert "by which key to believe who built it" in refused.output
    assert "--unsigned REASON" in refused.output
    assert not (tmp_path / "other/index.json").exists() or not Layout(tmp_path / "other").refs()
    done = CliRunner().invoke(main, [*words, "--unsigned", "a vendor's image"])
    assert "signature not verified: a vendor's image" in done.output
    (row,) = (tmp_path / "other/unsigned.jsonl").read_text().splitlines()
    assert json.loads(row)["digest"] == desk.digests["a"]
    assert json.loads(row)["reason"] == "a vendor's image"
    both = CliRunner().invoke(main, [*words, "--unsigned", "x", "--trust", str(desk.public)])
    assert "is for sites without keys" in both.output


def test_an_unsigned_base_is_pulled_for_a_recorded_reason_only(desk: Desk, tmp_path: Path) -> None:
    """`images derive` installs what others publish: as with `images pull`, a key or a reason is needed."""
    desk.good("publish", ref("a"))
    store, name = (
        open_store(tmp_path / "other"),
        f"http://{desk.server.host}/gpu/cuda:{ref('a').partition(':')[2]}",
    )
    with pytest.raises(ImageError, match="by which key to believe who built it") as refused:
        BaseSource(store, (), None, None).pulled(name)
    assert "--unsigned REASON" in str(refused.value.remedy)
    assert not store.layout.refs()
    assert BaseSource(store, (), None, "a vendor's image").pulled(name) == desk.digests["a"]
    (row,) = (store.layout.root / "unsigned.jsonl").read_text().splitlines()
    assert json.loads(row)["reason"] == "a vendor's image"
    other = open_store(tmp_path / "signed")
    thief = make_key(tmp_path, "thief")[1]
    with pytest.raises(ImageError, match="is not trusted"):
        BaseSource(other, (thief,), None, None).pulled(name)
    assert BaseSource(other, (desk.public,), None, None).pulled(name) == desk.digests["a"]


def test_a_moved_tag_is_exit_1_and_repaired(desk: Desk) -> None:
    desk.channels()
    desk.good("publish", ref("a"), ref("b"))
    desk.good("promote", "candidate", ref("a"))
    desk.server.named["gpu/cuda", "12.4-runtime-debian12-candidate"] = desk.digests["b"]
    done = desk.run("status")
    assert done.exit_code == 1
    assert "MOVED" in done.output
    assert desk.good("status", "--repair")
    assert desk.run("status").exit_code == 0


def test_offline_rollback_is_published_by_a_later_repair(desk: Desk) -> None:
    desk.channels()
    desk.good("publish", ref("a"), ref("b"))
    for name in "ab":
        desk.good("promote", "candidate", ref(name))
    desk.server.rules = [always("drop", "")]
    done = desk.run("rollback", LINE, "--channel", "candidate")
    assert done.exit_code == 2
    assert "--offline" in done.output
    assert "has not seen this yet" in desk.good(
        "rollback", LINE, "--channel", "candidate", "--offline"
    )
    assert "ok" not in desk.good("status", "--offline")
    desk.server.rules = []
    done = desk.run("status")
    assert done.exit_code == 1
    assert "are not in the registry yet" in done.output
    desk.good("status", "--repair")
    assert desk.server.tag("gpu/cuda", "12.4-runtime-debian12-candidate") == desk.digests["a"]


def test_a_store_by_itself(desk: Desk) -> None:
    desk.channels(here=True)
    desk.good("promote", "candidate", ref("a"), "--here")
    assert desk.server.log == []
    assert "store/cuda:12.4-runtime-debian12" in desk.good("status", "--here")


def test_invalid_command_exits_2_with_one_line(desk: Desk) -> None:
    desk.channels()
    for words, why in (
        (("publish", "cuda:12.4.1-runtime-debian13"), "is not in"),
        (
            ("publish", ref("a"), "--waive", "truth"),
            "--waive is recorded with who decided it and why. Add --by WHO --reason WHY.",
        ),
        (("promote", "stabel", ref("a")), 'there is no channel "stabel". Use "stable".'),
        (("promote", "publish", ref("a")), 'there is no channel "publish".'),
        (("promote", "stable", "cuda:12.4"), "is no immutable tag"),
        (
            ("publish", ref("a"), "--waive", "thruth"),
            'publish has no requirement "thruth". Use "truth".',
        ),
        (("publish", "cuda-12.4.2-runtime-debian12"), 'Use "cuda-12.4.1-runtime-debian12".'),
        (
            ("publish", "cuda-12.4.1-devel-debian13"),
            "Build it: goldnode images build cuda-12.4.1-devel-debian13.",
        ),
        (
            ("status", "cuda:12.4-runtime-debian13x", "--here"),
            'there is no "cuda:12.4-runtime-debian13x", and store has no channels of it. Use',
        ),
        (("rollback", "cuda"), "is no line of images"),
        (("rollback", LINE), "never pointed to anything"),
        (("pull", "cuda@sha256:12"), "is not an image reference"),
    ):
        done = desk.run(*words)
        assert done.exit_code == 2, done.output
        assert done.output.startswith("error: ")
        assert why in done.output
        assert done.output.count("\n") == 1


def _conflicted(lock: ImageLock, path: Path) -> None:
    path.write_text(f"<<<<<<< HEAD\n{dump_lock(lock)}")


def _edited(lock: ImageLock, path: Path) -> None:
    path.write_text(dump_lock(lock).replace("resolved: ", "resolved: 2000-01-01 # ", 1))


def _stale(lock: ImageLock, path: Path) -> None:
    path.write_text(dump_lock(lock.model_copy(update={"intent": "sha256:" + "0" * 64})))


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda lock, path: path.write_text(dump_lock(lock)), None),
        (_stale, None),
        (_conflicted, r"error: \S+cuda-12\.4\.1-runtime-debian12\.lock\.yml"),
        (
            _edited,
            r"error: \S+cuda-12\.4\.1-runtime-debian12\.lock\.yml:\d+: .*goldnode images lock cuda-12",
        ),
    ],
    ids=["good", "stale", "conflicted", "edited"],
)
def test_gc_keeps_what_a_lock_names_and_lets_nothing_go_where_one_cannot_be_read(
    desk: Desk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[ImageLock, Path], object],
    said: str | None,
) -> None:
    name = "cuda-12.4.1-runtime-debian12"
    lock, path = find_lock(load_matrix().images[name]), tmp_path / "locks" / f"{name}.lock.yml"
    path.parent.mkdir()
    write(lock, path)
    monkeypatch.setenv("GOLDNODE_IMAGE_LOCKS", str(path.parent))
    digest = load_lock(path).digest if said is None else lock.digest
    made, _ = make_image(desk.layout, build="c" * 12, content=b"c", labels={"lock": digest})
    before = set(desk.layout.refs())
    done = desk.run("gc", "--keep-days", "0")
    if said is None:
        assert (done.exit_code, set(desk.layout.refs())) == (0, {made}), done.output
    else:
        assert done.exit_code == 2
        assert re.match(said, done.output), done.output
        assert set(desk.layout.refs()) == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("promote", "stabel", "none:x"), 'there is no channel "stabel". Use "stable".'),
        (
            ("promote", "stable", "none:x", "--waive", "smoke-cpuu"),
            'stable has no requirement "smoke-cpuu". Use "smoke-cpu".',
        ),
        (
            ("promote", "stable", "none:x", "--approve-major", "nccll"),
            'stable asks for no approval of "nccll". Use "nccl".',
        ),
        (
            ("rollback", "none", "--channel", "stabel"),
            'there is no channel "stabel". Use "stable".',
        ),
    ],
)
def test_misspelt_channel_or_requirement_is_reported_before_keys(
    desk: Desk, words: tuple[str, ...], why: str
) -> None:
    done = desk.run(*words, "--here", key=False)
    assert (done.exit_code, why in done.output) == (2, True), done.output


@pytest.mark.parametrize("command", [("verify",), ("smoke",), ("inspect",), ("diff", ref("a"))])
def test_only_what_the_matrix_has_can_be_built(desk: Desk, command: tuple[str, ...]) -> None:
    for name, remedy in (
        ("cuda-12.4.2-runtime-debian12", 'Use "cuda-12.4.1-runtime-debian12".'),
        (
            "cuda-12.4.1-devel-debian13",
            "Build it: goldnode images build cuda-12.4.1-devel-debian13.",
        ),
    ):
        done = CliRunner().invoke(
            main, ["images", *command, name, "--store", str(desk.layout.root)]
        )
        assert (done.exit_code, remedy in done.output) == (2, True), done.output


def test_status_without_a_history_reports_nothing_verified(desk: Desk) -> None:
    desk.channels(here=True)
    said = desk.good("status", LINE, "--here")
    assert "(no channel was ever set)" in said
    assert "verified" not in said
    assert (
        json.loads(desk.good("status", LINE, "--here", "--format", "json"))["lines"][0]["verified"]
        is False
    )


def test_gc_dry_run_lists_the_images_to_remove(desk: Desk) -> None:
    said = desk.good("gc", "--dry-run", "--keep-days", "0")
    assert f"would go: {ref('a')}" in said
    desk.channels(here=True)
    desk.good("promote", "candidate", ref("a"), "--here")
    desk.good("gc", "--keep-days", "0")
    assert set(desk.layout.refs()) == {ref("a"), "cuda:12.4-runtime-debian12-candidate"}


def test_each_step_reports_as_json(desk: Desk, tmp_path: Path) -> None:
    def document(*words: str) -> dict[str, Any]:
        done = desk.run(*words, "--format", "json")
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    desk.channels()
    published = document("publish", ref("a"), ref("b"))
    assert published["schema"] == "goldnode.published-images/1"
    assert [row["digest"] for row in published["images"]] == list(desk.digests.values())
    for name in "ab":
        for channel in ("candidate", "canary", "stable"):
            moved = document("promote", channel, ref(name))
            assert (moved["schema"], moved["to"], moved["moved"]) == (
                "goldnode.channel-move/1",
                desk.digests[name],
                True,
            )
            assert "passed" in {row["state"] for row in moved["requirements"]}
    assert document("rollback", LINE, "--reason", "slow")["to"] == desk.digests["a"]
    pulled = document("pull", f"{desk.server.host}/gpu/cuda@{desk.digests['a']}")
    assert (pulled["schema"], pulled["ref"]) == ("goldnode.pulled-image/1", ref("a"))
    collected = document("gc", "--dry-run", "--keep-days", "0")
    assert (collected["schema"], collected["dry_run"]) == ("goldnode.gc/1", True)
    verified = CliRunner().invoke(
        main,
        [
            *("images", "verify", ref("a"), "--store", str(desk.layout.root)),
            *("--trust", str(desk.public), "--format", "json"),
        ],
    )
    found = json.loads(verified.stdout)
    assert (found["schema"], found["results"][0]["subject"]) == (
        "goldnode.verification/1",
        desk.digests["a"],
    )
