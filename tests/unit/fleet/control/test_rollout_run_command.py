"""`goldnode rollout submit` and `run`: what they refuse, before anything is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.fleet.rollout import documents

from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.core.site import load_site
from goldnode.fleet.control import assembly
from goldnode.fleet.shared.denylist import DenyListError
from goldnode.fleet.store.database import open_store
from goldnode.inventory.fleet import InventoryNode
from goldnode.lock.model import find_lock

INVENTORY = """\
l4:
  hosts:
    n1: {goldnode_rack: r1}
    n2: {goldnode_rack: r2}
    n3: {}
"""
SMALL = (
    ("nodes: 2, spread: leaf", "nodes: 1"),
    ("nodes: 6", "nodes: 1"),
    ("planned: 4", "planned: 1"),
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yml").write_text(INVENTORY, encoding="utf-8")
    documents.written(tmp_path, *SMALL)
    return tmp_path


def called(command: str, *more: str) -> Result:
    return CliRunner().invoke(
        main, ["rollout", command, "rollout.yml", *more], catch_exceptions=False
    )


def test_submission_is_stored_and_reported(place: Path) -> None:
    found = called("submit", "-i", "hosts.yml", "--format", "json")
    assert found.exit_code == 0, found.output
    content = json.loads(found.stdout)
    assert (content["new"], content["nodes"], content["schema"]) == (
        True,
        3,
        "goldnode.rollout-submit/1",
    )
    assert (place / ".goldnode/fleet.db").exists()
    again = called("submit", "-i", "hosts.yml")
    assert "was in the store already" in again.stdout


@pytest.mark.parametrize("command", ["submit", "run"])
def test_document_that_cannot_work_is_refused_before_the_store_exists(
    place: Path, command: str
) -> None:
    documents.written(place, *SMALL, ("percent: 100%", "percent: 50%"))
    found = called(command, "-i", "hosts.yml")
    assert found.exit_code == 1
    assert "do not reach 100 %" in found.stderr
    assert "refused: nothing was changed" in found.stdout
    assert not (place / ".goldnode").exists()


def test_run_names_the_lock_that_this_site_has(place: Path) -> None:
    stack = (("stack: debian12_r580", "stack: debian12_cpu"),) * 2
    documents.written(place, *SMALL, ("class: l4", "class: cpu_only"), *stack)
    (place / "hosts.yml").write_text(INVENTORY.replace("l4", "cpu_only"), encoding="utf-8")
    catalog = load_catalog()
    lock, path = find_lock(catalog.stacks["debian12_cpu"], load_site())
    found = called("run", "-i", "hosts.yml")
    assert found.exit_code == 2
    for part in ("rollout.yml:5: ", lock.digest, documents.NEW, str(path)):
        assert part in found.stderr
    assert not (place / ".goldnode").exists()


def test_run_without_a_lock_names_the_command_that_writes_one(place: Path) -> None:
    found = called("run", "-i", "hosts.yml")
    assert found.exit_code == 2
    assert "goldnode lock debian12_r580" in found.stderr


def test_run_of_a_disk_build_names_the_way_by_a_channel(place: Path) -> None:
    documents.written(
        place,
        *SMALL,
        (f'stack: debian12_r580, lock: "{documents.NEW}"', "disk: l4-20261101-0a1b2c3d"),
    )
    found = called("run", "-i", "hosts.yml")
    assert found.exit_code == 2
    assert "--channel" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], "-i PATH"), (["-i", "host.yml"], "hosts.yml"), (["-i", "other.yml"], "l4")],
    ids=["none", "misspelt", "without-the-class"],
)
def test_submit_with_a_wrong_inventory_is_refused(
    place: Path, arguments: list[str], expected: str
) -> None:
    (place / "other.yml").write_text("a100:\n  hosts: {n9: {}}\n", encoding="utf-8")
    found = called("submit", *arguments)
    assert found.exit_code in (1, 2)
    assert expected in found.stderr
    assert not (place / ".goldnode").exists()


def test_unsigned_document_is_refused_where_the_site_has_a_key(place: Path) -> None:
    (place / "goldnode-site.yml").write_text("fleet: {document_key: keys.pem}\n", encoding="utf-8")
    (place / "keys.pem").write_text("", encoding="utf-8")
    found = called("submit", "-i", "hosts.yml")
    assert found.exit_code == 2
    assert "goldnode rollout sign" in found.stderr
    assert not (place / ".goldnode").exists()


def test_parts_of_a_controller_are_those_of_the_site(place: Path) -> None:
    (place / "goldnode-site.yml").write_text(
        "fleet: {power_cycle: [bmc, '{node}']}\n", encoding="utf-8"
    )
    disk = (f'stack: debian12_r580, lock: "{documents.NEW}"', "disk: l4-20261101-0a1b2c3d")
    file = documents.written(place, *SMALL, disk)
    hosts = [InventoryNode(f"n{number}", None, None, None, ()) for number in range(3)]
    store = open_store("fleet.db", create=True)
    lines: list[str] = []
    parts = assembly.parts(
        file, assembly.RolloutSite("c/1", "fleet.db", "hosts.yml", hosts, 4), store, lines.append
    )
    parts.written(())
    # site.yml reads this file, which is there before anything is denied.
    assert (place / "denied.json").exists()
    assert lines == []
    elsewhere = assembly.RolloutSite("c/1", "postgresql://db/fleet", "hosts.yml", hosts, 4)
    with pytest.raises(DenyListError, match=r"fleet\.deny_list"):
        assembly.parts(file, elsewhere, store, lines.append)
    parts.closed()
    store.close()
