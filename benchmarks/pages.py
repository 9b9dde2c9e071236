"""What the benchmarks' reports share: the figures as JSON, their tables between the marks of a page, a plot, the machine they were taken on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import age

ROOT = age.ROOT


def write(name: str, found: Mapping[str, Any], text: str, directory: Path) -> Path:
    """Write NAME.json to `directory`, and `text` between the marks of its NAME.md; what stands around them stays. Returns the JSON's file.

    In docs/benchmarks the page of ages follows: the record that it names has changed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    data, page = directory / f"{name}.json", directory / f"{name}.md"
    data.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    begin, end = f"<!-- figures: written by benchmarks/run {name} -->", "<!-- end of figures -->"
    before, after = f"# benchmarks/{name}\n\n", "\n"
    if page.exists() and begin in (old := page.read_text(encoding="utf-8")):
        before, after = old[: old.index(begin)], old[old.index(end) + len(end) :]
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")
    if directory.resolve() == (ROOT / age.PAGE).parent:
        age.write()
    return data


def draw(script: Path, data: Path, peers: Path) -> None:
    """Draw NAME.json as NAME.svg with a script that runs in the peers' environment, which has matplotlib."""
    subprocess.run(
        [str(peers / "bin/python"), str(script), str(data), str(data.with_suffix(".svg"))],
        check=True,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and the others numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def machine() -> dict[str, Any]:
    """What it is measured on, and how busy that is."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
    }


def commit() -> str:
    """The commit that is measured; it says where there is more than that."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def about(found: Mapping[str, Any]) -> str:
    """Date, commit and machine of the figures, as the first sentence of a page."""
    on = found["machine"]
    return (
        f"{found['date']}, commit `{found['commit']}`. {on['cores']} cores ({on['processor']}), kernel {on['kernel']}, "
        f"load {on['load']} before the first run."
    )
