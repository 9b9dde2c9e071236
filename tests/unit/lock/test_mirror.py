"""A mirror from its first run to its publication, and what stands in its way."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.unit.lock.mirrors import Setting, tree

from goldnode.lock.mirror import Mirror, publication_id, site_signer
from goldnode.lock.publication import Publication


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
