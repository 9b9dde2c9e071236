"""The quick answer: JSON read without the json package, and a verdict's file that both it and the shell scripts read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from goldnode.node.report import verdict_json
from goldnode.node.verdict import current


@pytest.mark.parametrize(
    "text", ["{}", "[]", ' {"a": [1, 2.5, -3e2, true, null, "\\u00e9\\n", {"b": {}}]} \n', '"x"', "NaN", "-Infinity", "12"]
)
def test_the_same_values_as_the_json_package(text: str) -> None:
    assert repr(current.loads(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", " ", "{", "[1,]", '{"a"}', "{} {}", "tru", '"\t"', '{"a": 1}x', "\ufeff{}"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json.loads raises no other
        current.loads(text)


def test_it_asks_for_no_regular_expressions() -> None:
    said = "import sys; from goldnode.node.verdict import current; current.loads('[1]'); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {said}"], capture_output=True, text=True, check=True
    )
    assert "goldnode.node.verdict.current" in done.stdout.split()
    assert not {"re", "json", "enum", "hashlib", "typing", "subprocess"} & set(done.stdout.split())


def test_a_verdict_is_written_with_a_line_for_each_finding() -> None:
    verdict = {
        "schema": "x",
        "uptime": 3.5,
        "none": None,
        "empty": [],
        "counts": {"match": 2},
        "findings": [{"id": "a", "got": "é"}, {"id": "b"}],
    }
    text = verdict_json(verdict)
    assert json.loads(text) == verdict
    assert text.splitlines()[1:3] == [' "schema": "x",', ' "uptime": 3.5,']
    assert sum(1 for line in text.splitlines() if line.startswith('  {"id"')) == 2
