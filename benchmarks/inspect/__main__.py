"""An inspection measured: a Debian root with at least 2,000 ELF files, all signals and archives, against pyelftools reading DT_NEEDED only.

Both are run in turn, as new processes, on the same root with a warm page cache. See docs/benchmarks/inspect.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.check.__main__ import machine

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / ".goldnode/benchmarks/inspect-root"
PACKAGES = "python3,systemd,openssh-server,linux-image-cloud-amd64"
SUITE = "bookworm"


def root(named: Path | None) -> Path:
    """Return the root to scan: the named one, else one of Debian made here, which takes a minute and is kept."""
    if named is not None:
        return named
    if not MADE.exists():
        MADE.parent.mkdir(parents=True, exist_ok=True)
        tar = MADE.with_suffix(".tar")
        subprocess.run(
            ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(tar)],
            check=True,
        )
        new = MADE.with_suffix(".new")
        new.mkdir(exist_ok=True)
        subprocess.run(["tar", "-C", str(new), "--exclude=./dev/*", "-xf", str(tar)], check=True)
        tar.unlink()
        new.rename(MADE)
    return MADE


def measure(folder: Path, runs: int, peers: Path) -> dict[str, Any]:
    """Return all figures."""
    own = [sys.executable, "-m", "benchmarks.inspect.own", str(folder)]
    peer = [str(peers / "bin/python"), str(Path(__file__).with_name("peer.py")), str(folder)]
    taken: dict[str, list[dict[str, Any]]] = {"own": [], "peer": []}
    for number in range(runs + 1):
        for name, argv in (("own", own), ("peer", peer)):
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                check=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src"},
            )
            if number:  # the first warms the page cache and writes the byte code
                taken[name].append(json.loads(done.stdout))
        print(f"run {number} of {runs}", flush=True)
    git = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "date": str(dt.datetime.now(tz=dt.UTC).date()),
        "commit": git.stdout.strip(),
        "machine": machine(),
        "runs": runs,
        "of": {
            name: {key: rows[0][key] for key in ("elf", "needed")} for name, rows in taken.items()
        },
        "root": {key: taken["own"][0][key] for key in ("files", "bytes", "refused")},
        "seconds": {
            name: {
                key: {
                    "median": statistics.median(row[key] for row in rows),
                    "best": min(row[key] for row in rows),
                }
                for key in rows[0]
                if key.endswith(("wall", "cpu"))
            }
            for name, rows in taken.items()
        },
    }


def tables(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    told, of, seconds, held = found["machine"], found["of"], found["seconds"], found["root"]
    raised = f", run at priority {told['priority']}" if told["priority"] else ""
    peer = seconds["peer"]["cpu"]["median"]
    rows = [
        f"{found['date']}, commit `{found['commit']}`: {told['cores']} cores ({told['processor']}), kernel {told['kernel']}, Python {told['python']}; "
        f"load {told['load']} by others and it{raised}. Median of {found['runs']} runs in turn; best in brackets.",
        "",
        f"{held['files']:,} files, {of['own']['elf']:,} of them ELF with {held['bytes'] / (1 << 20):,.0f} MiB; {held['refused']} findings refuse it.",
        "",
        "| | ELF files | names in DT_NEEDED | wall, seconds | CPU, seconds | CPU : peer |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, name, part in (
        ("scan, all signals", "own", ""),
        ("policy of `cpu` over it", "own", "policy_"),
        ("pyelftools, DT_NEEDED only", "peer", ""),
    ):
        wall, cpu = seconds[name][f"{part}wall"], seconds[name][f"{part}cpu"]
        counts = "| | |" if part else f"| {of[name]['elf']:,} | {of[name]['needed']:,} |"
        rows.append(
            f"| {title} {counts} {_cell(wall)} | {_cell(cpu)} | {cpu['median'] / peer:.2f}x |"
        )
    return "\n".join(rows) + "\n"


def _cell(value: Mapping[str, float]) -> str:
    return f"{value['median']:.2f} ({value['best']:.2f})"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run inspect",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=7, help="measured runs of each (default 7)")
    parser.add_argument(
        "--root", type=Path, help="directory to scan (default: a Debian root made by mmdebstrap)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs/benchmarks",
        help="where the report goes (default docs/benchmarks)",
    )
    parser.add_argument(
        "--peers",
        type=Path,
        required=True,
        help="environment that pyelftools is installed in (benchmarks/run names it)",
    )
    chosen = parser.parse_args()
    found = measure(root(chosen.root), chosen.runs, chosen.peers)
    pages.write("inspect", found, tables(found), chosen.out)
    print(tables(found))


if __name__ == "__main__":
    main()
