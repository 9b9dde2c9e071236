"""python -m tests.reports: the page of the reports (docs/reference/reports.md), and the answers to single reports."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.reports.corpus import ROUNDS, TREE, TRIAL, Report, Source, open_reports, reports

PAGE = Path(__file__).parents[2] / "docs/reference/reports.md"
HEAD = """# Public reports

<!-- Written by python -m tests.reports --write. Do not edit: change the files in tests/reports. -->

Each row is a report by an operator of GPU nodes, from a public tracker: a log, a file, a combination of versions or a text that was
pasted. `tests/reports` has each in our own words, with its input in the format of the machine, the answer that an operator needs, and its
source; personal details are replaced. `tests/reports/test_reports.py` gives each input to the product and compares. The expected answer
was written before the product was asked. *right* means that all of it holds: exit status, names that must be in the answer, and words that must not.
"""


def link(source: Source) -> str:
    """Return a link to the thread of a source."""
    if source.tracker == "github":
        repository, _, number = source.thread.partition("#")
        return f"[{source.thread}](https://github.com/{repository}/issues/{number})"
    if source.thread.startswith("https://"):
        return f"[{source.tracker}]({source.thread})"
    return f"{source.tracker}: {source.thread}"


def counted(rows: list[Report], pending: dict[str, str]) -> list[str]:
    """Return how many were right first, how many are now, how many could not be rebuilt."""
    rebuilt = [row for row in rows if not row.not_rebuilt]
    first = sum((row.before or row.first) == "right" for row in rebuilt)
    now = sum(row.id not in pending for row in rebuilt)
    return [str(len(rows)), str(len(rebuilt)), str(first), str(now)]


def totals(rows: list[Report], pending: dict[str, str]) -> list[str]:
    """Return the table of trackers, those with most reports first."""
    groups: dict[str, list[Report]] = defaultdict(list)
    for row in rows:
        groups[row.sources[0].group].append(row)
    lines = [
        "| Tracker | Reports | Rebuilt | Right first | Right now |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {name} | {' | '.join(counted(members, pending))} |")
    return [*lines, f"| **all** | {' | '.join(counted(rows, pending))} |"]


def trial(rows: list[Report]) -> str:
    """Return the paragraph about the reports of the trial, and about corrected expectations."""
    known = [row for row in rows if row.trial and not row.not_rebuilt]
    lost = sum(row.trial for row in rows) - len(known)
    words = ("right", "partly", "wrong", "cannot")
    before = ", ".join(f"{sum(row.before == word for row in known)} {word}" for word in words)
    corrected = sum(row.changed is not None for row in rows)
    return (
        f"A trial of 109 reports at {TRIAL} found 54 not right: 27 wrong, 17 partly, and 10 that the product could not take. Some inputs of one "
        f"fault are one report here. {len(known)} are rebuilt, and {lost} could not be. At {TREE}, before these tests, the product answered them: "
        f"{before}. The other reports are judged at {TREE} only, and those of a blind round at its commit. "
        f"{corrected} expectations were corrected after the product was asked; `changed` "
        "in the file of the report has the reason."
    )


def rounds(rows: list[Report], pending: dict[str, str]) -> list[str]:
    """Return the table of the blind rounds: how their reports were answered first, and how many are right now."""
    lines = [
        "## Blind rounds",
        "",
        "The answers of a round were committed before its reports were given to the product. Each round was found after the fixes of the "
        "one before, so its first column is what an operator gets for a report that nobody has seen. Five threads of round 7 "
        "were in the results of the search for round 6, and were not used there. Round 8 is on ground that no round before it was on: "
        "boot loaders and images, ssh and Ansible, metrics and health checks; round 9 is on the same ground. "
        "Round 10 is about boot order, EFI partitions, entries of the boot loader and copies of disks; "
        "round 11 is on the same ground, found after the readers of these outputs were written. "
        "Round 12 goes back to drivers, containers, schedulers and archives; "
        "round 13 to runtimes and CDI, initramfs and boot loaders, AMD, vGPU and Slurm.",
        "",
        "| Round | At | Reports | Right first | Partly | Wrong | Not taken | Right now |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    words = ("right", "partly", "wrong", "cannot")
    for number, commit in ROUNDS.items():
        members = [row for row in rows if row.round == number]
        first = " | ".join(str(sum(row.first == word for row in members)) for word in words)
        now = sum(row.id not in pending for row in members)
        lines.append(f"| {number} | {commit} | {len(members)} | {first} | {now} |")
    return [*lines, ""]


def page() -> str:
    """Return the text of docs/reference/reports.md."""
    rows, pending = reports(), open_reports()
    lines = [HEAD, trial(rows) + "\n", *rounds(rows, pending), "## Trackers", ""]
    lines += [*totals(rows, pending), ""]
    lost = [row for row in rows if row.not_rebuilt]
    if lost:
        lines += ["## Not rebuilt", ""]
        lines += [
            f"* {link(row.sources[0])}: {row.report.strip()} {row.not_rebuilt}" for row in lost
        ]
        lines.append("")
    if pending:
        lines += ["## Still answered wrongly", ""]
        lines += [f"* `{name}`: {why}" for name, why in sorted(pending.items())]
        lines.append("")
    lines += ["## All reports", ""]
    for area in sorted({row.id.partition("/")[0] for row in rows}):
        members = [row for row in rows if row.id.startswith(f"{area}/")]
        lines += [f"### {area}", "", "| Report | Source | First |", "|---|---|---|"]
        lines += [
            f"| {cell(row)} | {', '.join(map(link, row.sources))} | {judged(row)} |"
            for row in members
        ]
        lines.append("")
    return "\n".join(lines)


def cell(row: Report) -> str:
    """Return the text of a report for a cell of a table."""
    return " ".join(row.report.split()).replace("|", "\\|").replace("<", "&lt;")


def judged(row: Report) -> str:
    """Return how it was answered first, and for a report of the trial at both commits."""
    if row.before is None:
        return str(row.first)
    return f"{row.first}, then {row.before}"


def main() -> int:
    from tests.reports.doors import DOORS, differences  # the page needs none of them

    parser = argparse.ArgumentParser(prog="python -m tests.reports", description=__doc__)
    parser.add_argument("ids", nargs="*", help="AREA/ID of reports to answer; all by default")
    parser.add_argument("--write", action="store_true", help="write the page, and run nothing")
    parser.add_argument("--brief", action="store_true", help="show no answers, only what differs")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    bad = 0
    for row in reports():
        if row.not_rebuilt or (options.ids and row.id not in options.ids):
            continue
        with tempfile.TemporaryDirectory() as place:
            answer = DOORS[row.ask](row, Path(place))
        wrong = differences(row, answer)
        bad += bool(wrong)
        print(f"{'WRONG' if wrong else 'right'} {row.id} (exit {answer.exit})", flush=True)
        if not options.brief:
            print("    " + answer.text.replace("\n", "\n    "))
        for line in wrong:
            print(f"    -> {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
