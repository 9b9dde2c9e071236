"""`goldnode fleet ladder` as a person starts it: plan mode with a stub of ssh, and its errors."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.fleet.rollout.ladder_world import verdict

from goldnode.cli import main
from goldnode.fleet.store import nodes, repairs
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.inventory import fleet as inventory
from goldnode.inventory.fleet import InventoryNode

CLASS = "h100_sxm5_80gb"
# Its last words are `-- HOST COMMAND`. An answer is a file with the name of the host.
SSH = """#!/bin/sh
echo "$*" | tr '\\n' ' ' >>{here}/calls; echo >>{here}/calls
while [ "$1" != -- ]; do shift; done
[ -e {here}/answers/$2 ] || {{ echo "ssh: connect to host $2 port 22: Connection refused" >&2; exit 255; }}
cat {here}/answers/$2
"""


class Place:
    """A site directory with a store of two nodes, an inventory, and nodes that answer by a stub of ssh."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.hosts = ["gpu-001", "gpu-002"]
        (here / "answers").mkdir()
        (here / "bin").mkdir()
        (here / "bin/ssh").write_text(SSH.format(here=here))
        (here / "bin/ssh").chmod(0o755)
        self.site("plan")

    def site(self, mode: str) -> None:
        (self.here / "goldnode-site.yml").write_text(f"ladder: {{mode: {mode}}}\n")

    def answers(self, name: str, document: dict[str, Any] | str) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        (self.here / "answers" / name).write_text(text)

    def ladder(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["fleet", "ladder", *words])

    def run(self, *words: str) -> Result:
        return self.ladder("run", "-i", "hosts.yml", "--once", *words)


@pytest.fixture
def place(migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    own = Place(tmp_path)
    store = tmp_path / "fleet.db"
    shutil.copy(migrated, store)
    database = StoreDatabase(str(store))
    known = [StoredNode(name, CLASS) for name in ("gpu-001", "gpu-002")]
    limits = {CLASS: FleetLimits("1", "1", "2")}
    database.run(lambda connection: nodes.put(connection, known, limits, who="test", now=1.0))
    database.close()
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(store))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.delenv("GOLDNODE_SITE", raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers of pytest stay

    def listed(_: str, name: str) -> list[InventoryNode]:
        hosts = own.hosts if name == CLASS else []
        return [InventoryNode(host, None, None, None, ()) for host in hosts]

    monkeypatch.setattr(inventory, "nodes_of_class", listed)
    return own


def test_plan_mode_names_the_rungs_and_only_reads(place: Place) -> None:
    place.answers("gpu-001", verdict(["gpu.recovery_action"]))
    place.answers("gpu-002", verdict([]))
    done = place.run()
    assert done.exit_code == 0, done.output
    assert "gpu-001: gpu.recovery_action: the repair would begin with gpu-reset" in done.output
    assert done.output.endswith("1 transition was written\n")
    # Nothing but the check was run on the nodes.
    calls = (place.here / "calls").read_text().splitlines()
    assert len(calls) >= 2
    assert [call for call in calls if call and "check --format json" not in call] == []
    shown = place.ladder("status").output
    assert "gpu-001: gpu.recovery_action: would begin with gpu-reset" in shown
    assert "7 days: 1 repairs of gpu.recovery_action would have begun with gpu-reset" in shown
    assert "the repair would begin with gpu-reset" in place.ladder("explain", "gpu-001").output
    assert place.ladder("explain", "gpu-002").output == "the ladder has done nothing on gpu-002\n"
    database = StoreDatabase(str(place.here / "fleet.db"))
    with database.read() as connection:
        assert repairs.held(connection) == set()


NO_VERDICT = {
    "schema": "goldnode.verdict/1",
    "status": "could_not_check",
    "exit_code": 3,
    "reason": "no verdict is current",
    "remedy": "goldnode-node check",
}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "ssh: connect to host gpu-002 port 22: Connection refused"),
        (NO_VERDICT, "no verdict is current"),
        ("Welcome to gpu-002!\n", "its check ended with 0"),
        ({**verdict([]), "status": "not_this_class", "exit_code": 4}, "its verdict is not_this_class"),
    ],
)  # fmt: skip
def test_node_that_cannot_be_checked_is_named_and_is_no_success(
    place: Place, answer: dict[str, Any] | str | None, why: str
) -> None:
    place.answers("gpu-001", verdict([]))
    if answer is not None:
        place.answers("gpu-002", answer)
    done = place.run()
    assert done.exit_code == 1
    assert f"gpu-002: could not check: {why}\n" in done.output
    assert "0 transitions were written; 1 of 2 nodes could not be checked" in done.output
    document = json.loads(place.run("--format", "json").stdout)
    assert document["could_not_check"] == {"gpu-002": why}


def test_machine_without_ssh_could_not_check(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place.here))
    done = place.run()
    assert done.exit_code == 1
    assert "gpu-001: could not check: " in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "-i", "hosts.yml", "--class", "h100_sxm5"], 'class "h100_sxm5" is not in the catalog'),
        (["explain", "gpu-009"], 'the store has no node "gpu-009". `goldnode fleet status` lists them'),
        (["resume", "rack r7", "--reason", "x"], 'the ladder is not stopped for "rack r7"'),
    ],
)  # fmt: skip
def test_error_names_what_is_wrong(place: Place, words: list[str], wanted: str) -> None:
    done = place.ladder(*words)
    assert done.exit_code == 2
    assert wanted in done.output


def test_run_needs_the_mode_and_nodes_of_the_store(place: Place) -> None:
    place.hosts.append("gpu-003")
    assert "the store has no node gpu-003" in place.run().output
    place.hosts.clear()
    assert "no host of the inventory is in a class of the store" in place.run().output
    place.site('"off"')
    assert "the ladder is off. Set ladder.mode of goldnode-site.yml" in place.run().output
    assert not (place.here / "calls").exists()
