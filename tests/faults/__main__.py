"""python -m tests.faults: the page of the scoreboard (docs/reference/faults.md), and single rows of it run."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.peers import MARKS, TOOLS
from tests.faults.run import Bases, run
from tests.faults.table import MEASURED, MORE, ROWS, TRAPS, Row
from tests.simulators.hardware import build

PAGE = Path(__file__).parents[2] / "docs/reference/faults.md"
CODES = {0: "healthy", 1: "degraded", 2: "drain", 3: "could not check", 4: "not this class"}
WORDING = {".": "-", "W": "warning", "F": "fault"}
HEAD = """# Fault scoreboard

<!-- Written by python -m tests.faults --write. Do not edit: change tests/faults/table.py. -->

This page lists the faults that the health check finds, next to other tools. Each row is a **simulated** node with one fault, or with a
property that only looks like a fault, and the result of the real command: `goldnode-node check` with real pynvml on a simulated
`libnvidia-ml.so.1`, and the files of a complete node below another root. Each node is checked first while it is healthy, then with the
fault, again five minutes later, and after a boot. `tests/faults/test_scoreboard.py` tests every row. The page does not cover real hardware.
"""
PEERS = """The results of the other tools were measured for this project: the tools themselves ran with a simulated driver. They could read NVML
and the kernel log only; DCGM, bandwidth tests and sysfs were not available to them. The authors of goldnode also wrote the scenarios. These
commands were run: """


def own(row: Row) -> str:
    """What goldnode says of a row."""
    if row.red:
        return f"**not as it should be**: {row.red}"
    if row.trap:
        return "-"
    found = ", ".join(f"`{name}`" for name in row.find.replace("\\", "").split("|"))
    return f"{' or '.join(CODES[code] for code in row.codes)}: {found}"


def page() -> str:
    """The text of docs/reference/faults.md."""
    red = [row for row in ROWS if row.red]
    faults, traps = [row for row in ROWS if not row.trap], [row for row in ROWS if row.trap]
    lines = [HEAD, f"{len(faults)} faults, {len(faults) - sum(not row.trap for row in red)} of them found; {len(traps)} healthy nodes, "
             f"{sum(row.trap for row in red)} false alarms.\n"]  # fmt: skip
    lines += [
        "## Next to other tools\n",
        PEERS + "; ".join(f"{name}: {how}" for name, how in TOOLS.items()) + ".\n",
    ]
    lines += [
        "| | node | " + " | ".join([*TOOLS, "goldnode"]) + " |",
        "| --- | --- |" + " --- |" * (len(TOOLS) + 1),
    ]
    for row in MEASURED:
        lines.append(
            f"| {row.name} | {row.text} | "
            + " | ".join(WORDING[mark] for mark in MARKS[row.name].split())
            + f" | {own(row)} |"
        )
    count = {
        name: [MARKS[row.name].split()[place] for row in MEASURED if not row.trap]
        for place, name in enumerate(TOOLS)
    }
    wrong = {
        name: [MARKS[row.name].split()[place] for row in MEASURED if row.trap]
        for place, name in enumerate(TOOLS)
    }
    measured = [row for row in MEASURED if not row.trap]
    found = [str(sum(mark != "." for mark in marks)) for marks in count.values()] + [
        str(sum(not row.red for row in measured))
    ]
    false = [str(sum(mark != "." for mark in marks)) for marks in wrong.values()] + [
        str(sum(bool(row.red) for row in MEASURED if row.trap))
    ]
    lines += [f"| | **faults reported of {len(measured)}, including warnings** | " + " | ".join(found) + " |",
              f"| | **false alarms of {len(MEASURED) - len(measured)}** | " + " | ".join(false) + " |", ""]  # fmt: skip
    lines += ["## Further faults\n", "| | node | goldnode |", "| --- | --- | --- |"]
    lines += [f"| {row.name} | {row.text} | {own(row)} |" for row in MORE]
    lines += ["", "## Further healthy nodes\n", "| | node | goldnode |", "| --- | --- | --- |"]
    lines += [f"| {row.name} | {row.text} | {own(row)} |" for row in TRAPS]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rows", nargs="*", help="names of rows to run; all of them by default")
    parser.add_argument(
        "--write", action="store_true", help="write docs/reference/faults.md, and run nothing"
    )
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        bases = Bases(Path(name), build(Path(name) / "library").parent)
        for row in ROWS:
            if options.rows and row.name not in options.rows:
                continue
            result = run(row, bases)
            bad += bool(result.wrong)
            print(
                f"{row.name:5} {'as expected' if not result.wrong else 'WRONG'}  {row.text}",
                flush=True,
            )
            for reported in result.wrong:
                print(f"        {reported}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
