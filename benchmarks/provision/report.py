"""The figures of a run as JSON, as tables between the marks of provision.md, and as a plot."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures: written by benchmarks/run provision -->", "<!-- end of figures -->"
# Measure, what it is called, and what the figure is divided by to be shown.
MEASURES = (("wall", "wall time, s", 1.0), ("node_cpu", "CPU of the node, s", 1.0), ("bytes", "bytes the node received, MB", 1e6))
# What this was built to reach: how many times less wall time.
TARGETS = {"driver step": 8.0, "first run": 2.5}


def write(found: Mapping[str, Any], directory: Path, peers: Path) -> None:
    """Write provision.json and provision.svg to `directory`, and the tables into its provision.md."""
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "provision.json"
    data.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = directory / "provision.md"
    before, after = f"# benchmarks/provision\n\n{BEGIN}\n", f"{END}\n"
    if page.exists() and BEGIN in (text := page.read_text(encoding="utf-8")):
        before, after = text[: text.index(BEGIN)] + BEGIN + "\n", text[text.index(END) :]
    page.write_text(before + tables(found) + after, encoding="utf-8")
    script = Path(__file__).with_name("plot.py")
    subprocess.run([str(peers / "bin/python"), str(script), str(data), str(directory / "provision.svg")], check=True)


def values(found: Mapping[str, Any], leg: str, name: str, measure: str) -> list[float]:
    """The samples of one measure, in the order of the turns."""
    return [row[measure] for row in found["rows"] if (row["leg"], row["name"]) == (leg, name)]


def tables(found: Mapping[str, Any]) -> str:
    """What was measured, as ratios of paired runs first, and each target with whether it was met."""
    machine, rows = found["machine"], found["rows"]
    legs = list(dict.fromkeys(row["leg"] for row in rows))
    titles = {row["name"]: row["title"] for row in sorted(rows, key=lambda row: row["name"])}
    note = f" {machine['note']}" if machine["note"] else ""
    once = f"{found['built_once_seconds']:.0f} s" if found["built_once_seconds"] is not None else "not recorded"
    told = (
        f"{found['date']}, commit `{found['commit']}`: {machine['cores']} cores ({machine['processor']}), kernel {machine['kernel']}, "
        f"ansible-core {machine['ansible_core']}. Stack `{found['stack']}`: kernel {rows[0]['kernel']}, driver {rows[0]['driver']}. "
        f"{found['runs']} paired runs, in turns; the median, with least and most in brackets.{note}\n"
    )
    ratios, verdicts = [], []
    for leg in legs:
        cells = []
        for measure, _, _ in MEASURES:
            pairs = [a / b for a, b in zip(values(found, leg, "dkms", measure), values(found, leg, "prebuilt", measure), strict=True)]
            cells.append(f"**{statistics.median(pairs):.1f}x** ({min(pairs):.1f}-{max(pairs):.1f})")
            if measure == "wall":
                middle, target = statistics.median(pairs), TARGETS[leg]
                met = "met" if middle >= target else "MISSED"
                verdicts.append(f"- {leg}: {target:g} times less wall time was the aim: {met}, with {middle:.1f}.\n")
        ratios.append([leg, *cells])
    head = [title for _, title, _ in MEASURES]
    figures = [
        [f"{leg}: {title}", *(_cell([value / unit for value in values(found, leg, name, measure)]) for measure, _, unit in MEASURES)]
        for leg in legs
        for name, title in titles.items()
    ]
    parts = [
        told,
        "DKMS on the node : mirror and prebuilt module (above 1: the latter is cheaper)\n",
        _table(["", *head], ratios),
        "".join(verdicts),
        _table(["", *head], figures),
        f"Building the module once took {once}, in a root of its own; that is paid per lock, not per node.\n",
    ]
    return "\n" + "\n".join(part.rstrip("\n") + "\n" for part in parts) + "\n"


def _cell(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.0f} ({min(found):.0f}-{max(found):.0f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
