"""`goldnode-node preflight` measured: a start of the self-contained file, alone and with all checks of a job of 512 nodes.

Commands are run in turn, as new processes. The node is simulated: a directory with the files of its last check. See docs/benchmarks/preflight.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pages
from goldnode.core.program_file import build
from goldnode.node.cachekey import components, directory, key
from goldnode.node.preflight import checks, cohort
from goldnode.node.serve.publish import public
from goldnode.node.verdict import current

NODES = 512
BUDGET = 300  # milliseconds, which the pre-flight of a job may take
CLASS: dict[str, Any] = {
    "digest": "sha256:c1",
    "class": "h100",
    "policy": {},
    "health": {"cuda": {"families": {"13": "580.65.06"}, "bundled": {"13.0": "580.65.06"}}},
}


def node(folder: Path) -> dict[str, Any]:
    """Write the files of a node with eight GPUs, of a job of 512 nodes, and of a cache. Return its environment."""
    from tests.unit.node.captures import healthy  # the capture of a node with eight GPUs

    capture = healthy()
    verdict = {
        "schema": current.SCHEMA,
        "exit_code": 0,
        "status": "healthy",
        "simulated": False,
        "class": "h100",
        "class_digest": "sha256:c1",
        "boot_identity": "b/42",
        "uptime": 100.0,
        "findings": [
            {"id": f"x.{number}", "outcome": "match", "severity": "drain"} for number in range(120)
        ],
    }
    for name, content in {
        "proc/uptime": "160.5 1\n",
        "proc/sys/kernel/random/boot_id": "b\n",
        "proc/sys/kernel/hostname": "n0\n",
        "proc/1/stat": "1 (systemd) S " + " ".join("0" * 18) + " 42 0",
        "etc/goldnode/class.json": json.dumps(CLASS),
        "run/goldnode/verdict.json": json.dumps(verdict),
        "run/goldnode/public.json": json.dumps(public(capture)),
        "image.json": json.dumps(
            {"Config": {"Env": ["CUDA_VERSION=13.0.1", "NCCL_VERSION=2.27.3"]}}
        ),
    }.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    values = checks.shared(public(capture), "sha256:c1", "2.27.3")
    for number in range(1, NODES):
        cohort.publish(str(folder / "job"), f"n{number}", values)
    request = components.KeyRequest(
        CLASS, image="sha256:" + "a" * 64, glibc="2.36", python_abi="cpython-312"
    )
    found = components.components(capture, request)
    variables = {}
    for cache, variable in (("cuda", "CUDA_CACHE_PATH"), ("triton", "TRITON_CACHE_DIR")):
        place = directory.prepare(str(folder / "caches"), key.document(cache, "exact", found))
        variables[variable] = f"{place}/data"
    return {**os.environ, **variables}


def contenders(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Return what is started, by name: its title and its command line."""
    file = folder / "goldnode-node"
    file.write_bytes(build())
    file.chmod(0o755)
    start = [sys.executable, str(file), "preflight", "--root", str(folder / "root")]
    job = ["--cohort", str(folder / "job"), "--image", str(folder / "root/image.json"), "--caches"]
    return {
        "all": (f"all checks, a job of {NODES} nodes", [*start, *job]),
        "verdict": ("the verdict alone, as Slurm's Prolog", start),
        "pass": ("floor: `python -c pass`", [sys.executable, "-c", "pass"]),
    }


def run(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Return wall time and CPU of one run in milliseconds. A run that does not pass ends the benchmark."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = process.stdout.read().decode() if process.stdout is not None else ""
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {output}")
    return {"wall": wall * 1000, "cpu": (used.ru_utime + used.ru_stime) * 1000}


def measure(runs: int) -> dict[str, Any]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="goldnode-preflight-") as name:
        folder = Path(name)
        environment = node(folder)
        started = contenders(folder)
        rows: dict[str, list[dict[str, float]]] = {key_: [] for key_ in started}
        for number in range(runs + 1):
            for key_, (_, command) in started.items():
                found = run(command, environment)
                if number:  # the first run fills the caches of files
                    rows[key_].append(found)
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
        "python": platform.python_version(),
        "runs": runs,
        "rows": {
            key_: {
                "title": started[key_][0],
                **{
                    name: {
                        "median": statistics.median(row[name] for row in found),
                        "best": min(row[name] for row in found),
                        "worst": max(row[name] for row in found),
                    }
                    for name in ("wall", "cpu")
                },
            }
            for key_, found in rows.items()
        },
    }


def tables(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    machine = found["machine"]
    head = (
        f"{found['date']}, commit `{found['commit']}`: {machine['cores']} cores ({machine['processor']}), kernel {machine['kernel']}, "
        f"Python {found['python']}; load {machine['load']} by others and it. The file is not compiled to a copy, as for a user who is "
        f"not root. Median of {found['runs']} runs in turn; best and worst in brackets.\n\n"
    )
    rows = []
    for row in found["rows"].values():
        cells = [
            f"{row[name]['median']:.0f} ({row[name]['best']:.0f} to {row[name]['worst']:.0f})"
            for name in ("wall", "cpu")
        ]
        rows.append([row["title"], *cells])
    return head + pages.table(["", "wall, milliseconds", "CPU, milliseconds"], rows)


def main() -> int:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(prog="benchmarks/run preflight", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=pages.ROOT / "docs/benchmarks")
    options = parser.parse_args()
    found = measure(options.runs)
    text = tables(found)
    pages.write("preflight", found, text, options.out)
    print(text)
    worst = found["rows"]["all"]["wall"]["median"]
    print(f"All checks took {worst:.0f} ms, and the budget is {BUDGET} ms.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
