"""Verifying a mirror, mending it, and taking away what nothing needs."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.lock.mirrors import Setting, tree

from goldnode.catalog.load import Catalog
from goldnode.core.errors import GoldnodeError
from goldnode.lock import maintenance
from goldnode.lock.model import LockedPackage, write_lock
from goldnode.lock.publication import Publication

NAME = "libcuda1"


@pytest.fixture
def published(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Publication:
    return setting.filled(tmp_path_factory.mktemp("filled"))


def spoil(path: Path) -> None:
    """Change one byte, as a bad disk would: the file keeps its size and its inode."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(10)
        file.write(b"!")


def stored(setting: Setting) -> Path:
    return setting.mirror.path(setting.package(NAME).sha256)


def pooled(setting: Setting, publication: Publication) -> Path:
    return publication.directory / str(
        next(row["pool"] for row in publication.packages if row["name"] == NAME)
    )


def packages(publication: Publication) -> Path:
    return publication.directory / "dists/goldnode/main/binary-amd64/Packages"


def signed(publication: Publication) -> Path:
    return publication.directory / "dists/goldnode/InRelease"


def unlinked(setting: Setting, publication: Publication) -> None:
    """The pool's file is another one than the store's, and has other bytes."""
    path = pooled(setting, publication)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + b"!")


def fewer(_: Setting, publication: Publication) -> None:
    record = publication.to_json()
    record["packages"] = record["packages"][1:]
    (publication.directory / "publication.json").write_text(json.dumps(record))


def emptied(setting: Setting, _: Publication) -> None:
    stored(setting).chmod(0o644)
    stored(setting).write_bytes(b"")


def foreign_file(setting: Setting, _: Publication) -> None:
    path = setting.mirror.store / "ab/readme"
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")


def astray(setting: Setting, _: Publication) -> None:
    link = setting.directory / "stacks/small/current"
    link.unlink()
    link.symlink_to("gone")


Damage = Callable[[Setting, Publication], object]

# What is done, the words it is told with, and who mends it: --repair, `goldnode mirror STACK`, or nobody.
DAMAGES: dict[str, tuple[Damage, str, str]] = {
    "store-spoilt": (lambda s, p: spoil(stored(s)), "its name says another", "repair"),
    "store-gone": (
        lambda s, p: stored(s).unlink(),
        f"is not there; {NAME} 535.261.03-1 of stack small needs it",
        "repair",
    ),
    "store-empty": (emptied, "its name says another", "repair"),
    "pool-gone": (lambda s, p: pooled(s, p).unlink(), "is not there", "repair"),
    "pool-other": (unlinked, f"has other bytes than {NAME} 535.261.03-1", "repair"),
    "stranger": (
        foreign_file,
        "is no file of a mirror's store",
        "nobody",
    ),
    "index-spoilt": (
        lambda s, p: spoil(packages(p)),
        "has other bytes than the signed Release says",
        "publish",
    ),
    "index-gone": (lambda s, p: packages(p).unlink(), "is not there", "publish"),
    "release-spoilt": (
        lambda s, p: signed(p).write_text(
            signed(p).read_text().replace("Origin: goldnode", "Origin: somebody")
        ),
        "the signature is bad",
        "publish",
    ),
    "release-gone": (lambda s, p: signed(p).unlink(), "is not there", "publish"),
    "record-fewer": (fewer, "names other packages than the directory's name", "nobody"),
    "record-torn": (
        lambda s, p: (p.directory / "publication.json").write_text("{"),
        "this is no record of a publication",
        "publish",
    ),
    "current-nowhere": (
        astray,
        "leads to no publication",
        "publish",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_named_and_repaired(setting: Setting, published: Publication, what: str) -> None:
    whole = {
        name: digest
        for name, digest in tree(setting.directory).items()
        if "InRelease" not in name and "publication.json" not in name
    }
    damage, message, remedy = DAMAGES[what]
    damage(setting, published)
    found = setting.run("verify")
    assert found.exit_code == 1
    assert message in found.output
    assert setting.run("verify", "--repair").exit_code == (0 if remedy == "repair" else 1)
    if remedy == "repair":
        assert setting.server.names() in ([NAME], [])
    if remedy == "publish":
        result = setting.run("small")
        assert result.exit_code == 0, result.output
        assert setting.run("verify").exit_code == 0
    if remedy != "nobody":
        now = {name: digest for name, digest in tree(setting.directory).items() if name in whole}
        assert now == whole
        assert stored(setting).samefile(pooled(setting, published))


def test_repair_fails_when_the_archive_has_lost_the_package(
    setting: Setting, published: Publication
) -> None:
    spoil(stored(setting))
    setting.upstream(NAME).unlink()
    result = setting.run("verify", "--repair")
    assert result.exit_code == 1
    assert f"vanished: {NAME} 535.261.03-1 of archive near" in result.output
    assert "not repaired" in result.output


def test_repair_fetches_a_vanished_package_from_the_snapshot(
    setting: Setting, published: Publication, pair: tuple[str, Path, Path]
) -> None:
    spoil(stored(setting))
    setting.snapshot(NAME, pair)
    result = setting.run("verify", "--repair")
    assert result.exit_code == 0, result.output
    assert stored(setting).samefile(pooled(setting, published))


def test_only_what_is_asked_for_is_verified(setting: Setting, published: Publication) -> None:
    assert setting.run("verify", "small").exit_code == 0
    wrong = setting.run("verify", "smal")
    assert (wrong.exit_code, 'Use "small"' in wrong.output) == (2, True)
    spoil(stored(setting))
    assert setting.run("verify", "small").exit_code == 1


def test_a_whole_mirror_has_no_faults(setting: Setting, published: Publication) -> None:
    result = setting.run("verify")
    assert result.exit_code == 0
    assert result.output == f"{setting.directory}: 1 publications, 16 files: no faults\n"


def test_nothing_published_is_no_success(setting: Setting) -> None:
    result = setting.run("verify")
    assert result.exit_code == 2
    assert "cannot be read" in result.output or "nothing is published" in result.output


# Collecting


def old(setting: Setting, publication: Publication, days: float = 100) -> None:
    """Let a publication, and what is in it, be that old."""
    record = publication.to_json()
    then = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
    record["published"] = then.strftime("%Y-%m-%dT%H:%M:%SZ")
    (publication.directory / "publication.json").write_text(json.dumps(record))
    for row in publication.packages:
        os.utime(setting.mirror.path(row["sha256"]), (then.timestamp(), then.timestamp()))


def move_on(setting: Setting) -> None:
    """Another lock takes the place of the one that was published, with one more package of the archive's."""
    path = setting.place.root / "extra.deb"
    path.write_bytes(setting.upstream("kmod").read_bytes() + b"\n")
    extra = setting.package("kmod").model_copy(
        update={
            "name": "kmod-more",
            "sha256": setting.mirror.add(path),
            "size": path.stat().st_size,
        }
    )
    lock = setting.lock.model_copy(
        update={"resolved": "2026-11-21", "packages": [*setting.lock.packages[1:], extra]}
    )
    write_lock(lock, setting.place.root / "locks")


def leave_alone(_: Setting, __: Publication, ___: Path) -> None:
    pass


def channel(setting: Setting, publication: Publication, _: Path) -> None:
    (setting.directory / "channels.json").write_text(
        json.dumps({"known-good": {"small": publication.id}})
    )


def history(setting: Setting, _: Publication, nodes: Path) -> None:
    digest = setting.lock.digest
    record = {
        "schema": "goldnode.run/1",
        "hosts": {"gpu01": {"class": "x", "class_digest": "sha256:0", "lock_digest": digest}},
    }
    nodes.mkdir()
    (nodes / "run.json").write_text(json.dumps(record))


def earlier(setting: Setting, _: Publication, nodes: Path) -> None:
    nodes.write_text(
        json.dumps(
            {
                "schema": "goldnode.applied/1",
                "lock_digest": "sha256:1",
                "earlier_lock_digest": setting.lock.digest,
            }
        )
    )


def second_lock(setting: Setting, _: Publication, __: Path) -> None:
    (setting.place.root / "catalog/stacks").mkdir(exist_ok=True)
    write_lock(setting.lock, setting.place.root / "catalog/stacks")


def module_rows(setting: Setting, publication: Publication, _: Path) -> None:
    rows = [{"sha256": row["sha256"]} for row in publication.packages]
    (setting.place.root / "locks/small.modules.yml").write_text(json.dumps({"packages": rows}))


Keeper = Callable[[Setting, Publication, Path], None]


@pytest.mark.parametrize(
    ("keeper", "publication_stays", "files_stay"),
    [
        (leave_alone, False, False),
        (channel, True, True),
        (history, True, True),
        (earlier, True, True),
        (second_lock, True, True),
        (module_rows, False, True),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_gc_leaves_publications_and_files_that_are_needed(
    setting: Setting,
    published: Publication,
    tmp_path: Path,
    keeper: Keeper,
    publication_stays: bool,
    files_stay: bool,
) -> None:
    old(setting, published)
    move_on(setting)
    (setting.directory / "stacks/small/current").unlink()
    nodes = tmp_path / "nodes"
    keeper(setting, published, nodes)
    arguments = ["--nodes", str(nodes)] if nodes.exists() else []
    before = tree(setting.directory)
    dry = setting.run("gc", "--dry-run", *arguments)
    assert dry.exit_code == 0, dry.output
    assert tree(setting.directory) == before
    assert (f"would go: stacks/small/{published.id}" in dry.output) is not publication_stays
    done = setting.run("gc", *arguments)
    assert done.exit_code == 0, done.output
    assert published.directory.exists() is publication_stays
    first = setting.mirror.path(
        setting.lock.packages[0].sha256
    )  # the one that the later lock has not
    assert first.exists() is files_stay
    assert all(setting.mirror.has(item.sha256) for item in setting.lock.packages[1:])
    assert done.output.replace("gone", "would go") == dry.output


def test_gc_leaves_young_or_current_publications(setting: Setting, published: Publication) -> None:
    move_on(setting)
    (setting.directory / "stacks/small/current").unlink()
    result = setting.run("gc")
    assert f"stays: stacks/small/{published.id}: published" in result.output
    assert "less than 30 days ago" in result.output
    assert "0 gone, 0 B;" in result.output
    (setting.directory / "stacks/small/current").symlink_to(published.id)
    result = setting.run("gc", "--keep-days", "0")
    assert f"stays: stacks/small/{published.id}: current for stack small" in result.output
    (setting.directory / "stacks/small/current").unlink()
    result = setting.run("gc", "--keep-days", "0")
    assert f"gone: stacks/small/{published.id}" in result.output
    assert setting.stacks() == []
    assert {path.name for path in setting.mirror.store.glob("*/*")} >= {
        item.sha256 for item in setting.lock.packages[1:]
    }


def test_gc_removes_nothing_when_a_record_is_unreadable(
    setting: Setting, published: Publication, tmp_path: Path
) -> None:
    old(setting, published)
    move_on(setting)
    before = tree(setting.directory)
    for path, text in (
        (setting.directory / "channels.json", "["),
        (setting.directory / "channels.json", "[]"),
        (setting.place.root / "locks/small.lock.yml", "lock: 1\n"),
        (tmp_path / "nodes.json", "{"),
    ):
        cached = path.read_text() if path.exists() else None
        path.write_text(text)
        result = setting.run(
            "gc", "--keep-days", "0", *(["--nodes", str(path)] if path.name == "nodes.json" else [])
        )
        assert result.exit_code == 2, result.output
        assert str(path) in result.output
        path.unlink()
        if cached is not None:
            path.write_text(cached)
    assert setting.run("gc", "--nodes", str(tmp_path / "absent")).exit_code == 2
    assert tree(setting.directory) == before
    # A publication whose record is torn may need any file of the store.
    (published.directory / "publication.json").write_text("{")
    before = tree(setting.directory)
    result = setting.run("gc", "--keep-days", "0")
    assert result.exit_code == 0
    assert "0 gone, 0 B;" in result.output
    assert tree(setting.directory) == before


def test_the_status_lists_what_is_published(setting: Setting, published: Publication) -> None:
    result = setting.run("status")
    assert result.exit_code == 0
    assert [line.split()[:3] for line in result.output.splitlines()[1:]] == [
        ["small", published.id, "current"]
    ]


def test_help_shows_both_spellings(setting: Setting) -> None:
    assert "STACK... | COMMAND" in setting.run("--help").output
    assert setting.run("fetch", "smal").exit_code == setting.run("smal").exit_code == 2
    assert 'Use "small"' in setting.run("smal").output


def test_json_report_of_each_command_has_its_schema(setting: Setting, tmp_path: Path) -> None:
    for words, schema, has in (
        (("small",), "mirror-fetch", "published"),
        (("status",), "mirror-status", "publications"),
        (("verify",), "mirror-check", "faults"),
        (("gc", "--dry-run"), "gc", "removed"),
        (("key", "--out", str(tmp_path / "keys")), "mirror-key", "fingerprint"),
    ):
        done = setting.run(*words, "--format", "json")
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        assert (document["schema"], has in document) == (f"goldnode.{schema}/1", True)


def test_needed_names_who_needs_it(setting: Setting, published: Publication) -> None:
    _, catalog, site = setting.place.load()
    assert isinstance(catalog, Catalog)
    keep = maintenance.needed(setting.mirror, catalog, site)
    assert set(keep.locks) == {setting.lock.digest}
    assert keep.publications == {("small", published.id): "current for stack small"}
    assert set(keep.hashes) == published.hashes
    assert issubclass(GoldnodeError, Exception)
    assert (
        LockedPackage.model_validate(
            {key: value for key, value in published.packages[0].items() if key != "pool"}
        )
        in setting.lock.packages
    )
