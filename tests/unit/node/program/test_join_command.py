"""`goldnode-node join`: when a machine joins, what it records, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goldnode.documents.join import JoinDocument
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.program import join_command as join
from goldnode.node.program import main
from goldnode.node.state import apply as applying
from goldnode.node.state.domains.program import CLASS, document_digest
from goldnode.node.state.model import Action, Plan, Refusal, Waiting

ENGINE = "sha256:e"


def document(name: str, **more: Any) -> Any:
    inner = {"schema": "goldnode.class/1", "class": name, "lock": {"digest": "sha256:l"}, **more}
    return {**inner, "digest": document_digest(inner)}


A, B = document("a"), document("b")


def record(state: str, instance: str = "i-1", digest: str = A["digest"], **more: Any) -> Any:
    found = {
        "schema": join.SCHEMA,
        "state": state,
        "instance": instance,
        "class": "a",
        "digest": digest,
    }
    return {**found, "digests": [digest], "boot": None, "time": "2026-11-30T00:00:00Z", **more}


# Record, class document on the machine, class document of the user data, and the decision.
DECISIONS = [
    ({}, None, A, "go"),
    ({}, A, A, "go"),
    (
        {},
        B,
        A,
        "this machine is of class b by another document",
    ),  # a golden image, or a node of site.yml
    (record("applying"), None, A, "go"),
    (record("applying"), A, A, "go"),
    (record("rebooting"), A, A, "go"),
    (
        record("applying"),
        A,
        B,
        "go",
    ),  # the user data was corrected before it was applied to its end
    (record("applying"), B, A, "nothing: this machine is of class b"),  # site.yml has moved it
    (record("joined"), A, A, "nothing: this machine joined class a on 2026-11-30T00:00:00Z"),
    (record("joined"), B, A, "nothing: this machine joined class a"),  # a rollout has moved it
    (
        record("joined"),
        A,
        B,
        "nothing: this machine joined class a on 2026-11-30T00:00:00Z, and the user data has had another",
    ),
    (
        record("joined"),
        None,
        A,
        "nothing: this machine joined class a",
    ),  # site.yml has removed goldnode
    (record("joined", "i-0"), A, A, "go"),  # a copy of a member is judged anew
    (record("joined", "i-0"), A, B, "this machine is of class a by another document"),
    (record("applying", "i-0"), None, A, "go"),
    (
        record("applying", "i-0"),
        A,
        B,
        "go",
    ),  # cloud-init reads corrected user data for a new instance ID alone
    (record("applying", "i-0"), B, A, "this machine is of class b by another document"),
]


@pytest.mark.parametrize(("known", "own", "wanted", "want"), DECISIONS)
def test_decision(known: Any, own: Any, wanted: Any, want: str) -> None:
    found = join.decide(known, own, wanted, "i-1")
    assert found.go == (want == "go")
    if not found.go:
        assert found.refused == (not want.startswith("nothing: "))
        assert found.reason.startswith(want.removeprefix("nothing: "))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(str(tmp_path), live=True)
    found.write("/proc/sys/kernel/random/boot_id", b"boot-1")
    found.write("/proc/1/stat", b"1 (systemd) S " + b"0 " * 18 + b"7 " + b"0 " * 20)
    found.write(join.INSTANCE, b"i-1\n")
    found.write("/class.json", json.dumps(A).encode())
    return found


class Machine:
    """What the engine answers: the plans in turn, and the exit status of a check."""

    def __init__(self, *plans: Plan, code: int = 0) -> None:
        self.plans, self.code = list(plans), code
        self.applied: list[str] = []
        self.checks = 0


def plan(*parts: str, **more: Any) -> Plan:
    return Plan(tuple(Action(part, "file.write", f"/{part}", "want it") for part in parts), **more)


def run(
    host: Host,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    reboot_rc: int = 0,
    **options: Any,
) -> tuple[int, Any, list[tuple[str, ...]]]:
    """Run the command. Return exit code, record, and the commands that it ran."""

    def apply(_: Host, **given: Any) -> Any:
        machine.applied.append(given["part"])
        assert given["payloads"]["program"] == {"sha256": ENGINE, "file": "/p"}
        assert read(host)["state"] == join.APPLYING, "the record precedes the effect"
        return [], None, machine.plans.pop(0)

    def check(_: Host, flags: Any) -> int:
        assert not flags.no_gate
        machine.checks += 1
        return machine.code

    ran: list[tuple[str, ...]] = []

    def command(*words: str, **_: Any) -> Any:
        assert read(host)["state"] == join.REBOOTING, "the record precedes the effect"
        JoinDocument.model_validate_json(host.text(join.RECORD) or "")
        ran.append(words)
        return SimpleNamespace(rc=reboot_rc, tail=lambda: "Failed to connect to bus")

    def planned(*_: Any, say: Any, **__: Any) -> Plan:
        assert say is join.say, "a wait is shown on the console"
        return machine.plans.pop(0)

    monkeypatch.setattr(join, "plan", planned)
    monkeypatch.setattr(applying, "apply", apply)
    monkeypatch.setattr(main, "run_check", check)
    monkeypatch.setattr(host, "run", command)
    given = {
        "document": host.located("/class.json"),
        "accept": [],
        "no_reboot": False,
        "engine": ENGINE,
        "archive": "/p",
    }
    code = join.run(host, SimpleNamespace(**{**given, **options}))
    JoinDocument.model_validate_json(host.text(join.RECORD) or "")
    return code, read(host), ran


def read(host: Host) -> Any:
    return json.loads(host.text(join.RECORD) or "{}")


def test_machine_without_a_reboot_is_applied_and_judged(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(plan("node_class", "sanity"), plan("sanity"), plan())
    code, known, ran = run(host, machine, monkeypatch)
    assert (code, known["state"], known["verdict"], ran) == (0, join.JOINED, 0, [])
    assert (machine.applied, machine.checks) == (["node_class", "sanity"], 1)
    shown = capsys.readouterr().out
    assert "goldnode:   file.write /sanity: want it\n" in shown
    assert "this machine is a member of class a" in shown
    again = run(host, Machine(), monkeypatch)
    assert again[0] == 0, "nothing is asked of the engine"


def test_machine_reboots_once_and_is_judged_after_that(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan(reboot=("kernel 1 runs, want 2",))
    code, known, ran = run(host, Machine(plan("kernel"), before), monkeypatch)
    assert (code, known["state"], known["reasons"]) == (
        0,
        join.REBOOTING,
        ["kernel 1 runs, want 2"],
    )
    assert ran[0][-2:] == ("systemctl", "reboot")
    assert "--property=After=cloud-final.service" in ran[0]
    host.write("/proc/sys/kernel/random/boot_id", b"boot-2")
    host.write(CLASS, json.dumps(A).encode())
    code, known, ran = run(host, Machine(plan()), monkeypatch)
    assert (code, known["state"], ran) == (0, join.JOINED, [])


def test_reboot_that_did_not_help_is_not_repeated(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {"reboot": ("kernel 1 runs, want 2",)}
    run(host, Machine(plan("kernel"), plan(**needed)), monkeypatch)
    for boot in (b"boot-2", b"boot-3"):
        host.write("/proc/sys/kernel/random/boot_id", boot)
        with pytest.raises(
            NodeError, match="was rebooted, and still needs a reboot: kernel 1 runs"
        ):
            run(host, Machine(plan(**needed)), monkeypatch)
    code, _, ran = run(host, Machine(plan("kernel"), plan(**needed)), monkeypatch)
    assert (code, len(ran)) == (0, 1), "something was changed since"


def test_power_cut_before_the_reboot_is_repeated(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {"reboot": ("kernel 1 runs, want 2",)}
    with pytest.raises(NodeError, match="cannot be rebooted: Failed to connect to bus"):
        run(host, Machine(plan("kernel"), plan(**needed)), monkeypatch, reboot_rc=1)
    code, _, ran = run(host, Machine(plan(**needed)), monkeypatch)
    assert (code, len(ran)) == (0, 1), "the same boot"


@pytest.mark.parametrize(
    ("code", "accept", "want"), [(0, [], 0), (1, [], 1), (3, [], 3), (3, [3], 0), (2, [1, 3], 2)]
)
def test_verdict_decides_the_exit_status(
    host: Host, monkeypatch: pytest.MonkeyPatch, code: int, accept: list[int], want: int
) -> None:
    found, known, _ = run(host, Machine(plan(), code=code), monkeypatch, accept=accept)
    assert (found, known["verdict"]) == (want, code)
    assert known["state"] == (join.APPLYING if want else join.JOINED)


# Plans in turn, and the error.
FAILURES = [
    (
        [plan("kernel", refusals=(Refusal("wrong-os", "It runs Debian 11.", "Reinstall it."),))],
        "nothing was changed: It runs Debian 11. Reinstall it.",
    ),
    ([plan("kernel"), plan("kernel")], "it still differs after each part was applied"),
    (
        [plan(waiting=(Waiting("gpu_policy", "ecc", "a GPU is in use"),))],
        "waits until nothing uses a GPU: ecc: a GPU is in use",
    ),
    (
        [plan(held=("no module for it",), reboot=("kernel",))],
        "must not be rebooted as it is now: no module for it",
    ),
]


@pytest.mark.parametrize(("plans", "why"), FAILURES)
def test_machine_that_cannot_join_is_an_error(
    host: Host, monkeypatch: pytest.MonkeyPatch, plans: list[Plan], why: str
) -> None:
    machine = Machine(*plans)
    with pytest.raises(NodeError, match=why.replace(".", r"\.")):
        run(host, machine, monkeypatch)
    assert machine.checks == 0
    assert read(host)["state"] == join.APPLYING


def test_reboot_is_left_to_a_person(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NodeError, match="has to be rebooted: kernel"):
        run(host, Machine(plan(reboot=("kernel",))), monkeypatch, no_reboot=True)


def test_altered_document_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write("/class.json", json.dumps({**A, "class": "b"}).encode())
    with pytest.raises(NodeError, match="does not have the digest that it states"):
        run(host, Machine(), monkeypatch)
    assert read(host) == {}


def test_command_line_of_the_user_data_is_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    assert join.main(None, None, ["join", "--class", "/nowhere", "--accept", "3"]) == 3
    assert "run it from the file goldnode-node" in capsys.readouterr().err
