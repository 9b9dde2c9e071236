"""`benchmarks/run --all`: run the short form of every benchmark, and compare its ratios with the recorded ones.

A page is measured rarely, and what has become dearer meanwhile is not seen. The short forms take minutes, their figures are noisy, and a
factor of 1.3 in a ratio is seen all the same. Each figure is a ratio to a peer or a floor of the same run. A figure without one is
divided by the yardstick: the CPU time of a fixed piece of Python, taken before and after the benchmark.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import pages

RECORD = pages.ROOT / "docs/benchmarks/ledger.json"
DEARER = 1.3
Json = Mapping[str, Any]
# Figure -> a ratio, or ("cpu", seconds) to be divided by the yardstick.
Figures = dict[str, float | tuple[str, float]]


def _check(found: Json) -> Figures:
    cold, inside = found["cold"], found["inside"]
    hello = cold["hello"]["cpu"]["best"]
    rows: Figures = {
        f"{name}, cold": cold[name]["cpu"]["best"] / hello
        for name in ("check", "image", "all", "explain")
    }
    rows |= {f"hosts {size}": row["ratio"]["best"] for size, row in found["fleet"]["sizes"].items()}
    return {**rows, "checks in one process": inside["all_checks"]["cpu"]["best"] / hello}


def _floor(*names: str) -> Callable[[Json], Figures]:
    """Return a reader of CPU times as ratios to that of `pass`."""

    def read(found: Json) -> Figures:
        rows = found["figures"] if "figures" in found else found["rows"]
        floor = rows["pass"]["cpu"]["best"]
        return {name: rows[name]["cpu"]["best"] / floor for name in names}

    return read


def _cve(found: Json) -> Figures:
    return {name: row["cpu"] / found["floor"]["cpu"] for name, row in found["cases"].items()}


def _fleet(found: Json) -> Figures:
    # The disk decides what a transaction costs: only what is above the same store's batches says something of us.
    return {
        f"{store}, {kind}": row["batches"]["transactions_per_second"]
        / row[kind]["transactions_per_second"]
        for store, row in found["stores"].items()
        for kind in ("transactions", "controller")
    }


def _ingest(found: Json) -> Figures:
    rows: Figures = {}
    for row in found["figures"]:
        rows[f"1,000 captures, {row['fleet']}"] = ("cpu", 1000 / row["per_second_and_core"])
        rows[f"bytes of a capture, {row['fleet']}"] = row["bytes"] / row["json_bytes"]
    return rows


def _report(found: Json) -> Figures:
    kinds = {"report": "runs", "report, by change": "by_change"}
    return {
        name: ("cpu", min(run["cpu_seconds"] for run in found["figures"][kind]))
        for name, kind in kinds.items()
    }


def _rollout(found: Json) -> Figures:
    # The others end so early that their time is noise.
    return {
        name: ("cpu", case["cpu_seconds_median"])
        for name, case in found["cases"].items()
        if name.startswith("good")
    }


def _inspect(found: Json) -> Figures:
    seconds = found["seconds"]
    return {"ELF files": seconds["own"]["cpu"]["best"] / seconds["peer"]["cpu"]["best"]}


def _images(found: Json) -> Figures:
    # The page has the peer's cost as a multiple of ours.
    return {name: 1 / min(row["cpu"]) for name, row in found["ratios"].items()}


def _converge(found: Json) -> Figures:
    # CPU of both ends and not wall time, so that it can be recorded beside other work.
    cost = {
        (row["nodes"], row["name"]): row["controller_cpu"]["best"] + row["node_cpu"]["best"]
        for row in found["rows"]
    }
    return {
        f"{nodes} nodes, {name}": cpu / cost[nodes, "conventional"]
        for (nodes, name), cpu in cost.items()
        if name in ("resident", "reference")
    }


def _hosts(found: Json) -> Figures:
    cost: dict[tuple[str, str], float] = {}
    for row in found["rows"]:
        key = (row["name"], row["kind"])
        cost[key] = min(row["cpu"] / row["hosts"], cost.get(key, float("inf")))
    # A record from before 2026-11-29 has no role; its floor is the play that does nothing.
    floor = cost.get(("the role", "cold")) or cost["empty play", "warm"]
    return {
        f"{name}, {kind}": cpu / floor
        for (name, kind), cpu in cost.items()
        if name not in ("the role", "empty play")
    }


def _provision(found: Json) -> Figures:
    cost = {(row["leg"], row["name"]): row["node_cpu"] for row in found["rows"]}
    return {leg: own / cost[leg, "dkms"] for (leg, name), own in cost.items() if name == "prebuilt"}


def _disks(found: Json) -> Figures:
    rows = {row["name"]: row for row in found["rows"]}
    return {"build": rows["goldnode"]["cpu"] / rows["packer"]["cpu"]}


@dataclass(frozen=True)
class ShortForm:
    """The short form of a benchmark: its options, the reader of its figures, and whether it needs nodes, disks or images."""

    words: Sequence[str]
    read: Callable[[Json], Figures]
    heavy: bool = False


FORMS: Mapping[str, ShortForm] = {
    "check": ShortForm(("--runs", "5", "--checks", "200", "--hosts", "50"), _check),
    "cve": ShortForm(("--nodes", "1000", "--runs", "3"), _cve),
    "fleet": ShortForm(("--clients", "20", "--seconds", "1"), _fleet),
    "ingest": ShortForm(("--nodes", "60", "--hours", "5"), _ingest),
    "preflight": ShortForm(("--runs", "5"), _floor("all", "verdict")),
    "report": ShortForm(("--nodes", "500", "--runs", "3"), _report),
    "rollout": ShortForm(("--nodes", "1000", "--runs", "3"), _rollout),
    "sanity": ShortForm(("--runs", "7"), _floor("check", "cached")),
    "inspect": ShortForm(("--runs", "3", "--root", "/usr/lib/python3"), _inspect, heavy=True),
    "converge": ShortForm(("--nodes", "1", "--runs", "1"), _converge, heavy=True),
    "hosts": ShortForm(("--hosts", "20", "--peer-hosts", "4", "--runs", "2"), _hosts, heavy=True),
    "images": ShortForm(("--runs", "1"), _images, heavy=True),
    "provision": ShortForm(("--runs", "1", "--leg", "first run without a driver"), _provision, heavy=True),
    "disks": ShortForm(("--runs", "1", "--no-verify"), _disks, heavy=True),
}  # fmt: skip
# Its figures are how well a rule finds bad nodes, and cost nothing.
WITHOUT_COST = {"lemons"}


def yardstick() -> float:
    """Return the CPU seconds of a fixed piece of Python, the best of seven."""
    best = float("inf")
    for _ in range(7):
        begin = time.process_time()
        table = {str(number): number * number for number in range(60_000)}
        json.loads(json.dumps(table))
        best = min(best, time.process_time() - begin)
    return best


def measured(name: str) -> dict[str, float]:
    """Return the figures of a benchmark's short form. Raises CalledProcessError."""
    form = FORMS[name]
    with tempfile.TemporaryDirectory(prefix="goldnode-ledger-") as out:
        before = yardstick()
        subprocess.run(
            [pages.ROOT / "benchmarks/run", name, *form.words, "--out", out],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        unit = min(before, yardstick())
        found = json.loads((Path(out) / f"{name}.json").read_text(encoding="utf-8"))
    return {
        figure: value[1] / unit if isinstance(value, tuple) else value
        for figure, value in form.read(found).items()
    }


@dataclass(frozen=True)
class Comparison:
    """A figure now and as it is recorded. None: it is not recorded, or no longer measured."""

    name: str
    figure: str
    now: float | None
    was: float | None

    @property
    def factor(self) -> float | None:
        """Return how many times dearer it is."""
        return self.now / self.was if self.now is not None and self.was else None

    @property
    def dearer(self) -> bool:
        """Return whether it is dearer than the noise of short forms explains."""
        return self.factor is not None and self.factor >= DEARER


def compare(
    now: Mapping[str, Mapping[str, float]], was: Mapping[str, Mapping[str, float]]
) -> list[Comparison]:
    """Return all figures of the benchmarks that ran, the dearest first."""
    rows = [
        Comparison(name, figure, now[name].get(figure), was.get(name, {}).get(figure))
        for name in now
        for figure in sorted(now[name].keys() | was.get(name, {}).keys())
    ]
    return sorted(rows, key=lambda row: -(row.factor or 0))


def lines(rows: Sequence[Comparison]) -> Iterator[str]:
    """Yield a table for a terminal."""
    yield f"{'BENCHMARK':<10} {'FIGURE':<32} {'RECORDED':>9} {'NOW':>9} {'FACTOR':>7}"
    for row in rows:
        was, now, factor = (
            "-" if value is None else f"{value:.3g}" for value in (row.was, row.now, row.factor)
        )
        mark = "  DEARER" if row.dearer else ""
        yield f"{row.name:<10} {row.figure:<32} {was:>9} {now:>9} {factor:>7}{mark}"


def run(
    names: Sequence[str],
    was: Mapping[str, Mapping[str, float]],
    measure: Callable[[str], dict[str, float]] = measured,
) -> dict[str, dict[str, float]]:
    """Return the figures of benchmarks. One with a figure that is dearer runs again, and the better figure counts."""
    now = {}
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        now[name] = measure(name)
        if any(row.dearer for row in compare({name: now[name]}, was)):
            again = measure(name)
            now[name] = {
                figure: min(value, again.get(figure, value)) for figure, value in now[name].items()
            }
    return now


def recorded() -> dict[str, Any]:
    """Return the record; empty if there is none."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 1 if a figure is 1.3 times dearer than recorded."""
    parser = argparse.ArgumentParser(prog="benchmarks/run --all", description=__doc__)
    parser.add_argument(
        "--light", action="store_true", help="leave out those that need nodes, disks or images"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(FORMS),
        metavar="NAME",
        help="run this benchmark. Repeatable",
    )
    parser.add_argument(
        "--compare", action="store_true", help="compare with the record, which is the default"
    )
    parser.add_argument("--record", action="store_true", help="replace the record of the benchmarks that ran")  # fmt: skip
    chosen = parser.parse_args(argv)
    names = chosen.only or [
        name for name, form in FORMS.items() if not (chosen.light and form.heavy)
    ]
    record = recorded()
    was = {name: row["figures"] for name, row in record.get("benchmarks", {}).items()}
    # Of other work: at the end it would be that of the benchmarks, too.
    machine = pages.machine()
    load = machine.pop("load")
    now = run(names, was)
    rows = compare(now, was)
    print("\n".join(lines(rows)))
    if chosen.record:
        day = dt.datetime.now(dt.UTC).date().isoformat()
        about = {"date": day, "commit": pages.commit(), "load": load}
        benchmarks = {
            **record.get("benchmarks", {}),
            **{
                name: {**about, "words": list(FORMS[name].words), "figures": {key: float(f"{value:.4g}") for key, value in figures.items()}}
                for name, figures in now.items()
            },
        }  # fmt: skip
        content = {
            "schema": "goldnode.ledger/1",
            "machine": machine,
            "benchmarks": dict(sorted(benchmarks.items())),
        }
        RECORD.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return 0
    if any(row.dearer for row in rows):
        print(f"figures that are {DEARER} times dearer or more: see above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
