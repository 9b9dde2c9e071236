"""`goldnode game-day`: the node that is chosen, what is refused, and the witnesses outside of the node."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.fleet.nodes.test_game_day import Clock, Played
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.store.fleets import fill

from goldnode.cli import main
from goldnode.commands.canary import run as canary_run
from goldnode.fleet.control import requirements
from goldnode.fleet.events import hooks
from goldnode.fleet.nodes import game_day, reach
from goldnode.fleet.nodes.game_day_faults import BY_NAME, FAULTS, alerts_of
from goldnode.fleet.rollout.queue import QueuedWork, WorkNeed
from goldnode.fleet.store import queue, schema
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """The node n00 of class c, which ssh reaches by its name."""
    monkeypatch.chdir(tmp_path)
    machine = Played(BY_NAME["hold"], name="n00")
    monkeypatch.setattr(reach, "node", lambda name, inventory, become: machine)
    clocked = partial(game_day.GameDay, clock=Clock().clock())
    monkeypatch.setattr(game_day, "GameDay", clocked)
    return machine


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["game-day", "c", *words])


HOLD = ("--node", "n00", "--fault", "hold")


def test_without_a_fault_the_faults_are_listed(played: Played) -> None:
    rows = json.loads(run("--node", "n00", "--format", "json").output)["faults"]
    assert [row["fault"] for row in rows] == list(BY_NAME)
    assert {row["obstacle"] for row in rows} == {None}
    assert played.steps == ["survey"]


def test_without_apply_nothing_is_done(played: Played) -> None:
    result = run(*HOLD)
    assert result.exit_code == 0, result.output
    for text in (
        "apt-mark unhold b",
        "apt-mark hold b",
        "harmless: ",
        "nothing was done; add --apply",
    ):
        assert text in result.output
    assert played.steps == ["survey"]
    assert not Path(".goldnode").exists()


def test_a_game_day_is_recorded_below_the_site(played: Played) -> None:
    result = run(*HOLD, "--apply")
    assert result.exit_code == 0, result.output
    (record,) = Path(".goldnode/game-days").iterdir()
    assert json.loads(record.read_text())["state"] == "ended"
    assert record.name in result.output
    assert run("--node", "n00", "--end").output == "n00 has no game day any more\n"


def test_fault_that_is_not_seen_is_exit_status_1(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.sees = False
    result = run(*HOLD, "--apply", "--within", "60")
    assert result.exit_code == 1, result.output
    assert "check        not seen within" in result.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "Give --node NODE"),
        (("--node", "n00", "--rollout", "README.md"), "Give --node NODE"),
        (("--rollout", "README.md"), "--rollout needs the inventory"),
        (("--node", "n00", "--fault", "holds"), "fault holds is not known"),
    ],
)
def test_wrong_words_are_refused(played: Played, words: Sequence[str], text: str) -> None:
    Path("README.md").write_text("")
    result = run(*words)
    assert result.exit_code == 2
    assert text in result.output


def test_a_host_of_another_class_is_refused(played: Played) -> None:
    Path("hosts.yml").write_text(
        "all: {children: {c: {hosts: {n01: {}}}, d: {hosts: {n00: {}}}}}\n"
    )
    result = run("-i", "hosts.yml", *HOLD)
    assert result.exit_code == 2
    assert "the inventory has no host n00 of class c" in result.output


def test_the_first_free_canary_of_a_rollout_is_taken(
    played: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reach, "reached", lambda name, *_: played)
    busy = {"n01": "slurm shows work on n01", "n00": ""}
    monkeypatch.setattr(canary_run, "busy_by_scheduler", lambda name, _: lambda: busy[name])
    Path("hosts.yml").write_text("all: {children: {c: {hosts: {n00: {}, n01: {}}}}}\n")
    named = documents.TEXT.replace("class: l4", "class: c")
    words = ("-i", "hosts.yml", "--rollout", "r.yml", "--fault", "hold")
    Path("r.yml").write_text(named)
    assert "wave canary names no hosts" in run(*words).output
    Path("r.yml").write_text(named.replace("nodes: 2, spread: leaf", "hosts: [n01, n00]"))
    result = run(*words)
    assert (result.exit_code, result.output[:30]) == (0, "n00 would have the fault hold: "[:30])
    busy["n00"] = "slurm shows work on n00"
    result = run(*words)
    assert result.exit_code == 2
    assert "no canary is free: n01: slurm shows work on n01" in result.output
    Path("r.yml").write_text(documents.TEXT)
    assert "the document is of class l4, and not of c" in run(*words).output


@pytest.fixture
def store(played: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StoreDatabase:
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(tmp_path / "fleet.db"))
    database = StoreDatabase(str(tmp_path / "fleet.db"))
    database.run(schema.migrate)
    fill(database, 4, FleetLimits("1", "2", "3"))
    return database


def test_a_node_that_others_wait_for_is_refused(played: Played, store: StoreDatabase) -> None:
    assert run(*HOLD).exit_code == 0, "a store alone refuses nothing"
    asked = queue.NodeAsk(
        QueuedWork.DISK_UPDATE,
        "a test",
        "ann@desk",
        queue.process(),
        "n00",
        needs=(WorkNeed.DRAIN,),
    )
    store.run(lambda connection: queue.ask(connection, asked, 1e9))
    result = run(*HOLD, "--apply")
    assert result.exit_code == 2
    assert "n00: ann@desk has asked for it (disk-update)" in result.output
    assert played.steps.count("arm") == 0


# -- witnesses


def series(**labels: str) -> Any:
    return SimpleNamespace(
        labels={
            "alertname": "GoldnodeFinding",
            "instance": "n00:9478",
            "alertstate": "firing",
            **labels,
        }
    )


ALERTS: list[tuple[list[Any], list[Any], str]] = [
    ([], [series(id="stack.holds")], "seen"),
    ([], [series(alertname="GoldnodeDegraded")], "seen"),
    ([series(id="stack.holds")], [series(id="stack.holds")], "not_seen"),  # it fired before
    ([series(id="stack.holds", alertstate="pending")], [series(id="stack.holds")], "not_seen"),
    ([], [series(id="stack.holds", alertstate="pending")], "not_seen"),  # it may never fire
    ([], [series(alertname="GoldnodeCouldNotCheck")], "not_seen"),  # no effect of this fault
    ([], [series(id="gpu.lost")], "not_seen"),  # of another finding
    ([], [series(id="stack.holds", instance="n01:9478")], "not_seen"),  # of another node
]


@pytest.mark.parametrize(("before", "after", "outcome"), ALERTS)
def test_only_a_new_alert_of_the_node_counts(
    played: Played,
    monkeypatch: pytest.MonkeyPatch,
    before: list[Any],
    after: list[Any],
    outcome: str,
) -> None:
    asked: list[str] = []

    def query(sources: requirements.RequirementSources, text: str) -> list[Any]:
        asked.append(str(sources.prometheus))
        return before if len(asked) == 1 else after

    monkeypatch.setattr(requirements, "query", query)
    result = run(
        *HOLD, "--apply", "--within", "60", "--prometheus", "http://p:9090/", "--format", "json"
    )
    rows = {row["witness"]: row for row in json.loads(result.stdout)["sightings"]}
    assert rows["alert"]["outcome"] == outcome, rows
    assert set(asked) == {"http://p:9090"}
    assert result.exit_code == int(outcome != "seen")


ARRIVED: list[tuple[list[Any], list[Any], str]] = [
    ([], [series(id="stack.holds")], "seen"),
    ([series(id="stack.holds")], [series(id="stack.holds")], "not_seen"),
    ([], [series(id="gpu.lost")], "not_seen"),
    ([], [series(id="stack.holds", instance="n01:9478")], "not_seen"),
]


@pytest.mark.parametrize(("before", "after", "outcome"), ARRIVED)
def test_only_a_new_alert_of_the_node_at_the_alertmanager_counts(
    played: Played,
    monkeypatch: pytest.MonkeyPatch,
    before: list[Any],
    after: list[Any],
    outcome: str,
) -> None:
    asked: list[str] = []

    def answer(hook: Any, method: str, path: str, resolve: Any) -> str:
        asked.append(f"{method} {hook.url} {path}")
        return json.dumps([vars(row) for row in (before if len(asked) == 1 else after)])

    monkeypatch.setattr(hooks, "alertmanager", answer)
    words = ("--apply", "--within", "60", "--alertmanager", "http://a:9093", "--format", "json")
    result = run(*HOLD, *words)
    rows = {row["witness"]: row for row in json.loads(result.stdout)["sightings"]}
    assert rows["alertmanager"]["outcome"] == outcome, rows
    assert set(asked) == {"GET http://a:9093 alerts?active=true&silenced=false&inhibited=false"}


def test_an_alertmanager_that_does_not_answer_ends_it_before_it_begins(played: Played) -> None:
    result = run(*HOLD, "--apply", "--alertmanager", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "arm" not in played.steps


def test_node_with_a_scheduler_is_held_and_shown_so(
    played: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(
        json.dumps({"c": {"hosts": {"n00": {"goldnode_drain": "slurm", "ansible_host": "n00"}}}})
    )
    monkeypatch.setattr(reach, "reached", lambda name, variables, become: played)
    monkeypatch.setattr(canary_run, "busy_by_scheduler", lambda node, variables: None)
    text = run("-i", str(hosts), *HOLD).output
    assert "service:  slurm gives it no work until the end" in text
    assert "service:  no scheduler holds it" in run(*HOLD).output


def test_a_prometheus_that_does_not_answer_ends_it_before_it_begins(played: Played) -> None:
    result = run(*HOLD, "--apply", "--prometheus", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "Prometheus cannot be asked" in result.output
    assert "arm" not in played.steps


def test_alert_and_captures_that_are_not_asked_have_a_reason(played: Played) -> None:
    text = run(*HOLD).output
    assert "neither --prometheus nor fleet.prometheus of the site file is given" in text
    assert "not asked: --skip report" in run(*HOLD, "--skip", "report").output


def test_alerts_that_are_waited_for_are_rules_of_the_integration() -> None:
    rules = Path(__file__).parents[3] / "integrations/prometheus/goldnode.rules.yml"
    known = set(re.findall(r"- alert: (\w+)", rules.read_text(encoding="utf-8")))
    for fault in FAULTS:
        assert alerts_of(fault) <= known, fault.name
