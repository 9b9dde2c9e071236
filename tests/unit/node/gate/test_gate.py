"""The gate: the rule as a table, its files, the scheduler's hooks against stand-in programs, and the shell that keeps a runtime out."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import documents
from tests.unit.node.state.test_cases import converged, document, merge

from goldnode.node.gate import effects, gate, handlers
from goldnode.node.ground import drained, gate_files, verdict_files
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result
from goldnode.node.program import main as program
from goldnode.node.state import shims
from goldnode.node.state.domains import units
from goldnode.node.state.finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD
from goldnode.node.verdict import check, current

STAT = "1 (systemd) S " + " ".join(str(n) for n in range(4, 53))
BOOT = "b00f/22"
DIGEST = "sha256:c0de"


def finding(
    outcome: str = MATCH,
    severity: str = "drain",
    name: str = "stack.lock",
    got: str | None = "4 differ",
) -> dict[str, Any]:
    return {
        "id": name,
        "outcome": outcome,
        "severity": severity,
        "expected": "as locked",
        "got": got,
        "remedy": None,
    }


def verdict(*findings: dict[str, Any], code: int = 0, **patch: Any) -> dict[str, Any]:
    """A verdict of this boot, 10 s old."""
    return {
        "schema": current.SCHEMA,
        "class": "case",
        "class_digest": DIGEST,
        "boot_identity": BOOT,
        "uptime": 990.0,
        "time": "2026-01-01T00:00:00Z",
        "exit_code": code,
        "findings": list(findings or [finding()]),
        **patch,
    }


# The rule of what is bad: verdict, whether it is.
RULE = [
    ("all as declared", verdict(finding(MATCH)), False),
    ("degraded", verdict(finding(MISMATCH, "degraded"), code=1), False),
    ("a degraded item that could not be read", verdict(finding(UNREAD, "degraded"), code=3), False),
    ("a container cannot show it", verdict(finding(ELSEWHERE, "drain"), code=3), False),
    ("the driver has no getter", verdict(finding(NOT_EXPOSED, "drain")), False),
    ("drain", verdict(finding(MATCH), finding(MISMATCH, "drain"), code=2), True),
    ("a drain item that could not be read", verdict(finding(UNREAD, "drain"), code=3), True),
    (
        "drain beside what a container cannot show",
        verdict(finding(ELSEWHERE), finding(MISMATCH, "drain"), code=2),
        True,
    ),
    ("an outcome of a later version", verdict(finding("perhaps", "drain")), True),
    ("a severity of a later version", verdict(finding(MISMATCH, "fatal")), True),
    ("not this class", verdict(finding(MISMATCH, "drain", "node.os"), code=4), True),
    ("not this class, whatever the findings say", verdict(finding(MATCH), code=4), True),
    ("nothing was judged", verdict(code=3, findings=[]), True),
    ("missing", None, True),
    ("torn", "{", True),
    ("of another schema", verdict(schema="goldnode.verdict/9"), True),
    ("with an exit code that there is not", verdict(code=5), True),
    ("without findings", verdict(findings=None), True),
    ("of another boot", verdict(boot_identity="f00d/1"), True),
    ("from the future", verdict(uptime=2000.0), True),
    ("without its time", verdict(uptime=None), True),
    ("at its limit", verdict(uptime=1000.0 - verdict_files.LIMIT), False),
    ("older than its limit", verdict(uptime=999.0 - verdict_files.LIMIT), True),
    ("of another class", verdict(class_digest="sha256:0"), True),
]


@pytest.mark.parametrize(("what", "found", "bad"), RULE, ids=[row[0] for row in RULE])
def test_gate_has_reasons_for_bad_verdicts_only(what: str, found: Any, bad: bool) -> None:
    why = gate.reasons(found, current.fault(found, BOOT, 1000.0, DIGEST))
    assert bool(why) is bad, why
    assert all(reason.text and "\n" not in reason.text for reason in why)


def test_a_boot_that_is_not_known_is_no_boot_of_a_verdict() -> None:
    assert "cannot be identified" in (current.fault(verdict(), None, 1000.0) or "")
    assert "cannot be identified" in (current.fault(verdict(), BOOT, None) or "")


def test_reason_is_one_line_without_escapes_within_the_limit() -> None:
    text = gate.reasons(
        verdict(finding(MISMATCH, got="\x1b[31mred\nNodeName=all;\t$(reboot)" + "x" * 999))
    )[0].text
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) <= gate.LONGEST


class Node(Host):
    """A directory as a live node: programs are those in its own `bin`, run on this machine."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), live=True)
        (root / "usr/bin").mkdir(parents=True)
        self.write("/proc/sys/kernel/random/boot_id", b"b00f\n")
        self.write("/proc/1/stat", STAT.encode())
        self.write("/proc/sys/kernel/hostname", b"gpu01.example.net\n")
        self.at(1000.0)

    def at(self, seconds: float) -> None:
        self.write("/proc/uptime", f"{seconds:.2f} 0.00\n".encode())

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.commands.append(argv)
        # A command of the site is the sixth word: the shell before it notes its exit status.
        before, words = (argv[:6], argv[6:]) if argv[0] == "/bin/sh" else ((), argv)
        program = self.path("/usr/bin") / words[0].rpartition("/")[2]
        if not program.exists():
            return Result(argv, 127, "", "not found")
        done = subprocess.run(
            [*before, str(program), *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            env={"DIR": self.root, "PATH": os.environ["PATH"]},
        )
        return Result(argv, done.returncode, done.stdout, done.stderr)

    def script(self, name: str, text: str) -> None:
        self.write(f"/usr/bin/{name}", f"#!/bin/sh\n{text}\n".encode(), 0o755)

    def log(self, name: str = "log") -> list[str]:
        return (self.text(f"/{name}") or "").splitlines()

    def act(self, mode: str | None, found: Any, **site: Any) -> list[str]:
        """A check with this outcome, in this mode; None: the class document cannot be read."""
        reported = gate.act(self, None if mode is None else {"gate": mode, "site": site}, found)
        state = json.loads(self.text(gate_files.STATE) or "{}")
        if state:
            documents.valid(state)
        assert state["open"] is self.path(gate_files.PASS).exists(), (
            "the pass file exists exactly while the gate lets work start"
        )
        return reported

    @property
    def open(self) -> bool:
        return self.path(gate_files.PASS).exists()

    def state(self) -> dict[str, Any]:
        return json.loads(self.text(gate_files.STATE) or "{}")  # type: ignore[no-any-return]


GOOD = verdict(finding(MATCH), finding(ELSEWHERE), code=3)
BAD = verdict(finding(MISMATCH, "drain"), code=2)
OTHER = verdict(finding(MISMATCH, "drain", "gpu.count"), code=2)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


@pytest.mark.parametrize(
    ("mode", "found", "is_open"),
    [("report", GOOD, True), ("report", BAD, True), ("drain", GOOD, True), ("drain", BAD, False), ("block", GOOD, True), ("block", BAD, False)],
)  # fmt: skip
def test_bad_verdict_closes_the_gate_except_in_mode_report(
    node: Node, mode: str, found: Any, is_open: bool
) -> None:
    node.act(mode, found)
    assert node.open is is_open
    state = node.state()
    assert (state["schema"], state["mode"], state["verdict_time"]) == (
        gate.SCHEMA,
        mode,
        found["time"],
    )
    assert bool(state["reasons"]) is (found is BAD)
    assert ("stack.lock" in (node.text(gate_files.REASON) or "")) is (found is BAD)


def test_a_good_node_becomes_bad_and_good_again(node: Node) -> None:
    node.act("block", GOOD)
    since = node.state()["since"]
    assert node.act("block", GOOD) == []
    assert node.state()["since"] == since
    assert "closed: stack.lock" in node.act("block", BAD)[0]
    assert not node.open
    assert "open" in node.act("block", GOOD)[0]
    assert node.open
    assert node.text(gate_files.REASON) == ""


def test_a_class_document_that_cannot_be_read_leaves_the_mode(node: Node) -> None:
    unreadable = verdict(finding(UNREAD, "drain", "check"), code=3)
    node.act("block", GOOD)
    node.act(None, unreadable)
    assert not node.open
    node.act("report", GOOD)
    node.act(None, unreadable)
    assert node.open


def test_a_record_that_is_torn_is_made_again(node: Node) -> None:
    for name in (gate_files.STATE, gate_files.RECORD):
        node.write(name, b'{"mode": "bl')
    node.act("block", BAD)
    assert not node.open
    assert json.loads(node.text(gate_files.RECORD) or "")["mode"] == "block"


def test_while_a_run_changes_the_node_an_open_gate_stays_open(node: Node) -> None:
    node.act("block", GOOD)
    before = node.text(gate_files.PASS)
    node.write(gate.ENGINE, b"")
    node.at(1100.0)
    with node.path(gate.ENGINE).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "stays open" in node.act("block", BAD)[0]
        assert node.text(gate_files.PASS) != before, (
            "the pass is renewed: the run may restart a runtime"
        )
    node.act("block", BAD)
    assert not node.open


# -- the site's commands

SITE = {"gate": {"drain": ["drain-node", "--now"], "resume": ["resume-node"]}}


def commands(node: Node, status: int = 0) -> None:
    for name in ("drain-node", "resume-node"):
        node.script(name, f'echo "{name} $#:$*" >> $DIR/log; exit {status}')


def test_a_command_is_called_once_and_takes_back_its_own(node: Node) -> None:
    commands(node)
    for _ in range(3):
        node.act("drain", BAD, **SITE)
    assert node.log() == ["drain-node 2:--now goldnode: stack.lock: 4 differ (want as locked)"]
    for _ in range(3):
        node.act("drain", GOOD, **SITE)
    assert node.log()[1:] == ["resume-node 1:goldnode: the node is what its class says again"]


def test_drain_is_remembered_over_a_boot_and_resumed_once(node: Node) -> None:
    commands(node)
    node.act("drain", BAD, **SITE)
    for name in (gate_files.STATE, gate_files.PASS, gate_files.REASON):
        node.remove(name)  # /run is empty after a boot
    node.act("drain", BAD, **SITE)
    assert len(node.log()) == 1
    node.act("drain", GOOD, **SITE)
    assert len(node.log()) == 2


def test_another_fault_is_reported_again(node: Node) -> None:
    commands(node)
    node.act("drain", BAD, **SITE)
    node.act("drain", OTHER, **SITE)
    node.act("drain", BAD, **SITE)
    assert [line.split()[3] for line in node.log()] == ["stack.lock:", "gpu.count:"]
    node.act("drain", GOOD, **SITE)
    assert len(node.log()) == 3


def test_gate_does_not_resume_a_node_drained_by_another_party(node: Node) -> None:
    commands(node, 3)
    node.act("drain", BAD, **SITE)
    assert "drained by another party" in " ".join(node.act("drain", GOOD, **SITE))
    assert len(node.log()) == 1


def test_a_command_that_fails_is_tried_again(node: Node) -> None:
    node.script("drain-node", "echo no link >&2; exit 1")
    assert "tried again" in " ".join(node.act("drain", BAD, **SITE))
    assert "no link" in node.state()["error"]
    assert not node.open
    commands(node)
    node.act("drain", BAD, **SITE)
    assert len(node.log()) == 1
    assert node.state()["error"] is None
    node.script("resume-node", "exit 1")
    node.act("drain", GOOD, **SITE)
    assert node.state()["error"]
    commands(node)
    node.act("drain", GOOD, **SITE)
    assert node.log()[1].startswith("resume-node")


def test_a_class_that_does_not_drain_any_more_resumes(node: Node) -> None:
    commands(node)
    node.act("drain", BAD, **SITE)
    node.act(
        "report", BAD
    )  # the site's commands may be gone as well: those that drained are remembered
    assert node.log()[1].startswith("resume-node 1:goldnode: the class does not drain any more")


def test_no_one_to_notify(node: Node) -> None:
    assert gate_files.NO_TARGET in " ".join(node.act("drain", BAD))
    assert node.state()["error"] == gate_files.NO_TARGET


def test_a_program_that_cannot_be_run_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("no program")
    found = Host("/").run(str(tmp_path / "hook"))
    assert (found.rc, "Permission" in found.err) == (126, True)


# -- Slurm

SCONTROL = r"""echo "scontrol $*" >> $DIR/log
[ ! -e $DIR/down ] || { echo 'slurm_update error: Unable to contact slurm controller (connect failure)' >&2; exit 1; }
case "$1" in
show)
    name=$(cat $DIR/name); [ "$3" = --oneliner ] || [ "$3" = "$name" ] || { echo "Node $3 not found"; exit 1; }
    echo "NodeName=other NodeHostName=other State=IDLE ThreadsPerCore=1"
    echo "NodeName=$name Arch=x86_64 NodeAddr=$name NodeHostName=gpu01 State=$(cat $DIR/state) Owner=N/A Reason=$(cat $DIR/why 2>/dev/null) [root@1795642787]"
    ;;
update)
    case "$3" in State=DRAIN) echo 'IDLE*+DRAIN' > $DIR/state; echo "$4" | sed 's/^Reason=//' > $DIR/why;; State=RESUME) echo IDLE > $DIR/state;; esac
    ;;
esac"""


def slurm(node: Node, state: str = "IDLE", why: str = "", name: str = "gpu01") -> None:
    node.script("scontrol", SCONTROL)
    for file, text in (("/state", state), ("/why", why), ("/name", name)):
        node.write(file, text.encode())


def updates(node: Node) -> list[str]:
    return [line for line in node.log() if " update " in line]


@pytest.mark.parametrize("name", ["gpu01", "rack3-gpu01"])
def test_slurm_is_drained_once_and_resumed(node: Node, name: str) -> None:
    slurm(node, name=name)
    for _ in range(3):
        node.act("drain", BAD)
    text = "goldnode: stack.lock: 4 differ (want as locked)"
    assert updates(node) == [f"scontrol update NodeName={name} State=DRAIN Reason={text}"]
    asked = len(node.log())
    node.act("drain", BAD)
    assert len(node.log()) == asked, "a fleet of bad nodes asks slurmctld nothing"
    node.act("drain", GOOD)
    node.act("drain", GOOD)
    assert updates(node)[1:] == [f"scontrol update NodeName={name} State=RESUME"]


@pytest.mark.parametrize(
    "state", ["IDLE+DRAIN", "DOWN*+DRAIN", "MIXED+DRAIN", "IDLE+DRAIN+NOT_RESPONDING"]
)
@pytest.mark.parametrize("why", ["broken fan", "goldnode: kernel 6.1 has to be booted"])
def test_a_node_drained_by_an_administrator_stays_drained(node: Node, state: str, why: str) -> None:
    """By a person, or by a rollout of goldnode's own on the controller: neither is this gate's to take back."""
    slurm(node, state, why)
    node.act("drain", BAD)
    node.act("drain", GOOD)
    assert updates(node) == []


def test_a_drain_that_a_person_took_over_stays(node: Node) -> None:
    slurm(node)
    node.act("drain", BAD)
    node.write("/why", b"waiting for a new GPU")
    reported = node.act("drain", GOOD)
    assert "not ours now" in " ".join(reported)
    assert len(updates(node)) == 1


def test_a_node_that_a_person_resumed_is_not_drained_for_the_same_again(node: Node) -> None:
    slurm(node)
    node.act("drain", BAD)
    node.write("/state", b"IDLE")
    node.act("drain", BAD)
    assert len(updates(node)) == 1
    node.act("drain", OTHER)
    assert len(updates(node)) == 2


def test_slurmctld_that_does_not_answer_is_asked_again(node: Node) -> None:
    slurm(node)
    node.write("/down", b"")
    node.act("drain", BAD)
    assert "Unable to contact" in node.state()["error"]
    node.remove("/down")
    node.act("drain", BAD)
    assert len(updates(node)) == 1


def test_a_node_that_slurm_does_not_know(node: Node) -> None:
    slurm(node, name="elsewhere")
    node.script("scontrol", 'echo "Node $3 not found"; exit 1')
    assert gate_files.NO_TARGET in " ".join(node.act("drain", BAD))


def test_drain_command_of_the_site_precedes_slurm(node: Node) -> None:
    slurm(node)
    commands(node)
    node.act("drain", BAD, **SITE)
    assert [line.split()[0] for line in node.log()] == ["drain-node"]


# -- the record

BROKEN = {
    "read-only": OSError(errno.EROFS, "Read-only file system"),
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "immutable": PermissionError(errno.EPERM, "Operation not permitted"),
}


def broken(
    node: Node, monkeypatch: pytest.MonkeyPatch, problem: OSError | None, verb: str = "write"
) -> None:
    """Let the record of the gate fail like this; None: it works again."""

    def fails(name: str, *rest: Any, **more: Any) -> Any:
        if name == gate_files.RECORD:
            raise problem or OSError
        return getattr(Host, verb)(node, name, *rest, **more)

    monkeypatch.undo()
    if problem is not None:
        monkeypatch.setattr(node, verb, fails)


@pytest.mark.parametrize("why", BROKEN)
@pytest.mark.parametrize("by", ["slurm", "command"])
def test_without_a_record_nothing_is_drained(
    node: Node, monkeypatch: pytest.MonkeyPatch, why: str, by: str
) -> None:
    site: dict[str, Any] = SITE if by == "command" else {}
    (commands if by == "command" else slurm)(node)

    def changes() -> list[str]:
        return updates(node) if by == "slurm" else node.log()

    node.act("drain", GOOD, **site)
    broken(node, monkeypatch, BROKEN[why])
    for _ in range(2):
        with pytest.raises(gate.IncompleteError, match=str(BROKEN[why].strerror)) as caught:
            node.act("drain", BAD, **site)
        assert "make room there, or see dmesg" in (caught.value.unrecorded or "")
        assert (changes(), node.open, node.state()["open"]) == ([], False, False)
        assert "cannot be written" in node.state()["error"]
    broken(node, monkeypatch, None)
    node.act("drain", BAD, **site)
    assert len(changes()) == 1
    broken(node, monkeypatch, BROKEN[why])
    with pytest.raises(gate.IncompleteError):
        node.act("drain", GOOD, **site)
    assert (len(changes()), node.open, bool(node.state()["told"])) == (1, True, True)
    broken(node, monkeypatch, None)
    node.act("drain", GOOD, **site)
    assert len(changes()) == 2
    assert node.state()["told"] is None


def test_a_record_that_cannot_be_read_is_not_replaced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(node)
    node.act("drain", BAD, **SITE)
    broken(node, monkeypatch, OSError(errno.EIO, "Input/output error"), "text")
    for found in (OTHER, GOOD):
        with pytest.raises(gate.IncompleteError, match="cannot be read: Input/output error"):
            node.act("drain", found, **SITE)
    assert (len(node.log()), bool(node.state()["told"])) == (1, True)
    broken(node, monkeypatch, None)
    node.act("drain", GOOD, **SITE)
    assert node.log()[1].startswith("resume-node")


def test_a_command_does_not_run_when_its_note_cannot_be_written(node: Node) -> None:
    commands(node)
    node.path(effects.NOTE).mkdir(parents=True)  # the shell cannot write there
    with pytest.raises(gate.IncompleteError, match="drain-node was not run"):
        node.act("drain", BAD, **SITE)
    assert node.log() == []
    node.path(effects.NOTE).rmdir()
    node.act("drain", BAD, **SITE)
    assert len(node.log()) == 1


@pytest.mark.parametrize(("status", "resumes"), [(0, True), (3, False)])
def test_the_outcome_of_a_command_outlives_its_check(
    node: Node, monkeypatch: pytest.MonkeyPatch, status: int, resumes: bool
) -> None:
    """The check is killed when its command has ended; the next one takes the status from the note."""
    commands(node, status)
    run = node.run

    def killed(*words: str, **more: Any) -> Result:
        run(*words, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(node, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        node.act("drain", BAD, **SITE)
    monkeypatch.undo()
    node.act("drain", BAD, **SITE)
    assert (len(node.log()), node.state()["told"]["ours"]) == (1, resumes)
    node.act("drain", GOOD, **SITE)
    assert len(node.log()) == (2 if resumes else 1)


def test_a_command_that_was_cut_off_is_called_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began and did not end, as after a power loss. Already drained then is a drain that a person takes back."""
    commands(node, 3)
    monkeypatch.setattr(
        effects, "NOTING", effects.NOTING.replace('echo "$id $s" >"$n"; sync "$n"; ', "")
    )
    run = node.run

    def killed(*words: str, **more: Any) -> Result:
        run(*words, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(node, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        node.act("drain", BAD, **SITE)
    monkeypatch.undo()
    node.act("drain", BAD, **SITE)
    assert (len(node.log()), node.state()["told"]["ours"]) == (2, False)


def test_a_full_run_directory_leaves_neither_verdict_nor_gate(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(node)
    written = {**BAD, "status": "drain"}
    gate.save(node, written, json.dumps(written))
    node.act("drain", BAD, **SITE)
    write = node.write

    def full(name: str, *rest: Any, **more: Any) -> None:
        if name == gate_files.STATE:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(name, *rest, **more)

    monkeypatch.setattr(node, "write", full)
    with pytest.raises(gate.IncompleteError) as caught:
        gate.act(node, {"gate": "drain", "site": SITE}, OTHER)
    assert (caught.value.unwritten or OSError()).filename == node.located(gate_files.STATE)
    assert len(node.log()) == 2, (
        "the record is sound, and the node is drained for the new reason too"
    )
    names = (
        gate_files.STATE,
        gate_files.PASS,
        gate_files.REASON,
        verdict_files.VERDICT,
        verdict_files.STATUS,
    )
    assert not any(node.exists(name) for name in names)


# -- while a run has the node out of service

RUN = drained.reason("0000-000000", "ctl", "2026-01-01T00:00:00Z", "kernel 6.1 runs, want 6.2")


def test_the_gate_resumes_nothing_under_a_run(node: Node) -> None:
    """The run may be about to boot the node."""
    slurm(node)
    node.act("drain", BAD)
    node.write(drained.FILE, b"{}")
    for _ in range(2):
        assert "resumes it when that run has ended" in " ".join(node.act("drain", GOOD))
    assert len(updates(node)) == 1
    node.remove(drained.FILE)
    node.act("drain", GOOD)
    assert updates(node)[-1].endswith("State=RESUME")


def test_a_drain_that_is_due_takes_the_place_of_the_runs(node: Node) -> None:
    """So the run does not return a bad node; the gate does, once it is good and the run has ended."""
    slurm(node, "IDLE+DRAIN", RUN)
    node.write(drained.FILE, b"{}")
    node.act("drain", BAD)
    text = "goldnode: stack.lock: 4 differ (want as locked)"
    assert updates(node) == [f"scontrol update NodeName=gpu01 State=DRAIN Reason={text}"]
    node.act("drain", GOOD)
    assert len(updates(node)) == 1
    node.remove(drained.FILE)
    node.act("drain", GOOD)
    assert updates(node)[-1].endswith("State=RESUME")


def test_a_drain_of_a_run_that_a_person_changed_stays(node: Node) -> None:
    slurm(node, "IDLE+DRAIN", f"{RUN}; bad fan")
    node.act("drain", BAD)
    node.act("drain", GOOD)
    assert updates(node) == []


def test_a_command_is_called_after_the_run(node: Node) -> None:
    """It could not tell the run's drain from a person's, and the gate would not drain when the run returns the node."""
    commands(node)
    node.write(drained.FILE, b"{}")
    assert "drains it when that run has ended" in " ".join(node.act("drain", BAD, **SITE))
    assert node.log() == []
    node.remove(drained.FILE)
    node.act("drain", BAD, **SITE)
    assert len(node.log()) == 1
    node.write(drained.FILE, b"{}")
    node.act("drain", GOOD, **SITE)
    assert len(node.log()) == 1


def test_a_run_that_has_long_been_cut_off_holds_nothing(node: Node) -> None:
    slurm(node)
    node.act("drain", BAD)
    node.write(drained.FILE, b"{}")
    old = time.time() - drained.LEASE - 60
    os.utime(node.path(drained.FILE), (old, old))
    node.act("drain", GOOD)
    assert updates(node)[-1].endswith("State=RESUME")


def test_release_takes_the_gate_away(node: Node) -> None:
    slurm(node)
    node.act("drain", BAD)
    gate.release(node)
    assert updates(node)[-1].endswith("State=RESUME")
    assert not any(
        node.path(name).exists()
        for name in (gate_files.PASS, gate_files.STATE, gate_files.REASON, gate_files.RECORD)
    )


# -- container runtimes

SYSTEMCTL = r"""echo "systemctl $*" >> $DIR/log
[ "$1" != is-enabled ] || sed -n 's/^Files=//p' "$DIR/$2"
[ "$1" = show ] || exit 0
shift 3
for unit; do cat "$DIR/$unit"; echo; done"""


def systemd(node: Node, **state: str) -> None:
    """docker.service as systemd has it, refused by the drop-in."""
    rows = {
        "Id": "docker.service",
        "LoadState": "loaded",
        "ActiveState": "inactive",
        "UnitFileState": "enabled",
        **state,
    }
    node.write(
        "/docker.service", "".join(f"{key}={value}\n" for key, value in rows.items()).encode()
    )
    node.script("systemctl", SYSTEMCTL)
    node.write(f"{gate_files.REFUSED}/docker.service", b"")


@pytest.mark.parametrize(
    ("state", "starts"),
    [
        ({}, True),
        ({"ActiveState": "failed"}, True),
        ({"UnitFileState": "disabled"}, False),
        ({"UnitFileState": "disabled", "Files": "disabled"}, False),
        ({"UnitFileState": "disabled", "Files": "enabled"}, True),  # the manager has an old answer
        ({"LoadState": "masked", "UnitFileState": "masked"}, False),
        ({"LoadState": "not-found", "UnitFileState": ""}, False),
        ({"ActiveState": "active"}, False),
        ({"ActiveState": "activating"}, False),
    ],
)
def test_opened_gate_starts_a_stopped_engine_unless_masked_or_disabled(
    node: Node, state: dict[str, str], starts: bool
) -> None:
    systemd(node, **state)
    node.act("block", BAD)
    assert node.log() == [], "a closed gate asks systemd nothing"
    node.act("block", GOOD)
    assert ("systemctl start --no-block docker.service" in node.log()) is starts
    before = len(node.log())
    node.act("block", GOOD)
    assert len(node.log()) == before, "once"


def test_nothing_that_runs_is_ever_stopped(node: Node) -> None:
    systemd(node, ActiveState="active")
    slurm(node)
    for mode in ("report", "drain", "block"):
        for found in (GOOD, BAD, OTHER, GOOD):
            node.act(mode, found)
    assert not [
        line
        for line in node.log()
        if any(word in line for word in ("stop", "restart", "kill", "isolate"))
    ]


FILE = f"/etc/systemd/system/docker.service.d/{gate_files.DROP_IN}"


def condition(
    node: Node, unit: str = "docker.service", logger: str = "false"
) -> subprocess.CompletedProcess[str]:
    """Run the shell of the drop-in as systemd would: with its own escapes resolved and the unit's name filled in.

    :param logger: what runs in the place of `logger --journald`, which fails where util-linux has no journald.
    """
    line = gate_files.drop_in().split("ExecCondition=")[1].strip().replace("\\\n", " ")
    assert line.startswith("/bin/sh -c '")
    assert line.endswith("'")
    script = (
        line.removeprefix("/bin/sh -c '")
        .removesuffix("'")
        .replace("$$", "$")
        .replace("%n", unit)
        .replace("%%", "%")
        .replace("\\\\", "\\")
    )
    script = script.replace("sleep 1", ":").replace("logger --journald", logger)
    for name in ("/run/goldnode", "/proc/uptime", "/etc/systemd"):
        script = script.replace(name, f"{node.root}{name}")
    return subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)


def test_the_condition_of_a_runtime(node: Node) -> None:
    stored = node.path(f"{gate_files.REFUSED}/docker.service")
    assert condition(node).returncode == 0, (
        "without its file there is no gate, whatever systemd still has loaded"
    )
    node.write(FILE, b"")
    assert "no verdict since this boot" in condition(node).stderr
    node.act("block", BAD)
    refused = condition(node)
    assert (refused.returncode, stored.exists()) == (1, True)
    assert refused.stderr == "goldnode gate: stack.lock: 4 differ (want as locked)\n"
    journal = condition(node, logger="cat")
    assert (journal.returncode, journal.stderr) == (1, "")
    assert journal.stdout.splitlines() == [
        "MESSAGE=goldnode gate: stack.lock: 4 differ (want as locked)",
        "PRIORITY=4",
        "SYSLOG_IDENTIFIER=goldnode",
        "OBJECT_SYSTEMD_UNIT=docker.service",
    ]
    node.act("block", GOOD)
    assert condition(node).returncode == 0
    node.write(f"{gate_files.REFUSED}/docker.service", b"")
    assert (condition(node).returncode, stored.exists()) == (0, False), (
        "it starts, so it is not kept out any more"
    )
    node.at(1000.0 + verdict_files.LIMIT)
    assert condition(node).returncode == 0
    node.at(1001.0 + verdict_files.LIMIT)
    late = condition(node)
    assert (late.returncode, "too old" in late.stderr) == (1, True)


@pytest.mark.parametrize("content", ["", "\n", "x", "x y\n", "1000\n", "-1 -1\n", "$(true) 9\n"])
def test_a_pass_that_is_invalid_lets_nothing_start(node: Node, content: str) -> None:
    node.write(FILE, b"")
    node.write(gate_files.PASS, content.encode())
    assert condition(node).returncode in range(1, 255)


# -- the line at login


def motd(node: Node) -> str:
    """What the script of the login prints on this node."""
    script = units.MOTD_TEXT
    for name in ("/run/goldnode", "/proc/uptime"):
        script = script.replace(name, f"{node.root}{name}")
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_line_at_login(node: Node) -> None:
    assert "has not been checked since it booted" in motd(node)

    def login_line(found: dict[str, Any], mode: str, status: str) -> str:
        written = {**found, "status": status}
        gate.save(node, written, json.dumps(written))
        node.act(mode, written)
        text = motd(node)
        assert text.count("\n") == (1 if text else 0)
        return text

    assert login_line(verdict(finding(MATCH)), "report", "healthy") == ""
    assert "class case, verdict: drain (exit code 2)" in login_line(BAD, "report", "drain")
    assert "the gate is closed: stack.lock: 4 differ" in login_line(BAD, "block", "drain")
    assert login_line(verdict(finding(MATCH)), "block", "healthy") == ""
    node.at(1001.0 + verdict_files.LIMIT)
    assert "too old" in motd(node)
    node.write(verdict_files.STATUS, b"- 3 could_not_check unknown\n")
    assert "the last verdict cannot be read" in motd(node)


# -- the cached verdict


def cached(node: Node, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    form, rest = current.split(arguments)
    assert form is not None
    code = current.answer(form, "--quiet" in rest, node.root)
    output = capsys.readouterr()
    return code, output.out, output.err


def test_cached_verdict_is_printed_and_exits_3_when_missing_or_old(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (cached(node, capsys)[0], "no class document" in cached(node, capsys)[2]) == (3, True)
    node.write(verdict_files.CLASS, json.dumps({"digest": DIGEST}).encode())
    code, out, err = cached(node, capsys)
    assert (code, out, "no verdict of this boot" in err) == (3, "", True)
    written = {**BAD, "status": "drain", "simulated": False, "counts": {MISMATCH: 1}}
    node.write(verdict_files.VERDICT, json.dumps(written).encode())
    code, out, err = cached(node, capsys, "--quiet")
    assert (code, out, err) == (2, "verdict: drain (exit code 2): 1 differs\n", "")
    assert "stack.lock" in cached(node, capsys)[1]
    assert json.loads(cached(node, capsys, "--format=json")[1]) == written
    node.at(991.0 + verdict_files.LIMIT)
    code, out, err = cached(node, capsys, "--format=json")
    assert (code, documents.valid(out)["exit_code"], "s old" in err) == (3, 3, True)
    node.at(1000.0)
    node.write("/proc/1/stat", STAT.replace(" 22 ", " 23 ").encode())
    assert "another boot" in cached(node, capsys)[2]


# -- when a check acts


@pytest.mark.parametrize(
    ("arguments", "acts"),
    [
        ([], True),
        (["--quiet", "--passive"], True),
        (["--format", "json"], True),
        (["--no-gate"], False),
        (["--no-write"], False),
        (["--class", "/another/class.json"], False),
        (["--root", "/another/root"], False),
    ],
)
def test_gate_acts_only_on_checks_of_the_live_node(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], acts: bool
) -> None:
    """Only a check of the live machine against its own class; looking does not act."""
    found = {**GOOD, "status": "could_not_check", "simulated": False, "counts": {}}
    acted: list[Any] = []
    monkeypatch.setattr(Host, "write", lambda *_: None)
    monkeypatch.setattr(program, "managed", lambda _: True)
    monkeypatch.setattr(program, "read_document", lambda *_: {"gate": "block"})
    monkeypatch.setattr(check, "examine", lambda *_, **__: check.Checked(found, None, None, None))
    monkeypatch.setattr(check, "check", lambda *_, **__: found)

    def act(_: Host, *given: Any) -> list[str]:
        acted.append(given)
        return []

    monkeypatch.setattr(gate, "act", act)
    assert program.main(["check", *arguments]) == 3
    assert [given[:2] for given in acted] == ([({"gate": "block"}, found)] if acts else [])


# -- what the boot check says of it


def outcomes(mode: str, patch: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    wanted: Any = {**document(), "gate": mode}
    seen = converged(wanted)
    seen.units = merge(seen.units, patch)
    return {item.id: (item.outcome, item.got) for item in units.findings(wanted, seen)}


def test_gate_findings_match_unless_timer_or_units_differ() -> None:
    assert {outcome for outcome, _ in outcomes("report", {}).values()} == {MATCH}
    closed = outcomes("block", {"gate": {"mode": "block", "open": False}})
    assert closed["gate"] == (MATCH, "block: closed"), (
        "the gate tells; it is the finding that closed it which counts"
    )
    assert outcomes("block", {"gate": None})["gate"][1] == "block: not decided yet in this boot"
    assert outcomes("drain", {})["gate.hook"] == (MISMATCH, gate_files.NO_TARGET)
    assert outcomes("drain", {"hook": "slurm"})["gate.hook"][0] == MATCH
    assert outcomes("drain", {"hook": "slurm", "gate": {"error": "no link"}})["gate.hook"] == (
        MISMATCH,
        "no link",
    )
    timer = outcomes("report", {"loaded": {units.TIMER: {"ActiveState": "inactive"}}})
    assert timer["watch.timer"] == (MISMATCH, "inactive")
    old = outcomes("report", {"loaded": {"goldnode-sanity.service": {"NeedDaemonReload": "yes"}}})
    assert old["units.loaded"] == (MISMATCH, "not as on disk: goldnode-sanity.service")
    without = outcomes("report", {"loaded": None})
    assert (without["watch.timer"][0], without["units.loaded"][0]) == (ELSEWHERE, ELSEWHERE)


def test_systemd_is_asked_once(node: Node) -> None:
    node.write("/run/systemd/system/x", b"")
    node.script(
        "systemctl", 'shift 3; for unit; do printf "Id=$unit\\nLoadState=not-found\\n\\n"; done'
    )
    seen = converged(document())
    units.observe(node, document(), seen)
    assert len(node.commands) == 1
    loaded = set(seen.units["loaded"])
    assert loaded >= set(units.ALWAYS)
    assert "docker.service" not in loaded, "it has no file, and does not run"
    node.write("/usr/lib/systemd/system/docker.service", b"[Service]\nExecStart=/bin/true\n")
    units.observe(node, document(), seen)
    assert set(seen.units["loaded"]) == {*loaded, "docker.service"}


def test_a_drain_of_the_health_check_program_is_taken_back_with_it(node: Node) -> None:
    text = "goldnode: health check: the last verdict is too old; see systemctl status goldnode-watch.timer"
    applier: Any = SimpleNamespace(host=node)
    action: Any = SimpleNamespace(data={"reason": text})
    node.write(shims.MEMORY, f"{text}\n".encode())
    slurm(node, "IDLE+DRAIN", text)
    assert handlers.release_health_check(applier, action) == "resumed"
    assert updates(node) == ["scontrol update NodeName=gpu01 State=RESUME"]
    assert node.text(shims.MEMORY) is None
    for state, why in (
        ("IDLE+DRAIN", "bad fan"),
        ("IDLE+DRAIN", "goldnode: stack.lock: 4 differ"),
        ("IDLE", text),
    ):
        slurm(node, state, why)
        assert "stays as it is" in handlers.release_health_check(applier, action)
    assert len(updates(node)) == 1
    node.write("/down", b"")
    node.write(shims.MEMORY, f"{text}\n".encode())
    with pytest.raises(NodeError, match="cannot be resumed"):
        handlers.release_health_check(applier, action)
    assert node.text(shims.MEMORY) is not None
