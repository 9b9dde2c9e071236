"""What `scripts/test` prints before and after its stages, and when it ends in green."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.suite import room, stages, timings
from tests.suite.stages import HEAVY, STAGES, Results, Stage, Wanted
from tests.suite.timings import Timings

UNIT, NODES = STAGES


@pytest.mark.parametrize(
    "marks",
    [
        set(),
        {"long"},
        {"parametrize"},
        *({mark} for mark in HEAVY),
        *({mark, "long"} for mark in HEAVY),
    ],
)
def test_every_test_is_in_one_stage_with_all(marks: set[str]) -> None:
    assert [stage.has(marks, long=True) for stage in STAGES].count(True) == 1
    assert any(stage.has(marks, long=False) for stage in STAGES) == ("long" not in marks)


def test_the_stage_of_nodes_imports_only_files_with_heavy_tests() -> None:
    named = stages.files_of(NODES, Wanted())
    assert "tests/e2e/test_gate.py" in named
    assert "tests/unit/test_layers.py" not in named
    assert all(stages.is_heavy(file) for file in named)
    assert stages.files_of(UNIT, Wanted()) == ()
    assert stages.files_of(NODES, Wanted(options=("tests/e2e/test_gate.py",))) == (), (
        "an option names them"
    )


def record() -> Timings:
    return Timings(
        "abc1234",
        "2026-11-20",
        2,
        {
            "unit": {"seconds": 300.0, "tests": 7000, "files": 170},
            "nodes": {"seconds": 1800.0, "tests": 250, "files": 40},
        },
        {
            "tests/unit/test_lint.py": {"tests": 20, "seconds": 100.0, "slow": {}},
            "tests/unit/test_cli.py": {"tests": 20, "seconds": 60.0, "slow": {}},
            "tests/e2e/test_gate.py": {"tests": 6, "seconds": 200.0, "slow": {}},
        },
    )


def test_a_stage_shows_what_it_will_do_and_what_it_took() -> None:
    known = record()
    known.source = timings.COMMITTED
    assert stages.before(UNIT, Wanted(), known) == [
        UNIT.proves,
        "7000 tests in 170 files; last time on the reference machine (2026-11-20, abc1234, 2 cores) it took 5 min",
        "slowest: unit/test_lint.py 100 s, unit/test_cli.py 60 s",
    ]
    known.source = timings.LOCAL
    lines = stages.before(NODES, Wanted(options=("-k", "gate")), known)
    assert lines[1:] == [
        "250 tests in 40 files; last time here (2026-11-20, abc1234) it took 30 min",
        "of these, what pytest's options leave: -k gate",
        "slowest: e2e/test_gate.py 3 min 20 s",
    ]
    assert (
        stages.before(NODES, Wanted(long=True), known)[1] == "how long it takes is not recorded yet"
    )


def test_a_stage_of_chosen_tests_shows_those() -> None:
    known = record()
    known.source = timings.LOCAL
    lines = stages.before(
        UNIT,
        Wanted(tests={"unit": ("tests/unit/test_cli.py", "tests/unit/test_lint.py::test_x")}),
        known,
    )
    assert lines[1] == "2 test files or tests chosen; 40 tests in these files last time"
    assert lines[-1] == "slowest: unit/test_lint.py 100 s, unit/test_cli.py 60 s"


def test_slower_lists_files_that_got_much_slower() -> None:
    before = {"tests/a.py": 100.0, "tests/b.py": 100.0, "tests/c.py": 3.0, "tests/e.py": 60.0}
    now = {
        "tests/a.py": 133.0,
        "tests/b.py": 150.0,
        "tests/c.py": 20.0,
        "tests/d.py": 500.0,
        "tests/e.py": 200.0,
    }
    assert stages.slower(now, before) == [
        "e.py: 3 min 20 s, last time 60 s",
        "b.py: 2 min 30 s, last time 100 s",
    ]


def test_after_a_stage_its_time_is_compared() -> None:
    tests = {
        "tests/unit/test_cli.py::test_a": 130.0,
        "tests/unit/test_cli.py::test_b": 0.2,
        "tests/unit/test_lint.py::test_c": 90.0,
    }
    results = Results(400.0, tests, 0, Counter(tests=3))
    assert stages.after(results, record(), "unit", whole=True) == [
        "took 6 min 40 s: 3 passed, 0 failed; last time 5 min",
        "slowest files: unit/test_cli.py 2 min 10 s, unit/test_lint.py 90 s",
        "slowest tests: unit/test_cli.py::test_a 2 min 10 s, unit/test_lint.py::test_c 90 s",
        "slower than last time: unit/test_cli.py: 2 min 10 s, last time 60 s",
    ]


def test_stage_whose_pytest_was_ended_by_a_signal_counts_nothing_as_passed_and_the_run_stops(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def end_itself(*words: object, **_: object) -> list[str]:
        ran.append(words)
        return [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"]

    monkeypatch.setattr(stages, "command", end_itself)
    assert stages.run(Wanted()) == 1
    assert len(ran) == 1
    shown = capsys.readouterr().out
    assert "pytest was ended by SIGTERM: the results of this stage are lost, and it failed" in shown
    assert shown.splitlines()[-1] == "0 passed, 0 failed"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of this test alone, below the checkout's own directory as their messages show them."""
    monkeypatch.setattr(timings, "LOCAL", tmp_path / "local.json")
    monkeypatch.setattr(timings, "COMMITTED", tmp_path / "committed.json")
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    return tmp_path


def outcome(
    monkeypatch: pytest.MonkeyPatch, *, code: int = 0, tests: int = 2, failures: int = 0
) -> None:
    def run(stage: Stage, wanted: Wanted, place: Path) -> Results:
        seconds = {f"tests/{stage.name}/test_x.py::test_{number}": 1.0 for number in range(tests)}
        return Results(3.0, seconds, code, Counter(tests=tests, failures=failures))

    monkeypatch.setattr(stages, "run_stage", run)


@pytest.mark.parametrize(
    ("wanted", "given", "status", "words"),
    [
        (Wanted(), {}, 0, "4 passed, 0 failed"),
        (Wanted(quick=True), {}, 0, "2 passed, 0 failed"),
        (Wanted(), {"code": 1, "failures": 1}, 1, "2 passed, 2 failed"),
        # pytest collected nothing, or was called wrongly, and no test failed.
        (Wanted(), {"code": 5, "tests": 0}, 1, "0 passed, 0 failed"),
        (Wanted(), {"tests": 0}, 1, "0 passed, 0 failed"),
        (
            Wanted(tests={"unit": (), "nodes": ("tests/nodes/test_x.py",)}),
            {},
            0,
            "2 passed, 0 failed",
        ),
        (Wanted(tests={"unit": (), "nodes": ()}), {}, 1, "0 passed, 0 failed"),
    ],
)
def test_the_end_is_green_only_if_tests_ran_and_passed(
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wanted: Wanted,
    given: dict[str, int],
    status: int,
    words: str,
) -> None:
    outcome(monkeypatch, **given)
    assert stages.run(wanted) == status
    assert capsys.readouterr().out.splitlines()[-1] == words


def test_only_whole_runs_without_failures_are_recorded(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    local, committed = places / "local.json", places / "committed.json"
    outcome(monkeypatch, code=1, failures=1)
    assert stages.run(Wanted(record=True)) == 1
    assert not timings.load(local).files
    assert not committed.exists()
    assert "stays as it was" in capsys.readouterr().out
    outcome(monkeypatch)
    stages.run(Wanted(record=True, options=("-k", "some")))
    assert not timings.load(local).files
    assert not committed.exists()
    assert "stays as it was: record a run without -k some" in capsys.readouterr().out
    assert Wanted(options=("-x", "-v")).selects
    assert not Wanted(options=("-v", "-rs", "--durations=20", "--tb=short")).selects
    stages.run(
        Wanted(
            tests={"unit": ("tests/unit/test_x.py",), "nodes": ("tests/nodes/test_x.py::test_0",)}
        )
    )
    assert (set(timings.load(local).files), timings.load(local).stages) == (
        {"tests/unit/test_x.py"},
        {},
    )
    stages.run(Wanted(), setup=40.0)
    assert set(timings.load(local).stages) == {"unit", "nodes", "set-up"}
    stages.run(Wanted(long=True), setup=1.0)
    assert set(timings.load(local).stages) == {
        *("unit", "unit, with long ones", "nodes", "nodes, with long ones", "set-up")
    }
    assert not committed.exists()
    for stage in STAGES:
        (places / f"tests/{stage.name}").mkdir(parents=True)
        (places / f"tests/{stage.name}/test_x.py").touch()
    stages.run(Wanted(record=True))
    assert timings.load(committed).stages == timings.load(local).stages


def heavy(monkeypatch: pytest.MonkeyPatch, commit: str = "abc1234") -> Timings:
    """Four files of nodes, of 200 s each, which the recorded machine ran in 400 s; and a commit."""
    files = tuple(f"tests/e2e/test_{name}.py" for name in "abcd")
    monkeypatch.setattr(stages, "files_of", lambda *_: files)
    monkeypatch.setattr(stages, "_commit", lambda: commit)
    known = record()
    known.files |= {file: timings.FileRecord(tests=3, seconds=200.0, slow={}) for file in files}
    known.stages["nodes"] = {"seconds": 400.0, "tests": 12, "files": 4}
    return known


@pytest.mark.parametrize(
    ("seconds", "slowness", "left"),
    [
        (400, 1.0, 0),
        (399, 1.0, 1),
        (1200, 3.0, 0),
        (1000, 3.0, 1),
        (310, 3.0, 3),
        (299, 3.0, 4),
        (-5, 1.0, 4),
    ],
)
def test_files_without_room_in_the_time_left_are_left_out(
    seconds: float, slowness: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = heavy(monkeypatch)
    some, names = stages.fitting(NODES, Wanted(within=80), known, seconds, slowness)
    assert len(names) == left
    if left:
        assert some.tests is not None
        assert sorted((*some.tests["nodes"], *names)) == list(stages.files_of(NODES, some))
    else:
        assert some.tests is None


def test_commit_decides_which_files_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()
    for commit in ("a", "b", "c", "d", "e", "f", "g", "h"):
        known = heavy(monkeypatch, commit)
        twice = {stages.fitting(NODES, Wanted(within=80), known, 350, 1.0)[1] for _ in "12"}
        assert len(twice) == 1
        drawn |= twice
    assert len(drawn) > 2


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(),
        Wanted(within=80, options=("-k", "gate")),
        Wanted(within=80, tests={"nodes": ("tests/e2e/test_gate.py",)}),
    ],
)
def test_without_a_limit_or_with_chosen_tests_nothing_is_left_out(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stages.fitting(NODES, wanted, heavy(monkeypatch), 1.0, 9.0) == (wanted, ())
    assert stages.fitting(UNIT, Wanted(within=80), heavy(monkeypatch), 1.0, 9.0)[1] == ()


@pytest.mark.parametrize(
    ("took", "slow"),
    [
        ({}, 1.0),
        ({"tests/unit/test_new.py": 900.0}, 1.0),
        ({"tests/unit/test_lint.py": 50.0}, 1.0),
        ({"tests/unit/test_lint.py": 250.0, "tests/unit/test_cli.py": 150.0}, 2.5),
    ],
)
def test_slowness_is_that_of_the_files_with_a_record(took: dict[str, float], slow: float) -> None:
    assert room.slowness(took, record()) == slow


@pytest.mark.parametrize(("seconds", "code"), [(100.0, 0), (4000.0, 1)])
def test_files_left_out_are_named_and_never_counted_as_passed(
    seconds: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = heavy(monkeypatch)
    ran: list[tuple[str, ...]] = []

    def run_stage(stage: Stage, wanted: Wanted, _: Path) -> Results:
        ran.append(tuple((wanted.tests or {}).get(stage.name, ())))
        # The first stage is five times as slow as recorded.
        return Results(seconds, {"tests/unit/test_lint.py::test_a": 500.0}, 0, Counter(tests=5))

    monkeypatch.setattr(stages, "run_stage", run_stage)
    monkeypatch.setattr(timings, "load", lambda *_: known)
    monkeypatch.setattr(stages, "keep", lambda *_: None)
    assert stages.run(Wanted(within=60), setup=3600 - 1100 if code == 0 else 3600.0) == code
    printed = capsys.readouterr().out
    if code:
        assert len(ran) == 1
        assert "no time is left for any of them" in printed
    else:
        # 1,100 s hold two files of 500 s.
        assert len(ran[1]) == 2
        assert "NOT RUN for lack of time: 2 files with 6 tests" in printed
        assert "takes 5.0 times as long" in printed
        assert "10 passed, 0 failed; 2 test files were not run, named above" in printed
