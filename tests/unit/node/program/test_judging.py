"""After a change, verdict, capture, gate and metrics are of the node as it is now; a report is of the last check."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.node.captures import healthy

from goldnode.documents.node_report import NodeReportGate
from goldnode.node.gate import gate
from goldnode.node.ground import boot, gate_files, verdict_files
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.probe import CAPTURE
from goldnode.node.program import ack_command, judging, remote, reporting, resident, watch
from goldnode.node.program import main as program
from goldnode.node.serve import publish
from goldnode.node.state import reapply
from goldnode.node.state.domains.program import CLASS, document_digest
from goldnode.node.state.names import digest
from goldnode.node.verdict import check as checking
from goldnode.node.verdict import current, deltas

BOOT = "11111111-2222-3333-4444-555555555555"
DOCUMENT: Any = {
    "schema": "goldnode.class/1",
    "class": "h100",
    "digest": "sha256:c",
    "simulated": False,
}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(str(tmp_path))
    found.live = True  # a node in a directory that counts as the live machine
    found.write("/proc/uptime", b"1000.00 5.0\n")
    found.write("/proc/sys/kernel/random/boot_id", BOOT.encode())
    found.write("/proc/1/stat", b"1 (systemd) S " + b"0 " * 18 + b"7 " + b"0 " * 20)
    found.write(CLASS, json.dumps(DOCUMENT).encode())
    return found


def checked(host: Host, driver: str = "580", code: int = 0) -> checking.Checked:
    """A check that finds this driver."""
    capture: dict[str, Any] = healthy()
    identity = boot.identity(BOOT, host.text("/proc/1/stat") or "")
    capture["identity"] |= {"boot_identity": identity}
    capture["driver"]["loaded"] = driver
    verdict = {
        "schema": current.SCHEMA,
        "class": "h100",
        "class_digest": DOCUMENT["digest"],
        "lock_digest": "sha256:l",
        "status": checking.STATUS[code],
        "exit_code": code,
        "counts": dict.fromkeys(checking.OUTCOMES, 0),
        "findings": [],
        "simulated": False,
        "passive": False,
        "boot_identity": identity,
        "uptime": 990.0,
        "time": "2026-11-26T10:00:00Z",
    }
    return checking.Checked(verdict, capture, None, None)


@pytest.fixture
def examined(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[checking.Checked]:
    """What the next checks find; the last one again and again."""
    found = [checked(host)]
    monkeypatch.setattr(
        checking, "examine", lambda *_, **__: found.pop(0) if len(found) > 1 else found[0]
    )
    monkeypatch.setattr(gate, "act", lambda *_: ["gate acted"])
    return found


def metrics(host: Host) -> str:
    return host.text(publish.METRICS) or ""


def test_a_change_rewrites_verdict_capture_metrics_and_condition(
    host: Host, examined: list[checking.Checked]
) -> None:
    assert not metrics(host), "a fresh node"
    _, messages = judging.judge(host, DOCUMENT, act=True)
    assert messages == ["gate acted"]
    assert 'driver="580"' in metrics(host)
    examined[:] = [checked(host, "570", code=2)]
    judging.judge(host, DOCUMENT, act=True)
    assert 'driver="570"' in metrics(host)
    assert json.loads(host.text(verdict_files.VERDICT) or "")["status"] == "drain"
    assert (host.text(verdict_files.STATUS) or "").split()[1] == "2", (
        "the file that the condition of Kubernetes is read from"
    )
    assert json.loads(host.text(CAPTURE) or "")["driver"]["loaded"] == "570"


def test_in_the_middle_of_a_run_the_gate_does_not_act(
    host: Host, examined: list[checking.Checked]
) -> None:
    assert judging.judge(host, DOCUMENT, act=False)[1] == []
    assert metrics(host)


@pytest.mark.parametrize("left", [[], ["an action"]])
def test_an_apply_of_a_controller_ends_with_metrics_and_a_report(
    host: Host, examined: list[checking.Checked], monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    from goldnode.node.state import applied, apply

    class After:
        actions = left

        def to_json(self) -> dict[str, Any]:
            return {}

    good: list[bool] = []
    monkeypatch.setattr(apply, "apply", lambda *_, **__: ([{"changed": True}], None, After()))
    monkeypatch.setattr(applied, "mark", lambda *_, **given: good.append(given["good"]))
    monkeypatch.setattr(gate, "reasons", lambda *_: [])
    request = {
        "state": "present",
        "document": DOCUMENT,
        "part": "sanity",
        "lock_timeout": 1,
        "report": True,
    }
    answer = remote.applied(host, request, "sha256:e", None)
    assert 'driver="580"' in metrics(host), "a node has its metrics when the run ends"
    assert answer["verdict"]["status"] == "healthy"
    assert (good, "report" in answer, answer["gate"]) == (
        ([], False, []) if left else ([True], True, ["gate acted"])
    )
    if not left:
        assert answer["report"]["capture"]["driver"]["loaded"] == "580"
        assert answer["report"]["engine"] == "sha256:e"


def test_a_policy_that_changed_something_is_judged_at_once(
    host: Host, examined: list[checking.Checked], monkeypatch: pytest.MonkeyPatch
) -> None:
    judging.judge(host, DOCUMENT, act=True)
    examined[:] = [checked(host, "570")]

    class Change:
        def line(self) -> str:
            return "set a limit"

    class Options:
        verb, format, document, defer = "apply", "json", CLASS, False

    monkeypatch.setattr(program, "read_document", lambda *_: DOCUMENT)
    changes: list[Any] = []
    monkeypatch.setattr(reapply, "reapply", lambda *_: (changes, []))
    program.run_policy(host, Options())
    assert 'driver="580"' in metrics(host), "nothing changed"
    changes.append(Change())
    program.run_policy(host, Options())
    assert 'driver="570"' in metrics(host)


def test_the_unit_of_the_policy_leaves_the_new_verdict_to_the_check(
    host: Host, examined: list[checking.Checked], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Change:
        def line(self) -> str:
            return "set a limit"

    class Options:
        verb, format, document, defer = "apply", "json", CLASS, True

    started: list[str] = []
    monkeypatch.setattr(watch, "start", lambda: started.append("check"))
    monkeypatch.setattr(program, "read_document", lambda *_: DOCUMENT)
    monkeypatch.setattr(reapply, "reapply", lambda *_: ([Change()], []))
    program.run_policy(host, Options())
    assert started == [], "early in a boot the first check follows by itself"
    judging.judge(host, DOCUMENT, act=True)
    examined[:] = [checked(host, "570")]
    program.run_policy(host, Options())
    assert started == ["check"]
    assert 'driver="580"' in metrics(host)


@pytest.mark.parametrize(
    ("user", "driver"), [(0, "570"), (1000, "580")], ids=["root", "another user"]
)
def test_an_acknowledgement_is_judged_at_once(
    host: Host,
    examined: list[checking.Checked],
    monkeypatch: pytest.MonkeyPatch,
    user: int,
    driver: str,
) -> None:
    class Options:
        id, subject, by, reason, format = "*", None, "ann", "board replaced", "text"

    judging.judge(host, DOCUMENT, act=True)
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(deltas, "load", lambda *_: ({"acks": []}, None))
    examined[:] = [checked(host, "570")]
    assert ack_command.run(host, Options()) == 0
    assert f'driver="{driver}"' in metrics(host)


def test_without_a_verdict_of_this_boot_the_policy_leaves_the_first_check_to_its_unit(
    host: Host, examined: list[checking.Checked]
) -> None:
    assert judging.judge_again(host, DOCUMENT) == []
    assert not metrics(host)


def test_a_state_that_cannot_be_stored_is_not_healthy(
    host: Host, examined: list[checking.Checked], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checking, "keep", full)
    found, _ = judging.judge(host, DOCUMENT, act=True)
    assert found.verdict["status"] == "could_not_check"


# -- the report


def test_a_report_is_of_the_last_check_and_writes_nothing(
    host: Host, examined: list[checking.Checked]
) -> None:
    judging.judge(host, DOCUMENT, act=True)
    examined[:] = [checked(host, "570")]
    before = sorted(str(path) for path in Path(host.root).rglob("*"))
    found = reporting.report(host, "sha256:e")
    assert (found["capture"]["driver"]["loaded"], found["class"]) == ("580", "h100")
    assert found["verdict"] == json.loads(host.text(verdict_files.VERDICT) or "")
    assert sorted(str(path) for path in Path(host.root).rglob("*")) == before


@pytest.mark.parametrize("spoil", ["old", "boot", "class", "torn", "no capture"])
def test_an_old_check_is_no_report_and_the_node_is_checked_again(
    host: Host, examined: list[checking.Checked], spoil: str
) -> None:
    judging.judge(host, DOCUMENT, act=True)
    {
        "old": lambda: host.write("/proc/uptime", b"9000.00 5.0\n"),
        "boot": lambda: host.write("/proc/sys/kernel/random/boot_id", b"another"),
        "class": lambda: host.write(CLASS, json.dumps({**DOCUMENT, "digest": "sha256:d"}).encode()),
        "torn": lambda: host.write(CAPTURE, b'{"schema"'),
        "no capture": lambda: host.remove(CAPTURE),
    }[spoil]()
    examined[:] = [checked(host, "570")]
    assert reporting.recorded(host) is None
    assert reporting.report(host)["capture"]["driver"]["loaded"] == "570"


def test_recorded_report_is_that_of_the_last_check_or_an_error(
    host: Host, examined: list[checking.Checked], capsys: pytest.CaptureFixture[str]
) -> None:
    options = SimpleNamespace(recorded=True, fresh=False, to=None)
    with pytest.raises(NodeError, match="there is no report of a check that holds: there is no"):
        reporting.run(host, options)
    judging.judge(host, DOCUMENT, act=True)
    examined[:] = [checked(host, "570")]
    assert reporting.run(host, options) == 0
    assert json.loads(capsys.readouterr().out)["capture"]["driver"]["loaded"] == "580"
    host.write("/proc/uptime", b"9000.00 5.0\n")
    with pytest.raises(NodeError, match=r"s old.*Run `goldnode-node check` first"):
        reporting.run(host, options)
    host.remove(CAPTURE)
    with pytest.raises(NodeError, match="Give one of them"):
        reporting.run(host, SimpleNamespace(recorded=True, fresh=True, to=None))


def test_a_fresh_report_shows_what_changed_since_the_last_check(
    host: Host, examined: list[checking.Checked]
) -> None:
    judging.judge(host, DOCUMENT, act=True)
    examined[:] = [checked(host, "570")]
    assert reporting.report(host)["capture"]["driver"]["loaded"] == "580"
    assert reporting.report(host, fresh=True)["capture"]["driver"]["loaded"] == "570"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_resident_plan_brings_the_report_in_a_second_line(
    host: Host,
    examined: list[checking.Checked],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wanted: bool,
) -> None:
    class Planned:
        def to_json(self) -> dict[str, Any]:
            return {"schema": "goldnode.plan/1"}

    judging.judge(host, DOCUMENT, act=True)
    monkeypatch.setattr(resident, "plan", lambda *_, **__: Planned())
    words = ["--engine-digest", "sha256:e", "--class-digest", digest(host.data(CLASS) or b"")]
    words += ["--lock-timeout", "1", *(["--report", "last"] if wanted else [])]
    assert resident.answer(words, "sha256:e", host) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[0]) == {"schema": "goldnode.plan/1"}
    assert len(lines) == 1 + wanted
    if wanted:
        assert json.loads(lines[1])["verdict"]["status"] == "healthy"


@pytest.mark.parametrize(
    ("drain", "drained"),
    [
        (None, None),
        ({"by": "slurm", "ours": True, "since": "s", "ids": [], "commands": {}}, True),
        ({"by": "slurm", "ours": False, "since": "s", "ids": [], "commands": {}}, False),
    ],
    ids=["in service", "drained", "drained by another party"],
)
def test_a_report_has_the_gate(
    host: Host, examined: list[checking.Checked], drain: Any, drained: bool | None
) -> None:
    judging.judge(host, DOCUMENT, act=True)
    found = reporting.recorded(host) or {}
    assert found["gate"] is None, "no check has acted"
    state = {
        "schema": gate.SCHEMA,
        "mode": "drain",
        "open": drain is None,
        "since": "2026-11-26T10:00:00Z",
    }
    host.write(
        gate_files.STATE,
        json.dumps({**state, "reasons": ["a"], "told": drain, "error": None}).encode(),
    )
    found = reporting.recorded(host) or {}
    assert NodeReportGate.model_validate(found["gate"]).drained is drained
    assert (found["gate"]["open"], found["gate"]["reasons"]) == (drain is None, ["a"])
    host.write(gate_files.STATE, b'{"torn')
    assert (reporting.recorded(host) or {})["gate"] is None


def test_an_edited_class_document_is_blamed_for_what_cannot_be_judged(host: Host) -> None:
    capture = healthy()
    with pytest.raises(NodeError, match=r"x\.json: .* digest is another, .*KeyError: 'os'"):
        program.judged(host, DOCUMENT, "x.json", captured=capture)
    whole: Any = {**DOCUMENT, "digest": document_digest(DOCUMENT)}
    with pytest.raises(KeyError):  # a fault of the program
        program.judged(host, whole, "x.json", captured=capture)
