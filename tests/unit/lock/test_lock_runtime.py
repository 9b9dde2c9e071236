"""The container engine and the GPU toolkit in a lock: one version of all toolkit packages, at or above the safe floor."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import TOOLKIT, Archive
from tests.unit.lock.conftest import Place
from tests.unit.lock.mirrors import resolve

from goldnode.core.errors import GoldnodeError, LockError, VanishedError
from goldnode.lock.model import Lock, intent_digest

RUNTIME: dict[str, Any] = {
    "engine": "docker",
    "package": "docker.io",
    "packages": ["docker.io", "containerd", "runc"],
    "toolkit": {"vendor": "nvidia", "packages": list(TOOLKIT)},
}


@pytest.fixture
def near(near: Archive) -> Archive:
    shapes.engine(near)
    for version in ("1.17.7-1", "1.19.1-1", "1.20.0-1"):
        shapes.toolkit(near, version)
    near.publish()
    return near


def locked(place: Place, **toolkit: Any) -> Lock:
    place.stack(runtime={**RUNTIME, "toolkit": {**RUNTIME["toolkit"], **toolkit}})
    return resolve(*place.load())


def versions(lock: Lock) -> set[str]:
    return {item.version for item in lock.packages if item.name in TOOLKIT}


@pytest.mark.usefixtures("near")
def test_engine_and_toolkit_are_of_the_stack_set(place: Place) -> None:
    lock = locked(place)
    found = {item.name: item for item in lock.packages if item.part == "runtime"}
    assert set(found) == {*RUNTIME["packages"], *TOOLKIT}
    assert all(item.set == "stack" and item.requested for item in found.values())
    assert versions(lock) == {"1.20.0-1"}
    # Although this stack's globs of the driver family, nvidia-* without exceptions, catch the toolkit.
    assert lock.driver_version == "535.261.03"


@pytest.mark.usefixtures("near")
def test_an_exact_version_at_the_floor(place: Place) -> None:
    assert versions(locked(place, version="1.19.1")) == {"1.19.1-1"}


def test_a_version_that_is_not_complete_is_passed_over(place: Place, near: Archive) -> None:
    near.remove("libnvidia-container1", "1.20.0-1")
    near.publish()
    assert versions(locked(place)) == {"1.19.1-1"}


def test_an_archive_that_has_affected_ones_only(place: Place, near: Archive) -> None:
    for version in ("1.19.1-1", "1.20.0-1"):
        for name in TOOLKIT:
            near.remove(name, version)
    near.publish()
    with pytest.raises(
        LockError,
        match=r"1\.17\.7 is the newest there is, and .*CVE-2026-24260.*safe floor is 1\.19\.1",
    ):
        locked(place)


@pytest.mark.parametrize(
    ("toolkit", "error", "message"),
    [
        pytest.param(
            {"version": "1.21.0"},
            VanishedError,
            r"1\.21\.0 is not complete.*1\.17\.7, 1\.19\.1, 1\.20\.0|1\.20\.0",
            id="version",
        ),
        pytest.param(
            {"packages": [*TOOLKIT, "nvidia-docker2"]},
            VanishedError,
            'package "nvidia-docker2" is in none',
            id="package",
        ),
    ],
)
@pytest.mark.usefixtures("near")
def test_toolkit_absent_from_the_archives_is_an_error_with_its_line(
    place: Place, toolkit: dict[str, Any], error: type[GoldnodeError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        locked(place, **toolkit)
    assert caught.value.line is not None


def test_no_version_is_complete(place: Place, near: Archive) -> None:
    for version in ("1.17.7-1", "1.19.1-1", "1.20.0-1"):
        near.remove("libnvidia-container1", version)
    shapes.toolkit(near, "1.18.0-1", "libnvidia-container1")
    near.publish()
    with pytest.raises(LockError, match="no version of the container toolkit is complete"):
        locked(place)


def test_amd_needs_no_package(place: Place, near: Archive) -> None:
    near.add("firmware-amd-graphics", "2025-1")
    near.publish()
    amd = {
        "vendor": "amd",
        "branch": None,
        "flavour": None,
        "dkms": None,
        "lockstep": [],
        "packages": ["firmware-amd-graphics"],
    }
    place.stack(
        runtime={**RUNTIME, "toolkit": {"vendor": "amd"}},
        **{f"driver_{key}": value for key, value in amd.items()},
    )
    lock = resolve(*place.load())
    assert {item.name for item in lock.packages if item.part == "runtime"} == set(
        RUNTIME["packages"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"toolkit": {"vendor": "amd"}},
            "a container toolkit for amd on a stack whose driver is nvidia",
            id="other-vendor",
        ),
        pytest.param(
            {"toolkit": {"vendor": "nvidia"}}, "NVIDIA's toolkit needs `packages`", id="no-packages"
        ),
        pytest.param({"package": "docker-ce"}, '"docker-ce" is not among `packages`', id="package"),
    ],
)
def test_invalid_runtime_of_a_stack_is_refused(
    place: Place, change: dict[str, Any], message: str
) -> None:
    place.stack(runtime={**RUNTIME, **change})
    with pytest.raises(GoldnodeError, match=message):
        place.load()


def test_the_runtime_is_part_of_the_intent(place: Place) -> None:
    before = intent_digest(place.load()[0].item)
    place.stack(runtime=RUNTIME)
    asked = intent_digest(place.load()[0].item)
    place.stack(runtime={**RUNTIME, "default": True})
    assert len({before, asked}) == 2
    assert intent_digest(place.load()[0].item) == asked, (
        "how the engine is configured chooses no package"
    )


def test_the_page_size_is_no_part_of_the_intent(place: Place) -> None:
    item = place.load()[0].item
    kernel = item.kernel.model_copy(update={"page_kib": 4})
    assert intent_digest(item.model_copy(update={"kernel": kernel})) == intent_digest(item)
