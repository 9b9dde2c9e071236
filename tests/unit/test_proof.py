"""docs/proof.md names every test that the default run leaves out, and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A row of the table: the test as pytest names it, without its parameters.
ROW = re.compile(r"^\| `(tests/[^`]+\.py::test_[^`\[]+)` \| .+ \| .+ \| .* \|$", re.MULTILINE)


def long_tests() -> set[str]:
    places = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and list(path.rglob("test_*.py"))
    )
    # Not all of tests/unit: its collection takes half a minute.
    units = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests/unit").rglob("test_*.py"))
        if "pytest.mark.long" in path.read_text(encoding="utf-8") and path.name != "test_proof.py"
    ]
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "long",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*argv, *(place for place in places if place != "tests/unit"), *units],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    # pytest-xdist's group follows an id.
    return {
        line.partition("@")[0].partition("[")[0]
        for line in done.stdout.splitlines()
        if "::" in line
    }


def test_every_long_test_has_its_row_and_every_row_its_test() -> None:
    text = (ROOT / "docs/proof.md").read_text(encoding="utf-8")
    section = text.partition("## With `--all` only\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    assert len(rows) == len(set(rows))
    assert set(rows) == long_tests(), (
        "write a row into docs/proof.md, `With --all only`: test, what it proves, why, when it last passed"
    )
