"""Captures over HTTP: accepted from the node itself, bounded, on disk before the answer, and stored by an ingest."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.fleet import canary
from tests.unit.fleet.ingest.fleet_reports import CLASS, capture, verdict
from tests.unit.fleet.service.test_app import Ask, running

from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.read import connect
from goldnode.fleet.service import captures
from goldnode.fleet.service.app import LockService
from goldnode.fleet.service.bodies import RefusedRequestError
from goldnode.fleet.store.database import StoreDatabase
from goldnode.node.ground.verdict_files import LARGEST_REPORT

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
NODE = frozenset({"n1"})


@pytest.fixture
def store(tmp_path: Path, migrated: Path) -> Iterator[StoreDatabase]:
    database = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    yield database
    database.close()


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the service from ingesting by itself: tests look at what is in the inbox."""
    monkeypatch.setattr(captures.CaptureReceiver, "run", lambda _: asyncio.Event().wait())


def report(node: str = "n1", **more: Any) -> str:
    found = capture(node)
    content = {"node": node, "class": CLASS, "capture": found, "verdict": verdict(found)}
    return json.dumps({"schema": "goldnode.node-report/1", **content, **more})


def serve(store: StoreDatabase, work: Any, data: Path, **more: Any) -> None:
    running(store, work, data=data, clock=lambda: NOW.timestamp(), tick=3600.0, **more)


def test_a_report_is_on_disk_before_the_answer_and_stored_by_an_ingest(
    store: StoreDatabase, tmp_path: Path
) -> None:
    data = tmp_path / "data"

    async def work(ask: Ask, service: LockService) -> None:
        answer = await ask("/v1/captures", report())
        assert (answer.status, answer.json()) == (202, {"node": "n1"})
        assert len(list((data / "inbox").iterdir())) == 1

    serve(store, work, data)
    assert ingest(IngestRequest(data, received=NOW), NOW).stored == 1
    found = connect(data).execute("SELECT node, class, status, source FROM nodes").fetchall()
    assert found == [("n1", CLASS, "degraded", "http")]


def test_a_canary_result_is_stored_with_the_reports(store: StoreDatabase, tmp_path: Path) -> None:
    data = tmp_path / "data"
    result = json.dumps(canary("n1", NOW, {"gemm_fp16": {"0000:0a:00.0": [600.0] * 20}}))
    broken = json.dumps({**json.loads(result), "jobs": 1})
    early = json.dumps(canary("n2", NOW + timedelta(hours=1), {}))

    async def work(ask: Ask, service: LockService) -> None:
        other = await ask("/v1/captures", result, peer=frozenset({"n2"}))
        assert (other.status, other.json()["kind"]) == (403, "wrong_node_certificate")
        assert (await ask("/v1/captures", result, peer=NODE)).status == 202
        assert (
            await ask("/v1/captures", report(), peer=NODE)
        ).status == 202  # the other kind, at once
        assert (await ask("/v1/captures", result, peer=NODE)).status == 429
        for body, word in ((broken, "jobs"), (early, "is after that of this machine")):
            answer = await ask("/v1/captures", body)
            assert (answer.status, answer.json()["kind"]) == (422, "refused_report")
            assert word in answer.json()["value"]
        assert len(list((data / "inbox").iterdir())) == 2

    serve(store, work, data, certificates=True)
    done = ingest(IngestRequest(data, received=NOW), NOW)
    assert (done.stored, done.results, done.refused) == (1, 1, [])
    found = connect(data).execute("SELECT DISTINCT node, metric FROM canary").fetchall()
    assert found == [("n1", "gemm_fp16")]


def test_with_certificates_a_node_reports_only_itself(store: StoreDatabase, tmp_path: Path) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        other = await ask("/v1/captures", report("n2"), peer=NODE)
        assert (other.status, other.json()["kind"]) == (403, "wrong_node_certificate")
        assert (await ask("/v1/captures", report(), peer=frozenset())).status == 403
        assert not (tmp_path / "data").exists()
        assert (await ask("/v1/captures", report(), peer=NODE)).status == 202

    serve(store, work, tmp_path / "data", certificates=True)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("", 422, "not JSON"),
        ("[" * 10_000, 422, "not JSON"),
        ("{}", 422, "schema 'None'"),
        (report("<b>x</b>"), 422, "is not a name of a node"),
        (report(capture=capture("n1", "2026-11-27T10:00:00Z")), 422, "after that of this machine"),
        (
            report(capture={**capture("n1"), "x": {f"k{n}": 1 for n in range(60_000)}}),
            422,
            "more than 50000 values",
        ),
        (
            report(verdict={"schema": "goldnode.verdict/1", "status": "fine"}),
            422,
            "no known status",
        ),
        ('{"x": "' + "y" * LARGEST_REPORT + '"}', 413, "longer than"),
    ],
)
def test_invalid_capture_is_refused_and_not_on_disk(
    store: StoreDatabase, tmp_path: Path, body: str, status: int, text: str
) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        answer = await ask("/v1/captures", body)
        assert answer.status == status
        assert text in answer.json()["value"]
        assert (
            'goldnode_fleet_requests_total{path="/v1/captures"'
            in (await ask("/metrics", method="GET")).body.decode()
        )

    serve(store, work, tmp_path / "data")
    assert not list(tmp_path.glob("data/inbox/*"))


def test_a_declared_length_is_refused_before_the_body(store: StoreDatabase, tmp_path: Path) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        answer = await ask(
            "/v1/captures", "{}", headers={"content-length": str(LARGEST_REPORT + 1)}
        )
        assert answer.status == 413
        assert answer.headers["connection"] == "close"

    serve(store, work, tmp_path / "data")


def test_a_node_that_reports_too_often_has_to_wait(store: StoreDatabase, tmp_path: Path) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        assert (await ask("/v1/captures", report())).status == 202
        again = await ask("/v1/captures", report())
        assert (again.status, again.headers["retry-after"]) == (429, "10")
        assert (await ask("/v1/captures", report("n2"))).status == 202

    serve(store, work, tmp_path / "data")


def test_a_clock_that_is_set_back_refuses_no_report(store: StoreDatabase, tmp_path: Path) -> None:
    now = [NOW.timestamp()]

    async def work(ask: Ask, service: LockService) -> None:
        assert (await ask("/v1/captures", report())).status == 202
        now[0] -= 600
        assert (await ask("/v1/captures", report())).status == 202

    running(store, work, data=tmp_path / "data", clock=lambda: now[0], tick=3600.0)


def test_a_report_that_is_too_large_as_ascii_is_refused(
    store: StoreDatabase, tmp_path: Path
) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        texts = {f"k{number}": "\N{GREEK SMALL LETTER ALPHA}" * 10_000 for number in range(150)}
        body = json.dumps(json.loads(report(capture=capture("n1", x=texts))), ensure_ascii=False)
        assert len(body.encode()) < LARGEST_REPORT
        assert (await ask("/v1/captures", body)).status == 413

    serve(store, work, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_an_ingest_that_cannot_be_started_is_logged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()  # this test runs the loop
    tries: list[int] = []

    async def ingest(self: captures.CaptureReceiver) -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise OSError(12, "Cannot allocate memory")
        raise asyncio.CancelledError

    monkeypatch.setattr(captures.CaptureReceiver, "ingest", ingest)
    receiver = captures.CaptureReceiver(captures.CaptureSettings(tmp_path, period=0.0))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(receiver.run())
    assert len(caplog.records) == 2


def test_waiting_requests_and_the_inbox_are_bounded(
    store: StoreDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "_MOST", 2)

    async def work(ask: Ask, service: LockService) -> None:
        answers = [(await ask("/v1/captures", report(f"n{number}"))).status for number in range(4)]
        assert answers == [202, 202, 503, 503]
        answer = await ask("/v1/captures", report("n5"))
        assert answer.json()["kind"] == "inbox_full"
        assert "the inbox has 2 reports of" in answer.json()["value"]

    serve(store, work, tmp_path / "data")
    monkeypatch.setattr(captures, "_WAITING", 0)

    async def waiting(ask: Ask, service: LockService) -> None:
        answer = await ask("/v1/captures", report("n9"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "60")

    serve(store, waiting, tmp_path / "other")


def test_the_inbox_is_bounded_by_bytes_and_metrics_have_its_size(
    store: StoreDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, size = tmp_path / "data", len(report("n1"))
    monkeypatch.setattr(captures, "_MOST_BYTES", 3 * size)

    async def work(ask: Ask, service: LockService) -> None:
        answers = [await ask("/v1/captures", report(f"n{number}")) for number in range(6)]
        taken = [answer.status for answer in answers].count(202)
        assert [answer.status for answer in answers] == [202] * taken + [503] * (6 - taken)
        assert (answers[-1].json()["kind"], answers[-1].headers["retry-after"]) == (
            "inbox_full",
            "60",
        )
        files = list((data / "inbox").iterdir())
        total = sum(file.stat().st_size for file in files)
        assert len(files) == taken
        assert 1 <= taken < 6
        assert total <= 3 * size
        metrics = (await ask("/metrics", method="GET")).body.decode()
        refused = (
            'goldnode_fleet_requests_total{path="/v1/captures",status="503",kind="inbox_full"}'
        )
        assert f"{refused} {6 - taken}" in metrics
        assert f"goldnode_fleet_inbox_reports {taken}\n" in metrics
        assert f"goldnode_fleet_inbox_bytes {total}\n" in metrics
        files[0].unlink()
        assert service.captures is not None
        await service.captures._count()  # as before each ingest
        assert (await ask("/v1/captures", report("n6"))).status == 202

    serve(store, work, data)


def test_a_report_that_could_not_be_written_takes_no_place(tmp_path: Path) -> None:
    (tmp_path / "inbox").write_text("a file", encoding="utf-8")
    receiver = captures.CaptureReceiver(captures.CaptureSettings(tmp_path))
    with pytest.raises(RefusedRequestError):
        receiver._put(b"{}")
    assert receiver.inbox == captures.InboxSize()


def test_without_a_directory_of_captures_there_is_no_endpoint(store: StoreDatabase) -> None:
    async def work(ask: Ask, service: LockService) -> None:
        assert (await ask("/v1/captures", report())).status == 404

    running(store, work)


def test_an_inbox_that_cannot_be_written_is_reported(store: StoreDatabase, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file", encoding="utf-8")

    async def work(ask: Ask, service: LockService) -> None:
        assert (await ask("/v1/captures", report())).json() == {
            "kind": "inbox",
            "value": "the inbox cannot be written",
        }

    serve(store, work, tmp_path / "data")


def test_the_service_stores_the_inbox_in_another_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = captures.CaptureSettings(data, clock=lambda: NOW.timestamp())

    async def main() -> None:
        receiver = captures.CaptureReceiver(settings)
        await receiver.ingest()  # nothing there: no process
        assert not data.exists()
        body = report(capture=capture("n1", "2026-11-20T10:00:00Z")).encode()
        assert await asyncio.to_thread(
            receiver._accept, captures.SentBody(body, "", base=False, peer=())
        ) == {"node": "n1"}
        await receiver.ingest()

    asyncio.run(main())
    assert connect(data).execute("SELECT node, source FROM nodes").fetchall() == [("n1", "http")]
    assert not list((data / "inbox").iterdir())
