"""A first run measured: DKMS on the node and the distribution's archive, against goldnode's mirror and a module built once.

Same stack, same lock, same kind of fresh node, in turns. See docs/benchmarks/provision.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import resource
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.stacks import lab as stacks
from tests.stacks.legs import LegError, inventory, site_yml

from benchmarks import pages
from benchmarks.measure import busy, received
from benchmarks.provision import report
from goldnode.core import docker_engine as engine
from goldnode.testing.lab.nodes import LabNode, NodeSpec

ROOT = Path(__file__).parents[2]
LAB, STACK, CLASS = "provision", "debian12_r535", "e2e_r535"
# The same without the driver: what a node is before that comes.
KERNEL = "e2e_plain"
LEGS = ("first run", "first run without a driver", "driver step")
WITHOUT, STEP = LEGS[1:]


@dataclass(frozen=True)
class Contender:
    """One way to provision: its site file and what to call it."""

    name: str
    title: str
    site: Path


def say(text: str) -> None:
    """Progress, at once."""
    print(text, flush=True)


def main() -> None:
    """Set up, measure in turns, report after each, take away."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run provision",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--runs", type=int, default=3, help="measured runs of each contender (default 3)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs/benchmarks",
        help="where the report goes (default docs/benchmarks)",
    )
    parser.add_argument(
        "--leg", action="append", choices=LEGS, help="what to measure (repeat; default all)"
    )
    parser.add_argument(
        "--lab",
        default=LAB,
        help="lab whose mirror is used, made unless it is up (default provision)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave mirror and images, for the next run"
    )
    parser.add_argument(
        "--note", default="", help="what a reader has to know of the machine while this ran"
    )
    parser.add_argument("--peers", type=Path, required=True, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    os.environ["GOLDNODE_CATALOG"] = str(ROOT / "tests/e2e/catalog")
    made = stacks.up(chosen.lab, [STACK], client=engine.connect(), say=say)
    try:
        made.goldnode("lock", KERNEL, "--out", str(made.locks))
        made.goldnode("mirror", KERNEL)
        bench(made, chosen)
    finally:
        if not chosen.keep:
            made.lab.down()


def bench(made: stacks.StackLab, chosen: argparse.Namespace) -> None:
    """Measure, and write the report after each turn, so that a run that is cut short has shown what it did."""
    contenders = (
        Contender("dkms", "archive, module built on the node by DKMS", made.dkms),
        Contender("prebuilt", "mirror, module built once", made.site),
    )
    images: dict[str, str] = {}
    for contender in contenders if STEP in (chosen.leg or LEGS) else ():
        say(f"making a node that has its kernel and no driver: {contender.title}")
        node = fresh(made, None)
        run(made, node, KERNEL, contender)
        images[contender.name] = node.snapshot({"benchmark": "provision", "made": time.time()})
        node.destroy()
    rows: list[dict[str, Any]] = []
    try:
        for turn in range(chosen.runs):
            for leg in chosen.leg or LEGS:
                for contender in contenders if turn % 2 == 0 else contenders[::-1]:
                    row = {
                        "leg": leg,
                        "name": contender.name,
                        "title": contender.title,
                        **measured(made, leg, contender, images.get(contender.name)),
                    }
                    rows.append(row)
                    say(
                        f"  turn {turn + 1}, {leg}, {contender.title}: {row['wall']:.0f} s, CPU {row['node_cpu']:.0f} s, {row['bytes'] / 1e6:.0f} MB"
                    )
            report.write(described(made, rows, turn + 1, chosen.note), chosen.out, chosen.peers)
    finally:
        for image in images.values():
            made.lab.client.images.remove(image, force=True)
    say(f"written to {chosen.out}")


def measured(
    made: stacks.StackLab, leg: str, contender: Contender, image: str | None
) -> dict[str, Any]:
    """One run on a fresh node: seconds of wall and CPU, bytes, and what it ended with."""
    node = fresh(made, image if leg == STEP else None)
    try:
        before = busy([node]), received(node)
        wall, controller = run(made, node, KERNEL if leg == WITHOUT else CLASS, contender)
        used = {
            "wall": wall,
            "controller_cpu": controller,
            "node_cpu": busy([node]) - before[0],
            "bytes": received(node) - before[1],
        }
        document = json.loads(node.read("/etc/goldnode/class.json"))
        release, driver = document["kernel"]["release"], document["driver"]
        packages = int(node.shell("dpkg-query -W -f '${db:Status-Abbrev}\\n' | grep -c ^.i").output)
        if leg == WITHOUT:
            return {**used, "kernel": release, "driver": None, "packages": packages}
        said = node.run("modinfo", "-k", release, "-F", "version", driver["module"]).output.strip()
        if said != driver["version"]:
            raise SystemExit(
                f"{contender.title}: the module is {said or 'missing'}, want {driver['version']}"
            )
        return {**used, "kernel": release, "driver": said, "packages": packages}
    finally:
        node.destroy()


def fresh(made: stacks.StackLab, image: str | None) -> LabNode:
    """A node that nothing has happened to: bare, or as the image says."""
    spec = NodeSpec("bench1", CLASS, os=stacks.OS, flavour=stacks.FLAVOUR, image=image)
    return made.lab.up([spec])[0]


def run(
    made: stacks.StackLab, node: LabNode, group: str, contender: Contender
) -> tuple[float, float]:
    """site.yml once: seconds of wall, and of CPU on the controller."""
    os.environ.update(
        {
            "GOLDNODE_SITE": str(contender.site),
            "GOLDNODE_LOCKS": str(made.locks),
            "GOLDNODE_RUNS": "off",
        }
    )
    hosts = inventory(made.lab, node, group)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    try:
        site_yml(hosts)
    except LegError as error:
        raise SystemExit(f"{contender.title}: {error}") from error
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def described(
    made: stacks.StackLab, rows: list[dict[str, Any]], runs: int, note: str
) -> dict[str, Any]:
    """Everything that is measured, with what it was measured on."""
    results = made.lab.directory / "mirror/modules/results"
    built = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))
    ]
    return {
        "schema": "goldnode.benchmark/1",
        "benchmark": "provision",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "stack": STACK,
        "machine": {**pages.machine(), "ansible_core": version("ansible-core"), "note": note},
        # Paid once per lock, not per node; the builder's cache may have had it from an earlier run.
        "built_once_seconds": max((row["seconds"] for row in built if row.get("ok")), default=None),
        "runs": runs,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
