"""A check in two steps, as the units run it: `check --defer` judges, and `act` does what follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.program.test_judging import DOCUMENT, checked
from tests.unit.node.program.test_judging import host as host

from goldnode.node.gate import gate
from goldnode.node.ground import gate_files, verdict_files
from goldnode.node.ground.host import Host
from goldnode.node.probe import CAPTURE
from goldnode.node.program import act_command, main
from goldnode.node.serve import publish
from goldnode.node.state import applied
from goldnode.node.verdict import check as checking
from goldnode.node.verdict import deltas

MEMORY: Any = {"schema": deltas.SCHEMA, "counters": {}, "absence": {"boot": "b", "last": 1.0}}
# What only `act` may write: it decides about the work on the node, or lies outside of the sandbox.
LATER = (gate_files.STATE, gate_files.PASS, gate_files.RECORD, gate_files.MODE, publish.METRICS)


class Options:
    """Options of a check as the unit starts it."""

    command, document, root, record, format = "check", verdict_files.CLASS, "/", None, "text"
    quiet, no_write, no_gate, passive, cached, defer = True, False, False, True, False, True


@pytest.fixture
def found(host: Host, monkeypatch: pytest.MonkeyPatch) -> checking.Checked:
    """What the check finds on the node."""
    one = checked(host)._replace(memory=MEMORY)
    one.verdict["findings"] = [
        {"id": "a", "outcome": "match", "severity": "drain", "got": "x", "expected": "x"}
    ]
    monkeypatch.setattr(checking, "examine", lambda *_, **__: one)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    # The test's files are not root's.
    monkeypatch.setattr("goldnode.node.state.owners.believe", lambda *_: None)
    monkeypatch.setattr(main, "managed", lambda _: True)
    monkeypatch.setattr(main, "read_document", lambda *_: DOCUMENT)
    return one


def record(monkeypatch: pytest.MonkeyPatch, given: list[Any]) -> None:
    """Put what the gate is given into a list."""

    def act(*all_given: Any) -> list[str]:
        given.append(all_given)
        return []

    monkeypatch.setattr(gate, "act", act)


def state(host: Host) -> dict[str, Any]:
    """The gate as it is shown, without its times."""
    shown: dict[str, Any] = json.loads(host.text(gate_files.STATE) or "{}")
    return {key: value for key, value in shown.items() if key != "since"}


def test_a_deferred_check_judges_and_does_nothing_else(
    host: Host, found: checking.Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    good: list[bool] = []
    monkeypatch.setattr(applied, "mark", lambda *_, **given: good.append(given["good"]))
    assert main.run_check(host, Options()) == 0
    assert json.loads(host.text(verdict_files.VERDICT) or "")["status"] == "healthy"
    assert host.exists(CAPTURE)
    assert host.exists(deltas.MEMORY)
    assert [path for path in LATER if host.exists(path)] == []
    assert good == []


def test_act_does_what_a_whole_check_does(
    host: Host, found: checking.Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    good: list[bool] = []
    monkeypatch.setattr(applied, "mark", lambda *_, **given: good.append(given["good"]))
    whole = Options()
    whole.defer = False
    assert main.run_check(host, whole) == 0
    before, metrics = state(host), host.text(publish.METRICS)
    assert good == [True]
    for path in LATER:
        host.remove(path)
    main.run_check(host, Options())
    assert act_command.run(host, Options()) == 0
    assert state(host) == before
    assert host.text(publish.METRICS) == metrics
    assert host.exists(gate_files.PASS)
    assert good == [True, True]


def test_act_gives_the_gate_capture_and_absence(
    host: Host, found: checking.Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    record(monkeypatch, given)
    main.run_check(host, Options())
    act_command.run(host, Options())
    ((_, document, verdict, evidence, published),) = given
    assert (document, verdict["status"], published) == (DOCUMENT, "healthy", True)
    assert evidence.capture == json.loads(json.dumps(found.capture))
    assert evidence.memory["absence"] == MEMORY["absence"]


@pytest.mark.parametrize("left", [None, "{", '"text"', '{"schema": "other"}'])
def test_without_a_whole_verdict_the_gate_opens_nothing(
    host: Host, found: checking.Checked, monkeypatch: pytest.MonkeyPatch, left: str | None
) -> None:
    monkeypatch.setattr(main, "read_document", lambda *_: {**DOCUMENT, "gate": "block"})
    main.run_check(host, Options())
    act_command.run(host, Options())
    assert host.exists(gate_files.PASS)
    host.remove(verdict_files.VERDICT)
    if left is not None:
        host.write(verdict_files.VERDICT, left.encode())
    act_command.run(host, Options())
    assert not host.exists(gate_files.PASS)


def test_a_state_that_could_not_be_stored_is_no_evidence(
    host: Host, found: checking.Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture of an earlier check must not be taken for that of this one."""
    main.run_check(host, Options())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    given: list[Any] = []
    monkeypatch.setattr(checking, "keep", full)
    record(monkeypatch, given)
    assert main.run_check(host, Options()) == 3
    act_command.run(host, Options())
    assert given[0][3] is None


def test_the_sandbox_shows_the_mounts_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from goldnode.node.ground.host import mount_lines

    host = Host(str(tmp_path))
    host.write("/proc/self/mountinfo", b"own\n")
    host.write("/proc/1/mountinfo", b"machine\n")
    monkeypatch.delenv("INVOCATION_ID", raising=False)
    assert mount_lines(host) == ["own"]
    monkeypatch.setenv("INVOCATION_ID", "0" * 32)
    assert mount_lines(host) == ["machine"]
    host.remove("/proc/1/mountinfo")
    assert mount_lines(host) == ["own"]
