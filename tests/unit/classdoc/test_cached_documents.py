"""Class documents kept between runs: used while nothing they were made from has changed, and never longer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goldnode.catalog.load import Catalog
from goldnode.classdoc import cache as stored
from goldnode.classdoc.cache import ClassDocuments
from goldnode.core.errors import InventoryError
from goldnode.core.program_file import binding_file
from goldnode.core.site import load_site


class Compiler(stored.Compiler):
    """Stands for the real one; says how often a catalog was read, and where keys and locks are."""

    read = 0
    also: tuple[str, ...] = ()
    answer: dict[str, Any]

    def __init__(self) -> None:
        Compiler.read += 1

    def classes(self) -> list[str]:
        return ["a100", "broken"]

    def faults(self) -> list[str]:
        return ["lap.yml:9: unknown key"]

    def controller(self) -> dict[str, Any]:
        return {"program": "sha256:1"}

    def return_tests(self) -> dict[str, Any]:
        return {}

    def part_lines(self) -> dict[str, Any]:
        return {}

    def places(self) -> list[str]:
        return list(self.also)

    def check(self, inventory: str) -> None:
        if "twice" in Path(inventory, "hosts").read_text():
            raise InventoryError("a host is in two classes")

    def document(self, name: str) -> dict[str, Any]:
        return (
            {"class": name, "error": "no lock"}
            if name == "broken"
            else {"class": name, "made": Compiler.read}
        )

    def remarks(self, name: str) -> list[str]:
        return [f"warn: of {name}, {Compiler.read}"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with everything a document can be made from, and a cache directory of the test's own."""
    for name in ("package/facts", "catalog", "locks", "keys", "more", "apt", "inventory"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "hosts").write_text("one")
    (tmp_path / "more/facts").mkdir()
    (tmp_path / "site.yml").write_text("archives: {}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path / "more"))
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    monkeypatch.setattr(stored, "PACKAGE", tmp_path / "src/package")
    monkeypatch.setattr(stored, "data", tmp_path.joinpath)
    monkeypatch.setattr(stored, "MACHINE", (str(tmp_path / "apt"),))
    monkeypatch.setattr(Compiler, "read", 0)
    monkeypatch.setattr(Compiler, "also", (str(tmp_path / "keys"), str(tmp_path / "locks")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(world: Path, group: str = "a100") -> dict[str, Any] | None:
    """One run of Ansible: the document of a group."""
    documents = ClassDocuments(Compiler)
    documents.check([str(world / "inventory"), "a host,"])
    return documents.document(group) if group in documents.names() else None


def test_a_second_run_reads_no_catalog(world: Path) -> None:
    assert run(world) == run(world) == {"class": "a100", "made": 1}
    assert run(world, "webservers") is None
    assert Compiler.read == 1


def test_remarks_are_cached_with_the_document(world: Path) -> None:
    for _ in range(2):
        documents = ClassDocuments(Compiler)
        assert documents.remarks("a100") == ["warn: of a100, 1"]
        assert documents.document("a100")
    assert Compiler.read == 1
    assert ClassDocuments(Compiler).remarks("broken") == ["warn: of broken, 2"]


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "a file of the catalog": lambda world, _: (world / "catalog/hosts").write_text("two"),
    "a new file of the catalog": lambda world, _: (world / "catalog/new.yml").write_text(""),
    "a catalog of the user's": lambda world, _: (world / "more/hosts").unlink(),
    "facts of a catalog of the user's": lambda world, _: (world / "more/facts/gpus.yml").write_text(
        "two"
    ),
    "the site file": lambda world, _: (world / "site.yml").write_text("archives: {x: {}}"),
    "a site file that is found first": lambda world, _: (world / "goldnode-site.yml").write_text(
        ""
    ),
    "a key": lambda world, _: (world / "keys/hosts").write_text("two"),
    "a lock": lambda world, _: (world / "locks/hosts").write_text("two"),
    "a file put back with another inode": lambda world, _: (world / "locks/hosts").rename(
        world / "locks/old"
    ),
    "apt's sources": lambda world, _: (world / "apt/hosts").write_text("two"),
    "the environment": lambda _, patch: patch.setenv("GOLDNODE_LOCKS", "elsewhere"),
    "the directory": lambda world, patch: patch.chdir(world / "more"),
    "the day": lambda _, patch: patch.setattr(stored, "today", lambda: "tomorrow"),
    "the time of a file": lambda world, _: os.utime(world / "catalog/hosts", (1, 1)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_has_it_made_again(
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], object],
) -> None:
    run(world)
    change(world, monkeypatch)
    assert run(world) == {"class": "a100", "made": 2}


def test_goldnodes_own_sources_count(world: Path) -> None:
    (world / "src/package").mkdir(parents=True)
    run(world)
    (world / "src/package/facts.yml").write_text("new")
    assert run(world) == {"class": "a100", "made": 2}


def test_a_changed_inventory_is_checked_and_a_fault_is_found_again(world: Path) -> None:
    run(world)
    (world / "inventory/hosts").write_text("twice")
    for _ in range(2):
        with pytest.raises(InventoryError, match="two classes"):
            run(world)


def test_a_class_without_a_lock_is_tried_again(world: Path) -> None:
    assert run(world, "broken") == {"class": "broken", "error": "no lock"}
    run(world, "broken")
    assert Compiler.read == 2


@pytest.mark.parametrize("spoil", ["mode", "text", "shape"])
def test_cached_document_is_ignored_when_torn_or_writable_by_others(
    world: Path, spoil: str
) -> None:
    run(world)
    (file,) = stored.directory().iterdir()
    if spoil == "mode":
        file.chmod(0o666)
    else:
        file.write_text({"text": file.read_text()[:-9], "shape": "[]"}[spoil])
    assert run(world) == {"class": "a100", "made": 2}


def test_only_the_last_environments_are_stored(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(stored.FILES + 3):
        monkeypatch.setenv("GOLDNODE_LOCKS", str(number))
        run(world)
    assert len(list(stored.directory().iterdir())) == stored.FILES
    made = Compiler.read
    run(world)
    assert Compiler.read == made


def test_nothing_can_be_stored_and_it_works(world: Path) -> None:
    (world / "cache").write_text("a file where the directory should be")
    assert run(world) == {"class": "a100", "made": 1}
    assert run(world) == {"class": "a100", "made": 2}


def test_mirror_publication_is_a_compiler_input_when_mirror_has_url(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOLDNODE_LOCKS", raising=False)
    record = world / "mirror/stacks/r580/0123456789abcdef/publication.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    compiler = stored.Compiler.__new__(stored.Compiler)
    compiler.catalog = Catalog(())
    for section, also in (
        ("{directory: mirror}", []),
        ("{directory: mirror, url: 'http://x'}", [world / "mirror/mirror.asc", record]),
    ):
        (world / "site.yml").write_text(f"mirror: {section}\n")
        compiler.site = load_site()
        places = (binding_file(), *also, world / "vulnerabilities")
        assert compiler.places() == [str(path) for path in places]
