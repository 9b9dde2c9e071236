"""Import graph of the Python files: which test files import which module, directly or not.

It reads the sources, so imports within functions count. pytest imports tests/ without `__init__.py` files,
and some modules are named only in strings (lazy commands, programs of subprocesses). A package-based import
graph misses both, so this one parses the syntax trees itself.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

TOP = ("goldnode", "tests", "benchmarks")
NAMED = re.compile(rf"\b(?:{'|'.join(TOP)})(?:\.[A-Za-z_]\w*)+\.?")
# Files that a module reads or packs without importing them.
PACKED = {
    "goldnode.core.program_file": "src/goldnode/node/*.py",
    "goldnode.gpuprogram.smoke.pack": "src/goldnode/gpuprogram/*.py",
    "goldnode.disks.verify": "src/goldnode/disks/collector.py",
    "tests.simulators.hardware": "tests/simulators/hardware/*.py",
}


def module_of(path: str) -> str:
    """Return the dotted name of a Python file: src/goldnode/a/__init__.py → goldnode.a."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Imports:
    """The import graph. An edge leads from a module, or from a fixture (`tests.conftest:NAME`), to its
    imports.
    """

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self.files = {module_of(path): path for path in files if path.endswith(".py")}
        self.edges: defaultdict[str, set[str]] = defaultdict(set)
        self.fixtures: defaultdict[str, dict[str, str]] = defaultdict(
            dict
        )  # conftest → fixture → pseudo module
        self.names: defaultdict[str, set[str]] = defaultdict(
            set
        )  # place → parameters and strings that may name a fixture
        self.autouse: set[str] = set()
        for module, path in self.files.items():
            # Other files may still import a deleted file.
            self._read(
                module,
                path,
                (root / path).read_text(encoding="utf-8") if (root / path).is_file() else "",
            )
        for module, pattern in PACKED.items():
            self.edges[module] |= {
                other for other, path in self.files.items() if fnmatchcase(path, pattern)
            } - {module}
        for module, path in self.files.items():
            if path.startswith("tests/"):
                self._conftests(module, path)

    def tests_of(self, modules: Iterable[str]) -> dict[str, str]:
        """Return the test files that import or are one of `modules`, with the module that selected each."""
        backward: defaultdict[str, set[str]] = defaultdict(set)
        for module, used in self.edges.items():
            for other in used:
                backward[other].add(module)
        found: dict[str, str] = {}
        todo = [(module, module) for module in modules]
        while todo:
            module, why = todo.pop()
            if module not in found:
                found[module] = why
                todo += [(other, why) for other in backward[module]]
        return {
            self.files[module]: why
            for module, why in found.items()
            if is_test(self.files.get(module, ""))
        }

    def _read(self, module: str, path: str, text: str) -> None:
        package = module if path.endswith("/__init__.py") else module.rpartition(".")[0]
        for node in ast.parse(text, path).body:
            fixture = fixture_of(node) if path.endswith("conftest.py") else None
            place = f"{module}:{fixture.name}" if fixture else module
            if fixture:
                self.fixtures[module][fixture.name] = place
                self.edges[place].add(module)
                if any("autouse" in ast.unparse(decorator) for decorator in fixture.decorator_list):
                    self.autouse.add(place)
            for inner in at_run_time(node):
                if isinstance(inner, ast.arg):
                    self.names[place].add(inner.arg)
                elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    self.names[place].add(inner.value)
                self.edges[place].update(self._used(inner, package, path.endswith("/__init__.py")))
            if not fixture:
                self.edges[module].discard(module)

    def _used(self, node: ast.AST, package: str, is_package: bool) -> Iterator[str]:
        """Yield the modules that one statement or expression names."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = (
                ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
                if node.level
                else node.module or ""
            )
            for alias in node.names:
                yield from self._module(f"{base}.{alias.name}")
                if base in self.files and f"{base}.{alias.name}" not in self.files:
                    yield f"{base}:lazy"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in NAMED.findall(node.value):
                yield from self._below(found) if found.endswith(".") else self._module(found)
        elif (
            isinstance(node, ast.JoinedStr)
            and len(node.values) > 1
            and isinstance(node.values[0], ast.FormattedValue)
        ):
            # importlib.import_module(f"{__package__}.{name}")
            start = node.values[0].value
            if isinstance(start, ast.Name) and start.id in ("__name__", "__package__"):
                below = set(self._below(package + "."))
                if is_package:
                    self.edges[f"{package}:lazy"] |= below
                else:
                    yield from below

    def _module(self, name: str) -> Iterator[str]:
        """Yield the longest prefix of a dotted name that is a module, and its parent packages, which Python
        imports too.
        """
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            if (start := ".".join(parts[:length])) in self.files:
                yield start

    def _below(self, start: str) -> Iterator[str]:
        return (module for module in self.files if module.startswith(start))

    def _conftests(self, module: str, path: str) -> None:
        """Make a file depend on the conftest.py files above it, and on the fixtures it uses,
        directly or not.
        """
        above = [module_of(f"{parent.as_posix()}/conftest.py") for parent in Path(path).parents]
        conftests = [place for place in above if place in self.files and place != module]
        self.edges[module] |= set(conftests)
        known = {
            name: place for conftest in conftests for name, place in self.fixtures[conftest].items()
        }
        for place in (module, *self.fixtures[module].values()):
            mine = {**known, **self.fixtures[module]}
            self.edges[place] |= {mine[name] for name in self.names[place] & mine.keys()} - {place}
        self.edges[module] |= self.autouse & set(known.values())


def is_test(path: str) -> bool:
    """Return whether pytest collects this file."""
    return (
        path.startswith("tests/")
        and path.rpartition("/")[2].startswith("test_")
        and path.endswith(".py")
    )


def fixture_of(node: ast.AST) -> ast.FunctionDef | None:
    """Return the function of a fixture, otherwise None."""
    if isinstance(node, ast.FunctionDef) and any(
        "fixture" in ast.unparse(decorator) for decorator in node.decorator_list
    ):
        return node
    return None


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all its descendants, except code under `if TYPE_CHECKING:`."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                todo += child.orelse
            else:
                todo.append(child)
