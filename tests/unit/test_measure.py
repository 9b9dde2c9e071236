"""`python -m tests.suite.measure`: what it counts, and that docs/development.md is close to its figures."""

from __future__ import annotations

import re

from tests.suite import measure
from tests.suite.timings import ROOT

TEXT = '''"""Docstring."""
# Comment.
def one(a, b, c, d, e, f):
    """Text."""
    found = 1 if a else 2
    return one(1, 2, 3, 4, 5, 6)
'''


def test_counts_of_a_small_file() -> None:
    numbers = measure.Numbers()
    numbers.add(TEXT)
    assert (numbers.files, numbers.functions, numbers.code, numbers.comments) == ([6], [4], 3, 1)
    assert (numbers.conditionals, numbers.positional, numbers.found, numbers.wide) == (1, 1, 1, 0)


def test_page_has_a_figure_for_each_row_and_is_close_to_the_code() -> None:
    """It may lag behind by a tenth. `python -m tests.suite.measure --write` writes it."""
    page = measure.PAGE.read_text(encoding="utf-8")
    rows = measure.count([ROOT / "src/goldnode"]).rows()
    for name in rows:
        cells = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", page, re.MULTILINE)
        assert cells, name
        assert cells[1].split("|")[-1].strip(), name
    for name in ("lines / files of Python", "statements"):
        now = int(rows[name].split(" ")[0].replace(",", ""))
        cells = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", page, re.MULTILINE)
        assert cells
        shown = int(cells[1].split("|")[-1].split()[0].replace(",", ""))
        assert abs(now - shown) <= now / 10, "run: python -m tests.suite.measure --write"
