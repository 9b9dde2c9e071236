"""Moves of channels whose keys are not on this machine: signed on another one, or by a PKCS #11 token. By the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.disks.disk_samples import BUILDS, CLASS, make_build, prove
from tests.unit.evidence.tokens import PLACE, token
from tests.unit.images.registries import make_key
from tuf.api.metadata import Metadata

from goldnode.channels import signed, updates
from goldnode.channels.lines import RecordedMove
from goldnode.cli import main
from goldnode.disks.lines import line_of
from goldnode.disks.places import ChannelStore, DirectoryPlace
from goldnode.disks.publish import publish
from goldnode.evidence.signatures import PIN, load_signer

__all__ = ["token"]  # a fixture
pytestmark = pytest.mark.usefixtures("unsynced")
CANDIDATE = line_of(CLASS).target("candidate")


@dataclass
class Site:
    """A published directory with two disks, a store, and keys of which the offline one is elsewhere."""

    folder: Path
    builder: Path
    targets: str | Path
    online: str | Path

    def command(self, *words: object) -> Result:
        return CliRunner().invoke(main, [str(word) for word in words])

    def move(self, *words: object) -> Result:
        """Run `disks promote` or `rollback` at the published directory."""
        where = ("--to", self.folder / "www", "--store", self.folder / "store", "--by", "ana")
        return self.command("disks", *words, *where, "--trust", self.builder.with_suffix(".pub"))

    def prepare(self, *words: object) -> Path:
        path = self.folder / "move.json"
        done = self.move(*words, "--prepare", path)
        assert done.exit_code == 0, done.output
        assert "nothing was moved: sign it with" in done.output
        return path

    def sign(self, path: Path, *keys: str | Path) -> str:
        given = [word for key in keys or (self.targets,) for word in ("--key", key)]
        done = self.command("rollout", "sign-metadata", path, *given)
        assert done.exit_code == 0, done.output
        return done.output

    def publish(self, path: Path, *words: object) -> Result:
        return self.move(*words, "--signed", path, "--online-key", self.online)

    @property
    def place(self) -> DirectoryPlace:
        store = ChannelStore(self.folder / "store")
        return DirectoryPlace(self.folder / "www", store, load_signer(self.builder))

    def current(self, channel: str = "candidate") -> str | None:
        last = signed.unverified(self.place.files()).history(line_of(CLASS)).current(channel)
        return None if last is None else last.tag


def made(folder: Path, targets: str | Path, online: str | Path, *roots: str | Path) -> Site:
    site = Site(folder, make_key(folder, "builder")[0], targets, online)
    (folder / "www").mkdir()
    for name in ("a", "b"):
        disk = make_build(site.place.store.root, name)
        prove(disk, site.builder)
        publish(disk, site.place, load_signer(site.builder))
    given = [word for root in roots for word in ("--root-key", root)]
    done = site.command(
        "channels", "keys", "disks", "--to", folder / "www", "--store", folder / "store",
        "--online-key", online, "--targets-key", targets, *given,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    targets, online, root = (make_key(tmp_path, name)[0] for name in ("targets", "online", "root"))
    return made(tmp_path, targets, online, root)


A, B = (
    ("promote", "candidate", f"{CLASS}:{BUILDS['a']}"),
    (
        "promote",
        "candidate",
        f"{CLASS}:{BUILDS['b']}",
    ),
)


def test_moves_are_signed_on_another_machine(site: Site) -> None:
    before = site.place.files()
    path = site.prepare(*A)
    assert site.place.files() == before, "nothing was moved"
    shown = site.sign(path)
    assert CANDIDATE in shown
    assert f"promote to {BUILDS['a']} by ana" in shown
    done = site.publish(path, *A)
    assert (done.exit_code, site.current()) == (0, BUILDS["a"]), done.output
    path = site.prepare(*B)
    site.sign(path)
    assert site.publish(path, *B).exit_code == 0
    back = ("rollback", CLASS, "--channel", "candidate", "--reason", "slow")
    path = site.prepare(*back)
    assert "rollback to" in site.sign(path)
    done = site.publish(path, *back)
    assert (done.exit_code, site.current()) == (0, BUILDS["a"]), done.output
    moves = signed.unverified(site.place.files()).history(line_of(CLASS)).entries
    assert [(move.action, move.by, move.reason) for move in moves][-1] == (
        "rollback",
        "ana",
        "slow",
    )
    assert all(move.requirements for move in moves[:-1]), "judged when it was prepared"
    done = site.move(*A, "--prepare", path)
    assert "nothing has to be signed" in done.output


def test_two_people_of_a_team_sign_one_move_in_turn(site: Site) -> None:
    ana, ben = (make_key(site.folder, name)[0] for name in ("ana", "ben"))
    teams = site.folder / "teams.yml"
    teams.write_text(
        'roles: {disks: {keys: [ana.pub, ben.pub], threshold: 2, paths: ["*/disk/candidate"]}}\n'
    )
    where = ("--to", site.folder / "www", "--store", site.folder / "store")
    given = ("--targets-key", site.targets, "--team-key", ana, "--team-key", ben)
    done = site.command(
        *("channels", "keys", "disks", *where, *given, "--delegations", teams),
        *("--online-key", site.online),
    )
    assert done.exit_code == 0, done.output
    path = site.prepare(*A)
    site.sign(path, ana)
    assert "needs 2" in site.publish(path, *A).output
    site.sign(path, site.targets)
    assert "needs 2" in site.publish(path, *A).output, "a key that does not count here"
    site.sign(path, ben)
    done = site.publish(path, *A)
    assert (done.exit_code, site.current()) == (0, BUILDS["a"]), done.output


def change(path: Path, edit: Callable[[Any], None], *keys: Path) -> None:
    """Edit a prepared move, and sign it again with keys."""
    document: Metadata[Any] = Metadata.from_bytes(path.read_bytes())
    edit(document.signed)
    document.signatures.clear()
    updates.write_document(path, updates.sign(document, [load_signer(key) for key in keys]))


def last_move(target: Any, **fields: Any) -> None:
    target.unrecognized_fields["custom"]["moves"][-1].update(fields)


def other_image(release: Any) -> None:
    digest = "9" * 64
    release.targets[CANDIDATE].hashes["sha256"] = digest
    last_move(release.targets[CANDIDATE], to=f"sha256:{digest}")


def other_tag(release: Any) -> None:
    last_move(release.targets[CANDIDATE], tag=BUILDS["b"])


def other_number(release: Any) -> None:
    last_move(release.targets[CANDIDATE], number=99)


def other_channel_too(release: Any) -> None:
    custom = release.targets[CANDIDATE].unrecognized_fields["custom"]
    moves = [RecordedMove(**row, channel="stable") for row in custom["moves"]]
    release.targets[line_of(CLASS).target("stable")] = signed.target_of(
        line_of(CLASS).target("stable"), moves
    )


def further_role(release: Any) -> None:
    updates.delegate(release, [updates.DelegatedPaths("thief", [], ["*/*/*"])])


def no_moves(release: Any) -> None:
    release.targets[CANDIDATE].unrecognized_fields.clear()


def path_for_tag(release: Any) -> None:
    last_move(release.targets[CANDIDATE], tag="../../etc")


EDITS = (
    other_image,
    other_tag,
    other_number,
    other_channel_too,
    further_role,
    no_moves,
    path_for_tag,
)


@pytest.mark.parametrize("edit", EDITS, ids=[edit.__name__ for edit in EDITS])
def test_more_or_less_than_the_move_is_refused_though_it_is_signed(
    site: Site, edit: Callable[[Any], None]
) -> None:
    """A prepared file that is changed on its way to the other machine, and signed there without a look."""
    path, before = site.prepare(*A), site.place.files()
    change(path, edit, Path(site.targets))
    done = site.publish(path, *A)
    assert done.exit_code == 2, done.output
    assert "is not this move of" in done.output
    assert site.place.files() == before


def test_signatures_that_do_not_count_are_refused(site: Site) -> None:
    path, before = site.prepare(*A), site.place.files()
    thief = make_key(site.folder, "thief")[0]
    assert "needs 1" in site.publish(path, *A).output, "without any"
    site.sign(path, thief, site.builder, site.online)
    assert "needs 1" in site.publish(path, *A).output, "by other keys"
    site.sign(path)
    text = path.read_text(encoding="utf-8").replace('"by": "ana"', '"by": "eve"')
    path.write_text(text, encoding="utf-8")
    assert "needs 1" in site.publish(path, *A).output, "edited after it was signed"
    assert site.place.files() == before


def test_signed_move_counts_once_and_for_its_channel(site: Site) -> None:
    path = site.prepare(*A)
    site.sign(path)
    other = ("rollback", CLASS, "--channel", "candidate", "--reason", "x")
    assert site.publish(path, *B).exit_code == 2, "another image"
    assert site.publish(path, *other).exit_code == 2, "another action"
    assert site.publish(path, *A).exit_code == 0
    # The state has changed since: by the move itself, or by another one.
    again = site.publish(path, *A)
    assert "is " + BUILDS["a"] + " already" in again.output
    late = site.prepare(*B)
    site.sign(late)
    assert site.publish(late, *B).exit_code == 0
    assert site.publish(late, *A).exit_code == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 9000])
def test_file_that_is_no_move_is_an_error(site: Site, content: bytes) -> None:
    path = site.folder / "move.json"
    path.write_bytes(content)
    done = site.publish(path, *A)
    assert (done.exit_code, "no metadata document" in done.output) == (2, True), done.output


def test_root_or_timestamp_is_no_move(site: Site) -> None:
    for name in ("1.root.json", "timestamp.json"):
        done = site.publish(site.folder / "www/metadata" / name, *A)
        assert (done.exit_code, "is not this move of" in done.output) == (2, True), done.output


def test_both_steps_at_once_are_refused(site: Site) -> None:
    path = site.prepare(*A)
    done = site.publish(path, *A, "--prepare", path)
    assert (done.exit_code, "are two steps" in done.output) == (2, True)


def test_keys_of_a_token_sign_moves_and_the_last_histories(token: Path, tmp_path: Path) -> None:
    """`targets` is in SoftHSM: keys, a promotion, a way back, and a move that is signed on the machine of the token."""
    online, root = (make_key(tmp_path, name)[0] for name in ("online", "root"))
    site = made(tmp_path, PLACE, online, root)
    for words in (A, B, ("rollback", CLASS, "--channel", "candidate", "--reason", "slow")):
        done = site.move(*words, "--key", PLACE, "--online-key", online)
        assert done.exit_code == 0, done.output
    assert site.current() == BUILDS["a"]
    path = site.prepare("promote", "canary", f"{CLASS}:{BUILDS['a']}", "--reason", "again")
    site.sign(path)
    done = site.publish(path, "promote", "canary", f"{CLASS}:{BUILDS['a']}", "--reason", "again")
    assert (done.exit_code, site.current("canary")) == (0, BUILDS["a"]), done.output
    own = json.loads((tmp_path / "www/metadata/1.root.json").read_bytes())["signed"]
    assert own["roles"]["targets"]["keyids"] == [load_signer(token).keyid]


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        (PIN, "0000", "cannot be used"),
        (PIN, None, "cannot be used"),
        ("PYKCS11LIB", None, "cannot be used"),
        ("PYKCS11LIB", "/nowhere/library.so", "cannot be used"),
    ],
)
def test_token_that_does_not_sign_moves_nothing(
    token: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str | None,
    text: str,
) -> None:
    online, root = (make_key(tmp_path, name)[0] for name in ("online", "root"))
    site = made(tmp_path, token, online, root)
    before = site.place.files()
    monkeypatch.delenv(variable)
    if value is not None:
        monkeypatch.setenv(variable, value)
    done = site.move(*A, "--key", PLACE, "--online-key", online)
    assert (done.exit_code, text in done.output) == (2, True), done.output
    assert value is None or value.startswith("/") or value not in done.output
    assert site.place.files() == before


def test_token_without_a_role_moves_nothing(site: Site, token: Path) -> None:
    before = site.place.files()
    done = site.move(*A, "--key", PLACE, "--online-key", site.online)
    assert (done.exit_code, "needs 1" in done.output) == (2, True), done.output
    path = site.prepare(*A)
    site.sign(path, PLACE)
    assert "needs 1" in site.publish(path, *A).output
    assert site.place.files() == before


def test_one_token_is_not_targets_and_online_at_once(tmp_path: Path, token: Path) -> None:
    root = make_key(tmp_path, "root")[0]
    done = CliRunner().invoke(
        main,
        [
            *("channels", "keys", "disks", "--to", str(tmp_path), "--store", str(tmp_path / "s")),
            *("--root-key", str(root), "--targets-key", PLACE, "--online-key", PLACE),
        ],
    )
    assert (done.exit_code, "one key signs targets and the timestamp" in done.output) == (2, True)
