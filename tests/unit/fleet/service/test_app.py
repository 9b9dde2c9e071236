"""The lock service by its ASGI interface, on a real SQLite: FleetLock's answers, refusals, metrics, background."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.store.fleets import (
    ALICE,
    CLASS,
    LIMITS,
    NEW,
    NOW,
    OLD,
    fill,
    held,
    leave,
    rollout,
)

from goldnode.fleet.rollout import model
from goldnode.fleet.rollout.model import Overdue
from goldnode.fleet.service.app import LockService, ServiceSettings
from goldnode.fleet.service.batch import commit
from goldnode.fleet.service.metrics import ServiceCounters, render
from goldnode.fleet.store import grants, orders, rollouts, tables
from goldnode.fleet.store.controllers import Controller
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import LeaveRequest
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.orders import Scope
from goldnode.fleet.store.status import status

# The request of Zincati's documentation of the protocol: pretty-printed JSON, without a content type.
ZINCATI = '{\n  "client_params": {\n    "id": "%s",\n    "group": "%s"\n  }\n}'
HEADERS = {"fleet-lock-protocol": "true"}


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


Ask = Callable[..., Awaitable[Answer]]


@pytest.fixture
def store(tmp_path: Path, migrated: Path) -> Iterator[StoreDatabase]:
    database = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    fill(database)
    yield database
    database.close()


def running(
    store: StoreDatabase, work: Callable[[Ask, LockService], Awaitable[None]], **settings: Any
) -> None:
    """Run `work` with a function that sends one request to a service with its background tasks."""

    async def main() -> None:
        service = LockService(store, ServiceSettings(**{"clock": lambda: NOW, **settings}))
        app = service.app()

        async def ask(
            path: str,
            body: str | bytes = "",
            *,
            headers: Mapping[str, str] = HEADERS,
            method: str = "POST",
            peer: frozenset[str] | None = None,
        ) -> Answer:
            return await request(
                app, method, path, body, headers, {} if peer is None else {"peer": peer}
            )

        async with app.router.lifespan_context(app):
            await work(ask, service)

    asyncio.run(main())


async def request(
    app: Any,
    method: str,
    path: str,
    body: str | bytes,
    headers: Mapping[str, str],
    state: dict[str, Any],
) -> Answer:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "state": state,
    }
    sent: list[dict[str, Any]] = []
    parts = [{"type": "http.request", "body": body.encode() if isinstance(body, str) else body}]

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:]), found)


def asks(number: int, group: str = CLASS, **more: Any) -> str:
    return json.dumps({"client_params": {"id": f"n{number:02}", "group": group, **more}})


def test_zincati_takes_and_returns_its_lock_recursively(store: StoreDatabase) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        body = ZINCATI % (f"{3:032x}", CLASS.replace("_", "-"))
        assert (
            await ask("/v1/steady-state", body)
        ).status == 200  # nothing to release: FleetLock's UnlockIfHeld
        assert [(await ask("/v1/pre-reboot", body)).status for _ in range(2)] == [200, 200]
        assert held(store) == {"n03": "planned"}
        assert [(await ask("/v1/steady-state", body)).status for _ in range(2)] == [200, 200]
        assert held(store) == {}

    running(store, work)


def test_full_group_answers_with_kind_and_value(store: StoreDatabase) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        await ask("/v1/pre-reboot", asks(0))
        answer = await ask("/v1/pre-reboot", asks(4))
        assert answer.status == 423
        assert answer.json() == {
            "kind": "failed_lock_semaphore_full",
            "value": "rack r0: 1 nodes are out of service (planned), the limit is 1.",
        }
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["retry-after"] == "10"

    running(store, work)


WRONG = {
    "no header": (asks(0), {}, 400, "invalid_protocol_header"),
    "header false": (asks(0), {"fleet-lock-protocol": "false"}, 400, "invalid_protocol_header"),
    "empty body": ("", HEADERS, 400, "invalid_client_identity"),
    "no object": ("[]", HEADERS, 400, "invalid_client_identity"),
    "no text": ('{"client_params": "x"}', HEADERS, 400, "invalid_client_identity"),
    "no group": ('{"client_params": {"id": "n00"}}', HEADERS, 400, "invalid_client_identity"),
    "empty group": (
        '{"client_params": {"id": "n00", "group": ""}}',
        HEADERS,
        400,
        "invalid_client_identity",
    ),
    "group with a slash": (
        '{"client_params": {"id": "n00", "group": "a/b"}}',
        HEADERS,
        400,
        "invalid_client_identity",
    ),
    "empty id": (
        '{"client_params": {"id": "", "group": "h100"}}',
        HEADERS,
        400,
        "invalid_client_identity",
    ),
    "id is a number": (
        '{"client_params": {"id": 7, "group": "h100"}}',
        HEADERS,
        400,
        "invalid_client_identity",
    ),
    "not UTF-8": (b"\xff\xfe\xfd", HEADERS, 400, "invalid_client_identity"),
    "deep": ("[" * 60_000, HEADERS, 400, "invalid_client_identity"),
    "long": (" " * 70_000, HEADERS, 413, "invalid_request"),
    "boot id is a list": (
        '{"client_params": {"id": "n00", "group": "h100", "boot_id": []}}',
        HEADERS,
        400,
        "invalid_request",
    ),
    "unknown node": (asks(99), HEADERS, 404, "unknown_node"),
    "unknown group": (asks(0, "workers"), HEADERS, 400, "unknown_group"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("path", ["/v1/pre-reboot", "/v1/steady-state"])
def test_wrong_request_is_refused_with_a_kind(store: StoreDatabase, case: str, path: str) -> None:
    body, headers, status, kind = WRONG[case]

    async def work(ask: Ask, service: LockService) -> None:
        answer = await ask(path, body, headers=headers)
        assert (answer.status, answer.json()["kind"]) == (status, kind)
        assert answer.json()["value"]
        assert held(store) == {}

    running(store, work)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/pre-reboot", 405), ("POST", "/v2/x", 404), ("GET", "/", 404)],
)
def test_other_endpoints_answer_in_the_same_form(
    store: StoreDatabase, method: str, path: str, status: int
) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        answer = await ask(path, method=method)
        assert answer.status == status
        assert set(answer.json()) == {"kind", "value"}

    running(store, work)


def test_certificate_of_another_node_is_refused(store: StoreDatabase) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        answer = await ask("/v1/pre-reboot", asks(0), peer=frozenset({"n01"}))
        assert (answer.status, answer.json()["kind"]) == (403, "wrong_node_certificate")
        assert (await ask("/v1/pre-reboot", asks(0), peer=frozenset())).status == 403
        assert (await ask("/v1/pre-reboot", asks(0), peer=frozenset({"n00"}))).status == 200

    running(store, work, certificates=True)


def test_rollout_returns_the_epoch_and_keeps_a_node_that_fell_back(store: StoreDatabase) -> None:
    controller = rollout(store)

    async def work(ask: Ask, service: LockService) -> None:
        granted = await ask(
            "/v1/pre-reboot", asks(0, rollout="kernel", wants=NEW, digest=OLD, boot_id="b1")
        )
        assert (granted.status, granted.json()["epoch"]) == (200, controller.epoch)
        answer = await ask("/v1/steady-state", asks(0, rollout="kernel", digest=OLD, boot_id="b2"))
        assert (answer.status, answer.json()["kind"]) == (409, "not_your_turn")
        assert held(store) == {"n00": "planned"}
        with (
            store.read() as connection
        ):  # what the node reports counts although its return does not
            assert connection.exec_driver_sql(
                "SELECT boot_id FROM observation"
            ).scalars().all() == ["b2"]
        done = await ask("/v1/steady-state", asks(0, rollout="kernel", digest=NEW, boot_id="b3"))
        assert (done.status, done.json()) == (200, {"released": True})

    running(store, work)


def applying(store: StoreDatabase) -> Controller:
    """Grant node 0 as a controller does, and let it apply."""
    controller = rollout(store)
    prior = model.Prior(True, OLD, "b1", at=NOW)
    deadline = NOW + 600
    actions: list[model.Action] = [
        model.Grant("n00", model.Direction.FORWARD, 1, deadline, prior),
        model.Proceed("n00", model.StepPhase.APPLYING, deadline),
    ]
    store.run(lambda c: rollouts.write(c, controller, actions[:1], NOW))
    store.run(lambda c: rollouts.write(c, controller, actions[1:], NOW))
    return controller


def observed(store: StoreDatabase) -> list[dict[str, Any]]:
    with store.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT boot_id, digest, content FROM observation ORDER BY seq"
        ).all()
    return [{"boot_id": row[0], "digest": row[1], **json.loads(row[2])} for row in rows]


def test_node_of_a_controller_keeps_its_slot_until_the_controller_ends_it(
    store: StoreDatabase,
) -> None:
    controller, now = applying(store), [NOW + 1]

    async def work(ask: Ask, service: LockService) -> None:
        leave = await ask(
            "/v1/pre-reboot", asks(0, rollout="kernel", wants=NEW, digest=OLD, boot_id="b1")
        )
        assert leave.json()["phase"] == "applying"
        assert leave.json()["target"] == NEW
        report: dict[str, Any] = {
            "rollout": "kernel",
            "digest": NEW,
            "boot_id": "b2",
            "verdict": "pass",
        }
        for _ in range(3):
            answer = await ask("/v1/steady-state", asks(0, **report))
            assert (answer.status, answer.json()) == (200, {"released": False, "phase": "applying"})
        assert held(store) == {"n00": "planned"}
        (row,) = observed(store)
        assert (row["verdict"], row["digest"], row["boot_id"]) == ("pass", NEW, "b2")
        done = model.Finish("n00", model.StepPhase.DONE, 0)
        await asyncio.to_thread(store.run, lambda c: rollouts.write(c, controller, [done], NOW + 8))
        now[0] = NOW + 9
        answer = await ask("/v1/steady-state", asks(0, **report))
        assert answer.json() == {"released": False}, "nothing is held any more"
        assert held(store) == {}
        assert len(observed(store)) == 2, "a report after a change of the step is recorded again"

    running(store, work, clock=lambda: now[0])


def test_report_of_a_node_that_fell_back_is_recorded_whole(store: StoreDatabase) -> None:
    applying(store)

    async def work(ask: Ask, service: LockService) -> None:
        more: dict[str, Any] = {
            "software": ["driver.version"],
            "hardware": [],
            "fell_back_from": NEW,
            "verdict": "unknown",
        }
        await ask("/v1/steady-state", asks(0, rollout="kernel", digest=OLD, boot_id="b3", **more))
        (row,) = observed(store)
        assert (row["fell_back_from"], row["software"], row["verdict"]) == (
            NEW,
            ["driver.version"],
            "unknown",
        )

    running(store, work)


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdict": "good"},
        {"software": "x"},
        {"hardware": [1]},
        {"software": ["x"] * 65},
        {"not_applied": 1},
    ],
)
def test_wrong_report_is_refused(store: StoreDatabase, wrong: dict[str, Any]) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        answer = await ask("/v1/steady-state", asks(0, boot_id="b1", **wrong))
        assert (answer.status, answer.json()["kind"]) == (400, "invalid_request")

    running(store, work)


def test_living_controller_decides_about_overdue_nodes_itself(store: StoreDatabase) -> None:
    applying(store)
    now = [NOW + 601]

    async def work(ask: Ask, service: LockService) -> None:
        store.run(lambda c: c.execute(tables.rollout.update().values(beat_at=now[0] - 5)))
        await service.tick()
        assert held(store) == {"n00": "planned"}
        now[0] += 120
        await service.tick()
        assert held(store) == {"n00": "failed"}

    running(store, work, clock=lambda: now[0])


def test_heartbeat_from_a_clock_far_ahead_does_not_count(store: StoreDatabase) -> None:
    applying(store)

    async def work(ask: Ask, service: LockService) -> None:
        store.run(lambda c: c.execute(tables.rollout.update().values(beat_at=NOW + 86400)))
        await service.tick()
        assert held(store) == {"n00": "failed"}

    running(store, work, clock=lambda: NOW + 601, tick=3600.0)


def test_slots_follow_an_edited_document_at_once(store: StoreDatabase) -> None:
    """The slots are those of the document in force, never a stored copy (airlock, issue 81)."""

    async def work(ask: Ask, service: LockService) -> None:
        given = [(await ask("/v1/pre-reboot", asks(number))).status for number in range(4)]
        assert given == [200, 200, 423, 423]
        await asyncio.to_thread(fill, store, 8, FleetLimits("4", "2", "5"))
        given = [(await ask("/v1/pre-reboot", asks(number))).status for number in range(6)]
        assert given == [200, 200, 200, 200, 423, 423]
        await asyncio.to_thread(fill, store, 8, FleetLimits("1", "2", "5"))
        for number in range(4):
            assert (await ask("/v1/pre-reboot", asks(5))).status == 423
            await ask("/v1/steady-state", asks(number))
        assert (await ask("/v1/pre-reboot", asks(5))).status == 200

    running(store, work)


def test_freeze_stops_the_next_grant_and_no_return(store: StoreDatabase) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        await ask("/v1/pre-reboot", asks(0))
        await asyncio.to_thread(store.run, lambda c: orders.freeze(c, Scope(), ALICE))
        assert (await ask("/v1/pre-reboot", asks(1))).json()["kind"] == "frozen"
        assert (await ask("/v1/steady-state", asks(0))).status == 200

    running(store, work)


def test_overdue_node_is_named_and_stays_failed(
    store: StoreDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    now = [NOW]

    async def work(ask: Ask, service: LockService) -> None:
        await ask("/v1/pre-reboot", asks(0))
        now[0] += LIMITS.return_within + 1
        await service.tick()
        assert held(store) == {"n00": "failed"}
        answer = await ask("/v1/steady-state", asks(0))
        assert (answer.status, answer.json()["kind"]) == (409, "release_by_a_person_only")
        text = (await ask("/metrics", method="GET")).body.decode()
        assert 'goldnode_fleet_overdue{node="n00",owner="lock"} 1' in text

    running(store, work, clock=lambda: now[0])
    assert "n00 is overdue" in caplog.text


def test_many_requests_at_once_never_pass_a_limit(store: StoreDatabase) -> None:
    fill(store, 64, racks=64)

    async def work(ask: Ask, service: LockService) -> None:
        answers = await asyncio.gather(
            *(ask("/v1/pre-reboot", asks(number)) for number in range(64))
        )
        assert sorted(answer.status for answer in answers) == [200, 200] + [423] * 62
        assert len(held(store)) == 2

    running(store, work)


def test_metrics_of_a_rollout(store: StoreDatabase) -> None:
    controller = rollout(store)
    leave(store, 0, rollout="kernel", wants=NEW)
    leave(store, 1, rollout="kernel", wants=NEW)
    actions = [Overdue("n00", "late")]
    store.run(lambda c: rollouts.write(c, controller, actions, NOW))
    store.run(lambda c: orders.freeze(c, Scope("rollout", "kernel"), ALICE))
    with store.read() as connection:
        text = render(ServiceCounters(), status(connection))
    where = 'rollout="kernel",class="h100"'
    for line in (
        f'goldnode_rollout_phase{{{where},phase="running"}} 1',
        f"goldnode_rollout_wave{{{where}}} 1",
        f"goldnode_rollout_frozen{{{where}}} 1",
        f"goldnode_rollout_controller_seen_timestamp_seconds{{{where}}} 1800000000",
        f'goldnode_rollout_nodes{{{where},state="overdue"}} 1',
        f'goldnode_rollout_nodes{{{where},state="granted"}} 1',
        'goldnode_fleet_overdue{node="n00",owner="kernel"} 1',
    ):
        assert line in text.splitlines()
    store.run(lambda c: grants.release(c, "n00", ALICE))
    with store.read() as connection:
        text = render(ServiceCounters(), status(connection))
    assert f'goldnode_rollout_nodes{{{where},state="deferred"}} 1' in text.splitlines()
    assert "overdue{" not in text
    store.run(lambda c: controller.change(c, phase="rolled-back", ended_at=NOW))
    with store.read() as connection:
        assert "goldnode_rollout_" not in render(ServiceCounters(), status(connection))


def test_metrics_are_well_formed_and_count_requests(store: StoreDatabase) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        await ask("/v1/pre-reboot", asks(0))
        await ask("/v1/pre-reboot", asks(4))
        text = (await ask("/metrics", method="GET")).body.decode()
        for line in (
            "goldnode_fleet_store_up 1",
            'goldnode_fleet_requests_total{path="/v1/pre-reboot",status="200"} 1',
            'goldnode_fleet_requests_total{path="/v1/pre-reboot",status="423",kind="failed_lock_semaphore_full"} 1',
            'goldnode_fleet_out{scope="class",name="h100",kind="planned"} 1',
            'goldnode_fleet_limit{scope="rack",name="r0",kind="planned"} 1',
        ):
            assert line in text.splitlines()

    running(store, work)


def test_store_that_is_away_grants_nothing_and_the_service_lives(
    store: StoreDatabase, tmp_path: Path
) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        other = sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)
        other.execute("ALTER TABLE hold RENAME TO away")
        answer = await ask("/v1/pre-reboot", asks(0))
        assert answer.status == 503
        other.execute("ALTER TABLE away RENAME TO hold")
        other.close()
        assert (await ask("/v1/pre-reboot", asks(0))).status == 200
        assert (await ask("/health", method="GET")).status == 200

    running(store, work)


@pytest.mark.parametrize("path", ["/v1/pre-reboot", "/v1/steady-state", "/v1/report"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "\ud800"},
        {"boot_id": "\ud800"},
        {"digest": "x\udfff"},
        {"software": ["\ud800"]},
        {"boot_id": "\0"},
    ],
)
def test_text_that_no_database_can_store_is_refused(
    store: StoreDatabase, path: str, wrong: dict[str, Any]
) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        answer = await ask(path, asks(0, **{"boot_id": "b1", "verdict": "pass", **wrong}))
        assert answer.status == 400, answer.body
        assert answer.json()["kind"] in ("invalid_request", "invalid_client_identity")

    running(store, work)


def test_work_that_fails_in_an_unforeseen_way_fails_alone(store: StoreDatabase) -> None:
    def bad(connection: Any) -> None:
        grants.grant(connection, LeaveRequest("n01", CLASS, NOW))
        raise KeyError("unforeseen")

    found = commit(
        store, [lambda c: grants.grant(c, LeaveRequest("n00", CLASS, NOW)), bad, lambda c: "good"]
    )
    assert [type(one).__name__ for one in found] == ["Leave", "KeyError", "str"]
    assert held(store) == {"n00": "planned"}


def test_a_background_that_fails_in_an_unforeseen_way_is_logged_and_goes_on(
    store: StoreDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = LockService(store, ServiceSettings(clock=lambda: NOW, tick=0.0))
    ticks: list[int] = []

    async def tick() -> None:
        ticks.append(len(ticks))
        if len(ticks) < 3:
            raise ValueError("a stored text is no JSON")
        raise asyncio.CancelledError

    monkeypatch.setattr(service, "tick", tick)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(service._background())
    assert len(caplog.records) == 2


def test_a_clock_that_is_set_back_does_not_end_the_seals(store: StoreDatabase) -> None:
    now = [NOW]

    async def work(ask: Ask, service: LockService) -> None:
        await service.tick()
        now[0] -= 86400.0
        assert (
            await ask("/v1/pre-reboot", ZINCATI % ("n01", CLASS.replace("_", "-")))
        ).status == 200
        await service.tick()
        with store.read() as connection:
            assert status(connection)["log"]["unsealed"] == 0

    running(store, work, clock=lambda: now[0], tick=3600.0)
