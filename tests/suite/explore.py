"""Draw other examples for the property tests: `python -m tests.suite.explore [--seeds 10] [--minutes 20] [FILE …]`.

Each failure becomes a case in tests/found, which every run replays from then on. Exit status 1 if a test failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.suite.properties import EXPLORE
from tests.suite.timings import ROOT


def property_files(folder: Path = ROOT / "tests") -> list[str]:
    """Return the unit tests' files with properties."""
    wanted = re.compile(
        r"^from hypothesis(\.stateful)? import .*\b(given|RuleBasedStateMachine)\b", re.MULTILINE
    )
    found = sorted((folder / "unit").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in found if wanted.search(path.read_text("utf-8"))]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suite.explore", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="number of runs (default: 10)")
    parser.add_argument("--first", type=int, default=1, help="seed of the first run (default: 1)")
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="begin no run after this time (default: 20)"
    )
    parser.add_argument(
        "files", nargs="*", help="tests as pytest names them (default: all property tests)"
    )
    given = parser.parse_args(argv)
    end, failed = time.monotonic() + given.minutes * 60, 0
    for seed in range(given.first, given.first + given.seeds):
        if time.monotonic() > end:
            print(f"{given.minutes:g} minutes have passed: seeds from {seed} on were not run")
            break
        words = ["-q", f"--hypothesis-profile={EXPLORE}", f"--hypothesis-seed={seed}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *(given.files or property_files())],
            cwd=ROOT,
            check=False,
        )
        if done.returncode not in (0, 1):
            return done.returncode  # pytest could not run
        failed += done.returncode
        print(
            f"seed {seed}: {'found a failure' if done.returncode else 'nothing found'}", flush=True
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
