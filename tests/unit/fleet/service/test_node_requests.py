"""Requests of the program on nodes of an earlier version, as recorded: this service understands them.

A node is upgraded with its next rollout, so a service meets programs of the version before. The names are those of
`fleets.py`. A request never changes here; a version that sends others adds them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tests.unit.fleet.service.test_app import Ask, running
from tests.unit.fleet.store.fleets import CLASS, NEW, NOW, OLD, fill, held, leave, rollout

from goldnode.fleet.rollout.model import Proceed, StepPhase
from goldnode.fleet.service.app import LockService
from goldnode.fleet.store import rollouts, tables
from goldnode.fleet.store.database import StoreDatabase

# Of commit 007c500c34d4, the first one whose nodes follow.
OWN = {"id": "n00", "group": CLASS}
REPORT = {**OWN, "boot_id": "boot-1", "digest": OLD, "verdict": "pass"}
LEAVE = {
    **OWN,
    "rollout": "kernel",
    "wants": NEW,
    "digest": OLD,
    "boot_id": "boot-1",
    "granted_only": True,
}
GOOD = {**OWN, "boot_id": "boot-2", "digest": NEW, "verdict": "pass", "rollout": "kernel"}
FELL_BACK = {**GOOD, "digest": OLD, "software": ["slot.fallback"], "fell_back_from": NEW}
NOT_APPLIED = {
    **OWN,
    "boot_id": "boot-2",
    "digest": OLD,
    "rollout": "kernel",
    "not_applied": "does not build",
}


@pytest.fixture
def store(tmp_path: Path, migrated: Path) -> Iterator[StoreDatabase]:
    database = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    fill(database)
    yield database
    database.close()


def last_report(store: StoreDatabase) -> dict[str, Any]:
    """Return the last observation of the node, with its boot and digest."""
    table = tables.observation
    with store.read() as connection:
        row = connection.execute(select(table).order_by(table.c.seq.desc()).limit(1)).one()
    found: dict[str, Any] = json.loads(row.content)
    return {**found, "boot_id": row.boot_id, "digest": row.digest}


def test_requests_of_the_version_before_are_understood(store: StoreDatabase) -> None:
    controller = rollout(store)

    async def work(ask: Ask, service: LockService) -> None:
        async def asked(endpoint: str, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            answer = await ask(f"/v1/{endpoint}", json.dumps({"client_params": params}))
            return answer.status, answer.json()

        assert await asked("report", REPORT) == (200, {"node": "n00"})
        status, found = await asked("pre-reboot", LEAVE)
        assert (status, found["kind"]) == (409, "not_your_turn")
        leave(store, 0, rollout="kernel", wants=NEW)
        step = [Proceed("n00", StepPhase.APPLYING, NOW + 600)]
        store.run(lambda c: rollouts.write(c, controller, step, NOW))
        status, found = await asked("pre-reboot", LEAVE)
        assert (status, found["phase"], found["target"]) == (200, "applying", NEW)
        for report in (GOOD, FELL_BACK, NOT_APPLIED):
            status, found = await asked("steady-state", report)
            assert (status, found["phase"], found["released"]) == (200, "applying", False)
            stored = last_report(store)
            assert {key: stored.get(key) for key in ("boot_id", "digest")} == {
                key: report[key] for key in ("boot_id", "digest")
            }
            assert stored["software"] == report.get("software", [])
            assert stored["fell_back_from"] == report.get("fell_back_from")
            assert stored["not_applied"] == report.get("not_applied")
        assert held(store) == {"n00": "planned"}

    running(store, work)
