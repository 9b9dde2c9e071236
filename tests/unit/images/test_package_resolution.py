"""Packages on top of an installed system, chosen by the real apt from a local archive: nothing of the system moves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.images.image_rows import World
from tests.unit.lock.archive import Archive, SigningKey

from goldnode.core.errors import ImageError, UnsolvableError
from goldnode.images.declaration import load_declaration
from goldnode.images.deriving import resolved_packages
from goldnode.images.resolve import AddedPackages, Resolver
from goldnode.lock.aptroot import AptRoot, AptSource, apt_root

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("apt-get", "gpg")), reason="needs apt and gpg"
)

BASE = "cpu-1-base-debian12"
# dpkg's status of the base: one version is older than that of the archive.
INSTALLED = {
    "libc6": {"Package": "libc6", "Version": "2.36-9", "Architecture": "amd64"},
    "libssl3": {"Package": "libssl3", "Version": "3.0.22-1", "Architecture": "amd64"},
    "mta": {"Package": "mta", "Version": "1", "Architecture": "amd64", "Depends": "libc6"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AptRoot]:
    key = SigningKey.create(tmp_path_factory.mktemp("k") / "h", "goldnode test archive")
    place = tmp_path_factory.mktemp("archive")
    archive = Archive(place, key)
    archive.add("libc6", "2.36-9")
    archive.add("libssl3", "3.0.23-1")
    archive.add("jq", "1.6-2", depends="libjq1 (= 1.6-2)")
    archive.add("libjq1", "1.6-2", depends="libc6 (>= 2.34)")
    archive.add("libssl-dev", "3.0.23-1", depends="libssl3 (= 3.0.23-1)")
    archive.add("curl", "7", depends="libssl3 (>= 3.0.0), jq")
    archive.add("other-mta", "2")
    archive.stanzas[-1]["Conflicts"] = "mta"
    archive.publish()
    binary = key.home.parent / "key.gpg"
    source = AptSource(
        "debian",
        f"file://{place}",
        suite="bookworm",
        components=("main",),
        keyring=key.export(binary, armored=False).read_bytes(),
        fingerprints=(key.fingerprint,),
    )
    with apt_root([source], "amd64", tmp_path_factory.mktemp("cache")) as opened:
        opened.update()
        yield opened
    key.stop()


Choose = Callable[..., AddedPackages]


@pytest.fixture
def choose(root: AptRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choose:
    monkeypatch.setattr(Resolver, "root", lambda self, system: root)
    row = World(tmp_path).matrix.images[BASE]
    resolver = Resolver(cache=tmp_path / "cache")
    return lambda *names: resolver.packages(replace(row, debs=names), INSTALLED)


def test_packages_are_chosen_with_their_dependencies_and_reasons(choose: Choose) -> None:
    added = choose("curl")
    assert [(deb.name, deb.version, deb.why) for deb in added.debs] == [
        ("curl", "7", "requested"),
        ("jq", "1.6-2", "needed by curl"),
        ("libjq1", "1.6-2", "needed by jq"),
    ]
    assert [(row.id, row.suite) for row in added.archives] == [("debian", "bookworm")]


def test_package_of_the_base_is_not_added_again(choose: Choose) -> None:
    assert choose("libssl3").debs == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("libssl-dev", r"Depends: libssl3 \(= 3.0.23-1\) but 3.0.22-1 is to be installed"),
        ("other-mta", "they would remove mta"),
        ("jqq", "Unable to locate package jqq"),
    ],
)
def test_change_of_the_base_is_refused_with_its_reason(
    choose: Choose, name: str, reason: str
) -> None:
    with pytest.raises(UnsolvableError, match=reason):
        choose(name)


@pytest.mark.parametrize(
    ("name", "message", "remedy"),
    [
        (
            "libssl-dev",
            "stay as they are: libssl-dev : Depends: libssl3",
            "newer build of the base",
        ),
        ("other-mta", "would remove mta", "newer build of the base"),
        ("jqq", 'has a package "jqq"', "correct its name"),
    ],
)
def test_refusal_names_the_line_of_the_declaration_and_the_remedy(
    choose: Choose, tmp_path: Path, name: str, message: str, remedy: str
) -> None:
    text = f"derive: 1\nname: a/b\nbase: {BASE}\npackages: [{name}]\n"
    (tmp_path / "derive.yml").write_text(text)
    declared = load_declaration(tmp_path)
    with pytest.raises(ImageError, match=message) as raised:
        resolved_packages(declared, "cpu:1-base-debian12-abc", lambda: choose(name))
    assert raised.value.line == 4
    assert remedy in (raised.value.remedy or "")
