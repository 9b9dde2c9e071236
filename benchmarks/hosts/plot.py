"""Draws hosts.json: `plot.py JSON SVG`. Runs in the peers' environment, which has matplotlib."""

import json
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "goldnode"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402 - the backend is chosen before

STUBS = {"one process": "goldnode plan", "Ansible": "goldnode plan by Ansible"}
COLOURS = {"goldnode plan": "#1b7837", "site.yml": "#5aae61", "pyinfra": "#2166ac", "the role": "#b2182b"}  # fmt: skip
GREY = "#888888"

found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
cpu: dict[tuple[str, str, int, str], list[float]] = {}
for row in found["rows"]:
    cpu.setdefault((row["name"], row["kind"], row["hosts"], "names"), []).append(row["cpu"])
for row in found.get("audit", {}).get("rows", ()):
    key = (STUBS[row["name"]], row["kind"], row["hosts"], "stubs")
    cpu.setdefault(key, []).append(row["cpu"])
bars = sorted(
    (statistics.median(some) / key[2], min(some) / key[2], max(some) / key[2], key)
    for key, some in cpu.items()
    if key[1] == "cold"
)

figure, axis = plt.subplots(figsize=(9, 0.9 + 0.3 * len(bars)))
for at, (middle, low, high, key) in enumerate(bars):
    axis.barh(at, middle, color=COLOURS.get(key[0], GREY), height=0.7)
    axis.plot([low, high], [at, at], color="#222222", linewidth=1)
    axis.annotate(
        f"{middle:.4f}",
        (high, at),
        xytext=(5, 0),
        textcoords="offset points",
        fontsize=8,
        va="center",
    )
labels = [f"{name}, {hosts:,} {servers}" for *_, (name, _, hosts, servers) in bars]
axis.set_yticks(range(len(bars)), labels, fontsize=9)
axis.invert_yaxis()
axis.set_xscale("log")
axis.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
axis.set_xlabel("CPU of the controller, seconds a host; cold connections; lines are spreads; logarithmic scale", fontsize=9)  # fmt: skip
axis.margins(x=0.12)
axis.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
figure.savefig(sys.argv[2], metadata={"Date": None})
