"""A mirror from its first run to its publication, and what stands in its way."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.lock.archive import SigningKey
from tests.unit.lock.conftest import Place
from tests.unit.lock.mirrors import Server, full_archive, serving, use_mirror

from goldnode.lock.fetch import Fault
from goldnode.lock.mirror import Mirror, publication_id, site_signer
from goldnode.lock.model import Lock
from goldnode.lock.publication import Publication
from goldnode.lock.resolve import resolve
from goldnode.lock.signing import create

DAY = dt.date(2026, 11, 20)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A mirror's key: fingerprint, secret and public file."""
    return create(tmp_path_factory.mktemp("pair"), "mirror of a test")


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Path:
    root = tmp_path_factory.mktemp("upstream")
    return full_archive(root / "near", key, tmp_path_factory.mktemp("scratch")).root


@pytest.fixture
def server(upstream: Path) -> Iterator[Server]:
    with serving(upstream) as server:
        yield server


@pytest.fixture
def setting(place: Place, server: Server, pair: tuple[str, Path, Path], tmp_path: Path) -> Setting:
    use_mirror(place, server.url, mirror=tmp_path / "mirror", signing_key=pair[1], key=pair[2])
    return Setting(place, server, tmp_path / "mirror")


class Setting:
    """A stack with its lock, an archive that is served, and a mirror to be filled."""

    def __init__(self, place: Place, server: Server, directory: Path) -> None:
        self.place, self.server, self.directory = place, server, directory
        self.mirror = Mirror.open(directory)
        self.lock: Lock = resolve(*place.load(), today=DAY)
        server.asked.clear()

    def fetch(self, parallel: int = 4) -> list[Fault]:
        _, catalog, site = self.place.load()
        return self.mirror.fetch(self.lock, catalog, site, parallel=parallel, pause=0)

    def publish(self) -> Publication:
        with site_signer(self.place.load()[2]) as signer:
            return self.mirror.publish("small", self.lock, signer=signer)


def tree(directory: Path) -> dict[str, str]:
    """Every file below a directory and its hash; of a link, where it leads."""
    return {
        str(path.relative_to(directory)): f"-> {path.readlink()}" if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_fetched_once_and_kept_by_hash(setting: Setting) -> None:
    assert setting.fetch() == []
    assert sorted(setting.server.names()) == sorted(item.name for item in setting.lock.packages)
    for item in setting.lock.packages:
        kept = setting.mirror.path(item.sha256)
        assert kept == setting.directory / "store/sha256" / item.sha256[:2] / item.sha256
        assert hashlib.sha256(kept.read_bytes()).hexdigest() == item.sha256
        assert kept.stat().st_mode & 0o777 == 0o444
    setting.server.asked.clear()
    assert setting.fetch() == []
    assert setting.server.asked == []


def test_published_and_current(setting: Setting, pair: tuple[str, Path, Path]) -> None:
    setting.fetch()
    found = setting.publish()
    hashes = [item.sha256 for item in setting.lock.packages]
    assert found.id == publication_id(hashes) == hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()[:16]
    assert found.directory == setting.directory / "stacks/small" / found.id
    assert (setting.directory / "stacks/small/current").readlink() == Path(found.id)
    assert Publication.read(found.directory) == found
    assert (found.fingerprint, found.hashes) == (pair[0], set(hashes))
    for row in found.packages:
        assert (found.directory / row["pool"]).samefile(setting.mirror.path(row["sha256"]))
    # Nothing unfinished lies about.
    assert sorted(path.name for path in found.directory.parent.iterdir()) == [found.id, "current"]


def test_the_same_lock_gives_the_same_indexes(setting: Setting, tmp_path: Path) -> None:
    setting.fetch()
    first = tree(setting.publish().directory)
    again = Mirror.open(tmp_path / "again")
    _, catalog, site = setting.place.load()
    again.fetch(setting.lock, catalog, site)
    with site_signer(site) as signer:
        second = tree(again.publish("small", setting.lock, signer=signer).directory)
    assert first.keys() == second.keys()
    differ = {name for name in first if first[name] != second[name]}
    assert differ <= {"publication.json", "dists/goldnode/InRelease"}  # the time of day, in the record and in the signature
