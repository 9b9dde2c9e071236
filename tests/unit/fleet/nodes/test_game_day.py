"""A game day on a node that is played: what is armed, made, seen and ended, and what is left where a step is killed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests import documents

from goldnode.core.errors import GoldnodeError
from goldnode.documents.game_day import GameDayDocument
from goldnode.fleet.drain.protocol import DrainOutcome
from goldnode.fleet.drain.record import DrainRecords
from goldnode.fleet.nodes import game_day
from goldnode.fleet.nodes.game_day import GameDay, GameDayClock, GameDayError, GameDayPlan
from goldnode.fleet.nodes.game_day_faults import BY_NAME, FAULTS, GameDayFault, SurveyedNode
from goldnode.fleet.nodes.game_day_hold import NodeHold
from goldnode.node.ground.verdict_files import LIMIT
from goldnode.node.probe import logs
from goldnode.node.state.kinds import kind

CLASS = {
    "class": "c",
    "simulated": True,
    "driver": {"module": "nvidia-current"},
    "packages": [{"name": "b"}, {"name": "a"}],
    "policy": {
        "clocks": {"graphics_mhz": 1305, "memory_mhz": 1215},
        "host": {"numa_balancing": False},
    },
    "baseline": {"network": {"eth0": {"mtu": 9000}}},
}


def node(**changes: Any) -> SurveyedNode:
    """A good node that can have every fault."""
    good = SurveyedNode(
        CLASS,
        {"uptime": 1000.0, "findings": []},
        {"mode": "block", "open": True, "reasons": []},
        1010.0,
        held=("b", "z"),
        mtu={"eth0": 9000},
        active=("goldnode-watch.timer",),
    )
    return replace(good, **changes)


@dataclass
class Played:
    """A node that plays its part: its state changes as the scripts would change it.

    `broken` answers a step instead of the node: before or after its effect.
    """

    fault: GameDayFault
    name: str = "n1"
    uptime: float = 1010.0
    verdict_at: float = 1000.0
    armed: bool = False
    made: bool = False
    there: bool = False  # the directory of a game day
    sees: bool = True
    fails_to_end: bool = False
    steps: list[str] = field(default_factory=list)
    broken: dict[tuple[str, str], BaseException | int] = field(default_factory=dict)

    def run(self, *command: str, stdin: bytes | None = None, timeout: float = 600) -> Any:
        script = (stdin or b"").decode()
        step = "check"
        if command[0] == "python3":
            step = "survey"
        elif "systemd-run -q --unit=game-day-end" in script:
            step = "arm"
        elif "/made\ncut" in script:
            step = "make"
        elif command[0] in ("sh", "timeout"):
            step = "end"
        self.steps.append(step)
        for when in ("before", "after"):
            if when == "after":
                answer = getattr(self, step)()
            broken = self.broken.get((step, when))
            if isinstance(broken, BaseException):
                raise broken
            if broken is not None:
                return self.answer(broken)
        assert self.armed or not self.made, "a fault without an armed end"
        return answer

    @staticmethod
    def answer(code: int = 0, text: str = "") -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(
            [], code, text.encode(), b"" if code == 0 else b"broken\n"
        )

    def check(self) -> Any:
        self.verdict_at = self.uptime
        return self.answer()

    def survey(self) -> Any:
        self.uptime += 1
        findings = []
        if self.made and self.sees and self.verdict_at > 1010:
            findings = [
                {
                    "id": self.fault.findings[0],
                    "outcome": "mismatch",
                    "subject": None,
                    "got": self.fault.text(node()),
                }
            ]
        good = node()
        return self.answer(text=json.dumps({
            "class": good.class_document, "verdict": {"uptime": self.verdict_at, "findings": findings}, "gate": good.gate,
            "uptime": self.uptime, "container": False, "held": good.held, "mtu": good.mtu, "programs": [], "active": good.active,
            "holders": [], "busy": "hold since then, by ann" if self.there else None, "armed": self.armed,
        }))  # fmt: skip

    def arm(self) -> Any:
        if self.there:
            return self.answer(game_day.BUSY)
        self.there = self.armed = True
        return self.answer()

    def make(self) -> Any:
        if not self.armed:
            return self.answer(game_day.NOT_ARMED)
        self.made, self.verdict_at = True, self.uptime + 2  # the check that --now starts
        return self.answer(text=f"{self.uptime}\n")

    def end(self) -> Any:
        if self.fails_to_end:
            return self.answer(1)
        self.there = self.armed = self.made = False
        return self.answer()


class Clock:
    """A clock that a sleep moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def clock(self) -> GameDayClock:
        return GameDayClock(lambda: 1.8e9 + self.at, lambda: self.at, self.sleep)


def day(machine: Played, records: Path, **more: Any) -> GameDay:
    plan = GameDayPlan("c", machine.fault, "ann@desk", limit=60, **more)
    return GameDay(plan, machine, records, lambda line: None, Clock().clock())


def stored(records: Path) -> GameDayDocument:
    """The one record of the controller, which its schema accepts."""
    (path,) = records.glob("*.json")
    documents.valid(path.read_text())
    return GameDayDocument.model_validate_json(path.read_text())


def test_a_fault_is_seen_and_the_node_is_as_before(tmp_path: Path) -> None:
    machine = Played(BY_NAME["hold"])
    result = day(machine, tmp_path).run()
    assert [step for step in machine.steps if step not in ("survey", "check")] == [
        "arm",
        "make",
        "end",
    ]
    assert (result.state, game_day.missed(result)) == ("ended", False)
    rows = {row.witness: row for row in result.sightings}
    assert (rows["check"].outcome, rows["check"].seconds) == ("seen", 2.0)
    assert rows["gate"].outcome == "not_asked", "a degraded finding closes no gate"
    assert stored(tmp_path) == result


def test_an_unseen_fault_ends_at_its_limit(tmp_path: Path) -> None:
    machine = Played(BY_NAME["hold"], sees=False)
    result = day(machine, tmp_path).run()
    assert result.sightings[0].text.startswith("not seen within 6")
    assert (result.state, game_day.missed(result), machine.made) == ("ended", True, False)


def test_each_witness_counts_for_itself(tmp_path: Path) -> None:
    def away() -> str | None:
        raise GoldnodeError("no answer")

    more: dict[str, Any] = {"witnesses": {"alert": lambda: None, "report": away}}
    result = day(Played(BY_NAME["hold"]), tmp_path, **more).run()
    outcomes = {row.witness: row.outcome for row in result.sightings}
    assert outcomes == {
        "check": "seen",
        "gate": "not_asked",
        "alert": "not_seen",
        "alertmanager": "not_asked",
        "report": "could_not_check",
    }
    assert game_day.missed(result)


def test_a_gate_must_close_for_a_finding_that_drains(tmp_path: Path) -> None:
    result = day(Played(BY_NAME["module-denied"]), tmp_path).run()
    assert {row.witness: row.outcome for row in result.sightings}["gate"] == "not_seen"


STEPS = [(step, when) for step in ("arm", "make", "survey") for when in ("before", "after")]


@pytest.mark.parametrize("how", [KeyboardInterrupt(), 255], ids=["killed", "ssh-lost"])
@pytest.mark.parametrize(("step", "when"), STEPS)
def test_no_fault_is_ever_made_without_an_armed_end(
    tmp_path: Path, step: str, when: str, how: BaseException | int
) -> None:
    # Played.run asserts it after each step. A process that dies does not reach its own end either.
    machine = Played(BY_NAME["hold"])
    machine.broken = {(step, when): how, ("end", "before"): how}
    with pytest.raises((KeyboardInterrupt, GameDayError)):
        day(machine, tmp_path).run()
    assert machine.armed or not machine.made
    if machine.made:
        assert stored(tmp_path).state in ("made", "lost"), "recorded before the effect"


def test_an_interrupted_run_ends_what_it_has_made(tmp_path: Path) -> None:
    machine = Played(BY_NAME["hold"])

    def interrupted() -> str | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        day(machine, tmp_path, witnesses={"alert": interrupted}).run()
    assert (machine.made, machine.armed) == (False, False)
    assert stored(tmp_path).state == "ended"


def test_a_lost_connection_names_how_the_node_comes_back(tmp_path: Path) -> None:
    machine = Played(BY_NAME["hold"], broken={("end", "before"): 255})
    result = day(machine, tmp_path).run()
    assert (result.state, game_day.missed(result)) == ("lost", True)
    assert "by itself within 180 s" in result.left[0]
    assert "`goldnode game-day c --node n1 --end`" in result.left[0]


def test_an_end_that_fails_is_what_is_left(tmp_path: Path) -> None:
    result = day(Played(BY_NAME["hold"], fails_to_end=True), tmp_path).run()
    assert (result.state, result.left[0][:33]) == ("left", "its end has failed: broken; the n")


def test_difference_after_the_end_is_named(tmp_path: Path) -> None:
    machine = Played(BY_NAME["hold"])
    machine.end = lambda: Played.answer()  # type: ignore[method-assign]  # an end that does nothing
    result = day(machine, tmp_path).run()
    assert (result.state, result.left) == ("left", ["stack.holds b: None"])


@dataclass
class Scheduler:
    """A scheduler of one node, and what it was asked."""

    in_service: bool = True
    fails: str = ""
    asked: list[str] = field(default_factory=list)

    def drain(self, node: str, why: str, caller: Any, records: Any = None) -> DrainOutcome:
        return self.answer(f"drain {node}: {why}", "drain", False)

    def resume(self, node: str, caller: Any, records: Any = None, before: Any = None) -> Any:
        return self.answer(f"resume {node}, {before}", "resume", True)

    def answer(self, asked: str, step: str, now: bool) -> DrainOutcome:
        self.asked.append(asked)
        if self.fails == step:
            raise GoldnodeError("no answer", remedy="look at it")
        before, self.in_service = self.in_service, now
        return DrainOutcome(changed=True, in_service=before)


def held(machine: Played, records: Path, scheduler: Any) -> GameDay:
    hold = NodeHold("slurm", "gpu07", scheduler, DrainRecords(lambda script: ""))
    return day(machine, records, hold=hold)


def test_scheduler_holds_the_node_before_the_end_is_armed_and_until_the_end(
    tmp_path: Path,
) -> None:
    machine, scheduler = Played(BY_NAME["hold"]), Scheduler()
    seen: list[bool] = []
    arm, end = machine.arm, machine.end

    def watched(step: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            seen.append(scheduler.in_service)
            return step()

        return noted

    machine.arm, machine.end = watched(arm), watched(end)  # type: ignore[method-assign]
    result = held(machine, tmp_path, scheduler).run()
    assert seen == [False, False]
    assert scheduler.asked == [
        "drain gpu07: game day hold, by ann@desk",
        "resume gpu07, True",
    ]
    assert (result.state, result.held_by, scheduler.in_service) == ("ended", "slurm", True)


def test_no_fault_is_made_on_a_node_that_its_scheduler_does_not_hold(tmp_path: Path) -> None:
    machine, scheduler = Played(BY_NAME["hold"]), Scheduler(fails="drain")
    with pytest.raises(GameDayError, match="slurm does not take it out of service"):
        held(machine, tmp_path, scheduler).run()
    assert "arm" not in machine.steps
    assert stored(tmp_path).state == "refused"


def test_node_that_is_not_as_before_stays_out_of_service(tmp_path: Path) -> None:
    machine, scheduler = Played(BY_NAME["hold"], fails_to_end=True), Scheduler()
    result = held(machine, tmp_path, scheduler).run()
    assert (result.state, scheduler.in_service) == ("left", False)
    assert result.left[-1].startswith("slurm gives it no work until it is returned; `goldnode")


def test_node_that_cannot_be_returned_is_left_with_the_command(tmp_path: Path) -> None:
    machine, scheduler = Played(BY_NAME["hold"]), Scheduler(fails="resume")
    result = held(machine, tmp_path, scheduler).run()
    assert (result.state, game_day.missed(result)) == ("left", True)
    assert result.left == [
        "slurm still holds it: no answer; then `scontrol update NodeName=gpu07 State=RESUME`"
    ]


def test_interrupted_run_returns_the_node(tmp_path: Path) -> None:
    machine, scheduler = Played(BY_NAME["hold"]), Scheduler()
    machine.broken = {("make", "after"): KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        held(machine, tmp_path, scheduler).run()
    assert (machine.made, scheduler.in_service) == (False, True)


def test_a_second_game_day_is_refused(tmp_path: Path) -> None:
    machine = Played(BY_NAME["hold"], there=True, armed=True)
    with pytest.raises(
        GameDayError, match="a game day runs on it: hold since then, by ann"
    ) as refused:
        day(machine, tmp_path).run()
    assert "--end` ends it now" in str(refused.value)
    assert machine.steps == ["survey"]
    assert not list(tmp_path.iterdir())


def test_a_second_game_day_that_begins_at_the_same_moment_is_refused(tmp_path: Path) -> None:
    machine = Played(BY_NAME["hold"], broken={("arm", "before"): game_day.BUSY})
    with pytest.raises(GameDayError, match="another game day has just begun"):
        day(machine, tmp_path).run()
    assert "end" not in machine.steps, "the other one's end is not this one's"
    assert stored(tmp_path).state == "refused"


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"class_document": {**CLASS, "class": "d"}}, "it is of class d, and not of c"),
    ({"class_document": {}}, "it has no class"),
    ({"busy": "hold"}, "a game day has not ended on it: hold"),
    ({"gate": {"open": False, "reasons": ["gpu.lost: 1"]}}, "its gate is closed already: gpu.lost: 1"),
    ({"verdict": {}}, "no verdict that counts"),
    ({"uptime": 1000.0 + LIMIT + 1}, "no verdict that counts"),
    (
        {"verdict": {"uptime": 1000.0, "findings": [{"id": "stack.holds", "outcome": "mismatch", "got": "1 free"}]}},
        "its check reports stack.holds 1 free already",
    ),
    ({"held": ()}, "fault hold cannot be made: apt holds no package of its stack"),
    ({"holders": ("pid 7 python",)}, "a GPU is in use by pid 7 python"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), REFUSALS, ids=[text for _, text in REFUSALS])
def test_node_that_must_not_have_it_is_refused(changes: dict[str, Any], text: str) -> None:
    plan = GameDayPlan("c", BY_NAME["hold"], "ann")
    refused = game_day.refusal(plan, node(**changes), "n1")
    assert refused is not None
    assert text in str(refused)
    assert refused.remedy
    assert game_day.refusal(plan, node(), "n1") is None


def test_a_stopped_check_is_seen_by_the_age_of_its_verdict(tmp_path: Path) -> None:
    machine = Played(BY_NAME["timer-stopped"], sees=False)
    machine.make = lambda: machine.answer(text="1012.0\n")  # type: ignore[method-assign]  # no check follows
    survey: Callable[[], Any] = machine.survey

    def later() -> Any:
        machine.uptime += LIMIT if "make" in machine.steps else 0
        return survey()

    machine.survey = later  # type: ignore[method-assign]
    result = day(machine, tmp_path).run()
    assert result.sightings[0].outcome == "seen"
    assert "no longer counts" in result.sightings[0].text


# -- the table


def test_ten_faults_have_known_findings() -> None:
    assert len(FAULTS) == len(BY_NAME) == 10
    for fault in FAULTS:
        assert all(kind(name) is not None for name in fault.findings), fault.name


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_scripts_are_valid_and_the_end_holds_the_undo(fault: GameDayFault) -> None:
    assert fault.obstacle(node()) is None
    scripts = [
        game_day.arm_script(fault, node(), "r", 60),
        game_day.make_script(fault, node(), "it's r", now=True),
        game_day.end_script(fault, node()),
    ]
    for script in scripts:
        done = subprocess.run(
            ["sh", "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), script
    assert fault.undo(node()) in scripts[2]
    assert fault.make(node()) not in scripts[0]


EMPTY = SurveyedNode(
    {"class": "c"}, {}, {}, 1.0, container=True, programs=("/usr/local/sbin/goldnode-node",)
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_node_without_what_a_fault_needs_is_named(fault: GameDayFault) -> None:
    why = fault.obstacle(EMPTY)
    assert (why is None) == (fault.name in ("disk-full", "unit-drop-in")), why


def test_a_power_limit_is_lowered_where_no_clocks_are_declared() -> None:
    only = node(class_document={**CLASS, "policy": {"power_limit_watts": 350}})
    fault = BY_NAME["gpu-policy"]
    assert "ctypes.c_uint(349000)" in fault.make(only)
    assert "ctypes.c_uint(350000)" in fault.undo(only)


# Lines of a 6.18 kernel, of the unit of `log-line` in a container, without the container's own part of the path.
OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/system.slice/game-day-log-line.service,task_memcg=/system.slice/game-day-log-line.service,"
    "task=tail,pid=10920,uid=0",
    "Memory cgroup out of memory: Killed process 10920 (tail) total-vm:19080kB, anon-rss:16128kB, file-rss:1572kB, "
    "shmem-rss:0kB, UID:0 pgtables:76kB oom_score_adj:0",
)


def test_the_line_of_the_kernel_names_the_unit_of_the_game_day() -> None:
    (row,) = logs.parse(f"[ 3394.378461] {line}" for line in OOM)
    assert (row["kind"], row["parameters"]["subject"]) == ("oom", "game-day-log-line.service")
    assert BY_NAME["log-line"].text(node()) == row["parameters"]["subject"]
