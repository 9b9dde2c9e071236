"""Optional parts of a stack: which are locked, when a lock lacks one, and how its packages are marked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result
from tests.unit.lock.archive import Archive
from tests.unit.lock.conftest import Place

from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.core.errors import CatalogError
from goldnode.lock.model import Lock, LockedPackage, load_lock

PARTS = {
    "tools": {
        "description": "tools",
        "packages": ["tools-a", "tools-b"],
        "follows": "itself",
        "source": "test",
    },
    "daemon": {
        "description": "daemon",
        "packages": ["nvidia-daemon"],
        "follows": "driver",
        "source": "test",
    },
}


@pytest.fixture
def parts(place: Place, near: Archive) -> Place:
    place.stack(options=PARTS)
    for version in ("1.0-1", "2.0-1"):
        near.add("tools-a", version, depends="tools-common")
    near.add("tools-b", "1.0-1")
    near.add("tools-common", "5")
    for version in ("535.261.03-1", "535.309.01-1"):
        near.add("nvidia-daemon", version, source="daemon")
    near.publish()
    return place


def asks(place: Place, *options: str, name: str = "mine") -> None:
    text = f"class: {name}\nbackend: cuda\nstack: small\ngpu: {{model: A100-SXM4-40GB, count: 8}}\n"
    path = place.root / f"catalog/classes/{name}.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + f"options: [{', '.join(options)}]\n")


def run(place: Place, *arguments: str) -> Result:
    variables = {
        "GOLDNODE_CATALOG": str(place.root / "catalog"),
        "GOLDNODE_SITE": str(place.root / "site.yml"),
    }
    out = str(place.root / "locks")
    return CliRunner(env=variables).invoke(main, ["lock", "small", "--out", out, *arguments])


def locked(place: Place) -> Lock:
    return load_lock(place.root / "locks/small.lock.yml")


def marks(lock: Lock) -> dict[str, tuple[str, str]]:
    return {item.name: (item.version, item.when) for item in lock.packages if item.when}


def test_a_class_that_asks_for_a_part_makes_the_next_run_lock_it(parts: Place) -> None:
    assert run(parts).exit_code == 0
    bare = locked(parts)
    assert marks(bare) == {}
    asks(parts, "tools")
    check = run(parts, "--check")
    assert check.exit_code == 1
    assert 'intent: classes ask for optional part "tools", which is not locked' in check.output
    assert run(parts).exit_code == 0
    assert marks(locked(parts)) == {
        "tools-a": ("1.0-1", "tools"),
        "tools-b": ("1.0-1", "tools"),
        "tools-common": ("5", "tools"),
    }, "the newest version that all packages of the part have"
    assert [item for item in locked(parts).packages if not item.when] == bare.packages
    again = run(parts)
    assert "kept as it is" in again.output


def test_the_union_of_what_classes_ask_for_is_locked(parts: Place) -> None:
    asks(parts, "tools")
    asks(parts, "daemon", name="other")
    assert run(parts).exit_code == 0
    lock = locked(parts)
    assert lock.options == {"tools", "daemon"}
    assert marks(lock)["nvidia-daemon"] == ("535.261.03-1", "daemon"), (
        "the driver's version, not the newest"
    )
    held = {
        name: {row.name for row in lock.stack_set(nvswitch=False, options=[name])} for name in PARTS
    }
    assert held["tools"] - held["daemon"] == {"tools-a", "tools-b"}
    assert held["daemon"] - held["tools"] == {"nvidia-daemon"}
    assert lock.stack_hash(nvswitch=False) != lock.stack_hash(nvswitch=False, options=["tools"])


def test_packages_without_a_common_version_are_named(parts: Place, near: Archive) -> None:
    near.remove("tools-b", "1.0-1")
    near.add("tools-b", "3.0-1")
    near.publish()
    asks(parts, "tools")
    done = run(parts)
    assert done.exit_code == 2
    assert 'the packages of optional part "tools" have no version in common' in done.stderr


def test_a_part_that_apt_cannot_add_is_named_with_its_line(parts: Place, near: Archive) -> None:
    near.add("broken", "1", depends="nowhere")
    near.publish()
    parts.stack(options={"extra": {"description": "x", "packages": ["broken"], "source": "test"}})
    asks(parts, "extra")
    done = run(parts)
    assert done.exit_code == 2
    assert 'optional part "extra" does not fit the stack' in done.stderr
    assert "small.yml:" in done.stderr


def test_a_class_cannot_ask_for_a_part_that_the_stack_lacks(parts: Place) -> None:
    asks(parts, "tool")
    with pytest.raises(
        CatalogError, match=r'stack "small" has no optional part "tool"\. Use "tools"'
    ):
        load_catalog([parts.root / "catalog"])


@pytest.mark.parametrize(
    ("when", "conditions", "applies"),
    [
        (None, [], True),
        (None, ["x"], True),
        ("nvswitch", [], False),
        ("nvswitch", ["nvswitch"], True),
        ("nvswitch|dcgm", ["dcgm"], True),
        ("nvswitch|dcgm", ["imex"], False),
        ("doca-ofed", ["doca"], False),
    ],
)
def test_package_applies_when_one_of_its_conditions_holds(
    when: str | None, conditions: list[str], applies: bool
) -> None:
    row = LockedPackage.model_construct(when=when)
    assert row.applies(conditions) is applies
