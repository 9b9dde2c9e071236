"""docs/tutorials/first-check.md as a reader follows it: its commands run, and print what the page shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorials/first-check.md"
BLOCK = re.compile(r"^```(console|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """Return the commands of each block, with the output that the page shows for it."""
    found: list[tuple[str, str]] = []
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "console":
            found.append((re.sub(r"^\$ ", "", text, flags=re.MULTILINE), ""))
        else:
            found[-1] = (found[-1][0], text)
    return found


def missing(shown: str, printed: str) -> list[str]:
    """Return the lines of the page that the output lacks, in order; `…` stands in for any text."""
    lines, lost = printed.splitlines(), []
    for line in shown.splitlines():
        pattern = re.compile(re.escape(line).replace("…", ".*"))
        at = next((number for number, one in enumerate(lines) if pattern.fullmatch(one)), None)
        if at is None:
            lost.append(line)
        else:
            lines = lines[at + 1 :] if line != "…" else lines
    return lost


def test_a_line_that_is_not_printed_is_found() -> None:
    assert missing("a\n…\nb…d\n", "a\nx\nbcd\n") == []
    assert missing("a\nc\n", "a\nb\n") == ["c"]
    assert missing("b\na\n", "a\nb\n") == ["a"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the page uses, and `goldnode` in `.venv`."""
    where = tmp_path_factory.mktemp("checkout")
    fixtures = "tests/unit/node/fixtures/smi"
    shutil.copytree(ROOT / fixtures, where / fixtures)
    (where / ".venv/bin").mkdir(parents=True)
    program = where / ".venv/bin/goldnode"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from goldnode.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    return where


def test_commands_print_what_the_page_shows(checkout: Path) -> None:
    for commands, shown in steps():
        lines = [
            line for line in commands.splitlines() if not re.match(r"python3 -m venv|\S+pip install", line)
        ]
        if not lines:
            continue
        done = subprocess.run(
            ["sh", "-c", "\n".join(lines)], cwd=checkout, capture_output=True, text=True, check=False
        )
        if "no GPU on the PCI bus" in shown and "no GPU on the PCI bus" not in done.stdout:
            continue  # this machine has a GPU
        assert missing(shown, done.stdout) == [], f"{commands}\n{done.stdout}{done.stderr}"
