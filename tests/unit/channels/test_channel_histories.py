"""Histories of the last release become signed channels: with their whole past, once, also after an interruption.

`former/` has two histories that version 0.2.0 wrote and signed (`former/make.py` made them), each with seven moves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.channels import signing
from tests.unit.evidence.tokens import PLACE, token
from tests.unit.images.registries import Simulated, make_key, running

from goldnode.channels import migration, promotion, signed
from goldnode.channels.lines import ChannelLine
from goldnode.channels.promotion import Move
from goldnode.cli import main
from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.disks.lines import line_of
from goldnode.disks.places import ChannelStore, DirectoryPlace
from goldnode.evidence import signatures
from goldnode.evidence.signatures import load_public
from goldnode.images.channels import RegistryPlace
from goldnode.oci.layout import EMPTY, MANIFEST, Descriptor, Layout, digest_of
from goldnode.oci.registry import artifact_manifest, registry_address

__all__ = ["token"]  # a fixture
FORMER = Path(__file__).parent / "former"
LINES = {
    "cpu_node": line_of("cpu_node"),
    "cuda": ChannelLine("cuda", "12.4-runtime-debian12"),
}
MOVES = 7


@pytest.fixture
def place(tmp_path: Path, keys: tuple[Path, Path]) -> signing.MemoryPlace:
    own = signing.MemoryPlace()
    own.histories = {
        str(line): (FORMER / f"{name}.jsonl").read_bytes() for name, line in LINES.items()
    }
    signing.make_channels(own, store(tmp_path), tmp_path / "keys", keys[0])
    return own


def store(directory: Path) -> signing.MemoryStore:
    return signing.MemoryStore(directory / "store")


def migrated(
    place: signing.MemoryPlace,
    directory: Path,
    key: Path | None,
    trust: Path = FORMER / "builder.pub",
) -> migration.Migration:
    signers = signing.signers(directory / "keys", key) if key else None
    lines = list(LINES.values())
    return migration.migrate(place, store(directory), lines, load_public(trust), signers=signers)


def documents(name: str) -> list[dict[str, Any]]:
    rows = (FORMER / f"{name}.jsonl").read_bytes().splitlines()
    return [json.loads(signatures.payload_of(row)) for row in rows]


def test_each_field_of_each_move_is_signed_again(
    place: signing.MemoryPlace, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    before = place.files()
    dry = migrated(place, tmp_path, None)
    assert (dry.applied, dict(dry.moves)) == (False, {str(line): MOVES for line in LINES.values()})
    assert place.files() == before
    assert migrated(place, tmp_path, keys[0]).applied
    channels = signing.state(place, store(tmp_path)).there
    assert channels.trusted
    for name, line in LINES.items():
        rows = [
            {**row.document(), "channel": row.channel} for row in channels.history(line).entries
        ]
        for row, was in zip(rows, documents(name), strict=True):
            for field in set(was) - {"schema", "line", "number", "previous"}:
                assert row[field] == was[field]
    numbers = [row.number for line in LINES.values() for row in channels.history(line).entries]
    assert sorted(numbers) == list(range(1, 2 * MOVES + 1))
    # Only the images that channels point to are asked for their size.
    sizes = {channels.moves[line.target("stable")][-1].size for line in LINES.values()}
    assert sizes == {1000}


def test_migration_can_be_repeated_and_channels_go_on(
    place: signing.MemoryPlace, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    line = LINES["cpu_node"]
    place.point(line, "stable", "sha256:" + "a" * 64)
    kept = dict(place.histories)
    migrated(place, tmp_path, keys[0])
    assert place.histories == {}
    after = place.files()
    place.histories = kept  # a run that was interrupted before it put them aside
    assert set(migrated(place, tmp_path, keys[0]).moves.values()) == {0}
    assert place.files() == after
    move = Move(
        line, "stable", signing.signers(tmp_path / "keys", keys[0]), "ana", "again", to="b" * 12
    )
    assert promotion.rollback(place, store(tmp_path), move).tag == "b" * 12
    assert signing.said(place).history(line).entries[-1].number == 2 * MOVES + 1


@pytest.mark.parametrize("cut", ["commit", "retire"])
def test_an_interrupted_run_loses_nothing(
    place: signing.MemoryPlace,
    tmp_path: Path,
    keys: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    cut: str,
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(place, cut, dies)
        with pytest.raises(KeyboardInterrupt):
            migrated(place, tmp_path, keys[0])
    assert len(place.histories) == 2
    migrated(place, tmp_path, keys[0])
    entries = [len(signing.said(place).history(line).entries) for line in LINES.values()]
    assert entries == [MOVES, MOVES]


def test_moves_since_then_come_after_the_past(
    place: signing.MemoryPlace, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    line, signers = LINES["cpu_node"], signing.signers(tmp_path / "keys", keys[0])
    move = Move(line, "candidate", signers, "bob", to="c" * 12)
    promotion.promote(place, store(tmp_path), move, lambda *_: ([], []))
    migrated(place, tmp_path, keys[0])
    entries = signing.said(place).history(line).entries
    assert [entry.by for entry in entries] == ["ana"] * MOVES + ["bob"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:-5], "cannot be read|does not follow"),
        (lambda text: b"".join(text.splitlines(keepends=True)[1:]), "does not follow"),
        (lambda text: text.replace(b'"sig":"', b'"sig":"AAAA', 1), "does not follow"),
        (lambda text: text + text.splitlines(keepends=True)[0], "does not follow"),
        (lambda text: (FORMER / "cuda.jsonl").read_bytes(), "in this line"),
    ],
    ids=["cut", "first-gone", "signature", "added", "other-line"],
)
def test_an_altered_history_is_refused(
    place: signing.MemoryPlace, tmp_path: Path, keys: tuple[Path, Path], change: Any, why: str
) -> None:
    place.histories["cpu_node"] = change(place.histories["cpu_node"])
    before = place.files()
    with pytest.raises(ImageError, match=why):
        migrated(place, tmp_path, keys[0])
    assert place.files() == before


def test_a_history_of_another_key_is_refused(
    place: signing.MemoryPlace, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    with pytest.raises(ImageError, match="entry 7 has no good signature"):
        migrated(place, tmp_path, keys[0], make_key(tmp_path, "other")[1])


def test_two_histories_that_differ_are_for_a_person(
    place: signing.MemoryPlace, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    copy = migration.saved(store(tmp_path), place.name, LINES["cpu_node"])
    copy.parent.mkdir(parents=True)
    copy.write_bytes(place.histories["cuda:12.4-runtime-debian12"])
    with pytest.raises(ImageError, match="went different ways"):
        migrated(place, tmp_path, keys[0])
    # A copy that has more: moves that were made offline.
    copy.write_bytes(place.histories["cpu_node"])
    text = place.histories["cpu_node"].splitlines(keepends=True)
    place.histories["cpu_node"] = b"".join(text[:5])
    migrated(place, tmp_path, keys[0])
    assert len(signing.said(place).history(LINES["cpu_node"]).entries) == MOVES
    assert not copy.exists()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryPlace]:
    with running(Simulated()) as server:
        assert isinstance(server, Simulated)
        address = registry_address(f"http://{server.host}/gpu")
        yield RegistryPlace(address, server.client(), Layout(tmp_path / "images"))


def test_directory_and_registry_of_the_last_release_migrate_by_the_commands(
    tmp_path: Path,
    keys: tuple[Path, Path],
    registry: RegistryPlace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOLDNODE_SITE", raising=False)
    monkeypatch.setattr(promotion, "SETTLE", 0)
    disks = tmp_path / "disks"
    old = disks / "cpu_node/channels/history.jsonl"
    old.parent.mkdir(parents=True)
    old.write_bytes((FORMER / "cpu_node.jsonl").read_bytes())
    text, line = (FORMER / "cuda.jsonl").read_bytes(), LINES["cuda"]
    target = registry.repository(line)
    blobs = [
        Descriptor(kind, digest_of(data), len(data))
        for data, kind in ((b"{}", EMPTY), (text, migration.TYPE))
    ]
    for blob, data in zip(blobs, (b"{}", text), strict=True):
        (tmp_path / "blob").write_bytes(data)
        target.push_blob(blob, tmp_path / "blob")
    target.put_manifest(
        f"{line.name}-history", artifact_manifest(migration.TYPE, blobs[1:], {}), MANIFEST
    )
    folder = tmp_path / "keys"
    online, root = signing.key_of(folder, "online"), signing.key_of(folder, "root")
    where = {
        "disks": ["--to", str(disks), "--store", str(tmp_path / "disk-store")],
        "images": ["--to", f"http://{registry.where}", "--store", str(registry.layout.root)],
    }

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, ["channels", *words])
        assert done.exit_code == 0, done.output
        return done.output

    for kind, given in where.items():
        made = ["--targets-key", str(keys[0]), "--online-key", str(online)]
        run("keys", kind, *given, "--root-key", str(root), *made)
        signs = ["--key", str(keys[0]), "--online-key", str(online)]
        migrates = ["migrate", kind, *given, "--trust", str(FORMER / "builder.pub"), *signs]
        assert "7 moves to add (--apply)" in run(*migrates)
        assert "7 moves added" in run(*migrates, "--apply")
        assert "7 moves" not in run(*migrates, "--apply")
        run("refresh", kind, *given, "--online-key", str(online))
    assert not old.exists()
    assert (
        old.with_name("history.migrated").read_bytes() == (FORMER / "cpu_node.jsonl").read_bytes()
    )
    directory = DirectoryPlace(disks, ChannelStore(tmp_path / "disk-store"))
    for place, one in ((directory, LINES["cpu_node"]), (registry, line)):
        assert len(signed.verified(place.files(), "x").history(one).entries) == MOVES


def test_a_token_migrates_a_directory_of_the_last_release(token: Path, tmp_path: Path) -> None:
    """The key of targets is in SoftHSM, and signs the past and the next move."""
    old = tmp_path / "disks/cpu_node/channels/history.jsonl"
    old.parent.mkdir(parents=True)
    old.write_bytes((FORMER / "cpu_node.jsonl").read_bytes())
    online, root = (signing.key_of(tmp_path / "keys", name) for name in ("online", "root"))
    where = ["disks", "--to", str(old.parents[2]), "--store", str(tmp_path / "store")]
    trust = ["--trust", str(FORMER / "builder.pub"), "--key", PLACE, "--apply"]
    for words in (
        ["keys", *where, "--root-key", str(root), "--targets-key", PLACE],
        ["migrate", *where, *trust],
    ):
        done = CliRunner().invoke(main, ["channels", *words, "--online-key", str(online)])
        assert done.exit_code == 0, done.output
    place = DirectoryPlace(old.parents[2], ChannelStore(tmp_path / "store"))
    seen = signed.verified(place.files(), "x")
    assert len(seen.history(LINES["cpu_node"]).entries) == MOVES
    names = {one["keyid"] for one in json.loads(place.files()["2.targets.json"])["signatures"]}
    assert names == {signatures.load_signer(token).keyid}


def test_channels_are_made_before_they_are_migrated(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    with pytest.raises(GoldnodeError, match=r"no signed channels yet.*goldnode channels keys"):
        migrated(signing.MemoryPlace(), tmp_path, keys[0])
