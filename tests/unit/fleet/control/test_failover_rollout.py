"""A rollout whose PostgreSQL primary is killed: its synchronous standby is promoted, and the rollout goes on.

Two real servers and three real controllers; the nodes are simulated. The test promotes the standby itself, as an
agent such as Patroni would.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest
from tests import postgresql
from tests.unit.fleet.control.processes import (
    ControllerProcesses,
    SharedNodes,
    audit_log,
    submitted,
)
from tests.unit.fleet.control.test_paused_controllers import TEXT, finished
from tests.unit.fleet.rollout import documents

from goldnode.fleet.store import log, schema
from goldnode.fleet.store.backup import check_counters
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreError

NODES, FAILED_OVER, LIMIT = 40, 60.0, 180.0


def grants(store: StoreDatabase) -> int:
    with store.read() as connection:
        return sum(row["action"] == "Grant" for row in log.entries(connection, rollout="r1"))


@pytest.mark.long
def test_rollout_goes_on_after_the_promotion_of_a_standby(tmp_path: Path) -> None:
    reason = postgresql.missing()
    if reason:
        pytest.skip(reason)
    with postgresql.cluster("on") as primary:
        standby = primary.standby()
        try:
            hosts = f"{primary.directory},{standby.directory}"
            address = primary.address().replace(f"host={primary.directory}", f"host={hosts}")
            address += "&target_session_attrs=read-write"
            store = StoreDatabase(address)
            store.run(schema.migrate)
            shared = SharedNodes(str(tmp_path / "nodes.db"), time.time())
            submitted(address, TEXT, shared, NODES)
            processes = ControllerProcesses(address, TEXT, shared, 3, tmp_path)
            try:
                end = time.monotonic() + LIMIT
                while grants(store) < 12:
                    assert time.monotonic() < end, processes.problems()[-3:]
                    time.sleep(0.1)
                primary.stop("immediate")
                standby.promote()
                promoted, before = time.monotonic(), 12
                while before <= 12 or time.monotonic() < promoted + 1:
                    with contextlib.suppress(StoreError):
                        before = grants(store)
                    assert time.monotonic() < promoted + FAILED_OVER, processes.problems()[-3:]
                    time.sleep(0.1)
                while not finished(store, shared):
                    assert time.monotonic() < end, processes.problems()[-3:]
                    time.sleep(0.2)
            finally:
                processes.close()
            with store.read() as connection:
                rows = log.entries(connection, rollout="r1")
                check_counters(connection)
            store.close()
        finally:
            standby.remove()
    assert not audit_log(rows)
    drains = Counter(
        (node, attempt) for _, node, deed, attempt in shared.deeds() if deed == "drained"
    )
    assert max(drains.values()) == 1, drains.most_common(3)
    with shared.opened() as connection:
        found = {row["digest"] for row in connection.execute("SELECT digest FROM node")}
    assert found == {documents.NEW}
