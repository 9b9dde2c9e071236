"""The cached answer, and the file of a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from fnmatch import fnmatchcase

import pytest

from goldnode.node.ground.host import matching
from goldnode.node.ground.json_lines import by_lines


def test_a_cached_answer_imports_little() -> None:
    """It is read by schedulers before each job: the budget is in docs/benchmarks/sanity.md."""
    reported = "import sys; from goldnode.node.verdict import current; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {reported}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "goldnode.node.verdict.current" in done.stdout.split()
    assert not {"argparse", "dataclasses", "hashlib", "subprocess", "typing"} & set(
        done.stdout.split()
    )


def test_a_verdict_is_written_with_a_line_for_each_finding() -> None:
    verdict = {
        "schema": "x",
        "uptime": 3.5,
        "none": None,
        "empty": [],
        "counts": {"match": 2},
        "findings": [{"id": "a", "got": "é"}, {"id": "b"}],
    }
    text = by_lines(verdict)
    assert json.loads(text) == verdict
    assert text.splitlines()[1:3] == [' "schema": "x",', ' "uptime": 3.5,']
    assert sum(1 for line in text.splitlines() if line.startswith('  {"id"')) == 2


def test_in_order_where_that_is_asked_for() -> None:
    assert (
        by_lines({"b": {"d": 1, "c": 2}, "a": [{"f": 1, "e": 2}]}, ordered=True)
        == '{\n "a": [\n  {"e": 2, "f": 1}\n ],\n "b": {"c": 2, "d": 1}\n}'
    )


@pytest.mark.parametrize(
    "pattern", ["*", "a*", "*b", "a*b", "ab*ab", "a?*", "[ab]*", "a**", "*.conf", ".*"]
)
def test_a_pattern_matches_what_the_shells_would(pattern: str) -> None:
    names = ["", "a", "b", "ab", "aab", "abab", "aba", "x.conf", ".conf", "[ab]", ".", "a*b"]
    assert matching(names, pattern) == [name for name in names if fnmatchcase(name, pattern)]
