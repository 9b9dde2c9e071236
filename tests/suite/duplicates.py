"""Near-duplicates: runs of six lines of code that stand in two places, alike to the letter or in shape.

`python -m tests.suite.duplicates` lists them, the longest first. Imports, docstrings and comments are not counted.

* *To the letter*: the tokens of the six lines are equal.
* *In shape*: they are equal when each name, string and number is replaced by a mark. Only windows of at least
  30 tokens count: with an argument a line, six shorter lines are alike by chance.
* A window that stands in more than eight places is a form of the language or of a library, and is left out.
* A **pair** is two files, or a file with itself, that share a window.

A pair is of **logic** if it shares a window of which at least three lines are logic. All other pairs are of
**declarations**: fields of classes, tables of modules, documents that are written key by key (a dict whose keys are
all texts), decorators (options of a command), signatures, and options of argparse. They have one shape because they
state one kind of thing.
"""

from __future__ import annotations

import ast
import io
import keyword
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tests.suite.timings import ROOT

WINDOW = 6  # lines
LEAST = 30  # tokens of a window that is alike in shape
PLACES = 8
LOGIC = 3  # lines of logic in a window
NAMES = {"True", "False", "None"}  # keywords that are values
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, *DEFINITIONS)
ARGPARSE = {"add_argument", "add_parser", "set_defaults"}
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class CodeLine:
    """A line of code: its tokens, its shape, and whether it declares."""

    number: int
    letters: tuple[str, ...]
    shape: tuple[str, ...]
    declares: bool


@dataclass
class Pair:
    """Two files and the first lines of the windows that they share."""

    places: list[tuple[int, int]]
    logic: bool = False
    letters: bool = False


def code_lines(text: str) -> list[CodeLine]:
    """Return the lines of code of a file."""
    tree = ast.parse(text)
    left_out = _lines(_left_out(tree))
    declared = _lines(_declarations(tree))
    letters: dict[int, list[str]] = defaultdict(list)
    shapes: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type not in LAYOUT and line not in left_out:
            letters[line].append(token.string)
            shapes[line].append(_shape(token))
    return [
        CodeLine(line, tuple(letters[line]), tuple(shapes[line]), line in declared)
        for line in sorted(letters)
    ]


def _shape(token: tokenize.TokenInfo) -> str:
    word = token.string
    if token.type in (tokenize.STRING, tokenize.NUMBER):
        return "value"
    if token.type == tokenize.NAME and (not keyword.iskeyword(word) or word in NAMES):
        return "name"
    return word


def _lines(spans: Iterable[tuple[int, int]]) -> set[int]:
    return {line for first, last in spans for line in range(first, last + 1)}


def _span(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def _left_out(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield imports and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield _span(node)
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            yield _span(node.body[0])


def _declarations(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from (
                _span(one) for one in node.body if isinstance(one, ast.Assign | ast.AnnAssign)
            )
        if isinstance(node, DEFINITIONS):
            yield from map(_span, node.decorator_list)
            yield node.lineno, max(node.lineno, node.body[0].lineno - 1)
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            yield _span(node)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ARGPARSE:
            yield _span(node)


def pairs(files: Mapping[str, list[CodeLine]]) -> dict[tuple[str, str], Pair]:
    """Return the pairs of files that share windows."""
    windows: dict[tuple[tuple[str, ...], ...], list[tuple[str, int]]] = defaultdict(list)
    for file, lines in files.items():
        for start in range(len(lines) - WINDOW + 1):
            window = lines[start : start + WINDOW]
            windows[tuple(line.letters for line in window)].append((file, start))
            if sum(len(line.shape) for line in window) >= LEAST:
                windows[("shape",), *(line.shape for line in window)].append((file, start))
    shared: dict[tuple[str, str], Pair] = {}
    for key, places in windows.items():
        if len(places) > PLACES:
            continue
        for (one, first), (other, second) in combinations(places, 2):
            if one == other and second - first < WINDOW:
                continue  # a window that overlaps with itself
            pair = shared.setdefault((one, other), Pair([]))
            pair.places.append((files[one][first].number, files[other][second].number))
            pair.letters = pair.letters or key[0] != ("shape",)
            pair.logic = (
                pair.logic or min(_logic(files[one], first), _logic(files[other], second)) >= LOGIC
            )
    return shared


def _logic(lines: list[CodeLine], start: int) -> int:
    return sum(not line.declares for line in lines[start : start + WINDOW])


def read(directories: Iterable[Path]) -> dict[str, list[CodeLine]]:
    """Return the lines of the files of the directories, without the generated `known.py`."""
    return {
        str(path.relative_to(ROOT)): code_lines(path.read_text(encoding="utf-8"))
        for directory in directories
        for path in sorted(directory.rglob("*.py"))
        if path.name != "known.py"
    }


def main() -> int:
    shared = pairs(read([ROOT / "src/goldnode"]))
    for (one, other), pair in sorted(shared.items(), key=lambda item: -len(item[1].places)):
        first, second = min(pair.places)
        kind = "logic" if pair.logic else "declarations"
        how = "to the letter" if pair.letters else "in shape"
        print(f"{kind}, {how}: {one}:{first} ~ {other}:{second} ({len(pair.places)} windows)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
