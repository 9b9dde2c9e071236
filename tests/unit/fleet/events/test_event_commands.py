"""The commands of `goldnode events`, hooks in a site file, and the commands whose changes are events."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.fleet.control.controlled import controlled
from tests.unit.fleet.events.event_hooks import Receiver, secret, site, webhook
from tests.unit.fleet.ingest import fleet_reports

from goldnode.cli import main
from goldnode.core import event_kinds
from goldnode.core.errors import SiteError
from goldnode.core.site import load_site
from goldnode.fleet.control.duties import ControllerDuties
from goldnode.fleet.events import alerts, assembly, store_log
from goldnode.fleet.events.deliver import BackgroundDelivery
from goldnode.fleet.ingest.inbox import put

PAGE = Path(__file__).parents[4] / "docs/how-to/events.md"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def here(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> Path:
    """A site with a store and a webhook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "goldnode-site.yml"))
    shutil.copy(migrated, tmp_path / "fleet.db")
    site(tmp_path, chat=webhook(tmp_path, receiver.url))
    return tmp_path


def goldnode(*words: str, status: int = 0) -> Any:
    done = CliRunner().invoke(main, [*words, "--format", "json"])
    assert done.exit_code == status, (done.output, done.exception)
    return json.loads(done.stdout)


FREEZE = ("fleet", "freeze", "--all", "--reason", "heat")


def test_an_order_reaches_the_hook(here: Path, receiver: Receiver) -> None:
    assert goldnode("events", "deliver") == {
        "schema": "goldnode.events-delivery/1",
        "collected": 0,
        "hooks": [{"name": "chat", "waiting": 0, "error": None}],
    }
    goldnode(*FREEZE)
    assert goldnode("events", "deliver")["collected"] == 1
    assert [(one["kind"], one["severity"]) for one in receiver.events] == [
        ("fleet.frozen", "warning")
    ]
    assert goldnode("events", "list")["events"] == receiver.events
    assert goldnode("events", "list", "--kind", "node.*")["events"] == []
    assert goldnode("events", "status")["hooks"][0]["waiting"] == 0


def test_a_hook_that_fails_is_reported_and_can_be_skipped(here: Path, receiver: Receiver) -> None:
    goldnode("events", "deliver")
    goldnode(*FREEZE)
    receiver.statuses = [500]
    (row,) = goldnode("events", "deliver", status=1)["hooks"]
    assert row["waiting"] == 1
    assert "answered 500" in row["error"]
    (row,) = goldnode("events", "status", status=1)["hooks"]
    assert (row["kind"], row["failures"], row["delivered"]) == ("webhook", 1, None)
    assert row["again"]
    metrics = CliRunner().invoke(
        main, ["events", "status", "--format", "prometheus", "--out", "hooks.prom"]
    )
    assert (metrics.exit_code, metrics.output) == (1, "")
    lines = (here / "hooks.prom").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'goldnode_hook_waiting{hook="chat"} 1',
        'goldnode_hook_failures{hook="chat"} 1',
    ]
    text = CliRunner().invoke(main, ["events", "status"])
    assert text.exit_code == 1
    assert "answered 500: text; again at 2" in text.output
    assert goldnode("events", "skip", "chat")["skipped"] == 1
    assert goldnode("events", "status")["hooks"][0]["waiting"] == 0
    assert goldnode("events", "deliver")["hooks"][0]["error"] is None
    assert len(receiver.events) == 1, "what was skipped is not delivered"


def test_a_test_event_reaches_one_hook(here: Path, receiver: Receiver) -> None:
    found = goldnode("events", "test", "chat")
    assert [(one["id"], one["kind"], one["source"]) for one in receiver.events] == [
        (found["id"], "hook.test", "test")
    ]
    receiver.statuses = [403]
    done = CliRunner().invoke(main, ["events", "test", "chat"])
    assert (done.exit_code, "answered 403" in done.output) == (2, True)
    done = CliRunner().invoke(main, ["events", "test", "chad"])
    assert done.exit_code == 2
    assert 'Use "chat"' in done.output


def test_an_ingest_delivers_the_events_of_nodes(here: Path, receiver: Receiver) -> None:
    capture = fleet_reports.capture()
    put(here / "data", "n1", {"capture": capture, "verdict": fleet_reports.verdict(capture)})
    goldnode("fleet", "ingest", "--data", str(here / "data"))
    assert [(one["kind"], one["node"]) for one in receiver.events] == [("node.verdict", "n1")]
    older = fleet_reports.write(here / "old", fleet_reports.capture("n2"), verdicts=True)
    goldnode("fleet", "ingest", "--backfill", str(older), "--data", str(here / "data"))
    assert len(receiver.events) == 1, "a backfill is of the past"


def test_a_receiver_that_is_away_does_not_fail_an_ingest(here: Path, receiver: Receiver) -> None:
    receiver.statuses = [500]
    capture = fleet_reports.capture()
    put(here / "data", "n1", {"capture": capture, "verdict": fleet_reports.verdict(capture)})
    assert goldnode("fleet", "ingest", "--data", str(here / "data"))["stored"] == 1
    assert goldnode("events", "status", status=1)["hooks"][0]["waiting"] == 1


def test_without_hooks_nothing_is_written(here: Path) -> None:
    site(here)
    put(here / "data", "n1", {"capture": fleet_reports.capture()})
    goldnode("fleet", "ingest", "--data", str(here / "data"))
    assert goldnode("events", "list")["events"] == []
    assert not (here / "events.db").exists()
    for words in (("deliver",), ("status",), ("test", "chat"), ("skip", "chat")):
        done = CliRunner().invoke(main, ["events", *words])
        assert done.exit_code == 2
        assert "has no hooks" in done.output


def started(*words: str) -> subprocess.Popen[str]:
    """Start `goldnode events deliver` in a process of its own."""
    command = [sys.executable, "-m", "goldnode.cli", "events", "deliver", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_service_that_is_killed_after_a_delivery_repeats_it(
    here: Path, receiver: Receiver
) -> None:
    goldnode("events", "deliver")
    goldnode(*FREEZE)
    running: list[subprocess.Popen[str]] = []
    ready = threading.Event()

    def kill() -> None:
        """Kill the sender: the receiver has the event, and its answer does not reach the sender any more."""
        assert ready.wait(60)
        running[0].kill()

    receiver.before = kill
    service = started("--follow", "--every", "0.1")
    running.append(service)
    ready.set()
    assert service.wait(60) == -signal.SIGKILL
    assert [one["kind"] for one in receiver.events] == ["fleet.frozen"]
    receiver.before = lambda: None
    receiver.arrived.clear()
    again = started("--follow", "--every", "0.1")
    assert receiver.arrived.wait(60)
    again.terminate()
    output, errors = again.communicate(timeout=60)
    assert (again.returncode, errors) == (0, "")
    assert "chat: has all events" in output
    assert len(receiver.requests) == 2
    assert receiver.requests[0][2] == receiver.requests[1][2]


def test_a_rollout_delivers_its_log_in_order_while_it_runs(here: Path, receiver: Receiver) -> None:
    found = controlled(here, str(here / "fleet.db"), 6)
    store = found.store()
    delivered = assembly.of_hooks(load_site(), store)
    delivered.collect()  # the log is known from here on
    begun = store_log.newest(store)
    duties = ControllerDuties(
        store, found.settings.name, "c/1", events=BackgroundDelivery(delivered)
    )
    with monkeypatched_written(found, duties):
        report, _ = found.run()
    assert report.ended
    duties.close()
    wanted, _ = store_log.read(store, begun)
    assert [one["id"] for one in receiver.events] == [one.id for one in wanted]
    assert wanted[-1].details["phase"] == "completed"
    store.close()


@contextmanager
def monkeypatched_written(found: Any, duties: ControllerDuties) -> Iterator[None]:
    """Let the controllers of a rollout call these duties after each commit."""
    make = found.controller

    def controller(*words: Any, **given: Any) -> Any:
        made = make(*words, **given)
        made.parts = replace(made.parts, written=duties)
        return made

    found.controller = controller
    yield
    del found.controller


# The site file

WRONG = [
    ("chat: {}", 4, "has no receiver"),
    (
        "chat: {command: {run: [a]}, alertmanager: {url: 'http://a'}}",
        4,
        "has command and alertmanager",
    ),
    ("chat: {webhook: {url: 'http://a'}}", 4, 'key "events.hooks.chat.webhook.secret" is missing'),
    ("chat: {webhook: {url: 'http://a', secret: whsec_abc}}", 4, "expected the name of a file"),
    ("chat: {webhook: {url: 'http://u:p@a', secret: f}}", 4, "an address with a login"),
    ("chat: {webhook: {url: 'ftp://a', secret: f}}", 4, "expected text of the form"),
    ("chat: {command: {run: []}}", 4, "expected at least one entry"),
    ("chat: {command: {run: [a]}, kinds: [node.verdicts]}", 4, 'Use "node.verdict"'),
    ("chat: {command: {run: [a]}, severity: bad}", 4, 'expected "info" or "warning" or "critical"'),
    ("chat: {command: {run: [a]}, every: 3}", 4, 'unknown key "every"'),
    ("Chat room: {command: {run: [a]}}", 4, "Chat room"),
    ("chat: {alertmanager: {url: 'http://a', labels: {a-b: c}}}", 4, "a-b"),
]


@pytest.mark.parametrize(("text", "line", "message"), WRONG, ids=[row[0] for row in WRONG])
def test_a_hook_that_cannot_work_is_an_error_with_file_and_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    file = tmp_path / "site.yml"
    file.write_text(f"fleet: {{}}\nevents:\n  hooks:\n    {text}\n")
    with pytest.raises(SiteError) as caught:
        load_site(file)
    assert (caught.value.file, caught.value.line) == (str(file), line)
    assert message in str(caught.value)


def test_the_secret_is_in_no_output(here: Path, receiver: Receiver) -> None:
    secret(here, "whsec_nonsense")
    done = CliRunner().invoke(main, ["events", "test", "chat"])
    assert done.exit_code == 2
    assert "secret:1: this is no secret" in done.output
    assert "nonsense" not in done.output


# The page


def test_the_page_has_every_kind_and_every_alert() -> None:
    page = PAGE.read_text()
    for name, kind in event_kinds.KINDS.items():
        details = ", ".join(f"`{one}`" for one in kind.details) or "\N{EN DASH}"
        assert f"| `{name}` | {kind.when} | {details} |" in page
    for name, (kind_name, ends) in alerts.NAMES.items():
        assert f"| `{name}` | `{kind_name}` | {ends} |" in page
