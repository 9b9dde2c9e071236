"""report.yml, and the reports that site.yml fetches: into the inbox on the controller, in the one execution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible import constants
from tests import documents
from tests.unit.fleet.ingest.fleet_reports import CLASS, NOW, capture, verdict

from goldnode.ansible.action import goldnode_state
from goldnode.core.program_file import payload
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.read import connect

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
HERE = {"ansible_connection": "local"}
THERE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a node's report is root's")


@as_root
def test_report_yml_fetches_a_capture_and_changes_nothing(tmp_path: Path) -> None:
    """A machine without a class: it is captured, and has no verdict. Another host is away."""
    hosts = {"rack1-here": {**HERE, "goldnode_cohort": "ring0"}, "away": THERE}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}), encoding="utf-8")
    stored = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GOLDNODE_", "ANSIBLE_"))
    }
    done = subprocess.run(
        [
            str(BIN / "ansible-playbook"),
            "-i",
            str(tmp_path / "hosts.yml"),
            str(ROOT / "report.yml"),
        ],
        cwd=ROOT,
        env={
            **stored,
            "PATH": f"{BIN}:{stored['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "GOLDNODE_FLEET_DATA": str(tmp_path / "data"),
            "GOLDNODE_RUNS": str(tmp_path / "runs"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "goldnode: 1 reports fetched. Next: `goldnode fleet ingest`" in done.stdout
    assert "not reached" not in done.stdout
    assert not (tmp_path / "runs").exists(), "no record: nothing was changed"
    (fetched,) = (tmp_path / "data/inbox").iterdir()
    documents.valid(fetched.read_text(encoding="utf-8"))
    result = ingest(IngestRequest(tmp_path / "data"))
    assert (result.stored, result.refused) == (1, [])
    found = connect(tmp_path / "data").execute(
        "SELECT node, cohort, class, status, source, engine FROM nodes"
    )
    assert found.fetchall() == [
        ("rack1-here", "ring0", "_none", None, "ansible", payload(content=False)["sha256"])
    ]


@pytest.fixture
def action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> goldnode_state.ActionModule:
    """The action plugin without a task, with a directory of the fleet's data."""
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setenv("GOLDNODE_FLEET_DATA", str(tmp_path / "data"))
    found = goldnode_state.ActionModule.__new__(goldnode_state.ActionModule)
    shown: list[str] = []
    found._display = SimpleNamespace(
        display=lambda text, **_: shown.append(text),
        vvv=lambda text, **_: shown.append(text),
        shown=shown,
    )
    found._templar = SimpleNamespace(template=lambda value: value)
    found._connection, found._task = None, SimpleNamespace(_uuid="task")
    return found


VARS = {"inventory_hostname": "n1", "goldnode_cohort": "ring0"}
PLAN = {"class_digest": "d"}


def answered(
    action: goldnode_state.ActionModule, monkeypatch: pytest.MonkeyPatch, stdout: str
) -> list[str]:
    """Let the node answer a plan with `stdout`; return the commands that it got."""
    commands: list[str] = []

    def execute(command: str) -> dict[str, Any]:
        commands.append(command)
        return {"rc": 0, "stdout": stdout}

    monkeypatch.setattr(action, "_low_level_execute_command", execute)
    monkeypatch.setattr(goldnode_state, "read_plan", lambda text, _: json.loads(text))
    monkeypatch.setattr(goldnode_state, "class_file", lambda _: SimpleNamespace(content=""))
    return commands


def report() -> dict[str, Any]:
    found = capture("other-name")
    return {
        "schema": "goldnode.node-report/1",
        "node": "other-name",
        "class": CLASS,
        "capture": found,
        "verdict": verdict(found),
    }


def test_a_plan_and_a_report_come_in_one_execution(
    action: goldnode_state.ActionModule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = answered(action, monkeypatch, f"{json.dumps(PLAN)}\n{json.dumps(report())}\n")
    assert action.resident({"digest": "d"}, VARS) == PLAN
    assert len(commands) == 1
    assert "--report last" in commands[0]
    assert ingest(IngestRequest(tmp_path / "data", received=NOW), NOW).stored == 1
    found = connect(tmp_path / "data").execute("SELECT node, cohort, status FROM nodes").fetchall()
    assert found == [("n1", "ring0", "degraded")], "the inventory names the node"


@pytest.mark.parametrize("second", ["", "null\n", "{cut", "[]\n", "[" * 100_000])
def test_a_plan_counts_without_a_usable_report(
    action: goldnode_state.ActionModule,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    second: str,
) -> None:
    answered(action, monkeypatch, f"{json.dumps(PLAN)}\n{second}")
    assert action.resident({"digest": "d"}, VARS) == PLAN
    assert not (tmp_path / "data").exists()


def test_without_a_directory_of_data_no_report_is_fetched(
    action: goldnode_state.ActionModule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GOLDNODE_FLEET_DATA")
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    (tmp_path / "site.yml").write_text("{}", encoding="utf-8")
    commands = answered(action, monkeypatch, f"{json.dumps(PLAN)}\n{json.dumps(report())}\n")
    assert action.resident({"digest": "d"}, VARS) == PLAN
    assert "--report" not in commands[0]
    assert not (tmp_path / "data").exists()


def test_a_report_that_cannot_be_stored_is_a_warning(
    action: goldnode_state.ActionModule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("a file", encoding="utf-8")
    answered(action, monkeypatch, f"{json.dumps(PLAN)}\n{json.dumps(report())}\n")
    assert action.resident({"digest": "d"}, VARS) == PLAN
    assert "the report of n1 cannot be stored" in "".join(action._display.shown)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_fresh_report_is_asked_for(
    action: goldnode_state.ActionModule, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    commands = answered(action, monkeypatch, f"{json.dumps(report())}\n")
    assert not action.report(VARS, fresh=fresh)["failed"]
    assert ("--fresh" in commands[0]) == fresh
