"""Keys that the apt of a release refuses: as measured, and said where a lock, a class or an image would use one."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.case_tables import table
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive, SigningKey
from tests.unit.lock.conftest import Place

from goldnode.catalog.models import OperatingSystem
from goldnode.classdoc.compile import site_archives
from goldnode.core import keys
from goldnode.core.errors import SigningKeyError
from goldnode.facts import host as facts
from goldnode.lock import archive_keys
from goldnode.lock.archive_keys import judge_keys
from goldnode.lock.update import LockRequest, check, update

DAY = dt.date(2026, 11, 27)
CASES: list[dict[str, str]] = table("archive_keys.yml")
RELEASES = {
    "debian12": {"id": "debian", "version": "12", "codename": "bookworm", "architecture": "amd64"},
    "debian13": {"id": "debian", "version": "13", "codename": "trixie", "architecture": "amd64"},
    "ubuntu2404": {
        "id": "ubuntu",
        "version": "24.04",
        "codename": "noble",
        "architecture": "amd64",
    },
}


def key_of(name: str) -> bytes:
    return base64.b64decode(next(row["key"] for row in CASES if row["name"] == name))


def places(release: str, data: bytes | None) -> Any:
    """Places of archives that have one archive with this key."""
    return SimpleNamespace(
        os=OperatingSystem.model_validate(RELEASES[release]),
        key=lambda name: (data, []),
        catalog=SimpleNamespace(
            archives={"team": SimpleNamespace(file=Path("catalog/archives.yml"))}
        ),
    )


def judged(
    release: str, data: bytes | None, day: dt.date = DAY, *, direct: bool = True
) -> list[str]:
    return judge_keys(["team"], places(release, data), day, direct=direct)


@pytest.mark.parametrize("release", ["debian12", "debian13"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_key_is_judged_as_apt_of_the_release_judges_it(case: dict[str, str], release: str) -> None:
    data = base64.b64decode(case["key"])
    if case[release] == "accepted":
        assert not [note for note in judged(release, data) if RELEASES[release]["codename"] in note]
        return
    with pytest.raises(SigningKeyError) as caught:
        judged(release, data)
    (state,) = keys.states(data)
    assert state.fingerprint in caught.value.message
    assert caught.value.remedy is not None
    assert "goldnode mirror" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "why", "remedy"),
    [
        (
            "rsa4096-sha1",
            "no signature over it but with SHA-1 (refused from 2026-02-01 on)",
            "--quick-set-expire",
        ),
        ("dsa2048", "dsa of 2048 bits (refused from 2024-02-01 on)", "a key that this apt accepts"),
        ("dsasub", "its signing subkey: dsa of 2048 bits", "a key that this apt accepts"),
        ("bp256", "brainpoolp256", "a key that this apt accepts"),
    ],
)
def test_refusal_names_release_reason_and_remedy(name: str, why: str, remedy: str) -> None:
    with pytest.raises(SigningKeyError) as caught:
        judged("debian13", key_of(name))
    assert "apt of Debian 13 trixie refuses" in caught.value.message
    assert "apt 3.0.4 with sqv 1.3.0" in caught.value.message
    assert why in caught.value.message
    assert remedy in str(caught.value.remedy)


def test_other_releases_and_mirrors_are_warned_of() -> None:
    weak = key_of("rsa4096-sha1")
    for release in ("debian12", "ubuntu2404"):
        (note,) = judged(release, weak)
        assert note.startswith('apt of Debian 13 trixie refuses the key of archive "team"')
    (note,) = judged("debian13", weak, direct=False)
    assert "nodes do not need it" in note
    assert judged("debian13", weak, dt.date(2026, 1, 31)) == [
        note for note in judged("debian13", weak, dt.date(2026, 1, 31)) if "will refuse" in note
    ]
    assert "will refuse" in judged("debian13", key_of("rsa2048"), dt.date(2029, 6, 1))[0]
    assert judged("debian13", key_of("rsa2048")) == []
    assert judged("debian13", None) == [], "the OS ships it"
    # One good key of two is enough.
    assert judged("debian13", weak + key_of("ed25519")) == []


def test_every_rule_of_the_facts_has_a_key_that_it_refuses() -> None:
    rows = {row["id"]: row for row in facts.load("distros.yml")["distributions"]}
    for release in ("debian12", "debian13"):
        rules = rows[release]["archive_keys"]
        for rule in rules["refused"]:
            if (rule.get("since") or "") > DAY.isoformat() or rule.get(
                "algorithm"
            ) == "brainpoolp384":
                continue
            alone = {**rules, "refused": [rule]}
            refused = [
                case["name"]
                for case in CASES
                if case[release] == "refused"
                and archive_keys.all_refused(keys.states(base64.b64decode(case["key"])), alone, DAY)
            ]
            assert refused, rule


@pytest.fixture
def weak(tmp_path: Path) -> Iterator[SigningKey]:
    """A key whose only self-signature has SHA-1."""
    made = SigningKey.create(tmp_path / "weak", "team <team@example.org>")
    made.gpg("--cert-digest-algo", "SHA1", "--quick-set-expire", made.fingerprint, "5y")
    yield made
    made.stop()


@pytest.mark.parametrize("release", ["debian12", "debian13"])
def test_lock_and_check_refuse_the_key_or_warn_of_it(
    release: str, weak: SigningKey, tmp_path: Path
) -> None:
    place, system = Place(tmp_path, weak), RELEASES[release]
    archive = Archive(tmp_path / "near", weak, suite=system["codename"])
    shapes.base(archive)
    shapes.kernel(archive, "6.1.0-50-amd64", "6.1.176-1")
    shapes.driver(archive, "535.261.03")
    shapes.rest_of_driver(archive)
    archive.publish()
    place.stack(os=system)
    place.site(near=f"file://{archive.root}")
    request = LockRequest(today=DAY, out=tmp_path / "locks", cache=tmp_path / "cache")
    if release == "debian13":
        with pytest.raises(
            SigningKeyError, match=f'refuses the key of archive "near".*{weak.fingerprint}'
        ):
            update(*place.load(), request)
        assert not list(tmp_path.glob("locks/*"))
        with pytest.raises(SigningKeyError, match="refuses the key"):
            site_archives(place.load()[0], *place.load()[1:])
        return
    (note,) = update(*place.load(), request).notes
    assert "apt of Debian 13 trixie refuses" in note
    assert update(*place.load(), request).notes == (note,)
    assert [row.message for row in check(*place.load(), request).problems if row.kind == "key"] == [
        note
    ]
    assert not check(*place.load(), request).wrong
    (row,) = site_archives(place.load()[0], *place.load()[1:])
    assert row["key"] is not None
