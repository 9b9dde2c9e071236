"""Main program of `scripts/test` after the set-up: `python -m tests.suite choose|list|run …`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.suite import selection, timings
from tests.suite.stages import STAGES, Wanted, before, collect, run, slowest
from tests.suite.timings import ROOT, spell


def main(argv: list[str]) -> int:
    own, options = argv, list[str]()
    if "--" in argv:
        place = argv.index("--")
        own, options = argv[:place], argv[place + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.suite")
    parser.add_argument("command", choices=["choose", "list", "run"])
    for flag in ("--quick", "--long", "--record", "--changed"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--base", default="", help="commit that --changed counts from")
    parser.add_argument(
        "--plan", type=Path, help="file that `choose` writes and `run` reads: stage → tests"
    )
    parser.add_argument("--setup", type=float, help="seconds that the set-up took")
    parser.add_argument("--within", type=float, help="minutes for all, the set-up included")
    given = parser.parse_args(own)
    wanted = Wanted(given.quick, given.long, given.record, tuple(options))
    if given.command == "choose":
        return choose(wanted, given.base or None, given.plan)
    if given.command == "list":
        return show(wanted, given.base or None, changed=given.changed)
    tests = json.loads(given.plan.read_text(encoding="utf-8")) if given.plan else None
    wanted = Wanted(given.quick, given.long, given.record, tuple(options), tests, given.within)
    return run(wanted, setup=given.setup)


def choose(wanted: Wanted, base: str | None, plan: Path) -> int:
    """Write the tests that the changes can affect by stage, and print the reasons.

    Return 0 if tests were selected, 5 if no test is affected, 6 if nothing changed.
    """
    code, tests = chosen(wanted, base)
    plan.write_text(json.dumps(tests), encoding="utf-8")
    return code


def chosen(wanted: Wanted, base: str | None) -> tuple[int, dict[str, list[str]] | None]:
    """Select the tests, and print the reasons.

    Return the exit status of `choose` and stage → tests; None means all tests of all stages.
    """
    since, changed = selection.changed_files(ROOT, base)
    if not changed:
        print(f"nothing differs from {since}: no test was run")
        return 6, {}
    print(f"{len(changed)} files differ from {since}")
    files = selection.TestFiles(ROOT, {*selection.known_files(ROOT), *changed})
    selected = selection.select(changed, files)
    if selected.everything:
        print(f"everything runs: {selected.everything}")
        return 0, None
    print(*(f"  {line}" for line in selected.folded()), sep="\n")
    tests, left = by_stage(selected.why, files.marks, wanted)
    for reason, names in left.items():
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        print(f"  {reason}: {', '.join(sorted(names)[:6])}{more}")
    print(*(f"  {line}" for line in selected.left(files)), sep="\n")
    if not any(tests.values()):
        if left:
            print("no test of what changed is among those asked for")
        else:
            print(f"nothing that a test reads changed: {', '.join(changed)}")
        return 5, tests
    return 0, tests


def by_stage(
    chosen: Iterable[str], marks: Mapping[str, set[str]], wanted: Wanted
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return stage → its chosen tests, and reason → the chosen tests that the current options exclude.

    The markers are those that the text of a file names. A unit test file with a marker may have tests of both
    stages; pytest then selects by marker in each.
    """
    stages: dict[str, list[str]] = {stage.name: [] for stage in STAGES}
    left: dict[str, list[str]] = {}
    for test in sorted(chosen):
        file = test.partition("::")[0]
        if file not in marks:
            continue  # deleted
        if not marks[file] or file.startswith("tests/unit/"):
            stages["unit"].append(test)
        if marks[file] and wanted.quick:
            left.setdefault("not with --quick", []).append(test)
        elif marks[file]:
            stages["nodes"].append(test)
    return stages, left


def show(wanted: Wanted, base: str | None, *, changed: bool) -> int:
    """Print the plan without running anything."""
    code, tests = chosen(wanted, base) if changed else (0, None)
    if code:
        return code
    record = timings.load()
    if tests is None:
        show_all(wanted, record)
    else:
        some = {name: tuple(names) for name, names in tests.items()}
        wanted = Wanted(wanted.quick, wanted.long, False, wanted.options, some)
        for number, stage in enumerate(wanted.stages, start=2):
            print(f"\n== {number}. {stage.title}", *before(stage, wanted, record), sep="\n")
            print(*(f"  {test}" for test in some[stage.name]), sep="\n")
    if setup := record.stages.get("set-up"):
        print(f"the set-up took {spell(setup['seconds'])} when it last installed something")
    return 0


def show_all(wanted: Wanted, record: timings.Timings) -> None:
    """Print what the whole run would run."""
    collected = collect()
    marks = {file: set().union(*of_file.values()) for file, of_file in collected.items()}
    for number, stage in enumerate(wanted.stages, start=2):
        here = [
            test
            for of_file in collected.values()
            for test, names in of_file.items()
            if stage.has(names, long=wanted.long)
        ]
        files = {test.partition("::")[0] for test in here}
        print(f"\n== {number}. {stage.title}", f"{len(here)} tests in {len(files)} files", sep="\n")
        print(*before(stage, wanted, record, marks), sep="\n")
    seconds = {file: row["seconds"] for file, row in record.files.items()}
    print(f"\nslowest of all: {slowest(seconds, 12) or 'not recorded yet'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
