"""goldnode is upgraded in the middle of a rollout: an earlier version's processes beside those of this one.

The earlier version is the last commit with the schema of the store before this one, from the history of this checkout. Nodes are
simulated; processes, signals, stores, channel and lock service are real.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.unit.fleet.control.followed import FollowedRollout, followed, free_port, served
from tests.unit.fleet.control.processes import SharedNodes, audit_log
from tests.unit.fleet.control.test_paused_controllers import finished, json_attempt
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.store.fleets import BOB, held
from tests.unit.fleet.store.test_schema import NEXT

from goldnode.fleet.control.channel import ChannelPublisher, ChannelRelease
from goldnode.fleet.rollout.document import loads
from goldnode.fleet.rollout.model import RolloutPhase
from goldnode.fleet.store import log, orders, rollout_trace
from goldnode.fleet.store.database import StoreDatabase

ROOT = Path(__file__).parents[4]
EARLIER = "da5820aa1788"  # the last commit with schema 1 of the store. A new schema: the last commit before it
NODES, LIMIT = 24, 500.0
# An hour of these clocks is a minute: a busy machine must make no node overdue.
TEXT = documents.TEXT.replace("soak: 4h", "soak: 2m").replace("timeout: 1h", "timeout: 48h")
# No controller gets further than the test wants it to.
TEXT += "approve: {first: [oncall], all: [oncall]}\n"
CONTROLLER = """
import goldnode, os
assert goldnode.__file__.startswith(os.getcwd())  # the version that the test means
import sys, time
from tests.unit.fleet.ROOM.processes import SharedNodes, control, submitted
from goldnode.fleet.store import schema
from goldnode.fleet.store.database import StoreDatabase
address, path, began, count, holder, log, text = sys.argv[1:]
shared = SharedNodes(path, float(began))
if int(count):
    store = StoreDatabase(address)
    store.run(schema.migrate)
    store.close()
    submitted(address, text, shared, int(count))
control(address, text, shared, holder, log)
"""
# Of the earlier version alone, so with its names of modules. A line of standard input is the time, and then `pass`; a service answers with its time alone.
FOLLOWERS = """
import goldnode, os
assert goldnode.__file__.startswith(os.getcwd())  # the version that the test means
import json, sys
from tests.unit.fleet.rollout.followed import FollowedRollout, SimulatedMachine
from goldnode.fleet.rollout.channel_keys import ChannelKeys
from goldnode.fleet.rollout.document import loads
from pathlib import Path
directory, where, port, serves = sys.argv[1:]
settings = loads((Path(directory) / "rollout.yml").read_text()).settings
machines = {f"n{number}": SimulatedMachine() for number in range(6)}
rollout = FollowedRollout(Path(directory), where, settings, machines, ChannelKeys((), ()), int(port))

def work():
    print("ready", flush=True)
    for line in sys.stdin:
        rollout.now = float(line)
        if serves == "no":
            rollout.passes()
        found = {name: [one.digest, one.boots] for name, one in machines.items()}
        print(json.dumps([found, rollout.said]), flush=True)

if serves == "no":
    work()
else:
    from tests.unit.fleet.rollout.followed import served
    with served(rollout):
        work()
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the earlier version."""
    place = tmp_path_factory.mktemp("earlier")
    archive = place / "tree.tar"
    made = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "-o", str(archive), EARLIER, "src", "tests"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"the history of this checkout lacks {EARLIER}: {made.stderr.strip()}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(place)], check=True)
    archive.unlink()
    return place


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}"}


def controller(tree: Path, *words: str) -> subprocess.Popen[bytes]:
    # The helper of the earlier version lies in another folder.
    script = CONTROLLER.replace("ROOM", "control" if tree == ROOT else "rollout")
    return subprocess.Popen([sys.executable, "-c", script, *words], cwd=tree, env=environment(tree))


def until(condition: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert all(process.poll() in (None, 0) for process in processes)
        assert time.monotonic() < end
        time.sleep(0.1)


def deeds_of(shared: SharedNodes, holder: str) -> int:
    try:
        return sum(row[0] == holder for row in shared.deeds())
    except sqlite3.OperationalError:  # the controller has not made the nodes yet
        return 0


@pytest.mark.long
@pytest.mark.parametrize("following", ["present", "next"])
def test_controller_of_this_version_finishes_a_rollout_of_the_one_before(
    earlier: Path, tmp_path: Path, following: str
) -> None:
    """The tables are migrated while the earlier controller works, to this version or also to a simulated next one."""
    address, shared = (
        str(tmp_path / "fleet.db"),
        SharedNodes(str(tmp_path / "nodes.db"), time.time()),
    )
    common = (address, shared.path, str(shared.began))
    first = controller(
        earlier, *common, str(NODES), "earlier/1", str(tmp_path / "earlier.log"), TEXT
    )
    second = None
    try:
        canaries = 2 * 3  # drained, applied, returned
        until(lambda: deeds_of(shared, "earlier/1") == canaries, first)
        migrate = ["-m", "goldnode.cli", "fleet", "store", "migrate", "--fleet-store", address]
        subprocess.run([sys.executable, *migrate], cwd=tmp_path, env=environment(ROOT), check=True)
        store = StoreDatabase(address)
        if following == "next":
            with store.write() as connection:
                for statement in NEXT:
                    connection.execute(text(statement))
        store.run(lambda c: orders.approve(c, "r1", "first", "oncall", BOB))
        until(
            lambda: deeds_of(shared, "earlier/1") >= canaries + 4, first
        )  # it goes on with these tables
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        store.run(lambda c: orders.approve(c, "r1", "all", "oncall", BOB))
        second = controller(ROOT, *common, "0", "present/1", str(tmp_path / "present.log"), TEXT)
        until(lambda: finished(store, shared), second)
        assert second.wait(60) == 0
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
    with store.read() as connection:
        rows = log.entries(connection, rollout="r1")
        assert rollout_trace.violations(connection, loads(TEXT).settings) == []
        log.verify(connection)
    store.close()
    assert audit_log(rows) == []
    drains = Counter(
        (node, attempt) for _, node, deed, attempt in shared.deeds() if deed == "drained"
    )
    granted = {
        (row["subject"], json_attempt(row["content"])) for row in rows if row["action"] == "Grant"
    }
    assert set(drains) == granted
    assert set(drains.values()) == {1}
    assert {row["who"] for row in rows if row["action"] == "TakeOver"} == {"earlier/1", "present/1"}
    with shared.opened() as connection:
        nodes = [tuple(row) for row in connection.execute("SELECT digest, in_service FROM node")]
    assert nodes == [(documents.NEW, 1)] * NODES


class MixedRollout(FollowedRollout):
    """A followed rollout whose nodes, or whose lock service, are of the earlier version.

    Nodes of the earlier version read what the keys of targets sign alone, so a person releases at each change.
    """

    process: subprocess.Popen[str]
    serves = False
    seen: dict[str, list[object]]  # digest and number of boots of each node

    def passes(self, **given: str | None) -> None:
        """Run a pass of each node, with the time of this process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if not self.serves:
            store = self.store()
            ChannelPublisher(store, self.channel, self.keys).publish(ChannelRelease())
            store.close()
        self.process.stdin.write(f"{self.now}\n")
        self.process.stdin.flush()
        self.seen, self.said = json.loads(self.process.stdout.readline())
        if self.serves:
            super().passes()
            self.seen = {name: [one.digest, one.boots] for name, one in self.machines.items()}


@contextmanager
def mixed(tree: Path, rollout: FollowedRollout, serves: bool) -> Iterator[MixedRollout]:
    """Run the nodes of a rollout by another version, or serve it by one."""
    own = (rollout.directory, rollout.where, rollout.settings, rollout.machines, rollout.keys)
    found = MixedRollout(*own, free_port(), rollout.now)
    found.serves = serves
    words = [str(rollout.directory), rollout.where, str(found.port), "yes" if serves else "no"]
    found.process = subprocess.Popen(
        [sys.executable, "-c", FOLLOWERS, *words],
        cwd=tree,
        env=environment(tree),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert found.process.stdout is not None
        assert found.process.stdout.readline() == "ready\n"
        yield found
    finally:
        found.process.kill()
        found.process.wait()


@pytest.mark.long
@pytest.mark.parametrize("serves", [False, True], ids=["nodes", "service"])
def test_nodes_or_service_of_the_version_before_work_with_the_rest_of_this_one(
    earlier: Path, tmp_path: Path, migrated: Path, serves: bool
) -> None:
    rollout = followed(tmp_path, f"sqlite:///{shutil.copy(migrated, tmp_path / 'fleet.db')}")
    store = rollout.store()
    with mixed(earlier, rollout, serves) as found, nullcontext() if serves else served(found):
        report = found.run(store)
        found.passes()
    assert report.phase is RolloutPhase.COMPLETED, (report, found.said)
    assert found.seen == {f"n{number}": [documents.NEW, 2] for number in range(6)}
    assert held(store) == {}
    store.close()
