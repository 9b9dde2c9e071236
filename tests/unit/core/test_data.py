"""Goldnode's own data in a checkout and in a wheel: where it is, and that nothing is written into a wheel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from goldnode.catalog.load import builtin_catalog
from goldnode.core import data
from goldnode.core.site import Site, own_lock_places

ROOT = Path(__file__).parents[3]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of an installed goldnode; the working directory is another."""
    packed = tmp_path / "site-packages/goldnode/_data"
    (packed / "catalog/stacks").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(data, "_PACKED", packed)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("GOLDNODE_SITE", raising=False)
    return packed


def test_a_checkout_has_its_data_in_its_root() -> None:
    assert not data.installed()
    assert builtin_catalog() == ROOT / "catalog"
    assert data.tree_path("src/goldnode/node") == ROOT / "src/goldnode/node"


def test_a_wheel_has_its_data_in_the_package(wheel: Path) -> None:
    assert data.installed()
    assert builtin_catalog() == wheel / "catalog"
    assert data.tree_path("roles") == wheel / "roles"
    assert data.tree_path("src/goldnode/node") == data.PACKAGE / "node"


def test_locks_of_a_wheel_are_written_to_the_users_directory(wheel: Path, tmp_path: Path) -> None:
    shipped = wheel / "catalog/stacks"
    assert own_lock_places(shipped, "stacks") == [tmp_path / "here/goldnode-locks/stacks", shipped]
    site = Site(file=tmp_path / "site/goldnode-site.yml")
    assert site.lock_places(shipped, "stacks")[0] == tmp_path / "site/goldnode-locks/stacks"


def test_locks_of_the_users_own_files_are_beside_them(wheel: Path, tmp_path: Path) -> None:
    assert own_lock_places(tmp_path / "mine/stacks", "stacks") == [tmp_path / "mine/stacks"]


def test_ansible_finds_the_plugins_under_the_users_configuration(wheel: Path) -> None:
    own = data.ansible_environment({"ANSIBLE_LIBRARY": "/mine"})
    assert own["ANSIBLE_CONFIG"] == str(wheel / "ansible.cfg")
    assert own["ANSIBLE_LIBRARY"].split(os.pathsep) == [
        str(data.PACKAGE / "ansible/modules"),
        "/mine",
    ]
    assert Path(own["ANSIBLE_VARS_PLUGINS"]).is_dir()
    Path("ansible.cfg").write_text("[defaults]\nvars_plugins = mine\n")
    users = data.ansible_environment({})
    assert not {"ANSIBLE_CONFIG", "ANSIBLE_VARS_PLUGINS"} & users.keys()
    assert "ANSIBLE_ACTION_PLUGINS" in users
    assert data.ansible_environment({}, own=True)["ANSIBLE_CONFIG"] == str(wheel / "ansible.cfg")


def test_results_that_goldnode_reads_are_not_hidden() -> None:
    assert data.ansible_environment({"ANSIBLE_NO_LOG": "true"})["ANSIBLE_NO_LOG"] == "false"
