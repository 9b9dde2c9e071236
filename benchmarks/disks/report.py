"""The figures of a run as JSON, as tables between the marks of disks.md, and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pages

PEER = ("boot", "site.yml", "sanitise", "shut down", "compact")


def write(found: Mapping[str, Any], directory: Path, peers: Path) -> None:
    """Write disks.json and disks.svg to `directory`, and the tables into its disks.md."""
    data = pages.write("disks", found, tables(found), directory)
    pages.draw(Path(__file__).with_name("plot.py"), data, peers)


def total(row: Mapping[str, Any], *stages: str) -> float:
    """Seconds of some stages of one run."""
    return float(sum(row["stages"][stage] for stage in stages))


def tables(found: Mapping[str, Any]) -> str:
    """What was measured, as ratios of paired runs first."""
    machine = found["machine"]
    mine, theirs = (
        [row for row in found["rows"] if row["name"] == name] for name in ("goldnode", "packer")
    )
    pairs = list(zip(sorted(mine, key=_turn), sorted(theirs, key=_turn), strict=True))
    note = f" **{machine['note']}**" if machine["note"] else ""
    why = f" ({machine['why']})" if machine["why"] else ""
    told = (
        f"{found['date']}, commit `{found['commit']}`: {machine['cores']} cores ({machine['processor']}), kernel {machine['kernel']}, virtual machines "
        f"by {machine['accelerator']}{why}; load {machine['load']} at the end. Class `{found['class']}`, "
        f"{found['runs']} paired run{'s'[: found['runs'] != 1]}, in turns; the median, with least and most in brackets.{note}\n"
    )
    ratios = [
        [
            "image, nothing there before",
            _ratio([total(two, *PEER) / total(one, "cold") for one, two in pairs]),
        ],
        [
            "image, packages and root filesystem there",
            _ratio([total(two, *PEER) / total(one, "warm") for one, two in pairs]),
        ],
        ["bytes of the qcow2", _ratio([two["qcow2"] / one["qcow2"] for one, two in pairs])],
    ]
    if all("verify" in one["stages"] for one, _ in pairs):
        ratios.insert(
            1,
            [
                "image, and booted to be verified",
                _ratio([total(two, *PEER) / total(one, "cold", "verify") for one, two in pairs]),
            ],
        )
    inside = dict.fromkeys(stage for row in mine for stage in row["inside"])
    figures = [
        [f"goldnode: {stage}", _cell([row["stages"][stage] for row in mine])]
        for stage in mine[0]["stages"]
    ]
    figures += [
        [f"in a cold build: {stage}", _cell([row["inside"].get(stage, 0) for row in mine])]
        for stage in inside
    ]
    figures += [
        [f"Packer way: {stage}", _cell([row["stages"][stage] for row in theirs])] for stage in PEER
    ]
    sizes = [
        [
            title,
            f"{statistics.median(row['qcow2'] for row in rows) / 1e6:.0f}",
            str(rows[0]["packages"]),
            rows[0]["kernel"],
        ]
        for title, rows in (("goldnode", mine), ("Packer way", theirs))
    ]
    parts = [
        told,
        "Packer way : goldnode, wall time (above 1: goldnode is cheaper)\n",
        pages.table(["", "ratio"], ratios),
        pages.table(["", "wall time, s"], figures),
        pages.table(["", "qcow2, MB", "packages", "kernels"], sizes),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _turn(row: Mapping[str, Any]) -> int:
    return int(row["turn"])


def _ratio(found: Sequence[float]) -> str:
    return f"**{statistics.median(found):.2f}x** ({min(found):.2f}-{max(found):.2f})"


def _cell(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.0f} ({min(found):.0f}-{max(found):.0f})"
