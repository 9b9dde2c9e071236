"""Draws converge.json: `plot.py JSON SVG`. Runs in the peers' environment, which has matplotlib."""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "goldnode"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402 - the backend is chosen before

COLOURS = {
    "resident": "#1b7837", "reference": "#5aae61", "pyinfra": "#2166ac", "mitogen": "#b2782c", "conventional": "#b2182b", "empty": "#888888",
}  # fmt: skip

found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
rows = [row for row in found["rows"] if row["name"] in COLOURS]
numbers = sorted({row["nodes"] for row in rows})

figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), sharex=True)
panels = (
    (("wall",), "wall time of a converged re-run, s"),
    (("controller_cpu", "node_cpu"), "CPU of controller and nodes together, s"),
)
for axis, (parts, title) in zip(axes, panels, strict=True):
    ends = []
    for name, colour in COLOURS.items():
        mine = sorted((row for row in rows if row["name"] == name), key=lambda row: row["nodes"])
        values = [sum(row[part]["best"] for part in parts) for row in mine]
        floor = name == "empty"
        axis.plot(
            [row["nodes"] for row in mine],
            values,
            marker="" if floor else "o",
            color=colour,
            linestyle=":" if floor else "-",
            linewidth=2,
        )
        ends.append((values[-1], mine[0]["title"], colour))
    axis.set_yscale("log")
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_xlabel("nodes")
    axis.set_xticks(numbers)
    axis.grid(visible=True, which="major", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_locator(mpl.ticker.NullLocator())
    axis.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = axis.get_ylim()
    # Labels beside the last points, moved apart where they would touch.
    least = (high / low) ** 0.06
    at = 0.0
    for value, text, colour in sorted(ends):
        at = max(value, at * least)
        axis.annotate(
            text,
            (numbers[-1], at),
            xytext=(8, 0),
            textcoords="offset points",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )
machine = found["machine"]
figure.text(
    0.01, 0.01,
    f"best of {found['runs']}; controller and nodes share {machine['cores']} cores, so that wall time at N > 2 is CPU-bound; "
    f"round trip {machine['rtt_ms']} ms; logarithmic scales",
    fontsize=8, color="#555555",
)  # fmt: skip
figure.tight_layout(rect=(0, 0.04, 1, 1), w_pad=11)
figure.savefig(sys.argv[2], metadata={"Date": None})
