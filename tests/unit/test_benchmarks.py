"""Every benchmark starts: its shortest form runs to its end, and its modules import. docs/benchmarks/age.md is right."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import age, pages

ROOT = pages.ROOT
# Run in the environment of the peers, or as part of the program on a node.
ELSEWHERE = ("deploy", "plot", "peer", "launch", "meter")
# `TRACE`: a fault trace. The others, which need nodes, a disk or peers, are in tests/e2e/test_benchmarks_run.py.
SHORTEST = {
    "check": ["--runs", "1", "--checks", "1", "--hosts", "5"],
    "cve": ["--nodes", "4", "--cves", "4", "--runs", "1"],
    "fleet": ["--clients", "1", "--seconds", "0.05"],
    "ingest": ["--nodes", "4", "--hours", "1"],
    "lemons": ["TRACE"],
    "preflight": ["--runs", "1"],
    "report": ["--nodes", "4", "--runs", "1"],
    "rollout": ["--nodes", "20", "--runs", "1"],
    "sanity": ["--runs", "1"],
}


def names() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))


def trace(path: Path) -> Path:
    """Write a trace of forty nodes, of which two fail every fortnight."""
    rows = [
        {
            "node_id": f"n{node}",
            "event_time": day + half,
            "event_type": kind,
            "fault_type": {"Desc": "GPU lost"},
        }
        for node in range(40)
        for day in range(1 + node, 349, 14 if node < 2 else 97)
        for half, kind in ((0.0, "fault_start"), (0.5, "fault_end"))
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_every_benchmark_has_a_shortest_form_and_measured_code() -> None:
    from tests.e2e.test_benchmarks_run import SHORTEST as LONG  # marked: this file needs no engine

    assert sorted([*SHORTEST, *LONG]) == names()
    assert sorted(age.MEASURED) == names()
    script = (ROOT / "benchmarks/run").read_text(encoding="utf-8")
    assert re.findall(r"^([a-z |]+)\) ;;$", script, re.MULTILINE)[0].split(" | ") == names()


@pytest.mark.parametrize("name", SHORTEST)
def test_shortest_form_runs(name: str, tmp_path: Path) -> None:
    words = [
        str(trace(tmp_path / "trace.json")) if word == "TRACE" else word for word in SHORTEST[name]
    ]
    argv = [sys.executable, "-m", f"benchmarks.{name}", *words, "--out", str(tmp_path / "out")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert json.loads((tmp_path / f"out/{name}.json").read_text(encoding="utf-8"))["commit"]


def test_benchmark_modules_import_without_error() -> None:
    """Those of benchmarks that the default run does not start as well."""
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        if path.stem not in ELSEWHERE:
            parts = path.relative_to(ROOT).with_suffix("").parts
            importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def test_measured_code_exists() -> None:
    lost = [path for paths in age.MEASURED.values() for path in paths if not (ROOT / path).exists()]
    assert lost == []


def test_page_of_ages_is_that_of_its_commit() -> None:
    at = age.stated()
    if age.git("merge-base", "--is-ancestor", at, "HEAD") is None:
        pytest.skip(f"the history here does not have {at}")
    assert age.text(at) == (ROOT / age.PAGE).read_text(encoding="utf-8"), (
        "run: python -m benchmarks.age"
    )


@pytest.mark.parametrize(("directory", "written"), [("docs/benchmarks", 1), ("elsewhere", 0)])
def test_page_of_ages_follows_a_record_of_the_pages(
    directory: str, written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[str] = []
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(age, "write", lambda: times.append("written"))
    pages.write("sanity", {"commit": "7841ec12"}, "| a |\n", tmp_path / directory)
    assert len(times) == written


@pytest.mark.parametrize(
    ("commit", "cell"),
    [
        ("", "unknown: the record has no commit"),
        ("0123456789", "unknown: the commit is not in the history"),
    ],
)
def test_record_of_no_commit_has_no_age(commit: str, cell: str) -> None:
    assert age.moved("sanity", commit, "HEAD") == cell


def test_commits_of_the_measured_code_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def git(*words: str) -> str:
        asked.append(words)
        return "7"

    monkeypatch.setattr(age, "git", git)
    assert age.moved("sanity", "abc-dirty", "def") == "7 and changes that were not committed"
    assert asked[-1] == ("rev-list", "--count", "abc..def", "--", "src/goldnode/node")
