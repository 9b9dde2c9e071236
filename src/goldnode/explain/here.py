"""Checks on this node that decide between causes: `goldnode-node check` and `diagnose`. Writes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from goldnode.explain.model import TextAnswer
from goldnode.node.ground.json_lines import as_map

_SECONDS = 180  # of which a diagnosis takes two samples


@dataclass(frozen=True)
class LocalReport:
    """Results by command, the version of the driver if one was reported, and the reason of each failure."""

    rows: dict[str, list[dict[str, Any]]]
    driver: str | None
    failed: dict[str, str]


def ask(answers: Iterable[TextAnswer]) -> LocalReport:
    """Run the commands that the answers name, each once."""
    rows: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    driver = None
    for run in sorted({answer.run for answer in answers if answer.run}):
        extra = ["--no-write"] if run == "check" else []
        argv = [sys.executable, "-m", "goldnode.node", run, *extra, "--format", "json"]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            document = as_map(json.loads(done.stdout))
        except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
            failed[run] = str(problem) if isinstance(problem, OSError) else "no answer"
            continue
        rows[run] = list(document.get("findings") or document.get("lines") or [])
        named = as_map(document.get("driver")).get("reported")
        driver = named if isinstance(named, str) else driver
    return LocalReport(rows=rows, driver=driver, failed=failed)


def about(answer: TextAnswer, report: LocalReport) -> list[str]:
    """Return what this node answers about one row, a line each."""
    if answer.run is None:
        return []
    if answer.run in report.failed:
        return [f"could not check: goldnode-node {answer.run}: {report.failed[answer.run]}"]
    rows = report.rows.get(answer.run, [])
    if answer.run == "diagnose":
        return [f"{row['check']}: {row['status']}: {row['text']}" for row in rows]
    chosen = [row for row in rows if any(fnmatchcase(row["id"], name) for name in answer.here)]
    if not chosen:
        return ["could not check: this node has no finding about it"]
    return [
        f"{row['id']}: {row['outcome'].replace('_', ' ')}: {row['got']}"
        + (f". {row['remedy']}" if row["outcome"] == "mismatch" and row["remedy"] else "")
        for row in chosen
    ]
