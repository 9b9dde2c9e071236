"""Questions to schedulers: recorded answers of Slurm 22.05 and of an API server, as one question for many nodes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from goldnode.core.errors import GoldnodeError, InventoryError
from goldnode.fleet.control.clock import SteadyClock
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.drain import questions
from goldnode.fleet.drain.choice import SCHEDULERS, DrainSettings, drain_settings
from goldnode.fleet.drain.questions import NO_END
from goldnode.fleet.drain.slurm import expand
from goldnode.fleet.rollout.model import SchedulerObservation

AT = 1_795_642_800.0
DAY = 1_795_729_186  # the end of a job of 24 hours


def row(name: str, state: str, reason: str = "") -> str:
    """Return a line of `scontrol show node --oneliner` of Slurm 22.05, shortened."""
    why = f" Reason={reason} [root@1795642787]" if reason else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=1 State={state} ThreadsPerCore=1 "
        f"Partitions=all  BootTime=1795621900 CapWatts=n/a ExtSensorsTemp=n/s{why}\n"
    )


@dataclass
class Recorded:
    """A scheduler that gives recorded answers by the beginning of the question."""

    answers: dict[str, list[str]]
    asked: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> str:
        question = " ".join(argv)
        self.asked.append(question)
        given = next(
            answers for start, answers in self.answers.items() if question.startswith(start)
        )
        return given.pop(0) if len(given) > 1 else given[0]


NODES, JOBS, HELD = "scontrol --all show node", "squeue", "scontrol --all show reservation"
RESERVATIONS = (
    "ReservationName=fix StartTime=1795642785 EndTime=1795649985 Nodes=n[2-3] NodeCnt=2 "
    "Flags=MAINT,IGNORE_JOBS,SPEC_NODES Users=root State=ACTIVE\n"
    "ReservationName=course StartTime=1795642785 EndTime=1795649985 Nodes=n4 Flags=SPEC_NODES State=ACTIVE\n"
    "ReservationName=later StartTime=1795842785 EndTime=1795849985 Nodes=n5 Flags=MAINT State=INACTIVE\n"
)


def slurm(
    answers: dict[str, list[str]], *names: str, reservation: str | None = None
) -> dict[str, SchedulerObservation]:
    """Return what a reader makes of recorded answers, by node."""
    nodes = {name: DrainSettings("slurm", name) for name in names}
    reader = SiteSchedulers(nodes, reservation, ask=Recorded(answers), clock=lambda: AT)
    return {item.node: item for item in reader.read(names)}


def first_question(scheduler: str) -> str:
    """Return the first question of a rollout to a scheduler."""

    def ask(argv: Sequence[str]) -> str:
        raise GoldnodeError(" ".join(argv), remedy="")

    reader = SiteSchedulers({"n1": DrainSettings(scheduler, "n1")}, ask=ask, clock=lambda: AT)
    with pytest.raises(GoldnodeError) as raised:
        reader.read(["n1"])
    return raised.value.message


def test_each_scheduler_has_a_question_of_its_own() -> None:
    """A scheduler without `nodes` of its own must not be asked as another one is."""
    assert len({first_question(name) for name in SCHEDULERS}) == len(SCHEDULERS)


def test_slurm_is_asked_twice_for_any_number_of_nodes() -> None:
    many = [f"n{number}" for number in range(10000)]
    recorded = Recorded({NODES: ["".join(row(name, "IDLE") for name in many)], JOBS: [""]})
    reader = SiteSchedulers(
        {name: DrainSettings("slurm", name) for name in many}, ask=recorded, clock=lambda: AT
    )
    assert len(reader.read(many)) == 10000
    assert len(recorded.asked) == 2


def test_slurm_states_and_times() -> None:
    found = slurm(
        {
            NODES: [
                row("n1", "ALLOCATED")
                + row("n2", "IDLE")
                + row("n3", "IDLE+DRAIN", "bad fan; ask ann [x@y] Comment=no")
                + row("n4", "IDLE", "fan replaced, watch it")
                + row("n5", "ALLOCATED+DRAIN+REBOOT_REQUESTED", "Reboot ASAP")
            ],
            JOBS: [f"n1|{DAY}\nn[5,7-8]|{DAY}\nn5|{DAY + 60}\n"],
        },
        *("n1", "n2", "n3", "n4", "n5", "unknown"),
    )
    assert found == {
        "n1": SchedulerObservation("n1", AT, True, DAY),
        "n2": SchedulerObservation("n2", AT, True),
        "n3": SchedulerObservation("n3", AT, False, 0.0, "bad fan; ask ann [x@y] Comment=no"),
        "n4": SchedulerObservation("n4", AT, True, 0.0, "fan replaced, watch it"),
        "n5": SchedulerObservation("n5", AT, False, DAY + 60, "Reboot ASAP"),
    }


@pytest.mark.parametrize("steady", [False, True])
def test_end_of_work_is_exact_while_a_clock_goes_on(steady: bool) -> None:
    """A clock that is read twice gives two times. That is no scheduler whose clock is behind."""
    ticks = itertools.count()

    def clock() -> float:
        return AT + next(ticks) * 1e-6

    answers = {NODES: [row("n1", "ALLOCATED")], JOBS: [f"n1|{DAY}\n"]}
    nodes = {"n1": DrainSettings("slurm", "n1")}
    reader = SiteSchedulers(
        nodes, ask=Recorded(answers), clock=SteadyClock(clock) if steady else clock
    )
    assert reader.read(["n1"])[0].free_at == DAY


def test_node_is_busy_until_it_was_seen_idle() -> None:
    """Work after its end, work that ends now, and work of which no end is known: all later than the question."""
    answers = {
        NODES: [
            row("n1", "ALLOCATED") + row("n2", "IDLE+COMPLETING+DRAIN", "x") + row("n3", "MIXED")
        ],
        JOBS: ["n1|1795642000\n"],
    }
    found = slurm(answers, "n1", "n2", "n3")
    assert AT < found["n1"].free_at <= AT + 600
    assert AT < found["n2"].free_at <= AT + 600
    assert found["n3"].free_at > AT + NO_END - 86400
    later = SiteSchedulers(
        {"n3": DrainSettings("slurm", "n3")}, ask=Recorded(answers), clock=lambda: AT + 30
    )
    assert later.read(["n3"])[0].free_at == found["n3"].free_at, "an unchanged node is no news"


def test_job_that_ended_between_the_questions_is_gone() -> None:
    answers = {NODES: [row("n1", "ALLOCATED"), row("n1", "IDLE")], JOBS: [""]}
    assert slurm(answers, "n1")["n1"].free_at == 0.0


def test_maintenance_of_others_is_out_of_service_and_the_rollouts_own_is_not() -> None:
    state = "IDLE+MAINTENANCE+RESERVED"
    text = row("n2", state) + row("n3", f"{state}+DRAIN", "bad fan") + row("n4", "IDLE+RESERVED")
    answers = {NODES: [text + row("n5", "IDLE")], JOBS: [""], HELD: [RESERVATIONS]}
    found = slurm(answers, "n2", "n3", "n4", "n5")
    assert not found["n2"].in_service
    assert found["n2"].reason == "maintenance reservation fix"
    assert found["n3"].reason == "bad fan"
    assert found["n4"].in_service
    assert found["n5"].in_service
    assert slurm(answers, "n2", reservation="fix")["n2"].in_service


def test_scheduler_has_other_names() -> None:
    recorded = Recorded({NODES: [row("gpu-7", "IDLE")], JOBS: [""]})
    nodes = {"seven.example": DrainSettings("slurm", "gpu-7")}
    assert SiteSchedulers(nodes, ask=recorded).read(["seven.example"])[0].node == "seven.example"


@pytest.mark.parametrize(("by", "asked"), [("none", 0), ("command", 0), ("slurm", 2)])
def test_only_schedulers_with_states_are_asked(by: str, asked: int) -> None:
    recorded = Recorded({NODES: [row("n1", "IDLE")], JOBS: [""]})
    reader = SiteSchedulers({"n1": DrainSettings(by, "n1", ("d",), ("r",))}, ask=recorded)
    assert reader.asks("n1") is bool(asked)
    assert not reader.asks("other")
    assert len(reader.read(["n1", "other"])) == bool(asked)
    assert len(recorded.asked) == asked


def test_unknown_scheduler_is_refused_and_asked_nothing() -> None:
    recorded = Recorded({})
    reader = SiteSchedulers({"n1": DrainSettings("kubctl", "n1")}, ask=recorded)
    with pytest.raises(GoldnodeError, match="goldnode_drain: kubctl is not known"):
        reader.read(["n1"])
    assert not recorded.asked


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3],m1", ["n1", "n2", "n3", "m1"]),
        ("m[001-002,7]x[1-2]", ["m001x1", "m001x2", "m002x1", "m002x2", "m7x1", "m7x2"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("", []),
        ("(null)", []),
    ],
)
def test_host_list_is_expanded(hosts: str, names: list[str]) -> None:
    assert list(expand(hosts)) == names


# Kubernetes


def node(name: str, **spec: object) -> dict[str, object]:
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}


PODS = """\
n1     2026-11-25T09:40:00Z   86400    Job
n1     2026-11-25T09:40:00Z   <none>   DaemonSet
n2     2026-11-25T09:40:00Z   <none>   ReplicaSet
n3     2026-11-25T09:40:00Z   <none>   ReplicaSet
n4     <none>                 <none>   <none>
n5     2026-11-25T09:40:00Z   <none>   DaemonSet
n5     2026-11-25T09:40:00Z   <none>   Node
<none>   <none>   <none>   Job
"""


def test_kubernetes_work_that_nothing_starts_elsewhere_is_waited_for() -> None:
    cordoned = {"items": [node("n3", unschedulable=True), node("other", unschedulable=True)]}
    recorded = Recorded(
        {
            "kubectl get nodes --no-headers": ["n1\nn2\nn3\nn4\nn5\nother\n"],
            "kubectl get nodes --field-selector=spec.unschedulable=true": [json.dumps(cordoned)],
            "kubectl get pods": [PODS],
        }
    )
    names = ["n1", "n2", "n3", "n4", "n5", "n6"]
    reader = SiteSchedulers(
        {name: DrainSettings("kubectl", name) for name in names}, ask=recorded, clock=lambda: AT
    )
    found = {item.node: item for item in reader.read(names)}
    assert list(found) == names[:5]
    assert len(recorded.asked) == 3
    assert found["n1"].free_at == 1_795_686_000.0  # its start, and a day
    assert found["n2"].free_at == 0.0
    assert not found["n3"].in_service
    assert found["n3"].reason == "cordoned, without a reason"
    assert found["n3"].free_at > AT, "its drain has not ended"
    assert found["n4"].free_at > AT + 364 * 86400 - 86400
    assert found["n5"].free_at == 0.0
    assert not math.isinf(found["n4"].free_at)


# Failures


def test_unreachable_scheduler_gives_its_own_message(tmp_path: object) -> None:
    with pytest.raises(
        GoldnodeError, match=r"sh -c .* failed: slurm_load_node error: Unable to contact"
    ):
        questions.ask(
            [
                "sh",
                "-c",
                "echo slurm_load_node error: Unable to contact slurm controller >&2; exit 1",
            ]
        )
    with pytest.raises(GoldnodeError, match=r"no answer within 0\.05 s"):
        questions.ask(["sleep", "5"], timeout=0.05)
    with pytest.raises(GoldnodeError, match="not found on this machine"):
        questions.ask(["no-such-program"])


def test_settings_come_from_the_inventory() -> None:
    values = {"goldnode_drain": "slurm", "goldnode_drain_name": "gpu-7", "goldnode_rack": "r1"}
    assert drain_settings("seven", values) == DrainSettings("slurm", "gpu-7")
    assert drain_settings("seven", {}) == DrainSettings("none", "seven")
    with pytest.raises(InventoryError, match="goldnode_drain of host seven"):
        drain_settings("seven", {"goldnode_drain": "slrum"})
