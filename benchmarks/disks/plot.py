"""Draws disks.json: `plot.py JSON SVG`. Runs in the peers' environment, which has matplotlib."""

import json
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "goldnode"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402 - the backend is chosen before

found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
rows = {
    name: [row for row in found["rows"] if row["name"] == name] for name in ("goldnode", "packer")
}
bars = {
    "goldnode, cold": (
        rows["goldnode"],
        [stage for stage in ("cold", "verify") if stage in rows["goldnode"][0]["stages"]],
    ),
    "goldnode, warm": (rows["goldnode"], ["warm"]),
    "Packer way": (rows["packer"], ["boot", "site.yml", "sanitise", "shut down", "compact"]),
}
colours = dict(zip(
    ("cold", "warm", "verify", "boot", "site.yml", "sanitise", "shut down", "compact"),
    ("#1b7837", "#5aae61", "#a6dba0", "#f4a582", "#b2182b", "#d6604d", "#fddbc7", "#92c5de"),
    strict=True,
))  # fmt: skip
figure, axis = plt.subplots(figsize=(9, 2.6))
for place, (_, (samples, stages)) in enumerate(bars.items()):
    left = 0.0
    for stage in stages:
        middle = statistics.median(row["stages"][stage] for row in samples)
        axis.barh(
            place,
            middle,
            left=left,
            color=colours[stage],
            label=stage if stage not in ("warm",) else None,
        )
        left += middle
    axis.annotate(
        f"{left:.0f} s",
        (left, place),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )
axis.set_yticks(range(len(bars)), list(bars))
axis.invert_yaxis()
axis.set_xlabel("wall time, s")
axis.margins(x=0.12)
axis.spines[["top", "right"]].set_visible(False)
axis.legend(fontsize=8, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.3))
figure.savefig(sys.argv[2], metadata={"Date": None}, bbox_inches="tight")
