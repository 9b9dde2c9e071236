"""Silences of nodes that a rollout changes, in a real Alertmanager: made, recorded, extended and removed; a person's stay."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3
from tests.unit.fleet.control.controlled import controlled
from tests.unit.fleet.events.test_event_alerts import alertmanager  # noqa: F401 - a fixture

from goldnode.core.site import SiteHookAlertmanager
from goldnode.fleet.control.silences import NodeSilence, NodeSilences, RepairSilences
from goldnode.fleet.rollout.ladder import CasePhase, Holder, MoveCase, OpenCase, RepairCase
from goldnode.fleet.rollout.lines import sentence
from goldnode.fleet.store import nodes, repairs, rollout_view, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.fleet.store.status import measured

HOUR = 3600.0


def ask(url: str, method: str, path: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content)
    headers = {"Content-Type": "application/json"}
    answer = urllib3.request(
        method, f"{url}/api/v2/{path}", body=body, headers=headers, retries=False
    )
    assert answer.status == 200, answer.data
    return answer.json() if answer.data else None


def silenced(url: str) -> set[tuple[str, str, str]]:
    """Return author, label and value of the silences in force."""
    return {
        (item["createdBy"], matcher["name"], matcher["value"])
        for item in ask(url, "GET", "silences")
        if item["status"]["state"] == "active"
        for matcher in item["matchers"]
    }


def states(url: str, *instances: str) -> list[str]:
    """Raise an alert for each instance, and return which are active and which are suppressed."""
    end = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    ask(
        url,
        "POST",
        "alerts",
        [{"labels": {"alertname": "Up", "instance": one}, "endsAt": end} for one in instances],
    )
    for _ in range(50):
        rows = {
            one["labels"]["instance"]: one["status"]["state"] for one in ask(url, "GET", "alerts")
        }
        if set(instances) <= set(rows) and "unprocessed" not in rows.values():
            break
        time.sleep(0.1)
    return [rows[one] for one in instances]


def test_alerts_are_silenced_from_the_drain_to_the_return_or_the_failure(
    tmp_path: Path, migrated: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("alertmanager")
    where = tmp_path / "fleet.db"
    where.write_bytes(migrated.read_bytes())
    found = controlled(tmp_path, str(where), 12)
    found.world.faults = dict.fromkeys(found.world.names, "silent")
    store = found.store()
    controller = found.controller(store, "c/1")
    hook = SiteHookAlertmanager(url=url, silence=("node", "instance"))
    silences = NodeSilences(store, found.settings.name, "c/1", {"pager": hook}, Path)
    # A person's own silence of a node that is changed.
    added = subprocess.run(
        ["amtool", f"--alertmanager.url={url}", "silence", "add", "--author=ann", "--comment=fan", "instance=~n.*:9999"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert added.returncode == 0, added.stderr
    silences.update()
    assert {author for author, _, _ in silenced(url)} == {"ann"}, "before any drain"
    while not (changed := [row["node"] for row in reading(store, "changing")]):
        found.world.now += 30
        controller.tick()
    assert len(changed) == 2
    silences.update()
    own = {
        ("goldnode rollout r1", label, NodeSilence(node, label, 0.0).matcher["value"])
        for node in changed
        for label in ("node", "instance")
    }
    assert silenced(url) - own == {("ann", "instance", "n.*:9999")}
    assert own <= silenced(url)
    first = changed[0]
    assert states(url, f"{first}:9100", first, f"{first}0:9100") == [
        "suppressed",
        "suppressed",
        "active",
    ]
    # The same again, also by a controller that takes over, changes nothing.
    before = ask(url, "GET", "silences")
    silences.update()
    replace(silences, holder="c/2", _last={}).update()
    assert ids(before) == ids(ask(url, "GET", "silences"))
    # A later deadline extends them.
    with store.write() as connection:
        connection.execute(tables.step.update().values(deadline=tables.step.c.deadline + HOUR))
    silences.update()
    after = ask(url, "GET", "silences")
    assert {id_ for id_, _ in ids(after)} == {id_ for id_, _ in ids(before)}
    assert len(ids(after) - ids(before)) == 4
    # They do not return: overdue, and their alerts are heard again.
    found.world.now += 3 * HOUR
    for _ in range(4):
        found.world.now += 30
        controller.tick()
    assert reading(store, "changing") == []
    replace(silences, holder="c/2", _last={}).update()
    assert silenced(url) == {("ann", "instance", "n.*:9999")}
    assert states(url, f"{first}:9100") == ["active"]
    with store.read() as connection:
        lines = [row for row in rollout_view.lines(connection) if row["action"] == "Silence"]
    assert [(row["subject"], row["content"]["on"]) for row in lines] == [
        *((node, True) for node in sorted(changed)),
        *((node, True) for node in sorted(changed)),
        *((node, False) for node in sorted(changed)),
    ]
    assert sentence(lines[-1]) == f"alerts of {max(changed)} are no longer silenced (pager)"
    controller.close()


def reading(store: Any, key: str) -> list[dict[str, Any]]:
    with store.read() as connection:
        rows: list[dict[str, Any]] = measured(connection)[key]
    return rows


def ids(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["id"], row["endsAt"]) for row in rows}


MORE = {"name": "alertname", "value": "Up", "isRegex": False, "isEqual": True}


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(createdBy="ann"),
        lambda row: row.update(comment="keep"),
        lambda row: row["matchers"].append(MORE),
    ],
    ids=["author", "comment", "matcher"],
)
def test_silence_that_a_person_has_edited_is_not_touched(
    tmp_path: Path,
    migrated: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], Any],
) -> None:
    where = tmp_path / "fleet.db"
    where.write_bytes(migrated.read_bytes())
    found = controlled(tmp_path, str(where), 12)
    hook = SiteHookAlertmanager(url="http://127.0.0.1:9", silence=("node",))
    silences = NodeSilences(found.store(), "r1", "c/1", {"pager": hook}, Path)
    row = {
        "id": "1",
        "status": {"state": "active"},
        "createdBy": silences.author,
        "comment": silences.comment("n01"),
        "matchers": [NodeSilence("n01", "node", 0.0).matcher],
        "endsAt": "2027-01-01T00:00:00.000Z",
    }
    asked: list[tuple[str, str]] = []

    def answer(
        hook: object, method: str, path: str, resolve: object, content: object = None
    ) -> str:
        asked.append((method, path))
        return json.dumps([row])

    monkeypatch.setattr("goldnode.fleet.control.silences.alertmanager", answer)
    silences.update()
    assert ("DELETE", "silence/1") in asked, "its own, of a node that is not changed"
    change(row)
    asked.clear()
    silences.update()
    assert asked == [("GET", "silences")]


def test_alertmanager_that_does_not_answer_stops_nothing(
    tmp_path: Path, migrated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = tmp_path / "fleet.db"
    where.write_bytes(migrated.read_bytes())
    found = controlled(tmp_path, str(where), 12)
    hook = SiteHookAlertmanager(url="http://127.0.0.1:9", silence=("node",), timeout=1)
    silences = NodeSilences(found.store(), "r1", "c/1", {"pager": hook}, Path)
    silences.update()
    silences.update()
    assert [
        line.message
        for line in caplog.records
        if "pager" in line.message and "does not answer" in line.message
    ][1:] == []
    assert "does not answer" in caplog.text


def test_repair_silences_its_node_until_it_has_a_ticket(
    tmp_path: Path, migrated: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("alertmanager")
    where = tmp_path / "fleet.db"
    where.write_bytes(migrated.read_bytes())
    store = StoreDatabase(str(where))
    known, limits = [StoredNode("n1", "h100")], {"h100": FleetLimits("1", "1", "1")}
    now = time.time()
    store.run(lambda c: nodes.put(c, known, limits, who="test", now=now))
    hook = SiteHookAlertmanager(url=url, silence=("node",))
    silences = RepairSilences(store, "", "m", {"pager": hook}, Path)
    case = RepairCase(
        "n1",
        finding="gpu.lost",
        climb=("reboot",),
        opened_at=now,
        phase=CasePhase.DRAIN,
        rung="reboot",
        changed_at=now,
        deadline=now,
    )
    record = repairs.LadderRecord()
    store.run(lambda c: repairs.write(c, record, [OpenCase(case)], now))
    with store.read() as connection:
        record.read(connection)
    assert store.run(lambda c: repairs.take(c, record, case, Holder.NONE, (now, 3600.0))) == ""
    silences.update()
    assert {author for author, _, _ in silenced(url)} == {"goldnode repairs"}
    with store.read() as connection:
        record.read(connection)
    ticket = MoveCase("n1", CasePhase.TICKET, "ticket", "no rung is left")
    store.run(lambda c: repairs.write(c, record, [ticket], now))
    silences.update()
    assert silenced(url) == set(), "a person repairs it, and its alerts count"
    with store.read() as connection:
        record.read(connection)
    assert record.state.cases["n1"].phase is CasePhase.TICKET
    silences.close()
    store.close()
