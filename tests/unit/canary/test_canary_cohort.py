"""All-reduce over a cohort: the job of a member with a simulated torch.distributed, and the answer for the cohort."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests import documents

from goldnode.canary import cohort as cohorts
from goldnode.canary import suite
from goldnode.canary.cohort import CohortOutcome, CohortSettings
from goldnode.canary.runner import cohort, plan
from goldnode.canary.runner.arrivals import RUN
from goldnode.canary.runner.cohort import Meeting, OthersError, Place, SumError
from goldnode.canary.runner.records import JobEnded
from goldnode.canary.session import CanaryRun
from goldnode.cli import main
from goldnode.commands.canary import outstanding as canary_outstanding
from goldnode.commands.canary import run as canary_run
from goldnode.commands.canary.run import SuiteOptions
from goldnode.core.errors import GoldnodeError
from goldnode.documents.canary import CanaryDocument
from goldnode.documents.canary_cohort import CohortPair

RECORDED = CanaryDocument.model_validate_json(
    (Path(__file__).parent / "recorded/h200-2.json").read_text()
)
SETTINGS = CohortSettings("10.0.0.1", 29500)


# -- a simulated torch.distributed: the processes are threads of the test


class GoneError(BaseException):
    """The process is killed here."""


class Tensor:
    """A tensor of equal numbers."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def fill_(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> Any:
        return Tensor(float(self.value == other))

    __hash__ = None  # type: ignore[assignment]

    def all(self) -> bool:
        return bool(self.value)


class Torch:
    __version__ = "simulated"

    @staticmethod
    def set_num_threads(count: int) -> None:
        return

    @staticmethod
    def empty(count: int, device: str) -> Tensor:
        return Tensor()

    zeros = empty


HANG = 60.0  # seconds after which a test that hangs fails; no case waits for it


@dataclass
class Store:
    """The store of member 0.

    `come` and `alive`: processes that announce themselves. Each waits for the others there, for its patience is
    half a second, and a thread of a busy machine may be later than that.
    """

    come: int
    alive: int
    values: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    gone: bool = False

    def __post_init__(self) -> None:
        self.announced = {
            "here": threading.Barrier(self.come, timeout=HANG),
            "alive": threading.Barrier(self.alive, timeout=HANG),
        }

    def add(self, key: str, number: int) -> int:
        if self.gone:
            raise RuntimeError("Connection reset by peer")
        with self.lock:
            self.values[key] += number
            found = self.values[key]
        what, of_one, _ = key.partition("/")
        if of_one and number:
            try:
                self.announced[what].wait()
            except threading.BrokenBarrierError:
                raise RuntimeError("Connection reset by peer") from None
        return found

    def go(self) -> None:
        """Member 0 ends, also for those that wait for the others."""
        self.gone = True
        for barrier in self.announced.values():
            barrier.abort()


@dataclass
class Dist:
    """torch.distributed.

    `wrong`: rank whose sums are wrong. `breaks`: the collective fails, and these ranks are gone. `come`: ranks that
    come, if not all.
    """

    world: int
    wrong: int | None = None
    breaks: tuple[int, ...] | None = None
    come: tuple[int, ...] | None = None
    store: Store | None = None
    ranks: threading.local = field(default_factory=threading.local)
    parts: dict[int, float] = field(default_factory=dict)
    links: defaultdict[tuple[int, int], Queue[float]] = field(
        default_factory=lambda: defaultdict(Queue)
    )

    def __post_init__(self) -> None:
        self.together = threading.Barrier(self.world, timeout=HANG)

    def TCPStore(  # noqa: N802 - its name in PyTorch
        self, address: str, port: int, world: int, first: bool, limit: timedelta, **more: Any
    ) -> Store:
        assert more["wait_for_workers"] is False
        if "use_libuv" in more:  # as PyTorch before 2.3
            raise TypeError("incompatible constructor arguments")
        come = range(self.world) if self.come is None else self.come
        if first:
            gone = set(self.breaks or ()) | {self.wrong} - {None}
            self.store = Store(len(come), self.world - len(gone) or 1)
        end = time.monotonic() + (HANG if 0 in come else limit.total_seconds())
        while self.store is None:
            if time.monotonic() > end:
                raise RuntimeError("connect() timed out")
            time.sleep(0.005)
        return self.store

    def PrefixStore(self, name: str, store: Store) -> Store:  # noqa: N802 - its name in PyTorch
        return store

    def init_process_group(self, backend: str, rank: int, **_: Any) -> None:
        self.ranks.number = rank
        if self.breaks is not None and rank in self.breaks:
            if rank == 0 and self.store is not None:
                self.store.go()
            raise GoneError

    def destroy_process_group(self) -> None:
        return

    def barrier(self) -> None:
        if self.breaks is not None:
            raise RuntimeError("Connection closed by peer\nmore lines")
        self.together.wait()

    def all_reduce(self, data: Tensor) -> None:
        self.parts[self.ranks.number] = data.value
        self.together.wait()
        data.value = sum(self.parts.values()) + (self.ranks.number == self.wrong)

    def send(self, data: Tensor, to: int) -> None:
        self.links[self.ranks.number, to].put(data.value)

    def recv(self, data: Tensor, source: int) -> None:
        data.value = self.links[source, self.ranks.number].get(timeout=HANG)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[int, Any]]:
    """Run the job in a thread for each process that comes, and return what each gave."""
    monkeypatch.setattr(cohort, "POLL", 0.005)
    monkeypatch.setattr(cohort, "ANSWER", 0.3)

    def run(members: int, dist: Dist, local: int = 1) -> dict[int, Any]:
        modules = {"torch": Torch, "torch.distributed": dist}
        monkeypatch.setattr("importlib.import_module", modules.__getitem__)
        found: dict[int, Any] = {}
        patience = HANG if dist.come is None else 0.5

        def one(place: Place) -> None:
            try:
                found[place.rank] = cohort.measured(
                    place, Meeting("127.0.0.1", 1, "gloo", patience), [1, 2], 5
                )
            except OthersError as problem:
                found[place.rank] = problem
            except SumError as problem:
                found[place.rank] = problem
                dist.together.abort()  # the others wait for the next collective of this member
            except GoneError:
                return

        places = [
            Place(member, members, number, local)
            for member in range(members)
            for number in range(local)
        ]
        threads = [
            threading.Thread(target=one, args=(place,))
            for place in places
            if dist.come is None or place.rank in dist.come
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * HANG)
        return found

    return run


Run = Callable[..., dict[int, Any]]


def test_all_members_sum_and_transfer_in_pairs(processes: Run) -> None:
    found = processes(3, Dist(3))
    assert {rank: sorted(one["pairs"]) for rank, one in found.items()} == {
        0: ["1", "2"],
        1: ["0", "2"],
        2: ["0", "1"],
    }
    for one in found.values():
        assert {size: len(bus) for size, bus in one["bus"].items()} == {"1": 5, "2": 5}
        assert all(low <= middle <= high for low, middle, high in one["pairs"].values())


def test_of_a_node_with_two_processes_one_transfers(processes: Run) -> None:
    found = processes(2, Dist(4), local=2)
    assert [sorted(found[rank]["pairs"]) for rank in range(4)] == [["1"], [], ["0"], []]


def test_a_wrong_sum_is_that_of_its_member(processes: Run) -> None:
    found = processes(2, Dist(2, wrong=1))
    assert isinstance(found[1], SumError)
    assert isinstance(found[0], OthersError)


@pytest.mark.parametrize(
    ("come", "absent"), [((0, 1), [2]), ((0, 2), [1]), ((0,), [1, 2]), ((1, 2), [0]), ((2,), [0])]
)
def test_members_that_do_not_come_are_named_by_those_that_do(
    processes: Run, come: tuple[int, ...], absent: list[int]
) -> None:
    found = processes(3, Dist(3, come=come))
    assert {rank: one.members for rank, one in found.items()} == dict.fromkeys(come, absent)


def test_a_member_that_comes_too_late_blames_itself() -> None:
    dist = Dist(3, come=(0, 1))
    dist.store = Store(
        come=1, alive=1, values=Counter({"here": 2, "here/0": 1, "here/1": 1, "closed": 1})
    )
    with pytest.raises(OthersError, match="member 2 came after the others") as found:
        cohort.met(dist, Place(2, 3, 0, 1), Meeting("127.0.0.1", 1, "gloo", HANG))
    assert found.value.members == [2]


@pytest.mark.parametrize(("gone", "named"), [((2,), [2]), ((0,), [0]), ((), [])])
def test_members_that_stop_answering_are_named(
    processes: Run, gone: tuple[int, ...], named: list[int]
) -> None:
    found = processes(3, Dist(3, breaks=gone))
    assert {rank: one.members for rank, one in found.items()} == {
        rank: named for rank in range(3) if rank not in gone
    }
    assert all("by peer" in str(one) for one in found.values())
    assert not any("more lines" in str(one) for one in found.values())


# -- the job without PyTorch


@given(st.integers(2, 40))
def test_over_all_rounds_every_pair_meets_once(members: int) -> None:
    found = cohort.rounds(members, most=members)
    for pairs in found:
        busy = [member for pair in pairs for member in pair]
        assert len(busy) == len(set(busy)), "a member has one partner at a time"
    assert Counter(pair for pairs in found for pair in pairs) == Counter(
        combinations(range(members), 2)
    )


def test_a_large_cohort_has_a_limit_of_rounds() -> None:
    assert len(cohort.rounds(512)) == cohort.ROUNDS


def test_processes_answer_or_their_end_is_reported() -> None:
    def call(number: int) -> dict[str, Any]:
        if number == 1:
            raise OthersError("member 3 did not come", [3])
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 3:
            raise ValueError("odd")
        return {"fine": "x" * 200_000}

    found = cohort.forked(4, call)
    assert len(found[0]["fine"]) == 200_000
    assert found[1:] == [
        {"why": "member 3 did not come", "blames": [3]},
        {"why": "process 2 ended with status 9"},
        {"why": "odd"},
    ]


GOOD = {
    "bus": {"16": [1.0, 2.0]},
    "pairs": {"1": [1.0, 1.5, 2.0]},
    "facts": {"torch": "2"},
    "device": None,
    "conditions": {"sm_mhz": None, "temperature_c": None, "power_w": None, "throttled": None},
}


def test_answers_of_processes_become_a_result() -> None:
    found = cohort.result(0, 2, [GOOD])
    assert (found["state"], found["metrics"][0]["name"]) == ("passed", "cohort2_allreduce_16mib")
    assert found["facts"] == {
        "member": 0, "members": 2, "torch": "2", "pair_1": 1.5, "pair_1_low": 1.0, "pair_1_high": 2.0,
    }  # fmt: skip
    lost = cohort.result(0, 3, [GOOD, {"why": "member 2 did not come", "blames": [2]}])
    assert (lost["state"], lost["facts"]["blames"], lost["metrics"]) == ("could_not_check", "2", [])
    assert "blames" not in cohort.result(0, 2, [{"why": "odd"}])["facts"]
    for answer, state in (
        ({"why": "another sum", "sum": True}, "failed"),
        ({"why": "No module named 'torch'"}, "not_run"),
    ):
        with pytest.raises(JobEnded) as ended:
            cohort.result(0, 2, [answer])
        assert ended.value.result["state"] == state


def test_the_job_runs_in_a_cohort_alone() -> None:
    with pytest.raises(JobEnded, match="over the nodes of a cohort"):
        cohort.all_reduce("gloo")
    usual = {job.name for job in plan.jobs(plan.request({"schema": plan.REQUEST}), "cpu")}
    assert cohorts.JOB not in usual
    assert cohorts.JOB not in suite.request(suite.load_suite())["jobs"]
    (job,) = plan.jobs(plan.request({"schema": plan.REQUEST, "jobs": [cohorts.JOB]}), "gpu")
    assert (job.arguments, plan.verified(job, "gpu", "NVIDIA H200 x 8")) == (
        {"backend": "nccl"},
        False,
    )


def test_the_interface_of_the_loopback_is_found() -> None:
    assert cohort.interface_to("127.0.0.1") == "lo"
    assert cohort.interface_to("no such address") is None


# -- the answer for the cohort


def outcome(node: str, state: str = "passed", why: str = "", **facts: Any) -> CohortOutcome:
    """Return a result; `pairs` are medians by number of the partner."""
    pairs: Mapping[int, float] = facts.pop("pairs", {})
    for partner, rate in pairs.items():
        facts |= {
            f"pair_{partner}": rate,
            f"pair_{partner}_low": rate * 0.98,
            f"pair_{partner}_high": rate * 1.02,
        }
    row = RECORDED.jobs[0]
    metric = row.metrics[0].model_copy(
        update={"name": "cohort3_allreduce_16mib", "samples": [9.0, 10.0, 11.0]}
    )
    values = {"name": cohorts.JOB, "state": state, "why": why, "facts": facts, "metrics": [metric]}
    return CohortOutcome(
        node, RECORDED.model_copy(update={"node": node, "jobs": [row.model_copy(update=values)]})
    )


def rated(a_b: float, a_c: float, b_c: float) -> list[CohortOutcome]:
    return [
        outcome("a", pairs={1: a_b, 2: a_c}),
        outcome("b", pairs={0: a_b, 2: b_c}),
        outcome("c", pairs={0: a_c, 1: b_c}),
    ]


WAITS = "member 2 did not come within 60 s"
A_WAITS, B_WAITS = (outcome(name, "could_not_check", WAITS, blames="2") for name in "ab")
C_WAITS = outcome("c", "could_not_check", "member 0 did not come", blames="0")
ANSWERS = [
    (rated(10.0, 10.0, 10.0), "passed", []),
    (rated(10.0, 8.0, 8.0), "failed", ["c is slow: at most 8 GB/s with any partner, and the pairs without it have at least 9.8"]),
    # A slow link names neither of its ends.
    (rated(10.0, 10.0, 5.0), "passed", []),
    (
        [A_WAITS, B_WAITS, CohortOutcome("c", error="no route")],
        "could_not_check",
        ["c is absent: no route"],
    ),
    # Its session gave a result, and the others waited for it.
    (
        [A_WAITS, B_WAITS, C_WAITS],
        "could_not_check",
        ["c: a reports: c did not come within 60 s", "a: c reports: a did not come"],
    ),
    (
        [outcome("a", "could_not_check", "closed", blames=""), outcome("b", "could_not_check", "it did not end within 600 s")],
        "could_not_check",
        ["b: could not check: it did not end within 600 s"],
    ),
    (
        [outcome("a", "could_not_check", "closed", blames=""), outcome("b", "could_not_check", "closed", blames="")],
        "could_not_check",
        ["no member can be named: a reports: closed"],
    ),
    (
        [outcome("a", "could_not_check", "closed", blames=""), outcome("b", "failed", "another sum")],
        "failed",
        ["b: another sum"],
    ),
    ([outcome("a", "not_run", "PyTorch is not here"), outcome("b")], "could_not_check", ["a: not run: PyTorch is not here"]),
    ([outcome("a", "not_counted", "job 7 waits"), outcome("b")], "could_not_check", ["a: not counted: job 7 waits"]),
]  # fmt: skip


@pytest.mark.parametrize(("outcomes", "answer", "reasons"), ANSWERS)
def test_answer_names_who_is_absent_or_slow(
    outcomes: list[CohortOutcome], answer: str, reasons: list[str]
) -> None:
    found = cohorts.judge(outcomes, SETTINGS, "slurm", "rail")
    assert found.answer == answer
    assert len(found.reasons) == len(reasons), found.reasons
    for reason, wanted in zip(found.reasons, reasons, strict=True):
        assert reason.startswith(wanted)
    assert bool(found.bandwidth) is (answer == "passed" or "slow" in found.reasons[0])
    documents.valid(found.model_dump_json(by_alias=True))


def test_noise_names_no_member() -> None:
    pairs = {
        one: {other: CohortPair(median=8.0 if "c" in (one, other) else 10.0, low=6.0, high=12.0) for other in "abc" if other != one}
        for one in "abc"
    }  # fmt: skip
    assert cohorts.slow(pairs, 0.1) == set()
    assert cohorts.sees(pairs, 0.1) == 0.55


@given(st.integers(3, 12), st.floats(0.0, 0.6), st.data())
def test_a_member_is_named_when_it_is_slower_than_what_the_spread_allows_to_see(
    members: int, loss: float, data: st.DataObject
) -> None:
    spread = data.draw(st.floats(0.0, 0.1))
    names = [f"n{number}" for number in range(members)]
    bad = data.draw(st.sampled_from(names))

    def pair(one: str, other: str) -> CohortPair:
        rate = 10.0 * (1 - loss) if bad in (one, other) else 10.0
        return CohortPair(median=rate, low=rate * (1 - spread), high=rate * (1 + spread))

    pairs = {one: {other: pair(one, other) for other in names if other != one} for one in names}
    found = cohorts.slow(pairs, 0.1)
    assert found <= {bad}
    least = 1 - 0.9 * (1 - spread) / (1 + spread)
    if loss > least + 1e-9:
        assert found == {bad}
    elif loss < least - 1e-9:
        assert found == set()


def test_a_floor_of_the_site_judges_two_members() -> None:
    two = [outcome("a", pairs={1: 10.0}), outcome("b", pairs={0: 10.0})]
    found = cohorts.judge(two, SETTINGS, "ssh")
    assert (found.answer, found.sees, found.bandwidth[0].median) == ("passed", None, 10.0)
    low = cohorts.judge(two, CohortSettings("a", 1, floor=10.5), "ssh")
    assert (low.answer, low.reasons) == (
        "failed",
        ["the bus bandwidth of 16 MiB is 10 GB/s, below 10.5 GB/s"],
    )


def test_the_result_of_a_slow_member_has_failed_for_its_return() -> None:
    outcomes = rated(10.0, 8.0, 8.0)
    found = cohorts.judge(outcomes, SETTINGS, "ssh")
    states = [
        document.jobs[0].state
        for one in outcomes
        if (document := cohorts.amended(one, found)) is not None
    ]
    assert states == ["passed", "passed", "failed"]


def test_no_member_starts_beside_other_work() -> None:
    def never(node: str, busy: str) -> CanaryRun:
        return CanaryRun(node, "ssh", ("/nonexistent",), {}, lambda: busy)

    found = cohorts.run([never("a", ""), never("b", "slurm shows work on b")])
    assert [one.error for one in found] == [
        "not started: b is busy",
        "left alone: slurm shows work on b",
    ]


def test_a_member_that_cannot_be_started_is_absent() -> None:
    (found,) = cohorts.run([CanaryRun("a", "ssh", ("sh", "-c", "echo refused >&2; exit 255"), {})])
    assert "status 255: refused" in found.error


# -- the command


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    host = {"ansible_host": "10.0.0.7", "goldnode_cohort": "rail1"}
    hosts = {
        "n2": {**host, "ansible_host": "10.0.0.8"},
        "n1": host,
        "n3": {"goldnode_cohort": "rail2"},
    }
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    monkeypatch.setattr(
        "goldnode.inventory.listing.listed", lambda _: {"_meta": {"hostvars": hosts}}
    )
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CanaryRun]:
    """Runs that the command would start."""
    found: list[CanaryRun] = []

    def run(runs: list[CanaryRun]) -> list[CohortOutcome]:
        found.extend(runs)
        return rated(10.0, 8.0, 8.0)[: len(runs)]

    monkeypatch.setattr(cohorts, "run", run)
    return found


def test_a_cohort_of_the_inventory_is_measured_and_stored(
    site: Path, asked: list[CanaryRun]
) -> None:
    words = [
        "canary",
        "cohort",
        "--cohort",
        "rail1",
        "-i",
        "hosts.yml",
        "--image",
        "i",
        "--engine",
        "podman",
    ]
    done = CliRunner().invoke(main, [*words, "--format", "json"])
    assert done.exit_code == 0, done.output
    documents.valid(done.stdout)
    assert [one.node for one in asked] == ["n1", "n2"]
    for number, one in enumerate(asked):
        arguments = one.request["arguments"][cohorts.JOB]
        assert (arguments["member"], arguments["members"], arguments["address"]) == (
            number,
            2,
            "10.0.0.7",
        )
        assert "podman run" in one.command[-1]
        assert "--network host" in one.command[-1]
    assert len(list((site / ".goldnode/cohorts/rail1").glob("*.json"))) == 1
    assert len(list((site / ".goldnode/canary").glob("*/*.json"))) == 2


def test_slurm_jobs_of_a_cohort_do_not_disturb_each_other(
    site: Path, asked: list[CanaryRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = site / "scontrol"
    scontrol.write_text("#!/bin/sh\necho NodeName=$3 NodeAddr=192.168.3.4 State=IDLE\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{site}:{os.environ['PATH']}")
    done = CliRunner().invoke(
        main, ["canary", "cohort", "a", "b", "c", "--how", "slurm", "--backend", "gloo"]
    )
    assert done.exit_code == 2, done.output
    assert "cohort of 3 nodes, by slurm: failed" in done.stdout
    assert "- c is slow" in done.stdout
    names = [
        word.partition("=")[2]
        for one in asked
        for word in one.command
        if word.startswith("--job-name=")
    ]
    assert len(set(names)) == 3, "the end of one job cancels no other"
    (site / "squeue").write_text(f"#!/bin/sh\necho '7|(Resources)|||{names[1]}'\n")
    (site / "squeue").chmod(0o755)
    first = asked[0]
    assert first.arrived is not None
    assert first.arrived() == "", "no member takes another one for a job that waits"
    (site / "squeue").write_text("#!/bin/sh\necho '8|(Resources)|||training'\n")
    assert "job 8 waits" in first.arrived()
    assert (first.request["tier"], first.request["watch"]) == ("cpu", False)
    assert first.request["arguments"][cohorts.JOB]["address"] == "192.168.3.4"


def test_containers_of_a_cohort_are_no_work_for_each_other(
    site: Path, asked: list[CanaryRun]
) -> None:
    done = CliRunner().invoke(
        main, ["canary", "cohort", "a", "b", "--how", "engine", "--image", "i"]
    )
    assert done.exit_code == 0, done.output
    assert "With two members a slow one cannot be named" in done.stdout
    marks = {word for one in asked for word in one.command if word.startswith(RUN)}
    assert len(marks) == 1
    assert len({one.command[one.command.index("--name") + 1] for one in asked}) == 2


def test_the_tests_before_a_return_leave_it_to_its_own_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run on one node would give *not run*, and void the result of the cohort."""
    jobs = ["gemm", cohorts.JOB]
    entry = SimpleNamespace(item=SimpleNamespace(return_tests=SimpleNamespace(after_repair=jobs)))
    monkeypatch.setattr(
        "goldnode.classdoc.load.load_catalog", lambda: SimpleNamespace(node_class=lambda _: entry)
    )
    options = SuiteOptions(
        None, names=(), class_name="x", cause="repair", tier="auto", limit=60.0, parallel=1
    )
    assert canary_outstanding.COHORT_JOB == cohorts.JOB
    assert canary_run.before_return(options) == ("gemm",)
    jobs.remove("gemm")
    with pytest.raises(GoldnodeError, match="wants cohort_all_reduce alone"):
        canary_run.before_return(options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a",), "two or more"),
        (("a", "a"), "two or more"),
        (("a", "b", "--how", "engine"), "needs --image"),
        (("a", "b", "--cohort", "x"), "--cohort needs -i"),
        (("--cohort", "rail9", "-i", "hosts.yml"), 'no host has goldnode_cohort "rail9"'),
        (("a", "n1", "-i", "hosts.yml"), "the inventory has no host a"),
    ],
)
def test_wrong_use_of_a_cohort_is_explained(
    site: Path, asked: list[CanaryRun], words: tuple[str, ...], message: str
) -> None:
    done = CliRunner().invoke(main, ["canary", "cohort", *words])
    assert done.exit_code != 0
    assert message in done.output
    assert asked == []
