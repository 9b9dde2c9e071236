"""Sources of events: the log of a store, histories and published channels, and reports of nodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.unit.fleet.control.controlled import controlled
from tests.unit.fleet.events.event_hooks import NOW, delivery
from tests.unit.fleet.ingest import fleet_reports

from goldnode.channels import signed
from goldnode.channels.lines import ChannelLine, RecordedMove
from goldnode.commands.schema.kinds import schema
from goldnode.core.event_kinds import KINDS
from goldnode.fleet.events import channels, nodes, store_log
from goldnode.fleet.events.assembly import log_source
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.inbox import put
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.rollout import lines
from goldnode.fleet.store import orders
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.orders import Scope

HOOK: dict[str, Any] = {"chat": {"command": {"run": ["true"]}}}


# The log of a store


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[StoreDatabase]:
    """A store with a rollout that was stopped and rolled back, and a freeze."""
    directory = tmp_path_factory.mktemp("log")
    path = str(shutil.copy(migrated, directory / "fleet.db"))
    broken: dict[str, Any] = dict.fromkeys((f"n{number:02}" for number in range(12)), "module")
    found = controlled(directory, path, 12, **broken)
    found.run(20)
    store = StoreDatabase(path)
    ann = PersonsOrder("ann@c", NOW, "audit")
    store.run(lambda c: orders.freeze(c, Scope("class", found.settings.class_), ann))
    store.run(lambda c: orders.unfreeze(c, Scope("class", found.settings.class_), ann))
    yield store
    store.close()


def test_lines_of_a_rollout_are_events_of_the_schema(stopped: StoreDatabase) -> None:
    found, last = store_log.read(stopped, 0)
    assert last == store_log.newest(stopped)
    documents = [
        one.document(place).model_dump(mode="json", by_alias=True)
        for place, one in enumerate(found)
    ]
    for document in documents:
        jsonschema.validate(document, schema("event"))
    assert len({one.id for one in found}) == len(found)
    kinds = {one.kind for one in found}
    assert {"rollout.submitted", "rollout.wave", "node.granted", "node.finished"} <= kinds
    critical = [one for one in documents if one["severity"] == "critical"]
    assert {one["kind"] for one in critical} == {"rollout.phase", "rollout.alarm"}
    assert all(one["rollout"] and one["class"] for one in critical)
    failed = [one for one in found if one.kind == "node.finished" and one.severity == "warning"]
    assert {one.node for one in failed} == {"n06", "n07"}
    freeze, thaw = (one for one in found if one.kind in ("fleet.frozen", "fleet.unfrozen"))
    assert freeze.details["id"] == thaw.details["id"]
    assert "audit" in freeze.text


def test_a_reading_continues_after_the_last_line(
    stopped: StoreDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, last = store_log.read(stopped, 0)
    monkeypatch.setattr(store_log, "_BATCH", 7)
    found, after = [], 0
    while after < last:
        some, after = store_log.read(stopped, after)
        found += some
    assert [one.id for one in found] == [one.id for one in whole]
    assert store_log.read(stopped, after) == ([], after)


def test_a_store_that_is_known_gives_its_new_lines(tmp_path: Path, migrated: Path) -> None:
    store = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    found = delivery(tmp_path, **HOOK)
    found.log = log_source(store)
    assert found.collect() == 0
    store.run(lambda c: orders.freeze(c, Scope("all", ""), PersonsOrder("ann@c", NOW, "heat")))
    assert found.collect() == 1
    assert found.collect() == 0
    (event,) = found.outbox.events()
    assert (event.kind, event.severity) == ("fleet.frozen", "warning")
    store.close()


def test_every_line_has_a_kind_and_every_kind_its_lines() -> None:
    assert set(lines.SENTENCES) == set(store_log.KINDS)
    of_the_log = {kind for kind in store_log.KINDS.values() if kind}
    others = {
        "node.verdict",
        "node.gate",
        "node.silent",
        "channel.moved",
        "channel.published",
        "hook.test",
        "fleet.other",
    }
    assert of_the_log | others == set(KINDS)
    row: dict[str, Any] = {
        "action": "Later",
        "content": {},
        "subject": "s",
        "rollout": None,
        "seq": 1,
        "at": NOW,
        "who": "w",
    }
    unknown = store_log.event(row, {})
    assert unknown is not None
    assert unknown.kind == "fleet.other"


# Channels


class Store:
    """A store of images, with its copy of the channels of a registry. Events verify no signature: there is none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.line = ChannelLine("cuda", "12.4-runtime-debian12")
        self.moves: list[RecordedMove] = []

    @property
    def folder(self) -> Path:
        return signed.copy_of(self, "registry.example")

    def move(self, action: str = "promote", tag: str = "t1") -> None:
        number = len(self.moves) + 1
        words: dict[str, Any] = {"by": "ann", "date": "2026-11-26T10:00:00Z", "reason": "good"}
        self.moves.append(
            RecordedMove(
                number,
                action=action,
                channel="stable",
                was=None,
                now=f"sha256:{tag}",
                tag=tag,
                **words,
            )
        )
        rows = {"moves": [move.document() for move in self.moves]}
        documents: dict[str, dict[str, Any]] = {
            "1.root": {"_type": "root"},
            f"{number}.targets": {
                "_type": "targets",
                "targets": {
                    self.line.target("stable"): {"custom": rows, "hashes": {"sha256": tag}}
                },
            },
            f"{number}.snapshot": {
                "_type": "snapshot",
                "meta": {"targets.json": {"version": number}},
            },
            "timestamp": {
                "_type": "timestamp",
                "version": number,
                "meta": {"snapshot.json": {"version": number}},
            },
        }
        files = {f"{name}.json": {"signed": row} for name, row in documents.items()}
        signed.write_folder(
            self.folder, {name: json.dumps(row).encode() for name, row in files.items()}
        )


def test_moves_of_a_channel_are_events_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "images")
    store.move()
    found = delivery(tmp_path, **HOOK)
    found.channels = (store.root,)
    assert found.collect() == 0, "what was there before is no news"
    store.move(tag="t2")
    store.move("rollback")
    assert found.collect() == 2
    assert found.collect() == 0
    promoted, back = found.outbox.events()
    assert (promoted.kind, promoted.channel, promoted.severity) == (
        "channel.moved",
        "stable",
        "info",
    )
    assert promoted.text == "stable of cuda:12.4-runtime-debian12 is moved to t2: good"
    assert (back.severity, back.details["action"]) == ("warning", "rollback")
    jsonschema.validate(back.model_dump(mode="json", by_alias=True), schema("event"))


def test_the_first_move_of_a_known_store_is_an_event(tmp_path: Path) -> None:
    store = Store(tmp_path / "images")
    found = delivery(tmp_path, **HOOK)
    found.channels = (store.root,)
    found.collect()
    store.move()
    found.channels = ()
    assert found.collect() == 1, (
        "a directory that was read once is read again, so that a killed move has its event"
    )


def test_a_copy_that_cannot_be_read_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "images")
    store.move()
    (store.folder / "1.targets.json").write_bytes(b"{")
    assert channels.places(store.root) == {}
    assert "metadata in another form" in caplog.text


def test_versions_of_a_published_channel_are_events(tmp_path: Path) -> None:
    directory = tmp_path / "h100"
    (directory / "metadata").mkdir(parents=True)
    (directory / "metadata/9.snapshot.json").write_text("nine")
    found = delivery(tmp_path, **HOOK)
    found.channels = (directory,)
    found.collect()
    for version in (10, 11):
        (directory / f"metadata/{version}.snapshot.json").write_text(str(version))
    assert found.collect() == 2
    assert [one.details["version"] for one in found.outbox.events()] == [10, 11]


# Reports of nodes


def report(status: str, time: str, gate: Any = None) -> dict[str, Any]:
    capture = fleet_reports.capture(time=time)
    return {
        "capture": capture,
        "verdict": fleet_reports.verdict(capture, status=status),
        "gate": gate,
    }


SHUT = {
    "mode": "block",
    "open": False,
    "reasons": ["gpu.count: 7 (want 8)"],
    "since": "x",
    "drained": None,
}


def test_an_ingest_observes_before_it_empties_the_inbox(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = report("healthy", "2026-11-26T10:00:00Z")
    put(data, "n1", first)
    put(data, "n1", report("drain", "2026-11-26T10:05:00Z", SHUT))
    found = delivery(tmp_path, **HOOK)
    inbox = []

    def observe(reports: Any) -> None:
        inbox.append(len(list((data / "inbox").iterdir())))
        nodes.observe(found.outbox, map(nodes.state_of, reports), NOW)

    def killed(reports: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(IngestRequest(data, observe=killed), fleet_reports.NOW)
    result = ingest(IngestRequest(data, observe=observe), fleet_reports.NOW)
    assert (result.stored, result.known, result.refused) == (0, 2, [])
    assert inbox == [2]
    verdict, gate = found.outbox.events()
    assert (verdict.text, verdict.simulated) == ("n1 is drain, was healthy: driver.version", True)
    assert gate.text == "the gate of n1 is closed: gpu.count: 7 (want 8)"
    assert gate.details == {
        "mode": "block",
        "open": False,
        "reasons": SHUT["reasons"],
        "drained": None,
    }


@pytest.mark.parametrize(
    "gate",
    [
        "open",
        {},
        {**SHUT, "open": 1},
        {**SHUT, "mode": "x"},
        {**SHUT, "reasons": "x"},
        {**SHUT, "drained": "yes"},
    ],
    ids=repr,
)
def test_a_gate_of_another_form_is_refused(tmp_path: Path, gate: Any) -> None:
    put(tmp_path, "n1", report("drain", "2026-11-26T10:05:00Z", gate))
    result = ingest(IngestRequest(tmp_path), fleet_reports.NOW)
    assert ["its gate is not one" in one.message for one in result.refused] == [True]


def test_hostile_reasons_are_bounded(tmp_path: Path) -> None:
    seen: list[NodeReport] = []
    gate = {**SHUT, "reasons": ["a\x1b[31m" + "x" * 9000] * 100 + [7]}
    put(tmp_path, "n1", report("drain", "2026-11-26T10:05:00Z", gate))
    ingest(IngestRequest(tmp_path, observe=seen.extend), fleet_reports.NOW)
    reasons = (seen[0].gate or {})["reasons"]
    assert len(reasons) == 32
    assert all(len(one) <= 500 and "\x1b" not in one for one in reasons)


def test_anonymous_reports_have_anonymous_events(tmp_path: Path) -> None:
    seen: list[NodeReport] = []
    put(
        tmp_path / "data",
        "n1",
        report("drain", "2026-11-26T10:05:00Z", {**SHUT, "reasons": ["serial n10"]}),
    )
    request = IngestRequest(tmp_path / "data", anonymous=True, observe=seen.extend)
    ingest(request, fleet_reports.NOW)
    state = nodes.state_of(seen[0])
    assert state.node != "n1"
    assert state.gate is not None
    assert state.gate["reasons"] == []
    assert state.at == datetime(2026, 11, 26, 10, 5, tzinfo=UTC).timestamp()
    assert "n10" not in json.dumps(state.content())


def test_a_store_that_was_put_back_from_a_copy_gives_its_new_lines(
    tmp_path: Path, migrated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lines have lower numbers than those that were read before."""
    path, found = tmp_path / "fleet.db", delivery(tmp_path, **HOOK)
    for copy in range(2):
        store = StoreDatabase(str(shutil.copy(migrated, path)))
        found.log = log_source(store)
        found.collect()
        for number in range(3 - copy):
            scope = Scope("all", "")
            order = PersonsOrder(f"ann{copy}@c", NOW + number, "heat")
            work = orders.freeze if number % 2 == 0 else orders.unfreeze
            store.run(lambda c: work(c, scope, order))  # noqa: B023
        assert found.collect() == 3 - copy
        store.close()
    assert "it was replaced" in caplog.text


def test_channels_that_were_put_back_from_a_copy_give_their_new_moves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "images")
    store.move()
    copy = signed.read_folder(store.folder)
    found = delivery(tmp_path, **HOOK)
    found.channels = (store.root,)
    found.collect()
    store.move(tag="t2")
    store.move(tag="t3")
    assert found.collect() == 2
    signed.write_folder(store.folder, copy)
    del store.moves[1:]
    assert found.collect() == 0
    assert "it was replaced" in caplog.text
    store.move(tag="t4")
    assert found.collect() == 1
