"""Draws ingest.json: `plot.py JSON SVG`. Runs in the peers' environment, which has matplotlib."""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "goldnode"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402 - the backend is chosen before

CAPTURES, WEEK = 90 * 24 * 10_000, 7 * 24  # captures; those of a node of which one is whole
# The build before, of 2026-11-26, with every capture stored whole: docs/benchmarks/ingest.md has the measurement.
BEFORE = ("every capture whole, 3afbe995", 40.5)
GOALS = {"exact": 7.5, "stated": 3.5}
PARTS = ("changes", "nodes", "other tables", "whole captures, one a week")
COLOURS = dict(zip(PARTS, ("#1b7837", "#a6dba0", "#888888", "#2166ac"), strict=True))

found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
figure, axis = plt.subplots(figsize=(9, 2.6))
labels = [BEFORE[0]]
axis.barh(0, BEFORE[1], color="#b2182b", height=0.7)
axis.annotate(f"{BEFORE[1]:g}", (BEFORE[1], 0), xytext=(5, 0), textcoords="offset points", fontsize=8, va="center")  # fmt: skip
for at, row in enumerate(found["figures"], 1):
    changed = dict(row["changed_bytes"])
    sizes = [changed.pop("changes"), changed.pop("nodes"), sum(changed.values()), row["whole_bytes"] / WEEK]  # fmt: skip
    left = 0.0
    for part, size in zip(PARTS, sizes, strict=True):
        wide = size * CAPTURES / 1e9
        axis.barh(at, wide, left=left, color=COLOURS[part], height=0.7, label=part if at == 1 else None)  # fmt: skip
        left += wide
    fleet, precision = row["fleet"].split()
    axis.plot([GOALS[precision]] * 2, [at - 0.45, at + 0.45], color="#222222", linewidth=1)
    axis.annotate(f"{row['gb_of_90_days_hourly']:.2f}", (left, at), xytext=(9, 0), textcoords="offset points", fontsize=8, va="center")  # fmt: skip
    labels.append(f"{fleet}, {'without loss' if precision == 'exact' else 'at the stated precision'}")  # fmt: skip
axis.set_yticks(range(len(labels)), labels, fontsize=9)
axis.invert_yaxis()
axis.set_xlabel("GB of 90 days, hourly, 10,000 nodes (computed from simulated captures); black lines are goals", fontsize=9)  # fmt: skip
axis.legend(fontsize=8, loc="lower right", frameon=False)
axis.margins(x=0.08)
axis.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
figure.savefig(sys.argv[2], metadata={"Date": None})
