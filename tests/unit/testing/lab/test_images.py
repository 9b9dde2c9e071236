"""Recipes of node images: what decides their name, and what they must not hold."""

from __future__ import annotations

import io
import tarfile

import pytest

from goldnode.core.site import Site, SiteArchive
from goldnode.testing.lab import images


def site(scheme: str = "http", host: str = "mirror.example") -> Site:
    base = f"{scheme}://{host}"
    return Site(
        archives={
            "debian": SiteArchive(url=f"{base}/debian"),
            "debian-security": SiteArchive(url=f"{base}/debian-security"),
        }
    )


def reference(os_name: str = "debian12", flavour: str = "bare", where: Site | None = None) -> str:
    return images.recipe(os_name, flavour, where or site()).reference


def test_the_same_recipe_has_the_same_name() -> None:
    assert reference() == reference()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(reference("debian13"), id="release"),
        pytest.param(reference(flavour="warm"), id="flavour"),
        pytest.param(reference(where=site(host="other.example")), id="mirror"),
    ],
)
def test_another_recipe_has_another_name(other: str) -> None:
    assert other != reference()


def test_the_name_follows_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference()
    monkeypatch.setattr(images, "HOST_KEYS_DROPIN", "[Service]\n")
    assert reference() != before


@pytest.mark.parametrize("flavour", images.FLAVOURS)
@pytest.mark.parametrize("os_name", images.RELEASES)
def test_no_image_holds_openssl(os_name: str, flavour: str) -> None:
    packages = images.recipe(os_name, flavour, site()).packages
    assert not {"openssl", "ca-certificates"} & set(packages)
    assert len(packages) == len(set(packages))


def test_an_https_mirror_needs_the_certificates_apt_needs() -> None:
    assert "ca-certificates" in images.recipe("debian12", "bare", site("https")).packages


def test_bare_images_have_sources_and_warm_ones_none() -> None:
    sources = "etc/apt/sources.list.d/debian.sources"
    bare = dict(images.recipe("debian13", "bare", site()).overlay)
    assert "Suites: trixie-security\nComponents: main\n" in bare[sources]
    assert sources not in dict(images.recipe("debian13", "warm", site()).overlay)


def test_a_node_whose_builds_share_a_cache_is_else_a_bare_one() -> None:
    basic, cached = (
        images.recipe("debian13", flavour, site()) for flavour in ("bare", images.CCACHE)
    )
    assert set(cached.packages) - set(basic.packages) == {"ccache"}
    added = {path: text for path, text in cached.overlay if (path, text) not in basic.overlay}
    assert added.pop("etc/environment") == "DEBIAN_KERNEL_USE_CCACHE=1\n"
    assert list(added) == ["etc/ccache.conf"]


def test_a_mirror_of_files_is_not_given_to_nodes_that_cannot_see_it() -> None:
    local = Site(
        archives={
            name: SiteArchive(url=f"file:///srv/{name}") for name in ("debian", "debian-security")
        }
    )
    assert not [
        path for path, _ in images.recipe("debian12", "bare", local).overlay if "sources" in path
    ]


def test_stand_in_releases_alone_are_marked_as_simulated() -> None:
    for name, release in images.RELEASES.items():
        overlay = dict(images.recipe(name, "warm", site()).overlay)
        assert overlay.get("etc/os-release", "") == release.os_release
        assert (
            ("standin" in name)
            == ("SIMULATED by goldnode" in release.os_release)
            == (release.calls_itself != release.codename)
        )
    assert images.RELEASES["ubuntu2404-standin"].calls_itself == "noble"


@pytest.mark.parametrize(("os_name", "flavour"), [("debian11", "bare"), ("debian12", "hot")])
def test_unknown_names_are_refused(os_name: str, flavour: str) -> None:
    with pytest.raises(
        images.LabImageError,
        match="debian12, debian13, debian14, ubuntu2404-standin in bare, bare-ccache, warm",
    ):
        images.recipe(os_name, flavour, site())


def test_snapshot_names_follow_their_key() -> None:
    one = images.snapshot_reference({"lock": "a", "image": "b"})
    assert one == images.snapshot_reference({"image": "b", "lock": "a"})
    assert one != images.snapshot_reference({"image": "b", "lock": "c"})


def test_tar_holds_files_and_leaves_directories_alone() -> None:
    data = images.tar_of({"root/.ssh/authorized_keys": b"key"}, 0o600)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [(entry.name, entry.mode, entry.uid) for entry in tar] == [
            ("root/.ssh/authorized_keys", 0o600, 0)
        ]
