"""SECURITY.md's threat model: each row has an asset, its protection, a function that verifies it, and what remains."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_CELL = re.compile(r"(?<!\\)\|")
_PLACE = re.compile(r"`(src/goldnode/[\w/.]+|scripts/[\w-]+)`(?: \(((?:`[\w.]+`(?:, )?)+)\))?")


def rows() -> list[list[str]]:
    """Return the cells of the table of assets."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    table = text[text.index("| Asset |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in table[2:]]


@cache
def names(path: Path) -> frozenset[str]:
    """Return the functions, classes, methods (CLASS.METHOD too) and constants of a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name")}
        if isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
    return frozenset(found)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_a_row_leads_to_the_function_that_verifies(row: list[str]) -> None:
    asset, protection, verified, risk = row
    assert all((asset, protection, risk))
    places = _PLACE.findall(verified)
    assert places, f"{asset}: no file is named in {verified!r}"
    for file, functions in places:
        path = ROOT / file
        assert path.is_file(), f"{asset}: {file} is not there, or is a directory: name the module"
        if path.suffix == ".py":
            named = re.findall(r"`([\w.]+)`", functions)
            assert named, f"{asset}: {file} without a function, as in `{file}` (`verify`)"
            assert set(named) <= names(path), f"{asset}: {file} has not {named}"


def test_the_table_has_each_asset_once() -> None:
    assets = [row[0] for row in rows()]
    assert len(assets) == len(set(assets)) >= 15
