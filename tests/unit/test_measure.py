"""`python -m tests.suite.measure`: what it counts, and that docs/development.md is close to its figures."""

from __future__ import annotations

import re

import pytest
from tests.suite import duplicates, measure
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
    assert (numbers.files, numbers.functions) == ([6], [4])
    assert numbers.code_and_comments() == (3, 1)
    assert (numbers.conditionals, numbers.positional, numbers.found, numbers.wide) == (1, 1, 1, 0)


LOGIC = """
def {name}(rows, limit):
    total = sum(row.size for row in rows)
    for row in sorted(rows, key=len):
        if total + row.size > limit.size:
            raise ValueError(f"too large: {{row}}")
        total = total + row.size - limit.used
    return {{row.name: row.size for row in rows}}
"""
FIELDS = """
class {name}(Model):
    size: int = Field(default=0, description="Bytes.")
    used: int = Field(default=0, description="Bytes.")
    name: str = Field(default="", description="Name.")
    kind: str = Field(default="", description="Kind.")
    path: str = Field(default="", description="Path.")
    link: str = Field(default="", description="Link.")
"""


@pytest.mark.parametrize(
    ("text", "copies", "pairs", "logic"),
    [(LOGIC, 2, 1, True), (FIELDS, 2, 1, False), (LOGIC, 9, 0, False)],
    ids=["logic", "declarations", "a form in nine places"],
)
def test_pairs_of_near_duplicates(text: str, copies: int, pairs: int, logic: bool) -> None:
    files = {
        str(number): duplicates.code_lines(
            text.format(name=f"Name{number}").replace("limit", f"l{number}")
        )
        for number in range(copies)
    }
    shared = duplicates.pairs(files)
    assert [pair.logic for pair in shared.values()] == [logic] * pairs


def test_alike_to_the_letter_or_in_shape() -> None:
    one, other = LOGIC.format(name="one"), LOGIC.format(name="two").replace("total", "sum_of_all")
    letters = duplicates.pairs({"a": duplicates.code_lines(one), "b": duplicates.code_lines(one)})
    shape = duplicates.pairs({"a": duplicates.code_lines(one), "b": duplicates.code_lines(other)})
    assert letters["a", "b"].letters
    assert not shape["a", "b"].letters


def test_written_figures_leave_the_earlier_table_alone() -> None:
    page = "| statements | 1 | 2 |\n\nEarlier\n\n| statements | 8 | 9 |\n"
    after = measure.written(page, {"statements": "3"})
    assert after == "| statements | 1 | 3 |\n\nEarlier\n\n| statements | 8 | 9 |\n"


def test_page_has_a_figure_for_each_row_and_is_close_to_the_code() -> None:
    """It may lag behind by a tenth. `python -m tests.suite.measure --write` writes it."""
    page = measure.PAGE.read_text(encoding="utf-8")
    rows = measure.count([ROOT / "src/goldnode"]).sizes()
    small = measure.Numbers()
    small.add(TEXT)
    for name in (*small.rows(), *small.duplicates()):  # those of the whole code take many seconds
        cells = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", page, re.MULTILINE)
        assert cells, name
        assert cells[1].split("|")[-1].strip(), name
    for name, figure in rows.items():
        now = int(figure.split(" ")[0].replace(",", ""))
        cells = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", page, re.MULTILINE)
        assert cells
        shown = int(cells[1].split("|")[-1].split()[0].replace(",", ""))
        assert abs(now - shown) <= now / 10, "run: python -m tests.suite.measure --write"
