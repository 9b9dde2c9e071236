"""`goldnode-node check` measured on a simulated node with eight GPUs, against the peers that a user can install. See docs/benchmarks/sanity.md."""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests.faults import classes
from tests.simulators.hardware import build, machine

from benchmarks import pages
from goldnode.core import program_file as nodefile
from goldnode.node import __main__ as starting

ROOT = Path(__file__).resolve().parents[2]
CLASS = "board_h100"
THREADS = 96
OTHERS = 300  # further functions on the bus, as a server of this kind has them
# The budget: a check takes no more CPU than gpumedic in the same run, and no more memory than this; a cached
# answer takes no longer than this.
GPUMEDIC_TIMES = 1.6  # the check reads the whole host, gpumedic the GPUs alone
CACHED_SECONDS = 0.025
MEMORY_MIB = 25.0


def node(folder: Path, library: Path) -> Path:
    """A simulated node below `folder`, with the answers of systemctl and ldconfig as files."""
    document = classes.document(CLASS)
    root = machine.write(
        machine.scenario(document),
        folder / "node",
        document,
        cpus=THREADS,
        others=OTHERS,
        library=library,
    )
    host = machine.Machine(root, library)
    (root / "ldconfig.txt").write_text(host.run("ldconfig", "-p").out, encoding="utf-8")
    units = [
        *machine.services(document),
        "goldnode-watch.timer",
        "goldnode-watch.service",
        "goldnode-sanity.service",
        "goldnode-policy.service",
    ]
    (root / "systemctl.txt").write_text(host.run("systemctl", "show", *units).out, encoding="utf-8")
    return root


# What mej/nhc is asked, of the machine that runs the benchmark: it reads no other root, and its own GPU checks need programs that NVIDIA has
# withdrawn (nvidia-healthmon). Limits that no machine breaks.
NHC = (
    "check_hw_cpuinfo", "check_hw_physmem 1k 1024TB", "check_hw_swap 0 1024TB", "check_fs_mount_rw -f /", "check_fs_free / 1k", "check_fs_ifree / 1",
    "check_ps_loadavg 9999 9999 9999", "check_file_test -r /etc/passwd",
)  # fmt: skip


def contenders(
    folder: Path, root: Path, peers: Path | None, nhc: Path | None
) -> dict[str, tuple[str, list[str]]]:
    """Return what is started, by name: its title and its command line."""
    data = nodefile.build()
    digest = hashlib.sha256(data).hexdigest()
    file, place, played = folder / "goldnode-node", folder / "program", folder / "played"
    file.write_bytes(data)
    with mock.patch.object(starting, "PLACE", str(place)):
        if starting.make(data, digest) is None:
            raise SystemExit("the program cannot compile itself here; run the benchmark as root")
        copy = starting.named(digest, starting.PLACE)
    (place / starting.STAMP).write_text(
        f"{starting.marked(file.stat())} {digest}", encoding="ascii"
    )
    shutil.copy(str(starting.__file__), folder / "starting.py")  # launch.py is __main__ itself
    python = [sys.executable, "-I", "-S"]
    driver = [*python, copy, "device", "capture", "settings"]
    answer = subprocess.run(driver, capture_output=True, check=True).stdout
    (folder / "answer").write_bytes(answer)
    played.write_text(f"#!/bin/sh\nexec cat {folder / 'answer'}\n", encoding="utf-8")
    played.chmod(0o755)
    launch = [*python, str(Path(__file__).with_name("launch.py")), str(file), str(place), str(root)]
    passive = ["check", "--passive", "--format", "json", "--no-gate"]
    found = {
        "check": ("`goldnode-node check --passive`, all of it", [*launch, "-", "--", *passive]),
        "beyond": (
            "the same beyond the driver: its answer is played from a file",
            [*launch, str(played), "--", *passive],
        ),
        "driver": ("the process that asks the simulated driver, alone", driver),
        "cached": (
            "`goldnode-node check --cached --format json`",
            [*launch, "-", "--", "check", "--cached", "--format", "json"],
        ),
        "pass": ("floor: `python3 -I -S -c pass`", [*python, "-c", "pass"]),
    }
    if peers is not None:
        medic, gcm = peers / "gpumedic", peers / "health_checks"
        if medic.exists():
            found["gpumedic"] = (
                "gpumedic: `scan --expect-gpus 8`",
                [str(medic), "scan", "--expect-gpus", "8"],
            )
        if gcm.exists():
            found["gpucm"] = (
                "gpucm: `check-nvidia-smi`, five checks",
                [
                    str(gcm), "check-nvidia-smi", "fair_cluster", "nagios", "--sink=do_nothing", "-c", "gpu_num", "-c", "ecc_uncorrected_volatile_total",
                    "-c", "row_remap", "-c", "vbios_mismatch", "-c", "clock_freq", "--gpu_num=8", "--gpu_app_freq=1980", "--gpu_app_mem_freq=2619",
                ],
            )  # fmt: skip
    if nhc is not None:
        (folder / "nhc.conf").write_text(
            "".join(f"* || {check}\n" for check in NHC), encoding="utf-8"
        )
        quiet = [
            "MARK_OFFLINE=0",
            "DETACHED_MODE=0",
            "NHC_RM=none",
            f"INCDIR={nhc / 'scripts'}",
            f"HELPERDIR={nhc / 'helpers'}",
        ]
        title = f"mej/nhc: {len(NHC)} checks of the host, none of a GPU"
        found["nhc"] = (
            title,
            [
                "/bin/bash",
                str(nhc / "nhc"),
                "-c",
                str(folder / "nhc.conf"),
                "-D",
                str(nhc),
                "-l",
                "-",
                *quiet,
            ],
        )
    return found


def run(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Return wall time, CPU and greatest memory of one run, with all that it started and waited for."""
    meter = [sys.executable, "-I", "-S", str(Path(__file__).with_name("meter.py"))]
    done = subprocess.run(
        [*meter, *command],
        env=dict(environment),
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        check=True,
    )
    wall, cpu, mib, code = map(float, done.stdout.split())
    if code not in (0, 1, 2) or "Traceback" in done.stderr:
        raise SystemExit(f"{' '.join(command)} ended with {code:.0f}: {done.stderr[-2000:]}")
    return {"wall": wall, "cpu": cpu, "mib": mib, "rc": code}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the best."""
    return {"median": statistics.median(values), "best": min(values)}


def measure(runs: int, peers: Path | None, nhc: Path | None) -> dict[str, Any]:
    """Return all figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder / "library").parent
        root = node(folder, library)
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GOLDNODE_", "PYTHON"))
        }
        environment |= {
            "LD_LIBRARY_PATH": str(library),
            "GOLDNODE_SIMULATOR": str(root / machine.PLACE),
        }
        os.environ.update(
            LD_LIBRARY_PATH=environment["LD_LIBRARY_PATH"],
            GOLDNODE_SIMULATOR=environment["GOLDNODE_SIMULATOR"],
        )
        chosen = contenders(folder, root, peers, nhc)
        taken: dict[str, list[dict[str, float]]] = {key: [] for key in chosen}
        names = list(chosen)
        began = time.monotonic()
        for number in range(runs + 1):
            turn = number % len(names)
            # The node's clock is that of this machine: an uptime that stands still looks like a clock that was set.
            (root / "proc/uptime").write_text(
                f"{3600 + time.monotonic() - began:.2f} 0.00\n", encoding="ascii"
            )
            for key in names[turn:] + names[:turn]:
                if key == "cached" and not (root / "run/goldnode/verdict.json").exists():
                    run(chosen["check"][1], environment)
                found = run(chosen[key][1], environment)
                if number:  # the first writes the byte code and warms the page cache
                    taken[key].append(found)
            print(f"run {number} of {runs}", flush=True)
        verdict = json.loads((root / "run/goldnode/verdict.json").read_text())
        shutil.rmtree(root, ignore_errors=True)
    if verdict["exit_code"] != 0:  # a check that has nothing to look at is quick
        raise SystemExit(
            f"the simulated node is not healthy: {[f for f in verdict['findings'] if f['outcome'] != 'match'][:4]}"
        )
    figures = {
        key: {
            "title": title,
            "rc": taken[key][0]["rc"],
            **{what: summary([row[what] for row in taken[key]]) for what in ("wall", "cpu", "mib")},
        }
        for key, (title, _) in chosen.items()
    }
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return {
        "date": str(dt.datetime.now(tz=dt.UTC).date()), "commit": commit, "machine": about(), "runs": runs,
        "findings": len(verdict["findings"]), "figures": figures,
    }  # fmt: skip


def about() -> dict[str, Any]:
    """Return what it was measured on, and how busy that was."""
    return {
        **pages.machine(),
        "python": platform.python_version(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
    }


def tables(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    told, figures = found["machine"], found["figures"]
    raised = f", run at priority {told['priority']}" if told["priority"] else ""
    head = (
        f"{found['date']}, commit `{found['commit']}`: {told['cores']} cores ({told['processor']}), kernel {told['kernel']}, Python "
        f"{told['python']}; load {told['load']} by others and it{raised}. Median of {found['runs']} runs in turn; best in brackets. "
        f"**Simulated**: eight H100, {THREADS} threads, {OTHERS} further PCI functions; {found['findings']} findings, all as declared.\n"
    )
    rows = [
        "| | wall, ms | CPU, ms | memory, MiB | CPU : floor |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    floor = figures["pass"]["cpu"]["median"]
    for row in figures.values():
        cells = [
            _ms(row["wall"]),
            _ms(row["cpu"]),
            f"{row['mib']['median']:.1f}",
            f"{row['cpu']['median'] / floor:.1f}x",
        ]
        rows.append(f"| {row['title']} | {' | '.join(cells)} |")
    rows.append("")
    rows += [*budget(figures)]
    return head + "\n" + "\n".join(rows) + "\n"


def budget(figures: Mapping[str, Any]) -> Iterator[str]:
    """Return the table of the budget. The figure of a check includes the process that asks the driver."""
    yield from ("| budget | limit | found |", "| --- | --- | --- |")
    own = figures["check"]["cpu"]["median"]
    for name in ("gpumedic", "gpucm"):
        if name in figures:
            ratio = own / figures[name]["cpu"]["median"]
            limit, word = "no limit", ""
            if name == "gpumedic":
                limit, word = f"{GPUMEDIC_TIMES:.2f}x", f": {_word(ratio, GPUMEDIC_TIMES)}"
            yield f"| CPU of a check, against {name} | {limit} | {ratio:.2f}x{word} |"
    cached, memory = figures["cached"]["wall"], figures["check"]["mib"]["median"]
    found = f"{_ms(cached)} ms: {_word(cached['median'], CACHED_SECONDS)}"
    yield f"| a cached answer, wall | {CACHED_SECONDS * 1000:.0f} ms | {found} |"
    yield f"| memory of a check | {MEMORY_MIB:.0f} MiB | {memory:.1f} MiB: {_word(memory, MEMORY_MIB)} |"


def _word(value: float, limit: float) -> str:
    return "within" if value <= limit else "over"


def _ms(value: Mapping[str, float]) -> str:
    return f"{value['median'] * 1000:.0f} ({value['best'] * 1000:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/run sanity", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument(
        "--peers", type=Path, help="folder of the peers' programs; without it they are left out"
    )
    parser.add_argument("--nhc", type=Path, help="checkout of mej/nhc; without it it is left out")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks")
    options = parser.parse_args()
    found = measure(options.runs, options.peers, options.nhc and options.nhc.resolve())
    pages.write("sanity", found, tables(found), options.out)
    print(tables(found))


if __name__ == "__main__":
    main()
