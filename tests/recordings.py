"""Recordings for README and docs/: run the commands of the quick tour and a fleet's run, and draw their output as SVG.

`python -m tests.recordings` writes docs/assets/tour.svg and docs/assets/run-report.svg. The output is that of
the real programs. The capture is that of a simulated GPU with a fault added, and the nodes of the run answer
with canned results; both pictures state it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.unit.ansible.test_report import REFUSED, applied, plan, play

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "docs/assets"
BIN = Path(sys.executable).parent
CAPTURE = ROOT / "tests/cases/recorded/simulated_l4_x1_580.95.05/capture.json"

COLUMNS = 120
LINE, CHARACTER, MARGIN, BAR = 17, 7.25, 14, 30  # pixels
SECONDS = 6  # that a screen of the tour is shown
COLOURS = {
    "back": "#1e1e2e",
    "bar": "#313244",
    "text": "#cdd6f4",
    "prompt": "#a6e3a1",
    "note": "#9399b2",
}


@dataclass(frozen=True)
class Screen:
    """A command line, and the lines that it prints."""

    command: str
    lines: tuple[str, ...]


def wrapped(output: str) -> tuple[str, ...]:
    """Return the lines of an output, broken at the width of the terminal as a terminal would."""
    found: list[str] = []
    for line in output.rstrip("\n").splitlines():
        indent = " " * min(len(line) - len(line.lstrip()), 20)
        found += textwrap.wrap(line, COLUMNS, subsequent_indent=indent, break_on_hyphens=False) or [
            ""
        ]
    return tuple(found)


def _rows(lines: Iterable[str], first: int) -> Iterator[str]:
    for number, line in enumerate(lines, start=first):
        y = BAR + MARGIN + number * LINE
        if line:
            yield f'<text x="{MARGIN}" y="{y}" xml:space="preserve">{escape(line)}</text>'


def _styles(screens: int) -> str:
    rules = [
        "text { font: 12px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; "
        f"fill: {COLOURS['text']}; white-space: pre; }}",
        f".prompt {{ fill: {COLOURS['prompt']}; }} .note {{ fill: {COLOURS['note']}; }}",
    ]
    if screens > 1:
        share = 100 / screens
        total = SECONDS * screens
        for number in range(screens):
            begin, end = number * share, (number + 1) * share
            rules.append(
                f"@keyframes s{number} {{ 0%, {max(begin - 0.01, 0):.2f}% {{ opacity: {int(number == 0)}; }} "
                f"{begin:.2f}%, {end - 0.01:.2f}% {{ opacity: 1; }} {end:.2f}%, 100% {{ opacity: 0; }} }}"
            )
            rules.append(
                f".s{number} {{ opacity: {int(number == 0)}; animation: s{number} {total}s infinite; }}"
            )
        # Readers that want no motion see the first screen.
        rules.append(
            "@media (prefers-reduced-motion: reduce) { g { animation: none !important; } }"
        )
    return "\n".join(rules)


def svg(screens: Sequence[Screen], title: str, note: str) -> str:
    """Return a terminal window as SVG. Several screens are shown in turn; `note` is the title of the window."""
    height = BAR + 2 * MARGIN + LINE * (1 + max(len(screen.lines) for screen in screens))
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>\n{_styles(len(screens))}\n</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{COLOURS["back"]}"/>',
        f'<path d="M0 {BAR}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{BAR}z" fill="{COLOURS["bar"]}"/>',
        f'<text class="note" x="{MARGIN}" y="20">{escape(note)}</text>',
    ]
    for number, screen in enumerate(screens):
        parts.append(f'<g class="s{number}">')
        parts.append(
            f'<text x="{MARGIN}" y="{BAR + MARGIN + LINE // 2}" xml:space="preserve">'
            f'<tspan class="prompt">$ </tspan>{escape(screen.command)}</text>'
        )
        parts += [*_rows(screen.lines, 2), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def run(command: str, where: Path) -> Screen:
    """Run a command of the tour in `where` and return its screen. Any exit status is fine."""
    name, *arguments = command.split()
    program = where / name if name.startswith("./") else BIN / name
    argv = [sys.executable, str(program), *arguments]
    done = subprocess.run(argv, cwd=where, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return Screen(command, wrapped(done.stdout))


def tour(where: Path) -> str:
    """Return the recording of the quick tour: a health check, a compatibility check, an explanation of an Xid."""
    subprocess.run(
        [str(BIN / "goldnode"), "node-program", "--out", str(where / "goldnode-node")], check=True
    )
    capture = json.loads(CAPTURE.read_text(encoding="utf-8"))
    capture["gpus"][0]["remapped_rows"].update(pending=True, uncorrectable=1)
    (where / "node.json").write_text(json.dumps(capture), encoding="utf-8")
    commands = ("./goldnode-node check --from node.json", "goldnode check -c l4", "goldnode xid 79")
    note = "goldnode: quick tour (the hardware in node.json is simulated)"
    title = "A health check of a simulated GPU, a compatibility check of a class, and an explanation of Xid 79"
    return svg([run(command, where) for command in commands], title, note)


def fleet() -> dict[str, dict[str, Any]]:
    """Return the canned answers of the nodes of a run."""
    reason = "kernel 6.12.94+deb13-amd64 runs, the lock has 6.12.117+deb13-amd64"
    found = {f"gpu{number:02}": {"plan": plan()} for number in range(1, 10)}
    found["gpu10"] = {
        "plan": plan({"kernel": ["/etc/apt/preferences.d/goldnode"]}),
        "kernel": applied("kernel", "/etc/apt/preferences.d/goldnode"),
    }
    found |= {f"gpu{number}": {"plan": plan(reboot=[reason])} for number in (11, 12)}
    found["gpu13"] = {"plan": plan(waiting=["MIG mode of 0000:5d:00.0"])}
    return {**found, "gpu14": {"plan": REFUSED}}


def report(where: Path) -> str:
    """Return the report at the end of a run of site.yml, whose nodes answer with canned results."""
    _, output, _ = play(where, fleet())
    text = output[output.index("goldnode: ") :].replace(str(where / "runs"), ".goldnode/runs")
    screen = Screen("ansible-playbook -i inventories/mine site.yml", ("…", *wrapped(text)))
    title = (
        "The report of a run of site.yml: hosts by result, and a line per reason with the remedy"
    )
    return svg([screen], title, "goldnode: report of a run (simulated nodes)")


def main() -> None:
    """Write both pictures."""
    with tempfile.TemporaryDirectory() as name:
        for file, make in (("tour.svg", tour), ("run-report.svg", report)):
            where = Path(name) / file
            where.mkdir()
            text = make(where)
            (ASSETS / file).write_text(text, encoding="utf-8")
            print(f"wrote {(ASSETS / file).relative_to(ROOT)} ({len(text)} bytes)")


if __name__ == "__main__":
    main()
