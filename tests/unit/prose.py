"""Count the constructions that docs/style.md rules out, in docstrings, comments, string literals and Markdown pages.

`python -m tests.unit.prose PATH …` prints the hits of files and directories, and the counts per 1,000 words.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Construction:
    """A construction, and how often it may occur per 1,000 words.

    The limits are the highest counts in osbuild, mkosi, cloud-init and pyinfra, measured with the same patterns.
    """

    name: str
    pattern: re.Pattern[str]
    limit: float


@dataclass(frozen=True)
class Prose:
    """A docstring, a block of comments, or the text of a page: the text and the line it begins on."""

    line: int
    text: str


@dataclass(frozen=True)
class Hit:
    """One occurrence in a file."""

    path: Path
    line: int
    construction: Construction
    excerpt: str


def _construction(name: str, pattern: str, limit: float) -> Construction:
    return Construction(name, re.compile(pattern), limit)


# A sentence begins the text, or follows a full stop, a colon or a line of a list.
_START = r"(?:\A|(?<=[.:;!?]\s)|(?<=\n\n)|(?<=[-*#|]\s))"
CONSTRUCTIONS = (
    _construction(
        'sentence that opens with a nominal "What"', _START + r"What\b(?![^.!\n]{0,120}\?)", 0.08
    ),
    _construction(
        '"says so", "says nothing", "says of"',
        r"(?i)\bsa(?:ys?|id|ying) (?:so|nothing|of|what)\b",
        0.04,
    ),
    _construction(
        "nobody, somebody, whoever, whatever",
        r"(?i)\b(?:nobody|somebody|whoever|whatever|whichever)\b",
        0.22,
    ),
    _construction('"is none", "are none"', r"\b(?:is|are|was|were|has|have) none\b(?! of)", 0.44),
    _construction(
        '"stands" for "is" or "is stored"',
        r"(?i)\b(?:stands?|stood) (?!alone|by\b|still\b|up\b)",
        0.02,
    ),
    _construction('"told", "tells" for "reported"', r"(?i)\b(?:told|tells?)\b", 0.1),
    _construction(
        "double genitive",
        r"\bof (?:goldnode|somebody|another|apt|dpkg|systemd|Docker|Debian|NVIDIA|Ansible)'s\b",
        0.02,
    ),
    _construction(
        "words that docs/style.md replaces",
        r"(?i)\b(?:anew|mend(?:s|ed|ing)?|tak(?:es?|en|ing) along|held against|call(?:s|ed) as)\b",
        0.0,
    ),
)

_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"(`+)[^`\n]*?\1")
_DIRECTIVE = re.compile(r"^#\s*(?:noqa|type:|fmt:|pragma|!)")


@dataclass(frozen=True)
class Module:
    """The counted parts of a module. The syntax tree would take a hundred times the memory."""

    docstrings: list[Prose]
    literals: list[Prose]
    definitions: list[tuple[int, str]]


@cache
def module(path: Path) -> Module:
    """Return the counted parts of a file."""
    return parsed(path.read_text(encoding="utf-8"))


def parsed(source: str) -> Module:
    """Return the counted parts of a source."""
    nodes = list(ast.walk(ast.parse(source)))
    return Module(list(docstrings(nodes)), list(literals(nodes)), list(definitions(nodes)))


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[Prose]:
    """Return the docstrings of a module, its classes and its functions."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Prose(node.body[0].lineno, text)


def comments(source: str) -> Iterator[Prose]:
    """Return the comments of a module; comments on consecutive lines are one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        if block and token.start[0] != last + 1:
            yield Prose(first, " ".join(block))
            block = []
        if not block:
            first = token.start[0]
        block.append(token.string.lstrip("# "))
        last = token.start[0]
    if block:
        yield Prose(first, " ".join(block))


def definitions(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Return line and name of each definition and assignment."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def literals(nodes: Sequence[ast.AST]) -> Iterator[Prose]:
    """Return the string literals of a module that have a space: messages, help, descriptions and shell programs.

    The placeholders of an f-string become `{}`. Docstrings are left out, and so are texts that begin with `#`: files
    and programs that goldnode writes to a node, whose bytes stay as they are until their function changes.
    """
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            text = node.value
        else:
            continue
        if " " in text and not text.startswith("#"):
            yield Prose(node.lineno, text)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def page(source: str) -> Iterator[Prose]:
    """Return the text of a Markdown page without its code; one text per paragraph."""
    text = _FENCE.sub(_blank, source)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip():
            yield Prose(line, paragraph)
        line += paragraph.count("\n")


def prose(path: Path) -> Iterator[Prose]:
    """Return what a person reads in a Python module or a Markdown page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from page(source)
        return
    yield from module(path).docstrings
    yield from comments(source)


def hits(path: Path, texts: Iterable[Prose]) -> Iterator[Hit]:
    """Return the occurrences of all constructions in the texts of one file. Quoted code does not count."""
    for one in texts:
        text = _INLINE_CODE.sub("x", one.text)
        for construction in CONSTRUCTIONS:
            for match in construction.pattern.finditer(text):
                line = one.line + text.count("\n", 0, match.start())
                excerpt = " ".join(text[max(0, match.start() - 30) : match.end() + 50].split())
                yield Hit(path, line, construction, excerpt)


def literal_hits(path: Path) -> Iterator[Hit]:
    """Return the occurrences of all constructions in the string literals of a module."""
    yield from hits(path, module(path).literals)


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """Return the Python modules and Markdown pages among the paths and below them."""
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.suffix in (".py", ".md"))
        else:
            yield path


def count(paths: Iterable[Path]) -> tuple[int, list[Hit]]:
    """Return the number of words, and all hits."""
    words = 0
    found: list[Hit] = []
    for path in files(paths):
        texts = list(prose(path))
        words += sum(len(_WORD.findall(one.text)) for one in texts)
        found += hits(path, texts)
    return words, found


def main(arguments: list[str]) -> None:
    """Print the hits and the counts of the paths on the command line."""
    words, found = count(Path(argument) for argument in arguments)
    for hit in sorted(found, key=lambda hit: (hit.path, hit.line)):
        print(f"{hit.path}:{hit.line}: {hit.construction.name}: {hit.excerpt}")
    print(f"\n{words} words")
    for construction in CONSTRUCTIONS:
        number = sum(hit.construction is construction for hit in found)
        rate = 1000 * number / max(words, 1)
        print(f"{number:6} {rate:6.2f} per 1,000 (limit {construction.limit}): {construction.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
