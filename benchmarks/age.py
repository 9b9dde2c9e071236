"""`python -m benchmarks.age [--at COMMIT]`: write docs/benchmarks/age.md, the age of the figures of each benchmark.

The age is the number of commits to the measured code between the commit of a record and COMMIT (default HEAD). A benchmark that
writes its record to docs/benchmarks writes this page as well.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/benchmarks/age.md"
_TREE = "src/goldnode"
# Benchmark -> code whose speed it measures.
MEASURED: dict[str, Sequence[str]] = {
    "check": [
        f"{_TREE}/{name}"
        for name in ("catalog", "classdoc", "compat", "facts", "inventory", "cli.py")
    ],
    "converge": [f"{_TREE}/ansible", f"{_TREE}/node", "roles", "site.yml"],
    "cve": [f"{_TREE}/cve"],
    "disks": [f"{_TREE}/disks", f"{_TREE}/node/state", "roles"],
    "fleet": [f"{_TREE}/fleet/{name}" for name in ("rollout", "service", "store")],
    "hosts": [f"{_TREE}/ansible", "roles", "site.yml"],
    "images": [f"{_TREE}/images", f"{_TREE}/oci", "images/containers"],
    "ingest": [f"{_TREE}/fleet/ingest"],
    "inspect": [f"{_TREE}/inspect"],
    "lemons": [f"{_TREE}/fleet/report"],
    "preflight": [f"{_TREE}/node/preflight", f"{_TREE}/node/program/start.py"],
    "provision": [f"{_TREE}/ansible", f"{_TREE}/lock", f"{_TREE}/node", "roles", "site.yml"],
    "report": [
        f"{_TREE}/fleet/ingest/read.py",
        f"{_TREE}/fleet/report",
        f"{_TREE}/commands/fleet/report_page.py",
    ],
    "rollout": [f"{_TREE}/fleet/rollout"],
    "sanity": [f"{_TREE}/node"],
}
_AT = re.compile(r"As of commit `([0-9a-f]{7,40})`")


def git(*words: str) -> str | None:
    """Return what git prints; None if it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def moved(name: str, commit: str, at: str) -> str:
    """Return how many commits the measured code has moved from a record's commit to `at`, as text of a cell."""
    own, _, dirty = commit.partition("-")
    if not own:
        return "unknown: the record has no commit"
    if git("merge-base", "--is-ancestor", own, at) is None:
        return "unknown: the commit is not in the history"
    count = git("rev-list", "--count", f"{own}..{at}", "--", *MEASURED[name])
    return f"{count}{' and changes that were not committed' if dirty else ''}"


def text(at: str) -> str:
    """Return the page as of a commit."""
    rows = []
    for name in sorted(MEASURED):
        file = ROOT / f"docs/benchmarks/{name}.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        commit = str(found.get("commit", ""))
        measured = f"{found['date']}, `{commit or 'no commit'}`" if found else "no figures yet"
        code = ", ".join(f"`{path.removeprefix('src/')}`" for path in MEASURED[name])
        rows.append([f"[{name}]({name}.md)", measured, moved(name, commit, at), code])
    lines = [["Benchmark", "Figures of", "Commits since", "Measured code"], ["---"] * 4, *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return (
        "# Age of the figures\n\n"
        "Each page of a benchmark has the figures of one commit. This page has the number of commits that have changed the measured code since then: the\n"
        "higher it is, the less the figures say about the code of today. A benchmark measured again begins at 0.\n\n"
        f"As of commit `{at}`, by `.venv/bin/python -m benchmarks.age`:\n\n{table}"
    )


def stated() -> str:
    """Return the commit that the page names."""
    found = _AT.search((ROOT / PAGE).read_text(encoding="utf-8"))
    return found[1] if found else ""


def write(commit: str = "HEAD") -> None:
    """Write the page as of a commit.

    Raises:
        SystemExit: the history has no such commit.
    """
    at = git("rev-parse", "--short=10", commit)
    if at is None:
        raise SystemExit(f"there is no commit {commit} here")
    (ROOT / PAGE).write_text(text(at), encoding="utf-8")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.age", description=__doc__)
    parser.add_argument("--at", default="HEAD", help="commit of the code (default HEAD)")
    write(parser.parse_args().at)


if __name__ == "__main__":
    main()
