"""Nodes of the ladder: their verdicts over ssh, their state in the scheduler, and the evidence of repairs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from goldnode.core.errors import GoldnodeError
from goldnode.documents.verdict import Verdict, VerdictDocument
from goldnode.facts import ladder as facts
from goldnode.fleet.control.drains import RolloutDrains
from goldnode.fleet.control.rungs import RungTools
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.drain.protocol import DrainCaller
from goldnode.fleet.nodes import return_delivery
from goldnode.fleet.nodes.disk_update import run_installed
from goldnode.fleet.nodes.reach import SshNode, last_line
from goldnode.fleet.nodes.return_delivery import HeldNode
from goldnode.fleet.rollout.ladder import (
    CasePhase,
    Holder,
    NodeSeen,
    RepairCase,
)
from goldnode.fleet.rollout.model import Prior, SchedulerObservation
from goldnode.fleet.shared import identity
from goldnode.node.ground.drained import GATE, mark

LOGGER = logging.getLogger("goldnode.ladder")
CHECK = 300.0  # seconds for a check
EVERY = 300.0  # seconds between two readings of a node without a case
# Verdicts that tell nothing of a node.
_UNKNOWN = ("could_not_check", "not_this_class")
_RUNS = frozenset(("service-restart", "gpu-reset", "module-reload", "reboot"))
# Files stored before a rung -> command on the node.
_EVIDENCE: Mapping[str, tuple[str, ...]] = {
    "kernel.log": ("sh", "-c", "journalctl -k -b --no-pager -n 20000 2>/dev/null || dmesg"),
    "services.log": ("journalctl", "-b", "--no-pager", "-p", "warning", "-n", "5000"),
    "nvidia-smi.txt": ("timeout", "60", "nvidia-smi", "-q"),
    "processes.txt": ("ps", "-eo", "pid,ppid,user,state,wchan:32,etime,args"),
}


class LadderDrains(RolloutDrains):
    """Drains of the ladder, as one run on any of its controllers."""

    def _why(self) -> str:
        return "repair, see `goldnode fleet ladder explain`"


def holder_of(seen: SchedulerObservation, case: RepairCase | None) -> Holder:
    """Return who holds a node out of service, by the reason that its scheduler shows."""
    if seen.in_service:
        return Holder.NONE
    run = drained_by(seen)
    if run and case is not None and case.run and run == identity.rollout_run(case.run):
        return Holder.LADDER
    if identity.is_rollout(run):
        return Holder.TURN
    return Holder.GATE if seen.reason.startswith(GATE) else Holder.OTHER


def drained_by(seen: SchedulerObservation) -> str:
    """Return the id of the run whose mark a scheduler shows; empty for a drain of another."""
    held = mark(seen.reason)
    return held.run if held is not None else ""


@dataclass
class LadderNodes:
    """A LadderReader and LadderHands over ssh.

    :param places: node -> class, rack, leaf and cohort.
    :param offender: why nothing but a person returns a node; empty if something may.
    :param tested: classes that declare tests after a repair or an Xid.
    :param retest: returns why a node that was installed at a time (UTC) must not return yet; empty if it may. Its own gate has
        no memory of the repair.
    """

    reach: Callable[[str], SshNode]
    schedulers: SiteSchedulers
    drains: LadderDrains
    places: Mapping[str, Mapping[str, str | None]]
    evidence_dir: Path
    can: frozenset[str] = _RUNS
    tested: frozenset[str] = frozenset()
    tools: RungTools | None = None
    offender: Callable[[str], str] = lambda name: ""
    retest: Callable[[str, str], str] = lambda name, since: ""
    clock: Callable[[], float] = time.time
    parallel: int = 16
    unread: dict[str, str] = field(default_factory=dict)
    _verdicts: dict[str, tuple[float, Verdict | None]] = field(default_factory=dict)

    # -- reader

    def read(self, cases: Mapping[str, RepairCase]) -> dict[str, NodeSeen]:
        """See LadderReader. Nodes without a case are read every five minutes, and from their last verdict."""
        now = self.clock()
        due = [
            name
            for name in self.places
            if name in cases or now - self._verdicts.get(name, (-EVERY, None))[0] >= EVERY
        ]
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="read") as threads:
            answers = threads.map(lambda name: self._verdict(name, cases.get(name)), due)
            self._verdicts.update(zip(due, answers, strict=True))
        try:
            states = {item.node: item for item in self.schedulers.read(self.places)}
        except GoldnodeError as problem:
            LOGGER.warning("the scheduler cannot be asked: %s", problem)
            return {}
        seen = {name: self._seen(name, states.get(name), cases) for name in self.places}
        return {
            name: node
            for name, node in seen.items()
            if node is not None and (node.findings or name in cases or node.holder is Holder.TURN)
        }

    def _verdict(self, name: str, case: RepairCase | None) -> tuple[float, Verdict | None]:
        """Return the newest verdict of a node with the time of its reading. A node with a case is checked now."""
        began = self.clock()
        if (
            case is not None
            and case.phase in (CasePhase.ACT, CasePhase.DRAIN)
            and name in self._verdicts
        ):
            before, verdict = self._verdicts[name]
            if began - before < 60.0 or case.phase is CasePhase.ACT:
                return before, verdict
        words = ["check", "--format", "json"]
        if case is None:
            words.append("--cached")
        verdict, why = self._checked(name, words)
        if why:
            self.unread[name] = why
        else:
            self.unread.pop(name, None)
        return began, verdict

    def _checked(self, name: str, words: Sequence[str]) -> tuple[Verdict | None, str]:
        """Return the verdict that a check prints, and why the state of the node is not known; empty if it is."""
        try:
            done = run_installed(self.reach(name), *words, timeout=CHECK)
        except (GoldnodeError, OSError) as problem:
            return None, str(problem)
        try:
            document = VerdictDocument.model_validate_json(done.stdout).root
        except ValidationError:
            return None, last_line(done.stderr) or f"its check ended with {done.returncode}"
        if not isinstance(document, Verdict):
            return None, document.reason
        return document, f"its verdict is {document.status}" if document.status in _UNKNOWN else ""

    def _seen(
        self, name: str, state: SchedulerObservation | None, cases: Mapping[str, RepairCase]
    ) -> NodeSeen | None:
        asked = self.schedulers.asks(name)
        if asked and state is None:
            return None  # its scheduler does not know it, or did not answer
        at, verdict = self._verdicts.get(name, (0.0, None))
        place = self.places[name]
        holder, in_service, busy = Holder.NONE, None, False
        if state is not None:
            holder, in_service = holder_of(state, cases.get(name)), state.in_service
            busy = state.free_at > self.clock()
        return NodeSeen(
            name,
            at,
            boot_id=verdict.boot_identity if verdict is not None else None,
            findings=findings_of(verdict),
            holder=holder,
            reason=state.reason if state is not None else "",
            in_service=in_service,
            busy=busy,
            outstanding=self._outstanding(name, cases.get(name)),
            offender=self.offender(name) if name in cases else "",
            drained_by=drained_by(state) if state is not None else "",
            can=self.can,
            rack=place.get("rack"),
            leaf=place.get("leaf"),
            cohort=place.get("cohort"),
        )

    def _outstanding(self, name: str, case: RepairCase | None) -> str:
        if case is None or case.phase is not CasePhase.CHECK:
            return ""
        if self.places[name].get("class") not in self.tested:
            return ""
        if case.rung == "reinstall":
            installed = DrainCaller(clock=lambda: case.changed_at).now()
            if why := self.retest(name, installed):
                return why.removeprefix("tests before its return: ")
        try:
            tests = HeldNode(name, lambda: self.reach(name)).ask()
        except GoldnodeError as problem:
            return f"its tests cannot be read: {problem}"
        return ", ".join(return_delivery.outstanding(tests))

    # -- hands

    def evidence(self, case: RepairCase) -> str:
        """See LadderHands. A part that cannot be read is stored as missing: a node that does not answer is evidence too."""
        began = self.clock()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began))
        folder = self.evidence_dir / case.node / f"{stamp}-{case.rung}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        digests: dict[str, str] = {}
        target = self.reach(case.node)
        captured = run_installed(target, "capture", timeout=CHECK)
        parts: dict[str, tuple[int, bytes, bytes]] = {
            "capture.json": (captured.returncode, captured.stdout, captured.stderr)
        }
        done = run_installed(target, "check", "--format", "json", timeout=CHECK)
        parts["verdict.json"] = (done.returncode, done.stdout, done.stderr)
        for name, words in _EVIDENCE.items():
            more = target.run(*words, timeout=CHECK)
            parts[name] = (more.returncode, more.stdout, more.stderr)
        for name, (status, data, said) in parts.items():
            if not data:
                data = f"status {status}: {said.decode('utf-8', 'replace')[-400:]}\n".encode()
                name = f"{name}.missing"
            digests[name] = _write(folder / name, data)
        content = {
            "schema": "goldnode.repair-evidence/1",
            "node": case.node,
            "finding": case.finding,
            "rung": case.rung,
            "at": began,
            "files": digests,
        }
        text = json.dumps(content, sort_keys=True, indent=1).encode()
        return _write(folder / "evidence.json", text)

    def drain(self, case: RepairCase) -> None:
        """See LadderHands."""
        self._drains(case).drain(case.node, Prior(True, None, None))

    def resume(self, case: RepairCase) -> None:
        """See LadderHands."""
        seen = self._drains(case).resume(case.node, Prior(True, None, None))
        if not seen.in_service:
            LOGGER.warning("%s is not back in service: %s", case.node, seen.reason)

    def _drains(self, case: RepairCase) -> LadderDrains:
        """Return the drains of the turn of a case: each part of it continues with the same drain."""
        return replace(self.drains, rollout=case.run)

    def act(self, case: RepairCase) -> str:
        """See LadderHands."""
        return self._tools().act(case)

    def restore(self, case: RepairCase) -> str:
        """See LadderHands."""
        return self._tools().restore(case)

    def _tools(self) -> RungTools:
        if self.tools is None:
            raise GoldnodeError("this controller has no rungs")
        return self.tools

    def guard(self, case: RepairCase) -> str:
        """Return why a node may not be touched now; empty if it is out of service for the ladder and empty."""
        if not self.schedulers.asks(case.node):
            return ""
        state = next(iter(self.schedulers.read([case.node])), None)
        if state is None:
            return "its scheduler does not know it"
        holder = holder_of(state, case)
        if holder not in (Holder.LADDER, Holder.GATE):
            return f"it is {'in service' if state.in_service else f'held: {state.reason}'}"
        return "work is left on it" if state.free_at > self.clock() else ""


def findings_of(verdict: Verdict | None) -> Mapping[str, tuple[str, ...]] | None:
    """Return the findings of a verdict that drain and that the ladder repairs, with their rungs.

    None for a verdict that shows nothing: a check that failed is no good node.
    """
    if verdict is None or verdict.status in _UNKNOWN:
        return None
    rows: dict[str, tuple[str, ...]] = {}
    for finding in verdict.findings:
        if finding.outcome == "mismatch" and finding.severity == "drain":
            way = facts.way(finding.id)
            if way is not None:
                rows[finding.id] = way.climb
    return rows


def _write(path: Path, data: bytes) -> str:
    """Write a file durably, and return its SHA-256."""
    with path.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    return hashlib.sha256(data).hexdigest()
