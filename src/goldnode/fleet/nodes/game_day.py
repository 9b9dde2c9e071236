"""Implementation of `goldnode game-day`: one harmless fault on one node, and who saw it after how many seconds.

The end is armed before the fault is made. The node gets the script that takes the fault back, a timer of systemd that
starts it (game-day-end.timer), and a unit that starts it at the next boot. So the node is back by itself, whether the
controller is killed, ssh breaks or the node reboots. The node refuses to make a fault whose timer does not run, and a
second game day while it has one. Each step is recorded on the controller before it is taken.
"""

from __future__ import annotations

import base64
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file
from goldnode.documents.game_day import (
    GameDayDocument,
    GameDayFinding,
    GameDaySighting,
    GameDayState,
    SightingOutcome,
    WitnessName,
)
from goldnode.fleet.nodes.game_day_faults import LABEL, GameDayFault, SurveyedNode
from goldnode.fleet.nodes.game_day_hold import NodeHold
from goldnode.fleet.nodes.reach import REACH, last_line
from goldnode.node.ground.gate_files import REPORT, STATE
from goldnode.node.ground.json_lines import as_dict, as_list
from goldnode.node.ground.verdict_files import CLASS, LIMIT, VERDICT
from goldnode.node.state.finding import MISMATCH, UNREAD
from goldnode.node.state.kinds import DRAIN, kind

PLACE = "/var/lib/goldnode-game-day"  # on the node, while a game day runs
UNIT = "game-day-end"
PAUSE = 3.0  # seconds between two questions to a node
MARGIN = (
    120  # seconds after the limit at which the node ends a game day of which its controller has not
)
AFTER = 180.0  # seconds within which the node has to be back after the end
CALL = 120.0  # seconds for one call of the node
BUSY, NOT_ARMED = 73, 74  # exit statuses of the scripts below

# Runs on the node with its own Python, before the fault and at each question. Prints one JSON document.
_SURVEY = """\
import glob, json, os, subprocess
def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
def document(path):
    try:
        return json.loads(text(path) or "null")
    except ValueError:
        return None
def run(*words):
    try:
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    except OSError:
        return subprocess.CompletedProcess(words, 127, "")
def active(unit):
    return run("systemctl", "is-active", "-q", unit).returncode == 0
OWN = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "nvsm_core", "nvidia-smi", "python3", "goldnode-node")
def holders():
    held = {}
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith("/dev/nvidia") and target[11:].isdigit():
            pid = path.split("/")[2]
            held[pid] = (text("/proc/" + pid + "/comm") or "?").strip()
    return ["pid " + " ".join(row) for row in sorted(held.items()) if row[1] not in OWN]
print(json.dumps({
    "class": document(%(class)r),
    "verdict": document(%(verdict)r),
    "gate": document(%(gate)r),
    "uptime": float(text("/proc/uptime").split()[0]),
    "container": run("systemd-detect-virt", "-q", "--container").returncode == 0,
    "held": run("apt-mark", "showhold").stdout.split(),
    "mtu": {path.split("/")[4]: int(text(path)) for path in glob.glob("/sys/class/net/*/mtu")},
    "programs": [path for path in glob.glob("/usr/local/*bin/goldnode-node")],
    "active": [unit for unit in ("goldnode-watch.timer",) if active(unit)],
    "holders": holders(),
    "busy": (text(%(place)r + "/record") or "a game day whose record is lost") if os.path.isdir(%(place)r) else None,
    "armed": active("%(unit)s.timer"),
}))
"""


class GameDayError(GoldnodeError):
    """A game day was refused, or a node did not do a step of it."""


class GameDayMachine(Protocol):
    """A node that runs scripts. :class:`~goldnode.fleet.nodes.reach.SshNode` is one."""

    @property
    def name(self) -> str:
        """Name of the node in the inventory."""

    def run(self, *command: str, stdin: bytes | None = None, timeout: float = 600) -> Any:
        """Run a command, and return its `returncode`, `stdout` and `stderr`."""


# The observation of a witness outside of the node, as text; None if it has not seen the finding. Raises GoldnodeError if it cannot be asked.
Witness = Callable[[], str | None]


@dataclass(frozen=True)
class GameDayPlan:
    """One game day: what is done where, by whom, for how long, and who has to see it.

    `now`: start the check at once instead of waiting for the node's own schedule. `hold`: the scheduler, which gives the
    node no work meanwhile.
    """

    node_class: str
    fault: GameDayFault
    who: str
    limit: int = 1800
    now: bool = False
    witnesses: Mapping[WitnessName, Witness] = field(default_factory=dict)  # those outside the node
    unasked: Mapping[WitnessName, str] = field(default_factory=dict)  # why they are not asked
    hold: NodeHold | None = None


@dataclass(frozen=True)
class GameDayClock:
    """Time of the controller."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


# -- the node


def survey(machine: GameDayMachine) -> SurveyedNode:
    """Return what a node reports now. Raises GameDayError."""
    script = _SURVEY % {
        "class": CLASS,
        "verdict": VERDICT,
        "gate": STATE,
        "place": PLACE,
        "unit": UNIT,
    }
    done = machine.run("python3", "-I", "-S", "-", stdin=script.encode(), timeout=CALL)
    try:
        answered = json.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        answered = None
    if not isinstance(answered, dict):
        raise GameDayError(
            f"{machine.name}: it cannot be asked: {last_line(done.stderr) or 'no answer'}",
            remedy=REACH,
        )
    return SurveyedNode(
        as_dict(answered["class"]),
        as_dict(answered["verdict"]),
        as_dict(answered["gate"]),
        answered["uptime"],
        container=answered["container"],
        held=tuple(answered["held"]),
        mtu=answered["mtu"],
        programs=tuple(answered["programs"]),
        active=tuple(answered["active"]),
        holders=tuple(answered["holders"]),
        busy=answered["busy"],
        armed=answered["armed"],
    )


def end_script(fault: GameDayFault, node: SurveyedNode) -> str:
    """Return the script that takes a fault back. It may run any number of times, and without the fault."""
    needed = "true"
    if fault.ends_with_boot:
        # Its requirements, such as the GPU's driver, may not be installed yet.
        needed = f'[ "$(cat {PLACE}/boot)" = "$(cat /proc/sys/kernel/random/boot_id)" ]'
    return f"""#!/bin/sh
{LABEL}
# Takes back the fault {fault.name}: {fault.about}.
if {needed} && ! ( set -e
{fault.undo(node)}
) 2>{PLACE}/errors ; then
    echo 'game day: the fault {fault.name} is not taken back; `systemctl start {UNIT}.service` tries again' >&2
    exit 1
fi
systemctl stop {UNIT}.timer 2>/dev/null
rm -f /etc/systemd/system/multi-user.target.wants/{UNIT}.service /etc/systemd/system/{UNIT}.service
rm -rf {PLACE}
systemctl daemon-reload
systemctl start --no-block goldnode-watch.service
exit 0
"""


_UNIT_TEXT = f"""{LABEL}
[Unit]
Description=End of a goldnode game day
# At a boot: before the check, so that it finds the node as it was.
After=local-fs.target
Before=goldnode-sanity.service
ConditionPathExists={PLACE}/end

[Service]
Type=oneshot
ExecStart=/bin/sh {PLACE}/end
TimeoutStartSec=10min

[Install]
WantedBy=multi-user.target
"""


def _written(path: str, text: str) -> str:
    """Return the line of sh that writes a file of any content."""
    packed = base64.b64encode(text.encode()).decode()
    return f"printf %s {packed} | base64 -d >{path}"


def arm_script(fault: GameDayFault, node: SurveyedNode, record: str, seconds: int) -> str:
    """Return the script that arms the end and makes no fault. It leaves nothing where it fails."""
    units = "/etc/systemd/system"
    wants = f"{units}/multi-user.target.wants"
    return f"""set -eu
umask 022
mkdir {PLACE} 2>/dev/null || exit {BUSY}
undone() {{
    systemctl stop {UNIT}.timer 2>/dev/null || :
    rm -rf {wants}/{UNIT}.service {units}/{UNIT}.service {PLACE}
}}
trap undone EXIT
trap 'exit 1' HUP INT PIPE TERM
{_written(f"{PLACE}/record", record)}
cat /proc/sys/kernel/random/boot_id >{PLACE}/boot
{_written(f"{PLACE}/end", end_script(fault, node))}
{_written(f"{units}/{UNIT}.service", _UNIT_TEXT)}
mkdir -p {wants}
ln -sf {units}/{UNIT}.service {wants}/{UNIT}.service
sync {PLACE}/record {PLACE}/boot {PLACE}/end {PLACE} {units}/{UNIT}.service {units} {wants}
systemctl daemon-reload
systemd-run -q --unit={UNIT} --on-active={seconds}s --timer-property=AccuracySec=1s
systemctl is-active -q {UNIT}.timer
trap - EXIT
"""


def make_script(fault: GameDayFault, node: SurveyedNode, record: str, now: bool) -> str:
    """Return the script that makes the fault, if the end of this very game day is armed. Prints the uptime."""
    check = "systemctl start --no-block goldnode-watch.service" if now else ":"
    return f"""set -eu
[ "$(cat {PLACE}/record 2>/dev/null)" = {shlex.quote(record)} ] || exit {NOT_ARMED}
systemctl is-active -q {UNIT}.timer || exit {NOT_ARMED}
: >{PLACE}/made
cut -d' ' -f1 /proc/uptime
{fault.make(node)}
{check}
"""


# -- refusals


def refusal(plan: GameDayPlan, node: SurveyedNode, name: str) -> GameDayError | None:
    """Return why a node must not have this game day now, or None. Pure."""
    again = f"`goldnode game-day {plan.node_class} --node {name} --end` ends it now"

    def refused(text: str, remedy: str) -> GameDayError:
        return GameDayError(f"{name}: {text}", remedy=remedy)

    own = node.class_document.get("class")
    if own != plan.node_class:
        text = f"it is of class {own}, and not of {plan.node_class}" if own else "it has no class"
        return refused(text, "correct the name of the class or of the node")
    if node.busy is not None:
        if node.armed:
            return refused(f"a game day runs on it: {node.busy}", f"wait for its end; {again}")
        return refused(f"a game day has not ended on it: {node.busy}", again)
    if node.gate and node.gate.get("open") is not True:
        reasons = "; ".join(map(str, as_list(node.gate.get("reasons"))[:3])) or "no reason given"
        return refused(
            f"its gate is closed already: {reasons}",
            "carry out the remedies of `goldnode-node check` on it, or take another canary",
        )
    if not node.verdict or _age(node) > LIMIT:
        return refused(
            "it has no verdict that counts, so nothing can be compared with it",
            "see `systemctl status goldnode-watch.timer` on it",
        )
    if known := _findings(node.verdict, plan.fault):
        return refused(
            f"its check reports {known} already, so that the fault would not be seen apart from it",
            "end that first, or make another fault",
        )
    if why := plan.fault.obstacle(node):
        return refused(
            f"fault {plan.fault.name} cannot be made: {why}", "choose another of the faults"
        )
    if node.holders:
        return refused(
            f"a GPU is in use by {', '.join(node.holders[:3])}",
            "drain the node and wait until its jobs have ended",
        )
    return None


def _age(node: SurveyedNode) -> float:
    """Return the seconds since the verdict of a node."""
    at = node.verdict.get("uptime")
    return node.uptime - at if isinstance(at, (int, float)) else float("inf")


def differing(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of a verdict that are a mismatch or could not be read."""
    rows = [as_dict(row) for row in as_list(verdict.get("findings"))]
    return [row for row in rows if row.get("outcome") in (MISMATCH, UNREAD)]


def names_of(verdict: Mapping[str, Any]) -> list[GameDayFinding]:
    """Return what differs by a verdict, sorted."""
    rows = {(str(row.get("id")), row.get("subject")) for row in differing(verdict)}
    return [
        GameDayFinding(id=one, subject=subject)
        for one, subject in sorted(rows, key=lambda row: (row[0], row[1] or ""))
    ]


def _findings(verdict: Mapping[str, Any], fault: GameDayFault, text: str = "") -> str:
    """Return the finding of a fault as text: id, subject and reading; empty if the verdict has none."""
    for row in differing(verdict):
        if row.get("id") in fault.findings and text in json.dumps(row):
            return " ".join(str(row[key]) for key in ("id", "subject", "got") if row.get(key))
    return ""


# -- the run


@dataclass
class GameDay:
    """One game day on one node. `records` is the directory of the controller's records."""

    plan: GameDayPlan
    machine: GameDayMachine
    records: Path
    say: Callable[[str], None]
    clock: GameDayClock = field(default_factory=GameDayClock)
    before: SurveyedNode | None = None
    made_at: float = 0.0  # uptime of the node
    began: float = 0.0  # monotonic, of the controller
    _own: GameDayDocument | None = None

    def run(self) -> GameDayDocument:
        """Make the fault, watch who sees it, end it, and return the record. Raises GameDayError for a refusal."""
        node = self.before = survey(self.machine)
        if (why := refusal(self.plan, node, self.machine.name)) is not None:
            raise why
        self._own = planned(self.plan, node, self.machine.name, self.clock.now())
        self._record("planned")
        try:
            self._hold()
            self._arm(node)
            self._make(node)
            self._watch(node)
        finally:
            # Whatever was raised: an armed game day is ended now, or else by the node itself.
            if self._document.state in ("armed", "made"):
                self._end()
            self._return()
        return self._document

    @property
    def _document(self) -> GameDayDocument:
        if self._own is None:
            raise GameDayError("no game day has begun")
        return self._own

    def _record(self, state: GameDayState, **more: Any) -> None:
        document = self._own = self._document.model_copy(update={"state": state, **more})
        self.records.mkdir(parents=True, exist_ok=True)
        content = document.model_dump_json(by_alias=True, indent=1) + "\n"
        replace_file(self.records / f"{document.id}.json", content.encode())

    @property
    def _line(self) -> str:
        """Return the record on the node, one line."""
        own = self._document
        return f"{own.fault} since {own.started}, by {own.who} ({own.id})"

    def _script(self, script: str) -> Any:
        # It ends on the node before its answer is given up here: later it could make a fault that was ended.
        words = ("timeout", "-k", "5", f"{CALL - 30:.0f}", "sh", "-s")
        return self.machine.run(*words, stdin=script.encode(), timeout=CALL)

    def _hold(self) -> None:
        """Take the node out of service. Its document names the scheduler, and was written before."""
        hold = self.plan.hold
        if hold is None:
            return
        try:
            why = f"game day {self.plan.fault.name}, by {self.plan.who}"
            self.say(f"{self.machine.name}: {hold.begin(why)}")
        except GoldnodeError as problem:
            self._record("refused")
            raise GameDayError(
                f"{self.machine.name}: {hold.by} does not take it out of service, so no fault was made: {problem.message}",
                remedy=problem.remedy,
            ) from None

    def _return(self) -> None:
        """Return the node to service, if nothing of the fault is left on it."""
        hold, state = self.plan.hold, self._document.state
        if hold is None or hold.in_service is None:
            return
        if state in ("left", "lost"):
            own = f"{hold.by} gives it no work until it is returned; {_again(self._document, self.machine.name)}"
            self._record(state, left=[*self._document.left, own])
            return
        if note := hold.finish():
            self.say(f"{self.machine.name}: {note}")
            if hold.in_service:
                self._record("left", left=[*self._document.left, note])

    def _arm(self, node: SurveyedNode) -> None:
        self.say(f"{self.machine.name}: arming the end, at most {self.plan.limit} s from now")
        # Before the call: an answer that is lost leaves an armed node.
        self._record("armed")
        seconds = self.plan.limit + MARGIN
        done = self._script(arm_script(self.plan.fault, node, self._line, seconds))
        if done.returncode == 0:
            return
        if done.returncode == BUSY:
            self._record("refused")
            raise GameDayError(
                f"{self.machine.name}: another game day has just begun on it",
                remedy=f"wait for its end; `goldnode game-day {self.plan.node_class}` shows it",
            )
        if done.returncode != 255:  # with 255 ssh has failed, and the node may be armed
            self._record("refused")
        raise GameDayError(
            f"{self.machine.name}: the end could not be armed, so no fault was made: "
            f"{last_line(done.stderr) or f'exit status {done.returncode}'}",
            remedy="see `systemctl status game-day-end.timer` and the space below /var on it",
        )

    def _make(self, node: SurveyedNode) -> None:
        self.say(f"{self.machine.name}: {self.plan.fault.about}")
        self._record("made")
        done = self._script(make_script(self.plan.fault, node, self._line, self.plan.now))
        self.began = self.clock.monotonic()
        if done.returncode:
            reason = last_line(done.stderr) or f"exit status {done.returncode}"
            if done.returncode == NOT_ARMED:
                reason = "its end is no longer armed"
            raise GameDayError(
                f"{self.machine.name}: the fault was not made: {reason}",
                remedy="the game day is ended; `goldnode-node check` on the node shows what differs",
            )
        self.made_at = float(done.stdout.split()[0])

    def _watch(self, before: SurveyedNode) -> None:
        """Ask until each witness has seen the fault, or the limit has passed."""
        rows = {row.witness: row for row in self._document.sightings}
        open_ = [name for name, row in rows.items() if row.outcome != "not_asked"]
        while True:
            waited = round(self.clock.monotonic() - self.began, 1)
            for name, row in self._answers(open_, before, waited).items():
                rows[name] = row
                if row.outcome == "seen":
                    open_.remove(name)
                    self.say(f"{self.machine.name}: {name}: {_sighting_text(row)}")
                    self._record("made", sightings=list(rows.values()))
            if not open_ or waited >= self.plan.limit:
                self._record("made", sightings=list(rows.values()))
                return
            self.clock.sleep(PAUSE)

    def _answers(
        self, names: Sequence[WitnessName], before: SurveyedNode, waited: float
    ) -> dict[WitnessName, GameDaySighting]:
        """Ask witnesses once. The node is asked once for both of its own."""
        answers: dict[WitnessName, GameDaySighting] = {}
        node: SurveyedNode | None = None
        for name in names:
            try:
                if name in self.plan.witnesses:
                    sight, seconds = self.plan.witnesses[name](), waited
                else:
                    node = node or survey(self.machine)
                    sight, seconds = self._on_node(name, node, before)
            except GoldnodeError as problem:
                answers[name] = _sighting(name, "could_not_check", None, str(problem))
                continue
            if sight is None:
                answers[name] = _sighting(name, "not_seen", None, f"not seen within {waited:.0f} s")
            else:
                answers[name] = _sighting(name, "seen", seconds, sight)
        return answers

    def _on_node(
        self, name: WitnessName, node: SurveyedNode, before: SurveyedNode
    ) -> tuple[str | None, float]:
        """Return what check or gate have seen, and after how many seconds of the node's own clock."""
        fault, age = self.plan.fault, _age(node)
        if fault.silent and name == "check" and LIMIT < age < node.uptime:
            text = f"the last verdict is {age:.0f} s old, and no longer counts"
            return text, round(node.uptime - self.made_at, 1)
        seconds = round(node.uptime - age - self.made_at, 1)
        if seconds < 0:  # also without a verdict
            return None, seconds
        if name == "check":
            return _findings(node.verdict, fault, fault.text(before)) or None, seconds
        reasons = [str(text) for text in as_list(node.gate.get("reasons"))]
        own = next((text for text in reasons if any(one in text for one in fault.findings)), None)
        mode = node.gate.get("mode")
        if own is None or (mode != REPORT and node.gate.get("open") is True):
            return None, seconds
        does = "is open, and reports" if mode == REPORT else "is closed:"
        return f"gate `{mode}` {does} {own}", seconds

    # The end

    def _end(self) -> None:
        self.say(f"{self.machine.name}: the end")
        done = end(self.machine)
        if done is None:
            left = _left(self._document, self.machine.name, self._after())
            self._record("left" if left else "ended", left=left)
            return
        own = f"the node ends it by itself within {self.plan.limit + MARGIN} s of its begin, or at its next boot"
        # 255: ssh itself has failed. Nothing is known of the node.
        state: Literal["lost", "left"] = "lost" if done.lost else "left"
        self._record(
            state, left=[f"{done.text}; {own}; {_again(self._document, self.machine.name)}"]
        )

    def _after(self) -> SurveyedNode | None:
        """Return the node with a verdict of after the end; None if it had none in time.

        A check that runs at the end may have read some of the fault: where something differs, the second one counts.
        """
        start, ended, fresh = self.clock.monotonic(), float("inf"), 0
        while self.clock.monotonic() - start < AFTER:
            try:
                node = survey(self.machine)
            except GoldnodeError:
                self.clock.sleep(PAUSE)
                continue
            ended = min(ended, node.uptime)
            if node.uptime - _age(node) > ended:
                fresh += 1
                if fresh > 1 or names_of(node.verdict) == self._document.before:
                    return node
            start_check(self.machine)
            self.clock.sleep(1.0)
        return None


def start_check(machine: GameDayMachine) -> None:
    """Start the check of a node, as its timer does, and wait for its end."""
    machine.run("systemctl", "start", "goldnode-watch.service", timeout=CALL)


@dataclass(frozen=True)
class FailedEnd:
    """A game day that was not ended, and whether the node was reached at all."""

    text: str
    lost: bool


def end(machine: GameDayMachine) -> FailedEnd | None:
    """End the game day of a node now. Return what failed; None: it has ended, or there was none."""
    script = f"""[ -d {PLACE} ] || exit 0
if [ -e {PLACE}/end ] && [ -e /etc/systemd/system/{UNIT}.service ]; then
    systemctl daemon-reload
    systemctl start {UNIT}.service
elif [ -e {PLACE}/made ]; then
    exec sh {PLACE}/end
else
    systemctl stop {UNIT}.timer 2>/dev/null
    rm -rf {PLACE} /etc/systemd/system/{UNIT}.service /etc/systemd/system/multi-user.target.wants/{UNIT}.service
    systemctl daemon-reload
fi
[ -d {PLACE} ] || exit 0
tail -n 1 {PLACE}/errors >&2
exit 1
"""
    done = machine.run("sh", "-s", stdin=script.encode(), timeout=CALL * 5)
    if done.returncode == 0:
        return None
    text = last_line(done.stderr) or f"exit status {done.returncode}"
    return FailedEnd(f"its end has failed: {text}", done.returncode == 255)


def _again(document: GameDayDocument, name: str) -> str:
    return f"`goldnode game-day {document.class_} --node {name} --end` tries again"


def _left(document: GameDayDocument, name: str, after: SurveyedNode | None) -> list[str]:
    """Return what is left of a game day by the verdict after it, with commands. Empty: the node is as before."""
    if after is None:
        return [
            f"{name} had no verdict after the end: `systemctl start goldnode-watch.service` on it makes one"
        ]
    before = {(row.id, row.subject) for row in document.before}
    more = [
        row for row in differing(after.verdict) if (row.get("id"), row.get("subject")) not in before
    ]
    shown = [
        f"{' '.join(str(row[key]) for key in ('id', 'subject', 'got') if row.get(key))}: {row.get('remedy')}"
        for row in more
    ]
    if after.gate and after.gate.get("open") is not True:
        shown.append("the gate is closed: see `goldnode-node check` on it")
    return shown


# -- what is planned


def _sighting(
    name: WitnessName, outcome: SightingOutcome, seconds: float | None, text: str
) -> GameDaySighting:
    return GameDaySighting(witness=name, outcome=outcome, seconds=seconds, text=text)


def planned(plan: GameDayPlan, node: SurveyedNode, name: str, now: float) -> GameDayDocument:
    """Return the record of a game day that has not begun: who is asked, and who is not."""
    fault = plan.fault
    rows = [_sighting("check", "not_seen", None, "not asked yet")]
    row = kind(fault.findings[0])
    if row is None or row.severity != DRAIN:
        text = f"{fault.findings[0]} is no finding of severity {DRAIN}, which alone closes a gate"
        rows.append(_sighting("gate", "not_asked", None, text))
    else:
        rows.append(_sighting("gate", "not_seen", None, "not asked yet"))
    witnesses: tuple[WitnessName, ...] = ("alert", "alertmanager", "report")
    for one in witnesses:
        if one in plan.witnesses:
            rows.append(_sighting(one, "not_seen", None, "not asked yet"))
        else:
            rows.append(_sighting(one, "not_asked", None, plan.unasked.get(one, "")))
    moment = datetime.fromtimestamp(now, UTC)
    return GameDayDocument(
        schema="goldnode.game-day/1",
        simulated=bool(node.class_document.get("simulated")),
        id=f"{moment:%Y%m%dT%H%M%SZ}-{name}-{fault.name}",
        **{"class": plan.node_class},
        node=name,
        fault=fault.name,
        finding=" or ".join(fault.findings),
        who=plan.who,
        started=f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        held_by=plan.hold.by if plan.hold is not None else None,
        limit_seconds=plan.limit,
        state="planned",
        sightings=rows,
        before=names_of(node.verdict),
        left=[],
    )


def _sighting_text(row: GameDaySighting) -> str:
    if row.outcome == "seen":
        return f"seen after {row.seconds:.0f} s: {row.text}"
    if row.outcome == "could_not_check":
        return f"could not check: {row.text}"
    return row.text if row.outcome == "not_seen" else f"not asked: {row.text}"


def missed(document: GameDayDocument) -> bool:
    """Return whether a witness that was asked did not see the fault, or the node is not as before."""
    unseen = [row for row in document.sightings if row.outcome in ("not_seen", "could_not_check")]
    return bool(unseen) or document.state != "ended"


def text(document: GameDayDocument, fault: GameDayFault) -> list[str]:
    """Return the result for a person, line by line."""
    ends = {
        "ended": "the node is as before: the same findings, and an open gate",
        "left": "the node is not as before",
        "lost": "the node could not be asked after the fault",
    }
    lines = [f"{document.node}: game day {fault.name}: {fault.about}"]
    if document.simulated:
        lines[0] += " (SIMULATED hardware)"
    lines += [f"  {row.witness:12} {_sighting_text(row)}" for row in document.sightings]
    lines.append(f"  {'after':12} {ends.get(document.state, document.state)}")
    return lines + [f"  {'left':12} {row}" for row in document.left]


def plan_text(plan: GameDayPlan, node: SurveyedNode, document: GameDayDocument) -> list[str]:
    """Return what a game day would do, for a person."""
    fault = plan.fault
    held = "no scheduler holds it: its inventory has no goldnode_drain"
    if document.held_by is not None:
        held = f"{document.held_by} gives it no work until the end"
    boot = "a boot ends it" if fault.ends_with_boot else "a unit takes it back at the next boot"
    lines = [
        f"{document.node} would have the fault {fault.name}: {fault.about}",
        f"  harmless: {fault.harmless}",
        f"  ends:     when all have seen it, after {plan.limit} s at the latest; by the node's own timer "
        f"{MARGIN} s later ({UNIT}.timer); {boot}",
        f"  check:    must report {document.finding}",
        f"  service:  {held}",
    ]
    for row in document.sightings[1:]:
        asked = "must see it" if row.outcome != "not_asked" else f"not asked: {row.text}"
        lines.append(f"  {row.witness + ':':9} {asked}")
    lines += ["  makes:", *(f"    {line}" for line in fault.make(node).splitlines())]
    lines += ["  takes back:", *(f"    {line}" for line in fault.undo(node).splitlines())]
    return [*lines, "nothing was done; add --apply"]
