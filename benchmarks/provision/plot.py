"""Draws provision.json: `plot.py JSON SVG`. Runs in the peers' environment, which has matplotlib."""

import json
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "goldnode"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402 - the backend is chosen before

COLOURS = {"dkms": "#b2182b", "prebuilt": "#1b7837"}
PANELS = (
    ("wall", "wall time, s", 1.0),
    ("node_cpu", "CPU of the node, s", 1.0),
    ("bytes", "received by the node, MB", 1e6),
)

found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
legs = list(dict.fromkeys(row["leg"] for row in found["rows"]))
titles = {row["name"]: row["title"] for row in found["rows"]}
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6))
for axis, (measure, title, unit) in zip(axes, PANELS, strict=True):
    for index, name in enumerate(COLOURS):
        for place, leg in enumerate(legs):
            samples = [
                row[measure] / unit
                for row in found["rows"]
                if (row["leg"], row["name"]) == (leg, name)
            ]
            at, middle = place * 3 + index, statistics.median(samples)
            axis.bar(
                at,
                middle,
                color=COLOURS[name],
                alpha=0.85,
                label=titles[name] if place == 0 else None,
            )
            axis.plot([at] * len(samples), samples, "o", color="#222222", markersize=3)
            axis.annotate(
                f"{middle:.0f}",
                (at, max(samples)),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_xticks(
        [place * 3 + 0.5 for place in range(len(legs))],
        [leg.replace(" without ", "\nwithout ") for leg in legs],
        fontsize=9,
    )
    axis.margins(y=0.15)
    axis.spines[["top", "right"]].set_visible(False)
figure.legend(
    *axes[0].get_legend_handles_labels(), loc="lower center", ncols=2, frameon=False, fontsize=9
)
figure.tight_layout(rect=(0, 0.09, 1, 1))
figure.savefig(sys.argv[2], metadata={"Date": None})
