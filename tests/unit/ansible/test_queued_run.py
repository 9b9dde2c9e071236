"""The queue in real runs of Ansible: a batch gets its nodes together, and a run that was killed is continued by the next.

The nodes are this machine, each with a file system of its own. The scheduler is a command of the site.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.fleet.store.fleets import held

from goldnode.canary import results
from goldnode.core.data import ansible_environment
from goldnode.fleet.store import nodes, schema
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode

BIN = Path(sys.executable).parent
NAMES = ("n1", "n2", "n3")
HOLDS = (
    "import sqlite3; rows = sqlite3.connect('fleet.db').execute('SELECT node FROM hold ORDER BY node');"
    " print('held', *(row[0] for row in rows))"
)


def play(batch: int, pause: float = 0) -> list[dict[str, Any]]:
    """Return a play that drains its batch, shows what is held, and returns it. n3 has nothing to do."""
    return [
        {
            "hosts": "all",
            "gather_facts": False,
            "serial": batch,
            "any_errors_fatal": True,
            "tasks": [
                {"ansible.builtin.meta": "end_host", "when": "inventory_hostname == 'n3'"},
                {"goldnode_drain": {"state": "drained", "work": "apply", "reason": "a lock"}},
                {
                    "ansible.builtin.command": {"argv": [sys.executable, "-c", HOLDS]},
                    "delegate_to": "localhost",
                    "run_once": True,
                    "register": "seen",
                },
                {"ansible.builtin.debug": {"var": "seen.stdout"}, "run_once": True},
                {"ansible.builtin.command": f"sleep {pause}", "run_once": True},
                {"goldnode_drain": {"state": "resumed", "work": "apply", "reason": "a lock"}},
            ],
        }
    ]


@dataclass
class Run:
    """A directory of a site with three hosts, whose drains and returns are logged."""

    place: Path

    @property
    def calls(self) -> list[str]:
        return (self.place / "log").read_text().splitlines()

    def start(self, batch: int, pause: float = 0) -> subprocess.Popen[str]:
        (self.place / "play.yml").write_text(yaml.safe_dump(play(batch, pause)))
        own = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GOLDNODE_", "ANSIBLE_"))
        }
        return subprocess.Popen(
            [str(BIN / "ansible-playbook"), "-i", "hosts.yml", "play.yml", "--forks", "1"],
            cwd=self.place,
            env={
                **ansible_environment(own),
                "PATH": f"{BIN}:{own['PATH']}",
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_ACTION_PLUGINS": str(Path(results.__file__).parents[1] / "ansible/action"),
                "GOLDNODE_RUNS": str(self.place / "runs"),
                "GOLDNODE_FLEET_STORE": str(self.place / "fleet.db"),
                "XDG_CACHE_HOME": str(self.place / "cache"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ended(self, batch: int) -> tuple[int, str]:
        process = self.start(batch)
        text, _ = process.communicate(timeout=200)
        return process.returncode, text


@pytest.fixture
def run(tmp_path: Path) -> Run:
    hosts = {
        name: {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "goldnode_drain": "command",
            "goldnode_root": str(tmp_path / name),
            **{
                f"goldnode_{what}_command": ["sh", "-c", f'echo {what} "$0" >>{tmp_path}/log']
                for what in ("drain", "resume")
            },
        }
        for name in NAMES
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    return Run(tmp_path)


def stored(run: Run, limit: str) -> StoreDatabase:
    store = StoreDatabase(str(run.place / "fleet.db"))
    store.run(schema.migrate)
    limits = {"h100": FleetLimits(limit, limit, limit)}
    own = [StoredNode(name, "h100") for name in NAMES]
    store.run(lambda c: nodes.put(c, own, limits, "test", time.time()))
    return store


@pytest.mark.long
def test_batch_has_its_nodes_together_and_returns_them(run: Run) -> None:
    store = stored(run, "2")
    status, text = run.ended(3)
    assert status == 0, text
    # n3 has ended before: it is not asked for, and three nodes would be more than the limit.
    assert '"seen.stdout": "held n1 n2"' in text
    assert held(store) == {}
    assert run.calls == ["drain n1", "drain n2", "resume n1", "resume n2"]
    store.close()


def test_batch_above_the_limit_ends_before_a_drain(run: Run) -> None:
    store = stored(run, "1")
    status, text = run.ended(3)
    assert status != 0
    assert "class h100 has a limit of 1, and 2 of its nodes are asked at once" in text
    assert not (run.place / "log").exists()
    assert held(store) == {}
    store.close()


def test_site_without_a_store_works_as_before_and_shows_it_once(run: Run) -> None:
    status, text = run.ended(3)
    assert status != 0, "the test shows holds of the store"
    assert text.count("no queue: this site has no store of its fleet") == 1
    assert run.calls == ["drain n1", "drain n2"]


@pytest.mark.long
def test_next_run_continues_with_one_that_was_killed(run: Run) -> None:
    store = stored(run, "2")
    process = run.start(3, pause=120)
    end = time.monotonic() + 100
    while not (run.place / "log").exists() or len(run.calls) < 2:
        assert time.monotonic() < end
        time.sleep(0.2)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert held(store) == {"n1": "planned", "n2": "planned"}
    status, text = run.ended(3)
    assert status == 0, text
    assert held(store) == {}
    assert run.calls[-2:] == ["resume n1", "resume n2"]
    store.close()
