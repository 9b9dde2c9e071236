"""The gate under damage: sequences of checks on places that are read-only or full, kills, persons and repairs.

Of each sequence: a hook is called once for a transition, verdict and gate agree, a repaired node returns by itself, and
the drain of a person stays. The machine is a directory; the effects that a kill can interrupt are counted.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import documents
from tests.unit.node.gate.test_gate import DIGEST, STAT, finding, verdict

from goldnode.node.gate import gate
from goldnode.node.ground import gate_files, verdict_files
from goldnode.node.ground.host import Host, Result
from goldnode.node.program import judging
from goldnode.node.serve import publish
from goldnode.node.state.finding import MATCH, MISMATCH
from goldnode.node.verdict import check as checking
from goldnode.node.verdict import current

COMMANDS = {"drain": ["/site/drain"], "resume": ["/site/resume"]}
FAULTS = {"readonly": errno.EROFS, "full": errno.ENOSPC}
PLACES = ("/var", "/run")
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class KilledError(BaseException):
    """The check was killed."""


class DamagedNode(Host):
    """A live node in a directory, with a scheduler: Slurm, or commands of the site."""

    def __init__(self, root: Path, by: str) -> None:
        super().__init__(str(root), live=True)
        self.by, self.damage, self.left = by, dict.fromkeys(PLACES, ""), -1
        self.drained, self.reason, self.persons = False, "", False
        self.calls: list[str] = []
        self.refuses = False  # the scheduler does not answer
        self.late = False  # it does what it is asked to, and reports a failure
        for name, text in {
            "/proc/sys/kernel/hostname": "gpu01\n",
            "/proc/1/stat": STAT,
            verdict_files.CLASS: json.dumps({"digest": DIGEST}),
        }.items():
            super().write(name, text.encode())
        if by == "slurm":
            super().write("/usr/bin/scontrol", b"")
        self.boots = 0
        self.boot()

    def boot(self) -> None:
        """Begin another boot: /run is empty and sound."""
        self.boots += 1
        self.damage["/run"] = ""
        for path in self.path("/run/goldnode").glob("*"):
            path.unlink()
        Host.write(self, "/proc/sys/kernel/random/boot_id", f"b{self.boots}\n".encode())
        Host.write(self, "/proc/uptime", b"1000.00 0.00\n")

    def effect(self) -> None:
        """Count an effect. The check is killed at one of them."""
        self.left -= 1
        if self.left == 0:
            raise KilledError

    def refused(self, name: str, kinds: tuple[str, ...]) -> None:
        """Raise the error of a place that is damaged in one of these ways."""
        damage = self.damage.get(name[:4], "")
        if damage in kinds:
            raise OSError(FAULTS[damage], os.strerror(FAULTS[damage]), name)

    def write(self, name: str, content: bytes, mode: int = 0o644, owner: Any = None) -> None:
        self.effect()
        self.refused(name, ("readonly", "full"))
        super().write(name, content, mode, owner)

    def remove(self, name: str) -> None:
        self.effect()
        if self.exists(name):
            self.refused(name, ("readonly",))
        super().remove(name)

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        if argv[0] == "/bin/sh":
            return self.shell(*argv[4:])
        if self.refuses:
            return Result(argv, 1, "", "slurm_load_node error: Unable to contact slurm controller")
        if argv[1] == "show":
            why = f" Reason={self.reason} [root@2026-01-01T00:00:00]" if self.reason else ""
            state = "IDLE+DRAIN" if self.drained else "IDLE"
            return Result(argv, 0, f"NodeName=gpu01 State={state}{why} Comment=rack 7\n", "")
        self.effect()
        words = dict(word.split("=", 1) for word in argv[3:])
        self.change(
            {"DRAIN": "drain", "RESUME": "resume"}.get(words.get("State", ""), ""),
            words.get("Reason"),
        )
        self.effect()
        return Result(argv, 1 if self.late else 0, "", "slurm_update error")

    def shell(self, note: str, identity: str, program: str, reason: str) -> Result:
        """Run a command of the site as effects.NOTING does. The shell is no part of a check that is killed."""
        self.effect()
        name = "/" + str(Path(note).relative_to(self.root))
        try:
            self.refused(name, ("readonly", "full"))
        except OSError as problem:
            return Result((program,), 125, "", str(problem))
        Host.write(self, name, f"{identity}\n".encode())
        status = 1 if self.refuses else self.change(program.rpartition("/")[2], reason)
        Host.write(self, name, f"{identity} {status}\n".encode())
        self.effect()
        return Result((program,), status, "", "no link" if status else "")

    def change(self, what: str, reason: str | None) -> int:
        """Change the node in its scheduler. Return 3 if there was nothing to do."""
        if not what:
            self.reason = reason or self.reason
            return 0
        self.calls.append(what)
        if what == "resume":
            assert not self.persons, "the drain of a person is never touched"
            assert self.drained, "it is resumed once"
            self.drained, self.reason = False, ""
            return 0
        if self.drained:
            assert self.persons, "it is drained once"
            assert self.by == "command", "the drain of a person is never touched"
            return 3  # a command reports that
        self.drained, self.reason = True, reason or ""
        return 0

    def person(self, drains: bool) -> None:
        """A person drains a node in service, takes over one that Slurm shows drained, or returns what is hers."""
        if drains and (not self.drained or self.by == "slurm"):
            self.drained, self.persons, self.reason = True, True, "bad fan"
        elif not drains and self.persons:
            self.drained, self.persons, self.reason = False, False, ""

    def check(self, bad: bool, at: int = -1) -> int:
        """Run a check as the program does. Return its exit code; -1 if it was killed at this effect."""
        rows = [finding(MISMATCH, "drain") if bad else finding(MATCH)]
        found: dict[str, Any] = {
            **verdict(*rows, code=2 if bad else 0, boot_identity=f"b{self.boots}/22"),
            "status": "drain" if bad else "healthy",
            "counts": dict.fromkeys(checking.OUTCOMES, 0),
            "simulated": False,
        }
        site = {"gate": COMMANDS} if self.by == "command" else {}
        document: Any = {"class": "case", "gate": "drain", "site": site, "digest": DIGEST}
        self.left = at
        try:
            done = judging.deliver(self, document, found, None)
        except KilledError:
            return -1
        finally:
            self.left = -1
        return 3 if done.unwritten else int(done.verdict["exit_code"])


def agree(node: DamagedNode, code: int) -> None:
    """The answer of `check --cached`, the state of the gate, its pass and the metrics are of one check."""
    state = gate.load_state(node)
    if state:
        documents.valid(state)
    assert (state.get("open") is True) is node.exists(gate_files.PASS)
    found, fault = current.load(node.root)
    if fault is not None:
        assert (code, state) == (3, {}), "no verdict counts, so no gate does"
        return
    bad = any(
        row["severity"] == "drain" and row["outcome"] == MISMATCH for row in found["findings"]
    )
    assert state["open"] is not bad
    if node.damage["/run"] == "readonly":
        assert code == 3, "an earlier check, which its age ends"
        return
    assert code == found["exit_code"]
    (value,) = re.findall(
        r"^goldnode_gate_open.* (\d)$", node.text(publish.METRICS) or "", re.MULTILINE
    )
    assert value == str(int(state["open"]))


STEPS = st.one_of(
    st.tuples(st.just("check"), st.booleans()),
    st.tuples(st.just("check"), st.booleans()),
    st.tuples(st.just("kill"), st.tuples(st.booleans(), st.integers(1, 24))),
    st.tuples(
        st.just("damage"), st.tuples(st.sampled_from(PLACES), st.sampled_from(["readonly", "full"]))
    ),
    st.tuples(st.just("repair"), st.sampled_from(PLACES)),
    st.tuples(st.just("boot"), st.none()),
    st.tuples(st.just("refuses"), st.booleans()),
    st.tuples(st.just("late"), st.booleans()),
    st.tuples(st.just("person"), st.booleans()),
)


def run(by: str, steps: list[tuple[str, Any]]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gn-", dir=MEMORY) as place,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(os, "fsync", lambda _: None)
        node, torn = DamagedNode(Path(place) / "n", by), False
        for what, detail in steps:
            if what == "check":
                code = node.check(detail)
                torn = (
                    torn and node.damage["/run"] == "readonly"
                )  # then nothing can repair what a kill has left
                if not torn:
                    agree(node, code)
            elif what == "kill":
                torn = node.check(*detail) == -1 or torn
            elif what == "damage":
                node.damage[detail[0]] = detail[1]
            elif what == "repair":
                node.damage[detail] = ""
            elif what in ("boot", "person"):
                getattr(node, what)(*([detail] if what == "person" else []))
            else:
                setattr(node, what, detail)
        node.damage, node.refuses, node.late = dict.fromkeys(PLACES, ""), False, False
        for _ in range(2):
            code = node.check(False)
            agree(node, code)
        assert code == 0
        assert node.drained is node.persons, "a repaired node returns by itself"
        calls = list(node.calls)
        node.check(False)
        assert node.calls == calls


SEQUENCES = st.lists(STEPS, min_size=2, max_size=14)
SCHEDULERS = st.sampled_from(["slurm", "command"])


@settings(max_examples=150)
@given(by=SCHEDULERS, steps=SEQUENCES)
def test_no_damage_loses_a_drain_or_parts_verdict_and_gate(
    by: str, steps: list[tuple[str, Any]]
) -> None:
    run(by, steps)


@pytest.mark.long
@settings(max_examples=2500)
@given(by=SCHEDULERS, steps=SEQUENCES)
def test_no_damage_of_thousands_loses_a_drain_or_parts_verdict_and_gate(
    by: str, steps: list[tuple[str, Any]]
) -> None:
    run(by, steps)
