"""A mirror from its first run to its publication, and what stands in its way."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest
from tests.unit.lock.mirrors import Setting, tree

from goldnode.core.errors import MirrorError
from goldnode.lock.mirror import Mirror, publication_id, site_signer
from goldnode.lock.model import LockedPackage
from goldnode.lock.publication import Publication


def test_fetched_once_and_stored_by_hash(setting: Setting) -> None:
    assert setting.fetch() == []
    assert sorted(setting.server.names()) == sorted(item.name for item in setting.lock.packages)
    for item in setting.lock.packages:
        stored = setting.mirror.path(item.sha256)
        assert stored == setting.directory / "store/sha256" / item.sha256[:2] / item.sha256
        assert hashlib.sha256(stored.read_bytes()).hexdigest() == item.sha256
        assert stored.stat().st_mode & 0o777 == 0o444
    setting.server.asked.clear()
    assert setting.fetch() == []
    assert setting.server.asked == []


def test_publication_links_its_packages_and_becomes_current(
    setting: Setting, pair: tuple[str, Path, Path]
) -> None:
    setting.fetch()
    found = setting.publish()
    hashes = [item.sha256 for item in setting.lock.packages]
    assert (
        found.id
        == publication_id(hashes)
        == hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()[:16]
    )
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
    published = setting.publish().directory
    first = tree(published)
    index = (published / "dists/goldnode/main/binary-amd64/Packages").read_text()
    names = re.findall(r"^Package: (.*)$", index, re.MULTILINE)
    assert names == sorted(item.name for item in setting.lock.packages), (
        "the order is not the file system's"
    )
    again = Mirror.open(tmp_path / "again")
    _, catalog, site = setting.place.load()
    again.fetch(setting.lock, catalog, site)
    with site_signer(site) as signer:
        second = tree(again.publish("small", setting.lock, signer=signer).directory)
    assert first.keys() == second.keys()
    differ = {name for name in first if first[name] != second[name]}
    assert differ <= {
        "publication.json",
        "dists/goldnode/InRelease",
    }  # the time of day, in the record and in the signature


def test_a_package_of_ones_own_replaces_others(setting: Setting, tmp_path: Path) -> None:
    """What `goldnode modules build` does: a module package takes the place of dkms, its source and the headers."""
    setting.fetch()
    control = {
        "Package": "prebuilt-module",
        "Version": "535.261.03-1",
        "Architecture": "amd64",
        "Maintainer": "nobody <nobody@example.org>",
        "Provides": "nvidia-kernel-dkms (= 535.261.03-1)",
        "Conflicts": "nvidia-kernel-dkms",
        "Depends": "linux-image-6.1.0-50-amd64 (= 6.1.176-1), nvidia-kernel-support",
        "Description": "stand-in for a test",
    }
    tree_of_it = tmp_path / "module"
    (tree_of_it / "DEBIAN").mkdir(parents=True)
    (tree_of_it / "DEBIAN/control").write_text(
        "".join(f"{key}: {value}\n" for key, value in control.items())
    )
    deb = tmp_path / "module.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree_of_it), str(deb)],
        check=True,
        capture_output=True,
    )
    sha256 = setting.mirror.add(deb)
    assert setting.mirror.path(sha256).read_bytes() == deb.read_bytes()
    values = setting.package("nvidia-kernel-dkms").model_dump() | {
        "name": "prebuilt-module",
        "sha256": sha256,
        "size": deb.stat().st_size,
    }
    extra = LockedPackage.model_validate(values)
    without = [
        "nvidia-kernel-dkms",
        "linux-headers-6.1.0-50-amd64",
        "linux-headers-6.1.0-50-common",
        "linux-kbuild-6.1",
    ]
    with site_signer(setting.place.load()[2]) as signer:
        bare = setting.mirror.publish("small", setting.lock, signer=signer)
        found = setting.mirror.publish(
            "small", setting.lock, [extra], signer=signer, without=without
        )
        assert found.id != bare.id
        assert found.hashes == bare.hashes | {sha256}
        assert setting.mirror.find("small", [*setting.lock.packages, extra]) == found
        # It conflicts with what it is to stand in for, so that both at once cannot be installed.
        with pytest.raises(MirrorError, match="does not hold with apt"):
            setting.mirror.publish("other", setting.lock, [extra], signer=signer)
    assert (setting.directory / "stacks/small/current").readlink().name == found.id
