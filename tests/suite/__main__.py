"""Main program of `scripts/test` after the set-up: `python -m tests.suite choose|list|run …`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.suite import selection, timings
from tests.suite.imports import Imports
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
    given = parser.parse_args(own)
    wanted = Wanted(given.quick, given.long, given.record, tuple(options))
    if given.command == "choose":
        return choose(wanted, given.base or None, given.plan)
    if given.command == "list":
        return show(wanted, given.base or None, changed=given.changed)
    tests = json.loads(given.plan.read_text(encoding="utf-8")) if given.plan else None
    wanted = Wanted(given.quick, given.long, given.record, tuple(options), tests)
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
    collected = collect()
    marks = {file: set().union(*tests.values()) for file, tests in collected.items()}
    known = selection.known_files(ROOT)
    found = selection.select(changed, Imports(ROOT, {*known, *changed}), marks)
    if found.everything:
        print(f"everything runs: {found.everything}")
        return 0, None
    for line in found.folded():
        print(f"  {line}")
    tests, left = by_stage(found.why, collected, wanted)
    for reason, names in left.items():
        print(
            f"  {reason}: {', '.join(sorted(names)[:6])}"
            f"{f' and {len(names) - 6} more' if len(names) > 6 else ''}"
        )
    if not any(tests.values()):
        print(
            f"nothing that a test reads changed: {', '.join(changed)}"
            if not left
            else "no test of what changed is among those asked for"
        )
        return 5, tests
    return 0, tests


def by_stage(
    chosen: Mapping[str, str], collected: Mapping[str, Mapping[str, set[str]]], wanted: Wanted
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return stage → its chosen tests, and reason → the chosen tests that the current options exclude."""
    stages: dict[str, list[str]] = {stage.name: [] for stage in STAGES}
    left: dict[str, list[str]] = {}
    for name in sorted(chosen):
        file = name.partition("::")[0]
        tests = collected.get(file, {})
        # If the table names a test that no longer exists, run its whole file.
        test = name if name in tests else file
        marks = [tests[test]] if test in tests else list(tests.values())
        for stage in STAGES:
            if not any(stage.has(found, long=True) for found in marks):
                continue
            if wanted.quick and stage.heavy:
                left.setdefault("not with --quick", []).append(test)
            elif any(stage.has(found, long=wanted.long) for found in marks):
                stages[stage.name].append(test)
            else:
                left.setdefault("only with --all", []).append(test)
    return stages, left


def show(wanted: Wanted, base: str | None, *, changed: bool) -> int:
    """Print the plan without running anything."""
    code, tests = chosen(wanted, base) if changed else (0, None)
    if code:
        return code
    record = timings.load()
    if tests is not None:
        wanted = Wanted(
            wanted.quick,
            wanted.long,
            False,
            wanted.options,
            {name: tuple(some) for name, some in tests.items()},
        )
    collected = collect()
    marks = {file: set().union(*of_file.values()) for file, of_file in collected.items()}
    for number, stage in enumerate(wanted.stages, start=2):
        here = [
            test
            for of_file in collected.values()
            for test, found in of_file.items()
            if stage.has(found, long=wanted.long)
        ]
        print(
            f"\n== {number}. {stage.title}",
            f"{len(here)} tests in {len({test.partition('::')[0] for test in here})} files",
            sep="\n",
        )
        print(*before(stage, wanted, record, marks), sep="\n")
        if tests is not None:
            print(*(f"  {test}" for test in tests[stage.name]), sep="\n")
    if tests is None:
        print(
            "\nslowest of all: "
            f"{slowest({file: row['seconds'] for file, row in record.files.items()}, 12) or 'not recorded yet'}"
        )
    if setup := record.stages.get("set-up"):
        print(f"the set-up took {spell(setup['seconds'])} when it last installed something")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
