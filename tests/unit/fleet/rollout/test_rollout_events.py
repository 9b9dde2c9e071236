"""Events of a rollout for alerting: each line of the log is one JSON object with a sentence and a severity."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from sqlalchemy import text
from tests.unit.fleet.control.controlled import START, controlled
from tests.unit.fleet.rollout import documents

from goldnode.cli import main
from goldnode.commands.schema.kinds import schema
from goldnode.fleet.rollout import lines, model
from goldnode.fleet.store import orders
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.orders import Scope


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> str:
    """A store with a rollout that was stopped and rolled back."""
    directory = tmp_path_factory.mktemp("events")
    path = str(shutil.copy(migrated, directory / "fleet.db"))
    found = controlled(
        directory, path, 12, **dict.fromkeys((f"n{number:02}" for number in range(12)), "module")
    )
    found.run(20)
    return path


def goldnode(where: str, *words: str) -> str:
    done = CliRunner().invoke(main, ["rollout", *words, "--fleet-store", where])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_events_are_json_lines_of_the_schema(where: str) -> None:
    events = [json.loads(line) for line in goldnode(where, "events").splitlines()]
    for event in events:
        jsonschema.validate(event, schema("rollout-event"))
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    critical = [
        (event["event"], event["text"]) for event in events if event["severity"] == "critical"
    ]
    cause = "module nvidia does not build: on 2 nodes of the first two waves"
    assert critical == [
        ("ChangePhase", f"the rollout rolls back (wave): {cause}"),
        ("Alarm", f"alarm stopped: {cause}"),
    ]
    failed = [
        event["node"]
        for event in events
        if event["event"] == "Finish" and event["severity"] == "warning"
    ]
    assert failed == ["n06", "n07"]
    last = events[-1]["seq"]
    assert goldnode(where, "events", "r1", "--after", str(last)) == ""
    assert json.loads(goldnode(where, "events", "r1", "--after", str(last - 1)))["seq"] == last


def test_log_has_a_sentence_a_line(where: str) -> None:
    log = goldnode(where, "log")
    assert "the rollout was submitted" in log
    assert "wave 1 begins with 2 nodes: n06, n07" in log
    found = json.loads(goldnode(where, "log", "--format", "json", "--lines", "3"))
    assert (found["schema"], found["rollout"], len(found["lines"])) == (
        "goldnode.rollout-log/1",
        "r1",
        3,
    )
    assert all("n07" in line for line in goldnode(where, "log", "--node", "n07").splitlines())


def test_status_and_explain_from_the_command_line(where: str, tmp_path: Path) -> None:
    found = json.loads(goldnode(where, "status", "--format", "json"))
    jsonschema.validate(found, schema("rollout-status"))
    assert (found["phase"], found["simulated"]) == ("rolled-back", False)
    page = tmp_path / "status.html"
    goldnode(where, "status", "r1", "--html", str(page))
    assert "rolled-back" in page.read_text(encoding="utf-8")
    node = json.loads(goldnode(where, "explain", "n07", "--format", "json"))
    assert (node["state"], node["wave"]) == ("back-done", "canary")
    assert "in its earlier state" in goldnode(where, "explain", "n07")
    for words, message in (
        (("explain", "n99"), 'has no node "n99"'),
        (("status", "r9"), 'no rollout "r9"'),
        (("status", "--watch"), "needs a terminal"),
        (("status", "--html", "x", "--watch"), "give no --html"),
        (("approve", "r1", "first", "--role", "oncall", "--reason", "x"), "asks for no approval"),
    ):
        done = CliRunner().invoke(main, ["rollout", *words, "--fleet-store", where])
        assert done.exit_code == 2, done.output
        assert message in done.output.replace("\n", " ")


def test_orders_from_the_command_line_name_the_person(tmp_path: Path, where: str) -> None:
    own = str(shutil.copy(where, tmp_path / "own.db"))
    reason = ("--reason", "the driver was fixed")
    goldnode(own, "lift", documents.NEW, "--class", "l4", *reason)
    goldnode(own, "rollback", "r1", "--what", "all", *reason)
    goldnode(own, "freeze", "--rollout", "r1", *reason)
    goldnode(own, "unfreeze", "--rollout", "r1", *reason)
    events: list[dict[str, Any]] = [
        json.loads(line) for line in goldnode(own, "events").splitlines()
    ]
    orders = [event for event in events if event["details"].get("reason") == "the driver was fixed"]
    assert [event["event"] for event in orders] == [
        "LiftDenial",
        "Deny",
        "ChangePhase",
        "Freeze",
        "Thaw",
    ]
    assert all("@" in event["who"] for event in orders)


def test_each_action_has_a_sentence(where: str) -> None:
    assert set(model.ACTIONS) <= set(lines.SENTENCES)
    store = StoreDatabase(where)
    row = {"seq": 1, "at": 0.0, "who": "x", "rollout": None, "epoch": None}
    assert lines.sentence({**row, "action": "New", "subject": "n00", "content": {}}) == "New n00"
    store.close()


def test_follower_waits_for_events_after_the_last_one(tmp_path: Path, where: str) -> None:
    own = str(shutil.copy(where, tmp_path / "own.db"))
    last = json.loads(goldnode(own, "events").splitlines()[-1])["seq"]
    words = [
        "rollout",
        "events",
        "--follow",
        "--every",
        "0.1",
        "--after",
        str(last),
        "--fleet-store",
        own,
    ]
    program = [sys.executable, "-c", "from goldnode.cli import main; main()"]
    with subprocess.Popen([*program, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            store = StoreDatabase(own)
            order = PersonsOrder("bob@m", START, "cable work")
            store.run(lambda c: orders.freeze(c, Scope(), order))
            store.close()
            assert process.stdout is not None
            event = json.loads(process.stdout.readline())
        finally:
            process.kill()
    assert (event["seq"], event["text"], event["who"]) == (
        last + 1,
        "all is frozen: cable work",
        "bob@m",
    )


def test_class_with_simulated_hardware_is_labelled(tmp_path: Path, where: str) -> None:
    own = str(shutil.copy(where, tmp_path / "own.db"))
    store = StoreDatabase(own)
    with store.write() as connection:
        connection.execute(text("UPDATE node SET class = 'demo_a100'"))
        connection.execute(
            text(
                "UPDATE rollout SET class = 'demo_a100', document = replace(document, 'class: l4', 'class: demo_a100')"
            )
        )
    store.close()
    for words in (("status",), ("explain", "n07"), ("log",)):
        assert goldnode(own, *words).startswith(
            "SIMULATED: the class declares simulated hardware\n"
        )
        assert json.loads(goldnode(own, *words, "--format", "json"))["simulated"] is True
    goldnode(own, "status", "--html", str(tmp_path / "page.html"))
    assert "<b>Simulated.</b>" in (tmp_path / "page.html").read_text(encoding="utf-8")
