"""`goldnode check` measured: its cold start against the floors of Python and click, and 1,000 class x image checks in one process.

Commands are run in turn, as new processes. See docs/benchmarks/check.md.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import pages

ROOT = Path(__file__).resolve().parents[2]
CLASS, IMAGE = "h100_sxm5_80gb", "nvidia/cuda:13.0.2-runtime-ubuntu24.04"
HELLO = "import click\n\n@click.command()\ndef main() -> None:\n    click.echo('hello')\n\nmain()\n"


def contenders(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Return what is started, by name: its title and its command line."""
    hello = folder / "hello.py"
    hello.write_text(HELLO, encoding="utf-8")
    goldnode = str(Path(sys.executable).with_name("goldnode"))
    return {
        "check": (f"`goldnode check --class {CLASS}`", [goldnode, "check", "--class", CLASS]),
        "image": (
            "the same with an image",
            [goldnode, "check", "--class", CLASS, "--image", IMAGE],
        ),
        "all": ("`goldnode check`, all classes", [goldnode, "check"]),
        "explain": (
            "`goldnode check --explain cuda-driver`",
            [goldnode, "check", "--explain", "cuda-driver"],
        ),
        "hello": ("floor: a command of click that says hello", [sys.executable, str(hello)]),
        "pass": ("floor: `python -c pass`", [sys.executable, "-c", "pass"]),
    }


def run(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Return wall time and CPU of one run in seconds. A run that could not check ends the benchmark."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    error = process.stderr.read().decode() if process.stderr is not None else ""
    if process.returncode not in (0, 1):  # 1: something of it is blocked, which is a result
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {error}")
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "memory_mib": used.ru_maxrss / 1024}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the best."""
    return {"median": statistics.median(values), "best": min(values)}


def fleet(folder: Path, classes: Sequence[str], hosts: int) -> Path:
    """Write an inventory of `hosts` hosts, spread over `classes`, each in a cohort of 250. Return its file."""
    each = hosts // len(classes)
    lines: list[str] = []
    for place, name in enumerate(classes):
        lines.append(f"[{name}]")
        for number in range(place * each, (place + 1) * each):
            address = f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}"
            lines.append(
                f"node{number:05} ansible_host={address} goldnode_cohort={name}-{number // 250}"
            )
    file = folder / "fleet.ini"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def measure_fleet(
    runs: int, hosts: int, environment: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Return CPU, wall time and peak memory of `check -i` and of `ansible-inventory` on the same file, in pairs."""
    classes = sorted(item.stem for item in (ROOT / "catalog/classes").glob("*.yml"))[:5]
    programs = Path(sys.executable).parent
    found: dict[str, Any] = {"classes": len(classes), "runs": runs, "sizes": {}}
    for size in (len(classes), hosts):
        file = str(fleet(folder, classes, size))
        commands = {
            "ansible": [str(programs / "ansible-inventory"), "-i", file, "--list"],
            "check": [str(programs / "goldnode"), "check", "-i", file],
        }
        plain = {**environment, "ANSIBLE_VARS_PLUGINS": os.devnull}
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for number in range(runs):
            names = list(commands)[:: -1 if number % 2 else 1]
            for name in names:
                taken[name].append(run(commands[name], plain))
        ratios = [
            check["cpu"] / ansible["cpu"]
            for check, ansible in zip(*reversed(taken.values()), strict=True)
        ]
        found["sizes"][str(size)] = {
            "ratio": summary(ratios),
            **{
                name: {
                    key: summary([row[key] for row in rows])
                    for key in ("wall", "cpu", "memory_mib")
                }
                for name, rows in taken.items()
            },
        }
    return found


def measure(runs: int, checks: int, hosts: int) -> dict[str, Any]:
    """Return all figures."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site.yml"
        site.write_text("archives: {}\n", encoding="utf-8")
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("GOLDNODE_")
        }
        environment |= {"GOLDNODE_SITE": str(site), "PYTHONPATH": str(ROOT)}
        chosen = contenders(Path(folder))
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
        names = list(chosen)
        for number in range(runs + 1):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                found = run(chosen[name][1], environment)
                if number:  # the first writes the byte code and warms the page cache
                    taken[name].append(found)
            print(f"run {number} of {runs}", flush=True)
        inside = [
            json.loads(
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.check.inprocess", str(checks)],
                    env=environment,
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
            for _ in range(max(min(5, runs), runs // 3))
        ]
        inventory = measure_fleet(max(min(3, runs), runs // 3), hosts, environment, Path(folder))
    return {
        "date": str(dt.datetime.now(tz=dt.UTC).date()),
        "commit": subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip(),
        "machine": machine(),
        "runs": runs,
        "cold": {
            name: {
                "title": title,
                **{key: summary([row[key] for row in taken[name]]) for key in ("wall", "cpu")},
            }
            for name, (title, _) in chosen.items()
        },
        "fleet": inventory,
        "inside": {
            **{key: inside[0][key] for key in ("checks", "classes", "images", "verdicts")},
            "runs": len(inside),
            **{
                part: {key: summary([row[part][key] for row in inside]) for key in ("wall", "cpu")}
                for part in ("catalog", "all_checks")
            },
        },
    }


def machine() -> dict[str, Any]:
    """Return what it was measured on, and how busy that was."""
    more = {
        "python": platform.python_version(),
        "click": version("click"),
        "pydantic": version("pydantic"),
    }
    return {**pages.machine(), **more, "priority": os.getpriority(os.PRIO_PROCESS, 0)}


def tables(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown: ratios first."""
    cold, inside, told = found["cold"], found["inside"], found["machine"]
    raised = f", run at priority {told['priority']}" if told["priority"] else ""
    head = (
        f"{found['date']}, commit `{found['commit']}`: {told['cores']} cores ({told['processor']}), kernel {told['kernel']}, Python "
        f"{told['python']}, click {told['click']}, pydantic {told['pydantic']}; load {told['load']} by others and it{raised}. Median of "
        f"{found['runs']} runs in turn; best in brackets.\n"
    )
    floors = ("hello", "pass")
    rows = [
        "| | wall, seconds | CPU, seconds | CPU : click's hello | CPU : `python -c pass` |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in cold.values():
        ratios = [row["cpu"]["median"] / cold[floor]["cpu"]["median"] for floor in floors]
        rows.append(
            f"| {row['title']} | {_cell(row['wall'])} | {_cell(row['cpu'])} | {ratios[0]:.1f}x | {ratios[1]:.1f}x |"
        )
    verdicts = ", ".join(f"{number} {name}" for name, number in inside["verdicts"].items())
    rows += [
        "",
        f"{inside['checks']:,} checks in one process ({inside['classes']} classes, {inside['images']} images; {verdicts}); median of "
        f"{inside['runs']} processes",
        "",
        "| | wall, seconds | CPU, seconds |",
        "| --- | ---: | ---: |",
        f"| read the catalog and its locks, make the nodes of all classes | {_cell(inside['catalog']['wall'])} | "
        f"{_cell(inside['catalog']['cpu'])} |",
        f"| read the facts and the images' names, and all checks | {_cell(inside['all_checks']['wall'])} | "
        f"{_cell(inside['all_checks']['cpu'])} |",
    ]
    rows += fleet_rows(found["fleet"])
    return f"{head}\n" + "\n".join(rows) + "\n"


def fleet_rows(fleet: Mapping[str, Any]) -> list[str]:
    """Return the table of inventories: `check -i` and `ansible-inventory` on the same file."""
    rows = [
        "",
        f"`goldnode check -i` and `ansible-inventory --list` on the same file, hosts of {fleet['classes']} classes; the ratio is the median "
        f"of {fleet['runs']} pairs",
        "",
        "| hosts | `check -i`, CPU seconds | `ansible-inventory`, CPU seconds | ratio | memory of either, MiB |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for size, row in fleet["sizes"].items():
        memory = max(row[name]["memory_mib"]["median"] for name in ("check", "ansible"))
        rows.append(
            f"| {int(size):,} | {_cell(row['check']['cpu'])} | {_cell(row['ansible']['cpu'])} | {row['ratio']['median']:.2f}x | {memory:.0f} |"
        )
    return rows


def _cell(value: Mapping[str, float]) -> str:
    return f"{value['median']:.3f} ({value['best']:.3f})"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run check",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--runs", type=int, default=15, help="measured runs of each command (default 15)"
    )
    parser.add_argument(
        "--checks", type=int, default=1000, help="checks in one process (default 1000)"
    )
    parser.add_argument(
        "--hosts",
        type=int,
        default=10_000,
        help="hosts of the inventory, five at least (default 10000)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs/benchmarks",
        help="where the report goes (default docs/benchmarks)",
    )
    chosen = parser.parse_args()
    found = measure(chosen.runs, chosen.checks, chosen.hosts)
    pages.write("check", found, tables(found), chosen.out)
    print(tables(found))


if __name__ == "__main__":
    main()
