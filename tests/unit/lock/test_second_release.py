"""A stack that takes chosen packages from a second release: a backports kernel with its newer linux-base."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive
from tests.unit.lock.conftest import Place
from tests.unit.lock.mirrors import resolve

from goldnode.core.errors import CatalogError
from goldnode.lock.model import Lock, intent_digest

RELEASE = "7.2.12+deb12-amd64"
CHOSEN = {"guard": ["linux-image-7.*", "linux-headers-7.*", "linux-kbuild-7.*", "linux-base"]}


@pytest.fixture
def second(place: Place, near: Archive) -> Place:
    """Both releases have linux-base and libc6; only the second has the kernel, which needs its linux-base."""
    near.add("linux-base", "4.12.1")
    near.publish()
    later = Archive(place.root / "guard", place.key, suite="bookworm-security")
    shapes.kernel(later, RELEASE, "7.2.12-1~bpo12+1", image=False)
    later.add(
        f"linux-image-{RELEASE}",
        "7.2.12-1~bpo12+1",
        source="linux-signed-amd64",
        depends="kmod, linux-base (>= 4.13~)",
    )
    later.add("linux-base", "4.17~bpo12+1")
    later.add("libc6", "2.99-1", source="glibc")
    later.publish()
    place.site(near=f"file://{place.root}/near", guard=f"file://{place.root}/guard")
    return place


def locked(place: Place, from_archives: dict[str, list[str]]) -> Lock:
    place.stack(
        archives=["near", "guard"], kernel={"release": RELEASE}, from_archives=from_archives
    )
    return resolve(*place.load(), today=dt.date(2026, 11, 24))


def test_chosen_packages_come_from_the_second_release_and_nothing_else_does(second: Place) -> None:
    lock = locked(second, CHOSEN)
    found = {item.name: (item.version, item.archive, item.set) for item in lock.packages}
    assert lock.kernel_release == RELEASE
    assert found["linux-base"] == ("4.17~bpo12+1", "guard", "stack"), "nodes pin it too"
    assert found["libc6"] == ("2.36-9", "near", "base")
    assert {name for name, (_, archive, _) in found.items() if archive == "guard"} == {
        "linux-base",
        f"linux-image-{RELEASE}",
        f"linux-headers-{RELEASE}",
        "linux-headers-7.2.12+deb12-common",
        "linux-kbuild-7.2",
    }


def test_driver_comes_from_the_second_release_only_if_it_is_chosen(second: Place) -> None:
    later = Archive(second.root / "guard", second.key, suite="bookworm-security")
    shapes.kernel(later, RELEASE, "7.2.12-1~bpo12+1")
    later.add("linux-base", "4.17~bpo12+1")
    shapes.driver(later, "535.999.01", revision="-1~bpo12+1")
    later.publish()
    lock = locked(second, CHOSEN)
    drivers = {item.archive for item in lock.packages if item.part == "driver"}
    assert (lock.driver_version != "535.999.01", drivers) == (True, {"near"})
    every = [*CHOSEN["guard"], "nvidia-*", "libnvidia-*", "libcuda1", "firmware-nvidia-*"]
    assert locked(second, {"guard": every}).driver_version == "535.999.01"


def test_without_a_choice_all_packages_come_from_the_release_that_has_the_newest(
    second: Place,
) -> None:
    found = {item.name: item.version for item in locked(second, {}).packages}
    assert found["libc6"] == "2.99-1"


def test_a_choice_changes_the_intent_and_its_absence_leaves_no_trace(second: Place) -> None:
    second.stack()
    bare = second.load()[0].item
    chosen = bare.model_copy(update={"archives": ["near", "guard"], "from_archives": CHOSEN})
    other = chosen.model_copy(update={"from_archives": {}})
    assert intent_digest(chosen) != intent_digest(other)
    assert intent_digest(other) == intent_digest(
        bare.model_copy(update={"archives": ["near", "guard"]})
    )


@pytest.mark.parametrize(
    ("archives", "message"),
    [
        (["near"], "names guard, which `archives` lacks"),
        (["guard"], "leaves no archive for all other packages"),
    ],
)
def test_a_choice_of_an_archive_that_the_stack_lacks_is_refused(
    place: Place, archives: list[str], message: str
) -> None:
    place.stack(archives=archives, from_archives=CHOSEN)
    with pytest.raises(CatalogError, match=message):
        place.load()
