"""The scoreboard's runs: each row of the table on a node of its own, through the command that a node runs.

A row is validated against the node once as it is (the base, which is checked twice and has to be healthy both times), with the fault, with it
once more, and after a boot. What is asked is `goldnode-node check --format json` itself, on a root directory that plays a live machine.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests import documents
from tests.faults import classes
from tests.faults.table import Row
from tests.simulators.hardware import machine
from tests.simulators.hardware.scenario import Scenario

from goldnode.node.device import child
from goldnode.node.ground import process
from goldnode.node.program import main as program
from goldnode.node.state.domains import program as program_domain
from goldnode.node.state.kinds import KINDS

Json = dict[str, Any]
# Outcomes that say something is wrong, or that nobody knows.
BAD = ("mismatch", "could_not_read", "not_verified_here")
PERIOD = 300.0
# Seconds after which a driver counts as hung: of a node whose driver is made to, instead of the minutes that a real one is given; and of the
# others, which only wait for a busy machine.
HANG, PATIENCE = 2.0, 60.0


@dataclass
class Node:
    """One simulated node with what was done to it."""

    root: Path
    document: Json
    library: Path
    healthy: Scenario | None
    boards: Scenario | None
    on_bus: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    clock: float = 0.0  # how far it is off
    elapsed: float = 0.0  # seconds that have passed on the node since it was made
    output: list[str] = field(default_factory=list)
    hangs: bool = False  # whether its driver is one that hangs

    @property
    def machine(self) -> machine.Machine:
        return machine.Machine(self.root, self.library)

    def faulty(self, faults: Sequence[str]) -> None:
        """Add faults of boards and bus."""
        if self.boards is None:
            raise AssertionError("this node has no GPUs")
        self.hangs = self.hangs or any("=hang" in one for one in faults)
        before = self.boards
        self.boards = machine.fault(
            self.machine, before, self.document, *faults, layout_faults=self.on_bus
        )

    def without(self, fault: str) -> None:
        """Take one fault of the boards away."""
        if self.boards is None:
            raise AssertionError("this node has no GPUs")
        left = {key: value for key, value in self.boards.faults.items() if key != fault}
        self.boards = replace(self.boards, faults=left)
        self.faulty([])

    def redocument(self, change: Callable[[Json], object]) -> None:
        """Another class document, as site.yml would have put it there."""
        document = json.loads(json.dumps(self.document))
        change(document)
        document["digest"] = program_domain.document_digest(document)
        self.document = document
        machine.spoil(
            self.root, "etc/goldnode/class.json", program_domain.class_file(document).content
        )

    def now(self) -> float:
        """The node's clock. It does not go by that of the machine that runs this: a row may come minutes after its base."""
        return machine.EPOCH + self.elapsed + self.clock

    def wait(self, seconds: float) -> None:
        """Let time pass on the node: uptime and clock."""
        machine.later(self.root, seconds)
        self.elapsed += seconds

    def command(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of `goldnode-node WORDS`."""
        host = self.machine
        out, err = io.StringIO(), io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(host.environment())
            stack.enter_context(mock.patch.dict(os.environ, self.variables))
            stack.enter_context(
                mock.patch.object(
                    program,
                    "Host",
                    lambda root="/", live=None: host if root == "/" else _host(root, live),
                )
            )
            stack.enter_context(mock.patch.object(time, "time", self.now))
            stack.enter_context(_hurried(HANG if self.hangs else PATIENCE))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            gc.disable()  # as the start of the program does
            stack.callback(gc.enable)
            code = program.main(list(words))
        return code, out.getvalue(), err.getvalue()

    def check(self, passive: bool = False) -> Json:
        """The verdict of `goldnode-node check --format json`, with the exit code of the command as `rc` and all that it printed as `printed`."""
        code, out, err = self.command(
            "check", "--format", "json", "--no-gate", *(["--passive"] if passive else [])
        )
        try:
            verdict: Json = json.loads(out)
        except ValueError:
            verdict = {"exit_code": None, "findings": [], "status": out[-300:] + err[-600:]}
        else:
            documents.valid(out)
        capture = self.root / "run/goldnode/capture.json"
        if capture.is_file():
            documents.valid(capture.read_text(encoding="utf-8"))
        verdict.update(rc=code, printed=out, errors=err)
        return verdict


def _host(root: str, live: bool | None) -> Any:
    from goldnode.node.ground.host import Host

    return Host(root, live)


@contextlib.contextmanager
def _hurried(limit: float) -> Iterator[None]:
    """No patience with a driver that hangs: the limits are the product's own, only smaller."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(child, "LIMIT", limit))
        stack.enter_context(mock.patch.object(child.ask, "__defaults__", (limit,)))
        stack.enter_context(mock.patch.object(process, "GRACE", 0.5))
        try:
            from goldnode.node.device import stream
        except ImportError:
            pass
        else:
            for name, value in (("LIMIT", limit), ("STALL", limit)):
                if hasattr(stream, name):
                    stack.enter_context(mock.patch.object(stream, name, value))
            defaults = stream.Pending.finish.__defaults__
            if defaults:
                stack.enter_context(
                    mock.patch.object(
                        stream.Pending.finish, "__defaults__", tuple(limit for _ in defaults)
                    )
                )
        yield


class Bases:
    """Healthy nodes, one for each class, made when one is asked for; each has been checked twice. The rows of a class have one copy, one after
    the other.
    """

    def __init__(self, place: Path, library: Path) -> None:
        self.place, self.library = place, library
        self.verdicts: dict[str, list[Json]] = {}
        self.boards: dict[str, Scenario | None] = {}

    def base(self, name: str) -> Path:
        """The root of the healthy node of a class."""
        root = self.place / name
        if not root.exists():
            document = classes.document(name)
            boards = self.boards[name] = machine.scenario(document)
            machine.write(boards, root, document, library=self.library)
            node = Node(root, document, self.library, boards, boards)
            first = node.check()
            node.wait(PERIOD)
            self.verdicts[name] = [first, node.check()]
        return root

    def node(self, name: str) -> Node:
        """The copy of it, as new: a row before this one has nothing of it any more."""
        base = self.base(name)
        root = self.place / "copies" / name
        machine.copied(base, root)
        boards = self.boards[name]
        node = Node(root, classes.document(name), self.library, boards, boards, elapsed=PERIOD)
        node.wait(PERIOD)
        return node


@dataclass
class Result:
    """What became of a row: what is wrong with it (nothing: passed), and the verdicts by the name of the run."""

    wrong: list[str]
    verdicts: dict[str, Json]
    seconds: float


def run(row: Row, bases: Bases) -> Result:
    """Hold one row against the program."""
    began = time.process_time()
    node = bases.node(row.node)
    verdicts: dict[str, Json] = {}
    wrong: list[str] = []

    def judged(name: str, kind: str) -> None:
        verdicts[name] = node.check(passive=name == "again")
        wrong.extend(f"{name}: {output}" for output in judge(row, verdicts[name], kind))

    if row.trap:
        (node.root / "var/lib/goldnode/sanity.json").unlink(missing_ok=True)
    row.do(node, 1)
    judged("first", "as told")
    node.wait(PERIOD)
    row.do(node, 2)
    judged("again", "told" if row.once else "as told")
    if row.boots:
        if row.boot is not None and node.healthy is not None:
            node.boards = node.healthy
            node.on_bus = {}
            node.faulty([])
        machine.reboot(node.machine)
        node.elapsed += PERIOD
        if row.boot is not None:
            row.boot(node, 1)
        elif row.outlives:
            row.do(node, 3)
        judged("boot", "as told" if row.outlives or row.trap else "healthy")
    return Result(wrong, verdicts, time.process_time() - began)


def absent(verdict: Json) -> list[str]:
    """The remedies that name a finding which the verdict does not report."""
    reported = {finding["id"] for finding in verdict["findings"] if finding["outcome"] != "match"}
    found = []
    for finding in verdict["findings"]:
        named = set(re.findall(r"`([a-z_.]+)`", str(finding["remedy"]))) & set(KINDS)
        if finding["outcome"] != "match" and named - reported:
            found.append(
                f"{finding['id']}: its remedy names {named - reported}, which is not reported"
            )
    return found


def judge(row: Row, verdict: Json, kind: str) -> list[str]:
    """What is wrong with a verdict."""
    bad = [finding for finding in verdict["findings"] if finding["outcome"] in BAD]
    reported = "; ".join(
        f"{f['id']} {f['subject'] or ''} {f['outcome']}: want {f['expected']}, got {f['got']}"[:240]
        for f in bad[:6]
    )
    wrong = []
    if verdict["rc"] != verdict["exit_code"]:
        wrong.append(
            f"the command ended with {verdict['rc']}, and its verdict says {verdict['exit_code']}: {verdict['status']}"
        )
    if not (verdict["printed"] + verdict["errors"]).replace("\n", "").isprintable():
        wrong.append("control characters were printed")
    if "Traceback" in verdict["errors"]:
        wrong.append(f"a crash: {verdict['errors'].strip().splitlines()[-1]}")
    wrong += absent(verdict)
    if kind == "told":
        return wrong
    if row.trap or kind == "healthy":
        if verdict["exit_code"] != 0:
            wrong.append(f"exit code {verdict['exit_code']}, want 0: {reported}")
        return wrong
    if verdict["exit_code"] not in row.codes:
        wrong.append(
            f"exit code {verdict['exit_code']}, want {' or '.join(map(str, row.codes))}: {reported or 'nothing is told'}"
        )
    outcomes = (*BAD, "not_exposed", "deferred") + (("match",) if row.note else ())
    found = [
        finding
        for finding in verdict["findings"]
        if finding["outcome"] in outcomes and re.fullmatch(row.find, finding["id"])
    ]
    if not found:
        wrong.append(f"no finding {row.find}: {reported or 'nothing is told'}")
        return wrong
    if row.about and not any(row.about in json.dumps(finding) for finding in found):
        wrong.append(f"no finding names {row.about}: {json.dumps(found)[:400]}")
    remedies = " ".join(str(finding["remedy"]) for finding in found)
    if row.remedy and not re.search(row.remedy, remedies, re.I):
        wrong.append(f"no remedy says {row.remedy}: {remedies[:300]}")
    if row.blast and not any(finding.get("blast") == row.blast for finding in found):
        wrong.append(f"blast is {[finding.get('blast') for finding in found]}, want {row.blast}")
    return wrong
