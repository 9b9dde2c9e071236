"""Measure the Python of the project: `python -m tests.suite.measure [--write] [DIRECTORY …]`.

Prints the figures of the directories (default: src/goldnode). `--write` puts them into the last column of the
table in docs/development.md. The generated modules of facts are left out.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.suite.duplicates import code_lines, pairs
from tests.suite.timings import ROOT

PAGE = ROOT / "docs/development.md"
WIDTH = 100
GENERATED = ("known.py", "log_lines.py")
BLANK = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


@dataclass
class Numbers:
    """Counts over files. Those that need the tokens of a file, which take half of the time, are made when asked for."""

    files: list[int] = field(default_factory=list)  # lines of each
    functions: list[int] = field(default_factory=list)
    statements: int = 0
    conditionals: int = 0
    positional: int = 0  # calls with more than five positional arguments
    found: int = 0  # bindings of a local named `found`
    wide: int = 0
    texts: list[str] = field(default_factory=list)
    docstrings: list[set[int]] = field(default_factory=list)  # numbers of their lines, of each file

    def add(self, text: str) -> None:
        """Count one file."""
        lines, tree = text.splitlines(), ast.parse(text)
        self.files.append(len(lines))
        self.wide += sum(len(line) > WIDTH for line in lines)
        self.texts.append(text)
        docstrings: set[int] = set()
        for node in ast.walk(tree):
            self.statements += isinstance(node, ast.stmt)
            self.conditionals += isinstance(node, ast.IfExp)
            if isinstance(node, ast.Call):
                self.positional += sum(not isinstance(one, ast.Starred) for one in node.args) > 5
            elif isinstance(node, ast.Name):
                self.found += node.id == "found" and isinstance(node.ctx, ast.Store)
            elif isinstance(node, FUNCTIONS):
                self.functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                docstrings |= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
        self.docstrings.append(docstrings)

    def code_and_comments(self) -> tuple[int, int]:
        """Return the number of lines with code, docstrings left out, and of those with comments."""
        code = comments = 0
        for text, docstrings in zip(self.texts, self.docstrings, strict=True):
            of_code, of_comments = code_and_comments(text)
            code += len(of_code - docstrings)
            comments += len(of_comments)
        return code, comments

    def duplicates(self) -> dict[str, str]:
        """Return the pairs of near-duplicates as text, by the names of their rows in the page."""
        lines = {str(number): code_lines(text) for number, text in enumerate(self.texts)}
        shared = pairs(lines).values()
        per = 10_000 / sum(map(len, lines.values()))
        kinds = {
            "near-duplicate pairs of logic": [pair for pair in shared if pair.logic],
            "near-duplicate pairs of declarations": [pair for pair in shared if not pair.logic],
        }
        return {
            f"{kind}, per 10,000 lines of code (to the letter)": f"{per * len(of_kind):.1f} ({per * sum(pair.letters for pair in of_kind):.1f})"
            for kind, of_kind in kinds.items()
        }

    def sizes(self) -> dict[str, str]:
        """Return the two figures that a test compares with the page."""
        return {
            "lines / files of Python": f"{sum(self.files):,} / {len(self.files)}",
            "statements": f"{self.statements:,}",
        }

    def rows(self) -> dict[str, str]:
        """Return the figures as text, by the names of the rows in the page."""
        lines = sum(self.files)
        sizes = sorted(self.functions)
        tenth = sizes[len(sizes) * 9 // 10]
        code, comments = self.code_and_comments()
        return {
            **self.sizes(),
            "function, median / p90 / max": f"{statistics.median(sizes):.0f} / {tenth} / {sizes[-1]}",
            "functions over 50 lines": f"{100 * sum(size > 50 for size in sizes) / len(sizes):.1f} %",
            "conditional expressions per 1,000 lines": f"{1000 * self.conditionals / lines:.1f}",
            "calls with more than five positional arguments": f"{self.positional}",
            "comments per 100 lines of code": f"{100 * comments / code:.1f}",
            "lines over 100 columns": f"{100 * self.wide / lines:.1f} %",
            "locals named `found`": f"{self.found}",
        }


def code_and_comments(text: str) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines with code, docstrings included, and of those with comments."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in BLANK:
            code |= set(range(token.start[0], token.end[0] + 1))
    return code, comments


def count(directories: Iterable[Path]) -> Numbers:
    numbers = Numbers()
    for directory in directories:
        for path in sorted(directory.rglob("*.py")):
            if path.name not in GENERATED:
                numbers.add(path.read_text(encoding="utf-8"))
    return numbers


def written(page: str, rows: dict[str, str]) -> str:
    """Return the page with the figures in the last column of their rows."""
    for name, figure in rows.items():
        page = re.sub(
            rf"^(\| {re.escape(name)} \|(?:[^|\n]*\|)*)[^|\n]*\|$",
            rf"\g<1> {figure} |",
            page,
            count=1,  # the table of earlier figures, below, has rows of the same names
            flags=re.MULTILINE,
        )
    return page


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suite.measure", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/development.md")
    parser.add_argument("directories", nargs="*", type=Path, default=[ROOT / "src/goldnode"])
    given = parser.parse_args(argv)
    numbers = count(given.directories)
    rows = {**numbers.rows(), **numbers.duplicates()}
    for name, figure in rows.items():
        print(f"{name}: {figure}")
    if given.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
