"""Controller's cost of a converged fleet: CPU per host and memory of `site.yml`, for 100 to 1,000 hosts.

Many names of the inventory share a few nodes, so the nodes' own work is not that of as many machines; the controller's is.
See docs/benchmarks/hosts.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.simulators import standin_lab

from benchmarks import pages
from benchmarks.converge.contenders import BIN, HERE, ROOT, clean
from benchmarks.hosts import audit
from benchmarks.hosts.run import run
from goldnode.core import docker_engine as engine
from goldnode.testing.lab.nodes import NodeSpec

LAB, CLASS, STACK, NODES = "benchmark-hosts", "e2e_r535", "debian12_r535", 4


def inventory(made: standin_lab.StandinLab, count: int, path: Path) -> Path:
    """Write an inventory of `count` hosts that share the lab's nodes."""
    whole = yaml.safe_load((made.lab.inventory / "hosts.yml").read_text(encoding="utf-8"))
    hosts = list(whole["all"]["children"][CLASS]["hosts"].values())
    whole["all"]["children"][CLASS]["hosts"] = {
        f"host{number:04}": hosts[number % len(hosts)] for number in range(count)
    }
    path.mkdir(exist_ok=True)
    (path / "hosts.json").write_text(json.dumps(whole), encoding="utf-8")
    return path


def measure(
    made: standin_lab.StandinLab, counts: Sequence[int], runs: int, forks: int
) -> list[dict[str, Any]]:
    """Run `site.yml` and an empty play in turns, for each number of hosts."""
    ours = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "GOLDNODE_SITE": str(made.site)}
    ours["GOLDNODE_CATALOG"] = os.environ["GOLDNODE_CATALOG"]
    ways = {
        "site.yml": (["site.yml"], ours),
        "empty play": ([str(HERE / "empty.yml")], {"ANSIBLE_CONFIG": str(HERE / "ansible.cfg")}),
    }
    rows = []
    for count in counts:
        place = inventory(made, count, made.lab.directory / f"hosts{count}")
        for turn in range(runs):
            for name, (words, env) in ways.items():
                command = [
                    str(BIN / "ansible-playbook"),
                    "-i",
                    str(place),
                    "--forks",
                    str(forks),
                    *words,
                ]
                row = run(command, env)
                rows.append({"hosts": count, "name": name, "turn": turn, **row})
                print(
                    f"  {count:5} hosts, {name}: {row['wall']:.1f} s, {row['cpu']:.1f} s of CPU",
                    flush=True,
                )
    return rows


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page: those of whole runs, and of plans over stub servers."""
    return f"{_runs(found)}\n{audit.tables(found['audit'])}" if "audit" in found else _runs(found)


def _runs(found: Mapping[str, Any]) -> str:
    rows = []
    for count in sorted({row["hosts"] for row in found["rows"]}):
        taken = {
            name: [row for row in found["rows"] if (row["hosts"], row["name"]) == (count, name)]
            for name in ("site.yml", "empty play")
        }
        cpu = {name: statistics.median(row["cpu"] for row in some) for name, some in taken.items()}
        own = taken["site.yml"]
        rows.append(
            [
                f"{count:,}",
                f"{cpu['site.yml'] / count:.3f}",
                f"{cpu['empty play'] / count:.3f}",
                f"{statistics.median(row['wall'] for row in own):.1f}",
                f"{max(row['mib'] for row in own):.0f}",
            ]
        )
    head = ["Hosts", "CPU s a host", "empty play", "Wall s", "Largest process, MiB"]
    return (
        f"{pages.about(found)} {NODES} nodes in containers on the same machine, {found['forks']} asked at the same time. Median of {found['runs']} runs.\n\n"
        f"{pages.table(head, rows)}"
    )


def measure_audit(chosen: argparse.Namespace) -> None:
    """Measure plans over stub servers, and write them to the record of the last runs of site.yml."""
    counts, pairs = (
        [int(number) for number in text.split(",")] for text in (chosen.audit, chosen.pairs)
    )
    found = json.loads((ROOT / "docs/benchmarks/hosts.json").read_text(encoding="utf-8"))
    about = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
        "runs": chosen.runs,
    }
    found["audit"] = {**about, "rows": audit.measure(counts, pairs, chosen.runs)}
    pages.write("hosts", found, tables(found), chosen.out)


def main() -> None:
    """Bring up the nodes, make them members of their class, measure, report, take away."""
    parser = argparse.ArgumentParser(prog="benchmarks/run hosts", description=__doc__)
    parser.add_argument(
        "--hosts", default="100,300,1000", help="numbers of hosts (default 100,300,1000)"
    )
    parser.add_argument("--runs", type=int, default=2, help="runs at each number (default 2)")
    parser.add_argument("--forks", type=int, default=8, help="nodes at the same time (default 8)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs/benchmarks", help="where the report goes"
    )
    parser.add_argument(
        "--audit",
        metavar="HOSTS",
        help="measure `goldnode plan` at these numbers of hosts, without nodes; the figures of site.yml stay",
    )
    parser.add_argument(
        "--pairs", default="300", help="numbers of hosts at which Ansible asks too (default 300)"
    )
    parser.add_argument("--peers", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.audit:
        measure_audit(chosen)
        return
    os.environ["GOLDNODE_CATALOG"] = str(ROOT / "tests/e2e/catalog")
    found = {
        "schema": "goldnode.benchmark/1",
        "benchmark": "hosts",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
        "runs": chosen.runs,
        "forks": chosen.forks,
    }
    specs = [NodeSpec(f"many{number}", CLASS, flavour="warm") for number in range(NODES)]
    made = standin_lab.up(LAB, specs, client=engine.connect(), say=print)
    try:
        made.lock(STACK)
        env = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "GOLDNODE_SITE": str(made.site)}
        env["GOLDNODE_CATALOG"] = os.environ["GOLDNODE_CATALOG"]
        subprocess.run(
            [str(BIN / "ansible-playbook"), "-i", str(made.lab.inventory), "site.yml"],
            cwd=ROOT,
            env={**clean(), **env},
            check=True,
        )
        for spec in specs:
            made.lab.node(spec.name).restart()  # a node at work has booted what is installed
        found["rows"] = measure(
            made, [int(number) for number in chosen.hosts.split(",")], chosen.runs, chosen.forks
        )
    finally:
        made.lab.down()
    pages.write("hosts", found, tables(found), chosen.out)


if __name__ == "__main__":
    main()
