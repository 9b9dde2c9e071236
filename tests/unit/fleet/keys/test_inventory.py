"""The list of a site's keys: kinds, modes, ends; and the commands that refuse a wider mode."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.channels import signing

from goldnode.cli import main
from goldnode.core.errors import SigningKeyError
from goldnode.core.site import load_site
from goldnode.fleet.control import requirements
from goldnode.fleet.keys import authority, inventory, making
from goldnode.fleet.keys.kinds import KINDS
from goldnode.fleet.service.server import Listen, server
from goldnode.fleet.store.database import StoreDatabase
from goldnode.lock import signing as mirror_signing
from goldnode.lock.modpackage import Signing

NOW = dt.datetime.now(dt.UTC)
SITE = """\
mirror: {url: "https://mirror.example", directory: www, key: mirror/mirror.asc, signing_key: mirror/mirror-signing.asc}
module_signing: {key: modules/modules.key, certificate: modules/modules.pem}
images: {signing_key: images/images.pem, public_key: images/images.pub}
fleet:
  signing_key: log/log.pem
  public_key: log/log.pub
  document_key: documents/documents.pub
  prometheus: {url: "http://prometheus.example", token: token}
evidence: {signing_key: evidence/evidence.pem, public_key: evidence/evidence.pub}
events:
  hooks:
    chat: {webhook: {url: "https://chat.example/hook", secret: webhook/webhook.secret}}
    alerts: {alertmanager: {url: "https://alerts.example", token: token}}
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a site with a key of each kind; return its directory."""
    for kind in ("mirror", "modules", "images", "log", "documents", "evidence", "webhook"):
        making.make(kind, tmp_path / kind, "test", NOW)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "site.yml").write_text(SITE)
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    return tmp_path


def listed(*words: str) -> tuple[int, list[dict[str, str]]]:
    done = CliRunner().invoke(main, ["keys", "list", "--format", "json", *words])
    return done.exit_code, json.loads(done.stdout)["keys"]


def test_every_key_of_a_site_is_listed(site: Path) -> None:
    authority.create(site / "ca", "fleet", NOW)
    authority.issue(site / "ca", "n1", site / "ca/nodes", NOW)
    status, rows = listed("--authority", str(site / "ca"))
    assert status == 0, rows
    kinds = [row["kind"] for row in rows]
    assert kinds == [
        *("mirror", "modules", "images", "log", "documents", "evidence", "evidence"),
        *("token", "token", "webhook", "authority", "node"),
    ]
    assert all(row["purpose"] and row["trusted"] for row in rows)
    ends = {row["kind"] for row in rows if row["expires"]}
    assert ends == {"mirror", "modules", "authority", "node"}


@pytest.mark.parametrize(
    ("file", "mode", "kind"),
    [
        ("mirror/mirror-signing.asc", 0o640, "mirror"),
        ("modules/modules.key", 0o640, "modules"),
        ("images/images.pem", 0o644, "images"),
        ("log/log.pem", 0o604, "log"),
        ("evidence/evidence.pem", 0o640, "evidence"),
        ("webhook/webhook.secret", 0o644, "webhook"),
        ("token", 0o646, "token"),
    ],
)
def test_a_mode_that_is_too_wide_is_reported(site: Path, file: str, mode: int, kind: str) -> None:
    (site / file).chmod(mode)
    status, rows = listed()
    assert status == 1
    wrong = [row for row in rows if row["warning"]]
    assert {row["kind"] for row in wrong} == {kind}
    assert f"its mode is {mode:04o}" in wrong[0]["warning"]
    assert "chmod" in wrong[0]["warning"]


def test_a_missing_key_and_a_public_key_that_others_can_change_are_reported(site: Path) -> None:
    (site / "images/images.pem").unlink()
    (site / "documents/documents.pub").chmod(0o666)
    status, rows = listed()
    warnings = {row["kind"]: row["warning"] for row in rows if row["warning"]}
    assert status == 1
    assert warnings == {
        "images": "the file is not there",
        "documents": "others can change it: run chmod go-w",
    }


def test_an_end_that_is_near_is_reported(site: Path) -> None:
    authority.create(site / "ca", "fleet", NOW, days=20)
    authority.issue(site / "ca", "n1", site / "ca/nodes", NOW, days=5)
    status, rows = listed("--authority", str(site / "ca"), "--within", "10")
    assert status == 1
    assert [row["named"] for row in rows if row["warning"]] == ["n1"]
    assert listed("--authority", str(site / "ca"), "--within", "3")[0] == 0
    authority.revoke(site / "ca", "n1", NOW)
    assert listed("--authority", str(site / "ca"), "--within", "10")[0] == 0


def root(expires: str, version: int = 1, threshold: int = 2) -> str:
    roles = {"root": {"keyids": ["a", "b", "c"], "threshold": threshold}}
    body = {"_type": "root", "version": version, "expires": expires, "roles": roles}
    return json.dumps({"signed": body, "signatures": []})


def test_the_newest_root_of_a_channel_is_listed(site: Path) -> None:
    place = site / "channel"
    place.mkdir()
    (place / "1.root.json").write_text(root("2020-01-01T00:00:00Z"))
    (place / "root.json").write_text("{}")
    (place / "2.root.json").write_text(root("2090-01-01T00:00:00Z", 2))
    status, rows = listed("--channel", str(place))
    assert status == 0
    assert rows[-1]["named"] == "root: 2 of 3 keys, root version 2"
    (place / "2.root.json").unlink()
    status, rows = listed("--channel", str(place))
    assert rows[-1]["warning"] == "it has expired on 2020-01-01"
    assert status == 1


def test_keys_and_roots_of_the_channels_of_images_and_disks_are_listed(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the site file names, and those of each place that a store has seen."""
    store = signing.MemoryStore(site / "store")
    trusted = make_channels(site, store)
    monkeypatch.setenv("GOLDNODE_DISKS", str(store.root))
    more = f"images: {{signing_key: 'hsm:2', online_key: keys/online.pem, roots: [{trusted}]}}\n"
    (site / "site.yml").write_text(more)
    status, rows = listed()
    assert status == 0, rows
    about = {(row["kind"], row["named"]): row["expires"] for row in rows}
    assert ("images", "images.signing_key, in a token") in about
    assert ("online", "images.online_key") in about
    assert ("root", "images.roots (public)") in about
    end = about["root", "root: 1 of 1 keys, root version 1, channels of memory"]
    assert dt.datetime.fromisoformat(end) > NOW
    trusted.chmod(0o666)
    assert listed()[0] == 1, "others can replace the root that the site trusts"
    trusted.chmod(0o644)
    assert listed("--within", "400")[0] == 1, "the root ends within 400 days"


def test_a_rotation_is_listed_until_it_ends(site: Path) -> None:
    words = ["keys", "rotate", "images", "--apply"]
    assert CliRunner().invoke(main, words).exit_code == 0
    status, rows = listed()
    (row,) = [row for row in rows if row["warning"]]
    assert status == 1
    assert row["kind"] == "images"
    assert (
        "it has not ended, the next step is distribute: run `goldnode keys rotate images`"
        in row["warning"]
    )
    record = site / "images/rotation-images"
    (record / "rotation.json").write_text("{")
    assert any("unreadable" in (row["warning"] or "") for row in listed()[1])
    record.rename(site / "images/rotation-images-ended-20260101T000000")
    assert listed()[0] == 0


def test_roles_of_channels_of_images_are_not_rotated_in_two_steps(site: Path) -> None:
    """Between the next root and the signatures of a new key of targets nobody could verify the channels."""
    store = signing.MemoryStore(site / "store")
    make_channels(site, store)
    copy = site / "store/channels/memory"
    old = str(site / "keys/root.pem")
    words = ["root", "--channel", str(copy), "--old", old, "--out", str(site / "out")]
    done = CliRunner().invoke(main, ["keys", "rotate", *words])
    assert done.exit_code == 2
    assert "goldnode channels keys disks --to" in done.output


def make_channels(site: Path, store: signing.MemoryStore) -> Path:
    """Make channels of disks whose copy a store has; return the trusted root."""
    targets = signing.key_of(site / "keys", "targets")
    return signing.make_channels(signing.MemoryPlace(), store, site / "keys", targets)


def test_metrics_have_the_end_and_the_fault_of_each_key(site: Path) -> None:
    (site / "token").chmod(0o644)
    out = site / "keys.prom"
    words = ["keys", "list", "--format", "prometheus", "--out", str(out)]
    assert CliRunner().invoke(main, words).exit_code == 1
    lines = out.read_text().splitlines()
    assert 'goldnode_key_wrong{kind="token",named="fleet.prometheus.token"} 1' in lines
    assert 'goldnode_key_wrong{kind="images",named="images.signing_key"} 0' in lines
    ends = [line for line in lines if line.startswith("goldnode_key_expires_timestamp_seconds{")]
    assert ends
    assert all(float(line.split()[-1]) > NOW.timestamp() for line in ends)


def open_mirror(site: Path) -> None:
    with mirror_signing.open_signer("mirror/mirror-signing.asc", site):
        pass


def open_modules(site: Path) -> None:
    Signing.of(load_site())


def open_tls(site: Path) -> None:
    authority.create(site / "web", "web", NOW)
    authority.issue(site / "web", "localhost", site / "tls", NOW)
    (site / "tls/localhost.key").chmod(0o644)
    own = (site / "tls/localhost.pem", site / "tls/localhost.key")
    server(StoreDatabase(str(site / "fleet.db")), Listen("127.0.0.1", 9180, *own))


def open_authority(site: Path) -> None:
    authority.create(site / "ca", "fleet", NOW)
    (site / "ca/authority.key").chmod(0o640)
    authority.issue(site / "ca", "n1", site / "ca/nodes", NOW)


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("mirror/mirror-signing.asc", open_mirror),
        ("modules/modules.key", open_modules),
        ("", open_tls),
        ("", open_authority),
    ],
)
def test_a_secret_with_a_wide_mode_is_not_read(
    site: Path, file: str, read: Callable[[Path], None]
) -> None:
    if file:
        read(site)  # as it is made, it is read
        (site / file).chmod(0o644)
    with pytest.raises(SigningKeyError, match="others can read or change the secret key"):
        read(site)


def test_a_token_with_a_wide_mode_is_not_sent(site: Path) -> None:
    (site / "token").chmod(0o644)
    with pytest.raises(Exception, match="others can read or change the token"):
        requirements.query(requirements.sources(load_site()), "up")


def test_the_page_has_the_table_of_kinds_and_each_test_is_there() -> None:
    tree = Path(__file__).parents[4]
    page = (tree / "docs/how-to/keys.md").read_text()
    files = ("keys/test_stolen_site_keys.py", "control/test_stolen_keys.py")
    tests = "".join((tree / "tests/unit/fleet" / file).read_text() for file in files)
    for kind in KINDS:
        cells = (kind.purpose, kind.trusted, kind.thief, kind.overlap, kind.revoke)
        row = f"| `{kind.name}` | {' | '.join(cells)} | `{kind.test}` |"
        assert row in page, f"docs/how-to/keys.md lacks: {row}"
        assert f"def {kind.test}(" in tests


def test_an_authority_that_is_damaged_is_an_error(site: Path) -> None:
    authority.create(site / "ca", "fleet", NOW)
    with pytest.raises(SigningKeyError, match="no DNS name"):
        authority.issue(site / "ca", "../n1", site / "ca/nodes", NOW)
    with pytest.raises(SigningKeyError, match="no certificate of this authority"):
        authority.revoke(site / "ca", "n1", NOW)
    (site / "ca/issued.json").write_text("{")
    with pytest.raises(SigningKeyError, match="cannot be read"):
        list(inventory.authority_keys(site / "ca"))


def test_making_issuing_and_revoking_report_their_files(tmp_path: Path) -> None:
    ca, certs = tmp_path / "ca", tmp_path / "certs"
    made = reported("make", "authority", "--out", str(ca))
    assert made["schema"] == "goldnode.keys-make/1"
    assert {Path(file).parent for file in made["files"]} == {ca}
    issued = reported("issue", "n1", "--authority", str(ca), "--out", str(certs), "--valid", "9")
    assert (issued["schema"], issued["node"]) == ("goldnode.keys-issue/1", "n1")
    (row,) = authority.issued(ca)
    assert 8 <= (dt.datetime.fromisoformat(row["expires"]) - NOW).days <= 9
    revoked = reported("revoke", "n1", "--authority", str(ca))
    assert (revoked["schema"], revoked["revoked"]) == ("goldnode.keys-revoke/1", 1)
    for file in (*made["files"], issued["certificate"], issued["key"], revoked["list"]):
        assert Path(file).is_file(), file


def reported(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["keys", *words, "--format", "json"])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document
