"""The figures of a run as JSON, as tables between the marks of converge.md, and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pages

BASES = ("resident", "reference")


def write(found: Mapping[str, Any], directory: Path, peers: Path) -> None:
    """Write converge.json and converge.svg to `directory`, and the tables into its converge.md."""
    data = pages.write("converge", found, tables(found), directory)
    pages.draw(Path(__file__).with_name("plot.py"), data, peers)


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
            *(
                f"**{cell[n, name]['wall']['best'] / cell[n, base]['wall']['best']:.1f}x**"
                for n in numbers
            ),
        ]
        for base in BASES
        for name in ("conventional", "mitogen", "pyinfra")
    ]
    wall = [
        [
            titles[name],
            *(
                f"{cell[n, name]['wall']['best']:.2f} ({cell[n, name]['wall']['median']:.2f})"
                for n in numbers
            ),
        ]
        for name in names
    ]
    work = [
        [
            titles[name],
            *(
                f"{cell[n, name]['controller_cpu']['best']:.2f} + {cell[n, name]['node_cpu']['best']:.2f}"
                for n in numbers
            ),
        ]
        for name in names
    ]
    counts = [
        [titles[name], *(str(cell[n, name]["executions"] or "-") for n in numbers)]
        for name in peers
    ]
    head = [f"N = {number}" for number in numbers]
    alone = found["state"]["kept_by_goldnode_alone"]
    note = (
        f"Kept by goldnode alone, so that the others do less: {', '.join(alone)}.\n"
        if alone
        else ""
    )
    parts = [
        told,
        f"State: class `{found['state']['class']}`, {found['state']['files']} files, {found['state']['packages']} locked and held packages, "
        f"the module, the initramfs, the unit. {note}",
        "Wall time as ratio (above 1: goldnode is faster)\n",
        pages.table(["", *head], ratio),
        "Wall time, seconds for all nodes\n",
        pages.table(["", *head], wall),
        "CPU, seconds of controller + all nodes together\n",
        pages.table(["", *head], work),
        "Remote executions per run (mitogen calls functions over one connection per node, which is not comparable)\n",
        pages.table(["", *head], counts),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)
