"""Tests use what is public. `python -m tests.unit.test_private_names` lists the private names of goldnode that they still use.

A function that deserves tests of its own has a contract: it is public. Others are tested through the public one. Attributes of
objects are not counted: the type of an object is not in the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

# Uses that are left, by kind. A number may only sink: lower it with the commit that removes uses.
BUDGET: Mapping[str, int] = {
    "read": 31,  # imported, called or compared
    "replaced": 43,  # by monkeypatch: limits, pauses, and what a test must not do
}


class PrivateUse(NamedTuple):
    """A place where a test uses a private name of a module of goldnode."""

    kind: str
    name: str
    line: int


def is_private(name: str) -> bool:
    """Return whether a name is private, and no protocol of Python (`__defaults__`)."""
    return name.startswith("_") and not name.startswith("__")


def imports_of(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield local name, full name and line of what is imported from goldnode."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("goldnode"):
            for one in node.names:
                yield one.asname or one.name, f"{node.module}.{one.name}", node.lineno
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.startswith("goldnode"):
                    yield one.asname or one.name, one.name, node.lineno


def uses_of(source: str | bytes) -> Iterator[PrivateUse]:
    """Yield the uses of one file: imports, attributes of an imported module or class, and `setattr` of both forms."""
    tree = ast.parse(source)
    names = {}
    for local, name, line in imports_of(tree):
        names[local] = name
        if is_private(name.rpartition(".")[2]):
            yield PrivateUse("read", name, line)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if (owned := ast.unparse(node.value)) in names:
                yield PrivateUse("read", f"{names[owned]}.{node.attr}", node.lineno)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
            given = [one.value if isinstance(one, ast.Constant) else one for one in node.args]
            match given:
                case [str(name), _] if name.startswith("goldnode."):
                    pass
                case [ast.AST() as owner, str(attribute), _] if ast.unparse(owner) in names:
                    name = f"{names[ast.unparse(owner)]}.{attribute}"
                case _:
                    continue
            if is_private(name.rpartition(".")[2]):
                yield PrivateUse("replaced", name, node.lineno)


@cache
def all_uses() -> list[tuple[Path, PrivateUse]]:
    """Return the uses of all tests."""
    return [
        (path, use) for path in sorted(TESTS.rglob("*.py")) for use in uses_of(path.read_bytes())
    ]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("from goldnode.core.site import _hidden", "read"),
        ("from goldnode.core import site\nsite._hidden()", "read"),
        ("from goldnode.core import site\nm.setattr(site, '_hidden', 1)", "replaced"),
        ("m.setattr('goldnode.core.site._hidden', 1)", "replaced"),
    ],
)
def test_private_use_is_found(source: str, kind: str) -> None:
    assert [use.kind for use in uses_of(source)] == [kind]


def test_public_and_foreign_names_are_no_private_use() -> None:
    source = (
        "import os\nfrom goldnode.core import site\nsite.load_site()\nos._exit(0)\nsite.__file__\n"
        "m.setattr(site, 'CATALOG', 1)\nm.setattr(os, '_exit', 1)"
    )
    assert not list(uses_of(source))


@pytest.mark.parametrize("kind", BUDGET)
def test_tests_use_no_more_private_names(kind: str) -> None:
    uses = [(path, use) for path, use in all_uses() if use.kind == kind]
    listed = (f"{path.relative_to(ROOT)}:{use.line}: {use.name}" for path, use in uses)
    assert len(uses) <= BUDGET[kind], "\n".join(
        ["make it public if it deserves tests, or go through the public function", *listed]
    )


if __name__ == "__main__":
    for file, each in all_uses():
        print(f"{file.relative_to(ROOT)}:{each.line}: {each.kind}: {each.name}")
