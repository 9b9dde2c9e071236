"""The quick answer: JSON read without the json package, and a verdict's file that both it and the shell scripts read."""

from __future__ import annotations

import json
import subprocess
import sys
from fnmatch import fnmatchcase

import pytest

from goldnode.node import plain
from goldnode.node.host import matching
from goldnode.node.lines import by_lines
from goldnode.node.verdict import current


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        ' {"a": [1, 2.5, -3e2, true, null, "\\u00e9\\n", {"b": {}}]} \n',
        '"x"',
        "NaN",
        "-Infinity",
        "12",
    ],
)
def test_the_same_values_as_the_json_package(text: str) -> None:
    assert repr(current.loads(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1,]", '{"a"}', "{} {}", "tru", '"\t"', '{"a": 1}x', "\ufeff{}"]
)
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json.loads raises no other
        current.loads(text)


def test_it_asks_for_no_regular_expressions() -> None:
    said = "import sys; from goldnode.node.verdict import current; current.loads('[1]'); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {said}"],
        capture_output=True,
        text=True,
        check=True,
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
    text = by_lines(verdict)
    assert json.loads(text) == verdict
    assert text.splitlines()[1:3] == [' "schema": "x",', ' "uptime": 3.5,']
    assert sum(1 for line in text.splitlines() if line.startswith('  {"id"')) == 2


def test_in_order_where_that_is_asked_for() -> None:
    assert (
        by_lines({"b": {"d": 1, "c": 2}, "a": [{"f": 1, "e": 2}]}, ordered=True)
        == '{\n "a": [\n  {"e": 2, "f": 1}\n ],\n "b": {"c": 2, "d": 1}\n}'
    )


@pytest.mark.parametrize("pattern", ["*", "a*", "*b", "a*b", "ab*ab", "a?*", "[ab]*", "a**", "*.conf", ".*"])
def test_a_pattern_matches_what_the_shells_would(pattern: str) -> None:
    names = ["", "a", "b", "ab", "aab", "abab", "aba", "x.conf", ".conf", "[ab]", ".", "a*b"]
    assert matching(names, pattern) == [name for name in names if fnmatchcase(name, pattern)]


def test_a_named_tuple_is_what_the_standard_one_is() -> None:
    class Mine(plain.NamedTuple):
        a: int
        b: str = "x"

        def both(self) -> str:
            return f"{self.a}{self.b}"

    assert Mine(1) == (1, "x") == Mine(a=1) == Mine(1, b="x")
    assert (Mine(2, "y").both(), Mine(1)._replace(a=3), Mine(1)._asdict(), repr(Mine(1))) == (
        "2y",
        (3, "x"),
        {"a": 1, "b": "x"},
        "Mine(a=1, b='x')",
    )
    assert Mine._fields == ("a", "b")
    for wrong in ((), (1, "x", 2)):
        with pytest.raises(TypeError):
            Mine(*wrong)
    for named in ({"a": 1, "c": 2}, {"b": "x"}):
        with pytest.raises(TypeError):
            Mine(**named)
    with pytest.raises(TypeError):
        Mine(1, a=2)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Mine(1).a = 2  # type: ignore[misc]
