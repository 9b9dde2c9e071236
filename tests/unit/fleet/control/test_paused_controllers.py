"""Three controllers on one PostgreSQL, stopped for longer than any lease and continued: real processes and signals.

The nodes are simulated. A trigger aborts every commit in which a limit does not hold.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from tests import postgresql
from tests.unit.fleet.control.processes import (
    ControllerProcesses,
    SharedNodes,
    audit_log,
    described,
    submitted,
)
from tests.unit.fleet.rollout import documents

from goldnode.fleet.store import controllers, log, schema, status
from goldnode.fleet.store.backup import check_counters
from goldnode.fleet.store.database import StoreDatabase

# Seconds. A lease lasts one: where a decision takes longer, the controllers take over from each other again and again,
# and the rollout advances slowly.
NODES, LIMIT = 40, 600.0
PAUSES = 15  # after them the controllers are left alone
# The timeout is longer than the test: a node that waits for a busy machine is not overdue.
TEXT = documents.TEXT.replace("soak: 4h", "soak: 2m").replace("timeout: 1h", "timeout: 1d")
# Counts rows at the end of each transaction, without the counters and guards of the store.
TRIGGER = """
CREATE FUNCTION assert_limits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT count(*) FROM hold WHERE kind = 'planned') > 4 THEN
    RAISE EXCEPTION 'invariant: more than 4 nodes are planned';
  END IF;
  IF (SELECT count(DISTINCT node) FROM hold) > 10 THEN
    RAISE EXCEPTION 'invariant: more than 10 nodes are out';
  END IF;
  IF EXISTS (SELECT 1 FROM hold h JOIN rollout r ON r.name = h.rollout
             WHERE h.kind = 'planned' AND h.epoch > r.epoch) THEN
    RAISE EXCEPTION 'invariant: a hold is of a later epoch than its rollout';
  END IF;
  IF EXISTS (SELECT 1 FROM step s JOIN rollout r ON r.name = s.rollout
             WHERE s.xmin = pg_current_xact_id()::xid AND s.epoch <> r.epoch) THEN
    RAISE EXCEPTION 'invariant: a step was written under an old epoch';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER hold_limits AFTER INSERT OR UPDATE ON hold
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION assert_limits();
CREATE CONSTRAINT TRIGGER step_limits AFTER INSERT OR UPDATE ON step
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION assert_limits();
"""


def pause(processes: ControllerProcesses, store: StoreDatabase, chance: random.Random) -> str:
    """Stop the controller that has the rollout, or any, for longer than its lease; then continue it."""
    with store.read() as connection:
        holder = controllers.holder(connection, "r1") or "m0/1"
    number = int(holder[1]) if chance.random() < 0.8 else chance.randrange(3)
    processes.signal(number, signal.SIGSTOP)
    time.sleep(chance.uniform(1.5, 5))
    processes.signal(number, signal.SIGCONT)
    time.sleep(chance.uniform(0, 0.5))
    return holder


def finished(store: StoreDatabase, shared: SharedNodes) -> bool:
    with store.read() as connection:
        found = status.status(connection)
    return (
        not found["holds"]
        and all(one["phase"] == "completed" for one in found["rollouts"])
        and all(item.in_service for item in shared.seen())
    )


def _violate(connection: Connection) -> None:
    """Turn the guards off, and grant a fifth node."""
    connection.exec_driver_sql("SET session_replication_role = replica")
    connection.exec_driver_sql(
        "INSERT INTO hold (node, owner, kind, rollout, epoch, since, deadline, reason) "
        "SELECT name, 'r1', 'planned', 'r1', 0, 0, 1, 'x' FROM node LIMIT 5"
    )
    connection.exec_driver_sql("SET session_replication_role = origin")
    connection.exec_driver_sql("UPDATE hold SET reason = 'y'")


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_paused_controllers_obey_no_old_grant_and_pass_no_limit(tmp_path: Path, seed: int) -> None:
    reason = postgresql.missing()
    if reason:
        pytest.skip(reason)
    with postgresql.cluster("on") as server:
        address = server.create("paused")
        store = StoreDatabase(address)
        store.run(schema.migrate)
        shared = SharedNodes(str(tmp_path / "nodes.db"), time.time())
        submitted(address, TEXT, shared, NODES)
        with store.engine.begin() as connection:
            connection.exec_driver_sql(TRIGGER)
        with (
            pytest.raises(DBAPIError, match="invariant: more than 4"),
            store.engine.begin() as connection,
        ):
            _violate(connection)
        processes = ControllerProcesses(address, TEXT, shared, 3, tmp_path)
        chance, pauses = random.Random(seed), 0  # noqa: S311 - a schedule
        end = time.monotonic() + LIMIT
        try:
            while not finished(store, shared) and time.monotonic() < end:
                if pauses < PAUSES:
                    pause(processes, store, chance)
                    pauses += 1
                else:
                    time.sleep(0.5)
            assert finished(store, shared), (
                f"{pauses} pauses\n{described(store, shared, processes)}"
            )
        finally:
            processes.close()
        problems = processes.problems()
        with store.read() as connection:
            rows = log.entries(connection, rollout="r1")
            check_counters(connection)
        store.close()
    takeovers = sum(row["action"] == "TakeOver" for row in rows)
    assert pauses >= 3
    assert takeovers >= 3
    assert not [line for line in problems if "invariant" in line]
    assert not audit_log(rows)
    # Each grant was obeyed once, and nothing else drained a node.
    drains = Counter(
        (node, attempt) for _, node, deed, attempt in shared.deeds() if deed == "drained"
    )
    granted = {
        (row["subject"], json_attempt(row["content"])) for row in rows if row["action"] == "Grant"
    }
    assert set(drains) <= granted
    assert max(drains.values()) == 1, drains.most_common(3)
    with shared.opened() as connection:
        digests = [row["digest"] for row in connection.execute("SELECT digest FROM node")]
    assert set(digests) == {documents.NEW}
    print(f"{pauses} pauses, {takeovers} controllers, {len(problems)} problems")


def json_attempt(content: str) -> int:

    return int(json.loads(content)["attempt"])
