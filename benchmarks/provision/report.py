"""The figures of a run as JSON, as tables between the marks of provision.md, and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pages

# Measure, what it is called, and what the figure is divided by to be shown.
MEASURES = (
    ("wall", "wall time, s", 1.0),
    ("node_cpu", "CPU of the node, s", 1.0),
    ("bytes", "bytes the node received, MB", 1e6),
)
SHARE = "driver's share of a first run"
# Goals, as how many times less the prebuilt way takes. Wall time means little where other work shares the machine.
TIMES = {SHARE: 8.0, "driver step": 7.0, "first run": 4.5}
GOALS = {
    **{(leg, measure): least for leg, least in TIMES.items() for measure in ("node_cpu", "wall")},
    ("first run", "bytes"): 1 / 0.6,
}


def write(found: Mapping[str, Any], directory: Path, peers: Path) -> None:
    """Write provision.json and provision.svg to `directory`, and the tables into its provision.md."""
    data = pages.write("provision", found, tables(found), directory)
    pages.draw(Path(__file__).with_name("plot.py"), data, peers)


def values(found: Mapping[str, Any], leg: str, name: str, measure: str) -> list[float]:
    """The samples of one measure, in the order of the turns; the driver's share is what a first run costs above one without a driver."""
    if leg == SHARE:
        whole, without = (
            values(found, part, name, measure)
            for part in ("first run", "first run without a driver")
        )
        return [a - b for a, b in zip(whole, without, strict=True)]
    return [row[measure] for row in found["rows"] if (row["leg"], row["name"]) == (leg, name)]


def tables(found: Mapping[str, Any]) -> str:
    """What was measured, as ratios of paired runs first, and each target with whether it was met."""
    machine, rows = found["machine"], found["rows"]
    legs = list(dict.fromkeys(row["leg"] for row in rows))
    if {"first run", "first run without a driver"} <= {*legs}:
        legs.insert(2, SHARE)
    titles = {row["name"]: row["title"] for row in sorted(rows, key=lambda row: row["name"])}
    note = f" {machine['note']}" if machine["note"] else ""
    once = (
        f"{found['built_once_seconds']:.0f} s"
        if found["built_once_seconds"] is not None
        else "not recorded"
    )
    told = (
        f"{found['date']}, commit `{found['commit']}`: {machine['cores']} cores ({machine['processor']}), kernel {machine['kernel']}, "
        f"ansible-core {machine['ansible_core']}. Stack `{found['stack']}`: kernel {rows[0]['kernel']}, driver {rows[0]['driver']}. "
        f"{found['runs']} paired run{'s'[: found['runs'] != 1]}, in turns; the median, with least and most in brackets.{note}\n"
    )
    ratios, verdicts = [], []
    for leg in legs:
        cells = []
        for measure, title, _ in MEASURES:
            built, prebuilt = (values(found, leg, way, measure) for way in ("dkms", "prebuilt"))
            # A driver's share is the difference of two runs, and load can make that zero or less.
            if min(prebuilt) <= 0:
                cells.append("no ratio")
                continue
            pairs = [a / b for a, b in zip(built, prebuilt, strict=True)]
            cells.append(f"**{statistics.median(pairs):.1f}x** ({min(pairs):.1f}-{max(pairs):.1f})")
            if goal := GOALS.get((leg, measure)):
                middle = statistics.median(pairs)
                met = "met" if middle >= goal else "MISSED"
                verdicts.append(
                    f"- {leg}: {goal:.3g} times less {title.partition(',')[0]} was the aim: {met}, with {middle:.3g}.\n"
                )
        ratios.append([leg, *cells])
    head = [title for _, title, _ in MEASURES]
    figures = [
        [
            f"{leg}: {title}",
            *(
                _cell([value / unit for value in values(found, leg, name, measure)])
                for measure, _, unit in MEASURES
            ),
        ]
        for leg in legs
        for name, title in titles.items()
    ]
    parts = [
        told,
        "DKMS on the node : mirror and prebuilt module (above 1: the latter is cheaper)\n",
        pages.table(["", *head], ratios),
        "".join(verdicts),
        pages.table(["", *head], figures),
        f"Building the module once took {once}, in a root of its own; that is paid per lock, not per node.\n",
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _cell(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.0f} ({min(found):.0f}-{max(found):.0f})"
