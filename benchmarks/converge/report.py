"""The figures of a run as JSON, as tables between the marks of converge.md, and as a plot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures: written by benchmarks/run converge -->", "<!-- end of figures -->"
BASES = ("resident", "reference")


def write(found: Mapping[str, Any], directory: Path, peers: Path) -> None:
    """Write converge.json and converge.svg to `directory`, and the tables into its converge.md."""
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "converge.json"
    data.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = directory / "converge.md"
    before, after = f"# benchmarks/converge\n\n{BEGIN}\n", f"{END}\n"
    if page.exists() and BEGIN in (text := page.read_text(encoding="utf-8")):
        before, after = text[: text.index(BEGIN)] + BEGIN + "\n", text[text.index(END) :]
    page.write_text(before + tables(found) + after, encoding="utf-8")
    subprocess.run(
        [str(peers / "bin/python"), str(Path(__file__).with_name("plot.py")), str(data), str(directory / "converge.svg")], check=True
    )


def tables(found: Mapping[str, Any]) -> str:
    """What was measured, as ratios first."""
    rows, machine = found["rows"], found["machine"]
    numbers = sorted({row["nodes"] for row in rows})
    names = list(dict.fromkeys(row["name"] for row in rows))
    cell = {(row["nodes"], row["name"]): row for row in rows}
    titles = {row["name"]: row["title"] for row in rows}
    peers = [name for name in names if name not in ("ssh", "empty")]
    told = (
        f"{found['date']}, commit `{found['commit']}`. Controller and all nodes share one machine: {machine['cores']} cores "
        f"({machine['processor']}), kernel {machine['kernel']}; round trip {machine['rtt_ms']} ms; {machine['ssh']}; "
        f"ansible-core {machine['ansible_core']} on Python {machine['controller_python']}, nodes {machine['node_python']}, "
        f"mitogen {machine['mitogen']}, pyinfra {machine['pyinfra']}. Best of {found['runs']} interleaved runs; median in brackets.\n"
    )
    ratio = [
        [
            f"{titles[name]} : {titles[base]}",
            *(f"**{cell[n, name]['wall']['best'] / cell[n, base]['wall']['best']:.1f}x**" for n in numbers),
        ]
        for base in BASES
        for name in ("conventional", "mitogen", "pyinfra")
    ]
    wall = [
        [titles[name], *(f"{cell[n, name]['wall']['best']:.2f} ({cell[n, name]['wall']['median']:.2f})" for n in numbers)] for name in names
    ]
    work = [
        [titles[name], *(f"{cell[n, name]['controller_cpu']['best']:.2f} + {cell[n, name]['node_cpu']['best']:.2f}" for n in numbers)]
        for name in names
    ]
    counts = [[titles[name], *(str(cell[n, name]["executions"] or "-") for n in numbers)] for name in peers]
    head = [f"N = {number}" for number in numbers]
    alone = found["state"]["kept_by_goldnode_alone"]
    note = f"Kept by goldnode alone, so that the others do less: {', '.join(alone)}.\n" if alone else ""
    parts = [
        told,
        f"State: class `{found['state']['class']}`, {found['state']['files']} files, {found['state']['packages']} locked and held packages, "
        f"the module, the initramfs, the unit. {note}",
        "Wall time as ratio (above 1: goldnode is faster)\n",
        _table(["", *head], ratio),
        "Wall time, seconds for all nodes\n",
        _table(["", *head], wall),
        "CPU, seconds of controller + all nodes together\n",
        _table(["", *head], work),
        "Remote executions per run (mitogen calls functions over one connection per node, which is not comparable)\n",
        _table(["", *head], counts),
    ]
    return "\n" + "\n".join(part.rstrip("\n") + "\n" for part in parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
