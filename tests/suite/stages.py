"""Stages of `scripts/test`: their purpose, their tests, and the output before and after each."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.suite import room, timings
from tests.suite.scheduling import REPORT
from tests.suite.timings import ROOT, Timings, spell

HEAVY = ("lab", "real", "images", "qemu", "disks")
MARKS = (*HEAVY, "long")


@dataclass(frozen=True)
class Stage:
    """One run of pytest."""

    name: str
    title: str
    proves: str  # purpose of the stage, as printed before it runs
    heavy: bool

    def markers(self, *, long: bool) -> str:
        """Return the expression for pytest's -m."""
        kinds = " or ".join(HEAVY)
        return (f"({kinds})" if self.heavy else f"not ({kinds})") + (
            "" if long else " and not long"
        )

    def has(self, marks: Collection[str], *, long: bool) -> bool:
        """Return whether a test with these markers is in this stage."""
        return bool(set(marks) & set(HEAVY)) == self.heavy and (long or "long" not in marks)

    def key(self, *, long: bool) -> str:
        """Return the name in the record. With --all a stage has its own record, because it takes longer."""
        return f"{self.name}, with long ones" if long else self.name


# Separate runs, so that a mistake found by a unit test or a linter is reported within minutes, not at the
# end.
STAGES = (
    Stage(
        "unit",
        "Lint, types and unit tests",
        "The linters pass. Each module does what its cases say, against recorded machines and simulated "
        "hardware.",
        heavy=False,
    ),
    Stage(
        "nodes",
        "Nodes, real kernels and drivers, images, disks",
        "Systemd nodes converge, report, roll back and are verified, on stand-in archives and with real "
        "kernels and drivers; molecule"
        " scenarios; container images are built, inspected and published; disk images are built, booted "
        "and updated.",
        heavy=True,
    ),
)


@dataclass(frozen=True)
class Wanted:
    """Options from the command line."""

    quick: bool = False
    long: bool = False
    record: bool = False
    options: tuple[str, ...] = ()  # options for pytest itself
    tests: Mapping[str, tuple[str, ...]] | None = (
        None  # stage → test files or ids, if only some run
    )
    within: float | None = None  # minutes that the run may take, its set-up included

    @property
    def selects(self) -> bool:
        """Return whether the pytest options may change which tests run, or how.

        Options that affect only the output, such as -v, do not count.
        """
        return any(
            not re.fullmatch(r"-[vqs]+|-r\w*|--durations(-min)?=.*|--tb=.*", option)
            for option in self.options
        )

    @property
    def stages(self) -> list[Stage]:
        found = [stage for stage in STAGES if not (self.quick and stage.heavy)]
        return (
            found
            if self.tests is None
            else [stage for stage in found if self.tests.get(stage.name)]
        )


@dataclass
class Results:
    """Results of one stage."""

    seconds: float = 0.0
    tests: dict[str, float] = field(default_factory=dict)
    code: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def by_file(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        for nodeid, took in self.tests.items():
            found[nodeid.partition("::")[0]] += took  # type: ignore[assignment]
        return dict(found)


def slowest(seconds: Mapping[str, float], count: int = 3) -> str:
    """Return the `count` slowest entries of `seconds` (name → seconds) as text; empty if all took less than a
    second.
    """
    ranked = sorted(seconds.items(), key=lambda row: -row[1])[:count]
    return ", ".join(
        f"{name.removeprefix('tests/')} {spell(took)}" for name, took in ranked if took >= 1
    )


def slower(now: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Return the entries that became slower by more than a third and 20 s, as text, the worst first."""
    worse = {
        name: took - before[name]
        for name, took in now.items()
        if name in before and took > before[name] * 4 / 3 and took - before[name] > 20
    }
    ranked = sorted(worse, key=lambda name: -worse[name])
    return [
        f"{name.removeprefix('tests/')}: {spell(now[name])}, last time {spell(before[name])}"
        for name in ranked
    ]


def last_time(record: Timings) -> str:
    """Return date and origin of the previous durations as text."""
    if record.source is None:
        return "not recorded yet"
    if record.source == timings.LOCAL:
        return f"last time here ({record.date}, {record.commit})"
    return (
        f"last time on the reference machine ({record.date}, {record.commit}, {record.cores} cores)"
    )


def before(
    stage: Stage, wanted: Wanted, record: Timings, marks: Mapping[str, set[str]] | None = None
) -> list[str]:
    """Return the lines to print before a stage. `marks` (file → markers) is given only after collecting the
    tests.
    """
    lines = [stage.proves]
    key = stage.key(long=wanted.long)
    whole = record.stages.get(key)
    if wanted.tests is not None:
        chosen = wanted.tests[stage.name]
        files = {test.partition("::")[0] for test in chosen}
        known = {file: record.files[file] for file in files if file in record.files}
        took = {file: row["seconds"] for file, row in known.items()}
        lines.append(
            f"{len(chosen)} test files or tests chosen; "
            f"{sum(row['tests'] for row in known.values())} tests in these files last time"
        )
        if took:
            lines.append(
                f"{last_time(record)} their tests took {spell(sum(took.values()))}, one after the other"
            )
    else:
        heavy = {
            file for file, found in (marks or {}).items() if stage.has(found, long=wanted.long)
        }
        names = heavy if marks else {file for file in record.files if is_heavy(file) == stage.heavy}
        took = {file: record.files[file]["seconds"] for file in names if file in record.files}
        if whole:
            lines.append(
                f"{whole['tests']} tests in {whole['files']} files; "
                f"{last_time(record)} it took {spell(whole['seconds'])}"
            )
        else:
            lines.append(f"how long it takes is {last_time(Timings())}")
    if wanted.options:
        lines.append(f"of these, what pytest's options leave: {' '.join(wanted.options)}")
    if took and (text := slowest(took)):
        lines.append(f"slowest: {text}")
    return lines


@cache
def is_heavy(file: str) -> bool:
    """Return whether a test file has tests of nodes, images or disks.

    This searches the text of the file, for use when no tests were collected. tests/conftest.py refuses a heavy test in
    a file for which the answer is no.
    """
    try:
        text = (ROOT / file).read_text(encoding="utf-8")
    except OSError:
        return False
    return any(f"pytest.mark.{mark}" in text for mark in HEAVY)


def after(results: Results, record: Timings, key: str, *, whole: bool) -> list[str]:
    """Return the lines to print after a stage."""
    if results.code < 0:
        # pytest writes its report at its end.
        ended = signal.Signals(-results.code).name
        return [f"pytest was ended by {ended}: the results of this stage are lost, and it failed"]
    lines = [f"took {spell(results.seconds)}: {counted(results.counts)}"]
    earlier = record.stages.get(key)
    if whole and earlier:
        lines[0] += f"; last time {spell(earlier['seconds'])}"
    files = results.by_file()
    if text := slowest(files):
        lines.append(f"slowest files: {text}")
    if text := slowest(results.tests):
        lines.append(f"slowest tests: {text}")
    if whole:
        worse = slower(files, {file: row["seconds"] for file, row in record.files.items()})
        lines += [f"slower than last time: {text}" for text in worse]
    return lines


def counted(counts: Mapping[str, int]) -> str:
    """Return the counts as printed in the last line of a run."""
    failed = counts.get("failures", 0) + counts.get("errors", 0)
    skipped = f", {counts['skipped']} skipped" if counts.get("skipped") else ""
    return f"{passed(counts)} passed, {failed} failed{skipped}"


def passed(counts: Mapping[str, int]) -> int:
    return (
        counts.get("tests", 0)
        - counts.get("failures", 0)
        - counts.get("errors", 0)
        - counts.get("skipped", 0)
    )


def processes() -> int:
    """Return the number of processes of a stage, at most six.

    Two more than there are cores: tests wait for nodes, disks, servers, clocks and limits of time. With one more, two cores were
    idle for half of the first minutes of the first stage, in which the longest tests run.
    """
    return min(len(os.sched_getaffinity(0)) + 2, 6)


def files_with_tests() -> list[str]:
    """Return all test files, relative to the repository."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


def files_of(stage: Stage, wanted: Wanted) -> tuple[str, ...]:
    """Return the files to name to pytest; empty: all, or those that its options name.

    Each process of pytest imports all files that it is given, for half a minute of processor time if that is all of
    them. So the few files with heavy tests are named.
    """
    return (
        tuple(file for file in files_with_tests() if is_heavy(file))
        if stage.heavy and not wanted.selects
        else ()
    )


def command(stage: Stage, wanted: Wanted, junit: Path) -> list[str]:
    """Return the command of a stage."""
    tests = files_of(stage, wanted) if wanted.tests is None else wanted.tests[stage.name]
    return [
        *(
            sys.executable,
            "-m",
            "pytest",
            "-n",
            str(processes()),
            "--dist",
            "loadgroup",
            "--no-loadscope-reorder",
        ),
        *("-m", stage.markers(long=wanted.long), "--durations=12", "--durations-min=20"),
        *(f"--junitxml={junit}", "-o", "junit_family=xunit2", *wanted.options, *tests),
    ]


def fitting(
    stage: Stage, wanted: Wanted, record: Timings, seconds: float, slowness: float
) -> tuple[Wanted, tuple[str, ...]]:
    """Return what to run of a stage of nodes in `seconds`, and the files left out, of which there are none without a limit of time.

    Selected tests are never left out.
    """
    if wanted.within is None or wanted.selects or wanted.tests is not None or not stage.heavy:
        return wanted, ()
    files = files_of(stage, wanted)
    pace = slowness / room.at_once(stage.key(long=wanted.long), files, record)
    costs = {file: room.seconds_of(file, record) * pace for file in files}
    left = room.left_out(files, costs, seconds, _commit())
    chosen = tuple(file for file in files if file not in left)
    return (replace(wanted, tests={stage.name: chosen}) if left else wanted), left


def run_stage(stage: Stage, wanted: Wanted, place: Path) -> Results:
    """Run one stage in its own pytest process."""
    report, junit = place / f"{stage.name}.json", place / f"{stage.name}.xml"
    done = subprocess.run(
        command(stage, wanted, junit),
        cwd=ROOT,
        env={**os.environ, REPORT: str(report)},
        check=False,
    )
    results = Results(code=done.returncode)
    if report.is_file():
        found = json.loads(report.read_text(encoding="utf-8"))
        results.seconds, results.tests = found["seconds"], found["tests"]
    if junit.is_file():
        for suite in ElementTree.parse(junit).iter("testsuite"):  # noqa: S314 - written by pytest
            for key in ("tests", "failures", "errors", "skipped"):
                results.counts[key] += int(suite.get(key, "0"))
    return results


def run(wanted: Wanted, *, step: int = 1, setup: float | None = None) -> int:
    """Run the selected stages, and print purpose and result of each.

    Return the exit status: 0 only if tests ran and none failed.
    """
    began = time.monotonic()
    record, new = timings.load(), timings.load()
    code, counts, seconds, slowness = 0, Counter[str](), 0.0, 1.0
    left: tuple[str, ...] = ()
    complete = not wanted.selects and wanted.tests is None
    with tempfile.TemporaryDirectory(prefix="goldnode-test-") as place:
        for stage in wanted.stages:
            step += 1
            print(
                f"\n== {step}. {stage.title}", *before(stage, wanted, record), sep="\n", flush=True
            )
            remaining = (wanted.within or 0) * 60 - (setup or 0) - (time.monotonic() - began)
            some, left = fitting(stage, wanted, record, remaining, slowness)
            if left:
                complete = False
                print(*leaving(left, record, wanted, slowness, remaining), sep="\n", flush=True)
                if some.tests is not None and not some.tests[stage.name]:
                    # Without a file name pytest would run all of them.
                    print("no time is left for any of them: this run failed", flush=True)
                    code = 1
                    break
            results = run_stage(stage, some, Path(place))
            slowness = room.slowness(results.by_file(), record)
            if results.code == pytest.ExitCode.NO_TESTS_COLLECTED and wanted.tests is not None:
                # Files are chosen by their text. A stage may have none of their tests; a run must have one.
                results.code = 0
            key = stage.key(long=wanted.long)
            print(*after(results, record, key, whole=complete), sep="\n", flush=True)
            code = code or results.code
            if results.code < 0:
                break
            counts += results.counts
            seconds += results.seconds
            # A run that failed, or that pytest options cut short, does not take as long as a complete one.
            if not wanted.selects and results.code == 0 and results.tests:
                new.update(
                    {
                        nodeid: took
                        for nodeid, took in results.tests.items()
                        if not _single(nodeid, wanted.tests)
                    }
                )
                if complete:
                    files = len(results.by_file())
                    new.stages[key] = {
                        "seconds": round(results.seconds, 1),
                        "tests": len(results.tests),
                        "files": files,
                    }
    if complete and setup is not None and setup >= 5:
        new.stages["set-up"] = {"seconds": round(setup, 1), "tests": 0, "files": 0}
    keep(new, record, wanted, code)
    print(
        f"\nall stages, {spell(seconds)}{f', after {spell(setup)} of set-up' if setup else ''}:\n"
        f"{counted(counts)}{f'; {len(left)} test files were not run, named above' if left else ''}"
    )
    # pytest can fail a stage without a failing test (nothing collected, a usage error); that must not count
    # as success.
    return 1 if code or passed(counts) <= 0 else 0


def leaving(
    left: Sequence[str], record: Timings, wanted: Wanted, slowness: float, remaining: float
) -> list[str]:
    """Return the lines to print about the files that a stage leaves out."""
    tests = sum(record.files[file]["tests"] for file in left if file in record.files)
    return [
        f"NOT RUN for lack of time: {len(left)} files with {tests} tests. This machine takes {slowness:.1f} times as long as the recorded "
        f"one, and of {wanted.within:g} min {spell(remaining)} are left. `scripts/test` without --within runs them:",
        *(f"  {file}" for file in left),
    ]


def _single(nodeid: str, tests: Mapping[str, Sequence[str]] | None) -> bool:
    """Return whether a test ran without the other tests of its file."""
    return tests is not None and any(
        test.startswith(f"{nodeid.partition('::')[0]}::")
        for chosen in tests.values()
        for test in chosen
    )


def keep(new: Timings, old: Timings, wanted: Wanted, code: int) -> None:
    """Write the local record, and with --record the committed one."""
    if (new.files, new.stages) == (old.files, old.stages) and not wanted.record:
        return
    new.commit = _commit()
    new.date = datetime.datetime.now(datetime.UTC).date().isoformat()
    new.cores = len(os.sched_getaffinity(0))
    timings.save(new, timings.LOCAL)
    if wanted.record and code:
        print(
            f"{timings.COMMITTED.relative_to(ROOT)} stays as it was: record a run without failures"
        )
    elif wanted.record and wanted.selects:
        print(
            f"{timings.COMMITTED.relative_to(ROOT)} stays as it was: "
            f"record a run without {' '.join(wanted.options)}"
        )
    elif wanted.record:
        new.files = {file: row for file, row in new.files.items() if (ROOT / file).is_file()}
        timings.save(new, timings.COMMITTED)
        print(f"recorded in {timings.COMMITTED.relative_to(ROOT)}")


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "no commit"


def collect(paths: Iterable[str] = ()) -> dict[str, dict[str, set[str]]]:
    """Return the tests collected by pytest: test file → test → its markers.

    Exit with pytest's output if a file cannot be imported.
    """
    with tempfile.TemporaryDirectory(prefix="goldnode-test-") as place:
        out = Path(place) / "collected.json"
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-qq",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.suite.collected",
            *paths,
        ]
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env={**os.environ, "GOLDNODE_TEST_COLLECTED": str(out)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not out.is_file():
            raise SystemExit(
                f"scripts/test: pytest cannot collect the tests:\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
            )
        found = json.loads(out.read_text(encoding="utf-8"))
    return {
        file: {test: set(marks) for test, marks in tests.items()} for file, tests in found.items()
    }
