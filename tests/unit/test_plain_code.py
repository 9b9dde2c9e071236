"""The code of src is plain, as far as that can be counted: docs/style.md, section Code (`python -m tests.unit.test_plain_code` lists all hits)."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.suite import measure

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MOST = 5  # positional arguments of a call, as PLR0917 of ruff has it for definitions
LINES = 2  # of a conditional expression

NESTED = "a nested conditional expression: write statements, a table or a small function"
LONG = f"a conditional expression over more than {LINES} lines: write an if statement"
FOUND = "a local named `found`: name it after what it holds"
CALL = f"a call with more than {MOST} positional arguments: pass the others by name"
RULES = {"nested": NESTED, "long": LONG, "found": FOUND, "call": CALL}

# Hits that are left, by rule and package. A number may only sink: lower it with the commit that removes hits.
BUDGET: Mapping[str, Mapping[str, int]] = {"nested": {}, "long": {}, "found": {}, "call": {}}
# Conditional expressions per 1,000 lines of src. It may only sink as well; docs/development.md has the figure of today.
CONDITIONALS = 18.6


class CodeHit(NamedTuple):
    """A place in a file that is not plain."""

    path: Path
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {RULES[self.rule]}"

    @property
    def package(self) -> str:
        """Return the package, or the module, directly below goldnode."""
        return self.path.relative_to(SOURCE).parts[1].removesuffix(".py")


class Code:
    """A module: its nodes, what it imports from goldnode and from elsewhere, and what it defines."""

    def __init__(self, source: str | bytes) -> None:
        self.nodes = list(ast.walk(ast.parse(source)))
        self.lines = len(source.splitlines())
        self.functions = [one for one in self.nodes if isinstance(one, ast.FunctionDef)]
        self.imports: dict[str, str] = {}
        self.takes: dict[str, bool] = {one.name: one.args.vararg is None for one in self.functions}
        self.fields: set[ast.AST] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names = ((one.asname or one.name.split(".")[0], one.name) for one in node.names)
                self.imports.update(names)
            elif isinstance(node, ast.ImportFrom):
                pairs = (
                    (one.asname or one.name, f"{node.module}.{one.name}") for one in node.names
                )
                self.imports.update(pairs)
            elif isinstance(node, ast.ClassDef):
                makers = (one for one in node.body if getattr(one, "name", "") == "__init__")
                self.takes[node.name] = all(self.takes["__init__"] for _ in makers)
                self.fields |= {one.target for one in node.body if isinstance(one, ast.AnnAssign)}


@cache
def modules() -> dict[str, tuple[Path, Code]]:
    """Return all modules of src by their dotted names."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): (
            path,
            Code(path.read_bytes()),
        )
        for path in sorted((SOURCE / "goldnode").rglob("*.py"))
    }


@cache
def everywhere() -> dict[str, bool]:
    """Return the names of our functions and classes. True if all of that name take a fixed number of arguments."""
    names: dict[str, bool] = {}
    for _, code in modules().values():
        for name, fixed in code.takes.items():
            names[name] = names.get(name, True) and fixed
    return names


def is_fixed(call: ast.Call, code: Code) -> bool:
    """Return whether a call is of a function or class of goldnode that takes a fixed number of arguments."""
    root: ast.expr = call.func
    while isinstance(root, ast.Attribute | ast.Call):
        root = root.value if isinstance(root, ast.Attribute) else root.func
    called, origin = ast.unparse(call.func), code.imports.get(getattr(root, "id", ""), "")
    if called == "cls":
        return True
    if origin and not origin.startswith("goldnode"):
        return False
    place, _, name = (origin + called[len(getattr(root, "id", "")) :]).rpartition(".")
    if isinstance(call.func, ast.Name) and not origin:
        return code.takes.get(called, False)
    if place in modules() and name in modules()[place][1].takes:
        return modules()[place][1].takes[name]
    return everywhere().get(called.rpartition(".")[2], False)


def hits_of(path: Path, code: Code) -> Iterator[CodeHit]:
    """Yield the hits of one module."""
    for node in code.nodes:
        if isinstance(node, ast.IfExp):
            if any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node):
                yield CodeHit(path, node.lineno, "nested")
            if (node.end_lineno or 0) - node.lineno >= LINES:
                yield CodeHit(path, node.lineno, "long")
        elif isinstance(node, ast.Name) and node.id == "found" and node not in code.fields:
            if isinstance(node.ctx, ast.Store):
                yield CodeHit(path, node.lineno, "found")
        elif isinstance(node, ast.Call) and len(node.args) > MOST:
            starred = sum(isinstance(one, ast.Starred) for one in node.args)
            if len(node.args) - starred > MOST and is_fixed(node, code):
                yield CodeHit(path, node.lineno, "call")


@cache
def all_hits() -> list[CodeHit]:
    """Return the hits of src."""
    return sorted(hit for path, code in modules().values() for hit in hits_of(path, code))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("nested", "a = 1 if b else 2 if c else 3"),
        ("long", "a = (\n    1\n    if b\n    else 2\n)"),
        ("found", "def one():\n    found = 1\n"),
        ("call", "def one(*, f): ...\none(1, 2, 3, 4, 5, 6)"),
    ],
)
def test_each_rule_finds_its_hit(rule: str, source: str) -> None:
    assert [hit.rule for hit in hits_of(SOURCE, Code(source))] == [rule]


@pytest.mark.parametrize(
    "source",
    [
        "import struct\nstruct.pack('>5B', 1, 2, 3, 4, 5)",
        "def run(*words): ...\nrun(1, 2, 3, 4, 5, 6)",
        "def one(a, b): ...\none(1, 2, 3, 4, 5, f=6)",
        "a = [1 if b else 2, 3 if c else 4]",
        "class Row:\n    found: int\n",
    ],
)
def test_plain_code_has_no_hit(source: str) -> None:
    assert not list(hits_of(SOURCE, Code(source)))


@pytest.mark.parametrize("rule", RULES)
def test_code_is_within_its_budget(rule: str) -> None:
    hits = [hit for hit in all_hits() if hit.rule == rule]
    over = {
        package: count
        for package, count in Counter(hit.package for hit in hits).items()
        if count > BUDGET[rule].get(package, 0)
    }
    lines = (str(hit) for hit in hits if hit.package in over)
    assert not over, "\n".join([f"hits over the budget: {over}", *lines])


def test_conditional_expressions_stay_few() -> None:
    codes = [code for path, code in modules().values() if path.name not in measure.GENERATED]
    expressions = sum(isinstance(node, ast.IfExp) for code in codes for node in code.nodes)
    share = 1000 * expressions / sum(code.lines for code in codes)
    assert share <= CONDITIONALS, (
        f"{share:.1f} conditional expressions per 1,000 lines: write an if statement, or use a helper "
        "(phrase and and_more of node/ground/text, as_dict … of json_lines, optional and group of optional)"
    )


def test_documented_parameters_exist() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{function.lineno}: {function.name} has no parameter `{name}`"
        for path, code in modules().values()
        for function in code.functions
        for name in re.findall(r":param (?:\w+ )?(\w+):", ast.get_docstring(function) or "")
        if name not in {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    ]
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    for each in all_hits():
        print(each)
    for each_rule in RULES:
        counts = Counter(hit.package for hit in all_hits() if hit.rule == each_rule)
        print(f'    "{each_rule}": {dict(sorted(counts.items()))},')
