"""Headers of the kernel are locked where a module is built on nodes, or where a class asks for them, and nowhere else."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive
from tests.unit.lock.conftest import Place
from tests.unit.lock.mirrors import resolve

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import Stack
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import CatalogError
from goldnode.core.site import Site, load_site
from goldnode.lock.model import Lock, find_lock, intent_digest, write_lock
from goldnode.lock.update import LockRequest, UpdateMode, check, update

DAY, NEXT = dt.date(2026, 11, 29), dt.date(2026, 11, 30)
HEADERS = "linux-headers-6.1.0-50-amd64"
BUILD = {HEADERS, "linux-headers-6.1.0-50-common", "linux-kbuild-6.1", "gcc", "linux-libc-dev"}
OPTION = "kernel-headers"


@pytest.fixture
def driverless(place: Place, near: Archive) -> Place:
    """A stack whose kernel has all of its modules."""
    place.stack(driver=None)
    return place


def asks(place: Place, *options: str, name: str = "mine") -> None:
    path = place.root / f"catalog/classes/{name}.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"class: {name}\nbackend: cpu\nstack: small\noptions: [{', '.join(options)}]\n",
        encoding="utf-8",
    )


def names(lock: Lock) -> set[str]:
    return {item.name for item in lock.packages}


def rows(lock: Lock) -> dict[str, tuple[str, str, str | None]]:
    return {item.name: (item.set, item.part, item.when) for item in lock.packages}


def earlier(place: Place) -> Lock:
    """The lock that an earlier goldnode made: headers for every node."""
    place.stack(driver=None, packages=[HEADERS])
    with_headers = resolve(*place.load(), today=DAY)
    place.stack(driver=None)
    packages = [
        item.model_copy(update={"part": "kernel"}) if item.name == HEADERS else item
        for item in with_headers.packages
    ]
    intent = intent_digest(place.load()[0].item)
    lock = with_headers.model_copy(update={"intent": intent, "packages": packages})
    write_lock(lock, place.root / "catalog/stacks")
    return lock


def test_headers_and_compiler_are_left_out_of_a_stack_that_builds_nothing(
    driverless: Place,
) -> None:
    lock = resolve(*driverless.load())
    assert rows(lock) == {
        "linux-image-6.1.0-50-amd64": ("stack", "kernel", None),
        "kmod": ("base", "base", None),
    }
    assert lock.headers is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"modules": [{"name": "x", "package": "x-dkms", "dkms": "x"}]}, id="module"),
        pytest.param({"packages": ["x-dkms"]}, id="package"),
        pytest.param({"packages": ["x-tools"]}, id="needed-by-a-package"),
        pytest.param({"packages": ["y-dkms"]}, id="package-beside-an-installed-dkms"),
        pytest.param({}, id="driver"),
    ],
)
def test_headers_are_locked_for_every_node_where_dkms_builds(
    place: Place, near: Archive, changes: dict[str, Any]
) -> None:
    near.add("x-dkms", "1-1", depends="dkms")
    near.add("x-tools", "1-1", depends="x-dkms")
    near.add("y-dkms", "1-1")
    near.publish()
    place.stack(**({"driver": None, **changes} if changes else {}))
    if changes:
        asks(place, OPTION)
    lock = resolve(*place.load())
    assert names(lock) >= BUILD
    assert rows(lock)[HEADERS] == ("stack", "kernel", None), "a class that asks changes nothing"
    assert lock.lacks([OPTION]) == []


def test_headers_are_locked_for_the_classes_that_ask(driverless: Place) -> None:
    asks(driverless, OPTION)
    lock = resolve(*driverless.load())
    assert rows(lock) == {
        "linux-image-6.1.0-50-amd64": ("stack", "kernel", None),
        "kmod": ("base", "base", None),
        HEADERS: ("stack", "kernel", OPTION),
        "linux-headers-6.1.0-50-common": ("stack", "kernel", OPTION),
        "linux-kbuild-6.1": ("stack", "kernel", OPTION),
        "gcc": ("base", "base", OPTION),
        "libc6": ("base", "base", OPTION),
        "linux-libc-dev": ("base", "base", OPTION),
    }
    held = {
        option: {row.name for row in lock.stack_set(nvswitch=False, options=[option])}
        for option in (OPTION, "other")
    }
    assert HEADERS in held[OPTION] - held["other"]


def test_headers_of_a_class_follow_the_kernel(driverless: Place, near: Archive) -> None:
    asks(driverless, OPTION)
    write_lock(resolve(*driverless.load(), today=DAY), driverless.root / "catalog/stacks")
    shapes.kernel(near, "6.1.0-56-amd64", "6.1.192-2")
    near.publish()
    image = "linux-image-6.1.0-50-amd64"
    lock = update(*driverless.load(), LockRequest(today=NEXT, packages=[image])).lock
    assert {item.version for item in lock.packages if item.part == "kernel"} == {"6.1.192-2"}
    assert rows(lock)["linux-headers-6.1.0-56-amd64"] == ("stack", "kernel", OPTION)


@pytest.mark.parametrize(
    ("options", "release"),
    [
        pytest.param([], "6.1.0-56-amd64", id="nobody-asks"),
        pytest.param([OPTION], "6.1.0-50-amd64", id="a-class-asks"),
    ],
)
def test_kernel_whose_headers_are_late_is_taken_where_nothing_needs_them(
    driverless: Place, near: Archive, options: list[str], release: str
) -> None:
    shapes.kernel(near, "6.1.0-56-amd64", "6.1.192-2", headers=False)
    near.publish()
    asks(driverless, *options)
    assert resolve(*driverless.load()).kernel_release == release


def test_modules_in_a_package_of_another_source_belong_to_the_kernel(
    driverless: Place, near: Archive
) -> None:
    """Debian 14: the signed image depends on packages of the unsigned kernel's source, as the headers did."""
    release, version = "7.2.12+deb14-amd64", "7.2.12-1"
    near.add(
        f"linux-image-{release}",
        version,
        source="linux-signed-amd64 (7.2.12+1)",
        depends=f"linux-modules-{release} (= {version})",
    )
    near.add(
        f"linux-modules-{release}",
        version,
        source="linux",
        depends=f"linux-base-{release} (= {version}), kmod",
    )
    near.add(f"linux-base-{release}", version, source="linux")
    near.publish()
    driverless.stack(driver=None, kernel={"series": "7.2", "flavour": "amd64"})
    assert rows(resolve(*driverless.load())) == {
        **{f"linux-{kind}-{release}": ("stack", "kernel", None) for kind in ("image", "modules", "base")},
        "kmod": ("base", "base", None),
    }  # fmt: skip


def test_an_earlier_lock_stays_usable_and_a_check_names_its_headers(
    driverless: Place, near: Archive
) -> None:
    lock = earlier(driverless)
    stack, _, site = driverless.load()
    assert find_lock(stack, site)[0] == lock
    reported = check(*driverless.load(), LockRequest(today=NEXT))
    assert [(one.kind, one.wrong, one.package) for one in reported.problems] == [
        ("unneeded", False, HEADERS)
    ]
    assert {change.name for change in reported.needed.changes} == {*BUILD, "libc6"}


def test_next_run_leaves_them_out_of_an_earlier_lock_and_moves_nothing(
    driverless: Place, near: Archive
) -> None:
    lock = earlier(driverless)
    near.add("kmod", "31-1")
    shapes.kernel(near, "6.1.0-56-amd64", "6.1.192-2")
    near.publish()
    made = update(*driverless.load(), LockRequest(today=NEXT))
    assert made.action == "written"
    assert made.lock.packages == [
        item for item in lock.packages if item.name not in {*BUILD, "libc6"}
    ]
    assert [note for note in made.notes if HEADERS in note and f"options: [{OPTION}]" in note]
    again = update(*driverless.load(), LockRequest(today=NEXT))
    assert (again.action, again.notes) == ("kept", ())
    assert check(*driverless.load(), LockRequest(today=NEXT)).wrong == []


def test_headers_that_a_stack_names_itself_stay(driverless: Place) -> None:
    driverless.stack(driver=None, packages=[HEADERS])
    write_lock(resolve(*driverless.load(), today=DAY), driverless.root / "catalog/stacks")
    assert check(*driverless.load(), LockRequest(today=NEXT)).problems == ()
    assert update(*driverless.load(), LockRequest(today=NEXT)).action == "kept"


def test_upgrade_leaves_them_out_too(driverless: Place, near: Archive) -> None:
    earlier(driverless)
    shapes.kernel(near, "6.1.0-56-amd64", "6.1.192-2")
    near.publish()
    made = update(*driverless.load(), LockRequest(today=NEXT, mode=UpdateMode.UPGRADE))
    assert names(made.lock) == {"linux-image-6.1.0-56-amd64", "kmod"}


def test_a_class_with_an_error_that_names_them_stops_the_lock(driverless: Place) -> None:
    asks(driverless, OPTION)
    path = driverless.root / "catalog/classes/mine.yml"
    path.write_text(path.read_text(encoding="utf-8") + "wrong: 1\n", encoding="utf-8")
    with pytest.raises(CatalogError, match="wrong"):
        resolve(*_despite_faults(driverless))
    asks(driverless)
    path.write_text(path.read_text(encoding="utf-8") + "wrong: 1\n", encoding="utf-8")
    assert resolve(*_despite_faults(driverless)).headers is None


def _despite_faults(place: Place) -> tuple[CatalogEntry[Stack], Catalog, Site]:
    catalog = load_catalog([place.root / "catalog"], faults=[])
    return catalog.stacks["small"], catalog, load_site(place.root / "site.yml")


def test_name_is_reserved(place: Place, near: Archive) -> None:
    part = {"description": "x", "packages": ["kmod"], "source": "test"}
    place.stack(options={OPTION: part})
    with pytest.raises(CatalogError, match=f"cannot be called {OPTION}"):
        place.load()
