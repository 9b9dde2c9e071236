"""Controller's cost of a converged fleet: CPU per host and memory of `goldnode plan` and `site.yml`, for 100 to 1,000 hosts, and of two
other tools that keep the same state.

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
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.simulators import standin_lab

from benchmarks import pages
from benchmarks.converge import state
from benchmarks.converge.contenders import BIN, HERE, ROOT, clean, pyinfra
from benchmarks.hosts import audit
from benchmarks.hosts.relays import relays
from benchmarks.hosts.run import run
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core import docker_engine as engine
from goldnode.core.site import load_site
from goldnode.testing.lab.nodes import NodeSpec

LAB, CLASS, STACK, NODES = "benchmark-hosts", "e2e_r535", "debian12_r535", 4


@dataclass(frozen=True)
class Way:
    """A way to ask or to keep hosts: its command for an inventory, and its environment."""

    command: Sequence[str]
    env: Mapping[str, str]


PLAN, SITE, STRATEGY, ANSIBLE = (
    "goldnode plan",
    "site.yml",
    "site.yml, strategy",
    "site.yml by Ansible",
)
EMPTY, PYINFRA, ROLE = "empty play", "pyinfra", "the role"
OURS = (PLAN, SITE, STRATEGY, ANSIBLE)
MOST = 100  # hosts of pyinfra, which executes 54 commands on each: more would measure the nodes


def inventory(made: standin_lab.StandinLab, ports: Mapping[str, int], path: Path) -> Path:
    """Write an inventory of names, each at a port of this machine."""
    whole = yaml.safe_load((made.lab.inventory / "hosts.yml").read_text(encoding="utf-8"))
    whole["all"]["children"][CLASS]["hosts"] = {
        name: {"ansible_host": "127.0.0.1", "ansible_port": port} for name, port in ports.items()
    }
    path.mkdir(exist_ok=True)
    (path / "hosts.json").write_text(json.dumps(whole), encoding="utf-8")
    return path


def ways(made: standin_lab.StandinLab, place: Path, forks: int) -> dict[str, Way]:
    """Return goldnode's ways and the floor of Ansible, for the names of an inventory."""
    ours = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "GOLDNODE_SITE": str(made.site)}
    ours["GOLDNODE_CATALOG"] = os.environ["GOLDNODE_CATALOG"]
    plain = {"ANSIBLE_CONFIG": str(HERE / "ansible.cfg")}
    words = ["-i", str(place), "--forks", str(forks)]
    plan = [str(BIN / "goldnode"), "plan", "--format", "json", *words]
    playbook = [str(BIN / "ansible-playbook"), *words]
    return {
        PLAN: Way(plan, ours),
        SITE: Way([*playbook, "site.yml"], ours),
        STRATEGY: Way([*playbook, "site.yml"], {**ours, "GOLDNODE_AUDIT": "on"}),
        ANSIBLE: Way([*playbook, "site.yml"], {**ours, "GOLDNODE_AUDIT": "off"}),
        EMPTY: Way([*playbook, str(HERE / "empty.yml")], plain),
    }


def peers(
    made: standin_lab.StandinLab, ports: Mapping[str, int], place: Path, chosen: argparse.Namespace
) -> dict[str, Way]:
    """Return the other tools that keep the same state on the names of an inventory. Both open a connection for each name."""
    site = load_site(made.site)
    document = class_document(CLASS, catalog=load_catalog(), site=site)
    # Ansible reads each file beside an inventory as one more inventory.
    work = made.lab.directory / "peers"
    work.mkdir(exist_ok=True)
    file, _ = state.write(document, work)
    key = made.lab.nodes()[0].key
    command = pyinfra({name: (port, key) for name, port in ports.items()}, file, chosen.peers, work)
    role = [str(BIN / "ansible-playbook"), "-i", str(place), "--forks", str(chosen.forks)]
    role += [str(HERE / "conventional.yml"), "-e", f"state_file={file}"]
    return {
        PYINFRA: Way([*command, "--parallel", str(chosen.forks)], {}),
        ROLE: Way(role, {"ANSIBLE_CONFIG": str(HERE / "ansible.cfg")}),
    }


def measure(made: standin_lab.StandinLab, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Run each way in turns: for each number of hosts, with a connection of its own for each (cold), and with few that are shared (warm)."""
    counts = [int(number) for number in chosen.hosts.split(",")]
    node_ports = [node.port for node in made.lab.nodes()]
    rows: list[dict[str, Any]] = []
    with relays(node_ports, max(*counts, chosen.peer_hosts)) as own:

        def ported(count: int, ports: Sequence[int], kind: str) -> tuple[dict[str, int], Path]:
            named = {f"host{one:04}": ports[one % len(ports)] for one in range(count)}
            return named, inventory(made, named, made.lab.directory / f"hosts{count}-{kind}")

        named, place = ported(chosen.peer_hosts, own, "peers")
        role = {ROLE: peers(made, named, place, chosen)[ROLE]}
        rows += _turns(role, chosen.peer_hosts, "cold", chosen.runs)
        for count in counts:
            for kind, ports in (("cold", own), ("warm", node_ports)):
                named, place = ported(count, ports, kind)
                asked = ways(made, place, chosen.forks)
                if kind == "cold" and count <= MOST:
                    asked[PYINFRA] = peers(made, named, place, chosen)[PYINFRA]
                rows += _turns(asked, count, kind, chosen.runs)
    return rows


def _turns(asked: Mapping[str, Way], count: int, kind: str, runs: int) -> Iterator[dict[str, Any]]:
    # The first run of a day compiles the class documents.
    for way in (way for name, way in asked.items() if name in OURS):
        run([*way.command, "--limit", "host0000"], way.env)
    for turn in range(runs):
        for name, way in asked.items():
            # The role takes minutes, and differs by less than the others.
            if name == ROLE and turn:
                continue
            with tempfile.TemporaryDirectory(prefix="goldnode-cp-") as control:
                # Shared connections of Ansible outlive a run, and the next run would be warm.
                env = (
                    {**way.env, "ANSIBLE_SSH_CONTROL_PATH_DIR": control}
                    if kind == "cold"
                    else way.env
                )
                row = run(way.command, env)
                for socket in Path(control).iterdir():
                    subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "any"], capture_output=True, check=False)  # fmt: skip
            print(f"  {count:5} hosts, {kind}, {name}: {row['wall']:.1f} s, {row['cpu']:.2f} s of CPU", flush=True)  # fmt: skip
            yield {"hosts": count, "kind": kind, "name": name, "turn": turn, **row}


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page: those of runs over nodes, and of plans over stub servers."""
    return f"{_runs(found)}\n{audit.tables(found['audit'])}" if "audit" in found else _runs(found)


def _runs(found: Mapping[str, Any]) -> str:
    cases = list(dict.fromkeys((row["hosts"], row["kind"]) for row in found["rows"]))
    rows = []
    of_role = [row["cpu"] / row["hosts"] for row in found["rows"] if row["name"] == ROLE]
    role = statistics.median(of_role) if of_role else 0.0
    for count, kind in cases:
        taken: dict[str, list[dict[str, Any]]] = {}
        for row in found["rows"]:
            if (row["hosts"], row["kind"]) == (count, kind):
                taken.setdefault(row["name"], []).append(row)
        for name, some in taken.items():
            cpu = sorted(row["cpu"] / count for row in some)
            cost = statistics.median(cpu)
            peer = taken.get(PYINFRA, []) if name in OURS else []
            pyinfra_cost = [row["cpu"] / count for row in peer]
            rows.append(
                [
                    f"{count:,}, {kind}, {name}",
                    f"{cost:.4f}",
                    f"{cpu[0]:.4f}-{cpu[-1]:.4f}",
                    f"{statistics.median(pyinfra_cost) / cost:.1f}" if peer else "",
                    f"{role / cost:.0f}" if role and name in OURS and kind == "cold" else "",
                    f"{statistics.median(row['wall'] for row in some):.1f}",
                    f"{max(row['mib'] for row in some):.0f}",
                ]
            )
    head = ["Hosts", "CPU s a host", "spread", "less than pyinfra", "than the role"]
    head += ["Wall s", "Largest process, MiB"]
    return (
        f"{pages.about(found)} {NODES} nodes in containers on the same machine, {found['forks']} asked at the same time. "
        f"Median of {found['runs']} runs in turn.\n\n"
        f"{pages.table(head, rows)}"
    )


def _recorded() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(
        (ROOT / "docs/benchmarks/hosts.json").read_text(encoding="utf-8")
    )
    return record


def measure_audit(chosen: argparse.Namespace) -> None:
    """Measure plans over stub servers, and write them to the record of the last runs of site.yml."""
    counts, pairs = (
        [int(number) for number in text.split(",")] for text in (chosen.audit, chosen.pairs)
    )
    found = _recorded()
    about = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
        "runs": chosen.runs,
    }
    found["audit"] = {**about, "rows": audit.measure(counts, pairs, chosen.runs)}
    data = pages.write("hosts", found, tables(found), chosen.out)
    pages.draw(Path(__file__).with_name("plot.py"), data, chosen.peers)


def main() -> None:
    """Bring up the nodes, make them members of their class, measure, report, take away."""
    parser = argparse.ArgumentParser(prog="benchmarks/run hosts", description=__doc__)
    parser.add_argument(
        "--hosts", default="100,300,1000", help="numbers of hosts (default 100,300,1000)"
    )
    parser.add_argument(
        "--peer-hosts",
        type=int,
        default=4,
        help="number of hosts for the role of builtin modules (default 4)",
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
    parser.add_argument("--peers", type=Path, required=True, help=argparse.SUPPRESS)
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
        found["rows"] = measure(made, chosen)
    finally:
        made.lab.down()
    # Plans over stub servers are measured apart, and stay.
    found["audit"] = _recorded()["audit"]
    data = pages.write("hosts", found, tables(found), chosen.out)
    pages.draw(Path(__file__).with_name("plot.py"), data, chosen.peers)


if __name__ == "__main__":
    main()
