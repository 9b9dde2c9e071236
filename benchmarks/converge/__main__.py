"""Converged re-runs measured: goldnode by both its paths against a role of builtin modules, that role under mitogen, and pyinfra.

All keep the same state on the same nodes, which is asserted both ways before anything is measured. See docs/benchmarks/converge.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from tests.simulators import standin_lab

from benchmarks import pages
from benchmarks.converge import report, state
from benchmarks.converge.contenders import ROOT, Contender, contenders
from benchmarks.measure import busy
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core import docker_engine as engine
from goldnode.core.site import load_site
from goldnode.testing.lab.nodes import LabNode, NodeSpec

LAB, CLASS, STACK = "benchmark", "e2e_r535", "debian12_r535"
DAMAGE = "rm /etc/apt/preferences.d/goldnode-stack; apt-mark unhold libcuda1 >/dev/null"
MEASURES = ("wall", "controller_cpu", "node_cpu")


def say(text: str) -> None:
    """Progress, at once."""
    print(text, flush=True)


def main() -> None:
    """Set up, prove equal state, measure, report, take away."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run converge",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--nodes", default="1,5,10", help="numbers of nodes to measure with (default 1,5,10)"
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        help="measured runs of each contender at each number (default 3)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs/benchmarks",
        help="where the report goes (default docs/benchmarks)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the nodes running, for the next run"
    )
    parser.add_argument("--peers", type=Path, required=True, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    counts = sorted({int(number) for number in chosen.nodes.split(",")})
    os.environ["GOLDNODE_CATALOG"] = str(ROOT / "tests/e2e/catalog")
    names = [f"bench{number:02}" for number in range(1, counts[-1] + 1)]
    say(f"bringing up {len(names)} nodes")
    made = standin_lab.up(
        LAB,
        [NodeSpec(name, CLASS, flavour="warm") for name in names],
        client=engine.connect(),
        say=say,
    )
    try:
        if not (
            made.locks / f"{STACK}.lock.yml"
        ).is_file():  # of a run with --keep: a lock is resolved for fresh nodes
            made.lock(STACK)
        found = bench(made, names, counts, chosen.runs, chosen.peers)
        report.write(found, chosen.out, chosen.peers)
        say(f"written to {chosen.out}")
    finally:
        if not chosen.keep:
            made.lab.down()


def bench(
    made: standin_lab.StandinLab,
    names: Sequence[str],
    counts: Sequence[int],
    runs: int,
    peers: Path,
) -> dict[str, Any]:
    """Everything that is measured, with what it was measured on."""
    nodes = [made.lab.node(name) for name in names]
    site = {"GOLDNODE_CATALOG": os.environ["GOLDNODE_CATALOG"], "GOLDNODE_SITE": str(made.site)}
    os.environ.update(site)
    work = made.lab.directory / "benchmark"
    work.mkdir(exist_ok=True)
    document = class_document(CLASS, catalog=load_catalog(), site=load_site())
    file, missing = state.write(document, work)
    inventories = {
        number: inventory(made, nodes[:number], work / f"inventory{number}") for number in counts
    }

    say("making them members of their class")
    everybody = contenders(nodes, inventories[counts[-1]], site, file, peers=peers, work=work)
    everybody[0].run()
    for node in nodes:
        node.restart()  # what was installed is booted, as on a node at work
    say("proving that all keep the same state")
    agree(
        contenders(
            nodes[:1],
            inventory(made, nodes[:1], work / "inventory1"),
            site,
            file,
            peers=peers,
            work=work,
        ),
        nodes[0],
    )

    rows: list[dict[str, Any]] = []
    for number in counts:
        rows += measure(
            contenders(nodes[:number], inventories[number], site, file, peers=peers, work=work),
            nodes[:number],
            runs,
        )
    return {
        "schema": "goldnode.benchmark/1",
        "benchmark": "converge",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "state": {"class": CLASS, "files": len(json.loads(file.read_text())["conventional_state"]["files"]), "packages": len(document["packages"]),
                  "kept_by_goldnode_alone": missing},
        "machine": machine(nodes[0], peers),
        "runs": runs,
        "rows": rows,
    }  # fmt: skip


def inventory(made: standin_lab.StandinLab, nodes: Sequence[LabNode], path: Path) -> Path:
    """The lab's inventory with these nodes alone."""
    whole = yaml.safe_load((made.lab.inventory / "hosts.yml").read_text(encoding="utf-8"))
    hosts = whole["all"]["children"][CLASS]["hosts"]
    whole["all"]["children"][CLASS]["hosts"] = {node.name: hosts[node.name] for node in nodes}
    path.mkdir(exist_ok=True)
    (path / "hosts.yml").write_text(json.dumps(whole), encoding="utf-8")
    return path


def agree(everybody: Sequence[Contender], node: LabNode) -> None:
    """Assert equal end state, both ways: what goldnode brought nobody changes, and what another one mended goldnode does not."""
    keepers = [contender for contender in everybody if contender.keeps]
    for contender in keepers:
        if not contender.unchanged(contender.run()):
            raise SystemExit(
                f"{contender.title} changed a node that goldnode had converged: they do not keep the same state"
            )
        say(f"  {contender.title}: nothing to change")
    for contender in keepers:
        node.shell(DAMAGE)
        if contender.unchanged(contender.run()):
            raise SystemExit(
                f"{contender.title} did not see the damage: it does not keep the state"
            )
        plan = json.loads(
            node.run("/usr/lib/goldnode/goldnode-node", "plan", "--format", "json").output
        )
        if plan["actions"] or plan["refusals"]:
            raise SystemExit(
                f"after {contender.title} repaired the node, goldnode finds: {plan['parts']}"
            )
        say(f"  {contender.title}: mends what is damaged, and goldnode finds nothing more")


def measure(
    everybody: Sequence[Contender], nodes: Sequence[LabNode], runs: int
) -> list[dict[str, Any]]:
    """Every contender `runs` times, in turns, so that what else happens on the machine meets all of them; first once unmeasured."""
    number = len(nodes)
    samples: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in everybody}
    counted = {}
    for contender in everybody:
        counted[contender.name] = contender.executions()
    for turn in range(runs):
        first = turn % len(everybody)
        for contender in (*everybody[first:], *everybody[:first]):
            before = busy(nodes)
            ran = contender.run()
            if contender.keeps and not contender.unchanged(ran):
                raise SystemExit(f"{contender.title} changed something while it was measured")
            samples[contender.name].append(
                {"wall": ran.wall, "controller_cpu": ran.cpu, "node_cpu": busy(nodes) - before}
            )
            say(f"  {number:3} nodes, run {turn + 1}: {contender.title}: {ran.wall:.2f} s")
    return [
        {
            "nodes": number,
            "name": contender.name,
            "title": contender.title,
            "executions": counted[contender.name],
            "samples": samples[contender.name],
            **{
                measure: {"best": min(values), "median": statistics.median(values)}
                for measure in MEASURES
                for values in [[sample[measure] for sample in samples[contender.name]]]
            },
        }
        for contender in everybody
    ]


def machine(node: LabNode, peers: Path) -> dict[str, Any]:
    """What the figures depend on."""
    installed = subprocess.run(
        [str(peers / "bin/python"), "-m", "pip", "freeze"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    peer = {name: re.search(rf"(?m)^{name}==(.*)$", installed) for name in ("pyinfra", "mitogen")}
    trips = []
    for _ in range(20):
        start = time.perf_counter()
        socket.create_connection(("127.0.0.1", node.port)).close()
        trips.append(time.perf_counter() - start)
    return {
        **pages.machine(),
        "rtt_ms": round(min(trips) * 1000, 3),
        "controller_python": platform.python_version(),
        "node_python": node.run("python3", "--version").output.strip(),
        "ansible_core": version("ansible-core"),
        **{name: match[1] if match else "?" for name, match in peer.items()},
        "ssh": subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False)
        .stderr.split(",")[0]
        .strip(),
    }


if __name__ == "__main__":
    main()
