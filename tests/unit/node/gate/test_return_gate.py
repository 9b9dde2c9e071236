"""Tests before a return at the gate: what opens a cause, what closes it, and that nothing else returns the node."""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import documents
from tests.unit.node.gate.test_gate import BOOT, STAT, finding, verdict

from goldnode.node.gate import gate, return_tests
from goldnode.node.ground import gate_files, verdict_files
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result
from goldnode.node.probe import CAPTURE
from goldnode.node.program import return_command
from goldnode.node.program.arguments import parse
from goldnode.node.serve import metrics
from goldnode.node.state.finding import MATCH, MISMATCH, UNREAD
from goldnode.node.verdict import deltas

START = 1_800_000_000.0
JOBS = {"after_xid": ["gemm"], "after_repair": ["gemm", "memory"], "after_absence": ["storage"]}


class KilledError(Exception):
    """The check was killed."""


class Machine(Host):
    """A directory as a live node with a Slurm of its own. A check can be killed at any of its effects."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), live=True)
        self.clock, self.boots, self.drained, self.reason = START, 0, False, ""
        self.left: int | None = None  # effects until it is killed
        self.torn = False
        self.resumed: Callable[[], None] = lambda: None
        self.write("/usr/bin/scontrol", b"")
        self.write("/proc/sys/kernel/hostname", b"gpu01.example.net\n")
        self.boot()

    def boot(self) -> None:
        self.boots += 1
        for name in (gate_files.STATE, gate_files.PASS, gate_files.REASON):
            self.remove(name)
        self.write("/proc/sys/kernel/random/boot_id", f"b{self.boots}\n".encode())
        self.write("/proc/1/stat", STAT.encode())
        self.write("/proc/uptime", b"1000.00 0.00\n")

    @property
    def boot_id(self) -> str:
        return f"b{self.boots}"

    def effect(self) -> bool:
        """Count one effect. Return whether the check is killed at it."""
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0

    def write(
        self, name: str, content: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None
    ) -> None:
        if not name.startswith("/proc") and self.effect():
            if self.torn:
                self.path(name).parent.mkdir(parents=True, exist_ok=True)
                self.path(name).write_bytes(content[: len(content) // 2])
            raise KilledError
        super().write(name, content, mode, owner)

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        if argv[1] == "show":
            state = "IDLE+DRAIN" if self.drained else "IDLE"
            why = f" Reason={self.reason} [root@2026-01-01T00:00:00]" if self.reason else ""
            return Result(argv, 0, f"NodeName=gpu01 NodeHostName=gpu01 State={state}{why}\n", "")
        if self.effect():
            raise KilledError
        for word in argv[3:]:
            if word == "State=RESUME":
                self.resumed()
                self.drained, self.reason = False, ""
            elif word == "State=DRAIN":
                self.drained = True
            elif word.startswith("Reason="):
                self.reason = word.removeprefix("Reason=")
        return Result(argv, 0, "", "")

    def check(
        self,
        *bad: dict[str, Any],
        gpus: list[Any] | None = None,
        absence: Any = None,
        synchronised: Any = True,
        events: Any = None,
        **tests: Any,
    ) -> None:
        found = verdict(
            *(bad or (finding(MATCH),)), code=2 if bad else 0, boot_identity=f"{self.boot_id}/22"
        )
        capture = {
            "gpus": gpus,
            "uptime": 1000.0,
            "time_sync": {"synchronised": synchronised, "clock": self.clock},
            "events": events,
        }
        checked = SimpleNamespace(capture=capture, memory={"absence": absence})
        gate.act(self, self.document(**tests), found, checked)
        documents.valid(self.state())

    def document(self, **tests: Any) -> dict[str, Any]:
        return {
            "schema": "goldnode.class/1",
            "class": "case",
            "gate": "drain",
            "return_tests": tests or JOBS,
        }

    def state(self) -> dict[str, Any]:
        return json.loads(self.text(gate_files.STATE) or "{}")  # type: ignore[no-any-return]

    def missing(self) -> dict[str, list[str]]:
        return {row["cause"]: row["missing"] for row in self.state()["tests"]["causes"]}

    def result(
        self,
        boot: str | None = None,
        node: str = "gpu01",
        started: float | None = None,
        **jobs: str,
    ) -> Any:
        rows = [{"name": name, "state": state, "why": "w"} for name, state in jobs.items()]
        at = return_tests.utc(self.clock if started is None else started)
        return {
            "schema": "goldnode.canary/1",
            "simulated": False,
            "node": node,
            "started": at,
            "boot_id": boot or self.boot_id,
            "jobs": rows,
        }

    def deliver(self, *rows: Any) -> list[str]:
        return return_command.take(self, self.document(), list(rows), "")[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Machine], None]]:
    with clocked(monkeypatch) as use:
        yield use


class clocked:  # noqa: N801 - a context manager
    """Let the modules read the clock of a machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.machine = monkeypatch, None

    def __enter__(self) -> Callable[[Machine], None]:
        def use(machine: Machine) -> None:
            fake = SimpleNamespace(
                time=lambda: machine.clock, gmtime=time.gmtime, strftime=time.strftime
            )
            for module in (return_tests, return_command):
                self.monkeypatch.setattr(module, "time", fake)

        return use

    def __exit__(self, *_: object) -> None:
        self.monkeypatch.undo()


@pytest.fixture
def node(
    tmp_path: Path, clock: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> Machine:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    found = Machine(tmp_path / "node")
    clock(found)
    return found


XID = finding(MISMATCH, "drain", "xid.48", "Xid 48")
AGAIN = finding(MISMATCH, "drain", "xid.48", "Xid 48, 2 times")
FAN = {**finding(MISMATCH, "drain", "chassis.fan", "0 rpm"), "steps": ["repair"]}
LINK = {**finding(MISMATCH, "drain", "sxid.20034", "fatal"), "steps": ["reboot", "repair"]}
LOST = finding(MISMATCH, "drain", "gpu.bus_lost", "off the bus")
FILE = finding(MISMATCH, "drain", "stack.lock", "4 differ")
A, B = {"serial": "1"}, {"uuid": "GPU-2", "serial": None}
WEEK = 7 * 86400.0


def away(days: float, **patch: Any) -> dict[str, Any]:
    return {"boot": BOOT, "last": START - days * 86400, "uptime": 1000.0, "why": None, **patch}


# Findings of a check, on a node whose last good check had the GPUs A and B, and the causes that they open.
OPENS: list[tuple[str, list[Any], dict[str, Any], set[str]]] = [
    ("nothing", [], {}, set()),
    ("another fault", [FILE], {}, set()),
    ("an Xid", [XID], {}, {"xid"}),
    ("an Xid that could not be read", [{**XID, "outcome": UNREAD}], {}, {"xid"}),
    ("an Xid that is degraded", [{**XID, "severity": "degraded"}], {}, set()),
    ("an Xid that matches", [{**XID, "outcome": MATCH}], {}, set()),
    ("a GPU off the bus", [LOST], {}, {"xid"}),
    ("an SXid, which takes a repair", [LINK], {}, {"xid", "repair"}),
    ("a repair", [FAN], {}, {"repair"}),
    ("the same GPUs in another order", [], {"gpus": [B, A]}, set()),
    ("another GPU", [], {"gpus": [A, {"uuid": "GPU-3"}]}, {"repair"}),
    ("a GPU less", [], {"gpus": [A]}, {"repair"}),
    ("another GPU on a bad node: not yet", [FILE], {"gpus": [A]}, set()),
    ("a GPU that shows nothing: unknown", [], {"gpus": [A, {"index": 1}]}, set()),
    ("a GPU that is lost: unknown", [], {"gpus": [A, {**B, "lost": True}]}, set()),
    ("a GPU with a serial number of zeros: unknown", [], {"gpus": [A, {"serial": "0000"}]}, set()),
    ("no GPUs read", [], {"gpus": None}, set()),
    ("a week away", [], {"absence": away(7)}, {"absence"}),
    ("almost a week away", [], {"absence": away(6.9)}, set()),
    ("away, not synchronised: unknown", [], {"absence": away(30), "synchronised": False}, set()),
    ("away, and it cannot be read", [], {"absence": away(30), "synchronised": {"fault": "unread"}}, set()),
    ("a clock that went back: unknown", [], {"absence": away(-3)}, set()),
    ("a last check without a time: unknown", [], {"absence": away(0, last=None, why="torn")}, set()),
    ("away, of which part was this boot", [], {"absence": away(7.01, uptime=0.0)}, set()),
]  # fmt: skip
UNKNOWN = {
    row[0] for row in OPENS if "unknown" in row[0] or row[0] == "away, and it cannot be read"
}


@pytest.mark.parametrize(("what", "bad", "seen", "wanted"), OPENS, ids=[row[0] for row in OPENS])
def test_a_check_opens_the_causes_of_the_table(
    node: Machine, what: str, bad: list[Any], seen: dict[str, Any], wanted: set[str]
) -> None:
    node.check(gpus=[A, B])
    assert not node.drained
    node.check(*bad, **{"gpus": [A, B], **seen})
    opened = {cause for cause, jobs in node.missing().items() if jobs}
    assert opened == wanted
    assert bool(node.state()["tests"]["unknown"]) is (what in UNKNOWN)
    assert node.drained is bool(
        wanted or [row for row in bad if gate.bad_findings({"findings": [row]})]
    )
    # The same check again opens no cause again, and a fault that has gone holds the node until its tests have passed.
    since = {row["cause"]: row["since"] for row in node.state()["tests"]["causes"]}
    node.clock += 60
    node.check(*bad, **{"gpus": [A, B], **seen})
    assert {row["cause"]: row["since"] for row in node.state()["tests"]["causes"]} == since
    node.check(gpus=seen.get("gpus", [A, B]) if "repair" in wanted else [A, B])
    assert node.drained is bool(wanted)
    assert (node.text(gate_files.PASS) is None) is bool(wanted)


def test_a_reason_names_cause_job_and_command(node: Machine) -> None:
    node.check(XID)
    assert node.reason.startswith("goldnode: xid.48: Xid 48")
    node.check()
    since = return_tests.utc(START)
    assert node.reason == (
        f"goldnode: tests before its return (xid): gemm has not run since {since}; "
        "goldnode canary run gpu01 --outstanding -i INVENTORY"
    )
    node.clock += 60
    node.deliver(node.result(gemm="failed"))
    node.check()
    assert "(xid): gemm is failed (w);" in node.reason
    assert len(node.reason) <= gate.LONGEST


Step = Callable[[Machine], object]


def later(*steps: Step) -> list[Step]:
    """Each step a minute after the one before."""

    def passed(step: Step) -> Step:
        def call(node: Machine) -> None:
            node.clock += 60
            step(node)

        return call

    return [passed(step) for step in steps]


def gets(boot: str | None = None, name: str = "gpu01", ago: float = 0, **jobs: str) -> Step:
    return lambda node: node.deliver(node.result(boot, name, node.clock - ago, **jobs))


def set_back(node: Machine) -> None:
    node.clock = START - 86400


def cut(node: Machine) -> None:
    node.check(XID, events={"truncated": True})


GOOD, BAD, CUT, BOOTS = Machine.check, lambda node: node.check(XID), cut, Machine.boot
# Steps of a node that an Xid has drained, and whether it returns after them.
RETURNS: list[tuple[str, list[Step], bool]] = [
    ("nothing", later(GOOD), False),
    ("its test passes", later(GOOD, gets(gemm="passed"), GOOD), True),
    ("its test passes before the fault is gone", later(gets(gemm="passed"), BAD, GOOD), True),
    ("the fault comes again after its test", later(gets(gemm="passed"), lambda node: node.check(AGAIN), GOOD), False),
    ("the fault goes and comes", later(GOOD, gets(gemm="passed"), BAD, GOOD), False),
    ("another job passes", later(gets(storage="passed"), GOOD), False),
    ("its test fails", later(gets(gemm="failed"), GOOD), False),
    ("it does not apply", later(gets(gemm="not_run"), GOOD), False),
    ("it is not counted", later(gets(gemm="not_counted"), GOOD), False),
    ("it could not check", later(gets(gemm="could_not_check"), GOOD), False),
    ("it fails, then passes", later(gets(gemm="failed"), gets(gemm="passed"), GOOD), True),
    ("it passes, then fails", later(gets(gemm="passed"), gets(gemm="failed"), GOOD), False),
    ("results come out of order", later(gets(gemm="failed"), gets(gemm="passed", ago=90), GOOD), False),
    ("it passed before", later(gets(gemm="passed", ago=3600), GOOD), False),
    ("it passed on another boot", later(gets("b0", gemm="passed"), GOOD), False),
    ("it passed on another node", later(gets(None, "gpu02", gemm="passed"), GOOD), False),
    ("it passed in the future", later(gets(gemm="passed", ago=-3600), GOOD), False),
    ("another fault outlasts the test, and a boot follows", later(gets(gemm="passed"), lambda node: node.check(FILE), BOOTS, GOOD), False),
    ("another fault outlasts the test", later(gets(gemm="passed"), lambda node: node.check(FILE), GOOD), True),
    ("a boot after the test", later(gets(gemm="passed"), BAD, BOOTS, GOOD), False),
    ("a boot, then the test", later(BOOTS, gets(gemm="passed"), GOOD), True),
    ("a boot and the cause gone, the test on the new one", later(BOOTS, GOOD, gets(gemm="passed"), GOOD), True),
    ("a boot, its test passes, and the fault comes again", later(BOOTS, gets(gemm="passed"), BAD, GOOD), False),
    ("a log without its beginning, and its test passes before the fault is gone", later(gets(gemm="passed"), CUT, GOOD), False),
    ("the clock set back over the test", [*later(gets(gemm="passed"), GOOD), set_back, BAD, gets(gemm="passed", ago=-86400), GOOD], False),
]  # fmt: skip


@pytest.mark.parametrize(("what", "steps", "wanted"), RETURNS, ids=[row[0] for row in RETURNS])
def test_a_node_returns_when_its_tests_have_passed(
    node: Machine, what: str, steps: list[Step], wanted: bool
) -> None:
    node.check()
    node.check(XID)
    for step in steps:
        step(node)
    assert node.drained is not wanted
    assert (node.text(gate_files.PASS) is not None) is wanted


def test_every_cause_has_to_be_closed(node: Machine) -> None:
    node.check(LINK)
    node.check()
    node.clock += 60
    node.deliver(node.result(gemm="passed"))
    node.check()
    assert node.missing() == {"xid": [], "repair": ["memory"], "absence": []}
    assert "(repair): memory has not run since" in node.reason
    node.deliver(node.result(memory="passed"))
    node.check()
    assert not node.drained


def test_tests_after_a_repair_count_when_its_fault_is_gone(node: Machine) -> None:
    """A check may have missed that the fault went: a fan that stops again looks as before."""
    node.check(FAN)
    for since in (1, 2):  # minutes
        node.clock += 60
        node.deliver(node.result(gemm="passed", memory="passed"))
        node.check(FAN)
        assert node.missing()["repair"] == ["gemm", "memory"]
        assert node.state()["tests"]["causes"][1]["since"] == return_tests.utc(
            START + 60 * since + 1
        )
    node.check()
    assert node.drained
    node.clock += 60
    node.deliver(node.result(gemm="passed", memory="passed"))
    node.check()
    assert not node.drained


def test_an_absence_is_decided_once_a_boot_and_when_the_clock_is_right(node: Machine) -> None:
    node.check(absence=away(9), synchronised=False)
    assert "not synchronised" in node.state()["tests"]["unknown"][0]
    node.check(absence=away(9))
    assert node.drained
    node.clock += 60
    node.deliver(node.result(storage="passed"))
    node.check(absence=away(9))
    node.clock += WEEK  # a clock that jumps later opens nothing
    node.check(absence=away(9))
    assert not node.drained
    node.check(absence=away(9, boot="b9/22"))
    assert node.drained


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"schema": 1}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_damaged_record_opens_every_cause(node: Machine, content: bytes) -> None:
    node.check()
    node.write(return_tests.FILE, content)
    node.check()
    assert node.missing() == {"xid": ["gemm"], "repair": ["gemm", "memory"], "absence": ["storage"]}
    assert node.drained
    assert {row["why"] for row in node.state()["tests"]["causes"]} == {return_tests.DAMAGED}


@pytest.mark.parametrize("gone", [[return_tests.FILE], [return_tests.FILE, gate_files.RECORD]])
def test_a_record_that_is_gone_is_a_loss_unless_the_gate_is_new(
    node: Machine, gone: list[str]
) -> None:
    node.check()
    for name in gone:
        node.remove(name)
    node.check()
    assert node.drained is (len(gone) == 1)
    node.remove(return_tests.FILE)
    node.write(gate_files.RECORD, b'{"mo')
    node.check()
    assert node.drained, "a memory that is torn does not show that the gate is new"


def record_with(**patch: Any) -> bytes:
    return json.dumps({**return_tests.empty(), **patch}).encode()


ROW = {"since": "2026-11-26T08:00:00Z", "why": "w", "faults": {}, "ended": False}


@pytest.mark.parametrize(
    "content",
    [
        record_with(schema="goldnode.return-record/2"),
        record_with(more=1),
        record_with(open=[]),
        record_with(open={"fire": ROW}),
        record_with(open={"xid": {**ROW, "since": "soon"}}),
        record_with(open={"xid": {**ROW, "faults": None}}),
        record_with(open={"xid": {**ROW, "ended": None}}),
        record_with(open={"xid": []}),
        record_with(results=[{"started": 1}]),
        record_with(latest="9"),
    ],
)
def test_a_record_of_another_shape_is_damaged(node: Machine, content: bytes) -> None:
    node.check()
    node.write(return_tests.FILE, content)
    node.check()
    assert node.drained


def test_a_record_that_cannot_be_written_holds_the_node(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.check()
    node.write(return_tests.FILE, record_with(open={"xid": ROW}))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(return_tests, "save", full)
    node.check(XID)
    node.check()
    assert "cannot be recorded" in node.reason
    assert node.drained


def test_a_class_without_tests_reads_and_writes_no_record(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(return_tests, "settle", None)
    found = verdict(finding(MATCH), boot_identity="b1/22")
    gate.act(node, {"gate": "drain"}, found)
    gate.act(node, {"gate": "report", "return_tests": JOBS}, found)
    assert "tests" not in node.state()
    assert json.loads(node.text(gate_files.RECORD) or "") == {"mode": "report"}
    assert not node.exists(return_tests.FILE)


def test_a_check_of_an_unchanged_node_does_not_write_to_the_disk(node: Machine) -> None:
    node.check(XID, gpus=[A])
    node.check(gpus=[A])
    before = node.path(return_tests.FILE).stat().st_ino
    node.check(gpus=[A])
    assert node.path(return_tests.FILE).stat().st_ino == before


def test_the_metrics_have_the_number_of_outstanding_jobs(node: Machine) -> None:
    node.check(LINK)
    text = metrics.text(verdict(finding(MATCH)), {}, node.state())
    numbers = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if "return_tests_outstanding{" in line
    )
    assert numbers == {
        f'goldnode_return_tests_outstanding{{cause="{cause}"}}': number
        for cause, number in (("xid", "1"), ("repair", "2"), ("absence", "0"))
    }


def test_a_person_who_resumed_the_node_is_left_alone(node: Machine) -> None:
    node.check(XID)
    node.check()
    node.drained, node.reason = False, ""
    node.deliver(node.result(gemm="failed", started=node.clock))
    node.check()
    assert not node.drained


def test_a_drain_of_another_party_keeps_its_reason(node: Machine) -> None:
    node.drained, node.reason = True, "bad fan"
    node.check(XID)
    node.check()
    assert (node.drained, node.reason) == (True, "bad fan")
    node.clock += 60
    node.deliver(node.result(gemm="passed"))
    node.check()
    assert (node.drained, node.reason) == (True, "bad fan")
    assert node.text(gate_files.PASS) is not None


def test_a_drain_of_a_run_gets_the_reason_of_the_tests(node: Machine) -> None:
    """So the run, site.yml for instance, does not return a node that the gate holds."""
    from goldnode.fleet.drain.slurm import slurm_rows
    from goldnode.node.ground import drained

    node.drained = True
    node.reason = drained.reason("0011-223344", "c", "2026-11-26T08:00:00Z", "kernel")
    node.check(XID)
    node.check()
    assert node.reason.startswith("goldnode: tests before its return (xid)")
    shown = node.run("scontrol", "show", "node", "gpu01").out
    assert slurm_rows(shown)[0][1].held is None


def test_a_node_that_leaves_goldnode_leaves_no_record(node: Machine) -> None:
    node.check(XID)
    gate.release(node)
    assert not node.drained
    assert not any(
        node.exists(name) for name in (return_tests.FILE, gate_files.RECORD, gate_files.STATE)
    )


# -- ended by a person


def test_a_person_ends_tests_by_name(node: Machine) -> None:
    node.check(LINK)
    assert return_command.end(node, "tests.xid", "kim", "bench") == ["tests.xid"]
    node.check(LINK)
    assert node.missing()["xid"] == [], "the finding that stands does not open it again"
    node.check()
    assert node.missing() == {"xid": [], "repair": ["gemm", "memory"], "absence": []}
    assert node.drained
    assert return_command.end(node, "tests.*", "kim", "bench") == ["tests.repair"]
    assert return_command.end(node, "tests.*", "kim", "bench") == []
    node.check()
    assert not node.drained
    node.check(LINK)
    node.check()
    assert node.drained, "a later fault opens it again"


@pytest.mark.parametrize(
    ("name", "ends"), [(None, False), ("*", False), ("xid.*", False), ("tests.xid", True)]
)
def test_an_acknowledgement_ends_tests_by_their_name_alone(
    node: Machine, capsys: pytest.CaptureFixture[str], name: str | None, ends: bool
) -> None:
    node.check(XID)
    node.check()
    memory = {"schema": deltas.SCHEMA, "counters": {}, "acks": []}
    node.write(deltas.MEMORY, json.dumps(memory).encode())
    node.write(CAPTURE, b"{}")
    options = parse(["ack", "--by", "kim", "--reason", "bench", *(["--id", name] if name else [])])
    assert options.run(node, options) == 0
    assert ("settled: tests.xid" in capsys.readouterr().out) is ends
    (row,) = json.loads(node.text(deltas.MEMORY) or "")["acks"]
    assert (row["by"], row["settled"]) == ("kim", ["tests.xid"] if ends else [])
    node.check()
    assert node.drained is not ends


# -- results from a controller

HOSTILE: list[tuple[Any, str]] = [
    (None, "no document"),
    ([], "no document"),
    ("x", "no document"),
    ({"schema": "goldnode.canary/2"}, "no document"),
    ({"node": "gpu02"}, "it is of node gpu02, and this is gpu01 or gpu01.example.net"),
    ({"node": "\x1b[31m" + "x" * 999}, "it is of node"),
    ({"node": None}, "it is of node None"),
    ({"simulated": True}, "hardware is simulated"),
    ({"simulated": None}, "hardware is simulated"),
    ({"boot_id": "b7"}, "of another boot"),
    ({"boot_id": None}, "no id of a boot"),
    ({"boot_id": "x" * 99}, "no id of a boot"),
    ({"started": "9999-01-01T00:00:00Z"}, "began in the future"),
    ({"started": "yesterday"}, "no time in UTC"),
    ({"started": 5}, "no time in UTC"),
    ({"jobs": None}, "no list of jobs"),
    ({"jobs": [1]}, "no name"),
    ({"jobs": [{"name": "gemm", "why": ""}]}, "none of the states"),
    ({"jobs": [{"name": "gemm", "why": "", "state": "PASSED"}]}, "none of the states"),
    ({"jobs": [{"name": "gemm", "why": "", "state": ["passed"]}]}, "none of the states"),
    ({"jobs": [{"name": ["gemm"], "why": "", "state": "passed"}]}, "no name"),
    ({"jobs": [{"name": "gemm", "why": None, "state": "passed"}]}, "no `why`"),
]


@pytest.mark.parametrize(("patch", "wanted"), HOSTILE)
def test_hostile_results_are_refused_with_a_sentence(
    node: Machine, patch: Any, wanted: str
) -> None:
    node.check(XID)
    node.clock += 60
    row = {**node.result(gemm="passed"), **patch} if isinstance(patch, dict) else patch
    (text,) = node.deliver(row)
    assert wanted in text
    assert text.isprintable()
    node.check()
    assert node.drained


def command(
    node: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    stdin: bytes = b"",
) -> tuple[int, str]:
    """Run `goldnode-node return-tests`."""
    from goldnode.node.program import judging

    def judge(host: Machine, *_: Any, **__: Any) -> tuple[None, list[str]]:
        host.check()
        return None, ["judged"]

    monkeypatch.setattr(judging, "judge", judge)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
    options = parse(["return-tests", *words])
    return options.run(node, options), capsys.readouterr().out


def test_the_command_takes_results_and_judges_again(
    node: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.write(verdict_files.CLASS, json.dumps(node.document()).encode())
    with pytest.raises(NodeError, match="goldnode-node check"):
        command(node, monkeypatch, capsys)
    node.check(XID)
    node.check()
    status, out = command(node, monkeypatch, capsys)
    assert (status, "gemm has not run since" in out, "gate: closed" in out) == (2, True, True)
    node.clock += 60
    other = {**node.result(gemm="passed"), "boot_id": "b9"}
    given = json.dumps([other, node.result(node="n1", gemm="passed")]).encode()
    status, out = command(
        node, monkeypatch, capsys, "--results", "--node", "n1", "--format", "json", stdin=given
    )
    found = documents.valid(out)
    assert (status, found["open"], found["drained"], found["taken"]) == (0, True, None, 1)
    assert found["refused"] == ["result 1: it is of node gpu01, and this is n1"]
    assert [row["missing"] for row in found["causes"]] == [[], [], []]


@pytest.mark.parametrize(
    ("data", "wanted"), [(b"{", "no JSON"), (b"\xff", "no JSON"), (b"[" * 200_000, "no JSON")]
)
def test_input_that_is_no_json_is_refused(
    node: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data: bytes,
    wanted: str,
) -> None:
    node.write(verdict_files.CLASS, json.dumps(node.document()).encode())
    node.check()
    with pytest.raises(NodeError, match=wanted):
        command(node, monkeypatch, capsys, "--results", stdin=data)
    monkeypatch.setattr(return_command, "LARGEST", 10)
    with pytest.raises(NodeError, match="more than 10 bytes"):
        command(node, monkeypatch, capsys, "--results", stdin=b" " * 11)


# -- the time without a check, as it is stored with the counters

BEFORE = {"boot": "b1/22", "clock": 100.0}
ABSENCES = [
    ("a new node", {}, None, None),
    ("a record that cannot be used", {}, "it is torn", (None, "it is torn")),
    ("the first check of a boot", BEFORE, None, (100.0, "None")),
    ("a last check without a clock", {**BEFORE, "clock": None}, None, (None, "not synchronised")),
    ("a later check", {**BEFORE, "boot": "b2/22", "absence": {"boot": "b2/22"}}, None, "carried"),
    ("a later check without one", {**BEFORE, "boot": "b2/22"}, None, None),
]


@pytest.mark.parametrize(
    ("what", "before", "fault", "wanted"), ABSENCES, ids=[row[0] for row in ABSENCES]
)
def test_the_time_without_a_check_is_stored(
    what: str, before: Any, fault: str | None, wanted: Any
) -> None:
    found = deltas.absence(before, {"boot": "b2/22", "uptime": 5.0}, fault)
    if wanted == "carried":
        assert found == {"boot": "b2/22"}
    elif wanted is None:
        assert found is None
    else:
        assert found is not None
        assert (found["boot"], found["uptime"], found["last"]) == ("b2/22", 5.0, wanted[0])
        assert wanted[1] in str(found["why"])


# -- no sequence returns a node with outstanding tests

EVENTS = st.one_of(
    st.tuples(st.just("check"), st.sampled_from([(), (XID,), (AGAIN,), (LINK,), (FAN,), (FILE,)])),
    st.tuples(st.just("kill"), st.tuples(st.sampled_from([(), (XID,), (LINK,), (FAN,)]), st.integers(0, 8), st.booleans())),
    st.tuples(st.just("boot"), st.none()),
    st.tuples(
        st.just("result"),
        st.tuples(
            st.sampled_from(["own", "own", "own", "boot", "node", "old"]),
            st.dictionaries(st.sampled_from(["gemm", "memory"]), st.sampled_from(["passed", "passed", "failed", "not_counted"]), min_size=1),
        ),
    ),
)  # fmt: skip


class Oracle:
    """The obligations of a node, from what Slurm saw and what really ran: written without the code under test."""

    WANTED = {"xid": {"gemm"}, "repair": {"gemm", "memory"}}  # noqa: RUF012

    def __init__(self) -> None:
        self.open: dict[str, int] = {}  # cause -> number of the event that opened it
        self.faults: dict[str, int] = {}  # id -> the event at which it began
        self.logged: dict[str, int] = {}  # id -> how many times the log of this boot has it
        self.ran: list[tuple[int, int, dict[str, str]]] = []  # event, boot, jobs

    def there_is(self, bad: tuple[Any, ...], event: int) -> tuple[dict[str, Any], ...]:
        """The node has these faults now, whether or not a check sees them. Return them as a check finds them.

        The log of a boot only grows: an Xid that comes again is counted (verdict.events).
        """
        before, self.faults, shown = self.faults, {}, []
        for row in bad:
            new = row["id"] not in before or row["got"] == AGAIN["got"]
            self.faults[row["id"]] = event if new else before[row["id"]]
            if row["id"].startswith(("xid", "sxid")):
                times = self.logged[row["id"]] = self.logged.get(row["id"], 0) + new
                row = {**row, "got": f"Xid, {times} times" if times > 1 else "Xid"}
            shown.append(row)
        return tuple(shown)

    def boots(self) -> None:
        """The log begins again, and a fault that stands does not end."""
        self.faults = {name: at for name, at in self.faults.items() if name not in self.logged}
        self.logged = {}

    def noticed(self, bad: tuple[Any, ...]) -> None:
        """The gate has acted on them."""
        for row in bad:
            began = self.faults[row["id"]]
            if row["id"].startswith(("xid", "sxid")):
                self.open["xid"] = max(began, self.open.get("xid", began))
            if "repair" in (row.get("steps") or ()):
                self.open["repair"] = max(began, self.open.get("repair", began))

    def may_return(self, boot: int) -> bool:
        for cause, since in self.open.items():
            states: dict[str, str] = {}
            for event, where, jobs in self.ran:
                if event > since and where == boot:
                    states.update(jobs)
            if any(states.get(job) != "passed" for job in self.WANTED[cause]):
                return False
        return True


@settings(max_examples=80)
@given(st.lists(EVENTS, min_size=3, max_size=14))
def test_no_sequence_returns_a_node_with_outstanding_tests(events: list[tuple[str, Any]]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gn-") as place,
        pytest.MonkeyPatch.context() as patch,
        clocked(patch) as use,
    ):
        node, oracle = Machine(Path(place) / "n"), Oracle()
        use(node)
        patch.setattr(os, "fsync", lambda _: None)

        def resumed() -> None:
            assert oracle.may_return(node.boots), (oracle.open, oracle.ran, node.boots)
            oracle.open.clear()

        node.resumed = resumed
        node.check(gpus=[A])
        for number, (what, given) in enumerate(events):
            node.clock += 60
            if what == "check":
                bad = oracle.there_is(given, number)
                oracle.noticed(bad)
                node.check(*bad, gpus=[A])
            elif what == "kill":
                seen, node.left, node.torn = given
                bad = oracle.there_is(seen, number)
                try:
                    node.check(*bad, gpus=[A])
                except KilledError:
                    pass
                finally:
                    done, node.left, node.torn = node.left, None, False
                # It counts once Slurm has drained the node for it, or the check has ended.
                if (done is not None and done >= 0) or (bad and bad[0]["id"] in node.reason):
                    oracle.noticed(bad)
            elif what == "boot":
                node.boot()
                oracle.boots()
            else:
                kind, jobs = given
                row = node.result(
                    "b0" if kind == "boot" else None,
                    "gpu02" if kind == "node" else "gpu01",
                    node.clock - (86400 if kind == "old" else 0),
                    **jobs,
                )
                with_record = return_tests.load(node)[0] is not None
                if with_record:
                    node.deliver(row)
                    if kind == "own":
                        oracle.ran.append((number, node.boots, jobs))
        node.clock += 60
        node.check(gpus=[A])
