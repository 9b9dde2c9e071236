"""The writer of site directories: everything or nothing, and no file of a person's is replaced unasked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from goldnode.classdoc.load import load_catalog
from goldnode.core.site import load_site
from goldnode.fleet.nodes import site_directory as site
from goldnode.inventory.classes import classes_of_hosts

CLASS = "class: mine\nbackend: cpu\nstack: debian12_cpu\n"
MINE = site.SiteContents(
    "mine", ("a.example.org", "b[1:2].example.org"), {"classes/mine.yml": CLASS}, "ubuntu"
)
FILES = site.files(MINE, collection=True)


def never(path: Path) -> bool:
    return False


def tree(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text(encoding="utf-8")
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_directory_is_written_whole_and_again_without_a_change(tmp_path: Path) -> None:
    place = tmp_path / "new/site"
    assert site.write(place, FILES, never).written == tuple(FILES)
    assert tree(place) == FILES
    assert place.stat().st_mode & 0o777 == 0o755
    again = site.write(place, FILES, never)
    assert (again.written, set(again.same)) == ((), set(FILES))
    assert [path.name for path in place.parent.iterdir()] == ["site"], "nothing is left beside it"


def test_file_with_another_content_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "ansible.cfg").write_text("mine", encoding="utf-8")
    with pytest.raises(
        site.SiteDirectoryError, match=r"ansible\.cfg: this file exists with another content"
    ):
        site.write(tmp_path, FILES, never)
    assert tree(tmp_path) == {"ansible.cfg": "mine"}
    site.write(tmp_path, FILES, lambda path: path.name == "ansible.cfg")
    assert tree(tmp_path) == FILES


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/other.yml").write_text("other:\n", encoding="utf-8")
    site.write(tmp_path, FILES, never)
    assert tree(tmp_path) == {**FILES, "inventory/other.yml": "other:\n"}


@pytest.mark.parametrize("at", range(1, len(FILES) + 1))
def test_interrupted_write_restores_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    before = {"ansible.cfg": "mine", "note": "stays"}
    for name, text in before.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    rename, calls = Path.rename, [0]

    def interrupted(self: Path, target: Path) -> Path:
        if (
            self.name not in ("note",)
            and ".before-" not in self.name
            and ".before-" not in str(target)
        ):
            calls[0] += 1
            if calls[0] == at:
                raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        site.write(tmp_path, FILES, lambda path: True)
    assert tree(tmp_path) == before
    assert not [
        path for path in tmp_path.parent.iterdir() if path.name.startswith(f".{tmp_path.name}-")
    ]


def test_interrupted_write_of_a_new_directory_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *given: object, **more: object) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        site.write(tmp_path / "site", FILES, never)
    assert list(tmp_path.iterdir()) == []


def test_written_site_directory_loads_with_catalog_and_inventory(tmp_path: Path) -> None:
    site.write(tmp_path, FILES, never)
    settings = load_site(tmp_path / site.SITE)
    assert settings.catalog_directory() == tmp_path / site.CATALOG
    assert settings.lock_directories() == [tmp_path / site.LOCKS]
    catalog = load_catalog([Path("catalog").absolute(), tmp_path / site.CATALOG])
    assert classes_of_hosts(tmp_path / site.INVENTORY, catalog) == dict.fromkeys(
        ("a.example.org", "b1.example.org", "b2.example.org"), "mine"
    )


def test_site_without_a_class_of_its_own_has_a_place_for_one(tmp_path: Path) -> None:
    content = site.files(site.SiteContents("cpu_only", (site.THIS_MACHINE,)), collection=False)
    site.write(tmp_path, content, never)
    assert (tmp_path / "catalog/classes").is_dir()
    assert "ansible_connection: local" in (tmp_path / "inventory/cpu_only.yml").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("collection", [True, False])
def test_ansible_accepts_inventory_and_configuration(tmp_path: Path, *, collection: bool) -> None:
    site.write(tmp_path, site.files(MINE, collection=collection), never)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")
    }
    programs = Path(sys.executable).parent

    def run(*words: str) -> str:
        done = subprocess.run(
            [programs / words[0], *words[1:]],
            cwd=tmp_path,
            env={**environment, "ANSIBLE_VARS_PLUGINS": os.devnull},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stderr
        return done.stdout

    assert '"ansible_user": "ubuntu"' in run("ansible-inventory", "--host", "b2.example.org")
    if not collection:
        assert "goldnode_state" in run("ansible-doc", "-t", "module", "goldnode_state")


@pytest.mark.parametrize(
    ("ignored", "path"),
    [
        (True, "mirror.key"),
        (True, "keys/mirror-signing.asc"),
        (True, ".goldnode/runs/x.json"),
        (True, ".vault_pass"),
        (False, "keys/mirror.asc"),
        (False, "locks/debian12_cpu.lock.yml"),
        (False, "goldnode-site.yml"),
        (False, "locks/.gitkeep"),
    ],
)
def test_secrets_stay_out_of_version_control(tmp_path: Path, path: str, *, ignored: bool) -> None:
    site.write(tmp_path, FILES, never)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    done = subprocess.run(["git", "-C", str(tmp_path), "check-ignore", "-q", path], check=False)
    assert (done.returncode == 0) is ignored


def test_collection_is_found_where_ansible_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", str(tmp_path / "named"))
    monkeypatch.setattr(sys, "path", [])
    assert site.playbook(collection=site.collection_installed()).endswith("/site.yml")
    (tmp_path / "named/ansible_collections/goldnode/node").mkdir(parents=True)
    assert site.playbook(collection=site.collection_installed()) == "goldnode.node.site"
