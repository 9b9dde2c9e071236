"""`goldnode cve show --all` measured: the time and memory of judging a simulated fleet, from facts of nodes to the written document.

    benchmarks/run cve [--nodes N] [--cves N] [--runs N] [--out DIR]

Each run is a process of its own. The floor is the same work for one node. See docs/benchmarks/cve.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import pages

if TYPE_CHECKING:
    from goldnode.cve.report import CveReport

SECONDS, MIB = 2.0, 300  # the budget of 10,000 nodes and 400 vulnerabilities
_POOL = 40  # kernels that the locks know
_PACKAGES = 150  # packages of a lock beside its kernel
_AT = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)


def _release(number: int) -> str:
    return f"6.1.0-{number + 10}-amd64"


def _same(_: random.Random) -> dict[str, Any]:
    return {"running": _release(20), "installed": (_release(20),), "next_boot": _release(20)}


def _known(draw: random.Random) -> dict[str, Any]:
    second = _release(draw.randrange(_POOL))
    return {
        "running": _release(20),
        "installed": (_release(20), second),
        "next_boot": draw.choice((_release(20), second)),
    }


def _other(draw: random.Random) -> dict[str, Any]:
    second = f"6.1.{draw.randrange(1_000_000)}-own"
    return {**_same(draw), "installed": (_release(20), second)}


def _both(draw: random.Random) -> dict[str, Any]:
    first, second = _release(draw.randrange(_POOL)), _release(draw.randrange(_POOL))
    return {
        "running": first,
        "installed": (first, second),
        "next_boot": draw.choice((first, second)),
    }


CASES: dict[str, tuple[str, Callable[[random.Random], dict[str, Any]]]] = {
    "same": ("one kernel on all nodes", _same),
    "own": ("a second kernel of its own on each node, which no lock has", _other),
    "second": (f"a random second kernel of {_POOL} that the locks have", _known),
    "both": (f"a random kernel and a random second one of {_POOL}", _both),
    "apart": ("the same, and each vulnerability fixed in a version of its own", _both),
}


def fleet(case: str, nodes: int, seed: int = 1) -> list[Any]:
    """Return the facts of simulated nodes of one lock; every tenth has one other package."""
    from goldnode.cve.claims import OsRelease
    from goldnode.cve.nodes import NodeFacts

    draw = random.Random(seed)  # noqa: S311 - no secret
    kernels = CASES[case][1]
    system = OsRelease("debian", "12", "bookworm")
    found = []
    for number in range(nodes):
        drift = ((f"package{number % 7}", "1.5-2"),) if number % 10 == 0 else ()
        found.append(
            NodeFacts(
                f"node{number:05d}",
                class_="h100",
                captured="2026-11-28T11:00:00Z",
                simulated=True,
                system=system,
                lock="sha256:stack",
                built=None,
                modules=frozenset({"nvidia", "nvme", f"module{number % 5}"}),
                driver=f"535.{number % 3 + 200}.01",
                toolkit="1.17.8-1",
                drift=drift,
                **kernels(draw),
            )
        )
    return found


def carriers() -> Any:
    """Return one lock with packages, and forty that know a kernel each."""
    from goldnode.cve.claims import OsRelease
    from goldnode.cve.subjects import CarriedPackage, CarrierContents, Carriers

    system = OsRelease("debian", "12", "bookworm")
    listed = Carriers()
    own = tuple(
        CarriedPackage(f"package{number}", "1.4-1", f"source{number % 60}", "1.4-1")
        for number in range(_PACKAGES)
    )
    held = frozenset(f"package{number}" for number in range(0, _PACKAGES, 3))
    for number in range(_POOL):
        version = f"6.1.{100 + number * 2}-1"
        kernel = CarriedPackage(f"linux-image-{_release(number)}", version, "linux", version)
        name = "stack" if number == 20 else f"stack{number:02d}"
        listed.add(
            CarrierContents(
                "lock",
                name,
                system,
                (kernel, *(own if name == "stack" else ())),
                digest=f"sha256:{name}",
                driver="535.216.01",
                held=held,
            )
        )
    return listed


def tracker(cves: int, *, apart: bool = False) -> str:
    """Return data in the tracker's format: nine of ten are of the kernel, fixed in one of twice as many versions as locks know.

    `apart`: each one of the kernel is fixed in a version of its own.
    """
    draw = random.Random(7)  # noqa: S311 - no secret
    issues: dict[str, dict[str, Any]] = {}
    for number in range(cves):
        kernel = number % 10 != 0
        version = (
            f"6.1.{100 + draw.randrange(_POOL * 2)}-1" if kernel else f"1.{draw.randrange(8)}-1"
        )
        if apart and kernel:
            version += f"+deb12u{number}"
        source = "linux" if kernel else f"source{number % 60}"
        row = {"status": "resolved", "fixed_version": version, "urgency": "medium"}
        issues.setdefault(source, {})[f"CVE-2026-{10_000 + number}"] = {
            "description": "made for a benchmark",
            "releases": {"bookworm": row},
        }
    return json.dumps(issues)


def judge(case: str, nodes: int, cves: int) -> dict[str, float]:
    """Return CPU seconds, peak memory and rows of one judgement in this process."""
    import click

    from goldnode.commands.output import emit_rows
    from goldnode.cve.debian import DebianTracker
    from goldnode.cve.feeds import Feed
    from goldnode.cve.match import Matcher, inventory
    from goldnode.cve.report import CveQuestion, build

    listed, facts = carriers(), fleet(case, nodes)
    text = tracker(cves, apart=case == "apart")
    feed = Feed("debian", "made", "", "2026-11-27", "given", DebianTracker(text, {"bookworm"}))
    began, rows = time.process_time(), 0

    def lines(report: CveReport) -> Iterator[str]:
        nonlocal rows
        for entry in report.entries():
            rows += len(entry.rows)
            yield entry.text()

    report = build(CveQuestion(None, _AT), inventory(listed, facts), Matcher([feed]), facts)
    head = report.head.model_dump(mode="json", by_alias=True, exclude={"vulnerabilities"})
    with (
        Path(os.devnull).open("w", encoding="utf-8") as sink,
        contextlib.redirect_stdout(sink),
        click.Context(click.Command("show")) as context,
    ):
        context.meta["goldnode.schema"] = "goldnode.cve/1"
        emit_rows(head, "vulnerabilities", lines(report))
    return {
        "cpu": time.process_time() - began,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "rows": rows,
    }


def measured(case: str, nodes: int, cves: int, runs: int) -> dict[str, float]:
    """Return median and worst CPU seconds and peak memory of some runs, each a process of its own."""
    words = ["--case", case, "--nodes", str(nodes), "--cves", str(cves)]
    rows = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.cve", *words],
            cwd=pages.ROOT,
            capture_output=True,
            check=True,
        )
        rows.append(json.loads(done.stdout))
    return {
        "cpu": statistics.median(row["cpu"] for row in rows),
        "cpu_worst": max(row["cpu"] for row in rows),
        "mib": max(row["mib"] for row in rows),
        "rows": rows[0]["rows"],
    }


def measure(nodes: int, cves: int, runs: int) -> dict[str, Any]:
    """Return the figures."""
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
        "nodes": nodes,
        "cves": cves,
        "runs": runs,
        "floor": measured("same", 1, cves, runs),
        "cases": {case: measured(case, nodes, cves, runs) for case in CASES},
    }


def tables(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    floor = found["floor"]
    rows = []
    for title, row in [
        ("floor: one node", floor),
        *((CASES[case][0], row) for case, row in found["cases"].items()),
    ]:
        rows.append(
            [
                title,
                f"{row['cpu']:.2f} ({row['cpu_worst']:.2f})",
                f"{row['cpu'] / floor['cpu']:.1f}",
                f"{row['mib']:.0f}",
                f"{row['rows']:,}",
                "met" if row["cpu_worst"] <= SECONDS and row["mib"] <= MIB else "missed",
            ]
        )
    head = [
        "Kernels",
        "CPU s, median (worst)",
        "of the floor",
        "Peak MiB",
        "Rows",
        f"{SECONDS:.0f} s and {MIB} MiB",
    ]
    about = (
        f"{pages.about(found)} {found['nodes']:,} simulated nodes, {found['cves']} vulnerabilities, "
        f"{found['runs']} runs.\n\n"
    )
    return about + pages.table(head, rows)


def main() -> None:
    """Measure, and write the report; with --case, measure in this process and print."""
    parser = argparse.ArgumentParser(prog="benchmarks/run cve", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--cves", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--case", choices=[*CASES], help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=pages.ROOT / "docs/benchmarks")
    chosen = parser.parse_args()
    if chosen.case:
        print(json.dumps(judge(chosen.case, chosen.nodes, chosen.cves)))
        return
    found = measure(chosen.nodes, chosen.cves, chosen.runs)
    text = tables(found)
    pages.write("cve", found, text, chosen.out)
    print(text)


if __name__ == "__main__":
    main()
