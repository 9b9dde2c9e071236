"""Rotations of each kind of key: a plan, recorded steps, the overlap, interruptions at each step, and thefts."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.fleet.keys.test_inventory import SITE

from goldnode.cli import main
from goldnode.commands.keys import ROTATED, sign_heads
from goldnode.core import files
from goldnode.core.site import load_site
from goldnode.evidence.signatures import load_public, load_signer, public_half
from goldnode.fleet.keys import authority, making, procedures, rotation
from goldnode.fleet.keys.kinds import KINDS
from goldnode.fleet.keys.procedures import KeyPlaces
from goldnode.fleet.keys.rotation import KeyRotation, RotationError, RotationRequest, RotationState
from goldnode.fleet.store import log, schema
from goldnode.fleet.store.database import open_store
from goldnode.fleet.store.errors import StoreDamagedError
from goldnode.node.ground.openpgp import primary_fingerprints

NOW = dt.datetime.now(dt.UTC)
GPG = pytest.mark.skipif(shutil.which("gpg") is None, reason="GnuPG is not installed")
MADE = ("modules", "images", "log", "documents", "evidence", "webhook")


@dataclass
class Keys:
    """A site with a key of each kind, and rotations of them."""

    directory: Path
    now: dt.datetime = NOW

    def procedure(self, kind: str, **given: Any) -> KeyRotation:
        name = given.pop("name", {"node": "n1", "tls": "lock"}.get(kind))
        given.setdefault("authority", self.directory / "ca")
        if kind == "token":
            given.setdefault("name", "prometheus")
            name = "prometheus"
            given.pop("name")
            given.setdefault("new", self.directory / "new-token")
        if kind == "release":
            given.setdefault("old", self.directory / "release/goldnode-release.pem")
        return procedures.procedure(
            kind, KeyPlaces(load_site(), self.now, name, sign_heads=sign_heads, **given)
        )

    def step(self, kind: str, request: RotationRequest, **given: Any) -> RotationState:
        return rotation.carry_out(self.procedure(kind, **given), request, self.now)

    def to_the_end(self, kind: str, *, stolen: bool = False, **given: Any) -> list[str]:
        """Rotate as people do; return the steps that a person had to confirm."""
        confirmed: list[str] = []
        state = self.step(kind, RotationRequest(apply=True, stolen=stolen), **given)
        while state.state != "completed":
            (following,) = [row for row in state.steps if row.state == "next"]
            name = following.step.name
            if name == rotation.OVERLAP:
                self.now += dt.timedelta(days=state.days)
                request = RotationRequest(apply=True)
            else:
                assert following.why == f"confirm it with --done {name}"
                confirmed.append(name)
                request = RotationRequest(confirmed=name)
            state = self.step(kind, request, **given)
        return confirmed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small: None) -> Path:
    """Make a site with a key of each kind, once."""
    site = tmp_path_factory.mktemp("site")
    for kind in (*MADE, "release"):
        making.make(kind, site / kind, "test", NOW)
    for name in ("token", "new-token"):
        (site / name).write_text(name)
        (site / name).chmod(0o600)
    (site / "site.yml").write_text(SITE.replace("fleet:\n", "fleet:\n  store: fleet.db\n"))
    authority.create(site / "ca", "goldnode", NOW)
    authority.issue(site / "ca", "n1", site / "certs", NOW)
    authority.issue(site / "ca", "lock", site / "certs", NOW, serves=True)
    return site


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Make keys of modules with 1024 bits: one of 4096 takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "MODULE_BITS", 1024)
        yield


@pytest.fixture
def keys(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    monkeypatch.delenv("GOLDNODE_FLEET_STORE", raising=False)
    return Keys(tmp_path)


@pytest.fixture
def store(keys: Keys) -> Keys:
    """Add a store whose log has a head of the present key."""
    database = open_store(str(keys.directory / "fleet.db"), create=True)
    database.run(schema.migrate)
    sealed(keys)
    database.close()
    return keys


def sealed(keys: Keys) -> None:
    database = open_store(str(keys.directory / "fleet.db"))
    with database.write() as connection:
        log.append(connection, log.LogLine(1.0, "a", "Start", "n1", {}))
        log.seal(connection, 2.0, keys.directory / "log/log.pem")
    database.close()


def verified(keys: Keys) -> int:
    database = open_store(str(keys.directory / "fleet.db"))
    with database.read() as connection:
        signed = log.verify(connection, keys.directory / "log/log.pub").signed
    database.close()
    return signed


def ids(path: Path) -> list[str]:
    return [key.keyid for key in load_public(path)]


FILES = (
    "authority",
    "documents",
    "evidence",
    "images",
    "modules",
    "node",
    "release",
    "tls",
    "token",
    "webhook",
)


def test_every_kind_of_key_has_a_procedure() -> None:
    assert set(ROTATED) == {kind.name for kind in KINDS} == set(procedures.PROCEDURES)


@pytest.mark.parametrize("kind", [*FILES, "log", "mirror"])
def test_each_command_of_a_step_is_one_of_goldnode(keys: Keys, kind: str) -> None:
    for row in keys.step(kind, RotationRequest()).steps:
        words = row.step.command.split()
        if words[:1] != ["goldnode"]:
            continue
        names = list(itertools.takewhile(lambda word: re.fullmatch("[a-z-]+", word), words[1:]))
        assert CliRunner().invoke(main, [*names, "--help"]).exit_code == 0, row.step.command


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("stolen", [False, True])
def test_a_plan_changes_nothing_and_a_rotation_ends(keys: Keys, kind: str, stolen: bool) -> None:
    before = {path: path.read_bytes() for path in keys.directory.rglob("*") if path.is_file()}
    plan = keys.step(kind, RotationRequest(stolen=stolen))
    assert plan.state == "planned"
    assert {row.state for row in plan.steps} == {"next", "later"}
    now = {path: path.read_bytes() for path in keys.directory.rglob("*") if path.is_file()}
    assert now == before
    assert keys.to_the_end(kind, stolen=stolen)
    assert keys.step(kind, RotationRequest()).state == "planned", "the next one can begin"


@pytest.mark.parametrize("stolen", [False, True])
def test_public_keys_overlap_and_the_old_one_is_removed(keys: Keys, stolen: bool) -> None:
    public, secret = keys.directory / "images/images.pub", keys.directory / "images/images.pem"
    (old,) = ids(public)
    other = making.make("documents", keys.directory / "other", "other", NOW)[1]
    public.write_bytes(public.read_bytes() + other.read_bytes())  # of another team: it stays
    public.chmod(0o644)
    state = keys.step("images", RotationRequest(apply=True, stolen=stolen))
    fresh = public_half(keys.directory / "images/rotation-images/new/images.pem").keyid
    during = [*ids(other), fresh] if stolen else [old, *ids(other), fresh]
    assert ids(public) == during
    assert public_half(secret).keyid == old, "nothing is signed with it before others trust it"
    assert state.state == "running"
    keys.step("images", RotationRequest(confirmed="distribute"))
    assert public_half(secret).keyid == fresh
    assert secret.stat().st_mode & 0o777 == 0o600
    assert public.stat().st_mode & 0o777 == 0o644
    keys.to_the_end("images")
    assert ids(public) == [*ids(other), fresh]


def test_the_overlap_lasts_its_days(keys: Keys) -> None:
    keys.step("images", RotationRequest(apply=True, days=3))
    for name in ("distribute", "sign"):
        state = keys.step("images", RotationRequest(confirmed=name))
    (following,) = [row for row in state.steps if row.state == "next"]
    assert following.step.name == "overlap"
    assert "both keys stay trusted until" in following.why
    keys.now += dt.timedelta(days=2, hours=23)
    assert keys.step("images", RotationRequest(apply=True)).steps[-3].state == "later"
    keys.now += dt.timedelta(hours=1)
    state = keys.step("images", RotationRequest(apply=True))
    assert [row.step.name for row in state.steps if row.state == "next"] == ["redistribute"]


def test_a_theft_during_the_overlap_ends_it(keys: Keys) -> None:
    public = keys.directory / "images/images.pub"
    (old,) = ids(public)
    keys.step("images", RotationRequest(apply=True))
    assert old in ids(public)
    keys.step("images", RotationRequest(apply=True, stolen=True))
    assert old not in ids(public)
    assert keys.step("images", RotationRequest()).stolen, "it is recorded"


@pytest.mark.parametrize("stolen", [False, True])
def test_the_log_verifies_before_during_and_after(store: Keys, stolen: bool) -> None:
    """A head is signed once: without new signatures, the log could not be verified after the old key has gone."""
    assert verified(store) == 1
    store.step("log", RotationRequest(apply=True))
    sealed(store)
    assert verified(store) == 2
    thief = store.directory / "thief.pem"
    thief.write_bytes((store.directory / "log/log.pem").read_bytes())
    thief.chmod(0o600)
    store.to_the_end("log", stolen=stolen)
    sealed(store)
    assert verified(store) == 4, "with the head over the new signature"
    assert len(ids(store.directory / "log/log.pub")) == 1
    # After: the thief of the old key, who can write to the store too, signs a head, or for all heads again.
    database = open_store(str(store.directory / "fleet.db"))
    with database.write() as connection:
        log.append(connection, log.LogLine(5.0, "thief", "Start", "n1", {}))
        log.seal(connection, 6.0, thief)
        about = {"seq": 99, "digest": "0" * 64}
        envelope = load_signer(thief).sign(json.dumps(about).encode(), log.AGAIN_TYPE).decode()
        log.append(connection, log.LogLine(7.0, "thief", log.AGAIN, "log", {"envelope": envelope}))
    database.close()
    with pytest.raises(StoreDamagedError, match="signed by a key that is not known here"):
        verified(store)


def test_documents_with_several_authors_name_the_key_that_goes(keys: Keys) -> None:
    public = keys.directory / "documents/documents.pub"
    other = making.make("log", keys.directory / "other", "other", NOW)[1]
    first = keys.directory / "first.pub"
    first.write_bytes(public.read_bytes())
    public.write_bytes(public.read_bytes() + other.read_bytes())
    with pytest.raises(RotationError, match=r"it is not known which one goes.*--old FILE"):
        keys.to_the_end("documents", stolen=True)
    keys.to_the_end("documents", stolen=True, old=first)
    assert ids(first)[0] not in ids(public)
    assert ids(other)[0] in ids(public)


@GPG
@pytest.mark.parametrize("stolen", [False, True])
def test_nodes_have_both_keys_of_a_mirror_during_the_overlap(keys: Keys, stolen: bool) -> None:
    making.make("mirror", keys.directory / "mirror", "test", NOW)
    public = keys.directory / "mirror/mirror.asc"
    (old,) = primary_fingerprints(public.read_bytes())
    keys.step("mirror", RotationRequest(apply=True, stolen=stolen))
    during = primary_fingerprints(public.read_bytes())
    assert len(during) == (1 if stolen else 2)
    assert (old in during) != stolen
    assert public.read_bytes().count(b"BEGIN PGP") == 1, "one block: gpg and apt read all of it"
    keys.to_the_end("mirror")
    assert old not in primary_fingerprints(public.read_bytes())


def test_a_new_certificate_of_a_node_stays_and_the_old_one_is_revoked(keys: Keys) -> None:
    confirmed = keys.to_the_end("node")
    assert confirmed == ["install", "redistribute", "destroy"]
    rows = [row for row in authority.issued(keys.directory / "ca") if row["node"] == "n1"]
    assert [bool(row["revoked"]) for row in rows] == [True, False]
    other = [row for row in authority.issued(keys.directory / "ca") if row["node"] == "lock"]
    assert [bool(row["revoked"]) for row in other] == [False]


def test_an_authority_issues_again_for_nodes_and_services(keys: Keys) -> None:
    ca = keys.directory / "ca"
    authority.issue(ca, "n2", keys.directory / "certs", NOW)
    authority.revoke(ca, "n2", NOW)
    keys.step("authority", RotationRequest(apply=True))
    assert authority.issued(ca) == [], "the new one has issued nothing yet"
    assert (ca / "authority.pem").read_text().count("BEGIN CERTIFICATE") == 2
    assert (ca / "revoked.pem").read_text().count("BEGIN X509 CRL") == 2
    keys.step("authority", RotationRequest(confirmed="distribute"))
    rows = {row["node"]: row["serves"] for row in authority.issued(ca)}
    assert rows == {"n1": False, "lock": True}, "not for the revoked one"
    assert authority.revoke(ca, "n1", NOW) == 2, "of both authorities"
    keys.to_the_end("authority")
    assert (ca / "authority.pem").read_text().count("BEGIN CERTIFICATE") == 1
    assert (ca / "revoked.pem").read_text().count("BEGIN X509 CRL") == 1


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "log"])
def test_an_interruption_at_each_write_can_be_repeated(
    keys: Keys, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of a file fails once, and the same command goes on. Nothing that is trusted is lost."""
    failed = set[tuple[Path, str]]()
    real, record_of = files.replace_file, rotation.RECORD

    def failing(path: Path, data: bytes, mode: int | None = None) -> None:
        which = (path, data.decode(errors="replace") if path.name == record_of else "")
        if which not in failed:
            failed.add(which)
            raise OSError(28, "No space left on device", str(path))
        real(path, data, mode)

    for module in (procedures, rotation, authority, making):
        if hasattr(module, "replace_file"):
            monkeypatch.setattr(module, "replace_file", failing)
    request = RotationRequest(apply=True)
    for _ in range(200):
        try:
            state = keys.step(kind, request)
        except OSError:
            continue
        if state.state == "completed":
            break
        (following,) = [row for row in state.steps if row.state == "next"]
        request = RotationRequest(confirmed=following.step.name)
        if following.step.name == rotation.OVERLAP:
            keys.now += dt.timedelta(days=state.days)
            request = RotationRequest(apply=True)
    assert state.state == "completed"
    assert len(failed) > 2 * len(state.steps)
    (ended,) = keys.directory.rglob("rotation-*-ended-*")
    record = json.loads((ended / "rotation.json").read_text())
    assert list(record["done"]) == [row.step.name for row in state.steps]


def run(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["keys", "rotate", *words, "--format", "json"])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def states(document: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["state"] for row in document["steps"]}


def test_the_command_shows_applies_and_confirms(keys: Keys) -> None:
    document = run("webhook")
    assert (document["schema"], document["state"]) == ("goldnode.keys-rotation/1", "planned")
    assert set(states(document).values()) == {"next", "later"}
    document = run("webhook", "chat", "--apply")
    assert states(document)["trust"] == "done"
    assert states(document)["distribute"] == "next"
    shown = CliRunner().invoke(main, ["keys", "rotate", "webhook"]).output
    assert "waits" not in shown, "a plan asks nothing"
    assert "the receiver: it verifies with the secret of" in shown
    shown = CliRunner().invoke(main, ["keys", "rotate", "webhook", "--apply"]).output
    assert "waits: confirm it with --done distribute" in shown
    document = run("webhook", "--done", "distribute")
    assert states(document)["withdraw"] == "done"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["images", "--done", "sign"], "the next step is make"),
        (["images", "--done", "make"], "not for a person to confirm"),
        (["node"], "--authority DIR is missing"),
        (["webhook", "other"], "no webhook other. name one of: chat"),
        (["token"], "which token is meant. name one of: alerts, prometheus"),
        (["token", "alerts", "--apply"], "--new FILE is missing"),
        (["root"], "--channel DIR is missing"),
        (["release"], "--old FILE is missing"),
    ],
)
def test_rotation_without_what_it_needs_ends_with_an_error(
    keys: Keys, words: list[str], error: str
) -> None:
    done = CliRunner().invoke(main, ["keys", "rotate", *words])
    assert done.exit_code != 0
    assert error.lower() in done.output.lower(), done.output


def test_a_site_without_the_key_and_a_damaged_record_are_errors(keys: Keys) -> None:
    keys.step("images", RotationRequest(apply=True))
    record = keys.directory / "images/rotation-images/rotation.json"
    record.write_text("{")
    with pytest.raises(RotationError, match="the record of the rotation cannot be read"):
        keys.step("images", RotationRequest(apply=True))
    (keys.directory / "site.yml").write_text("images: {}\n")
    with pytest.raises(RotationError, match=r"the site file names no images\.signing_key"):
        keys.step("images", RotationRequest())
